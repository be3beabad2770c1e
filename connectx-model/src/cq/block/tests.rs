//! Compressed blocks: their completions, their slots, and the owner bits that a driver must
//! rewrite.

use super::*;
use crate::layout::Field;
use crate::layout::wqe::ctrl;
use crate::qp::request::opcode;
use crate::qp::tests::{Bed, Cq, Memory, Pair, Shape, UC, brief, error};

const SHAPE: Shape = Shape { service: 0, log_sq: 7, log_rq: 6, log_stride: 6, more: &[] };

/// Returns the context fields that enable compression in this format.
const fn compressed(format: u32) -> [(Field, u32); 2] {
    [(cqc::CQE_COMP_EN, 1), (cqc::MINI_CQE_RES_FORMAT, format)]
}

/// Two connected queue pairs, with one completion queue for sends and another for receives.
struct Rig {
    bed: Bed,
    sends: Cq,
    receives: Cq,
    one: Pair,
    two: Pair,
    memory: Memory,
}

impl Rig {
    fn new(log_size: u32, entry_size: u64, more: &[(Field, u32)]) -> Self {
        let mut bed = Bed::ib();
        let [sends, receives] = [(); 2].map(|()| bed.cq_with(0, log_size, entry_size, more));
        let (one, two) = bed.connected([&sends, &receives], &SHAPE);
        let memory = bed.memory(0, 1);
        Self { bed, sends, receives, one, two, memory }
    }

    /// Posts a receive, and places an inline send of `length` bytes for it in the send queue
    /// without ringing the doorbell.
    fn send(&mut self, length: usize, more: &[(Field, u32)]) {
        let at = u64::from(self.two.recv_head % 32) * 64;
        self.bed.post_recv(&mut self.two, &[(self.memory.va + at, 64, self.memory.key)]);
        let mut wqe = self.bed.begin(&self.one, opcode::SEND).set(ctrl::CE, 0);
        for (field, value) in more {
            wqe = wqe.set(*field, *value);
        }
        let wqe = wqe.inline(&vec![7; length]).done();
        self.bed.put(&mut self.one, &wqe);
    }

    /// Places a signalled write, or a signalled read of `length` bytes, in the send queue without
    /// ringing the doorbell.
    fn fetch(&mut self, length: u32) {
        let Memory { va, key, .. } = self.memory;
        let wqe = if length == 0 {
            self.bed.begin(&self.one, opcode::WRITE).remote(va, key).done()
        } else {
            self.bed.begin(&self.one, opcode::READ).remote(va, key).element(va + 64, length, key).done()
        };
        self.bed.put(&mut self.one, &wqe);
    }

    fn ring(&mut self) {
        self.bed.ring(&mut self.one);
    }
}

fn place(cq: &Cq, index: u32) -> u64 {
    let slot = u64::from(index & ((1 << cq.log_size) - 1));
    cq.buffer + (slot + 1) * cq.entry_size - 64
}

/// Reads completions as a driver does: expands blocks and rewrites the owner bits. Returns the
/// completions, and a list of block sizes, in which a plain entry counts as a block of 1.
fn read(bed: &mut Bed, cq: &mut Cq, format: u32) -> (Vec<[u8; 64]>, Vec<u32>) {
    let (mut entries, mut sizes) = (Vec::new(), Vec::new());
    while let Some(title) = bed.glance(cq) {
        let first = cq.consumer;
        let mut count = 1;
        if cqe::FORMAT.get32(&title) == COMPRESSED {
            count = cqe::BYTE_CNT.get32(&title);
            let mut array = [0; 64];
            for number in 0..count {
                let place_of_array = if number == 0 { Some(1) } else { (number % 8 == 0).then_some(number) };
                if let Some(at) = place_of_array {
                    array = bed.peek(cq.function, place(cq, first + at));
                }
                let mini = &array[number as usize % 8 * 8..][..8];
                let mut entry = title;
                cqe::FORMAT.set(&mut entry, 0u32);
                entry[44..48].copy_from_slice(&mini[4..]);
                if entry[63] >> 4 == 0 {
                    entry[60..62].copy_from_slice(&mini[..2]);
                    entry[56] = mini[2];
                } else {
                    let counter = cqe::WQE_COUNTER.get32(&title) as u16;
                    cqe::WQE_COUNTER.set(&mut entry, counter.wrapping_add(number as u16));
                    match format {
                        0 => entry[12..16].copy_from_slice(&mini[..4]),
                        _ => entry[20..22].copy_from_slice(&mini[..2]),
                    }
                }
                entries.push(entry);
            }
            for index in first..first + count {
                let turn = (index >> cq.log_size & 1) as u8;
                bed.poke(cq.function, place(cq, index) + 63, &[turn]);
            }
        } else {
            entries.push(title);
        }
        sizes.push(count);
        cq.consumer = (first + count) & 0xff_ffff;
    }
    bed.poke(cq.function, cq.record, &cq.consumer.to_be_bytes());
    (entries, sizes)
}

