//! [`DeviceCore`]: the part of a device that its lock protects: the engine, the sink of its
//! results, packets in and out.
//!
//! ```text
//!   rings of work requests ──► pump ──►┌────────┐──► EngineSink: completions, events
//!                     Inbox ──► handle │ engine │
//!                     clock ──► expire └────────┘──► transmit ──► Outbox ──► socket
//! ```
//!
//! Order matters in one place: packets are taken from the socket *before* the rings are looked at,
//! and handled after. A peer that learned of a receive may send at once; by the time its message is
//! here, the engine knows the receive.
//!
//! Acknowledgements wait until they can leave at no extra cost: behind the data that is sent next,
//! or when no more packets arrive, or when [`ACKS_AFTER`] packets have arrived.
//!
//! # How long a turn is
//! A turn is one hold of the device's lock. It sends at most [`TURN_PACKETS`] or [`TURN_BYTES`],
//! not counting acknowledgements that are owed before a control call, and takes no more packets
//! from the socket after `TURN_PACKETS` (one receive brings 16 datagrams at most). The rest is left
//! to the next holder: a thread that polls, or the worker, which does not sleep while there is work
//! left ([`DeviceCore::next_wakeup`]). The engine decides which packet leaves first;
//! [`roce::engine`] bounds the packets that may leave before a packet that others wait for.
//! Together: whatever peers send, a request of a device that has no other requests to send leaves
//! within the turn that is under way when it is posted, or the next one. Other requests of the same
//! device go before it, at most [`Config::burst`] packets of each queue pair; behind each 64 of
//! those, refusals, acknowledgements and answers to peers have their share.

use std::sync::Arc;
use std::time::Instant;

use roce::engine::{
    Arrival, Completion, Config, Engine, Gid, Opcode, Payload, Qpn, RecvWr, Refused, SendWr, Sge, Sink,
    Status, Time, Urgency,
};

use nix::sys::epoll::Epoll;
use verbs_core::Errno;

use crate::io::{Backlog, Flush, Groups, Inbox, Outbox, Socket};
use crate::limits;
use crate::memory::ProcessMemory;
use crate::pending::PendingSet;
use crate::random::SystemRandom;
use crate::sink::EngineSink;
use crate::wqe::SendWqe;
use crate::xrcd::Domains;

/// The part of a device that its lock protects.
#[derive(Debug)]
pub(crate) struct DeviceCore {
    pub(crate) engine: Engine<ProcessMemory>,
    pub(crate) sink: EngineSink,
    pub(crate) domains: Domains,
    inbox: Inbox,
    outbox: Outbox,
    /// The multicast groups that queue pairs are attached to.
    pub(crate) groups: Groups,
    /// The socket's buffer is full.
    blocked: bool,
    /// The length of the kernel's send queue.
    backlog: Backlog,
    /// Packets that arrived since acknowledgements were last sent.
    unacknowledged: u32,
    /// The share that the current turn has used up.
    pub(crate) spent: Spent,
    /// The last transmit ended because the turn's share was used up, with packets left to send.
    left: bool,
    list: Box<[Sge; limits::MAX_LIST]>,
    bytes: Box<[u8; limits::MAX_INLINE_DATA as usize]>,
    /// The events that wake the worker.
    pub(crate) sleep: Sleep,
}

/// The packets and bytes that a turn has sent, and the packets that it has handled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    packets: u32,
    bytes: usize,
    handled: u32,
}

impl Spent {
    /// Returns whether this turn must send no more.
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

/// The reason why a queue pair was not attached to a multicast group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttachError {
    /// The kernel refused the device's membership.
    Join(Errno),
    /// The engine refused the queue pair's.
    Refused(Refused),
}

/// The events that wake the worker. A thread that causes an earlier deadline or another event wakes
/// it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleep {
    /// The time at which it wakes by itself.
    pub(crate) until: Option<Time>,
    /// It wakes when a packet arrives.
    pub(crate) for_packets: bool,
    /// It wakes when the socket takes packets again.
    pub(crate) for_room: bool,
    /// It wakes when one of this many pipes has room again.
    pub(crate) for_pipes: usize,
}

impl Sleep {
    /// The worker is awake, or is being woken: it looks at everything before it sleeps.
    pub(crate) const AWAKE: Self =
        Self { until: Some(Time(0)), for_packets: true, for_room: true, for_pipes: usize::MAX };

    /// A program polls.
    pub(crate) const POLLED: Self = Self { until: None, for_packets: false, for_room: false, for_pipes: 0 };
}

/// When acknowledgements that are not urgent are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Behind data, if there is any.
    Behind,
    /// With or without data.
    Now,
    /// Without data: they are owed before a call is executed.
    Alone,
}

