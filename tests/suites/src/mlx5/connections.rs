//! `cm`, `listener`, `cm_tools`, `cm_rates` and `cm_flags`: connections by address with our API and
//! our tools, as in the same suites on rxe.
//!
//! The first two connect a function to itself, in the case's process. The tools connect one
//! function to the other ([`Sides`](crate::cm_sides::Sides)), with rdma-core's tools in either
//! role. Their cases include XRC connections, which rxe does not support. The C programs run on
//! rdma-core's library in the suite [`rdmacm`](super::rdmacm), and on our library in
//! `c_abi.rdmacm`.

use verbs_fixtures::functions::{Port, Setup};
use verbs_harness::runner::Case;

use crate::{cm, cm_flags, cm_rates, cm_tools, listener};

/// Returns the cases. There are none without two Ethernet ports, because InfiniBand ports have no
/// address in the guests.
pub fn cases(setup: Setup) -> Vec<Case> {
    if setup != (Setup { port: Port::Roce, functions: 2 }) {
        return Vec::new();
    }
    [
        cm::of_interface(),
        listener::cases(),
        cm_tools::of_two_functions(),
        cm_rates::of_two_functions(),
        cm_flags::of_two_functions(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The name prefixes of the suites in this file and of the C programs on our library.
const SUITES: &[&str] = &["cm.", "listener.", "cm_tools.", "cm_rates.", "cm_flags.", "c_abi.rdmacm."];

/// The cases that a guest with `--usual` runs: our tools and theirs in either role, and XRC.
pub const SHORT: &[&str] = &[
    "cm.a_connection_by_ipv6_address_carries_messages_both_ways",
    "cm.the_unread_requests_of_a_listener_and_the_threads_that_wait_follow_it",
    "listener.an_address_is_enough_for_a_connection_that_either_side_ends",
    "cm_tools.rping -V ours serves theirs",
    "cm_tools.rdma_xclient -c x ours serves theirs",
    "cm_tools.rdma_xclient -c x theirs serves ours",
    "cm_rates.udaddy theirs serves ours",
    "c_abi.rdmacm.rping -S 4000 served by the peer",
];

/// Returns whether only guests without `--usual` run a case of these suites.
pub fn is_long(name: &str) -> bool {
    SUITES.iter().any(|suite| name.starts_with(suite)) && !SHORT.contains(&name)
}
