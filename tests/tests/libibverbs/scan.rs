//! Which public item carries which `#[doc(alias = "...")]`, read from the sources as text.
//!
//! The sources are formatted, so that indentation tells what an item is inside of: an `impl` or a
//! type at the margin, or in a block of `open_enum!` or `bitflags!`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A macro whose body defines methods, and the type that they are methods of.
const METHODS: &[(&str, &str)] = &[
    ("posts_sends", "Qp"),
    ("posts_recvs", "Qp"),
    ("for_each_completion_field", "Completion"),
    ("for_each_optional_field", "Completion"),
];

/// The items by the name in C that they carry.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// From a C name to the paths below `verbs::`.
    pub(crate) aliases: BTreeMap<String, BTreeSet<String>>,
    /// The paths of all public items, with or without an alias.
    pub(crate) paths: BTreeSet<String>,
    /// The types that carry an alias.
    pub(crate) types: BTreeSet<String>,
    /// The constants of types that carry an alias.
    pub(crate) constants: BTreeSet<String>,
}

/// Reads the sources whose items `verbs` exports.
pub(crate) fn scan(root: &Path) -> Scan {
    let mut found = Scan::default();
    for file in files(root) {
        let text = fs::read_to_string(&file).unwrap();
        scan_file(&text, &mut found);
    }
    found
}

fn files(root: &Path) -> Vec<PathBuf> {
    let mut files = vec![
        root.join("verbs-core/src/discovery/device.rs"),
        root.join("verbs-core/src/error.rs"),
        root.join("verbs-core/src/provider/batch.rs"),
        root.join("verbs-core/src/provider/completion.rs"),
    ];
    let mut folders = vec![root.join("libibverbs-rs/src"), root.join("verbs-core/src/types")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("aliases.rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn scan_file(text: &str, found: &mut Scan) {
    // The type that methods, variants, fields and constants belong to.
    let mut owner: Option<String> = None;
    let mut aliases = Vec::new();
    for line in text.lines() {
        let code = line.trim();
        if let Some(alias) = code.strip_prefix("#[doc(alias = \"").and_then(|rest| rest.strip_suffix("\")]"))
        {
            aliases.push(alias.to_owned());
            continue;
        }
        if code.is_empty() || code.starts_with("//") || code.starts_with("#[") {
            continue;
        }
        if line.starts_with("impl") {
            owner = implementor(line);
        } else if let Some(name) = line.strip_prefix("macro_rules! ") {
            let name = word(name);
            owner =
                METHODS.iter().find(|(macro_name, _)| *macro_name == name).map(|(_, of)| (*of).to_owned());
        } else if line == "}" {
            owner = None;
        }
        if let Some((path, kind)) = item(code, &mut owner) {
            if kind == Kind::Type && !aliases.is_empty() {
                found.types.insert(path.clone());
            }
            if kind == Kind::Constant && !aliases.is_empty() {
                found.constants.insert(path.clone());
            }
            for alias in aliases.drain(..) {
                found.aliases.entry(alias).or_default().insert(path.clone());
            }
            found.paths.insert(path);
        }
        aliases.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Type,
    Constant,
    Other,
}

/// Returns the path of the item that a line opens, and makes a type the owner of what follows.
fn item(code: &str, owner: &mut Option<String>) -> Option<(String, Kind)> {
    let member = |owner: &Option<String>, name: &str| owner.as_ref().map(|owner| format!("{owner}::{name}"));
    if let Some(rest) = code.strip_prefix("pub ") {
        let rest = rest.trim_start_matches("const ").trim_start_matches("unsafe ");
        for keyword in ["struct ", "enum ", "trait ", "type "] {
            if let Some(name) = rest.strip_prefix(keyword) {
                let name = word(name).to_owned();
                *owner = Some(name.clone());
                return Some((name, Kind::Type));
            }
        }
        if let Some(name) = rest.strip_prefix("fn ") {
            let name = word(name);
            return Some((member(owner, name).unwrap_or_else(|| name.to_owned()), Kind::Other));
        }
        let name = word(rest);
        if rest[name.len()..].starts_with(": ") {
            let kind = if is_upper(name) { Kind::Constant } else { Kind::Other };
            return member(owner, name).map(|path| (path, kind));
        }
        return None;
    }
    let is_flag = code.starts_with("const ");
    let rest = code.trim_start_matches("const ");
    let name = word(rest);
    let after = &rest[name.len()..];
    if is_upper(name) && after.starts_with(" = ") && code.ends_with(';') {
        return member(owner, name).map(|path| (path, Kind::Constant));
    }
    let is_variant = name.starts_with(|c: char| c.is_ascii_uppercase())
        && !is_flag
        && (matches!(after, "," | " {") || after.starts_with('('));
    if is_variant && !code.contains(" => ") {
        return member(owner, name).map(|path| (path, Kind::Other));
    }
    // The fields of completions: `wr_id: u64;`.
    if after.starts_with(": ") && code.ends_with(';') {
        return member(owner, name).map(|path| (path, Kind::Other));
    }
    None
}

/// Returns the type that an `impl` at the margin is for.
fn implementor(line: &str) -> Option<String> {
    if line.contains(" for ") {
        return None;
    }
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += match c {
                '<' => 1,
                '>' => -1,
                _ => 0,
            };
            depth == 0
        })?;
        rest = &rest[end + 1..];
    }
    Some(word(rest.trim_start()).to_owned())
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

fn is_upper(name: &str) -> bool {
    name.len() > 1
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
}

#[test]
fn each_kind_of_item_is_found_by_its_alias() {
    let source = r#"
#[doc(alias = "c_type")]
#[derive(Debug)]
pub struct Thing<P> {
    /// A field.
    #[doc(alias = "c_field")]
    pub field: u32,
}

impl<P: Provider<Context: Sized>> Thing<P> {
    #[doc(alias = "c_method")]
    pub unsafe fn call(&self) {}
    #[doc(alias = "c_private")]
    fn private(&self) {}
}

impl Drop for Thing<()> {
    #[doc(alias = "c_trait")]
    pub fn hidden() {}
}

open_enum! {
    pub enum State(u8) {
        #[doc(alias = "C_VALUE")]
        VALUE = 1, "value";
    }
}

bitflags! {
    pub struct Flags: u32 {
        #[doc(alias = "C_FLAG")]
        const FLAG_1 = 1 << 1;
    }
}

pub enum Sum {
    #[doc(alias = "C_VARIANT")]
    Variant {
        #[doc(alias = "c_other")]
        field: u8,
    },
}

#[doc(alias = "c_function")]
pub fn free() {}
"#;
    let mut found = Scan::default();
    scan_file(source, &mut found);
    let paths: BTreeMap<_, _> = found
        .aliases
        .iter()
        .map(|(alias, paths)| (alias.as_str(), paths.iter().map(String::as_str).collect::<Vec<_>>()))
        .collect();
    let want = [
        ("C_FLAG", "Flags::FLAG_1"),
        ("C_VALUE", "State::VALUE"),
        ("C_VARIANT", "Sum::Variant"),
        ("c_field", "Thing::field"),
        ("c_function", "free"),
        ("c_method", "Thing::call"),
        ("c_trait", "hidden"),
        ("c_type", "Thing"),
    ];
    assert_eq!(paths, want.into_iter().map(|(alias, path)| (alias, vec![path])).collect());
    assert_eq!(found.types, BTreeSet::from(["Thing".to_owned()]));
    assert_eq!(found.constants, ["Flags::FLAG_1".to_owned(), "State::VALUE".to_owned()].into());
}
