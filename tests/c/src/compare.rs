//! Compares the output of our tools with the output of rdma-core's tools: byte for byte, apart from
//! intended differences.
//!
//! | difference allowed in our tools | where |
//! |---|---|
//! | added reasons, on lines that begin with the tool's name | standard error, after a message |
//! | texts from a newer rdma-core | [`REWORDED`], and flags that the older version cannot name |
//! | other queue pair numbers and packet sequence numbers | addresses |

use verbs_harness::process::Finished;
use verbs_harness::runner::{CaseResult, fail};

/// Texts that have changed in rdma-core since version 44 (Debian 12): the old and the new text.
const REWORDED: &[(&str, &str)] = &[
    (
        "use IB device <dev> (default first device found)\n  -i, --ib-port=<port>   use port <port> of IB device (default all",
        "use IB device <dev> (default all devices)\n  -i, --ib-port=<port>   use port <port> of IB device (default all",
    ),
    (
        "  -N, --new_send            use new post send WR API\n",
        "  -N, --new_send            use new post send WR API\n  -U, --allow-cc-unprotected  allow allocation of \
         unprotected/shared\n                            memory on CoCo guests\n",
    ),
    // The tools now share a function.
    ("cmatose: getaddrinfo error: ", "rdma_getaddrinfo error: "),
    ("udaddy: getaddrinfo error: ", "rdma_getaddrinfo error: "),
    // cmtime has since been replaced by another program.
    (
        "\t[-s server_address]\n\t[-b bind_address]\n\t[-c connections]\n\t[-p port_number]\n\t[-r retries]\n\
         \t[-t timeout_ms]\n",
        "\t-B bind_interface (only one of -B or -b accepted)\n\t-b bind_address (only one of -B or -b accepted)\n\
         \t-C controller_address\n\t[-c num_conns] connections per listener\n\t[-L] run as listening server\n\
         \t[-m mimic_qp_delay_us]\n\t[-n num_threads]\n\t[-P num_peers] total number of peers\n\
         \t[-p oob_port]\n\t[-q base_qpn]\n\t[-r retries]\n\
         \t[-S] run socket baseline test, 2 peers only\n\t[-t timeout_ms]\n",
    ),
    // The default of ibv_xsrq_pingpong was already 1024.
    ("path MTU (default 2048)\n  -c, --clients=<n>", "path MTU (default 1024)\n  -c, --clients=<n>"),
];

/// Compares the complete output and the exit statuses.
///
/// # Errors
/// Fails if the results differ. The error shows the first line that differs.
pub fn same(tool: &str, ours: &Finished, theirs: &Finished) -> CaseResult {
    let theirs_up_to_date = up_to_date(&theirs.stdout);
    same_lines("standard output", &without_numbers(&ours.stdout), &without_numbers(&theirs_up_to_date))?;
    same_but_for_reasons(tool, &ours.stderr, &theirs.stderr)?;
    if ours.status == theirs.status {
        Ok(())
    } else {
        fail(format_args!("ours ended with {}, theirs with {}", ours.status, theirs.status))
    }
}

/// Compares standard error. Ours may add reasons: lines that begin with the tool's name.
///
/// # Errors
/// Fails if the texts differ. The error shows the first line that differs.
pub fn same_but_for_reasons(tool: &str, ours: &str, theirs: &str) -> CaseResult {
    let reason = format!("{tool}: ");
    let mut theirs_left = theirs.split_inclusive('\n').peekable();
    for line in ours.split_inclusive('\n') {
        if theirs_left.next_if(|next| *next == line).is_none() && !line.starts_with(&reason) {
            return fail(format_args!(
                "standard error: ours has {line:?} where theirs has {:?}",
                theirs_left.peek()
            ));
        }
    }
    match theirs_left.next() {
        None => Ok(()),
        Some(line) => fail(format_args!("standard error: ours lacks {line:?}")),
    }
}

/// Compares two texts line by line.
///
/// # Errors
/// Fails if the texts differ. The error shows the first line that differs.
pub fn same_lines(what: &str, ours: &str, theirs: &str) -> CaseResult {
    let (mut mine, mut their) = (ours.split_inclusive('\n'), theirs.split_inclusive('\n'));
    loop {
        match (mine.next(), their.next()) {
            (None, None) => return Ok(()),
            (one, other) if one == other => {}
            (one, other) => return fail(format_args!("{what}: ours has {one:?} where theirs has {other:?}")),
        }
    }
}

/// Names of flags added to rdma-core after version 44, the oldest version that the tests compare
/// with.
const NEWER_FLAGS: &[&str] = &["SUPPORT_FLUSH", "SUPPORT_ATOMIC_WRITE"];

