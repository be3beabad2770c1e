//! Flow rules.

use core::ffi::c_uint;

use super::macros::c_types;
use super::{ibv_context, ibv_counters, ibv_flow_action};

c_types! {
    /// Options for a flow rule.
    pub enum ibv_flow_flags: c_uint {
        IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1,
        IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2,
    }

    /// The kind of a flow rule.
    pub enum ibv_flow_attr_type: c_uint {
        IBV_FLOW_ATTR_NORMAL = 0x0,
        IBV_FLOW_ATTR_ALL_DEFAULT = 0x1,
        IBV_FLOW_ATTR_MC_DEFAULT = 0x2,
        IBV_FLOW_ATTR_SNIFFER = 0x3,
    }

    /// The kind of a specification: a header to match or an action.
    pub enum ibv_flow_spec_type: c_uint {
        IBV_FLOW_SPEC_ETH = 0x20,
        IBV_FLOW_SPEC_IPV4 = 0x30,
        IBV_FLOW_SPEC_IPV6 = 0x31,
        IBV_FLOW_SPEC_IPV4_EXT = 0x32,
        IBV_FLOW_SPEC_ESP = 0x34,
        IBV_FLOW_SPEC_TCP = 0x40,
        IBV_FLOW_SPEC_UDP = 0x41,
        IBV_FLOW_SPEC_VXLAN_TUNNEL = 0x50,
        IBV_FLOW_SPEC_GRE = 0x51,
        IBV_FLOW_SPEC_MPLS = 0x60,
        /// The bit that makes a specification match the packet inside a tunnel.
        IBV_FLOW_SPEC_INNER = 0x100,
        IBV_FLOW_SPEC_ACTION_TAG = 0x1000,
        IBV_FLOW_SPEC_ACTION_DROP = 0x1001,
        IBV_FLOW_SPEC_ACTION_HANDLE = 0x1002,
        IBV_FLOW_SPEC_ACTION_COUNT = 0x1003,
    }

    pub consts define: usize {
        ETHERNET_LL_SIZE = 6,
    }

    /// The fields of an Ethernet header; integers are big-endian.
    pub struct ibv_flow_eth_filter {
        dst_mac: [u8; ETHERNET_LL_SIZE],
        src_mac: [u8; ETHERNET_LL_SIZE],
        ether_type: u16,
        vlan_tag: u16,
    }

    /// A specification that matches an Ethernet header.
    pub struct ibv_flow_spec_eth {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_eth_filter,
        mask: ibv_flow_eth_filter,
    }

    /// The address fields of an IPv4 header, big-endian.
    pub struct ibv_flow_ipv4_filter {
        src_ip: u32,
        dst_ip: u32,
    }

    /// A specification that matches an IPv4 header.
    pub struct ibv_flow_spec_ipv4 {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv4_filter,
        mask: ibv_flow_ipv4_filter,
    }

    /// All matchable fields of an IPv4 header; addresses are big-endian.
    pub struct ibv_flow_ipv4_ext_filter {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }

    /// A specification that matches all fields of an IPv4 header.
    pub struct ibv_flow_spec_ipv4_ext {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv4_ext_filter,
        mask: ibv_flow_ipv4_ext_filter,
    }

    /// The fields of an IPv6 header; the flow label is big-endian.
    pub struct ibv_flow_ipv6_filter {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }

    /// A specification that matches an IPv6 header.
    pub struct ibv_flow_spec_ipv6 {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv6_filter,
        mask: ibv_flow_ipv6_filter,
    }

    /// The fields of an ESP header, big-endian.
    pub struct ibv_flow_esp_filter {
        spi: u32,
        seq: u32,
    }

    /// A specification that matches an ESP header.
    pub struct ibv_flow_spec_esp {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_esp_filter,
        mask: ibv_flow_esp_filter,
    }

    /// The fields of a TCP or UDP header, big-endian.
    pub struct ibv_flow_tcp_udp_filter {
        dst_port: u16,
        src_port: u16,
    }

    /// A specification that matches a TCP or UDP header.
    pub struct ibv_flow_spec_tcp_udp {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_tcp_udp_filter,
        mask: ibv_flow_tcp_udp_filter,
    }

    /// The fields of a GRE header, big-endian.
    pub struct ibv_flow_gre_filter {
        c_ks_res0_ver: u16,
        protocol: u16,
        key: u32,
    }

    /// A specification that matches a GRE header.
    pub struct ibv_flow_spec_gre {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_gre_filter,
        mask: ibv_flow_gre_filter,
    }

    /// An MPLS label, big-endian.
    pub struct ibv_flow_mpls_filter {
        label: u32,
    }

    /// A specification that matches an MPLS label.
    pub struct ibv_flow_spec_mpls {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_mpls_filter,
        mask: ibv_flow_mpls_filter,
    }

    /// The identifier of a VXLAN tunnel, big-endian.
    pub struct ibv_flow_tunnel_filter {
        tunnel_id: u32,
    }

    /// A specification that matches a VXLAN tunnel.
    pub struct ibv_flow_spec_tunnel {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_tunnel_filter,
        mask: ibv_flow_tunnel_filter,
    }

    /// The action that tags packets.
    pub struct ibv_flow_spec_action_tag {
        type_: ibv_flow_spec_type,
        size: u16,
        tag_id: u32,
    }

    /// The action that drops packets.
    pub struct ibv_flow_spec_action_drop {
        type_: ibv_flow_spec_type,
        size: u16,
    }

    /// The action described by an [`ibv_flow_action`].
    pub struct ibv_flow_spec_action_handle {
        type_: ibv_flow_spec_type,
        size: u16,
        action: *const ibv_flow_action,
    }

    /// The action that counts packets.
    pub struct ibv_flow_spec_counter_action {
        type_: ibv_flow_spec_type,
        size: u16,
        counters: *mut ibv_counters,
    }

    /// Any specification. In C, it is a struct with one anonymous union.
    pub union ibv_flow_spec {
        hdr: ibv_flow_spec_hdr,
        eth: ibv_flow_spec_eth,
        ipv4: ibv_flow_spec_ipv4,
        tcp_udp: ibv_flow_spec_tcp_udp,
        ipv4_ext: ibv_flow_spec_ipv4_ext,
        ipv6: ibv_flow_spec_ipv6,
        esp: ibv_flow_spec_esp,
        tunnel: ibv_flow_spec_tunnel,
        gre: ibv_flow_spec_gre,
        mpls: ibv_flow_spec_mpls,
        flow_tag: ibv_flow_spec_action_tag,
        drop: ibv_flow_spec_action_drop,
        handle: ibv_flow_spec_action_handle,
        flow_count: ibv_flow_spec_counter_action,
    }

    /// The fields at the start of every specification.
    pub struct ibv_flow_spec_hdr = "ibv_flow_spec.hdr" {
        type_: ibv_flow_spec_type,
        size: u16,
    }

    /// A flow rule (`ibv_create_flow(3)`), followed by `num_of_specs` specifications. Each
    /// specification states its size.
    pub struct ibv_flow_attr {
        comp_mask: u32,
        type_: ibv_flow_attr_type,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }

    /// An active flow rule.
    pub struct ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }
}
