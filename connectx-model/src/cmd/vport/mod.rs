//! The port: contexts, GIDs, partition keys, RoCE addresses, counters, MADs.
//!
//! Invariant: the only port is number 1, and the only virtual port is number 0, which belongs to
//! the function.

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::vport::*;
use crate::layout::{Field, put};
use crate::port::{IB_GIDS, PKEYS, PortKind, SM_LID};
use crate::refusal::{Refusal, Status};

/// Rejects other ports and virtual ports, because this function manages none. These fields have the
/// same offset in the inputs of all these commands.
fn own_port(input: &[u8]) -> Result<(), Refusal> {
    use query_hca_vport_context_in::{OTHER_VPORT, PORT_NUM, VPORT_NUMBER};
    own_vport(OTHER_VPORT.get(input), VPORT_NUMBER.get(input))?;
    match PORT_NUM.get(input) {
        0 | 1 => Ok(()),
        port => Err(Refusal::broken(Status::BadIndex, Rule::CommandParameter, format!("port {port}"))),
    }
}

fn own_vport(other: u64, number: u64) -> Result<(), Refusal> {
    if other == 0 && number == 0 {
        return Ok(());
    }
    Err(Refusal::broken(
        Status::BadParam,
        Rule::CommandParameter,
        format!("virtual port {number}, which does not exist"),
    ))
}

/// Rejects a command unless the port is of this kind.
fn wants<B: Bus>(function: &Function<B>, kind: PortKind) -> Result<(), Refusal> {
    if function.core.port.kind == kind {
        return Ok(());
    }
    Err(Refusal::broken(Status::BadOp, Rule::CommandOpcode, format!("the port is not {kind:?}")))
}

/// Logical and physical states of an InfiniBand port: down and active, polling and link up.
const IB_DOWN: u32 = 1;
const IB_ACTIVE: u32 = 4;
const IB_POLLING: u32 = 2;
const IB_LINK_UP: u32 = 5;

pub(super) fn query_hca_vport_context<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    wants(function, PortKind::Ib)?;
    own_port(input)?;
    let port = &function.core.port;
    let context = query_hca_vport_context_out::HCA_VPORT_CONTEXT.bytes_mut(output);
    let (logical, physical) = if port.up { (IB_ACTIVE, IB_LINK_UP) } else { (IB_DOWN, IB_POLLING) };
    hca_vport_context::PORT_STATE.set(context, logical);
    hca_vport_context::VPORT_STATE.set(context, logical);
    hca_vport_context::PORT_PHYSICAL_STATE.set(context, physical);
    hca_vport_context::SYSTEM_IMAGE_GUID.set(context, port.node_guid());
    hca_vport_context::NODE_GUID.set(context, port.node_guid());
    hca_vport_context::PORT_GUID.set(context, port.port_guid());
    hca_vport_context::CAP_MASK1.set(context, port.capabilities);
    // The driver may change every capability bit.
    hca_vport_context::CAP_MASK1_FIELD_SELECT.set(context, u32::MAX);
    hca_vport_context::LID.set(context, port.lid());
    hca_vport_context::SM_LID.set(context, SM_LID);
    hca_vport_context::SUBNET_TIMEOUT.set(context, 18u32);
    Ok(())
}

/// Field selection for the capabilities: no bit, because they have a separate selection mask.
const SELECT_CAPABILITIES: u32 = 0;

pub(super) fn modify_hca_vport_context<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    wants(function, PortKind::Ib)?;
    own_port(input)?;
    let context = modify_hca_vport_context_in::HCA_VPORT_CONTEXT.bytes(input);
    if let Some((offset, bits)) = hca_vport_context::TABLE.reserved(context) {
        let what = format!("bits {bits:#x} of dword {offset:#x} of the context");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandReserved, what));
    }
    // Only managers of virtual functions set GUIDs and the policy.
    let select = hca_vport_context::FIELD_SELECT.get32(context);
    if select != SELECT_CAPABILITIES {
        let what = format!("fields {select:#x}, which this function may not change");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandParameter, what));
    }
    let which = hca_vport_context::CAP_MASK1_FIELD_SELECT.get32(context);
    let wanted = hca_vport_context::CAP_MASK1.get32(context);
    let port = &mut function.core.port;
    port.capabilities = port.capabilities & !which | wanted & which;
    Ok(())
}

