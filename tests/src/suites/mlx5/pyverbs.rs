//! `pyverbs`: rdma-core's own test suite for Python, as packaged by Debian: one case, whose parts
//! are its tests.
//!
//! A test that skips gives its own reason, usually a missing feature of the device. The case
//! requires a minimum number of passed tests, and names some that must pass. The few tests in
//! [`IMPOSSIBLE`] fail on any device and count as skipped.
//!
//! If `VERBS_PYVERBS` names modules, such as `test_cq test_mr`, only their tests run.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Setup, device};
use crate::process::{self, Finished};
use crate::runner::{self, Case, CaseResult, Stop, fail, skip};

const SUITE: &str = "pyverbs";

/// Directory of Debian's copy of the tests.
const SOURCE: &str = "/usr/share/doc/rdma-core/tests";

/// Variable that names modules.
const MODULES: &str = "VERBS_PYVERBS";

const SCRIPT: &str = include_str!("pyverbs.py");

/// A run takes about half a minute.
const LIMIT: Duration = Duration::from_secs(600);

/// Tests that cannot pass, with the reason.
const IMPOSSIBLE: &[(&str, &str)] = &[(
    "test_mlx5_dc.DCTest.test_odp_dc_traffic",
    "it registers memory for on-demand paging without a check that the device supports it",
)];

/// Minimum number of tests that pass.
const LEAST: usize = 84;

/// Tests that must pass with either kind of port.
const REQUIRED: &[&str] = &[
    "test_cq.CQTest.test_resize_cq",
    "test_mr.MRTest.test_mr_rereg_access",
    "test_mr.MRTest.test_mr_rereg_access_bad_flow",
    "test_mr.MRTest.test_mr_rereg_addr",
    "test_mr.MRTest.test_mr_rereg_pd",
    "test_atomic.AtomicTest.test_xrc_atomic_cmp_and_swap",
    "test_atomic.AtomicTest.test_xrc_atomic_fetch_and_add",
    "test_cqex.CqExTestCase.test_xrc_traffic_cq_ex",
    "test_qpex.QpExTestCase.test_qp_ex_xrc_send",
    "test_qpex.QpExTestCase.test_qp_ex_xrc_send_imm",
    "test_qp.QPTest.test_modify_ud_qp",
];

/// Returns the cases of the suite.
pub fn cases(setup: Setup) -> Vec<Case> {
    vec![
        Case::new(SUITE, "enough of rdma-core's own tests pass", move || run(setup))
            .within(LIMIT + Duration::from_secs(60)),
    ]
}

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    /// Test name without the package: `test_cq.CQTest.test_resize_cq`.
    test: String,
    verdict: CaseResult,
}

