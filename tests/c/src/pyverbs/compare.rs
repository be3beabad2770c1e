//! Verdicts on rdma-core's tests under this project's library, given the results under rdma-core's
//! library.
//!
//! | rdma-core | ours | verdict |
//! |---|---|---|
//! | any | passes | passes |
//! | passes | skips | fails |
//! | passes or skips | fails | fails |
//! | fails | fails | skips, with both reasons |
//! | skips or fails | skips | skips |

use verbs_harness::runner::{CaseResult, Stop, fail, skip};

use super::Outcome;

/// Returns the tests that passed under rdma-core's library and have no result under ours.
pub fn missing<'a>(theirs: &'a [Outcome], ours: &[Outcome]) -> Vec<&'a str> {
    let has_result = |test: &str| ours.iter().any(|outcome| outcome.test == test);
    let passed = theirs.iter().filter(|outcome| outcome.verdict.is_ok());
    passed.map(|outcome| &*outcome.test).filter(|test| !has_result(test)).collect()
}

/// Returns the verdict for a test, given its results with both libraries.
///
/// # Errors
/// Fails or skips the test according to the table at the top of the file.
pub fn judged(ours: &CaseResult, theirs: Option<&CaseResult>) -> CaseResult {
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
    }
}
