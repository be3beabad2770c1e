//! Two ConnectX paper devices with the same queues: one behind the static API, one behind the C
//! API. Queues, doorbell records and registers are in plain memory.
//!
//! A queue has space for all requests of a measurement, because nothing completes them.
//!
//! # Safety
//! One thread uses both ends of every queue. The C objects live as long as the program.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::mem::zeroed;
use core::ptr::NonNull;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use ibverbs_c::c::mlx5dv::{MLX5DV_OBJ_CQ, mlx5dv_cq, mlx5dv_obj, mlx5dv_obj_of};
use ibverbs_c::c::*;
use nix::sys::eventfd::{EfdFlags, EventFd};
use provider_mlx5::direct::QueueDirect;
use provider_mlx5::paper::{PaperCqe, PaperDevice};
use provider_mlx5::{Mlx5, Pd, Qp};
use verbs::{DeviceInfo, Driver, Guid, NamedProvider, OwnDevice, Skipped};
use verbs_core::channel::{Expect, Reply, Scripted};
use verbs_core::provider::{ContextOps as _, OpenedContext, QpOps as _, QpParents, QpParts, erase};
use verbs_core::types::{CqInitAttr, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, Wc};

use crate::abi::{self, *};
use crate::world::{INLINE_LEN, Measured, World, c_cq, c_move, c_qp};

/// The number of requests that fit into each queue.
pub(crate) const SLOTS: u32 = 4096;
/// The number of blocks in a send queue: an entry of a reliable queue pair takes up to 4.
const BLOCKS: u32 = 4 * SLOTS;

const NAME: &str = "paper5";
const DRIVER_ID: u32 = 0xfeee;

/// The device's ends of the completion queues.
pub(crate) struct Ends {
    completions: [QueueDirect; 2],
    /// The number of completions written.
    written: u32,
    _qp: Qp,
    _pd: Pd,
    _device: PaperDevice,
}

impl Measured for Mlx5 {
    type Ends = Ends;
}

impl Ends {
    /// Completes `count` writes, as the device does between calls.
    pub(crate) fn complete(&mut self, count: u32) {
        for _ in 0..count {
            let wqe_counter = self.written as u16;
            for ring in self.completions {
                let cqe = PaperCqe { wqe_opcode: 8, wqe_counter, ..PaperCqe::default() };
                // SAFETY: there is one thread; the queues live.
                unsafe { PaperDevice::complete(ring, self.written, cqe) };
            }
            self.written += 1;
        }
    }
}

pub(crate) fn world() -> World<Mlx5> {
    let c = c_objects();
    // SAFETY: there is one thread; no memory is posted to these queues.
    let device = unsafe { PaperDevice::new(BLOCKS) };
    PaperDevice::expect_pd(&device.script);
    let pd = device.context.alloc_pd().unwrap();
    PaperDevice::expect_events(&device.script, events());
    PaperDevice::expect_cq(&device.script, 2 * SLOTS - 1);
    let (cq, handle) = device.context.create_cq(None, &CqInitAttr::new(SLOTS)).unwrap();
    PaperDevice::expect_qp(&device.script);
    PaperDevice::expect_windows(&device.script);
    let cap = QpCap {
        max_send_wr: SLOTS,
        max_recv_wr: SLOTS,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: INLINE_LEN as u32,
    };
    let init = QpInitAttr { qp_type: QpType::RC, cap, sq_sig_all: false, user_handle: 0 };
    let parts = device.context.create_qp(&QpParents::new(&pd, &handle, &handle), &init).unwrap();
    let QpParts { mut qp, mut sq, mut rq } = parts;
    for qp_state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        device.script.expect([Expect::anything(Reply::ok())]);
        let attr = QpAttr { qp_state, ..QpAttr::default() };
        qp.modify(&mut sq, &mut rq, &attr, QpAttrMask::STATE).unwrap();
    }
    let completions = [cq.direct().ring, c.ring];
    let ends = Ends { completions, written: 0, _qp: qp, _pd: pd, _device: device };
    let mut world: World<Mlx5> = World::new((sq, rq, cq), (c.qp, c.cq), ends);
    // The pollers look up the queue pairs at the first completion.
    world.ends.complete(1);
    assert_eq!(verbs_core::provider::CqOps::poll(&mut world.cq, &mut [Wc::default()]), 1);
    // SAFETY: the queue is live; the array has space.
    let polled = unsafe {
        let poll = table(c.context).context.ops.poll_cq.unwrap();
        poll(c.cq.cast(), 1, world.c_wcs.as_mut_ptr())
    };
    assert_eq!(polled, 1);
    world
}

