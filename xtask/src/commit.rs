//! The commit as a number, which chooses what this one checks.
//!
//! Commits take [turns](TURNS) with what takes minutes and rarely tells two of them apart. What a
//! commit leaves to others is counted as skipped.
//!
//! | turn | on the host |
//! |---|---|
//! | 0 | fuzz target `guest`, musl, the oldest Rust if it is not this run's |
//! | 1 | fuzz targets `packet` and `responder`, barriers, the shipped library |
//! | 2 | fuzz target `cm`, the model checker |
//! | 3 | fuzz target `ucma`, the shipped library |
//!
//! | turn | guests on rxe | guests on ConnectX |
//! |---|---|---|
//! | 0 | one half, without ioctls, named provider | differential, pyverbs |
//! | 1 | other half, pyverbs | perftest, other forms of queues, named provider |
//! | 2 | one half, without ioctls, named provider | differential |
//! | 3 | other half, flags of tools by address | perftest, other forms of queues, named provider |
//!
//! | turn | on aarch64, which is emulated |
//! |---|---|
//! | 0 | guest with rxe on 6.12 |
//! | 1 | barriers, units |
//! | 2 | guest with rxe on 7.2 |
//! | 3 | suites and programs; guests with rxe on 7.2-16k, with ConnectX on 6.12 |
//!
//! `cargo xtask test --whole` takes all turns on the kernels that guests have by default. With
//! `--kernel all` it has guests with the other kernels and ports as well.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::cargo;

/// The number of turns.
pub(crate) const TURNS: usize = 4;

static WHOLE: AtomicBool = AtomicBool::new(false);

/// Makes this run take all turns.
pub(crate) fn take_all_turns() {
    WHOLE.store(true, Ordering::Relaxed);
}

/// Returns this commit's turn; `None`: all of them, as asked for, or because the commit is unknown.
pub(crate) fn turn() -> Option<usize> {
    if WHOLE.load(Ordering::Relaxed) {
        return None;
    }
    Some((number().ok()? % TURNS as u64) as usize)
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
