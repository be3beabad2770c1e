//! [`SendRecord`] and [`RecvRecord`]: the requests in a queue, as its poster and the poller of its
//! completion queue know them. A completion names a request by its place in the queue alone.
//!
//! ```text
//!   poster   writes the slot ──► doorbell ──► device ──► completion ──► poller   reads the slot
//!   poster   reads the tail when the queue seems full ◄──────────────── poller   moves the tail
//! ```
//!
//! The poster writes a slot before it publishes the request, and again only after the poller has
//! moved the tail past it. A queue pair that is reset gets new records, so that completions from
//! before the reset keep their numbers.
//!
//! # Safety
//! All fields are atomics, so that a device which reports wrong places causes wrong numbers and no
//! undefined behaviour. Slots are found by a masked index, which is below their number.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use crate::wqe::control;

/// The slots of a queue: a power of two.
#[derive(Debug)]
struct Slots<T> {
    slots: Box<[T]>,
    /// Their number, less one.
    mask: u32,
}

impl<T: Default> Slots<T> {
    fn new(count: u32) -> Self {
        assert!(count.is_power_of_two(), "a queue has a power of two of slots");
        Self { slots: (0..count).map(|_| T::default()).collect(), mask: count - 1 }
    }

    #[inline(always)]
    fn at(&self, index: u32) -> &T {
        // SAFETY: the masked index is below the number of slots (`new`).
        unsafe { self.slots.get_unchecked((index & self.mask) as usize) }
    }
}

/// A request of a send queue, at its first basic block.
#[derive(Debug, Default)]
struct SendSlot {
    wr_id: AtomicU64,
    /// The number of requests in the queue's life up to this one, and the request's [`Kind`]
    /// in the upper half.
    head: AtomicU64,
}

/// A note of a queue about a request, beside its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(u8);

impl Kind {
    /// Its completion names the operation.
    pub(crate) const PLAIN: Self = Self(0);
    /// As `PLAIN`, with inline data.
    pub(crate) const INLINE: Self = Self(1);
    /// A bind of a memory window. The completion names the opcode of all operations on keys.
    pub(crate) const BIND: Self = Self(2);
    /// The invalidation of a key of this side, as `BIND`.
    pub(crate) const INVALIDATE: Self = Self(3);

    /// Returns the fence of the request behind this one: a change of a key ends before it is used.
    pub(crate) const fn fence_behind(self) -> u8 {
        match self {
            Self::BIND | Self::INVALIDATE => control::INITIATOR_SMALL_FENCE,
            _ => 0,
        }
    }
}

/// The requests of a send queue.
#[derive(Debug)]
pub(crate) struct SendRecord {
    slots: Slots<SendSlot>,
    /// The number of requests that have ended. The poller alone writes it.
    tail: AtomicU32,
}

impl SendRecord {
    /// Returns the record of a queue of `blocks` basic blocks, a power of two.
    pub(crate) fn new(blocks: u32) -> Arc<Self> {
        Arc::new(Self { slots: Slots::new(blocks), tail: AtomicU32::new(0) })
    }

    /// Records a request at a block. `head`: the number of requests up to it.
    #[inline(always)]
    pub(crate) fn put(&self, block: u32, wr_id: u64, head: u32, kind: Kind) {
        let slot = self.slots.at(block);
        slot.wr_id.store(wr_id, Ordering::Relaxed);
        slot.head.store(u64::from(kind.0) << 32 | u64::from(head), Ordering::Relaxed);
    }

    /// Returns the number of requests that have ended. What the poller did before is done.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Ends the request at a block, and with it all before it. Returns its number.
    #[inline(always)]
    pub(crate) fn complete(&self, block: u16) -> (u64, Kind) {
        let slot = self.slots.at(block.into());
        let (wr_id, head) = (slot.wr_id.load(Ordering::Relaxed), slot.head.load(Ordering::Relaxed));
        self.tail.store(head as u32, Ordering::Release);
        (wr_id, Kind((head >> 32) as u8))
    }

    /// Returns what is remembered of the request at a block.
    pub(crate) fn kind(&self, block: u32) -> Kind {
        Kind((self.slots.at(block).head.load(Ordering::Relaxed) >> 32) as u8)
    }
}

/// The requests of a receive queue.
#[derive(Debug)]
pub(crate) struct RecvRecord {
    slots: Slots<AtomicU64>,
    /// The number of requests that have ended. The poller alone writes it.
    tail: AtomicU32,
}

impl RecvRecord {
    /// Returns the record of a queue of `entries` entries, a power of two.
    pub(crate) fn new(entries: u32) -> Arc<Self> {
        Arc::new(Self { slots: Slots::new(entries), tail: AtomicU32::new(0) })
    }

    /// Records a request at an entry.
    #[inline(always)]
    pub(crate) fn put(&self, entry: u32, wr_id: u64) {
        self.slots.at(entry).store(wr_id, Ordering::Relaxed);
    }

    /// Returns the number of requests that have ended. What the poller did before is done.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Ends the request at an entry, and returns its number. Receives end in order.
    #[inline(always)]
    pub(crate) fn complete(&self, entry: u16) -> u64 {
        let wr_id = self.slots.at(entry.into()).load(Ordering::Relaxed);
        self.tail.store(self.tail.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        wr_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completed_send_ends_those_before_it() {
        let record = SendRecord::new(8);
        record.put(0, 10, 1, Kind::PLAIN);
        record.put(1, 11, 2, Kind::BIND);
        record.put(3, u64::MAX, 3, Kind::INVALIDATE);
        assert_eq!((record.complete(1), record.tail()), ((11, Kind::BIND), 2));
        assert_eq!((record.complete(3 + 8), record.tail()), ((u64::MAX, Kind::INVALIDATE), 3));
    }

    #[test]
    fn receives_end_one_by_one_across_the_end_of_the_counter() {
        let record = RecvRecord::new(2);
        record.tail.store(u32::MAX, Ordering::Relaxed);
        record.put(1, 5);
        assert_eq!((record.complete(u16::MAX), record.tail()), (5, 0));
    }
}
