//! [`Dm`]: device memory.
//!
//! A soft device has no separate memory. Its device memory is process memory reachable only by work
//! requests, peers and explicit copies:
//!
//! ```text
//!   Dm ─────────────────┬─► Arc<DeviceMemory> ─► share of the device's Budget
//!   Region of the engine┘
//! ```
//!
//! Copies are limited to multiples of 4 bytes, as on ConnectX, so programs that work here also work
//! on ConnectX.
//!
//! # References
//! `ibv_alloc_dm(3)`; rdma-core's `providers/mlx5/verbs.c` (`mlx5_access_dm`, the multiples of 4)

use std::os::fd::OwnedFd;
use std::sync::Arc;

use verbs_core::provider::{Destroy, DmOps};
use verbs_core::types::DmAttr;
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::error::{foreign, within};
use crate::device::{Device, limits};
use crate::memory::device_memory::DeviceMemory;

/// Device memory.
#[derive(Debug)]
pub struct Dm {
    device: Arc<Device>,
    handle: u32,
    memory: Arc<DeviceMemory>,
    /// Whether a forked child of the device's process allocated the memory. The child's own
    /// allocations are usable, but the parent's allocations exist in the child only as copies.
    is_of_child: bool,
}

impl Dm {
    /// Allocates zeroed device memory. As with a kernel device, a forked child can allocate device
    /// memory and copy it, but cannot register it.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`] for a length of 0, or a length or alignment above the
    ///   maximum.
    /// - `ENOMEM` if the device's or the process's memory is used up by other allocations.
    pub(crate) fn alloc(device: &Arc<Device>, attr: &DmAttr) -> Result<Self> {
        const VERB: &str = "alloc_dm";
        within(device, VERB, "length", attr.length, 1, limits::MAX_DM_SIZE)?;
        within(device, VERB, "log_align", attr.log_align.into(), 0, limits::MAX_DM_LOG_ALIGN.into())?;
        let memory = DeviceMemory::new(attr.length, 1 << attr.log_align, &device.dm)
            .ok_or_else(|| device.error(VERB, Errno::NOMEM).because(device.dm.shortage()))?;
        let handle = device.dm.next_handle();
        let is_of_child = device.is_forked();
        Ok(Self { device: Arc::clone(device), handle, memory: Arc::new(memory), is_of_child })
    }

    /// Returns the engine's region for `length` bytes of this memory at `offset`.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for memory of another device, with [`Cause::Range`] for
    /// bytes outside the memory.
    pub(crate) fn piece(
        &self,
        device: &Arc<Device>,
        verb: &'static str,
        offset: u64,
        length: u64,
    ) -> Result<Arc<DeviceMemory>> {
        if !Arc::ptr_eq(&self.device, device) {
            return Err(foreign(device, verb, "device memory"));
        }
        self.check(verb, offset, length)?;
        Ok(Arc::clone(&self.memory))
    }

    fn check(&self, verb: &'static str, offset: u64, length: u64) -> Result<()> {
        if !self.is_of_child {
            self.device.check(verb)?;
        }
        let total = self.memory.length();
        if offset.checked_add(length).is_some_and(|end| end <= total) {
            return Ok(());
        }
        let cause = Cause::Range { start: offset, end: offset.saturating_add(length), length: total };
        Err(self.device.error(verb, Errno::INVAL).because(cause))
    }

    /// Checks the range and granularity of a copy, and returns its offset.
    fn check_copy(&self, verb: &'static str, offset: u64, length: usize) -> Result<usize> {
        self.check(verb, offset, length as u64)?;
        if (offset | length as u64).is_multiple_of(GRANULE) {
            return Ok(offset as usize);
        }
        let reason = "offset and length of a copy are multiples of 4 bytes";
        Err(self.device.error(verb, Errno::INVAL).because(Cause::Other { reason: reason.into() }))
    }
}

impl DmOps for Dm {
    fn handle(&self) -> u32 {
        self.handle
    }

    fn length(&self) -> u64 {
        self.memory.length()
    }

    fn copy_to(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let offset = self.check_copy("memcpy_to_dm", offset, bytes.len())?;
        let written = self.memory.bytes.write(offset, bytes);
        debug_assert!(written, "the range was checked");
        Ok(())
    }

    fn copy_from(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let offset = self.check_copy("memcpy_from_dm", offset, bytes.len())?;
        let read = self.memory.bytes.read(offset, bytes);
        debug_assert!(read, "the range was checked");
        Ok(())
    }

    fn export_dmabuf_fd(&self) -> Result<OwnedFd> {
        const VERB: &str = "dm_export_dmabuf_fd";
        self.device.check(VERB)?;
        let reason = "memory of a soft device is memory of its process, and no dma-buf".into();
        Err(self.device.error(VERB, Errno::OPNOTSUPP).because(Cause::Other { reason }))
    }
}

impl Destroy for Dm {
    fn destroy(self) -> Result<(), (Self, Error)> {
        // Only registration adds owners, and it borrows `self`.
        if Arc::strong_count(&self.memory) == 1 || self.device.is_forked() {
            return Ok(());
        }
        let cause = Cause::InUse { by: "memory regions" };
        let error = self.device.error("free_dm", Errno::BUSY).because(cause);
        Err((self, error))
    }
}

/// The granularity of copies, in bytes.
const GRANULE: u64 = 4;
