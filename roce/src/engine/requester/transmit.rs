//! [`transmit`]: the next packet of the next work request.

use super::{fail, payload, retry};
use crate::engine::completion::send;
use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink, Space, Written, space_for};
use crate::engine::memory_regions::Bind;
use crate::engine::qp::Qp;
use crate::engine::queue::Wqe;
use crate::engine::scheduler::PACKET_COST;
use crate::engine::types::{Access, Path, SendOp, Service, Stall, State, Status};
use crate::wire::opcode::operation;
use crate::wire::packet::pad_for;
use crate::wire::{self, Headers, Opcode, Psn, atomic_eth, bth, deth, ieth, imm, reth, xrceth};

/// The partition key of a queue pair whose key was never set; 0 is not a valid key (IBTA 10.9.2).
/// Its packets carry the key of the default partition.
const NO_PKEY: u16 = 0;

/// The bit of a queue key that selects the sending queue pair's queue key instead (IBTA 11.4.1.1).
const OWN_QKEY: u32 = 1 << 31;

/// The outcome of starting a work request.
enum Start {
    /// The packets of the work request may be sent.
    Packets,
    /// The work request was executed and sends no packet.
    Local,
    /// An earlier work request must complete first.
    Wait,
}

/// Writes the next request packet, if one may be sent now.
pub(crate) fn transmit<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    space: &mut (impl Space + ?Sized),
) -> Option<Written> {
    // This loop terminates because every iteration that does not return moves the cursor forward.
    while has_work(qp) {
        let position = qp.req.cursor;
        if position == qp.req.fresh {
            match start(qp, env, position) {
                Ok(Start::Packets) => {}
                Ok(Start::Local) => {
                    end_local(qp, env);
                    continue;
                }
                Ok(Start::Wait) => {
                    qp.req.waiting = true;
                    return None;
                }
                Err(status) => {
                    fail::halt(qp, env, status);
                    return None;
                }
            }
        }
        let wqe = *qp.sq.get(position)?;
        if wqe.psns == 0 {
            // This local operation was executed before the requester went back.
            qp.req.cursor = position.wrapping_add(1);
            continue;
        }
        if qp.is_reliable() && !admit(qp, env, &wqe) {
            return None;
        }
        let unasked = qp.req.unasked;
        return match emit(qp, env, &wqe, space) {
            Ok(len) => Some(Written { len, qpn: qp.qpn }),
            Err(status) => {
                qp.req.unasked = unasked;
                stop(qp, env, &wqe, status);
                None
            }
        };
    }
    None
}

/// Stops at the work request at the cursor, because its next packet cannot be written. The work
/// request continues once its memory is present, or fails.
#[cold]
fn stop<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, wqe: &Wqe, status: Status) {
    let nth = qp.req.next.offset_from(wqe.first_psn);
    let done = nth.saturating_mul(qp.send_mtu()).min(wqe.length);
    let stall = Stall::Send { wr_id: wqe.wr_id, done };
    if status == Status::LocalProtection && env.sink.postpone(qp.qpn, &stall) {
        qp.req.stalled = true;
    } else {
        fail::halt(qp, env, status);
    }
}

/// Returns whether a request packet may be sent.
#[inline]
pub(crate) fn has_work(qp: &Qp) -> bool {
    let req = &qp.req;
    let last = match qp.state {
        State::Rts => qp.sq.head(),
        // IBTA 10.3.1.5: started work requests continue; no new work request starts.
        State::Sqd => req.fresh,
        _ => return false,
    };
    // A queue pair whose requests have since been acknowledged stays in the list of blocked queue
    // pairs but need not wait.
    let blocked = qp.in_blocked && req.awaits_response();
    let waits = req.waiting || req.stalled || blocked;
    req.cursor != last && !waits && req.halted.is_none() && req.rnr_until.is_none()
}

