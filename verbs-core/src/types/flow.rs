//! Flow rules, which direct packets to a queue pair and may act on them.
//!
//! A rule ([`FlowAttr`]) is a list of specifications ([`FlowSpec`]). Specifications with `val` and
//! `mask` match a header; the others act on the matching packets. Numbers are in host order here
//! and in network order in the kernel command.

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::flags::bitflags;
use super::open_enum;

open_enum! {
    /// The kind of a flow rule.
    ///
    /// # References
    /// `ibv_create_flow(3)`
    #[doc(alias = "ibv_flow_attr_type")]
    pub enum FlowAttrType(u32) {
        /// The queue pair receives packets that match all specifications.
        #[doc(alias = "IBV_FLOW_ATTR_NORMAL")]
        NORMAL = 0, "normal";
        /// The queue pair receives all packets that match no other rule.
        #[doc(alias = "IBV_FLOW_ATTR_ALL_DEFAULT")]
        ALL_DEFAULT = 1, "all default";
        /// The queue pair receives all multicast packets that match no other rule.
        #[doc(alias = "IBV_FLOW_ATTR_MC_DEFAULT")]
        MC_DEFAULT = 2, "multicast default";
        /// The queue pair receives a copy of every packet at the port.
        #[doc(alias = "IBV_FLOW_ATTR_SNIFFER")]
        SNIFFER = 3, "sniffer";
    }
}

bitflags! {
    /// Options of a flow rule.
    ///
    /// # References
    /// `ibv_create_flow(3)`
    #[doc(alias = "ibv_flow_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct FlowFlags: u32 {
        /// Matching packets are also passed on to rules with lower priority.
        #[doc(alias = "IBV_FLOW_ATTR_FLAGS_DONT_TRAP")]
        const DONT_TRAP = 1 << 1;
        /// The rule applies to packets sent by the queue pair.
        #[doc(alias = "IBV_FLOW_ATTR_FLAGS_EGRESS")]
        const EGRESS = 1 << 2;

        const _ = !0;
    }
}

open_enum! {
    /// The kernel's type code for a specification.
    #[doc(alias = "ibv_flow_spec_type")]
    pub enum FlowSpecType(u32) {
        /// Ethernet.
        #[doc(alias = "IBV_FLOW_SPEC_ETH")]
        ETH = 0x20, "Ethernet";
        /// IPv4.
        #[doc(alias = "IBV_FLOW_SPEC_IPV4")]
        IPV4 = 0x30, "IPv4";
        /// IPv6.
        #[doc(alias = "IBV_FLOW_SPEC_IPV6")]
        IPV6 = 0x31, "IPv6";
        /// IPv4 with all fields. The kernel represents it as a larger [`IPV4`](Self::IPV4).
        #[doc(alias = "IBV_FLOW_SPEC_IPV4_EXT")]
        IPV4_EXT = 0x32, "extended IPv4";
        /// ESP.
        #[doc(alias = "IBV_FLOW_SPEC_ESP")]
        ESP = 0x34, "ESP";
        /// TCP.
        #[doc(alias = "IBV_FLOW_SPEC_TCP")]
        TCP = 0x40, "TCP";
        /// UDP.
        #[doc(alias = "IBV_FLOW_SPEC_UDP")]
        UDP = 0x41, "UDP";
        /// VXLAN.
        #[doc(alias = "IBV_FLOW_SPEC_VXLAN_TUNNEL")]
        VXLAN_TUNNEL = 0x50, "VXLAN";
        /// GRE.
        #[doc(alias = "IBV_FLOW_SPEC_GRE")]
        GRE = 0x51, "GRE";
        /// MPLS.
        #[doc(alias = "IBV_FLOW_SPEC_MPLS")]
        MPLS = 0x60, "MPLS";
        /// The bit that marks a header inside a tunnel.
        #[doc(alias = "IBV_FLOW_SPEC_INNER")]
        INNER = 0x100, "inner";
        /// A tag reported in completions.
        #[doc(alias = "IBV_FLOW_SPEC_ACTION_TAG")]
        ACTION_TAG = 0x1000, "tag";
        /// An action that drops packets.
        #[doc(alias = "IBV_FLOW_SPEC_ACTION_DROP")]
        ACTION_DROP = 0x1001, "drop";
        /// A flow action that is applied to packets.
        #[doc(alias = "IBV_FLOW_SPEC_ACTION_HANDLE")]
        ACTION_HANDLE = 0x1002, "action";
        /// Counters for matching packets.
        #[doc(alias = "IBV_FLOW_SPEC_ACTION_COUNT")]
        ACTION_COUNT = 0x1003, "count";
    }
}

