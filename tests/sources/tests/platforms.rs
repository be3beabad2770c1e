//! The compiler rejects unsupported targets, with a one-sentence error.
//!
//! The standard libraries of such targets are rarely installed. The test therefore sets the
//! targets' properties on the host with a compiler flag.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The lowest libraries with target-dependent code. Every build includes at least one of them.
const LOWEST: &[&str] = &["uverbs-abi", "roce", "ib-cm"];

/// The libraries that depend on them.
const ABOVE: &[&str] =
    &["verbs-core", "provider-rxe", "provider-mlx5", "provider-soft", "libibverbs-rs", "cm", "c-abi"];

const SENTENCE: &str = "supports 64-bit little-endian processors only";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace")
}

/// Returns the compiler's messages for a library on a target with the given property.
fn compile(library: &str, property: &str) -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--out-dir"])
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .args(["-A", "explicit_builtin_cfgs_in_flags", "--cfg", property])
        .arg(root().join(library).join("src/lib.rs"))
        .output()
        .expect("the compiler runs");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_lowest_libraries_refuse_32_bits_and_big_endian_and_say_so() {
    for library in LOWEST {
        for property in ["target_pointer_width=\"32\"", "target_endian=\"big\""] {
            let said = compile(library, property);
            assert!(said.contains(&format!("error: {library} {SENTENCE}")), "{property}: {said}");
        }
    }
}

#[test]
fn every_other_library_depends_on_one_of_the_lowest() {
    let dependencies = |library: &str| {
        let manifest = fs::read_to_string(root().join(library).join("Cargo.toml")).expect("a manifest");
        let (_, rest) = manifest.split_once("\n[dependencies]\n").expect("dependencies");
        let section = rest.split("\n[").next().unwrap_or(rest);
        let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    for library in ABOVE {
        let names = dependencies(library);
        assert!(names.iter().any(|name| LOWEST.contains(&name.as_str())), "{library}: {names:?}");
    }
}
