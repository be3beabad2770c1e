//! [`Qp`]: queue pairs.
//!
//! ```text
//!            buffer:  receive queue │ send queue          (`rq.bytes()` is where the send queue begins)
//!   doorbell record:  receive head  │ send head
//! ```
//!
//! The state, sequence numbers and attributes that matter to the transport are the engine's; the context here holds them as the
//! driver gave them, and QUERY_QP puts the engine's present ones in.

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
    /// The kernel's: it may use the reserved key.
    pub(crate) reserved_key: bool,
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
    /// General services: datagrams of queue pair 1.
    Qp1,
    /// Registers memory for the kernel; nothing leaves it.
    RegUmr,
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
