//! The nightly toolchain with the standard library's source. It builds programs under sanitizers,
//! with musl, and for another architecture. `cargo xtask toolchain` prints where it is and how to
//! use it.
//!
//! The source comes from rustup's component rust-src, or else from Debian's package with that name.
//! The user's toolchain is only read: cargo finds Debian's source through a variable that cargo's
//! own tests use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::apt::{self, Packages};
use crate::arch::Arch;
use crate::{cargo, process};

/// Runs `toolchain`: prints where the toolchain is and how to use it.
///
/// # Errors
/// The nightly toolchain or its standard library's source is missing.
pub(crate) fn run() -> Result<ExitCode> {
    let nightly = nightly()?;
    println!("compiler   {}", compiler(&nightly)?);
    let (source, dir) = (source(&nightly)?, nightly.display());
    println!("toolchain  {dir}\nsource     {}", source.display());
    let variable = if source.starts_with(&nightly) {
        String::new()
    } else {
        format!("{SOURCE_VARIABLE}={} ", source.display())
    };
    println!(
        "use        {variable}RUSTC={dir}/bin/rustc {dir}/bin/cargo build -Zbuild-std={STD} --target TARGET"
    );
    Ok(ExitCode::SUCCESS)
}

/// The standard library's crates to build with a program, in the form of cargo's `build-std`.
const STD: &str = "std,panic_abort";

/// Returns the folder of the nightly toolchain.
fn nightly() -> Result<PathBuf> {
    let sysroot = process::output(Command::new("rustc").args(["+nightly", "--print", "sysroot"]));
    sysroot
        .map(|sysroot| PathBuf::from(sysroot.trim()))
        .context("there is no nightly toolchain: rustup toolchain install nightly --component rust-src")
}

/// Returns a command for the nightly toolchain's cargo that runs in the workspace's root and finds
/// the standard library's source.
///
/// # Errors
/// The nightly toolchain or its standard library's source is missing.
pub(crate) fn cargo() -> Result<Command> {
    let nightly = nightly()?;
    let mut command = Command::new(nightly.join("bin/cargo"));
    command
        .current_dir(cargo::root())
        .env("RUSTC", nightly.join("bin/rustc"))
        .env(SOURCE_VARIABLE, source(&nightly)?)
        .env("CARGO_UNSTABLE_BUILD_STD", STD)
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(command)
}

/// The variable that points cargo to a standard library source outside the toolchain.
const SOURCE_VARIABLE: &str = "__CARGO_TESTS_ONLY_SRC_ROOT";

/// Returns the folder with the source of a toolchain's standard library.
fn source(toolchain: &Path) -> Result<PathBuf> {
    let own = toolchain.join("lib/rustlib/src/rust/library");
    if own.join("Cargo.lock").exists() {
        return Ok(own);
    }
    let compiler = compiler(toolchain)?;
    let wanted = release(compiler.trim_start_matches("rustc ")).context("the compiler has no version")?;
    let (name, only) = (format!("rust-src {}.{}", wanted.0, wanted.1), &["rust-src"]);
    let packages = Packages { name: &name, arch: Arch::X86_64, suites: &["sid"], packages: only, only };
    let root = packages.root_with(|root| {
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
    let version = process::output(Command::new(toolchain.join("bin/rustc")).arg("--version"))?;
    Ok(version.trim().to_owned())
}

/// Returns the first two numbers of a version.
fn release(version: &str) -> Option<(&str, &str)> {
    let (major, rest) = version.split_once('.')?;
    Some((major, rest.split(|c: char| !c.is_ascii_digit()).next()?))
}
