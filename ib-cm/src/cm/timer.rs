//! Timers: repeated messages, attempts given up, the end of the timewait.

use super::Cm;
use super::event::Event;
use super::types::{CmId, State};
use crate::time::Time;

impl Cm {
    /// Handles all timers that have expired at `now`. Call it once [`deadline`](Self::deadline) has
    /// passed; earlier calls have no effect.
    ///
    /// If memory for more events runs out, the call returns early and the deadline stays in the
    /// past. Fetch the events, then call it again.
    pub fn handle_timeout(&mut self, now: Time) {
        // Each iteration removes the connection or sets its deadline to a time after `now`.
        while let Some((deadline, id)) = self.table.first_timer()
            && deadline <= now
            && self.has_room()
        {
            self.table.set_deadline(id, None);
            self.fire(now, id);
        }
    }

    fn fire(&mut self, now: Time, id: CmId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        if let Some(mad) = connection.sent
            && connection.retries_left > 0
        {
            connection.retries_left -= 1;
            let (to, deadline) = (connection.peer, now + connection.extended.unwrap_or(connection.timeout));
            self.table.set_deadline(id, Some(deadline));
            self.counters.retries += 1;
            return self.transmit(to, mad);
        }
        match connection.state {
            State::ReqSent | State::MraReqRcvd | State::RepSent | State::MraRepRcvd => {
                self.send_timeout(id);
                self.end_with(Event::Unreachable { id });
            }
            State::SidrReqSent => self.end_with(Event::Unreachable { id }),
            State::DreqSent => {
                self.report(Event::Disconnected { id, private_data: None });
                self.enter_timewait(now, id);
            }
            State::Timewait => self.end_with(Event::TimewaitExit { id }),
            State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent
            | State::Established
            | State::DreqRcvd
            | State::SidrReqRcvd => {}
        }
    }
}
