//! [`DeviceCore`]: the state under a device's lock: the engine, the sink for its results, and
//! packet input and output.
//!
//! ```text
//!   rings of work requests ──► pump ──►┌────────┐──► EngineSink: completions, events
//!                     Inbox ──► handle │ engine │
//!                     clock ──► expire └────────┘──► transmit ──► Outbox ──► socket
//! ```
//!
//! Order matters in one place: packets are taken from the socket *before* the rings are read, and
//! handled afterwards. A peer may send as soon as the program has announced a receive to it. When
//! the peer's message arrives here, the engine must already have this receive.
//!
//! Acknowledgements wait until they can be sent at little extra cost: with the next data, when no
//! more packets arrive, or after some requests ([`HeldAcks`]).
//!
//! # Length of a turn
//! A turn is one hold of the device's lock. It sends at most [`TURN_PACKETS`] or [`TURN_BYTES`],
//! not counting acknowledgements owed before a control call. After `TURN_PACKETS` received packets
//! it takes no more packets from the socket (one receive brings at most 16 datagrams). The next
//! lock holder does the remaining work: a polling thread, or the worker, which does not sleep while
//! work is left ([`DeviceCore::next_wakeup`]).
//!
//! The engine decides which packet leaves first; [`roce::engine`] bounds the packets sent ahead of
//! a waiting packet. Together these limits give a guarantee. Whatever peers send, a request on a
//! device without other requests leaves in the turn during which it is posted, or in the next one.
//! Other requests of the same device go before it, at most [`Config::burst`] packets of each queue
//! pair. After every 64 such packets, NAKs, acknowledgements and responses to peers get their
//! share.

use std::sync::Arc;
use std::time::Instant;

use roce::engine::{
    Arrival, Completion, Config, Engine, GSI_QPN, Gid, Opcode, Path, Payload, Qpn, RecvWr, Refused, SendWr,
    Sge, Sink, Space, Status, Time, Transmit, Urgency,
};

use nix::sys::epoll::Epoll;
use roce::wire::Opcode as WireOpcode;
use verbs_core::Errno;

use crate::device::acks::HeldAcks;
use crate::device::limits;
use crate::device::random::SystemRandom;
use crate::device::sink::EngineSink;
use crate::device::waiters::Waiters;
use crate::device::wqe::SendWqe;
use crate::device::xrc_domains::Domains;
use crate::io::inbox::service_level;
use crate::io::outbox::GSI;
use crate::io::{Backlog, Flush, Groups, Inbox, Injector, Outbox, Requests, Socket};
use crate::memory::region::ProcessMemory;
use crate::shm::links::{Links, Scan};
use crate::shm::ring::Record;
use crate::sync::pending::PendingSet;

/// The state under a device's lock.
#[derive(Debug)]
pub(crate) struct DeviceCore {
    pub(crate) engine: Engine<ProcessMemory>,
    pub(crate) sink: EngineSink,
    pub(crate) domains: Domains,
    // The next two fields are boxed, because a new device is on its creator's stack.
    inbox: Box<Inbox>,
    pub(crate) outbox: Box<Outbox>,
    /// The peers whose packets travel through memory.
    pub(crate) links: Links,
    /// Drops, duplicates, damages and delays packets, if requested.
    injector: Option<Box<Injector>>,
    /// The multicast groups with attached queue pairs.
    pub(crate) groups: Groups,
    /// Connection requests, while a connection manager uses the device and its address is shared.
    pub(crate) requests: Option<Box<Requests>>,
    /// Whether the socket's buffer is full.
    blocked: bool,
    /// The length of the kernel's send queue.
    backlog: Backlog,
    /// Acknowledgements that are not urgent.
    acks: HeldAcks,
    /// The part of the turn's share of packets used so far.
    pub(crate) spent: Spent,
    /// Whether the last transmit used up the turn's share of packets before all packets were sent.
    left: bool,
    list: Box<[Sge; limits::MAX_LIST]>,
    bytes: Box<[u8; limits::MAX_INLINE_DATA as usize]>,
    /// The events that wake the worker.
    pub(crate) sleep: Sleep,
    /// Whether a napping poller has marked the device as asleep, so that peers ring its doorbell.
    pub(crate) has_napped: bool,
    /// The threads that wait for completions or events.
    pub(crate) waiters: Waiters,
}

