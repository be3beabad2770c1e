//! `soft_interop`: provider-soft and the kernel's rxe as each other's peers.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | rxe and soft at the two ends of a veth pair |
//! | [`pingpong`] | the ping-pongs, ours and rdma-core's |
//! | [`multicast`] | both as members of one group |
//! | [`peers`] | `verbs-peer`: every operation, sizes, MTUs, refusals, packets under netem |
//! | [`connections`] | `cm-peer`: connections by address, lookups, killed peers, netem |
//! | [`tools`] | tools for connections by address, by IPv6 and under netem |

mod connections;
mod multicast;
mod peers;
mod pingpong;
pub(super) mod tools;
mod wire;

use std::io;
use std::time::Duration;

use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::Case;

const SUITE: &str = "soft_interop";

/// The suite.
pub fn cases() -> Vec<Case> {
    pingpong::cases().chain(multicast::cases()).chain(peers::cases()).chain(connections::cases()).collect()
}

/// Waits for both ends, a server first. After one fails, the other gets only a short time.
fn finish_both(mut ends: [Running; 2], limit: Duration) -> io::Result<[Result<Finished, Finished>; 2]> {
    /// The time for the last messages of an end that has lost its peer.
    const LAST_WORDS: Duration = Duration::from_secs(5);
    let both_or_a_failure = || {
        let [one, other] = ends.each_mut().map(|end| end.status());
        let has_failed = |status: Option<bool>| status == Some(false);
        one.is_some() && other.is_some() || has_failed(one) || has_failed(other)
    };
    process::wait_until(limit, both_or_a_failure);
    let [server, client] = ends;
    Ok([server.finish(LAST_WORDS)?, client.finish(LAST_WORDS)?])
}
