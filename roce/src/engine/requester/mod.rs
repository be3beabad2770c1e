//! The requester: from work requests to packets, and from acknowledgements to completions.
//!
//! | module | what it is |
//! |---|---|
//! | `post` | what a send queue takes |
//! | `transmit` | the next packet of the next work request |
//! | `payload` | its bytes: gathered from, or scattered to, registered memory |
//! | `acknowledge` | responses: acknowledgements, data that was read, refusals |
//! | `retry` | timers, going back, the window of a queue pair |
//! | `finish` | how work requests end |
//!
//! Sequence numbers of a reliable connection (IBTA 9.7.2), all of them on a circle of 2²⁴:
//!
//! ```text
//!        una                 next                 max
//!   ──────┼────────────────────┼────────────────────┼──────
//!   ended │ sent               │ sent once, and to  │ never sent
//!         │ (and in flight)    │ be sent again      │
//! ```
//! Without a loss, `next` equals `max`. `una` lies in the oldest work request, `next` in the one at the cursor.
//!
//! Invariant: `flight` is what the packets from `una` to `next` cost, and a part of [`Turns::in_flight`].

mod acknowledge;
mod finish;
mod payload;
mod post;
mod retry;
#[cfg(test)]
mod tests;
mod transmit;

pub(crate) use acknowledge::acknowledge;
pub(crate) use finish::flush;
pub(crate) use post::post;
pub(crate) use retry::expire;
pub(crate) use transmit::transmit;

use super::control::World;
use super::memory::{Memory, Sink};
use super::qp::Qp;
use super::queue::Wqe;
use super::schedule::Turns;
use super::types::{Event, Service, State, Status, Time};
use crate::wire::Psn;

/// What a packet costs of the window beside its payload: about what a receiver's socket buffer is charged for a small
/// datagram.
pub(crate) const PACKET_COST: u64 = 768;

/// The requester's half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    /// The oldest packet that has not been acknowledged.
    una: Psn,
    /// The next packet to be sent.
    next: Psn,
    /// The first that was never sent.
    max: Psn,
    /// The work request that `next` belongs to, or will.
    cursor: u32,
    /// The first work request that was never started.
    fresh: u32,
    /// What the work request at the cursor ends with as soon as it is the oldest.
    halted: Option<Status>,
    /// Nothing can be sent before a response comes, or a timer ends.
    waiting: bool,
    /// What is in flight costs so much of the window.
    flight: u64,
    /// How much of the window this queue pair may take: less after a loss.
    allowance: u64,
    /// Bytes since the last packet that asks for an acknowledgement.
    unasked: u32,
    /// Read requests and atomics in flight.
    reads: u32,
    /// Where the last read request in the middle of a piece was sent: its answer begins there.
    resumed: Psn,
    /// It went back there because a response was missing, and there has been no progress.
    implied: bool,
    /// Retries since the last progress.
    retries: u8,
    rnr_retries: u8,
    /// Nothing is sent before: the peer was not ready.
    rnr_until: Option<Time>,
    /// When the peer is to have acknowledged something.
    ack_deadline: Option<Time>,
    /// In SQD, whose end was not told yet.
    draining: bool,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            una: Psn::new(0),
            next: Psn::new(0),
            max: Psn::new(0),
            cursor: 0,
            fresh: 0,
            halted: None,
            waiting: false,
            flight: 0,
            allowance: u64::MAX,
            unasked: 0,
            reads: 0,
            resumed: Psn::new(0),
            implied: false,
            retries: 0,
            rnr_retries: 0,
            rnr_until: None,
            ack_deadline: None,
            draining: false,
        }
    }
}

impl Requester {
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.rnr_until.or(self.ack_deadline)
    }

    /// The peer is to answer what is on its way: an acknowledgement was asked for behind all of it, or it is a read.
    ///
    /// Only then may it wait for room that others hold. Nothing tells it to go on otherwise, if they never give it back.
    #[inline]
    fn awaits_answer(&self) -> bool {
        self.flight > 0 && self.unasked == 0
    }
}

