//! [`Xrcd`]: an XRC domain. All contexts of this process share the device's domain for a file.
//!
//! As in the kernel, a handle can be closed only after the queues created with it, whatever other
//! handles exist for the domain ([`xrc_domains`](crate::device::xrc_domains)).
//!
//! # References
//! `ibv_open_xrcd(3)`; IBTA volume 1, annex A14; Linux `drivers/infiniband/core/uverbs_cmd.c`
//! (`ib_uverbs_open_xrcd`, `uverbs_free_xrcd`)

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs_core::provider::{Destroy, XrcdOps};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::Device;
use crate::device::device_core::DeviceCore;
use crate::device::error::{foreign, refusal};
use crate::device::sink::InUse;
use crate::device::xrc_domains::{DomainFile, XrcHandle};

/// An XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    device: Arc<Device>,
    handle: XrcHandle,
}

impl Xrcd {
    /// Opens a new domain, or the domain associated with a file. The errnos match the kernel's.
    pub(crate) fn open(device: &Arc<Device>, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<Self> {
        const VERB: &str = "open_xrcd";
        let failed = |errno| device.error(VERB, errno);
        let file = file.map(DomainFile::from_file).transpose().map_err(failed)?;
        let handle = device.control(VERB, |DeviceCore { engine, domains, .. }, _| {
            let alloc_pd = || engine.alloc_pd().map_err(|refused| refusal(device, VERB, refused));
            domains.open(file, oflags, alloc_pd, failed)
        })?;
        Ok(Self { device: Arc::clone(device), handle })
    }

    /// Returns the handle and its domain's number in the engine, if the handle belongs to this
    /// device.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for an XRC domain of another device.
    pub(crate) fn handle_on(&self, device: &Arc<Device>, verb: &'static str) -> Result<XrcHandle> {
        if Arc::ptr_eq(&self.device, device) {
            Ok(self.handle)
        } else {
            Err(foreign(device, verb, "XRC domain"))
        }
    }
}

impl XrcdOps for Xrcd {
    fn handle(&self) -> u32 {
        self.handle.domain.0
    }
}

impl Destroy for Xrcd {
    fn destroy(self) -> Result<(), (Self, Error)> {
        const VERB: &str = "close_xrcd";
        if self.device.is_forked() {
            return Ok(());
        }
        let (device, handle) = (&self.device, self.handle);
        let closed = device.control(VERB, |core, _| {
            let last = core.domains.close(handle).map_err(|InUse| {
                let by = "shared receive queues or queue pairs";
                device.error(VERB, Errno::BUSY).because(Cause::InUse { by })
            })?;
            let Some((pd, file)) = last else { return Ok(None) };
            // The domain has no users left.
            let _ = core.engine.dealloc_pd(pd);
            Ok(file)
        });
        // The file is closed after the lock is released, because the last close may do I/O.
        closed.map(drop).map_err(|error| (self, error))
    }
}
