//! The shared receive queue: a list of entries in memory. Posting stores an entry per receive and
//! finally a doorbell record; no register is rung.
//!
//! Receives end in any order, so the queue is not a ring. Each entry names its successor, and the
//! device follows these links up to the counter in the doorbell record.
//!
//! ```text
//!            the device takes                  the poster puts in
//!               ▼                                 ▼ head
//!   ┌───┐     ┌───┐     ┌───┐     ┌───┐         ┌───┐     ┌───┐
//!   │ 4 ├────►│ 0 ├────►│ 1 ├────►│ 7 ├────────►│ 5 ├ ─ ─►│ 6 │ last     2 and 3 were taken, and
//!   └───┘     └───┘     └───┘     └───┘         └───┘     └───┘          have not completed
//! ```
//!
//! The poster stores an entry's link together with its list. It therefore needs to know the
//! successor before it posts the entry, and one entry of the queue is never posted: a queue with 8
//! entries takes 7 receives. The successor is the next entry without a receive, in queue order and
//! across the end. libmlx5 links entries in the same order. The poster searches for several
//! successors at once, up to `last`.
//!
//! Pollers of completion queues free entries through the [`SrqRecord`], without a lock. If a queue
//! pair ends with unpolled completions, their entries stay in use until the queue pair's completion
//! queue is polled or dropped; libmlx5 frees them at once, under the locks of both queues.
//!
//! The file `tags` contains the tag list for the kind TM, and [`Srq`](crate::Srq) is the kernel
//! object.
//!
//! # Safety
//! Entries are stored at indices below the queue's length that no unfinished receive uses. The
//! device reads an entry only once the doorbell record covers it; `ring` stores the record after
//! the entry. No link is read back from memory shared with the device.
//!
//! # References
//! `ibv_post_srq_recv(3)`; rdma-core `providers/mlx5/srq.c` (`mlx5_post_srq_recv`,
//! `set_next_contig_wqes`)
#![allow(unsafe_code)]

pub(crate) mod tags;
#[cfg(test)]
mod tests;

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use verbs_core::checks::RecvChecks;
use verbs_core::provider::RecvQueue;
use verbs_core::ring::barrier;
use verbs_core::types::{OpsWr, PostError, PostReason, RecvWr};

use crate::doorbell::Record;
use crate::queue::entries::Entries;
use crate::queue::record::{SrqRecord, WORD, bit};
use crate::queue::resources::QueueResources;
use crate::wqe::{self, UNIT};

pub(crate) use self::tags::{Completed, Outcome, TagList, TagRecord};

/// The dimensions of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The number of entries in the queue, a power of two. One of them is never posted.
    pub(crate) entries: u32,
    /// The number of units in an entry, a power of two. The first unit holds the link.
    pub(crate) units: u32,
}

impl Shape {
    /// Returns the number of receives that fit into the queue.
    pub(crate) const fn max_wr(self) -> u32 {
        self.entries - 1
    }

    /// Returns the number of elements that fit into a receive.
    pub(crate) const fn max_sge(self) -> u32 {
        self.units - LINK
    }

    /// Returns the size of the queue in bytes.
    pub(crate) const fn len(self) -> usize {
        self.entries as usize * self.units as usize * UNIT
    }
}

/// The number of units before an entry's list.
pub(crate) const LINK: u32 = 1;

/// The maximum number of entries, because a link and a completion name an entry with 16 bits.
pub(crate) const MAX_ENTRIES: u32 = 1 << 16;

/// The posting side of a shared receive queue.
pub struct SrqQueue {
    checks: RecvChecks,
    entries: Entries,
    /// The index of the entry for the next receive.
    head: u32,
    /// The index of the entry after `head`; unused if `head` is `last`.
    next: u32,
    /// The index of the last entry whose position in the list is known. From `next` to this entry,
    /// the list is in order.
    last: u32,
    /// The index of the first entry that is not marked in the record. The entries from here up to
    /// `head` are posted, are in order, and have their bits in one word.
    marked: u32,
    /// The number of receives put into the queue.
    counter: u32,
    requests: Arc<SrqRecord>,
    record: Record,
    /// The tag list, for the kind TM.
    pub(crate) tags: Option<Box<TagList>>,
}

impl SrqQueue {
    /// Returns an empty queue at the start of its memory, with all entries linked.
    ///
    /// # Panics
    /// Panics if the queue does not lie within its memory, or is not aligned to a unit.
    pub(crate) fn new(shape: Shape, record: Record, resources: Arc<QueueResources>) -> Self {
        let Shape { entries, units } = shape;
        assert!(entries <= MAX_ENTRIES, "{shape:?}");
        record.store(0);
        let queue = Self {
            checks: RecvChecks::of_srq(shape.max_sge()),
            entries: Entries::new(entries, units, LINK, resources),
            head: 0,
            next: 1,
            last: entries.min(WORD) - 1,
            marked: 0,
            counter: 0,
            requests: SrqRecord::new(entries),
            record,
            tags: None,
        };
        for entry in 0..entries {
            // SAFETY: an entry of the queue; the device reads none before the record covers it.
            unsafe { wqe::store(queue.entries.view().at(entry), wqe::link((entry + 1) % entries)) };
        }
        queue
    }

