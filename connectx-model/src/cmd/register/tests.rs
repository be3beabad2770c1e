use super::*;
use crate::testing::{Driver, input, set};

/// Reads a register of `len` bytes with ACCESS_REG.
fn read(driver: &mut Driver, number: u32, len: usize) -> Vec<u8> {
    let request = request(number, len);
    driver.ok(&set(request, 0x04, 1), 0x10 + len)[0x10..].to_vec()
}

/// Returns an ACCESS_REG input that writes zeros to a register.
fn request(number: u32, len: usize) -> Vec<u8> {
    set(input(0x805, 0x10 + len), 0x08, number)
}

#[test]
fn the_speed_is_that_of_the_kind_of_port() {
    let mut driver = Driver::booted(PortKind::Ib);
    let ib = read(&mut driver, PTYS, 0x40);
    assert_eq!((ptys_reg::IB_LINK_WIDTH_OPER.get(&ib), ptys_reg::IB_PROTO_OPER.get(&ib)), (4, 0x20));
    assert_eq!(ptys_reg::ETH_PROTO_CAPABILITY.get(&ib), 0);
    let mut driver = Driver::booted(PortKind::Roce);
    let ethernet = read(&mut driver, PTYS, 0x40);
    let (can, does) =
        (ptys_reg::ETH_PROTO_CAPABILITY.get(&ethernet), ptys_reg::ETH_PROTO_OPER.get(&ethernet));
    assert!(does != 0 && can & does == does);
}

#[test]
fn nothing_follows_a_register() {
    let mut driver = Driver::booted(PortKind::Ib);
    let longer = request(PTYS, 0x48);
    driver.ok(&set(longer.clone(), 0x04, 1), 0x58);
    driver.refused(&set(set(longer, 0x04, 1), 0x54, 1), 0x58, Rule::CommandLength);
}

#[test]
fn the_longest_frame_is_chosen_and_bounded() {
    let mut driver = Driver::booted(PortKind::Roce);
    let mut write = request(PMTU, 0x10);
    pmtu_reg::ADMIN_MTU.set(&mut write[0x10..], 9022u32);
    driver.ok(&write, 0x20);
    assert_eq!(pmtu_reg::OPER_MTU.get(&read(&mut driver, PMTU, 0x10)), 9022);
    pmtu_reg::ADMIN_MTU.set(&mut write[0x10..], 0xffffu32);
    driver.ok(&write, 0x20);
    let now = read(&mut driver, PMTU, 0x10);
    assert_eq!(pmtu_reg::OPER_MTU.get(&now), pmtu_reg::MAX_MTU.get(&now));
    let mut driver = Driver::booted(PortKind::Ib);
    assert_eq!(pmtu_reg::OPER_MTU.get(&read(&mut driver, PMTU, 0x10)), 4096);
}

#[test]
fn a_port_is_turned_off_by_its_register() {
    let mut driver = Driver::booted(PortKind::Roce);
    let mut write = request(PAOS, 0x10);
    paos_reg::ADMIN_STATUS.set(&mut write[0x10..], PORT_DOWN);
    driver.ok(&write, 0x20);
    assert_eq!(driver.event().map(|event| (event[1], event[3])), Some((9, 1)));
    let now = read(&mut driver, PAOS, 0x10);
    assert_eq!((paos_reg::ADMIN_STATUS.get(&now), paos_reg::OPER_STATUS.get(&now)), (PORT_DOWN, PORT_DOWN));
    paos_reg::ADMIN_STATUS.set(&mut write[0x10..], PORT_UP);
    driver.ok(&write, 0x20);
    assert_eq!(driver.event().map(|event| event[3]), Some(4));
}

#[test]
fn a_name_is_kept() {
    let mut driver = Driver::booted(PortKind::Ib);
    assert!(read(&mut driver, NODE_DESCRIPTION, 64).starts_with(b"ConnectX model"));
    let mut write = request(NODE_DESCRIPTION, 64);
    write[0x10..0x14].copy_from_slice(b"here");
    driver.ok(&write, 0x50);
    assert!(read(&mut driver, NODE_DESCRIPTION, 64).starts_with(b"here\0"));
}

#[test]
fn counters_of_each_group_and_their_clearing() {
    let mut driver = Driver::booted(PortKind::Ib);
    driver.function.core.port.counters.sent(400, false);
    let mut ask = set(request(PPCNT, 0x100), 0x04, 1);
    ppcnt_reg::GRP.set(&mut ask[0x10..], GROUP_IB_EXTENDED);
    ppcnt_reg::CLR.set(&mut ask[0x10..], 1u32);
    let output = driver.ok(&ask, 0x110);
    assert_eq!(ppcnt_reg::PORT_XMIT_DATA_LOW.get(&output[0x10..]), 100);
    assert_eq!(ppcnt_reg::PORT_XMIT_PKTS_LOW.get(&output[0x10..]), 1);
    let output = driver.ok(&ask, 0x110);
    assert_eq!(ppcnt_reg::PORT_XMIT_PKTS_LOW.get(&output[0x10..]), 0);
}

#[test]
fn the_hosts_byte_order_is_set_before_the_function_is_initialised() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.host.set_queue(&mut driver.function);
    driver.ok(&input(0x104, 0x10), 8);
    let mut write = request(HOST_ENDIANNESS, 16);
    write[0x10] = 0x80;
    driver.ok(&write, 0x20);
    assert_eq!(read(&mut driver, HOST_ENDIANNESS, 16)[0], 0x80);
}

#[test]
fn an_unknown_register_is_rejected_without_a_complaint() {
    let mut driver = Driver::booted(PortKind::Ib);
    let output = driver.command(&set(request(0x9020, 0x10), 0x04, 1), 0x20);
    assert_eq!(output[0], Status::BadParam as u8);
}

#[test]
fn a_register_is_whole_and_of_the_port_that_is_there() {
    let mut driver = Driver::booted(PortKind::Ib);
    driver.refused(&request(PTYS, 0x3c), 0x50, Rule::CommandLength);
    driver.refused(&request(PTYS, 0x40), 0x4c, Rule::CommandLength);
    driver.refused(&set(request(PTYS, 0x40), 0x10, 2 << 16), 0x50, Rule::CommandParameter);
    driver.refused(&set(request(PTYS, 0x40), 0x4c, 1), 0x50, Rule::CommandReserved);
}
