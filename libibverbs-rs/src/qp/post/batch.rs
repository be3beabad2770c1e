//! [`SendBatch`]: sends that reach the device together or not at all.
//!
//! # Safety
//! The unsafe code here puts requests into the queue, justified in [`crate::in_flight`]. Numbers in
//! brackets refer to the contract of [`Provider`].

#![allow(unsafe_code)]

use core::fmt;
use core::ops::RangeBounds;

use verbs_core::provider::{Provider, SendQueue};
use verbs_core::types::{PostError, PostReason, SendFlags, SendOp, SendWr};

use super::{Sender, inline, inline_list, post_held, without_memory};
use crate::in_flight::Use;
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::memory::{Memory, PostMemory};

/// A batch of sends that reach the device together or not at all. Made by
/// [`Qp::batch`](crate::Qp::batch).
///
/// The methods put requests into the queue, where the device does not see them until
/// [`ring`](Self::ring) rings one doorbell for all. A batch that is dropped or
/// [aborted](Self::abort) instead posts none of them. A leaked batch
/// ([`mem::forget`](core::mem::forget)) leaves its requests in the queue. The next doorbell posts
/// them, even after a later batch was dropped or aborted.
///
/// ```no_run
/// # use verbs::{Buf, Error, Qp, state::Rts};
/// # fn f(mut qp: Qp<Rts>, pieces: Vec<Buf>, last: Buf) -> Result<(), Error> {
/// use verbs::{SendFlags, SendOp};
/// let mut batch = qp.batch();
/// for piece in pieces {
///     batch.post_unsignaled(SendOp::Send, SendFlags::empty(), piece, ..)?;
/// }
/// // The completion of this request returns the memory of all.
/// batch.post(SendOp::Send, SendFlags::empty(), last, ..)?;
/// batch.ring()?;
/// # Ok(())
/// # }
/// ```
///
/// While the batch lives, nothing else can be posted to the queue:
///
/// ```compile_fail,E0499
/// # fn f(mut qp: verbs::Qp<verbs::state::Rts>, buf: verbs::Buf) {
/// let batch = qp.batch();
/// qp.post_send_buf(verbs::SendOp::Send, verbs::SendFlags::empty(), buf, ..);
/// batch.ring();
/// # }
/// ```
#[doc(alias = "ibv_qp_ex")]
pub struct SendBatch<'q, P: Provider> {
    sender: &'q mut Sender<P>,
    /// The `wr_id`s of the batch's requests with memory.
    numbers: Vec<u64>,
    /// The number of requests in the batch.
    len: usize,
    /// The `wr_id` of the last unsignalled request before the batch.
    unsignaled: Option<u64>,
}

impl<'q, P: Provider> SendBatch<'q, P> {
    pub(in crate::qp) fn new(sender: &'q mut Sender<P>) -> Self {
        let unsignaled = sender.poster.last_unsignaled();
        Self { sender, numbers: Vec::new(), len: 0, unsignaled }
    }

