//! [`Ethernet`]: the Ethernet queues and transport interfaces of a port.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use crate::frame;
use crate::ids::Ids;
use crate::layout::eth::{rqc, tirc};
use crate::state::pacing::{Pace, Rates};
use crate::state::steering::Steering;
use crate::state::work_queue::WorkQueue;

/// The Ethernet queues and flow steering of a port.
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
    /// Allocates the numbers of send and receive queues; `None` until the first queue is created.
    queue_numbers: Option<Ids>,
    numbers: Option<Ids>,
    pub(crate) outgoing: VecDeque<Outgoing>,
    /// Memory that the frames in `outgoing` use, in bytes.
    pub(crate) outgoing_bytes: usize,
    /// Number of bytes gathered and built into frames since the last doorbell, or since a waiting
    /// send queue last continued. Includes [`FRAME_COST`] per frame.
    pub(crate) burst: usize,
    /// The send queues that wait for space or for their rate, by number. Each queue stores the rest
    /// of its doorbell in `rung`.
    pub(crate) waiting: VecDeque<u32>,
}

/// An outgoing frame and the number of the transport domain that sent it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) frame: Vec<u8>,
    pub(crate) domain: u32,
}

/// A transport interface send (TIS): the sending side of a transport domain.
#[derive(Debug)]
pub(crate) struct Tis {
    pub(crate) context: [u8; 0xa0],
    pub(crate) domain: u32,
    /// Number of send queues that use this TIS.
    pub(crate) users: u32,
}

/// A transport interface receive (TIR): a destination of flow steering.
#[derive(Debug)]
pub(crate) struct Tir {
    pub(crate) context: [u8; 0xf0],
    pub(crate) domain: u32,
    pub(crate) to: Receivers,
}

impl Tir {
    /// Returns whether this TIR receives a looped-back frame that its own function has sent in
    /// transport domain `domain`.
    pub(crate) fn accepts(&self, domain: u32, frame: &[u8]) -> bool {
        let bit = if frame::is_group(frame) { LOOPBACK_GROUPS } else { LOOPBACK_UNICAST };
        self.domain != domain || tirc::SELF_LB_BLOCK.get32(&self.context) & bit != 0
    }
}

/// Bits in a TIR's context that let it receive frames from its own transport domain: unicast,
/// multicast.
pub(crate) const LOOPBACK_UNICAST: u32 = 1;

pub(crate) const LOOPBACK_GROUPS: u32 = 2;

/// The destination of a TIR: a receive queue or a table of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receivers {
    /// The number of a receive queue.
    Rq(u32),
    /// The number of a table of receive queues. A hash of the frame's flow selects the queue.
    Rqt(u32),
}

/// A receive queue table (RQT).
#[derive(Debug)]
pub(crate) struct Rqt {
    pub(crate) max_size: u32,
    pub(crate) rqs: Vec<u32>,
}

/// The counters of received, sent and dropped frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) received: Traffic,
    pub(crate) sent: Traffic,
    /// Number of dropped frames that no entry matched, that took too many steps through the tables,
    /// or that exceeded the port's maximum length.
    pub(crate) unwanted: u64,
    /// Number of frames dropped because their queue was not ready or had no receives.
    pub(crate) out_of_buffer: u64,
}

/// Frame and byte counts, by kind of destination address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) unicast: (u64, u64),
    pub(crate) multicast: (u64, u64),
    pub(crate) broadcast: (u64, u64),
}

impl Traffic {
    pub(crate) fn count(&mut self, frame: &[u8]) {
        let kind = match frame {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => &mut self.broadcast,
            [first, ..] if first & 1 != 0 => &mut self.multicast,
            _ => &mut self.unicast,
        };
        kind.0 += 1;
        kind.1 += frame.len() as u64;
    }
}

/// Maximum memory of the frames that wait for the fabric, in bytes. One work request may exceed the
/// limit; further work requests then wait.
pub(crate) const MAX_OUTGOING: usize = 4 << 20;

/// Memory that a frame uses besides its own bytes, in bytes.
pub(crate) const FRAME_COST: usize = 64;

/// Highest number for a TIS, TIR, RQT, flow table, flow group or flow counter.
pub(crate) const MAX_NUMBER: u32 = 0xf_ffff;

impl Ethernet {
    /// Allocates a number for a TIS, TIR, RQT or steering object. All kinds share one range, so
    /// that the use of a number for the wrong kind is detected.
    pub(crate) fn number(&mut self) -> Option<u32> {
        self.numbers.get_or_insert_with(|| Ids::new(1..=MAX_NUMBER)).take()
    }

    /// Frees a number allocated by [`number`](Self::number).
    pub(crate) fn free_number(&mut self, number: u32) {
        if let Some(numbers) = &mut self.numbers {
            numbers.give_back(number);
        }
    }

    /// Allocates a number for a send or receive queue, in a function with at most `max_qp` queue
    /// pairs.
    ///
    /// The engine's queue pair numbers consist of an index plus 16, and of a generation in the bits
    /// above. The range of the index bits is the number of the engine's queue pairs and of the 16
    /// reserved numbers, rounded up to a power of two. In no generation does the engine use the
    /// numbers beyond its maximum, so these serve for send and receive queues.
    pub(crate) fn queue_number(&mut self, max_qp: u32) -> Option<u32> {
        let first = max_qp.min(1 << 22) + 16;
        let indices = (first + 1).next_power_of_two();
        self.queue_numbers.get_or_insert_with(|| Ids::new(first..=indices - 1)).take()
    }

    /// Frees the number of a send or receive queue.
    pub(crate) fn free_queue_number(&mut self, number: u32) {
        if let Some(numbers) = &mut self.queue_numbers {
            numbers.give_back(number);
        }
    }

