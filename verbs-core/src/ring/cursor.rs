//! The ends of a single-producer single-consumer ring.
//!
//! ```text
//!            consumer                     producer
//!               ▼                            ▼
//!   ┌────┬────┬────┬────┬────┬────┬────┬────┬────┬────┐
//!   │    │    │ ▒▒ │ ▒▒ │ ▒▒ │ ▒▒ │ ▒▒ │ ▒▒ │    │    │   producer == consumer means empty
//!   └────┴────┴────┴────┴────┴────┴────┴────┴────┴────┘
//! ```
//!
//! Each end keeps its own index and publishes it with a release store. An end that reads the new
//! index with acquire sees every access to the slots published before it. Each end reads the other
//! end's index only when the cached value means "full" or "empty", so few cache lines move between
//! processors while the ring is busy.
//!
//! | other end | created by | indices | full with |
//! |---|---|---|---|
//! | the kernel or a device | `new` | slot numbers, in shared memory | all slots but one |
//! | another thread | `counting` | counts modulo 2³², in atomics | `capacity` values |
//!
//! The kernel determines the layout of a queue shared with it and may write wrong indices there.
//! Indices are masked after each load, so a wrong index can at worst cause a slot to be read too
//! early or twice, but never an access outside the ring. Threads of one process can choose any
//! capacity. They use counts, which do not repeat when the ring wraps.
//!
//! # Safety
//! A [`SharedIndex`] holds a pointer into a [`Region`], which it keeps alive. The pointer is
//! aligned for `u32` and accessed only as an atomic. The caller of [`Region::index`], the only
//! constructor, guarantees that no other code of this process accesses the four bytes in any other
//! way.
//!
//! Under `--cfg loom` an index is an atomic of the model checker instead. `tests/loom.rs` runs the
//! ring under every interleaving, with the orderings below.
#![allow(unsafe_code)]

use core::fmt;
#[cfg(not(loom))]
use core::ptr::NonNull;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

use super::Region;

/// An index in shared memory: published with release, read with acquire.
pub struct SharedIndex {
    #[cfg(not(loom))]
    pointer: NonNull<u32>,
    #[cfg(loom)]
    word: std::sync::Arc<AtomicU32>,
    _region: Region,
}

// SAFETY: `pointer` blocked the auto impls. It points into `_region`, which is `Send + Sync` and
// outlives it, and is only accessed atomically.
unsafe impl Send for SharedIndex {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedIndex {}

impl SharedIndex {
    /// Creates an index at `pointer`, which [`Region::index`] checked to be aligned and within
    /// `region`.
    #[cfg(not(loom))]
    pub(super) const fn new(region: Region, pointer: NonNull<u32>) -> Self {
        Self { pointer, _region: region }
    }

    /// Creates an index whose `word` replaces four bytes of `region`.
    #[cfg(loom)]
    pub(super) const fn new(region: Region, word: std::sync::Arc<AtomicU32>) -> Self {
        Self { word, _region: region }
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: aligned and within the region, which lives as long as `self`. The caller of
        // `Region::index` guarantees that this process accesses the four bytes through such atomics
        // alone. The other end's accesses are single aligned loads and stores of the kernel or a
        // device.
        unsafe { AtomicU32::from_ptr(self.pointer.as_ptr()) }
    }

    #[cfg(loom)]
    fn atomic(&self) -> &AtomicU32 {
        &self.word
    }
}

impl Index for SharedIndex {
    #[inline(always)]
    fn load_acquire(&self) -> u32 {
        self.atomic().load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store_release(&self, value: u32) {
        self.atomic().store(value, Ordering::Release);
    }
}

impl fmt::Debug for SharedIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedIndex({})", self.load_acquire())
    }
}

/// The published index of a ring end: a [`SharedIndex`], or another kind of shared word.
pub trait Index {
    /// Reads the other end's index. Afterwards, everything that the other end wrote before
    /// publishing it is visible.
    fn load_acquire(&self) -> u32;

    /// Publishes this end's index. Earlier reads and writes are done before the other end sees the
    /// index.
    fn store_release(&self, value: u32);
}

/// The producing end of a ring, which fills slots.
#[derive(Debug)]
pub struct Producer<I = SharedIndex> {
    own: I,
    other: I,
    /// The index of the next slot to fill. Slots before it are filled, but possibly not yet
    /// published.
    index: u32,
    /// The first index without a free slot, based on the consumer's index when it was last read.
    limit: u32,
    mask: u32,
    capacity: u32,
}

impl<I: Index> Producer<I> {
    /// Creates the producing end of a ring of `mask + 1` slots, where `mask + 1` is a power of two.
    pub fn new(producer: I, consumer: I, mask: u32) -> Self {
        Self::with(producer, consumer, mask, mask)
    }

