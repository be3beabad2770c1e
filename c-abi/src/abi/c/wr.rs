//! Work requests.

use core::ffi::{c_int, c_uint, c_void};

use super::macros::c_types;
use super::{ibv_ah, ibv_mw, ibv_mw_bind_info};

c_types! {
    /// The operation of a send work request.
    pub enum ibv_wr_opcode: c_uint {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        IBV_WR_LOCAL_INV = 7,
        IBV_WR_BIND_MW = 8,
        IBV_WR_SEND_WITH_INV = 9,
        IBV_WR_TSO = 10,
        IBV_WR_DRIVER1 = 11,
        IBV_WR_FLUSH = 14,
        IBV_WR_ATOMIC_WRITE = 15,
    }

    /// Options for a send work request.
    pub enum ibv_send_flags: c_uint {
        IBV_SEND_FENCE = 1 << 0,
        IBV_SEND_SIGNALED = 1 << 1,
        IBV_SEND_SOLICITED = 1 << 2,
        IBV_SEND_INLINE = 1 << 3,
        IBV_SEND_IP_CSUM = 1 << 4,
    }

    /// The placement of a flush, as a bit mask: the domains that see the data afterwards.
    pub enum ibv_placement_type: u8 {
        IBV_FLUSH_GLOBAL = 1 << 0,
        IBV_FLUSH_PERSISTENT = 1 << 1,
    }

    /// The memory that a flush covers.
    pub enum ibv_selectivity_level: u8 {
        IBV_FLUSH_RANGE = 0,
        IBV_FLUSH_MR = 1,
    }

    /// Memory to be copied into a work request.
    pub struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    /// A scatter/gather element.
    pub struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// An array of file descriptors.
    pub struct ibv_fd_arr {
        arr: *mut c_int,
        count: u32,
    }

    /// A send work request (`ibv_post_send(3)`).
    pub struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        /// Big-endian immediate data. For [`IBV_WR_SEND_WITH_INV`] and [`IBV_WR_LOCAL_INV`], this
        /// field is `invalidate_rkey` in C, in native byte order.
        imm_data: u32,
        wr: ibv_send_wr_wr,
        qp_type: ibv_send_wr_qp_type,
        ext: ibv_send_wr_ext,
    }

    /// The remote end of a work request.
    pub union ibv_send_wr_wr = "ibv_send_wr.wr" {
        rdma: ibv_send_wr_rdma,
        atomic: ibv_send_wr_atomic,
        ud: ibv_send_wr_ud,
    }

    /// The remote memory of an RDMA operation.
    pub struct ibv_send_wr_rdma = "ibv_send_wr.wr.rdma" {
        remote_addr: u64,
        rkey: u32,
    }

    /// The remote memory and the operands of an atomic operation.
    pub struct ibv_send_wr_atomic = "ibv_send_wr.wr.atomic" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    /// The receiver of a datagram.
    pub struct ibv_send_wr_ud = "ibv_send_wr.wr.ud" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    /// Operands specific to the type of the queue pair.
    pub union ibv_send_wr_qp_type = "ibv_send_wr.qp_type" {
        xrc: ibv_send_wr_xrc,
    }

    /// The receiver of an XRC message.
    pub struct ibv_send_wr_xrc = "ibv_send_wr.qp_type.xrc" {
        remote_srqn: u32,
    }

    /// The operands of further operations; the union is anonymous in C.
    pub union ibv_send_wr_ext = "" {
        bind_mw: ibv_send_wr_bind_mw,
        tso: ibv_send_wr_tso,
    }

    /// The operands of [`IBV_WR_BIND_MW`].
    pub struct ibv_send_wr_bind_mw = "ibv_send_wr.bind_mw" {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    /// The operands of [`IBV_WR_TSO`].
    pub struct ibv_send_wr_tso = "ibv_send_wr.tso" {
        hdr: *mut c_void,
        hdr_sz: u16,
        mss: u16,
    }

    /// A receive work request (`ibv_post_recv(3)`).
    pub struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
}
