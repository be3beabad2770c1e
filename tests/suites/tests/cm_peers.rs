//! Connections by address between two processes with userspace devices, without a VM, root or a
//! network.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use verbs_fixtures::cm_peer::outlive::State;
use verbs_fixtures::cm_peer::steps::ALL;
use verbs_harness::port;
use verbs_harness::process::{Finished, Running};

/// A time limit far beyond the duration of any of these tests, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The soft devices of the processes: each with its own address, or all at one address.
const AUTO: &str = "auto";
const SHARED: &str = "127.77.0.1";

fn peer(side: &str, address: SocketAddr, soft: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cm-peer"));
    command.args([side, &address.to_string()]).env("VERBS_SOFT", soft);
    command
}

#[test]
fn two_processes_find_each_other_by_an_address_of_this_machine() {
    find_each_other(Ipv4Addr::LOCALHOST, AUTO);
}

#[test]
fn two_processes_that_share_an_address_find_each_other_by_it_and_by_another_one() {
    find_each_other(SHARED.parse().expect("an address"), SHARED);
    find_each_other(Ipv4Addr::LOCALHOST, SHARED);
}

fn find_each_other(ip: Ipv4Addr, soft: &str) {
    let address = (ip, port::free().expect("a port")).into();
    let listens = Running::start(&mut peer("--listen", address, soft)).expect("cm-peer");
    let connects = Running::start(&mut peer("--connect", address, soft)).expect("cm-peer");
    for end in [connects, listens] {
        let Finished { status, stdout, stderr } = end.finish(LIMIT).expect("it ran").expect("it ended");
        assert!(status.success() && stderr.is_empty(), "{status}: {stderr}\n{stdout}");
        assert!(stdout.ends_with(&format!("{} steps\n", ALL.len())), "{stdout}");
    }
}

/// A pair of processes. One kills itself.
struct Pair {
    name: String,
    state: State,
    dies: Running,
    outlives: Running,
}

impl Pair {
    fn start(state: State, listener_dies: bool, listens_on: Ipv4Addr, soft: &str) -> Self {
        let port = port::free().expect("a port");
        let side = |option: &str, ip: Ipv4Addr, dies: bool| {
            let mut command = peer(option, (ip, port).into(), soft);
            command.args(["--step", "outlive", if dies { "--dies" } else { "--outlives" }, state.name()]);
            Running::start(&mut command).expect("cm-peer")
        };
        let listens = side("--listen", listens_on, listener_dies);
        let connects = side("--connect", Ipv4Addr::LOCALHOST, !listener_dies);
        let [dies, outlives] = if listener_dies { [listens, connects] } else { [connects, listens] };
        let side = if listener_dies { "listener" } else { "client" };
        Self { name: format!("{side} on {listens_on} killed when {state}"), state, dies, outlives }
    }

    /// Returns the line where the survivor reports the end of the connection.
    fn end(self) -> String {
        let Self { name, dies, outlives, .. } = self;
        let survivor = outlives.finish(SILENCE).expect("it ran");
        let dead = dies.finish(LIMIT).expect("it ran").expect("it ended");
        assert_eq!(dead.status.signal(), Some(Signal::SIGKILL as i32), "{name}: {dead:?}");
        let Finished { status, stdout, stderr } = survivor.unwrap_or_else(|end| panic!("{name}: {end:?}"));
        assert!(status.success() && stderr.is_empty(), "{name}: {status}: {stderr}\n{stdout}");
        assert!(!stdout.contains("a message failed"), "{name}: silence told it: {stdout}");
        let line = stdout.lines().find(|line| line.starts_with("ended after "));
        line.unwrap_or_else(|| panic!("{name}: the survivor does not say how it ended: {stdout}")).to_owned()
    }
}

/// A time limit longer than the time after which a `cm-peer` fails because its connection has not
/// ended.
const SILENCE: Duration = Duration::from_secs(300);

#[test]
fn the_survivor_of_a_killed_process_learns_it_in_every_state_of_either_side() {
    survivors_learn_it(AUTO);
}

#[test]
fn so_does_the_survivor_of_a_process_at_the_same_address() {
    survivors_learn_it(SHARED);
}

fn survivors_learn_it(soft: &str) {
    let ways = State::ALL.into_iter().flat_map(|state| [true, false].map(|listens| (state, listens)));
    let ways = ways.filter(|(state, listens)| state.is_of(*listens));
    // A listener on the unspecified address is not bound to its device.
    let addresses = [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED];
    let pairs: Vec<_> = ways
        .flat_map(|(state, listens)| addresses.map(|address| Pair::start(state, listens, address, soft)))
        .collect();
    assert_eq!(pairs.len(), 20);
    for pair in pairs {
        let (name, state) = (pair.name.clone(), pair.state);
        let line = pair.end();
        println!("{name}: {line}");
        // A missing reply or a failed message would have a different text.
        let words: &[&str] = match state {
            // A killed process may keep its address for a moment after its end of the link is gone.
            // A request then goes to a dying device, so the last two texts are rare.
            State::Listening => {
                &["no program listens", "the peer's program rejected", "the peer did not reply"]
            }
            State::Requested => &["the peer's program rejected"],
            // The listener may notice the client's end before it accepts the request.
            State::Requesting => &["the peer's program rejected", "(EINVAL)"],
            // The reply may have arrived but not been read.
            State::Accepted => &["disconnected", "the peer's program rejected", "the connection failed"],
            State::Established | State::Idle | State::Disconnecting => &["disconnected"],
        };
        assert!(words.iter().any(|it| line.contains(it)), "{name}: {line}");
    }
}
