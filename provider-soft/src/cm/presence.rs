//! [`AddressWatch`]: detects when addresses disappear from their interfaces.

use std::os::fd::{AsFd, BorrowedFd};

use super::port::Port;
use crate::io::link::{LinkWatch, PortLink};

/// A file that becomes readable when an interface or an address of the network namespace changes.
/// The change may concern another interface: [`Port::has_address`] returns the current state of a
/// port.
#[derive(Debug)]
pub struct AddressWatch(LinkWatch);

impl AddressWatch {
    /// Opens the file for this process's network namespace. Returns `None` if the kernel does not
    /// permit it, as in sandboxes.
    pub fn open() -> Option<Self> {
        LinkWatch::open().map(Self)
    }

    /// Returns whether an interface or address has changed since the last call, without waiting.
    pub fn has_changed(&self) -> bool {
        self.0.has_changed()
    }
}

/// The descriptor is readable after a change.
impl AsFd for AddressWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Port {
    /// Returns whether an interface has the port's address. A device also works on an address that
    /// has only a local route, but no interface has such an address.
    pub fn has_address(&self) -> bool {
        PortLink::on(&self.device.socket).has_gid
    }
}
