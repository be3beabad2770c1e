//! [`PaperDevice`]: an open device whose kernel is a script, for tests and benchmarks that create
//! objects as programs do. Queues and doorbell records are in the objects' memory, registers in
//! plain memory.
//!
//! # Safety
//! The caller of [`PaperDevice::new`] acts as the kernel and the device.
#![allow(unsafe_code)]

use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::path::Path;

use uverbs_abi::mlx5_abi::{
    Mlx5IbAllocUcontextResp, Mlx5IbAllocUcontextRespMask, Mlx5IbCreateCqResp, Mlx5IbCreateQpResp,
    Mlx5UserCmdsSuppUhw,
};
use verbs_core::Errno;
use verbs_core::channel::{Expect, Reply, Scripted, Uhw, Uverbs};
use verbs_core::kernel::KernelContext;
use verbs_core::ring::Region;
use zerocopy::IntoBytes as _;

use super::{PaperCqe, QP_NUM};
use crate::device::{CQE_VERSION, DRIVER_ID, Device, fw_ver};
use crate::direct::QueueDirect;
use crate::doorbell::uar::UAR;
use crate::objects::context::Context;
use crate::queue::cq::CQE_FIELDS;

/// The key shared by all null regions.
pub(crate) const NULL_KEY: u32 = 0x700;

/// The number of the page with the registers that all objects share.
const SHARED_PAGE: u32 = 9;

/// The reply from a driver that allocates registers as queue pairs need them.
pub(crate) const REPLY: Mlx5IbAllocUcontextResp = Mlx5IbAllocUcontextResp {
    qp_tab_size: 0,
    bf_reg_size: 512,
    tot_bfregs: 0,
    cache_line_size: 64,
    max_sq_desc_sz: 1024,
    max_rq_desc_sz: 512,
    max_send_wqebb: 1024,
    max_recv_wr: 1024,
    max_srq_recv_wr: 1024,
    num_ports: 1,
    flow_action_flags: 0,
    comp_mask: Mlx5IbAllocUcontextRespMask::MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY.bits(),
    response_length: 0,
    cqe_version: CQE_VERSION,
    cmds_supp_uhw: Mlx5UserCmdsSuppUhw::MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE.bits(),
    eth_min_inline: 0,
    clock_info_versions: 0,
    hca_core_clock_offset: 0,
    log_uar_size: 12,
    num_uars_per_page: 1,
    num_dyn_bfregs: 0,
    dump_fill_mkey: NULL_KEY,
};

/// An open device whose kernel is a script.
#[derive(Debug)]
pub struct PaperDevice {
    /// The provider's context.
    pub context: Context,
    /// The script; tests add the commands they expect, with replies.
    pub script: Scripted,
}

impl PaperDevice {
    /// Opens a device whose queues have at most `max` entries.
    ///
    /// # Safety
    /// The caller must behave like the kernel and the device: write each completion once, after its
    /// request has ended, and access no memory for a destroyed object.
    pub unsafe fn new(max: u32) -> Self {
        let context = [&1_u32.to_ne_bytes()[..], &0_u64.to_ne_bytes()];
        let script = Scripted::new([Expect::anything(Reply::outputs(context))]);
        // SAFETY: the caller makes the same promise.
        let uverbs = unsafe { Uverbs::new(Box::new(script.clone()), DRIVER_ID, "mlx5_0") };
        let kernel = KernelContext::new(uverbs, Path::new("/nonexistent"), fw_ver, Uhw::none()).unwrap();
        let reply =
            Mlx5IbAllocUcontextResp { max_send_wqebb: max, max_recv_wr: max, max_srq_recv_wr: max, ..REPLY };
        expect_page(&script, SHARED_PAGE, 0x3000);
        let device = Device::new(kernel, &reply).unwrap();
        Self { context: Context::over(device), script }
    }

    /// Expects the commands that create a protection domain.
    pub fn expect_pd(script: &Scripted) {
        script.expect([Expect::anything(Reply::outputs([&2_u32.to_ne_bytes()]))]);
    }

    /// Expects the command that opens an event file like the kernel's, and replies with `events`.
    pub fn expect_events(script: &Scripted, events: OwnedFd) {
        let events = events.into_raw_fd();
        script.expect([Expect::anything(Reply::outputs([&events.to_ne_bytes()]))]);
    }

    /// Expects the command that creates the first completion queue.
    pub fn expect_cq(script: &Scripted, cqe: u32) {
        let driver = Mlx5IbCreateCqResp { cqn: 5, reserved: 0 };
        let outputs = Reply::outputs([&3_u32.to_ne_bytes(), &cqe.to_ne_bytes(), driver.as_bytes()]);
        script.expect([Expect::anything(outputs)]);
    }

    /// Expects the commands that create the first queue pair, whose completions contain user index
    /// 0. The queue pair has its own register.
    pub fn expect_qp(script: &Scripted) {
        expect_page(script, SHARED_PAGE + 1, 0x4000);
        let driver = Mlx5IbCreateQpResp::default();
        script.expect([Expect::anything(Reply::outputs([
            &4_u32.to_ne_bytes(),
            &[0; 20],
            &QP_NUM.to_ne_bytes(),
            driver.as_bytes(),
        ]))]);
    }

    /// Expects the query for the device's properties, made for queue pairs that may post memory
    /// window requests. The device has no windows.
    pub fn expect_windows(script: &Scripted) {
        script.expect([Expect::anything(Reply::Errno(Errno::INVAL))]);
    }

    /// Writes a completion of the first queue pair into a completion queue, at an index that keeps
    /// counting across the end of the ring.
    ///
    /// # Safety
    /// The completion queue lives and has not been resized, and no other thread uses it.
    pub unsafe fn complete(ring: QueueDirect, place: u32, cqe: PaperCqe) {
        let owner = u8::from(place & ring.entries != 0);
        let start = (place & (ring.entries - 1)) as usize * ring.stride as usize;
        let fields = start + ring.stride as usize - CQE_FIELDS;
        let put = |offset: usize, bytes: &[u8]| {
            for (byte, value) in bytes.iter().enumerate() {
                // SAFETY: inside an entry of the ring, by the caller's promise.
                unsafe { ring.buf.add(fields + offset + byte).write_volatile(*value) };
            }
        };
        put(32, &0_u32.to_be_bytes());
        put(44, &cqe.byte_cnt.to_be_bytes());
        put(56, &((u32::from(cqe.wqe_opcode) << 24) | QP_NUM).to_be_bytes());
        put(60, &cqe.wqe_counter.to_be_bytes());
        put(63, &[cqe.opcode << 4 | owner]);
    }
}

/// Expects the commands that allocate a page of registers, and maps plain memory in its place.
fn expect_page(script: &Scripted, page_id: u32, map_offset: u64) {
    script.expect([Expect::anything(Reply::outputs([
        &1_u32.to_ne_bytes(),
        &map_offset.to_ne_bytes(),
        &(UAR as u32).to_ne_bytes(),
        &page_id.to_ne_bytes(),
    ]))]);
    script.expect_map(map_offset, UAR, Region::plain(UAR));
}
