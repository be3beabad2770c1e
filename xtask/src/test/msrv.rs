//! The oldest compiler: what the workspace's `rust-version` states is the oldest that was tried.
//!
//! A run with a compiler of that version has tried it with every build. A newer one checks the
//! workspace with the stated version where rustup has it. Clippy compares the versions of the
//! standard library's functions in any case (`incompatible_msrv`), but not those of the language.

use std::process::Command;

use super::stage::StageResult;
use crate::cargo;

/// Checks the workspace with the stated compiler.
pub(super) fn check(result: &mut StageResult) {
    let manifest = std::fs::read_to_string(cargo::root().join("Cargo.toml")).unwrap_or_default();
    let Some(stated) = stated(&manifest) else { return result.fail("Cargo.toml has no rust-version") };
    let running = said_by(Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("--version"));
    if running.starts_with(&format!("rustc {stated}.")) {
        result.counts.passed += 1;
        return;
    }
    let toolchains = said_by(Command::new("rustup").args(["toolchain", "list"]));
    let is_stated =
        |name: &&str| name.starts_with(&format!("{stated}-")) || name.starts_with(&format!("{stated}."));
    let Some(toolchain) = toolchains.split_whitespace().find(is_stated) else {
        return result.skip(format!(
            "Rust {stated}, the oldest that is stated, is not what builds here (rustup toolchain install {stated})"
        ));
    };
    let mut command = Command::new("rustup");
    command.args(["run", toolchain, "cargo", "check", "--workspace", "--quiet"]);
    command.args(["--target-dir", "target/msrv"]).current_dir(cargo::root());
    // Variables of this run's toolchain.
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    match command.status() {
        Ok(status) if status.success() => result.counts.passed += 1,
        Ok(status) => result.fail(format!("cargo check with Rust {toolchain}: {status}")),
        Err(error) => result.fail(format!("cannot run rustup: {error}")),
    }
}

/// Returns a program's output, or nothing if it cannot be run.
fn said_by(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

/// Returns the version in a manifest's line `rust-version = "1.89"`.
fn stated(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
}

#[test]
fn the_workspace_states_a_version() {
    let manifest = std::fs::read_to_string(cargo::root().join("Cargo.toml")).unwrap();
    assert!(stated(&manifest).is_some_and(|version| version.starts_with("1.")));
    assert_eq!(stated("[workspace.package]\nedition = \"2024\"\n"), None);
}
