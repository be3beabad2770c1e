//! The mutants of the ConnectX provider, which `list.toml` contains.

use std::sync::LazyLock;

use anyhow::{Result, ensure};
use serde::Deserialize;

/// The folder that the files of mutants are in.
pub(super) const SOURCES: &str = "provider-mlx5/src";

/// A change of the provider that a test has to notice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutant {
    pub(super) name: String,
    /// The subject, for a line of the summary.
    pub(super) kind: String,
    /// A file of [`SOURCES`].
    pub(super) file: String,
    find: String,
    replace: String,
    /// The reason why the provider behaves the same with it.
    pub(super) equivalent: Option<String>,
}

impl Mutant {
    /// Returns the text of its file with the change.
    ///
    /// # Errors
    /// The text to replace does not occur exactly once in front of the file's tests.
    pub(super) fn applied(&self, source: &str) -> Result<String> {
        let Self { name, file, find, replace, .. } = self;
        let count = source.matches(find).count();
        ensure!(count == 1, "{name}: the text {find:?} occurs {count} times in {file}");
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source);
        ensure!(code.contains(find), "{name}: the text {find:?} is in the tests of {file}");
        Ok(source.replacen(find, replace, 1))
    }
}

/// Returns all mutants.
pub(super) fn all() -> impl Iterator<Item = &'static Mutant> {
    #[derive(Deserialize)]
    struct List {
        mutant: Vec<Mutant>,
    }
    static LIST: LazyLock<List> =
        LazyLock::new(|| toml::from_str(include_str!("list.toml")).expect("a list that its test has read"));
    LIST.mutant.iter()
}

/// Returns the kinds of mutants, in the order of the list.
pub(super) fn kinds() -> Vec<&'static str> {
    let mut kinds = Vec::new();
    for Mutant { kind, .. } in all() {
        if !kinds.contains(&kind.as_str()) {
            kinds.push(kind);
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::cargo;

    #[test]
    fn each_mutant_changes_one_place_of_the_provider() {
        let problems: Vec<String> = all()
            .filter_map(|mutant| {
                let path = cargo::root().join(SOURCES).join(&mutant.file);
                let source = fs::read_to_string(&path).expect("a file of the provider");
                match mutant.applied(&source) {
                    Ok(changed) if changed != source => None,
                    Ok(_) => Some(format!("{} changes nothing", mutant.name)),
                    Err(error) => Some(error.to_string()),
                }
            })
            .collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        let names: BTreeSet<&str> = all().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(names.len(), all().count(), "names differ");
    }

    #[test]
    fn a_text_that_occurs_twice_or_in_tests_alone_is_an_error() {
        let text = "name = 'one'\nkind = 'k'\nfile = 'a.rs'\nfind = 'a + b'\nreplace = 'a - b'";
        let mutant: Mutant = toml::from_str(text).unwrap();
        assert_eq!(mutant.applied("x = a + b;").unwrap(), "x = a - b;");
        for wrong in ["a + b; a + b", "a - b", "#[cfg(test)]\nmod tests {\n a + b }"] {
            assert!(mutant.applied(wrong).is_err(), "{wrong}");
        }
    }
}
