//! The host part: formatting, lints, documentation, and every test that needs no device.
//!
//! Two lanes after the [texts](TEXT): what builds in [the workspace's folder](WORKSPACE), and [what
//! builds elsewhere](BESIDE).

use std::process::{Command, Stdio};
use std::thread;

use super::stage::{Counts, StageResult, follow, stage};
use super::{commits, features, msrv, packages, prose};
use crate::sanitizer::SANITIZERS;
use crate::{aarch64, apt, c_abi, cargo, commit, fuzz, musl, mutants};

/// A stage: its name, the turns of commits that run it, and what it does.
type Stage = (&'static str, &'static [usize], fn(&mut StageResult));

/// All turns.
const EVERY: &[usize] = &[0, 1, 2, 3];

/// The stages that need seconds and no build: what a commit is looked at for.
const TEXT: &[Stage] = &[
    ("formatting", EVERY, |result| cargo_succeeds(&["fmt", "--all", "--check"], result)),
    ("commit messages", EVERY, commits::check),
    ("comments", EVERY, prose::check),
];

/// The stages that build the workspace in its own folder, one after the other, because a build
/// keeps others out of the folder.
const WORKSPACE: &[Stage] = &[
    ("clippy", EVERY, |result| {
        let all = ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet"];
        cargo_succeeds(&[&all as &[&str], &["--", "-D", "warnings"]].concat(), result);
    }),
    ("rustdoc", EVERY, |result| cargo_succeeds(&["doc", "--workspace", "--no-deps", "--quiet"], result)),
    ("features, each alone", EVERY, features::check),
    ("packages", EVERY, packages::check),
    ("no crate that builds C", EVERY, no_native_crates),
    ("symbols of libibverbs.so.1", EVERY, |result| match c_abi::build("dev") {
        Ok(_) => result.counts.passed += 1,
        Err(error) => result.fail(format!("{error:#}")),
    }),
    ("tests without a device", EVERY, |result| {
        // Cases whose programs are missing are skipped, with the reason.
        if let Err(error) = apt::ensure_tools(&[apt::C_BUILD, apt::C_PROGRAMS], |line| result.say(line)) {
            result.say(&format!("{error:#}"));
        }
        host_tests(cargo::command().args(["test", "--workspace", "--no-fail-fast"]), result);
    }),
];

/// The stages in the emulator of another architecture.
const UNITS_ON_AARCH64: Stage =
    ("unit tests on aarch64", &[1], |result| on_aarch64(aarch64::Part::Units, result));
const SUITES_ON_AARCH64: Stage = ("conformance and programs on aarch64", &[3], |result| {
    on_aarch64(aarch64::Part::Conformance, result);
    on_aarch64(aarch64::Part::Programs, result);
});

