//! `include/uapi/rdma/rdma_netlink.h`: the `NETLINK_RDMA` family.
//!
//! A message type is a client (`RDMA_NL_NLDEV` for devices) plus an operation of the client,
//! combined by [`rdma_nl_get_type`]. `RDMA_NLDEV_ATTR_*` are the attributes of all
//! `RDMA_NLDEV_CMD_*`. The iwarp port mapper (`IWPM_*`) and the path record service (`LS_*`) are
//! daemons queried by the kernel.

use crate::macros::header;

header! {
    "rdma/rdma_netlink.h";

    /// Client of the `NETLINK_RDMA` family, the upper 6 bits of a message type.
    pub consts anonymous: u16 {
        /// The iwarp port mapper.
        RDMA_NL_IWCM = 2,
        /// Unused; formerly the rdma_cm's statistics.
        RDMA_NL_RSVD = 3,
        /// Local services: the kernel queries user space for paths.
        RDMA_NL_LS = 4,
        /// Devices: the messages sent by iproute2's `rdma`.
        RDMA_NL_NLDEV = 5,
        /// One past the last client.
        RDMA_NL_NUM_CLIENTS = 6,
    }

    /// Multicast group of the `NETLINK_RDMA` family.
    pub consts anonymous: u32 {
        RDMA_NL_GROUP_IWPM = 2,
        RDMA_NL_GROUP_LS = 3,
        /// Device events, [`RDMA_NLDEV_CMD_MONITOR`].
        RDMA_NL_GROUP_NOTIFY = 4,
        RDMA_NL_NUM_GROUPS = 5,
    }

    /// Oldest and newest version of the port mapper protocol supported by the kernel.
    pub consts define: u16 {
        IWPM_UABI_VERSION_MIN = 3,
        IWPM_UABI_VERSION = 4,
    }

    /// Flag of a port mapper message.
    pub consts anonymous: u32 {
        /// Do not map the port.
        IWPM_FLAGS_NO_PORT_MAP = 1 << 0,
    }

    /// Operation of [`RDMA_NL_IWCM`], the iwarp port mapper.
    pub consts anonymous: u16 {
        RDMA_NL_IWPM_REG_PID = 0,
        RDMA_NL_IWPM_ADD_MAPPING = 1,
        RDMA_NL_IWPM_QUERY_MAPPING = 2,
        RDMA_NL_IWPM_REMOVE_MAPPING = 3,
        RDMA_NL_IWPM_REMOTE_INFO = 4,
        RDMA_NL_IWPM_HANDLE_ERR = 5,
        RDMA_NL_IWPM_MAPINFO = 6,
        RDMA_NL_IWPM_MAPINFO_NUM = 7,
        RDMA_NL_IWPM_HELLO = 8,
        RDMA_NL_IWPM_NUM_OPS = 9,
    }

    /// Attribute of a [`RDMA_NL_IWPM_REG_PID`] request.
    pub consts anonymous: u16 {
        IWPM_NLA_REG_PID_UNSPEC = 0,
        IWPM_NLA_REG_PID_SEQ = 1,
        IWPM_NLA_REG_IF_NAME = 2,
        IWPM_NLA_REG_IBDEV_NAME = 3,
        IWPM_NLA_REG_ULIB_NAME = 4,
        IWPM_NLA_REG_PID_MAX = 5,
    }

    /// Attribute of a [`RDMA_NL_IWPM_REG_PID`] reply.
    pub consts anonymous: u16 {
        IWPM_NLA_RREG_PID_UNSPEC = 0,
        IWPM_NLA_RREG_PID_SEQ = 1,
        IWPM_NLA_RREG_IBDEV_NAME = 2,
        IWPM_NLA_RREG_ULIB_NAME = 3,
        IWPM_NLA_RREG_ULIB_VER = 4,
        IWPM_NLA_RREG_PID_ERR = 5,
        IWPM_NLA_RREG_PID_MAX = 6,
    }

    /// Attribute of a [`RDMA_NL_IWPM_ADD_MAPPING`] request.
    pub consts anonymous: u16 {
        IWPM_NLA_MANAGE_MAPPING_UNSPEC = 0,
        IWPM_NLA_MANAGE_MAPPING_SEQ = 1,
        IWPM_NLA_MANAGE_ADDR = 2,
        IWPM_NLA_MANAGE_FLAGS = 3,
        IWPM_NLA_MANAGE_MAPPING_MAX = 4,
    }

    /// Attribute of a [`RDMA_NL_IWPM_ADD_MAPPING`] reply.
    pub consts anonymous: u16 {
        IWPM_NLA_RMANAGE_MAPPING_UNSPEC = 0,
        IWPM_NLA_RMANAGE_MAPPING_SEQ = 1,
        IWPM_NLA_RMANAGE_ADDR = 2,
        IWPM_NLA_RMANAGE_MAPPED_LOC_ADDR = 3,
        IWPM_NLA_MANAGE_MAPPED_LOC_ADDR = IWPM_NLA_RMANAGE_MAPPED_LOC_ADDR,
        IWPM_NLA_RMANAGE_MAPPING_ERR = 4,
        IWPM_NLA_RMANAGE_MAPPING_MAX = 5,
    }

    /// Highest attribute number in a port mapper message.
    pub consts define: u16 {
        IWPM_NLA_MAPINFO_SEND_MAX = 3,
        IWPM_NLA_REMOVE_MAPPING_MAX = 3,
    }

    /// Attribute of a [`RDMA_NL_IWPM_QUERY_MAPPING`] request.
    pub consts anonymous: u16 {
        IWPM_NLA_QUERY_MAPPING_UNSPEC = 0,
        IWPM_NLA_QUERY_MAPPING_SEQ = 1,
        IWPM_NLA_QUERY_LOCAL_ADDR = 2,
        IWPM_NLA_QUERY_REMOTE_ADDR = 3,
        IWPM_NLA_QUERY_FLAGS = 4,
        IWPM_NLA_QUERY_MAPPING_MAX = 5,
    }

    /// Attribute of a [`RDMA_NL_IWPM_QUERY_MAPPING`] reply.
    pub consts anonymous: u16 {
        IWPM_NLA_RQUERY_MAPPING_UNSPEC = 0,
        IWPM_NLA_RQUERY_MAPPING_SEQ = 1,
        IWPM_NLA_RQUERY_LOCAL_ADDR = 2,
        IWPM_NLA_RQUERY_REMOTE_ADDR = 3,
        IWPM_NLA_RQUERY_MAPPED_LOC_ADDR = 4,
        IWPM_NLA_RQUERY_MAPPED_REM_ADDR = 5,
        IWPM_NLA_RQUERY_MAPPING_ERR = 6,
        IWPM_NLA_RQUERY_MAPPING_MAX = 7,
    }

    /// Attribute of a [`RDMA_NL_IWPM_MAPINFO`] request.
    pub consts anonymous: u16 {
        IWPM_NLA_MAPINFO_REQ_UNSPEC = 0,
        IWPM_NLA_MAPINFO_ULIB_NAME = 1,
        IWPM_NLA_MAPINFO_ULIB_VER = 2,
        IWPM_NLA_MAPINFO_REQ_MAX = 3,
    }

    /// Attribute of a [`RDMA_NL_IWPM_MAPINFO`] reply.
    pub consts anonymous: u16 {
        IWPM_NLA_MAPINFO_UNSPEC = 0,
        IWPM_NLA_MAPINFO_LOCAL_ADDR = 1,
        IWPM_NLA_MAPINFO_MAPPED_ADDR = 2,
        IWPM_NLA_MAPINFO_FLAGS = 3,
        IWPM_NLA_MAPINFO_MAX = 4,
    }

    /// Attribute of a [`RDMA_NL_IWPM_MAPINFO_NUM`] message.
    pub consts anonymous: u16 {
        IWPM_NLA_MAPINFO_NUM_UNSPEC = 0,
        IWPM_NLA_MAPINFO_SEQ = 1,
        IWPM_NLA_MAPINFO_SEND_NUM = 2,
        IWPM_NLA_MAPINFO_ACK_NUM = 3,
        IWPM_NLA_MAPINFO_NUM_MAX = 4,
    }

    /// Attribute of a [`RDMA_NL_IWPM_HANDLE_ERR`] message.
    pub consts anonymous: u16 {
        IWPM_NLA_ERR_UNSPEC = 0,
        IWPM_NLA_ERR_SEQ = 1,
        IWPM_NLA_ERR_CODE = 2,
        IWPM_NLA_ERR_MAX = 3,
    }

    /// Attribute of a [`RDMA_NL_IWPM_HELLO`] message.
    pub consts anonymous: u16 {
        IWPM_NLA_HELLO_UNSPEC = 0,
        IWPM_NLA_HELLO_ABI_VERSION = 1,
        IWPM_NLA_HELLO_MAX = 2,
    }

    /// Node type, the value of [`RDMA_NLDEV_ATTR_DEV_NODE_TYPE`]; the first three are IBTA's
    /// NodeInfo:NodeType.
    pub consts anonymous: u8 {
        RDMA_NODE_IB_CA = 1,
        RDMA_NODE_IB_SWITCH = 2,
        RDMA_NODE_IB_ROUTER = 3,
        RDMA_NODE_RNIC = 4,
        RDMA_NODE_USNIC = 5,
        RDMA_NODE_USNIC_UDP = 6,
        RDMA_NODE_UNSPECIFIED = 7,
    }

    /// Operation of [`RDMA_NL_LS`], the local service that resolves paths for the kernel.
    pub consts anonymous: u16 {
        RDMA_NL_LS_OP_RESOLVE = 0,
        RDMA_NL_LS_OP_SET_TIMEOUT = 1,
        RDMA_NL_LS_OP_IP_RESOLVE = 2,
        RDMA_NL_LS_NUM_OPS = 3,
    }

    /// Message flag of a local service reply: the request failed.
    pub consts define: u16 {
        RDMA_NL_LS_F_ERR = 0x0100,
    }

    /// Use of a resolved path, [`RdmaLsResolveHeader::path_use`].
    pub consts anonymous: u8 {
        LS_RESOLVE_PATH_USE_ALL = 0,
        LS_RESOLVE_PATH_USE_UNIDIRECTIONAL = 1,
        LS_RESOLVE_PATH_USE_GMP = 2,
        LS_RESOLVE_PATH_USE_MAX = 3,
    }

    /// Size of a device name in a local service request, in bytes.
    pub consts define: usize {
        LS_DEVICE_NAME_MAX = 64,
    }

    /// Family header of a [`RDMA_NL_LS_OP_RESOLVE`] request.
    pub struct RdmaLsResolveHeader = rdma_ls_resolve_header {
        /// Device name, padded with NULs.
        pub device_name: [u8; LS_DEVICE_NAME_MAX],
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Use of the path, an `LS_RESOLVE_PATH_USE_*` value.
        pub path_use: u8,
    }

    /// Family header of a [`RDMA_NL_LS_OP_IP_RESOLVE`] request.
    pub struct RdmaLsIpResolveHeader = rdma_ls_ip_resolve_header {
        /// Interface index.
        pub ifindex: u32,
    }

    /// Attribute type bit: the receiver must fail if the attribute is unknown.
    pub consts define: u16 {
        RDMA_NLA_F_MANDATORY = 1 << 13,
    }

    /// Bits of an attribute type that hold its number, without the three flags.
    pub consts define: u16 {
        RDMA_NLA_TYPE_MASK = 0x1fff,
    }

    /// Attribute of a local service request or reply.
    pub consts anonymous: u16 {
        LS_NLA_TYPE_UNSPEC = 0,
        LS_NLA_TYPE_PATH_RECORD = 1,
        LS_NLA_TYPE_TIMEOUT = 2,
        LS_NLA_TYPE_SERVICE_ID = 3,
        LS_NLA_TYPE_DGID = 4,
        LS_NLA_TYPE_SGID = 5,
        LS_NLA_TYPE_TCLASS = 6,
        LS_NLA_TYPE_PKEY = 7,
        LS_NLA_TYPE_QOS_CLASS = 8,
        LS_NLA_TYPE_IPV4 = 9,
        LS_NLA_TYPE_IPV6 = 10,
        LS_NLA_TYPE_MAX = 11,
    }

    /// Payload of [`LS_NLA_TYPE_DGID`] and [`LS_NLA_TYPE_SGID`], big-endian.
    pub struct RdmaNlaLsGid = rdma_nla_ls_gid {
        /// The 16 bytes of the GID.
        pub gid: [u8; 16],
    }

    /// Operation of [`RDMA_NL_NLDEV`], the device interface.
    pub consts rdma_nldev_command: u16 {
        RDMA_NLDEV_CMD_UNSPEC = 0,
        /// Returns devices and their properties. Supports dump requests.
        RDMA_NLDEV_CMD_GET = 1,
        /// Renames a device, moves it to a net namespace, or changes its adaptive completion
        /// moderation (DIM).
        RDMA_NLDEV_CMD_SET = 2,
        /// Adds a software device (rxe, siw) to a netdev.
        RDMA_NLDEV_CMD_NEWLINK = 3,
        /// Removes a software device.
        RDMA_NLDEV_CMD_DELLINK = 4,
        /// Returns the ports of a device. Supports dump requests.
        RDMA_NLDEV_CMD_PORT_GET = 5,
        /// Returns settings of the whole subsystem.
        RDMA_NLDEV_CMD_SYS_GET = 6,
        /// Changes settings of the whole subsystem.
        RDMA_NLDEV_CMD_SYS_SET = 7,
        /// Returns the counts of live objects per device. Supports dump requests.
        RDMA_NLDEV_CMD_RES_GET = 9,
        /// Returns queue pairs. Supports dump requests.
        RDMA_NLDEV_CMD_RES_QP_GET = 10,
        /// Returns rdma_cm ids. Supports dump requests.
        RDMA_NLDEV_CMD_RES_CM_ID_GET = 11,
        /// Returns completion queues. Supports dump requests.
        RDMA_NLDEV_CMD_RES_CQ_GET = 12,
        /// Returns memory regions. Supports dump requests.
        RDMA_NLDEV_CMD_RES_MR_GET = 13,
        /// Returns protection domains. Supports dump requests.
        RDMA_NLDEV_CMD_RES_PD_GET = 14,
        /// Returns the character device of the requested kind (`uverbs`, `umad`, `rdma_cm`), its
        /// ABI version and driver id.
        RDMA_NLDEV_CMD_GET_CHARDEV = 15,
        RDMA_NLDEV_CMD_STAT_SET = 16,
        /// Returns counters. Supports dump requests.
        RDMA_NLDEV_CMD_STAT_GET = 17,
        RDMA_NLDEV_CMD_STAT_DEL = 18,
        RDMA_NLDEV_CMD_RES_QP_GET_RAW = 19,
        RDMA_NLDEV_CMD_RES_CQ_GET_RAW = 20,
        RDMA_NLDEV_CMD_RES_MR_GET_RAW = 21,
        /// Returns user contexts. Supports dump requests.
        RDMA_NLDEV_CMD_RES_CTX_GET = 22,
        /// Returns shared receive queues. Supports dump requests.
        RDMA_NLDEV_CMD_RES_SRQ_GET = 23,
        RDMA_NLDEV_CMD_STAT_GET_STATUS = 24,
        RDMA_NLDEV_CMD_RES_SRQ_GET_RAW = 25,
        /// Adds a sub-device to a parent.
        RDMA_NLDEV_CMD_NEWDEV = 26,
        /// Removes a sub-device.
        RDMA_NLDEV_CMD_DELDEV = 27,
        /// Notification of a device event.
        RDMA_NLDEV_CMD_MONITOR = 28,
        /// Returns the pools of fast registration memory regions. Supports dump requests.
        RDMA_NLDEV_CMD_FRMR_POOLS_GET = 29,
        RDMA_NLDEV_CMD_FRMR_POOLS_SET = 30,
        /// One past the last operation.
        RDMA_NLDEV_NUM_OPS = 31,
    }

    /// The notation for printing a driver attribute, [`RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE`].
    pub enum RdmaNldevPrintType = rdma_nldev_print_type: u8 {
        RDMA_NLDEV_PRINT_TYPE_UNSPEC = 0,
        RDMA_NLDEV_PRINT_TYPE_HEX = 1,
    }

    /// Attribute of the device interface.
    pub consts rdma_nldev_attr: u16 {
        RDMA_NLDEV_ATTR_UNSPEC = 0,
        RDMA_NLDEV_ATTR_PAD = RDMA_NLDEV_ATTR_UNSPEC,
        /// Device index, the key in most requests. `u32`.
        RDMA_NLDEV_ATTR_DEV_INDEX = 1,
        /// Device name. String.
        RDMA_NLDEV_ATTR_DEV_NAME = 2,
        /// Port number, starting at 1. In a [`RDMA_NLDEV_CMD_GET`] reply, the number of ports.
        /// `u32`.
        RDMA_NLDEV_ATTR_PORT_INDEX = 3,
        /// Device capabilities. For a port: CapabilityMask and, from bit 32, CapabilityMask2.
        /// `u64`.
        RDMA_NLDEV_ATTR_CAP_FLAGS = 4,
        /// Firmware version. String.
        RDMA_NLDEV_ATTR_FW_VERSION = 5,
        /// Node GUID in host byte order. `u64`.
        RDMA_NLDEV_ATTR_NODE_GUID = 6,
        /// System image GUID in host byte order. `u64`.
        RDMA_NLDEV_ATTR_SYS_IMAGE_GUID = 7,
        /// Subnet prefix in host byte order. `u64`.
        RDMA_NLDEV_ATTR_SUBNET_PREFIX = 8,
        /// Local identifier, 16 bits except on Omni-Path. `u32`.
        RDMA_NLDEV_ATTR_LID = 9,
        /// Local identifier of the subnet manager. `u32`.
        RDMA_NLDEV_ATTR_SM_LID = 10,
        /// LID mask control. `u8`.
        RDMA_NLDEV_ATTR_LMC = 11,
        /// Port state, an `ibv_port_state` value. `u8`.
        RDMA_NLDEV_ATTR_PORT_STATE = 12,
        /// Physical port state, an IBTA code. `u8`.
        RDMA_NLDEV_ATTR_PORT_PHYS_STATE = 13,
        /// Node type, an `RDMA_NODE_*` value. `u8`.
        RDMA_NLDEV_ATTR_DEV_NODE_TYPE = 14,
        /// Object counts of a device. Nested attributes.
        RDMA_NLDEV_ATTR_RES_SUMMARY = 15,
        /// The count for one kind of object. Nested attributes.
        RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY = 16,
        /// Kind of object. NUL-terminated string.
        RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME = 17,
        /// Current number of objects of this kind. `u64`.
        RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR = 18,
        /// Queue pairs. Nested attributes.
        RDMA_NLDEV_ATTR_RES_QP = 19,
        /// One queue pair. Nested attributes.
        RDMA_NLDEV_ATTR_RES_QP_ENTRY = 20,
        /// Local queue pair number. `u32`.
        RDMA_NLDEV_ATTR_RES_LQPN = 21,
        /// Remote queue pair number, RC and UC only. `u32`.
        RDMA_NLDEV_ATTR_RES_RQPN = 22,
        /// Receive PSN, RC and UC only. `u32`.
        RDMA_NLDEV_ATTR_RES_RQ_PSN = 23,
        /// Send PSN. `u32`.
        RDMA_NLDEV_ATTR_RES_SQ_PSN = 24,
        /// Path migration state, an `ibv_mig_state` value. `u8`.
        RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE = 25,
        /// Queue pair type, one of the kernel's `ib_qp_type` values. `u8`.
        RDMA_NLDEV_ATTR_RES_TYPE = 26,
        /// State of the queue pair or rdma_cm id. `u8`.
        RDMA_NLDEV_ATTR_RES_STATE = 27,
        /// Id of the process that created the object; absent for kernel objects. `u32`.
        RDMA_NLDEV_ATTR_RES_PID = 28,
        /// Name of the kernel module that created the object; absent for user objects. String.
        RDMA_NLDEV_ATTR_RES_KERN_NAME = 29,
        /// rdma_cm ids. Nested attributes.
        RDMA_NLDEV_ATTR_RES_CM_ID = 30,
        /// One rdma_cm id. Nested attributes.
        RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY = 31,
        /// Port space of an rdma_cm id. `u32`.
        RDMA_NLDEV_ATTR_RES_PS = 32,
        /// Source address. `__kernel_sockaddr_storage`.
        RDMA_NLDEV_ATTR_RES_SRC_ADDR = 33,
        /// Destination address. `__kernel_sockaddr_storage`.
        RDMA_NLDEV_ATTR_RES_DST_ADDR = 34,
        /// Completion queues. Nested attributes.
        RDMA_NLDEV_ATTR_RES_CQ = 35,
        /// One completion queue. Nested attributes.
        RDMA_NLDEV_ATTR_RES_CQ_ENTRY = 36,
        /// Capacity of the completion queue, in completions. `u32`.
        RDMA_NLDEV_ATTR_RES_CQE = 37,
        /// Number of objects that use this object. `u64`.
        RDMA_NLDEV_ATTR_RES_USECNT = 38,
        /// Polling context of a kernel completion queue. `u8`.
        RDMA_NLDEV_ATTR_RES_POLL_CTX = 39,
        /// Memory regions. Nested attributes.
        RDMA_NLDEV_ATTR_RES_MR = 40,
        /// One memory region. Nested attributes.
        RDMA_NLDEV_ATTR_RES_MR_ENTRY = 41,
        /// Remote key. `u32`.
        RDMA_NLDEV_ATTR_RES_RKEY = 42,
        /// Local key. `u32`.
        RDMA_NLDEV_ATTR_RES_LKEY = 43,
        /// Device address of the first byte. `u64`.
        RDMA_NLDEV_ATTR_RES_IOVA = 44,
        /// Length of the memory region, in bytes. `u64`.
        RDMA_NLDEV_ATTR_RES_MRLEN = 45,
        /// Protection domains. Nested attributes.
        RDMA_NLDEV_ATTR_RES_PD = 46,
        /// One protection domain. Nested attributes.
        RDMA_NLDEV_ATTR_RES_PD_ENTRY = 47,
        /// Local key for DMA to all memory. `u32`.
        RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY = 48,
        /// Remote key for all memory, if the kernel user created the key. `u32`.
        RDMA_NLDEV_ATTR_RES_UNSAFE_GLOBAL_RKEY = 49,
        /// Index of the netdev behind the port (RoCE, iWARP). `u32`.
        RDMA_NLDEV_ATTR_NDEV_INDEX = 50,
        /// Name of the netdev behind the port. String.
        RDMA_NLDEV_ATTR_NDEV_NAME = 51,
        /// Driver-specific attributes. Nested attributes.
        RDMA_NLDEV_ATTR_DRIVER = 52,
        /// One driver-specific attribute. Nested attributes.
        RDMA_NLDEV_ATTR_DRIVER_ENTRY = 53,
        /// Name or value of a driver-specific attribute. NUL-terminated string.
        RDMA_NLDEV_ATTR_DRIVER_STRING = 54,
        /// Notation for printing a driver-specific value: an [`RdmaNldevPrintType`]. `u8`.
        RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE = 55,
        /// Driver-specific value. `i32`.
        RDMA_NLDEV_ATTR_DRIVER_S32 = 56,
        /// Driver-specific value. `u32`.
        RDMA_NLDEV_ATTR_DRIVER_U32 = 57,
        /// Driver-specific value. `i64`.
        RDMA_NLDEV_ATTR_DRIVER_S64 = 58,
        /// Driver-specific value. `u64`.
        RDMA_NLDEV_ATTR_DRIVER_U64 = 59,
        /// Id of a protection domain. `u32`.
        RDMA_NLDEV_ATTR_RES_PDN = 60,
        /// Id of a completion queue. `u32`.
        RDMA_NLDEV_ATTR_RES_CQN = 61,
        /// Id of a memory region. `u32`.
        RDMA_NLDEV_ATTR_RES_MRN = 62,
        /// Id of an rdma_cm id. `u32`.
        RDMA_NLDEV_ATTR_RES_CM_IDN = 63,
        /// Id of a user context. `u32`.
        RDMA_NLDEV_ATTR_RES_CTXN = 64,
        /// Kind of software device, `rxe` or `siw`. String.
        RDMA_NLDEV_ATTR_LINK_TYPE = 65,
        /// 1 if devices are shared among net namespaces, 0 if each device belongs to one namespace.
        /// `u8`.
        RDMA_NLDEV_SYS_ATTR_NETNS_MODE = 66,
        /// `ib`, `iw`, `roce`, `usnic` or `opa`. String.
        RDMA_NLDEV_ATTR_DEV_PROTOCOL = 67,
        /// File descriptor of the net namespace to move the device to. If a name is also given, the
        /// device is renamed during the move. `u32`.
        RDMA_NLDEV_NET_NS_FD = 68,
        /// Kind of character device, `uverbs`, `umad`, `issm`, `rdma_cm`. String.
        RDMA_NLDEV_ATTR_CHARDEV_TYPE = 69,
        /// Name of the device node, without directory. String.
        RDMA_NLDEV_ATTR_CHARDEV_NAME = 70,
        /// ABI version of the character device; for uverbs, the ABI version of the driver. `u64`.
        RDMA_NLDEV_ATTR_CHARDEV_ABI = 71,
        /// Device number, encoded as the kernel's `huge_encode_dev` does. `u64`.
        RDMA_NLDEV_ATTR_CHARDEV = 72,
        /// Driver id, an `RdmaDriverId` value. `u32`, although the header's comment says 64 bits.
        RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID = 73,
        /// Counter mode, a [`RdmaNlCounterMode`]. `u32`.
        RDMA_NLDEV_ATTR_STAT_MODE = 74,
        /// Kind of object that the counters belong to, such as [`RDMA_NLDEV_ATTR_RES_QP`]. `u32`.
        RDMA_NLDEV_ATTR_STAT_RES = 75,
        /// Properties compared in automatic mode, [`RdmaNlCounterMask`] bits. `u32`.
        RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK = 76,
        /// Counters. Nested attributes.
        RDMA_NLDEV_ATTR_STAT_COUNTER = 77,
        /// One counter. Nested attributes.
        RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY = 78,
        /// Id of the counter. `u32`.
        RDMA_NLDEV_ATTR_STAT_COUNTER_ID = 79,
        /// Hardware counters. Nested attributes.
        RDMA_NLDEV_ATTR_STAT_HWCOUNTERS = 80,
        /// One hardware counter. Nested attributes.
        RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY = 81,
        /// Name of the hardware counter. NUL-terminated string.
        RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME = 82,
        /// Value of the hardware counter. `u64`.
        RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE = 83,
        /// 1 if completion moderation is adaptive (DIM), otherwise 0. `u8`.
        RDMA_NLDEV_ATTR_DEV_DIM = 84,
        /// Data of the object in a driver-specific format. Bytes.
        RDMA_NLDEV_ATTR_RES_RAW = 85,
        /// User contexts. Nested attributes.
        RDMA_NLDEV_ATTR_RES_CTX = 86,
        /// One user context. Nested attributes.
        RDMA_NLDEV_ATTR_RES_CTX_ENTRY = 87,
        /// Shared receive queues. Nested attributes.
        RDMA_NLDEV_ATTR_RES_SRQ = 88,
        /// One shared receive queue. Nested attributes.
        RDMA_NLDEV_ATTR_RES_SRQ_ENTRY = 89,
        /// Id of a shared receive queue. `u32`.
        RDMA_NLDEV_ATTR_RES_SRQN = 90,
        /// Lowest queue pair number of a range. `u32`.
        RDMA_NLDEV_ATTR_MIN_RANGE = 91,
        /// Highest queue pair number of a range. `u32`.
        RDMA_NLDEV_ATTR_MAX_RANGE = 92,
        /// 1 if the kernel copies pinned pages at a fork, otherwise 0. `u8`.
        RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK = 93,
        /// Index of the hardware counter. `u32`.
        RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX = 94,
        /// 1 if an optional hardware counter is enabled, otherwise 0. `u8`.
        RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC = 95,
        /// 1 if unprivileged programs may use privileged Q_Keys, otherwise 0. `u8`.
        RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE = 96,
        /// 1 to request driver-specific attributes. `u8`.
        RDMA_NLDEV_ATTR_DRIVER_DETAILS = 97,
        /// Subtype of a driver-specific queue pair. NUL-terminated string.
        RDMA_NLDEV_ATTR_RES_SUBTYPE = 98,
        /// Device type, a [`RdmaNlDevType`]. `u8`.
        RDMA_NLDEV_ATTR_DEV_TYPE = 99,
        /// Name of the parent device. NUL-terminated string.
        RDMA_NLDEV_ATTR_PARENT_NAME = 100,
        /// Origin of the device name, a [`RdmaNlNameAssignType`]. `u8`.
        RDMA_NLDEV_ATTR_NAME_ASSIGN_TYPE = 101,
        /// Kind of event, a [`RdmaNlNotifyEventType`]. `u8`.
        RDMA_NLDEV_ATTR_EVENT_TYPE = 102,
        /// 1 if the kernel reports device events, otherwise 0. `u8`.
        RDMA_NLDEV_SYS_ATTR_MONITOR_MODE = 103,
        /// 1 if bound queue pairs also have optional counters, otherwise 0. `u8`.
        RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED = 104,
        /// Pools of fast registration memory regions. Nested attributes.
        RDMA_NLDEV_ATTR_FRMR_POOLS = 105,
        /// One pool of fast registration memory regions. Nested attributes.
        RDMA_NLDEV_ATTR_FRMR_POOL_ENTRY = 106,
        /// Key of the pool: the properties that its regions share. Nested attributes.
        RDMA_NLDEV_ATTR_FRMR_POOL_KEY = 107,
        /// Address translation service flag of the pool's key. `u8`.
        RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS = 108,
        /// Access flags of the pool's key. `u32`.
        RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS = 109,
        /// Vendor-specific part of the pool's key. `u64`.
        RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY = 110,
        /// Number of DMA blocks in the pool's key. `u64`.
        RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS = 111,
        /// Number of handles queued in the pool. `u32`.
        RDMA_NLDEV_ATTR_FRMR_POOL_QUEUE_HANDLES = 112,
        /// Highest number of handles used at a time. `u64`.
        RDMA_NLDEV_ATTR_FRMR_POOL_MAX_IN_USE = 113,
        /// Number of handles in use. `u64`.
        RDMA_NLDEV_ATTR_FRMR_POOL_IN_USE = 114,
        /// Aging period of the pools, in seconds. `u32`.
        RDMA_NLDEV_ATTR_FRMR_POOLS_AGING_PERIOD = 115,
        /// Number of pinned handles of the pool. `u32`.
        RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES = 116,
        /// Kernel-only, vendor-specific part of the pool's key. `u64`.
        RDMA_NLDEV_ATTR_FRMR_POOL_KEY_KERNEL_VENDOR_KEY = 117,
        /// Maximum number of objects of this kind. `u64`.
        RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_MAX = 118,
        /// One past the last attribute.
        RDMA_NLDEV_ATTR_MAX = 119,
    }

    /// Binding of queue pairs to counters, [`RDMA_NLDEV_ATTR_STAT_MODE`].
    pub enum RdmaNlCounterMode = rdma_nl_counter_mode: u32 {
        /// Queue pairs are not bound to counters.
        RDMA_COUNTER_MODE_NONE = 0,
        /// Queue pairs are bound at creation, according to the mask of the automatic mode.
        RDMA_COUNTER_MODE_AUTO = 1,
        /// Queue pairs are bound on request.
        RDMA_COUNTER_MODE_MANUAL = 2,
        /// One past the last mode.
        RDMA_COUNTER_MODE_MAX = 3,
    }

    /// Properties that distinguish queue pairs in automatic mode,
    /// [`RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK`].
    pub flags RdmaNlCounterMask = rdma_nl_counter_mask: u32 {
        RDMA_COUNTER_MASK_QP_TYPE = 1 << 0,
        RDMA_COUNTER_MASK_PID = 1 << 1,
    }

    /// Type of a device with a parent, [`RDMA_NLDEV_ATTR_DEV_TYPE`].
    pub enum RdmaNlDevType = rdma_nl_dev_type: u8 {
        /// The device carries only subnet management traffic.
        RDMA_DEVICE_TYPE_SMI = 1,
    }

    /// Origin of a device name, [`RDMA_NLDEV_ATTR_NAME_ASSIGN_TYPE`].
    pub enum RdmaNlNameAssignType = rdma_nl_name_assign_type: u8 {
        RDMA_NAME_ASSIGN_TYPE_UNKNOWN = 0,
        /// The name was chosen by user space.
        RDMA_NAME_ASSIGN_TYPE_USER = 1,
    }

    /// The event in a [`RDMA_NLDEV_CMD_MONITOR`] message, [`RDMA_NLDEV_ATTR_EVENT_TYPE`].
    pub enum RdmaNlNotifyEventType = rdma_nl_notify_event_type: u8 {
        RDMA_REGISTER_EVENT = 0,
        RDMA_UNREGISTER_EVENT = 1,
        RDMA_NETDEV_ATTACH_EVENT = 2,
        RDMA_NETDEV_DETACH_EVENT = 3,
        RDMA_RENAME_EVENT = 4,
        RDMA_NETDEV_RENAME_EVENT = 5,
    }
}

