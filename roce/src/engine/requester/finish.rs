//! How work requests end: retired, completed, flushed.

use super::tell_drained;
use crate::engine::control::World;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::queue::Wqe;
use crate::engine::types::{Completion, Opcode, SendOp, State, Status};

/// Ends the oldest with this status, whether it is signalled or not.
pub(super) fn end_oldest<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, status: Status) {
    end_oldest_saying(qp, world, status, 0);
}

fn end_oldest_saying<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    status: Status,
    vendor_err: u32,
) {
    let Some(wqe) = qp.sq.get(qp.sq.tail()) else { return };
    let completion = Completion { vendor_err, ..completion(qp, wqe, status) };
    qp.sq.pop();
    world.sink.retire_send(qp.qpn, 1);
    qp.complete(world, qp.send_cq, &completion);
}

/// Ends the oldest, which has succeeded. `quiet` counts those that ended before it and were not told of yet.
#[inline]
pub(super) fn succeed<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, quiet: &mut u32) {
    let Some(wqe) = qp.sq.get(qp.sq.tail()) else { return };
    *quiet += 1;
    if !wqe.flags.signaled {
        qp.sq.pop();
        return;
    }
    let completion = completion(qp, wqe, Status::Success);
    qp.sq.pop();
    world.sink.retire_send(qp.qpn, core::mem::take(quiet));
    qp.complete(world, qp.send_cq, &completion);
}

/// As [`succeed`], of a signalled one, with the bytes that its completion brings along.
pub(super) fn succeed_with<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    quiet: &mut u32,
    data: &[u8],
) {
    let Some(wqe) = qp.sq.get(qp.sq.tail()) else { return };
    let completion = completion(qp, wqe, Status::Success);
    qp.sq.pop();
    world.sink.retire_send(qp.qpn, core::mem::take(quiet) + 1);
    qp.complete_with(world, qp.send_cq, &completion, data);
}

/// Ends the run of [`succeed`].
#[inline]
pub(super) fn settle<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, quiet: u32) {
    if quiet > 0 {
        world.sink.retire_send(qp.qpn, quiet);
    }
    if qp.req.draining {
        tell_drained(qp, world);
    }
}

/// The oldest has failed: it completes with this status, and the send queue with it.
///
/// # References
/// IBTA 10.3.1.6 (SQE: UC and UD, whose receive queue goes on), 10.3.1.7 (the error state), 10.10.3 (which errors)
pub(super) fn fail_oldest<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, status: Status) {
    fail_oldest_saying(qp, world, status, 0);
}

/// As [`fail_oldest`], with more about it for people.
pub(super) fn fail_oldest_saying<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    status: Status,
    vendor_err: u32,
) {
    end_oldest_saying(qp, world, status, vendor_err);
    if super::is_reliable(qp) {
        qp.fail(world);
    } else {
        qp.state = State::Sqe;
        flush(qp, world);
    }
}

/// What the work request at the cursor failed with: told now if it is the oldest, else when it is.
pub(super) fn halt<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, status: Status) {
    qp.req.halted = Some(status);
    fail_halted(qp, world);
}

/// Everything before the failed one has ended: now it does.
pub(super) fn fail_halted<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>) {
    if qp.req.cursor == qp.sq.tail()
        && let Some(status) = qp.req.halted.take()
    {
        fail_oldest(qp, world, status);
    }
}

/// Flushes every send that is posted, the oldest first.
pub(crate) fn flush<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>) {
    while !qp.sq.is_empty() {
        end_oldest(qp, world, Status::Flushed);
    }
    super::forget(qp, world.turns);
    forget_positions(qp);
}

/// Nothing is on its way, nothing to be sent.
pub(super) fn forget_positions(qp: &mut Qp) {
    let req = &mut qp.req;
    req.cursor = qp.sq.tail();
    req.fresh = req.cursor;
    req.una = req.max;
    req.next = req.max;
    req.resumed = req.max;
    req.reads = 0;
    req.halted = None;
    req.waiting = false;
    req.draining = false;
    req.rnr_until = None;
    req.ack_deadline = None;
}

#[inline]
fn completion(qp: &Qp, wqe: &Wqe, status: Status) -> Completion {
    let opcode = match wqe.op {
        SendOp::Send { .. } | SendOp::SendInvalidate { .. } | SendOp::Datagram { .. } => Opcode::Send,
        SendOp::Write { .. } => Opcode::Write,
        SendOp::Read { .. } => Opcode::Read,
        SendOp::CompareSwap { .. } => Opcode::CompareSwap,
        SendOp::FetchAdd { .. } => Opcode::FetchAdd,
        SendOp::Bind { .. } => Opcode::Bind,
        SendOp::LocalInvalidate { .. } => Opcode::LocalInvalidate,
    };
    Completion {
        wr_id: wqe.wr_id,
        status,
        opcode,
        qpn: qp.qpn,
        byte_len: wqe.length,
        imm: None,
        invalidated: None,
        src_qpn: 0,
        grh: false,
        solicited: status != Status::Success,
        sl: 0,
        slid: 0,
        vendor_err: 0,
    }
}
