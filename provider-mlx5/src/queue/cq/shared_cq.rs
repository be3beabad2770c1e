//! [`SharedCq`]: the part of a completion queue that other threads use while one thread polls it.
//! These threads announce queue pairs, their resets and their destruction.
//!
//! A user index belongs to a queue pair as long as the queue pair's completions may be in the
//! queue. The *life* of a queue pair ends with each reset and with its destruction. Once this is
//! confirmed, the device adds no more of its completions. The remaining completions lie before the
//! first entry the device has not written. The thread that ends the life finds that entry's index.
//! The poller skips the queue pair's completions before the index, and then switches to the new
//! queues for the index or drops the index.
//!
//! ```text
//!   consumer              end of the life             new life
//!      ▼                        ▼                        ▼
//!   ┌─────┬─────┬─────┬─────┬─────┬ ─ ─ ┬ ─ ─ ┬ ─ ─ ┐
//!   │ its │ oth │ its │ oth │     │ oth │ its │     │    the first "its" are skipped
//!   └─────┴─────┴─────┴─────┴─────┴ ─ ─ ┴ ─ ─ ┴ ─ ─ ┘
//! ```
//!
//! The poller reads the flag of pending changes after each completion: a completion of the new life
//! follows a doorbell, which follows the change.
//!
//! In a forked child whose parent was using this part, changes are discarded. The child cannot
//! create objects that complete to the queue, and completions of queue pairs it destroys are not
//! skipped.
//!
//! # Safety
//! The ring keeps its memory mapped and masks each index. The device writes entries at any time, so
//! the owner byte is a volatile read; the fields are read after that byte has shown that the device
//! is done with them.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use verbs_core::fork::{ForkGuard, ForkLock, Lost};
use verbs_core::ring::{Region, barrier};

use super::compression::CqeCompression;
use super::cqe::{self, CQE64, Cqe, cqe_opcode};
use super::table::Queues;
use crate::doorbell::Record;

/// A ring of completion queue entries in memory.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    /// The address of the first entry's fields.
    first: NonNull<u8>,
    log_stride: u32,
    /// The size of an entry, in bytes.
    stride: usize,
    mask: u32,
    /// The number of entries. The bit with this value in an index changes with each round.
    entries: u32,
    /// The format of [compressed](super::compressed) completions, if the queue has them.
    pub(super) compression: Option<CqeCompression>,
    _memory: Region,
}

// SAFETY: `first` blocked the auto impls. It points into `_memory`, which is `Send + Sync` and
// lives as long; entries are read by value.
unsafe impl Send for Ring {}
// SAFETY: as for `Send`.
unsafe impl Sync for Ring {}

/// The mask for a doorbell record's counter, which has 24 bits.
pub(super) const COUNTER: u32 = 0xff_ffff;

impl Ring {
    /// Returns a ring of `entries` entries of `stride` bytes at the start of a region. Marks each
    /// entry as unwritten.
    ///
    /// # Safety
    /// The device does not use the memory yet, and no other code in this process accesses it while
    /// the ring lives.
    ///
    /// # Panics
    /// Panics if the ring does not lie within the region, `entries` is not a power of two of at
    /// most 2^22, or `stride` is neither 64 nor 128.
    pub(crate) unsafe fn new(memory: Region, entries: u32, stride: usize) -> Self {
        assert!(entries.is_power_of_two() && entries <= 1 << 22, "{entries} entries");
        assert!(stride == CQE64 || stride == 2 * CQE64, "entries of {stride} bytes");
        let base = memory.pointer(0, entries as usize * stride);
        assert!(base.addr().get().is_multiple_of(align_of::<u64>()), "a queue that is not aligned");
        // SAFETY: the fields are the last 64 bytes of the first entry.
        let first = unsafe { base.add(stride - CQE64) };
        let ring = Self {
            first,
            log_stride: stride.trailing_zeros(),
            stride,
            mask: entries - 1,
            entries,
            compression: None,
            _memory: memory,
        };
        for index in 0..entries {
            // SAFETY: inside an entry, not yet accessed by other code.
            unsafe { ring.fields(index).add(cqe::at::OP_OWN).write_volatile(cqe::FRESH) };
        }
        ring
    }

