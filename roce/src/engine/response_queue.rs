//! [`ResponseQueue`]: the order of read responses and atomic results, and their bytes in flight to
//! each peer.
//!
//! A 28-byte read request may ask for 2 GiB, and a queue pair may owe one atomic result for each of
//! [`Attr::max_dest_rd_atomic`] requests. These responses must not delay packets to other peers.
//! They therefore form a separate queue behind requests, NAKs and acknowledgements
//! ([`output`](super::output)).
//!
//! ```text
//!   line      peer A ──► peer C     the first sends a quantum of its first queue
//!               │          │         pair, then both move to the end
//!              qp 1       qp 7
//!              qp 2
//!              qp 3
//!   resting   peer B until its credit allows another quantum
//! ```
//!
//! - **Round robin between peers**, then between the queue pairs of a peer. A peer is a remote
//!   address: a host with 4,000 queue pairs gets the same share as a host with one queue pair.
//! - **A quantum** is [`QUANTUM_BYTES`] or [`QUANTUM_PACKETS`], whichever comes first. The packets
//!   of one flow then fit into one datagram for the kernel to segment.
//! - **Credit** is a bucket of [`Config::window_bytes`] per peer. Each packet costs its length plus
//!   [`PACKET_COST`]; over time, credit grows at [`Config::response_rate`]. In any period of `t`
//!   microseconds, a peer is therefore sent at most `window_bytes + response_rate × t` bytes of
//!   responses, plus one packet if the window is smaller than a packet.
//!
//! Only time refills a bucket. The protocol gives one other sign that a peer has received a
//! response: a request beyond its queue pair's limit of outstanding reads. This sign comes late,
//! after as many further requests as the limit allows. A hostile peer can also fake it without
//! reading the response.
//!
//! [`Attr::max_dest_rd_atomic`]: super::types::Attr::max_dest_rd_atomic
//!
//! Invariant: only control calls create and release peers. Handling a packet only moves queue pairs
//! between lists with preallocated space.

use alloc::collections::{BTreeMap, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::qp::Qp;
use super::room;
use super::scheduler::PACKET_COST;
use super::types::{Config, Gid, Network, Path, Refused, Time};

/// The number of bytes, headers included, after which a queue pair's quantum ends: 15 packets with
/// 4 KiB of payload.
pub(crate) const QUANTUM_BYTES: u32 = 15 * 4108;

/// The number of packets after which a queue pair's quantum ends: the most segments that the kernel
/// accepts in a datagram.
pub(crate) const QUANTUM_PACKETS: u32 = 64;

/// The credit, in bytes, for the largest packet of any path MTU. A larger packet between devices on
/// one machine may exceed it.
const PACKET_COST_MAX: i64 = 4096 + 64 + PACKET_COST as i64;

/// The credit, in bytes, at which a resting peer may send again: enough for a quantum of full
/// packets.
const QUANTUM_COST: i64 = 15 * PACKET_COST_MAX;

/// The peers that receive read responses and atomic results.
#[derive(Debug, Default)]
pub(crate) struct ResponseQueue {
    peers: Vec<Peer>,
    /// The indices of free entries in `peers`.
    free: Vec<u32>,
    by_address: BTreeMap<Address, u32>,
    /// The indices of peers with responses to send.
    line: VecDeque<u32>,
    /// The indices of peers with responses to send but too little credit, along with the times at
    /// which they will have enough.
    resting: BinaryHeap<Reverse<(Time, u32)>>,
    /// The packets and bytes of the current quantum already sent by the first queue pair of the
    /// first peer in `line`.
    packets: u32,
    bytes: u32,
}

/// The identity of a peer: a GID or, on InfiniBand without GIDs, a local id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    Global(Gid),
    Local(u16),
}

impl Address {
    pub(crate) fn from_path(path: &Path) -> Self {
        match path.network {
            Network::Udp | Network::Grh => Self::Global(path.remote),
            Network::Local => Self::Local(path.dlid),
        }
    }
}

