//! Memory windows.

use core::ffi::c_uint;

use super::macros::c_types;
use super::{ibv_context, ibv_mr, ibv_pd};

c_types! {
    /// The type of a memory window.
    pub enum ibv_mw_type: c_uint {
        IBV_MW_TYPE_1 = 1,
        IBV_MW_TYPE_2 = 2,
    }

    /// A memory window.
    pub struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        type_: ibv_mw_type,
    }

    /// The memory that a window is bound to, and the rights that it grants.
    pub struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// A request to bind a type 1 window (`ibv_bind_mw(3)`).
    pub struct ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }
}