/// Compares the output of `ibv_devinfo -v`. For flags that this rdma-core cannot name, ours must
/// print the [names](NEWER_FLAGS) from a newer rdma-core.
///
/// # Errors
/// Fails if the texts differ. The error shows the first line that differs.
pub fn same_but_for_flag_names(ours: &str, theirs: &str) -> CaseResult {
    const UNNAMED: &str = "Unknown flags:";
    let mut mine = ours.lines().peekable();
    let mut heading = "";
    for their_line in theirs.lines() {
        // Under this heading, no version of rdma-core names all flags.
        let is_named_by_newer =
            their_line.contains(UNNAMED) && !heading.starts_with("\tdevice_cap_flags_ex:");
        if !is_named_by_newer {
            if !their_line.starts_with("\t\t") {
                heading = their_line;
            }
            match mine.next() {
                Some(line) if line == their_line => continue,
                line => return fail(format_args!("ours has {line:?} where theirs has {their_line:?}")),
            }
        }
        let indent = their_line.len() - their_line.trim_start().len();
        let is_name = |line: &&str| {
            line.len() - line.trim_start().len() == indent && NEWER_FLAGS.contains(&line.trim_start())
        };
        let names = core::iter::from_fn(|| mine.next_if(is_name)).count();
        if names == 0 {
            return fail(format_args!("ours names nothing where theirs has {their_line:?}"));
        }
    }
    match mine.next() {
        None => Ok(()),
        Some(line) => fail(format_args!("ours goes on with {line:?}")),
    }
}

/// Returns rdma-core's output as a newer version would print it.
fn up_to_date(theirs: &str) -> String {
    let newer = |text: String, (old, new): &(&str, &str)| {
        if text.contains(new) { text } else { text.replace(old, new) }
    };
    REWORDED.iter().fold(theirs.to_owned(), newer)
}

/// Blanks the numbers that differ between runs: queue pair and first packet sequence numbers.
fn without_numbers(stdout: &str) -> String {
    let blank = |line: &str| {
        ["QPN 0x", "PSN 0x"].iter().fold(line.to_owned(), |line, name| match line.split_once(name) {
            Some((before, number)) if number.len() >= 6 => format!("{before}{name}......{}", &number[6..]),
            _ => line,
        })
    };
    stdout.split_inclusive('\n').map(blank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_numbers_of_a_run_is_blanked() {
        let line = |qpn, psn| format!("  local address:  LID 0x0000, QPN {qpn}, PSN {psn}, GID ::\n");
        assert_eq!(without_numbers(&line("0x000048", "0xe075f9")), line("0x......", "0x......"));
        for other in ["", "QPN 0x12", "usage: x\n\n  -p, --port"] {
            assert_eq!(without_numbers(other), other);
        }
    }

    #[test]
    fn reasons_are_lines_of_our_own_and_nothing_else_may_differ() {
        let same = |ours: &str, theirs: &str| same_but_for_reasons("tool", ours, theirs).is_ok();
        assert!(same("it failed\ntool: because\n", "it failed\n") && same("", ""));
        assert!(same("tool: bad option\nit failed\n", "tool: bad option\nit failed\n"));
        assert!(!same("tool: because\n", "it failed\n") && !same("it fails\n", "it failed\n"));
        assert!(
            !same("it failed\nand more\n", "it failed\n") && !same("it failed\n", "it failed\nand more\n")
        );
        assert!(!same("it failed", "it failed\n"), "the end of the line");
    }

    #[test]
    fn what_is_newer_already_is_left_as_it_is() {
        for (old, new) in REWORDED {
            assert_eq!((&*up_to_date(old), &*up_to_date(new)), (*new, *new));
        }
        assert_eq!(up_to_date("other\n"), "other\n");
    }

    #[test]
    fn only_unknown_flags_may_differ_and_only_by_their_names() {
        let same = |ours: &str, theirs: &str| same_but_for_flag_names(ours, theirs).is_ok();
        assert!(same("a\n\tB_C\n", "a\n\tB_C\n"));
        let newer = "a\n\tSUPPORT_FLUSH\n\tSUPPORT_ATOMIC_WRITE\nz\n";
        assert!(same(newer, "a\n\tUnknown flags: 0xC0\nz\n"));
        assert!(!same("a\n\tB_C\nz\n", "a\n\tUnknown flags: 0xC0\nz\n"), "no rdma-core has that name");
        assert!(!same("a\n", "a\nb\n") && !same("a\nb\n", "a\n") && !same("a\n", "b\n"));
        assert!(!same("a\nz\n", "a\n\tUnknown flags: 0x3\nz\n"), "flags left out are not named");
        let beyond =
            "\tdevice_cap_flags_ex:\t0x1C000000000\n\t\t\tUnknown flags: 0x1C000000000\n\ttso_caps:\n";
        let plain = beyond.replace("_ex", "");
        assert!(same(beyond, beyond) && !same(&plain, &plain));
        assert!(!same("a\n\tlower\nz\n", "a\n\tUnknown flags: 0x3\nz\n"));
        assert!(!same("a\n\tUnknown flags: 0x3\nz\n", "a\n\tB\nz\n"));
    }
}
