//! The responder: from request packets to memory, receives and acknowledgements.
//!
//! | module | contents |
//! |---|---|
//! | `receive` | takes and fills the receive of a message |
//! | `request` | new requests: validation and execution |
//! | `refuse` | refused requests: NAK, completion, event, error state |
//! | `transmit` | the next response packet |
//!
//! On reliable services, the responder executes the expected packet, responds again to duplicates
//! and sends one NAK for missing packets. On the unreliable service, it drops messages with missing
//! packets. [`Responses`](super::qp::Responses) holds the responses to send.
//!
//! Invariant: responses are sent in the order of their sequence numbers. An acknowledgement also
//! covers all earlier packets, so it is never sent before the last response of an earlier read.
//!
//! # References
//! IBTA 9.7.4, 9.7.5 (reliable responder), 9.8.2.2 (unreliable responder), 9.9.3 (responder errors)

mod receive;
mod refuse;
mod request;
mod transmit;

#[cfg(test)]
mod tests;

pub(crate) use receive::{count, put, take};
pub(crate) use refuse::fail_next;
pub(crate) use transmit::transmit;

use self::refuse::Refusal;
use super::completion::{self, recv};
use super::environment::Environment;
use super::memory::{Memory, Sink};
use super::qp::{Message, Qp, RecvState, ResourceOp};
use super::queue::Srq;
use super::table::Table;
use super::types::{Completion, Event, PostRefused, RecvWr, Service, State, Status};
use crate::wire::{self, Headers, NakCode, Psn, Syndrome};

/// Posts a receive work request.
///
/// # References
/// IBTA 10.3.1 (rejected in RESET, flushed immediately in the error state)
pub(crate) fn post<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    wr: &RecvWr<'_>,
) -> Result<(), PostRefused> {
    if qp.state == State::Reset || qp.srq.is_some() || qp.service == Service::XrcTarget {
        return Err(PostRefused::InvalidState);
    }
    if qp.state == State::Err {
        qp.rq.check(wr)?;
        env.sink.retire_recv(qp.qpn, 1);
        let flushed = Completion { wr_id: wr.wr_id, ..recv::completion(qp, Status::Flushed) };
        env.complete(qp.recv_cq, &flushed);
        return Ok(());
    }
    qp.rq.post(wr)
}

/// Returns whether a queue pair with partition key `ours` may receive a packet with partition key
/// `theirs`. Two limited members do not receive each other's packets.
///
/// # References
/// IBTA 10.9.3: packets of other partitions are dropped
#[inline]
pub(crate) fn same_partition(ours: u16, theirs: u16) -> bool {
    (ours ^ theirs) & 0x7fff == 0 && ours & 0x7fff != 0 && (ours | theirs) & 0x8000 != 0
}

/// Raises the event for the first packet received in RTR (IBTA 11.6.3).
#[inline]
pub(crate) fn establish<M: Memory, S: Sink>(qp: &mut Qp, env: &mut Environment<'_, M, S>) {
    if qp.state == State::Rtr && !qp.established {
        qp.established = true;
        env.sink.event(Event::CommunicationEstablished(qp.qpn));
    }
}

/// Handles a request from a connected peer. The first request determines whether all packets of the
/// peer may carry up to `LINK_MTU` bytes.
pub(crate) fn request<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    on_link: bool,
    headers: &Headers,
    payload: &[u8],
) {
    let service = match qp.service {
        Service::Rc => wire::Service::Rc,
        Service::Uc => wire::Service::Uc,
        Service::XrcTarget => wire::Service::Xrc,
        Service::Ud | Service::XrcInitiator => return,
    };
    // IBTA 9.6.1: the packet must have the queue pair's transport service.
    if !qp.hears_requests()
        || headers.bth.opcode.service() != service
        || !same_partition(qp.attr.pkey, headers.bth.pkey)
    {
        return;
    }
    establish(qp, env);
    qp.resp.on_link.get_or_insert(on_link);
    if qp.service == Service::Uc {
        unreliable(qp, env, headers, payload);
    } else {
        reliable(qp, env, headers, payload);
    }
}

