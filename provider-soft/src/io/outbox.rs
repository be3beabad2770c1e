//! [`Outbox`]: collects packets in one buffer, one after the other, and sends them in as few system
//! calls as possible.
//!
//! ```text
//!   arena    | packet | packet | packet | short | packet | packet |     space()      |
//!   groups   |<---- one datagram of 4 segments ---->|<--- of 2 -->|
//!                         to a                           to b
//! ```
//!
//! A group is passed to the kernel as one datagram, which the kernel splits again (UDP GSO). It
//! contains packets to one destination with the same traffic class and hop limit. On this host the
//! kernel gives the whole datagram to one process. Processes may share the destination
//! ([`share`](super::share)), so the queue pairs in a group have the same slot. A management
//! datagram has a group to itself. All packets in a group have the same length, except the last,
//! which may be shorter. A packet's position in its group is its IPv4 identification (see [the
//! module](super)). The ICRC covers the identification, so it is computed when the packet joins the
//! group.
//!
//! Lifecycle of a group: open (packets join) → closed (a packet did not fit) → sent whole; or, if
//! the device rejects the datagram → split (all identifications 0, new ICRCs) → sent packet by
//! packet.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::AsFd;

use roce::engine::{Gid, Path};
use roce::wire::icrc::{Flow, Icrc};
use roce::wire::packet::{MAX_LINK_PACKET_LEN, MAX_PACKET_LEN};
use roce::wire::{ICRC_LEN, bth};
use verbs_core::Errno;

use super::address::{Name, address_of};
use super::capture::{Capture, Direction, Headers};
use super::connected::{Connected, Index};
use super::control::Control;
use super::counters::Counts;
use super::icrc_cache::{Flows, seal};
use super::socket::Socket;
use super::sys::{self, Message};

/// The outcome of flushing the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Flush {
    /// The outbox is empty.
    Done,
    /// The socket's buffer is full: flush again when the socket is writable. Until then, more
    /// packets may be added.
    Blocked,
}

/// The packets that wait to be sent through the socket.
#[derive(Debug)]
pub(crate) struct Outbox {
    arena: Box<[u8]>,
    /// The offset of the first packet, chosen to align the payload after a BTH. In a stream,
    /// extended headers and packets have lengths that are multiples of 16, so later packets are
    /// aligned too.
    first: usize,
    /// The offset of the first byte after the last packet.
    used: usize,
    groups: Box<[Group]>,
    /// The indices of the groups not yet sent.
    pending: Range<usize>,
    flows: Flows,
    /// The sockets for packets to devices on this host.
    pub(crate) connected: Connected,
    /// Whether the socket that was full is a connected socket.
    waits_for_connected: bool,
    local: IpAddr,
    port: u16,
    scope: u32,
    default_hop_limit: u8,
    gso: bool,
    /// The last destinations whose device or route rejected GSO; the oldest is overwritten first.
    without_gso: [Gid; 8],
    refusals: usize,
    /// The number of packets for the other address family that have not been counted yet.
    wrong_family: u64,
}

/// Packets sent as one datagram.
#[derive(Clone, Copy, Debug)]
struct Group {
    start: usize,
    end: usize,
    /// The length of each packet, including its ICRC, in bytes. The last packet may be shorter.
    segment: usize,
    /// The number of packets in the group.
    packets: usize,
    /// Whether the group accepts no more packets.
    closed: bool,
    /// Whether the group is sent packet by packet. `start` then advances.
    split: bool,
    /// Whether the group's packets were copied to the capture file.
    captured: bool,
    /// The upper 8 bits of the queue pairs' numbers.
    slot: u8,
    traffic_class: u8,
    hop_limit: u8,
    remote: Gid,
    to: Name,
    /// The connected socket to use, or `None` for the device's socket.
    socket: Option<Index>,
    icrc: Icrc,
    control: Control,
}

/// The queue pair number of the general services interface, as bytes 5 to 7 of the BTH.
pub(crate) const GSI: [u8; 3] = [0, 0, 1];

/// The capacity of the outbox, in bytes. The next constant is a number of datagrams.
const ARENA: usize = 256 << 10;
const GROUPS: usize = 64;

/// The kernel's UDP_MAX_SEGMENTS before Linux 6.9. More segments do not fit into a datagram anyway,
/// unless they are tiny.
const SEGMENTS: usize = 64;

