//! Finds kernel failures in the console and the lines that show them.
//!
//! A panic or an oops is a failure wherever it happens. `BUG:` and `WARNING:` reports count if
//! their call trace passes through the infiniband drivers. Stock kernels also warn about an
//! emulated machine's clocks and firmware.
//!
//! A test may provoke a kernel defect that is known and harmless to the test. It then writes
//! [`KNOWN`] and the functions that warn to `/dev/kmsg`, and [`KNOWN_END`] afterwards. Warnings
//! from these functions between the two lines are counted but are not failures.

use std::sync::LazyLock;

use regex_lite::Regex;

/// The number of console lines shown with a failure.
const TAIL: usize = 40;

/// The maximum number of report lines searched for a driver's name. A WARNING with registers and a
/// trace is shorter.
const REPORT: usize = 120;

/// The start of a line that names functions whose later warnings are known.
const KNOWN: &str = "verbs-tests: known warning of ";

/// The line that ends the effect of [`KNOWN`].
const KNOWN_END: &str = "verbs-tests: no known warning";

/// A failure shown in a console.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// The line with the failure, without the time stamp.
    pub(crate) headline: String,
    /// The report, starting at its first line and truncated if it is very long.
    pub(crate) report: String,
}

/// Returns the first failure in a console's text, and the number of known warnings before it.
pub(crate) fn failure(console: &str) -> (Option<Failure>, usize) {
    let lines: Vec<&str> = console.lines().collect();
    let (mut known, mut warned) = (Vec::new(), 0);
    for (at, line) in lines.iter().enumerate() {
        let line = message(line);
        if let Some(functions) = line.strip_prefix(KNOWN) {
            known = functions.split_whitespace().map(|function| format!("{function}+0x")).collect();
        } else if line.starts_with(KNOWN_END) {
            known.clear();
        }
        let end = end_of_report(&lines, at);
        let names_driver = || lines[at..end].iter().any(|line| DRIVER.is_match(line));
        let is_failure = FATAL.is_match(line) || STARTS_REPORT.is_match(line) && names_driver();
        if !is_failure {
            continue;
        }
        if line.starts_with("WARNING: ") && known.iter().any(|function| line.contains(function)) {
            warned += 1;
            continue;
        }
        // "cut here" and similar lines precede the line with the failure.
        let first = if at > 0 && lines[at - 1].contains("cut here") { at - 1 } else { at };
        let report = lines[first..end.min(first + 2 * TAIL)].join("\n");
        return (Some(Failure { headline: line.to_owned(), report }), warned);
    }
    (None, warned)
}

/// Returns the last lines of a console.
pub(crate) fn tail(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

/// Returns a line without `[    1.234567] ` and, where a kernel prints the caller, `[    T1] `.
fn message(line: &str) -> &str {
    &line[STAMPS.find(line).map_or(0, |stamps| stamps.end())..]
}

static STAMPS: LazyLock<Regex> = LazyLock::new(|| regex(r"^(\[ *[TC]*[0-9.]+\] ?)+"));

/// A line that reports a dead kernel: a panic, or the header of an oops, `...: 0000 [#1] PREEMPT
/// SMP`.
static FATAL: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"^(Kernel panic - not syncing|kernel BUG at |BUG: unable to handle|BUG: kernel NULL pointer dereference)|(^Oops.*|\b[0-9a-f]{4}) \[#[0-9]",
    )
});

static STARTS_REPORT: LazyLock<Regex> =
    LazyLock::new(|| regex("^(BUG: |WARNING: |UBSAN: |refcount_t: |INFO: task .*blocked for more than)"));

/// A line that shows that the drivers caused a report: with a source path, or with a symbol's
/// `[module]`, which is `[mlx5_ib(E)]` after the module has tainted the kernel. "Modules linked
/// in:" lists every loaded module and therefore does not count.
static DRIVER: LazyLock<Regex> = LazyLock::new(|| {
    let modules = "rdma_rxe|ib_core|ib_uverbs|ib_umad|ib_cm|iw_cm|rdma_cm|rdma_ucm|siw|mlx5_ib|mlx5_core";
    regex(&format!(r"drivers/infiniband/|mellanox/mlx5|\+0x.*\[({modules})[\](]"))
});

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