/// The stages that build elsewhere, except one small program. They run beside those of the
/// workspace, which leave a processor idle while they link, and while a test waits.
const BESIDE: &[Stage] = &[
    ("the oldest Rust that is stated", EVERY, msrv::check),
    ("rings and tables under the model checker", &[2], |result| {
        for arguments in [
            &["--package", "verbs-core", "--test", "loom"] as &[&str],
            &["--package", "libibverbs-rs", "--lib", "models"],
            &["--package", "provider-soft", "--lib", "models"],
        ] {
            let mut command = cargo::command();
            // A folder of its own: the flag applies to every crate, and would rebuild all of them
            // each time.
            command.args(["test", "--target-dir", "target/loom"]).args(arguments);
            host_tests(command.env("RUSTFLAGS", "--cfg loom"), result);
        }
    }),
    ("barriers in the built code", &[1], |result| {
        host_tests(cargo::command().args(aarch64::SITES), result);
        on_aarch64(aarch64::Part::Sites, result);
    }),
    UNITS_ON_AARCH64,
    SUITES_ON_AARCH64,
    ("static programs with musl", &[0], |result| {
        match musl::command() {
            Ok(mut command) => host_tests(command.args(musl::TESTS), result),
            Err(error) => return result.skip(format!("static programs with musl: {error:#}")),
        }
        if let Some(why) = musl::bare_root::obstacle() {
            return result.skip(format!("static programs in an empty root: {why}"));
        }
        match musl::build_tools().and_then(|tools| musl::bare_root::check(&tools)) {
            Ok(checks) => result.counts.passed += checks,
            Err(error) => result.fail(format!("{error:#}")),
        }
    }),
    ("instructions of the ConnectX data path", EVERY, |result| {
        if let Err(error) = apt::ensure_tools(&[apt::C_PROGRAMS], |line| result.say(line)) {
            return result.skip(format!("callgrind: {error:#}"));
        }
        cargo_succeeds(
            &["bench", "--package", "provider-mlx5", "--bench", "paper_queues", "--", "--check"],
            result,
        );
    }),
    ("mutants of the ConnectX provider, a few", EVERY, |result| match mutants::mlx5::check(MUTANTS) {
        Ok((killed, problems)) => {
            result.counts.passed += killed;
            problems.into_iter().for_each(|problem| result.fail(problem));
        }
        Err(error) => result.fail(format!("{error:#}")),
    }),
    ("10,000 simulated fabrics", EVERY, |result| {
        let mut command = cargo::command();
        command.args(["test", "--release", "--package", "roce", "--test", "sim"]);
        host_tests(command.env("ROCE_SIM_SEEDS", "10000"), result);
    }),
    ("10,000 simulated networks that connect", EVERY, |result| {
        let mut command = cargo::command();
        command.args(["test", "--release", "--package", "ib-cm", "--test", "sim"]);
        host_tests(command.env("IB_CM_SIM_SEEDS", "10000"), result);
    }),
    ("fuzz targets, for a moment", EVERY, |result| {
        let turn = commit::turn();
        // What is not to be had is skipped; what is there has to build and to run.
        let tools = apt::ensure_tools(&[apt::FUZZ_TOOLS], |line| result.say(line));
        for target in fuzz::TARGETS {
            if target == fuzz::API {
                // The sanitizers' stage has it.
                continue;
            }
            if turn.is_some_and(|turn| fuzz::turn_of(target) != turn) {
                let command = format!("cargo xtask fuzz {target}");
                result.skip(format!("the fuzz target {target}: other commits run it ({command})"));
                continue;
            }
            if let Err(error) = &tools {
                result.skip(format!("the fuzz target {target}: {error:#}"));
                continue;
            }
            match fuzz::check(target, FUZZ_SECONDS) {
                Ok(true) => result.counts.passed += 1,
                Ok(false) => result.fail(format!("the fuzz target {target} crashed")),
                Err(error) => result.fail(format!("the fuzz target {target}: {error:#}")),
            }
        }
    }),
    ("random calls under sanitizers, for a moment", EVERY, |result| {
        let mut has_run = false;
        for sanitizer in SANITIZERS {
            let name = sanitizer.name();
            if let Err(error) = sanitizer.cargo() {
                result.skip(format!("the {name} sanitizer: {error:#}"));
                continue;
            }
            has_run = true;
            match fuzz::check_under(sanitizer, SANITIZER_SECONDS) {
                Ok(None) => result.counts.passed += 1,
                Ok(Some(failed)) => {
                    result.fail(format!("random calls failed under the {name} sanitizer: {failed}"));
                }
                Err(error) => result.fail(format!("the {name} sanitizer: {error:#}")),
            }
        }
        if !has_run {
            // They would run nowhere.
            match fuzz::check(fuzz::API, FUZZ_SECONDS) {
                Ok(true) => result.counts.passed += 1,
                Ok(false) => result.fail("random calls failed"),
                Err(error) => result.fail(format!("random calls: {error:#}")),
            }
        }
    }),
    // Last, when the other lane has built the workspace's tests, of which it runs some.
    ("libibverbs.so.1 as it is shipped", &[1, 3], shipped),
];

/// Runs every stage of the host part, and `last` behind those that build elsewhere.
pub(super) fn stages(last: impl FnOnce() + Send) -> Vec<StageResult> {
    let mut results = text();
    let (workspace, beside) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let results = run(BESIDE, "[beside] ");
            last();
            results
        });
        let workspace = run(WORKSPACE, "");
        (workspace, beside.join())
    });
    results.extend(workspace);
    results.extend(beside.unwrap_or_else(|_| {
        vec![stage("stages beside", |result| result.fail("one of them panicked: see above"))]
    }));
    results
}

