//! [`ring`]: a queue of plain values between one producer and one consumer. Each value has a list
//! of scatter/gather elements.
//!
//! All three kinds of queues of a device are such rings. The indices are cursors of
//! [`verbs_core::ring`], as in rings shared with the kernel. An index counts values; a value's slot
//! is its index modulo the ring's size:
//!
//! ```text
//!        head              consumer          tail           producer
//!         ▼                   ▼                ▼               ▼
//!   ──────┬───────────────────┬────────────────┬───────────────┬──────
//!   free  │ read, still in use│ published      │ written       │ free
//!   ──────┴───────────────────┴────────────────┴───────────────┴──────
//! ```
//!
//! | | producer | consumer | `head` moves when |
//! |---|---|---|---|
//! | send, receive queue | the posting thread | the lock holder | the work request was retired |
//! | completion queue | the lock holder | the polling thread | the completion is no longer in use |
//!
//! [`Published`] lets other threads read `tail` and `head`. A `Published` stays valid when the ring
//! of a completion queue is [replaced](replace).
//!
//! # Safety
//! The producer alone stores `tail`, the consumer alone `head`. Each stores with release after its
//! last access to the slots it hands over, and the other reads with acquire before its first
//! ([`Index`]). A ring has one [`Producer`] and one [`Consumer`], both changed only through `&mut`.
//! The producer touches only slots from `tail` to `head + capacity`, which its cursor returns. The
//! consumer touches only slots from `head` to `tail`. No slot belongs to both. Every slot touched
//! by the consumer has been completely written. [`replace`], which has both ends, writes the slots
//! of the new ring below `tail`. List elements are initialised from the start, so reading beyond a
//! list returns old elements, but never uninitialised memory.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use roce::engine::Sge;
use verbs_core::ring::Index;
use verbs_core::{ring as cursor, room};

use crate::sync::primitives::atomic::{AtomicU32, Ordering};
use crate::sync::primitives::{Arc, UnsafeCell};

/// The slots and lists of a ring.
struct Ring<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// The scatter/gather lists: `stride` elements for each slot.
    lists: Box<[UnsafeCell<Sge>]>,
    stride: usize,
    mask: u32,
}

/// An index shared by both ends, alone in two cache lines, because processors fetch cache lines in
/// pairs.
#[derive(Clone, Debug)]
struct SharedCount(Arc<CachePadded<AtomicU32>>);

impl SharedCount {
    fn new(count: u32) -> Self {
        Self(Arc::new(CachePadded(AtomicU32::new(count))))
    }
}

impl Index for SharedCount {
    #[inline(always)]
    fn load_acquire(&self) -> u32 {
        self.0.0.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store_release(&self, value: u32) {
        self.0.0.store(value, Ordering::Release);
    }
}

/// A value that shares no cache line with other values.
#[derive(Debug)]
#[repr(align(128))]
struct CachePadded<T>(T);

/// The total numbers of values published and freed, modulo 2³².
#[derive(Clone, Debug)]
pub(crate) struct Published {
    tail: SharedCount,
    head: SharedCount,
}

impl Published {
    /// Returns the number of published values, as seen by this thread. The thread then also sees
    /// these values.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.tail.load_acquire()
    }

    /// Returns the number of freed values, as seen by this thread.
    #[inline]
    pub(crate) fn freed(&self) -> u32 {
        self.head.load_acquire()
    }
}

// SAFETY: the cells blocked the auto impl. By the protocol above neither end touches the other's
// slots, so only values of `T` cross threads.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

/// Creates a ring for `capacity` values, each with up to `stride` elements, and returns its two
/// ends.
///
/// # Errors
/// [`NoMemory`] if the process has too little memory for these sizes.
pub(crate) fn ring<T: Copy>(capacity: u32, stride: usize) -> Result<(Producer<T>, Consumer<T>), NoMemory> {
    ring_in_use(capacity, stride, 0)
}

