//! A mapped queue: the header, filled in by the kernel, and the slots after it.
//!
//! ```text
//!   0    log2 of the slots' size          ┐ written once by the kernel, checked once against the
//!   4    number of slots - 1 (the mask)   ┘ mapping in `Queue::new`, never read again
//!   128  producer's index                   in separate cache lines, read with acquire,
//!   256  consumer's index                   published with release, masked before use
//!   384  slots
//! ```
//!
//! [`ProducerEnd`] fills slots (send and receive queue), [`ConsumerEnd`] empties them (completion
//! queue). They return a borrowed [`Slot`] or [`Entry`] typed by its element, so an access outside
//! the element does not compile.
//!
//! # Safety
//! Only [`Queue::slot`] makes pointers into the mapping, from an index that is at most the mask;
//! [`Queue::new`] proved that such a slot lies within the mapping and holds the element. A [`Slot`]
//! belongs to this process from the moment the cursor names it until it is published, an [`Entry`]
//! until it is given back. The kernel does not access the bytes in between, so they are written
//! with plain stores, which the compiler may merge. Single fields are read with volatile loads: a
//! kernel that breaks the protocol can cause wrong values, but no value changes after it was read.
//! Whole elements are copied once.
#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::mem::{align_of, offset_of, size_of};
use core::ptr::NonNull;

use uverbs_abi::rdma_user_rxe::{Mminfo, RxeQueueBuf};
use verbs_core::Result;
use verbs_core::channel::Uverbs;
use verbs_core::ring::{Consumer, Producer, Region, SharedIndex};
use verbs_core::types::Sge;
use zerocopy::{FromBytes, IntoBytes};

/// The maximum alignment of an element, in bytes. A mapping's address, the header's size and the
/// slots' size are multiples of this alignment.
const SLOT_ALIGN: usize = 16;

/// A mapped queue with a checked header.
pub(crate) struct Queue {
    /// The address of the first slot.
    first: NonNull<u8>,
    log2_stride: u32,
    mask: u32,
    region: Region,
}

// SAFETY: `first` blocked the auto impl. It points into `region`, which is `Send` and lives as
// long.
unsafe impl Send for Queue {}
// SAFETY: as above. Through a shared reference, the ends only read numbers and access indices as
// atomics; slots are accessed through `&mut` of an end.
unsafe impl Sync for Queue {}

impl Queue {
    /// Maps a queue described in the kernel's reply; its slots must hold `element` bytes.
    ///
    /// # Safety
    /// `mminfo` comes from the reply to the command that created the queue, and the queue is mapped
    /// for the first time: this process has no other end of it.
    pub(crate) unsafe fn map(
        uverbs: &Uverbs,
        verb: &'static str,
        mminfo: &Mminfo,
        element: usize,
    ) -> Result<Self> {
        let len = mminfo.size as usize;
        if len < size_of::<RxeQueueBuf>() {
            return Err(uverbs.bad_reply(verb, "a queue shorter than its header"));
        }
        // SAFETY: the caller promises that the offset comes from the reply, and that no other code
        // has the queue.
        let region = unsafe { uverbs.map(verb, mminfo.offset, len) }?;
        Self::new(region, len, element).map_err(|what| uverbs.bad_reply(verb, what))
    }

