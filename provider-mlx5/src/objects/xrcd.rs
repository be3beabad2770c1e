//! [`Xrcd`]: the XRC domain.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs_core::provider::{Destroy, XrcdOps};
use verbs_core::{Error, Result, cmd};

use crate::device::Device;

/// An XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    device: Arc<Device>,
    handle: u32,
}

impl Xrcd {
    pub(crate) fn open(device: &Arc<Device>, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<Self> {
        let handle = cmd::xrcd::open_xrcd(device.kernel.uverbs(), file, oflags)?;
        Ok(Self { device: Arc::clone(device), handle })
    }
}

impl XrcdOps for Xrcd {
    fn handle(&self) -> u32 {
        self.handle
    }
}

impl Destroy for Xrcd {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match cmd::xrcd::close_xrcd(self.device.kernel.uverbs(), self.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}
