//! `cargo xtask fuzz`: the fuzz targets for roce (packets from a peer), provider-soft (memory that
//! a peer writes), ib-cm (messages from a peer), rdma-cm (replies from a kernel), the ConnectX
//! model (a guest's accesses) and the public API (`api`: a program's calls).
//!
//! `api` is verbs-api-fuzz's program, which has a seeded generator instead of libFuzzer. Here it
//! runs on soft devices, also under sanitizers ([`Sanitizer`]).
//!
//! The other targets follow cargo-fuzz's layout in `roce/fuzz`, `provider-soft/fuzz`, `ib-cm/fuzz`,
//! `cm/fuzz` and `connectx-model/fuzz`, which are separate workspaces because libFuzzer is C++.
//! They are built here without cargo-fuzz and with the installed toolchain: the compiler
//! instruments for coverage, and memory errors need no sanitizer where nearly all code is safe.
//! Debug assertions and overflow checks are on. `cargo +nightly fuzz run TARGET` in `roce` adds the
//! address sanitizer.
//!
//! New inputs go to `target/fuzz/corpus`. The committed inputs are only read. An input that crashes
//! a target is kept and its path printed.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::arch::name_of;
use crate::sanitizer::{SANITIZERS, Sanitizer};
use crate::{apt, cargo, process};

/// Runs fuzz targets.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Time for each target in seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,

    /// Build the target api with a sanitizer from a nightly toolchain; without a value, with each
    // With an equals sign, so that a target can follow.
    #[arg(long, value_enum, value_name = "WHICH", num_args = 0..=1, require_equals = true)]
    sanitizer: Option<Option<Sanitizer>>,

    /// Seed of the target api [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,

    /// Targets to run [default: all, or only api with a sanitizer or a seed]
    #[arg(value_name = "TARGET", value_parser = TARGETS.to_vec())]
    targets: Vec<String>,
}

/// The fuzz targets.
pub(crate) const TARGETS: [&str; 7] = ["packet", "responder", "ring", "cm", "ucma", "guest", API];

/// The target without libFuzzer.
pub(crate) const API: &str = "api";

/// Returns the folder of a target's workspace.
fn workspace(target: &str) -> &'static str {
    match target {
        "guest" => "connectx-model/fuzz",
        "cm" => "ib-cm/fuzz",
        "ring" => "provider-soft/fuzz",
        "ucma" => "cm/fuzz",
        _ => "roce/fuzz",
    }
}

/// Runs `fuzz`. Its status is 0 if no target crashed.
///
/// # Errors
/// Fails if a target cannot be built or run.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let is_api_alone = args.sanitizer.is_some() || args.seed.is_some();
    let is_other = args.targets.iter().any(|target| target != API);
    ensure!(!is_api_alone || !is_other, "sanitizers and seeds are for the target {API} alone");
    let targets: Vec<&str> = match &args.targets[..] {
        [] if is_api_alone => vec![API],
        [] => TARGETS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let sanitizers: &[Option<Sanitizer>] = match args.sanitizer {
        None => &[None],
        Some(None) => &SANITIZERS.map(Some),
        Some(one) => &[one],
    };
    let mut status = ExitCode::SUCCESS;
    for target in targets {
        let checked = if target == API {
            let each = |sanitizer: &_| api(args.seconds, args.seed, *sanitizer);
            sanitizers.iter().map(each).collect::<Vec<_>>()
        } else {
            vec![check(target, args.seconds)]
        };
        for error in checked.into_iter().filter_map(Result::err) {
            eprintln!("{error:#}");
            status = ExitCode::FAILURE;
        }
    }
    Ok(status)
}

