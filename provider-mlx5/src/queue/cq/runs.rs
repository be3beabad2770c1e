//! Runs: consecutive completions of one kind from the current queue pair, copied out at once.
//!
//! The queue pair of a run is looked up once and the queue's tail moves once. The poller checks for
//! pending changes once after the last entry. If there are any, it discards the run, which has had
//! no effect yet, and the slow path handles the first completion. A shared receive frees its entry
//! at once, so for shared receives the poller checks before each completion.
//!
//! A run ends at the end of the ring, where the owner bit changes.
//!
//! # Safety
//! The device has handed over the entries of a run, which return to it once the run has been
//! copied. Pointers move only inside the ring. The records belong to the current queue pair, whose
//! entry in the table keeps them alive.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use verbs_core::provider::Completion as _;
use verbs_core::ring::barrier;
use verbs_core::types::Wc;

use super::cqe::{self, Cqe, cqe_opcode};
use super::poller::{Current, Poller};
use super::shared_cq::COUNTER;

/// The bit in an entry's last byte that is set if the sender requested an event.
const SOLICITED: u8 = 2;

/// A run. The poller has passed the entries from `first` up to `next`.
struct Run {
    first: NonNull<u8>,
    /// The address of the next entry's fields.
    next: NonNull<u8>,
    log_stride: u32,
    round: u8,
}

impl Run {
    /// Returns the next entry's kind if it is a successful receive whose data is in the request's
    /// memory; otherwise a value that no receive has.
    #[inline(always)]
    fn receive(&self) -> u8 {
        receive(self.last_byte(), self.round)
    }

    /// Returns whether the next entry is a successful send queue request whose data is in the
    /// request's memory.
    #[inline(always)]
    fn is_sent(&self) -> bool {
        self.last_byte() == cqe_opcode::REQ << 4 | self.round
    }

    #[inline(always)]
    fn last_byte(&self) -> u8 {
        // SAFETY: inside an entry of the ring; the byte is read by value.
        unsafe { self.next.add(cqe::at::OP_OWN).read_volatile() }
    }

    /// Returns the next entry. The device must have written it.
    #[inline(always)]
    fn entry(&self) -> Cqe<'_> {
        barrier::from_device();
        // SAFETY: the device has handed the entry over and gets it back when the poller is used
        // again.
        unsafe { Cqe::new(self.next) }
    }

    #[inline(always)]
    fn pass(&mut self) {
        // SAFETY: at most the end of the ring: the loops pass no more entries than remain up to it.
        self.next = unsafe { self.next.add(1 << self.log_stride) };
    }

    /// Returns the number of passed entries.
    #[inline(always)]
    fn count(&self) -> usize {
        // SAFETY: `next` started at `first` and has moved on inside the ring.
        unsafe { self.next.offset_from_unsigned(self.first) >> self.log_stride }
    }

    /// Returns the last passed entry. The run must have passed at least one entry.
    #[inline(always)]
    fn last(&self) -> Cqe<'_> {
        // SAFETY: the entry before the next one, which was passed.
        unsafe { Cqe::new(self.next.sub(1 << self.log_stride)) }
    }
}

/// Returns an entry's kind, taken from its last byte, if it is a successful receive whose data is
/// in the request's memory; otherwise a value that no receive has.
#[inline(always)]
const fn receive(op_own: u8, round: u8) -> u8 {
    // The rest of the byte is then 0.
    ((op_own ^ round) & !SOLICITED).rotate_right(4)
}

/// Returns whether an entry of this kind is a successful receive.
#[inline(always)]
const fn is_receive(opcode: u8) -> bool {
    matches!(opcode, cqe_opcode::RESP_WR_IMM..=cqe_opcode::RESP_SEND_INV)
}

