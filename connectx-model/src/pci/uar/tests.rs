//! Stores to UAR pages: sizes, halves, BlueFlame.

use std::collections::BTreeMap;

use super::*;
use crate::qp::tests::{Bed, Cq, Memory, Pair, Shape, brief};

fn bed() -> (Bed, Cq, Pair, Memory, u32) {
    let mut bed = Bed::ib();
    let cq = bed.cq(0, 6, 64);
    let (one, _) = bed.connected([&cq, &cq], &Shape::default());
    let memory = bed.memory(0, 1);
    let uar = bed.hosts[0].uar;
    (bed, cq, one, memory, uar)
}

fn write(bed: &Bed, pair: &Pair, memory: &Memory, bytes: &[u8]) -> Vec<u8> {
    bed.begin(pair, opcode::WRITE).remote(memory.va, memory.key).inline(bytes).done()
}

/// Stores a work request through BlueFlame in blocks of 64 bytes, 8 bytes at a time. Stops after
/// `stores` stores.
fn blue_flame(bed: &mut Bed, uar: u32, register: u64, wqe: &[u8], stores: usize) {
    let mut block = wqe.to_vec();
    block.resize(wqe.len().next_multiple_of(64), 0xaa);
    for (n, bytes) in block.chunks(8).enumerate().take(stores) {
        bed.store(0, uar, register + n as u64 * 8, bytes);
    }
}

const ALL: usize = usize::MAX;

#[test]
fn a_blue_flame_store_rings_once_and_is_compared_with_the_queue() {
    for len in [4, 60, 100, 200] {
        let (mut bed, mut cq, mut one, memory, uar) = bed();
        for _ in 0..3 {
            let bytes: Vec<u8> = (0..len).collect();
            let wqe = write(&bed, &one, &memory, &bytes);
            let at = one.head;
            bed.put(&mut one, &wqe);
            bed.update_record(&one);
            let register = bed.register(&one);
            blue_flame(&mut bed, uar, register, &wqe, ALL);
            one.half ^= 1;
            assert_eq!(bed.drain(&mut cq), [(0, at.into())]);
        }
    }
}

#[test]
fn a_blue_flame_store_is_compared_before_its_work_request_executes() {
    let (mut bed, mut cq, mut one, memory, uar) = bed();
    // The peer has no receive, so the NOP waits for the send. Later requests wait for the NOP.
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    let wqe = bed.nop(&one);
    bed.post(&mut one, &wqe);
    bed.fabric.functions[0].release(None);
    let mut wqe = write(&bed, &one, &memory, b"as it is");
    bed.put(&mut one, &wqe);
    bed.update_record(&one);
    wqe[37] ^= 1;
    let register = bed.register(&one);
    blue_flame(&mut bed, uar, register, &wqe, ALL);
    assert_eq!(bed.rules(), [Rule::BlueFlameContent]);
    bed.drain(&mut cq);
}

#[test]
fn a_blue_flame_store_that_differs_from_the_queue_fails_the_queue_pair() {
    let (mut bed, mut cq, mut one, memory, uar) = bed();
    let mut wqe = write(&bed, &one, &memory, b"as it is");
    bed.put(&mut one, &wqe);
    bed.update_record(&one);
    wqe[37] ^= 1;
    blue_flame(&mut bed, uar, BLUE_FLAME, &wqe, ALL);
    assert_eq!(bed.rules(), [Rule::BlueFlameContent]);
    assert_eq!(bed.drain(&mut cq), [(0, 0)], "it had rung already");
    assert_eq!(bed.state(&one), roce::engine::State::Err);
}

#[test]
fn only_a_work_request_that_was_posted_alone_is_stored_through_blue_flame() {
    for is_nop in [false, true] {
        for count in 1..=3u16 {
            let (mut bed, mut cq, mut one, memory, uar) = bed();
            let mut last = Vec::new();
            for n in 1..=count {
                let is_nop = is_nop && n == count;
                last = if is_nop { bed.nop(&one) } else { write(&bed, &one, &memory, &[7; 60]) };
                bed.put(&mut one, &last);
            }
            bed.update_record(&one);
            blue_flame(&mut bed, uar, BLUE_FLAME, &last, ALL);
            let expected = if count == 1 { vec![] } else { vec![Rule::BlueFlameSingle] };
            assert_eq!(bed.rules(), expected, "{count} requests, NOP {is_nop}");
            assert_eq!(bed.drain(&mut cq).len(), usize::from(count), "they are only reported");
        }
    }
}

