//! The completion of receives.

use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::{Message, Qp, TakenRecv};
use crate::engine::types::{Completion, Event, Opcode, Status};

/// Completes the receive in use, if any.
#[inline]
pub(crate) fn complete<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    completion: Completion,
) {
    let Some(taken) = end(qp, env) else { return };
    env.complete(taken.cq, &Completion { wr_id: taken.wr_id, ..completion });
}

/// Completes the receive in use as [`complete`] does. The completion also carries `data`.
pub(crate) fn complete_with<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    completion: Completion,
    data: &[u8],
) {
    let Some(taken) = end(qp, env) else { return };
    env.complete_with(taken.cq, &Completion { wr_id: taken.wr_id, ..completion }, data);
}

/// Releases and returns the receive in use, and removes it from the queue pair's own queue. A
/// receive from a shared queue has already left that queue.
#[inline]
fn end<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) -> Option<TakenRecv> {
    let taken = qp.resp.current.release(env.srqs)?;
    if taken.copied.is_none() {
        qp.rq.pop();
        env.sink.retire_recv(qp.qpn, 1);
    }
    Some(taken)
}

/// Returns the completion of a receive with `status` and all other fields empty.
#[inline]
pub(crate) fn completion(qp: &Qp, status: Status) -> Completion {
    Completion {
        wr_id: 0,
        status,
        opcode: Opcode::Recv,
        qpn: qp.qpn,
        byte_len: 0,
        imm: None,
        invalidated: None,
        src_qpn: 0,
        grh: false,
        // IBTA 11.4.2.2: a failure also wakes programs that wait only for solicited completions.
        solicited: status != Status::Success,
        sl: 0,
        slid: 0,
        vendor_err: 0,
    }
}

/// Flushes every posted receive.
///
/// # References
/// IBTA 10.3.1 (error state), 10.2.9 (with a shared queue: the queue pair no longer takes receives)
pub(crate) fn flush<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    qp.resp.message = Message::None;
    qp.resp.responses.stop();
    let flushed = completion(qp, Status::Flushed);
    complete(qp, env, flushed);
    while let Some(posted) = qp.rq.front() {
        let completion = Completion { wr_id: posted.wr_id, ..flushed };
        qp.rq.pop();
        env.sink.retire_recv(qp.qpn, 1);
        env.complete(qp.recv_cq, &completion);
    }
    if qp.srq.is_some() {
        env.sink.event(Event::LastWqeReached(qp.qpn));
    }
}
