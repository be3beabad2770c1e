//! `cargo xtask aarch64`: builds programs for aarch64 and runs them in QEMU's user emulation.
//!
//! | part | content |
//! |---|---|
//! | `units` | unit tests of the libraries; tests of protocols, of paper queues, of the API |
//! | `sites` | the order of barriers in the built code (docs/barriers.md) |
//! | `conformance` | some of the suites that need no kernel, on soft devices |
//! | `programs` | the tools, and Debian's programs on our `libibverbs.so.1` ([`soft_programs`]) |
//!
//! The standard library is built with the programs, because not every toolchain has the target
//! ([`toolchain`]). Emulation executes each instruction and shows that this architecture's code is
//! correct on one processor. It orders all memory accesses, so a missing barrier stays hidden.
//! docs/barriers.md explains the barriers, and the benchmark `paper_queues` checks their order in
//! the built code.
//!
//! `cargo xtask vm --arch aarch64` boots a kernel of this architecture.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::LazyLock;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use serde::Deserialize;

use crate::apt::{self, Packages};
use crate::arch::Arch;
use crate::soft_programs::{self, Origin};
use crate::{c_abi, cargo, process, toolchain};

/// Runs tests and programs for aarch64.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Parts to run [default: all]
    #[arg(value_enum, value_name = "PART", conflicts_with = "arguments")]
    parts: Vec<Part>,

    /// Arguments of a cargo command to run in place of the parts, such as `test -p roce --lib`
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Debian's programs. The emulator finds the loader and the libraries in their folder. A guest of
/// this architecture has the folder mounted over the host's root.
pub(crate) const DEBIAN: Packages<'static> = Packages {
    name: "programs for aarch64",
    arch: Arch::Aarch64,
    // This release's C library is at least as new as the one that our programs are built with.
    suites: &["trixie"],
    packages: &[
        // A shell and its commands, which every machine has.
        "bash",
        "busybox-static",
        "coreutils",
        "dash",
        "grep",
        "iproute2",
        "kmod",
        // rdma-core's library, and its programs that also run on our library.
        "ibverbs-providers",
        "ibverbs-utils",
        "rdmacm-utils",
    ],
    only: &[],
};

/// A part of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// Unit tests of the libraries; tests of protocols, of queues on paper, and of the API
    Units,
    /// The order of barriers in the built code
    Sites,
    /// Some of the suites that need no kernel, on soft devices
    Conformance,
    /// The tools, and Debian's programs on our libibverbs.so.1
    Programs,
}

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Builds always name the whole workspace, with the guests' programs. For another set of packages,
/// cargo would build their dependencies again with other features. The same happens if no test is
/// among the targets, because tests have additional dependencies.
const WORKSPACE: &[&str] = &["--workspace", "--features", "verbs-tests/guest"];

/// The profile for everything except [`SITES`]. Unoptimised programs are slow in the emulator.
const PROFILE: &[&str] = &["--profile", cargo::GUEST_PROFILE];

/// The tables in `tests.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Tests {
    libraries: Vec<String>,
    tests: Vec<String>,
    conformance: Vec<String>,
    left_out: Vec<LeftOut>,
    not_run: Vec<NotRun>,
}

#[derive(Deserialize)]
struct LeftOut {
    why: String,
    tests: Vec<String>,
}

/// Tests of a part that are not run.
#[derive(Deserialize)]
struct NotRun {
    part: Part,
    tests: String,
    why: String,
}

static TESTS: LazyLock<Tests> =
    LazyLock::new(|| toml::from_str(include_str!("tests.toml")).expect("lists that their test has read"));

/// Returns the tests that the emulator cannot run, with the reasons.
fn not_emulated() -> impl Iterator<Item = (&'static str, &'static str)> {
    TESTS.left_out.iter().flat_map(|LeftOut { why, tests }| tests.iter().map(|test| (&**test, &**why)))
}

/// Returns the arguments that skip the tests that the emulator cannot run.
pub(crate) fn skips() -> impl Iterator<Item = &'static str> {
    not_emulated().flat_map(|(test, _)| ["--skip", test])
}

/// Arguments for the check of barriers in the built code, on any architecture.
pub(crate) const SITES: &[&str] =
    &["bench", "--package", "provider-mlx5", "--bench", "paper_queues", "--", "--sites"];

impl Part {
    /// Checks that the part's requirements from outside this project are present.
    pub(crate) fn prepare(self) -> Result<()> {
        command()?;
        if self == Part::Programs {
            DEBIAN.root()?;
        }
        Ok(())
    }

    /// Returns the tests that cannot run, with the reasons.
    pub(crate) fn left_out(self) -> Vec<(&'static str, &'static str)> {
        let units = not_emulated().filter(|_| self == Part::Units);
        let others = TESTS.not_run.iter().filter(|not_run| not_run.part == self);
        units.chain(others.map(|NotRun { tests, why, .. }| (&**tests, &**why))).collect()
    }

