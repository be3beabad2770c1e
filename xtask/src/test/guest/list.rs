//! The guests of the fixed list and of the parts of `--whole`, and what each of them runs.
//!
//! The guests of the fixed list divide the suites: on rxe, C programs on our library and killed
//! tools run on Linux 6.1; ping-pongs with rdma-core's, its tests, and soft devices beside rxe on
//! 7.2. On ConnectX the suites' program divides them between the two kinds of port (`--usual`). The
//! other kernels run a few topics.

use super::Guest;
use crate::arch::Arch;
use crate::test::Args;
use crate::test::part::Part;
use crate::vm::Device;
use crate::vm::connectx::Port;
use crate::vm::kernel::{self, Choice};

/// Cases on rxe that the guest with Linux 7.2 runs.
const ON_7_2: &str = "the guest with Linux 7.2 runs it";
const FOR_7_2: &[&str] = &[
    "c_abi.pyverbs",
    "cm_tools",
    "fallback.pingpong",
    "interop.pingpong",
    "interop.srq pingpong",
    "interop.uc pingpong",
    "interop.ud pingpong",
    "interop.xsrq pingpong",
    "soft_interop",
];

/// Cases on rxe that the guest with Linux 6.1 runs.
const ON_6_1: &str = "the guest with Linux 6.1 runs it";
const FOR_6_1: &[&str] = &[
    "c_abi.pingpong",
    "c_abi.perftest",
    "c_abi.libfabric",
    "c_abi.ucx",
    "c_abi.rdmacm",
    "cm_rates",
    "interop.misuse",
    "lifecycle.a killed",
    "lifecycle.ibv_rc_pingpong",
    "lifecycle.ibv_srq_pingpong",
    "lifecycle.ibv_uc_pingpong",
    "lifecycle.ibv_ud_pingpong",
];

/// The reason for leaving a case out of the fixed list.
const WHOLE: &str = "cargo xtask test --whole runs it";

/// Cases on rxe that take minutes. One of each kind stays: perftest's latencies, ping-pongs between
/// our tools and rdma-core's, the link with every disturbance, and one killed peer.
const LONG_ON_RXE: &[&str] = &[
    "c_abi.perftest ib_atomic_bw",
    "c_abi.perftest ib_read_bw",
    "c_abi.perftest ib_send_bw",
    "c_abi.perftest ib_write_bw",
    "cm.a_thousand_connections",
    "cm_flags",
    "cm_rates.cmtime",
    "cm_rates.ucmatose",
    "cm_rates.udaddy",
    "soft_interop.connections of a killed rxe",
    "soft_interop.connections under duplication",
    "soft_interop.connections under loss",
    "soft_interop.connections under reordering",
    "soft_interop.peers under duplication",
    "soft_interop.peers under loss",
    "soft_interop.peers under reordering",
    "soft_interop.rc pingpong ours on rxe serves ours",
    "soft_interop.rc pingpong ours on soft serves ours",
    "soft_interop.srq pingpong ours on rxe serves ours",
    "soft_interop.srq pingpong ours on soft serves ours",
    "soft_interop.uc pingpong ours on rxe serves ours",
    "soft_interop.uc pingpong ours on soft serves ours",
    "soft_interop.ud pingpong ours on rxe serves ours",
    "soft_interop.ud pingpong ours on soft serves ours",
];

/// Cases on ConnectX that take minutes. The differential stays, perftest's latencies, programs on
/// compressed queues, and queue pairs with few registers.
const LONG_ON_MLX5: &[&str] = &[
    "c_abi.perftest.ib_atomic_bw",
    "c_abi.perftest.ib_read_bw",
    "c_abi.perftest.ib_send_bw",
    "c_abi.perftest.ib_write_bw",
    "compressed.conformance",
    "registers.cq_events",
    "registers.datagram",
    "registers.rc",
];

/// The modules of rdma-core's tests for Python that the fixed list runs.
const PYVERBS: &str = "VERBS_PYVERBS=test_cq test_mr test_qp";

/// A few topics for the other kernels: verbs whose commands differ between kernels, data, and
/// connections.
const SHORT: &[&str] = &[
    "conformance.connect.messages_writes_and_reads_cross_a_connection",
    "conformance.device",
    "conformance.memory",
    "conformance.rc.rc",
];

/// Suites of programs: the tools, and C programs on our library. The other suites use our API.
const PROGRAMS: &[&str] = &["interop", "c_abi", "fallback", "empty_root", "cm", "soft_interop"];

