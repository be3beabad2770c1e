use verbs::Ece;
use verbs_core::slots::SlotId;

use super::*;
use crate::event::{Rejection, Status};
use crate::types::{Peer, PeerParam, RejectReason};

const TIMEOUT: Duration = Duration::from_secs(30);
const HOST: Source = [1; 16];
const FLOOD: Source = [2; 16];
const TICK: Duration = Duration::from_nanos(1);

fn key(number: u64) -> IdKey {
    IdKey(SlotId(number))
}

fn event(number: u64, kind: EventKind) -> Event {
    Event { id: key(number), kind, status: Status(0), ece: Ece::default(), param: None }
}

fn established(number: u64) -> Event {
    event(number, EventKind::Established(Peer::Conn(PeerParam::default())))
}

fn rejected(number: u64) -> Event {
    let rejection = Rejection { reason: Some(RejectReason::TIMEOUT), private_data: Vec::new() };
    event(number, EventKind::Rejected(rejection))
}

/// Returns a listener with accepted requests.
fn accepted(numbers: &[u64], now: Instant) -> Passive {
    let mut passive = Passive::new(8, 0, TIMEOUT);
    for number in numbers {
        assert_eq!(passive.request(key(*number), HOST, now), Admission::Pending);
        assert_eq!(passive.accepted(key(*number), now), None);
    }
    passive
}

fn reason(outcome: Outcome) -> String {
    match outcome {
        Outcome::Failed(error) => error.to_string(),
        Outcome::Established => panic!("it is established"),
    }
}

#[test]
fn a_request_is_established_after_it_was_accepted() {
    let now = Instant::now();
    let mut passive = accepted(&[1], now);
    assert_eq!(passive.event(established(1)), Some((key(1), Outcome::Established)));
    assert_eq!(passive.event(established(1)), None, "a second one");
    assert_eq!((passive.deadline(), passive.expired(now + TIMEOUT)), (None, None));
}

#[test]
fn an_outcome_that_comes_while_the_program_sets_up_waits_for_it() {
    let now = Instant::now();
    let mut passive = Passive::new(8, 0, TIMEOUT);
    passive.request(key(1), HOST, now);
    assert_eq!(passive.event(established(1)), None);
    assert_eq!(passive.accepted(key(1), now), Some(Outcome::Established));

    passive.request(key(2), HOST, now);
    assert_eq!(passive.event(rejected(2)), None);
    assert_eq!(passive.event(established(2)), None, "a failure stays");
    let outcome = passive.accepted(key(2), now).expect("the outcome");
    assert_eq!(
        reason(outcome),
        "accept: the peer gave up before the connection was established (ECONNREFUSED)"
    );

    passive.request(key(3), HOST, now);
    passive.event(established(3));
    passive.event(event(3, EventKind::Disconnected));
    let outcome = passive.accepted(key(3), now).expect("the outcome");
    assert!(reason(outcome).contains("ended the connection before the program had it"));
    assert!(passive.pending.is_empty() && passive.deadline().is_none());
}

#[test]
fn each_failure_says_what_the_peer_did() {
    let now = Instant::now();
    for (failure, text) in [
        (rejected(1), "gave up"),
        (event(1, EventKind::Unreachable), "did not confirm"),
        (event(1, EventKind::Disconnected), "ended the connection"),
        (event(1, EventKind::ConnectError), "the connection failed"),
        (event(1, EventKind::DeviceRemoval), "the device was removed"),
    ] {
        let (of, outcome) = accepted(&[1], now).event(failure).expect("an outcome");
        let reason = reason(outcome);
        assert!(of == key(1) && reason.contains(text), "{reason}");
    }
}

#[test]
fn a_slow_peer_delays_no_other_one() {
    let now = Instant::now();
    let mut passive = accepted(&[1, 2, 3], now);
    assert_eq!(passive.event(established(2)), Some((key(2), Outcome::Established)));
    assert_eq!(passive.event(established(3)), Some((key(3), Outcome::Established)));
    assert_eq!(passive.deadline(), Some(now + TIMEOUT));
    assert_eq!(passive.expired(now + TIMEOUT - TICK), None);
    let (of, outcome) = passive.expired(now + TIMEOUT).expect("it has expired");
    assert_eq!(of, key(1));
    assert_eq!(reason(outcome), "accept: the peer did not confirm the connection within 30s (ETIMEDOUT)");
    assert_eq!(passive.event(established(1)), None, "it comes too late");
}

#[test]
fn the_earliest_deadline_counts_also_after_its_request_has_ended() {
    let (first, second) = (Instant::now(), Instant::now() + Duration::from_secs(1));
    let mut passive = accepted(&[1], first);
    passive.request(key(2), HOST, second);
    passive.accepted(key(2), second);
    assert_eq!(passive.deadline(), Some(first + TIMEOUT));
    passive.event(established(1));
    assert_eq!(passive.deadline(), Some(second + TIMEOUT));
    assert_eq!(passive.expired(first + TIMEOUT), None);
    assert_eq!(passive.expired(second + TIMEOUT).map(|(key, _)| key), Some(key(2)));
    assert_eq!(passive.deadlines.len(), 0, "no deadline stays");
}

