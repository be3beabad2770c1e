//! The nightly toolchain with the source of the standard library, which some programs are built
//! with: those under ThreadSanitizer, and those for another architecture.
//!
//! The source comes from rustup's component rust-src, else from Debian's package of that name,
//! which is unpacked beside a copy of the toolchain in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::apt::{self, Archive, PrivateApt};
use crate::{cache, cargo};

/// The crates of the standard library that are built with a program, as cargo's `build-std` takes
/// them.
pub(crate) const STD: &str = "std,panic_abort";

/// Returns the folder of the nightly toolchain.
///
/// # Errors
/// There is none.
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
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// The place of the standard library's source in a toolchain.
const SOURCE: &str = "lib/rustlib/src/rust";

/// Returns the toolchain if it has the source, else a copy of it with the source.
///
/// # Errors
/// The source is neither installed nor to be had from Debian, or the toolchain cannot be copied.
pub(crate) fn with_source(toolchain: &Path) -> Result<PathBuf> {
    let is_complete = |toolchain: &Path| toolchain.join(SOURCE).join("library/Cargo.lock").exists();
    if is_complete(toolchain) {
        return Ok(toolchain.to_owned());
    }
    let version = Command::new(toolchain.join("bin/rustc")).arg("--version").output()?;
    let version = String::from_utf8_lossy(&version.stdout).trim().replace([' ', '(', ')'], "_");
    let _lock = cache::lock("toolchain", || println!("waiting for another xtask that prepares a toolchain"))?;
    let dir = cache::dir()?.join("toolchain").join(version);
    if is_complete(&dir) {
        return Ok(dir);
    }
    copy_with_source(toolchain, &dir).context(
        "the source of the standard library is not installed \
         (rustup component add rust-src --toolchain nightly), and Debian's rust-src is not available",
    )?;
    Ok(dir)
}

/// Copies a toolchain, and adds Debian's newest source of the standard library.
fn copy_with_source(toolchain: &Path, dir: &Path) -> Result<()> {
    let making = dir.with_extension("making");
    let _ = fs::remove_dir_all(&making);
    let (debs, root, copy) = (making.join("debs"), making.join("root"), making.join("toolchain"));
    for folder in [&debs, &root] {
        fs::create_dir_all(folder)?;
    }
    let apt = PrivateApt::new(cache::dir()?.join("apt/rust-src"), &[(Archive::Main, "sid")])?;
    println!("downloading rust-src");
    apt.update()?;
    let mut versions = apt.versions("rust-src")?;
    versions.sort_by(|a, b| apt::compare_versions(&a.version, &b.version));
    let newest = versions.pop().context("Debian's sid has no rust-src")?;
    apt.download(&[newest], &debs, false)?;
    apt::unpack(&debs, &root)?;
    // Links where possible: a toolchain has more than a gigabyte.
    if !run("cp", &["-rl".as_ref(), toolchain, &copy])? {
        let _ = fs::remove_dir_all(&copy);
        ensure!(run("cp", &["-r".as_ref(), toolchain, &copy])?, "the toolchain cannot be copied");
    }
    let sources = fs::read_dir(root.join("usr/src"))?.next().context("the package holds no source")??.path();
    fs::create_dir_all(copy.join(SOURCE))?;
    for part in ["library", "Cargo.lock"] {
        let copied = run("cp", &["-r".as_ref(), &sources.join(part), &copy.join(SOURCE)])?;
        ensure!(copied, "{part} cannot be copied");
    }
    fs::create_dir_all(dir.parent().unwrap_or(dir))?;
    fs::rename(&copy, dir)?;
    let _ = fs::remove_dir_all(&making);
    Ok(())
}

fn run(program: &str, arguments: &[&Path]) -> Result<bool> {
    let status = Command::new(program).args(arguments).stderr(Stdio::null()).status();
    Ok(status.with_context(|| format!("cannot run {program}"))?.success())
}
