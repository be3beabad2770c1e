//! [`SendQueue`]: the posting methods of send queues, defined once for all handles with a send
//! queue.
//!
//! # Safety
//! The unsafe code here is raw posting, whose requirements the caller meets, and safe posting,
//! justified in [`crate::in_flight`].

#![allow(unsafe_code)]

use core::fmt;
use core::ops::RangeBounds;

use verbs_core::provider::{Erased, Provider, SendQueue as _, WrBatch};
#[cfg(feature = "mlx5")]
use verbs_core::types::PostReason;
use verbs_core::types::{PostError, SendFlags, SendOp, SendWr};

use super::{SendBatch, Sender, inline, inline_list, post_held, without_memory};
use crate::in_flight::Use;
use crate::memory::PostMemory;
use crate::memory::exposed::{Exposed, RemoteAccess};
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::memory::remote::RemoteMr;
use crate::memory::window::{self, Window};
use crate::qp::control::Core;

/// A view of a send queue, for posting. Made by [`Qp::send_queue`](crate::Qp::send_queue) and
/// [`SendHalf::send_queue`](crate::SendHalf::send_queue).
///
/// [`Qp`](crate::Qp), [`SendHalf`](crate::SendHalf) and [`ScopedQp`](crate::ScopedQp) have methods
/// with the same names, which call these. A function that can post for any of them takes a view:
///
/// ```no_run
/// use verbs::{PostBufReason, Qp, SendFlags, SendHalf, SendOp, SendQueue, state::Rts};
///
/// fn greet(mut queue: SendQueue<'_>) -> Result<(), PostBufReason> {
///     queue.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, b"hello")
/// }
///
/// # fn f(mut qp: Qp<Rts>, mut half: SendHalf) -> Result<(), PostBufReason> {
/// greet(qp.send_queue())?;
/// greet(half.send_queue())
/// # }
/// ```
pub struct SendQueue<'q, P: Provider = Erased> {
    sender: &'q mut Sender<P>,
    core: &'q Core<P>,
}

impl<'q, P: Provider> SendQueue<'q, P> {
    pub(in crate::qp) const fn new(sender: &'q mut Sender<P>, core: &'q Core<P>) -> Self {
        Self { sender, core }
    }