/// The table index that stands for the whole table.
const ALL: usize = 0xffff;

/// Returns the range of entries that an index selects in a table of `size` entries.
fn entries(index: usize, size: usize, what: &str) -> Result<std::ops::Range<usize>, Refusal> {
    match index {
        ALL => Ok(0..size),
        index if index < size => Ok(index..index + 1),
        index => {
            let what = format!("{what} {index} of {size}");
            Err(Refusal::broken(Status::BadIndex, Rule::CommandParameter, what))
        }
    }
}

/// Checks that the output has space for `needed` bytes.
fn room(output: &[u8], needed: usize) -> Result<(), Refusal> {
    if needed <= output.len() {
        return Ok(());
    }
    let what = format!("{} bytes of output, {needed} are needed", output.len());
    Err(Refusal::broken(Status::BadOutputLength, Rule::CommandLength, what))
}

pub(super) fn query_hca_vport_gid<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    wants(function, PortKind::Ib)?;
    own_port(input)?;
    let asked = entries(query_hca_vport_gid_in::GID_INDEX.get(input) as usize, IB_GIDS, "GID")?;
    room(output, query_hca_vport_gid_out::GID + asked.len() * 16)?;
    query_hca_vport_gid_out::GIDS_NUM.set(output, asked.len() as u32);
    for (place, index) in asked.enumerate() {
        let gid = function.core.port.gid(index).unwrap_or_default();
        put(output, query_hca_vport_gid_out::GID + place * 16, &gid);
    }
    Ok(())
}

pub(super) fn query_hca_vport_pkey<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    own_port(input)?;
    // A RoCE port has only the default partition key, but its driver also uses this command.
    let keys = if function.core.port.kind == PortKind::Ib { PKEYS } else { 1 };
    let asked = entries(query_hca_vport_pkey_in::PKEY_INDEX.get(input) as usize, keys, "partition key")?;
    room(output, query_hca_vport_pkey_out::PKEY + asked.len() * 4)?;
    for (place, index) in asked.enumerate() {
        let pkey = u32::from(function.core.port.pkey(index));
        put(output, query_hca_vport_pkey_out::PKEY + place * 4, &pkey.to_be_bytes());
    }
    Ok(())
}

/// Rejects commands on the state of a switch port, because the model has no switch.
fn state_of(modifier: u64) -> Result<(), Refusal> {
    if modifier != 1 {
        return Ok(());
    }
    Err(Refusal::broken(Status::BadParam, Rule::CommandModifier, "the function has no embedded switch"))
}

pub(super) fn query_vport_state<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    use query_vport_state_in::{OP_MOD, OTHER_VPORT, VPORT_NUMBER};
    own_vport(OTHER_VPORT.get(input), VPORT_NUMBER.get(input))?;
    state_of(OP_MOD.get(input))?;
    let port = &function.core.port;
    query_vport_state_out::ADMIN_STATE.set(output, port.enabled);
    query_vport_state_out::STATE.set(output, port.up);
    Ok(())
}

pub(super) fn modify_vport_state<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use modify_vport_state_in::{ADMIN_STATE, OP_MOD, OTHER_VPORT, VPORT_NUMBER};
    own_vport(OTHER_VPORT.get(input), VPORT_NUMBER.get(input))?;
    state_of(OP_MOD.get(input))?;
    match ADMIN_STATE.get(input) {
        0 => function.core.set_port_enabled(false),
        // The states "up" and "follow the physical port".
        1 | 2 => function.core.set_port_enabled(true),
        state => {
            let what = format!("state {state}");
            return Err(Refusal::broken(Status::BadParam, Rule::CommandParameter, what));
        }
    }
    Ok(())
}

