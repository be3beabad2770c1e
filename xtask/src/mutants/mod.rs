//! `cargo xtask mutants`: finds mutants in a change that no test detects.
//!
//! cargo-mutants changes one place after another in a copy of the tree (another operator, a
//! function that returns a default) and runs the package's own tests. A surviving mutant marks a
//! line whose errors no test detects. `.cargo/mutants.toml` has the settings.
//!
//! `cargo xtask mutants mlx5` itself tests hand-chosen mutants of the ConnectX provider ([`mlx5`]).
//!
//! Invariant: the tree and its target directory stay unchanged. Copies and reports are below
//! `target/mutants`.

pub(crate) mod mlx5;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::{apt, cargo, process};

/// Runs cargo-mutants on a change.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    chosen: Option<Chosen>,

    /// Files, or patterns such as `roce/src/**` [default: functions that differ from the merge base
    /// with --base]
    #[arg(value_name = "GLOB")]
    files: Vec<String>,

    /// Revision to compare the change with
    #[arg(long, default_value = "main", value_name = "REF")]
    base: String,

    /// More arguments for cargo-mutants, such as `--list` or `--jobs 2`
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Mutants that were chosen by hand.
#[derive(clap::Subcommand)]
enum Chosen {
    /// Test mutants of the ConnectX provider that were chosen by hand
    Mlx5(mlx5::Args),
}

/// The exit status of cargo-mutants if tests detected all mutants, some by their time limit.
const TIMED_OUT: i32 = 3;

/// Runs `mutants`. Its status is 0 if the tests detected every mutant.
///
/// # Errors
/// cargo-mutants is not installed, or git does not know the base.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(Chosen::Mlx5(args)) = &args.chosen {
        return mlx5::run(args);
    }
    ensure!(
        apt::find_program("cargo-mutants").is_some(),
        "cargo-mutants is not installed: cargo install --locked cargo-mutants"
    );
    let mut command = cargo::command();
    command.arg("mutants").args(&args.arguments);
    if args.files.is_empty() {
        command.arg("--in-diff").arg(change(&args.base)?);
    }
    command.args(args.files.iter().flat_map(|file| ["--file", file]));
    let status = command.status().context("cannot run cargo-mutants")?;
    Ok(ExitCode::from(u8::from(!status.success() && status.code() != Some(TIMED_OUT))))
}

/// Writes the change since the merge base with `base`, committed or not, into a file.
fn change(base: &str) -> Result<PathBuf> {
    let mut git = Command::new("git");
    let diff = process::output(git.args(["diff", "--merge-base", base]).current_dir(cargo::root()))
        .context("name another base with --base, or name files")?;
    let dir = cargo::target_directory()?.join("mutants");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let file = dir.join("change.diff");
    std::fs::write(&file, diff).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}
