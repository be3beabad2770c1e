//! The cache of downloads and everything derived from them: outside the tree, shared by all clones
//! of the project.
//!
//! ```text
//! ${XDG_CACHE_HOME:-~/.cache}/libibverbs-rs/
//!   apt/NAME-ARCH/       private apt state
//!   debian/NAME-ARCH-H/  unpacked packages: kernels, newer QEMUs, programs; renamed into place
//!   toolchain/VERSION/   a nightly toolchain with the source of its standard library
//!   musl/                a link to the unwinder of static programs
//!   cargo-mutants/       cargo-mutants, where the host has none
//!   images/, initramfs/  boot files, named by kernel and a hash of their inputs
//!   run/PID-N/           one running guest: its job, its console log, its device model's files
//!   failed/PID-N/        of failed guests: consoles, ends of traces, complaints of the model
//!   kvm                  whether guests start under KVM, since this boot of the host
//!   *.lock               held while the entry beside it is being made
//! ```

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use nix::fcntl::{Flock, FlockArg};

/// The project's cache directory, created if it is missing.
pub(crate) fn dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|v| Path::new(v).is_absolute()) {
        Some(xdg) => PathBuf::from(xdg),
        None => std::env::home_dir()
            .filter(|home| home.is_absolute())
            .ok_or_else(|| {
                anyhow!(
                    "cannot find the cache directory: neither XDG_CACHE_HOME nor HOME is an absolute path"
                )
            })?
            .join(".cache"),
    };
    let dir = base.join("libibverbs-rs");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create the cache {}", dir.display()))?;
    Ok(dir)
}

/// Takes the exclusive lock `name` in the cache directory. Calls `waiting` first if another process
/// holds it, and waits. The lock is released when the guard is dropped or the process ends.
pub(crate) fn lock(name: &str, waiting: impl FnOnce()) -> Result<Flock<File>> {
    let path = dir()?.join(format!("{name}.lock"));
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
            waiting();
            Flock::lock(file, FlockArg::LockExclusive)
                .map_err(|(_, e)| anyhow!("cannot lock {}: {e}", path.display()))
        }
        Err((_, e)) => Err(anyhow!("cannot lock {}: {e}", path.display())),
    }
}

/// Hashes parts, to name cache entries. Not meant to withstand chosen inputs.
pub(crate) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}