impl DeviceCore {
    pub(crate) fn new(socket: &Socket, config: Config, origin: Instant) -> Self {
        Self {
            engine: Engine::new(config, ProcessMemory, SystemRandom),
            sink: EngineSink::new(origin),
            inbox: Inbox::new(socket),
            outbox: Outbox::new(socket),
            groups: Groups::default(),
            domains: Domains::default(),
            blocked: false,
            backlog: Backlog::default(),
            unacknowledged: 0,
            spent: Spent::default(),
            left: false,
            list: Box::new([Sge::default(); limits::MAX_LIST]),
            bytes: Box::new([0; limits::MAX_INLINE_DATA as usize]),
            sleep: Sleep::AWAKE,
        }
    }

    /// Takes posted work requests out of their rings.
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

    /// Attaches a queue pair to a multicast group, which the device joins with its first member.
    /// Returns the descriptor that is readable while a packet waits for a member of any group.
    ///
    /// # Errors
    /// The errno of joining, or the engine's refusal.
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

    /// Leaves the multicast groups that have no member left.
    pub(crate) fn leave_empty_groups(&mut self) {
        let Self { engine, groups, .. } = self;
        if !groups.is_empty() {
            groups.retain(|gid| engine.mcast_members(gid) > 0);
        }
    }

    /// Moves the multicast groups, and the route to them, to the interface that has the device's
    /// address now.
    pub(crate) fn move_groups(&mut self, socket: &Socket) {
        // Without the interface there is nothing to send by; its return comes here again.
        let _ = socket.route_groups();
        self.groups.rejoin(socket);
    }

    /// Takes receives out of the rings of shared receive queues.
    pub(crate) fn pump_srqs(&mut self, pending: &PendingSet) {
        pending.take(|slot| self.pump_srq(slot));
    }

    /// Takes receives out of the ring of the shared receive queue in a slot.
    pub(crate) fn pump_srq(&mut self, slot: usize) {
        let Self { engine, sink, list, .. } = self;
        while let Some((srq, wqe, len)) = sink.next_srq_recv(slot, &mut list[..]) {
            let wr = RecvWr { wr_id: wqe.wr_id, sges: &list[..len] };
            // Posting checks everything that the engine checks, and a ring has no more slots than
            // the engine's queue: the engine refuses no receive.
            let posted = engine.post_srq_recv(srq, &wr);
            debug_assert_eq!(posted, Ok(()));
        }
    }

    /// Takes packets from the socket and returns whether there were any. [`handle`](Self::handle)
    /// them next.
    #[inline]
    pub(crate) fn receive(&mut self, socket: &Socket) -> bool {
        // Other errors than "nothing" concern packets that left earlier, such as a missing route.
        let received = self.inbox.receive(socket).is_ok_and(|count| count > 0);
        received | (!self.groups.is_empty() && self.groups.receive(socket))
    }