fn end_of_report(lines: &[&str], start: usize) -> usize {
    let limit = lines.len().min(start + REPORT);
    for (at, line) in lines.iter().enumerate().take(limit).skip(start + 1) {
        if line.contains("---[ end trace") {
            return at + 1;
        }
        if line.contains("cut here") || STARTS_REPORT.is_match(message(line)) {
            return at;
        }
    }
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Boot messages of stock kernels under QEMU that look like failures but are not.
    const HARMLESS: &str = include_str!("harmless.txt");
    const STUCK: &str = include_str!("stuck.txt");
    const RXE_WARNING: &str = include_str!("warning.txt");

    #[test]
    fn reports_without_a_driver_in_them_and_userspace_crashes_are_harmless() {
        let elsewhere = RXE_WARNING
            .replace("drivers/infiniband/sw/rxe/rxe_pool.c", "kernel/smp.c")
            .replace(" [rdma_rxe]", "");
        let named_after_its_end = "WARNING: CPU: 0 PID: 1 at kernel/smp.c:1 f+0x1/0x2\n\
            ---[ end trace 0 ]---\n rxe_dealloc+0x1d/0x100 [rdma_rxe]\n";
        let stuck = STUCK.replace("[ib_core]", "[ext4]");
        for text in [HARMLESS, &elsewhere, named_after_its_end, &stuck] {
            assert_eq!(failure(text).0, None, "{text}");
        }
    }

    #[test]
    fn a_warning_in_a_driver_is_a_failure_and_its_report_is_cut_out() {
        let console = format!("{HARMLESS}{RXE_WARNING}").replace('\n', "\r\n");
        let failure = failure(&console).0.unwrap();
        assert!(failure.headline.starts_with("WARNING: CPU: 1 PID: 211 at drivers/infiniband"));
        assert!(failure.report.starts_with("[   11.100000] ------------[ cut here"));
        assert!(failure.report.ends_with("---[ end trace 0000000000000000 ]---"));
    }

    #[test]
    fn a_report_of_the_core_that_a_driver_called_into_is_a_failure() {
        let text = "\
[    9.5][  T211] refcount_t: underflow; use-after-free.
[    9.5][  T211] WARNING: lib/refcount.c:28 at refcount_warn_saturate+0x10/0x20, CPU#1: rdma/211
[    9.5][  T211] Call Trace:
[    9.5][  T211]  ib_uverbs_release_ucq+0x2f/0x40 [ib_uverbs]
[    9.5][  T211] ---[ end trace 0 ]---
";
        assert!(failure(text).0.unwrap().headline.starts_with("WARNING: lib/refcount.c"));
        assert!(failure(STUCK).0.is_some());
    }

    #[test]
    fn every_driver_is_found_by_its_module_tainted_or_not_and_no_other() {
        let report = |symbol: &str| {
            format!(
                "WARNING: CPU: 0 PID: 1 at mm/slub.c:1 f+0x1/0x2\n x+0x1/0x2 {symbol}\n---[ end trace 0 ]---\n"
            )
        };
        for symbol in ["[mlx5_ib]", "[mlx5_core(E)]", "[rdma_rxe(E+)]", "[ib_umad]"] {
            assert!(failure(&report(symbol)).0.is_some(), "{symbol}");
        }
        for symbol in ["[mlx5_vdpa]", "[mlxfw]", "mlx5_ib", ""] {
            assert_eq!(failure(&report(symbol)).0, None, "{symbol}");
        }
    }

    #[test]
    fn every_kind_of_death_is_fatal_wherever_it_happens() {
        for line in [
            "[   12.3] Kernel panic - not syncing: sysrq triggered crash",
            "[   12.3] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "[   12.3] BUG: unable to handle page fault for address: ffffc90000",
            "[   12.3] Oops: 0002 [#1] PREEMPT SMP NOPTI",
            "[   12.3] Oops: Oops: 0002 [#1] SMP NOPTI",
            "[   12.3] general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
            "[   12.3] invalid opcode: 0000 [#2] PREEMPT SMP",
            "kernel BUG at mm/slub.c:4011!",
        ] {
            let text = format!("{HARMLESS}{line}\nmore\n");
            assert!(failure(&text).0.is_some_and(|f| line.ends_with(&f.headline)), "{line}");
        }
    }

    #[test]
    fn an_announced_warning_of_a_function_is_counted_until_the_end_of_the_announcement() {
        let known = format!("[   11.0] {KNOWN}refcount_warn_saturate rxe_pool_cleanup\n");
        let end = format!("[   11.0] {KNOWN_END}\n");
        assert_eq!(failure(&format!("{known}{RXE_WARNING}{RXE_WARNING}{end}")), (None, 2));
        for text in [
            format!("{known}{RXE_WARNING}{end}{RXE_WARNING}"),
            format!("{known}{RXE_WARNING}{}", RXE_WARNING.replace("rxe_pool_cleanup+", "rxe_dealloc+")),
            format!("{known}{RXE_WARNING}BUG: unable to handle page fault at rxe_pool_cleanup+0x3\n"),
        ] {
            let (failure, known) = failure(&text);
            assert!(failure.is_some() && known == 1, "{text}");
        }
    }
}
