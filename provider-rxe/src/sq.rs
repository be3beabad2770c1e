//! The send queue, and the kick that makes the kernel look at it.
//!
//! ```text
//!   post_one   check everything ──► fill the next slot          nothing is written for what is refused
//!   ring       publish the producer's index ──► write()          one system call per call of `post_send`
//! ```
//!
//! The kick is a `POST_SEND` command with no work request in it: it makes the kernel run the requester, in this very
//! system call, over what it finds in the mapped queue. Its bytes are prepared once.
//!
//! # Safety
//! Elements are stored through [`Slot`](crate::queue::Slot), whose two preconditions (the list fits, inline memory is
//! readable) are proved here. The kick is a command that the kernel answers to an address; see [`Kick`].
//!
//! # References
//! `ibv_post_send(3)`; Linux `drivers/infiniband/core/uverbs_cmd.c` (`ib_uverbs_post_send`),
//! `drivers/infiniband/sw/rxe/rxe_verbs.c` (`rxe_post_send`)
#![allow(unsafe_code)]

use core::fmt;
use core::mem::size_of;
use core::sync::atomic::AtomicU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_POST_SEND, IbUverbsCmdHdr, IbUverbsPostSend, IbUverbsPostSendResp, IbUverbsSendWr,
    IbUverbsWrOpcode,
};
use uverbs_abi::rdma_user_rxe::RxeSendWqe;
use verbs_core::Errno;
use verbs_core::provider::SendQueue;
use verbs_core::types::{Av, PostReason, QpCap, QpState, QpType, SendFlags, SendOp, SendWr, Sge};
use zerocopy::{Immutable, IntoBytes};

use crate::ah::AV_TAG;
use crate::queue::{Filling, Queue};
use crate::wqe::{self, Path};

/// The most bytes that one message can have.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// The bytes of local memory that an atomic takes. The kernel would move 8 bytes whatever the list says; a list of
/// another length is a mistake that would show up as a `byte_len` that lies.
const ATOMIC_LENGTH: u64 = 8;

/// With the top bit set in a work request's queue key, the queue pair's own is sent instead (IBTA volume 1, 10.2.5).
/// The kernel leaves this to the provider.
const OWN_QKEY: u32 = 1 << 31;

/// The send half of a queue pair.
pub struct Sq {
    end: Filling<RxeSendWqe>,
    /// A bit for each opcode that may be posted now: those of the queue pair's type, none before RTS.
    accepts: u32,
    max_sge: u32,
    max_inline: u32,
    /// Flags of every work request: `SIGNALED` where the queue pair was created with `sq_sig_all`.
    always: SendFlags,
    /// The queue pair's own queue key.
    qkey: u32,
    ssn: u32,
    qp_type: QpType,
    kick: Option<Kick>,
}

impl Sq {
    /// The send half of a queue pair in RESET. `None` for the kick: a test plays the kernel.
    pub(crate) fn new(queue: Queue, qp_type: QpType, cap: &QpCap, sig_all: bool, kick: Option<Kick>) -> Self {
        let end = Filling::new(queue);
        assert!(end.room() >= list_len(cap), "the queue was mapped for lists of this length");
        let always = if sig_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        Self {
            end,
            accepts: 0,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            always,
            qkey: 0,
            ssn: 0,
            qp_type,
            kick,
        }
    }

    /// How many bytes a slot must have for a queue of this capacity.
    pub(crate) fn element(cap: &QpCap) -> usize {
        size_of::<RxeSendWqe>().saturating_add(list_len(cap))
    }

