//! [`State`]: everything protected by the manager's lock.

use std::collections::{BTreeMap, BTreeSet, LinkedList};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ib_cm::time::Time;
use nix::sys::epoll::Epoll;
use provider_soft::cm::{
    AddressWatch, ListenerCache, ListenerName, Lookup, LookupId, PeerProcess, Port, SpareFd,
};
use verbs::{Ece, Errno, Gid, QpType};

use super::adapter::{Adapter, LINGER, REPEAT};
use super::key::{Key, Token};
use super::origin::InterfaceAddress;
use super::param::SoftParam;
use super::ports::Ports;
use super::queue::{Entry, Queue, Requests};
use super::record::{Id, IdState};
use super::request::Request;
use crate::backend::Backend;
use crate::types::{EventType, PortSpace};

/// An id's pending query to a listener or a neighbour.
#[derive(Debug)]
pub(super) struct PendingLookup {
    pub(super) query: Query,
    pub(super) deadline: Time,
    pub(super) continuation: Continuation,
}

/// The query that an id waits for.
#[derive(Debug)]
pub(super) enum Query {
    /// This id started the query.
    Own(Lookup),
    /// Another id started the query.
    Shared(LookupId),
}

/// The operation that continues after a lookup.
#[derive(Debug)]
pub(super) enum Continuation {
    /// The resolution of an address.
    Resolve(SocketAddr, Limits),
    /// A request for a connection or a service.
    Request(Box<Request>),
}

/// The deadlines of a resolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The deadline given by the program.
    pub(super) given: Time,
    /// The minimum deadline if a listener must be queried.
    pub(super) least: Time,
}

/// A watched process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) process: PeerProcess,
    /// The location of the process's device.
    pub(super) place: Place,
    /// The process's slot if the address is shared, otherwise 0.
    pub(super) slot: u8,
    /// The number of ids whose peer is this process.
    pub(super) users: usize,
}

/// The location of a device: its GID and, if link-local, the interface.
pub(super) type Place = (Gid, u32);

/// Everything protected by the manager's lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) ids: BTreeMap<Key, Id>,
    pub(super) adapters: BTreeMap<u64, Adapter>,
    pub(super) ports: Ports,
    pub(super) lookups: BTreeMap<Key, PendingLookup>,
    pub(super) listeners: ListenerCache,
    pub(super) names: BTreeMap<u64, ListenerName>,
    /// Lets listeners respond while the process has no other free descriptor.
    pub(super) spare: SpareFd,
    /// The watched processes of peers on this machine, by their watch number.
    pub(super) peers: BTreeMap<u64, Peer>,
    /// The watch numbers of exited processes whose ids have not been notified yet.
    pub(super) ended_peers: Vec<u64>,
    /// The slots of listeners at shared addresses, as last found.
    pub(super) listener_slots: BTreeMap<SocketAddr, u8>,
    /// The next time to search for a request's listener, by id.
    pub(super) looks: BTreeMap<Key, Time>,
    /// Names whose clients wait until this process has free descriptors. The next attempt is at
    /// `resumes_at`.
    pub(super) paused: BTreeSet<u64>,
    pub(super) resumes_at: Option<Time>,
    /// The time of the next attempt to claim the first names for listeners that hold only second
    /// names.
    pub(super) retakes_at: Option<Time>,
    /// The numbers of adapters with MADs left to receive.
    pub(super) unread: BTreeSet<u64>,
    /// The GIDs of devices whose addresses have left their interfaces, with the interfaces of
    /// link-local addresses.
    pub(super) removed: BTreeSet<([u8; 16], u32)>,
    pub(super) watch: Option<AddressWatch>,
    /// Whether the watch has reported a change that has not been handled yet.
    pub(super) has_changed: bool,
    /// The addresses of this machine, valid until the watch reports a change.
    pub(super) addresses: Option<Vec<InterfaceAddress>>,
    /// The epoll descriptor for the files that the manager's thread waits for.
    pub(super) epoll: Arc<Epoll>,
    /// The time until which the manager's thread sleeps.
    pub(super) sleeps_until: Time,
    /// Values to drop after the lock is released. Each element is a small allocation, as in
    /// [`Requests`].
    pub(super) garbage: LinkedList<Garbage>,
    /// The queue with new events, to signal after the lock is released.
    pub(super) to_wake: Option<Arc<Queue>>,
    origin: Instant,
    last: u64,
}

