use super::*;
use crate::config::BAR0;
use crate::config::FREQUENCY_KHZ;
use crate::port::PortKind;
use crate::state::hca::{LOG_SIZE, LOG_STRIDE};
use crate::state::iseg::{COMMAND_INTERFACE, FIRMWARE};
use crate::testing::{Driver, input};
use roce::engine::Time;

const TIMER_HIGH: u64 = 0x1000;
const TIMER_LOW: u64 = 0x1004;
const HEALTH: u64 = 0x1010;

#[test]
fn firmware_and_command_interface_have_versions() {
    let mut driver = Driver::new(PortKind::Ib);
    assert_eq!(driver.load(0x00), FIRMWARE.1 << 16 | FIRMWARE.0);
    assert_eq!(driver.load(0x04), COMMAND_INTERFACE << 16 | FIRMWARE.2);
    // The log2 size and stride of the command queue.
    assert_eq!(driver.load(0x14) & 0xff, LOG_SIZE << 4 | LOG_STRIDE);
    assert_eq!(driver.load(0x1fc) >> 31, 0);
}

#[test]
fn the_timer_runs_at_its_frequency() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.host.now = Time(3_000_000_000);
    let (high, low) = (driver.load(TIMER_HIGH), driver.load(TIMER_LOW));
    assert_eq!(u64::from(high) << 32 | u64::from(low), 3 * u64::from(FREQUENCY_KHZ) * 1000);
    driver.host.now = Time(100_000_000_000);
    assert_eq!(driver.load(TIMER_HIGH), 3);
}

#[test]
fn the_health_counter_advances_until_the_device_fails() {
    let mut driver = Driver::new(PortKind::Ib);
    let before = driver.load(HEALTH);
    driver.host.now = driver.host.now + 2_000_000_000;
    let alive = driver.load(HEALTH);
    assert!(alive > before && alive >> 24 == 0);
    driver.function.core.iseg.fail(0x10, driver.host.now);
    let stopped = driver.load(HEALTH);
    driver.host.now = driver.host.now + 2_000_000_000;
    assert_eq!(driver.load(HEALTH), stopped);
    assert_eq!(stopped >> 24, 0x10);
    // The driver reads single bytes of the health buffer: the reset request and the syndrome.
    let mut byte = [0];
    driver.function.bar_read(BAR0, 0x238, &mut byte, driver.host.now);
    assert_eq!(byte[0] >> 7, 1);
    driver.function.bar_read(BAR0, 0x23d, &mut byte, driver.host.now);
    assert_eq!(byte[0], 0x10);
}

#[test]
fn a_device_that_failed_starts_again_when_its_driver_resets_it() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.boot();
    assert_eq!(driver.load(0x1fc) >> 30 & 1, 1, "a reset is offered");
    driver.function.core.iseg.fail(0x10, driver.host.now);
    let address = driver.load(0x14) & 0xffff_f000;
    driver.store(0x14, &(address | INTERFACE_RESET << 8).to_be_bytes());
    assert_eq!(driver.load(0x14) >> 8 & 7, INTERFACE_DISABLED);
    assert!(driver.function.core.eqs.is_empty());
    // A program that has not noticed the reset rings a doorbell, which has no effect.
    driver.store(0x4800, &[0; 8]);
    let before = driver.load(HEALTH);
    assert_eq!(before >> 24, 0);
    driver.host.now = driver.host.now + 2_000_000_000;
    assert!(driver.load(HEALTH) > before);
    assert_eq!(driver.rules(), []);
    // After the driver has restarted, all rules apply again.
    driver.store(0x14, &address.to_be_bytes());
    driver.store(0x4800, &[0; 8]);
    assert_eq!(driver.rules(), [Rule::DoorbellUar]);
}

#[test]
fn an_access_outside_of_registers_breaks_a_rule() {
    for (offset, len) in [(0x08, 4), (0x02, 4), (0x18, 3), (0x3ffe, 4)] {
        let mut driver = Driver::new(PortKind::Ib);
        let mut bytes = vec![0xaa; len];
        driver.function.bar_read(BAR0, offset, &mut bytes, driver.host.now);
        assert_eq!((bytes, driver.rules()), (vec![0; len], vec![Rule::RegisterAccess]), "{offset:#x}");
    }
    for (offset, len) in [(0x08, 4), (0x12, 4), (0x18, 2), (0x3ffe, 4), (0x18, 0), (0x00, 4)] {
        let mut driver = Driver::new(PortKind::Ib);
        driver.store(offset, &vec![1; len]);
        assert_eq!(driver.rules(), [Rule::RegisterAccess], "{offset:#x}");
    }
}

#[test]
fn the_command_queue_is_aligned_to_a_page() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.store(0x14, &0x0000_2010u32.to_be_bytes());
    assert_eq!(driver.rules(), [Rule::RegisterAccess]);
    assert_eq!(driver.function.core.cmdq.address, 0);
}

#[test]
fn turning_the_interface_off_leaves_nothing() {
    let mut driver = Driver::booted(PortKind::Ib);
    let address = driver.load(0x14) & 0xffff_f000;
    driver.store(0x14, &(address | INTERFACE_DISABLED << 8).to_be_bytes());
    assert_eq!(driver.load(0x14) >> 8 & 7, INTERFACE_DISABLED);
    assert!(driver.function.core.eqs.is_empty());
    driver.store(0x18, &1u32.to_be_bytes());
    assert_eq!(driver.rules(), [Rule::CommandEntry]);
    driver.boot();
    driver.ok(&input(0x80d, 0x10), 8);
}

#[test]
fn a_device_that_was_pulled_out_reads_as_ones() {
    let mut driver = Driver::booted(PortKind::Ib);
    driver.function.core.faults.remove();
    assert_eq!(driver.load(0x00), u32::MAX);
    driver.store(0x18, &1u32.to_be_bytes());
    let mut word = [0; 4];
    driver.function.config_read(0, &mut word);
    assert_eq!(word, [0xff; 4]);
}

#[test]
fn time_does_not_go_back() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.host.now = Time(5_000_000_000);
    let later = driver.load(TIMER_LOW);
    driver.host.now = Time(1);
    assert_eq!(driver.load(TIMER_LOW), later);
}
