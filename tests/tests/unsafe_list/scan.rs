//! The scanner: finds files with unsafe code, `unsafe impl`s, and safe functions with a parameter
//! that could name anything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, ItemImpl, Macro, Signature, TraitItem, Visibility};

use crate::rules::{allows_unsafe, has_unsafe_block, is_of_tests, names_type, plain, suspect, unsafe_impls};

/// The sources whose safe functions are listed: the libraries, plus the only other file with unsafe
/// code that serves as a library.
const LIBRARIES: &[&str] = &[
    "uverbs-abi/src/",
    "verbs-core/src/",
    "provider-rxe/src/",
    "provider-soft/src/",
    "roce/src/",
    "libibverbs-rs/src/",
    "cm/src/",
    "connectx-model/src/vfio/mapping.rs",
];

/// Foreign traits that convert values of any kind. Methods of other trait implementations are
/// listed with their trait.
const CONVERSIONS: &[&str] = &["From", "TryFrom"];

/// The unsafe code in the sources.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Files that allow unsafe code.
    pub(crate) islands: BTreeSet<[String; 2]>,
    /// `unsafe impl`s: their files and headers.
    pub(crate) impls: BTreeSet<[String; 2]>,
    /// Safe functions: their files and their names with the parameters.
    pub(crate) functions: BTreeSet<[String; 2]>,
}

/// Scans every Rust source below the workspace's root, including fuzz targets but not build
/// directories.
pub(crate) fn scan(root: &Path) -> Found {
    let mut found = Found::default();
    let mut files = Vec::new();
    collect(root, &mut files);
    let names: Vec<String> = files
        .iter()
        .map(|file| file.strip_prefix(root).expect("below the root").display().to_string())
        .collect();
    for library in LIBRARIES {
        assert!(names.iter().any(|name| name.starts_with(library)), "there are no sources in {library}");
    }
    for (file, name) in files.iter().zip(&names) {
        found.file(name, &std::fs::read_to_string(file).expect("a readable source"));
    }
    found
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let entry = entry.expect("a readable folder");
        let (path, name) = (entry.path(), entry.file_name());
        // Links are not followed: their targets are scanned under their own names, or lie outside
        // the workspace.
        if entry.file_type().expect("a readable folder").is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

impl Found {
    /// Adds a file. Tests and programs may have any parameters: they are only listed as places with
    /// unsafe code.
    pub(crate) fn file(&mut self, name: &str, text: &str) {
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let tokens = parsed.to_token_stream();
        if allows_unsafe(tokens.clone()) || has_unsafe_block(tokens) {
            self.islands.insert([name.to_owned(), String::new()]);
        }
        Impls { file: name, found: &mut self.impls }.visit_file(&parsed);
        let is_test = || {
            let below = name.split_once("/src/").map_or(name, |(_, below)| below);
            below.split('/').any(|part| part == "tests" || part == "tests.rs")
        };
        if LIBRARIES.iter().any(|library| name.starts_with(library)) && !is_test() {
            self.items(name, &parsed.items);
        }
    }

    fn items(&mut self, file: &str, items: &[Item]) {
        for item in items {
            match item {
                Item::Mod(module) if !is_of_tests(&module.attrs) => {
                    if let Some((_, items)) = &module.content {
                        self.items(file, items);
                    }
                }
                Item::Fn(function) if !is_of_tests(&function.attrs) && is_public(&function.vis) => {
                    self.function(file, "", "", &function.sig);
                }
                Item::Impl(block) if !is_of_tests(&block.attrs) => self.block(file, block),
                Item::Trait(one) if is_public(&one.vis) && !is_of_tests(&one.attrs) => {
                    let bounds = format!("{} {}", plain(&one.generics), plain(&one.generics.where_clause));
                    for item in &one.items {
                        if let TraitItem::Fn(function) = item {
                            self.function(file, &one.ident.to_string(), &bounds, &function.sig);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn block(&mut self, file: &str, block: &ItemImpl) {
        let of = plain(&block.self_ty);
        let bounds = format!("{} {}", plain(&block.generics), plain(&block.generics.where_clause));
        for item in &block.items {
            if let ImplItem::Fn(function) = item
                && !is_of_tests(&function.attrs)
            {
                let is_listed = match &block.trait_ {
                    None => is_public(&function.vis),
                    Some((_, path, _)) => path
                        .segments
                        .last()
                        .is_some_and(|last| CONVERSIONS.iter().any(|one| last.ident == one)),
                };
                if is_listed {
                    self.function(file, &of, &bounds, &function.sig);
                }
            }
        }
    }

    /// Adds a function, with the bounds of the item it is a method of.
    fn function(&mut self, file: &str, of: &str, bounds: &str, sig: &Signature) {
        if sig.unsafety.is_some() {
            return;
        }
        let own = format!("{} {}", plain(&sig.generics), plain(&sig.generics.where_clause));
        let mut takes: Vec<String> =
            sig.inputs.iter().filter_map(|argument| suspect(file, argument)).collect();
        let has_arguments = sig.inputs.iter().any(|argument| matches!(argument, syn::FnArg::Typed(_)));
        if names_type(&own) || has_arguments && names_type(bounds) {
            takes.push("a descriptor by a bound".to_owned());
        }
        if !takes.is_empty() {
            let of = if of.is_empty() { String::new() } else { format!("{of}::") };
            self.functions.insert([file.to_owned(), format!("`{of}{}({})`", sig.ident, takes.join(", "))]);
        }
    }
}

/// Finds `unsafe impl`s everywhere: in items, bodies and constants, and in the tokens of macros.
struct Impls<'a> {
    file: &'a str,
    found: &'a mut BTreeSet<[String; 2]>,
}

impl<'ast> Visit<'ast> for Impls<'_> {
    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        if block.unsafety.is_some() {
            let of = plain(&block.self_ty);
            let of_trait = block.trait_.as_ref().map(|(_, path, _)| plain(path)).unwrap_or_default();
            self.found.insert([self.file.to_owned(), format!("`unsafe impl {of_trait} for {of}`")]);
        }
        visit::visit_item_impl(self, block);
    }

    fn visit_macro(&mut self, one: &'ast Macro) {
        for header in unsafe_impls(one.tokens.clone()) {
            self.found.insert([self.file.to_owned(), format!("`{header}` in a macro")]);
        }
    }
}

const fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}
