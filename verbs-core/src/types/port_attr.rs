//! [`PortAttr`]: the attributes of a port.

use super::flags::bitflags;
use super::open_enum;

open_enum! {
    /// The logical state of a port.
    #[doc(alias = "ibv_port_state")]
    #[doc(alias = "ibv_port_state_str")]
    pub enum PortState(u8) {
        /// No state change.
        #[doc(alias = "IBV_PORT_NOP")]
        NOP = 0, "no state change (NOP)";
        /// The port has no link.
        #[doc(alias = "IBV_PORT_DOWN")]
        DOWN = 1, "down";
        /// The link is up, but the subnet manager has not configured it.
        #[doc(alias = "IBV_PORT_INIT")]
        INIT = 2, "init";
        /// The port is configured, but data does not flow yet.
        #[doc(alias = "IBV_PORT_ARMED")]
        ARMED = 3, "armed";
        /// Data flows.
        #[doc(alias = "IBV_PORT_ACTIVE")]
        ACTIVE = 4, "active";
        /// The port is active, but its link has failed and may recover.
        #[doc(alias = "IBV_PORT_ACTIVE_DEFER")]
        ACTIVE_DEFER = 5, "active defer";
    }
}

open_enum! {
    /// The maximum packet payload, as a code from the IBTA specification.
    #[doc(alias = "ibv_mtu")]
    pub enum Mtu(u8) {
        /// 256 bytes.
        #[doc(alias = "IBV_MTU_256")]
        MTU_256 = 1, "256";
        /// 512 bytes.
        #[doc(alias = "IBV_MTU_512")]
        MTU_512 = 2, "512";
        /// 1024 bytes.
        #[doc(alias = "IBV_MTU_1024")]
        MTU_1024 = 3, "1024";
        /// 2048 bytes.
        #[doc(alias = "IBV_MTU_2048")]
        MTU_2048 = 4, "2048";
        /// 4096 bytes.
        #[doc(alias = "IBV_MTU_4096")]
        MTU_4096 = 5, "4096";
    }
}

impl Mtu {
    /// Converts from a number of bytes, which must be exactly 256, 512, 1024, 2048 or 4096.
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

