//! Only one file of the libraries reads the environment; it does not do so in a set-user-ID
//! program.

use std::path::{Path, PathBuf};

/// The sources of the libraries. Only [`READER`] may read the environment.
///
/// The tools are exempt: like `getopt(3)`, they read `POSIXLY_CORRECT`, which determines the order
/// of their arguments.
const LIBRARIES: &[&str] = &[
    "c-abi/src",
    "cm/src",
    "ib-cm/src",
    "libibverbs-rs/src",
    "provider-mlx5/src",
    "provider-rxe/src",
    "provider-soft/src",
    "roce/src",
    "uverbs-abi/src",
    "verbs-core/src",
];

/// The only file that reads the environment.
const READER: &str = "verbs-core/src/environment.rs";

/// Ways to read the environment. A thread's stack size defaults to `RUST_MIN_STACK`.
const READS: &[&str] = &["env::var", "getenv", "env::{var", "environ()", "thread::spawn(", "thread::Builder"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace")
}

/// Adds the source files below a folder, except tests.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            collect(&path, files);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            files.push(path);
        }
    }
}

/// Returns the lines that read the environment or start a thread with the default stack size.
fn reads(text: &str) -> Vec<String> {
    let is_of_tests = |line: &&str| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
    let code = text.lines().take_while(|line| !is_of_tests(line));
    let code = code.map(str::trim).filter(|line| !line.starts_with("//"));
    let mut found: Vec<_> =
        code.filter(|line| READS.iter().any(|read| line.contains(read))).map(str::to_owned).collect();
    let sized = |line: &&String| line.contains("thread::Builder") && line.contains(".stack_size(");
    found.retain(|line| !sized(&line));
    found
}

#[test]
fn the_libraries_read_the_environment_in_one_place() {
    let mut files = Vec::new();
    LIBRARIES.iter().for_each(|folder| collect(&root().join(folder), &mut files));
    let mut readers = Vec::new();
    for file in files {
        let name = file.strip_prefix(root()).expect("below the root").display().to_string();
        let text = std::fs::read_to_string(&file).expect("a readable source");
        readers.extend(reads(&text).into_iter().map(|line| format!("{name}: {line}")));
    }
    assert!(!readers.is_empty(), "{READER} reads it");
    readers.retain(|reader| !reader.starts_with(READER));
    assert!(readers.is_empty(), "use verbs_core::environment:\n{}", readers.join("\n"));
}

#[test]
fn reads_are_found_in_code_and_not_in_tests_and_comments() {
    for read in [
        "let x = std::env::var(\"X\");",
        "env::var_os(NAME)",
        "env::vars()",
        "libc::getenv(name)",
        "std::thread::spawn(|| {})",
        "std::thread::Builder::new().spawn(run)",
    ] {
        assert_eq!(reads(read).len(), 1, "{read}");
    }
    for other in ["// env::var", "#[cfg(test)]\nmod tests { env::var(x) }", "environment::variable(x)"] {
        assert!(reads(other).is_empty(), "{other}");
    }
    assert!(reads("thread::Builder::new().stack_size(1 << 20).spawn(run)").is_empty());
}
