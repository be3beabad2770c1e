use super::*;
use crate::bus::Bus;
use crate::layout::iseg::{command_out, mailbox};
use crate::port::PortKind;
use crate::testing::{Driver, input};

const ENABLE: u16 = 0x104;
const NOP: u16 = 0x80d;

fn delivery(driver: &mut Driver, entry: &[u8; command_entry::SIZE]) -> u32 {
    let done = driver.host.submit(&mut driver.function, 0, entry);
    assert!(!command_entry::OWNER.is_set(&done));
    command_entry::STATUS.get32(&done)
}

/// Returns a driver that has set the address of its command queue and done nothing else.
fn fresh() -> Driver {
    let mut driver = Driver::new(PortKind::Ib);
    driver.host.set_queue(&mut driver.function);
    driver
}

#[test]
fn a_command_is_answered_and_its_entry_given_back() {
    let mut driver = fresh();
    let output = driver.ok(&input(ENABLE, 0x10), 8);
    assert_eq!(output, [0; 8]);
}

#[test]
fn a_doorbell_without_a_queue_is_complained_of() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.store(0x18, &1u32.to_be_bytes());
    assert_eq!(driver.rules(), [Rule::CommandEntry]);
}

#[test]
fn an_entry_that_the_driver_still_owns_is_left_alone() {
    let mut driver = fresh();
    let mut entry = driver.host.entry(&input(ENABLE, 0x10), 8);
    command_entry::OWNER.set(&mut entry, 0u32);
    let done = driver.host.submit(&mut driver.function, 3, &entry);
    assert_eq!(done, entry);
    assert_eq!(driver.rules(), [Rule::CommandEntry]);
}

#[test]
fn entries_of_another_type_or_with_reserved_bits_are_not_carried_out() {
    let mut driver = fresh();
    let mut entry = driver.host.entry(&input(ENABLE, 0x10), 8);
    command_entry::TYPE.set(&mut entry, 6u32);
    assert_eq!(delivery(&mut driver, &entry), Delivery::Descriptor as u32);
    assert_eq!(driver.rules(), [Rule::CommandEntry]);
    let mut entry = driver.host.entry(&input(ENABLE, 0x10), 8);
    entry[2] = 1;
    assert_eq!(delivery(&mut driver, &entry), Delivery::Reserved as u32);
    assert_eq!(driver.rules(), [Rule::CommandReserved]);
    // The function was not enabled by the rejected entry, so this command succeeds.
    driver.ok(&input(ENABLE, 0x10), 8);
}

#[test]
fn lengths_have_bounds() {
    for (field, delivered) in [
        (command_entry::INPUT_LENGTH, Delivery::InputLength),
        (command_entry::OUTPUT_LENGTH, Delivery::OutputLength),
    ] {
        for len in [0u32, 7, u32::MAX] {
            let mut driver = fresh();
            let mut entry = driver.host.entry(&input(ENABLE, 0x10), 8);
            field.set(&mut entry, len);
            assert_eq!(delivery(&mut driver, &entry), delivered as u32);
            assert_eq!(driver.rules(), [Rule::CommandEntry]);
        }
    }
}

#[test]
fn mailboxes_are_there_as_long_as_the_command() {
    let mut driver = fresh();
    let mut entry = driver.host.entry(&input(ENABLE, 0x10), 8);
    command_entry::INPUT_LENGTH.set(&mut entry, 17u32);
    assert_eq!(delivery(&mut driver, &entry), Delivery::InputPointer as u32);
    assert_eq!(driver.rules(), [Rule::CommandEntry]);
    let mut entry = driver.host.entry(&input(ENABLE, 0x10), 8);
    command_entry::OUTPUT_LENGTH.set(&mut entry, 17u32);
    command_entry::OUTPUT_MAILBOX.set(&mut entry, u64::MAX - 0x1ff);
    assert_eq!(delivery(&mut driver, &entry), Delivery::OutputPointer as u32);
    assert_eq!(driver.rules(), [Rule::DmaFault]);
}

