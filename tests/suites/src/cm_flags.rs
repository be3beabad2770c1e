//! `cm_flags`: rarer flags of the tools for connections by address, which change the wire format or
//! the connection's states. [`cm_tools`] and [`cm_rates`] cover the common flags. Only `cargo xtask
//! test --whole` runs this suite.
//!
//! All flags of rdma-core's tools, and the cases that try them, with our tools and theirs in either
//! role:
//!
//! | tool | flags of its `getopt` | cases |
//! |---|---|---|
//! | `rping` | `-s -c -a -p -C -v` | every case; `-a` by IPv4, IPv6, and link-local IPv6 |
//! | | `-I -P -S -V -d -q` | one each, `-q` also on one side |
//! | | `-t` | misuse, as in C (command-line tests) |
//! | `rdma_server`, `rdma_client` | `-s -p` | every case; `-s` by each kind of address |
//! | `rdma_xserver`, `rdma_xclient` | `-s -p`, `-c r` | every case; `-s` by each kind of address |
//! | | `-c x` | connects on ConnectX; rxe has no XRC, so both makers' tools report an error |
//! | `ucmatose` | `-s -b` | every case, by each kind of address; `-b` also on the client |
//! | | `-C -S -a -c -m -p -t` | one each |
//! | | `-f`, `-P` | `ip` and `ib`; Linux rejects `-f gid` on RoCE ports: errors compared |
//! | `udaddy` | `-s -b` | like `ucmatose` |
//! | | `-C -S -c -t` | one each |
//! | | `-f`, `-P`, `-p` | `ip`; Linux rejects `ipoib` on RoCE ports: errors compared |
//! | `mckey` | `-m -b -s` | every case; Linux rejects IPv6 groups: errors compared |
//! | | `-C -S -c -o` | one each |
//! | | `-M`, `-l`, `-p` | Linux rejects them on rxe: errors compared |
//! | `cmtime` | `-C -L -b -c -p -q` | every case, by each kind of address |
//! | | `-P -m -n -r -t` | one each |
//! | | `-B`, `-S` | tests on soft devices |

use verbs_harness::runner::Case;

use super::{cm_rates, cm_tools, soft};

const SUITE: &str = "cm_flags";

/// Returns the suite's cases that run on rxe.
pub fn cases() -> Vec<Case> {
    of_two_functions().into_iter().chain(soft::tools::cases(SUITE)).collect()
}

/// Returns the suite's cases that run between two ConnectX functions.
pub fn of_two_functions() -> Vec<Case> {
    cm_tools::with_more_flags(SUITE).chain(cm_rates::with_more_flags(SUITE)).collect()
}
