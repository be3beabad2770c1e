//! `include/uapi/rdma/mlx5_user_ioctl_verbs.h`: values and structs carried by mlx5's own ioctl
//! attributes.

use crate::macros::header;

header! {
    "rdma/mlx5_user_ioctl_verbs.h";

    /// Flags of an ESP flow action, `MLX5_IB_ATTR_CREATE_FLOW_ACTION_FLAGS`.
    pub flags Mlx5IbUapiFlowActionFlags = mlx5_ib_uapi_flow_action_flags: u32 {
        MLX5_IB_UAPI_FLOW_ACTION_FLAGS_REQUIRE_METADATA = 1 << 0,
    }

    /// Flow table type of a rule, anchor or action.
    pub enum Mlx5IbUapiFlowTableType = mlx5_ib_uapi_flow_table_type: u8 {
        MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX = 0,
        MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_TX = 1,
        MLX5_IB_UAPI_FLOW_TABLE_TYPE_FDB = 2,
        MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_RX = 3,
        MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TX = 4,
        MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_RX = 5,
        MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_TX = 6,
    }

    /// Header change made by a packet reformat action.
    pub enum Mlx5IbUapiFlowActionPacketReformatType = mlx5_ib_uapi_flow_action_packet_reformat_type: u8 {
        MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TUNNEL_TO_L2 = 0,
        MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L2_TUNNEL = 1,
        MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L3_TUNNEL_TO_L2 = 2,
        MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L3_TUNNEL = 3,
    }

    /// Flags of `MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS`.
    pub flags Mlx5IbUapiRegDmabufFlags = mlx5_ib_uapi_reg_dmabuf_flags: u32 {
        MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT = 1 << 0,
    }

    /// Completion of an asynchronous DEVX command; the command's output follows.
    pub struct Mlx5IbUapiDevxAsyncCmdHdr = mlx5_ib_uapi_devx_async_cmd_hdr {
        /// The caller's cookie, returned in the completion.
        pub wr_id: u64,
    }

    /// Kind of device memory, `MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE`.
    pub enum Mlx5IbUapiDmType = mlx5_ib_uapi_dm_type: u32 {
        MLX5_IB_UAPI_DM_TYPE_MEMIC = 0,
        MLX5_IB_UAPI_DM_TYPE_STEERING_SW_ICM = 1,
        MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_SW_ICM = 2,
        MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_PATTERN_SW_ICM = 3,
        MLX5_IB_UAPI_DM_TYPE_ENCAP_SW_ICM = 4,
    }

    /// Flags of a DEVX event channel.
    pub flags Mlx5IbUapiDevxCreateEventChannelFlags = mlx5_ib_uapi_devx_create_event_channel_flags: u32 {
        MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA = 1 << 0,
    }

    /// A DEVX event; the EQE follows.
    pub struct Mlx5IbUapiDevxAsyncEventHdr = mlx5_ib_uapi_devx_async_event_hdr {
        /// The caller's cookie for the subscription.
        pub cookie: u64,
    }

    /// Flags of a packet pacing object.
    pub flags Mlx5IbUapiPpAllocFlags = mlx5_ib_uapi_pp_alloc_flags: u32 {
        MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX = 1 << 0,
    }

    /// Kind of doorbell page, `MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE`.
    pub enum Mlx5IbUapiUarAllocType = mlx5_ib_uapi_uar_alloc_type: u32 {
        MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF = 0,
        MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC = 1,
    }

    /// Valid fields of [`Mlx5IbUapiQueryPort`], one bit per field.
    pub flags Mlx5IbUapiQueryPortFlags = mlx5_ib_uapi_query_port_flags: u64 {
        MLX5_IB_UAPI_QUERY_PORT_VPORT = 1 << 0,
        MLX5_IB_UAPI_QUERY_PORT_VPORT_VHCA_ID = 1 << 1,
        MLX5_IB_UAPI_QUERY_PORT_VPORT_STEERING_ICM_RX = 1 << 2,
        MLX5_IB_UAPI_QUERY_PORT_VPORT_STEERING_ICM_TX = 1 << 3,
        MLX5_IB_UAPI_QUERY_PORT_VPORT_REG_C0 = 1 << 4,
        MLX5_IB_UAPI_QUERY_PORT_ESW_OWNER_VHCA_ID = 1 << 5,
    }

    /// Flags of a virtio doorbell (VAR) allocation.
    pub flags Mlx5IbUapiVarAllocFlags = mlx5_ib_uapi_var_alloc_flags: u32 {
        MLX5_IB_UAPI_VAR_ALLOC_FLAG_TLP = 1 << 0,
    }

    /// A metadata register's value and mask.
    pub struct Mlx5IbUapiReg = mlx5_ib_uapi_reg {
        /// Register value.
        pub value: u32,
        /// Mask of the bits to compare.
        pub mask: u32,
    }

    /// Reply to `MLX5_IB_METHOD_QUERY_PORT`.
    pub struct Mlx5IbUapiQueryPort = mlx5_ib_uapi_query_port {
        /// Bits of [`Mlx5IbUapiQueryPortFlags`].
        pub flags: u64,
        /// Vport number.
        pub vport: u16,
        /// Id of the device function behind the vport.
        pub vport_vhca_id: u16,
        /// Id of the device function that owns the switch.
        pub esw_owner_vhca_id: u16,
        /// Reserved, zero.
        pub rsvd0: u16,
        /// Device address where steering of received packets begins.
        pub vport_steering_icm_rx: u64,
        /// Device address where steering of sent packets begins.
        pub vport_steering_icm_tx: u64,
        /// Value and mask of metadata register C0 that this port's flow rules match.
        pub reg_c0: Mlx5IbUapiReg,
    }
}
