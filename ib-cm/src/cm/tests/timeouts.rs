//! Peers that do not respond.

use super::*;
use crate::wire::{MsgResponse, Reason};

#[test]
fn a_request_is_sent_again_and_given_up_after_its_retries() {
    let mut alice = alice();
    let a = alice.connects_with(&ConnectParams { max_cm_retries: 3, ..params(ALICE, BOB) });
    let req = alice.sends(Attribute::REQ);
    for _ in 0..3 {
        assert_eq!(alice.waits(), 2 * 256 + 4096);
        assert_eq!(alice.sends(Attribute::REQ), req);
    }
    alice.waits();
    assert_eq!(alice.event(), Event::Unreachable { id: a });
    alice.has_nothing_left();
    let Message::Rej(rej) = parse(&alice.sends(Attribute::REJ)) else { panic!() };
    assert_eq!(rej.reason, Reason::TIMEOUT, "a peer that was only slow need not go on");
    assert_eq!(alice.cm.counters().retries, 3);
}

#[test]
fn a_peer_of_which_nothing_is_heard_is_unreachable_after_74_seconds() {
    let mut alice = alice();
    let a = alice.connects(BOB);
    let req = alice.sends(Attribute::REQ);
    for _ in 0..15 {
        alice.waits();
        assert_eq!(alice.sends(Attribute::REQ), req);
        alice.no_event();
    }
    alice.waits();
    assert_eq!(alice.event(), Event::Unreachable { id: a });
    assert_eq!(alice.now, Time(73_728 * MILLISECOND));
    alice.sends(Attribute::REJ);
    alice.has_nothing_left();
}

#[test]
fn the_timer_of_a_request_follows_from_its_path_and_the_peers_response_time() {
    for (packet_life_time, response, ms) in [(16, 20, 4608), (18, 20, 6144), (0, 0, 3), (8, 9, 4)] {
        let mut alice = alice();
        let path = Path { packet_life_time, ..path(ALICE, BOB) };
        alice.connects_with(&ConnectParams {
            path,
            remote_cm_response_timeout: response,
            ..params(ALICE, BOB)
        });
        assert_eq!(alice.waits(), ms);
    }
}

#[test]
fn a_reply_is_sent_again_as_the_request_says_and_then_given_up() {
    let (mut alice, mut bob) = (alice(), bob());
    let a = alice.connects_with(&ConnectParams {
        local_cm_response_timeout: 18,
        max_cm_retries: 2,
        ..params(ALICE, BOB)
    });
    bob.takes(&alice.sends(Attribute::REQ));
    let b = bob.event().id();
    bob.accepts(b, 0x22);
    let rep = bob.sends(Attribute::REP);
    alice.takes(&rep);
    alice.event();
    alice.ready(a);
    for _ in 0..2 {
        assert_eq!(bob.waits(), 1024);
        assert_eq!(bob.sends(Attribute::REP), rep);
    }
    bob.waits();
    assert_eq!(bob.event(), Event::Unreachable { id: b });
    bob.has_nothing_left();
    // The peer considers the connection established until the REJ arrives.
    alice.sent();
    alice.takes(&bob.sends(Attribute::REJ));
    assert!(matches!(
        alice.event(),
        Event::Rejected(Rejected { reason: Reason::TIMEOUT, timewait: true, .. })
    ));
}

#[test]
fn a_peer_that_gives_up_before_its_reply_arrived_is_understood() {
    let (mut alice, mut bob) = (alice(), bob());
    let a = alice.connects_with(&ConnectParams { max_cm_retries: 0, ..params(ALICE, BOB) });
    bob.takes(&alice.sends(Attribute::REQ));
    let b = bob.event().id();
    bob.accepts(b, 0x22);
    bob.sent();
    bob.waits();
    bob.event();
    alice.takes(&bob.sends(Attribute::REJ));
    assert!(matches!(alice.event(), Event::Rejected(Rejected { id, .. }) if id == a));
    alice.has_nothing_left();
}

#[test]
fn a_request_that_its_own_end_has_overtaken_is_dropped() {
    let (mut alice, mut bob) = (alice(), bob());
    for round in 0..2 * GIVEN_UP {
        alice.connects_with(&ConnectParams { max_cm_retries: 0, ..params(ALICE, BOB) });
        let req = alice.sends(Attribute::REQ);
        alice.waits();
        alice.event();
        let rej = alice.sends(Attribute::REJ);
        bob.takes(&rej);
        // The network has duplicated the request.
        for _ in 0..2 {
            bob.takes(&req);
            bob.no_event();
            bob.sends_nothing();
        }
        assert_eq!(bob.cm.given_up.len(), GIVEN_UP.min(round + 1));
    }
    alice.connects(BOB);
    bob.takes(&alice.sends(Attribute::REQ));
    assert!(matches!(bob.event(), Event::Request(_)), "the next one counts");
}

