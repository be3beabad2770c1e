//! The receive queue. Posting stores a list per receive and finally a doorbell record; no register
//! is rung.
//!
//! # Safety
//! Entries are stored at indices below the queue's length that no unfinished receive uses. The
//! device reads an entry only once the doorbell record covers it; `ring` stores the record after
//! the entry.
//!
//! # References
//! `ibv_post_recv(3)`; rdma-core `providers/mlx5/qp.c` (`mlx5_post_recv`)
#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use verbs_core::checks::RecvChecks;
use verbs_core::provider::RecvQueue;
use verbs_core::ring::barrier;
use verbs_core::types::{PostError, PostReason, QpCap, QpState, RecvWr};

use crate::direct::QueueDirect;
use crate::doorbell::Record;
use crate::queue::entries::Entries;
use crate::queue::record::RecvRecord;
use crate::queue::resources::QueueResources;
use crate::wqe::UNIT;

/// The dimensions of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The number of entries in the queue, a power of two.
    pub(crate) entries: u32,
    /// The number of units in an entry, a power of two.
    pub(crate) units: u32,
    /// The capacity reported to the program.
    pub(crate) cap: QpCap,
}

impl Shape {
    /// Describes a queue at an address, for direct access.
    pub(crate) const fn direct(self, buf: NonNull<u8>) -> QueueDirect {
        QueueDirect { buf, entries: self.entries, stride: self.units * UNIT as u32 }
    }
}

/// The mask for a doorbell record's counter, which has 16 bits.
const COUNTER: u32 = 0xffff;

/// The receive queue of a queue pair or work queue.
pub struct Rq {
    checks: RecvChecks,
    entries: Entries,
    /// The maximum number of unfinished receives: the number of entries, or 0.
    capacity: u32,
    /// The number of receives put into the queue.
    head: u32,
    /// The limit for `head`. Once `head` reaches it, the queue may be full.
    limit: u32,
    /// The mask of `head` for the doorbell record: 0 while receives are held back.
    published: u32,
    /// Whether the queue holds receives back until the queue pair is in RTR.
    holds_back: bool,
    requests: Arc<RecvRecord>,
    record: Record,
}

impl Rq {
    /// Returns the receive queue of a queue pair in RESET, at the start of its memory.
    ///
    /// # Panics
    /// If the queue does not lie within its memory, or is not aligned to a unit.
    pub(crate) fn new(shape: Shape, record: Record, resources: Arc<QueueResources>) -> Self {
        Self::with_checks(RecvChecks::new(&shape.cap), shape, record, resources)
    }

    /// Returns a placeholder for a queue pair that uses a shared receive queue. It accepts no
    /// receives.
    pub(crate) fn of_shared(record: Record, resources: Arc<QueueResources>) -> Self {
        let shape = Shape { entries: 1, units: 1, cap: QpCap::default() };
        Self::with_checks(RecvChecks::of_shared(), shape, record, resources).full()
    }

    /// Returns the queue of a queue pair that has no space for receives. It is always full.
    pub(crate) fn empty(record: Record, resources: Arc<QueueResources>) -> Self {
        let shape = Shape { entries: 1, units: 1, cap: QpCap::default() };
        Self::new(shape, record, resources).full()
    }

    /// Makes the queue hold receives back until the queue pair is in RTR. Raw packet queue pairs
    /// need this: on the device, their receive queue is ready in INIT, but a queue pair must not
    /// receive anything in that state.
    pub(crate) fn held_back(self) -> Self {
        Self { holds_back: true, published: 0, ..self }
    }

    fn full(self) -> Self {
        Self { limit: 0, capacity: 0, ..self }
    }

    fn with_checks(checks: RecvChecks, shape: Shape, record: Record, resources: Arc<QueueResources>) -> Self {
        let Shape { entries, units, cap } = shape;
        // A completion names an entry with 16 bits.
        assert!(entries <= 1 << 15 && units >= cap.max_recv_sge, "{shape:?}");
        record.store(0);
        Self {
            checks,
            entries: Entries::new(entries, units, 0, resources),
            capacity: entries,
            head: 0,
            limit: entries,
            published: COUNTER,
            holds_back: false,
            requests: RecvRecord::new(entries),
            record,
        }
    }

    /// Returns the resources of the queue pair.
    pub(crate) const fn resources(&self) -> &Arc<QueueResources> {
        self.entries.resources()
    }

    /// Returns the requests in the queue, for the poller of its completion queue.
    pub(crate) const fn requests(&self) -> &Arc<RecvRecord> {
        &self.requests
    }

