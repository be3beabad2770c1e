//! A set-user-ID root program, run by another user: the libraries ignore their environment
//! variables.
//!
//! The loader ignores `LD_LIBRARY_PATH` as well, so the libraries' path is built into the program.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use verbs_harness::process::{self, Finished};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use crate::library;
use crate::own::{self, Mode};

const PROGRAM: &str = "set_user_id";
const LIMIT: Duration = Duration::from_secs(60);

/// The id of a user without any rights.
const NOBODY: u32 = 65_534;

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("c", "a set-user-ID program makes no log file and has no soft device", run)]
}

fn run() -> CaseResult {
    if fs::metadata("/proc/self")?.uid() != 0 {
        return skip("only root makes a set-user-ID program of root");
    }
    let place = TempDir::new()?;
    let program = place.0.join(PROGRAM);
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        fs::copy(library::directory()?.join(library), place.0.join(library))?;
    }
    let path = format!("-Wl,-rpath,{}", place.0.display());
    fs::copy(own::compile_with(PROGRAM, Mode::Plain, &[&path])?, &program)?;

    let log = place.0.join("log");
    let plain = started(&program, &log, None)?;
    if plain.stdout != "plain\n" || !log.exists() {
        return fail(format_args!("a plain program makes a log file and has a device: {plain:?}"));
    }
    fs::remove_file(&log)?;

    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    let privileged = started(&program, &log, Some(NOBODY))?;
    if privileged.stdout == "plain\n" {
        return skip("the file system of temporary files ignores set-user-ID bits");
    }
    if privileged.stdout != "set-user-ID\n" || !privileged.status.success() {
        return fail(format_args!("{privileged:?}"));
    }
    if log.exists() {
        return fail("VERBS_LOG_FILE names a file, which was made with the rights of root");
    }
    Ok(())
}

/// Runs the program with the libraries' environment variables set, as another user if one is given.
fn started(program: &Path, log: &Path, user: Option<u32>) -> CaseResult<Finished> {
    let mut command = Command::new(program);
    command.env_clear().env("VERBS_SOFT", "auto").env("VERBS_LOG_LEVEL", "1").env("VERBS_LOG_FILE", log);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    match process::run_group(&mut command, LIMIT)? {
        Ok(ended) => Ok(ended),
        Err(killed) => fail(format_args!("it did not end: {}", killed.stderr)),
    }
}

/// A directory that every user may enter, and only root may write.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> CaseResult<Self> {
        let place = std::env::temp_dir().join(format!("verbs-set-user-id-{}", std::process::id()));
        fs::create_dir(&place)?;
        let place = Self(place);
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755))?;
        Ok(place)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
