//! Work requests and the reasons for rejecting them.

use core::fmt;

use super::flags::bitflags;
use super::names::Names;
use super::{AccessFlags, MwBindInfo, MwType, QpType, UdAddr, open_enum};
use crate::errno::Errno;

/// A scatter/gather element: a range of registered memory.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// The address of the first byte, in the region's address space.
    pub addr: u64,
    /// The length, in bytes.
    pub length: u32,
    /// The local key of the region that contains the range.
    pub lkey: u32,
}

bitflags! {
    /// Options for a send work request.
    #[doc(alias = "ibv_send_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait for earlier RDMA reads and atomics in this queue.
        #[doc(alias = "IBV_SEND_FENCE")]
        const FENCE = 1;
        /// Generate a completion even on success.
        #[doc(alias = "IBV_SEND_SIGNALED")]
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        #[doc(alias = "IBV_SEND_SOLICITED")]
        const SOLICITED = 1 << 2;
        /// Copy the data into the work queue entry during the call: keys are ignored, and the
        /// memory can be reused at once.
        #[doc(alias = "IBV_SEND_INLINE")]
        const INLINE = 1 << 3;
        /// Let the device compute the checksums of an IP packet.
        #[doc(alias = "IBV_SEND_IP_CSUM")]
        const IP_CSUM = 1 << 4;
    }
}

/// The operation of a send work request, with its operands.
///
/// Immediate data is a number: it is sent in network order and arrives as the same number.
///
/// # References
/// `ibv_post_send(3)`, IBTA volume 1, section 11.4.1.1
#[doc(alias = "ibv_wr_opcode")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SendOp<'a> {
    /// Sends a message into one of the peer's receives (RC, UC).
    #[doc(alias = "IBV_WR_SEND")]
    Send,
    /// Sends like `Send`, with 32 bits of immediate data for the receiver's completion.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    SendWithImm {
        /// The immediate data.
        imm_data: u32,
    },
    /// Sends a datagram into one of the addressed peer's receives (UD).
    #[doc(alias = "IBV_WR_SEND")]
    UdSend {
        /// The destination.
        to: UdAddr<'a>,
    },
    /// Sends like `UdSend`, with 32 bits of immediate data for the receiver's completion.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    UdSendWithImm {
        /// The destination of the datagram.
        to: UdAddr<'a>,
        /// The immediate data.
        imm_data: u32,
    },
    /// Writes into the peer's memory. The peer's program gets no completion (RC, UC).
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    RdmaWrite {
        /// The address of the first byte, in the remote region's address space.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
    },
    /// Writes like `RdmaWrite` and also completes one of the peer's receives with 32 bits of
    /// immediate data (RC, UC).
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    RdmaWriteWithImm {
        /// The address of the first byte, in the remote region's address space.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
        /// The immediate data.
        imm_data: u32,
    },
    /// Reads from the peer's memory (RC).
    #[doc(alias = "IBV_WR_RDMA_READ")]
    RdmaRead {
        /// The address of the first byte, in the remote region's address space.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
    },
    /// Stores `swap` if the 8 remote bytes equal `compare`; the SGE receives the old value (RC).
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    AtomicCmpAndSwp {
        /// The address of the 8 bytes, a multiple of 8.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
        /// The expected value.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds `add` to the 8 remote bytes; the SGE receives the old value (RC).
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    AtomicFetchAndAdd {
        /// The address of the 8 bytes, a multiple of 8.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
        /// The value to add.
        add: u64,
    },
    /// Sends like `Send` and invalidates one of the peer's keys (RC).
    ///
    /// The key must belong to a bound window of type 2. The key of an unbound window crashes the
    /// peer's kernel if its device is rxe (seen in the sources of Linux 6.1 to 7.2).
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    SendWithInv {
        /// The peer's key to invalidate.
        invalidate_rkey: u32,
    },
    /// Invalidates a local key: peers then lose access through it (RC). The operation takes no
    /// scatter/gather list.
    ///
    /// Keys of bound windows of type 2 can be invalidated. Invalidating the key of an unbound
    /// window is an error on some devices and crashes the kernel's rxe driver (seen in the sources
    /// of Linux 6.1 to 7.2).
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    LocalInv {
        /// The key to invalidate.
        invalidate_rkey: u32,
    },
    /// Binds a memory window to part of a region (RC, UC). With length 0, it unbinds a window of
    /// type 1. The operation takes no scatter/gather list.
    #[doc(alias = "IBV_WR_BIND_MW")]
    BindMw {
        /// The window's type.
        mw_type: MwType,
        /// The window's key.
        rkey: u32,
        /// The low 8 bits of the window's new key. Its upper bits come from `rkey`; the upper bits
        /// of this value are ignored. [`inc_rkey`](super::inc_rkey) returns the next key.
        new_rkey: u32,
        /// The range of the region to bind, and the rights that peers get.
        bind_info: &'a MwBindInfo,
    },
    /// Makes earlier writes visible or persistent at the peer (RC).
    #[doc(alias = "IBV_WR_FLUSH")]
    Flush {
        /// The address of the first byte, in the remote region's address space.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
        /// The number of bytes; ignored if the whole region is flushed.
        length: u32,
        /// The requested kinds of visibility.
        placement: FlushPlacement,
        /// Whether to flush the range or the whole region.
        selectivity: FlushSelectivity,
    },
    /// Writes 8 bytes atomically (RC). The operation takes no scatter/gather list.
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    AtomicWrite {
        /// The address of the 8 bytes, a multiple of 8.
        remote_addr: u64,
        /// The remote region's key.
        rkey: u32,
        /// The bytes to write.
        data: [u8; 8],
    },
    /// Sends the data of the SGEs as TCP segments, each preceded by a copy of the header
    /// (RAW_PACKET).
    #[doc(alias = "IBV_WR_TSO")]
    Tso {
        /// The Ethernet, IP and TCP headers.
        hdr: &'a [u8],
        /// The maximum payload per segment, in bytes.
        mss: u16,
    },
    /// An operation of an XRC initiator on one of the peer's shared receive queues (XRC_SEND).
    Xrc {
        /// The number of the peer's shared receive queue.
        remote_srqn: u32,
        /// The operation: any operation that RC supports.
        op: &'a Self,
    },
}

