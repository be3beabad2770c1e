//! Address vectors of datagrams.
//!
//! # References
//! PRM, "datagram segment"; rdma-core `struct mlx5_wqe_datagram_seg`

use roce::engine::{Network, Path, Status, UdDestination};

use super::wqe::Mistake;
use crate::complaint::Rule;
use crate::layout::wqe::datagram;
use crate::port::{Port, PortKind};

/// Bytes of an address vector.
pub(crate) const SIZE: usize = datagram::SIZE;

/// Where an address vector points to.
///
/// # Errors
/// It is not of the extended form, or it names an address that the port does not have (which a program may have asked for).
pub(crate) fn destination(port: &Port, vector: &[u8]) -> Result<UdDestination, Mistake> {
    if !datagram::EXTENDED.is_set(vector) {
        return Err(Mistake::of(Rule::WqeAddressVector, "it is not extended"));
    }
    if let Some((offset, bits)) = datagram::TABLE.reserved(vector) {
        let what = format!("bits {bits:#x} of dword {offset:#x}");
        return Err(Mistake::of(Rule::WqeAddressVector, what));
    }
    let has_grh = datagram::GRH.is_set(vector);
    let network = match (port.kind, has_grh) {
        (PortKind::Roce, true) => Network::Udp,
        // Without a GRH there is no address.
        (PortKind::Roce, false) => return Err(Mistake::program(Status::LocalQpOperation)),
        (PortKind::Ib, true) => Network::Grh,
        (PortKind::Ib, false) => Network::Local,
    };
    let mut path = Path { network, sl: datagram::SL.get(vector) as u8, ..Path::default() };
    if has_grh {
        let index = datagram::SGID_INDEX.get32(vector);
        path.local = port.gid(index as usize).ok_or_else(|| Mistake::program(Status::LocalQpOperation))?;
        path.remote.copy_from_slice(datagram::RGID.of(vector));
        path.traffic_class = datagram::TCLASS.get(vector) as u8;
        path.hop_limit = datagram::HOP_LIMIT.get(vector) as u8;
        path.flow_label = datagram::FLOW_LABEL.get32(vector);
    }
    if port.kind == PortKind::Ib {
        path.dlid = datagram::RLID_UDP_SPORT.get(vector) as u16;
        path.slid = port.lid() | datagram::MLID_PATH_BITS.get(vector) as u16;
    }
    Ok(UdDestination { path, qpn: datagram::DQPN.get32(vector), qkey: datagram::Q_KEY.get32(vector) })
}