#[test]
fn a_request_that_the_program_sets_up_has_no_deadline() {
    let now = Instant::now();
    let mut passive = Passive::new(8, 0, TIMEOUT);
    passive.request(key(1), HOST, now);
    assert_eq!((passive.deadline(), passive.expired(now + 10 * TIMEOUT)), (None, None));
}

#[test]
fn requests_beyond_the_places_wait_in_their_order_and_further_ones_are_refused() {
    let now = Instant::now();
    let mut passive = Passive::new(2, 2, TIMEOUT);
    let admissions = [1, 2, 3, 4, 5].map(|number| passive.request(key(number), HOST, now));
    assert_eq!(
        admissions,
        [Admission::Pending, Admission::Pending, Admission::Waiting, Admission::Waiting, Admission::None]
    );
    assert_eq!(passive.next_waiting(), None);
    passive.dropped(key(1));
    assert!(passive.has_next_waiting());
    assert_eq!(passive.request(key(6), HOST, now), Admission::None, "no place of those that wait");
    assert_eq!((passive.next_waiting(), passive.next_waiting()), (Some(key(3)), None));
    passive.accepted(key(2), now);
    passive.event(established(2));
    assert_eq!(passive.request(key(7), HOST, now), Admission::Waiting, "behind the one that came before");
    assert_eq!((passive.next_waiting(), passive.next_waiting()), (Some(key(4)), None));
    assert_eq!(passive.accepted(key(3), now), None);
}

/// Returns a listener with 4 slots and 4 waiting requests, all taken by a flood.
fn flooded(now: Instant) -> Passive {
    let mut passive = Passive::new(4, 4, TIMEOUT);
    for number in 1..9 {
        passive.request(key(number), FLOOD, now);
    }
    for number in 1..5 {
        passive.accepted(key(number), now);
    }
    assert_eq!(passive.request(key(9), FLOOD, now), Admission::None);
    passive
}

#[test]
fn a_client_gets_the_place_of_a_flood_from_another_address() {
    let now = Instant::now();
    let mut passive = flooded(now);
    assert_eq!(passive.make_place(now + TIMEOUT - TICK), None, "the flood takes nothing from itself");
    assert_eq!(passive.request(key(10), HOST, now), Admission::Instead(key(5)), "the oldest one that waits");
    assert_eq!(passive.deadline(), Some(now + GRACE));
    assert_eq!(passive.make_place(now + GRACE - TICK), None);
    let (of, outcome) = passive.make_place(now + GRACE).expect("a place");
    assert_eq!(of, key(1), "the oldest one that is not confirmed");
    assert!(reason(outcome).contains("more than its share"));
    assert_eq!(passive.next_waiting(), Some(key(10)), "before those that waited longer");
    assert_eq!((passive.next_waiting(), passive.make_place(now + GRACE)), (None, None));
    passive.accepted(key(10), now + GRACE);
    assert_eq!(passive.event(established(10)), Some((key(10), Outcome::Established)));
    assert_eq!(passive.next_waiting(), Some(key(6)));
    assert_eq!(passive.waits.len(), passive.waiting.len());
}

#[test]
fn a_request_that_the_program_sets_up_keeps_its_place() {
    let now = Instant::now();
    let mut passive = Passive::new(2, 2, TIMEOUT);
    for number in 1..4 {
        passive.request(key(number), FLOOD, now);
    }
    passive.request(key(4), HOST, now);
    assert_eq!((passive.make_place(now + GRACE), passive.deadline()), (None, Some(now + TIMEOUT)));
    passive.accepted(key(2), now);
    assert_eq!(passive.make_place(now + GRACE).map(|(of, _)| of), Some(key(2)));
}

#[test]
fn addresses_with_equal_shares_take_nothing_from_each_other() {
    let now = Instant::now();
    let mut passive = Passive::new(2, 2, TIMEOUT);
    for (number, source) in [(1, HOST), (2, FLOOD), (3, HOST), (4, FLOOD)] {
        passive.request(key(number), source, now);
        passive.accepted(key(number), now);
    }
    assert_eq!(passive.request(key(5), HOST, now), Admission::None);
    assert_eq!(passive.request(key(6), [3; 16], now), Admission::None, "one each of two addresses");
    assert_eq!(passive.make_place(now + TIMEOUT), None);
}

