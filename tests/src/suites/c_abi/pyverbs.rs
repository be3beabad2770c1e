//! rdma-core's tests for Python on both libraries: each test that passes on C's passes on ours.
//!
//! One case, whose parts are the tests. `VERBS_PYVERBS` names modules to run, such as `test_cq
//! test_mr`; all run without it.
//!
//! | on C's | on ours | the part |
//! |---|---|---|
//! | any | passes | passes |
//! | passes | skips | fails |
//! | passes or skips | fails | fails |
//! | fails | fails | skips, with both reasons |
//! | skips or fails | skips | skips |
//!
//! A test in [`RACES`] that fails as said there skips, whatever it does on C's library.

use std::time::Duration;

use super::SUITE;
use crate::pyverbs::{self, Outcome, Run};
use crate::runner::{self, Case, CaseResult, Stop, fail, skip};
use crate::tools::{DEVICE, Maker, gid_index, linked_dir};

/// A run on one library takes about half a minute.
const LIMIT: Duration = Duration::from_secs(300);

/// Tests that race with rxe, their failure if they lose, and the race. They fail on C's library,
/// too, but not in the same runs.
const RACES: &[(&str, &str, &str)] = &[(
    "test_cq.CQTest.test_resize_cq",
    "PyverbsRDMAError not raised",
    "it makes the queue smaller than its completions, which rxe has not written yet",
)];

/// Returns the race that a test has lost, if its failure is that.
fn lost_race(test: &str, verdict: &CaseResult) -> Option<&'static str> {
    let Err(Stop::Failed(why)) = verdict else { return None };
    let lost = RACES.iter().find(|(name, failure, _)| *name == test && why.contains(failure));
    lost.map(|(_, _, race)| *race)
}

/// The case of these tests.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    let case = Case::new(SUITE, "pyverbs passes each test that passes on C's library", compare_libraries);
    [case.within(2 * LIMIT + Duration::from_secs(60))].into_iter()
}

fn compare_libraries() -> CaseResult {
    linked_dir()?;
    let chosen = std::env::var("VERBS_PYVERBS").unwrap_or_default();
    let modules: Vec<&str> = chosen.split_ascii_whitespace().collect();
    let run = |maker: Maker| -> CaseResult<Run> {
        let mut prepared = Ok(());
        let run = pyverbs::run(DEVICE, gid_index()?, &modules, LIMIT, |python| {
            prepared = maker.prepare(python);
        });
        prepared.and(run)
    };
    let (theirs, ours) = (run(Maker::Theirs)?, run(Maker::Linked)?);
    for Outcome { test, verdict } in &ours.outcomes {
        let theirs = theirs.outcomes.iter().find(|other| other.test == *test);
        let verdict = match lost_race(test, verdict) {
            Some(race) => skip(format_args!("a race with rxe: {race}")),
            None => judged(verdict, theirs.map(|other| &other.verdict)),
        };
        runner::part(format_args!("{SUITE}.pyverbs {test}"), verdict);
    }
    theirs.verdict.map_err(|why| why.of("on C's library"))?;
    ours.verdict?;
    let missing = missing(&theirs.outcomes, &ours.outcomes);
    if !missing.is_empty() {
        return fail(format_args!("did not run on ours: {}", missing.join(", ")));
    }
    let [theirs, ours] = [passed(&theirs.outcomes), passed(&ours.outcomes)];
    if theirs == 0 || ours < theirs {
        return fail(format_args!("{ours} tests pass on ours, and {theirs} on C's library"));
    }
    runner::part(format_args!("{SUITE}.pyverbs: {ours} tests pass, and {theirs} on C's library"), Ok(()));
    Ok(())
}

/// Returns the number of tests that passed, races aside.
fn passed(outcomes: &[Outcome]) -> usize {
    let is_race = |outcome: &Outcome| RACES.iter().any(|(name, ..)| *name == outcome.test);
    outcomes.iter().filter(|outcome| outcome.verdict.is_ok() && !is_race(outcome)).count()
}

/// Returns the tests that passed on C's library and have no result on ours.
fn missing<'a>(theirs: &'a [Outcome], ours: &[Outcome]) -> Vec<&'a str> {
    let has_result = |test: &str| ours.iter().any(|outcome| outcome.test == test);
    let passed = theirs.iter().filter(|outcome| outcome.verdict.is_ok());
    passed.map(|outcome| &*outcome.test).filter(|test| !has_result(test)).collect()
}

/// Judges the result of a test on ours by its result on C's library.
fn judged(ours: &CaseResult, theirs: Option<&CaseResult>) -> CaseResult {
    match (ours, theirs) {
        (Err(Stop::Skipped(why)), Some(Ok(()))) => {
            fail(format_args!("passes on C's library, and skips on ours: {why}"))
        }
        (Err(Stop::Failed(why)), Some(Err(Stop::Failed(other)))) => {
            skip(format_args!("fails on C's library, too: {other}; on ours: {why}"))
        }
        (Err(Stop::Failed(why)), Some(Ok(()))) => fail(format_args!("passes on C's library: {why}")),
        (Err(Stop::Failed(why)), Some(Err(Stop::Skipped(other)))) => {
            fail(format_args!("skips on C's library ({other}): {why}"))
        }
        _ => ours.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_race_is_told_from_other_failures() {
        let test = "test_cq.CQTest.test_resize_cq";
        assert!(lost_race(test, &fail("AssertionError: PyverbsRDMAError not raised")).is_some());
        assert_eq!(lost_race(test, &fail("it broke")), None);
        assert_eq!(lost_race(test, &Ok(())), None);
        assert_eq!(lost_race("another", &fail("PyverbsRDMAError not raised")), None);
    }

    #[test]
    fn a_test_that_passes_on_one_library_only_decides() {
        let (ok, skipped, failed) = (Ok(()), skip::<()>("no device"), fail::<()>("it broke"));
        for theirs in [Some(&ok), Some(&skipped), Some(&failed), None] {
            assert_eq!(judged(&ok, theirs), ok);
        }
        let is_failure = |verdict| matches!(verdict, Err(Stop::Failed(_)));
        let is_skip = |verdict| matches!(verdict, Err(Stop::Skipped(_)));
        for (ours, theirs) in
            [(&skipped, &ok), (&failed, &ok), (&failed, &skipped)].map(|(ours, theirs)| (ours, Some(theirs)))
        {
            assert!(is_failure(judged(ours, theirs)), "{ours:?} {theirs:?}");
        }
        assert!(is_failure(judged(&failed, None)));
        for (ours, theirs) in [(&failed, &failed), (&skipped, &skipped), (&skipped, &failed)] {
            assert!(is_skip(judged(ours, Some(theirs))), "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn a_test_that_passes_on_cs_library_and_does_not_run_on_ours_is_missing() {
        let one = |test: &str, verdict| Outcome { test: test.to_owned(), verdict };
        let theirs = [one("a", Ok(())), one("b", Ok(())), one("c", skip("no device"))];
        assert_eq!(missing(&theirs, &[one("a", skip("x"))]), ["b"]);
        assert_eq!(passed(&theirs), 2);
    }
}
