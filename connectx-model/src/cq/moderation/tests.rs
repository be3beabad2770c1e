//! Completion event moderation: counts, periods, arming, solicited completions, changes.

use crate::cmd::bench::naming;
use crate::cq::tests::{send, write};
use crate::layout::Field;
use crate::layout::cq::{cqc, modify_cq_in};
use crate::qp::tests::{Bed, Cq, Memory, Pair, Shape};
use crate::testing::input;

/// A completion queue with 16 entries, and two connected queue pairs that use it.
struct Rig {
    bed: Bed,
    cq: Cq,
    one: Pair,
    two: Pair,
    memory: Memory,
}

impl Rig {
    /// Returns a rig whose completion queue raises one event per `count` completions, or `period`
    /// µs after the first of them.
    fn new(count: u32, period: u32) -> Self {
        Self::with(&[(cqc::CQ_MAX_COUNT, count), (cqc::CQ_PERIOD, period)])
    }

    fn with(more: &[(Field, u32)]) -> Self {
        let mut bed = Bed::ib();
        let cq = bed.cq_with(0, 4, 64, more);
        let (one, two) = bed.connected([&cq, &cq], &Shape::default());
        let memory = bed.memory(0, 1);
        Self { bed, cq, one, two, memory }
    }

    /// Completes `count` writes. Returns the number of completion events raised.
    fn write(&mut self, count: u32) -> usize {
        for _ in 0..count {
            write(&mut self.bed, &mut self.one, &self.memory);
        }
        self.bed.completion_events(0)
    }

    /// Completes a receive. Returns the number of completion events raised.
    fn receive(&mut self, solicited: bool) -> usize {
        send(&mut self.bed, &mut self.one, &mut self.two, solicited);
        self.bed.completion_events(0)
    }

    /// Arms the completion queue. Returns the number of completion events raised.
    fn arm(&mut self, solicited: bool) -> usize {
        self.bed.arm(&self.cq, solicited);
        self.bed.completion_events(0)
    }

    /// Handles a completion event: reads all completions, then arms the queue for the next event.
    fn handled(&mut self) {
        self.bed.drain(&mut self.cq);
        self.cq.sequence = (self.cq.sequence + 1) % 4;
        assert_eq!(self.arm(false), 0);
    }

    /// Lets time pass. Returns the number of completion events raised.
    fn pass(&mut self, nanoseconds: u64) -> usize {
        self.bed.pass(nanoseconds);
        self.bed.completion_events(0)
    }

    fn modify(&mut self, count: u32, period: u32) {
        let mut modify = input(0x403, modify_cq_in::PAS);
        modify_cq_in::CQN.set(&mut modify, self.cq.cqn);
        modify_cq_in::MODIFY_FIELD_SELECT.set(&mut modify, 3u32);
        let context = modify_cq_in::CQ_CONTEXT.bytes_mut(&mut modify);
        cqc::CQ_MAX_COUNT.set(context, count);
        cqc::CQ_PERIOD.set(context, period);
        self.bed.ok(0, &modify);
    }
}

/// A time longer than any period, in nanoseconds: the period field has 12 bits, in microseconds.
const LONG: u64 = 5_000_000;

#[test]
fn an_armed_queue_raises_one_event_for_each_count_of_completions() {
    let mut rig = Rig::new(3, 4095);
    assert_eq!(rig.write(5), 0, "it is not armed");
    rig.bed.drain(&mut rig.cq);
    rig.arm(false);
    for _ in 0..2 {
        assert_eq!(rig.write(2), 0);
        assert_eq!(rig.write(1), 1);
        assert_eq!(rig.write(1), 0, "it is not armed any more");
        rig.handled();
    }
    assert_eq!(rig.pass(LONG), 0);
    assert_eq!(rig.bed.rules(), []);
}

#[test]
fn the_period_begins_with_the_first_completion() {
    let mut rig = Rig::new(9, 10);
    rig.arm(false);
    for _ in 0..2 {
        assert_eq!(rig.pass(LONG), 0, "no completion, no event");
        assert_eq!(rig.write(1), 0);
        assert_eq!(rig.pass(9_000), 0);
        assert_eq!(rig.write(1), 0);
        assert_eq!(rig.pass(999), 0);
        assert_eq!(rig.pass(1), 1);
        assert_eq!(rig.pass(LONG), 0, "an arm has one event");
        rig.handled();
    }
}

#[test]
fn the_longest_period_is_4095_microseconds() {
    let mut rig = Rig::new(0xffff, 0xfff);
    rig.arm(false);
    assert_eq!(rig.write(1), 0);
    assert_eq!(rig.pass(4_094_999), 0);
    assert_eq!(rig.pass(1), 1);
}

#[test]
fn a_count_or_a_period_of_zero_and_a_count_of_one_delay_nothing() {
    for (count, period) in [(0, 0), (0, 10), (10, 0), (1, 10)] {
        let mut rig = Rig::new(count, period);
        rig.arm(false);
        assert_eq!(rig.write(1), 1, "{count} {period}");
        assert_eq!(rig.bed.fabric.functions[0].core.next_held, None);
    }
}

