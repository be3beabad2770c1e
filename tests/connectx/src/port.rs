//! [`Port`]: the function's port, InfiniBand or RoCE: addresses, state, counters.
//!
//! | | InfiniBand | RoCE |
//! |---|---|---|
//! | address | LID 1 + index; GID 0 is fe80:: and the port's GUID | MAC; 16 RoCE addresses that the driver sets |
//! | comes up | by itself: there is no subnet manager | by itself, unless the driver turns it off |
//! | partition keys | 0xffff, then none | 0xffff |
//!
//! Invariant: two functions of a fabric differ in every address.

use roce::engine::Gid;

use crate::bus::Bus;
use crate::eq::EventType;
use crate::function::Core;
use crate::layout::eqe;
use crate::layout::vport::{nic_vport_context, roce_addr_layout};

/// What a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// InfiniBand.
    Ib,
    /// Ethernet with RoCE.
    Roce,
}

/// How many RoCE addresses a port has.
pub const ROCE_ADDRESSES: usize = 16;
/// How many GIDs an InfiniBand port has.
pub(crate) const IB_GIDS: usize = 8;
/// How many partition keys an InfiniBand port has.
pub(crate) const PKEYS: usize = 128;
/// The LID of the subnet manager that there would be.
pub(crate) const SM_LID: u16 = 1;
/// The longest Ethernet frame that can be chosen, with its checksum.
pub(crate) const MAX_FRAME: u32 = 10_222;
/// An Ethernet frame with 1500 bytes of payload, a VLAN tag and a checksum.
const DEFAULT_FRAME: u32 = 1522;
/// What an InfiniBand port can: traps, system image GUID, client reregistration, communication management, notices.
const IB_CAPABILITIES: u32 = 0x0251_0868;
/// The payload of an InfiniBand packet.
pub(crate) const IB_MTU: u32 = 4096;

/// The port's state and addresses.
#[derive(Debug)]
pub struct Port {
    /// What it is.
    pub kind: PortKind,
    /// The link is up: nobody pulled the cable, and the driver did not turn it off.
    pub up: bool,
    index: usize,
    /// The cable is there.
    linked: bool,
    /// The driver wants it up.
    pub(crate) enabled: bool,
    roce: [Option<RoceAddress>; ROCE_ADDRESSES],
    longest_frame: u32,
    /// Context of an Ethernet port, as the driver has set it.
    pub(crate) nic: [u8; nic_vport_context::SIZE],
    /// Lists of addresses that the driver wants: unicast, multicast, VLANs; 8 bytes each.
    pub(crate) lists: [Vec<u8>; 3],
    /// What an InfiniBand port can, as the driver has set it.
    pub(crate) capabilities: u32,
    pub(crate) node_description: [u8; 64],
    /// Which host byte order the driver told: 0 is little.
    pub(crate) host_endianness: u8,
    pub(crate) counters: Counters,
}

/// An entry of the RoCE address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoceAddress {
    pub(crate) gid: Gid,
    pub(crate) mac: [u8; 6],
    pub(crate) vlan: Option<u16>,
    /// RoCE version 2, over UDP; version 1 otherwise.
    pub(crate) over_udp: bool,
    /// As the driver gave it.
    pub(crate) layout: [u8; roce_addr_layout::SIZE],
}

impl RoceAddress {
    /// What completions of datagrams from this address say of the header: a GRH, IPv6, IPv4.
    pub(crate) fn header_type(&self) -> u8 {
        match (self.over_udp, self.gid) {
            (false, _) => 0,
            (true, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..]) => 2,
            (true, _) => 1,
        }
    }
}

/// What went through the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_multicast: u64,
    pub(crate) received_multicast: u64,
}

/// Which change of a port an event tells of.
const SUBTYPE_DOWN: u8 = 1;
const SUBTYPE_ACTIVE: u8 = 4;

impl Port {
    /// A port that is up, of the function at this place.
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

    /// Forgets what a driver has set.
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

    /// The node's GUID; the system's too.
    pub fn node_guid(&self) -> u64 {
        0x0002_c903_00c5_0000 + (self.index as u64 & 0xff) * 0x100
    }

