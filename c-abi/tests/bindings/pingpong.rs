//! A ping-pong between two queue pairs on one device, through libibverbs' C API: sends, receives,
//! and polling. The file contains the declarations it needs, as bindgen generates them from
//! `verbs.h`.
//!
//! # Safety
//! The declarations match `verbs.h`. Objects are used only between creation and destruction, on one
//! thread, and registered memory is freed after its region.
#![allow(non_camel_case_types, unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] struct $name { _private: [u8; 0] })* };
}

opaque! { ibv_device ibv_pd ibv_comp_channel ibv_srq ibv_ah }

/// The operations in `ibv_context_ops` that inline functions in `verbs.h` call, between
/// placeholders.
#[repr(C)]
struct ibv_context_ops {
    before_poll_cq: [*mut c_void; 11],
    poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    between: [*mut c_void; 13],
    post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

#[repr(C)]
struct ibv_context {
    device: *mut ibv_device,
    ops: ibv_context_ops,
}

#[repr(C)]
struct ibv_cq {
    context: *mut ibv_context,
}

#[repr(C)]
struct ibv_qp {
    context: *mut ibv_context,
    qp_context: *mut c_void,
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    handle: u32,
    qp_num: u32,
}

#[repr(C)]
struct ibv_mr {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    lkey: u32,
    rkey: u32,
}

#[repr(C)]
struct ibv_sge {
    addr: u64,
    length: u32,
    lkey: u32,
}

#[repr(C)]
struct ibv_send_wr {
    wr_id: u64,
    next: *mut ibv_send_wr,
    sg_list: *mut ibv_sge,
    num_sge: c_int,
    opcode: c_uint,
    send_flags: c_uint,
    imm_data: u32,
    rest: [u64; 11],
}

#[repr(C)]
struct ibv_recv_wr {
    wr_id: u64,
    next: *mut ibv_recv_wr,
    sg_list: *mut ibv_sge,
    num_sge: c_int,
}

#[repr(C)]
struct ibv_wc {
    wr_id: u64,
    status: c_uint,
    opcode: c_uint,
    vendor_err: u32,
    byte_len: u32,
    rest: [u32; 6],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ibv_qp_cap {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
}

#[repr(C)]
struct ibv_qp_init_attr {
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    cap: ibv_qp_cap,
    qp_type: c_uint,
    sq_sig_all: c_int,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct ibv_gid([u8; 16]);

#[repr(C)]
#[derive(Clone, Copy)]
struct ibv_ah_attr {
    dgid: ibv_gid,
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
}

#[repr(C)]
struct ibv_qp_attr {
    qp_state: c_uint,
    cur_qp_state: c_uint,
    path_mtu: c_uint,
    path_mig_state: c_uint,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: c_uint,
    cap: ibv_qp_cap,
    ah_attr: ibv_ah_attr,
    alt_ah_attr: ibv_ah_attr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

const _: () = {
    assert!(size_of::<ibv_context_ops>() == 27 * 8);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_ah_attr>() == 32);
    assert!(size_of::<ibv_qp_attr>() == 144);
};

unsafe extern "C" {
    fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_wc_status_str(status: c_uint) -> *const c_char;
}

const IBV_QPT_RC: c_uint = 2;
const IBV_WR_SEND: c_uint = 2;
const IBV_SEND_SIGNALED: c_uint = 2;
const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
const INIT: c_uint = 1;
const RTR: c_uint = 2;
const RTS: c_uint = 3;
const SIZE: usize = 4096;
const MESSAGES: u64 = 1000;

/// A queue pair, its completion queue and its memory.
struct Side {
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    /// The memory. No reference to it is kept, because the device writes to it.
    memory: *mut [u8; SIZE],
}

impl Side {
    unsafe fn new(context: *mut ibv_context, pd: *mut ibv_pd) -> Self {
        unsafe {
            let cq = ibv_create_cq(context, 16, null_mut(), null_mut(), 0);
            assert!(!cq.is_null());
            let mut attr: ibv_qp_init_attr = zeroed();
            (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq, cq, IBV_QPT_RC);
            attr.cap =
                ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let qp = ibv_create_qp(pd, &mut attr);
            assert!(!qp.is_null());
            let memory = Box::into_raw(Box::new([0; SIZE]));
            let mr = ibv_reg_mr(pd, memory.cast(), SIZE, IBV_ACCESS_LOCAL_WRITE);
            assert!(!mr.is_null());
            Self { cq, qp, mr, memory }
        }
    }

