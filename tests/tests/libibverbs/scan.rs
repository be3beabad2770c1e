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
    ("half", "SendHalf"),
];

/// Modules that reasons name by a whole path.
const MODULES: &[&str] = &["verbs_core::channel", "verbs_core::cmd", "verbs_core::provider"];

/// The items by the name in C that they carry.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// From a C name to the paths below `verbs::`.
    pub(crate) aliases: BTreeMap<String, BTreeSet<String>>,
    /// All public items by their paths, with or without an alias.
    pub(crate) items: BTreeMap<String, Kind>,
}

/// The kind of an item, with the text that code needs in order to name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A module outside of `verbs`.
    Module,
    /// A struct, enumeration, trait or type alias.
    Type,
    Constant,
    Function {
        /// The type after `impl` and its parameters, with its arguments.
        of: Option<String>,
        /// From behind `pub` up to the body, in one line.
        signature: String,
    },
    /// A method that a macro makes from a list of completion fields.
    Reader,
    Field,
    /// A variant of an enumeration.
    Variant {
        /// The pattern behind its name that matches all its fields.
        fields: &'static str,
    },
}

/// Reads the sources whose items `verbs` exports.
pub(crate) fn scan(root: &Path) -> Scan {
    let mut found = Scan::default();
    for file in files(root) {
        let text = fs::read_to_string(&file).unwrap();
        scan_file(&text, &mut found);
    }
    found.items.extend(MODULES.iter().map(|path| ((*path).to_owned(), Kind::Module)));
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
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("aliases.rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn scan_file(text: &str, found: &mut Scan) {
    let mut owner = Owner::default();
    let mut aliases = Vec::new();
    let lines: Vec<_> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
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
            owner = Owner::implementor(line);
        } else if let Some(name) = line.strip_prefix("macro_rules! ") {
            let name = word(name);
            let of = METHODS.iter().find(|(macro_name, _)| *macro_name == name);
            owner = Owner { name: of.map(|(_, of)| (*of).to_owned()), of: None };
        } else if *line == "}" {
            owner = Owner::default();
        }
        if let Some((path, kind)) = item(&lines[number..], &mut owner) {
            for alias in aliases.drain(..) {
                found.aliases.entry(alias).or_default().insert(path.clone());
            }
            found.items.entry(path).or_insert(kind);
        }
        aliases.clear();
    }
}

/// The type that methods, variants, fields and constants belong to.
#[derive(Default)]
struct Owner {
    name: Option<String>,
    /// The type with its arguments, in an `impl`.
    of: Option<String>,
}

impl Owner {
    /// Returns the type that an `impl` at the margin is for.
    fn implementor(line: &str) -> Owner {
        if line.contains(" for ") {
            return Owner::default();
        }
        let Some(mut rest) = line.strip_prefix("impl") else { return Owner::default() };
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
            let Some(end) = end else { return Owner::default() };
            rest = &rest[end + 1..];
        }
        let of = rest.trim().trim_end_matches('{').trim_end();
        Owner { name: Some(word(of).to_owned()), of: Some(of.to_owned()) }
    }

    /// Returns the path of a member.
    fn member(&self, name: &str) -> Option<String> {
        self.name.as_ref().map(|owner| format!("{owner}::{name}"))
    }
}

/// Returns the path of the item that the first line opens, and makes a type the owner of what
/// follows.
fn item(lines: &[&str], owner: &mut Owner) -> Option<(String, Kind)> {
    let code = lines[0].trim();
    if let Some(rest) = code.strip_prefix("pub ") {
        let rest = rest.trim_start_matches("const ").trim_start_matches("unsafe ");
        for keyword in ["struct ", "enum ", "trait ", "type "] {
            if let Some(name) = rest.strip_prefix(keyword) {
                let name = word(name).to_owned();
                *owner = Owner { name: Some(name.clone()), of: None };
                return Some((name, Kind::Type));
            }
        }
        if let Some(name) = rest.strip_prefix("fn ") {
            let name = word(name);
            let kind = Kind::Function { of: owner.of.clone(), signature: signature(lines) };
            return Some((owner.member(name).unwrap_or_else(|| name.to_owned()), kind));
        }
        let name = word(rest);
        if rest[name.len()..].starts_with(": ") {
            let kind = if is_upper(name) { Kind::Constant } else { Kind::Field };
            return owner.member(name).map(|path| (path, kind));
        }
        return None;
    }
    let is_flag = code.starts_with("const ");
    let rest = code.trim_start_matches("const ");
    let name = word(rest);
    let after = &rest[name.len()..];
    if is_upper(name) && after.starts_with(" = ") && code.ends_with(';') {
        return owner.member(name).map(|path| (path, Kind::Constant));
    }
    let is_variant = name.starts_with(|c: char| c.is_ascii_uppercase()) && !is_flag && !code.contains(" => ");
    let fields = match after {
        "," => Some(""),
        " {" => Some(" { .. }"),
        _ => after.starts_with('(').then_some("(..)"),
    };
    if let Some(fields) = fields.filter(|_| is_variant) {
        return owner.member(name).map(|path| (path, Kind::Variant { fields }));
    }
    // The fields of completions: `wr_id: u64;`.
    if after.starts_with(": ") && code.ends_with(';') {
        return owner.member(name).map(|path| (path, Kind::Reader));
    }
    None
}

/// Returns a function's text from behind `pub` up to its body.
fn signature(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        let line = line.trim();
        let end = line.find(" {").or_else(|| line.starts_with('{').then_some(0));
        text += &line[..end.unwrap_or(line.len())];
        if end.is_some() {
            break;
        }
        text.push(' ');
    }
    text.trim_start_matches("pub ").trim_end().to_owned()
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
    let kinds = [
        ("Flags::FLAG_1", Kind::Constant),
        ("State::VALUE", Kind::Constant),
        ("Sum::Variant", Kind::Variant { fields: " { .. }" }),
        ("Sum::Pair", Kind::Variant { fields: "(..)" }),
        ("Thing", Kind::Type),
        (
            "Thing::call",
            Kind::Function {
                of: Some("Thing<P>".to_owned()),
                signature: "unsafe fn call( &self, other: u8, )".to_owned(),
            },
        ),
        ("Thing::field", Kind::Field),
        ("Completion::wr_id", Kind::Reader),
        ("free", Kind::Function { of: None, signature: "fn free() -> u8".to_owned() }),
    ];
    for (path, kind) in kinds {
        assert_eq!(found.items.get(path), Some(&kind), "{path}");
    }
}
