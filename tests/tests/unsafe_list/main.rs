//! `docs/unsafe.md` is true: it lists, with a reason, exactly the files that allow unsafe code, the
//! `unsafe impl`s, and the safe functions with a parameter that could name anything.
//!
//! `BLESS=1 cargo test -p verbs-tests --test unsafe_list` rewrites the tables. It keeps reasons and
//! leaves new rows without one, so the test fails until all are written.

mod evasions;
mod rules;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use scan::{Found, scan};

const LIST: &str = "docs/unsafe.md";

/// The tables' headings, in order.
const TABLES: [&str; 3] = ["## Files", "## `unsafe impl`", "## Safe functions"];

/// A table: the reasons of its rows, by file and item.
type Table = BTreeMap<[String; 2], String>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// Returns the rows of the table under a heading.
fn table(text: &str, heading: &str) -> Table {
    let Some((_, rest)) = text.split_once(&format!("\n{heading}\n")) else { return Table::new() };
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let mut cells: Vec<String> =
            row.trim().trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
        let reason = cells.pop().unwrap_or_default();
        let file = cells.first().cloned().unwrap_or_default();
        ([file, cells.get(1).cloned().unwrap_or_default()], reason)
    })
    .collect()
}

/// Returns the differences between a table and the sources, one item in each line.
fn complaints(heading: &str, listed: &Table, found: &BTreeSet<[String; 2]>) -> Vec<String> {
    let missing = found.iter().filter(|row| !listed.contains_key(*row));
    let stale = listed.keys().filter(|row| !found.contains(*row));
    let unreasoned = listed.iter().filter(|(row, reason)| reason.is_empty() && found.contains(*row));
    let line = |what: &str, [file, item]: &[String; 2]| format!("{heading}: {what}: {file} {item}");
    missing
        .map(|row| line("not in the list", row))
        .chain(stale.map(|row| line("in the list, but not in the sources", row)))
        .chain(unreasoned.map(|(row, _)| line("without a reason", row)))
        .collect()
}

/// Returns the rows of a table as text.
fn rows(listed: &Table, found: &BTreeSet<[String; 2]>) -> String {
    let has_items = found.iter().any(|[_, item]| !item.is_empty());
    let mut text = String::from(if has_items {
        "| file | item | reason |\n|---|---|---|\n"
    } else {
        "| file | reason |\n|---|---|\n"
    });
    for row in found {
        let reason = listed.get(row).map(String::as_str).unwrap_or_default();
        let [file, item] = row;
        let cells = if has_items { vec![file, item, reason] } else { vec![file.as_str(), reason] };
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

/// Returns the list with its tables rewritten.
fn blessed(text: &str, found: &[&BTreeSet<[String; 2]>; 3]) -> String {
    let mut text = text.to_owned();
    for (heading, found) in TABLES.iter().zip(found) {
        let rows = rows(&table(&text, heading), found);
        let start = text.find(&format!("\n{heading}\n")).expect("each heading") + heading.len() + 2;
        let end = text[start..].find("\n## ").map_or(text.len(), |end| start + end);
        let prose: String =
            text[start..end].lines().filter(|l| !l.starts_with('|')).map(|l| format!("{l}\n")).collect();
        let section = format!("{}\n\n{rows}", prose.trim_end());
        text.replace_range(start..end, &section);
    }
    text
}

#[test]
fn every_place_of_unsafe_code_is_listed_with_a_reason() {
    let path = root().join(LIST);
    let text = std::fs::read_to_string(&path).expect("the list");
    let Found { islands, impls, functions } = scan(root());
    let found = [&islands, &impls, &functions];
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, blessed(&text, &found)).expect("the list can be written");
    }
    let text = std::fs::read_to_string(&path).expect("the list");
    let complaints: Vec<_> = TABLES
        .iter()
        .zip(found)
        .flat_map(|(heading, found)| complaints(heading, &table(&text, heading), found))
        .collect();
    assert!(
        complaints.is_empty(),
        "{} is not true; BLESS=1 writes its tables, reasons are for you:\n{}",
        LIST,
        complaints.join("\n")
    );
}

fn of(text: &str) -> Found {
    let mut found = Found::default();
    found.file("roce/src/y.rs", text);
    found
}

