//! [`AnyQp`], [`AnyCq`]: handles of any state and any provider in one type, so that a thread can
//! make random calls on any handle it holds. A call not offered by the typestate returns its
//! arguments.
//!
//! The features `soft`, `rxe` and `mlx5` choose the providers that handles name. Handles of other
//! providers stay erased, because each named provider takes as long to build as the erased form.
#![forbid(unsafe_code)]
// Like the library's methods, these return rejected memory and handles.
#![allow(clippy::wrong_self_convention, clippy::result_large_err)]

use std::ops::Bound;

#[cfg(feature = "mlx5")]
use verbs::mlx5::Mlx5;
#[cfg(feature = "rxe")]
use verbs::rxe::Rxe;
#[cfg(feature = "soft")]
use verbs::soft::Soft;
use verbs::state::{Errored, Init, Reset, Rtr, Rts, Sqd};
use verbs::{
    Buf, Cq, CqHandle, CqId, Erased, Error, HandleError, InitAttr, Memory, Pd, PostBufError, PostBufReason,
    PostMemory, Provider, Qp, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpType, RecvHalf, Returned, RtrAttr,
    RtsAttr, SendBatch, SendFlags, SendHalf, SendOp, Wc, WrBatch,
};

/// A range in any form, including invalid ones.
pub(super) type AnyRange = (Bound<usize>, Bound<usize>);

/// A queue pair in the state set by the program.
#[derive(Debug)]
pub(super) enum Handle<P: Provider> {
    Reset(Qp<Reset, P>),
    Init(Qp<Init, P>),
    Rtr(Qp<Rtr, P>),
    Rts(Qp<Rts, P>),
    Sqd(Qp<Sqd, P>),
    Errored(Qp<Errored, P>),
}

/// Evaluates the same expression for a queue pair of any state.
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

/// The reason why memory was not posted, and the memory unless the queue still holds it.
#[derive(Debug)]
pub(super) struct NotPosted<B> {
    pub(super) returned: Option<B>,
    /// The reason for the rejection; `None` if the handle's state does not offer the call.
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

/// A handle after a state change, with the error if the change failed.
type Stepped<H> = (H, Option<Error>);

/// Returns the handle after a state change, with the error if the change failed.
fn stepped<A: Into<H>, B: Into<H>, H>(result: Result<A, HandleError<B>>) -> Stepped<H> {
    match result {
        Ok(qp) => (qp.into(), None),
        Err(HandleError { handle, error }) => (handle.into(), Some(error)),
    }
}

/// Returns the error with the handle converted to another type.
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

    /// Splits a queue pair that can send and receive.
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

