use super::*;
use crate::config::{ISEG_SIZE, UAR_SIZE, UARS_SIZE};
use crate::layout::caps::{atomic_caps, cmd_hca_cap};
use crate::layout::hca::{
    alloc_q_counter_out, alloc_uar_out, manage_pages_in, manage_pages_out, query_pages_out,
};
use crate::layout::iseg::command_out;
use crate::port::PortKind;
use crate::testing::{Driver, PAGE, input, set};

const QUERY_HCA_CAP: u16 = 0x100;
const QUERY_ADAPTER: u16 = 0x101;
const INIT_HCA: u16 = 0x102;
const TEARDOWN_HCA: u16 = 0x103;
const ENABLE_HCA: u16 = 0x104;
const DISABLE_HCA: u16 = 0x105;
const QUERY_PAGES: u16 = 0x107;
const MANAGE_PAGES: u16 = 0x108;
const SET_HCA_CAP: u16 = 0x109;
const QUERY_ISSI: u16 = 0x10a;
const SET_ISSI: u16 = 0x10b;
const SET_DRIVER_VERSION: u16 = 0x10d;
const QUERY_SPECIAL_CONTEXTS: u16 = 0x203;
const ALLOC_Q_COUNTER: u16 = 0x771;
const DEALLOC_Q_COUNTER: u16 = 0x772;
const QUERY_Q_COUNTER: u16 = 0x773;
const ALLOC_UAR: u16 = 0x802;
const DEALLOC_UAR: u16 = 0x803;

/// Returns a driver that has enabled its function.
fn enabled() -> Driver {
    let mut driver = Driver::new(PortKind::Ib);
    driver.host.set_queue(&mut driver.function);
    driver.ok(&input(ENABLE_HCA, 0x10), 8);
    driver
}

fn give(pages: &[u64]) -> Vec<u8> {
    let mut give = set(set(input(MANAGE_PAGES, 0x10), 0x04, 1), 0x0c, pages.len() as u32);
    give.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
    give
}

fn take(count: u32) -> Vec<u8> {
    set(set(input(MANAGE_PAGES, 0x10), 0x04, 2), 0x0c, count)
}

/// Destroys all objects created at boot.
fn shut_down(driver: &mut Driver) {
    for queue in [driver.host.events.take(), driver.host.completions.take()].into_iter().flatten() {
        driver.ok(&set(input(0x302, 0x10), 0x08, queue.eqn), 8);
    }
    driver.ok(&set(input(DEALLOC_UAR, 0x10), 0x08, driver.host.uar), 8);
    driver.ok(&input(TEARDOWN_HCA, 0x10), 0x10);
}

#[test]
fn a_function_goes_up_and_down_and_up_again() {
    let mut driver = Driver::booted(PortKind::Ib);
    for _ in 0..2 {
        shut_down(&mut driver);
        let output = driver.ok(&take(100), 0x10 + 100 * 8);
        assert_eq!(manage_pages_out::OUTPUT_NUM_ENTRIES.get(&output) as usize, BOOT_PAGES + INIT_PAGES);
        driver.ok(&input(DISABLE_HCA, 0x10), 8);
        driver.boot();
    }
}

#[test]
fn a_stage_is_not_skipped_nor_repeated() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.host.set_queue(&mut driver.function);
    driver.refused(&input(INIT_HCA, 0x20), 8, Rule::CommandState);
    driver.refused(&input(DISABLE_HCA, 0x10), 8, Rule::CommandState);
    driver.ok(&input(ENABLE_HCA, 0x10), 8);
    driver.refused(&input(ENABLE_HCA, 0x10), 8, Rule::CommandState);
    driver.refused(&input(TEARDOWN_HCA, 0x10), 0x10, Rule::CommandState);
    let mut driver = Driver::booted(PortKind::Ib);
    driver.refused(&input(INIT_HCA, 0x20), 8, Rule::CommandState);
    driver.refused(&input(DISABLE_HCA, 0x10), 8, Rule::CommandState);
    driver.refused(&input(SET_HCA_CAP, 0x1010), 8, Rule::CommandState);
}

#[test]
fn a_teardown_with_objects_left_is_complained_of_and_carried_out() {
    let mut driver = Driver::booted(PortKind::Ib);
    let output = driver.command(&input(TEARDOWN_HCA, 0x10), 0x10);
    assert_eq!(command_out::STATUS.get(&output), 0);
    assert_eq!(driver.rules(), [Rule::CommandBusy]);
    assert_eq!(driver.function.core.objects_left(), None);
}

