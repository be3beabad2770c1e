//! docs/libibverbs.md: its rows, and the paths that they name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::guides;
use super::scan::Scan;

const NAMES: &str = include_str!("names.txt");

/// Code in the page's reasons other than paths below `verbs::`, with explanations.
const NO_PATHS: &[(&str, &str)] = &[
    ("&[u8]", "a type of Rust"),
    ("ENODATA", "an errno"),
    ("Ok", "a variant of Rust's"),
    ("Option", "a type of Rust"),
    ("RDMAV_ALLOW_DISASSOC_DESTROY", "an environment variable"),
    ("[u8; 6]", "a type of Rust"),
];

/// Returns the names of libibverbs with their kinds.
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

/// Returns the code in a row: our paths and other words.
pub(crate) fn quoted(row: &str) -> impl Iterator<Item = &str> {
    row.split('`').skip(1).step_by(2)
}

/// The paths that pages name.
#[derive(Default)]
pub(crate) struct Paths<'a> {
    /// The names of items.
    pub(crate) items: BTreeSet<&'a str>,
    /// Other words, each with the name in its row.
    pub(crate) unknown: Vec<String>,
}

impl<'a> Paths<'a> {
    pub(crate) fn add(&mut self, scan: &'a Scan, name: &str, path: &str) {
        match scan.items.get_key_value(path) {
            Some((path, _)) => drop(self.items.insert(path)),
            None => self.unknown.push(format!("{name}: {path}")),
        }
    }
}

/// Returns the paths of this page and of the tables in the manual.
pub(crate) fn paths<'a>(root: &Path, scan: &'a Scan) -> Paths<'a> {
    let names: BTreeSet<_> = names().into_iter().map(|(_, name)| name).collect();
    let is_other = |word: &str| NO_PATHS.iter().any(|(other, _)| *other == word) || names.contains(word);
    let mut paths = Paths::default();
    for (name, here) in rows(&read(root)) {
        quoted(&here).filter(|word| !is_other(word)).for_each(|word| paths.add(scan, &name, word));
    }
    guides::add_paths(root, scan, &mut paths);
    paths
}
