//! The cache of downloads and everything derived from them: outside the tree, shared by all clones
//! of the project.
//!
//! ```text
//! ${XDG_CACHE_HOME:-~/.cache}/libibverbs-rs/
//!   apt/NAME-ARCH/       private apt state
//!   debian/NAME-ARCH-H/  unpacked packages: kernels, newer QEMUs, programs; renamed into place
//!   toolchain/VERSION/   a nightly toolchain with the source of its standard library
//!   musl/                a link to the unwinder of static programs
//!   images/, initramfs/  boot files, named by kernel and a hash of their inputs
//!   run/PID-N/           one guest: its job, its console log, its device model's files; of the
//!                        newest failed guests, all except the job
//!   kvm                  the boot of the host that failed to start a guest under KVM
//!   *.lock               held while the entry beside it is being made
//! ```

use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The project's cache directory, created if it is missing.
pub(crate) fn dir() -> Result<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(absolute);
    let home = || Some(std::env::home_dir().filter(absolute)?.join(".cache"));
    let base = xdg
        .or_else(home)
        .context("cannot find the cache directory: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
    let dir = base.join("libibverbs-rs");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create the cache {}", dir.display()))?;
    Ok(dir)
}

/// Acquires the exclusive lock `name` in the cache directory. If another process holds it, calls
/// `waiting` and waits. The lock is released when the file is dropped or the process ends.
pub(crate) fn lock(name: &str, waiting: impl FnOnce()) -> Result<File> {
    lock_file(&dir()?.join(format!("{name}.lock")), waiting)
}

/// Like [`lock`], for a lock file at any path.
pub(crate) fn lock_file(path: &Path, waiting: impl FnOnce()) -> Result<File> {
    let open = File::options().create(true).truncate(false).write(true).open(path);
    let file = open.with_context(|| format!("cannot open {}", path.display()))?;
    let locked = match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            waiting();
            file.lock()
        }
        other => other.map_err(Into::into),
    };
    locked.with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Returns a text that stands for the contents of files: their sizes and modification times.
/// Hashing the files would take longer than building from them.
pub(crate) fn stamps(files: &[&Path]) -> Result<String> {
    let stamp = |path: &&Path| -> Result<String> {
        let metadata = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(format!("{path:?} {} {:?}\n", metadata.len(), metadata.modified()?))
    };
    files.iter().map(stamp).collect()
}

/// Hashes parts, to name cache entries. Not meant to withstand maliciously chosen inputs.
pub(crate) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}
