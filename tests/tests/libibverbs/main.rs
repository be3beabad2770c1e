//! docs/libibverbs.md has a row for every name of libibverbs, and the rows are true.
//!
//! `names.txt` lists the names of rdma-core 65: the symbols of the version map, and the inline
//! functions, structs, enumerations, constants and macros of `verbs.h`, `verbs_api.h` and
//! `tm_types.h`. A name in an item's `#[doc(alias = "...")]` has this item in its row. Every other
//! row is written by hand: a reason, a path, or `not yet`.
//!
//! `BLESS=1 cargo test -p verbs-tests --test libibverbs` generates the rows for aliases, `not yet`
//! for names without a row, the numbers at the top, and the test `libibverbs_paths`. That test
//! compiles each of our paths in the page or in a table of the manual. It is a separate test, so
//! that this one still builds after an item is renamed, and regenerates it. [`guides`] checks the
//! tables of the manual in the same way.

mod code;
mod guides;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use scan::Scan;

const NOT_YET: &str = "not yet";
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

/// The kinds of names and their headings in the page.
const KINDS: &[(&str, &str)] = &[
    ("function", "Functions"),
    ("inline", "Inline functions"),
    ("struct", "Structs"),
    ("enum", "Enumerations"),
    ("constant", "Constants"),
    ("macro", "Macros"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The names of libibverbs with their kinds.
fn names() -> Vec<(&'static str, &'static str)> {
    NAMES.lines().map(|line| line.split_once(' ').expect("a kind and a name")).collect()
}

/// Returns the rows of the page: the C name and the cell beside it.
fn rows(page: &str) -> Vec<(String, String)> {
    let cells = page.lines().filter_map(|line| {
        let (name, here) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name.to_owned(), here.strip_suffix(" |")?.to_owned()))
    });
    cells.collect()
}

/// Returns the row generated from the sources.
fn generated(scan: &Scan, name: &str) -> Option<String> {
    let paths = scan.aliases.get(name)?;
    Some(paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", "))
}

/// Returns the page with the rows generated from the sources and the others unchanged.
fn blessed(scan: &Scan, page: &str) -> String {
    let old: BTreeMap<_, _> = rows(page).into_iter().collect();
    let head =
        page.split_inclusive('\n').take_while(|line| !line.starts_with("| kind |")).collect::<String>();
    let (mut tables, mut totals) = (String::new(), String::new());
    let mut sums = [0; 4];
    for (kind, heading) in KINDS {
        let (mut here, mut reasons, mut missing) = (0, 0, 0);
        let _ = write!(tables, "\n## {heading}\n\n| C | here |\n|---|---|\n");
        for (_, name) in names().into_iter().filter(|(of, _)| of == kind) {
            let row = generated(scan, name)
                .or_else(|| old.get(name).filter(|row| !is_stale(scan, row)).cloned())
                .unwrap_or_else(|| NOT_YET.to_owned());
            match () {
                () if row == NOT_YET => missing += 1,
                () if row.starts_with('`') => here += 1,
                () => reasons += 1,
            }
            let _ = writeln!(tables, "| `{name}` | {row} |");
        }
        let all = here + reasons + missing;
        let _ = writeln!(totals, "| {} | {all} | {here} | {reasons} | {missing} |", heading.to_lowercase());
        for (sum, count) in sums.iter_mut().zip([all, here, reasons, missing]) {
            *sum += count;
        }
    }
    let [all, here, reasons, missing] = sums;
    format!(
        "{head}| kind | names | here | not needed | not yet |\n|---|---|---|---|---|\n{totals}\
         | all | {all} | {here} | {reasons} | {missing} |\n{tables}"
    )
}

/// Returns whether a row consists of paths and one is gone, because the item lost its alias.
fn is_stale(scan: &Scan, row: &str) -> bool {
    row.starts_with('`') && quoted(row).any(|path| !scan.items.contains_key(path))
}

/// Returns the code in a row: our paths and other words.
fn quoted(row: &str) -> impl Iterator<Item = &str> {
    row.split('`').skip(1).step_by(2)
}

