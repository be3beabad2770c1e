//! Device memory.

use core::ffi::{c_int, c_uint, c_void};

use super::ibv_context;
use super::macros::c_types;

c_types! {
    /// The attributes for allocating device memory (`ibv_alloc_dm(3)`).
    pub struct ibv_alloc_dm_attr {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }

    /// The valid fields of [`ibv_dm`].
    pub enum ibv_dm_mask: c_uint {
        IBV_DM_MASK_HANDLE = 1 << 0,
    }

    /// Device memory.
    pub struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Option<
            unsafe extern "C" fn(
                dm: *mut ibv_dm,
                dm_offset: u64,
                host_addr: *const c_void,
                length: usize,
            ) -> c_int,
        >,
        memcpy_from_dm: Option<
            unsafe extern "C" fn(
                host_addr: *mut c_void,
                dm: *mut ibv_dm,
                dm_offset: u64,
                length: usize,
            ) -> c_int,
        >,
        comp_mask: u32,
        handle: u32,
    }
}
