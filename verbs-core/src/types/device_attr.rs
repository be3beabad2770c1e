//! [`DeviceAttr`] and [`DeviceAttrEx`]: the capabilities and limits of a device.

use super::flags::bitflags;
use super::{Guid, QpType, open_enum};

open_enum! {
    /// The scope of an atomic operation's atomicity.
    #[doc(alias = "ibv_atomic_cap")]
    pub enum AtomicCap(u32) {
        /// Atomics are not supported.
        #[doc(alias = "IBV_ATOMIC_NONE")]
        NONE = 0, "ATOMIC_NONE";
        /// Operations are atomic among the queue pairs of one device.
        #[doc(alias = "IBV_ATOMIC_HCA")]
        HCA = 1, "ATOMIC_HCA";
        /// Operations are atomic with respect to the processor as well.
        #[doc(alias = "IBV_ATOMIC_GLOB")]
        GLOB = 2, "ATOMIC_GLOB";
    }
}

bitflags! {
    /// The capabilities of a device (`device_cap_flags`). Only the extended query returns the upper
    /// 32 bits.
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct DeviceCapFlags: u64 {
        /// `IBV_DEVICE_RESIZE_MAX_WR`.
        #[doc(alias = "IBV_DEVICE_RESIZE_MAX_WR")]
        const RESIZE_MAX_WR = 1;
        /// `IBV_DEVICE_BAD_PKEY_CNTR`.
        #[doc(alias = "IBV_DEVICE_BAD_PKEY_CNTR")]
        const BAD_PKEY_CNTR = 1 << 1;
        /// `IBV_DEVICE_BAD_QKEY_CNTR`.
        #[doc(alias = "IBV_DEVICE_BAD_QKEY_CNTR")]
        const BAD_QKEY_CNTR = 1 << 2;
        /// `IBV_DEVICE_RAW_MULTI`.
        #[doc(alias = "IBV_DEVICE_RAW_MULTI")]
        const RAW_MULTI = 1 << 3;
        /// `IBV_DEVICE_AUTO_PATH_MIG`.
        #[doc(alias = "IBV_DEVICE_AUTO_PATH_MIG")]
        const AUTO_PATH_MIG = 1 << 4;
        /// `IBV_DEVICE_CHANGE_PHY_PORT`.
        #[doc(alias = "IBV_DEVICE_CHANGE_PHY_PORT")]
        const CHANGE_PHY_PORT = 1 << 5;
        /// `IBV_DEVICE_UD_AV_PORT_ENFORCE`.
        #[doc(alias = "IBV_DEVICE_UD_AV_PORT_ENFORCE")]
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// `IBV_DEVICE_CURR_QP_STATE_MOD`.
        #[doc(alias = "IBV_DEVICE_CURR_QP_STATE_MOD")]
        const CURR_QP_STATE_MOD = 1 << 7;
        /// `IBV_DEVICE_SHUTDOWN_PORT`.
        #[doc(alias = "IBV_DEVICE_SHUTDOWN_PORT")]
        const SHUTDOWN_PORT = 1 << 8;
        /// `IBV_DEVICE_INIT_TYPE`.
        #[doc(alias = "IBV_DEVICE_INIT_TYPE")]
        const INIT_TYPE = 1 << 9;
        /// `IBV_DEVICE_PORT_ACTIVE_EVENT`.
        #[doc(alias = "IBV_DEVICE_PORT_ACTIVE_EVENT")]
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// `IBV_DEVICE_SYS_IMAGE_GUID`.
        #[doc(alias = "IBV_DEVICE_SYS_IMAGE_GUID")]
        const SYS_IMAGE_GUID = 1 << 11;
        /// `IBV_DEVICE_RC_RNR_NAK_GEN`.
        #[doc(alias = "IBV_DEVICE_RC_RNR_NAK_GEN")]
        const RC_RNR_NAK_GEN = 1 << 12;
        /// `IBV_DEVICE_SRQ_RESIZE`.
        #[doc(alias = "IBV_DEVICE_SRQ_RESIZE")]
        const SRQ_RESIZE = 1 << 13;
        /// `IBV_DEVICE_N_NOTIFY_CQ`.
        #[doc(alias = "IBV_DEVICE_N_NOTIFY_CQ")]
        const N_NOTIFY_CQ = 1 << 14;
        /// `IBV_DEVICE_MEM_WINDOW`.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW")]
        const MEM_WINDOW = 1 << 17;
        /// `IBV_DEVICE_UD_IP_CSUM`.
        #[doc(alias = "IBV_DEVICE_UD_IP_CSUM")]
        const UD_IP_CSUM = 1 << 18;
        /// `IBV_DEVICE_XRC`.
        #[doc(alias = "IBV_DEVICE_XRC")]
        const XRC = 1 << 20;
        /// `IBV_DEVICE_MEM_MGT_EXTENSIONS`.
        #[doc(alias = "IBV_DEVICE_MEM_MGT_EXTENSIONS")]
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// `IBV_DEVICE_MEM_WINDOW_TYPE_2A`.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW_TYPE_2A")]
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// `IBV_DEVICE_MEM_WINDOW_TYPE_2B`.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW_TYPE_2B")]
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// `IBV_DEVICE_RC_IP_CSUM`.
        #[doc(alias = "IBV_DEVICE_RC_IP_CSUM")]
        const RC_IP_CSUM = 1 << 25;
        /// `IBV_DEVICE_RAW_IP_CSUM`.
        #[doc(alias = "IBV_DEVICE_RAW_IP_CSUM")]
        const RAW_IP_CSUM = 1 << 26;
        /// `IBV_DEVICE_MANAGED_FLOW_STEERING`.
        #[doc(alias = "IBV_DEVICE_MANAGED_FLOW_STEERING")]
        const MANAGED_FLOW_STEERING = 1 << 29;
        /// `IBV_DEVICE_RAW_SCATTER_FCS`.
        #[doc(alias = "IBV_DEVICE_RAW_SCATTER_FCS")]
        const RAW_SCATTER_FCS = 1 << 34;
        /// `IBV_DEVICE_PCI_WRITE_END_PADDING`.
        #[doc(alias = "IBV_DEVICE_PCI_WRITE_END_PADDING")]
        const PCI_WRITE_END_PADDING = 1 << 36;
        /// Flushes to global visibility ([`SendOp::Flush`](crate::types::SendOp::Flush)).
        #[doc(alias = "IB_UVERBS_DEVICE_FLUSH_GLOBAL")]
        const FLUSH_GLOBAL = 1 << 38;
        /// Flushes to persistence.
        #[doc(alias = "IB_UVERBS_DEVICE_FLUSH_PERSISTENT")]
        const FLUSH_PERSISTENT = 1 << 39;
        /// [`SendOp::AtomicWrite`](crate::types::SendOp::AtomicWrite).
        #[doc(alias = "IB_UVERBS_DEVICE_ATOMIC_WRITE")]
        const ATOMIC_WRITE = 1 << 40;
        /// `IBV_DEVICE_CC_DMA_BOUNCE`.
        #[doc(alias = "IBV_DEVICE_CC_DMA_BOUNCE")]
        const CC_DMA_BOUNCE = 1 << 41;

        const _ = !0;
    }
}

