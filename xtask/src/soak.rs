//! `cargo xtask soak`: random traffic on many queue pairs of one device of provider-soft, for long. No VM, no root.
//!
//! The work is done by verbs-tests' `soak`, which checks each operation and samples its own resident set.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::cargo;

/// Runs random traffic for long, on a device in userspace.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For how long
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,

    /// Queue pairs, on one device
    #[arg(long, default_value_t = 256)]
    qps: usize,

    /// Threads that share them
    #[arg(long, default_value_t = 16)]
    threads: usize,

    /// What everything random follows from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs `soak`. Its status is 0 if nothing was lost and memory did not grow.
///
/// # Errors
/// It cannot be built or run.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let dir = cargo::build(&["--quiet", "--release", "--package", "verbs-tests", "--bin", "soak"])?;
    let status = Command::new(dir.join("soak"))
        .args(["--seconds", &format!("{:.0}", args.minutes * 60.0)])
        .args(["--qps", &args.qps.to_string(), "--threads", &args.threads.to_string()])
        .args(["--seed", &args.seed.to_string()])
        .env("VERBS_SOFT", "auto")
        .status()
        .context("cannot run soak")?;
    Ok(ExitCode::from(u8::from(!status.success())))
}