/// Creates a ring as [`ring`] does, with `in_use` slots counted as read and still in use. They
/// stand for values that the consumer still holds from another ring. Neither end touches these
/// slots before the consumer has freed them and the producer has written them.
///
/// # Errors
/// The errors of [`ring`].
pub(crate) fn ring_in_use<T: Copy>(
    capacity: u32,
    stride: usize,
    in_use: u32,
) -> Result<(Producer<T>, Consumer<T>), NoMemory> {
    debug_assert!(in_use <= capacity);
    let (tail, head) = (SharedCount::new(in_use), SharedCount::new(0));
    let (producer, mut consumer) = ends(Ring::new(capacity, stride)?, capacity, &tail, &head);
    consumer.cursor.advance_to(in_use);
    Ok((producer, consumer))
}

fn ends<T>(
    ring: Arc<Ring<T>>,
    capacity: u32,
    tail: &SharedCount,
    head: &SharedCount,
) -> (Producer<T>, Consumer<T>) {
    let producer = cursor::Producer::counting(tail.clone(), head.clone(), capacity);
    let consumer = cursor::Consumer::counting(tail.clone(), head.clone());
    let published = Published { tail: tail.clone(), head: head.clone() };
    let head = consumer.index();
    (
        Producer { ring: Arc::clone(&ring), cursor: producer },
        Consumer { ring, cursor: consumer, published, head },
    )
}

/// The slots of a new ring without a producer and consumer, for [`replace`].
pub(crate) struct Spare<T> {
    ring: Arc<Ring<T>>,
    capacity: u32,
}

impl<T> Spare<T> {
    /// Allocates slots for `capacity` values without lists.
    ///
    /// # Errors
    /// The errors of [`ring`].
    pub(crate) fn new(capacity: u32) -> Result<Self, NoMemory> {
        Ok(Self { ring: Ring::new(capacity, 0)?, capacity })
    }
}

/// Moves both ends of a ring, with the unread values, to other slots. The indices continue, so
/// [`Published`] does not change. Values already read are freed.
///
/// # Panics
/// Panics if the ends belong to different rings or to a ring with lists, if some written values are
/// unpublished, or if there are more values than slots. Each is a bug in the caller.
pub(crate) fn replace<T: Copy>(producer: &mut Producer<T>, consumer: &mut Consumer<T>, spare: Spare<T>) {
    let Spare { ring, capacity } = spare;
    assert!(Arc::ptr_eq(&producer.ring, &consumer.ring) && consumer.ring.stride == 0);
    assert!(producer.count() == consumer.published.count() && consumer.len() <= capacity);
    consumer.free_all();
    let mut index = consumer.head;
    while let Some(value) = consumer.next() {
        // SAFETY: no other thread has the new ring yet.
        ring.slots[(index & ring.mask) as usize].with_mut(|at| unsafe { (*at).write(*value) });
        index = index.wrapping_add(1);
    }
    consumer.cursor.advance_to(consumer.head);
    producer.cursor.set_capacity(capacity);
    producer.ring = Arc::clone(&ring);
    consumer.ring = ring;
}

impl<T> Ring<T> {
    fn new(capacity: u32, stride: usize) -> Result<Arc<Self>, NoMemory> {
        let slots = capacity.max(1).next_power_of_two();
        Ok(Arc::new(Self {
            slots: filled(slots as usize, || UnsafeCell::new(MaybeUninit::uninit()))?,
            lists: filled((slots as usize).saturating_mul(stride), || UnsafeCell::new(Sge::default()))?,
            stride,
            mask: slots - 1,
        }))
    }
}

/// The error for a failed allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoMemory {
    /// The size of the failed allocation, in bytes.
    pub(crate) bytes: u64,
}

/// Allocates a slice of `len` values.
fn filled<T>(len: usize, value: impl FnMut() -> T) -> Result<Box<[T]>, NoMemory> {
    let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
    room::filled(len, value).map(Vec::into_boxed_slice).map_err(|_| NoMemory { bytes })
}

/// The end that adds values.
pub(crate) struct Producer<T> {
    ring: Arc<Ring<T>>,
    cursor: cursor::Producer<SharedCount>,
}

