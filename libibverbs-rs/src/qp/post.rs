//! Posting: raw, which is unsafe, and of memory that the queue owns until its request has ended,
//! which is safe.
//!
//! [`Sender`] and [`Receiver`] combine a queue of the provider with its table of memory in flight.
//! A queue pair has both, a half has one; `posts_sends!` and `posts_recvs!` define the methods of
//! both.
//!
//! # Safety
//! The unsafe code here posts: raw, on the promise of the caller, and safely, on the argument in
//! [`crate::in_flight`]. Numbers in brackets are those of the contract of [`Provider`].

#![allow(unsafe_code)]

use core::fmt;
use core::ops::RangeBounds;

use verbs_core::provider::{Provider, RecvQueue, SendQueue};
use verbs_core::types::{OpKind, PostError, PostReason, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge};

use crate::in_flight::{Poster, Use, is_postable, is_reserved, takes_inline};
use crate::memory::{Memory, PostMemory};
use crate::post_error::{PostBufError, PostBufReason};

/// A send queue and the memory of its requests in flight.
pub(crate) struct Sender<P: Provider> {
    pub(super) queue: P::Sq,
    pub(super) poster: Poster,
    pub(super) qp_type: QpType,
}

/// A receive queue and the memory of its requests in flight.
pub(crate) struct Receiver<P: Provider> {
    pub(super) queue: P::Rq,
    pub(super) poster: Poster,
}

impl<P: Provider> Sender<P> {
    #[inline]
    pub(super) fn post<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        let (queue, qp_type) = (&mut self.queue, self.qp_type);
        self.poster.post(memory, range, Use::send(&op, flags), |wr_id, sge| {
            // SAFETY: the table holds the memory that the elements cover.
            unsafe { post_held(wr_id, op, flags, sge, qp_type, |wr| queue.post_send(wr)) }
        })
    }

    pub(super) fn post_all<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: Vec<M>,
    ) -> Result<u64, PostBufError<Vec<M>>> {
        let (queue, qp_type) = (&mut self.queue, self.qp_type);
        self.poster.post_all(pieces, Use::send(&op, flags), |wr_id, sge| {
            // SAFETY: the table holds the memory that the elements cover.
            unsafe { post_held(wr_id, op, flags, sge, qp_type, |wr| queue.post_send(wr)) }
        })
    }

    #[inline]
    pub(super) fn post_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.queue;
        // SAFETY: the call posts this one request.
        unsafe { inline(wr_id, op, flags, data, self.qp_type, |wr| queue.post_send(wr)) }
    }
}

impl<P: Provider> Receiver<P> {
    #[inline]
    pub(super) fn post<M: PostMemory>(
        &mut self,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        let queue = &mut self.queue;
        self.poster.post(memory, range, Use::RECV, |wr_id, sge| {
            // SAFETY: the table holds the memory that the element covers until the request has
            // ended.
            unsafe { queue.post_recv(&[RecvWr { wr_id, sge }]) }
        })
    }

    pub(super) fn post_all<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, PostBufError<Vec<M>>> {
        let queue = &mut self.queue;
        self.poster.post_all(pieces, Use::RECV, |wr_id, sge| {
            // SAFETY: the table holds the memory that the elements cover until the request has
            // ended.
            unsafe { queue.post_recv(&[RecvWr { wr_id, sge }]) }
        })
    }
}

/// A batch of sends that reach the device together, or not at all. Made by
/// [`Qp::batch`](crate::Qp::batch).
///
/// The methods put requests into the queue, where the device does not see them until
/// [`ring`](Self::ring) rings one doorbell for all. If the batch is dropped or
/// [aborted](Self::abort) instead, none of them was posted.
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
/// While it lives nothing else is posted to the queue:
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
    /// The numbers of the requests that hold memory.
    numbers: Vec<u64>,
    /// The number of requests that were put in.
    len: usize,
    /// The last unsignalled request before the batch.
    unsignaled: Option<u64>,
}

impl<'q, P: Provider> SendBatch<'q, P> {
    pub(super) fn new(sender: &'q mut Sender<P>) -> Self {
        let unsignaled = sender.poster.last_unsignaled();
        Self { sender, numbers: Vec::new(), len: 0, unsignaled }
    }