/// The payload of the longest IPv4 UDP datagram, in bytes.
const DATAGRAM: usize = 65_507;

impl Outbox {
    /// Returns an empty outbox for a socket.
    pub(crate) fn new(socket: &Socket) -> Self {
        Self::with_size(socket, ARENA, GROUPS)
    }

    pub(super) fn with_size(socket: &Socket, bytes: usize, groups: usize) -> Self {
        let nowhere = Group {
            start: 0,
            end: 0,
            segment: 0,
            packets: 0,
            closed: true,
            split: false,
            captured: false,
            slot: 0,
            traffic_class: 0,
            hop_limit: 0,
            remote: [0; 16],
            to: Name::EMPTY,
            socket: None,
            icrc: Icrc::new(Flow {
                src: socket.address(),
                dst: socket.address(),
                src_port: socket.port(),
                dst_port: socket.port(),
            }),
            control: Control::EMPTY,
        };
        // Packets written for a link leave through the socket only if the link has ended.
        let arena = vec![0; bytes + MAX_LINK_PACKET_LEN - MAX_PACKET_LEN].into_boxed_slice();
        let first = (bth::LEN + arena.as_ptr() as usize).wrapping_neg() % 16;
        Self {
            arena,
            first,
            used: first,
            groups: vec![nowhere; groups].into_boxed_slice(),
            pending: 0..0,
            flows: Flows::new(),
            connected: Connected::default(),
            waits_for_connected: false,
            local: socket.address(),
            port: socket.port(),
            scope: socket.scope(),
            default_hop_limit: socket.default_hop_limit(),
            gso: socket.gso(),
            without_gso: [[0; 16]; 8],
            refusals: 0,
            wrong_family: 0,
        }
    }

    /// Returns whether no packet waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns whether the socket that blocked the last flush is a connected socket.
    #[inline]
    pub(crate) fn waits_for_connected(&self) -> bool {
        self.waits_for_connected
    }

    /// Returns the number of bytes in the send queues of the device's socket and of the connected
    /// sockets, counted as for [`Socket::unsent`].
    pub(crate) fn unsent(&self, socket: &Socket) -> u64 {
        socket.unsent() + self.connected.unsent()
    }

    /// Returns the space for the next packet, from BTH to pad. It is long enough for the longest
    /// packet. Returns `None` if the outbox is full and must be flushed.
    #[inline]
    pub(crate) fn space(&mut self) -> Option<&mut [u8]> {
        if self.pending.end == self.groups.len() {
            return None;
        }
        self.arena.get_mut(self.used..self.used + MAX_LINK_PACKET_LEN - ICRC_LEN)
    }

    /// Adds the first `len` bytes of [`space`](Self::space) as a packet for `path` and appends its
    /// ICRC.
    ///
    /// The packet leaves from the socket's address, even if the path has another local address. A
    /// hop limit of 0 means the system default.
    ///
    /// # Panics
    /// Panics if less than `len` bytes of space are left.
    #[inline]
    pub(crate) fn push(&mut self, len: usize, path: &Path) {
        assert!(len <= MAX_LINK_PACKET_LEN - ICRC_LEN && self.pending.end < self.groups.len());
        let whole = len + ICRC_LEN;
        let hop_limit = if path.hop_limit == 0 { self.default_hop_limit } else { path.hop_limit };
        let [slot, middle, low] = [5, 6, 7].map(|at| self.arena[self.used + at]);
        let is_mad = [slot, middle, low] == GSI;
        if let Some(last) = self.groups[self.pending.clone()].last_mut() {
            if !is_mad && last.takes(whole, path, hop_limit, slot) {
                seal(&mut self.arena[self.used..self.used + whole], last.icrc, last.packets as u16);
                last.packets += 1;
                last.closed = whole < last.segment || last.packets == SEGMENTS;
                last.end += whole;
                self.used += whole;
                return;
            }
            last.closed = true;
        }
        let remote = address_of(path.remote);
        if remote.is_ipv4() != self.local.is_ipv4() {
            self.wrong_family += 1;
            return;
        }
        let connected = self.connected.find(&path.remote);
        let src_port = self.connected.port(connected).unwrap_or(self.port);
        let icrc = self.flows.icrc(Flow { src: self.local, dst: remote, src_port, dst_port: self.port });
        seal(&mut self.arena[self.used..self.used + whole], icrc, 0);
        self.groups[self.pending.end] = Group {
            start: self.used,
            end: self.used + whole,
            segment: whole,
            packets: 1,
            // The kernel would split a datagram for a multicast group again for each member.
            closed: is_mad || !self.gso || self.without_gso.contains(&path.remote) || remote.is_multicast(),
            split: false,
            captured: false,
            slot,
            traffic_class: path.traffic_class,
            hop_limit,
            remote: path.remote,
            to: if connected.is_some() { Name::EMPTY } else { Name::new(remote, self.port, self.scope) },
            socket: connected,
            icrc,
            control: self.control(remote, path.traffic_class, hop_limit),
        };
        self.pending.end += 1;
        self.used += whole;
    }

