//! [`State`]: all that the manager's lock protects, and the record of an id.
//!
//! ```text
//!   Idle ─► AddrBound ─► Listen
//!      │       │  ▲
//!      │       ▼  │ ADDR_ERROR
//!      └──► AddrQuery ─► AddrResolved ─► RouteResolved ─► Connect ─► Disconnect
//!                                         a request's id begins here ┘
//! ```
//!
//! A call in another state returns `EINVAL`. The states are those of Linux' `cma.c`; the state of
//! the handshake is that of [`ib_cm::cm::Cm`]. An address that is found at once, and every route,
//! needs no state of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Instant;

use ib_cm::cm::{Address as CmAddress, CmId, Path};
use ib_cm::time::Time;
use ib_cm::wire::{Mtu, PortSpace as WireSpace, ServiceId};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use verbs::soft::cm::{Listening, Lookup, Port};
use verbs::{Ece, Errno, Gid, QpType};

use super::adapter::{Adapter, LINGER};
use super::param::SoftParam;
use super::ports::Ports;
use super::queue::{Entry, Queue};
use crate::types::{EventType, PortSpace};

/// The manager's number of an id. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub(super) u64);

/// The state of an id, as `cma.c` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdState {
    Idle,
    AddrBound,
    AddrQuery,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
}

/// An id.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) state: IdState,
    pub(super) queue: Arc<Queue>,
    pub(super) cookie: Arc<AtomicU64>,
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) options: Options,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// The device, once the id has one.
    pub(super) adapter: Option<u64>,
    /// The address of the peer's device.
    pub(super) remote: Gid,
    /// The connection or resolution, also after its end.
    pub(super) connection: Option<CmId>,
    pub(super) listener: Option<Listener>,
    /// The first packet sequence number that the queue pair receives.
    pub(super) starting_psn: u32,
    /// The reads and atomics that the peer of an own request may have outstanding.
    pub(super) responder_resources: u8,
    /// The path MTU and the packet life time, which a request brings.
    pub(super) path_mtu: Mtu,
    pub(super) packet_life_time: u8,
    /// Memberships in groups, by their cookies.
    pub(super) groups: BTreeMap<u32, u64>,
}

/// The options of an id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuse: bool,
    pub(super) af_only: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
}

/// The part of an id that listens.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) backlog: usize,
    /// The number of requests that no program has read.
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) service: ServiceId,
    pub(super) adapters: Vec<u64>,
    pub(super) names: Vec<u64>,
}

/// A lookup of a listener's addresses.
#[derive(Debug)]
pub(super) struct PendingLookup {
    pub(super) lookup: Lookup,
    pub(super) destination: SocketAddr,
    pub(super) deadline: Time,
}

/// All that the manager's lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub(super) ids: BTreeMap<Key, Id>,
    pub(super) adapters: BTreeMap<u64, Adapter>,
    pub(super) ports: Ports,
    pub(super) lookups: BTreeMap<Key, PendingLookup>,
    pub(super) names: BTreeMap<u64, Listening>,
    /// Names whose clients wait until descriptors are free, and the time of the next try.
    paused: BTreeSet<u64>,
    resumes_at: Option<Time>,
    /// The files that the manager's thread waits for.
    pub(super) epoll: Arc<Epoll>,
    /// The time until which that thread sleeps.
    pub(super) sleeps_until: Time,
    /// What is dropped without the lock.
    pub(super) garbage: Vec<Garbage>,
    origin: Instant,
    last: u64,
}

/// What takes the lock when it is dropped, or takes long.
#[derive(Debug)]
#[expect(dead_code, reason = "it is kept to be dropped")]
pub(super) enum Garbage {
    Id(Box<Id>),
    Entries(Vec<Entry>),
    Adapter(Box<Adapter>),
    Name(Listening),
}

/// A file that the manager's thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Wake,
    Gsi(u64),
    Lookup(Key),
    Name(u64),
}

impl Token {
    const fn encode(self) -> u64 {
        match self {
            Self::Wake => 0,
            Self::Gsi(number) => number << 2 | 1,
            Self::Lookup(Key(number)) => number << 2 | 2,
            Self::Name(number) => number << 2 | 3,
        }
    }

    pub(super) const fn decode(bits: u64) -> Self {
        let number = bits >> 2;
        match bits & 3 {
            1 => Self::Gsi(number),
            2 => Self::Lookup(Key(number)),
            3 => Self::Name(number),
            _ => Self::Wake,
        }
    }

    /// Returns what epoll reports of a file that is readable.
    pub(super) fn event(self) -> EpollEvent {
        EpollEvent::new(EpollFlags::EPOLLIN, self.encode())
    }
}