/// Returns an event file without events.
fn events() -> OwnedFd {
    let file = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("a descriptor");
    file.into()
}

struct CObjects {
    context: *mut ibv_context,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq_ex,
    ring: QueueDirect,
}

/// Opens a paper device through the device list and creates its objects.
fn c_objects() -> CObjects {
    verbs::register(Driver {
        name: NAME,
        driver_id: DRIVER_ID,
        matches: |_| false,
        devices,
        open,
        import: None,
        ..Mlx5::DRIVER
    });
    // SAFETY: the objects are used as the manual pages demand; zeroed integers and null pointers
    // are valid.
    unsafe {
        let context = abi::open(|name| name == NAME);
        let guard = DEVICE.lock().unwrap();
        let script = guard.as_ref().expect("the device was opened");
        PaperDevice::expect_pd(script);
        let pd = ibv_alloc_pd(context);
        PaperDevice::expect_cq(script, 2 * SLOTS - 1);
        let cq = c_cq(context, SLOTS);
        PaperDevice::expect_qp(script);
        let cap = ibv_qp_cap {
            max_send_wr: SLOTS,
            max_recv_wr: SLOTS,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_LEN as u32,
        };
        let qp = c_qp(context, pd, cq, cap);
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            script.expect([Expect::anything(Reply::ok())]);
            let attr = ibv_qp_attr { path_mtu: IBV_MTU_1024, port_num: 1, ..zeroed() };
            c_move(qp, &attr, state);
        }
        CObjects { context, qp, cq, ring: ring(cq) }
    }
}

unsafe extern "C" {
    fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int;
}

/// Returns the memory location of a completion queue's ring.
///
/// # Safety
/// The queue must be live.
unsafe fn ring(cq: *mut ibv_cq_ex) -> QueueDirect {
    // SAFETY: guaranteed by the caller; zeroed integers and null pointers are valid.
    unsafe {
        let mut described: mlx5dv_cq = zeroed();
        let mut obj: mlx5dv_obj = zeroed();
        obj.cq = mlx5dv_obj_of { in_: cq.cast(), out: &raw mut described };
        assert_eq!(mlx5dv_init_obj(&raw mut obj, MLX5DV_OBJ_CQ), 0);
        let buf = NonNull::new(described.buf.cast()).expect("the queue's memory");
        QueueDirect { buf, entries: described.cqe_cnt, stride: described.cqe_size }
    }
}

/// The opened device's script.
static DEVICE: Mutex<Option<Scripted>> = Mutex::new(None);

fn devices() -> Vec<Result<DeviceInfo, Skipped>> {
    vec![Ok(DeviceInfo::brought(NAME, DRIVER_ID, Guid(2), OwnDevice::new(())))]
}

fn open(_: &DeviceInfo) -> verbs_core::Result<OpenedContext> {
    // SAFETY: there is one thread; no memory is posted to the device's queues.
    let PaperDevice { context, script } = unsafe { PaperDevice::new(BLOCKS) };
    PaperDevice::expect_events(&script, events());
    *DEVICE.lock().unwrap() = Some(script);
    Ok(erase::<Mlx5>(context))
}
