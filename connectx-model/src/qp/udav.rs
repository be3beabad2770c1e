//! Address vectors of datagrams.
//!
//! # References
//! PRM, "datagram segment"; rdma-core `struct mlx5_wqe_datagram_seg`

use roce::engine::{Network, Path, Status, UdDestination};

use crate::complaint::Rule;
use crate::destination::Mac;
use crate::layout::wqe::datagram;
use crate::port::{Port, PortKind};
use crate::qp::request::Mistake;

/// Size of an address vector, in bytes.
pub(crate) const SIZE: usize = datagram::SIZE;

/// Converts an address vector to a destination.
///
/// # Errors
/// A [`Mistake`] if the vector is malformed or not in the extended form. If the vector names an
/// address that the port does not have, the mistake is the program's.
pub(crate) fn destination(port: &Port, vector: &[u8]) -> Result<UdDestination, Mistake> {
    if !datagram::EXTENDED.is_set(vector) {
        return Err(Mistake::new(Rule::WqeAddressVector, "the compact form"));
    }
    if let Some((offset, bits)) = datagram::TABLE.reserved(vector) {
        let what = format!("bits {bits:#x} of dword {offset:#x}");
        return Err(Mistake::new(Rule::WqeAddressVector, what));
    }
    check(port, vector)?;
    // On RoCE, where every packet has addresses, the GRH bit is reserved: libmlx5 leaves it 0, the
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
        path.remote.copy_from_slice(datagram::RGID.bytes(vector));
        path.traffic_class = datagram::TCLASS.get(vector) as u8;
        path.hop_limit = datagram::HOP_LIMIT.get(vector) as u8;
        path.flow_label = datagram::FLOW_LABEL.get32(vector);
        if let Some(address) = port.roce_address(index) {
            // RoCE has no service level. This field instead carries the header type to the
            // receiver.
            path.sl = address.header_type();
        }
    }
    if port.kind == PortKind::Ib {
        path.dlid = datagram::RLID_UDP_SPORT.get(vector) as u16;
        path.slid = port.lid() | datagram::MLID_PATH_BITS.get(vector) as u16;
    }
    Ok(UdDestination { path, qpn: datagram::DQPN.get32(vector), qkey: datagram::Q_KEY.get32(vector) })
}

/// Returns the destination MAC address in an address vector.
pub(crate) fn mac(vector: &[u8]) -> Mac {
    datagram::RMAC.bytes(vector).first_chunk().copied().unwrap_or_default()
}

