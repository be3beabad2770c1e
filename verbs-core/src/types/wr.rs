//! Work requests: what is asked of a queue pair.

use core::fmt;

use bitflags::bitflags;

use super::UdAddr;
use crate::Errno;

/// A scatter/gather element: a piece of registered memory.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Where it starts, in the region's address space.
    pub addr: u64,
    /// How long it is, in bytes.
    pub length: u32,
    /// The local key of the region that contains it.
    pub lkey: u32,
}

bitflags! {
    /// How a send work request is carried out.
    #[doc(alias = "ibv_send_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait for earlier RDMA reads and atomics of this queue.
        const FENCE = 1;
        /// Complete with a completion also on success.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// Copy the data into the work queue entry now: keys are not looked at, and the memory is free at once.
        const INLINE = 1 << 3;
        /// Let the device compute the checksums of an IP packet.
        const IP_CSUM = 1 << 4;
    }
}

/// What a send work request does.
///
/// Immediate data is a number: it crosses the wire in network order and arrives as the same number.
///
/// # References
/// `ibv_post_send(3)`, IBTA volume 1, section 11.4.1.1
#[doc(alias = "ibv_wr_opcode")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SendOp<'a> {
    /// Into a receive of the peer (RC, UC).
    #[doc(alias = "IBV_WR_SEND")]
    Send,
    /// As `Send`, with 32 bits for the receiver's completion.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    SendWithImm {
        /// The 32 bits.
        imm_data: u32,
    },
    /// A datagram into a receive of the addressed peer (UD).
    #[doc(alias = "IBV_WR_SEND")]
    UdSend {
        /// Where to.
        to: UdAddr<'a>,
    },
    /// As `UdSend`, with 32 bits for the receiver's completion.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    UdSendWithImm {
        /// Where to.
        to: UdAddr<'a>,
        /// The 32 bits.
        imm_data: u32,
    },
    /// Into the peer's memory; the peer's program is not told (RC, UC).
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    RdmaWrite {
        /// Where, in the remote region's address space.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
    },
    /// As `RdmaWrite`, and completes a receive of the peer with 32 bits (RC, UC).
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    RdmaWriteWithImm {
        /// Where, in the remote region's address space.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
        /// The 32 bits.
        imm_data: u32,
    },
    /// From the peer's memory (RC).
    #[doc(alias = "IBV_WR_RDMA_READ")]
    RdmaRead {
        /// From where, in the remote region's address space.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
    },
    /// Where the 8 remote bytes equal `compare`, put `swap`; the old value arrives in the SGE (RC).
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    AtomicCmpAndSwp {
        /// Where, a multiple of 8.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
        /// What is expected there.
        compare: u64,
        /// What to put.
        swap: u64,
    },
    /// Add to the 8 remote bytes; the old value arrives in the SGE (RC).
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    AtomicFetchAndAdd {
        /// Where, a multiple of 8.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
        /// What to add.
        add: u64,
    },
}

/// A send work request.
#[doc(alias = "ibv_send_wr")]
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion, untouched.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp<'a>,
    /// The local memory, gathered in order (scattered to, for reads and atomics).
    pub sge: &'a [Sge],
    /// How.
    pub flags: SendFlags,
}

/// A receive work request.
#[doc(alias = "ibv_recv_wr")]
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion, untouched.
    pub wr_id: u64,
    /// The memory that a message is scattered to, in order.
    pub sge: &'a [Sge],
}

/// Why a work request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostReason {
    /// Every slot of the queue is taken: poll completions first. (C: `ENOMEM`)
    QueueFull,
    /// More scatter/gather elements than the queue was created for.
    TooManySge {
        /// How many there were.
        given: usize,
        /// How many fit.
        max: u32,
    },
    /// More inline bytes than the queue was created for.
    InlineTooLong {
        /// How many there were.
        given: u64,
        /// How many fit.
        max: u32,
    },
    /// The message is longer than the 2³¹ bytes that one work request can carry.
    MessageTooLong {
        /// Its length, in bytes.
        given: u64,
    },
    /// A datagram is longer than the MTU of the port.
    DatagramTooLong {
        /// Its length, in bytes.
        given: u64,
        /// The MTU, in bytes.
        max: u32,
    },
    /// An atomic takes SGEs of 8 bytes together.
    AtomicLength {
        /// How many bytes there were.
        given: u64,
    },
    /// An atomic's remote address must be a multiple of 8.
    AtomicMisaligned {
        /// The address.
        remote_addr: u64,
    },
    /// This queue pair's type or its provider does not have the operation, or not inline.
    UnsupportedOp,
    /// The address handle belongs to another provider.
    ForeignAv,
    /// The queue pair's state does not take work requests of this kind.
    InvalidState,
    /// The work requests are in the queue, but ringing the doorbell failed with this error.
    Doorbell(Errno),
}

impl PostReason {
    /// What C's verbs return for it.
    pub const fn errno(self) -> Errno {
        match self {
            Self::QueueFull => Errno::NOMEM,
            Self::UnsupportedOp => Errno::OPNOTSUPP,
            Self::Doorbell(errno) => errno,
            _ => Errno::INVAL,
        }
    }
}

impl fmt::Display for PostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::QueueFull => f.write_str("the queue is full: poll completions before posting more"),
            Self::TooManySge { given, max } => {
                write!(f, "{given} scatter/gather elements, but the queue takes {max}")
            }
            Self::InlineTooLong { given, max } => {
                write!(f, "{given} inline bytes, but the queue takes {max}")
            }
            Self::MessageTooLong { given } => write!(f, "a message of {given} bytes is longer than 2 GiB"),
            Self::DatagramTooLong { given, max } => {
                write!(f, "a datagram of {given} bytes is longer than the port's MTU of {max} bytes")
            }
            Self::AtomicLength { given } => write!(f, "an atomic takes 8 bytes of local memory, not {given}"),
            Self::AtomicMisaligned { remote_addr } => {
                write!(f, "an atomic's remote address must be a multiple of 8, not {remote_addr:#x}")
            }
            Self::UnsupportedOp => f.write_str("this queue pair does not have the operation"),
            Self::ForeignAv => f.write_str("the address handle belongs to another provider"),
            Self::InvalidState => f.write_str("the queue pair's state does not take such work requests"),
            Self::Doorbell(errno) => write!(f, "the doorbell failed: {errno}"),
        }
    }
}

/// Part of a batch was not accepted: what C tells by `bad_wr`.
#[doc(alias = "bad_wr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// How many work requests were accepted; the device owns their memory. The next one is the bad one, if there is one.
    pub accepted: usize,
    /// Why no more were.
    pub reason: PostReason,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}; {} accepted before it)", self.reason, self.reason.errno(), self.accepted)
    }
}

impl std::error::Error for PostError {}
