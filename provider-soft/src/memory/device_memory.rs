//! [`DeviceMemory`]: an allocation of device memory, and the [`Budget`] from which it is taken.
//!
//! Every access by a region or a copy goes through the one [`ExposedBytes`] of the whole
//! allocation. All accesses to a byte thus have the same size, so none of them race.
//!
//! # Safety
//! The allocation belongs to [`DeviceMemory`] alone and is freed with its last owner. Regions are
//! owners, so the bytes live as long as any key.
//!
//! # References
//! `ibv_alloc_dm(3)`
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use verbs_core::Cause;
use verbs_core::exposed::ExposedBytes;

/// An allocation of device memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    /// The accessor for all bytes of the allocation, whose length is rounded up to whole words.
    pub(crate) bytes: ExposedBytes,
    start: *mut u8,
    layout: Layout,
    length: u64,
    budget: Arc<Budget>,
}

// SAFETY: `start` blocked the auto impl. Until the last owner frees it, the memory is accessed only
// through `bytes`, whose accesses are atomic.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates `length` bytes of zeroed memory. Returns `None` if the budget or the process has
    /// too little memory left.
    pub(crate) fn new(length: u64, align: usize, budget: &Arc<Budget>) -> Option<Self> {
        let size = usize::try_from(length).ok()?.checked_next_multiple_of(WORD)?;
        let layout = Layout::from_size_align(size, align.max(WORD)).ok().filter(|_| length > 0)?;
        budget.take(length)?;
        // SAFETY: the size is not zero, because the length is not.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            budget.put_back(length);
            return None;
        }
        // SAFETY: the bytes were just allocated with this size. The value lives as long as the
        // bytes, and its copies only as long as a borrow of it; nothing else accesses the bytes.
        let bytes = unsafe { ExposedBytes::new(start, size) };
        Some(Self { bytes, start, layout, length, budget: Arc::clone(budget) })
    }

    /// Returns the requested length, in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; this was the last owner.
        unsafe { dealloc(self.start, self.layout) };
        self.budget.put_back(self.length);
    }
}

/// A device's budget of unallocated device memory, and the number of the next allocation. A region
/// that is never deregistered keeps its memory allocated, but does not keep the device alive.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    free: AtomicU64,
    handles: AtomicU32,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, free: AtomicU64::new(total), handles: AtomicU32::new(1) })
    }

    /// Returns a new number for an allocation.
    pub(crate) fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    fn take(&self, length: u64) -> Option<()> {
        let less = |free: u64| free.checked_sub(length);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok().map(drop)
    }

    fn put_back(&self, length: u64) {
        self.free.fetch_add(length, Ordering::Relaxed);
    }

    /// Returns the cause to report for a failed allocation.
    pub(crate) fn shortage(&self) -> Cause {
        let (free, total) = (self.free.load(Ordering::Relaxed), self.total);
        Cause::Other { reason: format!("{free} of the device's {total} bytes are free").into() }
    }
}

/// The size of an atomic access, in bytes.
const WORD: usize = 8;
