//! [`AnyQp`], [`AnyCq`]: handles of any state and any provider in one type, so that random calls
//! can be made on what is at hand. A call that the typestate does not offer gives back what it was
//! called with.
#![forbid(unsafe_code)]
// The methods are named as the library's, and give back what was not taken as the library's do.
#![allow(clippy::wrong_self_convention, clippy::result_large_err)]

use std::ops::Bound;

use verbs::rxe::Rxe;
use verbs::soft::Soft;
use verbs::state::{Errored, Init, Reset, Rtr, Rts, Sqd};
use verbs::{
    Buf, Completion, Cq, CqId, Erased, Error, InitAttr, Parcel, ParkError, ParkReason, Pd, Provider, Qp,
    QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpType, RecvHalf, RtrAttr, RtsAttr, SendFlags, SendHalf, SendOp,
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

/// Why a buffer was not parked, and the buffer unless the queue has it all the same.
#[derive(Debug)]
pub(super) struct NotParked<B> {
    pub(super) returned: Option<B>,
    /// `None` where the handle's state has no such method.
    pub(super) reason: Option<ParkReason>,
}

impl<B> NotParked<B> {
    fn by_type(returned: B) -> Self {
        Self { returned: Some(returned), reason: None }
    }
}

impl<B> From<ParkError<B>> for NotParked<B> {
    fn from(error: ParkError<B>) -> Self {
        Self { returned: error.returned, reason: Some(error.reason) }
    }
}

/// A handle after a step, and why it is where it was.
type Stepped<H> = (H, Option<Error>);

/// Converts the result of a step into the handle that it left.
fn stepped<A: Into<H>, B: Into<H>, H>(result: Result<A, (B, Error)>) -> Stepped<H> {
    match result {
        Ok(qp) => (qp.into(), None),
        Err((qp, error)) => (qp.into(), Some(error)),
    }
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

    fn reclaim_all(&mut self) -> Option<Vec<Parcel>> {
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

    fn dismantle(self) -> Result<Vec<Parcel>, (Self, Error)> {
        each!(self, qp => qp.dismantle().map_err(|(qp, error)| (qp.into(), error)))
    }

    fn close(self) -> Result<(), (Self, Error)> {
        each!(self, qp => qp.close().map_err(|(qp, error)| (qp.into(), error)))
    }

    fn reclaim<Q: Provider>(&mut self, completion: &Completion<'_, Q>) -> Option<Parcel> {
        each!(self, qp => qp.reclaim(completion))
    }

    /// Both halves, where there are two.
    fn split(&mut self) -> Option<(SendHalf<'_, P>, RecvHalf<'_, P>)> {
        match self {
            Self::Rts(qp) => Some(qp.split()),
            Self::Sqd(qp) => Some(qp.split()),
            Self::Errored(qp) => Some(qp.split()),
            _ => None,
        }
    }

    fn park_recv(&mut self, buf: Buf, range: AnyRange) -> Result<u64, NotParked<Buf>> {
        Ok(match self {
            Self::Reset(_) => return Err(NotParked::by_type(buf)),
            Self::Init(qp) => qp.park_recv(buf, range)?,
            Self::Rtr(qp) => qp.park_recv(buf, range)?,
            Self::Rts(qp) => qp.park_recv(buf, range)?,
            Self::Sqd(qp) => qp.park_recv(buf, range)?,
            Self::Errored(qp) => qp.park_recv(buf, range)?,
        })
    }

    fn park_recv_all(&mut self, bufs: Vec<Buf>) -> Result<u64, NotParked<Vec<Buf>>> {
        Ok(match self {
            Self::Reset(_) => return Err(NotParked::by_type(bufs)),
            Self::Init(qp) => qp.park_recv_all(bufs)?,
            Self::Rtr(qp) => qp.park_recv_all(bufs)?,
            Self::Rts(qp) => qp.park_recv_all(bufs)?,
            Self::Sqd(qp) => qp.park_recv_all(bufs)?,
            Self::Errored(qp) => qp.park_recv_all(bufs)?,
        })
    }

    fn park_send(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        buf: Buf,
        range: AnyRange,
    ) -> Result<u64, NotParked<Buf>> {
        Ok(match self {
            Self::Rts(qp) => qp.park_send(op, flags, buf, range)?,
            Self::Sqd(qp) => qp.park_send(op, flags, buf, range)?,
            Self::Errored(qp) => qp.park_send(op, flags, buf, range)?,
            _ => return Err(NotParked::by_type(buf)),
        })
    }

    fn park_send_all(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        bufs: Vec<Buf>,
    ) -> Result<u64, NotParked<Vec<Buf>>> {
        Ok(match self {
            Self::Rts(qp) => qp.park_send_all(op, flags, bufs)?,
            Self::Sqd(qp) => qp.park_send_all(op, flags, bufs)?,
            Self::Errored(qp) => qp.park_send_all(op, flags, bufs)?,
            _ => return Err(NotParked::by_type(bufs)),
        })
    }

    fn send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Option<Result<(), ParkReason>> {
        Some(self.split()?.0.send_inline(wr_id, op, flags, data))
    }
}

impl Handle<Erased> {
    fn downcast<P: verbs::NamedProvider>(self) -> Result<Handle<P>, Self> {
        each!(self, qp => qp.downcast::<P>().map(Handle::from).map_err(Self::from))
    }
}

/// A queue pair of any provider, hidden or named.
#[derive(Debug)]
pub(super) enum AnyQp {
    Erased(Handle<Erased>),
    Rxe(Handle<Rxe>),
    Soft(Handle<Soft>),
}

/// A completion queue of any provider, hidden or named.
#[derive(Debug)]
pub(super) enum AnyCq {
    Erased(Cq),
    Rxe(Cq<Rxe>),
    Soft(Cq<Soft>),
}

/// A protection domain of any provider, hidden or named.
#[derive(Clone, Debug)]
pub(super) enum AnyPd {
    Erased(Pd),
    Rxe(Pd<Rxe>),
    Soft(Pd<Soft>),
}

/// Runs the same on a handle of any provider.
macro_rules! any {
    ($type:ident, $any:expr, $handle:ident => $body:expr) => {
        match $any {
            $type::Erased($handle) => $body,
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
    /// A queue pair of the domain's provider; `None` where the queues are not named as the domain
    /// is.
    pub(super) fn create(
        pd: &AnyPd,
        [send_cq, recv_cq]: [&AnyCq; 2],
        qp_type: QpType,
        cap: QpCap,
        sq_sig_all: bool,
    ) -> Option<verbs::Result<Self>> {
        Some(match (pd, send_cq, recv_cq) {
            (AnyPd::Erased(pd), AnyCq::Erased(send_cq), AnyCq::Erased(recv_cq)) => pd
                .create_qp(&QpInit { qp_type, send_cq, recv_cq, cap, sq_sig_all })
                .map(|qp| Self::Erased(qp.into())),
            (AnyPd::Rxe(pd), AnyCq::Rxe(send_cq), AnyCq::Rxe(recv_cq)) => pd
                .create_qp(&QpInit { qp_type, send_cq, recv_cq, cap, sq_sig_all })
                .map(|qp| Self::Rxe(qp.into())),
            (AnyPd::Soft(pd), AnyCq::Soft(send_cq), AnyCq::Soft(recv_cq)) => pd
                .create_qp(&QpInit { qp_type, send_cq, recv_cq, cap, sq_sig_all })
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

    /// Returns the parked requests; `None` unless the handle is one of a queue pair in RESET.
    pub(super) fn reclaim_all(&mut self) -> Option<Vec<Parcel>> {
        any!(AnyQp, self, handle => handle.reclaim_all())
    }

    pub(super) fn reset_ends_requests(&self) -> bool {
        any!(AnyQp, self, handle => handle.reset_ends_requests())
    }

    pub(super) fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> verbs::Result<()> {
        any!(AnyQp, self, handle => handle.modify(attr, mask))
    }

    pub(super) fn dismantle(self) -> Result<Vec<Parcel>, (Self, Error)> {
        match self {
            Self::Erased(handle) => {
                handle.dismantle().map_err(|(handle, error)| (Self::Erased(handle), error))
            }
            Self::Rxe(handle) => handle.dismantle().map_err(|(handle, error)| (Self::Rxe(handle), error)),
            Self::Soft(handle) => handle.dismantle().map_err(|(handle, error)| (Self::Soft(handle), error)),
        }
    }

    pub(super) fn close(self) -> Result<(), (Self, Error)> {
        match self {
            Self::Erased(handle) => handle.close().map_err(|(handle, error)| (Self::Erased(handle), error)),
            Self::Rxe(handle) => handle.close().map_err(|(handle, error)| (Self::Rxe(handle), error)),
            Self::Soft(handle) => handle.close().map_err(|(handle, error)| (Self::Soft(handle), error)),
        }
    }

    pub(super) fn reclaim<Q: Provider>(&mut self, completion: &Completion<'_, Q>) -> Option<Parcel> {
        any!(AnyQp, self, handle => handle.reclaim(completion))
    }

    pub(super) fn park_recv(&mut self, buf: Buf, range: AnyRange) -> Result<u64, NotParked<Buf>> {
        any!(AnyQp, self, handle => handle.park_recv(buf, range))
    }

    pub(super) fn park_recv_all(&mut self, bufs: Vec<Buf>) -> Result<u64, NotParked<Vec<Buf>>> {
        any!(AnyQp, self, handle => handle.park_recv_all(bufs))
    }

    pub(super) fn park_send(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        buf: Buf,
        range: AnyRange,
    ) -> Result<u64, NotParked<Buf>> {
        any!(AnyQp, self, handle => handle.park_send(op, flags, buf, range))
    }

    pub(super) fn park_send_all(
        &mut self,
        op: SendOp<'_>,
        flags: SendFlags,
        bufs: Vec<Buf>,
    ) -> Result<u64, NotParked<Vec<Buf>>> {
        any!(AnyQp, self, handle => handle.park_send_all(op, flags, bufs))
    }

    /// `None` where the handle's state has no such method.
    pub(super) fn send_inline(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        data: &[u8],
    ) -> Option<Result<(), ParkReason>> {
        any!(AnyQp, self, handle => handle.send_inline(wr_id, op, flags, data))
    }

    /// The same queue pair with its provider named, where it is hidden.
    pub(super) fn downcast(self) -> Self {
        match self {
            Self::Erased(handle) => match handle.downcast::<Soft>() {
                Ok(handle) => Self::Soft(handle),
                Err(handle) => handle.downcast::<Rxe>().map_or_else(Self::Erased, Self::Rxe),
            },
            other => other,
        }
    }

    /// The halves of a queue pair whose provider is hidden, where there are two.
    pub(super) fn halves(&mut self) -> Option<AnyHalves<'_>> {
        Some(match self {
            Self::Erased(handle) => handle.split().map(|(send, recv)| AnyHalves::Erased(send, recv))?,
            Self::Rxe(handle) => handle.split().map(|(send, recv)| AnyHalves::Rxe(send, recv))?,
            Self::Soft(handle) => handle.split().map(|(send, recv)| AnyHalves::Soft(send, recv))?,
        })
    }
}

/// Both halves of a queue pair.
#[derive(Debug)]
pub(super) enum AnyHalves<'q> {
    Erased(SendHalf<'q>, RecvHalf<'q>),
    Rxe(SendHalf<'q, Rxe>, RecvHalf<'q, Rxe>),
    Soft(SendHalf<'q, Soft>, RecvHalf<'q, Soft>),
}

impl AnyCq {
    pub(super) fn id(&self) -> CqId {
        any!(AnyCq, self, cq => cq.id())
    }

    pub(super) fn req_notify(&mut self, solicited_only: bool) -> verbs::Result<()> {
        any!(AnyCq, self, cq => cq.req_notify(solicited_only))
    }

    pub(super) fn close(self) -> Result<(), (Self, Error)> {
        match self {
            Self::Erased(cq) => cq.close().map_err(|(cq, error)| (Self::Erased(cq), error)),
            Self::Rxe(cq) => cq.close().map_err(|(cq, error)| (Self::Rxe(cq), error)),
            Self::Soft(cq) => cq.close().map_err(|(cq, error)| (Self::Soft(cq), error)),
        }
    }

    /// The same queue with its provider named, where it is hidden and holds nothing that was
    /// fetched.
    pub(super) fn downcast(self) -> Self {
        match self {
            Self::Erased(cq) => match cq.downcast::<Soft>() {
                Ok(cq) => Self::Soft(cq),
                Err(cq) => cq.downcast::<Rxe>().map_or_else(Self::Erased, Self::Rxe),
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
            Err(pd) => pd.downcast::<Rxe>().map_or_else(Self::Erased, Self::Rxe),
        }
    }

    pub(super) fn alloc_buf(&self, len: usize) -> verbs::Result<Buf> {
        any!(AnyPd, self, pd => pd.alloc_buf(len))
    }
}
