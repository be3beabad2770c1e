//! The lines of a guest's suites and their counts.

use crate::test::stage::{Counts, StageResult};

/// The lines that a guest's suites have printed.
#[derive(Default)]
pub(super) struct SuiteLines {
    counted: Counts,
    closing: Option<Counts>,
}

impl SuiteLines {
    pub(super) fn take(&mut self, line: &str, result: &mut StageResult) {
        self.closing = Counts::parse(line).or(self.closing);
        let count = match line.split_once(' ') {
            Some(("ok", _)) => &mut self.counted.passed,
            Some(("FAIL", _)) => &mut self.counted.failed,
            Some(("skip", _)) => &mut self.counted.skipped,
            _ => return,
        };
        *count += 1;
        result.case(line);
    }

    pub(super) fn finish(self, status: Option<i32>, result: &mut StageResult) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts { passed, failed, skipped }
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
        assert_eq!(result.cases, lines[..3]);
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
}
