use super::*;
use crate::layout::qword;
use crate::port::ROCE_ADDRESSES;
use crate::testing::{Driver, input, set};

const QUERY_CONTEXT: u16 = 0x762;
const MODIFY_CONTEXT: u16 = 0x763;
const QUERY_GID: u16 = 0x764;
const QUERY_PKEY: u16 = 0x765;
const QUERY_STATE: u16 = 0x750;
const MODIFY_STATE: u16 = 0x751;
const QUERY_NIC: u16 = 0x754;
const MODIFY_NIC: u16 = 0x755;
const QUERY_ROCE: u16 = 0x760;
const SET_ROCE: u16 = 0x761;
const QUERY_COUNTER: u16 = 0x770;
const MAD_IFC: u16 = 0x50d;

fn ib() -> Driver {
    Driver::booted(PortKind::Ib)
}

fn roce() -> Driver {
    Driver::booted(PortKind::Roce)
}

fn ib_context(driver: &mut Driver) -> Vec<u8> {
    let output = driver.ok(&input(QUERY_CONTEXT, 0x10), 0x210);
    query_hca_vport_context_out::HCA_VPORT_CONTEXT.bytes(&output).to_vec()
}

#[test]
fn an_ib_port_is_active_by_itself() {
    let context = ib_context(&mut ib());
    assert_eq!(hca_vport_context::VPORT_STATE.get(&context), 4);
    assert_eq!(hca_vport_context::PORT_PHYSICAL_STATE.get(&context), 5);
    assert_eq!((hca_vport_context::LID.get(&context), hca_vport_context::SM_LID.get(&context)), (1, 1));
    assert_eq!(hca_vport_context::PORT_GUID.get(&context), hca_vport_context::NODE_GUID.get(&context) + 1);
}

#[test]
fn a_pulled_cable_is_an_event_and_a_port_that_is_down() {
    let mut driver = ib();
    driver.function.core.set_link(false);
    assert_eq!(driver.event().map(|event| (event[1], event[3], event[40] >> 4)), Some((9, 1, 1)));
    assert_eq!(hca_vport_context::VPORT_STATE.get(&ib_context(&mut driver)), 1);
    driver.function.core.set_link(false);
    assert_eq!(driver.event(), None);
    driver.function.core.set_link(true);
    assert_eq!(driver.event().map(|event| event[3]), Some(4));
}

#[test]
fn capabilities_of_a_port_are_changed_where_they_are_selected() {
    let mut driver = ib();
    let before = hca_vport_context::CAP_MASK1.get32(&ib_context(&mut driver));
    let mut request = input(MODIFY_CONTEXT, 0x210);
    let context = modify_hca_vport_context_in::HCA_VPORT_CONTEXT.bytes_mut(&mut request);
    hca_vport_context::CAP_MASK1_FIELD_SELECT.set(context, 2u32);
    hca_vport_context::CAP_MASK1.set(context, 6u32);
    driver.ok(&request, 8);
    assert_eq!(hca_vport_context::CAP_MASK1.get32(&ib_context(&mut driver)), before | 2);
    // The driver of this function may not change GUIDs.
    driver.refused(&set(request.clone(), 0x10, 1), 8, Rule::CommandParameter);
    driver.refused(&set(request, 0x10 + 0x04, 1), 8, Rule::CommandReserved);
}

#[test]
fn gids_and_partition_keys_come_one_or_all() {
    let mut driver = ib();
    let one = driver.ok(&input(QUERY_GID, 0x10), 0x20);
    assert_eq!(qword(&one, 0x10), 0xfe80_0000_0000_0000);
    let all = driver.ok(&set(input(QUERY_GID, 0x10), 0x0c, 0xffff), 0x10 + IB_GIDS * 16);
    assert_eq!(query_hca_vport_gid_out::GIDS_NUM.get(&all), IB_GIDS as u64);
    assert_eq!(all[0x10..0x20], one[0x10..]);
    driver.refused(&set(input(QUERY_GID, 0x10), 0x0c, IB_GIDS as u32), 0x20, Rule::CommandParameter);
    driver.refused(&set(input(QUERY_GID, 0x10), 0x0c, 0xffff), 0x20, Rule::CommandLength);
    let all = driver.ok(&set(input(QUERY_PKEY, 0x10), 0x0c, 0xffff), 0x10 + PKEYS * 4);
    assert_eq!(all[0x10..0x18], [0, 0, 0xff, 0xff, 0, 0, 0, 0]);
    driver.refused(&set(input(QUERY_PKEY, 0x10), 0x0c, PKEYS as u32), 0x14, Rule::CommandParameter);
}

