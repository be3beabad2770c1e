//! Flow rules (`CREATE_FLOW`, `FLOW_DESTROY`) and flow actions (`FLOW_ACTION_*`).
//!
//! The command for a rule consists of a header and one struct per specification.
//! [`specs_to_kernel`] writes the structs and determines their sizes.

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE, UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE,
    UVERBS_ATTR_DESTROY_FLOW_HANDLE, UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS, UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP,
    UVERBS_ATTR_FLOW_ACTION_ESP_ESN, UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT, UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY,
    UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE, UVERBS_METHOD_FLOW_ACTION_DESTROY,
    UVERBS_METHOD_FLOW_ACTION_ESP_CREATE, UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY, UVERBS_METHOD_FLOW_DESTROY,
    UVERBS_OBJECT_FLOW, UVERBS_OBJECT_FLOW_ACTION,
};
use uverbs_abi::ib_user_ioctl_verbs::{
    IbUverbsFlowActionEsp, IbUverbsFlowActionEspEncap, IbUverbsFlowActionEspKeymat,
    IbUverbsFlowActionEspKeymatAesGcm, IbUverbsFlowActionEspReplay, IbUverbsFlowActionEspReplayBmp,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_EX_CMD_CREATE_FLOW, IB_USER_VERBS_EX_CMD_DESTROY_FLOW, IbUverbsCreateFlow,
    IbUverbsCreateFlowResp, IbUverbsDestroyFlow, IbUverbsFlowAttr, IbUverbsFlowEthFilter,
    IbUverbsFlowGreFilter, IbUverbsFlowIpv4Filter, IbUverbsFlowIpv6Filter, IbUverbsFlowMplsFilter,
    IbUverbsFlowSpecEspFilter, IbUverbsFlowSpecHdr, IbUverbsFlowTcpUdpFilter, IbUverbsFlowTunnelFilter,
};
use uverbs_abi::{Be16, Be32};
use zerocopy::{Immutable, IntoBytes};

use super::{Destroy, write_ex_only};
use crate::channel::{Attr, DriverAttrs, Uhw, Uverbs, WriteCmd};
use crate::errno::Errno;
use crate::error::Result;
use crate::explain;
use crate::types::{
    EspEncap, EspReplay, FlowActionEspAttr, FlowAttr, FlowEthFilter, FlowIpv4ExtFilter, FlowIpv4Filter,
    FlowIpv6Filter, FlowMatch, FlowSpec, FlowSpecType, FlowTcpUdpFilter,
};

/// Creates a flow rule for a queue pair and returns its handle. The rule refers to flow actions and
/// counters by handle.
///
/// # Errors
/// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) if the number of specifications exceeds 255,
/// the maximum of the command's count field; otherwise any errno the kernel returns, notably
/// `EPERM` without `CAP_NET_RAW`, `EINVAL` for more than 10 specifications or headers in the wrong
/// order, and `EOPNOTSUPP` for specifications the device does not support.
#[doc(alias = "ibv_create_flow")]
pub fn create_flow(uverbs: &Uverbs, qp_handle: u32, attr: &FlowAttr, uhw: Uhw<'_>) -> Result<u32> {
    const VERB: &str = "create_flow";
    explain::within("specifications of a flow rule", attr.specs.len() as u64, 0, u8::MAX.into())
        .map_err(|cause| uverbs.error(VERB, Errno::INVAL).because(cause))?;
    let specs = specs_to_kernel(&attr.specs);
    let head = IbUverbsCreateFlow {
        comp_mask: 0,
        qp_handle,
        flow_attr: IbUverbsFlowAttr {
            r#type: attr.attr_type.0,
            // At most 255 × 88 bytes.
            size: specs.len() as u16,
            priority: attr.priority,
            num_of_specs: attr.specs.len() as u8,
            reserved: [0; 2],
            port: attr.port,
            flags: attr.flags.bits(),
        },
    };
    let request = [head.as_bytes(), &specs].concat();
    let mut reply = IbUverbsCreateFlowResp::default();
    let command = WriteCmd::extended(IB_USER_VERBS_EX_CMD_CREATE_FLOW, &request, reply.as_mut_bytes(), uhw);
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    Ok(reply.flow_handle)
}