impl Poller {
    /// Copies completions to `wcs` and returns their number.
    #[inline(always)]
    pub(crate) fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        if let [wc] = wcs {
            if self.one_send(wc) { 1 } else { self.poll_one(wc) }
        } else {
            self.poll_runs(wcs)
        }
    }

    /// Polls one completion of a successful send or write, without setting up a run, and returns
    /// its entry to the device. Returns `false` if the next completion needs another path.
    #[inline(always)]
    fn one_send(&mut self, wc: &mut Wc) -> bool {
        // Each field is read only once, because the compiler must assume that the stores below
        // could change it.
        let Self { ring, index, returned, consumer, shared, current, .. } = self;
        let shared = &**shared;
        let at = *index;
        let (fields, op_own, round) = ring.peek(at);
        if op_own != cqe_opcode::REQ << 4 | round {
            return false;
        }
        barrier::from_device();
        // SAFETY: the device has handed the entry over and gets it back below.
        let cqe = unsafe { Cqe::new(fields) };
        if shared.has_changes() || cqe.raw_user_index() != current.of_sends {
            return false;
        }
        // SAFETY: the record of the current queue pair, which its entry keeps alive.
        let record = unsafe { &*current.send };
        let Some(wr_id) = record.complete_plain(cqe.wqe_counter_word()) else { return false };
        cqe.write_operation(wr_id, cqe.qp_num_word(), wc);
        let behind = at.wrapping_add(1);
        (*index, *returned) = (behind, behind);
        consumer.store(behind & COUNTER);
        true
    }

    /// Copies the next completion of any kind to `wc`, if there is one, and returns the number of
    /// completions copied.
    #[inline(never)]
    fn poll_one(&mut self, wc: &mut Wc) -> usize {
        if self.one_receive(wc) {
            return 1;
        }
        let completion = self.advance_any();
        let count = usize::from(completion.is_some());
        if let Some(completion) = completion {
            completion.write_to(wc);
        }
        self.end_poll();
        count
    }

    /// Polls one completion of a receive, as [`one_send`](Self::one_send) does for a send.
    #[inline(always)]
    fn one_receive(&mut self, wc: &mut Wc) -> bool {
        let at = self.index;
        let (fields, op_own, round) = self.ring.peek(at);
        let opcode = receive(op_own, round);
        if !is_receive(opcode) {
            return false;
        }
        barrier::from_device();
        // SAFETY: the device has handed the entry over and gets it back below.
        let cqe = unsafe { Cqe::new(fields) };
        if self.shared.has_changes() {
            return false;
        }
        let (number, entry) = (cqe.raw_user_index(), cqe.wqe_counter());
        let Current { of_receives, of_shared, recv, srq, recv_kind, .. } = self.current;
        let wr_id = if number == of_receives {
            // SAFETY: the record of the current queue pair, which its entry keeps alive.
            unsafe { &*recv }.complete(entry)
        } else if number == of_shared
            // SAFETY: as above.
            && let Some(wr_id) = unsafe { &*srq }.complete(entry)
        {
            wr_id
        } else {
            return false;
        };
        cqe.write_received(opcode, wr_id, recv_kind, wc);
        self.index = at.wrapping_add(1);
        self.return_polled();
        true
    }

    /// Copies completions to `wcs` in runs and returns their number.
    #[inline(never)]
    fn poll_runs(&mut self, wcs: &mut [Wc]) -> usize {
        let count = self.run_of_sends::<false>(wcs);
        if count == wcs.len() && count > 0 {
            self.return_polled();
            return count;
        }
        if count == 0 && self.is_empty() {
            self.end_poll();
            return 0;
        }
        self.poll_on(wcs, count)
    }

    /// Continues polling after `count` completions. Returns the total number.
    #[inline(never)]
    fn poll_on(&mut self, wcs: &mut [Wc], mut count: usize) -> usize {
        while let Some(rest) = wcs.get_mut(count..).filter(|rest| !rest.is_empty()) {
            let mut run = self.run_of_receives(rest);
            if run == 0 {
                run = self.run_of_shared_receives(rest);
            }
            if run == 0 {
                run = self.run_of_sends::<true>(rest);
            }
            if run == 0 {
                let Some(completion) = self.advance_any() else { break };
                completion.write_to(&mut rest[0]);
                run = 1;
            }
            count += run;
        }
        self.end_poll();
        count
    }

    /// Prepares a run and returns it with the slots for its completions.
    #[inline(always)]
    fn run<'a>(&self, wcs: &'a mut [Wc]) -> (Run, &'a mut [Wc]) {
        let (first, len, round) = self.ring.stretch(self.index);
        let len = wcs.len().min(len);
        let run = Run { first, next: first, log_stride: self.ring.log_stride(), round };
        // SAFETY: not beyond its length.
        (run, unsafe { wcs.get_unchecked_mut(..len) })
    }

    /// Polls a run of successful sends and writes; with `FETCHES`, also of reads and atomics.
    #[inline(always)]
    fn run_of_sends<const FETCHES: bool>(&mut self, wcs: &mut [Wc]) -> usize {
        // SAFETY: the record of the current queue pair, which its entry keeps alive.
        let Some(record) = (unsafe { self.current.send.as_ref() }) else { return 0 };
        let (mut run, wcs) = self.run(wcs);
        if !run.is_sent() {
            return 0;
        }
        // The queue pair number is the same for the whole run, which belongs to the current queue
        // pair.
        let qp_num = run.entry().qp_num_word();
        let (of_sends, requests) = (self.current.of_sends, record.view());
        for wc in wcs {
            if !run.is_sent() {
                break;
            }
            let cqe = run.entry();
            if cqe.raw_user_index() != of_sends {
                break;
            }
            let (wr_id, kind) = requests.request(cqe.wqe_counter());
            if FETCHES && !kind.is_special() {
                cqe.write_plain(wr_id, kind, wc);
            } else if !kind.has_more() {
                cqe.write_operation(wr_id, qp_num, wc);
            } else {
                break;
            }
            run.pass();
        }
        let count = run.count();
        if count == 0 || self.shared.has_changes() {
            return 0;
        }
        self.index = self.index.wrapping_add(count as u32);
        record.end(run.last().wqe_counter());
        count
    }

    /// Polls a run of successful receives from the queue pair's own queue.
    #[inline(always)]
    fn run_of_receives(&mut self, wcs: &mut [Wc]) -> usize {
        // SAFETY: the record of the current queue pair, which its entry keeps alive.
        let Some(record) = (unsafe { self.current.recv.as_ref() }) else { return 0 };
        let (mut run, wcs) = self.run(wcs);
        let (of_receives, requests) = (self.current.of_receives, record.view());
        let kind = self.current.recv_kind;
        for wc in wcs {
            let opcode = run.receive();
            if !is_receive(opcode) {
                break;
            }
            let cqe = run.entry();
            if cqe.raw_user_index() != of_receives {
                break;
            }
            cqe.write_received(opcode, requests.receive(cqe.wqe_counter()), kind, wc);
            run.pass();
        }
        let count = run.count();
        if count == 0 || self.shared.has_changes() {
            return 0;
        }
        self.index = self.index.wrapping_add(count as u32);
        record.end(count as u32);
        count
    }

    /// Polls a run of successful receives from a shared receive queue.
    #[inline(always)]
    fn run_of_shared_receives(&mut self, wcs: &mut [Wc]) -> usize {
        // SAFETY: the record of the current queue pair, which its entry keeps alive.
        let Some(record) = (unsafe { self.current.srq.as_ref() }) else { return 0 };
        let (mut run, wcs) = self.run(wcs);
        let of_shared = self.current.of_shared;
        let kind = self.current.recv_kind;
        for wc in wcs {
            let opcode = run.receive();
            if !is_receive(opcode) {
                break;
            }
            let cqe = run.entry();
            if cqe.raw_user_index() != of_shared || self.shared.has_changes() {
                break;
            }
            let Some(wr_id) = record.complete(cqe.wqe_counter()) else { break };
            cqe.write_received(opcode, wr_id, kind, wc);
            run.pass();
        }
        let count = run.count();
        self.index = self.index.wrapping_add(count as u32);
        count
    }
}
