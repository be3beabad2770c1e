//! Runs Cargo, and finds the workspace's root and target directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::process;

/// Returns the workspace's root directory.
pub(crate) fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Returns a cargo command for the workspace's root.
pub(crate) fn command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs `cargo build` with these arguments and returns the directory of the binaries.
///
/// # Errors
/// Fails if the build fails; cargo has then printed the reason to stderr.
pub(crate) fn build(arguments: &[&str]) -> Result<PathBuf> {
    process::run(command().arg("build").args(arguments))?;
    let named = arguments.iter().skip_while(|argument| **argument != "--profile").nth(1);
    profile_directory(match named {
        Some(profile) => profile,
        None if arguments.contains(&"--release") => "release",
        None => "dev",
    })
}

/// The profile for programs that guests run or wait for: the suites' programs, `libibverbs.so.1`
/// for the suites, and the ConnectX model.
pub(crate) const GUEST_PROFILE: &str = "guest";

/// Returns the directory with a profile's results.
///
/// # Errors
/// Same as [`target_directory`].
pub(crate) fn profile_directory(profile: &str) -> Result<PathBuf> {
    let directory = match profile {
        "dev" | "test" => "debug",
        "bench" => "release",
        other => other,
    };
    Ok(target_directory()?.join(directory))
}

/// Builds a benchmark and returns the program's path.
///
/// # Errors
/// Fails if the build fails; cargo has then printed the reason to stderr.
pub(crate) fn build_bench(package: &str, bench: &str) -> Result<PathBuf> {
    let output = command()
        .args(["bench", "--quiet", "--no-run", "--message-format", "json-render-diagnostics"])
        .args(["--package", package, "--bench", bench])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "building the benchmark {bench} of {package} failed");
    executable(&output.stdout)
}

/// Returns the path of the last executable named in cargo's messages.
pub(crate) fn executable(messages: &[u8]) -> Result<PathBuf> {
    let messages = String::from_utf8_lossy(messages);
    let executable = messages.lines().rev().find_map(|line| string_field(line, "executable"));
    executable.map(PathBuf::from).context("cargo named no program")
}

/// Builds tools (`--bins`, or `--bin` and a name) as static programs for a target with a profile
/// (`dev`, `release`), and returns their directory.
///
/// # Errors
/// Fails if the build fails; cargo has then printed the reason to stderr.
pub(crate) fn build_static(tools: &[&str], target: &str, profile: &str) -> Result<PathBuf> {
    let mut build = command();
    build.args(["build", "--quiet", "--package", "rdma-tools", "--target", target]).args(tools);
    build.args(["--profile", profile]).env("RUSTFLAGS", "-C target-feature=+crt-static");
    process::run(&mut build)?;
    Ok(target_directory()?.join(target).join(if profile == "dev" { "debug" } else { profile }))
}

/// Returns the host's target triple.
pub(crate) fn host_target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Returns whether the standard library of a target is installed.
pub(crate) fn has_std(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let dir = process::output(Command::new(rustc).args(["--print", "target-libdir", "--target", target]));
    let files = dir.ok().and_then(|dir| std::fs::read_dir(dir.trim()).ok());
    let is_std = |file: &std::fs::DirEntry| file.file_name().to_string_lossy().starts_with("libstd-");
    files.is_some_and(|files| files.flatten().any(|file| is_std(&file)))
}

/// Returns the directory of cargo's build results.
///
/// # Errors
/// Fails if cargo cannot be run, or if its metadata names no target directory.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let metadata = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    string_field(&process::output(command().args(metadata))?, "target_directory")
        .map(PathBuf::from)
        .context("cargo metadata names no target directory")
}

/// Returns the value of a string field of a JSON object.
fn string_field(json: &str, name: &str) -> Option<String> {
    let object: serde_json::Value = serde_json::from_str(json).ok()?;
    object.get(name)?.as_str().map(str::to_owned)
}
