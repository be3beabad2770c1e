//! Debian's package tools: host packages that the other commands need, and ([`packages`]) packages
//! from other Debian suites, which touch neither /etc/apt nor the machine's package state.
//!
//! Invariant: nothing here writes below /etc/apt or /var/lib/apt, except `apt-get` when it installs
//! a missing host package as root.

mod packages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use anyhow::{Result, ensure};
use serde::Deserialize;

pub(crate) use self::packages::{Packages, RDMA_CORE, version};
use crate::progress::say;
use crate::{cache, process};

/// A list in `tools.toml`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tools {
    Text,
    Vm,
    Interop,
    CPrograms,
    CBuild,
    CAbi,
    Ctags,
    Deb,
    Aarch64,
    Musl,
    Fuzz,
}

impl Tools {
    /// Returns the list's programs and files, each with the package that contains it.
    fn list(self) -> &'static BTreeMap<String, String> {
        static LISTS: LazyLock<BTreeMap<Tools, BTreeMap<String, String>>> =
            LazyLock::new(|| toml::from_str(include_str!("tools.toml")).expect("tables of names"));
        &LISTS[&self]
    }
}

/// Returns the path of LLVM's unwinder.
pub(crate) fn libunwind() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let libraries = versions
        .filter(|version| version.file_name().as_encoded_bytes().starts_with(b"llvm-"))
        .map(|version| version.path().join("lib/libunwind.a"));
    libraries.filter(|library| library.exists()).max()
}

/// Ensures that every tool exists. As root, installs missing packages through apt-get.
///
/// # Errors
/// A package is missing and cannot be installed. The error names it.
pub(crate) fn ensure_tools(tools: &[Tools]) -> Result<()> {
    if missing(tools).is_empty() {
        return Ok(());
    }
    // Two invocations on a fresh machine must not install the same packages at the same time.
    let _lock = cache::lock("host-packages", || say("waiting for another xtask to install host packages"))?;
    let packages = missing(tools);
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    let install = format!("apt-get install --no-install-recommends {names}");
    ensure!(nix::unistd::geteuid().is_root(), "missing packages: {names}; install them with: sudo {install}");
    ensure!(
        find_program("apt-get").is_some(),
        "missing packages: {names} (Debian's names), and this machine has no apt-get to install them"
    );
    say(&format!("installing {names}"));
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        // Our own stdout belongs to the user's command.
        command.args(["-q", "-y", "-o", "DPkg::Lock::Timeout=300"]).args(arguments).stdout(std::io::stderr());
        process::run(command.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install = [&["install", "--no-install-recommends"], &packages[..]].concat();
    // Retries with new lists: a fresh container has none, and old lists name missing files.
    apt_get(&install).or_else(|_| apt_get(&["update"]).and_then(|()| apt_get(&install)))?;
    let still = missing(tools);
    ensure!(still.is_empty(), "installed, but not found on this machine: {}", still.join(" "));
    Ok(())
}

/// Returns the packages of the missing tools.
fn missing(tools: &[Tools]) -> Vec<&'static str> {
    let is_there = |program: &str| match program {
        "busybox" => static_busybox().is_some(),
        "libunwind.a" => libunwind().is_some(),
        _ => find_program(program).is_some(),
    };
    let absent = tools.iter().flat_map(|list| list.list()).filter(|(program, _)| !is_there(program));
    absent.map(|(_, package)| package.as_str()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Finds a program in PATH and in the system directories that a user's PATH may lack.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    if name.starts_with('/') {
        return Some(PathBuf::from(name)).filter(|p| p.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

/// Returns the host's busybox if it is static, as the initramfs requires.
pub(crate) fn static_busybox() -> Option<PathBuf> {
    let path = find_program("busybox")?;
    // `ldd` fails for a program without an interpreter.
    let ldd = Command::new("ldd").arg(&path).stdin(Stdio::null()).output().ok()?;
    (!ldd.status.success()).then_some(path)
}
