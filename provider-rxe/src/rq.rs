//! The receive queue. The kernel reads it when a message arrives, so posting needs no doorbell.
//!
//! For the same reason no kernel up to 7.2 flushes a receive posted in ERR: nothing makes the
//! kernel read the queue. RESET or destroying the queue pair ends the receive. Sends are flushed,
//! because the kick makes the kernel read the send queue.
//!
//! # Safety
//! Elements are stored through [`Slot`](crate::queue::Slot), whose precondition (the list fits) is
//! proved here.
//!
//! # References
//! `ibv_post_recv(3)`; Linux `drivers/infiniband/sw/rxe/rxe_resp.c`
#![allow(unsafe_code)]

use core::fmt;
use core::mem::size_of;

use uverbs_abi::rdma_user_rxe::RxeRecvWqe;
use verbs_core::checks::RecvChecks;
use verbs_core::provider::RecvQueue;
use verbs_core::types::{PostError, PostReason, QpCap, QpState, RecvWr, Sge};

use crate::queue::{ProducerEnd, Queue};
use crate::wqe;

/// The receive queue of a queue pair.
pub struct Rq {
    end: ProducerEnd<RxeRecvWqe>,
    checks: RecvChecks,
}

impl Rq {
    /// Creates the receive queue of a queue pair in RESET.
    pub(crate) fn new(queue: Queue, cap: &QpCap) -> Self {
        let end = ProducerEnd::new(queue);
        assert!(end.room() >= list_len(cap), "the queue was mapped for lists of this length");
        Self { end, checks: RecvChecks::new(cap) }
    }

    /// Creates the queue of a shared receive queue, which has no queue pair state.
    pub(crate) fn of_srq(queue: Queue, max_sge: u32) -> Self {
        let cap = QpCap { max_recv_sge: max_sge, ..QpCap::default() };
        Self { checks: RecvChecks::of_srq(max_sge), ..Self::new(queue, &cap) }
    }

    /// Creates a placeholder for a queue pair with a shared receive queue. It accepts no receives.
    pub(crate) fn none() -> Self {
        let queue = Queue::none(size_of::<RxeRecvWqe>());
        Self { end: ProducerEnd::new(queue), checks: RecvChecks::of_shared() }
    }

    /// Creates an always full queue, for a shared receive queue whose mapping was lost.
    pub(crate) fn full(max_sge: u32) -> Self {
        Self { checks: RecvChecks::of_srq(max_sge), ..Self::none() }
    }

    /// Returns the size of a slot in a queue of this capacity, in bytes.
    pub(crate) fn element(cap: &QpCap) -> usize {
        size_of::<RxeRecvWqe>().saturating_add(list_len(cap))
    }

    /// Returns the number of receives that fit before the kernel consumes one.
    pub(crate) fn capacity(&self) -> u32 {
        self.end.capacity()
    }

    /// Returns the number of receives not yet taken by the kernel.
    pub(crate) fn outstanding(&mut self) -> u32 {
        self.end.outstanding()
    }

    /// Adapts the queue to the queue pair's new state.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.checks.moved_to(state);
        if state == QpState::RESET {
            // The kernel drained the queue: it moved its index up to the producer's.
            self.end.resync();
        }
    }
}

impl Rq {
    /// Posts a common request on the fast path. Returns whether the request was posted.
    #[inline(always)]
    fn post_plain(&mut self, wr: &RecvWr<'_>) -> bool {
        if self.checks.is_plain(wr)
            && let [sge] = wr.sge
            && let Some(mut slot) = self.end.next()
        {
            wqe::put_recv(&mut slot, wr, sge.length);
            // SAFETY: the list has passed the checks, and `new` found room for the longest that
            // passes.
            unsafe { slot.put_list(wr.sge) };
            self.end.advance();
            return true;
        }
        false
    }

    /// Posts the rest of a batch, whose first `accepted` requests are in the queue, and publishes
    /// all of them.
    #[inline(never)]
    fn post_rest(&mut self, wrs: &[RecvWr<'_>], mut accepted: usize) -> Result<(), PostError> {
        let mut result = Ok(());
        for wr in wrs.iter().skip(accepted) {
            if let Err(reason) = self.post_any(wr) {
                result = Err(PostError { accepted, reason });
                break;
            }
            accepted += 1;
        }
        self.end.publish();
        result
    }

    /// Posts a request that does not take the fast path, or returns the reason why it is rejected.
    /// Not inlined, to keep the fast path small.
    #[inline(never)]
    fn post_any(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        let length = self.checks.check(wr)?;
        let Some(mut slot) = self.end.next() else { return Err(PostReason::QueueFull) };
        wqe::put_recv(&mut slot, wr, length);
        // SAFETY: the list has passed the checks, and `new` found room for the longest that passes.
        unsafe { slot.put_list(wr.sge) };
        self.end.advance();
        Ok(())
    }
}

impl RecvQueue for Rq {
    #[inline(always)]
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        if self.post_plain(wr) {
            return Ok(());
        }
        // A copy, so a request built for this call stays in registers on the fast path.
        let wr = *wr;
        self.post_any(&wr)
    }

    #[inline(always)]
    fn ring(&mut self) {
        self.end.publish();
    }

    #[inline(always)]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        for (accepted, wr) in wrs.iter().enumerate() {
            if !self.post_plain(wr) {
                return self.post_rest(wrs, accepted);
            }
        }
        self.end.publish();
        Ok(())
    }
}

impl fmt::Debug for Rq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rq").field("end", &self.end).field("checks", &self.checks).finish_non_exhaustive()
    }
}

/// Returns the size in bytes of the longest list, which follows the element.
fn list_len(cap: &QpCap) -> usize {
    (cap.max_recv_sge as usize).saturating_mul(size_of::<Sge>())
}