/// Returns the guests of the fixed list.
pub(in crate::test) fn fixed() -> Vec<Guest> {
    vec![
        Guest { options: &["--usual"], env: Some(PYVERBS), ..mlx5("6.1", Port::Ib) }
            .without(LONG_ON_MLX5, WHOLE),
        Guest { options: &["--usual"], env: Some(PYVERBS), ..mlx5("7.2", Port::Roce) }
            .without(LONG_ON_MLX5, WHOLE),
        Guest { options: &["--form", "static"], ..rxe("6.1") }
            .without(FOR_7_2, ON_7_2)
            .without(LONG_ON_RXE, WHOLE),
        Guest { options: &["--form", "erased"], env: Some(PYVERBS), ..rxe("7.2") }
            .without(FOR_6_1, ON_6_1)
            .without(LONG_ON_RXE, WHOLE),
        Guest { note: "in short", options: &["--form", "erased"], ..rxe("5.10") }.only(SHORT),
        Guest { note: "without ioctls in short", options: &["--without-ioctls"], ..rxe("6.1") }.only(SHORT),
        Guest { note: "in short", options: &["--form", "erased"], ..rxe("6.12") }.only(SHORT),
    ]
}

/// Returns the guests of a part.
pub(in crate::test) fn of_part(part: Part) -> Vec<Guest> {
    let both = |kernel, options| {
        let on = |port| Guest { options, ..mlx5(kernel, port) };
        vec![on(Port::Ib), on(Port::Roce)]
    };
    match part {
        Part::Rxe5_10 => on_rxe("5.10"),
        Part::Rxe6_1 => {
            let refused = Guest { note: "without ioctls", options: &["--without-ioctls"], ..rxe("6.1") };
            on_rxe("6.1").into_iter().chain([refused.only(&["conformance"])]).collect()
        }
        Part::Rxe6_12 => on_rxe("6.12"),
        Part::Rxe7_2 => on_rxe("7.2"),
        Part::Mlx5_6_1 => both("6.1", &[]),
        Part::Mlx5_6_12 => both("6.12", &["--usual"]),
        Part::Mlx5_7_2 => both("7.2", &["--usual"]),
        Part::Aarch64 => on_aarch64(),
        Part::Builds | Part::Fuzz | Part::Sanitizers | Part::Mutants => Vec::new(),
    }
}

/// Returns two guests that run all suites on rxe.
fn on_rxe(kernel: &str) -> Vec<Guest> {
    let programs = Guest { note: "programs", ..rxe(kernel) }.only(PROGRAMS);
    vec![programs, rxe(kernel).without(PROGRAMS, "the other guest with this kernel runs it")]
}

/// A case that takes minutes in the emulator where other work keeps the processors busy. Its limit
/// is shorter, and so is the limit of each of its four messages.
const LONG: &str = "conformance.rc_lengths.megabytes_arrive_by_each_operation";

/// Returns the guests of aarch64. Cases name no provider, which takes minutes to build. On rxe and
/// ConnectX: our tools beside rdma-core's, ping-pongs of both, and groups of the conformance suite;
/// with large pages those that map queues, and those that register memory at addresses within a
/// page.
fn on_aarch64() -> Vec<Guest> {
    const ON_RXE: &[&str] = &[
        "interop.output",
        "interop.pingpong ours serves ours -c",
        "interop.pingpong ours serves theirs -c",
        "interop.pingpong theirs serves ours -c",
        "conformance.device",
        "conformance.rc",
    ];
    const WITH_LARGE_PAGES: &[&str] = &[
        "interop.output of ibv_devinfo",
        "interop.pingpong ours serves ours -c",
        "conformance.device",
        "conformance.memory",
    ];
    let guests = [
        rxe("6.12").only(ON_RXE),
        rxe("7.2").only(ON_RXE),
        rxe("7.2-16k").only(WITH_LARGE_PAGES),
        mlx5("6.12", Port::Roce).only(&["interop.output", "interop.rc"]),
    ];
    let why = "four times 4 MiB take minutes in the emulator; guests of x86-64 run it";
    let emulated = |guest| Guest { arch: Arch::Aarch64, options: &["--form", "erased"], ..guest };
    guests.into_iter().map(|guest| emulated(guest).without(&[LONG], why)).collect()
}

