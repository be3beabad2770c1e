//! The side that accepts a connection.

use super::Cm;
use super::event::Event;
use super::types::{AcceptParams, CmId, Refused, State, Transport};
use crate::time::Time;
use crate::wire::{MASK_24, Message, rep};

impl Cm {
    /// Accepts a request: sends a REP and repeats it until the peer responds or the retries are
    /// used up.
    ///
    /// [`Event::Established`], [`Event::Rejected`] or [`Event::Unreachable`] follows. If the peer's
    /// RTU was lost and the peer has disconnected meanwhile, [`Event::Disconnecting`] follows
    /// instead.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`]; [`Refused::Invalid`] if a value does not fit its
    /// message field.
    ///
    /// # References
    /// IBTA 12.9.8; Linux `ib_send_cm_rep`.
    pub fn accept(&mut self, now: Time, id: CmId, params: &AcceptParams) -> Result<(), Refused> {
        if params.rnr_retry_count > 7 {
            return Err(Refused::Invalid("a number of retries exceeds 7"));
        }
        if params.qp_num > MASK_24 || params.starting_psn > MASK_24 {
            return Err(Refused::Invalid("a queue pair or packet sequence number exceeds 24 bits"));
        }
        let (node_guid, ack_delay) = (self.config.node_guid, self.config.ack_delay);
        let connection = self.connection_mut(id)?;
        match connection.state {
            State::ReqRcvd | State::MraReqSent => {}
            other => return Err(Refused::State(other)),
        }
        connection.state = State::RepSent;
        connection.response = None;
        let pair = &mut connection.queue_pair;
        pair.local_qpn = params.qp_num;
        pair.rq_psn = params.starting_psn;
        pair.initiator_depth = params.initiator_depth;
        pair.responder_resources = params.responder_resources;
        let is_target = pair.transport == Transport::Xrc;
        let message = rep::Repr {
            local_comm_id: connection.local_id,
            remote_comm_id: connection.remote_id.unwrap_or_default(),
            local_qpn: if is_target { 0 } else { params.qp_num },
            local_eecn: if is_target { params.qp_num } else { 0 },
            starting_psn: params.starting_psn,
            responder_resources: params.responder_resources,
            initiator_depth: if is_target { 0 } else { params.initiator_depth },
            target_ack_delay: ack_delay,
            failover_accepted: params.failover_accepted,
            end_to_end_flow_control: params.flow_control && !is_target,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq || is_target,
            local_ca_guid: node_guid,
            private_data: params.private_data,
            ..rep::Repr::default()
        }
        .with_vendor_id(params.ece.vendor_id);
        let mad = Message::from(message).emit(connection.tid, params.ece.attr_mod);
        self.settle(id);
        self.send_until_response(now, id, mad);
        Ok(())
    }

    /// Reports that a packet from the peer has arrived on the local queue pair. The packet counts
    /// as the peer's RTU, which may have been lost: the connection is established and
    /// [`Event::Established`] follows.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`].
    ///
    /// # References
    /// IBTA 12.9.8.3 (communication established); Linux `ib_cm_notify`.
    pub fn established(&mut self, id: CmId) -> Result<(), Refused> {
        let connection = self.connection_mut(id)?;
        match connection.state {
            State::RepSent | State::MraRepRcvd => {}
            other => return Err(Refused::State(other)),
        }
        connection.state = State::Established;
        self.response_received(id);
        self.report(Event::Established { id, private_data: None });
        Ok(())
    }
}