    /// Returns the number of entries minus one.
    pub(crate) const fn mask(&self) -> u32 {
        self.mask
    }

    /// Returns the size of an entry, in bytes.
    pub(super) const fn stride(&self) -> usize {
        self.stride
    }

    #[inline(always)]
    pub(super) fn fields(&self, index: u32) -> NonNull<u8> {
        // SAFETY: the masked index is below the number of entries, which lie within the memory
        // (`new`).
        unsafe { self.first.add(((index & self.mask) as usize) << self.log_stride) }
    }

    /// Returns the address of the fields of the entry at an index, the entry's last byte, and the
    /// device's owner bit in this round.
    #[inline(always)]
    pub(super) fn peek(&self, index: u32) -> (NonNull<u8>, u8, u8) {
        // SAFETY: as in `fields`. A multiplication takes one instruction and a shift two.
        let fields = unsafe { self.first.add((index & self.mask) as usize * self.stride) };
        // SAFETY: inside an entry; the byte is read by value.
        let op_own = unsafe { fields.add(cqe::at::OP_OWN).read_volatile() };
        (fields, op_own, u8::from(index & self.entries != 0))
    }

    /// Returns the address of the fields of the entry at an index, the number of entries up to the
    /// end of the ring, and the device's owner bit for those entries.
    #[inline(always)]
    pub(super) fn stretch(&self, index: u32) -> (NonNull<u8>, usize, u8) {
        let place = index & self.mask;
        let round = u8::from(index & self.entries != 0);
        (self.fields(index), (self.entries - place) as usize, round)
    }

    /// Returns log2 of the distance between entries in bytes.
    #[inline(always)]
    pub(super) const fn log_stride(&self) -> u32 {
        self.log_stride
    }

    /// Returns the entry at an index if the device has written it in this round.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> Option<Cqe<'_>> {
        let (fields, op_own, round) = self.peek(index);
        if op_own & cqe::OWNER != round || op_own >> 4 == cqe_opcode::INVALID {
            return None;
        }
        barrier::from_device();
        // SAFETY: the device has handed the entry over.
        Some(unsafe { Cqe::new(fields) })
    }

    /// Copies the entry at index `from` to index `to` of another ring, and sets the copy's owner
    /// bit for the new index.
    pub(super) fn copy(&self, from: u32, to_ring: &Self, to: u32) {
        let stride = self.stride.min(to_ring.stride);
        let (source, target) = (self.fields(from), to_ring.fields(to));
        let round = u8::from(to & to_ring.entries != 0);
        // SAFETY: the fields end at the end of an entry, which has at least `stride` bytes before
        // it. The rings are separate memory, and the device writes neither entry now.
        unsafe {
            let before = stride - CQE64;
            core::ptr::copy_nonoverlapping(source.sub(before).as_ptr(), target.sub(before).as_ptr(), stride);
            let op_own = target.add(cqe::at::OP_OWN);
            op_own.write_volatile(op_own.read_volatile() & !cqe::OWNER | round);
        }
    }
}

/// A change to a queue pair, not yet applied by the poller.
#[derive(Debug)]
pub(crate) enum PendingChange {
    /// From now on, a queue pair completes to this queue.
    Begins { user_index: u32, queues: Queues },
    /// A queue pair was reset or destroyed. The poller skips the queue pair's completions before
    /// `until`, and then uses the new queues, if there are any.
    Ends { user_index: u32, until: u32, queues: Option<Queues> },
}

impl PendingChange {
    fn user_index(&self) -> u32 {
        match self {
            Self::Begins { user_index, .. } | Self::Ends { user_index, .. } => *user_index,
        }
    }
}

