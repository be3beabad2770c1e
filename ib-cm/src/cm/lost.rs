//! Peers whose process has ended without a message.

use super::Cm;
use super::connection::Connection;
use super::event::{Event, SidrReply};
use super::types::{CmId, State};
use crate::time::Time;
use crate::wire::{Ece, Reason, drep, dreq, rej, sidr_rep};

impl Cm {
    /// Ends a connection or an attempt because the peer's process has ended. On Linux, the kernel
    /// would send a message on behalf of that process. This call reports the event which that
    /// message would cause.
    ///
    /// | state | event |
    /// |---|---|
    /// | ReqRcvd, MraReqSent | Rejected, time-out |
    /// | any other before Established | Rejected, consumer defined |
    /// | Established | Disconnecting |
    /// | DreqSent | Disconnected |
    /// | SidrReqSent | SidrReply, rejected |
    /// | DreqRcvd, Timewait, SidrReqRcvd, ended | none: the remaining steps continue |
    ///
    /// The caller must first pass all messages from that process to [`input`](Self::input).
    ///
    /// # References
    /// Linux `cm_destroy_id`.
    pub fn peer_ended(&mut self, now: Time, id: CmId) {
        use State::{
            DreqRcvd, DreqSent, Established, MraRepRcvd, MraRepSent, MraReqRcvd, MraReqSent, RepRcvd,
            RepSent, ReqRcvd, ReqSent, SidrReqRcvd, SidrReqSent, Timewait,
        };
        let Ok(&Connection { state, tid, .. }) = self.connection(id) else { return };
        match state {
            ReqSent | MraReqRcvd | ReqRcvd | MraReqSent | RepSent | MraRepRcvd | RepRcvd | MraRepSent => {
                let is_asked = matches!(state, ReqRcvd | MraReqSent);
                let reason = if is_asked { Reason::TIMEOUT } else { Reason::CONSUMER_DEFINED };
                let _ = self.end_rejected(now, id, &rej::Repr { reason, ..rej::Repr::default() });
            }
            Established => self.begin_release(id, tid, dreq::Data::default()),
            DreqSent => {
                self.report(Event::Disconnected { id, private_data: Some(drep::Data::default()) });
                self.enter_timewait(now, id);
            }
            SidrReqSent => self.end_with(Event::SidrReply(SidrReply {
                id,
                status: sidr_rep::Status::REJECTED,
                qpn: 0,
                qkey: 0,
                ece: Ece::default(),
                info: sidr_rep::Info::default(),
                info_length: 0,
                private_data: sidr_rep::Data::default(),
            })),
            DreqRcvd | Timewait | SidrReqRcvd => {}
        }
    }
}
