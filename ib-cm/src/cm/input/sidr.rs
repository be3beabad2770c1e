//! SIDR_REQ and SIDR_REP: service id resolution.

use super::super::Cm;
use super::super::connection::Connection;
use super::super::event::{Event, SidrReply, SidrRequest};
use super::super::types::{Address, State};
use crate::wire::{Ece, Message, mad, sidr_rep, sidr_req};

impl Cm {
    pub(super) fn on_sidr_req(
        &mut self,
        from: &Address,
        header: &mad::Repr,
        req: &sidr_req::Repr,
    ) -> Option<()> {
        if self.table.find_sidr(from.remote, req.request_id).is_some() {
            self.counters.duplicates += 1;
            return Some(());
        }
        let Some(listener) = self.listeners.find(req.service_id) else {
            let message = sidr_rep::Repr {
                request_id: req.request_id,
                status: sidr_rep::Status::UNSUPPORTED,
                service_id: req.service_id,
                ..sidr_rep::Repr::default()
            };
            self.transmit(*from, Message::from(message).emit(header.tid, 0));
            return Some(());
        };
        if self.table.len() >= self.config.max_connections
            || self.events.len() >= self.config.max_events
            || !self.listeners.has_room(listener, &from.remote, self.config.max_pending)
        {
            self.counters.overflowed += 1;
            return Some(());
        }
        let mut connection = Connection::new(State::SidrReqRcvd, 0, *from, req.service_id, header.tid);
        connection.remote_id = Some(req.request_id);
        connection.pending = Some((listener, from.remote));
        let id = self.table.insert(connection);
        self.listeners.add_pending(listener, from.remote);
        self.report(Event::SidrRequest(SidrRequest {
            id,
            listener,
            from: *from,
            pkey: req.partition_key,
            service_id: req.service_id,
            private_data: req.private_data,
        }));
        Some(())
    }

    pub(super) fn on_sidr_rep(
        &mut self,
        from: &Address,
        header: &mad::Repr,
        rep: &sidr_rep::Repr,
    ) -> Option<()> {
        let id = self.table.find(rep.request_id, None, from.remote)?;
        if self.table.get(id)?.state != State::SidrReqSent {
            return None;
        }
        self.end_with(Event::SidrReply(SidrReply {
            id,
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            ece: Ece { vendor_id: rep.vendor_id(), attr_mod: header.attr_mod },
            info: rep.info,
            info_length: rep.info_length.min(sidr_rep::Info::LEN as u8),
            private_data: rep.private_data,
        }));
        Some(())
    }
}
