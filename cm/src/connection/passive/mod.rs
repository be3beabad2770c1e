//! [`Passive`]: the state machine of the listening side, without I/O. It tracks each request from
//! its arrival to its establishment.
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
//! The program sets up a request while other threads read events, so a request may end before
//! [`accepted`](Passive::accepted). Its outcome is kept until then. A slow peer does not delay
//! others, because each request has a deadline and the number of requests is bounded.
//!
//! # Floods
//! An unknown peer that sends requests and confirms none could occupy all slots until their
//! deadlines. Each source address therefore has a share. If a request does not fit, the address
//! with the most requests loses its oldest request, provided that it still has at least as many
//! requests as the new request's address afterwards:
//!
//! | full | removed |
//! |---|---|
//! | the waiting requests | the oldest waiting one, immediately |
//! | the pending requests | the oldest one not confirmed by its peer within [`GRACE`] |

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_cm::shares::Shares;
use verbs::{Cause, Errno, Error};

use crate::event::{Event, EventKind};
use crate::id::IdKey;

/// The state machine of the listening side.
#[derive(Debug)]
pub(super) struct Passive {
    pending: BTreeMap<IdKey, Pending>,
    /// The keys of all requests with a slot, by source address.
    shares: Shares<IdKey>,
    /// Requests waiting for a slot, by source address.
    waiting: Shares<IdKey>,
    /// The source addresses and deadlines of waiting requests.
    waits: BTreeMap<IdKey, (Source, Option<Instant>)>,
    /// The deadlines of waiting requests, earliest first.
    waits_until: BTreeSet<(Instant, IdKey)>,
    /// The source address that gets the freed slot.
    preferred: Option<Source>,
    /// The deadlines of accepted requests, earliest first.
    deadlines: BTreeSet<(Instant, IdKey)>,
    max_pending: usize,
    max_waiting: usize,
    timeout: Duration,
    /// The number of events read since the last check of the deadlines.
    read: usize,
}

/// The source address of a request, as a GID.
pub(super) type Source = [u8; 16];

/// A request with a slot.
#[derive(Debug)]
struct Pending {
    source: Source,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The program sets up the request. Holds the outcome if it is already known.
    SettingUp(Option<Outcome>),
    /// The program has accepted; the peer must confirm before the deadline.
    Accepted { since: Instant, deadline: Option<Instant> },
}

/// The decision on a new request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The program sets up the connection.
    Pending,
    /// The request waits until another request has ended.
    Waiting,
    /// The request with this key is dropped, so that the new request can wait in its place.
    Instead(IdKey),
    /// The request is dropped without a reply; its peer sends it again.
    None,
}

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The connection is established.
    Established,
    /// The peer gave up, or did not reply in time.
    Failed(Error),
}

impl Passive {
    /// Creates the state of a listener without requests.
    pub(super) fn new(max_pending: usize, max_waiting: usize, timeout: Duration) -> Self {
        Self {
            pending: BTreeMap::new(),
            shares: Shares::default(),
            waiting: Shares::default(),
            waits: BTreeMap::new(),
            waits_until: BTreeSet::new(),
            preferred: None,
            deadlines: BTreeSet::new(),
            // Without slots, requests would wait forever.
            max_pending: max_pending.max(1),
            max_waiting,
            timeout,
            read: 0,
        }
    }

    /// Adds a request that has just arrived.
    pub(super) fn request(&mut self, key: IdKey, source: Source, now: Instant) -> Admission {
        if self.waiting.is_empty() && self.pending.len() < self.max_pending {
            self.begin(key, source);
            return Admission::Pending;
        }
        let mut admission = Admission::Waiting;
        if self.waiting.len() >= self.max_waiting {
            let Some(oldest) = self.waiting.greedier_than(&source).and_then(|of| self.waiting.pop(&of))
            else {
                return Admission::None;
            };
            self.forget_wait(oldest);
            admission = Admission::Instead(oldest);
        }
        // By then the peer has stopped waiting. The deadline also drains a flood of requests.
        let deadline = now.checked_add(self.timeout);
        self.waiting.push(source, key);
        self.waits.insert(key, (source, deadline));
        self.waits_until.extend(deadline.map(|deadline| (deadline, key)));
        admission
    }

