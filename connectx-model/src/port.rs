//! [`Port`]: the addresses, state and counters of the function's InfiniBand or RoCE port.
//!
//! | | InfiniBand | RoCE |
//! |---|---|---|
//! | address | LID 1 + index; GID 0 is fe80:: + port GUID | MAC; 16 RoCE addresses, set by driver |
//! | link | up, without a subnet manager | up, unless the driver disables the port |
//! | partition keys | 0xffff; the others are invalid | 0xffff |
//!
//! Invariant: no two functions in a fabric share an address.

use roce::engine::Gid;

use crate::destination::Mac;
use crate::layout::vport::{nic_vport_context, roce_addr_layout};

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// InfiniBand.
    Ib,
    /// Ethernet with RoCE.
    Roce,
}

/// Number of entries in the RoCE address table of a port.
pub const ROCE_ADDRESSES: usize = 16;
/// The lowest UDP source port for RoCE version 2; the highest is 65535.
pub(crate) const UDP_SOURCE_PORTS: u16 = 0xc000;
/// Number of entries in the GID table of an InfiniBand port.
pub(crate) const IB_GIDS: usize = 8;
/// Number of entries in the partition key table of an InfiniBand port.
pub(crate) const PKEYS: usize = 128;
/// The LID that a subnet manager would have.
pub(crate) const SM_LID: u16 = 1;
/// Maximum Ethernet frame length that a driver can select, including the check sequence, in bytes.
pub(crate) const MAX_FRAME: u32 = 10_222;
/// Length of an Ethernet frame with 1500 bytes of payload, a VLAN tag and the check sequence, in
/// bytes.
const DEFAULT_FRAME: u32 = 1522;
/// The capability mask of an InfiniBand port: traps, system image GUID, client reregistration,
/// communication management, notices.
const IB_CAPABILITIES: u32 = 0x0251_0868;
/// Maximum payload of an InfiniBand packet, in bytes.
pub(crate) const IB_MTU: u32 = 4096;

/// The port: its link layer, state, addresses and counters.
#[derive(Debug)]
pub struct Port {
    /// The link layer.
    pub kind: PortKind,
    /// Whether the link is up: the cable is connected and the driver has enabled the port.
    pub up: bool,
    index: usize,
    /// Whether the cable is connected.
    pub(crate) linked: bool,
    /// Whether the driver has enabled the port.
    pub(crate) enabled: bool,
    roce: [Option<RoceAddress>; ROCE_ADDRESSES],
    longest_frame: u32,
    /// The context of an Ethernet port, as set by the driver.
    pub(crate) nic: [u8; nic_vport_context::SIZE],
    /// The address lists set by the driver: unicast, multicast, VLANs. Each entry has 8 bytes.
    pub(crate) lists: [Vec<u8>; 3],
    /// The capability mask of an InfiniBand port, as set by the driver.
    pub(crate) capabilities: u32,
    pub(crate) node_description: [u8; 64],
    /// The host byte order that the driver has reported: 0 means little-endian.
    pub(crate) host_endianness: u8,
    pub(crate) counters: Counters,
}

/// An entry of the RoCE address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoceAddress {
    pub(crate) gid: Gid,
    pub(crate) mac: Mac,
    pub(crate) vlan: Option<u16>,
    /// Whether the address is for RoCE version 2 (over UDP) instead of version 1.
    pub(crate) over_udp: bool,
    /// The entry as the driver wrote it.
    pub(crate) layout: [u8; roce_addr_layout::SIZE],
}

impl RoceAddress {
    /// Returns the header type that completions report for datagrams from this address: 0 GRH, 1
    /// IPv6, 2 IPv4.
    pub(crate) fn header_type(&self) -> u8 {
        match (self.over_udp, self.gid) {
            (false, _) => 0,
            (true, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..]) => 2,
            (true, _) => 1,
        }
    }

    /// Returns whether packets from this address may have this UDP source port. RoCE version 1
    /// requires 0.
    pub(crate) fn may_send_from(&self, source_port: u16) -> bool {
        if self.over_udp { source_port >= UDP_SOURCE_PORTS } else { source_port == 0 }
    }
}

/// Traffic counters of the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_multicast: u64,
    pub(crate) received_multicast: u64,
}

impl Port {
    /// Returns the port of the function with this index. The link is up.
    pub(crate) fn new(kind: PortKind, index: usize) -> Self {
        let mut port = Self {
            kind,
            up: true,
            index,
            linked: true,
            enabled: true,
            roce: [None; ROCE_ADDRESSES],
            longest_frame: 0,
            nic: [0; nic_vport_context::SIZE],
            lists: Default::default(),
            capabilities: 0,
            node_description: [0; 64],
            host_endianness: 0,
            counters: Counters::default(),
        };
        port.forget();
        port
    }

