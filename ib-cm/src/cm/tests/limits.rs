//! Listeners, backlogs and other limits.

use super::*;
use crate::wire::Reason;

#[derive(Debug)]
struct Broken;

impl Random for Broken {
    fn draw(&mut self) -> Option<u32> {
        None
    }
}

#[derive(Debug)]
struct Stuck;

impl Random for Stuck {
    fn draw(&mut self) -> Option<u32> {
        Some(7)
    }
}

/// Requests `count` connections from Alice's side, each with a different queue pair, and delivers
/// the requests to Bob.
fn ask(alice: &mut Side, bob: &mut Side, count: u32) {
    for qp_num in 0..count {
        alice.connects_with(&ConnectParams { qp_num, ..params(alice.gid, BOB) });
        bob.takes(&alice.sends(Attribute::REQ));
    }
}

#[test]
fn requests_beyond_the_backlog_are_dropped_and_come_again() {
    let (mut alice, mut bob) = (alice(), bob());
    ask(&mut alice, &mut bob, 11);
    assert_eq!((bob.cm.len(), bob.cm.counters().overflowed), (8, 3));
    bob.sends_nothing();
    let first = bob.cm.poll_event().unwrap().id();
    bob.accepts(first, 0x22);
    let second = bob.cm.poll_event().unwrap().id();
    bob.cm.reject(bob.now, second, &RejectParams::default()).unwrap();
    let third = bob.cm.poll_event().unwrap().id();
    bob.cm.destroy(bob.now, third);
    bob.sent();
    alice.waits();
    let late = alice.sent();
    for sent in &late[8..] {
        bob.takes(sent);
    }
    assert_eq!(core::iter::from_fn(|| bob.cm.poll_event()).count(), 5 + 3);
    assert_eq!(bob.cm.counters().overflowed, 3);
}

#[test]
fn a_request_that_is_forgotten_is_not_answered_and_comes_again() {
    let (mut alice, mut bob) = (alice(), bob());
    ask(&mut alice, &mut bob, 1);
    let first = bob.cm.poll_event().unwrap().id();
    bob.cm.forget_request(first).unwrap();
    assert_eq!((bob.cm.len(), bob.cm.counters().overflowed), (0, 1));
    bob.sends_nothing();
    assert_eq!(bob.cm.forget_request(first), Err(Refused::NoSuchId));
    alice.waits();
    for sent in &alice.sent() {
        bob.takes(sent);
    }
    let second = bob.cm.poll_event().unwrap().id();
    bob.accepts(second, 0x22);
    assert_eq!(bob.cm.forget_request(second), Err(Refused::State(State::RepSent)));
}

#[test]
fn a_request_that_the_peer_gives_up_leaves_the_backlog() {
    let (mut alice, mut bob) = (alice(), bob());
    for round in 0..20 {
        let a = alice.connects_with(&ConnectParams { qp_num: round, ..params(ALICE, BOB) });
        bob.takes(&alice.sends(Attribute::REQ));
        alice.cm.destroy(alice.now, a);
        bob.takes(&alice.sends(Attribute::REJ));
    }
    bob.has_nothing_left();
    assert_eq!(bob.cm.counters().overflowed, 0);
}

#[test]
fn events_that_wait_stop_only_strangers() {
    let (mut alice, mut bob) = (alice(), bob_with(Config { max_events: 10, ..Config::default() }));
    for round in 0..20 {
        let a = alice.connects_with(&ConnectParams { qp_num: round, ..params(ALICE, BOB) });
        bob.takes(&alice.sends(Attribute::REQ));
        alice.cm.destroy(alice.now, a);
        bob.takes(&alice.sends(Attribute::REJ));
    }
    assert_eq!(bob.cm.events.len(), 10, "five requests, each with its end");
    assert_eq!(bob.cm.counters().overflowed, 15);
}

#[test]
fn the_table_and_the_requests_of_all_listeners_are_bounded() {
    for (config, taken) in [
        (Config { max_connections: 3, ..Config::default() }, 3),
        // One address may have as many waiting requests as there are free slots.
        (Config { max_pending: 5, ..Config::default() }, 3),
    ] {
        let (mut alice, mut bob) = (alice(), bob_with(config));
        ask(&mut alice, &mut bob, 8);
        assert_eq!(bob.cm.len(), taken);
    }
    let mut alice = Side::new(ALICE, Config { max_connections: 1, ..Config::default() });
    alice.connects(BOB);
    assert_eq!(alice.cm.connect(alice.now, &params(ALICE, BOB)), Err(Refused::NoRoom));
    let sidr = SidrParams::new(Address::gsi(ALICE, BOB), SERVICE);
    assert_eq!(alice.cm.sidr_request(alice.now, &sidr), Err(Refused::NoRoom));
}

#[test]
fn an_address_that_asks_without_end_leaves_places_for_others() {
    let config = Config { max_pending: 60, ..Config::default() };
    let mut bob = Side::new(BOB, Config { node_guid: BOB_GUID, ..config });
    bob.cm.listen(SERVICE, u64::MAX, usize::MAX).unwrap();
    let mut mallory = Side::new(MALLORY, Config { node_guid: 0xbad, ..Config::default() });
    ask(&mut mallory, &mut bob, 100);
    assert_eq!(bob.cm.len(), 30, "half of the places");
    let mut alice = alice();
    ask(&mut alice, &mut bob, 10);
    assert_eq!(bob.cm.len(), 40);
    // A response to a request frees its slot.
    let ids: Vec<_> = core::iter::from_fn(|| bob.cm.poll_event()).map(|event| event.id()).collect();
    for id in ids {
        bob.cm.destroy(bob.now, id);
    }
    ask(&mut mallory, &mut bob, 100);
    assert_eq!(bob.cm.len(), 30);
}

