//! Through `verbs`, a program can name every type in a public signature of `verbs` and of
//! everything that it re-exports from verbs-core.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Field, Fields, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

/// Sources of the types that `verbs` defines or re-exports.
const PASSED_ON: &[&str] = &[
    "libibverbs-rs/src",
    "verbs-core/src/types",
    "verbs-core/src/provider",
    "verbs-core/src/discovery",
    "verbs-core/src/error.rs",
    "verbs-core/src/skip_reason.rs",
    "verbs-core/src/errno.rs",
];

/// Public modules of `verbs`. Everything that they define or re-export is nameable.
const WHOLE: &[&str] = &[
    "libibverbs-rs/src/provider.rs",
    "libibverbs-rs/src/qp/state.rs",
    "libibverbs-rs/src/soft.rs",
    "libibverbs-rs/src/mlx5.rs",
];

/// Sources whose public types can occur in a signature.
const LIBRARIES: &[&str] =
    &["libibverbs-rs/src", "verbs-core/src", "uverbs-abi/src", "provider-soft/src", "provider-rxe/src"];

#[test]
fn every_type_of_a_public_signature_can_be_named() {
    let defined: BTreeSet<String> =
        LIBRARIES.iter().flat_map(|path| sources(path)).flat_map(defined_in).collect();
    let mut nameable = reexported(&parse(&root().join("libibverbs-rs/src/lib.rs")));
    for file in WHOLE.iter().flat_map(|path| sources(path)) {
        nameable.extend(reexported(&parse(&file)));
        nameable.extend(defined_in(file));
    }
    let mut signatures = Signatures { nameable: &nameable, used: BTreeSet::new() };
    for file in PASSED_ON.iter().flat_map(|path| sources(path)) {
        signatures.visit_file(&parse(&file));
    }
    assert!(signatures.used.contains("RdmaDriverId"), "DeviceInfo::driver_id was not read");
    assert!(signatures.used.contains("Completion"), "the methods of verbs were not read");
    let unnameable: Vec<_> =
        signatures.used.iter().filter(|name| defined.contains(*name) && !nameable.contains(*name)).collect();
    assert!(
        unnameable.is_empty(),
        "add these to the re-exports of libibverbs-rs/src/lib.rs or provider.rs: {unnameable:?}"
    );
}

/// The types in public methods, fields and variants of nameable types and in public functions of
/// `verbs`' modules.
struct Signatures<'n> {
    nameable: &'n BTreeSet<String>,
    used: BTreeSet<String>,
}

impl Signatures<'_> {
    fn fields(&mut self, fields: &Fields, all: bool) {
        for Field { ty, .. } in fields.iter().filter(|field| all || is_public(&field.vis)) {
            self.visit_type(ty);
        }
    }
}

impl Visit<'_> for Signatures<'_> {
    fn visit_item(&mut self, item: &Item) {
        match item {
            // Programs cannot call methods of a sealed trait.
            Item::Mod(module) if module.ident == "sealed" => {}
            Item::Mod(module) if !is_hidden(&module.attrs) => visit::visit_item_mod(self, module),
            Item::Struct(item) if self.nameable.contains(&item.ident.to_string()) => {
                self.fields(&item.fields, false);
            }
            Item::Enum(item) if self.nameable.contains(&item.ident.to_string()) => {
                item.variants.iter().for_each(|variant| self.fields(&variant.fields, true));
            }
            Item::Trait(item) if self.nameable.contains(&item.ident.to_string()) => {
                for method in &item.items {
                    if let TraitItem::Fn(method) = method {
                        self.visit_signature(&method.sig);
                    }
                }
            }
            Item::Impl(item) if item.trait_.is_none() && names(&item.self_ty).is_subset(self.nameable) => {
                for method in &item.items {
                    if let ImplItem::Fn(method) = method
                        && is_public(&method.vis)
                        && !is_hidden(&method.attrs)
                    {
                        self.visit_signature(&method.sig);
                    }
                }
            }
            _ => {}
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        self.used.extend(path.segments.last().map(|segment| segment.ident.to_string()));
        visit::visit_path(self, path);
    }
}

/// Returns the last name in each path of a type.
fn names(ty: &Type) -> BTreeSet<String> {
    match ty {
        Type::Path(path) => {
            path.path.segments.last().map(|segment| segment.ident.to_string()).into_iter().collect()
        }
        _ => BTreeSet::new(),
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Returns whether an item is hidden from programs: under a `cfg`, or with `#[doc(hidden)]`.
fn is_hidden(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let is_doc_hidden = || attr.parse_args::<syn::Ident>().is_ok_and(|word| word == "hidden");
        attr.path().is_ident("cfg") || (attr.path().is_ident("doc") && is_doc_hidden())
    })
}

/// Returns the names that a file's `pub use` items re-export, also in inline modules.
fn reexported(file: &syn::File) -> BTreeSet<String> {
    struct Uses(BTreeSet<String>);
    impl Visit<'_> for Uses {
        fn visit_item_use(&mut self, item: &syn::ItemUse) {
            if is_public(&item.vis) {
                self.leaves(&item.tree);
            }
        }
    }
    impl Uses {
        fn leaves(&mut self, tree: &UseTree) {
            match tree {
                UseTree::Path(path) => self.leaves(&path.tree),
                UseTree::Group(group) => group.items.iter().for_each(|tree| self.leaves(tree)),
                UseTree::Name(name) => drop(self.0.insert(name.ident.to_string())),
                UseTree::Rename(rename) => drop(self.0.insert(rename.ident.to_string())),
                UseTree::Glob(_) => {}
            }
        }
    }
    let mut uses = Uses(BTreeSet::new());
    uses.visit_file(file);
    uses.0
}

/// Returns the public types of a file, including those in macro calls such as `open_enum!` and
/// `header!`: each name after `pub` and one of these words.
fn defined_in(file: PathBuf) -> BTreeSet<String> {
    const WORDS: &[&str] = &["struct", "enum", "union", "trait", "type", "request", "flags"];
    fn walk(tokens: TokenStream, found: &mut BTreeSet<String>) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for window in tokens.windows(3) {
            if let [TokenTree::Ident(public), TokenTree::Ident(word), TokenTree::Ident(name)] = window
                && public == "pub"
                && WORDS.iter().any(|known| word == known)
            {
                found.insert(name.to_string());
            }
        }
        for token in tokens {
            if let TokenTree::Group(group) = token {
                walk(group.stream(), found);
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(read(&file).parse().expect("Rust"), &mut found);
    found
}

/// Returns the Rust files at or below a path in the workspace, except tests.
fn sources(path: &str) -> Vec<PathBuf> {
    fn collect(path: PathBuf, found: &mut Vec<PathBuf>) {
        if path.file_stem().is_some_and(|name| name == "tests") {
            return;
        }
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a readable folder");
            entries.for_each(|entry| collect(entry.expect("a readable folder").path(), found));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    let mut found = Vec::new();
    collect(root().join(path), &mut found);
    assert!(!found.is_empty(), "there are no sources in {path}");
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parse(path: &Path) -> syn::File {
    syn::parse_file(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
