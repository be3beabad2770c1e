//! Rings and counters that wrap around.

use super::sends::bed;
use super::*;

/// Returns an inline message, which is long enough to wrap at the end of every queue.
fn message(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + salt) as u8).collect()
}

#[test]
fn a_work_request_is_found_across_the_queues_end_wherever_that_lies() {
    // The queue has 16 blocks. A request with 300 inline bytes takes 5 of them.
    for start in 0..16u16 {
        let (mut bed, mut cq, mut one, _, memory) = bed(RC);
        for n in 0..start {
            let wqe = bed.begin(&one, opcode::WRITE).set(ctrl::CE, 0).remote(memory.va, memory.key).done();
            bed.put(&mut one, &wqe);
            bed.ring(&mut one);
            assert_eq!(one.head, n + 1);
        }
        let message = message(300, start.into());
        let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).inline(&message).done();
        bed.post(&mut one, &wqe);
        assert_eq!(bed.drain(&mut cq), [(SUCCESS, start.into())]);
        assert_eq!(bed.peek::<300>(0, memory.address)[..], message);
    }
}

#[test]
fn elements_are_found_across_the_queues_end_wherever_that_lies() {
    for start in 8..16u16 {
        let (mut bed, mut cq, mut one, _, memory) = bed(RC);
        for _ in 0..start {
            let wqe = bed.begin(&one, opcode::WRITE).set(ctrl::CE, 0).remote(memory.va, memory.key).done();
            bed.post(&mut one, &wqe);
        }
        bed.poke(0, memory.address + 0x1000, &message(256, start.into()));
        let mut wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key);
        for n in 0..16 {
            wqe = wqe.element(memory.va + 0x1000 + n * 16, 16, memory.key);
        }
        bed.post(&mut one, &wqe.done());
        assert_eq!(bed.drain(&mut cq), [(SUCCESS, start.into())]);
        assert_eq!(bed.peek::<256>(0, memory.address)[..], message(256, start.into()));
    }
}

#[test]
fn positions_of_sends_wrap_at_16_bits() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let mut last = 0;
    // Each work request has 11 blocks.
    for turn in 0..6000 {
        let wqe =
            bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).inline(&message(650, turn)).done();
        let at = one.head;
        bed.post(&mut one, &wqe);
        assert_eq!(bed.drain(&mut cq), [(SUCCESS, at.into())]);
        last = turn;
    }
    assert!(one.head < 16384, "it has wrapped");
    assert_eq!(bed.peek::<650>(0, memory.address)[..], message(650, last));
}

#[test]
fn positions_of_receives_wrap_at_16_bits() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(UC);
    let wqe_of = |bed: &Bed, one: &Pair| bed.begin(one, opcode::SEND).set(ctrl::CE, 0).inline(b"x").done();
    for turn in 0..65_600u32 {
        let wqe = wqe_of(&bed, &one);
        bed.post(&mut one, &wqe);
        bed.post_recv(&mut two, &[(memory.va, 8, memory.key)]);
        let entry = bed.poll(&mut cq).unwrap();
        assert_eq!(brief(&entry), (2, turn & 0xffff));
    }
}

#[test]
fn the_owner_bit_of_completions_turns_with_the_ring() {
    for entry_size in [64, 128] {
        let mut bed = Bed::ib();
        let mut cq = bed.cq(0, 2, entry_size);
        let (mut one, _) = bed.connected([&cq, &cq], &Shape::default());
        let memory = bed.memory(0, 1);
        for turn in 0..40u32 {
            let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).done();
            bed.post(&mut one, &wqe);
            let entry = bed.glance(&cq).unwrap();
            assert_eq!(cqe::OWNER.get32(&entry), turn >> 2 & 1);
            assert_eq!(bed.drain(&mut cq), [(SUCCESS, turn)]);
        }
    }
}

#[test]
fn a_message_of_many_packets_is_put_together() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let whole = message(0x1fff, 3);
    bed.poke(0, memory.address, &whole);
    let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va + 0x2001, memory.key);
    let wqe = wqe.element(memory.va, 0x1fff, memory.key).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
    assert_eq!(bed.peek::<0x1fff>(0, memory.address + 0x2001)[..], whole);
}
