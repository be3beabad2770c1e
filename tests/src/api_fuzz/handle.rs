//! [`AnyQp`], [`AnyCq`]: handles of any state and any provider in one type, so that a thread can
//! make random calls on any handle it holds. A call that the typestate does not offer returns its
//! arguments.
#![forbid(unsafe_code)]
// The methods are named as the library's, and give back what was not taken as the library's do.
#![allow(clippy::wrong_self_convention, clippy::result_large_err)]

use std::ops::Bound;

use verbs::mlx5::Mlx5;
use verbs::rxe::Rxe;
use verbs::soft::Soft;
use verbs::state::{Errored, Init, Reset, Rtr, Rts, Sqd};
use verbs::{
    Buf, Cq, CqHandle, CqId, Erased, Error, HandleError, InitAttr, Memory, Pd, PostBufError, PostBufReason,
    PostMemory, Provider, Qp, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpType, RecvHalf, Returned, RtrAttr,
    RtsAttr, SendBatch, SendFlags, SendHalf, SendOp, Wc, WrBatch,
};

/// A range, whole or odd.
pub(super) type AnyRange = (Bound<usize>, Bound<usize>);

/// A queue pair in whatever state the program moved it to.
#[derive(Debug)]
pub(super) enum Handle<P: Provider> {
    Reset(Qp<Reset, P>),
    Init(Qp<Init, P>),
    Rtr(Qp<Rtr, P>),
    Rts(Qp<Rts, P>),
    Sqd(Qp<Sqd, P>),
    Errored(Qp<Errored, P>),
}

/// Runs the same on a queue pair of any state.
macro_rules! each {
    ($handle:expr, $qp:ident => $body:expr) => {
        match $handle {
            Handle::Reset($qp) => $body,
            Handle::Init($qp) => $body,
            Handle::Rtr($qp) => $body,
            Handle::Rts($qp) => $body,
            Handle::Sqd($qp) => $body,
            Handle::Errored($qp) => $body,
        }
    };
}

macro_rules! from_states {
    ($($state:ident)*) => {$(
        impl<P: Provider> From<Qp<$state, P>> for Handle<P> {
            fn from(qp: Qp<$state, P>) -> Self {
                Self::$state(qp)
            }
        }
    )*};
}

from_states!(Reset Init Rtr Rts Sqd Errored);

/// Why memory was not posted, and the memory unless the queue has it all the same.
#[derive(Debug)]
pub(super) struct NotPosted<B> {
    pub(super) returned: Option<B>,
    /// `None` where the handle's state has no such method.
    pub(super) reason: Option<PostBufReason>,
}

impl<B> NotPosted<B> {
    fn by_type(returned: B) -> Self {
        Self { returned: Some(returned), reason: None }
    }
}

impl<B> From<PostBufError<B>> for NotPosted<B> {
    fn from(error: PostBufError<B>) -> Self {
        Self { returned: error.returned, reason: Some(error.reason) }
    }
}

/// The result of a post, with memory of any type.
pub(super) type Posting = Result<u64, NotPosted<Vec<Memory>>>;

/// A handle after a step, and why it is where it was.
type Stepped<H> = (H, Option<Error>);

/// Returns the handle after a step, with the error if the step failed.
fn stepped<A: Into<H>, B: Into<H>, H>(result: Result<A, HandleError<B>>) -> Stepped<H> {
    match result {
        Ok(qp) => (qp.into(), None),
        Err(HandleError { handle, error }) => (handle.into(), Some(error)),
    }
}

/// The same error, of the handle that this one becomes.
fn refused<A: Into<H>, H>(failed: HandleError<A>) -> HandleError<H> {
    HandleError { handle: failed.handle.into(), error: failed.error }
}

impl<P: Provider> Handle<P> {
    fn to_init(self, attr: &InitAttr) -> Stepped<Self> {
        match self {
            Self::Reset(qp) => stepped(qp.to_init(attr)),
            other => (other, None),
        }
    }

    fn to_rtr(self, attr: &RtrAttr) -> Stepped<Self> {
        match self {
            Self::Init(qp) => stepped(qp.to_rtr(attr)),
            other => (other, None),
        }
    }

