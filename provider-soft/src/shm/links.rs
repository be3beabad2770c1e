//! [`Links`]: the connections to peers whose packets travel through memory. Used with the device's
//! lock held.
//!
//! ```text
//!   engine ──► push ──► the own ring ──► doorbell, if the peer sleeps
//!   engine ◄── take ◄── the peer's ring ◄── scan
//! ```
//!
//! The packets of a queue pair must not overtake each other when a link begins. By then, a sender's
//! earlier packets are in the receiver's socket, because the kernel delivers packets within this
//! host at once. Before the first packet of a link is taken, the socket is therefore emptied
//! ([`Scan::NeedsSocket`]).
//!
//! # Many peers
//! Looking at a ring loads a cache line that the peer's processor writes. With more than [`FEW`]
//! links, a scan therefore visits only some of them:
//!
//! | links | are visited |
//! |---|---|
//! | the [`RECENT`] links used last, in either direction | by each scan |
//! | all others, [`IN_TURN`] at a time | within about [`SOCKET_LOOKS`] scans, as the socket is |
//! | all | before a sleep ([`Links::has_packets`]), and by the first scan after it |
//!
//! A program that waits for a reply has just sent, so its link is among the links used last. If
//! polls are so rare that visiting all links takes longer than [`TURN`], one in [`CLOCK_LOOKS`]
//! scans visits all.
//!
//! No wake-up is lost. The protocol of [`sleep`](super::sleep) covers all rings together. After a
//! receiver has marked itself as asleep, it must check all rings. `has_packets` does this. If it
//! finds a packet, the sleep ends at once; otherwise a doorbell ends it. Either way, the next scan
//! visits all links. While the device is awake, its threads keep scanning and reach every ring.
//!
//! # A full ring
//! A peer that does not take its packets delays packets to other peers, as a full socket does, but
//! only for [`HOLD`] nanoseconds. Then packets to this peer are dropped until the peer takes some.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown, shutdown};
use roce::engine::{Gid, Path, Time};
use roce::wire::ICRC_LEN;
use roce::wire::packet::MAX_LINK_PACKET_LEN;
use verbs_core::Errno;

use super::peers::{MAX_PEERS, PeerId};
use super::ring::{Consumer, Producer, Record, ends};
use super::segment::{OwnSegment, PeerSegment};
use super::sleep::PeerSleep;
use crate::io::counters::Counts;
use crate::io::{Direction, Socket, send_files};

/// A connection to a peer, and the rings for both directions.
#[derive(Debug)]
pub(crate) struct Link {
    id: PeerId,
    /// The connection number.
    number: u64,
    /// The connection for waking the peer; `None` if the device is its own peer.
    connection: Option<Connection>,
    producer: Producer,
    consumer: Consumer,
    /// The number of the peer's sleep for which the last doorbell was sent.
    rung: u32,
    /// Whether packets were sent since the last check whether the peer needs a doorbell.
    has_sent: bool,
    /// Whether no packet has been taken from the link yet.
    is_new: bool,
    /// The number of packets in the peer's ring that may be taken.
    ready: u32,
    /// The time when the own ring became full, if it is full.
    full_since: Option<Time>,
    /// Whether packets to the peer are dropped because it takes none.
    is_stalled: bool,
    /// Whether the link is one of the [`RECENT`] links used last.
    is_recent: bool,
    /// The value of [`Links::scans`] when the link was last used.
    used: u32,
}

/// The socket and the page for waking a peer.
#[derive(Debug)]
struct Connection {
    socket: Arc<OwnedFd>,
    sleep: PeerSleep,
}