impl SendOp<'_> {
    /// Returns whether the operation only reads local memory, so that its data can be inline.
    #[inline(always)]
    pub const fn takes_inline(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendWithImm { .. }
                | Self::UdSend { .. }
                | Self::UdSendWithImm { .. }
                | Self::RdmaWrite { .. }
                | Self::RdmaWriteWithImm { .. }
                | Self::SendWithInv { .. }
        )
    }

    /// Returns the kind of the operation, without its operands.
    #[inline(always)]
    pub const fn kind(&self) -> OpKind {
        // The arms have the order of the variants, so that the compiler finds the number without a
        // table.
        match self {
            Self::Send => OpKind::SEND,
            Self::SendWithImm { .. } => OpKind::SEND_WITH_IMM,
            Self::UdSend { .. } => OpKind::UD_SEND,
            Self::UdSendWithImm { .. } => OpKind::UD_SEND_WITH_IMM,
            Self::RdmaWrite { .. } => OpKind::RDMA_WRITE,
            Self::RdmaWriteWithImm { .. } => OpKind::RDMA_WRITE_WITH_IMM,
            Self::RdmaRead { .. } => OpKind::RDMA_READ,
            Self::AtomicCmpAndSwp { .. } => OpKind::ATOMIC_CMP_AND_SWP,
            Self::AtomicFetchAndAdd { .. } => OpKind::ATOMIC_FETCH_AND_ADD,
            Self::SendWithInv { .. } => OpKind::SEND_WITH_INV,
            Self::LocalInv { .. } => OpKind::LOCAL_INV,
            Self::BindMw { .. } => OpKind::BIND_MW,
            Self::Flush { .. } => OpKind::FLUSH,
            Self::AtomicWrite { .. } => OpKind::ATOMIC_WRITE,
            Self::Tso { .. } => OpKind::TSO,
            Self::Xrc { .. } => OpKind::XRC,
        }
    }
}

