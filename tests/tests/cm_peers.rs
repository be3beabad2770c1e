//! Connections by address between two processes with devices in userspace: no VM, no root, no
//! network.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use verbs_tests::cm_peer::steps::ALL;
use verbs_tests::port;
use verbs_tests::process::{Finished, Running};

/// Far beyond what any of this takes, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

fn peer(side: &str, address: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cm-peer"));
    command.args([side, &address.to_string()]).env("VERBS_SOFT", "auto");
    command
}

#[test]
fn two_processes_find_each_other_by_an_address_of_this_machine() {
    let address = (Ipv4Addr::LOCALHOST, port::free().expect("a port")).into();
    let listens = Running::start(&mut peer("--listen", address)).expect("cm-peer");
    let connects = Running::start(&mut peer("--connect", address)).expect("cm-peer");
    for end in [connects, listens] {
        let Finished { status, stdout, stderr } = end.finish(LIMIT).expect("it ran").expect("it ended");
        assert!(status.success() && stderr.is_empty(), "{status}: {stderr}\n{stdout}");
        assert!(stdout.ends_with(&format!("{} steps\n", ALL.len())), "{stdout}");
    }
}
