//! docs/libibverbs.md has a row for every name of libibverbs, and the rows are true.
//!
//! `names.txt` lists the names of rdma-core 65: those of the version map, and the inline functions,
//! structs, enumerations, constants and macros of `verbs.h`, `verbs_api.h` and `tm_types.h`. A name
//! that an item of the sources carries as `#[doc(alias = "...")]` gets that item as its row. Every
//! other row is written by hand: a reason, a path, or `not yet`.
//!
//! `BLESS=1 cargo test -p verbs-tests --test libibverbs` writes the rows that follow from the
//! sources, `not yet` for names without a row, the numbers at the top, and `paths.rs`, which
//! compiles each type and constant. [`guides`] checks the tables of the manual in the same way.

mod guides;
mod paths;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use scan::Scan;

const NOT_YET: &str = "not yet";
const NAMES: &str = include_str!("names.txt");

/// The kinds of names, and their headings in the page.
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

/// The rows of the page: the C name, and what stands beside it.
fn rows(page: &str) -> Vec<(String, String)> {
    let cells = page.lines().filter_map(|line| {
        let (name, here) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name.to_owned(), here.strip_suffix(" |")?.to_owned()))
    });
    cells.collect()
}

/// The row that follows from the sources.
fn generated(scan: &Scan, name: &str) -> Option<String> {
    let paths = scan.aliases.get(name)?;
    Some(paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", "))
}

/// The page with the rows that follow from the sources, and the others as they are.
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

/// Returns whether a row consists of paths of which one is gone: the item lost its alias.
fn is_stale(scan: &Scan, row: &str) -> bool {
    row.starts_with('`') && paths_of(row).iter().any(|path| !scan.paths.contains(*path))
}

/// The paths in a row that begins with one.
fn paths_of(row: &str) -> Vec<&str> {
    if row.starts_with('`') { row.split('`').skip(1).step_by(2).collect() } else { Vec::new() }
}

/// The file that compiles each type and constant.
fn compiled(scan: &Scan) -> String {
    let mut text = String::from(
        "//! Every type and constant that the page names, in code. Written by the test with `BLESS=1`.\n\n\
         #![allow(unused_imports, clippy::no_effect)]\n\n",
    );
    for path in &scan.types {
        let _ = writeln!(text, "use verbs::{path} as _;");
    }
    text += "\n#[test]\nfn every_constant_compiles() {\n";
    for path in &scan.constants {
        let _ = writeln!(text, "    let _ = verbs::{path};");
    }
    text + "}\n"
}

#[test]
fn every_name_of_libibverbs_has_a_true_row() {
    let (page_file, paths_file) =
        (root().join("docs/libibverbs.md"), root().join("tests/tests/libibverbs/paths.rs"));
    let scan = scan::scan(&root());
    let page = fs::read_to_string(&page_file).unwrap();
    let (new_page, new_paths) = (blessed(&scan, &page), compiled(&scan));
    if std::env::var_os("BLESS").is_some() {
        // Replaced in one step, because the other tests read them at the same time.
        for (file, text) in [(page_file, new_page), (paths_file, new_paths)] {
            let new_file = file.with_extension("new");
            fs::write(&new_file, text).unwrap();
            fs::rename(new_file, file).unwrap();
        }
        return;
    }
    const HINT: &str = "run BLESS=1 cargo test -p verbs-tests --test libibverbs, and read the difference";
    for (old, new) in page.lines().zip(new_page.lines()) {
        assert_eq!(old, new, "docs/libibverbs.md: {HINT}");
    }
    assert_eq!(page.lines().count(), new_page.lines().count(), "docs/libibverbs.md: {HINT}");
    assert_eq!(fs::read_to_string(&paths_file).unwrap(), new_paths, "paths.rs: {HINT}");
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
fn every_path_of_a_row_exists() {
    let scan = scan::scan(&root());
    let page = fs::read_to_string(root().join("docs/libibverbs.md")).unwrap();
    let mut checked = 0;
    for (name, here) in rows(&page) {
        for path in paths_of(&here) {
            assert!(scan.paths.contains(path), "{name}: no item {path}");
            checked += 1;
        }
    }
    assert!(checked > 400, "{checked} paths");
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
