//! Queues of one kind of device, behind the static API and behind the C functions, and the requests
//! posted to them.
//!
//! # Safety
//! The C objects live as long as the program.
#![allow(unsafe_code)]

use core::mem::zeroed;
use core::ptr::null_mut;

use ibverbs_c::c::*;
use verbs_core::provider::Provider;
use verbs_core::types::{RecvWr, SendFlags, SendOp, SendWr, Sge, Wc};

use crate::abi::*;

/// The number of bytes of inline data.
pub(crate) const INLINE_LEN: usize = 8;
pub(crate) const RKEY: u32 = 7;
pub(crate) const REMOTE: u64 = 0x2000;
const LKEY: u32 = 7;

/// A provider whose queues are measured.
pub(crate) trait Measured: Provider + Sized {
    /// The objects that empty and complete the queues between the calls.
    type Ends;
}

/// The send, receive and completion queues of both APIs, and the requests to post.
pub(crate) struct World<P: Measured> {
    pub(crate) sq: P::Sq,
    pub(crate) rq: P::Rq,
    pub(crate) cq: P::Cq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) c_cq: *mut ibv_cq_ex,
    pub(crate) ends: P::Ends,
    pub(crate) sge: Sge,
    /// The C scatter/gather element, in memory that the compiler must assume other functions write
    /// to.
    pub(crate) c_sge: *const ibv_sge,
    pub(crate) data: &'static [u8; INLINE_LEN],
    /// Send work requests: sends, writes, and both with inline data.
    pub(crate) sends: [[SendWr<'static>; 16]; 4],
    pub(crate) recvs: [RecvWr<'static>; 16],
    /// The same requests for the C API, as lists of 1 and of 16.
    pub(crate) c_sends: [*mut ibv_send_wr; 8],
    pub(crate) c_recvs: [*mut ibv_recv_wr; 2],
    pub(crate) wcs: [Wc; 16],
    pub(crate) c_wcs: [ibv_wc; 16],
    pub(crate) wr_id: u64,
    /// The number of completions found by the last call.
    pub(crate) polled: usize,
}

impl<P: Measured> World<P> {
    /// Creates the requests for the given queues, both for the static API and for the C API.
    pub(crate) fn new(
        (sq, rq, cq): (P::Sq, P::Rq, P::Cq),
        (qp, c_cq): (*mut ibv_qp, *mut ibv_cq_ex),
        ends: P::Ends,
    ) -> Self {
        static DATA: [u8; INLINE_LEN] = [7; INLINE_LEN];
        let sge = Sge { addr: 0x1000, length: 64, lkey: LKEY };
        let inline = Sge { addr: DATA.as_ptr().expose_provenance() as u64, length: 8, lkey: 0 };
        let list = |sge| core::slice::from_ref::<Sge>(Box::leak(Box::new(sge)));
        let flags = SendFlags::SIGNALED;
        let write = SendOp::RdmaWrite { remote_addr: REMOTE, rkey: RKEY };
        let sends = |op, sge, flags| core::array::from_fn(|_| SendWr { wr_id: 0, op, sge: list(sge), flags });
        let (signaled, inlined) = (IBV_SEND_SIGNALED, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
        Self {
            sq,
            rq,
            cq,
            qp,
            c_cq,
            ends,
            sge,
            c_sge: leak_list(sge),
            data: &DATA,
            sends: [
                sends(SendOp::Send, sge, flags),
                sends(write, sge, flags),
                sends(SendOp::Send, inline, flags | SendFlags::INLINE),
                sends(write, inline, flags | SendFlags::INLINE),
            ],
            recvs: core::array::from_fn(|_| RecvWr { wr_id: 0, sge: list(sge) }),
            c_sends: [
                c_sends(1, IBV_WR_SEND, sge, signaled),
                c_sends(16, IBV_WR_SEND, sge, signaled),
                c_sends(1, IBV_WR_RDMA_WRITE, sge, signaled),
                c_sends(16, IBV_WR_RDMA_WRITE, sge, signaled),
                c_sends(1, IBV_WR_SEND, inline, inlined),
                c_sends(16, IBV_WR_SEND, inline, inlined),
                c_sends(1, IBV_WR_RDMA_WRITE, inline, inlined),
                c_sends(16, IBV_WR_RDMA_WRITE, inline, inlined),
            ],
            c_recvs: [1, 16].map(|count| c_recvs(count, sge)),
            wcs: [Wc::default(); 16],
            // SAFETY: zeroed integers are valid.
            c_wcs: [unsafe { zeroed() }; 16],
            wr_id: 0,
            polled: 0,
        }
    }
}

fn leak_list(sge: Sge) -> *mut ibv_sge {
    Box::leak(Box::new(ibv_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }))
}

fn c_sends(count: usize, opcode: ibv_wr_opcode, sge: Sge, send_flags: u32) -> *mut ibv_send_wr {
    (0..count).fold(null_mut(), |next, _| {
        // SAFETY: zeroed integers and null pointers are valid.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        (wr.next, wr.sg_list, wr.num_sge) = (next, leak_list(sge), 1);
        (wr.opcode, wr.send_flags) = (opcode, send_flags);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: REMOTE, rkey: RKEY };
        Box::leak(Box::new(wr))
    })
}

fn c_recvs(count: usize, sge: Sge) -> *mut ibv_recv_wr {
    (0..count).fold(null_mut(), |next, _| {
        Box::leak(Box::new(ibv_recv_wr { wr_id: 0, next, sg_list: leak_list(sge), num_sge: 1 }))
    })
}

/// Creates a C completion queue.
///
/// # Safety
/// The context must be open.
pub(crate) unsafe fn c_cq(context: *mut ibv_context, cqe: u32) -> *mut ibv_cq_ex {
    // SAFETY: guaranteed by the caller; zeroed integers and null pointers are valid.
    unsafe {
        let mut init: ibv_cq_init_attr_ex = zeroed();
        (init.cqe, init.wc_flags) = (cqe, IBV_WC_STANDARD_FLAGS);
        let cq = table(context).create_cq_ex.unwrap()(context, &raw mut init);
        assert!(!cq.is_null(), "{}", errno());
        cq
    }
}

/// Creates a reliable queue pair in C that has the functions of `ibv_qp_ex`.
///
/// # Safety
/// The objects must be live.
pub(crate) unsafe fn c_qp(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq_ex,
    cap: ibv_qp_cap,
) -> *mut ibv_qp {
    // SAFETY: guaranteed by the caller; zeroed integers and null pointers are valid.
    unsafe {
        let mut init: ibv_qp_init_attr_ex = zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq.cast(), cq.cast(), IBV_QPT_RC);
        init.cap = cap;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.pd = pd;
        init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
        let qp = table(context).create_qp_ex.unwrap()(context, &raw mut init);
        assert!(!qp.is_null(), "{}", errno());
        qp
    }
}

/// Moves a C queue pair to a state, with the necessary attributes.
///
/// # Safety
/// The queue pair must be live.
pub(crate) unsafe fn c_move(qp: *mut ibv_qp, attr: &ibv_qp_attr, to: ibv_qp_state) {
    let mask = match to {
        IBV_QPS_INIT => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        IBV_QPS_RTR => {
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        IBV_QPS_RTS => {
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
        }
        _ => 0,
    };
    let mut attr = ibv_qp_attr { qp_state: to, ..*attr };
    // SAFETY: guaranteed by the caller.
    assert_eq!(unsafe { ibv_modify_qp(qp, &raw mut attr, (mask | IBV_QP_STATE) as i32) }, 0);
}
