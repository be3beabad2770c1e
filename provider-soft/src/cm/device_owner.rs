//! [`DeviceOwner`]: the process that owns a device of this machine, used to detect when it ends.
//!
//! A killed process does not disconnect from its peers: its devices end with it, and the kernel
//! does not disconnect them. A connection manager therefore binds a name for each of its devices
//! ([`ListenerName::of_device`](super::ListenerName::of_device)). Peers on this machine find the
//! process through this name:
//!
//! ```text
//!   owner:  listen at \0verbs-soft/cm/2/device/127.5.6.7, reply to those who connect
//!           bind \0verbs-soft/cm/2/device/127.5.6.7/PROCESS, which receives nothing
//!   peer:   connect to the first, get the process that listens (SO_PEERCRED), pidfd_open
//!           the descriptor is readable once that process has ended
//!           later: connect a datagram socket to the second, to see whether it has the device still
//! ```
//!
//! At an address shared by processes, the first name ends with the slot of the process.
//!
//! The name alone does not prove that the owner is running, because a forked child with the owner's
//! descriptors keeps the name.
//!
//! # References
//! `unix(7)` (`SO_PEERCRED`), `pidfd_open(2)`

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use roce::wire::UDP_PORT;
use verbs_core::Errno;

use super::listener_cache::names_of;
use super::rendezvous::{Token, device_name, owner, slot_name};
use crate::io::names::{is_reached, stream};
use crate::io::owner::Owner;
use crate::io::{self, share};

/// The owner of a device of this machine.
#[derive(Debug)]
pub enum DeviceOwner {
    /// A running process.
    Process(PeerProcess),
    /// A process that has ended but whose child still holds its descriptors.
    Ended,
    /// No reliable information. The address belongs to no device, or to a device without a
    /// connection manager. Or the process is this one, is in another PID namespace, or belongs to
    /// another, untrusted user (root is trusted). Or the process cannot be found: no descriptors
    /// are left, a sandbox forbids it, or Linux is older than 5.3.
    Unknown,
}

/// A process that owns a device of this machine.
#[derive(Debug)]
pub struct PeerProcess {
    file: OwnedFd,
    pub(super) name: String,
    pub(super) token: Token,
}

impl DeviceOwner {
    /// Finds the owner of the device with an address and a [slot](super::Port::slot). Slot 0 means
    /// a device whose address is not shared. `scope` is the index of the interface for a link-local
    /// IPv6 address.
    pub fn at(address: IpAddr, scope: u32, slot: u8) -> Self {
        Self::find(&device_name(address, scope), slot).unwrap_or(Self::Unknown)
    }

    /// Returns whether a process has an unshared device with this address, or cannot be inspected.
    pub fn exists(address: IpAddr, scope: u32) -> bool {
        stream().and_then(|stream| is_reached(&stream, &device_name(address, scope))).unwrap_or(true)
    }

    /// Returns the [slot](super::Port::slot) of the process that listens at `listener`, among the
    /// processes of this user that share the address of a device. Returns 0 if the address is not
    /// shared or the process is unknown. `likely` is the result for an earlier request, or 0; it
    /// saves up to 254 searches for a name.
    pub fn slot_of_listener(space: u16, listener: SocketAddr, device: IpAddr, scope: u32, likely: u8) -> u8 {
        let groups = share::group_names(io::effective_user(), device, UDP_PORT, scope);
        if !groups.iter().any(|group| matches!(owner(group), Ok(Some(_)))) {
            return 0;
        }
        let mut names = names_of(space, listener);
        let Some(listener) = names.find_map(|(_, name)| owner(&name).ok().flatten()) else { return 0 };
        let device = device_name(device, scope);
        let has_slot = |slot: &u8| {
            owner(&slot_name(&device, *slot))
                .is_ok_and(|its| its.is_some_and(|its| its.is_process_of(listener)))
        };
        let earlier = Some(likely).filter(|slot| *slot != 0);
        earlier.into_iter().chain(1..=u8::MAX).find(has_slot).unwrap_or(0)
    }

    fn find(device: &str, slot: u8) -> Result<Self, Errno> {
        let stream = stream()?;
        if !is_reached(&stream, &slot_name(device, slot))? {
            return Ok(Self::Unknown);
        }
        let owner = Owner::from_stream(&stream)?;
        if !owner.is_trusted() || owner.pid <= 0 || owner.pid.cast_unsigned() == std::process::id() {
            return Ok(Self::Unknown);
        }
        match io::process(owner.pid) {
            Ok(file) => {
                // The process ID differs in another PID namespace, or if the name has a new owner.
                let token = Token::of_process(owner.pid.cast_unsigned());
                let looking = UnixDatagram::unbound().map_err(|error| Errno::from_io(&error))?;
                let is_owner = token.is_seen(device, &looking);
                let process = PeerProcess { file, name: device.to_owned(), token };
                Ok(if is_owner { Self::Process(process) } else { Self::Unknown })
            }
            Err(errno) if errno.raw() == libc::ESRCH => Ok(Self::Ended),
            Err(errno) => Err(errno),
        }
    }
}

/// The descriptor is readable once the process has ended.
impl AsFd for PeerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