/// The changes not yet applied by the poller. The lock is held while this value exists.
pub(crate) struct Pending<'a>(&'a mut [PendingChange]);

impl Pending<'_> {
    /// Moves the indices in these changes forward by one, because the entries have moved by one.
    pub(super) fn move_on(&mut self) {
        for one in &mut *self.0 {
            if let PendingChange::Ends { until, .. } = one {
                *until = (*until + 1) & COUNTER;
            }
        }
    }
}

#[derive(Debug)]
struct Inner {
    changes: Vec<PendingChange>,
    ring: Ring,
}

/// The part of a completion queue that other threads use while one thread polls it.
#[derive(Debug)]
pub(crate) struct SharedCq {
    /// Whether changes are pending, or the poller must still skip completions because of applied
    /// changes.
    has_changes: AtomicBool,
    inner: ForkLock<Inner>,
    /// The consumer's index: the index of the first entry not yet returned to the device.
    pub(super) consumer: Record,
    /// Whether the completion queue was or is being destroyed.
    is_over: AtomicBool,
}

impl SharedCq {
    pub(super) fn new(ring: Ring, consumer: Record) -> Self {
        consumer.store(0);
        let inner = ForkLock::new(Inner { changes: Vec::new(), ring });
        Self { has_changes: AtomicBool::new(false), inner, consumer, is_over: AtomicBool::new(false) }
    }

    /// Sets whether the completion queue is destroyed. The caller holds
    /// [`Device::cqs`](crate::device::Device::cqs) for writing.
    pub(crate) fn set_over(&self, is_over: bool) {
        self.is_over.store(is_over, Ordering::Relaxed);
    }

