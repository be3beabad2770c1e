//! New requests: validation and execution.
//!
//! The checks run in this order: order of operations, length, operation, access rights, resources,
//! key. Receives are checked last, because only a request that would otherwise succeed may be
//! postponed.
//!
//! # References
//! IBTA 9.7.4.1 (validation), 9.4 (operations), annexes A14 (XRC), A19 (flush, atomic write)

use super::receive;
use super::refuse::Refusal;
use crate::engine::completion::recv;
use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::{MAX_MESSAGE, Message, Qp, ResourceOp, Write, packets};
use crate::engine::scatter::SgeError;
use crate::engine::types::{Access, Completion, Opcode, Pd, Service, SrqId, Stall, Status};
use crate::wire::{Headers, feth, opcode::operation, packet::pad_for, reth};

/// The context of a request: the protection domain for its keys, and the shared receive queue to
/// take receives from.
#[derive(Clone, Copy)]
struct Scope {
    pd: Pd,
    srq: Option<SrqId>,
}

/// Executes the expected packet. Returns the number of sequence numbers that it uses.
#[inline]
pub(super) fn execute<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    headers: &Headers,
    payload: &[u8],
) -> Result<u32, Refusal> {
    let opcode = headers.bth.opcode;
    // IBTA 9.7.4.1.3: a message begins only after the previous message has ended, and all its
    // packets have the same operation.
    let fits = match qp.resp.message {
        Message::None => opcode.starts_message(),
        Message::Send => opcode.is_send() && !opcode.starts_message(),
        Message::Write(_) => opcode.is_rdma_write() && !opcode.starts_message(),
    };
    if !fits {
        return Err(Refusal::Invalid);
    }
    check_length(qp, headers, payload.len())?;
    let scope = scope(qp, env, headers)?;
    if opcode.is_send() {
        return send(qp, env, scope, headers, payload);
    }
    if opcode.is_rdma_write() {
        return write(qp, env, scope, headers, payload)
            .inspect_err(|refusal| take_unplaced(qp, env, scope, headers, *refusal));
    }
    match opcode.operation() {
        operation::RDMA_READ_REQUEST => read(qp, env, scope, headers),
        operation::COMPARE_SWAP | operation::FETCH_ADD => atomic(qp, env, scope, headers),
        operation::FLUSH => flush(qp, env, scope, headers),
        operation::ATOMIC_WRITE => atomic_write(qp, env, scope, headers, payload),
        // IBTA 9.7.4.1: the operation is not supported.
        _ => Err(Refusal::Invalid),
    }
}

/// Checks that every packet is full except the last of its message, and that the last of several
/// packets is not empty (IBTA 9.7.4.1).
#[inline]
fn check_length(qp: &Qp, headers: &Headers, len: usize) -> Result<(), Refusal> {
    let (opcode, mtu) = (headers.bth.opcode, qp.recv_mtu() as usize);
    let right = if !opcode.has_payload() {
        len == 0
    } else if opcode.is_only() {
        len <= mtu
    } else if opcode.is_last() {
        (1..=mtu).contains(&len)
    } else {
        len == mtu
    };
    if right && headers.bth.pad_cnt == pad_for(len) { Ok(()) } else { Err(Refusal::Invalid) }
}

/// Returns the scope of a request. An XRC request names a shared receive queue in the target's XRC
/// domain. The protection domain of this queue then applies (IBTA A14).
#[inline]
fn scope<M: Memory, S: Sink>(
    qp: &Qp,
    env: &Environment<'_, M, S>,
    headers: &Headers,
) -> Result<Scope, Refusal> {
    if qp.service != Service::XrcTarget {
        return Ok(Scope { pd: qp.pd, srq: qp.srq });
    }
    let number = headers.xrceth.ok_or(Refusal::Invalid)?.xrcsrq;
    match env.srqs.get(number) {
        Some(srq) if srq.xrc_domain.is_some() && srq.xrc_domain == qp.xrc_domain => {
            Ok(Scope { pd: srq.pd, srq: Some(SrqId(number)) })
        }
        _ => Err(Refusal::Invalid),
    }
}

