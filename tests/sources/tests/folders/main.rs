//! The page of each crate lists its folders from top to bottom. A folder imports only folders below
//! it. Files import each other in cycles of at most three files. Between folders beside each other,
//! imports go in one direction.
//!
//! The order comes from the tables in the crate's `//!`. Modules in the same row are not ordered.
//! Unit tests may import anything.

mod graph;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::graph::{Graph, circles, graph};

/// The crates whose pages list their folders.
const CRATES: &[&str] = &[
    "c-abi",
    "cm",
    "connectx-model",
    "ib-cm",
    "libibverbs-rs",
    "provider-mlx5",
    "provider-rxe",
    "provider-soft",
    "rdma-sans-io",
    "roce",
    "tests/c",
    "tests/fixtures",
    "tests/harness",
    "tests/suites",
    "tools",
    "verbs-core",
];

/// The other crates, which have no folders, or whose folders import the root.
const OTHERS: &[&str] = &[
    "c-abi/image",
    "tests/api-fuzz",
    "tests/callgrind",
    "tests/sources",
    "tests/suites/conformance",
    "uverbs-abi",
    "xtask",
];

/// The import graphs of the crates in [`CRATES`] and [`OTHERS`].
static GRAPHS: LazyLock<Vec<(&str, Graph)>> = LazyLock::new(|| {
    CRATES.iter().chain(OTHERS).map(|library| (*library, graph(&sources(library)))).collect()
});

/// The maximum number of files in an import cycle.
const MAX_CIRCLE: usize = 3;

/// The larger import cycles: a crate and a file in the cycle.
const LARGER: &[(&str, &str)] = &[
    // The structs of `verbs.h` name each other. A context's operation table names most of them.
    ("c-abi", "abi/c/context.rs"),
    // `Provider` names the traits of its objects. Their methods name `Provider`.
    ("verbs-core", "provider/context.rs"),
];

#[test]
fn every_package_is_examined() {
    let manifest = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
    let (_, members) = manifest.split_once("members = [").expect("the list of members");
    let (members, _) = members.split_once(']').expect("its end");
    let members: BTreeSet<&str> = members.split('"').skip(1).step_by(2).collect();
    assert_eq!(GRAPHS.iter().map(|(library, _)| *library).collect::<BTreeSet<_>>(), members);
}

#[test]
fn folders_import_only_folders_below_them() {
    for (library, graph) in GRAPHS.iter().filter(|(library, _)| CRATES.contains(library)) {
        let modules: BTreeSet<String> = graph.keys().map(|file| module(file).to_owned()).collect();
        let ranks = ranks(&read(&root(library).join("lib.rs")), &modules);
        let missing: Vec<_> =
            modules.iter().filter(|name| *name != "lib" && !ranks.contains_key(*name)).collect();
        assert!(missing.is_empty(), "the table of {library}/src/lib.rs lacks {missing:?}");

        // The root is above all of its modules.
        let rank = |file: &String| ranks.get(module(file)).map_or(0, |rank| rank + 1);
        for (file, imported) in graph {
            let higher: Vec<_> = imported.iter().filter(|other| rank(other) < rank(file)).collect();
            assert!(higher.is_empty(), "{library}/src/{file} imports from higher folders: {higher:?}");
        }
    }
}

#[test]
fn files_import_each_other_in_small_circles_only() {
    let mut larger = Vec::new();
    for (library, graph) in GRAPHS.iter() {
        for circle in circles(graph) {
            let known = LARGER.iter().find(|(name, file)| name == library && circle.contains(*file));
            if let Some(known) = known {
                larger.push(*known);
            } else {
                assert!(circle.len() <= MAX_CIRCLE, "a circle of files in {library}/src: {circle:#?}");
            }
        }
    }
    assert_eq!(larger, LARGER, "circles that are small now, or gone");
}

#[test]
fn folders_beside_each_other_import_one_way() {
    for (library, files) in GRAPHS.iter() {
        let parents: BTreeSet<&Path> =
            files.keys().flat_map(|file| Path::new(file).ancestors().skip(1)).collect();
        for parent in parents {
            for circle in circles(&entries(files, parent)) {
                let folders = circle.iter().filter(|entry| !entry.ends_with(".rs")).count();
                let folder = Path::new(library).join("src").join(parent);
                assert!(folders < 2, "a circle of folders in {}: {circle:#?}", folder.display());
            }
        }
    }
}

