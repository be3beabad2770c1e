//! [`Ethernet`]: the Ethernet queues of a RoCE port.
//!
//! | module | contents |
//! |---|---|
//! | `queue` | the ring of a send or receive queue |
//! | `sq` | send queues: from work requests to frames |
//! | `pacing` | rates of send queues |
//! | `rq` | receive queues: from frames to completions |
//! | `steering` | flow tables: select the receive queue for a frame |
//! | `frame` | headers, checksums, segments |
//!
//! ```text
//!   SQ ──► step_frames ──► the other function's frame_in ──► steering ──► TIR ──► RQ
//!              └───────── local loopback ──────────────────────┘           └──► RQT ──► RQ
//! ```
//! A send queue also exists on an InfiniBand port, where drivers use it to probe write combining.
//! It sends nothing there.
//!
//! # Local loopback
//! A frame to a group also comes back to its sender. A frame to an address of the port comes back
//! instead of leaving. The port's context can disable either loopback. A TIR does not receive
//! frames sent in the same transport domain. A driver with one domain for all its queues therefore
//! never receives its own frames, and processes with separate domains receive each other's. Two
//! bits of a TIR, one for each kind of address, enable frames of the TIR's domain. They are called
//! `self_lb_block`, but Linux sets them to get frames back (the loopback test of `en_selftest.c`,
//! `ipoib.c`, queue pairs with `TIR_ALLOW_SELF_LB`), and otherwise clears them.
//!
//! Invariant: numbers of send and receive queues differ from all queue pair numbers of the
//! transport engine, because a doorbell identifies its queue only by number.

pub(crate) mod frame;
pub(crate) mod pacing;
pub(crate) mod queue;
pub(crate) mod rq;
pub(crate) mod sq;
pub(crate) mod steering;

use std::collections::{BTreeMap, VecDeque};

use crate::bus::Bus;
use crate::function::Function;
use crate::ids::Ids;
use crate::layout::eth::{rqc, tirc};
use crate::port::PortKind;

use self::pacing::Rates;
use self::rq::Rq;
use self::sq::Sq;
use self::steering::Steering;

/// Ethernet queues and flow steering.
#[derive(Debug, Default)]
pub(crate) struct Ethernet {
    pub(crate) sqs: BTreeMap<u32, Sq>,
    pub(crate) rqs: BTreeMap<u32, Rq>,
    pub(crate) tises: BTreeMap<u32, Tis>,
    pub(crate) tirs: BTreeMap<u32, Tir>,
    pub(crate) rqts: BTreeMap<u32, Rqt>,
    pub(crate) steering: Steering,
    pub(crate) counters: Counters,
    pub(crate) rates: Rates,
    /// Allocates numbers of send and receive queues; `None` until the first.
    queue_numbers: Option<Ids>,
    numbers: Option<Ids>,
    outgoing: VecDeque<Outgoing>,
    /// Memory of the frames in `outgoing`.
    outgoing_bytes: usize,
    /// Bytes of frames built since the last doorbell or continuation of a send queue.
    burst: usize,
    /// Send queues that wait for room or for their rate; each keeps the rest of its doorbell in
    /// `rung`.
    waiting: VecDeque<u32>,
}

/// An outgoing frame and its transport domain.
#[derive(Debug)]
struct Outgoing {
    frame: Vec<u8>,
    domain: u32,
}

/// Transport interface send: the sending end of a transport domain.
#[derive(Debug)]
pub(crate) struct Tis {
    pub(crate) context: [u8; 0xa0],
    pub(crate) domain: u32,
    /// Number of send queues on it.
    pub(crate) users: u32,
}

/// Transport interface receive: a destination of flow steering.
#[derive(Debug)]
pub(crate) struct Tir {
    pub(crate) context: [u8; 0xf0],
    pub(crate) domain: u32,
    pub(crate) to: Receivers,
}

impl Tir {
    /// Returns whether this TIR receives a frame from this transport domain of the same function.
    fn hears(&self, domain: u32, frame: &[u8]) -> bool {
        let bit = if frame::is_group(frame) { HEARS_GROUPS } else { HEARS_UNICAST };
        self.domain != domain || tirc::SELF_LB_BLOCK.get32(&self.context) & bit != 0
    }
}

