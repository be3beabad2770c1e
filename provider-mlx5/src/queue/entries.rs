//! [`Entries`]: the memory of a receive queue, either a queue pair's own or shared. All entries
//! have the same size, and each holds a list.
//!
//! # Safety
//! Entries are found by a masked number, so each one lies within the memory.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::sync::Arc;

use verbs_core::types::Sge;

use crate::queue::resources::QueueResources;
use crate::wqe::{self, UNIT};

/// The entries of a queue, at the start of its memory.
pub(crate) struct Entries {
    view: View,
    resources: Arc<QueueResources>,
}

/// The entries in a form a loop can keep in registers.
#[derive(Clone, Copy)]
pub(crate) struct View {
    start: NonNull<u8>,
    /// The number of entries minus one.
    mask: u32,
    /// The log2 of an entry's size in bytes.
    log_size: u32,
    /// The maximum number of elements in a list.
    room: u32,
}

// SAFETY: `start` blocked the auto impls. It points into the memory of `resources`, which are
// `Send + Sync` and live as long; entries are written by functions whose callers own them.
unsafe impl Send for Entries {}
// SAFETY: as for `Send`.
unsafe impl Sync for Entries {}

impl Entries {
    /// Returns `count` entries of `units` units each. In each entry, the list follows the first
    /// `head` units.
    ///
    /// # Panics
    /// If the entries do not lie within the memory, are not aligned to a unit, or have no space for
    /// a list; if `count` or `units` is not a power of two.
    pub(crate) fn new(count: u32, units: u32, head: u32, resources: Arc<QueueResources>) -> Self {
        assert!(count.is_power_of_two() && units.is_power_of_two(), "{count} entries of {units} units");
        assert!(units > head, "entries of {units} units");
        let start = resources.memory().region().pointer(0, count as usize * units as usize * UNIT);
        assert!(start.addr().get().is_multiple_of(UNIT), "a queue that is not aligned");
        let log_size = (units * UNIT as u32).trailing_zeros();
        Self { view: View { start, mask: count - 1, log_size, room: units - head }, resources }
    }

    /// Returns the resources of the queue's object.
    pub(crate) const fn resources(&self) -> &Arc<QueueResources> {
        &self.resources
    }

    /// Returns the number of entries.
    pub(crate) const fn count(&self) -> u32 {
        self.view.mask + 1
    }

    /// Returns the entries, valid while the queue lives.
    #[inline(always)]
    pub(crate) const fn view(&self) -> &View {
        &self.view
    }
}

impl View {
    /// Returns the address of an entry, given a number that keeps counting across the end of the
    /// queue.
    #[inline(always)]
    pub(crate) fn at(&self, number: u32) -> NonNull<u8> {
        // SAFETY: below the number of entries.
        unsafe { self.at_place(self.place(number)) }
    }

    /// Returns the index of an entry: its number modulo the number of entries.
    #[inline(always)]
    pub(crate) const fn place(&self, number: u32) -> usize {
        (number & self.mask) as usize
    }

    /// Returns the address of the entry at an index.
    ///
    /// # Safety
    /// The index is below the number of entries.
    #[inline(always)]
    pub(crate) unsafe fn at_place(&self, place: usize) -> NonNull<u8> {
        // SAFETY: the entries lie within the memory (`new`).
        unsafe { self.start.add(place << self.log_size) }
    }

    /// Stores a list with one non-empty element.
    ///
    /// # Safety
    /// `list` is the first unit after the head of an entry that no unfinished receive uses.
    #[inline(always)]
    pub(crate) unsafe fn put_one(&self, list: NonNull<u8>, sge: &Sge) {
        // SAFETY: the entry has room for one element (`new`) and for a terminator if its list can
        // be longer.
        unsafe {
            wqe::store(list, wqe::data(sge));
            if self.room > 1 {
                wqe::store(list.add(UNIT), wqe::TERMINATOR);
            }
        }
    }

    /// Stores a list without its empty elements, because for the device a length of 0 means 2^31.
    ///
    /// # Safety
    /// Same as [`put_one`](Self::put_one); the list has no more elements than fit into an entry.
    #[inline(always)]
    pub(crate) unsafe fn put_list(&self, list: NonNull<u8>, sges: &[Sge]) {
        let (mut at, mut left) = (list, self.room);
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            // SAFETY: the caller's promise.
            unsafe {
                wqe::store(at, wqe::data(sge));
                at = at.add(UNIT);
            }
            left -= 1;
        }
        if left > 0 {
            // SAFETY: a unit of the entry is left.
            unsafe { wqe::store(at, wqe::TERMINATOR) };
        }
    }
}
