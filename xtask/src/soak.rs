//! `cargo xtask soak`: random traffic on many queue pairs of one soft device, for a long time. It
//! needs no VM and no root.
//!
//! verbs-tests' program `soak` does the work: it checks each operation and samples its resident
//! set.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::cargo;

/// Runs random traffic for a long time on a soft device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Duration in minutes
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,

    /// Number of queue pairs, all on one device
    #[arg(long, default_value_t = 256)]
    qps: usize,

    /// Number of threads that share the queue pairs
    #[arg(long, default_value_t = 16)]
    threads: usize,

    /// Seed for all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs `soak`. Its status is 0 if no operation was lost and memory did not grow.
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
