//! Address handles: a datagram's path, in the format of a work queue entry.
//!
//! On InfiniBand, the path consists of the program's attributes, without a kernel object. On RoCE,
//! the kernel resolves the Ethernet address and keeps an address handle; older drivers leave the
//! resolution to this process.
//!
//! ```text
//!   byte  0  key, 8 reserved bytes, queue pair: of each request
//!        12  rate and service level │ path bits │ local id, or UDP source port
//!        20  Ethernet address │ traffic class │ hop limit
//!        28  GRH, source GID's index, flow label │ destination GID
//! ```
//!
//! # References
//! `ibv_create_ah(3)`; rdma-core `providers/mlx5/verbs.c` (`mlx5_create_ah`), `wqe.h`
//! (`mlx5_wqe_av`)

use std::sync::Arc;
use std::time::Duration;

use uverbs_abi::mlx5_abi::Mlx5IbCreateAhResp;
use verbs_core::channel::Uhw;
use verbs_core::kernel::KernelPd;
use verbs_core::provider::{AhOps, Destroy, DeviceOps as _, PdOps};
use verbs_core::types::{AhAttr, Av, GidEntry, GidType, GlobalRoute, Rate};
use verbs_core::{Cause, Errno, Error, Result, cmd, neighbour, random};
use zerocopy::IntoBytes;

use crate::device::{AV_TAG, Device, Port};
use crate::wqe::AV_LEN;

/// The maximum time to wait for a destination's Ethernet address, if the kernel does not resolve
/// it.
const PATIENCE: Duration = Duration::from_secs(3);

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    device: Arc<Device>,
    /// The handle of the kernel's object, if there is one.
    handle: Option<u32>,
    av: Av,
}

impl Ah {
    pub(crate) fn create(device: &Arc<Device>, pd: &KernelPd, attr: &AhAttr) -> Result<Self> {
        const VERB: &str = "create_ah";
        let error = |errno| device.error(VERB, errno);
        let Some(port) = device.port(attr.port_num)? else {
            return Err(device.kernel.explain_path(error(Errno::INVAL), attr));
        };
        if attr.grh.is_none() && (port.is_ethernet || port.needs_grh) {
            return Err(error(Errno::INVAL).because(Cause::NoGrh { port_num: attr.port_num }));
        }
        if let Some(grh) = attr.grh {
            if grh.sgid_index >= port.gid_tbl_len {
                let (index, table_len) = (grh.sgid_index, port.gid_tbl_len);
                let cause = Cause::Gid { port_num: attr.port_num, index, table_len };
                return Err(error(Errno::INVAL).because(cause));
            }
            verbs_core::explain::within("sgid_index", grh.sgid_index.into(), 0, u8::MAX.into())
                .map_err(|cause| error(Errno::INVAL).because(cause))?;
        }
        let mut path = Path::new(port, attr);
        let mut handle = None;
        if let (true, Some(grh)) = (port.is_ethernet, attr.grh) {
            let source = device.kernel.query_gid_entry(attr.port_num, grh.sgid_index)?;
            let nothing = Cause::Gid { port_num: attr.port_num, index: grh.sgid_index, table_len: 0 };
            let source = source.ok_or_else(|| error(Errno::INVAL).because(nothing))?;
            if source.gid_type == GidType::ROCE_V2 {
                path.lid_or_port = udp_source_port(grh.flow_label).map_err(error)?;
            }
            if device.resolves_ah {
                let mut reply = Mlx5IbCreateAhResp::default();
                let uhw = Uhw::reply(reply.as_mut_bytes());
                let created = cmd::ah::create_ah(device.kernel.uverbs(), pd.handle(), 0, attr, uhw)
                    .map_err(|error| device.kernel.explain_path(error, attr))?;
                (handle, path.mac) = (Some(created), reply.dmac);
            } else {
                path.mac = resolve(&source, &grh).map_err(error)?;
            }
        }
        Ok(Self { device: Arc::clone(device), handle, av: Av::new(AV_TAG, &path.bytes()) })
    }

