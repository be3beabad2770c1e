//! What the sources say: where unsafe code may be, `unsafe impl`s, and safe functions that take what could name anything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, FnArg, ImplItem, Item, Pat, Signature, TraitItem, Type, Visibility};

/// The folders that are scanned, from the workspace's root: the libraries, and the one other place with unsafe code of ours.
const FOLDERS: &[&str] = &[
    "uverbs-abi/src",
    "verbs-core/src",
    "provider-rxe/src",
    "provider-soft/src",
    "roce/src",
    "libibverbs-rs/src",
    "tests/connectx/src",
];

/// Types that name memory or a file by themselves.
const TYPES: &[&str] = &["NonNull", "RawFd", "BorrowedFd", "OwnedFd", "AsFd", "AsRawFd", "IntoRawFd"];

/// Numbers that name memory, a file or an object, by the names of their parameters.
const NUMBERS: &[&str] = &["fd", "handle", "addr", "iova", "lkey", "rkey", "qpn", "qp_num"];

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Files that allow unsafe code.
    pub(crate) islands: BTreeSet<[String; 2]>,
    /// `unsafe impl`s: their files and headers.
    pub(crate) impls: BTreeSet<[String; 2]>,
    /// Safe functions: their files, and names with what they take.
    pub(crate) functions: BTreeSet<[String; 2]>,
}

/// Scans the folders.
pub(crate) fn scan(root: &Path) -> Found {
    let mut found = Found::default();
    for folder in FOLDERS {
        let mut files = Vec::new();
        collect(&root.join(folder), &mut files);
        assert!(!files.is_empty(), "there are no sources in {folder}");
        for file in files {
            let name = file.strip_prefix(root).expect("below the root").display().to_string();
            let text = std::fs::read_to_string(&file).expect("a readable source");
            // The model is a test program: of it, only where unsafe code is matters.
            let is_library = !folder.starts_with("tests/") || name.contains("/vfio/mapping.rs");
            found.file(&name, &text, is_library);
        }
    }
    found
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

impl Found {
    /// Takes in one file. Tests may take what they want: they only count as places where unsafe code is.
    pub(crate) fn file(&mut self, name: &str, text: &str, is_library: bool) {
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if allows_unsafe(&parsed.into_token_stream().to_string()) {
            self.islands.insert([name.to_owned(), String::new()]);
        }
        let is_test =
            name.split('/').any(|part| part == "tests" || part == "tests.rs") && !name.starts_with("tests/");
        if is_library && !is_test {
            let parsed = syn::parse_file(text).expect("parsed before");
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
                    self.function(file, "", &function.sig);
                }
                Item::Impl(block) if !is_of_tests(&block.attrs) => self.block(file, block),
                Item::Trait(one) if is_public(&one.vis) => {
                    for item in &one.items {
                        if let TraitItem::Fn(function) = item {
                            self.function(file, &one.ident.to_string(), &function.sig);
                        }
                    }
                }
                Item::Macro(one) => self.macro_body(file, &one.mac.tokens.to_string()),
                _ => {}
            }
        }
    }

    fn block(&mut self, file: &str, block: &syn::ItemImpl) {
        let of = plain(&block.self_ty);
        if block.unsafety.is_some() {
            let of_trait = block.trait_.as_ref().map(|(_, path, _)| plain(path)).unwrap_or_default();
            self.impls.insert([file.to_owned(), format!("`unsafe impl {of_trait} for {of}`")]);
        }
        for item in &block.items {
            if let ImplItem::Fn(function) = item
                && !is_of_tests(&function.attrs)
            {
                // Methods of a trait of our own are listed once, where the trait is.
                match &block.trait_ {
                    None if is_public(&function.vis) => self.function(file, &of, &function.sig),
                    Some((_, path, _)) if path.segments.len() == 1 && plain(path).starts_with("From<") => {
                        self.function(file, &of, &function.sig);
                    }
                    _ => {}
                }
            }
        }
    }

    fn function(&mut self, file: &str, of: &str, sig: &Signature) {
        if sig.unsafety.is_some() {
            return;
        }
        let generics = format!("{} {}", plain(&sig.generics), plain(&sig.generics.where_clause));
        let mut takes: Vec<String> = sig.inputs.iter().filter_map(suspect).collect();
        if names_type(&generics) {
            takes.push("a descriptor by a bound".to_owned());
        }
        if !takes.is_empty() {
            let of = if of.is_empty() { String::new() } else { format!("{of}::") };
            self.functions.insert([file.to_owned(), format!("`{of}{}({})`", sig.ident, takes.join(", "))]);
        }
    }

    /// What a macro writes is not parsed, but an `unsafe impl` in it is seen.
    fn macro_body(&mut self, file: &str, tokens: &str) {
        for (at, _) in tokens.match_indices("unsafe impl") {
            let header: String = tokens[at..].split('{').next().unwrap_or_default().trim().to_owned();
            self.impls.insert([file.to_owned(), format!("`{header}` in a macro")]);
        }
    }
}

/// A parameter that could name anything, as text.
fn suspect(argument: &FnArg) -> Option<String> {
    let FnArg::Typed(argument) = argument else { return None };
    let text = plain(&argument.ty);
    let name = match &*argument.pat {
        Pat::Ident(ident) => ident.ident.to_string(),
        _ => String::new(),
    };
    let is_number =
        matches!(&*argument.ty, Type::Path(_)) && ["i32", "u32", "u64", "usize"].contains(&text.as_str());
    let is_named = NUMBERS.iter().any(|number| name == *number || name.ends_with(&format!("_{number}")));
    let is_suspect =
        text.contains("*const") || text.contains("*mut") || names_type(&text) || is_number && is_named;
    is_suspect.then(|| format!("{name}: {text}"))
}

/// Does the text hold one of the types, as a word?
fn names_type(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric()).any(|word| TYPES.contains(&word))
}

/// Is there an attribute, of the file or of an item, that allows it? Doc comments are attributes too, but not such ones.
fn allows_unsafe(tokens: &str) -> bool {
    tokens
        .split("[allow")
        .skip(1)
        .any(|rest| rest.split(']').next().is_some_and(|list| list.contains("unsafe_code")))
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && {
            let text = attribute.to_token_stream().to_string();
            text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "test")
                && !text.contains("not")
        }
    })
}

const fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Tokens as they are usually written.
fn plain(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" :: ", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        ("& ", "&"),
        (" ,", ","),
        ("* ", "*"),
        ("' ", "'"),
        ("[ ", "["),
        (" ]", "]"),
        (" ;", ";"),
        ("( ", "("),
        (" )", ")"),
        ("> for", "> for"),
        (" (", "("),
    ] {
        text = text.replace(from, to);
    }
    text
}
