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
//! | [`ends`] | the end of both peers' processes |

mod connections;
mod ends;
mod multicast;
mod peers;
mod pingpong;
pub(super) mod tools;
mod wire;

use verbs_harness::runner::Case;

/// The suite.
pub fn cases() -> Vec<Case> {
    pingpong::cases().chain(multicast::cases()).chain(peers::cases()).chain(connections::cases()).collect()
}