open_enum! {
    /// A kind of send operation: [`SendOp`] without its operands. The values are specific to this
    /// library.
    #[doc(alias = "ibv_wr_opcode_str")]
    pub enum OpKind(u8) {
        /// [`SendOp::Send`].
        #[doc(alias = "IBV_WR_SEND")]
        SEND = 0, "Send";
        /// [`SendOp::SendWithImm`].
        #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
        SEND_WITH_IMM = 1, "SendWithImm";
        /// [`SendOp::UdSend`].
        #[doc(alias = "IBV_WR_SEND")]
        UD_SEND = 2, "UdSend";
        /// [`SendOp::UdSendWithImm`].
        #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
        UD_SEND_WITH_IMM = 3, "UdSendWithImm";
        /// [`SendOp::RdmaWrite`].
        #[doc(alias = "IBV_WR_RDMA_WRITE")]
        RDMA_WRITE = 4, "RdmaWrite";
        /// [`SendOp::RdmaWriteWithImm`].
        #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
        RDMA_WRITE_WITH_IMM = 5, "RdmaWriteWithImm";
        /// [`SendOp::RdmaRead`].
        #[doc(alias = "IBV_WR_RDMA_READ")]
        RDMA_READ = 6, "RdmaRead";
        /// [`SendOp::AtomicCmpAndSwp`].
        #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
        ATOMIC_CMP_AND_SWP = 7, "AtomicCmpAndSwp";
        /// [`SendOp::AtomicFetchAndAdd`].
        #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
        ATOMIC_FETCH_AND_ADD = 8, "AtomicFetchAndAdd";
        /// [`SendOp::SendWithInv`].
        #[doc(alias = "IBV_WR_SEND_WITH_INV")]
        SEND_WITH_INV = 9, "SendWithInv";
        /// [`SendOp::LocalInv`].
        #[doc(alias = "IBV_WR_LOCAL_INV")]
        LOCAL_INV = 10, "LocalInv";
        /// [`SendOp::BindMw`].
        #[doc(alias = "IBV_WR_BIND_MW")]
        BIND_MW = 11, "BindMw";
        /// [`SendOp::Flush`].
        #[doc(alias = "IBV_WR_FLUSH")]
        FLUSH = 12, "Flush";
        /// [`SendOp::AtomicWrite`].
        #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
        ATOMIC_WRITE = 13, "AtomicWrite";
        /// [`SendOp::Tso`].
        #[doc(alias = "IBV_WR_TSO")]
        TSO = 14, "Tso";
        /// [`SendOp::Xrc`], with any operation.
        #[doc(alias = "IBV_QPT_XRC_SEND")]
        XRC = 15, "Xrc";
    }
}

bitflags! {
    /// The kinds of visibility that a [flush](SendOp::Flush) requests.
    ///
    /// # References
    /// `ibv_wr_flush(3)`, IBTA volume 1, annex A19 (memory placement extensions)
    #[doc(alias = "ibv_placement_type")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct FlushPlacement: u8 {
        /// The writes are visible to the peer's whole system.
        #[doc(alias = "IBV_FLUSH_GLOBAL")]
        const GLOBAL = 1;
        /// The writes are persistent.
        #[doc(alias = "IBV_FLUSH_PERSISTENT")]
        const PERSISTENT = 1 << 1;
    }
}

open_enum! {
    /// The memory that a [flush](SendOp::Flush) covers.
    #[doc(alias = "ibv_selectivity_level")]
    pub enum FlushSelectivity(u8) {
        /// The range in the request.
        #[doc(alias = "IBV_FLUSH_RANGE")]
        RANGE = 0, "range";
        /// The whole region.
        #[doc(alias = "IBV_FLUSH_MR")]
        MR = 1, "region";
    }
}

/// A send work request.
#[doc(alias = "ibv_send_wr")]
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The program's identifier for the request, returned unchanged in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp<'a>,
    /// The local memory: data is gathered from it in order or, for reads and atomics, scattered to
    /// it.
    pub sge: &'a [Sge],
    /// The options of the request.
    pub flags: SendFlags,
}

/// A receive work request.
#[doc(alias = "ibv_recv_wr")]
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The program's identifier for the request, returned unchanged in the completion.
    pub wr_id: u64,
    /// The memory for the message, filled in order.
    pub sge: &'a [Sge],
}

