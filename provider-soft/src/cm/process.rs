//! [`DeviceOwner`]: the process of a device of this machine, to detect its end.
//!
//! A killed process does not disconnect from its peers: its devices end with it; no kernel acts
//! for them. A connection manager therefore takes a name for each of its devices
//! ([`Listening::of_device`](super::Listening::of_device)). Peers on this machine find the process
//! through this name:
//!
//! ```text
//!   owner:  listen at \0verbs-soft/cm/2/device/127.5.6.7, answer those who connect
//!           bind \0verbs-soft/cm/2/device/127.5.6.7/PROCESS, which receives nothing
//!   peer:   connect to the first, get the process that listens (SO_PEERCRED), pidfd_open
//!           the descriptor is readable once that process has ended
//!           later: connect a datagram socket to the second, to see whether it has the device still
//! ```
//!
//! A name proves less than the process: a forked child with the owner's descriptors keeps it.
//!
//! # References
//! `unix(7)` (`SO_PEERCRED`), `pidfd_open(2)`

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use verbs_core::Errno;

use super::owner::Owner;
use super::rendezvous::{Token, device_name, is_reached, stream};
use crate::io;

/// The owner of a device of this machine.
#[derive(Debug)]
pub enum DeviceOwner {
    /// A process.
    Process(PeerProcess),
    /// A process that has ended, while a child holds its descriptors.
    Ended,
    /// No reliable information. The address belongs to no device, or to a device without a
    /// connection manager. Or the process is this one, in another PID namespace, or of another user
    /// (except root), which is not trusted. Or the kernel refuses: no descriptors are left, a
    /// sandbox forbids it, or Linux is older than 5.3.
    Unknown,
}

/// The process of a device of this machine.
#[derive(Debug)]
pub struct PeerProcess {
    file: OwnedFd,
    pub(super) name: String,
    pub(super) token: Token,
}

impl DeviceOwner {
    /// Finds the owner of the device with an address. `scope` is the index of the interface for a
    /// link-local IPv6 address.
    pub fn of(address: IpAddr, scope: u32) -> Self {
        Self::find(device_name(address, scope)).unwrap_or(Self::Unknown)
    }

    /// Returns whether a process has the device, or cannot be inspected.
    pub fn exists(address: IpAddr, scope: u32) -> bool {
        stream().and_then(|stream| is_reached(&stream, &device_name(address, scope))).unwrap_or(true)
    }

    fn find(name: String) -> Result<Self, Errno> {
        let stream = stream()?;
        if !is_reached(&stream, &name)? {
            return Ok(Self::Unknown);
        }
        let owner = Owner::of(&stream)?;
        if !owner.is_trusted() || owner.pid <= 0 || owner.pid.cast_unsigned() == std::process::id() {
            return Ok(Self::Unknown);
        }
        match io::process(owner.pid) {
            Ok(file) => {
                // The process number differs in another namespace, and for a new owner.
                let token = Token::of_process(owner.pid.cast_unsigned());
                let looking = UnixDatagram::unbound().map_err(|error| Errno::from_io(&error))?;
                let is_owner = token.is_seen(&name, &looking);
                let process = PeerProcess { file, name, token };
                Ok(if is_owner { Self::Process(process) } else { Self::Unknown })
            }
            Err(errno) if errno.raw() == libc::ESRCH => Ok(Self::Ended),
            Err(errno) => Err(errno),
        }
    }
}

/// Readable once the process has ended.
impl AsFd for PeerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