/// The numbers of packets and bytes sent, and of received packets handled, in a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    packets: u32,
    bytes: usize,
    handled: u32,
}

impl Spent {
    /// Returns whether this turn must send no more packets.
    #[inline]
    pub(crate) fn is_all(&self) -> bool {
        self.packets >= TURN_PACKETS || self.bytes >= TURN_BYTES
    }

    /// Returns whether the turn must end after the packets received so far.
    #[inline]
    pub(crate) fn is_enough(&self) -> bool {
        self.is_all() || self.handled >= TURN_PACKETS
    }
}

/// The reason why attaching a queue pair to a multicast group failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttachError {
    /// The kernel rejected the device's membership.
    Join(Errno),
    /// The engine rejected the queue pair's membership.
    Refused(Refused),
}

/// The events that wake the worker. A thread that causes an earlier deadline or another event wakes
/// the worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleep {
    /// The time when the worker wakes without an event.
    pub(crate) until: Option<Time>,
    /// The thread that takes packets while the worker sleeps.
    pub(crate) packets: Taker,
    /// Whether the worker wakes when the full socket accepts packets again.
    pub(crate) for_room: bool,
    /// The number of full event pipes, each of which wakes the worker when it has space again.
    pub(crate) for_pipes: usize,
}

impl Sleep {
    /// The worker is awake or being woken. It checks everything before it sleeps.
    pub(crate) const AWAKE: Self =
        Self { until: Some(Time(0)), packets: Taker::Worker, for_room: true, for_pipes: usize::MAX };

    /// The worker sleeps because a program polls.
    pub(crate) const POLLED: Self =
        Self { until: None, packets: Taker::Poller, for_room: false, for_pipes: 0 };

    /// Returns whether the worker wakes when a packet arrives.
    #[inline]
    pub(crate) fn is_for_packets(&self) -> bool {
        self.packets == Taker::Worker
    }
}

/// The thread that takes packets while the worker sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    /// The worker, which wakes for each packet.
    Worker,
    /// A polling thread, which also does the rest of the worker's work.
    Poller,
    /// A thread in a [wait](crate::device::wait).
    Waiter,
}

/// The moment for sending acknowledgements that are not urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// With data, if there is any to send.
    Behind,
    /// Now, with or without data.
    Now,
    /// Now, without data, because a control call comes next.
    Alone,
}

impl DeviceCore {
    pub(crate) fn new(
        socket: &Socket,
        config: Config,
        injector: Option<Box<Injector>>,
        origin: Instant,
    ) -> Self {
        Self {
            engine: Engine::new(config, ProcessMemory, SystemRandom),
            sink: EngineSink::new(origin),
            inbox: Box::new(Inbox::new(socket)),
            outbox: Box::new(Outbox::new(socket)),
            links: Links::default(),
            injector,
            groups: Groups::default(),
            requests: None,
            domains: Domains::default(),
            blocked: false,
            backlog: Backlog::default(),
            acks: HeldAcks::new(),
            spent: Spent::default(),
            left: false,
            list: Box::new([Sge::default(); limits::MAX_LIST]),
            bytes: Box::new([0; limits::MAX_INLINE_DATA as usize]),
            sleep: Sleep::AWAKE,
            has_napped: false,
            waiters: Waiters::default(),
        }
    }

    /// Passes posted work requests from their rings to the engine.
    pub(crate) fn pump(&mut self, pending: &PendingSet, now: Time) {
        pending.take(|slot| self.pump_one(slot, now));
    }

    fn pump_one(&mut self, slot: usize, now: Time) {
        let Self { engine, sink, list, bytes, .. } = self;
        while let Some((qpn, wqe, len)) = sink.next_recv(slot, &mut list[..]) {
            let wr = RecvWr { wr_id: wqe.wr_id, sges: &list[..len] };
            if engine.post_recv(qpn, &wr, now, sink).is_err() {
                refuse(sink, qpn, wqe.wr_id, Opcode::Recv);
            }
        }
        while let Some((qpn, wqe, len)) = sink.next_send(slot, &mut list[..]) {
            let SendWqe { wr_id, op, flags, remote_srq, .. } = wqe;
            let payload: Payload<'_> = wqe.payload(&list[..len], &mut bytes[..]);
            let wr = SendWr { wr_id, op, flags, payload, remote_srq };
            if engine.post_send(qpn, &wr, now, sink).is_err() {
                refuse(sink, qpn, wr_id, Opcode::Send);
            }
        }
    }