    /// Returns the number of requests in the batch.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the batch has no request.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a send with memory, like [`Qp::post_send_buf`](crate::Qp::post_send_buf).
    ///
    /// # Errors
    /// The errors of [`Qp::post_send_buf`](crate::Qp::post_send_buf). Earlier requests stay in the
    /// batch.
    pub fn post<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.put(op, flags | SendFlags::SIGNALED, memory, range)
    }

    /// Adds an unsignalled send, like
    /// [`Qp::post_send_buf_unsignaled`](crate::Qp::post_send_buf_unsignaled).
    ///
    /// # Errors
    /// The errors of [`Qp::post_send_buf_unsignaled`](crate::Qp::post_send_buf_unsignaled). Earlier
    /// requests stay in the batch.
    pub fn post_unsignaled<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.put(op, flags - SendFlags::SIGNALED, memory, range)
    }

    /// Adds a send of inline data, like [`Qp::post_send_inline`](crate::Qp::post_send_inline). The
    /// bytes are copied during this call.
    ///
    /// # Errors
    /// The errors of [`Qp::post_send_inline`](crate::Qp::post_send_inline). Earlier requests stay
    /// in the batch.
    pub fn post_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        // SAFETY: the call puts in this one request.
        unsafe { inline(wr_id, op, flags, data, |wr| put_all(queue, wr)) }?;
        self.len += 1;
        Ok(())
    }

    /// Adds a send of several pieces of inline data, like
    /// [`Qp::post_send_inline_list`](crate::Qp::post_send_inline_list). The bytes are copied during
    /// this call.
    ///
    /// # Errors
    /// The errors of [`Qp::post_send_inline_list`](crate::Qp::post_send_inline_list). Earlier
    /// requests stay in the batch.
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    pub fn post_inline_list(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: &[&[u8]],
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        // SAFETY: the call puts in this one request.
        unsafe { inline_list(wr_id, op, flags, pieces, |wr| put_all(queue, wr)) }?;
        self.len += 1;
        Ok(())
    }

    /// Adds an operation without local memory, like [`Qp::post_send_op`](crate::Qp::post_send_op).
    ///
    /// # Errors
    /// The errors of [`Qp::post_send_op`](crate::Qp::post_send_op). Earlier requests stay in the
    /// batch.
    pub fn post_op(&mut self, wr_id: u64, op: SendOp<'_>, flags: SendFlags) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        // SAFETY: the call puts in this one request.
        unsafe { without_memory(wr_id, op, flags, |wr| put_all(queue, wr)) }?;
        self.len += 1;
        Ok(())
    }

    /// Rings the doorbell once for all requests and returns the number of requests.
    ///
    /// # Errors
    /// [`PostReason::Doorbell`] with the errno of the doorbell. The requests are in the queue; the
    /// next doorbell posts them as well.
    #[doc(alias = "ibv_wr_complete")]
    pub fn ring(mut self) -> Result<usize, PostReason> {
        let len = core::mem::take(&mut self.len);
        if len > 0 {
            self.sender.queue.ring().map_err(PostReason::Doorbell)?;
        }
        Ok(len)
    }

    /// Removes the batch's requests from the queue and returns their memory.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(mut self) -> Vec<Memory> {
        self.roll_back()
    }

    #[inline]
    fn put<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        let queue = &mut self.sender.queue;
        let number = self.sender.poster.post(memory, range, Use::send(&op, flags), |wr_id, sge| {
            // SAFETY: the table holds the memory that the elements cover. A request that is rolled
            // back was never queued [19].
            unsafe { post_held(wr_id, op, flags, sge, |wr| put_all(queue, wr)) }
        })?;
        self.numbers.push(number);
        self.len += 1;
        Ok(number)
    }

    fn roll_back(&mut self) -> Vec<Memory> {
        let len = core::mem::take(&mut self.len);
        if len == 0 {
            return Vec::new();
        }
        self.sender.queue.rollback(len);
        self.sender.poster.roll_back(&self.numbers, self.unsignaled)
    }
}

#[cfg(feature = "mlx5")]
impl SendBatch<'_, provider_mlx5::Mlx5> {
    /// Adds a request in the device's own format, like [`Qp::post_raw`](crate::Qp::post_raw).
    ///
    /// # Safety
    /// Same as [`Qp::post_raw`](crate::Qp::post_raw). The requirements apply from this call on,
    /// unless the batch is dropped or aborted, because a leaked batch leaves its requests in the
    /// queue.
    ///
    /// # Errors
    /// The errors of [`Qp::post_raw`](crate::Qp::post_raw). Earlier requests stay in the batch.
    #[doc(alias = "mlx5dv_wr_raw_wqe")]
    pub unsafe fn put_raw(&mut self, wr_id: u64, request: &[[u8; 16]]) -> Result<(), PostReason> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.sender.queue.post_raw(wr_id, request) }?;
        self.len += 1;
        Ok(())
    }
}

impl<P: Provider> Drop for SendBatch<'_, P> {
    fn drop(&mut self) {
        drop(self.roll_back());
    }
}

impl<P: Provider> fmt::Debug for SendBatch<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Puts requests into a queue without ringing its doorbell.
///
/// # Errors
/// Returns the number of requests put into the queue and the reason why the next was rejected.
///
/// # Safety
/// Same as [`SendQueue::post_one`].
#[inline]
unsafe fn put_all(queue: &mut impl SendQueue, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
    for (accepted, wr) in wrs.iter().enumerate() {
        // SAFETY: the caller upholds the same contract.
        unsafe { queue.post_one(wr) }.map_err(|reason| PostError { accepted, reason })?;
    }
    Ok(())
}