/// Starts the work request at the cursor.
#[inline]
fn start<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    position: u32,
) -> Result<Start, Status> {
    let Some(wqe) = qp.sq.get(position) else { return Ok(Start::Wait) };
    // IBTA 10.8.3.3: a fenced work request waits for earlier reads and atomics.
    if wqe.flags.fence && qp.req.reads > 0 {
        return Ok(Start::Wait);
    }
    let (length, mtu) = (wqe.length, qp.send_mtu());
    let mut psns = if length <= mtu { 1 } else { length.div_ceil(mtu) };
    let mut piece = 1;
    match wqe.op {
        // Too long only if the path MTU has shrunk since the work request was posted.
        SendOp::Datagram { .. } if length > mtu => return Err(Status::LocalLength),
        SendOp::Read { .. } => {
            may_read(qp, env, position, psns)?;
            let window = u64::from(env.config.window_bytes);
            // One read request may always be sent, so its response must not exceed the space that
            // other queue pairs leave.
            let others = env.scheduler.in_flight.saturating_sub(qp.req.flight);
            piece = read_piece(window, window.saturating_sub(others), mtu, qp.attr.max_rd_atomic);
        }
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => may_read(qp, env, position, 1)?,
        SendOp::Flush { .. } | SendOp::AtomicWrite { .. } if qp.attr.max_rd_atomic == 0 => {
            return Err(Status::LocalQpOperation);
        }
        SendOp::Faulty { status, .. } => return Err(status),
        SendOp::Bind { window, new_rkey, lkey, addr, length, access } => {
            let bind = Bind { window, new_rkey, lkey, addr, length, access };
            qp.has_bound = true;
            env.memory_regions.bind(qp.pd, qp.qpn, &bind).map_err(|_| Status::WindowBind)?;
            psns = 0;
        }
        // IBTA 11.6.2: a memory management operation error, which verbs report as a bind error.
        SendOp::LocalInvalidate { rkey } => {
            env.invalidate(qp.pd, qp.qpn, rkey).map_err(|_| Status::WindowBind)?;
            psns = 0;
        }
        // The memory of a single-packet message is checked when its bytes are gathered.
        _ if psns > 1 => payload::check(qp, env, position, Access::NONE)?,
        _ => {}
    }
    let first_psn = qp.req.next;
    if let Some(wqe) = qp.sq.get_mut(position) {
        wqe.first_psn = first_psn;
        wqe.psns = psns;
        wqe.piece = piece;
    }
    qp.req.fresh = position.wrapping_add(1);
    Ok(if psns == 0 { Start::Local } else { Start::Packets })
}

/// Checks that the attributes allow reads and atomics and that the operation's local memory is
/// writable (IBTA 10.6.3.3).
fn may_read<M: Memory, S: Sink>(
    qp: &Qp,
    env: &Environment<'_, M, S>,
    position: u32,
    psns: u32,
) -> Result<(), Status> {
    if qp.attr.max_rd_atomic == 0 {
        return Err(Status::LocalQpOperation);
    }
    if qp.sq.get(position).is_some_and(|wqe| qp.completes_inline(wqe, psns)) {
        return Ok(());
    }
    payload::check(qp, env, position, Access::LOCAL_WRITE)
}

/// Returns the maximum number of response packets for a single read request, such that the
/// responses fit the window. `room` is the window space that other queue pairs leave. At most one
/// request exceeds the window, even with everything in flight.
fn read_piece(window: u64, room: u64, mtu: u32, max_rd_atomic: u8) -> u32 {
    let share = if max_rd_atomic == 1 { window / 2 } else { window / 4 };
    (share.min(room) / (u64::from(mtu) + PACKET_COST)).clamp(1, u64::from(Psn::HALF / 4)) as u32
}

/// Completes an executed work request that sends no packet, if it is the oldest. Otherwise, the
/// work request completes after all earlier work requests.
fn end_local<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    let position = qp.req.cursor;
    qp.req.cursor = position.wrapping_add(1);
    if qp.sq.tail() == position {
        let mut quiet = 0;
        send::succeed(qp, env, &mut quiet);
        send::settle(qp, env, quiet);
    }
}

/// Returns whether a packet of this work request may be sent now. If not, records the condition to
/// wait for.
#[inline]
fn admit<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>, wqe: &Wqe) -> bool {
    let req = &mut qp.req;
    // IBTA 9.7.2: the window of outstanding packets is limited so that old and new sequence numbers
    // can be distinguished.
    let span = req.next.offset_from(req.una) + wqe.piece.max(1);
    // IBTA 9.4.4, 9.7.2: outstanding reads and atomics are limited; A19: also flushes and atomic
    // writes.
    let readable = !wqe.wants_response() || req.reads < u32::from(qp.attr.max_rd_atomic);
    if span >= Psn::HALF || !readable {
        req.waiting = true;
        return false;
    }
    // A queue pair with nothing in flight does not wait for other queue pairs, because their peers
    // may be gone.
    if !req.awaits_response() {
        return true;
    }
    // The window is checked before the queue pair's own share. A queue pair with much in flight
    // then also waits in the common queue for free space.
    if env.scheduler.in_flight >= u64::from(env.config.window_bytes) {
        env.scheduler.block(qp);
        return false;
    }
    req.waiting = req.flight >= retry::part(req, env.config);
    !req.waiting
}

