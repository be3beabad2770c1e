//! [`Peers`]: finds the devices of this user on this machine and exchanges memory with them.
//!
//! Each device listens under an abstract name, which contains the user, the address and the
//! device's slot at the address ([`crate::io::share`]), or 0 if processes do not share the address.
//! With a folder, the device listens at a socket in this folder instead ([`place`](super::place)).
//! A device that is about to send packets to another device connects to that device's name. Each
//! side sends one message with two files: a ring, and the page that shows whether the device
//! sleeps. The connection stays open. It carries doorbells, single bytes that wake the other side.
//! When it closes, the peer has ended.
//!
//! ```text
//!   meet ──► Connecting ── reply ──► Up ──► the peer has ended
//!                 │                  ▲
//!                 └─ closed ─► -     └── Accepted ◄── a connection to the own name
//! ```
//!
//! After any failure here, packets use UDP. A destination is looked up again after a second
//! ([`Links`](super::links::Links)).
//!
//! Two devices may connect to each other at the same time. The connection made by the device with
//! the smaller identity is kept: this first device replies with [`PRECEDENCE`] to the other
//! connection, and the second device accepts the first device's connection although it has made one
//! itself. If no connection arrives soon, because the first device has ended, the second device
//! connects again. A device that cannot accept more connections closes a new connection without a
//! reply, so that packets use UDP at once.
//!
//! # Trust
//! Both sides check the other's user (`SO_PEERCRED`), so memory is exchanged only with processes of
//! this user. These processes also use the same folder, or are in the same network namespace,
//! because abstract names are per namespace. The message of a connecting process is not proof of
//! its address. Any process of this user could take the address itself. The number of connections
//! without a message is limited: a new connection replaces the oldest.
//!
//! The worker, or a poller woken before it, accepts connections, receives messages and installs
//! links. This thread never waits for a peer. A stopped peer delays callers of [`Peers::meet`]
//! until [`PATIENCE`] has passed since its connection was made. Later callers and other threads do
//! not wait.
//!
//! # References
//! `unix(7)` (`SCM_RIGHTS`, `SO_PEERCRED`, abstract names), `memfd_create(2)`

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socket};
use roce::engine::Gid;
use verbs_core::Errno;

use super::links::Link;
use super::place::Place;
use super::segment::{OwnSegment, PeerSegment};
use super::sleep::{OwnSleep, PeerSleep};
use crate::io::address::address_of;
use crate::io::names::is_connected;
use crate::io::owner::Owner;
use crate::io::spare::SpareFd;
use crate::io::{Socket, accept, effective_user, receive_files, send_files};

/// The identity of a device of this machine: its address, and its slot at the address, or slot 0 if
/// the address is not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerId {
    pub(crate) gid: Gid,
    pub(crate) slot: u8,
}

/// The devices that exchange packets with this device through memory.
#[derive(Debug)]
pub(crate) struct Peers {
    own: PeerId,
    place: Place,
    /// The interface index of a link-local address.
    scope: u32,
    port: u16,
    listener: OwnedFd,
    /// An epoll instance that is readable when a connection or a message has arrived.
    news: Epoll,
    /// An epoll instance that is readable when a peer has rung the doorbell, or has ended.
    doorbells: Epoll,
    pub(crate) sleep: OwnSleep,
    /// The maximum number of connections: [`MAX_PEERS`].
    most: usize,
    table: Mutex<Table>,
    /// Signalled when a connection is no longer [`Status::Connecting`].
    settled: Condvar,
    /// Held by the thread that manages connections, so that a link's start is handled before its
    /// end.
    attending: Mutex<()>,
}

#[derive(Debug, Default)]
struct Table {
    connections: BTreeMap<u64, Connection>,
    status: BTreeMap<PeerId, Status>,
    /// The number of the last connection made. Connections are numbered from 1.
    made: u64,
    /// A spare descriptor, for accepting and closing a connection while all other descriptors are
    /// in use.
    spare: SpareFd,
    /// The devices to connect to.
    wanted: Vec<PeerId>,
    /// Whether the listener is not watched, because no descriptor was free for a connection.
    is_deaf: bool,
}