    /// Runs an operation with a new batch, if the handle's state offers batches.
    fn batch<T>(&mut self, run: impl FnOnce(SendBatch<'_, P>) -> T) -> Option<T> {
        match self {
            Self::Rts(qp) => Some(run(qp.batch())),
            Self::Sqd(qp) => Some(run(qp.batch())),
            Self::Errored(qp) => Some(run(qp.batch())),
            _ => None,
        }
    }

    /// Runs an operation with a new raw batch, if the handle's state offers raw batches.
    fn wr_start<R: WithWr>(&mut self, run: R) -> Option<R::Output> {
        match self {
            Self::Rts(qp) => Some(run.run::<P>(qp.wr_start())),
            Self::Sqd(qp) => Some(run.run::<P>(qp.wr_start())),
            Self::Errored(qp) => Some(run.run::<P>(qp.wr_start())),
            _ => None,
        }
    }
}

impl Handle<Erased> {
    fn downcast<P: verbs::NamedProvider>(self) -> Result<Handle<P>, HandleError<Self>> {
        each!(self, qp => qp.downcast::<P>().map(Handle::from).map_err(refused))
    }
}

/// Defines a type for handles of any provider, erased or named.
macro_rules! of_any_provider {
    ($(#[$attribute:meta])* $name:ident: $handle:ident) => {
        $(#[$attribute])*
        #[derive(Debug)]
        #[allow(clippy::large_enum_variant)]
        pub(super) enum $name {
            Erased($handle<Erased>),
            #[cfg(feature = "mlx5")]
            Mlx5($handle<Mlx5>),
            #[cfg(feature = "rxe")]
            Rxe($handle<Rxe>),
            #[cfg(feature = "soft")]
            Soft($handle<Soft>),
        }

        from_provider!($name: $handle, Erased);
        #[cfg(feature = "mlx5")]
        from_provider!($name: $handle, Mlx5);
        #[cfg(feature = "rxe")]
        from_provider!($name: $handle, Rxe);
        #[cfg(feature = "soft")]
        from_provider!($name: $handle, Soft);
    };
}

macro_rules! from_provider {
    ($name:ident: $handle:ident, $provider:ident) => {
        impl From<$handle<$provider>> for $name {
            fn from(handle: $handle<$provider>) -> Self {
                Self::$provider(handle)
            }
        }
    };
}

of_any_provider! {
    /// A queue pair of any provider, in any state.
    AnyQp: Handle
}

of_any_provider! {
    /// A completion queue of any provider.
    AnyCq: Cq
}

of_any_provider! {
    /// A handle that names a completion queue.
    #[derive(Clone)]
    AnyCqHandle: CqHandle
}

of_any_provider! {
    /// A protection domain of any provider.
    #[derive(Clone)]
    AnyPd: Pd
}

of_any_provider! {
    /// Both halves of a queue pair.
    AnyHalves: Halves
}

/// Evaluates the same expression for a handle of any provider.
macro_rules! any {
    ($type:ident, $any:expr, $handle:pat => $body:expr) => {
        match $any {
            $type::Erased($handle) => $body,
            #[cfg(feature = "mlx5")]
            $type::Mlx5($handle) => $body,
            #[cfg(feature = "rxe")]
            $type::Rxe($handle) => $body,
            #[cfg(feature = "soft")]
            $type::Soft($handle) => $body,
        }
    };
}
pub(super) use any;

/// Changes a queue pair's state and wraps the new handle in the same type again.
macro_rules! step {
    ($any:expr, $handle:ident => $body:expr) => {
        any!(AnyQp, $any, $handle => {
            let (handle, error) = $body;
            (handle.into(), error)
        })
    };
}

/// Returns the handle with its provider known at compile time, if this build has that provider.
macro_rules! named {
    ($hidden:expr) => {{
        let hidden = $hidden;
        #[cfg(feature = "mlx5")]
        let hidden = match hidden.downcast::<Mlx5>() {
            Ok(named) => return named.into(),
            Err(failed) => failed.handle,
        };
        #[cfg(feature = "rxe")]
        let hidden = match hidden.downcast::<Rxe>() {
            Ok(named) => return named.into(),
            Err(failed) => failed.handle,
        };
        #[cfg(feature = "soft")]
        let hidden = match hidden.downcast::<Soft>() {
            Ok(named) => return named.into(),
            Err(failed) => failed.handle,
        };
        return hidden.into();
    }};
}

/// Returns whether this program can name a provider.
pub(super) fn is_named(provider: &str) -> bool {
    let features =
        [("mlx5", cfg!(feature = "mlx5")), ("rxe", cfg!(feature = "rxe")), ("soft", cfg!(feature = "soft"))];
    features.contains(&(provider, true))
}

impl AnyQp {
    /// Creates a queue pair with the domain's provider; returns `None` unless the domain and both
    /// queues have the same provider type.
    pub(super) fn create(
        pd: &AnyPd,
        [send_cq, recv_cq]: [AnyCqHandle; 2],
        qp_type: QpType,
        cap: QpCap,
        sq_sig_all: bool,
    ) -> Option<verbs::Result<Self>> {
        let with = (qp_type, cap, sq_sig_all);
        Some(match (pd, send_cq, recv_cq) {
            (AnyPd::Erased(pd), AnyCqHandle::Erased(send_cq), AnyCqHandle::Erased(recv_cq)) => {
                create(pd, send_cq, recv_cq, with)
            }
            #[cfg(feature = "mlx5")]
            (AnyPd::Mlx5(pd), AnyCqHandle::Mlx5(send_cq), AnyCqHandle::Mlx5(recv_cq)) => {
                create(pd, send_cq, recv_cq, with)
            }
            #[cfg(feature = "rxe")]
            (AnyPd::Rxe(pd), AnyCqHandle::Rxe(send_cq), AnyCqHandle::Rxe(recv_cq)) => {
                create(pd, send_cq, recv_cq, with)
            }
            #[cfg(feature = "soft")]
            (AnyPd::Soft(pd), AnyCqHandle::Soft(send_cq), AnyCqHandle::Soft(recv_cq)) => {
                create(pd, send_cq, recv_cq, with)
            }
            #[cfg(any(feature = "mlx5", feature = "rxe", feature = "soft"))]
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

    /// Returns whether the queue pair is in RTS and can therefore be split.
    pub(super) fn is_rts(&self) -> bool {
        any!(AnyQp, self, handle => matches!(handle, Handle::Rts(_)))
    }

    pub(super) fn can_recv(&self) -> bool {
        any!(AnyQp, self, handle => !matches!(handle, Handle::Reset(_)))
    }

    pub(super) fn to_init(self, attr: &InitAttr) -> Stepped<Self> {
        step!(self, handle => handle.to_init(attr))
    }

    pub(super) fn to_rtr(self, attr: &RtrAttr) -> Stepped<Self> {
        step!(self, handle => handle.to_rtr(attr))
    }

    pub(super) fn to_rts(self, attr: &RtsAttr) -> Stepped<Self> {
        step!(self, handle => handle.to_rts(attr))
    }

    pub(super) fn to_sqd(self) -> Stepped<Self> {
        step!(self, handle => handle.to_sqd())
    }

    pub(super) fn back_to_rts(self) -> Stepped<Self> {
        step!(self, handle => handle.back_to_rts())
    }

    pub(super) fn to_reset(self) -> Stepped<Self> {
        step!(self, handle => handle.to_reset())
    }

    pub(super) fn to_error(self) -> Stepped<Self> {
        step!(self, handle => handle.to_error())
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
        any!(AnyQp, self, handle => handle.dismantle().map_err(refused))
    }

    pub(super) fn close(self) -> Result<(), HandleError<Self>> {
        any!(AnyQp, self, handle => handle.close().map_err(refused))
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

    /// Sends bytes inline; `None` if the handle's state has no such method.
    pub(super) fn post_send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Option<Result<(), PostBufReason>> {
        any!(AnyQp, self, handle => handle.post_send_inline(wr_id, op, flags, data))
    }

    /// Runs an operation with a new batch; `None` if the handle's state has no such method.
    pub(super) fn batch<R: WithBatch>(&mut self, run: R) -> Option<R::Output> {
        any!(AnyQp, self, handle => handle.batch(|batch| run.run(batch)))
    }

    /// Runs an operation with a new raw batch; `None` if the handle's state has no such method.
    pub(super) fn wr_start<R: WithWr>(&mut self, run: R) -> Option<R::Output> {
        any!(AnyQp, self, handle => handle.wr_start(run))
    }

    /// Returns the same queue pair with its provider known at compile time, if the provider is
    /// erased and part of this build.
    pub(super) fn downcast(self) -> Self {
        match self {
            Self::Erased(handle) => named!(handle),
            #[cfg(any(feature = "mlx5", feature = "rxe", feature = "soft"))]
            other => other,
        }
    }

    /// Splits the queue pair, or returns it if it cannot both send and receive.
    pub(super) fn split(self) -> Result<AnyHalves, Self> {
        any!(AnyQp, self, handle => handle.split().map(AnyHalves::from).map_err(Self::from))
    }
}

/// Creates a queue pair with the given type, sizes and signaling.
fn create<P: Provider>(
    pd: &Pd<P>,
    send_cq: CqHandle<P>,
    recv_cq: CqHandle<P>,
    with: (QpType, QpCap, bool),
) -> verbs::Result<AnyQp>
where
    AnyQp: From<Handle<P>>,
{
    let (qp_type, cap, sq_sig_all) = with;
    let qp = pd.create_qp(&QpInit { recv_cq, cap, sq_sig_all, ..QpInit::new(qp_type, send_cq) })?;
    Ok(Handle::from(qp).into())
}

/// An operation on a batch of any provider.
pub(super) trait WithBatch {
    /// The operation's result.
    type Output;

    fn run<P: Provider>(self, batch: SendBatch<'_, P>) -> Self::Output;
}

/// An operation on a raw batch, for any provider.
pub(super) trait WithWr {
    /// The operation's result.
    type Output;

    fn run<P: Provider>(self, batch: WrBatch<'_, P::Sq>) -> Self::Output;
}

/// Both halves of a queue pair.
pub(super) type Halves<P> = (SendHalf<Rts, P>, RecvHalf<Rts, P>);

impl AnyHalves {
    /// Joins the halves into a queue pair, or returns them if they belong to different queue pairs.
    pub(super) fn join(self) -> Result<AnyQp, Self> {
        any!(AnyHalves, self, (send, recv) => Qp::from_halves(send, recv)
            .map(|qp| Handle::from(qp).into())
            .map_err(|failed| failed.handle.into()))
    }

    /// Exchanges the receive halves of two queue pairs if their provider types match.
    pub(super) fn swap_recv(&mut self, other: &mut Self) -> bool {
        match (self, other) {
            (Self::Erased((_, one)), Self::Erased((_, other))) => std::mem::swap(one, other),
            #[cfg(feature = "mlx5")]
            (Self::Mlx5((_, one)), Self::Mlx5((_, other))) => std::mem::swap(one, other),
            #[cfg(feature = "rxe")]
            (Self::Rxe((_, one)), Self::Rxe((_, other))) => std::mem::swap(one, other),
            #[cfg(feature = "soft")]
            (Self::Soft((_, one)), Self::Soft((_, other))) => std::mem::swap(one, other),
            #[cfg(any(feature = "mlx5", feature = "rxe", feature = "soft"))]
            _ => return false,
        }
        true
    }

    /// Drops one half before the other.
    pub(super) fn drop_in_order(self, send_first: bool) {
        any!(AnyHalves, self, (send, recv) => if send_first {
            drop(send);
            drop(recv);
        } else {
            drop(recv);
            drop(send);
        });
    }
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
        any!(AnyCq, self, cq => cq.handle().into())
    }

    pub(super) fn reclaim(&mut self, wc: &Wc) -> Option<Returned> {
        any!(AnyCq, self, cq => cq.reclaim(wc))
    }

    pub(super) fn close(self) -> Result<(), HandleError<Self>> {
        any!(AnyCq, self, cq => cq.close().map_err(refused))
    }

    /// Returns the same queue with its provider known at compile time, if the provider is erased
    /// and part of this build, and the queue holds no fetched completions.
    pub(super) fn downcast(self) -> Self {
        match self {
            Self::Erased(cq) => named!(cq),
            #[cfg(any(feature = "mlx5", feature = "rxe", feature = "soft"))]
            other => other,
        }
    }
}

impl AnyPd {
    /// Returns the same domain with its provider known at compile time, if the provider is part of
    /// this build.
    pub(super) fn named(pd: Pd) -> Self {
        named!(pd)
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
