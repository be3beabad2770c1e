//! Memory regions, access rights, advice, buffers, and DMA handles.

use core::ffi::{c_int, c_uint, c_void};

use super::macros::c_types;
use super::{ibv_context, ibv_pd};

/// A buffer from `ibv_alloc_buf(3)`; verbs.h does not define its fields.
#[derive(Debug)]
#[repr(C)]
pub struct ibv_buf {
    _opaque: [u8; 0],
}

c_types! {
    /// The access rights to a memory region or memory window, and the rights granted to a queue
    /// pair's peer.
    pub enum ibv_access_flags: c_uint {
        IBV_ACCESS_LOCAL_WRITE = 1,
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        IBV_ACCESS_MW_BIND = 1 << 4,
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        IBV_ACCESS_ON_DEMAND = 1 << 6,
        IBV_ACCESS_HUGETLB = 1 << 7,
        IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
        IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
        IBV_ACCESS_RELAXED_ORDERING = IBV_ACCESS_OPTIONAL_FIRST,
    }

    pub consts define: c_uint {
        /// The rights that the library removes if the kernel does not support them.
        IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
        IBV_ACCESS_OPTIONAL_FIRST = 1 << 20,
    }

    /// A memory region.
    pub struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// The attributes of a region that `ibv_rereg_mr(3)` is to change.
    pub enum ibv_rereg_mr_flags: c_uint {
        IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
        IBV_REREG_MR_CHANGE_PD = 1 << 1,
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
        IBV_REREG_MR_FLAGS_SUPPORTED = (IBV_REREG_MR_CHANGE_ACCESS << 1) - 1,
    }

    /// The error codes of `ibv_rereg_mr(3)`: negative numbers that state which version of the
    /// region, if any, is valid.
    pub enum ibv_rereg_mr_err_code: c_int {
        IBV_REREG_MR_ERR_INPUT = -1,
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        IBV_REREG_MR_ERR_CMD = -4,
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }

    /// The valid fields of [`ibv_mr_init_attr`].
    pub enum ibv_mr_init_attr_mask: c_uint {
        IBV_REG_MR_MASK_IOVA = 1 << 0,
        IBV_REG_MR_MASK_ADDR = 1 << 1,
        IBV_REG_MR_MASK_FD = 1 << 2,
        IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
        IBV_REG_MR_MASK_DMAH = 1 << 4,
        IBV_REG_MR_MASK_BUF = 1 << 5,
    }

    /// The attributes for registering a region (`ibv_reg_mr_ex(3)`).
    pub struct ibv_mr_init_attr {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut ibv_dmah,
        buf: *mut ibv_buf,
    }

    /// The advice given with `ibv_advise_mr(3)`.
    pub enum ibv_advise_mr_advice: c_uint {
        IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
    }

    pub consts define: u32 {
        /// Makes `ibv_advise_mr(3)` return only once the work is done.
        IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0,
    }

    /// The kind of memory named in a DMA handle's hints.
    pub enum ibv_tph_mem_type: c_uint {
        IBV_TPH_MEM_TYPE_VM = 0,
        IBV_TPH_MEM_TYPE_PM = 1,
    }

    /// The valid fields of [`ibv_dmah_init_attr`].
    pub enum ibv_dmah_init_attr_mask: c_uint {
        IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0,
        IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1,
        IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2,
    }

    /// The attributes for allocating a DMA handle (`ibv_alloc_dmah(3)`).
    pub struct ibv_dmah_init_attr {
        comp_mask: u32,
        cpu_id: u32,
        ph: u8,
        tph_mem_type: u8,
    }

    /// A DMA handle.
    pub struct ibv_dmah {
        context: *mut ibv_context,
    }
}