    fn to_rts(self, attr: &RtsAttr) -> Stepped<Self> {
        match self {
            Self::Rtr(qp) => stepped(qp.to_rts(attr)),
            other => (other, None),
        }
    }

    fn to_sqd(self) -> Stepped<Self> {
        match self {
            Self::Rts(qp) => stepped(qp.modify_to::<Sqd>(&QpAttr::default(), QpAttrMask::empty())),
            other => (other, None),
        }
    }

    fn back_to_rts(self) -> Stepped<Self> {
        match self {
            Self::Sqd(qp) => stepped(qp.modify_to::<Rts>(&QpAttr::default(), QpAttrMask::empty())),
            other => (other, None),
        }
    }

    fn to_reset(self) -> Stepped<Self> {
        each!(self, qp => stepped(qp.to_reset()))
    }

    fn to_error(self) -> Stepped<Self> {
        each!(self, qp => stepped(qp.to_error()))
    }

    fn reclaim_all(&mut self) -> Option<Vec<Memory>> {
        match self {
            Self::Reset(qp) => Some(qp.reclaim_all()),
            _ => None,
        }
    }

    fn reset_ends_requests(&self) -> bool {
        each!(self, qp => qp.reset_ends_requests())
    }

    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> verbs::Result<()> {
        each!(self, qp => qp.modify(attr, mask))
    }

    fn dismantle(self) -> Result<Vec<Memory>, HandleError<Self>> {
        each!(self, qp => qp.dismantle().map_err(refused))
    }

    fn close(self) -> Result<(), HandleError<Self>> {
        each!(self, qp => qp.close().map_err(refused))
    }

    /// Both halves of a queue pair that sends and receives.
    fn split(self) -> Result<Halves<P>, Self> {
        match self {
            Self::Rts(qp) => Ok(qp.into_split()),
            other => Err(other),
        }
    }

    fn post_recv<M: PostMemory>(&mut self, memory: M, range: AnyRange) -> Result<u64, NotPosted<M>> {
        Ok(match self {
            Self::Reset(_) => return Err(NotPosted::by_type(memory)),
            Self::Init(qp) => qp.post_recv_buf(memory, range)?,
            Self::Rtr(qp) => qp.post_recv_buf(memory, range)?,
            Self::Rts(qp) => qp.post_recv_buf(memory, range)?,
            Self::Sqd(qp) => qp.post_recv_buf(memory, range)?,
            Self::Errored(qp) => qp.post_recv_buf(memory, range)?,
        })
    }

    fn post_recv_all<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, NotPosted<Vec<M>>> {
        Ok(match self {
            Self::Reset(_) => return Err(NotPosted::by_type(pieces)),
            Self::Init(qp) => qp.post_recv_bufs(pieces)?,
            Self::Rtr(qp) => qp.post_recv_bufs(pieces)?,
            Self::Rts(qp) => qp.post_recv_bufs(pieces)?,
            Self::Sqd(qp) => qp.post_recv_bufs(pieces)?,
            Self::Errored(qp) => qp.post_recv_bufs(pieces)?,
        })
    }