    /// Adapts the queue to the queue pair's new state. After RESET, the queue restarts at its first
    /// entry, with a new record of its requests and a doorbell record of 0, as the device expects.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.checks.moved_to(state);
        if state == QpState::RESET {
            (self.head, self.limit) = (0, self.capacity);
            self.requests = RecvRecord::new(self.entries.count());
            self.record.store(0);
        }
        if self.holds_back {
            let was_held = self.published == 0;
            let is_held = matches!(state, QpState::RESET | QpState::INIT);
            self.published = if is_held { 0 } else { COUNTER };
            if was_held && !is_held {
                self.ring();
            }
        }
    }

    /// Returns the address of the next entry if the queue is not full.
    #[inline(always)]
    fn next(&mut self) -> Option<NonNull<u8>> {
        if self.head == self.limit {
            self.limit = self.requests.tail().wrapping_add(self.capacity);
            if self.head == self.limit {
                return None;
            }
        }
        Some(self.entries.view().at(self.head))
    }

    /// Records a receive whose list has been stored in the next entry.
    #[inline(always)]
    fn finish(&mut self, wr_id: u64) {
        self.requests.put(self.head, wr_id);
        self.head = self.head.wrapping_add(1);
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
            // SAFETY: no unfinished receive uses the entry.
            unsafe { self.entries.view().put_one(at, sge) };
            self.finish(wr.wr_id);
            return true;
        }
        false
    }

    /// Posts a batch. The common receives are queued by one loop that keeps the queue in registers.
    #[inline(never)]
    fn post_many(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut accepted = self.put_batch(wrs);
        let mut refused = None;
        for wr in &wrs[accepted..] {
            if !self.post_plain(wr)
                && let Err(reason) = self.post_any(wr)
            {
                refused = Some(reason);
                break;
            }
            accepted += 1;
        }
        if accepted > 0 {
            self.ring();
        }
        refused.map_or(Ok(()), |reason| Err(PostError { accepted, reason }))
    }

    /// Queues the common receives at the start of a list, as many as fit, and returns their number.
    #[inline(always)]
    fn put_batch(&mut self, wrs: &[RecvWr<'_>]) -> usize {
        let room = self.limit.wrapping_sub(self.head) as usize;
        let (checks, entries, requests) = (self.checks, *self.entries.view(), self.requests.view());
        let (first, mut head) = (self.head, self.head);
        for wr in &wrs[..wrs.len().min(room)] {
            let [sge] = wr.sge else { break };
            if !checks.is_plain(wr) || sge.length == 0 {
                break;
            }
            let entry = entries.place(head);
            // SAFETY: no unfinished receive uses the entry, because there is room. The record has
            // as many slots as the queue has entries (`with_checks`).
            unsafe {
                entries.put_one(entries.at_place(entry), sge);
                requests.put_at(entry, wr.wr_id);
            }
            head = head.wrapping_add(1);
        }
        self.head = head;
        head.wrapping_sub(first) as usize
    }

    /// Puts any receive into the queue, or returns the reason for rejecting it.
    #[inline(never)]
    fn post_any(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        self.checks.check(wr)?;
        let at = self.next().ok_or(PostReason::QueueFull)?;
        // SAFETY: no unfinished receive uses the entry. The checks found no more elements than the
        // entry has units (`with_checks`).
        unsafe { self.entries.view().put_list(at, wr.sge) };
        self.finish(wr.wr_id);
        Ok(())
    }
}

impl RecvQueue for Rq {
    #[inline(always)]
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        if self.post_plain(wr) {
            return Ok(());
        }
        let wr = *wr;
        self.post_any(&wr)
    }

    #[inline(always)]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let [wr] = wrs else { return self.post_many(wrs) };
        if !self.post_plain(wr) {
            return self.post_many(&[*wr]);
        }
        self.ring();
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self) {
        barrier::to_device();
        self.record.store(self.head & self.published);
    }
}

