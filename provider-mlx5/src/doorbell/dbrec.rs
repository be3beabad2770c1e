//! [`RecordPool`]: the memory for doorbell records. Each object has a 64-byte slot, so no two
//! objects share a cache line. The first 8 bytes of a slot hold two records.
//!
//! | object | first record | second record |
//! |---|---|---|
//! | queue pair | receives | sends |
//! | completion queue | consumer's index | request for an event |
//! | shared receive queue | receives | none |
//!
//! # Safety
//! A slot belongs to one object until the kernel has confirmed the object's destruction and the
//! object's queues are gone, because the device reads the records of existing objects.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_core::Errno;
use verbs_core::fork::ForkLock;
use verbs_core::ring::Region;

use crate::doorbell::Record;
use crate::memory::{Allocator, AllocatorMemory, QueueMemory, Resource};

/// The size of a slot, in bytes.
const SLOT: usize = 64;

/// The size of a slot's two records, in bytes.
const RECORDS: usize = 8;

/// The number of slots in a page, one per bit of a word.
const SLOTS: usize = 64;

/// The doorbell record slots of a context. Pages are kept until the context and all its objects are
/// gone.
#[derive(Debug, Default)]
pub(crate) struct RecordPool(ForkLock<Vec<Page>>);

#[derive(Debug)]
struct Page {
    memory: QueueMemory,
    /// One bit per slot, set while the slot is in use.
    used: u64,
}

impl RecordPool {
    /// Allocates a slot with zeroed doorbell records.
    ///
    /// # Errors
    /// `ENOMEM` if memory is short; any errno from excluding the pages from forks; `ENODEV` in a
    /// forked child whose parent was using the pool.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Slot, Errno> {
        let mut pages = self.0.lock()?;
        let page = match pages.iter().position(|page| page.used != u64::MAX) {
            Some(page) => page,
            None => {
                pages.push(Page { memory: QueueMemory::new(SLOTS * SLOT)?, used: 0 });
                pages.len() - 1
            }
        };
        let number = pages[page].used.trailing_ones() as usize;
        pages[page].used |= 1 << number;
        Ok(Slot {
            region: pages[page].memory.region().clone(),
            place: number * SLOT,
            home: Some((Arc::clone(self), page)),
            is_lent: AtomicBool::new(false),
            program: None,
        }
        .cleared())
    }

    /// Allocates zeroed doorbell records for an object of a parent domain, from the domain's
    /// allocator if it has one.
    ///
    /// # Errors
    /// Same as [`take`](Self::take); `ENOMEM` if the allocator has no memory.
    pub(crate) fn take_for(self: &Arc<Self>, allocator: Option<&Allocator>) -> Result<Slot, Errno> {
        if let Some(allocator) = allocator
            && let Some((region, program)) =
                AllocatorMemory::new(allocator, Resource::Records, RECORDS, RECORDS)?
        {
            let (is_lent, program) = (AtomicBool::new(false), Some(program));
            return Ok(Slot { region, place: 0, home: None, is_lent, program }.cleared());
        }
        self.take()
    }

    fn give_back(&self, page: usize, place: usize) {
        // A child whose parent was using the pool takes no more slots from the pool.
        if let Ok(mut pages) = self.0.lock() {
            pages[page].used &= !(1 << (place / SLOT));
        }
    }
}

/// A page stays mapped if the device uses any of its slots: the kernel identifies pages by address
/// and would confuse this page with a later page at the same address.
impl Drop for RecordPool {
    fn drop(&mut self) {
        let Ok(mut pages) = self.0.lock() else { return };
        for page in pages.drain(..).filter(|page| page.used != 0) {
            core::mem::forget(page);
        }
    }
}

/// The doorbell records of one object. Dropping this value returns them to the pool, unless the
/// device uses them.
#[derive(Debug)]
pub(crate) struct Slot {
    region: Region,
    place: usize,
    home: Option<(Arc<RecordPool>, usize)>,
    is_lent: AtomicBool,
    /// The program's memory, if used in place of the pool's memory.
    program: Option<Arc<AllocatorMemory>>,
}