    fn post_send<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        is_signaled: bool,
        memory: M,
        range: AnyRange,
    ) -> Result<u64, NotPosted<M>> {
        Ok(match (self, is_signaled) {
            (Self::Rts(qp), true) => qp.post_send_buf(op, flags, memory, range)?,
            (Self::Rts(qp), false) => qp.post_send_buf_unsignaled(op, flags, memory, range)?,
            (Self::Sqd(qp), true) => qp.post_send_buf(op, flags, memory, range)?,
            (Self::Sqd(qp), false) => qp.post_send_buf_unsignaled(op, flags, memory, range)?,
            (Self::Errored(qp), true) => qp.post_send_buf(op, flags, memory, range)?,
            (Self::Errored(qp), false) => qp.post_send_buf_unsignaled(op, flags, memory, range)?,
            _ => return Err(NotPosted::by_type(memory)),
        })
    }

    fn post_send_all<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: Vec<M>,
    ) -> Result<u64, NotPosted<Vec<M>>> {
        Ok(match self {
            Self::Rts(qp) => qp.post_send_bufs(op, flags, pieces)?,
            Self::Sqd(qp) => qp.post_send_bufs(op, flags, pieces)?,
            Self::Errored(qp) => qp.post_send_bufs(op, flags, pieces)?,
            _ => return Err(NotPosted::by_type(pieces)),
        })
    }

    fn post_send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Option<Result<(), PostBufReason>> {
        match self {
            Self::Rts(qp) => Some(qp.post_send_inline(wr_id, op, flags, data)),
            Self::Sqd(qp) => Some(qp.post_send_inline(wr_id, op, flags, data)),
            Self::Errored(qp) => Some(qp.post_send_inline(wr_id, op, flags, data)),
            _ => None,
        }
    }

    /// Runs something with a new batch, where the handle's state has such a method.
    fn batch<T>(&mut self, run: impl FnOnce(SendBatch<'_, P>) -> T) -> Option<T> {
        match self {
            Self::Rts(qp) => Some(run(qp.batch())),
            Self::Sqd(qp) => Some(run(qp.batch())),
            Self::Errored(qp) => Some(run(qp.batch())),
            _ => None,
        }
    }

    /// Runs something with a new raw batch, where the handle's state has such a method.
    fn wr_start<T>(&mut self, run: impl FnOnce(WrBatch<'_, P::Sq>) -> T) -> Option<T> {
        match self {
            Self::Rts(qp) => Some(run(qp.wr_start())),
            Self::Sqd(qp) => Some(run(qp.wr_start())),
            Self::Errored(qp) => Some(run(qp.wr_start())),
            _ => None,
        }
    }
}

impl Handle<Erased> {
    fn downcast<P: verbs::NamedProvider>(self) -> Result<Handle<P>, Self> {
        each!(self, qp => qp.downcast::<P>().map(Handle::from).map_err(|failed| Self::from(failed.handle)))
    }
}

/// A queue pair of any provider, hidden or named.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum AnyQp {
    Erased(Handle<Erased>),
    Mlx5(Handle<Mlx5>),
    Rxe(Handle<Rxe>),
    Soft(Handle<Soft>),
}

/// A completion queue of any provider, hidden or named.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum AnyCq {
    Erased(Cq),
    Mlx5(Cq<Mlx5>),
    Rxe(Cq<Rxe>),
    Soft(Cq<Soft>),
}

/// A protection domain of any provider, hidden or named.
#[derive(Clone, Debug)]
pub(super) enum AnyPd {
    Erased(Pd),
    Mlx5(Pd<Mlx5>),
    Rxe(Pd<Rxe>),
    Soft(Pd<Soft>),
}

/// Runs the same on a handle of any provider.
macro_rules! any {
    ($type:ident, $any:expr, $handle:ident => $body:expr) => {
        match $any {
            $type::Erased($handle) => $body,
            $type::Mlx5($handle) => $body,
            $type::Rxe($handle) => $body,
            $type::Soft($handle) => $body,
        }
    };
}
pub(super) use any;

/// Maps a handle and puts it back under the name of its provider.
macro_rules! map_any {
    ($type:ident, $any:expr, $handle:ident => $body:expr) => {
        match $any {
            $type::Erased($handle) => {
                let (handle, rest) = $body;
                ($type::Erased(handle), rest)
            }
            $type::Mlx5($handle) => {
                let (handle, rest) = $body;
                ($type::Mlx5(handle), rest)
            }
            $type::Rxe($handle) => {
                let (handle, rest) = $body;
                ($type::Rxe(handle), rest)
            }
            $type::Soft($handle) => {
                let (handle, rest) = $body;
                ($type::Soft(handle), rest)
            }
        }
    };
}

