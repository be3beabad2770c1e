//! `include/uapi/rdma/rdma_user_rxe.h`: Soft-RoCE (rdma_rxe), with the queues shared by the kernel
//! and the provider.
//!
//! A queue is mapped memory starting with an [`RxeQueueBuf`]. The elements after it are
//! [`RxeSendWqe`], [`RxeRecvWqe`] or, for a completion queue, `struct ib_uverbs_wc`. Each element
//! has a slot of `1 << log2_elem_size` bytes.

use crate::endian::{Be32, Be64};
use crate::macros::header;
use crate::socket::{SockaddrIn, SockaddrIn6};

header! {
    "rdma/rdma_user_rxe.h";

    /// Address family in [`RxeAv::network_type`].
    pub consts anonymous: u8 {
        /// The addresses are `sockaddr_in`.
        RXE_NETWORK_TYPE_IPV4 = 1,
        /// The addresses are `sockaddr_in6`.
        RXE_NETWORK_TYPE_IPV6 = 2,
    }

    /// A GID, as bytes or as its two halves.
    pub union RxeGid = rxe_gid: u64 {
        /// The 16 bytes of the GID.
        pub raw: [u8; 16] => as_raw, from_raw,
        /// The two halves of the GID.
        pub global: RxeGidGlobal => as_global, from_global,
    }

    /// The two halves of a GID.
    pub struct RxeGidGlobal = rxe_gid.global {
        /// Upper half of the GID: the subnet prefix.
        pub subnet_prefix: Be64,
        /// Lower half of the GID: the interface id.
        pub interface_id: Be64,
    }

    /// Global route of an [`RxeAv`].
    pub struct RxeGlobalRoute = rxe_global_route {
        /// Destination GID.
        pub dgid: RxeGid,
        /// IPv6 flow label, 20 bits.
        pub flow_label: u32,
        /// Index of the source GID in the port's GID table.
        pub sgid_index: u8,
        /// Hop limit, IPv4 TTL.
        pub hop_limit: u8,
        /// Traffic class, IPv4 TOS.
        pub traffic_class: u8,
        /// Padding, implicit in C.
        pub _pad: [u8; 1],
    }

    /// Address vector: the path of a datagram's packets.
    pub struct RxeAv = rxe_av {
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Address family, an `RXE_NETWORK_TYPE_*` value.
        pub network_type: u8,
        /// Destination MAC address.
        pub dmac: [u8; 6],
        /// Global route: the GRH fields.
        pub grh: RxeGlobalRoute,
        /// Source address.
        pub sgid_addr: RxeAvAddr,
        /// Destination address.
        pub dgid_addr: RxeAvAddr,
    }

    /// Source or destination IP address, of the family in `network_type`.
    pub union RxeAvAddr = rxe_av.sgid_addr: u32 {
        /// IPv4.
        pub _sockaddr_in: SockaddrIn => as_sockaddr_in, from_sockaddr_in,
        /// IPv6.
        pub _sockaddr_in6: SockaddrIn6 => as_sockaddr_in6, from_sockaddr_in6,
    }

    /// A send work request inside an [`RxeSendWqe`].
    pub struct RxeSendWr = rxe_send_wr {
        /// The caller's cookie, returned in the completion.
        pub wr_id: u64,
        /// Reserved, zero.
        pub reserved: u32,
        /// `ib_uverbs_wr_opcode` value.
        pub opcode: u32,
        /// `ibv_send_flags` bits: 1 fence, 2 signaled, 4 solicited, 8 inline.
        pub send_flags: u32,
        /// Immediate data or remote key, depending on the opcode.
        pub ex: RxeSendWrEx,
        /// Operation-specific fields, depending on the opcode.
        pub wr: RxeSendWrOp,
    }

    /// Immediate data, or the key to invalidate at the peer.
    pub union RxeSendWrEx = rxe_send_wr.ex: u32 {
        /// Immediate data, big-endian as on the wire.
        pub imm_data: Be32 => as_imm_data, from_imm_data,
        /// The remote key to invalidate.
        pub invalidate_rkey: u32 => as_invalidate_rkey, from_invalidate_rkey,
    }

    /// Operation-specific fields of a send work request.
    pub union RxeSendWrOp = rxe_send_wr.wr: u64 {
        /// Fields for RDMA FLUSH.
        pub flush: RxeSendWrFlush => as_flush, from_flush,
        /// Fields for RDMA reads, writes and atomic writes.
        pub rdma: RxeSendWrRdma => as_rdma, from_rdma,
        /// Fields for atomics.
        pub atomic: RxeSendWrAtomic => as_atomic, from_atomic,
        /// Fields for datagrams.
        pub ud: RxeSendWrUd => as_ud, from_ud,
        /// Fields for memory window binds.
        pub mw: RxeSendWrMw => as_mw, from_mw,
    }

    /// Remote memory of an RDMA FLUSH.
    pub struct RxeSendWrFlush = rxe_send_wr.wr.flush {
        /// Address in the peer's memory.
        pub remote_addr: u64,
        /// Length in bytes.
        pub length: u32,
        /// Key for remote access to the memory.
        pub rkey: u32,
        /// Bits of [`IbPlacementType`](crate::ib_user_verbs::IbPlacementType).
        pub r#type: u8,
        /// Value of [`IbSelectivityLevel`](crate::ib_user_verbs::IbSelectivityLevel).
        pub level: u8,
        /// Padding, implicit in C.
        pub _pad: [u8; 6],
    }

    /// Remote memory of an RDMA read, write or atomic write.
    pub struct RxeSendWrRdma = rxe_send_wr.wr.rdma {
        /// Address in the peer's memory.
        pub remote_addr: u64,
        /// Key for remote access to the memory.
        pub rkey: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Remote memory and operands of an atomic.
    pub struct RxeSendWrAtomic = rxe_send_wr.wr.atomic {
        /// Address in the peer's memory.
        pub remote_addr: u64,
        /// Compare operand, or the addend.
        pub compare_add: u64,
        /// Swap operand.
        pub swap: u64,
        /// Key for remote access to the memory.
        pub rkey: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Destination of a datagram.
    pub struct RxeSendWrUd = rxe_send_wr.wr.ud {
        /// Destination queue pair number.
        pub remote_qpn: u32,
        /// Q_Key of the datagram.
        pub remote_qkey: u32,
        /// Index into the P_Key table.
        pub pkey_index: u16,
        /// Reserved, zero.
        pub reserved: u16,
        /// Address handle number from [`RxeCreateAhResp`]; 0 to use `av`.
        pub ah_num: u32,
        /// Padding.
        pub pad: [u32; 4],
        /// Address vector for kernels without `ah_num`.
        pub av: RxeAv,
    }

    /// Range and keys of a memory window bind.
    pub struct RxeSendWrMw = rxe_send_wr.wr.mw {
        /// Address of the first byte of the window.
        pub addr: u64,
        /// Length in bytes.
        pub length: u64,
        /// Local key of the region that the window is bound to.
        pub mr_lkey: u32,
        /// Remote key of the window before the bind.
        pub mw_rkey: u32,
        /// Remote key of the window after the bind.
        pub rkey: u32,
        /// Access rights of the window.
        pub access: u32,
    }

    /// A scatter/gather element.
    pub struct RxeSge = rxe_sge {
        /// User address of the first byte.
        pub addr: u64,
        /// Length in bytes.
        pub length: u32,
        /// Key for local access to the memory.
        pub lkey: u32,
    }

    /// Offset and size to pass to mmap for a queue.
    pub struct Mminfo = mminfo {
        /// Offset to pass to mmap.
        pub offset: u64,
        /// Number of bytes to map.
        pub size: u32,
        /// Padding.
        pub pad: u32,
    }

    /// Scatter/gather state of a work queue element. It is followed by `num_sge` entries of
    /// [`RxeSge`], by inline data, or (for an atomic write) by an 8-byte operand.
    #[repr(align(8))]
    pub struct RxeDmaInfo = rxe_dma_info {
        /// Length of the whole message, in bytes.
        pub length: u32,
        /// Number of bytes not yet sent; initially `length`.
        pub resid: u32,
        /// Index of the scatter/gather element in progress; initially 0.
        pub cur_sge: u32,
        /// Number of scatter/gather elements in the request.
        pub num_sge: u32,
        /// Offset in the current element, in bytes; initially 0.
        pub sge_offset: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Element of a send queue; its scatter/gather list or inline data follows.
    pub struct RxeSendWqe = rxe_send_wqe {
        /// The work request.
        pub wr: RxeSendWr,
        /// Used only by the kernel.
        pub status: u32,
        /// Used only by the kernel; initially 0 (posted).
        pub state: u32,
        /// Remote address in progress; initially the target's address.
        pub iova: u64,
        /// Used only by the kernel.
        pub mask: u32,
        /// Used only by the kernel.
        pub first_psn: u32,
        /// Used only by the kernel.
        pub last_psn: u32,
        /// Used only by the kernel.
        pub ack_length: u32,
        /// Send sequence number, 24 bits.
        pub ssn: u32,
        /// Used only by the kernel; initially 0.
        pub has_rd_atomic: u32,
        /// Scatter/gather state, followed by the list or the inline data.
        pub dma: RxeDmaInfo,
    }

    /// Element of a receive queue; its scatter/gather list follows.
    pub struct RxeRecvWqe = rxe_recv_wqe {
        /// The caller's cookie, returned in the completion.
        pub wr_id: u64,
        /// Reserved, zero.
        pub reserved: u32,
        /// Padding, zero.
        pub padding: u32,
        /// Scatter/gather state, followed by the list.
        pub dma: RxeDmaInfo,
    }

    /// The driver's part of the CREATE_AH reply.
    pub struct RxeCreateAhResp = rxe_create_ah_resp {
        /// Address handle number, for `ah_num` in work requests.
        pub ah_num: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// The driver's part of the CREATE_CQ reply.
    pub struct RxeCreateCqResp = rxe_create_cq_resp {
        /// Offset and size for mapping the completion queue.
        pub mi: Mminfo,
    }

    /// The driver's part of the RESIZE_CQ reply.
    pub struct RxeResizeCqResp = rxe_resize_cq_resp {
        /// Offset and size for mapping the new completion queue.
        pub mi: Mminfo,
    }

    /// The driver's part of the CREATE_QP reply.
    pub struct RxeCreateQpResp = rxe_create_qp_resp {
        /// Offset and size for mapping the receive queue.
        pub rq_mi: Mminfo,
        /// Offset and size for mapping the send queue.
        pub sq_mi: Mminfo,
    }

    /// The driver's part of the CREATE_SRQ reply.
    pub struct RxeCreateSrqResp = rxe_create_srq_resp {
        /// Offset and size for mapping the receive queue.
        pub mi: Mminfo,
        /// Number of the shared receive queue.
        pub srq_num: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// The driver's part of the MODIFY_SRQ input.
    pub struct RxeModifySrqCmd = rxe_modify_srq_cmd {
        /// User address where the kernel writes the new queue's [`Mminfo`].
        pub mmap_info_addr: u64,
    }

    /// Header of every mapped queue; the elements follow.
    ///
    /// Indices stay within `index_mask`, and one slot remains free. The queue is empty when the
    /// indices are equal, and full when the producer is one behind the consumer. Each index has a
    /// separate cache line.
    pub struct RxeQueueBuf = rxe_queue_buf {
        /// log2 of the distance between elements, in bytes.
        pub log2_elem_size: u32,
        /// Number of slots minus 1; the number of slots is a power of two.
        pub index_mask: u32,
        /// Padding to the end of the cache line.
        pub pad_1: [u32; 30],
        /// Index of the next slot to write. Written by the producer, read by the consumer.
        pub producer_index: u32,
        /// Padding to the end of the cache line.
        pub pad_2: [u32; 31],
        /// Index of the next slot to read. Written by the consumer, read by the producer.
        pub consumer_index: u32,
        /// Padding to the end of the cache line.
        pub pad_3: [u32; 31],
    }
}