impl State {
    pub(super) fn new(epoll: Arc<Epoll>) -> Self {
        Self {
            ids: BTreeMap::new(),
            adapters: BTreeMap::new(),
            ports: Ports::default(),
            lookups: BTreeMap::new(),
            names: BTreeMap::new(),
            paused: BTreeSet::new(),
            resumes_at: None,
            epoll,
            sleeps_until: Time(0),
            garbage: Vec::new(),
            origin: Instant::now(),
            last: 0,
        }
    }

    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn draw_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds an id.
    pub(super) fn create(
        &mut self,
        queue: &Arc<Queue>,
        cookie: u64,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<Key, Errno> {
        let starting_psn = verbs_core::random::draw()? & ib_cm::wire::MASK_24;
        let key = Key(self.draw_number());
        let id = Id {
            state: IdState::Idle,
            queue: Arc::clone(queue),
            cookie: Arc::new(AtomicU64::new(cookie)),
            space,
            qp_type,
            options: Options::default(),
            local: None,
            peer: None,
            adapter: None,
            remote: Gid::ZERO,
            connection: None,
            listener: None,
            starting_psn,
            responder_resources: 0,
            path_mtu: Mtu::B1024,
            packet_life_time: PACKET_LIFE_TIME,
            groups: BTreeMap::new(),
        };
        self.ids.insert(key, id);
        Ok(key)
    }

    /// Returns an id.
    ///
    /// # Errors
    /// `EINVAL` for one that has ended, which no handle names.
    pub(super) fn id(&mut self, key: Key) -> Result<&mut Id, Errno> {
        self.ids.get_mut(&key).ok_or(Errno::INVAL)
    }

    /// Returns the adapter of a port, which is made for its first user.
    ///
    /// # Errors
    /// As [`Adapter::new`]; any errno of `epoll_ctl(2)`.
    pub(super) fn adapter_of(&mut self, port: &Port) -> Result<u64, Errno> {
        let gid = port.gid();
        if let Some((number, _)) = self.adapters.iter().find(|(_, adapter)| adapter.port.gid() == gid) {
            return Ok(*number);
        }
        let adapter = Adapter::new(port)?;
        let number = self.draw_number();
        self.epoll.add(&adapter.gsi, Token::Gsi(number).event())?;
        self.adapters.insert(number, adapter);
        Ok(number)
    }

    /// Gives an id its device.
    pub(super) fn attach(&mut self, key: Key, number: u64) {
        let Some(id) = self.ids.get_mut(&key) else { return };
        let before = id.adapter.replace(number);
        if let Some(adapter) = self.adapters.get_mut(&number) {
            adapter.users += 1;
        }
        self.detach(before);
    }

    pub(super) fn detach(&mut self, number: Option<u64>) {
        if let Some(adapter) = number.and_then(|number| self.adapters.get_mut(&number)) {
            adapter.users = adapter.users.saturating_sub(1);
        }
    }

    /// Queues an event of an id.
    pub(super) fn report(&self, key: Key, event: EventType, status: i32, param: SoftParam, ece: Ece) {
        if let Some(id) = self.ids.get(&key) {
            let cookie = Arc::clone(&id.cookie);
            id.queue.push(Entry { owner: key, cookie, event, status, param, ece, request: None });
        }
    }

    /// Queues an event of an id that carries nothing but its outcome.
    pub(super) fn report_outcome(&self, key: Key, event: EventType, outcome: Result<(), Errno>) {
        let status = outcome.err().map_or(0, |errno| -errno.raw());
        self.report(key, event, status, SoftParam::default(), Ece::default());
    }

    /// Sends the messages and handles the events of all communication managers.
    pub(super) fn flush(&mut self) {
        let numbers: Vec<_> = self.adapters.keys().copied().collect();
        for number in numbers {
            while let Some(adapter) = self.adapters.get_mut(&number) {
                adapter.send();
                let Some(event) = adapter.cm.poll_event() else { break };
                self.on_event(number, &event);
            }
        }
    }

    /// Ends adapters that nothing uses.
    pub(super) fn sweep(&mut self) {
        let now = self.now();
        let mut ended = Vec::new();
        for (number, adapter) in &mut self.adapters {
            if adapter.is_used() {
                adapter.ends_at = None;
            } else if adapter.cm.is_empty() || adapter.ends_at.is_some_and(|end| end <= now) {
                ended.push(*number);
            } else if adapter.ends_at.is_none() {
                adapter.ends_at = Some(now + LINGER);
            }
        }
        for number in ended {
            if let Some(adapter) = self.adapters.remove(&number) {
                // Closing is not enough: a forked child may have the file as well.
                let _ = self.epoll.delete(&adapter.gsi);
                self.garbage.push(Garbage::Adapter(Box::new(adapter)));
            }
        }
    }

    /// Returns the time at which the manager's thread has work.
    pub(super) fn deadline(&self) -> Time {
        let adapters = self.adapters.values();
        let of_adapters =
            adapters.flat_map(|adapter| adapter.cm.deadline().into_iter().chain(adapter.ends_at));
        let of_lookups = self.lookups.values().map(|lookup| lookup.deadline);
        of_adapters.chain(of_lookups).chain(self.resumes_at).min().unwrap_or(Time(u64::MAX))
    }

    /// Does what is due.
    pub(super) fn on_time(&mut self) {
        let now = self.now();
        for adapter in self.adapters.values_mut() {
            adapter.cm.handle_timeout(now);
        }
        let late: Vec<_> =
            self.lookups.iter().filter(|(_, lookup)| lookup.deadline <= now).map(|(key, _)| *key).collect();
        for key in late {
            self.end_lookup(key, Err(Errno::TIMEDOUT));
        }
        if self.resumes_at.is_some_and(|at| at <= now) {
            self.resumes_at = None;
            for number in core::mem::take(&mut self.paused) {
                if let Some(name) = self.names.get(&number) {
                    let _ = self.epoll.add(name, Token::Name(number).event());
                }
            }
        }
    }

    /// Does what a readable file asks for.
    pub(super) fn on_ready(&mut self, token: Token) {
        let now = self.now();
        match token {
            Token::Wake => {}
            Token::Gsi(number) => {
                if let Some(adapter) = self.adapters.get_mut(&number) {
                    adapter.receive(now);
                }
            }
            Token::Lookup(key) => {
                let Some(pending) = self.lookups.get_mut(&key) else { return };
                match pending.lookup.finish() {
                    Ok(None) => {}
                    Ok(Some(route)) => self.end_lookup(key, Ok(route)),
                    Err(errno) => self.end_lookup(key, Err(errno)),
                }
            }
            Token::Name(number) => {
                let Some(name) = self.names.get(&number) else { return };
                if name.answer().is_err() {
                    // Clients wait while this process has no descriptor left for them.
                    let _ = self.epoll.delete(name);
                    self.paused.insert(number);
                    self.resumes_at.get_or_insert(now + PAUSE);
                }
            }
        }
    }

    /// Frees the name of a listener.
    pub(super) fn forget_name(&mut self, number: u64) {
        if let Some(name) = self.names.remove(&number) {
            if !self.paused.remove(&number) {
                let _ = self.epoll.delete(&name);
            }
            self.garbage.push(Garbage::Name(name));
        }
    }
}

impl Id {
    /// Returns the path to the peer.
    pub(super) fn path(&self, local: Gid) -> Path {
        Path {
            local: local.0,
            remote: self.remote.0,
            traffic_class: self.options.tos,
            hop_limit: HOP_LIMIT,
            packet_life_time: self.packet_life_time(),
            ..Path::default()
        }
    }