    /// Creates the producing end of a ring of up to `capacity` values. The slots are counts, which
    /// the caller maps to memory locations.
    pub fn counting(producer: I, consumer: I, capacity: u32) -> Self {
        Self::with(producer, consumer, u32::MAX, capacity)
    }

    fn with(producer: I, consumer: I, mask: u32, capacity: u32) -> Self {
        let index = producer.load_acquire() & mask;
        let mut end = Self { own: producer, other: consumer, index, limit: 0, mask, capacity };
        end.update_limit();
        end
    }

    #[inline(always)]
    fn update_limit(&mut self) {
        self.limit = self.other.load_acquire().wrapping_add(self.capacity) & self.mask;
    }

    /// Returns the next slot to fill, or `None` if the ring is full.
    #[inline(always)]
    pub fn next_slot(&mut self) -> Option<u32> {
        if self.index == self.limit {
            self.update_limit();
            if self.index == self.limit {
                return None;
            }
        }
        Some(self.index)
    }

    /// Returns the slot after the last filled slot. In a [counting](Self::counting) ring, this is
    /// the number of all values filled since the start, modulo 2³².
    #[inline(always)]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Advances past the slot that [`next_slot`](Self::next_slot) returned. The caller must have
    /// filled the slot, which is not published yet.
    #[inline(always)]
    pub const fn advance(&mut self) {
        self.index = self.index.wrapping_add(1) & self.mask;
    }

    /// Publishes every filled slot to the other end.
    #[inline(always)]
    pub fn publish(&self) {
        self.own.store_release(self.index);
    }

    /// Removes the last `count` filled slots, except slots that are already published, and returns
    /// the number removed.
    pub fn rollback(&mut self, count: u32) -> u32 {
        let published = self.own.load_acquire() & self.mask;
        let count = count.min(self.index.wrapping_sub(published) & self.mask);
        self.index = self.index.wrapping_sub(count) & self.mask;
        count
    }

    /// Restarts from the current shared indices, after a queue pair was reset.
    pub fn resync(&mut self) {
        self.index = self.own.load_acquire() & self.mask;
        self.update_limit();
    }

    /// Returns the number of filled slots, published or not, that the other end has yet to empty.
    pub fn outstanding(&self) -> u32 {
        self.index.wrapping_sub(self.other.load_acquire()) & self.mask
    }

    /// Returns the maximum number of slots that can be filled at the same time.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Changes the maximum number of slots that can be filled at the same time, in a
    /// [counting](Self::counting) ring whose values have moved elsewhere in memory.
    pub fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.update_limit();
    }
}

/// The consuming end of a ring, which empties slots.
#[derive(Debug)]
pub struct Consumer<I = SharedIndex> {
    own: I,
    other: I,
    /// The index of the next slot to empty. Slots before it are read, but possibly not yet
    /// published.
    index: u32,
    /// The producer's index when it was last read.
    producer: u32,
    mask: u32,
}

impl<I: Index> Consumer<I> {
    /// Creates the consuming end of a ring of `mask + 1` slots, where `mask + 1` is a power of two.
    pub fn new(producer: I, consumer: I, mask: u32) -> Self {
        Self::with(producer, consumer, mask)
    }

    /// Creates the consuming end of a ring whose slots are counts, which the caller maps to memory
    /// locations.
    pub fn counting(producer: I, consumer: I) -> Self {
        Self::with(producer, consumer, u32::MAX)
    }

    fn with(producer: I, consumer: I, mask: u32) -> Self {
        let index = consumer.load_acquire() & mask;
        let seen = producer.load_acquire() & mask;
        Self { own: consumer, other: producer, index, producer: seen, mask }
    }

    /// Returns the next slot to empty, or `None` if the ring is empty.
    #[inline(always)]
    pub fn next_slot(&mut self) -> Option<u32> {
        if self.index == self.producer {
            self.producer = self.other.load_acquire() & self.mask;
            if self.index == self.producer {
                return None;
            }
        }
        Some(self.index)
    }

    /// Returns the next slots to empty, at most `wanted`: the first slot, the slot after the last,
    /// and the number of slots. The slots may wrap around the end of the ring. Reads the other
    /// end's index only once.
    #[inline(always)]
    pub fn next_slots(&mut self, wanted: usize) -> (u32, u32, usize) {
        self.producer = self.other.load_acquire() & self.mask;
        let there = self.producer.wrapping_sub(self.index) & self.mask;
        let count = wanted.min(there as usize);
        (self.index, self.index.wrapping_add(count as u32) & self.mask, count)
    }

    /// Returns the slot that follows `slot`.
    #[inline(always)]
    pub const fn behind(&self, slot: u32) -> u32 {
        slot.wrapping_add(1) & self.mask
    }

    /// Returns the slot that precedes `slot`.
    pub const fn before(&self, slot: u32) -> u32 {
        slot.wrapping_sub(1) & self.mask
    }