/// Runs one target for `seconds`.
///
/// # Errors
/// Fails if the target cannot be built or run, or if it crashed.
pub(crate) fn check(target: &str, seconds: u64) -> Result<()> {
    if target == API {
        return api(seconds, None, None);
    }
    let dir = build(workspace(target), seconds)?;
    let base = dir.join("corpus").join(target);
    std::fs::create_dir_all(&base).with_context(|| format!("cannot make {}", base.display()))?;
    let seeds = cargo::root().join(workspace(target)).join("corpus").join(target);
    println!("fuzzing {target} for {seconds} s, seeds from {}", seeds.display());
    let mut command = Command::new(dir.join(cargo::host_target()).join("release").join(target));
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", dir.display()))
        .args(["-print_final_stats=1", "-verbosity=0", "-max_len=16384"])
        .args([&base, &seeds]);
    process::run(&mut command).with_context(|| format!("the fuzz target {target}"))
}

/// Makes random calls to the public API on soft devices for `seconds`.
///
/// # Errors
/// Fails if no toolchain has the sanitizer, or if the program cannot be built or run or has failed.
/// After a failure of the program, the error contains the beginning of its report.
pub(crate) fn api(seconds: u64, seed: Option<u64>, sanitizer: Option<Sanitizer>) -> Result<()> {
    const PROGRAM: &str = "api-fuzz";
    /// The number of report lines in the error. A report begins with the failure; stacks follow.
    const REPORT: usize = 12;
    let program = match sanitizer {
        // Building the other tests and providers would take minutes.
        Some(sanitizer) => sanitizer.build("verbs-api-fuzz", PROGRAM, &["soft"])?,
        // With debug assertions; mostly built already.
        None => cargo::build(&["--quiet", "--package", "verbs-api-fuzz", "--bin", PROGRAM])?.join(PROGRAM),
    };
    let mut command = Command::new(program);
    command.envs(sanitizer.map(Sanitizer::environment)).args(["--seconds", &seconds.to_string()]);
    command.args(seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
    let under = sanitizer.map_or("no".to_owned(), name_of);
    println!("fuzzing {API} for {seconds} s with {under} sanitizer");
    let (mut child, lines) = process::spawn(command.current_dir(cargo::root()))?;
    let mut report = Vec::new();
    for line in lines {
        eprintln!("{line}");
        if report.len() < REPORT {
            report.push(line);
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for {PROGRAM}"))?;
    ensure!(status.success(), "random calls with {under} sanitizer: {status}\n{}", report.join("\n"));
    Ok(())
}

/// Builds a workspace's targets for a run of `seconds`.
fn build(workspace: &str, seconds: u64) -> Result<PathBuf> {
    /// The run time, in seconds, from which the targets are optimised. In a shorter run, optimised
    /// code does not make up for the optimiser's time.
    const OPTIMISED_FROM: u64 = 60;
    apt::ensure_tools(&[apt::Tools::Fuzz])?;
    let dir = cargo::target_directory()?.join("fuzz");
    let mut command = cargo::command();
    if seconds < OPTIMISED_FROM {
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    }
    command
        .args(["build", "--quiet", "--release", "--target", &cargo::host_target()])
        .arg("--manifest-path")
        .arg(cargo::root().join(workspace).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&dir)
        .env("RUSTFLAGS", FLAGS.lines().collect::<Vec<_>>().join(" "));
    process::run(&mut command)?;
    Ok(dir)
}

/// The flags that cargo-fuzz passes, except the sanitizer's, one per line.
const FLAGS: &str = include_str!("flags.txt");

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_sanitizer_without_a_value_takes_no_target_for_one() {
        for (line, sanitizer, targets) in [
            ("fuzz", None, 0),
            ("fuzz --sanitizer", Some(None), 0),
            ("fuzz --sanitizer api", Some(None), 1),
            ("fuzz --sanitizer=address api", Some(Some(Sanitizer::Address)), 1),
        ] {
            let args = Program::parse_from(line.split(' ')).args;
            assert_eq!((args.sanitizer, args.targets.len()), (sanitizer, targets), "{line}");
        }
    }
}