/// Runs the stages of another architecture in the emulator.
pub(super) fn aarch64() -> Vec<StageResult> {
    let sites: Stage =
        ("barriers in the built code of aarch64", EVERY, |result| on_aarch64(aarch64::Part::Sites, result));
    run(&[sites, UNITS_ON_AARCH64, SUITES_ON_AARCH64], "")
}

/// Runs the stages that need no build.
pub(super) fn text() -> Vec<StageResult> {
    run(TEXT, "")
}

/// Runs stages one after the other, and begins the lines of their tests with `prefix`.
fn run(stages: &[Stage], prefix: &'static str) -> Vec<StageResult> {
    let turn = commit::turn();
    let one = |&(name, turns, work): &Stage| {
        stage(name, |result| {
            result.prefix = prefix;
            match turn {
                Some(turn) if !turns.contains(&turn) => {
                    result.skip(format!("{name}: other commits have it (cargo xtask test --whole)"));
                }
                _ => work(result),
            }
        })
    };
    stages.iter().map(one).collect()
}

/// Runs a part of the tests for another architecture, in an emulator.
fn on_aarch64(part: aarch64::Part, result: &mut StageResult) {
    // What is not to be had is skipped; what is there has to build and to run.
    if let Err(error) = part.prepare() {
        return result.skip(format!("{part:?} on aarch64: {error:#}"));
    }
    let ran = part.run(|each| match each {
        aarch64::Step::Cargo(command) => host_tests(command, result),
        aarch64::Step::Case(name, Ok(())) => {
            result.say(&format!("ok {name}"));
            result.counts.passed += 1;
        }
        aarch64::Step::Case(name, Err(why)) => result.fail(format!("{name}: {why:#}")),
        aarch64::Step::Skipped(name, why) => result.skip(format!("{name}: {why}")),
    });
    if let Err(error) = ran {
        result.fail(format!("{part:?} on aarch64: {error:#}"));
    }
}

/// Runs cargo: a check that its status tells.
fn cargo_succeeds(arguments: &[&str], result: &mut StageResult) {
    match cargo::command().args(arguments).env("RUSTDOCFLAGS", "-D warnings").status() {
        Ok(status) if status.success() => result.counts.passed += 1,
        Ok(status) => result.fail(format!("cargo {}: {status}", arguments.join(" "))),
        Err(error) => result.fail(format!("cannot run cargo: {error}")),
    }
}

/// Cases of `c-abi/tests/programs` that run on the library as it is shipped: a tool, ping-pongs,
/// perftest, librdmacm (which shows that the libraries are those that were loaded), and C programs,
/// among them one that loads and unloads the library. All cases run on that of the dev profile,
/// under valgrind too, which takes optimised branches on unused memory of `None` for errors.
const SHIPPED: &[&str] = &[
    "ibverbs-utils.devinfo_shows_an_active_port_and_its_gid",
    "ibverbs-utils.rc -c -s 4096",
    "ibverbs-utils.xsrq -s 4096",
    "perftest.ib_write_bw -c RC -s 65536",
    "perftest.ib_send_lat -c UD -e --use-srq -s 1024",
    "librdmacm.rping -C 10 -v -V connects",
    "librdmacm.programs_load_our_librdmacm",
    "c.cancel",
    "c.connections",
    "c.destroy_order",
    "c.destroy_order under AddressSanitizer",
    "c.refused",
    "c.shared_queues",
    "c.unload",
    "c.unload under AddressSanitizer",
];

/// Tests the package of `cargo xtask c-abi --deb`: its libraries, and its form.
fn shipped(result: &mut StageResult) {
    let made = match c_abi::shipped::make() {
        Ok(made) => made,
        Err(error) => return result.fail(format!("{error:#}")),
    };
    match made.package.map(|package| c_abi::shipped::lintian(&package)) {
        None => result.skip("no package without dpkg-deb (package dpkg)"),
        Some(Ok(Some(findings))) if findings.is_empty() => result.counts.passed += 1,
        Some(Ok(Some(findings))) => findings.into_iter().for_each(|finding| result.fail(finding)),
        Some(Ok(None)) => result.skip("lintian is not installed (package lintian)"),
        Some(Err(error)) => result.fail(format!("{error:#}")),
    }
    let mut missing = SHIPPED.to_vec();
    // The whole workspace, because cargo builds nothing again for the same set of packages.
    let mut command = cargo::command();
    command.args(["test", "--workspace", "--test", "programs", "--", "--exact"]).args(SHIPPED);
    command.env("VERBS_C_ABI_DIR", made.libraries);
    host_tests_with(&mut command, result, |line| missing.retain(|case| !is_of(line, case)));
    for case in missing {
        result.fail(format!("there is no case {case:?}"));
    }
}