#[test]
fn imports_lead_to_the_files_that_define_the_names() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::{Two, inner::One as Uno}; pub use b::*; pub struct Root;"),
        ("a/mod.rs", "pub mod inner; pub use self::inner::Two; pub fn call() {}"),
        ("a/inner.rs", "pub struct One; pub struct Two; numbers! { pub struct Three; }"),
        (
            "b.rs",
            "//! See [crate::a].
            use crate::{Uno, a::{self, inner::{self, Three}}};
            fn call() -> Vec<Uno> { a::call() }
            #[cfg(test)]
            mod tests { use crate::Root; }
            mod own { pub struct Four; impl super::super::Root {} }",
        ),
        ("c.rs", "use crate::Four; use crate::numbers; mod four { use crate::b::*; fn call(_: Other) {} }"),
        (
            "d.rs",
            "use self::own::Four as Five; pub use crate::a::call; pub use own::*; mod own { pub struct Four; }",
        ),
    ];
    let graph = graph(&files.map(|(file, source)| (file.to_owned(), source.to_owned())));
    let imported = |file: &str| graph[file].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(imported("lib.rs"), [""; 0], "re-exports");
    assert_eq!(imported("a/mod.rs"), [""; 0]);
    assert_eq!(imported("b.rs"), ["a/inner.rs", "a/mod.rs", "lib.rs"], "aliases, macros and inner modules");
    assert_eq!(imported("c.rs"), [""; 0], "names of other crates and macros");
    assert_eq!(imported("d.rs"), [""; 0]);
}

#[test]
fn circles_are_the_files_that_reach_each_other() {
    let graph: Graph = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "d"), ("e", "a")]
        .map(|(from, to)| (from.to_owned(), [to.to_owned()].into()))
        .into();
    assert_eq!(circles(&graph), [["b".to_owned(), "c".to_owned()].into(), ["d".to_owned()].into()]);
}

#[test]
fn the_order_of_folders_is_the_order_of_the_rows() {
    let page = "//! | `one`, [`two`] | three, `four` |\n//! |---|---|\n//! | part | [`three`] | `one` |\n";
    let modules = ["one", "two", "three", "four"].map(str::to_owned).into();
    assert_eq!(
        ranks(page, &modules),
        [("one", 0), ("two", 0), ("three", 2)].map(|(a, b)| (a.to_owned(), b)).into()
    );
}

/// Returns the row of each module that a crate's page lists outside the last column.
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

/// Returns the name of a file's top-level module.
fn module(file: &str) -> &str {
    file.split('/').next().expect("a name").trim_end_matches(".rs")
}

/// Returns the imports among the entries of a folder. `a.rs` and the files in `a` are one entry,
/// named after the folder. The folder's own module files are left out.
fn entries(files: &Graph, folder: &Path) -> Graph {
    let is_folder = |name: &str| files.keys().any(|file| Path::new(file).starts_with(folder.join(name)));
    let entry = |file: &str| {
        let first = Path::new(file).strip_prefix(folder).ok()?.iter().next()?.to_str()?;
        let name = first.trim_end_matches(".rs");
        let is_own = ["lib", "main", "mod"].contains(&name);
        (!is_own).then(|| if is_folder(name) { name } else { first }.to_owned())
    };
    let mut graph = Graph::new();
    for (file, imported) in files {
        if let Some(from) = entry(file) {
            let others = imported.iter().filter_map(|file| entry(file)).filter(|to| *to != from);
            graph.entry(from.clone()).or_default().extend(others.collect::<Vec<_>>());
        }
    }
    graph
}

/// Returns the folder with a crate's sources.
fn root(library: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(library).join("src")
}

/// Returns the files of a crate with their sources, except unit tests and programs.
fn sources(library: &str) -> Vec<(String, String)> {
    let root = root(library);
    let mut files = Vec::new();
    collect(root.clone(), &mut files);
    let has_library = root.join("lib.rs").exists();
    let named = files.into_iter().map(|file| {
        let name = file.strip_prefix(&root).expect("a file below").to_str().expect("a name").to_owned();
        (name, read(&file))
    });
    named.filter(|(name, _)| !has_library || !["main", "bin"].contains(&module(name))).collect()
}

/// Collects the Rust files at or below a path, except unit tests and their helpers.
fn collect(path: PathBuf, files: &mut Vec<PathBuf>) {
    if path.file_stem().is_some_and(|name| name == "tests" || name == "testing") {
        return;
    }
    if path.is_dir() {
        let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        entries.for_each(|entry| collect(entry.expect("a readable folder").path(), files));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path);
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