/// All links of a device.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    /// The index of the device's link to itself, if it has one.
    own: Option<usize>,
    /// The index of each peer's latest link.
    by_id: BTreeMap<PeerId, u16>,
    /// The indices of links with packets that may be taken.
    found: Vec<u16>,
    /// The indices of links whose peers may need a doorbell.
    sent: Vec<u16>,
    /// The indices of the links used last, at most [`RECENT`].
    recent: Vec<u16>,
    /// The index of the next link to visit in turn.
    turn: usize,
    /// Whether the next scan visits all links.
    visits_all: bool,
    /// The time by which all links had last been visited.
    visited: Instant,
    /// The number of scans of the links, modulo 2³².
    scans: u32,
    /// The routes to recent destinations, in a direct-mapped cache.
    routes: Box<[Route]>,
    /// Destinations without a link, for the worker to look up.
    wanted: Vec<PeerId>,
    /// The time of the next look-up of any destination.
    next_lookup: Time,
    /// Whether the last packets came through memory rather than the socket.
    is_hot: bool,
    /// The number of receive calls that could skip the socket, modulo 2³².
    looks: u32,
    /// The number of scans that returned [`Scan::NeedsSocket`] since the last link was added.
    drained: u32,
    /// Whether packets were left in a ring after the last scan.
    more: bool,
    /// Whether a link without space blocks sending.
    is_blocked: bool,
    /// The number of links whose own ring has grown to full size.
    large: usize,
    /// A buffer for a received packet.
    packet: Box<[u8]>,
}

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    id: PeerId,
    /// The index of the destination's link, or `None` if packets use the socket.
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

/// The error returned if a link has a packet that must wait until the socket is empty.
#[derive(Clone, Copy, Debug)]
struct NeedsSocket;

/// The connection number of a device's link to itself, which has no connection.
const OWN: u64 = u64::MAX;

/// The longest time, in nanoseconds, that a full ring delays packets to other peers. On a busy
/// machine a receiver may be descheduled for several time slices. Unreliable connections lose
/// packets dropped after this time.
const HOLD: u64 = 20_000_000;

/// The time, in nanoseconds, after which a destination without a link is looked up again.
const LOOKUP: u64 = 1_000_000_000;

/// The minimum time between look-ups, in nanoseconds, because a program may send to thousands of
/// hosts.
const LOOKUP_PAUSE: u64 = 1_000_000;

/// The number of reads of the socket after which the socket holds no packet from before a link
/// began, even if more packets keep arriving. Its buffer cannot hold more.
const DRAINED: u32 = 1024;

/// The maximum number of packets that become ready in a link at once.
const READY: u32 = 32;

/// While packets come through memory, one in this many receive calls also reads the socket.
const SOCKET_LOOKS: u32 = 128;

/// The number of recently used links that each scan visits, if there are more than [`FEW`] links.
const RECENT: usize = 16;

/// The number of other links that each scan visits.
const IN_TURN: usize = 8;

/// The maximum number of links at which each scan visits all.
const FEW: usize = RECENT + IN_TURN;

/// The time since the last visit to all links after which one scan visits all of them.
const TURN: Duration = Duration::from_micros(50);

/// The maximum number of links whose own ring grows, because a ring never returns memory.
const LARGE: usize = 16;

/// One in this many scans reads the clock, to check [`TURN`].
const CLOCK_LOOKS: u32 = 8;

const _: () = assert!(IN_TURN * SOCKET_LOOKS as usize >= MAX_PEERS);

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

    /// Creates the link of a device to itself.
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
            is_recent: false,
            used: 0,
        }
    }

    /// Wakes the peer if it sleeps, unless a doorbell for this sleep was already sent.
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
        // A full socket already holds doorbells. If the socket is closed, the link ends soon.
        let _ = send_files(socket.as_fd(), &[0], &[]);
    }

    /// Returns whether there is space again, because the peer has taken packets.
    #[cold]
    fn recovers(&mut self) -> bool {
        let recovers = self.producer.has_room() == Ok(true);
        if recovers {
            (self.full_since, self.is_stalled) = (None, false);
        }
        recovers
    }

    /// Closes the connection because the peer breaks the rules. The worker then detects that the
    /// connection has ended.
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
            by_id: BTreeMap::new(),
            found: Vec::new(),
            sent: Vec::new(),
            recent: Vec::with_capacity(RECENT),
            turn: 0,
            visits_all: false,
            visited: Instant::now(),
            scans: 0,
            // Vectors, because an array would be on the stack first.
            routes: vec![Route::NONE; Self::ROUTES].into_boxed_slice(),
            wanted: Vec::new(),
            next_lookup: Time(0),
            is_hot: false,
            looks: 0,
            drained: 0,
            more: false,
            is_blocked: false,
            large: 0,
            packet: vec![0; MAX_LINK_PACKET_LEN].into_boxed_slice(),
        }
    }
}

