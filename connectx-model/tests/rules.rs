//! Checks that a test breaks each rule, and that the model enforces each rule.

use std::fs;
use std::path::{Path, PathBuf};

use connectx_model::complaint::Rule;

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Returns the test code in a file: the whole file, or the part after `#[cfg(test)]`.
fn tests_of<'a>(path: &Path, text: &'a str) -> &'a str {
    let all_tests = path.components().any(|part| {
        let name = part.as_os_str();
        name == "tests.rs" || name == "tests"
    });
    if all_tests { text } else { text.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests) }
}

#[test]
fn every_rule_is_named_by_a_test_and_enforced_somewhere() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&home, &mut files);
    let (mut tests, mut code) = (String::new(), String::new());
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let relative = path.strip_prefix(&home).unwrap();
        let of_tests = tests_of(relative, &text);
        if relative != Path::new("complaint.rs") {
            code += &text[..text.len() - of_tests.len()];
            tests += of_tests;
        }
    }
    let names = |text: &str, rule: &Rule| {
        text.match_indices(&format!("Rule::{rule:?}"))
            .any(|(at, name)| !text[at + name.len()..].starts_with(|next: char| next.is_ascii_alphanumeric()))
    };
    let untested: Vec<_> = Rule::ALL.iter().filter(|rule| !names(&tests, rule)).collect();
    let unused: Vec<_> = Rule::ALL.iter().filter(|rule| !names(&code, rule)).collect();
    assert!(untested.is_empty(), "no test breaks {untested:?}");
    assert!(unused.is_empty(), "nothing enforces {unused:?}");
}
