//! The oldest compiler: what the workspace's `rust-version` states is the oldest that was tried.
//!
//! A run with a compiler of that version has tried it with every build. A newer one checks the
//! workspace with the stated version where rustup has it. Clippy compares the versions of the
//! standard library's functions in any case (`incompatible_msrv`), but not those of the language.

use std::process::Command;

use super::stage::StageResult;
use crate::cargo;

/// A version of Rust without its last number.
type Version = (u32, u32);

/// Compares the stated version with the compiler of this run.
pub(super) fn check(result: &mut StageResult) {
    let manifest = std::fs::read_to_string(cargo::root().join("Cargo.toml")).unwrap_or_default();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = said_by(Command::new(rustc).arg("--version"));
    let (Some(stated), Some(running)) = (stated(&manifest), version(said.trim_start_matches("rustc ")))
    else {
        return result.fail("Cargo.toml's rust-version or rustc's version cannot be read");
    };
    if running == stated {
        result.counts.passed += 1;
        return;
    }
    let (major, minor) = stated;
    let toolchains = said_by(Command::new("rustup").args(["toolchain", "list"]));
    match toolchain_of(&toolchains, stated) {
        None => result.skip(format!(
            "Rust {major}.{minor}, the oldest that is stated, is not what builds here \
             (rustup toolchain install {major}.{minor})"
        )),
        Some(toolchain) => {
            let status = Command::new("rustup")
                .args(["run", toolchain, "cargo", "check", "--workspace", "--quiet"])
                .args(["--target-dir", "target/msrv"])
                .current_dir(cargo::root())
                // Those of this run's toolchain.
                .env_remove("CARGO")
                .env_remove("RUSTC")
                .env_remove("RUSTUP_TOOLCHAIN")
                .status();
            match status {
                Ok(status) if status.success() => result.counts.passed += 1,
                Ok(status) => result.fail(format!("cargo check with Rust {toolchain}: {status}")),
                Err(error) => result.fail(format!("cannot run rustup: {error}")),
            }
        }
    }
}

/// Returns a program's output, or nothing if it cannot be run.
fn said_by(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

/// Returns the version in a manifest's line `rust-version = "1.95"`.
fn stated(manifest: &str) -> Option<Version> {
    let value = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""))?;
    version(value.trim_end_matches('"'))
}

/// Parses the first two numbers of `1.95`, `1.95.0 (...)` or `1.97.0-nightly (...)`.
fn version(text: &str) -> Option<Version> {
    let (major, rest) = text.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the toolchain of a version in the list of rustup's.
fn toolchain_of(list: &str, wanted: Version) -> Option<&str> {
    list.lines().filter_map(|line| line.split(' ').next()).find(|name| version(name) == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_manifests_compilers_and_toolchains() {
        assert_eq!(stated("[workspace.package]\nrust-version = \"1.95\"\n"), Some((1, 95)));
        assert_eq!(stated("[workspace.package]\nedition = \"2024\"\n"), None);
        assert_eq!(version("1.97.0-nightly (e50aa6fba 2026-05-19)\n"), Some((1, 97)));
        assert_eq!(version("nightly"), None);
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\n1.95.0-x86_64-unknown-linux-gnu\n";
        assert_eq!(toolchain_of(list, (1, 95)), Some("1.95.0-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain_of(list, (1, 94)), None);
    }
}