#[test]
fn commands_of_the_other_kind_of_port_are_refused() {
    let mut driver = roce();
    driver.refused(&input(QUERY_CONTEXT, 0x10), 0x210, Rule::CommandOpcode);
    driver.refused(&input(QUERY_GID, 0x10), 0x20, Rule::CommandOpcode);
    let mut driver = ib();
    driver.refused(&input(QUERY_NIC, 0x10), 0x110, Rule::CommandOpcode);
    driver.refused(&input(MODIFY_NIC, 0x200), 8, Rule::CommandOpcode);
    driver.refused(&input(SET_ROCE, 0x30), 8, Rule::CommandOpcode);
    driver.refused(&input(QUERY_ROCE, 0x10), 0x30, Rule::CommandOpcode);
}

#[test]
fn other_ports_and_virtual_ports_are_not_there() {
    let mut driver = ib();
    driver.refused(&set(input(QUERY_CONTEXT, 0x10), 0x08, 1 << 31), 0x210, Rule::CommandParameter);
    driver.refused(&set(input(QUERY_CONTEXT, 0x10), 0x08, 2 << 16), 0x210, Rule::CommandParameter);
    driver.ok(&set(input(QUERY_CONTEXT, 0x10), 0x08, 1 << 16), 0x210);
    driver.refused(&set(input(QUERY_COUNTER, 0x20), 0x08, 3), 0x210, Rule::CommandParameter);
    driver.refused(&set(input(MAD_IFC, 0x110), 0x08, 2), 0x110, Rule::CommandParameter);
}

#[test]
fn the_driver_turns_the_port_off_and_on() {
    let mut driver = roce();
    driver.ok(&input(MODIFY_STATE, 0x10), 8);
    assert_eq!(driver.event().map(|event| event[3]), Some(1));
    let output = driver.ok(&input(QUERY_STATE, 0x10), 0x10);
    assert_eq!(query_vport_state_out::STATE.get(&output), 0);
    driver.ok(&set(input(MODIFY_STATE, 0x10), 0x0c, 1 << 4), 8);
    let output = driver.ok(&set(input(QUERY_STATE, 0x10), 0x04, 2), 0x10);
    assert_eq!(
        (query_vport_state_out::STATE.get(&output), query_vport_state_out::ADMIN_STATE.get(&output)),
        (1, 1)
    );
    driver.refused(&set(input(MODIFY_STATE, 0x10), 0x0c, 3 << 4), 8, Rule::CommandParameter);
    driver.refused(&set(input(QUERY_STATE, 0x10), 0x04, 1), 0x10, Rule::CommandModifier);
    driver.refused(&set(input(MODIFY_STATE, 0x10), 0x04, 1), 8, Rule::CommandModifier);
}

#[test]
fn the_context_of_an_ethernet_port_changes_where_it_is_selected() {
    use modify_nic_vport_context_in as select;
    let mut driver = roce();
    let mut request = input(MODIFY_NIC, 0x200);
    select::ROCE_EN.set(&mut request, 1u32);
    let context = select::NIC_VPORT_CONTEXT.bytes_mut(&mut request);
    nic_vport_context::ROCE_EN.set(context, 1u32);
    nic_vport_context::MTU.set(context, 9000u32);
    driver.ok(&request, 8);
    let output = driver.ok(&input(QUERY_NIC, 0x10), 0x110);
    let now = query_nic_vport_context_out::NIC_VPORT_CONTEXT.bytes(&output);
    assert_eq!((nic_vport_context::ROCE_EN.get(now), nic_vport_context::MTU.get(now)), (1, 1522));
    assert_eq!(nic_vport_context::MAC_ADDR_47_32.get(now), 0x02c9);
    select::MTU.set(&mut request, 1u32);
    driver.ok(&request, 8);
    let output = driver.ok(&input(QUERY_NIC, 0x10), 0x110);
    assert_eq!(
        nic_vport_context::MTU.get(query_nic_vport_context_out::NIC_VPORT_CONTEXT.bytes(&output)),
        9000
    );
    select::AFFILIATION.set(&mut request, 1u32);
    driver.refused(&request, 8, Rule::CommandParameter);
    driver.refused(&set(input(MODIFY_NIC, 0x200), 0x100 + 0x0c, 1), 8, Rule::CommandReserved);
}