impl Links {
    const ROUTES: usize = 256;

    /// Returns whether there are no links, so that all packets use the socket.
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
        self.by_id.insert(link.id, self.links.len() as u16);
        self.links.push(link);
        self.found.reserve(self.links.len() - self.found.len());
        self.sent.reserve(self.links.len() - self.sent.len());
        self.routes.fill(Route::NONE);
        self.drained = 0;
    }

    /// Returns whether packets from the device to itself wait in a ring. No doorbell announces such
    /// packets.
    #[inline]
    pub(crate) fn has_own_packets(&self) -> bool {
        self.own.is_some_and(|own| !self.links[own].consumer.is_empty())
    }

    /// Removes a link and returns its peer. The caller must already have taken the link's packets.
    pub(crate) fn remove(&mut self, number: u64) -> Option<PeerId> {
        let at = self.links.iter().position(|link| link.number == number)?;
        let id = self.links.remove(at).id;
        self.own = self.links.iter().position(|link| link.connection.is_none());
        self.by_id = (0..).zip(&self.links).map(|(at, link)| (link.id, at)).collect();
        self.list();
        self.routes.fill(Route::NONE);
        self.is_blocked = self.links.iter().any(|link| link.full_since.is_some() && !link.is_stalled);
        self.large = self.links.iter().filter(|link| link.producer.is_large()).count();
        Some(id)
    }

    /// Rebuilds the lists of link indices after the indices have changed.
    fn list(&mut self) {
        let Self { links, found, sent, recent, .. } = self;
        let all = || (0_u16..).zip(links.iter());
        for list in [&mut *found, &mut *sent, &mut *recent] {
            list.clear();
        }
        found.extend(all().filter(|(_, link)| link.ready > 0).map(|(at, _)| at));
        sent.extend(all().filter(|(_, link)| link.has_sent).map(|(at, _)| at));
        recent.extend(all().filter(|(_, link)| link.is_recent).map(|(at, _)| at));
    }

    /// Adds a link to the links used last.
    #[inline]
    fn use_link(&mut self, at: u16) {
        if self.links.len() <= FEW {
            return;
        }
        let link = &mut self.links[usize::from(at)];
        link.used = self.scans;
        if !link.is_recent {
            self.add_recent(at);
        }
    }

    #[cold]
    fn add_recent(&mut self, at: u16) {
        let Self { links, recent, scans, .. } = self;
        links[usize::from(at)].is_recent = true;
        if recent.len() < RECENT {
            recent.push(at);
        } else if let Some(oldest) =
            recent.iter_mut().max_by_key(|at| scans.wrapping_sub(links[usize::from(**at)].used))
        {
            links[usize::from(core::mem::replace(oldest, at))].is_recent = false;
        }
    }

    /// Removes and returns a destination to look up.
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

    /// Returns the index of the link to a destination, or `None` if packets use the socket.
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
        let link = self.link_of(id);
        let mut until = now + LOOKUP;
        if link.is_none() {
            if now >= self.next_lookup {
                self.next_lookup = now + LOOKUP_PAUSE;
                self.wanted.push(id);
            } else {
                until = self.next_lookup;
            }
        }
        self.routes[Route::index(&id)] = Route { id, link, until };
        link.map(usize::from)
    }

    /// Returns whether there is a link to a destination.
    pub(crate) fn leads_to(&self, gid: Gid, slot: u8) -> bool {
        self.link_of(PeerId { gid, slot }).is_some()
    }

    /// Returns the index of the link to a destination, without using the cache. If the peer has
    /// restarted, this is the latest link. All queue pairs of an unshared address belong to one
    /// device.
    fn link_of(&self, id: PeerId) -> Option<u16> {
        [id, PeerId { slot: 0, ..id }].iter().filter_map(|id| self.by_id.get(id)).max().copied()
    }

    /// Polls the links for packets.
    #[inline]
    pub(crate) fn scan(&mut self) -> Scan {
        if self.links.is_empty() {
            return Scan::Nothing;
        }
        self.more = false;
        self.scans = self.scans.wrapping_add(1);
        let count = self.links.len();
        let visits_all = count <= FEW || self.visits_all();
        let is_read =
            if visits_all { (0..count).try_for_each(|at| self.visit(at as u16)) } else { self.visit_some() };
        if visits_all && is_read.is_ok() {
            self.visits_all = false;
        }
        match is_read {
            Err(NeedsSocket) => Scan::NeedsSocket,
            Ok(()) if self.found.is_empty() => Scan::Nothing,
            Ok(()) => Scan::Packets,
        }
    }

    /// Returns whether this scan must visit all links even if there are more than [`FEW`].
    #[inline]
    fn visits_all(&mut self) -> bool {
        if self.scans.is_multiple_of(CLOCK_LOOKS) {
            self.visits_all |= self.visited.elapsed() > TURN;
        }
        if self.visits_all {
            self.visited = Instant::now();
        }
        self.visits_all
    }

    /// Visits the links with known packets, the links used last, and some others.
    fn visit_some(&mut self) -> Result<(), NeedsSocket> {
        for list in [0, 1] {
            let mut next = 0;
            while let Some(&at) = [&self.found, &self.recent][list].get(next) {
                self.visit(at)?;
                next += 1;
            }
        }
        for _ in 0..IN_TURN {
            if self.turn >= self.links.len() {
                (self.turn, self.visited) = (0, Instant::now());
            }
            self.visit(self.turn as u16)?;
            self.turn += 1;
        }
        Ok(())
    }

    /// Counts the packets that wait in a link.
    #[inline]
    fn visit(&mut self, at: u16) -> Result<(), NeedsSocket> {
        let link = &mut self.links[usize::from(at)];
        if link.ready == 0 && link.consumer.is_empty() {
            return Ok(());
        }
        if link.is_new && self.drained < DRAINED {
            self.drained += 1;
            // The link has a packet, which the next scan must find.
            self.use_link(at);
            return Err(NeedsSocket);
        }
        match link.consumer.count(READY) {
            Ok(ready) => {
                if link.ready == 0 {
                    self.found.push(at);
                }
                link.ready = ready;
                self.more |= ready == READY;
                self.use_link(at);
            }
            Err(_) => self.close(at),
        }
        Ok(())
    }

    /// Closes a link's connection because the peer breaks the rules.
    #[cold]
    fn close(&mut self, at: u16) {
        self.links[usize::from(at)].close();
        self.found.retain(|found| *found != at);
    }

    /// Records that the socket is empty.
    pub(crate) fn socket_is_empty(&mut self) {
        for link in &mut self.links {
            link.is_new = false;
        }
    }

    /// Returns whether a receive call may skip the socket, because packets come through memory.
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

    /// Returns whether packets were left in a ring after the last scan.
    #[inline]
    pub(crate) fn more(&self) -> bool {
        self.more
    }

    /// Returns whether packets wait in any ring. Called before a sleep. The next scan visits all
    /// links, so it finds these packets, or the packets that end the sleep.
    pub(crate) fn has_packets(&mut self) -> bool {
        self.visits_all = true;
        self.links.iter().any(|link| link.ready > 0 || !link.consumer.is_empty())
    }

    /// Calls `each` with the packets that were ready at the last scan: the peer's GID, the
    /// [`Record`], and the bytes from the BTH through the space for the ICRC.
    #[inline]
    pub(crate) fn take(&mut self, socket: &Socket, mut each: impl FnMut(&Gid, Record, &[u8])) {
        let counts = socket.counts();
        let Self { links, packet, found, .. } = self;
        for at in found.drain(..) {
            let link = &mut links[usize::from(at)];
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
                each(&link.id.gid, record, &packet[..record.len + ICRC_LEN]);
                if link.consumer.advance() {
                    // The peer waits for space in its ring.
                    link.doorbell(counts);
                }
            }
        }
    }

    /// Returns the memory for the next packet in the ring of a link, if the ring has space.
    #[inline]
    pub(crate) fn space(&mut self, link: usize) -> Option<&mut [u8]> {
        let link = self.links.get_mut(link)?;
        (link.full_since.is_none() || link.recovers()).then(|| link.producer.space())
    }

    /// Sends a packet, from BTH to pad, through a link. Drops the packet if the ring has no space.
    /// This happens only to acknowledgements and to packets for a stalled link, which do not wait
    /// for space.
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
    /// Panics if the ring has no space for the packet.
    #[inline]
    pub(crate) fn push_written(&mut self, link: usize, len: usize, path: &Path, now: Time, socket: &Socket) {
        let counts = socket.counts();
        let hop_limit = if path.hop_limit == 0 { socket.default_hop_limit() } else { path.hop_limit };
        let at = link as u16;
        self.use_link(at);
        let link = &mut self.links[link];
        if socket.capture().is_some() {
            let mut packet = [&link.producer.space()[..len], &[0; ICRC_LEN]].concat();
            let class = path.traffic_class;
            socket.capture_of_memory(Direction::Sent, path.remote, class, hop_limit, &mut packet);
        }
        let was_large = link.producer.is_large();
        let Path { traffic_class, on_link, .. } = *path;
        let record = Record { len, traffic_class, hop_limit, on_link };
        link.producer.push(record, now, self.large < LARGE);
        self.large += usize::from(link.producer.is_large() && !was_large);
        if !core::mem::replace(&mut link.has_sent, true) {
            self.sent.push(at);
        }
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

    /// Returns whether a link without space currently blocks the sending of all packets.
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

    /// Returns the time when the first link without space stops blocking, if any link blocks.
    pub(crate) fn blocked_until(&self) -> Option<Time> {
        if !self.is_blocked {
            return None;
        }
        let waiting = self.links.iter().filter(|link| !link.is_stalled);
        waiting.filter_map(|link| link.full_since).map(|since| since + HOLD).min()
    }

    /// Wakes the sleeping peers among those to which packets were sent.
    #[inline]
    pub(crate) fn ring(&mut self, counts: &Counts) {
        for at in self.sent.drain(..) {
            let link = &mut self.links[usize::from(at)];
            link.has_sent = false;
            link.ring(counts);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns `count` links whose peers are this process: a packet put into a link arrives in the
    /// same link.
    fn links(count: u8) -> Links {
        let mut links = Links::default();
        for slot in 1..=count {
            let mut link = Link::own(PeerId { gid: [7; 16], slot }).unwrap();
            (link.number, link.is_new) = (slot.into(), false);
            links.by_id.insert(link.id, links.links.len() as u16);
            links.links.push(link);
        }
        links
    }

    /// Puts a packet into a link, as the link's peer would.
    fn arrive(links: &mut Links, at: usize) {
        links.links[at].producer.copy_in(&[at as u8; 64], 0, 64);
    }

    /// Returns the first byte of each packet found.
    fn take(links: &mut Links, socket: &Socket) -> Vec<usize> {
        let mut taken = Vec::new();
        links.take(socket, |_, _, packet| taken.push(packet[0].into()));
        taken
    }

    const COUNT: u8 = 100;

    #[test]
    fn a_packet_of_any_of_many_links_is_found_within_a_turn() {
        let (mut links, socket) = (links(COUNT), Socket::auto_alone().unwrap());
        for at in 0..COUNT.into() {
            arrive(&mut links, at);
            let looks = (1..).find(|_| links.scan() == Scan::Packets).unwrap();
            assert!(looks <= usize::from(COUNT).div_ceil(IN_TURN) + 1, "{looks} looks for {at}");
            assert_eq!(take(&mut links, &socket), [at]);
            assert_eq!(links.scan(), Scan::Nothing);
        }
    }

    #[test]
    fn each_look_finds_packets_of_the_links_used_last() {
        let (mut links, socket) = (links(COUNT), Socket::auto_alone().unwrap());
        for used in (0..COUNT.into()).step_by(RECENT) {
            let chosen = used..(used + RECENT).min(COUNT.into());
            for at in chosen.clone() {
                links.push(at, &[9; 64], &Path::default(), Time(0), &socket);
            }
            assert_eq!(links.scan(), Scan::Packets);
            assert_eq!(take(&mut links, &socket), vec![9; chosen.len()]);
            for at in chosen {
                arrive(&mut links, at);
                assert_eq!(links.scan(), Scan::Packets);
                assert_eq!(take(&mut links, &socket), [at]);
            }
        }
    }

    #[test]
    fn a_bounded_number_of_links_grows_and_the_end_of_one_makes_room_for_another() {
        let (mut links, socket) = (links(COUNT), Socket::auto_alone().unwrap());
        // Sends up to 1 MiB at once, as much as fits.
        let stream = |links: &mut Links, at| {
            for _ in 0..256 {
                links.push(at, &[7; 4096], &Path::default(), Time(0), &socket);
                while links.scan() == Scan::Packets {
                    take(links, &socket);
                }
            }
            links.links[at].producer.is_large()
        };
        let grown: Vec<_> = (0..COUNT.into()).filter(|at| stream(&mut links, *at)).collect();
        assert!(grown.iter().copied().eq(0..LARGE));
        links.remove(3);
        assert!(stream(&mut links, 50) && !stream(&mut links, 51));
    }

    #[test]
    fn the_first_look_after_the_one_before_a_sleep_visits_all_links() {
        let (mut links, socket) = (links(COUNT), Socket::auto_alone().unwrap());
        // Each sleep starts after `has_packets` found nothing. The first scan after it must find
        // the packet.
        assert!(!links.has_packets());
        for at in (0..COUNT.into()).rev() {
            arrive(&mut links, at);
            assert_eq!(links.scan(), Scan::Packets);
            assert_eq!(take(&mut links, &socket), [at]);
            assert!(!links.has_packets());
        }
    }

    #[test]
    fn packets_and_routes_of_other_links_survive_the_end_of_one() {
        let (mut links, socket) = (links(COUNT), Socket::auto_alone().unwrap());
        for at in [20, 60, 99] {
            links.push(at, &[at as u8; 64], &Path::default(), Time(0), &socket);
        }
        assert_eq!(links.scan(), Scan::Packets);
        links.remove(51);
        assert_eq!(links.route(&[7; 16], 51, Time(0)), None);
        for (slot, at) in [(50, 49), (52, 50), (100, 98)] {
            assert_eq!(links.route(&[7; 16], slot, Time(0)), Some(at), "slot {slot}");
        }
        let mut taken = take(&mut links, &socket);
        taken.sort_unstable();
        assert_eq!(taken, [20, 60, 99]);
        arrive(&mut links, 98);
        assert_eq!(links.scan(), Scan::Packets, "it stays one of those used last");
        assert!(links.sent.len() == 3 && links.sent.iter().all(|at| links.links[usize::from(*at)].has_sent));
    }
}
