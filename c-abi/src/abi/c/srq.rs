//! Shared receive queues.

use core::ffi::{c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::macros::c_types;
use super::{ibv_context, ibv_cq, ibv_pd, ibv_tm_cap, ibv_xrcd};

c_types! {
    /// The fields of [`ibv_srq_attr`] that `ibv_modify_srq(3)` changes.
    pub enum ibv_srq_attr_mask: c_uint {
        IBV_SRQ_MAX_WR = 1 << 0,
        IBV_SRQ_LIMIT = 1 << 1,
    }

    /// The attributes of a shared receive queue.
    pub struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// The attributes for creating a shared receive queue (`ibv_create_srq(3)`).
    pub struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    /// The type of a shared receive queue.
    pub enum ibv_srq_type: c_uint {
        IBV_SRQT_BASIC = 0,
        IBV_SRQT_XRC = 1,
        IBV_SRQT_TM = 2,
    }

    /// The valid fields of [`ibv_srq_init_attr_ex`].
    pub enum ibv_srq_init_attr_mask: c_uint {
        IBV_SRQ_INIT_ATTR_TYPE = 1 << 0,
        IBV_SRQ_INIT_ATTR_PD = 1 << 1,
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
        IBV_SRQ_INIT_ATTR_TM = 1 << 4,
        IBV_SRQ_INIT_ATTR_RESERVED = 1 << 5,
    }

    /// The extended attributes for creating a shared receive queue (`ibv_create_srq_ex(3)`). They
    /// begin with the fields of an [`ibv_srq_init_attr`].
    pub struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: ibv_srq_type,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    /// A shared receive queue.
    pub struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
}
