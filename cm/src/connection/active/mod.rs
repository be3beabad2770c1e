//! [`Active`]: the state machine of the connecting side, without I/O. Its inputs are events and the
//! time; its outputs are calls, deadlines and the outcome.
//!
//! ```text
//!        ┌─────── an attempt failed: the next address, if there is one ◄────┐
//!        ▼                                                                  │
//!   ResolveAddr ─ AddrResolved ─► ResolveRoute ─ RouteResolved ─► SetUp, Connect
//!                                                                           │ Established
//!                                                                           ▼
//!                                                                       Connected
//! ```
//!
//! Each attempt has a separate id, because an id can resolve only one address. Events that belong
//! to no step in progress (late or repeated events) change nothing. An attempt fails when its call
//! fails, when the connection manager reports a failure, or when the step times out. The total time
//! limit ends all attempts.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use std::vec;

use verbs::{Cause, Errno, Error};

use super::failure::{ConnectError, ConnectStep};
use super::no_address;
use crate::event::{Event, EventKind, Rejection};
use crate::types::{Peer, PeerParam};

/// The extra time to wait after a resolution's time-out, so that the connection manager reports the
/// failure first, with its reason.
const GRACE: Duration = Duration::from_millis(500);

/// The time limits of each step and of all steps together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) resolve: Duration,
    pub(super) connect: Duration,
    pub(super) total: Option<Duration>,
}

/// The state machine of the connecting side.
#[derive(Debug)]
pub(super) struct Active {
    timeouts: Timeouts,
    /// The deadline of all attempts.
    ends_at: Option<Instant>,
    /// The addresses not tried yet.
    left: vec::IntoIter<SocketAddr>,
    state: State,
    /// The error of the last failed attempt.
    failure: Option<ConnectError>,
}

#[derive(Debug)]
enum State {
    /// An attempt for the next address is due.
    Next,
    /// The call for a step is due.
    Due(SocketAddr, ConnectStep),
    /// The call for a step was made. Its event may have arrived even if the call used up all the
    /// time, because on a busy machine the call waits for other threads' calls.
    Called(SocketAddr, ConnectStep, Option<Instant>),
    /// The state machine waits for the event of a step until a deadline.
    Waiting(SocketAddr, ConnectStep, Option<Instant>),
    /// The connection is established.
    Connected(PeerParam),
    /// The outcome was returned to the driver.
    Over,
}

/// The next action for the driver.
#[derive(Debug)]
pub(super) enum Action {
    /// Create a new id and resolve the address within the given time.
    ResolveAddr(SocketAddr, Duration),
    /// Resolve the route within the given time.
    ResolveRoute(Duration),
    /// Run the program's setup, which creates the queue pair.
    SetUp,
    /// Send the connection request.
    Connect,
    /// Wait for an event, at most until this time.
    Wait(Option<Instant>),
    /// The connection is established, with the parameters of the peer's reply.
    Connected(PeerParam),
    /// All addresses failed.
    Failed(ConnectError),
}

impl Active {
    /// Returns a state machine that connects to the first address that works.
    pub(super) fn new(addresses: Vec<SocketAddr>, timeouts: Timeouts, now: Instant) -> Self {
        // A deadline beyond the clock's range means no deadline, here and below.
        let ends_at = timeouts.total.and_then(|total| now.checked_add(total));
        Self { timeouts, ends_at, left: addresses.into_iter(), state: State::Next, failure: None }
    }

    /// Returns the next action. Each call is returned only once. If a call fails, the driver
    /// reports this to [`call_failed`](Self::call_failed). If the setup fails, the driver ends all
    /// attempts and returns the setup's error.
    pub(super) fn poll(&mut self, now: Instant) -> Action {
        loop {
            match core::mem::replace(&mut self.state, State::Over) {
                State::Next => match self.left.next() {
                    Some(address) => self.state = State::Due(address, ConnectStep::ResolveAddr),
                    None => {
                        return Action::Failed(self.failure.take().unwrap_or_else(|| {
                            ConnectError::new(None, ConnectStep::Lookup, no_address(), None)
                        }));
                    }
                },
                State::Due(address, step) => {
                    if self.is_over(now) {
                        self.state = self.out_of_time(address, step);
                        continue;
                    }
                    if step == ConnectStep::CreateQp {
                        // The time limit of the request starts once the queue pair exists.
                        self.state = State::Due(address, ConnectStep::Connect);
                        return Action::SetUp;
                    }
                    let timeout = self.timeout(step, now);
                    let grace = if step == ConnectStep::Connect { Duration::ZERO } else { GRACE };
                    let deadline = now.checked_add(timeout.saturating_add(grace));
                    let deadline = deadline.into_iter().chain(self.ends_at).min();
                    self.state = State::Called(address, step, deadline);
                    return match step {
                        ConnectStep::ResolveAddr => Action::ResolveAddr(address, timeout),
                        ConnectStep::ResolveRoute => Action::ResolveRoute(timeout),
                        _ => Action::Connect,
                    };
                }
                State::Waiting(address, step, Some(deadline)) if deadline <= now => {
                    if self.is_over(now) {
                        self.state = self.out_of_time(address, step);
                    } else {
                        self.fail(address, step, timed_out(step, self.limit(step)), None);
                    }
                }
                State::Called(address, step, deadline) | State::Waiting(address, step, deadline) => {
                    self.state = State::Waiting(address, step, deadline);
                    return Action::Wait(deadline);
                }
                State::Connected(peer) => return Action::Connected(peer),
                State::Over => return Action::Wait(None),
            }
        }
    }

