//! [`Engine::handle`] and [`Engine::timeout`]: received packets and expired timers.

use core::ops::Range;

use super::environment::Environment;
use super::memory::{Memory, Sink};
use super::multicast::MULTICAST_QPN;
use super::qp::Qp;
use super::types::{Arrival, DropReason, DroppedDatagrams, GSI_QPN, Network, Service, Time};
use super::{Engine, datagram, gsi, requester, responder};
use crate::wire::Headers;

impl<M: Memory> Engine<M> {
    /// Handles a received packet, from BTH to ICRC: a UDP payload or the bytes after the LRH or
    /// GRH. Malformed packets are dropped.
    ///
    /// The caller must check the value of the ICRC. Its 4 bytes must exist but are not read here.
    pub fn handle(&mut self, now: Time, arrival: &Arrival, packet: &[u8], sink: &mut impl Sink) {
        let Ok((headers, payload)) = Headers::parse(packet) else { return };
        let payload: Range<usize> = payload;
        let Some(payload) = packet.get(payload) else { return };
        let mut number = headers.bth.dest_qp;
        if number == MULTICAST_QPN {
            self.multicast(now, arrival, &headers, payload, sink);
            return;
        }
        if let Some(owner) = self.objects.well_known.get(number as usize) {
            let Some(owner) = owner else { return self.special(arrival, &headers, payload, sink) };
            number = owner.0;
        }
        let mut elsewhere = false;
        let mut dropped = None;
        let found = self.objects.with(number, now, sink, |qp, env| {
            if qp.service == Service::Ud {
                dropped = datagram::receive(qp, env, arrival, &headers, payload).err();
            } else if !qp.is_from_peer(arrival) {
                // The packet is not from the queue pair's peer, so it is dropped.
            } else if env.config.strict_ports {
                elsewhere = qp.is_from_elsewhere(arrival);
                if !elsewhere {
                    let before = qp.progress();
                    connected(qp, env, arrival, &headers, payload);
                    if qp.progress() != before && arrival.src_port.is_some() {
                        qp.peer_port = arrival.src_port;
                    }
                }
            } else {
                connected(qp, env, arrival, &headers, payload);
            }
        });
        self.objects.unexpected_ports += u64::from(elsewhere);
        if let Some(reason) = dropped {
            self.objects.dropped.count(reason);
        }
        if found.is_none() {
            self.drop_unknown(&headers);
        }
    }

    /// Delivers a datagram to the members of a multicast group.
    fn multicast(
        &mut self,
        now: Time,
        arrival: &Arrival,
        headers: &Headers,
        payload: &[u8],
        sink: &mut impl Sink,
    ) {
        // IBTA 9.6.1: the GRH contains the group's address, and this packet has no GRH.
        if arrival.network == Network::Local {
            self.objects.dropped.count(DropReason::Other);
            return;
        }
        let mut next = 0;
        while let Some(member) = self.objects.groups.member(&arrival.local, next) {
            next += 1;
            let received = self
                .objects
                .with(member.0, now, sink, |qp, env| datagram::receive(qp, env, arrival, headers, payload));
            if let Some(Err(reason)) = received {
                self.objects.dropped.count(reason);
            }
        }
        if next == 0 {
            self.objects.dropped.count(DropReason::NotMember);
        }
    }

    /// Handles a packet for a special queue pair number that no queue pair has: a management
    /// datagram if the general services interface is open.
    #[cold]
    fn special(&mut self, arrival: &Arrival, headers: &Headers, payload: &[u8], sink: &mut impl Sink) {
        if headers.bth.dest_qp != GSI_QPN || self.objects.gsi.is_none() {
            self.drop_unknown(headers);
        } else if let Err(reason) = gsi::receive(arrival, headers, payload, sink) {
            self.objects.dropped.count(reason);
        }
    }

    /// Counts a packet if it is a datagram for a nonexistent queue pair.
    #[cold]
    fn drop_unknown(&mut self, headers: &Headers) {
        if headers.deth.is_some() {
            self.objects.dropped.count(DropReason::UnknownQpn);
        }
    }

    /// Returns the number of dropped datagrams, by reason.
    pub fn dropped_datagrams(&self) -> &DroppedDatagrams {
        &self.objects.dropped
    }

    /// Returns the number of packets dropped because their UDP source port differs from the port
    /// that the queue pair's peer uses: see [`Config::strict_ports`](super::Config::strict_ports).
    pub fn unexpected_ports(&self) -> u64 {
        self.objects.unexpected_ports
    }

    /// Returns the time at which to call [`timeout`](Self::timeout) and then
    /// [`poll_transmit`](Self::poll_transmit). Any other call may change it. It may be earlier than
    /// necessary.
    pub fn deadline(&self) -> Option<Time> {
        match (self.objects.timers.earliest(), self.objects.response_queue.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Handles expired timers: retries requests, fails queue pairs without retries left or resumes
    /// responses.
    pub fn timeout(&mut self, now: Time, sink: &mut impl Sink) {
        self.objects.response_queue.wake(now);
        // The number of entries is read once, because handling an entry may add another.
        for _ in 0..self.objects.timers.len() {
            let Some((at, number)) = self.objects.timers.take(now) else { return };
            let is_current = self
                .objects
                .qps
                .get_mut(number)
                .is_some_and(|qp| qp.timer.take_if(|timer| *timer == at).is_some());
            if is_current {
                self.objects.with(number, now, sink, |qp, env| {
                    if qp.deadline().is_some_and(|deadline| deadline <= now) {
                        requester::expire(qp, env);
                    }
                });
            }
        }
    }
}

/// Handles a packet from the peer.
#[inline]
fn connected<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    arrival: &Arrival,
    headers: &Headers,
    payload: &[u8],
) {
    if headers.bth.opcode.is_response() {
        requester::acknowledge(qp, env, headers, payload);
    } else {
        responder::request(qp, env, arrival.on_link, headers, payload);
    }
}
