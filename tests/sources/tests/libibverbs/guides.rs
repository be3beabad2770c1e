//! The tables in the manual's pages about porting from other libraries.
//!
//! The rows of the page about C name entries of `names.txt`. `ibverbs.txt` and `sideway.txt` list
//! the public types and functions of these crates, in the versions that the pages state. Each type
//! and function has one row. rustdoc resolves the links in the rows.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::page::{names, rows};
use super::root;

/// A page with a table.
struct Page {
    file: &'static str,
    /// The heading above the table or tables.
    heading: &'static str,
}

const C: Page = Page { file: "from_c.md", heading: "# The calls of a program" };

/// The pages about crates, each with the crate's list of names.
const CRATES: &[(Page, &str)] = &[
    (Page { file: "from_ibverbs.md", heading: "# Every name" }, include_str!("ibverbs.txt")),
    (Page { file: "from_sideway.md", heading: "# Every name" }, include_str!("sideway.txt")),
];

impl Page {
    /// Returns the rows: the names of the other library and our counterparts.
    fn rows(&self, root: &Path) -> Vec<(Vec<String>, String)> {
        let path = root.join("libibverbs-rs/src/guide").join(self.file);
        let page = fs::read_to_string(path).expect("a page of the manual");
        let rows = rows(section(&page, self.heading)).into_iter();
        rows.map(|(names, here)| (names.split("`, `").map(str::to_owned).collect(), here)).collect()
    }
}

/// Returns the text from a heading to the next heading of the same level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("{heading}\n")).expect("the heading");
    rest.split_once("\n# ").map_or(rest, |(section, _)| section)
}

#[test]
fn every_c_name_of_the_migration_page_is_one_of_libibverbs() {
    let known: BTreeSet<_> = names().into_iter().map(|(_, name)| name).collect();
    let rows = C.rows(&root());
    assert!(rows.len() > 25, "{} rows", rows.len());
    for name in rows.iter().flat_map(|(names, _)| names) {
        assert!(known.contains(name.as_str()), "{name}");
    }
}

#[test]
fn every_public_name_of_a_crate_has_one_row() {
    for (page, names) in CRATES {
        let rows = page.rows(&root());
        assert!(rows.iter().all(|(_, here)| !here.trim().is_empty()), "{}: an empty row", page.file);
        let listed: Vec<_> = rows.into_iter().flat_map(|(names, _)| names).collect();
        let distinct: BTreeSet<_> = listed.iter().map(String::as_str).collect();
        assert_eq!(distinct.len(), listed.len(), "{}: a name has two rows", page.file);
        assert_eq!(distinct, names.lines().collect(), "{}", page.file);
    }
}
