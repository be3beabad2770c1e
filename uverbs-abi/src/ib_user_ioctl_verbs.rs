//! `include/uapi/rdma/ib_user_ioctl_verbs.h`: values and structs in attributes of the uverbs ioctl,
//! and the driver ids.

use crate::ib_user_verbs::IbUverbsQueryPortResp;
use crate::macros::header;

header! {
    "rdma/ib_user_ioctl_verbs.h";

    /// Lowest or highest bit of the optional access flags. A kernel may ignore unknown flags in
    /// this range.
    pub consts define: u32 {
        IB_UVERBS_ACCESS_OPTIONAL_FIRST = 1 << 20,
        IB_UVERBS_ACCESS_OPTIONAL_LAST = 1 << 29,
    }

    /// Capabilities of the kernel's uverbs core, reported by GET_CONTEXT and QUERY_CONTEXT.
    pub flags IbUverbsCoreSupport = ib_uverbs_core_support: u64 {
        /// Unknown access flags in the optional range are ignored.
        IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS = 1 << 0,
        /// Unknown driver input and short replies are reported reliably.
        IB_UVERBS_CORE_SUPPORT_ROBUST_UDATA = 1 << 1,
    }

    /// Access rights of a memory region, a memory window or a queue pair's peer.
    pub flags IbUverbsAccessFlags = ib_uverbs_access_flags: u32 {
        IB_UVERBS_ACCESS_LOCAL_WRITE = 1 << 0,
        IB_UVERBS_ACCESS_REMOTE_WRITE = 1 << 1,
        IB_UVERBS_ACCESS_REMOTE_READ = 1 << 2,
        IB_UVERBS_ACCESS_REMOTE_ATOMIC = 1 << 3,
        IB_UVERBS_ACCESS_MW_BIND = 1 << 4,
        /// Addresses in the region start at 0 instead of the virtual address.
        IB_UVERBS_ACCESS_ZERO_BASED = 1 << 5,
        /// Pages are faulted in on demand instead of pinned.
        IB_UVERBS_ACCESS_ON_DEMAND = 1 << 6,
        IB_UVERBS_ACCESS_HUGETLB = 1 << 7,
        IB_UVERBS_ACCESS_FLUSH_GLOBAL = 1 << 8,
        IB_UVERBS_ACCESS_FLUSH_PERSISTENT = 1 << 9,
        /// The device may access the memory with PCIe relaxed ordering.
        IB_UVERBS_ACCESS_RELAXED_ORDERING = 1 << 20,
        /// All optional flags.
        IB_UVERBS_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
    }

    /// Type of a shared receive queue.
    pub enum IbUverbsSrqType = ib_uverbs_srq_type: u32 {
        IB_UVERBS_SRQT_BASIC = 0,
        IB_UVERBS_SRQT_XRC = 1,
        IB_UVERBS_SRQT_TM = 2,
    }

    /// Type of a work queue.
    pub enum IbUverbsWqType = ib_uverbs_wq_type: u32 {
        IB_UVERBS_WQT_RQ = 0,
    }

    /// Work queue creation flags.
    pub flags IbUverbsWqFlags = ib_uverbs_wq_flags: u32 {
        IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING = 1 << 0,
        IB_UVERBS_WQ_FLAGS_SCATTER_FCS = 1 << 1,
        IB_UVERBS_WQ_FLAGS_DELAY_DROP = 1 << 2,
        IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING = 1 << 3,
    }

    /// Queue pair type, which determines the transport service.
    pub enum IbUverbsQpType = ib_uverbs_qp_type: u32 {
        /// Reliable connection.
        IB_UVERBS_QPT_RC = 2,
        /// Unreliable connection.
        IB_UVERBS_QPT_UC = 3,
        /// Unreliable datagram.
        IB_UVERBS_QPT_UD = 4,
        /// Raw packets: whole Ethernet frames.
        IB_UVERBS_QPT_RAW_PACKET = 8,
        /// Initiator of an extended reliable connection.
        IB_UVERBS_QPT_XRC_INI = 9,
        /// Target of an extended reliable connection.
        IB_UVERBS_QPT_XRC_TGT = 10,
        /// A driver-specific type.
        IB_UVERBS_QPT_DRIVER = 0xff,
    }

    /// Queue pair creation flags.
    pub flags IbUverbsQpCreateFlags = ib_uverbs_qp_create_flags: u32 {
        IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK = 1 << 1,
        IB_UVERBS_QP_CREATE_SCATTER_FCS = 1 << 8,
        IB_UVERBS_QP_CREATE_CVLAN_STRIPPING = 1 << 9,
        IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11,
        IB_UVERBS_QP_CREATE_SQ_SIG_ALL = 1 << 12,
    }

    /// Port capabilities: the CapabilityMask of IBTA PortInfo.
    pub flags IbUverbsQueryPortCapFlags = ib_uverbs_query_port_cap_flags: u32 {
        IB_UVERBS_PCF_SM = 1 << 1,
        IB_UVERBS_PCF_NOTICE_SUP = 1 << 2,
        IB_UVERBS_PCF_TRAP_SUP = 1 << 3,
        IB_UVERBS_PCF_OPT_IPD_SUP = 1 << 4,
        IB_UVERBS_PCF_AUTO_MIGR_SUP = 1 << 5,
        IB_UVERBS_PCF_SL_MAP_SUP = 1 << 6,
        IB_UVERBS_PCF_MKEY_NVRAM = 1 << 7,
        IB_UVERBS_PCF_PKEY_NVRAM = 1 << 8,
        IB_UVERBS_PCF_LED_INFO_SUP = 1 << 9,
        IB_UVERBS_PCF_SM_DISABLED = 1 << 10,
        IB_UVERBS_PCF_SYS_IMAGE_GUID_SUP = 1 << 11,
        IB_UVERBS_PCF_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
        IB_UVERBS_PCF_EXTENDED_SPEEDS_SUP = 1 << 14,
        IB_UVERBS_PCF_CM_SUP = 1 << 16,
        IB_UVERBS_PCF_SNMP_TUNNEL_SUP = 1 << 17,
        IB_UVERBS_PCF_REINIT_SUP = 1 << 18,
        IB_UVERBS_PCF_DEVICE_MGMT_SUP = 1 << 19,
        IB_UVERBS_PCF_VENDOR_CLASS_SUP = 1 << 20,
        IB_UVERBS_PCF_DR_NOTICE_SUP = 1 << 21,
        IB_UVERBS_PCF_CAP_MASK_NOTICE_SUP = 1 << 22,
        IB_UVERBS_PCF_BOOT_MGMT_SUP = 1 << 23,
        IB_UVERBS_PCF_LINK_LATENCY_SUP = 1 << 24,
        IB_UVERBS_PCF_CLIENT_REG_SUP = 1 << 25,
        IB_UVERBS_PCF_LINK_SPEED_WIDTH_TABLE_SUP = 1 << 27,
        IB_UVERBS_PCF_VENDOR_SPECIFIC_MADS_TABLE_SUP = 1 << 28,
        IB_UVERBS_PCF_MCAST_PKEY_TRAP_SUPPRESSION_SUP = 1 << 29,
        IB_UVERBS_PCF_MCAST_FDB_TOP_SUP = 1 << 30,
        IB_UVERBS_PCF_HIERARCHY_INFO_SUP = 1 << 31,
        /// GIDs are derived from IP addresses. Linux uses this IBTA bit for its own flag.
        IB_UVERBS_PCF_IP_BASED_GIDS = 1 << 26,
    }

    /// Port properties beyond PortInfo, in the `flags` of the QUERY_PORT reply.
    pub flags IbUverbsQueryPortFlags = ib_uverbs_query_port_flags: u8 {
        /// Every packet needs a GRH (RoCE, some InfiniBand fabrics).
        IB_UVERBS_QPF_GRH_REQUIRED = 1 << 0,
    }

    /// Key material of an ESP flow action.
    pub enum IbUverbsFlowActionEspKeymat = ib_uverbs_flow_action_esp_keymat: u32 {
        IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM = 0,
    }

    /// Algorithm that generates the AES-GCM initialization vector.
    pub enum IbUverbsFlowActionEspKeymatAesGcmIvAlgo = ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo: u32 {
        IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ = 0,
    }

    /// AES-GCM key material of an ESP flow action.
    pub request IbUverbsFlowActionEspKeymatAesGcm = ib_uverbs_flow_action_esp_keymat_aes_gcm {
        /// Initialization vector, or its start.
        pub iv: u64,
        /// Value of [`IbUverbsFlowActionEspKeymatAesGcmIvAlgo`].
        pub iv_algo: u32,
        /// Salt of the nonce.
        pub salt: u32,
        /// Length of the integrity check value, in bytes.
        pub icv_len: u32,
        /// Length of the key, in bytes.
        pub key_len: u32,
        /// The key, up to 256 bits.
        pub aes_key: [u32; 8],
    }

    /// Replay protection of an ESP flow action.
    pub enum IbUverbsFlowActionEspReplay = ib_uverbs_flow_action_esp_replay: u32 {
        IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE = 0,
        IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP = 1,
    }

    /// Bitmap replay protection of an ESP flow action.
    pub request IbUverbsFlowActionEspReplayBmp = ib_uverbs_flow_action_esp_replay_bmp {
        /// Window size in bits.
        pub size: u32,
    }

    /// Mode of an ESP flow action. In each pair of modes, the default has value 0.
    pub flags IbUverbsFlowActionEspFlags = ib_uverbs_flow_action_esp_flags: u32 {
        IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO = 0,
        IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD = 1 << 0,
        IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL = 0,
        IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT = 1 << 1,
        IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT = 0,
        IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT = 1 << 2,
        IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW = 1 << 3,
    }

    /// One link in the list of headers wrapped around a packet by ESP tunnel mode.
    pub request IbUverbsFlowActionEspEncap = ib_uverbs_flow_action_esp_encap {
        /// User address of a flow filter struct.
        pub val_ptr: u64,
        /// User address of the next link, 0 at the end.
        pub next_ptr: u64,
        /// Length of the data at `val_ptr`, in bytes.
        pub len: u16,
        /// Flow specification type of the struct at `val_ptr`.
        pub r#type: u16,
        /// Padding, implicit in C.
        pub _pad: [u8; 4],
    }

    /// Attributes of an ESP flow action.
    pub request IbUverbsFlowActionEsp = ib_uverbs_flow_action_esp {
        /// Security parameters index.
        pub spi: u32,
        /// Sequence number.
        pub seq: u32,
        /// Traffic flow confidentiality padding.
        pub tfc_pad: u32,
        /// Bits of [`IbUverbsFlowActionEspFlags`].
        pub flags: u32,
        /// Number of packets after which the security association expires.
        pub hard_limit_pkts: u64,
    }

    /// Options for reading counters.
    pub flags IbUverbsReadCountersFlags = ib_uverbs_read_counters_flags: u32 {
        /// A value cached by the driver suffices.
        IB_UVERBS_READ_COUNTERS_PREFER_CACHED = 1 << 0,
    }

    /// Advice about the pages of an on-demand paging region.
    pub enum IbUverbsAdviseMrAdvice = ib_uverbs_advise_mr_advice: u32 {
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH = 0,
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
    }

    /// Options of an advice. With `FLUSH`, the kernel acts on the advice before the call returns.
    pub flags IbUverbsAdviseMrFlag = ib_uverbs_advise_mr_flag: u32 {
        IB_UVERBS_ADVISE_MR_FLAG_FLUSH = 1 << 0,
    }

    /// Reply to `UVERBS_METHOD_QUERY_PORT`.
    pub struct IbUverbsQueryPortRespEx = ib_uverbs_query_port_resp_ex {
        /// Reply to the write command `IB_USER_VERBS_CMD_QUERY_PORT`.
        pub legacy_resp: IbUverbsQueryPortResp,
        /// PortInfo:CapabilityMask2.
        pub port_cap_flags2: u16,
        /// Reserved, zero.
        pub reserved: [u8; 2],
        /// Link speed code per lane, for codes beyond 8 bits; 0 from kernels without the field.
        pub active_speed_ex: u32,
    }

    /// Limits of a queue pair: requested on input, granted in the reply.
    pub struct IbUverbsQpCap = ib_uverbs_qp_cap {
        /// Capacity of the send queue, in work requests.
        pub max_send_wr: u32,
        /// Capacity of the receive queue, in work requests.
        pub max_recv_wr: u32,
        /// Maximum number of scatter/gather elements per send.
        pub max_send_sge: u32,
        /// Maximum number of scatter/gather elements per receive.
        pub max_recv_sge: u32,
        /// Maximum inline data per send, in bytes.
        pub max_inline_data: u32,
    }

    /// Kernel driver of a device, reported by `RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID` and checked in
    /// every ioctl.
    pub enum RdmaDriverId = rdma_driver_id: u32 {
        RDMA_DRIVER_UNKNOWN = 0,
        /// ConnectX-4 and later.
        RDMA_DRIVER_MLX5 = 1,
        RDMA_DRIVER_MLX4 = 2,
        RDMA_DRIVER_CXGB3 = 3,
        RDMA_DRIVER_CXGB4 = 4,
        RDMA_DRIVER_MTHCA = 5,
        RDMA_DRIVER_BNXT_RE = 6,
        RDMA_DRIVER_OCRDMA = 7,
        RDMA_DRIVER_NES = 8,
        RDMA_DRIVER_I40IW = 9,
        /// Value shared with i40iw, irdma's predecessor.
        RDMA_DRIVER_IRDMA = 9,
        RDMA_DRIVER_VMW_PVRDMA = 10,
        RDMA_DRIVER_QEDR = 11,
        RDMA_DRIVER_HNS = 12,
        RDMA_DRIVER_USNIC = 13,
        /// Soft-RoCE.
        RDMA_DRIVER_RXE = 14,
        RDMA_DRIVER_HFI1 = 15,
        RDMA_DRIVER_QIB = 16,
        RDMA_DRIVER_EFA = 17,
        /// Soft-iWARP.
        RDMA_DRIVER_SIW = 18,
        RDMA_DRIVER_ERDMA = 19,
        RDMA_DRIVER_MANA = 20,
        RDMA_DRIVER_IONIC = 21,
    }

    /// Type of a GID table entry. In sysfs, the types read `IB/RoCE v1` and `RoCE v2`.
    pub enum IbUverbsGidType = ib_uverbs_gid_type: u32 {
        /// InfiniBand.
        IB_UVERBS_GID_TYPE_IB = 0,
        /// RoCE v1, Ethernet frames.
        IB_UVERBS_GID_TYPE_ROCE_V1 = 1,
        /// RoCE v2, UDP over IP.
        IB_UVERBS_GID_TYPE_ROCE_V2 = 2,
    }

    /// One valid GID table entry.
    pub struct IbUverbsGidEntry = ib_uverbs_gid_entry {
        /// The 16 bytes of the GID, in memory order.
        pub gid: [u64; 2],
        /// Index into the port's GID table.
        pub gid_index: u32,
        /// Port number, starting at 1.
        pub port_num: u32,
        /// Value of [`IbUverbsGidType`].
        pub gid_type: u32,
        /// Interface index of the netdev, 0 for none.
        pub netdev_ifindex: u32,
    }

    /// Kind of memory behind a user-supplied buffer.
    pub enum IbUverbsBufferType = ib_uverbs_buffer_type: u32 {
        IB_UVERBS_BUFFER_TYPE_DMABUF = 0,
        IB_UVERBS_BUFFER_TYPE_VA = 1,
    }

    /// A user-supplied buffer that holds a queue.
    pub request IbUverbsBufferDesc = ib_uverbs_buffer_desc {
        /// Value of [`IbUverbsBufferType`].
        pub r#type: u32,
        /// File descriptor of the DMA-BUF, if the buffer is a DMA-BUF.
        pub fd: i32,
        /// Flags that the kernel must understand.
        pub flags: u32,
        /// Flags that the kernel may ignore.
        pub optional_flags: u32,
        /// User address, or offset into the DMA-BUF.
        pub addr: u64,
        /// Length in bytes.
        pub length: u64,
    }

    /// One of the two counts of a completion counter.
    pub enum IbUverbsCompCntrEntry = ib_uverbs_comp_cntr_entry: u32 {
        /// Successful completions.
        IB_UVERBS_COMP_CNTR_ENTRY_COMP = 0,
        /// Failed completions.
        IB_UVERBS_COMP_CNTR_ENTRY_ERR = 1,
    }

    /// Operation on a completion counter.
    pub enum IbUverbsCompCntrModifyOp = ib_uverbs_comp_cntr_modify_op: u32 {
        IB_UVERBS_COMP_CNTR_MODIFY_OP_SET = 0,
        IB_UVERBS_COMP_CNTR_MODIFY_OP_INC = 1,
    }

    /// Queue pair operations that a completion counter counts.
    pub flags IbUverbsQpAttachCompCntrOp = ib_uverbs_qp_attach_comp_cntr_op: u32 {
        IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0,
        IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
        IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
        IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3,
        IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
        IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5,
    }
}
