//! Whose packet leaves next: [`Turns`], and [`Engine::poll_transmit`].
//!
//! | class | packets | bounded by |
//! |---|---|---|
//! | requests | what this side's programs ask for | [`Config::burst`] packets of a queue pair in a row |
//! | refusals | NAKs | one a queue pair |
//! | owed | plain acknowledgements | one a queue pair; with [`Urgency::Now`], only where answers wait as well |
//! | answers | read responses, atomics' results | a quantum of a queue pair, a window of a peer ([`answers`](super::answers)) |
//!
//! The classes leave in this order, so that what a peer causes is behind what this side's programs ask for. A class sends at
//! most [`SHARE`] packets before the ones below it are asked, and after a quantum of answers all classes start again with their
//! whole share: none starves another.
//!
//! # The longest wait
//! A hostile peer sends as many requests as it can, of whatever kind, on as many queue pairs as it has. No more leaves the
//! engine before an innocent's packet than this, where a *round* is `SHARE` packets of each of the other classes at most, and a
//! quantum of answers:
//!
//! | an innocent's | leaves after at most |
//! |---|---|
//! | request that was posted | the requests of the queue pairs before it, [`Config::burst`] of each; and a round for each `SHARE` requests that this device sends |
//! | refusal | the refusals before it, one a queue pair; and a round for each `SHARE` of those, and one more |
//! | acknowledgement | the acknowledgements before it, one a queue pair; and a round for each `SHARE` of those, and one more |
//! | answer: data that was read, an atomic's result | a round for each other *peer* with answers, and `SHARE` packets of each other class |
//!
//! A quantum is at most 64 packets, and less than 65,732 bytes. The requests in the first row are
//! this device's own: no packet that arrives makes a queue pair send more of them than its programs have posted. So a request
//! of a device that has no others to send leaves at once, behind what the caller has taken out already. Within one peer, queue pairs take turns in the same way: queue pairs
//! of one remote address share its place in the line, and its credit. An address is not protected from itself, and one that has
//! used its credit up waits for it as well.
//!
//! [`Config::burst`]: super::Config::burst

use alloc::collections::VecDeque;

use super::Engine;
use super::control::Objects;
use super::memory::{Memory, Sink};
use super::qp::Qp;
use super::requester;
use super::responder::{self, Kind};
use super::types::{Time, Transmit, Urgency};

/// So many packets of a class leave before another one is asked.
pub(crate) const SHARE: u32 = 64;

/// Who is next to send. Allocated for every queue pair when that is made.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    ready: VecDeque<u32>,
    refusals: VecDeque<u32>,
    acks: VecDeque<u32>,
    blocked: VecDeque<u32>,
    /// How many packets the first of `ready` has sent in a row.
    burst: u32,
    /// How many packets of the first three classes have left since the last quantum of answers.
    requests: u32,
    refused: u32,
    owed: u32,
    /// Bytes of requests on their way, unacknowledged, of all queue pairs.
    pub(crate) in_flight: u64,
}

impl Turns {
    /// A request is to be sent.
    pub(crate) fn ready(&mut self, qp: &mut Qp) {
        if !qp.in_ready {
            qp.in_ready = true;
            self.ready.push_back(qp.qpn.0);
        }
    }

    /// Takes the queue pair out that has no request to send any more, where it is the first.
    pub(crate) fn settle(&mut self, qp: &mut Qp) {
        if qp.in_ready && self.ready.front() == Some(&qp.qpn.0) {
            self.leave(qp);
        }
    }

    /// The first of those with a request to send has no more.
    fn leave(&mut self, qp: &mut Qp) {
        qp.in_ready = false;
        self.burst = 0;
        self.ready.pop_front();
    }

    /// A refusal is to be sent.
    pub(crate) fn refuse(&mut self, qp: &mut Qp) {
        if !qp.in_refusals {
            qp.in_refusals = true;
            self.refusals.push_back(qp.qpn.0);
        }
    }

    /// An acknowledgement is to be sent, some time.
    pub(crate) fn ack(&mut self, qp: &mut Qp) {
        if !qp.in_acks {
            qp.in_acks = true;
            self.acks.push_back(qp.qpn.0);
        }
    }