#[test]
fn an_mra_extends_the_timer_of_the_message_that_waits() {
    let Pair { mut alice, mut bob, b, .. } = requested();
    bob.cm.send_mra(b, 22, mra::Data::default()).unwrap();
    alice.takes(&bob.sends(Attribute::MRA));
    alice.event();
    for _ in 0..2 {
        // The MRA's code 22 (16,384 ms) plus the path's acknowledgement timeout (512 ms).
        assert_eq!(alice.waits(), 16_384 + 512);
        alice.sends(Attribute::REQ);
    }
}

#[test]
fn a_release_after_an_mra_is_repeated_as_soon_as_without_it() {
    for with_mra in [false, true] {
        let Pair { mut alice, mut bob, a, b } = requested();
        if with_mra {
            bob.cm.send_mra(b, 24, mra::Data::default()).unwrap();
            alice.takes(&bob.sends(Attribute::MRA));
            alice.event();
        }
        bob.accepts(b, 0x22);
        alice.takes(&bob.sends(Attribute::REP));
        alice.event();
        if with_mra {
            alice.cm.send_mra(a, 24, mra::Data::default()).unwrap();
            bob.takes(&alice.sends(Attribute::MRA));
            bob.event();
        }
        alice.ready(a);
        bob.takes(&alice.sends(Attribute::RTU));
        bob.event();
        alice.disconnects(a);
        bob.disconnects(b);
        assert_eq!((alice.waits(), bob.waits()), (2 * 256 + 4096, 4096), "with an MRA: {with_mra}");
        alice.sends_again(Attribute::DREQ);
        bob.sends_again(Attribute::DREQ);
    }
}

#[test]
fn a_peer_cannot_ask_for_more_time_than_is_believed() {
    let Pair { mut alice, mut bob, b, .. } = requested();
    bob.cm.send_mra(b, 31, mra::Data::default()).unwrap();
    alice.takes(&bob.sends(Attribute::MRA));
    assert!(matches!(alice.event(), Event::MraReceived { service_timeout: 31, .. }));
    assert_eq!(alice.waits(), 65_536 + 512);

    let (mut alice, mut bob) = (super::alice(), super::bob());
    let path = Path { packet_life_time: 30, ..path(ALICE, BOB) };
    alice.connects_with(&ConnectParams { path, local_cm_response_timeout: 31, ..params(ALICE, BOB) });
    bob.takes(&alice.sends(Attribute::REQ));
    let b = bob.event().id();
    bob.accepts(b, 0x22);
    bob.sent();
    assert_eq!(bob.waits(), 65_536);
    let (local_comm_id, remote_comm_id) = {
        let connection = bob.cm.table.get(b).unwrap();
        (connection.remote_id.unwrap(), connection.local_id)
    };
    let more = mra::Repr { local_comm_id, remote_comm_id, ..mra::Repr::default() };
    let more = mra::Repr { message_mraed: MsgResponse::REP, service_timeout: 31, ..more };
    bob.takes_from(ALICE, &Message::from(more).emit(1, 0));
    bob.event();
    bob.sent();
    assert_eq!(bob.waits(), 2 * 65_536, "the code of the MRA, and that of the path");
    bob.cm.reject(bob.now, b, &RejectParams::default()).unwrap();
    assert_eq!(bob.waits(), 65_536, "nor for a longer timewait");
}

#[test]
fn a_slow_device_of_the_peer_does_not_keep_the_timewait_beyond_what_is_believed() {
    let Pair { mut alice, mut bob, a, b } = requested();
    bob.cm.config.ack_delay = 31;
    bob.accepts(b, 0x22);
    alice.takes(&bob.sends(Attribute::REP));
    alice.event();
    assert_eq!(alice.cm.qp_attr(a).unwrap().timeout, 31);
    alice.ready(a);
    alice.disconnects(a);
    alice.sent();
    alice.cm.config.max_peer_timeout = 10;
    bob.cm.reject(bob.now, b, &RejectParams::default()).unwrap();
    alice.takes(&bob.sends(Attribute::REJ));
    assert_eq!(alice.waits(), 512, "the own path is believed");
}

#[test]
fn early_calls_do_nothing_and_late_ones_do_everything_that_is_due() {
    let mut alice = alice();
    alice.connects(BOB);
    alice.connects_with(&ConnectParams { qp_num: 0x12, ..params(ALICE, BOB) });
    alice.sent();
    let deadline = alice.cm.deadline().unwrap();
    alice.cm.handle_timeout(Time(deadline.0 - 1));
    alice.sends_nothing();
    alice.cm.handle_timeout(Time(deadline.0 + 1_000_000_000_000));
    assert_eq!(alice.sent().len(), 2, "each is sent once, however late it is");
    assert!(alice.cm.deadline().unwrap().0 > deadline.0 + 1_000_000_000_000);
}
