//! [`Ah`]: the path of a datagram.

use std::sync::Arc;

use roce::engine::Path;
use verbs_core::provider::{AhOps, Destroy};
use verbs_core::types::{AhAttr, Av, Gid, LinkLayer};
use verbs_core::{Cause, Errno, Error, Result, explain};

use crate::device::state::DeviceState;
use crate::device::{Device, limits};
use crate::io::address::destination;
use crate::objects::pd::Pd;
use crate::objects::soft::DRIVER_ID;

/// An address handle: a value in the program's memory, unknown to the device. An address handle
/// keeps its protection domain alive, as with kernel devices.
#[derive(Debug)]
pub struct Ah {
    av: Av,
    _pd: Arc<()>,
}

impl Ah {
    pub(crate) fn create(device: &Arc<Device>, pd: &Pd, attr: &AhAttr) -> Result<Self> {
        device.check("create_ah")?;
        let pd = pd.for_ah(device, "create_ah")?;
        Ok(Self { av: to_av(&path(device, "create_ah", attr)?), _pd: pd })
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
        Ok(())
    }
}

/// Returns the path described by the attributes.
///
/// # Errors
/// - `EINVAL`: with [`Cause::Limit`] for a port other than 1, with [`Cause::NoGrh`] without a GRH,
///   with [`Cause::Gid`] for a source GID index outside the table.
/// - `ENODATA` with [`Cause::Gid`]: an empty entry of the GID table.
/// - `ENETUNREACH` with [`Cause::Unreachable`]: a destination of the other address family, except
///   an IPv6 group on a device with an IPv4 address.
pub(crate) fn path(device: &DeviceState, verb: &'static str, attr: &AhAttr) -> Result<Path> {
    let invalid = |cause| device.error(verb, Errno::INVAL).because(cause);
    explain::path_port(attr, limits::PORT).map_err(invalid)?;
    explain::path_grh(attr, LinkLayer::ETHERNET).map_err(invalid)?;
    let grh = attr.grh.unwrap_or_default();
    if grh.sgid_index >= limits::GIDS {
        let index = grh.sgid_index;
        let (errno, table_len) =
            if index < limits::GID_TABLE { (Errno::NODATA, 0) } else { (Errno::INVAL, limits::GID_TABLE) };
        let cause = Cause::Gid { port_num: attr.port_num, index, table_len };
        return Err(device.error(verb, errno).because(cause));
    }
    let dgid = Gid(destination(&device.gid, grh.dgid.0));
    if dgid.to_ipv4().is_some() != Gid(device.gid).to_ipv4().is_some() {
        let cause = Cause::Unreachable { from: Gid(device.gid), to: dgid };
        return Err(device.error(verb, Errno::NETUNREACH).because(cause));
    }
    Ok(Path {
        local: device.gid,
        remote: dgid.0,
        traffic_class: grh.traffic_class,
        hop_limit: grh.hop_limit,
        sl: attr.sl,
        flow_label: grh.flow_label & 0xf_ffff,
        ..Path::default()
    })
}

fn to_av(path: &Path) -> Av {
    let mut bytes = [0; LEN];
    bytes[..16].copy_from_slice(&path.remote);
    bytes[16..20].copy_from_slice(&path.flow_label.to_ne_bytes());
    bytes[20..].copy_from_slice(&[path.traffic_class, path.hop_limit, path.sl]);
    Av::new(DRIVER_ID, &bytes)
}

/// Returns the path stored in an address vector, with source address `local`. Returns `None` for
/// another provider's vector.
#[inline]
pub(crate) fn from_av(av: &Av, local: [u8; 16]) -> Option<Path> {
    let bytes: &[u8; LEN] = av.bytes(DRIVER_ID)?.try_into().ok()?;
    let (remote, rest) = bytes.split_first_chunk::<16>()?;
    let (flow_label, rest) = rest.split_first_chunk::<4>()?;
    let &[traffic_class, hop_limit, sl] = rest else { return None };
    let flow_label = u32::from_ne_bytes(*flow_label);
    Some(Path { local, remote: *remote, traffic_class, hop_limit, sl, flow_label, ..Path::default() })
}

/// The length of a path in an address vector, in bytes.
const LEN: usize = 23;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_out_of_its_vector_as_it_went_in() {
        let path = Path {
            local: [1; 16],
            remote: [2; 16],
            traffic_class: 3,
            hop_limit: 4,
            sl: 5,
            flow_label: 0xabcde,
            ..Path::default()
        };
        assert_eq!(from_av(&to_av(&path), [1; 16]), Some(path));
        assert_eq!(from_av(&Av::new(DRIVER_ID + 1, &[0; LEN]), [1; 16]), None);
        assert_eq!(from_av(&Av::new(DRIVER_ID, &[0; LEN - 1]), [1; 16]), None);
    }
}
