//! [`Memic`]: device memory. Memory keys give work requests access to it; programs copy to and from
//! it with loads and stores.
//!
//! ```text
//! BAR 0:  registers, UAR pages │ MEMIC_START ... MEMIC_START + MEMIC_SIZE │ nothing
//!                                       └── areas, from ALLOC_MEMIC to DEALLOC_MEMIC
//! ```
//! Addresses are offsets in BAR 0, as in commands and memory keys.
//!
//! A new area is filled with [`FRESH`], because no specification guarantees zeros. The area lies as
//! near the end of the driver's range as possible, so that a provider fails if it ignores the
//! offset in the page.
//!
//! Invariant: areas do not overlap, and the range of every memory key lies within one area.
//!
//! # References
//! Linux `drivers/infiniband/hw/mlx5/dm.c`; `ibv_alloc_dm(3)`

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::{MEMIC_SIZE, MEMIC_START};

/// Unit of sizes and alignments, log2 of the number of bytes.
pub(crate) const LOG_UNIT: u32 = 6;
/// Maximum alignment in units, log2. This is the alignment of a page, and the driver passes ranges
/// of whole pages.
pub(crate) const LOG_MAX_ALIGNMENT: u32 = 6;
/// Maximum size of an area, in bytes, as on a ConnectX-5.
pub(crate) const MAX_AREA: u32 = 128 << 10;
/// Initial value of every byte in a new area.
pub(crate) const FRESH: u8 = 0xa5;
/// Size of the smallest access by a processor, in bytes.
pub(crate) const WORD: usize = 4;

/// Device memory. All clones access the same memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memic(Arc<Mutex<BTreeMap<u64, Vec<u8>>>>);

impl Memic {
    fn areas(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of areas.
    pub(crate) fn len(&self) -> usize {
        self.areas().len()
    }

    /// Allocates an area of `len` bytes in a range of device memory. Returns the area's address, or
    /// `None` if the range lacks space.
    pub(crate) fn alloc(&self, range: &Range<u64>, len: u64, alignment: u64) -> Option<u64> {
        let mut areas = self.areas();
        let mut end = range.end;
        loop {
            let start = end.checked_sub(len)? / alignment * alignment;
            if start < range.start {
                return None;
            }
            let before = areas.range(..start + len).next_back();
            match before.filter(|(there, bytes)| **there + bytes.len() as u64 > start) {
                Some((there, _)) => end = *there,
                None => {
                    areas.insert(start, vec![FRESH; usize::try_from(len).ok()?]);
                    return Some(start);
                }
            }
        }
    }

    /// Returns the size of the area at this address, in bytes; `None` if no area begins there.
    pub(crate) fn size_of(&self, address: u64) -> Option<u64> {
        self.areas().get(&address).map(|bytes| bytes.len() as u64)
    }

    /// Frees the area that begins at this address.
    pub(crate) fn free(&self, address: u64) {
        self.areas().remove(&address);
    }

    /// Returns whether a range lies within one area.
    pub(crate) fn holds(&self, address: u64, len: u64) -> bool {
        let areas = self.areas();
        let area = areas.range(..=address).next_back();
        area.is_some_and(|(start, bytes)| {
            let rest = (bytes.len() as u64).checked_sub(address - start);
            rest.is_some_and(|rest| rest >= len)
        })
    }

    /// Copies bytes out of device memory; `None` if the range does not lie within one area.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        self.with(address, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    /// Copies bytes into device memory; `None` if the range does not lie within one area.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Option<()> {
        self.with(address, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    /// Applies `change` to the 8 bytes at `address` and returns the previous value. Values are in
    /// native byte order. Returns `None` if the bytes are misaligned or not in an area.
    pub(crate) fn word(&self, address: u64, change: impl FnOnce(u64) -> u64) -> Option<u64> {
        if !address.is_multiple_of(8) {
            return None;
        }
        self.with(address, 8, |bytes| {
            let old = u64::from_ne_bytes(*bytes.first_chunk()?);
            bytes.copy_from_slice(&change(old).to_ne_bytes());
            Some(old)
        })?
    }

    fn with<T>(&self, address: u64, len: usize, act: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut areas = self.areas();
        let (start, bytes) = areas.range_mut(..=address).next_back()?;
        let inside = usize::try_from(address - start).ok()?;
        bytes.get_mut(inside..inside.checked_add(len)?).map(act)
    }
}

/// Returns whether an offset in BAR 0 belongs to device memory.
pub(crate) fn contains(offset: u64) -> bool {
    (MEMIC_START..MEMIC_START + MEMIC_SIZE).contains(&offset)
}

#[cfg(test)]
mod tests;
