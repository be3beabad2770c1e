//! `cargo xtask run-c`: a program that was linked against libibverbs runs on ours.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use super::link::{PROFILE, build};

/// Exit status if the libraries cannot be built.
pub(crate) const STATUS_NOT_BUILT: u8 = 125;
const STATUS_NOT_EXECUTABLE: u8 = 126;
const STATUS_NOT_FOUND: u8 = 127;

/// Exit status of `run-c`, shown by --help.
const STATUSES: &str = "\
Exit status:
  the command's own; shells show 128+N if signal N ended it
  125  the libraries cannot be built, or the command line is wrong
  126  the command cannot be executed
  127  the command does not exist";

/// Command line of `cargo xtask run-c`.
#[derive(clap::Args)]
#[command(after_help = STATUSES)]
pub(crate) struct Args {
    /// Add soft devices to the command's list: VERBS_SOFT=auto, unless it is set
    #[arg(long)]
    soft: bool,

    /// Cargo profile of the libraries; dev builds faster
    #[arg(long, default_value = PROFILE, value_name = "NAME")]
    profile: String,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `run-c`: the command replaces this process, and keeps its number, terminal and descriptors.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let libraries = build(&args.profile)?;
    let Some((program, arguments)) = args.command.split_first() else { return Ok(ExitCode::FAILURE) };
    let mut command = Command::new(program);
    command.args(arguments);
    command.env("LD_LIBRARY_PATH", search_path(&libraries, std::env::var_os("LD_LIBRARY_PATH").as_deref())?);
    if args.soft && std::env::var_os("VERBS_SOFT").is_none() {
        command.env("VERBS_SOFT", "auto");
    }
    let error = command.exec();
    let program = program.display();
    Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound {
        eprintln!("xtask run-c: there is no command `{program}`");
        STATUS_NOT_FOUND
    } else {
        eprintln!("xtask run-c: cannot execute `{program}`: {error}");
        STATUS_NOT_EXECUTABLE
    }))
}

/// Puts a folder in front of a search path of the loader.
fn search_path(folder: &Path, existing: Option<&OsStr>) -> Result<OsString> {
    let separated = folder.as_os_str().as_bytes().iter().any(|byte| b":;".contains(byte));
    ensure!(!separated, "the loader cannot search {}: a colon or semicolon ends its name", folder.display());
    let mut path = folder.as_os_str().to_owned();
    // An empty element is the current folder.
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        path.push(":");
        path.push(existing);
    }
    Ok(path)
}

#[test]
fn a_folder_that_the_loader_would_split_is_refused() {
    assert!(search_path(Path::new("/a:b/c-abi"), None).is_err());
    assert!(search_path(Path::new("/a;b/c-abi"), None).is_err());
}
