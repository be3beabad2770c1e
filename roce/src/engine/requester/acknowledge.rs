//! [`acknowledge`]: handles acknowledgements, read responses, atomic results and NAKs.
//!
//! The message sequence number in responses is ignored. Packet sequence numbers suffice, and
//! implementations count messages differently.

use super::{fail, payload, retry};
use crate::engine::completion::send;
use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::queue::Wqe;
use crate::engine::types::{Service, Stall, State, Status};
use crate::wire::aeth::Kind;
use crate::wire::{self, Headers, NakCode, Opcode, Psn};

/// Handles a response packet.
///
/// # References
/// IBTA 9.7.5 (responses), 9.7.6 (requester behaviour), 9.6.1 (packets that are dropped silently)
pub(crate) fn acknowledge<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    headers: &Headers,
    payload: &[u8],
) {
    let opcode = headers.bth.opcode;
    let service = if qp.service == Service::Rc { wire::Service::Rc } else { wire::Service::Xrc };
    let listens = qp.is_reliable() && matches!(qp.state, State::Rts | State::Sqd);
    if !listens || opcode.service() != service || !same_partition(headers.bth.pkey, qp.attr.pkey) {
        return;
    }
    let psn = headers.bth.psn;
    // IBTA 9.7.6: ghost and duplicate responses are dropped.
    if !qp.req.is_outstanding(psn) {
        return;
    }
    if opcode.is_rdma_read_response() {
        if reach(qp, env, psn) {
            read_response(qp, env, headers, payload);
        }
    } else if opcode.has_atomic_ack_eth() {
        if reach(qp, env, psn)
            && let Some(value) = headers.atomic_ack_eth
        {
            atomic_response(qp, env, value.orig);
        }
    } else if let Some(aeth) = headers.aeth {
        match aeth.syndrome.decode() {
            Kind::Ack(_) => {
                advance(qp, env, psn.next());
            }
            Kind::RnrNak(timer) => {
                if reach(qp, env, psn) {
                    retry::not_ready(qp, env, timer.nanoseconds());
                }
            }
            Kind::Nak(code) => refused(qp, env, psn, code),
            Kind::Reserved(_) => {}
        }
    }
}

/// Returns whether two partition keys are equal except for the membership bit (IBTA 10.9.3).
fn same_partition(theirs: u16, ours: u16) -> bool {
    ours == 0 || (theirs ^ ours) & 0x7fff == 0
}

/// Treats all packets before `psn` as acknowledged, because a response for `psn` has arrived.
/// Returns false if an earlier response is missing or the queue pair failed.
fn reach<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, psn: Psn) -> bool {
    psn == qp.req.una || advance(qp, env, psn)
}

/// Treats all packets before `end` as acknowledged and completes their work requests. Returns false
/// if an earlier read, atomic, flush or atomic write has no response yet or the queue pair failed.
///
/// # References
/// IBTA 9.7.5.1.2 (coalesced acknowledgements), 9.7.6.1 (a missing response causes a retry)
fn advance<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, end: Psn) -> bool {
    let mtu = qp.send_mtu();
    let (mut quiet, mut cost, mut missing) = (0, 0, false);
    let before = qp.req.una;
    while qp.req.una != end {
        let Some(wqe) = qp.sq.get(qp.sq.tail()) else { break };
        if wqe.psns == 0 {
            send::succeed(qp, env, &mut quiet);
            continue;
        }
        if wqe.wants_response() {
            missing = true;
            break;
        }
        let (done, first) = (qp.req.una.offset_from(wqe.first_psn), wqe.first_psn);
        let upto = end.offset_from(qp.req.una).saturating_add(done);
        if upto < wqe.psns {
            cost += retry::cost(wqe, mtu, done, upto);
            qp.req.una = end;
            break;
        }
        cost += retry::cost(wqe, mtu, done, wqe.psns);
        qp.req.una = first + wqe.psns;
        send::succeed(qp, env, &mut quiet);
    }
    let moved = qp.req.una != before;
    conclude(qp, env, moved.then_some(cost), quiet);
    if missing && !qp.sq.is_empty() {
        // Retries only once, because other responses after the missing one indicate the same loss.
        if !qp.req.implied && qp.req.una != qp.req.next {
            qp.req.implied = true;
            retry::retry(qp, env);
        }
        return false;
    }
    matches!(qp.state, State::Rts | State::Sqd)
}

/// Completes local operations that are now the oldest, advances the positions and records progress.
fn conclude<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    progress: Option<u64>,
    mut quiet: u32,
) {
    while qp.sq.tail() != qp.req.fresh && qp.sq.get(qp.sq.tail()).is_some_and(|wqe| wqe.psns == 0) {
        send::succeed(qp, env, &mut quiet);
    }
    let tail = qp.sq.tail();
    let req = &mut qp.req;
    // The peer acknowledged packets that were about to be resent.
    if req.next.is_before(req.una) {
        req.next = req.una;
        req.cursor = tail;
    } else if req.cursor.wrapping_sub(tail) > u32::MAX / 2 {
        req.cursor = tail;
    }
    if let Some(cost) = progress {
        retry::progress(qp, env, cost);
    }
    send::settle(qp, env, quiet);
    fail::fail_halted(qp, env);
}