#[test]
fn of_a_flood_and_a_hundred_clients_no_client_is_refused() {
    let start = Instant::now();
    let mut passive = Passive::new(100, 1024, TIMEOUT);
    let (mut number, mut connected, mut lost) = (0, 0, 0);
    // The flood sends 20,000 requests a second; in the second half, a client connects every 10 ms.
    for round in 0..200 {
        let now = start + Duration::from_millis(10 * round);
        for client in [false; 200].into_iter().chain((round >= 100).then_some(true)) {
            number += 1;
            let (key, source) =
                (IdKey(SlotId(number << 1 | u64::from(client))), if client { HOST } else { FLOOD });
            match passive.request(key, source, now) {
                Admission::Pending => drop(passive.accepted(key, now)),
                Admission::Instead(IdKey(SlotId(other))) => lost += other & 1,
                Admission::None => lost += u64::from(client),
                Admission::Waiting => {}
            }
        }
        loop {
            if let Some(key) = passive.next_waiting() {
                passive.accepted(key, now);
                // A client confirms; the flood does not.
                connected += u64::from(key.0.0 & 1 == 1 && passive.event(established(key.0.0)).is_some());
            } else if let Some((IdKey(SlotId(other)), _)) = passive.make_place(now) {
                lost += other & 1;
            } else {
                break;
            }
        }
    }
    assert_eq!((connected, lost), (100, 0));
    assert!(passive.pending.len() <= 100 && passive.waiting.len() <= 1024);
}

#[test]
fn a_request_that_waits_has_no_events() {
    let now = Instant::now();
    let mut passive = Passive::new(1, 8, TIMEOUT);
    for number in [1, 2, 3] {
        passive.request(key(number), HOST, now);
    }
    assert_eq!(passive.event(rejected(2)), None);
    passive.dropped(key(1));
    assert_eq!(passive.next_waiting(), Some(key(2)));
}

#[test]
fn a_request_waits_no_longer_than_for_an_establishment() {
    let now = Instant::now();
    let mut passive = Passive::new(1, 8, TIMEOUT);
    passive.request(key(1), HOST, now);
    passive.request(key(2), HOST, now);
    passive.request(key(3), HOST, now + TICK);
    assert_eq!((passive.deadline(), passive.expired(now + TIMEOUT - TICK)), (Some(now + TIMEOUT), None));
    let (of, outcome) = passive.expired(now + TIMEOUT).expect("it has expired");
    assert_eq!(of, key(2));
    assert!(reason(outcome).contains("other requests kept it waiting"));
    assert_eq!((passive.deadline(), passive.expired(now + TIMEOUT)), (Some(now + TIMEOUT + TICK), None));
    passive.dropped(key(1));
    assert_eq!((passive.next_waiting(), passive.deadline()), (Some(key(3)), None));
}

#[test]
fn a_listener_without_places_has_one() {
    let now = Instant::now();
    let mut passive = Passive::new(0, 0, TIMEOUT);
    assert_eq!(
        [1, 2].map(|number| passive.request(key(number), HOST, now)),
        [Admission::Pending, Admission::None]
    );
}

#[test]
fn events_of_strangers_and_events_without_meaning_change_nothing() {
    let now = Instant::now();
    let mut passive = accepted(&[1], now);
    assert_eq!(passive.event(established(9)), None);
    assert_eq!(passive.event(event(1, EventKind::TimewaitExit)), None);
    assert_eq!(passive.event(event(1, EventKind::AddrChange)), None);
    assert_eq!(passive.accepted(key(9), now), None);
    passive.dropped(key(9));
    assert_eq!(passive.event(established(1)), Some((key(1), Outcome::Established)));
}

#[test]
fn a_request_that_the_program_dropped_has_no_outcome() {
    let now = Instant::now();
    let mut passive = Passive::new(8, 0, TIMEOUT);
    passive.request(key(1), HOST, now);
    passive.dropped(key(1));
    assert_eq!(passive.event(rejected(1)), None);
    assert_eq!((passive.accepted(key(1), now), passive.deadline()), (None, None));
}

#[test]
fn a_timeout_beyond_the_clock_is_no_deadline() {
    let now = Instant::now();
    let mut passive = Passive::new(8, 0, Duration::MAX);
    passive.request(key(1), HOST, now);
    assert_eq!((passive.accepted(key(1), now), passive.deadline()), (None, None));
    assert_eq!(passive.event(established(1)), Some((key(1), Outcome::Established)));
}

#[test]
fn the_deadlines_are_looked_at_after_a_bounded_number_of_events() {
    let now = Instant::now();
    let mut passive = accepted(&[1, 2], now);
    for _ in 0..READS {
        assert!(!passive.is_time_to_expire());
        passive.has_read();
    }
    assert!(passive.is_time_to_expire());
    // All expired requests are returned before further events.
    assert_eq!(passive.expired(now + TIMEOUT).map(|(key, _)| key), Some(key(1)));
    assert!(passive.is_time_to_expire());
    assert_eq!(passive.expired(now + TIMEOUT).map(|(key, _)| key), Some(key(2)));
    assert_eq!(passive.expired(now + TIMEOUT), None);
    assert!(!passive.is_time_to_expire());
}
