//! Work requests, the resulting packets, and handwritten responses.

mod acknowledged;
mod inline;
mod lossy;
mod placement;
mod posted;
mod reads;
mod retried;
mod segments;
mod silent;
mod states;

use alloc::vec::Vec;

use crate::engine::testing::{ALL, Host, Mr, connected};
use crate::engine::{
    AttrChange, Payload, PostRefused, Qpn, SendFlags, SendOp, SendWr, Service, Sge, State, Status,
};
use crate::wire::aeth::RnrTimer;
use crate::wire::packet::pad_for;
use crate::wire::{Headers, NakCode, Opcode, Psn, Syndrome, aeth, atomic_ack_eth, bth};

/// The sequence number of the first packet.
const FIRST: u32 = 0xff_fffe;

const WRITE: SendOp = SendOp::Write { addr: 0x5000, rkey: 0x55, imm: None };
const READ: SendOp = SendOp::Read { addr: 0x5000, rkey: 0x55 };
const ADD: SendOp = SendOp::FetchAdd { addr: 0x5000, rkey: 0x55, add: 1 };
const SEND: SendOp = SendOp::Send { imm: None };

/// A connected queue pair with a path MTU of 256 bytes, and its memory.
struct Fixture {
    host: Host,
    qpn: Qpn,
    mr: Mr,
    wr_id: u64,
}

impl Fixture {
    fn new(service: Service) -> Self {
        Self::with(service, &AttrChange::default())
    }

    /// Returns a fixture with the attributes of [`connected`], except those in `change`.
    fn with(service: Service, change: &AttrChange) -> Self {
        let mut host = Host::new();
        let init = host.init(service);
        let qpn = host.qp(&init, &connected());
        host.modify(qpn, change);
        let mr = host.register(1 << 20, ALL);
        Self { host, qpn, mr, wr_id: 0 }
    }

    /// Posts the operation `count` times.
    fn post_all(&mut self, count: u32, op: SendOp) {
        for _ in 0..count {
            self.post(op, 8);
        }
    }

    fn try_post(&mut self, wr: &SendWr<'_>) -> Result<(), PostRefused> {
        self.host.engine.post_send(self.qpn, wr, self.host.now, &mut self.host.log)
    }

    /// Posts a signalled operation on the first `length` bytes of the memory. Returns its `wr_id`,
    /// which counts from 1.
    fn post(&mut self, op: SendOp, length: u32) -> u64 {
        self.post_flags(op, length, SendFlags { signaled: true, ..SendFlags::default() })
    }

    fn post_flags(&mut self, op: SendOp, length: u32, flags: SendFlags) -> u64 {
        self.wr_id += 1;
        let sges = [self.mr.sge(0, length)];
        let wr = SendWr { wr_id: self.wr_id, op, flags, payload: Payload::Sges(&sges), remote_srq: 7 };
        self.try_post(&wr).unwrap();
        self.wr_id
    }

    fn post_sges(&mut self, op: SendOp, sges: &[Sge]) -> u64 {
        self.wr_id += 1;
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id: self.wr_id, op, flags, payload: Payload::Sges(sges), remote_srq: 7 };
        self.try_post(&wr).unwrap();
        self.wr_id
    }

    /// Returns the opcode of each packet sent and its sequence number relative to [`FIRST`].
    fn leaves(&mut self) -> Vec<(Opcode, u32)> {
        self.host.sent().iter().map(|(headers, _)| (headers.bth.opcode, nth(headers))).collect()
    }

    fn response(&self, opcode: Opcode, nth: u32, syndrome: Syndrome) -> Headers {
        let mut headers = Headers::new(bth::Repr::new(opcode, self.qpn.0, Psn::new(FIRST) + nth));
        headers.aeth = Some(aeth::Repr { syndrome, msn: 0 });
        headers
    }

    /// Delivers an acknowledgement of packet `nth`, counted from 0.
    fn ack(&mut self, nth: u32) {
        self.acknowledge_with(nth, Syndrome::ACK);
    }

    fn nak(&mut self, nth: u32, code: NakCode) {
        self.acknowledge_with(nth, Syndrome::nak(code));
    }

    /// Delivers an RNR NAK for packet `nth` that requests a delay of 0.64 ms.
    fn rnr(&mut self, nth: u32) {
        self.acknowledge_with(nth, Syndrome::rnr_nak(RnrTimer(12)));
    }

    fn acknowledge_with(&mut self, nth: u32, syndrome: Syndrome) {
        let headers = self.response(Opcode::RC_ACKNOWLEDGE, nth, syndrome);
        self.host.arrive(&headers, &[]);
    }

    fn respond(&mut self, opcode: Opcode, nth: u32, data: &[u8]) {
        let mut headers = self.response(opcode, nth, Syndrome::ACK);
        headers.bth.pad_cnt = pad_for(data.len());
        self.host.arrive(&headers, data);
    }

    fn atomic_ack(&mut self, nth: u32, orig: u64) {
        let mut headers = self.response(Opcode::RC_ATOMIC_ACKNOWLEDGE, nth, Syndrome::ACK);
        headers.atomic_ack_eth = Some(atomic_ack_eth::Repr { orig });
        self.host.arrive(&headers, &[]);
    }

    /// Returns the `wr_id` and the status of each work request completed since the last call.
    fn ended(&mut self) -> Vec<(u64, Status)> {
        self.host.completions().iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }

    /// Advances time, then handles expired timers.
    fn pass(&mut self, nanoseconds: u64) {
        self.host.now = self.host.now + nanoseconds;
        self.host.engine.timeout(self.host.now, &mut self.host.log);
    }

    fn state(&self) -> State {
        self.host.state(self.qpn)
    }
}

fn nth(headers: &Headers) -> u32 {
    headers.bth.psn.offset_from(Psn::new(FIRST))
}

/// The acknowledgement time-out in nanoseconds: 4.096 µs × 2¹⁴.
const TIMEOUT: u64 = 4096 << 14;
