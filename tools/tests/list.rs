//! Compares `PROGRAMS` with the binaries that Cargo builds and with the documents.

use std::fs;
use std::path::Path;

use rdma_tools::LAUNCHER;
use verbs_harness::tools::PROGRAMS;

/// Reads a file of this package or, with a leading `../`, of the workspace.
fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn cargo_builds_the_programs_of_the_list_and_no_other() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin");
    let mut built: Vec<String> = fs::read_dir(folder)
        .expect("src/bin")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .map(|name| name.trim_end_matches(".rs").to_owned())
        .collect();
    built.sort();
    assert_eq!(built, [PROGRAMS, &[LAUNCHER]].concat());
    assert!(!text("Cargo.toml").contains("[[bin]]"), "a program outside src/bin is not in the list");
}

#[test]
fn every_document_that_lists_the_programs_names_all() {
    for path in ["Cargo.toml", "src/lib.rs", "../docs/tools.md", "../CHANGELOG.md"] {
        let text = text(path);
        let lists = |line: &&str| PROGRAMS.iter().any(|name| line.contains(name));
        let lines: String = text.lines().filter(lists).collect();
        for name in PROGRAMS {
            assert!(lines.contains(name), "{path} does not name {name}");
        }
    }
}
