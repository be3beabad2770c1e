//! `mlx5dv_init_obj`: the addresses of the queues, doorbell records and registers of objects.
//!
//! After the call, only the program fills, rings and polls the queues: see
//! [`provider_mlx5::direct`].
//!
//! # Safety
//! See the parent module: the objects are live and belong to this library. Their device is a
//! ConnectX device, so they have the types of the provider `mlx5`.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ptr::null_mut;

use provider_mlx5::direct::QueueDirect;
use provider_mlx5::{Ah, Mlx5};
use verbs_core::{Errno, Error};

use super::mlx5;
use crate::abi::c::mlx5dv::*;
use crate::abi::c::{ibv_ah, ibv_cq, ibv_dm, ibv_pd, ibv_qp, ibv_srq, ibv_wq};
use crate::abi::errno::{code, refused, unavailable};
use crate::verbs::ah::AhObject;
use crate::verbs::dm::DmObject;
use crate::verbs::qp::object::checked;
use crate::verbs::{cq, pd, srq, wq};

const VERB: &str = "init_obj";

/// `mlx5dv_init_obj(3)`.
///
/// # Safety
/// For each kind named in `obj_type`, `obj` must point to a live object and to a struct.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int {
    // SAFETY: guaranteed by the caller.
    code(unsafe { init(obj, obj_type) })
}

/// Describes each object named in `obj_type`.
///
/// # Safety
/// Same as [`mlx5dv_init_obj`].
unsafe fn init(obj: *mut mlx5dv_obj, obj_type: u64) -> Result<(), Error> {
    const KNOWN: u64 = (MLX5DV_OBJ_DEVX << 1) - 1;
    if obj.is_null() || obj_type & KNOWN == 0 {
        return Err(refused(VERB, Errno::INVAL, "no object, or only types unknown to this library"));
    }
    macro_rules! describe {
        ($bit:ident, $member:ident, $describe:ident) => {
            if obj_type & $bit != 0 {
                // SAFETY: guaranteed by the caller. Fields outside a struct's mask may be absent,
                // so no reference to the struct is created.
                unsafe {
                    let mlx5dv_obj_of { in_, out } = (&raw const (*obj).$member).read();
                    if in_.is_null() || out.is_null() {
                        return Err(refused(VERB, Errno::INVAL, "an object or its result is null"));
                    }
                    mlx5((*in_).context, VERB)?;
                    $describe(in_, out)?;
                }
            }
        };
    }
    describe!(MLX5DV_OBJ_QP, qp, qp);
    describe!(MLX5DV_OBJ_CQ, cq, cq);
    describe!(MLX5DV_OBJ_SRQ, srq, srq);
    describe!(MLX5DV_OBJ_RWQ, rwq, rwq);
    describe!(MLX5DV_OBJ_DM, dm, dm);
    describe!(MLX5DV_OBJ_AH, ah, ah);
    describe!(MLX5DV_OBJ_PD, pd, pd);
    // DevX objects do not exist here.
    if obj_type & MLX5DV_OBJ_DEVX != 0 {
        Err(refused(VERB, Errno::OPNOTSUPP, "objects of DevX are not built"))
    } else {
        Ok(())
    }
}

fn queue(queue: &QueueDirect) -> mlx5dv_qp_queue {
    mlx5dv_qp_queue { buf: queue.buf.as_ptr().cast(), wqe_cnt: queue.entries, stride: queue.stride }
}

/// Describes a queue pair.
///
/// # Safety
/// `in_` must be a live queue pair of the provider; `out` must point to a struct.
unsafe fn qp(in_: *mut ibv_qp, out: *mut mlx5dv_qp) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let direct = checked::<Mlx5>(in_, VERB)?.control(VERB, |control| Ok(control.direct()))?;
        let (asked, register) = ((*out).comp_mask, direct.register);
        (*out).dbrec = direct.records.as_ptr();
        (*out).sq = queue(&direct.sq);
        (*out).rq = queue(&direct.rq);
        (*out).bf.reg = register.map_or(null_mut(), |register| register.register.as_ptr().cast());
        (*out).bf.size = register.map_or(0, |register| register.size);
        let mut told = 0;
        if asked & MLX5DV_QP_MASK_UAR_MMAP_OFFSET != 0 {
            (*out).uar_mmap_offset = register.map_or(0, |register| register.map_offset.cast_signed());
            told |= MLX5DV_QP_MASK_UAR_MMAP_OFFSET;
        }
        if asked & MLX5DV_QP_MASK_RAW_QP_HANDLES != 0 {
            let raw = direct.raw;
            ((*out).tirn, (*out).tisn, (*out).rqn, (*out).sqn) = (raw.tirn, raw.tisn, raw.rqn, raw.sqn);
            told |= MLX5DV_QP_MASK_RAW_QP_HANDLES;
        }
        if asked & MLX5DV_QP_MASK_RAW_QP_TIR_ADDR != 0 {
            (*out).tir_icm_addr = direct.raw.tir_icm_addr;
            told |= MLX5DV_QP_MASK_RAW_QP_TIR_ADDR;
        }
        (*out).comp_mask = told;
    }
    Ok(())
}

