//! Releasing connections: `disconnect`, `destroy` and the timewait.

use super::Cm;
use super::types::{CmId, Refused, RejectParams, SidrReplyParams, State, Transport};
use crate::time::Time;
use crate::wire::{Message, drep, dreq, sidr_rep};

impl Cm {
    /// Disconnects: requests the release of an established connection, or responds to the peer's
    /// request after [`Event::Disconnecting`](super::Event::Disconnecting).
    ///
    /// If this side requested the release, [`Event::Disconnected`](super::Event::Disconnected)
    /// follows. In both cases the last event is
    /// [`Event::TimewaitExit`](super::Event::TimewaitExit).
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`].
    ///
    /// # References
    /// IBTA 12.9.6; Linux `ib_send_cm_dreq`, `ib_send_cm_drep`, and `rdma_disconnect` for both.
    pub fn disconnect(&mut self, now: Time, id: CmId, private_data: dreq::Data) -> Result<(), Refused> {
        match self.connection(id)?.state {
            State::Established => self.send_dreq(now, id, private_data),
            State::DreqRcvd => {
                self.send_drep(id, drep::Data::new(private_data.as_ref()).unwrap_or_default());
                self.enter_timewait(now, id);
            }
            other => return Err(Refused::State(other)),
        }
        Ok(())
    }

    /// Ends a connection or resolution in any state. No more events follow. Events that the caller
    /// has not fetched are dropped.
    ///
    /// | state | message |
    /// |---|---|
    /// | ReqSent, MraReqRcvd | REJ with the reason timeout |
    /// | ReqRcvd, MraReqSent, RepSent, MraRepRcvd, RepRcvd, MraRepSent | REJ, consumer defined |
    /// | Established | DREQ until the peer responds; an XRC target sends none |
    /// | DreqSent | the DREQ until the peer responds |
    /// | DreqRcvd | DREP |
    /// | SidrReqRcvd | SIDR_REP, rejected |
    /// | Timewait, SidrReqSent, ended | none |
    ///
    /// # References
    /// Linux `cm_destroy_id`.
    pub fn destroy(&mut self, now: Time, id: CmId) {
        use State::{
            DreqRcvd, DreqSent, Established, MraRepRcvd, MraRepSent, MraReqRcvd, MraReqSent, RepRcvd,
            RepSent, ReqRcvd, ReqSent, SidrReqRcvd, SidrReqSent, Timewait,
        };
        self.events.retain(|event| event.id() != id);
        let Ok(connection) = self.connection(id) else { return };
        match connection.state {
            ReqSent | MraReqRcvd => self.send_timeout(id),
            ReqRcvd | MraReqSent | RepRcvd | MraRepSent | RepSent | MraRepRcvd => {
                self.send_rej(id, &RejectParams::default());
            }
            Established if connection.is_xrc_target() => {}
            Established => {
                self.send_dreq(now, id, dreq::Data::default());
                return self.abandon(id);
            }
            DreqSent => return self.abandon(id),
            DreqRcvd => self.send_drep(id, drep::Data::default()),
            SidrReqRcvd => {
                let status = sidr_rep::Status::REJECTED;
                self.send_sidr_rep(id, &SidrReplyParams { status, ..SidrReplyParams::default() });
            }
            Timewait | SidrReqSent => {}
        }
        self.end(id);
    }

    /// Returns whether any destroyed connection is still waiting for the response to its DREQ.
    pub fn is_releasing(&self) -> bool {
        self.table.first_orphan().is_some()
    }

    /// Repeats the unanswered DREQs of destroyed connections before their timers expire, for a
    /// caller about to exit.
    pub fn repeat_releases(&mut self) {
        self.transmit_orphans();
    }

    /// Drops a request without a response, because the caller has no capacity for it. When the peer
    /// repeats the request, it counts as a new one.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] if the caller has already responded.
    ///
    /// # References
    /// Linux `cm_destroy_id` after `-ENOMEM` (`cm_reset_to_idle`).
    pub fn forget_request(&mut self, id: CmId) -> Result<(), Refused> {
        match self.connection(id)?.state {
            State::ReqRcvd | State::MraReqSent | State::SidrReqRcvd => {}
            other => return Err(Refused::State(other)),
        }
        self.events.retain(|event| event.id() != id);
        self.counters.overflowed += 1;
        self.end(id);
        Ok(())
    }

    /// Lets the release of a connection finish without the caller's participation.
    fn abandon(&mut self, id: CmId) {
        if let Some(oldest) = self.table.orphan(id, self.config.max_orphans) {
            self.end(oldest);
        }
    }

    /// Sends a DREQ, which requests the release of an established connection.
    pub(super) fn send_dreq(&mut self, now: Time, id: CmId, private_data: dreq::Data) {
        let tid = self.draw_tid();
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.state = State::DreqSent;
        connection.response = None;
        connection.tid = tid.unwrap_or(connection.tid);
        let message = dreq::Repr {
            local_comm_id: connection.local_id,
            remote_comm_id: connection.remote_id.unwrap_or_default(),
            remote_qpn: connection.queue_pair.remote_qpn,
            private_data,
        };
        let mad = Message::from(message).emit(connection.tid, 0);
        self.send_until_response(now, id, mad);
    }

    /// Sends a DREP in response to the peer's DREQ.
    pub(super) fn send_drep(&mut self, id: CmId, private_data: drep::Data) {
        let Some(connection) = self.table.get(id) else { return };
        let message = drep::Repr {
            local_comm_id: connection.local_id,
            remote_comm_id: connection.remote_id.unwrap_or_default(),
            private_data,
        };
        self.send_response(id, message);
    }

    /// Begins the timewait of a connection. A destroyed connection is removed instead; later
    /// messages for it are handled like messages for any unknown connection.
    pub(super) fn enter_timewait(&mut self, now: Time, id: CmId) {
        self.settle(id);
        self.response_received(id);
        self.table.forget_remote(id);
        let max = self.config.max_peer_timeout;
        let Some(connection) = self.table.get_mut(id) else { return };
        if connection.orphan {
            return self.end(id);
        }
        // If this side sent the DREQ, the stored response is from the handshake and must not be
        // sent in response to a DREQ.
        if connection.state != State::DreqRcvd {
            connection.response = None;
        }
        connection.state = State::Timewait;
        let timewait = connection.queue_pair.ack_nanoseconds(max);
        self.table.set_deadline(id, Some(now + timewait));
    }
}

impl super::connection::Connection {
    fn is_xrc_target(&self) -> bool {
        self.queue_pair.transport == Transport::Xrc && !self.queue_pair.active
    }
}
