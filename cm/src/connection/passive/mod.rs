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
//!
//! # Floods
//! A stranger can send requests and confirm none, which fill all places until their deadlines. Each
//! source address therefore has a share. If a request finds no room, the oldest request of the
//! address with the most makes room, provided that address still has at least as many as the other
//! afterwards:
//!
//! | full | makes room |
//! |---|---|
//! | the requests that wait | the oldest one that waits, at once |
//! | the pending ones | the oldest one that the peer has not confirmed for [`GRACE`] |

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_cm::shares::Shares;
use verbs::{Cause, Errno, Error};

use crate::event::{Event, EventKind};
use crate::id::IdKey;

/// The side that listens.
#[derive(Debug)]
pub(super) struct Passive {
    pending: BTreeMap<IdKey, Pending>,
    /// The same requests by source address.
    shares: Shares<IdKey>,
    /// Requests that wait for a place among the pending ones, by source address.
    waiting: Shares<IdKey>,
    /// The addresses and deadlines of requests that wait.
    waits: BTreeMap<IdKey, (Source, Option<Instant>)>,
    /// The same deadlines, the earliest first.
    waits_until: BTreeSet<(Instant, IdKey)>,
    /// The address for which a place was made.
    preferred: Option<Source>,
    /// The deadlines of accepted requests, the earliest first.
    deadlines: BTreeSet<(Instant, IdKey)>,
    max_pending: usize,
    max_waiting: usize,
    timeout: Duration,
    /// The events that were read since the last look at the deadlines.
    read: usize,
}

/// The source address of a request, as a GID.
pub(super) type Source = [u8; 16];

/// A request with a place.
#[derive(Debug)]
struct Pending {
    source: Source,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The program sets it up. The outcome, where that came first.
    SettingUp(Option<Outcome>),
    /// The peer's message of establishment is awaited until a deadline.
    Accepted { since: Instant, deadline: Option<Instant> },
}

/// The answer to a request's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The program sets it up.
    Pending,
    /// It waits until another one has ended.
    Waiting,
    /// It waits in the place of this one, which is dropped.
    Instead(IdKey),
    /// It is dropped without an answer. Its peer sends it again.
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
            shares: Shares::default(),
            waiting: Shares::default(),
            waits: BTreeMap::new(),
            waits_until: BTreeSet::new(),
            preferred: None,
            deadlines: BTreeSet::new(),
            // Without a place, a request would wait for ever.
            max_pending: max_pending.max(1),
            max_waiting,
            timeout,
            read: 0,
        }
    }

    /// Enters a request that has arrived now.
    pub(super) fn request(&mut self, key: IdKey, source: Source, now: Instant) -> Place {
        if self.waiting.is_empty() && self.pending.len() < self.max_pending {
            self.begin(key, source);
            return Place::Pending;
        }
        let mut place = Place::Waiting;
        if self.waiting.len() >= self.max_waiting {
            let Some(oldest) = self.waiting.greedier_than(&source).and_then(|of| self.waiting.pop(&of))
            else {
                return Place::None;
            };
            self.forget_wait(oldest);
            place = Place::Instead(oldest);
        }
        // Its peer waits no longer, and a flood of requests ends.
        let deadline = now.checked_add(self.timeout);
        self.waiting.push(source, key);
        self.waits.insert(key, (source, deadline));
        self.waits_until.extend(deadline.map(|deadline| (deadline, key)));
        place
    }

    /// Returns whether a request waits and there is a place for it.
    pub(super) fn has_next_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.pending.len() < self.max_pending
    }

    /// Returns a request that has waited, and for which there is a place now: the program sets it
    /// up. Addresses take turns.
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

    /// Makes a place for a waiting request, if another address has more than its share. Returns the
    /// request that loses its place, and its failure.
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

    /// Returns the request that loses its place next, if all places are taken.
    fn displacement(&self) -> Option<Displacement> {
        if self.waiting.is_empty() || self.pending.len() < self.max_pending {
            return None;
        }
        let instead = self.waiting.by_count().take(MODEST).min_by_key(|source| self.shares.count(source))?;
        let greediest = self.shares.greedier_than(&instead)?;
        self.shares.of(&greediest).find_map(|key| match self.pending.get(key)?.stage {
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

    /// Removes a request from the wait, except from [`Self::waiting`].
    fn forget_wait(&mut self, key: IdKey) -> Option<(Source, Option<Instant>)> {
        let wait = self.waits.remove(&key)?;
        if let (_, Some(deadline)) = wait {
            self.waits_until.remove(&(deadline, key));
        }
        Some(wait)
    }

    /// Ends the wait of a request.
    fn end_wait(&mut self, key: IdKey) {
        if let Some((source, _)) = self.forget_wait(key) {
            self.waiting.remove(&source, |waiting| *waiting == key);
        }
    }

    /// Notes that the program has accepted a request. Returns the outcome if it came before.
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

    /// Forgets a request that the program rejected, or could not set up.
    pub(super) fn dropped(&mut self, key: IdKey) {
        let Some(Pending { source, stage }) = self.pending.remove(&key) else { return };
        self.shares.remove(&source, |pending| *pending == key);
        if let Stage::Accepted { deadline: Some(deadline), .. } = stage {
            self.deadlines.remove(&(deadline, key));
        }
    }

    /// Handles an event of a request's id. Returns the outcome that it is for one that the program
    /// has accepted. A request that waits has no events: channels drop those of its id until it is
    /// accepted.
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
        if let Some((_, key)) = self.waits_until.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.end_wait(key);
            return Some((key, failed(format!("other requests kept it waiting for {:?}", self.timeout))));
        }
        self.read = 0;
        None
    }

    /// Returns the time at which the next request expires, or loses its place.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_pending = self.deadlines.first().map(|(deadline, _)| *deadline);
        let of_waiting = self.waits_until.first().map(|(deadline, _)| *deadline);
        let of_places = self.displacement().map(|displacement| displacement.at);
        of_pending.into_iter().chain(of_waiting).chain(of_places).min()
    }
}

/// A request that loses its place, the time, and the address that gets the place.
struct Displacement {
    at: Instant,
    key: IdKey,
    instead: Source,
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

/// The time for a peer to confirm a connection before another address may get its place. Peers
/// confirm within a few round trips; a busy one may take longer.
const GRACE: Duration = Duration::from_millis(500);

/// The number of addresses considered for a place, those with the fewest requests first: under a
/// flood from as many addresses as it has requests, each search would otherwise take long.
const MODEST: usize = 8;

/// The events that are read until the deadlines are looked at.
const READS: usize = 64;

#[cfg(test)]
mod tests;
