//! This library's functions under their C names, and the inline functions in verbs.h.
//!
//! # Safety
//! The declarations match verbs.h. Callers pass live objects and memory of the stated sizes.
#![allow(unsafe_code)]
#![allow(dead_code, unreachable_pub, missing_docs)]

use core::ffi::{c_char, c_int, c_void};
use core::mem::offset_of;
use std::ffi::CStr;

use ibverbs_c::c::*;
use libc::ssize_t;

unsafe extern "C" {
    pub fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    pub fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    pub fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
    pub fn ibv_query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int;
    pub fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    pub fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        size: usize,
    ) -> c_int;
    pub fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max: usize,
        flags: u32,
        size: usize,
    ) -> ssize_t;
    pub fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    pub fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int;
    pub fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm;
    pub fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int;
    pub fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah;
    pub fn _ibv_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        size: usize,
    ) -> c_int;
    pub fn ibv_create_comp_cntr(
        context: *mut ibv_context,
        attr: *mut ibv_comp_cntr_init_attr,
    ) -> *mut ibv_comp_cntr;
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    pub fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    pub fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    pub fn ibv_ack_async_event(event: *mut ibv_async_event);
    pub fn ibv_unimport_dm(dm: *mut ibv_dm);
    pub fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int;
    pub fn ibv_destroy_comp_cntr(cntr: *mut ibv_comp_cntr) -> c_int;
    pub fn ibv_set_comp_cntr(cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
    pub fn ibv_set_err_comp_cntr(cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
    pub fn ibv_inc_comp_cntr(cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
    pub fn ibv_inc_err_comp_cntr(cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
    pub fn ibv_read_comp_cntr(cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    pub fn ibv_read_err_comp_cntr(cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    pub fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;
}

/// Opens the device whose name matches, passes it to `case`, and closes it.
pub fn with_device(is_right: impl Fn(&str) -> bool, case: impl FnOnce(*mut ibv_context)) {
    let context = open(is_right);
    case(context);
    // SAFETY: the context is open; its objects are gone.
    assert_eq!(unsafe { ibv_close_device(context) }, 0);
}

/// Opens the device whose name matches.
pub fn open(is_right: impl Fn(&str) -> bool) -> *mut ibv_context {
    // SAFETY: the list and its devices are used as the manual pages demand.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&raw mut count);
        let devices = core::slice::from_raw_parts(list, count as usize);
        let is_right = |device: &&*mut ibv_device| {
            is_right(CStr::from_ptr(ibv_get_device_name(**device)).to_str().unwrap())
        };
        let context = ibv_open_device(*devices.iter().find(is_right).expect("the device"));
        ibv_free_device_list(list);
        assert!(!context.is_null(), "{}", errno());
        context
    }
}

pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Returns the operation table in front of a context.
pub fn table(context: *mut ibv_context) -> &'static verbs_context {
    // SAFETY: the context is part of the table, as verbs.h computes it.
    unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast() }
}

/// Passes 1024 bytes with the value `ee` to `call` and returns the bytes.
pub fn filled<T>(call: impl FnOnce(*mut T)) -> [u8; 1024] {
    #[repr(align(16))]
    struct Bytes([u8; 1024]);
    let mut bytes = Bytes([0xee; 1024]);
    call((&raw mut bytes).cast());
    bytes.0
}

pub fn untouched(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0xee)
}

/// Asserts that a constructor returned null with this `errno`.
pub fn assert_null<T>(object: *mut T, expected: c_int, name: &str) {
    let found = errno();
    assert!(object.is_null(), "{name}");
    assert_eq!(found, expected, "{name}");
}
