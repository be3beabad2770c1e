//! Handling of received messages.

mod handshake;
mod release;
mod request;
mod sidr;

use super::Cm;
use super::types::{Address, CmId};
use crate::time::Time;
use crate::wire::{MAD_LEN, Mad, Message, Method, apr, lap, mad};

impl Cm {
    /// Handles a MAD received on the local queue pair 1. `bytes` is the datagram's payload. Bytes
    /// after the MAD are ignored; a MAD of another class is dropped.
    ///
    /// # References
    /// Linux `cm_recv_handler`, `ib_mad_recv_done`.
    pub fn input(&mut self, now: Time, from: &Address, bytes: &[u8]) {
        self.counters.received += 1;
        if self.handle(now, from, bytes).is_none() {
            self.counters.dropped += 1;
        }
    }

    /// Handles a MAD; returns `None` if the MAD is dropped.
    fn handle(&mut self, now: Time, from: &Address, bytes: &[u8]) -> Option<()> {
        let (header, message) = Message::parse(bytes).ok()?;
        if header.base_version != mad::BASE_VERSION || header.mgmt_class != mad::CLASS {
            return None;
        }
        match header.method {
            Method::SEND if header.class_version == mad::CLASS_VERSION => {}
            Method::GET | Method::SET => return self.reject_method(from, bytes),
            _ => return None,
        }
        match message {
            Message::Req(req) => self.on_req(now, from, &header, &req),
            Message::Mra(mra) => self.on_mra(now, from, &mra),
            Message::Rej(rej) => self.on_rej(now, from, &rej),
            Message::Rep(rep) => self.on_rep(now, from, &header, &rep),
            Message::Rtu(rtu) => self.on_rtu(from, &rtu),
            Message::Dreq(dreq) => self.on_dreq(now, from, &header, &dreq),
            Message::Drep(drep) => self.on_drep(now, from, &header, &drep),
            Message::SidrReq(sidr_req) => self.on_sidr_req(from, &header, &sidr_req),
            Message::SidrRep(sidr_rep) => self.on_sidr_rep(from, &header, &sidr_rep),
            Message::Lap(lap) => self.on_lap(from, &header, &lap),
            // An APR is a response to a LAP, which this side never sends.
            Message::Apr(_) | Message::Other(_) => None,
        }
    }

    /// Responds to Get and Set requests: this class supports no attributes for these methods.
    /// Linux's MAD layer sends the same response if no agent handles them.
    fn reject_method(&mut self, from: &Address, bytes: &[u8]) -> Option<()> {
        let mut response: Mad = *bytes.first_chunk::<MAD_LEN>()?;
        let mut packet = mad::Packet::new_checked(&mut response[..]).ok()?;
        let mut header = mad::Repr::parse(&packet);
        header.method = Method::GET_RESP;
        header.status = mad::STATUS_UNSUPPORTED;
        header.emit(&mut packet);
        self.transmit(*from, response);
        Some(())
    }

    /// Rejects an alternate path of an established connection.
    fn on_lap(&mut self, from: &Address, header: &mad::Repr, lap: &lap::Repr) -> Option<()> {
        let id = self.table.find(lap.remote_comm_id, Some(lap.local_comm_id), from.remote)?;
        if self.table.get(id)?.state != super::State::Established {
            return None;
        }
        let response = apr::Repr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            ap_status: apr::Status::UNSUPPORTED,
            ..apr::Repr::default()
        };
        self.transmit(*from, Message::from(response).emit(header.tid, 0));
        Some(())
    }

    /// Repeats the response to the peer's last message.
    fn resend_response(&mut self, id: CmId) {
        self.counters.duplicates += 1;
        if let Some(connection) = self.table.get(id)
            && let (to, Some(mad)) = (connection.peer, connection.response)
        {
            self.transmit(to, mad);
        }
    }
}
