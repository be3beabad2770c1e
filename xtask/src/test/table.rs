//! The results of the conformance suite: a table of cases and devices, which each run writes to
//! [`FILE`].
//!
//! Invariant: no case is lost in silence. Each guest counts the cases that it skips. A case with a
//! result on one device and none on another one is a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

use super::stage::StageResult;
use crate::cargo;

/// The file, relative to the repository's root.
const FILE: &str = "target/results/conformance.md";

/// The start of the reason for skipping a case in a program that does not name the provider of its
/// device (`fabric::open_named` of verbs-tests).
pub(super) const UNNAMED: &str = "this program names no provider";

/// A case: its topic and its name.
type Case<'a> = (&'a str, &'a str);

/// The result of a case: its verdict and the reason.
type Outcome<'a> = (&'a str, &'a str);

/// The outcomes by form: `erased`, `static`, or empty for a case with one form.
type Forms<'a> = BTreeMap<&'a str, Outcome<'a>>;

/// The results of each case by device.
type Table<'a> = BTreeMap<Case<'a>, BTreeMap<&'a str, Forms<'a>>>;

/// Returns whether a line is the result of a conformance case.
pub(super) fn is_result(line: &str) -> bool {
    parse(line).is_some()
}

/// Parses `skip conformance.TOPIC.NAME erased: why` into the case, the form and the outcome.
fn parse(line: &str) -> Option<(Case<'_>, &str, Outcome<'_>)> {
    let (verdict, rest) = line.split_once(' ').filter(|(word, _)| ["ok", "skip", "FAIL"].contains(word))?;
    let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
    let (topic, name) = name.strip_prefix("conformance.")?.split_once('.')?;
    let (name, form) = match name.rsplit_once(' ') {
        Some((name, form @ ("erased" | "static"))) => (name, form),
        _ => (name, ""),
    };
    Some(((topic, name), form, (verdict, why)))
}

/// Writes the results of the devices that ran the whole suite, and checks that none lacks a case.
pub(super) fn write(stages: &[StageResult], result: &mut StageResult) {
    let (mut table, mut devices) = (Table::new(), Vec::new());
    for stage in stages {
        let Some(device) = stage.device.as_deref() else { continue };
        // A failure stands for the cases that did not run after it.
        devices.push((device, stage.counts.failed == 0));
        for (case, form, of) in stage.conformance.iter().filter_map(|line| parse(line)) {
            table.entry(case).or_default().entry(device).or_default().insert(form, of);
        }
    }
    if devices.is_empty() {
        return result.skip("conformance results: no device ran the whole suite");
    }
    match save(&print(&table, &devices)) {
        Ok(()) => result.counts.passed += 1,
        Err(error) => result.fail(format!("{error:#}")),
    }
    println!("{FILE}: {} cases on {} devices", table.len(), devices.len());
    missing(&table, &devices).into_iter().for_each(|line| result.fail(line));
}

fn save(text: &str) -> Result<()> {
    let path = cargo::root().join(FILE);
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
    written.with_context(|| format!("cannot write {FILE}"))
}

/// Returns a line for each case without a result on a device that ran without a failure.
fn missing(table: &Table<'_>, devices: &[(&str, bool)]) -> Vec<String> {
    let all = devices.iter().filter(|(_, is_whole)| *is_whole);
    all.flat_map(|(device, _)| {
        let cases = table.iter().filter(move |(_, results)| !results.contains_key(device));
        cases.map(move |((topic, name), _)| format!("{device}: conformance.{topic}.{name} did not run"))
    })
    .collect()
}

fn print(table: &Table<'_>, devices: &[(&str, bool)]) -> String {
    let names: Vec<_> = devices.iter().map(|(device, _)| *device).collect();
    let mut text = "# Results of the conformance suite\n".to_owned();
    for topic in table.keys().map(|(topic, _)| *topic).collect::<BTreeSet<_>>() {
        let _ = write!(text, "\n## {topic}\n\n| case | {} |\n", names.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(names.len()));
        let mut reasons = Vec::new();
        for ((_, name), results) in table.iter().filter(|((of, _), _)| *of == topic) {
            let cells: Vec<_> = names.iter().map(|device| cell(results.get(device), &mut reasons)).collect();
            let _ = writeln!(text, "| {} | {} |", name.replace('_', " "), cells.join(" | "));
        }
        for (index, reason) in reasons.iter().enumerate() {
            let _ = writeln!(text, "{}{}. {reason}", if index == 0 { "\n" } else { "" }, index + 1);
        }
    }
    text
}

/// Returns a device's cell of a case, once if its forms agree. Reasons become numbers.
fn cell<'a>(forms: Option<&Forms<'a>>, reasons: &mut Vec<&'a str>) -> String {
    let mut result = |(verdict, why): (&str, &'a str)| {
        let at = reasons.iter().position(|known| *known == why).unwrap_or(reasons.len());
        if !why.is_empty() && at == reasons.len() {
            reasons.push(why);
        }
        if why.is_empty() { verdict.to_owned() } else { format!("{verdict} {}", at + 1) }
    };
    let cells: Vec<_> = forms.into_iter().flatten().map(|(form, of)| (form, result(*of))).collect();
    match &cells[..] {
        [(_, first), rest @ ..] if rest.iter().all(|(_, other)| other == first) => first.clone(),
        _ => cells.iter().map(|(form, of)| format!("{form} {of}")).collect::<Vec<_>>().join(", "),
    }
}

#[test]
fn a_run_is_a_table_and_a_case_that_one_device_lacks_is_missing() {
    let erased = "skip conformance.odp.a_page_faults erased: it has none: really";
    let named = "skip conformance.odp.a_page_faults static: it has none: really";
    let rxe = ["ok conformance.rc.a_send erased", "FAIL conformance.rc.a_send static: why"];
    let mut table = Table::new();
    for (device, lines) in [("soft", [erased, named]), ("rxe 6.1", rxe)] {
        for (case, form, result) in lines.into_iter().filter_map(parse) {
            table.entry(case).or_default().entry(device).or_default().insert(form, result);
        }
    }
    let devices = [("soft", true), ("rxe 6.1", false)];
    let text = print(&table, &devices);
    let odp = "\n## odp\n\n| case | soft | rxe 6.1 |\n|---|---|---|\n| a page faults | skip 1 |  |\n";
    assert!(text.contains(&format!("{odp}\n1. it has none: really\n")), "{text}");
    assert!(text.contains("| a send |  | erased ok, static FAIL 1 |\n\n1. why\n"), "{text}");
    assert_eq!(missing(&table, &devices), ["soft: conformance.rc.a_send did not run"]);
    assert!(is_result(erased) && !is_result("ok lifecycle.x") && !is_result("1 passed, 0 failed, 0 skipped"));
}
