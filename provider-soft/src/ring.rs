//! [`Ring`]: a queue between one writer and one reader, of plain values with a list of scatter/gather elements each.
//!
//! All three queues of a device are this ring. The indices run freely, and a slot is an index modulo the size:
//!
//! ```text
//!        head              reader            tail           writer
//!         ▼                   ▼                ▼               ▼
//!   ──────┬───────────────────┬────────────────┬───────────────┬──────
//!   free  │ read, in use yet  │ published      │ written       │ free
//!   ──────┴───────────────────┴────────────────┴───────────────┴──────
//! ```
//!
//! | | writes | reads | `head` moves when |
//! |---|---|---|---|
//! | send and receive queue | the thread that posts | who has the turn | the work request was retired |
//! | completion queue | who has the turn | the thread that polls | the completion is lent no more |
//!
//! # Safety
//! `tail` is stored by the writer alone, `head` by the reader alone, each with release after its last access to the slots
//! that it hands over, and read by the other with acquire before its first. There is one [`Writer`] and one [`Reader`] of a
//! ring, both are changed through `&mut` alone, and the writer touches only slots from `tail` to `head + capacity`, the
//! reader only those from `head` to `tail`: no slot is the business of both. Every slot that the reader touches has been
//! written whole. Places of lists hold a value from the start, so that a list which is read further than it was written has
//! old elements in it, and no others.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use roce::engine::Sge;

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, UnsafeCell};

/// The slots, and how far each side is.
struct Ring<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// `stride` elements for each slot.
    lists: Box<[UnsafeCell<Sge>]>,
    stride: usize,
    mask: u32,
    tail: Lone<AtomicU32>,
    head: Lone<AtomicU32>,
}

/// In cache lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
struct Lone<T>(T);

// SAFETY: the cells blocked the auto impl. The protocol above keeps the two ends off each other's slots, so what crosses
// threads are values of `T`.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

