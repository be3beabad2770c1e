//! The responder: from request packets to memory, receives and acknowledgements.
//!
//! | module | what it is |
//! |---|---|
//! | `receive` | the receive that a message goes into: taken, filled, completed |
//! | `request` | requests that are new: what is checked, and what is done |
//! | `responses` | what is to be sent back, and what was sent and may be asked for again |
//!
//! Reliable services hear the packet that is expected, answer again what they have answered before, and ask once for
//! what is missing. The unreliable one drops messages that have a hole.
//!
//! Invariant: responses leave in the order of their sequence numbers. An acknowledgement stands for all before it, so it
//! never leaves before an earlier read's last response.
//!
//! # References
//! IBTA 9.7.4, 9.7.5 (reliable responder), 9.8.2.2 (unreliable responder), 9.9.3 (responder errors)

mod receive;
mod request;
mod responses;

#[cfg(test)]
mod tests;

pub(crate) use receive::{Current, count, finish, outcome, put, take};

use self::request::{Message, Refusal};
use self::responses::Responses;
use super::control::World;
use super::memory::{Memory, Sink};
use super::qp::Qp;
use super::types::{Arrival, Completion, Event, PostRefused, RecvWr, Service, State, Status, Transmit};
use crate::wire::{self, Headers, NakCode, Psn, Syndrome, aeth::RnrTimer};

/// The responder's half of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The next new packet's number.
    expected: Psn,
    /// How many messages were completed, 24 bits.
    msn: u32,
    /// Of the unreliable service: how many packets placed data or took a receive. Wraps.
    effective: u32,
    /// What has begun and not ended.
    message: Message,
    /// A packet was refused for its time, and what follows it is dropped without a word until it comes again.
    waiting: bool,
    pub(crate) current: Current,
    responses: Responses,
}

impl Responder {
    /// `shared`: it takes receives from a shared queue.
    pub(crate) fn new(shared: bool) -> Self {
        Self {
            expected: Psn::default(),
            msn: 0,
            effective: 0,
            message: Message::None,
            waiting: false,
            current: Current::new(shared),
            responses: Responses::default(),
        }
    }
}

/// Posts a receive.
///
/// # References
/// IBTA 10.3.1 (not in RESET; flushed at once in the error state)
pub(crate) fn post<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    wr: &RecvWr<'_>,
) -> Result<(), PostRefused> {
    if qp.state == State::Reset || qp.srq.is_some() || qp.service == Service::XrcTarget {
        return Err(PostRefused::InvalidState);
    }
    if qp.state == State::Err {
        qp.rq.check(wr)?;
        world.sink.retire_recv(qp.qpn, 1);
        qp.complete(world, qp.recv_cq, &Completion { wr_id: wr.wr_id, ..outcome(qp, Status::Flushed) });
        return Ok(());
    }
    qp.rq.post(wr)
}

/// Is a packet with this partition key for a member of that partition? Two limited members do not hear each other.
///
/// # References
/// IBTA 10.9.3: what does not match is dropped
#[inline]
pub(crate) fn same_partition(ours: u16, theirs: u16) -> bool {
    (ours ^ theirs) & 0x7fff == 0 && ours & 0x7fff != 0 && (ours | theirs) & 0x8000 != 0
}

/// May requests arrive in this state?
///
/// # References
/// IBTA 10.3.1: RESET, INIT and the error state drop them
#[inline]
pub(crate) fn hears_requests(state: State) -> bool {
    matches!(state, State::Rtr | State::Rts | State::Sqd | State::Sqe)
}

/// The first packet in RTR tells that the peer is there (IBTA 11.6.3).
#[inline]
pub(crate) fn establish<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>) {
    if qp.state == State::Rtr && !qp.established {
        qp.established = true;
        world.sink.event(Event::CommunicationEstablished(qp.qpn));
    }
}

/// Takes in a request of a connected peer.
pub(crate) fn request<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    _arrival: &Arrival,
    headers: &Headers,
    payload: &[u8],
) {
    let service = match qp.service {
        Service::Rc => wire::Service::Rc,
        Service::Uc => wire::Service::Uc,
        Service::XrcTarget => wire::Service::Xrc,
        Service::Ud | Service::XrcInitiator => return,
    };
    // IBTA 9.6.1: the service of the packet is the queue pair's.
    if !hears_requests(qp.state)
        || headers.bth.opcode.service() != service
        || !same_partition(qp.attr.pkey, headers.bth.pkey)
    {
        return;
    }
    establish(qp, world);
    if qp.service == Service::Uc {
        unreliable(qp, world, headers, payload);
    } else {
        reliable(qp, world, headers, payload);
    }
}

