//! [`PortAttr`]: what a port says of itself.

use bitflags::bitflags;

use super::open_enum;

open_enum! {
    /// Where a port stands.
    #[doc(alias = "ibv_port_state")]
    pub enum PortState(u8) {
        /// No change.
        NOP = 0, "no state change (NOP)";
        /// No link.
        DOWN = 1, "down";
        /// The link is up, the subnet manager has not configured it.
        INIT = 2, "init";
        /// Configured, data does not flow yet.
        ARMED = 3, "armed";
        /// Data flows.
        ACTIVE = 4, "active";
        /// Active, and about to fail over a broken link.
        ACTIVE_DEFER = 5, "active defer";
    }
}

open_enum! {
    /// The largest payload of a packet, as the specification encodes it.
    #[doc(alias = "ibv_mtu")]
    pub enum Mtu(u8) {
        /// 256 bytes.
        MTU_256 = 1, "256";
        /// 512 bytes.
        MTU_512 = 2, "512";
        /// 1024 bytes.
        MTU_1024 = 3, "1024";
        /// 2048 bytes.
        MTU_2048 = 4, "2048";
        /// 4096 bytes.
        MTU_4096 = 5, "4096";
    }
}

impl Mtu {
    /// From a number of bytes: exactly 256, 512, 1024, 2048 or 4096.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::MTU_256),
            512 => Some(Self::MTU_512),
            1024 => Some(Self::MTU_1024),
            2048 => Some(Self::MTU_2048),
            4096 => Some(Self::MTU_4096),
            _ => None,
        }
    }

    /// In bytes; `None` for an encoding that the specification does not have.
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

open_enum! {
    /// What carries a port's packets.
    pub enum LinkLayer(u8) {
        /// Not told: InfiniBand, on kernels that predate the question.
        UNSPECIFIED = 0, "Unspecified";
        /// InfiniBand.
        INFINIBAND = 1, "InfiniBand";
        /// Ethernet.
        ETHERNET = 2, "Ethernet";
    }
}

bitflags! {
    /// What a port can do (`PortInfo:CapabilityMask`).
    ///
    /// # References
    /// IBTA volume 1, section 14.2.5.6
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PortCapFlags: u32 {
        /// `IBV_PORT_SM`.
        const SM = 1 << 1;
        /// `IBV_PORT_NOTICE_SUP`.
        const NOTICE_SUP = 1 << 2;
        /// `IBV_PORT_TRAP_SUP`.
        const TRAP_SUP = 1 << 3;
        /// `IBV_PORT_OPT_IPD_SUP`.
        const OPT_IPD_SUP = 1 << 4;
        /// `IBV_PORT_AUTO_MIGR_SUP`.
        const AUTO_MIGR_SUP = 1 << 5;
        /// `IBV_PORT_SL_MAP_SUP`.
        const SL_MAP_SUP = 1 << 6;
        /// `IBV_PORT_MKEY_NVRAM`.
        const MKEY_NVRAM = 1 << 7;
        /// `IBV_PORT_PKEY_NVRAM`.
        const PKEY_NVRAM = 1 << 8;
        /// `IBV_PORT_LED_INFO_SUP`.
        const LED_INFO_SUP = 1 << 9;
        /// `IBV_PORT_SYS_IMAGE_GUID_SUP`.
        const SYS_IMAGE_GUID_SUP = 1 << 11;
        /// `IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP`.
        const PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12;
        /// `IBV_PORT_EXTENDED_SPEEDS_SUP`.
        const EXTENDED_SPEEDS_SUP = 1 << 14;
        /// `IBV_PORT_CAP_MASK2_SUP`.
        const CAP_MASK2_SUP = 1 << 15;
        /// `IBV_PORT_CM_SUP`.
        const CM_SUP = 1 << 16;
        /// `IBV_PORT_SNMP_TUNNEL_SUP`.
        const SNMP_TUNNEL_SUP = 1 << 17;
        /// `IBV_PORT_REINIT_SUP`.
        const REINIT_SUP = 1 << 18;
        /// `IBV_PORT_DEVICE_MGMT_SUP`.
        const DEVICE_MGMT_SUP = 1 << 19;
        /// `IBV_PORT_VENDOR_CLASS_SUP`.
        const VENDOR_CLASS_SUP = 1 << 20;
        /// `IBV_PORT_DR_NOTICE_SUP`.
        const DR_NOTICE_SUP = 1 << 21;
        /// `IBV_PORT_CAP_MASK_NOTICE_SUP`.
        const CAP_MASK_NOTICE_SUP = 1 << 22;
        /// `IBV_PORT_BOOT_MGMT_SUP`.
        const BOOT_MGMT_SUP = 1 << 23;
        /// `IBV_PORT_LINK_LATENCY_SUP`.
        const LINK_LATENCY_SUP = 1 << 24;
        /// `IBV_PORT_CLIENT_REG_SUP`.
        const CLIENT_REG_SUP = 1 << 25;
        /// `IBV_PORT_IP_BASED_GIDS`.
        const IP_BASED_GIDS = 1 << 26;

        const _ = !0;
    }
}

/// What a port says of itself.
///
/// # References
/// `ibv_query_port(3)`
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Where it stands.
    pub state: PortState,
    /// The largest MTU it can have.
    pub max_mtu: Mtu,
    /// The MTU it has.
    pub active_mtu: Mtu,
    /// Entries in its GID table, empty ones included.
    pub gid_tbl_len: u32,
    /// What it can do.
    pub port_cap_flags: PortCapFlags,
    /// The longest message, in bytes.
    pub max_msg_sz: u32,
    /// Packets with a wrong partition key.
    pub bad_pkey_cntr: u32,
    /// Packets with a wrong queue key.
    pub qkey_viol_cntr: u32,
    /// Entries in its partition key table.
    pub pkey_tbl_len: u16,
    /// Its local id; 0 on RoCE.
    pub lid: u16,
    /// The subnet manager's local id.
    pub sm_lid: u16,
    /// Low bits of the local id that are masked out.
    pub lmc: u8,
    /// Virtual lanes, in the specification's encoding.
    pub max_vl_num: u8,
    /// The subnet manager's service level.
    pub sm_sl: u8,
    /// Propagation delay: 4.096 µs × 2ⁿ.
    pub subnet_timeout: u8,
    /// What the subnet manager initialised.
    pub init_type_reply: u8,
    /// Lanes, in the specification's encoding.
    pub active_width: u8,
    /// Speed of a lane, in the specification's encoding.
    pub active_speed: u8,
    /// The physical state, in the specification's encoding.
    pub phys_state: u8,
    /// What carries its packets.
    pub link_layer: LinkLayer,
    /// Verbs' own flags: bit 0, a GRH is required.
    pub flags: u8,
    /// `PortInfo:CapabilityMask2`.
    pub port_cap_flags2: u16,
    /// As `active_speed`, wide enough for newer speeds; 0 where the kernel does not tell.
    pub active_speed_ex: u32,
}
