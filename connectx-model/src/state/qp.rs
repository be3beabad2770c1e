//! [`Qp`]: a queue pair.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::sync::Arc;

use roce::engine::QpCap;
use roce::engine::Time;

use crate::bus::{Bus, BusFault};
use crate::pages::Pages;
use crate::state::work::{Arriving, FINISHED_LEN, Local, OWN_SENDS, OwnSend};

/// A queue pair, without the transport engine's part.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) service: Service,
    /// The context, as QUERY_QP returns it.
    pub(crate) context: [u8; 0xe8],
    /// The buffer: the receive queue, followed by the send queue.
    pub(crate) pages: Pages,
    /// Guest-physical address of the heads of both queues, the receive queue's first; `None` if the
    /// queue pair has neither queue.
    pub(crate) doorbell_record: Option<u64>,
    /// The UAR page for the queue pair's doorbells.
    pub(crate) uar: u32,
    /// The value the queue pair's completions report.
    pub(crate) user_index: u32,
    pub(crate) send_cqn: u32,
    pub(crate) recv_cqn: u32,
    /// The protection domain of the keys the queue pair uses.
    pub(crate) pd: u32,
    /// Whether the model allocated the domain for this queue pair alone, because the driver named
    /// none.
    pub(crate) own_pd: bool,
    pub(crate) sq: Option<SendShape>,
    pub(crate) rq: Receives,
    /// Number of payload bytes that completions may hold: for sends, for receives.
    pub(crate) scatter_to_cqe: (u32, u32),
    /// Whether work requests carry signatures.
    pub(crate) signature: bool,
    /// Whether the device executes rendezvous for matching messages with its own sends.
    pub(crate) offloads_rendezvous: bool,
    /// Connection options: at first the device's, then those the driver selected.
    pub(crate) ece: u32,
    /// Progress of the queue pair's queues; a new queue pair starts with the default.
    pub(crate) run: Run,
}

/// Progress of a queue pair's queues.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) send: SendRun,
    pub(crate) recv: RecvRun,
}

/// Progress of a send queue. Positions count basic blocks and have 16 bits.
#[derive(Debug, Default)]
pub(crate) struct SendRun {
    /// End of the last work request a doorbell has announced.
    pub(crate) rung: u16,
    /// Position of the next work request to fetch.
    pub(crate) fetched: u16,
    /// Position of the oldest work request that has not ended.
    pub(crate) done: u16,
    /// Work requests in the engine, oldest first.
    pub(crate) held: VecDeque<HeldSend>,
    /// Announced work requests that have not ended.
    pub(crate) posted: Posted,
    /// A work request to execute once the engine holds none.
    pub(crate) waiting: Option<Waiting>,
    /// The half of a BlueFlame register the last doorbell used.
    pub(crate) half: Option<u32>,
    /// Injected syndrome and vendor syndrome for the next error completion that is not a flush.
    pub(crate) forced: Option<(u8, u8)>,
    /// Whether the next work request needs a fence because it follows a UMR.
    pub(crate) after_umr: bool,
    /// Whether the ring was inconsistent. If so, nothing is fetched until a reset.
    pub(crate) broken: bool,
}

/// A work request in the engine.
#[derive(Debug)]
pub(crate) struct HeldSend {
    pub(crate) blocks: u16,
    /// Inline bytes before its elements.
    pub(crate) _inlined: Option<Arc<[u8]>>,
}

/// A work request the model executes itself.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// The number for the engine, see `qp::completion::wr_id`.
    pub(crate) wr_id: u64,
    pub(crate) blocks: u16,
    pub(crate) signaled: bool,
    pub(crate) local: Local,
}

/// Progress of a receive queue. Positions count receives and have 16 bits.
#[derive(Debug, Default)]
pub(crate) struct RecvRun {
    /// Position of the next receive to fetch.
    pub(crate) fetched: u16,
    /// Position of the oldest receive that has not ended.
    pub(crate) done: u16,
    /// Fetched receives that have not ended.
    pub(crate) posted: Posted,
    /// The shared receive queue the last receive came from, if requests name one.
    pub(crate) taken_from: Option<u32>,
    /// The kind of message in progress, if the shared receive queue matches tags.
    pub(crate) arriving: Option<Arriving>,
    /// Same as [`SendRun::forced`].
    pub(crate) forced: Option<(u8, u8)>,
    /// Same as [`SendRun::broken`].
    pub(crate) broken: bool,
    /// The first bytes of the buffer at RST2INIT.
    pub(crate) first: [u8; 16],
    /// Whether a peer has received "receiver not ready".
    pub(crate) not_ready: bool,
}

/// Queue pairs that need attention although no doorbell rings.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    /// Queue pairs whose send queues may be able to continue.
    pub(crate) runnable: BTreeSet<u32>,
    /// Queue pairs in the error state, whose new work requests are flushed.
    pub(crate) flushing: BTreeSet<u32>,
    /// Time of the next check of `flushing` and the interval since the last check.
    pub(crate) next_look: Option<Time>,
    pub(crate) pause: u64,
    /// The queue pair whose packet is being handled.
    pub(crate) receiver: Option<u32>,
    /// The device's own sends that have not been passed to the engine.
    pub(crate) own_sends: VecDeque<OwnSend>,
}

