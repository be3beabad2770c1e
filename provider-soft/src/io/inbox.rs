//! [`Inbox`]: receives datagrams in batches and splits them into packets with a correct ICRC.
//!
//! The kernel may deliver many packets from one sender as one datagram (UDP GRO). The kernel
//! reports their common length; the last packet may be shorter. A packet's position in its datagram
//! is the IPv4 identification that the packet most likely had (see [the module](super)).
//!
//! At first, a receive call takes one datagram at the lowest cost, which suits a ping-pong. After
//! several consecutive calls that received short datagrams, the next calls take as many datagrams
//! as there are buffers. After short datagrams with pauses in between, calls omit even the
//! ancillary data ([`PlainReceives`]).

use std::net::IpAddr;
use std::os::fd::AsFd;

use roce::engine::{Arrival, Gid, Network};
use roce::wire::icrc::{Flow, Icrc, Verdict, compute};
use roce::wire::packet::MAX_PACKET_LEN;
use roce::wire::{ICRC_LEN, bth};
use verbs_core::Errno;

use super::address::{address_of, gid_of};
use super::capture::{Direction, Headers};
use super::control::number;
use super::counters::Counts;
use super::icrc_cache::Flows;
use super::socket::Socket;
use super::sys::{self, Slot};

/// A received packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    /// The packet's source, destination and header fields.
    pub(crate) arrival: Arrival,
    /// The bytes from BTH to ICRC. The ICRC is correct.
    pub(crate) bytes: &'a [u8],
}

/// Received datagrams and the progress of splitting them.
#[derive(Debug)]
pub(crate) struct Inbox {
    slots: Box<[Slot]>,
    /// The number of datagrams in the slots.
    filled: usize,
    /// The index of the slot with the datagram being split.
    current: usize,
    datagram: Datagram,
    /// The number of slots offered to the kernel by the next receive.
    offer: usize,
    /// The number of consecutive receives that each returned a datagram into the single slot
    /// offered.
    in_a_row: u32,
    /// Whether the last receive offered more than one slot and filled all of them.
    more: bool,
    plain: PlainReceives,
    flows: Flows,
    local: IpAddr,
    local_gid: Gid,
    port: u16,
    /// The process's slot at the address, or 0 if the address is not shared.
    slot: u8,
}

/// The datagram being split.
#[derive(Clone, Copy, Debug)]
struct Datagram {
    arrival: Arrival,
    icrc: Option<Icrc>,
    segment: usize,
    /// Whether the datagram was received without ancillary data, so that the packet length is
    /// unknown.
    is_plain: bool,
    offset: usize,
    position: u16,
}

const SLOTS: usize = 16;
/// The average length, in bytes, above which datagrams are received one at a time. The system call
/// is then a small part of the cost, and the first slot stays cached.
const BULKY: usize = 8 << 10;
/// The size of a slot, in bytes: more than any UDP datagram.
const SLOT: usize = 64 << 10;
const SHORTEST: usize = bth::LEN + ICRC_LEN;

impl Inbox {
    /// Returns an empty inbox of 1 MiB for a socket.
    pub(crate) fn new(socket: &Socket) -> Self {
        Self { plain: PlainReceives::new(true), ..Self::with_size(socket, SLOTS, SLOT) }
    }

    pub(super) fn with_size(socket: &Socket, slots: usize, bytes: usize) -> Self {
        Self {
            slots: (0..slots.clamp(1, sys::BATCH)).map(|_| Slot::new(bytes)).collect(),
            filled: 0,
            current: 0,
            datagram: Datagram::NONE,
            offer: 1,
            in_a_row: 0,
            more: false,
            plain: PlainReceives::new(false),
            flows: Flows::new(),
            local: socket.address(),
            local_gid: socket.gid(),
            port: socket.port(),
            slot: socket.slot(),
        }
    }

    /// Receives datagrams from the socket without waiting. Returns the number of datagrams in the
    /// inbox.
    ///
    /// Packets not yet taken out of the inbox stay there. No more packets are received until the
    /// inbox is empty, so a batch left by an earlier caller is never overwritten.
    ///
    /// # Errors
    /// Any errno of `recvmsg(2)` except `EAGAIN`, `EINTR` and errors from earlier sends, after
    /// which this function returns 0.
    #[inline]
    pub(crate) fn receive(&mut self, socket: &Socket) -> Result<usize, Errno> {
        self.receive_from(socket, socket.counts())
    }