pub(super) fn query_nic_vport_context<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    use query_nic_vport_context_in::{ALLOWED_LIST_TYPE, OTHER_VPORT, VPORT_NUMBER};
    wants(function, PortKind::Roce)?;
    own_vport(OTHER_VPORT.get(input), VPORT_NUMBER.get(input))?;
    let kind = ALLOWED_LIST_TYPE.get32(input);
    let port = &function.core.port;
    let list = list_of(&port.lists, kind)?;
    let whole = query_nic_vport_context_out::NIC_VPORT_CONTEXT;
    put(output, whole.offset, &port.nic);
    let context = whole.bytes_mut(output);
    nic_vport_context::ALLOWED_LIST_TYPE.set(context, kind);
    nic_vport_context::ALLOWED_LIST_SIZE.set(context, list.len() as u32 / 8);
    // A driver that does not need the list provides no space for it.
    let from = whole.offset + nic_vport_context::CURRENT_UC_MAC_ADDRESS;
    let fits = output.len().saturating_sub(from).min(list.len()) / 8 * 8;
    put(output, from, &list[..fits]);
    Ok(())
}

fn list_of(lists: &[Vec<u8>; 3], kind: u32) -> Result<&Vec<u8>, Refusal> {
    lists.get(kind as usize).ok_or_else(|| {
        Refusal::broken(Status::BadParam, Rule::CommandParameter, format!("list {kind} of addresses"))
    })
}

/// For each selection bit, the fields of the context that it selects.
const SELECTED: &[(Field, &[Field])] = {
    use modify_nic_vport_context_in as select;
    use nic_vport_context as context;
    &[
        (select::DISABLE_UC_LOCAL_LB, &[context::DISABLE_UC_LOCAL_LB]),
        (select::DISABLE_MC_LOCAL_LB, &[context::DISABLE_MC_LOCAL_LB]),
        (select::NODE_GUID, &[context::NODE_GUID]),
        (select::PORT_GUID, &[context::PORT_GUID]),
        (select::MIN_INLINE, &[context::MIN_WQE_INLINE_MODE]),
        (select::MTU, &[context::MTU]),
        (
            select::CHANGE_EVENT,
            &[
                context::ARM_CHANGE_EVENT,
                context::EVENT_ON_MTU,
                context::EVENT_ON_PROMISC_CHANGE,
                context::EVENT_ON_VLAN_CHANGE,
                context::EVENT_ON_MC_ADDRESS_CHANGE,
                context::EVENT_ON_UC_ADDRESS_CHANGE,
            ],
        ),
        (select::PROMISC, &[context::PROMISC_UC, context::PROMISC_MC, context::PROMISC_ALL]),
        (select::PERMANENT_ADDRESS, &[context::MAC_ADDR_47_32, context::MAC_ADDR_31_0]),
        (select::ROCE_EN, &[context::ROCE_EN]),
    ]
};

pub(super) fn modify_nic_vport_context<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use modify_nic_vport_context_in as select;
    wants(function, PortKind::Roce)?;
    own_vport(select::OTHER_VPORT.get(input), select::VPORT_NUMBER.get(input))?;
    if select::AFFILIATION.is_set(input) {
        return Err(Refusal::broken(Status::BadParam, Rule::CommandParameter, "an affiliation of ports"));
    }
    let context = select::NIC_VPORT_CONTEXT.bytes(input);
    if let Some((offset, bits)) = nic_vport_context::TABLE.reserved(context) {
        let what = format!("bits {bits:#x} of dword {offset:#x} of the context");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandReserved, what));
    }
    let from = select::NIC_VPORT_CONTEXT.offset + nic_vport_context::CURRENT_UC_MAC_ADDRESS;
    let given = input.get(from..).unwrap_or_default();
    let list = if select::ADDRESSES_LIST.is_set(input) {
        let kind = nic_vport_context::ALLOWED_LIST_TYPE.get32(context);
        list_of(&function.core.port.lists, kind)?;
        Some((kind as usize, given))
    } else {
        None
    };
    let count = if list.is_some() { nic_vport_context::ALLOWED_LIST_SIZE.get(context) as usize } else { 0 };
    if given.len() != count * 8 {
        let what = format!("{} bytes of list for {count} addresses", given.len());
        return Err(Refusal::broken(Status::BadInputLength, Rule::CommandLength, what));
    }
    let port = &mut function.core.port;
    for (_, fields) in SELECTED.iter().filter(|(bit, _)| bit.is_set(input)) {
        for field in *fields {
            field.set(&mut port.nic, field.get(context));
        }
    }
    if let Some((place, list)) = list.and_then(|(kind, list)| Some((port.lists.get_mut(kind)?, list))) {
        *place = list.to_vec();
    }
    Ok(())
}