    /// Returns the number of bytes; `None` for an unspecified code.
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

open_enum! {
    /// The link layer of a port.
    pub enum LinkLayer(u8) {
        /// Not reported; treat as InfiniBand on kernels without the attribute.
        #[doc(alias = "IBV_LINK_LAYER_UNSPECIFIED")]
        UNSPECIFIED = 0, "Unspecified";
        /// InfiniBand.
        #[doc(alias = "IBV_LINK_LAYER_INFINIBAND")]
        INFINIBAND = 1, "InfiniBand";
        /// Ethernet.
        #[doc(alias = "IBV_LINK_LAYER_ETHERNET")]
        ETHERNET = 2, "Ethernet";
    }
}

open_enum! {
    /// The number of lanes of a link. `Display` writes the width like `ibv_devinfo`: `4X`.
    ///
    /// # References
    /// IBTA volume 1, section 14.2.5.6 (`LinkWidthActive`)
    #[doc(alias = "active_width")]
    pub enum PortWidth(u8) {
        /// 1 lane.
        #[doc(alias = "IB_WIDTH_1X")]
        WIDTH_1X = 1, "1X";
        /// 4 lanes.
        #[doc(alias = "IB_WIDTH_4X")]
        WIDTH_4X = 2, "4X";
        /// 8 lanes.
        #[doc(alias = "IB_WIDTH_8X")]
        WIDTH_8X = 4, "8X";
        /// 12 lanes.
        #[doc(alias = "IB_WIDTH_12X")]
        WIDTH_12X = 8, "12X";
        /// 2 lanes.
        #[doc(alias = "IB_WIDTH_2X")]
        WIDTH_2X = 16, "2X";
    }
}

impl PortWidth {
    /// Returns the number of lanes; `None` for an unspecified code.
    pub const fn lanes(self) -> Option<u32> {
        match self {
            Self::WIDTH_1X => Some(1),
            Self::WIDTH_2X => Some(2),
            Self::WIDTH_4X => Some(4),
            Self::WIDTH_8X => Some(8),
            Self::WIDTH_12X => Some(12),
            _ => None,
        }
    }
}

open_enum! {
    /// The speed of one lane. `Display` writes the speed like `ibv_devinfo`: `25.0 Gbps`.
    ///
    /// # References
    /// IBTA volume 1, section 14.2.5.6 (`LinkSpeedActive`, `LinkSpeedExtActive`)
    #[doc(alias = "active_speed")]
    pub enum PortSpeed(u32) {
        /// Single data rate.
        #[doc(alias = "IB_SPEED_SDR")]
        SDR = 1, "2.5 Gbps";
        /// Double data rate.
        #[doc(alias = "IB_SPEED_DDR")]
        DDR = 2, "5.0 Gbps";
        /// Quad data rate.
        #[doc(alias = "IB_SPEED_QDR")]
        QDR = 4, "10.0 Gbps";
        /// Fourteen data rate at 10 Gbit/s.
        #[doc(alias = "IB_SPEED_FDR10")]
        FDR10 = 8, "10.0 Gbps";
        /// Fourteen data rate.
        #[doc(alias = "IB_SPEED_FDR")]
        FDR = 16, "14.0 Gbps";
        /// Enhanced data rate.
        #[doc(alias = "IB_SPEED_EDR")]
        EDR = 32, "25.0 Gbps";
        /// High data rate.
        #[doc(alias = "IB_SPEED_HDR")]
        HDR = 64, "50.0 Gbps";
        /// Next data rate.
        #[doc(alias = "IB_SPEED_NDR")]
        NDR = 128, "100.0 Gbps";
        /// Extreme data rate.
        #[doc(alias = "IB_SPEED_XDR")]
        XDR = 256, "200.0 Gbps";
    }
}

impl PortSpeed {
    /// Returns the speed per lane in Mbit/s, according to its name; `None` for an unspecified code.
    pub const fn mbps(self) -> Option<u32> {
        match self {
            Self::SDR => Some(2_500),
            Self::DDR => Some(5_000),
            Self::QDR | Self::FDR10 => Some(10_000),
            Self::FDR => Some(14_000),
            Self::EDR => Some(25_000),
            Self::HDR => Some(50_000),
            Self::NDR => Some(100_000),
            Self::XDR => Some(200_000),
            _ => None,
        }
    }
}

bitflags! {
    /// The capabilities of a port (`PortInfo:CapabilityMask`).
    ///
    /// # References
    /// IBTA volume 1, section 14.2.5.6
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct PortCapFlags: u32 {
        /// `IBV_PORT_SM`.
        #[doc(alias = "IBV_PORT_SM")]
        const SM = 1 << 1;
        /// `IBV_PORT_NOTICE_SUP`.
        #[doc(alias = "IBV_PORT_NOTICE_SUP")]
        const NOTICE_SUP = 1 << 2;
        /// `IBV_PORT_TRAP_SUP`.
        #[doc(alias = "IBV_PORT_TRAP_SUP")]
        const TRAP_SUP = 1 << 3;
        /// `IBV_PORT_OPT_IPD_SUP`.
        #[doc(alias = "IBV_PORT_OPT_IPD_SUP")]
        const OPT_IPD_SUP = 1 << 4;
        /// `IBV_PORT_AUTO_MIGR_SUP`.
        #[doc(alias = "IBV_PORT_AUTO_MIGR_SUP")]
        const AUTO_MIGR_SUP = 1 << 5;
        /// `IBV_PORT_SL_MAP_SUP`.
        #[doc(alias = "IBV_PORT_SL_MAP_SUP")]
        const SL_MAP_SUP = 1 << 6;
        /// `IBV_PORT_MKEY_NVRAM`.
        #[doc(alias = "IBV_PORT_MKEY_NVRAM")]
        const MKEY_NVRAM = 1 << 7;
        /// `IBV_PORT_PKEY_NVRAM`.
        #[doc(alias = "IBV_PORT_PKEY_NVRAM")]
        const PKEY_NVRAM = 1 << 8;
        /// `IBV_PORT_LED_INFO_SUP`.
        #[doc(alias = "IBV_PORT_LED_INFO_SUP")]
        const LED_INFO_SUP = 1 << 9;
        /// `IBV_PORT_SYS_IMAGE_GUID_SUP`.
        #[doc(alias = "IBV_PORT_SYS_IMAGE_GUID_SUP")]
        const SYS_IMAGE_GUID_SUP = 1 << 11;
        /// `IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP`.
        #[doc(alias = "IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP")]
        const PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12;
        /// `IBV_PORT_EXTENDED_SPEEDS_SUP`.
        #[doc(alias = "IBV_PORT_EXTENDED_SPEEDS_SUP")]
        const EXTENDED_SPEEDS_SUP = 1 << 14;
        /// `IBV_PORT_CAP_MASK2_SUP`.
        #[doc(alias = "IBV_PORT_CAP_MASK2_SUP")]
        const CAP_MASK2_SUP = 1 << 15;
        /// `IBV_PORT_CM_SUP`.
        #[doc(alias = "IBV_PORT_CM_SUP")]
        const CM_SUP = 1 << 16;
        /// `IBV_PORT_SNMP_TUNNEL_SUP`.
        #[doc(alias = "IBV_PORT_SNMP_TUNNEL_SUP")]
        const SNMP_TUNNEL_SUP = 1 << 17;
        /// `IBV_PORT_REINIT_SUP`.
        #[doc(alias = "IBV_PORT_REINIT_SUP")]
        const REINIT_SUP = 1 << 18;
        /// `IBV_PORT_DEVICE_MGMT_SUP`.
        #[doc(alias = "IBV_PORT_DEVICE_MGMT_SUP")]
        const DEVICE_MGMT_SUP = 1 << 19;
        /// `IBV_PORT_VENDOR_CLASS_SUP`.
        #[doc(alias = "IBV_PORT_VENDOR_CLASS_SUP")]
        const VENDOR_CLASS_SUP = 1 << 20;
        /// `IBV_PORT_DR_NOTICE_SUP`.
        #[doc(alias = "IBV_PORT_DR_NOTICE_SUP")]
        const DR_NOTICE_SUP = 1 << 21;
        /// `IBV_PORT_CAP_MASK_NOTICE_SUP`.
        #[doc(alias = "IBV_PORT_CAP_MASK_NOTICE_SUP")]
        const CAP_MASK_NOTICE_SUP = 1 << 22;
        /// `IBV_PORT_BOOT_MGMT_SUP`.
        #[doc(alias = "IBV_PORT_BOOT_MGMT_SUP")]
        const BOOT_MGMT_SUP = 1 << 23;
        /// `IBV_PORT_LINK_LATENCY_SUP`.
        #[doc(alias = "IBV_PORT_LINK_LATENCY_SUP")]
        const LINK_LATENCY_SUP = 1 << 24;
        /// `IBV_PORT_CLIENT_REG_SUP`.
        #[doc(alias = "IBV_PORT_CLIENT_REG_SUP")]
        const CLIENT_REG_SUP = 1 << 25;
        /// `IBV_PORT_IP_BASED_GIDS`.
        #[doc(alias = "IBV_PORT_IP_BASED_GIDS")]
        const IP_BASED_GIDS = 1 << 26;

        const _ = !0;
    }
}

bitflags! {
    /// The second set of capabilities of a port (`PortInfo:CapabilityMask2`), present with
    /// [`PortCapFlags::CAP_MASK2_SUP`].
    ///
    /// # References
    /// IBTA volume 1, section 14.2.5.6
    #[doc(alias = "ibv_port_cap_flags2")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct PortCapFlags2: u16 {
        /// The node's description can be set.
        #[doc(alias = "IBV_PORT_SET_NODE_DESC_SUP")]
        const SET_NODE_DESC_SUP = 1;
        /// The port has `PortInfoExtended`.
        #[doc(alias = "IBV_PORT_INFO_EXT_SUP")]
        const INFO_EXT_SUP = 1 << 1;
        /// The port has virtual ports.
        #[doc(alias = "IBV_PORT_VIRT_SUP")]
        const VIRT_SUP = 1 << 2;
        /// The switch has a port state table.
        #[doc(alias = "IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP")]
        const SWITCH_PORT_STATE_TABLE_SUP = 1 << 3;
        /// The port supports [`PortWidth::WIDTH_2X`].
        #[doc(alias = "IBV_PORT_LINK_WIDTH_2X_SUP")]
        const LINK_WIDTH_2X_SUP = 1 << 4;
        /// The port supports [`PortSpeed::HDR`].
        #[doc(alias = "IBV_PORT_LINK_SPEED_HDR_SUP")]
        const LINK_SPEED_HDR_SUP = 1 << 5;
        /// The port supports [`PortSpeed::NDR`].
        #[doc(alias = "IBV_PORT_LINK_SPEED_NDR_SUP")]
        const LINK_SPEED_NDR_SUP = 1 << 10;
        /// The port supports [`PortSpeed::XDR`].
        #[doc(alias = "IBV_PORT_LINK_SPEED_XDR_SUP")]
        const LINK_SPEED_XDR_SUP = 1 << 12;

        const _ = !0;
    }
}

