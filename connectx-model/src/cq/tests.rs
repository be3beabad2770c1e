//! The data path of completion queues: free space, arming, consumer indexes.

use crate::complaint::Rule;
use crate::layout::wqe::ctrl;
use crate::qp::request::opcode;
use crate::qp::tests::{Bed, Cq, Memory, Pair, Shape};

const CQ_ERROR_EVENT: u32 = 0x04;

/// Returns a completion queue for 4 completions, and two connected queue pairs that use it.
fn bed() -> (Bed, Cq, Pair, Pair, Memory) {
    let mut bed = Bed::ib();
    let cq = bed.cq(0, 2, 64);
    let (one, two) = bed.connected([&cq, &cq], &Shape::default());
    let memory = bed.memory(0, 1);
    (bed, cq, one, two, memory)
}

pub(super) fn write(bed: &mut Bed, pair: &mut Pair, memory: &Memory) {
    let wqe = bed.begin(pair, opcode::WRITE).remote(memory.va, memory.key).done();
    bed.post(pair, &wqe);
}

/// Posts a receive, and an unsignalled send to it that is `solicited` or not. Only the receive
/// completes.
pub(super) fn send(bed: &mut Bed, pair: &mut Pair, peer: &mut Pair, solicited: bool) {
    bed.post_recv(peer, &[]);
    let wqe = bed.begin(pair, opcode::SEND).set(ctrl::CE, 0).set(ctrl::SE, solicited.into()).done();
    bed.post(pair, &wqe);
}

#[test]
fn a_queue_that_overruns_is_in_error_and_takes_its_queue_pairs_along() {
    let (mut bed, cq, mut one, _, memory) = bed();
    for _ in 0..4 {
        write(&mut bed, &mut one, &memory);
    }
    assert_eq!(bed.rules(), []);
    let before: [u8; 64] = bed.peek(0, cq.buffer);
    write(&mut bed, &mut one, &memory);
    assert_eq!(bed.rules(), [Rule::CqOverrun]);
    assert_eq!(bed.events(0), [CQ_ERROR_EVENT, 0x05]);
    assert_eq!(bed.state(&one), roce::engine::State::Err);
    assert_eq!(bed.peek::<64>(0, cq.buffer), before, "what was not read is not overwritten");
}

#[test]
fn a_queue_that_ignores_overruns_goes_on() {
    let (mut bed, cq, mut one, _, memory) = bed();
    bed.fabric.functions[0].core.cqs.get_mut(&cq.cqn).unwrap().ignore_overrun = true;
    for _ in 0..9 {
        write(&mut bed, &mut one, &memory);
    }
    assert_eq!((bed.rules(), bed.events(0)), (vec![], vec![]));
}

#[test]
fn an_armed_queue_tells_of_the_next_completion_once() {
    let (mut bed, mut cq, mut one, _, memory) = bed();
    write(&mut bed, &mut one, &memory);
    assert_eq!(bed.completion_events(0), 0, "nobody asked");
    bed.poll(&mut cq).unwrap();
    bed.arm(&cq, false);
    assert_eq!(bed.completion_events(0), 0);
    write(&mut bed, &mut one, &memory);
    write(&mut bed, &mut one, &memory);
    assert_eq!(bed.completion_events(0), 1);
}

#[test]
fn unread_completions_from_before_arming_count() {
    let (mut bed, cq, mut one, _, memory) = bed();
    write(&mut bed, &mut one, &memory);
    bed.arm(&cq, false);
    assert_eq!(bed.completion_events(0), 1);
    bed.arm(&cq, true);
    assert_eq!(bed.completion_events(0), 0, "none of them was solicited");
}

#[test]
fn a_queue_that_waits_for_solicited_completions_hears_of_those_and_of_errors() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed();
    bed.arm(&cq, true);
    send(&mut bed, &mut one, &mut two, false);
    assert_eq!(bed.completion_events(0), 0);
    bed.poll(&mut cq).unwrap();
    send(&mut bed, &mut one, &mut two, true);
    assert_eq!(bed.completion_events(0), 1);
    bed.poll(&mut cq).unwrap();
    cq.sequence = 1;
    bed.arm(&cq, true);
    let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key ^ 1).inline(b"no").done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.completion_events(0), 1);
}