    /// Resets everything that the driver has set.
    pub(crate) fn forget(&mut self) {
        self.roce = [None; ROCE_ADDRESSES];
        self.lists = Default::default();
        self.longest_frame = DEFAULT_FRAME;
        self.capabilities = IB_CAPABILITIES;
        self.node_description = [0; 64];
        let name = b"ConnectX model";
        self.node_description[..name.len()].copy_from_slice(name);
        self.nic = [0; nic_vport_context::SIZE];
        nic_vport_context::MTU.set(&mut self.nic, DEFAULT_FRAME);
        let (node, port, mac) = (self.node_guid(), self.port_guid(), self.mac());
        nic_vport_context::SYSTEM_IMAGE_GUID.set(&mut self.nic, node);
        nic_vport_context::NODE_GUID.set(&mut self.nic, node);
        nic_vport_context::PORT_GUID.set(&mut self.nic, port);
        nic_vport_context::MAC_ADDR_47_32.set(&mut self.nic, u16::from_be_bytes([mac[0], mac[1]]));
        nic_vport_context::MAC_ADDR_31_0
            .set(&mut self.nic, u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]));
    }

    /// Returns the node GUID, which is also the system image GUID.
    pub fn node_guid(&self) -> u64 {
        0x0002_c903_00c5_0000 + (self.index as u64 & 0xff) * 0x100
    }

    /// Returns the port's GUID.
    pub fn port_guid(&self) -> u64 {
        self.node_guid() + 1
    }

    /// Returns the port's LID.
    pub fn lid(&self) -> u16 {
        (self.index as u16 & 0xff) + 1
    }

    /// Returns the port's initial MAC address.
    pub fn mac(&self) -> [u8; 6] {
        [0x02, 0xc9, 0x03, 0xc5, self.index as u8, 0x01]
    }

    /// Returns the GID at an index of the port's table; `None` if the entry is empty.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        match (self.kind, index) {
            (PortKind::Roce, _) => self.roce_address(index).map(|address| address.gid),
            (PortKind::Ib, 0) => {
                let mut gid = [0; 16];
                gid[..2].copy_from_slice(&[0xfe, 0x80]);
                gid[8..].copy_from_slice(&self.port_guid().to_be_bytes());
                Some(gid)
            }
            (PortKind::Ib, _) => None,
        }
    }

    /// Returns whether `gid` is one of the port's GIDs.
    pub fn has_gid(&self, gid: &Gid) -> bool {
        (0..ROCE_ADDRESSES).any(|index| self.gid(index).as_ref() == Some(gid))
    }

    /// Returns the MAC addresses in the RoCE address entries with this GID.
    pub(crate) fn macs_of(&self, gid: &Gid) -> impl Iterator<Item = Mac> {
        self.roce.iter().flatten().filter(|address| address.gid == *gid).map(|address| address.mac)
    }

    /// Returns the partition key at an index of the port's table; 0 is an invalid key.
    pub fn pkey(&self, index: usize) -> u16 {
        if index == 0 { 0xffff } else { 0 }
    }

    /// Returns the entry at an index of the RoCE address table; `None` if the entry is empty.
    pub(crate) fn roce_address(&self, index: usize) -> Option<&RoceAddress> {
        self.roce.get(index)?.as_ref()
    }

    /// Sets an entry of the RoCE address table; a GID of all zeros clears the entry. Returns
    /// whether the index is valid.
    pub(crate) fn set_roce_address(&mut self, index: usize, layout: &[u8]) -> bool {
        let Some(place) = self.roce.get_mut(index) else { return false };
        let mut kept = [0; roce_addr_layout::SIZE];
        crate::layout::put(&mut kept, 0, layout);
        let mut gid = [0; 16];
        gid.copy_from_slice(&kept[..16]);
        let high = roce_addr_layout::SOURCE_MAC_47_32.get32(&kept).to_be_bytes();
        let low = roce_addr_layout::SOURCE_MAC_31_0.get32(&kept).to_be_bytes();
        let vlan = roce_addr_layout::VLAN_VALID.is_set(&kept);
        *place = (gid != [0; 16]).then_some(RoceAddress {
            gid,
            mac: [high[2], high[3], low[0], low[1], low[2], low[3]],
            vlan: vlan.then_some(roce_addr_layout::VLAN_ID.get32(&kept) as u16),
            over_udp: roce_addr_layout::ROCE_VERSION.get32(&kept) == ROCE_V2,
            layout: kept,
        });
        true
    }

    /// Returns whether the port loops a frame back to its own function: its destination is a group,
    /// the MAC address in the port's context or an address in the driver's lists. The driver may
    /// disable this for groups or for the other addresses.
    pub(crate) fn loops_back(&self, frame: &[u8]) -> bool {
        if crate::frame::is_group(frame) {
            return !nic_vport_context::DISABLE_MC_LOCAL_LB.is_set(&self.nic);
        }
        let Some(to) = frame.get(..6) else { return false };
        let [high, low] = [nic_vport_context::MAC_ADDR_47_32, nic_vport_context::MAC_ADDR_31_0];
        let own = high.get(&self.nic) << 32 | low.get(&self.nic);
        let [unicast, ..] = &self.lists;
        // In the context and in the lists, two bytes of padding precede each address.
        let is_own = own.to_be_bytes().get(2..) == Some(to)
            || unicast.chunks_exact(8).any(|listed| listed.get(2..) == Some(to));
        is_own && !nic_vport_context::DISABLE_UC_LOCAL_LB.is_set(&self.nic)
    }

    /// Returns the maximum Ethernet frame length, including the check sequence, in bytes.
    pub(crate) fn longest_frame(&self) -> usize {
        self.longest_frame as usize
    }

    /// Sets the maximum Ethernet frame length, including the check sequence, in bytes.
    pub(crate) fn set_longest_frame(&mut self, bytes: u32) {
        self.longest_frame = bytes.min(MAX_FRAME);
    }
}