    unsafe fn connect(&self, gid: ibv_gid, dest_qp_num: u32) {
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            (attr.qp_state, attr.port_num) = (INIT, 1);
            assert_eq!(ibv_modify_qp(self.qp, &mut attr, 1 | 1 << 3 | 1 << 4 | 1 << 5), 0);
            (attr.qp_state, attr.path_mtu, attr.dest_qp_num, attr.rq_psn) = (RTR, 5, dest_qp_num, 7);
            (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 12);
            attr.ah_attr.dgid = gid;
            (attr.ah_attr.is_global, attr.ah_attr.hop_limit, attr.ah_attr.port_num) = (1, 1, 1);
            let mask = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
            assert_eq!(ibv_modify_qp(self.qp, &mut attr, mask), 0);
            (attr.qp_state, attr.sq_psn, attr.timeout, attr.retry_cnt) = (RTS, 7, 14, 7);
            (attr.rnr_retry, attr.max_rd_atomic) = (7, 1);
            let mask = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
            assert_eq!(ibv_modify_qp(self.qp, &mut attr, mask), 0);
        }
    }

    unsafe fn receive(&self) {
        unsafe {
            let mut sge = ibv_sge { addr: (*self.mr).addr as u64, length: SIZE as u32, lkey: (*self.mr).lkey };
            let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
            let mut bad = null_mut();
            let ops = &(*(*self.qp).context).ops;
            assert_eq!((ops.post_recv)(self.qp, &mut wr, &mut bad), 0);
        }
    }

    unsafe fn send(&self) {
        unsafe {
            let mut sge = ibv_sge { addr: (*self.mr).addr as u64, length: SIZE as u32, lkey: (*self.mr).lkey };
            let mut wr: ibv_send_wr = zeroed();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (2, &mut sge, 1);
            (wr.opcode, wr.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED);
            let mut bad = null_mut();
            let ops = &(*(*self.qp).context).ops;
            assert_eq!((ops.post_send)(self.qp, &mut wr, &mut bad), 0);
        }
    }

    /// Waits for a completion and returns the request's `wr_id`.
    unsafe fn completion(&self) -> u64 {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut wc = MaybeUninit::<ibv_wc>::uninit();
            unsafe {
                let poll_cq = (*(*self.cq).context).ops.poll_cq;
                if poll_cq(self.cq, 1, wc.as_mut_ptr()) == 1 {
                    let wc = wc.assume_init();
                    assert_eq!(wc.status, 0, "{:?}", CStr::from_ptr(ibv_wc_status_str(wc.status)));
                    return wc.wr_id;
                }
            }
            assert!(Instant::now() < deadline, "no completion");
        }
    }

    unsafe fn destroy(self) {
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            drop(Box::from_raw(self.memory));
        }
    }
}

/// Sends one message and waits until both sides have their completions.
unsafe fn message(from: &Side, to: &Side, number: u64) {
    unsafe {
        from.memory.write([number as u8; SIZE]);
        to.receive();
        from.send();
        assert_eq!((from.completion(), to.completion()), (2, 1));
        assert!(to.memory.read().iter().all(|byte| *byte == number as u8), "message {number}");
    }
}

fn main() {
    unsafe {
        let list = ibv_get_device_list(null_mut());
        assert!(!list.is_null() && !(*list).is_null(), "no device");
        println!("{}", CStr::from_ptr(ibv_get_device_name(*list)).to_string_lossy());
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        assert!(!context.is_null());
        let mut gid = ibv_gid([0; 16]);
        assert_eq!(ibv_query_gid(context, 1, 0, &mut gid), 0);
        let pd = ibv_alloc_pd(context);
        assert!(!pd.is_null());
        let (one, other) = (Side::new(context, pd), Side::new(context, pd));
        one.connect(gid, (*other.qp).qp_num);
        other.connect(gid, (*one.qp).qp_num);
        for number in 0..MESSAGES {
            message(&one, &other, 2 * number);
            message(&other, &one, 2 * number + 1);
        }
        one.destroy();
        other.destroy();
        assert_eq!(ibv_dealloc_pd(pd), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
    println!("{MESSAGES} messages each way");
}