/// Returns completions with zeros in the fields that depend on time and on the position in the
/// completion queue.
fn lasting(mut entries: Vec<[u8; 64]>) -> Vec<[u8; 64]> {
    for entry in &mut entries {
        cqe::OWNER.set(entry, 0u32);
        cqe::TIMESTAMP.set(entry, 0u64);
    }
    entries
}

#[test]
fn completions_of_one_call_are_those_of_a_queue_without_compression() {
    for entry_size in [64, 128] {
        for format in [0, 1, 3] {
            let mut plain = Rig::new(6, entry_size, &[]);
            let mut rig = Rig::new(6, entry_size, &compressed(format));
            for count in 1..=17 {
                for rig in [&mut plain, &mut rig] {
                    for number in 0..count {
                        rig.send(1 + number % 40, &[]);
                    }
                    rig.ring();
                    for number in 0..count as u32 {
                        rig.fetch(number % 3);
                    }
                    rig.ring();
                }
                for of_sends in [false, true] {
                    let cq = |rig: &mut Rig| if of_sends { rig.sends.clone() } else { rig.receives.clone() };
                    let [mut slow, mut fast] = [cq(&mut plain), cq(&mut rig)];
                    let (expected, ones) = read(&mut plain.bed, &mut slow, 0);
                    let (entries, sizes) = read(&mut rig.bed, &mut fast, format);
                    assert_eq!(ones, vec![1; count]);
                    assert_eq!(sizes, [count as u32], "{format}, of sends: {of_sends}");
                    // The queue pairs in both rigs have the same numbers.
                    assert_eq!(lasting(entries), lasting(expected), "{format}, {count}");
                    if of_sends {
                        (plain.sends, rig.sends) = (slow, fast);
                    } else {
                        (plain.receives, rig.receives) = (slow, fast);
                    }
                }
            }
        }
    }
}

#[test]
fn a_block_leaves_the_slots_between_its_arrays_alone() {
    let mut rig = Rig::new(5, 64, &compressed(1));
    for _ in 0..17 {
        rig.send(3, &[]);
    }
    let before: Vec<[u8; 64]> = (0..32).map(|index| rig.bed.peek(0, place(&rig.receives, index))).collect();
    rig.ring();
    for (index, before) in before.iter().enumerate() {
        let now: [u8; 64] = rig.bed.peek(0, place(&rig.receives, index as u32));
        assert_eq!(now != *before, [0, 1, 8, 16].contains(&index), "{index}");
    }
    let title = rig.bed.glance(&rig.receives).unwrap();
    assert_eq!((cqe::BYTE_CNT.get(&title), cqe::FORMAT.get32(&title)), (17, COMPRESSED));
    // The bytes after the last mini entry would look like a completion in the next round.
    let last: [u8; 64] = rig.bed.peek(0, place(&rig.receives, 16));
    assert_eq!((last[4..8].to_vec(), last[63]), (vec![0, 0, 0, 3], 1));
    read(&mut rig.bed, &mut rig.receives, 1);
}

