//! [`Mr`]: memory of the caller's that the device knows.

use std::ops::{Bound, RangeBounds};

use verbs_core::provider::{Erased, MrOps, NamedProvider, Provider};
use verbs_core::types::Sge;

use crate::HandleError;
use crate::kernel_handle::KernelHandle;
use crate::registry::Child;

/// Memory of the caller's that the device knows, for raw posting. [`Buf`](crate::Buf) is the safe
/// way.
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

    /// The key for this process' own work requests.
    pub fn lkey(&self) -> u32 {
        self.handle.get().lkey()
    }

    /// The key for peers, as far as the region has remote rights.
    pub fn rkey(&self) -> u32 {
        self.handle.get().rkey()
    }

    /// Where it starts, as work requests and peers address it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// How long it is, in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns a part of it as a scatter/gather element.
    ///
    /// # Panics
    /// When the range lies outside the region, or is longer than 4 GiB - 1.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let (offset, len) = within(range, self.length).expect("a range inside the region");
        let length = u32::try_from(len).expect("at most 4 GiB - 1");
        Sge { addr: self.addr + offset as u64, length, lkey: self.lkey() }
    }

    /// The provider's own memory region, for what it has beyond verbs.
    pub fn raw(&self) -> &P::Mr {
        self.handle.get()
    }

    /// Deregisters it. Dropping does the same, and leaks what the kernel refuses to take back.
    ///
    /// # Errors
    /// The region, and what the kernel answers.
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
    /// The same region with its provider named.
    ///
    /// # Errors
    /// The region, when it is of another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Mr<P>, Self> {
        let Self { handle, addr, length } = self;
        match handle.try_map(|raw| raw.downcast::<P::Mr>()) {
            Ok(handle) => Ok(Mr { handle, addr, length }),
            Err(handle) => Err(Self { handle, addr, length }),
        }
    }
}

/// Offset and length of a range, if it lies inside `len`.
///
/// # Errors
/// Start and end of the range, if not.
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
