//! `cargo xtask fuzz`: the fuzz targets of roce (packets from a peer), of ib-cm (messages from a
//! peer), of rdma-cm (replies of a kernel), of the ConnectX model (a guest's accesses) and of the
//! public API (`api`: a program's calls).
//!
//! `api` is the program of verbs-api-fuzz, with a seeded generator instead of libFuzzer. It runs
//! here on soft devices, with `--device rxe` in a guest, and under sanitizers ([`Sanitizer`]).
//!
//! The other targets follow cargo-fuzz's layout in `roce/fuzz`, `ib-cm/fuzz`, `cm/fuzz` and
//! `connectx-model/fuzz`, which are workspaces of their own because libFuzzer is C++. They are
//! built here without cargo-fuzz and with the installed toolchain: the compiler instruments for
//! coverage, and memory errors need no sanitizer where nearly all code is safe. Debug assertions
//! and overflow checks are on. `cargo +nightly fuzz run TARGET` in `roce` adds the address
//! sanitizer.
//!
//! New inputs go to `target/fuzz/corpus`; the committed ones are only read. An input that crashes a
//! target is kept, and its path is printed.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::sanitizer::{SANITIZERS, Sanitizer};
use crate::vm::connectx::Port;
use crate::vm::{self, kernel};
use crate::{apt, cargo};

/// Runs fuzz targets.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Time for each target in seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,

    /// Build the target api with a sanitizer of a nightly toolchain; both without a value
    // With an equals sign, so that a target can follow.
    #[arg(long, value_enum, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "both")]
    sanitizer: Option<Which>,

    /// Run the target api in a guest, on this device
    #[arg(long, value_parser = ["rxe", "mlx5"])]
    device: Option<String>,

    /// Kind of the port of an mlx5 device
    #[arg(long, value_enum, default_value_t = Port::Ib, requires = "device")]
    port: Port,

    /// The guest's kernel: 5.10, 6.1, 6.12, 7.2, or a directory
    #[arg(long, default_value = kernel::DEFAULT, value_name = "KERNEL", requires = "device")]
    kernel: kernel::Choice,

    /// Seed of the target api [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,

    /// Targets to run [default: all; api alone with a sanitizer, a device or a seed]
    #[arg(value_name = "TARGET", value_parser = TARGETS.to_vec())]
    targets: Vec<String>,
}

/// Values of `--sanitizer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Which {
    /// AddressSanitizer
    Address,
    /// ThreadSanitizer
    Thread,
    /// One after the other
    Both,
}

impl Which {
    fn all(self) -> &'static [Sanitizer] {
        match self {
            Which::Address => &[Sanitizer::Address],
            Which::Thread => &[Sanitizer::Thread],
            Which::Both => &SANITIZERS,
        }
    }
}

/// The fuzz targets.
pub(crate) const TARGETS: [&str; 6] = ["packet", "responder", "cm", "ucma", "guest", API];

/// The target that does not use libFuzzer.
pub(crate) const API: &str = "api";

/// The folder of a target's workspace.
fn workspace(target: &str) -> &'static str {
    match target {
        "guest" => "connectx-model/fuzz",
        "cm" => "ib-cm/fuzz",
        "ucma" => "cm/fuzz",
        _ => "roce/fuzz",
    }
}

/// Runs the target api under a sanitizer for `seconds`, and returns what failed.
///
/// # Errors
/// No toolchain has the sanitizer, or it cannot be built or run.
pub(crate) fn check_under(sanitizer: Sanitizer, seconds: u64) -> Result<Option<String>> {
    api(seconds, None, Some(sanitizer), None)
}

/// Runs `fuzz`. Its status is 0 if no target crashed.
///
/// # Errors
/// A target cannot be built or run.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.sanitizer.is_some() || args.device.is_some() || args.seed.is_some() {
        let is_other = args.targets.iter().any(|target| target != API);
        ensure!(!is_other, "sanitizers, devices and seeds are for the target {API} alone");
        let sanitizers: Vec<_> = match args.sanitizer {
            Some(which) => which.all().iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let mut crashed = false;
        for sanitizer in sanitizers {
            let guest =
                args.device.as_deref().map(|device| Guest { kernel: &args.kernel, device, port: args.port });
            crashed |= api(args.seconds, args.seed, sanitizer, guest.as_ref())?.is_some();
        }
        return Ok(ExitCode::from(u8::from(crashed)));
    }
    let targets =
        if args.targets.is_empty() { TARGETS.map(str::to_owned).to_vec() } else { args.targets.clone() };
    let mut crashed = false;
    for target in targets {
        crashed |= !check(&target, args.seconds)?;
    }
    Ok(ExitCode::from(u8::from(crashed)))
}

