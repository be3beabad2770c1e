//! `cargo xtask test`: everything that can be checked, and one line that says how it went.
//!
//! | part | stages |
//! |---|---|
//! | host | formatting, clippy, rustdoc, crates that build C, the workspace's tests, the model checker |
//! | vm | the guest suites (`guest`, a binary of verbs-tests) on every kernel, two guests at a time |
//!
//! A guest suite prints `ok NAME`, `FAIL NAME: why` and `skip NAME: why` lines and ends with the closing line that this
//! command ends with as well. Kernels are downloaded while the host part runs.
//!
//! Invariant: what did not run is counted and shown as skipped, with the reason; in CI it is a failure.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::{apt, cargo, fuzz, vm};

/// Runs every check.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kernels for the guest suites [default: 5.10, 6.1, 6.12 and 7.2]
    #[arg(long, value_name = "KERNEL")]
    kernel: Vec<vm::kernel::Choice>,

    /// The guests' device
    #[arg(long, value_enum, default_value_t = vm::Device::Rxe)]
    device: vm::Device,

    /// Run one part only
    #[arg(long, value_enum)]
    only: Option<Part>,

    /// Seconds that the guest suites may take on one kernel
    #[arg(long, default_value_t = 1200, value_name = "SECS")]
    timeout: u64,

    /// Guest suites to run; all by default
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
    let kernels = if args.kernel.is_empty() {
        vm::kernel::SERIES.iter().map(vm::kernel::Choice::Series).collect()
    } else {
        args.kernel.clone()
    };
    let (host, guests) = (args.only != Some(Part::Vm), args.only != Some(Part::Host));
    let results = thread::scope(|scope| -> Result<Vec<StageResult>> {
        let prepared = guests.then(|| {
            let kernels = &kernels;
            scope.spawn(move || kernels.iter().map(prepare).collect::<Vec<_>>())
        });
        let mut results = if host { host_stages() } else { Vec::new() };
        if let Some(thread) = prepared {
            let ready = thread.join().unwrap_or_else(|_| {
                kernels.iter().map(|_| Err("preparing it panicked".to_owned())).collect()
            });
            results.extend(guest_stages(args, &kernels, &ready, vm_required));
        }
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

fn host_stages() -> Vec<StageResult> {
    let doc: &[&str] = &["doc", "--workspace", "--no-deps", "--quiet"];
    let clippy: &[&str] =
        &["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"];
    let mut results = Vec::new();
    for (name, arguments) in
        [("formatting", &["fmt", "--all", "--check"] as &[&str]), ("clippy", clippy), ("rustdoc", doc)]
    {
        results.push(stage(name, |result| {
            let mut command = cargo::command();
            command.args(arguments).env("RUSTDOCFLAGS", "-D warnings");
            match command.status() {
                Ok(status) if status.success() => result.counts.passed += 1,
                Ok(status) => result.fail(format!("cargo {}: {status}", arguments.join(" "))),
                Err(error) => result.fail(format!("cannot run cargo: {error}")),
            }
        }));
    }
    results.push(stage("no crate that builds C", no_native_crates));
    results.push(stage("tests without a device", |result| {
        host_tests(cargo::command().args(["test", "--workspace", "--no-fail-fast"]), result);
    }));
    results.push(stage("rings under the model checker", |result| {
        let mut command = cargo::command();
        // A folder of its own: the flag reaches every crate, and would have all of them built again each time.
        command.args(["test", "--package", "verbs-core", "--test", "loom", "--target-dir", "target/loom"]);
        host_tests(command.env("RUSTFLAGS", "--cfg loom"), result);
        let mut command = cargo::command();
        command.args([
            "test",
            "--package",
            "provider-soft",
            "--lib",
            "--target-dir",
            "target/loom",
            "models",
        ]);
        host_tests(command.env("RUSTFLAGS", "--cfg loom"), result);
    }));
    results.push(stage("10,000 simulated fabrics", |result| {
        let mut command = cargo::command();
        command.args(["test", "--release", "--package", "roce", "--test", "sim"]);
        host_tests(command.env("ROCE_SIM_SEEDS", "10000"), result);
    }));
    results.push(stage("fuzz targets, for a moment", |result| {
        for target in fuzz::TARGETS {
            match fuzz::check(target, FUZZ_SECONDS) {
                Ok(true) => result.counts.passed += 1,
                Ok(false) => result.fail(format!("the fuzz target {target} crashed")),
                Err(error) => result.skip(format!("the fuzz target {target}: {error:#}")),
            }
        }
    }));
    results
}

/// Enough to run the committed inputs and to see that the targets work; `cargo xtask fuzz` is for longer.
const FUZZ_SECONDS: u64 = 20;

/// Crates whose presence means that a C compiler or a C library takes part in the build.
const NATIVE: &[&str] = &["bindgen", "cc", "cmake", "pkg-config", "vcpkg"];

fn no_native_crates(result: &mut StageResult) {
    let output = cargo::command()
        .args(["tree", "--workspace", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"])
        .stderr(Stdio::inherit())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let found = native_crates(&String::from_utf8_lossy(&output.stdout));
            if found.is_empty() {
                result.counts.passed += 1;
            } else {
                result.fail(format!("the dependencies hold {}", found.join(", ")));
            }
        }
        Ok(output) => result.fail(format!("cargo tree: {}", output.status)),
        Err(error) => result.fail(format!("cannot run cargo: {error}")),
    }
}

fn native_crates(tree: &str) -> Vec<String> {
    let mut found: Vec<String> = tree
        .lines()
        .filter(|line| line.split(' ').next().is_some_and(|name| NATIVE.contains(&name)))
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .collect();
    found.sort();
    found.dedup();
    found
}

fn host_tests(command: &mut Command, result: &mut StageResult) {
    let mut seen = Counts::default();
    let status = follow(command, |line| {
        if let Some(counts) = parse_test_result(line).or_else(|| Counts::parse(line)) {
            seen.add(counts);
        } else if line.starts_with("FAIL ") || line.starts_with("skip ") {
            // A test program that runs cases as the guest does.
            result.notes.push(line.to_owned());
        } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            result.notes.push(format!("FAIL {name}"));
        } else if let Some((name, why)) =
            line.strip_prefix("test ").and_then(|l| l.split_once(" ... ignored"))
        {
            let why = why.trim_start_matches(", ");
            result.notes.push(format!("skip {name}: {}", if why.is_empty() { "ignored" } else { why }));
        }
        println!("{line}");
    });
    result.counts.add(seen);
    match status {
        Ok(true) => {}
        Ok(false) if seen.failed > 0 => {}
        Ok(false) => result.fail("cargo test failed without a failing test: see above"),
        Err(error) => result.fail(format!("{error:#}")),
    }
}

/// `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s`
fn parse_test_result(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |name: &str| {
        rest.split("; ").find_map(|part| part.strip_suffix(name)?.trim_end().parse::<u64>().ok())
    };
    Some(Counts { passed: number("passed")?, failed: number("failed")?, skipped: number("ignored")? })
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

/// Gets everything that a guest with this kernel needs. The error says why there is none.
fn prepare(kernel: &vm::kernel::Choice) -> Result<(), String> {
    let progress = vm::Progress::new(false);
    apt::ensure_tools(&[apt::VM_TOOLS, apt::INTEROP_TOOLS], |line| progress.say(line))
        .and_then(|()| vm::Boot::prepare(kernel, vm::Device::Rxe, vm::Accel::Auto, &progress))
        .map(|_| ())
        .map_err(|error| format!("{error:#}"))
}

fn guest_stages(
    args: &Args,
    kernels: &[vm::kernel::Choice],
    ready: &[Result<(), String>],
    vm_required: bool,
) -> Vec<StageResult> {
    let mut results = Vec::new();
    let mut waiting = VecDeque::new();
    for (kernel, ready) in kernels.iter().zip(ready) {
        let name = format!("guest suites on {kernel}");
        match ready {
            Ok(()) => waiting.push_back((name, kernel)),
            Err(why) => {
                let mut result = StageResult { name, ..StageResult::default() };
                println!("== {}\nNOT RUN: no VM can be had: {why}", result.name);
                if vm_required {
                    result.fail(format!("no VM can be had: {why}"));
                } else {
                    result.skip(format!("no VM can be had: {why}"));
                }
                results.push(result);
            }
        }
    }
    if waiting.is_empty() {
        return results;
    }
    let mut bin_dir = None;
    let build = stage("building the guest suites", |result| {
        match cargo::build(&["--quiet", "--package", "verbs-tests", "--package", "rdma-tools", "--bins"]) {
            Ok(dir) if dir.join("guest").exists() => bin_dir = Some(dir),
            Ok(dir) => result.fail(format!("there is no {}", dir.join("guest").display())),
            Err(error) => result.fail(format!("{error:#}")),
        }
    });
    if let Some(bin_dir) = bin_dir {
        let static_builds = static_builds();
        results.push(static_builds.stage);
        let programs = Programs { bin_dir, static_dir: static_builds.glibc, musl_dir: static_builds.musl };
        // Two at a time: one guest alone leaves a processor idle for much of its boot.
        let (waiting, done) = (Mutex::new(waiting), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let Some((name, kernel)) = waiting.lock().ok().and_then(|mut w| w.pop_front()) else {
                            return;
                        };
                        let result = stage(&name, |result| guest_suites(args, kernel, &programs, result));
                        if let Ok(mut done) = done.lock() {
                            done.push(result);
                        }
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_default();
        let place =
            |result: &StageResult| kernels.iter().position(|k| result.name.ends_with(&format!(" {k}")));
        done.sort_by_key(place);
        results.extend(done);
    } else {
        results.push(build);
    }
    results
}

/// What the guest suites run.
struct Programs {
    bin_dir: PathBuf,
    /// The tools with the C library inside.
    static_dir: Option<PathBuf>,
    /// The same with musl, where its std is installed.
    musl_dir: Option<PathBuf>,
}

/// The tools as static programs, which the suites run in an empty root.
struct StaticBuilds {
    stage: StageResult,
    glibc: Option<PathBuf>,
    musl: Option<PathBuf>,
}

fn static_builds() -> StaticBuilds {
    let (mut glibc, mut musl) = (None, None);
    let stage = stage("building static tools", |result| {
        match cargo::build_static(&cargo::host_target(), "dev") {
            Ok(dir) => {
                result.counts.passed += 1;
                glibc = Some(dir);
            }
            Err(error) => result.fail(format!("{error:#}")),
        }
        let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        if !cargo::has_std(&target) {
            result.skip(format!(
                "static tools with musl: the std of {target} is not installed (rustup target add {target})"
            ));
            return;
        }
        match cargo::build_static(&target, "dev") {
            Ok(dir) => {
                result.counts.passed += 1;
                musl = Some(dir);
            }
            Err(error) => result.fail(format!("{error:#}")),
        }
    });
    StaticBuilds { stage, glibc, musl }
}

fn guest_suites(args: &Args, kernel: &vm::kernel::Choice, programs: &Programs, result: &mut StageResult) {
    let device = if args.device == vm::Device::Rxe { "rxe" } else { "none" };
    // By way of /proc, because the file may have been rebuilt since this process started.
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["vm", "--kernel", &kernel.to_string(), "--device", device])
        .args(["--timeout", &args.timeout.to_string(), "--env"])
        .arg(format!("VERBS_BIN_DIR={}", programs.bin_dir.display()));
    for (name, dir) in [("VERBS_STATIC_DIR", &programs.static_dir), ("VERBS_MUSL_DIR", &programs.musl_dir)] {
        if let Some(dir) = dir {
            command.arg("--env").arg(format!("{name}={}", dir.display()));
        }
    }
    command
        .arg("--")
        .arg(programs.bin_dir.join("guest"))
        .args(&args.suites)
        .current_dir(cargo::root())
        .stdin(Stdio::null());
    let mut seen = SuiteLines::default();
    let status = follow_guest(&mut command, &kernel.to_string(), |line| {
        seen.take(line, result);
    });
    match status {
        Ok(status) => seen.finish(status, result),
        Err(error) => result.fail(format!("{error:#}")),
    }
}

/// Shows a guest's stdout and stderr under the kernel's name, and returns its exit status.
fn follow_guest(command: &mut Command, kernel: &str, mut line: impl FnMut(&str)) -> Result<Option<i32>> {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot run xtask vm")?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        if let Some(stderr) = stderr {
            scope.spawn(move || for_lines(stderr, &mut |line| eprintln!("[{kernel}] {line}")));
        }
        if let Some(stdout) = stdout {
            for_lines(stdout, &mut |text: &str| {
                println!("[{kernel}] {text}");
                line(text);
            });
        }
    });
    Ok(child.wait()?.code())
}