/// Returns the paths named in the rows, each of which must be an item.
fn paths<'a>(scan: &'a Scan, rows: &[(String, String)]) -> BTreeSet<&'a str> {
    let names: BTreeSet<_> = names().into_iter().map(|(_, name)| name).collect();
    let is_other = |word: &str| NO_PATHS.iter().any(|(other, _)| *other == word) || names.contains(word);
    let words = rows.iter().flat_map(|(name, here)| quoted(here).map(move |word| (name, word)));
    let (mut paths, mut unknown) = (BTreeSet::new(), Vec::new());
    for (name, word) in words.filter(|(_, word)| !is_other(word)) {
        match scan.items.get_key_value(word) {
            Some((path, _)) => _ = paths.insert(path.as_str()),
            None => unknown.push(format!("{name}: {word}")),
        }
    }
    assert!(unknown.is_empty(), "neither items nor rows of NO_PATHS: {unknown:#?}");
    paths
}

#[test]
fn every_name_of_libibverbs_has_a_true_row() {
    let page_file = root().join("docs/libibverbs.md");
    let scan = scan::scan(&root());
    let page = fs::read_to_string(&page_file).unwrap();
    let new_page = blessed(&scan, &page);
    let mut paths = paths(&scan, &rows(&new_page));
    paths.extend(guides::paths(&scan));
    let mut files = vec![(page_file, new_page)];
    for (name, text) in code::files(&scan, &paths) {
        files.push((root().join("tests/tests/libibverbs_paths").join(name).with_extension("rs"), text));
    }
    if std::env::var_os("BLESS").is_some() {
        // Replaced atomically, because the other tests read them at the same time.
        for (file, text) in files {
            let new_file = file.with_extension("new");
            fs::write(&new_file, text).unwrap();
            fs::rename(new_file, file).unwrap();
        }
        return;
    }
    for (file, new) in files {
        let old = fs::read_to_string(&file).unwrap();
        let at = old.lines().zip(new.lines()).find(|(old, new)| old != new);
        assert!(
            old == new,
            "{}: {at:?}: run BLESS=1 cargo test -p verbs-tests --test libibverbs, and read the difference",
            file.display()
        );
    }
}

#[test]
fn every_path_of_the_pages_is_compiled() {
    if std::env::var_os("BLESS").is_some() {
        // Another test replaces the page and the code.
        return;
    }
    let scan = scan::scan(&root());
    let page = fs::read_to_string(root().join("docs/libibverbs.md")).unwrap();
    let mut paths = paths(&scan, &rows(&page));
    assert!(paths.len() > 700, "{} paths in the page", paths.len());
    paths.extend(guides::paths(&scan));
    let mut lines = 0;
    for (file, _) in code::FILES {
        let file = root().join("tests/tests/libibverbs_paths").join(file).with_extension("rs");
        let code = fs::read_to_string(file).unwrap();
        let code = code.lines().map(str::trim_start);
        lines += code.filter(|line| line.ends_with(" as _;") || line.starts_with("let _")).count();
    }
    assert_eq!(lines, paths.len());
}

#[test]
fn no_name_is_left_to_be_written() {
    let page = fs::read_to_string(root().join("docs/libibverbs.md")).unwrap();
    let left: Vec<_> = rows(&page).into_iter().filter(|(_, here)| here == NOT_YET).collect();
    assert!(left.is_empty(), "each needs a counterpart or a reason: {left:?}");
}

#[test]
fn every_row_is_of_a_name_and_no_name_has_two() {
    let page = fs::read_to_string(root().join("docs/libibverbs.md")).unwrap();
    let rows = rows(&page);
    let distinct: BTreeSet<_> = rows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(distinct.len(), rows.len(), "a name has two rows");
    let listed: BTreeSet<_> = names().into_iter().map(|(_, name)| name).collect();
    assert_eq!(distinct, listed);
    assert!(rows.iter().all(|(_, here)| !here.trim().is_empty()), "an empty row");
}

#[test]
fn a_name_that_loses_its_item_is_not_there_any_more() {
    let page = "head\n\n| kind | names |\n\n| C | here |\n|---|---|\n| `ibv_rate` | `Gone::rate` |\n\
                | `ibv_qp_state` | a reason |\n";
    let new = blessed(&Scan::default(), page);
    assert!(new.starts_with("head\n\n| kind | names | here |"), "{new}");
    assert!(new.contains("| `ibv_rate` | not yet |"), "{new}");
    assert!(new.contains("| `ibv_qp_state` | a reason |"), "{new}");
}
