//! [`Machine`]: what is worked on by who has the turn: the engine, its results' ways out, packets in and out.
//!
//! ```text
//!   rings of work requests ──► pump ──►┌────────┐──► Hub: completions, events
//!                     Inbox ──► handle │ engine │
//!                     clock ──► timeout└────────┘──► transmit ──► Outbox ──► socket
//! ```
//!
//! Order matters in one place: packets are taken from the socket *before* the rings are looked at, and handled after. A
//! peer that was told of a receive may send at once; its message, when it is here, finds the receive in the engine.
//!
//! Acknowledgements wait for a moment in which they cost nobody anything: behind the data that is sent next, or when
//! nothing more comes in, or when [`ACKS_AFTER`] packets came.
//!
//! # How long a turn is
//! A turn sends [`TURN_PACKETS`] or [`TURN_BYTES`] at most, acknowledgements that are owed before a control call aside, and
//! takes no more packets from the socket after `TURN_PACKETS` (one receive brings 16 datagrams at most). What is left then is
//! work for the next holder: a thread that polls, or the background thread, which sleeps no more while there is some
//! ([`Machine::next_look`]). The engine decides what leaves first; [`roce::engine`] bounds what may leave before a packet that
//! others wait for. Together: whatever peers send, a request of a device that has no other requests to send leaves within the
//! turn that holds the device when it is posted, or the next one. Other requests of the same device go before it, at most
//! [`Config::burst`] packets of each queue pair; behind each 64 of those, peers' refusals, acknowledgements and answers have
//! their share.

use roce::engine::{
    Arrival, Completion, Config, Engine, Opcode, Payload, Qpn, RecvWr, SendWr, Sge, Sink, Status, Time,
    Urgency,
};

use crate::bells::Bells;
use crate::hub::Hub;
use crate::io::{Backlog, Flush, Inbox, Outbox, Socket};
use crate::limits;
use crate::memory::ProcessMemory;
use crate::random::SystemRandom;
use crate::wqe::SendWqe;

/// What is worked on by who has the turn.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) engine: Engine<ProcessMemory>,
    pub(crate) hub: Hub,
    inbox: Inbox,
    outbox: Outbox,
    /// The socket's buffer is full.
    blocked: bool,
    /// How much the kernel has not sent.
    backlog: Backlog,
    /// Packets that came since acknowledgements were last sent.
    unacknowledged: u32,
    /// What the present turn has sent and handled.
    pub(crate) spent: Spent,
    /// The last transmit ended because the turn's share was used up.
    left: bool,
    list: Box<[Sge; limits::MAX_LIST]>,
    bytes: Box<[u8; limits::MAX_INLINE_DATA as usize]>,
    /// What the background thread sleeps for.
    pub(crate) sleep: Sleep,
}

/// What a turn has sent and handled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    packets: u32,
    bytes: usize,
    handled: u32,
}

impl Spent {
    /// Returns whether nothing more is to be sent in this turn.
    #[inline]
    pub(crate) fn is_all(&self) -> bool {
        self.packets >= TURN_PACKETS || self.bytes >= TURN_BYTES
    }

    /// Returns whether the turn is to end after what was received.
    #[inline]
    pub(crate) fn is_enough(&self) -> bool {
        self.is_all() || self.handled >= TURN_PACKETS
    }
}

/// What the background thread sleeps for. Who changes what it ought to sleep for wakes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleep {
    /// When it wakes by itself.
    pub(crate) until: Option<Time>,
    /// It wakes when a packet arrives.
    pub(crate) for_packets: bool,
    /// It wakes when the socket takes packets again.
    pub(crate) for_room: bool,
    /// So many wait for room for their records, and it wakes when there is some.
    pub(crate) for_records: usize,
}

impl Sleep {
    /// It does not sleep, or is being woken: it will look at everything before it does.
    pub(crate) const AWAKE: Self =
        Self { until: Some(Time(0)), for_packets: true, for_room: true, for_records: usize::MAX };

    /// Somebody else polls.
    pub(crate) const POLLED: Self = Self { until: None, for_packets: false, for_room: false, for_records: 0 };
}

/// When acknowledgements are sent that nothing urges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Behind data, if there is any.
    Behind,
    /// With or without.
    Now,
    /// Without data: they are owed before something else is done.
    Alone,
}

