//! The supported functions of `libmlx5.so.1`, for devices of the provider `mlx5`. The other
//! functions are in `facade`.
//!
//! | file | functions |
//! |---|---|
//! | `mod` | devices: attributes, clock, ports, doorbell registers |
//! | `objects` | `mlx5dv_init_obj` |
//! | `qp_ex` | requests built by the program |
//! | `create` | queues and memory with ConnectX-specific attributes |
//!
//! On a device of another provider, each function reports `EOPNOTSUPP`, as rdma-core's functions
//! do.
//!
//! # Safety
//! Every exported function has the same contract as the function of that name in rdma-core's
//! libmlx5, as defined in the crate documentation. The program is responsible for its use of the
//! returned addresses: see [`provider_mlx5::direct`].
//!
//! # References
//! `mlx5dv(7)`; rdma-core `providers/mlx5/mlx5.c`, `verbs.c`
#![allow(unsafe_code)]

mod create;
mod objects;
mod qp_ex;

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;

use provider_mlx5::Context;
use provider_mlx5::direct::UarDirect;
use uverbs_abi::mlx5_abi::{Mlx5IbMpwCaps, Mlx5IbQueryDevRespFlags};
use verbs_core::{Errno, Error};
use zerocopy::IntoBytes as _;

use crate::abi::c::mlx5dv::*;
use crate::abi::c::{ibv_context, ibv_device, ibv_qp};
use crate::abi::errno::{UNKNOWN_MEMBERS, code, fail_null, not_null, not_null_or_null, pointer, refused};
use crate::handle::context;
use crate::tables::ibv_open_device;
use crate::verbs::device::driver_name;

/// The reason for rejecting a device of another provider.
const NOT_MLX5: &str = "the device is no ConnectX";

/// Returns the ConnectX provider's context.
///
/// # Errors
/// `EOPNOTSUPP` for a device of another provider.
///
/// # Safety
/// `context` must be open.
unsafe fn mlx5<'a>(context: *mut ibv_context, verb: &'static str) -> Result<&'a Context, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe { context::mlx5(context) }.ok_or_else(|| refused(verb, Errno::OPNOTSUPP, NOT_MLX5))
}

/// `mlx5dv_is_supported(3)`.
///
/// # Safety
/// `device` must be a device from a list.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool {
    // SAFETY: guaranteed by the caller.
    !device.is_null() && unsafe { driver_name(device) } == "mlx5"
}

/// `mlx5dv_open_device(3)`.
///
/// # Safety
/// `device` must be a device from a list; `attr` must be null or point to attributes.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_open_device(
    device: *mut ibv_device,
    attr: *mut mlx5dv_context_attr,
) -> *mut ibv_context {
    const VERB: &str = "open_device";
    // SAFETY: guaranteed by the caller.
    unsafe {
        if !mlx5dv_is_supported(device) {
            return fail_null(&refused(VERB, Errno::OPNOTSUPP, NOT_MLX5));
        }
        if !attr.is_null() {
            let attr = &*attr;
            if attr.comp_mask & !MLX5DV_CONTEXT_ATTR_MASK_FD_ARRAY != 0
                || attr.flags & !MLX5DV_CONTEXT_FLAGS_DEVX != 0
            {
                return fail_null(&refused(VERB, Errno::INVAL, UNKNOWN_MEMBERS));
            }
            // After this error, programs open the device without DevX.
            if attr.comp_mask != 0 || attr.flags != 0 {
                return fail_null(&refused(VERB, Errno::OPNOTSUPP, "commands of DevX are not built"));
            }
        }
        ibv_open_device(device)
    }
}

/// `mlx5dv_query_device(3)`.
///
/// # Safety
/// `context` must be open; `attrs` must point to attributes with the fields named by its mask.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_query_device(context: *mut ibv_context, attrs: *mut mlx5dv_context) -> c_int {
    not_null!(context, attrs);
    // SAFETY: guaranteed by the caller.
    code(unsafe { mlx5(context, "query_device").map(|context| describe(context, attrs)) })
}

