//! [`SendHalf`] and [`RecvHalf`]: the halves of a queue pair, for two threads.
//!
//! ```text
//!   Qp ── into_split ──► SendHalf ─┐                     ┌─► Qp
//!                        RecvHalf ─┴─ Qp::from_halves ───┘
//! ```
//!
//! Each half owns its queue and a share of the queue pair. Dropping both destroys the queue pair.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use verbs_core::Result;
use verbs_core::provider::{Erased, Provider, QpOps};
use verbs_core::types::{QpAttr, QpAttrMask, QpInitInfo, QpState};

use super::post::Sender;
use super::state::{Rts, State};
use super::{Core, Qp};
use crate::handle::error::HandleError;
use crate::handle::registry::QpId;
use crate::queue::receiver::Receiver;

/// The send half of a queue pair, for a separate thread. Made by [`Qp::into_split`].
///
/// ```compile_fail,E0382
/// # fn f(mut send: verbs::SendHalf, recv: verbs::RecvHalf, buf: verbs::Buf) {
/// let qp = verbs::Qp::from_halves(send, recv);
/// send.post_send_buf(verbs::SendOp::Send, verbs::SendFlags::empty(), buf, ..);
/// # }
/// ```
///
/// A send half posts no receives:
///
/// ```compile_fail,E0599
/// # fn f(mut send: verbs::SendHalf, buf: verbs::Buf) {
/// send.post_recv_buf(buf, ..);
/// # }
/// ```
pub struct SendHalf<S: State = Rts, P: Provider = Erased> {
    pub(super) send: Sender<P>,
    pub(super) core: Arc<Core<P>>,
    state: PhantomData<fn() -> S>,
}

/// The receive half of a queue pair, for a separate thread. Made by [`Qp::into_split`].
///
/// A receive half posts no sends:
///
/// ```compile_fail,E0599
/// # fn f(mut recv: verbs::RecvHalf, buf: verbs::Buf) {
/// recv.post_send_buf(verbs::SendOp::Send, verbs::SendFlags::empty(), buf, ..);
/// # }
/// ```
pub struct RecvHalf<S: State = Rts, P: Provider = Erased> {
    pub(super) recv: Receiver<P::Rq>,
    core: Arc<Core<P>>,
    state: PhantomData<fn() -> S>,
}

impl<S: State, P: Provider> Qp<S, P> {
    /// Splits the queue pair into two halves that post independently.
    ///
    /// ```no_run
    /// # use std::error::Error;
    /// # use verbs::{Buf, state::Rts};
    /// use verbs::{Qp, SendFlags, SendOp};
    /// # fn f(qp: Qp<Rts>, out: Buf, into: Buf) -> Result<(), Box<dyn Error>> {
    /// let (mut send, mut recv) = qp.into_split();
    /// let receiver = std::thread::spawn(move || {
    ///     recv.post_recv_buf(into, ..)?;
    ///     Ok::<_, verbs::Error>(recv)
    /// });
    /// send.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..)?;
    /// let recv = receiver.join().expect("it does not panic")?;
    /// let qp = Qp::from_halves(send, recv)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_split(self) -> (SendHalf<S, P>, RecvHalf<S, P>) {
        let Self { core, send, recv, state } = self;
        let core = Arc::new(core);
        (SendHalf { send, core: Arc::clone(&core), state }, RecvHalf { recv, core, state })
    }

    /// Joins two halves made by [`into_split`](Self::into_split).
    ///
    /// # Errors
    /// Returns the halves if they belong to different queue pairs.
    // The panic below is unreachable.
    #[allow(clippy::missing_panics_doc, clippy::type_complexity)]
    pub fn from_halves(
        send: SendHalf<S, P>,
        recv: RecvHalf<S, P>,
    ) -> Result<Self, HandleError<(SendHalf<S, P>, RecvHalf<S, P>)>> {
        if !Arc::ptr_eq(&send.core, &recv.core) {
            let reason = "the halves are of two queue pairs";
            return Err(HandleError::refused((send, recv), "from_halves", reason));
        }
        let SendHalf { send, core, state } = send;
        let RecvHalf { recv, core: other, state: _ } = recv;
        drop(other);
        let core = Arc::into_inner(core).expect("two halves have the only shares");
        Ok(Self { core, send, recv, state })
    }
}

macro_rules! half {
    ($half:ident, $name:literal) => {
        impl<S: State, P: Provider> $half<S, P> {
            /// Returns the queue pair's number for peers, 24 bits.
            pub fn qp_num(&self) -> u32 {
                self.core.get().qp_num()
            }

            /// Returns the id of the queue pair in events.
            pub fn id(&self) -> QpId {
                QpId(self.core.dependencies().entry.id)
            }

            /// Queries the actual state, which differs from the state in the half's type once the
            /// device has moved the queue pair to the error state.
            ///
            /// # Errors
            /// Same as [`query`](Self::query).
            pub fn state(&self) -> Result<QpState> {
                self.query(QpAttrMask::STATE).map(|(attr, _)| attr.qp_state)
            }

            /// Queries the attributes of the queue pair.
            ///
            /// # Errors
            /// Same as [`Qp::query`].
            #[doc(alias = "ibv_query_qp")]
            pub fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
                self.core.get().query(mask)
            }
        }

        impl<S: State, P: Provider> fmt::Debug for $half<S, P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct($name)
                    .field("qp_num", &format_args!("{:#08x}", self.qp_num()))
                    .field("state", &S::STATE)
                    .finish_non_exhaustive()
            }
        }
    };
}

half!(SendHalf, "SendHalf");
half!(RecvHalf, "RecvHalf");