#[derive(Debug)]
enum Connection {
    /// The peer has connected, but its message has not arrived yet.
    Accepted(OwnedFd),
    /// This device has connected, but the reply has not arrived yet.
    Connecting(OwnedFd, PeerId, OwnSegment),
    Up(Arc<OwnedFd>, PeerId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// This device has connected, and callers wait until this time.
    Connecting(Instant),
    /// The peer has made a connection with precedence, which should arrive before the first
    /// instant. Callers wait until the second instant.
    Expected(Instant, Instant),
    /// Packets travel through the memory of the connection with this number.
    Up(u64),
}

/// A change to the links, to be made with the device's lock held.
#[derive(Debug)]
pub(crate) enum Change {
    Begun(Box<Link>),
    /// The connection with this number has ended.
    Ended(u64),
}

/// The maximum time that callers wait for a peer's reply.
const PATIENCE: Duration = Duration::from_millis(100);

/// The time within which a connection with precedence must arrive.
const ARRIVAL: Duration = Duration::from_millis(500);

/// The maximum number of connections. Further peers use UDP.
pub(super) const MAX_PEERS: usize = 1024;

/// The maximum number of connections without a message. Devices send their messages as soon as they
/// have connected.
const MAX_SILENT: usize = 64;

/// The listener's number in the table of connections.
const LISTENER: u64 = 0;

/// The maximum number of connections handled at once, and of reads to drain the doorbells of one.
const BATCH: usize = 16;

impl Peers {
    /// Starts to listen for other devices. Returns `None` on failure, for example if a sandbox
    /// forbids Unix sockets or memory files.
    #[inline(never)]
    pub(crate) fn listen(place: Place, socket: &Socket) -> Option<Box<Self>> {
        let own = PeerId { gid: socket.gid(), slot: socket.slot() };
        Self::try_listen(place, own, socket.scope(), socket.port()).map(Box::new).ok()
    }

    fn try_listen(mut place: Place, own: PeerId, scope: u32, port: u16) -> Result<Self, Errno> {
        let sleep = OwnSleep::new()?;
        let listener = place.listen(own, scope, port)?;
        let news = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let doorbells = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        news.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let table = Table { made: LISTENER, spare: SpareFd::new(), ..Table::default() };
        let (table, settled) = (Mutex::new(table), Condvar::new());
        let attending = Mutex::default();
        let most = MAX_PEERS;
        Ok(Self {
            own,
            place,
            scope,
            port,
            listener,
            news,
            doorbells,
            sleep,
            most,
            table,
            settled,
            attending,
        })
    }

