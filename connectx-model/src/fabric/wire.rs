//! A function's side of the fabric: receives and sends packets, and advances time.

use roce::engine::{Arrival, Network, Qpn, State, Time, Transmit, Urgency};

use crate::bus::Bus;
use crate::function::Function;
use crate::qp::completion;
use crate::state::qp::Service;

/// The destination queue pair number in multicast packets.
const MULTICAST: u32 = 0xff_ffff;
/// The numbers of special queue pairs.
const SPECIAL: std::ops::RangeInclusive<u32> = 0..=1;

impl<B: Bus> Function<B> {
    /// Handles a packet from the fabric. `packet` extends from the BTH through the ICRC.
    pub(crate) fn take_in(&mut self, arrival: &Arrival, packet: &[u8]) {
        let Some([_, high, middle, low]) = packet.get(4..).and_then(|rest| rest.first_chunk()) else {
            return;
        };
        let number = u32::from_be_bytes([0, *high, *middle, *low]);
        let receives = |service: Service| match service {
            Service::Ud => number == MULTICAST,
            Service::Qp0 | Service::Qp1 => SPECIAL.contains(&number),
            _ => false,
        };
        // Newly posted receives are fetched before the engine needs one.
        let receivers: Vec<u32> = match number {
            MULTICAST | 0 | 1 => {
                self.core.qps.values().filter(|qp| receives(qp.service)).map(|qp| qp.qpn).collect()
            }
            number => vec![number],
        };
        for qpn in &receivers {
            self.refill(*qpn);
            if let Some(fault) = self.core.faults.receive(*qpn, consumes_receive(packet))
                && !self.fail_recv(*qpn, fault.syndrome, fault.vendor)
            {
                // The fault could not be applied to this packet; it may apply to the next one.
                self.core.faults.give_back(fault);
            }
        }
        self.core.attention.receiver = Some(number);
        let now = self.core.now;
        self.engine.handle(now, arrival, packet, &mut self.core);
        self.core.attention.receiver = None;
        self.settle();
    }

    /// Writes the next packet, from the BTH through the padding, to `buf`.
    pub(crate) fn next_packet(&mut self, buf: &mut [u8]) -> Option<Transmit> {
        let now = self.core.now;
        let sent = self.engine.poll_transmit(now, Urgency::All, buf, &mut self.core);
        // Completes work requests that send no packet.
        self.settle();
        let sent = sent.or_else(|| self.engine.poll_transmit(now, Urgency::All, buf, &mut self.core));
        if let Some(sent) = &sent
            && is_not_ready(buf.get(..sent.len).unwrap_or_default())
            && let Some(qp) = self.core.qps.get_mut(&sent.qpn.0)
        {
            qp.run.recv.not_ready = true;
        }
        sent
    }

    /// Advances time to `now` and handles everything due.
    pub(crate) fn expire(&mut self, now: Time) {
        self.core.now = self.core.now.max(now);
        let now = self.core.now;
        self.release_due();
        self.engine.timeout(now, &mut self.core);
        self.settle();
        self.core.raise_held();
        self.look();
    }

    /// Returns the time by which [`expire`](Self::expire) must be called; `None` if nothing is
    /// pending.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let paced = self.core.eth.deadline();
        let others = [self.engine.deadline(), self.held_until(), self.core.attention.next_look];
        others.into_iter().chain([paced, self.core.next_held]).flatten().min()
    }

    /// Completes the oldest outstanding send of a queue pair with the error `syndrome`. Returns
    /// whether there was such a send.
    pub(crate) fn fail_send(&mut self, qpn: u32, syndrome: u8, vendor: u8) -> bool {
        self.settle();
        let Some(qp) = self.core.qps.get_mut(&qpn) else { return false };
        qp.run.send.forced = Some((syndrome, vendor));
        let now = self.core.now;
        let status = completion::status(syndrome);
        let failed = self.engine.fail_oldest_send(Qpn(qpn), status, vendor.into(), now, &mut self.core);
        if let Some(qp) = self.core.qps.get_mut(&qpn) {
            qp.run.send.forced = None;
        }
        self.settle();
        failed
    }

    /// Completes the oldest outstanding receive of a queue pair with the error `syndrome`. Returns
    /// whether there was such a receive.
    pub(crate) fn fail_recv(&mut self, qpn: u32, syndrome: u8, vendor: u8) -> bool {
        if self.state(qpn) == State::Reset {
            return false;
        }
        self.refill(qpn);
        let Some(qp) = self.core.qps.get_mut(&qpn) else { return false };
        qp.run.recv.forced = Some((syndrome, vendor));
        let now = self.core.now;
        let status = completion::status(syndrome);
        let failed = self.engine.fail_next_recv(Qpn(qpn), status, vendor.into(), now, &mut self.core);
        if let Some(qp) = self.core.qps.get_mut(&qpn) {
            qp.run.recv.forced = None;
        }
        self.settle();
        failed
    }
}

/// Returns whether a packet consumes a receive: true for sends and for writes with immediate data.
/// The upper 3 bits of the opcode, which give the service, are ignored.
///
/// # References
/// IBTA 9.2, BTH opcodes
fn consumes_receive(packet: &[u8]) -> bool {
    const WRITES_WITH_IMMEDIATE: [u8; 2] = [0x09, 0x0b];
    packet.first().map(|opcode| opcode & 0x1f).is_some_and(|operation| {
        matches!(operation, 0x00..=0x05 | 0x16 | 0x17) || WRITES_WITH_IMMEDIATE.contains(&operation)
    })
}

/// Returns whether a packet tells the requester that no receive is posted: an acknowledgement with
/// the syndrome "receiver not ready".
///
/// # References
/// IBTA 9.2, BTH opcodes; 9.3.5, AETH
fn is_not_ready(packet: &[u8]) -> bool {
    const ACKNOWLEDGE: u8 = 0x11;
    let opcode = packet.first().map(|opcode| opcode & 0x1f);
    let syndrome = packet.get(12).map(|syndrome| syndrome >> 5);
    (opcode, syndrome) == (Some(ACKNOWLEDGE), Some(1))
}

/// Returns the addresses of a packet from its receiver's point of view.
pub(crate) fn arrival(transmit: &Transmit) -> Arrival {
    let path = &transmit.path;
    Arrival {
        network: path.network,
        remote: path.local,
        local: path.remote,
        // The fabric uses no UDP ports, and the receiver ignores this value.
        src_port: None,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        flow_label: path.flow_label,
        sl: path.sl,
        slid: if path.network == Network::Udp { 0 } else { path.slid },
        dlid: if path.network == Network::Udp { 0 } else { path.dlid },
        on_link: path.on_link,
    }
}
