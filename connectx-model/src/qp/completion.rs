//! Completions and events that the transport engine reports. [`Core`] is the engine's [`Sink`].
//!
//! # References
//! PRM, "CQE format", "completion with error", "event types"

use roce::engine::{
    Completion, CqFull, CqId, Event, FirstPacket, Matched, Opcode, Qpn, Sge, Sink, SrqId, Stall, Status,
};

use crate::bus::Bus;
use crate::function::Core;
use crate::layout::cqe::{cqe, error_cqe};
use crate::layout::eqe::{cq_error, qp_srq};
use crate::qp::request::opcode;
use crate::state::eq::EventType;
use crate::state::qp::{Receives, Service};
use crate::state::srq::{Srq, SrqKind};

/// Opcodes of completions.
mod kind {
    pub(super) const REQUESTER: u32 = 0;
    pub(super) const RESPONDER_WRITE_IMM: u32 = 1;
    pub(super) const RESPONDER_SEND: u32 = 2;
    pub(super) const RESPONDER_SEND_IMM: u32 = 3;
    pub(super) const RESPONDER_SEND_INVALIDATE: u32 = 4;
    pub(super) const REQUESTER_ERROR: u32 = 13;
    pub(super) const RESPONDER_ERROR: u32 = 14;
}

/// Value of the GRH field if the receive buffer contains a GRH.
const GRH_IN_BUFFER: u32 = 1;
/// The partition key of the default partition.
const DEFAULT_PKEY: u32 = 0xffff;
/// The syndrome in the event of an overrun completion queue.
const OVERRUN: u32 = 1;
/// The type of the object whose number an event contains: a queue pair.
const OF_QP: u32 = 0;

/// Returns the syndrome and the vendor syndrome of a status. Firmware defines the vendor syndrome;
/// drivers only print it.
///
/// # References
/// PRM, "completion error syndrome"
pub(crate) fn syndrome(status: Status) -> (u8, u8) {
    match status {
        Status::Success => (0, 0),
        Status::LocalLength => (0x01, 0x6a),
        Status::LocalQpOperation => (0x02, 0x68),
        Status::LocalProtection => (0x04, 0x51),
        Status::Flushed => (0x05, 0xf9),
        Status::WindowBind => (0x06, 0x78),
        Status::BadResponse => (0x10, 0x80),
        Status::LocalAccess => (0x11, 0x52),
        Status::RemoteInvalidRequest => (0x12, 0x89),
        Status::RemoteAccess => (0x13, 0x88),
        Status::RemoteOperation => (0x14, 0x8a),
        Status::RetryExceeded => (0x15, 0x81),
        Status::RnrRetryExceeded => (0x16, 0x87),
        // `General`, and any status without a defined syndrome.
        _ => (0x22, 0xff),
    }
}

/// Returns the engine's status for an injected syndrome. An unknown syndrome becomes a general
/// error. So does the syndrome of a flush, because the engine does not count a flush as a failure.
pub(crate) fn status(code: u8) -> Status {
    use Status::*;
    let known = [
        LocalLength,
        LocalQpOperation,
        LocalProtection,
        WindowBind,
        BadResponse,
        LocalAccess,
        RemoteInvalidRequest,
        RemoteAccess,
        RemoteOperation,
        RetryExceeded,
        RnrRetryExceeded,
    ];
    known.into_iter().find(|status| syndrome(*status).0 == code).unwrap_or(General)
}

/// Returns the `wr_id` of a send in the engine: its position and its opcode.
pub(super) fn wr_id(index: u16, opcode: u8) -> u64 {
    u64::from(opcode) << 16 | u64::from(index)
}

/// Sets the completion fields that identify the operation of a received message.
pub(super) fn of_message(completion: &Completion, entry: &mut [u8; 64]) {
    let (of, word) = match (completion.opcode, completion.imm, completion.invalidated) {
        (Opcode::RecvWriteImm, imm, _) => (kind::RESPONDER_WRITE_IMM, imm.unwrap_or(0)),
        (_, Some(imm), _) => (kind::RESPONDER_SEND_IMM, imm),
        (_, None, Some(rkey)) => (kind::RESPONDER_SEND_INVALIDATE, rkey),
        (_, None, None) => (kind::RESPONDER_SEND, 0),
    };
    cqe::OPCODE.set(entry, of);
    cqe::IMM_INVAL_PKEY.set(entry, word);
    cqe::SE.set(entry, u32::from(completion.solicited));
}