/// Destroys a flow rule.
///
/// # Errors
/// Any errno the kernel returns; notably `EIO` if the device fails to destroy it.
#[doc(alias = "ibv_destroy_flow")]
pub fn destroy_flow(uverbs: &Uverbs, handle: u32) -> Result<()> {
    Destroy {
        verb: "destroy_flow",
        object_id: UVERBS_OBJECT_FLOW,
        method_id: UVERBS_METHOD_FLOW_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_FLOW_HANDLE,
        handle,
        reply: None,
    }
    .run(uverbs, || {
        let request = IbUverbsDestroyFlow { comp_mask: 0, flow_handle: handle };
        write_ex_only(uverbs, IB_USER_VERBS_EX_CMD_DESTROY_FLOW, request.as_bytes())
    })
}

/// Creates an ESP flow action and returns its handle. `driver` contains the driver's attributes,
/// such as the flags for mlx5.
///
/// # Errors
/// `EOPNOTSUPP` if the device or the kernel does not support ESP actions or one of the attributes;
/// any other errno the kernel returns, notably `EINVAL` without a security association or key
/// material.
///
/// Linux 5.10 supports ESP actions; Linux 6.1 no longer does.
#[doc(alias = "ibv_create_flow_action_esp")]
pub fn create_flow_action_esp(
    uverbs: &Uverbs,
    attr: &FlowActionEspAttr,
    driver: DriverAttrs<'_>,
) -> Result<u32> {
    let mut handle = 0;
    let values = EspValues::new(attr);
    let mut attrs = vec![Attr::new_handle(UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE, &mut handle)];
    values.push_to(&mut attrs);
    attrs.extend(driver.0);
    let (object, method) = (UVERBS_OBJECT_FLOW_ACTION, UVERBS_METHOD_FLOW_ACTION_ESP_CREATE);
    uverbs.ioctl_only("create_flow_action_esp", FLOW_ACTIONS, object, method, &mut attrs)?;
    Ok(handle)
}

/// Changes the ESP attributes of a flow action, as far as `attr` sets them.
///
/// # Errors
/// The errors of [`create_flow_action_esp`].
#[doc(alias = "ibv_modify_flow_action_esp")]
pub fn modify_flow_action_esp(uverbs: &Uverbs, handle: u32, attr: &FlowActionEspAttr) -> Result<()> {
    let values = EspValues::new(attr);
    let mut attrs = vec![Attr::handle(UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE, handle)];
    values.push_to(&mut attrs);
    let (object, method) = (UVERBS_OBJECT_FLOW_ACTION, UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY);
    uverbs.ioctl_only("modify_flow_action_esp", FLOW_ACTIONS, object, method, &mut attrs)
}

/// Destroys a flow action.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while flow rules use it.
#[doc(alias = "ibv_destroy_flow_action")]
pub fn destroy_flow_action(uverbs: &Uverbs, handle: u32) -> Result<()> {
    let mut attrs = [Attr::handle(UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE, handle)];
    let (object, method) = (UVERBS_OBJECT_FLOW_ACTION, UVERBS_METHOD_FLOW_ACTION_DESTROY);
    uverbs.ioctl_only("destroy_flow_action", FLOW_ACTIONS, object, method, &mut attrs)
}

/// Returns the specifications in the kernel's format, one after the other.
fn specs_to_kernel(specs: &[FlowSpec]) -> Vec<u8> {
    use FlowSpecType as T;

    let mut out = Vec::new();
    for spec in specs {
        match spec {
            FlowSpec::Eth { fields, is_inner } => matched(&mut out, T::ETH, *is_inner, fields, eth),
            FlowSpec::Ipv4 { fields, is_inner } => matched(&mut out, T::IPV4, *is_inner, fields, ipv4_short),
            // The kernel distinguishes the extended form by its size, not by its type.
            FlowSpec::Ipv4Ext { fields, is_inner } => matched(&mut out, T::IPV4, *is_inner, fields, ipv4),
            FlowSpec::Ipv6 { fields, is_inner } => matched(&mut out, T::IPV6, *is_inner, fields, ipv6),
            FlowSpec::Esp { fields, is_inner } => matched(&mut out, T::ESP, *is_inner, fields, |esp| {
                IbUverbsFlowSpecEspFilter { spi: esp.spi.to_be(), seq: esp.seq.to_be() }
            }),
            FlowSpec::Tcp { fields, is_inner } => matched(&mut out, T::TCP, *is_inner, fields, ports),
            FlowSpec::Udp { fields, is_inner } => matched(&mut out, T::UDP, *is_inner, fields, ports),
            FlowSpec::Mpls { fields, is_inner } => matched(&mut out, T::MPLS, *is_inner, fields, |mpls| {
                IbUverbsFlowMplsFilter { label: Be32::from_native(mpls.label) }
            }),
            FlowSpec::VxlanTunnel(fields) => matched(&mut out, T::VXLAN_TUNNEL, false, fields, |tunnel| {
                IbUverbsFlowTunnelFilter { tunnel_id: Be32::from_native(tunnel.tunnel_id) }
            }),
            FlowSpec::Gre(fields) => matched(&mut out, T::GRE, false, fields, |gre| IbUverbsFlowGreFilter {
                c_ks_res0_ver: Be16::from_native(gre.c_ks_res0_ver),
                protocol: Be16::from_native(gre.protocol),
                key: Be32::from_native(gre.key),
            }),
            FlowSpec::ActionTag(tag_id) => put(&mut out, T::ACTION_TAG, &[tag_id.as_bytes()]),
            FlowSpec::ActionDrop => put(&mut out, T::ACTION_DROP, &[]),
            FlowSpec::ActionHandle(handle) => put(&mut out, T::ACTION_HANDLE, &[handle.as_bytes()]),
            FlowSpec::ActionCount(handle) => put(&mut out, T::ACTION_COUNT, &[handle.as_bytes()]),
        }
    }
    out
}

