//! The path of a datagram or a connection: [`AhAttr`] before resolution, [`Av`] after.

use core::fmt;

use super::{Gid, GidEntry, Grh, Rate, Wc};

/// The global part of an address. It becomes the GRH or, on RoCE v2, the IP header.
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The destination GID.
    pub dgid: Gid,
    /// The flow label, 20 bits; on RoCE v2 it determines the UDP source port.
    pub flow_label: u32,
    /// The index of the source GID in the local port's GID table: [`GidEntry::gid_index`]. Kernel
    /// commands encode it in 8 bits; larger indices are rejected when the path is used.
    pub sgid_index: u32,
    /// The hop limit: the maximum number of routers that a packet may traverse.
    pub hop_limit: u8,
    /// The traffic class; on RoCE, the TOS/DSCP field of the IP header.
    pub traffic_class: u8,
}

impl GlobalRoute {
    /// The default hop limit, equal to the time to live of the kernel's own IP packets.
    pub const HOP_LIMIT: u8 = 64;

    /// The mask of the 20 bits in a flow label.
    #[doc(alias = "IB_GRH_FLOWLABEL_MASK")]
    pub const FLOW_LABEL_MASK: u32 = 0xf_ffff;

    /// The lowest UDP source port that RoCE v2 uses.
    ///
    /// # References
    /// IBTA volume 1, annex A17
    #[doc(alias = "IB_ROCE_UDP_ENCAP_VALID_PORT_MIN")]
    pub const UDP_SPORT_MIN: u16 = 0xc000;

    /// The highest UDP source port that RoCE v2 uses.
    #[doc(alias = "IB_ROCE_UDP_ENCAP_VALID_PORT_MAX")]
    pub const UDP_SPORT_MAX: u16 = 0xffff;

    /// Returns the UDP source port that RoCE v2 devices derive from all 20 bits of a flow label.
    /// Routers use the port to choose among paths.
    ///
    /// ```
    /// # mod verbs { pub use verbs_core::types::*; }
    /// use verbs::GlobalRoute;
    /// assert_eq!(GlobalRoute::flow_label_to_udp_sport(0x4001), 0xc000);
    /// assert_eq!(GlobalRoute::flow_label_to_udp_sport(0x0002), 0xc002);
    /// ```
    #[doc(alias = "ibv_flow_label_to_udp_sport")]
    pub const fn flow_label_to_udp_sport(flow_label: u32) -> u16 {
        let label = flow_label & Self::FLOW_LABEL_MASK;
        // Folds the high 6 bits into the low bits, so that labels differing there get different
        // ports.
        let folded = (label ^ (label >> 14)) & !(Self::UDP_SPORT_MIN as u32);
        folded as u16 | Self::UDP_SPORT_MIN
    }
}

/// The route from GID table entry 0 to the zero GID, with a hop limit of
/// [`GlobalRoute::HOP_LIMIT`].
impl Default for GlobalRoute {
    fn default() -> Self {
        Self { dgid: Gid::ZERO, flow_label: 0, sgid_index: 0, hop_limit: Self::HOP_LIMIT, traffic_class: 0 }
    }
}

/// The path to a peer, for `create_ah` and `modify`.
///
/// [`new`](Self::new) creates a path for RoCE, or for InfiniBand across subnets; [`lid`](Self::lid)
/// creates a path within the port's InfiniBand subnet. Other fields are set with struct update
/// syntax:
///
/// ```
/// use std::net::Ipv4Addr;
/// # mod verbs { pub use verbs_core::types::*; }
/// use verbs::{AhAttr, Gid, GidEntry, GidType};
///
/// # let gid = Gid::from(Ipv4Addr::new(192, 0, 2, 1));
/// # let (gid_type, ndev_ifindex) = (GidType::ROCE_V2, 2);
/// # let source = GidEntry { gid, gid_index: 3, port_num: 1, gid_type, ndev_ifindex };
/// let peer: Gid = "192.0.2.7".parse()?;
/// let path = AhAttr { sl: 3, ..AhAttr::new(&source, peer) };
/// assert_eq!(path.grh.map(|grh| (grh.sgid_index, grh.hop_limit)), Some((3, 64)));
/// # Ok::<(), verbs_core::types::ParseError>(())
/// ```
///
/// # References
/// `ibv_create_ah(3)`, `ibv_modify_qp(3)`
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhAttr {
    /// The global part; required on RoCE and across InfiniBand subnets.
    pub grh: Option<GlobalRoute>,
    /// The destination's local id; 0 on RoCE.
    pub dlid: u16,
    /// The service level, 0 to 15.
    pub sl: u8,
    /// The path bits: the low bits of the source local id.
    pub src_path_bits: u8,
    /// The static rate of the path.
    pub static_rate: Rate,
    /// The number of the local port for outgoing packets, from 1.
    pub port_num: u8,
}