    /// Connects to the device with address `gid` whose queue pair numbers have the upper 8 bits
    /// `slot`, if it belongs to this user and machine. Waits until packets to the device can travel
    /// through memory, or until it is certain that they cannot.
    pub(crate) fn meet(&self, gid: Gid, slot: u8) {
        let mut table = self.table();
        let Some(id) = self.find(&mut table, gid, slot) else { return };
        while let Some(Status::Connecting(deadline) | Status::Expected(_, deadline)) = table.status.get(&id) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            table = self.settled.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the identity of this device, if it has address `gid` and owns the queue pair numbers
    /// with the upper 8 bits `slot`.
    pub(crate) fn own_id(&self, gid: Gid, slot: u8) -> Option<PeerId> {
        Some(self.own).filter(|own| gid == own.gid && (slot == own.slot || own.slot == 0))
    }

    /// Returns the identity of a device to which this device is connected or connecting. Starts a
    /// connection if there is none.
    fn find(&self, table: &mut Table, gid: Gid, slot: u8) -> Option<PeerId> {
        if self.own_id(gid, slot).is_some() {
            return None;
        }
        // All queue pairs of an unshared address belong to one device.
        let ids = [PeerId { gid, slot }, PeerId { gid, slot: 0 }];
        let ids = &ids[..if slot == 0 { 1 } else { 2 }];
        for id in ids {
            match table.status.get(id) {
                Some(Status::Connecting(_)) => return Some(*id),
                Some(Status::Expected(until, _)) if Instant::now() < *until => return Some(*id),
                Some(Status::Expected(..)) => {
                    table.status.remove(id);
                }
                Some(Status::Up(number)) => {
                    if table.connections.get(number).is_some_and(Connection::is_alive) {
                        return Some(*id);
                    }
                    // The device has ended, and another device may have its name.
                    table.status.remove(id);
                }
                None => {}
            }
        }
        ids.iter().copied().find(|id| self.connect(table, *id).is_ok())
    }

    /// Requests that the worker connect to a device. The caller must wake the worker.
    pub(crate) fn want(&self, id: PeerId) {
        let mut table = self.table();
        if table.wanted.len() < MAX_PEERS {
            table.wanted.push(id);
        }
    }

    /// Manages connections: makes wanted connections, accepts other devices' connections, and
    /// passes started and ended links to `change`. Reads doorbells, unless they are left to a
    /// sleeping thread. Returns `false` and does nothing if another thread is managing connections.
    pub(crate) fn attend(&self, reads_doorbells: bool, mut change: impl FnMut(Change)) -> bool {
        let Ok(_attending) = self.attending.try_lock() else { return false };
        if self.table().is_deaf {
            self.accept();
        }
        let wanted = core::mem::take(&mut self.table().wanted);
        for PeerId { gid, slot } in wanted {
            let _ = self.find(&mut self.table(), gid, slot);
        }
        for epoll in reads_doorbells.then_some(&self.doorbells).into_iter().chain([&self.news]) {
            let mut events = [EpollEvent::empty(); BATCH];
            let count = epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
            for event in &events[..count] {
                match event.data() {
                    LISTENER => self.accept(),
                    number => self.read(number, &mut change),
                }
            }
        }
        true
    }

    /// Returns a descriptor that is readable when a peer has rung the doorbell, or has ended.
    pub(crate) fn doorbells(&self) -> BorrowedFd<'_> {
        self.doorbells.0.as_fd()
    }

    /// Connects to a device and sends this device's message.
    ///
    /// # Errors
    /// Fails if the device belongs to another user or machine, or with any errno of the system
    /// calls.
    fn connect(&self, table: &mut Table, id: PeerId) -> Result<(), Errno> {
        if self.is_full(table) {
            return Err(Errno::USERS);
        }
        let socket = stream()?;
        if !is_connected(&socket, &self.place.address(id, self.scope, self.port)?)? {
            return Err(Errno::CONNREFUSED);
        }
        if !Owner::from_stream(&socket)?.is_own_user() {
            return Err(Errno::PERM);
        }
        let segment = OwnSegment::new()?;
        self.send_message(socket.as_fd(), &segment)?;
        let number = self.watch(table, socket.as_fd())?;
        table.connections.insert(number, Connection::Connecting(socket, id, segment));
        table.status.insert(id, Status::Connecting(Instant::now() + PATIENCE));
        Ok(())
    }

    /// Accepts a connection from another device.
    fn accept(&self) {
        let mut table = self.table();
        let accepted = table.spare.lend(|| accept(self.listener.as_fd()));
        let is_deaf = !matches!(accepted, Ok(_) | Err(Errno::AGAIN | Errno::INTR));
        if table.is_deaf != is_deaf {
            // The listener stays readable. It is checked again after the next event of another
            // kind.
            let interest = if is_deaf { EpollFlags::empty() } else { EpollFlags::EPOLLIN };
            let is_changed = self.news.modify(&self.listener, &mut EpollEvent::new(interest, LISTENER));
            table.is_deaf = is_deaf && is_changed.is_ok();
        }
        let Ok(socket) = accepted else { return };
        if table.spare.is_lent() {
            drop(socket);
            table.spare = SpareFd::new();
            return;
        }
        let is_own_user = Owner::from_stream(&socket).is_ok_and(Owner::is_own_user);
        if !is_own_user || self.is_full(&table) {
            return;
        }
        if table.count(Connection::is_silent) >= MAX_SILENT {
            // Numbers grow, so the first connection found is the oldest.
            let oldest = table.connections.iter().find(|(_, connection)| connection.is_silent());
            let oldest = oldest.map(|(number, _)| *number);
            oldest.and_then(|number| table.connections.remove(&number));
        }
        if let Ok(number) = self.watch(&mut table, socket.as_fd()) {
            table.connections.insert(number, Connection::Accepted(socket));
        }
    }