/// Bits of a TIR to enable frames of its transport domain.
const HEARS_UNICAST: u32 = 1;
const HEARS_GROUPS: u32 = 2;

/// Receive queues of a TIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receivers {
    /// One receive queue.
    Rq(u32),
    /// One queue of a table, by a hash of the frame's flow.
    Rqt(u32),
}

/// A table of receive queues.
#[derive(Debug)]
pub(crate) struct Rqt {
    pub(crate) max_size: u32,
    pub(crate) rqs: Vec<u32>,
}

/// Counters of received, sent and dropped frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) received: Traffic,
    pub(crate) sent: Traffic,
    /// Frames without a matching entry, with too long a walk through the tables, or longer than the
    /// port's maximum.
    pub(crate) unwanted: u64,
    /// Frames for queues that were not ready or had no receives.
    pub(crate) out_of_buffer: u64,
}

/// Frames and bytes by kind of destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) unicast: (u64, u64),
    pub(crate) multicast: (u64, u64),
    pub(crate) broadcast: (u64, u64),
}

impl Traffic {
    fn count(&mut self, frame: &[u8]) {
        let kind = match frame {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => &mut self.broadcast,
            [first, ..] if first & 1 != 0 => &mut self.multicast,
            _ => &mut self.unicast,
        };
        kind.0 += 1;
        kind.1 += frame.len() as u64;
    }
}

/// Limit in bytes for frames that wait for the fabric. One work request may exceed it; further ones
/// wait.
const MAX_OUTGOING: usize = 4 << 20;
/// Memory of a frame besides its bytes.
const FRAME_COST: usize = 64;
/// Cost of continuing a send queue, in frames.
const BURST_STEPS: usize = 1 << 10;
/// Maximum number for TIS, TIR, RQT, tables, groups and counters.
const MAX_NUMBER: u32 = 0xf_ffff;

impl Ethernet {
    /// Allocates a number for a TIS, TIR, RQT or steering object. All share one range, so that a
    /// number of the wrong kind is detected.
    pub(crate) fn number(&mut self) -> Option<u32> {
        self.numbers.get_or_insert_with(|| Ids::new(1..=MAX_NUMBER)).take()
    }

    /// Frees such a number.
    pub(crate) fn free_number(&mut self, number: u32) {
        if let Some(numbers) = &mut self.numbers {
            numbers.give_back(number);
        }
    }

    /// Allocates a number for a send or receive queue, in a function with this many queue pairs.
    ///
    /// The engine's numbers consist of an index plus 16, and a generation in the bits above. The
    /// index is below the next power of two above the engine's queue pairs and the 16 reserved
    /// numbers. Indexes at and above its maximum are never used, in any generation.
    pub(crate) fn queue_number(&mut self, max_qp: u32) -> Option<u32> {
        let first = max_qp.min(1 << 22) + 16;
        let indices = (first + 1).next_power_of_two();
        self.queue_numbers.get_or_insert_with(|| Ids::new(first..=indices - 1)).take()
    }

    /// Frees a queue's number.
    pub(crate) fn free_queue_number(&mut self, number: u32) {
        if let Some(numbers) = &mut self.queue_numbers {
            numbers.give_back(number);
        }
    }

