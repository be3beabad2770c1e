//! `cargo xtask aarch64`: programs built for aarch64 and run by QEMU's user emulation.
//!
//! | part | what runs |
//! |---|---|
//! | `units` | unit tests of the libraries, tests of protocols, of queues on paper, of the API |
//! | `sites` | the order of barriers in the built code (docs/barriers.md) |
//! | `conformance` | a part of the suites that need no kernel, on soft devices |
//! | `programs` | the tools, and Debian's on our `libibverbs.so.1` ([`programs`]) |
//!
//! The standard library is built with the programs, because the target is not a part of every
//! toolchain ([`toolchain`]). Emulation executes each instruction, and shows that the code of this
//! architecture is right on one processor. It orders all accesses to memory, so that a missing
//! barrier stays hidden. Barriers are argued in docs/barriers.md, and the benchmark `paper_queues`
//! checks their order in the built code.
//!
//! `cargo xtask vm --arch aarch64` boots a kernel of this architecture.

pub(crate) mod programs;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use clap::ValueEnum as _;

use crate::apt::{self, Packages};
use crate::arch::Arch;
use crate::{cargo, process, toolchain};

/// Runs tests and programs for aarch64.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Parts to run [default: all]
    #[arg(value_enum, value_name = "PART", conflicts_with = "arguments")]
    parts: Vec<Part>,

    /// Arguments of cargo instead, such as `test -p roce --lib`
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Debian's programs. The emulator finds the loader and the libraries in their folder, and a guest
/// of this architecture has it over the host's root.
pub(crate) const DEBIAN: Packages<'static> = Packages {
    name: "programs for aarch64",
    arch: Arch::Aarch64,
    // The C library of the programs' own build is not newer than this one's.
    suites: &["trixie"],
    packages: &[
        // What every machine has: a shell and its commands.
        "bash",
        "busybox-static",
        "coreutils",
        "dash",
        "grep",
        "iproute2",
        "kmod",
        // rdma-core's library, and programs of it that run on ours as well.
        "ibverbs-providers",
        "ibverbs-utils",
        "rdmacm-utils",
    ],
    only: &[],
};

/// A part of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Part {
    /// Unit tests of the libraries, tests of protocols and queues on paper, and of the API
    Units,
    /// The order of barriers in the built code
    Sites,
    /// A part of the suites that need no kernel, on soft devices
    Conformance,
    /// The tools, and Debian's on our libibverbs.so.1
    Programs,
}

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The whole workspace for each program, with the guests' programs: for another set of packages,
/// cargo would build their dependencies with other features once more. It would as well without a
/// test among the targets, because tests have dependencies of their own.
const WORKSPACE: &[&str] = &["--workspace", "--features", "verbs-tests/guest"];

/// The profile of everything except [`SITES`]: the emulator is slow with unoptimised programs.
const PROFILE: &[&str] = &["--profile", cargo::GUEST_PROFILE];

/// The packages whose unit tests run: the libraries. The others depend on the suites, which take
/// longest to build.
const LIBRARIES: &[&str] = &[
    "uverbs-abi",
    "verbs-core",
    "provider-rxe",
    "provider-mlx5",
    "rdma-sans-io",
    "roce",
    "ib-cm",
    "provider-soft",
    "libibverbs-rs",
    "rdma-cm",
];

/// Their tests of wire formats, of layouts, of queues on paper, and of engines without a network,
/// which build without the suites.
const PAPER: &[&str] = &[
    "paper",
    "golden",
    "values",
    "bytes",
    "wire",
    "wire_captured",
    "wire_seeds",
    "placement",
    "sim_cases",
    "strict_ports",
    "strangers",
    "stalls",
    "responder_seeds",
    "fuzz_seeds",
];

/// Tests of the API and of objects on soft devices.
const ON_SOFT: &[&str] = &["api", "objects"];

/// The other tests of the libraries. Many of those on soft devices send datagrams ([`GROUPS`]),
/// page on demand ([`COPIES`]), or start themselves again, which the host cannot execute: of
/// rdma-cm's `soft` 15 of 102, of provider-soft's `device` a third.
const OTHER_TESTS: (&str, &str) = (
    "simulations of roce and ib-cm, and tests of provider-soft, libibverbs-rs and rdma-cm on devices",
    "they take minutes in the emulator, or need what it does not have",
);

