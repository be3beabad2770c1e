//! rdma-core's Python tests on both libraries: a test that passes on rdma-core's library must pass
//! on ours.
//!
//! A single case, whose parts are the tests. `VERBS_PYVERBS` names the modules to run, such as
//! `test_cq test_mr`. By default, all run. [`compare`](verbs_c_programs::pyverbs::compare) has the
//! rules. A test in [`RACES`] counts as skipped if it fails in the listed way, whether or not it
//! passes on rdma-core's library.

use std::time::Duration;

use verbs_c_programs::pyverbs::compare::{judged, missing};
use verbs_c_programs::pyverbs::{self, Outcome, Run};
use verbs_harness::runner::{self, Case, CaseResult, Stop, fail, skip};
use verbs_harness::tools::{DEVICE, Maker, gid_index, linked_dir};

use super::program::SUITE;

/// The time limit for a run, which takes about half a minute on one library.
const LIMIT: Duration = Duration::from_secs(300);

/// Tests that expose a race in rxe: the name, the failure message and the cause. They also fail on
/// rdma-core's library, but in other runs.
pub const RACES: &[(&str, &str, &str)] = &[(
    "test_cq.CQTest.test_resize_cq",
    "PyverbsRDMAError not raised",
    "it makes the queue smaller than its completions, which rxe has not written yet",
)];

/// Returns the cause of a test's failure if the failure is a listed race.
pub fn lost_race(test: &str, verdict: &CaseResult) -> Option<&'static str> {
    let Err(Stop::Failed(why)) = verdict else { return None };
    let lost = RACES.iter().find(|(name, failure, _)| *name == test && why.contains(failure));
    lost.map(|(_, _, race)| *race)
}

/// Returns the case with these tests.
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
    theirs.verdict.map_err(|why| why.context("on C's library"))?;
    ours.verdict?;
    let absent = missing(&theirs.outcomes, &ours.outcomes);
    if !absent.is_empty() {
        return fail(format_args!("did not run on ours: {}", absent.join(", ")));
    }
    let [theirs, ours] = [passed(&theirs.outcomes), passed(&ours.outcomes)];
    if theirs == 0 || ours < theirs {
        return fail(format_args!("{ours} tests pass on ours, and {theirs} on C's library"));
    }
    runner::part(format_args!("{SUITE}.pyverbs: {ours} tests pass, and {theirs} on C's library"), Ok(()));
    Ok(())
}

/// Returns the number of tests that passed, not counting those in [`RACES`].
pub fn passed(outcomes: &[Outcome]) -> usize {
    let is_race = |outcome: &Outcome| RACES.iter().any(|(name, ..)| *name == outcome.test);
    outcomes.iter().filter(|outcome| outcome.verdict.is_ok() && !is_race(outcome)).count()
}
