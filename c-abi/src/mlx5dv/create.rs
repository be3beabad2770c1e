//! Queues and memory with ConnectX-specific attributes. If the attributes request nothing special,
//! these functions behave like the plain functions. All other attributes are rejected, except the
//! entry size of a completion queue.
//!
//! # Safety
//! See the parent module.
#![allow(unsafe_code)]

use core::ffi::c_int;

use provider_mlx5::{CqeCompression, ScatterToCqe};
use verbs_core::{Errno, Error};

use super::mlx5;
use super::qp_ex::add_raw;
use crate::abi::c::mlx5dv::*;
use crate::abi::c::{
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_DRIVER, ibv_alloc_dm_attr, ibv_context, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_dm, ibv_mr, ibv_pd, ibv_qp, ibv_qp_init_attr_ex, ibv_wq, ibv_wq_init_attr,
};
use crate::abi::errno::{UNKNOWN_MEMBERS, fail_null, not_null_or_null, refused};
use crate::verbs::cq::Entries;
use crate::verbs::cq_ex::create_cq_of;
use crate::verbs::dm::alloc_dm;
use crate::verbs::mr::ibv_reg_dmabuf_mr;
use crate::verbs::qp::{create_qp_ex, create_qp_scattering};
use crate::verbs::wq::create_wq;

/// Returns null from the calling function if a check fails.
macro_rules! checked {
    ($check:expr) => {
        match $check {
            Ok(value) => value,
            Err(error) => return fail_null(&error),
        }
    };
}

/// The reason for rejecting ConnectX options that cannot be provided.
const UNSUPPORTED: &str = "the device or this library lacks an option of the attributes";

/// Returns the entry format that a completion queue's attributes request.
///
/// # Errors
/// Same as libmlx5 and the kernel: `EINVAL` for unknown bits, for compression or padding that the
/// device lacks, and for more than one form of compression. `EOPNOTSUPP` for padding on a device
/// that supports it.
fn entries(
    attr: &mlx5dv_cq_init_attr,
    comp_caps: mlx5dv_cqe_comp_caps,
    has_padding: bool,
) -> Result<Entries, Errno> {
    const KNOWN: u64 = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE
        | MLX5DV_CQ_INIT_ATTR_MASK_FLAGS
        | MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    let size = has(MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE).then_some(u32::from(attr.cqe_size));
    if size.is_some_and(|size| !matches!(size, 64 | 128)) {
        return Err(Errno::INVAL);
    }
    let compression = if has(MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE) {
        let form = u32::from(attr.cqe_comp_res_format);
        if comp_caps.max_num == 0 || form & comp_caps.supported_format == 0 {
            return Err(Errno::INVAL);
        }
        Some(match form {
            1 => CqeCompression::Hash,
            2 => CqeCompression::Csum,
            4 => CqeCompression::CsumStridx,
            _ => return Err(Errno::INVAL),
        })
    } else {
        None
    };
    let flags = if has(MLX5DV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
    if flags & !MLX5DV_CQ_INIT_ATTR_FLAGS_CQE_PAD != 0 {
        return Err(Errno::INVAL);
    }
    match flags {
        0 => Ok(Entries { size, compression }),
        _ if has_padding && size == Some(128) => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::INVAL),
    }
}

/// `mlx5dv_create_cq(3)`.
///
/// # Safety
/// `context` must be open, `attr` must point to attributes with live objects, and `mlx5_attr` must
/// be null or point to attributes.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_create_cq(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
    mlx5_attr: *mut mlx5dv_cq_init_attr,
) -> *mut ibv_cq_ex {
    const VERB: &str = "create_cq";
    use uverbs_abi::mlx5_abi::Mlx5IbQueryDevRespFlags as Flags;
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    unsafe {
        let device = checked!(mlx5(context, VERB));
        let asked = if mlx5_attr.is_null() {
            Entries::default()
        } else {
            let queried = device.direct().queried;
            let caps = mlx5dv_cqe_comp_caps {
                max_num: queried.cqe_comp_caps.max_num,
                supported_format: queried.cqe_comp_caps.supported_format,
            };
            let has_padding = Flags::from_bits_retain(queried.flags)
                .contains(Flags::MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD);
            checked!(entries(&*mlx5_attr, caps, has_padding).map_err(|errno| refused(
                VERB,
                errno,
                UNSUPPORTED
            )))
        };
        create_cq_of(context, attr, asked)
    }
}

/// The options that a queue pair's attributes request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct QpOptions {
    /// Whether the program builds its own requests.
    has_own: bool,
    /// Whether received data may be placed in completions.
    scatter: ScatterToCqe,
}

