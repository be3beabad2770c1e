//! [`PendingSet`]: the queue pairs, or the shared receive queues, whose rings hold work requests
//! not yet taken by the engine.
//!
//! Each queue has one lower bit, and each group of four words of lower bits has one upper bit, so
//! looking at an empty set reads one word. An inserting thread sets the lower bit first and then
//! the upper bit with release. A taking thread reads and clears the upper bits with acquire and
//! then the lower bits, so a taken upper bit never hides a lower bit. It skips zero words: a lower
//! bit set meanwhile has an upper bit that is not taken yet. The
//! [`CombiningLock`](crate::sync::combining_lock::CombiningLock) guarantees that some thread takes
//! every inserted slot.

use crate::sync::primitives::atomic::{AtomicU64, Ordering};

/// A set of slots, with one bit for each queue pair or shared receive queue.
#[derive(Debug)]
pub(crate) struct PendingSet {
    upper: AtomicU64,
    lower: Box<[AtomicU64]>,
}

/// The number of words that share one upper bit: half a cache line.
const GROUP: usize = 4;

impl PendingSet {
    /// The maximum number of slots.
    pub(crate) const MAX: usize = 64 * GROUP * 64;

    /// Returns an empty set for slots 0 to `slots - 1`.
    pub(crate) fn new(slots: usize) -> Self {
        assert!(slots <= Self::MAX);
        Self { upper: AtomicU64::new(0), lower: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Inserts a slot.
    #[inline]
    pub(crate) fn insert(&self, slot: usize) {
        self.lower[slot / 64].fetch_or(1 << (slot % 64), Ordering::Release);
        self.upper.fetch_or(1 << (slot / (64 * GROUP)), Ordering::Release);
    }

    /// Returns whether the set is empty, as far as this thread can see. A thread that has taken an
    /// announcement sees the slots inserted before it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.upper.load(Ordering::Acquire) == 0
    }

    /// Removes all slots and calls `each` with each of them, in ascending order.
    #[inline]
    pub(crate) fn take(&self, mut each: impl FnMut(usize)) {
        let mut upper = self.upper.swap(0, Ordering::Acquire);
        while upper != 0 {
            let first = upper.trailing_zeros() as usize * GROUP;
            upper &= upper - 1;
            for (at, word) in self.lower[first..].iter().take(GROUP).enumerate() {
                if word.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let mut lower = word.swap(0, Ordering::Acquire);
                while lower != 0 {
                    each((first + at) * 64 + lower.trailing_zeros() as usize);
                    lower &= lower - 1;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_inserted_slot_is_taken_once() {
        let pending = PendingSet::new(PendingSet::MAX);
        for slot in [PendingSet::MAX - 1, 0, 63, 64, 255, 256, 0] {
            pending.insert(slot);
        }
        let mut taken = Vec::new();
        pending.take(|slot| taken.push(slot));
        assert_eq!(taken, [0, 63, 64, 255, 256, PendingSet::MAX - 1]);
        pending.take(|slot| panic!("{slot} was taken twice"));
    }
}
