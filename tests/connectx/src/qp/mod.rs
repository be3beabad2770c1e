//! [`Qp`]: queue pairs.
//!
//! ```text
//!            buffer:  receive queue │ send queue          (`rq.bytes()` is where the send queue begins)
//!   doorbell record:  receive head  │ send head
//! ```
//!
//! The state, sequence numbers and attributes that matter to the transport are the engine's; the context here holds them as the
//! driver gave them, and QUERY_QP puts the engine's present ones in.
//!
//! | module | what it is |
//! |---|---|
//! | `sq` | work requests fetched from send queues, in order |
//! | `wqe` | what their segments mean |
//! | `udav` | address vectors of datagrams |
//! | `umr` | memory keys and windows changed by work requests |
//! | `rq` | receives fetched, from a queue pair's own queue and from shared ones |
//! | `completion` | what the transport engine tells, as completions and events |
//!
//! The engine carries out what a work request says; these read what the guest's memory says. What the engine does not have
//! (NOP, the UMR of a memory key) and what is broken waits in [`SendRun::waiting`] until everything before it has ended.

pub(crate) mod completion;
pub(crate) mod rq;
pub(crate) mod sq;
pub(crate) mod udav;
pub(crate) mod umr;
pub(crate) mod wqe;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeSet, VecDeque};

use roce::engine::{QpCap, Time};

use crate::function::pages::Pages;

/// A queue pair, beside what the transport engine keeps of it.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) service: Service,
    /// The context, kept as the device would answer QUERY_QP.
    pub(crate) context: [u8; 0xe8],
    /// Receive queue first, send queue behind it.
    pub(crate) pages: Pages,
    /// Where the heads of both queues are, guest-physical: receive first. None where it has no queue of its own.
    pub(crate) doorbell_record: Option<u64>,
    /// The UAR page that its doorbells go to.
    pub(crate) uar: u32,
    /// What its completions carry.
    pub(crate) user_index: u32,
    pub(crate) send_cqn: u32,
    pub(crate) recv_cqn: u32,
    /// The protection domain that its keys are looked up in.
    pub(crate) pd: u32,
    /// The domain was made for it alone: the driver named none.
    pub(crate) own_pd: bool,
    pub(crate) sq: Option<SendShape>,
    pub(crate) rq: Receives,
    /// Bytes that come in completions of sends, of receives.
    pub(crate) scatter_to_cqe: (u32, u32),
    /// Its work requests carry signatures.
    pub(crate) signature: bool,
    /// How far its queues were carried out; new ones begin with the default.
    pub(crate) run: Run,
}

/// How far the queues of a queue pair were carried out.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) send: SendRun,
    pub(crate) recv: RecvRun,
}

/// How far a send queue was carried out. Positions count basic blocks, 16 bits.
#[derive(Debug, Default)]
pub(crate) struct SendRun {
    /// Behind the last work request that a doorbell told of.
    pub(crate) rung: u16,
    /// The next work request that is fetched.
    pub(crate) fetched: u16,
    /// The oldest that has not ended.
    pub(crate) done: u16,
    /// How many blocks those have that the engine holds, the oldest first.
    pub(crate) held: VecDeque<u16>,
    /// What is carried out when the engine holds none.
    pub(crate) waiting: Option<Waiting>,
    /// The half of a BlueFlame register that the last doorbell went to.
    pub(crate) half: Option<u32>,
    /// Syndrome and vendor syndrome of the next completion with an error that is no flush, instead of the engine's.
    pub(crate) forced: Option<(u8, u8)>,
    /// The ring made no sense: no more is taken from it until it is reset.
    pub(crate) broken: bool,
}

/// A work request of the model's own.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Its number for the engine, see [`sq::wr_id`].
    pub(crate) wr_id: u64,
    pub(crate) blocks: u16,
    pub(crate) signaled: bool,
    pub(crate) local: wqe::Local,
}

