//! The tables in the manual's pages about porting from other libraries.
//!
//! The page about C has rows of `names.txt`. `ibverbs.txt` and `sideway.txt` list the public types
//! and functions of these crates, in the versions named by the pages; each has one row. Links in
//! rows are paths below `verbs::`, which rustdoc resolves, too.

use std::fs;
use std::path::Path;

use super::page::{Paths, rows};
use super::scan::Scan;

/// A page with a table.
struct Page {
    file: &'static str,
    /// The heading of the table or tables.
    heading: &'static str,
}

const C: Page = Page { file: "from_c.md", heading: "# The calls of a program" };

/// The pages about crates, each with the crate's list of names.
const CRATES: &[(Page, &str)] = &[
    (Page { file: "from_ibverbs.md", heading: "# Every name" }, include_str!("ibverbs.txt")),
    (Page { file: "from_sideway.md", heading: "# Every name" }, include_str!("sideway.txt")),
];

impl Page {
    /// Returns the rows: the names of the other library and our side.
    fn rows(&self, root: &Path) -> Vec<(Vec<String>, String)> {
        let path = root.join("libibverbs-rs/src/guide").join(self.file);
        let page = fs::read_to_string(path).expect("a page of the manual");
        let rows = rows(section(&page, self.heading)).into_iter();
        rows.map(|(names, here)| (names.split("`, `").map(str::to_owned).collect(), here)).collect()
    }
}

/// Returns the text from a heading to the next one of its level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("{heading}\n")).expect("the heading");
    rest.split_once("\n# ").map_or(rest, |(section, _)| section)
}

/// Returns the items linked in a row.
fn links(here: &str) -> impl Iterator<Item = &str> {
    here.split("[`").skip(1).filter_map(|rest| rest.split_once("`]")).map(|(path, _)| path)
}

/// Adds the items linked in the tables.
pub(crate) fn add_paths<'a>(root: &Path, scan: &'a Scan, paths: &mut Paths<'a>) {
    for page in [&C].into_iter().chain(CRATES.iter().map(|(page, _)| page)) {
        for (names, here) in page.rows(root) {
            links(&here).for_each(|path| paths.add(scan, &names.join(", "), path));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::page::names;
    use super::super::root;
    use super::super::scan::scan;
    use super::*;

    #[test]
    fn every_link_of_a_migration_page_names_an_item() {
        let scan = scan(&root());
        for (page, least) in [(&C, 60), (&CRATES[0].0, 60), (&CRATES[1].0, 200)] {
            let mut checked = 0;
            for (names, here) in page.rows(&root()) {
                assert!(!here.trim().is_empty(), "{}: {names:?} has an empty row", page.file);
                for path in links(&here) {
                    assert!(scan.items.contains_key(path), "{}: {names:?}: no item {path}", page.file);
                    checked += 1;
                }
            }
            assert!(checked >= least, "{}: {checked} links", page.file);
        }
    }

    #[test]
    fn every_c_name_of_the_migration_page_is_one_of_libibverbs() {
        let known: BTreeSet<_> = names().into_iter().map(|(_, name)| name).collect();
        for name in C.rows(&root()).iter().flat_map(|(names, _)| names) {
            assert!(known.contains(name.as_str()), "{name}");
        }
    }

    #[test]
    fn every_public_name_of_a_crate_has_one_row() {
        for (page, names) in CRATES {
            let listed: Vec<_> = page.rows(&root()).into_iter().flat_map(|(names, _)| names).collect();
            let distinct: BTreeSet<_> = listed.iter().map(String::as_str).collect();
            assert_eq!(distinct.len(), listed.len(), "{}: a name has two rows", page.file);
            assert_eq!(distinct, names.lines().collect(), "{}", page.file);
        }
    }

    #[test]
    fn rows_outside_of_the_table_are_no_rows_of_it() {
        let page = "# One\n| `a` | [`A`] |\n# Two\n## Part\n| `b`, `c` | [`B::b`], [`C`]; [d](e) |\n# Three\n| `f` | |\n";
        let rows = rows(section(page, "# Two"));
        assert_eq!(rows, [("b`, `c".to_owned(), "[`B::b`], [`C`]; [d](e)".to_owned())]);
        assert_eq!(links(&rows[0].1).collect::<Vec<_>>(), ["B::b", "C"]);
    }
}
