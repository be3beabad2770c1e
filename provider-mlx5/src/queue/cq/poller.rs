//! [`Poller`]: the polled end of a completion queue; this file polls one completion at a time.
//!
//! A completion names its queue pair by user index, and its request by position in the queue. The
//! poller finds the `wr_id` recorded for this position and moves the queue's tail. The completion
//! of a shared receive has the user index of the queue pair that took it, or, for the kind XRC, of
//! the shared receive queue itself. The poller frees the receive's entry even if it skips the
//! completion because the queue pair has ended.
//!
//! # Safety
//! A borrowed entry is read only until the next use of the poller, which returns the entry to the
//! device. `Current` points to an entry of the poller's table and to the records kept alive by that
//! entry; each change to the table clears it.
//!
//! # References
//! `ibv_poll_cq(3)`; rdma-core `providers/mlx5/cq.c`
#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use verbs_core::ring::barrier;
use verbs_core::types::WcStatus;

use super::completion::{Completion, Optional};
use super::cqe::{self, Cqe, cqe_opcode};
use super::shared_cq::{COUNTER, PendingChange, Ring, SharedCq, widen};
use super::table::{Entry, Queues, Receives, Table, lies_before};
use crate::doorbell::Record;
use crate::queue::record::{Kind, RecvRecord, SendRecord, SrqRecord};
use crate::queue::srq::Outcome;

/// The polled end of a completion queue.
pub(crate) struct Poller {
    pub(super) ring: Ring,
    /// The index of the next entry, which keeps counting across the end of the ring.
    pub(crate) index: u32,
    /// The index of the first entry not yet returned to the device.
    pub(super) returned: u32,
    /// The doorbell record for the consumer's index, which `shared` also holds.
    pub(super) consumer: Record,
    pub(super) shared: Arc<SharedCq>,
    pub(super) table: Table,
    /// The queue pair of the last completion.
    pub(super) current: Current,
    /// The optional fields of the queue's completions.
    pub(crate) optional: Optional,
    /// The user indices whose table entries have a `since`: the poller has not yet passed all
    /// completions of their former uses.
    pub(super) ending: Vec<u32>,
    /// Whether the poller copies data in completions. This is needed only while the program polls.
    pub(super) copies: bool,
}

/// A queue pair from the table, cached for the fast paths and cleared when the table changes.
#[derive(Clone, Copy)]
pub(super) struct Current {
    /// The user index in the queue pair's completions, as returned by [`Cqe::raw_user_index`];
    /// never `u32::MAX`.
    user_index: u32,
    /// The user index in its send completions; `u32::MAX` if the sends complete elsewhere.
    pub(super) of_sends: u32,
    /// The user index in completions of receives from the queue pair's own receive queue;
    /// `u32::MAX` if there are none.
    pub(super) of_receives: u32,
    /// The user index in completions of receives from a shared receive queue; `u32::MAX` if there
    /// are none.
    pub(super) of_shared: u32,
    /// The kind of each receive of the queue pair.
    pub(super) recv_kind: Kind,
    entry: NonNull<Entry>,
    /// The record of the send queue's requests; null if `of_sends` is `u32::MAX`.
    pub(super) send: *const SendRecord,
    /// The record of the receive queue's requests; null if `of_receives` is `u32::MAX`.
    pub(super) recv: *const RecvRecord,
    /// The record of the shared receive queue's requests; null if `of_shared` is `u32::MAX`.
    pub(super) srq: *const SrqRecord,
}

impl Current {
    /// The value without a current queue pair.
    pub(super) const NONE: Self = Self {
        user_index: u32::MAX,
        of_sends: u32::MAX,
        of_receives: u32::MAX,
        of_shared: u32::MAX,
        recv_kind: Kind::RECEIVE,
        entry: NonNull::dangling(),
        send: core::ptr::null(),
        recv: core::ptr::null(),
        srq: core::ptr::null(),
    };

    /// Returns the queue pair of a table entry. Its completions contain `user_index`.
    fn from_entry(entry: &Entry, user_index: u32) -> Self {
        let current = Self { user_index, entry: NonNull::from(entry), ..Self::NONE };
        // Completions of an earlier use take the slow path.
        let Some(queues) = entry.queues.as_ref().filter(|_| entry.since.is_none()) else { return current };
        let current = Self { recv_kind: queues.recv_kind, ..current };
        let current = match &queues.send {
            Some(record) => Self { of_sends: user_index, send: Arc::as_ptr(record), ..current },
            None => current,
        };
        match &queues.recv {
            Some(Receives::Own(record)) => {
                Self { of_receives: user_index, recv: Arc::as_ptr(record), ..current }
            }
            Some(Receives::Shared(record)) => {
                Self { of_shared: user_index, srq: Arc::as_ptr(record), ..current }
            }
            // The fast paths do not support tags.
            Some(Receives::Tagged(_)) | None => current,
        }
    }
}