/// IBTA 9.7.4.1.2: a packet is expected, ahead (some before it are missing) or a duplicate.
fn reliable<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, headers: &Headers, payload: &[u8]) {
    let resp = &mut qp.resp;
    let distance = headers.bth.psn.distance_from(resp.expected);
    if distance > 0 {
        // IBTA 9.7.5.2: told once, until what is missing has come.
        if !resp.waiting {
            resp.waiting = true;
            resp.responses.refuse(resp.expected, Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR), resp.msn);
        }
        return;
    }
    if distance < 0 {
        let mtu = mtu(qp);
        qp.resp.duplicate(headers, mtu);
        return;
    }
    resp.waiting = false;
    resp.responses.progress();
    let msn = resp.msn;
    match request::execute(qp, world, headers, payload) {
        // This side's program will never hear of it: what came before is acknowledged, it is not.
        Ok(_) if world.cq_overrun => qp.resp.msn = msn,
        Ok(packets) => {
            let resp = &mut qp.resp;
            resp.expected += packets;
            // IBTA 9.7.5.1.2: acknowledgements may be coalesced, but not beyond a packet that asks for one.
            if headers.bth.ack_req
                && !headers.bth.opcode.is_rdma_read_request()
                && !headers.bth.opcode.is_atomic()
            {
                resp.responses.acknowledge(headers.bth.psn);
            }
        }
        Err(refusal) => refuse(qp, world, refusal),
    }
}

impl Responder {
    /// A request that was carried out before.
    ///
    /// # References
    /// IBTA 9.7.5.1: sends and writes are acknowledged again, reads read again, atomics' results told again; what is
    /// not remembered is dropped
    fn duplicate(&mut self, headers: &Headers, mtu: u32) {
        let (opcode, psn) = (headers.bth.opcode, headers.bth.psn);
        if opcode.is_send() || opcode.is_rdma_write() {
            self.responses.acknowledge(self.expected.prev());
        } else if opcode.is_rdma_read_request() {
            if let Some(reth) = &headers.reth {
                self.responses.read_again(psn, reth, mtu);
            }
        } else if opcode.is_atomic() {
            self.responses.tell_again(psn);
        }
    }
}

/// IBTA 9.9.3: what follows from a request that is refused, by the error's class.
fn refuse<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>, refusal: Refusal) {
    let (psn, msn) = (qp.resp.expected, qp.resp.msn);
    // The receive in use, if one is, ends with the first; without one the event tells.
    let (code, status, event) = match refusal {
        Refusal::NotReady => {
            // Class B. IBTA 9.7.5.2: what follows is dropped until this packet comes again.
            qp.resp.waiting = true;
            let timer = RnrTimer(qp.attr.min_rnr_timer);
            qp.resp.responses.refuse(psn, Syndrome::rnr_nak(timer), msn);
            return;
        }
        Refusal::Invalid => {
            (NakCode::INVALID_REQUEST, Status::RemoteInvalidRequest, Some(Event::QpRequestError(qp.qpn)))
        }
        Refusal::Access => {
            (NakCode::REMOTE_ACCESS_ERROR, Status::RemoteAccess, Some(Event::QpAccessError(qp.qpn)))
        }
        Refusal::Unreachable => {
            (NakCode::REMOTE_OPERATIONAL_ERROR, Status::LocalQpOperation, Some(Event::QpFatal(qp.qpn)))
        }
        Refusal::ReceiveTooShort => (NakCode::INVALID_REQUEST, Status::LocalLength, None),
        Refusal::ReceiveForbidden => (NakCode::REMOTE_OPERATIONAL_ERROR, Status::LocalProtection, None),
        Refusal::NotInvalidated => (NakCode::REMOTE_OPERATIONAL_ERROR, Status::RemoteInvalidRequest, None),
    };
    fail(qp, world, psn, code, outcome(qp, status), event);
}

/// Ends the receive in use, or else the oldest, as if it had failed so. False: there is none.
///
/// What follows is what follows from the error on this service: the peer of a reliable one is refused, the program told
/// of what it has done, and the queue pair fails, but for a datagram or an unreliable message that was too long.
pub(crate) fn fail_next<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    status: Status,
    vendor_err: u32,
) -> bool {
    if matches!(qp.state, State::Reset | State::Err) {
        return false;
    }
    if !qp.resp.current.is_taken() && !take(qp, world, qp.srq) {
        return false;
    }
    let failed = Completion { vendor_err, ..outcome(qp, status) };
    if matches!(qp.service, Service::Rc | Service::XrcTarget) && hears_requests(qp.state) {
        let (code, event) = match status {
            Status::LocalLength => (NakCode::INVALID_REQUEST, None),
            Status::RemoteInvalidRequest => (NakCode::INVALID_REQUEST, Some(Event::QpRequestError(qp.qpn))),
            Status::RemoteAccess => (NakCode::REMOTE_ACCESS_ERROR, Some(Event::QpAccessError(qp.qpn))),
            Status::LocalQpOperation => (NakCode::REMOTE_OPERATIONAL_ERROR, Some(Event::QpFatal(qp.qpn))),
            _ => (NakCode::REMOTE_OPERATIONAL_ERROR, None),
        };
        fail(qp, world, qp.resp.expected, code, failed, event);
        return true;
    }
    qp.resp.message = Message::None;
    finish(qp, world, failed);
    if status != Status::LocalLength {
        qp.fail(world);
    }
    true
}