impl AnyQp {
    /// Creates a queue pair of the domain's provider; returns `None` unless the domain and both
    /// queues have the same provider type.
    pub(super) fn create(
        pd: &AnyPd,
        [send_cq, recv_cq]: [AnyCqHandle; 2],
        qp_type: QpType,
        cap: QpCap,
        sq_sig_all: bool,
    ) -> Option<verbs::Result<Self>> {
        Some(match (pd, send_cq, recv_cq) {
            (AnyPd::Erased(pd), AnyCqHandle::Erased(send_cq), AnyCqHandle::Erased(recv_cq)) => pd
                .create_qp(&QpInit { recv_cq, cap, sq_sig_all, ..QpInit::new(qp_type, send_cq) })
                .map(|qp| Self::Erased(qp.into())),
            (AnyPd::Mlx5(pd), AnyCqHandle::Mlx5(send_cq), AnyCqHandle::Mlx5(recv_cq)) => pd
                .create_qp(&QpInit { recv_cq, cap, sq_sig_all, ..QpInit::new(qp_type, send_cq) })
                .map(|qp| Self::Mlx5(qp.into())),
            (AnyPd::Rxe(pd), AnyCqHandle::Rxe(send_cq), AnyCqHandle::Rxe(recv_cq)) => pd
                .create_qp(&QpInit { recv_cq, cap, sq_sig_all, ..QpInit::new(qp_type, send_cq) })
                .map(|qp| Self::Rxe(qp.into())),
            (AnyPd::Soft(pd), AnyCqHandle::Soft(send_cq), AnyCqHandle::Soft(recv_cq)) => pd
                .create_qp(&QpInit { recv_cq, cap, sq_sig_all, ..QpInit::new(qp_type, send_cq) })
                .map(|qp| Self::Soft(qp.into())),
            _ => return None,
        })
    }

    pub(super) fn qp_num(&self) -> u32 {
        any!(AnyQp, self, handle => each!(handle, qp => qp.qp_num()))
    }

    pub(super) fn id(&self) -> QpId {
        any!(AnyQp, self, handle => each!(handle, qp => qp.id()))
    }

    pub(super) fn qp_type(&self) -> QpType {
        any!(AnyQp, self, handle => each!(handle, qp => qp.qp_type()))
    }

    pub(super) fn cap(&self) -> QpCap {
        any!(AnyQp, self, handle => each!(handle, qp => qp.cap()))
    }

    pub(super) fn query(&self, mask: QpAttrMask) -> verbs::Result<QpAttr> {
        any!(AnyQp, self, handle => each!(handle, qp => qp.query(mask))).map(|(attr, _)| attr)
    }

    pub(super) fn can_send(&self) -> bool {
        any!(AnyQp, self, handle => matches!(handle, Handle::Rts(_) | Handle::Sqd(_) | Handle::Errored(_)))
    }

    /// Returns whether the queue pair is in RTS, so that it can be split.
    pub(super) fn is_rts(&self) -> bool {
        any!(AnyQp, self, handle => matches!(handle, Handle::Rts(_)))
    }

    pub(super) fn can_recv(&self) -> bool {
        any!(AnyQp, self, handle => !matches!(handle, Handle::Reset(_)))
    }

    pub(super) fn to_init(self, attr: &InitAttr) -> Stepped<Self> {
        map_any!(AnyQp, self, handle => handle.to_init(attr))
    }

    pub(super) fn to_rtr(self, attr: &RtrAttr) -> Stepped<Self> {
        map_any!(AnyQp, self, handle => handle.to_rtr(attr))
    }

    pub(super) fn to_rts(self, attr: &RtsAttr) -> Stepped<Self> {
        map_any!(AnyQp, self, handle => handle.to_rts(attr))
    }

    pub(super) fn to_sqd(self) -> Stepped<Self> {
        map_any!(AnyQp, self, handle => handle.to_sqd())
    }

    pub(super) fn back_to_rts(self) -> Stepped<Self> {
        map_any!(AnyQp, self, handle => handle.back_to_rts())
    }

    pub(super) fn to_reset(self) -> Stepped<Self> {
        map_any!(AnyQp, self, handle => handle.to_reset())
    }

    pub(super) fn to_error(self) -> Stepped<Self> {
        map_any!(AnyQp, self, handle => handle.to_error())
    }

    /// Returns the memory in flight; `None` unless the handle is in RESET.
    pub(super) fn reclaim_all(&mut self) -> Option<Vec<Memory>> {
        any!(AnyQp, self, handle => handle.reclaim_all())
    }