    /// Posts raw sends, for any ownership scheme. One doorbell announces all of them.
    ///
    /// # Safety
    /// From this call until a request's completion was polled (or the queue pair was destroyed, or
    /// reset where that [ends requests](crate::Qp::reset_ends_requests)), the device reads the
    /// memory of every SGE, and writes it for RDMA reads and atomics: no code may free it or access
    /// it in conflict. An unsignalled request has ended once a later request of this queue has
    /// completed. With [`SendFlags::INLINE`] every SGE must be memory of this process: the call
    /// reads the bytes at its address, and the caller may reuse the memory once the call returns.
    /// Each `wr_id` must have its top bit clear, because a `wr_id` with that bit set belongs to a
    /// safe request.
    ///
    /// A bind gives peers access to a region until the window is invalidated, deallocated, or bound
    /// to something else, and on some devices for a moment longer
    /// ([`MwOps::revocation_ends_access`](crate::provider::MwOps::revocation_ends_access)): the
    /// requirements of [`Pd::reg_mr`](crate::Pd::reg_mr) for remote rights apply to the region's
    /// memory. The bind must not name a region of a [`Buf`](crate::Buf) or an
    /// [`Exposed`](crate::Exposed). Neither a bind nor an invalidation may name a key of a
    /// [`Window`](crate::Window). An invalidation must name the key of a window that is bound when
    /// the invalidation executes, as [`WrBatch::local_inv`](crate::WrBatch::local_inv) requires.
    ///
    /// # Errors
    /// Returns the number of accepted requests and the [`PostReason`](crate::PostReason) why the
    /// next one was rejected. The device owns the memory of the accepted requests.
    ///
    /// # References
    /// `ibv_post_send(3)`
    #[inline(always)]
    pub unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.sender.queue.post_send(wrs) }
    }

    /// Posts a send of a range of `memory`: a message, an RDMA operation or an atomic. The queue
    /// owns the memory until the request has ended. Polling returns the memory
    /// ([`Completion::reclaim`](crate::Completion::reclaim),
    /// [`Cq::poll_one`](crate::Cq::poll_one)).
    ///
    /// Returns the `wr_id` of the request and its completion. The request is signalled even without
    /// [`SendFlags::SIGNALED`]. The first call on a queue allocates its table.
    ///
    /// # Errors
    /// Returns the memory and the reason; [`PostBufReason`] lists all reasons. Notably:
    ///
    /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of the queue is
    ///   taken.
    /// - [`PostBufReason::Unclaimed`] if polled completions were not reclaimed.
    /// - [`PostReason::Doorbell`](crate::PostReason::Doorbell) without the memory, because the
    ///   request is in the queue.
    ///
    /// # References
    /// `ibv_post_send(3)`
    #[inline]
    pub fn post_send_buf<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.post(op, flags | SendFlags::SIGNALED, memory, range)
    }

    /// Posts a send like [`post_send_buf`](Self::post_send_buf) but without a completion. The
    /// memory returns with the next signalled request of this queue, or with this request if it
    /// fails.
    ///
    /// A queue without signalled requests fills up, because only completions free its slots.
    ///
    /// # Errors
    /// The errors of [`post_send_buf`](Self::post_send_buf).
    ///
    /// # References
    /// `ibv_post_send(3)`
    #[inline]
    pub fn post_send_buf_unsignaled<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.post(op, flags - SendFlags::SIGNALED, memory, range)
    }

    /// Posts a send of several pieces of memory as one message, in order, like
    /// [`post_send_buf`](Self::post_send_buf).
    ///
    /// # Errors
    /// The errors of [`post_send_buf`](Self::post_send_buf), with all pieces;
    /// [`PostReason::TooManySge`](crate::PostReason::TooManySge) for more pieces than
    /// [`QpCap::max_send_sge`](crate::QpCap::max_send_sge).
    ///
    /// # References
    /// `ibv_post_send(3)`
    pub fn post_send_bufs<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: Vec<M>,
    ) -> Result<u64, PostBufError<Vec<M>>> {
        let flags = flags | SendFlags::SIGNALED;
        let queue = &mut self.sender.queue;
        self.sender.poster.post_all(pieces, Use::send(&op, flags), |wr_id, sge| {
            // SAFETY: the table holds the memory that the elements cover.
            unsafe { post_held(wr_id, op, flags, sge, |wr| queue.post_send(wr)) }
        })
    }

    /// Posts a send or an RDMA write of bytes that are copied into the queue during the call. The
    /// caller sets the `wr_id` of the completion, which arrives if the request is signalled or
    /// fails.
    ///
    /// # Errors
    /// - [`PostReason::InlineTooLong`](crate::PostReason::InlineTooLong) for more bytes than
    ///   [`QpCap::max_inline_data`](crate::QpCap::max_inline_data).
    /// - [`PostBufReason::ReservedWrId`] for a `wr_id` with its top bit set.
    /// - [`PostReason::UnsupportedFlags`](crate::PostReason::UnsupportedFlags) for an operation
    ///   that writes local memory.
    /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of the queue is
    ///   taken; [`PostBufReason`] lists the other reasons.
    #[inline]
    pub fn post_send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        // SAFETY: the call posts this one request.
        unsafe { inline(wr_id, op, flags, data, |wr| queue.post_send(wr)) }
    }

    /// Posts a bind of a window to a range of memory. From this queue's next message on, the peer
    /// may access the range with the rights that are in both `access` and the queue pair's access
    /// flags. The request is signalled; its completion returns the window
    /// ([`Completed::into_window`](crate::Completed::into_window)).
    ///
    /// Returns the request's `wr_id`, and the address, length and key for the peer. A window of
    /// type 1 that is bound already is bound again.
    ///
    /// A bind rejected by the device completes with [`MW_BIND_ERR`](crate::WcStatus::MW_BIND_ERR)
    /// and moves the queue pair to the error state. rxe lets the peer access all of the exposed
    /// memory instead of only the range.
    ///
    /// # Errors
    /// Returns the window and the reason; [`PostBufReason`] lists all reasons. Notably:
    ///
    /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) for a UD queue pair.
    /// - [`PostBufReason::WindowBound`] for a bound window of type 2.
    /// - [`PostBufReason::NotForWindows`] for memory not exposed with
    ///   [`expose_to_windows`](crate::Pd::expose_to_windows).
    ///
    /// # References
    /// `ibv_bind_mw(3)`, `ibv_wr_bind_mw(3)`
    pub fn post_bind(
        &mut self,
        flags: SendFlags,
        mut window: Window,
        memory: &Exposed,
        range: impl RangeBounds<usize>,
        access: RemoteAccess,
    ) -> Result<(u64, RemoteMr), PostBufError<Window>> {
        let prepared = if window.pd_id() == self.sender.poster.pd() {
            window.prepare_bind(memory, range, access, self.core.get())
        } else {
            Err(PostBufReason::Foreign)
        };
        let (request, remote) = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => return Err(PostBufError { returned: Some(window), reason }),
        };
        self.post_window(flags, window, &request).map(|number| (number, remote))
    }

    /// Posts the revocation of a window: an invalidation of its key (type 2) or a bind of zero
    /// length (type 1). Once it has completed, peers have no access through the window. The request
    /// is signalled; its completion returns the window.
    ///
    /// A window of type 2 is revoked on the reliable queue pair it was bound for.
    /// [`Window::close`](crate::Window::close) revokes any window.
    ///
    /// The kernel's rxe driver crashes if a peer has invalidated the key before the revocation.
    /// Only the next receive reports such an invalidation. If peers invalidate keys on rxe, revoke
    /// their windows with [`Window::close`](crate::Window::close) instead.
    ///
    /// # Errors
    /// Returns the window and the reason; [`PostBufReason`] lists all reasons. Notably:
    ///
    /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) for a window of type 2 on
    ///   an unreliable queue pair.
    /// - [`PostBufReason::WindowUnbound`] for an unbound window.
    ///
    /// # References
    /// `ibv_wr_local_inv(3)`, `ibv_bind_mw(3)`
    pub fn post_revoke(&mut self, flags: SendFlags, mut window: Window) -> Result<u64, PostBufError<Window>> {
        let prepared = if window.pd_id() == self.sender.poster.pd() {
            window.prepare_revoke(self.core.get())
        } else {
            Err(PostBufReason::Foreign)
        };
        match prepared {
            Ok(request) => self.post_window(flags, window, &request),
            Err(reason) => Err(PostBufError { returned: Some(window), reason }),
        }
    }

    /// Posts a send or an RDMA write of pieces that are copied into the queue during the call, one
    /// after the other, like [`post_send_inline`](Self::post_send_inline).
    ///
    /// # Errors
    /// The errors of [`post_send_inline`](Self::post_send_inline);
    /// [`PostReason::TooManySge`](crate::PostReason::TooManySge) for more pieces than
    /// [`QpCap::max_send_sge`](crate::QpCap::max_send_sge).
    pub fn post_send_inline_list(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: &[&[u8]],
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        // SAFETY: the call posts this one request.
        unsafe { inline_list(wr_id, op, flags, pieces, |wr| queue.post_send(wr)) }
    }

    /// Posts an operation without local memory: a flush, an atomic write, or an empty send or RDMA
    /// write. The caller sets the `wr_id` of the completion, which arrives if the request is
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
    /// - [`PostReason::OtherCall`](crate::PostReason::OtherCall) for an operation with local
    ///   memory.
    /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) if the device lacks the
    ///   operation ([`DeviceCapFlags::FLUSH_GLOBAL`](crate::DeviceCapFlags::FLUSH_GLOBAL),
    ///   [`ATOMIC_WRITE`](crate::DeviceCapFlags::ATOMIC_WRITE)).
    /// - [`PostReason::FlushKind`](crate::PostReason::FlushKind),
    ///   [`PostReason::AtomicMisaligned`](crate::PostReason::AtomicMisaligned) for invalid
    ///   operands.
    /// - [`PostBufReason::ReservedWrId`] for a `wr_id` with its top bit set; otherwise as
    ///   [`post_send_inline`](Self::post_send_inline).
    #[inline]
    pub fn post_send_op(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
    ) -> Result<(), PostBufReason> {
        let queue = &mut self.sender.queue;
        // SAFETY: the call posts this one request.
        unsafe { without_memory(wr_id, op, flags, |wr| queue.post_send(wr)) }
    }

    /// Starts a batch of raw work requests, like `ibv_wr_start` in C. Only calls that name local
    /// memory or a local window are unsafe. [`batch`](Self::batch) is the safe alternative.
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
    #[inline(always)]
    pub fn wr_start(self) -> WrBatch<'q, P::Sq> {
        WrBatch::start(&mut self.sender.queue)
    }

    /// Starts a batch of sends that reach the device together or not at all.
    pub fn batch(self) -> SendBatch<'q, P> {
        SendBatch::new(self.sender)
    }

    #[inline]
    fn post<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        let queue = &mut self.sender.queue;
        self.sender.poster.post(memory, range, Use::send(&op, flags), |wr_id, sge| {
            // SAFETY: the table holds the memory that the elements cover.
            unsafe { post_held(wr_id, op, flags, sge, |wr| queue.post_send(wr)) }
        })
    }

    fn post_window(
        &mut self,
        flags: SendFlags,
        window: Window,
        request: &window::Request,
    ) -> Result<u64, PostBufError<Window>> {
        let queue = &mut self.sender.queue;
        let posted = self.sender.poster.post_window(window, |wr_id| {
            let wr = SendWr { wr_id, op: request.op(), sge: &[], flags: flags | SendFlags::SIGNALED };
            // SAFETY: the request has no list. It gives peers access to exposed memory, or takes
            // access away; the window holds a share of that memory (see `crate::memory::window`).
            unsafe { queue.post_send(&[wr]) }
        });
        posted.map_err(|mut error| {
            if let Some(window) = &mut error.returned {
                window.roll_back();
            }
            error
        })
    }
}

