//! `verbs-run` beside a device of the kernel: programs find both, and transfer data over each.

use std::process::Command;

use verbs_harness::pair::both;
use verbs_harness::port;
use verbs_harness::process::{self, Running};
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{LIMIT, Maker, bin_dir, linked_dir, run};

use super::ends::SUITE;
use super::wire::{Family, RXE, SOFT, Wire};

pub(super) fn cases() -> impl Iterator<Item = Case> {
    let listed = Case::new(SUITE, "verbs-run lists the kernel's device and a soft one", lists_both);
    let pingpongs = [RXE, SOFT].map(|device| {
        let name = format!("verbs-run {device} transfers data beside the other");
        Case::new(SUITE, name, move || pingpong(device))
    });
    [listed].into_iter().chain(pingpongs)
}

/// Returns the command as `verbs-run` executes it in the namespace of soft's end. The files of
/// `/sys` are those of the first namespace, as with `unshare --net`.
fn presented(wire: &Wire, command: &Command) -> CaseResult<Command> {
    let mut wrapper = wire.enter();
    wrapper.arg(bin_dir()?.join("verbs-run"));
    wrapper.arg(format!("--soft={}", Family::V4.soft())).arg("--libraries").arg(linked_dir()?).arg("--");
    Ok(process::under(wrapper, command))
}

fn lists_both() -> CaseResult {
    let wire = Wire::new(1500)?;
    let devices = Maker::Linked.tool("ibv_devices")?;
    let listed = |command: &Command| -> CaseResult<Vec<String>> {
        let done = run(&mut presented(&wire, command)?)?;
        if !done.status.success() || !done.stderr.is_empty() {
            return fail(format_args!("{command:?}: {}, {:?}, {:?}", done.status, done.stdout, done.stderr));
        }
        let first = |line: &str| line.split_ascii_whitespace().next().map(str::to_owned);
        Ok(done.stdout.lines().filter_map(first).filter(|name| [RXE, SOFT].contains(&&**name)).collect())
    };
    assert_eq!(listed(&devices)?, [RXE, SOFT], "on our library");
    let mut without_ours = Command::new("env");
    without_ours.args(["-u", "LD_LIBRARY_PATH"]);
    assert_eq!(listed(&process::under(without_ours, &devices))?, [RXE], "on rdma-core's library");
    let mut files = Command::new("ls");
    files.args(["-1", "/sys/class/infiniband"]);
    assert_eq!(listed(&files)?, [RXE, SOFT]);

    let mut interfaces = Command::new("ls");
    interfaces.args(["/sys/class", "/sys/class/net"]);
    let inside = run(&mut presented(&wire, &interfaces)?)?;
    assert_eq!(inside.stdout, run(&mut interfaces)?.stdout, "other files");
    Ok(())
}

fn pingpong(device: &str) -> CaseResult {
    const ROUNDS: u32 = 30;
    let wire = Wire::new(1500)?;
    let gid = if device == RXE { wire.at_rxe(Family::V4)?.1 } else { 0 };
    let port = port::free()?;
    let mut tool = Maker::Linked.tool("ibv_rc_pingpong")?;
    tool.args(["-c", "-d", device, "-g", &gid.to_string()]);
    tool.args(["-n", &ROUNDS.to_string(), "-p", &port.to_string()]);
    let mut server = Running::start(&mut presented(&wire, &tool)?)?;
    if !process::wait_for_listener_of(server.pid(), port, LIMIT, || !server.has_ended()) {
        return fail(format_args!("the server does not listen: {:?}", server.finish(LIMIT)?));
    }
    let client = Running::start(&mut presented(&wire, tool.arg(Family::V4.soft().to_string()))?)?;
    for end in both(server, client, LIMIT)? {
        let is_told = end.stdout.lines().any(|line| line.starts_with(&format!("{ROUNDS} iters in ")));
        assert!(is_told && end.stderr.is_empty(), "{end:?}");
    }
    Ok(())
}
