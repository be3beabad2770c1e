//! `cargo xtask fuzz`: the fuzz targets of roce (what a peer sends) and of the ConnectX model (what a guest does), for as long
//! as wanted.
//!
//! The targets are those of cargo-fuzz's layout in `roce/fuzz` and `tests/connectx/fuzz`, workspaces of their own, since libFuzzer is C++. They are
//! built here without cargo-fuzz and with the toolchain at hand: coverage is the compiler's own, and memory errors need no
//! sanitizer where nearly all code is safe; debug assertions and overflow checks are on. `cargo +nightly fuzz run TARGET`
//! in `roce` adds the address sanitizer.
//!
//! New inputs go to `target/fuzz/corpus`, the committed ones are only read. An input that crashes is kept and named.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::{apt, cargo};

/// Runs fuzz targets.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds for each target
    #[arg(long, default_value_t = 600)]
    seconds: u64,

    /// Which targets; all by default
    #[arg(value_name = "TARGET", value_parser = TARGETS.to_vec())]
    targets: Vec<String>,
}

/// The fuzz targets.
pub(crate) const TARGETS: [&str; 3] = ["packet", "responder", "guest"];

/// The folder of the workspace that a target is in.
fn workspace(target: &str) -> &'static str {
    if target == "guest" { "tests/connectx/fuzz" } else { "roce/fuzz" }
}

/// Runs `fuzz`. Its status is 0 if no target crashed.
///
/// # Errors
/// They cannot be built or run.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let targets =
        if args.targets.is_empty() { TARGETS.map(str::to_owned).to_vec() } else { args.targets.clone() };
    let mut crashed = false;
    for target in targets {
        crashed |= !check(&target, args.seconds)?;
    }
    Ok(ExitCode::from(u8::from(crashed)))
}

/// Runs one target for so long: did nothing crash?
///
/// # Errors
/// It cannot be built or run.
pub(crate) fn check(target: &str, seconds: u64) -> Result<bool> {
    run_target(&build(workspace(target))?, target, seconds)
}

fn run_target(dir: &Path, target: &str, seconds: u64) -> Result<bool> {
    let base = dir.join("corpus").join(target);
    std::fs::create_dir_all(&base).with_context(|| format!("cannot make {}", base.display()))?;
    let seeds = cargo::root().join(workspace(target)).join("corpus").join(target);
    println!("fuzzing {target} for {seconds} s, seeds from {}", seeds.display());
    let status = Command::new(dir.join(cargo::host_target()).join("release").join(target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", dir.display()))
        .args(["-print_final_stats=1", "-verbosity=0", "-max_len=16384"])
        .args([&base, &seeds])
        .status()
        .with_context(|| format!("cannot run the fuzz target {target}"))?;
    Ok(status.success())
}

fn build(workspace: &str) -> Result<PathBuf> {
    apt::ensure_tools(&[apt::FUZZ_TOOLS], |line| println!("{line}"))?;
    let dir = cargo::target_directory()?.join("fuzz");
    let status = cargo::command()
        .args(["build", "--quiet", "--release", "--manifest-path"])
        .arg(cargo::root().join(workspace).join("Cargo.toml"))
        .args(["--target", &cargo::host_target(), "--target-dir"])
        .arg(&dir)
        .env("RUSTFLAGS", FLAGS.join(" "))
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the fuzz targets do not build: {status}");
    Ok(dir)
}

/// What cargo-fuzz passes, but for the sanitizer.
const FLAGS: [&str; 9] = [
    "--cfg fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "-Coverflow-checks",
];