/// Runs one target for `seconds`, and returns whether it did not crash.
///
/// # Errors
/// The target cannot be built or run.
pub(crate) fn check(target: &str, seconds: u64) -> Result<bool> {
    if target == API {
        Ok(api(seconds, None, None, None)?.is_none())
    } else {
        run_target(&build(workspace(target), seconds)?, target, seconds)
    }
}

/// A guest for random calls.
struct Guest<'a> {
    kernel: &'a kernel::Choice,
    /// The kind of its device, and of the port if that is of ConnectX.
    device: &'a str,
    port: Port,
}

/// Runs random calls of the public API for `seconds`, on soft devices of the host or on a guest's
/// device, and returns what failed: its status, and the beginning of its report.
///
/// # Errors
/// The program cannot be built or run.
fn api(
    seconds: u64,
    seed: Option<u64>,
    sanitizer: Option<Sanitizer>,
    guest: Option<&Guest<'_>>,
) -> Result<Option<String>> {
    const PROGRAM: &str = "api-fuzz";
    /// The program says first what failed, and a sanitizer where; stacks follow.
    const REPORT: usize = 12;
    // The provider that the program names is a feature.
    let provider = guest.map_or("soft", |guest| guest.device);
    let program = match sanitizer {
        // The rest of the tests, and other providers, take minutes to build.
        Some(sanitizer) => sanitizer.build("verbs-api-fuzz", PROGRAM, &[provider])?,
        // With debug assertions, and mostly built already.
        None => {
            let program =
                ["--quiet", "--package", "verbs-api-fuzz", "--bin", PROGRAM, "--features", provider];
            cargo::build(&program)?.join(PROGRAM)
        }
    };
    let environment = sanitizer.map(Sanitizer::environment);
    let mut command = match guest {
        None => {
            let mut command = Command::new(&program);
            command.envs(environment);
            command
        }
        Some(Guest { kernel, device, port }) => {
            let mut command = Command::new("/proc/self/exe");
            // A sanitizer's shadow memory needs more than a guest usually has.
            command.args(["vm", "--kernel", &kernel.to_string(), "--memory", "3072", "--device", device]);
            let name = if *device == "mlx5" {
                command.args(["--port", port.name()]);
                "mlx5_0"
            } else {
                "rxe0"
            };
            command.args(["--timeout", &(2 * seconds + 600).to_string()]);
            if let Some((name, value)) = environment {
                command.args(["--env", &format!("{name}={value}")]);
            }
            command.arg("--").arg(&program).args(["--device", name]);
            command
        }
    };
    command.args(["--seconds", &seconds.to_string()]);
    if let Some(seed) = seed {
        command.args(["--seed", &seed.to_string()]);
    }
    let under = sanitizer.map_or("no sanitizer", Sanitizer::name);
    println!("fuzzing {API} for {seconds} s, {under}");
    let mut child = command
        .current_dir(cargo::root())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {PROGRAM}"))?;
    let mut report = Vec::new();
    let said = child.stderr.take().context("a child without standard error")?;
    for line in BufReader::new(said).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        eprintln!("{line}");
        if report.len() < REPORT {
            report.push(line);
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for {PROGRAM}"))?;
    if guest.is_some() && status.code() == Some(i32::from(vm::STATUS_VM_FAILED)) {
        println!("the guest or its kernel failed: see above");
    }
    Ok((!status.success()).then(|| format!("{status}\n{}", report.join("\n"))))
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

/// Builds a workspace's targets for a run of so many seconds.
fn build(workspace: &str, seconds: u64) -> Result<PathBuf> {
    /// A shorter run does not make up for the time that the optimiser takes.
    const OPTIMISED_FROM: u64 = 60;
    apt::ensure_tools(&[apt::FUZZ_TOOLS], |line| println!("{line}"))?;
    let dir = cargo::target_directory()?.join("fuzz");
    let mut command = cargo::command();
    if seconds < OPTIMISED_FROM {
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    }
    let status = command
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

/// Flags that cargo-fuzz passes, except the sanitizer's.
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<(Option<Which>, Vec<String>), clap::Error> {
        let args = Program::try_parse_from(line.split_whitespace())?.args;
        Ok((args.sanitizer, args.targets))
    }

    #[test]
    fn a_sanitizer_without_a_value_is_both_and_takes_no_target_for_one() {
        let api = || vec![API.to_owned()];
        let cases = [
            ("fuzz", None, vec![]),
            ("fuzz --sanitizer", Some(Which::Both), vec![]),
            ("fuzz --sanitizer api", Some(Which::Both), api()),
            ("fuzz api --sanitizer", Some(Which::Both), api()),
            ("fuzz api --sanitizer=thread", Some(Which::Thread), api()),
            ("fuzz --sanitizer=address api", Some(Which::Address), api()),
        ];
        for (line, sanitizer, targets) in cases {
            assert_eq!(parse(line).expect(line), (sanitizer, targets), "{line}");
        }
        assert!(parse("fuzz --sanitizer=memory").is_err());
    }
}
