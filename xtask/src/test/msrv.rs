//! The oldest compiler: `rust-version` in the workspace states the oldest version tried.
//!
//! A run with that version has tried it with every build. A run with a newer compiler checks the
//! workspace with the stated version if rustup has it. In any case, clippy checks the versions of
//! standard library functions (`incompatible_msrv`), but not the versions of language features.

use std::process::Command;

use super::stage::StageResult;
use crate::{cargo, process};

/// The Rust version in the workspace's manifest.
const STATED: &str = env!("CARGO_PKG_RUST_VERSION");

/// Checks the workspace with the stated compiler.
pub(super) fn check(result: &mut StageResult) {
    let running = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("--version").output();
    let is_stated =
        |output: std::process::Output| output.stdout.starts_with(format!("rustc {STATED}.").as_bytes());
    if running.is_ok_and(is_stated) {
        result.counts.passed += 1;
        return;
    }
    let toolchains = process::output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let is_stated =
        |name: &&str| name.starts_with(&format!("{STATED}-")) || name.starts_with(&format!("{STATED}."));
    let Some(toolchain) = toolchains.split_whitespace().find(is_stated) else {
        return result.skip(format!(
            "Rust {STATED}, the oldest that is stated, is not what builds here (rustup toolchain install {STATED})"
        ));
    };
    let mut command = Command::new("rustup");
    command.args(["run", toolchain, "cargo", "check", "--workspace", "--quiet"]);
    command.args(["--target-dir", "target/msrv"]).current_dir(cargo::root());
    // Removes variables set by this run's toolchain.
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    result.check(process::run(&mut command));
}