/// The capabilities and limits of a device.
///
/// # References
/// `ibv_query_device(3)`
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// The firmware version, formatted by the provider.
    pub fw_ver: String,
    /// The node's GUID.
    pub node_guid: Guid,
    /// The system image GUID, which identifies the chassis.
    pub sys_image_guid: Guid,
    /// The maximum length of a memory region, in bytes.
    pub max_mr_size: u64,
    /// The supported page sizes, one bit each.
    pub page_size_cap: u64,
    /// The vendor's IEEE OUI.
    pub vendor_id: u32,
    /// The vendor's part number.
    pub vendor_part_id: u32,
    /// The hardware revision.
    pub hw_ver: u32,
    /// The maximum number of queue pairs.
    pub max_qp: u32,
    /// The maximum number of work requests in one send or receive queue.
    pub max_qp_wr: u32,
    /// The device's capabilities.
    pub device_cap_flags: DeviceCapFlags,
    /// The maximum number of scatter/gather elements in one work request other than an RDMA read.
    pub max_sge: u32,
    /// The maximum number of scatter/gather elements in one RDMA read.
    pub max_sge_rd: u32,
    /// The maximum number of completion queues.
    pub max_cq: u32,
    /// The maximum number of entries in one completion queue.
    pub max_cqe: u32,
    /// The maximum number of memory regions.
    pub max_mr: u32,
    /// The maximum number of protection domains.
    pub max_pd: u32,
    /// The maximum number of RDMA reads and atomics that one queue pair executes for its peer at a
    /// time.
    pub max_qp_rd_atom: u32,
    /// The same as `max_qp_rd_atom`, for an end-to-end context.
    pub max_ee_rd_atom: u32,
    /// The maximum number of RDMA reads and atomics that the device executes for peers at a time.
    pub max_res_rd_atom: u32,
    /// The maximum number of outstanding RDMA reads and atomics of one queue pair.
    pub max_qp_init_rd_atom: u32,
    /// The same as `max_qp_init_rd_atom`, for an end-to-end context.
    pub max_ee_init_rd_atom: u32,
    /// The scope of the atomicity of the device's atomics.
    pub atomic_cap: AtomicCap,
    /// The maximum number of end-to-end contexts.
    pub max_ee: u32,
    /// The maximum number of reliable datagram domains.
    pub max_rdd: u32,
    /// The maximum number of memory windows.
    pub max_mw: u32,
    /// The maximum number of raw IPv6 queue pairs.
    pub max_raw_ipv6_qp: u32,
    /// The maximum number of raw Ethertype queue pairs.
    pub max_raw_ethy_qp: u32,
    /// The maximum number of multicast groups.
    pub max_mcast_grp: u32,
    /// The maximum number of queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// The maximum number of queue pairs in all multicast groups together.
    pub max_total_mcast_qp_attach: u32,
    /// The maximum number of address handles.
    pub max_ah: u32,
    /// The maximum number of fast memory regions.
    pub max_fmr: u32,
    /// The maximum number of times that a fast memory region can be remapped.
    pub max_map_per_fmr: u32,
    /// The maximum number of shared receive queues.
    pub max_srq: u32,
    /// The maximum number of work requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// The maximum number of scatter/gather elements per receive in a shared receive queue.
    pub max_srq_sge: u32,
    /// The maximum number of partition keys.
    pub max_pkeys: u16,
    /// The maximum delay before the device acknowledges a packet, as n in 4.096 µs × 2ⁿ.
    pub local_ca_ack_delay: u8,
    /// The number of ports. See [`DeviceAttrEx::phys_port_cnt_ex`] for devices with more than 255
    /// ports.
    pub phys_port_cnt: u8,
}

