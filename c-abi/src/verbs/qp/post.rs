//! `ibv_post_send` and `ibv_post_recv`: lists of work requests.
//!
//! A C request is converted to a [`SendWr`] on the stack; its scatter/gather list is read in place.
//! As in rdma-core, the requests before a bad request are posted.
//!
//! # Safety
//! See the crate documentation. The program keeps the memory of its requests as C requires, which
//! is what [`SendQueue::post_send`] requires. A `wr_id` may have the top bit set, because no safe
//! code posts to these queues.
#![allow(unsafe_code)]

use core::any::TypeId;
use core::ffi::c_int;
use core::slice;
use std::borrow::Cow;

use provider_mlx5::Mlx5;
use provider_rxe::Rxe;
use verbs_core::Errno;
use verbs_core::checks::ATOMIC_LENGTH;
use verbs_core::provider::{FastPath, Provider, SendQueue};
use verbs_core::types::{
    AccessFlags, MwBindInfo, MwType, PostReason, SendFlags, SendOp, SendWr, Sge, UdAddr,
};

use crate::abi::c::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV, IBV_WR_TSO, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr,
};
use crate::verbs::ah::AhObject;
use crate::verbs::qp::object::{Addressing, QpObject};
use crate::verbs::receives::{UNREADABLE, is_list, recv_locked, sges, stop, stop_with};

/// Returns the part of a region that a window is to be bound to. Devices ignore rights that a
/// window cannot grant, such as local write.
///
/// # Safety
/// The region must be null or live.
#[inline(always)]
pub(crate) unsafe fn bind_info(info: &ibv_mw_bind_info) -> MwBindInfo {
    // SAFETY: guaranteed by the caller.
    let lkey = if info.mr.is_null() { 0 } else { unsafe { (*info.mr).lkey } };
    MwBindInfo {
        lkey,
        addr: info.addr,
        length: info.length,
        mw_access_flags: AccessFlags::from_bits_retain(info.mw_access_flags)
            .intersection(AccessFlags::WINDOW_RIGHTS),
    }
}

/// Returns the flags of a request. As in rdma-core, unknown flags are ignored.
#[inline(always)]
pub(crate) const fn send_flags(flags: u32) -> SendFlags {
    SendFlags::from_bits_truncate(flags)
}

/// The function that reports a rejected send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    PostSend,
    WrComplete,
}

/// Returns the errno for a rejected send, the same as from rdma-core's library for the device. On
/// soft devices, it is the reason's errno.
#[cold]
#[inline(never)]
pub(crate) fn errno_of<P: Provider>(call: Call, reason: PostReason) -> Errno {
    let provider = TypeId::of::<P>();
    let is_long = matches!(reason, PostReason::TooManySge { .. } | PostReason::InlineTooLong { .. });
    if provider == TypeId::of::<Rxe>()
        && call == Call::WrComplete
        && (is_long || reason == PostReason::QueueFull)
    {
        Errno::NOSPC
    } else if provider == TypeId::of::<Mlx5>() && is_long {
        Errno::NOMEM
    } else {
        reason.errno()
    }
}

/// `ibv_post_send(3)`.
///
/// # Safety
/// `qp` must be a live queue pair of the provider; the list must be as `ibv_post_send(3)` requires.
pub(crate) unsafe extern "C" fn send<P: Provider>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the queue pair is live; its head is an `ibv_qp`.
    let object = unsafe { QpObject::<P>::inner(qp.cast()) };
    let (addressing, queue) = (object.addressing, &object.sq);
    if wr.is_null() {
        return 0;
    }
    if !queue.lock() {
        // SAFETY: `bad_wr` is null or points to a pointer.
        return unsafe { stop(wr, bad_wr, "post_send", PostReason::Doorbell(queue.why_not())) };
    }
    // SAFETY: this call holds the lock until the last use of the queue. The program does not change
    // its list during the call, and keeps its promise for each request; `bad_wr` is null or points
    // to a pointer.
    unsafe {
        let sq = queue.get();
        let is_one = addressing == Addressing::Connected && (*wr).next.is_null();
        let result =
            if is_one && post_alone::<P>(sq, &*wr) { 0 } else { send_list::<P>(sq, addressing, wr, bad_wr) };
        queue.unlock();
        result
    }
}