    /// The queue pair was moved to a state.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.accepts = match state {
            QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR => operations(self.qp_type),
            _ => 0,
        };
        if state == QpState::RESET {
            // The kernel drained the queue: it let its index catch up with ours, and cleared the slots. What was put
            // in and not published is forgotten.
            self.end.resync();
            self.ssn = 0;
        }
    }

    /// The queue pair got a queue key.
    pub(crate) fn set_qkey(&mut self, qkey: u32) {
        self.qkey = qkey;
    }

    /// Why an operation is not accepted.
    #[cold]
    fn refusal(&self) -> PostReason {
        if self.accepts == 0 && operations(self.qp_type) != 0 {
            PostReason::InvalidState
        } else {
            PostReason::UnsupportedOp
        }
    }

    /// What is wrong with flags other than fence, signaled and solicited.
    #[inline(always)]
    fn check_rare_flags(&self, wr: &SendWr<'_>, length: u64) -> Result<(), PostReason> {
        let inline_op = !matches!(
            wr.op,
            SendOp::RdmaRead { .. } | SendOp::AtomicCmpAndSwp { .. } | SendOp::AtomicFetchAndAdd { .. }
        );
        // Neither checksums nor flags without a name: the device does not have them.
        let known = COMMON_FLAGS.union(SendFlags::INLINE);
        if !known.contains(wr.flags) || !inline_op {
            return Err(PostReason::UnsupportedOp);
        }
        if length > u64::from(self.max_inline) {
            return Err(PostReason::InlineTooLong { given: length, max: self.max_inline });
        }
        Ok(())
    }
}

impl SendQueue for Sq {
    #[inline(always)]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        let op = &wr.op;
        let Some(opcode) = wqe::opcode(op) else { return Err(PostReason::UnsupportedOp) };
        let datagram = matches!(op, SendOp::UdSend { .. } | SendOp::UdSendWithImm { .. });
        if self.accepts & bit(opcode, datagram) == 0 {
            return Err(self.refusal());
        }
        let num_sge = wr.sge.len();
        if num_sge > self.max_sge as usize {
            return Err(PostReason::TooManySge { given: num_sge, max: self.max_sge });
        }
        let length = total(wr.sge);
        if length > MAX_MESSAGE {
            return Err(PostReason::MessageTooLong { given: length });
        }
        if let SendOp::AtomicCmpAndSwp { remote_addr, .. } | SendOp::AtomicFetchAndAdd { remote_addr, .. } =
            *op
        {
            if length != ATOMIC_LENGTH {
                return Err(PostReason::AtomicLength { given: length });
            }
            if remote_addr % ATOMIC_LENGTH != 0 {
                return Err(PostReason::AtomicMisaligned { remote_addr });
            }
        }
        let inline = wr.flags.contains(SendFlags::INLINE);
        if !COMMON_FLAGS.contains(wr.flags) {
            self.check_rare_flags(wr, length)?;
        }
        let (path, qkey) = match op {
            SendOp::UdSend { to } | SendOp::UdSendWithImm { to, .. } => {
                let own = to.remote_qkey & OWN_QKEY != 0;
                (path(to.av)?, if own { self.qkey } else { to.remote_qkey })
            }
            _ => (Path::Connected, 0),
        };
        let Some(mut slot) = self.end.next() else { return Err(PostReason::QueueFull) };
        wqe::put_send(
            &mut slot,
            &wqe::Accepted {
                wr_id: wr.wr_id,
                op,
                opcode,
                flags: wr.flags | self.always,
                path,
                qkey,
                ssn: self.ssn,
                length: length as u32,
                num_sge: num_sge as u32,
            },
        );
        if inline {
            // SAFETY: not longer than `max_inline`, for which `new` found room; the caller vouches for the memory.
            unsafe { slot.put_inline(wr.sge) };
        } else {
            // SAFETY: not longer than `max_sge`, for which `new` found room.
            unsafe { slot.put_list(wr.sge) };
        }
        self.ssn = self.ssn.wrapping_add(1);
        self.end.advance();
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self) -> Result<(), Errno> {
        self.end.publish();
        match &self.kick {
            Some(kick) => kick.kick(),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Sq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sq").field("end", &self.end).field("max_sge", &self.max_sge).finish_non_exhaustive()
    }
}

/// What makes the kernel look at a send queue: a system call.
///
/// It is `write()` also where the kernel would take the command as an ioctl: that is how kernels of every age take it,
/// and the shortest way in.
pub(crate) struct Kick {
    fd: Arc<OwnedFd>,
    request: Request,
    /// Where the kernel answers with a count of work requests that were not posted: of none, none.
    _response: Box<AtomicU32>,
}