/// The fields of an Ethernet header.
#[doc(alias = "ibv_flow_eth_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowEthFilter {
    /// The destination address.
    pub dst_mac: [u8; 6],
    /// The source address.
    pub src_mac: [u8; 6],
    /// The ethertype.
    pub ether_type: u16,
    /// The 802.1Q VLAN tag: 3 bits of priority, 1 bit CFI, 12 bits of VLAN id.
    pub vlan_tag: u16,
}

/// The addresses of an IPv4 header.
#[doc(alias = "ibv_flow_ipv4_filter")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowIpv4Filter {
    /// The source address.
    pub src_ip: Ipv4Addr,
    /// The destination address.
    pub dst_ip: Ipv4Addr,
}

/// All matchable fields of an IPv4 header.
#[doc(alias = "ibv_flow_ipv4_ext_filter")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowIpv4ExtFilter {
    /// The source address.
    pub src_ip: Ipv4Addr,
    /// The destination address.
    pub dst_ip: Ipv4Addr,
    /// The protocol number.
    pub proto: u8,
    /// The type of service.
    pub tos: u8,
    /// The time to live.
    pub ttl: u8,
    /// The fragment flags.
    pub flags: u8,
}

/// The fields of an IPv6 header.
#[doc(alias = "ibv_flow_ipv6_filter")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowIpv6Filter {
    /// The source address.
    pub src_ip: Ipv6Addr,
    /// The destination address.
    pub dst_ip: Ipv6Addr,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The protocol number of the next header.
    pub next_hdr: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
}

/// The fields of an ESP header.
#[doc(alias = "ibv_flow_esp_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowEspFilter {
    /// The security parameters index.
    pub spi: u32,
    /// The sequence number.
    pub seq: u32,
}

/// The ports of a TCP or UDP header.
#[doc(alias = "ibv_flow_tcp_udp_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTcpUdpFilter {
    /// The destination port.
    pub dst_port: u16,
    /// The source port.
    pub src_port: u16,
}

/// The fields of a GRE header.
#[doc(alias = "ibv_flow_gre_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowGreFilter {
    /// The first 16 bits of the header: the flags and the version.
    pub c_ks_res0_ver: u16,
    /// The ethertype of the payload.
    pub protocol: u16,
    /// The GRE key.
    pub key: u32,
}

/// An entry of an MPLS label stack.
#[doc(alias = "ibv_flow_mpls_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowMplsFilter {
    /// The entry: 20 bits of label, 3 of traffic class, 1 for bottom of stack, 8 of time to live.
    pub label: u32,
}

/// The identifier of a tunnel.
#[doc(alias = "ibv_flow_tunnel_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTunnelFilter {
    /// The VXLAN network identifier, 24 bits.
    pub tunnel_id: u32,
}

impl Default for FlowIpv4Filter {
    fn default() -> Self {
        Self { src_ip: Ipv4Addr::UNSPECIFIED, dst_ip: Ipv4Addr::UNSPECIFIED }
    }
}

impl Default for FlowIpv4ExtFilter {
    fn default() -> Self {
        let FlowIpv4Filter { src_ip, dst_ip } = FlowIpv4Filter::default();
        Self { src_ip, dst_ip, proto: 0, tos: 0, ttl: 0, flags: 0 }
    }
}

impl Default for FlowIpv6Filter {
    fn default() -> Self {
        Self {
            src_ip: Ipv6Addr::UNSPECIFIED,
            dst_ip: Ipv6Addr::UNSPECIFIED,
            flow_label: 0,
            next_hdr: 0,
            traffic_class: 0,
            hop_limit: 0,
        }
    }
}

/// The header field values that a rule matches, and the mask of significant bits: a packet matches
/// if its fields, masked with `mask`, equal `val`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowMatch<T> {
    /// The values to match.
    pub val: T,
    /// The significant bits; a mask of zeros matches everything.
    pub mask: T,
}

