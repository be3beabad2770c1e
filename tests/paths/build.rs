//! Writes `OUT_DIR/paths.rs`: a test with a statement for each path of the pages, which does not
//! compile without the item.
//!
//! It shares its parsers with the test `libibverbs` of verbs-tests. That test still builds after an
//! item is renamed, and corrects the page.

mod code;
#[path = "../suites/tests/libibverbs/guides.rs"]
mod guides;
#[path = "../suites/tests/libibverbs/page.rs"]
mod page;
#[allow(dead_code, reason = "the test reads the aliases")]
#[path = "../suites/tests/libibverbs/scan.rs"]
mod scan;

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = folder.ancestors().nth(2).expect("the package is two folders below the workspace");
    for input in ["docs/libibverbs.md", "libibverbs-rs/src", "verbs-core/src"] {
        println!("cargo::rerun-if-changed={}", root.join(input).display());
    }
    let scan = scan::scan(root);
    let text = code::code(&scan, &page::paths(root, &scan));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("paths.rs"), text).expect("OUT_DIR can be written");
}