#[test]
fn a_nop_is_taken_from_blue_flame_where_its_copy_differs() {
    let (mut bed, mut cq, mut one, _, uar) = bed();
    // Drivers probe write combining in this way: the request in the queue is unsignalled, its
    // BlueFlame copy is signalled.
    for n in 0..4u16 {
        let quiet = bed.begin(&one, opcode::NOP).set(ctrl::CE, 0).done();
        let mut loud = quiet.clone();
        ctrl::CE.set(&mut loud, 2u32);
        bed.put(&mut one, &quiet);
        bed.update_record(&one);
        let register = bed.register(&one);
        blue_flame(&mut bed, uar, register, &loud, ALL);
        one.half ^= 1;
        assert_eq!(bed.drain(&mut cq), [(0, n.into())]);
    }
}

#[test]
fn a_nop_that_only_rings_is_taken_from_the_queue_soon() {
    let (mut bed, mut cq, mut one, _, _) = bed();
    let nop = bed.nop(&one);
    bed.post(&mut one, &nop);
    assert_eq!(bed.drain(&mut cq), []);
    assert_eq!(bed.fabric.deadline(), Some(bed.now + HOLD));
    bed.pass(HOLD);
    assert_eq!(bed.drain(&mut cq), [(0, 0)]);
    // The next doorbell first rings the held NOP, which preserves the order.
    for _ in 0..2 {
        let nop = bed.nop(&one);
        bed.post(&mut one, &nop);
    }
    assert_eq!(bed.drain(&mut cq), [(0, 1)]);
    // A command also rings the held NOP.
    bed.fabric.bar_write(0, crate::config::BAR0, 0x18, &[0; 4], bed.now);
    assert_eq!(bed.drain(&mut cq), [(0, 2)]);
}

#[test]
fn halves_take_turns() {
    let (mut bed, mut cq, mut one, memory, uar) = bed();
    let wqe = write(&bed, &one, &memory, b"x");
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    // A store to the half used last rings no doorbell, and the rest of its block is ignored.
    let wqe = write(&bed, &one, &memory, b"x");
    bed.put(&mut one, &wqe);
    bed.update_record(&one);
    blue_flame(&mut bed, uar, BLUE_FLAME, &wqe, ALL);
    assert_eq!(bed.rules(), [Rule::BlueFlameHalf]);
    let nop = bed.nop(&one);
    bed.put(&mut one, &nop);
    bed.update_record(&one);
    blue_flame(&mut bed, uar, BLUE_FLAME, &nop, 1);
    bed.pass(HOLD);
    assert_eq!(bed.rules(), [Rule::BlueFlameHalf]);
    assert_eq!(bed.drain(&mut cq), []);
    one.half = 1;
    bed.ring(&mut one);
    bed.pass(HOLD);
    assert_eq!(bed.drain(&mut cq), [(0, 1), (0, 2)]);
}

#[test]
fn queue_pairs_that_share_a_register_may_each_take_turns() {
    let (mut bed, cq, mut one, memory, _) = bed();
    let (mut other, _) = bed.connected([&cq, &cq], &Shape::default());
    // Kernels use the halves in this order.
    for turn in 0..6 {
        let pair = if turn % 3 == 0 { &mut one } else { &mut other };
        let wqe = write(&bed, pair, &memory, b"x");
        bed.post(pair, &wqe);
    }
    assert_eq!(bed.rules(), []);
}

#[test]
fn queue_pairs_that_share_a_register_may_take_turns_all_together() {
    let (mut bed, cq, mut one, memory, _) = bed();
    let (mut other, _) = bed.connected([&cq, &cq], &Shape::default());
    // User space uses the halves in this order.
    for turn in 0..6 {
        let pair = if turn % 3 == 0 { &mut one } else { &mut other };
        pair.half = turn % 2;
        let wqe = write(&bed, pair, &memory, b"x");
        bed.post(pair, &wqe);
    }
    assert_eq!(bed.rules(), []);
}

