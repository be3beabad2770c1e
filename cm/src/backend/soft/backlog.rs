//! [`Backlog`]: a listener's unread requests.
//!
//! A full backlog accepts a request only from an address with fewer unread requests than the
//! address with the most. To make room, the oldest request from the latter address is dropped
//! without a reply, so that its peer sends it again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ib_cm::shares::Shares;
use verbs::Gid;

use super::key::Key;

/// A listener's unread requests.
#[derive(Clone, Debug)]
pub(super) struct Backlog {
    waiting: Arc<Mutex<Shares<Key>>>,
    max: usize,
}

/// A request's slot. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct BacklogSlot {
    waiting: Arc<Mutex<Shares<Key>>>,
    source: Gid,
    key: Key,
}

/// The decision whether a backlog accepts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// There is room only once the request with this key is dropped.
    Instead(Key),
    None,
}

impl Backlog {
    pub(super) fn new(max: usize) -> Self {
        Self { waiting: Arc::default(), max }
    }

    /// Returns whether there is room for a request from an address.
    pub(super) fn room(&self, source: Gid) -> Room {
        let waiting = lock(&self.waiting);
        if waiting.len() < self.max {
            return Room::Free;
        }
        let greediest = waiting.greedier_than(&source.0);
        let oldest = greediest.and_then(|greediest| waiting.from_source(&greediest).next().copied());
        oldest.map_or(Room::None, Room::Instead)
    }

    /// Takes a slot for a request. The caller must hold the manager's lock.
    pub(super) fn take(&self, source: Gid, key: Key) -> BacklogSlot {
        lock(&self.waiting).push(source.0, key);
        BacklogSlot { waiting: Arc::clone(&self.waiting), source, key }
    }
}

impl Drop for BacklogSlot {
    fn drop(&mut self) {
        lock(&self.waiting).remove(&self.source.0, |key| *key == self.key);
    }
}

fn lock(waiting: &Mutex<Shares<Key>>) -> MutexGuard<'_, Shares<Key>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_backlog_takes_a_request_of_a_modest_address_instead_of_the_oldest_one_of_the_greediest() {
        let backlog = Backlog::new(3);
        let [flood, client] = [1, 2].map(|last| Gid([last; 16]));
        let mut places: Vec<_> = [1, 2, 3].map(|key| backlog.take(flood, Key(key))).into();
        assert_eq!((backlog.room(flood), backlog.room(client)), (Room::None, Room::Instead(Key(1))));
        places.remove(0);
        assert_eq!(backlog.room(client), Room::Free);
        places.push(backlog.take(client, Key(4)));
        assert_eq!(backlog.room(client), Room::None, "two and one: no address takes from its equal");
        drop(places);
        assert_eq!(backlog.room(flood), Room::Free);
    }
}