#[test]
fn a_completion_that_differs_in_another_field_begins_a_block() {
    let mut rig = Rig::new(6, 64, &compressed(0));
    for _ in 0..3 {
        rig.send(1, &[]);
    }
    rig.send(1, &[(ctrl::SE, 1)]);
    for _ in 0..2 {
        rig.send(1, &[(ctrl::OPCODE, opcode::SEND_IMM.into()), (ctrl::IMM, 9)]);
    }
    rig.send(1, &[(ctrl::OPCODE, opcode::SEND_IMM.into()), (ctrl::IMM, 8)]);
    rig.ring();
    let (entries, sizes) = read(&mut rig.bed, &mut rig.receives, 0);
    assert_eq!(sizes, [3, 1, 2, 1]);
    assert_eq!(entries.iter().map(|entry| brief(entry).1).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_block_has_the_maximum_of_completions_at_most() {
    let mut rig = Rig::new(6, 64, &compressed(0));
    for _ in 0..33 {
        rig.send(1, &[]);
    }
    rig.ring();
    assert_eq!(read(&mut rig.bed, &mut rig.receives, 0).1, [30, 3]);
}

#[test]
fn an_error_and_its_flushes_are_entries_of_their_own() {
    let mut rig = Rig::new(5, 64, &compressed(0));
    for _ in 0..2 {
        rig.send(4, &[]);
    }
    rig.bed.post_recv(&mut rig.two, &[]);
    rig.bed.post_recv(&mut rig.two, &[]);
    let wqe = rig.bed.begin(&rig.one, opcode::SEND).set(ctrl::CE, 0).inline(&[1; 9]).done();
    rig.bed.put(&mut rig.one, &wqe);
    rig.ring();
    let (entries, sizes) = read(&mut rig.bed, &mut rig.receives, 0);
    assert_eq!(sizes, [2, 1, 1]);
    assert_eq!(error(&entries[2]), (14, 1));
    assert_eq!(error(&entries[3]), (14, 5));
    assert_eq!(error(&rig.bed.poll(&mut rig.sends).unwrap()).0, 13);
}

#[test]
fn a_completion_with_payload_is_an_entry_of_its_own() {
    let mut bed = Bed::with(crate::port::PortKind::Ib, 1, true);
    let [sends, mut receives] = [(); 2].map(|()| bed.cq_with(0, 4, 64, &compressed(0)));
    let shape = Shape { more: &[(crate::layout::qp::qpc::CS_RES, 1)], ..SHAPE };
    let (one, two) = bed.connected([&sends, &receives], &shape);
    let memory = bed.memory(0, 1);
    let mut rig = Rig { bed, sends, receives: receives.clone(), one, two, memory };
    // Payload of more than 32 bytes does not fit into a 64-byte entry.
    for length in [40, 41, 4, 5, 42, 43] {
        rig.send(length, &[]);
    }
    rig.ring();
    let mut lengths = Vec::new();
    while let Some(entry) = rig.bed.poll(&mut receives) {
        let format = cqe::FORMAT.get32(&entry);
        lengths.push((format, cqe::BYTE_CNT.get32(&entry)));
        if format == COMPRESSED {
            for index in 0..2 {
                let at = receives.consumer - 1 + index;
                rig.bed.poke(0, place(&receives, at) + 63, &[0]);
            }
            receives.consumer += 1;
            rig.bed.poke(0, receives.record, &receives.consumer.to_be_bytes());
        }
    }
    assert_eq!(lengths, [(COMPRESSED, 2), (1, 4), (1, 5), (COMPRESSED, 2)]);
}

#[test]
fn a_block_raises_one_event() {
    let mut rig = Rig::new(4, 64, &compressed(0));
    rig.bed.arm(&rig.receives, false);
    for _ in 0..5 {
        rig.send(1, &[]);
    }
    rig.ring();
    assert_eq!(rig.bed.completion_events(0), 1);
    read(&mut rig.bed, &mut rig.receives, 0);
    rig.receives.sequence = 1;
    rig.bed.arm(&rig.receives, true);
    for solicited in [0, 0, 1, 1] {
        rig.send(1, &[(ctrl::SE, solicited)]);
    }
    rig.ring();
    assert_eq!(rig.bed.completion_events(0), 1);
    assert_eq!(read(&mut rig.bed, &mut rig.receives, 0).1, [2, 2]);
}

#[test]
fn completions_of_two_calls_are_two_blocks() {
    let mut rig = Rig::new(4, 64, &compressed(0));
    for count in [3, 2, 1] {
        for _ in 0..count {
            rig.send(1, &[]);
        }
        rig.ring();
    }
    assert_eq!(read(&mut rig.bed, &mut rig.receives, 0).1, [3, 2, 1]);
}

#[test]
fn a_queue_pair_that_is_reset_leaves_its_blocks() {
    let mut rig = Rig::new(4, 64, &compressed(0));
    for _ in 0..3 {
        rig.send(1, &[]);
    }
    // The command closes the block that the doorbell has begun.
    let doorbell = rig.one.last[..8].to_vec();
    rig.bed.update_record(&rig.one);
    let uar = rig.bed.hosts[0].uar;
    let register = rig.bed.register(&rig.one);
    rig.bed.store(0, uar, register, &doorbell);
    rig.bed.name(&rig.two, 0x50a);
    assert_eq!(read(&mut rig.bed, &mut rig.receives, 0).1, [3]);
}

#[test]
fn an_open_block_counts_as_unread() {
    let mut rig = Rig::new(2, 64, &compressed(0));
    for _ in 0..5 {
        rig.send(1, &[]);
    }
    rig.ring();
    assert_eq!(rig.bed.rules(), [Rule::CqOverrun]);
    // The completions before the overrun have been written.
    assert_eq!(read(&mut rig.bed, &mut rig.receives, 0).1, [4]);
}

#[test]
fn owner_bits_that_the_next_turn_takes_for_its_own_are_reported() {
    for (rewritten, broken) in [(0..0, true), (0..9, true), (0..10, false), (1..10, false)] {
        let mut rig = Rig::new(4, 64, &compressed(0));
        // One round through the ring gives all slots an owner bit.
        for _ in 0..2 {
            for _ in 0..8 {
                rig.send(1, &[]);
            }
            rig.ring();
            read(&mut rig.bed, &mut rig.receives, 0);
        }
        for _ in 0..10 {
            rig.send(1, &[]);
        }
        rig.ring();
        for index in rewritten.clone() {
            rig.bed.poke(0, place(&rig.receives, 16 + index) + 63, &[1]);
        }
        rig.receives.consumer += 10;
        rig.bed.poke(0, rig.receives.record, &rig.receives.consumer.to_be_bytes());
        rig.send(1, &[]);
        rig.ring();
        assert_eq!(rig.bed.rules() == [Rule::CqOwner], broken, "{rewritten:?}");
    }
}

#[test]
fn slots_that_are_marked_as_not_written_are_as_good() {
    let mut rig = Rig::new(4, 64, &compressed(0));
    for _ in 0..10 {
        rig.send(1, &[]);
    }
    rig.ring();
    for index in 0..10 {
        rig.bed.poke(0, place(&rig.receives, index) + 63, &[0xf1]);
    }
    // The driver may return slots before it has read the rest of their block.
    for consumer in [3u32, 10] {
        rig.bed.poke(0, rig.receives.record, &consumer.to_be_bytes());
        rig.send(1, &[]);
        rig.ring();
    }
    assert_eq!(rig.bed.rules(), []);
}

#[test]
fn other_services_have_blocks_too() {
    let mut bed = Bed::ib();
    let more = compressed(0);
    let [sends, mut receives] = [(); 2].map(|()| bed.cq_with(0, 4, 64, &more));
    let shape = Shape { service: UC, ..SHAPE };
    let (mut one, mut two) = bed.connected([&sends, &receives], &shape);
    for _ in 0..4 {
        bed.post_recv(&mut two, &[]);
        let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).done();
        bed.put(&mut one, &wqe);
    }
    bed.ring(&mut one);
    assert_eq!(read(&mut bed, &mut receives, 0).1, [4]);
}
