//! Packages for a registry: each library can be packaged, with its licenses and a description.
//!
//! Nothing is uploaded, and the packages are not built, because they hold the files that the other
//! stages build. Cargo resolves the libraries that depend on each other from the packages that it
//! makes at the same time.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::stage::StageResult;
use crate::cargo;

/// Files that each package holds.
const FILES: &[&str] = &["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"];

/// Fields that each manifest has: a registry shows them.
const FIELDS: &[&str] = &[
    "description",
    "license.workspace",
    "repository.workspace",
    "documentation",
    "readme",
    "keywords",
    "categories",
];

/// The registry's limit on keywords.
const KEYWORDS: usize = 5;

/// Checks the package of each library; a result for each, and one for packaging them together.
pub(super) fn check(result: &mut StageResult) {
    let libraries = match libraries(cargo::root()) {
        Ok(libraries) => libraries,
        Err(error) => return result.fail(format!("{error:#}")),
    };
    for Library { name, manifest } in &libraries {
        match package_problem(name, manifest) {
            Ok(()) => result.counts.passed += 1,
            Err(error) => result.fail(format!("the package {name}: {error:#}")),
        }
    }
    let mut command = cargo::command();
    // Offline: cargo has the registry's index from earlier builds, and the libraries are not in it.
    command.args(["package", "--no-verify", "--allow-dirty", "--offline"]);
    for Library { name, .. } in &libraries {
        command.args(["--package", name]);
    }
    match output(&mut command) {
        Ok(_) => result.counts.passed += 1,
        Err(error) => result.fail(format!("{error:#}")),
    }
}

/// A package of the workspace that can be published.
pub(super) struct Library {
    pub(super) name: String,
    /// The text of its manifest.
    pub(super) manifest: String,
}

/// Returns the packages in folders of the workspace's root whose manifests have no `publish =
/// false`, by name.
///
/// # Errors
/// A folder or a manifest cannot be read, or a manifest has no name.
pub(super) fn libraries(root: &Path) -> Result<Vec<Library>> {
    let mut libraries = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))? {
        let path = entry?.path().join("Cargo.toml");
        if !path.exists() {
            continue;
        }
        let manifest =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if field(&manifest, "publish") != Some("false") {
            let name = field(&manifest, "name").with_context(|| format!("no name in {}", path.display()))?;
            libraries.push(Library { name: name.trim_matches('"').to_owned(), manifest });
        }
    }
    libraries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(libraries)
}

/// Checks a package for the files and fields that it needs.
///
/// # Errors
/// Cargo cannot list the package's files, or a file or field is missing.
fn package_problem(name: &str, manifest: &str) -> Result<()> {
    manifest_problem(manifest)?;
    let list = output(cargo::command().args([
        "package",
        "--list",
        "--allow-dirty",
        "--offline",
        "--package",
        name,
    ]))?;
    for file in FILES {
        ensure!(list.lines().any(|line| line == *file), "it has no {file}");
    }
    Ok(())
}

fn manifest_problem(manifest: &str) -> Result<()> {
    for name in FIELDS {
        let value = field(manifest, name).unwrap_or_default();
        ensure!(!matches!(value, "" | "\"\"" | "[]"), "its manifest has no {name}");
    }
    let keywords = field(manifest, "keywords").unwrap_or_default().split(',').count();
    if keywords > KEYWORDS {
        bail!("{keywords} keywords, where a registry takes {KEYWORDS}");
    }
    Ok(())
}

/// Returns the value of a field of a manifest's `[package]` table, as written, if it is on one
/// line.
fn field<'a>(manifest: &'a str, name: &str) -> Option<&'a str> {
    let package = manifest.split_once("[package]\n")?.1;
    let package = package.split_once("\n[").map_or(package, |(package, _)| package);
    package
        .lines()
        .find_map(|line| line.split_once(" = ").filter(|(key, _)| *key == name))
        .map(|(_, value)| value)
}

/// Runs a command, and returns its standard output.
///
/// # Errors
/// It cannot be run or fails; the message has its standard error.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo package: {}\n{}", output.status, stderr.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"x\"\ndescription = \"An x\"\nlicense.workspace = true\n\
                            repository.workspace = true\ndocumentation = \"https://docs.rs/x\"\n\
                            readme = \"README.md\"\nkeywords = [\"a\", \"b\"]\ncategories = [\"c\"]\n\n[dependencies]\npublish = false\n";

    #[test]
    fn the_libraries_are_the_packages_that_can_be_published() {
        let names: Vec<_> =
            libraries(cargo::root()).unwrap().into_iter().map(|library| library.name).collect();
        for name in ["libibverbs-rs", "provider-rxe", "provider-soft", "roce", "uverbs-abi", "verbs-core"] {
            assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
        }
        for name in ["rdma-tools", "verbs-tests", "xtask"] {
            assert!(names.iter().all(|found| found != name), "{name} is in {names:?}");
        }
    }

    #[test]
    fn a_field_is_looked_up_in_the_package_table_only() {
        assert_eq!(field(MANIFEST, "name"), Some("\"x\""));
        assert_eq!(field(MANIFEST, "publish"), None);
        assert_eq!(field("[dependencies]\nname = \"x\"\n", "name"), None);
    }

    #[test]
    fn a_manifest_without_a_field_that_registries_show_is_a_problem() {
        assert!(manifest_problem(MANIFEST).is_ok());
        for (field, value) in
            [("description", "\"An x\""), ("repository.workspace", "true"), ("categories", "[\"c\"]")]
        {
            let line = format!("{field} = {value}\n");
            assert!(MANIFEST.contains(&line));
            let error = manifest_problem(&MANIFEST.replace(&line, "")).unwrap_err().to_string();
            assert!(error.ends_with(field), "{error}");
        }
        let many = MANIFEST.replace("\"b\"", "\"b\", \"c\", \"d\", \"e\", \"f\"");
        assert!(manifest_problem(&many).unwrap_err().to_string().starts_with("6 keywords"));
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
        write("xtask/src/c_abi/deb/changelog", "verbs-run (1.2.3) unstable; urgency=medium\n");
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