    /// Reads the message, the reply or the doorbells that have arrived on a connection.
    fn read(&self, number: u64, change: &mut impl FnMut(Change)) {
        let mut table = self.table();
        let Some(connection) = table.connections.get(&number) else { return };
        match connection {
            Connection::Up(socket, _) if drain(socket) => {}
            Connection::Up(_, id) => {
                let id = *id;
                table.connections.remove(&number);
                table.status.retain(|its, status| *its != id || *status != Status::Up(number));
                drop(table);
                change(Change::Ended(number));
            }
            Connection::Accepted(socket) => {
                let message = match read_message(socket.as_fd()) {
                    Err(Errno::AGAIN | Errno::INTR) => return,
                    message => message.ok(),
                };
                let Some(Connection::Accepted(socket)) = table.connections.remove(&number) else { return };
                let Some(Reply::Message(message)) = message else { return };
                if self.has_precedence(&table, message.id) {
                    let _ = send_files(socket.as_fd(), &[PRECEDENCE], &[]);
                } else if message.id != self.own
                    && !self.is_full(&table)
                    && let Ok(segment) = OwnSegment::new()
                    && self.send_message(socket.as_fd(), &segment).is_ok()
                {
                    self.begin(table, number, socket, segment, message, change);
                }
            }
            Connection::Connecting(socket, ..) => {
                let message = match read_message(socket.as_fd()) {
                    Err(Errno::AGAIN | Errno::INTR) => return,
                    message => message.ok(),
                };
                let Some(Connection::Connecting(socket, id, segment)) = table.connections.remove(&number)
                else {
                    return;
                };
                match message {
                    Some(Reply::Message(message)) if message.id == id => {
                        self.begin(table, number, socket, segment, message, change);
                    }
                    Some(Reply::Precedence) if id < self.own => {
                        let now = Instant::now();
                        table.status.insert(id, Status::Expected(now + ARRIVAL, now + PATIENCE));
                    }
                    _ => {
                        table.status.remove(&id);
                        self.settled.notify_all();
                    }
                }
            }
        }
    }

    /// Returns whether this device's connection to another device has precedence over the other
    /// device's connection.
    fn has_precedence(&self, table: &Table, id: PeerId) -> bool {
        let mut made = table
            .connections
            .values()
            .filter(|connection| matches!(connection, Connection::Connecting(_, its, _) if *its == id));
        // A connection to a dead device does not count: the device now connecting has replaced it.
        self.own < id && made.any(Connection::is_alive)
    }

    /// Returns whether the maximum number of connections is reached, so that further peers use UDP.
    fn is_full(&self, table: &Table) -> bool {
        table.count(|connection| !connection.is_silent()) >= self.most
    }