/// Posts a common request with a separate doorbell, if possible; otherwise the queue is unchanged.
/// Returns whether the request was posted.
///
/// # Safety
/// The request must meet the requirements of `ibv_post_send(3)`, and the queue pair must be
/// connected.
#[inline(always)]
unsafe fn post_alone<P: Provider>(sq: &mut P::Sq, wr: &ibv_send_wr) -> bool {
    if wr.num_sge != 1 || wr.sg_list.is_null() {
        return false;
    }
    // SAFETY: the operation names this member of the union; the list has one element, and both
    // types have the same layout.
    let (rdma, sge) = unsafe { (&wr.wr.rdma, slice::from_ref(&*wr.sg_list.cast::<Sge>())) };
    let op = match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_RDMA_WRITE => SendOp::RdmaWrite { remote_addr: rdma.remote_addr, rkey: rdma.rkey },
        _ => return false,
    };
    let wr = SendWr { wr_id: wr.wr_id, op, sge, flags: send_flags(wr.send_flags) };
    // SAFETY: guaranteed by the caller.
    unsafe { sq.post_fast(&wr, FastPath::Alone) }
}

/// Posts a list of requests and rings the doorbell.
///
/// # Safety
/// Each request must meet the requirements of `ibv_post_send(3)`; the list must not be empty;
/// `bad_wr` must be null or point to a pointer.
unsafe fn send_list<P: Provider>(
    sq: &mut P::Sq,
    addressing: Addressing,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the program's list, which it does not change during the call.
        let request = unsafe { &*next };
        // SAFETY: the program's promise for this request.
        if let Err(reason) = unsafe { post_one::<P>(sq, addressing, request) } {
            // The requests before the rejected one are posted. Their doorbell may fail too, but
            // only the first error is reported.
            let _ = if next == wr { Ok(()) } else { sq.ring() };
            let errno = errno_of::<P>(Call::PostSend, reason);
            // SAFETY: the program passes null or a pointer to write.
            return unsafe { stop_with(next, bad_wr, "post_send", reason, errno) };
        }
        next = request.next;
    }
    match sq.ring() {
        Ok(()) => 0,
        // SAFETY: as above.
        Err(errno) => unsafe { stop(next, bad_wr, "post_send", PostReason::Doorbell(errno)) },
    }
}

/// Posts a C work request.
///
/// Sends, writes and reads with one element each call [`SendQueue::post_fast`] from separate call
/// sites, where the compiler knows the operation and the length of the list. Inline data does not
/// take a queue's fast path.
///
/// # Safety
/// The request must meet the requirements of `ibv_post_send(3)`.
#[inline(always)]
unsafe fn post_one<P: Provider>(
    sq: &mut P::Sq,
    addressing: Addressing,
    wr: &ibv_send_wr,
) -> Result<(), PostReason> {
    if addressing == Addressing::Connected && wr.num_sge == 1 && !wr.sg_list.is_null() {
        // SAFETY: the list has one element; both types have the same layout.
        let sge = unsafe { slice::from_ref(&*wr.sg_list.cast::<Sge>()) };
        let (wr_id, flags) = (wr.wr_id, send_flags(wr.send_flags));
        let remote = || {
            // SAFETY: the operation names this member of the union.
            let rdma = unsafe { &wr.wr.rdma };
            (rdma.remote_addr, rdma.rkey)
        };
        let imm_data = || u32::from_be(wr.imm_data);
        // SAFETY: the program's promise for the request.
        let mut post = |op| unsafe { sq.post_fast(&SendWr { wr_id, op, sge, flags }, FastPath::Inlined) };
        let is_posted = match wr.opcode {
            IBV_WR_SEND if flags.contains(SendFlags::INLINE) => {
                // SAFETY: as above.
                return unsafe { sq.post_one(&SendWr { wr_id, op: SendOp::Send, sge, flags }) };
            }
            IBV_WR_SEND => post(SendOp::Send),
            IBV_WR_SEND_WITH_IMM => post(SendOp::SendWithImm { imm_data: imm_data() }),
            IBV_WR_RDMA_WRITE => {
                let (remote_addr, rkey) = remote();
                post(SendOp::RdmaWrite { remote_addr, rkey })
            }
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                let (remote_addr, rkey) = remote();
                post(SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: imm_data() })
            }
            IBV_WR_RDMA_READ => {
                let (remote_addr, rkey) = remote();
                post(SendOp::RdmaRead { remote_addr, rkey })
            }
            _ => false,
        };
        if is_posted {
            return Ok(());
        }
    }
    // SAFETY: the program's promise for the request.
    unsafe { post_any::<P>(sq, addressing, wr) }
}

