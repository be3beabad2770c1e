//! `cargo xtask test`: every check, and one line with the result.
//!
//! | part | stages |
//! |---|---|
//! | host | lints, documentation, commit messages, dependencies, tests, models ([`host`]) |
//! | vm | the guest suites: on rxe, then on mlx5 ([`guest`]) |
//!
//! Kernels are downloaded while the host part runs.
//!
//! Invariant: a check that did not run is counted and shown as skipped, with the reason; in CI a
//! missing VM is a failure.

mod commits;
mod features;
mod guest;
mod host;
mod msrv;
mod packages;
mod prose;
mod stage;
mod summary;

use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::stage::{Counts, StageResult};
use crate::{cargo, commit, vm};

/// Runs every check.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kernels of the guests, or `all`: 5.10 (not with mlx5), 6.1, 6.12 and 7.2 [default: 6.1 and
    /// 7.2, with one kind of port of mlx5 devices each]
    #[arg(long, value_name = "KERNEL")]
    kernel: Vec<Kernels>,

    /// Device of the guests [default: rxe, then mlx5]
    #[arg(long, value_enum)]
    device: Option<vm::Device>,

    /// Kind of port of mlx5 devices [default: ib, then roce]
    #[arg(long, value_enum)]
    port: Option<vm::connectx::Port>,

    /// Run what commits share by turns as well
    #[arg(long)]
    whole: bool,

    /// Run one part only
    #[arg(long, value_enum)]
    only: Option<Part>,

    /// Time limit in seconds for the suites in one guest
    #[arg(long, default_value_t = 5400, value_name = "SECS")]
    timeout: u64,

    /// Guest suites to run, those of rxe unless --device names another [default: all]
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
}

/// Values of `--kernel`.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kernels {
    All,
    One(vm::kernel::Choice),
}

impl FromStr for Kernels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let choice: vm::kernel::Choice = text.parse()?;
        if choice.is_for_aarch64_alone() {
            return Err(format!(
                "the guests here are of x86-64, and {text} is for aarch64: `cargo xtask vm --arch aarch64 --kernel \
                 {text}` boots it, and `cargo xtask test --only aarch64` tests on it"
            ));
        }
        Ok(Self::One(choice))
    }
}

/// Values of `--only`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Part {
    /// Formatting, commit messages, comments: seconds
    Text,
    /// Formatting, lints, documentation, tests without a device
    Host,
    /// The guest suites
    Vm,
    /// Everything for aarch64, which QEMU emulates
    Aarch64,
}

/// Runs `test`.
///
/// # Errors
/// cargo cannot be run, or the cases' results cannot be written. A failed check is counted instead.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let vm_required = std::env::var_os("CI").is_some_and(|v| v == "true" || v == "1");
    let started = Instant::now();
    if args.whole || args.only == Some(Part::Aarch64) {
        commit::take_all_turns();
    }
    let guests = if matches!(args.only, None | Some(Part::Vm)) { guest::plan(args) } else { Vec::new() };
    let emulate = || guest::aarch64::stages(args, vm_required);
    let results = thread::scope(|scope| -> Result<Vec<StageResult>> {
        let prepared = {
            let guests = &guests;
            scope.spawn(move || guest::prepare(guests))
        };
        let build = || {
            let ready = prepared
                .join()
                .unwrap_or_else(|_| guests.iter().map(|_| Err("preparing it panicked".to_owned())).collect());
            guest::build(args, &guests, &ready, vm_required)
        };
        let (mut results, built) = match args.only {
            Some(Part::Vm) => {
                let built = build();
                (emulate(), built)
            }
            Some(Part::Text) => (host::text(), guest::Built::default()),
            Some(Part::Aarch64) => {
                (host::aarch64().into_iter().chain(emulate()).collect(), guest::Built::default())
            }
            Some(Part::Host) | None => {
                // A processor is idle while a test waits: the guests' programs are built beside.
                let (mut built, mut emulated) = (guest::Built::default(), Vec::new());
                let mut results = host::stages(|| {
                    built = build();
                    if args.only.is_none() {
                        emulated = emulate();
                    }
                });
                results.extend(emulated);
                (results, built)
            }
        };
        results.extend(guest::stages(args, built));
        Ok(results)
    })?;
    save(&results)?;
    Ok(summary(&results, started.elapsed()))
}

/// Writes each case's result below `target/results`, with its stage in front.
fn save(results: &[StageResult]) -> Result<()> {
    let dir = cargo::root().join("target/results");
    let of_stage = |stage: &StageResult| -> String {
        stage.cases.iter().map(|line| format!("{}: {line}\n", stage.name)).collect()
    };
    std::fs::create_dir_all(&dir)
        .and_then(|()| {
            std::fs::write(dir.join("cases.txt"), results.iter().map(of_stage).collect::<String>())
        })
        .with_context(|| format!("cannot write to {}", dir.display()))
}

fn summary(results: &[StageResult], took: Duration) -> ExitCode {
    let mut total = Counts::default();
    println!("\n== summary, after {:.0} s", took.as_secs_f64());
    for result in results {
        total.add(result.counts);
    }
    for line in summary::lines(results) {
        println!("{line}");
    }
    println!("\n{total}");
    ExitCode::from(u8::from(total.failed > 0 || total.passed == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_for_aarch64_alone_is_refused_with_the_commands_that_have_it() {
        let error = "7.2-16k".parse::<Kernels>().unwrap_err();
        for command in ["cargo xtask vm --arch aarch64 --kernel 7.2-16k", "cargo xtask test --only aarch64"] {
            assert!(error.contains(command), "{error}");
        }
        assert_eq!("all".parse(), Ok(Kernels::All));
        for series in &vm::kernel::SERIES {
            assert_eq!(series.name.parse(), Ok(Kernels::One(vm::kernel::Choice::Series(series))));
        }
    }
}