/// Returns the options that a queue pair's attributes request.
///
/// # Errors
/// Same as libmlx5: `EINVAL` for unknown bits, and for a queue pair type that requires other
/// attributes. `EOPNOTSUPP` for unsupported options.
fn check_qp(attr: &mlx5dv_qp_init_attr, is_driver: bool) -> Result<QpOptions, Errno> {
    const KNOWN: u64 = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS
        | MLX5DV_QP_INIT_ATTR_MASK_DC
        | MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS
        | MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
    const IN_ENTRIES: u32 = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE;
    const FLAGS: u32 = (MLX5DV_QP_CREATE_OOO_DP << 1) - 1;
    let has = |bit| attr.comp_mask & bit != 0;
    let has_dc = has(MLX5DV_QP_INIT_ATTR_MASK_DC);
    if attr.comp_mask & !KNOWN != 0 || has_dc != is_driver {
        return Err(Errno::INVAL);
    }
    let flags = if has(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS) { attr.create_flags } else { 0 };
    if flags & !FLAGS != 0 || flags & IN_ENTRIES == IN_ENTRIES {
        return Err(Errno::INVAL);
    }
    let send_ops = if has(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS) { attr.send_ops_flags } else { 0 };
    let has_streams = has(MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS);
    if has_dc || has_streams || flags & !IN_ENTRIES != 0 || send_ops & !MLX5DV_QP_EX_WITH_RAW_WQE != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let scatter = match flags & IN_ENTRIES {
        MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE => ScatterToCqe::Never,
        MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE => ScatterToCqe::Always,
        _ => ScatterToCqe::Usual,
    };
    Ok(QpOptions { has_own: send_ops != 0, scatter })
}

/// `mlx5dv_create_qp(3)`.
///
/// # Safety
/// Same as [`mlx5dv_create_cq`].
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_create_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    mlx5_attr: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    const VERB: &str = "create_qp";
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    unsafe {
        checked!(mlx5(context, VERB));
        if mlx5_attr.is_null() {
            return create_qp_ex(context, attr);
        }
        let is_driver = (*attr).qp_type == IBV_QPT_DRIVER;
        let options =
            checked!(check_qp(&*mlx5_attr, is_driver).map_err(|errno| refused(VERB, errno, UNSUPPORTED)));
        if !options.has_own {
            return create_qp_scattering(context, attr, options.scatter);
        }
        // ConnectX-specific operations require the operations that begin and end a batch.
        let mut with_ops = attr.read();
        if with_ops.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS == 0 {
            with_ops.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            with_ops.send_ops_flags = 0;
        }
        let qp = create_qp_scattering(context, &raw mut with_ops, options.scatter);
        if !qp.is_null() {
            (*attr).cap = with_ops.cap;
            add_raw(qp);
        }
        qp
    }
}

/// `mlx5dv_create_wq`: `ibv_create_wq(3)` with further attributes.
///
/// # Safety
/// Same as [`mlx5dv_create_cq`].
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
    mlx5_attr: *mut mlx5dv_wq_init_attr,
) -> *mut ibv_wq {
    const VERB: &str = "create_wq";
    not_null_or_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    unsafe {
        checked!(mlx5(context, VERB));
        if !mlx5_attr.is_null() && (*mlx5_attr).comp_mask != 0 {
            let is_known = (*mlx5_attr).comp_mask & !MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ == 0;
            let errno = if is_known { Errno::OPNOTSUPP } else { Errno::INVAL };
            return fail_null(&refused(VERB, errno, UNSUPPORTED));
        }
        create_wq(context, attr)
    }
}

/// `mlx5dv_alloc_dm(3)`: allocates the same memory as `ibv_alloc_dm(3)`.
///
/// # Safety
/// `context` must be open; the attributes must be valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
    mlx5_attr: *mut mlx5dv_alloc_dm_attr,
) -> *mut ibv_dm {
    const VERB: &str = "alloc_dm";
    not_null_or_null!(context, attr, mlx5_attr);
    // SAFETY: guaranteed by the caller.
    unsafe {
        checked!(mlx5(context, VERB));
        if (*mlx5_attr).type_ != MLX5DV_DM_TYPE_MEMIC {
            return fail_null(&refused(VERB, Errno::OPNOTSUPP, "only memory of the type MEMIC is served"));
        }
        if (*mlx5_attr).comp_mask != 0 {
            return fail_null(&refused(VERB, Errno::INVAL, UNKNOWN_MEMBERS));
        }
        alloc_dm(context, attr)
    }
}

