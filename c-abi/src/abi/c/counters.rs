//! Counters for flow rules and completion counters.

use core::ffi::c_uint;

use super::ibv_context;
use super::macros::c_types;

c_types! {
    /// The attributes for creating counters (`ibv_create_counters(3)`).
    pub struct ibv_counters_init_attr {
        comp_mask: u32,
    }

    /// Counters for flow rules.
    pub struct ibv_counters {
        context: *mut ibv_context,
    }

    /// The quantity that a counter counts.
    pub enum ibv_counter_description: c_uint {
        IBV_COUNTER_PACKETS = 0,
        IBV_COUNTER_BYTES = 1,
    }

    /// A counter to attach to a flow rule.
    pub struct ibv_counter_attach_attr {
        counter_desc: ibv_counter_description,
        index: u32,
        comp_mask: u32,
    }

    /// Options for `ibv_read_counters(3)`.
    pub enum ibv_read_counters_flags: u32 {
        IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1 << 0,
    }

    /// The operations that a completion counter counts.
    pub enum ibv_qp_attach_comp_cntr_op: u32 {
        IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0,
        IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5,
    }

    /// The capabilities of completion counters (`ibv_query_comp_cntr_caps(3)`).
    pub struct ibv_comp_cntr_caps {
        max_value: u64,
        max_counters: u32,
        supported_qp_attach_ops: u32,
    }

    /// A completion counter.
    pub struct ibv_comp_cntr {
        context: *mut ibv_context,
        handle: u32,
    }

    /// The quantity that a completion counter counts.
    pub enum ibv_comp_cntr_type: c_uint {
        IBV_COMP_CNTR_TYPE_WRS = 0,
        IBV_COMP_CNTR_TYPE_BYTES = 1,
    }

    /// The attributes for creating a completion counter (`ibv_create_comp_cntr(3)`).
    pub struct ibv_comp_cntr_init_attr {
        comp_mask: u32,
        type_: ibv_comp_cntr_type,
        flags: u32,
    }

    /// The attributes for attaching a completion counter to a queue pair
    /// (`ibv_qp_attach_comp_cntr(3)`).
    pub struct ibv_qp_attach_comp_cntr_attr {
        comp_mask: u32,
        op_mask: u32,
    }
}