impl AhAttr {
    /// Returns the path from an entry of the local GID table to a peer's GID, through the entry's
    /// port, with a hop limit of [`GlobalRoute::HOP_LIMIT`].
    ///
    /// If the entry's port number exceeds 255, the path has port 0, which every verb rejects. Verbs
    /// cannot name such ports.
    pub fn new(source: &GidEntry, dgid: Gid) -> Self {
        let grh = GlobalRoute { dgid, sgid_index: source.gid_index, ..GlobalRoute::default() };
        Self { grh: Some(grh), port_num: u8::try_from(source.port_num).unwrap_or(0), ..Self::default() }
    }

    /// Returns the path from a port to a local id in the same InfiniBand subnet, without a GRH.
    /// Such paths do not exist on RoCE.
    pub const fn lid(port_num: u8, dlid: u16) -> Self {
        Self { grh: None, dlid, sl: 0, src_path_bits: 0, static_rate: Rate::MAX, port_num }
    }

    /// Returns the path back to the sender of a datagram that arrived at a port with the GID table
    /// `table`.
    ///
    /// `grh` is the result of [`Grh::parse`] for the first 40 bytes of the receive; `None` if the
    /// completion lacks [`WcFlags::GRH`](super::WcFlags::GRH). The source of the path is the GID
    /// table entry that matches the datagram's destination. The path has a hop limit of 255.
    ///
    /// Returns `None` if the port has no entry with the datagram's destination GID and protocol.
    ///
    /// # References
    /// `ibv_init_ah_from_wc(3)`; IBTA volume 1, section 13.5.4.4 (response address)
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn from_wc(wc: &Wc, grh: Option<&Grh>, port_num: u8, table: &[GidEntry]) -> Option<Self> {
        let local = Self { sl: wc.sl, src_path_bits: wc.dlid_path_bits, ..Self::lid(port_num, wc.slid) };
        let Some(grh) = grh else { return Some(local) };
        let source = table.iter().find(|entry| {
            entry.port_num == u32::from(port_num) && entry.gid == grh.dgid && grh.is_of(entry.gid_type)
        })?;
        let route = GlobalRoute {
            dgid: grh.sgid,
            flow_label: grh.flow_label,
            sgid_index: source.gid_index,
            hop_limit: u8::MAX,
            traffic_class: grh.traffic_class,
        };
        Some(Self { grh: Some(route), ..local })
    }
}

/// Returns a path from port 1 without a destination.
impl Default for AhAttr {
    fn default() -> Self {
        Self::lid(1, 0)
    }
}

/// A resolved address (address vector), which a provider copies into a datagram's WQE.
///
/// Only the provider that created it can read it; the tag identifies the provider.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Av {
    tag: u32,
    len: u32,
    bytes: [u8; Self::MAX],
}

impl Av {
    /// The maximum number of bytes that a provider can store in an address vector.
    pub const MAX: usize = 96;

    /// Creates an address vector for the provider that owns `tag` (its kernel driver id).
    ///
    /// # Panics
    /// If `bytes` is longer than [`Av::MAX`], which is a bug in the provider.
    pub fn new(tag: u32, bytes: &[u8]) -> Self {
        let mut av = Self { tag, len: bytes.len() as u32, bytes: [0; Self::MAX] };
        av.bytes[..bytes.len()].copy_from_slice(bytes);
        av
    }

    /// Returns the provider's bytes, or `None` if another provider created the address vector.
    #[inline(always)]
    pub fn bytes(&self, tag: u32) -> Option<&[u8]> {
        if self.tag == tag { self.bytes.get(..self.len as usize) } else { None }
    }
}