/// Tests that the emulator cannot run, and why.
const NOT_EMULATED: &[(&str, &str)] = &[
    ("paged::tests::memory_is_read_written_and_updated_and_a_missing_page_is_a_fault", COPIES),
    ("channel::fd::tests::a_file_that_takes_every_command_gives_no_descriptor", IOCTLS),
    ("channel::fd::tests::a_file_without_verbs_refuses_the_ioctl", IOCTLS),
    ("channel::fd::tests::an_ioctl_has_room_for_so_many_attributes_and_no_more", IOCTLS),
    (
        "cmd::context::tests::a_descriptor_that_the_kernel_does_not_make_so_is_refused_and_stays_open",
        "the emulator's /proc/self/stat is a file of its own",
    ),
    ("id::tests::connection::a_datagram_queue_pair_is_ready_at_once", GROUPS),
    ("sentences::connect_names_the_steps_of_a_datagram_queue_pair", GROUPS),
    ("fork::tests::the_running_kernel_takes_the_advice", FORKS),
    ("control::tests::a_child_destroys_no_queue_while_its_parent_was_destroying_one", FORKS),
    ("control::tests::a_name_is_good_for_its_own_device_until_its_queue_is_destroyed", FORKS),
    ("dbrec::tests::a_child_takes_no_slot_while_its_parent_was_taking_one", FORKS),
    ("regions::tests::a_child_removes_regions_unless_its_parent_was_changing_the_table", FORKS),
    ("registers::tests::a_child_shares_a_register_while_its_parent_was_taking_one", FORKS),
    ("user_index::tests::a_child_takes_no_number_while_its_parent_was_taking_one", FORKS),
    ("qp::tests::a_reset_for_whose_records_there_is_no_memory_changes_nothing", PROCESSES),
    ("wq::tests::a_reset_for_whose_record_there_is_no_memory_changes_nothing", PROCESSES),
    // In a file of provider-soft with the name of one of roce.
    ("a_round_trip_takes_a_few_turns_while_a_peer_reads_256_mib_again_and_again", THREADS),
    ("a_write_of_16_mib_leaves_in_many_turns_although_its_program_does_not_poll", THREADS),
];

/// Returns the arguments that leave these tests out.
pub(crate) fn skips() -> impl Iterator<Item = &'static str> {
    NOT_EMULATED.iter().flat_map(|(test, _)| ["--skip", *test])
}

const COPIES: &str = "the emulator has no process_vm_readv";
const FORKS: &str = "the emulator ignores the advice about forks";
const GROUPS: &str =
    "the emulator has no IP_MULTICAST_IF, without which a soft device makes no such queue pair";
const IOCTLS: &str = "the emulator passes no ioctl of RDMA on";
const PROCESSES: &str = "it starts its own program again, which the emulator does not";
const THREADS: &str = "it measures what threads do in a time, which the emulator stretches";

/// The groups of conformance cases that run: those that are short in the emulator, and without
/// datagrams ([`GROUPS`]).
const CONFORMANCE: &[&str] = &[
    "conformance.device",
    "conformance.rc.",
    "conformance.uc.uc_message",
    "conformance.uc.uc_send",
    "conformance.uc.uc_write",
    "conformance.atomics",
];

/// The reason for leaving out the other groups.
const OTHER_CONFORMANCE_WHY: &str =
    "they take minutes in the emulator, or send datagrams, for which it has no IP_MULTICAST_IF";

/// The check of barriers in the built code, on any architecture.
pub(crate) const SITES: &[&str] =
    &["bench", "--package", "provider-mlx5", "--bench", "paper_queues", "--", "--sites"];

impl Part {
    /// Makes sure of what the part needs and this project does not build.
    pub(crate) fn prepare(self) -> Result<()> {
        command()?;
        if self == Part::Programs {
            DEBIAN.root(&|line| println!("{line}"))?;
        }
        Ok(())
    }

    /// The tests that cannot run, and why.
    pub(crate) fn left_out(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Part::Units => [NOT_EMULATED, &[OTHER_TESTS]].concat(),
            Part::Conformance => vec![("other conformance cases", OTHER_CONFORMANCE_WHY)],
            Part::Sites | Part::Programs => Vec::new(),
        }
    }

    /// Returns the command that runs the part's tests; the part `programs` is no such command.
    pub(crate) fn tests(self) -> Result<Option<Command>> {
        let mut command = command()?;
        match self {
            Part::Units => {
                command.args(["test", "--no-fail-fast", "--lib"]).args(PROFILE);
                command.args([PAPER, ON_SOFT].concat().into_iter().flat_map(|test| ["--test", test]));
                command.args(LIBRARIES.iter().flat_map(|package| ["--package", *package]));
                // The emulator's processor has the instructions.
                command.env("ROCE_HAS_CLMUL", "1").arg("--").args(skips());
            }
            Part::Sites => _ = command.args(SITES),
            Part::Conformance => {
                // Without these, the suites' program would start itself again, natively.
                command.envs([("VERBS_SOFT", "auto"), ("VERBS_TEST_DEVICE", "soft0")]);
                // The threads of the emulator, beside the program's only one.
                command.env("VERBS_EMULATOR_THREADS", "1");
                command.arg("test").args(WORKSPACE).args(PROFILE).args(["--test", "soft"]);
                command.arg("--").args(CONFORMANCE);
            }
            Part::Programs => return Ok(None),
        }
        Ok(Some(command))
    }
}

