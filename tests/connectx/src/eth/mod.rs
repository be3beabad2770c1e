//! [`Ethernet`]: what a RoCE port has beside queue pairs.
//!
//! | module | what it is |
//! |---|---|
//! | `queue` | the ring of a send or receive queue |
//! | `sq` | send queues: work requests become frames |
//! | `rq` | receive queues: frames become completions |
//! | `steering` | flow tables: which receive queue a frame goes to |
//! | `frame` | headers, checksums, segments |
//!
//! ```text
//!   SQ ──► step_frames ──► the other function's frame_in ──► steering ──► TIR ──► RQ
//!              └───────── local loopback ──────────────────────┘           └──► RQT ──► RQ
//! ```
//! A send queue also exists on an InfiniBand port, where drivers try write combining with one; nothing there leads to the wire.
//!
//! # Local loopback
//! What a function sends to a group comes back to it as well, and what it sends to an address of its own comes back instead of
//! leaving, unless the port's context disables that for the kind of address. A TIR of the transport domain that a frame came from
//! does not hear it, though: so a driver that shares one domain among its queues never hears itself, and processes with domains of
//! their own hear each other. Bits of the TIR, one for each kind of address, let it hear its own domain. They are called
//! `self_lb_block`, but Linux sets them where it wants frames back (the loopback test of `en_selftest.c`, `ipoib.c`, queue pairs
//! with `TIR_ALLOW_SELF_LB`), and leaves them clear where it does not.
//!
//! Invariant: numbers of send and receive queues are none that the transport engine gives to a queue pair: a doorbell's number
//! tells which of them it rings.

pub(crate) mod frame;
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

use self::rq::Rq;
use self::sq::Sq;
use self::steering::Steering;

/// Ethernet queues and what steers frames to them.
#[derive(Debug, Default)]
pub(crate) struct Ethernet {
    pub(crate) sqs: BTreeMap<u32, Sq>,
    pub(crate) rqs: BTreeMap<u32, Rq>,
    pub(crate) tises: BTreeMap<u32, Tis>,
    pub(crate) tirs: BTreeMap<u32, Tir>,
    pub(crate) rqts: BTreeMap<u32, Rqt>,
    pub(crate) steering: Steering,
    pub(crate) counters: Counters,
    /// Numbers of send and receive queues; `None` until there is one.
    queue_numbers: Option<Ids>,
    numbers: Option<Ids>,
    outgoing: VecDeque<Outgoing>,
    /// What the frames in `outgoing` take.
    outgoing_bytes: usize,
    /// What frames were made since a send queue was rung, or went on.
    burst: usize,
    /// Send queues that have more to send than there was room for; each has it in its `rung`.
    waiting: VecDeque<u32>,
}

/// A frame that is to leave, and the transport domain that it comes from.
#[derive(Debug)]
struct Outgoing {
    frame: Vec<u8>,
    domain: u32,
}

/// The sending end of a transport domain.
#[derive(Debug)]
pub(crate) struct Tis {
    pub(crate) context: [u8; 0xa0],
    pub(crate) domain: u32,
    /// How many send queues use it.
    pub(crate) users: u32,
}

/// The receiving end: where frames go that steering sends here.
#[derive(Debug)]
pub(crate) struct Tir {
    pub(crate) context: [u8; 0xf0],
    pub(crate) domain: u32,
    pub(crate) to: Receivers,
}

impl Tir {
    /// Does it hear such a frame of a transport domain of this function?
    fn hears(&self, domain: u32, frame: &[u8]) -> bool {
        let bit = if frame::is_group(frame) { HEARS_GROUPS } else { HEARS_UNICAST };
        self.domain != domain || tirc::SELF_LB_BLOCK.get32(&self.context) & bit != 0
    }
}

/// Bits of a TIR: it hears what its own transport domain sends.
const HEARS_UNICAST: u32 = 1;
const HEARS_GROUPS: u32 = 2;

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receivers {
    /// One receive queue.
    Rq(u32),
    /// One out of a table, by a hash of the frame's flow.
    Rqt(u32),
}

/// A table of receive queues.
#[derive(Debug)]
pub(crate) struct Rqt {
    pub(crate) max_size: u32,
    pub(crate) rqs: Vec<u32>,
}

/// What went in and out, and what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) received: Traffic,
    pub(crate) sent: Traffic,
    /// Frames that no entry wanted, that take too long to steer, or that are longer than the port takes.
    pub(crate) unwanted: u64,
    /// Frames for queues that were not ready, or had no receives.
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

/// What is made of frames at a time, and waits for the fabric; but for what one work request adds, send queues wait for the rest.
const MAX_OUTGOING: usize = 4 << 20;
/// What a frame takes beside its bytes.
const FRAME_COST: usize = 64;
/// What it is worth, in frames, that a send queue goes on.
const BURST_STEPS: usize = 1 << 10;
/// Of TIS, TIR, RQT, tables, groups and counters together.
const MAX_NUMBER: u32 = 0xf_ffff;