#[test]
fn a_mailbox_carries_its_commands_token_and_its_own_place() {
    for (break_it, delivered) in
        [(mailbox::TOKEN, Delivery::Token), (mailbox::BLOCK_NUMBER, Delivery::BlockNumber)]
    {
        let mut driver = fresh();
        let entry = driver.host.entry(&input(ENABLE, 16 + 2 * 512), 8);
        let first = command_entry::INPUT_MAILBOX.get(&entry);
        let mut bytes = [0; mailbox::SIZE];
        driver.host.bus.read(first, &mut bytes).unwrap();
        let second = mailbox::NEXT.get(&bytes);
        driver.host.bus.read(second, &mut bytes).unwrap();
        break_it.set(&mut bytes, 77u32);
        driver.host.bus.write(second, &bytes).unwrap();
        assert_eq!(delivery(&mut driver, &entry), delivered as u32);
        assert_eq!(driver.rules(), [Rule::CommandToken]);
    }
}

#[test]
fn a_chain_that_bites_its_tail_ends() {
    let mut driver = fresh();
    let mut entry = driver.host.entry(&input(ENABLE, 16 + 512), 8);
    let first = command_entry::INPUT_MAILBOX.get(&entry);
    let mut bytes = [0; mailbox::SIZE];
    driver.host.bus.read(first, &mut bytes).unwrap();
    mailbox::NEXT.set(&mut bytes, first);
    driver.host.bus.write(first, &bytes).unwrap();
    command_entry::INPUT_LENGTH.set(&mut entry, MAX_INPUT as u32);
    assert_eq!(delivery(&mut driver, &entry), Delivery::BlockNumber as u32);
    assert_eq!(driver.rules(), [Rule::CommandToken]);
}

#[test]
fn outputs_of_every_length_come_back_whole() {
    let mut driver = Driver::booted(PortKind::Ib);
    for len in [8, 16, 17, 16 + 512, 16 + 513] {
        assert_eq!(driver.ok(&input(NOP, 0x10), len), vec![0; len]);
    }
    // QUERY_HCA_CAP has an output of more than 16 bytes with nonzero contents.
    let caps = driver.ok(&input(0x100, 0x10), 0x1010);
    assert!(caps[0x10 + 0x100..].iter().all(|byte| *byte == 0));
    assert_ne!(caps[0x10..0x110], [0; 0x100]);
}

#[test]
fn several_bits_of_the_doorbell_are_several_commands() {
    let mut driver = Driver::booted(PortKind::Ib);
    let entry = driver.host.entry(&input(NOP, 0x10), 8);
    // The other slot contains a command, but its doorbell bit is not set.
    let nop = driver.host.submit(&mut driver.function, 4, &entry);
    assert!(!command_entry::OWNER.is_set(&nop));
    let queue = driver.function.core.cmdq.address;
    for slot in [1u64, 31] {
        driver.host.bus.write(queue + slot * 64, &entry).unwrap();
    }
    driver.store(0x18, &(1u32 << 1 | 1 << 31).to_be_bytes());
    for slot in [1u64, 31] {
        let mut done = [0; 64];
        driver.host.bus.read(queue + slot * 64, &mut done).unwrap();
        assert_eq!((command_entry::OWNER.get(&done), command_out::STATUS.get(&done[0x20..])), (0, 0));
    }
}

#[test]
fn the_end_of_a_command_is_an_event_where_a_queue_takes_it() {
    let mut driver = Driver::booted(PortKind::Ib);
    let mut queue = driver.host.create_eq(&mut driver.function, 5, 2, 1 << EventType::Command as u64);
    // The command that creates the queue completes without an event, because the queue did not
    // exist when the command was issued.
    assert_eq!(queue.next(&driver.host.bus), None);
    driver.arm(&queue);
    let entry = driver.host.entry(&input(NOP, 0x10), 8);
    driver.host.submit(&mut driver.function, 5, &entry);
    let event = queue.next(&driver.host.bus).unwrap();
    assert_eq!(eqe::eqe::EVENT_TYPE.get(&event), EventType::Command as u64);
    assert_eq!(eqe::command::VECTOR.get(eqe::eqe::EVENT_DATA.bytes(&event)), 1 << 5);
    assert_eq!(driver.host.bus.take_raised(), [2]);
}
