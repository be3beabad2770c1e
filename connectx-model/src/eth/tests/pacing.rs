//! The rates of send queues.

use roce::engine::Time;

use super::*;
use crate::caps::{PACING_RATES, PACING_TABLE};

/// Length of a frame, in bytes, without its check sequence. With the check sequence, the frame
/// takes 8 ms at 1 Mbit/s.
const FRAME: usize = 996;
const TAKES: u64 = 8_000_000;

fn rate(index: u32, kbit: u32) -> Input {
    Input::new(0x780, &commands::set_pp_rate_limit_in::TABLE)
        .set(commands::set_pp_rate_limit_in::RATE_LIMIT_INDEX, index)
        .set(commands::set_pp_rate_limit_in::RATE_LIMIT, kbit)
}

fn assign(one: &Host, index: u32) -> Input {
    one.modify_sq(1, 1).set(commands::modify_sq_in::MODIFY_BITMASK, 1u32).part(
        commands::modify_sq_in::CTX,
        |context| {
            sqc::PACKET_PACING_RATE_LIMIT_INDEX.set(context, index);
        },
    )
}

/// Returns a host with a send queue whose rate is 1 Mbit/s.
fn paced() -> Host {
    let mut one = Host::new(0);
    one.make(rate(3, 1000));
    one.make(assign(&one, 3));
    one
}

fn completions(one: &mut Host) -> usize {
    std::iter::from_fn(|| one.completion(0)).count()
}

/// Returns the number of frames that have left by time `now`.
fn leave(one: &mut Host, now: Time) -> usize {
    one.function.core.now = now;
    std::iter::from_fn(|| one.function.next_frame()).count()
}

#[test]
fn a_queue_with_a_rate_takes_requests_no_faster() {
    let mut one = paced();
    let start = one.function.core.now;
    for _ in 0..3 {
        one.post(one.send(&frame(PEER, FRAME)));
    }
    assert_eq!((completions(&mut one), leave(&mut one, start)), (1, 1));
    for n in 1..3 {
        let due = start + n * TAKES;
        assert_eq!(one.function.core.eth.deadline(), Some(due));
        assert_eq!(leave(&mut one, Time(due.0 - 1)), 0);
        assert_eq!((leave(&mut one, due), completions(&mut one)), (1, 1));
    }
    assert_eq!(one.function.core.eth.deadline(), None);
    assert!(one.function.take_complaints().is_empty());
}

#[test]
fn a_queue_that_was_idle_gains_no_credit() {
    let mut one = paced();
    one.post(one.send(&frame(PEER, FRAME)));
    let later = one.function.core.now + 10 * TAKES;
    assert_eq!(leave(&mut one, later), 1);
    for _ in 0..2 {
        one.post(one.send(&frame(PEER, FRAME)));
    }
    assert_eq!(leave(&mut one, later), 1);
    assert_eq!(one.function.core.eth.deadline(), Some(later + TAKES));
}

#[test]
fn the_function_is_to_be_called_when_a_queue_may_continue() {
    let mut one = paced();
    let now = one.function.core.now;
    for _ in 0..2 {
        one.post(one.send(&frame(PEER, FRAME)));
    }
    assert!(one.function.deadline().is_some_and(|at| at <= now + TAKES));
}

#[test]
fn clearing_the_entry_or_leaving_it_ends_the_limit() {
    for clear in [true, false] {
        let mut one = paced();
        for _ in 0..3 {
            one.post(one.send(&frame(PEER, FRAME)));
        }
        let command = if clear { rate(3, 0) } else { assign(&one, 0) };
        one.make(command);
        let now = one.function.core.now;
        assert_eq!((leave(&mut one, now), completions(&mut one)), (3, 3));
    }
}

#[test]
fn a_query_names_the_rate_until_the_queue_is_reset() {
    let mut one = paced();
    let index = |one: &mut Host| {
        let query = Input::new(0x907, &commands::query_sq_in::TABLE).set(commands::query_sq_in::SQN, one.sqn);
        let output = one.function.dispatch(&query.0, 0x110);
        let context = commands::query_sq_out::SQ_CONTEXT.bytes(&output);
        sqc::PACKET_PACING_RATE_LIMIT_INDEX.get32(context)
    };
    assert_eq!(index(&mut one), 3);
    one.make(one.modify_sq(1, 0));
    assert_eq!(index(&mut one), 0);
}

#[test]
fn rates_and_indexes_outside_of_the_capabilities_are_refused() {
    let mut one = Host::new(0);
    for input in [
        rate(0, 1000),
        rate(PACING_TABLE, 1000),
        rate(1, PACING_RATES.end() + 1),
        assign(&one, 0).part(commands::modify_sq_in::CTX, |context| sqc::STATE.set(context, 0u32)),
    ] {
        assert_eq!(one.refused(input), Rule::CommandParameter);
    }
    let burst = rate(1, 0).set(commands::set_pp_rate_limit_in::BURST_UPPER_BOUND, 1u32);
    assert_eq!(one.refused(burst), Rule::CommandCapability);
    let group = one.modify_sq(1, 1).set(commands::modify_sq_in::MODIFY_BITMASK, 4u32);
    assert_eq!(one.refused(group), Rule::CommandCapability);
    let mut stray = rate(1, 1000);
    stray.0[0x20] = 1;
    assert_eq!(one.refused(stray), Rule::CommandReserved);
    one.make(rate(PACING_TABLE - 1, *PACING_RATES.end()));
}

#[test]
fn an_entry_without_a_rate_is_assigned_to_no_queue() {
    let mut one = Host::new(0);
    assert_eq!(one.refused(assign(&one, 5)), Rule::CommandObject);
    one.make(rate(5, 1));
    one.make(assign(&one, 5));
    one.make(rate(5, 0));
    assert_eq!(one.refused(assign(&one, 5)), Rule::CommandObject);
}

#[test]
fn an_infiniband_port_has_no_rates() {
    let mut bench = crate::cmd::bench::Bench::new(PortKind::Ib);
    let status = crate::refusal::Status::BadParam;
    bench.refused(rate(1, 1000).0, status, Rule::CommandCapability);
}
