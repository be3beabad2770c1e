//! [`transmit`]: the next response packet of a queue pair.
//!
//! # References
//! IBTA 9.7.5.1 (acknowledgements, read responses)

use super::refuse::fail;
use crate::engine::completion::recv;
use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink, Space, Written, space_for};
use crate::engine::qp::{Due, Qp, Resource, ResourceOp, ResponseClass};
use crate::engine::types::{Access, Event, Pd, Service, Stall, Status};
use crate::wire::{
    Headers, NakCode, Opcode, Psn, Syndrome, aeth, atomic_ack_eth, bth, opcode, packet::pad_for,
};

/// Writes the next response packet if it is of class `kind`.
#[inline]
pub(crate) fn transmit<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    kind: ResponseClass,
    space: &mut (impl Space + ?Sized),
) -> Option<Written> {
    let len = write(qp, env, kind, space)?;
    Some(Written { len, qpn: qp.qpn })
}

#[inline]
fn write<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    kind: ResponseClass,
    space: &mut (impl Space + ?Sized),
) -> Option<usize> {
    if qp.resp.responses.pending()? != kind {
        return None;
    }
    if let Some(resource) = qp.resp.responses.head().copied()
        && let Some(due) = resource.due
    {
        let sent = match resource.op {
            ResourceOp::Atomic { orig } => Ok(atomic_ack(qp, &resource, orig, space)?),
            ResourceOp::Placed => Ok(placed(qp, &resource, space)?),
            ResourceOp::Read { pd, rkey, .. } => read_response(qp, env, &resource, &due, (pd, rkey), space),
        };
        match sent {
            Ok(len) => return (len > 0).then_some(len),
            Err((code, event)) => {
                qp.resp.responses.forget();
                let failed = recv::completion(qp, Status::RemoteAccess);
                fail(qp, env, due.psn, code, failed, Some(event));
            }
        }
    }
    let headers = if let Some(nak) = qp.resp.responses.nak {
        ack(qp, nak.psn, nak.syndrome, nak.msn)
    } else if qp.resp.responses.ack.is_some() {
        // IBTA 9.7.5.1.2: a single acknowledgement covers all packets received.
        let (psn, msn) = qp.resp.responses.acknowledged(qp.resp.expected.prev(), qp.resp.msn);
        ack(qp, psn, Syndrome::ACK, msn)
    } else {
        return None;
    };
    let len = headers.emit(space_for(space, &qp.attr.path, qp.attr.dest_qpn));
    if len == 0 {
        return None;
    }
    (qp.resp.responses.nak, qp.resp.responses.ack) = (None, None);
    Some(len)
}

/// Returns the headers of a response packet.
fn headers(qp: &Qp, operation: u8, psn: Psn, syndrome: Syndrome, msn: u32) -> Headers {
    let service = if qp.service == Service::XrcTarget { opcode::Service::Xrc } else { opcode::Service::Rc };
    let bth = bth::Repr {
        pkey: qp.attr.pkey,
        ..bth::Repr::new(Opcode::new(service, operation), qp.attr.dest_qpn, psn)
    };
    Headers { aeth: Some(aeth::Repr { syndrome, msn }), ..Headers::new(bth) }
}

fn ack(qp: &Qp, psn: Psn, syndrome: Syndrome, msn: u32) -> Headers {
    headers(qp, opcode::operation::ACKNOWLEDGE, psn, syndrome, msn)
}

/// Writes the acknowledgement of an atomic, with its result.
fn atomic_ack(
    qp: &mut Qp,
    resource: &Resource,
    orig: u64,
    space: &mut (impl Space + ?Sized),
) -> Option<usize> {
    let operation = opcode::operation::ATOMIC_ACKNOWLEDGE;
    let mut headers = headers(qp, operation, resource.psn, Syndrome::ACK, resource.msn);
    headers.atomic_ack_eth = Some(atomic_ack_eth::Repr { orig });
    let len = headers.emit(space_for(space, &qp.attr.path, qp.attr.dest_qpn));
    if len == 0 {
        return None;
    }
    qp.resp.responses.advance(None, resource.psn);
    Some(len)
}

/// Writes the response to a flush or an atomic write: a read response without data.
///
/// # References
/// IBTA A19.4.2, A19.5.2
fn placed(qp: &mut Qp, resource: &Resource, space: &mut (impl Space + ?Sized)) -> Option<usize> {
    let operation = opcode::operation::RDMA_READ_RESPONSE_ONLY;
    let headers = headers(qp, operation, resource.psn, Syndrome::ACK, resource.msn);
    let len = headers.emit(space_for(space, &qp.attr.path, qp.attr.dest_qpn));
    if len == 0 {
        return None;
    }
    qp.resp.responses.advance(None, resource.psn);
    Some(len)
}

/// Writes the next packet of a read response, directly from memory. Returns 0 if the space is too
/// short or the memory is not present.
fn read_response<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    resource: &Resource,
    due: &Due,
    (pd, rkey): (Pd, u32),
    space: &mut (impl Space + ?Sized),
) -> Result<usize, (NakCode, Event)> {
    let mtu = qp.recv_mtu();
    let len = due.left.min(mtu);
    let operation = match (due.begun, due.left <= mtu) {
        (false, false) => opcode::operation::RDMA_READ_RESPONSE_FIRST,
        (true, false) => opcode::operation::RDMA_READ_RESPONSE_MIDDLE,
        (true, true) => opcode::operation::RDMA_READ_RESPONSE_LAST,
        (false, true) => opcode::operation::RDMA_READ_RESPONSE_ONLY,
    };
    let mut headers = headers(qp, operation, due.psn, Syndrome::ACK, resource.msn);
    let pad = pad_for(len as usize);
    headers.bth.pad_cnt = pad;
    let begin = headers.len();
    let end = begin + len as usize + usize::from(pad);
    let buf = space_for(space, &qp.attr.path, qp.attr.dest_qpn);
    let Some(buf) = buf.get_mut(..end) else { return Ok(0) };
    headers.emit(buf);
    let (payload, padding) = buf[begin..].split_at_mut(len as usize);
    padding.fill(0);
    if len > 0 {
        // The key may have been invalidated since the request arrived.
        let (region, offset) = env
            .memory_regions
            .remote(pd, qp.qpn, rkey, due.addr, u64::from(len), Access::REMOTE_READ)
            .ok_or((NakCode::REMOTE_ACCESS_ERROR, Event::QpAccessError(qp.qpn)))?;
        if env.memory.read(region, offset, payload).is_err() {
            let stall = Stall::ReadResponse { rkey, addr: due.addr, left: due.left };
            if env.sink.postpone(qp.qpn, &stall) {
                qp.resp.responses.stalled = true;
                return Ok(0);
            }
            return Err((NakCode::REMOTE_OPERATIONAL_ERROR, Event::QpFatal(qp.qpn)));
        }
    }
    let left = due.left - len;
    let addr = due.addr.wrapping_add(u64::from(len));
    let rest = (left > 0).then_some(Due { psn: due.psn.next(), addr, left, begun: true, again: due.again });
    qp.resp.responses.advance(rest, due.psn);
    Ok(end)
}
