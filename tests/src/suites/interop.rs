//! `interop`: our tools and rdma-core's, against each other and side by side.

use std::iter;

use crate::process::Finished;
use crate::runner::{Case, CaseResult, fail};
use crate::tools::{DEVICE, Maker, PingPong, gid_index, run};

const SUITE: &str = "interop";

/// The suite.
pub fn cases() -> Vec<Case> {
    pingpongs().chain(outputs()).chain(misuses()).collect()
}

/// Every pair of makers with every way to run it.
fn pingpongs() -> impl Iterator<Item = Case> {
    const WAYS: &[(&str, u32, u32, &[&str])] = &[
        // name, size, iters, flags
        ("as it is", 4096, 1000, &[]),
        ("-e", 4096, 200, &["-e"]),
        ("-c", 4096, 200, &["-c"]),
        ("-e -c -r 1", 4096, 100, &["-e", "-c", "-r", "1"]),
        ("-N", 4096, 100, &["-N"]),
        ("-m 256 -l 3", 4096, 100, &["-m", "256", "-l", "3"]),
        ("-s 1", 1, 200, &["-c"]),
        ("-s 65536", 65536, 50, &["-c"]),
        ("-s 1048576", 1 << 20, 4, &["-c"]),
    ];
    let pairs = [(Maker::Ours, Maker::Ours), (Maker::Ours, Maker::Theirs), (Maker::Theirs, Maker::Ours)];
    pairs.into_iter().flat_map(|(server, client)| {
        WAYS.iter().map(move |&(way, size, iters, flags)| {
            let (server, client) = (server.clone(), client.clone());
            Case::new(SUITE, format!("pingpong {server} serves {client} {way}"), move || {
                let (server, client) = (server.clone(), client.clone());
                PingPong { server, client, iters, size, flags, refuse: None }.run()?;
                Ok(())
            })
        })
    })
}

/// What both print when they are used well.
fn outputs() -> impl Iterator<Item = Case> {
    const USES: &[(&str, &[&str])] = &[
        ("ibv_devices", &[]),
        ("ibv_devinfo", &[]),
        ("ibv_devinfo", &["-l"]),
        ("ibv_devinfo", &["--list"]),
        ("ibv_devinfo", &["-v"]),
        ("ibv_devinfo", &["-d", DEVICE, "-i", "1"]),
        ("ibv_devinfo", &["--verbose", "--ib-dev=rxe0", "--ib-port", "1"]),
        ("ibv_devinfo", &["--verb", "--ib-d", DEVICE]),
    ];
    USES.iter().map(|&(tool, args)| {
        Case::new(SUITE, format!("output of {tool} {}", args.join(" ")).trim_end(), move || {
            let [ours, theirs] = both(tool, &args.iter().map(ToString::to_string).collect::<Vec<_>>())?;
            assert!(ours.status.success() && ours.stderr.is_empty(), "{ours:?}");
            assert_eq!(ours.status, theirs.status);
            same_but_for_flag_names(&ours.stdout, &theirs.stdout)
        })
    })
}

/// What both say when they are used badly.
fn misuses() -> impl Iterator<Item = Case> {
    /// Nobody listens there: it is the port that tcpmux had.
    const NO_SERVER: &[&str] = &["-p", "1", "127.0.0.1"];
    let devinfo = [
        "-x",
        "--nosuch",
        "-h",
        "--help",
        "-d",
        "--ib-dev",
        "--ib",
        "--list=all",
        "-d nosuch",
        "-d nosuch -l",
        "-i 9",
        "-i 0",
        "-i -1",
        "-i x",
        "extra",
        "-l extra",
        "-d rxe0 -i 2 -v",
    ];
    // With the address of a server that is not there, so that none of them waits.
    let pingpong = [
        "-x",
        "--nosuch",
        "-m 300",
        "-m 0",
        "-m x",
        "-i 0",
        "-i -1",
        "-d nosuch",
        "-p",
        "-p 0",
        "-p 65536",
        "-s",
        "-r 0",
        "-g 5000",
        "-i 9",
        "-i 2 -g 1",
        "-t",
        "-h",
        "extra",
        "-m 1024",
        "-e",
    ];
    let devices = ["extra", "-h", "--nosuch"];
    let one = |tool: &'static str, line: &str, tail: &'static [&'static str]| {
        let args: Vec<String> = line.split(' ').chain(tail.iter().copied()).map(str::to_owned).collect();
        let name = format!("misuse of {tool} {line}");
        Case::new(SUITE, name, move || same_misuse(tool, &args))
    };
    let devinfo = devinfo.map(|line| one("ibv_devinfo", line, &[]));
    let pingpong = pingpong.map(|line| one("ibv_rc_pingpong", line, NO_SERVER));
    let devices = devices.map(|line| one("ibv_devices", line, &[]));
    let without_gid = iter::once(Case::new(SUITE, "misuse of ibv_rc_pingpong without a GID", without_a_gid));
    devices.into_iter().chain(devinfo).chain(pingpong).chain(without_gid)
}

