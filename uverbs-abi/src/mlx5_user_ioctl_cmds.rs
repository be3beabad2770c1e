//! `include/uapi/rdma/mlx5_user_ioctl_cmds.h`: objects, methods and attributes added by mlx5 to the
//! uverbs ioctl.
//!
//! All ids lie in the driver namespace, from `0x1000` on. Numbering restarts for each object and
//! method.

use crate::ib_user_ioctl_cmds::UVERBS_ID_DRIVER_NS_WITH_UHW;
use crate::macros::header;

header! {
    "rdma/mlx5_user_ioctl_cmds.h";

    /// Attribute added by mlx5 to `UVERBS_METHOD_FLOW_ACTION_ESP_CREATE`.
    pub consts mlx5_ib_create_flow_action_attrs: u16 {
        MLX5_IB_ATTR_CREATE_FLOW_ACTION_FLAGS = 0x1000,
    }

    /// Method added by mlx5 to `UVERBS_OBJECT_DM`.
    pub consts mlx5_ib_dm_methods: u16 {
        MLX5_IB_METHOD_DM_MAP_OP_ADDR = 0x1000,
        MLX5_IB_METHOD_DM_QUERY = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_DM_MAP_OP_ADDR`].
    pub consts mlx5_ib_dm_map_op_addr_attrs: u16 {
        MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE = 0x1000,
        MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_OP = 0x1001,
        MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET = 0x1002,
        MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX = 0x1003,
    }

    /// Attribute of [`MLX5_IB_METHOD_DM_QUERY`].
    pub consts mlx5_ib_query_dm_attrs: u16 {
        MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE = 0x1000,
        MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET = 0x1001,
        MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX = 0x1002,
        MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH = 0x1003,
    }

    /// Attribute added by mlx5 to `UVERBS_METHOD_DM_ALLOC`.
    pub consts mlx5_ib_alloc_dm_attrs: u16 {
        MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET = 0x1000,
        MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX = 0x1001,
        MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE = 0x1002,
    }

    /// Method of [`MLX5_IB_OBJECT_DEVX`].
    pub consts mlx5_ib_devx_methods: u16 {
        MLX5_IB_METHOD_DEVX_OTHER = 0x1000,
        MLX5_IB_METHOD_DEVX_QUERY_UAR = 0x1001,
        MLX5_IB_METHOD_DEVX_QUERY_EQN = 0x1002,
        MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT = 0x1003,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_OTHER`].
    pub consts mlx5_ib_devx_other_attrs: u16 {
        MLX5_IB_ATTR_DEVX_OTHER_CMD_IN = 0x1000,
        MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_OBJ_CREATE`].
    pub consts mlx5_ib_devx_obj_create_attrs: u16 {
        MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE = 0x1000,
        MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN = 0x1001,
        MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT = 0x1002,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_QUERY_UAR`].
    pub consts mlx5_ib_devx_query_uar_attrs: u16 {
        MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX = 0x1000,
        MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_OBJ_DESTROY`].
    pub consts mlx5_ib_devx_obj_destroy_attrs: u16 {
        MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE = 0x1000,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_OBJ_MODIFY`].
    pub consts mlx5_ib_devx_obj_modify_attrs: u16 {
        MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE = 0x1000,
        MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN = 0x1001,
        MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT = 0x1002,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_OBJ_QUERY`].
    pub consts mlx5_ib_devx_obj_query_attrs: u16 {
        MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE = 0x1000,
        MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN = 0x1001,
        MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT = 0x1002,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY`].
    pub consts mlx5_ib_devx_obj_query_async_attrs: u16 {
        MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE = 0x1000,
        MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN = 0x1001,
        MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD = 0x1002,
        MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID = 0x1003,
        MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN = 0x1004,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT`].
    pub consts mlx5_ib_devx_subscribe_event_attrs: u16 {
        MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE = 0x1000,
        MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE = 0x1001,
        MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST = 0x1002,
        MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM = 0x1003,
        MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE = 0x1004,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_QUERY_EQN`].
    pub consts mlx5_ib_devx_query_eqn_attrs: u16 {
        MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC = 0x1000,
        MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN = 0x1001,
    }

    /// Method of [`MLX5_IB_OBJECT_DEVX_OBJ`].
    pub consts mlx5_ib_devx_obj_methods: u16 {
        MLX5_IB_METHOD_DEVX_OBJ_CREATE = 0x1000,
        MLX5_IB_METHOD_DEVX_OBJ_DESTROY = 0x1001,
        MLX5_IB_METHOD_DEVX_OBJ_MODIFY = 0x1002,
        MLX5_IB_METHOD_DEVX_OBJ_QUERY = 0x1003,
        MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY = 0x1004,
    }

    /// Attribute of [`MLX5_IB_METHOD_VAR_OBJ_ALLOC`].
    pub consts mlx5_ib_var_alloc_attrs: u16 {
        MLX5_IB_ATTR_VAR_OBJ_ALLOC_HANDLE = 0x1000,
        MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_OFFSET = 0x1001,
        MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_LENGTH = 0x1002,
        MLX5_IB_ATTR_VAR_OBJ_ALLOC_PAGE_ID = 0x1003,
        MLX5_IB_ATTR_VAR_OBJ_ALLOC_FLAGS = 0x1004,
    }

    /// Attribute of [`MLX5_IB_METHOD_VAR_OBJ_DESTROY`].
    pub consts mlx5_ib_var_obj_destroy_attrs: u16 {
        MLX5_IB_ATTR_VAR_OBJ_DESTROY_HANDLE = 0x1000,
    }

    /// Method of [`MLX5_IB_OBJECT_VAR`].
    pub consts mlx5_ib_var_obj_methods: u16 {
        MLX5_IB_METHOD_VAR_OBJ_ALLOC = 0x1000,
        MLX5_IB_METHOD_VAR_OBJ_DESTROY = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_UAR_OBJ_ALLOC`].
    pub consts mlx5_ib_uar_alloc_attrs: u16 {
        MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE = 0x1000,
        MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE = 0x1001,
        MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET = 0x1002,
        MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH = 0x1003,
        MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID = 0x1004,
    }

    /// Attribute of [`MLX5_IB_METHOD_UAR_OBJ_DESTROY`].
    pub consts mlx5_ib_uar_obj_destroy_attrs: u16 {
        MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE = 0x1000,
    }

    /// Method of [`MLX5_IB_OBJECT_UAR`].
    pub consts mlx5_ib_uar_obj_methods: u16 {
        MLX5_IB_METHOD_UAR_OBJ_ALLOC = 0x1000,
        MLX5_IB_METHOD_UAR_OBJ_DESTROY = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_UMEM_REG`].
    pub consts mlx5_ib_devx_umem_reg_attrs: u16 {
        MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE = 0x1000,
        MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR = 0x1001,
        MLX5_IB_ATTR_DEVX_UMEM_REG_LEN = 0x1002,
        MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS = 0x1003,
        MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID = 0x1004,
        MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP = 0x1005,
        MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD = 0x1006,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_UMEM_DEREG`].
    pub consts mlx5_ib_devx_umem_dereg_attrs: u16 {
        MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE = 0x1000,
    }

    /// Method of [`MLX5_IB_OBJECT_PP`].
    pub consts mlx5_ib_pp_obj_methods: u16 {
        MLX5_IB_METHOD_PP_OBJ_ALLOC = 0x1000,
        MLX5_IB_METHOD_PP_OBJ_DESTROY = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_PP_OBJ_ALLOC`].
    pub consts mlx5_ib_pp_alloc_attrs: u16 {
        MLX5_IB_ATTR_PP_OBJ_ALLOC_HANDLE = 0x1000,
        MLX5_IB_ATTR_PP_OBJ_ALLOC_CTX = 0x1001,
        MLX5_IB_ATTR_PP_OBJ_ALLOC_FLAGS = 0x1002,
        MLX5_IB_ATTR_PP_OBJ_ALLOC_INDEX = 0x1003,
    }

    /// Attribute of [`MLX5_IB_METHOD_PP_OBJ_DESTROY`].
    pub consts mlx5_ib_pp_obj_destroy_attrs: u16 {
        MLX5_IB_ATTR_PP_OBJ_DESTROY_HANDLE = 0x1000,
    }

    /// Method of [`MLX5_IB_OBJECT_DEVX_UMEM`].
    pub consts mlx5_ib_devx_umem_methods: u16 {
        MLX5_IB_METHOD_DEVX_UMEM_REG = 0x1000,
        MLX5_IB_METHOD_DEVX_UMEM_DEREG = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC`].
    pub consts mlx5_ib_devx_async_cmd_fd_alloc_attrs: u16 {
        MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE = 0x1000,
    }

    /// Attribute of [`MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC`].
    pub consts mlx5_ib_devx_async_event_fd_alloc_attrs: u16 {
        MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE = 0x1000,
        MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS = 0x1001,
    }

    /// Method of [`MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD`].
    pub consts mlx5_ib_devx_async_cmd_fd_methods: u16 {
        MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC = 0x1000,
    }

    /// Method of [`MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD`].
    pub consts mlx5_ib_devx_async_event_fd_methods: u16 {
        MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC = 0x1000,
    }

    /// Object id added by mlx5.
    pub consts mlx5_ib_objects: u16 {
        MLX5_IB_OBJECT_DEVX = 0x1000,
        MLX5_IB_OBJECT_DEVX_OBJ = 0x1001,
        MLX5_IB_OBJECT_DEVX_UMEM = 0x1002,
        MLX5_IB_OBJECT_FLOW_MATCHER = 0x1003,
        MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD = 0x1004,
        MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD = 0x1005,
        MLX5_IB_OBJECT_VAR = 0x1006,
        MLX5_IB_OBJECT_PP = 0x1007,
        MLX5_IB_OBJECT_UAR = 0x1008,
        MLX5_IB_OBJECT_STEERING_ANCHOR = 0x1009,
    }

    /// Attribute of [`MLX5_IB_METHOD_FLOW_MATCHER_CREATE`].
    pub consts mlx5_ib_flow_matcher_create_attrs: u16 {
        MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE = 0x1000,
        MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK = 0x1001,
        MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE = 0x1002,
        MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA = 0x1003,
        MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS = 0x1004,
        MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE = 0x1005,
        MLX5_IB_ATTR_FLOW_MATCHER_IB_PORT = 0x1006,
    }

    /// Attribute of [`MLX5_IB_METHOD_FLOW_MATCHER_DESTROY`].
    pub consts mlx5_ib_flow_matcher_destroy_attrs: u16 {
        MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE = 0x1000,
    }

    /// Method of [`MLX5_IB_OBJECT_FLOW_MATCHER`].
    pub consts mlx5_ib_flow_matcher_methods: u16 {
        MLX5_IB_METHOD_FLOW_MATCHER_CREATE = 0x1000,
        MLX5_IB_METHOD_FLOW_MATCHER_DESTROY = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_STEERING_ANCHOR_CREATE`].
    pub consts mlx5_ib_flow_steering_anchor_create_attrs: u16 {
        MLX5_IB_ATTR_STEERING_ANCHOR_CREATE_HANDLE = 0x1000,
        MLX5_IB_ATTR_STEERING_ANCHOR_FT_TYPE = 0x1001,
        MLX5_IB_ATTR_STEERING_ANCHOR_PRIORITY = 0x1002,
        MLX5_IB_ATTR_STEERING_ANCHOR_FT_ID = 0x1003,
    }

    /// Attribute of [`MLX5_IB_METHOD_STEERING_ANCHOR_DESTROY`].
    pub consts mlx5_ib_flow_steering_anchor_destroy_attrs: u16 {
        MLX5_IB_ATTR_STEERING_ANCHOR_DESTROY_HANDLE = 0x1000,
    }

    /// Method of [`MLX5_IB_OBJECT_STEERING_ANCHOR`].
    pub consts mlx5_ib_steering_anchor_methods: u16 {
        MLX5_IB_METHOD_STEERING_ANCHOR_CREATE = 0x1000,
        MLX5_IB_METHOD_STEERING_ANCHOR_DESTROY = 0x1001,
    }

    /// Attribute added by mlx5 to `UVERBS_METHOD_QUERY_CONTEXT`.
    pub consts mlx5_ib_device_query_context_attrs: u16 {
        MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX = 0x1000,
    }

    /// Attribute added by mlx5 to `UVERBS_METHOD_CQ_CREATE`.
    pub consts mlx5_ib_create_cq_attrs: u16 {
        MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX = UVERBS_ID_DRIVER_NS_WITH_UHW,
        MLX5_IB_ATTR_CREATE_CQ_DBR_BUF_UMEM = 0x1003,
    }

    /// Attribute added by mlx5 to `UVERBS_METHOD_QP_CREATE`.
    pub consts mlx5_ib_create_qp_attrs: u16 {
        MLX5_IB_ATTR_CREATE_QP_DBR_BUF_UMEM = UVERBS_ID_DRIVER_NS_WITH_UHW,
    }

    /// Attribute added by mlx5 to `UVERBS_METHOD_SRQ_CREATE`.
    pub consts mlx5_ib_create_srq_attrs: u16 {
        MLX5_IB_ATTR_CREATE_SRQ_DBR_BUF_UMEM = UVERBS_ID_DRIVER_NS_WITH_UHW,
    }

    /// Attribute added by mlx5 to `UVERBS_METHOD_REG_DMABUF_MR`.
    pub consts mlx5_ib_reg_dmabuf_mr_attrs: u16 {
        MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS = 0x1000,
    }

    /// Size of a flow match parameter, in 32-bit words.
    pub consts define: usize {
        MLX5_IB_DW_MATCH_PARAM = 0xA0,
    }

    /// Value or mask of a flow match, in the PRM's `fte_match_param` layout.
    pub struct Mlx5IbMatchParams = mlx5_ib_match_params {
        /// The 640 bytes, in the format of the device.
        pub match_params: [u32; MLX5_IB_DW_MATCH_PARAM],
    }

    /// Kind of flow rule, `MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE`.
    pub enum Mlx5IbFlowType = mlx5_ib_flow_type: u32 {
        MLX5_IB_FLOW_TYPE_NORMAL = 0,
        MLX5_IB_FLOW_TYPE_SNIFFER = 1,
        MLX5_IB_FLOW_TYPE_ALL_DEFAULT = 2,
        MLX5_IB_FLOW_TYPE_MC_DEFAULT = 3,
    }

    /// Flags of `MLX5_IB_ATTR_CREATE_FLOW_FLAGS`.
    pub flags Mlx5IbCreateFlowFlags = mlx5_ib_create_flow_flags: u32 {
        MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS = 1 << 0,
        MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP = 1 << 1,
    }

    /// Attribute of [`MLX5_IB_METHOD_CREATE_FLOW`].
    pub consts mlx5_ib_create_flow_attrs: u16 {
        MLX5_IB_ATTR_CREATE_FLOW_HANDLE = 0x1000,
        MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE = 0x1001,
        MLX5_IB_ATTR_CREATE_FLOW_DEST_QP = 0x1002,
        MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX = 0x1003,
        MLX5_IB_ATTR_CREATE_FLOW_MATCHER = 0x1004,
        MLX5_IB_ATTR_CREATE_FLOW_ARR_FLOW_ACTIONS = 0x1005,
        MLX5_IB_ATTR_CREATE_FLOW_TAG = 0x1006,
        MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX = 0x1007,
        MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX_OFFSET = 0x1008,
        MLX5_IB_ATTR_CREATE_FLOW_FLAGS = 0x1009,
    }

    /// Attribute of [`MLX5_IB_METHOD_DESTROY_FLOW`].
    pub consts mlx5_ib_destroy_flow_attrs: u16 {
        MLX5_IB_ATTR_DESTROY_FLOW_HANDLE = 0x1000,
    }

    /// Method added by mlx5 to `UVERBS_OBJECT_FLOW`.
    pub consts mlx5_ib_flow_methods: u16 {
        MLX5_IB_METHOD_CREATE_FLOW = 0x1000,
        MLX5_IB_METHOD_DESTROY_FLOW = 0x1001,
    }

    /// Method added by mlx5 to `UVERBS_OBJECT_FLOW_ACTION`.
    pub consts mlx5_ib_flow_action_methods: u16 {
        MLX5_IB_METHOD_FLOW_ACTION_CREATE_MODIFY_HEADER = 0x1000,
        MLX5_IB_METHOD_FLOW_ACTION_CREATE_PACKET_REFORMAT = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_FLOW_ACTION_CREATE_MODIFY_HEADER`].
    pub consts mlx5_ib_create_flow_action_create_modify_header_attrs: u16 {
        MLX5_IB_ATTR_CREATE_MODIFY_HEADER_HANDLE = 0x1000,
        MLX5_IB_ATTR_CREATE_MODIFY_HEADER_ACTIONS_PRM = 0x1001,
        MLX5_IB_ATTR_CREATE_MODIFY_HEADER_FT_TYPE = 0x1002,
    }

    /// Attribute of [`MLX5_IB_METHOD_FLOW_ACTION_CREATE_PACKET_REFORMAT`].
    pub consts mlx5_ib_create_flow_action_create_packet_reformat_attrs: u16 {
        MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_HANDLE = 0x1000,
        MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_TYPE = 0x1001,
        MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_FT_TYPE = 0x1002,
        MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_DATA_BUF = 0x1003,
    }

    /// Attribute of [`MLX5_IB_METHOD_PD_QUERY`].
    pub consts mlx5_ib_query_pd_attrs: u16 {
        MLX5_IB_ATTR_QUERY_PD_HANDLE = 0x1000,
        MLX5_IB_ATTR_QUERY_PD_RESP_PDN = 0x1001,
    }

    /// Method added by mlx5 to `UVERBS_OBJECT_PD`.
    pub consts mlx5_ib_pd_methods: u16 {
        MLX5_IB_METHOD_PD_QUERY = 0x1000,
    }

    /// Method added by mlx5 to `UVERBS_OBJECT_DEVICE`.
    pub consts mlx5_ib_device_methods: u16 {
        MLX5_IB_METHOD_QUERY_PORT = 0x1000,
        MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_QUERY_PORT`].
    pub consts mlx5_ib_query_port_attrs: u16 {
        MLX5_IB_ATTR_QUERY_PORT_PORT_NUM = 0x1000,
        MLX5_IB_ATTR_QUERY_PORT = 0x1001,
    }

    /// Attribute of [`MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH`].
    pub consts mlx5_ib_get_data_direct_sysfs_path_attrs: u16 {
        MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH = 0x1000,
    }
}