    pub(super) fn reset_ends_requests(&self) -> bool {
        any!(AnyQp, self, handle => handle.reset_ends_requests())
    }

    pub(super) fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> verbs::Result<()> {
        any!(AnyQp, self, handle => handle.modify(attr, mask))
    }

    pub(super) fn dismantle(self) -> Result<Vec<Memory>, HandleError<Self>> {
        match self {
            Self::Erased(handle) => handle.dismantle().map_err(|failed| rewrap(failed, Self::Erased)),
            Self::Mlx5(handle) => handle.dismantle().map_err(|failed| rewrap(failed, Self::Mlx5)),
            Self::Rxe(handle) => handle.dismantle().map_err(|failed| rewrap(failed, Self::Rxe)),
            Self::Soft(handle) => handle.dismantle().map_err(|failed| rewrap(failed, Self::Soft)),
        }
    }

    pub(super) fn close(self) -> Result<(), HandleError<Self>> {
        match self {
            Self::Erased(handle) => handle.close().map_err(|failed| rewrap(failed, Self::Erased)),
            Self::Mlx5(handle) => handle.close().map_err(|failed| rewrap(failed, Self::Mlx5)),
            Self::Rxe(handle) => handle.close().map_err(|failed| rewrap(failed, Self::Rxe)),
            Self::Soft(handle) => handle.close().map_err(|failed| rewrap(failed, Self::Soft)),
        }
    }

    pub(super) fn post_recv<M: PostMemory>(
        &mut self,
        memory: M,
        range: AnyRange,
    ) -> Result<u64, NotPosted<M>> {
        any!(AnyQp, self, handle => handle.post_recv(memory, range))
    }

    pub(super) fn post_recv_all<M: PostMemory>(&mut self, pieces: Vec<M>) -> Result<u64, NotPosted<Vec<M>>> {
        any!(AnyQp, self, handle => handle.post_recv_all(pieces))
    }

    pub(super) fn post_send<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        is_signaled: bool,
        memory: M,
        range: AnyRange,
    ) -> Result<u64, NotPosted<M>> {
        any!(AnyQp, self, handle => handle.post_send(op, flags, is_signaled, memory, range))
    }

    pub(super) fn post_send_all<M: PostMemory>(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: Vec<M>,
    ) -> Result<u64, NotPosted<Vec<M>>> {
        any!(AnyQp, self, handle => handle.post_send_all(op, flags, pieces))
    }

    /// `None` where the handle's state has no such method.
    pub(super) fn post_send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Option<Result<(), PostBufReason>> {
        any!(AnyQp, self, handle => handle.post_send_inline(wr_id, op, flags, data))
    }

    /// Runs something with a new batch; `None` where the handle's state has no such method.
    pub(super) fn batch<R: WithBatch>(&mut self, run: R) -> Option<R::Output> {
        any!(AnyQp, self, handle => handle.batch(|batch| run.run(batch)))
    }

    /// Runs something with a new raw batch; `None` where the handle's state has no such method.
    pub(super) fn wr_start<R: WithWr>(&mut self, run: R) -> Option<R::Output> {
        match self {
            Self::Erased(handle) => handle.wr_start(|batch| run.run::<Erased>(batch)),
            Self::Mlx5(handle) => handle.wr_start(|batch| run.run::<Mlx5>(batch)),
            Self::Rxe(handle) => handle.wr_start(|batch| run.run::<Rxe>(batch)),
            Self::Soft(handle) => handle.wr_start(|batch| run.run::<Soft>(batch)),
        }
    }

    /// The same queue pair with its provider named, where it is hidden.
    pub(super) fn downcast(self) -> Self {
        match self {
            Self::Erased(handle) => match handle.downcast::<Soft>() {
                Ok(handle) => Self::Soft(handle),
                Err(handle) => match handle.downcast::<Mlx5>() {
                    Ok(handle) => Self::Mlx5(handle),
                    Err(handle) => handle.downcast::<Rxe>().map_or_else(Self::Erased, Self::Rxe),
                },
            },
            other => other,
        }
    }

    /// Both halves, or the queue pair where it does not both send and receive.
    pub(super) fn split(self) -> Result<AnyHalves, Self> {
        match self {
            Self::Erased(handle) => {
                handle.split().map(|(send, recv)| AnyHalves::Erased(send, recv)).map_err(Self::Erased)
            }
            Self::Mlx5(handle) => {
                handle.split().map(|(send, recv)| AnyHalves::Mlx5(send, recv)).map_err(Self::Mlx5)
            }
            Self::Rxe(handle) => {
                handle.split().map(|(send, recv)| AnyHalves::Rxe(send, recv)).map_err(Self::Rxe)
            }
            Self::Soft(handle) => {
                handle.split().map(|(send, recv)| AnyHalves::Soft(send, recv)).map_err(Self::Soft)
            }
        }
    }
}