/// Runs `aarch64`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !args.arguments.is_empty() {
        process::run(command()?.args(&args.arguments))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut status = ExitCode::SUCCESS;
    let mut take = |name: &str, outcome: Result<()>| match outcome {
        Ok(()) => println!("ok {name}"),
        Err(why) => {
            println!("FAIL {name}: {why:#}");
            status = ExitCode::FAILURE;
        }
    };
    for part in if args.parts.is_empty() { Part::value_variants() } else { &args.parts } {
        part.left_out().iter().for_each(|(test, why)| println!("skip {test}: {why}"));
        match part.tests()? {
            Some(mut command) => take(&format!("{part:?}"), process::run(&mut command)),
            None => programs::check(&mut take)?,
        }
    }
    Ok(status)
}

/// Targets of [`build`]: this program, which is process 1 of a guest.
pub(crate) const XTASK: &[&str] = &["--bin", "xtask", "--test", "soft"];

/// Targets of [`build`]: every program and library.
pub(crate) const PROGRAMS: &[&str] = &["--bins", "--lib", "--test", "soft"];

/// Builds the targets that options of `cargo build` name, and returns their folder.
pub(crate) fn build(targets: &[&str]) -> Result<PathBuf> {
    let mut command = command()?;
    command.args(["build", "--quiet"]).args(WORKSPACE).args(PROFILE).args(targets);
    process::run(&mut command)?;
    Ok(target_directory()?.join(TARGET).join(cargo::GUEST_PROFILE))
}

/// The folder of cargo's results. It is the clone's own, because cargo tells two clones' files
/// apart by their times alone.
fn target_directory() -> Result<PathBuf> {
    Ok(cargo::target_directory()?.join("aarch64"))
}

/// Returns a command of cargo that builds for aarch64 and runs programs in the emulator; the caller
/// adds arguments.
pub(crate) fn command() -> Result<Command> {
    ensure!(std::env::consts::ARCH != "aarch64", "this host is aarch64, where cargo itself runs the tests");
    let mut command = toolchain::cargo()?;
    apt::ensure_tools(&[apt::AARCH64_TOOLS], |line| eprintln!("{line}"))?;
    command
        .args(["--config", "profile.guest.package.connectx-model.opt-level=0"])
        .env_remove("RUSTFLAGS")
        .env("CARGO_BUILD_TARGET", TARGET)
        .env("CARGO_TARGET_DIR", target_directory()?)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_BENCH_DEBUG", "0")
        .env("CARGO_PROFILE_GUEST_DEBUG", "0")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64-static -L /usr/aarch64-linux-gnu",
        );
    Ok(command)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns whether grep finds a pattern in files or folders of the workspace.
    fn is_in_sources(pattern: &str, places: &[String]) -> bool {
        let mut command = Command::new("grep");
        command.args(["-rqsE", pattern]).args(places).current_dir(cargo::root());
        command.status().expect("grep runs").success()
    }

    /// Returns whether a conformance case's name begins with this: `conformance.TOPIC`, or
    /// `conformance.TOPIC.NAME`, where NAME is a function of the topic.
    pub(crate) fn has_conformance_case(beginning: &str) -> bool {
        let name = beginning.trim_start_matches("conformance.");
        let (topic, function) = name.split_once('.').unwrap_or((name, ""));
        let places = ["", ".rs"].map(|end| format!("tests/suites/conformance/src/{topic}{end}"));
        is_in_sources(&format!("^fn {function}"), &places)
    }

    /// A name that no test has would skip nothing, and would be counted.
    #[test]
    fn each_test_that_is_left_out_exists() {
        let folder = |package: &&str| if *package == "rdma-cm" { "cm" } else { *package }.to_owned();
        let libraries: Vec<_> = LIBRARIES.iter().map(folder).collect();
        for (test, _) in NOT_EMULATED {
            let name = test.rsplit("::").next().unwrap_or(test);
            assert!(is_in_sources(&format!("fn {name}\\("), &libraries), "no test is called {test}");
        }
    }

    #[test]
    fn each_group_of_conformance_cases_has_some() {
        for group in CONFORMANCE {
            assert!(has_conformance_case(group), "no case is called {group}");
        }
        assert!(!has_conformance_case("conformance.rc.no_such_case"));
    }
}
