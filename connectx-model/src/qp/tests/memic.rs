//! Device memory as the source and the destination of work requests.

use super::sends::bed;
use super::*;
use crate::config::MEMIC_START;
use crate::layout::memic::{alloc_memic_in, alloc_memic_out};
use crate::testing::memic_key;

/// Returns the address of a 4096-byte area of device memory, and a key for all of the area except
/// its first 64 bytes.
fn area(bed: &mut Bed, rights: &[Field]) -> (u64, u32) {
    let mut request = input(0x205, alloc_memic_in::SIZE);
    alloc_memic_in::RANGE_START_ADDR.set(&mut request, MEMIC_START);
    alloc_memic_in::RANGE_SIZE.set(&mut request, 4 * PAGE);
    alloc_memic_in::MEMIC_SIZE.set(&mut request, PAGE);
    let start = alloc_memic_out::MEMIC_START_ADDR.get(&bed.ok(0, &request));
    let mut changes = vec![(mkc::MKEY_7_0, 0x21)];
    changes.extend(rights.iter().map(|right| (*right, 1)));
    let request = memic_key(bed.pds[0], start + 64, PAGE - 64, &changes);
    (start, create_mkey_out::MKEY_INDEX.get32(&bed.ok(0, &request)) << 8 | 0x21)
}

fn load<const N: usize>(bed: &mut Bed, address: u64) -> [u8; N] {
    let mut bytes = [0; N];
    bed.fabric.bar_read(0, BAR0, address, &mut bytes, bed.now);
    bytes
}

fn store(bed: &mut Bed, address: u64, bytes: &[u8]) {
    bed.fabric.bar_write(0, BAR0, address, bytes, bed.now);
}

#[test]
fn messages_leave_from_device_memory_and_arrive_in_it() {
    for service in [RC, UC] {
        let (mut bed, mut cq, mut one, mut two, memory) = bed(service);
        let (start, key) = area(&mut bed, &[]);
        store(&mut bed, start + 64 + 8, b"from the device!");
        let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).element(8, 16, key).done();
        bed.post(&mut one, &wqe);
        let received = bed.poll(&mut cq).unwrap();
        assert_eq!(cqe::BYTE_CNT.get(&received), 16);
        assert_eq!(&bed.peek::<16>(0, memory.address), b"from the device!");
        // The second receive is for an empty message. The third receives into device memory.
        let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).done();
        bed.post(&mut one, &wqe);
        bed.post_recv(&mut two, &[(0x100, 4, key), (memory.va + 0x1000, 4, memory.key)]);
        let wqe = bed.begin(&one, opcode::SEND).inline(b"abcdefgh").done();
        bed.post(&mut one, &wqe);
        bed.drain(&mut cq);
        assert_eq!(&load::<4>(&mut bed, start + 64 + 0x100), b"abcd");
        assert_eq!(&bed.peek::<4>(0, memory.address + 0x1000), b"efgh");
        assert_eq!(bed.rules(), []);
    }
}

#[test]
fn peers_write_read_and_change_device_memory_from_zero_on() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let (start, key) = area(&mut bed, &[mkc::RW, mkc::RR, mkc::A]);
    let wqe = bed.begin(&one, opcode::WRITE).remote(16, key).inline(&40u64.to_ne_bytes()).done();
    bed.post(&mut one, &wqe);
    let add = bed.begin(&one, opcode::FETCH_ADD).remote(16, key).operands(2, 0);
    let add = add.element(memory.va + 0x3000, 8, memory.key).done();
    bed.post(&mut one, &add);
    let swap = bed.begin(&one, opcode::COMPARE_SWAP).remote(16, key).operands(99, 42);
    let swap = swap.element(memory.va + 0x3008, 8, memory.key).done();
    bed.post(&mut one, &swap);
    let read = bed.begin(&one, opcode::READ).remote(8, key).element(memory.va + 0x3010, 16, memory.key);
    let read = read.done();
    bed.post(&mut one, &read);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0), (SUCCESS, 1), (SUCCESS, 2), (SUCCESS, 3)]);
    let number = |bed: &Bed, at| u64::from_ne_bytes(bed.peek(0, memory.address + at));
    let fresh = u64::from_ne_bytes([crate::memic::FRESH; 8]);
    assert_eq!([0x3000, 0x3008, 0x3010, 0x3018].map(|at| number(&bed, at)), [40, 42, fresh, 99]);
    assert_eq!(u64::from_ne_bytes(load(&mut bed, start + 64 + 16)), 99);
    assert_eq!(bed.rules(), []);
}

#[test]
fn peers_reach_no_byte_of_device_memory_outside_of_the_key() {
    for (rights, va) in [(&[mkc::RW][..], PAGE - 64 - 4), (&[], 0), (&[mkc::RW], MEMIC_START)] {
        let (mut bed, mut cq, mut one, _, _) = bed(RC);
        let (start, key) = area(&mut bed, rights);
        let wqe = bed.begin(&one, opcode::WRITE).remote(va, key).inline(&[9; 8]).done();
        bed.post(&mut one, &wqe);
        let errors: Vec<_> = std::iter::from_fn(|| bed.poll(&mut cq)).map(|entry| error(&entry)).collect();
        assert!(errors.contains(&(SEND_ERROR, 0x13)), "{va:#x}: {errors:?}");
        assert_eq!(load::<4>(&mut bed, start + PAGE - 4), [crate::memic::FRESH; 4]);
        assert_eq!(bed.rules(), []);
    }
}

#[test]
fn a_result_comes_into_device_memory() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let (start, key) = area(&mut bed, &[]);
    bed.poke(0, memory.address + 0x2000, &7u64.to_ne_bytes());
    let add = bed.begin(&one, opcode::FETCH_ADD).remote(memory.va + 0x2000, memory.key).operands(1, 0);
    let add = add.element(24, 8, key).done();
    bed.post(&mut one, &add);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
    assert_eq!(u64::from_ne_bytes(load(&mut bed, start + 64 + 24)), 7);
}