    /// Attaches a queue pair to a multicast group. The device joins the group with its first
    /// member. Returns a descriptor that is readable while a packet waits for any group.
    ///
    /// # Errors
    /// [`AttachError::Join`] if the device cannot join the group; [`AttachError::Refused`] if the
    /// engine rejects the queue pair.
    pub(crate) fn attach_mcast(
        &mut self,
        qpn: Qpn,
        gid: Gid,
        socket: &Socket,
    ) -> Result<Option<Arc<Epoll>>, AttachError> {
        let joined = if self.groups.contains(&gid) {
            None
        } else {
            Some(self.groups.add(gid, socket).map_err(AttachError::Join)?)
        };
        self.engine.attach_mcast(qpn, gid).map_err(|refused| {
            self.leave_empty_groups();
            AttachError::Refused(refused)
        })?;
        Ok(joined)
    }

    /// Leaves the multicast groups without members.
    pub(crate) fn leave_empty_groups(&mut self) {
        let Self { engine, groups, .. } = self;
        if !groups.is_empty() {
            groups.retain(|gid| engine.mcast_members(gid) > 0);
        }
    }

    /// Moves the multicast groups and their route to the interface that now has the device's
    /// address.
    pub(crate) fn move_groups(&mut self, socket: &Socket) {
        // Without the interface, packets cannot leave. This code runs again once the interface
        // returns.
        let _ = socket.route_groups();
        self.groups.rejoin(socket);
    }

    /// Passes posted receives from the rings of shared receive queues to the engine.
    pub(crate) fn pump_srqs(&mut self, pending: &PendingSet) {
        pending.take(|slot| self.pump_srq(slot));
    }

    /// Passes posted receives from the ring of the shared receive queue in a slot to the engine.
    pub(crate) fn pump_srq(&mut self, slot: usize) {
        let Self { engine, sink, list, .. } = self;
        while let Some((srq, wqe, len)) = sink.next_srq_recv(slot, &mut list[..]) {
            let wr = RecvWr { wr_id: wqe.wr_id, sges: &list[..len] };
            // Posting performs all checks of the engine, and the engine's queue is as large as a
            // ring, so the engine rejects no receive.
            let posted = engine.post_srq_recv(srq, &wr);
            debug_assert_eq!(posted, Ok(()));
        }
    }

    /// Receives packets from the links and the socket, and returns whether there were any. The
    /// caller must then call [`handle`](Self::handle).
    #[inline]
    pub(crate) fn receive(&mut self, socket: &Socket) -> bool {
        if self.links.is_empty() {
            return self.receive_from(socket);
        }
        let scan = self.links.scan();
        if self.inbox.is_empty() && self.links.skips_socket(scan) {
            return scan == Scan::Packets;
        }
        let received = self.receive_from(socket);
        if received {
            self.links.socket_had_packets();
        } else if scan == Scan::NeedsSocket {
            // No packet sent before a link's first packet is left in the socket.
            self.links.socket_is_empty();
            return self.links.scan() == Scan::Packets;
        }
        received || scan == Scan::Packets
    }

    /// Receives packets from the device's socket and the groups' sockets.
    #[inline]
    fn receive_from(&mut self, socket: &Socket) -> bool {
        // Other errors concern packets sent earlier, such as a missing route.
        let received = self.inbox.receive(socket).is_ok_and(|count| count > 0);
        received | (!self.groups.is_empty() && self.groups.receive(socket))
    }

    /// Receives connection requests from their socket and returns whether there were any. The
    /// caller must then [handle](Self::handle) them.
    pub(crate) fn receive_requests(&mut self, socket: &Socket) -> bool {
        self.requests.as_mut().is_some_and(|requests| requests.receive(socket))
    }

    /// Returns whether acknowledgements must be sent after a receive that found no packets.
    #[inline]
    pub(crate) fn acks_are_due(&self) -> bool {
        self.acks.are_due()
    }

    /// Returns whether acknowledgements were held behind a reply for too long.
    #[inline]
    pub(crate) fn acks_are_overdue(&self, now: Time) -> bool {
        self.acks.are_overdue(now)
    }

    /// Returns whether more received packets very probably wait in the socket or in a link.
    #[inline]
    pub(crate) fn more(&self) -> bool {
        self.inbox.more() || self.links.more()
    }