#[test]
fn words_out_of_order_are_complained_of() {
    let (mut bed, mut cq, mut one, memory, uar) = bed();
    let wqe = write(&bed, &one, &memory, b"x");
    bed.put(&mut one, &wqe);
    bed.update_record(&one);
    bed.store(0, uar, BLUE_FLAME, &wqe[..8]);
    bed.store(0, uar, BLUE_FLAME + 16, &wqe[16..24]);
    assert_eq!(bed.rules(), [Rule::BlueFlameOrder]);
    // A block without its start, an incomplete block, and a block that is too long.
    bed.store(0, uar, BLUE_FLAME + HALF_SIZE + 8, &[0; 8]);
    assert_eq!(bed.rules(), [Rule::BlueFlameOrder]);
    one.half = 1;
    for stores in [3, 8] {
        let wqe = write(&bed, &one, &memory, b"x");
        bed.put(&mut one, &wqe);
        bed.update_record(&one);
        let register = bed.register(&one);
        blue_flame(&mut bed, uar, register, &wqe, stores);
        one.half ^= 1;
    }
    assert_eq!(bed.rules(), [Rule::BlueFlameOrder]);
    bed.store(0, uar, BLUE_FLAME + 64, &[0; 8]);
    assert_eq!(bed.rules(), [Rule::BlueFlameOrder]);
    assert_eq!(bed.drain(&mut cq).len(), 3);
}

#[test]
fn a_doorbell_may_come_in_two_halves() {
    let (mut bed, mut cq, mut one, memory, uar) = bed();
    let wqe = write(&bed, &one, &memory, b"x");
    bed.put(&mut one, &wqe);
    bed.update_record(&one);
    bed.store(0, uar, BLUE_FLAME, &wqe[..4]);
    bed.store(0, uar, BLUE_FLAME + 4, &wqe[4..8]);
    assert_eq!(bed.poll(&mut cq).map(|entry| brief(&entry)), Some((0, 0)));
    // One half of a doorbell rings nothing.
    bed.store(0, uar, BLUE_FLAME, &wqe[..4]);
    bed.store(0, uar, CQ_ARM, &u64::from(cq.cqn).to_be_bytes());
    assert_eq!(bed.rules()[0], Rule::DoorbellHalf);
}

#[test]
fn a_half_that_stays_alone_is_complained_of() {
    let (mut bed, _, _, _, uar) = bed();
    let half = |bed: &mut Bed, register| bed.store(0, uar, register, &[0; 4]);
    half(&mut bed, CQ_ARM);
    half(&mut bed, BLUE_FLAME);
    assert_eq!(bed.rules(), [Rule::DoorbellHalf], "another register");
    half(&mut bed, BLUE_FLAME);
    assert_eq!(bed.rules(), [Rule::DoorbellHalf], "the same half again");
    bed.store(0, uar, EQ_UPDATE, &[0; 4]);
    assert_eq!(bed.rules(), [Rule::DoorbellObject], "no half, and no event queue 0");
    bed.fabric.finish();
    assert_eq!(bed.rules(), [Rule::DoorbellHalf], "the end");
    bed.fabric.finish();
    assert_eq!(bed.rules(), []);
    half(&mut bed, CQ_ARM);
    bed.fabric.reset(0);
    assert_eq!(bed.rules(), [Rule::DoorbellHalf], "a reset");
}

#[test]
fn a_half_that_stays_alone_does_not_outlive_its_page() {
    let mut bed = Bed::ib();
    let alloc = crate::testing::input(0x802, 16);
    let uar = crate::layout::hca::alloc_uar_out::UAR.get32(&bed.ok(0, &alloc));
    bed.store(0, uar, CQ_ARM, &[0; 4]);
    let mut dealloc = crate::testing::input(0x803, 16);
    crate::layout::hca::dealloc_uar_in::UAR.set(&mut dealloc, uar);
    bed.command(0, &dealloc);
    assert_eq!(bed.rules(), [Rule::DoorbellHalf]);
    let uar = bed.hosts[0].uar;
    bed.store(0, uar, CQ_ARM, &[0; 4]);
    bed.fabric.functions[0].drop_objects();
    assert_eq!(bed.rules(), [Rule::DoorbellHalf], "as TEARDOWN_HCA does");
}

