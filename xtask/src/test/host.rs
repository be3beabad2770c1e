//! Stages on the host: formatting, lints, documentation, and every test that needs no device.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::part::Part;
use super::stage::{Counts, StageResult, stage};
use super::{commits, features, msrv, packages, prose};
use crate::arch::name_of;
use crate::sanitizer::{SANITIZERS, Sanitizer};
use crate::{aarch64, apt, c_abi, cargo, fuzz, musl, mutants, process};

/// A stage: its name and its work.
pub(super) type Stage = (&'static str, fn(&mut StageResult));

/// The stages for every commit that check the commit's form, in seconds and without a build.
pub(super) const TEXT: &[Stage] = &[
    ("formatting", |result| cargo_succeeds(&["fmt", "--all", "--check"], result)),
    ("commit messages", commits::check),
    ("comments", prose::check),
];

/// The stages for every commit that build the workspace in its own target folder. They run one
/// after another, because a build locks the folder.
pub(super) const WORKSPACE: &[Stage] = &[
    ("clippy", |result| {
        let all = ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet"];
        cargo_succeeds(&[&all as &[&str], &["--", "-D", "warnings"]].concat(), result);
    }),
    ("rustdoc", |result| cargo_succeeds(&["doc", "--workspace", "--no-deps", "--quiet"], result)),
    ("libraries without features", features::none),
    ("packages", packages::check),
    ("no crate that builds C", no_native_crates),
    ("symbols of libibverbs.so.1", |result| result.check(c_abi::build("dev").map(drop))),
    ("tests without a device", |result| {
        // Cases whose programs are missing are skipped, with the reason.
        if let Err(error) = apt::ensure_tools(&[apt::Tools::CBuild, apt::Tools::CPrograms]) {
            result.say(&format!("{error:#}"));
        }
        let mut command = cargo::command();
        command.args(["test", "--workspace", "--no-fail-fast"]).env("VERBS_TEST_VALGRIND", "1");
        host_tests(&mut command, result);
    }),
];

/// The stages for every commit that build elsewhere, except for one small program. They run beside
/// [`WORKSPACE`], which leaves a processor idle while it links and while a test waits.
pub(super) const BESIDE: &[Stage] = &[
    ("rings and tables under the model checker", |result| {
        for arguments in [
            &["--package", "verbs-core", "--test", "loom"] as &[&str],
            &["--package", "libibverbs-rs", "--lib", "models"],
            &["--package", "provider-soft", "--lib", "models"],
        ] {
            let mut command = cargo::command();
            // Uses a separate folder, because the flag applies to every crate and would rebuild all
            // of them each time.
            command.args(["test", "--target-dir", "target/loom"]).args(arguments);
            host_tests(command.env("RUSTFLAGS", "--cfg loom"), result);
        }
    }),
    ("barriers in the built code", |result| host_tests(cargo::command().args(aarch64::SITES), result)),
    ("barriers and the ConnectX provider on aarch64", |result| {
        on_aarch64(aarch64::Part::Sites, result);
        // Uses the profile of the barrier benchmark, so that dependencies are built once.
        if let Some(mut command) = result.needs("unit tests on aarch64", aarch64::command()) {
            command.args(["test", "--profile", "bench", "--package", "provider-mlx5", "--lib", "--"]);
            host_tests(command.args(aarch64::skips()), result);
            result.skip("unit tests that the emulator cannot run: the part `aarch64` of --whole names each");
        }
    }),
    ("static programs with musl in an empty root", |result| {
        let obstacle = musl::bare_root::obstacle().map_or(Ok(()), |why| Err(anyhow::anyhow!(why)));
        let ready = obstacle.and_then(|()| musl::command());
        if result.needs("static programs with musl in an empty root", ready).is_some() {
            let tools = musl::build_tools();
            let checked = tools.and_then(|tools| musl::bare_root::check(&tools, &mut each_program(result)));
            result.must(checked);
        }
    }),
    ("instructions of the ConnectX data path", |result| {
        let tools = apt::ensure_tools(&[apt::Tools::CPrograms]);
        if result.needs("callgrind", tools).is_some() {
            cargo_succeeds(
                &["bench", "--package", "provider-mlx5", "--bench", "paper_queues", "--", "--check"],
                result,
            );
        }
    }),
    ("mutants of the ConnectX provider, a few", |result| {
        mutants_are_killed(mutants::mlx5::check(mutants::mlx5::FEW, 1), result);
    }),
    ("10,000 simulated fabrics", |result| simulate("roce", "ROCE_SIM_SEEDS", "10000", result)),
    ("10,000 simulated networks that connect", |result| {
        simulate("ib-cm", "IB_CM_SIM_SEEDS", "10000", result);
    }),
    ("fuzz targets, for a moment", |result| fuzz_each(FUZZ_SECONDS, result)),
    ("random calls under sanitizers, for a moment", |result| {
        SANITIZERS.into_iter().for_each(|sanitizer| random_calls(sanitizer, SANITIZER_SECONDS, result));
        if result.counts.skipped == SANITIZERS.len() as u64 {
            // Otherwise these calls would run nowhere.
            result.check(fuzz::check(fuzz::API, FUZZ_SECONDS));
        }
    }),
    // Comes last, because it runs some of the workspace's tests, which the other lane builds.
    ("libibverbs.so.1 as it is shipped", shipped),
    ("programs that others wrote, a few", |result| programs(&["--few"], result)),
];

/// Returns the stages in a part of `--whole`: those that build in the workspace's folder, and those
/// that build elsewhere.
pub(super) fn of_part(part: Part) -> (&'static [Stage], &'static [Stage]) {
    match part {
        Part::Builds => (
            &[("features, each alone", features::each)],
            &[
                ("the oldest Rust that is stated", msrv::check),
                ("tests of static programs with musl", |result| {
                    if let Some(mut command) = result.needs("static programs with musl", musl::tests()) {
                        host_tests(&mut command, result);
                    }
                }),
            ],
        ),
        Part::Fuzz => (
            &[
                ("100,000 simulated fabrics", |result| simulate("roce", "ROCE_SIM_SEEDS", "100000", result)),
                ("100,000 simulated networks that connect", |result| {
                    simulate("ib-cm", "IB_CM_SIM_SEEDS", "100000", result);
                }),
                ("random calls", |result| result.check(fuzz::check(fuzz::API, LONG_SECONDS))),
            ],
            &[("fuzz targets", |result| fuzz_each(LONG_SECONDS, result))],
        ),
        Part::Sanitizers => (
            // One after another, because some tests measure how much threads do in a given time.
            &[
                ("AddressSanitizer", |result| under_sanitizer(Sanitizer::Address, result)),
                ("ThreadSanitizer", |result| under_sanitizer(Sanitizer::Thread, result)),
            ],
            &[],
        ),
        Part::Mutants => (
            &[("mutants of the ConnectX provider, all", |result| {
                mutants_are_killed(mutants::mlx5::check(&[], 2), result);
            })],
            &[],
        ),
        Part::Aarch64 => (
            &[],
            &[
                ("unit tests on aarch64", |result| on_aarch64(aarch64::Part::Units, result)),
                ("conformance and programs on aarch64", |result| {
                    on_aarch64(aarch64::Part::Conformance, result);
                    on_aarch64(aarch64::Part::Programs, result);
                }),
            ],
        ),
        Part::Programs => (&[("programs that others wrote", |result| programs(&[], result))], &[]),
        _ => (&[], &[]),
    }
}

/// Runs stages one after another and begins their tests' lines with `prefix`.
pub(super) fn run(stages: &[Stage], prefix: &'static str) -> Vec<StageResult> {
    let one = |&(name, work): &Stage| {
        stage(name, |result| {
            result.prefix = prefix.to_owned();
            work(result);
        })
    };
    stages.iter().map(one).collect()
}

/// Runs a package's simulations with `seeds` seeds.
fn simulate(package: &str, variable: &str, seeds: &str, result: &mut StageResult) {
    let mut command = cargo::command();
    command.args(["test", "--release", "--package", package, "--test", "sim"]);
    host_tests(command.env(variable, seeds), result);
}

/// Runs each libFuzzer target for `seconds`.
fn fuzz_each(seconds: u64, result: &mut StageResult) {
    // If tools are missing, the targets are skipped. Otherwise each target must build and run.
    let tools = apt::ensure_tools(&[apt::Tools::Fuzz]);
    if result.needs("fuzz targets", tools).is_some() {
        let targets = fuzz::TARGETS.into_iter().filter(|target| *target != fuzz::API);
        targets.for_each(|target| result.check(fuzz::check(target, seconds)));
    }
}

/// Makes random calls under a sanitizer for `seconds`.
fn random_calls(sanitizer: Sanitizer, seconds: u64, result: &mut StageResult) {
    let name = format!("random calls under the {} sanitizer", name_of(sanitizer));
    if result.needs(&name, sanitizer.cargo()).is_some() {
        result.check(fuzz::api(seconds, None, Some(sanitizer)));
    }
}

/// Runs the libraries' tests under a sanitizer and makes random calls.
fn under_sanitizer(sanitizer: Sanitizer, result: &mut StageResult) {
    let name = format!("tests under the {} sanitizer", name_of(sanitizer));
    if let Some(mut command) = result.needs(&name, sanitizer.tests()) {
        host_tests(&mut command, result);
    }
    random_calls(sanitizer, LONG_SECONDS, result);
}

/// Records the number of killed mutants and the problems of the others.
fn mutants_are_killed(judged: Result<(u64, Vec<String>)>, result: &mut StageResult) {
    let Some((killed, problems)) = result.must(judged) else { return };
    result.counts.passed += killed;
    problems.into_iter().for_each(|problem| result.fail(problem));
}

/// Runs a part of the tests for another architecture in an emulator.
fn on_aarch64(part: aarch64::Part, result: &mut StageResult) {
    // If requirements are missing, the part is skipped. Otherwise it must build and run.
    let tests = part.prepare().and_then(|()| part.tests());
    let Some(tests) = result.needs(&format!("{part:?} on aarch64"), tests) else { return };
    part.left_out().iter().for_each(|(test, why)| result.skip(format!("{test}: {why}")));
    if let Some(mut command) = tests {
        return host_tests(&mut command, result);
    }
    let checked = aarch64::check_programs(&mut each_program(result));
    checked.unwrap_or_else(|error| result.fail(format!("{part:?} on aarch64: {error:#}")));
}

/// Returns a function that records a program's result.
fn each_program(result: &mut StageResult) -> impl FnMut(&str, Result<()>) {
    |name, outcome| {
        result.say(name);
        result.check(outcome.with_context(|| name.to_owned()));
    }
}

/// Runs third-party programs with a script that prints the results of its checks.
fn programs(arguments: &[&str], result: &mut StageResult) {
    host_tests(Command::new(cargo::root().join("tests/programs/run")).args(arguments), result);
}

/// Runs cargo as a check, which passes if cargo succeeds.
fn cargo_succeeds(arguments: &[&str], result: &mut StageResult) {
    let mut command = cargo::command();
    result.check(process::run(command.args(arguments).env("RUSTDOCFLAGS", "-D warnings")));
}

/// Cases of `c-abi/tests/programs`, one per line, that run on the library as it is shipped: a tool,
/// ping-pongs, perftest, librdmacm (which shows that our libraries were loaded), and C programs,
/// including one that loads and unloads the library. All cases run on the dev profile's library,
/// under valgrind too. In an optimised library, valgrind would report branches on the unused memory
/// of `None` as errors.
const SHIPPED: &str = include_str!("shipped.txt");

/// The number of bytes that a call may use of its thread's stack. The smallest thread stack has 16
/// KiB, and glibc itself uses 4.5 KiB of the limit.
const STACK: &str = "15360";

/// Tests what `cargo xtask c-abi --deb` writes: the package with lintian, and the libraries with
/// the cases in [`SHIPPED`].
fn shipped(result: &mut StageResult) {
    let Some(made) = result.must(c_abi::shipped::make()) else { return };
    match made.package.map(|package| c_abi::shipped::lintian(&package)) {
        None => result.skip("no package without dpkg-deb (package dpkg)"),
        Some(Ok(Some(findings))) if findings.is_empty() => result.counts.passed += 1,
        Some(Ok(Some(findings))) => findings.into_iter().for_each(|finding| result.fail(finding)),
        Some(Ok(None)) => result.skip("lintian is not installed (package lintian)"),
        Some(Err(error)) => result.fail(format!("{error:#}")),
    }
    let mut missing: Vec<_> = SHIPPED.lines().collect();
    // Names the whole workspace, because cargo builds nothing again for the same set of packages.
    let mut command = cargo::command();
    command.args(["test", "--workspace", "--test", "programs", "--", "--exact"]).args(SHIPPED.lines());
    command.env("VERBS_C_ABI_DIR", made.libraries).env("VERBS_TEST_STACK", STACK);
    command.env("VERBS_TEST_VALGRIND", "1");
    host_tests_with(&mut command, result, |line| missing.retain(|case| !is_of(line, case)));
    for case in missing {
        result.fail(format!("there is no case {case:?}"));
    }
}

/// Returns whether a line is the result of this case: `ok NAME` or `skip NAME: why`.
fn is_of(line: &str, case: &str) -> bool {
    let rest = line.split_once(' ').and_then(|(_, name)| name.strip_prefix(case));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}

/// The time for random calls under a sanitizer, in seconds. A sanitizer slows the calls down.
const SANITIZER_SECONDS: u64 = 20;

/// The time for each fuzz target, in seconds: enough to run the committed inputs.
const FUZZ_SECONDS: u64 = 5;

/// The time for each target and sanitizer in `--whole`, in seconds.
const LONG_SECONDS: u64 = 240;

/// Crates whose presence means that the build uses a C compiler or a C library.
const NATIVE: &[&str] = &["bindgen", "cc", "cmake", "pkg-config", "vcpkg"];

fn no_native_crates(result: &mut StageResult) {
    let arguments = ["tree", "--workspace", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
    let tree = process::output(cargo::command().args(arguments));
    result.check(tree.and_then(|tree| {
        let found = native_crates(&tree);
        ensure!(found.is_empty(), "the dependencies contain {}", found.join(", "));
        Ok(())
    }));
}

fn native_crates(tree: &str) -> Vec<&str> {
    let mut found: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    found.retain(|name| NATIVE.contains(name));
    found.sort_unstable();
    found.dedup();
    found
}

fn host_tests(command: &mut Command, result: &mut StageResult) {
    host_tests_with(command, result, |_| {});
}

/// Runs a test command and calls `each` with each output line.
fn host_tests_with(command: &mut Command, result: &mut StageResult, mut each: impl FnMut(&str)) {
    let mut seen = Counts::default();
    let status = result.follow(command, |line, result| {
        each(line);
        if let Some(counts) = Counts::parse_test_result(line).or_else(|| Counts::parse(line)) {
            seen.add(counts);
        } else if ["ok ", "FAIL ", "skip "].iter().any(|verdict| line.starts_with(verdict)) {
            // The test program runs cases, as guests do.
            result.case(line);
        } else if let Some((name, verdict)) =
            line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
        {
            match verdict.strip_prefix("ignored") {
                Some(why) => result.notes.push(format!("skip {name}: ignored{why}")),
                None if verdict == "FAILED" => result.notes.push(format!("FAIL {name}")),
                None => {}
            }
        } else if has_died(line) {
            // The remaining tests of this program are not counted.
            result.fail(line.trim().to_owned());
        }
    });
    result.counts.add(seen);
    let why = match status {
        Ok(status) => no_verdict(status == Some(0), seen).map(str::to_owned),
        Err(error) => Some(format!("{error:#}")),
    };
    if let Some(why) = why {
        let arguments: Vec<_> = command.get_args().map(|one| one.to_string_lossy()).collect();
        result.fail(format!("{} {}: {why}", command.get_program().display(), arguments.join(" ")));
    }
}

/// Returns whether cargo reports a test program that ended without counting its failed tests.
fn has_died(line: &str) -> bool {
    line.trim_start().starts_with("process didn't exit successfully")
        && !["(exit status: 1)", "(exit status: 101)"].iter().any(|status| line.ends_with(status))
}

/// Returns the reason why the counts of a test command do not show its result.
fn no_verdict(succeeded: bool, seen: Counts) -> Option<&'static str> {
    match (succeeded, seen) {
        (false, Counts { failed: 0, .. }) => Some("failed without a failing test: see above"),
        // cargo succeeds if a filter matches no test.
        (true, Counts { passed: 0, .. }) => Some("no test passed: its filter may match none"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_test_results_are_counted() {
        let line = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(Counts::parse_test_result(line), Some(Counts { passed: 12, failed: 2, skipped: 1 }));
        assert_eq!(Counts::parse_test_result("test result: rubbish"), None);
    }

    #[test]
    fn a_result_is_of_the_case_with_the_whole_name() {
        assert!(is_of("ok c.unload", "c.unload") && is_of("FAIL c.unload: why", "c.unload"));
        assert!(!is_of("ok c.unload under valgrind", "c.unload") && !is_of("c.unload", "c.unload"));
    }

    #[test]
    fn a_program_that_died_is_told_from_one_with_failed_tests() {
        let line = |status| format!("  process didn't exit successfully: `/x/device-1` ({status})");
        assert!(has_died(&line("exit status: 66")) && has_died(&line("signal: 6, SIGABRT")));
        assert!(!has_died(&line("exit status: 101")) && !has_died(&line("exit status: 1")));
        assert!(!has_died("test result: ok."));
    }

    #[test]
    fn a_command_that_ran_no_test_fails() {
        let counts = |passed, failed| Counts { passed, failed, skipped: 1 };
        assert!(no_verdict(true, counts(0, 0)).is_some());
        assert_eq!(no_verdict(true, counts(1, 0)), None);
        assert!(no_verdict(false, counts(1, 0)).is_some());
        assert_eq!(no_verdict(false, counts(0, 1)), None);
    }

    #[test]
    fn crates_that_call_a_c_compiler_are_found_by_name() {
        let tree = "xtask v0.1.0 (/x)\npkg-config v0.3.0\ncc v1.0.0\nccm v1.0.0\ncc v1.0.0 (*)\n";
        assert_eq!(native_crates(tree), ["cc", "pkg-config"]);
    }
}
