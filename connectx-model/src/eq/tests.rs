use super::*;
use crate::complaint::Rule;
use crate::layout::eq::{create_eq_in, eqc, query_eq_out};
use crate::port::PortKind;
use crate::testing::{Driver, EventQueue, PAGE, input, set};

const PORT_CHANGE: u64 = 1 << EventType::PortChange as u64;

fn raise(driver: &mut Driver, sub_type: u8) {
    driver.function.core.event(EventType::PortChange, sub_type, &[sub_type; 28]);
}

/// Creates an event queue with 8 entries, the only queue that subscribes to port changes.
fn small(driver: &mut Driver) -> EventQueue {
    let others = driver.host.events.take().unwrap();
    driver.ok(&set(input(0x302, 0x10), 0x08, others.eqn), 8);
    driver.host.create_eq(&mut driver.function, 3, 3, PORT_CHANGE)
}

#[test]
fn an_event_goes_to_the_queue_that_subscribed_to_its_type() {
    let mut driver = Driver::booted(PortKind::Ib);
    raise(&mut driver, 4);
    let event = driver.event().unwrap();
    assert_eq!((event[1], event[3], event[32]), (EventType::PortChange as u8, 4, 4));
    assert_eq!(driver.event(), None);
    assert_eq!(driver.completion_event(), None);
    // No queue subscribes to command completions.
    driver.function.core.event(EventType::Command, 0, &[0; 28]);
    assert_eq!(driver.event(), None);
}

#[test]
fn an_armed_queue_interrupts_once() {
    let mut driver = Driver::booted(PortKind::Ib);
    let mut queue = small(&mut driver);
    raise(&mut driver, 1);
    assert_eq!(driver.host.bus.take_raised(), []);
    // A queue that is armed with unread entries raises its interrupt at once.
    driver.arm(&queue);
    assert_eq!(driver.host.bus.take_raised(), [3]);
    assert!(queue.next(&driver.host.bus).is_some());
    driver.arm(&queue);
    raise(&mut driver, 4);
    raise(&mut driver, 1);
    assert_eq!(driver.host.bus.take_raised(), [3]);
}

#[test]
fn the_owner_bit_turns_with_the_ring() {
    let mut driver = Driver::booted(PortKind::Ib);
    let mut queue = small(&mut driver);
    for turn in 0..40u8 {
        raise(&mut driver, turn);
        let event = queue.next(&driver.host.bus).unwrap();
        assert_eq!((event[3], event[63] & 1), (turn, turn >> 3 & 1));
        assert_eq!(queue.next(&driver.host.bus), None);
        driver.arm(&queue);
    }
}

#[test]
fn a_full_queue_loses_events_and_that_is_complained_of() {
    let mut driver = Driver::booted(PortKind::Ib);
    let mut queue = small(&mut driver);
    for turn in 0..9 {
        raise(&mut driver, turn);
    }
    assert_eq!(driver.rules(), [Rule::EqOverrun]);
    let read: Vec<u8> = std::iter::from_fn(|| queue.next(&driver.host.bus)).map(|event| event[3]).collect();
    assert_eq!(read, [0, 1, 2, 3, 4, 5, 6, 7]);
    driver.arm(&queue);
    raise(&mut driver, 42);
    assert_eq!(queue.next(&driver.host.bus).unwrap()[3], 42);
}

#[test]
fn a_consumer_index_does_not_pass_the_producer() {
    let mut driver = Driver::booted(PortKind::Ib);
    let mut queue = small(&mut driver);
    raise(&mut driver, 1);
    queue.consumer = 2;
    driver.arm(&queue);
    assert_eq!(driver.rules(), [Rule::EqDoorbell]);
    queue.consumer = 0x00ff_ffff;
    driver.arm(&queue);
    assert_eq!(driver.rules(), [Rule::EqDoorbell]);
}

#[test]
fn a_doorbell_names_a_queue_of_its_uar() {
    let mut driver = Driver::booted(PortKind::Ib);
    let queue = small(&mut driver);
    driver.arm(&EventQueue { eqn: queue.eqn + 1, ..queue.clone() });
    assert_eq!(driver.rules(), [Rule::DoorbellObject]);
    driver.host.uar = crate::layout::hca::alloc_uar_out::UAR.get32(&driver.ok(&input(0x802, 0x10), 0x10));
    driver.arm(&queue);
    assert_eq!(driver.rules(), [Rule::DoorbellUar]);
}

