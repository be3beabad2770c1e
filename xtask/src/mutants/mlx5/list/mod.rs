//! The mutants of the ConnectX provider.
//!
//! | file | mutants of |
//! |---|---|
//! | `send` | entries of send queues, and the memory windows among them |
//! | `doorbell` | doorbell records, registers, requests for events |
//! | `completion` | completions, completion queues, overflow |
//! | `object` | receive queues, address vectors, sizes, numbers, frames |
//!
//! Invariant: the text that a mutant replaces occurs once in its file, before the file's tests. A
//! change of the provider that moves the text away changes the list in the same commit.

mod completion;
mod doorbell;
mod object;
mod send;

use anyhow::{Result, ensure};

/// The folder that the files of mutants are in.
pub(super) const SOURCES: &str = "provider-mlx5/src";

/// A change of the provider that a test has to notice.
#[derive(Debug)]
pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// A file of [`SOURCES`].
    pub(super) file: &'static str,
    find: &'static str,
    replace: &'static str,
    /// The reason why the provider behaves the same with it.
    pub(super) equivalent: Option<&'static str>,
}

impl Mutant {
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        file: &'static str,
        find: &'static str,
        replace: &'static str,
    ) -> Self {
        Self { name, kind, file, find, replace, equivalent: None }
    }

    pub(super) const fn equivalent(self, reason: &'static str) -> Self {
        Self { equivalent: Some(reason), ..self }
    }

    /// Returns the text of its file with the change.
    ///
    /// # Errors
    /// The text that it replaces does not occur, or not once, or is of a test.
    pub(super) fn applied(&self, source: &str) -> Result<String> {
        let Self { name, file, find, replace, .. } = self;
        let count = source.matches(find).count();
        ensure!(count == 1, "{name}: the text {find:?} occurs {count} times in {file}");
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source);
        ensure!(code.contains(find), "{name}: the text {find:?} is in the tests of {file}");
        Ok(source.replacen(find, replace, 1))
    }
}

/// The subject of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Umr,
    Inline,
    List,
    Terminator,
    Fence,
    Signal,
    Immediate,
    Atomic,
    Record,
    BlueFlame,
    Register,
    Arm,
    Completion,
    Owner,
    Compressed,
    Clean,
    Resize,
    Overflow,
    Srq,
    Path,
    Size,
    UserIndex,
    Frame,
}

impl Kind {
    pub(super) const ALL: &[Self] = &[
        Self::Umr,
        Self::Inline,
        Self::List,
        Self::Terminator,
        Self::Fence,
        Self::Signal,
        Self::Immediate,
        Self::Atomic,
        Self::Record,
        Self::BlueFlame,
        Self::Register,
        Self::Arm,
        Self::Completion,
        Self::Owner,
        Self::Compressed,
        Self::Clean,
        Self::Resize,
        Self::Overflow,
        Self::Srq,
        Self::Path,
        Self::Size,
        Self::UserIndex,
        Self::Frame,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Umr => "memory window",
            Self::Inline => "inline data",
            Self::List => "list",
            Self::Terminator => "terminator",
            Self::Fence => "fence",
            Self::Signal => "signal",
            Self::Immediate => "immediate",
            Self::Atomic => "atomic",
            Self::Record => "record",
            Self::BlueFlame => "BlueFlame",
            Self::Register => "register",
            Self::Arm => "event",
            Self::Completion => "completion",
            Self::Owner => "owner",
            Self::Compressed => "compressed",
            Self::Clean => "clean",
            Self::Resize => "resize",
            Self::Overflow => "overflow",
            Self::Srq => "shared receive",
            Self::Path => "path",
            Self::Size => "size",
            Self::UserIndex => "user index",
            Self::Frame => "frame",
        }
    }
}

/// Returns all mutants.
pub(super) fn all() -> impl Iterator<Item = &'static Mutant> {
    [send::LIST, doorbell::LIST, completion::LIST, object::LIST].into_iter().flatten()
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
                let path = cargo::root().join(SOURCES).join(mutant.file);
                let source = fs::read_to_string(&path).expect("a file of the provider");
                match mutant.applied(&source) {
                    Ok(changed) if changed != source => None,
                    Ok(_) => Some(format!("{} changes nothing", mutant.name)),
                    Err(error) => Some(error.to_string()),
                }
            })
            .collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn names_differ_and_every_kind_has_mutants() {
        let names: BTreeSet<&str> = all().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 60, "{}", names.len());
        for kind in Kind::ALL {
            assert!(all().any(|mutant| mutant.kind == *kind), "{}", kind.name());
        }
    }

    #[test]
    fn a_text_that_occurs_twice_or_in_tests_alone_is_an_error() {
        let mutant = Mutant::new("one", Kind::Umr, "a.rs", "a + b", "a - b");
        assert_eq!(mutant.applied("x = a + b;").unwrap(), "x = a - b;");
        for wrong in ["a + b; a + b", "a - b", "#[cfg(test)]\nmod tests {\n a + b }"] {
            assert!(mutant.applied(wrong).is_err(), "{wrong}");
        }
    }
}
