//! Devices that come and go: [`AddressWatch`] notices that addresses leave their interfaces,
//! [`at_new_port`] that the process has created a device.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use super::port::Port;
use crate::io::link::{LinkWatch, PortLink};

/// A file that becomes readable when an interface or an address of the network namespace changes.
/// The change may concern another interface: [`Port::has_address`] returns the present state of a
/// port.
#[derive(Debug)]
pub struct AddressWatch(LinkWatch);

impl AddressWatch {
    /// Opens the file. Returns `None` if the kernel refuses, as in sandboxes.
    pub fn open() -> Option<Self> {
        LinkWatch::open().map(Self)
    }

    /// Returns whether there was a change since the last call, without waiting.
    pub fn has_changed(&self) -> bool {
        self.0.has_changed()
    }
}

/// Readable after a change.
impl AsFd for AddressWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Port {
    /// Returns whether an interface has the port's address. A device also works on an address that
    /// has only a local route, but no interface has such an address.
    pub fn has_address(&self) -> bool {
        PortLink::on(self.address(), self.scope_id()).has_gid
    }
}

/// Registers a function to run when the process has created a device and [`Port::all`] includes it.
/// Only the first registration counts. The function runs in the thread creating the device, above
/// calls of this module, so it must neither wait for a lock nor call this module.
pub fn at_new_port(notice: fn()) {
    let _ = NOTICE.set(notice);
}

/// Reports a new device.
pub(crate) fn report_new() {
    if let Some(notice) = NOTICE.get() {
        notice();
    }
}

static NOTICE: OnceLock<fn()> = OnceLock::new();
