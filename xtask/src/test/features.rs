//! Checks of each library without features and with each feature alone: code and tests, and the
//! documentation without features.
//!
//! In other stages, clippy and rustdoc check all features together, where a link or an import that
//! needs a feature goes unnoticed. cargo-hack runs the same checks, but would have to be compiled
//! first.

use super::packages::{self, Library};
use super::stage::StageResult;
use crate::{cargo, process};

/// Checks each library that has features, without them: one result for clippy, one for rustdoc.
pub(super) fn none(result: &mut StageResult) {
    for Library { name, .. } in with_features(result) {
        clippy(&name, &[], result);
        // Documentation is published with all features, which another stage builds. Without
        // features, a link into one breaks. The workspace's folder keeps the build with all.
        let mut command = cargo::command();
        command.args(["doc", "--no-deps", "--quiet", "--no-default-features", "--package", &name]);
        command.args(["--target-dir", "target/features"]).env("RUSTDOCFLAGS", "-D warnings");
        result.check(process::run(&mut command));
    }
}

/// Checks each library with each of its features alone. Counts one result per feature.
pub(super) fn each(result: &mut StageResult) {
    for library in with_features(result) {
        for feature in library.features() {
            clippy(&library.name, &["--features", feature], result);
        }
    }
}

fn with_features(result: &mut StageResult) -> Vec<Library> {
    let mut libraries = result.must(packages::libraries()).unwrap_or_default();
    libraries.retain(|library| library.features().next().is_some());
    libraries
}

fn clippy(library: &str, features: &[&str], result: &mut StageResult) {
    let mut command = cargo::command();
    command.args(["clippy", "--all-targets", "--quiet", "--no-default-features", "--package", library]);
    command.args(features).args(["--", "-D", "warnings"]).env("CARGO_INCREMENTAL", "0");
    result.check(process::run(&mut command));
}

#[test]
fn the_providers_of_the_libraries_are_features() {
    let libraries = packages::libraries().unwrap();
    for name in ["libibverbs-rs", "rdma-cm"] {
        let library = libraries.iter().find(|library| library.name == name).unwrap();
        let names: Vec<_> = library.features().collect();
        for provider in ["mlx5", "rxe", "soft"] {
            assert!(names.contains(&provider), "{provider} is not in {names:?}");
        }
        assert!(!names.contains(&"default"));
    }
}