#[test]
fn the_arm_words_of_record_and_doorbell_are_the_same() {
    let (mut bed, cq, mut one, _, memory) = bed();
    let uar = bed.hosts[0].uar;
    bed.store(0, uar, 0x20, &(1u64 << 56 | u64::from(cq.cqn)).to_be_bytes());
    assert_eq!(bed.rules(), [Rule::CqArmSequence]);
    bed.fabric.functions[0].core.ring_cq(uar, 1 << 63 | u64::from(cq.cqn));
    assert_eq!(bed.rules(), [Rule::CqDoorbell]);
    write(&mut bed, &mut one, &memory);
    assert_eq!(bed.completion_events(0), 0, "it arms nothing");
}

#[test]
fn the_sequence_number_counts_no_more_events_than_there_were() {
    let (mut bed, mut cq, mut one, _, memory) = bed();
    bed.arm(&cq, false);
    write(&mut bed, &mut one, &memory);
    bed.poll(&mut cq).unwrap();
    // The driver may or may not have counted the event in the sequence number.
    bed.arm(&cq, false);
    cq.sequence = 1;
    bed.arm(&cq, false);
    assert_eq!(bed.rules(), []);
    write(&mut bed, &mut one, &memory);
    bed.poll(&mut cq).unwrap();
    assert_eq!(bed.completion_events(0), 2);
    cq.sequence = 3;
    bed.arm(&cq, false);
    assert_eq!(bed.rules(), [Rule::CqArmSequence]);
    write(&mut bed, &mut one, &memory);
    assert_eq!(bed.completion_events(0), 0, "it arms nothing");
}

#[test]
fn a_consumer_index_stays_between_its_last_value_and_the_producer() {
    for (index, read) in [(3u32, 1), (0, 1)] {
        let (mut bed, mut cq, mut one, _, memory) = bed();
        for _ in 0..read {
            write(&mut bed, &mut one, &memory);
            bed.poll(&mut cq).unwrap();
        }
        bed.arm(&cq, false);
        bed.poke(0, cq.record, &index.to_be_bytes());
        write(&mut bed, &mut one, &memory);
        assert_eq!(bed.rules(), [Rule::CqDoorbell], "{index} after {read}");
        bed.completion_events(0);
        cq.consumer = index;
        cq.sequence = 1;
        bed.arm(&cq, false);
        assert_eq!(bed.rules(), [Rule::CqDoorbell], "{index} after {read}");
        write(&mut bed, &mut one, &memory);
        assert_eq!(bed.completion_events(0), 0, "it arms nothing");
        bed.rules();
    }
}

#[test]
fn doorbells_of_queues_that_are_not_there_or_elsewhere_are_refused() {
    let (mut bed, cq, ..) = bed();
    let uar = bed.hosts[0].uar;
    bed.store(0, uar, 0x20, &0x00aa_aaaau64.to_be_bytes());
    assert_eq!(bed.rules(), [Rule::DoorbellObject]);
    let other = crate::layout::hca::alloc_uar_out::UAR.get32(&bed.ok(0, &crate::testing::input(0x802, 16)));
    bed.store(0, other, 0x20, &u64::from(cq.cqn).to_be_bytes());
    assert_eq!(bed.rules(), [Rule::DoorbellUar]);
    bed.store(0, uar, 0x20, &(1u64 << 63 | u64::from(cq.cqn)).to_be_bytes());
    assert_eq!(bed.rules(), [Rule::CqDoorbell]);
}

#[test]
fn completions_that_are_no_memory_are_complained_of() {
    let (mut bed, cq, mut one, _, memory) = bed();
    let pages = crate::pages::Pages::new(vec![1 << 40], 12, 0, 0x100).unwrap();
    bed.fabric.functions[0].core.cqs.get_mut(&cq.cqn).unwrap().pages = pages;
    write(&mut bed, &mut one, &memory);
    assert_eq!(bed.rules().first(), Some(&Rule::DmaFault));
}

#[test]
fn a_sequence_number_that_counts_no_events_is_noted_at_the_queues_end() {
    // The advance of the sequence number after each event, and the number of notes.
    for (advance, noted) in [(0, 1), (1, 0)] {
        let (mut bed, mut cq, mut one, two, memory) = bed();
        for _ in 0..3 {
            // The same sequence number may be used again before an event is raised.
            bed.arm(&cq, true);
            bed.arm(&cq, false);
            write(&mut bed, &mut one, &memory);
            bed.poll(&mut cq).unwrap();
            assert_eq!(bed.completion_events(0), 1, "the queue is armed in any case");
            cq.sequence = (cq.sequence + advance) % 4;
        }
        for pair in [&one, &two] {
            bed.name(pair, 0x501);
        }
        bed.ok(0, &crate::cmd::bench::naming(0x401, cq.cqn));
        assert_eq!(bed.fabric.take_notes().len(), noted, "advance by {advance}");
    }
}