/// Extracts the position and the opcode of a send from its `wr_id`.
fn of_wr_id(wr_id: u64) -> (u16, u8) {
    (wr_id as u16, (wr_id >> 16) as u8)
}

impl<B: Bus> Core<B> {
    /// Writes the completion of a send that the model itself has executed.
    pub(super) fn send_completion(
        &mut self,
        qpn: u32,
        wr_id: u64,
        opcode: Opcode,
        byte_len: u32,
    ) -> Result<(), CqFull> {
        let Some(qp) = self.qps.get(&qpn) else { return Ok(()) };
        let completion = Completion {
            wr_id,
            status: Status::Success,
            opcode,
            qpn: Qpn(qpn),
            byte_len,
            imm: None,
            invalidated: None,
            src_qpn: 0,
            grh: false,
            solicited: false,
            sl: 0,
            slid: 0,
            vendor_err: 0,
        };
        self.complete(CqId(qp.send_cqn), &completion)
    }

    /// Puts a completion queue in the error state. The queue rejects further completions, and one
    /// event is sent.
    pub(crate) fn cq_error(&mut self, cqn: u32) {
        // The completions in an open block were already accepted. If they cannot be written,
        // nothing changes, because the queue enters the error state anyway.
        let _ = self.close(cqn);
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        if std::mem::replace(&mut cq.in_error, true) {
            return;
        }
        let mut event = [0; 28];
        cq_error::CQN.set(&mut event, cqn);
        cq_error::SYNDROME.set(&mut event, OVERRUN);
        self.event(EventType::CqError, 0, &event);
    }

    fn entry(&mut self, completion: &Completion) -> [u8; 64] {
        let mut entry = [0; 64];
        let is_recv = matches!(completion.opcode, Opcode::Recv | Opcode::RecvWriteImm);
        cqe::QPN.set(&mut entry, completion.qpn.0);
        cqe::TIMESTAMP.set(&mut entry, crate::state::iseg::ticks(self.now));
        cqe::WQE_COUNTER.set(&mut entry, (completion.wr_id & 0xffff) as u32);
        if is_recv {
            self.received(completion, &mut entry);
        } else {
            let (_, operation) = of_wr_id(completion.wr_id);
            cqe::OPCODE.set(&mut entry, kind::REQUESTER);
            cqe::WQE_OPCODE.set(&mut entry, operation);
            let user_index = self.qps.get(&completion.qpn.0).map_or(0, |qp| qp.user_index);
            cqe::SRQN_USER_INDEX.set(&mut entry, user_index);
            if operation == opcode::READ
                || operation == opcode::COMPARE_SWAP
                || operation == opcode::FETCH_ADD
            {
                cqe::BYTE_CNT.set(&mut entry, completion.byte_len);
            }
        }
        if completion.opcode == Opcode::Recv {
            self.of_receive(completion.qpn.0, &mut entry);
        }
        if completion.status != Status::Success {
            self.failed(completion, is_recv, &mut entry);
        }
        entry
    }

    /// Fills in the fields of a receive completion.
    fn received(&mut self, completion: &Completion, entry: &mut [u8; 64]) {
        let Some(qp) = self.qps.get(&completion.qpn.0) else { return };
        let service = qp.service;
        let (srqn, mut user_index) = match qp.rq {
            Receives::Shared(srqn) => (Some(srqn), qp.user_index),
            Receives::Named => (qp.run.recv.taken_from, qp.user_index),
            Receives::Own(_) | Receives::None => (None, qp.user_index),
        };
        if let Some(srqn) = srqn {
            self.compare_entry(srqn, completion.wr_id as u16);
            let own = |srq: &&Srq| matches!(srq.kind, SrqKind::Xrc | SrqKind::Xrq);
            if let Some(srq) = self.srqs.get(&srqn).filter(own) {
                user_index = srq.user_index;
            }
        }
        cqe::SRQN_USER_INDEX.set(entry, user_index);
        cqe::BYTE_CNT.set(entry, completion.byte_len);
        of_message(completion, entry);
        if service == Service::Qp1 && completion.imm.is_none() {
            cqe::IMM_INVAL_PKEY.set(entry, DEFAULT_PKEY);
        }
        if matches!(service, Service::Ud | Service::Qp0 | Service::Qp1) {
            cqe::RQPN.set(entry, completion.src_qpn);
            cqe::SLID.set(entry, completion.slid);
            // On a RoCE port, this field reports the header type; see `udav`.
            cqe::SL.set(entry, completion.sl);
            cqe::GRH.set(entry, if completion.grh { GRH_IN_BUFFER } else { 0 });
        }
    }

