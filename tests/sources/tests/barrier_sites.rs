//! Compares docs/barriers.md with the sources. Each barrier and each ordered access in a library
//! must have a row with its file, its function and the order.
//!
//! | order | in the source |
//! |---|---|
//! | a barrier from `verbs_core::ring::barrier` | `barrier::to_device();` |
//! | an access, or a fence between processors | `Ordering::Acquire` and so on, unless relaxed |
//! | an access to an index in shared memory | `.load_acquire()`, `.store_release(...)` |
//!
//! The test skips files and folders called `tests`, and a test module at the end of a file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A site: the file, relative to the workspace root, the function and the order.
type Site = (String, String, String);

/// The libraries' sources.
const LIBRARIES: &[&str] = &[
    "uverbs-abi/src",
    "verbs-core/src",
    "provider-rxe/src",
    "provider-mlx5/src",
    "provider-soft/src",
    "roce/src",
    "ib-cm/src",
    "libibverbs-rs/src",
    "cm/src",
    "c-abi/src",
];

/// The file that emits barrier instructions; each row of the page names them.
const BARRIERS: &str = "verbs-core/src/ring/barrier.rs";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace")
}

/// Returns the files below a folder: paths relative to the root, and texts.
fn files(folder: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join(folder)).expect("the folder can be read");
    entries
        .flat_map(|entry| {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            let place = format!("{folder}/{name}");
            match (path.is_dir(), name) {
                (_, "tests" | "tests.rs") => Vec::new(),
                (true, _) => files(&place),
                (false, _) if name.ends_with(".rs") => {
                    vec![(place, fs::read_to_string(&path).expect("a source"))]
                }
                (false, _) => Vec::new(),
            }
        })
        .collect()
}

/// Counts the sites in a file's text.
fn count_in_text(file: &str, text: &str, sites: &mut BTreeMap<Site, usize>) {
    let (mut function, mut condition) = ("", "");
    for line in text.lines() {
        if line.starts_with("mod ") && line.ends_with('{') && condition.contains("test") {
            return;
        }
        condition = if line.starts_with("#[cfg(") { line } else { "" };
        let line = line.trim();
        if line.starts_with("//") {
            continue;
        }
        if let Some((_, name)) = line.split_once("fn ").filter(|(before, _)| !before.contains('"')) {
            function = name.split(['(', '<']).next().unwrap_or_default();
        }
        for order in orders(line) {
            *sites.entry((file.to_owned(), function.to_owned(), order)).or_default() += 1;
        }
    }
}

/// Returns the memory orders named in a line of code.
fn orders(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some((_, call)) = line.split_once("barrier::") {
        found.extend(call.strip_suffix("();").map(str::to_owned));
    }
    for access in ["load_acquire", "store_release"] {
        found.extend(line.matches(&format!(".{access}(")).map(|_| access.to_owned()));
    }
    for (at, start) in line.match_indices("Ordering::") {
        let rest = &line[at + start.len()..];
        let order = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if ["Acquire", "Release", "AcqRel", "SeqCst"].contains(&order) {
            let is_fence = line[..at].ends_with("fence(");
            found.push(if is_fence { format!("fence({order})") } else { order.to_owned() });
        }
    }
    found
}

fn in_sources() -> BTreeMap<Site, usize> {
    let mut sites = BTreeMap::new();
    for (file, text) in LIBRARIES.iter().flat_map(|folder| files(folder)) {
        if file != BARRIERS {
            count_in_text(&file, &text, &mut sites);
        }
    }
    sites
}

/// Counts the rows whose first cell is a file: `| file | function | order, 2 × order | ...`. The
/// heading before the table names the folder.
fn in_page(page: &str) -> BTreeMap<Site, usize> {
    let mut sites = BTreeMap::new();
    let mut folder = "";
    for line in page.lines() {
        if line.starts_with("## ") {
            folder = line.split('`').find(|word| word.ends_with("/src")).unwrap_or_default();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, file, function, orders, ..] = cells[..] else { continue };
        let (file, function) = (file.trim_matches('`'), function.trim_matches('`'));
        if !file.ends_with(".rs") {
            continue;
        }
        for order in orders.split(", ") {
            let (count, order) = order.split_once(" × ").unwrap_or(("1", order));
            let count: usize = count.parse().unwrap_or_else(|error| panic!("{line}: {count}: {error}"));
            let site = (format!("{folder}/{file}"), function.to_owned(), order.trim_matches('`').to_owned());
            *sites.entry(site).or_default() += count;
        }
    }
    sites
}

