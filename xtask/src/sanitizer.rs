//! `cargo xtask sanitizer`: tests under a sanitizer, with a standard library that it instruments as
//! well. `cargo xtask fuzz --sanitizer` runs random calls.
//!
//! Only nightly toolchains have sanitizers. ThreadSanitizer has to see the standard library's own
//! accesses: otherwise a lock in it orders nothing, and every `Arc` that is dropped looks like a
//! race. AddressSanitizer would miss accesses inside the standard library. It is therefore built
//! with the program ([`toolchain`]).
//!
//! Every run of all tests builds the program of random calls ([`Sanitizer::build`]). It contains
//! only the functions of the standard library and of other crates that it calls.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::arch::name_of;
use crate::{cargo, process, toolchain};

/// Runs tests under a sanitizer.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sanitizer
    #[arg(value_enum)]
    sanitizer: Sanitizer,

    /// Arguments of cargo, such as `test --release -p roce --lib` [default: tests with threads]
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Every sanitizer that random calls run under.
pub(crate) const SANITIZERS: [Sanitizer; 2] = [Sanitizer::Address, Sanitizer::Thread];

/// A sanitizer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Sanitizer {
    /// AddressSanitizer: accesses to memory that is out of bounds or freed
    Address,
    /// ThreadSanitizer: accesses that race
    Thread,
}

/// The tests of the libraries whose objects threads share, as arguments of cargo.
const TESTS: &str = "test --release --no-fail-fast -p libibverbs-rs -p provider-soft -p rdma-cm --lib \
                     --test api --test device --test device_shm --test shm --test lifetime --test objects \
                     --test parts --test soft";

/// Runs `sanitizer`.
///
/// # Errors
/// As [`Sanitizer::cargo`], or a test fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut command =
        if args.arguments.is_empty() { args.sanitizer.tests()? } else { args.sanitizer.cargo()? };
    process::run(command.args(&args.arguments)).map(|()| ExitCode::SUCCESS)
}

impl Sanitizer {
    /// Environment variable for programs under it. Leaks are not reported, because tests leak
    /// handles on purpose.
    pub(crate) const fn environment(self) -> (&'static str, &'static str) {
        match self {
            Sanitizer::Address => ("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1"),
            Sanitizer::Thread => ("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1"),
        }
    }

    /// The compiler's flags. Copies are made without assembly, which sanitizers do not see.
    fn flags(self) -> String {
        format!(
            "-Zsanitizer={} --cfg verbs_portable_copies -Cdebug-assertions -Coverflow-checks",
            name_of(self)
        )
    }

    /// Returns a command of cargo that builds with the sanitizer, and runs programs with its
    /// options; the caller adds arguments.
    ///
    /// # Errors
    /// The nightly toolchain or its standard library's source is missing.
    pub(crate) fn cargo(self) -> Result<Command> {
        let mut command = toolchain::cargo()?;
        command
            .env("CARGO_BUILD_TARGET", cargo::host_target())
            .env("CARGO_TARGET_DIR", self.directory()?)
            // One folder for both: what builds run on the host is the same.
            .env("CARGO_BUILD_BUILD_DIR", sanitizers()?.join("build"))
            // Its checks take most of the time of a run, and the optimiser most of a build.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("RUSTFLAGS", self.flags())
            .envs([self.environment()]);
        Ok(command)
    }

    /// Returns the command that runs the tests of the libraries.
    ///
    /// # Errors
    /// As [`Sanitizer::cargo`].
    pub(crate) fn tests(self) -> Result<Command> {
        let mut command = self.cargo()?;
        command.args(TESTS.split(' '));
        Ok(command)
    }

    fn directory(self) -> Result<PathBuf> {
        Ok(sanitizers()?.join(name_of(self)))
    }

    /// Builds a program of a package with the sanitizer and some of the package's features, and
    /// returns the program's path. That takes a quarter of the time that it would take with
    /// [`Sanitizer::cargo`]'s settings.
    ///
    /// # Errors
    /// As [`Sanitizer::cargo`], or the build fails.
    pub(crate) fn build(self, package: &str, program: &str, features: &[&str]) -> Result<PathBuf> {
        let mut command = self.cargo()?;
        command.args(["build", "--quiet", "--release", "--package", package, "--bin", program]);
        command.arg("--no-default-features").arg("--features").arg(features.join(","));
        command
            // Crates leave their functions to the program, which calls few of them.
            .env("RUSTFLAGS", format!("{} -Zhint-mostly-unused", self.flags()))
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "2")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only")
            // Panics have no backtraces; a sanitizer's reports have.
            .env("CARGO_UNSTABLE_BUILD_STD_FEATURES", "panic-unwind");
        process::run(&mut command)?;
        Ok(self.directory()?.join(cargo::host_target()).join("release").join(program))
    }
}

/// The folder of builds with sanitizers.
fn sanitizers() -> Result<PathBuf> {
    Ok(cargo::target_directory()?.join("sanitizer"))
}
