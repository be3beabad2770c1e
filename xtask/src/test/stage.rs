//! Stages in a test run: their counts and notes, and following a command's output.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use regex_lite::Regex;

use crate::process;

/// The numbers of passed, failed and skipped checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl Counts {
    /// Parses `N passed, N failed, N skipped`.
    pub(super) fn parse(line: &str) -> Option<Counts> {
        Counts::found(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", line.trim())
    }

    /// Parses the last line of a test program, such as `test result: ok. 12 passed; 0 failed; 1
    /// ignored; 0 measured; 0 filtered out; finished in 0.1s`.
    pub(super) fn parse_test_result(line: &str) -> Option<Counts> {
        Counts::found(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line)
    }

    /// Returns the numbers matched by a pattern's groups, after ruling out most lines cheaply.
    fn found(pattern: &str, line: &str) -> Option<Counts> {
        if !line.contains(" passed") {
            return None;
        }
        let groups = Regex::new(pattern).ok()?.captures(line)?;
        let [passed, failed, skipped] = [1, 2, 3].map(|group| groups[group].parse().ok());
        Some(Counts { passed: passed?, failed: failed?, skipped: skipped? })
    }

    pub(super) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The result of a stage.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct StageResult {
    pub(super) name: String,
    pub(super) counts: Counts,
    pub(super) took: Duration,
    /// The prefix for the stage's lines, if other stages print lines in between.
    pub(super) prefix: String,
    /// The lines about failed and skipped checks, for the summary.
    pub(super) notes: Vec<String>,
    /// The cases' lines: `ok NAME`, `skip NAME: why` or `FAIL NAME: why`.
    pub(super) cases: Vec<String>,
}

impl StageResult {
    /// Counts a check.
    pub(super) fn check(&mut self, outcome: Result<()>) {
        self.counts.passed += u64::from(self.must(outcome).is_some());
    }

    /// Returns the result of a step that every check needs. Its error counts as a failure.
    pub(super) fn must<T>(&mut self, work: Result<T>) -> Option<T> {
        work.map_err(|error| self.fail(format!("{error:#}"))).ok()
    }

    /// Returns a value that a check needs. Counts the check as skipped if the value is an error.
    pub(super) fn needs<T>(&mut self, check: &str, needed: Result<T>) -> Option<T> {
        needed.map_err(|error| self.skip(format!("{check}: {error:#}"))).ok()
    }

    pub(super) fn fail(&mut self, why: impl Into<String>) {
        self.counts.failed += 1;
        self.notes.push(format!("FAIL {}", why.into()));
    }

    pub(super) fn skip(&mut self, why: impl Into<String>) {
        self.counts.skipped += 1;
        self.notes.push(format!("skip {}", why.into()));
    }

    /// Prints a line after the prefix.
    pub(super) fn say(&self, line: &str) {
        println!("{}{line}", self.prefix);
    }

    /// Records a line with a case's result.
    pub(super) fn case(&mut self, line: &str) {
        if line.starts_with("FAIL ") || line.starts_with("skip ") {
            self.notes.push(line.to_owned());
        }
        self.cases.push(line.to_owned());
    }

    /// Runs a command, prints the lines of its stdout and stderr, calls `each` with each line, and
    /// returns the exit status; `None` if a signal ended the command.
    ///
    /// # Errors
    /// The command cannot be run or waited for.
    pub(super) fn follow(
        &mut self,
        command: &mut Command,
        mut each: impl FnMut(&str, &mut Self),
    ) -> Result<Option<i32>> {
        let (mut child, lines) = process::spawn(command)?;
        for line in lines {
            self.say(&line);
            each(&line, self);
        }
        Ok(child.wait()?.code())
    }
}

/// Announces a stage, runs it, shows its failures, and measures its time.
pub(super) fn stage(name: &str, work: impl FnOnce(&mut StageResult)) -> StageResult {
    println!("== {name}");
    let started = Instant::now();
    let mut result = StageResult { name: name.to_owned(), ..StageResult::default() };
    work(&mut result);
    result.took = started.elapsed();
    for failure in result.notes.iter().filter(|note| note.starts_with("FAIL ")) {
        println!("== {name}: {failure}");
    }
    result
}

#[test]
fn a_closing_line_is_read_back_and_nothing_else_is_taken_for_one() {
    let line = Counts { passed: 12, failed: 0, skipped: 3 }.to_string();
    assert_eq!(line, "12 passed, 0 failed, 3 skipped");
    assert_eq!(Counts::parse(&line), Some(Counts { passed: 12, failed: 0, skipped: 3 }));
    for wrong in ["", "12 passed", "1 passed, 2 failed, 3 skipped, 4 more", "a passed, 0 failed, 0 skipped"] {
        assert_eq!(Counts::parse(wrong), None, "{wrong}");
    }
}
