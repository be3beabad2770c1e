//! The operations of a queue pair whose lock a thread of a parent process held at the fork. They do
//! not access the batch, and `ibv_wr_complete` returns `ENODEV`.
//!
//! A thread that forked between `ibv_wr_start` and `ibv_wr_complete` still has the batch in the
//! child. That thread may be inside an operation while another thread of the child is rejected, so
//! the rejection cannot be recorded in the batch. The operation table records it instead.
//!
//! # Safety
//! The operations are function pointers in the program's struct, which other threads may read to
//! call them. Each is replaced by an atomic store of a function of the same type.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use verbs_core::Errno;
use verbs_core::types::PostReason;

use crate::abi::c::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::verbs::receives::refuse;

extern "C" fn wr_complete(_: *mut ibv_qp_ex) -> c_int {
    refuse("wr_complete", PostReason::Doorbell(Errno::NODEV))
}

/// Defines operations without effect and the function that stores them in a queue pair.
macro_rules! operations {
    ($($name:ident($($type:ty),*);)*) => {
        $(extern "C" fn $name(_: *mut ibv_qp_ex $(, _: $type)*) {})*

        /// Replaces the operations of a queue pair, which other threads may be calling.
        ///
        /// # Safety
        /// `qp` must be live.
        pub(super) unsafe fn fill(qp: *mut ibv_qp_ex) {
            // SAFETY: the struct is live, and a function pointer is one word. Each function has the
            // type of its field, as the constant below shows.
            unsafe {
                $(AtomicPtr::from_ptr((&raw mut (*qp).$name).cast::<*mut ()>())
                    .store($name as *const () as *mut (), Ordering::Relaxed);)*
                AtomicPtr::from_ptr((&raw mut (*qp).wr_complete).cast::<*mut ()>())
                    .store(wr_complete as *const () as *mut (), Ordering::Relaxed);
            }
        }

        /// Checks at compile time that each function has the type of its field.
        const _: fn(&mut ibv_qp_ex) = |qp| {
            $(qp.$name = Some($name);)*
            qp.wr_complete = Some(wr_complete);
        };
    };
}

operations! {
    wr_atomic_cmp_swp(u32, u64, u64, u64);
    wr_atomic_fetch_add(u32, u64, u64);
    wr_bind_mw(*mut ibv_mw, u32, *const ibv_mw_bind_info);
    wr_local_inv(u32);
    wr_rdma_read(u32, u64);
    wr_rdma_write(u32, u64);
    wr_rdma_write_imm(u32, u64, u32);
    wr_send();
    wr_send_imm(u32);
    wr_send_inv(u32);
    wr_send_tso(*mut c_void, u16, u16);
    wr_set_ud_addr(*mut ibv_ah, u32, u32);
    wr_set_xrc_srqn(u32);
    wr_set_inline_data(*mut c_void, usize);
    wr_set_inline_data_list(usize, *const ibv_data_buf);
    wr_set_sge(u32, u64, u32);
    wr_set_sge_list(usize, *const ibv_sge);
    wr_start();
    wr_abort();
    wr_atomic_write(u32, u64, *const c_void);
    wr_flush(u32, u64, usize, u8, u8);
}