#[test]
fn only_an_orderly_teardown_is_offered() {
    let mut driver = Driver::booted(PortKind::Ib);
    driver.refused(&set(input(TEARDOWN_HCA, 0x10), 0x08, 1), 0x10, Rule::CommandParameter);
}

#[test]
fn pages_are_asked_for_and_missed() {
    let mut driver = enabled();
    driver.refused(&input(INIT_HCA, 0x20), 8, Rule::CommandState);
    driver.host.give_pages(&mut driver.function, 1);
    driver.refused(&input(INIT_HCA, 0x20), 8, Rule::CommandState);
    driver.host.give_pages(&mut driver.function, 2);
    let output = driver.ok(&set(input(QUERY_PAGES, 0x10), 0x04, 2), 0x10);
    assert_eq!(query_pages_out::NUM_PAGES.get(&output), 0);
    driver.ok(&input(INIT_HCA, 0x20), 8);
    // The function keeps the pages that it requires.
    let output = driver.ok(&take(1), 0x18);
    assert_eq!(manage_pages_out::OUTPUT_NUM_ENTRIES.get(&output), 0);
}

#[test]
fn pages_are_aligned_and_given_once() {
    let mut driver = enabled();
    driver.refused(&give(&[0x2008]), 0x10, Rule::CommandPages);
    driver.refused(&give(&[PAGE, PAGE]), 0x10, Rule::CommandPages);
    driver.ok(&give(&[PAGE]), 0x10);
    driver.refused(&give(&[PAGE]), 0x10, Rule::CommandPages);
    let mut short = give(&[2 * PAGE]);
    manage_pages_in::INPUT_NUM_ENTRIES.set(&mut short, u32::MAX);
    driver.refused(&short, 0x10, Rule::CommandLength);
    for (input, out_len) in [(give(&[2 * PAGE]), 0x10), (take(1), 0x18)] {
        driver.refused(&[&input[..], &[0; 8]].concat(), out_len, Rule::CommandLength);
    }
    driver.refused(&take(2), 0x18, Rule::CommandLength);
    let output = driver.ok(&take(2), 0x20);
    assert_eq!(manage_pages_out::OUTPUT_NUM_ENTRIES.get(&output), 1);
    assert_eq!(qword(&output, manage_pages_out::PAS), PAGE);
}

#[test]
fn a_function_is_not_disabled_with_the_drivers_pages() {
    let mut driver = enabled();
    driver.ok(&give(&[PAGE]), 0x10);
    driver.refused(&input(DISABLE_HCA, 0x10), 8, Rule::CommandBusy);
}

#[test]
fn no_more_pages_are_kept_than_anybody_gives() {
    let mut driver = enabled();
    let pages: Vec<u64> = (0..=MAX_PAGES as u64).map(|page| page * PAGE).collect();
    driver.refused(&give(&pages), 0x10, Rule::CommandParameter);
}

#[test]
fn other_functions_are_not_there() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.host.set_queue(&mut driver.function);
    driver.refused(&set(input(ENABLE_HCA, 0x10), 0x08, 1), 8, Rule::CommandParameter);
    driver.ok(&input(ENABLE_HCA, 0x10), 8);
    driver.refused(&set(input(QUERY_HCA_CAP, 0x10), 0x08, 1 << 31), 0x1010, Rule::CommandParameter);
}

#[test]
fn the_interface_step_is_one_that_exists() {
    let mut driver = enabled();
    driver.refused(&set(input(SET_ISSI, 0x10), 0x08, 2), 8, Rule::CommandParameter);
    driver.ok(&set(input(SET_ISSI, 0x10), 0x08, 1), 8);
    let output = driver.ok(&input(QUERY_ISSI, 0x10), 0x70);
    assert_eq!(hca::query_issi_out::CURRENT_ISSI.get(&output), 1);
    assert_eq!(hca::query_issi_out::SUPPORTED_ISSI_DW0.get(&output), 3);
}

