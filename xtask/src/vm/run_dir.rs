//! A guest's files in the cache, and the files that are kept of a failed guest.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::cache;

/// The number of files of failed guests that the cache keeps.
const KEPT: usize = 60;

/// The size of the part that is kept of the end of a trace.
const TRACE_KEPT: u64 = 4 << 20;

/// A guest's files, removed with this value. The next process removes those that a killed one
/// leaves.
pub(super) struct RunDir {
    pub(super) path: PathBuf,
}

impl RunDir {
    /// Makes an empty directory that no other guest has.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub(super) fn new() -> Result<RunDir> {
        let home = cache::dir()?.join("run");
        fs::create_dir_all(&home)?;
        for entry in fs::read_dir(&home)?.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|n| n.split('-').next()).and_then(|n| n.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        for n in 0..1000 {
            let path = home.join(format!("{}-{n}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(RunDir { path }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
            }
        }
        bail!("{} is full of this process's own directories", home.display())
    }

    /// Writes a failed guest's console to the folder where the newest ones are kept.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub(super) fn keep_console(&self, console: &str) -> Result<PathBuf> {
        self.keep("log", console.as_bytes())
    }

    /// Keeps the end of the ConnectX model's trace, if there is one.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub(super) fn keep_trace(&self) -> Result<Option<PathBuf>> {
        let Ok(mut file) = File::open(self.path.join("trace")) else { return Ok(None) };
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TRACE_KEPT)))?;
        let mut end = Vec::new();
        file.take(TRACE_KEPT).read_to_end(&mut end)?;
        self.keep("trace", &end).map(Some)
    }

    /// Keeps all complaints of the ConnectX model, if there are any.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub(super) fn keep_complaints(&self) -> Result<Option<PathBuf>> {
        match fs::read(self.path.join("complaints")) {
            Ok(text) if !text.is_empty() => self.keep("complaints", &text).map(Some),
            _ => Ok(None),
        }
    }

    fn keep(&self, extension: &str, content: &[u8]) -> Result<PathBuf> {
        let name = self.path.file_name().context("no name")?.to_string_lossy().into_owned();
        let home = cache::dir()?.join("consoles");
        fs::create_dir_all(&home)?;
        let path = home.join(format!("{name}.{extension}"));
        fs::write(&path, content)?;
        let mut kept: Vec<_> = fs::read_dir(&home)?
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        kept.sort();
        for (_, old) in kept.iter().rev().skip(KEPT) {
            let _ = fs::remove_file(old);
        }
        Ok(path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
