//! Checks that each library can be packaged for a registry, with licenses and a description.
//!
//! Nothing is uploaded, and the packages are not built, because they contain the files built by the
//! other stages. Cargo resolves the libraries that depend on each other from the packages made at
//! the same time.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::stage::StageResult;
use crate::{cargo, process};

/// The files required in each package.
const FILES: &[&str] = &["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"];

/// The fields required in each manifest, because a registry shows them.
const FIELDS: &[&str] =
    &["description", "license", "repository", "documentation", "readme", "keywords", "categories"];

/// The maximum number of keywords accepted by the registry.
const KEYWORDS: usize = 5;

/// Checks each library's package: one result per library, and one for packaging them together.
pub(super) fn check(result: &mut StageResult) {
    let Some(libraries) = result.must(libraries()) else { return };
    // Offline, because cargo already has the registry's index, without these libraries.
    let options = ["package", "--allow-dirty", "--offline"];
    let mut together = cargo::command();
    together.args(options).args(["--no-verify", "--quiet"]);
    for library in &libraries {
        let package = ["--package", &library.name];
        together.args(package);
        let listed = process::output(cargo::command().args(options).arg("--list").args(package));
        let outcome = listed.and_then(|files| library.problem(&files));
        result.check(outcome.with_context(|| format!("the package {}", library.name)));
    }
    result.check(process::run(&mut together));
}

/// A publishable package in the workspace.
#[derive(Deserialize)]
pub(super) struct Library {
    pub(super) name: String,
    /// The registries where the package may be published; any if `None`.
    publish: Option<Vec<String>>,
    /// The rest of the package's manifest.
    #[serde(flatten)]
    manifest: serde_json::Value,
}

impl Library {
    /// Returns the names of the package's features, except `default`.
    pub(super) fn features(&self) -> impl Iterator<Item = &str> {
        let features = self.manifest["features"].as_object().into_iter().flatten();
        features.map(|(name, _)| name.as_str()).filter(|name| *name != "default")
    }

    /// Checks that the package has the required fields and files.
    fn problem(&self, files: &str) -> Result<()> {
        for name in FIELDS {
            let value = &self.manifest[name];
            // The repository's address is empty until there is a repository (RELEASING.md).
            let is_there = value.as_array().map_or(value.is_string(), |words| !words.is_empty());
            let is_empty = value.as_str() == Some("") && *name != "repository";
            ensure!(is_there && !is_empty, "its manifest has no {name}");
        }
        let keywords = self.manifest["keywords"].as_array().map_or(0, Vec::len);
        ensure!(keywords <= KEYWORDS, "{keywords} keywords, where a registry takes {KEYWORDS}");
        for file in FILES {
            ensure!(files.lines().any(|line| line == *file), "it has no {file}");
        }
        Ok(())
    }
}

/// Returns the packages in the workspace whose manifests have no `publish = false`, by name.
///
/// # Errors
/// Cargo cannot be run.
pub(super) fn libraries() -> Result<Vec<Library>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Library>,
    }
    let metadata = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let Metadata { mut packages } = serde_json::from_str(&process::output(cargo::command().args(metadata))?)?;
    packages.retain(|package| package.publish.is_none());
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(packages)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_libraries_are_the_packages_that_can_be_published() {
        let names: Vec<_> = libraries().unwrap().into_iter().map(|library| library.name).collect();
        for name in ["libibverbs-rs", "provider-rxe", "provider-soft", "roce", "uverbs-abi", "verbs-core"] {
            assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
        }
        for name in ["rdma-tools", "verbs-tests", "xtask"] {
            assert!(names.iter().all(|found| found != name), "{name} is in {names:?}");
        }
    }

    #[test]
    fn a_package_without_a_field_or_file_that_registries_want_is_a_problem() {
        let manifest = serde_json::json!({
            "name": "x", "description": "An x", "license": "MIT", "repository": "",
            "documentation": "https://docs.rs/x", "readme": "README.md",
            "keywords": ["a", "b"], "categories": ["c"],
        });
        let problem = |field: &str, value: serde_json::Value, files: &[&str]| {
            let mut changed = manifest.clone();
            changed[field] = value;
            let library: Library = serde_json::from_value(changed).unwrap();
            library.problem(&files.join("\n")).map_err(|error| error.to_string())
        };
        assert_eq!(problem("name", "y".into(), FILES), Ok(()));
        for (field, value) in [("description", "".into()), ("license", serde_json::Value::Null)] {
            assert_eq!(problem(field, value, FILES), Err(format!("its manifest has no {field}")));
        }
        assert!(problem("categories", serde_json::json!([]), FILES).is_err());
        let six = serde_json::json!(["a", "b", "c", "d", "e", "f"]);
        assert!(problem("keywords", six, FILES).unwrap_err().starts_with("6 keywords"));
        assert_eq!(problem("name", "y".into(), &FILES[1..]), Err("it has no Cargo.toml".to_owned()));
    }

    #[test]
    fn a_release_needs_an_address_of_the_repository_and_a_tag_of_its_version() {
        let dir = std::env::temp_dir().join(format!("verbs-release-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let script = fs::read_to_string(cargo::root().join(".ci/check-release")).unwrap();
        write(".ci/check-release", &script);
        write("CHANGELOG.md", "# Changelog\n\n## 1.2.3 (2026-12-31)\n");
        write("README.md", "# libibverbs-rs\n");
        write("xtask/src/c_abi/debian/changelog", "verbs-run (1.2.3) unstable; urgency=medium\n");
        let problem = |address: &str, tag: &str| {
            let manifest = format!("[workspace.package]\nversion = \"1.2.3\"\nrepository = \"{address}\"\n");
            write("Cargo.toml", &manifest);
            let output = Command::new("bash").arg(dir.join(".ci/check-release")).arg(tag).output().unwrap();
            assert_eq!(output.status.success(), output.stderr.is_empty());
            String::from_utf8(output.stderr).unwrap()
        };
        assert_eq!(problem("https://forge.example/x", "v1.2.3"), "");
        assert!(problem("", "v1.2.3").contains("`repository`"));
        assert!(problem("https://forge.example/x", "v1.2.4").contains("not 1.2.4"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
