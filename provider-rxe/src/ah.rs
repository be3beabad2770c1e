//! Address handles, in two forms.
//!
//! - Newer kernels (6.1) number their address handles: a datagram carries the number and the kernel
//!   looks up the path.
//! - Older kernels (5.10) return no number: a datagram carries the whole path, an `rxe_av` written
//!   by the provider.
//!
//! # References
//! `ibv_create_ah(3)`; Linux `drivers/infiniband/sw/rxe/rxe_verbs.c` (`rxe_create_ah`), `rxe_av.c`

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;
use uverbs_abi::rdma_user_rxe::{
    RXE_NETWORK_TYPE_IPV4, RXE_NETWORK_TYPE_IPV6, RxeAv, RxeAvAddr, RxeCreateAhResp, RxeGid, RxeGidGlobal,
    RxeGlobalRoute,
};
use uverbs_abi::socket::{SockaddrIn, SockaddrIn6};
use uverbs_abi::{Be32, Be64};
use verbs_core::channel::Uhw;
use verbs_core::kernel::{Kernel, KernelPd};
use verbs_core::provider::{AhOps, Destroy, DeviceOps as _, PdOps};
use verbs_core::types::{AhAttr, Av, Gid, GidEntry, GlobalRoute};
use verbs_core::{Cause, Errno, Error, Result, cmd};
use zerocopy::IntoBytes;

/// The tag of this provider's address vectors.
pub(crate) const AV_TAG: u32 = RdmaDriverId::RDMA_DRIVER_RXE.0;

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    context: Kernel,
    handle: u32,
    av: Av,
}

impl Ah {
    pub(crate) fn create(context: &Kernel, pd: &KernelPd, attr: &AhAttr) -> Result<Self> {
        let uverbs = context.uverbs();
        let mut reply = RxeCreateAhResp::default();
        // Address handles have no events, so their user handle is unused.
        let handle = cmd::ah::create_ah(uverbs, pd.handle(), 0, attr, Uhw::reply(reply.as_mut_bytes()))
            .map_err(|error| context.explain_path(error, attr))?;
        let av = match reply.ah_num {
            0 => spell(context, attr).map(|av| Av::new(AV_TAG, av.as_bytes())),
            ah_num => Ok(Av::new(AV_TAG, &ah_num.to_ne_bytes())),
        };
        match av {
            Ok(av) => Ok(Self { context: context.clone(), handle, av }),
            Err(error) => {
                // The missing path is the error to report. If the handle cannot be destroyed,
                // closing the context destroys it.
                let _ = cmd::ah::destroy_ah(uverbs, handle);
                Err(error)
            }
        }
    }
}

impl AhOps for Ah {
    #[inline]
    fn av(&self) -> &Av {
        &self.av
    }
}