impl fmt::Debug for Av {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Av").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// The destination of one datagram: the path, the peer's queue pair number and the queue key.
#[derive(Clone, Copy, Debug)]
pub struct UdAddr<'a> {
    /// The path, from an address handle.
    pub av: &'a Av,
    /// The peer's queue pair number, 24 bits.
    pub remote_qpn: u32,
    /// The peer's queue key; with the top bit set, the sender's own queue key is used.
    pub remote_qkey: u32,
}

impl UdAddr<'_> {
    /// The queue pair number for multicast datagrams, used with the path to a multicast group.
    ///
    /// # References
    /// IBTA volume 1, section 9.6.1 (`0xffffff`)
    pub const MULTICAST_QPN: u32 = 0xff_ffff;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::types::{GidType, WcFlags};

    fn entry(gid_index: u32, port_num: u32, gid_type: GidType, gid: impl Into<Gid>) -> GidEntry {
        GidEntry { gid: gid.into(), gid_index, port_num, gid_type, ndev_ifindex: 2 }
    }

    const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn a_path_needs_a_source_entry_and_a_destination_only() {
        let path = AhAttr::new(&entry(300, 2, GidType::ROCE_V2, HERE), THERE.into());
        let grh = path.grh.unwrap();
        assert_eq!((path.port_num, grh.sgid_index, grh.hop_limit), (2, 300, 64));
        assert_eq!(grh.dgid, Gid::from(THERE));
    }

    #[test]
    fn every_bit_of_a_flow_label_counts_in_the_port() {
        let port = GlobalRoute::flow_label_to_udp_sport;
        assert_eq!((port(0), port(0x3fff)), (GlobalRoute::UDP_SPORT_MIN, GlobalRoute::UDP_SPORT_MAX));
        assert_eq!(port(GlobalRoute::FLOW_LABEL_MASK), 0xc000 | 0x3fff ^ 0x3f);
        // The value of `ibv_flow_label_to_udp_sport`: 0x1cde ^ (0xe8000 >> 14).
        assert_eq!(port(0xe_9cde), 0xdce4);
        for bit in 0..20 {
            assert_ne!(port(1 << bit), port(0), "bit {bit}");
        }
        assert_eq!(port(1 << 20), port(0), "a label has 20 bits");
    }

    #[test]
    fn defaults_work_without_being_looked_up() {
        assert_eq!((AhAttr::default().port_num, GlobalRoute::default().hop_limit), (1, 64));
        let path = AhAttr::lid(2, 7);
        assert_eq!((path.port_num, path.dlid, path.grh), (2, 7, None));
    }

    #[test]
    fn an_entry_of_a_port_that_no_verb_can_name_is_no_other_port() {
        assert_eq!(AhAttr::new(&entry(0, 257, GidType::ROCE_V2, HERE), THERE.into()).port_num, 0);
    }

    #[test]
    fn a_reply_leaves_by_the_address_that_the_datagram_was_sent_to() {
        let table = [
            entry(0, 1, GidType::ROCE_V2, Ipv4Addr::new(10, 0, 0, 9)),
            entry(1, 1, GidType::ROCE_V1, HERE),
            entry(2, 2, GidType::ROCE_V2, HERE),
            entry(3, 1, GidType::ROCE_V2, HERE),
        ];
        let grh = Grh {
            sgid: THERE.into(),
            dgid: HERE.into(),
            traffic_class: 8,
            flow_label: 0xabcde,
            hop_limit: 63,
            next_header: Grh::UDP,
        };
        let wc = Wc { slid: 5, sl: 3, dlid_path_bits: 1, wc_flags: WcFlags::GRH, ..Wc::default() };
        let reply = AhAttr::from_wc(&wc, Some(&grh), 1, &table).unwrap();
        let route = GlobalRoute {
            dgid: THERE.into(),
            flow_label: 0xabcde,
            sgid_index: 3,
            hop_limit: 255,
            traffic_class: 8,
        };
        let local = AhAttr { sl: 3, src_path_bits: 1, ..AhAttr::lid(1, 5) };
        assert_eq!(reply, AhAttr { grh: Some(route), ..local });
        assert_eq!(AhAttr::from_wc(&wc, None, 1, &table), Some(local), "InfiniBand needs no GRH");
        assert_eq!(AhAttr::from_wc(&wc, Some(&grh), 1, &table[..3]), None);
    }
}
