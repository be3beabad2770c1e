//! Work queues, indirection tables, and receive hashing.

use core::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::macros::c_types;
use super::{ibv_context, ibv_cq, ibv_pd, ibv_recv_wr};

c_types! {
    /// The type of a work queue.
    pub enum ibv_wq_type: c_uint {
        IBV_WQT_RQ = 0,
    }

    /// The valid fields of [`ibv_wq_init_attr`].
    pub enum ibv_wq_init_attr_mask: c_uint {
        IBV_WQ_INIT_ATTR_FLAGS = 1 << 0,
        IBV_WQ_INIT_ATTR_RESERVED = 1 << 1,
    }

    /// Options for creating a work queue.
    pub enum ibv_wq_flags: c_uint {
        IBV_WQ_FLAGS_CVLAN_STRIPPING = 1 << 0,
        IBV_WQ_FLAGS_SCATTER_FCS = 1 << 1,
        IBV_WQ_FLAGS_DELAY_DROP = 1 << 2,
        IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 1 << 3,
        IBV_WQ_FLAGS_RESERVED = 1 << 4,
    }

    /// The attributes for creating a work queue (`ibv_create_wq(3)`).
    pub struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: ibv_wq_type,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }

    /// The state of a work queue.
    pub enum ibv_wq_state: c_uint {
        IBV_WQS_RESET = 0,
        IBV_WQS_RDY = 1,
        IBV_WQS_ERR = 2,
        IBV_WQS_UNKNOWN = 3,
    }

    /// The valid fields of [`ibv_wq_attr`].
    pub enum ibv_wq_attr_mask: c_uint {
        IBV_WQ_ATTR_STATE = 1 << 0,
        IBV_WQ_ATTR_CURR_STATE = 1 << 1,
        IBV_WQ_ATTR_FLAGS = 1 << 2,
        IBV_WQ_ATTR_RESERVED = 1 << 3,
    }

    /// A change to a work queue (`ibv_modify_wq(3)`).
    pub struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: ibv_wq_state,
        curr_wq_state: ibv_wq_state,
        flags: u32,
        flags_mask: u32,
    }

    /// A work queue.
    pub struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: ibv_wq_state,
        wq_type: ibv_wq_type,
        post_recv: Option<
            unsafe extern "C" fn(
                current: *mut ibv_wq,
                recv_wr: *mut ibv_recv_wr,
                bad_recv_wr: *mut *mut ibv_recv_wr,
            ) -> c_int,
        >,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }

    /// A table of work queues over which received packets are distributed.
    pub struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }

    /// The valid fields of [`ibv_rwq_ind_table_init_attr`].
    pub enum ibv_ind_table_init_attr_mask: c_uint {
        IBV_CREATE_IND_TABLE_RESERVED = 1 << 0,
    }

    /// The attributes for creating an indirection table (`ibv_create_rwq_ind_table(3)`).
    pub struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }

    /// The hash functions.
    pub enum ibv_rx_hash_function_flags: c_uint {
        IBV_RX_HASH_FUNC_TOEPLITZ = 1 << 0,
    }

    /// The parts of a packet that are hashed; the field has 64 bits.
    pub enum ibv_rx_hash_fields: u64 {
        IBV_RX_HASH_SRC_IPV4 = 1 << 0,
        IBV_RX_HASH_DST_IPV4 = 1 << 1,
        IBV_RX_HASH_SRC_IPV6 = 1 << 2,
        IBV_RX_HASH_DST_IPV6 = 1 << 3,
        IBV_RX_HASH_SRC_PORT_TCP = 1 << 4,
        IBV_RX_HASH_DST_PORT_TCP = 1 << 5,
        IBV_RX_HASH_SRC_PORT_UDP = 1 << 6,
        IBV_RX_HASH_DST_PORT_UDP = 1 << 7,
        IBV_RX_HASH_IPSEC_SPI = 1 << 8,
        IBV_RX_HASH_INNER = 1 << 31,
    }

    /// The hash that distributes received packets over a table.
    pub struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
}