/// Writes the packet with sequence number `next` and advances the positions.
#[inline]
fn emit<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    wqe: &Wqe,
    space: &mut (impl Space + ?Sized),
) -> Result<usize, Status> {
    let (position, psn) = (qp.req.cursor, qp.req.next);
    let mtu = qp.send_mtu();
    let nth = psn.offset_from(wqe.first_psn);
    let offset = nth.saturating_mul(mtu).min(wqe.length);
    let left = wqe.length - offset;
    // The number of sequence numbers that the packet uses, and the number of its payload bytes.
    let (psns, carried) = if wqe.is_read() {
        let piece = wqe.piece.max(1);
        if nth % piece != 0 {
            qp.req.resumed = psn;
        }
        ((piece - nth % piece).min(wqe.psns.saturating_sub(nth)).max(1), 0)
    } else if wqe.is_atomic() {
        (1, 0)
    } else {
        (1, left.min(mtu))
    };
    let (first, last) = (nth == 0, nth + psns >= wqe.psns);
    let cost = retry::cost(wqe, mtu, nth, nth + psns);
    let ack_req = qp.is_reliable() && requests_ack(qp, env, last, carried, cost);

    let (operation, solicits) = operation(&wqe.op, first, last);
    let mut headers = Headers::new(bth::Repr {
        se: wqe.flags.solicited && solicits,
        pad_cnt: pad_for(carried as usize),
        ack_req,
        ..bth::Repr::new(Opcode::new(service(qp.service), operation), qp.attr.dest_qpn, psn)
    });
    if qp.attr.pkey != NO_PKEY {
        headers.bth.pkey = qp.attr.pkey;
    }
    if qp.service == Service::XrcInitiator {
        headers.xrceth = Some(xrceth::Repr { xrcsrq: wqe.remote_srq });
    }
    let path = extend(&mut headers, qp, wqe, first, last, offset, left.min(psns.saturating_mul(mtu)));
    let buf = space_for(space, &path, headers.bth.dest_qp);
    let at = headers.emit(buf);
    let end = at + carried as usize;
    // The caller's buffer is too short. Nothing has changed yet.
    let room = buf.get_mut(at..end).filter(|_| at > 0).ok_or(Status::General)?;
    match wqe.op {
        SendOp::AtomicWrite { data, .. } => room.copy_from_slice(&data),
        _ => payload::gather(qp, env, position, offset, room)?,
    }
    let len = end + usize::from(headers.bth.pad_cnt);
    buf.get_mut(end..len).ok_or(Status::General)?.fill(0);

    let req = &mut qp.req;
    req.next += psns;
    if last {
        req.cursor = position.wrapping_add(1);
    }
    if !req.max.is_after(req.next) {
        req.max = req.next;
    }
    if qp.is_reliable() {
        retry::sent(qp, env, wqe, cost);
    } else {
        qp.req.una = qp.req.next;
        if last {
            // IBTA 9.8.2, 9.8.3: a send of an unreliable service completes when its last packet has
            // been sent.
            let mut quiet = 0;
            send::succeed(qp, env, &mut quiet);
            send::settle(qp, env, quiet);
        }
    }
    Ok(len)
}

/// Returns whether this packet requests an acknowledgement. That applies to the last packet of a
/// message, to a packet after every [`Config::ack_every`](crate::engine::Config::ack_every) bytes
/// and to a packet that fills the window. Without the last of these, no acknowledgement would free
/// space again.
///
/// # References
/// IBTA 9.7.5.1.2
#[inline]
fn requests_ack<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &Environment<'_, M, S>,
    last: bool,
    carried: u32,
    cost: u64,
) -> bool {
    let req = &mut qp.req;
    let unasked = req.unasked.saturating_add(carried);
    let ask = last
        || unasked >= env.config.ack_every
        || req.flight + cost >= retry::part(req, env.config)
        || env.scheduler.in_flight + cost >= u64::from(env.config.window_bytes)
        || req.next.offset_from(req.una) + 2 >= Psn::HALF;
    req.unasked = if ask { 0 } else { unasked };
    ask
}

