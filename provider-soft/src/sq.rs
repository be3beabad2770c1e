//! [`Sq`]: the send half of a queue pair.
//!
//! Everything that can be wrong with a work request is found here, before it is in the ring: the engine, which sees it
//! later and perhaps on another thread, has nobody to tell.
//!
//! # Safety
//! Posting is a promise of the caller about the memory that is named. Nothing here touches it, but for inline data, which is
//! copied out of memory that the caller vouches for.
#![allow(unsafe_code)]

use std::sync::Arc;

use roce::engine::{SendFlags, SendOp, UdDestination};
use verbs_core::Errno;
use verbs_core::provider::SendQueue;
use verbs_core::types::{
    PostReason, QpCap, QpState, QpType, SendFlags as Flags, SendOp as Op, SendWr, UdAddr,
};

use crate::ah::from_av;
use crate::device::Device;
use crate::limits;
use crate::ring::Producer;
use crate::rq::sge;
use crate::wqe::{BYTES, Data, SendWqe, inline_len, pack};

/// The send half of a queue pair.
#[derive(Debug)]
pub struct Sq {
    pub(crate) ring: Producer<SendWqe>,
    device: Arc<Device>,
    slot: usize,
    qp_type: QpType,
    max_sge: u32,
    max_inline: u32,
    /// The longest message, in bytes.
    max_message: u64,
    accepts: bool,
}

impl Sq {
    pub(crate) fn new(
        device: &Arc<Device>,
        ring: Producer<SendWqe>,
        slot: usize,
        qp_type: QpType,
        cap: &QpCap,
    ) -> Self {
        let max_message = if qp_type == QpType::UD {
            limits::datagram_mtu(device.socket.interface().map(|(_, mtu)| mtu)).into()
        } else {
            limits::MAX_MESSAGE
        };
        Self {
            ring,
            device: Arc::clone(device),
            slot,
            qp_type,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            max_message,
            accepts: false,
        }
    }

    /// The queue pair was moved to a state.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.accepts = matches!(state, QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR);
        if state == QpState::RESET {
            self.ring.resync();
        }
    }

    /// The operation as the engine has it, if this queue pair has it.
    #[inline]
    fn op(&self, op: &Op<'_>) -> Result<SendOp, PostReason> {
        let connected = matches!(self.qp_type, QpType::RC | QpType::UC);
        let reliable = self.qp_type == QpType::RC;
        match *op {
            Op::Send if connected => Ok(SendOp::Send { imm: None }),
            Op::SendWithImm { imm_data } if connected => Ok(SendOp::Send { imm: Some(imm_data) }),
            Op::RdmaWrite { remote_addr: addr, rkey } if connected => {
                Ok(SendOp::Write { addr, rkey, imm: None })
            }
            Op::RdmaWriteWithImm { remote_addr: addr, rkey, imm_data } if connected => {
                Ok(SendOp::Write { addr, rkey, imm: Some(imm_data) })
            }
            Op::RdmaRead { remote_addr: addr, rkey } if reliable => Ok(SendOp::Read { addr, rkey }),
            Op::AtomicCmpAndSwp { remote_addr: addr, rkey, compare, swap } if reliable => {
                Ok(SendOp::CompareSwap { addr, rkey, compare, swap })
            }
            Op::AtomicFetchAndAdd { remote_addr: addr, rkey, add } if reliable => {
                Ok(SendOp::FetchAdd { addr, rkey, add })
            }
            Op::UdSend { to } if self.qp_type == QpType::UD => self.datagram(&to, None),
            Op::UdSendWithImm { to, imm_data } if self.qp_type == QpType::UD => {
                self.datagram(&to, Some(imm_data))
            }
            _ => Err(PostReason::UnsupportedOp),
        }
    }

    #[cold]
    fn too_long(&self, given: u64) -> PostReason {
        if self.qp_type == QpType::UD && given <= limits::MAX_MESSAGE {
            PostReason::DatagramTooLong { given, max: self.max_message as u32 }
        } else {
            PostReason::MessageTooLong { given }
        }
    }

    fn datagram(&self, to: &UdAddr<'_>, imm: Option<u32>) -> Result<SendOp, PostReason> {
        let path = from_av(to.av, self.device.gid).ok_or(PostReason::ForeignAv)?;
        Ok(SendOp::Datagram { to: UdDestination { path, qpn: to.remote_qpn, qkey: to.remote_qkey }, imm })
    }
}

