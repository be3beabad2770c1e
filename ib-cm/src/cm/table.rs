//! [`Table`]: connections, indexed by id, by communication ids, by the peer's queue pair and by
//! deadline.
//!
//! Invariant: every index entry refers to a connection that is in the table and has the entry's
//! key.

use std::collections::{BTreeMap, BTreeSet};

use super::connection::{Connection, RemoteKey};
use super::types::{Address, CmId, State};
use crate::time::Time;
use crate::wire::{Gid, Mad};

#[derive(Debug, Default)]
pub(super) struct Table {
    connections: BTreeMap<CmId, Connection>,
    by_local_id: BTreeMap<u32, CmId>,
    by_remote_id: BTreeMap<RemoteKey, CmId>,
    by_remote_qp: BTreeMap<RemoteKey, CmId>,
    by_sidr: BTreeMap<(Gid, u32), CmId>,
    timers: BTreeSet<(Time, CmId)>,
    orphans: BTreeSet<CmId>,
    created: u64,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns the earliest deadline and the connection it belongs to.
    pub(super) fn first_timer(&self) -> Option<(Time, CmId)> {
        self.timers.first().copied()
    }

    pub(super) fn get(&self, id: CmId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: CmId) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    pub(super) fn has_local_id(&self, local_id: u32) -> bool {
        self.by_local_id.contains_key(&local_id)
    }

    /// Adds a connection. Its communication id must be unused or 0.
    pub(super) fn insert(&mut self, connection: Connection) -> CmId {
        self.created += 1;
        let id = CmId(self.created);
        if connection.local_id != 0 {
            self.by_local_id.insert(connection.local_id, id);
        }
        if connection.state == State::SidrReqRcvd
            && let Some(remote_id) = connection.remote_id
        {
            self.by_sidr.insert((connection.peer.remote, remote_id), id);
        }
        self.connections.insert(id, connection);
        id
    }

    /// Removes a connection from the table and all indexes.
    pub(super) fn remove(&mut self, id: CmId) -> Option<Connection> {
        self.forget_remote(id);
        self.set_deadline(id, None);
        self.orphans.remove(&id);
        let connection = self.connections.remove(&id)?;
        if self.by_local_id.get(&connection.local_id) == Some(&id) {
            self.by_local_id.remove(&connection.local_id);
        }
        if let Some(remote_id) = connection.remote_id {
            let key = (connection.peer.remote, remote_id);
            if self.by_sidr.get(&key) == Some(&id) {
                self.by_sidr.remove(&key);
            }
        }
        Some(connection)
    }

    /// Returns the connection if the local id, the peer's id and the peer's address all match. A
    /// stranger's message matches no connection.
    pub(super) fn find(&self, local_id: u32, remote_id: Option<u32>, peer: Gid) -> Option<CmId> {
        let id = *self.by_local_id.get(&local_id)?;
        let connection = self.get(id)?;
        (connection.remote_id == remote_id && connection.peer.remote == peer).then_some(id)
    }

    pub(super) fn find_remote_id(&self, key: RemoteKey) -> Option<CmId> {
        self.by_remote_id.get(&key).copied()
    }

    pub(super) fn find_remote_qp(&self, key: RemoteKey) -> Option<CmId> {
        self.by_remote_qp.get(&key).copied()
    }

    pub(super) fn find_sidr(&self, peer: Gid, request_id: u32) -> Option<CmId> {
        self.by_sidr.get(&(peer, request_id)).copied()
    }

    /// Adds a connection to the indexes of peers' communication ids and queue pairs. Neither key
    /// may be in use.
    pub(super) fn know_remote(&mut self, id: CmId) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(key) = connection.remote_id_key() {
            self.by_remote_id.insert(key, id);
        }
        self.by_remote_qp.insert(connection.remote_qp_key(), id);
    }

    /// Removes the peer's communication id and queue pair from the indexes, so that the peer may
    /// use them for another connection.
    pub(super) fn forget_remote(&mut self, id: CmId) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(key) = connection.remote_id_key()
            && self.by_remote_id.get(&key) == Some(&id)
        {
            self.by_remote_id.remove(&key);
        }
        let key = connection.remote_qp_key();
        if self.by_remote_qp.get(&key) == Some(&id) {
            self.by_remote_qp.remove(&key);
        }
    }

    pub(super) fn set_deadline(&mut self, id: CmId, deadline: Option<Time>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(before) = connection.deadline.take() {
            self.timers.remove(&(before, id));
        }
        if let Some(deadline) = deadline {
            connection.deadline = Some(deadline);
            self.timers.insert((deadline, id));
        }
    }

    /// Marks a connection as destroyed by the caller. If there are now more than `max` such
    /// connections, returns the oldest.
    pub(super) fn orphan(&mut self, id: CmId, max: usize) -> Option<CmId> {
        self.connections.get_mut(&id)?.orphan = true;
        self.orphans.insert(id);
        if self.orphans.len() > max { self.orphans.first().copied() } else { None }
    }

    /// Returns the connection with the lowest id among those destroyed by the caller.
    pub(super) fn first_orphan(&self) -> Option<CmId> {
        self.orphans.first().copied()
    }

    /// Returns the unanswered messages of destroyed connections.
    pub(super) fn orphans(&self) -> impl Iterator<Item = (Address, Mad)> {
        let orphans = self.orphans.iter().filter_map(|id| self.get(*id));
        orphans.filter_map(|orphan| Some((orphan.peer, orphan.sent?)))
    }

    /// Asserts that every entry in the indexes and timers refers to a connection in the table.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let all =
            self.by_local_id.values().chain(self.by_remote_id.values()).chain(self.by_remote_qp.values());
        let all = all.chain(self.by_sidr.values()).chain(&self.orphans);
        assert!(all.chain(self.timers.iter().map(|(_, id)| id)).all(|id| self.connections.contains_key(id)));
    }
}
