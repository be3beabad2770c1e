//! The tag list for a shared receive queue of the kind TM: [`TagList`] is the poster's end, and
//! [`TagRecord`] is shared with the poller of the completion queue.
//!
//! ```text
//!   Add   the index of the previous Add, ──► device ──► "added", if signaled
//!         and the index of the next Add  ──► device ──► "received", once or twice
//!   Del   the index                      ──► device ──► "removed", with or without success
//! ```
//!
//! Operations are entries in the send queue of a hidden queue pair. They complete in order, to the
//! completion queue of the shared receive queue, and their completions do not name an entry, so
//! [`TagRecord`] keeps the operations in order.
//!
//! An index is free when none of its completions is awaited. An `Add` awaits the completion of its
//! message, and each signaled operation awaits its own completion. A successful `Del` ends the wait
//! for the message, and so does an unsignaled `Del`, as in libmlx5.
//!
//! Invariant: the device's index for the next `Add` is free, and no search returns it as free in
//! the meantime.
//!
//! # Safety
//! All fields of the record are atomics found by checked indexes, so wrong indexes from a device
//! cause wrong numbers but no undefined behaviour. The file posts entries to a send queue, in a
//! form the device accepts.
//!
//! # References
//! `ibv_post_srq_ops(3)`; rdma-core `providers/mlx5/qp.c` (`mlx5_post_srq_ops`), `cq.c`
//! (`handle_tag_matching`)
#![allow(unsafe_code)]

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use verbs_core::provider::SendQueue as _;
use verbs_core::types::{OpsFlags, OpsWr, PostReason, Sge, TmOp, WcStatus};

use crate::queue::record::{SendRecord, SrqRecord};
use crate::queue::sq::Sq;
use crate::wqe::{self, UNIT, opcode, tag};

/// The maximum number of elements per tag.
const MAX_SGE: u32 = 1;

/// The value for an operation without a tag, in [`TagRecord::operations`]. No list is that long.
const NO_TAG: u32 = 0xffff;

/// The maximum number of tags in a list: an index has 16 bits, and one extra index is always
/// reserved for the next `Add`.
pub(crate) const MAX_TAGS: u32 = NO_TAG - 1;

/// The maximum number of unreported unexpected messages before a completion requests a report.
const MAX_UNREPORTED: u32 = 0x3fff;

/// The state of a tag index.
#[derive(Debug, Default)]
struct Index {
    /// The `wr_id` for completions of the message.
    wr_id: AtomicU64,
    /// The number of completions still awaited.
    awaited: AtomicU32,
    /// The number of unexpected messages the program had reported as handled when the tag was
    /// added.
    handled: AtomicU32,
}

impl Index {
    /// Reduces the number of awaited completions by one.
    fn release(&self) {
        // A device may report more completions than requested.
        let _ = self.awaited.fetch_update(Ordering::Release, Ordering::Relaxed, |count| count.checked_sub(1));
    }

    fn is_free(&self) -> bool {
        self.awaited.load(Ordering::Acquire) == 0
    }
}

/// The tags and the operations of a tag list.
#[derive(Debug)]
pub(crate) struct TagRecord {
    indexes: Box<[Index]>,
    /// The signaled operations as a ring. Each element holds the block of a send queue entry and
    /// the operation's tag index.
    operations: Box<[AtomicU32]>,
    /// The number of posted signaled operations. Only the poster writes it.
    posted: AtomicU32,
    /// The number of completed signaled operations. Only the poller writes it.
    completed: AtomicU32,
    /// The number of unexpected messages. Only the poller writes it.
    unexpected: AtomicU32,
    /// The number of unexpected messages the program has reported as handled. Only the poster
    /// writes it.
    handled: AtomicU32,
    /// The record of the send queue that contains the operations.
    entries: Arc<SendRecord>,
    /// The receives in the shared receive queue.
    receives: Arc<SrqRecord>,
}

/// The result of a tag matching completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    /// Whether the device waits for the program to report how many unexpected messages it has
    /// handled.
    pub(crate) asks_for_sync: bool,
}

/// The fields of a tag matching completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    /// The operation that completed.
    pub(crate) app_op: u8,
    /// The index of the tag.
    pub(crate) index: u16,
    /// The index of the entry in the shared receive queue.
    pub(crate) entry: u16,
    pub(crate) success: bool,
    /// The device's count of unexpected messages.
    pub(crate) unexpected: u16,
}

impl TagRecord {
    /// Returns the size in bytes of the record for a list with `max_tags` tags, without the
    /// operations.
    pub(crate) fn size(max_tags: u32) -> usize {
        size_of::<Index>() * (max_tags.min(MAX_TAGS) as usize + 1)
    }

    /// Creates the record for a list with `max_tags` tags, at most [`MAX_TAGS`]. Its operations are
    /// entries in the send queue that `entries` records.
    fn new(max_tags: u32, entries: Arc<SendRecord>, receives: Arc<SrqRecord>) -> Arc<Self> {
        let blocks = entries.slots().len();
        Arc::new(Self {
            indexes: (0..=max_tags.min(MAX_TAGS)).map(|_| Index::default()).collect(),
            operations: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
            posted: AtomicU32::new(0),
            completed: AtomicU32::new(0),
            unexpected: AtomicU32::new(0),
            handled: AtomicU32::new(0),
            entries,
            receives,
        })
    }

