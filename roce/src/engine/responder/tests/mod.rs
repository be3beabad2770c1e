//! Requests built by hand, one field at a time, and the responder's reaction.

mod dropped;
mod hostile;
mod infiniband;
mod inline;
mod links;
mod longest;
mod ordered;
mod placement;
mod reads;
mod receives;
mod refused;
mod shared;
mod unreliable;

use alloc::vec::Vec;

use crate::engine::testing::{Host, Mr, connected};
use crate::engine::{AttrChange, Qpn, Service};
use crate::wire::{
    Headers, NakCode, Opcode, Psn, Syndrome, aeth, atomic_eth, bth, imm, packet::pad_for, reth,
};

/// A connected queue pair with a path MTU of 256 bytes, and memory with all remote access rights.
struct Fixture {
    host: Host,
    qpn: Qpn,
    mr: Mr,
    psn: Psn,
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
        let mr = host.register(4096, crate::engine::testing::ALL);
        Self { host, qpn, mr, psn: Psn::new(0xff_fffe) }
    }

    /// Returns a request with the next sequence number. The last packet of a message requests an
    /// acknowledgement.
    fn request(&mut self, opcode: Opcode, payload: &[u8]) -> Headers {
        let mut bth = bth::Repr::new(opcode, self.qpn.0, self.psn);
        bth.pad_cnt = pad_for(payload.len());
        bth.ack_req = opcode.ends_message();
        self.psn = self.psn.next();
        let mut headers = Headers::new(bth);
        headers.imm = opcode.has_imm().then_some(imm::Repr { imm_data: 0xabcd });
        headers
    }

    /// Delivers a request built by [`request`](Self::request).
    fn arrive(&mut self, opcode: Opcode, payload: &[u8]) {
        let headers = self.request(opcode, payload);
        self.host.arrive(&headers, payload);
    }

    /// Returns a write request or a read request for the fixture's memory.
    fn rdma(&mut self, opcode: Opcode, payload: &[u8], offset: u64, dmalen: u32) -> Headers {
        let mut headers = self.request(opcode, payload);
        headers.reth = Some(reth::Repr { va: self.mr.addr + offset, rkey: self.mr.key, dmalen });
        headers
    }

    fn read(&mut self, offset: u64, dmalen: u32) -> Headers {
        let headers = self.rdma(Opcode::RC_RDMA_READ_REQUEST, &[], offset, dmalen);
        self.psn = headers.bth.psn + dmalen.div_ceil(256).max(1);
        headers
    }

    fn fetch_add(&mut self, offset: u64, swap_add: u64) -> Headers {
        let mut headers = self.request(Opcode::RC_FETCH_ADD, &[]);
        let (va, rkey) = (self.mr.addr + offset, self.mr.key);
        headers.atomic_eth = Some(atomic_eth::Repr { va, rkey, swap_add, compare: 0 });
        headers
    }

    fn post(&mut self, wr_id: u64, offset: u64, length: u32) {
        let sge = self.mr.sge(offset, length);
        self.host.post_recv(self.qpn, wr_id, &[sge]);
    }

    /// Returns the opcode, sequence number and syndrome of each packet sent.
    fn sent(&mut self) -> Vec<(Opcode, u32, u8)> {
        let syndrome = |headers: &Headers| headers.aeth.map_or(0, |aeth| aeth.syndrome.0);
        self.host
            .sent()
            .iter()
            .map(|(headers, _)| (headers.bth.opcode, headers.bth.psn.value(), syndrome(headers)))
            .collect()
    }

    fn bytes(&mut self, offset: usize, length: usize) -> Vec<u8> {
        self.host.bytes(&self.mr)[offset..offset + length].to_vec()
    }
}

/// Returns an acknowledgement in the form that [`Fixture::sent`] returns.
fn ack(psn: u32) -> (Opcode, u32, u8) {
    (Opcode::RC_ACKNOWLEDGE, psn, Syndrome::ACK.0)
}

fn nak(psn: u32, code: NakCode) -> (Opcode, u32, u8) {
    (Opcode::RC_ACKNOWLEDGE, psn, Syndrome::nak(code).0)
}

fn rnr(psn: u32, code: u8) -> (Opcode, u32, u8) {
    (Opcode::RC_ACKNOWLEDGE, psn, Syndrome::rnr_nak(aeth::RnrTimer(code)).0)
}

/// Returns `length` bytes that differ from the memory's initial contents.
fn data(length: usize) -> Vec<u8> {
    (0..length).map(|n| 0x80 | (n % 127) as u8).collect()
}