/// Calls a macro with the limits of [`DeviceAttr`], separated by commas: the fields that are plain
/// numbers in C and in the kernel's reply, in the order of the C struct. Conversions and outputs
/// are generated from this list.
#[doc(hidden)]
#[macro_export]
macro_rules! with_device_limits {
    ($callback:ident) => {
        $callback! {
            max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, max_ee,
            max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay
        }
    };
}

impl DeviceAttr {
    /// Returns the limits with their C names, in the order of the C struct: every field from
    /// `max_qp` to `local_ca_ack_delay` that is a plain number.
    pub fn limits(&self) -> impl Iterator<Item = (&'static str, u32)> + use<> {
        macro_rules! pairs {
            ($($limit:ident),*) => { [$((stringify!($limit), u32::from(self.$limit))),*] };
        }
        with_device_limits!(pairs).into_iter()
    }
}

bitflags! {
    /// General support for on-demand paging.
    #[doc(alias = "ibv_odp_general_caps")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct OdpGeneralCaps: u64 {
        /// On-demand paging is supported.
        #[doc(alias = "IBV_ODP_SUPPORT")]
        const SUPPORT = 1;
        /// A region can cover the whole address space.
        #[doc(alias = "IBV_ODP_SUPPORT_IMPLICIT")]
        const IMPLICIT = 1 << 1;

        const _ = !0;
    }
}

bitflags! {
    /// The operations of a transport that may access on-demand paged memory.
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct OdpTransportCaps: u32 {
        /// `IBV_ODP_SUPPORT_SEND`.
        #[doc(alias = "IBV_ODP_SUPPORT_SEND")]
        const SEND = 1;
        /// `IBV_ODP_SUPPORT_RECV`.
        #[doc(alias = "IBV_ODP_SUPPORT_RECV")]
        const RECV = 1 << 1;
        /// `IBV_ODP_SUPPORT_WRITE`.
        #[doc(alias = "IBV_ODP_SUPPORT_WRITE")]
        const WRITE = 1 << 2;
        /// `IBV_ODP_SUPPORT_READ`.
        #[doc(alias = "IBV_ODP_SUPPORT_READ")]
        const READ = 1 << 3;
        /// `IBV_ODP_SUPPORT_ATOMIC`.
        #[doc(alias = "IBV_ODP_SUPPORT_ATOMIC")]
        const ATOMIC = 1 << 4;
        /// `IBV_ODP_SUPPORT_SRQ_RECV`.
        #[doc(alias = "IBV_ODP_SUPPORT_SRQ_RECV")]
        const SRQ_RECV = 1 << 5;
        /// `IBV_ODP_SUPPORT_FLUSH`.
        #[doc(alias = "IBV_ODP_SUPPORT_FLUSH")]
        const FLUSH = 1 << 6;
        /// `IBV_ODP_SUPPORT_ATOMIC_WRITE`.
        #[doc(alias = "IBV_ODP_SUPPORT_ATOMIC_WRITE")]
        const ATOMIC_WRITE = 1 << 7;

        const _ = !0;
    }
}