/// What a guest's suites have said so far.
#[derive(Default)]
struct SuiteLines {
    counted: Counts,
    closing: Option<Counts>,
}

impl SuiteLines {
    fn take(&mut self, line: &str, result: &mut StageResult) {
        self.closing = Counts::parse(line);
        if line.starts_with("ok ") {
            self.counted.passed += 1;
        } else if line.starts_with("FAIL ") {
            self.counted.failed += 1;
            result.notes.push(line.to_owned());
        } else if line.starts_with("skip ") {
            self.counted.skipped += 1;
            result.notes.push(line.to_owned());
        }
    }

    fn finish(self, status: Option<i32>, result: &mut StageResult) {
        let counts = self.closing.unwrap_or(self.counted);
        result.counts.add(counts);
        match (status, self.closing) {
            (Some(0), Some(closing)) if closing != self.counted => {
                result.fail(format!("the closing line does not match the cases: {} were seen", self.counted));
            }
            (Some(0), Some(Counts { passed: 0, failed: 0, skipped: 0 })) => result.fail("no case was run"),
            (Some(0), Some(closing)) if closing.failed > 0 => {
                result.fail("cases failed, and the status is 0");
            }
            (Some(0), None) => result.fail("the guest's output has no closing line"),
            (Some(0), Some(_)) => {}
            (Some(124), _) => result.fail("the suites did not end in time"),
            (Some(125), _) => result.fail("the VM failed: see above"),
            (Some(_), Some(closing)) if closing.failed > 0 => {}
            (Some(status), _) => result.fail(format!("the suites ended with status {status}")),
            (None, _) => result.fail("xtask vm was killed"),
        }
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

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts { passed, failed, skipped }
    }

