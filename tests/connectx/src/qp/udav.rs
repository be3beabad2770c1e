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

/// Returns the destination that an address vector describes.
///
/// # Errors
/// The vector does not have the extended form, or names an address that the port does not have
/// (which a program may cause).
pub(crate) fn destination(port: &Port, vector: &[u8]) -> Result<UdDestination, Mistake> {
    if !datagram::EXTENDED.is_set(vector) {
        return Err(Mistake::of(Rule::WqeAddressVector, "the compact form"));
    }
    if let Some((offset, bits)) = datagram::TABLE.reserved(vector) {
        let what = format!("bits {bits:#x} of dword {offset:#x}");
        return Err(Mistake::of(Rule::WqeAddressVector, what));
    }
    // The GRH bit is reserved on RoCE, where every packet has addresses: libmlx5 leaves it 0, the
    // kernel driver sets it.
    let has_grh = port.kind == PortKind::Roce || datagram::GRH.is_set(vector);
    let network = match (port.kind, has_grh) {
        (PortKind::Roce, _) => Network::Udp,
        (PortKind::Ib, true) => Network::Grh,
        (PortKind::Ib, false) => Network::Local,
    };
    let mut path = Path { network, sl: datagram::SL.get(vector) as u8, ..Path::default() };
    if has_grh {
        let index = datagram::SGID_INDEX.get32(vector) as usize;
        path.local = port.gid(index).ok_or_else(|| Mistake::program(Status::LocalQpOperation))?;
        path.remote.copy_from_slice(datagram::RGID.of(vector));
        path.traffic_class = datagram::TCLASS.get(vector) as u8;
        path.hop_limit = datagram::HOP_LIMIT.get(vector) as u8;
        path.flow_label = datagram::FLOW_LABEL.get32(vector);
        if let Some(address) = port.roce_address(index) {
            // RoCE has no service level; for the receiver this field reports the kind of header.
            path.sl = address.header_type();
        }
    }
    if port.kind == PortKind::Ib {
        path.dlid = datagram::RLID_UDP_SPORT.get(vector) as u16;
        path.slid = port.lid() | datagram::MLID_PATH_BITS.get(vector) as u16;
    }
    Ok(UdDestination { path, qpn: datagram::DQPN.get32(vector), qkey: datagram::Q_KEY.get32(vector) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::vport::roce_addr_layout;
    use crate::port::ROCE_V2;

    #[test]
    fn on_roce_the_address_is_used_without_the_grh_bit_and_selects_the_header() {
        let mut port = Port::new(PortKind::Roce, 0);
        let mut entry = [0; roce_addr_layout::SIZE];
        entry[10..16].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        port.set_roce_address(0, &entry);
        roce_addr_layout::ROCE_VERSION.set(&mut entry, ROCE_V2);
        port.set_roce_address(1, &entry);
        entry[10] = 0;
        port.set_roce_address(2, &entry);
        for (index, header) in [(0u32, 0), (1, 2), (2, 1)] {
            for bit in [0u32, 1] {
                let mut vector = [0; SIZE];
                datagram::EXTENDED.set(&mut vector, 1u32);
                datagram::GRH.set(&mut vector, bit);
                datagram::SGID_INDEX.set(&mut vector, index);
                let path = destination(&port, &vector).unwrap().path;
                assert_eq!((path.network, path.sl), (Network::Udp, header), "address {index}");
            }
        }
        let mut vector = [0; SIZE];
        datagram::EXTENDED.set(&mut vector, 1u32);
        datagram::SGID_INDEX.set(&mut vector, 3u32);
        assert!(destination(&port, &vector).is_err(), "no such address");
    }
}
