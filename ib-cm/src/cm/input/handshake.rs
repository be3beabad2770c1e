//! REP, RTU, MRA and REJ: the handshake messages after a REQ.

use super::super::connection::RemoteKey;
use super::super::event::{Event, Rejected, Reply};
use super::super::types::{Address, CmId, State, Transport};
use super::super::{Cm, GIVEN_UP};
use crate::time::{Time, ack_timeout, nanoseconds};
use crate::wire::{Ece, Message, MsgResponse, Reason, mad, mra, rej, rep, rtu};

impl Cm {
    pub(super) fn on_rep(
        &mut self,
        now: Time,
        from: &Address,
        header: &mad::Repr,
        rep: &rep::Repr,
    ) -> Option<()> {
        let Some(id) = self.table.find(rep.remote_comm_id, None, from.remote) else {
            return self.on_duplicate_rep(from, rep);
        };
        let connection = self.table.get(id)?;
        match connection.state {
            State::ReqSent | State::MraReqRcvd => {}
            _ => return None,
        }
        let remote_qpn = match connection.queue_pair.transport {
            Transport::Xrc => rep.local_eecn,
            Transport::Rc | Transport::Uc => rep.local_qpn,
        };
        if self.table.find_remote_id((from.remote, rep.local_ca_guid, rep.local_comm_id)).is_some() {
            return None;
        }
        if let Some(stale) = self.table.find_remote_qp((from.remote, rep.local_ca_guid, remote_qpn)) {
            let message = rej::Repr {
                local_comm_id: rep.remote_comm_id,
                remote_comm_id: rep.local_comm_id,
                message_rejected: MsgResponse::REP,
                reason: Reason::STALE_CONN,
                ..rej::Repr::default()
            };
            self.transmit(*from, Message::from(message).emit(header.tid, 0));
            self.check_stale(now, stale);
            return Some(());
        }

        let connection = self.table.get_mut(id)?;
        connection.state = State::RepRcvd;
        connection.remote_id = Some(rep.local_comm_id);
        connection.remote_ca_guid = rep.local_ca_guid;
        let pair = &mut connection.queue_pair;
        pair.remote_qpn = remote_qpn;
        pair.sq_psn = rep.starting_psn;
        pair.initiator_depth = rep.responder_resources;
        pair.responder_resources = rep.initiator_depth;
        pair.rnr_retry_count = rep.rnr_retry_count;
        pair.ack_timeout = ack_timeout(rep.target_ack_delay, pair.path.packet_life_time);
        self.table.know_remote(id);
        self.response_received(id);
        self.report(Event::Reply(Reply {
            id,
            remote_ca_guid: rep.local_ca_guid,
            remote_qkey: rep.local_qkey,
            remote_qpn,
            starting_psn: rep.starting_psn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            target_ack_delay: rep.target_ack_delay,
            failover_accepted: rep.failover_accepted,
            flow_control: rep.end_to_end_flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ece: Ece { vendor_id: rep.vendor_id(), attr_mod: header.attr_mod },
            private_data: rep.private_data,
        }));
        Some(())
    }

    /// Repeats the response to a repeated REP, because the RTU or MRA was lost.
    fn on_duplicate_rep(&mut self, from: &Address, rep: &rep::Repr) -> Option<()> {
        let id = self.table.find(rep.remote_comm_id, Some(rep.local_comm_id), from.remote)?;
        match self.table.get(id)?.state {
            State::Established | State::MraRepSent => self.resend_response(id),
            _ => self.counters.duplicates += 1,
        }
        Some(())
    }

    pub(super) fn on_rtu(&mut self, from: &Address, rtu: &rtu::Repr) -> Option<()> {
        let id = self.table.find(rtu.remote_comm_id, Some(rtu.local_comm_id), from.remote)?;
        let connection = self.table.get_mut(id)?;
        match connection.state {
            State::RepSent | State::MraRepRcvd => {}
            _ => {
                self.counters.duplicates += 1;
                return Some(());
            }
        }
        connection.state = State::Established;
        self.response_received(id);
        self.report(Event::Established { id, private_data: Some(rtu.private_data) });
        Some(())
    }

