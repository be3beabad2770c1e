//! Reading a flow rule: the attributes and the list of specifications after them.
//!
//! Each specification begins with its type and its size; the next specification follows after that
//! many bytes. If the size differs from the struct of that type, the rule is rejected before
//! anything else is read. Three filters may grow: their specifications may be larger than in this
//! library if the masks of the unknown fields are zero. As in rdma-core, the size of the whole rule
//! is ignored.
//!
//! # Safety
//! Specifications may be unaligned, because programs pack them after the attributes.
#![allow(unsafe_code)]

use core::net::{Ipv4Addr, Ipv6Addr};

use verbs_core::types::{
    FlowAttr, FlowAttrType, FlowEspFilter, FlowEthFilter, FlowFlags, FlowGreFilter, FlowIpv4ExtFilter,
    FlowIpv4Filter, FlowIpv6Filter, FlowMatch, FlowMplsFilter, FlowSpec, FlowTcpUdpFilter, FlowTunnelFilter,
};
use verbs_core::{Errno, room};

use crate::abi::c::{
    IBV_FLOW_SPEC_ACTION_COUNT, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_HANDLE,
    IBV_FLOW_SPEC_ACTION_TAG, IBV_FLOW_SPEC_ESP, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_INNER,
    IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_MPLS, IBV_FLOW_SPEC_TCP,
    IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_VXLAN_TUNNEL, ibv_counters, ibv_flow_action, ibv_flow_attr,
    ibv_flow_esp_filter, ibv_flow_eth_filter, ibv_flow_gre_filter, ibv_flow_ipv4_ext_filter,
    ibv_flow_ipv4_filter, ibv_flow_ipv6_filter, ibv_flow_mpls_filter, ibv_flow_spec_action_drop,
    ibv_flow_spec_action_handle, ibv_flow_spec_action_tag, ibv_flow_spec_counter_action, ibv_flow_spec_esp,
    ibv_flow_spec_eth, ibv_flow_spec_gre, ibv_flow_spec_hdr, ibv_flow_spec_ipv4, ibv_flow_spec_mpls,
    ibv_flow_spec_tcp_udp, ibv_flow_tcp_udp_filter, ibv_flow_tunnel_filter,
};

type Spec = FlowSpec<*mut ibv_flow_action, *mut ibv_counters>;
/// A rule with pointers to the program's objects.
pub(crate) type Rule = FlowAttr<*mut ibv_flow_action, *mut ibv_counters>;

/// Reads a rule.
///
/// # Errors
/// `EINVAL` for a specification with an unknown type, the wrong size, or no object, and for members
/// that no rdma-core release defines; `EOPNOTSUPP` if a mask covers fields unknown to this library.
///
/// # Safety
/// The stated number of specifications must follow the attributes, each of its stated size.
pub(super) unsafe fn rule_from_c(attr: *const ibv_flow_attr) -> Result<Rule, Errno> {
    // SAFETY: guaranteed by the caller.
    let (attr, mut at) = unsafe { (attr.read_unaligned(), attr.add(1).cast::<u8>()) };
    if attr.comp_mask != 0 {
        return Err(Errno::INVAL);
    }
    /// An upper bound, in bytes, on the call's allocations per specification, including the
    /// kernel's copy.
    const SPEC: usize = 512;
    room::check(usize::from(attr.num_of_specs) * SPEC)?;
    let mut specs = Vec::with_capacity(attr.num_of_specs.into());
    for _ in 0..attr.num_of_specs {
        // SAFETY: another specification follows.
        unsafe {
            let hdr = at.cast::<ibv_flow_spec_hdr>().read_unaligned();
            let source = Source { at, size: hdr.size.into() };
            specs.push(source.spec(hdr.type_)?);
            at = at.add(source.size);
        }
    }
    Ok(FlowAttr {
        attr_type: FlowAttrType(attr.type_),
        priority: attr.priority,
        port: attr.port,
        flags: FlowFlags::from_bits_retain(attr.flags),
        specs,
    })
}