    /// Passes the received packets to the engine.
    pub(crate) fn handle(&mut self, socket: &Socket, now: Time) {
        let Self { engine, sink, inbox, links, groups, requests, acks, spent, .. } = self;
        while let Some(received) = inbox.next(socket) {
            let arrival: Arrival = received.arrival;
            if is_request(received.bytes) {
                acks.request_arrived();
            }
            engine.handle(now, &arrival, received.bytes, sink);
            spent.handled += 1;
        }
        if !links.is_empty() {
            let local = socket.gid();
            links.take(socket, |remote, record, packet| {
                let Record { traffic_class, hop_limit, on_link, .. } = record;
                let sl = service_level(remote);
                let arrival = Arrival {
                    remote: *remote,
                    local,
                    sl,
                    traffic_class,
                    hop_limit,
                    on_link,
                    ..Arrival::default()
                };
                if is_request(packet) {
                    acks.request_arrived();
                }
                engine.handle(now, &arrival, packet, sink);
                spent.handled += 1;
            });
        }
        if !groups.is_empty() {
            groups.take(socket, |received| {
                engine.handle(now, &received.arrival, received.bytes, sink);
                spent.handled += 1;
            });
        }
        if let Some(requests) = requests {
            requests.take(socket, |received| {
                engine.handle(now, &received.arrival, received.bytes, sink);
                spent.handled += 1;
            });
        }
        socket.counts().take_over(engine.dropped_datagrams());
        if engine.config().strict_ports {
            socket.counts().unexpected_port.set(engine.unexpected_ports());
        }
    }

    /// Handles the engine's expired deadlines, raises moderated events that are due, and writes to
    /// full event pipes again.
    #[inline]
    pub(crate) fn expire(&mut self, now: Time) {
        if self.engine.deadline().is_some_and(|deadline| deadline <= now) {
            self.engine.timeout(now, &mut self.sink);
        }
        if self.sink.moderated_until().is_some_and(|until| until <= now) {
            self.sink.raise_moderated(now);
        }
        if !self.sink.clogged.is_empty() {
            self.sink.retry_pipes();
        }
    }

    /// Sends the engine's packets, within the turn's share, and acknowledgements.
    ///
    /// Read responses wait while the kernel's send queue holds more than a window: see [`Backlog`].
    pub(crate) fn transmit(&mut self, socket: &Socket, now: Time, acks: Acks) {
        self.transmit_with(socket, now, acks, |outbox, socket| outbox.unsent(socket));
    }

    /// Like [`transmit`](Self::transmit); `unsent` reports the length of the kernel's send queues.
    #[inline]
    fn transmit_with(
        &mut self,
        socket: &Socket,
        now: Time,
        acks: Acks,
        unsent: impl Fn(&Outbox, &Socket) -> u64,
    ) {
        let mut urgency = match acks {
            Acks::Alone => Urgency::Owed,
            Acks::Now => Urgency::All,
            Acks::Behind if self.acks.are_many() => Urgency::All,
            Acks::Behind => Urgency::Now,
        };
        self.left = false;
        self.backlog.expire(now);
        self.blocked = !self.outbox.is_empty() && self.outbox.flush(socket) == Flush::Blocked;
        if let Some(injector) = &mut self.injector {
            injector.release(now, |packet, path, flip| {
                let Some(space) = self.outbox.space().filter(|_| !self.links.is_blocked(now)) else {
                    return false;
                };
                space[..packet.len()].copy_from_slice(packet);
                push(&mut self.outbox, &mut self.links, packet.len(), path, flip, socket, now);
                true
            });
        }
        let mut has_sent = false;
        if self.blocked {
            // A link without space is given up even while the socket is also full.
            self.links.is_blocked(now);
        }
        while !self.blocked {
            if self.spent.is_all() && urgency != Urgency::Owed {
                self.left = true;
                break;
            }
            // Acknowledgements owed before a control call have reserved space.
            if urgency != Urgency::Owed && self.links.is_blocked(now) {
                break;
            }
            let holds = self.engine.has_responses() && self.holds_responses(socket, now, &unsent);
            let Some(space) = self.outbox.space() else {
                self.blocked = self.outbox.flush(socket) == Flush::Blocked;
                continue;
            };
            let is_direct = self.injector.is_none();
            let mut places =
                Places { outbox: space, links: &mut self.links, now, is_direct, place: Place::Outbox };
            let transmit = if holds {
                self.engine.poll_transmit_prompt(now, urgency, &mut places, &mut self.sink)
            } else {
                self.engine.poll_transmit(now, urgency, &mut places, &mut self.sink)
            };
            let place = places.place;
            match transmit {
                Some(Transmit { len, ref path, .. }) => {
                    self.spent.packets += 1;
                    self.spent.bytes += len;
                    has_sent = true;
                    if let Place::Ring(link) = place {
                        self.links.push_written(link, len, path, now, socket);
                        continue;
                    }
                    let flip = match &mut self.injector {
                        None => None,
                        Some(injector) => {
                            match injector.judge(now, self.outbox.written(len), path, socket.counts()) {
                                Some(flip) => flip,
                                None => continue,
                            }
                        }
                    };
                    if !push(&mut self.outbox, &mut self.links, len, path, flip, socket, now) {
                        self.backlog.add(len);
                    }
                }
                None if urgency != Urgency::Now => {
                    self.acks.left(now);
                    break;
                }
                None if !has_sent || !self.acks.are_owed() || !self.joins_acks(now) => break,
                None => urgency = Urgency::All,
            }
        }
        if !self.blocked && !self.outbox.is_empty() {
            self.blocked = self.outbox.flush(socket) == Flush::Blocked;
        }
        self.links.ring(socket.counts());
        if self.engine.has_responses() && !self.left && !self.blocked && urgency != Urgency::Owed {
            let counts = socket.counts();
            let waited = if self.backlog.held_until().is_some() {
                &counts.responses_held
            } else {
                &counts.responses_rested
            };
            waited.add(1);
        }
        socket.counts().turn_packets_max.raise(self.spent.packets.into());
        socket.counts().turn_bytes_max.raise(self.spent.bytes as u64);
    }