/// Is there a packet that may leave?
#[inline]
pub(crate) fn has_work(qp: &Qp) -> bool {
    let req = &qp.req;
    let last = match qp.state {
        State::Rts => qp.sq.head(),
        // IBTA 10.3.1.5: what has begun goes on, nothing new starts.
        State::Sqd => req.fresh,
        _ => return false,
    };
    // It stays in the line when it is answered before its turn comes, and need not wait for that.
    let blocked = qp.in_blocked && req.awaits_answer();
    req.cursor != last && !req.waiting && !blocked && req.halted.is_none() && req.rnr_until.is_none()
}

/// Acknowledged by the peer, unlike datagrams and unreliable connections.
fn is_reliable(qp: &Qp) -> bool {
    matches!(qp.service, Service::Rc | Service::XrcInitiator)
}

/// Does the completion of this work request, whose response has as many packets, bring along what it found?
#[inline]
fn answered_inline(qp: &Qp, wqe: &Wqe, packets: u32) -> bool {
    (1..=qp.inline_completion.requester).contains(&wqe.length)
        && wqe.flags.signaled
        && wqe.wants_data()
        && packets == 1
}

/// The largest payload of a packet. A datagram's is not an attribute of the queue pair in verbs: the largest there is.
#[inline]
fn mtu(qp: &Qp) -> u32 {
    match qp.attr.path_mtu {
        mtu @ 1..=4096 => mtu,
        _ if qp.service == Service::Ud => 4096,
        _ => 1024,
    }
}

/// Forgets every send that is posted, without a word.
pub(crate) fn reset<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>) {
    forget(qp, world.turns);
    qp.sq.clear();
    qp.req = Requester::default();
}

/// Gives back what it holds of the window.
pub(crate) fn forget(qp: &mut Qp, turns: &mut Turns) {
    turns.acknowledged(qp.req.flight);
    qp.req.flight = 0;
}

/// Ends the oldest send as if it had failed so, with all that follows. False: there is none.
pub(crate) fn fail_next<M: Memory, S: Sink>(
    qp: &mut Qp,
    world: &mut World<'_, M, S>,
    status: Status,
    vendor_err: u32,
) -> bool {
    let any = !qp.sq.is_empty();
    if any {
        finish::fail_oldest_saying(qp, world, status, vendor_err);
    }
    any
}

/// RTS to SQD: nothing new starts.
///
/// # References
/// IBTA 10.3.1.5
pub(crate) fn drain<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>) {
    qp.req.draining = true;
    tell_drained(qp, world);
}

/// Raises the event of SQD once nothing is on its way.
fn tell_drained<M: Memory, S: Sink>(qp: &mut Qp, world: &mut World<'_, M, S>) {
    if qp.req.draining && is_drained(qp) {
        qp.req.draining = false;
        if qp.attr.sq_drained_event {
            world.sink.event(Event::SqDrained(qp.qpn));
        }
    }
}

/// Back to RTS.
pub(crate) fn resume<M: Memory, S: Sink>(qp: &mut Qp, _world: &mut World<'_, M, S>) {
    qp.req.draining = false;
    qp.req.waiting = false;
}

/// Has everything that was on its way ended?
pub(crate) fn is_drained(qp: &Qp) -> bool {
    qp.sq.tail() == qp.req.fresh
}

/// Sets the first sequence number. Not in the middle of something.
pub(crate) fn set_psn(qp: &mut Qp, psn: u32) {
    if is_drained(qp) {
        let psn = Psn::new(psn);
        (qp.req.una, qp.req.next, qp.req.max, qp.req.resumed) = (psn, psn, psn, psn);
    }
}

pub(crate) fn next_psn(qp: &Qp) -> u32 {
    qp.req.max.value()
}

/// The oldest sequence number that the peer has not acknowledged.
pub(crate) fn oldest_psn(qp: &Qp) -> u32 {
    qp.req.una.value()
}