#[test]
fn each_queue_has_its_own_period() {
    let mut rig = Rig::new(9, 30);
    let other = rig.bed.cq_with(0, 4, 64, &[(cqc::CQ_MAX_COUNT, 9), (cqc::CQ_PERIOD, 10)]);
    let (mut third, _) = rig.bed.connected([&other, &other], &Shape::default());
    rig.arm(false);
    rig.bed.arm(&other, false);
    assert_eq!(rig.write(1), 0);
    write(&mut rig.bed, &mut third, &rig.memory);
    assert_eq!(rig.pass(9_999), 0);
    assert_eq!(rig.pass(1), 1);
    assert_eq!(rig.pass(19_999), 0);
    assert_eq!(rig.pass(1), 1);
}

#[test]
fn unread_completions_from_before_the_arm_count_from_then_on() {
    let mut rig = Rig::new(3, 10);
    rig.write(2);
    rig.pass(LONG);
    assert_eq!(rig.arm(false), 0);
    assert_eq!(rig.pass(9_999), 0);
    assert_eq!(rig.write(1), 1);
    rig.cq.sequence = 1;
    assert_eq!(rig.arm(false), 1, "three are unread");
}

#[test]
fn another_arm_keeps_the_time_of_unread_completions_and_forgets_read_ones() {
    let mut rig = Rig::new(3, 10);
    rig.arm(false);
    assert_eq!(rig.write(2), 0);
    assert_eq!(rig.pass(9_000), 0);
    assert_eq!(rig.arm(false), 0, "two count, however often they are armed for");
    assert_eq!(rig.pass(999), 0);
    assert_eq!(rig.pass(1), 1);
    rig.handled();
    assert_eq!(rig.write(2), 0);
    rig.bed.drain(&mut rig.cq);
    assert_eq!(rig.arm(false), 0);
    assert_eq!(rig.pass(LONG), 0, "no completion is unread");
    assert_eq!(rig.write(2), 0);
    assert_eq!(rig.write(1), 1);
}

#[test]
fn a_queue_that_waits_for_solicited_completions_counts_those() {
    let mut rig = Rig::new(2, 10);
    rig.arm(true);
    assert_eq!(rig.write(3), 0);
    assert_eq!(rig.receive(true), 0);
    assert_eq!(rig.receive(false), 0);
    assert_eq!(rig.receive(true), 1);
    rig.bed.drain(&mut rig.cq);
    rig.cq.sequence = 1;
    assert_eq!(rig.arm(true), 0);
    assert_eq!(rig.write(3), 0);
    assert_eq!(rig.pass(LONG), 0, "nothing that counts has completed");
    assert_eq!(rig.receive(true), 0);
    assert_eq!(rig.pass(9_999), 0);
    assert_eq!(rig.pass(1), 1);
}

#[test]
fn unread_solicited_completions_from_before_the_arm_count_as_one() {
    let mut rig = Rig::new(2, 10);
    rig.receive(true);
    rig.receive(true);
    assert_eq!(rig.arm(true), 0);
    assert_eq!(rig.pass(9_999), 0);
    assert_eq!(rig.pass(1), 1);
    rig.cq.sequence = 1;
    assert_eq!(rig.arm(true), 0);
    assert_eq!(rig.receive(true), 1);
}

#[test]
fn a_change_applies_to_the_next_completion_and_loses_no_event() {
    let mut rig = Rig::new(9, 10);
    rig.arm(false);
    assert_eq!(rig.write(3), 0);
    rig.modify(8, 4095);
    assert_eq!(rig.pass(9_999), 0);
    assert_eq!(rig.pass(1), 1, "the period from before");
    rig.handled();
    assert_eq!(rig.write(3), 0);
    rig.modify(2, 4095);
    assert_eq!(rig.bed.completion_events(0), 0);
    assert_eq!(rig.write(1), 1, "four of two");
    rig.handled();
    assert_eq!(rig.write(1), 0);
    rig.modify(0, 0);
    assert_eq!(rig.write(1), 1);
    assert_eq!(rig.pass(LONG), 0);
    rig.handled();
    assert_eq!(rig.write(1), 1);
}

#[test]
fn all_completions_of_a_block_count() {
    let more = [(cqc::CQ_MAX_COUNT, 4), (cqc::CQ_PERIOD, 10), (cqc::CQE_COMP_EN, 1)];
    let mut rig = Rig::with(&more);
    rig.arm(false);
    for events in [0, 1] {
        let Memory { va, key, .. } = rig.memory;
        for _ in 0..2 {
            let wqe = rig.bed.begin(&rig.one, crate::qp::request::opcode::WRITE).remote(va, key).done();
            rig.bed.put(&mut rig.one, &wqe);
        }
        rig.bed.ring(&mut rig.one);
        assert_eq!(rig.bed.completion_events(0), events);
    }
}

#[test]
fn a_queue_that_is_destroyed_raises_no_event() {
    let mut rig = Rig::new(9, 10);
    rig.arm(false);
    assert_eq!(rig.write(1), 0);
    for pair in [&rig.one, &rig.two] {
        rig.bed.name(pair, 0x501);
    }
    rig.bed.ok(0, &naming(0x401, rig.cq.cqn));
    assert_eq!(rig.pass(LONG), 0);
    assert_eq!((rig.bed.rules(), rig.bed.fabric.functions[0].core.next_held), (vec![], None));
}
