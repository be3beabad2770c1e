//! `cargo xtask sanitizer`: runs tests under a sanitizer, with an instrumented standard library.
//! `cargo xtask fuzz --sanitizer` makes random calls.
//!
//! Only nightly toolchains have sanitizers. ThreadSanitizer must see the standard library's own
//! accesses. Otherwise the library's locks would order nothing, and every dropped `Arc` would look
//! like a race. AddressSanitizer would miss accesses inside the standard library, which is
//! therefore built with the program ([`toolchain`]).
//!
//! Every run of all tests builds the program that makes random calls ([`Sanitizer::build`]). The
//! program contains only the functions that it calls from the standard library and other crates.

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

    /// Arguments for cargo, such as `test --release -p roce --lib` [default: the tests that use
    /// threads]
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Every sanitizer that random calls run under.
pub(crate) const SANITIZERS: [Sanitizer; 2] = [Sanitizer::Address, Sanitizer::Thread];

/// A sanitizer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Sanitizer {
    /// AddressSanitizer: accesses that are out of bounds or to freed memory
    Address,
    /// ThreadSanitizer: accesses that race
    Thread,
}

/// The tests of the libraries whose objects threads share, as arguments for cargo.
const TESTS: &str = "test --release --no-fail-fast -p libibverbs-rs -p provider-soft -p rdma-cm --lib \
                     --test api --test device --test device_shm --test shm --test lifetime --test objects \
                     --test parts --test soft";

/// Runs `sanitizer`.
///
/// # Errors
/// Same as [`Sanitizer::cargo`]. Also fails if a test fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut command =
        if args.arguments.is_empty() { args.sanitizer.tests()? } else { args.sanitizer.cargo()? };
    process::run(command.args(&args.arguments)).map(|()| ExitCode::SUCCESS)
}

impl Sanitizer {
    /// Returns the environment variable for programs under the sanitizer. Leaks are not reported,
    /// because tests leak handles on purpose.
    pub(crate) const fn environment(self) -> (&'static str, &'static str) {
        match self {
            Sanitizer::Address => ("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1"),
            Sanitizer::Thread => ("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1"),
        }
    }

    /// Returns the compiler flags. Copies use no assembly code, because sanitizers do not see its
    /// accesses.
    fn flags(self) -> String {
        format!(
            "-Zsanitizer={} --cfg verbs_portable_copies -Cdebug-assertions -Coverflow-checks",
            name_of(self)
        )
    }

    /// Returns a cargo command that builds with the sanitizer and runs programs with its options.
    /// The caller adds arguments.
    ///
    /// # Errors
    /// Fails if the nightly toolchain or its standard library's source is missing.
    pub(crate) fn cargo(self) -> Result<Command> {
        let mut command = toolchain::cargo()?;
        command
            .env("CARGO_BUILD_TARGET", cargo::host_target())
            .env("CARGO_TARGET_DIR", self.directory()?)
            // Shared by both sanitizers, because programs that run during a build are the same.
            .env("CARGO_BUILD_BUILD_DIR", sanitizers()?.join("build"))
            // Checks take most of a run's time, and the optimiser takes most of a build's time.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("RUSTFLAGS", self.flags())
            .envs([self.environment()]);
        Ok(command)
    }

    /// Returns the command for the tests of the libraries.
    ///
    /// # Errors
    /// Same as [`Sanitizer::cargo`].
    pub(crate) fn tests(self) -> Result<Command> {
        let mut command = self.cargo()?;
        command.args(TESTS.split(' '));
        Ok(command)
    }

    fn directory(self) -> Result<PathBuf> {
        Ok(sanitizers()?.join(name_of(self)))
    }

    /// Builds a package's program with the sanitizer and some of the package's features. Returns
    /// the program's path. This takes a quarter of the time that it would take with
    /// [`Sanitizer::cargo`]'s settings.
    ///
    /// # Errors
    /// Same as [`Sanitizer::cargo`]. Also fails if the build fails.
    pub(crate) fn build(self, package: &str, program: &str, features: &[&str]) -> Result<PathBuf> {
        let mut command = self.cargo()?;
        command.args(["build", "--quiet", "--release", "--package", package, "--bin", program]);
        command.arg("--no-default-features").arg("--features").arg(features.join(","));
        command
            // Crates leave code generation to the program, which calls few of their functions.
            .env("RUSTFLAGS", format!("{} -Zhint-mostly-unused", self.flags()))
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "2")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only")
            // Panics have no backtraces, but a sanitizer's reports do.
            .env("CARGO_UNSTABLE_BUILD_STD_FEATURES", "panic-unwind");
        process::run(&mut command)?;
        Ok(self.directory()?.join(cargo::host_target()).join("release").join(program))
    }
}

/// Returns the folder for builds with sanitizers.
fn sanitizers() -> Result<PathBuf> {
    Ok(cargo::target_directory()?.join("sanitizer"))
}
