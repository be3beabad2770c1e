//! `verbs-run`: runs a program on our `libibverbs.so.1`, with soft devices where programs look for
//! RDMA devices.
//!
//! From top to bottom; a file imports only files below it:
//!
//! | file | content |
//! |---|---|
//! | [`devices`] | soft devices in `/sys/class` and `/dev/infiniband` |
//! | [`bundled`] | copies of libibverbs in Python packages |
//! | [`python`] | the folders of Python packages that a command may import |
//! | [`libraries`] | the folder of our libraries, and the loader's search path |
//! | [`layout`] | a folder with its old entries and new ones |
//! | [`namespace`] | the mount namespace of this process |
//! | [`options`] | the command line |
//!
//! # How a program starts
//! ```text
//!   verbs-run ── fork, exec ──► verbs-run --check --no-soft     may this user change its mounts?
//!       │ yes                        (a failed step would leave the user without its number)
//!       ├─ unshare: a mount namespace; a user namespace as well if the process is not root
//!       ├─ /sys/class, /sys/devices and /dev are laid anew      (layout)
//!       ├─ the files of the soft devices are written            (provider_soft::sysfs)
//!       ├─ copies of libibverbs in wheels are covered by ours   (bundled)
//!       └─ exec: the program has this process's number, terminal and descriptors
//! ```
//!
//! The namespace and all its mounts end with its last process. None of our processes remains, and
//! nothing has to be cleaned up.
//!
//! Without a namespace, a private folder contains links with the names of the bundled copies. The
//! folder stays while a process has its lock's descriptor open. A later process then removes it.
//!
//! # References
//! `mount_namespaces(7)`, `user_namespaces(7)`, `ld.so(8)`

pub mod bundled;
pub mod devices;
pub mod layout;
pub mod libraries;
pub mod namespace;
pub mod options;
pub mod python;

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use provider_soft::sysfs::Tree;
use verbs_core::discovery::Skipped;

use self::bundled::Bundled;
use self::devices::Presented;
use self::namespace::Refusal;
use self::options::{Action, Options};
use self::python::Surroundings;

/// The exit status if the command line is wrong or the libraries are missing.
pub const STATUS_MISUSE: u8 = 125;
/// The exit status if the command cannot be executed.
pub const STATUS_NOT_EXECUTABLE: u8 = 126;
/// The exit status if the command does not exist.
pub const STATUS_NOT_FOUND: u8 = 127;

/// Runs the program with its arguments. Returns the exit status if the command was not executed.
pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let options = match options::parse(arguments) {
        Ok(Action::Help) => {
            print(options::HELP);
            return 0;
        }
        Ok(Action::Version) => {
            print(format_args!("verbs-run {}\n", env!("CARGO_PKG_VERSION")));
            return 0;
        }
        Ok(Action::Run(options)) => options,
        Err(misuse) => {
            say(format_args!("{misuse}\n{}", options::USAGE));
            return STATUS_MISUSE;
        }
    };
    let soft = soft_devices(&options, std::env::var_os(VERBS_SOFT));
    if options.is_check { check(soft.as_deref()) } else { run(&options, soft.as_deref()) }
}

/// Returns the value of `VERBS_SOFT` for the program.
fn soft_devices(options: &Options, variable: Option<OsString>) -> Option<OsString> {
    if options.no_soft {
        return None;
    }
    Some(options.soft.clone().map(OsString::from).or(variable).unwrap_or_else(|| "auto".into()))
}

/// Presents the devices and prints them. Returns 0, or 1 if a device is missing.
fn check(soft: Option<&OsStr>) -> u8 {
    match namespace::enter().and_then(|()| devices::lay()).and_then(|()| present(soft)) {
        Ok((presented, is_complete)) => {
            presented.iter().for_each(|device| print(format_args!("{device}\n")));
            u8::from(!is_complete)
        }
        Err(refusal) => {
            say(refusal);
            1
        }
    }
}

/// Presents the devices and reports those that cannot be created. Also returns whether all could be
/// created.
fn present(soft: Option<&OsStr>) -> Result<(Vec<Presented>, bool), Refusal> {
    let is_complete = Cell::new(true);
    let report = |skipped: &Skipped| {
        is_complete.set(false);
        say(skipped);
    };
    let presented = soft.map_or_else(|| Ok(Vec::new()), |list| devices::present(list, report))?;
    Ok((presented, is_complete.get()))
}

/// Moves this process to a namespace with the devices.
fn enter(soft: Option<&OsStr>) -> Result<Vec<Presented>, Refusal> {
    may_change_mounts()?;
    namespace::enter()?;
    if soft.is_some() {
        devices::lay()?;
    }
    present(soft).map(|(presented, _)| presented)
}