    /// Returns whether the completion queue was or is being destroyed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns whether a thread of the parent process held the lock at the fork. The result never
    /// changes within a process.
    pub(crate) fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn inner(&self) -> Result<ForkGuard<'_, Inner>, Lost> {
        self.inner.lock()
    }

    /// Announces a queue pair to the poller. Called before the queue pair's first request.
    pub(crate) fn begin(&self, user_index: u32, queues: Queues) {
        if let Ok(mut inner) = self.inner() {
            self.announce(&mut inner, PendingChange::Begins { user_index, queues });
        }
    }

    /// Announces that a queue pair was destroyed, or reset with new queues. The kernel has
    /// confirmed this, and nothing was posted to the new queues yet.
    ///
    /// A queue pair without completions in the queue has at most one pending change, so the number
    /// of changes is limited even if the queue is never polled.
    pub(crate) fn end(&self, user_index: u32, queues: Option<Queues>) {
        let Ok(mut inner) = self.inner() else { return };
        let until = self.producer(&inner.ring);
        let Inner { changes, ring } = &mut *inner;
        let Some(last) = changes.iter().rposition(|one| one.user_index() == user_index) else {
            return self.announce(&mut inner, PendingChange::Ends { user_index, until, queues });
        };
        let is_in_queue = self.is_in_queue(ring, user_index, until);
        match (&mut changes[last], queues) {
            // The poller has not applied this change and no longer needs it.
            (PendingChange::Begins { .. }, None) if !is_in_queue => drop(changes.remove(last)),
            (PendingChange::Begins { queues: its, .. }, Some(queues)) if !is_in_queue => *its = queues,
            (PendingChange::Ends { queues: its, .. }, queues) if !is_in_queue => *its = queues,
            (_, queues) => self.announce(&mut inner, PendingChange::Ends { user_index, until, queues }),
        }
    }

    /// Returns whether a completion of a queue pair may be in the queue before the index `until`. A
    /// change to the queue pair is pending, so the poller cannot pass the queue pair's completions
    /// while the lock is held.
    fn is_in_queue(&self, ring: &Ring, user_index: u32, until: u32) -> bool {
        let mut place = self.consumer.load() & COUNTER;
        while ahead(until, place) != 0 {
            // An entry the poller has passed may have any contents, or none.
            let Some(entry) = ring.entry(place) else {
                place = (place + 1) & COUNTER;
                continue;
            };
            let places = ring.places(entry);
            if places > 1 || entry.user_index() == user_index {
                return true;
            }
            place = (place + places) & COUNTER;
        }
        false
    }

    fn announce(&self, inner: &mut Inner, change: PendingChange) {
        inner.changes.push(change);
        self.has_changes.store(true, Ordering::Release);
    }

    /// Returns the 24-bit index of the first entry the device has not written.
    fn producer(&self, ring: &Ring) -> u32 {
        let mut at = self.consumer.load() & COUNTER;
        loop {
            while let Some(entry) = ring.entry(at) {
                let places = ring.places(entry);
                if places > 1 && self.has_passed(at) {
                    // The poller has returned the entry, so the device may have written part of
                    // another block there, which looks like a title.
                    break;
                }
                at = (at + places) & COUNTER;
            }
            // The entry may have been polled and written again in the next round. In that case, the
            // poller has already moved its index.
            if !self.has_passed(at) {
                return at;
            }
            at = self.consumer.load() & COUNTER;
        }
    }

    /// Returns whether the poller has returned the entry at an index. The caller has already read
    /// the entry.
    fn has_passed(&self, at: u32) -> bool {
        barrier::from_device();
        ahead(self.consumer.load() & COUNTER, at) != 0
    }

    /// Returns whether changes may be pending. If read after a completion's owner bit, the result
    /// covers every change that can affect the completion.
    #[inline(always)]
    pub(super) fn has_changes(&self) -> bool {
        self.has_changes.load(Ordering::Acquire)
    }

    /// Replaces the ring, if `change` succeeds. During the call, no thread can announce a queue
    /// pair's end.
    pub(super) fn replace<E>(
        &self,
        new: &Ring,
        change: impl FnOnce(&mut Pending<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Ok(mut inner) = self.inner() else { return change(&mut Pending(&mut [])) };
        change(&mut Pending(&mut inner.changes))?;
        inner.ring = new.clone();
        Ok(())
    }

    /// Runs `work` on the ring. During the call, no thread can announce a queue pair's end or
    /// search the ring.
    pub(crate) fn locked(&self, work: impl FnOnce(&Pending<'_>)) {
        match self.inner() {
            Ok(mut inner) => work(&Pending(&mut inner.changes)),
            Err(Lost) => work(&Pending(&mut [])),
        }
    }

    /// Passes the pending changes to `look`. During the call, no thread can announce a queue pair's
    /// end.
    ///
    /// # Errors
    /// [`Lost`], without calling `look`, in a forked child whose parent held the lock.
    pub(crate) fn with_changes<T>(&self, look: impl FnOnce(&[PendingChange]) -> T) -> Result<T, Lost> {
        self.inner().map(|inner| look(&inner.changes))
    }

    /// Removes the pending changes and passes them to `more`, which returns whether the poller has
    /// to check again at the next completion.
    pub(crate) fn take(&self, more: impl FnOnce(Vec<PendingChange>) -> bool) {
        let mut inner = self.inner().ok();
        let more = more(inner.as_mut().map_or_else(Vec::new, |inner| core::mem::take(&mut inner.changes)));
        self.has_changes.store(more, Ordering::Release);
    }
}

/// Returns how far one 24-bit index lies ahead of another; 0 if it lies behind.
fn ahead(place: u32, of: u32) -> u32 {
    let distance = place.wrapping_sub(of) & COUNTER;
    if distance <= COUNTER / 2 { distance } else { 0 }
}

/// Returns the 32-bit index nearest to `near` whose low 24 bits are `until`.
pub(super) fn widen(until: u32, near: u32) -> u32 {
    let distance = until.wrapping_sub(near) << 8;
    near.wrapping_add_signed(distance.cast_signed() >> 8)
}