#[derive(Debug)]
struct Peer {
    address: Address,
    /// The number of queue pairs connected to the peer.
    users: u32,
    /// The numbers of the queue pairs with a response to send.
    qps: VecDeque<u32>,
    state: PeerState,
    /// The number of bytes that may be sent now. Negative after a packet that cost more than this.
    credit: i64,
    /// The time up to which elapsed time has been converted into credit.
    counted: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerState {
    Idle,
    Queued,
    Resting,
}

impl ResponseQueue {
    /// Allocates memory for the peers of `qps` queue pairs, so that connecting a queue pair needs
    /// only small allocations.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if an allocation fails.
    pub(crate) fn reserve(&mut self, qps: usize) -> Result<(), Refused> {
        room::reserve_to(&mut self.peers, qps)?;
        room::reserve_to(&mut self.free, qps)?;
        room::reserve_to(&mut self.line, qps)?;
        room::reserve_to(&mut self.resting, qps)
    }

    /// Adds a queue pair to a peer and returns the peer's index.
    pub(crate) fn join(&mut self, address: Address, config: &Config, now: Time) -> u32 {
        let found = self.by_address.get(&address).copied();
        let number = found.unwrap_or_else(|| self.add(address, config, now));
        if let Some(peer) = self.peers.get_mut(number as usize) {
            peer.users += 1;
            let room = (peer.users as usize).saturating_sub(peer.qps.len());
            peer.qps.reserve(room);
        }
        number
    }

    fn add(&mut self, address: Address, config: &Config, now: Time) -> u32 {
        let credit = i64::from(config.window_bytes);
        let qps = VecDeque::new();
        let peer = Peer { address, users: 0, qps, state: PeerState::Idle, credit, counted: now };
        let number = match self.free.pop() {
            Some(number) => number,
            None => self.peers.len() as u32,
        };
        match self.peers.get_mut(number as usize) {
            Some(place) => *place = peer,
            None => self.peers.push(peer),
        }
        self.by_address.insert(address, number);
        let peers = self.peers.len();
        self.line.reserve(peers - self.line.len());
        self.resting.reserve(peers - self.resting.len());
        number
    }

    pub(crate) fn address(&self, number: u32) -> Option<Address> {
        self.peers.get(number as usize).map(|peer| peer.address)
    }

    /// Removes a queue pair from its peer.
    pub(crate) fn leave(&mut self, qp: &mut Qp) {
        let Some(number) = qp.peer.take() else { return };
        let Some(peer) = self.peers.get_mut(number as usize) else { return };
        peer.users = peer.users.saturating_sub(1);
        if core::mem::take(&mut qp.in_response_queue) {
            if peer.qps.front() == Some(&qp.qpn.0) && self.line.front() == Some(&number) {
                (self.packets, self.bytes) = (0, 0);
            }
            peer.qps.retain(|&other| other != qp.qpn.0);
        }
        if peer.users == 0 {
            match peer.state {
                PeerState::Idle => {}
                PeerState::Queued => self.line.retain(|&other| other != number),
                PeerState::Resting => self.resting.retain(|Reverse((_, other))| *other != number),
            }
            peer.state = PeerState::Idle;
            let address = peer.address;
            self.by_address.remove(&address);
            self.free.push(number);
        }
    }

    /// Appends a queue pair that has a response to send to its peer's list.
    #[inline]
    pub(crate) fn enqueue(&mut self, qp: &mut Qp) {
        let Some(number) = qp.peer.filter(|_| !qp.in_response_queue) else { return };
        let Some(peer) = self.peers.get_mut(number as usize) else { return };
        qp.in_response_queue = true;
        peer.qps.push_back(qp.qpn.0);
        if peer.state == PeerState::Idle {
            peer.state = PeerState::Queued;
            self.line.push_back(number);
        }
    }

