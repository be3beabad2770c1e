//! [`Sq`]: the send queue of a queue pair.
//!
//! Posting finds every defect of a work request ([`verbs_core::checks`]) before the request is in
//! the ring. The engine reads the request later, perhaps on another thread, when an error can no
//! longer be returned.
//!
//! # Safety
//! The caller that posts a request guarantees that the request's memory is valid. Nothing here
//! accesses this memory, except to copy inline data. The caller guarantees that the source of
//! inline data is readable.
#![allow(unsafe_code)]

use std::sync::Arc;

use roce::engine::{Access, Opcode, SendFlags, SendOp, Status, UdDestination};
use roce::wire::feth;
use verbs_core::Errno;
use verbs_core::checks::{DeviceFault, SendChecks};
use verbs_core::provider::{FastPath, SendQueue};
use verbs_core::types::{
    MwBindInfo, OpKind, PostReason, QpCap, QpState, QpType, SendFlags as Flags, SendOp as Op, SendWr, UdAddr,
};

use crate::device::wqe::{BYTES, Data, SendWqe, inline_len, pack};
use crate::device::{Device, limits};
use crate::objects::ah::from_av;
use crate::objects::rq::sge;
use crate::sync::ring::Producer;

/// The send queue of a queue pair.
#[derive(Debug)]
pub struct Sq {
    pub(crate) ring: Producer<SendWqe>,
    device: Arc<Device>,
    slot: usize,
    checks: SendChecks,
}

impl Sq {
    /// Creates a send queue. With `max_datagram`, its messages are datagrams of at most
    /// `max_datagram` bytes.
    pub(crate) fn new(
        device: &Arc<Device>,
        ring: Producer<SendWqe>,
        slot: usize,
        qp_type: QpType,
        cap: &QpCap,
        max_datagram: Option<u32>,
    ) -> Self {
        let checks = SendChecks::new(qp_type, cap).with_placement(true, true).with_windows_of_every_type();
        let checks = match max_datagram {
            Some(bytes) => checks.with_max_datagram(bytes),
            None => checks,
        };
        Self { ring, device: Arc::clone(device), slot, checks }
    }

