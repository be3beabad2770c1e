//! `include/uapi/rdma/rdma_user_cm.h`: connection management with commands to
//! `/dev/infiniband/rdma_cm`.
//!
//! A command is a `write()` of an [`RdmaUcmCmdHdr`] and the command's struct. `response` is the
//! user address of the reply buffer, `id` the kernel's handle of a connection identifier, `uid` the
//! caller's cookie for that identifier.

use crate::ib_user_sa::IbUserPathRec;
use crate::ib_user_verbs::IbUverbsAhAttr;
use crate::macros::header;
use crate::socket::{KernelSockaddrStorage, SockaddrIn6};

header! {
    "rdma/rdma_user_cm.h";

    /// Version of this ABI, as in the `abi_version` of the rdma_cm misc device.
    pub consts define: u32 {
        RDMA_USER_CM_ABI_VERSION = 4,
    }

    /// Size of the private data area of connect, accept and reject, in bytes.
    pub consts define: usize {
        RDMA_MAX_PRIVATE_DATA = 256,
    }

    /// Command number for [`RdmaUcmCmdHdr::cmd`].
    pub consts anonymous: u32 {
        RDMA_USER_CM_CMD_CREATE_ID = 0,
        RDMA_USER_CM_CMD_DESTROY_ID = 1,
        RDMA_USER_CM_CMD_BIND_IP = 2,
        RDMA_USER_CM_CMD_RESOLVE_IP = 3,
        RDMA_USER_CM_CMD_RESOLVE_ROUTE = 4,
        RDMA_USER_CM_CMD_QUERY_ROUTE = 5,
        RDMA_USER_CM_CMD_CONNECT = 6,
        RDMA_USER_CM_CMD_LISTEN = 7,
        RDMA_USER_CM_CMD_ACCEPT = 8,
        RDMA_USER_CM_CMD_REJECT = 9,
        RDMA_USER_CM_CMD_DISCONNECT = 10,
        RDMA_USER_CM_CMD_INIT_QP_ATTR = 11,
        RDMA_USER_CM_CMD_GET_EVENT = 12,
        RDMA_USER_CM_CMD_GET_OPTION = 13,
        RDMA_USER_CM_CMD_SET_OPTION = 14,
        RDMA_USER_CM_CMD_NOTIFY = 15,
        RDMA_USER_CM_CMD_JOIN_IP_MCAST = 16,
        RDMA_USER_CM_CMD_LEAVE_MCAST = 17,
        RDMA_USER_CM_CMD_MIGRATE_ID = 18,
        RDMA_USER_CM_CMD_QUERY = 19,
        RDMA_USER_CM_CMD_BIND = 20,
        RDMA_USER_CM_CMD_RESOLVE_ADDR = 21,
        RDMA_USER_CM_CMD_JOIN_MCAST = 22,
        RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE = 23,
        RDMA_USER_CM_CMD_WRITE_CM_EVENT = 24,
    }

    /// Port space, bytes 4 and 5 of the service id (IBTA annex A11); [`RdmaUcmCreateId::ps`].
    pub enum RdmaUcmPortSpace = rdma_ucm_port_space: u16 {
        RDMA_PS_IPOIB = 0x0002,
        RDMA_PS_IB = 0x013f,
        RDMA_PS_TCP = 0x0106,
        RDMA_PS_UDP = 0x0111,
    }

    /// Header of every command. `in` and `out` are the sizes, in bytes, of the command's struct and
    /// of the reply buffer.
    pub request RdmaUcmCmdHdr = rdma_ucm_cmd_hdr {
        /// Command number, `RDMA_USER_CM_CMD_*`.
        pub cmd: u32,
        /// Number of bytes after this header.
        pub r#in: u16,
        /// Size of the reply buffer, in bytes.
        pub out: u16,
    }

    /// Input to [`RDMA_USER_CM_CMD_CREATE_ID`].
    pub request RdmaUcmCreateId = rdma_ucm_create_id {
        /// The caller's cookie for the id.
        pub uid: u64,
        /// User address of the reply buffer.
        pub response: u64,
        /// Value of [`RdmaUcmPortSpace`].
        pub ps: u16,
        /// Type of queue pair, an `ib_uverbs_qp_type` value.
        pub qp_type: u8,
        /// Reserved, zero.
        pub reserved: [u8; 5],
    }

    /// Reply to [`RDMA_USER_CM_CMD_CREATE_ID`].
    pub struct RdmaUcmCreateIdResp = rdma_ucm_create_id_resp {
        /// Kernel handle of the new connection id.
        pub id: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_DESTROY_ID`].
    pub request RdmaUcmDestroyId = rdma_ucm_destroy_id {
        /// User address of the reply buffer.
        pub response: u64,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`RDMA_USER_CM_CMD_DESTROY_ID`].
    pub struct RdmaUcmDestroyIdResp = rdma_ucm_destroy_id_resp {
        /// Number of events that the kernel has delivered for the object. Handle all of them before
        /// freeing the object's memory.
        pub events_reported: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_BIND_IP`].
    pub request RdmaUcmBindIp = rdma_ucm_bind_ip {
        /// User address of the reply buffer.
        pub response: u64,
        /// The local address.
        pub addr: SockaddrIn6,
        /// Kernel handle of the connection id.
        pub id: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_BIND`].
    pub request RdmaUcmBind = rdma_ucm_bind {
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Number of valid bytes in `addr`.
        pub addr_size: u16,
        /// Reserved, zero.
        pub reserved: u16,
        /// The local address.
        pub addr: KernelSockaddrStorage,
    }

    /// Input to [`RDMA_USER_CM_CMD_RESOLVE_IP`].
    pub request RdmaUcmResolveIp = rdma_ucm_resolve_ip {
        /// Source address.
        pub src_addr: SockaddrIn6,
        /// Destination address.
        pub dst_addr: SockaddrIn6,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Timeout in milliseconds.
        pub timeout_ms: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_RESOLVE_ADDR`].
    pub request RdmaUcmResolveAddr = rdma_ucm_resolve_addr {
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Timeout in milliseconds.
        pub timeout_ms: u32,
        /// Number of valid bytes in `src_addr`.
        pub src_size: u16,
        /// Number of valid bytes in `dst_addr`.
        pub dst_size: u16,
        /// Reserved, zero.
        pub reserved: u32,
        /// Source address.
        pub src_addr: KernelSockaddrStorage,
        /// Destination address.
        pub dst_addr: KernelSockaddrStorage,
    }

    /// Input to [`RDMA_USER_CM_CMD_RESOLVE_ROUTE`].
    pub request RdmaUcmResolveRoute = rdma_ucm_resolve_route {
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Timeout in milliseconds.
        pub timeout_ms: u32,
    }

    /// Values of [`RdmaUcmQuery::option`]: the information to query.
    pub consts anonymous: u32 {
        RDMA_USER_CM_QUERY_ADDR = 0,
        RDMA_USER_CM_QUERY_PATH = 1,
        RDMA_USER_CM_QUERY_GID = 2,
        RDMA_USER_CM_QUERY_IB_SERVICE = 3,
    }

    /// Input to [`RDMA_USER_CM_CMD_QUERY`].
    pub request RdmaUcmQuery = rdma_ucm_query {
        /// User address of the reply buffer.
        pub response: u64,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Information to query, an `RDMA_USER_CM_QUERY_*` value.
        pub option: u32,
    }

    /// Reply to [`RDMA_USER_CM_CMD_QUERY_ROUTE`].
    pub struct RdmaUcmQueryRouteResp = rdma_ucm_query_route_resp {
        /// GUID of the device, big-endian despite its C type; 0 without a device.
        pub node_guid: u64,
        /// Up to two path records.
        pub ib_route: [IbUserPathRec; 2],
        /// Source address.
        pub src_addr: SockaddrIn6,
        /// Destination address.
        pub dst_addr: SockaddrIn6,
        /// Number of path records.
        pub num_paths: u32,
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Reserved, zero.
        pub reserved: [u8; 3],
        /// Index of the device, as in
        /// [`RDMA_NLDEV_ATTR_DEV_INDEX`](crate::rdma_netlink::RDMA_NLDEV_ATTR_DEV_INDEX).
        pub ibdev_index: u32,
        /// Reserved, zero.
        pub reserved1: u32,
    }

    /// Reply to [`RDMA_USER_CM_CMD_QUERY`] with [`RDMA_USER_CM_QUERY_ADDR`].
    pub struct RdmaUcmQueryAddrResp = rdma_ucm_query_addr_resp {
        /// GUID of the device, big-endian despite its C type; 0 without a device.
        pub node_guid: u64,
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Reserved, zero.
        pub reserved: u8,
        /// P_Key, big-endian despite its C type.
        pub pkey: u16,
        /// Number of valid bytes in `src_addr`.
        pub src_size: u16,
        /// Number of valid bytes in `dst_addr`.
        pub dst_size: u16,
        /// Source address.
        pub src_addr: KernelSockaddrStorage,
        /// Destination address.
        pub dst_addr: KernelSockaddrStorage,
        /// Index of the device, as in
        /// [`RDMA_NLDEV_ATTR_DEV_INDEX`](crate::rdma_netlink::RDMA_NLDEV_ATTR_DEV_INDEX).
        pub ibdev_index: u32,
        /// Reserved, zero.
        pub reserved1: u32,
    }

    /// Reply to [`RDMA_USER_CM_CMD_QUERY`] with [`RDMA_USER_CM_QUERY_PATH`]; path records follow.
    pub struct RdmaUcmQueryPathResp = rdma_ucm_query_path_resp {
        /// Number of path records.
        pub num_paths: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`RDMA_USER_CM_CMD_QUERY`] with [`RDMA_USER_CM_QUERY_IB_SERVICE`]; service records
    /// follow.
    #[repr(align(8))]
    pub struct RdmaUcmQueryIbServiceResp = rdma_ucm_query_ib_service_resp {
        /// Number of service records that follow.
        pub num_service_recs: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Parameters of a connection.
    pub struct RdmaUcmConnParam = rdma_ucm_conn_param {
        /// Queue pair number.
        pub qp_num: u32,
        /// Q_Key.
        pub qkey: u32,
        /// Private data for the peer's application.
        pub private_data: [u8; RDMA_MAX_PRIVATE_DATA],
        /// Number of valid bytes in `private_data`.
        pub private_data_len: u8,
        /// Nonzero if the queue pair uses a shared receive queue.
        pub srq: u8,
        /// Maximum number of reads and atomics in progress as responder.
        pub responder_resources: u8,
        /// Maximum number of outstanding reads and atomics as requester.
        pub initiator_depth: u8,
        /// Nonzero for end-to-end flow control.
        pub flow_control: u8,
        /// Number of retries after a timeout, 3 bits.
        pub retry_count: u8,
        /// Number of retries after receiver not ready; 7 means no limit.
        pub rnr_retry_count: u8,
        /// Nonzero if the struct is valid.
        pub valid: u8,
    }

    /// Address of a datagram service, with private data.
    pub struct RdmaUcmUdParam = rdma_ucm_ud_param {
        /// Queue pair number.
        pub qp_num: u32,
        /// Q_Key.
        pub qkey: u32,
        /// Path to the destination.
        pub ah_attr: IbUverbsAhAttr,
        /// Private data for the peer's application.
        pub private_data: [u8; RDMA_MAX_PRIVATE_DATA],
        /// Number of valid bytes in `private_data`.
        pub private_data_len: u8,
        /// Reserved, zero.
        pub reserved: [u8; 7],
    }

    /// Enhanced connection establishment (ECE) options.
    pub struct RdmaUcmEce = rdma_ucm_ece {
        /// Id of the vendor that defines the options.
        pub vendor_id: u32,
        /// The vendor-defined options.
        pub attr_mod: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_CONNECT`].
    pub request RdmaUcmConnect = rdma_ucm_connect {
        /// Parameters of the connection.
        pub conn_param: RdmaUcmConnParam,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Reserved, zero.
        pub reserved: u32,
        /// Enhanced connection establishment (ECE) options.
        pub ece: RdmaUcmEce,
    }

    /// Input to [`RDMA_USER_CM_CMD_LISTEN`].
    pub request RdmaUcmListen = rdma_ucm_listen {
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Maximum number of pending connection requests.
        pub backlog: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_ACCEPT`].
    pub request RdmaUcmAccept = rdma_ucm_accept {
        /// The caller's cookie for the id.
        pub uid: u64,
        /// Parameters of the connection.
        pub conn_param: RdmaUcmConnParam,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Reserved, zero.
        pub reserved: u32,
        /// Enhanced connection establishment (ECE) options.
        pub ece: RdmaUcmEce,
    }

    /// Input to [`RDMA_USER_CM_CMD_REJECT`].
    pub struct RdmaUcmReject = rdma_ucm_reject {
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Number of valid bytes in `private_data`.
        pub private_data_len: u8,
        /// Reject reason, IBTA code.
        pub reason: u8,
        /// Reserved, zero.
        pub reserved: [u8; 2],
        /// Private data for the peer's application.
        pub private_data: [u8; RDMA_MAX_PRIVATE_DATA],
    }

    /// Input to [`RDMA_USER_CM_CMD_DISCONNECT`].
    pub request RdmaUcmDisconnect = rdma_ucm_disconnect {
        /// Kernel handle of the connection id.
        pub id: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_INIT_QP_ATTR`].
    pub request RdmaUcmInitQpAttr = rdma_ucm_init_qp_attr {
        /// User address of the reply buffer.
        pub response: u64,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Queue pair state, an `ibv_qp_state` value.
        pub qp_state: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_NOTIFY`].
    pub request RdmaUcmNotify = rdma_ucm_notify {
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Event type, an `ibv_event_type` value.
        pub event: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_JOIN_IP_MCAST`].
    pub request RdmaUcmJoinIpMcast = rdma_ucm_join_ip_mcast {
        /// User address of the reply buffer.
        pub response: u64,
        /// The caller's cookie for the id.
        pub uid: u64,
        /// Address of the multicast group.
        pub addr: SockaddrIn6,
        /// Kernel handle of the connection id.
        pub id: u32,
    }

    /// Modes for joining a multicast group, [`RdmaUcmJoinMcast::join_flags`].
    pub consts anonymous: u16 {
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
        RDMA_MC_JOIN_FLAG_RESERVED = 2,
    }

    /// Input to [`RDMA_USER_CM_CMD_JOIN_MCAST`].
    pub request RdmaUcmJoinMcast = rdma_ucm_join_mcast {
        /// User address of the reply buffer.
        pub response: u64,
        /// The caller's cookie for the id.
        pub uid: u64,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Number of valid bytes in `addr`.
        pub addr_size: u16,
        /// `RDMA_MC_JOIN_FLAG_*` bits.
        pub join_flags: u16,
        /// Address of the multicast group.
        pub addr: KernelSockaddrStorage,
    }

    /// Input to [`RDMA_USER_CM_CMD_GET_EVENT`].
    pub request RdmaUcmGetEvent = rdma_ucm_get_event {
        /// User address of the reply buffer.
        pub response: u64,
    }

    /// Reply to [`RDMA_USER_CM_CMD_GET_EVENT`].
    pub struct RdmaUcmEventResp = rdma_ucm_event_resp {
        /// The caller's cookie for the id.
        pub uid: u64,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Event type, an `rdma_cm_event_type` value.
        pub event: u32,
        /// 0, a negative errno, or a reject reason.
        pub status: u32,
        /// Parameters of the event.
        pub param: RdmaUcmEventRespParam,
        /// Reserved, zero.
        pub reserved: u32,
        /// Enhanced connection establishment (ECE) options.
        pub ece: RdmaUcmEce,
    }

    /// Parameters of the event. The port space determines the member in use.
    pub union RdmaUcmEventRespParam = rdma_ucm_event_resp.param: u32 {
        /// Parameters for connected services.
        pub conn: RdmaUcmConnParam => as_conn, from_conn,
        /// Parameters for datagram services.
        pub ud: RdmaUcmUdParam => as_ud, from_ud,
        /// Two values, for events that user space has written.
        pub arg32: [u32; 2] => as_arg32, from_arg32,
    }

    /// Level of an option, [`RdmaUcmSetOption::level`].
    pub consts anonymous: u32 {
        RDMA_OPTION_ID = 0,
        RDMA_OPTION_IB = 1,
    }

    /// Option of the level [`RDMA_OPTION_ID`], [`RdmaUcmSetOption::optname`].
    pub consts anonymous: u32 {
        RDMA_OPTION_ID_TOS = 0,
        RDMA_OPTION_ID_REUSEADDR = 1,
        RDMA_OPTION_ID_AFONLY = 2,
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
    }

    /// Option of the level [`RDMA_OPTION_IB`], [`RdmaUcmSetOption::optname`].
    pub consts anonymous: u32 {
        RDMA_OPTION_IB_PATH = 1,
    }

    /// Input to [`RDMA_USER_CM_CMD_SET_OPTION`].
    pub request RdmaUcmSetOption = rdma_ucm_set_option {
        /// User address of the value.
        pub optval: u64,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// `RDMA_OPTION_ID` or `RDMA_OPTION_IB`.
        pub level: u32,
        /// Option number within `level`.
        pub optname: u32,
        /// Size of the value, in bytes.
        pub optlen: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_MIGRATE_ID`].
    pub request RdmaUcmMigrateId = rdma_ucm_migrate_id {
        /// User address of the reply buffer.
        pub response: u64,
        /// Kernel handle of the connection id.
        pub id: u32,
        /// File descriptor of the event channel from which the id is moved.
        pub fd: u32,
    }

    /// Reply to [`RDMA_USER_CM_CMD_MIGRATE_ID`].
    pub struct RdmaUcmMigrateResp = rdma_ucm_migrate_resp {
        /// Number of events that the kernel has delivered for the object. Handle all of them before
        /// freeing the object's memory.
        pub events_reported: u32,
    }

    /// Fields set in [`RdmaUcmIbService`], bits of [`RdmaUcmIbService::flags`].
    pub consts anonymous: u32 {
        RDMA_USER_CM_IB_SERVICE_FLAG_ID = 1,
        RDMA_USER_CM_IB_SERVICE_FLAG_NAME = 2,
    }

    /// Size of a service name in bytes.
    pub consts define: usize {
        RDMA_USER_CM_IB_SERVICE_NAME_SIZE = 64,
    }

    /// A service to resolve, by id or by name.
    pub struct RdmaUcmIbService = rdma_ucm_ib_service {
        /// Service id.
        pub service_id: u64,
        /// Name of the service, padded with NULs.
        pub service_name: [u8; RDMA_USER_CM_IB_SERVICE_NAME_SIZE],
        /// `RDMA_USER_CM_IB_SERVICE_FLAG_*` bits.
        pub flags: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Input to [`RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE`].
    pub struct RdmaUcmResolveIbService = rdma_ucm_resolve_ib_service {
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Reserved, zero.
        pub reserved: u32,
        /// The service to resolve.
        pub ibs: RdmaUcmIbService,
    }

    /// Input to [`RDMA_USER_CM_CMD_WRITE_CM_EVENT`]: an event for the caller's own id.
    pub request RdmaUcmWriteCmEvent = rdma_ucm_write_cm_event {
        /// Kernel handle of the connection id.
        pub id: u32,
        /// Reserved, zero.
        pub reserved: u32,
        /// Event type, an `rdma_cm_event_type` value.
        pub event: u32,
        /// Status of the event.
        pub status: u32,
        /// Parameters of the event.
        pub param: RdmaUcmWriteCmEventParam,
    }

    /// Parameters of the event.
    pub union RdmaUcmWriteCmEventParam = rdma_ucm_write_cm_event.param: u64 {
        /// Parameters for connected services.
        pub conn: RdmaUcmConnParam => as_conn, from_conn,
        /// Parameters for datagram services.
        pub ud: RdmaUcmUdParam => as_ud, from_ud,
        /// Event-specific value.
        pub arg: u64 => as_arg, from_arg,
    }
}