/// Returns the guests of a command line that names a kernel, a device, a port or a suite.
pub(in crate::test) fn chosen(args: &Args) -> Option<Vec<Guest>> {
    let is_chosen =
        !args.kernel.is_empty() || args.device.is_some() || args.port.is_some() || !args.suites.is_empty();
    if !is_chosen {
        return None;
    }
    let port_alone = args.port.is_some().then_some(Device::Mlx5);
    let device = args.device.or(port_alone).unwrap_or(Device::Rxe);
    let ports = match (device, args.port) {
        (Device::Mlx5, None) => vec![Port::Ib, Port::Roce],
        (_, port) => vec![port.unwrap_or_default()],
    };
    let default = kernel::DEFAULT.parse().into_iter().collect();
    let kernels: Vec<Choice> = if args.kernel.is_empty() { default } else { args.kernel.clone() };
    let guest = |kernel: &Choice, port| Guest {
        arch: if kernel.is_for_aarch64_alone() { Arch::Aarch64 } else { Arch::X86_64 },
        suites: args.suites.clone(),
        ..Guest::new(kernel.clone(), device, port)
    };
    Some(kernels.iter().flat_map(|kernel| ports.iter().map(move |port| guest(kernel, *port))).collect())
}

fn rxe(kernel: &str) -> Guest {
    Guest::new(series(kernel), Device::Rxe, Port::Ib)
}

fn mlx5(kernel: &str, port: Port) -> Guest {
    Guest::new(series(kernel), Device::Mlx5, port)
}

fn series(name: &str) -> Choice {
    name.parse().expect("a kernel of the lists")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Parser, ValueEnum as _};

    use super::*;
    use crate::aarch64;
    use crate::vm::kernel::SERIES;

    fn parts() -> Vec<Guest> {
        Part::value_variants().iter().copied().flat_map(of_part).collect()
    }

    #[test]
    fn the_parts_run_what_the_fixed_list_leaves_out_and_every_kernel_is_in_both() {
        let (fixed, parts) = (fixed(), parts());
        for guest in &fixed {
            for (case, _) in &guest.skip {
                let runs = |other: &&Guest| {
                    let is_left_out = other.skip.iter().any(|(part, _)| case.starts_with(part));
                    let is_in =
                        other.suites.is_empty() || other.suites.iter().any(|suite| case.starts_with(suite));
                    is_in && !is_left_out && other.options.is_empty()
                };
                let same = |other: &&Guest| other.arch == guest.arch && other.device == guest.device;
                assert!(parts.iter().filter(same).any(|other| runs(&other)), "no part runs {case}");
            }
        }
        for series in &SERIES {
            let is_on = |guest: &Guest| guest.kernel == Choice::Series(series);
            assert!(fixed.iter().any(is_on) && parts.iter().any(is_on), "{}", series.name);
        }
        let labels: BTreeSet<_> = parts.iter().map(Guest::label).collect();
        assert_eq!(labels.len(), parts.len(), "{labels:?}");
    }

    #[test]
    fn what_one_guest_leaves_to_the_other_the_other_runs() {
        let [on_6_1, on_7_2] = [FOR_6_1, FOR_7_2].map(|cases| cases.iter().collect::<BTreeSet<_>>());
        assert!(on_6_1.is_disjoint(&on_7_2));
    }

    #[test]
    fn a_chosen_kernel_device_port_or_suite_makes_the_guests() {
        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let labels = |line: &str| -> Option<Vec<String>> {
            let words = ["test"].into_iter().chain(line.split_whitespace());
            Some(chosen(&Cli::parse_from(words).args)?.iter().map(Guest::label).collect())
        };
        assert_eq!(labels(""), None);
        for (line, expected) in [
            ("some-suite", &["6.1 rxe"] as &[&str]),
            ("--kernel 5.10 --kernel 6.12", &["5.10 rxe", "6.12 rxe"]),
            ("--kernel 7.2-16k some-suite", &["7.2-16k aarch64 rxe"]),
            ("--device mlx5 --kernel 7.2", &["7.2 mlx5 ib", "7.2 mlx5 roce"]),
            ("--port roce some-suite", &["6.1 mlx5 roce"]),
            ("--device none", &["6.1"]),
        ] {
            assert_eq!(
                labels(line).as_deref(),
                Some(expected.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>().as_slice()),
                "{line}"
            );
        }
    }

    /// A guest refuses a suite that it does not have, and a name of no case leaves out nothing.
    #[test]
    fn the_case_that_is_left_out_on_aarch64_exists() {
        assert!(aarch64::tests::has_conformance_case(LONG), "no case is called {LONG}");
    }
}