impl<T: Copy> Producer<T> {
    /// Returns whether there is space for one more value.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.cursor.next_slot().is_some()
    }

    /// Writes a value and its list, still hidden from the consumer.
    ///
    /// # Panics
    /// Panics if the ring is full ([`has_room`](Self::has_room)) or the list is longer than the
    /// ring's stride. Either is a bug in the caller.
    #[inline]
    pub(crate) fn put(&mut self, value: T, list: impl ExactSizeIterator<Item = Sge>) {
        let slot = self.cursor.next_slot().expect("there is room");
        assert!(list.len() <= self.ring.stride);
        let slot = (slot & self.ring.mask) as usize;
        // SAFETY: the slot is from `tail` to `head + capacity`, so the consumer is done with it,
        // and `&mut self` is the producer.
        self.ring.slots[slot].with_mut(|at| unsafe { (*at).write(value) });
        let lists = &self.ring.lists[slot * self.ring.stride..][..list.len()];
        for (place, sge) in lists.iter().zip(list) {
            // SAFETY: as above.
            place.with_mut(|at| unsafe { *at = sge });
        }
        self.cursor.advance();
    }

    /// Makes all written values visible to the consumer.
    #[inline]
    pub(crate) fn publish(&self) {
        self.cursor.publish();
    }

    /// Returns the total number of values written, modulo 2³².
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.cursor.index()
    }

    /// Drops the last `count` written values, except published values. Returns the number of
    /// dropped values.
    pub(crate) fn rollback(&mut self, count: u32) -> u32 {
        self.cursor.rollback(count)
    }

    /// Drops all unpublished values. After [`Consumer::clear`], the ring is then empty.
    pub(crate) fn resync(&mut self) {
        self.cursor.resync();
    }
}

/// The end that removes values.
pub(crate) struct Consumer<T> {
    ring: Arc<Ring<T>>,
    /// The index of the cursor is one past the last value read; `head` is one past the last value
    /// freed.
    cursor: cursor::Consumer<SharedCount>,
    published: Published,
    head: u32,
}

impl<T: Copy> Consumer<T> {
    /// Returns the numbers of published and freed values, for other threads to follow.
    pub(crate) fn published(&self) -> Published {
        self.published.clone()
    }

    /// Returns whether there is currently no value to read.
    #[inline]
    pub(crate) fn is_empty(&mut self) -> bool {
        self.cursor.next_slot().is_none()
    }

    /// Returns the number of published but unread values.
    pub(crate) fn len(&mut self) -> u32 {
        let (first, end, _) = self.cursor.next_slots(usize::MAX);
        end.wrapping_sub(first)
    }

    /// Returns the next value, if there is one. The value's slot stays in use until it is
    /// [freed](Self::free).
    #[inline]
    pub(crate) fn next(&mut self) -> Option<&T> {
        let slot = (self.cursor.next_slot()? & self.ring.mask) as usize;
        self.cursor.advance();
        // SAFETY: the slot is from `head` to `tail`: completely written, and not touched by the
        // producer until `head` passes it. This takes `&mut self`, and so the end of this loan.
        Some(self.ring.slots[slot].with(|at| unsafe { (*at).assume_init_ref() }))
    }

    /// Reads a value as [`next`](Self::next) does, with the first `len(value)` elements of its
    /// list. Elements beyond the value's list are left over from earlier lists, or are default
    /// elements.
    #[inline]
    pub(crate) fn next_with(
        &mut self,
        list: &mut [Sge],
        len: impl FnOnce(&T) -> usize,
    ) -> Option<(T, usize)> {
        let value = *self.next()?;
        let slot = (self.cursor.index().wrapping_sub(1) & self.ring.mask) as usize;
        let len = len(&value).min(list.len()).min(self.ring.stride);
        let places = &self.ring.lists[slot * self.ring.stride..][..len];
        for (sge, place) in list.iter_mut().zip(places) {
            // SAFETY: the element belongs to the slot, which is from `head` to `tail` and so not
            // touched by the producer; it was initialised with the ring, even if no element was put
            // there.
            *sge = place.with(|at| unsafe { *at });
        }
        Some((value, len))
    }

    /// Frees the slots of the oldest `count` values read, for the producer to use again.
    #[inline]
    pub(crate) fn free(&mut self, count: u32) {
        let in_use = self.cursor.index().wrapping_sub(self.head);
        self.head = self.head.wrapping_add(count.min(in_use));
        self.cursor.publish_to(self.head);
    }

    /// Frees the slots of all values read, for the producer to use again.
    #[inline]
    pub(crate) fn free_all(&mut self) {
        if self.head != self.cursor.index() {
            self.head = self.cursor.index();
            self.cursor.publish();
        }
    }