    /// It has something to send, and the window no room for more of it than is on its way.
    pub(crate) fn block(&mut self, qp: &mut Qp) {
        if !qp.in_blocked {
            qp.in_blocked = true;
            self.blocked.push_back(qp.qpn.0);
        }
    }

    /// Returns whether a queue pair waits for room in the window.
    #[inline]
    pub(crate) fn any_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Every class has its whole share again. Returns how many packets of the first three have left since this last happened.
    fn begin_round(&mut self) -> u32 {
        let left = self.requests + self.refused + self.owed;
        (self.requests, self.refused, self.owed) = (0, 0, 0);
        left
    }

    /// `bytes` of requests left.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// `bytes` of requests were acknowledged, or are given up.
    pub(crate) fn acknowledged(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    pub(crate) fn reserve(&mut self, qps: usize) {
        for queue in [&mut self.ready, &mut self.refusals, &mut self.acks, &mut self.blocked] {
            queue.reserve(qps.saturating_sub(queue.len()));
        }
    }

    /// Forgets a queue pair that is gone.
    pub(crate) fn drop_stale(&mut self, number: u32) {
        if self.ready.front() == Some(&number) {
            self.burst = 0;
        }
        for queue in [&mut self.ready, &mut self.refusals, &mut self.acks, &mut self.blocked] {
            queue.retain(|&other| other != number);
        }
    }
}

impl<M: Memory> Objects<M> {
    /// Lets those go on that waited for room in the window.
    pub(crate) fn unblock(&mut self) {
        while self.turns.in_flight < u64::from(self.config.window_bytes) {
            let Some(qpn) = self.turns.blocked.pop_front() else { break };
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.in_blocked = false;
                self.turns.ready(qp);
            }
            if !self.turns.ready.is_empty() {
                break;
            }
        }
    }

    /// The next request.
    #[inline]
    fn send_request<S: Sink>(&mut self, now: Time, buf: &mut [u8], sink: &mut S) -> Option<Transmit> {
        while let Some(&number) = self.turns.ready.front() {
            let burst = self.config.burst;
            let sent = self.with(number, now, sink, |qp, world| requester::transmit(qp, world, buf));
            let first = self.turns.ready.front() == Some(&number);
            if let Some(transmit) = sent.flatten() {
                if first {
                    self.turns.burst += 1;
                    if self.turns.burst >= burst {
                        self.turns.burst = 0;
                        self.turns.ready.rotate_left(1);
                    }
                }
                return Some(transmit);
            }
            if first {
                match self.qps.get_mut(number) {
                    Some(qp) => self.turns.leave(qp),
                    None => drop(self.turns.ready.pop_front()),
                }
            }
        }
        None
    }

    /// The next refusal.
    fn send_refusal<S: Sink>(&mut self, now: Time, buf: &mut [u8], sink: &mut S) -> Option<Transmit> {
        // Each once: one that does not fit `buf` comes back to the end.
        for _ in 0..self.turns.refusals.len() {
            let number = self.turns.refusals.pop_front()?;
            if let Some(qp) = self.qps.get_mut(number) {
                qp.in_refusals = false;
            }
            let sent =
                self.with(number, now, sink, |qp, world| responder::transmit(qp, world, Kind::Refusal, buf));
            if let Some(transmit) = sent.flatten() {
                return Some(transmit);
            }
        }
        None
    }

    /// The next plain acknowledgement.
    fn send_owed<S: Sink>(&mut self, now: Time, buf: &mut [u8], sink: &mut S) -> Option<Transmit> {
        // Each once: one that does not fit `buf` comes back to the end.
        for _ in 0..self.turns.acks.len() {
            let number = self.turns.acks.pop_front()?;
            if let Some(qp) = self.qps.get_mut(number) {
                qp.in_acks = false;
            }
            let sent =
                self.with(number, now, sink, |qp, world| responder::transmit(qp, world, Kind::Ack, buf));
            if let Some(transmit) = sent.flatten() {
                return Some(transmit);
            }
        }
        None
    }

