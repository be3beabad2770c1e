//! Tests that requests in send queues and receive queues must not change before they complete. The
//! file `receives` tests shared receive queues.

use std::io::Read;

use super::*;

/// Number of basic blocks in the send queue.
const BLOCKS: u16 = 16;

/// Returns a bed with two connected queue pairs without receives. A send waits until the peer has
/// posted one.
fn bed() -> (Bed, Cq, Pair, Pair, Memory) {
    let mut bed = Bed::ib();
    let cq = bed.cq(0, 6, 64);
    let (one, two) = bed.connected([&cq, &cq], &Shape::default());
    let memory = bed.memory(0, 4);
    (bed, cq, one, two, memory)
}

/// Returns the address of byte `byte` in the work request at position `at`.
fn place(pair: &Pair, at: u16, byte: u64) -> u64 {
    let ring = u64::from(pair.blocks) * 64;
    pair.buffer + u64::from(pair.recv_slots) * pair.stride + (u64::from(at) * 64 + byte) % ring
}

/// Returns the address of byte `byte` in the receive at position `at`.
fn receive_place(pair: &Pair, at: u16, byte: u64) -> u64 {
    pair.buffer + u64::from(at) % u64::from(pair.recv_slots) * pair.stride + byte
}

fn flip(bed: &Bed, address: u64) {
    let [byte] = bed.peek(0, address);
    bed.poke(0, address, &[!byte]);
}

/// Posts a receive for the waiting send, so that the send ends.
fn release(bed: &mut Bed, two: &mut Pair, memory: &Memory) {
    bed.post_recv(two, &[(memory.va, 0x400, memory.key)]);
    bed.pass(1_000_000_000);
}

fn quiet(bed: &Bed, one: &Pair, memory: &Memory) -> Wqe {
    bed.begin(one, opcode::WRITE).set(ctrl::CE, 0).remote(memory.va + 0x1000, memory.key)
}

#[test]
fn any_byte_of_a_send_that_changes_is_reported_wherever_the_queue_ends() {
    // The request has 17 units, so 48 bytes of its fifth block are unused.
    let message: Vec<u8> = (0..250).collect();
    const LEN: u64 = 17 * 16;
    for start in 0..BLOCKS {
        let changes = (0..5).map(|block| block * 64 + u64::from(start)).chain([0, 15, LEN - 1, LEN, 319]);
        for byte in changes {
            let (mut bed, mut cq, mut one, mut two, memory) = bed();
            for _ in 0..start {
                let wqe = quiet(&bed, &one, &memory).done();
                bed.post(&mut one, &wqe);
            }
            let wqe = bed.send(&one, &message);
            bed.post(&mut one, &wqe);
            assert_eq!(bed.drain(&mut cq), []);
            flip(&bed, place(&one, start, byte));
            assert_eq!(bed.rules(), [], "it has not ended");
            release(&mut bed, &mut two, &memory);
            let expected = if byte < LEN { vec![Rule::WqeChanged] } else { vec![] };
            assert_eq!(bed.rules(), expected, "byte {byte} of the request at {start}");
            assert_eq!(bed.drain(&mut cq), [(2, 0), (SUCCESS, start.into())]);
            assert_eq!(bed.peek::<250>(0, memory.address)[..], message, "as it was posted");
        }
    }
}

#[test]
fn a_complaint_names_the_request_and_the_dword() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed();
    let wqe = bed.send(&one, b"four score");
    bed.post(&mut one, &wqe);
    bed.poke(0, place(&one, 0, 0x16), b"xy");
    release(&mut bed, &mut two, &memory);
    let complaints = bed.fabric.take_complaints();
    let expected = format!("queue pair {:#x} at 0: dword 0x14 was 0x666f7572 and is 0x666f7879", one.qpn);
    assert_eq!(complaints.iter().map(|complaint| &complaint.what).collect::<Vec<_>>(), [&expected]);
    bed.drain(&mut cq);
}

#[test]
fn a_send_that_ends_without_a_completion_is_compared_as_well() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed();
    let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).inline(b"x").done();
    bed.post(&mut one, &wqe);
    flip(&bed, place(&one, 0, 20));
    release(&mut bed, &mut two, &memory);
    assert_eq!((bed.rules(), bed.drain(&mut cq)), (vec![Rule::WqeChanged], vec![(2, 0)]));
}

#[test]
fn requests_are_compared_before_the_completion_allows_the_driver_to_change_them() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed();
    let (mut lines, trace) = std::io::pipe().unwrap();
    bed.fabric.functions[0].core.log.trace = Trace::to(trace);
    let wqe = bed.send(&one, b"x");
    bed.put(&mut one, &wqe);
    let wqe = bed.nop(&one);
    bed.put(&mut one, &wqe);
    bed.ring(&mut one);
    // The NOP was held for the rest of a BlueFlame store.
    bed.fabric.functions[0].release(None);
    flip(&bed, place(&one, 0, 20));
    flip(&bed, place(&one, 1, 15));
    bed.post_recv(&mut two, &[(memory.va, 8, memory.key)]);
    bed.post_recv(&mut two, &[(memory.va, 8, memory.key)]);
    bed.pass(1_000_000_000);
    flip(&bed, receive_place(&two, 1, 0));
    let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).inline(b"x").done();
    bed.post(&mut one, &wqe);
    bed.fabric.functions[0].core.log.trace = Trace::off();
    let mut text = String::new();
    lines.read_to_string(&mut text).unwrap();
    let kinds = text.lines().filter_map(|line| line.split(' ').nth(1));
    let kinds: Vec<_> = kinds.filter(|kind| ["complaint", "cqe"].contains(kind)).collect();
    // In order: the first receive, the send, the NOP (which the model executes itself), the second
    // receive.
    assert_eq!(kinds, ["cqe", "complaint", "cqe", "complaint", "cqe", "complaint", "cqe"]);
    assert_eq!(bed.rules(), [Rule::WqeChanged, Rule::WqeChanged, Rule::RecvChanged]);
    assert_eq!(bed.drain(&mut cq), [(2, 0), (SUCCESS, 0), (SUCCESS, 1), (2, 1)]);
}