    /// Drops the unread values rejected by `keep`. The remaining values stay in order. Values
    /// already read are freed.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let slot = |index: u32| &self.ring.slots[(index & self.ring.mask) as usize];
        let (next, tail, _) = self.cursor.next_slots(usize::MAX);
        // From the newest to the oldest, the remaining values move up to the tail.
        let mut kept = tail;
        let mut index = tail;
        while index != next {
            index = index.wrapping_sub(1);
            // SAFETY: the slot is from `next` to `tail`: completely written, and not touched by the
            // producer until `head` passes it.
            let value = slot(index).with(|at| unsafe { *(*at).assume_init_ref() });
            if keep(&value) {
                kept = kept.wrapping_sub(1);
                // SAFETY: as above, and `&mut self` is the consumer.
                slot(kept).with_mut(|at| unsafe { (*at).write(value) });
            }
        }
        self.cursor.advance_to(kept);
        self.free_all();
    }

    /// Drops all published values and frees their slots.
    pub(crate) fn clear(&mut self) {
        let (_, tail, _) = self.cursor.next_slots(usize::MAX);
        self.cursor.advance_to(tail);
        self.free_all();
    }
}

impl<T> core::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Producer").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

impl<T> core::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { cursor, head, .. } = self;
        f.debug_struct("Consumer").field("cursor", cursor).field("head", head).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn sge(addr: u64) -> Sge {
        Sge { addr, length: 1, lkey: 2 }
    }

    #[test]
    fn values_and_their_lists_come_out_in_order_round_the_ring() {
        let (mut producer, mut consumer) = ring::<u32>(3, 2).unwrap();
        let mut list = [Sge::default(); 2];
        for n in 0..20 {
            assert!(producer.has_room());
            producer.put(n, [sge(n.into()), sge(100)].into_iter().take((n % 3) as usize));
            assert_eq!(consumer.next_with(&mut list, |_| 0), None, "not published");
            producer.publish();
            let taken = consumer.next_with(&mut list, |n| (n % 3) as usize);
            assert_eq!(taken, Some((n, (n % 3) as usize)));
            if n % 3 > 0 {
                assert_eq!(list[0], sge(n.into()));
            }
            consumer.free(1);
        }
    }

    #[test]
    fn a_list_that_is_read_too_far_has_old_elements() {
        let (mut producer, mut consumer) = ring::<u32>(1, 2).unwrap();
        let mut list = [sge(9); 2];
        producer.put(0, [sge(1)].into_iter());
        producer.publish();
        assert_eq!(consumer.next_with(&mut list, |_| 2), Some((0, 2)));
        assert_eq!(list, [sge(1), Sge::default()]);
        consumer.free(1);
        assert!(producer.has_room());
        producer.put(1, [].into_iter());
        producer.publish();
        assert_eq!(consumer.next_with(&mut list, |_| usize::MAX), Some((1, 2)));
        assert_eq!(list, [sge(1), Sge::default()]);
    }

    #[test]
    fn values_that_are_dropped_leave_the_others_in_order_and_their_slots_free() {
        let (mut producer, mut consumer) = ring::<u32>(4, 0).unwrap();
        for round in 0..7 {
            for n in 0..4 {
                assert!(producer.has_room(), "round {round}");
                producer.put(10 * round + n, [].into_iter());
            }
            producer.publish();
            assert_eq!(consumer.next(), Some(&(10 * round)));
            consumer.retain(|n| n % 10 != 2);
            assert_eq!(consumer.len(), 2);
            assert_eq!(consumer.next(), Some(&(10 * round + 1)));
            assert_eq!(consumer.next(), Some(&(10 * round + 3)));
            assert_eq!(consumer.next(), None);
            consumer.free_all();
        }
    }

    #[test]
    fn a_slot_is_free_once_it_was_given_back_and_not_once_it_was_read() {
        let (mut producer, mut consumer) = ring::<u32>(2, 0).unwrap();
        for n in 0..2 {
            assert!(producer.has_room());
            producer.put(n, [].into_iter());
        }
        producer.publish();
        assert!(consumer.next().is_some() && !producer.has_room());
        consumer.free(5);
        assert!(producer.has_room(), "what was read is free, and no more");
        producer.put(2, [].into_iter());
        assert!(!producer.has_room());
    }

    #[test]
    fn a_ring_that_was_cleared_is_empty() {
        let (mut producer, mut consumer) = ring::<u32>(2, 0).unwrap();
        producer.put(1, [].into_iter());
        producer.publish();
        producer.put(2, [].into_iter());
        consumer.clear();
        producer.resync();
        assert!(consumer.next().is_none() && producer.has_room());
        producer.put(3, [].into_iter());
        producer.publish();
        assert_eq!(consumer.next(), Some(&3));
    }

    /// Returns the ends of an empty ring, both at the given index.
    fn ring_from(index: u32, capacity: u32, stride: usize) -> (Producer<u32>, Consumer<u32>) {
        let [tail, head] = [(); 2].map(|()| SharedCount::new(index));
        ends(Ring::new(capacity, stride).unwrap(), capacity, &tail, &head)
    }

    #[test]
    fn what_was_rolled_back_is_never_read_and_its_slots_are_written_again() {
        // Starts at each slot, and at indices around the wrap-around.
        for start in (0..5).chain(u32::MAX - 4..=u32::MAX) {
            for kept in 0..=4 {
                for aborted in 0..=4 - kept {
                    let (mut writer, mut reader) = ring_from(start, 4, 1);
                    let mut list = [Sge::default()];
                    let put = |writer: &mut Producer<u32>, n: u32| {
                        assert!(writer.has_room());
                        writer.put(n, [sge(n.into())].into_iter());
                    };
                    (0..kept).for_each(|n| put(&mut writer, n));
                    writer.publish();
                    assert_eq!(writer.rollback(u32::MAX), 0, "what was published stays");
                    (0..aborted).for_each(|n| put(&mut writer, 100 + n));
                    assert_eq!(writer.rollback(u32::MAX), aborted, "from {start}, behind {kept}");
                    assert_eq!(writer.rollback(u32::MAX), 0, "it is taken back once");
                    writer.publish();
                    for n in 0..kept {
                        assert_eq!(reader.next_with(&mut list, |_| 1), Some((n, 1)));
                        assert_eq!(list, [sge(n.into())]);
                    }
                    assert!(reader.is_empty(), "from {start}, behind {kept}, without {aborted}");
                    (kept..4).for_each(|n| put(&mut writer, n));
                    assert!(!writer.has_room(), "all room is back, and no more");
                    writer.publish();
                    for n in kept..4 {
                        assert_eq!(reader.next_with(&mut list, |_| 1), Some((n, 1)));
                        assert_eq!(list, [sge(n.into())]);
                    }
                    assert!(reader.is_empty());
                }
            }
        }
    }

    #[test]
    fn the_last_values_are_rolled_back_and_those_before_them_stay() {
        // The values wrap around the slots, and the indices wrap around 2³².
        for start in (0..5).chain(u32::MAX - 4..=u32::MAX) {
            let (mut writer, mut reader) = ring_from(start, 4, 0);
            for n in 0..4 {
                assert!(writer.has_room());
                writer.put(n, [].into_iter());
                if n == 0 {
                    writer.publish();
                }
            }
            assert_eq!((writer.rollback(0), writer.rollback(2)), (0, 2));
            assert!(writer.has_room());
            writer.put(9, [].into_iter());
            writer.publish();
            assert_eq!(writer.rollback(1), 0, "what was published stays");
            for n in [0, 1, 9] {
                assert_eq!(reader.next(), Some(&n), "from {start}");
            }
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn after_a_clear_there_is_nothing_to_roll_back() {
        let (mut writer, mut reader) = ring::<u32>(2, 0).unwrap();
        writer.put(1, [].into_iter());
        writer.publish();
        writer.put(2, [].into_iter());
        reader.clear();
        writer.resync();
        assert_eq!(writer.rollback(u32::MAX), 0);
        writer.put(3, [].into_iter());
        assert_eq!(writer.rollback(u32::MAX), 1);
        writer.publish();
        assert!(reader.is_empty());
    }

    #[test]
    fn slots_in_use_from_the_start_are_free_after_the_consumer_freed_them() {
        let (mut producer, mut consumer) = ring_in_use::<u32>(3, 1, 2).unwrap();
        let mut list = [Sge::default()];
        producer.put(7, [sge(7)].into_iter());
        assert!(!producer.has_room());
        producer.publish();
        assert_eq!(consumer.next_with(&mut list, |_| 1).map(|(value, _)| value), Some(7));
        consumer.free(2);
        for n in [8, 9] {
            assert!(producer.has_room());
            producer.put(n, [sge(n.into())].into_iter());
        }
        assert!(!producer.has_room());
        producer.publish();
        for n in [8, 9] {
            assert_eq!(consumer.next_with(&mut list, |_| 1).map(|(value, _)| value), Some(n));
        }
    }

    #[test]
    fn values_that_were_not_read_stay_in_order_and_counts_go_on_in_a_ring_that_replaces_another() {
        // The values wrap around the slots, and the indices wrap around 2³².
        for start in (0..5).chain(u32::MAX - 4..=u32::MAX) {
            for read in 0..=4 {
                let (mut writer, mut reader) = ring_from(start, 4, 0);
                let put = |writer: &mut Producer<u32>, n: u32| {
                    assert!(writer.has_room());
                    writer.put(n, [].into_iter());
                    writer.publish();
                };
                (0..4).for_each(|n| put(&mut writer, n));
                (0..read).for_each(|n| assert_eq!(reader.next(), Some(&n)));
                let published = reader.published();
                replace(&mut writer, &mut reader, Spare::new(16).unwrap());
                let count = start.wrapping_add(4);
                assert_eq!((published.count(), writer.count()), (count, count), "from {start}");
                (4..16 + read).for_each(|n| put(&mut writer, n));
                assert!(!writer.has_room(), "what was read is free, and no more");
                replace(&mut writer, &mut reader, Spare::new(16).unwrap());
                for n in read..16 + read {
                    assert_eq!(reader.next(), Some(&n), "from {start}, {read} were read");
                }
                assert!(reader.is_empty() && !writer.has_room());
                reader.free(1);
                put(&mut writer, 99);
                assert_eq!((reader.next(), published.count()), (Some(&99), start.wrapping_add(17 + read)));
            }
        }
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn values_that_do_not_fit_into_the_ring_that_replaces_theirs_are_a_defect() {
        let (mut producer, mut consumer) = ring::<u32>(2, 0).unwrap();
        producer.put(1, [].into_iter());
        producer.put(2, [].into_iter());
        producer.publish();
        replace(&mut producer, &mut consumer, Spare::new(1).unwrap());
    }

    #[test]
    #[should_panic(expected = "there is room")]
    fn a_value_too_many_is_a_defect() {
        let (mut producer, _consumer) = ring::<u32>(1, 0).unwrap();
        producer.put(1, [].into_iter());
        producer.put(2, [].into_iter());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::primitives::thread;

    #[test]
    fn no_slot_is_written_while_it_is_read() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring::<u32>(2, 1).unwrap();
            let producing = thread::spawn(move || {
                for n in 0..3 {
                    while !producer.has_room() {
                        thread::yield_now();
                    }
                    producer.put(n, [Sge { addr: n.into(), ..Sge::default() }].into_iter());
                    producer.publish();
                }
            });
            let mut list = [Sge::default()];
            for n in 0..3 {
                let (value, _) = loop {
                    match consumer.next_with(&mut list, |_| 1) {
                        Some(taken) => break taken,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((value, list[0].addr), (n, n.into()));
                consumer.free(1);
            }
            producing.join().unwrap();
        });
    }

    #[test]
    fn no_slot_is_read_that_was_rolled_back() {
        loom::model(|| {
            let (mut writer, mut reader) = ring::<u32>(2, 1).unwrap();
            let writing = thread::spawn(move || {
                let put = |writer: &mut Producer<u32>, n: u32| {
                    writer.put(n, [Sge { addr: n.into(), ..Sge::default() }].into_iter());
                };
                put(&mut writer, 1);
                writer.publish();
                put(&mut writer, 99);
                assert_eq!(writer.rollback(u32::MAX), 1);
                put(&mut writer, 2);
                writer.publish();
            });
            let mut list = [Sge::default()];
            for n in 1..3 {
                let (value, _) = loop {
                    match reader.next_with(&mut list, |_| 1) {
                        Some(taken) => break taken,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((value, list[0].addr), (n, n.into()));
            }
            writing.join().unwrap();
        });
    }
}
