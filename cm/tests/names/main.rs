//! Checks that docs/connecting.md has a correct row for every function of librdmacm.
//!
//! `names.txt` lists the functions of `rdma_cma.h` and `rdma_verbs.h` of rdma-core 65, including
//! inline functions. The page is part of the crate's documentation, so rustdoc resolves each of its
//! links. This test compares the rows with `names.txt` and with the `#[doc(alias = "...")]` names
//! in the sources.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const NAMES: &str = include_str!("names.txt");

/// A row of the table: the C name and our counterpart.
struct Row {
    name: String,
    here: String,
}

fn rows() -> Vec<Row> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/connecting.md");
    let page = fs::read_to_string(page).unwrap();
    let cells = page.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `rdma_")?.split_once("` | ")?;
        let (here, _note) = rest.strip_suffix('|')?.split_once(" | ")?;
        Some(Row { name: format!("rdma_{name}"), here: here.trim().to_owned() })
    });
    cells.collect()
}

impl Row {
    /// Returns the last segments of the linked paths.
    fn links(&self) -> impl Iterator<Item = &str> {
        let links = self.here.split("[`").skip(1).filter_map(|rest| rest.split_once("`]"));
        links.map(|(path, _)| path.rsplit("::").next().unwrap_or(path))
    }
}

/// Returns the items for each C name, found in the sources as text.
fn aliases() -> BTreeMap<String, BTreeSet<String>> {
    let (mut found, mut folders) = (BTreeMap::<_, BTreeSet<_>>::new(), Vec::<PathBuf>::new());
    folders.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                scan(&fs::read_to_string(path).unwrap(), &mut found);
            }
        }
    }
    found
}

fn scan(text: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
    let mut waiting = Vec::new();
    for code in text.lines().map(str::trim) {
        if let Some(rest) = code.strip_prefix("#[doc(alias = \"") {
            waiting.extend(rest.strip_suffix("\")]").map(str::to_owned));
        } else if !code.starts_with("#[") && !code.starts_with("//") {
            let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            let item = words.filter(|word| !word.is_empty()).find(|word| !KEYWORDS.contains(word));
            for alias in waiting.drain(..) {
                found.entry(alias).or_default().extend(item.map(str::to_owned));
            }
        }
    }
}

/// The keywords before the name of an item.
const KEYWORDS: &[&str] = &["pub", "const", "fn", "struct", "enum", "type"];

#[test]
fn every_function_of_librdmacm_has_one_row() {
    let rows = rows();
    let distinct: BTreeSet<_> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(distinct.len(), rows.len(), "a name has two rows");
    assert_eq!(distinct, NAMES.lines().collect());
    assert!(rows.iter().all(|row| !row.here.is_empty()), "an empty row");
}

#[test]
fn a_row_links_an_item_that_a_search_for_the_name_finds() {
    let aliases = aliases();
    assert!(aliases.len() > 50, "{} names", aliases.len());
    for row in rows() {
        if row.here.contains("dropping") || row.here.contains("not needed") {
            continue;
        }
        // Items of `verbs` have only the aliases for libibverbs.
        let found = match aliases.get(&row.name) {
            Some(items) => row.links().any(|link| items.contains(link)),
            None => row.here.split("[`").skip(1).all(|link| link.starts_with("verbs::")),
        };
        assert!(found, "{}: {}", row.name, row.here);
    }
}

#[test]
fn an_alias_belongs_to_the_item_after_it() {
    let mut found = BTreeMap::new();
    scan(
        "#[doc(alias = \"rdma_a\")]\n#[derive(Debug)]\npub struct A;\n/// Text.\n#[doc(alias = \"rdma_b\")]\n\
         #[doc(alias = \"rdma_c\")]\n    pub const fn b(&self) {\npub fn c() {}",
        &mut found,
    );
    let found: Vec<_> =
        found.into_iter().map(|(alias, items)| (alias, items.into_iter().collect())).collect();
    let of = |alias: &str, item: &str| (alias.to_owned(), vec![item.to_owned()]);
    assert_eq!(found, [of("rdma_a", "A"), of("rdma_b", "b"), of("rdma_c", "b")]);
}
