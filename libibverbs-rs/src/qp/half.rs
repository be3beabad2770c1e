//! [`SendHalf`] and [`RecvHalf`]: a queue pair for two threads.
//!
//! # Safety
//! The unsafe code here posts, raw on the caller's promise, and parked on the argument in [`super::parked`]. Numbers in
//! brackets are those of the contract of [`Provider`].

#![allow(unsafe_code)]

use core::fmt;
use core::ops::RangeBounds;

use verbs_core::provider::{Erased, Provider, QpOps, RecvQueue, SendQueue};
use verbs_core::types::{PostError, PostReason, RecvWr, SendFlags, SendOp, SendWr, Sge};

use super::parked::{Lot, Parcel, ParkError, ParkReason, is_parkable, is_parked, takes_inline};
use crate::{Buf, Completion};

/// The send half of a queue pair. Made by [`Qp::split`](crate::Qp::split).
pub struct SendHalf<'q, P: Provider = Erased> {
    pub(super) queue: &'q mut <P::Qp as QpOps>::Sq,
    pub(super) lot: &'q mut Lot,
}

/// The receive half of a queue pair. Made by [`Qp::split`](crate::Qp::split).
pub struct RecvHalf<'q, P: Provider = Erased> {
    pub(super) queue: &'q mut <P::Qp as QpOps>::Rq,
    pub(super) lot: &'q mut Lot,
}

impl<P: Provider> SendHalf<'_, P> {
    /// As [`Qp::post_send`](crate::Qp::post_send).
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.queue.post_send(wrs) }
    }

    /// As [`Qp::park_send`](crate::Qp::park_send).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn park_send(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        buf: Buf,
        range: impl RangeBounds<usize>,
    ) -> Result<u64, ParkError<Buf>> {
        let queue = &mut *self.queue;
        self.lot.park(buf, range, |wr_id, sge| {
            // SAFETY: `park` has put what the elements cover into the table.
            unsafe { post_parked(wr_id, op, flags, sge, |wr| queue.post_send(wr)) }
        })
    }

    /// As [`Qp::park_send_all`](crate::Qp::park_send_all).
    ///
    /// # Errors
    /// As there.
    pub fn park_send_all(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        bufs: Vec<Buf>,
    ) -> Result<u64, ParkError<Vec<Buf>>> {
        let queue = &mut *self.queue;
        self.lot.park_all(bufs, |wr_id, sge| {
            // SAFETY: `park_all` has put what the elements cover into the table.
            unsafe { post_parked(wr_id, op, flags, sge, |wr| queue.post_send(wr)) }
        })
    }

    /// As [`Qp::send_inline`](crate::Qp::send_inline).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Result<(), ParkReason> {
        if is_parked(wr_id) {
            return Err(ParkReason::ReservedWrId);
        }
        if !takes_inline(&op) {
            let (op, flags) = (op.kind(), SendFlags::INLINE);
            return Err(ParkReason::Post(PostReason::UnsupportedFlags { op, flags }));
        }
        let length = u32::try_from(data.len()).map_err(|_| ParkReason::OutOfRange)?;
        let sge = [Sge { addr: data.as_ptr().expose_provenance() as u64, length, lkey: 0 }];
        let wr = SendWr { wr_id, op, sge: &sge, flags: flags | SendFlags::INLINE };
        // SAFETY: the operation takes inline data, so the bytes, which are borrowed, are read during the call only [2].
        // Its number is not that of a parked request.
        unsafe { self.queue.post_send(&[wr]) }.map_err(|error| ParkReason::Post(error.reason))
    }

    /// The buffers of a parked send that has completed; `None` when the completion is of something else.
    #[inline]
    pub fn reclaim<Q: Provider>(&mut self, completion: &Completion<'_, Q>) -> Option<Parcel> {
        self.lot.reclaim(completion)
    }
}

impl<P: Provider> RecvHalf<'_, P> {
    /// As [`Qp::post_recv`](crate::Qp::post_recv).
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.queue.post_recv(wrs) }
    }

    /// As [`Qp::park_recv`](crate::Qp::park_recv).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn park_recv(&mut self, buf: Buf, range: impl RangeBounds<usize>) -> Result<u64, ParkError<Buf>> {
        let queue = &mut *self.queue;
        self.lot.park(buf, range, |wr_id, sge| {
            // SAFETY: `park` has put what the element covers into the table, which keeps it until the request has ended.
            unsafe { queue.post_recv(&[RecvWr { wr_id, sge }]) }
        })
    }

    /// As [`Qp::park_recv_all`](crate::Qp::park_recv_all).
    ///
    /// # Errors
    /// As there.
    pub fn park_recv_all(&mut self, bufs: Vec<Buf>) -> Result<u64, ParkError<Vec<Buf>>> {
        let queue = &mut *self.queue;
        self.lot.park_all(bufs, |wr_id, sge| {
            // SAFETY: `park_all` has put what the elements cover into the table, which keeps it until the request has ended.
            unsafe { queue.post_recv(&[RecvWr { wr_id, sge }]) }
        })
    }

    /// The buffers of a parked receive that has completed; `None` when the completion is of something else.
    #[inline]
    pub fn reclaim<Q: Provider>(&mut self, completion: &Completion<'_, Q>) -> Option<Parcel> {
        self.lot.reclaim(completion)
    }
}

/// Posts a parked send, always signalled: without a completion it would never come back.
///
/// # Safety
/// What the elements cover stays parked until the request has ended.
#[inline(always)]
unsafe fn post_parked(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    sge: &[Sge],
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostError> {
    if !is_parkable(&op, flags) {
        let reason = PostReason::UnsupportedFlags { op: op.kind(), flags: flags & SendFlags::INLINE };
        return Err(PostError { accepted: 0, reason });
    }
    post(&[SendWr { wr_id, op, sge, flags: flags | SendFlags::SIGNALED }])
}

impl<P: Provider> fmt::Debug for SendHalf<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendHalf").finish_non_exhaustive()
    }
}

impl<P: Provider> fmt::Debug for RecvHalf<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvHalf").finish_non_exhaustive()
    }
}
