//! The route back to a datagram's sender and the Ethernet address of a GID.
//!
//! # Safety
//! See the crate documentation. Structs of the caller are accessed through raw pointers, because
//! the structs to be written may be uninitialised.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ops::ControlFlow;
use std::time::Duration;

use verbs_core::Errno;
use verbs_core::neighbour::{self, EthPath, address_of};
use verbs_core::provider::DeviceOps;
use verbs_core::types::{Gid, Grh};

use crate::abi::c::{IBV_WC_GRH, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_wc};
use crate::abi::errno::{fail, not_null_or_minus_one, refused};
use crate::handle::context::device_ops;

/// Computes the route back to the sender of a datagram received at a port. Returns 0, or -1 with
/// `errno`:
///
/// | errno | cause |
/// |---|---|
/// | `EINVAL` | the datagram went to a group, or to a GID that the port lacks; a null pointer |
/// | `EPROTONOSUPPORT` | `grh` is not an InfiniBand or RoCE header |
///
/// Without `IBV_WC_GRH` in the completion, `grh` may be null. As in rdma-core, the hop limit is the
/// datagram's remaining hop limit. The flow label of an IPv4 datagram, which has none, is 0.
///
/// # Safety
/// `context` must be null or open. The other arguments must be null, or point to a completion, the
/// 40 bytes in front of the datagram, and memory for the attributes.
///
/// # References
/// `ibv_init_ah_from_wc(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    not_null_or_minus_one!(context, wc, ah_attr);
    // SAFETY: guaranteed by the caller; neither pointer is null.
    unsafe { init_ah_from_wc(device_ops(context), port_num, wc, grh, ah_attr) }
}

/// Implements [`ibv_init_ah_from_wc`] on the context's device.
///
/// # Safety
/// `wc` must point to a completion and `ah_attr` to memory for the attributes; `grh` must be null
/// or point to 40 bytes.
pub(crate) unsafe fn init_ah_from_wc(
    query: &dyn DeviceOps,
    port_num: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: both point to their structs; all zeros are valid attributes.
    let has_grh = unsafe {
        ah_attr.write_bytes(0, 1);
        (*ah_attr).dlid = (*wc).slid;
        (*ah_attr).sl = (*wc).sl;
        (*ah_attr).src_path_bits = (*wc).dlid_path_bits;
        (*ah_attr).port_num = port_num;
        (*wc).wc_flags & IBV_WC_GRH != 0
    };
    if !has_grh {
        return 0;
    }
    let route = if grh.is_null() {
        Err(Errno::INVAL)
    } else {
        // SAFETY: the pointer refers to 40 bytes; any contents are valid.
        let header = unsafe { grh.cast::<[u8; Grh::LEN]>().read_unaligned() };
        route_back(query, port_num, &header)
    };
    // SAFETY: as above.
    unsafe { (*ah_attr).is_global = 1 };
    match route {
        Ok(route) => {
            // SAFETY: as above.
            unsafe { (*ah_attr).grh = route };
            0
        }
        Err(errno) => {
            fail(&refused(
                "init_ah_from_wc",
                errno,
                "the header of the datagram shows no route to its sender",
            ));
            -1
        }
    }
}

/// Returns the route to a datagram's sender, starting from the destination GID.
fn route_back(
    query: &dyn DeviceOps,
    port_num: u8,
    header: &[u8; Grh::LEN],
) -> Result<ibv_global_route, Errno> {
    let mut grh = Grh::parse(header).map_err(|_| Errno::PROTONOSUPPORT)?;
    if grh.dgid.is_multicast() {
        return Err(Errno::INVAL);
    }
    if ![Grh::UDP, Grh::IBA].contains(&grh.next_header) {
        // The protocol field of an IPv4 header does not matter: only RoCE v2 uses IPv4.
        if grh.sgid.to_ipv4().is_none() {
            return Err(Errno::PROTONOSUPPORT);
        }
        grh.next_header = Grh::UDP;
    }
    let mut source = None;
    query
        .visit_gids(port_num, &mut |entry| {
            if entry.gid != grh.dgid || !grh.is_of(entry.gid_type) {
                return ControlFlow::Continue(());
            }
            source = Some(entry.gid_index);
            ControlFlow::Break(())
        })
        .map_err(|error| error.errno)?;
    Ok(ibv_global_route {
        dgid: ibv_gid { raw: grh.sgid.0 },
        flow_label: grh.flow_label,
        // The field has 8 bits.
        sgid_index: source.ok_or(Errno::INVAL)? as u8,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
    })
}

/// Finds the Ethernet address of the next hop to a GID, and the VLAN of the interface that has the
/// source GID (`0xffff` for none). `vid` may be null. Waits up to 3 s for a neighbour's reply.
///
/// Returns 0; -1 with `errno` for a source GID that cannot be queried; `-EINVAL` for a source GID
/// that no interface has, and for a null pointer; `-EHOSTUNREACH` if no Ethernet address is found.
///
/// # Safety
/// `context` must be null or open. The other arguments must be null, or point to attributes, memory
/// for 6 bytes, and memory for the VLAN number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    if context.is_null() || attr.is_null() || eth_mac.is_null() {
        return -fail(&refused(RESOLVE, Errno::INVAL, "a pointer is null"));
    }
    // SAFETY: the context is open; every byte of the attributes' GID is initialised.
    let (query, port_num, index, dgid) =
        unsafe { (device_ops(context), (*attr).port_num, (*attr).grh.sgid_index, Gid((*attr).grh.dgid.raw)) };
    match resolve(query, port_num, index, &dgid) {
        Ok(EthPath { mac, vlan }) => {
            // SAFETY: there is space for both, as the caller promises.
            unsafe {
                eth_mac.cast::<[u8; 6]>().write(mac);
                if !vid.is_null() {
                    vid.write(vlan.unwrap_or(NO_VLAN));
                }
            }
            0
        }
        Err(code) => code,
    }
}

/// Resolves a GID, starting from an entry of a port's table.
///
/// # Errors
/// Returns the result of `ibv_resolve_eth_l2_from_gid` and sets `errno`.
fn resolve(query: &dyn DeviceOps, port_num: u8, index: u8, dgid: &Gid) -> Result<EthPath, c_int> {
    let entry = query.query_gid_entry(port_num, index.into()).map_err(|error| {
        fail(&error);
        -1
    })?;
    let invalid = |_| -fail(&refused(RESOLVE, Errno::INVAL, "no interface has the GID of the index"));
    // An empty entry holds a GID that no interface has.
    let entry = entry.ok_or(()).map_err(invalid)?;
    let source = address_of(&entry.gid);
    let ifindex = match entry.ndev_ifindex {
        0 => neighbour::interface_with(source).map_err(|_| invalid(()))?,
        ifindex => ifindex,
    };
    neighbour::resolve(ifindex, source, address_of(dgid), PATIENCE).map_err(|_| {
        -fail(&refused(RESOLVE, Errno::HOSTUNREACH, "no neighbour or route has the address of the GID"))
    })
}

/// The verb named in errors.
const RESOLVE: &str = "resolve_eth_l2_from_gid";

/// The time that a neighbour has to reply.
const PATIENCE: Duration = Duration::from_secs(3);

/// The VLAN number of an interface without a VLAN.
const NO_VLAN: u16 = 0xffff;

#[cfg(test)]
mod tests;