/// A value whose drop acquires the lock or takes long.
#[derive(Debug)]
#[expect(dead_code, reason = "it is kept to be dropped")]
pub(super) enum Garbage {
    Id(Box<Id>),
    Requests(Requests),
    Request(Box<dyn Backend>),
    Port(Port),
}

impl State {
    pub(super) fn new(epoll: Arc<Epoll>) -> Self {
        // Without the watch, a device exists as long as the process holds it.
        let watch = AddressWatch::open().filter(|watch| epoll.add(watch, Token::Watch.event()).is_ok());
        Self {
            ids: BTreeMap::new(),
            adapters: BTreeMap::new(),
            ports: Ports::default(),
            lookups: BTreeMap::new(),
            listeners: ListenerCache::default(),
            names: BTreeMap::new(),
            spare: SpareFd::new(),
            peers: BTreeMap::new(),
            ended_peers: Vec::new(),
            listener_slots: BTreeMap::new(),
            looks: BTreeMap::new(),
            paused: BTreeSet::new(),
            resumes_at: None,
            retakes_at: None,
            unread: BTreeSet::new(),
            removed: BTreeSet::new(),
            watch,
            has_changed: false,
            addresses: None,
            epoll,
            sleeps_until: Time(0),
            garbage: LinkedList::new(),
            to_wake: None,
            origin: Instant::now(),
            last: 0,
        }
    }

    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Advances the clock.
    #[cfg(test)]
    pub(super) fn advance(&mut self, by: std::time::Duration) {
        self.origin -= by;
    }

