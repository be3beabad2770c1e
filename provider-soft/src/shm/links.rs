//! [`Links`]: the peers whose packets travel through memory, used with the device's lock held.
//!
//! ```text
//!   engine ──► push ──► the own ring ──► doorbell, if the peer sleeps
//!   engine ◄── take ◄── the peer's ring ◄── scan
//! ```
//!
//! The packets of a queue pair must not overtake each other when a link begins. A sender's earlier
//! packets are in the socket of their receiver by then, because the kernel delivers packets of this
//! host at once. Before the first packet of a link is taken, the socket is therefore emptied
//! ([`Scan::NeedsSocket`]).
//!
//! # A full ring
//! A peer that does not take its packets delays those to others, as a full socket does, but only
//! for [`HOLD`]. After that its packets are dropped, as those for a full socket are, until it takes
//! some.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use nix::sys::socket::{Shutdown, shutdown};
use roce::engine::{Gid, Path, Time};
use roce::wire::ICRC_LEN;
use roce::wire::packet::MAX_PACKET_LEN;
use verbs_core::Errno;

use super::peers::PeerId;
use super::ring::{Consumer, Producer, Record, ends};
use super::segment::{OwnSegment, PeerSegment};
use super::sleep::PeerSleep;
use crate::io::counters::Counts;
use crate::io::{Direction, Socket, send_files};

/// A connection to a peer and the rings of both directions.
#[derive(Debug)]
pub(crate) struct Link {
    id: PeerId,
    /// The number of the connection.
    number: u64,
    /// `None` if the device is its own peer.
    connection: Option<Connection>,
    producer: Producer,
    consumer: Consumer,
    /// The peer's sleep at the last doorbell.
    rung: u32,
    /// Whether a doorbell is due because packets were sent or taken.
    has_sent: bool,
    /// Whether no packet has been taken from it yet.
    is_new: bool,
    /// The number of packets that may be taken.
    ready: u32,
    /// The time when the ring became full.
    full_since: Option<Time>,
    /// Whether packets are dropped because the peer takes none.
    is_stalled: bool,
}

/// The way to wake a peer.
#[derive(Debug)]
struct Connection {
    socket: Arc<OwnedFd>,
    sleep: PeerSleep,
}

/// All links of a device.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    /// The index of the device's link to itself.
    own: Option<usize>,
    /// The routes to recent destinations, in a direct-mapped cache.
    routes: Box<[Route]>,
    /// Destinations without a link, for the worker to look up.
    wanted: Vec<PeerId>,
    /// The time of the next look-up of any destination.
    next_lookup: Time,
    /// Whether the last packets came through memory rather than the socket.
    is_hot: bool,
    /// The number of looks since the socket was looked at.
    looks: u32,
    /// The number of looks at the socket that a new link has waited for.
    drained: u32,
    /// Whether packets were left in a ring after the last scan.
    more: bool,
    /// Whether a link has no room.
    is_blocked: bool,
    /// A received packet.
    packet: Box<[u8]>,
}

/// The way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    id: PeerId,
    /// The index of its link, or `None` for the socket.
    link: Option<u16>,
    /// The time when a destination without a link is looked up again.
    until: Time,
}

/// The outcome of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    Nothing,
    /// Packets are ready.
    Packets,
    /// Packets are ready once the socket is empty.
    NeedsSocket,
}

/// The number of the connection that a device's link to itself does not have.
const OWN: u64 = u64::MAX;

/// The longest time, in nanoseconds, that a full ring delays packets to other peers.
const HOLD: u64 = 5_000_000;

/// The time in nanoseconds after which a destination without a link is looked up again.
const LOOKUP: u64 = 1_000_000_000;

/// The time in nanoseconds between look-ups. A program may send to thousands of hosts.
const LOOKUP_PAUSE: u64 = 1_000_000;

/// The looks at the socket after which it holds no packet from before a link began, even if others
/// keep arriving: it has no room for more.
const DRAINED: u32 = 1024;

/// The maximum number of packets of a link that become ready at once.
const READY: u32 = 32;

/// While packets come through memory, one in this many looks includes the socket.
const SOCKET_LOOKS: u32 = 128;

