//! `cargo xtask aarch64`: unit tests built for aarch64 and run by QEMU's user emulation.
//!
//! The standard library is built with the tests, because the target is not a part of every
//! toolchain ([`toolchain`]). Emulation executes each instruction, and shows that the code of this
//! architecture is right on one processor. It orders all accesses to memory, so that a missing
//! barrier stays hidden. Barriers are argued in docs/barriers.md, and the benchmark `paper_queues`
//! checks their order in the built code.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::{apt, cache, toolchain};

/// Runs unit tests for aarch64.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of cargo, such as `test -p roce --lib` [default: the tests of `cargo xtask test`]
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The tests that `cargo xtask test` runs: those of the package whose queues a device reads.
/// Optimised, because the standard library and the provider are then built once for these and for
/// [`SITES`], and because the emulator is slow.
pub(crate) const TESTS: &[&str] = &["test", "--release", "--lib", "--package", "provider-mlx5"];

/// The check of barriers in the built code, on any architecture.
pub(crate) const SITES: &[&str] =
    &["bench", "--package", "provider-mlx5", "--bench", "paper_queues", "--", "--sites"];

/// Runs `aarch64`. Its status is cargo's.
///
/// # Errors
/// As [`command`].
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut command = command()?;
    if args.arguments.is_empty() {
        command.args(TESTS);
    } else {
        command.args(&args.arguments);
    }
    let status = command.status().context("cannot run the nightly toolchain's cargo")?;
    Ok(ExitCode::from(u8::from(!status.success())))
}

/// Returns a command of cargo that builds for aarch64 and runs programs in the emulator; the caller
/// adds arguments.
///
/// # Errors
/// The toolchain, the source of its standard library or a package of Debian is not available, or
/// the host is aarch64 itself.
pub(crate) fn command() -> Result<Command> {
    ensure!(std::env::consts::ARCH != "aarch64", "this host is aarch64, where cargo itself runs the tests");
    let toolchain = toolchain::with_source(&toolchain::nightly()?)?;
    apt::ensure_tools(&[apt::AARCH64_TOOLS], |line| println!("{line}"))?;
    let mut command = toolchain::cargo_of(&toolchain);
    command
        .env_remove("RUSTFLAGS")
        .env("CARGO_BUILD_TARGET", TARGET)
        .env("CARGO_TARGET_DIR", cache::dir()?.join("aarch64"))
        .env("CARGO_UNSTABLE_BUILD_STD", toolchain::STD)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_BENCH_DEBUG", "0")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64-static -L /usr/aarch64-linux-gnu",
        );
    Ok(command)
}