#[test]
fn every_request_that_a_doorbell_announces_is_copied_at_the_doorbell() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed();
    let first = bed.send(&one, b"x");
    bed.put(&mut one, &first);
    // This NOP is executed once the first send has ended, together with the third request.
    let second = bed.nop(&one);
    bed.put(&mut one, &second);
    let third = quiet(&bed, &one, &memory).inline(b"as posted").done();
    bed.put(&mut one, &third);
    bed.ring(&mut one);
    flip(&bed, place(&one, 1, 15));
    flip(&bed, place(&one, 2, 36));
    release(&mut bed, &mut two, &memory);
    assert_eq!(bed.rules(), [Rule::WqeChanged; 2]);
    assert_eq!(bed.drain(&mut cq), [(2, 0), (SUCCESS, 0), (SUCCESS, 1)]);
    assert_eq!(&bed.peek::<9>(0, memory.address + 0x1000), b"as posted");
}

#[test]
fn a_send_that_changes_before_it_is_flushed_is_reported() {
    let (mut bed, mut cq, mut one, _, _) = bed();
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    flip(&bed, place(&one, 0, 20));
    bed.name_quietly(&one, 0x507);
    assert_eq!(bed.rules(), [Rule::WqeChanged]);
    assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some((SEND_ERROR, 0x05)));
}

#[test]
fn requests_that_a_reset_discards_are_not_compared() {
    let (mut bed, mut cq, mut one, two, memory) = bed();
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    flip(&bed, place(&one, 0, 20));
    bed.name(&one, 0x50a);
    one.head = 0;
    bed.update_record(&one);
    bed.init(&one, RC);
    bed.connect(&one, RC, &two);
    let wqe = quiet(&bed, &one, &memory).set(ctrl::CE, 2).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
}

#[test]
fn requests_of_a_ring_that_is_inconsistent_are_not_compared() {
    let (mut bed, mut cq, mut one, _, memory) = bed();
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    flip(&bed, place(&one, 0, 20));
    one.head = 40;
    let wqe = quiet(&bed, &one, &memory).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.rules(), [Rule::WqeOverrun]);
    assert_eq!(bed.drain(&mut cq).len(), 1);
}

#[test]
fn nothing_is_compared_after_a_fatal_error_of_the_device() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed();
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    flip(&bed, place(&one, 0, 20));
    let now = bed.now;
    bed.fabric.functions[0].core.iseg.fail(1, now);
    release(&mut bed, &mut two, &memory);
    assert_eq!((bed.rules(), bed.drain(&mut cq).len()), (vec![], 2));
}

#[test]
fn a_receive_that_changes_is_reported_wherever_the_queue_ends() {
    // Bytes of the element and of the terminator count; unused bytes after the terminator do not.
    for (byte, changed) in [(0, true), (15, true), (16, true), (31, true), (32, false), (63, false)] {
        for start in 0..6u16 {
            let (mut bed, mut cq, mut one, mut two, memory) = bed();
            let send = |bed: &mut Bed, one: &mut Pair| {
                let wqe = bed.begin(one, opcode::SEND).set(ctrl::CE, 0).inline(b"here").done();
                bed.post(one, &wqe);
            };
            for _ in 0..start {
                bed.post_recv(&mut two, &[(memory.va, 8, memory.key)]);
                send(&mut bed, &mut one);
            }
            // When the first packet arrives, the model reads both receives.
            bed.post_recv(&mut two, &[(memory.va, 8, memory.key)]);
            bed.post_recv(&mut two, &[(memory.va + 0x100, 8, memory.key)]);
            send(&mut bed, &mut one);
            flip(&bed, receive_place(&two, start + 1, byte));
            assert_eq!(bed.rules(), []);
            send(&mut bed, &mut one);
            let expected = if changed { vec![Rule::RecvChanged] } else { vec![] };
            assert_eq!(bed.rules(), expected, "byte {byte} of the receive at {}", start + 1);
            assert_eq!(bed.drain(&mut cq).last(), Some(&(2, u32::from(start) + 1)));
            assert_eq!(&bed.peek::<4>(0, memory.address + 0x100), b"here", "as it was posted");
        }
    }
}

#[test]
fn a_terminator_that_comes_late_is_reported() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed();
    let element = (memory.va, 8, memory.key);
    bed.post_recv(&mut two, &[element]);
    // The list of an older receive fills the rest of the entry.
    bed.post_recv(&mut two, &[element; 4]);
    for late in [false, true] {
        if late {
            bed.poke(0, receive_place(&two, 1, 16), &list(&[], 1));
        }
        let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).inline(b"x").done();
        bed.post(&mut one, &wqe);
        assert_eq!(bed.rules(), if late { vec![Rule::RecvChanged] } else { vec![] });
    }
    assert_eq!(bed.drain(&mut cq), [(2, 0), (2, 1)]);
}

#[test]
fn a_receive_that_changes_before_it_is_flushed_is_reported() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed();
    for _ in 0..2 {
        bed.post_recv(&mut two, &[(memory.va, 8, memory.key)]);
    }
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    flip(&bed, receive_place(&two, 1, 9));
    bed.name_quietly(&two, 0x507);
    assert_eq!(bed.rules(), [Rule::RecvChanged]);
    assert_eq!(bed.drain(&mut cq).len(), 3, "a flushed one and two of the message");
}
