//! A guest's files in the cache, which are kept if it fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

use crate::cache;

/// The number of failed guests whose files the cache keeps.
const KEPT: usize = 20;

/// The size of the part that is kept of the end of a trace.
const TRACE_KEPT: usize = 4 << 20;

/// A guest's files, removed with this value. The next process removes those that a killed one
/// leaves.
pub(super) struct RunDir {
    pub(super) path: PathBuf,
}

impl RunDir {
    /// Makes an empty directory that no other guest has.
    pub(super) fn new() -> Result<RunDir> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let home = cache::dir()?.join("run");
        fs::create_dir_all(&home)?;
        for entry in fs::read_dir(&home)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let process = Path::new("/proc").join(name.split('-').next().unwrap_or_default());
            if !process.exists() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = home.join(format!("{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(RunDir { path })
    }

    /// Keeps the files of a failed guest, and returns their directory: the console, QEMU's
    /// messages, and of a ConnectX model the complaints and the end of its trace.
    pub(super) fn keep(&self) -> Result<PathBuf> {
        let home = cache::dir()?.join("failed");
        fs::create_dir_all(&home)?;
        let path = home.join(self.path.file_name().context("no name")?);
        let _ = fs::remove_dir_all(&path);
        let _ = fs::remove_dir_all(self.path.join("job"));
        let trace = fs::read(self.path.join("trace")).unwrap_or_default();
        if trace.len() > TRACE_KEPT {
            fs::write(self.path.join("trace"), &trace[trace.len() - TRACE_KEPT..])?;
        }
        fs::rename(&self.path, &path)?;
        let entries = fs::read_dir(&home)?.flatten();
        let mut kept: Vec<_> =
            entries.filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect();
        kept.sort();
        for (_, old) in kept.iter().rev().skip(KEPT) {
            let _ = fs::remove_dir_all(old);
        }
        Ok(path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