#[test]
fn stores_to_no_register_or_of_no_size_are_complained_of() {
    let (mut bed, _, _, _, uar) = bed();
    for (register, len) in
        [(0, 8), (0x28, 8), (EQ_ARM, 8), (CQ_ARM + 4, 4), (0x44, 4), (BLUE_FLAME, 2), (CQ_ARM, 1), (0xfff, 1)]
    {
        bed.store(0, uar, register, &[0; 8][..len]);
        assert_eq!(bed.rules(), [Rule::DoorbellRegister], "{len} bytes at {register:#x}");
    }
    bed.store(0, 0x1fff, CQ_ARM, &[0; 8]);
    assert_eq!(bed.rules(), [Rule::DoorbellUar]);
}

/// The rules that random stores to a UAR page, random work requests and random doorbell records may
/// break. None of these rules concerns commands, memory or the initialisation segment.
const MAY_BREAK: &[Rule] = &[
    Rule::DoorbellStale,
    Rule::BlueFlameContent,
    Rule::BlueFlameSingle,
    Rule::EqDoorbell,
    Rule::WqeOpcode,
    Rule::WqeQpn,
    Rule::WqeSize,
    Rule::WqeReserved,
    Rule::WqeState,
    Rule::WqeInline,
    Rule::WqeAddressVector,
    Rule::WqeAtomic,
    Rule::WqeUmr,
    Rule::WqeSignature,
    Rule::WqeFence,
    Rule::WqeChanged,
    Rule::RecvTerminator,
    Rule::RecvLength,
    Rule::CqOverrun,
];

/// The rules that so many random stores are certain to break: events and completions are not
/// consumed, and the stores come in random order.
const DO_BREAK: &[Rule] = &[
    Rule::DoorbellRegister,
    Rule::DoorbellHalf,
    Rule::DoorbellObject,
    Rule::DoorbellRecordFirst,
    Rule::DoorbellOrder,
    Rule::BlueFlameHalf,
    Rule::BlueFlameOrder,
    Rule::CqDoorbell,
    Rule::CqArmSequence,
    Rule::WqeIndex,
    Rule::WqeOverrun,
    Rule::RecvOverrun,
    Rule::EqOverrun,
];

#[test]
fn random_stores_do_no_harm() {
    let (mut bed, cq, mut one, memory, uar) = bed();
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut heard = BTreeMap::new();
    for _ in 0..20_000 {
        let mut wqe = write(&bed, &one, &memory, b"random");
        for _ in 0..next() % 4 {
            let at = next() as usize % wqe.len();
            wqe[at] = next() as u8;
        }
        one.head = next() as u16 % 32;
        bed.put(&mut one, &wqe);
        bed.poke(0, one.record + 4, &(next() as u32 & 0x1f).to_be_bytes());
        bed.poke(0, one.record, &(next() as u32 & 0xff).to_be_bytes());
        // Usually, the store is to the start of a half, where it is a doorbell.
        let register = if next() % 4 == 0 { next() % 0x800 / 8 * 8 } else { next() % 8 * HALF_SIZE };
        bed.store(0, uar, BLUE_FLAME + register, &wqe[..8]);
        // A store to the register that arms completion queues, or to a random offset.
        let (entry, len) = (next(), (next() % 9) as usize);
        match next() % 4 {
            0 => bed.store(0, uar, CQ_ARM, &(entry << 32 | u64::from(cq.cqn)).to_be_bytes()),
            _ => bed.store(0, uar, next() % 0x1000, &entry.to_be_bytes()[..len]),
        }
        bed.pass(100_000);
        for rule in bed.rules() {
            *heard.entry(rule).or_insert(0) += 1;
        }
        if bed.state(&one) == roce::engine::State::Err && next() % 2 == 0 {
            bed.name_quietly(&one, 0x50a);
            bed.init(&one, 0);
            let itself = one.clone();
            bed.connect(&one, 0, &itself);
        }
    }
    let other = heard.keys().find(|rule| !MAY_BREAK.contains(rule) && !DO_BREAK.contains(rule));
    assert_eq!(other, None, "{heard:?}");
    let silent = DO_BREAK.iter().find(|rule| !heard.contains_key(rule));
    assert_eq!(silent, None, "{heard:?}");
}