#[test]
fn each_place_of_the_sources_is_in_a_row_of_the_page() {
    let page = fs::read_to_string(root().join("docs/barriers.md")).expect("docs/barriers.md exists");
    let (sources, page) = (in_sources(), in_page(&page));
    for barrier in ["to_device", "store_release", "Release", "fence(SeqCst)"] {
        assert!(sources.keys().any(|(_, _, order)| order == barrier), "no {barrier} in {sources:#?}");
    }
    let only = |one: &BTreeMap<Site, usize>, other: &BTreeMap<Site, usize>| -> Vec<(Site, usize)> {
        let differs = one.iter().filter(|(site, count)| other.get(*site) != Some(*count));
        differs.map(|(site, count)| (site.clone(), *count)).collect()
    };
    let (missing, beyond) = (only(&sources, &page), only(&page, &sources));
    assert!(
        missing.is_empty() && beyond.is_empty(),
        "docs/barriers.md lacks {missing:#?}, and has {beyond:#?}"
    );
}

/// Returns the number of rows for sites, and the rows with an empty cell or the wrong number of
/// cells. A table's header must have at least five cells.
fn incomplete_rows(page: &str) -> (usize, Vec<&str>) {
    let (mut rows, mut incomplete, mut columns) = (0, Vec::new(), None);
    for line in page.lines() {
        let Some(inner) = line.trim().strip_prefix('|').and_then(|rest| rest.strip_suffix('|')) else {
            columns = None;
            continue;
        };
        let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
        let header = *columns.get_or_insert(cells.len());
        if cells[0].ends_with(".rs`") {
            rows += 1;
            if header < 5 || cells.len() != header || cells.contains(&"") {
                incomplete.push(line);
            }
        }
    }
    (rows, incomplete)
}

/// Every row must be complete. Its last columns show the counterparts in rdma-core and in the
/// kernel, or say that there is none.
#[test]
fn no_row_lacks_a_cell() {
    let page = fs::read_to_string(root().join("docs/barriers.md")).expect("docs/barriers.md exists");
    let (rows, incomplete) = incomplete_rows(&page);
    assert!(rows > 100, "only {rows} rows");
    assert!(incomplete.is_empty(), "a cell is empty, or not as many as in the header: {incomplete:#?}");
}

#[test]
fn a_row_has_as_many_cells_as_the_header_of_its_table() {
    let page = "
| file | function | order | what | C | Linux |
|---|---|---|---|---|---|
| `whole.rs` | a | b | c | d | e |
| `short.rs` | a | b | c | d |
| `long.rs` | a | b | c | d | e | f |
| `empty.rs` | a | b | c | | e |

| file | function | order | what | C |
|---|---|---|---|---|
| `whole.rs` | a | b | c | d |
| `long.rs` | a | b | c | d | e |
";
    let (rows, incomplete) = incomplete_rows(page);
    let names: Vec<_> = incomplete.iter().filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!((rows, names), (6, vec!["short.rs", "long.rs", "empty.rs", "long.rs"]));
}

#[test]
fn orders_are_counted_by_function_outside_of_comments_and_tests() {
    let text = "
        // barrier::to_device();
        fn ring(&self) {
            barrier::to_device();
            self.word.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
            self.word.load(Ordering::Relaxed); fence(Ordering::SeqCst);
        }
        fn other(&self) { self.own.store_release(self.other.load_acquire() + self.own.load_acquire()) }
#[cfg(test)]
mod apart;
        fn last(&self) { self.word.store(1, Ordering::Release) }
#[cfg(all(test, not(loom)))]
mod tests {
        fn test() { barrier::to_device(); }
}";
    let mut sites = BTreeMap::new();
    count_in_text("x/src/y.rs", text, &mut sites);
    let page = "## A crate (`x/src`)\n\n| file | function | order | |\n|---|---|---|---|
        | `y.rs` | `ring` | `to_device` | |\n| `y.rs` | `ring` | `AcqRel`, `Acquire`, `fence(SeqCst)` | |
        | `y.rs` | `other` | `store_release`, 2 × `load_acquire` | |\n| `y.rs` | `last` | `Release` | |\n";
    assert_eq!(sites, in_page(page));
}
