//! [`Qp`]: a queue pair.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::sync::Arc;

use roce::engine::QpCap;
use roce::engine::Time;

use crate::bus::{Bus, BusFault};
use crate::pages::Pages;
use crate::state::work::{Arriving, FINISHED_LEN, Local, OWN_SENDS, OwnSend};

/// The model's state for a queue pair, in addition to the transport engine's state.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) service: Service,
    /// The context, as QUERY_QP returns it.
    pub(crate) context: [u8; 0xe8],
    /// The buffer, which contains the receive queue and, after it, the send queue.
    pub(crate) pages: Pages,
    /// Guest-physical address of the doorbell record: the receive queue's head, then the send
    /// queue's. `None` if the queue pair has no queue.
    pub(crate) doorbell_record: Option<u64>,
    /// The number of the UAR page for the queue pair's doorbells.
    pub(crate) uar: u32,
    /// The user index that the queue pair's completions report.
    pub(crate) user_index: u32,
    pub(crate) send_cqn: u32,
    pub(crate) recv_cqn: u32,
    /// The protection domain of the memory keys that the queue pair uses.
    pub(crate) pd: u32,
    /// Whether the model has allocated the domain for this queue pair only, because the driver
    /// named no domain.
    pub(crate) own_pd: bool,
    pub(crate) sq: Option<SendShape>,
    pub(crate) rq: Receives,
    /// Maximum number of payload bytes in a completion: for sends, for receives.
    pub(crate) scatter_to_cqe: (u32, u32),
    /// Whether work requests and receives carry checksums (`wq_signature`).
    pub(crate) signature: bool,
    /// Whether the device itself executes the rendezvous of matching messages, with its own sends.
    pub(crate) offloads_rendezvous: bool,
    /// Connection (ECE) options: at first those of the device, then those that the driver has
    /// selected.
    pub(crate) ece: u32,
    /// The progress of both queues; default for a new queue pair.
    pub(crate) run: Run,
}

/// The progress of a queue pair's send and receive queues.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) send: SendRun,
    pub(crate) recv: RecvRun,
}

/// The progress of a send queue. Positions are 16-bit counters of basic blocks.
#[derive(Debug, Default)]
pub(crate) struct SendRun {
    /// Position after the last work request that a doorbell has announced.
    pub(crate) rung: u16,
    /// Position of the next work request to fetch.
    pub(crate) fetched: u16,
    /// Position of the oldest work request that has not ended.
    pub(crate) done: u16,
    /// The work requests in the engine, oldest first.
    pub(crate) held: VecDeque<HeldSend>,
    /// Copies of the announced work requests that have not ended.
    pub(crate) posted: Posted,
    /// The work request that the model executes once the engine has none left.
    pub(crate) waiting: Option<Waiting>,
    /// The half of a BlueFlame register that the last doorbell used.
    pub(crate) half: Option<u32>,
    /// The injected syndrome and vendor syndrome for the next error completion that is not a flush.
    pub(crate) forced: Option<(u8, u8)>,
    /// Whether the next work request needs a fence, because it follows a UMR.
    pub(crate) after_umr: bool,
    /// Whether the ring has become inconsistent. If so, nothing is fetched until a reset.
    pub(crate) broken: bool,
}

/// A work request that the engine is executing.
#[derive(Debug)]
pub(crate) struct HeldSend {
    pub(crate) blocks: u16,
    /// The inline bytes in front of the work request's elements. They must live as long as the
    /// request.
    pub(crate) _inlined: Option<Arc<[u8]>>,
}

/// A work request that the model executes itself.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// The `wr_id` for the engine; see `qp::completion::wr_id`.
    pub(crate) wr_id: u64,
    pub(crate) blocks: u16,
    pub(crate) signaled: bool,
    pub(crate) local: Local,
}

/// The progress of a receive queue. Positions are 16-bit counters of receives.
#[derive(Debug, Default)]
pub(crate) struct RecvRun {
    /// Position of the next receive to fetch.
    pub(crate) fetched: u16,
    /// Position of the oldest receive that has not ended.
    pub(crate) done: u16,
    /// Copies of the fetched receives that have not ended.
    pub(crate) posted: Posted,
    /// The shared receive queue that the last receive came from, if each message names one (XRC).
    pub(crate) taken_from: Option<u32>,
    /// The kind of message in progress, if the shared receive queue has a matching list.
    pub(crate) arriving: Option<Arriving>,
    /// Same as [`SendRun::forced`].
    pub(crate) forced: Option<(u8, u8)>,
    /// Same as [`SendRun::broken`].
    pub(crate) broken: bool,
    /// The first bytes of the receive queue at RST2INIT_QP.
    pub(crate) first: [u8; 16],
    /// Whether a peer has been told "receiver not ready".
    pub(crate) not_ready: bool,
}

