//! The types of rdma-core's `rdma/rdma_cma.h`: ids, events, connection parameters, addresses.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::macros::c_types;
use super::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_type,
    ibv_sa_path_rec, ibv_srq,
};

c_types! {
    /// The kind of an event (`rdma_get_cm_event(3)`).
    pub enum rdma_cm_event_type: c_uint {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
        RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16,
        RDMA_CM_EVENT_ADDRINFO_ERROR = 17,
        RDMA_CM_EVENT_USER = 18,
        RDMA_CM_EVENT_INTERNAL = 19,
    }

    /// The port space of an id (`rdma_create_id(3)`).
    pub enum rdma_port_space: c_uint {
        RDMA_PS_IPOIB = 0x0002,
        RDMA_PS_TCP = 0x0106,
        RDMA_PS_UDP = 0x0111,
        RDMA_PS_IB = 0x013f,
    }

    pub consts define: u64 {
        RDMA_IB_IP_PS_MASK = 0xffff_ffff_ffff_0000,
        RDMA_IB_IP_PORT_MASK = 0x0000_0000_0000_ffff,
        RDMA_IB_IP_PS_TCP = 0x0000_0000_0106_0000,
        RDMA_IB_IP_PS_UDP = 0x0000_0000_0111_0000,
        RDMA_IB_PS_IB = 0x0000_0000_013f_0000,
    }

    pub consts define: u32 {
        RDMA_UDP_QKEY = 0x0123_4567,
    }

    /// The GIDs of both sides, and the partition key, which is big-endian.
    pub struct rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        pkey: u16,
    }

    /// The addresses of both sides of a connection.
    pub struct rdma_addr {
        src: rdma_addr_src,
        dst: rdma_addr_dst,
        addr: rdma_addr_addr,
    }

    /// The local address.
    pub union rdma_addr_src = "" {
        src_addr: sockaddr,
        src_sin: sockaddr_in,
        src_sin6: sockaddr_in6,
        src_storage: sockaddr_storage,
    }

    /// The address of the peer.
    pub union rdma_addr_dst = "" {
        dst_addr: sockaddr,
        dst_sin: sockaddr_in,
        dst_sin6: sockaddr_in6,
        dst_storage: sockaddr_storage,
    }

    /// The addresses, depending on their transport.
    pub union rdma_addr_addr = "rdma_addr.addr" {
        ibaddr: rdma_ib_addr,
    }

    /// The route of an id.
    pub struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }

    /// A channel for the events of ids.
    pub struct rdma_event_channel {
        fd: c_int,
    }

    /// An id: a listener, or one end of a connection or of a datagram service.
    pub struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type,
    }

    pub consts anonymous: c_int {
        RDMA_MAX_RESP_RES = 0xff,
        RDMA_MAX_INIT_DEPTH = 0xff,
    }

    /// The parameters for connecting (`rdma_connect(3)`).
    pub struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    /// The address of a datagram service or a multicast group.
    pub struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    /// An event of an id.
    pub struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        param: rdma_cm_event_param,
    }

    /// The parameters of an event.
    pub union rdma_cm_event_param = "rdma_cm_event.param" {
        conn: rdma_conn_param,
        ud: rdma_ud_param,
        arg: u64,
    }

    pub consts define: c_int {
        RAI_PASSIVE = 0x01,
        RAI_NUMERICHOST = 0x02,
        RAI_NOROUTE = 0x04,
        RAI_FAMILY = 0x08,
        RAI_SA = 0x10,
        RAI_DNS = 0x20,
    }

    /// An address to listen on or to connect to, or the hints for finding one
    /// (`rdma_getaddrinfo(3)`).
    pub struct rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    /// The valid fields of [`rdma_cm_join_mc_attr_ex`].
    pub enum rdma_cm_join_mc_attr_mask: c_uint {
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
        RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
    }

    /// The kind of membership in a multicast group.
    pub enum rdma_cm_mc_join_flags: c_uint {
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
        RDMA_MC_JOIN_FLAG_RESERVED = 2,
    }

    /// The attributes of a membership (`rdma_join_multicast_ex(3)`).
    pub struct rdma_cm_join_mc_attr_ex {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut sockaddr,
    }

    pub consts anonymous: c_int {
        RDMA_OPTION_ID = 0,
        RDMA_OPTION_IB = 1,
        RDMA_OPTION_ID_TOS = 0,
        RDMA_OPTION_ID_REUSEADDR = 1,
        RDMA_OPTION_ID_AFONLY = 2,
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
        RDMA_OPTION_IB_PATH = 1,
    }
}