/// Handles a NAK for packet `psn`.
///
/// # References
/// IBTA 9.7.5.2 (NAK codes), 9.9.2 (requester errors)
fn refused<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, psn: Psn, code: NakCode) {
    if !reach(qp, env, psn) {
        return;
    }
    let status = match code {
        NakCode::PSN_SEQUENCE_ERROR => {
            // If nothing has been sent since the requester went back, the NAK refers to an earlier
            // transmission.
            if qp.req.una != qp.req.next {
                retry::retry(qp, env);
            }
            return;
        }
        NakCode::INVALID_REQUEST => Status::RemoteInvalidRequest,
        NakCode::REMOTE_ACCESS_ERROR => Status::RemoteAccess,
        NakCode::REMOTE_OPERATIONAL_ERROR => Status::RemoteOperation,
        _ => return,
    };
    fail::fail_oldest(qp, env, status);
}

/// Handles a packet of the read response expected at `una`.
///
/// # References
/// IBTA 9.7.5 (opcodes and lengths), 9.9.2 (bad responses)
fn read_response<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    headers: &Headers,
    data: &[u8],
) {
    let (mtu, opcode, psn, position) = (qp.send_mtu(), headers.bth.opcode, qp.req.una, qp.sq.tail());
    let Some(wqe) = qp.sq.get(position).copied() else { return };
    if wqe.is_placement() {
        placed(qp, env, &wqe, opcode, data);
        return;
    }
    if !wqe.is_read() {
        fail::fail_oldest(qp, env, Status::BadResponse);
        return;
    }
    let nth = psn.offset_from(wqe.first_psn);
    let piece = wqe.piece.max(1);
    let begins = nth % piece == 0;
    let ends = nth + 1 >= wqe.psns || (nth + 1) % piece == 0;
    let offset = nth.saturating_mul(mtu).min(wqe.length);
    let expected = (wqe.length - offset).min(mtu) as usize;
    // The response to a repeated request begins in the middle of the piece. A late response to the
    // original request only continues there.
    let well_begun = match (begins, psn == qp.req.resumed) {
        (true, _) => opcode.starts_message(),
        (false, true) => true,
        (false, false) => !opcode.starts_message(),
    };
    if !well_begun || opcode.ends_message() != ends || data.len() != expected {
        fail::fail_oldest(qp, env, Status::BadResponse);
        return;
    }
    let inline = qp.completes_inline(&wqe, wqe.psns);
    if !inline && let Err(status) = payload::spread(qp, env, position, offset, data) {
        lose(qp, env, wqe.wr_id, offset, status);
        return;
    }
    qp.req.una = psn.next();
    if ends {
        qp.req.reads = qp.req.reads.saturating_sub(1);
    }
    let mut quiet = 0;
    if inline {
        send::succeed_with(qp, env, &mut quiet, data);
    } else if nth + 1 >= wqe.psns {
        send::succeed(qp, env, &mut quiet);
    }
    conclude(qp, env, Some(retry::cost(&wqe, mtu, nth, nth + 1)), quiet);
}

/// Drops a response that cannot be stored. The request is repeated once its memory is present, or
/// the send fails.
#[cold]
fn lose<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    wr_id: u64,
    done: u32,
    status: Status,
) {
    let stall = Stall::Response { wr_id, done };
    if status == Status::LocalProtection && env.sink.postpone(qp.qpn, &stall) {
        retry::go_back(qp, env);
        qp.req.stalled = true;
    } else {
        fail::fail_oldest(qp, env, status);
    }
}

/// Handles the response to the flush or atomic write at `una`: a read response of a single packet
/// without data.
///
/// # References
/// IBTA A19.4.2, A19.5.2
fn placed<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    wqe: &Wqe,
    opcode: Opcode,
    data: &[u8],
) {
    if !opcode.is_only() || !data.is_empty() {
        fail::fail_oldest(qp, env, Status::BadResponse);
        return;
    }
    let mtu = qp.send_mtu();
    qp.req.una += 1;
    qp.req.reads = qp.req.reads.saturating_sub(1);
    let mut quiet = 0;
    send::succeed(qp, env, &mut quiet);
    conclude(qp, env, Some(retry::cost(wqe, mtu, 0, 1)), quiet);
}

/// Handles the result of the atomic at `una`.
///
/// # References
/// IBTA 9.4.5 (atomics), 9.5.3
fn atomic_response<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, found: u64) {
    let (mtu, position) = (qp.send_mtu(), qp.sq.tail());
    let Some(wqe) = qp.sq.get(position).copied() else { return };
    if !wqe.is_atomic() {
        fail::fail_oldest(qp, env, Status::BadResponse);
        return;
    }
    let (inline, found) = (qp.completes_inline(&wqe, wqe.psns), found.to_ne_bytes());
    if !inline && let Err(status) = payload::spread(qp, env, position, 0, &found) {
        lose(qp, env, wqe.wr_id, 0, status);
        return;
    }
    qp.req.una += 1;
    qp.req.reads = qp.req.reads.saturating_sub(1);
    let mut quiet = 0;
    if inline {
        send::succeed_with(qp, env, &mut quiet, &found);
    } else {
        send::succeed(qp, env, &mut quiet);
    }
    conclude(qp, env, Some(retry::cost(&wqe, mtu, 0, 1)), quiet);
}