    /// Returns whether acknowledgements are sent with the packets just sent.
    #[inline]
    fn joins_acks(&mut self, now: Time) -> bool {
        // Any thread other than a poller would have to wake once more.
        self.sleep.packets != Taker::Poller || self.acks.join(now)
    }

    /// Returns whether read responses must wait because the kernel's send queue is long.
    fn holds_responses(
        &mut self,
        socket: &Socket,
        now: Time,
        unsent: impl Fn(&Outbox, &Socket) -> u64,
    ) -> bool {
        let window = self.engine.config().window_bytes;
        if !self.backlog.may_be_full(window) {
            return false;
        }
        if self.backlog.held_until().is_none() {
            // The kernel's report covers only packets already passed to the kernel.
            self.blocked = self.outbox.flush(socket) == Flush::Blocked;
            if self.blocked {
                return true;
            }
            self.backlog.measure(unsent(&self.outbox, socket), window, now);
        }
        self.backlog.held_until().is_some()
    }

    /// Returns the events that must wake the worker if it waits for packets.
    pub(crate) fn sleep_from(&self, now: Time) -> Sleep {
        Sleep {
            until: self.next_wakeup(now),
            packets: Taker::Worker,
            for_room: self.blocked && !self.outbox.waits_for_connected(),
            for_pipes: self.sink.clogged.len(),
        }
    }

    /// Returns whether the last transmit used up the turn's share with packets still unsent.
    #[inline]
    pub(crate) fn has_work_left(&self) -> bool {
        self.left
    }

