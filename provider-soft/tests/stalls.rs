//! Tests that other peers can use a device while one peer requests as much data as it can, or while
//! the program posts as much as it can.

mod common;

use common::attack::{Attack, PACKET, ROUND_TRIPS, TURN, TURN_PACKETS, WINDOW, attack};
use common::{Arena, Shape, eventually, open, pair_on, send};
use verbs::{Mtu, QpType, SendOp};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = false;

/// The rate of read responses to one peer beyond a window, in bytes per microsecond.
const RESPONSE_RATE: u64 = 8000;

#[test]
fn a_round_trip_takes_a_few_turns_while_a_peer_reads_256_mib_again_and_again() {
    let Attack { waits, mut seen, victim, innocent, .. } = attack();
    // Elapsed time limits the responses to one peer, whichever thread runs. A turn may have used
    // credit before the round trip but sent packets during it.
    for (sent, wait) in &waits {
        let credit = WINDOW + TURN + RESPONSE_RATE * (wait.as_micros() as u64 + 1);
        assert!(*sent <= credit, "{sent} bytes within {wait:?}: credit is {credit}");
    }
    let longest = waits.iter().max_by_key(|(_, wait)| *wait).copied().expect("round trips");
    seen.sort_unstable();
    let median = seen[ROUND_TRIPS / 2];
    println!("median {median}; longest {longest:?}; {victim:?}");
    // The worker may use up its time slice between two polls and be descheduled while it holds the
    // lock. The bound therefore holds for most round trips, but not for all.
    assert!(median < 16 * TURN, "in half of the round trips {median} bytes of responses left or more");
    assert!(victim.turn_packets_max <= TURN_PACKETS, "{victim:?}");
    assert!(victim.turn_bytes_max <= TURN, "{victim:?}");
    assert_eq!(victim.bad_icrc + innocent.bad_icrc, 0);
}

#[test]
fn a_write_of_16_mib_leaves_in_many_turns_although_its_program_does_not_poll() {
    const LEN: usize = 16 << 20;
    let shape = Shape { qp_type: QpType::UC, path_mtu: Mtu::MTU_4096, ..Shape::default() };
    let (from, to) = (open(), open());
    let (mut a, b) = pair_on(&from, &to, &shape);
    let (source, target) = (Arena::new(&a.pd, LEN), Arena::new(&b.pd, LEN));
    let op = SendOp::RdmaWrite { remote_addr: target.addr(), rkey: target.rkey() };
    send(&mut a.qp, 1, op, &[source.sge(0..LEN)]);
    let counters = || from.raw().counters();
    eventually("all packets leave", || counters().sent == LEN as u64 / 4096);
    let counters = counters();
    assert!(counters.turn_packets_max <= TURN_PACKETS, "{counters:?}");
    assert!(counters.turn_bytes_max <= TURN, "{counters:?}");
    assert!(counters.turn_bytes_max > PACKET, "a turn sends more than a packet: {counters:?}");
}
