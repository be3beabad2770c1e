//! Tests of the fabric alone, with packets that no engine has written. `tests/sim` tests traffic.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::*;
use crate::engine::Time;
use crate::wire::bth;
use crate::wire::{Headers, Opcode, Psn};

/// Returns a packet for a nonexistent queue pair.
fn packet(psn: u32) -> Vec<u8> {
    let mut packet = alloc::vec![0; 64];
    Headers::new(bth::Repr::new(Opcode::RC_SEND_ONLY, 0x77, Psn::new(psn))).emit(&mut packet);
    packet
}

fn two(link: Link) -> (Fabric, EndpointId, EndpointId) {
    let mut fabric = Fabric::new(1);
    fabric.set_default_link(link);
    let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
    (fabric, a, b)
}

fn fates(fabric: &Fabric) -> Vec<Fate> {
    let fate = |record: &Record| match record.what {
        Traced::Packet { fate, .. } => Some(fate),
        _ => None,
    };
    fabric.trace().filter_map(fate).collect()
}

#[test]
fn packets_wait_for_each_other_and_arrive_a_latency_later() {
    // 64 bytes and the 70 bytes around them are 1072 bits, which take 1072 ns at 1 Gbit/s.
    let (mut fabric, a, b) = two(Link { latency: 500, bandwidth: 1_000_000_000, ..Link::default() });
    fabric.inject(a, b, &packet(0));
    fabric.inject(a, b, &packet(1));
    fabric.inject(b, a, &packet(2));
    assert_eq!(fates(&fabric), [1572, 2644, 1572].map(|at| Fate::Arrives(Time(at))));
    assert_eq!(fabric.next_at(), Some(Time(1572)));
    assert_eq!(fabric.run_until_idle(10_000), Ok(Time(2644)));
}

#[test]
fn what_leaves_while_the_link_is_down_is_lost() {
    let (mut fabric, a, b) = two(Link::default());
    fabric.partition(a, b, Time(10)..Time(20));
    for at in [9, 10, 19, 20] {
        fabric.run_until(Time(at));
        fabric.inject(a, b, &packet(at as u32));
        fabric.inject(b, a, &packet(at as u32));
    }
    let down: Vec<bool> = fates(&fabric).iter().map(|fate| *fate == Fate::Down).collect();
    assert_eq!(down, [false, false, true, true, true, true, false, false]);
}

#[test]
fn faults_happen_as_often_as_they_are_to() {
    let twentieth = Chance::percent(5);
    let (mut fabric, a, b) =
        two(Link { loss: twentieth, duplicate: twentieth, corrupt: twentieth, ..Link::default() });
    fabric.keep_trace(usize::MAX);
    for psn in 0..10_000 {
        fabric.inject(a, b, &packet(psn));
    }
    let fates = fates(&fabric);
    for kind in [
        |f: &Fate| *f == Fate::Lost,
        |f: &Fate| *f == Fate::Corrupted,
        |f: &Fate| matches!(f, Fate::Again(_)),
    ] {
        let count = fates.iter().filter(|fate| kind(fate)).count();
        assert!((400..600).contains(&count), "{count} of 10000, not about 500");
    }
}

#[test]
fn jitter_keeps_the_order_and_reordering_does_not() {
    let arrivals = |link| {
        let (mut fabric, a, b) = two(link);
        (0..200).for_each(|psn| fabric.inject(a, b, &packet(psn)));
        let at = |fate: &Fate| match fate {
            Fate::Arrives(at) => *at,
            other => panic!("{other}"),
        };
        fates(&fabric).iter().map(at).collect::<Vec<_>>()
    };
    let jitter = Link { jitter: 5_000, ..Link::default() };
    assert!(arrivals(jitter.clone()).is_sorted());
    assert!(arrivals(jitter.clone()) != arrivals(Link::default()));
    assert!(!arrivals(Link { reorder: Chance::percent(20), ..jitter }).is_sorted());
}

#[test]
fn damaged_packets_arrive_only_where_that_is_asked_for() {
    let corrupt = Chance::ALWAYS;
    let (mut fabric, a, b) = two(Link { corrupt, ..Link::default() });
    fabric.inject(a, b, &packet(0));
    *fabric.link_mut(a, b) = Link { corrupt, undetected: true, ..Link::default() };
    fabric.inject(a, b, &packet(1));
    assert!(matches!(fates(&fabric)[..], [Fate::Corrupted, Fate::Damaged(_)]));
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let trace = |seed| {
        let mut fabric = Fabric::new(seed);
        let half = Chance::percent(50);
        fabric.set_default_link(Link {
            jitter: 100,
            loss: half,
            duplicate: half,
            reorder: half,
            ..Link::default()
        });
        let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
        (0..50).for_each(|psn| fabric.inject(a, b, &packet(psn)));
        fabric.trace().map(ToString::to_string).collect::<Vec<String>>()
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}

#[test]
fn a_link_that_carries_more_does_not_move_the_faults_of_another() {
    let fates_of = |also: u32| {
        let (mut fabric, a, b) = two(Link { loss: Chance::percent(50), ..Link::default() });
        (0..also).for_each(|psn| fabric.inject(b, a, &packet(psn)));
        fabric.keep_trace(0);
        fabric.keep_trace(100);
        (0..100).for_each(|psn| fabric.inject(a, b, &packet(psn)));
        fates(&fabric)
    };
    assert_eq!(fates_of(0), fates_of(37));
}

#[test]
fn a_record_reads_as_a_line() {
    let (mut fabric, a, b) = two(Link::default());
    fabric.inject(a, b, &packet(0x1234));
    fabric.remark("that was all");
    let lines: Vec<String> = fabric.trace().map(ToString::to_string).collect();
    assert_eq!(
        lines[0],
        "        0.000 ep0 -> ep1 qp 000077 psn 001234 RC_SEND_ONLY, 52 B: arrives         1.011"
    );
    assert_eq!(lines[1], "        0.000 that was all");
}

#[test]
fn numbers_stay_in_their_range_and_reach_both_ends() {
    let mut rng = Rng::new(3);
    let drawn: Vec<u64> = (0..1000).map(|_| rng.range(5, 8)).collect();
    assert!((5..=8).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| (5..=8).contains(n)));
    assert_eq!(rng.below(0), 0);
}