#[test]
fn a_driver_sets_capabilities_up_to_the_maximum() {
    let mut driver = enabled();
    let offered = driver.ok(&input(QUERY_HCA_CAP, 0x10), 0x1010);
    let mut wanted = input(SET_HCA_CAP, 0x1010);
    put(&mut wanted, 0x10, &offered[0x10..]);
    driver.ok(&wanted, 8);
    let capability = hca::set_hca_cap_in::CAPABILITY.bytes_mut(&mut wanted);
    cmd_hca_cap::LOG_MAX_QP.set(capability, 31u32);
    driver.refused(&wanted, 8, Rule::CommandCapability);
    // The driver selects the byte order of atomics, and a query then reports it.
    let mut wanted = set(input(SET_HCA_CAP, 0x1010), 0x04, 3 << 1);
    let now = driver.ok(&set(input(QUERY_HCA_CAP, 0x10), 0x04, 3 << 1 | 1), 0x1010);
    put(&mut wanted, 0x10, &now[0x10..]);
    let capability = hca::set_hca_cap_in::CAPABILITY.bytes_mut(&mut wanted);
    atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE.set(capability, 1u32);
    driver.ok(&wanted, 8);
    // A capability group and capability bits that do not exist.
    driver.refused(&set(input(QUERY_HCA_CAP, 0x10), 0x04, 5 << 1), 0x1010, Rule::CommandModifier);
    driver.refused(&set(input(SET_HCA_CAP, 0x1010), 0x04, 5 << 1), 8, Rule::CommandModifier);
    driver.refused(&set(input(SET_HCA_CAP, 0x1010), 0x10 + 8, 1), 8, Rule::CommandReserved);
}

#[test]
fn uar_pages_lie_behind_the_initialisation_segment_and_are_given_back_unused() {
    let mut driver = Driver::booted(PortKind::Ib);
    let one = alloc_uar_out::UAR.get32(&driver.ok(&input(ALLOC_UAR, 0x10), 0x10));
    assert!(u64::from(one) * UAR_SIZE >= ISEG_SIZE && u64::from(one) * UAR_SIZE < UARS_SIZE);
    assert_ne!(one, driver.host.uar);
    driver.ok(&set(input(DEALLOC_UAR, 0x10), 0x08, one), 8);
    driver.refused(&set(input(DEALLOC_UAR, 0x10), 0x08, one), 8, Rule::CommandObject);
    driver.refused(&set(input(DEALLOC_UAR, 0x10), 0x08, driver.host.uar), 8, Rule::CommandBusy);
}

#[test]
fn uar_pages_run_out_without_a_complaint() {
    let mut driver = Driver::booted(PortKind::Ib);
    let hca = &mut driver.function.core.hca;
    while hca.uars.take().is_some() {}
    let output = driver.command(&input(ALLOC_UAR, 0x10), 0x10);
    assert_eq!(command_out::STATUS.get(&output), Status::NoResources as u64);
}

#[test]
fn counter_sets_exist_before_they_are_asked_for() {
    let mut driver = Driver::booted(PortKind::Ib);
    let set_id = alloc_q_counter_out::COUNTER_SET_ID.get32(&driver.ok(&input(ALLOC_Q_COUNTER, 0x10), 0x10));
    driver.ok(&set(input(QUERY_Q_COUNTER, 0x20), 0x1c, set_id), 0x100);
    driver.ok(&set(input(DEALLOC_Q_COUNTER, 0x10), 0x08, set_id), 8);
    driver.refused(&set(input(DEALLOC_Q_COUNTER, 0x10), 0x08, set_id), 8, Rule::CommandObject);
    driver.refused(&set(input(QUERY_Q_COUNTER, 0x20), 0x1c, set_id), 0x100, Rule::CommandObject);
}

#[test]
fn a_reset_is_as_power_on() {
    let mut driver = Driver::booted(PortKind::Ib);
    driver.function.reset();
    driver.store(0x18, &1u32.to_be_bytes());
    assert_eq!(driver.rules(), [Rule::CommandEntry]);
    driver.boot();
}

#[test]
fn a_command_can_be_made_to_fail() {
    let mut driver = Driver::booted(PortKind::Ib);
    let faults = &mut driver.function.core.faults;
    let fault = crate::fault::CommandFault { opcode: ALLOC_UAR, status: 0x0f, syndrome: 0x1234, left: 1 };
    assert!(faults.add_command(fault).is_ok());
    let before = driver.function.core.hca.uars.len();
    let output = driver.command(&input(ALLOC_UAR, 0x10), 0x10);
    assert_eq!((command_out::STATUS.get(&output), command_out::SYNDROME.get(&output)), (0x0f, 0x1234));
    assert_eq!(driver.function.core.hca.uars.len(), before);
    driver.ok(&input(ALLOC_UAR, 0x10), 0x10);
}

#[test]
fn the_adapter_names_itself() {
    let mut driver = Driver::booted(PortKind::Ib);
    let output = driver.ok(&input(QUERY_ADAPTER, 0x10), 0x110);
    assert!(hca::query_adapter_out::VSD_CONTD_PSID.bytes(&output).starts_with(b"MODEL"));
    driver.ok(&input(QUERY_SPECIAL_CONTEXTS, 0x10), 0x20);
    driver.ok(&input(SET_DRIVER_VERSION, 0x50), 8);
}
