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

use verbs_core::provider::{Provider, RecvQueue, SendQueue, gather};
use verbs_core::types::{OpKind, PostError, PostReason, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge};

use crate::in_flight::{Poster, Use, is_postable, is_reserved, takes_inline, takes_no_memory};
use crate::memory::{Memory, PostMemory};
use crate::post_error::{PostBufError, PostBufReason};
use crate::window::{self, QpWindows};
use crate::{Exposed, RemoteAccess, RemoteMr, Window};

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

    pub(super) fn post_bind(
        &mut self,
        qp: &impl QpWindows,
        flags: SendFlags,
        mut window: Window,
        memory: &Exposed,
        range: impl RangeBounds<usize>,
        access: RemoteAccess,
    ) -> Result<(u64, RemoteMr), PostBufError<Window>> {
        let prepared = if window.pd_id() == self.poster.pd() {
            window.prepare_bind(memory, range, access, qp)
        } else {
            Err(PostBufReason::Foreign)
        };
        let (request, remote) = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => return Err(PostBufError { returned: Some(window), reason }),
        };
        self.post_window(flags, window, &request).map(|number| (number, remote))
    }

    pub(super) fn post_revoke(
        &mut self,
        qp: &impl QpWindows,
        flags: SendFlags,
        mut window: Window,
    ) -> Result<u64, PostBufError<Window>> {
        let prepared = if window.pd_id() == self.poster.pd() {
            window.prepare_revoke(qp)
        } else {
            Err(PostBufReason::Foreign)
        };
        match prepared {
            Ok(request) => self.post_window(flags, window, &request),
            Err(reason) => Err(PostBufError { returned: Some(window), reason }),
        }
    }

    fn post_window(
        &mut self,
        flags: SendFlags,
        window: Window,
        request: &window::Request,
    ) -> Result<u64, PostBufError<Window>> {
        let queue = &mut self.queue;
        let posted = self.poster.post_window(window, |wr_id| {
            let wr = SendWr { wr_id, op: request.op(), sge: &[], flags: flags | SendFlags::SIGNALED };
            // SAFETY: the request has no list. It gives peers access to exposed memory, of which
            // the window holds a share (see `crate::window`), or takes access away.
            unsafe { queue.post_send(&[wr]) }
        });
        posted.map_err(|mut error| {
            if let Some(window) = &mut error.returned {
                window.roll_back();
            }
            error
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

impl<P: Provider> Sender<P> {
    pub(super) fn post_inline_list(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: &[&[u8]],
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.queue;
        // SAFETY: the call posts this one request.
        unsafe { inline_list(wr_id, op, flags, pieces, self.qp_type, |wr| queue.post_send(wr)) }
    }

    pub(super) fn post_op(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.queue;
        // SAFETY: the call posts this one request.
        unsafe { without_memory(wr_id, op, flags, self.qp_type, |wr| queue.post_send(wr)) }
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

    /// Adds a send of several pieces of inline data, as
    /// [`Qp::post_send_inline_list`](crate::Qp::post_send_inline_list) posts one. The bytes are
    /// copied now.
    ///
    /// # Errors
    /// As [`Qp::post_send_inline_list`](crate::Qp::post_send_inline_list). The requests that were
    /// added before stay in the batch.
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    pub fn post_inline_list(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: &[&[u8]],
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        let qp_type = self.sender.qp_type;
        // SAFETY: the call puts in this one request.
        unsafe { inline_list(wr_id, op, flags, pieces, qp_type, |wr| put_all(queue, wr)) }?;
        self.len += 1;
        Ok(())
    }

    /// Adds an operation without local memory, as [`Qp::post_send_op`](crate::Qp::post_send_op)
    /// posts one.
    ///
    /// # Errors
    /// As [`Qp::post_send_op`](crate::Qp::post_send_op). The requests that were added before stay
    /// in the batch.
    pub fn post_op(&mut self, wr_id: u64, op: SendOp<'_>, flags: SendFlags) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        // SAFETY: the call puts in this one request.
        unsafe { without_memory(wr_id, op, flags, self.sender.qp_type, |wr| put_all(queue, wr)) }?;
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
    check_inline(wr_id, &op, flags, qp_type)?;
    let length = u32::try_from(data.len()).map_err(|_| PostBufReason::TooLong { len: data.len() })?;
    let sge = [Sge { addr: data.as_ptr().expose_provenance() as u64, length, lkey: 0 }];
    // The operation takes inline data, so the borrowed bytes are read only during the call [2]; the
    // number is not reserved for this library.
    let wr = SendWr { wr_id, op, sge: &sge, flags: flags | SendFlags::INLINE };
    post(&[wr]).map_err(|error| PostBufReason::Post(error.reason))
}

/// Posts a request of several pieces of inline data, which are copied during the call.
///
/// # Errors
/// As [`Qp::post_send_inline_list`](crate::Qp::post_send_inline_list).
///
/// # Safety
/// As [`inline`].
unsafe fn inline_list(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    pieces: &[&[u8]],
    qp_type: QpType,
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostBufReason> {
    check_inline(wr_id, &op, flags, qp_type)?;
    if let Some(piece) = pieces.iter().find(|piece| u32::try_from(piece.len()).is_err()) {
        return Err(PostBufReason::TooLong { len: piece.len() });
    }
    // As in `inline`.
    gather(pieces, |sge| post(&[SendWr { wr_id, op, sge, flags: flags | SendFlags::INLINE }]))
        .map_err(|error| PostBufReason::Post(error.reason))
}

/// Checks that safe code may post inline data with this number and operation.
#[inline]
fn check_inline(wr_id: u64, op: &SendOp<'_>, flags: SendFlags, qp_type: QpType) -> Result<(), PostBufReason> {
    if is_reserved(wr_id) {
        return Err(PostBufReason::ReservedWrId { wr_id });
    }
    if !takes_inline(op) {
        return Err(PostBufReason::Post(unsupported(op, flags | SendFlags::INLINE, qp_type)));
    }
    Ok(())
}

/// Posts a request without local memory.
///
/// # Errors
/// As [`Qp::post_send_op`](crate::Qp::post_send_op).
///
/// # Safety
/// As [`inline`].
unsafe fn without_memory(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    qp_type: QpType,
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostBufReason> {
    if is_reserved(wr_id) {
        return Err(PostBufReason::ReservedWrId { wr_id });
    }
    if !takes_no_memory(&op) && !takes_inline(&op) {
        return Err(PostBufReason::Post(unsupported(&op, SendFlags::empty(), qp_type)));
    }
    // An empty list names no memory. Inline bytes would need one.
    let flags = flags - SendFlags::INLINE;
    post(&[SendWr { wr_id, op, sge: &[], flags }]).map_err(|error| PostBufReason::Post(error.reason))
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
        /// A bind gives peers access to a region until the window is invalidated, deallocated, or
        /// bound otherwise, and on some devices for a moment longer
        /// ([`MwOps::revocation_ends_access`](crate::provider::MwOps::revocation_ends_access)): the
        /// promise of [`Pd::reg_mr`](crate::Pd::reg_mr) holds for its memory as for remote rights.
        /// It names no region of a [`Buf`](crate::Buf) or an [`Exposed`](crate::Exposed). Neither a
        /// bind nor an invalidation names a key of a [`Window`](crate::Window). An invalidation
        /// names the key of a window that is bound when it is executed, as
        /// [`WrBatch::local_inv`](crate::WrBatch::local_inv) requires.
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

        /// Posts the bind of a window to a range of memory: from the next message of this queue on,
        /// the peer may access it with the rights in `access` that the queue pair's own access
        /// flags allow too. The request is signalled, and its completion returns the window
        /// ([`Completed::into_window`](crate::Completed::into_window)).
        ///
        /// Returns the request's number, and the address, length and key for the peer. A window of
        /// type 1 that is bound already is bound anew.
        ///
        /// A bind that the device rejects completes with
        /// [`MW_BIND_ERR`](crate::WcStatus::MW_BIND_ERR), and breaks the queue pair. rxe lets the
        /// peer access all of the memory that was exposed, instead of the range.
        ///
        /// # Errors
        /// The window, and the reason; [`PostBufReason`] lists all of them. Notably:
        ///
        /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) for a UD queue pair.
        /// - [`PostBufReason::WindowBound`] for a window of type 2 that is bound.
        /// - [`PostBufReason::NotForWindows`] for memory that was not exposed by
        ///   [`expose_to_windows`](crate::Pd::expose_to_windows).
        ///
        /// # References
        /// `ibv_bind_mw(3)`, `ibv_wr_bind_mw(3)`
        #[doc(alias = "ibv_bind_mw")]
        #[doc(alias = "ibv_wr_bind_mw")]
        pub fn post_bind(
            &mut self,
            flags: SendFlags,
            window: crate::Window,
            memory: &crate::Exposed,
            range: impl RangeBounds<usize>,
            access: crate::RemoteAccess,
        ) -> Result<(u64, crate::RemoteMr), PostBufError<crate::Window>> {
            self.send.post_bind(self.core.get(), flags, window, memory, range, access)
        }

        /// Posts the revocation of a window: an invalidation of its key (type 2) or a bind to
        /// nothing (type 1). When it has completed, peers have no access through the window. The
        /// request is signalled, and its completion returns the window.
        ///
        /// A window of type 2 is revoked on the queue pair that it was bound for, a reliable one.
        /// [`Window::close`](crate::Window::close) revokes any window.
        ///
        /// The kernel's rxe crashes if a peer has invalidated the key meanwhile, which this side
        /// learns only from its next receive: where peers of rxe invalidate keys, end their windows
        /// with [`Window::close`](crate::Window::close), which is harmless then.
        ///
        /// # Errors
        /// The window, and the reason; [`PostBufReason`] lists all of them. Notably:
        ///
        /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) for a window of type 2
        ///   on an unreliable queue pair.
        /// - [`PostBufReason::WindowUnbound`] for a window that is not bound.
        ///
        /// # References
        /// `ibv_wr_local_inv(3)`, `ibv_bind_mw(3)`
        #[doc(alias = "ibv_wr_local_inv")]
        #[doc(alias = "IBV_WR_LOCAL_INV")]
        pub fn post_revoke(
            &mut self,
            flags: SendFlags,
            window: crate::Window,
        ) -> Result<u64, PostBufError<crate::Window>> {
            self.send.post_revoke(self.core.get(), flags, window)
        }

        /// Posts a send, or an RDMA write, of pieces that are copied into the queue now, one behind
        /// the other, as [`post_send_inline`](Self::post_send_inline) does.
        ///
        /// # Errors
        /// As [`post_send_inline`](Self::post_send_inline);
        /// [`PostReason::TooManySge`](crate::PostReason::TooManySge) for more pieces than
        /// [`QpCap::max_send_sge`](crate::QpCap::max_send_sge).
        #[doc(alias = "ibv_wr_set_inline_data_list")]
        pub fn post_send_inline_list(
            &mut self,
            wr_id: u64,
            op: SendOp<'_>,
            flags: SendFlags,
            pieces: &[&[u8]],
        ) -> Result<(), PostBufReason> {
            self.send.post_inline_list(wr_id, op, flags, pieces)
        }

        /// Posts an operation without local memory: a flush, an atomic write, or a send or an RDMA
        /// write of no bytes. The caller sets `wr_id`, which its completion has if the request is
        /// signalled or fails.
        ///
        /// ```no_run
        /// # use verbs::{Error, Qp, RemoteMr, state::Rts};
        /// use verbs::{FlushPlacement, SendFlags};
        /// # fn f(mut qp: Qp<Rts>, record: RemoteMr, tail: RemoteMr) -> Result<(), Error> {
        /// // What was written to the record before is visible when its number appears.
        /// qp.post_send_op(1, record.flush(FlushPlacement::GLOBAL)?, SendFlags::empty())?;
        /// qp.post_send_op(2, tail.atomic_write(8_u64.to_ne_bytes()), SendFlags::SIGNALED)?;
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) for an operation with
        ///   local memory, and where the device lacks the operation
        ///   ([`DeviceCapFlags::FLUSH_GLOBAL`](crate::DeviceCapFlags::FLUSH_GLOBAL),
        ///   [`ATOMIC_WRITE`](crate::DeviceCapFlags::ATOMIC_WRITE)).
        /// - [`PostReason::FlushKind`](crate::PostReason::FlushKind),
        ///   [`PostReason::AtomicMisaligned`](crate::PostReason::AtomicMisaligned) for wrong
        ///   operands.
        /// - [`PostBufReason::ReservedWrId`] for a `wr_id` with its top bit set; otherwise as
        ///   [`post_send_inline`](Self::post_send_inline).
        #[doc(alias = "IBV_WR_FLUSH")]
        #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
        #[inline]
        pub fn post_send_op(
            &mut self,
            wr_id: u64,
            op: SendOp<'_>,
            flags: SendFlags,
        ) -> Result<(), PostBufReason> {
            self.send.post_op(wr_id, op, flags)
        }

        /// Starts a batch of raw work requests, as C's `ibv_wr_start` does. Only the calls that
        /// name local memory or a window of this side are unsafe. [`batch`](Self::batch) is the safe alternative.
        ///
        /// ```no_run
        /// # use verbs::{Error, Mr, Qp, RemoteMr, SendFlags, state::Rts};
        /// # fn f(mut qp: Qp<Rts>, mr: &Mr, to: RemoteMr) -> Result<(), Error> {
        /// let mut wr = qp.wr_start();
        /// wr.wr_id = 1;
        /// // SAFETY: nothing else accesses the region before this request has completed.
        /// unsafe { wr.rdma_write(to.rkey, to.addr).set_sge(mr.sge(..)) };
        /// wr.wr_id = 2;
        /// wr.wr_flags = SendFlags::SIGNALED;
        /// wr.send_imm(7).set_inline_data_list(&[b"head", b"tail"]);
        /// wr.complete()?;
        /// # Ok(())
        /// # }
        /// ```
        #[doc(alias = "ibv_wr_start")]
        #[inline(always)]
        pub fn wr_start(&mut self) -> WrBatch<'_, P::Sq> {
            WrBatch::start(&mut self.send.queue)
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
