//! The work of the manager's thread: readable files and deadlines.

use ib_cm::time::Time;
use verbs::Errno;

use super::key::{Key, Token};
use super::state::{PendingLookup, Query, State};

impl State {
    /// Returns when the thread next has work to do.
    pub(super) fn deadline(&self) -> Time {
        if !self.unread.is_empty() {
            return Time(0);
        }
        let adapters = self.adapters.values();
        let of_adapters =
            adapters.flat_map(|adapter| [adapter.cm.deadline(), adapter.ends_at, adapter.repeats_at]);
        let of_lookups = self.lookups.values().map(|lookup| lookup.deadline);
        let of_looks = self.looks.values().copied();
        of_adapters
            .flatten()
            .chain(of_lookups)
            .chain(of_looks)
            .chain(self.resumes_at)
            .chain(self.retakes_at)
            .min()
            .unwrap_or(Time(u64::MAX))
    }

    /// Handles all expired deadlines.
    pub(super) fn on_time(&mut self) {
        let now = self.now();
        for adapter in self.adapters.values_mut() {
            adapter.cm.handle_timeout(now);
        }
        // Ids that wait for another id's query come first. Otherwise, ending the querying id could
        // start a new query for an id that has also timed out.
        for is_own in [false, true] {
            let is_late = |lookup: &PendingLookup| {
                lookup.deadline <= now && matches!(lookup.query, Query::Own(_)) == is_own
            };
            let mut next = Key::default();
            while let Some((&key, _)) = self.lookups.range(next..).find(|(_, lookup)| is_late(lookup)) {
                next = Key(key.0 + 1);
                self.end_lookup(key, Err(Errno::TIMEDOUT));
            }
        }
        self.look_again();
        self.take_first_names();
        if self.resumes_at.is_some_and(|at| at <= now) {
            self.resumes_at = None;
            for number in core::mem::take(&mut self.paused) {
                if let Some(name) = self.names.get(&number) {
                    let _ = self.epoll.add(name, Token::Name(number).event());
                }
            }
        }
    }

    /// Serves a readable file.
    pub(super) fn on_ready(&mut self, token: Token) {
        let now = self.now();
        match token {
            // A new device wakes the thread as well.
            Token::Wake | Token::Watch => self.follow_devices(),
            Token::Gsi(number) => {
                self.unread.insert(number);
            }
            Token::Lookup(key) => {
                let Some(PendingLookup { query: Query::Own(lookup), .. }) = self.lookups.get_mut(&key) else {
                    return;
                };
                match lookup.poll() {
                    Ok(None) => {}
                    Ok(Some(route)) => self.end_lookup(key, Ok(route)),
                    Err(errno) => self.end_lookup(key, Err(errno)),
                }
            }
            Token::Peer(number) => self.ended_peers.push(number),
            Token::Name(number) => {
                let Some(name) = self.names.get(&number) else { return };
                if name.reply(&mut self.spare).is_err() {
                    // Clients wait until this process has a free descriptor for them.
                    let _ = self.epoll.delete(name);
                    self.paused.insert(number);
                    self.resumes_at.get_or_insert(now + PAUSE);
                }
            }
        }
    }

    /// Receives a round of MADs for each adapter with pending MADs. The rest are received after
    /// other due work.
    pub(super) fn receive(&mut self) {
        let now = self.now();
        for number in core::mem::take(&mut self.unread) {
            if self.receive_from(number, now) {
                self.unread.insert(number);
            }
        }
    }

    /// Receives a round of MADs for an adapter and returns whether more may be pending.
    pub(super) fn receive_from(&mut self, number: u64, now: Time) -> bool {
        let Some(adapter) = self.adapters.get_mut(&number) else { return false };
        let has_more = adapter.receive(now);
        adapter.watch_forwarder(|file| Ok(self.epoll.add(file, Token::Gsi(number).event())?));
        has_more
    }

    /// Frees a listener's name.
    pub(super) fn forget_name(&mut self, number: u64) {
        if let Some(name) = self.names.remove(&number) {
            if !self.paused.remove(&number) {
                let _ = self.epoll.delete(&name);
            }
            // The name is closed under the lock, so that the next listener finds it free.
            drop(name);
        }
    }
}

/// The pause before clients are served again after descriptors have run out: 100 ms, in
/// nanoseconds.
const PAUSE: u64 = 100_000_000;