    /// Returns whether no response is waiting.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.line.is_empty() && self.resting.is_empty()
    }

    /// Returns the earliest time at which a resting peer will have enough credit.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.resting.peek().map(|Reverse((at, _))| *at)
    }

    /// Moves the resting peers that have enough credit back into the line.
    #[inline]
    pub(crate) fn wake(&mut self, now: Time) {
        while let Some(&Reverse((at, number))) = self.resting.peek()
            && at <= now
        {
            self.resting.pop();
            if let Some(peer) = self.peers.get_mut(number as usize) {
                peer.state = PeerState::Queued;
                self.line.push_back(number);
            }
        }
    }

    /// Returns the queue pair whose response is sent next, or `None` if no peer has both a response
    /// and credit.
    #[inline]
    pub(crate) fn next(&mut self, now: Time, config: &Config) -> Option<u32> {
        self.wake(now);
        // This loop terminates because every iteration that does not return shortens the line.
        while let Some(&number) = self.line.front() {
            let peer = self.peers.get_mut(number as usize)?;
            if let Some(&qpn) = peer.qps.front() {
                match peer.rests_until(now, config) {
                    None => return Some(qpn),
                    Some(at) => {
                        peer.state = PeerState::Resting;
                        self.resting.push(Reverse((at, number)));
                    }
                }
            } else {
                peer.state = PeerState::Idle;
            }
            self.line.pop_front();
            (self.packets, self.bytes) = (0, 0);
        }
        None
    }

    /// Records that the queue pair returned by [`next`](Self::next) has sent a packet of `len`
    /// bytes. Returns whether its quantum is used up.
    #[inline]
    pub(crate) fn sent(&mut self, len: usize, config: &Config) -> bool {
        self.packets += 1;
        self.bytes = self.bytes.saturating_add(len as u32);
        let peer = self.line.front().and_then(|&number| self.peers.get_mut(number as usize));
        if let Some(peer) = peer
            && config.response_rate > 0
        {
            peer.credit -= (len as u64 + PACKET_COST) as i64;
        }
        self.packets >= QUANTUM_PACKETS || self.bytes >= QUANTUM_BYTES
    }

    /// Ends the quantum of the queue pair returned by [`next`](Self::next). If `more` is true, the
    /// queue pair has more responses and stays queued.
    pub(crate) fn end_turn(&mut self, more: bool) {
        (self.packets, self.bytes) = (0, 0);
        let Some(number) = self.line.pop_front() else { return };
        let Some(peer) = self.peers.get_mut(number as usize) else { return };
        let first = peer.qps.pop_front().filter(|_| more);
        peer.qps.extend(first);
        if peer.qps.is_empty() {
            peer.state = PeerState::Idle;
        } else {
            self.line.push_back(number);
        }
    }
}

impl Peer {
    /// Converts elapsed time into credit. If the credit is too low to continue, returns the time at
    /// which it will suffice.
    #[inline]
    fn rests_until(&mut self, now: Time, config: &Config) -> Option<Time> {
        let (rate, window) = (i64::from(config.response_rate), i64::from(config.window_bytes));
        if rate == 0 {
            return None;
        }
        let passed = now.0.saturating_sub(self.counted.0).min(i64::MAX as u64 / (1 << 32)) as i64;
        let gained = passed * rate / 1000;
        if self.credit.saturating_add(gained) >= window {
            (self.credit, self.counted) = (window, now);
        } else if gained > 0 {
            self.credit += gained;
            // A fraction of a byte is not credited, so the time spent on it is not counted yet.
            self.counted = self.counted + (gained * 1000 / rate) as u64;
        }
        if self.credit >= PACKET_COST_MAX.min(window) {
            return None;
        }
        let missing = QUANTUM_COST.min(window) - self.credit;
        Some(self.counted + (missing as u64 * 1000).div_ceil(rate as u64))
    }
}