/// On-demand paging, by transport.
#[doc(alias = "ibv_odp_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OdpCaps {
    /// The general support for on-demand paging.
    pub general_caps: OdpGeneralCaps,
    /// The operations that support on-demand paging on reliable connections.
    pub rc_odp_caps: OdpTransportCaps,
    /// The operations that support on-demand paging on unreliable connections.
    pub uc_odp_caps: OdpTransportCaps,
    /// The operations that support on-demand paging on unreliable datagram queue pairs.
    pub ud_odp_caps: OdpTransportCaps,
}

/// Support for TCP segmentation offload. Zero unless the provider reports it, because the kernel's
/// reply has no field for it.
#[doc(alias = "ibv_tso_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TsoCaps {
    /// The maximum length of a TSO message, in bytes.
    pub max_tso: u32,
    /// The supported queue pair types, one bit each.
    pub supported_qpts: u32,
}

impl TsoCaps {
    /// Returns whether queue pairs of type `qp_type` support TCP segmentation offload.
    #[doc(alias = "ibv_is_qpt_supported")]
    pub const fn is_qpt_supported(&self, qp_type: QpType) -> bool {
        is_qpt_supported(self.supported_qpts, qp_type)
    }
}

/// Support for receive-side scaling.
#[doc(alias = "ibv_rss_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssCaps {
    /// The supported queue pair types, one bit each.
    pub supported_qpts: u32,
    /// The maximum number of indirection tables.
    pub max_rwq_indirection_tables: u32,
    /// The maximum number of entries in an indirection table.
    pub max_rwq_indirection_table_size: u32,
    /// The header fields that can be hashed, one bit each. Zero unless the provider reports them.
    pub rx_hash_fields_mask: u64,
    /// The supported hash functions, one bit each. Zero unless the provider reports them.
    pub rx_hash_function: u8,
}

impl RssCaps {
    /// Returns whether queue pairs of type `qp_type` support receive-side scaling.
    #[doc(alias = "ibv_is_qpt_supported")]
    pub const fn is_qpt_supported(&self, qp_type: QpType) -> bool {
        is_qpt_supported(self.supported_qpts, qp_type)
    }
}

/// Support for packet pacing. Zero unless the provider reports it, because the kernel's reply has
/// no field for it.
#[doc(alias = "ibv_packet_pacing_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketPacingCaps {
    /// The minimum rate, in kbit/s.
    pub qp_rate_limit_min: u32,
    /// The maximum rate, in kbit/s.
    pub qp_rate_limit_max: u32,
    /// The supported queue pair types, one bit each.
    pub supported_qpts: u32,
}

impl PacketPacingCaps {
    /// Returns whether queue pairs of type `qp_type` support packet pacing.
    #[doc(alias = "ibv_is_qpt_supported")]
    pub const fn is_qpt_supported(&self, qp_type: QpType) -> bool {
        is_qpt_supported(self.supported_qpts, qp_type)
    }
}

/// Returns whether `mask` has the bit for a queue pair type; false for types whose number exceeds
/// the mask.
const fn is_qpt_supported(mask: u32, qp_type: QpType) -> bool {
    matches!(mask.checked_shr(qp_type.0 as u32), Some(bits) if bits & 1 != 0)
}

bitflags! {
    /// The capabilities of raw packet queues.
    #[doc(alias = "ibv_raw_packet_caps")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct RawPacketCaps: u32 {
        /// `IBV_RAW_PACKET_CAP_CVLAN_STRIPPING`.
        #[doc(alias = "IBV_RAW_PACKET_CAP_CVLAN_STRIPPING")]
        const CVLAN_STRIPPING = 1;
        /// `IBV_RAW_PACKET_CAP_SCATTER_FCS`.
        #[doc(alias = "IBV_RAW_PACKET_CAP_SCATTER_FCS")]
        const SCATTER_FCS = 1 << 1;
        /// `IBV_RAW_PACKET_CAP_IP_CSUM`.
        #[doc(alias = "IBV_RAW_PACKET_CAP_IP_CSUM")]
        const IP_CSUM = 1 << 2;
        /// `IBV_RAW_PACKET_CAP_DELAY_DROP`.
        #[doc(alias = "IBV_RAW_PACKET_CAP_DELAY_DROP")]
        const DELAY_DROP = 1 << 3;

        const _ = !0;
    }
}

