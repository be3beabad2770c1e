//! Processes that do not outlive this one.
//!
//! # Safety
//! The only unsafe code of this program: `pre_exec` runs a closure between fork and exec, where
//! other threads' locks may be held forever. The closure makes three kinds of system call (prctl,
//! getppid, fcntl), allocates nothing and takes no lock.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid};

/// Starts `command`, which keeps the descriptors in `inherit` open under their numbers. The kernel
/// kills it when the calling thread ends, for whatever reason.
///
/// # Errors
/// As [`Command::spawn`].
pub(crate) fn spawn(command: &mut Command, inherit: &[BorrowedFd<'_>]) -> io::Result<Child> {
    let parent: Pid = getpid();
    let inherit: Vec<RawFd> = inherit.iter().map(|fd| fd.as_raw_fd()).collect();
    let prepare = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above.
        if getppid() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for fd in &inherit {
            // SAFETY:
            // - the caller lent the descriptors for the duration of `spawn`, and the forked child
            //   has copies of them;
            // - the borrow ends before exec.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY:
    // - the closure only makes async-signal-safe system calls and reads memory that it owns;
    // - its errors are built from an errno or a kind, which allocates nothing.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}
