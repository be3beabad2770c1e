//! Queues of soft devices: one behind the static API, one behind the C API.
//!
//! The device's work depends on time and on packets. The queue pair for posting is therefore in
//! SQD, where the device accepts requests and starts none. The completions to poll are the flushed
//! receives of another queue pair, which is moved to ERR: all of them are in the queue when that
//! call returns.
//!
//! # Safety
//! The device accesses no memory that these requests name. The C objects live as long as the
//! program.
#![allow(unsafe_code)]

use core::mem::{MaybeUninit, zeroed};

use ibverbs_c::c::*;
use provider_soft::{Context, Pd, Qp, Soft, SoftDevice};
use verbs_core::provider::{
    ContextOps as _, NamedProvider as _, QpOps as _, QpParents, QpParts, RecvQueue as _,
};
use verbs_core::transition;
use verbs_core::types::{
    AhAttr, CqInitAttr, GlobalRoute, Mtu, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, RecvWr,
};

use crate::abi::*;
use crate::world::{Measured, World, c_cq, c_move, c_qp};

/// The number of slots in every queue.
pub(crate) const SLOTS: u32 = 2048;
const PORT: u8 = 1;

/// The queue pairs whose receives are flushed, and the device's other objects.
pub(crate) struct Ends {
    flushed: QpParts<Soft>,
    c_flushed: *mut ibv_qp,
    _posted: Qp,
    _pd: Pd,
    _context: Context,
}

impl Measured for Soft {
    type Ends = Ends;
}

impl World<Soft> {
    /// Completes `count` receives by flushing them.
    pub(crate) fn flush(&mut self, count: u32) {
        let Ends { flushed, c_flushed, .. } = &mut self.ends;
        move_to(flushed, &QpAttr { port_num: PORT, ..QpAttr::default() }, QpState::INIT);
        let recv = RecvWr { wr_id: 1, sge: &[] };
        // SAFETY: the requests refer to no memory.
        (0..count).for_each(|_| unsafe { flushed.rq.post_recv(&[recv]) }.unwrap());
        move_to(flushed, &QpAttr::default(), QpState::ERR);
        // SAFETY: the queue pair is live; the requests refer to no memory.
        unsafe {
            c_move(*c_flushed, &ibv_qp_attr { port_num: PORT, ..zeroed() }, IBV_QPS_INIT);
            let post = (*(**c_flushed).context).ops.post_recv.unwrap();
            for _ in 0..count {
                let mut recv = ibv_recv_wr { wr_id: 1, ..zeroed() };
                assert_eq!(post(*c_flushed, &raw mut recv, MaybeUninit::uninit().as_mut_ptr()), 0);
            }
            c_move(*c_flushed, &zeroed(), IBV_QPS_ERR);
        }
    }
}

/// Creates both devices. The environment variable `VERBS_SOFT` requests the device that C opens.
pub(crate) fn world() -> World<Soft> {
    let context = Soft::open(&SoftDevice::auto().unwrap()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let (cq, cq_handle) = context.create_cq(None, &CqInitAttr::new(SLOTS)).unwrap();
    let cap = QpCap {
        max_send_wr: SLOTS,
        max_recv_wr: SLOTS,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 8,
    };
    let init = QpInitAttr { qp_type: QpType::RC, cap, sq_sig_all: false, user_handle: 0 };
    let create = || context.create_qp(&QpParents::new(&pd, &cq_handle, &cq_handle), &init).unwrap();
    let (mut posted, flushed) = (create(), create());
    let dgid = context.device().query_gid_entry(PORT, 0).unwrap().unwrap().gid;
    let grh = GlobalRoute { dgid, hop_limit: 64, ..GlobalRoute::default() };
    let attr = QpAttr {
        port_num: PORT,
        ah_attr: AhAttr { grh: Some(grh), port_num: PORT, ..AhAttr::default() },
        path_mtu: Mtu::MTU_1024,
        dest_qp_num: posted.qp.qp_num(),
        timeout: 14,
        ..QpAttr::default()
    };
    for state in [QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD] {
        move_to(&mut posted, &attr, state);
    }
    let (c_posted, c_flushed, c_cq) = c_objects();
    let QpParts { qp, sq, rq } = posted;
    let ends = Ends { flushed, c_flushed, _posted: qp, _pd: pd, _context: context };
    World::new((sq, rq, cq), (c_posted, c_cq), ends)
}

/// Moves a queue pair to a state, with the necessary attributes.
fn move_to(parts: &mut QpParts<Soft>, attr: &QpAttr, to: QpState) {
    let QpParts { qp, sq, rq } = parts;
    let required = transition::lookup(QpType::RC, qp.state(), to).unwrap().required;
    qp.modify(sq, rq, &QpAttr { qp_state: to, ..*attr }, required | QpAttrMask::STATE).unwrap();
}

/// Returns the queue pair for posting, the queue pair to be flushed, and their completion queue.
fn c_objects() -> (*mut ibv_qp, *mut ibv_qp, *mut ibv_cq_ex) {
    // SAFETY: the objects are used as the manual pages demand; zeroed integers and null pointers
    // are valid.
    unsafe {
        let context = open(|name| name.starts_with("soft"));
        let pd = ibv_alloc_pd(context);
        let cq = c_cq(context, SLOTS);
        let cap = ibv_qp_cap {
            max_send_wr: SLOTS,
            max_recv_wr: SLOTS,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 8,
        };
        let (posted, flushed) = (c_qp(context, pd, cq, cap), c_qp(context, pd, cq, cap));
        let mut attr: ibv_qp_attr = zeroed();
        attr.port_num = PORT;
        (attr.path_mtu, attr.dest_qp_num, attr.timeout) = (IBV_MTU_1024, (*posted).qp_num, 14);
        (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, PORT);
        attr.ah_attr.grh.hop_limit = 64;
        assert_eq!(ibv_query_gid(context, PORT, 0, &raw mut attr.ah_attr.grh.dgid), 0);
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD] {
            c_move(posted, &attr, state);
        }
        (posted, flushed, cq)
    }
}
