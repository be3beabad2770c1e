//! `bindings`: a Rust program that declares the C functions and links the library, as the `-sys`
//! crates do. It is compiled with plain `rustc`, so that no package in the workspace links C.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use verbs_harness::cases;
use verbs_harness::process;
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};

use crate::library;

const SUITE: &str = "bindings";
const LIMIT: Duration = Duration::from_secs(100);

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    cases![SUITE, a_rust_program_plays_a_ping_pong_through_the_c_api]
}

fn a_rust_program_plays_a_ping_pong_through_the_c_api() -> CaseResult {
    library::installed("cc", "gcc")?;
    let libraries = library::directory()?;
    let binary = library::target().join("bindings");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bindings/pingpong.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut compile = Command::new(rustc);
    compile.args(["--edition=2024", "-Copt-level=1", "-o"]).arg(&binary).arg(source);
    // The library's file name has a version, and no package installs the plain name.
    compile.arg(format!("-Clink-arg={}", libraries.join("libibverbs.so.1").display()));
    match process::run_group(&mut compile, LIMIT) {
        Ok(Ok(ended)) if ended.status.success() => {}
        Ok(Ok(ended) | Err(ended)) => return fail(format_args!("{compile:?}: {}", ended.stderr)),
        Err(error) => return skip(format_args!("rustc does not start: {error}")),
    }
    let mut command = Command::new(binary);
    library::prepare(&mut command)?;
    let ended = process::run_group(&mut command, LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
    if ended.status.success() && ended.stdout.ends_with("1000 messages each way\n") {
        Ok(())
    } else {
        fail(format_args!("{ended:?}"))
    }
}
