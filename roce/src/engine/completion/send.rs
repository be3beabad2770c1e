//! The completion of sends.

use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::queue::Wqe;
use crate::engine::scheduler::Scheduler;
use crate::engine::types::{Completion, Event, Opcode, SendOp, Status};

/// Completes the oldest send with `status`, whether or not it is signalled.
pub(crate) fn complete_oldest<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    status: Status,
) {
    complete_oldest_with(qp, env, status, 0);
}

/// Completes the oldest send as [`complete_oldest`] does, with a vendor-specific error code.
pub(crate) fn complete_oldest_with<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    status: Status,
    vendor_err: u32,
) {
    let Some(wqe) = qp.sq.get(qp.sq.tail()) else { return };
    let completion = Completion { vendor_err, ..completion(qp, wqe, status) };
    qp.sq.pop();
    env.sink.retire_send(qp.qpn, 1);
    env.complete(qp.send_cq, &completion);
}

/// Completes the oldest send successfully. `quiet` counts completed sends that are not retired yet.
#[inline]
pub(crate) fn succeed<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, quiet: &mut u32) {
    let Some(wqe) = qp.sq.get(qp.sq.tail()) else { return };
    *quiet += 1;
    if !wqe.flags.signaled {
        qp.sq.pop();
        return;
    }
    let completion = completion(qp, wqe, Status::Success);
    qp.sq.pop();
    env.sink.retire_send(qp.qpn, core::mem::take(quiet));
    env.complete(qp.send_cq, &completion);
}

/// Completes a signalled send as [`succeed`] does. The completion also carries `data`.
pub(crate) fn succeed_with<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    quiet: &mut u32,
    data: &[u8],
) {
    let Some(wqe) = qp.sq.get(qp.sq.tail()) else { return };
    let completion = completion(qp, wqe, Status::Success);
    qp.sq.pop();
    env.sink.retire_send(qp.qpn, core::mem::take(quiet) + 1);
    env.complete_with(qp.send_cq, &completion, data);
}

/// Ends a series of [`succeed`] calls by retiring the `quiet` remaining sends.
#[inline]
pub(crate) fn settle<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, quiet: u32) {
    if quiet > 0 {
        env.sink.retire_send(qp.qpn, quiet);
    }
    if qp.req.draining {
        report_drained(qp, env);
    }
}

/// Flushes every posted send, oldest first.
pub(crate) fn flush<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    while !qp.sq.is_empty() {
        complete_oldest(qp, env, Status::Flushed);
    }
    forget(qp, env.scheduler);
    forget_positions(qp);
}

/// Resets the queue positions to those of an empty queue: nothing in flight, nothing to send.
pub(crate) fn forget_positions(qp: &mut Qp) {
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

/// Removes a queue pair's bytes in flight from the window.
pub(crate) fn forget(qp: &mut Qp, scheduler: &mut Scheduler) {
    scheduler.acknowledged(qp.req.flight);
    qp.req.flight = 0;
}

/// Raises the event for a drained send queue if the queue pair is draining (SQD) and nothing is in
/// flight.
pub(crate) fn report_drained<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    if qp.req.draining && qp.is_drained() {
        qp.req.draining = false;
        if qp.attr.sq_drained_event {
            env.sink.event(Event::SqDrained(qp.qpn));
        }
    }
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
        SendOp::Flush { .. } => Opcode::Flush,
        SendOp::AtomicWrite { .. } => Opcode::AtomicWrite,
        SendOp::Faulty { opcode, .. } => opcode,
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