    pub(super) fn draw_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds an id and returns its key.
    pub(super) fn create(
        &mut self,
        queue: &Arc<Queue>,
        cookie: u64,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<Key, Errno> {
        let starting_psn = verbs_core::random::draw()? & ib_cm::wire::MASK_24;
        let key = Key(self.draw_number());
        let id = Id::new(queue, cookie, space, qp_type, starting_psn);
        self.ids.insert(key, id);
        Ok(key)
    }

    /// Returns the first id, starting at `next`, that satisfies `is_it`. Moves `next` past this id.
    /// A loop that changes ids therefore needs no copy of the list.
    pub(super) fn next_id(&self, next: &mut Key, is_it: impl Fn(Key, &Id) -> bool) -> Option<Key> {
        let (&key, _) = self.ids.range(*next..).find(|(key, id)| is_it(**key, id))?;
        *next = Key(key.0 + 1);
        Some(key)
    }

    /// Returns an id.
    ///
    /// # Errors
    /// `EINVAL` for an id that has ended; `ENXIO` for an id whose device was removed.
    pub(super) fn id(&mut self, key: Key) -> Result<&mut Id, Errno> {
        self.known(key)?;
        self.ids.get_mut(&key).ok_or(Errno::INVAL)
    }

    /// Returns an id for reading only.
    ///
    /// # Errors
    /// Same as [`id`](Self::id).
    pub(super) fn known(&self, key: Key) -> Result<&Id, Errno> {
        match self.ids.get(&key) {
            Some(Id { state: IdState::Removed, .. }) => Err(Errno::NXIO),
            id => id.ok_or(Errno::INVAL),
        }
    }

    /// Returns a port's adapter. The first call creates it.
    ///
    /// # Errors
    /// The errors of [`Adapter::new`]; `ENODEV` for a removed device; any errno from
    /// `epoll_ctl(2)`.
    pub(super) fn adapter_of(&mut self, port: &Port) -> Result<u64, Errno> {
        let (gid, scope) = (port.gid(), port.scope_id());
        let is_same = |port: &Port| (port.gid(), port.scope_id()) == (gid, scope);
        if let Some((number, _)) = self.adapters.iter().find(|(_, adapter)| is_same(&adapter.port)) {
            return Ok(*number);
        }
        if self.removed.contains(&(gid.0, scope)) {
            if !port.has_address() {
                return Err(Errno::NODEV);
            }
            self.removed.remove(&(gid.0, scope));
        }
        // This comes first, because both calls need much of the caller's stack.
        let has_address = port.has_address();
        self.add_adapter(port, has_address)
    }

    /// Starts using a device.
    ///
    /// # Errors
    /// Same as [`Adapter::new`]; any errno from `epoll_ctl(2)`.
    #[inline(never)]
    fn add_adapter(&mut self, port: &Port, has_address: bool) -> Result<u64, Errno> {
        let adapter = Adapter::new(port, has_address)?;
        let number = self.draw_number();
        self.epoll.add(&adapter.gsi, Token::Gsi(number).event())?;
        if let Some(mailbox) = &adapter.process_mailbox {
            self.epoll.add(mailbox, Token::Gsi(number).event())?;
        }
        self.adapters.insert(number, adapter);
        Ok(number)
    }

    /// Claims the name of a device, so that peers notice the end of this process. Without the name
    /// they notice only its silence.
    pub(super) fn name_device(&mut self, number: u64) {
        let Some(adapter) = self.adapters.get(&number).filter(|_| !self.names.contains_key(&number)) else {
            return;
        };
        let Ok(name) = ListenerName::of_device(&adapter.port) else { return };
        if self.epoll.add(&name, Token::Name(number).event()).is_ok() {
            self.names.insert(number, name);
        }
    }

    /// Assigns a device to an id.
    pub(super) fn attach(&mut self, key: Key, number: u64) {
        let Some(id) = self.ids.get_mut(&key) else { return };
        let before = id.adapter.replace(number);
        if let Some(adapter) = self.adapters.get_mut(&number) {
            adapter.users += 1;
        }
        self.name_device(number);
        self.detach(before);
    }

    pub(super) fn detach(&mut self, number: Option<u64>) {
        if let Some(adapter) = number.and_then(|number| self.adapters.get_mut(&number)) {
            adapter.users = adapter.users.saturating_sub(1);
        }
    }

    /// Queues an event, unless its id [is silent](Id::is_silent).
    pub(super) fn report(&mut self, key: Key, event: EventType, status: i32, param: SoftParam, ece: Ece) {
        if let Some(id) = self.ids.get(&key).filter(|id| !id.is_silent) {
            let (queue, cookie) = (Arc::clone(&id.queue), id.cookie);
            self.push(queue, Entry { owner: key, cookie, event, status, param, ece, request: None });
        }
    }

    /// Queues an event. If memory is short, the event is lost.
    pub(super) fn push(&mut self, queue: Arc<Queue>, entry: Entry) {
        if let Some(lost) = queue.push(entry) {
            self.garbage.extend(lost.request.map(|request| Garbage::Request(request.id)));
            return;
        }
        self.wake_readers(queue);
    }

    /// Wakes the readers of a queue once the lock is released.
    pub(super) fn wake_readers(&mut self, queue: Arc<Queue>) {
        // There is rarely an earlier queue to signal.
        if let Some(before) = self.to_wake.replace(queue) {
            let is_same = self.to_wake.as_ref().is_some_and(|to_wake| Arc::ptr_eq(to_wake, &before));
            if !is_same {
                before.signal();
            }
        }
    }

    /// Queues an event that carries only its outcome.
    pub(super) fn report_outcome(&mut self, key: Key, event: EventType, outcome: Result<(), Errno>) {
        let status = outcome.err().map_or(0, |errno| -errno.raw());
        self.report(key, event, status, SoftParam::default(), Ece::default());
    }

    /// Sends the messages and handles the events of all communication managers.
    pub(super) fn flush(&mut self) {
        let mut next = 0;
        while let Some((&number, _)) = self.adapters.range(next..).next() {
            while let Some(adapter) = self.adapters.get_mut(&number) {
                adapter.send();
                let Some(event) = adapter.cm.poll_event() else { break };
                self.on_event(number, &event);
            }
            next = number + 1;
        }
        if self.has_changed {
            self.follow_devices();
        }
    }

    /// Closes unused adapters.
    pub(super) fn sweep(&mut self) {
        if self.adapters.values().all(|adapter| adapter.is_used() && adapter.ends_at.is_none()) {
            return;
        }
        let now = self.now();
        let mut ended = Vec::new();
        for (number, adapter) in &mut self.adapters {
            if adapter.is_used() {
                (adapter.ends_at, adapter.repeats_at) = (None, None);
            } else if adapter.cm.is_empty() || adapter.ends_at.is_some_and(|end| end <= now) {
                ended.push(*number);
            } else if adapter.ends_at.is_none() {
                (adapter.ends_at, adapter.repeats_at) = (Some(now + LINGER), Some(now + REPEAT));
            } else if adapter.repeats_at.is_some_and(|at| at <= now) {
                adapter.repeats_at = Some(now + REPEAT);
                adapter.cm.repeat_releases();
                adapter.send();
            }
        }
        for number in ended {
            if let Some(adapter) = self.adapters.remove(&number) {
                adapter.unwatch(&self.epoll);
                let Adapter { gsi, port, .. } = adapter;
                // Queue pair 1 is closed under the lock, so that the next adapter finds it free.
                drop(gsi);
                self.forget_name(number);
                self.garbage.push_back(Garbage::Port(port));
            }
        }
    }
}
