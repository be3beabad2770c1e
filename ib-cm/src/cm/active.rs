//! The side that requests a connection.

use super::Cm;
use super::connection::{Connection, QueuePair};
use super::types::{Address, CmId, ConnectParams, Path, Refused, State, Transport};
use crate::time::{Time, ack_timeout, nanoseconds};
use crate::wire::{MASK_24, Message, path, req, rtu};

impl Cm {
    /// Requests a connection from a peer: sends a REQ and repeats it until the peer responds or the
    /// retries are used up.
    ///
    /// [`Event::Reply`](super::Event::Reply), [`Event::Rejected`](super::Event::Rejected) or
    /// [`Event::Unreachable`](super::Event::Unreachable) follows.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if a value does not fit its message field; [`Refused::NoRoom`];
    /// [`Refused::NoNumbers`].
    ///
    /// # References
    /// IBTA 12.9.7; Linux `ib_send_cm_req`.
    pub fn connect(&mut self, now: Time, params: &ConnectParams) -> Result<CmId, Refused> {
        check(params)?;
        if self.table.len() >= self.config.max_connections {
            return Err(Refused::NoRoom);
        }
        let local_id = self.draw_local_id().ok_or(Refused::NoNumbers)?;
        let tid = self.draw_tid().ok_or(Refused::NoNumbers)?;
        let path = params.path;
        let peer = Address {
            pkey_index: params.pkey_index,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            ..Address::gsi(path.local, path.remote)
        };
        let mut connection = Connection::new(State::ReqSent, local_id, peer, params.service_id, tid);
        connection.queue_pair = QueuePair {
            transport: params.transport,
            active: true,
            path,
            path_mtu: params.path_mtu,
            local_qpn: params.qp_num,
            remote_qpn: 0,
            rq_psn: params.starting_psn,
            sq_psn: 0,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            ack_timeout: path.packet_life_time + 1,
        };
        connection.timeout =
            nanoseconds(path.packet_life_time) * 2 + nanoseconds(params.remote_cm_response_timeout);
        connection.max_retries = params.max_cm_retries;
        let message = self.request(local_id, params);
        let id = self.table.insert(connection);
        self.send_until_response(now, id, Message::from(message).emit(tid, params.ece.attr_mod));
        Ok(id)
    }

    /// Returns the REQ for a connection with `params`.
    fn request(&self, local_id: u32, params: &ConnectParams) -> req::Repr {
        let is_initiator = params.transport == Transport::Xrc;
        // An initiator queue pair has no receive side.
        let unless_initiator = |number| if is_initiator { 0 } else { number };
        let (transport_service_type, extended_transport_type) = match params.transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
        };
        req::Repr {
            local_comm_id: local_id,
            vendor_id: params.ece.vendor_id,
            service_id: params.service_id,
            local_ca_guid: self.config.node_guid,
            local_qpn: params.qp_num,
            responder_resources: unless_initiator(params.responder_resources),
            initiator_depth: params.initiator_depth,
            remote_cm_response_timeout: params.remote_cm_response_timeout,
            transport_service_type,
            end_to_end_flow_control: params.flow_control,
            starting_psn: params.starting_psn,
            local_cm_response_timeout: params.local_cm_response_timeout,
            retry_count: unless_initiator(params.retry_count),
            partition_key: params.pkey,
            path_mtu: params.path_mtu,
            rnr_retry_count: unless_initiator(params.rnr_retry_count),
            max_cm_retries: params.max_cm_retries,
            srq: params.srq && !is_initiator,
            extended_transport_type,
            primary: self.path(&params.path),
            alternate: params.alternate.map(|path| self.path(&path)).unwrap_or_default(),
            private_data: params.private_data,
            ..req::Repr::default()
        }
    }

    /// Converts a path to the format used in a REQ.
    fn path(&self, path: &Path) -> path::Repr {
        let is_local = path.hop_limit <= 1;
        let lid = if is_local { 0 } else { path::PERMISSIVE_LID };
        path::Repr {
            local_lid: lid,
            remote_lid: lid,
            local_gid: path.local,
            remote_gid: path.remote,
            flow_label: path.flow_label,
            packet_rate: path.rate,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            sl: path.sl,
            subnet_local: is_local,
            local_ack_timeout: ack_timeout(self.config.ack_delay, path.packet_life_time),
        }
    }

    /// Completes the handshake after [`Event::Reply`](super::Event::Reply), once the local queue
    /// pair can send. The connection is then established.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`].
    ///
    /// # References
    /// Linux `ib_send_cm_rtu`.
    pub fn ready_to_use(&mut self, id: CmId, private_data: rtu::Data) -> Result<(), Refused> {
        let connection = self.connection_mut(id)?;
        match connection.state {
            State::RepRcvd | State::MraRepSent => {}
            other => return Err(Refused::State(other)),
        }
        connection.state = State::Established;
        let message = rtu::Repr {
            local_comm_id: connection.local_id,
            remote_comm_id: connection.remote_id.unwrap_or_default(),
            private_data,
        };
        self.send_response(id, message);
        Ok(())
    }
}

fn check(params: &ConnectParams) -> Result<(), Refused> {
    let codes = [
        params.remote_cm_response_timeout,
        params.local_cm_response_timeout,
        params.path.packet_life_time,
        params.alternate.map_or(0, |path| path.packet_life_time),
    ];
    if codes.iter().any(|code| *code > 31) {
        Err(Refused::Invalid("a timeout code exceeds 31"))
    } else if params.retry_count > 7 || params.rnr_retry_count > 7 {
        Err(Refused::Invalid("a number of retries exceeds 7"))
    } else if params.max_cm_retries > 15 {
        Err(Refused::Invalid("a number of retries of messages exceeds 15"))
    } else if params.qp_num > MASK_24 || params.starting_psn > MASK_24 {
        Err(Refused::Invalid("a queue pair or packet sequence number exceeds 24 bits"))
    } else {
        Ok(())
    }
}