    #[test]
    fn a_closing_line_is_read_back_and_nothing_else_is_taken_for_one() {
        let line = counts(12, 0, 3).to_string();
        assert_eq!(line, "12 passed, 0 failed, 3 skipped");
        assert_eq!(Counts::parse(&line), Some(counts(12, 0, 3)));
        for wrong in
            ["", "12 passed", "1 passed, 2 failed, 3 skipped, 4 more", "a passed, 0 failed, 0 skipped"]
        {
            assert_eq!(Counts::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn cargos_test_results_are_counted() {
        let line = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(parse_test_result(line), Some(counts(12, 2, 1)));
        assert_eq!(parse_test_result("test result: rubbish"), None);
    }

    fn suite(lines: &[&str], status: Option<i32>) -> StageResult {
        let (mut seen, mut result) = (SuiteLines::default(), StageResult::default());
        for line in lines {
            seen.take(line, &mut result);
        }
        seen.finish(status, &mut result);
        result
    }

    #[test]
    fn a_guests_failures_and_skips_are_kept_with_their_reasons() {
        let lines = ["ok a", "FAIL b: why", "skip c: no device", "1 passed, 1 failed, 1 skipped"];
        let result = suite(&lines, Some(1));
        assert_eq!(result.counts, counts(1, 1, 1));
        assert_eq!(result.notes, ["FAIL b: why", "skip c: no device"]);
    }

    #[test]
    fn a_guest_that_dies_or_lies_is_one_more_failure() {
        let good = ["ok a", "1 passed, 0 failed, 0 skipped"];
        assert_eq!(suite(&good, Some(0)).counts, counts(1, 0, 0));
        for (lines, status) in [
            (&good[..1], Some(0)),
            (&good[..], Some(125)),
            (&good[..], Some(124)),
            (&good[..], Some(3)),
            (&good[..], None),
            (&["ok a", "ok b", "1 passed, 0 failed, 0 skipped"], Some(0)),
            (&["0 passed, 0 failed, 0 skipped"], Some(0)),
        ] {
            assert_eq!(suite(lines, status).counts.failed, 1, "{lines:?} {status:?}");
        }
    }

    #[test]
    fn crates_that_call_a_c_compiler_are_found_by_name() {
        let tree = "xtask v0.1.0 (/x)\ncc v1.0.0\nccm v1.0.0\ncc v1.0.0 (*)\npkg-config v0.3.0\n";
        assert_eq!(native_crates(tree), ["cc v1.0.0", "pkg-config v0.3.0"]);
    }
}