/// A flow specification: one part of a rule. `A` is the type that names flow actions, and `C` the
/// type that names counters; in commands, both are kernel handles.
///
/// Only specifications for headers that can lie inside a tunnel have `is_inner`.
///
/// # References
/// `ibv_create_flow(3)`
#[doc(alias = "ibv_flow_spec")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowSpec<A = u32, C = u32> {
    /// An Ethernet header.
    #[doc(alias = "ibv_flow_spec_eth")]
    Eth {
        /// The fields to match.
        fields: FlowMatch<FlowEthFilter>,
        /// Whether the header lies inside a tunnel.
        is_inner: bool,
    },
    /// The addresses of an IPv4 header.
    #[doc(alias = "ibv_flow_spec_ipv4")]
    Ipv4 {
        /// The fields to match.
        fields: FlowMatch<FlowIpv4Filter>,
        /// Whether the header lies inside a tunnel.
        is_inner: bool,
    },
    /// An IPv4 header.
    #[doc(alias = "ibv_flow_spec_ipv4_ext")]
    Ipv4Ext {
        /// The fields to match.
        fields: FlowMatch<FlowIpv4ExtFilter>,
        /// Whether the header lies inside a tunnel.
        is_inner: bool,
    },
    /// An IPv6 header.
    #[doc(alias = "ibv_flow_spec_ipv6")]
    Ipv6 {
        /// The fields to match.
        fields: FlowMatch<FlowIpv6Filter>,
        /// Whether the header lies inside a tunnel.
        is_inner: bool,
    },
    /// An ESP header.
    #[doc(alias = "ibv_flow_spec_esp")]
    Esp {
        /// The fields to match.
        fields: FlowMatch<FlowEspFilter>,
        /// Whether the header lies inside a tunnel.
        is_inner: bool,
    },
    /// A TCP header.
    #[doc(alias = "ibv_flow_spec_tcp_udp")]
    Tcp {
        /// The fields to match.
        fields: FlowMatch<FlowTcpUdpFilter>,
        /// Whether the header lies inside a tunnel.
        is_inner: bool,
    },
    /// A UDP header.
    #[doc(alias = "ibv_flow_spec_tcp_udp")]
    Udp {
        /// The fields to match.
        fields: FlowMatch<FlowTcpUdpFilter>,
        /// Whether the header lies inside a tunnel.
        is_inner: bool,
    },
    /// An MPLS label.
    #[doc(alias = "ibv_flow_spec_mpls")]
    Mpls {
        /// The fields to match.
        fields: FlowMatch<FlowMplsFilter>,
        /// Whether the label lies inside a tunnel.
        is_inner: bool,
    },
    /// A VXLAN header.
    #[doc(alias = "ibv_flow_spec_tunnel")]
    VxlanTunnel(FlowMatch<FlowTunnelFilter>),
    /// A GRE header.
    #[doc(alias = "ibv_flow_spec_gre")]
    Gre(FlowMatch<FlowGreFilter>),
    /// Completions of the packets report this tag, 24 bits.
    #[doc(alias = "ibv_flow_spec_action_tag")]
    ActionTag(u32),
    /// The device drops the packets.
    #[doc(alias = "ibv_flow_spec_action_drop")]
    ActionDrop,
    /// The device applies a flow action to the packets.
    #[doc(alias = "ibv_flow_spec_action_handle")]
    ActionHandle(A),
    /// The device counts the packets.
    #[doc(alias = "ibv_flow_spec_counter_action")]
    ActionCount(C),
}