/// Executes a packet of a send. The first packet takes a receive (IBTA 9.4.1).
fn send<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    scope: Scope,
    headers: &Headers,
    payload: &[u8],
) -> Result<u32, Refusal> {
    let opcode = headers.bth.opcode;
    let mut payload = payload;
    if opcode.starts_message() {
        if !receive::take_for_send(qp, env, scope.srq, payload, opcode.is_only()) {
            return Err(Refusal::NotReady);
        }
        payload = payload.get(qp.resp.current.header()..).unwrap_or_default();
    }
    let len = payload.len();
    let inline = len <= qp.inline_completion.responder as usize
        && len > 0
        && opcode.is_only()
        && qp.resp.current.header() == 0;
    let put = if inline { receive::count(qp, len) } else { receive::put(qp, env, payload) };
    put.map_err(|error| match error {
        SgeError::Length => Refusal::ReceiveTooShort,
        SgeError::Protection => forbidden(qp, env, len),
    })?;
    if !opcode.ends_message() {
        qp.resp.message = Message::Send;
        return Ok(1);
    }
    qp.resp.message = Message::None;
    // IBTA 9.4.1: the key is invalidated before the receive completes.
    if let Some(ieth) = headers.ieth {
        env.invalidate(scope.pd, qp.qpn, ieth.rkey).map_err(|_| Refusal::NotInvalidated)?;
    }
    let completion = Completion {
        byte_len: qp.resp.current.received() as u32,
        imm: headers.imm.map(|imm| imm.imm_data),
        invalidated: headers.ieth.map(|ieth| ieth.rkey),
        solicited: headers.bth.se,
        ..recv::completion(qp, Status::Success)
    };
    if inline {
        recv::complete_with(qp, env, completion, payload);
    } else {
        recv::complete(qp, env, completion);
    }
    qp.resp.count_message();
    Ok(1)
}

/// Executes a packet of a write. The whole write is checked at its first packet (IBTA 9.4.3). With
/// immediate data, the last packet takes a receive.
fn write<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    scope: Scope,
    headers: &Headers,
    payload: &[u8],
) -> Result<u32, Refusal> {
    let opcode = headers.bth.opcode;
    let mut write = match qp.resp.message {
        Message::Write(write) => write,
        _ => begin_write(qp, env, scope, headers)?,
    };
    // IBTA 9.7.4.1: the packet lengths must add up to the announced length.
    let len = payload.len() as u32;
    if len > write.left || opcode.ends_message() != (len == write.left) {
        return Err(Refusal::Invalid);
    }
    if opcode.has_imm() && !receive::available(qp, env.srqs, scope.srq) {
        return Err(Refusal::NotReady);
    }
    if len > 0 {
        // The key may have been invalidated since the message began.
        let (region, offset) = env
            .memory_regions
            .remote(scope.pd, qp.qpn, write.rkey, write.addr, u64::from(len), Access::REMOTE_WRITE)
            .ok_or(Refusal::Access)?;
        if env.memory.write(region, offset, payload).is_err() {
            let Write { rkey, addr, left, .. } = write;
            return Err(unreachable(qp, env, Stall::Remote { rkey, addr, left, packet: len, write: true }));
        }
        write.addr = write.addr.wrapping_add(u64::from(len));
        write.left -= len;
    }
    if !opcode.ends_message() {
        qp.resp.message = Message::Write(write);
        return Ok(1);
    }
    qp.resp.message = Message::None;
    if let Some(imm) = headers.imm
        && receive::take(qp, env, scope.srq)
    {
        let completion = Completion {
            opcode: Opcode::RecvWriteImm,
            byte_len: write.length,
            imm: Some(imm.imm_data),
            solicited: headers.bth.se,
            ..recv::completion(qp, Status::Success)
        };
        recv::complete(qp, env, completion);
    }
    qp.resp.count_message();
    Ok(1)
}

/// Takes the receive for a write with immediate data whose memory cannot be accessed, so that the
/// receive completes with the error (IBTA 11.6.2, local access error). On the unreliable service,
/// the message is dropped instead.
#[cold]
fn take_unplaced<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    scope: Scope,
    headers: &Headers,
    refusal: Refusal,
) {
    let is_of_memory = matches!(refusal, Refusal::Access | Refusal::Unreachable);
    if is_of_memory && headers.bth.opcode.has_imm() && qp.service != Service::Uc {
        // If there is no receive, only the event reports the error.
        let _ = receive::take(qp, env, scope.srq);
    }
}