/// `mlx5dv_reg_dmabuf_mr(3)`: registers the same region as `ibv_reg_dmabuf_mr(3)`.
///
/// # Safety
/// `pd` must be live.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut ibv_mr {
    const VERB: &str = "reg_dmabuf_mr";
    not_null_or_null!(pd);
    // SAFETY: guaranteed by the caller.
    unsafe {
        let device: Result<_, Error> = mlx5((*pd).context, VERB);
        checked!(device);
        if mlx5_access != 0 {
            return fail_null(&refused(VERB, Errno::OPNOTSUPP, "no memory is registered for data direct"));
        }
        ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_the_programs_choice_and_the_rest_is_refused() {
        let none = mlx5dv_cqe_comp_caps { max_num: 0, supported_format: 0 };
        let some = mlx5dv_cqe_comp_caps { max_num: 4, supported_format: 2 };
        let sized = |size| Ok(Entries { size, compression: None });
        let compressed = |size| Ok(Entries { size, compression: Some(CqeCompression::Csum) });
        let size = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
        let (flags, format) = (MLX5DV_CQ_INIT_ATTR_MASK_FLAGS, MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE);
        let attr = mlx5dv_cq_init_attr { comp_mask: 0, cqe_comp_res_format: 2, flags: 1, cqe_size: 128 };
        for (comp_mask, cqe_size_of, caps, has_padding, expected) in [
            (0, 128, none, false, sized(None)),
            (size, 128, none, false, sized(Some(128))),
            (size, 64, none, false, sized(Some(64))),
            (size, 32, none, false, Err(Errno::INVAL)),
            (1 << 3, 64, none, false, Err(Errno::INVAL)),
            (format, 64, none, false, Err(Errno::INVAL)),
            (format, 64, some, false, compressed(None)),
            (format | size, 128, some, false, compressed(Some(128))),
            (format | size, 32, some, false, Err(Errno::INVAL)),
            (format | flags | size, 128, some, false, Err(Errno::INVAL)),
            (flags, 128, none, true, Err(Errno::INVAL)),
            (flags | size, 128, none, false, Err(Errno::INVAL)),
            (flags | size, 128, none, true, Err(Errno::OPNOTSUPP)),
        ] {
            let attr = mlx5dv_cq_init_attr { comp_mask, cqe_size: cqe_size_of, ..attr };
            assert_eq!(entries(&attr, caps, has_padding), expected, "{attr:?}");
        }
        let wrong = mlx5dv_cq_init_attr { comp_mask: flags, flags: 2, ..attr };
        assert_eq!(entries(&wrong, none, true), Err(Errno::INVAL));
        // One form at a time, on a device that supports all forms.
        let all = mlx5dv_cqe_comp_caps { max_num: 4, supported_format: 7 };
        let form =
            |cqe_comp_res_format| mlx5dv_cq_init_attr { comp_mask: format, cqe_comp_res_format, ..attr };
        let forms = [1, 2, 4].map(|bits| entries(&form(bits), all, false).unwrap().compression);
        assert_eq!(forms, [CqeCompression::Hash, CqeCompression::Csum, CqeCompression::CsumStridx].map(Some));
        for (bits, caps) in [(0, all), (3, all), (8, all), (4, some), (2, none)] {
            assert_eq!(entries(&form(bits), caps, false), Err(Errno::INVAL), "{bits}");
        }
    }

    #[test]
    fn a_queue_pair_with_nothing_special_is_a_plain_one() {
        let dc_init_attr = mlx5dv_dc_init_attr { dc_type: 0, dct_access_key: 0 };
        let attr = mlx5dv_qp_init_attr { comp_mask: 0, create_flags: 0, dc_init_attr, send_ops_flags: 8 };
        let flags = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
        let usual = QpOptions::default();
        let scatters = |scatter| QpOptions { scatter, ..usual };
        for (comp_mask, create_flags, is_driver, expected) in [
            (0, 0xff, false, Ok(usual)),
            (flags, 0, false, Ok(usual)),
            (flags, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, false, Ok(scatters(ScatterToCqe::Never))),
            (flags, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE, false, Ok(scatters(ScatterToCqe::Always))),
            (flags, 3 << 3, false, Err(Errno::INVAL)),
            (flags, 1 << 8, false, Err(Errno::INVAL)),
            (flags, 1 << 5, false, Err(Errno::OPNOTSUPP)),
            (MLX5DV_QP_INIT_ATTR_MASK_DC, 0, false, Err(Errno::INVAL)),
            (MLX5DV_QP_INIT_ATTR_MASK_DC, 0, true, Err(Errno::OPNOTSUPP)),
            (0, 0, true, Err(Errno::INVAL)),
            (MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS, 0, false, Ok(QpOptions { has_own: true, ..usual })),
            (1 << 4, 0, false, Err(Errno::INVAL)),
        ] {
            let attr = mlx5dv_qp_init_attr { comp_mask, create_flags, ..attr };
            assert_eq!(check_qp(&attr, is_driver), expected, "{attr:?}");
        }
        let (comp_mask, send_ops_flags) = (MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS, MLX5DV_QP_EX_WITH_MEMCPY);
        let copies = mlx5dv_qp_init_attr { comp_mask, send_ops_flags, ..attr };
        assert_eq!(check_qp(&copies, false), Err(Errno::OPNOTSUPP));
    }
}
