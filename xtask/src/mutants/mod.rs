//! `cargo xtask mutants`: mutants that no test detects, in the files that a change touches.
//!
//! cargo-mutants changes one place after the other (another operator, a function that returns a
//! default) in a copy of the tree, and runs the package's own tests. A surviving mutant is a line
//! that could be wrong and no test would fail.
//!
//! `cargo xtask mutants mlx5` has mutants of the ConnectX provider that were chosen by hand, and
//! tests them itself ([`mlx5`]).
//!
//! Invariant: the tree and its target directory stay unchanged; copies and reports are below
//! `target/mutants`.

pub(crate) mod mlx5;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::{apt, cache, cargo};

/// Runs cargo-mutants on the files that a change touches.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    chosen: Option<Chosen>,

    /// Files and folders [default: the Rust files that differ from the merge base with --base]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Revision that the change is compared with
    #[arg(long, default_value = "main", value_name = "REF")]
    base: String,

    /// Time limit in seconds for the tests of one mutant [default: five times their time without a
    /// mutant, at least 60]
    #[arg(long, value_name = "SECS")]
    timeout: Option<u64>,

    /// Number of mutants that are tested at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,

    /// List the mutants and test none
    #[arg(long)]
    list: bool,
}

/// Mutants that were chosen by hand.
#[derive(clap::Subcommand)]
enum Chosen {
    /// Test mutants of the ConnectX provider that were chosen by hand
    Mlx5(mlx5::Args),
}

/// The version to install where cargo-mutants is missing.
const VERSION: &str = "27.1.0";

/// Statuses of cargo-mutants.
const FOUND_MISSED: i32 = 2;
const TIMED_OUT: i32 = 3;

/// Runs `mutants`. Its status is 0 if the tests detected every mutant, 1 if some survived.
///
/// # Errors
/// cargo-mutants cannot be installed or run, or the tests fail without a mutant.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(Chosen::Mlx5(args)) = &args.chosen {
        return mlx5::run(args);
    }
    let paths = if args.paths.is_empty() { changed(&args.base)? } else { args.paths.clone() };
    let paths: Vec<_> = paths.iter().filter(|path| is_mutated(path)).collect();
    if paths.is_empty() {
        println!("no file of a library or tool differs from {}", args.base);
        return Ok(ExitCode::SUCCESS);
    }
    for path in &paths {
        ensure!(cargo::root().join(path).exists(), "there is no {}", path.display());
        println!("mutating {}", path.display());
    }
    let out = cargo::target_directory()?.join("mutants");
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut command = Command::new(program()?);
    command.current_dir(cargo::root()).stdin(Stdio::null());
    command.args(["mutants", "--no-shuffle", "--colors", "never", "--jobs", &args.jobs.to_string()]);
    command.args(["--minimum-test-timeout", "60", "--timeout-multiplier", "5", "--baseline", "run"]);
    command.arg("--output").arg(&out);
    if let Some(timeout) = args.timeout {
        command.args(["--timeout", &timeout.to_string()]);
    }
    if args.list {
        command.arg("--list");
    }
    for path in &paths {
        command.args(["--file", &glob(path)]);
    }
    let status = command.status().context("cannot run cargo-mutants")?;
    let survivors = std::fs::read_to_string(out.join("mutants.out/missed.txt")).unwrap_or_default();
    let endless = std::fs::read_to_string(out.join("mutants.out/timeout.txt")).unwrap_or_default();
    match status.code() {
        Some(0) => Ok(ExitCode::SUCCESS),
        Some(FOUND_MISSED | TIMED_OUT) => {
            println!("\n{}", report(&survivors, &endless));
            // A mutant that ends only at the time limit was detected.
            Ok(ExitCode::from(u8::from(!survivors.trim().is_empty())))
        }
        _ => anyhow::bail!("cargo-mutants: {status}; its logs are in {}", out.join("mutants.out").display()),
    }
}

/// The survivors, and the mutants that ended only at the time limit, as text.
fn report(survivors: &str, endless: &str) -> String {
    let listed = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "{} mutants survived:\n{}{} ended only at the time limit:\n{}",
        survivors.lines().count(),
        listed(survivors),
        endless.lines().count(),
        listed(endless)
    )
}

/// Returns the files that differ from the merge base with `base`, committed or not.
fn changed(base: &str) -> Result<Vec<PathBuf>> {
    let since = git(&["merge-base", base, "HEAD"])
        .with_context(|| format!("{base} is no branch here: name one with --base, or name paths"))?;
    let mut names = git(&["diff", "--name-only", "--diff-filter=d", since.trim()])?;
    names += &git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(names.lines().map(PathBuf::from).collect())
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(cargo::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run git")?;
    ensure!(output.status.success(), "git {} failed", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns whether `cargo test` covers a path: library and tool code, without tests, examples,
/// benchmarks, the suites and this program.
fn is_mutated(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    let is_code = path.extension().is_some_and(|extension| extension == "rs") || path.extension().is_none();
    let is_beside = parts.iter().enumerate().any(|(at, part)| {
        let is_suite = at == 0 && ["tests", "xtask"].contains(part);
        is_suite || at > 0 && ["tests", "tests.rs", "benches", "examples", "fuzz", "build.rs"].contains(part)
    });
    is_code && !is_beside
}

/// Returns the pattern by which cargo-mutants finds a file, or all files in a folder.
fn glob(path: &Path) -> String {
    let text = path.display().to_string();
    if path.extension().is_some() { text } else { format!("{}/**", text.trim_end_matches('/')) }
}

/// Returns cargo-mutants from PATH, else from the cache, where it is installed if it is missing.
fn program() -> Result<PathBuf> {
    if let Some(program) = apt::find_program("cargo-mutants") {
        return Ok(program);
    }
    let root = cache::dir()?.join("cargo-mutants");
    let program = root.join("bin/cargo-mutants");
    if !program.exists() {
        println!("installing cargo-mutants {VERSION} into {}", root.display());
        let status = cargo::command()
            .args(["install", "cargo-mutants", "--locked", "--version", VERSION, "--root"])
            .arg(&root)
            .arg("--target-dir")
            .arg(cargo::target_directory()?.join("cargo-mutants"))
            .status()
            .context("cannot run cargo")?;
        ensure!(status.success(), "cargo install cargo-mutants --version {VERSION} failed: {status}");
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_mutated_and_tests_are_not() {
        for path in [
            "roce/src/engine/table.rs",
            "verbs-core/src/slots.rs",
            "roce/src/engine",
            "connectx-model/src/cq.rs",
        ] {
            assert!(is_mutated(Path::new(path)), "{path}");
        }
        for path in [
            "roce/tests/sim.rs",
            "roce/src/engine/responder/tests/refused.rs",
            "verbs-core/src/cmd/tests/mod.rs",
            "provider-rxe/benches/paper_queues.rs",
            "tests/harness/src/runner.rs",
            "xtask/src/main.rs",
            "roce/fuzz/fuzz_targets/packet.rs",
            "docs/tools.md",
        ] {
            assert!(!is_mutated(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_folder_stands_for_all_that_is_in_it() {
        assert_eq!(glob(Path::new("roce/src/engine/")), "roce/src/engine/**");
        assert_eq!(glob(Path::new("roce/src/lib.rs")), "roce/src/lib.rs");
    }

    #[test]
    fn survivors_are_named_one_a_line() {
        let text = report("a.rs:1: replace + with -\nb.rs:2: replace f with ()\n", "");
        assert!(text.starts_with("2 mutants survived:\n    a.rs:1: replace + with -\n"), "{text}");
        assert!(text.contains("0 ended only at the time limit"));
    }
}