    /// Returns whether there are acknowledgements to send, after a receive that found nothing.
    #[inline]
    pub(crate) fn acks_are_due(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Returns whether the socket very probably holds more packets than were received.
    #[inline]
    pub(crate) fn more(&self) -> bool {
        self.inbox.more()
    }

    /// Passes the received packets to the engine.
    pub(crate) fn handle(&mut self, socket: &Socket, now: Time) {
        let Self { engine, sink, inbox, groups, unacknowledged, spent, .. } = self;
        while let Some(received) = inbox.next(socket) {
            let arrival: Arrival = received.arrival;
            engine.handle(now, &arrival, received.bytes, sink);
            *unacknowledged += 1;
            spent.handled += 1;
        }
        if !groups.is_empty() {
            groups.take(socket, |received| {
                engine.handle(now, &received.arrival, received.bytes, sink);
                spent.handled += 1;
            });
        }
        socket.counts().take_over(engine.dropped_datagrams());
        if engine.config().strict_ports {
            socket.counts().unexpected_port.set(engine.unexpected_ports());
        }
    }

    /// Executes the engine's expired deadlines, raises moderated events whose time has come, and
    /// retries clogged pipes.
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

    /// Sends the engine's packets, as far as the turn's share allows, and acknowledgements.
    ///
    /// Read responses wait while the kernel's send queue holds a window: see [`Backlog`].
    pub(crate) fn transmit(&mut self, socket: &Socket, now: Time, acks: Acks) {
        self.transmit_with(socket, now, acks, Socket::unsent);
    }

    /// As [`transmit`](Self::transmit), with the length of the kernel's send queue as `unsent`
    /// reports it.
    #[inline]
    fn transmit_with(&mut self, socket: &Socket, now: Time, acks: Acks, unsent: impl Fn(&Socket) -> u64) {
        let mut urgency = match acks {
            Acks::Alone => Urgency::Owed,
            Acks::Now => Urgency::All,
            Acks::Behind if self.unacknowledged >= ACKS_AFTER => Urgency::All,
            Acks::Behind => Urgency::Now,
        };
        self.left = false;
        self.backlog.expire(now);
        self.blocked = !self.outbox.is_empty() && self.outbox.flush(socket) == Flush::Blocked;
        while !self.blocked {
            if self.spent.is_all() && urgency != Urgency::Owed {
                self.left = true;
                break;
            }
            let holds = self.engine.has_answers() && self.holds_answers(socket, now, &unsent);
            let Some(space) = self.outbox.space() else {
                self.blocked = self.outbox.flush(socket) == Flush::Blocked;
                continue;
            };
            let transmit = if holds {
                self.engine.poll_transmit_prompt(now, urgency, space, &mut self.sink)
            } else {
                self.engine.poll_transmit(now, urgency, space, &mut self.sink)
            };
            match transmit {
                Some(transmit) => {
                    self.spent.packets += 1;
                    self.spent.bytes += transmit.len;
                    self.backlog.add(transmit.len);
                    self.outbox.push(transmit.len, &transmit.path);
                }
                None if urgency != Urgency::Now => {
                    self.unacknowledged = 0;
                    break;
                }
                None if self.outbox.is_empty() || self.unacknowledged == 0 => break,
                None => urgency = Urgency::All,
            }
        }
        if !self.blocked && !self.outbox.is_empty() {
            self.blocked = self.outbox.flush(socket) == Flush::Blocked;
        }
        if self.engine.has_answers() && !self.left && !self.blocked && urgency != Urgency::Owed {
            let counts = socket.counts();
            let waited = if self.backlog.held_until().is_some() {
                &counts.answers_held
            } else {
                &counts.answers_rested
            };
            waited.add(1);
        }
        socket.counts().turn_packets_max.raise(self.spent.packets.into());
        socket.counts().turn_bytes_max.raise(self.spent.bytes as u64);
    }

    /// Returns whether read responses are to wait because the kernel's send queue is long.
    fn holds_answers(&mut self, socket: &Socket, now: Time, unsent: impl Fn(&Socket) -> u64) -> bool {
        let window = self.engine.config().window_bytes;
        if !self.backlog.may_be_full(window) {
            return false;
        }
        if self.backlog.held_until().is_none() {
            // The kernel reports only packets that it was given.
            self.blocked = self.outbox.flush(socket) == Flush::Blocked;
            if self.blocked {
                return true;
            }
            self.backlog.measure(unsent(socket), window, now);
        }
        self.backlog.held_until().is_some()
    }

    /// Returns the events that must wake the worker while it watches the socket.
    pub(crate) fn sleep_from(&self, now: Time) -> Sleep {
        Sleep {
            until: self.next_wakeup(now),
            for_packets: true,
            for_room: self.blocked,
            for_pipes: self.sink.clogged.len(),
        }
    }

    /// Returns whether the last transmit left packets because the turn's share was used up.
    #[inline]
    pub(crate) fn has_work_left(&self) -> bool {
        self.left
    }

    /// Returns when a thread must look at the device even if no packet arrives.
    #[inline]
    fn next_wakeup(&self, now: Time) -> Option<Time> {
        // The socket is not readable for packets in the inbox, nor for packets still to be sent.
        if self.left || !self.inbox.is_empty() {
            return Some(Time(0));
        }
        let acks = if self.unacknowledged > 0 { Some(now + ACKS_WITHIN) } else { None };
        let events = self.sink.moderated_until();
        [self.engine.deadline(), acks, events, self.backlog.held_until()].into_iter().flatten().min()
    }

    /// Returns whether the worker sleeps too long as of now. The caller then wakes it, once.
    #[inline]
    pub(crate) fn must_wake_worker(&mut self, now: Time) -> bool {
        let sleep = &self.sleep;
        if !sleep.for_packets {
            // A program polls, and the worker soon checks whether that goes on.
            return false;
        }
        let too_long =
            self.next_wakeup(now).is_some_and(|earliest| sleep.until.is_none_or(|until| earliest < until))
                || (self.blocked && !sleep.for_room)
                || self.sink.clogged.len() > sleep.for_pipes;
        if too_long {
            self.sleep = Sleep::AWAKE;
        }
        too_long
    }
}

/// Completes a work request that the engine refused. The queues check everything that the engine
/// checks, so this happens only where the state changed in between.
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

/// The most packets that a turn sends, and the number of received packets after which it receives
/// no more.
pub(crate) const TURN_PACKETS: u32 = 128;

/// The bytes after which a turn sends no more packets: as large as the largest window, so that it
/// does not part a stream of requests, and about 0.2 ms.
pub(crate) const TURN_BYTES: usize = 512 << 10;

/// The number of packets after which acknowledgements leave even if more keep arriving.
const ACKS_AFTER: u32 = 16;

/// The nanoseconds after which acknowledgements leave where no program polls. Where one has stopped
/// polling, they leave when the worker notices.
const ACKS_WITHIN: u64 = 1_000_000;

#[cfg(all(test, not(loom)))]
mod tests;
