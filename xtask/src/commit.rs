//! The commit as a number, which chooses what this one checks.
//!
//! Commits take turns with what takes minutes and rarely tells two of them apart: every second one
//! checks it, or one of a few, and the others count it as skipped.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::cargo;

/// Returns whose turn it is of `count`; `None` where the commit is unknown, and all run.
pub(crate) fn turn(count: usize) -> Option<usize> {
    Some((number().ok()? % count as u64) as usize)
}

/// Returns the first digits of the commit's hash as a number.
///
/// # Errors
/// This is no git repository, or git cannot be run.
pub(crate) fn number() -> Result<u64> {
    let output = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(cargo::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run git")?;
    let hash = String::from_utf8_lossy(&output.stdout);
    match hash.get(..12).map(|digits| u64::from_str_radix(digits, 16)) {
        Some(Ok(seed)) => Ok(seed),
        _ => bail!("git names no commit"),
    }
}