impl Destroy for Ah {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match cmd::ah::destroy_ah(self.context.uverbs(), self.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

/// Returns the whole path, because this kernel does not number address handles.
fn spell(context: &Kernel, attr: &AhAttr) -> Result<RxeAv> {
    let error = || context.uverbs().error("create_ah", Errno::INVAL);
    // The kernel has accepted the path, and RoCE requires a global route.
    let grh = attr.grh.ok_or_else(error)?;
    let table = context.query_gid_table()?;
    path(attr.port_num, &grh, &table).ok_or_else(|| {
        error().because(Cause::Gid { port_num: attr.port_num, index: grh.sgid_index, table_len: 0 })
    })
}

/// Returns the path from the entry `grh.sgid_index` of a GID table to `grh.dgid`, or `None` if the
/// entry does not exist or its index exceeds 8 bits.
fn path(port_num: u8, grh: &GlobalRoute, table: &[GidEntry]) -> Option<RxeAv> {
    let of_port = || table.iter().filter(|entry| entry.port_num == port_num.into());
    let source = of_port().find(|entry| entry.gid_index == grh.sgid_index)?;
    let is_own = of_port().any(|entry| entry.gid == grh.dgid);
    let ipv4 = grh.dgid.to_ipv4().is_some();
    Some(RxeAv {
        port_num,
        network_type: if ipv4 { RXE_NETWORK_TYPE_IPV4 } else { RXE_NETWORK_TYPE_IPV6 },
        // The kernel routes packets by IP and looks up neighbours itself. It only compares this
        // address with its own and loops the packet back if they are equal.
        dmac: if is_own { own_mac(source.ndev_ifindex, of_port()).unwrap_or_default() } else { [0; 6] },
        grh: RxeGlobalRoute {
            dgid: RxeGid::from_global(RxeGidGlobal {
                subnet_prefix: Be64::from_native(grh.dgid.subnet_prefix()),
                interface_id: Be64::from_native(grh.dgid.interface_id()),
            }),
            flow_label: grh.flow_label,
            sgid_index: u8::try_from(grh.sgid_index).ok()?,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            _pad: [0],
        },
        sgid_addr: socket_address(&source.gid),
        dgid_addr: socket_address(&grh.dgid),
    })
}

fn socket_address(gid: &Gid) -> RxeAvAddr {
    match gid.to_ipv4() {
        Some(address) => RxeAvAddr::from_sockaddr_in(SockaddrIn {
            sin_family: libc::AF_INET as u16,
            sin_addr: Be32::from_native(address.to_bits()),
            ..Default::default()
        }),
        None => RxeAvAddr::from_sockaddr_in6(SockaddrIn6 {
            sin6_family: libc::AF_INET6 as u16,
            sin6_addr: gid.0,
            ..Default::default()
        }),
    }
}

/// Returns the MAC address of a network interface, from the link-local GID of every port: its lower
/// half holds the address as an EUI-64 (RFC 4291, appendix A).
fn own_mac<'a>(ifindex: u32, mut entries: impl Iterator<Item = &'a GidEntry>) -> Option<[u8; 6]> {
    entries.find_map(|entry| match entry.gid.0 {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] if entry.ndev_ifindex == ifindex => {
            Some([a ^ 2, b, c, d, e, f])
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use verbs_core::types::GidType;

    use super::*;

    fn entry(gid: Gid, gid_index: u32, ndev_ifindex: u32) -> GidEntry {
        GidEntry { gid, gid_index, port_num: 1, gid_type: GidType::ROCE_V2, ndev_ifindex }
    }

    fn table() -> Vec<GidEntry> {
        let default = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]);
        let other = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xff, 0xfe, 0, 0, 1]);
        vec![entry(other, 0, 3), entry(default, 1, 7), entry(Gid::from(Ipv4Addr::new(10, 0, 0, 1)), 2, 7)]
    }

    fn route(dgid: Gid, sgid_index: u32) -> GlobalRoute {
        GlobalRoute { dgid, sgid_index, flow_label: 5, hop_limit: 64, traffic_class: 3 }
    }

    #[test]
    fn a_path_to_ones_own_address_carries_ones_own_mac() {
        let own = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        let av = path(1, &route(own, 2), &table()).unwrap();
        assert_eq!(av.dmac, [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!((av.port_num, av.network_type), (1, RXE_NETWORK_TYPE_IPV4));
        assert_eq!(av.sgid_addr, av.dgid_addr);
        assert_eq!(av.sgid_addr.as_sockaddr_in().sin_addr.to_bytes(), [10, 0, 0, 1]);
        assert_eq!(
            (av.grh.flow_label, av.grh.sgid_index, av.grh.hop_limit, av.grh.traffic_class),
            (5, 2, 64, 3)
        );
        assert_eq!(av.grh.dgid.as_raw(), own.0);
    }

    #[test]
    fn a_path_to_another_host_carries_no_mac() {
        let av = path(1, &route(Gid::from(Ipv4Addr::new(10, 0, 0, 2)), 2), &table()).unwrap();
        assert_eq!(av.dmac, [0; 6]);
        assert_eq!(av.dgid_addr.as_sockaddr_in().sin_addr.to_bytes(), [10, 0, 0, 2]);
    }

    #[test]
    fn an_ipv6_path_is_spelled_as_one() {
        let peer: std::net::Ipv6Addr = "fd00::2".parse().unwrap();
        let av = path(1, &route(Gid::from(peer), 1), &table()).unwrap();
        assert_eq!(av.network_type, RXE_NETWORK_TYPE_IPV6);
        assert_eq!(av.dgid_addr.as_sockaddr_in6().sin6_addr, peer.octets());
        assert_eq!(av.sgid_addr.as_sockaddr_in6().sin6_addr, table()[1].gid.0);
    }

    #[test]
    fn a_source_outside_of_the_table_is_no_path() {
        let peer = Gid::from(Ipv4Addr::new(10, 0, 0, 2));
        assert!(path(1, &route(peer, 9), &table()).is_none());
        assert!(path(2, &route(peer, 2), &table()).is_none());
    }

    #[test]
    fn either_flavour_fits_into_an_address_vector() {
        const { assert!(size_of::<RxeAv>() <= Av::MAX) }
        assert_ne!(size_of::<RxeAv>(), size_of::<u32>());
    }
}