    /// Returns whether a queue uses the protection domain `pd`. A domain of 0 in a context means
    /// that the queue has none; such a queue never accesses memory.
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        let queues = self.sqs.values().map(|sq| &sq.queue).chain(self.rqs.values().map(|rq| &rq.queue));
        pd != 0 && queues.into_iter().any(|queue| queue.pd == pd)
    }

    /// Returns whether a receive queue uses the counter set `counter`.
    pub(crate) fn counts_in(&self, counter: u32) -> bool {
        self.rqs.values().any(|rq| rqc::COUNTER_SET_ID.get32(&rq.context) == counter)
    }

    /// Returns whether a TIS or TIR uses the transport domain `domain`.
    pub(crate) fn uses_domain(&self, domain: u32) -> bool {
        self.tises.values().any(|tis| tis.domain == domain)
            || self.tirs.values().any(|tir| tir.domain == domain)
    }

    /// Returns whether a TIR or an RQT refers to the receive queue `rqn`.
    pub(crate) fn leads_to_rq(&self, rqn: u32) -> bool {
        self.tirs.values().any(|tir| tir.to == Receivers::Rq(rqn))
            || self.rqts.values().any(|rqt| rqt.rqs.contains(&rqn))
    }

    /// Returns whether a TIR refers to the RQT `rqtn`.
    pub(crate) fn leads_to_rqt(&self, rqtn: u32) -> bool {
        self.tirs.values().any(|tir| tir.to == Receivers::Rqt(rqtn))
    }

    pub(crate) fn send(&mut self, frame: Vec<u8>, domain: u32) {
        self.counters.sent.count(&frame);
        self.outgoing_bytes += frame.len() + FRAME_COST;
        self.outgoing.push_back(Outgoing { frame, domain });
    }

    /// Returns whether send queues must wait until some outgoing frames have left.
    pub(crate) fn is_full(&self) -> bool {
        self.outgoing_bytes.max(self.burst) >= MAX_OUTGOING
    }

    /// Removes a destroyed or failed send queue from the queues that wait.
    pub(crate) fn stop_waiting(&mut self, sqn: u32) {
        self.waiting.retain(|waiting| *waiting != sqn);
        if let Some(sq) = self.sqs.get_mut(&sqn) {
            sq.rung = None;
        }
    }

    /// Returns the number of the receive queue that a TIR selects for a frame.
    pub(crate) fn receiver(&self, tirn: u32, frame: &[u8]) -> Option<u32> {
        match self.tirs.get(&tirn)?.to {
            Receivers::Rq(rqn) => Some(rqn),
            Receivers::Rqt(rqtn) => {
                let rqs = &self.rqts.get(&rqtn)?.rqs;
                // The device may choose any queue, provided that all frames of a flow go to the
                // same queue. The hash covers addresses and ports:
                let flow =
                    frame.get(frame::ETHERNET_HEADER + 12..frame::ETHERNET_HEADER + 24).unwrap_or_default();
                let hash = flow.iter().fold(0, |hash: usize, byte| hash ^ usize::from(*byte));
                rqs.get(hash % rqs.len().max(1)).copied()
            }
        }
    }
}

/// A receive queue.
#[derive(Debug)]
pub(crate) struct Rq {
    pub(crate) context: [u8; 0xf0],
    pub(crate) queue: WorkQueue,
    pub(crate) cqn: u32,
    pub(crate) state: QueueState,
    pub(crate) user_index: u32,
    /// Whether VLAN tags stay in received frames.
    pub(crate) keep_vlan: bool,
    pub(crate) flush_in_error: bool,
    /// Number of receives used since the queue was created or reset, modulo 2^16.
    pub(crate) consumed: u16,
}

/// The state of an Ethernet send or receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum QueueState {
    Reset = 0,
    Ready = 1,
    Error = 3,
}

impl QueueState {
    /// Returns the state with this number in a context; `None` if there is none.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        [Self::Reset, Self::Ready, Self::Error].into_iter().find(|state| *state as u64 == number)
    }

    /// Returns whether the transition to `next` is allowed.
    pub(crate) fn may_become(self, next: Self) -> bool {
        (self, next) != (Self::Error, Self::Ready)
    }
}

/// A send queue.
#[derive(Debug)]
pub(crate) struct Sq {
    pub(crate) context: [u8; 0xf0],
    pub(crate) queue: WorkQueue,
    pub(crate) cqn: u32,
    /// The number of the TIS; `None` if the queue never sends.
    pub(crate) tisn: Option<u32>,
    pub(crate) state: QueueState,
    pub(crate) user_index: u32,
    pub(crate) flush_in_error: bool,
    /// Position of the next work request, counted in basic blocks, modulo 2^16.
    pub(crate) taken: u16,
    /// The doorbell whose work requests have not all been taken yet.
    pub(crate) rung: Option<Rung>,
    pub(crate) pace: Pace,
}

/// A doorbell whose remaining work requests wait for space or for the queue's rate.
#[derive(Debug)]
pub(crate) struct Rung {
    pub(crate) head: u16,
    pub(crate) doorbell: [u8; 8],
    pub(crate) blue_flame: Option<Vec<u8>>,
}

impl Sq {
    /// Returns the position after the last work request that a doorbell has announced.
    pub(crate) fn head(&self) -> u16 {
        self.rung.as_ref().map_or(self.taken, |rung| rung.head)
    }
}

impl Ethernet {
    /// Adds a send queue to the queues that wait for space or for their rate.
    pub(crate) fn wait(&mut self, sqn: u32, rung: Rung) {
        if let Some(sq) = self.sqs.get_mut(&sqn) {
            sq.rung = Some(rung);
            if !self.waiting.contains(&sqn) {
                self.waiting.push_back(sqn);
            }
        }
    }
}