fn items(rows: &BTreeSet<[String; 2]>) -> Vec<&str> {
    rows.iter().map(|[_, item]| item.as_str()).collect()
}

#[test]
fn what_could_name_anything_is_found_and_nothing_else() {
    let found = of("
        pub fn map(fd: BorrowedFd<'_>, len: usize) {}
        pub fn post(lkey: u32, count: u32) {}
        pub fn peek(at: *const u8) {}
        pub fn open(file: impl AsFd) {}
        pub fn poll<F: std::os::fd::AsFd>(file: F) {}
        pub fn plain(len: usize, name: &str) {}
        pub unsafe fn vouched(at: *mut u8) {}
        pub(crate) fn inner(fd: OwnedFd) {}
        impl Queue { pub fn poke(&self, at: NonNull<u8>) {} fn own(&self, fd: i32) {} }
        impl From<OwnedFd> for Queue { fn from(fd: OwnedFd) -> Self { Self } }
        pub trait Ops { fn destroy(&self, mr_handle: u32); }
        #[cfg(test)] mod tests { pub fn odd(fd: i32) {} }
    ");
    let wanted = [
        "`Ops::destroy(mr_handle: u32)`",
        "`Queue::from(fd: OwnedFd)`",
        "`Queue::poke(at: NonNull<u8>)`",
        "`map(fd: BorrowedFd<'_>)`",
        "`open(file: impl AsFd)`",
        "`peek(at: *const u8)`",
        "`poll(a descriptor by a bound)`",
        "`post(lkey: u32)`",
    ];
    assert_eq!(items(&found.functions), wanted);
    assert!(found.islands.is_empty() && found.impls.is_empty());
}

#[test]
fn unsafe_impls_are_found_also_in_macros_and_files_by_their_attribute() {
    let found = of("
        #![allow(unsafe_code)]
        unsafe impl<T: Send> Send for Ring<T> {}
        macro_rules! all { ($t:ty) => { unsafe impl Sync for $t {} } }
    ");
    assert_eq!(
        items(&found.impls),
        ["`unsafe impl Send for Ring<T>`", "`unsafe impl Sync for $ t` in a macro"]
    );
    assert_eq!(found.islands.len(), 1);
    assert!(of("//! allow(unsafe_code) in prose\n").islands.is_empty());
}

#[test]
fn a_row_that_is_missing_stale_or_without_a_reason_is_named() {
    let text = "\n## `unsafe impl`\n\n| file | item | reason |\n|---|---|---|\n| a.rs | `one` | it is |\n| b.rs | `two` |  |\n| c.rs | `three` | was |\n\n## next\n";
    let row = |file: &str, item: &str| [file.to_owned(), item.to_owned()];
    let found = [row("a.rs", "`one`"), row("b.rs", "`two`"), row("d.rs", "`four`")].into();
    let lines = complaints("x", &table(text, TABLES[1]), &found);
    let wanted = [
        "x: not in the list: d.rs `four`",
        "x: in the list, but not in the sources: c.rs `three`",
        "x: without a reason: b.rs `two`",
    ];
    assert_eq!(lines, wanted);
}

#[test]
fn blessing_keeps_reasons_and_leaves_new_ones_empty() {
    let list = "# x\n\n## Files\n\nProse.\n\n| file | reason |\n|---|---|\n| a.rs | it is |\n| gone.rs | was |\n\n## `unsafe impl`\n\n## Safe functions\n";
    let row = |file: &str| [file.to_owned(), String::new()];
    let (files, none): (BTreeSet<_>, _) = ([row("a.rs"), row("b.rs")].into(), BTreeSet::new());
    let text = blessed(list, &[&files, &none, &none]);
    assert!(
        text.contains("Prose.\n\n| file | reason |\n|---|---|\n| a.rs | it is |\n| b.rs |  |\n"),
        "{text}"
    );
    assert!(!text.contains("gone.rs"));
    assert_eq!(complaints("x", &table(&text, TABLES[0]), &files), ["x: without a reason: b.rs "]);
    assert_eq!(blessed(&text, &[&files, &none, &none]), text, "blessing twice changes nothing");
}
