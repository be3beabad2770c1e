//! [`RecvQueue`]: the posting methods of receive queues, defined once for all handles with a
//! receive queue.
//!
//! # Safety
//! The unsafe code here is raw posting, whose requirements the caller meets.

#![allow(unsafe_code)]

use core::fmt;
use core::ops::RangeBounds;

use verbs_core::provider::{Erased, Provider, RecvQueue as _};
use verbs_core::types::{PostError, RecvWr};

use crate::memory::PostMemory;
use crate::memory::buffer::Buf;
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::queue::receiver::Receiver;

/// A view of a receive queue, for posting. Made by [`Qp::recv_queue`](crate::Qp::recv_queue) and
/// [`RecvHalf::recv_queue`](crate::RecvHalf::recv_queue).
///
/// [`Qp`](crate::Qp), [`RecvHalf`](crate::RecvHalf) and [`ScopedQp`](crate::ScopedQp) have methods
/// with the same names, which call these.
pub struct RecvQueue<'q, P: Provider = Erased> {
    receiver: &'q mut Receiver<P::Rq>,
}

impl<'q, P: Provider> RecvQueue<'q, P> {
    pub(in crate::qp) const fn new(receiver: &'q mut Receiver<P::Rq>) -> Self {
        Self { receiver }
    }

    /// Posts raw receives, for any ownership scheme. One doorbell announces all of them.
    ///
    /// # Safety
    /// From this call until a request's completion was polled (or the queue pair was destroyed, or
    /// reset where that [ends requests](crate::Qp::reset_ends_requests)), the device may write the
    /// memory of every SGE: no code may free or access it. Each `wr_id` must have its top bit
    /// clear, because a `wr_id` with that bit set belongs to a safe request.
    ///
    /// # Errors
    /// Returns the number of accepted requests and the [`PostReason`](crate::PostReason) why the
    /// next one was rejected. The device owns the memory of the accepted requests.
    ///
    /// # References
    /// `ibv_post_recv(3)`
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.receiver.queue.post_recv(wrs) }
    }

    /// Posts a receive into a range of `memory`, which the queue owns until a message has arrived.
    /// Polling returns the memory ([`Completion::reclaim`](crate::Completion::reclaim),
    /// [`Cq::poll_one`](crate::Cq::poll_one)).
    ///
    /// Returns the `wr_id` of the request and its completion. The first call on a queue allocates
    /// its table.
    ///
    /// # Errors
    /// Returns the memory and the reason; [`PostBufReason`] lists all reasons. Notably:
    ///
    /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of the queue is
    ///   taken.
    /// - [`PostBufReason::Unclaimed`] if polled completions were not reclaimed.
    /// - [`PostBufReason::ReadOnly`] for a [`FrozenBuf`](crate::FrozenBuf).
    ///
    /// # References
    /// `ibv_post_recv(3)`
    #[inline]
    pub fn post_recv_buf<M: PostMemory>(
        &mut self,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.receiver.post(memory, range)
    }

    /// Posts a receive of one message into several pieces of memory, in order, like
    /// [`post_recv_buf`](Self::post_recv_buf).
    ///
    /// # Errors
    /// The errors of [`post_recv_buf`](Self::post_recv_buf), with all pieces;
    /// [`PostReason::TooManySge`](crate::PostReason::TooManySge) for more pieces than
    /// [`QpCap::max_recv_sge`](crate::QpCap::max_recv_sge).
    ///
    /// # References
    /// `ibv_post_recv(3)`
    pub fn post_recv_bufs<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, PostBufError<Vec<M>>> {
        self.receiver.post_all(pieces)
    }

    /// Posts a receive without memory, for an empty message or for an RDMA write with immediate
    /// data, whose bytes go elsewhere. A message with bytes fails the receive.
    ///
    /// Returns the `wr_id` of the request and its completion.
    ///
    /// # Errors
    /// The errors of [`post_recv_buf`](Self::post_recv_buf).
    ///
    /// # References
    /// `ibv_post_recv(3)`
    pub fn post_recv_empty(&mut self) -> Result<u64, PostBufReason> {
        self.receiver.post_all(Vec::<Buf>::new()).map_err(|error| error.reason)
    }
}

impl<P: Provider> fmt::Debug for RecvQueue<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue").field("queue", &self.receiver.queue).finish()
    }
}
