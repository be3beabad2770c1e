//! DREQ and DREP: the end of a connection.

use super::super::Cm;
use super::super::event::Event;
use super::super::types::{Address, CmId, State};
use crate::time::Time;
use crate::wire::{Message, drep, dreq, mad};

impl Cm {
    pub(super) fn on_dreq(
        &mut self,
        now: Time,
        from: &Address,
        header: &mad::Repr,
        dreq: &dreq::Repr,
    ) -> Option<()> {
        let Some(id) = self.table.find(dreq.remote_comm_id, Some(dreq.local_comm_id), from.remote) else {
            // A DREQ may overtake the REP that carries its sender's communication id. A response
            // would end the connection on the sender's side only. The peer will send the DREQ
            // again.
            if self.table.find(dreq.remote_comm_id, None, from.remote).is_some() {
                return None;
            }
            // The connection never existed or has ended. The response lets the sender finish.
            self.counters.duplicates += 1;
            self.respond_to_dreq(from, header, dreq);
            return Some(());
        };
        let connection = self.table.get_mut(id)?;
        if connection.queue_pair.local_qpn != dreq.remote_qpn {
            return None;
        }
        match connection.state {
            State::DreqSent if connection.orphan => {
                // Both sides disconnected at the same time. The caller has already destroyed this
                // side.
                self.respond_to_dreq(from, header, dreq);
                self.end(id);
                return Some(());
            }
            State::DreqSent => {
                // Both sides disconnected at the same time, so both want the connection to end.
                connection.state = State::DreqRcvd;
                connection.tid = header.tid;
                let private_data = drep::Data::new(dreq.private_data.as_ref()).ok();
                self.send_drep(id, drep::Data::default());
                self.report(Event::Disconnected { id, private_data });
                self.enter_timewait(now, id);
                return Some(());
            }
            State::RepSent | State::MraRepRcvd | State::Established => {}
            State::Timewait if connection.response.is_some() => {
                self.resend_response(id);
                return Some(());
            }
            State::Timewait => {
                self.counters.duplicates += 1;
                self.respond_to_dreq(from, header, dreq);
                return Some(());
            }
            State::DreqRcvd => {
                self.counters.duplicates += 1;
                return Some(());
            }
            // The handshake is not finished on this side, so the DREQ is ignored. The peer will
            // send it again.
            _ => return None,
        }
        self.begin_release(id, header.tid, dreq.private_data);
        Some(())
    }

    /// Reports the peer's release request to the caller, who responds. `tid` is the request's
    /// transaction id.
    pub(in crate::cm) fn begin_release(&mut self, id: CmId, tid: u64, private_data: dreq::Data) {
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.state = State::DreqRcvd;
        connection.response = None;
        connection.tid = tid;
        self.response_received(id);
        self.report(Event::Disconnecting { id, private_data });
    }

    /// Sends a DREP without private data in response to a DREQ, using only the ids in the DREQ.
    fn respond_to_dreq(&mut self, from: &Address, header: &mad::Repr, dreq: &dreq::Repr) {
        let message = drep::Repr {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: drep::Data::default(),
        };
        self.transmit(*from, Message::from(message).emit(header.tid, 0));
    }

    pub(super) fn on_drep(
        &mut self,
        now: Time,
        from: &Address,
        header: &mad::Repr,
        drep: &drep::Repr,
    ) -> Option<()> {
        let id = self.table.find(drep.remote_comm_id, Some(drep.local_comm_id), from.remote)?;
        let connection = self.table.get(id)?;
        match connection.state {
            State::DreqSent => {}
            // The peer no longer has the connection.
            State::Established if connection.stale_check.is_some_and(|check| check.tid == header.tid) => {}
            _ => return None,
        }
        self.report(Event::Disconnected { id, private_data: Some(drep.private_data) });
        self.enter_timewait(now, id);
        Some(())
    }
}