impl Machine {
    pub(crate) fn new(socket: &Socket, config: Config) -> Self {
        Self {
            engine: Engine::new(config, ProcessMemory, SystemRandom),
            hub: Hub::new(),
            inbox: Inbox::new(socket),
            outbox: Outbox::new(socket),
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
    pub(crate) fn pump(&mut self, bells: &Bells, now: Time) {
        bells.take(|slot| self.pump_one(slot, now));
    }

    fn pump_one(&mut self, slot: usize, now: Time) {
        let Self { engine, hub, list, bytes, .. } = self;
        while let Some((qpn, wqe, len)) = hub.next_recv(slot, &mut list[..]) {
            let wr = RecvWr { wr_id: wqe.wr_id, sges: &list[..len] };
            if engine.post_recv(qpn, &wr, now, hub).is_err() {
                refuse(hub, qpn, wqe.wr_id, Opcode::Recv);
            }
        }
        while let Some((qpn, wqe, len)) = hub.next_send(slot, &mut list[..]) {
            let SendWqe { wr_id, op, flags, .. } = wqe;
            let payload: Payload<'_> = wqe.payload(&list[..len], &mut bytes[..]);
            let wr = SendWr { wr_id, op, flags, payload, remote_srq: 0 };
            if engine.post_send(qpn, &wr, now, hub).is_err() {
                refuse(hub, qpn, wr_id, Opcode::Send);
            }
        }
    }

    /// Takes packets from the socket. Says whether there were any; [`handle`](Self::handle) them next.
    #[inline]
    pub(crate) fn receive(&mut self, socket: &Socket) -> bool {
        // What a socket can say beyond "nothing" passes: the route that an earlier packet did not find.
        self.inbox.receive(socket).is_ok_and(|count| count > 0)
    }

    /// Nothing was received: are there acknowledgements to be sent now?
    #[inline]
    pub(crate) fn acks_are_due(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Is there certainly, or nearly so, more in the socket than was received?
    #[inline]
    pub(crate) fn more(&self) -> bool {
        self.inbox.more()
    }

    /// Has the engine see to the packets that were received.
    pub(crate) fn handle(&mut self, socket: &Socket, now: Time) {
        let Self { engine, hub, inbox, unacknowledged, spent, .. } = self;
        while let Some(received) = inbox.next(socket) {
            let arrival: Arrival = received.arrival;
            engine.handle(now, &arrival, received.bytes, hub);
            *unacknowledged += 1;
            spent.handled += 1;
        }
        if engine.config().strict_ports {
            socket.counts().unexpected_port.set(engine.unexpected_ports());
        }
    }

    /// Does what is due.
    #[inline]
    pub(crate) fn expire(&mut self, now: Time) {
        if self.engine.deadline().is_some_and(|deadline| deadline <= now) {
            self.engine.timeout(now, &mut self.hub);
        }
        if !self.hub.clogged.is_empty() {
            self.hub.retry_records();
        }
    }

    /// Sends what the engine has to send, as far as the turn's share goes, and acknowledgements.
    ///
    /// Read responses wait while the kernel's send queue holds a window: see [`Backlog`].
    pub(crate) fn transmit(&mut self, socket: &Socket, now: Time, acks: Acks) {
        self.transmit_with(socket, now, acks, Socket::unsent);
    }

    /// As [`transmit`](Self::transmit), with the length of the kernel's send queue as `unsent` reports it.
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
                self.engine.poll_transmit_prompt(now, urgency, space, &mut self.hub)
            } else {
                self.engine.poll_transmit(now, urgency, space, &mut self.hub)
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
            // The kernel reports what it was given.
            self.blocked = self.outbox.flush(socket) == Flush::Blocked;
            if self.blocked {
                return true;
            }
            self.backlog.measure(unsent(socket), window, now);
        }
        self.backlog.held_until().is_some()
    }

    /// What the background thread is to sleep for, when it watches the socket.
    pub(crate) fn watching(&self, now: Time) -> Sleep {
        Sleep {
            until: self.next_look(now),
            for_packets: true,
            for_room: self.blocked,
            for_records: self.hub.clogged.len(),
        }
    }

    /// Returns whether a turn has ended before everything was sent that can be sent.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// When somebody must look even if no packet arrives.
    #[inline]
    fn next_look(&self, now: Time) -> Option<Time> {
        // What has left the socket, or never entered it, wakes no one.
        if self.left || !self.inbox.is_empty() {
            return Some(Time(0));
        }
        let acks = if self.unacknowledged > 0 { Some(now + ACKS_WITHIN) } else { None };
        [self.engine.deadline(), acks, self.backlog.held_until()].into_iter().flatten().min()
    }

    /// Does the background thread sleep too long, now? Then it is to be woken, once.
    #[inline]
    pub(crate) fn oversleeps(&mut self, now: Time) -> bool {
        let sleep = &self.sleep;
        if !sleep.for_packets {
            // Somebody polls, and the thread looks soon whether that goes on.
            return false;
        }
        let too_long =
            self.next_look(now).is_some_and(|earliest| sleep.until.is_none_or(|until| earliest < until))
                || (self.blocked && !sleep.for_room)
                || self.hub.clogged.len() > sleep.for_records;
        if too_long {
            self.sleep = Sleep::AWAKE;
        }
        too_long
    }
}

/// Ends a work request that the engine did not take. The queues check everything that it checks, so this is for a state
/// that changed between the two.
#[cold]
fn refuse(hub: &mut Hub, qpn: Qpn, wr_id: u64, opcode: Opcode) {
    let Some(end) = hub.qp(qpn) else { return };
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
        hub.retire_recv(qpn, 1);
    } else {
        hub.retire_send(qpn, 1);
    }
    if hub.complete(cq, &completion).is_err() {
        hub.event(roce::engine::Event::CqError(cq));
    }
}

/// A turn sends so many packets at most, and receives none after so many.
pub(crate) const TURN_PACKETS: u32 = 128;

/// And so many bytes, to which the last packet is added: as large as the largest window, so that a stream of requests is not
/// parted, and about 0.2 ms.
pub(crate) const TURN_BYTES: usize = 512 << 10;

/// Acknowledgements leave after so many packets even if more keep coming.
const ACKS_AFTER: u32 = 16;

/// And after so many nanoseconds where nobody polls; where somebody did, until the background thread sees that it is over.
const ACKS_WITHIN: u64 = 1_000_000;

#[cfg(all(test, not(loom)))]
mod tests;
