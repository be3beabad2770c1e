//! Tag matching.

use core::ffi::{c_int, c_uint};

use super::ibv_sge;
use super::macros::c_types;

c_types! {
    /// The capacity of a shared receive queue with tag matching.
    pub struct ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    /// The kind of change to a tag list.
    pub enum ibv_ops_wr_opcode: c_uint {
        IBV_WR_TAG_ADD = 0,
        IBV_WR_TAG_DEL = 1,
        IBV_WR_TAG_SYNC = 2,
    }

    /// Options for a change to a tag list.
    pub enum ibv_ops_flags: c_uint {
        IBV_OPS_SIGNALED = 1 << 0,
        IBV_OPS_TM_SYNC = 1 << 1,
    }

    /// A work request that changes a tag list (`ibv_post_srq_ops(3)`).
    pub struct ibv_ops_wr {
        wr_id: u64,
        next: *mut ibv_ops_wr,
        opcode: ibv_ops_wr_opcode,
        flags: c_int,
        tm: ibv_ops_wr_tm,
    }

    /// The operands of a change to a tag list.
    pub struct ibv_ops_wr_tm = "ibv_ops_wr.tm" {
        unexpected_cnt: u32,
        handle: u32,
        add: ibv_ops_wr_add,
    }

    /// A buffer and the tags of the messages that it receives.
    pub struct ibv_ops_wr_add = "ibv_ops_wr.tm.add" {
        recv_wr_id: u64,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        tag: u64,
        mask: u64,
    }
}
