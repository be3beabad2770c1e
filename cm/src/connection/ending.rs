//! [`Ending`]: the end of a connection, without I/O.
//!
//! ```text
//!   Connected ─ Disconnected ────────────────► Ended(ByPeer), and this side confirms
//!       │      ─ Rejected and other failures ► Ended(ByPeer)
//!       │      ─ DeviceRemoval ──────────────► Ended(DeviceRemoved)
//!       │ disconnect
//!       ▼
//!   Disconnecting ─ Disconnected ────────────► Ended(Confirmed), or Ended(Unconfirmed)
//!                 ─ Rejected and other failures ► Ended(ByPeer)
//!                 ─ the deadline ────────────► Ended(Unconfirmed)
//! ```
//!
//! A peer that did not get the final handshake message ends the connection with a reject, although
//! this side is connected.
//!
//! The first end is final: later events and deadlines change nothing.

use core::fmt;
use std::time::{Duration, Instant};

use crate::event::{Event, EventKind};

/// The end of a connection: who ended it, or why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// This side disconnected, and the peer confirmed.
    Confirmed,
    /// This side disconnected, and the peer did not confirm in time.
    Unconfirmed,
    /// The peer disconnected, or gave up because its connection was never established.
    ByPeer,
    /// The device was removed.
    DeviceRemoved,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Confirmed => "disconnected",
            Self::Unconfirmed => "disconnected, and the peer did not confirm it",
            Self::ByPeer => "the peer disconnected",
            Self::DeviceRemoved => "the device was removed",
        })
    }
}

/// The state of a connection from its establishment to its end.
#[derive(Debug, Default)]
pub(super) enum Ending {
    /// Neither side has ended the connection.
    #[default]
    Connected,
    /// This side has ended the connection and waits for the peer until the deadline.
    Disconnecting(Option<Instant>),
    /// The connection has ended.
    Ended(End),
}

impl Ending {
    /// Ends the connection from this side. Returns whether the disconnect call must be made.
    pub(super) fn disconnect(&mut self, now: Instant, timeout: Duration) -> bool {
        if !matches!(self, Self::Connected) {
            return false;
        }
        // A deadline beyond the clock's range means no deadline.
        *self = Self::Disconnecting(now.checked_add(timeout));
        true
    }

    /// Undoes a [`disconnect`](Self::disconnect) after the disconnect call failed.
    pub(super) fn call_failed(&mut self) {
        if matches!(self, Self::Disconnecting(_)) {
            *self = Self::Connected;
        }
    }

    /// Handles an event of the connection. Returns whether this side must confirm the peer's
    /// disconnect.
    pub(super) fn event(&mut self, event: &Event) -> bool {
        let (end, confirms) = match (&*self, &event.kind) {
            (Self::Ended(_), _) => return false,
            (_, EventKind::DeviceRemoval) => (End::DeviceRemoved, false),
            (Self::Connected, EventKind::Disconnected | EventKind::TimewaitExit) => (End::ByPeer, true),
            // An unconfirmed end has an errno as its status.
            (_, EventKind::Disconnected) if event.status.errno().is_some() => (End::Unconfirmed, false),
            // This may be the peer's own simultaneous disconnect instead of a confirmation. In that
            // case the peer waits for a confirmation.
            (_, EventKind::Disconnected) => (End::Confirmed, true),
            (_, EventKind::TimewaitExit) => (End::Confirmed, false),
            (_, EventKind::Rejected(_) | EventKind::Unreachable | EventKind::ConnectError) => {
                (End::ByPeer, false)
            }
            _ => return false,
        };
        *self = Self::Ended(end);
        confirms
    }

