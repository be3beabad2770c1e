//! The states of a queue pair as types, which determine a handle's methods.
//!
//! ```text
//!          to_init       to_rtr       to_rts     to_sqd           to_error
//!   Reset ────────► Init ──────► Rtr ──────► Rts ─────► Sqd       any ──► Errored
//!     ▲              recv         recv        recv ◄─── recv              recv
//!     │                                       send resume send            send (flushed)
//!     └── to_reset, from any state
//! ```
//!
//! The type is the state set by the program. The device may move the queue pair to the error state
//! at any time. [`Qp::state`](crate::Qp::state), events and flushed completions report that.
//! Posting in the error state is harmless.
//!
//! Only the device moves a queue pair to SQE, after a send of a UC or UD queue pair has failed. SQE
//! therefore has no type: [`Qp::state`](crate::Qp::state) returns
//! [`QpState::SQE`](crate::QpState::SQE), and [`recover_sq`](crate::Qp::recover_sq) returns to RTS.
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
//! A queue pair cannot receive before it is initialised:
//!
//! ```compile_fail,E0599
//! # fn f(mut qp: verbs::Qp<verbs::state::Reset>, buf: verbs::Buf) {
//! qp.post_recv_buf(buf, ..);
//! # }
//! ```
//!
//! It cannot skip a state, and the handle of the old state is gone after a move:
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

/// A queue pair state that a program can set.
pub trait State: sealed::Sealed + 'static {
    /// The state as a value.
    const STATE: QpState;
}

/// A state that permits posting receives.
pub trait CanPostRecv: State {}

/// A state that permits posting sends.
pub trait CanPostSend: CanPostRecv {}

/// Defines states and their traits.
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
    /// New, or reset: no request may be posted.
    #[doc(alias = "IBV_QPS_RESET")] Reset = RESET: ;
    /// Initialised: receives may be posted, but incoming messages are not processed yet.
    #[doc(alias = "IBV_QPS_INIT")] Init = INIT: CanPostRecv;
    /// Ready to receive (RTR): messages are received, but sends may not be posted.
    #[doc(alias = "IBV_QPS_RTR")] Rtr = RTR: CanPostRecv;
    /// Ready to send (RTS): sends may be posted as well.
    #[doc(alias = "IBV_QPS_RTS")] Rts = RTS: CanPostRecv CanPostSend;
    /// The send queue is draining; sends posted in this state wait.
    #[doc(alias = "IBV_QPS_SQD")] Sqd = SQD: CanPostRecv CanPostSend;
    /// In error: earlier requests complete as flushed. Requests posted in this state should too,
    /// but rxe ignores receives; [`dismantle`](crate::Qp::dismantle) returns their memory.
    #[doc(alias = "IBV_QPS_ERR")] Errored = ERR: CanPostRecv CanPostSend;
}

mod sealed {
    /// Seals the set of states.
    pub trait Sealed {}
}