    /// Updates the checks for a new state of the queue pair.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.checks.moved_to(state);
        if state == QpState::RESET {
            self.ring.resync();
        }
    }

    /// Converts a checked operation to the engine's form.
    #[inline]
    fn op(&self, op: &Op<'_>) -> Result<SendOp, PostReason> {
        match *op {
            Op::Send => Ok(SendOp::Send { imm: None }),
            Op::SendWithImm { imm_data } => Ok(SendOp::Send { imm: Some(imm_data) }),
            Op::RdmaWrite { remote_addr: addr, rkey } => Ok(SendOp::Write { addr, rkey, imm: None }),
            Op::RdmaWriteWithImm { remote_addr: addr, rkey, imm_data } => {
                Ok(SendOp::Write { addr, rkey, imm: Some(imm_data) })
            }
            Op::RdmaRead { remote_addr: addr, rkey } => Ok(SendOp::Read { addr, rkey }),
            Op::AtomicCmpAndSwp { remote_addr: addr, rkey, compare, swap } => {
                Ok(SendOp::CompareSwap { addr, rkey, compare, swap })
            }
            Op::AtomicFetchAndAdd { remote_addr: addr, rkey, add } => {
                Ok(SendOp::FetchAdd { addr, rkey, add })
            }
            Op::Flush { remote_addr: addr, rkey, length, placement, selectivity } => {
                let feth = feth::Repr { plt: placement.bits(), sel: selectivity.0 };
                Ok(SendOp::Flush { addr, rkey, length, feth })
            }
            Op::AtomicWrite { remote_addr: addr, rkey, data } => Ok(SendOp::AtomicWrite { addr, rkey, data }),
            Op::UdSend { to } => self.datagram(&to, None),
            Op::UdSendWithImm { to, imm_data } => self.datagram(&to, Some(imm_data)),
            Op::SendWithInv { invalidate_rkey: rkey } => Ok(SendOp::SendInvalidate { rkey }),
            Op::LocalInv { invalidate_rkey: rkey } => Ok(SendOp::LocalInvalidate { rkey }),
            Op::BindMw { rkey: window, new_rkey, bind_info, .. } => {
                let MwBindInfo { lkey, addr, length, mw_access_flags } = *bind_info;
                let access = Access(mw_access_flags.bits());
                Ok(SendOp::Bind { window, new_rkey, lkey, addr, length, access })
            }
            Op::Xrc { op, .. } => self.op(op),
            _ => Err(PostReason::UnsupportedOp { op: op.kind(), qp_type: self.checks.qp_type() }),
        }
    }

    /// Posts a faulty request without its data. The device reports the fault in the request's
    /// completion.
    #[cold]
    fn post_faulty(&mut self, wr: &SendWr<'_>, reason: PostReason) -> Result<(), PostReason> {
        let status = match self.checks.left_to_device(wr, reason)? {
            DeviceFault::Length(_) => Status::LocalLength,
            DeviceFault::Operation => Status::LocalQpOperation,
        };
        if !self.ring.has_room() {
            return Err(PostReason::QueueFull);
        }
        let op = SendOp::Faulty { status, opcode: opcode(&wr.op) };
        let (flags, data) = (flags(wr.flags), Data::Sges(0));
        self.ring.put(SendWqe { wr_id: wr.wr_id, op, flags, remote_srq: 0, data }, [].into_iter());
        Ok(())
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
        let length = match self.checks.check(wr) {
            Ok(length) => length,
            Err(reason) => return self.post_faulty(wr, reason),
        };
        let op = self.op(&wr.op)?;
        let inline = wr.flags.contains(Flags::INLINE);
        if !self.ring.has_room() {
            return Err(PostReason::QueueFull);
        }
        let flags = flags(wr.flags);
        let remote_srq = match wr.op {
            Op::Xrc { remote_srqn, .. } => remote_srqn,
            _ => 0,
        };
        let wqe = |data| SendWqe { wr_id: wr.wr_id, op, flags, remote_srq, data };
        if inline {
            // SAFETY: with INLINE the caller guarantees that every element is readable memory of
            // this process.
            let bytes = unsafe { gather(wr.sge) };
            let list = (0..inline_len(length)).map(|n| pack(bytes[n]));
            self.ring.put(wqe(Data::Inline(length)), list);
        } else {
            self.ring.put(wqe(Data::Sges(wr.sge.len() as u32)), wr.sge.iter().map(sge));
        }
        Ok(())
    }

    #[inline(always)]
    unsafe fn post_fast(&mut self, wr: &SendWr<'_>, path: FastPath) -> bool {
        if path == FastPath::Alone {
            return false;
        }
        let op = match wr.op {
            Op::Send => SendOp::Send { imm: None },
            Op::SendWithImm { imm_data } => SendOp::Send { imm: Some(imm_data) },
            Op::RdmaWrite { remote_addr: addr, rkey } => SendOp::Write { addr, rkey, imm: None },
            Op::RdmaWriteWithImm { remote_addr: addr, rkey, imm_data } => {
                SendOp::Write { addr, rkey, imm: Some(imm_data) }
            }
            Op::RdmaRead { remote_addr: addr, rkey } => SendOp::Read { addr, rkey },
            _ => return false,
        };
        let [element] = wr.sge else { return false };
        if !self.checks.is_plain(wr) || self.device.is_forked() || !self.ring.has_room() {
            return false;
        }
        let (wr_id, flags, data) = (wr.wr_id, flags(wr.flags), Data::Sges(1));
        self.ring.put(SendWqe { wr_id, op, flags, remote_srq: 0, data }, core::iter::once(sge(element)));
        true
    }

    #[inline]
    fn ring(&mut self) -> Result<(), Errno> {
        // Requests may have been added to the ring before the fork.
        if self.device.is_forked() {
            return Err(Errno::NODEV);
        }
        self.ring.publish();
        self.device.posted(self.slot);
        Ok(())
    }

    fn leave_faults_to_device(&mut self) {
        self.checks.leave_faults_to_device();
    }

    fn rollback(&mut self, count: usize) -> usize {
        self.ring.rollback(u32::try_from(count).unwrap_or(u32::MAX)) as usize
    }
}

/// Returns the opcode reported by the completion of a faulty request.
fn opcode(op: &Op<'_>) -> Opcode {
    match op.kind() {
        OpKind::RDMA_WRITE | OpKind::RDMA_WRITE_WITH_IMM => Opcode::Write,
        OpKind::RDMA_READ => Opcode::Read,
        OpKind::ATOMIC_CMP_AND_SWP => Opcode::CompareSwap,
        OpKind::ATOMIC_FETCH_AND_ADD => Opcode::FetchAdd,
        OpKind::LOCAL_INV => Opcode::LocalInvalidate,
        OpKind::FLUSH => Opcode::Flush,
        OpKind::ATOMIC_WRITE => Opcode::AtomicWrite,
        _ => Opcode::Send,
    }
}

/// Converts the supported flags to the engine's form.
#[inline(always)]
const fn flags(flags: Flags) -> SendFlags {
    SendFlags {
        signaled: flags.contains(Flags::SIGNALED),
        solicited: flags.contains(Flags::SOLICITED),
        fence: flags.contains(Flags::FENCE),
    }
}

/// Returns inline data in element-sized pieces.
///
/// # Safety
/// Every element must be readable memory of this process. The total length must be at most
/// [`limits::MAX_INLINE_DATA`] bytes.
unsafe fn gather(sges: &[verbs_core::types::Sge]) -> [[u8; BYTES]; INLINE] {
    let mut bytes = [[0; BYTES]; INLINE];
    let mut room = bytes.as_flattened_mut();
    for sge in sges {
        let Some((piece, rest)) = room.split_at_mut_checked(sge.length as usize) else { break };
        let from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: the caller guarantees a readable source; `piece` has as many bytes, and no other
        // pointer to this local memory exists.
        unsafe { core::ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len()) };
        room = rest;
    }
    bytes
}

/// The number of list elements needed for the longest inline data.
const INLINE: usize = inline_len(limits::MAX_INLINE_DATA);