impl Link {
    pub(crate) fn new(
        id: PeerId,
        number: u64,
        socket: Arc<OwnedFd>,
        producer: Producer,
        consumer: Consumer,
        sleep: PeerSleep,
    ) -> Self {
        Self::with(id, number, Some(Connection { socket, sleep }), producer, consumer)
    }

    /// Returns the link of a device to itself.
    ///
    /// # Errors
    /// The errors of [`OwnSegment::new`].
    pub(crate) fn own(id: PeerId) -> Result<Self, Errno> {
        // The second segment holds the progress of reading the first one.
        let segments = [OwnSegment::new()?, OwnSegment::new()?];
        let map = |segment: &OwnSegment| {
            let file = segment.fd().try_clone_to_owned().map_err(|error| Errno::from_io(&error))?;
            PeerSegment::map(file)
        };
        let [first, second] = [map(&segments[0])?, map(&segments[1])?];
        let [one, other] = segments;
        let ((producer, _), (_, consumer)) = (ends(one, second), ends(other, first));
        Ok(Self::with(id, OWN, None, producer, consumer))
    }

    fn with(
        id: PeerId,
        number: u64,
        connection: Option<Connection>,
        producer: Producer,
        consumer: Consumer,
    ) -> Self {
        Self {
            id,
            number,
            connection,
            producer,
            consumer,
            rung: 0,
            has_sent: false,
            is_new: true,
            ready: 0,
            full_since: None,
            is_stalled: false,
        }
    }

    /// Wakes the peer, if it sleeps and was not woken from this sleep.
    #[inline]
    fn ring(&mut self, counts: &Counts) {
        if let Some(connection) = &self.connection
            && let Some(sleep) = connection.sleep.epoch_if_asleep()
            && sleep != self.rung
        {
            self.rung = sleep;
            self.doorbell(counts);
        }
    }

    #[cold]
    fn doorbell(&self, counts: &Counts) {
        let Some(Connection { socket, .. }) = &self.connection else { return };
        counts.shm_doorbells.add(1);
        // A full socket has enough doorbells. A closed one ends the link soon.
        let _ = send_files(socket.as_fd(), &[0], &[]);
    }

    /// Returns whether the peer of a link without room has taken packets.
    #[cold]
    fn recovers(&mut self) -> bool {
        let recovers = self.producer.has_room() == Ok(true);
        if recovers {
            (self.full_since, self.is_stalled) = (None, false);
        }
        recovers
    }

    /// Ends the connection because the peer breaks the rules; the worker sees its end.
    #[cold]
    fn close(&mut self) {
        self.ready = 0;
        if let Some(Connection { socket, .. }) = &self.connection {
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    }
}

impl Default for Links {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            own: None,
            // Vectors, because an array would be on the stack first.
            routes: vec![Route::NONE; Self::ROUTES].into_boxed_slice(),
            wanted: Vec::new(),
            next_lookup: Time(0),
            is_hot: false,
            looks: 0,
            drained: 0,
            more: false,
            is_blocked: false,
            packet: vec![0; MAX_PACKET_LEN].into_boxed_slice(),
        }
    }
}

impl Links {
    const ROUTES: usize = 256;

    /// Returns whether all packets use the socket.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Adds a link.
    pub(crate) fn add(&mut self, link: Link) {
        if link.connection.is_none() {
            if self.own.is_some() {
                return;
            }
            self.own = Some(self.links.len());
        }
        self.links.push(link);
        self.routes.fill(Route::NONE);
        self.drained = 0;
    }

    /// Returns whether packets of the device to itself wait. No doorbell announces them.
    #[inline]
    pub(crate) fn has_own_packets(&self) -> bool {
        self.own.is_some_and(|own| !self.links[own].consumer.is_empty())
    }

    /// Removes a link. Its packets were taken before.
    pub(crate) fn remove(&mut self, number: u64) {
        self.links.retain(|link| link.number != number);
        self.own = self.links.iter().position(|link| link.connection.is_none());
        self.routes.fill(Route::NONE);
        self.is_blocked = self.links.iter().any(|link| link.full_since.is_some() && !link.is_stalled);
    }

    /// Returns a destination to look up.
    pub(crate) fn next_wanted(&mut self) -> Option<PeerId> {
        self.wanted.pop()
    }

