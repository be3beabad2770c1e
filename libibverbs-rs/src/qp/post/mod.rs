//! Posting: raw, which is unsafe, or with memory owned by the queue until its request has ended,
//! which is safe.
//!
//! [`Sender`] combines a provider's send queue with its table of memory in flight, and
//! [`Receiver`](crate::queue::receiver::Receiver) does the same for a receive queue. A queue pair
//! has both; a half has one.
//!
//! | file | content |
//! |---|---|
//! | [`batch`] | [`SendBatch`]: sends that reach the device together or not at all |
//! | [`send_queue`] | [`SendQueue`]: the methods for posting sends |
//! | [`recv_queue`] | [`RecvQueue`]: the methods for posting receives |
//! | [`methods`] | the methods of queue pairs and halves, which call a view |
//!
//! # Safety
//! The unsafe code here posts safely, justified in [`crate::in_flight`].

#![allow(unsafe_code)]

mod batch;
mod methods;
mod recv_queue;
mod send_queue;

use verbs_core::provider::{Provider, gather};
use verbs_core::types::{OpKind, PostError, PostReason, SendFlags, SendOp, SendWr, Sge};

use crate::in_flight::{Poster, is_postable, is_reserved, reads_back, takes_inline, takes_no_memory};
use crate::memory::post_error::PostBufReason;

pub use batch::SendBatch;
pub use recv_queue::RecvQueue;
pub use send_queue::SendQueue;

/// A send queue and the memory of its requests in flight.
pub(crate) struct Sender<P: Provider> {
    pub(super) queue: P::Sq,
    pub(super) poster: Poster,
}

/// Posts a request whose memory the table holds.
///
/// # Errors
/// [`PostReason::UnsupportedOp`] and [`PostReason::UnsupportedFlags`] for an operation that safe
/// code cannot post; otherwise as `post`.
///
/// # Safety
/// The memory covered by the elements must be held until the request has ended, or was taken out of
/// the queue again.
#[inline(always)]
unsafe fn post_held(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    sge: &[Sge],
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostError> {
    if !is_postable(&op, flags) {
        return Err(PostError { accepted: 0, reason: unsupported(&op, flags) });
    }
    post(&[SendWr { wr_id, op, sge, flags }])
}

/// Posts a request with inline data, copied during the call.
///
/// # Errors
/// The errors of [`Qp::post_send_inline`](crate::Qp::post_send_inline).
///
/// # Safety
/// `post` must post, or put into the queue, only the one request it receives.
#[inline]
unsafe fn inline(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    data: &[u8],
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostBufReason> {
    check_inline(wr_id, &op, flags)?;
    let length = u32::try_from(data.len()).map_err(|_| PostBufReason::TooLong { len: data.len() })?;
    let sge = [Sge { addr: data.as_ptr().expose_provenance() as u64, length, lkey: 0 }];
    // The operation takes inline data, so the borrowed bytes are read only during the call [2]; the
    // `wr_id` is not reserved for this library.
    let wr = SendWr { wr_id, op, sge: &sge, flags: flags | SendFlags::INLINE };
    post(&[wr]).map_err(|error| PostBufReason::Post(error.reason))
}

/// Posts a request with several pieces of inline data, copied during the call.
///
/// # Errors
/// The errors of [`Qp::post_send_inline_list`](crate::Qp::post_send_inline_list).
///
/// # Safety
/// Same as [`inline`].
unsafe fn inline_list(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    pieces: &[&[u8]],
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostBufReason> {
    check_inline(wr_id, &op, flags)?;
    if let Some(piece) = pieces.iter().find(|piece| u32::try_from(piece.len()).is_err()) {
        return Err(PostBufReason::TooLong { len: piece.len() });
    }
    // As in `inline`.
    gather(pieces, |sge| post(&[SendWr { wr_id, op, sge, flags: flags | SendFlags::INLINE }]))
        .map_err(|error| PostBufReason::Post(error.reason))
}

/// Checks whether safe code may post inline data with this `wr_id` and operation.
#[inline]
fn check_inline(wr_id: u64, op: &SendOp<'_>, flags: SendFlags) -> Result<(), PostBufReason> {
    if is_reserved(wr_id) {
        return Err(PostBufReason::ReservedWrId { wr_id });
    }
    if !takes_inline(op) {
        return Err(PostBufReason::Post(unsupported(op, flags | SendFlags::INLINE)));
    }
    Ok(())
}

/// Posts a request without local memory.
///
/// # Errors
/// The errors of [`Qp::post_send_op`](crate::Qp::post_send_op).
///
/// # Safety
/// Same as [`inline`].
unsafe fn without_memory(
    wr_id: u64,
    op: SendOp<'_>,
    flags: SendFlags,
    post: impl FnOnce(&[SendWr<'_>]) -> Result<(), PostError>,
) -> Result<(), PostBufReason> {
    if is_reserved(wr_id) {
        return Err(PostBufReason::ReservedWrId { wr_id });
    }
    if !takes_no_memory(&op) && !takes_inline(&op) {
        return Err(PostBufReason::Post(PostReason::OtherCall { op: op_of(&op) }));
    }
    // An empty list names no memory. Inline bytes would need a list.
    let flags = flags - SendFlags::INLINE;
    post(&[SendWr { wr_id, op, sge: &[], flags }]).map_err(|error| PostBufReason::Post(error.reason))
}

/// Returns the reason why safe code cannot post an operation.
#[cold]
fn unsupported(op: &SendOp<'_>, flags: SendFlags) -> PostReason {
    if flags.contains(SendFlags::INLINE) && reads_back(op) {
        PostReason::UnsupportedFlags { op: op_of(op), flags: SendFlags::INLINE }
    } else {
        PostReason::OtherCall { op: op_of(op) }
    }
}

/// Returns the kind of an operation; for an XRC operation, the kind of the operation inside it.
fn op_of(op: &SendOp<'_>) -> OpKind {
    match op {
        SendOp::Xrc { op, .. } => op_of(op),
        op => op.kind(),
    }
}