#[test]
fn events_that_are_kept_back_come_when_they_are_released() {
    let mut driver = Driver::booted(PortKind::Ib);
    driver.function.core.faults.set_holding(crate::fault::Events::AllButCommands);
    raise(&mut driver, 4);
    assert_eq!(driver.event(), None);
    for held in driver.function.core.faults.release(None) {
        driver.function.core.deliver(&held);
    }
    assert_eq!(driver.event().unwrap()[3], 4);
}

/// Checks that CREATE_EQ is rejected and breaks `rule` after `change` has modified its input.
fn refused(change: impl Fn(&mut [u8]), rule: Rule) {
    let mut driver = Driver::booted(PortKind::Ib);
    let (mut request, _) = driver.host.eq_request(4, 0, 0);
    change(&mut request);
    driver.refused(&request, 0x10, rule);
}

fn context(request: &mut [u8]) -> &mut [u8] {
    create_eq_in::EQ_CONTEXT_ENTRY.bytes_mut(request)
}

#[test]
fn an_event_queue_needs_existing_resources() {
    refused(|request| eqc::LOG_EQ_SIZE.set(context(request), 23u32), Rule::CommandParameter);
    refused(|request| eqc::INTR.set(context(request), 8u32), Rule::CommandParameter);
    refused(|request| eqc::UAR_PAGE.set(context(request), 0x1ffu32), Rule::CommandObject);
    refused(|request| context(request)[0x3f] = 1, Rule::CommandReserved);
    // A buffer longer than its page list, a misaligned page, and a page outside memory.
    refused(|request| eqc::LOG_EQ_SIZE.set(context(request), 10u32), Rule::CommandPages);
    refused(|request| request[create_eq_in::PAS + 7] = 8, Rule::CommandPages);
    refused(|request| request[create_eq_in::PAS] = 0x7f, Rule::DmaFault);
}

#[test]
fn a_queue_is_destroyed_once_and_not_while_it_is_used() {
    let mut driver = Driver::booted(PortKind::Ib);
    let queue = driver.host.create_eq(&mut driver.function, 4, 0, 0);
    driver.ok(&set(input(0x302, 0x10), 0x08, queue.eqn), 8);
    driver.refused(&set(input(0x302, 0x10), 0x08, queue.eqn), 8, Rule::CommandObject);
    driver.refused(&set(input(0x303, 0x10), 0x08, queue.eqn), 0x110, Rule::CommandObject);
    let again = driver.host.create_eq(&mut driver.function, 4, 0, 0);
    assert_ne!(again.eqn, queue.eqn);
}

#[test]
fn a_queue_tells_how_far_it_is() {
    let mut driver = Driver::booted(PortKind::Ib);
    raise(&mut driver, 1);
    let eqn = driver.host.events.as_ref().unwrap().eqn;
    let output = driver.ok(&set(input(0x303, 0x10), 0x08, eqn), 0x110);
    let context = query_eq_out::EQ_CONTEXT_ENTRY.bytes(&output);
    assert_eq!((eqc::PRODUCER_COUNTER.get(context), eqc::CONSUMER_COUNTER.get(context)), (1, 0));
    assert_eq!(eqc::ST.get(context), 10);
}

#[test]
fn as_many_queues_as_are_offered_and_no_more() {
    let mut driver = Driver::booted(PortKind::Ib);
    for _ in driver.function.core.eqs.len()..crate::caps::MAX_EQS as usize {
        driver.host.create_eq(&mut driver.function, 4, 0, 0);
    }
    let (request, _) = driver.host.eq_request(4, 0, 0);
    assert_ne!(driver.command(&request, 0x10)[0], 0);
}

#[test]
fn a_buffer_may_begin_inside_of_a_page() {
    let mut driver = Driver::booted(PortKind::Ib);
    let others = driver.host.events.take().unwrap();
    driver.ok(&set(input(0x302, 0x10), 0x08, others.eqn), 8);
    let (mut request, buffer) = driver.host.eq_request(4, 0, PORT_CHANGE);
    // The offset is in 64ths of a page.
    eqc::PAGE_OFFSET.set(context(&mut request), 3u32);
    driver.ok(&request, 0x10);
    raise(&mut driver, 7);
    let mut entry = [0; 64];
    driver.host.bus.read(buffer + 3 * PAGE / 64, &mut entry).unwrap();
    assert_eq!((entry[1], entry[3]), (EventType::PortChange as u8, 7));
}
