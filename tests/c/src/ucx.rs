//! Test batches for UCX's benchmark and checks of its output.

use verbs_harness::process::Finished;
use verbs_harness::runner::{CaseResult, fail};

/// The number of operations in each test.
const COUNT: &str = "20";

/// A test's name, UCX's name for the test and the message size.
pub type Test = (&'static str, &'static str, &'static str);

/// Returns the batch file for these tests, which the option `-b` reads.
pub fn batch(tests: &[Test]) -> String {
    let line = |(name, test, size): &Test| format!("{name} -t {test} -s {size} -n {COUNT} -w 2\n");
    tests.iter().map(line).collect()
}

/// Checks the client's output: a line with each test's name, followed by results.
///
/// # Errors
/// Fails if a test has no results or the wrong number of results.
pub fn check(client: &Finished, tests: &[Test]) -> CaseResult {
    match without_results(&client.stdout, tests) {
        Some(name) => fail(format_args!("no results of {name}: {client:?}")),
        None => Ok(()),
    }
}

/// Returns the first test without results.
fn without_results(stdout: &str, tests: &[Test]) -> Option<&'static str> {
    let mut lines = stdout.lines();
    let mut has_results = |name: &str| {
        let title = format!("+{name}-");
        let mut rest = lines.by_ref().skip_while(|line| !line.starts_with(&title));
        let results = rest.find(|line| line.starts_with("Final:"));
        results.and_then(|line| line.split_ascii_whitespace().nth(1)) == Some(COUNT)
    };
    tests.iter().map(|(name, ..)| *name).find(|name| !has_results(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &[Test] = &[("tag", "tag_lat", "8"), ("long-tag", "tag_bw", "65536")];

    #[test]
    fn a_batch_has_a_line_for_each_test() {
        assert_eq!(batch(TESTS), "tag -t tag_lat -s 8 -n 20 -w 2\nlong-tag -t tag_bw -s 65536 -n 20 -w 2\n");
    }

    #[test]
    fn each_test_needs_its_own_results() {
        let results = "Final:                    20      3.350     3.350\n";
        let both = format!("+tag---+\n{results}+long-tag---+\n{results}");
        assert_eq!(without_results(&both, TESTS), None);
        assert_eq!(without_results(&format!("+tag---+\n{results}+long-tag---+\n"), TESTS), Some("long-tag"));
        assert_eq!(without_results(&format!("+tag---+\n+long-tag---+\n{results}"), TESTS), Some("long-tag"));
        assert_eq!(without_results(&both.replace("20 ", "19 "), TESTS), Some("tag"));
        assert_eq!(without_results("", TESTS), Some("tag"));
    }
}