// SAFETY: `current` blocked the auto impls. It points to an entry of `table`, which is boxed and of
// a type that is `Send + Sync`, and to records kept alive by that entry. It is used only through
// `&mut self`.
unsafe impl Send for Poller {}
// SAFETY: as for `Send`.
unsafe impl Sync for Poller {}

impl Poller {
    /// Returns the polled end of a ring, with the doorbell record for the consumer's index.
    pub(crate) fn new(ring: Ring, consumer: Record) -> Self {
        let shared = Arc::new(SharedCq::new(ring.clone(), consumer.clone()));
        Self {
            ring,
            index: 0,
            returned: 0,
            consumer,
            shared,
            table: Table::default(),
            current: Current::NONE,
            optional: Optional::default(),
            ending: Vec::new(),
            copies: true,
        }
    }

    /// Returns the part of the completion queue that is shared with queue pairs.
    pub(crate) const fn shared(&self) -> &Arc<SharedCq> {
        &self.shared
    }

    /// Makes the poller continue at an index.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, index: u32) {
        self.index = index;
        self.end_poll();
    }

    /// Returns the polled entries to the device.
    #[inline(always)]
    pub(crate) fn end_poll(&mut self) {
        if self.returned != self.index {
            self.return_polled();
        }
    }

    /// Returns the polled entries as [`end_poll`](Self::end_poll) does, if there are any.
    #[inline(always)]
    pub(super) fn return_polled(&mut self) {
        self.returned = self.index;
        self.consumer.store(self.index & COUNTER);
    }

    /// Returns the next completion, borrowed from the poller. The entries before it return to the
    /// device.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Completion<'_>> {
        let at = self.index;
        let completion = match self.short() {
            Some((cqe, wr_id, kind)) => {
                // Stored even if already returned, because a test costs more than the store.
                self.returned = at;
                self.consumer.store(at & COUNTER);
                Completion::new(cqe, wr_id, WcStatus::SUCCESS, kind)
            }
            None => {
                self.end_poll();
                if self.is_empty() {
                    return None;
                }
                self.advance_any()?
            }
        };
        Some(completion.with_optional(&self.optional))
    }

    /// Returns the next completion, borrowed from the poller. The entries before it stay with the
    /// program until [`end_poll`](Self::end_poll).
    #[inline(always)]
    pub(crate) fn next_of_several(&mut self) -> Option<Completion<'_>> {
        let completion = match self.short() {
            Some((cqe, wr_id, kind)) => Completion::new(cqe, wr_id, WcStatus::SUCCESS, kind),
            None if self.is_empty() => return None,
            None => self.advance_any()?,
        };
        Some(completion.with_optional(&self.optional))
    }

    /// Removes and returns the next completion on the fast path: the completion of a successful
    /// request in the current queue pair's send queue, with no data in the completion entry.
    #[inline(always)]
    fn short<'a>(&mut self) -> Option<(Cqe<'a>, u64, Kind)> {
        let at = self.index;
        let (fields, op_own, round) = self.ring.peek(at);
        if op_own != (cqe_opcode::REQ << 4) | round {
            return None;
        }
        barrier::from_device();
        // SAFETY: the device has handed the entry over and gets it back when the poller is used
        // again.
        let cqe = unsafe { Cqe::new(fields) };
        if self.shared.has_changes() || cqe.raw_user_index() != self.current.of_sends {
            return None;
        }
        self.index = at.wrapping_add(1);
        // SAFETY: the record of the current queue pair, which its entry keeps alive.
        let (wr_id, kind) = unsafe { &*self.current.send }.complete_word(cqe.wqe_counter_word());
        Some((cqe, wr_id, kind))
    }

    /// Returns whether there is neither a completion nor a pending change.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        // In this order, because a change covers the entries written before.
        self.ring.entry(self.index).is_none() && !self.shared.has_changes()
    }

    /// Removes and returns the next completion of any kind, without returning the previous ones to
    /// the device. The completion is valid until the poller is used again: the callers bind its
    /// lifetime.
    #[inline(never)]
    pub(super) fn advance_any<'a>(&mut self) -> Option<Completion<'a>> {
        // At most one round: a device that ignores the consumer's index may write forever.
        for _ in 0..=self.ring.mask() {
            let at = self.index;
            // SAFETY: the entry is lent until the poller is used again, which `end_poll` needs.
            let cqe = self.ring.entry(at).map(|cqe| unsafe { cqe.lent() });
            // Even without a completion, because a queue pair may end without one.
            if self.shared.has_changes() {
                self.apply_changes(at);
            }
            self.index = at.wrapping_add(u32::from(cqe.is_some()));
            if let Some(completion) = self.resolve(cqe?, at) {
                return Some(completion);
            }
            self.skipped();
        }
        None
    }

    /// Returns the completion of an entry; `None` if the completion must be skipped.
    fn resolve<'a>(&mut self, cqe: Cqe<'a>, at: u32) -> Option<Completion<'a>> {
        if cqe.raw_user_index() != self.current.user_index {
            self.look_up(cqe)?;
        }
        // SAFETY: an entry of the table; changes of the table clear `current`.
        let entry = unsafe { self.current.entry.as_ref() };
        let op_own = cqe.op_own();
        if let Some(since) = entry.since
            && lies_before(at, since)
        {
            if is_of_receive(op_own >> 4) {
                entry.release(at, cqe.wqe_counter());
            }
            return None;
        }
        let queues = entry.queues.as_ref()?;
        if let Some(Receives::Tagged(tags)) = &queues.recv
            && cqe.is_of_tag()
        {
            let Outcome { wr_id, status, asks_for_sync } = tags.complete(&cqe.completed())?;
            let kind = if asks_for_sync { Kind::TAG_OUT_OF_STEP } else { Kind::TAG };
            return Some(Completion::new(cqe, wr_id, status, kind));
        }
        if op_own & cqe::FORMAT != 0 {
            return self.scattered(queues, cqe, at);
        }
        match op_own >> 4 {
            cqe_opcode::REQ => {
                let (wr_id, kind) = queues.send.as_ref()?.complete(cqe.wqe_counter());
                Some(Completion::new(cqe, wr_id, WcStatus::SUCCESS, kind))
            }
            cqe_opcode::RESP_WR_IMM..=cqe_opcode::RESP_SEND_INV => {
                let wr_id = queues.recv.as_ref()?.complete(cqe.wqe_counter())?;
                Some(Completion::new(cqe, wr_id, WcStatus::SUCCESS, queues.recv_kind))
            }
            opcode => Self::failed(queues, cqe, opcode),
        }
    }

    /// Returns the completion of a failed request; `None` for an invalid entry.
    #[cold]
    fn failed<'a>(queues: &Queues, cqe: Cqe<'a>, opcode: u8) -> Option<Completion<'a>> {
        let wr_id = match opcode {
            cqe_opcode::REQ_ERR => queues.send.as_ref()?.complete(cqe.wqe_counter()).0,
            cqe_opcode::RESP_ERR => queues.recv.as_ref()?.complete(cqe.wqe_counter())?,
            _ => return None,
        };
        // A flushed queue pair reports its error once and flushes the rest.
        Some(Completion::new(cqe, wr_id, cqe.error_status(), Kind::PLAIN))
    }

    /// Finds the queue pair of an entry and makes it the current one.
    fn look_up(&mut self, cqe: Cqe<'_>) -> Option<()> {
        self.current = Current::NONE;
        let entry = self.table.get(cqe.user_index())?;
        self.current = Current::from_entry(entry, cqe.raw_user_index());
        Some(())
    }

    /// Applies the pending changes to the table, before the poller uses the completion at index
    /// `at`, if there is one.
    #[cold]
    #[inline(never)]
    pub(super) fn apply_changes(&mut self, at: u32) {
        self.current = Current::NONE;
        let Self { shared, table, ending, .. } = self;
        shared.take(|changes| {
            for one in changes {
                match one {
                    PendingChange::Begins { user_index, queues } => {
                        // Completions with this number from its previous queue pair are still
                        // skipped.
                        match table.get_mut(user_index) {
                            Some(entry) => entry.queues = Some(queues),
                            None => table.insert(Entry::new(user_index, queues)),
                        }
                    }
                    PendingChange::Ends { user_index, until, queues } => {
                        if let Some(entry) = table.get_mut(user_index) {
                            if entry.since.is_none() {
                                ending.push(user_index);
                            }
                            entry.end(widen(until, at), queues);
                        }
                    }
                }
            }
            ending.retain(|&user_index| {
                let Some(entry) = table.get_mut(user_index) else { return false };
                let is_over = entry.since.is_none_or(|since| !lies_before(at, since));
                if is_over {
                    entry.forget();
                    if entry.queues.is_none() {
                        table.remove(user_index);
                    }
                }
                !is_over
            });
            !ending.is_empty()
        });
    }
}

impl Drop for Poller {
    /// Frees the entries of completed receives that will no longer be polled, because their shared
    /// receive queues may outlive the poller.
    fn drop(&mut self) {
        let start = self.index;
        self.copies = false;
        // One round is enough (see `advance_any`).
        while self.index.wrapping_sub(start) <= self.ring.mask() && self.advance_any().is_some() {}
    }
}

/// Returns whether an entry of this kind belongs to a receive.
#[inline(always)]
const fn is_of_receive(opcode: u8) -> bool {
    matches!(opcode, cqe_opcode::RESP_WR_IMM..=cqe_opcode::RESP_SEND_INV | cqe_opcode::RESP_ERR)
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("index", &self.index)
            .field("entries", &(self.ring.mask() + 1))
            .finish_non_exhaustive()
    }
}