/// Writes a specification that matches a packet header: the values, then the mask.
fn matched<T, K: IntoBytes + Immutable>(
    out: &mut Vec<u8>,
    spec_type: FlowSpecType,
    is_inner: bool,
    fields: &FlowMatch<T>,
    to_kernel: impl Fn(&T) -> K,
) {
    let inner = if is_inner { FlowSpecType::INNER.0 } else { 0 };
    let (val, mask) = (to_kernel(&fields.val), to_kernel(&fields.mask));
    put(out, FlowSpecType(spec_type.0 | inner), &[val.as_bytes(), mask.as_bytes()]);
}

/// Writes a specification: its type and size, then `parts`, padded to a multiple of 8 bytes.
fn put(out: &mut Vec<u8>, spec_type: FlowSpecType, parts: &[&[u8]]) {
    let start = out.len();
    out.extend_from_slice(IbUverbsFlowSpecHdr::default().as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    let size = (out.len() - start).next_multiple_of(8);
    out.resize(start + size, 0);
    // A specification is at most 88 bytes long: IPv6, with 40 bytes of values and 40 of mask.
    let hdr = IbUverbsFlowSpecHdr { r#type: spec_type.0, size: size as u16, reserved: 0 };
    out[start..start + size_of_val(&hdr)].copy_from_slice(hdr.as_bytes());
}

fn eth(eth: &FlowEthFilter) -> IbUverbsFlowEthFilter {
    IbUverbsFlowEthFilter {
        dst_mac: eth.dst_mac,
        src_mac: eth.src_mac,
        ether_type: Be16::from_native(eth.ether_type),
        vlan_tag: Be16::from_native(eth.vlan_tag),
    }
}

/// Returns the fields in the first version of the IPv4 specification, which every kernel accepts.
fn ipv4_short(ipv4: &FlowIpv4Filter) -> [Be32; 2] {
    [Be32::from_bytes(ipv4.src_ip.octets()), Be32::from_bytes(ipv4.dst_ip.octets())]
}

fn ipv4(ipv4: &FlowIpv4ExtFilter) -> IbUverbsFlowIpv4Filter {
    IbUverbsFlowIpv4Filter {
        src_ip: Be32::from_bytes(ipv4.src_ip.octets()),
        dst_ip: Be32::from_bytes(ipv4.dst_ip.octets()),
        proto: ipv4.proto,
        tos: ipv4.tos,
        ttl: ipv4.ttl,
        flags: ipv4.flags,
    }
}

fn ipv6(ipv6: &FlowIpv6Filter) -> IbUverbsFlowIpv6Filter {
    IbUverbsFlowIpv6Filter {
        src_ip: ipv6.src_ip.octets(),
        dst_ip: ipv6.dst_ip.octets(),
        flow_label: Be32::from_native(ipv6.flow_label),
        next_hdr: ipv6.next_hdr,
        traffic_class: ipv6.traffic_class,
        hop_limit: ipv6.hop_limit,
        reserved: 0,
    }
}

fn ports(ports: &FlowTcpUdpFilter) -> IbUverbsFlowTcpUdpFilter {
    IbUverbsFlowTcpUdpFilter {
        dst_port: Be16::from_native(ports.dst_port),
        src_port: Be16::from_native(ports.src_port),
    }
}

const FLOW_ACTIONS: &str = "flow actions";

/// The attributes of an ESP flow action in the kernel's format, kept alive during the command.
struct EspValues {
    esp: Option<IbUverbsFlowActionEsp>,
    esn: Option<u32>,
    keymat: Option<IbUverbsFlowActionEspKeymatAesGcm>,
    replay: Option<(IbUverbsFlowActionEspReplay, Option<IbUverbsFlowActionEspReplayBmp>)>,
    /// The header that describes the encapsulation, and the data that it points to.
    encap: Option<(IbUverbsFlowActionEspEncap, Box<[u8]>)>,
}

impl EspValues {
    fn new(attr: &FlowActionEspAttr) -> Self {
        Self {
            esp: attr.esp_attr.map(|esp| IbUverbsFlowActionEsp {
                spi: esp.spi,
                seq: esp.seq,
                tfc_pad: esp.tfc_pad,
                flags: esp.flags.bits(),
                hard_limit_pkts: esp.hard_limit_pkts,
            }),
            esn: attr.esn,
            keymat: attr.keymat.map(|keymat| {
                let mut words = [0_u32; 8];
                let key = keymat.aes_key.bytes();
                words.as_mut_bytes()[..key.len()].copy_from_slice(key);
                IbUverbsFlowActionEspKeymatAesGcm {
                    iv: keymat.iv,
                    iv_algo: keymat.iv_algo.0,
                    salt: keymat.salt,
                    icv_len: keymat.icv_len,
                    key_len: key.len() as u32,
                    aes_key: words,
                }
            }),
            replay: attr.replay.map(|replay| match replay {
                EspReplay::None => (IbUverbsFlowActionEspReplay::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE, None),
                EspReplay::Bitmap { size } => (
                    IbUverbsFlowActionEspReplay::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP,
                    Some(IbUverbsFlowActionEspReplayBmp { size }),
                ),
            }),
            encap: attr.encap.map(|encap| {
                let (spec_type, header): (_, Box<[u8]>) = match encap {
                    EspEncap::Ipv4(header) => (FlowSpecType::IPV4, ipv4(&header).as_bytes().into()),
                    EspEncap::Ipv6(header) => (FlowSpecType::IPV6, ipv6(&header).as_bytes().into()),
                };
                let link = IbUverbsFlowActionEspEncap {
                    val_ptr: header.as_ptr().expose_provenance() as u64,
                    next_ptr: 0,
                    len: header.len() as u16,
                    r#type: spec_type.0 as u16,
                    _pad: [0; 4],
                };
                (link, header)
            }),
        }
    }

    fn push_to<'a>(&'a self, attrs: &mut Vec<Attr<'a>>) {
        const AES_GCM: u8 = IbUverbsFlowActionEspKeymat::IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM.0 as u8;
        if let Some(esn) = self.esn {
            attrs.push(Attr::u32(UVERBS_ATTR_FLOW_ACTION_ESP_ESN, esn));
        }
        if let Some(keymat) = &self.keymat {
            attrs.push(Attr::enumerated(UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT, AES_GCM, keymat.as_bytes()));
        }
        if let Some((protocol, bitmap)) = &self.replay {
            let bytes = bitmap.as_ref().map_or(&[][..], IntoBytes::as_bytes);
            attrs.push(Attr::enumerated(UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY, protocol.0 as u8, bytes));
        }
        if let Some((link, _)) = &self.encap {
            attrs.push(Attr::input(UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP, link.as_bytes()));
        }
        if let Some(esp) = &self.esp {
            attrs.push(Attr::input(UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS, esp.as_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_header_of_esp_is_one_link_that_points_to_its_filter() {
        let header = FlowIpv4ExtFilter { src_ip: [1, 2, 3, 4].into(), ttl: 9, ..Default::default() };
        let attr = FlowActionEspAttr { encap: Some(EspEncap::Ipv4(header)), ..Default::default() };
        let (link, bytes) = EspValues::new(&attr).encap.unwrap();
        assert_eq!((link.next_ptr, link.len, link.r#type), (0, 12, 0x30));
        assert_eq!(link.val_ptr, bytes.as_ptr().addr() as u64);
        assert_eq!(bytes[..], [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 9, 0]);

        let header = FlowIpv6Filter { flow_label: 0x10203, hop_limit: 7, ..Default::default() };
        let attr = FlowActionEspAttr { encap: Some(EspEncap::Ipv6(header)), ..Default::default() };
        let (link, bytes) = EspValues::new(&attr).encap.unwrap();
        assert_eq!((link.len, link.r#type), (40, 0x31));
        assert_eq!(bytes[32..], [0, 1, 2, 3, 0, 0, 7, 0]);
    }
}