impl<A, C> FlowSpec<A, C> {
    /// Converts the references to a flow action or counters in the specification.
    ///
    /// # Errors
    /// The error from `action` or `counters`.
    pub fn try_map<B, D, E>(
        self,
        action: impl FnOnce(A) -> Result<B, E>,
        counters: impl FnOnce(C) -> Result<D, E>,
    ) -> Result<FlowSpec<B, D>, E> {
        Ok(match self {
            Self::Eth { fields, is_inner } => FlowSpec::Eth { fields, is_inner },
            Self::Ipv4 { fields, is_inner } => FlowSpec::Ipv4 { fields, is_inner },
            Self::Ipv4Ext { fields, is_inner } => FlowSpec::Ipv4Ext { fields, is_inner },
            Self::Ipv6 { fields, is_inner } => FlowSpec::Ipv6 { fields, is_inner },
            Self::Esp { fields, is_inner } => FlowSpec::Esp { fields, is_inner },
            Self::Tcp { fields, is_inner } => FlowSpec::Tcp { fields, is_inner },
            Self::Udp { fields, is_inner } => FlowSpec::Udp { fields, is_inner },
            Self::Mpls { fields, is_inner } => FlowSpec::Mpls { fields, is_inner },
            Self::VxlanTunnel(fields) => FlowSpec::VxlanTunnel(fields),
            Self::Gre(fields) => FlowSpec::Gre(fields),
            Self::ActionTag(tag_id) => FlowSpec::ActionTag(tag_id),
            Self::ActionDrop => FlowSpec::ActionDrop,
            Self::ActionHandle(name) => FlowSpec::ActionHandle(action(name)?),
            Self::ActionCount(name) => FlowSpec::ActionCount(counters(name)?),
        })
    }
}

/// A flow rule. The sizes and counts in the command are derived from the specifications.
///
/// ```
/// # mod verbs { pub use verbs_core::types::*; }
/// use verbs::{FlowAttr, FlowMatch, FlowSpec, FlowTcpUdpFilter};
///
/// let rule: FlowAttr = FlowAttr::new(1).with(FlowSpec::Udp {
///     fields: FlowMatch {
///         val: FlowTcpUdpFilter { dst_port: 4791, src_port: 0 },
///         mask: FlowTcpUdpFilter { dst_port: u16::MAX, src_port: 0 },
///     },
///     is_inner: false,
/// });
/// assert_eq!(rule.specs.len(), 1);
/// ```
///
/// # References
/// `ibv_create_flow(3)`
#[doc(alias = "ibv_flow_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowAttr<A = u32, C = u32> {
    /// The kind of the rule.
    pub attr_type: FlowAttrType,
    /// The priority of the rule; 0 is the highest.
    pub priority: u16,
    /// The port number, from 1.
    pub port: u8,
    /// The options of the rule.
    pub flags: FlowFlags,
    /// The specifications: headers from the outermost inwards, then actions. The kernel accepts up
    /// to 10.
    pub specs: Vec<FlowSpec<A, C>>,
}

impl<A, C> FlowAttr<A, C> {
    /// Returns a normal rule for a port, with the highest priority and without specifications.
    pub const fn new(port: u8) -> Self {
        Self {
            attr_type: FlowAttrType::NORMAL,
            priority: 0,
            port,
            flags: FlowFlags::empty(),
            specs: Vec::new(),
        }
    }

    /// Returns the rule with one more specification.
    #[must_use]
    pub fn with(mut self, spec: FlowSpec<A, C>) -> Self {
        self.specs.push(spec);
        self
    }

    /// Converts the references to flow actions and counters in the rule.
    ///
    /// # Errors
    /// The first error from `action` or `counters`.
    pub fn try_map<B, D, E>(
        self,
        mut action: impl FnMut(A) -> Result<B, E>,
        mut counters: impl FnMut(C) -> Result<D, E>,
    ) -> Result<FlowAttr<B, D>, E> {
        let Self { attr_type, priority, port, flags, specs } = self;
        let specs: Result<_, E> =
            specs.into_iter().map(|spec| spec.try_map(&mut action, &mut counters)).collect();
        Ok(FlowAttr { attr_type, priority, port, flags, specs: specs? })
    }
}

bitflags! {
    /// The mode of an ESP flow action. A mode without a flag is selected by the absence of the
    /// opposite flag.
    ///
    /// # References
    /// `ibv_flow_action_esp(3)`
    #[doc(alias = "ibv_flow_action_esp_flags")]
    #[doc(alias = "IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO")]
    #[doc(alias = "IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL")]
    #[doc(alias = "IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct EspFlags: u32 {
        /// The device processes all of ESP; otherwise it only encrypts and decrypts.
        #[doc(alias = "IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD")]
        const FULL_OFFLOAD = 1;
        /// Transport mode; otherwise tunnel mode.
        #[doc(alias = "IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT")]
        const TRANSPORT = 1 << 1;
        /// The device encrypts; otherwise it decrypts.
        #[doc(alias = "IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT")]
        const ENCRYPT = 1 << 2;
        /// The extended sequence number starts a new window.
        #[doc(alias = "IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW")]
        const ESN_NEW_WINDOW = 1 << 3;

        const _ = !0;
    }
}

