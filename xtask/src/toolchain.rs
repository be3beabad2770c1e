//! The nightly toolchain with the source of the standard library, which some programs are built
//! with: those under sanitizers, those with musl, and those for another architecture.
//! `cargo xtask toolchain` makes it and [reports](report) it.
//!
//! The source comes from rustup's component rust-src, else from Debian's package of that name,
//! which is unpacked beside a copy of the toolchain in the cache.
//!
//! Invariant: the toolchain of the user is only read. The copy shares the files' contents by hard
//! links, so that its files are replaced, and never opened for writing.

mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

pub(crate) use self::report::{Args, run};
use crate::apt::{self, Packages};
use crate::arch::Arch;
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

/// The place of sources in a toolchain, and in it that of the standard library's.
const SOURCES: &str = "lib/rustlib/src";
const SOURCE: &str = "lib/rustlib/src/rust";

/// The file in a copied toolchain that holds the version of Debian's rust-src.
const PACKAGE_VERSION: &str = "rust-src.version";

/// Returns the toolchain if it has the source, else a copy of it with the source.
///
/// # Errors
/// The source is neither installed nor to be had from Debian, or the toolchain cannot be copied.
pub(crate) fn with_source(toolchain: &Path) -> Result<PathBuf> {
    if is_complete(toolchain) {
        return Ok(toolchain.to_owned());
    }
    let version = compiler(toolchain)?.replace([' ', '(', ')'], "_");
    let _lock = cache::lock("toolchain", || println!("waiting for another xtask that prepares a toolchain"))?;
    let dir = cache::dir()?.join("toolchain").join(version);
    if is_complete(&dir) {
        return Ok(dir);
    }
    copy_with_source(toolchain, &dir).context(
        "the source of the standard library is not installed \
         (rustup component add rust-src --toolchain nightly), and Debian's rust-src does not serve",
    )?;
    Ok(dir)
}

/// Returns whether a toolchain has the source of its standard library.
fn is_complete(toolchain: &Path) -> bool {
    toolchain.join(SOURCE).join("library/Cargo.lock").exists()
}

/// Returns the version of a toolchain's compiler, as the compiler prints it.
fn compiler(toolchain: &Path) -> Result<String> {
    let rustc = toolchain.join("bin/rustc");
    let output = Command::new(&rustc).arg("--version").output();
    let output = output.with_context(|| format!("cannot run {}", rustc.display()))?;
    ensure!(output.status.success(), "{} --version: {}", rustc.display(), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Copies a toolchain, and adds Debian's newest source of the standard library.
fn copy_with_source(toolchain: &Path, dir: &Path) -> Result<()> {
    let making = dir.with_extension("making");
    let _ = fs::remove_dir_all(&making);
    let (root, copy) = (making.join("root"), making.join("toolchain"));
    let only = &["rust-src"];
    let source = Packages { name: "rust-src", arch: Arch::X86_64, suites: &["sid"], packages: only, only };
    source.fetch(&root, &|line| println!("{line}"))?;
    let (version, compiler) = (apt::version(&root, "rust-src")?, compiler(toolchain)?);
    let releases = [&*version, compiler.trim_start_matches("rustc ")].map(release);
    ensure!(releases[0] == releases[1], "Debian's is {version}, and the compiler {compiler}");
    let sources = fs::read_dir(root.join("usr/src"))?.next().context("the package holds no source")??.path();
    copy_beside(toolchain, &sources, &copy)?;
    fs::write(copy.join(PACKAGE_VERSION), version)?;
    fs::create_dir_all(dir.parent().unwrap_or(dir))?;
    fs::rename(&copy, dir)?;
    let _ = fs::remove_dir_all(&making);
    Ok(())
}

/// Returns the first two numbers of a version.
fn release(version: &str) -> Option<(&str, &str)> {
    let (major, rest) = version.split_once('.')?;
    Some((major, rest.split(|c: char| !c.is_ascii_digit()).next()?))
}

/// Copies a toolchain without its sources, and adds others.
fn copy_beside(toolchain: &Path, sources: &Path, copy: &Path) -> Result<()> {
    // Links to files where possible: a toolchain has more than a gigabyte. No symbolic link is
    // copied, because it may lead to the user's folders.
    if !run_quietly("cp", &["-rlL".as_ref(), toolchain, copy])? {
        let _ = fs::remove_dir_all(copy);
        ensure!(run_quietly("cp", &["-rL".as_ref(), toolchain, copy])?, "the toolchain cannot be copied");
    }
    // A file that is there already is the user's own by another name.
    let theirs = copy.join(SOURCES);
    if theirs.exists() {
        fs::remove_dir_all(&theirs)?;
    }
    fs::create_dir_all(copy.join(SOURCE))?;
    for part in ["library", "Cargo.lock"] {
        let copied = run_quietly("cp", &["-r".as_ref(), &sources.join(part), &copy.join(SOURCE)])?;
        ensure!(copied, "{part} cannot be copied");
    }
    Ok(())
}

fn run_quietly(program: &str, arguments: &[&Path]) -> Result<bool> {
    let status = Command::new(program).args(arguments).stderr(Stdio::null()).status();
    Ok(status.with_context(|| format!("cannot run {program}"))?.success())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory that goes away with the value.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("xtask-toolchain-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("sources/library")).unwrap();
            fs::write(dir.join("sources/library/Cargo.lock"), "new").unwrap();
            fs::write(dir.join("sources/Cargo.lock"), "new").unwrap();
            fs::create_dir_all(dir.join("theirs/bin")).unwrap();
            fs::write(dir.join("theirs/bin/rustc"), "compiler").unwrap();
            Scratch(dir)
        }

        fn copy(&self) -> PathBuf {
            let copy = self.0.join("copy");
            copy_beside(&self.0.join("theirs"), &self.0.join("sources"), &copy).unwrap();
            assert!(is_complete(&copy));
            assert_eq!(fs::read_to_string(copy.join("bin/rustc")).unwrap(), "compiler");
            copy
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_copy_writes_through_no_hard_link_of_the_users_toolchain() {
        let scratch = Scratch::new("links");
        let theirs = scratch.0.join("theirs").join(SOURCE);
        fs::create_dir_all(&theirs).unwrap();
        fs::write(theirs.join("Cargo.lock"), "theirs").unwrap();
        let copy = scratch.copy();
        assert_eq!(fs::read_to_string(copy.join(SOURCE).join("Cargo.lock")).unwrap(), "new");
        assert_eq!(fs::read_to_string(theirs.join("Cargo.lock")).unwrap(), "theirs");
    }

    #[test]
    fn a_copy_follows_no_symbolic_link_of_the_users_toolchain() {
        let scratch = Scratch::new("symlink");
        let elsewhere = scratch.0.join("elsewhere");
        fs::create_dir_all(&elsewhere).unwrap();
        fs::create_dir_all(scratch.0.join("theirs/lib/rustlib")).unwrap();
        symlink(&elsewhere, scratch.0.join("theirs").join(SOURCES)).unwrap();
        scratch.copy();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
}
