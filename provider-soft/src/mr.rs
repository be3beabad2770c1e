//! [`Mr`]: registered memory.
//!
//! # Safety
//! The caller's promise about the memory carries over to the engine's [`Region`], see
//! [`crate::memory`].
#![allow(unsafe_code)]

use std::sync::Arc;

use roce::engine::{Access, MemoryAttr};
use verbs_core::provider::{Destroy, MrOps};
use verbs_core::types::AccessFlags;
use verbs_core::{Cause, Errno, Error, Result, explain};

use crate::context::within;
use crate::device::Device;
use crate::mapped::{self, Inaccessible};
use crate::memory::Region;
use crate::pd::{destroyed, refusal};
use crate::{Pd, limits};

/// A memory region. Nothing is pinned: it is memory of this process, and is accessed by this
/// process.
#[derive(Debug)]
pub struct Mr {
    device: Arc<Device>,
    key: u32,
}

impl Mr {
    /// Registers memory.
    ///
    /// # Errors
    /// - `EINVAL` with the limit or the foreign object; `EOPNOTSUPP` for an unsupported access
    ///   right.
    /// - `EFAULT` with [`Cause::Inaccessible`].
    /// - `ENOMEM` where the device has no more regions; `ENODEV` in a forked child.
    ///
    /// # Safety
    /// As [`ContextOps::reg_mr`](verbs_core::provider::ContextOps::reg_mr).
    pub(crate) unsafe fn register(
        device: &Arc<Device>,
        pd: &Pd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        device.check("reg_mr")?;
        let pd = pd.of(device, "reg_mr")?;
        within(device, "reg_mr", "length", length as u64, 0, limits::device_attr(device.guid).max_mr_size)?;
        explain::region_access(access)
            .map_err(|cause| device.error("reg_mr", Errno::INVAL).because(cause))?;
        let lacking = access - AccessFlags::OPTIONAL_RANGE - SUPPORTED;
        if !lacking.is_empty() {
            return Err(device.error("reg_mr", Errno::OPNOTSUPP).because(Cause::Access { access: lacking }));
        }
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
        mapped::check(addr.addr() as u64, length as u64, access.intersects(WRITES)).map_err(|range| {
            let Inaccessible { start, end, lacks } = range;
            device.error("reg_mr", Errno::FAULT).because(Cause::Inaccessible { start, end, lacks })
        })?;
        let is_exposed = access.intersects(REMOTE);
        let access = Access((access & SUPPORTED).bits());
        let attr = MemoryAttr { pd, iova, length: length as u64, access };
        // SAFETY: the caller's promise holds while the region is registered, which it is until
        // `destroy`.
        let region = unsafe { Region::new(addr, length, is_exposed) };
        let key = device.control("reg_mr", |core, _| {
            core.engine.reg_mr(&attr, region).map_err(|refused| refusal(device, "reg_mr", refused))
        })?;
        Ok(Self { device: Arc::clone(device), key })
    }
}

impl MrOps for Mr {
    fn handle(&self) -> u32 {
        self.key
    }

    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }
}

impl Destroy for Mr {
    fn destroy(self) -> Result<(), (Self, Error)> {
        // With the lock held, no thread is in the middle of a copy.
        let key = self.key;
        destroyed(&self.device, "dereg_mr", |core| core.engine.dereg_mr(key).map(drop))
            .map_err(|error| (self, error))
    }
}

/// The rights that let peers access a region.
const REMOTE: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);

/// The rights with which memory is written.
const WRITES: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

/// The supported rights. They have the same bits in verbs and in the engine.
const SUPPORTED: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::ZERO_BASED);
