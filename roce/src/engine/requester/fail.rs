//! Failures of the oldest send.

use crate::engine::completion::{self, send};
use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::types::{State, Status};

/// Fails the oldest send with `status`. The send queue then fails, and on a reliable service the
/// queue pair.
///
/// # References
/// IBTA 10.3.1.6 (SQE: UC and UD, whose receive queue continues), 10.3.1.7 (the error state),
/// 10.10.3 (errors)
pub(super) fn fail_oldest<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, status: Status) {
    complete_oldest_with(qp, env, status, 0);
}

/// Fails the oldest send as [`fail_oldest`] does, with a vendor-specific error code.
pub(super) fn complete_oldest_with<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    status: Status,
    vendor_err: u32,
) {
    send::complete_oldest_with(qp, env, status, vendor_err);
    if qp.is_reliable() {
        completion::fail(qp, env);
    } else {
        qp.state = State::Sqe;
        send::flush(qp, env);
    }
}

/// Fails the work request at the cursor with `status` as soon as it is the oldest, which may be
/// now.
pub(super) fn halt<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, status: Status) {
    qp.req.halted = Some(status);
    fail_halted(qp, env);
}

/// Fails the work request stopped by [`halt`] if all earlier work requests have ended.
pub(super) fn fail_halted<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    if qp.req.cursor == qp.sq.tail()
        && let Some(status) = qp.req.halted.take()
    {
        fail_oldest(qp, env, status);
    }
}
