//! Two rxe paper devices with the same queues: one behind the static API, one behind the C API.
//!
//! # Safety
//! One thread uses both ends of every queue. The C objects live as long as the program.
#![allow(unsafe_code)]

use core::mem::zeroed;
use std::sync::Mutex;

use ibverbs_c::c::*;
use ibverbs_c::verbs::srq::ibv_create_srq;
use provider_rxe::paper::{PaperDevice, PaperQueue};
use provider_rxe::{Rxe, SrqQueue};
use uverbs_abi::rdma_user_rxe::{RxeCreateCqResp, RxeCreateQpResp, RxeCreateSrqResp};
use verbs::{DeviceInfo, Driver, Guid, NamedProvider, OwnDevice, Skipped};
use verbs_core::channel::{Expect, Reply, Scripted};
use verbs_core::provider::{OpenedContext, erase};
use verbs_core::types::QpState;
use zerocopy::IntoBytes as _;

use crate::abi::{self, *};
use crate::world::{Measured, World, c_cq, c_move, c_qp};

/// The number of slots in every queue.
pub(crate) const SLOTS: u32 = 1024;

const NAME: &str = "paper";
const DRIVER_ID: u32 = 0xfeed;

/// The kernel's ends of the queues, and the shared receive queues.
pub(crate) struct Ends {
    pub(crate) srq: SrqQueue,
    pub(crate) c_srq: *mut ibv_srq,
    /// The queues that the program fills.
    filled: [PaperQueue; 6],
    completions: [PaperQueue; 2],
}

impl Measured for Rxe {
    type Ends = Ends;
}

impl Ends {
    /// Empties the posted queues, as the kernel does between calls.
    pub(crate) fn drain(&self) {
        self.filled.iter().for_each(PaperQueue::drain);
    }

    /// Completes `count` requests, as the kernel does between calls.
    pub(crate) fn complete(&self, count: u32) {
        for queue in &self.completions {
            queue.drain();
            queue.refill(count);
        }
    }
}

pub(crate) fn world() -> World<Rxe> {
    let (filled, completions, c) = c_objects();
    // SAFETY: there is one thread; no memory is posted to these queues.
    let device = unsafe { PaperDevice::new() };
    let mut attr = PaperDevice::rc();
    attr.cap.max_send_wr = SLOTS - 1;
    attr.cap.max_recv_wr = SLOTS - 1;
    let cq = device.create_cq(SLOTS);
    let mut qp = device.create_qp(cq.handle, attr);
    device.move_to(&mut qp, QpState::RTS);
    let (srq, shared) = device.create_srq(SLOTS);
    let [sq, rq, c_shared] = filled;
    let ends = Ends {
        srq: srq.queue,
        c_srq: c.srq,
        filled: [qp.sq, qp.rq, shared, sq, rq, c_shared],
        completions: [cq.queue, completions],
    };
    World::new((qp.parts.sq, qp.parts.rq, cq.cq), (c.qp, c.cq), ends)
}

struct CObjects {
    qp: *mut ibv_qp,
    srq: *mut ibv_srq,
    cq: *mut ibv_cq_ex,
}

/// Opens a paper device through the device list and creates its objects. Returns the kernel's ends
/// of the send, receive, shared receive and completion queues.
fn c_objects() -> ([PaperQueue; 3], PaperQueue, CObjects) {
    verbs::register(Driver {
        name: NAME,
        driver_id: DRIVER_ID,
        matches: |_| false,
        devices,
        open,
        import: None,
        ..Rxe::DRIVER
    });
    // SAFETY: the objects are used as the manual pages demand; zeroed integers and null pointers
    // are valid.
    unsafe {
        let context = abi::open(|name| name == NAME);
        let guard = SCRIPT.lock().unwrap();
        let script = guard.as_ref().expect("the device was opened");
        script.expect([Expect::anything(Reply::outputs([&2_u32.to_ne_bytes()]))]);
        let pd = ibv_alloc_pd(context);

        let completions = PaperQueue::new(SLOTS, 64);
        let reply = RxeCreateCqResp { mi: PaperDevice::mminfo(PaperDevice::CQ_OFFSET, &completions) };
        script.expect([PaperDevice::cq_reply(SLOTS - 1, reply.as_bytes())]);
        map(script, PaperDevice::CQ_OFFSET, &completions);
        let cq = c_cq(context, SLOTS - 1);

        let mut attr = PaperDevice::rc();
        attr.cap.max_send_wr = SLOTS - 1;
        attr.cap.max_recv_wr = SLOTS - 1;
        let (sq, rq) = (PaperQueue::new(SLOTS, 512), PaperQueue::new(SLOTS, 128));
        let reply = RxeCreateQpResp {
            rq_mi: PaperDevice::mminfo(PaperDevice::RQ_OFFSET, &rq),
            sq_mi: PaperDevice::mminfo(PaperDevice::SQ_OFFSET, &sq),
        };
        script.expect([PaperDevice::qp_reply(&attr.cap, reply.as_bytes())]);
        map(script, PaperDevice::RQ_OFFSET, &rq);
        map(script, PaperDevice::SQ_OFFSET, &sq);
        let cap = ibv_qp_cap {
            max_send_wr: attr.cap.max_send_wr,
            max_recv_wr: attr.cap.max_recv_wr,
            max_send_sge: attr.cap.max_send_sge,
            max_recv_sge: attr.cap.max_recv_sge,
            max_inline_data: attr.cap.max_inline_data,
        };
        let qp = c_qp(context, pd, cq, cap);
        let attr = ibv_qp_attr { path_mtu: IBV_MTU_1024, ..zeroed() };
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            script.expect([Expect::anything(Reply::ok())]);
            c_move(qp, &attr, state);
        }

        let shared = PaperQueue::new(SLOTS, 128);
        let mi = PaperDevice::mminfo(PaperDevice::SRQ_OFFSET, &shared);
        let driver = RxeCreateSrqResp { mi, srq_num: 1, reserved: 0 };
        script.expect([Expect::anything(Reply::outputs([
            &PaperDevice::SRQ_HANDLE.to_ne_bytes()[..],
            &(SLOTS - 1).to_ne_bytes(),
            &4_u32.to_ne_bytes(),
            driver.as_bytes(),
        ]))]);
        map(script, PaperDevice::SRQ_OFFSET, &shared);
        let mut init: ibv_srq_init_attr = zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (SLOTS - 1, 4);
        let srq = ibv_create_srq(pd, &raw mut init);
        assert!(!srq.is_null(), "{}", errno());
        ([sq, rq, shared], completions, CObjects { qp, srq, cq })
    }
}

/// Makes the script expect a mapping of this queue next.
///
/// # Safety
/// Same as [`PaperQueue::region`].
unsafe fn map(script: &Scripted, offset: u64, queue: &PaperQueue) {
    // SAFETY: guaranteed by the caller.
    script.expect_map(offset, queue.size(), unsafe { queue.region() });
}

/// The opened device's script.
static SCRIPT: Mutex<Option<Scripted>> = Mutex::new(None);

fn devices() -> Vec<Result<DeviceInfo, Skipped>> {
    vec![Ok(DeviceInfo::brought(NAME, DRIVER_ID, Guid(1), OwnDevice::new(())))]
}

fn open(_: &DeviceInfo) -> verbs_core::Result<OpenedContext> {
    // SAFETY: there is one thread; no memory is posted to the device's queues.
    let PaperDevice { context, script, .. } = unsafe { PaperDevice::new() };
    *SCRIPT.lock().unwrap() = Some(script);
    Ok(erase::<Rxe>(context))
}
