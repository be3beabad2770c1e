//! Compares docs/barriers.md with the sources: each call of a barrier in this crate is a row.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A call of a barrier: the file, the function that makes it, and the barrier.
type Site = (String, String, String);

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns the files below a folder, by their paths in it.
fn files(folder: &Path, within: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).expect("the folder can be read").map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let place = format!("{within}{name}");
            if path.is_dir() {
                files(&path, &format!("{place}/"))
            } else {
                vec![(place, fs::read_to_string(&path).unwrap())]
            }
        })
        .collect()
}

/// Returns the calls in the sources, with their numbers.
fn in_sources() -> BTreeMap<Site, usize> {
    let mut sites = BTreeMap::new();
    for (file, text) in files(&folder("src"), "") {
        let mut function = "";
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            if let Some((_, name)) = line.split_once("fn ").filter(|(before, _)| !before.contains('"')) {
                function = name.split(['(', '<']).next().unwrap_or_default();
            }
            if let Some((_, call)) = line.split_once("barrier::")
                && let Some(barrier) = call.strip_suffix("();")
            {
                let site = (file.clone(), function.to_owned(), barrier.to_owned());
                *sites.entry(site).or_default() += 1;
            }
        }
    }
    sites
}

/// Returns the rows of the page whose first cell is a file: `| file | function | barrier | ...`.
fn in_page() -> BTreeMap<Site, usize> {
    let page = fs::read_to_string(folder("../docs/barriers.md")).expect("docs/barriers.md exists");
    let mut sites = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        if let [_, file, function, barrier, ..] = cells[..]
            && file.ends_with(".rs")
        {
            *sites.entry((file.to_owned(), function.to_owned(), barrier.to_owned())).or_default() += 1;
        }
    }
    sites
}

#[test]
fn each_barrier_of_the_sources_is_a_row_of_the_page() {
    let (sources, page) = (in_sources(), in_page());
    assert!(sources.len() > 10, "the sources have {sources:#?}");
    let only = |one: &BTreeMap<Site, usize>, other: &BTreeMap<Site, usize>| -> Vec<(Site, usize)> {
        let differs = one.iter().filter(|(site, count)| other.get(*site) != Some(*count));
        differs.map(|(site, count)| (site.clone(), *count)).collect()
    };
    let (missing, beyond) = (only(&sources, &page), only(&page, &sources));
    assert!(
        missing.is_empty() && beyond.is_empty(),
        "docs/barriers.md lacks {missing:?}, and has {beyond:?}"
    );
}
