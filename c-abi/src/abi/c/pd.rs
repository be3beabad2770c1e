//! Protection domains, thread domains, parent domains, and XRC domains.

use core::ffi::{c_int, c_uint, c_void};

use super::ibv_context;
use super::macros::c_types;

c_types! {
    /// A protection domain, or a parent domain.
    pub struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// The attributes for allocating a thread domain (`ibv_alloc_td(3)`).
    pub struct ibv_td_init_attr {
        comp_mask: u32,
    }

    /// A thread domain.
    pub struct ibv_td {
        context: *mut ibv_context,
    }

    /// The valid fields of [`ibv_parent_domain_init_attr`].
    pub enum ibv_parent_domain_init_attr_mask: c_uint {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2,
    }

    /// The attributes for allocating a parent domain (`ibv_alloc_parent_domain(3)`).
    pub struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                size: usize,
                alignment: usize,
                resource_type: u64,
            ) -> *mut c_void,
        >,
        free: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                ptr: *mut c_void,
                resource_type: u64,
            ),
        >,
        pd_context: *mut c_void,
    }

    /// The valid fields of [`ibv_xrcd_init_attr`].
    pub enum ibv_xrcd_init_attr_mask: c_uint {
        IBV_XRCD_INIT_ATTR_FD = 1 << 0,
        IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
        IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2,
    }

    /// The attributes for opening an XRC domain (`ibv_open_xrcd(3)`).
    pub struct ibv_xrcd_init_attr {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }

    /// An XRC domain.
    pub struct ibv_xrcd {
        context: *mut ibv_context,
    }
}

/// The value that a custom allocator returns to request the default allocator.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
