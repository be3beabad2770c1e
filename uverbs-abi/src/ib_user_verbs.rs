//! `include/uapi/rdma/ib_user_verbs.h`: the original uverbs ABI, with a command struct and a reply
//! struct per verb.
//!
//! The structs travel in a `write()` to `/dev/infiniband/uverbsN` after an [`IbUverbsCmdHdr`]
//! (and, for extended commands, an [`IbUverbsExCmdHdr`]), or inside the attributes of
//! `UVERBS_METHOD_INVOKE_WRITE`. The newer ioctl methods reuse several reply structs. Driver data
//! directly follows a struct. C has a flexible array there (`driver_data`), omitted here.
//!
//! A handle identifies a kernel object and is valid on one open file. `response` is the user
//! address of the reply buffer.

use crate::endian::{Be16, Be32, Be64};
use crate::macros::header;

header! {
    "rdma/ib_user_verbs.h";

    /// Version of the uverbs ABI, as in `/sys/class/infiniband_verbs/abi_version`.
    pub consts define: u32 {
        IB_USER_VERBS_ABI_VERSION = 6,
    }

    /// First number for commands that exist only in extended form.
    pub consts define: u32 {
        IB_USER_VERBS_CMD_THRESHOLD = 50,
    }

    /// Command number for [`IbUverbsCmdHdr::command`].
    pub consts ib_uverbs_write_cmds: u32 {
        IB_USER_VERBS_CMD_GET_CONTEXT = 0,
        IB_USER_VERBS_CMD_QUERY_DEVICE = 1,
        IB_USER_VERBS_CMD_QUERY_PORT = 2,
        IB_USER_VERBS_CMD_ALLOC_PD = 3,
        IB_USER_VERBS_CMD_DEALLOC_PD = 4,
        IB_USER_VERBS_CMD_CREATE_AH = 5,
        IB_USER_VERBS_CMD_MODIFY_AH = 6,
        IB_USER_VERBS_CMD_QUERY_AH = 7,
        IB_USER_VERBS_CMD_DESTROY_AH = 8,
        IB_USER_VERBS_CMD_REG_MR = 9,
        IB_USER_VERBS_CMD_REG_SMR = 10,
        IB_USER_VERBS_CMD_REREG_MR = 11,
        IB_USER_VERBS_CMD_QUERY_MR = 12,
        IB_USER_VERBS_CMD_DEREG_MR = 13,
        IB_USER_VERBS_CMD_ALLOC_MW = 14,
        IB_USER_VERBS_CMD_BIND_MW = 15,
        IB_USER_VERBS_CMD_DEALLOC_MW = 16,
        IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL = 17,
        IB_USER_VERBS_CMD_CREATE_CQ = 18,
        IB_USER_VERBS_CMD_RESIZE_CQ = 19,
        IB_USER_VERBS_CMD_DESTROY_CQ = 20,
        IB_USER_VERBS_CMD_POLL_CQ = 21,
        IB_USER_VERBS_CMD_PEEK_CQ = 22,
        IB_USER_VERBS_CMD_REQ_NOTIFY_CQ = 23,
        IB_USER_VERBS_CMD_CREATE_QP = 24,
        IB_USER_VERBS_CMD_QUERY_QP = 25,
        IB_USER_VERBS_CMD_MODIFY_QP = 26,
        IB_USER_VERBS_CMD_DESTROY_QP = 27,
        IB_USER_VERBS_CMD_POST_SEND = 28,
        IB_USER_VERBS_CMD_POST_RECV = 29,
        IB_USER_VERBS_CMD_ATTACH_MCAST = 30,
        IB_USER_VERBS_CMD_DETACH_MCAST = 31,
        IB_USER_VERBS_CMD_CREATE_SRQ = 32,
        IB_USER_VERBS_CMD_MODIFY_SRQ = 33,
        IB_USER_VERBS_CMD_QUERY_SRQ = 34,
        IB_USER_VERBS_CMD_DESTROY_SRQ = 35,
        IB_USER_VERBS_CMD_POST_SRQ_RECV = 36,
        IB_USER_VERBS_CMD_OPEN_XRCD = 37,
        IB_USER_VERBS_CMD_CLOSE_XRCD = 38,
        IB_USER_VERBS_CMD_CREATE_XSRQ = 39,
        IB_USER_VERBS_CMD_OPEN_QP = 40,
    }

    /// Extended command number, sent with [`IB_USER_VERBS_CMD_FLAG_EXTENDED`].
    pub consts anonymous: u32 {
        IB_USER_VERBS_EX_CMD_QUERY_DEVICE = IB_USER_VERBS_CMD_QUERY_DEVICE,
        IB_USER_VERBS_EX_CMD_CREATE_CQ = IB_USER_VERBS_CMD_CREATE_CQ,
        IB_USER_VERBS_EX_CMD_CREATE_QP = IB_USER_VERBS_CMD_CREATE_QP,
        IB_USER_VERBS_EX_CMD_MODIFY_QP = IB_USER_VERBS_CMD_MODIFY_QP,
        IB_USER_VERBS_EX_CMD_CREATE_FLOW = IB_USER_VERBS_CMD_THRESHOLD,
        IB_USER_VERBS_EX_CMD_DESTROY_FLOW = 51,
        IB_USER_VERBS_EX_CMD_CREATE_WQ = 52,
        IB_USER_VERBS_EX_CMD_MODIFY_WQ = 53,
        IB_USER_VERBS_EX_CMD_DESTROY_WQ = 54,
        IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL = 55,
        IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL = 56,
        IB_USER_VERBS_EX_CMD_MODIFY_CQ = 57,
    }

    /// Placement guarantee of an RDMA FLUSH (IBTA A19.4.1.1).
    pub flags IbPlacementType = ib_placement_type: u32 {
        /// Visible throughout the responder.
        IB_FLUSH_GLOBAL = 1 << 0,
        /// Survives a power failure of the responder.
        IB_FLUSH_PERSISTENT = 1 << 1,
    }

    /// The range of an RDMA FLUSH (IBTA A19.4.1.2).
    pub enum IbSelectivityLevel = ib_selectivity_level: u32 {
        /// The given address range.
        IB_FLUSH_RANGE = 0,
        /// The whole memory region.
        IB_FLUSH_MR = 1,
    }

    /// One event as read from the asynchronous event file.
    pub struct IbUverbsAsyncEventDesc = ib_uverbs_async_event_desc {
        /// `user_handle` of the object, or the port number.
        pub element: u64,
        /// Event type, an `ibv_event_type` value.
        pub event_type: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// One event as read from a completion channel.
    pub struct IbUverbsCompEventDesc = ib_uverbs_comp_event_desc {
        /// `user_handle` of the completion queue.
        pub cq_handle: u64,
    }

    /// Limits of completion moderation.
    pub struct IbUverbsCqModerationCaps = ib_uverbs_cq_moderation_caps {
        /// Largest moderation count, in completions.
        pub max_cq_moderation_count: u16,
        /// Longest moderation period, in microseconds.
        pub max_cq_moderation_period: u16,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Bits of [`IbUverbsCmdHdr::command`] that hold the command number.
    pub consts define: u32 {
        IB_USER_VERBS_CMD_COMMAND_MASK = 0xff,
    }

    /// Bit of [`IbUverbsCmdHdr::command`] that announces an [`IbUverbsExCmdHdr`].
    pub consts define: u32 {
        IB_USER_VERBS_CMD_FLAG_EXTENDED = 0x8000_0000,
    }

    /// Header of every command sent with `write()`. Lengths are in 32-bit words and include the
    /// headers.
    pub request IbUverbsCmdHdr = ib_uverbs_cmd_hdr {
        /// Command number and the extended bit.
        pub command: u32,
        /// Length of the whole command in 32-bit words. For an extended command, the length of its
        /// core part in 64-bit words.
        pub in_words: u16,
        /// Length of the reply buffer in 32-bit words. For an extended command, the length of its
        /// core part in 64-bit words.
        pub out_words: u16,
    }

    /// Second header of extended commands. With it, lengths are in 64-bit words and exclude the
    /// headers.
    pub request IbUverbsExCmdHdr = ib_uverbs_ex_cmd_hdr {
        /// User address of the reply buffer.
        pub response: u64,
        /// Length of the driver's input, in 64-bit words.
        pub provider_in_words: u16,
        /// Length of the driver's reply buffer, in 64-bit words.
        pub provider_out_words: u16,
        /// Reserved, zero.
        pub cmd_hdr_reserved: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_GET_CONTEXT`].
    pub request IbUverbsGetContext = ib_uverbs_get_context {
        /// User address of the reply buffer.
        pub response: u64,
    }

    /// Reply to [`IB_USER_VERBS_CMD_GET_CONTEXT`].
    #[repr(align(8))]
    pub struct IbUverbsGetContextResp = ib_uverbs_get_context_resp {
        /// New file descriptor for asynchronous events.
        pub async_fd: u32,
        /// Number of completion vectors of the device.
        pub num_comp_vectors: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_QUERY_DEVICE`].
    pub request IbUverbsQueryDevice = ib_uverbs_query_device {
        /// User address of the reply buffer.
        pub response: u64,
    }

    /// Limits and identity of a device.
    pub struct IbUverbsQueryDeviceResp = ib_uverbs_query_device_resp {
        /// Firmware version: major number in bits 32 and up, minor number in bits 16 to 31,
        /// revision in bits 0 to 15.
        pub fw_ver: u64,
        /// GUID of the device.
        pub node_guid: Be64,
        /// GUID of the system containing the device.
        pub sys_image_guid: Be64,
        /// Maximum size of a memory region, in bytes.
        pub max_mr_size: u64,
        /// Bitmap of supported page sizes.
        pub page_size_cap: u64,
        /// IEEE OUI of the vendor.
        pub vendor_id: u32,
        /// Vendor-assigned id of the device model.
        pub vendor_part_id: u32,
        /// Hardware revision.
        pub hw_ver: u32,
        /// Maximum number of queue pairs.
        pub max_qp: u32,
        /// Maximum number of work requests per queue.
        pub max_qp_wr: u32,
        /// Low half of [`IbUverbsDeviceCapFlags`].
        pub device_cap_flags: u32,
        /// Maximum number of scatter/gather elements per work request.
        pub max_sge: u32,
        /// Maximum number of scatter/gather elements per RDMA read.
        pub max_sge_rd: u32,
        /// Maximum number of completion queues.
        pub max_cq: u32,
        /// Maximum number of completions per queue.
        pub max_cqe: u32,
        /// Maximum number of memory regions.
        pub max_mr: u32,
        /// Maximum number of protection domains.
        pub max_pd: u32,
        /// Maximum number of reads and atomics in progress as responder, per queue pair.
        pub max_qp_rd_atom: u32,
        /// Maximum number of reads and atomics in progress as responder, per end-to-end context.
        pub max_ee_rd_atom: u32,
        /// Maximum number of reads and atomics in progress as responder, for the whole device.
        pub max_res_rd_atom: u32,
        /// Maximum number of outstanding reads and atomics as requester, per queue pair.
        pub max_qp_init_rd_atom: u32,
        /// Maximum number of outstanding reads and atomics as requester, per end-to-end context.
        pub max_ee_init_rd_atom: u32,
        /// `ibv_atomic_cap` value.
        pub atomic_cap: u32,
        /// Maximum number of end-to-end contexts.
        pub max_ee: u32,
        /// Maximum number of reliable datagram domains.
        pub max_rdd: u32,
        /// Maximum number of memory windows.
        pub max_mw: u32,
        /// Maximum number of raw IPv6 queue pairs.
        pub max_raw_ipv6_qp: u32,
        /// Maximum number of raw Ethertype queue pairs.
        pub max_raw_ethy_qp: u32,
        /// Maximum number of multicast groups.
        pub max_mcast_grp: u32,
        /// Maximum number of queue pairs per multicast group.
        pub max_mcast_qp_attach: u32,
        /// Maximum number of attachments to all multicast groups.
        pub max_total_mcast_qp_attach: u32,
        /// Maximum number of address handles.
        pub max_ah: u32,
        /// Maximum number of fast memory regions; current kernels no longer support them.
        pub max_fmr: u32,
        /// Maximum number of maps per fast memory region.
        pub max_map_per_fmr: u32,
        /// Maximum number of shared receive queues.
        pub max_srq: u32,
        /// Maximum number of work requests per shared receive queue.
        pub max_srq_wr: u32,
        /// Maximum number of scatter/gather elements per receive of a shared receive queue.
        pub max_srq_sge: u32,
        /// Maximum number of P_Key table entries.
        pub max_pkeys: u16,
        /// Maximum delay of an acknowledgement: 4.096 µs times 2 to the power of this value.
        pub local_ca_ack_delay: u8,
        /// Number of ports.
        pub phys_port_cnt: u8,
        /// Reserved, zero.
        pub reserved: [u8; 4],
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_QUERY_DEVICE`].
    pub request IbUverbsExQueryDevice = ib_uverbs_ex_query_device {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// On-demand paging support, in [`IbUverbsOdpCaps::general_caps`].
    pub flags IbUverbsOdpGeneralCapBits = ib_uverbs_odp_general_cap_bits: u64 {
        IB_UVERBS_ODP_SUPPORT = 1 << 0,
        IB_UVERBS_ODP_SUPPORT_IMPLICIT = 1 << 1,
    }

    /// Operations that one transport supports on on-demand paged memory.
    pub flags IbUverbsOdpTransportCapBits = ib_uverbs_odp_transport_cap_bits: u32 {
        IB_UVERBS_ODP_SUPPORT_SEND = 1 << 0,
        IB_UVERBS_ODP_SUPPORT_RECV = 1 << 1,
        IB_UVERBS_ODP_SUPPORT_WRITE = 1 << 2,
        IB_UVERBS_ODP_SUPPORT_READ = 1 << 3,
        IB_UVERBS_ODP_SUPPORT_ATOMIC = 1 << 4,
        IB_UVERBS_ODP_SUPPORT_SRQ_RECV = 1 << 5,
        IB_UVERBS_ODP_SUPPORT_FLUSH = 1 << 6,
        IB_UVERBS_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7,
    }

    /// On-demand paging capabilities.
    pub struct IbUverbsOdpCaps = ib_uverbs_odp_caps {
        /// Bits of [`IbUverbsOdpGeneralCapBits`].
        pub general_caps: u64,
        /// Operations supported on each transport.
        pub per_transport_caps: IbUverbsPerTransportCaps,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// On-demand paging support by transport, as bits of [`IbUverbsOdpTransportCapBits`].
    pub struct IbUverbsPerTransportCaps = ib_uverbs_odp_caps.per_transport_caps {
        /// Reliable connection.
        pub rc_odp_caps: u32,
        /// Unreliable connection.
        pub uc_odp_caps: u32,
        /// Unreliable datagram.
        pub ud_odp_caps: u32,
    }

    /// Receive side scaling capabilities.
    pub struct IbUverbsRssCaps = ib_uverbs_rss_caps {
        /// Bitmap of supported queue pair types.
        pub supported_qpts: u32,
        /// Maximum number of indirection tables.
        pub max_rwq_indirection_tables: u32,
        /// Maximum number of entries per indirection table.
        pub max_rwq_indirection_table_size: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Tag matching capabilities.
    pub struct IbUverbsTmCaps = ib_uverbs_tm_caps {
        /// Maximum size of a rendezvous request header, in bytes.
        pub max_rndv_hdr_size: u32,
        /// Maximum number of entries in the tag list.
        pub max_num_tags: u32,
        /// Bit 0: rendezvous on reliable connections.
        pub flags: u32,
        /// Maximum number of outstanding list operations.
        pub max_ops: u32,
        /// Maximum number of scatter/gather elements per tag list entry.
        pub max_sge: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_EX_CMD_QUERY_DEVICE`].
    pub struct IbUverbsExQueryDeviceResp = ib_uverbs_ex_query_device_resp {
        /// The reply to the non-extended command.
        pub base: IbUverbsQueryDeviceResp,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// On-demand paging capabilities.
        pub odp_caps: IbUverbsOdpCaps,
        /// Mask of the valid bits in a completion timestamp.
        pub timestamp_mask: u64,
        /// Frequency of the completion timestamp clock, in kHz.
        pub hca_core_clock: u64,
        /// All bits of [`IbUverbsDeviceCapFlags`].
        pub device_cap_flags_ex: u64,
        /// Receive side scaling capabilities.
        pub rss_caps: IbUverbsRssCaps,
        /// Maximum number of receive work queues.
        pub max_wq_type_rq: u32,
        /// Bits of [`IbUverbsRawPacketCaps`].
        pub raw_packet_caps: u32,
        /// Tag matching capabilities.
        pub tm_caps: IbUverbsTmCaps,
        /// Completion moderation limits.
        pub cq_moderation_caps: IbUverbsCqModerationCaps,
        /// Size of the device memory, in bytes.
        pub max_dm_size: u64,
        /// On-demand paging support on extended reliable connections,
        /// [`IbUverbsOdpTransportCapBits`].
        pub xrc_odp_caps: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_QUERY_PORT`].
    pub request IbUverbsQueryPort = ib_uverbs_query_port {
        /// User address of the reply buffer.
        pub response: u64,
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Reserved, zero.
        pub reserved: [u8; 7],
    }

    /// Properties of a port, mostly those in IBTA PortInfo.
    pub struct IbUverbsQueryPortResp = ib_uverbs_query_port_resp {
        /// Bits of
        /// [`IbUverbsQueryPortCapFlags`](crate::ib_user_ioctl_verbs::IbUverbsQueryPortCapFlags).
        pub port_cap_flags: u32,
        /// Maximum message size, in bytes.
        pub max_msg_sz: u32,
        /// Count of received packets with an invalid P_Key.
        pub bad_pkey_cntr: u32,
        /// Count of received packets with an invalid Q_Key.
        pub qkey_viol_cntr: u32,
        /// Number of entries in the GID table.
        pub gid_tbl_len: u32,
        /// Number of entries in the P_Key table.
        pub pkey_tbl_len: u16,
        /// Base LID.
        pub lid: u16,
        /// LID of the subnet manager.
        pub sm_lid: u16,
        /// `ibv_port_state` value.
        pub state: u8,
        /// Maximum MTU, an `ibv_mtu` value.
        pub max_mtu: u8,
        /// Active MTU, an `ibv_mtu` value.
        pub active_mtu: u8,
        /// LID mask control: the number of low LID bits that the port ignores.
        pub lmc: u8,
        /// Maximum number of virtual lanes, as an IBTA code.
        pub max_vl_num: u8,
        /// Service level of the subnet manager.
        pub sm_sl: u8,
        /// Propagation delay of the subnet: 4.096 µs times 2 to the power of this value.
        pub subnet_timeout: u8,
        /// Type of initialization performed by the subnet manager.
        pub init_type_reply: u8,
        /// Active link width, IBTA code: 1, 2, 4, 8, 16 for 1, 4, 8, 12, 2 lanes.
        pub active_width: u8,
        /// Link speed code per lane; see `active_speed_ex` of the ioctl method for wider codes.
        pub active_speed: u8,
        /// Physical state, IBTA code: 5 means link up.
        pub phys_state: u8,
        /// Link layer: 1 for InfiniBand, 2 for Ethernet.
        pub link_layer: u8,
        /// Bits of [`IbUverbsQueryPortFlags`](crate::ib_user_ioctl_verbs::IbUverbsQueryPortFlags).
        pub flags: u8,
        /// Reserved, zero.
        pub reserved: u8,
    }

    /// Input to [`IB_USER_VERBS_CMD_ALLOC_PD`].
    pub request IbUverbsAllocPd = ib_uverbs_alloc_pd {
        /// User address of the reply buffer.
        pub response: u64,
    }

    /// Reply to [`IB_USER_VERBS_CMD_ALLOC_PD`].
    pub struct IbUverbsAllocPdResp = ib_uverbs_alloc_pd_resp {
        /// Handle of the protection domain.
        pub pd_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_DEALLOC_PD`].
    pub request IbUverbsDeallocPd = ib_uverbs_dealloc_pd {
        /// Handle of the protection domain.
        pub pd_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_OPEN_XRCD`].
    pub request IbUverbsOpenXrcd = ib_uverbs_open_xrcd {
        /// User address of the reply buffer.
        pub response: u64,
        /// File descriptor whose inode names the domain, -1 for a private domain.
        pub fd: u32,
        /// `O_CREAT` and `O_EXCL` bits.
        pub oflags: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_OPEN_XRCD`].
    pub struct IbUverbsOpenXrcdResp = ib_uverbs_open_xrcd_resp {
        /// Handle of the XRC domain.
        pub xrcd_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_CLOSE_XRCD`].
    pub request IbUverbsCloseXrcd = ib_uverbs_close_xrcd {
        /// Handle of the XRC domain.
        pub xrcd_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_REG_MR`].
    pub request IbUverbsRegMr = ib_uverbs_reg_mr {
        /// User address of the reply buffer.
        pub response: u64,
        /// User address of the first byte.
        pub start: u64,
        /// Length in bytes.
        pub length: u64,
        /// The device's address for the first byte.
        pub hca_va: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Access rights, [`IbUverbsAccessFlags`](crate::ib_user_ioctl_verbs::IbUverbsAccessFlags).
        pub access_flags: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_REG_MR`].
    pub struct IbUverbsRegMrResp = ib_uverbs_reg_mr_resp {
        /// Handle of the memory region.
        pub mr_handle: u32,
        /// Key for local access to the memory.
        pub lkey: u32,
        /// Key for remote access to the memory.
        pub rkey: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_REREG_MR`].
    pub request IbUverbsReregMr = ib_uverbs_rereg_mr {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the memory region.
        pub mr_handle: u32,
        /// Properties to change: 1 for translation, 2 for protection domain, 4 for access.
        pub flags: u32,
        /// User address of the first byte.
        pub start: u64,
        /// Length in bytes.
        pub length: u64,
        /// The device's address for the first byte.
        pub hca_va: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Access rights, [`IbUverbsAccessFlags`](crate::ib_user_ioctl_verbs::IbUverbsAccessFlags).
        pub access_flags: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_REREG_MR`].
    #[repr(align(8))]
    pub struct IbUverbsReregMrResp = ib_uverbs_rereg_mr_resp {
        /// Key for local access to the memory.
        pub lkey: u32,
        /// Key for remote access to the memory.
        pub rkey: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_DEREG_MR`].
    pub request IbUverbsDeregMr = ib_uverbs_dereg_mr {
        /// Handle of the memory region.
        pub mr_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_ALLOC_MW`].
    pub request IbUverbsAllocMw = ib_uverbs_alloc_mw {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Memory window type, 1 or 2 (`ibv_mw_type`).
        pub mw_type: u8,
        /// Reserved, zero.
        pub reserved: [u8; 3],
    }

    /// Reply to [`IB_USER_VERBS_CMD_ALLOC_MW`].
    #[repr(align(8))]
    pub struct IbUverbsAllocMwResp = ib_uverbs_alloc_mw_resp {
        /// Handle of the memory window.
        pub mw_handle: u32,
        /// Key for remote access to the memory.
        pub rkey: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_DEALLOC_MW`].
    pub request IbUverbsDeallocMw = ib_uverbs_dealloc_mw {
        /// Handle of the memory window.
        pub mw_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL`].
    pub request IbUverbsCreateCompChannel = ib_uverbs_create_comp_channel {
        /// User address of the reply buffer.
        pub response: u64,
    }

    /// Reply to [`IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL`].
    pub struct IbUverbsCreateCompChannelResp = ib_uverbs_create_comp_channel_resp {
        /// New file descriptor for completion events.
        pub fd: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_CREATE_CQ`].
    pub request IbUverbsCreateCq = ib_uverbs_create_cq {
        /// User address of the reply buffer.
        pub response: u64,
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Requested capacity, in completions.
        pub cqe: u32,
        /// Completion vector (interrupt) of the CQ.
        pub comp_vector: u32,
        /// File descriptor of the completion channel, -1 for none.
        pub comp_channel: i32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Flags of [`IbUverbsExCreateCq::flags`] and of `UVERBS_METHOD_CQ_CREATE`.
    pub flags IbUverbsExCreateCqFlags = ib_uverbs_ex_create_cq_flags: u32 {
        /// Completions carry timestamps.
        IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION = 1 << 0,
        /// CQ overruns are ignored instead of moving the CQ to an error state.
        IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN = 1 << 1,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_CREATE_CQ`].
    pub request IbUverbsExCreateCq = ib_uverbs_ex_create_cq {
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Requested capacity, in completions.
        pub cqe: u32,
        /// Completion vector (interrupt) of the CQ.
        pub comp_vector: u32,
        /// File descriptor of the completion channel, -1 for none.
        pub comp_channel: i32,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Bits of [`IbUverbsExCreateCqFlags`].
        pub flags: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_CREATE_CQ`].
    #[repr(align(8))]
    pub struct IbUverbsCreateCqResp = ib_uverbs_create_cq_resp {
        /// Handle of the completion queue.
        pub cq_handle: u32,
        /// Capacity in completions, at least the requested capacity.
        pub cqe: u32,
    }

    /// Reply to [`IB_USER_VERBS_EX_CMD_CREATE_CQ`].
    pub struct IbUverbsExCreateCqResp = ib_uverbs_ex_create_cq_resp {
        /// The reply to the non-extended command.
        pub base: IbUverbsCreateCqResp,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_RESIZE_CQ`].
    pub request IbUverbsResizeCq = ib_uverbs_resize_cq {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the completion queue.
        pub cq_handle: u32,
        /// Requested capacity, in completions.
        pub cqe: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_RESIZE_CQ`].
    #[repr(align(8))]
    pub struct IbUverbsResizeCqResp = ib_uverbs_resize_cq_resp {
        /// Capacity, in completions.
        pub cqe: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_POLL_CQ`].
    pub request IbUverbsPollCq = ib_uverbs_poll_cq {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the completion queue.
        pub cq_handle: u32,
        /// Maximum number of completions to return.
        pub ne: u32,
    }

    /// The completed operation, [`IbUverbsWc::opcode`]. Receives have bit 7 set: `128`, or `129`
    /// for RDMA write with immediate.
    pub enum IbUverbsWcOpcode = ib_uverbs_wc_opcode: u32 {
        IB_UVERBS_WC_SEND = 0,
        IB_UVERBS_WC_RDMA_WRITE = 1,
        IB_UVERBS_WC_RDMA_READ = 2,
        IB_UVERBS_WC_COMP_SWAP = 3,
        IB_UVERBS_WC_FETCH_ADD = 4,
        IB_UVERBS_WC_BIND_MW = 5,
        IB_UVERBS_WC_LOCAL_INV = 6,
        IB_UVERBS_WC_TSO = 7,
        IB_UVERBS_WC_FLUSH = 8,
        IB_UVERBS_WC_ATOMIC_WRITE = 9,
    }

    /// One work completion, also the element type of rxe's mapped completion queue.
    pub struct IbUverbsWc = ib_uverbs_wc {
        /// The caller's cookie, returned in the completion.
        pub wr_id: u64,
        /// `ibv_wc_status` value, 0 for success.
        pub status: u32,
        /// [`IbUverbsWcOpcode`]; undefined unless the status is success.
        pub opcode: u32,
        /// Vendor-specific error code.
        pub vendor_err: u32,
        /// Number of bytes received or read.
        pub byte_len: u32,
        /// Immediate data or invalidated key, depending on `wc_flags`.
        pub ex: IbUverbsWcEx,
        /// Queue pair number.
        pub qp_num: u32,
        /// Source queue pair of a datagram.
        pub src_qp: u32,
        /// `ibv_wc_flags` bits: 1 GRH, 2 immediate, 4 checksum valid, 8 invalidated.
        pub wc_flags: u32,
        /// Index into the P_Key table.
        pub pkey_index: u16,
        /// Source LID.
        pub slid: u16,
        /// Service level.
        pub sl: u8,
        /// Low bits of a datagram's destination LID.
        pub dlid_path_bits: u8,
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Reserved, zero.
        pub reserved: u8,
    }

    /// Immediate data, or the key invalidated by a send with invalidate.
    pub union IbUverbsWcEx = ib_uverbs_wc.ex: u32 {
        /// Immediate data, big-endian as on the wire.
        pub imm_data: Be32 => as_imm_data, from_imm_data,
        /// The remote key that was invalidated.
        pub invalidate_rkey: u32 => as_invalidate_rkey, from_invalidate_rkey,
    }

    /// Reply to [`IB_USER_VERBS_CMD_POLL_CQ`]; `count` entries of [`IbUverbsWc`] follow.
    #[repr(align(8))]
    pub struct IbUverbsPollCqResp = ib_uverbs_poll_cq_resp {
        /// Number of completions that follow.
        pub count: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_REQ_NOTIFY_CQ`].
    pub request IbUverbsReqNotifyCq = ib_uverbs_req_notify_cq {
        /// Handle of the completion queue.
        pub cq_handle: u32,
        /// Nonzero to notify only about solicited completions and errors.
        pub solicited_only: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_DESTROY_CQ`].
    pub request IbUverbsDestroyCq = ib_uverbs_destroy_cq {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the completion queue.
        pub cq_handle: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_DESTROY_CQ`].
    pub struct IbUverbsDestroyCqResp = ib_uverbs_destroy_cq_resp {
        /// Number of completion events delivered by the kernel for the CQ.
        pub comp_events_reported: u32,
        /// Number of asynchronous events delivered by the kernel for the CQ.
        pub async_events_reported: u32,
    }

    /// Fields of an address for the global route header (GRH).
    pub struct IbUverbsGlobalRoute = ib_uverbs_global_route {
        /// Destination GID.
        pub dgid: [u8; 16],
        /// IPv6 flow label, 20 bits.
        pub flow_label: u32,
        /// Index of the source GID in the port's GID table.
        pub sgid_index: u8,
        /// Hop limit, IPv4 TTL.
        pub hop_limit: u8,
        /// Traffic class, IPv4 TOS.
        pub traffic_class: u8,
        /// Reserved, zero.
        pub reserved: u8,
    }

    /// Attributes of an address handle: the path to a destination.
    pub struct IbUverbsAhAttr = ib_uverbs_ah_attr {
        /// Global route: the GRH fields.
        pub grh: IbUverbsGlobalRoute,
        /// Destination LID.
        pub dlid: u16,
        /// Service level.
        pub sl: u8,
        /// Low bits of the source LID (path bits).
        pub src_path_bits: u8,
        /// Static rate limit, an `ibv_rate` value; 0 for the full rate of the port.
        pub static_rate: u8,
        /// Nonzero if the GRH fields are used (always on RoCE).
        pub is_global: u8,
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Reserved, zero.
        pub reserved: u8,
    }

    /// Queue pair attributes as the rdma_cm computes them (`RDMA_USER_CM_CMD_INIT_QP_ATTR`).
    pub struct IbUverbsQpAttr = ib_uverbs_qp_attr {
        /// Mask of the attributes that are set.
        pub qp_attr_mask: u32,
        /// Queue pair state, an `ibv_qp_state` value.
        pub qp_state: u32,
        /// Current state, as assumed by the caller.
        pub cur_qp_state: u32,
        /// Path MTU as an `ibv_mtu` value, from 1 (256 bytes) to 5 (4096 bytes).
        pub path_mtu: u32,
        /// Path migration state, an `ibv_mig_state` value.
        pub path_mig_state: u32,
        /// Q_Key.
        pub qkey: u32,
        /// First PSN expected from the peer, 24 bits.
        pub rq_psn: u32,
        /// First PSN to send, 24 bits.
        pub sq_psn: u32,
        /// Queue pair number of the peer.
        pub dest_qp_num: u32,
        /// Access rights of the peer, `ibv_access_flags` bits.
        pub qp_access_flags: u32,
        /// Path to the destination.
        pub ah_attr: IbUverbsAhAttr,
        /// The alternate path to the destination.
        pub alt_ah_attr: IbUverbsAhAttr,
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
        /// Index into the P_Key table.
        pub pkey_index: u16,
        /// P_Key index of the alternate path.
        pub alt_pkey_index: u16,
        /// Nonzero to request an event once the send queue has drained.
        pub en_sqd_async_notify: u8,
        /// Nonzero while the send queue is draining.
        pub sq_draining: u8,
        /// Maximum number of outstanding reads and atomics as requester.
        pub max_rd_atomic: u8,
        /// Maximum number of outstanding reads and atomics as responder.
        pub max_dest_rd_atomic: u8,
        /// Minimum delay requested from the peer by an RNR NAK, as an IBTA code.
        pub min_rnr_timer: u8,
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Local ACK timeout: 4.096 µs times 2 to the power of this value; 0 means no timeout.
        pub timeout: u8,
        /// Number of retries after a timeout or sequence error, 3 bits.
        pub retry_cnt: u8,
        /// Number of retries after receiver not ready; 7 means no limit.
        pub rnr_retry: u8,
        /// Port number of the alternate path.
        pub alt_port_num: u8,
        /// Local ACK timeout of the alternate path.
        pub alt_timeout: u8,
        /// Reserved, zero.
        pub reserved: [u8; 5],
    }

    /// Input to [`IB_USER_VERBS_CMD_CREATE_QP`].
    pub request IbUverbsCreateQp = ib_uverbs_create_qp {
        /// User address of the reply buffer.
        pub response: u64,
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Handle of the completion queue for sends.
        pub send_cq_handle: u32,
        /// Handle of the completion queue for receives.
        pub recv_cq_handle: u32,
        /// Handle of the shared receive queue.
        pub srq_handle: u32,
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
        /// Nonzero if every send generates a completion.
        pub sq_sig_all: u8,
        /// Type of queue pair, an `ib_uverbs_qp_type` value.
        pub qp_type: u8,
        /// Nonzero if `srq_handle` is used.
        pub is_srq: u8,
        /// Reserved, zero.
        pub reserved: u8,
    }

    /// Optional inputs present in [`IbUverbsExCreateQp`], bits of
    /// [`IbUverbsExCreateQp::comp_mask`].
    pub flags IbUverbsCreateQpMask = ib_uverbs_create_qp_mask: u32 {
        /// [`IbUverbsExCreateQp::rwq_ind_tbl_handle`] is present.
        IB_UVERBS_CREATE_QP_MASK_IND_TABLE = 1 << 0,
    }

    /// All bits of [`IbUverbsCreateQpMask`].
    pub consts anonymous: u32 {
        IB_UVERBS_CREATE_QP_SUP_COMP_MASK = IbUverbsCreateQpMask::IB_UVERBS_CREATE_QP_MASK_IND_TABLE.0,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_CREATE_QP`].
    pub request IbUverbsExCreateQp = ib_uverbs_ex_create_qp {
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Handle of the completion queue for sends.
        pub send_cq_handle: u32,
        /// Handle of the completion queue for receives.
        pub recv_cq_handle: u32,
        /// Handle of the shared receive queue.
        pub srq_handle: u32,
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
        /// Nonzero if every send generates a completion.
        pub sq_sig_all: u8,
        /// Type of queue pair, an `ib_uverbs_qp_type` value.
        pub qp_type: u8,
        /// Nonzero if `srq_handle` is used.
        pub is_srq: u8,
        /// Reserved, zero.
        pub reserved: u8,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Creation flags, `ib_uverbs_qp_create_flags` bits.
        pub create_flags: u32,
        /// Handle of the receive queue indirection table.
        pub rwq_ind_tbl_handle: u32,
        /// Source queue pair number of sent packets.
        pub source_qpn: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_OPEN_QP`].
    pub request IbUverbsOpenQp = ib_uverbs_open_qp {
        /// User address of the reply buffer.
        pub response: u64,
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Queue pair number.
        pub qpn: u32,
        /// Type of queue pair, an `ib_uverbs_qp_type` value.
        pub qp_type: u8,
        /// Reserved, zero.
        pub reserved: [u8; 7],
    }

    /// Reply to CREATE_QP and OPEN_QP: the queue pair number and the granted limits.
    pub struct IbUverbsCreateQpResp = ib_uverbs_create_qp_resp {
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// Queue pair number.
        pub qpn: u32,
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
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_EX_CMD_CREATE_QP`].
    pub struct IbUverbsExCreateQpResp = ib_uverbs_ex_create_qp_resp {
        /// The reply to the non-extended command.
        pub base: IbUverbsCreateQpResp,
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
    }

    /// Path of a queue pair: address handle attributes in the field order of the write ABI.
    pub struct IbUverbsQpDest = ib_uverbs_qp_dest {
        /// Destination GID.
        pub dgid: [u8; 16],
        /// IPv6 flow label, 20 bits.
        pub flow_label: u32,
        /// Destination LID.
        pub dlid: u16,
        /// Reserved, zero.
        pub reserved: u16,
        /// Index of the source GID in the port's GID table.
        pub sgid_index: u8,
        /// Hop limit, IPv4 TTL.
        pub hop_limit: u8,
        /// Traffic class, IPv4 TOS.
        pub traffic_class: u8,
        /// Service level.
        pub sl: u8,
        /// Low bits of the source LID (path bits).
        pub src_path_bits: u8,
        /// Static rate limit, an `ibv_rate` value; 0 for the full rate of the port.
        pub static_rate: u8,
        /// Nonzero if the GRH fields are used (always on RoCE).
        pub is_global: u8,
        /// Port number, starting at 1.
        pub port_num: u8,
    }

    /// Input to [`IB_USER_VERBS_CMD_QUERY_QP`].
    pub request IbUverbsQueryQp = ib_uverbs_query_qp {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// Mask of the requested attributes.
        pub attr_mask: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_QUERY_QP`].
    #[repr(align(8))]
    pub struct IbUverbsQueryQpResp = ib_uverbs_query_qp_resp {
        /// Primary path.
        pub dest: IbUverbsQpDest,
        /// Alternate path.
        pub alt_dest: IbUverbsQpDest,
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
        /// Q_Key.
        pub qkey: u32,
        /// First PSN expected from the peer, 24 bits.
        pub rq_psn: u32,
        /// First PSN to send, 24 bits.
        pub sq_psn: u32,
        /// Queue pair number of the peer.
        pub dest_qp_num: u32,
        /// Access rights of the peer, `ibv_access_flags` bits.
        pub qp_access_flags: u32,
        /// Index into the P_Key table.
        pub pkey_index: u16,
        /// P_Key index of the alternate path.
        pub alt_pkey_index: u16,
        /// Queue pair state, an `ibv_qp_state` value.
        pub qp_state: u8,
        /// Current state, as assumed by the caller.
        pub cur_qp_state: u8,
        /// Path MTU as an `ibv_mtu` value, from 1 (256 bytes) to 5 (4096 bytes).
        pub path_mtu: u8,
        /// Path migration state, an `ibv_mig_state` value.
        pub path_mig_state: u8,
        /// Nonzero while the send queue is draining.
        pub sq_draining: u8,
        /// Maximum number of outstanding reads and atomics as requester.
        pub max_rd_atomic: u8,
        /// Maximum number of outstanding reads and atomics as responder.
        pub max_dest_rd_atomic: u8,
        /// Minimum delay requested from the peer by an RNR NAK, as an IBTA code.
        pub min_rnr_timer: u8,
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Local ACK timeout: 4.096 µs times 2 to the power of this value; 0 means no timeout.
        pub timeout: u8,
        /// Number of retries after a timeout or sequence error, 3 bits.
        pub retry_cnt: u8,
        /// Number of retries after receiver not ready; 7 means no limit.
        pub rnr_retry: u8,
        /// Port number of the alternate path.
        pub alt_port_num: u8,
        /// Local ACK timeout of the alternate path.
        pub alt_timeout: u8,
        /// Nonzero if every send generates a completion.
        pub sq_sig_all: u8,
        /// Reserved, zero.
        pub reserved: [u8; 5],
    }

    /// Input to [`IB_USER_VERBS_CMD_MODIFY_QP`].
    #[repr(align(8))]
    pub request IbUverbsModifyQp = ib_uverbs_modify_qp {
        /// Primary path.
        pub dest: IbUverbsQpDest,
        /// Alternate path.
        pub alt_dest: IbUverbsQpDest,
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// Mask of the attributes to change.
        pub attr_mask: u32,
        /// Q_Key.
        pub qkey: u32,
        /// First PSN expected from the peer, 24 bits.
        pub rq_psn: u32,
        /// First PSN to send, 24 bits.
        pub sq_psn: u32,
        /// Queue pair number of the peer.
        pub dest_qp_num: u32,
        /// Access rights of the peer, `ibv_access_flags` bits.
        pub qp_access_flags: u32,
        /// Index into the P_Key table.
        pub pkey_index: u16,
        /// P_Key index of the alternate path.
        pub alt_pkey_index: u16,
        /// Queue pair state, an `ibv_qp_state` value.
        pub qp_state: u8,
        /// Current state, as assumed by the caller.
        pub cur_qp_state: u8,
        /// Path MTU as an `ibv_mtu` value, from 1 (256 bytes) to 5 (4096 bytes).
        pub path_mtu: u8,
        /// Path migration state, an `ibv_mig_state` value.
        pub path_mig_state: u8,
        /// Nonzero to request an event once the send queue has drained.
        pub en_sqd_async_notify: u8,
        /// Maximum number of outstanding reads and atomics as requester.
        pub max_rd_atomic: u8,
        /// Maximum number of outstanding reads and atomics as responder.
        pub max_dest_rd_atomic: u8,
        /// Minimum delay requested from the peer by an RNR NAK, as an IBTA code.
        pub min_rnr_timer: u8,
        /// Port number, starting at 1.
        pub port_num: u8,
        /// Local ACK timeout: 4.096 µs times 2 to the power of this value; 0 means no timeout.
        pub timeout: u8,
        /// Number of retries after a timeout or sequence error, 3 bits.
        pub retry_cnt: u8,
        /// Number of retries after receiver not ready; 7 means no limit.
        pub rnr_retry: u8,
        /// Port number of the alternate path.
        pub alt_port_num: u8,
        /// Local ACK timeout of the alternate path.
        pub alt_timeout: u8,
        /// Reserved, zero.
        pub reserved: [u8; 2],
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_MODIFY_QP`].
    pub request IbUverbsExModifyQp = ib_uverbs_ex_modify_qp {
        /// The input to the non-extended command.
        pub base: IbUverbsModifyQp,
        /// Packet pacing rate limit, in kbit/s.
        pub rate_limit: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_EX_CMD_MODIFY_QP`].
    pub struct IbUverbsExModifyQpResp = ib_uverbs_ex_modify_qp_resp {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_DESTROY_QP`].
    pub request IbUverbsDestroyQp = ib_uverbs_destroy_qp {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_DESTROY_QP`].
    pub struct IbUverbsDestroyQpResp = ib_uverbs_destroy_qp_resp {
        /// Number of events that the kernel has delivered for the object. Handle all of them before
        /// freeing the object's memory.
        pub events_reported: u32,
    }

    /// A scatter/gather element. In a post command, these follow the work requests.
    pub struct IbUverbsSge = ib_uverbs_sge {
        /// User address of the first byte.
        pub addr: u64,
        /// Length in bytes.
        pub length: u32,
        /// Key for local access to the memory.
        pub lkey: u32,
    }

    /// The operation of a send work request, [`IbUverbsSendWr::opcode`].
    pub enum IbUverbsWrOpcode = ib_uverbs_wr_opcode: u32 {
        IB_UVERBS_WR_RDMA_WRITE = 0,
        IB_UVERBS_WR_RDMA_WRITE_WITH_IMM = 1,
        IB_UVERBS_WR_SEND = 2,
        IB_UVERBS_WR_SEND_WITH_IMM = 3,
        IB_UVERBS_WR_RDMA_READ = 4,
        IB_UVERBS_WR_ATOMIC_CMP_AND_SWP = 5,
        IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD = 6,
        IB_UVERBS_WR_LOCAL_INV = 7,
        IB_UVERBS_WR_BIND_MW = 8,
        IB_UVERBS_WR_SEND_WITH_INV = 9,
        IB_UVERBS_WR_TSO = 10,
        IB_UVERBS_WR_RDMA_READ_WITH_INV = 11,
        IB_UVERBS_WR_MASKED_ATOMIC_CMP_AND_SWP = 12,
        IB_UVERBS_WR_MASKED_ATOMIC_FETCH_AND_ADD = 13,
        IB_UVERBS_WR_FLUSH = 14,
        IB_UVERBS_WR_ATOMIC_WRITE = 15,
    }

    /// A send work request of [`IbUverbsPostSend`].
    pub request IbUverbsSendWr = ib_uverbs_send_wr {
        /// The caller's cookie, returned in the completion.
        pub wr_id: u64,
        /// Number of scatter/gather elements in the request.
        pub num_sge: u32,
        /// Value of [`IbUverbsWrOpcode`].
        pub opcode: u32,
        /// `ibv_send_flags` bits.
        pub send_flags: u32,
        /// Immediate data or remote key, depending on the opcode.
        pub ex: IbUverbsSendWrEx,
        /// Operation-specific fields, depending on the opcode.
        pub wr: IbUverbsSendWrOp,
    }

    /// Immediate data, or the key to invalidate at the peer.
    pub union IbUverbsSendWrEx = ib_uverbs_send_wr.ex: u32 {
        /// Immediate data, big-endian as on the wire.
        pub imm_data: Be32 => as_imm_data, from_imm_data,
        /// The remote key to invalidate.
        pub invalidate_rkey: u32 => as_invalidate_rkey, from_invalidate_rkey,
    }

    /// Operation-specific fields of a send work request.
    pub union IbUverbsSendWrOp = ib_uverbs_send_wr.wr: u64 {
        /// Fields for RDMA reads and writes.
        pub rdma: IbUverbsSendWrRdma => as_rdma, from_rdma,
        /// Fields for atomics.
        pub atomic: IbUverbsSendWrAtomic => as_atomic, from_atomic,
        /// Fields for datagrams.
        pub ud: IbUverbsSendWrUd => as_ud, from_ud,
    }

    /// Remote memory of an RDMA read or write.
    pub struct IbUverbsSendWrRdma = ib_uverbs_send_wr.wr.rdma {
        /// Address in the peer's memory.
        pub remote_addr: u64,
        /// Key for remote access to the memory.
        pub rkey: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Remote memory and operands of an atomic.
    pub struct IbUverbsSendWrAtomic = ib_uverbs_send_wr.wr.atomic {
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
    pub struct IbUverbsSendWrUd = ib_uverbs_send_wr.wr.ud {
        /// Kernel handle of the address handle (AH).
        pub ah: u32,
        /// Destination queue pair number.
        pub remote_qpn: u32,
        /// Q_Key of the datagram.
        pub remote_qkey: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_POST_SEND`]; work requests and then scatter/gather elements
    /// follow.
    pub request IbUverbsPostSend = ib_uverbs_post_send {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// Number of work requests that follow.
        pub wr_count: u32,
        /// Total number of scatter/gather elements in all requests.
        pub sge_count: u32,
        /// Size of each work request that follows, in bytes.
        pub wqe_size: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_POST_SEND`].
    pub struct IbUverbsPostSendResp = ib_uverbs_post_send_resp {
        /// Position of the first work request that was not posted, counted from 1; 0 if none
        /// failed.
        pub bad_wr: u32,
    }

    /// A receive work request of [`IbUverbsPostRecv`] and [`IbUverbsPostSrqRecv`].
    pub request IbUverbsRecvWr = ib_uverbs_recv_wr {
        /// The caller's cookie, returned in the completion.
        pub wr_id: u64,
        /// Number of scatter/gather elements in the request.
        pub num_sge: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_POST_RECV`]; work requests and then scatter/gather elements
    /// follow.
    pub request IbUverbsPostRecv = ib_uverbs_post_recv {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// Number of work requests that follow.
        pub wr_count: u32,
        /// Total number of scatter/gather elements in all requests.
        pub sge_count: u32,
        /// Size of each work request that follows, in bytes.
        pub wqe_size: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_POST_RECV`].
    pub struct IbUverbsPostRecvResp = ib_uverbs_post_recv_resp {
        /// Position of the first work request that was not posted, counted from 1; 0 if none
        /// failed.
        pub bad_wr: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_POST_SRQ_RECV`]; work requests and then scatter/gather elements
    /// follow.
    pub request IbUverbsPostSrqRecv = ib_uverbs_post_srq_recv {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the shared receive queue.
        pub srq_handle: u32,
        /// Number of work requests that follow.
        pub wr_count: u32,
        /// Total number of scatter/gather elements in all requests.
        pub sge_count: u32,
        /// Size of each work request that follows, in bytes.
        pub wqe_size: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_POST_SRQ_RECV`].
    pub struct IbUverbsPostSrqRecvResp = ib_uverbs_post_srq_recv_resp {
        /// Position of the first work request that was not posted, counted from 1; 0 if none
        /// failed.
        pub bad_wr: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_CREATE_AH`].
    pub request IbUverbsCreateAh = ib_uverbs_create_ah {
        /// User address of the reply buffer.
        pub response: u64,
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Reserved, zero.
        pub reserved: u32,
        /// Destination address.
        pub attr: IbUverbsAhAttr,
    }

    /// Reply to [`IB_USER_VERBS_CMD_CREATE_AH`].
    pub struct IbUverbsCreateAhResp = ib_uverbs_create_ah_resp {
        /// Kernel handle of the address handle (AH).
        pub ah_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_DESTROY_AH`].
    pub request IbUverbsDestroyAh = ib_uverbs_destroy_ah {
        /// Kernel handle of the address handle (AH).
        pub ah_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_ATTACH_MCAST`].
    #[repr(align(8))]
    pub request IbUverbsAttachMcast = ib_uverbs_attach_mcast {
        /// GID of the group.
        pub gid: [u8; 16],
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// LID of the group.
        pub mlid: u16,
        /// Reserved, zero.
        pub reserved: u16,
    }

    /// Input to [`IB_USER_VERBS_CMD_DETACH_MCAST`].
    #[repr(align(8))]
    pub request IbUverbsDetachMcast = ib_uverbs_detach_mcast {
        /// GID of the group.
        pub gid: [u8; 16],
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// LID of the group.
        pub mlid: u16,
        /// Reserved, zero.
        pub reserved: u16,
    }

    /// Header of every flow specification.
    #[repr(align(8))]
    pub request IbUverbsFlowSpecHdr = ib_uverbs_flow_spec_hdr {
        /// Type of the specification, `ibv_flow_spec_type` value.
        pub r#type: u32,
        /// Length of the whole specification, in bytes.
        pub size: u16,
        /// Reserved, zero.
        pub reserved: u16,
    }

    /// Ethernet header fields to match in a flow specification.
    pub request IbUverbsFlowEthFilter = ib_uverbs_flow_eth_filter {
        /// Destination MAC address.
        pub dst_mac: [u8; 6],
        /// Source MAC address.
        pub src_mac: [u8; 6],
        /// Ethertype.
        pub ether_type: Be16,
        /// VLAN tag.
        pub vlan_tag: Be16,
    }

    /// Flow specification: a packet matches if its Ethernet fields, under `mask`, equal `val`.
    pub request IbUverbsFlowSpecEth = ib_uverbs_flow_spec_eth {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Values to match.
        pub val: IbUverbsFlowEthFilter,
        /// Mask of the bits to compare.
        pub mask: IbUverbsFlowEthFilter,
    }

    /// IPv4 fields to match in a flow specification.
    pub request IbUverbsFlowIpv4Filter = ib_uverbs_flow_ipv4_filter {
        /// Source address.
        pub src_ip: Be32,
        /// Destination address.
        pub dst_ip: Be32,
        /// Protocol number.
        pub proto: u8,
        /// Type of service.
        pub tos: u8,
        /// Time to live.
        pub ttl: u8,
        /// Fragment flags.
        pub flags: u8,
    }

    /// Flow specification: a packet matches if its IPv4 fields, under `mask`, equal `val`.
    pub request IbUverbsFlowSpecIpv4 = ib_uverbs_flow_spec_ipv4 {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Values to match.
        pub val: IbUverbsFlowIpv4Filter,
        /// Mask of the bits to compare.
        pub mask: IbUverbsFlowIpv4Filter,
    }

    /// TCP or UDP ports to match in a flow specification.
    pub request IbUverbsFlowTcpUdpFilter = ib_uverbs_flow_tcp_udp_filter {
        /// Destination port.
        pub dst_port: Be16,
        /// Source port.
        pub src_port: Be16,
    }

    /// Flow specification: a packet matches if its TCP/UDP fields, under `mask`, equal `val`.
    pub request IbUverbsFlowSpecTcpUdp = ib_uverbs_flow_spec_tcp_udp {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Values to match.
        pub val: IbUverbsFlowTcpUdpFilter,
        /// Mask of the bits to compare.
        pub mask: IbUverbsFlowTcpUdpFilter,
    }

    /// IPv6 fields to match in a flow specification.
    pub request IbUverbsFlowIpv6Filter = ib_uverbs_flow_ipv6_filter {
        /// Source address.
        pub src_ip: [u8; 16],
        /// Destination address.
        pub dst_ip: [u8; 16],
        /// IPv6 flow label, 20 bits.
        pub flow_label: Be32,
        /// Next header number.
        pub next_hdr: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Reserved, zero.
        pub reserved: u8,
    }

    /// Flow specification: a packet matches if its IPv6 fields, under `mask`, equal `val`.
    pub request IbUverbsFlowSpecIpv6 = ib_uverbs_flow_spec_ipv6 {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Values to match.
        pub val: IbUverbsFlowIpv6Filter,
        /// Mask of the bits to compare.
        pub mask: IbUverbsFlowIpv6Filter,
    }

    /// Flow specification: completions carry this tag.
    pub request IbUverbsFlowSpecActionTag = ib_uverbs_flow_spec_action_tag {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// The tag, 24 bits.
        pub tag_id: u32,
        /// Reserved, zero.
        pub reserved1: u32,
    }

    /// Flow specification: drop the packet.
    pub request IbUverbsFlowSpecActionDrop = ib_uverbs_flow_spec_action_drop {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
    }

    /// Flow specification: apply a flow action.
    pub request IbUverbsFlowSpecActionHandle = ib_uverbs_flow_spec_action_handle {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Handle of the flow action.
        pub handle: u32,
        /// Reserved, zero.
        pub reserved1: u32,
    }

    /// Flow specification: count the packet in a counters object.
    pub request IbUverbsFlowSpecActionCount = ib_uverbs_flow_spec_action_count {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Handle of the counters object.
        pub handle: u32,
        /// Reserved, zero.
        pub reserved1: u32,
    }

    /// Tunnel id to match in a flow specification.
    pub request IbUverbsFlowTunnelFilter = ib_uverbs_flow_tunnel_filter {
        /// Tunnel id, such as a VXLAN VNI.
        pub tunnel_id: Be32,
    }

    /// Flow specification: a packet matches if its tunnel fields, under `mask`, equal `val`.
    pub request IbUverbsFlowSpecTunnel = ib_uverbs_flow_spec_tunnel {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Values to match.
        pub val: IbUverbsFlowTunnelFilter,
        /// Mask of the bits to compare.
        pub mask: IbUverbsFlowTunnelFilter,
    }

    /// ESP fields to match in a flow specification.
    pub request IbUverbsFlowSpecEspFilter = ib_uverbs_flow_spec_esp_filter {
        /// Security parameters index.
        pub spi: u32,
        /// Sequence number.
        pub seq: u32,
    }

    /// Flow specification: a packet matches if its ESP fields, under `mask`, equal `val`.
    pub request IbUverbsFlowSpecEsp = ib_uverbs_flow_spec_esp {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Values to match.
        pub val: IbUverbsFlowSpecEspFilter,
        /// Mask of the bits to compare.
        pub mask: IbUverbsFlowSpecEspFilter,
    }

    /// GRE fields to match in a flow specification.
    pub request IbUverbsFlowGreFilter = ib_uverbs_flow_gre_filter {
        /// First 16 bits of the GRE header: flags and version.
        pub c_ks_res0_ver: Be16,
        /// Ethertype of the payload.
        pub protocol: Be16,
        /// GRE key.
        pub key: Be32,
    }

    /// Flow specification: a packet matches if its GRE fields, under `mask`, equal `val`.
    pub request IbUverbsFlowSpecGre = ib_uverbs_flow_spec_gre {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Values to match.
        pub val: IbUverbsFlowGreFilter,
        /// Mask of the bits to compare.
        pub mask: IbUverbsFlowGreFilter,
    }

    /// MPLS label to match in a flow specification.
    pub request IbUverbsFlowMplsFilter = ib_uverbs_flow_mpls_filter {
        /// A whole MPLS label stack entry.
        pub label: Be32,
    }

    /// Flow specification: a packet matches if its MPLS fields, under `mask`, equal `val`.
    pub request IbUverbsFlowSpecMpls = ib_uverbs_flow_spec_mpls {
        /// Type and size. In C, these are also members of this struct.
        pub hdr: IbUverbsFlowSpecHdr [r#type size reserved],
        /// Values to match.
        pub val: IbUverbsFlowMplsFilter,
        /// Mask of the bits to compare.
        pub mask: IbUverbsFlowMplsFilter,
    }

    /// Attributes of a flow rule; `num_of_specs` specifications follow.
    #[repr(align(8))]
    pub request IbUverbsFlowAttr = ib_uverbs_flow_attr {
        /// `ibv_flow_attr_type` value.
        pub r#type: u32,
        /// Size of the specifications that follow, in bytes.
        pub size: u16,
        /// Priority; 0 is the highest.
        pub priority: u16,
        /// Number of specifications that follow.
        pub num_of_specs: u8,
        /// Reserved, zero.
        pub reserved: [u8; 2],
        /// Port number, starting at 1.
        pub port: u8,
        /// `ibv_flow_flags` bits.
        pub flags: u32,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_CREATE_FLOW`].
    pub request IbUverbsCreateFlow = ib_uverbs_create_flow {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Handle of the queue pair.
        pub qp_handle: u32,
        /// Attributes of the rule.
        pub flow_attr: IbUverbsFlowAttr,
    }

    /// Reply to [`IB_USER_VERBS_EX_CMD_CREATE_FLOW`].
    pub struct IbUverbsCreateFlowResp = ib_uverbs_create_flow_resp {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Handle of the flow rule.
        pub flow_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_DESTROY_FLOW`].
    pub request IbUverbsDestroyFlow = ib_uverbs_destroy_flow {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Handle of the flow rule.
        pub flow_handle: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_CREATE_SRQ`].
    pub request IbUverbsCreateSrq = ib_uverbs_create_srq {
        /// User address of the reply buffer.
        pub response: u64,
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Capacity, in work requests.
        pub max_wr: u32,
        /// Maximum number of scatter/gather elements per work request.
        pub max_sge: u32,
        /// Limit: an event is raised when fewer than this number of receives remain.
        pub srq_limit: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_CREATE_XSRQ`]: a shared receive queue with a type.
    pub request IbUverbsCreateXsrq = ib_uverbs_create_xsrq {
        /// User address of the reply buffer.
        pub response: u64,
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Value of [`IbUverbsSrqType`](crate::ib_user_ioctl_verbs::IbUverbsSrqType).
        pub srq_type: u32,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Capacity, in work requests.
        pub max_wr: u32,
        /// Maximum number of scatter/gather elements per work request.
        pub max_sge: u32,
        /// Limit: an event is raised when fewer than this number of receives remain.
        pub srq_limit: u32,
        /// Maximum number of entries in the tag list.
        pub max_num_tags: u32,
        /// Handle of the XRC domain.
        pub xrcd_handle: u32,
        /// Handle of the completion queue.
        pub cq_handle: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_CREATE_SRQ`].
    pub struct IbUverbsCreateSrqResp = ib_uverbs_create_srq_resp {
        /// Handle of the shared receive queue.
        pub srq_handle: u32,
        /// Capacity, in work requests.
        pub max_wr: u32,
        /// Maximum number of scatter/gather elements per work request.
        pub max_sge: u32,
        /// Number of the shared receive queue.
        pub srqn: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_MODIFY_SRQ`].
    #[repr(align(8))]
    pub request IbUverbsModifySrq = ib_uverbs_modify_srq {
        /// Handle of the shared receive queue.
        pub srq_handle: u32,
        /// Mask of the attributes to change.
        pub attr_mask: u32,
        /// Capacity, in work requests.
        pub max_wr: u32,
        /// Limit: an event is raised when fewer than this number of receives remain.
        pub srq_limit: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_QUERY_SRQ`].
    pub request IbUverbsQuerySrq = ib_uverbs_query_srq {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the shared receive queue.
        pub srq_handle: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_QUERY_SRQ`].
    pub struct IbUverbsQuerySrqResp = ib_uverbs_query_srq_resp {
        /// Capacity, in work requests.
        pub max_wr: u32,
        /// Maximum number of scatter/gather elements per work request.
        pub max_sge: u32,
        /// Limit: an event is raised when fewer than this number of receives remain.
        pub srq_limit: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Input to [`IB_USER_VERBS_CMD_DESTROY_SRQ`].
    pub request IbUverbsDestroySrq = ib_uverbs_destroy_srq {
        /// User address of the reply buffer.
        pub response: u64,
        /// Handle of the shared receive queue.
        pub srq_handle: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_CMD_DESTROY_SRQ`].
    pub struct IbUverbsDestroySrqResp = ib_uverbs_destroy_srq_resp {
        /// Number of events that the kernel has delivered for the object. Handle all of them before
        /// freeing the object's memory.
        pub events_reported: u32,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_CREATE_WQ`].
    pub request IbUverbsExCreateWq = ib_uverbs_ex_create_wq {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Value of [`IbUverbsWqType`](crate::ib_user_ioctl_verbs::IbUverbsWqType).
        pub wq_type: u32,
        /// The caller's cookie. The kernel returns it with events and does not interpret it.
        pub user_handle: u64,
        /// Handle of the protection domain.
        pub pd_handle: u32,
        /// Handle of the completion queue.
        pub cq_handle: u32,
        /// Capacity, in work requests.
        pub max_wr: u32,
        /// Maximum number of scatter/gather elements per work request.
        pub max_sge: u32,
        /// Bits of [`IbUverbsWqFlags`](crate::ib_user_ioctl_verbs::IbUverbsWqFlags).
        pub create_flags: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Reply to [`IB_USER_VERBS_EX_CMD_CREATE_WQ`].
    pub struct IbUverbsExCreateWqResp = ib_uverbs_ex_create_wq_resp {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// Handle of the work queue.
        pub wq_handle: u32,
        /// Capacity, in work requests.
        pub max_wr: u32,
        /// Maximum number of scatter/gather elements per work request.
        pub max_sge: u32,
        /// Work queue number.
        pub wqn: u32,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_DESTROY_WQ`].
    pub request IbUverbsExDestroyWq = ib_uverbs_ex_destroy_wq {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Handle of the work queue.
        pub wq_handle: u32,
    }

    /// Reply to [`IB_USER_VERBS_EX_CMD_DESTROY_WQ`].
    pub struct IbUverbsExDestroyWqResp = ib_uverbs_ex_destroy_wq_resp {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// Number of events that the kernel has delivered for the object. Handle all of them before
        /// freeing the object's memory.
        pub events_reported: u32,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_MODIFY_WQ`].
    pub request IbUverbsExModifyWq = ib_uverbs_ex_modify_wq {
        /// Mask of the attributes to change.
        pub attr_mask: u32,
        /// Handle of the work queue.
        pub wq_handle: u32,
        /// Work queue state, an `ibv_wq_state` value.
        pub wq_state: u32,
        /// Current state, as assumed by the caller.
        pub curr_wq_state: u32,
        /// Bits of [`IbUverbsWqFlags`](crate::ib_user_ioctl_verbs::IbUverbsWqFlags).
        pub flags: u32,
        /// Mask of the flags to change.
        pub flags_mask: u32,
    }

    /// log2 of the maximum size of a receive queue indirection table.
    pub consts define: u32 {
        IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE = 0x0d,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL`]; `1 << log_ind_tbl_size` work queue
    /// handles follow.
    pub request IbUverbsExCreateRwqIndTable = ib_uverbs_ex_create_rwq_ind_table {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// log2 of the number of table entries.
        pub log_ind_tbl_size: u32,
    }

    /// Reply to [`IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL`].
    pub struct IbUverbsExCreateRwqIndTableResp = ib_uverbs_ex_create_rwq_ind_table_resp {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Number of reply bytes written by the kernel.
        pub response_length: u32,
        /// Handle of the indirection table.
        pub ind_tbl_handle: u32,
        /// Indirection table number.
        pub ind_tbl_num: u32,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL`].
    pub request IbUverbsExDestroyRwqIndTable = ib_uverbs_ex_destroy_rwq_ind_table {
        /// Bit mask of the optional fields present in this struct.
        pub comp_mask: u32,
        /// Handle of the indirection table.
        pub ind_tbl_handle: u32,
    }

    /// Completion moderation: an event is raised after this many completions or microseconds.
    pub request IbUverbsCqModeration = ib_uverbs_cq_moderation {
        /// Number of completions per event.
        pub cq_count: u16,
        /// Maximum delay of an event, in microseconds.
        pub cq_period: u16,
    }

    /// Input to [`IB_USER_VERBS_EX_CMD_MODIFY_CQ`].
    pub request IbUverbsExModifyCq = ib_uverbs_ex_modify_cq {
        /// Handle of the completion queue.
        pub cq_handle: u32,
        /// Mask of the attributes to change.
        pub attr_mask: u32,
        /// The new moderation parameters.
        pub attr: IbUverbsCqModeration,
        /// Reserved, zero.
        pub reserved: u32,
    }

    /// Size of a device name in bytes, including the final NUL.
    pub consts define: usize {
        IB_DEVICE_NAME_MAX = 64,
    }

    /// Device capabilities. [`IbUverbsQueryDeviceResp::device_cap_flags`] holds the low 32 bits and
    /// [`IbUverbsExQueryDeviceResp::device_cap_flags_ex`] all of them. Old kernels may set other
    /// bits, which have no meaning.
    pub flags IbUverbsDeviceCapFlags = ib_uverbs_device_cap_flags: u64 {
        IB_UVERBS_DEVICE_RESIZE_MAX_WR = 1 << 0,
        IB_UVERBS_DEVICE_BAD_PKEY_CNTR = 1 << 1,
        IB_UVERBS_DEVICE_BAD_QKEY_CNTR = 1 << 2,
        IB_UVERBS_DEVICE_RAW_MULTI = 1 << 3,
        IB_UVERBS_DEVICE_AUTO_PATH_MIG = 1 << 4,
        IB_UVERBS_DEVICE_CHANGE_PHY_PORT = 1 << 5,
        IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        IB_UVERBS_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
        IB_UVERBS_DEVICE_SHUTDOWN_PORT = 1 << 8,
        IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
        IB_UVERBS_DEVICE_SYS_IMAGE_GUID = 1 << 11,
        IB_UVERBS_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        IB_UVERBS_DEVICE_SRQ_RESIZE = 1 << 13,
        IB_UVERBS_DEVICE_N_NOTIFY_CQ = 1 << 14,
        IB_UVERBS_DEVICE_MEM_WINDOW = 1 << 17,
        IB_UVERBS_DEVICE_UD_IP_CSUM = 1 << 18,
        IB_UVERBS_DEVICE_XRC = 1 << 20,
        IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        IB_UVERBS_DEVICE_RC_IP_CSUM = 1 << 25,
        /// Deprecated; use [`IbUverbsRawPacketCaps::IB_UVERBS_RAW_PACKET_CAP_IP_CSUM`].
        IB_UVERBS_DEVICE_RAW_IP_CSUM = 1 << 26,
        IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
        /// Deprecated; use [`IbUverbsRawPacketCaps::IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS`].
        IB_UVERBS_DEVICE_RAW_SCATTER_FCS = 1 << 34,
        IB_UVERBS_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
        IB_UVERBS_DEVICE_FLUSH_GLOBAL = 1 << 38,
        IB_UVERBS_DEVICE_FLUSH_PERSISTENT = 1 << 39,
        IB_UVERBS_DEVICE_ATOMIC_WRITE = 1 << 40,
        /// The system is a confidential guest whose DMA goes through bounce buffers.
        IB_UVERBS_DEVICE_CC_DMA_BOUNCE = 1 << 41,
    }

    /// Raw packet offloads, in [`IbUverbsExQueryDeviceResp::raw_packet_caps`].
    pub flags IbUverbsRawPacketCaps = ib_uverbs_raw_packet_caps: u32 {
        IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING = 1 << 0,
        IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS = 1 << 1,
        IB_UVERBS_RAW_PACKET_CAP_IP_CSUM = 1 << 2,
        IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP = 1 << 3,
    }

    /// A page that the driver updates. With it, device cycles are converted into wall clock
    /// nanoseconds.
    ///
    /// A sequence lock protects the page: read `sign`, the other fields, then `sign` again. Retry
    /// if `sign` has changed or is odd.
    pub struct IbUverbsClockInfo = ib_uverbs_clock_info {
        /// Sequence number; odd while the kernel is updating the page.
        pub sign: u32,
        /// Reserved, zero.
        pub resv: u32,
        /// Nanoseconds at the last update.
        pub nsec: u64,
        /// Device cycles at the last update.
        pub cycles: u64,
        /// Fraction of a nanosecond at the last update, in units of `2^-shift`.
        pub frac: u64,
        /// Nanoseconds per cycle, in units of `2^-shift`.
        pub mult: u32,
        /// Exponent of the unit `2^-shift`, in which `mult` and `frac` are expressed.
        pub shift: u32,
        /// Valid bits of the cycle counter.
        pub mask: u64,
        /// Nanoseconds after which the cycle counter may have wrapped.
        pub overflow_period: u64,
    }
}
