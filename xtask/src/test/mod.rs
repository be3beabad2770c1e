//! `cargo xtask test`: runs a fixed list of checks, the same on every commit, and prints one line
//! with the result. `--whole` runs the checks that take too long for every commit, in named parts.
//!
//! docs/testing.md shows the list and the parts.
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | the list and the parts: their stages and guests |
//! | [`part`] | the parts' names |
//! | [`host`] | stages on the host: lints, documentation, tests, models |
//! | [`guest`] | guests, and the suites in them |
//! | [`stage`], [`mod@summary`] | counts, and the end of the output |
//!
//! Invariant: a check that did not run is counted and shown as skipped, with the reason. In CI, a
//! missing VM is a failure.

mod commits;
mod features;
mod guest;
mod host;
mod msrv;
mod packages;
mod part;
mod plan;
mod prose;
mod stage;
mod summary;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use self::part::Part;
use self::plan::Plan;
use self::stage::{Counts, StageResult};
use crate::{cargo, vm};

/// Runs every check in the fixed list, or parts of the other checks.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run parts of the checks that take too long for every commit, all of them without a name
    // The conflicts keep a guest's options out of runs that have their own guests.
    #[arg(long, value_enum, value_name = "PART", num_args = 0.., conflicts_with_all = ["only", "kernel", "device", "port", "suites"])]
    whole: Option<Vec<Part>>,

    /// Run only a part of the fixed list
    #[arg(long, value_enum)]
    only: Option<Only>,

    /// List the stages and guests without running them
    #[arg(long)]
    list: bool,

    /// Run the suites only on these kernels: 5.10, 6.1, 6.12, 7.2, or a directory [default with a
    /// suite, device or port: 6.1]
    #[arg(long, value_name = "KERNEL", conflicts_with = "only")]
    kernel: Vec<vm::kernel::Choice>,

    /// Run the suites only on this device [default with a suite or kernel: rxe]
    #[arg(long, value_enum, conflicts_with = "only")]
    device: Option<vm::Device>,

    /// Port type of mlx5 devices [default: both]
    #[arg(long, value_enum, conflicts_with = "only")]
    port: Option<vm::connectx::Port>,

    /// Time limit in seconds for the suites in one guest
    #[arg(long, default_value_t = 5400, value_name = "SECS")]
    timeout: u64,

    /// Guest suites to run [default: all]
    #[arg(value_name = "SUITE", conflicts_with = "only")]
    suites: Vec<String>,
}

/// Values of `--only`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Only {
    /// Formatting, commit messages, comments: seconds
    Text,
    /// Formatting, lints, documentation, tests without a device
    Host,
    /// The guest suites
    Vm,
}

/// Runs `test`.
///
/// # Errors
/// Cargo cannot be run, or the cases' results cannot be written. A failed check is counted instead.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let started = Instant::now();
    let plans: Vec<Plan> = match &args.whole {
        None => vec![Plan::without_parts(args)],
        Some(parts) if parts.is_empty() => {
            Part::value_variants().iter().copied().map(Plan::of_part).collect()
        }
        Some(parts) => parts.iter().copied().map(Plan::of_part).collect(),
    };
    if args.list {
        plans.iter().flat_map(Plan::names).for_each(|name| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    let vm_required = std::env::var_os("CI").is_some_and(|v| v == "true" || v == "1");
    let results: Vec<StageResult> =
        plans.iter().flat_map(|plan| plan.run(args.timeout, vm_required)).collect();
    save(&results)?;
    println!("\n== summary, after {:.0} s", started.elapsed().as_secs_f64());
    summary::lines(&results).iter().for_each(|line| println!("{line}"));
    let mut total = Counts::default();
    results.iter().for_each(|result| total.add(result.counts));
    println!("\n{total}");
    Ok(ExitCode::from(u8::from(total.failed > 0 || total.passed == 0)))
}

/// Writes each case's result, prefixed by the name of its stage, to a file below `target/results`.
fn save(results: &[StageResult]) -> Result<()> {
    let dir = cargo::root().join("target/results");
    let lines =
        results.iter().flat_map(|stage| stage.cases.iter().map(|line| format!("{}: {line}\n", stage.name)));
    std::fs::create_dir_all(&dir)
        .and_then(|()| std::fs::write(dir.join("cases.txt"), lines.collect::<String>()))
        .with_context(|| format!("cannot write to {}", dir.display()))
}
