//! The kernel's interface: installing a filter, and receiving notifications for matching calls.
//!
//! # Safety
//! Every address passed to the kernel points to a local variable of the documented type, alive
//! during the call. Notifications are read into `struct seccomp_notif`, after [`install`] has
//! checked that this kernel writes no more than that.
#![allow(unsafe_code)]

use core::mem::size_of;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libc::{seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uverbs_abi::rdma_user_ioctl_cmds::RDMA_VERBS_IOCTL;

/// Installs `program` as the filter for the calling thread and for everything that the thread
/// starts from now on.
///
/// # Errors
/// Any errno from the system calls. Fails if notifications are larger than the structures used
/// here.
pub fn install(program: &[sock_filter]) -> io::Result<Listener> {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the third argument points to a `struct seccomp_notif_sizes`, which the kernel fills.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) })?;
    if usize::from(sizes.seccomp_notif) > size_of::<seccomp_notif>()
        || usize::from(sizes.seccomp_notif_resp) > size_of::<seccomp_notif_resp>()
    {
        return Err(io::Error::other("this kernel's seccomp notifications are larger than known"));
    }
    let fd = set_filter(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: with this flag the call returns a new file descriptor, with no other owner.
    Ok(Listener(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Installs a filter program without notifications for this thread and for everything that the
/// thread starts from now on.
///
/// # Errors
/// Any errno from the system calls.
pub fn install_for_good(program: &[sock_filter]) -> io::Result<()> {
    set_filter(program, 0).map(drop)
}

/// Returns the errno of `RDMA_VERBS_IOCTL` on a descriptor that does not exist: `EBADF` unless a
/// seccomp filter rejects the ioctl.
pub fn verbs_ioctl_on_no_file() -> i32 {
    // SAFETY: without a file, the kernel follows no address.
    let answer = unsafe { libc::ioctl(-1, RDMA_VERBS_IOCTL as libc::Ioctl, core::ptr::null::<u8>()) };
    if answer < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
}

fn set_filter(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<libc::c_long> {
    // Without this, only root may install a filter, because a program that gains privileges must
    // not run under one.
    nix::sys::prctl::set_no_new_privs()?;
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` is a `struct sock_fprog` with the length of its instructions, which the
    // kernel copies and checks.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })
}

/// The descriptor that reports the calls that match the filter.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// A system call waiting for a decision.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The id of the notification.
    pub id: u64,
    /// The id of the waiting thread.
    pub pid: u32,
    /// The system call's number.
    pub nr: i64,
    /// The system call's arguments.
    pub args: [u64; 6],
}

impl Listener {
    /// Returns the next waiting call; `None` once no thread is under the filter.
    ///
    /// # Errors
    /// Any errno from the `SECCOMP_IOCTL_NOTIF_RECV` ioctl.
    pub fn next(&self) -> io::Result<Option<Asked>> {
        loop {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let ready = fds[0].revents().unwrap_or(PollFlags::empty());
            if !ready.contains(PollFlags::POLLIN) {
                return Ok(None);
            }
            // SAFETY: zeroes are a valid value of the structure, which consists of integers; the
            // kernel requires zeroes.
            let mut notif: seccomp_notif = unsafe { core::mem::zeroed() };
            match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut notif) {
                Ok(()) => {
                    let nr = notif.data.nr.into();
                    return Ok(Some(Asked { id: notif.id, pid: notif.pid, nr, args: notif.data.args }));
                }
                // The waiting thread was killed before its call was read.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether the system call still waits. If it does, any memory read before this check
    /// belonged to its thread.
    pub fn is_valid(&self, asked: &Asked) -> bool {
        let mut id = asked.id;
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id).is_ok()
    }

    /// Lets the call pass, or makes it fail with `errno`.
    ///
    /// # Errors
    /// Any errno from the `SECCOMP_IOCTL_NOTIF_SEND` ioctl, unless the call no longer waits.
    pub fn answer(&self, asked: &Asked, errno: Option<i32>) -> io::Result<()> {
        let (error, flags) = match errno {
            Some(errno) => (-errno, 0),
            None => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        };
        let mut answer = seccomp_notif_resp { id: asked.id, val: 0, error, flags };
        match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    /// Calls an ioctl whose argument must have the type `T`.
    fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: the request's size is the size of `T`, which the kernel accesses only during the
        // call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request, core::ptr::from_mut(argument)) }.into())?;
        Ok(())
    }
}

fn check(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
