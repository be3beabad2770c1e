//! The posting methods of queue pairs and their halves. Each calls the method with the same name on
//! a view, [`SendQueue`] or [`RecvQueue`], where it is documented.
//!
//! # Safety
//! The unsafe code here is raw posting, whose requirements the caller meets.

#![allow(unsafe_code)]

use core::ops::RangeBounds;

#[cfg(feature = "mlx5")]
use provider_mlx5::Mlx5;
use verbs_core::provider::{Provider, WrBatch};
#[cfg(feature = "mlx5")]
use verbs_core::types::PostReason;
use verbs_core::types::{PostError, RecvWr, SendFlags, SendOp, SendWr};

use super::{RecvQueue, SendBatch, SendQueue};
use crate::memory::PostMemory;
use crate::memory::exposed::{Exposed, RemoteAccess};
use crate::memory::post_error::{PostBufError, PostBufReason};
use crate::memory::remote::RemoteMr;
use crate::memory::window::Window;
use crate::qp::Qp;
use crate::qp::split::{RecvHalf, SendHalf};
use crate::qp::state::{CanPostRecv, CanPostSend};

impl<S: CanPostSend, P: Provider> Qp<S, P> {
    /// Returns a view of the send queue. [`SendQueue`] documents the posting methods.
    #[inline]
    pub fn send_queue(&mut self) -> SendQueue<'_, P> {
        SendQueue::new(&mut self.send, &self.core)
    }

    /// Posts raw sends, as [`SendQueue::post_send`] does.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`].
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send`].
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.send_queue().post_send(wrs) }
    }

    /// Posts a send of a range of `memory`, as [`SendQueue::post_send_buf`] does. Returns the
    /// request's `wr_id`.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_buf`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send_buf<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.send_queue().post_send_buf(op, flags, memory, range)
    }

    /// Posts a send without a completion, as [`SendQueue::post_send_buf_unsignaled`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_buf_unsignaled`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send_buf_unsignaled<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.send_queue().post_send_buf_unsignaled(op, flags, memory, range)
    }

    /// Posts a send of several pieces of memory as one message, as [`SendQueue::post_send_bufs`]
    /// does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_bufs`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send_bufs<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: Vec<M>,
    ) -> Result<u64, PostBufError<Vec<M>>> {
        self.send_queue().post_send_bufs(op, flags, pieces)
    }

    /// Posts a send or an RDMA write of bytes that are copied during the call, as
    /// [`SendQueue::post_send_inline`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_inline`].
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn post_send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), PostBufReason> {
        self.send_queue().post_send_inline(wr_id, op, flags, data)
    }

    /// Posts a send or an RDMA write of pieces copied during the call, as
    /// [`SendQueue::post_send_inline_list`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_inline_list`].
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    #[inline]
    pub fn post_send_inline_list(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: &[&[u8]],
    ) -> Result<(), PostBufReason> {
        self.send_queue().post_send_inline_list(wr_id, op, flags, pieces)
    }

    /// Posts an operation without local memory, as [`SendQueue::post_send_op`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_op`].
    #[doc(alias = "IBV_WR_FLUSH")]
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    #[inline]
    pub fn post_send_op(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
    ) -> Result<(), PostBufReason> {
        self.send_queue().post_send_op(wr_id, op, flags)
    }

    /// Posts a bind of a window to a range of memory, as [`SendQueue::post_bind`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_bind`].
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "ibv_wr_bind_mw")]
    #[inline]
    pub fn post_bind(
        &mut self,
        flags: SendFlags,
        window: Window,
        memory: &Exposed,
        range: impl RangeBounds<usize>,
        access: RemoteAccess,
    ) -> Result<(u64, RemoteMr), PostBufError<Window>> {
        self.send_queue().post_bind(flags, window, memory, range, access)
    }

    /// Posts the revocation of a window, as [`SendQueue::post_revoke`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_revoke`].
    #[doc(alias = "ibv_wr_local_inv")]
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    #[inline]
    pub fn post_revoke(&mut self, flags: SendFlags, window: Window) -> Result<u64, PostBufError<Window>> {
        self.send_queue().post_revoke(flags, window)
    }

    /// Starts a batch of raw work requests, as [`SendQueue::wr_start`] does.
    #[doc(alias = "ibv_wr_start")]
    #[inline(always)]
    pub fn wr_start(&mut self) -> WrBatch<'_, P::Sq> {
        self.send_queue().wr_start()
    }

    /// Starts a batch of sends that reach the device together or not at all.
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn batch(&mut self) -> SendBatch<'_, P> {
        self.send_queue().batch()
    }
}

