//! `cm_flags`: the flags of tools for connections by address that change the wire or the states of
//! the connection, beyond those of [`cm_tools`] and [`cm_rates`]. One commit of four runs it on
//! rxe; on ConnectX it is left to runs that name a kernel.
//!
//! All flags of rdma-core's tools, and the cases that try them, with ours and theirs in either role
//! unless it says "ours":
//!
//! | tool | flags of its `getopt` | cases |
//! |---|---|---|
//! | `rping` | `-s -c -a -p -C -v` | every case; `-a` by IPv4, IPv6, and IPv6 of the link |
//! | | `-I -P -S -V -d -q` | one each, `-q` also on one side |
//! | | `-t` | misuse, as in C (tests of the command line) |
//! | `rdma_server`, `rdma_client` | `-s -p` | every case; `-s` by each kind of address |
//! | `rdma_xserver`, `rdma_xclient` | `-s -p`, `-c r` | every case; `-s` by each kind of address |
//! | | `-c x` | connects on ConnectX; rxe has no XRC, and both refuse |
//! | `ucmatose` | `-s -b` | every case, by each kind of address; `-b` also of the client |
//! | | `-C -S -a -c -m -p -t` | one each |
//! | | `-f`, `-P` | `ip` and `ib`; `-f gid` is refused by Linux on RoCE ports, and compared |
//! | `udaddy` | `-s -b` | as `ucmatose` |
//! | | `-C -S -c -t` | one each |
//! | | `-f`, `-P`, `-p` | `ip`; `ipoib` is refused by Linux on RoCE ports, and compared |
//! | `mckey` | `-m -b -s` | every case; groups of IPv6 are refused by Linux, and compared |
//! | | `-C -S -c -o` | one each |
//! | | `-M`, `-l`, `-p` | compared: Linux refuses them on rxe |
//! | `cmtime` | `-C -L -b -c -p -q` | every case, by each kind of address |
//! | | `-P -m -n -r -t` | one each |
//! | | `-B`, `-S` | tests on soft devices |

use super::{cm_rates, cm_tools, soft};
use crate::runner::Case;

pub(super) const SUITE: &str = "cm_flags";

/// The suite on rxe.
pub fn cases() -> Vec<Case> {
    of_two_functions().into_iter().chain(soft::tools::cases()).collect()
}

/// The suite between two functions of ConnectX.
pub fn of_two_functions() -> Vec<Case> {
    cm_tools::with_more_flags().chain(cm_rates::with_more_flags()).collect()
}
