//! Maps each `#[doc(alias = "...")]` to its public item, reading the sources as text.
//!
//! The sources are formatted, so indentation shows the context of an item: an `impl` or a type
//! starts at the margin, or inside an `open_enum!` or `bitflags!` block.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Macros whose bodies define methods, with the type that the methods belong to.
const METHODS: &[(&str, &str)] = &[
    ("for_each_completion_field", "Completion"),
    ("for_each_optional_field", "Completion"),
    ("half", "SendHalf"),
];

/// Modules outside `verbs` that reasons in docs/libibverbs.md name by their full paths.
const MODULES: &[&str] = &["verbs_core::channel", "verbs_core::cmd", "verbs_core::provider"];

/// The public items and their C names.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The paths below `verbs::` for each C name.
    pub(crate) aliases: BTreeMap<String, BTreeSet<String>>,
    /// The paths of all public items, with or without an alias.
    pub(crate) items: BTreeSet<String>,
}

/// Scans the sources of the items that `verbs` exports.
pub(crate) fn scan(root: &Path) -> Scan {
    let mut found = Scan::default();
    for file in files(root) {
        let text = fs::read_to_string(&file).unwrap();
        scan_file(&text, &mut found);
    }
    found.items.extend(MODULES.iter().map(|path| (*path).to_owned()));
    found
}

fn files(root: &Path) -> Vec<PathBuf> {
    let mut files = vec![
        root.join("verbs-core/src/discovery/device.rs"),
        root.join("verbs-core/src/error.rs"),
        root.join("verbs-core/src/provider/batch.rs"),
        root.join("verbs-core/src/provider/completion.rs"),
        root.join("verbs-core/src/provider/driver.rs"),
        root.join("verbs-core/src/provider/mr.rs"),
        root.join("verbs-core/src/provider/td.rs"),
    ];
    let mut folders = vec![root.join("libibverbs-rs/src"), root.join("verbs-core/src/types")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn scan_file(text: &str, found: &mut Scan) {
    // The type of the next members.
    let mut owner = None;
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
            let of = METHODS.iter().find(|(macro_name, _)| *macro_name == word(name));
            owner = of.map(|(_, of)| (*of).to_owned());
        } else if line == "}" {
            owner = None;
        }
        if let Some(path) = item(code, &mut owner) {
            for alias in aliases.drain(..) {
                found.aliases.entry(alias).or_default().insert(path.clone());
            }
            found.items.insert(path);
        }
        aliases.clear();
    }
}

/// Returns the type in an unindented `impl` without a trait.
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
        });
        rest = &rest[end? + 1..];
    }
    Some(word(rest.trim()).to_owned())
}

/// Returns the path of the item that starts on a line. A type becomes the owner of the following
/// members.
fn item(code: &str, owner: &mut Option<String>) -> Option<String> {
    let member = |name: &str| owner.as_ref().map(|owner| format!("{owner}::{name}"));
    if let Some(rest) = code.strip_prefix("pub ") {
        let rest = rest.trim_start_matches("const ").trim_start_matches("unsafe ");
        for keyword in ["struct ", "enum ", "trait ", "type "] {
            if let Some(name) = rest.strip_prefix(keyword) {
                *owner = Some(word(name).to_owned());
                return owner.clone();
            }
        }
        if let Some(name) = rest.strip_prefix("fn ").map(word) {
            return member(name).or_else(|| Some(name.to_owned()));
        }
        let name = word(rest);
        return member(name).filter(|_| rest[name.len()..].starts_with(": "));
    }
    let is_flag = code.starts_with("const ");
    let rest = code.trim_start_matches("const ");
    let name = word(rest);
    let after = &rest[name.len()..];
    let is_value = is_upper(name) && after.starts_with(" = ") && code.ends_with(';');
    let is_variant = name.starts_with(|c: char| c.is_ascii_uppercase())
        && (after == "," || after == " {" || after.starts_with('('))
        && !is_flag
        && !code.contains(" => ");
    // A completion field, such as `wr_id: u64;`.
    let is_reader = after.starts_with(": ") && code.ends_with(';');
    member(name).filter(|_| is_value || is_variant || is_reader)
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
    pub unsafe fn call(
        &self,
        other: u8,
    ) {
    }
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
    Pair(u8, u8),
}

macro_rules! for_each_completion_field {
    ($with:ident) => {
        $with! {
            wr_id: u64;
        }
    };
}

#[doc(alias = "c_function")]
pub fn free() -> u8 {}
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
    for path in ["Sum::Pair", "Completion::wr_id"] {
        assert!(found.items.contains(path), "{path}");
    }
    assert!(!found.items.iter().any(|path| path.contains("private")), "{:?}", found.items);
}