/// Returns the client of a netlink message type, an `RDMA_NL_*` value.
///
/// C: the macro `RDMA_NL_GET_CLIENT`.
#[must_use]
pub const fn rdma_nl_get_client(r#type: u16) -> u16 {
    (r#type >> 10) & 0x3f
}

/// Returns the operation number in a netlink message type. Each client has separate numbers.
///
/// C: the macro `RDMA_NL_GET_OP`.
#[must_use]
pub const fn rdma_nl_get_op(r#type: u16) -> u16 {
    r#type & 0x3ff
}

/// Returns the netlink message type of operation `op` (below 1024) of `client` (below 64).
///
/// C: the macro `RDMA_NL_GET_TYPE`.
#[must_use]
pub const fn rdma_nl_get_type(client: u16, op: u16) -> u16 {
    (client << 10) + op
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_type_comes_apart_into_client_and_operation() {
        let r#type = rdma_nl_get_type(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV);
        assert_eq!(r#type, 0x140f);
        assert_eq!(rdma_nl_get_client(r#type), RDMA_NL_NLDEV);
        assert_eq!(rdma_nl_get_op(r#type), RDMA_NLDEV_CMD_GET_CHARDEV);
        assert_eq!(rdma_nl_get_client(u16::MAX), 63);
    }
}