/// An operation on a batch of any provider.
pub(super) trait WithBatch {
    /// The result of the operation.
    type Output;

    fn run<P: Provider>(self, batch: SendBatch<'_, P>) -> Self::Output;
}

/// An operation on a raw batch of any provider.
pub(super) trait WithWr {
    /// The result of the operation.
    type Output;

    fn run<P: Provider>(self, batch: WrBatch<'_, P::Sq>) -> Self::Output;
}

/// The same error, of a wrapped handle.
fn rewrap<A, B>(failed: HandleError<A>, wrap: impl FnOnce(A) -> B) -> HandleError<B> {
    HandleError { handle: wrap(failed.handle), error: failed.error }
}

/// Both halves of a queue pair.
pub(super) type Halves<P> = (SendHalf<Rts, P>, RecvHalf<Rts, P>);

/// Both halves of a queue pair of any provider.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum AnyHalves {
    Erased(SendHalf<Rts, Erased>, RecvHalf<Rts, Erased>),
    Mlx5(SendHalf<Rts, Mlx5>, RecvHalf<Rts, Mlx5>),
    Rxe(SendHalf<Rts, Rxe>, RecvHalf<Rts, Rxe>),
    Soft(SendHalf<Rts, Soft>, RecvHalf<Rts, Soft>),
}

/// Runs the same on the halves of any provider.
macro_rules! any_halves {
    ($any:expr, $send:ident, $recv:ident => $body:expr) => {
        match $any {
            AnyHalves::Erased($send, $recv) => $body,
            AnyHalves::Mlx5($send, $recv) => $body,
            AnyHalves::Rxe($send, $recv) => $body,
            AnyHalves::Soft($send, $recv) => $body,
        }
    };
}

impl AnyHalves {
    /// The queue pair again; the halves where they are of two.
    pub(super) fn join(self) -> Result<AnyQp, Self> {
        match self {
            Self::Erased(send, recv) => Qp::from_halves(send, recv)
                .map(|qp| AnyQp::Erased(qp.into()))
                .map_err(|HandleError { handle: (send, recv), .. }| Self::Erased(send, recv)),
            Self::Mlx5(send, recv) => Qp::from_halves(send, recv)
                .map(|qp| AnyQp::Mlx5(qp.into()))
                .map_err(|HandleError { handle: (send, recv), .. }| Self::Mlx5(send, recv)),
            Self::Rxe(send, recv) => Qp::from_halves(send, recv)
                .map(|qp| AnyQp::Rxe(qp.into()))
                .map_err(|HandleError { handle: (send, recv), .. }| Self::Rxe(send, recv)),
            Self::Soft(send, recv) => Qp::from_halves(send, recv)
                .map(|qp| AnyQp::Soft(qp.into()))
                .map_err(|HandleError { handle: (send, recv), .. }| Self::Soft(send, recv)),
        }
    }

    /// Exchanges the receive halves of two queue pairs, where their providers are named alike.
    pub(super) fn swap_recv(&mut self, other: &mut Self) -> bool {
        match (self, other) {
            (Self::Erased(_, one), Self::Erased(_, other)) => std::mem::swap(one, other),
            (Self::Mlx5(_, one), Self::Mlx5(_, other)) => std::mem::swap(one, other),
            (Self::Rxe(_, one), Self::Rxe(_, other)) => std::mem::swap(one, other),
            (Self::Soft(_, one), Self::Soft(_, other)) => std::mem::swap(one, other),
            _ => return false,
        }
        true
    }

