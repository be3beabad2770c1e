//! The form of comments in Rust sources, as far as a program can check it.
//!
//! | rule | applies to |
//! |---|---|
//! | at most [`COLUMNS`] columns; a single word such as an address may be longer | `//` lines |
//! | no word of [`OPENINGS`] first, no question: name the thing, or begin with a verb | doc
//! comments |
//! | a `# Safety` paragraph in the comment at the head | files that allow unsafe code |
//!
//! A doc comment opens at its first line, and again at each paragraph and after each heading.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::stage::StageResult;
use crate::cargo;

/// The longest line of a comment.
const COLUMNS: usize = 100;

/// Words that begin a question or an indirect one, or that point back to the text before.
const OPENINGS: &[&str] = &["What", "Who", "How", "Where", "Has", "Is", "Does", "May", "So"];

/// Folders without sources of our own.
const SKIPPED: &[&str] = &["target", ".git"];

/// Checks every Rust file of the workspace; a result for each file.
pub(super) fn check(result: &mut StageResult) {
    let root = cargo::root();
    let files = match sources(root) {
        Ok(files) => files,
        Err(error) => return result.fail(format!("{error:#}")),
    };
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(&path).display();
        match fs::read_to_string(&path) {
            Ok(text) => match &problems(&text)[..] {
                [] => result.counts.passed += 1,
                [first] => result.fail(format!("{name}:{first}")),
                [first, more @ ..] => result.fail(format!("{name}:{first} (and {} more)", more.len())),
            },
            Err(error) => result.fail(format!("cannot read {name}: {error}")),
        }
    }
}

/// Returns the Rust files below a folder, sorted.
///
/// # Errors
/// A folder cannot be read.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                if !SKIPPED.iter().any(|skipped| name == *skipped) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the broken rules of a file, each with its line number.
fn problems(source: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut before = Line::Code;
    for (index, line) in source.lines().enumerate() {
        let number = index + 1;
        let kind = Line::of(line);
        if kind != Line::Code {
            let columns = line.chars().count();
            let can_wrap = line.split_whitespace().count() > 2;
            if columns > COLUMNS && can_wrap {
                problems.push(format!("{number}: a comment of {columns} columns, more than {COLUMNS}"));
            }
        }
        if let Line::Doc(text) = kind {
            let word = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            if before.ends_paragraph() && OPENINGS.contains(&word) {
                problems.push(format!("{number}: a doc comment opens with {word:?}"));
            }
            if before == Line::Code && text.ends_with('?') {
                problems.push(format!("{number}: a doc comment is a question"));
            }
        }
        before = kind;
    }
    if allows_unsafe(source) && !source.lines().any(|line| line == "//! # Safety") {
        problems.push("1: a file that allows unsafe code has no `//! # Safety` paragraph".to_owned());
    }
    problems
}

/// Returns whether an attribute of the whole file sets the lint `unsafe_code` to a level other than
/// `deny` and `forbid`.
fn allows_unsafe(source: &str) -> bool {
    let is_denied = |line: &str| ["#![deny(", "#![forbid("].iter().any(|level| line.starts_with(level));
    source.lines().any(|line| line.starts_with("#![") && line.contains("unsafe_code") && !is_denied(line))
}

/// A line of a source file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line<'a> {
    /// Anything but a comment of its own.
    Code,
    /// `//`.
    Comment,
    /// `///` or `//!`, with its text.
    Doc(&'a str),
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Line<'a> {
        let line = line.trim();
        let doc = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        match doc {
            Some(text) if !text.starts_with('/') => Line::Doc(text.trim()),
            _ if line.starts_with("//") => Line::Comment,
            _ => Line::Code,
        }
    }

    /// Returns whether the next line of a doc comment opens a paragraph.
    fn ends_paragraph(self) -> bool {
        match self {
            Line::Doc(text) => text.is_empty() || text.starts_with('#'),
            Line::Code | Line::Comment => true,
        }
    }
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
        let files = sources(cargo::root()).unwrap();
        assert!(files.iter().any(|path| path.ends_with("xtask/src/test/prose.rs")));
        assert!(files.iter().any(|path| path.ends_with("connectx-model/src/lib.rs")));
        assert!(files.iter().all(|path| !path.starts_with(cargo::root().join("target"))));
    }
}
