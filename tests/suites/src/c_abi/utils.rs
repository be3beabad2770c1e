//! ibverbs-utils: ping-pongs with ends on either library and equal output on both.

use std::process::Command;
use std::time::Duration;

use verbs_harness::process::Running;
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{DEVICE, LIMIT, Maker, PingPong, run};

use super::program::{PAIRS, SUITE, program};

const PACKAGE: &str = "ibverbs-utils";

/// A program, the message size in bytes, the number of rounds and flags for both ends.
type Way = (&'static str, u32, u32, &'static [&'static str]);

/// The ping-pongs to run. Without `-e`, programs poll, which takes longer.
const WAYS: &[Way] = &[
    ("ibv_rc_pingpong", 4096, 50, &["-c"]),
    ("ibv_rc_pingpong", 65536, 10, &["-e", "-c", "-r", "1"]),
    ("ibv_rc_pingpong", 1000, 50, &["-e", "-N", "-c", "-m", "256"]),
    ("ibv_uc_pingpong", 4096, 50, &["-e", "-c"]),
    ("ibv_ud_pingpong", 1024, 50, &["-e", "-c"]),
    ("ibv_srq_pingpong", 4096, 50, &["-e", "-c", "-q", "3"]),
];

/// Programs and their arguments: correct use, features missing in the device, misuse.
const OUTPUTS: &[(&str, &[&str])] = &[
    ("ibv_devices", &[]),
    ("ibv_devinfo", &[]),
    ("ibv_devinfo", &["-l"]),
    ("ibv_devinfo", &["-v"]),
    ("ibv_devinfo", &["-d", DEVICE, "-i", "2"]),
    ("ibv_devinfo", &["-d", "nosuch"]),
    ("ibv_xsrq_pingpong", &["-d", DEVICE, "-g", "1"]),
    ("ibv_rc_pingpong", &["-d", DEVICE, "-g", "1", "-o"]),
    ("ibv_rc_pingpong", &["-d", DEVICE, "-g", "1", "-t"]),
    ("ibv_rc_pingpong", &["-d", DEVICE, "-g", "1", "-j"]),
    ("ibv_rc_pingpong", &["-d", DEVICE, "-g", "5000"]),
    ("ibv_rc_pingpong", &["-d", DEVICE, "-s", "0", "-r", "0"]),
];

/// Returns the cases for these programs.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    let pingpongs = WAYS.iter().flat_map(|&(tool, size, iters, flags)| {
        PAIRS.into_iter().map(move |[server, client]| {
            let name = format!("pingpong {tool} -s {size} {} {server} serves {client}", flags.join(" "));
            let run = PingPong { tool, server, client, iters, size, flags, refuse: None };
            Case::new(SUITE, name, move || run.run().map(drop))
        })
    });
    let outputs = OUTPUTS.iter().map(|&(tool, args)| {
        let name = format!("output of {tool} {}", args.join(" "));
        Case::new(SUITE, name.trim_end(), move || same_output(tool, args))
    });
    let asyncwatch = Case::new(SUITE, "ibv_asyncwatch prints the same event", same_events);
    pingpongs.chain(outputs).chain([asyncwatch])
}

/// Checks that a program prints the same output with both libraries. Every program ends at once.
/// Some get a server's address, but no server exists there.
fn same_output(tool: &str, args: &[&str]) -> CaseResult {
    let one = |maker: Maker| -> CaseResult<_> {
        let mut command = program(&maker, tool, PACKAGE)?;
        command.args(args).env_remove("VERBS_LOG_LEVEL");
        if tool.ends_with("_pingpong") {
            // No program listens on this port, which once belonged to tcpmux.
            command.args(["-p", "1", "127.0.0.1"]);
        }
        run(&mut command)
    };
    let (theirs, ours) = (one(Maker::Theirs)?, one(Maker::Linked)?);
    assert_eq!(without_numbers(&ours.stdout), without_numbers(&theirs.stdout));
    assert_eq!(ours.stderr, theirs.stderr);
    assert_eq!(ours.status, theirs.status);
    Ok(())
}

/// Removes queue pair numbers and packet sequence numbers, which differ between processes.
fn without_numbers(text: &str) -> String {
    let words = text.split_inclusive([' ', '\n']);
    words.map(|word| if word.starts_with("0x") && word.ends_with(", ") { "N, " } else { word }).collect()
}

/// Checks that a program prints the same events with both libraries. Both processes watch the
/// device while an address comes and goes, which changes the GID table.
fn same_events() -> CaseResult {
    const ADDRESS: &str = "10.9.9.78/24";
    let mut printed = Vec::new();
    for maker in [Maker::Theirs, Maker::Linked] {
        let mut watch = Running::start(program(&maker, "ibv_asyncwatch", PACKAGE)?.args(["-d", DEVICE]))?;
        if !watch.wait_for_output(LIMIT, |text| text.contains('\n')) {
            return fail(format_args!("{maker} does not begin: {:?}", watch.finish(Duration::ZERO)?));
        }
        for change in ["add", "del"] {
            let done = run(Command::new("ip").args(["addr", change, ADDRESS, "dev", "veth0"]))?;
            if !done.status.success() {
                return fail(format_args!("ip addr {change}: {}", done.stderr.trim_end()));
            }
        }
        watch.wait_for_output(LIMIT, |text| text.lines().count() > 1);
        // The program does not end by itself.
        let (Ok(ended) | Err(ended)) = watch.finish(Duration::ZERO)?;
        // The kernel raises one or more events for each change.
        printed.push(ended.stdout.lines().take(2).map(str::to_owned).collect::<Vec<_>>());
    }
    assert_eq!(
        printed[0].get(1).map(|line| line.trim()),
        Some("event_type IBV_EVENT_GID_CHANGE (18), port 1")
    );
    assert_eq!(printed[1].get(1), printed[0].get(1));
    Ok(())
}