    /// Returns the time when a thread must look at the device even if no packet arrives.
    #[inline]
    fn next_wakeup(&self, now: Time) -> Option<Time> {
        // Packets in the inbox or still to be sent do not make the socket readable.
        if self.left || !self.inbox.is_empty() || self.links.more() || self.links.has_own_packets() {
            return Some(Time(0));
        }
        let acks = if self.acks.are_owed() { Some(now + ACKS_WITHIN) } else { None };
        let events = self.sink.moderated_until();
        let delayed = self.injector.as_ref().and_then(|injector| injector.next_departure());
        let room = self.links.blocked_until();
        let waits_for_connected = self.blocked && self.outbox.waits_for_connected();
        let retry = waits_for_connected.then_some(now + RETRY);
        [retry, self.engine.deadline(), acks, events, self.backlog.held_until(), delayed, room]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns whether the worker would sleep too long. The caller must then wake the worker.
    /// Returns true only once until the worker wakes.
    #[inline]
    pub(crate) fn must_wake_worker(&mut self, now: Time) -> bool {
        let sleep = &self.sleep;
        if sleep.packets == Taker::Poller {
            // A program polls. The worker soon checks whether the program still polls.
            return false;
        }
        let too_long =
            self.next_wakeup(now).is_some_and(|earliest| sleep.until.is_none_or(|until| earliest < until))
                || (self.blocked && !self.outbox.waits_for_connected() && !sleep.for_room)
                || self.sink.clogged.len() > sleep.for_pipes;
        if too_long {
            self.sleep = Sleep::AWAKE;
        }
        too_long
    }
}

/// The memory into which the engine writes packets: the ring of the link to the destination, or the
/// outbox.
struct Places<'a> {
    outbox: &'a mut [u8],
    links: &'a mut Links,
    now: Time,
    /// Whether packets leave without changes by an injector.
    is_direct: bool,
    /// The memory into which the last packet was written.
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Outbox,
    /// The ring of the link with this index.
    Ring(usize),
}

impl Space for Places<'_> {
    #[inline]
    fn space(&mut self, path: &Path, dest_qp: u32) -> &mut [u8] {
        self.place = Place::Outbox;
        // Any process at an address may get a management datagram.
        if self.is_direct
            && dest_qp != GSI_QPN
            && let Some(link) = self.links.route(&path.remote, (dest_qp >> 16) as u8, self.now)
            && let Some(space) = self.links.space(link)
        {
            self.place = Place::Ring(link);
            return space;
        }
        self.outbox
    }
}

/// Sends the packet written to the outbox: through memory if there is a link to its destination,
/// and otherwise through the socket. Returns whether the packet went through memory.
#[inline]
fn push(
    outbox: &mut Outbox,
    links: &mut Links,
    len: usize,
    path: &Path,
    flip: Option<usize>,
    socket: &Socket,
    now: Time,
) -> bool {
    let packet = outbox.written(len);
    let [slot, middle, low] = [5, 6, 7].map(|at| packet[at]);
    // Any process at an address may get a management datagram.
    let is_mad = [slot, middle, low] == GSI;
    let Some(link) = links.route(&path.remote, slot, now).filter(|_| !is_mad) else {
        outbox.push_damaged(len, path, flip);
        return false;
    };
    // A receiver would drop a damaged packet.
    if flip.is_none() {
        links.push(link, packet, path, now, socket);
    }
    true
}

/// Returns whether a packet is a request and thus may be acknowledged.
#[inline]
fn is_request(packet: &[u8]) -> bool {
    packet.first().is_some_and(|opcode| WireOpcode(*opcode).is_request())
}

/// Completes a work request rejected by the engine. Posting performs all checks of the engine, so
/// this happens only if the queue pair's state has changed since.
#[cold]
fn refuse(sink: &mut EngineSink, qpn: Qpn, wr_id: u64, opcode: Opcode) {
    let Some(end) = sink.qp(qpn) else { return };
    let cq = if opcode == Opcode::Recv { end.recv_cq } else { end.send_cq };
    let completion = Completion {
        wr_id,
        status: Status::LocalQpOperation,
        opcode,
        qpn,
        byte_len: 0,
        imm: None,
        invalidated: None,
        src_qpn: 0,
        grh: false,
        solicited: true,
        sl: 0,
        slid: 0,
        vendor_err: 0,
    };
    if opcode == Opcode::Recv {
        sink.retire_recv(qpn, 1);
    } else {
        sink.retire_send(qpn, 1);
    }
    if sink.complete(cq, &completion).is_err() {
        sink.event(roce::engine::Event::CqError(cq));
    }
}

/// The maximum number of packets sent in a turn. After the same number of received packets, the
/// turn receives no more.
pub(crate) const TURN_PACKETS: u32 = 128;

/// The number of bytes after which a turn sends no more packets: the largest window, so that a
/// stream of requests is not split. Sending that much takes about 0.2 ms.
pub(crate) const TURN_BYTES: usize = 512 << 10;

/// The time, in nanoseconds, after which a full connected socket is tried again.
const RETRY: u64 = 100_000;

/// The time, in nanoseconds, after which acknowledgements are sent while no program polls. If a
/// program stops polling, they are sent when the worker notices.
const ACKS_WITHIN: u64 = 1_000_000;

#[cfg(all(test, not(loom)))]
mod tests;