    /// Returns the receives in the shared receive queue.
    pub(crate) const fn receives(&self) -> &Arc<SrqRecord> {
        &self.receives
    }

    /// Marks the message or operation of a completion as ended. Returns `None` if the completion
    /// was not awaited.
    pub(crate) fn complete(&self, completed: &Completed) -> Option<Outcome> {
        use tag::done;
        let success = |wr_id| Outcome { wr_id, status: WcStatus::SUCCESS, asks_for_sync: false };
        match completed.app_op {
            done::APPEND | done::REMOVE | done::NOOP => self.complete_operation(completed),
            done::UNEXPECTED => {
                let count = self.unexpected.load(Ordering::Relaxed).wrapping_add(1);
                self.unexpected.store(count, Ordering::Relaxed);
                let wr_id = self.receives.complete(completed.entry)?;
                let unreported = count.wrapping_sub(self.handled.load(Ordering::Relaxed)).cast_signed();
                let asks_for_sync = unreported > MAX_UNREPORTED.cast_signed();
                Some(Outcome { asks_for_sync, ..success(wr_id) })
            }
            done::NO_TAG => self.receives.complete(completed.entry).map(success),
            app_op => {
                let index =
                    self.indexes.get(usize::from(completed.index)).filter(|index| !index.is_free())?;
                let outcome = success(index.wr_id.load(Ordering::Relaxed));
                match app_op {
                    // Another completion of the same message follows.
                    done::CONSUMED => Some(outcome),
                    done::CONSUMED_SOFTWARE => {
                        Some(Outcome { status: WcStatus::TM_RNDV_INCOMPLETE, ..outcome })
                    }
                    done::CONSUMED_MESSAGE | done::EXPECTED => {
                        index.release();
                        Some(outcome)
                    }
                    done::CONSUMED_MESSAGE_SOFTWARE | done::CANCELED => {
                        index.release();
                        Some(Outcome { status: WcStatus::TM_RNDV_INCOMPLETE, ..outcome })
                    }
                    _ => None,
                }
            }
        }
    }

    /// Marks the oldest signaled operation as ended.
    fn complete_operation(&self, completed: &Completed) -> Option<Outcome> {
        let position = self.completed.load(Ordering::Relaxed);
        if position == self.posted.load(Ordering::Acquire) {
            return None;
        }
        let operation = self.operations.get(self.place(position))?.load(Ordering::Relaxed);
        let (block, tag) = ((operation >> 16) as u16, operation & 0xffff);
        let (wr_id, _) = self.entries.view().request(block);
        let mut outcome = Outcome { wr_id, status: WcStatus::SUCCESS, asks_for_sync: false };
        let is_removed = completed.app_op == tag::done::REMOVE && completed.success;
        if completed.app_op == tag::done::REMOVE && !completed.success {
            outcome.status = WcStatus::TM_ERR;
        }
        if let Some(index) = self.indexes.get(tag as usize).filter(|_| tag != NO_TAG) {
            outcome.asks_for_sync = completed.unexpected != index.handled.load(Ordering::Relaxed) as u16;
            if is_removed {
                // The tag's message will not arrive.
                index.release();
            }
            index.release();
        }
        self.completed.store(position.wrapping_add(1), Ordering::Relaxed);
        self.entries.end(block);
        Some(outcome)
    }

    /// Returns the index of an operation in the ring, whose length is a power of two.
    const fn place(&self, position: u32) -> usize {
        position as usize & (self.operations.len() - 1)
    }

    /// Returns the first free index after the given one, wrapping around at the end.
    fn free_behind(&self, index: u16) -> Option<u16> {
        let (first, rest) = self.indexes.split_at(usize::from(index));
        let behind = rest.iter().enumerate().skip(1).map(|(n, free)| (usize::from(index) + n, free));
        let mut found = behind.chain(first.iter().enumerate());
        found.find(|(_, index)| index.is_free()).map(|(n, _)| n as u16)
    }
}

/// The poster's end of a tag list.
pub(crate) struct TagList {
    record: Arc<TagRecord>,
    /// The send queue of the hidden queue pair, which is in RTS.
    sq: Sq,
    qp_num: u32,
    /// The device's index for the next `Add`.
    next: u16,
}

impl TagList {
    /// Returns an empty list for up to `max_tags` tags.
    pub(crate) fn new(max_tags: u32, sq: Sq, qp_num: u32, receives: &Arc<SrqRecord>) -> Self {
        let record = TagRecord::new(max_tags, Arc::clone(sq.requests()), Arc::clone(receives));
        Self { record, sq, qp_num, next: 0 }
    }

    /// Returns the part that is shared with the poller.
    pub(crate) const fn record(&self) -> &Arc<TagRecord> {
        &self.record
    }