#[cfg(feature = "mlx5")]
impl<S: CanPostSend> Qp<S, Mlx5> {
    /// Posts a request in the device's own format, as [`SendQueue::post_raw`] does.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_raw`].
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_raw`].
    #[doc(alias = "mlx5dv_wr_raw_wqe")]
    #[inline]
    pub unsafe fn post_raw(&mut self, wr_id: u64, request: &[[u8; 16]]) -> Result<(), PostReason> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.send_queue().post_raw(wr_id, request) }
    }
}

impl<S: CanPostRecv, P: Provider> Qp<S, P> {
    /// Returns a view of the receive queue. [`RecvQueue`] documents the posting methods.
    #[inline]
    pub fn recv_queue(&mut self) -> RecvQueue<'_, P> {
        RecvQueue::new(&mut self.recv)
    }

    /// Posts raw receives, as [`RecvQueue::post_recv`] does.
    ///
    /// # Safety
    /// Same as [`RecvQueue::post_recv`].
    ///
    /// # Errors
    /// The errors of [`RecvQueue::post_recv`].
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.recv_queue().post_recv(wrs) }
    }

    /// Posts a receive into a range of `memory`, as [`RecvQueue::post_recv_buf`] does. Returns the
    /// request's `wr_id`.
    ///
    /// # Errors
    /// The errors of [`RecvQueue::post_recv_buf`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv_buf<M: PostMemory>(
        &mut self,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.recv_queue().post_recv_buf(memory, range)
    }

    /// Posts a receive of one message into several pieces of memory, as
    /// [`RecvQueue::post_recv_bufs`] does.
    ///
    /// # Errors
    /// The errors of [`RecvQueue::post_recv_bufs`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv_bufs<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, PostBufError<Vec<M>>> {
        self.recv_queue().post_recv_bufs(pieces)
    }

    /// Posts a receive without memory, as [`RecvQueue::post_recv_empty`] does.
    ///
    /// # Errors
    /// The errors of [`RecvQueue::post_recv_empty`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv_empty(&mut self) -> Result<u64, PostBufReason> {
        self.recv_queue().post_recv_empty()
    }
}

impl<S: CanPostSend, P: Provider> SendHalf<S, P> {
    /// Returns a view of the send queue. [`SendQueue`] documents the posting methods.
    #[inline]
    pub fn send_queue(&mut self) -> SendQueue<'_, P> {
        SendQueue::new(&mut self.send, &self.core)
    }

    /// Posts raw sends, as [`SendQueue::post_send`] does.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`].
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send`].
    #[inline(always)]
    pub unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.send_queue().post_send(wrs) }
    }

    /// Posts a send of a range of `memory`, as [`SendQueue::post_send_buf`] does. Returns the
    /// request's `wr_id`.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_buf`].
    #[inline]
    pub fn post_send_buf<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.send_queue().post_send_buf(op, flags, memory, range)
    }

    /// Posts a send without a completion, as [`SendQueue::post_send_buf_unsignaled`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_buf_unsignaled`].
    #[inline]
    pub fn post_send_buf_unsignaled<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.send_queue().post_send_buf_unsignaled(op, flags, memory, range)
    }

    /// Posts a send of several pieces of memory as one message, as [`SendQueue::post_send_bufs`]
    /// does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_bufs`].
    #[inline]
    pub fn post_send_bufs<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: Vec<M>,
    ) -> Result<u64, PostBufError<Vec<M>>> {
        self.send_queue().post_send_bufs(op, flags, pieces)
    }

    /// Posts a send or an RDMA write of bytes that are copied during the call, as
    /// [`SendQueue::post_send_inline`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_inline`].
    #[inline]
    pub fn post_send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), PostBufReason> {
        self.send_queue().post_send_inline(wr_id, op, flags, data)
    }

    /// Posts a send or an RDMA write of pieces copied during the call, as
    /// [`SendQueue::post_send_inline_list`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_inline_list`].
    #[inline]
    pub fn post_send_inline_list(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: &[&[u8]],
    ) -> Result<(), PostBufReason> {
        self.send_queue().post_send_inline_list(wr_id, op, flags, pieces)
    }

    /// Posts an operation without local memory, as [`SendQueue::post_send_op`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_send_op`].
    #[inline]
    pub fn post_send_op(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
    ) -> Result<(), PostBufReason> {
        self.send_queue().post_send_op(wr_id, op, flags)
    }

    /// Posts a bind of a window to a range of memory, as [`SendQueue::post_bind`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_bind`].
    #[inline]
    pub fn post_bind(
        &mut self,
        flags: SendFlags,
        window: Window,
        memory: &Exposed,
        range: impl RangeBounds<usize>,
        access: RemoteAccess,
    ) -> Result<(u64, RemoteMr), PostBufError<Window>> {
        self.send_queue().post_bind(flags, window, memory, range, access)
    }

    /// Posts the revocation of a window, as [`SendQueue::post_revoke`] does.
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_revoke`].
    #[inline]
    pub fn post_revoke(&mut self, flags: SendFlags, window: Window) -> Result<u64, PostBufError<Window>> {
        self.send_queue().post_revoke(flags, window)
    }

    /// Starts a batch of raw work requests, as [`SendQueue::wr_start`] does.
    #[inline(always)]
    pub fn wr_start(&mut self) -> WrBatch<'_, P::Sq> {
        self.send_queue().wr_start()
    }

    /// Starts a batch of sends that reach the device together or not at all.
    #[inline]
    pub fn batch(&mut self) -> SendBatch<'_, P> {
        self.send_queue().batch()
    }
}

#[cfg(feature = "mlx5")]
impl<S: CanPostSend> SendHalf<S, Mlx5> {
    /// Posts a request in the device's own format, as [`SendQueue::post_raw`] does.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_raw`].
    ///
    /// # Errors
    /// The errors of [`SendQueue::post_raw`].
    #[inline]
    pub unsafe fn post_raw(&mut self, wr_id: u64, request: &[[u8; 16]]) -> Result<(), PostReason> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.send_queue().post_raw(wr_id, request) }
    }
}