/// An ESP security association.
///
/// # References
/// `ibv_flow_action_esp(3)`
#[doc(alias = "ibv_flow_action_esp")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EspAttr {
    /// The security parameters index.
    pub spi: u32,
    /// The sequence number.
    pub seq: u32,
    /// The amount of padding for traffic flow confidentiality (TFC).
    pub tfc_pad: u32,
    /// The mode.
    pub flags: EspFlags,
    /// The number of packets after which the association expires.
    pub hard_limit_pkts: u64,
}

open_enum! {
    /// The algorithm that generates initialization vectors for AES-GCM.
    #[doc(alias = "ibv_flow_action_esp_keymat_aes_gcm_iv_algo")]
    pub enum EspIvAlgo(u32) {
        /// Consecutive numbers.
        #[doc(alias = "IBV_FLOW_ACTION_IV_ALGO_SEQ")]
        SEQ = 0, "sequence";
    }
}

/// An AES key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AesKey {
    /// 128 bits.
    Bits128([u8; 16]),
    /// 192 bits.
    Bits192([u8; 24]),
    /// 256 bits.
    Bits256([u8; 32]),
}

impl AesKey {
    /// Returns the key as bytes.
    pub const fn bytes(&self) -> &[u8] {
        match self {
            Self::Bits128(key) => key,
            Self::Bits192(key) => key,
            Self::Bits256(key) => key,
        }
    }
}

/// Writes only the length, because the key is secret.
impl fmt::Debug for AesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AesKey({} bits)", self.bytes().len() * 8)
    }
}

/// The key material of an ESP flow action: AES-GCM.
#[doc(alias = "ibv_flow_action_esp_keymat")]
#[doc(alias = "IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM")]
#[doc(alias = "ibv_flow_action_esp_keymat_aes_gcm")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspKeymat {
    /// The first initialization vector.
    pub iv: u64,
    /// The algorithm for later initialization vectors.
    pub iv_algo: EspIvAlgo,
    /// The salt in the nonce.
    pub salt: u32,
    /// The length of the integrity check value, in bytes.
    pub icv_len: u32,
    /// The AES key.
    pub aes_key: AesKey,
}

/// The replay protection of an ESP flow action.
#[doc(alias = "ibv_flow_action_esp_replay")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EspReplay {
    /// No replay protection.
    #[doc(alias = "IBV_FLOW_ACTION_ESP_REPLAY_NONE")]
    None,
    /// A bitmap of received packets.
    #[doc(alias = "IBV_FLOW_ACTION_ESP_REPLAY_BMP")]
    #[doc(alias = "ibv_flow_action_esp_replay_bmp")]
    Bitmap {
        /// The size of the window, in packets.
        size: u32,
    },
}

/// The outer header in ESP tunnel mode.
#[doc(alias = "ibv_flow_action_esp_encap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EspEncap {
    /// An IPv4 header.
    Ipv4(FlowIpv4ExtFilter),
    /// An IPv6 header.
    Ipv6(FlowIpv6Filter),
}

/// The attributes for creating or changing an ESP flow action. For a new action, `None` leaves an
/// attribute to the driver; for an existing action, it leaves the attribute unchanged.
///
/// # References
/// `ibv_flow_action_esp(3)`
#[doc(alias = "ibv_flow_action_esp_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowActionEspAttr {
    /// The security association.
    pub esp_attr: Option<EspAttr>,
    /// The upper 32 bits of the extended sequence number.
    #[doc(alias = "IBV_FLOW_ACTION_ESP_MASK_ESN")]
    #[doc(alias = "ibv_flow_action_esp_mask")]
    pub esn: Option<u32>,
    /// The key material.
    pub keymat: Option<EspKeymat>,
    /// The replay protection.
    pub replay: Option<EspReplay>,
    /// The outer header in tunnel mode.
    pub encap: Option<EspEncap>,
}