    /// Puts an operation into the queue. For an `Add`, also sets the handle.
    ///
    /// # Safety
    /// Same as `RecvQueue::post_srq_ops`.
    ///
    /// # Errors
    /// [`PostReason::QueueFull`] if the list has no free index for the tag, or the queue no space
    /// for the operation; [`PostReason::TooManySge`] for a tag with more than one element;
    /// [`PostReason::TagHandle`] for an invalid handle; [`PostReason::NoTagMatching`] after an
    /// attempt to destroy the shared receive queue.
    pub(crate) unsafe fn post(&mut self, wr: &mut OpsWr<'_>) -> Result<(), PostReason> {
        if self.sq.resources().is_over() {
            return Err(PostReason::NoTagMatching);
        }
        let reports = wr.flags.contains(OpsFlags::TM_SYNC);
        let handled = if reports { wr.unexpected_cnt } else { self.record.handled.load(Ordering::Relaxed) };
        let operation = tag::Operation {
            is_signaled: wr.flags.contains(OpsFlags::SIGNALED),
            handled: reports.then_some(wr.unexpected_cnt as u16),
        };
        let tag = match &mut wr.op {
            &mut TmOp::Add { recv_wr_id, sge, tag, mask, ref mut handle } => {
                let (index, next) = (self.next, self.record.free_behind(self.next));
                let next = next.ok_or(PostReason::QueueFull)?;
                let buffer = match sge {
                    [] => None,
                    [sge] => Some(sge).filter(|sge| sge.length > 0),
                    more => return Err(PostReason::TooManySge { given: more.len(), max: MAX_SGE }),
                };
                let [first, second] = tag::segment(tag::APPEND, operation, next, tag, mask);
                let data = buffer.map_or(wqe::TERMINATOR, |sge: &Sge| wqe::data(sge));
                // SAFETY: the caller's promise for the memory of the element.
                unsafe { self.put(wr.wr_id, operation, index.into(), [first, second, data])? };
                let at = &self.record.indexes[usize::from(index)];
                at.wr_id.store(recv_wr_id, Ordering::Relaxed);
                at.handled.store(handled, Ordering::Relaxed);
                at.awaited.fetch_add(1, Ordering::Relaxed);
                (self.next, *handle) = (next, index.into());
                usize::from(index)
            }
            &mut TmOp::Del { handle } => {
                let known = u16::try_from(handle).ok().filter(|&index| {
                    self.record.indexes.get(usize::from(index)).is_some_and(|index| !index.is_free())
                });
                let index = known.ok_or(PostReason::TagHandle { handle })?;
                let segment = tag::segment(tag::REMOVE, operation, index, 0, 0);
                // SAFETY: the operation names no memory.
                unsafe { self.put(wr.wr_id, operation, index.into(), segment)? };
                if !operation.is_signaled {
                    self.record.indexes[usize::from(index)].release();
                }
                usize::from(index)
            }
            TmOp::Sync => {
                // SAFETY: as above.
                unsafe {
                    self.put(wr.wr_id, operation, NO_TAG, tag::segment(tag::NOOP, operation, 0, 0, 0))?;
                };
                usize::MAX
            }
        };
        if reports {
            self.record.handled.store(wr.unexpected_cnt, Ordering::Relaxed);
        }
        if operation.is_signaled {
            if let Some(index) = self.record.indexes.get(tag) {
                index.awaited.fetch_add(1, Ordering::Relaxed);
            }
            self.record.posted.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Puts an entry into the queue and records the operation if it is signaled. The caller then
    /// announces the operation to the poller.
    ///
    /// # Safety
    /// Same as [`post`](Self::post).
    unsafe fn put<const N: usize>(
        &mut self,
        wr_id: u64,
        operation: tag::Operation,
        tag: u32,
        segments: [wqe::Words; N],
    ) -> Result<(), PostReason> {
        let ds = N as u32 + 1;
        let control = [wqe::pair(u32::from(opcode::TAG_MATCHING), self.qp_num << 8 | ds), 0];
        let block = self.sq.next_block();
        let mut request = [[0; UNIT]; 4];
        let units = core::iter::once(control).chain(segments);
        for (unit, [high, low]) in request.iter_mut().zip(units) {
            unit[..8].copy_from_slice(&high.to_be_bytes());
            unit[8..].copy_from_slice(&low.to_be_bytes());
        }
        // SAFETY: the device accepts this entry from a queue pair with a tag list; the caller makes
        // the promise about the memory.
        unsafe { self.sq.post_raw(wr_id, &request[..ds as usize])? };
        if operation.is_signaled {
            let position = self.record.posted.load(Ordering::Relaxed);
            let place = self.record.place(position);
            self.record.operations[place].store(u32::from(block) << 16 | tag, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Publishes all operations in the queue.
    pub(crate) fn ring(&mut self) {
        // This queue's doorbell cannot fail.
        let _ = self.sq.ring();
    }
}

impl fmt::Debug for TagList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagList").field("next", &self.next).field("sq", &self.sq).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
