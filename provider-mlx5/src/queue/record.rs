//! [`SendRecord`], [`RecvRecord`] and [`SrqRecord`]: the requests in a queue, shared between its
//! poster and the poller of its completion queue. A completion names a request only by its position
//! in the queue.
//!
//! ```text
//!   poster   writes the slot ──► doorbell ──► device ──► completion ──► poller   reads the slot
//!   poster   reads the tail when the queue seems full ◄──────────────── poller   moves the tail
//! ```
//!
//! The poster writes a slot before it publishes the request, and writes the slot again only after
//! the poller has moved the tail past it. A queue pair gets new records on reset, so completions
//! from before the reset keep their `wr_id`s.
//!
//! The receives of a shared receive queue end in any order and in the completion queues of several
//! pollers. In place of a tail, its record has one bit per entry:
//!
//! ```text
//!   poster   wr_id ──► bit set ──► doorbell ──► device ──► completion ──► poller   reads the wr_id
//!   poster   finds clear bits behind its last entry ◄──────────────────── poller   clears the bit
//! ```
//!
//! A completion for an entry whose bit is clear is ignored. If a device completes a receive twice,
//! no other receive ends, and the entry is not freed again.
//!
//! # Safety
//! All fields are atomics, so a device that reports wrong positions causes wrong numbers but no
//! undefined behaviour. Slots are found by a masked index, which is below their number. The entries
//! returned by [`SrqRecord::free_behind`] are below the length of the queue.
#![allow(unsafe_code)]

use core::ops::RangeInclusive;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use crate::wqe::{control, opcode};

/// The slots of a queue; their number is a power of two.
#[derive(Debug)]
struct Slots<T> {
    slots: Box<[T]>,
    /// The number of slots minus one.
    mask: u32,
}

impl<T: Default> Slots<T> {
    /// Returns the size of `count` slots in bytes.
    const fn size(count: u32) -> usize {
        size_of::<T>() * count as usize
    }

    fn new(count: u32) -> Self {
        assert!(count.is_power_of_two(), "a queue has a power of two of slots");
        Self { slots: (0..count).map(|_| T::default()).collect(), mask: count - 1 }
    }
}

impl<T> Slots<T> {
    #[inline(always)]
    fn at(&self, index: u32) -> &T {
        self.view().at(index)
    }

    #[inline(always)]
    fn view(&self) -> View<'_, T> {
        View { slots: &self.slots, mask: self.mask }
    }
}

/// The slots of a queue, in a form that a loop can keep in registers.
#[derive(Debug)]
pub(crate) struct View<'a, T> {
    slots: &'a [T],
    mask: u32,
}

impl<'a, T> View<'a, T> {
    #[inline(always)]
    fn at(&self, index: u32) -> &'a T {
        // SAFETY: the masked index is below the number of slots (`Slots::new`).
        unsafe { self.slots.get_unchecked((index & self.mask) as usize) }
    }
}

impl View<'_, SendSlot> {
    /// Returns the `wr_id` and the kind of the request that starts at a block.
    #[inline(always)]
    pub(crate) fn request(&self, block: u16) -> (u64, Kind) {
        let slot = self.at(block.into());
        (slot.wr_id.load(Ordering::Relaxed), slot.kind())
    }
}

impl View<'_, AtomicU64> {
    /// Records the receive in an entry.
    ///
    /// # Safety
    /// The entry is below the number of slots.
    #[inline(always)]
    pub(crate) unsafe fn put_at(&self, entry: usize, wr_id: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.slots.get_unchecked(entry) }.store(wr_id, Ordering::Relaxed);
    }

    /// Returns the `wr_id` of the receive in an entry.
    #[inline(always)]
    pub(crate) fn receive(&self, entry: u16) -> u64 {
        self.at(entry.into()).load(Ordering::Relaxed)
    }
}

/// A request in a send queue, in the slot of its first basic block.
#[derive(Debug, Default)]
pub(crate) struct SendSlot {
    wr_id: AtomicU64,
    /// The number of requests since the queue was created or reset, up to and including this
    /// request.
    head: AtomicU32,
    /// The request's [`Kind`].
    kind: AtomicU32,
}