impl SendQueue for Sq {
    #[inline]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        if self.device.is_forked() {
            return Err(PostReason::Doorbell(Errno::NODEV));
        }
        let op = self.op(&wr.op)?;
        if !self.accepts {
            return Err(PostReason::InvalidState);
        }
        let num_sge = wr.sge.len();
        if num_sge > self.max_sge as usize {
            return Err(PostReason::TooManySge { given: num_sge, max: self.max_sge });
        }
        let length = wr.sge.iter().map(|sge| u64::from(sge.length)).sum();
        if length > self.max_message {
            return Err(self.too_long(length));
        }
        if !KNOWN_FLAGS.contains(wr.flags) {
            return Err(PostReason::UnsupportedOp);
        }
        if let SendOp::CompareSwap { addr, .. } | SendOp::FetchAdd { addr, .. } = op {
            check_atomic(addr, length)?;
        }
        let inline = wr.flags.contains(Flags::INLINE);
        if inline {
            if !matches!(op, SendOp::Send { .. } | SendOp::Write { .. } | SendOp::Datagram { .. }) {
                return Err(PostReason::UnsupportedOp);
            }
            if length > u64::from(self.max_inline) {
                return Err(PostReason::InlineTooLong { given: length, max: self.max_inline });
            }
        }
        if !self.ring.has_room() {
            return Err(PostReason::QueueFull);
        }
        let flags = SendFlags {
            signaled: wr.flags.contains(Flags::SIGNALED),
            solicited: wr.flags.contains(Flags::SOLICITED),
            fence: wr.flags.contains(Flags::FENCE),
        };
        let wqe = |data| SendWqe { wr_id: wr.wr_id, op, flags, data };
        if inline {
            let len = length as u32;
            // SAFETY: with INLINE every element is readable memory of this process, says the caller.
            let bytes = unsafe { gather(wr.sge) };
            let list = (0..inline_len(len)).map(|n| pack(bytes[n]));
            self.ring.put(wqe(Data::Inline(len)), list);
        } else {
            self.ring.put(wqe(Data::Sges(num_sge as u32)), wr.sge.iter().map(sge));
        }
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), Errno> {
        self.ring.publish();
        self.device.posted(self.slot);
        Ok(())
    }
}

fn check_atomic(remote_addr: u64, length: u64) -> Result<(), PostReason> {
    if length != ATOMIC_LENGTH {
        return Err(PostReason::AtomicLength { given: length });
    }
    if !remote_addr.is_multiple_of(ATOMIC_LENGTH) {
        return Err(PostReason::AtomicMisaligned { remote_addr });
    }
    Ok(())
}

/// Inline data in pieces of the size of an element.
///
/// # Safety
/// Every element is readable memory of this process; together they are no longer than [`limits::MAX_INLINE_DATA`].
unsafe fn gather(sges: &[verbs_core::types::Sge]) -> [[u8; BYTES]; INLINE] {
    let mut bytes = [[0; BYTES]; INLINE];
    let mut room = bytes.as_flattened_mut();
    for sge in sges {
        let Some((piece, rest)) = room.split_at_mut_checked(sge.length as usize) else { break };
        let from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: the caller's promise; `piece` has as many bytes. It is local memory that nothing else points at.
        unsafe { core::ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len()) };
        room = rest;
    }
    bytes
}

/// Elements that the longest inline data takes.
const INLINE: usize = inline_len(limits::MAX_INLINE_DATA);

/// The bytes that an atomic works on.
const ATOMIC_LENGTH: u64 = 8;

/// Checksums of IP packets are not a thing that is sent here.
const KNOWN_FLAGS: Flags = Flags::FENCE.union(Flags::SIGNALED).union(Flags::SOLICITED).union(Flags::INLINE);
