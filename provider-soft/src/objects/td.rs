//! [`Td`]: a thread domain.
//!
//! Posting and polling take no lock here, so a thread domain changes nothing. The type exists so
//! that programs using thread domains keep working.

use std::sync::Arc;

use verbs_core::provider::{Destroy, TdOps};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::Device;
use crate::device::error::foreign;

/// A thread domain.
#[derive(Debug)]
pub struct Td {
    device: Arc<Device>,
    /// Cloned by each parent domain created with this thread domain.
    users: Arc<()>,
}

impl Td {
    pub(crate) fn alloc(device: &Arc<Device>) -> Result<Self> {
        device.check("alloc_td")?;
        Ok(Self { device: Arc::clone(device), users: Arc::default() })
    }

    /// Returns a reference that keeps this thread domain in use by a parent domain of this device.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for a thread domain of another device.
    pub(crate) fn share_on(&self, device: &Arc<Device>, verb: &'static str) -> Result<Arc<()>> {
        if Arc::ptr_eq(&self.device, device) {
            Ok(Arc::clone(&self.users))
        } else {
            Err(foreign(device, verb, "thread domain"))
        }
    }
}

impl TdOps for Td {}

impl Destroy for Td {
    fn destroy(self) -> Result<(), (Self, Error)> {
        if Arc::strong_count(&self.users) == 1 || self.device.is_forked() {
            return Ok(());
        }
        let by = "parent domains";
        let error = self.device.error("dealloc_td", Errno::BUSY).because(Cause::InUse { by });
        Err((self, error))
    }
}