    /// The port's GUID.
    pub fn port_guid(&self) -> u64 {
        self.node_guid() + 1
    }

    /// The LID of an InfiniBand port.
    pub fn lid(&self) -> u16 {
        (self.index as u16 & 0xff) + 1
    }

    /// The MAC address that the port was made with.
    pub fn mac(&self) -> [u8; 6] {
        [0x02, 0xc9, 0x03, 0xc5, self.index as u8, 0x01]
    }

    /// The GID at this place of the table. `None`: there is none.
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

    /// Is this one of the port's GIDs?
    pub fn has_gid(&self, gid: &Gid) -> bool {
        (0..ROCE_ADDRESSES).any(|index| self.gid(index).as_ref() == Some(gid))
    }

    /// The partition key at this place of the table; 0 is none.
    pub fn pkey(&self, index: usize) -> u16 {
        if index == 0 { 0xffff } else { 0 }
    }

    /// The RoCE address at this place of the table.
    pub(crate) fn roce_address(&self, index: usize) -> Option<&RoceAddress> {
        self.roce.get(index)?.as_ref()
    }

    /// Puts a RoCE address into the table, or nothing: an address of zeros. `false`: there is no such place.
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

    /// Does the port hear this frame if it sends it? Groups, and addresses that are its own: that of its context, and those that
    /// the driver has listed.
    pub(crate) fn loops_back(&self, frame: &[u8]) -> bool {
        if crate::eth::frame::is_group(frame) {
            return !nic_vport_context::DISABLE_MC_LOCAL_LB.is_set(&self.nic);
        }
        let Some(to) = frame.get(..6) else { return false };
        let [high, low] = [nic_vport_context::MAC_ADDR_47_32, nic_vport_context::MAC_ADDR_31_0];
        let own = high.get(&self.nic) << 32 | low.get(&self.nic);
        let [unicast, ..] = &self.lists;
        // Two bytes that nothing is in go before each address.
        let is_own = own.to_be_bytes().get(2..) == Some(to)
            || unicast.chunks_exact(8).any(|listed| listed.get(2..) == Some(to));
        is_own && !nic_vport_context::DISABLE_UC_LOCAL_LB.is_set(&self.nic)
    }

    /// The longest Ethernet frame, with its checksum.
    pub(crate) fn longest_frame(&self) -> usize {
        self.longest_frame as usize
    }

    /// Chooses the longest Ethernet frame.
    pub(crate) fn set_longest_frame(&mut self, bytes: u32) {
        self.longest_frame = bytes.min(MAX_FRAME);
    }
}

/// The version of RoCE over UDP, in the RoCE address table.
pub(crate) const ROCE_V2: u32 = 2;

impl Counters {
    /// A packet has left.
    pub(crate) fn sent(&mut self, bytes: usize, multicast: bool) {
        self.sent_packets += 1;
        self.sent_bytes += bytes as u64;
        self.sent_multicast += u64::from(multicast);
    }

    /// A packet has come.
    pub(crate) fn received(&mut self, bytes: usize, multicast: bool) {
        self.received_packets += 1;
        self.received_bytes += bytes as u64;
        self.received_multicast += u64::from(multicast);
    }
}

impl<B: Bus> Core<B> {
    /// The cable is put in, or pulled.
    pub(crate) fn set_link(&mut self, linked: bool) {
        self.port.linked = linked;
        self.settle_port();
    }

    /// The driver turns the port on, or off.
    pub(crate) fn set_port_enabled(&mut self, enabled: bool) {
        self.port.enabled = enabled;
        self.settle_port();
    }

    fn settle_port(&mut self) {
        let up = self.port.linked && self.port.enabled;
        if self.port.up == up {
            return;
        }
        self.port.up = up;
        let mut data = [0; 28];
        eqe::port::PORT_NUM.set(&mut data, 1u32);
        self.event(EventType::PortChange, if up { SUBTYPE_ACTIVE } else { SUBTYPE_DOWN }, &data);
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