    /// Drops one half before the other.
    pub(super) fn drop_in_order(self, send_first: bool) {
        any_halves!(self, send, recv => if send_first {
            drop(send);
            drop(recv);
        } else {
            drop(recv);
            drop(send);
        });
    }
}

/// A name of a completion queue of any provider, hidden or named.
#[derive(Clone, Debug)]
pub(super) enum AnyCqHandle {
    Erased(CqHandle),
    Mlx5(CqHandle<Mlx5>),
    Rxe(CqHandle<Rxe>),
    Soft(CqHandle<Soft>),
}

impl AnyCqHandle {
    pub(super) fn id(&self) -> CqId {
        any!(AnyCqHandle, self, handle => handle.id())
    }
}

impl AnyCq {
    pub(super) fn id(&self) -> CqId {
        any!(AnyCq, self, cq => cq.id())
    }

    pub(super) fn req_notify(&mut self, solicited_only: bool) -> verbs::Result<()> {
        any!(AnyCq, self, cq => cq.req_notify(solicited_only))
    }

    pub(super) fn handle(&self) -> AnyCqHandle {
        match self {
            Self::Erased(cq) => AnyCqHandle::Erased(cq.handle()),
            Self::Mlx5(cq) => AnyCqHandle::Mlx5(cq.handle()),
            Self::Rxe(cq) => AnyCqHandle::Rxe(cq.handle()),
            Self::Soft(cq) => AnyCqHandle::Soft(cq.handle()),
        }
    }

    pub(super) fn reclaim(&mut self, wc: &Wc) -> Option<Returned> {
        any!(AnyCq, self, cq => cq.reclaim(wc))
    }

    pub(super) fn close(self) -> Result<(), HandleError<Self>> {
        match self {
            Self::Erased(cq) => cq.close().map_err(|failed| rewrap(failed, Self::Erased)),
            Self::Mlx5(cq) => cq.close().map_err(|failed| rewrap(failed, Self::Mlx5)),
            Self::Rxe(cq) => cq.close().map_err(|failed| rewrap(failed, Self::Rxe)),
            Self::Soft(cq) => cq.close().map_err(|failed| rewrap(failed, Self::Soft)),
        }
    }

    /// Returns the same queue with its provider named, if the provider is hidden and the queue
    /// holds no fetched completions.
    pub(super) fn downcast(self) -> Self {
        match self {
            Self::Erased(cq) => match cq.downcast::<Soft>() {
                Ok(cq) => Self::Soft(cq),
                Err(failed) => match failed.handle.downcast::<Mlx5>() {
                    Ok(cq) => Self::Mlx5(cq),
                    Err(failed) => match failed.handle.downcast::<Rxe>() {
                        Ok(cq) => Self::Rxe(cq),
                        Err(failed) => Self::Erased(failed.handle),
                    },
                },
            },
            other => other,
        }
    }
}

impl AnyPd {
    /// The same domain with its provider named.
    pub(super) fn named(pd: Pd) -> Self {
        match pd.downcast::<Soft>() {
            Ok(pd) => Self::Soft(pd),
            Err(failed) => match failed.handle.downcast::<Mlx5>() {
                Ok(pd) => Self::Mlx5(pd),
                Err(failed) => match failed.handle.downcast::<Rxe>() {
                    Ok(pd) => Self::Rxe(pd),
                    Err(failed) => Self::Erased(failed.handle),
                },
            },
        }
    }

    pub(super) fn alloc_buf(&self, len: usize) -> verbs::Result<Buf> {
        any!(AnyPd, self, pd => pd.alloc_buf(len))
    }

    pub(super) fn register<M: verbs::StableMemory>(&self, memory: M) -> Result<Buf, HandleError<M>> {
        any!(AnyPd, self, pd => pd.register(memory))
    }

    pub(super) fn register_bytes<M: verbs::StableBytes>(
        &self,
        memory: M,
    ) -> Result<verbs::FrozenBuf, HandleError<M>> {
        any!(AnyPd, self, pd => pd.register_bytes(memory))
    }
}
