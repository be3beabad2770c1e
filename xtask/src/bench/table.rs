//! The benchmark's tables and the numbers found in programs' output.

use anyhow::{Context as _, Result};
use regex_lite::Regex;

/// One line of a table.
pub(super) struct Row {
    what: String,
    ours: f64,
    theirs: f64,
    unit: &'static str,
    /// The highest acceptable ratio; infinite for a row shown only for comparison.
    target: f64,
}

impl Row {
    /// Returns a row with our value and theirs.
    pub(super) fn new(
        what: impl Into<String>,
        [ours, theirs]: [f64; 2],
        unit: &'static str,
        target: f64,
    ) -> Row {
        Row { what: what.into(), ours, theirs, unit, target }
    }
}

/// Prints tables, each with its title and the name of the other side, and returns the number of
/// missed targets.
pub(super) fn print(tables: &[(String, &str, Vec<Row>)]) -> usize {
    let (mut targets, mut missed) = (0, 0);
    for (title, theirs, rows) in tables {
        println!("\n{title}");
        println!(
            "| {:<52} | {:>12} | {theirs:>12} | {:<12} | {:>6} | {:>6} |",
            "what", "ours", "unit", "ratio", "target"
        );
        println!("|{:-<54}|{:->14}|{:->14}|{:-<14}|{:->8}|{:->8}|", "", ":", ":", "", ":", ":");
        for Row { what, ours, theirs, unit, target } in rows {
            let (ratio, has_target) = (ours / theirs, target.is_finite());
            let is_missed = has_target && (ratio.is_nan() || ratio > *target);
            let limit = if has_target { format!("≤ {target}") } else { String::new() };
            let verdict = if is_missed { "  MISSED" } else { "" };
            println!(
                "| {what:<52} | {ours:>12.0} | {theirs:>12.0} | {unit:<12} | {ratio:>6.3} | {limit:>6} |{verdict}"
            );
            (targets, missed) = (targets + usize::from(has_target), missed + usize::from(is_missed));
        }
    }
    println!("\n{} of {targets} targets met", targets - missed);
    missed
}

/// Returns the number matched by a pattern's group in a text.
pub(crate) fn number(text: &str, pattern: &str) -> Result<f64> {
    let found = Regex::new(pattern)?.captures(text).and_then(|groups| groups[1].parse().ok());
    found.with_context(|| format!("no {pattern:?} in\n{text}"))
}

/// Matches the time in `1000 iters in 0.02 seconds = 18.27 usec/iter`.
pub(crate) const ROUND_TRIP: &str = r"= ([\d.]+) usec/iter";