    /// Returns whether the device has a link to itself.
    pub(crate) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns whether there are destinations to look up.
    #[inline]
    pub(crate) fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns the link to a destination, or `None` for the socket.
    #[inline]
    pub(crate) fn route(&mut self, gid: &Gid, slot: u8, now: Time) -> Option<usize> {
        let id = PeerId { gid: *gid, slot };
        let route = &self.routes[Route::index(&id)];
        if route.id == id && (route.link.is_some() || now < route.until) {
            return route.link.map(usize::from);
        }
        self.find(id, now)
    }

    #[cold]
    fn find(&mut self, id: PeerId, now: Time) -> Option<usize> {
        // The latest, if the peer has begun anew. All queue pairs of an address that is not shared
        // belong to one device.
        let is_its = |link: &Link| link.id.gid == id.gid && (link.id.slot == id.slot || link.id.slot == 0);
        let link = self.links.iter().rposition(is_its);
        let mut until = now + LOOKUP;
        if link.is_none() {
            if now >= self.next_lookup {
                self.next_lookup = now + LOOKUP_PAUSE;
                self.wanted.push(id);
            } else {
                until = self.next_lookup;
            }
        }
        self.routes[Route::index(&id)] = Route { id, link: link.map(|link| link as u16), until };
        link
    }

    /// Looks for packets.
    #[inline]
    pub(crate) fn scan(&mut self) -> Scan {
        if self.links.is_empty() {
            return Scan::Nothing;
        }
        let mut scan = Scan::Nothing;
        self.more = false;
        for link in &mut self.links {
            if link.ready == 0 && link.consumer.is_empty() {
                continue;
            }
            if link.is_new && self.drained < DRAINED {
                self.drained += 1;
                return Scan::NeedsSocket;
            }
            match link.consumer.count(READY) {
                Ok(ready) => {
                    link.ready = ready;
                    self.more |= ready == READY;
                    scan = Scan::Packets;
                }
                Err(_) => link.close(),
            }
        }
        scan
    }

    /// Records that the socket is empty.
    pub(crate) fn socket_is_empty(&mut self) {
        for link in &mut self.links {
            link.is_new = false;
        }
    }

    /// Returns whether a look need not include the socket, because packets come through memory.
    #[inline]
    pub(crate) fn skips_socket(&mut self, scan: Scan) -> bool {
        match scan {
            Scan::Packets => self.is_hot = true,
            Scan::NeedsSocket => return false,
            Scan::Nothing => {}
        }
        self.looks = self.looks.wrapping_add(1);
        self.is_hot && !self.looks.is_multiple_of(SOCKET_LOOKS)
    }

    /// Returns whether the last packets came through memory.
    #[inline]
    pub(crate) fn is_hot(&self) -> bool {
        self.is_hot
    }

    /// Records that packets came from the socket.
    #[inline]
    pub(crate) fn socket_had_packets(&mut self) {
        self.is_hot = false;
    }

    /// Returns whether packets were left in a ring.
    #[inline]
    pub(crate) fn more(&self) -> bool {
        self.more
    }

    /// Returns whether packets wait in a ring.
    pub(crate) fn has_packets(&self) -> bool {
        self.links.iter().any(|link| link.ready > 0 || !link.consumer.is_empty())
    }

    /// Calls `each` with the packets that were ready at the last scan, from BTH to the place of the
    /// ICRC, and the peer, traffic class and hop limit of each.
    #[inline]
    pub(crate) fn take(&mut self, socket: &Socket, mut each: impl FnMut(&Gid, u8, u8, &[u8])) {
        let counts = socket.counts();
        let Self { links, packet, .. } = self;
        for link in links.iter_mut().filter(|link| link.ready > 0) {
            for _ in 0..core::mem::take(&mut link.ready) {
                let Ok(Some(record)) = link.consumer.peek() else {
                    link.close();
                    break;
                };
                if !link.consumer.copy(0, &mut packet[..record.len]) {
                    break;
                }
                packet[record.len..record.len + ICRC_LEN].fill(0);
                counts.shm_received.add(1);
                counts.shm_received_bytes.add(record.len as u64);
                let Record { traffic_class, hop_limit, .. } = record;
                if socket.capture().is_some() {
                    let packet = &mut packet[..record.len + ICRC_LEN];
                    socket.capture_of_memory(
                        Direction::Received,
                        link.id.gid,
                        traffic_class,
                        hop_limit,
                        packet,
                    );
                }
                each(&link.id.gid, traffic_class, hop_limit, &packet[..record.len + ICRC_LEN]);
                if link.consumer.advance() {
                    // The peer waits for room.
                    link.doorbell(counts);
                }
            }
        }
    }