/// The reason why a work request was rejected.
///
/// Converts into [`Error`](crate::Error) and [`std::io::Error`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostReason {
    /// Every slot of the queue is in use: poll completions first. (C: `ENOMEM`)
    QueueFull,
    /// An allocation failed. Only safe posting and the batches of the C API allocate memory, at the
    /// first request. (C: `ENOMEM`)
    NoMemory {
        /// The size of the allocation in bytes.
        bytes: u64,
    },
    /// The request has more scatter/gather elements than the queue allows, or has elements although
    /// its operation uses no local memory.
    TooManySge {
        /// The number of elements in the request.
        given: usize,
        /// The maximum number of elements; 0 for a flush and an atomic write.
        max: u32,
    },
    /// The request has more inline bytes than the queue allows.
    InlineTooLong {
        /// The number of inline bytes in the request.
        given: u64,
        /// The queue's maximum, in bytes.
        max: u32,
    },
    /// The message exceeds the maximum of 2³¹ bytes per work request.
    MessageTooLong {
        /// The length of the message, in bytes.
        given: u64,
    },
    /// A datagram is longer than the MTU of the port.
    DatagramTooLong {
        /// The length of the datagram's payload, in bytes.
        given: u64,
        /// The MTU, in bytes.
        max: u32,
    },
    /// A frame, or the header of a segmented send, is too short for the device.
    FrameTooShort {
        /// The length of the frame or header, in bytes.
        given: u64,
        /// The device's minimum, in bytes.
        min: u32,
    },
    /// The header of a segmented send is longer than the queue allows.
    HeaderTooLong {
        /// The length of the header, in bytes.
        given: u64,
        /// The queue's maximum, in bytes.
        max: u32,
    },
    /// The scatter/gather elements of an atomic must total 8 bytes.
    AtomicLength {
        /// The total length of the elements, in bytes.
        given: u64,
    },
    /// An atomic's remote address must be a multiple of 8.
    AtomicMisaligned {
        /// The misaligned address.
        remote_addr: u64,
    },
    /// A flush must request at least one known kind of visibility, for a range or a region.
    FlushKind {
        /// The kinds of visibility in the request.
        placement: FlushPlacement,
        /// The selectivity in the request.
        selectivity: FlushSelectivity,
    },
    /// This type of queue pair, or its provider, lacks the operation. (C: `EOPNOTSUPP`)
    UnsupportedOp {
        /// The operation.
        op: OpKind,
        /// The type of the queue pair.
        qp_type: QpType,
    },
    /// Safe code must post the operation with another call (with or without local memory, or for a
    /// window), or cannot post it at all.
    OtherCall {
        /// The operation.
        op: OpKind,
    },
    /// The operation does not accept these flags: [`SendFlags::INLINE`] for an operation that
    /// writes local memory, or a flag unsupported by the provider. (C: `EOPNOTSUPP`)
    UnsupportedFlags {
        /// The operation.
        op: OpKind,
        /// The invalid flags.
        flags: SendFlags,
    },
    /// The bind requests [rights](AccessFlags::WINDOW_RIGHTS) that a memory window cannot grant. A
    /// window can let peers read, write and run atomics.
    WindowAccess {
        /// The rights that a window cannot have.
        access: AccessFlags,
    },
    /// The address handle belongs to another provider.
    ForeignAv,
    /// The `wr_id` has its top bit set. Such values are reserved for requests from safe code.
    ReservedWrId {
        /// The rejected `wr_id`.
        wr_id: u64,
    },
    /// The queue pair's state does not allow such work requests.
    InvalidState,
    /// The shared receive queue has no tag list. (C: `EOPNOTSUPP`)
    NoTagMatching,
    /// No tag in the list has this handle.
    TagHandle {
        /// The handle in the request.
        handle: u32,
    },
    /// The queue pair has no receive queue: either its receives are posted to a shared receive
    /// queue, or it is an XRC initiator, which receives nothing.
    SharedRecvQueue,
    /// The work requests are in the queue, but ringing the doorbell failed with this error.
    Doorbell(Errno),
}

impl PostReason {
    /// Returns the errno that the C verbs return for this reason.
    pub const fn errno(self) -> Errno {
        match self {
            Self::QueueFull | Self::NoMemory { .. } => Errno::NOMEM,
            Self::UnsupportedOp { .. } | Self::UnsupportedFlags { .. } | Self::NoTagMatching => {
                Errno::OPNOTSUPP
            }
            Self::Doorbell(errno) => errno,
            _ => Errno::INVAL,
        }
    }
}

