//! The requester: from work requests to packets; from acknowledgements to completions.
//!
//! | module | contents |
//! |---|---|
//! | `post` | checks a work request and puts it into the send queue |
//! | `transmit` | the next packet of the next work request |
//! | `payload` | the bytes of a message: gathered from, or scattered to, registered memory |
//! | `acknowledge` | responses: acknowledgements, read responses, atomic results, NAKs |
//! | `retry` | timers, retransmission, a queue pair's share of the window |
//! | `fail` | failures of the oldest send |
//!
//! [`SendState`] documents the sequence numbers.

mod acknowledge;
mod fail;
mod payload;
mod post;
mod retry;
#[cfg(test)]
mod tests;
mod transmit;

pub(crate) use acknowledge::acknowledge;
pub(crate) use post::post;
pub(crate) use retry::expire;
pub(crate) use transmit::{has_work, transmit};

use super::completion::send;
use super::environment::Environment;
use super::memory::{Memory, Sink};
use super::qp::{Qp, SendState};
use super::types::Status;

/// Drops all posted sends without completions.
pub(crate) fn reset<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    send::forget(qp, env.scheduler);
    qp.sq.clear();
    qp.req = SendState::default();
}

/// Simulates a failure of the oldest send and its consequences. Returns whether a send was
/// outstanding.
pub(crate) fn fail_next<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    status: Status,
    vendor_err: u32,
) -> bool {
    let any = !qp.sq.is_empty();
    if any {
        fail::complete_oldest_with(qp, env, status, vendor_err);
    }
    any
}

/// Drains the send queue: moves from RTS to SQD, where no new work request starts.
///
/// # References
/// IBTA 10.3.1.5
pub(crate) fn drain<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    qp.req.draining = true;
    send::report_drained(qp, env);
}

/// Resumes sending when the queue pair returns to RTS.
pub(crate) fn resume(qp: &mut Qp) {
    qp.req.draining = false;
    qp.req.waiting = false;
}

/// Sets the sequence number of the next packet. Does nothing while work requests are in progress.
pub(crate) fn set_psn(qp: &mut Qp, psn: u32) {
    if qp.is_drained() {
        qp.req.set_psn(psn);
    }
}