#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Request {
    hdr: IbUverbsCmdHdr,
    command: IbUverbsPostSend,
}

impl Kick {
    /// The kick of a queue pair.
    pub(crate) fn new(fd: Arc<OwnedFd>, qp_handle: u32) -> Self {
        const { assert!(size_of::<IbUverbsPostSendResp>() == size_of::<AtomicU32>()) }
        let response = Box::new(AtomicU32::new(0));
        let request = Request {
            hdr: IbUverbsCmdHdr {
                command: IB_USER_VERBS_CMD_POST_SEND,
                in_words: (size_of::<Request>() / 4) as u16,
                out_words: (size_of::<IbUverbsPostSendResp>() / 4) as u16,
            },
            command: IbUverbsPostSend {
                response: response.as_ptr().expose_provenance() as u64,
                qp_handle,
                wr_count: 0,
                sge_count: 0,
                wqe_size: size_of::<IbUverbsSendWr>() as u32,
            },
        };
        Self { fd, request, _response: response }
    }

    #[inline(never)]
    fn kick(&self) -> Result<(), Errno> {
        loop {
            // SAFETY: the buffer is valid for its length. The kernel writes 4 bytes to the response's address, which
            // `_response` owns, alive as long as `self` and never read; an atomic may be written behind a shared
            // reference.
            let written = unsafe {
                libc::write(self.fd.as_raw_fd(), (&raw const self.request).cast(), size_of::<Request>())
            };
            if written == size_of::<Request>() as isize {
                return Ok(());
            }
            // A kick that came twice does no harm.
            let errno = if written < 0 { Errno::last() } else { Errno::IO };
            if errno != Errno::INTR {
                return Err(errno);
            }
        }
    }
}

/// Flags that every operation takes.
const COMMON_FLAGS: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED);

/// An operation's bit in a set of operations. A datagram is another operation than a send, though not to the kernel.
#[inline(always)]
const fn bit(opcode: u32, datagram: bool) -> u32 {
    1 << (opcode + if datagram { 16 } else { 0 })
}

/// Which operations a type of queue pair has.
fn operations(qp_type: QpType) -> u32 {
    use IbUverbsWrOpcode as Op;
    let set = |ops: &[Op], datagram| ops.iter().fold(0, |set, op| set | bit(op.0, datagram));
    let sends = [Op::IB_UVERBS_WR_SEND, Op::IB_UVERBS_WR_SEND_WITH_IMM];
    let writes = [Op::IB_UVERBS_WR_RDMA_WRITE, Op::IB_UVERBS_WR_RDMA_WRITE_WITH_IMM];
    let fetches = [
        Op::IB_UVERBS_WR_RDMA_READ,
        Op::IB_UVERBS_WR_ATOMIC_CMP_AND_SWP,
        Op::IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD,
    ];
    match qp_type {
        QpType::RC => set(&sends, false) | set(&writes, false) | set(&fetches, false),
        QpType::UC => set(&sends, false) | set(&writes, false),
        QpType::UD => set(&sends, true),
        _ => 0,
    }
}

/// Where a datagram goes, from the bytes that this provider put into the address vector.
#[inline(always)]
fn path(av: &Av) -> Result<Path<'_>, PostReason> {
    let bytes = av.bytes(AV_TAG).ok_or(PostReason::ForeignAv)?;
    if let Ok(ah_num) = <[u8; 4]>::try_from(bytes) {
        return Ok(Path::Numbered(u32::from_ne_bytes(ah_num)));
    }
    bytes.try_into().map(Path::Spelled).map_err(|_| PostReason::ForeignAv)
}

/// The bytes of a list, all in all.
#[inline(always)]
pub(crate) fn total(sges: &[Sge]) -> u64 {
    let mut length = 0;
    for sge in sges {
        length += u64::from(sge.length);
    }
    length
}

/// The bytes behind the element: a list of the most SGEs, or the most inline data.
fn list_len(cap: &QpCap) -> usize {
    (cap.max_send_sge as usize).saturating_mul(size_of::<Sge>()).max(cap.max_inline_data as usize)
}