/// Sets the extended headers and returns the path of the packet.
#[inline]
fn extend(
    headers: &mut Headers,
    qp: &Qp,
    wqe: &Wqe,
    first: bool,
    last: bool,
    offset: u32,
    span: u32,
) -> Path {
    match wqe.op {
        SendOp::Send { imm } if last => headers.imm = imm.map(|imm_data| imm::Repr { imm_data }),
        SendOp::SendInvalidate { rkey } if last => headers.ieth = Some(ieth::Repr { rkey }),
        SendOp::Write { addr, rkey, imm } => {
            if first {
                headers.reth = Some(reth::Repr { va: addr, rkey, dmalen: wqe.length });
            }
            if last {
                headers.imm = imm.map(|imm_data| imm::Repr { imm_data });
            }
        }
        SendOp::Read { addr, rkey } => {
            let va = addr.wrapping_add(u64::from(offset));
            headers.reth = Some(reth::Repr { va, rkey, dmalen: span });
        }
        SendOp::CompareSwap { addr, rkey, compare, swap } => {
            headers.atomic_eth = Some(atomic_eth::Repr { va: addr, rkey, swap_add: swap, compare });
        }
        SendOp::FetchAdd { addr, rkey, add } => {
            headers.atomic_eth = Some(atomic_eth::Repr { va: addr, rkey, swap_add: add, compare: 0 });
        }
        SendOp::Flush { addr, rkey, length, feth } => {
            headers.feth = Some(feth);
            headers.reth = Some(reth::Repr { va: addr, rkey, dmalen: length });
        }
        SendOp::AtomicWrite { addr, rkey, .. } => {
            headers.reth = Some(reth::Repr { va: addr, rkey, dmalen: wqe.length });
        }
        SendOp::Datagram { to, imm } => {
            headers.bth.dest_qp = to.qpn;
            let qkey = if to.qkey & OWN_QKEY != 0 { qp.attr.qkey } else { to.qkey };
            headers.deth = Some(deth::Repr { qkey, src_qp: qp.source });
            headers.imm = imm.map(|imm_data| imm::Repr { imm_data });
            return to.path;
        }
        _ => {}
    }
    qp.attr.path
}

fn service(service: Service) -> wire::Service {
    match service {
        Service::Rc => wire::Service::Rc,
        Service::Uc => wire::Service::Uc,
        Service::Ud => wire::Service::Ud,
        Service::XrcInitiator | Service::XrcTarget => wire::Service::Xrc,
    }
}

/// Returns the operation of a packet. Also returns whether the packet consumes a receive and may
/// thus solicit an event (IBTA 9.2.3).
#[inline]
fn operation(op: &SendOp, first: bool, last: bool) -> (u8, bool) {
    use operation::*;
    match op {
        SendOp::Send { imm } | SendOp::Datagram { imm, .. } => match (first, last, imm) {
            (true, true, None) => (SEND_ONLY, true),
            (true, true, Some(_)) => (SEND_ONLY_WITH_IMMEDIATE, true),
            (false, true, None) => (SEND_LAST, true),
            (false, true, Some(_)) => (SEND_LAST_WITH_IMMEDIATE, true),
            (true, false, _) => (SEND_FIRST, false),
            (false, false, _) => (SEND_MIDDLE, false),
        },
        SendOp::SendInvalidate { .. } => match (first, last) {
            (true, true) => (SEND_ONLY_WITH_INVALIDATE, true),
            (false, true) => (SEND_LAST_WITH_INVALIDATE, true),
            (true, false) => (SEND_FIRST, false),
            (false, false) => (SEND_MIDDLE, false),
        },
        SendOp::Write { imm, .. } => match (first, last, imm) {
            (true, true, None) => (RDMA_WRITE_ONLY, false),
            (true, true, Some(_)) => (RDMA_WRITE_ONLY_WITH_IMMEDIATE, true),
            (false, true, None) => (RDMA_WRITE_LAST, false),
            (false, true, Some(_)) => (RDMA_WRITE_LAST_WITH_IMMEDIATE, true),
            (true, false, _) => (RDMA_WRITE_FIRST, false),
            (false, false, _) => (RDMA_WRITE_MIDDLE, false),
        },
        SendOp::Read { .. } => (RDMA_READ_REQUEST, false),
        SendOp::CompareSwap { .. } => (COMPARE_SWAP, false),
        SendOp::Flush { .. } => (FLUSH, false),
        SendOp::AtomicWrite { .. } => (ATOMIC_WRITE, false),
        // The other operations send no packet.
        SendOp::FetchAdd { .. }
        | SendOp::Bind { .. }
        | SendOp::LocalInvalidate { .. }
        | SendOp::Faulty { .. } => (FETCH_ADD, false),
    }
}