    /// Returns the address vector from an address handle's copy of its path, in the format of a
    /// work queue entry. It has 48 bytes; the request fills in the first 12. Returns `None` for
    /// another provider's address handle.
    pub fn address_vector(av: &Av) -> Option<&[u8]> {
        av.bytes(AV_TAG)
    }
}

/// Resolves the Ethernet address of a destination.
fn resolve(source: &GidEntry, grh: &GlobalRoute) -> Result<[u8; 6], Errno> {
    let [source_ip, destination] = [&source.gid, &grh.dgid].map(neighbour::address_of);
    Ok(neighbour::resolve(source.ndev_ifindex, source_ip, destination, PATIENCE)?.mac)
}

/// Returns the UDP source port for a path, derived from the flow label if that is set, and
/// otherwise arbitrary.
fn udp_source_port(flow_label: u32) -> Result<u16, Errno> {
    let label = flow_label & GlobalRoute::FLOW_LABEL_MASK;
    if label != 0 {
        return Ok(GlobalRoute::flow_label_to_udp_sport(label));
    }
    Ok(random::draw()? as u16 | GlobalRoute::UDP_SPORT_MIN)
}

/// The fields of an address vector that do not depend on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    rate_sl: u8,
    path_bits: u8,
    /// The destination's LID, or the UDP source port on RoCE v2.
    lid_or_port: u16,
    mac: [u8; 6],
    traffic_class: u8,
    hop_limit: u8,
    grh_gid_fl: u32,
    dgid: [u8; 16],
}

impl Path {
    fn new(port: Port, attr: &AhAttr) -> Self {
        let rate = rate(attr.static_rate) << 4;
        let (rate_sl, path_bits, lid_or_port) = if port.is_ethernet {
            // A VLAN tag's priority, above a zero bit.
            (rate | (attr.sl & 7) << 1, 0, 0)
        } else {
            (rate | attr.sl & 0xf, attr.src_path_bits & 0x7f, attr.dlid)
        };
        let mut path = Self {
            rate_sl,
            path_bits,
            lid_or_port,
            mac: [0; 6],
            traffic_class: 0,
            hop_limit: 0,
            grh_gid_fl: 0,
            dgid: [0; 16],
        };
        if let Some(grh) = attr.grh {
            // Every RoCE packet has a GRH, so the bit is reserved on RoCE.
            let has_grh = u32::from(!port.is_ethernet) << 30;
            let label = grh.flow_label & GlobalRoute::FLOW_LABEL_MASK;
            path.grh_gid_fl = has_grh | (grh.sgid_index & 0xff) << 20 | label;
            (path.traffic_class, path.hop_limit, path.dgid) = (grh.traffic_class, grh.hop_limit, grh.dgid.0);
        }
        path
    }

    fn bytes(&self) -> [u8; AV_LEN] {
        let mut bytes = [0; AV_LEN];
        bytes[12] = self.rate_sl;
        bytes[13] = self.path_bits;
        bytes[14..16].copy_from_slice(&self.lid_or_port.to_be_bytes());
        bytes[20..26].copy_from_slice(&self.mac);
        (bytes[26], bytes[27]) = (self.traffic_class, self.hop_limit);
        bytes[28..32].copy_from_slice(&self.grh_gid_fl.to_be_bytes());
        bytes[32..].copy_from_slice(&self.dgid);
        bytes
    }
}

/// Returns the device's code for a static rate. The device supports fewer rates than verbs: an
/// unsupported rate is replaced by a similar rate or by no limit.
///
/// # References
/// IBTA volume 1, table 224
const fn rate(rate: Rate) -> u8 {
    const OF: [u8; 23] = [0, 0, 7, 8, 9, 10, 11, 12, 13, 14, 15, 11, 13, 15, 0, 9, 15, 0, 0, 9, 13, 0, 0];
    if (rate.0 as usize) < OF.len() { OF[rate.0 as usize] } else { 0 }
}

impl AhOps for Ah {
    #[inline]
    fn av(&self) -> &Av {
        &self.av
    }
}

