//! [`Passive`]: the side that listens, without I/O: which requests are between their arrival and
//! their establishment, and what becomes of each.
//!
//! ```text
//!   request ─► waiting ─ next_waiting ─┐
//!      │ there is a place              ▼
//!      └─────► SettingUp ─ accepted ─► Accepted ─ Established ─► Established
//!                 │                        │
//!                 │                        ├─ Rejected, Unreachable, ConnectError,
//!                 │                        │  Disconnected, DeviceRemoval ─────────► Failed
//!                 │                        └─ the deadline ────────────────────────► Failed
//!                 └─ dropped: the program rejected it, or its setup failed
//! ```
//!
//! The program sets a request up while other threads read events, so that the end of a request may
//! arrive before [`accepted`](Passive::accepted): it is kept until then. A peer that is slow delays
//! no other one, because each request has a deadline of its own, and their number is bounded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use verbs::{Cause, Errno, Error};

use crate::event::{Event, EventKind};
use crate::id::IdKey;

/// The side that listens.
#[derive(Debug)]
pub(super) struct Passive {
    pending: BTreeMap<IdKey, Stage>,
    /// Requests that wait for a place among the pending ones, and their deadlines, in their order.
    waiting: VecDeque<(IdKey, Option<Instant>)>,
    /// The deadlines of accepted requests, the earliest first.
    deadlines: BTreeSet<(Instant, IdKey)>,
    max_pending: usize,
    max_waiting: usize,
    timeout: Duration,
    /// The events that were read since the last look at the deadlines.
    read: usize,
}

#[derive(Debug)]
enum Stage {
    /// The program sets it up. The outcome, where that came first.
    SettingUp(Option<Outcome>),
    /// The peer's message of establishment is awaited until a deadline.
    Accepted(Option<Instant>),
}

/// The answer to a request's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The program sets it up.
    Pending,
    /// It waits until another one has ended.
    Waiting,
    /// It is rejected.
    None,
}

/// The end of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The connection is established.
    Established,
    /// The peer gave up, or was silent.
    Failed(Error),
}

impl Passive {
    /// Returns the state of a listener without requests.
    pub(super) fn new(max_pending: usize, max_waiting: usize, timeout: Duration) -> Self {
        Self {
            pending: BTreeMap::new(),
            waiting: VecDeque::new(),
            deadlines: BTreeSet::new(),
            // Without a place, a request would wait for ever.
            max_pending: max_pending.max(1),
            max_waiting,
            timeout,
            read: 0,
        }
    }

    /// Enters a request that has arrived now.
    pub(super) fn request(&mut self, key: IdKey, now: Instant) -> Place {
        if self.waiting.is_empty() && self.pending.len() < self.max_pending {
            self.pending.insert(key, Stage::SettingUp(None));
            Place::Pending
        } else if self.waiting.len() < self.max_waiting {
            // Its peer does not wait for longer, and a flood of requests ends.
            self.waiting.push_back((key, now.checked_add(self.timeout)));
            Place::Waiting
        } else {
            Place::None
        }
    }

    /// Returns whether a request waits and there is a place for it.
    pub(super) fn has_next_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.pending.len() < self.max_pending
    }

    /// Returns a request that has waited, and for which there is a place now: the program sets it
    /// up.
    pub(super) fn next_waiting(&mut self) -> Option<IdKey> {
        if !self.has_next_waiting() {
            return None;
        }
        let (key, _) = self.waiting.pop_front()?;
        self.pending.insert(key, Stage::SettingUp(None));
        Some(key)
    }

    /// Notes that the program has accepted a request. Returns the outcome if it came before.
    pub(super) fn accepted(&mut self, key: IdKey, now: Instant) -> Option<Outcome> {
        let stage = self.pending.get_mut(&key)?;
        if let Stage::SettingUp(outcome @ Some(_)) = stage {
            let outcome = outcome.take();
            self.pending.remove(&key);
            return outcome;
        }
        // A deadline beyond the clock's range means no deadline.
        let deadline = now.checked_add(self.timeout);
        *stage = Stage::Accepted(deadline);
        self.deadlines.extend(deadline.map(|deadline| (deadline, key)));
        None
    }

    /// Forgets a request that the program rejected, or could not set up.
    pub(super) fn dropped(&mut self, key: IdKey) {
        if let Some(Stage::Accepted(Some(deadline))) = self.pending.remove(&key) {
            self.deadlines.remove(&(deadline, key));
        }
    }

    /// Handles an event of a request's id. Returns the outcome that it is for one that waits, or
    /// that the program has accepted.
    pub(super) fn event(&mut self, event: Event) -> Option<(IdKey, Outcome)> {
        let key = event.id;
        let Some(stage) = self.pending.get_mut(&key) else {
            let at = self.waiting.iter().position(|(waiting, _)| *waiting == key)?;
            let outcome = outcome(event)?;
            self.waiting.remove(at);
            return Some((key, outcome));
        };
        let outcome = outcome(event)?;
        match stage {
            Stage::SettingUp(Some(Outcome::Failed(_))) => None,
            Stage::SettingUp(early) => {
                *early = Some(outcome);
                None
            }
            Stage::Accepted(_) => {
                self.dropped(key);
                Some((key, outcome))
            }
        }
    }

    /// Notes that an event was read.
    pub(super) fn has_read(&mut self) {
        self.read += 1;
    }

    /// Returns whether a look at the deadlines is due, although more events may wait.
    pub(super) fn is_time_to_expire(&self) -> bool {
        self.read >= READS
    }

    /// Returns a request whose deadline is over, and its failure. Without one, the next look is due
    /// after [`READS`] further events.
    pub(super) fn expired(&mut self, now: Instant) -> Option<(IdKey, Outcome)> {
        let error = Error::new("accept", "", Errno::TIMEDOUT);
        let failed = |reason: String| Outcome::Failed(error.because(Cause::Other { reason: reason.into() }));
        if let Some((_, key)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.dropped(key);
            return Some((
                key,
                failed(format!("the peer did not confirm the connection within {:?}", self.timeout)),
            ));
        }
        let is_over = |(_, deadline): &mut (IdKey, Option<Instant>)| deadline.is_some_and(|at| at <= now);
        if let Some((key, _)) = self.waiting.pop_front_if(is_over) {
            return Some((key, failed(format!("other requests kept it waiting for {:?}", self.timeout))));
        }
        self.read = 0;
        None
    }

    /// Returns the time at which the next request expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_pending = self.deadlines.first().map(|(deadline, _)| *deadline);
        // All have one time-out, so that the first one is the earliest.
        let of_waiting = self.waiting.front().and_then(|(_, deadline)| *deadline);
        of_pending.into_iter().chain(of_waiting).min()
    }
}

/// Returns the outcome that an event is; `None` for one that changes nothing.
fn outcome(event: Event) -> Option<Outcome> {
    let reason = match event.kind {
        EventKind::Established(_) => return Some(Outcome::Established),
        EventKind::Disconnected => "the peer ended the connection before the program had it",
        EventKind::Rejected(_) => "the peer gave up before the connection was established",
        EventKind::Unreachable => "the peer did not confirm the connection",
        EventKind::ConnectError | EventKind::DeviceRemoval => {
            return event.ok().err().map(Outcome::Failed);
        }
        _ => return None,
    };
    let errno = event.status.errno().unwrap_or(Errno::CONNREFUSED);
    Some(Outcome::Failed(Error::new("accept", "", errno).because(Cause::Other { reason: reason.into() })))
}

/// The events that are read until the deadlines are looked at.
const READS: usize = 64;

#[cfg(test)]
mod tests;