bitflags! {
    /// Port flags defined by verbs, not by the IBTA specification.
    ///
    /// # References
    /// `ibv_query_port(3)`
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct PortFlags: u8 {
        /// Every path from the port needs a global route ([`AhAttr::grh`](super::AhAttr::grh)), as
        /// on RoCE.
        #[doc(alias = "IBV_QPF_GRH_REQUIRED")]
        const GRH_REQUIRED = 1;

        const _ = !0;
    }
}

/// The attributes of a port.
///
/// # References
/// `ibv_query_port(3)`
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// The logical state of the port.
    pub state: PortState,
    /// The maximum supported MTU.
    pub max_mtu: Mtu,
    /// The MTU in use.
    pub active_mtu: Mtu,
    /// The number of entries in the port's GID table, including empty entries.
    pub gid_tbl_len: u32,
    /// The port's capabilities.
    pub port_cap_flags: PortCapFlags,
    /// The maximum message length, in bytes.
    pub max_msg_sz: u32,
    /// The number of packets received with a wrong partition key.
    pub bad_pkey_cntr: u32,
    /// The number of packets received with a wrong queue key.
    pub qkey_viol_cntr: u32,
    /// The number of entries in the port's partition key table.
    pub pkey_tbl_len: u16,
    /// The port's local id; 0 on RoCE.
    pub lid: u16,
    /// The subnet manager's local id.
    pub sm_lid: u16,
    /// The LID mask control (LMC): the number of masked low bits of the local id.
    pub lmc: u8,
    /// The maximum number of virtual lanes, as a code from the IBTA specification.
    pub max_vl_num: u8,
    /// The subnet manager's service level.
    pub sm_sl: u8,
    /// The maximum propagation delay in the subnet, as n in 4.096 µs × 2ⁿ.
    pub subnet_timeout: u8,
    /// The type of initialisation that the subnet manager performed.
    pub init_type_reply: u8,
    /// The number of lanes in the link.
    pub active_width: PortWidth,
    /// The speed per lane, in the older 8-bit attribute; [`speed`](Self::speed) also covers newer
    /// speeds.
    pub active_speed: PortSpeed,
    /// The physical state, as a code from the IBTA specification.
    pub phys_state: u8,
    /// The link layer.
    pub link_layer: LinkLayer,
    /// The flags that verbs defines.
    pub flags: PortFlags,
    /// The second set of capabilities; empty if the kernel does not report it.
    pub port_cap_flags2: PortCapFlags2,
    /// The speed per lane, in an attribute wide enough for newer speeds; `PortSpeed(0)` if the
    /// kernel does not report it.
    pub active_speed_ex: PortSpeed,
}

