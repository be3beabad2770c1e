//! The posting methods of queue pairs and their halves.
//!
//! # Safety
//! The unsafe code here is raw posting, which relies on its caller's promise.

#![allow(unsafe_code)]

/// Defines the methods for posting sends, for a type with a field `send: Sender<P>`.
macro_rules! posts_sends {
    () => {
        /// Posts sends, raw, for any scheme of ownership. One doorbell announces all of them.
        ///
        /// # Safety
        /// From this call until its completion was polled (or the queue pair was destroyed, or
        /// reset where that [ends requests](crate::Qp::reset_ends_requests)), the device reads the
        /// memory of every SGE, and writes it for RDMA reads and atomics: no code frees it or
        /// accesses it in conflict. An unsignalled request has ended when a later one of this queue
        /// has completed. With [`SendFlags::INLINE`] every SGE is memory of this process: the call
        /// reads it by its address, and the caller may reuse it when the call returns. Each `wr_id`
        /// has its top bit clear, because the others are numbers of safe requests.
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
        /// The number of accepted requests, and the [`PostReason`](crate::PostReason) why the next
        /// one was rejected. The device owns the memory of the accepted ones.
        ///
        /// # References
        /// `ibv_post_send(3)`
        #[doc(alias = "ibv_post_send")]
        #[inline(always)]
        pub unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
            // SAFETY: the caller's promise is the same.
            unsafe { self.send.queue.post_send(wrs) }
        }

        /// Posts a send of a range of the memory. The queue owns the memory until the request has
        /// ended: sent, written to the peer, or read into. Polling returns the memory
        /// ([`Completion::reclaim`](crate::Completion::reclaim),
        /// [`Cq::poll_one`](crate::Cq::poll_one)).
        ///
        /// Returns the request's number, which is the `wr_id` of its completion. The request is
        /// signalled even without [`SendFlags::SIGNALED`]. A queue's first call allocates its
        /// table.
        ///
        /// # Errors
        /// The memory and the reason; [`PostBufReason`] lists all of them. Notably:
        ///
        /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of the queue
        ///   is taken.
        /// - [`PostBufReason::Unclaimed`] if polled completions were not reclaimed.
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

        /// Posts a send like [`post_send_buf`](Self::post_send_buf) but without a completion. The
        /// memory returns with the next signalled request of this queue, or with this one if it
        /// fails.
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

        /// Posts a send of several pieces of memory as one message in order, like
        /// [`post_send_buf`](Self::post_send_buf).
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

        /// Posts a send or an RDMA write of bytes copied into the queue now. The caller sets the
        /// `wr_id` of the completion, which arrives if the request is signalled or fails.
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
        /// the peer may access it with the rights in both `access` and the queue pair's access
        /// flags. The request is signalled; its completion returns the window
        /// ([`Completed::into_window`](crate::Completed::into_window)).
        ///
        /// Returns the request's number, and the address, length and key for the peer. A bound
        /// window of type 1 is bound anew.
        ///
        /// A bind rejected by the device completes with
        /// [`MW_BIND_ERR`](crate::WcStatus::MW_BIND_ERR) and moves the queue pair to the error
        /// state. rxe lets the peer access all of the exposed memory instead of the range.
        ///
        /// # Errors
        /// The window and the reason; [`PostBufReason`] lists all of them. Notably:
        ///
        /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) for a UD queue pair.
        /// - [`PostBufReason::WindowBound`] for a bound window of type 2.
        /// - [`PostBufReason::NotForWindows`] for memory not exposed by
        ///   [`expose_to_windows`](crate::Pd::expose_to_windows).
        ///
        /// # References
        /// `ibv_bind_mw(3)`, `ibv_wr_bind_mw(3)`
        #[doc(alias = "ibv_bind_mw")]
        #[doc(alias = "ibv_wr_bind_mw")]
        pub fn post_bind(
            &mut self,
            flags: SendFlags,
            window: crate::memory::window::Window,
            memory: &crate::memory::exposed::Exposed,
            range: impl RangeBounds<usize>,
            access: crate::memory::exposed::RemoteAccess,
        ) -> Result<(u64, crate::memory::remote::RemoteMr), PostBufError<crate::memory::window::Window>> {
            self.send.post_bind(self.core.get(), flags, window, memory, range, access)
        }

        /// Posts the revocation of a window: an invalidation of its key (type 2) or a bind to
        /// nothing (type 1). Once it has completed, peers have no access through the window. The
        /// request is signalled; its completion returns the window.
        ///
        /// A window of type 2 is revoked on the reliable queue pair it was bound for.
        /// [`Window::close`](crate::Window::close) revokes any window.
        ///
        /// The kernel's rxe crashes if a peer has invalidated the key meanwhile, which shows only
        /// in the next receive. If peers invalidate keys on rxe, end their windows with
        /// [`Window::close`](crate::Window::close) instead.
        ///
        /// # Errors
        /// The window and the reason; [`PostBufReason`] lists all of them. Notably:
        ///
        /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) for a window of type 2
        ///   on an unreliable queue pair.
        /// - [`PostBufReason::WindowUnbound`] for an unbound window.
        ///
        /// # References
        /// `ibv_wr_local_inv(3)`, `ibv_bind_mw(3)`
        #[doc(alias = "ibv_wr_local_inv")]
        #[doc(alias = "IBV_WR_LOCAL_INV")]
        pub fn post_revoke(
            &mut self,
            flags: SendFlags,
            window: crate::memory::window::Window,
        ) -> Result<u64, PostBufError<crate::memory::window::Window>> {
            self.send.post_revoke(self.core.get(), flags, window)
        }

        /// Posts a send or an RDMA write of pieces copied into the queue now, one after the other,
        /// like [`post_send_inline`](Self::post_send_inline).
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

        /// Posts an operation without local memory: a flush, an atomic write, or an empty send or
        /// RDMA write. The caller sets the `wr_id` of the completion, which arrives if the request
        /// is signalled or fails.
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
        /// - [`PostReason::UnsupportedOp`](crate::PostReason::UnsupportedOp) if the device lacks
        ///   the operation ([`DeviceCapFlags::FLUSH_GLOBAL`](crate::DeviceCapFlags::FLUSH_GLOBAL),
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

        /// Starts a batch of raw work requests, as C's `ibv_wr_start` does. Only calls that name
        /// local memory or a local window are unsafe. [`batch`](Self::batch) is the safe
        /// alternative.
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

        /// Starts a batch of sends that reach the device together or not at all.
        #[doc(alias = "ibv_wr_start")]
        pub fn batch(&mut self) -> SendBatch<'_, P> {
            SendBatch::new(&mut self.send)
        }
    };
}