    /// Returns whether a queue uses this protection domain. A domain of 0 in a context means none:
    /// queues that never access memory have none.
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        let queues = self.sqs.values().map(|sq| &sq.queue).chain(self.rqs.values().map(|rq| &rq.queue));
        pd != 0 && queues.into_iter().any(|queue| queue.pd == pd)
    }

    /// Returns whether a receive queue uses this counter set.
    pub(crate) fn counts_in(&self, counter: u32) -> bool {
        self.rqs.values().any(|rq| rqc::COUNTER_SET_ID.get32(&rq.context) == counter)
    }

    /// Returns whether an object uses this transport domain.
    pub(crate) fn uses_domain(&self, domain: u32) -> bool {
        self.tises.values().any(|tis| tis.domain == domain)
            || self.tirs.values().any(|tir| tir.domain == domain)
    }

    /// Returns whether a TIR or a table refers to this receive queue.
    pub(crate) fn leads_to_rq(&self, rqn: u32) -> bool {
        self.tirs.values().any(|tir| tir.to == Receivers::Rq(rqn))
            || self.rqts.values().any(|rqt| rqt.rqs.contains(&rqn))
    }

    /// Returns whether a TIR refers to this table.
    pub(crate) fn leads_to_rqt(&self, rqtn: u32) -> bool {
        self.tirs.values().any(|tir| tir.to == Receivers::Rqt(rqtn))
    }

    fn send(&mut self, frame: Vec<u8>, domain: u32) {
        self.counters.sent.count(&frame);
        self.outgoing_bytes += frame.len() + FRAME_COST;
        self.outgoing.push_back(Outgoing { frame, domain });
    }

    /// Returns whether send queues must wait for frames to leave.
    fn is_full(&self) -> bool {
        self.outgoing_bytes.max(self.burst) >= MAX_OUTGOING
    }

    /// Removes a destroyed or failed send queue from the waiting ones.
    pub(crate) fn stop_waiting(&mut self, sqn: u32) {
        self.waiting.retain(|waiting| *waiting != sqn);
        if let Some(sq) = self.sqs.get_mut(&sqn) {
            sq.rung = None;
        }
    }

    /// Returns the receive queue of a TIR for a frame.
    fn receiver(&self, tirn: u32, frame: &[u8]) -> Option<u32> {
        match self.tirs.get(&tirn)?.to {
            Receivers::Rq(rqn) => Some(rqn),
            Receivers::Rqt(rqtn) => {
                let rqs = &self.rqts.get(&rqtn)?.rqs;
                // The device may choose any queue, as long as each flow keeps its queue. The hash
                // covers addresses and ports:
                let flow =
                    frame.get(frame::ETHERNET_HEADER + 12..frame::ETHERNET_HEADER + 24).unwrap_or_default();
                let hash = flow.iter().fold(0, |hash: usize, byte| hash ^ usize::from(*byte));
                rqs.get(hash % rqs.len().max(1)).copied()
            }
        }
    }
}

impl<B: Bus> Function<B> {
    /// Takes the next frame, or continues a waiting send queue. Returns the cost of this step in
    /// frames, and the frame if it leaves the port instead of looping back. `None` if nothing is
    /// left to send.
    pub(crate) fn step_frames(&mut self) -> Option<(usize, Option<Vec<u8>>)> {
        let eth = &mut self.core.eth;
        let Some(Outgoing { frame, domain }) = eth.outgoing.pop_front() else {
            let sqn = eth.take_waiting(self.core.now)?;
            self.resume_eth_sends(sqn);
            return Some((BURST_STEPS, None));
        };
        eth.outgoing_bytes = eth.outgoing_bytes.saturating_sub(frame.len() + FRAME_COST);
        let leaves = !self.core.port.loops_back(&frame);
        if !leaves {
            self.hear(&frame, Some(domain));
        }
        Some((1, (leaves || frame::is_group(&frame)).then_some(frame)))
    }

    /// Returns the next frame to leave the port.
    #[cfg(test)]
    pub(crate) fn next_frame(&mut self) -> Option<Vec<u8>> {
        std::iter::from_fn(|| self.step_frames()).find_map(|(_, frame)| frame)
    }

    /// Handles a frame from the wire.
    pub(crate) fn frame_in(&mut self, frame: &[u8]) {
        self.hear(frame, None);
    }

    /// Receives a frame from another function or from a transport domain of this one.
    fn hear(&mut self, frame: &[u8], from: Option<u32>) {
        let port = &self.core.port;
        if port.kind != PortKind::Roce || !port.up {
            return;
        }
        let eth = &mut self.core.eth;
        eth.counters.received.count(frame);
        let reached = if frame.len() + 4 > self.core.port.longest_frame() {
            Vec::new()
        } else {
            eth.steering.walk(frame)
        };
        if reached.is_empty() {
            eth.counters.unwanted += 1;
        }
        for to in reached {
            let eth = &mut self.core.eth;
            if let Some(domain) = from
                && eth.tirs.get(&to.tirn).is_some_and(|tir| !tir.hears(domain, frame))
            {
                continue;
            }
            match eth.receiver(to.tirn, frame) {
                Some(rqn) => self.receive_frame(rqn, to.tag, frame),
                None => eth.counters.unwanted += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests;
