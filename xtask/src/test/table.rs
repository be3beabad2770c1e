//! docs/conformance.md: the conformance suite's cases, and their results on each device.
//!
//! A run compares its results with the table, so that the table is true: a missing table, a device
//! without a column, a case without a row, a row without a case, another result, and a case without
//! a result on some device, even one that did not run, are failures. A kernel that the table does
//! not list is a skip.
//! `cargo xtask test --write-table` replaces the columns of the devices that ran; `cargo xtask
//! table` adds the cases of one run in a guest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::builder::PossibleValuesParser;

use super::stage::StageResult;
use crate::cargo;

/// The file, relative to the repository's root.
const FILE: &str = "docs/conformance.md";

/// The devices, in the order of the columns.
const DEVICES: &[&str] = &[
    "soft",
    "rxe 5.10",
    "rxe 6.1",
    "rxe 6.1 without ioctls",
    "rxe 6.12",
    "rxe 7.2",
    "mlx5 6.1 ib",
    "mlx5 6.1 roce",
    "mlx5 6.12 ib",
    "mlx5 6.12 roce",
    "mlx5 7.2 ib",
    "mlx5 7.2 roce",
];

/// The results of a device: of each case by topic and name, `None` for a pass, otherwise the reason
/// why the case was skipped.
type Results = BTreeMap<(String, String), Option<String>>;

/// The results by device.
type Table = BTreeMap<String, Results>;

/// Adds the results in a guest's output to docs/conformance.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device that ran, as its column is called
    #[arg(long, value_parser = PossibleValuesParser::new(DEVICES))]
    device: String,

    /// The run was of the whole suite: cases that it lacks lose their result
    #[arg(long)]
    whole: bool,

    /// File with the output of `cargo xtask vm -- target/guest/guest conformance...`
    output: PathBuf,
}