impl Slot {
    /// The offset of the first record in a slot, in bytes.
    pub(crate) const FIRST: usize = 0;
    /// The offset of the second record in a slot, in bytes.
    pub(crate) const SECOND: usize = 4;

    /// Returns a slot at the start of a plain memory region, for a test.
    pub(crate) const fn of_test(region: Region) -> Self {
        Self { region, place: 0, home: None, is_lent: AtomicBool::new(false), program: None }
    }

    /// Zeroes the records before the device can read them. Otherwise the device would read an
    /// earlier object's counters, or old contents of the program's memory.
    fn cleared(self) -> Self {
        for record in [Self::FIRST, Self::SECOND] {
            // SAFETY: the slot was just taken, so nothing else accesses its records.
            unsafe { self.record(record) }.store(0);
        }
        self
    }

    /// Returns one of the slot's two records. The record keeps the memory alive, but does not keep
    /// the slot in use.
    ///
    /// # Safety
    /// Same as [`Record::new`]: the record's owner stores only the counters of the slot's object,
    /// and stops before the slot is dropped.
    pub(crate) unsafe fn record(&self, record: usize) -> Record {
        // SAFETY: the caller's promise.
        unsafe { Record::new(&self.region, self.place + record) }
    }

    /// Returns the slot's address, as passed in commands to the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.region.pointer(self.place, RECORDS).addr().get() as u64
    }

    /// Returns the address of the first record, for direct access.
    pub(crate) fn direct(&self) -> NonNull<u32> {
        self.region.pointer(self.place, RECORDS).cast()
    }

    /// Marks the slot as used by the device, once the kernel has created the slot's object.
    pub(crate) fn lend(&self) {
        self.is_lent.store(true, Ordering::Release);
        if let Some(program) = &self.program {
            program.set_known(true);
        }
    }

    /// Marks the slot as no longer used by the device, once the kernel has confirmed the
    /// destruction of the slot's object.
    pub(crate) fn take_back(&self) {
        self.is_lent.store(false, Ordering::Release);
        if let Some(program) = &self.program {
            program.set_known(false);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((pool, page)) = &self.home
            && !self.is_lent.load(Ordering::Acquire)
        {
            pool.give_back(*page, self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forked::is_true_in_child;

    #[test]
    fn a_slot_is_given_again_only_after_its_object_has_ended() {
        let pool = Arc::new(RecordPool::default());
        let first = pool.take().unwrap();
        first.lend();
        let address = first.address();
        assert!(address.is_multiple_of(SLOT as u64));
        drop(first);
        let second = pool.take().unwrap();
        assert_eq!(second.address(), address + SLOT as u64);
        // SAFETY: no other code has the record.
        unsafe { second.record(Slot::SECOND) }.store(7);
        // SAFETY: as above.
        let words = unsafe { second.region.read::<[u32; 3]>(second.place) };
        assert_eq!(words.map(u32::from_be), [0, 7, 0], "the second record is the second word");
        second.lend();
        second.take_back();
        drop(second);
        let third = pool.take().unwrap();
        assert_eq!(third.address(), address + SLOT as u64);
        // SAFETY: as above.
        assert_eq!(unsafe { third.record(Slot::SECOND) }.load(), 0);
    }

    #[test]
    fn a_full_page_is_followed_by_another() {
        let pool = Arc::new(RecordPool::default());
        let slots: Vec<Slot> = (0..=SLOTS).map(|_| pool.take().unwrap()).collect();
        let mut addresses: Vec<u64> = slots.iter().map(Slot::address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), SLOTS + 1);
    }

    #[test]
    fn a_child_takes_no_slot_while_its_parent_was_taking_one() {
        let pool = Arc::new(RecordPool::default());
        let slot = pool.take().unwrap();
        let _taking = pool.0.lock();
        assert!(is_true_in_child(|| {
            drop(slot);
            pool.take().is_err_and(|errno| errno == Errno::NODEV)
        }));
    }
}
