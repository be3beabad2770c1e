//! `cargo xtask run-c`: runs a program linked against libibverbs on our libraries.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use super::deb::LAUNCHER;
use super::link::{PROFILE, build};
use crate::cargo;

/// The exit status if the libraries cannot be built.
pub(crate) const STATUS_NOT_BUILT: u8 = 125;

/// The exit statuses of `run-c`, which --help shows. `verbs-run` has the same statuses.
const STATUSES: &str = "\
Exit status:
  the command's own; shells show 128+N if signal N ended it
  125  the libraries cannot be built, or the command line is wrong
  126  the command cannot be executed
  127  the command does not exist";

/// The command line of `cargo xtask run-c`.
#[derive(clap::Args)]
#[command(after_help = STATUSES)]
pub(crate) struct Args {
    /// Add soft devices, which the command also finds in /sys and /dev: VERBS_SOFT=auto, unless it
    /// is set
    #[arg(long)]
    soft: bool,

    /// Cargo profile of the libraries; dev builds faster
    #[arg(long, default_value = PROFILE, value_name = "NAME")]
    profile: String,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `run-c`. `verbs-run` and then the command replace this process, and the command keeps its
/// process id, terminal and descriptors.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let libraries = build(&args.profile)?;
    let launcher = build_launcher()?;
    let mut command = Command::new(&launcher);
    command.arg("--libraries").arg(libraries);
    if !args.soft && std::env::var_os("VERBS_SOFT").is_none() {
        command.arg("--no-soft");
    }
    let error = command.arg("--").args(&args.command).exec();
    Err(error).with_context(|| format!("cannot execute {}", launcher.display()))
}

/// Builds `verbs-run` as a static program with a Cargo profile and returns the program's path.
pub(super) fn static_launcher(profile: &str) -> Result<PathBuf> {
    let folder = cargo::build_static(&["--bin", LAUNCHER], &cargo::host_target(), profile)?;
    Ok(folder.join(LAUNCHER))
}

/// Builds `verbs-run` and returns its path. The program runs only for milliseconds, so it is not
/// optimised.
fn build_launcher() -> Result<PathBuf> {
    let folder = cargo::build(&["--quiet", "--package", "rdma-tools", "--bin", LAUNCHER])?;
    Ok(folder.join(LAUNCHER))
}
