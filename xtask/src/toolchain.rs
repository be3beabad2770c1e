//! The nightly toolchain with the source of the standard library, which some programs are built
//! with: those under sanitizers, those with musl, and those for another architecture.
//! `cargo xtask toolchain` makes it and [reports](report) it.
//!
//! The source comes from rustup's component rust-src, else from Debian's package of that name. The
//! toolchain of the user is only read: cargo finds Debian's source by a variable that its own tests
//! use.

mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

pub(crate) use self::report::{Args, run};
use crate::apt::{self, Packages};
use crate::arch::Arch;
use crate::cargo;

/// The crates of the standard library that are built with a program, as cargo's `build-std` takes
/// them.
pub(crate) const STD: &str = "std,panic_abort";

/// Returns the folder of the nightly toolchain.
pub(crate) fn nightly() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["+nightly", "--print", "sysroot"]).output();
    let sysroot = output.ok().filter(|output| output.status.success());
    let sysroot = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    sysroot
        .map(PathBuf::from)
        .context("there is no nightly toolchain: rustup toolchain install nightly --component rust-src")
}

/// Returns a command of a toolchain's cargo that runs in the workspace's root, with the toolchain's
/// compiler.
pub(crate) fn cargo_of(toolchain: &Path) -> Command {
    let mut command = Command::new(toolchain.join("bin/cargo"));
    command
        .current_dir(cargo::root())
        .stdin(Stdio::null())
        .env("RUSTC", toolchain.join("bin/rustc"))
        .envs(source(toolchain).ok().map(|source| (SOURCE_VARIABLE, source)))
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// The variable by which cargo finds the source of the standard library outside the toolchain.
const SOURCE_VARIABLE: &str = "__CARGO_TESTS_ONLY_SRC_ROOT";

/// Returns the toolchain, and makes sure that [`cargo_of`] finds the source.
pub(crate) fn with_source(toolchain: &Path) -> Result<PathBuf> {
    source(toolchain).map(|_| toolchain.to_owned())
}

/// Returns the folder of the source of a toolchain's standard library.
fn source(toolchain: &Path) -> Result<PathBuf> {
    let own = toolchain.join("lib/rustlib/src/rust/library");
    if own.join("Cargo.lock").exists() {
        return Ok(own);
    }
    let compiler = compiler(toolchain)?;
    let wanted = release(compiler.trim_start_matches("rustc ")).context("the compiler has no version")?;
    let (name, only) = (format!("rust-src {}.{}", wanted.0, wanted.1), &["rust-src"]);
    let packages = Packages { name: &name, arch: Arch::X86_64, suites: &["sid"], packages: only, only };
    let root = packages.root_with(&|line| println!("{line}"), &|root| {
        let version = apt::version(root, "rust-src")?;
        ensure!(release(&version) == Some(wanted), "Debian's is {version}, and the compiler {compiler}");
        Ok(())
    });
    let root = root.context(
        "the source of the standard library is not installed \
         (rustup component add rust-src --toolchain nightly), and Debian's rust-src does not serve",
    )?;
    let folder = fs::read_dir(root.join("usr/src"))?.next().context("the package holds no source")??;
    Ok(folder.path().join("library"))
}

/// Returns the version of a toolchain's compiler, as the compiler prints it.
fn compiler(toolchain: &Path) -> Result<String> {
    let rustc = toolchain.join("bin/rustc");
    let output = Command::new(&rustc).arg("--version").output();
    let output = output.with_context(|| format!("cannot run {}", rustc.display()))?;
    ensure!(output.status.success(), "{} --version: {}", rustc.display(), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the first two numbers of a version.
fn release(version: &str) -> Option<(&str, &str)> {
    let (major, rest) = version.split_once('.')?;
    Some((major, rest.split(|c: char| !c.is_ascii_digit()).next()?))
}