    /// Returns the resources of the shared receive queue.
    pub(crate) const fn resources(&self) -> &Arc<QueueResources> {
        self.entries.resources()
    }

    /// Links the entries whose positions in the list are known, and returns the indices of the
    /// first and the last of these entries. If nothing was ever posted, all entries are linked.
    pub(crate) fn link_free(&mut self) -> (u32, u32) {
        if self.counter == 0 {
            // Already linked by `new`.
            return (self.head, self.entries.count() - 1);
        }
        let mut at = self.head;
        while at != self.last {
            let next = if at == self.head { self.next } else { at + 1 };
            // SAFETY: an entry without a receive, which the doorbell record does not cover.
            unsafe { wqe::store(self.entries.view().at(at), wqe::link(next)) };
            at = next;
        }
        (self.head, self.last)
    }

    /// Returns the receives in the queue, for the pollers of the completion queues.
    pub(crate) const fn requests(&self) -> &Arc<SrqRecord> {
        &self.requests
    }

    /// Returns the address of the next entry if the queue is not full; the entry's successor is
    /// then known. The caller puts a receive into the entry.
    #[inline(always)]
    fn next(&mut self) -> Option<NonNull<u8>> {
        if self.head == self.last {
            self.extend()?;
        }
        Some(self.entries.view().at(self.head))
    }

    /// Finds successors for the last entry of the list. The caller is about to post this entry.
    #[inline(never)]
    fn extend(&mut self) -> Option<()> {
        self.mark();
        let found = self.requests.free_behind(self.head)?;
        self.requests.mark(self.head, bit(self.head));
        (self.next, self.last) = (*found.start(), *found.end());
        self.marked = self.next;
        Some(())
    }

    /// Marks the receives up to `head` as posted in the record.
    #[inline(always)]
    fn mark(&mut self) {
        if self.marked != self.head {
            // The bits from the first entry up to, but not including, `head`.
            self.requests.mark(self.head, bit(self.head).wrapping_sub(bit(self.marked)));
            self.marked = self.head;
        }
    }

    /// Links the next entry, `at`, whose list has been stored, and records its receive.
    ///
    /// # Safety
    /// [`next`](Self::next) has returned `at`.
    #[inline(always)]
    unsafe fn finish(&mut self, at: NonNull<u8>, wr_id: u64) {
        // SAFETY: no unfinished receive uses the entry, whose first unit has the link.
        unsafe { wqe::store(at, wqe::link(self.next)) };
        self.requests.put(self.head, wr_id);
        (self.head, self.next) = (self.next, self.next + 1);
        self.counter = self.counter.wrapping_add(1);
    }

    /// Puts a receive into the queue if it is a common receive with one SGE. Returns whether the
    /// receive was queued.
    #[inline(always)]
    fn post_plain(&mut self, wr: &RecvWr<'_>) -> bool {
        if self.checks.is_plain(wr)
            && let [sge] = wr.sge
            && sge.length > 0
            && let Some(at) = self.next()
        {
            // SAFETY: no unfinished receive uses the entry, whose list follows the link; `at` comes
            // from `next`.
            unsafe {
                self.entries.view().put_one(at.add(UNIT), sge);
                self.finish(at, wr.wr_id);
            }
            return true;
        }
        false
    }

    /// Puts any receive into the queue, or returns the reason for rejecting it.
    #[inline(never)]
    fn post_any(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        self.checks.check(wr)?;
        let at = self.next().ok_or(PostReason::QueueFull)?;
        // SAFETY: as in `post_plain`; the checks found no more elements than the entry has units
        // after the link (`Shape::max_sge`).
        unsafe {
            self.entries.view().put_list(at.add(UNIT), wr.sge);
            self.finish(at, wr.wr_id);
        }
        Ok(())
    }
}

impl RecvQueue for SrqQueue {
    #[inline(always)]
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        if self.post_plain(wr) {
            return Ok(());
        }
        let wr = *wr;
        self.post_any(&wr)
    }

    #[inline(always)]
    fn ring(&mut self) {
        self.mark();
        barrier::to_device();
        self.record.store(self.counter & 0xffff);
    }

    unsafe fn post_srq_ops(&mut self, wrs: &mut [OpsWr<'_>]) -> Result<(), PostError> {
        let Some(tags) = &mut self.tags else {
            return Err(PostError { accepted: 0, reason: PostReason::NoTagMatching });
        };
        let posted = wrs.iter_mut().enumerate().try_for_each(|(accepted, wr)| {
            // SAFETY: the caller makes the same promise.
            unsafe { tags.post(wr) }.map_err(|reason| PostError { accepted, reason })
        });
        tags.ring();
        posted
    }
}

impl fmt::Debug for SrqQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqQueue")
            .field("checks", &self.checks)
            .field("head", &self.head)
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}