    pub(super) fn on_mra(&mut self, now: Time, from: &Address, mra: &mra::Repr) -> Option<()> {
        let remote_id = match mra.message_mraed {
            MsgResponse::REQ => None,
            MsgResponse::REP | MsgResponse::OTHER => Some(mra.local_comm_id),
            _ => return None,
        };
        let id = self.table.find(mra.remote_comm_id, remote_id, from.remote)?;
        let max = self.config.max_peer_timeout;
        let connection = self.table.get_mut(id)?;
        connection.state = match (connection.state, mra.message_mraed) {
            (State::ReqSent, MsgResponse::REQ) => State::MraReqRcvd,
            (State::RepSent, MsgResponse::REP) => State::MraRepRcvd,
            (State::MraReqRcvd | State::MraRepRcvd, _) => {
                self.counters.duplicates += 1;
                return Some(());
            }
            _ => return None,
        };
        // The extended timeout also applies to repetitions of this message, but not to later
        // messages.
        let extended = nanoseconds(mra.service_timeout.min(max)) + connection.queue_pair.ack_nanoseconds(max);
        connection.extended = Some(extended);
        let deadline = now + extended;
        self.table.set_deadline(id, Some(deadline));
        self.report(Event::MraReceived {
            id,
            service_timeout: mra.service_timeout,
            private_data: mra.private_data,
        });
        Some(())
    }

    pub(super) fn on_rej(&mut self, now: Time, from: &Address, rej: &rej::Repr) -> Option<()> {
        let Some(id) = self.find_rejected(from, rej) else {
            self.remember_given_up(given_up(from, rej)?);
            return None;
        };
        self.end_rejected(now, id, rej)
    }

    /// Records a request that its sender has given up. If the REJ has overtaken the request, the
    /// request still arrives, but the sender would ignore a REP.
    fn remember_given_up(&mut self, key: RemoteKey) {
        if self.given_up.contains(&key) {
            return;
        }
        if self.given_up.len() == GIVEN_UP {
            self.given_up.pop_front();
        }
        self.given_up.push_back(key);
    }

    /// Ends a connection or an attempt that the peer rejected. Returns `None` in states without
    /// this transition.
    pub(in crate::cm) fn end_rejected(&mut self, now: Time, id: CmId, rej: &rej::Repr) -> Option<()> {
        let state = self.table.get(id)?.state;
        let timewait = match state {
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::ReqRcvd
            | State::MraReqSent => rej.reason == Reason::STALE_CONN,
            State::DreqSent | State::RepRcvd | State::MraRepSent | State::Established => true,
            State::DreqRcvd | State::Timewait | State::SidrReqSent | State::SidrReqRcvd => return None,
        };
        self.report(Event::Rejected(Rejected {
            id,
            reason: rej.reason,
            ari: rej.ari,
            ari_length: rej.reject_info_length.min(rej::Ari::LEN as u8),
            private_data: rej.private_data,
            timewait,
        }));
        if timewait {
            self.enter_timewait(now, id);
        } else {
            self.end(id);
        }
        Some(())
    }

    /// Returns the connection that a REJ refers to. The sender may not know this side's
    /// communication id: it may have given up its own request or have rejected a request without
    /// storing it.
    fn find_rejected(&self, from: &Address, rej: &rej::Repr) -> Option<CmId> {
        let by_both = || self.table.find(rej.remote_comm_id, Some(rej.local_comm_id), from.remote);
        let by_own = || self.table.find(rej.remote_comm_id, None, from.remote);
        match (rej.reason, rej.message_rejected) {
            (Reason::TIMEOUT, _) if rej.remote_comm_id == 0 => {
                let id = self.table.find_remote_id(given_up(from, rej)?)?;
                // In any later state, the peer already has this side's communication id.
                let is_asked = matches!(
                    self.table.get(id)?.state,
                    State::ReqRcvd | State::MraReqSent | State::RepSent | State::MraRepRcvd
                );
                is_asked.then_some(id)
            }
            (Reason::TIMEOUT, _) => by_both().or_else(by_own),
            (_, MsgResponse::REQ) => by_own(),
            _ => by_both(),
        }
    }
}

/// Returns the key of a request that its sender has given up, or `None` if the REJ is for another
/// message.
fn given_up(from: &Address, rej: &rej::Repr) -> Option<RemoteKey> {
    if rej.reason != Reason::TIMEOUT || rej.remote_comm_id != 0 {
        return None;
    }
    let (guid, _) = rej.ari.bytes().split_first_chunk()?;
    Some((from.remote, u64::from_be_bytes(*guid), rej.local_comm_id))
}