    /// Returns the number of requests that were put in.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no request was put in.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a send with memory, as [`Qp::post_send_buf`](crate::Qp::post_send_buf) posts one.
    ///
    /// # Errors
    /// As [`Qp::post_send_buf`](crate::Qp::post_send_buf). The requests that were added before stay
    /// in the batch.
    pub fn post<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.put(op, flags | SendFlags::SIGNALED, memory, range)
    }

    /// Adds an unsignalled send, as
    /// [`Qp::post_send_buf_unsignaled`](crate::Qp::post_send_buf_unsignaled) posts one.
    ///
    /// # Errors
    /// As [`Qp::post_send_buf_unsignaled`](crate::Qp::post_send_buf_unsignaled). The requests that
    /// were added before stay in the batch.
    pub fn post_unsignaled<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.put(op, flags - SendFlags::SIGNALED, memory, range)
    }

    /// Adds a send of inline data, as [`Qp::post_send_inline`](crate::Qp::post_send_inline) posts
    /// one. The bytes are copied now.
    ///
    /// # Errors
    /// As [`Qp::post_send_inline`](crate::Qp::post_send_inline). The requests that were added
    /// before stay in the batch.
    pub fn post_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        // SAFETY: the call puts in this one request.
        unsafe { inline(wr_id, op, flags, data, self.sender.qp_type, |wr| put_all(queue, wr)) }?;
        self.len += 1;
        Ok(())
    }

    /// Rings the doorbell once for all requests, and returns their number.
    ///
    /// # Errors
    /// [`PostReason::Doorbell`] with the errno of the doorbell. The requests are in the queue, and
    /// the next doorbell posts them too.
    #[doc(alias = "ibv_wr_complete")]
    pub fn ring(mut self) -> Result<usize, PostReason> {
        let len = core::mem::take(&mut self.len);
        if len > 0 {
            self.sender.queue.ring().map_err(PostReason::Doorbell)?;
        }
        Ok(len)
    }

    /// Takes all requests out of the queue again, and returns their memory.
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
        let (queue, qp_type) = (&mut self.sender.queue, self.sender.qp_type);
        let number = self.sender.poster.post(memory, range, Use::send(&op, flags), |wr_id, sge| {
            // SAFETY: the table holds the memory that the elements cover. A request that is rolled
            // back was never queued [19].
            unsafe { post_held(wr_id, op, flags, sge, qp_type, |wr| put_all(queue, wr)) }
        })?;
        self.numbers.push(number);
        self.len += 1;
        Ok(number)
    }

    fn roll_back(&mut self) -> Vec<Memory> {
        if core::mem::take(&mut self.len) == 0 {
            return Vec::new();
        }
        self.sender.queue.rollback();
        self.sender.poster.roll_back(&self.numbers, self.unsignaled)
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
/// The number of requests that were put in, and the reason for which the next was not.
///
/// # Safety
/// As [`SendQueue::post_one`].
#[inline]
unsafe fn put_all(queue: &mut impl SendQueue, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
    for (accepted, wr) in wrs.iter().enumerate() {
        // SAFETY: the caller's promise is the same.
        unsafe { queue.post_one(wr) }.map_err(|reason| PostError { accepted, reason })?;
    }
    Ok(())
}

/// Posts a request whose memory the table holds.
///
/// # Errors
/// [`PostReason::UnsupportedOp`] and [`PostReason::UnsupportedFlags`] for an operation that safe
/// code cannot post; as `post`.
///
/// # Safety
/// The memory that the elements cover is held until the request has ended, or was taken out of the
/// queue again.
#[inline(always)]
unsafe fn post_held(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    sge: &[Sge],
    qp_type: QpType,
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostError> {
    if !is_postable(&op, flags) {
        return Err(PostError { accepted: 0, reason: unsupported(&op, flags, qp_type) });
    }
    post(&[SendWr { wr_id, op, sge, flags }])
}

/// Posts a request of inline data, which is copied during the call.
///
/// # Errors
/// As [`Qp::post_send_inline`](crate::Qp::post_send_inline).
///
/// # Safety
/// `post` posts, or puts into the queue, the one request that it gets.
#[inline]
unsafe fn inline(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    data: &[u8],
    qp_type: QpType,
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostBufReason> {
    if is_reserved(wr_id) {
        return Err(PostBufReason::ReservedWrId { wr_id });
    }
    if !takes_inline(&op) {
        return Err(PostBufReason::Post(unsupported(&op, flags | SendFlags::INLINE, qp_type)));
    }
    let length = u32::try_from(data.len()).map_err(|_| PostBufReason::TooLong { len: data.len() })?;
    let sge = [Sge { addr: data.as_ptr().expose_provenance() as u64, length, lkey: 0 }];
    // The operation takes inline data, so the borrowed bytes are read only during the call [2]; the
    // number is not reserved for this library.
    let wr = SendWr { wr_id, op, sge: &sge, flags: flags | SendFlags::INLINE };
    post(&[wr]).map_err(|error| PostBufReason::Post(error.reason))
}

/// Returns the reason why safe code cannot post an operation.
#[cold]
fn unsupported(op: &SendOp<'_>, flags: SendFlags, qp_type: QpType) -> PostReason {
    let op: OpKind = op.kind();
    if flags.contains(SendFlags::INLINE) {
        PostReason::UnsupportedFlags { op, flags: SendFlags::INLINE }
    } else {
        PostReason::UnsupportedOp { op, qp_type }
    }
}

/// Defines the methods that post sends, for a type with a field `send: Sender<P>`.
macro_rules! posts_sends {
    () => {
        /// Posts sends, raw, for any scheme of ownership. One doorbell announces all of them.
        ///
        /// # Safety
        /// From this call until its completion was polled (or the queue pair was destroyed, or
        /// reset where that [ends requests](crate::Qp::reset_ends_requests)), the device reads the
        /// memory of every SGE, and writes it for RDMA reads and atomics: no code frees it or
        /// accesses it in conflict. An unsignalled request has ended when a later one of this queue
        /// has completed. With [`SendFlags::INLINE`] every SGE is memory of this process that the
        /// call reads by its address, and that the caller may reuse when the call returns. Each
        /// `wr_id` has its top bit clear, because the others are numbers of safe requests.
        ///
        /// # Errors
        /// The number of requests that were accepted, and the [`PostReason`](crate::PostReason) for
        /// which the next one was not. The device owns the memory of the accepted ones.
        ///
        /// # References
        /// `ibv_post_send(3)`
        #[doc(alias = "ibv_post_send")]
        #[inline(always)]
        pub unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
            // SAFETY: the caller's promise is the same.
            unsafe { self.send.queue.post_send(wrs) }
        }

        /// Posts a send of a range of the memory, which the queue owns until the request has ended:
        /// sent, written to the peer, or read into. Polling returns the memory
        /// ([`Completion::reclaim`](crate::Completion::reclaim),
        /// [`Cq::poll_one`](crate::Cq::poll_one)).
        ///
        /// Returns the request's number, which is the `wr_id` of its completion. The request is
        /// signalled, also without [`SendFlags::SIGNALED`]. The first call of a queue allocates its
        /// table.
        ///
        /// # Errors
        /// The memory, and the reason; [`PostBufReason`] lists all of them. Notably:
        ///
        /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of the queue
        ///   is taken.
        /// - [`PostBufReason::Unclaimed`] if completions were polled and not reclaimed.
        /// - [`PostReason::Doorbell`](crate::PostReason::Doorbell) without the memory: the request
        ///   is in the queue.
        ///
        /// # References
        /// `ibv_post_send(3)`
        #[doc(alias = "ibv_post_send")]
        #[inline]
        pub fn post_send_buf<M: PostMemory>(
            &mut self,
            op: SendOp<'_>,
            flags: SendFlags,
            memory: M,
            range: impl RangeBounds<usize>,
        ) -> Result<u64, PostBufError<M>> {
            self.send.post(op, flags | SendFlags::SIGNALED, memory, range)
        }

        /// Posts a send as [`post_send_buf`](Self::post_send_buf) does, without a completion of its
        /// own. The memory returns with the next signalled request of this queue, or with this one
        /// if it fails.
        ///
        /// A queue without signalled requests fills up, because only completions free its slots.
        ///
        /// # Errors
        /// As [`post_send_buf`](Self::post_send_buf).
        ///
        /// # References
        /// `ibv_post_send(3)`
        #[doc(alias = "ibv_post_send")]
        #[inline]
        pub fn post_send_buf_unsignaled<M: PostMemory>(
            &mut self,
            op: SendOp<'_>,
            flags: SendFlags,
            memory: M,
            range: impl RangeBounds<usize>,
        ) -> Result<u64, PostBufError<M>> {
            self.send.post(op, flags - SendFlags::SIGNALED, memory, range)
        }

        /// Posts a send of any number of pieces of memory as one message, in their order, as
        /// [`post_send_buf`](Self::post_send_buf) does.
        ///
        /// # Errors
        /// As [`post_send_buf`](Self::post_send_buf), with all pieces;
        /// [`PostReason::TooManySge`](crate::PostReason::TooManySge) for more pieces than
        /// [`QpCap::max_send_sge`](crate::QpCap::max_send_sge).
        ///
        /// # References
        /// `ibv_post_send(3)`
        #[doc(alias = "ibv_post_send")]
        pub fn post_send_bufs<M: PostMemory>(
            &mut self,
            op: SendOp<'_>,
            flags: SendFlags,
            pieces: Vec<M>,
        ) -> Result<u64, PostBufError<Vec<M>>> {
            self.send.post_all(op, flags | SendFlags::SIGNALED, pieces)
        }

        /// Posts a send, or an RDMA write, of bytes that are copied into the queue now. The caller
        /// sets `wr_id`, which its completion has if the request is signalled or fails.
        ///
        /// # Errors
        /// - [`PostReason::InlineTooLong`](crate::PostReason::InlineTooLong) for more bytes than
        ///   [`QpCap::max_inline_data`](crate::QpCap::max_inline_data).
        /// - [`PostBufReason::ReservedWrId`] for a `wr_id` with its top bit set.
        /// - [`PostReason::UnsupportedFlags`](crate::PostReason::UnsupportedFlags) for an operation
        ///   that writes local memory.
        /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of the queue
        ///   is taken; [`PostBufReason`] lists the others.
        #[doc(alias = "IBV_SEND_INLINE")]
        #[inline]
        pub fn post_send_inline(
            &mut self,
            wr_id: u64,
            op: SendOp<'_>,
            flags: SendFlags,
            data: &[u8],
        ) -> Result<(), PostBufReason> {
            self.send.post_inline(wr_id, op, flags, data)
        }

        /// Starts a batch of sends that reach the device together, or not at all.
        #[doc(alias = "ibv_wr_start")]
        pub fn batch(&mut self) -> SendBatch<'_, P> {
            SendBatch::new(&mut self.send)
        }
    };
}

/// Defines the methods that post receives, for a type with a field `recv: Receiver<P>`.
macro_rules! posts_recvs {
    () => {
        /// Posts receives, raw, for any scheme of ownership. One doorbell announces all of them.
        ///
        /// # Safety
        /// From this call until its completion was polled (or the queue pair was destroyed, or
        /// reset where that [ends requests](crate::Qp::reset_ends_requests)), the device may write
        /// the memory of every SGE: no code frees or accesses it. Each `wr_id` has its top bit
        /// clear, because the others are numbers of safe requests.
        ///
        /// # Errors
        /// The number of requests that were accepted, and the [`PostReason`](crate::PostReason) for
        /// which the next one was not. The device owns the memory of the accepted ones.
        ///
        /// # References
        /// `ibv_post_recv(3)`
        #[doc(alias = "ibv_post_recv")]
        #[inline(always)]
        pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
            // SAFETY: the caller's promise is the same.
            unsafe { self.recv.queue.post_recv(wrs) }
        }

        /// Posts a receive into a range of the memory, which the queue owns until a message has
        /// arrived. Polling returns the memory
        /// ([`Completion::reclaim`](crate::Completion::reclaim),
        /// [`Cq::poll_one`](crate::Cq::poll_one)).
        ///
        /// Returns the request's number, which is the `wr_id` of its completion. The first call of
        /// a queue allocates its table.
        ///
        /// # Errors
        /// The memory, and the reason; [`PostBufReason`] lists all of them. Notably:
        ///
        /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of the queue
        ///   is taken.
        /// - [`PostBufReason::Unclaimed`] if completions were polled and not reclaimed.
        /// - [`PostBufReason::ReadOnly`] for a [`FrozenBuf`](crate::FrozenBuf).
        ///
        /// # References
        /// `ibv_post_recv(3)`
        #[doc(alias = "ibv_post_recv")]
        #[inline]
        pub fn post_recv_buf<M: PostMemory>(
            &mut self,
            memory: M,
            range: impl RangeBounds<usize>,
        ) -> Result<u64, PostBufError<M>> {
            self.recv.post(memory, range)
        }

        /// Posts a receive of one message into any number of pieces of memory, in their order, as
        /// [`post_recv_buf`](Self::post_recv_buf) does.
        ///
        /// # Errors
        /// As [`post_recv_buf`](Self::post_recv_buf), with all pieces;
        /// [`PostReason::TooManySge`](crate::PostReason::TooManySge) for more pieces than
        /// [`QpCap::max_recv_sge`](crate::QpCap::max_recv_sge).
        ///
        /// # References
        /// `ibv_post_recv(3)`
        #[doc(alias = "ibv_post_recv")]
        pub fn post_recv_bufs<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, PostBufError<Vec<M>>> {
            self.recv.post_all(pieces)
        }
    };
}

pub(super) use {posts_recvs, posts_sends};