    /// Returns the command for the part's tests; `None` for the part `programs`.
    pub(crate) fn tests(self) -> Result<Option<Command>> {
        let mut command = command()?;
        match self {
            Part::Units => {
                command.args(["test", "--no-fail-fast", "--lib"]).args(PROFILE);
                command.args(TESTS.tests.iter().flat_map(|test| ["--test", test]));
                command.args(TESTS.libraries.iter().flat_map(|package| ["--package", package]));
                // The emulated processor has these instructions.
                command.env("ROCE_HAS_CLMUL", "1").arg("--").args(skips());
            }
            Part::Sites => _ = command.args(SITES),
            Part::Conformance => {
                // Without this, the suites' program would start itself again natively.
                command.env("VERBS_TEST_DEVICE", "soft0");
                // The number of threads that the emulator adds to the program's only thread.
                command.env("VERBS_EMULATOR_THREADS", "1");
                command.arg("test").args(WORKSPACE).args(PROFILE).args(["--test", "soft"]);
                command.arg("--").args(&TESTS.conformance);
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
    let mut take = |name: &str, outcome| {
        if !soft_programs::show(name, outcome) {
            status = ExitCode::FAILURE;
        }
    };
    for part in if args.parts.is_empty() { Part::value_variants() } else { &args.parts } {
        part.left_out().iter().for_each(|(test, why)| println!("skip {test}: {why}"));
        match part.tests()? {
            Some(mut command) => take(&format!("{part:?}"), process::run(&mut command)),
            None => check_programs(&mut take)?,
        }
    }
    Ok(status)
}

/// Builds the programs, runs them in the emulator, and calls `each` with each program's name and
/// result.
pub(crate) fn check_programs(each: &mut dyn FnMut(&str, Result<()>)) -> Result<()> {
    let (debian, ours) = (DEBIAN.root()?, build(PROGRAMS)?);
    let libraries = c_abi::link_for_aarch64(&ours.join(c_abi::ARCHIVE))?;
    let emulator = || {
        let program = apt::find_program("qemu-aarch64-static").context("no emulator")?;
        let mut command = Command::new(program);
        command.arg("-L").arg(&debian);
        anyhow::Ok(command)
    };
    let our_program = |name: &str| {
        let mut command = emulator()?;
        command.arg(ours.join(name));
        Ok(command)
    };
    // Runs on our library, because rdma-core's library has no soft devices.
    let program_of_debian = |name: &str| {
        let mut command = emulator()?;
        command.arg("-E").arg(format!("LD_LIBRARY_PATH={}", libraries.display()));
        command.arg(debian.join("usr/bin").join(name));
        Ok(command)
    };
    soft_programs::check(soft_programs::with_origin(Origin::Ours), our_program, each);
    soft_programs::check(soft_programs::with_origin(Origin::Debian), program_of_debian, each);
    Ok(())
}

/// The [`build`] targets for this program, which is process 1 in a guest.
pub(crate) const XTASK: &[&str] = &["--bin", "xtask", "--test", "soft"];

/// The [`build`] targets for every program and library.
pub(crate) const PROGRAMS: &[&str] = &["--bins", "--lib", "--test", "soft"];

/// Builds the targets named by these `cargo build` options and returns their folder.
pub(crate) fn build(targets: &[&str]) -> Result<PathBuf> {
    let mut command = command()?;
    command.args(["build", "--quiet"]).args(WORKSPACE).args(PROFILE).args(targets);
    process::run(&mut command)?;
    Ok(target_directory()?.join(TARGET).join(cargo::GUEST_PROFILE))
}

/// The folder for cargo's results. Each clone has its own, because cargo distinguishes the files
/// of two clones only by their times.
fn target_directory() -> Result<PathBuf> {
    Ok(cargo::target_directory()?.join("aarch64"))
}

/// Returns a cargo command that builds for aarch64 and runs programs in the emulator. The caller
/// adds arguments.
pub(crate) fn command() -> Result<Command> {
    ensure!(std::env::consts::ARCH != "aarch64", "this host is aarch64, where cargo itself runs the tests");
    let mut command = toolchain::cargo()?;
    apt::ensure_tools(&[apt::Tools::Aarch64])?;
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

    /// Returns whether grep finds a pattern in files or folders in the workspace.
    fn is_in_sources(pattern: &str, places: &[String]) -> bool {
        let mut command = Command::new("grep");
        command.args(["-rqsE", pattern]).args(places).current_dir(cargo::root());
        command.status().expect("grep runs").success()
    }

    /// Returns whether a conformance case has a name with this beginning: `conformance.TOPIC`, or
    /// `conformance.TOPIC.NAME`, where NAME is a function in the topic's file.
    pub(crate) fn has_conformance_case(beginning: &str) -> bool {
        let name = beginning.trim_start_matches("conformance.");
        let (topic, function) = name.split_once('.').unwrap_or((name, ""));
        let places = ["", ".rs"].map(|end| format!("tests/suites/conformance/src/{topic}{end}"));
        is_in_sources(&format!("^fn {function}"), &places)
    }

    /// A name that matches no test would skip nothing, yet be counted.
    #[test]
    fn each_test_that_is_left_out_exists() {
        let folder = |package: &String| if package == "rdma-cm" { "cm" } else { package }.to_owned();
        let libraries: Vec<_> = TESTS.libraries.iter().map(folder).collect();
        for (test, _) in not_emulated() {
            let name = test.rsplit("::").next().unwrap_or(test);
            assert!(is_in_sources(&format!("fn {name}\\("), &libraries), "no test is called {test}");
        }
    }

    #[test]
    fn each_group_of_conformance_cases_has_some() {
        for group in &TESTS.conformance {
            assert!(has_conformance_case(group), "no case is called {group}");
        }
        assert!(!has_conformance_case("conformance.rc.no_such_case"));
    }
}
