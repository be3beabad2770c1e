//! Each library without features, and with each of its features alone: code and tests; and its
//! documentation without features.
//!
//! Clippy and rustdoc check all features together in other stages, where a link or an import that
//! needs a feature goes unnoticed.

use super::packages::{self, Library};
use super::stage::StageResult;
use crate::cargo;

/// The features that a check turns on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    None,
    Each,
}

/// Checks each library that has features; a result for clippy each, and one for rustdoc without
/// features.
pub(super) fn check(result: &mut StageResult, which: Which) {
    let libraries = match packages::libraries(cargo::root()) {
        Ok(libraries) => libraries,
        Err(error) => return result.fail(format!("{error:#}")),
    };
    for Library { name, manifest } in libraries {
        let features = features(&manifest);
        match which {
            Which::None if features.is_empty() => {}
            Which::None => check_one(&name, None, result),
            Which::Each => features.iter().for_each(|feature| check_one(&name, Some(feature), result)),
        }
    }
}

/// Checks a library with no feature, or with one.
fn check_one(library: &str, feature: Option<&str>, result: &mut StageResult) {
    const CLIPPY: (&str, &str, &[&str]) = ("clippy", "--all-targets", &["--", "-D", "warnings"]);
    const DOC: (&str, &str, &[&str]) = ("doc", "--no-deps", &[]);
    // Documentation is published with all features, which another stage builds. Without any, a link
    // into a feature breaks.
    let all = if feature.is_none() { &[CLIPPY, DOC] as &[_] } else { &[CLIPPY] };
    for (subcommand, what, last) in all {
        let mut command = cargo::command();
        command.args([subcommand, what, "--quiet", "--package", library, "--no-default-features"]);
        if let Some(feature) = feature {
            command.args(["--features", feature]);
        }
        if *subcommand == "doc" {
            // A folder of its own: the workspace's documentation stays that of all features.
            command.args(["--target-dir", "target/features"]);
        }
        command.args(*last);
        command.env("RUSTDOCFLAGS", "-D warnings").env("CARGO_INCREMENTAL", "0");
        match command.status() {
            Ok(status) if status.success() => result.counts.passed += 1,
            Ok(status) => result.fail(format!("{command:?}: {status}")),
            Err(error) => result.fail(format!("cannot run cargo: {error}")),
        }
    }
}

/// Returns the names in a manifest's `[features]` table, except `default`.
fn features(manifest: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| line.trim() != "[features]").skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim())
        .filter(|name| *name != "default" && !name.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_the_keys_of_their_table_without_the_default() {
        let manifest = "[package]\nname = \"x\"\n\n[features]\ndefault = [\"a\"]\n# Not b = [].\na = []\n\
                        c = [\"dep:c\"]\n\n[dependencies]\nd = \"1\"\n";
        assert_eq!(features(manifest), ["a", "c"]);
        assert_eq!(features("[package]\nname = \"x\"\n"), [""; 0]);
    }

    #[test]
    fn the_providers_of_the_libraries_are_features() {
        let libraries = packages::libraries(cargo::root()).unwrap();
        for name in ["libibverbs-rs", "rdma-cm"] {
            let library = libraries.iter().find(|library| library.name == name).unwrap();
            let names = features(&library.manifest);
            for provider in ["mlx5", "rxe", "soft"] {
                assert!(names.iter().any(|found| found == provider), "{provider} is not in {names:?}");
            }
        }
    }
}
