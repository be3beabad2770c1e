//! `pyverbs`: rdma-core's Python tests as packaged by Debian. They form one case, whose parts are
//! the tests.
//!
//! `pyverbs-soft.txt` records the results, and the reason for each skip; `BLESS=1` rewrites it.
//! Other releases have other tests, and these must not fail. A test that is skipped for a reason in
//! [`OF_THE_MACHINE`] may have any other result on another machine, except a failure.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use verbs_c_programs::pyverbs::{self, Outcome};
use verbs_harness::cases;
use verbs_harness::runner::{self, Case, CaseResult, Stop, fail, skip};

use crate::library;

const SUITE: &str = "pyverbs";
const PACKAGE: &str = "python3-pyverbs";
const LIMIT: Duration = Duration::from_secs(600);

/// Words in skip reasons that depend on the machine.
const OF_THE_MACHINE: &[&str] = &["huge pages", "dmabuf", "cuda-python"];

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    cases![SUITE, the_results_are_the_recorded_ones]
        .into_iter()
        .map(|case| case.within(LIMIT + Duration::from_secs(60)))
        .collect()
}

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pyverbs-soft.txt")
}

fn the_results_are_the_recorded_ones() -> CaseResult {
    library::installed("python3", "python3")?;
    let libraries = library::search_path()?;
    let modules = std::env::var("VERBS_PYVERBS").unwrap_or_default();
    let modules: Vec<&str> = modules.split_ascii_whitespace().collect();
    let run = pyverbs::run("soft0", 0, &modules, LIMIT, |python| {
        python.env("LD_LIBRARY_PATH", libraries).env("VERBS_SOFT", "auto").env("LC_ALL", "C");
    })?;
    for Outcome { test, verdict } in &run.outcomes {
        runner::part(format_args!("{SUITE}.{test}"), verdict.clone());
    }
    run.verdict?;
    if !modules.is_empty() {
        return Ok(());
    }
    let version = library::version(PACKAGE).unwrap_or_else(|| "unknown".to_owned());
    let found = page(&version, &run.outcomes);
    if std::env::var_os("BLESS").is_some() {
        fs::write(recorded(), &found)?;
    }
    compare(&fs::read_to_string(recorded())?, &found)
}

/// Formats the results as the contents of `pyverbs-soft.txt`.
fn page(version: &str, outcomes: &[Outcome]) -> String {
    let passed = outcomes.iter().filter(|outcome| outcome.verdict.is_ok()).count();
    let skipped = outcomes.iter().filter(|outcome| matches!(outcome.verdict, Err(Stop::Skipped(_)))).count();
    let mut page = format!(
        "# {PACKAGE} {version} on a soft device: {passed} pass, {skipped} skip, {} fail.\n",
        outcomes.len() - passed - skipped
    );
    let mut lines: Vec<String> = outcomes
        .iter()
        .map(|Outcome { test, verdict }| match verdict {
            Ok(()) => format!("ok {test}"),
            Err(Stop::Skipped(why)) => format!("skip {test}: {why}"),
            Err(Stop::Failed(why)) => format!("FAIL {test}: {why}"),
        })
        .collect();
    lines.sort_by(|one, other| one.split(' ').nth(1).cmp(&other.split(' ').nth(1)));
    for line in lines {
        let _ = writeln!(page, "{line}");
    }
    page
}

/// Compares the results with the recorded results.
fn compare(recorded: &str, found: &str) -> CaseResult {
    let failed: Vec<&str> = found.lines().filter(|line| line.starts_with("FAIL ")).collect();
    if !failed.is_empty() {
        return fail(format_args!("{} tests failed: {}", failed.len(), failed.join("; ")));
    }
    let release = |page: &str| page.lines().next().and_then(|line| line.split(' ').nth(2)).map(str::to_owned);
    if release(recorded) != release(found) {
        return skip(format_args!(
            "the recorded results are of release {}, and this is {}",
            release(recorded).unwrap_or_default(),
            release(found).unwrap_or_default()
        ));
    }
    let test = |line: &str| line.split([' ', ':']).nth(1).map(str::to_owned);
    let is_of_the_machine = |line: &&str| {
        let recorded = recorded.lines().find(|recorded| test(recorded) == test(line));
        recorded.is_some_and(|recorded| OF_THE_MACHINE.iter().any(|word| recorded.contains(word)))
    };
    let without = |lines: &str, others: &str, sign: char| -> Vec<String> {
        let others: Vec<&str> = others.lines().skip(1).collect();
        let lines = lines.lines().skip(1).filter(|line| !others.contains(line) && !is_of_the_machine(line));
        lines.map(|line| format!("{sign} {line}")).collect()
    };
    let differences = [without(recorded, found, '-'), without(found, recorded, '+')].concat();
    if !differences.is_empty() {
        return fail(format_args!("other results than the recorded ones: {}", differences.join("; ")));
    }
    let passed = found.lines().filter(|line| line.starts_with("ok ")).count();
    runner::part(format_args!("{SUITE}.{passed} tests pass, as recorded"), Ok(()));
    Ok(())
}
