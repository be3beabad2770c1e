//! Programs under a sanitizer: the toolchain that builds them, and their environment.
//!
//! Only nightly toolchains have sanitizers. ThreadSanitizer has to see the standard library's own
//! accesses as well: otherwise a lock in it orders nothing, and every `Arc` that is dropped looks
//! like a race. The standard library is therefore built with the program. Its source comes from
//! rustup's component rust-src, else from Debian's package of that name, which is unpacked beside a
//! copy of the toolchain in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::apt::{self, Archive, PrivateApt};
use crate::{cache, cargo};

/// A sanitizer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sanitizer {
    /// AddressSanitizer: accesses to memory that is out of bounds or freed.
    Address,
    /// ThreadSanitizer: accesses that race.
    Thread,
}

impl Sanitizer {
    /// The compiler's name of it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        }
    }

    /// Environment variable for programs under it. Leaks are not reported, because tests forget
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
            self.name()
        )
    }

    /// Builds a program of a package with the sanitizer, and returns the program's path.
    ///
    /// # Errors
    /// There is no nightly toolchain, its standard library's source is not available for threads,
    /// or the build fails.
    pub(crate) fn build(self, package: &str, program: &str) -> Result<PathBuf> {
        let nightly = nightly()?;
        let toolchain = if self == Sanitizer::Thread { with_source(&nightly)? } else { nightly };
        let dir = cargo::target_directory()?.join("sanitizer").join(self.name());
        let target = cargo::host_target();
        let mut command = Command::new(toolchain.join("bin/cargo"));
        command
            .current_dir(cargo::root())
            .stdin(Stdio::null())
            .args(["build", "--quiet", "--release", "--package", package, "--bin", program])
            // The rest of the tests takes minutes to build.
            .arg("--no-default-features")
            .args(["--target", &target, "--target-dir"])
            .arg(&dir)
            .env("RUSTFLAGS", self.flags())
            .env("RUSTC", toolchain.join("bin/rustc"))
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        if self == Sanitizer::Thread {
            command.arg("-Zbuild-std=std,panic_abort");
        }
        let status = command.status().context("cannot run the nightly toolchain's cargo")?;
        ensure!(status.success(), "{program} does not build with the {} sanitizer: {status}", self.name());
        Ok(dir.join(target).join("release").join(program))
    }
}

/// Returns the folder of the nightly toolchain.
fn nightly() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["+nightly", "--print", "sysroot"]).output();
    let sysroot = output.ok().filter(|output| output.status.success());
    let sysroot = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    sysroot
        .map(PathBuf::from)
        .context("sanitizers need a nightly toolchain: rustup toolchain install nightly --component rust-src")
}

/// The place of the standard library's source in a toolchain.
const SOURCE: &str = "lib/rustlib/src/rust";

/// Returns the toolchain if it has the source, else a copy of it with the source.
fn with_source(toolchain: &Path) -> Result<PathBuf> {
    let is_complete = |toolchain: &Path| toolchain.join(SOURCE).join("library/Cargo.lock").exists();
    if is_complete(toolchain) {
        return Ok(toolchain.to_owned());
    }
    let version = Command::new(toolchain.join("bin/rustc")).arg("--version").output()?;
    let version = String::from_utf8_lossy(&version.stdout).trim().replace([' ', '(', ')'], "_");
    let _lock = cache::lock("sanitizer", || println!("waiting for another xtask that prepares a toolchain"))?;
    let dir = cache::dir()?.join("sanitizer").join(version);
    if is_complete(&dir) {
        return Ok(dir);
    }
    copy_with_source(toolchain, &dir).context(
        "ThreadSanitizer needs the source of the standard library, which is not installed \
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_on_purpose_is_no_leak_and_copies_are_seen() {
        assert!(Sanitizer::Address.environment().1.contains("detect_leaks=0"));
        for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
            assert!(sanitizer.flags().contains("--cfg verbs_portable_copies"));
            assert!(sanitizer.flags().contains(&format!("-Zsanitizer={}", sanitizer.name())));
        }
    }
}