/// Returns whether a line is the result of a case: `ok NAME`, or `skip NAME: why`.
fn is_of(line: &str, case: &str) -> bool {
    let rest = line.split_once(' ').and_then(|(_, name)| name.strip_prefix(case));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}

/// The number of mutants, each of which costs a build of the provider's tests. Every commit has
/// others.
const MUTANTS: usize = 2;

/// Twice as long as without a sanitizer, which slows the calls down.
const SANITIZER_SECONDS: u64 = 20;

/// Enough to run the committed inputs and to see that the targets work; `cargo xtask fuzz` runs
/// longer.
const FUZZ_SECONDS: u64 = 10;

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
                result.fail(format!("the dependencies contain {}", found.join(", ")));
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
    host_tests_with(command, result, |_| {});
}

/// Runs a test command, and calls `each` with each line that it prints.
fn host_tests_with(command: &mut Command, result: &mut StageResult, mut each: impl FnMut(&str)) {
    let mut seen = Counts::default();
    let status = follow(command, |line| {
        each(line);
        if let Some(counts) = parse_test_result(line).or_else(|| Counts::parse(line)) {
            seen.add(counts);
        } else if ["ok ", "FAIL ", "skip "].iter().any(|verdict| line.starts_with(verdict)) {
            // A test program that runs cases like the guest.
            result.case(line);
        } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            result.notes.push(format!("FAIL {name}"));
        } else if let Some((name, why)) =
            line.strip_prefix("test ").and_then(|l| l.split_once(" ... ignored"))
        {
            let why = why.trim_start_matches(", ");
            result.notes.push(format!("skip {name}: {}", if why.is_empty() { "ignored" } else { why }));
        }
        result.say(line);
    });
    result.counts.add(seen);
    match status {
        Ok(succeeded) => {
            if let Some(why) = no_verdict(succeeded, seen) {
                let arguments: Vec<_> = command.get_args().map(|one| one.to_string_lossy()).collect();
                result.fail(format!("cargo {}: {why}", arguments.join(" ")));
            }
        }
        Err(error) => result.fail(format!("{error:#}")),
    }
}

/// Returns why the counts of a test command do not tell its result.
fn no_verdict(succeeded: bool, seen: Counts) -> Option<&'static str> {
    match (succeeded, seen) {
        (false, Counts { failed: 0, .. }) => Some("failed without a failing test: see above"),
        // A filter that matches no test is no failure for cargo.
        (true, Counts { passed: 0, .. }) => Some("no test passed: its filter may match none"),
        _ => None,
    }
}

/// Parses `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in
/// 0.1s`.
fn parse_test_result(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |name: &str| {
        rest.split("; ").find_map(|part| part.strip_suffix(name)?.trim_end().parse::<u64>().ok())
    };
    Some(Counts { passed: number("passed")?, failed: number("failed")?, skipped: number("ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_test_results_are_counted() {
        let line = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(parse_test_result(line), Some(Counts { passed: 12, failed: 2, skipped: 1 }));
        assert_eq!(parse_test_result("test result: rubbish"), None);
    }

    #[test]
    fn a_result_is_of_the_case_with_the_whole_name() {
        assert!(is_of("ok c.unload", "c.unload") && is_of("FAIL c.unload: why", "c.unload"));
        assert!(!is_of("ok c.unload under valgrind", "c.unload") && !is_of("c.unload", "c.unload"));
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
        let tree = "xtask v0.1.0 (/x)\ncc v1.0.0\nccm v1.0.0\ncc v1.0.0 (*)\npkg-config v0.3.0\n";
        assert_eq!(native_crates(tree), ["cc v1.0.0", "pkg-config v0.3.0"]);
    }
}