    /// Handles an event of the attempt's id.
    pub(super) fn event(&mut self, event: Event) {
        let (State::Called(address, step, _) | State::Waiting(address, step, _)) = self.state else { return };
        let is_of_step = match &event.kind {
            EventKind::AddrResolved | EventKind::AddrError => step == ConnectStep::ResolveAddr,
            EventKind::RouteResolved | EventKind::RouteError => step == ConnectStep::ResolveRoute,
            EventKind::Established(_)
            | EventKind::Rejected(_)
            | EventKind::Unreachable
            | EventKind::ConnectError
            | EventKind::Disconnected => step == ConnectStep::Connect,
            EventKind::DeviceRemoval => true,
            _ => false,
        };
        if !is_of_step {
            return;
        }
        let rejection = match &event.kind {
            EventKind::Rejected(rejection) => Some(rejection.clone()),
            _ => None,
        };
        match event.ok().map(|event| event.kind) {
            Ok(EventKind::AddrResolved) => self.state = State::Due(address, ConnectStep::ResolveRoute),
            Ok(EventKind::RouteResolved) => self.state = State::Due(address, ConnectStep::CreateQp),
            Ok(EventKind::Established(Peer::Conn(peer))) => self.state = State::Connected(peer),
            Ok(_) => {
                let reason = "the peer ended the connection while it was made";
                let error = Error::new(step.verb(), "", Errno::IO);
                self.fail(address, step, error.because(Cause::Other { reason: reason.into() }), None);
            }
            Err(error) => self.fail(address, step, error, rejection),
        }
    }

    /// Ends the attempt because the call for its step failed.
    pub(super) fn call_failed(&mut self, error: Error) {
        if let State::Called(address, step, _) | State::Waiting(address, step, _) = self.state {
            self.fail(address, step, error, None);
        }
    }

    /// Returns the address of the current attempt, if any.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self.state {
            State::Due(address, _) | State::Called(address, ..) | State::Waiting(address, ..) => {
                Some(address)
            }
            _ => None,
        }
    }

    /// Ends the attempt. The next attempt uses the next address.
    fn fail(&mut self, address: SocketAddr, step: ConnectStep, error: Error, rejection: Option<Rejection>) {
        self.failure = Some(ConnectError::new(Some(address), step, error, rejection));
        self.state = State::Next;
    }

    /// Ends all attempts because the total time limit has passed.
    fn out_of_time(&mut self, address: SocketAddr, step: ConnectStep) -> State {
        let within = self.timeouts.total.unwrap_or_default();
        let reason = format!("{} when the {within:?} for all steps were over", step.unfinished());
        let error = Error::new(step.verb(), "", Errno::TIMEDOUT);
        let error = error.because(Cause::Other { reason: reason.into() });
        self.failure = Some(ConnectError::new(Some(address), step, error, None));
        self.left = Vec::new().into_iter();
        State::Next
    }

    fn is_over(&self, now: Instant) -> bool {
        self.ends_at.is_some_and(|end| end <= now)
    }

    /// Returns the time limit of a step, at most the rest of the total time.
    fn timeout(&self, step: ConnectStep, now: Instant) -> Duration {
        let left = self.ends_at.map(|end| end.saturating_duration_since(now));
        left.into_iter().chain([self.limit(step)]).min().unwrap_or_default()
    }

    fn limit(&self, step: ConnectStep) -> Duration {
        match step {
            ConnectStep::Connect => self.timeouts.connect,
            _ => self.timeouts.resolve,
        }
    }
}

/// Returns the error for a step that timed out.
fn timed_out(step: ConnectStep, within: Duration) -> Error {
    let reason = format!("{} within {within:?}", step.unfinished());
    Error::new(step.verb(), "", Errno::TIMEDOUT).because(Cause::Other { reason: reason.into() })
}

#[cfg(test)]
mod tests;
