//! REQ: the first message of a handshake, from an unknown peer.

use super::super::Cm;
use super::super::connection::{Connection, QueuePair, StaleCheck};
use super::super::event::{Event, Request};
use super::super::types::{Address, CmId, Path, State, Transport};
use crate::time::{MILLISECOND, Time, nanoseconds};
use crate::wire::{Ece, MASK_24, Message, MsgResponse, Reason, dreq, mad, path, rej, req};

impl Cm {
    pub(super) fn on_req(
        &mut self,
        now: Time,
        from: &Address,
        header: &mad::Repr,
        req: &req::Repr,
    ) -> Option<()> {
        let key = (from.remote, req.local_ca_guid, req.local_comm_id);
        if let Some(id) = self.table.find_remote_id(key) {
            self.on_duplicate_req(id);
            return Some(());
        }
        if self.given_up.contains(&key) {
            return None;
        }
        let Some(listener) = self.listeners.find(req.service_id) else {
            self.refuse(from, header, req, Reason::INVALID_SERVICE_ID, &[]);
            return Some(());
        };
        let Some(transport) = transport(req) else {
            self.refuse(from, header, req, Reason::INVALID_TRANSPORT_TYPE, &[]);
            return Some(());
        };
        if req.primary.local_gid != from.remote {
            self.refuse(from, header, req, Reason::INVALID_GID, &from.remote);
            return Some(());
        }
        if req.path_mtu.bytes().is_none() {
            self.refuse(from, header, req, Reason::INVALID_MTU, &[]);
            return Some(());
        }
        if let Some(id) = self.table.find_remote_qp((from.remote, req.local_ca_guid, req.local_qpn)) {
            self.refuse(from, header, req, Reason::STALE_CONN, &[]);
            self.check_stale(now, id);
            return Some(());
        }
        if self.table.len() >= self.config.max_connections
            || self.events.len() >= self.config.max_events
            || !self.listeners.has_room(listener, &from.remote, self.config.max_pending)
        {
            self.counters.overflowed += 1;
            return Some(());
        }

        let local_id = self.draw_local_id()?;
        let path = received(&req.primary);
        let mut connection = Connection::new(State::ReqRcvd, local_id, *from, req.service_id, header.tid);
        connection.peer.traffic_class = path.traffic_class;
        connection.peer.flow_label = path.flow_label;
        connection.remote_id = Some(req.local_comm_id);
        connection.remote_ca_guid = req.local_ca_guid;
        connection.timeout = nanoseconds(req.local_cm_response_timeout.min(self.config.max_peer_timeout));
        connection.max_retries = req.max_cm_retries;
        connection.pending = Some((listener, from.remote));
        connection.queue_pair = QueuePair {
            transport,
            active: false,
            path,
            path_mtu: req.path_mtu,
            local_qpn: 0,
            remote_qpn: req.local_qpn,
            rq_psn: 0,
            sq_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ack_timeout: path.packet_life_time + 1,
        };
        let id = self.table.insert(connection);
        self.table.know_remote(id);
        self.listeners.add_pending(listener, from.remote);
        self.report(Event::Request(Request {
            id,
            listener,
            from: *from,
            service_id: req.service_id,
            transport,
            path,
            alternate: req.has_alternate().then(|| received(&req.alternate)),
            pkey: req.partition_key,
            path_mtu: req.path_mtu,
            remote_ca_guid: req.local_ca_guid,
            remote_qkey: req.local_qkey,
            remote_qpn: req.local_qpn,
            starting_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            local_cm_response_timeout: req.remote_cm_response_timeout,
            remote_cm_response_timeout: req.local_cm_response_timeout,
            ece: Ece { vendor_id: req.vendor_id, attr_mod: header.attr_mod },
            private_data: req.private_data,
        }));
        Some(())
    }

    fn on_duplicate_req(&mut self, id: CmId) {
        let Some(connection) = self.table.get(id) else { return };
        match (connection.state, connection.peer, connection.sent) {
            (State::MraReqSent, ..) => self.resend_response(id),
            (State::RepSent | State::MraRepRcvd, to, Some(rep)) => {
                self.counters.duplicates += 1;
                self.transmit(to, rep);
            }
            _ => self.counters.duplicates += 1,
        }
    }

    /// Checks whether the peer still has a connection, because the peer seems to have started
    /// another connection with the same queue pair. Sends a DREQ with an invalid queue pair number.
    /// A peer that still has the connection drops this DREQ. A restarted peer responds with a DREP,
    /// which releases the connection ([`on_drep`](Self::on_drep)).
    pub(super) fn check_stale(&mut self, now: Time, id: CmId) {
        let Some(connection) = self.table.get(id) else { return };
        let is_recent = connection.stale_check.is_some_and(|check| now < check.at + STALE_CHECK_INTERVAL);
        if connection.state != State::Established || is_recent {
            return;
        }
        let Some(tid) = self.draw_tid() else { return };
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.stale_check = Some(StaleCheck { tid, at: now });
        let message = dreq::Repr {
            local_comm_id: connection.local_id,
            remote_comm_id: connection.remote_id.unwrap_or_default(),
            remote_qpn: NO_QPN,
            private_data: dreq::Data::default(),
        };
        let to = connection.peer;
        self.transmit(to, Message::from(message).emit(tid, 0));
    }

    /// Rejects a request without storing anything about it.
    fn refuse(&mut self, from: &Address, header: &mad::Repr, req: &req::Repr, reason: Reason, ari: &[u8]) {
        let message = rej::Repr {
            local_comm_id: 0,
            remote_comm_id: req.local_comm_id,
            message_rejected: MsgResponse::REQ,
            reject_info_length: ari.len() as u8,
            reason,
            ari: rej::Ari::new(ari).unwrap_or_default(),
            private_data: rej::Data::default(),
        };
        self.transmit(*from, Message::from(message).emit(header.tid, 0));
    }
}

/// Returns the kind of connection that a REQ requests; `None` if it is unknown.
fn transport(req: &req::Repr) -> Option<Transport> {
    match (req.transport_service_type, req.extended_transport_type) {
        (0, _) => Some(Transport::Rc),
        (1, _) => Some(Transport::Uc),
        (3, 1) => Some(Transport::Xrc),
        _ => None,
    }
}

/// Converts a path in a REQ to the receiver's point of view.
fn received(path: &path::Repr) -> Path {
    Path {
        local: path.remote_gid,
        remote: path.local_gid,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        sl: path.sl,
        rate: path.packet_rate,
        // The sender added 1 to the code to include the acknowledgement's travel time.
        packet_life_time: path.local_ack_timeout.saturating_sub(1),
    }
}

/// The minimum time between two checks of the same connection, in nanoseconds.
const STALE_CHECK_INTERVAL: u64 = 1000 * MILLISECOND;

/// The queue pair number that marks multicast packets. No connection uses it.
const NO_QPN: u32 = MASK_24;
