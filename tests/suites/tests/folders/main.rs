//! The page of each crate lists its folders from top to bottom, and a folder imports only folders
//! below it.
//!
//! The order comes from the tables in the crate's `//!`. Modules in the same row have no order. A
//! name that the crate's root re-exports counts as its module.
//! Unit tests may import anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, UseTree};

/// Each crate, and how many of its imports lead from a folder to a higher one.
const CRATES: &[(&str, usize)] = &[
    ("c-abi", 0),
    ("cm", 0),
    ("connectx-model", 0),
    ("ib-cm", 0),
    ("libibverbs-rs", 0),
    ("provider-mlx5", 0),
    ("provider-rxe", 0),
    ("provider-soft", 0),
    ("rdma-sans-io", 0),
    ("roce", 0),
    ("tools", 0),
    ("verbs-core", 0),
];

#[test]
fn folders_import_only_folders_below_them() {
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for &(library, expected) in CRATES {
        let sources = root.join(library).join("src");
        let modules = modules(&sources);
        let page = read(&sources.join("lib.rs"));
        let (ranks, exports) = (ranks(&page, &modules.keys().cloned().collect()), exports(&page));
        let missing: Vec<_> = modules.keys().filter(|name| !ranks.contains_key(*name)).collect();
        assert!(missing.is_empty(), "the table of {library}/src/lib.rs lacks {missing:?}");

        let mut upward = Vec::new();
        for (module, files) in &modules {
            for file in files {
                let imported = imports(&read(file)).into_iter();
                let imported = imported.map(|name| exports.get(&name).unwrap_or(&name).clone());
                let higher =
                    imported.filter(|name| ranks.get(name).is_some_and(|rank| *rank < ranks[module]));
                upward.extend(higher.map(|name| format!("{} imports {name}", file.display())));
            }
        }
        assert_eq!(upward.len(), expected, "imports of a higher folder in {library}: {upward:#?}");
    }
}

#[test]
fn imports_are_uses_groups_and_paths_outside_of_unit_tests() {
    let source = "
        //! See [crate::comment].
        use crate::one::{Type, crate_name};
        pub(crate) use crate::{two, three::Type as Other};
        fn call() { crate::four::call() }
        #[cfg(test)]
        mod tests { use crate::five; }
    ";
    assert_eq!(imports(source), ["one", "two", "three", "four"]);
    let page = "//! | `one`, [`two`] | three, `four` |\n//! |---|---|\n//! | part | [`three`] | `one` |\n";
    let modules = ["one", "two", "three", "four"].map(str::to_owned).into();
    assert_eq!(
        ranks(page, &modules),
        [("one", 0), ("two", 0), ("three", 2)].map(|(a, b)| (a.to_owned(), b)).into()
    );
    let root = "pub use one::{A, part::B as C}; pub(crate) use two::D; pub mod three { pub use other::E; }";
    let expected = [("A", "one"), ("C", "one"), ("D", "two")];
    assert_eq!(exports(root), expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into());
}

/// Returns the row of each module that a crate's page lists in a column other than the last.
fn ranks(page: &str, modules: &BTreeSet<String>) -> BTreeMap<String, usize> {
    let rows =
        page.lines().filter_map(|line| line.strip_prefix("//! |")?.strip_suffix('|')?.rsplit_once('|'));
    let mut ranks = BTreeMap::new();
    for (rank, (names, _)) in rows.enumerate() {
        for name in names.split('`').filter(|name| modules.contains(*name)) {
            ranks.entry(name.to_owned()).or_insert(rank);
        }
    }
    ranks
}

/// Returns the names that the root of a crate re-exports, with their modules.
fn exports(root: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for item in syn::parse_file(root).expect("Rust").items {
        if let Item::Use(item) = item
            && let UseTree::Path(path) = item.tree
        {
            let mut names = Vec::new();
            last_names(&path.tree, &mut names);
            exports.extend(names.into_iter().map(|name| (name, path.ident.to_string())));
        }
    }
    exports
}

/// Returns the modules at the root of a crate with their files, except tests and programs.
fn modules(sources: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    let mut modules = BTreeMap::new();
    for path in entries(sources) {
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let mut files = Vec::new();
        collect(path, &mut files);
        if !["lib", "main", "bin"].contains(&&*name) && !files.is_empty() {
            modules.insert(name, files);
        }
    }
    modules
}

/// Collects the Rust files at or below a path, except unit tests and their helpers.
fn collect(path: PathBuf, files: &mut Vec<PathBuf>) {
    if path.file_stem().is_some_and(|name| name == "tests" || name == "testing") {
        return;
    }
    if path.is_dir() {
        entries(&path).into_iter().for_each(|entry| collect(entry, files));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path);
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("a readable folder").path()).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the first names of the paths that begin with `crate`.
fn imports(source: &str) -> Vec<String> {
    let mut imports = Imports(Vec::new());
    imports.visit_file(&syn::parse_file(source).expect("Rust"));
    imports.0
}

struct Imports(Vec<String>);

impl Visit<'_> for Imports {
    fn visit_item_mod(&mut self, item: &ItemMod) {
        if !item.attrs.iter().any(is_for_tests) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        if let UseTree::Path(path) = &item.tree
            && path.ident == "crate"
        {
            first_names(&path.tree, &mut self.0);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let mut names = path.segments.iter().map(|segment| segment.ident.to_string());
        if names.next().is_some_and(|name| name == "crate") {
            self.0.extend(names.next());
        }
        visit::visit_path(self, path);
    }
}

fn first_names(tree: &UseTree, found: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => found.push(path.ident.to_string()),
        UseTree::Name(name) => found.push(name.ident.to_string()),
        UseTree::Rename(name) => found.push(name.ident.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| first_names(tree, found)),
        UseTree::Glob(_) => {}
    }
}

fn last_names(tree: &UseTree, found: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => last_names(&path.tree, found),
        UseTree::Name(name) => found.push(name.ident.to_string()),
        UseTree::Rename(name) => found.push(name.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| last_names(tree, found)),
        UseTree::Glob(_) => {}
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}
