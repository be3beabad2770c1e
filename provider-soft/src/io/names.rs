//! Clients of abstract names of Unix sockets. Processes of a machine find each other by them.
//!
//! # References
//! `unix(7)` (abstract socket addresses)

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use verbs_core::Errno;

/// Returns a client's socket.
///
/// # Errors
/// Any errno of `socket(2)`, notably `EMFILE`.
pub(crate) fn stream() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::Stream, flags, None)?)
}

/// Connects a client to a name. Returns whether a listener has it; otherwise the socket is
/// unchanged.
///
/// # Errors
/// `EAGAIN`: thousands of clients wait for the listener's reply; any other errno of `connect(2)`.
pub(crate) fn is_reached(client: &OwnedFd, name: &str) -> Result<bool, Errno> {
    match connect(client.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?) {
        Ok(()) => Ok(true),
        Err(nix::errno::Errno::ECONNREFUSED | nix::errno::Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