impl Ethernet {
    /// A number for a TIS, TIR, RQT or a part of steering; they are never the same, so that a mixed-up one is seen.
    pub(crate) fn number(&mut self) -> Option<u32> {
        self.numbers.get_or_insert_with(|| Ids::new(1..=MAX_NUMBER)).take()
    }

    /// That number is free again.
    pub(crate) fn free_number(&mut self, number: u32) {
        if let Some(numbers) = &mut self.numbers {
            numbers.give_back(number);
        }
    }

    /// A number for a send or receive queue, of a function with so many queue pairs.
    ///
    /// The engine's numbers are an index below the next power of two above its queue pairs and the 16 reserved numbers, plus 16, and
    /// a generation in the bits above; indices at and above its maximum never come, whatever the generation.
    pub(crate) fn queue_number(&mut self, max_qp: u32) -> Option<u32> {
        let first = max_qp.min(1 << 22) + 16;
        let indices = (first + 1).next_power_of_two();
        self.queue_numbers.get_or_insert_with(|| Ids::new(first..=indices - 1)).take()
    }

    /// A queue's number is free again.
    pub(crate) fn free_queue_number(&mut self, number: u32) {
        if let Some(numbers) = &mut self.queue_numbers {
            numbers.give_back(number);
        }
    }

    /// Does a queue belong to this protection domain? That 0 stands in a context says nothing: queues that never touch memory have none.
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        let queues = self.sqs.values().map(|sq| &sq.queue).chain(self.rqs.values().map(|rq| &rq.queue));
        pd != 0 && queues.into_iter().any(|queue| queue.pd == pd)
    }

    /// Does a receive queue count in this counter set?
    pub(crate) fn counts_in(&self, counter: u32) -> bool {
        self.rqs.values().any(|rq| rqc::COUNTER_SET_ID.get32(&rq.context) == counter)
    }

    /// Does something belong to this transport domain?
    pub(crate) fn uses_domain(&self, domain: u32) -> bool {
        self.tises.values().any(|tis| tis.domain == domain)
            || self.tirs.values().any(|tir| tir.domain == domain)
    }

    /// Does a TIR or a table lead to this receive queue?
    pub(crate) fn leads_to_rq(&self, rqn: u32) -> bool {
        self.tirs.values().any(|tir| tir.to == Receivers::Rq(rqn))
            || self.rqts.values().any(|rqt| rqt.rqs.contains(&rqn))
    }

    /// Does a TIR lead to this table?
    pub(crate) fn leads_to_rqt(&self, rqtn: u32) -> bool {
        self.tirs.values().any(|tir| tir.to == Receivers::Rqt(rqtn))
    }

    fn send(&mut self, frame: Vec<u8>, domain: u32) {
        self.counters.sent.count(&frame);
        self.outgoing_bytes += frame.len() + FRAME_COST;
        self.outgoing.push_back(Outgoing { frame, domain });
    }

    /// Is there so much to send that send queues are to wait?
    fn is_full(&self) -> bool {
        self.outgoing_bytes.max(self.burst) >= MAX_OUTGOING
    }

    /// A send queue is gone, or no longer sends what it was rung for.
    pub(crate) fn stop_waiting(&mut self, sqn: u32) {
        self.waiting.retain(|waiting| *waiting != sqn);
        if let Some(sq) = self.sqs.get_mut(&sqn) {
            sq.rung = None;
        }
    }

    /// The receive queue of a TIR for a frame.
    fn receiver(&self, tirn: u32, frame: &[u8]) -> Option<u32> {
        match self.tirs.get(&tirn)?.to {
            Receivers::Rq(rqn) => Some(rqn),
            Receivers::Rqt(rqtn) => {
                let rqs = &self.rqts.get(&rqtn)?.rqs;
                // Which of them is the device's to choose, as long as a flow keeps its queue. Addresses and ports:
                let flow =
                    frame.get(frame::ETHERNET_HEADER + 12..frame::ETHERNET_HEADER + 24).unwrap_or_default();
                let hash = flow.iter().fold(0, |hash: usize, byte| hash ^ usize::from(*byte));
                rqs.get(hash % rqs.len().max(1)).copied()
            }
        }
    }
}

impl<B: Bus> Function<B> {
    /// Takes the next frame, or lets a send queue go on that waits. How much work that was, as so many frames, and the frame if it
    /// leaves the port: there is none where the port hears what it sends instead. `None`: nothing is to be sent.
    pub(crate) fn step_frames(&mut self) -> Option<(usize, Option<Vec<u8>>)> {
        let eth = &mut self.core.eth;
        let Some(Outgoing { frame, domain }) = eth.outgoing.pop_front() else {
            let sqn = eth.waiting.pop_front()?;
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

    /// The next frame that leaves the port.
    #[cfg(test)]
    pub(crate) fn next_frame(&mut self) -> Option<Vec<u8>> {
        std::iter::from_fn(|| self.step_frames()).find_map(|(_, frame)| frame)
    }

    /// A frame has come to the port.
    pub(crate) fn frame_in(&mut self, frame: &[u8]) {
        self.hear(frame, None);
    }

    /// Takes in a frame of somebody else, or of a transport domain of this function.
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