/// Fills in the attributes that the mask requests.
///
/// # Safety
/// `out` must point to attributes with the fields named by its mask.
unsafe fn describe(context: &Context, out: *mut mlx5dv_context) {
    let direct = context.direct();
    let queried = &direct.queried;
    let packets = Mlx5IbMpwCaps::from_bits_retain(queried.mlx5_ib_support_multi_pkt_send_wqes);
    let has = Mlx5IbQueryDevRespFlags::from_bits_retain(queried.flags);
    let flags = [
        (direct.cqe_version == 1, MLX5DV_CONTEXT_FLAGS_CQE_V1),
        (packets.contains(Mlx5IbMpwCaps::MLX5_IB_ALLOW_MPW), MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED),
        (packets.contains(Mlx5IbMpwCaps::MLX5_IB_SUPPORT_EMPW), MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW),
        (
            has.contains(Mlx5IbQueryDevRespFlags::MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP),
            MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP,
        ),
        (
            has.contains(Mlx5IbQueryDevRespFlags::MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD),
            MLX5DV_CONTEXT_FLAGS_CQE_128B_PAD,
        ),
        (
            has.contains(Mlx5IbQueryDevRespFlags::MLX5_IB_QUERY_DEV_RESP_PACKET_BASED_CREDIT_MODE),
            MLX5DV_CONTEXT_FLAGS_PACKET_BASED_CREDIT_MODE,
        ),
        (direct.has_real_time, MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS),
        (direct.has_blue_flame, MLX5DV_CONTEXT_FLAGS_BLUEFLAME),
    ];
    let flags = flags.iter().filter(|(is, _)| *is).fold(0, |flags, (_, flag)| flags | flag);
    // SAFETY: the program's struct has the first three fields and those named by its mask.
    unsafe {
        let asked = (*out).comp_mask;
        let mut reported = 0;
        let mut report = |bit: u64, is_known: bool| {
            let is_reported = asked & bit != 0 && is_known;
            reported |= if is_reported { bit } else { 0 };
            is_reported
        };
        (*out).version = 0;
        (*out).flags = flags;
        if report(MLX5DV_CONTEXT_MASK_CQE_COMPRESION, true) {
            let caps = queried.cqe_comp_caps;
            (*out).cqe_comp_caps =
                mlx5dv_cqe_comp_caps { max_num: caps.max_num, supported_format: caps.supported_format };
        }
        if report(MLX5DV_CONTEXT_MASK_SWP, true) {
            let caps = queried.sw_parsing_caps;
            (*out).sw_parsing_caps = mlx5dv_sw_parsing_caps {
                sw_parsing_offloads: caps.sw_parsing_offloads,
                supported_qpts: caps.supported_qpts,
            };
        }
        if report(MLX5DV_CONTEXT_MASK_STRIDING_RQ, true) {
            let caps = queried.striding_rq_caps;
            (*out).striding_rq_caps = mlx5dv_striding_rq_caps {
                min_single_stride_log_num_of_bytes: caps.min_single_stride_log_num_of_bytes,
                max_single_stride_log_num_of_bytes: caps.max_single_stride_log_num_of_bytes,
                min_single_wqe_log_num_of_strides: caps.min_single_wqe_log_num_of_strides,
                max_single_wqe_log_num_of_strides: caps.max_single_wqe_log_num_of_strides,
                supported_qpts: caps.supported_qpts,
            };
        }
        if report(MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS, true) {
            (*out).tunnel_offloads_caps = queried.tunnel_offloads_caps;
        }
        if report(MLX5DV_CONTEXT_MASK_DCI_STREAMS, true) {
            let caps = queried.dci_streams_caps;
            (*out).dci_streams_caps = mlx5dv_dci_streams_caps {
                max_log_num_concurent: caps.max_log_num_concurent,
                max_log_num_errored: caps.max_log_num_errored,
            };
        }
        if report(MLX5DV_CONTEXT_MASK_DYN_BFREGS, true) {
            (*out).max_dynamic_bfregs = direct.max_dynamic_registers;
        }
        let period = direct.max_clock_info_update_nsec;
        if report(MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE, period.is_some()) {
            (*out).max_clock_info_update_nsec = period.unwrap_or_default();
        }
        if report(MLX5DV_CONTEXT_MASK_FLOW_ACTION_FLAGS, true) {
            (*out).flow_action_flags = direct.flow_action_flags;
        }
        if report(MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK, direct.core_clock.is_some()) {
            (*out).hca_core_clock = direct.core_clock.map_or(null_mut(), |clock| clock.as_ptr().cast());
        }
        let reg_c0 = queried.reg_c0;
        if report(MLX5DV_CONTEXT_MASK_REG_C0, reg_c0.mask != 0) {
            (*out).reg_c0 = mlx5dv_reg { value: reg_c0.value, mask: reg_c0.mask };
        }
        // The following values come from DevX, without which libmlx5 reports zeros.
        if report(MLX5DV_CONTEXT_MASK_DC_ODP_CAPS, true) {
            (*out).dc_odp_caps = 0;
        }
        if report(MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD, true) {
            (*out).sig_caps = mlx5dv_sig_caps { block_size: 0, block_prot: 0, t10dif_bg: 0, crc_type: 0 };
        }
        if report(MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH, true) {
            (*out).max_wr_memcpy_length = 0;
        }
        if report(MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD, true) {
            (*out).crypto_caps = core::mem::zeroed();
        }
        if report(MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM, true) {
            ((*out).max_dc_rd_atom, (*out).max_dc_init_rd_atom) = (0, 0);
        }
        let has_order = has.contains(Mlx5IbQueryDevRespFlags::MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP);
        if report(MLX5DV_CONTEXT_MASK_OOO_RECV_WRS, has_order) {
            (*out).ooo_recv_wrs_caps = core::mem::zeroed();
        }
        (*out).comp_mask = reported;
    }
}