fn begin_write<M: Memory, S: Sink>(
    qp: &Qp,
    env: &Environment<'_, M, S>,
    scope: Scope,
    headers: &Headers,
) -> Result<Write, Refusal> {
    let reth = headers.reth.ok_or(Refusal::Invalid)?;
    check_remote(qp, env, scope, reth.rkey, reth.va, reth.dmalen, Access::REMOTE_WRITE)?;
    Ok(Write { rkey: reth.rkey, addr: reth.va, left: reth.dmalen, length: reth.dmalen })
}

/// Checks that both the queue pair and the key allow the access (IBTA 9.7.4.1). A request of length
/// 0 accesses no memory, so its key is not checked.
fn check_remote<M: Memory, S: Sink>(
    qp: &Qp,
    env: &Environment<'_, M, S>,
    scope: Scope,
    rkey: u32,
    addr: u64,
    length: u32,
    need: Access,
) -> Result<(), Refusal> {
    if !qp.attr.access.contains(need) {
        return Err(Refusal::Access);
    }
    if u64::from(length) > MAX_MESSAGE {
        return Err(Refusal::Invalid);
    }
    let allowed =
        || env.memory_regions.remote(scope.pd, qp.qpn, rkey, addr, u64::from(length), need).is_some();
    if length == 0 || allowed() { Ok(()) } else { Err(Refusal::Access) }
}

/// Accepts a read request. The memory is read when the response packets are sent (IBTA 9.4.4).
fn read<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    scope: Scope,
    headers: &Headers,
) -> Result<u32, Refusal> {
    let reth = headers.reth.ok_or(Refusal::Invalid)?;
    // IBTA 9.7.4.1: the requester has more reads and atomics outstanding than the responder can
    // store.
    if !qp.resp.responses.has_room() {
        return Err(Refusal::Invalid);
    }
    check_remote(qp, env, scope, reth.rkey, reth.va, reth.dmalen, Access::REMOTE_READ)?;
    check_present(qp, env, scope, &reth)?;
    let msn = qp.resp.count_message();
    let packets = packets(reth.dmalen, qp.recv_mtu());
    let op = ResourceOp::Read { pd: scope.pd, rkey: reth.rkey, addr: reth.va, length: reth.dmalen };
    qp.resp.responses.push(headers.bth.psn, packets, msn, op);
    Ok(packets)
}

/// Checks that the memory of a read request is present. If not, the request is postponed or
/// rejected.
fn check_present<M: Memory, S: Sink>(
    qp: &Qp,
    env: &mut Environment<'_, M, S>,
    scope: Scope,
    reth: &reth::Repr,
) -> Result<(), Refusal> {
    let (addr, left, rkey) = (reth.va, reth.dmalen, reth.rkey);
    let found = env.memory_regions.remote(scope.pd, qp.qpn, rkey, addr, left.into(), Access::REMOTE_READ);
    let Some((region, offset)) = found.filter(|_| left > 0) else { return Ok(()) };
    let stall = Stall::Remote { rkey, addr, left, packet: 0, write: false };
    match env.memory.present(region, offset, left.into()) {
        Ok(()) => Ok(()),
        Err(_) => Err(unreachable(qp, env, stall)),
    }
}

/// Returns the reason for rejecting or postponing a message whose receive may not be written.
#[cold]
fn forbidden<M: Memory, S: Sink>(qp: &Qp, env: &mut Environment<'_, M, S>, packet: usize) -> Refusal {
    let Some(taken) = &qp.resp.current.taken else { return Refusal::ReceiveForbidden };
    let (wr_id, srq, done) = (taken.wr_id, taken.srq, taken.received as u32);
    let stall = Stall::Receive { wr_id, srq, done, packet: packet as u32 };
    if env.sink.postpone(qp.qpn, &stall) { Refusal::NotReady } else { Refusal::ReceiveForbidden }
}

/// Returns the reason for rejecting or postponing a request whose memory is unreachable.
#[cold]
fn unreachable<M: Memory, S: Sink>(qp: &Qp, env: &mut Environment<'_, M, S>, stall: Stall) -> Refusal {
    if env.sink.postpone(qp.qpn, &stall) { Refusal::NotReady } else { Refusal::Unreachable }
}

