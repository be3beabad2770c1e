//! Rejections and requests for more time, from either side of a handshake.

use super::Cm;
use super::types::{CmId, Refused, RejectParams, State};
use crate::time::Time;
use crate::wire::{Message, MsgResponse, Reason, mra, rej};

impl Cm {
    /// Rejects a request or a reply, or gives up a local request. The connection then ends without
    /// an event. If the caller had already [accepted](Self::accept) the request, a timewait begins
    /// instead and [`Event::TimewaitExit`](super::Event::TimewaitExit) follows.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] for established connections; [`Refused::Invalid`]
    /// if `ari_length` exceeds 72.
    ///
    /// # References
    /// Linux `ib_send_cm_rej`.
    pub fn reject(&mut self, now: Time, id: CmId, params: &RejectParams) -> Result<(), Refused> {
        use State::{MraRepRcvd, MraRepSent, MraReqRcvd, MraReqSent, RepRcvd, RepSent, ReqRcvd, ReqSent};
        if usize::from(params.ari_length) > rej::Ari::LEN {
            return Err(Refused::Invalid("additional reject information exceeds 72 bytes"));
        }
        match self.connection(id)?.state {
            ReqSent | MraReqRcvd | ReqRcvd | MraReqSent | RepRcvd | MraRepSent => {
                self.send_rej(id, params);
                self.end(id);
            }
            RepSent | MraRepRcvd => {
                self.send_rej(id, params);
                self.enter_timewait(now, id);
            }
            other => return Err(Refused::State(other)),
        }
        Ok(())
    }

    /// Asks the peer for more time to respond to its request or reply. Sends an MRA now and
    /// whenever the peer's message arrives again. `service_timeout` is a 5-bit code.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`]; [`Refused::Invalid`] if the code exceeds 31.
    ///
    /// # References
    /// IBTA 12.9.8.2, 12.9.8.3; Linux `ib_send_cm_mra`.
    pub fn send_mra(
        &mut self,
        id: CmId,
        service_timeout: u8,
        private_data: mra::Data,
    ) -> Result<(), Refused> {
        self.prepare_mra(id, service_timeout, private_data)?;
        let connection = self.connection(id)?;
        if let (to, Some(mad)) = (connection.peer, connection.response) {
            self.transmit(to, mad);
        }
        Ok(())
    }

    /// Asks for more time as [`send_mra`](Self::send_mra) does, but sends the MRA only if the
    /// peer's message arrives again. If the caller responds soon enough, no MRA is sent. Linux's
    /// `rdma_cm` does this with code 24.
    ///
    /// # Errors
    /// Same as [`send_mra`](Self::send_mra).
    ///
    /// # References
    /// Linux `ib_prepare_cm_mra`, before 6.17 `IB_CM_MRA_FLAG_DELAY`.
    pub fn prepare_mra(
        &mut self,
        id: CmId,
        service_timeout: u8,
        private_data: mra::Data,
    ) -> Result<(), Refused> {
        if service_timeout > 31 {
            return Err(Refused::Invalid("a timeout code exceeds 31"));
        }
        let connection = self.connection_mut(id)?;
        let (state, message_mraed) = match connection.state {
            State::ReqRcvd => (State::MraReqSent, MsgResponse::REQ),
            State::RepRcvd => (State::MraRepSent, MsgResponse::REP),
            other => return Err(Refused::State(other)),
        };
        connection.state = state;
        let message = mra::Repr {
            local_comm_id: connection.local_id,
            remote_comm_id: connection.remote_id.unwrap_or_default(),
            message_mraed,
            service_timeout,
            private_data,
        };
        connection.response = Some(Message::from(message).emit(connection.tid, 0));
        Ok(())
    }

    /// Sends a REJ whose rejected-message field follows from the connection's state.
    pub(super) fn send_rej(&mut self, id: CmId, params: &RejectParams) {
        let Some(connection) = self.table.get(id) else { return };
        let (local_comm_id, message_rejected) = match connection.state {
            State::ReqRcvd => (0, MsgResponse::REQ),
            State::MraReqSent => (connection.local_id, MsgResponse::REQ),
            State::RepRcvd | State::MraRepSent => (connection.local_id, MsgResponse::REP),
            _ => (connection.local_id, MsgResponse::OTHER),
        };
        let message = rej::Repr {
            local_comm_id,
            remote_comm_id: connection.remote_id.unwrap_or_default(),
            message_rejected,
            reject_info_length: params.ari_length,
            reason: params.reason,
            ari: params.ari,
            private_data: params.private_data,
        };
        self.send(id, message);
    }

    /// Sends a REJ with the reason timeout, because this side has given up. The REJ contains this
    /// device's GUID: if the peer's communication id is still unknown, the peer finds the
    /// connection by the GUID.
    pub(super) fn send_timeout(&mut self, id: CmId) {
        let guid = self.config.node_guid.to_be_bytes();
        let params = RejectParams {
            reason: Reason::TIMEOUT,
            ari: rej::Ari::new(&guid).unwrap_or_default(),
            ari_length: guid.len() as u8,
            ..RejectParams::default()
        };
        self.send_rej(id, &params);
    }
}
