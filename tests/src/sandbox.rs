//! Changes that a case makes to its own process: hiding parts of the file system, giving up
//! privileges.
//!
//! Nothing here is undone: a case has its process for itself.

use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::runner::{CaseResult, fail};
use crate::tools::run;

const NONE: Option<&str> = None;

/// Gives this process a mount namespace of its own: what is mounted from now on nobody else sees.
///
/// # Errors
/// Any errno of `unshare` or `mount`.
pub fn private_mounts() -> CaseResult {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    Ok(())
}

/// Gives this process a network namespace of its own, with loopback up, as root of a user namespace
/// where it is not root. Returns whether the host allows that.
///
/// # Errors
/// `ip` does not run, or fails.
pub fn private_network() -> CaseResult<bool> {
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    if uid.is_root() {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return Ok(false);
        }
    } else {
        if unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).is_err() {
            return Ok(false);
        }
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    }
    ip(&["link", "set", "lo", "up"])?;
    Ok(true)
}

/// Runs `ip` with these arguments.
///
/// # Errors
/// It does not run, or fails.
pub fn ip(args: &[&str]) -> CaseResult {
    let done = run(Command::new("ip").args(args))?;
    if done.status.success() { Ok(()) } else { fail(format_args!("ip {args:?}: {done:?}")) }
}

/// Mounts an empty file system over a directory.
///
/// # Errors
/// Any errno of `mount`.
pub fn cover(directory: &Path) -> CaseResult {
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), NONE)?;
    Ok(())
}

/// Makes a directory visible at a second place, with all that is mounted below it.
///
/// # Errors
/// Any errno of `mount`.
pub fn bind(from: &Path, to: &Path) -> CaseResult {
    mount(Some(from), to, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    Ok(())
}

/// Gives up being root, for good, and every capability with it.
///
/// # Errors
/// Any errno of the system calls that change the process's identity.
pub fn become_nobody() -> CaseResult {
    const NOBODY: u32 = 65534;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    Ok(())
}
