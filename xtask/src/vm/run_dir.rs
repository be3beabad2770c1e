//! A guest's files in the cache, which are kept if the guest fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

use crate::cache;

/// The number of guests whose files the cache keeps because they failed or were killed.
const KEPT: usize = 20;

/// The number of bytes kept from the end of a trace.
const TRACE_KEPT: usize = 4 << 20;

/// A guest's files. Dropping this value removes them unless they are kept.
pub(super) struct RunDir {
    pub(super) path: PathBuf,
    is_kept: bool,
}

impl RunDir {
    /// Makes an empty directory for this guest alone and removes the oldest kept directories.
    pub(super) fn new() -> Result<RunDir> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let home = cache::dir()?.join("run");
        fs::create_dir_all(&home)?;
        let is_left = |path: &Path| {
            let process = path.file_name()?.to_str()?.split('-').next()?;
            (!Path::new("/proc").join(process).exists()).then_some(())
        };
        let mut left: Vec<_> = fs::read_dir(&home)?
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .filter(|(_, path)| is_left(path).is_some())
            .collect();
        left.sort();
        for (_, old) in left.iter().rev().skip(KEPT) {
            let _ = fs::remove_dir_all(old);
        }
        let path = home.join(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(RunDir { path, is_kept: false })
    }

    /// Keeps the files of a failed guest: the console, QEMU's messages, and a ConnectX model's
    /// complaints and the end of its trace.
    pub(super) fn keep(&mut self) -> Result<()> {
        self.is_kept = true;
        let _ = fs::remove_dir_all(self.path.join("job"));
        let trace = fs::read(self.path.join("trace")).unwrap_or_default();
        if let Some(cut @ 1..) = trace.len().checked_sub(TRACE_KEPT) {
            fs::write(self.path.join("trace"), &trace[cut..])?;
        }
        Ok(())
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
