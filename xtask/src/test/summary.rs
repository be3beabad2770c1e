//! The end of a test run's output: skipped checks by reason, each stage and each failure.
//!
//! Invariant: the failures come last, so that the end of the output always contains them.

use std::collections::BTreeMap;

use super::stage::StageResult;

/// The maximum number of checks named per reason. The output above names each check.
const NAMED: usize = 4;

/// Returns the lines of the summary.
pub(super) fn lines(results: &[StageResult]) -> Vec<String> {
    let mut lines = Vec::new();
    for result in results {
        let skipped = skipped(&result.notes);
        if !skipped.is_empty() {
            lines.push(format!("skipped by {}", result.name));
            lines.extend(skipped);
        }
    }
    for result in results {
        let took = result.took.as_secs_f64();
        lines.push(format!("{:32} {} ({took:.0} s)", result.name, result.counts));
    }
    for result in results {
        let others = result.notes.iter().filter(|note| !note.starts_with("skip "));
        lines.extend(others.map(|note| format!("{}: {}", result.name, note.replace('\n', "\n    "))));
    }
    lines
}

/// Returns a line for each reason for skipped checks.
fn skipped(notes: &[String]) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for note in notes.iter().filter_map(|note| note.strip_prefix("skip ")) {
        let (name, why) = note.split_once(": ").unwrap_or((note, ""));
        reasons.entry(why).or_default().push(name);
    }
    let line = |(why, names): (&str, Vec<&str>)| {
        let named = names[..names.len().min(NAMED)].join(", ");
        let colon = if why.is_empty() { "" } else { ": " };
        match names.len() - names.len().min(NAMED) {
            0 => format!("    skip {named}{colon}{why}"),
            others => format!("    skip {named} and {others} others{colon}{why}"),
        }
    };
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::stage::Counts;

    #[test]
    fn failures_end_the_summary_and_skips_are_told_by_reason() {
        let notes =
            ["skip a.one: no device", "FAIL b: it broke\nhere", "skip c: too old", "skip a.two: no device"];
        let first = StageResult {
            name: "guests".to_owned(),
            counts: Counts { passed: 7, failed: 1, skipped: 3 },
            notes: notes.map(str::to_owned).to_vec(),
            ..StageResult::default()
        };
        let second = StageResult { name: "models".to_owned(), ..StageResult::default() };
        let expected = [
            "skipped by guests",
            "    skip a.one, a.two: no device",
            "    skip c: too old",
            "guests                           7 passed, 1 failed, 3 skipped (0 s)",
            "models                           0 passed, 0 failed, 0 skipped (0 s)",
            "guests: FAIL b: it broke\n    here",
        ];
        assert_eq!(lines(&[first, second]), expected);
    }

    #[test]
    fn many_checks_with_one_reason_take_one_line() {
        let notes: Vec<_> = (0..6).map(|number| format!("skip case{number}: asked for")).collect();
        assert_eq!(skipped(&notes), ["    skip case0, case1, case2, case3 and 2 others: asked for"]);
        assert_eq!(skipped(&["skip nothing to do".to_owned()]), ["    skip nothing to do"]);
    }
}