    /// The next packet of an answer, from this queue pair or one behind it.
    fn send_answer<S: Sink>(
        &mut self,
        mut number: u32,
        now: Time,
        buf: &mut [u8],
        sink: &mut S,
    ) -> Option<Transmit> {
        // Ends: a queue pair that sends nothing leaves the line.
        loop {
            let sent = self.with(number, now, sink, |qp, world| {
                let transmit = responder::transmit(qp, world, Kind::Answer, buf)?;
                Some((transmit, responder::pending(qp) == Some(Kind::Answer)))
            });
            let (sent, more) = sent.flatten().unzip();
            let more = more == Some(true);
            let spent = sent.is_some_and(|transmit: Transmit| self.answers.sent(transmit.len, &self.config));
            if spent || !more {
                self.turns.begin_round();
                self.answers.end_turn(more);
                if !more && let Some(qp) = self.qps.get_mut(number) {
                    qp.in_answers = false;
                }
            }
            if sent.is_some() {
                return sent;
            }
            number = self.answers.next(now, &self.config)?;
        }
    }

    /// The next packet, of the first class that may send. `answer`: the queue pair whose answer is next, if answers may leave.
    #[inline]
    fn transmit<S: Sink>(
        &mut self,
        now: Time,
        urgency: Urgency,
        answer: Option<u32>,
        buf: &mut [u8],
        sink: &mut S,
    ) -> Option<Transmit> {
        if urgency == Urgency::Owed {
            return self.send_refusal(now, buf, sink).or_else(|| self.send_owed(now, buf, sink));
        }
        loop {
            if self.turns.requests < SHARE
                && !self.turns.ready.is_empty()
                && let Some(transmit) = self.send_request(now, buf, sink)
            {
                self.turns.requests += 1;
                return Some(transmit);
            }
            if self.turns.refused < SHARE
                && !self.turns.refusals.is_empty()
                && let Some(transmit) = self.send_refusal(now, buf, sink)
            {
                self.turns.refused += 1;
                return Some(transmit);
            }
            if (answer.is_some() || urgency == Urgency::All)
                && self.turns.owed < SHARE
                && !self.turns.acks.is_empty()
                && let Some(transmit) = self.send_owed(now, buf, sink)
            {
                self.turns.owed += 1;
                return Some(transmit);
            }
            if let Some(number) = answer
                && let Some(transmit) = self.send_answer(number, now, buf, sink)
            {
                return Some(transmit);
            }
            if self.turns.begin_round() < SHARE {
                return None;
            }
        }
    }
}

impl<M: Memory> Engine<M> {
    /// Writes the next packet that is to be sent into `buf`, from BTH to pad, and leaves room for nothing else.
    ///
    /// Packets of one queue pair follow each other as far as they can, so that a caller can send them as segments of one
    /// buffer. `None`: nothing (of this urgency) until another call, or time, changes that.
    ///
    /// `buf` must hold a path MTU's payload and [`MAX_HEADER_LEN`](crate::wire::packet::MAX_HEADER_LEN) bytes.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        urgency: Urgency,
        buf: &mut [u8],
        sink: &mut impl Sink,
    ) -> Option<Transmit> {
        let objects = &mut self.objects;
        let answer =
            if objects.answers.is_idle() { None } else { objects.answers.next(now, &objects.config) };
        objects.transmit(now, urgency, answer, buf, sink)
    }
}

/// Sending while read responses are held back, for callers whose link is slower than [`Config::answer_rate`].
///
/// [`Config::answer_rate`]: super::Config::answer_rate
impl<M: Memory> Engine<M> {
    /// Returns whether read responses wait to be sent, for their place in the line or for credit.
    #[inline]
    pub fn has_answers(&self) -> bool {
        !self.objects.answers.is_idle()
    }

    /// Writes the next packet as [`poll_transmit`](Self::poll_transmit) does, except that no read response and no result of
    /// an atomic leaves.
    pub fn poll_transmit_prompt(
        &mut self,
        now: Time,
        urgency: Urgency,
        buf: &mut [u8],
        sink: &mut impl Sink,
    ) -> Option<Transmit> {
        self.objects.transmit(now, urgency, None, buf, sink)
    }
}