    /// Advances to `slot`. The caller must have read all earlier slots that
    /// [`next_slots`](Self::next_slots) returned.
    #[inline(always)]
    pub const fn advance_to(&mut self, slot: u32) {
        self.index = slot & self.mask;
    }

    /// Advances past the slot that [`next_slot`](Self::next_slot) returned. The caller must have
    /// read the slot, which the other end cannot reuse yet.
    #[inline(always)]
    pub const fn advance(&mut self) {
        self.index = self.index.wrapping_add(1) & self.mask;
    }

    /// Publishes every slot that has been read, so the other end can reuse it.
    #[inline(always)]
    pub fn publish(&self) {
        self.own.store_release(self.index);
    }

    /// Publishes every slot before `slot`, which must not lie beyond [`index`](Self::index). Slots
    /// from `slot` on stay in use.
    #[inline(always)]
    pub fn publish_to(&self, slot: u32) {
        self.own.store_release(slot);
    }

    /// Returns the slot after the last read slot.
    #[inline(always)]
    pub const fn index(&self) -> u32 {
        self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(slots: u32) -> (Producer, Consumer, Region) {
        let region = Region::plain(512);
        // SAFETY: the test has one thread, and no device acts on the slots.
        let index = |offset| unsafe { region.index(offset) };
        let producer = Producer::new(index(128), index(256), slots - 1);
        let consumer = Consumer::new(index(128), index(256), slots - 1);
        (producer, consumer, region)
    }

    #[test]
    fn a_ring_holds_one_less_than_its_slots() {
        let (mut producer, mut consumer, _) = ring(4);
        for slot in 0..3 {
            assert_eq!(producer.next_slot(), Some(slot));
            producer.advance();
        }
        assert_eq!(producer.next_slot(), None);
        assert_eq!(consumer.next_slot(), None, "nothing is seen before it is published");
        producer.publish();
        assert_eq!(consumer.next_slot(), Some(0));
        consumer.advance();
        assert_eq!(producer.next_slot(), None, "nothing is reused before it is published");
        consumer.publish();
        assert_eq!(producer.next_slot(), Some(3));
    }

    #[test]
    fn it_goes_round_and_keeps_the_order() {
        let (mut producer, mut consumer, _) = ring(8);
        for round in 0..100_u32 {
            for n in 0..1 + round % 7 {
                assert!(producer.next_slot().is_some(), "round {round}, {n}");
                producer.advance();
            }
            producer.publish();
            let mut seen = 0;
            while consumer.next_slot().is_some() {
                consumer.advance();
                seen += 1;
            }
            consumer.publish();
            assert_eq!(seen, 1 + round % 7);
        }
    }

    #[test]
    fn several_slots_are_emptied_at_once_round_the_end() {
        let (mut producer, mut consumer, _) = ring(4);
        for round in 0..10_u32 {
            for _ in 0..3 {
                producer.next_slot().unwrap();
                producer.advance();
            }
            let first = round * 3 % 4;
            let behind = |n| (first + n) % 4;
            assert_eq!(consumer.next_slots(8), (first, first, 0), "nothing is seen before it is published");
            producer.publish();
            assert_eq!(consumer.next_slots(2), (first, behind(2), 2));
            consumer.advance_to(behind(2));
            assert_eq!(consumer.next_slots(8), (behind(2), behind(3), 1));
            consumer.advance_to(consumer.behind(behind(2)));
            consumer.publish();
        }
    }

    #[test]
    fn what_was_rolled_back_is_never_seen_and_its_slots_are_filled_again() {
        for start in 0..8 {
            for kept in 0..=7 {
                for aborted in 0..=7 - kept {
                    let (mut producer, mut consumer, _) = ring(8);
                    let fill = |producer: &mut Producer, count: u32| -> Vec<Option<u32>> {
                        let slots = (0..count).map(|_| producer.next_slot().inspect(|_| producer.advance()));
                        slots.collect()
                    };
                    let slots = |from: u32, count: u32| -> Vec<Option<u32>> {
                        (from..from + count).map(|slot| Some(slot % 8)).collect()
                    };
                    // Move both ends to the start of the test.
                    for _ in 0..start {
                        fill(&mut producer, 1);
                        producer.publish();
                        assert!(consumer.next_slot().is_some());
                        consumer.advance();
                        consumer.publish();
                    }
                    fill(&mut producer, kept);
                    producer.publish();
                    assert_eq!(producer.rollback(u32::MAX), 0, "what was published stays");
                    fill(&mut producer, aborted);
                    assert_eq!(producer.rollback(u32::MAX), aborted, "from {start}, behind {kept}");
                    assert_eq!(producer.rollback(u32::MAX), 0, "it is taken back once");
                    producer.publish();
                    assert_eq!(consumer.next_slots(8), (start, (start + kept) % 8, kept as usize));
                    let room = 7 - kept;
                    assert_eq!(fill(&mut producer, room), slots(start + kept, room), "all room is back");
                    assert_eq!(producer.next_slot(), None);
                    producer.publish();
                    assert_eq!(consumer.next_slots(8), (start, (start + 7) % 8, 7));
                }
            }
        }
    }

    #[test]
    fn the_last_slots_are_rolled_back_and_those_before_them_stay() {
        for start in 0..8 {
            let (mut producer, mut consumer, _) = ring(8);
            let fill = |producer: &mut Producer, count: u32| {
                for _ in 0..count {
                    assert!(producer.next_slot().is_some());
                    producer.advance();
                }
            };
            // Move both ends to the start of the test.
            for _ in 0..start {
                fill(&mut producer, 1);
                producer.publish();
                consumer.advance();
                consumer.publish();
            }
            fill(&mut producer, 1);
            producer.publish();
            fill(&mut producer, 5);
            assert_eq!((producer.rollback(0), producer.rollback(2)), (0, 2));
            assert_eq!(producer.next_slot(), Some((start + 4) % 8));
            assert_eq!(consumer.next_slots(8).2, 1, "nothing is published by a rollback");
            producer.publish();
            assert_eq!(producer.rollback(1), 0, "what was published stays");
            assert_eq!(consumer.next_slots(8), (start, (start + 4) % 8, 4));
        }
    }

    #[test]
    fn slots_that_were_freed_meanwhile_stay_free_after_a_rollback() {
        let (mut producer, mut consumer, _) = ring(4);
        for _ in 0..2 {
            assert!(producer.next_slot().is_some());
            producer.advance();
        }
        producer.publish();
        assert_eq!(producer.next_slot(), Some(2));
        producer.advance();
        assert_eq!(producer.next_slot(), None);
        consumer.advance_to(2);
        consumer.publish();
        assert_eq!(producer.next_slot(), Some(3));
        producer.advance();
        assert_eq!(producer.rollback(u32::MAX), 2);
        for slot in [2, 3, 0] {
            assert_eq!(producer.next_slot(), Some(slot));
            producer.advance();
        }
        assert_eq!(producer.next_slot(), None);
    }

    #[test]
    fn an_index_from_memory_never_leads_outside() {
        let (mut producer, mut consumer, region) = ring(4);
        for hostile in [4, 5, 0x8000_0000, u32::MAX] {
            region.poke(128, hostile);
            region.poke(256, hostile);
            for _ in 0..8 {
                let (first, end, count) = consumer.next_slots(9);
                assert!(first < 4 && end < 4 && count < 4);
                if let Some(slot) = consumer.next_slot() {
                    assert!(slot < 4);
                    consumer.advance();
                }
                if let Some(slot) = producer.next_slot() {
                    assert!(slot < 4);
                    producer.advance();
                }
            }
            assert!(producer.rollback(u32::MAX) < 4);
            assert!(producer.next_slot().is_none_or(|slot| slot < 4));
        }
    }

    /// An index in an atomic shared by threads, for counting rings.
    #[derive(Clone, Debug)]
    struct Count(std::sync::Arc<AtomicU32>);

    impl Index for Count {
        fn load_acquire(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        fn store_release(&self, value: u32) {
            self.0.store(value, Ordering::Release);
        }
    }

    #[test]
    fn a_ring_that_counts_has_any_capacity_and_its_slots_go_on_across_the_wrap() {
        for start in [0, u32::MAX - 3] {
            let [tail, head] = [(); 2].map(|()| Count(std::sync::Arc::new(AtomicU32::new(start))));
            let mut producer = Producer::counting(tail.clone(), head.clone(), 3);
            let mut consumer = Consumer::counting(tail.clone(), head.clone());
            for first in (0..9).step_by(3).map(|n| start.wrapping_add(n)) {
                for n in 0..3 {
                    assert_eq!(producer.next_slot(), Some(first.wrapping_add(n)));
                    producer.advance();
                }
                assert_eq!((producer.next_slot(), producer.outstanding()), (None, 3));
                producer.publish();
                assert_eq!(tail.load_acquire(), producer.index());
                let end = first.wrapping_add(3);
                assert_eq!(consumer.next_slots(usize::MAX), (first, end, 3));
                consumer.advance_to(end);
                assert_eq!((consumer.index(), consumer.next_slot()), (end, None));
                consumer.publish_to(first.wrapping_add(1));
                assert_eq!(producer.next_slot(), Some(end), "one slot is free");
                producer.advance();
                assert_eq!((producer.next_slot(), producer.rollback(u32::MAX)), (None, 1));
                consumer.publish();
            }
            producer.set_capacity(4);
            (0..4).for_each(|_| producer.advance());
            assert_eq!(producer.next_slot(), None);
        }
    }
}