    /// Like [`receive`](Self::receive), but counts in `counts`, the counters of another socket.
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive).
    #[inline(always)]
    pub(super) fn receive_from(&mut self, socket: &Socket, counts: &Counts) -> Result<usize, Errno> {
        if !self.is_empty() {
            return Ok(self.filled - self.current);
        }
        (self.filled, self.current, self.more) = (0, 0, false);
        let offered = self.offer;
        let is_plain = offered == 1 && self.plain.is_next() && !socket.tells_headers();
        let result = match offered {
            1 if is_plain => sys::receive_plain(socket.as_fd(), &mut self.slots[0]).map(|()| 1),
            1 => sys::receive(socket.as_fd(), &mut self.slots[0]).map(|()| 1),
            _ => sys::receive_many(socket.as_fd(), &mut self.slots[..offered]),
        };
        match result {
            Ok(filled) => {
                self.filled = filled;
                self.more = offered > 1 && filled == offered;
                self.in_a_row = if offered == 1 { self.in_a_row + 1 } else { 0 };
                let bytes: usize = self.slots[..filled].iter().map(|slot| slot.len).sum();
                if offered > 1 && filled == 1 || bytes > BULKY * filled {
                    self.offer = 1;
                } else if self.more || self.in_a_row > 1 {
                    self.offer = (offered * 4).min(self.slots.len());
                }
                self.open(is_plain, counts);
                counts.receives.add(1);
                Ok(filled)
            }
            Err(errno) => {
                (self.offer, self.in_a_row) = (1, 0);
                match errno {
                    Errno::AGAIN | Errno::INTR => Ok(0),
                    Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::MSGSIZE => Ok(0),
                    other => Err(other),
                }
            }
        }
    }

    /// Returns whether the inbox holds no more packets.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.current == self.filled
    }

    /// Returns whether the socket may hold more packets than the last receive returned.
    #[inline]
    pub(crate) fn more(&self) -> bool {
        self.more
    }

    /// Returns the next valid packet. Invalid packets are counted and dropped.
    #[inline]
    pub(crate) fn next(&mut self, socket: &Socket) -> Option<Received<'_>> {
        let counts = socket.counts();
        let (slot, range, arrival) = loop {
            let slot = self.slots[..self.filled].get(self.current)?;
            let Datagram { arrival, icrc, segment, is_plain, offset, position } = self.datagram;
            let (Some(icrc), true) = (icrc, offset < slot.len) else {
                self.current += 1;
                self.open(false, counts);
                continue;
            };
            let end = slot.len.min(offset + segment);
            self.datagram.offset = end;
            self.datagram.position = position.wrapping_add(1);
            let packet = &slot.payload[offset..end];
            let verdict = match is_plain {
                true if is_exact(&icrc, packet) => Verdict::Exact,
                true => Verdict::Bad,
                false => icrc.check(packet, position),
            };
            self.plain.judge(verdict, slot.len);
            if is_plain && verdict == Verdict::Bad {
                // The datagram contains several packets, or a damaged packet.
                (self.datagram.is_plain, self.datagram.offset, self.datagram.position) = (false, 0, 0);
                match first_packet(&icrc, packet, self.plain.found) {
                    Some(len) => {
                        self.datagram.segment = len;
                        self.plain.found(len, slot.len);
                    }
                    None => {
                        self.datagram.offset = slot.len;
                        self.plain.failed();
                        counts.bad_icrc.add(1);
                    }
                }
                continue;
            }
            if let Some(capture) = socket.capture() {
                let Arrival { src_port, traffic_class, hop_limit, .. } = arrival;
                let source = (address_of(arrival.remote), src_port.unwrap_or_default());
                let destination = (self.local, self.port);
                capture.packet(
                    Direction::Received,
                    &Headers { source, destination, traffic_class, hop_limit, id: position },
                    packet,
                );
            }
            if packet.len() < SHORTEST {
                counts.malformed.add(1);
                continue;
            }
            match verdict {
                Verdict::Exact => {}
                Verdict::WithId(_) => counts.other_id.add(1),
                _ => {
                    counts.bad_icrc.add(1);
                    continue;
                }
            }
            if self.slot != 0 && packet[5] != self.slot && packet[5] != 0 {
                counts.unknown_slot.add(1);
                if segment < slot.len {
                    // The kernel has joined packets for several processes, as received by a network
                    // card. Their senders retransmit them.
                    socket.join_no_packets();
                }
                continue;
            }
            counts.received.add(1);
            counts.received_bytes.add(packet.len() as u64);
            break (self.current, offset..end, arrival);
        };
        Some(Received { arrival, bytes: &self.slots[slot].payload[range] })
    }

    /// Parses the current datagram's source and ancillary data.
    #[inline]
    fn open(&mut self, is_plain: bool, counts: &Counts) {
        self.datagram = Datagram::NONE;
        let Some(slot) = self.slots[..self.filled].get(self.current) else { return };
        let Some((remote, src_port)) = slot.from.parse().filter(|_| !slot.cut_off && slot.len >= SHORTEST)
        else {
            counts.malformed.add(1);
            return;
        };
        let (remote_gid, local) = (gid_of(remote), self.local_gid);
        let sl = service_level(&remote_gid);
        let mut arrival =
            Arrival { remote: remote_gid, local, src_port: Some(src_port), sl, ..Arrival::default() };
        let mut segment = slot.len;
        slot.control.for_each(|level, kind, data| match (level, kind, number(data)) {
            (libc::SOL_UDP, libc::UDP_GRO, Some(length @ 1..)) => segment = length as usize,
            (libc::IPPROTO_IP, libc::IP_TOS, Some(class))
            | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, Some(class)) => arrival.traffic_class = class as u8,
            (libc::IPPROTO_IP, libc::IP_TTL, Some(hops))
            | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, Some(hops)) => arrival.hop_limit = hops as u8,
            _ => {}
        });
        let flow = Flow { src: remote, dst: self.local, src_port, dst_port: self.port };
        self.datagram = Datagram {
            arrival,
            icrc: Some(self.flows.icrc(flow)),
            segment,
            is_plain,
            offset: 0,
            position: 0,
        };
    }
}