    /// Returns the time that a packet takes: half of the time-out of acknowledgements, if the
    /// program has set that.
    pub(super) fn packet_life_time(&self) -> u8 {
        match self.options.ack_timeout {
            Some(timeout) if timeout > 0 => timeout - 1,
            _ => self.packet_life_time,
        }
    }

    /// Returns the addresses of messages to the peer.
    pub(super) fn messages(&self, local: Gid) -> CmAddress {
        CmAddress { traffic_class: self.options.tos, ..CmAddress::gsi(local.0, self.remote.0) }
    }

    /// Returns whether the address stands for its own family alone.
    pub(super) fn af_only(&self, ip: IpAddr) -> bool {
        self.options.af_only.unwrap_or_else(|| ip.is_ipv4() || is_v6_only())
    }
}

/// Returns the service id of a port.
pub(super) const fn service(space: PortSpace, port: u16) -> ServiceId {
    ServiceId::ip(WireSpace(space.0), port)
}

/// Returns whether the system's default of IPv6 sockets is to take no IPv4.
fn is_v6_only() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1")
}

/// The time that a packet takes on RoCE (`CMA_IBOE_PACKET_LIFETIME`), a code of 5 bits.
const PACKET_LIFE_TIME: u8 = 16;

/// The number of routers that packets may pass.
pub(super) const HOP_LIMIT: u8 = 64;

/// The pause before clients are answered again, after descriptors ran out: 100 ms.
const PAUSE: u64 = 100_000_000;