    /// Returns a queue of `len` bytes, or a description of the defect in its header. The slots must
    /// hold `element` bytes.
    pub(crate) fn new(region: Region, len: usize, element: usize) -> Result<Self, &'static str> {
        let header = size_of::<RxeQueueBuf>();
        let len = len.min(region.len());
        if len < header {
            return Err("a queue shorter than its header");
        }
        // SAFETY: this process never writes these words; the kernel wrote them before it described
        // the queue in its reply.
        let (log2_stride, mask): (u32, u32) = unsafe {
            (
                region.read(offset_of!(RxeQueueBuf, log2_elem_size)),
                region.read(offset_of!(RxeQueueBuf, index_mask)),
            )
        };
        let slots = u64::from(mask) + 1;
        let stride = 1_u64.checked_shl(log2_stride).ok_or("a queue whose slots have an impossible size")?;
        if !slots.is_power_of_two() {
            return Err("a queue whose number of slots is not a power of two");
        }
        if stride < element as u64 || stride < SLOT_ALIGN as u64 {
            return Err("a queue whose slots are too small for its elements");
        }
        if slots.checked_mul(stride).is_none_or(|bytes| bytes > (len - header) as u64) {
            return Err("a queue whose slots do not fit into its mapping");
        }
        let first = region.pointer(header, len - header);
        if !first.addr().get().is_multiple_of(SLOT_ALIGN) {
            return Err("a queue whose slots are not aligned");
        }
        Ok(Self { first, log2_stride, mask, region })
    }

    /// Returns a queue in plain memory that is always full, for an end without a counterpart in the
    /// kernel. Its slots could hold `element` bytes.
    pub(crate) fn none(element: usize) -> Self {
        let stride = element.next_power_of_two().max(SLOT_ALIGN);
        let len = size_of::<RxeQueueBuf>() + stride;
        let region = Region::plain(len);
        // SAFETY: nothing else has the region yet.
        unsafe { region.write(offset_of!(RxeQueueBuf, log2_elem_size), stride.trailing_zeros()) };
        Self::new(region, len, element).expect("a queue of one slot, as large as its element")
    }

    /// Returns the address of the slot at a masked index.
    #[inline(always)]
    fn slot(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index <= self.mask, "cursors give masked indices");
        // SAFETY: `Producer` and `Consumer` give indices up to the mask that they were made with,
        // which is this queue's. `new` checked that all `mask + 1` slots of `1 << log2_stride`
        // bytes lie within the region, which lives as long as `self`; so the shift is below the
        // width of an address, too.
        unsafe {
            core::hint::assert_unchecked(self.log2_stride < usize::BITS);
            self.first.add((index as usize) << self.log2_stride)
        }
    }

    /// Returns the producer's and the consumer's indices.
    fn indices(&self) -> (SharedIndex, SharedIndex) {
        // SAFETY: the header's words are accessed only through these two indices, which only the
        // end made from the queue gets. `ProducerEnd` publishes slots that `Sq` and `Rq` filled,
        // relying on the callers of their unsafe posting functions; `ConsumerEnd` publishes slots
        // that it has read.
        unsafe {
            (
                self.region.index(offset_of!(RxeQueueBuf, producer_index)),
                self.region.index(offset_of!(RxeQueueBuf, consumer_index)),
            )
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("slots", &(u64::from(self.mask) + 1))
            .field("stride", &(1_u64 << self.log2_stride))
            .finish_non_exhaustive()
    }
}

/// The end that fills a queue's slots, each with an element `W` followed by a list.
pub(crate) struct ProducerEnd<W> {
    queue: Queue,
    cursor: Producer,
    _element: PhantomData<fn() -> W>,
}

impl<W> ProducerEnd<W> {
    /// Returns the producer's end of `queue`, whose slots must have been mapped to hold a `W` each.
    pub(crate) fn new(queue: Queue) -> Self {
        assert!(1_usize << queue.log2_stride >= size_of::<W>() && align_of::<W>() <= SLOT_ALIGN);
        let (producer, consumer) = queue.indices();
        let cursor = Producer::new(producer, consumer, queue.mask);
        Self { queue, cursor, _element: PhantomData }
    }

    /// Returns the next slot to fill, or `None` if the queue is full.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Slot<'_, W>> {
        let index = self.cursor.next_slot()?;
        Some(Slot { base: self.queue.slot(index), _queue: PhantomData, _element: PhantomData })
    }

    /// Marks the slot returned by [`next`](Self::next) as filled. The kernel does not see the slot
    /// yet.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.cursor.advance();
    }

    /// Publishes every filled slot to the kernel.
    #[inline(always)]
    pub(crate) fn publish(&self) {
        self.cursor.publish();
    }

    /// Removes up to `count` unpublished slots, starting with the last one. Returns the number
    /// removed.
    pub(crate) fn rollback(&mut self, count: usize) -> usize {
        self.cursor.rollback(u32::try_from(count).unwrap_or(u32::MAX)) as usize
    }

    /// Continues from the shared indices after the kernel has emptied the queue.
    pub(crate) fn resync(&mut self) {
        self.cursor.resync();
    }

    /// Returns the number of filled slots that the kernel has not yet emptied.
    pub(crate) fn outstanding(&mut self) -> u32 {
        self.cursor.outstanding()
    }

    /// Returns the maximum number of filled slots.
    pub(crate) fn capacity(&self) -> u32 {
        self.cursor.capacity()
    }

    /// Returns the number of bytes in a slot after its element.
    pub(crate) fn room(&self) -> usize {
        (1_usize << self.queue.log2_stride) - size_of::<W>()
    }
}