/// A specification in the program's memory.
struct Source {
    at: *const u8,
    /// The size stated in the specification.
    size: usize,
}

impl Source {
    /// Reads a specification of type `spec_type`.
    ///
    /// # Safety
    /// The specification must be as large as it states.
    unsafe fn spec(&self, spec_type: u32) -> Result<Spec, Errno> {
        /// Converts the fields of a specification with a fixed size.
        macro_rules! fields {
            ($type:ident, $convert:expr) => {{
                let spec = self.exactly::<$type>()?;
                FlowMatch { val: $convert(&spec.val), mask: $convert(&spec.mask) }
            }};
        }
        let is_inner = spec_type & IBV_FLOW_SPEC_INNER != 0;
        // SAFETY: guaranteed by the caller.
        unsafe {
            Ok(match (spec_type & !IBV_FLOW_SPEC_INNER, is_inner) {
                (IBV_FLOW_SPEC_ETH, _) => FlowSpec::Eth { fields: fields!(ibv_flow_spec_eth, eth), is_inner },
                (IBV_FLOW_SPEC_IPV4, _) => {
                    FlowSpec::Ipv4 { fields: fields!(ibv_flow_spec_ipv4, ipv4), is_inner }
                }
                (IBV_FLOW_SPEC_IPV4_EXT, _) => {
                    FlowSpec::Ipv4Ext { fields: self.growing(ipv4_ext)?, is_inner }
                }
                (IBV_FLOW_SPEC_IPV6, _) => FlowSpec::Ipv6 { fields: self.growing(ipv6)?, is_inner },
                (IBV_FLOW_SPEC_ESP, _) => FlowSpec::Esp { fields: fields!(ibv_flow_spec_esp, esp), is_inner },
                (IBV_FLOW_SPEC_TCP, _) => {
                    FlowSpec::Tcp { fields: fields!(ibv_flow_spec_tcp_udp, ports), is_inner }
                }
                (IBV_FLOW_SPEC_UDP, _) => {
                    FlowSpec::Udp { fields: fields!(ibv_flow_spec_tcp_udp, ports), is_inner }
                }
                (IBV_FLOW_SPEC_MPLS, _) => {
                    FlowSpec::Mpls { fields: fields!(ibv_flow_spec_mpls, mpls), is_inner }
                }
                (IBV_FLOW_SPEC_VXLAN_TUNNEL, false) => FlowSpec::VxlanTunnel(self.growing(tunnel)?),
                (IBV_FLOW_SPEC_GRE, false) => FlowSpec::Gre(fields!(ibv_flow_spec_gre, gre)),
                (IBV_FLOW_SPEC_ACTION_TAG, false) => {
                    FlowSpec::ActionTag(self.exactly::<ibv_flow_spec_action_tag>()?.tag_id)
                }
                (IBV_FLOW_SPEC_ACTION_DROP, false) => {
                    self.exactly::<ibv_flow_spec_action_drop>()?;
                    FlowSpec::ActionDrop
                }
                (IBV_FLOW_SPEC_ACTION_HANDLE, false) => {
                    let action = self.exactly::<ibv_flow_spec_action_handle>()?.action;
                    FlowSpec::ActionHandle(object(action.cast_mut())?)
                }
                (IBV_FLOW_SPEC_ACTION_COUNT, false) => {
                    let counters = self.exactly::<ibv_flow_spec_counter_action>()?.counters;
                    FlowSpec::ActionCount(object(counters)?)
                }
                _ => return Err(Errno::INVAL),
            })
        }
    }

    /// Reads a specification that is exactly as large as its struct.
    ///
    /// # Safety
    /// Same as [`spec`](Self::spec).
    unsafe fn exactly<T: Copy>(&self) -> Result<T, Errno> {
        if self.size != size_of::<T>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the specification is as large as it states.
        Ok(unsafe { self.at.cast::<T>().read_unaligned() })
    }