/// A ring of `capacity` values, each with up to `stride` elements, and its two ends.
pub(crate) fn ring<T: Copy>(capacity: u32, stride: usize) -> (Writer<T>, Reader<T>) {
    let slots = capacity.max(1).next_power_of_two();
    let ring = Arc::new(Ring {
        slots: (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        lists: (0..slots as usize * stride).map(|_| UnsafeCell::new(Sge::default())).collect(),
        stride,
        mask: slots - 1,
        tail: Lone(AtomicU32::new(0)),
        head: Lone(AtomicU32::new(0)),
    });
    let writer = Writer { ring: Arc::clone(&ring), capacity, tail: 0, head: 0 };
    (writer, Reader { ring, head: 0, next: 0, tail: 0 })
}

/// The end that puts values in.
pub(crate) struct Writer<T> {
    ring: Arc<Ring<T>>,
    capacity: u32,
    /// Behind the last value that was written, published or not.
    tail: u32,
    /// `head` when it was last looked at.
    head: u32,
}

impl<T: Copy> Writer<T> {
    /// Is there room for one more?
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        if self.tail.wrapping_sub(self.head) < self.capacity {
            return true;
        }
        self.head = self.ring.head.0.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head) < self.capacity
    }

    /// Writes a value and its list; the other end does not see it yet.
    ///
    /// # Panics
    /// When there is no room ([`has_room`](Self::has_room)), or not for so long a list: a defect of the caller.
    #[inline]
    pub(crate) fn put(&mut self, value: T, list: impl ExactSizeIterator<Item = Sge>) {
        assert!(self.tail.wrapping_sub(self.head) < self.capacity && list.len() <= self.ring.stride);
        let slot = (self.tail & self.ring.mask) as usize;
        // SAFETY: the slot is from `tail` to `head + capacity`, so the reader is done with it, and `&mut self` is the
        // writer.
        self.ring.slots[slot].with_mut(|at| unsafe { (*at).write(value) });
        let lists = &self.ring.lists[slot * self.ring.stride..][..list.len()];
        for (place, sge) in lists.iter().zip(list) {
            // SAFETY: as above.
            place.with_mut(|at| unsafe { *at = sge });
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Lets the other end see everything that was written.
    #[inline]
    pub(crate) fn publish(&self) {
        self.ring.tail.0.store(self.tail, Ordering::Release);
    }

    /// Forgets what was written and not published. With [`Reader::clear`] before it, the ring is empty.
    pub(crate) fn resync(&mut self) {
        self.tail = self.ring.tail.0.load(Ordering::Relaxed);
        self.head = self.ring.head.0.load(Ordering::Acquire);
    }
}

/// The end that takes values out.
pub(crate) struct Reader<T> {
    ring: Arc<Ring<T>>,
    head: u32,
    /// Behind the last value that was read.
    next: u32,
    /// `tail` when it was last looked at.
    tail: u32,
}

impl<T: Copy> Reader<T> {
    /// Is there nothing to read now?
    #[inline]
    pub(crate) fn is_empty(&mut self) -> bool {
        if self.next == self.tail {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        self.next == self.tail
    }

    /// Reads the next value, if there is one. Its slot stays in use until it is [freed](Self::free).
    #[inline]
    pub(crate) fn next(&mut self) -> Option<&T> {
        if self.is_empty() {
            return None;
        }
        let slot = (self.next & self.ring.mask) as usize;
        self.next = self.next.wrapping_add(1);
        // SAFETY: the slot is from `head` to `tail`: written whole, and left alone by the writer until `head` passes it,
        // which takes `&mut self`, and so the end of what is lent here.
        Some(self.ring.slots[slot].with(|at| unsafe { (*at).assume_init_ref() }))
    }

    /// As [`next`](Self::next), with the first `len(value)` elements of its list; beyond those that were put in with it,
    /// elements of earlier lists or none at all.
    #[inline]
    pub(crate) fn next_with(
        &mut self,
        list: &mut [Sge],
        len: impl FnOnce(&T) -> usize,
    ) -> Option<(T, usize)> {
        let value = *self.next()?;
        let slot = (self.next.wrapping_sub(1) & self.ring.mask) as usize;
        let len = len(&value).min(list.len()).min(self.ring.stride);
        let places = &self.ring.lists[slot * self.ring.stride..][..len];
        for (sge, place) in list.iter_mut().zip(places) {
            // SAFETY: the place belongs to the slot, which is from `head` to `tail` and so left alone by the writer; it was
            // initialised with the ring, however much of the list was put in.
            *sge = place.with(|at| unsafe { *at });
        }
        Some((value, len))
    }

    /// Gives the oldest `count` slots that were read back to the writer.
    #[inline]
    pub(crate) fn free(&mut self, count: u32) {
        let in_use = self.next.wrapping_sub(self.head);
        self.head = self.head.wrapping_add(count.min(in_use));
        self.ring.head.0.store(self.head, Ordering::Release);
    }

    /// Gives every slot that was read back.
    #[inline]
    pub(crate) fn free_all(&mut self) {
        if self.head != self.next {
            self.head = self.next;
            self.ring.head.0.store(self.head, Ordering::Release);
        }
    }

    /// Reads everything that is published, without a look, and gives it back.
    pub(crate) fn clear(&mut self) {
        self.tail = self.ring.tail.0.load(Ordering::Acquire);
        self.next = self.tail;
        self.free_all();
    }
}

impl<T> core::fmt::Debug for Writer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Writer")
            .field("capacity", &self.capacity)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

impl<T> core::fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Reader").field("head", &self.head).field("next", &self.next).finish_non_exhaustive()
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
        let (mut writer, mut reader) = ring::<u32>(3, 2);
        let mut list = [Sge::default(); 2];
        for n in 0..20 {
            assert!(writer.has_room());
            writer.put(n, [sge(n.into()), sge(100)].into_iter().take((n % 3) as usize));
            assert_eq!(reader.next_with(&mut list, |_| 0), None, "not published");
            writer.publish();
            let taken = reader.next_with(&mut list, |n| (n % 3) as usize);
            assert_eq!(taken, Some((n, (n % 3) as usize)));
            if n % 3 > 0 {
                assert_eq!(list[0], sge(n.into()));
            }
            reader.free(1);
        }
    }

    #[test]
    fn a_list_that_is_read_too_far_has_old_elements() {
        let (mut writer, mut reader) = ring::<u32>(1, 2);
        let mut list = [sge(9); 2];
        writer.put(0, [sge(1)].into_iter());
        writer.publish();
        assert_eq!(reader.next_with(&mut list, |_| 2), Some((0, 2)));
        assert_eq!(list, [sge(1), Sge::default()]);
        reader.free(1);
        assert!(writer.has_room());
        writer.put(1, [].into_iter());
        writer.publish();
        assert_eq!(reader.next_with(&mut list, |_| usize::MAX), Some((1, 2)));
        assert_eq!(list, [sge(1), Sge::default()]);
    }

    #[test]
    fn a_slot_is_free_when_it_was_given_back_and_not_when_it_was_read() {
        let (mut writer, mut reader) = ring::<u32>(2, 0);
        for n in 0..2 {
            assert!(writer.has_room());
            writer.put(n, [].into_iter());
        }
        writer.publish();
        assert!(reader.next().is_some() && !writer.has_room());
        reader.free(5);
        assert!(writer.has_room(), "what was read is free, and no more");
        writer.put(2, [].into_iter());
        assert!(!writer.has_room());
    }

    #[test]
    fn a_ring_that_was_cleared_is_empty() {
        let (mut writer, mut reader) = ring::<u32>(2, 0);
        writer.put(1, [].into_iter());
        writer.publish();
        writer.put(2, [].into_iter());
        reader.clear();
        writer.resync();
        assert!(reader.next().is_none() && writer.has_room());
        writer.put(3, [].into_iter());
        writer.publish();
        assert_eq!(reader.next(), Some(&3));
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_value_too_many_is_a_defect() {
        let (mut writer, _reader) = ring::<u32>(1, 0);
        writer.put(1, [].into_iter());
        writer.put(2, [].into_iter());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::thread;

    #[test]
    fn no_slot_is_written_while_it_is_read() {
        loom::model(|| {
            let (mut writer, mut reader) = ring::<u32>(2, 1);
            let writing = thread::spawn(move || {
                for n in 0..3 {
                    while !writer.has_room() {
                        thread::yield_now();
                    }
                    writer.put(n, [Sge { addr: n.into(), ..Sge::default() }].into_iter());
                    writer.publish();
                }
            });
            let mut list = [Sge::default()];
            for n in 0..3 {
                let (value, _) = loop {
                    match reader.next_with(&mut list, |_| 1) {
                        Some(taken) => break taken,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((value, list[0].addr), (n, n.into()));
                reader.free(1);
            }
            writing.join().unwrap();
        });
    }
}
