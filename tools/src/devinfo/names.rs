//! rdma-core's names of the values and bits of devices and ports.
//!
//! The output uses these tables instead of the library's names. If the library gains a flag, the
//! text that scripts parse must not change until rdma-core prints the flag too.

use verbs::{AtomicCap, GidType, LinkLayer, Mtu, PortState};

/// Bits of a mask, and their names.
pub type Bits = [(u64, &'static str)];

/// Returns the names of a mask's bits, and the remaining bits.
pub fn split(mask: u64, bits: &Bits) -> (Vec<&'static str>, u64) {
    let names = bits.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| *name).collect();
    let known = bits.iter().fold(0, |known, (bit, _)| known | bit);
    (names, mask & !known)
}

/// `IBV_DEVICE_*`, the lower half.
pub const DEVICE_CAP_FLAGS: &Bits = &[
    (1, "RESIZE_MAX_WR"),
    (1 << 1, "BAD_PKEY_CNTR"),
    (1 << 2, "BAD_QKEY_CNTR"),
    (1 << 3, "RAW_MULTI"),
    (1 << 4, "AUTO_PATH_MIG"),
    (1 << 5, "CHANGE_PHY_PORT"),
    (1 << 6, "UD_AV_PORT_ENFORCE"),
    (1 << 7, "CURR_QP_STATE_MOD"),
    (1 << 8, "SHUTDOWN_PORT"),
    (1 << 9, "INIT_TYPE"),
    (1 << 10, "PORT_ACTIVE_EVENT"),
    (1 << 11, "SYS_IMAGE_GUID"),
    (1 << 12, "RC_RNR_NAK_GEN"),
    (1 << 13, "SRQ_RESIZE"),
    (1 << 14, "N_NOTIFY_CQ"),
    (1 << 17, "MEM_WINDOW"),
    (1 << 18, "UD_IP_CSUM"),
    (1 << 20, "XRC"),
    (1 << 21, "MEM_MGT_EXTENSIONS"),
    (1 << 23, "MEM_WINDOW_TYPE_2A"),
    (1 << 24, "MEM_WINDOW_TYPE_2B"),
    (1 << 25, "RC_IP_CSUM"),
    (1 << 26, "RAW_IP_CSUM"),
    (1 << 29, "MANAGED_FLOW_STEERING"),
];

/// `IBV_DEVICE_*`, the upper half.
pub const DEVICE_CAP_FLAGS_EX: &Bits =
    &[(1 << 34, "RAW_SCATTER_FCS"), (1 << 36, "PCI_WRITE_END_PADDING"), (1 << 41, "CC_DMA_BOUNCE")];

/// `enum ibv_odp_general_caps`.
pub const ODP_GENERAL: &Bits = &[(1, "ODP_SUPPORT"), (1 << 1, "ODP_SUPPORT_IMPLICIT")];

/// `enum ibv_odp_transport_cap_bits`.
pub const ODP_TRANSPORT: &Bits = &[
    (1, "SUPPORT_SEND"),
    (1 << 1, "SUPPORT_RECV"),
    (1 << 2, "SUPPORT_WRITE"),
    (1 << 3, "SUPPORT_READ"),
    (1 << 4, "SUPPORT_ATOMIC"),
    (1 << 5, "SUPPORT_SRQ"),
    (1 << 6, "SUPPORT_FLUSH"),
    (1 << 7, "SUPPORT_ATOMIC_WRITE"),
];

/// Types of queue pairs, one bit each, in the order of rdma-core's output.
pub const RAW_PACKET_AND_UD: &Bits = &[(1 << 8, "SUPPORT_RAW_PACKET"), (1 << 4, "SUPPORT_UD")];

/// Same as [`RAW_PACKET_AND_UD`], for packet pacing.
pub const RAW_PACKET_UD_AND_RC: &Bits =
    &[(1 << 8, "SUPPORT_RAW_PACKET"), (1 << 4, "SUPPORT_UD"), (1 << 2, "SUPPORT_RC")];

/// `enum ibv_raw_packet_caps`.
pub const RAW_PACKET: &Bits = &[
    (1, "C-VLAN stripping offload"),
    (1 << 1, "Scatter FCS offload"),
    (1 << 2, "IP csum offload"),
    (1 << 3, "Delay drop"),
];

/// `enum ibv_tm_cap_flags`.
pub const TM: &Bits = &[(1, "IBV_TM_CAP_RC")];

/// Returns a port state's name.
pub fn port_state(state: PortState) -> &'static str {
    match state.0 {
        1 => "PORT_DOWN",
        2 => "PORT_INIT",
        3 => "PORT_ARMED",
        4 => "PORT_ACTIVE",
        _ => "invalid state",
    }
}

