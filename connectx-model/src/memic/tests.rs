//! Areas of device memory: their addresses, and accesses by processors.

use super::*;
use crate::complaint::Rule;
use crate::layout::memic::{alloc_memic_in, alloc_memic_out, dealloc_memic_in};
use crate::port::PortKind;
use crate::testing::{Driver, input};

const PAGE: u64 = 0x1000;

#[test]
fn an_area_lies_as_far_back_as_its_range_alignment_and_the_others_allow() {
    let memic = Memic::default();
    let range = 0..2 * PAGE;
    assert_eq!(memic.alloc(&range, 64, 64), Some(2 * PAGE - 64));
    assert_eq!(memic.alloc(&range, PAGE, 64), Some(PAGE - 64));
    assert_eq!(memic.alloc(&range, 128, 512), Some(0xe00), "0xf40 is not aligned");
    assert_eq!(memic.alloc(&range, PAGE, 64), None);
    assert_eq!(memic.alloc(&(0..64), 64, 64), Some(0));
    assert_eq!(memic.alloc(&(0..64), 64, 64), None);
    memic.free(0);
    assert_eq!(memic.alloc(&(0..64), 64, 64), Some(0));
    assert_eq!(memic.alloc(&(PAGE..PAGE + 32), 64, 64), None, "a range that is too short");
}

#[test]
fn a_range_is_in_one_area_or_in_none() {
    let memic = Memic::default();
    memic.alloc(&(0..128), 128, 64).unwrap();
    memic.alloc(&(128..192), 64, 64).unwrap();
    for (address, len, holds) in
        [(0, 128, true), (64, 64, true), (64, 65, false), (128, 64, true), (192, 4, false), (100, 28, true)]
    {
        assert_eq!(memic.holds(address, len), holds, "{len} at {address}");
        assert_eq!(memic.read(address, &mut vec![0; len as usize]).is_some(), holds, "{len} at {address}");
        assert_eq!(memic.write(address, &vec![0; len as usize]).is_some(), holds, "{len} at {address}");
    }
    assert!(!memic.holds(64, u64::MAX));
}

#[test]
fn words_change_at_once_and_return_their_previous_value() {
    let memic = Memic::default();
    memic.alloc(&(64..128), 64, 64).unwrap();
    memic.write(72, &7u64.to_ne_bytes()).unwrap();
    assert_eq!(memic.word(72, |old| old + 1), Some(7));
    assert_eq!(memic.word(72, |old| old), Some(8));
    assert_eq!((memic.word(76, |_| 0), memic.word(124, |_| 0), memic.word(128, |_| 0)), (None, None, None));
    assert_eq!(memic.word(72, |old| old), Some(8));
}

/// Returns the address of a new 256-byte area in the first page of device memory.
fn area(driver: &mut Driver) -> u64 {
    let mut request = input(0x205, alloc_memic_in::SIZE);
    alloc_memic_in::RANGE_START_ADDR.set(&mut request, MEMIC_START);
    alloc_memic_in::RANGE_SIZE.set(&mut request, PAGE);
    alloc_memic_in::MEMIC_SIZE.set(&mut request, 256u64);
    alloc_memic_out::MEMIC_START_ADDR.get(&driver.ok(&request, alloc_memic_out::SIZE))
}

fn freed(address: u64) -> Vec<u8> {
    let mut request = input(0x206, dealloc_memic_in::SIZE);
    dealloc_memic_in::MEMIC_START_ADDR.set(&mut request, address);
    dealloc_memic_in::MEMIC_SIZE.set(&mut request, 256u64);
    request
}

#[test]
fn a_processor_reads_what_it_stored_until_the_area_is_freed() {
    let mut driver = Driver::booted(PortKind::Ib);
    let area = area(&mut driver);
    assert_eq!(driver.load(area), u32::from_be_bytes([FRESH; 4]));
    driver.store(area + 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((driver.load(area), driver.load(area + 8)), (0xa5a5_a5a5, 0x0506_0708));
    driver.ok(&freed(area), 16);
    driver.store(area, &[0; 4]);
    assert_eq!(driver.load(area), u32::MAX);
    assert_eq!(driver.rules(), [Rule::MemicArea; 2]);
}

#[test]
fn a_processor_accesses_whole_words_of_an_area() {
    let mut driver = Driver::booted(PortKind::Roce);
    let area = area(&mut driver);
    for (at, len) in [(1, 4), (2, 4), (0, 1), (0, 2), (4, 6)] {
        driver.store(area + at, &vec![9; len]);
        assert_eq!(driver.rules(), [Rule::MemicWord], "{len} bytes at {at}");
    }
    for (at, len) in [(252, 8), (256, 4)] {
        driver.store(area + at, &vec![9; len]);
        assert_eq!(driver.rules(), [Rule::MemicArea], "{len} bytes at {at}");
    }
    driver.store(area - 4, &[9; 4]);
    driver.store(MEMIC_START + MEMIC_SIZE - 4, &[9; 4]);
    assert_eq!(driver.rules(), [Rule::MemicArea; 2]);
    assert_eq!((driver.load(area), driver.load(area + 252)), (0xa5a5_a5a5, 0xa5a5_a5a5));
}

#[test]
fn a_reset_frees_all_areas() {
    let mut driver = Driver::booted(PortKind::Ib);
    let before = area(&mut driver);
    driver.function.reset();
    driver.boot();
    assert_eq!(area(&mut driver), before);
}
