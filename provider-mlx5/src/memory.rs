//! [`QueueMemory`]: pages of this process that the device reads and writes as a queue.

use verbs_core::Errno;
use verbs_core::fork::Excluded;
use verbs_core::ring::{Region, page_size};

/// The memory of a queue, excluded from forks as registered memory is.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    _excluded: Excluded,
    region: Region,
}

impl QueueMemory {
    /// Allocates zeroed memory of at least `len` bytes, in pages of its own: the kernel pins whole
    /// pages.
    ///
    /// # Errors
    /// `ENOMEM`; the errno with which the pages cannot be excluded from forks.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let len = len.max(1).next_multiple_of(page_size());
        let region = Region::anonymous(len)?;
        let excluded = Excluded::new(region.pointer(0, len).as_ptr(), len)?;
        Ok(Self { _excluded: excluded, region })
    }

    /// Memory of a test, which no device knows.
    pub(crate) const fn of_test(region: Region) -> Self {
        Self { _excluded: Excluded::NONE, region }
    }

    /// Returns the bytes.
    pub(crate) const fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the address for the kernel's commands.
    pub(crate) fn address(&self) -> u64 {
        self.region.pointer(0, self.region.len()).addr().get() as u64
    }
}