impl fmt::Debug for Rq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rq")
            .field("checks", &self.checks)
            .field("head", &self.head)
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::types::Sge;

    use super::*;
    use crate::paper::{PaperCqe, PaperQp, PaperShape};

    fn post(qp: &mut PaperQp, wr_id: u64, sge: &[Sge]) -> Result<(), PostReason> {
        // SAFETY: a paper device accesses no memory.
        let posted = unsafe { qp.rq.post_one(&RecvWr { wr_id, sge }) };
        qp.rq.ring();
        posted
    }

    fn ready(shape: PaperShape) -> PaperQp {
        // SAFETY: the test has one thread.
        let mut qp = unsafe { PaperQp::new(shape) };
        qp.move_to(QpState::INIT);
        qp
    }

    #[test]
    fn a_list_that_is_shorter_than_its_entry_ends_with_a_terminator() {
        let element = |n: u8| -> Vec<u8> {
            let sge = [u32::from(n), 7].into_iter().flat_map(u32::to_be_bytes);
            sge.chain(u64::from(n).to_be_bytes()).collect()
        };
        let terminator = [&[0; 6][..], &[1, 0], &[0; 8]].concat();
        for (lengths, stored) in [
            (&[][..], &[][..]),
            (&[1], &[1]),
            (&[1, 0, 2], &[1, 2]),
            (&[0, 0, 0], &[]),
            (&[1, 2, 3], &[1, 2, 3]),
            (&[1, 2, 3, 4], &[1, 2, 3, 4]),
        ] {
            let mut qp = ready(PaperShape { max_recv_sge: 4, ..PaperShape::default() });
            let sges: Vec<Sge> =
                lengths.iter().map(|&n: &u8| Sge { addr: n.into(), length: n.into(), lkey: 7 }).collect();
            post(&mut qp, 1, &sges).unwrap();
            let mut expected: Vec<u8> = stored.iter().flat_map(|&n| element(n)).collect();
            if stored.len() < 4 {
                expected.extend(&terminator);
            }
            assert_eq!(qp.entry(0)[..expected.len()], expected, "{lengths:?}");
            assert_eq!(qp.records()[0], 1);
        }
    }

    #[test]
    fn a_list_that_is_longer_than_the_room_is_taken_up_to_there() {
        let mut qp = ready(PaperShape { entries: 4, ..PaperShape::default() });
        let sge = [Sge { addr: 1, length: 1, lkey: 7 }];
        let list: Vec<_> = (0..6).map(|wr_id| RecvWr { wr_id, sge: &sge }).collect();
        // SAFETY: a paper device accesses no memory.
        let refused = unsafe { qp.rq.post_recv(&list) }.unwrap_err();
        assert_eq!((refused.accepted, refused.reason), (4, PostReason::QueueFull));
        assert_eq!(qp.records()[0], 4);
    }

    #[test]
    fn a_reset_queue_takes_as_many_receives_as_a_new_one() {
        let mut qp = ready(PaperShape { entries: 4, ..PaperShape::default() });
        for wr_id in 0..6_u16 {
            post(&mut qp, wr_id.into(), &[]).unwrap();
            if wr_id < 2 {
                qp.write(PaperCqe { opcode: 2, wqe_counter: wr_id, ..PaperCqe::default() });
                assert!(qp.lend().is_some());
            }
        }
        assert_eq!(post(&mut qp, 6, &[]), Err(PostReason::QueueFull));
        qp.move_to(QpState::RESET);
        qp.move_to(QpState::INIT);
        for wr_id in 0..4 {
            post(&mut qp, wr_id, &[]).unwrap();
        }
        assert_eq!(post(&mut qp, 4, &[]), Err(PostReason::QueueFull));
    }

    #[test]
    fn a_list_ends_inside_of_its_entry() {
        for (max_recv_sge, is_full) in [(1, true), (2, true), (2, false), (4, true), (4, false)] {
            let mut qp = ready(PaperShape { entries: 4, max_recv_sge, ..PaperShape::default() });
            let sge = Sge { addr: 5, length: 6, lkey: 7 };
            let count = if is_full { max_recv_sge as usize } else { 1 };
            for wr_id in 0..4 {
                post(&mut qp, wr_id, &vec![sge; count]).unwrap();
            }
            let element = [0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5];
            for entry in 0..4 {
                let mut expected = element.repeat(count);
                if !is_full {
                    expected.extend([&[0; 6][..], &[1, 0], &[0; 8]].concat());
                }
                assert_eq!(qp.entry(entry)[..expected.len()], expected, "{max_recv_sge}, {is_full}");
            }
            assert_eq!(qp.blocks(0, 1), [0; 64], "the send queue lies behind the last entry");
        }
    }

    #[test]
    fn receives_of_raw_packets_are_held_back_until_rtr() {
        let shape = PaperShape { qp_type: verbs_core::types::QpType::RAW_PACKET, ..PaperShape::default() };
        for next in [QpState::RTR, QpState::ERR] {
            let mut qp = ready(shape);
            post(&mut qp, 1, &[]).unwrap();
            post(&mut qp, 2, &[]).unwrap();
            assert_eq!(qp.records()[0], 0);
            qp.move_to(next);
            assert_eq!(qp.records()[0], 2, "{next}");
            post(&mut qp, 3, &[]).unwrap();
            assert_eq!(qp.records()[0], 3);
            qp.move_to(QpState::RESET);
            qp.move_to(QpState::INIT);
            post(&mut qp, 4, &[]).unwrap();
            assert_eq!(qp.records()[0], 0);
        }
    }

    #[test]
    fn a_full_queue_refuses_until_a_completion_was_polled() {
        let mut qp = ready(PaperShape { entries: 4, ..PaperShape::default() });
        for wr_id in 0..4 {
            post(&mut qp, wr_id, &[]).unwrap();
        }
        assert_eq!(post(&mut qp, 4, &[]), Err(PostReason::QueueFull));
        for wr_id in 4..70_000_u64 {
            qp.write(PaperCqe { opcode: 2, wqe_counter: (wr_id - 4) as u16, ..PaperCqe::default() });
            let mut wc = [verbs_core::types::Wc::default()];
            assert_eq!((qp.poll(&mut wc), wc[0].wr_id), (1, wr_id - 4));
            post(&mut qp, wr_id, &[]).unwrap();
            assert_eq!(qp.records()[0], (wr_id as u32 + 1) & 0xffff);
            assert_eq!(post(&mut qp, 0, &[]), Err(PostReason::QueueFull));
        }
    }
}
