//! [`Thing`]: an object of any kind.

use verbs::state::{Errored, Init, Reset, Rtr, Rts, Sqd};
use verbs::{
    Ah, AsyncEvents, Buf, CompChannel, Context, Cq, Error, Exposed, FrozenBuf, HandleError, Mr, Mw, Pd,
    Provider, Qp, RecvHalf, SendHalf, Srq, Td, Window, Xrcd,
};

/// An object, with the number of its context.
pub(super) struct Held<P: Provider> {
    pub(super) context: u32,
    pub(super) thing: Thing<P>,
}

/// An object of any kind.
#[allow(clippy::large_enum_variant)]
pub(super) enum Thing<P: Provider> {
    Ah(Ah<P>),
    Buf(Buf),
    Channel(CompChannel),
    Context(Context<P>),
    Cq(Cq<P>),
    Events(AsyncEvents),
    Exposed(Exposed),
    Frozen(FrozenBuf),
    Mr(Mr<P>),
    Mw(Mw<P>),
    Pd(Pd<P>),
    QpReset(Qp<Reset, P>),
    QpInit(Qp<Init, P>),
    QpRtr(Qp<Rtr, P>),
    QpRts(Qp<Rts, P>),
    QpSqd(Qp<Sqd, P>),
    QpErrored(Qp<Errored, P>),
    Halves(SendHalf<Rts, P>, RecvHalf<Rts, P>),
    /// Includes the domain, because rxe requires it for the queue pairs. `None` for XRC.
    Srq(Srq<P>, Option<Pd<P>>),
    Td(Td<P>),
    Window(Window),
    Xrcd(Xrcd<P>),
}

/// Restores the handle of a failed close.
fn again<T, P: Provider>(failed: HandleError<T>, wrap: impl FnOnce(T) -> Thing<P>) -> (Thing<P>, Error) {
    (wrap(failed.handle), failed.error)
}

impl<P: Provider> Thing<P> {
    /// Closes the object, or drops it if it has no close method.
    ///
    /// # Errors
    /// Any error from closing the object, with the object.
    #[allow(clippy::result_large_err)]
    pub(super) fn close(self) -> Result<(), (Self, Error)> {
        match self {
            Self::Ah(ah) => ah.close().map_err(|failed| again(failed, Self::Ah)),
            Self::Buf(buf) => buf.close().map_err(|failed| again(failed, Self::Buf)),
            Self::Channel(channel) => channel.close().map_err(|failed| again(failed, Self::Channel)),
            Self::Context(context) => context.close().map_err(|failed| again(failed, Self::Context)),
            Self::Cq(cq) => cq.close().map_err(|failed| again(failed, Self::Cq)),
            Self::Exposed(exposed) => {
                exposed.unexpose().map(drop).map_err(|failed| again(failed, Self::Exposed))
            }
            Self::Mr(mr) => mr.close().map_err(|failed| again(failed, Self::Mr)),
            Self::Mw(mw) => mw.close().map_err(|failed| again(failed, Self::Mw)),
            Self::Pd(pd) => pd.close().map_err(|failed| again(failed, Self::Pd)),
            Self::QpReset(qp) => qp.close().map_err(|failed| again(failed, Self::QpReset)),
            Self::QpInit(qp) => qp.close().map_err(|failed| again(failed, Self::QpInit)),
            Self::QpRtr(qp) => qp.close().map_err(|failed| again(failed, Self::QpRtr)),
            Self::QpRts(qp) => qp.dismantle().map(drop).map_err(|failed| again(failed, Self::QpRts)),
            Self::QpSqd(qp) => qp.dismantle().map(drop).map_err(|failed| again(failed, Self::QpSqd)),
            Self::QpErrored(qp) => qp.close().map_err(|failed| again(failed, Self::QpErrored)),
            Self::Srq(srq, pd) => {
                srq.dismantle().map(drop).map_err(|failed| again(failed, |srq| Self::Srq(srq, pd)))
            }
            Self::Td(td) => td.close().map_err(|failed| again(failed, Self::Td)),
            Self::Window(window) => window.close().map_err(|failed| again(failed, Self::Window)),
            Self::Xrcd(xrcd) => xrcd.close().map_err(|failed| again(failed, Self::Xrcd)),
            Self::Halves(send, recv) => {
                drop(send);
                drop(recv);
                Ok(())
            }
            Self::Events(events) => {
                drop(events);
                Ok(())
            }
            Self::Frozen(frozen) => {
                drop(frozen);
                Ok(())
            }
        }
    }

    /// Returns the object's kind, for messages.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Ah(_) => "address handle",
            Self::Buf(_) => "buffer",
            Self::Channel(_) => "channel",
            Self::Context(_) => "context",
            Self::Cq(_) => "completion queue",
            Self::Events(_) => "stream of events",
            Self::Exposed(_) => "exposed memory",
            Self::Frozen(_) => "read-only memory",
            Self::Mr(_) => "region",
            Self::Mw(_) => "raw window",
            Self::Pd(_) => "protection domain",
            Self::QpReset(_)
            | Self::QpInit(_)
            | Self::QpRtr(_)
            | Self::QpRts(_)
            | Self::QpSqd(_)
            | Self::QpErrored(_)
            | Self::Halves(..) => "queue pair",
            Self::Srq(..) => "shared receive queue",
            Self::Td(_) => "thread domain",
            Self::Window(_) => "window",
            Self::Xrcd(_) => "XRC domain",
        }
    }

    /// If the object is a queue, returns its kind and its id. The kinds are 0 for completion
    /// queues, 1 for queue pairs and 2 for shared receive queues.
    pub(super) fn slot(&self) -> Option<(usize, String)> {
        match self {
            Self::Cq(cq) => Some((0, cq.id().to_string())),
            Self::QpReset(qp) => Some((1, qp.id().to_string())),
            Self::QpInit(qp) => Some((1, qp.id().to_string())),
            Self::QpRtr(qp) => Some((1, qp.id().to_string())),
            Self::QpRts(qp) => Some((1, qp.id().to_string())),
            Self::QpSqd(qp) => Some((1, qp.id().to_string())),
            Self::QpErrored(qp) => Some((1, qp.id().to_string())),
            Self::Halves(send, _) => Some((1, send.id().to_string())),
            Self::Srq(srq, _) => Some((2, srq.id().to_string())),
            _ => None,
        }
    }
}