bitflags! {
    /// The transports that support tag matching.
    #[doc(alias = "ibv_tm_cap_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct TmCapFlags: u32 {
        /// Reliable connections.
        #[doc(alias = "IBV_TM_CAP_RC")]
        const RC = 1;

        const _ = !0;
    }
}

/// Support for tag matching.
#[doc(alias = "ibv_tm_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TmCaps {
    /// The maximum length of a rendezvous header, in bytes.
    pub max_rndv_hdr_size: u32,
    /// The maximum number of tags in a tag list.
    pub max_num_tags: u32,
    /// The transports that support tag matching.
    pub flags: TmCapFlags,
    /// The maximum number of outstanding tag list operations.
    pub max_ops: u32,
    /// The maximum number of scatter/gather elements of a tagged buffer.
    pub max_sge: u32,
}

/// The limits of event moderation for completion queues.
#[doc(alias = "ibv_cq_moderation_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqModerationCaps {
    /// The maximum number of completions per event.
    pub max_cq_count: u16,
    /// The maximum delay of an event, in microseconds.
    pub max_cq_period: u16,
}

bitflags! {
    /// The supported operand sizes of an atomic operation over PCIe.
    #[doc(alias = "ibv_pci_atomic_op_size")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct PciAtomicOpSize: u16 {
        /// 4 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP")]
        const BYTES_4 = 1;
        /// 8 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP")]
        const BYTES_8 = 1 << 1;
        /// 16 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP")]
        const BYTES_16 = 1 << 2;

        const _ = !0;
    }
}

/// Atomics over PCIe, by operation. Empty unless the provider reports them, because the kernel's
/// reply has no fields for them.
#[doc(alias = "ibv_pci_atomic_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PciAtomicCaps {
    /// Fetch and add.
    pub fetch_add: PciAtomicOpSize,
    /// Swap.
    pub swap: PciAtomicOpSize,
    /// Compare and swap.
    pub compare_swap: PciAtomicOpSize,
}

/// The capabilities and limits of a device, including later additions.
///
/// Attributes that an older kernel does not report are zero.
///
/// # References
/// `ibv_query_device_ex(3)`
#[doc(alias = "ibv_device_attr_ex")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttrEx {
    /// The attributes of the original query.
    pub orig_attr: DeviceAttr,
    /// Support for on-demand paging.
    pub odp_caps: OdpCaps,
    /// The mask of significant bits in a completion timestamp; 0 if the device lacks timestamps.
    pub completion_timestamp_mask: u64,
    /// The frequency of the timestamp clock, in kHz.
    pub hca_core_clock: u64,
    /// All 64 bits of the capability flags.
    pub device_cap_flags_ex: DeviceCapFlags,
    /// Support for TCP segmentation offload.
    pub tso_caps: TsoCaps,
    /// Support for receive-side scaling.
    pub rss_caps: RssCaps,
    /// The maximum number of receive work queues.
    pub max_wq_type_rq: u32,
    /// Support for packet pacing.
    pub packet_pacing_caps: PacketPacingCaps,
    /// The capabilities of raw packet queues.
    pub raw_packet_caps: RawPacketCaps,
    /// Support for tag matching.
    pub tm_caps: TmCaps,
    /// The limits of event moderation for completion queues.
    pub cq_mod_caps: CqModerationCaps,
    /// The maximum amount of device memory, in bytes.
    pub max_dm_size: u64,
    /// Support for atomics over PCIe.
    pub pci_atomic_caps: PciAtomicCaps,
    /// The operations on extended reliable connections that may access on-demand paged memory.
    pub xrc_odp_caps: OdpTransportCaps,
    /// The number of ports, which may exceed 255.
    pub phys_port_cnt_ex: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_of_queue_pairs_is_supported_if_its_bit_is_set() {
        let tso = TsoCaps { max_tso: 1, supported_qpts: 1 << 8 | 1 << 4 };
        assert!(tso.is_qpt_supported(QpType::RAW_PACKET) && tso.is_qpt_supported(QpType::UD));
        assert!(!tso.is_qpt_supported(QpType::RC));
        let rss = RssCaps { supported_qpts: 1 << 2, ..RssCaps::default() };
        assert!(rss.is_qpt_supported(QpType::RC) && !rss.is_qpt_supported(QpType::UD));
        let pacing = PacketPacingCaps { supported_qpts: u32::MAX, ..PacketPacingCaps::default() };
        assert!(pacing.is_qpt_supported(QpType(31)));
        assert!(!pacing.is_qpt_supported(QpType(32)) && !pacing.is_qpt_supported(QpType::DRIVER));
    }
}
