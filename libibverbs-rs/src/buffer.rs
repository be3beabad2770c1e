//! [`Buf`]: memory that a device knows and that this process owns, to be parked in queues.
//!
//! ```text
//!            alloc_buf                park_send, park_recv
//!   (none) ────────────► Buf (idle) ───────────────────────► parked in a queue pair
//!                         │  ▲  ▲                                  │
//!                  expose │  │  └──────────────────────────────────┘ reclaim(completion)
//!                         ▼  │ unexpose
//!                        Exposed
//! ```
//!
//! Invariant: the pieces of one allocation are disjoint, and each has exactly one owner. Who owns a `Buf` is the only one
//! who reads or writes its bytes; when the device may touch them, the `Buf` is inside of something that does not let it
//! out.
//!
//! # Safety
//! The unsafe code here registers memory and makes slices of it, on the invariant above. Numbers in brackets are those of
//! the contract of [`Provider`].

#![allow(unsafe_code)]

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut, RangeBounds};
use core::ptr::NonNull;
use core::{fmt, slice};
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};
use verbs_core::provider::{MrOps, Provider};
use verbs_core::types::{AccessFlags, Sge};
use verbs_core::{Errno, Error, Result};

use crate::live::Live;
use crate::mr::within;
use crate::pd::{Pd, PdId};
use crate::registry::{Child, Registry};

/// Memory that a device knows and that this process owns: a piece of an allocation, or all of it.
///
/// The device may read and write it when it is parked in a queue; peers may not touch it. Made by
/// [`Pd::alloc_buf`].
#[doc(alias = "ibv_mr")]
pub struct Buf {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

/// An allocation, and its registration.
struct Region {
    base: NonNull<u8>,
    lkey: u32,
    pd: PdId,
    devices: Arc<Registry>,
    /// Taken only when it is dropped or closed.
    registration: Box<dyn Registration>,
}

// SAFETY: `base` blocks the auto impl. It points at memory that `registration` owns, and each of its bytes is accessed
// only through the one `Buf` (or what holds that `Buf`) whose piece it lies in.
unsafe impl Send for Region {}
// SAFETY: as above; shared access to a region reads only its numbers.
unsafe impl Sync for Region {}

/// A provider's memory region and the memory below it: hides the provider, so that a queue's table has one type.
trait Registration: Send + Sync {
    fn deregister(self: Box<Self>) -> Result<(), (Box<dyn Registration>, Error)>;
}

/// Memory, and the protection domain that it is registered in.
struct Memory {
    _map: MmapRaw,
    _pd: Child,
}

impl<T: MrOps> Registration for Live<T, Memory> {
    fn deregister(self: Box<Self>) -> Result<(), (Box<dyn Registration>, Error)> {
        match self.close() {
            Ok(_) => Ok(()),
            Err((live, error)) => Err((Box::new(live), error)),
        }
    }
}

impl Buf {
    pub(crate) fn alloc<P: Provider>(pd: &Pd<P>, len: usize) -> Result<Self> {
        let registry = pd.context().registry();
        let no_memory = |error: std::io::Error| registry.error("alloc_buf", Errno::from_io(&error));
        // While the provider's code runs, unwinding must not unmap memory for which it may have made a key.
        let map = ManuallyDrop::new(MmapRaw::from(MmapMut::map_anon(len.max(1)).map_err(no_memory)?));
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is nowhere near address 0");
        // SAFETY: the mapping is fresh and stays until `Live` saw the region deregistered, or registering failed [18]; from
        // here on its bytes are accessed through `base` only, by the rules of this module.
        let raw = unsafe {
            let iova = base.as_ptr().expose_provenance() as u64;
            pd.register(base.as_ptr(), len, iova, AccessFlags::LOCAL_WRITE)
        };
        let map = ManuallyDrop::into_inner(map);
        let raw = raw?;
        let lkey = raw.lkey();
        let memory = Memory { _map: map, _pd: pd.child_mr() };
        let region = Region {
            base,
            lkey,
            pd: pd.id(),
            devices: Arc::clone(registry),
            registration: Box::new(Live::new(raw, memory)),
        };
        Ok(Self { region: Arc::new(region), offset: 0, len })
    }

    /// How long it is, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is it of no length?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address, as work requests name it.
    pub fn addr(&self) -> u64 {
        self.start().as_ptr().expose_provenance() as u64
    }

    /// The key for this process' own work requests. It covers the whole allocation.
    pub fn lkey(&self) -> u32 {
        self.region.lkey
    }

    /// Splits it in two: this keeps the bytes before `at`, the answer has those from `at` on.
    ///
    /// Both are of the same registration, and can be in different queues at the same time.
    ///
    /// # Panics
    /// When `at` is beyond the end.
    #[must_use = "the bytes from `at` on are in the answer"]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "split at {at}, but there are {} bytes", self.len);
        let tail = Self { region: Arc::clone(&self.region), offset: self.offset + at, len: self.len - at };
        self.len = at;
        tail
    }

    /// Undoes [`split_off`](Self::split_off): joins the piece that follows this one.
    ///
    /// # Errors
    /// The other piece, when it does not follow this one in the same allocation.
    pub fn unsplit(&mut self, tail: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.region, &tail.region) || self.offset + self.len != tail.offset {
            return Err(tail);
        }
        self.len += tail.len;
        Ok(())
    }

    /// Deregisters and frees the allocation. Dropping its last piece does the same, and leaks what the kernel refuses to
    /// take back.
    ///
    /// # Errors
    /// The buffer: [`Cause::InUse`](crate::Cause::InUse) while other pieces of the allocation live, or what the kernel
    /// answers.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        let Self { region, offset, len } = self;
        let region = match Arc::try_unwrap(region) {
            Ok(region) => region,
            Err(region) => {
                let error = region.devices.in_use("dereg_mr", "other pieces of the same allocation");
                return Err((Self { region, offset, len }, error));
            }
        };
        let Region { base, lkey, pd, devices, registration } = region;
        registration.deregister().map_err(|(registration, error)| {
            let region = Region { base, lkey, pd, devices, registration };
            (Self { region: Arc::new(region), offset, len }, error)
        })
    }

    pub(crate) fn pd(&self) -> PdId {
        self.region.pd
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: a piece lies within its allocation.
        unsafe { self.region.base.add(self.offset) }
    }

    /// A part of it as a scatter/gather element; `None` outside of it, or when it is too long for one.
    pub(crate) fn sge(&self, range: impl RangeBounds<usize>) -> Option<Sge> {
        let (offset, len) = within(range, self.len)?;
        let length = u32::try_from(len).ok()?;
        Some(Sge { addr: self.addr() + offset as u64, length, lkey: self.region.lkey })
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the piece lies within a live mapping, zeroed when it was made; only this `Buf` gives access to it. It is
        // out of every queue, so no request names it that has not ended [3, 5, 9], and no peer reaches it [11, 12].
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the slice borrows this `Buf` mutably.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len)
            .field("lkey", &self.region.lkey)
            .finish_non_exhaustive()
    }
}