fn both(tool: &str, args: &[String]) -> CaseResult<[Finished; 2]> {
    let one = |maker: Maker| run(maker.tool(tool)?.args(args));
    // Theirs first: where it is not installed there is nothing to compare.
    let theirs = one(Maker::Theirs)?;
    Ok([one(Maker::Ours)?, theirs])
}

fn same_misuse(tool: &str, args: &[String]) -> CaseResult {
    let [ours, theirs] = both(tool, args)?;
    assert_eq!(ours.stderr, theirs.stderr, "standard error");
    assert_eq!(without_numbers(&ours.stdout), without_numbers(&theirs.stdout), "standard output");
    assert_eq!(ours.status, theirs.status);
    Ok(())
}

/// Blanks what another run would print differently: the queue pair's number and the first packet's.
fn without_numbers(stdout: &str) -> String {
    let blank = |line: &str| {
        ["QPN 0x", "PSN 0x"].iter().fold(line.to_owned(), |line, name| match line.split_once(name) {
            Some((before, number)) if number.len() >= 6 => format!("{before}{name}......{}", &number[6..]),
            _ => line,
        })
    };
    stdout.split_inclusive('\n').map(blank).collect()
}

/// On RoCE there is no way without a GID: both ends learn it from the kernel, and each from its own.
fn without_a_gid() -> CaseResult {
    let _ = gid_index()?;
    let mut said = Vec::new();
    for maker in [Maker::Theirs, Maker::Ours] {
        let port = crate::process::free_port()?;
        let command = |maker: &Maker| -> CaseResult<_> {
            let mut command = maker.tool("ibv_rc_pingpong")?;
            command.args(["-d", DEVICE, "-p", &port.to_string()]);
            Ok(command)
        };
        let mut server = crate::process::Running::start(&mut command(&maker)?)?;
        if !crate::process::wait_for_listener(port, crate::tools::LIMIT, || !server.has_ended()) {
            return fail("the server does not listen");
        }
        let client = run(command(&maker)?.arg("127.0.0.1"))?;
        let server = server.finish(crate::tools::LIMIT)?;
        let Ok(server) = server else { return fail(format_args!("the server did not end: {server:?}")) };
        said.push([client, server].map(|end| (end.status.code(), end.stderr)));
    }
    assert_eq!(said[1], said[0]);
    assert_eq!(said[1][1].0, Some(1), "a server that cannot connect its queue pair fails");
    Ok(())
}

/// Compares what both print. Where theirs is too old to name flags and says so, ours must name them.
fn same_but_for_flag_names(ours: &str, theirs: &str) -> CaseResult {
    const UNNAMED: &str = "Unknown flags:";
    let mut mine = ours.lines().peekable();
    for their_line in theirs.lines() {
        if !their_line.contains(UNNAMED) {
            match mine.next() {
                Some(line) if line == their_line => continue,
                line => return fail(format_args!("ours has {line:?} where theirs has {their_line:?}")),
            }
        }
        let indent = their_line.len() - their_line.trim_start().len();
        let is_name = |line: &&str| {
            line.len() - line.trim_start().len() == indent
                && line
                    .trim_start()
                    .bytes()
                    .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
        };
        let names = iter::from_fn(|| mine.next_if(is_name)).count();
        if names == 0 {
            return fail(format_args!("ours names nothing where theirs has {their_line:?}"));
        }
    }
    match mine.next() {
        None => Ok(()),
        Some(line) => fail(format_args!("ours goes on with {line:?}")),
    }
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
    fn only_unknown_flags_may_differ_and_only_by_their_names() {
        let same = |ours: &str, theirs: &str| same_but_for_flag_names(ours, theirs).is_ok();
        assert!(same("a\n\tB_C\n", "a\n\tB_C\n"));
        assert!(same("a\n\tB_C\n\tD\nz\n", "a\n\tUnknown flags: 0x3\nz\n"));
        assert!(!same("a\n", "a\nb\n") && !same("a\nb\n", "a\n") && !same("a\n", "b\n"));
        assert!(!same("a\nz\n", "a\n\tUnknown flags: 0x3\nz\n"), "flags left out are not named");
        assert!(!same("a\n\tlower\nz\n", "a\n\tUnknown flags: 0x3\nz\n"));
        assert!(!same("a\n\tUnknown flags: 0x3\nz\n", "a\n\tB\nz\n"));
    }
}