/// Decides which receives omit the ancillary data, which would contain the length of joined
/// packets.
///
/// Such a receive costs less ([`sys::receive_plain`]). In a ping-pong of short messages most
/// datagrams are single packets. For other datagrams, [`first_packet`] finds the length, because
/// the ICRC of the first packet shows where it ends.
#[derive(Clone, Copy, Debug)]
struct PlainReceives {
    /// The number of consecutive short datagrams with exact ICRCs.
    short: u32,
    /// The value of `short` from which receives are plain.
    after: u32,
    /// The length, in bytes, found by the last search for the first packet of a datagram.
    found: usize,
}

impl PlainReceives {
    const fn new(are_allowed: bool) -> Self {
        Self { short: 0, after: if are_allowed { PLAIN_AFTER } else { u32::MAX }, found: 0 }
    }

    /// Returns whether the next receive is plain: without ancillary data.
    #[inline]
    const fn is_next(&self) -> bool {
        self.short >= self.after
    }

    /// Records the ICRC verdict on the packet in a datagram of `len` bytes.
    #[inline]
    fn judge(&mut self, verdict: Verdict, len: usize) {
        // By chance, one packet in 32,768 that ends elsewhere has a correct ICRC with another
        // identification. Receives are therefore plain only while peers use the expected
        // identifications.
        let is_short = len <= SHORT && verdict == Verdict::Exact;
        self.short = if is_short { self.short.saturating_add(1).min(u32::MAX - 1) } else { 0 };
    }

    /// Records a successful search in a datagram of `len` bytes: its first packet has `first`
    /// bytes.
    fn found(&mut self, first: usize, len: usize) {
        self.found = first;
        if len <= SHORT {
            self.short = self.after;
        }
    }

    /// Records a search that found no first packet. A hostile peer may cause such searches, which
    /// take long.
    fn failed(&mut self) {
        self.after = self.after.saturating_mul(2);
    }
}

/// The number of consecutive short datagrams after which receives are plain.
const PLAIN_AFTER: u32 = 16;

/// The maximum length of a short datagram, in bytes.
const SHORT: usize = 256;

/// Returns the length of the first packet in a datagram with several packets. The length is
/// recognised by the exact ICRC at the packet's end. Tries `likely` first.
fn first_packet(icrc: &Icrc, datagram: &[u8], likely: usize) -> Option<usize> {
    let longest = datagram.len().saturating_sub(SHORTEST).min(MAX_PACKET_LEN);
    // Packets are padded to 4 bytes.
    let lengths = (SHORTEST..=longest).step_by(4);
    Some(likely)
        .into_iter()
        .filter(|len| (SHORTEST..=longest).contains(len))
        .chain(lengths)
        .find(|len| is_exact(icrc, &datagram[..*len]))
}

/// Returns whether a packet has an exact ICRC. Costs less than [`Icrc::check`] if the ICRC is not
/// exact.
#[inline]
fn is_exact(icrc: &Icrc, packet: &[u8]) -> bool {
    let Some((covered, end)) = packet.split_last_chunk::<ICRC_LEN>() else { return false };
    compute(icrc.seed(0, true, packet.len()), covered) == u32::from_le_bytes(*end)
}

/// Returns the service level for datagram completions: the kind of IP header, as reported by
/// ConnectX on RoCE v2. UCX uses this value to find the destination in the first 40 bytes of a
/// receive.
#[inline]
pub(crate) fn service_level(remote: &Gid) -> u8 {
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    if address_of(*remote).is_ipv4() { IPV4 } else { IPV6 }
}

impl Datagram {
    const NONE: Self = Self {
        arrival: Arrival {
            network: Network::Udp,
            remote: [0; 16],
            local: [0; 16],
            src_port: None,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            sl: 0,
            slid: 0,
            dlid: 0,
            on_link: false,
        },
        icrc: None,
        segment: 0,
        is_plain: false,
        offset: 0,
        position: 0,
    };
}
