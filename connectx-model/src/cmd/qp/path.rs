//! Converts the address path in a queue pair context to the transport engine's format.

use roce::engine::{Gid, Network, Path};

use crate::complaint::Rule;
use crate::destination::Mac;
use crate::layout::Field;
use crate::layout::qp::ads;
use crate::port::{IB_GIDS, PKEYS, Port, PortKind, ROCE_ADDRESSES};
use crate::refusal::{Refusal, Status};

/// Checks and converts a path.
///
/// # Errors
/// A [`Refusal`] if the path names a missing port or source address, or sets a field that this kind
/// of port does not use.
pub(super) fn read(port: &Port, context: &[u8]) -> Result<Path, Refusal> {
    check_port(context)?;
    let mut remote: Gid = [0; 16];
    remote.copy_from_slice(ads::RGID_RIP.bytes(context));
    let global = port.kind == PortKind::Roce || ads::GRH.is_set(context);
    let local = if global { local(port, ads::SRC_ADDR_INDEX.get32(context))? } else { Gid::default() };
    check_fields(port, context)?;
    Ok(Path {
        network: match (port.kind, global) {
            (PortKind::Roce, _) => Network::Udp,
            (PortKind::Ib, true) => Network::Grh,
            (PortKind::Ib, false) => Network::Local,
        },
        local,
        remote: if global { remote } else { Gid::default() },
        traffic_class: ads::TCLASS.get(context) as u8,
        hop_limit: ads::HOP_LIMIT.get(context) as u8,
        sl: match port.kind {
            PortKind::Ib => ads::SL.get(context) as u8,
            PortKind::Roce => ads::ETH_PRIO.get(context) as u8,
        },
        flow_label: ads::FLOW_LABEL.get32(context),
        dlid: ads::RLID.get(context) as u16,
        // The field holds the path bits, which select one of the port's LIDs.
        slid: port.lid() | ads::MLID.get(context) as u16,
        on_link: false,
    })
}

/// Rejects a path if it sets fields that drivers leave 0 on this kind of port.
///
/// # References
/// Linux `mlx5_set_path` in `drivers/infiniband/hw/mlx5/qp.c`
pub(super) fn check_fields(port: &Port, context: &[u8]) -> Result<(), Refusal> {
    let set = |fields: &[Field]| fields.iter().find(|field| field.is_set(context)).map(|field| field.name);
    if ads::FL.is_set(context) {
        return Err(attribute("force loopback"));
    }
    match port.kind {
        PortKind::Ib => {
            let route = [ads::SRC_ADDR_INDEX, ads::HOP_LIMIT, ads::TCLASS, ads::FLOW_LABEL];
            let has_route =
                set(&route).is_some() || ads::RGID_RIP.bytes(context).iter().any(|byte| *byte != 0);
            if has_route && !ads::GRH.is_set(context) {
                return Err(attribute("a global route without the GRH bit"));
            }
            let roce = [ads::RMAC_47_32, ads::RMAC_31_0, ads::UDP_SPORT, ads::ETH_PRIO, ads::DSCP];
            if let Some(name) = set(&roce) {
                return Err(attribute(format!("{name} on InfiniBand")));
            }
            // A program may choose any path bits, but the port has only one LID.
            if ads::MLID.is_set(context) {
                return Err(Refusal::fair(Status::BadParam));
            }
        }
        PortKind::Roce => {
            if let Some(name) = set(&[ads::GRH, ads::MLID, ads::RLID, ads::SL]) {
                return Err(attribute(format!("{name} on RoCE")));
            }
            let source_port = ads::UDP_SPORT.get(context) as u16;
            let address = port.roce_address(ads::SRC_ADDR_INDEX.get32(context) as usize);
            if address.is_some_and(|address| !address.may_send_from(source_port)) {
                return Err(attribute(format!("UDP source port {source_port:#x}")));
            }
        }
    }
    Ok(())
}

/// Returns the destination MAC address of a path.
pub(super) fn mac(context: &[u8]) -> Mac {
    let [_, _, a, b] = ads::RMAC_47_32.get32(context).to_be_bytes();
    let [c, d, e, f] = ads::RMAC_31_0.get32(context).to_be_bytes();
    [a, b, c, d, e, f]
}

/// Returns the source address at an index of the port's table. An empty entry breaks no rule,
/// because the address may have been removed while a user was setting up the path.
fn local(port: &Port, index: u32) -> Result<Gid, Refusal> {
    let (index, size) = (index as usize, if port.kind == PortKind::Ib { IB_GIDS } else { ROCE_ADDRESSES });
    if index >= size {
        return Err(attribute(format!("source address {index}, which the port does not have")));
    }
    port.gid(index).filter(|gid| *gid != Gid::default()).ok_or(Refusal::fair(Status::BadParam))
}

/// Rejects a path whose port number is neither 1 nor 0. The number 0 stands for port 1.
pub(super) fn check_port(context: &[u8]) -> Result<(), Refusal> {
    match ads::VHCA_PORT_NUM.get(context) {
        0 | 1 => Ok(()),
        other => Err(attribute(format!("port {other}"))),
    }
}

/// Returns the partition key that the path selects by its index in the port's table.
pub(super) fn pkey(port: &Port, context: &[u8]) -> Result<u16, Refusal> {
    let index = ads::PKEY_INDEX.get(context) as usize;
    let keys = if port.kind == PortKind::Ib { PKEYS } else { 1 };
    if index >= keys {
        return Err(attribute(format!("partition key {index}, which the port does not have")));
    }
    Ok(port.pkey(index))
}

/// Returns the [`Refusal`] for an attribute that a transition does not accept.
pub(super) fn attribute(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::BadParam, Rule::QpAttribute, what)
}