/// Runs `cargo xtask table`.
///
/// # Errors
/// The output has no result or a failed case, or a file cannot be read or written.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let output =
        fs::read_to_string(&args.output).with_context(|| format!("cannot read {}", args.output.display()))?;
    let failed = output.lines().find(|line| line.starts_with("FAIL ")).unwrap_or_default();
    ensure!(failed.is_empty(), "a case failed, and its result would not be kept: {failed}");
    let lines: Vec<_> = output.lines().filter(|line| is_result(line)).map(str::to_owned).collect();
    ensure!(!lines.is_empty(), "{} has no result of a conformance case", args.output.display());
    let path = cargo::root().join(FILE);
    let mut table = parse(&fs::read_to_string(&path).unwrap_or_default());
    let column = table.entry(args.device.clone()).or_default();
    if args.whole {
        column.clear();
    }
    add(column, results(&lines));
    fs::write(&path, print(&table)).with_context(|| format!("cannot write {FILE}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Adds results of cases to a column that may have older ones of the same cases.
fn add(column: &mut Results, new: Results) {
    let cases: BTreeSet<_> = new.keys().map(case_of).collect();
    column.retain(|key, _| !cases.contains(&case_of(key)));
    column.extend(new);
}

/// The case of a row, which may be of one form alone.
fn case_of((topic, name): &(String, String)) -> (String, String) {
    let forms = [", erased", ", static"];
    let case = forms.iter().find_map(|form| name.strip_suffix(form)).unwrap_or(name);
    (topic.clone(), case.to_owned())
}

/// Returns whether a line is the result of a conformance case.
pub(super) fn is_result(line: &str) -> bool {
    ["ok ", "skip "]
        .iter()
        .any(|verdict| line.strip_prefix(verdict).is_some_and(|rest| rest.starts_with(SUITE)))
}

const SUITE: &str = "conformance.";

/// Compares the results of all stages with the file, or writes them.
pub(super) fn check(stages: &[StageResult], write: bool, result: &mut StageResult) {
    let mut ran: Table = stages
        .iter()
        // Failures are told by their own stage, and would be told again for each row.
        .filter(|stage| stage.counts.failed == 0)
        .filter_map(|stage| Some((stage.device.clone()?, results(&stage.conformance))))
        .collect();
    if ran.is_empty() {
        result.skip("table of conformance results: no device ran the whole suite without a failure");
        return;
    }
    let path = cargo::root().join(FILE);
    let outcome = (|| -> Result<Vec<String>> {
        let text = fs::read_to_string(&path);
        if write {
            let mut table = parse(&text.unwrap_or_default());
            leave_unnamed(&table, &mut ran);
            table.extend(ran);
            fs::write(&path, print(&table)).with_context(|| format!("cannot write {FILE}"))?;
            return Ok(Vec::new());
        }
        let text = text.with_context(|| format!("cannot read {FILE}: cargo xtask test --write-table"))?;
        let table = parse(&text);
        leave_unnamed(&table, &mut ran);
        let (listed, other): (Table, Table) =
            ran.into_iter().partition(|(device, _)| DEVICES.contains(&device.as_str()));
        for device in other.keys() {
            result.skip(format!("{FILE} has no columns for kernels like {device}"));
        }
        let mut lines = differences(&table, &listed);
        lines.extend(gaps(&table, &listed));
        Ok(lines)
    })();
    match outcome {
        Ok(differences) if differences.is_empty() => result.counts.passed += 1,
        Ok(differences) => {
            for line in differences.iter().take(20) {
                println!("{line}");
            }
            result.fail(format!(
                "{} results are not those of {FILE}, the first: {}; cargo xtask test --write-table",
                differences.len(),
                differences[0]
            ));
        }
        Err(error) => result.fail(format!("{error:#}")),
    }
}

/// Reads result lines. The two runs of a case, erased and static, are one row if they agree.
fn results(lines: &[String]) -> Results {
    let mut by_case: BTreeMap<(String, String), BTreeMap<&str, Option<String>>> = BTreeMap::new();
    for line in lines {
        let (name, reason) = match line.strip_prefix("skip ") {
            Some(rest) => match rest.split_once(": ") {
                Some((name, reason)) => (name, Some(reason.to_owned())),
                None => (rest, Some(String::new())),
            },
            None => (line.strip_prefix("ok ").unwrap_or(line), None),
        };
        let Some((topic, name)) = name.strip_prefix(SUITE).and_then(|rest| rest.split_once('.')) else {
            continue;
        };
        let (name, form) = match name.rsplit_once(' ') {
            Some((name, form @ ("erased" | "static"))) => (name, form),
            _ => (name, ""),
        };
        let case = by_case.entry((topic.to_owned(), name.replace('_', " "))).or_default();
        case.insert(form, reason);
    }
    let mut results = Results::new();
    for ((topic, name), forms) in by_case {
        let distinct: BTreeSet<_> = forms.values().collect();
        if distinct.len() == 1 {
            results.extend(forms.into_values().next().map(|reason| ((topic, name), reason)));
        } else {
            results.extend(
                forms.into_iter().map(|(form, reason)| ((topic.clone(), format!("{name}, {form}")), reason)),
            );
        }
    }
    results
}

/// Takes the known results of cases that need the provider's name where this commit's programs have
/// that of another one: other commits run them.
fn leave_unnamed(known: &Table, ran: &mut Table) {
    for (device, results) in ran {
        let Some(known) = known.get(device) else { continue };
        for (case, result) in results {
            if result.as_ref().is_some_and(|why| why.starts_with(UNNAMED))
                && let Some(before) = known.get(case)
            {
                result.clone_from(before);
            }
        }
    }
}

/// The beginning of the reason of such a case (`fabric::open_named` of verbs-tests).
pub(super) const UNNAMED: &str = "this program names no provider";

/// Returns a sentence for each result that differs, for the devices that ran.
fn differences(table: &Table, ran: &Table) -> Vec<String> {
    let mut lines = Vec::new();
    for (device, results) in ran {
        let Some(known) = table.get(device) else {
            lines.push(format!("there is no column for {device}"));
            continue;
        };
        for ((topic, name), reason) in results {
            let now = shown(reason.as_ref());
            match known.get(&(topic.clone(), name.clone())) {
                None => lines.push(format!("{device}, {topic}: \"{name}\" has no row")),
                Some(before) if before != reason => {
                    lines.push(format!(
                        "{device}, {topic}: \"{name}\" was {}, is {now}",
                        shown(before.as_ref())
                    ));
                }
                Some(_) => {}
            }
        }
        for (topic, name) in known.keys().filter(|key| !results.contains_key(key)) {
            lines.push(format!("{device}, {topic}: \"{name}\" did not run"));
        }
    }
    lines
}

/// Returns a sentence for each case that has no result on a device that did not run.
fn gaps(table: &Table, ran: &Table) -> Vec<String> {
    let cases: BTreeSet<_> = table.values().flat_map(|results| results.keys().map(case_of)).collect();
    let mut lines = Vec::new();
    for device in DEVICES.iter().filter(|device| !ran.contains_key(**device)) {
        let known: BTreeSet<_> =
            table.get(*device).into_iter().flat_map(|results| results.keys().map(case_of)).collect();
        lines.extend(
            cases
                .difference(&known)
                .map(|(topic, name)| format!("{device}, {topic}: \"{name}\" has no result")),
        );
    }
    lines
}

fn shown(reason: Option<&String>) -> String {
    reason.map_or_else(|| "ok".to_owned(), |reason| format!("skipped ({reason})"))
}

/// The file's text for a table.
fn print(table: &Table) -> String {
    let devices: Vec<_> = DEVICES.iter().filter(|device| table.contains_key(**device)).collect();
    let topics: BTreeSet<_> =
        table.values().flat_map(|results| results.keys().map(|(topic, _)| topic)).collect();
    let mut text = HEAD.to_owned();
    for topic in topics {
        let names: BTreeSet<_> = table
            .values()
            .flat_map(|results| results.keys().filter(|(of, _)| of == topic).map(|(_, name)| name))
            .collect();
        let _ = write!(text, "\n## {topic}, {} cases\n\n| case |", names.len());
        for device in &devices {
            let _ = write!(text, " {device} |");
        }
        let _ = writeln!(text, "\n|---|{}", "---|".repeat(devices.len()));
        let mut reasons: Vec<&str> = Vec::new();
        for name in names {
            let _ = write!(text, "| {name} |");
            for device in &devices {
                let cell = match table[**device].get(&(topic.clone(), name.clone())) {
                    None => String::new(),
                    Some(None) => "ok".to_owned(),
                    Some(Some(reason)) => {
                        let known = reasons.iter().position(|known| known == reason);
                        let number = known.unwrap_or_else(|| {
                            reasons.push(reason);
                            reasons.len() - 1
                        });
                        format!("skip {}", number + 1)
                    }
                };
                let _ = write!(text, " {cell} |");
            }
            text.push('\n');
        }
        if !reasons.is_empty() {
            text.push('\n');
        }
        for (number, reason) in reasons.iter().enumerate() {
            let _ = writeln!(text, "{}. {reason}", number + 1);
        }
    }
    text
}

const HEAD: &str = "\
# Conformance: cases and devices

A case has two forms, with the provider hidden and with it named; some cases have one, and all without ioctls run with it hidden. A
run that names no kernel has one form on each. `ok` means that each run passed, `skip` that the device or the kernel cannot run it, for
the reason with that number below the table.

`cargo xtask test` compares its results with these tables, and fails where they differ or where a case has no result on some device.
`cargo xtask test --kernel all --write-table` writes them; `cargo xtask table` adds the cases of one run.
";

/// Reads what [`print()`] wrote.
fn parse(text: &str) -> Table {
    let mut table = Table::new();
    for section in text.split("\n## ").skip(1) {
        let topic = section.split(',').next().unwrap_or_default();
        let reasons: BTreeMap<&str, &str> =
            section.lines().filter_map(|line| line.split_once(". ")).collect();
        let mut rows =
            section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")).map(|row| {
                let cells: Vec<_> = row.split('|').map(str::trim).collect();
                cells
            });
        let Some(devices) = rows.next() else { continue };
        for row in rows {
            for (device, cell) in devices.iter().zip(&row).skip(1).filter(|(_, cell)| !cell.is_empty()) {
                let reason =
                    cell.strip_prefix("skip ").map(|number| (*reasons.get(number).unwrap_or(&"")).to_owned());
                let results = table.entry((*device).to_owned()).or_default();
                results.insert((topic.to_owned(), row[0].to_owned()), reason);
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    fn table() -> Table {
        let soft = lines(&[
            "ok conformance.rc.a_send_arrives erased",
            "ok conformance.rc.a_send_arrives static",
            "skip conformance.odp.a_page_faults erased: the device has none: really",
            "skip conformance.odp.a_page_faults static: the device has none: really",
        ]);
        let rxe = lines(&[
            "ok conformance.rc.a_send_arrives erased",
            "skip conformance.rc.a_send_arrives static: why",
            "ok conformance.odp.a_page_faults erased",
            "ok conformance.odp.a_page_faults static",
        ]);
        [("soft", soft), ("rxe 6.1", rxe)]
            .into_iter()
            .map(|(device, lines)| (device.to_owned(), results(&lines)))
            .collect()
    }

    #[test]
    fn a_case_without_the_name_of_its_provider_keeps_its_result() {
        let known = table();
        let mut ran = known.clone();
        let (device, results) = ran.iter_mut().next().expect("a column");
        let device = device.clone();
        let case = results.keys().next().expect("a row").clone();
        results.insert(case.clone(), Some(format!("{UNNAMED} mlx5 (features of verbs-tests)")));
        assert_eq!(differences(&known, &ran).len(), 1);
        leave_unnamed(&known, &mut ran);
        assert_eq!(differences(&known, &ran), [""; 0]);
        ran.get_mut(&device).expect("the column").insert(case, Some("another reason".to_owned()));
        leave_unnamed(&known, &mut ran);
        assert_eq!(differences(&known, &ran).len(), 1);
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let text = print(&table());
        assert!(text.contains("## odp, 1 cases"), "{text}");
        assert!(text.contains("| a page faults | skip 1 | ok |"), "{text}");
        assert!(text.contains("1. the device has none: really\n"), "{text}");
        assert!(text.contains("| a send arrives, static |  | skip 1 |"), "{text}");
        assert_eq!(parse(&text), table());
    }

    #[test]
    fn other_results_new_cases_and_lost_cases_are_differences() {
        let known = table();
        assert_eq!(differences(&known, &known), [""; 0]);
        let soft = |of: &[&str]| Table::from([("soft".to_owned(), results(&lines(of)))]);
        let less = soft(&["ok conformance.rc.a_send_arrives erased"]);
        assert_eq!(differences(&known, &less), ["soft, odp: \"a page faults\" did not run"]);
        let other = soft(&[
            "skip conformance.rc.a_send_arrives erased: tired",
            "skip conformance.odp.a_page_faults erased: the device has none: really",
            "ok conformance.rc.new erased",
        ]);
        let expected =
            ["soft, rc: \"a send arrives\" was ok, is skipped (tired)", "soft, rc: \"new\" has no row"];
        assert_eq!(differences(&known, &other), expected);
        let elsewhere = Table::from([("rxe 9.9".to_owned(), Results::new())]);
        assert_eq!(differences(&known, &elsewhere), ["there is no column for rxe 9.9"]);
    }

    #[test]
    fn a_case_needs_a_result_on_devices_that_did_not_run_too() {
        let mut table = table();
        let soft = Table::from([("soft".to_owned(), Results::new())]);
        let of_6_1 = |lines: &[String]| lines.iter().filter(|line| line.starts_with("rxe 6.1,")).count();
        assert_eq!(of_6_1(&gaps(&table, &soft)), 0, "two rows by form are a result");
        add(
            table.get_mut("soft").unwrap(),
            results(&lines(&["ok conformance.rc.new erased", "ok conformance.rc.new static"])),
        );
        let of_6_1: Vec<_> =
            gaps(&table, &soft).into_iter().filter(|line| line.starts_with("rxe 6.1,")).collect();
        assert_eq!(of_6_1, ["rxe 6.1, rc: \"new\" has no result"]);
        assert_eq!(gaps(&table, &soft).iter().filter(|line| line.starts_with("rxe 5.10,")).count(), 3);
    }

    #[test]
    fn a_run_of_some_cases_replaces_these_alone() {
        let mut table = table();
        let column = table.get_mut("rxe 6.1").unwrap();
        let run = ["ok conformance.rc.a_send_arrives erased", "ok conformance.rc.a_send_arrives static"];
        add(column, results(&lines(&run)));
        let text = print(&table);
        assert!(text.contains("| a send arrives | ok | ok |"), "{text}");
        assert!(text.contains("| a page faults | skip 1 | ok |"), "{text}");
        assert!(!text.contains("static"), "{text}");
    }

    #[test]
    fn only_lines_of_the_suite_are_results() {
        assert!(is_result("ok conformance.rc.x erased") && is_result("skip conformance.rc.x: why"));
        assert!(!is_result("FAIL conformance.rc.x: why") && !is_result("ok lifecycle.x"));
    }
}