/// How far a receive queue was carried out. Positions count receives, 16 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecvRun {
    /// The next receive that is fetched.
    pub(crate) fetched: u16,
    /// The oldest that has not ended.
    pub(crate) done: u16,
    /// The shared receive queue that the last receive came from, where requests name it.
    pub(crate) taken_from: Option<u32>,
    /// As of sends.
    pub(crate) forced: Option<(u8, u8)>,
    /// The ring made no sense: no more is taken from it until it is reset.
    pub(crate) broken: bool,
}

/// What is to be looked at although nobody rings.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    /// Queue pairs whose send queue may go on.
    pub(crate) runnable: BTreeSet<u32>,
    /// Queue pairs in error: what is posted to them is flushed.
    pub(crate) flushing: BTreeSet<u32>,
    /// When those are looked at next, and how much later than the time before.
    pub(crate) next_look: Option<Time>,
    pub(crate) pause: u64,
    /// Whose packet is handled.
    pub(crate) receiver: Option<u32>,
}

impl Attention {
    /// A queue pair is gone, or begins anew.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.runnable.remove(&qpn);
        self.flushing.remove(&qpn);
    }
}

/// The most units of 16 bytes that a work request has.
pub(crate) const MAX_DS: usize = 63;

impl Qp {
    /// How much the engine's queue pair holds: whatever fits the rings.
    pub(crate) fn cap(&self) -> QpCap {
        let mut cap = QpCap::default();
        if let Some(shape) = &self.sq {
            cap.max_send_wr = 1 << shape.log_size;
            cap.max_send_sge = MAX_DS as u32;
            cap.max_inline_data = (MAX_DS * 16) as u32;
        }
        if let Receives::Own(shape) = &self.rq {
            cap.max_recv_wr = 1 << shape.log_size;
            cap.max_recv_sge = 1 << shape.log_stride.saturating_sub(4);
        }
        cap
    }

    /// Back to RESET, or made anew: the rings are empty, and begin at 0.
    pub(crate) fn restart(&mut self) {
        let half = self.run.send.half;
        self.run = Run::default();
        self.run.send.half = half;
    }
}

/// What a queue pair transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection, the side that sends.
    XrcInitiator,
    /// Extended reliable connection, the side that receives.
    XrcTarget,
    /// Subnet management: datagrams of queue pair 0.
    Qp0,
    /// General services: datagrams of queue pair 1.
    Qp1,
    /// Registers memory for the kernel; nothing leaves it.
    RegUmr,
}

impl Service {
    /// Has it a peer, rather than an address with each send?
    pub(crate) fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::XrcInitiator | Self::XrcTarget)
    }

    /// Is it one of the two of an extended reliable connection?
    pub(crate) fn is_xrc(self) -> bool {
        matches!(self, Self::XrcInitiator | Self::XrcTarget)
    }
}

/// A send queue in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendShape {
    /// Where it begins in the buffer.
    pub(crate) offset: u64,
    /// How many basic blocks of 64 bytes it has, log 2.
    pub(crate) log_size: u32,
}

/// Where a queue pair's receives are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    /// In a queue of its own.
    Own(ReceiveShape),
    /// In a shared receive queue or a receive memory pool.
    Shared(u32),
    /// In whichever XRC shared receive queue a request names.
    Named,
    /// Nowhere.
    None,
}

/// A receive queue in its buffer, where it comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveShape {
    /// How many receives it holds, log 2.
    pub(crate) log_size: u32,
    /// Bytes of a receive, log 2.
    pub(crate) log_stride: u32,
    /// A signature segment comes first in each.
    pub(crate) signature: bool,
}

/// Bytes of a basic block of a send queue.
pub(crate) const BASIC_BLOCK: u64 = 64;

impl SendShape {
    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        BASIC_BLOCK << self.log_size
    }
}

impl ReceiveShape {
    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        1 << (self.log_size + self.log_stride)
    }
}
