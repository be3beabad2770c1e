//! docs/libibverbs.md has a row for every libibverbs name, and the rows are true.
//!
//! `names.txt` lists the names in rdma-core 65: the symbols of the version map, and the inline
//! functions, structs, enumerations, constants and macros of `verbs.h`, `verbs_api.h` and
//! `tm_types.h`. If an item has the name as a `#[doc(alias = "...")]`, the row names that item.
//! Every other row is written by hand: a reason, a path, or `not yet`.
//!
//! `BLESS=1 cargo test -p verbs-sources --test libibverbs` generates the rows for aliases, `not
//! yet` for names without a row and the counts at the top. [`guides`] checks the tables of the
//! manual.

mod guides;
mod page;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use page::{names, quoted, rows};
use scan::Scan;

const NOT_YET: &str = "not yet";

/// The kinds of names, with their headings in the page.
const KINDS: &[(&str, &str)] = &[
    ("function", "Functions"),
    ("inline", "Inline functions"),
    ("struct", "Structs"),
    ("enum", "Enumerations"),
    ("constant", "Constants"),
    ("macro", "Macros"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Returns the row generated from the sources.
fn generated(scan: &Scan, name: &str) -> Option<String> {
    let paths = scan.aliases.get(name)?;
    Some(paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", "))
}

/// Returns the page with the rows generated from the sources and the other rows unchanged.
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

/// Returns whether a row consists of paths and one of them is gone because its item lost the alias.
fn is_stale(scan: &Scan, row: &str) -> bool {
    row.starts_with('`') && quoted(row).any(|path| !scan.items.contains(path))
}

#[test]
fn every_name_of_libibverbs_has_a_true_row() {
    let old = page::read(&root());
    let new = blessed(&scan::scan(&root()), &old);
    if std::env::var_os("BLESS").is_some() {
        // Replaced atomically, because the other tests read it at the same time.
        let (file, new_file) = (root().join("docs/libibverbs.md"), root().join("docs/libibverbs.new"));
        fs::write(&new_file, new).unwrap();
        fs::rename(new_file, file).unwrap();
        return;
    }
    let at = old.lines().zip(new.lines()).find(|(old, new)| old != new);
    assert!(
        old == new,
        "{at:?}: run BLESS=1 cargo test -p verbs-sources --test libibverbs, and read the difference"
    );
}

#[test]
fn every_path_of_the_page_is_an_item() {
    if std::env::var_os("BLESS").is_some() {
        // Another test replaces the page.
        return;
    }
    let (known, unknown) = page::check(&page::read(&root()), &scan::scan(&root()));
    assert!(unknown.is_empty(), "neither items nor rows of NO_PATHS: {unknown:#?}");
    assert!(known > 700, "{known} paths");
}

#[test]
fn no_name_is_left_to_be_written() {
    let page = page::read(&root());
    let left: Vec<_> = rows(&page).into_iter().filter(|(_, here)| here == NOT_YET).collect();
    assert!(left.is_empty(), "each needs a counterpart or a reason: {left:?}");
}

#[test]
fn every_row_is_of_a_name_and_no_name_has_two() {
    let page = page::read(&root());
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