impl<W> fmt::Debug for ProducerEnd<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProducerEnd").field(&self.queue).field(&self.cursor).finish()
    }
}

/// A slot to fill with an element `W` followed by a list.
pub(crate) struct Slot<'q, W> {
    base: NonNull<u8>,
    _queue: PhantomData<&'q mut Queue>,
    _element: PhantomData<fn() -> W>,
}

impl<W> Slot<'_, W> {
    /// Stores a part of the element at its offset.
    #[inline(always)]
    pub(crate) fn put<const OFFSET: usize, T: IntoBytes>(&mut self, part: T) {
        const {
            assert!(OFFSET + size_of::<T>() <= size_of::<W>(), "the part lies within the element");
            assert!(OFFSET.is_multiple_of(align_of::<T>()) && align_of::<T>() <= SLOT_ALIGN);
        }
        // SAFETY: the slot holds a `W` (`ProducerEnd::new`), within which the part lies, aligned;
        // the kernel does not access it before it is published.
        unsafe { self.base.add(OFFSET).cast::<T>().write(part) }
    }

    /// Stores a scatter/gather list after the element.
    ///
    /// # Safety
    /// The list must not be longer than [`ProducerEnd::room`].
    #[inline(always)]
    pub(crate) unsafe fn put_list(&mut self, sges: &[Sge]) {
        const { assert!(size_of::<W>().is_multiple_of(align_of::<Sge>()) && size_of::<Sge>() == 16) }
        // SAFETY: the slot holds a `W`, so what follows it starts in bounds or one past the end.
        let list = unsafe { self.base.add(size_of::<W>()).cast::<Sge>() };
        // SAFETY: an `Sge` is laid out as the kernel's `rxe_sge` is; the caller promises that the
        // slot has room for all of them. The list does not overlap the slot, because no reference
        // into it exists.
        unsafe {
            match sges {
                // The common case, without a call to memcpy.
                [one] => list.write(*one),
                many => core::ptr::copy_nonoverlapping(many.as_ptr(), list.as_ptr(), many.len()),
            }
        }
    }

    /// Copies the memory referenced by a list to the bytes after the element.
    ///
    /// # Safety
    /// - The elements name at most [`ProducerEnd::room`] bytes of memory in total.
    /// - Every element of the list names readable memory of this process by its address.
    #[inline]
    pub(crate) unsafe fn put_inline(&mut self, sges: &[Sge]) {
        // SAFETY: the slot holds a `W`, so what follows it starts in bounds or one past the end.
        let mut to = unsafe { self.base.add(size_of::<W>()) };
        for sge in sges {
            let len = sge.length as usize;
            if len > 0 {
                let from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
                // SAFETY: the caller promises that the source is readable and the slot has room;
                // only the kernel shares the slot, so no source overlaps it.
                unsafe {
                    core::ptr::copy_nonoverlapping(from, to.as_ptr(), len);
                    to = to.add(len);
                }
            }
        }
    }
}

/// The end that empties a queue's slots, each with an element `W`.
pub(crate) struct ConsumerEnd<W> {
    queue: Queue,
    cursor: Consumer,
    _element: PhantomData<fn() -> W>,
}

impl<W> ConsumerEnd<W> {
    /// Returns the consumer's end of `queue`, whose slots must have been mapped to hold a `W` each.
    pub(crate) fn new(queue: Queue) -> Self {
        assert!(1_usize << queue.log2_stride >= size_of::<W>() && align_of::<W>() <= SLOT_ALIGN);
        let (producer, consumer) = queue.indices();
        let cursor = Consumer::new(producer, consumer, queue.mask);
        Self { queue, cursor, _element: PhantomData }
    }