/// How many receives have not ended.
pub(crate) fn outstanding(qp: &Qp) -> u32 {
    qp.rq.len() as u32 + u32::from(qp.resp.current.is_shared())
}

/// Tells the peer, the program, and gives the queue pair up (IBTA 9.9.3, classes A, C and J).
fn fail<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    psn: Psn,
    code: NakCode,
    failed: Completion,
    event: Option<Event>,
) {
    qp.resp.responses.give_up(psn, Syndrome::nak(code), qp.resp.msn);
    finish(qp, world, failed);
    if let Some(event) = event {
        world.sink.event(event);
    }
    qp.fail(world);
}

/// IBTA 9.8.2.2: without acknowledgements. A message with a hole is dropped, and its receive serves the next one.
fn unreliable<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    headers: &Headers,
    payload: &[u8],
) {
    let in_order = headers.bth.psn == qp.resp.expected;
    qp.resp.expected = headers.bth.psn.next();
    if headers.bth.opcode.starts_message() || !in_order {
        qp.resp.message = Message::None;
    }
    match request::execute(qp, world, headers, payload) {
        Ok(_) => {
            // An empty write names no memory and takes no receive: it proves nothing about its sender.
            let opcode = headers.bth.opcode;
            if opcode.is_send() || opcode.has_imm() || !payload.is_empty() {
                qp.resp.effective = qp.resp.effective.wrapping_add(1);
            }
        }
        // Class A: it is this side's mistake.
        Err(Refusal::ReceiveForbidden) => {
            let failed = outcome(qp, Status::LocalProtection);
            finish(qp, world, failed);
            qp.fail(world);
        }
        // Class E: a receive of a shared queue cannot serve the next message.
        Err(Refusal::ReceiveTooShort) if qp.srq.is_some() => {
            qp.resp.message = Message::None;
            let failed = outcome(qp, Status::LocalLength);
            finish(qp, world, failed);
        }
        // Class D.
        Err(_) => qp.resp.message = Message::None,
    }
}

/// The responses of a queue pair, each scheduled in a class of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request is refused.
    Refusal,
    /// A plain acknowledgement.
    Ack,
    /// Data that was read, or what an atomic found.
    Answer,
}

/// Writes the next response packet, if it is of this kind.
#[inline]
pub(crate) fn transmit<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    kind: Kind,
    buf: &mut [u8],
) -> Option<Transmit> {
    let len = responses::transmit(qp, world, kind, buf)?;
    Some(Transmit { len, path: qp.attr.path, qpn: qp.qpn })
}

/// Returns the kind of the response that leaves next.
#[inline(always)]
pub(crate) fn pending(qp: &Qp) -> Option<Kind> {
    qp.resp.responses.pending()
}

/// Flushes every receive that is posted.
///
/// # References
/// IBTA 10.3.1 (error state), 10.2.9 (with a shared queue: the last receive was taken)
pub(crate) fn flush<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>) {
    qp.resp.message = Message::None;
    qp.resp.responses.stop();
    let flushed = outcome(qp, Status::Flushed);
    finish(qp, world, flushed);
    while let Some(posted) = qp.rq.front() {
        let completion = Completion { wr_id: posted.wr_id, ..flushed };
        qp.rq.pop();
        world.sink.retire_recv(qp.qpn, 1);
        qp.complete(world, qp.recv_cq, &completion);
    }
    if qp.srq.is_some() {
        world.sink.event(Event::LastWqeReached(qp.qpn));
    }
}

/// Forgets every receive that is posted, without a word.
pub(crate) fn reset<M: Memory, S: Sink>(qp: &mut Qp, _world: &mut World<'_, M, S>) {
    qp.rq.clear();
    let resp = &mut qp.resp;
    resp.current.forget();
    resp.responses = Responses::default();
    (resp.expected, resp.msn, resp.message, resp.waiting) = (Psn::default(), 0, Message::None, false);
}

/// Room for as many reads and atomics as [`max_dest_rd_atomic`](super::types::Attr::max_dest_rd_atomic) says.
pub(crate) fn set_depth(qp: &mut Qp) {
    qp.resp.responses.set_depth(usize::from(qp.attr.max_dest_rd_atomic));
}

pub(crate) fn set_psn(qp: &mut Qp, psn: u32) {
    qp.resp.expected = Psn::new(psn);
}

pub(crate) fn expected_psn(qp: &Qp) -> u32 {
    qp.resp.expected.value()
}

/// How far the peer has taken it: changes with each request that is carried out.
///
/// The number that the unreliable service expects follows every packet, also those that are dropped, so it counts effects.
pub(crate) fn progress(qp: &Qp) -> u32 {
    if qp.service == Service::Uc { qp.resp.effective } else { qp.resp.expected.value() }
}

/// The path MTU, whatever was asked for (256 to 4096).
#[inline]
pub(crate) fn mtu(qp: &Qp) -> u32 {
    qp.attr.path_mtu.clamp(256, 4096)
}