    /// Starts using a connection once the peer's [`Message`] has arrived.
    fn begin(
        &self,
        mut table: MutexGuard<'_, Table>,
        number: u64,
        socket: OwnedFd,
        segment: OwnSegment,
        message: Message,
        change: &mut impl FnMut(Change),
    ) {
        let Message { id, segment: its, sleep } = message;
        let _ = self.news.delete(&socket);
        if self.doorbells.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number)).is_err() {
            table.status.remove(&id);
            self.settled.notify_all();
            return;
        }
        let (producer, consumer) = super::ring::ends(segment, its);
        let socket = Arc::new(socket);
        // The other connection has precedence, so this device's own attempt is dropped.
        table
            .connections
            .retain(|_, connection| !matches!(connection, Connection::Connecting(_, its, _) if *its == id));
        table.connections.insert(number, Connection::Up(Arc::clone(&socket), id));
        // No other thread connects meanwhile.
        table.status.insert(id, Status::Connecting(Instant::now() + PATIENCE));
        drop(table);
        change(Change::Begun(Box::new(Link::new(id, number, socket, producer, consumer, sleep))));
        self.table().status.insert(id, Status::Up(number));
        self.settled.notify_all();
    }

    fn watch(&self, table: &mut Table, socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        table.made += 1;
        self.news.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, table.made))?;
        Ok(table.made)
    }

    /// Sends this device's message, with the segment and the sleep page.
    fn send_message(&self, socket: BorrowedFd<'_>, segment: &OwnSegment) -> Result<(), Errno> {
        let mut bytes = [0; MESSAGE];
        bytes[..4].copy_from_slice(&VERSION);
        bytes[4] = self.own.slot;
        bytes[8..].copy_from_slice(&self.own.gid);
        send_files(socket, &bytes, &[segment.fd(), self.sleep.fd()])?;
        Ok(())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes this device's name from the folder before the process exits. Allocates nothing.
    pub(crate) fn leave_place(&self) {
        self.place.leave();
    }

    /// Calls `each` with the descriptors that a forked child must close to release the name. Omits
    /// connections if another thread uses the table.
    pub(crate) fn for_each_file(&self, mut each: impl FnMut(BorrowedFd<'_>)) {
        each(self.listener.as_fd());
        each(self.news.0.as_fd());
        each(self.doorbells.0.as_fd());
        let Ok(table) = self.table.try_lock() else { return };
        for connection in table.connections.values() {
            each(connection.socket());
        }
    }
}

impl Table {
    /// Returns the number of connections for which `is_counted` returns true.
    fn count(&self, is_counted: impl Fn(&Connection) -> bool) -> usize {
        self.connections.values().filter(|connection| is_counted(connection)).count()
    }
}

/// The descriptor is readable while [`attend`](Peers::attend) has connections or messages to
/// handle.
impl AsFd for Peers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.0.as_fd()
    }
}

impl Connection {
    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Accepted(socket) | Self::Connecting(socket, ..) => socket.as_fd(),
            Self::Up(socket, _) => socket.as_fd(),
        }
    }

    /// Returns whether the connecting peer has not yet sent its message.
    fn is_silent(&self) -> bool {
        matches!(self, Self::Accepted(_))
    }

    /// Returns whether the other end of the connection is open.
    fn is_alive(&self) -> bool {
        use nix::errno::Errno::{EAGAIN, EINTR};
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        // If a peer ends with unread doorbells, the connection is reset.
        matches!(recv(self.socket().as_raw_fd(), &mut [0], flags), Ok(1..) | Err(EAGAIN | EINTR))
    }
}

