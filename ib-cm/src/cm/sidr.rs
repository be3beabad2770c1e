//! Service id resolution: looks up the datagram queue pair of a service.

use super::Cm;
use super::connection::Connection;
use super::types::{CmId, Refused, SidrParams, SidrReplyParams, State};
use crate::time::{Time, nanoseconds};
use crate::wire::{MASK_24, Message, sidr_rep, sidr_req};

impl Cm {
    /// Asks a peer for the datagram queue pair of a service: sends a SIDR_REQ and repeats it until
    /// the peer responds or the retries are used up.
    ///
    /// [`Event::SidrReply`](super::Event::SidrReply) or
    /// [`Event::Unreachable`](super::Event::Unreachable) follows.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if a value does not fit its message field; [`Refused::NoRoom`];
    /// [`Refused::NoNumbers`].
    ///
    /// # References
    /// IBTA 12.11; Linux `ib_send_cm_sidr_req`.
    pub fn sidr_request(&mut self, now: Time, params: &SidrParams) -> Result<CmId, Refused> {
        if params.timeout > 31 {
            return Err(Refused::Invalid("a timeout code exceeds 31"));
        }
        if self.table.len() >= self.config.max_connections {
            return Err(Refused::NoRoom);
        }
        let local_id = self.draw_local_id().ok_or(Refused::NoNumbers)?;
        let tid = self.draw_tid().ok_or(Refused::NoNumbers)?;
        let mut connection = Connection::new(State::SidrReqSent, local_id, params.to, params.service_id, tid);
        connection.timeout = nanoseconds(params.timeout);
        connection.max_retries = params.max_cm_retries;
        let message = sidr_req::Repr {
            request_id: local_id,
            partition_key: params.pkey,
            service_id: params.service_id,
            private_data: params.private_data,
        };
        let id = self.table.insert(connection);
        self.send_until_response(now, id, Message::from(message).emit(tid, 0));
        Ok(id)
    }

    /// Responds to [`Event::SidrRequest`](super::Event::SidrRequest). The resolution then ends
    /// without an event. If the response is lost, the peer sends a new request.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`]; [`Refused::Invalid`] if a value does not fit its
    /// message field.
    ///
    /// # References
    /// Linux `ib_send_cm_sidr_rep`.
    pub fn sidr_reply(&mut self, id: CmId, params: &SidrReplyParams) -> Result<(), Refused> {
        if params.qp_num > MASK_24 {
            return Err(Refused::Invalid("a queue pair number exceeds 24 bits"));
        }
        if usize::from(params.info_length) > sidr_rep::Info::LEN {
            return Err(Refused::Invalid("additional information exceeds 72 bytes"));
        }
        match self.connection(id)?.state {
            State::SidrReqRcvd => {}
            other => return Err(Refused::State(other)),
        }
        self.send_sidr_rep(id, params);
        self.end(id);
        Ok(())
    }

    pub(super) fn send_sidr_rep(&mut self, id: CmId, params: &SidrReplyParams) {
        let Some(connection) = self.table.get(id) else { return };
        let message = sidr_rep::Repr {
            request_id: connection.remote_id.unwrap_or_default(),
            status: params.status,
            info_length: params.info_length,
            qpn: params.qp_num,
            service_id: connection.service_id,
            qkey: params.qkey,
            info: params.info,
            private_data: params.private_data,
            ..sidr_rep::Repr::default()
        }
        .with_vendor_id(params.ece.vendor_id);
        let (to, mad) = (connection.peer, Message::from(message).emit(connection.tid, params.ece.attr_mod));
        self.transmit(to, mad);
    }
}