/// Handles a request packet on a reliable service. The packet is expected, early (earlier packets
/// are missing) or a duplicate (IBTA 9.7.4.1.2).
fn reliable<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    headers: &Headers,
    payload: &[u8],
) {
    let resp = &mut qp.resp;
    let distance = headers.bth.psn.distance_from(resp.expected);
    if distance > 0 {
        // IBTA 9.7.5.2: only one NAK is sent until the missing packet has arrived.
        if !resp.waiting {
            resp.waiting = true;
            resp.responses.refuse(resp.expected, Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR), resp.msn);
        }
        return;
    }
    if distance < 0 {
        let mtu = qp.recv_mtu();
        duplicate(&mut qp.resp, headers, mtu);
        return;
    }
    resp.waiting = false;
    resp.responses.progress();
    let msn = resp.msn;
    match request::execute(qp, env, headers, payload) {
        // This side's program will not see this message, so the acknowledgement covers only earlier
        // messages.
        Ok(_) if env.cq_overrun => qp.resp.msn = msn,
        Ok(packets) => {
            let resp = &mut qp.resp;
            resp.expected += packets;
            // IBTA 9.7.5.1.2: acknowledgements may be coalesced, but not beyond a packet that
            // requests an acknowledgement.
            if headers.bth.ack_req && !headers.bth.opcode.has_own_response() {
                resp.responses.acknowledge(headers.bth.psn);
            }
        }
        Err(refusal) => refuse::refuse(qp, env, refusal, headers.bth.ack_req),
    }
}

/// Schedules a new response to a request that was executed earlier.
///
/// # References
/// IBTA 9.7.5.1: sends and writes are acknowledged again, reads are executed again, and atomic
/// results are sent again; a request no longer stored is dropped. A19: the responses to flushes and
/// atomic writes are sent again without another execution
fn duplicate(resp: &mut RecvState, headers: &Headers, mtu: u32) {
    let (opcode, psn) = (headers.bth.opcode, headers.bth.psn);
    if opcode.is_send() || opcode.is_rdma_write() {
        resp.responses.acknowledge(resp.expected.prev());
    } else if opcode.is_rdma_read_request() {
        if let Some(reth) = &headers.reth {
            resp.responses.read_again(psn, reth, mtu);
        }
    } else if opcode.is_atomic() {
        resp.responses.send_again(psn, |op| matches!(op, ResourceOp::Atomic { .. }));
    } else if opcode.has_own_response() {
        resp.responses.send_again(psn, |op| matches!(op, ResourceOp::Placed));
    }
}

/// Handles a request packet on the unreliable service (IBTA 9.8.2.2). A message with missing
/// packets is dropped; the next message uses its receive.
fn unreliable<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    headers: &Headers,
    payload: &[u8],
) {
    let in_order = headers.bth.psn == qp.resp.expected;
    qp.resp.expected = headers.bth.psn.next();
    if headers.bth.opcode.starts_message() || !in_order {
        qp.resp.message = Message::None;
    }
    match request::execute(qp, env, headers, payload) {
        Ok(_) => {
            // An empty write names no memory and takes no receive, so it is not evidence that its
            // sender is the peer.
            let opcode = headers.bth.opcode;
            if opcode.is_send() || opcode.has_imm() || !payload.is_empty() {
                qp.resp.effective = qp.resp.effective.wrapping_add(1);
            }
        }
        // Class A: a fault of this side's program.
        Err(Refusal::ReceiveForbidden) => {
            let failed = recv::completion(qp, Status::LocalProtection);
            recv::complete(qp, env, failed);
            completion::fail(qp, env);
        }
        // Class E: a receive taken from a shared queue cannot be kept for the next message.
        Err(Refusal::ReceiveTooShort) if qp.srq.is_some() => {
            qp.resp.message = Message::None;
            let failed = recv::completion(qp, Status::LocalLength);
            recv::complete(qp, env, failed);
        }
        // Class D: the message is dropped.
        Err(_) => qp.resp.message = Message::None,
    }
}

/// Returns the number of outstanding receives.
pub(crate) fn outstanding(qp: &Qp) -> u32 {
    qp.rq.len() as u32 + u32::from(qp.resp.current.is_shared())
}

/// Drops all posted receives without completions.
pub(crate) fn reset(qp: &mut Qp, srqs: &mut Table<Srq>) {
    qp.rq.clear();
    qp.resp.reset(srqs);
}

/// Allocates slots for the responses to
/// [`max_dest_rd_atomic`](super::types::Attr::max_dest_rd_atomic) reads and atomics.
pub(crate) fn set_depth(qp: &mut Qp) {
    qp.resp.responses.set_depth(usize::from(qp.attr.max_dest_rd_atomic));
}

/// Sets the sequence number expected in the next packet.
pub(crate) fn set_psn(qp: &mut Qp, psn: u32) {
    qp.resp.expected = Psn::new(psn);
}