/// Rejects an address vector if it sets fields that drivers and providers leave 0 on this kind of
/// port.
///
/// | field | InfiniBand | RoCE |
/// |---|---|---|
/// | force loopback | 0 | 0 |
/// | path bits | below 2^LMC, which is 1 | 0 |
/// | service level | 4 bits | 3 bits and a 0 |
/// | LID or UDP source port | LID | at least 0xc000 for version 2, 0 for version 1 |
/// | MAC address | 0 | destination |
/// | GID, hop limit, traffic class, ... | 0 without the GRH bit | always |
///
/// # References
/// rdma-core `mlx5_create_ah`; Linux `drivers/infiniband/hw/mlx5/ah.c`
fn check(port: &Port, vector: &[u8]) -> Result<(), Mistake> {
    let wrong = |what: &str| Err(Mistake::new(Rule::WqeAddressVector, what));
    if datagram::FORCE_LOOPBACK.is_set(vector) {
        return wrong("force loopback");
    }
    match port.kind {
        PortKind::Ib => {
            let route = [datagram::TCLASS, datagram::HOP_LIMIT, datagram::SGID_INDEX, datagram::FLOW_LABEL];
            let has_route = route.iter().any(|field| field.is_set(vector))
                || datagram::RGID.bytes(vector).iter().any(|byte| *byte != 0);
            if has_route && !datagram::GRH.is_set(vector) {
                return wrong("a global route without the GRH bit");
            }
            if mac(vector) != Mac::default() {
                return wrong("a MAC address on InfiniBand");
            }
            if datagram::MLID_PATH_BITS.is_set(vector) {
                // The program chooses these bits.
                return Err(Mistake::program(Status::LocalQpOperation));
            }
        }
        PortKind::Roce => {
            if datagram::MLID_PATH_BITS.is_set(vector) {
                return wrong("path bits on RoCE");
            }
            if datagram::SL.get(vector) & 1 != 0 {
                return wrong("the lowest bit of the service level on RoCE");
            }
            let source_port = datagram::RLID_UDP_SPORT.get(vector) as u16;
            let address = port.roce_address(datagram::SGID_INDEX.get32(vector) as usize);
            if address.is_some_and(|address| !address.may_send_from(source_port)) {
                return Err(Mistake::new(
                    Rule::WqeAddressVector,
                    format!("UDP source port {source_port:#x}"),
                ));
            }
        }
    }
    Ok(())
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
                datagram::RLID_UDP_SPORT.set(&mut vector, if index == 0 { 0u32 } else { 0xc000 });
                let path = destination(&port, &vector).unwrap().path;
                assert_eq!((path.network, path.sl), (Network::Udp, header), "address {index}");
            }
        }
        let mut vector = [0; SIZE];
        datagram::EXTENDED.set(&mut vector, 1u32);
        datagram::SGID_INDEX.set(&mut vector, 3u32);
        assert!(destination(&port, &vector).is_err(), "no such address");
    }

    /// Returns whether the vector breaks a rule after `change`. The original breaks none.
    fn broken(port: &Port, good: &[u8; SIZE], change: impl FnOnce(&mut [u8; SIZE])) -> bool {
        assert!(destination(port, good).is_ok());
        let mut vector = *good;
        change(&mut vector);
        let mistake = destination(port, &vector).unwrap_err();
        mistake.complaint.is_some_and(|(rule, _)| rule == Rule::WqeAddressVector)
    }

    #[test]
    fn a_vector_of_infiniband_has_no_mac_address_and_a_route_only_with_the_grh_bit() {
        let port = Port::new(PortKind::Ib, 0);
        let mut good = [0; SIZE];
        datagram::EXTENDED.set(&mut good, 1u32);
        datagram::RLID_UDP_SPORT.set(&mut good, 9u32);
        datagram::SL.set(&mut good, 15u32);
        let route = [datagram::TCLASS, datagram::HOP_LIMIT, datagram::SGID_INDEX, datagram::FLOW_LABEL];
        for field in route.into_iter().chain([datagram::FORCE_LOOPBACK]) {
            assert!(broken(&port, &good, |vector| field.set(vector, 1u32)), "{}", field.name);
        }
        for part in [datagram::RGID, datagram::RMAC] {
            assert!(broken(&port, &good, |vector| part.bytes_mut(vector)[5] = 1), "{}", part.name);
        }
        let path_bits = broken(&port, &good, |vector| datagram::MLID_PATH_BITS.set(vector, 1u32));
        assert!(!path_bits, "a program chooses them");
    }

    #[test]
    fn a_vector_of_roce_has_no_lid_and_the_source_port_of_its_version() {
        let mut port = Port::new(PortKind::Roce, 0);
        let mut entry = [1; roce_addr_layout::SIZE];
        for (index, version) in [(0, ROCE_V2), (1, 0)] {
            roce_addr_layout::ROCE_VERSION.set(&mut entry, version);
            port.set_roce_address(index, &entry);
        }
        let mut good = [0; SIZE];
        datagram::EXTENDED.set(&mut good, 1u32);
        datagram::SL.set(&mut good, 14u32);
        datagram::RLID_UDP_SPORT.set(&mut good, 0xc000u32);
        for (field, value) in [
            (datagram::FORCE_LOOPBACK, 1u32),
            (datagram::MLID_PATH_BITS, 1),
            (datagram::SL, 1),
            (datagram::RLID_UDP_SPORT, 0xbfff),
            (datagram::RLID_UDP_SPORT, 0),
            (datagram::SGID_INDEX, 1),
        ] {
            assert!(broken(&port, &good, |vector| field.set(vector, value)), "{} {value:#x}", field.name);
        }
        datagram::SGID_INDEX.set(&mut good, 1u32);
        datagram::RLID_UDP_SPORT.set(&mut good, 0u32);
        assert!(destination(&port, &good).is_ok());
    }
}