fn run(setup: Setup) -> CaseResult {
    if !Path::new(SOURCE).exists() {
        return skip(format_args!("rdma-core's tests are not in {SOURCE} (package rdma-core)"));
    }
    let chosen = std::env::var(MODULES).unwrap_or_default();
    let gid = setup.usual_gid(0)?.unwrap_or(0).to_string();
    let directory = std::env::temp_dir().join(format!("pyverbs-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let (script, unpacked) = (directory.join("run.py"), directory.join("tests"));
    fs::write(&script, SCRIPT)?;
    // Debian's own Python, because another one in the path lacks Debian's packages.
    let mut python = Command::new("/usr/bin/python3");
    python
        .arg(&script)
        .arg(SOURCE)
        .arg(&unpacked)
        .args([&*device(0), &*gid])
        .args(chosen.split_ascii_whitespace());
    let ended = process::run(&mut python, LIMIT)?;
    fs::remove_dir_all(&directory)?;
    let (Ok(Finished { stdout, stderr, .. }) | Err(Finished { stdout, stderr, .. })) = &ended;
    eprint!("{stderr}");
    let outcomes: Vec<Outcome> = outcomes(stdout).into_iter().map(judged).collect();
    for Outcome { test, verdict } in &outcomes {
        runner::part(format_args!("{SUITE}.{test}"), verdict.clone());
    }
    match &ended {
        Ok(ended) if ended.status.success() => {}
        Ok(_) if stderr.contains("No module named 'pyverbs'") => {
            return skip("pyverbs is not installed (package python3-pyverbs)");
        }
        Ok(ended) => return fail(format_args!("{}: {}", ended.status, last_line(stderr))),
        Err(_) => return fail(format_args!("still running after {LIMIT:?}")),
    }
    if chosen.is_empty() { enough(&outcomes) } else { Ok(()) }
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

/// Parses the lines of the script. A test that started but did not end has failed.
fn outcomes(stdout: &str) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for line in stdout.lines() {
        let Some((kind, rest)) = line.split_once(' ') else { continue };
        let (id, why) = rest.split_once('\t').unwrap_or((rest, ""));
        let verdict = match kind {
            "start" => open(),
            "ok" => Ok(()),
            "skip" => skip(why),
            "FAIL" => fail(why),
            "died" => {
                outcomes.push(Outcome { test: id.to_owned(), verdict: fail(why) });
                continue;
            }
            _ => continue,
        };
        let Some(test) = id.strip_prefix("tests.").or_else(|| id.contains("tests.").then_some(id)) else {
            continue;
        };
        match outcomes.iter_mut().find(|outcome| outcome.test == test) {
            // Subtests may report several failures of a test; the first one counts.
            Some(known) if is_open(&known.verdict) => known.verdict = verdict,
            Some(_) => {}
            None => outcomes.push(Outcome { test: test.to_owned(), verdict }),
        }
    }
    outcomes
}

fn open() -> CaseResult {
    fail("it ended its process, or did not end")
}

fn is_open(verdict: &CaseResult) -> bool {
    *verdict == open()
}

/// Returns the outcome, as a skip if the test cannot pass.
fn judged(outcome: Outcome) -> Outcome {
    let reason = IMPOSSIBLE.iter().find(|(test, _)| *test == outcome.test).map(|(_, why)| why);
    match (reason, &outcome.verdict) {
        (Some(reason), Err(Stop::Failed(why))) => {
            let verdict = skip(format_args!("cannot pass: {reason} ({why})"));
            Outcome { verdict, ..outcome }
        }
        _ => outcome,
    }
}

/// Checks the results of all tests.
fn enough(outcomes: &[Outcome]) -> CaseResult {
    let passed: Vec<&str> =
        outcomes.iter().filter(|outcome| outcome.verdict.is_ok()).map(|outcome| &*outcome.test).collect();
    let missing: Vec<_> = REQUIRED.iter().filter(|test| !passed.contains(test)).collect();
    let passed = passed.len();
    if passed < LEAST || !missing.is_empty() {
        return fail(format_args!(
            "{passed} tests passed, at least {LEAST} must; required ones that did not: {missing:?}"
        ));
    }
    runner::part(format_args!("{SUITE}.at least {LEAST} tests pass, and those that must"), Ok(()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(test: &str, verdict: CaseResult) -> Outcome {
        Outcome { test: test.to_owned(), verdict }
    }

    #[test]
    fn each_test_has_one_outcome() {
        let text = "noise\nstart tests.a.B.one\nok tests.a.B.one\nstart tests.a.B.two\nskip tests.a.B.two\tno  device\n\
                    start tests.a.B.three\nFAIL tests.a.B.three\tfirst\nFAIL tests.a.B.three\tsecond\n";
        let wanted = [
            outcome("a.B.one", Ok(())),
            outcome("a.B.two", skip("no  device")),
            outcome("a.B.three", fail("first")),
        ];
        assert_eq!(outcomes(text), wanted);
        assert!(enough(&wanted).is_err(), "one is not enough");
    }

    #[test]
    fn a_test_of_whose_end_nothing_is_said_has_failed() {
        let text = "start tests.a.B.one\ndied a\tkilled by SIGSEGV\nstart tests.b.C.two\nok tests.b.C.two\n";
        let wanted =
            [outcome("a.B.one", open()), outcome("a", fail("killed by SIGSEGV")), outcome("b.C.two", Ok(()))];
        assert_eq!(outcomes(text), wanted);
    }

    #[test]
    fn outcomes_of_a_whole_class_are_kept() {
        let text = "skip setUpClass (tests.a.B)\tno device\n";
        assert_eq!(outcomes(text), [outcome("setUpClass (tests.a.B)", skip("no device"))]);
    }

    #[test]
    fn enough_means_the_number_and_those_that_must() {
        let many = (0..LEAST).map(|n| outcome(&format!("a.B.test_{n}"), Ok(())));
        let mut all: Vec<_> = many.chain(REQUIRED.iter().map(|test| outcome(test, Ok(())))).collect();
        assert_eq!(enough(&all), Ok(()));
        all.last_mut().unwrap().verdict = skip("no device");
        assert!(enough(&all).is_err(), "a required test was skipped");
        let few: Vec<_> = REQUIRED.iter().map(|test| outcome(test, Ok(()))).collect();
        assert!(enough(&few).is_err());
    }
}