/// Posts a C work request of any kind.
///
/// # Safety
/// The request must meet the requirements of `ibv_post_send(3)`.
#[inline(never)]
unsafe fn post_any<P: Provider>(
    sq: &mut P::Sq,
    addressing: Addressing,
    wr: &ibv_send_wr,
) -> Result<(), PostReason> {
    if !is_list(wr.sg_list, wr.num_sge) {
        return Err(UNREADABLE);
    }
    let bind;
    // SAFETY: the member of the union that the operation names is set; objects are live.
    let op = unsafe {
        let remote = || (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey);
        match wr.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM if addressing == Addressing::Datagram => {
                let ud = &wr.wr.ud;
                if ud.ah.is_null() {
                    return Err(UNREADABLE);
                }
                let av = &AhObject::<P>::inner(ud.ah).av;
                let to = UdAddr { av, remote_qpn: ud.remote_qpn, remote_qkey: ud.remote_qkey };
                if wr.opcode == IBV_WR_SEND {
                    SendOp::UdSend { to }
                } else {
                    SendOp::UdSendWithImm { to, imm_data: u32::from_be(wr.imm_data) }
                }
            }
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendWithImm { imm_data: u32::from_be(wr.imm_data) },
            IBV_WR_RDMA_WRITE => {
                let (remote_addr, rkey) = remote();
                SendOp::RdmaWrite { remote_addr, rkey }
            }
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                let (remote_addr, rkey) = remote();
                SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: u32::from_be(wr.imm_data) }
            }
            IBV_WR_RDMA_READ => {
                let (remote_addr, rkey) = remote();
                SendOp::RdmaRead { remote_addr, rkey }
            }
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                let atomic = &wr.wr.atomic;
                SendOp::AtomicCmpAndSwp {
                    remote_addr: atomic.remote_addr,
                    rkey: atomic.rkey,
                    compare: atomic.compare_add,
                    swap: atomic.swap,
                }
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = &wr.wr.atomic;
                SendOp::AtomicFetchAndAdd {
                    remote_addr: atomic.remote_addr,
                    rkey: atomic.rkey,
                    add: atomic.compare_add,
                }
            }
            IBV_WR_SEND_WITH_INV => SendOp::SendWithInv { invalidate_rkey: wr.imm_data },
            IBV_WR_LOCAL_INV => SendOp::LocalInv { invalidate_rkey: wr.imm_data },
            IBV_WR_BIND_MW => {
                let request = &wr.ext.bind_mw;
                if request.mw.is_null() {
                    return Err(UNREADABLE);
                }
                bind = bind_info(&request.bind_info);
                SendOp::BindMw {
                    mw_type: MwType((*request.mw).type_ as u8),
                    rkey: (*request.mw).rkey,
                    new_rkey: request.rkey,
                    bind_info: &bind,
                }
            }
            IBV_WR_TSO => {
                let tso = &wr.ext.tso;
                if tso.hdr.is_null() && tso.hdr_sz > 0 {
                    return Err(UNREADABLE);
                }
                let hdr = match tso.hdr_sz {
                    0 => &[][..],
                    len => slice::from_raw_parts(tso.hdr.cast::<u8>(), len.into()),
                };
                SendOp::Tso { hdr, mss: tso.mss }
            }
            _ => return Err(UNREADABLE),
        }
    };
    // SAFETY: the program's list stays valid during the call.
    let list = unsafe { sges(wr.sg_list, wr.num_sge) };
    // As in the C providers, the elements of an operation that uses none are ignored.
    let cut;
    let list = match op {
        SendOp::LocalInv { .. } | SendOp::BindMw { .. } => &[],
        SendOp::AtomicCmpAndSwp { .. } | SendOp::AtomicFetchAndAdd { .. } => {
            cut = cut_for_atomic(list);
            &*cut
        }
        _ => list,
    };
    let flags = send_flags(wr.send_flags);
    let is_local = matches!(op, SendOp::LocalInv { .. } | SendOp::BindMw { .. });
    if addressing == Addressing::Xrc && !is_local {
        // SAFETY: the member is set in requests of an XRC initiator.
        let remote_srqn = unsafe { wr.qp_type.xrc.remote_srqn };
        let op = SendOp::Xrc { remote_srqn, op: &op };
        // SAFETY: the program's promise for the request.
        return unsafe { sq.post_one(&SendWr { wr_id: wr.wr_id, op, sge: list, flags }) };
    }
    // SAFETY: the program's promise for the request.
    unsafe { sq.post_one(&SendWr { wr_id: wr.wr_id, op, sge: list, flags }) }
}

