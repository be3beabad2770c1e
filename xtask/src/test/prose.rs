//! Checks the form of comments in Rust sources, as far as a program can.
//!
//! | rule | applies to |
//! |---|---|
//! | at most [`COLUMNS`] columns; a single word such as an address may be longer | `//` lines |
//! | no question, no first word of [`OPENINGS`]: name the thing, or use a verb | doc comments |
//! | a `# Safety` paragraph in the comment at the head | files that allow unsafe code |
//!
//! A doc comment opens at its first line, and again at each paragraph and after each heading.

use std::fs;

use anyhow::{Result, ensure};

use super::commits::git;
use super::stage::StageResult;
use crate::{cargo, process};

/// The maximum length of a comment line, in columns.
const COLUMNS: usize = 100;

/// Words that begin a direct or indirect question, or that refer to the text before.
const OPENINGS: &[&str] = &["What", "Who", "How", "Where", "Has", "Is", "Does", "May", "So"];

/// Checks every Rust file that git does not ignore. Counts one result per file.
pub(super) fn check(result: &mut StageResult) {
    for file in result.needs("comments", sources()).unwrap_or_default() {
        let check = || {
            let problems = problems(&fs::read_to_string(cargo::root().join(&file))?);
            ensure!(problems.is_empty(), "{}", problems.join("; "));
            Ok(())
        };
        result.check(check().map_err(|error: anyhow::Error| error.context(file.clone())));
    }
}

/// Returns the Rust files in the workspace.
fn sources() -> Result<Vec<String>> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"];
    let files = process::output(git().args(list))?;
    // Files whose removal is not yet committed are still listed.
    let is_there = |file: &&str| cargo::root().join(file).exists();
    Ok(files.lines().filter(is_there).map(str::to_owned).collect())
}

/// Returns the rules broken by a file, each with its line number.
fn problems(source: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut opens_paragraph, mut opens_comment) = (true, true);
    for (number, line) in (1..).zip(source.lines()) {
        let text = line.trim();
        let is_comment = text.starts_with("//");
        let doc = text.strip_prefix("//!").or_else(|| text.strip_prefix("///")).map(str::trim);
        let doc = doc.filter(|_| !text.starts_with("////"));
        let columns = line.chars().count();
        if is_comment && columns > COLUMNS && line.split_whitespace().count() > 2 {
            problems.push(format!("{number}: a comment of {columns} columns, more than {COLUMNS}"));
        }
        if let Some(doc) = doc {
            let word = doc.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            if opens_paragraph && OPENINGS.contains(&word) {
                problems.push(format!("{number}: a doc comment opens with {word:?}"));
            }
            if opens_comment && doc.ends_with('?') {
                problems.push(format!("{number}: a doc comment is a question"));
            }
        }
        opens_paragraph = doc.is_none_or(|doc| doc.is_empty() || doc.starts_with('#'));
        opens_comment = !is_comment;
    }
    if allows_unsafe(source) && !source.lines().any(|line| line == "//! # Safety") {
        problems.push("1: a file that allows unsafe code has no `//! # Safety` paragraph".to_owned());
    }
    problems
}

/// Returns whether an attribute on the whole file sets the lint `unsafe_code` to a level other than
/// `deny` and `forbid`.
fn allows_unsafe(source: &str) -> bool {
    let is_denied = |line: &str| ["#![deny(", "#![forbid("].iter().any(|level| line.starts_with(level));
    source.lines().any(|line| line.starts_with("#![") && line.contains("unsafe_code") && !is_denied(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_beyond_the_last_column_is_a_problem_where_it_can_wrap() {
        let long = "b".repeat(COLUMNS - "// a ".len());
        assert_eq!(problems(&format!("// a {long}\n")), [""; 0]);
        assert_eq!(
            problems(&format!("let x;\n// a {long}b\n")),
            ["2: a comment of 101 columns, more than 100"]
        );
        assert_eq!(problems(&format!("    /// a {long}\n")).len(), 1);
        assert_eq!(problems(&format!("//! {long}{long}\n")), [""; 0]);
        assert_eq!(problems(&format!("let a = \"{long} {long}\";\n")), [""; 0]);
    }

    #[test]
    fn a_doc_comment_that_opens_with_a_question_word_is_a_problem() {
        for word in OPENINGS {
            for start in ["///", "//!", "/// Text.\n///\n///", "/// # Errors\n///", "fn f() {}\n///"] {
                let problems = problems(&format!("{start} {word} it is.\n"));
                assert!(problems.len() == 1 && problems[0].contains(word), "{start} {word}: {problems:?}");
            }
        }
        assert_eq!(problems("/// Is it?\n").len(), 2);
        assert_eq!(problems("/// Returns whether it is.\n/// So it is.\n// What it is.\n"), [""; 0]);
        assert_eq!(problems("/// Whether it is.\n/// Sorted.\n//// What\n"), [""; 0]);
    }

    #[test]
    fn a_paragraph_after_an_empty_line_opens_again() {
        assert_eq!(problems("/// A.\n///\n/// How.\n"), ["3: a doc comment opens with \"How\""]);
        assert_eq!(problems("/// A.\n/// How.\n"), [""; 0]);
    }

    #[test]
    fn a_file_that_allows_unsafe_code_needs_a_paragraph_about_safety() {
        for attribute in ["allow(unsafe_code)", "expect(missing_docs, unsafe_code)"] {
            let file = |head: &str| format!("//! A.\n{head}#![{attribute}]\n");
            assert_eq!(problems(&file("")).len(), 1, "{attribute}");
            assert_eq!(problems(&file("//!\n//! # Safety\n//! It is.\n")), [""; 0], "{attribute}");
        }
        for other in ["#![deny(unsafe_code)]", "#![forbid(unsafe_code)]", "    #[allow(unsafe_code)]"] {
            assert_eq!(problems(&format!("//! A.\n{other}\n")), [""; 0], "{other}");
        }
    }

    #[test]
    fn sources_are_found_below_every_folder_of_the_workspace() {
        let files = sources().unwrap();
        for file in ["xtask/src/test/prose.rs", "connectx-model/src/lib.rs"] {
            assert!(files.iter().any(|found| found == file), "{file}");
        }
        assert!(files.iter().all(|file| !file.starts_with("target/")));
    }
}