/// Defines the methods for posting receives, for a type with a field `recv: Receiver<P::Rq>`.
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
        /// The number of accepted requests, and the [`PostReason`](crate::PostReason) why the next
        /// one was rejected. The device owns the memory of the accepted ones.
        ///
        /// # References
        /// `ibv_post_recv(3)`
        #[doc(alias = "ibv_post_recv")]
        #[inline(always)]
        pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
            // SAFETY: the caller's promise is the same.
            unsafe { self.recv.queue.post_recv(wrs) }
        }

        /// Posts a receive into a range of the memory, owned by the queue until a message has
        /// arrived. Polling returns the memory
        /// ([`Completion::reclaim`](crate::Completion::reclaim),
        /// [`Cq::poll_one`](crate::Cq::poll_one)).
        ///
        /// Returns the request's number, which is the `wr_id` of its completion. A queue's first
        /// call allocates its table.
        ///
        /// # Errors
        /// The memory and the reason; [`PostBufReason`] lists all of them. Notably:
        ///
        /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while every slot of the queue
        ///   is taken.
        /// - [`PostBufReason::Unclaimed`] if polled completions were not reclaimed.
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

        /// Posts a receive of one message into several pieces of memory in order, like
        /// [`post_recv_buf`](Self::post_recv_buf).
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

        /// Posts a receive without memory, for an empty message or for an RDMA write with immediate
        /// data, whose bytes go elsewhere. A message with bytes fails the receive.
        ///
        /// Returns the request's number, the `wr_id` of its completion.
        ///
        /// # Errors
        /// As [`post_recv_buf`](Self::post_recv_buf).
        ///
        /// # References
        /// `ibv_post_recv(3)`
        #[doc(alias = "ibv_post_recv")]
        pub fn post_recv_empty(&mut self) -> Result<u64, PostBufReason> {
            self.recv.post_all(Vec::<crate::memory::buffer::Buf>::new()).map_err(|error| error.reason)
        }
    };
}

/// Defines the method for posting requests in ConnectX format, for a type with a field `send:
/// Sender<Mlx5>`.
#[cfg(feature = "mlx5")]
macro_rules! posts_raw_requests {
    () => {
        /// Posts a request in the device's own format: a control segment followed by the
        /// operation's segments, in units of 16 bytes. The queue sets the request's index in the
        /// control segment; all other bytes, including the queue pair number and the length, reach
        /// the device unchanged. The request completes with the opcode
        /// [`DRIVER2`](crate::WcOpcode::DRIVER2) if its control segment requests a completion.
        ///
        /// [`WrBatch::put_raw`](crate::WrBatch::put_raw) and
        /// [`SendBatch::put_raw`](crate::SendBatch::put_raw) add such requests to a batch. The
        /// [guide](crate::guide::connectx) builds one.
        ///
        /// # Safety
        /// As [`post_send`](Self::post_send), for all memory and keys that the segments name, and
        /// `wr_id` has its top bit clear. The request is one that the device executes on this queue
        /// pair: its number, its length and its operation are valid, and it changes no key that
        /// safe code uses.
        ///
        /// # Errors
        /// - [`PostReason::QueueFull`](crate::PostReason::QueueFull) while the queue has no room.
        /// - [`PostReason::TooManySge`](crate::PostReason::TooManySge) for a request whose control
        ///   segment and slice differ in length, or which is longer than the queue's requests.
        /// - [`PostReason::InvalidState`](crate::PostReason::InvalidState) and its like if the
        ///   device moved the queue pair to another state.
        /// - [`PostReason::Doorbell`](crate::PostReason::Doorbell): the request is in the queue.
        ///
        /// # References
        /// `mlx5dv_wr_post(3)`
        #[doc(alias = "mlx5dv_wr_raw_wqe")]
        pub unsafe fn post_raw(
            &mut self,
            wr_id: u64,
            request: &[[u8; 16]],
        ) -> Result<(), verbs_core::types::PostReason> {
            // SAFETY: the caller's promise is the same.
            unsafe { self.send.queue.post_raw(wr_id, request) }?;
            verbs_core::provider::SendQueue::ring(&mut self.send.queue)
                .map_err(verbs_core::types::PostReason::Doorbell)
        }
    };
}

#[cfg(feature = "mlx5")]
pub(in crate::qp) use posts_raw_requests;
pub(in crate::qp) use {posts_recvs, posts_sends};