/// Returns a physical state's name, with rdma-core's spelling.
pub fn phys_state(state: u8) -> &'static str {
    match state {
        1 => "SLEEP",
        2 => "POLLING",
        3 => "DISABLED",
        4 => "PORT_CONFIGURATION TRAINNING",
        5 => "LINK_UP",
        6 => "LINK_ERROR_RECOVERY",
        7 => "PHY TEST",
        _ => "invalid physical state",
    }
}

/// Returns the name of an atomic capability.
pub fn atomic_cap(cap: AtomicCap) -> &'static str {
    match cap.0 {
        0 => "ATOMIC_NONE",
        1 => "ATOMIC_HCA",
        2 => "ATOMIC_GLOB",
        _ => "invalid atomic capability",
    }
}

/// Returns an MTU in bytes, as text.
pub fn mtu(mtu: Mtu) -> &'static str {
    match mtu.0 {
        1 => "256",
        2 => "512",
        3 => "1024",
        4 => "2048",
        5 => "4096",
        _ => "invalid MTU",
    }
}

/// Returns the number of lanes of a port, as text.
pub fn width(width: u8) -> &'static str {
    match width {
        1 => "1",
        2 => "4",
        4 => "8",
        8 => "12",
        16 => "2",
        _ => "invalid width",
    }
}

/// Returns the speed of a lane, as text.
pub fn speed(speed: u32) -> &'static str {
    match speed {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        256 => "200.0 Gbps",
        _ => "invalid speed",
    }
}

/// Returns the number of virtual lanes of a port, as text.
pub fn vl(vl_num: u8) -> &'static str {
    match vl_num {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid value",
    }
}

/// Returns the name of a port's link layer.
pub fn link_layer(link_layer: LinkLayer) -> &'static str {
    match link_layer.0 {
        0 => "Unspecified",
        1 => "InfiniBand",
        2 => "Ethernet",
        _ => "Unknown",
    }
}

/// Returns the print format of a GID and the name of its type on Ethernet; `None` for a type that
/// rdma-core omits.
pub fn gid_form(gid_type: GidType) -> Option<(GidForm, &'static str)> {
    match gid_type {
        GidType::IB | GidType::ROCE_V1 => Some((GidForm::Groups, "RoCE v1")),
        GidType::ROCE_V2 => Some((GidForm::Ipv6, "RoCE v2")),
        _ => None,
    }
}

/// The format of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidForm {
    /// Eight groups of four digits.
    Groups,
    /// The text form of an IPv6 address.
    Ipv6,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_split_into_names_and_the_rest() {
        assert_eq!(split(0, ODP_GENERAL), (vec![], 0));
        assert_eq!(split(0b1011, ODP_GENERAL), (vec!["ODP_SUPPORT", "ODP_SUPPORT_IMPLICIT"], 0b1000));
        // In rdma-core's order, not by bit.
        assert_eq!(split(0x114, RAW_PACKET_AND_UD), (vec!["SUPPORT_RAW_PACKET", "SUPPORT_UD"], 4));
        assert_eq!(split(1 << 63, DEVICE_CAP_FLAGS_EX), (vec![], 1 << 63));
    }

    #[test]
    fn no_two_bits_of_a_table_are_the_same() {
        for bits in [DEVICE_CAP_FLAGS, DEVICE_CAP_FLAGS_EX, ODP_GENERAL, ODP_TRANSPORT, RAW_PACKET, TM] {
            let sum: u64 = bits.iter().map(|(bit, _)| bit).sum();
            assert_eq!(sum.count_ones() as usize, bits.len());
        }
    }
}