    /// Returns the space for a packet in the ring of a link, if there is room.
    #[inline]
    pub(crate) fn space(&mut self, link: usize) -> Option<&mut [u8]> {
        let link = self.links.get_mut(link)?;
        (link.full_since.is_none() || link.recovers()).then(|| link.producer.space())
    }

    /// Sends a packet, from BTH to pad, through a link. Drops it if the link has no room, which
    /// happens to packets that do not wait: acknowledgements, and those for a stalled link.
    pub(crate) fn push(&mut self, link: usize, packet: &[u8], path: &Path, now: Time, socket: &Socket) {
        let producer = &mut self.links[link].producer;
        if producer.has_room_for(packet.len()) == Ok(true) {
            producer.space()[..packet.len()].copy_from_slice(packet);
            self.push_written(link, packet.len(), path, now, socket);
        } else {
            socket.counts().shm_dropped.add(1);
        }
    }

    /// Sends the packet, from BTH to pad, in the [space](Self::space) of a link.
    ///
    /// # Panics
    /// Panics if the link has no room for the packet.
    #[inline]
    pub(crate) fn push_written(&mut self, link: usize, len: usize, path: &Path, now: Time, socket: &Socket) {
        let counts = socket.counts();
        let hop_limit = if path.hop_limit == 0 { socket.default_hop_limit() } else { path.hop_limit };
        let link = &mut self.links[link];
        if socket.capture().is_some() {
            let mut packet = [&link.producer.space()[..len], &[0; ICRC_LEN]].concat();
            let class = path.traffic_class;
            socket.capture_of_memory(Direction::Sent, path.remote, class, hop_limit, &mut packet);
        }
        link.producer.push(len, path.traffic_class, hop_limit);
        link.has_sent = true;
        counts.shm_sent.add(1);
        counts.shm_sent_bytes.add(len as u64);
        match link.producer.has_room() {
            Ok(true) => {}
            Ok(false) => {
                link.full_since.get_or_insert(now);
                self.is_blocked |= !link.is_stalled;
            }
            Err(_) => {
                link.full_since = Some(now);
                link.is_stalled = true;
                link.close();
            }
        }
    }

    /// Returns whether no packet may be sent because a link has no room.
    #[inline]
    pub(crate) fn is_blocked(&mut self, now: Time) -> bool {
        self.is_blocked && self.is_still_blocked(now)
    }

    #[cold]
    fn is_still_blocked(&mut self, now: Time) -> bool {
        self.is_blocked = false;
        for link in &mut self.links {
            let Some(since) = link.full_since else { continue };
            match link.producer.request_room() {
                Ok(true) => (link.full_since, link.is_stalled) = (None, false),
                Ok(false) if now < since + HOLD => self.is_blocked = true,
                Ok(false) => link.is_stalled = true,
                Err(_) => {
                    link.is_stalled = true;
                    link.close();
                }
            }
        }
        self.is_blocked
    }

    /// Returns when a link without room is given up, if there is one.
    pub(crate) fn blocked_until(&self) -> Option<Time> {
        if !self.is_blocked {
            return None;
        }
        let waiting = self.links.iter().filter(|link| !link.is_stalled);
        waiting.filter_map(|link| link.full_since).map(|since| since + HOLD).min()
    }

    /// Wakes the peers that packets were sent to, if they sleep.
    #[inline]
    pub(crate) fn ring(&mut self, counts: &Counts) {
        for link in &mut self.links {
            if core::mem::take(&mut link.has_sent) {
                link.ring(counts);
            }
        }
    }
}

impl Route {
    const NONE: Self = Self { id: PeerId { gid: [0; 16], slot: 0 }, link: None, until: Time(0) };

    fn index(id: &PeerId) -> usize {
        let [.., a, b, c, d] = id.gid;
        let mixed = u32::from_ne_bytes([a, b, c, d]) ^ u32::from(id.slot).rotate_left(9);
        (mixed.wrapping_mul(0x9e37_79b1) >> 24) as usize % Links::ROUTES
    }
}
