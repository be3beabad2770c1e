//! Changes that a case makes to its own process, such as hiding parts of the file system or
//! dropping privileges.
//!
//! Nothing here is undone, because each case has its own process.

use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::runner::{CaseResult, fail};
use crate::tools::run;

const NONE: Option<&str> = None;

/// Moves this process to a new mount namespace, so that no other process sees its later mounts.
///
/// # Errors
/// Any errno from `unshare` or `mount`.
pub fn private_mounts() -> CaseResult {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    Ok(())
}

/// Moves this process to a new network namespace, with loopback up. Unless the process is root
/// already, makes it root in a new user namespace. Returns whether the host allows it.
///
/// # Errors
/// Fails if `ip` cannot run or reports a failure.
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

/// Runs `ip` with the given arguments.
///
/// # Errors
/// Fails if `ip` cannot run or reports a failure.
pub fn ip(args: &[&str]) -> CaseResult {
    let done = run(Command::new("ip").args(args))?;
    if done.status.success() { Ok(()) } else { fail(format_args!("ip {args:?}: {done:?}")) }
}

/// Mounts an empty file system over a directory.
///
/// # Errors
/// Any errno from `mount`.
pub fn cover(directory: &Path) -> CaseResult {
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), NONE)?;
    Ok(())
}

/// Bind-mounts a directory at a second path, with all mounts below it.
///
/// # Errors
/// Any errno from `mount`.
pub fn bind(from: &Path, to: &Path) -> CaseResult {
    mount(Some(from), to, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    Ok(())
}

/// Drops root and all capabilities permanently.
///
/// # Errors
/// Any errno from the system calls that change the process's identity.
pub fn become_nobody() -> CaseResult {
    const NOBODY: u32 = 65534;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    Ok(())
}