#[test]
fn messages_that_are_not_fetched_are_lost_beyond_a_limit() {
    let mut alice = Side::new(ALICE, Config { max_transmits: 2, ..Config::default() });
    for qp_num in 0..5 {
        alice.connects_with(&ConnectParams { qp_num, ..params(ALICE, BOB) });
    }
    assert_eq!((alice.cm.counters().sent, alice.cm.counters().unsent), (2, 3));
    alice.sent();
    alice.cm.handle_timeout(alice.cm.deadline().unwrap());
    assert_eq!(alice.sent().len(), 2, "they are sent again later");
}

#[test]
fn destroyed_connections_that_are_still_released_are_bounded() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.cm.config.max_orphans = 2;
    for qp_num in 0..4 {
        let a = alice.connects_with(&ConnectParams { qp_num, ..params(ALICE, BOB) });
        bob.takes(&alice.sends(Attribute::REQ));
        let b = bob.event().id();
        bob.accepts(b, 0x20 + qp_num);
        alice.takes(&bob.sends(Attribute::REP));
        alice.event();
        alice.ready(a);
        alice.cm.destroy(alice.now, a);
        alice.sent();
    }
    assert_eq!(alice.cm.len(), 2, "the oldest ones were forgotten");
    alice.cm.table.check();
}

#[test]
fn without_numbers_nothing_begins() {
    let mut alice = alice();
    alice.cm.random = Box::new(Broken);
    assert_eq!(alice.cm.connect(alice.now, &params(ALICE, BOB)), Err(Refused::NoNumbers));
    let sidr = SidrParams::new(Address::gsi(ALICE, BOB), SERVICE);
    assert_eq!(alice.cm.sidr_request(alice.now, &sidr), Err(Refused::NoNumbers));
    let (mut alice, mut bob) = (super::alice(), bob());
    bob.cm.random = Box::new(Broken);
    alice.connects(BOB);
    bob.takes(&alice.sends(Attribute::REQ));
    bob.has_nothing_left();
}

#[test]
fn a_source_that_draws_one_number_only_has_failed() {
    let mut alice = alice();
    alice.cm.random = Box::new(Stuck);
    alice.connects(BOB);
    assert_eq!(alice.cm.connect(alice.now, &params(ALICE, BOB)), Err(Refused::NoNumbers));
}

#[test]
fn a_release_needs_no_number() {
    let Pair { mut alice, a, .. } = connected();
    alice.cm.random = Box::new(Broken);
    alice.disconnects(a);
    alice.sends(Attribute::DREQ);
}

#[test]
fn a_service_has_one_listener() {
    let mut bob = bob();
    assert_eq!(bob.cm.listen(SERVICE, u64::MAX, 1), Err(Refused::Listening));
    // A mask that covers all TCP ports.
    let mask = !0xffff;
    assert_eq!(bob.cm.listen(SERVICE, mask, 1), Err(Refused::Listening));
    let udp = bob.cm.listen(ServiceId::ip(PortSpace::UDP, 0), mask, 1).unwrap();
    assert_eq!(bob.cm.listen(ServiceId::ip(PortSpace::UDP, 5), u64::MAX, 1), Err(Refused::Listening));
    assert_eq!(bob.cm.listeners.find(ServiceId::ip(PortSpace::UDP, 5)), Some(udp));
    assert_eq!(bob.cm.listeners.find(ServiceId::ip(PortSpace::TCP, 5)), None);
    bob.cm.unlisten(udp).unwrap();
    assert_eq!(bob.cm.unlisten(udp), Err(Refused::NoSuchId));
    assert_eq!(bob.cm.listeners.find(ServiceId::ip(PortSpace::UDP, 5)), None);
    assert!(matches!(bob.cm.listen(SERVICE, u64::MAX, 0), Err(Refused::Invalid(_))));
    bob.cm.config.max_listeners = 1;
    assert_eq!(bob.cm.listen(ServiceId::ip(PortSpace::UDP, 5), u64::MAX, 1), Err(Refused::NoRoom));
}

#[test]
fn a_listener_that_ends_leaves_its_requests_to_the_program() {
    let Pair { mut alice, mut bob, b, .. } = requested();
    let listener = bob.cm.listeners.find(SERVICE).unwrap();
    bob.cm.unlisten(listener).unwrap();
    alice.connects_with(&ConnectParams { qp_num: 0x12, ..params(ALICE, BOB) });
    bob.takes(&alice.sends(Attribute::REQ));
    let Message::Rej(rej) = parse(&bob.sends(Attribute::REJ)) else { panic!() };
    assert_eq!(rej.reason, Reason::INVALID_SERVICE_ID);
    bob.accepts(b, 0x22);
    alice.takes(&bob.sends(Attribute::REP));
    assert!(matches!(alice.event(), Event::Reply(_)));
}

#[test]
fn communication_ids_begin_with_the_prefix() {
    let config = |id_prefix| Config { node_guid: ALICE_GUID, id_prefix, ..Config::default() };
    let mut alice = Side::new(ALICE, config(7));
    let ids: Vec<_> = (0..100).map(|_| alice.cm.draw_local_id().unwrap()).collect();
    assert!(ids.iter().all(|id| id >> 24 == 7));
    let mut bob = Side::new(BOB, config(0));
    let prefixes: Vec<_> = (0..100).map(|_| bob.cm.draw_local_id().unwrap() >> 24).collect();
    assert!(prefixes.iter().any(|prefix| *prefix != prefixes[0]));
}
