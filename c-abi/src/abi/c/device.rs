//! A device, its capabilities, and fork support.

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::ibv_context;
use super::macros::c_types;

c_types! {
    /// The type of an RDMA node.
    pub enum ibv_node_type: c_int {
        IBV_NODE_UNKNOWN = -1,
        IBV_NODE_CA = 1,
        IBV_NODE_SWITCH = 2,
        IBV_NODE_ROUTER = 3,
        IBV_NODE_RNIC = 4,
        IBV_NODE_USNIC = 5,
        IBV_NODE_USNIC_UDP = 6,
        IBV_NODE_UNSPECIFIED = 7,
    }

    /// The transport of a device.
    pub enum ibv_transport_type: c_int {
        IBV_TRANSPORT_UNKNOWN = -1,
        IBV_TRANSPORT_IB = 0,
        IBV_TRANSPORT_IWARP = 1,
        IBV_TRANSPORT_USNIC = 2,
        IBV_TRANSPORT_USNIC_UDP = 3,
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }

    /// The capabilities in `ibv_device_attr.device_cap_flags`; the 64-bit constants below occur
    /// only in `ibv_device_attr_ex.device_cap_flags_ex`.
    pub enum ibv_device_cap_flags: c_uint {
        IBV_DEVICE_RESIZE_MAX_WR = 1,
        IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
        IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
        IBV_DEVICE_RAW_MULTI = 1 << 3,
        IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
        IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
        IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
        IBV_DEVICE_INIT_TYPE = 1 << 9,
        IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
        IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        IBV_DEVICE_SRQ_RESIZE = 1 << 13,
        IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        IBV_DEVICE_UD_IP_CSUM = 1 << 18,
        IBV_DEVICE_XRC = 1 << 20,
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        IBV_DEVICE_RC_IP_CSUM = 1 << 25,
        IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
        IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
    }

    pub consts define: u64 {
        IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34,
        IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
        IBV_DEVICE_CC_DMA_BOUNCE = 1 << 41,
    }

    /// The state of fork support (`ibv_is_fork_initialized(3)`).
    pub enum ibv_fork_status: c_uint {
        IBV_FORK_DISABLED = 0,
        IBV_FORK_ENABLED = 1,
        IBV_FORK_UNNEEDED = 2,
    }

    /// Two slots at the start of an [`ibv_device`], which programs do not use.
    pub struct _ibv_device_ops {
        _dummy1: Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut ibv_context>,
        _dummy2: Option<unsafe extern "C" fn(context: *mut ibv_context)>,
    }

    pub consts anonymous: usize {
        IBV_SYSFS_NAME_MAX = 64,
        IBV_SYSFS_PATH_MAX = 256,
    }

    /// A device. Programs identify it by its address.
    pub struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        /// The name of the kernel's RDMA device, such as `mlx5_0`.
        name: [c_char; IBV_SYSFS_NAME_MAX],
        /// The name of the uverbs device, such as `uverbs0`.
        dev_name: [c_char; IBV_SYSFS_NAME_MAX],
        /// The path of the `infiniband_verbs` class device in sysfs.
        dev_path: [c_char; IBV_SYSFS_PATH_MAX],
        /// The path of the `infiniband` class device in sysfs.
        ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
    }
}

/// The value of `ibv_context.abi_compat` in a context inside a `verbs_context`
/// (`__VERBS_ABI_IS_EXTENDED` in verbs.h).
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
