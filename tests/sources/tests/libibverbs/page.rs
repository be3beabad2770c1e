//! docs/libibverbs.md: its rows and the paths in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::scan::Scan;

const NAMES: &str = include_str!("names.txt");

/// Code spans in the page's reasons that are not paths below `verbs::`, with explanations.
const NO_PATHS: &[(&str, &str)] = &[
    ("&[u8]", "a type of Rust"),
    ("ENODATA", "an errno"),
    ("Ok", "a variant of Rust's"),
    ("Option", "a type of Rust"),
    ("RDMAV_ALLOW_DISASSOC_DESTROY", "an environment variable"),
    ("[u8; 6]", "a type of Rust"),
];

/// Returns the libibverbs names, each with its kind.
pub(crate) fn names() -> Vec<(&'static str, &'static str)> {
    NAMES.lines().map(|line| line.split_once(' ').expect("a kind and a name")).collect()
}

/// Returns the text of the page.
pub(crate) fn read(root: &Path) -> String {
    fs::read_to_string(root.join("docs/libibverbs.md")).expect("docs/libibverbs.md can be read")
}

/// Returns the rows of a page: the C name and the cell beside it.
pub(crate) fn rows(page: &str) -> Vec<(String, String)> {
    let cells = page.lines().filter_map(|line| {
        let (name, here) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name.to_owned(), here.strip_suffix(" |")?.to_owned()))
    });
    cells.collect()
}

/// Returns the code spans in a row, which are paths of our items or other words.
pub(crate) fn quoted(row: &str) -> impl Iterator<Item = &str> {
    row.split('`').skip(1).step_by(2)
}

/// Returns the number of item paths in the page, and the unresolved code spans, each with its row's
/// name. A code span is unresolved if it is neither an item's path nor a libibverbs name nor in
/// [`NO_PATHS`].
pub(crate) fn check(page: &str, scan: &Scan) -> (usize, Vec<String>) {
    let names: BTreeSet<_> = names().into_iter().map(|(_, name)| name).collect();
    let is_other = |word: &str| NO_PATHS.iter().any(|(other, _)| *other == word) || names.contains(word);
    let (mut known, mut unknown) = (0, Vec::new());
    for (name, here) in rows(page) {
        for word in quoted(&here).filter(|word| !is_other(word)) {
            if scan.items.contains(word) {
                known += 1;
            } else {
                unknown.push(format!("{name}: {word}"));
            }
        }
    }
    (known, unknown)
}