impl PortAttr {
    /// Returns the speed per lane, from the newer attribute if the kernel reports it and otherwise
    /// from the older attribute.
    pub const fn speed(&self) -> PortSpeed {
        if self.active_speed_ex.0 == 0 { self.active_speed } else { self.active_speed_ex }
    }

    /// Returns the speed of the link in units of 100 Mbit/s: the number of lanes times the nominal
    /// speed per lane (25 Gbit/s for `EDR`). `None` for an unspecified width or speed.
    pub const fn speed_100mbps(&self) -> Option<u64> {
        match (self.active_width.lanes(), self.speed().mbps()) {
            (Some(lanes), Some(mbps)) => Some(lanes as u64 * mbps as u64 / 100),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_and_the_speed_of_a_lane_are_those_of_their_names() {
        for width in PortWidth::NAMED {
            assert_eq!(format!("{}X", width.lanes().unwrap()), width.to_string());
        }
        for speed in PortSpeed::NAMED {
            let tenths = speed.mbps().unwrap() / 100;
            assert_eq!(format!("{}.{} Gbps", tenths / 10, tenths % 10), speed.to_string());
        }
        assert_eq!((PortWidth(3).lanes(), PortSpeed(0).mbps()), (None, None));
    }

    #[test]
    fn width_and_speed_print_as_ibv_devinfo_does_and_keep_unknown_codes() {
        assert_eq!(PortWidth::WIDTH_12X.to_string(), "12X");
        assert_eq!(PortSpeed::FDR.to_string(), "14.0 Gbps");
        assert_eq!((PortWidth(3).to_string(), PortSpeed(512).name()), ("unknown (3)".into(), None));
    }
}
