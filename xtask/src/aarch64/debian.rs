//! Debian's programs for aarch64: unpacked in the cache with their libraries, never installed.
//!
//! The emulator finds the loader and the libraries in this folder, and a guest of this architecture
//! has it over the host's root. The machine's apt learns nothing of the other architecture.
//!
//! Invariant: a folder in the cache is complete, because it is renamed into place, and its name
//! tells which packages were asked for.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::apt::{self, Archive, PrivateApt};
use crate::arch::Arch;
use crate::cache;

/// The packages, to which apt adds their dependencies.
const PACKAGES: &[&str] = &[
    // What every machine has: a shell and its commands.
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "iproute2",
    "kmod",
    // rdma-core's library, and programs of it that run on ours as well.
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
];

/// The suite: the C library of the programs' own build is not newer than this one's.
const SUITE: &str = "trixie";

/// Returns the folder of Debian's programs for aarch64, and downloads them if the cache has none.
///
/// # Errors
/// The packages cannot be downloaded or unpacked.
pub(crate) fn root(say: &dyn Fn(&str)) -> Result<PathBuf> {
    let inputs: Vec<&[u8]> = PACKAGES.iter().chain([&SUITE]).map(|word| word.as_bytes()).collect();
    let home = cache::dir()?.join("debian");
    let root = home.join(format!("{}-{SUITE}-{:016x}", Arch::Aarch64.debian(), cache::hash(&inputs)));
    if root.exists() {
        return Ok(root);
    }
    let _lock = cache::lock("debian", || say("another xtask is downloading programs for aarch64"))?;
    if !root.exists() {
        fs::create_dir_all(&home)?;
        let temporary = home.join(format!(".{}", std::process::id()));
        let made = download(&temporary, &root, say);
        // Best effort: a leftover costs space, and its name keeps it from being used.
        let _ = fs::remove_dir_all(&temporary);
        made.context("Debian's programs for aarch64 are not available")?;
    }
    Ok(root)
}

fn download(temporary: &Path, complete: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let (debs, root) = (temporary.join("debs"), temporary.join("root"));
    fs::create_dir_all(&debs)?;
    fs::create_dir_all(&root)?;
    let apt = PrivateApt::of(Arch::Aarch64, cache::dir()?.join("apt/arm64"), &[(Archive::Main, SUITE)])?;
    apt.update()?;
    let packages = apt.with_dependencies(PACKAGES, SUITE)?;
    say(&format!("downloading {} packages for aarch64", packages.len()));
    apt.download(&packages, &debs, true)?;
    // A package of the suite's has all files below /usr, to which these are links.
    for name in ["bin", "lib", "sbin"] {
        fs::create_dir_all(root.join("usr").join(name))?;
        symlink(Path::new("usr").join(name), root.join(name))?;
    }
    apt::unpack(&debs, &root)?;
    let loader = root.join("lib").join(Arch::Aarch64.loader());
    ensure!(loader.exists(), "the packages brought no {}", loader.display());
    fs::rename(&root, complete).with_context(|| format!("cannot rename to {}", complete.display()))
}
