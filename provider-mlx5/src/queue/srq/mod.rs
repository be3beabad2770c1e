//! The shared receive queue: a list of entries in memory. Posting stores an entry and, at the end,
//! a doorbell record; no register is rung.
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
//! The poster stores an entry's link with its list. It therefore needs the successor of an entry
//! before it posts the entry, and one entry of the queue is never posted: a queue of 8 entries
//! takes 7 receives. The successor is the next entry without a receive, in the order of the queue
//! and across its end. libmlx5 links entries in the same order. The poster searches for several of
//! them at once, up to `last`.
//!
//! Pollers of completion queues free entries by the [`SrqRecord`], without a lock. If a queue pair
//! ends with unpolled completions, their entries stay in use until its completion queue is polled,
//! or dropped; libmlx5 frees them at once, under the locks of both queues.
//!
//! The file `tags` has the tag list of the kind TM, and [`Srq`](crate::Srq) is the kernel object.
//!
//! # Safety
//! Entries are stored at places below the queue's length that no unfinished receive uses. The
//! device reads an entry only after the doorbell record covers it; `ring` stores the record after
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

/// The size of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Entries in the queue, a power of two. One of them is never posted.
    pub(crate) entries: u32,
    /// The size of an entry, in units: a power of two. The first unit has the link.
    pub(crate) units: u32,
}

impl Shape {
    /// Returns the capacity, in receives.
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

/// The units of an entry before its list.
pub(crate) const LINK: u32 = 1;

/// The maximum number of entries, because a link and a completion name one by 16 bits.
pub(crate) const MAX_ENTRIES: u32 = 1 << 16;

/// The queue of a shared receive queue.
pub struct SrqQueue {
    checks: RecvChecks,
    entries: Entries,
    /// The entry for the next receive.
    head: u32,
    /// The successor of `head`, unless that is `last`.
    next: u32,
    /// The last entry with a known place in the list. From `next` to it, the list is in order.
    last: u32,
    /// The first entry not marked in the record. From it up to `head`, all are posted, have their
    /// bits in one word, and are in order.
    marked: u32,
    /// The number of receives put in.
    counter: u32,
    requests: Arc<SrqRecord>,
    record: Record,
    /// The tag list, for the kind TM.
    pub(crate) tags: Option<Box<TagList>>,
}

impl SrqQueue {
    /// Returns the queue at the start of its memory, empty, with all entries linked.
    ///
    /// # Panics
    /// If the queue does not lie within its memory, or is not aligned to a unit.
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

    /// Returns the resources of its shared receive queue.
    pub(crate) const fn resources(&self) -> &Arc<QueueResources> {
        self.entries.resources()
    }

    /// Links the entries with a known place in the list and returns the first and the last of them.
    /// In a queue without any posting, these are all.
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

    /// Returns the receives in the queue, for the pollers of their completion queues.
    pub(crate) const fn requests(&self) -> &Arc<SrqRecord> {
        &self.requests
    }

    /// Returns the memory of the next entry, if one more receive fits; its successor is then known.
    /// The caller puts the receive in.
    #[inline(always)]
    fn next(&mut self) -> Option<NonNull<u8>> {
        if self.head == self.last {
            self.extend()?;
        }
        Some(self.entries.view().at(self.head))
    }

    /// Finds successors of the last entry of the list, which the caller is about to post.
    #[inline(never)]
    fn extend(&mut self) -> Option<()> {
        self.mark();
        let found = self.requests.free_behind(self.head)?;
        self.requests.mark(self.head, bit(self.head));
        (self.next, self.last) = (*found.start(), *found.end());
        self.marked = self.next;
        Some(())
    }

    /// Marks the receives in the record.
    #[inline(always)]
    fn mark(&mut self) {
        if self.marked != self.head {
            // The bits from the first entry on, without those from `head` on.
            self.requests.mark(self.head, bit(self.head).wrapping_sub(bit(self.marked)));
            self.marked = self.head;
        }
    }

    /// Links the next entry, at `at` and with its list stored, and records its receive.
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

    /// Puts a common receive into the queue, with one SGE, and returns whether it did.
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
            // SAFETY: the caller's promise is the same.
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
