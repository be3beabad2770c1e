//! Peers killed in every state of either side: `cm-peer`s on one device or on two.
//!
//! The kernel ends the connections of a dying process and notifies the survivor at once. A soft
//! device dies with its process. A survivor on a kernel device then detects the silence
//! ([`cm_peer::outlive`](verbs_fixtures::cm_peer::outlive)).

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use verbs_fixtures::cm_peer::outlive::State;
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail};
use verbs_harness::tools::{LIMIT, Maker};

use super::server::{SUITE, here};
use crate::lifecycle::counts::{back_to, resources};

/// Returns the cases for devices whose connections the kernel ends.
pub(super) fn cases() -> Vec<Case> {
    let name = "a_killed_peer_ends_the_other_one_in_every_state";
    vec![Case::new(SUITE, name, of_one_device).within(DEADLINE)]
}

/// The time limit for a case whose peer goes silent.
const DEADLINE: Duration = Duration::from_secs(300);

fn of_one_device() -> CaseResult {
    let (ip, baseline) = (here()?, resources()?);
    let ended = outlive(
        |_| true,
        |state, dead_listens| {
            let port = port::free()?;
            Ok((pair(&SocketAddr::new(ip, port).to_string(), state, dead_listens)?, port))
        },
    )?;
    are_told_at_once(&ended)?;
    back_to(&baseline)
}

/// The line where a survivor reports the end of its connection.
pub(crate) struct Ended {
    name: String,
    /// The line, in the form `ended after SECONDS s: WORDS`.
    line: String,
}

/// Runs a pair for each chosen state and side, all concurrently. Kills one peer in that state.
/// `make` returns the commands for the listener and the client, and the listener's TCP port.
pub(crate) fn outlive(
    is_chosen: impl Fn(State) -> bool + Copy,
    mut make: impl FnMut(State, bool) -> CaseResult<([Command; 2], u16)>,
) -> CaseResult<Vec<Ended>> {
    let ways = [true, false].into_iter().flat_map(|dead_listens| {
        State::ALL
            .into_iter()
            .filter(move |state| is_chosen(*state) && state.is_of(dead_listens))
            .map(move |s| (s, dead_listens))
    });
    let mut pairs = Vec::new();
    for (state, dead_listens) in ways {
        let name = format!("{} killed when {state}", if dead_listens { "listener" } else { "client" });
        let ([mut listens, mut connects], port) = make(state, dead_listens)?;
        let [listener, client] =
            start(&mut listens, &mut connects, port).map_err(|stop| stop.context(&name))?;
        let (dead, survivor) = if dead_listens { (listener, client) } else { (client, listener) };
        pairs.push((name, dead, survivor));
    }
    let (mut why, mut all) = (Vec::new(), Vec::new());
    for (name, dead, survivor) in pairs {
        let survivor = survivor.finish(DEADLINE)?;
        let dead = dead.finish(LIMIT)?;
        let line = survivor
            .as_ref()
            .ok()
            .and_then(|end| end.stdout.lines().find(|line| line.starts_with(ENDED)).map(str::to_owned));
        if !dead.as_ref().is_ok_and(|end| end.status.signal().is_some()) {
            why.push(format!("{name}: it was not: {dead:?}"));
        }
        match (complaint(&name, survivor), line) {
            (None, Some(line)) => {
                eprintln!("{name}: {line}");
                all.push(Ended { name, line });
            }
            (complaint, _) => {
                why.push(
                    complaint.unwrap_or_else(|| format!("{name}: the survivor does not say how it ended")),
                );
            }
        }
    }
    if why.is_empty() { Ok(all) } else { Err(Stop::Failed(why.join("; "))) }
}

/// The start of the line that a survivor prints.
const ENDED: &str = "ended after ";

/// Checks that no survivor had to wait for the protocol's timeout.
pub(crate) fn are_told_at_once(ended: &[Ended]) -> CaseResult {
    /// The time limit, in seconds, for a survivor that is notified at once. The protocol's timeout
    /// exceeds a minute; a busy machine needs a few seconds.
    const AT_ONCE: f64 = 30.0;
    for Ended { name, line } in ended {
        let seconds = line.strip_prefix(ENDED).and_then(|rest| rest.split(' ').next());
        if seconds.and_then(|text| text.parse().ok()).is_none_or(|seconds: f64| seconds > AT_ONCE) {
            return fail(format_args!("{name}: {line}"));
        }
    }
    Ok(())
}

/// Returns the commands for the listener and the client. One of them dies.
pub(crate) fn pair(address: &str, state: State, dead_listens: bool) -> CaseResult<[Command; 2]> {
    let of = |listens: bool| {
        let end = if listens == dead_listens { "--dies" } else { "--outlives" };
        peer(listens, address, &["--step", "outlive", end, state.name()])
    };
    Ok([of(true)?, of(false)?])
}

/// Returns the command for one side.
pub(crate) fn peer(listens: bool, address: &str, args: &[&str]) -> CaseResult<Command> {
    let mut command = Maker::Ours.tool("cm-peer")?;
    command.args([if listens { "--listen" } else { "--connect" }, address]).args(args);
    Ok(command)
}

/// Starts the listening side, waits until it listens and then starts the connecting side.
pub(crate) fn start(listens: &mut Command, connects: &mut Command, port: u16) -> CaseResult<[Running; 2]> {
    let mut listener = Running::start(listens)?;
    if !process::wait_for_listener_of(listener.pid(), port, LIMIT, || !listener.has_ended()) {
        return fail(format_args!("nobody listens: {:?}", listener.finish(Duration::ZERO)?));
    }
    Ok([listener, Running::start(connects)?])
}

/// Returns a side's failure, if it failed.
pub(crate) fn complaint(name: &str, end: Result<Finished, Finished>) -> Option<String> {
    match end {
        Ok(Finished { status, stderr, .. }) if status.success() && stderr.is_empty() => None,
        Ok(Finished { stderr, status, stdout }) => {
            let last = stdout.lines().last().unwrap_or("nothing");
            Some(format!("{name}: {status}: {} (after {last:?})", stderr.trim_end()))
        }
        Err(Finished { stdout, stderr, .. }) => {
            let last = stdout.lines().last().unwrap_or("nothing");
            Some(format!("{name} was not done, {last:?} was its last: {}", stderr.trim_end()))
        }
    }
}