/// `mlx5dv_get_clock_info(3)`.
///
/// # Safety
/// `context` must be open; `info` must point to a struct.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_get_clock_info(context: *mut ibv_context, info: *mut mlx5dv_clock_info) -> c_int {
    not_null!(context, info);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        mlx5(context, "get_clock_info").and_then(Context::clock_info).map(|found| {
            info.write(mlx5dv_clock_info {
                nsec: found.nsec,
                last_cycles: found.last_cycles,
                frac: found.frac,
                mult: found.mult,
                shift: found.shift,
                mask: found.mask,
            });
        })
    })
}

/// The implementation of the inline function `mlx5dv_query_port(3)`.
///
/// # Safety
/// `context` must be open; `info` must point to `info_len` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn _mlx5dv_query_port(
    context: *mut ibv_context,
    port_num: u32,
    info: *mut c_void,
    info_len: usize,
) -> c_int {
    not_null!(context, info);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        mlx5(context, "query_port").and_then(|context| context.query_switch_port(port_num)).map(|found| {
            // A program built against another release has fewer fields, or has zeros after our
            // fields.
            let bytes = found.as_bytes();
            info.write_bytes(0, info_len);
            info.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(info_len));
        })
    })
}

/// `mlx5dv_get_data_direct_sysfs_path(3)`: `ENODEV`, as on a device without data direct. A program
/// that got the path would register memory for it, which [`create`] rejects.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_get_data_direct_sysfs_path(
    context: *mut ibv_context,
    _buf: *mut c_char,
    _buf_len: usize,
) -> c_int {
    const VERB: &str = "get_data_direct_sysfs_path";
    not_null!(context);
    // SAFETY: guaranteed by the caller.
    code(
        unsafe { mlx5(context, VERB) }
            .and_then(|_| Err(refused(VERB, Errno::NODEV, "no memory is registered for data direct"))),
    )
}

/// `mlx5dv_reserved_qpn_dealloc(3)`: always fails, because no queue pair number can be reserved.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_reserved_qpn_dealloc(context: *mut ibv_context, _qpn: u32) -> c_int {
    const VERB: &str = "reserved_qpn_dealloc";
    not_null!(context);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        mlx5(context, VERB).and_then(|_| Err(refused(VERB, Errno::INVAL, "no number is reserved")))
    })
}

/// A page of doorbell registers owned by the program.
#[repr(C)]
struct Uar {
    c: mlx5dv_devx_uar,
    _uar: UarDirect,
}

/// `mlx5dv_devx_alloc_uar(3)`.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_devx_alloc_uar(context: *mut ibv_context, flags: u32) -> *mut mlx5dv_devx_uar {
    const VERB: &str = "devx_alloc_uar";
    not_null_or_null!(context);
    // SAFETY: guaranteed by the caller.
    let uar = unsafe { mlx5(context, VERB) }.and_then(|context| match flags {
        MLX5DV_UAR_ALLOC_TYPE_BF => context.take_uar(),
        MLX5DV_UAR_ALLOC_TYPE_NC => context.shared_uar(),
        _ => Err(refused(VERB, Errno::OPNOTSUPP, "a type of registers unknown to this library")),
    });
    pointer(uar.map(|uar| {
        let register = uar.register();
        let c = mlx5dv_devx_uar {
            reg_addr: register.register.as_ptr().cast(),
            base_addr: uar.base().as_ptr().cast(),
            page_id: uar.page_id(),
            mmap_off: register.map_offset.cast_signed(),
            comp_mask: 0,
        };
        Box::into_raw(Box::new(Uar { c, _uar: uar })).cast()
    }))
}

/// `mlx5dv_devx_free_uar(3)`.
///
/// # Safety
/// `uar` must come from [`mlx5dv_devx_alloc_uar`] and must not be used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_devx_free_uar(uar: *mut mlx5dv_devx_uar) {
    if !uar.is_null() {
        // SAFETY: `mlx5dv_devx_alloc_uar` created the box.
        drop(unsafe { Box::from_raw(uar.cast::<Uar>()) });
    }
}

/// `mlx5dv_modify_qp_sched_elem(3)`: fails, because devices do not schedule queue pairs without
/// DevX.
///
/// # Safety
/// `qp` must be live.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_modify_qp_sched_elem(
    qp: *mut ibv_qp,
    _requestor: *const c_void,
    responder: *const c_void,
) -> c_int {
    use crate::abi::c::{IBV_QPT_RAW_PACKET, IBV_QPT_UC, IBV_QPT_UD};
    const VERB: &str = "modify_qp_sched_elem";
    not_null!(qp);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        mlx5((*qp).context, VERB).and_then(|_| {
            let sends_alone: [c_uint; 3] = [IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET];
            let is_wrong = !responder.is_null() && sends_alone.contains(&(*qp).qp_type);
            let errno = if is_wrong { Errno::INVAL } else { Errno::OPNOTSUPP };
            Err(refused(VERB, errno, "without DevX, devices do not schedule queue pairs"))
        })
    })
}
