//! The completion of work requests: retiring, completing and flushing them.
//!
//! | module | contents |
//! |---|---|
//! | `send` | the oldest send succeeds or fails; the send queue is flushed |
//! | `recv` | the receive in use completes; the receive queue is flushed |
//!
//! Both halves of a queue pair use [`fail`], which flushes both queues. The requester may fail
//! because of a response, the responder because of a request. A failure of either half ends the
//! work requests of both halves.

pub(crate) mod recv;
pub(crate) mod send;

use super::environment::Environment;
use super::memory::{Memory, Sink};
use super::qp::Qp;
use super::types::State;

/// Moves a queue pair to the error state and flushes both queues: first sends, then receives, each
/// oldest first.
///
/// In RESET and in the error state, the queue pair stays unchanged.
///
/// # References
/// IBTA 10.3.1.7 (the error state)
pub(crate) fn fail<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    if matches!(qp.state, State::Reset | State::Err) {
        return;
    }
    qp.state = State::Err;
    send::flush(qp, env);
    recv::flush(qp, env);
}
