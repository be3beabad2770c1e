//! [`acknowledge`]: responses, which are acknowledgements, data that was read, refusals.
//!
//! The message sequence number that responses carry is not looked at: with sequence numbers of packets alone, nothing is
//! lost, and peers count it differently.

use super::{answered_inline, finish, is_reliable, mtu, payload, retry};
use crate::engine::control::World;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::types::{Service, State, Status};
use crate::wire::aeth::Kind;
use crate::wire::{self, Headers, NakCode, Psn};

/// Takes in a response: an acknowledgement, or data that was read.
///
/// # References
/// IBTA 9.7.5 (responses), 9.7.6 (what a requester does with them); 9.6.1 (what is dropped without a word)
pub(crate) fn acknowledge<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    headers: &Headers,
    payload: &[u8],
) {
    let opcode = headers.bth.opcode;
    let service = if qp.service == Service::Rc { wire::Service::Rc } else { wire::Service::Xrc };
    let listens = is_reliable(qp) && matches!(qp.state, State::Rts | State::Sqd);
    if !listens || opcode.service() != service || !same_partition(headers.bth.pkey, qp.attr.pkey) {
        return;
    }
    let psn = headers.bth.psn;
    // IBTA 9.7.6: ghosts and duplicates.
    if !retry::is_outstanding(qp, psn) {
        return;
    }
    if opcode.is_rdma_read_response() {
        if reach(qp, world, psn) {
            read_response(qp, world, headers, payload);
        }
    } else if opcode.has_atomic_ack_eth() {
        if reach(qp, world, psn)
            && let Some(value) = headers.atomic_ack_eth
        {
            atomic_response(qp, world, value.orig);
        }
    } else if let Some(aeth) = headers.aeth {
        match aeth.syndrome.decode() {
            Kind::Ack(_) => {
                advance(qp, world, psn.next());
            }
            Kind::RnrNak(timer) => {
                if reach(qp, world, psn) {
                    retry::not_ready(qp, world, timer.nanoseconds());
                }
            }
            Kind::Nak(code) => refused(qp, world, psn, code),
            Kind::Reserved(_) => {}
        }
    }
}

/// IBTA 10.9.3: keys match but for the membership bit.
fn same_partition(theirs: u16, ours: u16) -> bool {
    ours == 0 || (theirs ^ ours) & 0x7fff == 0
}

/// Everything before `psn` was acknowledged by what came for `psn`. False: a response before it is missing, or the queue
/// pair failed.
fn reach<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, psn: Psn) -> bool {
    psn == qp.req.una || advance(qp, world, psn)
}

/// Everything before `end` was acknowledged: work requests end. False: not all, since data that was read is missing.
///
/// # References
/// IBTA 9.7.5.1.2 (coalesced acknowledgements), 9.7.6.1 (a response that is missing: retried)
fn advance<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, end: Psn) -> bool {
    let mtu = mtu(qp);
    let (mut quiet, mut cost, mut missing) = (0, 0, false);
    let before = qp.req.una;
    while qp.req.una != end {
        let Some(wqe) = qp.sq.get(qp.sq.tail()) else { break };
        if wqe.psns == 0 {
            finish::succeed(qp, world, &mut quiet);
            continue;
        }
        if wqe.wants_data() {
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
        finish::succeed(qp, world, &mut quiet);
    }
    let moved = qp.req.una != before;
    conclude(qp, world, moved.then_some(cost), quiet);
    if missing && !qp.sq.is_empty() {
        // Once: what comes behind a missing response says the same again.
        if !qp.req.implied && qp.req.una != qp.req.next {
            qp.req.implied = true;
            retry::retry(qp, world);
        }
        return false;
    }
    matches!(qp.state, State::Rts | State::Sqd)
}

/// Ends what sends nothing and has come to the front, catches up, and tells what has happened.
fn conclude<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    progress: Option<u64>,
    mut quiet: u32,
) {
    while qp.sq.tail() != qp.req.fresh && qp.sq.get(qp.sq.tail()).is_some_and(|wqe| wqe.psns == 0) {
        finish::succeed(qp, world, &mut quiet);
    }
    let tail = qp.sq.tail();
    let req = &mut qp.req;
    // Acknowledged before it was sent again.
    if req.next.is_before(req.una) {
        req.next = req.una;
        req.cursor = tail;
    } else if req.cursor.wrapping_sub(tail) > u32::MAX / 2 {
        req.cursor = tail;
    }
    if let Some(cost) = progress {
        retry::progress(qp, world, cost);
    }
    finish::settle(qp, world, quiet);
    finish::fail_halted(qp, world);
}