impl fmt::Display for PostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::QueueFull => f.write_str("the queue is full: poll completions before posting more"),
            Self::NoMemory { bytes } => write!(f, "{bytes} bytes of memory are not available"),
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
            Self::FrameTooShort { given, min } => {
                write!(f, "a frame, or its header, has {given} bytes, but the device needs {min}")
            }
            Self::HeaderTooLong { given, max } => {
                write!(f, "a header of {given} bytes, but the queue takes {max}")
            }
            Self::AtomicLength { given } => write!(f, "an atomic takes 8 bytes of local memory, not {given}"),
            Self::AtomicMisaligned { remote_addr } => {
                write!(f, "an atomic's remote address must be a multiple of 8, not {remote_addr:#x}")
            }
            Self::FlushKind { placement, selectivity } => {
                let kinds = "GLOBAL, PERSISTENT or both, of RANGE or MR";
                write!(f, "a flush asks for {kinds}, not for {:#x} of {}", placement.bits(), selectivity.0)
            }
            Self::UnsupportedOp { op, qp_type } => {
                write!(f, "{qp_type} queue pairs of this device do not have the operation {op}")
            }
            Self::OtherCall { op } => match op {
                OpKind::RDMA_READ | OpKind::ATOMIC_CMP_AND_SWP | OpKind::ATOMIC_FETCH_AND_ADD => {
                    write!(f, "{op} fills local memory: post it with memory, by post_send_buf")
                }
                OpKind::FLUSH | OpKind::ATOMIC_WRITE => {
                    write!(f, "{op} takes no local memory: post it by post_send_op")
                }
                OpKind::BIND_MW => f.write_str("a window is bound by post_bind"),
                OpKind::LOCAL_INV => f.write_str("a window is revoked by post_revoke"),
                _ => write!(f, "safe calls do not post {op}: post_send does, which is unsafe"),
            },
            Self::UnsupportedFlags { op, flags } => {
                write!(f, "{op} does not take the flags {}", Names(flags))
            }
            Self::WindowAccess { access } => {
                let (rights, access) = (Names(AccessFlags::WINDOW_RIGHTS), Names(access));
                write!(f, "a memory window gives peers the rights {rights}, not {access}")
            }
            Self::ForeignAv => f.write_str("the address handle belongs to another provider"),
            Self::ReservedWrId { wr_id } => {
                write!(f, "wr_id {wr_id:#x} has its top bit set, which is reserved for this library")
            }
            Self::InvalidState => f.write_str("the queue pair's state does not take such work requests"),
            Self::NoTagMatching => f.write_str("post_srq_ops: the shared receive queue has no tag list"),
            Self::TagHandle { handle } => write!(f, "no tag of the list has the handle {handle}"),
            Self::SharedRecvQueue => {
                f.write_str("the queue pair takes its receives from a shared receive queue: post to that")
            }
            Self::Doorbell(Errno::NODEV) => f.write_str(
                "the device is not there: it is the parent's if this process was forked after it was opened, and gone \
                 otherwise; open it again",
            ),
            Self::Doorbell(Errno::ACCESS) => f.write_str(
                "the doorbell failed: this process was forked after the device was opened, or has changed its rights \
                 since: open it again (EACCES)",
            ),
            Self::Doorbell(errno) => write!(f, "the doorbell failed: {errno}"),
        }
    }
}

/// Formats like `Display`, because `main` prints a returned error with `Debug`.
impl fmt::Debug for PostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PostReason {}

/// The error for a batch that the queue accepted only in part; C reports this with `bad_wr`.
///
/// Converts into [`Error`](crate::Error) and [`std::io::Error`], which keep only the reason.
#[doc(alias = "bad_wr")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PostError {
    /// The number of accepted work requests; the device owns their memory. The next work request,
    /// if any, was rejected.
    pub accepted: usize,
    /// The reason why the next work request was rejected.
    pub reason: PostReason,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}; {} accepted before it)", self.reason, self.reason.errno(), self.accepted)
    }
}

/// Formats like `Display`, because `main` prints a returned error with `Debug`.
impl fmt::Debug for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PostError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_operation_names_itself_and_the_type() {
        let reason = PostReason::UnsupportedOp { op: OpKind::RDMA_READ, qp_type: QpType::UC };
        assert_eq!(reason.to_string(), "UC queue pairs of this device do not have the operation RdmaRead");
        let flags = SendFlags::INLINE | SendFlags::from_bits_retain(1 << 9);
        let reason = PostReason::UnsupportedFlags { op: OpKind::RDMA_READ, flags };
        assert_eq!(reason.to_string(), "RdmaRead does not take the flags INLINE, 0x200");
    }

    #[test]
    fn an_operation_of_another_call_names_that_call() {
        for (op, text) in [
            (OpKind::RDMA_READ, "RdmaRead fills local memory: post it with memory, by post_send_buf"),
            (OpKind::FLUSH, "Flush takes no local memory: post it by post_send_op"),
            (OpKind::BIND_MW, "a window is bound by post_bind"),
            (OpKind::LOCAL_INV, "a window is revoked by post_revoke"),
            (OpKind::TSO, "safe calls do not post Tso: post_send does, which is unsafe"),
        ] {
            assert_eq!(PostReason::OtherCall { op }.to_string(), text);
        }
    }

    #[test]
    fn a_post_to_a_device_that_is_not_there_says_why_instead_of_naming_the_doorbell() {
        let text = PostReason::Doorbell(Errno::NODEV).to_string();
        assert!(text.contains("forked") && text.contains("gone"), "{text}");
        assert_eq!(PostReason::Doorbell(Errno::IO).to_string(), "the doorbell failed: EIO");
        let text = PostReason::Doorbell(Errno::ACCESS).to_string();
        assert!(
            text.contains("forked") && text.contains("open it again") && text.ends_with("(EACCES)"),
            "{text}"
        );
    }

    #[test]
    fn a_reason_is_returned_in_registers() {
        const { assert!(size_of::<Result<(), PostReason>>() <= 16) }
    }
}
