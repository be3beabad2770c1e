//! `soft_interop`: provider-soft and the kernel's rxe as peers.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | rxe and soft at the two ends of a veth pair |
//! | [`pingpong`] | the ping-pong tools, ours and rdma-core's |
//! | [`multicast`] | both devices as members of one group |
//! | [`peers`] | `verbs-peer`: every operation, sizes, MTUs, rejections, packets under netem |
//! | [`connections`] | `cm-peer`: connections by address, lookups, killed peers, netem |
//! | [`tools`] | tools for connections by address, over IPv6 and under netem |
//! | [`presented`] | `verbs-run` beside a kernel device |
//! | [`ends`] | waiting for both peers' processes |

mod connections;
mod ends;
mod multicast;
mod peers;
mod pingpong;
mod presented;
pub(super) mod tools;
mod wire;

use verbs_harness::runner::Case;

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    pingpong::cases()
        .chain(multicast::cases())
        .chain(peers::cases())
        .chain(connections::cases())
        .chain(presented::cases())
        .collect()
}
