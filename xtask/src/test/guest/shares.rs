//! The share of a run: what each kernel runs by default, and what commits take turns with.

use crate::commit;
use crate::test::Args;
use crate::vm::connectx::Port;

/// A kernel's part of a run where the command line names no kernel and no suite.
pub(super) struct Usual {
    pub(super) kernel: &'static str,
    /// The port of an mlx5 device.
    pub(super) port: Port,
    /// The form of the cases on our API where programs name the provider: `erased` or `static`.
    pub(super) form: &'static str,
    /// Parts of suites on rxe that another kernel runs.
    pub(super) skip: &'static [&'static str],
}

/// The kernels of a run that names none. Its time is shared between them: C programs on our library
/// and killed tools run on the older one; ping-pongs with rdma-core's, its tests, and soft devices
/// beside rxe, on the newer one. The old one runs the conformance suite in the other form without
/// ioctls.
pub(super) const BY_DEFAULT: &[Usual] = &[
    Usual {
        kernel: "6.1",
        port: Port::Ib,
        form: "static",
        skip: &[
            "c_abi.pyverbs",
            "cm_tools",
            "fallback.pingpong",
            "interop.pingpong",
            "interop.srq pingpong",
            "interop.uc pingpong",
            "interop.ud pingpong",
            "interop.xsrq pingpong",
            "soft_interop",
        ],
    },
    Usual {
        kernel: "7.2",
        port: Port::Roce,
        form: "erased",
        skip: &[
            "c_abi.pingpong",
            "c_abi.perftest",
            "c_abi.libfabric",
            "c_abi.ucx",
            "c_abi.rdmacm",
            "cm.a_thousand_connections",
            "cm_flags",
            "cm_rates",
            "interop.misuse",
            "lifecycle.a killed",
            "lifecycle.ibv_rc_pingpong",
            "lifecycle.ibv_srq_pingpong",
            "lifecycle.ibv_uc_pingpong",
            "lifecycle.ibv_ud_pingpong",
            // Each of our sides meets rdma-core's.
            "soft_interop.rc pingpong ours on rxe serves ours",
            "soft_interop.rc pingpong ours on soft serves ours",
            "soft_interop.srq pingpong ours on rxe serves ours",
            "soft_interop.srq pingpong ours on soft serves ours",
            "soft_interop.uc pingpong ours on rxe serves ours",
            "soft_interop.uc pingpong ours on soft serves ours",
            "soft_interop.ud pingpong ours on rxe serves ours",
            "soft_interop.ud pingpong ours on soft serves ours",
        ],
    },
];

/// Halves of what takes minutes on rxe, of which a commit leaves one to others: perftest on our
/// library, many connections, disturbed links, killed peers.
const RXE_HALVES: [&[&str]; 2] = [
    &[
        "cm.a_thousand_connections",
        "cm_rates.mckey",
        "cm_rates.ucmatose",
        "soft_interop.connections of a killed soft",
        "soft_interop.connections under everything",
        "soft_interop.connections under loss",
        "soft_interop.peers under everything",
        "soft_interop.peers under loss",
    ],
    &[
        PERFTEST,
        "cm_rates.cmtime",
        "cm_rates.udaddy",
        "soft_interop.connections of a killed rxe",
        "soft_interop.connections under duplication",
        "soft_interop.connections under reordering",
        "soft_interop.peers under duplication",
        "soft_interop.peers under reordering",
    ],
];

/// The same on ConnectX: perftest and other forms of queues, or what the libraries write.
const MLX5_HALVES: [&[&str]; 2] = [&[PERFTEST, "compressed", "registers"], &["differential"]];

/// perftest on our library, which runs on rxe or on ConnectX.
const PERFTEST: &str = "c_abi.perftest";

/// rdma-core's tests of Python on our library, which one commit of four runs on ConnectX, and
/// another one on rxe.
const PYVERBS: &str = "c_abi.pyverbs";

/// The flags of tools for connections by address that other suites do not try, which one commit of
/// four runs on rxe.
const CM_FLAGS: &str = "cm_flags";

/// Returns what a kernel runs by default, if it is among those that run then.
pub(super) fn usual(kernel: &str) -> Option<&'static Usual> {
    BY_DEFAULT.iter().find(|usual| usual.kernel == kernel)
}

/// Returns the commit's turn, if it counts: a run of one device has no other.
pub(super) fn turn(args: &Args) -> Option<usize> {
    let is_whole = args.kernel.is_empty() && args.suites.is_empty() && args.device.is_none();
    commit::turn().filter(|_| is_whole)
}

/// Returns whether the programs of a turn name the provider of a device, which takes a minute and a
/// half to build for each: cases on the other one have the erased form alone.
pub(super) fn is_named_in(turn: usize, has_model: bool) -> bool {
    (turn % 2 == 1) == has_model
}

/// Returns the features of the guests' programs, among them those of the providers that they name.
pub(super) fn named(args: &Args) -> &'static str {
    match turn(args) {
        Some(turn) if is_named_in(turn, true) => "verbs-tests/guest,verbs-tests/mlx5",
        Some(_) => "verbs-tests/guest,verbs-tests/rxe",
        None => "verbs-tests/kernel",
    }
}

/// Returns what a commit of one of the turns leaves out in guests with one of the devices.
pub(super) fn left_in_turn(turn: usize, has_model: bool) -> Vec<&'static str> {
    let halves = if has_model { &MLX5_HALVES } else { &RXE_HALVES };
    let mut left = halves[turn % 2].to_vec();
    if turn != usize::from(!has_model) {
        left.push(PYVERBS);
    }
    // On ConnectX they are left to runs that name a kernel.
    if turn != 3 && !has_model {
        left.push(CM_FLAGS);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turns_leave_nothing_out_for_ever() {
        let runs = |part: &str, has_model| -> Vec<usize> {
            (0..commit::TURNS).filter(|turn| !left_in_turn(*turn, has_model).contains(&part)).collect()
        };
        for part in RXE_HALVES.concat().into_iter().chain([CM_FLAGS]) {
            assert!(!runs(part, false).is_empty(), "{part}");
        }
        for part in MLX5_HALVES.concat() {
            assert!(!runs(part, true).is_empty(), "{part}");
        }
        for part in [PERFTEST, PYVERBS] {
            let (on_rxe, on_mlx5) = (runs(part, false), runs(part, true));
            assert!(!on_rxe.is_empty() && !on_mlx5.is_empty(), "{part}");
            assert!(on_mlx5.iter().all(|turn| !on_rxe.contains(turn)), "{part}");
        }
    }
}
