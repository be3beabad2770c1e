//! Requests built by the program, between `ibv_wr_start` and `ibv_wr_complete`:
//! `mlx5dv_wr_raw_wqe`.
//!
//! # Safety
//! See the parent module. A [`DvQpEx`] lives as long as its queue pair.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr::null_mut;

use provider_mlx5::Mlx5;

use super::mlx5;
use crate::abi::c::mlx5dv::mlx5dv_qp_ex;
use crate::abi::c::{ibv_qp, ibv_qp_ex};
use crate::abi::errno::{fail_null, not_null_or_null};
use crate::verbs::qp::object::{DvQpEx, QpObject};
use crate::verbs::qp::wr::put_raw;

/// Adds the operation `wr_raw_wqe` to a queue pair.
///
/// # Safety
/// `qp` must be a live queue pair of the provider, not yet in use.
pub(super) unsafe fn add_raw(qp: *mut ibv_qp) {
    let qp: *mut ibv_qp_ex = qp.cast();
    // SAFETY: guaranteed by the caller; absent functions are valid zeros.
    unsafe {
        let mut c: mlx5dv_qp_ex = core::mem::zeroed();
        c.wr_raw_wqe = Some(raw_wqe);
        QpObject::<Mlx5>::inner(qp).dv.get_or_init(|| Box::new(DvQpEx { c, qp }));
    }
}

/// `mlx5dv_wr_raw_wqe(3)`.
///
/// # Safety
/// `mqp` must come from [`mlx5dv_qp_ex_from_ibv_qp_ex`] and be in a batch of this thread; `wqe`
/// must be a request of its stated length, for an operation that the device may perform.
unsafe extern "C" fn raw_wqe(mqp: *mut mlx5dv_qp_ex, wqe: *const c_void) {
    // SAFETY: the caller's promise: the struct is the head of a `DvQpEx`.
    unsafe { put_raw((*mqp.cast::<DvQpEx>()).qp, wqe) }
}

/// `mlx5dv_qp_ex_from_ibv_qp_ex`: returns null for a queue pair created without ConnectX-specific
/// operations.
///
/// # Safety
/// `qp` must be live.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex {
    not_null_or_null!(qp);
    // SAFETY: guaranteed by the caller.
    unsafe {
        if let Err(error) = mlx5((*qp).qp_base.context, "qp_ex_from_ibv_qp_ex") {
            return fail_null(&error);
        }
        QpObject::<Mlx5>::inner(qp).dv.get().map_or(null_mut(), |dv| (&raw const dv.c).cast_mut())
    }
}