    fn failed(&mut self, completion: &Completion, is_recv: bool, entry: &mut [u8; 64]) {
        let kept =
            [error_cqe::SRQN_USER_INDEX, error_cqe::WQE_OPCODE, error_cqe::QPN, error_cqe::WQE_COUNTER]
                .map(|field| (field, field.get32(entry)));
        entry.fill(0);
        for (field, value) in kept {
            field.set(entry, value);
        }
        let forced = match self.qps.get_mut(&completion.qpn.0) {
            Some(_) if completion.status == Status::Flushed => None,
            Some(qp) if is_recv => qp.run.recv.forced.take(),
            Some(qp) => qp.run.send.forced.take(),
            None => None,
        };
        let (code, vendor) = forced.unwrap_or(syndrome(completion.status));
        let vendor = if completion.vendor_err != 0 { completion.vendor_err as u8 } else { vendor };
        error_cqe::SYNDROME.set(entry, code);
        error_cqe::VENDOR_ERROR_SYNDROME.set(entry, vendor);
        error_cqe::OPCODE.set(entry, if is_recv { kind::RESPONDER_ERROR } else { kind::REQUESTER_ERROR });
        self.watch(completion.qpn.0);
    }

    fn qp_event(&mut self, kind: EventType, qpn: Qpn) {
        let mut event = [0; 28];
        qp_srq::TYPE.set(&mut event, OF_QP);
        qp_srq::QPN_RQN_SQN.set(&mut event, qpn.0);
        self.event(kind, 0, &event);
    }
}

impl<B: Bus> Sink for Core<B> {
    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqFull> {
        self.complete_with_data(cq, completion, &[])
    }

    fn complete_with_data(&mut self, cq: CqId, completion: &Completion, data: &[u8]) -> Result<(), CqFull> {
        if let Some(done) = self.of_entry(completion) {
            return done;
        }
        let mut entry = self.entry(completion);
        self.write_cqe(cq.0, &mut entry, data, completion.solicited)
    }

    fn retire_send(&mut self, qpn: Qpn, count: u32) {
        let Some(qp) = self.qps.get_mut(&qpn.0) else { return };
        let send = &mut qp.run.send;
        for _ in 0..count {
            let Some(held) = send.held.pop_front() else { break };
            send.done = send.done.wrapping_add(held.blocks);
        }
        if send.held.is_empty() && send.waiting.is_some() {
            self.attention.runnable.insert(qpn.0);
        }
        let done = send.done;
        self.compare_sends(qpn.0, done);
    }

    fn retire_recv(&mut self, qpn: Qpn, count: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn.0) {
            qp.run.recv.done = qp.run.recv.done.wrapping_add(count as u16);
            let done = qp.run.recv.done;
            self.compare_receives(qpn.0, done);
        }
    }

    fn retire_srq(&mut self, srq: SrqId, _count: u32) {
        // A packet to an XRC queue pair names the shared receive queue, but the completion names
        // the queue pair.
        let taker = self.attention.receiver.and_then(|qpn| self.qps.get_mut(&qpn));
        if let Some(qp) = taker.filter(|qp| qp.rq == Receives::Named) {
            qp.run.recv.taken_from = Some(srq.0);
        }
    }

    fn match_message(&mut self, first: &FirstPacket<'_>, sges: &mut [Sge]) -> Option<Matched> {
        self.find_entry(first, sges)
    }

    fn postpone(&mut self, qpn: Qpn, stall: &Stall) -> bool {
        self.page_fault(qpn.0, *stall)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::CqError(cq) => self.cq_error(cq.0),
            Event::QpFatal(qpn) => self.qp_event(EventType::WqCatastrophic, qpn),
            Event::QpRequestError(qpn) => self.qp_event(EventType::WqInvalidRequest, qpn),
            Event::QpAccessError(qpn) => self.qp_event(EventType::WqAccess, qpn),
            Event::CommunicationEstablished(qpn) => self.qp_event(EventType::CommunicationEstablished, qpn),
            Event::SqDrained(qpn) => self.qp_event(EventType::SendQueueDrained, qpn),
            Event::LastWqeReached(qpn) => self.qp_event(EventType::SrqLastWqe, qpn),
            Event::SrqLimitReached(srq) => self.qp_event(EventType::SrqLimit, Qpn(srq.0)),
            Event::SrqError(srq) => self.qp_event(EventType::SrqCatastrophic, Qpn(srq.0)),
        }
    }
}