/// Describes a completion queue.
///
/// # Safety
/// `in_` must be a live completion queue of the provider; `out` must point to a struct.
unsafe fn cq(in_: *mut ibv_cq, out: *mut mlx5dv_cq) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let live = cq::checked::<Mlx5>(in_, VERB)?.queue.with(|queue| queue.direct());
        let direct = live.map_err(|errno| unavailable(VERB, errno))?;
        out.write(mlx5dv_cq {
            buf: direct.ring.buf.as_ptr().cast(),
            dbrec: direct.records.as_ptr(),
            cqe_cnt: direct.ring.entries,
            cqe_size: direct.ring.stride,
            cq_uar: direct.registers.as_ptr().cast(),
            cqn: direct.cqn,
            comp_mask: 0,
        });
    }
    Ok(())
}

/// Describes a shared receive queue.
///
/// # Safety
/// `in_` must be a live shared receive queue of the provider; `out` must point to a struct.
unsafe fn srq(in_: *mut ibv_srq, out: *mut mlx5dv_srq) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let inner = srq::checked::<Mlx5>(in_, VERB)?;
        let control = inner.control(VERB)?;
        let direct =
            inner.queue.with(|queue| control.direct(queue)).map_err(|errno| unavailable(VERB, errno))??;
        let asked = (*out).comp_mask;
        (*out).buf = direct.queue.buf.as_ptr().cast();
        (*out).dbrec = direct.record.as_ptr();
        (*out).stride = direct.queue.stride;
        ((*out).head, (*out).tail) = (direct.head, direct.tail);
        if asked & MLX5DV_SRQ_MASK_SRQN != 0 {
            (*out).srqn = direct.srqn;
        }
        (*out).comp_mask = asked & MLX5DV_SRQ_MASK_SRQN;
    }
    Ok(())
}

/// Describes a work queue.
///
/// # Safety
/// `in_` must be a live work queue of the provider; `out` must point to a struct.
unsafe fn rwq(in_: *mut ibv_wq, out: *mut mlx5dv_rwq) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let direct = wq::from_raw::<Mlx5>(in_, VERB)?.control(VERB)?.direct();
        out.write(mlx5dv_rwq {
            buf: direct.queue.buf.as_ptr().cast(),
            dbrec: direct.record.as_ptr(),
            wqe_cnt: direct.queue.entries,
            stride: direct.queue.stride,
            comp_mask: 0,
        });
    }
    Ok(())
}

/// Describes device memory.
///
/// # Safety
/// `in_` must be live device memory of the provider; `out` must point to a struct.
unsafe fn dm(in_: *mut ibv_dm, out: *mut mlx5dv_dm) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let direct = DmObject::<Mlx5>::lend(in_, VERB)?.direct();
        let asked = (*out).comp_mask;
        ((*out).buf, (*out).length) = (direct.buf.as_ptr().cast(), direct.length);
        if asked & MLX5DV_DM_MASK_REMOTE_VA != 0 {
            // This field is for memory of steering rules, which is never allocated here.
            (*out).remote_va = 0;
        }
        (*out).comp_mask = asked & MLX5DV_DM_MASK_REMOTE_VA;
    }
    Ok(())
}

/// Describes an address handle.
///
/// # Safety
/// `in_` must be a live address handle of the provider; `out` must point to a struct.
unsafe fn ah(in_: *mut ibv_ah, out: *mut mlx5dv_ah) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller. The copy stays in place as long as the handle lives.
    unsafe {
        let inner = AhObject::<Mlx5>::inner(in_);
        let av = Ah::address_vector(&inner.av)
            .ok_or_else(|| refused(VERB, Errno::INVAL, "the address handle has no address vector"))?;
        out.write(mlx5dv_ah { av: av.as_ptr().cast(), comp_mask: 0 });
    }
    Ok(())
}

/// Describes a protection domain.
///
/// # Safety
/// `in_` must be a live domain of the provider; `out` must point to a struct.
unsafe fn pd(in_: *mut ibv_pd, out: *mut mlx5dv_pd) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let direct = pd::from_raw::<Mlx5>(in_, VERB)?.pd.direct()?;
        out.write(mlx5dv_pd { pdn: direct.pdn, comp_mask: 0 });
    }
    Ok(())
}