    /// Returns the packet written in the first `len` bytes of [`space`](Self::space).
    #[inline]
    pub(crate) fn written(&self, len: usize) -> &[u8] {
        &self.arena[self.used..self.used + len]
    }

    /// Adds a packet as [`push`](Self::push) does, then flips the bit `flip`, if any.
    #[inline]
    pub(crate) fn push_damaged(&mut self, len: usize, path: &Path, flip: Option<usize>) {
        let start = self.used;
        self.push(len, path);
        // A packet for the other address family was not added.
        if let Some(bit) = flip.filter(|_| self.used > start) {
            self.arena[start + bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Sends as many packets as the socket accepts.
    pub(crate) fn flush(&mut self, socket: &Socket) -> Flush {
        if self.wrong_family > 0 {
            socket.counts().unreachable.add(std::mem::take(&mut self.wrong_family));
        }
        if let Some(capture) = socket.capture() {
            self.capture(capture);
        }
        let alone = self.pending.len() == 1;
        let mut reported = false;
        while let Some(group) = self.groups[self.pending.clone()].first_mut() {
            let index = group.socket;
            let fd = self.connected.fd(index).unwrap_or(socket.as_fd());
            let result = if group.split {
                let payload = &self.arena[group.start..group.end.min(group.start + group.segment)];
                sys::send(fd, &Message { to: &group.to, control: &group.control, payload }).map(|()| 1)
            } else if alone {
                group.announce_segments();
                let payload = &self.arena[group.start..group.end];
                sys::send(fd, &Message { to: &group.to, control: &group.control, payload }).map(|()| 1)
            } else {
                let (groups, arena) = (&mut self.groups[self.pending.clone()], &self.arena);
                let is_next = |group: &&Group| !group.split && group.socket == index;
                let whole = groups.iter().take(sys::BATCH).take_while(is_next).count();
                groups[..whole].iter_mut().for_each(Group::announce_segments);
                let messages = groups[..whole].iter().map(|group| Message {
                    to: &group.to,
                    control: &group.control,
                    payload: &arena[group.start..group.end],
                });
                sys::send_many(fd, messages)
            };
            match result {
                Ok(sent) => {
                    self.sent(sent, socket.counts());
                    reported = false;
                }
                Err(Errno::INTR) => {}
                // The kernel reports that an earlier packet found no socket. This packet was not
                // sent.
                Err(Errno::CONNREFUSED) if index.is_some() && !reported => reported = true,
                Err(Errno::AGAIN) => {
                    self.waits_for_connected = index.is_some();
                    socket.counts().blocked.add(1);
                    return Flush::Blocked;
                }
                Err(errno) => self.refused(errno, socket.counts()),
            }
        }
        self.used = self.first;
        self.pending = 0..0;
        Flush::Done
    }

    /// Replaces the bytes of the last packet in the last group. The group must have several
    /// packets.
    #[cfg(test)]
    pub(super) fn replace_last(&mut self, bytes: &[u8]) {
        let group = self.groups[self.pending.clone()].last().expect("a group");
        let (at, index) = (group.end - bytes.len() - ICRC_LEN, group.packets as u16 - 1);
        self.arena[at..at + bytes.len()].copy_from_slice(bytes);
        seal(&mut self.arena[at..group.end], group.icrc, index);
    }

    /// Puts the outbox into the state that a flush to a full socket leaves.
    #[cfg(test)]
    pub(super) fn be_refused_for_now(&mut self) {
        self.groups[self.pending.clone()].iter_mut().for_each(Group::announce_segments);
    }

    /// Copies the packets of groups that are about to be offered to the kernel for the first time.
    #[cold]
    fn capture(&mut self, capture: &Capture) {
        for group in self.groups[self.pending.clone()].iter_mut().filter(|group| !group.captured) {
            (group.captured, group.closed) = (true, true);
            let Group { traffic_class, hop_limit, .. } = *group;
            let src_port = self.connected.port(group.socket).unwrap_or(self.port);
            let (source, destination) = ((self.local, src_port), (address_of(group.remote), self.port));
            let mut headers = Headers { source, destination, traffic_class, hop_limit, id: 0 };
            for packet in self.arena[group.start..group.end].chunks(group.segment) {
                capture.packet(Direction::Sent, &headers, packet);
                headers.id += 1;
            }
        }
    }

    /// Counts the first `sent` groups, or one packet of a split group, as sent, and removes them.
    fn sent(&mut self, sent: usize, counts: &Counts) {
        counts.sends.add(1);
        for _ in 0..sent {
            let group = &mut self.groups[self.pending.start];
            let end = if group.split { group.end.min(group.start + group.segment) } else { group.end };
            let bytes = end - group.start;
            let packets = bytes.div_ceil(group.segment) as u64;
            counts.sent.add(packets);
            counts.sent_bytes.add(bytes as u64);
            if packets > 1 {
                counts.joined.add(packets);
            }
            group.start = end;
            if group.start == group.end {
                self.pending.start += 1;
            }
        }
    }

    /// Handles the kernel's rejection of the first group: splits the group if it was one datagram
    /// of many packets, and otherwise drops a packet.
    #[cold]
    fn refused(&mut self, errno: Errno, counts: &Counts) {
        let group = &mut self.groups[self.pending.start];
        if !group.is_single() && !group.split {
            // EIO means that the device cannot split datagrams. EMSGSIZE and EINVAL may come from
            // the route and then apply to single packets as well.
            if errno == Errno::IO {
                counts.gso_refused.add(1);
                self.without_gso[self.refusals % self.without_gso.len()] = group.remote;
                self.refusals += 1;
            }
            group.split = true;
            group.closed = true;
            for packet in self.arena[group.start..group.end].chunks_mut(group.segment) {
                seal(packet, group.icrc, 0);
            }
            let (remote, traffic_class, hop_limit) =
                (address_of(group.remote), group.traffic_class, group.hop_limit);
            self.groups[self.pending.start].control = self.control(remote, traffic_class, hop_limit);
            return;
        }
        match errno {
            Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::CONNREFUSED => &counts.unreachable,
            Errno::MSGSIZE => &counts.too_long,
            Errno::PERM | Errno::ACCESS => &counts.forbidden,
            Errno::NOBUFS | Errno::NOMEM => &counts.no_buffer,
            _ => &counts.not_sent,
        }
        .add(1);
        group.start = group.end.min(group.start + group.segment);
        if group.start == group.end {
            self.pending.start += 1;
        }
    }

    /// Returns the traffic class and hop limit as ancillary data, if they differ from the socket's
    /// defaults.
    fn control(&self, remote: IpAddr, traffic_class: u8, hop_limit: u8) -> Control {
        let mut control = Control::EMPTY;
        let (level, class, hops) = match remote {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        if traffic_class != 0 {
            control.push(level, class, &i32::from(traffic_class).to_ne_bytes());
        }
        if hop_limit != self.default_hop_limit {
            control.push(level, hops, &i32::from(hop_limit).to_ne_bytes());
        }
        control
    }
}

impl Group {
    fn is_single(&self) -> bool {
        self.end - self.start <= self.segment
    }

    #[inline]
    fn takes(&self, whole: usize, path: &Path, hop_limit: u8, slot: u8) -> bool {
        !self.closed
            && self.slot == slot
            && whole <= self.segment
            && self.end - self.start + whole <= DATAGRAM
            && self.remote == path.remote
            && self.traffic_class == path.traffic_class
            && self.hop_limit == hop_limit
    }

    /// Adds the segment length to the ancillary data, so that the kernel splits the datagram.
    fn announce_segments(&mut self) {
        if !self.is_single() && !self.announced() {
            self.control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &(self.segment as u16).to_ne_bytes());
        }
        self.closed = true;
    }

    /// Returns whether the segment length was already added.
    fn announced(&self) -> bool {
        let mut found = false;
        self.control.for_each(|level, kind, _| found |= (level, kind) == (libc::SOL_UDP, libc::UDP_SEGMENT));
        found
    }
}
