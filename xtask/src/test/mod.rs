//! `cargo xtask test`: everything that can be checked, and one line that says how it went.
//!
//! | part | stages |
//! |---|---|
//! | host | formatting, clippy, rustdoc, crates that build C, the workspace's tests, the model checker ([`host`]) |
//! | vm | the guest suites on every kernel: on rxe, then on the ConnectX model with either port ([`guest`]) |
//!
//! Kernels are downloaded while the host part runs.
//!
//! Invariant: what did not run is counted and shown as skipped, with the reason; in CI it is a failure.

mod guest;
mod host;

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::vm;

/// Runs every check.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kernels for the guest suites [default: 5.10 (not with mlx5), 6.1, 6.12 and 7.2]
    #[arg(long, value_name = "KERNEL")]
    kernel: Vec<vm::kernel::Choice>,

    /// The guests' device [default: rxe, then mlx5]
    #[arg(long, value_enum)]
    device: Option<vm::Device>,

    /// The kind of port of mlx5 devices [default: ib, then roce]
    #[arg(long, value_enum)]
    port: Option<vm::connectx::Port>,

    /// Run one part only
    #[arg(long, value_enum)]
    only: Option<Part>,

    /// Seconds that the guest suites may take in one guest
    #[arg(long, default_value_t = 1200, value_name = "SECS")]
    timeout: u64,

    /// Guest suites to run, of rxe unless --device says otherwise; all by default
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
}

/// What `--only` accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Part {
    /// Formatting, lints, documentation, tests without a device
    Host,
    /// The guest suites
    Vm,
}

/// Runs `ci`: `test`, where a VM must be had.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_ci(args: &Args) -> Result<ExitCode> {
    run_with(args, true)
}

/// Runs `test`.
///
/// # Errors
/// cargo cannot be run. A check that fails is no error here but is counted.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    run_with(args, std::env::var_os("CI").is_some_and(|v| v == "true" || v == "1"))
}

fn run_with(args: &Args, vm_required: bool) -> Result<ExitCode> {
    let started = Instant::now();
    let guests = if args.only == Some(Part::Host) { Vec::new() } else { guest::plan(args) };
    let results = thread::scope(|scope| -> Result<Vec<StageResult>> {
        let prepared = {
            let guests = &guests;
            scope.spawn(move || guest::prepare(guests))
        };
        let mut results = if args.only == Some(Part::Vm) { Vec::new() } else { host::stages() };
        let ready = prepared
            .join()
            .unwrap_or_else(|_| guests.iter().map(|_| Err("preparing it panicked".to_owned())).collect());
        results.extend(guest::stages(args, &guests, &ready, vm_required));
        Ok(results)
    })?;
    Ok(summary(&results, started.elapsed()))
}

/// How many of what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Counts {
    /// Reads `N passed, N failed, N skipped`.
    fn parse(line: &str) -> Option<Counts> {
        let mut words = line.trim().split(", ").map(|part| part.split_once(' '));
        let mut next = |name: &str| match words.next()? {
            Some((number, word)) if word == name => number.parse().ok(),
            _ => None,
        };
        let counts = Counts { passed: next("passed")?, failed: next("failed")?, skipped: next("skipped")? };
        words.next().is_none().then_some(counts)
    }

    fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// What one stage came to.
#[derive(PartialEq, Eq, Debug, Default)]
struct StageResult {
    name: String,
    counts: Counts,
    took: Duration,
    /// Lines about what failed and what was skipped, for the summary.
    notes: Vec<String>,
}

impl StageResult {
    fn fail(&mut self, why: impl Into<String>) {
        self.counts.failed += 1;
        self.notes.push(format!("FAIL {}", why.into()));
    }

    fn skip(&mut self, why: impl Into<String>) {
        self.counts.skipped += 1;
        self.notes.push(format!("skip {}", why.into()));
    }
}

/// Runs a stage between a line that announces it and its time.
fn stage(name: &str, work: impl FnOnce(&mut StageResult)) -> StageResult {
    println!("== {name}");
    let started = Instant::now();
    let mut result = StageResult { name: name.to_owned(), ..StageResult::default() };
    work(&mut result);
    result.took = started.elapsed();
    result
}

/// Runs a command and calls `line` for each line of its stdout. Whether it succeeded.
fn follow(command: &mut Command, mut line: impl FnMut(&str)) -> Result<bool> {
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run {command:?}"))?;
    if let Some(stdout) = child.stdout.take() {
        for_lines(stdout, &mut line);
    }
    Ok(child.wait()?.success())
}

fn for_lines(pipe: impl Read, line: &mut impl FnMut(&str)) {
    let mut reader = BufReader::new(pipe);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
        line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
        bytes.clear();
    }
}

fn summary(results: &[StageResult], took: Duration) -> ExitCode {
    let mut total = Counts::default();
    println!("\n== summary, after {:.0} s", took.as_secs_f64());
    for result in results {
        total.add(result.counts);
        println!("{:32} {} ({:.0} s)", result.name, result.counts, result.took.as_secs_f64());
        for note in &result.notes {
            println!("    {note}");
        }
    }
    println!("\n{total}");
    ExitCode::from(u8::from(total.failed > 0 || total.passed == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closing_line_is_read_back_and_nothing_else_is_taken_for_one() {
        let line = Counts { passed: 12, failed: 0, skipped: 3 }.to_string();
        assert_eq!(line, "12 passed, 0 failed, 3 skipped");
        assert_eq!(Counts::parse(&line), Some(Counts { passed: 12, failed: 0, skipped: 3 }));
        for wrong in
            ["", "12 passed", "1 passed, 2 failed, 3 skipped, 4 more", "a passed, 0 failed, 0 skipped"]
        {
            assert_eq!(Counts::parse(wrong), None, "{wrong}");
        }
    }
}