#[cfg(feature = "mlx5")]
impl SendQueue<'_, provider_mlx5::Mlx5> {
    /// Posts a request in the device's own format: a control segment followed by the operation's
    /// segments, in units of 16 bytes. The queue sets the request's index in the control segment;
    /// all other bytes, including the queue pair number and the length, reach the device unchanged.
    /// The request completes with the opcode [`DRIVER2`](crate::WcOpcode::DRIVER2) if its control
    /// segment requests a completion.
    ///
    /// [`WrBatch::put_raw`](crate::WrBatch::put_raw) and
    /// [`SendBatch::put_raw`](crate::SendBatch::put_raw) add such requests to a batch. The
    /// [guide](crate::guide::connectx) builds one.
    ///
    /// # Safety
    /// Same as [`post_send`](Self::post_send), for all memory and keys that the segments name, and
    /// `wr_id` must have its top bit clear. The device must be able to execute the request on this
    /// queue pair: its queue pair number, length and operation are valid, and it changes no key
    /// that safe code uses.
    ///
    /// # Errors
    /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while the queue has no free space.
    /// - [`PostReason::TooManySge`](crate::PostReason::TooManySge) for a request whose control
    ///   segment and slice differ in length, or that is longer than the queue's maximum.
    /// - [`PostReason::InvalidState`](crate::PostReason::InvalidState) and similar reasons if the
    ///   device moved the queue pair to another state.
    /// - [`PostReason::Doorbell`](crate::PostReason::Doorbell): the request is in the queue.
    ///
    /// # References
    /// `mlx5dv_wr_post(3)`
    pub unsafe fn post_raw(&mut self, wr_id: u64, request: &[[u8; 16]]) -> Result<(), PostReason> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.sender.queue.post_raw(wr_id, request) }?;
        self.sender.queue.ring().map_err(PostReason::Doorbell)
    }
}

impl<P: Provider> fmt::Debug for SendQueue<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue").field("queue", &self.sender.queue).finish_non_exhaustive()
    }
}