/// The value for RoCE version 2 in the RoCE address table.
pub(crate) const ROCE_V2: u32 = 2;

impl Counters {
    /// Counts a sent packet of `bytes` bytes.
    pub(crate) fn sent(&mut self, bytes: usize, multicast: bool) {
        self.sent_packets += 1;
        self.sent_bytes += bytes as u64;
        self.sent_multicast += u64::from(multicast);
    }

    /// Counts a received packet of `bytes` bytes.
    pub(crate) fn received(&mut self, bytes: usize, multicast: bool) {
        self.received_packets += 1;
        self.received_bytes += bytes as u64;
        self.received_multicast += u64::from(multicast);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_functions_differ_in_every_address() {
        for kind in [PortKind::Ib, PortKind::Roce] {
            let (one, two) = (Port::new(kind, 0), Port::new(kind, 1));
            assert_ne!(one.node_guid(), two.node_guid());
            assert_ne!(one.port_guid(), two.port_guid());
            assert_ne!(one.mac(), two.mac());
            assert_ne!(one.lid(), two.lid());
        }
        assert_eq!((Port::new(PortKind::Ib, 0).lid(), Port::new(PortKind::Ib, 1).lid()), (1, 2));
    }

    #[test]
    fn an_ib_port_has_one_gid_made_of_its_guid() {
        let port = Port::new(PortKind::Ib, 1);
        let gid = port.gid(0).unwrap();
        assert_eq!(gid[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(gid[8..], port.port_guid().to_be_bytes());
        assert!(port.has_gid(&gid) && port.gid(1).is_none());
    }

    #[test]
    fn a_roce_address_is_put_in_and_taken_out() {
        let mut port = Port::new(PortKind::Roce, 0);
        let mut layout = [0; roce_addr_layout::SIZE];
        layout[10..16].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        roce_addr_layout::SOURCE_MAC_47_32.set(&mut layout, 0x02c9u32);
        roce_addr_layout::SOURCE_MAC_31_0.set(&mut layout, 0x03c5_0001u32);
        roce_addr_layout::ROCE_VERSION.set(&mut layout, ROCE_V2);
        roce_addr_layout::VLAN_ID.set(&mut layout, 7u32);
        assert!(port.set_roce_address(3, &layout));
        let address = port.roce_address(3).unwrap();
        assert_eq!(address.mac, [0x02, 0xc9, 0x03, 0xc5, 0x00, 0x01]);
        assert_eq!((address.over_udp, address.vlan, address.header_type()), (true, None, 2));
        assert!(port.has_gid(&address.gid.clone()));
        assert!(port.set_roce_address(3, &[0; roce_addr_layout::SIZE]));
        assert_eq!(port.gid(3), None);
        assert!(!port.set_roce_address(ROCE_ADDRESSES, &layout));
    }
}
