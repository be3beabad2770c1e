//! [`Mr`]: memory of the caller's that the device knows.

use std::ops::{Bound, RangeBounds};

use verbs_core::Error;
use verbs_core::provider::{Erased, MrOps, NamedProvider, Provider};
use verbs_core::types::Sge;

use crate::live::Live;
use crate::registry::Child;

/// Memory of the caller's that the device knows, for raw posting. [`Buf`](crate::Buf) is the safe way.
///
/// # References
/// `ibv_reg_mr(3)`
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct Mr<P: Provider = Erased> {
    live: Live<P::Mr, Child>,
    addr: u64,
    length: usize,
}

impl<P: Provider> Mr<P> {
    pub(crate) const fn new(raw: P::Mr, pd: Child, addr: u64, length: usize) -> Self {
        Self { live: Live::new(raw, pd), addr, length }
    }

    /// The key for this process' own work requests.
    pub fn lkey(&self) -> u32 {
        self.live.get().lkey()
    }

    /// The key for peers, as far as the region has remote rights.
    pub fn rkey(&self) -> u32 {
        self.live.get().rkey()
    }

    /// Where it starts, as work requests and peers address it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// How long it is, in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// A part of it as a scatter/gather element.
    ///
    /// # Panics
    /// When the range is outside of the region, or longer than 4 GiB - 1.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let (offset, len) = within(range, self.length).expect("a range inside of the region");
        let length = u32::try_from(len).expect("at most 4 GiB - 1");
        Sge { addr: self.addr + offset as u64, length, lkey: self.lkey() }
    }

    /// The provider's own memory region, for what it has beyond verbs.
    pub fn raw(&self) -> &P::Mr {
        self.live.get()
    }

    /// Deregisters it. Dropping does the same, and leaks what the kernel refuses to take back.
    ///
    /// # Errors
    /// The region, and what the kernel answers.
    ///
    /// # References
    /// `ibv_dereg_mr(3)`
    #[doc(alias = "ibv_dereg_mr")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        let Self { live, addr, length } = self;
        live.close().map(drop).map_err(|(live, error)| (Self { live, addr, length }, error))
    }
}

impl Mr<Erased> {
    /// The same region with its provider named.
    ///
    /// # Errors
    /// The region, when it is of another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Mr<P>, Self> {
        let Self { live, addr, length } = self;
        match live.try_map(|raw| raw.downcast::<P::Mr>()) {
            Ok(live) => Ok(Mr { live, addr, length }),
            Err(live) => Err(Self { live, addr, length }),
        }
    }
}

/// Offset and length of a range, if it lies inside of `len`.
pub(crate) fn within(range: impl RangeBounds<usize>, len: usize) -> Option<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1)?,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then(|| (start, end - start))
}
