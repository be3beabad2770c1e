//! Device memory commands: allocation, memory keys, rejections.

use roce::engine::{Pd, Sge};

use super::*;
use crate::cmd::bench::{Bench, input, naming};
use crate::complaint::Rule;
use crate::layout::Field;
use crate::layout::mkey::{create_mkey_in, create_mkey_out, query_mkey_out};
use crate::memic::FRESH;
use crate::port::PortKind;
use crate::testing::memic_key;

const PAGE: u64 = 0x1000;

/// Returns an ALLOC_MEMIC input for 512 bytes in the second page of device memory, with `changes`
/// applied.
fn request(changes: &[(Field, u64)]) -> Vec<u8> {
    let mut input = input(0x205, alloc_memic_in::SIZE);
    alloc_memic_in::RANGE_START_ADDR.set(&mut input, MEMIC_START + PAGE);
    alloc_memic_in::RANGE_SIZE.set(&mut input, PAGE);
    alloc_memic_in::MEMIC_SIZE.set(&mut input, 512u64);
    changes.iter().for_each(|(field, value)| field.set(&mut input, *value));
    input
}

fn allocated(bench: &mut Bench) -> u64 {
    alloc_memic_out::MEMIC_START_ADDR.get(&bench.ok(request(&[])))
}

fn free(address: u64, size: u64) -> Vec<u8> {
    let mut input = input(0x206, dealloc_memic_in::SIZE);
    dealloc_memic_in::MEMIC_START_ADDR.set(&mut input, address);
    dealloc_memic_in::MEMIC_SIZE.set(&mut input, size);
    input
}

fn key(bench: &Bench, start: u64, len: u64, changes: &[(Field, u64)]) -> Vec<u8> {
    memic_key(bench.pd, start, len, changes)
}

#[test]
fn memory_is_allocated_in_its_range_and_freed_once() {
    let mut bench = Bench::new(PortKind::Ib);
    let first = allocated(&mut bench);
    let second = allocated(&mut bench);
    assert_eq!((first, second), (MEMIC_START + 2 * PAGE - 512, MEMIC_START + 2 * PAGE - 1024));
    bench.unlucky(request(&[(alloc_memic_in::MEMIC_SIZE, PAGE - 512)]), Status::NoResources);
    bench.refused(free(first, 256), Status::BadParam, Rule::CommandParameter);
    bench.refused(free(first + 64, 512), Status::BadResource, Rule::CommandObject);
    bench.ok(free(first, 512));
    bench.refused(free(first, 512), Status::BadResource, Rule::CommandObject);
    assert_eq!(allocated(&mut bench), first);
}

#[test]
fn requests_beyond_the_capabilities_are_refused() {
    let mut bench = Bench::new(PortKind::Roce);
    use alloc_memic_in::{LOG_MEMIC_ADDR_ALIGNMENT, MEMIC_SIZE as SIZE, RANGE_SIZE, RANGE_START_ADDR};
    let cases: &[&[(Field, u64)]] = &[
        &[(RANGE_START_ADDR, MEMIC_START - PAGE)],
        &[(RANGE_START_ADDR, MEMIC_START + MEMIC_SIZE - PAGE + 64)],
        &[(RANGE_START_ADDR, u64::MAX - 64)],
        &[(SIZE, 0)],
        &[(SIZE, 96)],
        &[(SIZE, PAGE + 64)],
        &[(LOG_MEMIC_ADDR_ALIGNMENT, 7)],
    ];
    for changes in cases {
        bench.refused(request(changes), Status::BadParam, Rule::CommandParameter);
    }
    let huge = [(RANGE_SIZE, 64 * PAGE), (SIZE, u64::from(MAX_AREA) + 64)];
    bench.unlucky(request(&huge), Status::ExceedLimit);
    bench.ok(request(&[(RANGE_SIZE, 64 * PAGE), (SIZE, MAX_AREA.into())]));
    let aligned = bench.ok(request(&[(RANGE_START_ADDR, MEMIC_START), (LOG_MEMIC_ADDR_ALIGNMENT, 6)]));
    assert_eq!(alloc_memic_out::MEMIC_START_ADDR.get(&aligned), MEMIC_START);
}

#[test]
fn the_addresses_of_a_key_begin_at_zero() {
    let mut bench = Bench::new(PortKind::Ib);
    let area = allocated(&mut bench);
    bench.function.core.memic.write(area + 64, b"here").unwrap();
    let input = key(&bench, area + 64, 128, &[]);
    let index = create_mkey_out::MKEY_INDEX.get32(&bench.ok(&input));
    let mut bytes = [0; 8];
    let read = |bench: &mut Bench, addr, bytes: &mut [u8]| {
        let sge = Sge { addr, length: bytes.len() as u32, lkey: index << 8 };
        bench.function.engine.gather(Pd(bench.pd), &[sge], bytes).is_ok()
    };
    assert!(read(&mut bench, 0, &mut bytes));
    assert_eq!(bytes, [b'h', b'e', b'r', b'e', FRESH, FRESH, FRESH, FRESH]);
    assert!(read(&mut bench, 120, &mut bytes) && !read(&mut bench, 121, &mut bytes));
    assert!(!read(&mut bench, area + 64, &mut bytes));
    let queried = bench.ok(naming(0x201, index));
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes(&input);
    assert_eq!(query_mkey_out::MEMORY_KEY_MKEY_ENTRY.bytes(&queried), context);
}

#[test]
fn memory_with_a_key_is_not_freed() {
    let mut bench = Bench::new(PortKind::Ib);
    let area = allocated(&mut bench);
    let input = key(&bench, area + 256, 256, &[]);
    let index = create_mkey_out::MKEY_INDEX.get32(&bench.ok(input));
    bench.refused(free(area, 512), Status::ResourceBusy, Rule::CommandBusy);
    bench.ok(naming(0x202, index));
    bench.ok(free(area, 512));
}

#[test]
fn keys_of_other_than_one_area_are_refused() {
    let mut bench = Bench::new(PortKind::Ib);
    let area = allocated(&mut bench);
    for (start, len) in [(area, 513), (area - 64, 64), (area + 512, 4), (0, 64), (area + 64, u64::MAX)] {
        bench.refused(key(&bench, start, len, &[]), Status::BadResource, Rule::CommandObject);
    }
    for (field, value) in [(mkc::LENGTH64, 1), (mkc::UMR_EN, 1), (mkc::TRANSLATIONS_OCTWORD_SIZE, 2)] {
        let input = key(&bench, area, 64, &[(field, value)]);
        bench.refused(input, Status::BadParam, Rule::CommandParameter);
    }
    bench.ok(key(&bench, area + 448, 64, &[]));
    let other = allocated(&mut bench);
    bench.ok(free(other, 512));
}

#[test]
fn a_teardown_with_memory_left_is_reported() {
    let mut bench = Bench::new(PortKind::Ib);
    allocated(&mut bench);
    bench.send(&input(0x103, 0x10));
    let complaints = bench.function.take_complaints();
    assert!(complaints[0].what.contains("1 area of device memory"), "{complaints:?}");
}