/// Executes an atomic exactly once, on 8 aligned bytes (IBTA 9.4.5). The result is kept for
/// duplicates.
fn atomic<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    scope: Scope,
    headers: &Headers,
) -> Result<u32, Refusal> {
    let eth = headers.atomic_eth.ok_or(Refusal::Invalid)?;
    if !qp.attr.access.contains(Access::REMOTE_ATOMIC) {
        return Err(Refusal::Access);
    }
    if !qp.resp.responses.has_room() || eth.va % 8 != 0 {
        return Err(Refusal::Invalid);
    }
    let (region, offset) = env
        .memory_regions
        .remote(scope.pd, qp.qpn, eth.rkey, eth.va, 8, Access::REMOTE_ATOMIC)
        .ok_or(Refusal::Access)?;
    let found = if headers.bth.opcode.operation() == operation::COMPARE_SWAP {
        env.memory.compare_swap(region, offset, eth.compare, eth.swap_add)
    } else {
        env.memory.fetch_add(region, offset, eth.swap_add)
    };
    let Ok(orig) = found else {
        let stall = Stall::Remote { rkey: eth.rkey, addr: eth.va, left: 8, packet: 8, write: true };
        return Err(unreachable(qp, env, stall));
    };
    let msn = qp.resp.count_message();
    qp.resp.responses.push(headers.bth.psn, 1, msn, ResourceOp::Atomic { orig });
    Ok(1)
}

/// Executes a flush (IBTA A19.4). Both the queue pair and the key must allow each requested
/// placement type. Requests execute in order, so every earlier write is already in memory. Even an
/// empty range is checked. A flush of the whole region ignores the range.
fn flush<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    scope: Scope,
    headers: &Headers,
) -> Result<u32, Refusal> {
    let (feth, reth) = headers.feth.zip(headers.reth).ok_or(Refusal::Invalid)?;
    if !feth.is_valid() {
        return Err(Refusal::Invalid);
    }
    let persistent = feth.plt & feth::PLT_PERSISTENCE != 0;
    let mut need = if persistent { Access::FLUSH_PERSISTENT } else { Access::NONE };
    if feth.plt & feth::PLT_GLOBAL_VISIBILITY != 0 {
        need = need | Access::FLUSH_GLOBAL;
    }
    if !qp.attr.access.contains(need) {
        return Err(Refusal::Access);
    }
    if !qp.resp.responses.has_room() {
        return Err(Refusal::Invalid);
    }
    let (addr, length) = match feth.sel {
        feth::SEL_RANGE => (reth.va, reth.dmalen.into()),
        _ => env.memory_regions.extent(reth.rkey).ok_or(Refusal::Access)?,
    };
    let (region, offset) =
        env.memory_regions.remote(scope.pd, qp.qpn, reth.rkey, addr, length, need).ok_or(Refusal::Access)?;
    env.memory.flush(region, offset, length, persistent).map_err(|_| Refusal::Unreachable)?;
    let msn = qp.resp.count_message();
    qp.resp.responses.push(headers.bth.psn, 1, msn, ResourceOp::Placed);
    Ok(1)
}

/// Stores 8 aligned bytes at once (IBTA A19.5). Requires the right to write.
fn atomic_write<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    scope: Scope,
    headers: &Headers,
    payload: &[u8],
) -> Result<u32, Refusal> {
    let reth = headers.reth.ok_or(Refusal::Invalid)?;
    if !qp.attr.access.contains(Access::REMOTE_WRITE) {
        return Err(Refusal::Access);
    }
    let data: [u8; 8] = payload.try_into().map_err(|_| Refusal::Invalid)?;
    if reth.dmalen != 8 || reth.va % 8 != 0 || !qp.resp.responses.has_room() {
        return Err(Refusal::Invalid);
    }
    let (region, offset) = env
        .memory_regions
        .remote(scope.pd, qp.qpn, reth.rkey, reth.va, 8, Access::REMOTE_WRITE)
        .ok_or(Refusal::Access)?;
    env.memory.atomic_write(region, offset, data).map_err(|_| Refusal::Unreachable)?;
    let msn = qp.resp.count_message();
    qp.resp.responses.push(headers.bth.psn, 1, msn, ResourceOp::Placed);
    Ok(1)
}