/// Reads all doorbells from a connection and returns whether the other end is open.
fn drain(socket: &OwnedFd) -> bool {
    let mut bytes = [0; 64];
    for _ in 0..BATCH {
        match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// The peer's reply on a connection.
#[derive(Debug)]
enum Reply {
    Message(Message),
    /// The peer has made a connection with precedence.
    Precedence,
}

/// The message that each side sends.
#[derive(Debug)]
struct Message {
    id: PeerId,
    segment: PeerSegment,
    sleep: PeerSleep,
}

/// The version of names, messages and memory.
const VERSION: [u8; 4] = *b"VSM3";

/// The length of a message, in bytes: version, slot, 3 zeros, GID.
const MESSAGE: usize = 24;

/// The reply of a device that has made a connection with precedence.
const PRECEDENCE: u8 = b'P';

/// Reads a peer's message or reply.
///
/// # Errors
/// `EAGAIN` if the message has not arrived; `EPROTO` if it is malformed; the errors of mapping its
/// files.
fn read_message(socket: BorrowedFd<'_>) -> Result<Reply, Errno> {
    // One byte more, because the kernel truncates a longer message.
    let mut bytes = [0; MESSAGE + 1];
    let (len, files) = receive_files(socket, &mut bytes, 0)?.ok_or(Errno::PROTO)?;
    if bytes[..len] == [PRECEDENCE] {
        return Ok(Reply::Precedence);
    }
    if len != MESSAGE {
        return Err(Errno::PROTO);
    }
    let [segment, sleep] = <[OwnedFd; 2]>::try_from(files).map_err(|_| Errno::PROTO)?;
    let (head, gid) = bytes[..MESSAGE].split_at(8);
    if head[..4] != VERSION {
        return Err(Errno::PROTO);
    }
    let gid: Gid = gid.try_into().map_err(|_| Errno::PROTO)?;
    let id = PeerId { gid, slot: head[4] };
    let (segment, sleep) = (PeerSegment::map(segment)?, PeerSleep::map(sleep)?);
    Ok(Reply::Message(Message { id, segment, sleep }))
}

/// Returns the abstract name of a device.
pub(super) fn name(id: PeerId, scope: u32, port: u16) -> String {
    let address = address_of(id.gid);
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let scope = if is_link_local { scope } else { 0 };
    format!("verbs-soft/link/3/{}/{address}%{scope}/{port}/{}", effective_user(), id.slot)
}

/// Creates a Unix socket for connections.
pub(super) fn stream() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Starts to listen at an address of this test process, 127.250.x.y.
    fn listen_at(slot: u8, most: usize) -> Peers {
        let [.., high, low] = std::process::id().to_be_bytes();
        let own = PeerId { gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 250, high, low], slot };
        Peers { most, ..Peers::try_listen(Place::Namespace, own, 0, 4791).unwrap() }
    }

    /// Connects the first device to the second device. Returns the links started by each device.
    fn meet(one: &Peers, other: &Peers) -> [Vec<Link>; 2] {
        let mut begun = [Vec::new(), Vec::new()];
        std::thread::scope(|scope| {
            let met = scope.spawn(|| one.meet(other.own.gid, other.own.slot));
            // A late connection must still be accepted, read and replied to.
            let mut rest = 4;
            while rest > 0 {
                rest -= u32::from(met.is_finished());
                for (peers, begun) in [one, other].into_iter().zip(&mut begun) {
                    peers.attend(true, |change| {
                        if let Change::Begun(link) = change {
                            begun.push(*link);
                        }
                    });
                }
            }
        });
        begun
    }

    #[test]
    fn a_device_with_the_maximum_number_of_peers_connects_to_no_other_and_accepts_no_other() {
        let crowded = listen_at(1, 2);
        let others: Vec<_> = (2..6).map(|slot| listen_at(slot, MAX_PEERS)).collect();
        let counts = |begun: &[Vec<Link>; 2]| [begun[0].len(), begun[1].len()];
        let (first, second) = (meet(&crowded, &others[0]), meet(&others[1], &crowded));
        assert_eq!([counts(&first), counts(&second)], [[1, 1]; 2]);
        let (third, fourth) = (meet(&crowded, &others[2]), meet(&others[3], &crowded));
        assert_eq!([counts(&third), counts(&fourth)], [[0, 0]; 2]);
        // This device does not wait for a connection that never comes.
        assert!(others[3].table().status.is_empty());
        // When a peer ends, another peer can connect.
        drop((first, others));
        crowded.attend(true, |_| {});
        let another = listen_at(7, MAX_PEERS);
        assert_eq!(counts(&meet(&crowded, &another)), [1, 1]);
    }

    #[test]
    fn a_stopped_peer_delays_only_the_first_caller() {
        let (device, stopped) = (listen_at(11, MAX_PEERS), listen_at(12, MAX_PEERS));
        let began = Instant::now();
        const CALLS: u32 = 500;
        for _ in 0..CALLS {
            device.meet(stopped.own.gid, stopped.own.slot);
        }
        assert!(began.elapsed() < PATIENCE * CALLS / 5, "{:?}", began.elapsed());
        assert_eq!(device.table().connections.len(), 1);
    }
}