/// Truncates a scatter/gather list to the 8 bytes that an atomic writes. The C providers accept
/// longer lists, but the device writes only their first 8 bytes.
pub(crate) fn cut_for_atomic(list: &[Sge]) -> Cow<'_, [Sge]> {
    let mut left = ATOMIC_LENGTH;
    let fits = list.iter().map(|sge| u64::from(sge.length)).sum::<u64>() <= left;
    if fits {
        return Cow::Borrowed(list);
    }
    let cut = |sge: &Sge| {
        let length = left.min(sge.length.into());
        left -= length;
        Sge { length: length as u32, ..*sge }
    };
    Cow::Owned(list.iter().map(cut).collect())
}

/// `ibv_post_recv(3)`.
///
/// # Safety
/// `qp` must be a live queue pair of the provider; the list must be as `ibv_post_recv(3)` requires.
pub(crate) unsafe extern "C" fn recv<P: Provider>(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the queue pair is live, and the program's promise holds for the list.
    unsafe { recv_locked(&QpObject::<P>::inner(qp.cast()).rq, wr, bad_wr) }
}

#[cfg(test)]
mod tests {
    use provider_soft::Soft;

    use super::*;

    #[test]
    fn a_rejected_send_has_the_errno_of_rdma_cores_library() {
        let (full, no_memory) = (PostReason::QueueFull, PostReason::NoMemory { bytes: 1 });
        let too_many = PostReason::TooManySge { given: 2, max: 1 };
        let too_long = PostReason::InlineTooLong { given: 2, max: 1 };
        let misaligned = PostReason::AtomicMisaligned { remote_addr: 1 };
        let errnos = |of: fn(Call, PostReason) -> Errno, call| {
            [full, too_many, too_long, misaligned, no_memory].map(|reason| of(call, reason))
        };
        let (post, complete) = (Call::PostSend, Call::WrComplete);
        let (inval, nomem, nospc) = (Errno::INVAL, Errno::NOMEM, Errno::NOSPC);
        for call in [post, complete] {
            assert_eq!(errnos(errno_of::<Soft>, call), [nomem, inval, inval, inval, nomem]);
            assert_eq!(errnos(errno_of::<Mlx5>, call), [nomem, nomem, nomem, inval, nomem]);
        }
        assert_eq!(errnos(errno_of::<Rxe>, post), [nomem, inval, inval, inval, nomem]);
        assert_eq!(errnos(errno_of::<Rxe>, complete), [nospc, nospc, nospc, inval, nomem]);
    }
}