impl Destroy for Ah {
    fn destroy(self) -> Result<(), (Self, Error)> {
        let Some(handle) = self.handle else { return Ok(()) };
        match cmd::ah::destroy_ah(self.device.kernel.uverbs(), handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::channel::{Expect, Reply};
    use verbs_core::types::Gid;

    use super::*;

    fn attr() -> AhAttr {
        let dgid = Gid(core::array::from_fn(|at| at as u8));
        let grh =
            GlobalRoute { dgid, flow_label: 0xf_abcde, sgid_index: 0x12, hop_limit: 7, traffic_class: 9 };
        AhAttr {
            grh: Some(grh),
            dlid: 0x1234,
            sl: 0xd,
            src_path_bits: 0x85,
            static_rate: Rate(4),
            port_num: 1,
        }
    }

    #[test]
    fn an_infiniband_path_has_a_local_id_and_the_bit_of_the_grh() {
        let port = Port { is_ethernet: false, needs_grh: false, gid_tbl_len: 256 };
        let bytes = Path::new(port, &attr()).bytes();
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x9d, 0x05, 0x12, 0x34]);
        assert_eq!(bytes[16..32], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 7, 0x41, 0x2a, 0xbc, 0xde]);
        assert_eq!(bytes[32..], attr().grh.unwrap().dgid.0);
        let local = Path::new(port, &AhAttr { grh: None, ..attr() }).bytes();
        assert_eq!(local[16..], [0; 32]);
    }

    #[test]
    fn a_roce_path_has_an_ethernet_address_and_a_source_port() {
        let port = Port { is_ethernet: true, needs_grh: true, gid_tbl_len: 256 };
        let mut path = Path::new(port, &attr());
        (path.mac, path.lid_or_port) = ([1, 2, 3, 4, 5, 6], 0xc001);
        let bytes = path.bytes();
        assert_eq!(bytes[12..16], [0x9a, 0, 0xc0, 1]);
        assert_eq!(bytes[20..32], [1, 2, 3, 4, 5, 6, 9, 7, 0x01, 0x2a, 0xbc, 0xde]);
    }

    #[test]
    fn a_handle_on_roce_has_the_drivers_address_and_in_version_2_a_source_port() {
        let entry = |gid_type: GidType| {
            let numbers = [0x12, 1, gid_type.0, 3].map(u32::to_ne_bytes).concat();
            Expect::anything(Reply::outputs([&[[0; 16].as_slice(), &numbers].concat()]))
        };
        for (gid_type, source_port) in [(GidType::ROCE_V1, 0_u16), (GidType::ROCE_V2, 0xfcf4)] {
            let (device, script) = crate::device::tests::ethernet();
            let pd = KernelPd::import(&device.kernel, 3);
            let reply = Mlx5IbCreateAhResp { dmac: [1, 2, 3, 4, 5, 6], ..Default::default() };
            let created = Reply::outputs([&8_u32.to_ne_bytes(), reply.as_bytes()]);
            script.expect([entry(gid_type), Expect::anything(created)]);
            let ah = Ah::create(&device, &pd, &attr()).unwrap();
            let bytes = ah.av().bytes(AV_TAG).unwrap();
            assert_eq!(bytes[14..16], source_port.to_be_bytes(), "{gid_type:?}");
            assert_eq!((&bytes[20..26], ah.handle), (&[1, 2, 3, 4, 5, 6][..], Some(8)));
        }
    }

    #[test]
    fn the_source_port_follows_the_flow_label() {
        assert_eq!(udp_source_port(2).unwrap(), 0xc002);
        assert!(udp_source_port(0).unwrap() >= 0xc000);
        assert!(udp_source_port(1 << 20).unwrap() >= 0xc000);
        // A label of 0 counts as unset, so the ports differ.
        assert!((0..16).any(|_| udp_source_port(1 << 20).unwrap() != 0xc000));
    }

    #[test]
    fn rates_without_a_number_are_unlimited() {
        assert_eq!(
            [Rate(0), Rate(2), Rate(11), Rate(22), Rate(23), Rate(255)].map(rate),
            [0, 7, 11, 0, 0, 0]
        );
    }
}
