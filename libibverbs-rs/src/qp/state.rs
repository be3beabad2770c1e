//! What a handle of a queue pair may do: a thin typestate over the states of the specification.
//!
//! ```text
//!          to_init       to_rtr       to_rts
//!   Reset ────────► Init ──────► Rtr ──────► Rts ◄──► Sqd
//!     ▲              recv         recv        recv      recv        any ──► Errored (recv, send: flushed)
//!     └────────────────── to_reset ─────────  send  ─   send
//! ```
//!
//! The type says what the program moved the queue pair to. The device may move it to the error
//! state at any time; that is data ([`Qp::state`](crate::Qp::state), events, flushed completions),
//! and posting then is harmless.
//!
//! A queue pair that cannot send yet has no method for it:
//!
//! ```compile_fail,E0599
//! # fn f(mut qp: verbs::Qp<verbs::state::Rtr>) {
//! unsafe { qp.post_send(&[]) };
//! # }
//! ```
//!
//! ```compile_fail,E0599
//! # fn f(mut qp: verbs::Qp<verbs::state::Init>, buf: verbs::Buf) {
//! qp.post_send_buf(verbs::SendOp::Send, verbs::SendFlags::empty(), buf, ..);
//! # }
//! ```
//!
//! nor can one receive before it is initialised:
//!
//! ```compile_fail,E0599
//! # fn f(mut qp: verbs::Qp<verbs::state::Reset>, buf: verbs::Buf) {
//! qp.post_recv_buf(buf, ..);
//! # }
//! ```
//!
//! nor skip a state, or be used after it moved on:
//!
//! ```compile_fail,E0599
//! # fn f(qp: verbs::Qp<verbs::state::Reset>) {
//! qp.to_rts(&verbs::RtsAttr::default());
//! # }
//! ```
//!
//! ```compile_fail,E0382
//! # fn f(qp: verbs::Qp<verbs::state::Rtr>) {
//! let rts = qp.to_rts(&verbs::RtsAttr::default());
//! qp.qp_num();
//! # }
//! ```
//!
//! # References
//! IBTA volume 1, section 10.3.1

use verbs_core::types::QpState;

/// A state that a program can move a queue pair to.
pub trait State: sealed::Sealed + 'static {
    /// Its value.
    const STATE: QpState;
}

/// Receives may be posted.
pub trait CanPostRecv: State {}

/// Sends may be posted.
pub trait CanPostSend: CanPostRecv {}

/// Defines states and what they can do.
macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $state:ident: $($can:ident)*;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub enum $name {}

            impl sealed::Sealed for $name {}
            impl State for $name {
                const STATE: QpState = QpState::$state;
            }
            $(impl $can for $name {})*
        )*
    };
}

states! {
    /// Fresh, or taken back: nothing may be posted.
    #[doc(alias = "IBV_QPS_RESET")] Reset = RESET: ;
    /// Receives may be posted; nothing arrives yet.
    #[doc(alias = "IBV_QPS_INIT")] Init = INIT: CanPostRecv;
    /// Ready to receive.
    #[doc(alias = "IBV_QPS_RTR")] Rtr = RTR: CanPostRecv;
    /// Ready to receive and to send.
    #[doc(alias = "IBV_QPS_RTS")] Rts = RTS: CanPostRecv CanPostSend;
    /// The send queue drains; what is posted to it waits.
    #[doc(alias = "IBV_QPS_SQD")] Sqd = SQD: CanPostRecv CanPostSend;
    /// In error: what was posted before is flushed. So should be what is posted now, but rxe does
    /// not look at receives that come later: [`dismantle`](crate::Qp::dismantle) gives back what
    /// never completes.
    #[doc(alias = "IBV_QPS_ERR")] Errored = ERR: CanPostRecv CanPostSend;
}

mod sealed {
    /// Keeps the list of states closed.
    pub trait Sealed {}
}