impl SendSlot {
    /// Records a request. `head` is the number of requests up to and including this request.
    #[inline(always)]
    pub(crate) fn put(&self, wr_id: u64, head: u32, kind: Kind) {
        self.wr_id.store(wr_id, Ordering::Relaxed);
        self.head.store(head, Ordering::Relaxed);
        self.kind.store(kind.0.into(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn kind(&self) -> Kind {
        Kind(self.kind.load(Ordering::Relaxed) as u8)
    }
}

/// The property of a request that a queue records in addition to the `wr_id`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kind(u8);

impl Kind {
    /// A request whose completion names the operation.
    pub(crate) const PLAIN: Self = Self(0);
    /// Same as `PLAIN`, with inline data.
    pub(crate) const INLINE: Self = Self(1);
    /// A read or an atomic. The completion reports the number of bytes fetched.
    pub(crate) const FETCH: Self = Self(2);
    /// A bind of a memory window. Its completion names the opcode that all operations on keys
    /// share.
    pub(crate) const BIND: Self = Self(3);
    /// The invalidation of a local key. Its completion is like the completion of a `BIND`.
    pub(crate) const INVALIDATE: Self = Self(4);
    /// A raw request from the program. The completion does not name the operation.
    pub(crate) const RAW: Self = Self(5);
    /// A message receive. The completion reports the length of the message.
    pub(crate) const RECEIVE: Self = Self(6);
    /// A frame receive, with checksums the device has verified.
    pub(crate) const FRAME: Self = Self(7);
    /// A tag matching operation. The completion names the operation.
    pub(crate) const TAG: Self = Self(8);
    /// Same as `TAG`, with the flag that requests the number of unexpected messages.
    pub(crate) const TAG_OUT_OF_STEP: Self = Self(9);

    /// Returns the kind for a request that transfers data.
    pub(crate) const fn of_data(opcode: u8, is_inline: bool) -> Self {
        match opcode {
            opcode::RDMA_READ | opcode::ATOMIC_CS | opcode::ATOMIC_FA => Self::FETCH,
            _ if is_inline => Self::INLINE,
            _ => Self::PLAIN,
        }
    }

    /// Returns whether the completion contains more than the operation that its opcode names.
    #[inline(always)]
    pub(crate) const fn has_more(self) -> bool {
        self.0 > Self::INLINE.0
    }

    /// Returns whether the completion does not fully describe its operation.
    #[inline(always)]
    pub(crate) const fn is_special(self) -> bool {
        self.0 > Self::FETCH.0
    }

    /// Returns whether the completion belongs to a tag matching operation.
    #[inline(always)]
    pub(crate) const fn is_of_tag(self) -> bool {
        self.0 >= Self::TAG.0
    }

    /// Returns the fence for the next request. The fence completes a change to a key before the key
    /// is used.
    pub(crate) const fn fence_behind(self) -> u8 {
        match self {
            Self::BIND | Self::INVALIDATE => control::INITIATOR_SMALL_FENCE,
            _ => 0,
        }
    }
}

/// The shift that turns a word with a slot number in its upper half into the slot's offset in
/// bytes.
const TO_PLACE: u32 = 12;

/// The requests in a send queue.
#[derive(Debug)]
pub(crate) struct SendRecord {
    slots: Slots<SendSlot>,
    /// The number of slots minus one, times the slot size: the mask for a slot's offset in bytes.
    place_mask: u32,
    /// The number of ended requests. Only the poller writes it.
    tail: AtomicU32,
}

impl SendRecord {
    /// Returns the size in bytes of the record for a queue with `blocks` basic blocks.
    pub(crate) const fn size(blocks: u32) -> usize {
        Slots::<SendSlot>::size(blocks)
    }

    /// Returns the record for a queue with `blocks` basic blocks, a power of two.
    pub(crate) fn new(blocks: u32) -> Arc<Self> {
        let place_mask = (blocks - 1) * size_of::<SendSlot>() as u32;
        Arc::new(Self { slots: Slots::new(blocks), place_mask, tail: AtomicU32::new(0) })
    }

    /// Returns the slot of the block whose number is in the upper half of a word. One shift
    /// extracts the number and scales it to the slot's offset.
    #[inline(always)]
    fn at_upper_half(&self, word: u32) -> &SendSlot {
        const { assert!(size_of::<SendSlot>() == 1 << (16 - TO_PLACE)) };
        let place = (word >> TO_PLACE) & self.place_mask;
        // SAFETY: the offset belongs to a slot within the slice (`new`).
        unsafe { NonNull::from(&*self.slots.slots).cast::<SendSlot>().byte_add(place as usize).as_ref() }
    }

    /// Records the request at a block. `head` is the number of requests up to and including this
    /// one.
    #[inline(always)]
    pub(crate) fn put(&self, block: u32, wr_id: u64, head: u32, kind: Kind) {
        self.slots.at(block).put(wr_id, head, kind);
    }

    /// Returns the slots, one per block, which live as long as the record.
    pub(crate) const fn slots(&self) -> &[SendSlot] {
        &self.slots.slots
    }

    /// Returns the number of ended requests. The poller has finished its accesses to their slots.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Returns the slots in a form that a loop can keep in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_, SendSlot> {
        self.slots.view()
    }

    /// Marks the request at a block and all requests before it as ended.
    #[inline(always)]
    pub(crate) fn end(&self, block: u16) {
        let head = self.slots.at(block.into()).head.load(Ordering::Relaxed);
        self.tail.store(head, Ordering::Release);
    }

    /// Marks the request at a block and all requests before it as ended. Returns the `wr_id` and
    /// the kind of the request at the block.
    pub(crate) fn complete(&self, block: u16) -> (u64, Kind) {
        self.complete_word(u32::from(block) << 16)
    }

    /// Same as [`complete`](Self::complete), for the block whose number is in the upper half of a
    /// word.
    #[inline(always)]
    pub(crate) fn complete_word(&self, word: u32) -> (u64, Kind) {
        let slot = self.at_upper_half(word);
        let request = (slot.wr_id.load(Ordering::Relaxed), slot.kind());
        // This store comes last, because the poster may then write the slot again.
        self.tail.store(slot.head.load(Ordering::Relaxed), Ordering::Release);
        request
    }

    /// Same as [`complete_word`](Self::complete_word), if the request at the block is of the kind
    /// `PLAIN` or `INLINE`; otherwise changes nothing and returns `None`.
    #[inline(always)]
    pub(crate) fn complete_plain(&self, word: u32) -> Option<u64> {
        let slot = self.at_upper_half(word);
        if slot.kind().has_more() {
            return None;
        }
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        self.tail.store(slot.head.load(Ordering::Relaxed), Ordering::Release);
        Some(wr_id)
    }

    /// Returns the recorded kind of the request at a block.
    pub(crate) fn kind(&self, block: u32) -> Kind {
        self.slots.at(block).kind()
    }

    /// Returns the number of requests since the queue was created or reset, up to and including the
    /// request at a block.
    pub(crate) fn head(&self, block: u32) -> u32 {
        self.slots.at(block).head.load(Ordering::Relaxed)
    }
}

/// The requests in a receive queue.
#[derive(Debug)]
pub(crate) struct RecvRecord {
    slots: Slots<AtomicU64>,
    /// The number of ended requests. Only the poller writes it.
    tail: AtomicU32,
}

impl RecvRecord {
    /// Returns the size in bytes of the record for a queue with `entries` entries.
    pub(crate) const fn size(entries: u32) -> usize {
        Slots::<AtomicU64>::size(entries)
    }

    /// Returns the record for a queue with `entries` entries, a power of two.
    pub(crate) fn new(entries: u32) -> Arc<Self> {
        Arc::new(Self { slots: Slots::new(entries), tail: AtomicU32::new(0) })
    }

    /// Records the request in an entry.
    #[inline(always)]
    pub(crate) fn put(&self, entry: u32, wr_id: u64) {
        self.slots.at(entry).store(wr_id, Ordering::Relaxed);
    }

    /// Returns the number of ended requests. The poller has finished its accesses to their slots.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Returns the slots in a form that a loop can keep in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_, AtomicU64> {
        self.slots.view()
    }

    /// Marks the next `count` requests as ended. Receives end in order.
    #[inline(always)]
    pub(crate) fn end(&self, count: u32) {
        self.tail.store(self.tail.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }

    /// Marks the request in an entry as ended and returns its `wr_id`.
    #[inline(always)]
    pub(crate) fn complete(&self, entry: u16) -> u64 {
        let wr_id = self.view().receive(entry);
        self.end(1);
        wr_id
    }
}

/// The receives in a shared receive queue. One thread posts them, and several may complete them.
#[derive(Debug)]
pub(crate) struct SrqRecord {
    slots: Slots<AtomicU64>,
    /// One bit per entry, set from the posting of its receive until the completion.
    posted: Box<[AtomicU64]>,
    /// The bits of a word that belong to entries: all bits unless the queue has fewer entries than
    /// a word has bits.
    word: u64,
}

/// The number of entries per word.
pub(crate) const WORD: u32 = u64::BITS;

/// Returns the bit that stands for an entry in a word of `posted`.
#[inline(always)]
pub(crate) const fn bit(entry: u32) -> u64 {
    1 << (entry % WORD)
}

impl SrqRecord {
    /// Returns the size in bytes of the record for a queue with `entries` entries.
    pub(crate) const fn size(entries: u32) -> usize {
        Slots::<AtomicU64>::size(entries) + size_of::<AtomicU64>() * entries.div_ceil(WORD) as usize
    }

    /// Returns the record for a queue with `entries` entries, a power of two.
    pub(crate) fn new(entries: u32) -> Arc<Self> {
        let posted = (0..entries.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect();
        let word = if entries < WORD { bit(entries) - 1 } else { u64::MAX };
        Arc::new(Self { slots: Slots::new(entries), posted, word })
    }

    /// Records a receive in an entry whose bit is clear.
    #[inline(always)]
    pub(crate) fn put(&self, entry: u32, wr_id: u64) {
        self.slots.at(entry).store(wr_id, Ordering::Relaxed);
    }

    /// Marks the receives whose bits are set in `bits` as posted, in the word that contains
    /// `entry`. Called before the receives are published to the device.
    #[inline(always)]
    pub(crate) fn mark(&self, entry: u32, bits: u64) {
        self.posted[(entry / WORD) as usize].fetch_or(bits, Ordering::Release);
    }

    /// Returns whether an entry has a receive.
    pub(crate) fn is_posted(&self, entry: u16) -> bool {
        let entry = u32::from(entry);
        let word = self.posted.get((entry / WORD) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) & bit(entry) != 0)
    }

    /// Marks the receive in an entry as ended and returns its `wr_id`; the poster may reuse the
    /// entry at once. Returns `None` if the entry has no receive.
    #[inline(always)]
    pub(crate) fn complete(&self, entry: u16) -> Option<u64> {
        let entry = u32::from(entry);
        let bit = bit(entry);
        let word = self.posted.get((entry / WORD) as usize)?;
        if word.load(Ordering::Acquire) & bit == 0 {
            return None;
        }
        let wr_id = self.slots.at(entry).load(Ordering::Relaxed);
        // The poster sees the bit clear only after the `wr_id` was read. If several threads
        // complete the same entry, only one of them clears the bit.
        let before = word.fetch_and(!bit, Ordering::Release);
        (before & bit != 0).then_some(wr_id)
    }

    /// Returns the first free entries after the given one, in queue order and across the end: a run
    /// of entries within one word, excluding the given entry. All of them are below the length of
    /// the queue, whatever completions a device reports.
    pub(crate) fn free_behind(&self, entry: u32) -> Option<RangeInclusive<u32>> {
        let (word, own) = (entry / WORD, bit(entry));
        let behind = !own & !(own - 1);
        let rest = (word + 1..self.posted.len() as u32).chain(0..word).map(|word| (word, u64::MAX));
        for (word, mask) in [(word, behind)].into_iter().chain(rest).chain([(word, own - 1)]) {
            let free = !self.posted[word as usize].load(Ordering::Acquire) & mask & self.word;
            if free != 0 {
                let first = free.trailing_zeros();
                let last = first + (free >> first).trailing_ones() - 1;
                return Some(word * WORD + first..=word * WORD + last);
            }
        }
        None
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

    #[test]
    fn a_receive_of_a_shared_queue_ends_once() {
        for entries in [1, 2, 64, 128, 1 << 16] {
            let record = SrqRecord::new(entries);
            let last = entries - 1;
            assert_eq!(record.complete(last as u16), None, "it has no receive yet");
            record.put(last, 7);
            record.mark(last, bit(last));
            assert_eq!(record.complete(last as u16), Some(7));
            assert_eq!(record.complete(last as u16), None, "{entries}");
        }
        let record = SrqRecord::new(2);
        assert_eq!([2, 63, 64, u16::MAX].map(|beyond| record.complete(beyond)), [None; 4]);
    }

    #[test]
    fn free_entries_are_found_behind_an_entry_and_across_the_end() {
        let record = SrqRecord::new(256);
        let free = |entry| record.free_behind(entry).map(RangeInclusive::into_inner);
        assert_eq!(free(0), Some((1, 63)));
        assert_eq!(free(63), Some((64, 127)));
        assert_eq!(free(255), Some((0, 63)));
        for word in 0..4 {
            record.mark(word * WORD, u64::MAX);
        }
        assert_eq!(free(100), None);
        for entry in [3, 70, 71, 73, 100, 127] {
            record.complete(entry);
        }
        for (entry, found) in [
            (2, (3, 3)),
            (3, (70, 71)),
            (70, (71, 71)),
            (71, (73, 73)),
            (73, (100, 100)),
            (99, (100, 100)),
            (100, (127, 127)),
            (127, (3, 3)),
            (255, (3, 3)),
        ] {
            assert_eq!(free(entry), Some(found), "behind {entry}");
        }
        for entry in [70, 71, 73, 100, 127] {
            record.mark(entry, bit(entry));
        }
        assert_eq!(free(3), None, "an entry is not behind itself");
    }

    #[test]
    fn a_queue_of_at_most_a_word_has_no_entries_beyond_its_end() {
        for entries in [2, 4, 8, 16, 32, 64] {
            let (record, last) = (SrqRecord::new(entries), entries - 1);
            assert_eq!(record.free_behind(0), Some(1..=last), "{entries}");
            assert_eq!(record.free_behind(last), Some(0..=last - 1), "{entries}");
            record.mark(0, bit(last) - 1);
            assert_eq!(record.free_behind(last), None, "{entries}");
        }
        assert_eq!(SrqRecord::new(1).free_behind(0), None);
    }
}