    /// Returns the next element, or `None` if the queue is empty. The element belongs to this
    /// process until it is [given back](Self::give_back).
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Entry<'_, W>> {
        let index = self.cursor.next_slot()?;
        self.cursor.advance();
        Some(Entry { base: self.queue.slot(index), _queue: PhantomData, _element: PhantomData })
    }

    /// Copies elements into `places`, in order, until `places` is full or the queue is empty, and
    /// gives the slots back to the kernel. Returns the filled part of `places`.
    #[inline(always)]
    pub(crate) fn take<'p, T>(
        &mut self,
        places: &'p mut [T],
        mut each: impl FnMut(Entry<'_, W>, &mut T),
    ) -> &'p mut [T] {
        let (mut index, end, count) = self.cursor.next_slots(places.len());
        let mut place = places.as_mut_ptr();
        // Counted by the ring's index instead of `places`, because the compiler would unroll that
        // loop, although there are usually few elements.
        while index != end {
            let entry = Entry { base: self.queue.slot(index), _queue: PhantomData, _element: PhantomData };
            // SAFETY: `end` is `count` steps round the ring from the start of `index`, and `count`
            // is less than the number of slots and at most `places.len()`. So this runs `count`
            // times, once for each of the first places.
            unsafe {
                each(entry, &mut *place);
                place = place.add(1);
            }
            index = self.cursor.behind(index);
        }
        self.cursor.advance_to(end);
        self.cursor.publish();
        // SAFETY: the first `count` of the places, as above; nothing else refers to them.
        unsafe { core::slice::from_raw_parts_mut(place.sub(count), count) }
    }

    /// Returns the number of elements that [`next`](Self::next) has not yet returned.
    pub(crate) fn count(&mut self) -> usize {
        self.cursor.next_slots(usize::MAX).2
    }

    /// Drops all elements currently in the queue.
    pub(crate) fn skip_all(&mut self) {
        let (_, end, _) = self.cursor.next_slots(usize::MAX);
        self.cursor.advance_to(end);
        self.cursor.publish();
    }

    /// Keeps only the elements that `keep` accepts, in order.
    ///
    /// The kept elements move towards the kernel's end. The slots in front of them return to the
    /// kernel, which meanwhile writes only behind its own index.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Entry<'_, W>) -> bool)
    where
        W: FromBytes + IntoBytes,
    {
        let (start, end, _) = self.cursor.next_slots(usize::MAX);
        let (mut from, mut to) = (end, end);
        while from != start {
            from = self.cursor.before(from);
            let entry = Entry { base: self.queue.slot(from), _queue: PhantomData, _element: PhantomData };
            if keep(&entry) {
                to = self.cursor.before(to);
                let element = entry.copy();
                // SAFETY: the slot holds a `W` (`new`), aligned. It lies between `from` and `end`,
                // so the kernel does not access it before it is given back, and `&mut self` shows
                // that no entry is lent.
                unsafe { self.queue.slot(to).cast::<W>().write(element) };
            }
        }
        self.cursor.advance_to(to);
        self.cursor.publish();
    }

    /// Gives all slots returned by [`next`](Self::next) back to the kernel. `&mut` proves that no
    /// entry is borrowed.
    #[inline(always)]
    pub(crate) fn give_back(&mut self) {
        self.cursor.publish();
    }
}

impl<W> fmt::Debug for ConsumerEnd<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConsumerEnd").field(&self.queue).field(&self.cursor).finish()
    }
}

/// An element borrowed from a queue.
pub(crate) struct Entry<'q, W> {
    base: NonNull<u8>,
    _queue: PhantomData<&'q Queue>,
    _element: PhantomData<fn() -> W>,
}

// Not derived, because a derive would require the same of `W`.
impl<W> Clone for Entry<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Entry<'_, W> {}

impl<W> Entry<'_, W> {
    /// Copies the whole element.
    #[inline(always)]
    pub(crate) fn copy(&self) -> W
    where
        W: FromBytes,
    {
        // SAFETY: the slot holds a `W` (`ConsumerEnd::new`), aligned; the kernel does not write it
        // before it is given back, and every bit pattern is a `W`.
        unsafe { self.base.cast::<W>().read() }
    }

    /// Reads a part of the element at its offset.
    #[inline(always)]
    pub(crate) fn get<const OFFSET: usize, T: FromBytes>(&self) -> T {
        const {
            assert!(OFFSET + size_of::<T>() <= size_of::<W>(), "the part lies within the element");
            assert!(OFFSET.is_multiple_of(align_of::<T>()) && align_of::<T>() <= SLOT_ALIGN);
        }
        // SAFETY: the slot holds a `W` (`ConsumerEnd::new`), within which the part lies, aligned;
        // the kernel does not write it before it is given back, and every bit pattern is a `T`.
        unsafe { self.base.add(OFFSET).cast::<T>().read_volatile() }
    }
}