    /// Returns the end, if the connection has ended.
    pub(super) fn end(&mut self, now: Instant) -> Option<End> {
        match *self {
            Self::Disconnecting(Some(deadline)) if deadline <= now => {
                *self = Self::Ended(End::Unconfirmed);
                Some(End::Unconfirmed)
            }
            Self::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Returns when the connection ends if the peer has not confirmed by then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Disconnecting(deadline) => *deadline,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use verbs::{Ece, Errno};
    use verbs_core::slots::SlotId;

    use super::*;
    use crate::event::{Rejection, Status};
    use crate::id::IdKey;

    const TIMEOUT: Duration = Duration::from_secs(3);

    fn event(kind: EventKind) -> Event {
        Event { id: IdKey(SlotId(7)), kind, status: Status(0), ece: Ece::default(), param: None }
    }

    #[test]
    fn an_end_by_the_peer_is_confirmed_once() {
        let (mut ending, now) = (Ending::default(), Instant::now());
        assert_eq!((ending.end(now), ending.deadline()), (None, None));
        assert!(ending.event(&event(EventKind::Disconnected)));
        assert!(!ending.event(&event(EventKind::Disconnected)), "a second one");
        assert!(!ending.event(&event(EventKind::TimewaitExit)));
        assert_eq!(ending.end(now), Some(End::ByPeer));
        assert!(!ending.disconnect(now, TIMEOUT), "there is nothing to end any more");
        assert_eq!(ending.end(now), Some(End::ByPeer));
    }

    #[test]
    fn an_end_by_this_side_waits_for_the_peer() {
        let (mut ending, now) = (Ending::default(), Instant::now());
        assert!(ending.disconnect(now, TIMEOUT));
        assert!(!ending.disconnect(now, TIMEOUT), "another thread has made the call");
        assert_eq!((ending.end(now), ending.deadline()), (None, Some(now + TIMEOUT)));
        assert!(!ending.event(&event(EventKind::AddrChange)));
        assert_eq!(ending.end(now), None);
        assert!(ending.event(&event(EventKind::Disconnected)), "the peer may have ended it as well");
        assert!(!ending.event(&event(EventKind::Disconnected)), "a second one");
        assert_eq!((ending.end(now + TIMEOUT), ending.deadline()), (Some(End::Confirmed), None));
    }

    #[test]
    fn a_peer_that_gives_the_establishment_up_ends_the_connection_in_each_state() {
        let (now, rejection) = (Instant::now(), Rejection { reason: None, private_data: Vec::new() });
        for begins in [false, true] {
            for kind in
                [EventKind::Rejected(rejection.clone()), EventKind::Unreachable, EventKind::ConnectError]
            {
                let mut ending = Ending::default();
                if begins {
                    ending.disconnect(now, TIMEOUT);
                }
                assert!(!ending.event(&event(kind)), "there is nothing to confirm");
                assert_eq!(ending.end(now), Some(End::ByPeer));
            }
        }
    }

    #[test]
    fn a_peer_that_does_not_confirm_ends_the_wait_by_the_deadline_or_by_the_protocol() {
        let (mut ending, now) = (Ending::default(), Instant::now());
        ending.disconnect(now, TIMEOUT);
        assert_eq!(ending.end(now + TIMEOUT - Duration::from_nanos(1)), None);
        assert_eq!(ending.end(now + TIMEOUT), Some(End::Unconfirmed));
        ending.event(&event(EventKind::Disconnected));
        assert_eq!(ending.end(now), Some(End::Unconfirmed), "the first end stays");

        let mut ending = Ending::default();
        ending.disconnect(now, TIMEOUT);
        let status = Status(-Errno::TIMEDOUT.raw());
        ending.event(&Event { status, ..event(EventKind::Disconnected) });
        assert_eq!(ending.end(now), Some(End::Unconfirmed));
    }

    #[test]
    fn a_removed_device_ends_the_connection_in_each_state() {
        let now = Instant::now();
        for begins in [false, true] {
            let mut ending = Ending::default();
            if begins {
                ending.disconnect(now, TIMEOUT);
            }
            assert!(!ending.event(&event(EventKind::DeviceRemoval)));
            assert_eq!(ending.end(now), Some(End::DeviceRemoved));
        }
    }

    #[test]
    fn a_failed_call_leaves_the_connection_as_it_was() {
        let (mut ending, now) = (Ending::default(), Instant::now());
        ending.disconnect(now, TIMEOUT);
        ending.call_failed();
        assert_eq!((ending.end(now + TIMEOUT), ending.deadline()), (None, None));
        assert!(ending.event(&event(EventKind::Disconnected)));
        ending.call_failed();
        assert_eq!(ending.end(now), Some(End::ByPeer));
    }

    #[test]
    fn a_timeout_beyond_the_clock_is_no_deadline() {
        let (mut ending, now) = (Ending::default(), Instant::now());
        ending.disconnect(now, Duration::MAX);
        assert_eq!((ending.end(now), ending.deadline()), (None, None));
    }
}
