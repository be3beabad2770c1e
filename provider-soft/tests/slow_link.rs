//! Tests that a peer requesting more data than the link can carry does not fill the kernel's send
//! queue.
//!
//! This test has no harness, because it runs its own executable in a network namespace whose
//! loopback interface carries 1 Gbit/s. It is skipped if the host does not allow this, or lacks
//! `unshare`, `ip` or `tc` with the queueing discipline `tbf`.
#![allow(missing_docs)]

mod common;

use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, ExitCode};

use common::attack::{Attack, PACKET, WINDOW, attack};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = false;

const NAME: &str = "slow_link.responses_do_not_fill_the_send_queue_of_a_slow_link";
/// The rate of a 1 Gbit/s link, in bytes per microsecond.
const LINK_RATE: u64 = 125;
/// The number of bytes that the link carries in one burst.
const BURST: u64 = 1 << 20;
/// The exit status of a shell that failed to create the link.
const NO_LINK: i32 = 77;
const LINK: &str = r#"
    { ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 1mb limit 64mb; } || exit 77
    exec "$0" "$@"
"#;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("attack") {
        under_attack();
        return ExitCode::SUCCESS;
    }
    let this = std::env::current_exe().expect("this program has a path");
    // A user namespace makes an unprivileged process root of its network namespace.
    let flags = if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) { "-n" } else { "-rn" };
    let status = Command::new("unshare").args([flags, "sh", "-c", LINK]).arg(this).arg("attack").status();
    let (passed, failed, skipped) = match status {
        Ok(status) if status.success() => (1, 0, 0),
        // `unshare` exits with 1 if the kernel does not permit it. A test that panics exits with
        // 101.
        Ok(status) if matches!(status.code(), Some(NO_LINK | 1)) => {
            println!("skip {NAME}: no network namespace with a slow link ({status})");
            (0, 0, 1)
        }
        Err(error) => {
            println!("skip {NAME}: unshare: {error}");
            (0, 0, 1)
        }
        Ok(status) => {
            println!("FAIL {NAME}: {status}");
            (0, 1, 0)
        }
    };
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ExitCode::from(failed)
}

fn under_attack() {
    let Attack { waits, lasted, victim, .. } = attack();
    let longest = waits.iter().map(|(_, wait)| wait).max().expect("round trips");
    println!("longest {longest:?}; {lasted:?}; {victim:?}");
    assert!(victim.responses_held > 0, "{victim:?}");
    assert_eq!(victim.blocked, 0, "the socket's buffer was never full");
    // Bytes that the kernel has accepted but the link has not yet carried are in the send queue.
    let carried = BURST + LINK_RATE * (lasted.as_micros() as u64 + 1);
    assert!(victim.sent_bytes <= carried + WINDOW + 64 * PACKET, "{lasted:?}: {victim:?}");
}
