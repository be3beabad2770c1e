//! The libraries under test, libraries that programs preload, and the environment for the programs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use verbs_harness::address;
use verbs_harness::runner::{CaseResult, Stop, fail, skip};

/// The environment variable that names the directory of the libraries.
pub(crate) const VARIABLE: &str = "VERBS_C_ABI_DIR";

/// Links the libraries, unless [`VARIABLE`] names a directory that has them. Returns the directory.
/// It starts no thread, because cases are forked afterwards.
pub(crate) fn build() -> Result<String, String> {
    if let Ok(directory) = std::env::var(VARIABLE) {
        return Ok(directory);
    }
    let directory = target().join("c-abi");
    let mut xtask = Command::new(env!("CARGO"));
    xtask.args(["xtask", "c-abi", "--profile", "dev", "--out"]).arg(&directory);
    let ended = xtask.output().map_err(|error| error.to_string())?;
    if ended.status.success() {
        return Ok(directory.display().to_string());
    }
    let [stdout, stderr] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
    Err(format!("{}\n{stdout}{stderr}", ended.status))
}

/// A library that programs load before all others. Its C source is beside this file.
#[derive(Clone, Copy)]
pub(crate) enum Preload {
    /// Shortens perftest's measurement of the processor frequency.
    FastClock,
    /// Delays a client until its server listens again.
    NextListener,
}

impl Preload {
    pub(crate) const ALL: [Self; 2] = [Self::FastClock, Self::NextListener];

    const fn name(self) -> &'static str {
        match self {
            Self::FastClock => "fast_clock",
            Self::NextListener => "next_listener",
        }
    }

    fn compiled(self) -> PathBuf {
        target().join(self.name()).with_extension("so")
    }

    /// Returns the path of the library, which [`compile`](Self::compile) has written.
    ///
    /// # Errors
    /// Skips the case if the compiler is missing.
    pub(crate) fn path(self) -> CaseResult<PathBuf> {
        installed("cc", "gcc").map(|_| self.compiled())
    }

    /// Compiles the library, once for all cases. It starts no thread.
    ///
    /// # Errors
    /// Skips the case if the compiler is missing; fails if the compiler fails.
    pub(crate) fn compile(self) -> CaseResult {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        // The file is renamed once it is complete, because the programs of another run may load it
        // meanwhile.
        let unfinished = target().join(format!("{}.{}", self.name(), std::process::id()));
        let mut cc = Command::new(installed("cc", "gcc")?);
        cc.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
        cc.arg("-o").arg(&unfinished).arg(directory.join(self.name()).with_extension("c")).arg("-ldl");
        let ended = cc.output()?;
        if !ended.status.success() {
            return fail(format_args!("{cc:?}: {}", String::from_utf8_lossy(&ended.stderr)));
        }
        Ok(fs::rename(&unfinished, self.compiled())?)
    }
}

/// Makes a program preload a library before the libraries that it already preloads.
///
/// # Errors
/// The errors of [`Preload::path`].
pub(crate) fn preload(command: &mut Command, library: Preload) -> CaseResult {
    const LIST: &str = "LD_PRELOAD";
    let mut list = library.path()?.into_os_string();
    if let Some((_, Some(others))) = command.get_envs().find(|(name, _)| *name == LIST) {
        list.push(":");
        list.push(others);
    }
    command.env(LIST, list);
    Ok(())
}

/// Returns the directory for files created by these tests.
pub(crate) fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns the directory of the libraries.
pub(crate) fn directory() -> CaseResult<PathBuf> {
    std::env::var_os(VARIABLE)
        .map(PathBuf::from)
        .ok_or_else(|| Stop::Failed(format!("{VARIABLE} is not set")))
}

/// Sets the environment so that a program finds the libraries and `soft0`. All programs of a case
/// share an address.
pub(crate) fn prepare(command: &mut Command) -> CaseResult {
    command
        .env("LD_LIBRARY_PATH", directory()?)
        .env("VERBS_SOFT", address::own().to_string())
        .env("LC_ALL", "C");
    Ok(())
}

/// Returns the command for an installed program, prepared to use the libraries.
///
/// # Errors
/// Skips the case and names the package if the program is not installed.
pub(crate) fn program(name: &str, package: &str) -> CaseResult<Command> {
    let mut command = Command::new(installed(name, package)?);
    prepare(&mut command)?;
    Ok(command)
}

/// Returns the path of an installed program.
///
/// # Errors
/// Skips the case and names the package if the program is not installed.
pub(crate) fn installed(name: &str, package: &str) -> CaseResult<PathBuf> {
    let path = Path::new("/usr/bin").join(name);
    if path.exists() { Ok(path) } else { skip(format_args!("{name} is not installed (package {package})")) }
}

/// Returns the version of a Debian package; `None` if the package or dpkg is not installed.
pub(crate) fn version(package: &str) -> Option<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${Version}", package]);
    let ended = query.output().ok().filter(|ended| ended.status.success())?;
    String::from_utf8(ended.stdout).ok()
}

/// Returns a value for `LD_LIBRARY_PATH` that starts with the libraries.
pub(crate) fn search_path() -> CaseResult<OsString> {
    Ok(directory()?.into_os_string())
}
