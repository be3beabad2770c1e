//! `cargo xtask musl`: programs and tests linked statically with musl, for containers without a C
//! library.
//!
//! If rustup has no standard library for the target, the library is built with the program
//! ([`toolchain`]), musl comes from Debian, and LLVM's libunwind unwinds, because gcc's unwinder
//! needs C library tables that musl lacks.
//!
//! Programs also run [in a root without any other file](bare_root).

pub(crate) mod bare_root;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::{apt, cache, cargo, process, soft_programs, toolchain};

/// Runs tests in static programs with musl, and the programs in an empty root.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments for cargo, such as `build --release -p rdma-tools --bins` [default: the tests that
    /// `cargo xtask test` runs]
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// The tests that `cargo xtask test` runs, as arguments for cargo: unit tests, programs for both
/// ends on soft devices, and the conformance suite there. They are one command, because for another
/// set of packages, whose dependencies have other features, cargo would build everything again.
const TESTS: &str = "test --no-fail-fast -p uverbs-abi -p verbs-core -p roce -p ib-cm -p provider-rxe \
                     -p provider-soft -p libibverbs-rs -p rdma-cm -p rdma-tools -p verbs-harness \
                     -p verbs-fixtures -p verbs-c-programs -p verbs-api-fuzz -p verbs-tests \
                     --lib --test soft --test units --test soft_cm";

/// Returns the command for the tests.
///
/// # Errors
/// The same errors as [`command`].
pub(crate) fn tests() -> Result<Command> {
    let mut command = command()?;
    command.args(TESTS.split(' '));
    Ok(command)
}

/// Runs `musl`.
///
/// # Errors
/// The same errors as [`command`], [`build_tools`] and [`bare_root::check`]; a test fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !args.arguments.is_empty() {
        process::run(command()?.args(&args.arguments))?;
        return Ok(ExitCode::SUCCESS);
    }
    let tests = process::run(&mut tests()?);
    let mut failed = 0;
    match bare_root::obstacle() {
        Some(why) => println!("the tools do not run in an empty root: {why}"),
        None => bare_root::check(&build_tools()?, &mut |name, outcome| {
            failed += u8::from(!soft_programs::show(name, outcome));
        })?,
    }
    tests.map(|()| ExitCode::from(failed.min(1)))
}

/// Returns the target triple: the host's processor, with musl.
fn target() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// Builds the tools and returns their directory.
///
/// # Errors
/// The same errors as [`command`]; the build fails, and cargo has printed the reason to stderr.
pub(crate) fn build_tools() -> Result<PathBuf> {
    let mut command = command()?;
    command.args(["build", "--quiet", "--package", "rdma-tools", "--bins"]);
    process::run(&mut command)?;
    Ok(directory()?.join(target()).join("debug"))
}

/// Returns a separate folder for cargo's results, so that no other build waits for these.
fn directory() -> Result<PathBuf> {
    Ok(cargo::target_directory()?.join("musl"))
}

/// Returns a cargo command that builds static programs with musl. The caller adds arguments.
///
/// # Errors
/// rustup has no standard library for the target, and either the toolchain that builds one or a
/// Debian package is not available. The message names it.
pub(crate) fn command() -> Result<Command> {
    let target = target();
    let (mut command, flags) = if cargo::has_std(&target) {
        (cargo::command(), STATIC.to_owned())
    } else {
        let mut command = toolchain::cargo()
            .with_context(|| format!("the std of {target} is not installed (rustup target add {target})"))?;
        apt::ensure_tools(&[apt::Tools::Musl])?;
        command.env(variable(&target, "LINKER"), "musl-gcc");
        let flags = format!("{STATIC} {LINKED_BY_GCC} -Lnative={}", unwinder()?.display());
        (command, flags)
    };
    command
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("CARGO_BUILD_TARGET", &target)
        .env("CARGO_TARGET_DIR", directory()?)
        .env(variable(&target, "RUSTFLAGS"), flags)
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    Ok(command)
}

const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Flags for linking with musl's compiler wrapper instead of the files in rustup's standard
/// library. Debian's libunwind refers to glibc's `__fprintf_chk` to print a line before it aborts.
/// Here it aborts without that line.
const LINKED_BY_GCC: &str =
    "-Clink-self-contained=no -Crelocation-model=static -Clink-arg=-Wl,--defsym=__fprintf_chk=abort";

/// Returns the name of a cargo configuration variable for a target.
fn variable(target: &str, name: &str) -> String {
    format!("CARGO_TARGET_{}_{name}", target.to_uppercase().replace('-', "_"))
}

/// Returns a folder with LLVM's libunwind for the linker, but without glibc libraries.
fn unwinder() -> Result<PathBuf> {
    let folder = cache::dir()?.join("musl");
    fs::create_dir_all(&folder)?;
    let link = folder.join("libunwind.a");
    let library = apt::libunwind().context("there is no libunwind.a of LLVM")?;
    if !fs::read_link(&link).is_ok_and(|leads_to| leads_to == library) {
        let making = folder.join(format!("libunwind.a.{}", std::process::id()));
        let _ = fs::remove_file(&making);
        symlink(library, &making)?;
        fs::rename(&making, &link)?;
    }
    Ok(folder)
}

#[test]
fn a_target_has_its_own_variables_of_cargo() {
    let name = variable("x86_64-unknown-linux-musl", "LINKER");
    assert_eq!(name, "CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER");
}
