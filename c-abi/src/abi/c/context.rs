//! An open device and its operation table.

use core::ffi::{c_int, c_void};

use libc::pthread_mutex_t;

use super::macros::c_types;
use super::{
    _compat_ibv_port_attr, ibv_cq, ibv_device, ibv_device_attr, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd,
    ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc,
};

/// A slot in [`ibv_context_ops`] that only programs from before 2006 call.
pub type compat_slot = Option<unsafe extern "C" fn() -> *mut c_void>;

c_types! {
    /// The operations that inline functions in verbs.h call without checking for null.
    pub struct ibv_context_ops {
        _compat_query_device: Option<
            unsafe extern "C" fn(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int,
        >,
        _compat_query_port: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                port_num: u8,
                port_attr: *mut _compat_ibv_port_attr,
            ) -> c_int,
        >,
        _compat_alloc_pd: compat_slot,
        _compat_dealloc_pd: compat_slot,
        _compat_reg_mr: compat_slot,
        _compat_rereg_mr: compat_slot,
        _compat_dereg_mr: compat_slot,
        alloc_mw: Option<unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw>,
        bind_mw: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int,
        >,
        dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int>,
        _compat_create_cq: compat_slot,
        poll_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
        _compat_cq_event: compat_slot,
        _compat_resize_cq: compat_slot,
        _compat_destroy_cq: compat_slot,
        _compat_create_srq: compat_slot,
        _compat_modify_srq: compat_slot,
        _compat_query_srq: compat_slot,
        _compat_destroy_srq: compat_slot,
        post_srq_recv: Option<
            unsafe extern "C" fn(
                srq: *mut ibv_srq,
                recv_wr: *mut ibv_recv_wr,
                bad_recv_wr: *mut *mut ibv_recv_wr,
            ) -> c_int,
        >,
        _compat_create_qp: compat_slot,
        _compat_query_qp: compat_slot,
        _compat_modify_qp: compat_slot,
        _compat_destroy_qp: compat_slot,
        post_send: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp,
                wr: *mut ibv_send_wr,
                bad_wr: *mut *mut ibv_send_wr,
            ) -> c_int,
        >,
        post_recv: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp,
                wr: *mut ibv_recv_wr,
                bad_wr: *mut *mut ibv_recv_wr,
            ) -> c_int,
        >,
        _compat_create_ah: compat_slot,
        _compat_destroy_ah: compat_slot,
        _compat_attach_mcast: compat_slot,
        _compat_detach_mcast: compat_slot,
        _compat_async_event: compat_slot,
    }

    /// An open device.
    pub struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        /// [`VERBS_ABI_IS_EXTENDED`](super::VERBS_ABI_IS_EXTENDED) if the context lies inside a
        /// [`verbs_context`](super::verbs_context).
        abi_compat: *mut c_void,
    }
}