/// Refused.
///
/// # References
/// IBTA 9.7.5.2 (NAK codes), 9.9.2 (how a requester ends)
fn refused<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, psn: Psn, code: NakCode) {
    if !reach(qp, world, psn) {
        return;
    }
    let status = match code {
        NakCode::PSN_SEQUENCE_ERROR => {
            // Nothing of what it speaks of was sent since going back: it is about the time before.
            if qp.req.una != qp.req.next {
                retry::retry(qp, world);
            }
            return;
        }
        NakCode::INVALID_REQUEST => Status::RemoteInvalidRequest,
        NakCode::REMOTE_ACCESS_ERROR => Status::RemoteAccess,
        NakCode::REMOTE_OPERATIONAL_ERROR => Status::RemoteOperation,
        _ => return,
    };
    finish::fail_oldest(qp, world, status);
}

/// A packet of a read response, which `una` waits for.
///
/// # References
/// IBTA 9.7.5 (their opcodes and lengths), 9.9.2 (bad responses)
fn read_response<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    headers: &Headers,
    data: &[u8],
) {
    let (mtu, opcode, psn, position) = (mtu(qp), headers.bth.opcode, qp.req.una, qp.sq.tail());
    let Some(wqe) = qp.sq.get(position).copied() else { return };
    if !wqe.is_read() {
        finish::fail_oldest(qp, world, Status::BadResponse);
        return;
    }
    let nth = psn.offset_from(wqe.first_psn);
    let piece = wqe.piece.max(1);
    let begins = nth % piece == 0;
    let ends = nth + 1 >= wqe.psns || (nth + 1) % piece == 0;
    let offset = nth.saturating_mul(mtu).min(wqe.length);
    let expected = (wqe.length - offset).min(mtu) as usize;
    // A response to what was asked for again begins in the middle, one to what was asked for first goes on there.
    let well_begun = match (begins, psn == qp.req.resumed) {
        (true, _) => opcode.starts_message(),
        (false, true) => true,
        (false, false) => !opcode.starts_message(),
    };
    if !well_begun || opcode.ends_message() != ends || data.len() != expected {
        finish::fail_oldest(qp, world, Status::BadResponse);
        return;
    }
    let inline = answered_inline(qp, &wqe, wqe.psns);
    if !inline && let Err(status) = payload::spread(qp, world, position, offset, data) {
        finish::fail_oldest(qp, world, status);
        return;
    }
    qp.req.una = psn.next();
    if ends {
        qp.req.reads = qp.req.reads.saturating_sub(1);
    }
    let mut quiet = 0;
    if inline {
        finish::succeed_with(qp, world, &mut quiet, data);
    } else if nth + 1 >= wqe.psns {
        finish::succeed(qp, world, &mut quiet);
    }
    conclude(qp, world, Some(retry::cost(&wqe, mtu, nth, nth + 1)), quiet);
}

/// What an atomic, which `una` waits for, has found.
///
/// # References
/// IBTA 9.4.5 (atomics), 9.5.3
fn atomic_response<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, found: u64) {
    let (mtu, position) = (mtu(qp), qp.sq.tail());
    let Some(wqe) = qp.sq.get(position).copied() else { return };
    if !wqe.is_atomic() {
        finish::fail_oldest(qp, world, Status::BadResponse);
        return;
    }
    let (inline, found) = (answered_inline(qp, &wqe, wqe.psns), found.to_ne_bytes());
    if !inline && let Err(status) = payload::spread(qp, world, position, 0, &found) {
        finish::fail_oldest(qp, world, status);
        return;
    }
    qp.req.una += 1;
    qp.req.reads = qp.req.reads.saturating_sub(1);
    let mut quiet = 0;
    if inline {
        finish::succeed_with(qp, world, &mut quiet, &found);
    } else {
        finish::succeed(qp, world, &mut quiet);
    }
    conclude(qp, world, Some(retry::cost(&wqe, mtu, 0, 1)), quiet);
}