/// The queue pairs that need work without a doorbell.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    /// The queue pairs whose send queues may be able to continue.
    pub(crate) runnable: BTreeSet<u32>,
    /// The queue pairs in the error state, whose new receives must be flushed.
    pub(crate) flushing: BTreeSet<u32>,
    /// Time of the next check of `flushing`. `pause` is the interval between checks.
    pub(crate) next_look: Option<Time>,
    pub(crate) pause: u64,
    /// The number of the queue pair that the current packet addresses.
    pub(crate) receiver: Option<u32>,
    /// The device's own sends that are not in the engine yet.
    pub(crate) own_sends: VecDeque<OwnSend>,
}

impl Attention {
    /// Forgets a queue pair that is being destroyed or reset.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.runnable.remove(&qpn);
        self.flushing.remove(&qpn);
    }
}

/// Maximum length of a work request, in units of 16 bytes.
pub(crate) const MAX_DS: usize = 63;

impl Qp {
    /// Returns the capacity for the engine's queue pair: as much as fits in the rings.
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

    /// Clears the progress of both queues after a transition to RESET. Positions restart at 0.
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
    /// Subnet management: datagrams of queue pair 0.
    Qp0,
    /// General services: datagrams of queue pair 1.
    Qp1,
    /// The kernel's queue pair for memory registration. It sends no packets.
    RegUmr,
}

impl Service {
    /// Returns whether the service has a fixed peer, rather than one address per send.
    pub(crate) fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::XrcInitiator | Self::XrcTarget)
    }

    /// Returns whether the service is either side of an extended reliable connection.
    pub(crate) fn is_xrc(self) -> bool {
        matches!(self, Self::XrcInitiator | Self::XrcTarget)
    }
}

/// The offset and size of a send queue in the queue pair's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendShape {
    /// Offset of the send queue in the buffer, in bytes.
    pub(crate) offset: u64,
    /// Number of basic blocks of 64 bytes, log2.
    pub(crate) log_size: u32,
}

/// The source of a queue pair's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    /// The queue pair's own receive queue.
    Own(ReceiveShape),
    /// The number of a shared receive queue or of a receive memory pool.
    Shared(u32),
    /// The XRC shared receive queue that each message names.
    Named,
    /// None: the queue pair receives no messages.
    None,
}

/// The size of a receive queue, which starts at the beginning of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveShape {
    /// Number of receives, log2.
    pub(crate) log_size: u32,
    /// Size of a receive, in bytes, log2.
    pub(crate) log_stride: u32,
    /// Whether each receive starts with a checksum segment.
    pub(crate) signature: bool,
}

/// Size of a basic block in a send queue, in bytes.
pub(crate) const BASIC_BLOCK: u64 = 64;

impl SendShape {
    /// Returns the size of the send queue, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        BASIC_BLOCK << self.log_size
    }

    /// Copies bytes from the queue to `into`, starting at the block at position `at` and wrapping
    /// at the end of the queue.
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
    /// Returns the size of the receive queue, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        1 << (self.log_size + self.log_stride)
    }
}

/// Copies of a queue's unfinished requests with their positions, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Posted(VecDeque<(u16, Vec<u8>)>);

impl Posted {
    /// Adds the request at position `at`, which must follow all others.
    pub(crate) fn push(&mut self, at: u16, bytes: Vec<u8>) {
        self.0.push_back((at, bytes));
    }

    /// Returns the request at position `at`, if there is one.
    pub(crate) fn get(&self, at: u16) -> Option<&[u8]> {
        let first = self.0.front()?.0;
        let place = self.0.binary_search_by_key(&at.wrapping_sub(first), |(at, _)| at.wrapping_sub(first));
        self.0.get(place.ok()?).map(|(_, bytes)| &bytes[..])
    }

    /// Removes and returns the oldest request if it starts before position `end`.
    pub(crate) fn pop_before(&mut self, end: u16) -> Option<(u16, Vec<u8>)> {
        // Comparing positions is safe, because a queue has at most 2^15 of them.
        let at = self.0.front()?.0;
        if (1..=1 << 15).contains(&end.wrapping_sub(at)) { self.0.pop_front() } else { None }
    }
}