    /// Reads a specification whose filter may have further, unknown fields. The filters for the
    /// values and for the mask each take half of the size.
    ///
    /// # Safety
    /// Same as [`spec`](Self::spec).
    unsafe fn growing<T: Copy, F>(&self, convert: fn(&T) -> F) -> Result<FlowMatch<F>, Errno> {
        let start = size_of::<ibv_flow_spec_hdr>();
        let filter = self.size.checked_sub(start).ok_or(Errno::INVAL)? / 2;
        let unknown = filter.checked_sub(size_of::<T>()).ok_or(Errno::INVAL)?;
        // SAFETY: the specification is as large as it states; the filters lie within it.
        unsafe {
            let (val, mask) = (self.at.add(start), self.at.add(start + filter));
            let beyond = mask.add(size_of::<T>());
            if (0..unknown).any(|index| beyond.add(index).read() != 0) {
                return Err(Errno::OPNOTSUPP);
            }
            let (val, mask) = (val.cast::<T>().read_unaligned(), mask.cast::<T>().read_unaligned());
            Ok(FlowMatch { val: convert(&val), mask: convert(&mask) })
        }
    }
}

fn object<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(Errno::INVAL) } else { Ok(object) }
}

const fn eth(c: &ibv_flow_eth_filter) -> FlowEthFilter {
    FlowEthFilter {
        dst_mac: c.dst_mac,
        src_mac: c.src_mac,
        ether_type: u16::from_be(c.ether_type),
        vlan_tag: u16::from_be(c.vlan_tag),
    }
}

/// Converts an address that C stores in packet byte order.
const fn ipv4_addr(c: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from_be(c))
}

const fn ipv4(c: &ibv_flow_ipv4_filter) -> FlowIpv4Filter {
    FlowIpv4Filter { src_ip: ipv4_addr(c.src_ip), dst_ip: ipv4_addr(c.dst_ip) }
}

pub(super) const fn ipv4_ext(c: &ibv_flow_ipv4_ext_filter) -> FlowIpv4ExtFilter {
    FlowIpv4ExtFilter {
        src_ip: ipv4_addr(c.src_ip),
        dst_ip: ipv4_addr(c.dst_ip),
        proto: c.proto,
        tos: c.tos,
        ttl: c.ttl,
        flags: c.flags,
    }
}

pub(super) const fn ipv6(c: &ibv_flow_ipv6_filter) -> FlowIpv6Filter {
    FlowIpv6Filter {
        src_ip: Ipv6Addr::from_bits(u128::from_be_bytes(c.src_ip)),
        dst_ip: Ipv6Addr::from_bits(u128::from_be_bytes(c.dst_ip)),
        flow_label: u32::from_be(c.flow_label),
        next_hdr: c.next_hdr,
        traffic_class: c.traffic_class,
        hop_limit: c.hop_limit,
    }
}

const fn esp(c: &ibv_flow_esp_filter) -> FlowEspFilter {
    FlowEspFilter { spi: u32::from_be(c.spi), seq: u32::from_be(c.seq) }
}

const fn ports(c: &ibv_flow_tcp_udp_filter) -> FlowTcpUdpFilter {
    FlowTcpUdpFilter { dst_port: u16::from_be(c.dst_port), src_port: u16::from_be(c.src_port) }
}

const fn gre(c: &ibv_flow_gre_filter) -> FlowGreFilter {
    FlowGreFilter {
        c_ks_res0_ver: u16::from_be(c.c_ks_res0_ver),
        protocol: u16::from_be(c.protocol),
        key: u32::from_be(c.key),
    }
}

const fn mpls(c: &ibv_flow_mpls_filter) -> FlowMplsFilter {
    FlowMplsFilter { label: u32::from_be(c.label) }
}

const fn tunnel(c: &ibv_flow_tunnel_filter) -> FlowTunnelFilter {
    FlowTunnelFilter { tunnel_id: u32::from_be(c.tunnel_id) }
}

#[cfg(test)]
mod tests;
