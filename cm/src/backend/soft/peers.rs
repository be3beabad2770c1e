//! Peers on this machine whose process dies silently.
//!
//! ```text
//!   request sent or accepted ─► watch the process with the peer's device, for the id
//!   the process has ended ────► receive its last messages, then end its connections
//! ```
//!
//! The kernel ends the connections of a killed process on a kernel device. The peers of a soft
//! device instead watch a file that the kernel closes with the process
//! ([`PeerProcess`](provider_soft::cm::PeerProcess)). A peer on another machine or in another
//! network namespace cannot be watched; its silence reveals the end.
//!
//! An id keeps watching the process that had the device at the time of the request, because another
//! process may take over the address later.

use provider_soft::cm::{DeviceOwner, Found, Port};

use super::adapter::{INTAKE, OTHERS, RECEIVED, ROUND};
use super::key::{Key, Token};
use super::record::Id;
use super::state::{Peer, Place, State};

impl State {
    /// Watches the process with the device of an id's peer. If that process cannot be watched, the
    /// id keeps the previous watch or notices the end by silence.
    ///
    /// Returns whether the process has exited while a forked child still holds its names.
    pub(super) fn watch_peer(&mut self, key: Key) -> bool {
        if self.has_shared_address(key) {
            self.find_slot(key);
        }
        let Some(id) = self.ids.get(&key) else { return false };
        let Some(adapter) = id.adapter.and_then(|number| self.adapters.get(&number)) else { return false };
        let (place, slot) = ((id.remote, adapter.port.scope_id()), id.remote_slot);
        // A slot counts only at a shared address. 0 means that the slot is unknown.
        let is_own = |port: &Port| {
            (port.gid(), port.scope_id()) == place && (slot == 0 || [0, slot].contains(&port.slot()))
        };
        if self.adapters.values().any(|adapter| is_own(&adapter.port)) {
            return false;
        }
        let is_it = |peer: &Peer| peer.place == place && [0, slot].contains(&peer.slot);
        let last = self.peers.iter().rfind(|(_, peer)| is_it(peer));
        let number = match last {
            // A process that has exited may have sent its request earlier.
            Some((number, peer))
                if self.ended_peers.contains(number) || self.listeners.has_device(&peer.process) =>
            {
                *number
            }
            _ => match self.watch(place, slot) {
                Ok(number) => number,
                // Several processes may share the peer's address.
                Err(Unwatched { has_ended: false }) if slot == 0 && self.find_slot(key) => {
                    return self.watch_peer(key);
                }
                Err(Unwatched { has_ended }) => return has_ended,
            },
        };
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.users += 1;
        }
        let before = self.ids.get_mut(&key).and_then(|id| id.watch.replace(number));
        self.unwatch(before);
        false
    }

    /// Returns whether the peer's address is shared with a device of this process and the peer's
    /// process is unknown.
    fn has_shared_address(&self, key: Key) -> bool {
        let Some(id) = self.ids.get(&key).filter(|id| id.remote_slot == 0) else { return false };
        let mut ports = self.adapters.values().map(|adapter| &adapter.port);
        ports.any(|port| port.slot() != 0 && port.gid() == id.remote)
    }

    /// Finds the slot of the process that listens at the address of an id's peer. Returns whether
    /// such a process exists.
    fn find_slot(&mut self, key: Key) -> bool {
        let Some(id) = self.ids.get_mut(&key) else { return false };
        let adapter = id.adapter.and_then(|number| self.adapters.get(&number));
        let (Some(adapter), Some(peer)) = (adapter, id.peer) else { return false };
        let (device, scope) = (id.remote.to_ipv6().to_canonical(), adapter.port.scope_id());
        let likely = self.listener_slots.get(&peer).copied().unwrap_or(0);
        id.remote_slot = DeviceOwner::slot_of_listener(id.space.0, peer, device, scope, likely);
        let found = id.remote_slot;
        if found != likely && found != 0 {
            if self.listener_slots.len() >= MAX_SLOTS {
                self.listener_slots.pop_first();
            }
            self.listener_slots.insert(peer, found);
        }
        found != 0
    }

    /// Watches the process that currently has a device, selected by its slot if the address is
    /// shared.
    fn watch(&mut self, place: Place, slot: u8) -> Result<u64, Unwatched> {
        self.forget_peers(MAX_PEERS - 1);
        let unseen = Unwatched { has_ended: false };
        if self.peers.len() >= MAX_PEERS {
            return Err(unseen);
        }
        let at = |slot| DeviceOwner::at(place.0.to_ipv6().into(), place.1, slot);
        let (owner, slot) = match at(0) {
            DeviceOwner::Unknown if slot != 0 => (at(slot), slot),
            owner => (owner, 0),
        };
        let process = match owner {
            DeviceOwner::Process(process) => process,
            DeviceOwner::Ended => return Err(Unwatched { has_ended: true }),
            DeviceOwner::Unknown => return Err(unseen),
        };
        let number = self.draw_number();
        self.epoll.add(&process, Token::Peer(number).event()).map_err(|_| unseen)?;
        self.peers.insert(number, Peer { process, place, slot, users: 0 });
        Ok(number)
    }

    /// Releases an id's watched process. A few unused watches are kept for other ids.
    pub(super) fn unwatch(&mut self, number: Option<u64>) {
        let Some(peer) = number.and_then(|number| self.peers.get_mut(&number)) else { return };
        peer.users -= 1;
        if peer.users == 0 {
            self.forget_peers(MAX_IDLE_PEERS);
        }
    }

    /// Stops watching processes that no id has as a peer, oldest first, until `most` remain.
    fn forget_peers(&mut self, most: usize) {
        while self.peers.len() > most
            && let Some((&number, _)) = self.peers.iter().find(|(_, peer)| peer.users == 0)
        {
            self.forget_peer(number);
        }
    }

    fn forget_peer(&mut self, number: u64) {
        if let Some(peer) = self.peers.remove(&number) {
            // Closing is not enough, because a forked child may hold the file as well.
            let _ = self.epoll.delete(&peer.process);
        }
    }

    /// Ends the connections to processes that have exited.
    pub(super) fn end_peers(&mut self) {
        if self.ended_peers.is_empty() {
            return;
        }
        // The processes may have sent data and disconnected before they exited.
        let now = self.now();
        self.adapters.values_mut().for_each(|adapter| adapter.gsi.catch_up());
        // Unknown hosts may send more datagrams in the meantime, so the number of rounds is
        // bounded.
        let adapters: Vec<_> = self.adapters.keys().copied().collect();
        for _ in 0..ROUNDS {
            let has_more =
                adapters.iter().fold(false, |has_more, number| self.receive_from(*number, now) | has_more);
            // This creates the ids of requests among these messages.
            self.flush();
            if !has_more {
                break;
            }
        }
        let ended = core::mem::take(&mut self.ended_peers);
        let mut next = Key::default();
        let is_of = |_, id: &Id| id.watch.is_some_and(|number| ended.contains(&number));
        while let Some(key) = self.next_id(&mut next, is_of) {
            if let Some(id) = self.ids.get_mut(&key) {
                id.watch = None;
            }
            self.end_with_peer(key);
        }
        for number in ended {
            self.forget_peer(number);
        }
    }

    /// Schedules another search for a request's listener, unless the listener's process is watched.
    /// An exiting process closes its files one by one, so the listener's name may still exist when
    /// the device is gone.
    pub(super) fn look_later(&mut self, key: Key) {
        if self.ids.get(&key).is_some_and(|id| id.watch.is_none()) {
            let at = self.now() + LOOK_AGAIN;
            self.looks.insert(key, at);
        }
    }

    /// Searches for the listeners of unanswered requests whose next search is due.
    pub(super) fn look_again(&mut self) {
        let now = self.now();
        let mut next = Key::default();
        while let Some((&key, _)) = self.looks.range(next..).find(|(_, at)| **at <= now) {
            next = Key(key.0 + 1);
            self.looks.remove(&key);
            if !self.is_unanswered(key) {
                continue;
            }
            let has_ended = self.watch_peer(key);
            if has_ended || self.has_no_listener(key) {
                self.end_with_peer(key);
            } else {
                self.look_later(key);
            }
        }
    }

    /// Returns whether this side's request is still unanswered.
    fn is_unanswered(&mut self, key: Key) -> bool {
        let connection = self.connection(key);
        connection.is_ok_and(|(adapter, connection)| {
            use ib_cm::cm::State::{MraReqRcvd, ReqSent, SidrReqSent};
            matches!(adapter.cm.state(connection), Some(ReqSent | MraReqRcvd | SidrReqSent))
        })
    }

    /// Returns whether neither the listener at an id's peer address nor its device exists any more.
    /// A listener that has closed may still reply.
    fn has_no_listener(&mut self, key: Key) -> bool {
        let Some(id) = self.ids.get(&key) else { return false };
        let Some(adapter) = id.adapter.and_then(|number| self.adapters.get(&number)) else { return false };
        let (Some(peer), source) = (id.peer, adapter.port.address()) else { return false };
        let (device, scope) = (id.remote.to_ipv6().into(), adapter.port.scope_id());
        let found = self.listeners.find(id.space.0, source, peer, device);
        matches!(found, Ok(Found::NoListener | Found::Moved(_))) && !DeviceOwner::exists(device, scope)
    }

    /// Ends an id's connection or attempt, because its peer's process has exited.
    pub(super) fn end_with_peer(&mut self, key: Key) {
        let now = self.now();
        let is_full = self.connection(key).is_ok_and(|(adapter, connection)| {
            adapter.cm.peer_ended(now, connection);
            !adapter.cm.has_room()
        });
        if is_full {
            self.flush();
        }
    }
}

/// The reason why a process is not watched.
#[derive(Clone, Copy, Debug)]
struct Unwatched {
    /// Whether the process has exited.
    has_ended: bool,
}

/// The interval between searches for an unanswered request's listener: 1 s, in nanoseconds.
const LOOK_AGAIN: u64 = 1_000_000_000;

/// The number of rounds needed to handle all datagrams of a full queue and a full intake.
const ROUNDS: usize = RECEIVED / OTHERS + INTAKE / ROUND;

/// The maximum number of watched processes. Each watch takes a descriptor.
const MAX_PEERS: usize = 256;

/// The maximum number of listeners whose slots are remembered.
const MAX_SLOTS: usize = 64;

/// The number of watched processes above which unused watches are released.
const MAX_IDLE_PEERS: usize = 16;
