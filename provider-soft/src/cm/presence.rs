//! Devices that come and go: [`AddressWatch`] notices that addresses leave their interfaces, and
//! [`at_new_port`] that the process has made a device.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use super::port::Port;
use crate::link::{LinkWatch, PortLink};

/// A file that becomes readable when an interface or an address of the network namespace changes.
/// The change may be one of another interface: [`Port::has_address`] has the present state of a
/// port.
#[derive(Debug)]
pub struct AddressWatch(LinkWatch);

impl AddressWatch {
    /// Opens the file; returns `None` where the kernel refuses one (sandboxes do).
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
    /// Returns whether an interface has the port's address. An address of a local route alone is
    /// no interface's, although a device works on it.
    pub fn has_address(&self) -> bool {
        PortLink::on(self.address(), self.scope_id()).has_gid
    }
}

/// Registers the function that runs when the process has made a device, and [`Port::all`] has it.
/// The first function stays. It runs in the thread that makes the device, above calls of this
/// module, so that it must neither wait for a lock nor call this module.
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
