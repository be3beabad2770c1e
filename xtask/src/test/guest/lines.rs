//! The lines of a guest's suites: their counts and times.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::test::stage::{Counts, StageResult, for_lines};

/// Shows a guest's stdout and stderr under a label, and returns its exit status.
pub(super) fn follow_guest(
    command: &mut Command,
    label: &str,
    mut line: impl FnMut(&str),
) -> Result<Option<i32>> {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot run xtask vm")?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        if let Some(stderr) = stderr {
            scope.spawn(move || for_lines(stderr, &mut |line| eprintln!("[{label}] {line}")));
        }
        if let Some(stdout) = stdout {
            for_lines(stdout, &mut |text: &str| {
                println!("[{label}] {text}");
                line(text);
            });
        }
    });
    Ok(child.wait()?.code())
}

/// The lines that a guest's suites have printed so far.
pub(super) struct SuiteLines {
    counted: Counts,
    closing: Option<Counts>,
    /// The time of the last one.
    last: Instant,
    /// The time that each part of a suite took.
    parts: BTreeMap<String, Duration>,
}

impl Default for SuiteLines {
    fn default() -> Self {
        let (counted, closing) = (Counts::default(), None);
        Self { counted, closing, last: Instant::now(), parts: BTreeMap::new() }
    }
}

/// The number of parts of suites that the summary names.
const SLOWEST: usize = 12;

/// Returns the part of a suite that a line's case belongs to, `conformance.srq` or `fork`; the time
/// up to the first case is that of the start.
fn part(line: &str, is_first: bool) -> Option<&str> {
    let mut words = line.split(' ').skip(1);
    let name = words.next().filter(|_| !is_first)?.trim_end_matches(':');
    let mut dots = name.match_indices('.').map(|(at, _)| at);
    let (first, second) = (dots.next(), dots.next());
    let end = match (first, second) {
        (_, Some(second)) => second,
        (Some(_), None) if line.starts_with("ok ") && words.next().is_some() => name.len(),
        (Some(first), None) => first,
        (None, None) => name.len(),
    };
    Some(&name[..end])
}

impl SuiteLines {
    /// Takes the time since the last line of a case.
    fn take_time(&mut self, line: &str) {
        let took = self.last.elapsed();
        self.last += took;
        let part = part(line, self.parts.is_empty()).unwrap_or("the start");
        *self.parts.entry(part.to_owned()).or_default() += took;
    }

    /// Returns the parts that took longest, with their times.
    fn slowest(&self) -> String {
        let mut parts: Vec<_> = self.parts.iter().map(|(part, took)| (took.as_secs(), part)).collect();
        parts.sort_unstable_by(|one, other| other.cmp(one));
        let texts: Vec<_> =
            parts.into_iter().take(SLOWEST).map(|(seconds, part)| format!("{part} {seconds} s")).collect();
        texts.join(", ")
    }

    pub(super) fn take(&mut self, line: &str, result: &mut StageResult) {
        self.closing = Counts::parse(line);
        if line.starts_with("ok ") {
            self.counted.passed += 1;
        } else if line.starts_with("FAIL ") {
            self.counted.failed += 1;
        } else if line.starts_with("skip ") {
            self.counted.skipped += 1;
        } else {
            return;
        }
        self.take_time(line);
        result.case(line);
    }

    pub(super) fn finish(self, status: Option<i32>, result: &mut StageResult) {
        let counts = self.closing.unwrap_or(self.counted);
        result.counts.add(counts);
        result.times = Some(self.slowest());
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

    #[test]
    fn a_case_belongs_to_a_part_of_its_suite() {
        for (line, is_first, expected) in [
            ("ok conformance.srq.a_case erased", false, Some("conformance.srq")),
            ("skip fork.a_case: why", false, Some("fork")),
            ("ok fork.a_case", false, Some("fork")),
            ("ok c_abi.perftest ib_write_bw -s 8", false, Some("c_abi.perftest")),
            ("FAIL pyverbs.test_cq.CQTest.test_poll: why", false, Some("pyverbs.test_cq")),
            ("ok fork.a_case", true, None),
            ("ok", false, None),
        ] {
            assert_eq!(part(line, is_first), expected, "{line}");
        }
    }

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
