//! Clients of abstract Unix socket names. Processes on a machine find each other by name.
//!
//! # References
//! `unix(7)` (abstract socket addresses)

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use verbs_core::Errno;

use super::owner::Owner;

/// Creates a client's socket, not yet connected.
///
/// # Errors
/// Any errno of `socket(2)`, notably `EMFILE`.
pub(crate) fn stream() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::Stream, flags, None)?)
}

/// Connects a client's socket to a name. Returns whether a process listens under the name. If not,
/// the socket is unchanged.
///
/// # Errors
/// `EAGAIN`: thousands of clients wait to be accepted; any other errno of `connect(2)`.
pub(crate) fn is_reached(client: &OwnedFd, name: &str) -> Result<bool, Errno> {
    is_connected(client, &UnixAddr::new_abstract(name.as_bytes())?)
}

/// Connects a client's socket to an address. Returns whether a process listens there. If not, the
/// socket is unchanged.
///
/// # Errors
/// The errors of [`is_reached`].
pub(crate) fn is_connected(client: &OwnedFd, address: &UnixAddr) -> Result<bool, Errno> {
    match connect(client.as_raw_fd(), address) {
        Ok(()) => Ok(true),
        Err(nix::errno::Errno::ECONNREFUSED | nix::errno::Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Connects to a name, waiting until `deadline`. Returns `None` if no process listens under it.
///
/// # Errors
/// `ETIMEDOUT` if the queue of clients stays full; any other errno of `socket(2)` and `connect(2)`.
pub(super) fn reach(name: &str, deadline: Instant) -> Result<Option<UnixStream>, Errno> {
    loop {
        let client = stream()?;
        match is_reached(&client, name) {
            Ok(is_reached) => return Ok(is_reached.then(|| client.into())),
            Err(Errno::AGAIN) => pause(deadline)?,
            Err(errno) => return Err(errno),
        }
    }
}

/// Sleeps for 1 ms, to let another process run.
///
/// # Errors
/// `ETIMEDOUT` after the deadline.
pub(crate) fn pause(deadline: Instant) -> Result<(), Errno> {
    if Instant::now() >= deadline {
        return Err(Errno::TIMEDOUT);
    }
    let _ = poll(&mut [], PollTimeout::from(1_u8));
    Ok(())
}

/// Waits until a stream is readable or its other end is closed, but at most until `deadline`.
pub(super) fn wait(stream: &UnixStream, deadline: Instant) -> Result<(), Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns whether the process at the other end belongs to this user.
pub(super) fn is_own_user(stream: &UnixStream) -> bool {
    Owner::from_stream(stream).is_ok_and(Owner::is_own_user)
}