#[test]
fn lists_of_addresses_are_kept_by_kind() {
    use modify_nic_vport_context_in as select;
    let mut driver = roce();
    let mut request = input(MODIFY_NIC, 0x200);
    select::ADDRESSES_LIST.set(&mut request, 1u32);
    let context = select::NIC_VPORT_CONTEXT.bytes_mut(&mut request);
    nic_vport_context::ALLOWED_LIST_TYPE.set(context, 1u32);
    nic_vport_context::ALLOWED_LIST_SIZE.set(context, 2u32);
    driver.refused(&request, 8, Rule::CommandLength);
    request.extend([0, 0, 1, 0, 0x5e, 0, 0, 1, 0, 0, 1, 0, 0x5e, 0, 0, 2]);
    driver.refused(&[&request[..], &[0; 8]].concat(), 8, Rule::CommandLength);
    let mut unnamed = request.clone();
    select::ADDRESSES_LIST.set(&mut unnamed, 0u32);
    driver.refused(&unnamed, 8, Rule::CommandLength);
    driver.ok(&request, 8);
    let size = |output: &[u8]| {
        nic_vport_context::ALLOWED_LIST_SIZE.get(query_nic_vport_context_out::NIC_VPORT_CONTEXT.bytes(output))
    };
    let multicast = driver.ok(&set(input(QUERY_NIC, 0x10), 0x0c, 1 << 24), 0x110 + 16);
    assert_eq!((size(&multicast), &multicast[0x110..]), (2, &request[0x200..]));
    // If the output lacks space for the list, only the list's length is reported.
    assert_eq!(size(&driver.ok(&set(input(QUERY_NIC, 0x10), 0x0c, 1 << 24), 0x110)), 2);
    assert_eq!(size(&driver.ok(&input(QUERY_NIC, 0x10), 0x110)), 0);
    driver.refused(&set(input(QUERY_NIC, 0x10), 0x0c, 3 << 24), 0x110, Rule::CommandParameter);
}

#[test]
fn a_roce_address_is_set_asked_for_and_taken_away() {
    let mut driver = roce();
    let mut request = set(input(SET_ROCE, 0x30), 0x08, 2 << 16);
    request[0x10 + 15] = 9;
    driver.ok(&request, 8);
    assert_eq!(driver.function.core.port.gid(2).map(|gid| gid[15]), Some(9));
    let output = driver.ok(&set(input(QUERY_ROCE, 0x10), 0x08, 2 << 16), 0x30);
    assert_eq!(output[0x10..], request[0x10..]);
    driver.ok(&set(input(SET_ROCE, 0x30), 0x08, 2 << 16), 8);
    assert_eq!(driver.function.core.port.gid(2), None);
    let beyond = (ROCE_ADDRESSES as u32) << 16;
    driver.refused(&set(input(SET_ROCE, 0x30), 0x08, beyond), 8, Rule::CommandParameter);
    driver.refused(&set(input(QUERY_ROCE, 0x10), 0x08, beyond), 0x30, Rule::CommandParameter);
    driver.refused(&set(input(SET_ROCE, 0x30), 0x10 + 0x1c, 1), 8, Rule::CommandReserved);
}

#[test]
fn traffic_is_counted_until_the_counters_are_cleared() {
    use query_vport_counter_out as out;
    let mut driver = ib();
    driver.function.core.port.counters.sent(100, false);
    driver.function.core.port.counters.sent(50, true);
    driver.function.core.port.counters.received(30, false);
    let output = driver.ok(&set(input(QUERY_COUNTER, 0x20), 0x18, 1 << 31), 0x210);
    assert_eq!(out::TRANSMITTED_IB_UNICAST_PACKETS.get(&output), 1);
    assert_eq!(out::TRANSMITTED_IB_MULTICAST_PACKETS.get(&output), 1);
    assert_eq!(out::RECEIVED_IB_UNICAST_OCTETS.get(&output), 30);
    let output = driver.ok(&input(QUERY_COUNTER, 0x20), 0x210);
    assert_eq!(output[8..], [0; 0x208]);
}

#[test]
fn a_mad_is_answered_as_unsupported() {
    let mut driver = ib();
    let mut request = set(input(MAD_IFC, 0x110), 0x08, 1);
    request[0x10..0x14].copy_from_slice(&[1, 1, 1, 1]);
    let output = driver.ok(&request, 0x110);
    assert_eq!(output[0x10..0x16], [1, 1, 1, 0x81, 0, 0x0c]);
}
