//! [`Graph`]: the imports among a crate's files.
//!
//! An import leads to the file that defines the name, through any number of re-exports. A re-export
//! is not an import, unless its file uses the name itself. A name without a visible definition is
//! assumed to come from a macro in its path's module.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, Item, ItemMacro, ItemMod, ItemUse, Meta, UseTree, Visibility};

/// Each file in a crate, with the files it imports.
pub(super) type Graph = BTreeMap<String, BTreeSet<String>>;

type Names = Vec<String>;

/// Returns the imports between files. Each file is given as its path below `src` and its source
/// text.
pub(super) fn graph(files: &[(String, String)]) -> Graph {
    let mut modules = Modules::default();
    for (file, source) in files {
        let mut path: Names = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        let is_root = path.len() == 1 && (path[0] == "lib" || path[0] == "main");
        if is_root || path.last().is_some_and(|name| name == "mod") {
            path.pop();
        }
        modules.add(path, file, &syn::parse_file(source).expect("Rust").items);
    }
    let mut graph = Graph::new();
    for (at, module) in &modules.0 {
        let imported = module.paths.iter().filter_map(|path| modules.file(at, path));
        let imported = imported.filter(|file| *file != module.file).map(str::to_owned);
        graph.entry(module.file.clone()).or_default().extend(imported);
    }
    graph
}

/// Returns the cycles: sets of nodes that import each other, directly or not.
pub(super) fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = graph.keys().map(|node| (node, reached(graph, node))).collect();
    let mut circles = Vec::new();
    for (node, ahead) in &reached {
        let mutual = |other: &&String| reached.get(*other).is_some_and(|back| back.contains(*node));
        let circle: BTreeSet<String> = ahead.iter().filter(mutual).cloned().collect();
        if circle.first() == Some(*node) {
            circles.push(circle);
        }
    }
    circles
}

fn reached(graph: &Graph, from: &str) -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(node) = next.pop() {
        let imported = graph.get(node).into_iter().flatten();
        next.extend(imported.filter(|to| found.insert((*to).clone())).map(String::as_str));
    }
    found
}

/// A module with its source.
#[derive(Default)]
struct Module {
    file: String,
    /// The names in the module: `None` for a definition, and the path for an import.
    names: BTreeMap<String, Option<Names>>,
    /// The modules whose names are all imported.
    globs: Vec<Names>,
    /// The paths that the module uses.
    paths: BTreeSet<Names>,
    /// The child modules defined in this file.
    inner: Vec<ItemMod>,
    /// The child modules defined in other files.
    outer: BTreeSet<String>,
}

/// The modules of a crate by path.
#[derive(Default)]
struct Modules(BTreeMap<Names, Module>);

impl Modules {
    fn add(&mut self, path: Names, file: &str, items: &[Item]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            module.names.extend(defined(item).into_iter().map(|name| (name, None)));
            module.visit_item(item);
        }
        for inner in core::mem::take(&mut module.inner) {
            let (_, items) = inner.content.expect("a module with a body");
            self.add([path.as_slice(), &[inner.ident.to_string()]].concat(), file, &items);
        }
        self.0.insert(path, module);
    }

    /// Returns the file that defines the item at a path; `None` for a module or another crate.
    fn file(&self, at: &[String], path: &[String]) -> Option<&str> {
        let (at, is_item) = self.resolve(at, path, false, &mut BTreeSet::new())?;
        is_item.then(|| self.0[&at].file.as_str())
    }

    /// Returns the module that a path leads to, and whether the path names an item in it.
    /// `is_inside` is true if the path so far has named this module. `seen` has the names visited
    /// so far.
    fn resolve(
        &self,
        at: &[String],
        path: &[String],
        is_inside: bool,
        seen: &mut BTreeSet<Names>,
    ) -> Option<(Names, bool)> {
        let Some((first, rest)) = path.split_first() else { return Some((at.to_vec(), false)) };
        match first.as_str() {
            "crate" => return self.resolve(&[], rest, true, seen),
            "self" => return self.resolve(at, rest, true, seen),
            "super" => return self.resolve(at.split_last()?.1, rest, true, seen),
            _ => {}
        }
        let named = [at, core::slice::from_ref(first)].concat();
        if self.0.contains_key(&named) {
            return self.resolve(&named, rest, true, seen);
        }
        let module = self.0.get(at)?;
        // A module whose file is not in the graph, such as a test module.
        if module.outer.contains(first) || !seen.insert(named) {
            return None;
        }
        match module.names.get(first) {
            Some(None) => return Some((at.to_vec(), true)),
            Some(Some(target)) => return self.resolve(at, &[target.as_slice(), rest].concat(), false, seen),
            None => {}
        }
        let through_globs =
            module.globs.iter().find_map(|glob| match self.resolve(at, glob, false, seen)? {
                (from, false) => self.resolve(&from, path, false, seen),
                (_, true) => None,
            });
        // A name in the root may also be a crate-wide macro, so nothing is assumed about it.
        through_globs.or_else(|| (is_inside && !at.is_empty()).then(|| (at.to_vec(), true)))
    }
}

impl Module {
    fn import(&mut self, before: &[String], tree: &UseTree, is_reexport: bool) {
        let with = |name: String| match name.as_str() {
            "self" if !before.is_empty() => before.to_vec(),
            _ => [before, &[name]].concat(),
        };
        let (name, path) = match tree {
            UseTree::Path(path) => {
                return self.import(&with(path.ident.to_string()), &path.tree, is_reexport);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(before, tree, is_reexport));
            }
            UseTree::Glob(_) => return self.globs.push(before.to_vec()),
            UseTree::Name(name) => {
                let path = with(name.ident.to_string());
                (path.last().expect("a name").clone(), path)
            }
            UseTree::Rename(name) => (name.rename.to_string(), with(name.ident.to_string())),
        };
        if !is_reexport {
            self.paths.insert(path.clone());
        }
        self.names.insert(name, Some(path));
    }
}

impl Visit<'_> for Module {
    fn visit_item(&mut self, item: &Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &ImplItemFn) {
        if !item.attrs.iter().any(is_for_tests) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        if item.content.is_some() {
            self.inner.push(item.clone());
        } else {
            self.outer.insert(item.ident.to_string());
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        self.import(&[], &item.tree, !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &syn::Path) {
        self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

/// Returns the names that an item defines, except the names of modules.
fn defined(item: &Item) -> Vec<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(ItemMacro { ident: Some(name), .. }) => name,
        Item::Macro(ItemMacro { mac, .. }) => return defined_by_macro(mac.tokens.clone()),
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return Vec::new(),
    };
    vec![name.to_string()]
}

/// Returns the names that follow an item keyword inside a macro call.
fn defined_by_macro(tokens: TokenStream) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_after_keyword = false;
    for token in tokens {
        let TokenTree::Ident(word) = token else {
            is_after_keyword = false;
            continue;
        };
        let word = word.to_string();
        let is_keyword =
            ["const", "enum", "fn", "static", "struct", "trait", "type", "union"].contains(&&*word);
        if is_after_keyword && !is_keyword {
            names.push(word);
        }
        is_after_keyword = is_keyword;
    }
    names
}

fn is_for_tests(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}