fn run(options: &Options, soft: Option<&OsStr>) -> u8 {
    let ours = match libraries::find(options.libraries.as_deref()) {
        Ok(folder) => folder,
        Err(why) => {
            say(why);
            return STATUS_MISUSE;
        }
    };
    let bundled = bundled::find(&options.command, &options.scan);
    let needs_mounts = soft.is_some() || !bundled.is_empty();
    let entered = (needs_mounts && !options.no_namespace).then(|| enter(soft));
    // Without soft devices, links work as well as mounts.
    if let Some(Err(refusal)) = entered.as_ref().filter(|_| soft.is_some()) {
        say(refusal);
    }
    let in_namespace = matches!(entered, Some(Ok(_)));
    let links = replace(&bundled, &ours, in_namespace).unwrap_or_else(|why| {
        say(why);
        None
    });
    let folders: Vec<&Path> = links.iter().map(|links| &*links.folder).chain([&*ours]).collect();
    let path = match libraries::search_path(&folders, std::env::var_os(LD_LIBRARY_PATH).as_deref()) {
        Ok(path) => path,
        Err(why) => {
            say(why);
            return STATUS_MISUSE;
        }
    };
    // This value lives until the program replaces this process, which drops nothing.
    let _kept = (entered, links);
    execute(&options.command, &path, soft)
}

/// Uses another process to check whether this one may change its mounts. A step that fails after
/// the user namespace exists would leave this process running as the user `nobody`.
fn may_change_mounts() -> Result<(), Refusal> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--check", "--no-soft"]).stdin(Stdio::null()).stdout(Stdio::null());
    let ended = command.stderr(Stdio::piped()).output();
    let ended = ended.map_err(|error| Refusal::new("this program cannot start itself", &error))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let said = said.trim().trim_start_matches("verbs-run: ");
    Err(Refusal::of_check(if said.is_empty() { "the check of it failed" } else { said }))
}

/// Replaces bundled libraries with ours. Uses mounts in a namespace; otherwise uses links and
/// returns their folder.
fn replace(bundled: &[Bundled], ours: &Path, in_namespace: bool) -> Result<Option<Links>, String> {
    let is_left = |one: &&Bundled| !in_namespace || one.cover(ours).is_err();
    let left: Vec<&Bundled> = bundled.iter().filter(is_left).collect();
    if left.is_empty() {
        return Ok(None);
    }
    let failed = |error: &dyn core::fmt::Display| {
        format!("no links for the copies of libibverbs in Python packages, which keep them: {error}")
    };
    let tree = Tree::create().map_err(|errno| failed(&errno))?;
    tree.keep_for_children().map_err(|errno| failed(&errno))?;
    let folder = tree.root().join("libraries");
    std::fs::create_dir(&folder).map_err(|error| failed(&error))?;
    let links = Links { folder, _tree: tree };
    for one in left {
        one.link(ours, &links.folder).map_err(|error| failed(&error))?;
    }
    Ok(Some(links))
}

/// The folder of the links. Dropping this value removes the links. If a program replaces this
/// process, the links remain.
struct Links {
    folder: PathBuf,
    _tree: Tree,
}

impl Drop for Links {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Replaces this process with the command. Returns the exit status if that fails.
fn execute(command: &[OsString], search_path: &OsStr, soft: Option<&OsStr>) -> u8 {
    let Some((program, arguments)) = command.split_first() else { return STATUS_MISUSE };
    let execute = |program: &OsStr, first: Option<&Path>| {
        let mut command = Command::new(program);
        command.args(first).args(arguments).env(LD_LIBRARY_PATH, search_path);
        match soft {
            Some(soft) => command.env(VERBS_SOFT, soft),
            None => command.env_remove(VERBS_SOFT),
        };
        command.exec()
    };
    let mut error = execute(program, None);
    // This is a script without `#!`, which only some C libraries execute with a shell.
    if error.raw_os_error() == Some(libc::ENOEXEC)
        && let Some(script) = Surroundings::of_process().program(program)
    {
        error = execute(OsStr::new("/bin/sh"), Some(&script));
    }
    // The errno may come from a folder in PATH that this user may not search.
    if error.kind() == ErrorKind::NotFound || !exists(program) {
        say(format_args!("there is no command `{}`", program.display()));
        STATUS_NOT_FOUND
    } else {
        say(format_args!("cannot execute `{}`: {error}", program.display()));
        STATUS_NOT_EXECUTABLE
    }
}

/// Returns whether a command exists and this user can see it.
fn exists(program: &OsStr) -> bool {
    let is_path = program.as_bytes().contains(&b'/');
    let path = std::env::var_os("PATH").unwrap_or_default();
    is_path || std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// Prints text to standard output, which may be closed.
fn print(text: impl core::fmt::Display) {
    let _ = write!(io::stdout(), "{text}");
}

/// Prints a line to standard error, which may be closed.
fn say(line: impl core::fmt::Display) {
    let _ = writeln!(io::stderr(), "verbs-run: {line}");
}

/// The environment variable that requests soft devices.
const VERBS_SOFT: &str = "VERBS_SOFT";

/// The environment variable with the loader's search path.
const LD_LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_from_the_option_the_variable_or_are_automatic() {
        let soft = |options: &Options, variable: Option<&str>| {
            soft_devices(options, variable.map(OsString::from)).map(|list| list.into_string().unwrap())
        };
        let none = Options::default();
        assert_eq!(soft(&none, None).as_deref(), Some("auto"));
        assert_eq!(soft(&none, Some("10.0.0.1")).as_deref(), Some("10.0.0.1"));
        assert_eq!(soft(&none, Some("")).as_deref(), Some(""));
        let asked = Options { soft: Some("10.0.0.2".into()), ..Options::default() };
        assert_eq!(soft(&asked, Some("10.0.0.1")).as_deref(), Some("10.0.0.2"));
        let without = Options { no_soft: true, ..Options::default() };
        assert_eq!(soft(&without, Some("10.0.0.1")), None);
    }
}