fn no_such_address(index: u32) -> Refusal {
    Refusal::broken(Status::BadIndex, Rule::CommandParameter, format!("RoCE address {index}"))
}

pub(super) fn set_roce_address<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    wants(function, PortKind::Roce)?;
    let layout = set_roce_address_in::ROCE_ADDRESS.bytes(input);
    if let Some((offset, bits)) = roce_addr_layout::TABLE.reserved(layout) {
        let what = format!("bits {bits:#x} of dword {offset:#x} of the address");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandReserved, what));
    }
    let index = set_roce_address_in::ROCE_ADDRESS_INDEX.get32(input);
    if function.core.port.set_roce_address(index as usize, layout) {
        Ok(())
    } else {
        Err(no_such_address(index))
    }
}

pub(super) fn query_roce_address<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    wants(function, PortKind::Roce)?;
    let index = query_roce_address_in::ROCE_ADDRESS_INDEX.get32(input);
    if index as usize >= crate::port::ROCE_ADDRESSES {
        return Err(no_such_address(index));
    }
    if let Some(address) = function.core.port.roce_address(index as usize) {
        put(output, query_roce_address_out::ROCE_ADDRESS.offset, &address.layout);
    }
    Ok(())
}

pub(super) fn query_vport_counter<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    use query_vport_counter_out as out;
    own_port(input)?;
    let port = &mut function.core.port;
    let counters = port.counters;
    let fields = match port.kind {
        PortKind::Ib => [
            out::TRANSMITTED_IB_UNICAST_PACKETS,
            out::TRANSMITTED_IB_UNICAST_OCTETS,
            out::RECEIVED_IB_UNICAST_PACKETS,
            out::RECEIVED_IB_UNICAST_OCTETS,
            out::TRANSMITTED_IB_MULTICAST_PACKETS,
            out::RECEIVED_IB_MULTICAST_PACKETS,
        ],
        PortKind::Roce => [
            out::TRANSMITTED_ETH_UNICAST_PACKETS,
            out::TRANSMITTED_ETH_UNICAST_OCTETS,
            out::RECEIVED_ETH_UNICAST_PACKETS,
            out::RECEIVED_ETH_UNICAST_OCTETS,
            out::TRANSMITTED_ETH_MULTICAST_PACKETS,
            out::RECEIVED_ETH_MULTICAST_PACKETS,
        ],
    };
    let values = [
        counters.sent_packets.saturating_sub(counters.sent_multicast),
        counters.sent_bytes,
        counters.received_packets.saturating_sub(counters.received_multicast),
        counters.received_bytes,
        counters.sent_multicast,
        counters.received_multicast,
    ];
    for (field, value) in fields.iter().zip(values) {
        field.set(output, value);
    }
    if query_vport_counter_in::CLEAR.is_set(input) {
        port.counters = crate::port::Counters::default();
    }
    Ok(())
}

/// Replies to a MAD like an agent that supports no attributes, because drivers get all port data
/// through commands.
pub(super) fn mad_ifc<B: Bus>(
    _function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let port = mad_ifc_in::PORT.get(input);
    if port > 1 {
        return Err(Refusal::broken(Status::BadIndex, Rule::CommandParameter, format!("port {port}")));
    }
    let response = mad_ifc_out::RESPONSE_MAD_PACKET.bytes_mut(output);
    put(response, 0, mad_ifc_in::MAD.bytes(input));
    set_unsupported(response);
    Ok(())
}

/// Offsets of the method and status in a MAD, and their values in the reply.
const MAD_METHOD: usize = 3;
const MAD_STATUS: usize = 4;
const MAD_REPLY: u8 = 0x81;
const MAD_UNSUPPORTED: u16 = 0x000c;

/// Turns a MAD into a reply with the status "method or attribute not supported".
fn set_unsupported(mad: &mut [u8]) {
    put(mad, MAD_METHOD, &[MAD_REPLY]);
    put(mad, MAD_STATUS, &MAD_UNSUPPORTED.to_be_bytes());
}

#[cfg(test)]
mod tests;