impl Attention {
    /// Removes a queue pair that is destroyed or reset.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.runnable.remove(&qpn);
        self.flushing.remove(&qpn);
    }
}

/// Maximum length of a work request in units of 16 bytes.
pub(crate) const MAX_DS: usize = 63;

impl Qp {
    /// Returns the capacity for the engine's queue pair: everything that fits in the rings.
    pub(crate) fn cap(&self) -> QpCap {
        let mut cap = QpCap::default();
        if let Some(shape) = &self.sq {
            cap.max_send_wr = 1 << shape.log_size;
            cap.max_send_sge = MAX_DS as u32;
            cap.max_inline_data = (MAX_DS * 16) as u32;
        }
        if self.offloads_rendezvous {
            cap.max_send_wr = OWN_SENDS;
            cap.max_send_sge = 1;
            cap.max_inline_data = FINISHED_LEN;
        }
        if let Receives::Own(shape) = &self.rq {
            cap.max_recv_wr = 1 << shape.log_size;
            cap.max_recv_sge = 1 << shape.log_stride.saturating_sub(4);
        }
        cap
    }

    /// Empties the rings and restarts them at 0, after a transition to RESET.
    pub(crate) fn restart(&mut self) {
        let half = self.run.send.half;
        self.run = Run::default();
        self.run.send.half = half;
    }
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection, sending side.
    XrcInitiator,
    /// Extended reliable connection, receiving side.
    XrcTarget,
    /// Subnet management: the datagrams of queue pair 0.
    Qp0,
    /// General services: the datagrams of queue pair 1.
    Qp1,
    /// Registers memory for the kernel; sends no packets.
    RegUmr,
}

impl Service {
    /// Returns whether the service has a fixed peer instead of an address per send.
    pub(crate) fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::XrcInitiator | Self::XrcTarget)
    }

    /// Returns whether the service is a side of an extended reliable connection.
    pub(crate) fn is_xrc(self) -> bool {
        matches!(self, Self::XrcInitiator | Self::XrcTarget)
    }
}

/// The position and size of a send queue in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendShape {
    /// Offset of the queue in the buffer.
    pub(crate) offset: u64,
    /// Number of basic blocks of 64 bytes, log2.
    pub(crate) log_size: u32,
}

/// The source of a queue pair's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    /// The queue pair's own receive queue.
    Own(ReceiveShape),
    /// A shared receive queue or a receive memory pool.
    Shared(u32),
    /// The XRC shared receive queue a request names.
    Named,
    /// Nowhere: the queue pair receives nothing.
    None,
}

/// The size of a receive queue, which is at the start of its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveShape {
    /// Number of receives, log2.
    pub(crate) log_size: u32,
    /// Size of a receive in bytes, log2.
    pub(crate) log_stride: u32,
    /// Whether each receive starts with a signature segment.
    pub(crate) signature: bool,
}

/// Size of a send queue's basic block in bytes.
pub(crate) const BASIC_BLOCK: u64 = 64;

impl SendShape {
    /// Returns the size of the queue in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        BASIC_BLOCK << self.log_size
    }

    /// Copies bytes from the queue, starting with the block at this position and wrapping at the
    /// end of the queue.
    pub(crate) fn read<B: Bus>(
        &self,
        pages: &Pages,
        bus: &B,
        at: u16,
        into: &mut [u8],
    ) -> Result<(), BusFault> {
        let begin = (u64::from(at) * BASIC_BLOCK) & (self.bytes() - 1);
        let left = usize::try_from(self.bytes() - begin).unwrap_or(usize::MAX).min(into.len());
        let (first, rest) = into.split_at_mut(left);
        pages.read(bus, self.offset + begin, first)?;
        pages.read(bus, self.offset, rest)
    }
}

impl ReceiveShape {
    /// Returns the size of the queue in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        1 << (self.log_size + self.log_stride)
    }
}

/// Copies of a queue's unfinished requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Posted(VecDeque<(u16, Vec<u8>)>);

impl Posted {
    /// Adds the request at a position after all others.
    pub(crate) fn push(&mut self, at: u16, bytes: Vec<u8>) {
        self.0.push_back((at, bytes));
    }

    /// Returns the request at a position.
    pub(crate) fn get(&self, at: u16) -> Option<&[u8]> {
        let first = self.0.front()?.0;
        let place = self.0.binary_search_by_key(&at.wrapping_sub(first), |(at, _)| at.wrapping_sub(first));
        self.0.get(place.ok()?).map(|(_, bytes)| &bytes[..])
    }

    /// Removes the oldest request if it begins before `end`.
    pub(crate) fn pop_before(&mut self, end: u16) -> Option<(u16, Vec<u8>)> {
        // A queue has at most 2^15 positions.
        let at = self.0.front()?.0;
        if (1..=1 << 15).contains(&end.wrapping_sub(at)) { self.0.pop_front() } else { None }
    }
}
