//! Runs rdma-core's Python test suite, as packaged by Debian, on a device and returns the result of
//! each test.
//!
//! `run.py` prints a line at the start and at the end of each test, so a crash loses the result of
//! only one test.

pub mod compare;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use verbs_harness::process::{self, Finished};
use verbs_harness::runner::{CaseResult, fail, skip};

/// Directory of Debian's copy of the tests.
pub const SOURCE: &str = "/usr/share/doc/rdma-core/tests";

const SCRIPT: &str = include_str!("run.py");

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Test name without the package: `test_cq.CQTest.test_resize_cq`.
    pub test: String,
    /// The test's result.
    pub verdict: CaseResult,
}

/// A run of the suite.
#[derive(Clone, Debug)]
pub struct Run {
    /// The results of all started tests and of classes skipped as a whole.
    pub outcomes: Vec<Outcome>,
    /// The result of the run as a whole: whether it reached its end.
    pub verdict: CaseResult,
}

/// Runs the tests of `modules`, such as `test_cq`, or of all modules if empty. `prepare` changes
/// the command and its environment.
///
/// # Errors
/// Skips the case if the tests or pyverbs are not installed; fails if Python cannot be started.
pub fn run(
    device: &str,
    gid: u32,
    modules: &[&str],
    limit: Duration,
    prepare: impl FnOnce(&mut Command),
) -> CaseResult<Run> {
    if !Path::new(SOURCE).exists() {
        return skip(format_args!("rdma-core's tests are not in {SOURCE} (package rdma-core)"));
    }
    let directory = std::env::temp_dir().join(format!("pyverbs-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let (script, unpacked) = (directory.join("run.py"), directory.join("tests"));
    fs::write(&script, SCRIPT)?;
    // Debian's Python, because another Python in the path lacks Debian's packages.
    let mut python = Command::new("/usr/bin/python3");
    python.arg(&script).arg(SOURCE).arg(&unpacked).args([device, &gid.to_string()]).args(modules);
    prepare(&mut python);
    let ended = process::run(&mut python, limit)?;
    fs::remove_dir_all(&directory)?;
    let (Ok(Finished { stdout, stderr, .. }) | Err(Finished { stdout, stderr, .. })) = &ended;
    eprint!("{stderr}");
    let verdict = match &ended {
        Ok(ended) if ended.status.success() => Ok(()),
        Ok(_) if stderr.contains("No module named 'pyverbs'") => {
            return skip("pyverbs is not installed (package python3-pyverbs)");
        }
        Ok(ended) => fail(format_args!("{}: {}", ended.status, stderr.lines().last().unwrap_or_default())),
        Err(_) => fail(format_args!("still running after {limit:?}")),
    };
    Ok(Run { outcomes: outcomes(stdout), verdict })
}

/// Parses the script's output. A test that started but did not end has failed.
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
            // Subtests may report several failures for one test; the first failure counts.
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
}
