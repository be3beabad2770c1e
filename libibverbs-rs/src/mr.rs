//! [`Mr`]: memory that the caller owns and the device knows.

use std::ops::{Bound, RangeBounds};

use verbs_core::provider::{Erased, MrOps, NamedProvider, Provider};
use verbs_core::types::Sge;

use crate::HandleError;
use crate::kernel_handle::KernelHandle;
use crate::registry::Child;

/// A memory region: memory that the caller owns and the device knows, for raw posting.
/// [`Buf`](crate::Buf) is the safe alternative.
///
/// # References
/// `ibv_reg_mr(3)`
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct Mr<P: Provider = Erased> {
    handle: KernelHandle<P::Mr, Child>,
    addr: u64,
    length: usize,
}

impl<P: Provider> Mr<P> {
    pub(crate) const fn new(raw: P::Mr, pd: Child, addr: u64, length: usize) -> Self {
        Self { handle: KernelHandle::new(raw, pd), addr, length }
    }

    /// Returns the key for work requests of this process.
    pub fn lkey(&self) -> u32 {
        self.handle.get().lkey()
    }

    /// Returns the key for peers. It gives them the remote rights of the region, if any.
    pub fn rkey(&self) -> u32 {
        self.handle.get().rkey()
    }

    /// Returns its first address, as used by work requests and peers.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns its length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns a part of it as a scatter/gather element.
    ///
    /// # Panics
    /// If the range lies outside the region, or is longer than 4 GiB - 1.
    #[doc(alias = "ibv_sge")]
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let (offset, len) = within(range, self.length).expect("a range inside the region");
        let length = u32::try_from(len).expect("at most 4 GiB - 1");
        Sge { addr: self.addr + offset as u64, length, lkey: self.lkey() }
    }

    /// Returns the provider's own memory region, for features beyond verbs.
    pub fn raw(&self) -> &P::Mr {
        self.handle.get()
    }

    /// Deregisters the region. Dropping does the same, and leaks a region that the kernel refuses
    /// to deregister.
    ///
    /// # Errors
    /// The region, and any errno that the kernel returns; notably `EBUSY` while memory windows are
    /// bound to it, `EIO` if the device fails to destroy it, and on rxe `ETIMEDOUT` if the kernel
    /// gave up waiting for its own references to the memory.
    ///
    /// # References
    /// `ibv_dereg_mr(3)`
    #[doc(alias = "ibv_dereg_mr")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let Self { handle, addr, length } = self;
        handle.close().map(drop).map_err(|failed| failed.map(|handle| Self { handle, addr, length }))
    }
}

impl Mr<Erased> {
    /// Returns the same region with its provider named.
    ///
    /// # Errors
    /// The region, when it belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Mr<P>, HandleError<Self>> {
        let Self { handle, addr, length } = self;
        match handle.try_map(|raw| raw.downcast::<P::Mr>()) {
            Ok(handle) => Ok(Mr { handle, addr, length }),
            Err(handle) => Err(HandleError::of_another_provider(Self { handle, addr, length })),
        }
    }
}

/// Returns the offset and the length of a range that lies inside `len`.
///
/// # Errors
/// The start and the end of a range that does not.
pub(crate) fn within(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), (usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1).ok_or((start, *last))?,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len.max(start),
    };
    if start <= end && end <= len { Ok((start, end - start)) } else { Err((start, end)) }
}