    /// Returns whether a request is waiting and a slot is free for it.
    pub(super) fn has_next_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.pending.len() < self.max_pending
    }

    /// Gives a free slot to a waiting request and returns the request, for the program to set up.
    /// Addresses are served in rotation.
    pub(super) fn next_waiting(&mut self) -> Option<IdKey> {
        if !self.has_next_waiting() {
            return None;
        }
        let preferred = self.preferred.take().and_then(|source| self.waiting.pop(&source));
        let key = preferred.or_else(|| self.waiting.pop_in_turn())?;
        let (source, _) = self.forget_wait(key)?;
        self.begin(key, source);
        Some(key)
    }

    /// Frees a slot for a waiting request, if another address has more than its share. Returns the
    /// request that loses its slot, with its failure.
    pub(super) fn make_place(&mut self, now: Instant) -> Option<(IdKey, Outcome)> {
        let Displacement { at, key, instead } = self.displacement()?;
        if at > now {
            return None;
        }
        self.preferred = Some(instead);
        self.dropped(key);
        let reason = "the peer did not confirm the connection, and its address has more than its share of \
                      the pending requests (ListenerInit::max_pending)";
        let error = Error::new("accept", "", Errno::AGAIN);
        Some((key, Outcome::Failed(error.because(Cause::Other { reason: reason.into() }))))
    }

    /// Returns the next request to lose its slot, if all slots are taken.
    fn displacement(&self) -> Option<Displacement> {
        if self.waiting.is_empty() || self.pending.len() < self.max_pending {
            return None;
        }
        let instead = self.waiting.by_count().take(MODEST).min_by_key(|source| self.shares.count(source))?;
        let greediest = self.shares.greedier_than(&instead)?;
        self.shares.from_source(&greediest).find_map(|key| match self.pending.get(key)?.stage {
            Stage::Accepted { since, .. } => {
                Some(Displacement { at: since.checked_add(GRACE)?, key: *key, instead })
            }
            Stage::SettingUp(_) => None,
        })
    }

    fn begin(&mut self, key: IdKey, source: Source) {
        self.pending.insert(key, Pending { source, stage: Stage::SettingUp(None) });
        self.shares.push(source, key);
    }

    /// Removes a waiting request's address and deadline, but leaves the request in
    /// [`Self::waiting`].
    fn forget_wait(&mut self, key: IdKey) -> Option<(Source, Option<Instant>)> {
        let wait = self.waits.remove(&key)?;
        if let (_, Some(deadline)) = wait {
            self.waits_until.remove(&(deadline, key));
        }
        Some(wait)
    }

    /// Removes a request from the waiting requests.
    fn end_wait(&mut self, key: IdKey) {
        if let Some((source, _)) = self.forget_wait(key) {
            self.waiting.remove(&source, |waiting| *waiting == key);
        }
    }

    /// Records that the program has accepted a request. Returns the outcome if it is already known.
    pub(super) fn accepted(&mut self, key: IdKey, now: Instant) -> Option<Outcome> {
        let Pending { stage, .. } = self.pending.get_mut(&key)?;
        if let Stage::SettingUp(outcome @ Some(_)) = stage {
            let outcome = outcome.take();
            self.dropped(key);
            return outcome;
        }
        // A deadline beyond the clock's range means no deadline.
        let deadline = now.checked_add(self.timeout);
        *stage = Stage::Accepted { since: now, deadline };
        self.deadlines.extend(deadline.map(|deadline| (deadline, key)));
        None
    }

    /// Removes a request that the program rejected or could not set up.
    pub(super) fn dropped(&mut self, key: IdKey) {
        let Some(Pending { source, stage }) = self.pending.remove(&key) else { return };
        self.shares.remove(&source, |pending| *pending == key);
        if let Stage::Accepted { deadline: Some(deadline), .. } = stage {
            self.deadlines.remove(&(deadline, key));
        }
    }

    /// Handles an event of a request's id. Returns the outcome if the request was accepted. Waiting
    /// requests have no events, because channels drop them until the id is accepted.
    pub(super) fn event(&mut self, event: Event) -> Option<(IdKey, Outcome)> {
        let key = event.id;
        let Pending { stage, .. } = self.pending.get_mut(&key)?;
        let outcome = outcome(event)?;
        match stage {
            Stage::SettingUp(Some(Outcome::Failed(_))) => None,
            Stage::SettingUp(early) => {
                *early = Some(outcome);
                None
            }
            Stage::Accepted { .. } => {
                self.dropped(key);
                Some((key, outcome))
            }
        }
    }

    /// Counts an event as read.
    pub(super) fn has_read(&mut self) {
        self.read += 1;
    }

    /// Returns whether the deadlines must be checked although more events may be pending.
    pub(super) fn is_time_to_expire(&self) -> bool {
        self.read >= READS
    }

    /// Returns a request whose deadline has passed, with its failure. If there is none, the next
    /// check happens after [`READS`] further events.
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
        if let Some((_, key)) = self.waits_until.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.end_wait(key);
            return Some((key, failed(format!("other requests kept it waiting for {:?}", self.timeout))));
        }
        self.read = 0;
        None
    }

    /// Returns the time when the next request expires or loses its slot.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_pending = self.deadlines.first().map(|(deadline, _)| *deadline);
        let of_waiting = self.waits_until.first().map(|(deadline, _)| *deadline);
        let of_places = self.displacement().map(|displacement| displacement.at);
        of_pending.into_iter().chain(of_waiting).chain(of_places).min()
    }
}

/// A request that loses its slot, with the time of the loss and the source address that gets the
/// slot.
struct Displacement {
    at: Instant,
    key: IdKey,
    instead: Source,
}

/// Returns the outcome reported by an event, if any.
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

/// The time for a peer to confirm a connection before its slot may go to another address.
/// Confirmations take a few round trips, or longer on a busy peer.
const GRACE: Duration = Duration::from_millis(500);

/// The number of addresses to consider for a free slot, those with the fewest requests first. This
/// bounds each search during a flood with a different address for each request.
const MODEST: usize = 8;

/// The number of events read between checks of the deadlines.
const READS: usize = 64;

#[cfg(test)]
mod tests;
