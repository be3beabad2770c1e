//! `include/uapi/rdma/mlx5-abi.h`: data read and written by the mlx5 driver after the common
//! uverbs structs.

use crate::ib_user_verbs::IbUverbsClockInfo;
use crate::macros::header;
use crate::mlx5_user_ioctl_verbs::Mlx5IbUapiReg;

header! {
    "rdma/mlx5-abi.h";

    /// Flag of [`Mlx5IbCreateQp::flags`].
    pub consts anonymous: u32 {
        MLX5_QP_FLAG_SIGNATURE = 1,
        MLX5_QP_FLAG_SCATTER_CQE = 2,
        MLX5_QP_FLAG_TUNNEL_OFFLOADS = 4,
        MLX5_QP_FLAG_BFREG_INDEX = 8,
        MLX5_QP_FLAG_TYPE_DCT = 16,
        MLX5_QP_FLAG_TYPE_DCI = 32,
        MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC = 64,
        MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC = 128,
        MLX5_QP_FLAG_ALLOW_SCATTER_CQE = 256,
        MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE = 512,
        MLX5_QP_FLAG_UAR_PAGE_INDEX = 1024,
        MLX5_QP_FLAG_DCI_STREAM = 2048,
    }

    /// Flag of [`Mlx5IbCreateSrq::flags`].
    pub consts anonymous: u32 {
        MLX5_SRQ_FLAG_SIGNATURE = 1,
    }

    /// Flag of [`Mlx5IbCreateWq::flags`].
    pub consts anonymous: u32 {
        MLX5_WQ_FLAG_SIGNATURE = 1,
    }

    /// Version of the mlx5 driver's part of the uverbs ABI.
    pub consts define: u32 {
        MLX5_IB_UVERBS_ABI_VERSION = 1,
    }

    /// The first version of the driver's part of the GET_CONTEXT input.
    pub request Mlx5IbAllocUcontextReq = mlx5_ib_alloc_ucontext_req {
        /// Number of doorbell registers (BlueFlame) to allocate.
        pub total_num_bfregs: u32,
        /// Number of these registers that are not shared between queue pairs.
        pub num_low_latency_bfregs: u32,
    }

    /// Capabilities of the library, [`Mlx5IbAllocUcontextReqV2::lib_caps`].
    pub flags Mlx5LibCaps = mlx5_lib_caps: u64 {
        MLX5_LIB_CAP_4K_UAR = 1 << 0,
        MLX5_LIB_CAP_DYN_UAR = 1 << 1,
    }

    /// Flags of [`Mlx5IbAllocUcontextReqV2::flags`].
    pub flags Mlx5IbAllocUctxV2Flags = mlx5_ib_alloc_uctx_v2_flags: u32 {
        MLX5_IB_ALLOC_UCTX_DEVX = 1 << 0,
    }

    /// The driver's part of the GET_CONTEXT input.
    pub request Mlx5IbAllocUcontextReqV2 = mlx5_ib_alloc_ucontext_req_v2 {
        /// Number of doorbell registers (BlueFlame) to allocate.
        pub total_num_bfregs: u32,
        /// Number of these registers that are not shared between queue pairs.
        pub num_low_latency_bfregs: u32,
        /// Bits of [`Mlx5IbAllocUctxV2Flags`].
        pub flags: u32,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Newest CQE format supported by the library.
        pub max_cqe_version: u8,
        /// Reserved, zero.
        pub reserved0: u8,
        /// Reserved, zero.
        pub reserved1: u16,
        /// Reserved, zero.
        pub reserved2: u32,
        /// Capabilities of the library, [`Mlx5LibCaps`].
        pub lib_caps: u64,
    }

    /// Optional fields present in the reply, bits of [`Mlx5IbAllocUcontextResp::comp_mask`].
    pub flags Mlx5IbAllocUcontextRespMask = mlx5_ib_alloc_ucontext_resp_mask: u32 {
        MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET = 1 << 0,
        MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY = 1 << 1,
        MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE = 1 << 2,
        MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS = 1 << 3,
        MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS = 1 << 4,
        MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG = 1 << 5,
    }

    /// Commands that carry driver data, [`Mlx5IbAllocUcontextResp::cmds_supp_uhw`].
    pub flags Mlx5UserCmdsSuppUhw = mlx5_user_cmds_supp_uhw: u8 {
        MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE = 1 << 0,
        MLX5_USER_CMDS_SUPP_UHW_CREATE_AH = 1 << 1,
    }

    /// Headers that a send WQE must carry inline, [`Mlx5IbAllocUcontextResp::eth_min_inline`]. The
    /// values are one above the firmware's values. Kernels that do not report the mode return 0.
    pub enum Mlx5UserInlineMode = mlx5_user_inline_mode: u8 {
        MLX5_USER_INLINE_MODE_NA = 0,
        MLX5_USER_INLINE_MODE_NONE = 1,
        MLX5_USER_INLINE_MODE_L2 = 2,
        MLX5_USER_INLINE_MODE_IP = 3,
        MLX5_USER_INLINE_MODE_TCP_UDP = 4,
    }

    /// The device's ESP offloads, bits of [`Mlx5IbAllocUcontextResp::flow_action_flags`].
    pub consts anonymous: u16 {
        MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM = 1,
        MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_REQ_METADATA = 2,
        MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_SPI_STEERING = 4,
        MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_FULL_OFFLOAD = 8,
        MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_TX_IV_IS_ESN = 16,
    }

    /// The driver's part of the reply to GET_CONTEXT.
    pub struct Mlx5IbAllocUcontextResp = mlx5_ib_alloc_ucontext_resp {
        /// Maximum number of queue pairs of the device.
        pub qp_tab_size: u32,
        /// Size of a BlueFlame register (both halves), in bytes.
        pub bf_reg_size: u32,
        /// Number of doorbell registers allocated.
        pub tot_bfregs: u32,
        /// Cache line size of the host, in bytes.
        pub cache_line_size: u32,
        /// Maximum size of a send WQE, in bytes.
        pub max_sq_desc_sz: u16,
        /// Maximum size of a receive WQE, in bytes.
        pub max_rq_desc_sz: u16,
        /// Maximum number of WQE basic blocks (64 bytes) in a send queue.
        pub max_send_wqebb: u32,
        /// Maximum number of work requests in a receive queue.
        pub max_recv_wr: u32,
        /// Maximum number of work requests in a shared receive queue.
        pub max_srq_recv_wr: u32,
        /// Number of ports.
        pub num_ports: u16,
        /// `MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_*` bits.
        pub flow_action_flags: u16,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// CQE format in use; with 1, completions carry a user index.
        pub cqe_version: u8,
        /// Bits of [`Mlx5UserCmdsSuppUhw`].
        pub cmds_supp_uhw: u8,
        /// Value of [`Mlx5UserInlineMode`].
        pub eth_min_inline: u8,
        /// Bitmap of supported clock page formats, `MLX5_IB_CLOCK_INFO_V1`.
        pub clock_info_versions: u8,
        /// Offset of the device clock within its page, in bytes.
        pub hca_core_clock_offset: u64,
        /// log2 of the doorbell page size in bytes.
        pub log_uar_size: u32,
        /// Number of doorbell pages per system page.
        pub num_uars_per_page: u32,
        /// Number of doorbell registers available for later allocation.
        pub num_dyn_bfregs: u32,
        /// Memory key for discarding writes.
        pub dump_fill_mkey: u32,
    }

    /// The driver's part of the ALLOC_PD reply.
    pub struct Mlx5IbAllocPdResp = mlx5_ib_alloc_pd_resp {
        /// Protection domain number.
        pub pdn: u32,
    }

    /// TCP segmentation capabilities.
    pub struct Mlx5IbTsoCaps = mlx5_ib_tso_caps {
        /// Maximum payload, in bytes.
        pub max_tso: u32,
        /// Bitmap of supported queue pair types.
        pub supported_qpts: u32,
    }

    /// Receive side scaling capabilities.
    pub struct Mlx5IbRssCaps = mlx5_ib_rss_caps {
        /// Bits of [`Mlx5RxHashFields`].
        pub rx_hash_fields_mask: u64,
        /// Bits of [`Mlx5RxHashFunctionFlags`].
        pub rx_hash_function: u8,
        /// Reserved, zero.
        pub reserved: [u8; 7],
    }

    /// Formats of compressed completions, [`Mlx5IbCqeCompCaps::supported_format`].
    pub flags Mlx5IbCqeCompResFormat = mlx5_ib_cqe_comp_res_format: u32 {
        MLX5_IB_CQE_RES_FORMAT_HASH = 1 << 0,
        MLX5_IB_CQE_RES_FORMAT_CSUM = 1 << 1,
        MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX = 1 << 2,
    }

    /// Completion compression capabilities.
    pub struct Mlx5IbCqeCompCaps = mlx5_ib_cqe_comp_caps {
        /// Maximum number of completions in one compressed block.
        pub max_num: u32,
        /// Bits of [`Mlx5IbCqeCompResFormat`].
        pub supported_format: u32,
    }

    /// Packet pacing abilities, [`Mlx5PacketPacingCaps::cap_flags`].
    pub flags Mlx5IbPacketPacingCapFlags = mlx5_ib_packet_pacing_cap_flags: u8 {
        MLX5_IB_PP_SUPPORT_BURST = 1 << 0,
    }

    /// Packet pacing capabilities, with rates in kbit/s.
    pub struct Mlx5PacketPacingCaps = mlx5_packet_pacing_caps {
        /// Minimum rate, in kbit/s.
        pub qp_rate_limit_min: u32,
        /// Maximum rate, in kbit/s.
        pub qp_rate_limit_max: u32,
        /// Bitmap of supported queue pair types.
        pub supported_qpts: u32,
        /// Bits of [`Mlx5IbPacketPacingCapFlags`].
        pub cap_flags: u8,
        /// Reserved, zero.
        pub reserved: [u8; 3],
    }

    /// Multi-packet WQE support, [`Mlx5IbQueryDeviceResp::mlx5_ib_support_multi_pkt_send_wqes`].
    pub flags Mlx5IbMpwCaps = mlx5_ib_mpw_caps: u32 {
        MPW_RESERVED = 1 << 0,
        MLX5_IB_ALLOW_MPW = 1 << 1,
        MLX5_IB_SUPPORT_EMPW = 1 << 2,
    }

    /// Offloads that use headers located by software, [`Mlx5IbSwParsingCaps::sw_parsing_offloads`].
    pub flags Mlx5IbSwParsingOffloads = mlx5_ib_sw_parsing_offloads: u32 {
        MLX5_IB_SW_PARSING = 1 << 0,
        MLX5_IB_SW_PARSING_CSUM = 1 << 1,
        MLX5_IB_SW_PARSING_LSO = 1 << 2,
    }

    /// Software parsing capabilities.
    pub struct Mlx5IbSwParsingCaps = mlx5_ib_sw_parsing_caps {
        /// Bits of [`Mlx5IbSwParsingOffloads`].
        pub sw_parsing_offloads: u32,
        /// Bitmap of supported queue pair types.
        pub supported_qpts: u32,
    }

    /// Striding receive queue capabilities.
    pub struct Mlx5IbStridingRqCaps = mlx5_ib_striding_rq_caps {
        /// log2 of the minimum stride in bytes.
        pub min_single_stride_log_num_of_bytes: u32,
        /// log2 of the maximum stride in bytes.
        pub max_single_stride_log_num_of_bytes: u32,
        /// log2 of the minimum number of strides per WQE.
        pub min_single_wqe_log_num_of_strides: u32,
        /// log2 of the maximum number of strides per WQE.
        pub max_single_wqe_log_num_of_strides: u32,
        /// Bitmap of supported queue pair types.
        pub supported_qpts: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Stream capabilities of a dynamically connected initiator.
    pub struct Mlx5IbDciStreamsCaps = mlx5_ib_dci_streams_caps {
        /// log2 of the maximum number of concurrent streams.
        pub max_log_num_concurent: u8,
        /// log2 of the maximum number of streams that may fail before the QP does.
        pub max_log_num_errored: u8,
    }

    /// Device features, [`Mlx5IbQueryDeviceResp::flags`].
    pub flags Mlx5IbQueryDevRespFlags = mlx5_ib_query_dev_resp_flags: u32 {
        MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP = 1 << 0,
        MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD = 1 << 1,
        MLX5_IB_QUERY_DEV_RESP_PACKET_BASED_CREDIT_MODE = 1 << 2,
        MLX5_IB_QUERY_DEV_RESP_FLAGS_SCAT2CQE_DCT = 1 << 3,
        MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP = 1 << 4,
    }

    /// Tunnel types with stateless offloads, [`Mlx5IbQueryDeviceResp::tunnel_offloads_caps`].
    pub flags Mlx5IbTunnelOffloads = mlx5_ib_tunnel_offloads: u32 {
        MLX5_IB_TUNNELED_OFFLOADS_VXLAN = 1 << 0,
        MLX5_IB_TUNNELED_OFFLOADS_GRE = 1 << 1,
        MLX5_IB_TUNNELED_OFFLOADS_GENEVE = 1 << 2,
        MLX5_IB_TUNNELED_OFFLOADS_MPLS_GRE = 1 << 3,
        MLX5_IB_TUNNELED_OFFLOADS_MPLS_UDP = 1 << 4,
    }

    /// The driver's part of the QUERY_DEVICE reply.
    pub struct Mlx5IbQueryDeviceResp = mlx5_ib_query_device_resp {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// TCP segmentation capabilities.
        pub tso_caps: Mlx5IbTsoCaps,
        /// Receive side scaling capabilities.
        pub rss_caps: Mlx5IbRssCaps,
        /// Completion compression capabilities.
        pub cqe_comp_caps: Mlx5IbCqeCompCaps,
        /// Packet pacing capabilities.
        pub packet_pacing_caps: Mlx5PacketPacingCaps,
        /// Bits of [`Mlx5IbMpwCaps`].
        pub mlx5_ib_support_multi_pkt_send_wqes: u32,
        /// Bits of [`Mlx5IbQueryDevRespFlags`].
        pub flags: u32,
        /// Software parsing capabilities.
        pub sw_parsing_caps: Mlx5IbSwParsingCaps,
        /// Striding receive queue capabilities.
        pub striding_rq_caps: Mlx5IbStridingRqCaps,
        /// Bits of [`Mlx5IbTunnelOffloads`].
        pub tunnel_offloads_caps: u32,
        /// Stream capabilities of a dynamically connected initiator.
        pub dci_streams_caps: Mlx5IbDciStreamsCaps,
        /// Reserved, zero.
        pub reserved: u16,
        /// Value and mask of metadata register C0 that this port's flow rules match.
        pub reg_c0: Mlx5IbUapiReg,
    }

    /// Flags of [`Mlx5IbCreateCq::flags`].
    pub flags Mlx5IbCreateCqFlags = mlx5_ib_create_cq_flags: u16 {
        MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD = 1 << 0,
        MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX = 1 << 1,
        MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS = 1 << 2,
    }

    /// The driver's part of the CREATE_CQ input.
    pub request Mlx5IbCreateCq = mlx5_ib_create_cq {
        /// User address of the queue buffer.
        pub buf_addr: u64,
        /// User address of the doorbell record.
        pub db_addr: u64,
        /// CQE size in bytes, 64 or 128.
        pub cqe_size: u32,
        /// Nonzero to enable compressed completions.
        pub cqe_comp_en: u8,
        /// [`Mlx5IbCqeCompResFormat`] with one bit set.
        pub cqe_comp_res_format: u8,
        /// Bits of [`Mlx5IbCreateCqFlags`].
        pub flags: u16,
        /// Index of the doorbell page.
        pub uar_page_index: u16,
        /// Reserved, zero.
        pub reserved0: u16,
        /// Reserved, zero.
        pub reserved1: u32,
    }

    /// The driver's part of the CREATE_CQ reply.
    pub struct Mlx5IbCreateCqResp = mlx5_ib_create_cq_resp {
        /// Completion queue number.
        pub cqn: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// The driver's part of the RESIZE_CQ input.
    pub request Mlx5IbResizeCq = mlx5_ib_resize_cq {
        /// User address of the queue buffer.
        pub buf_addr: u64,
        /// CQE size in bytes, 64 or 128.
        pub cqe_size: u16,
        /// Reserved, zero.
        pub reserved0: u16,
        /// Reserved, zero.
        pub reserved1: u32,
    }

    /// The driver's part of the CREATE_SRQ input.
    pub request Mlx5IbCreateSrq = mlx5_ib_create_srq {
        /// User address of the queue buffer.
        pub buf_addr: u64,
        /// User address of the doorbell record.
        pub db_addr: u64,
        /// 0 or [`MLX5_SRQ_FLAG_SIGNATURE`].
        pub flags: u32,
        /// Reserved, zero.
        pub reserved0: u32,
        /// User index, which the queue's completions carry.
        pub uidx: u32,
        /// Reserved, zero.
        pub reserved1: u32,
    }

    /// The driver's part of the CREATE_SRQ reply.
    pub struct Mlx5IbCreateSrqResp = mlx5_ib_create_srq_resp {
        /// Number of the shared receive queue.
        pub srqn: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Numbers of streams of a dynamically connected initiator, as log2.
    pub request Mlx5IbCreateQpDciStreams = mlx5_ib_create_qp_dci_streams {
        /// log2 of the number of concurrent streams.
        pub log_num_concurent: u8,
        /// log2 of the number of streams that may fail before the QP does.
        pub log_num_errored: u8,
    }

    /// The driver's part of the CREATE_QP input.
    pub request Mlx5IbCreateQp = mlx5_ib_create_qp {
        /// User address of the queue buffer.
        pub buf_addr: u64,
        /// User address of the doorbell record.
        pub db_addr: u64,
        /// Size of the send queue in WQE basic blocks (64 bytes), a power of two.
        pub sq_wqe_count: u32,
        /// Number of receive WQEs, a power of two.
        pub rq_wqe_count: u32,
        /// log2 of the receive WQE size in bytes.
        pub rq_wqe_shift: u32,
        /// `MLX5_QP_FLAG_*` bits.
        pub flags: u32,
        /// User index, which the queue's completions carry.
        pub uidx: u32,
        /// Index of the doorbell register.
        pub bfreg_index: u32,
        /// User address of a raw packet QP's send buffer, or the access key of a dynamically
        /// connected target.
        pub sq_buf_addr: u64 | access_key,
        /// Enhanced connection establishment (ECE) options.
        pub ece_options: u32,
        /// Requested numbers of streams, as log2.
        pub dci_streams: Mlx5IbCreateQpDciStreams,
        /// Reserved, zero.
        pub reserved: u16,
    }

    /// Hash function for receive side scaling, [`Mlx5IbCreateQpRss::rx_hash_function`].
    pub flags Mlx5RxHashFunctionFlags = mlx5_rx_hash_function_flags: u8 {
        MLX5_RX_HASH_FUNC_TOEPLITZ = 1 << 0,
    }

    /// Header fields that the hash covers, [`Mlx5IbCreateQpRss::rx_hash_fields_mask`].
    pub flags Mlx5RxHashFields = mlx5_rx_hash_fields: u64 {
        MLX5_RX_HASH_SRC_IPV4 = 1 << 0,
        MLX5_RX_HASH_DST_IPV4 = 1 << 1,
        MLX5_RX_HASH_SRC_IPV6 = 1 << 2,
        MLX5_RX_HASH_DST_IPV6 = 1 << 3,
        MLX5_RX_HASH_SRC_PORT_TCP = 1 << 4,
        MLX5_RX_HASH_DST_PORT_TCP = 1 << 5,
        MLX5_RX_HASH_SRC_PORT_UDP = 1 << 6,
        MLX5_RX_HASH_DST_PORT_UDP = 1 << 7,
        MLX5_RX_HASH_IPSEC_SPI = 1 << 8,
        MLX5_RX_HASH_INNER = 1 << 31,
    }

    /// The driver's part of the CREATE_QP input, for receive side scaling.
    pub struct Mlx5IbCreateQpRss = mlx5_ib_create_qp_rss {
        /// Bits of [`Mlx5RxHashFields`].
        pub rx_hash_fields_mask: u64,
        /// Bits of [`Mlx5RxHashFunctionFlags`].
        pub rx_hash_function: u8,
        /// Length of the hash key in bytes; Toeplitz only.
        pub rx_key_len: u8,
        /// Reserved, zero.
        pub reserved: [u8; 6],
        /// The hash key; Toeplitz only.
        pub rx_hash_key: [u8; 128],
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// `MLX5_QP_FLAG_*` bits.
        pub flags: u32,
    }

    /// Object numbers present in the reply, bits of [`Mlx5IbCreateQpResp::comp_mask`].
    pub flags Mlx5IbCreateQpRespMask = mlx5_ib_create_qp_resp_mask: u32 {
        MLX5_IB_CREATE_QP_RESP_MASK_TIRN = 1 << 0,
        MLX5_IB_CREATE_QP_RESP_MASK_TISN = 1 << 1,
        MLX5_IB_CREATE_QP_RESP_MASK_RQN = 1 << 2,
        MLX5_IB_CREATE_QP_RESP_MASK_SQN = 1 << 3,
        MLX5_IB_CREATE_QP_RESP_MASK_TIR_ICM_ADDR = 1 << 4,
    }

    /// The driver's part of the CREATE_QP reply.
    pub struct Mlx5IbCreateQpResp = mlx5_ib_create_qp_resp {
        /// Index of the doorbell register.
        pub bfreg_index: u32,
        /// Enhanced connection establishment (ECE) options.
        pub ece_options: u32,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Transport interface receive (TIR) number.
        pub tirn: u32,
        /// Transport interface send (TIS) number.
        pub tisn: u32,
        /// Receive queue number.
        pub rqn: u32,
        /// Send queue number.
        pub sqn: u32,
        /// Reserved, zero.
        pub reserved1: u32,
        /// Device address of the TIR.
        pub tir_icm_addr: u64,
    }

    /// The driver's part of the ALLOC_MW input.
    pub request Mlx5IbAllocMw = mlx5_ib_alloc_mw {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of entries that the window can reference indirectly.
        pub num_klms: u8,
        /// Reserved, zero.
        pub reserved1: u8,
        /// Reserved, zero.
        pub reserved2: u16,
    }

    /// Optional inputs present, bits of [`Mlx5IbCreateWq::comp_mask`].
    pub flags Mlx5IbCreateWqMask = mlx5_ib_create_wq_mask: u32 {
        MLX5_IB_CREATE_WQ_STRIDING_RQ = 1 << 0,
    }

    /// The driver's part of the CREATE_WQ input.
    pub request Mlx5IbCreateWq = mlx5_ib_create_wq {
        /// User address of the queue buffer.
        pub buf_addr: u64,
        /// User address of the doorbell record.
        pub db_addr: u64,
        /// Number of receive WQEs, a power of two.
        pub rq_wqe_count: u32,
        /// log2 of the receive WQE size in bytes.
        pub rq_wqe_shift: u32,
        /// User index, which the queue's completions carry.
        pub user_index: u32,
        /// 0 or [`MLX5_WQ_FLAG_SIGNATURE`].
        pub flags: u32,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// log2 of the stride in bytes.
        pub single_stride_log_num_of_bytes: u32,
        /// log2 of the number of strides per WQE.
        pub single_wqe_log_num_of_strides: u32,
        /// Nonzero to place packets 2 bytes into a stride, aligning IP headers.
        pub two_byte_shift_en: u32,
    }

    /// The driver's part of the CREATE_AH reply.
    pub struct Mlx5IbCreateAhResp = mlx5_ib_create_ah_resp {
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// Destination MAC address resolved by the kernel.
        pub dmac: [u8; 6],
        /// Reserved, zero.
        pub reserved: [u8; 6],
    }

    /// Burst parameters for packet pacing.
    pub request Mlx5IbBurstInfo = mlx5_ib_burst_info {
        /// Maximum size of a burst, in bytes.
        pub max_burst_sz: u32,
        /// Typical packet size, in bytes.
        pub typical_pkt_sz: u16,
        /// Reserved, zero.
        pub reserved: u16,
    }

    /// Optional inputs present, bits of [`Mlx5IbModifyQp::comp_mask`].
    pub flags Mlx5IbModifyQpMask = mlx5_ib_modify_qp_mask: u32 {
        MLX5_IB_MODIFY_QP_OOO_DP = 1 << 0,
    }

    /// The driver's part of the MODIFY_QP input.
    pub request Mlx5IbModifyQp = mlx5_ib_modify_qp {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Burst parameters for packet pacing.
        pub burst_info: Mlx5IbBurstInfo,
        /// Enhanced connection establishment (ECE) options.
        pub ece_options: u32,
    }

    /// The driver's part of the MODIFY_QP reply.
    pub struct Mlx5IbModifyQpResp = mlx5_ib_modify_qp_resp {
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// Number of the dynamically connected target.
        pub dctn: u32,
        /// Enhanced connection establishment (ECE) options.
        pub ece_options: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// The driver's part of the CREATE_WQ reply.
    pub struct Mlx5IbCreateWqResp = mlx5_ib_create_wq_resp {
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// The driver's part of the CREATE_RWQ_IND_TBL reply.
    pub struct Mlx5IbCreateRwqIndTblResp = mlx5_ib_create_rwq_ind_tbl_resp {
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// The driver's part of the MODIFY_WQ input.
    pub request Mlx5IbModifyWq = mlx5_ib_modify_wq {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// The object to map, encoded in the page offset passed to mmap on the uverbs device.
    pub enum Mlx5IbMmapCmd = mlx5_ib_mmap_cmd: u8 {
        MLX5_IB_MMAP_REGULAR_PAGE = 0,
        MLX5_IB_MMAP_GET_CONTIGUOUS_PAGES = 1,
        MLX5_IB_MMAP_WC_PAGE = 2,
        MLX5_IB_MMAP_NC_PAGE = 3,
        /// The device's clock register. The value 5 is kept for compatibility with old libraries.
        MLX5_IB_MMAP_CORE_CLOCK = 5,
        MLX5_IB_MMAP_ALLOC_WC = 6,
        MLX5_IB_MMAP_CLOCK_INFO = 7,
        MLX5_IB_MMAP_DEVICE_MEM = 8,
    }

    /// Bit of [`IbUverbsClockInfo::sign`], set while the kernel writes the page.
    pub consts anonymous: u32 {
        MLX5_IB_CLOCK_INFO_KERNEL_UPDATING = 1,
    }

    /// Bit number in [`Mlx5IbAllocUcontextResp::clock_info_versions`].
    pub consts anonymous: u8 {
        MLX5_IB_CLOCK_INFO_V1 = 0,
    }

    /// Description of one flow counter.
    pub request Mlx5IbFlowCountersDesc = mlx5_ib_flow_counters_desc {
        /// Unit that the counter counts: 0 for packets, 1 for bytes.
        pub description: u32,
        /// Index of this counter among the values returned by a read.
        pub index: u32,
    }

    /// The counters of one counters object.
    pub request Mlx5IbFlowCountersData = mlx5_ib_flow_counters_data {
        /// User address of an array of [`Mlx5IbFlowCountersDesc`].
        pub counters_data: u64,
        /// Number of elements in `counters_data`.
        pub ncounters: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// The driver's part of the CREATE_FLOW input; `ncounters_data` entries of
    /// [`Mlx5IbFlowCountersData`] follow.
    #[repr(align(8))]
    pub request Mlx5IbCreateFlow = mlx5_ib_create_flow {
        /// Number of [`Mlx5IbFlowCountersData`] entries that follow.
        pub ncounters_data: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }
}

/// Former name of [`IbUverbsClockInfo`].
///
/// C: the macro `mlx5_ib_clock_info`.
pub type Mlx5IbClockInfo = IbUverbsClockInfo;