impl<S: CanPostRecv, P: Provider> RecvHalf<S, P> {
    /// Returns a view of the receive queue. [`RecvQueue`] documents the posting methods.
    #[inline]
    pub fn recv_queue(&mut self) -> RecvQueue<'_, P> {
        RecvQueue::new(&mut self.recv)
    }

    /// Posts raw receives, as [`RecvQueue::post_recv`] does.
    ///
    /// # Safety
    /// Same as [`RecvQueue::post_recv`].
    ///
    /// # Errors
    /// The errors of [`RecvQueue::post_recv`].
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.recv_queue().post_recv(wrs) }
    }

    /// Posts a receive into a range of `memory`, as [`RecvQueue::post_recv_buf`] does. Returns the
    /// request's `wr_id`.
    ///
    /// # Errors
    /// The errors of [`RecvQueue::post_recv_buf`].
    #[inline]
    pub fn post_recv_buf<M: PostMemory>(
        &mut self,
        memory: M,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, PostBufError<M>> {
        self.recv_queue().post_recv_buf(memory, range)
    }

    /// Posts a receive of one message into several pieces of memory, as
    /// [`RecvQueue::post_recv_bufs`] does.
    ///
    /// # Errors
    /// The errors of [`RecvQueue::post_recv_bufs`].
    #[inline]
    pub fn post_recv_bufs<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, PostBufError<Vec<M>>> {
        self.recv_queue().post_recv_bufs(pieces)
    }

    /// Posts a receive without memory, as [`RecvQueue::post_recv_empty`] does.
    ///
    /// # Errors
    /// The errors of [`RecvQueue::post_recv_empty`].
    #[inline]
    pub fn post_recv_empty(&mut self) -> Result<u64, PostBufReason> {
        self.recv_queue().post_recv_empty()
    }
}
