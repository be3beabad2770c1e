//! Messages outside communication management, and unsupported messages.

use super::*;
use crate::wire::{apr, lap, mad::Method};

/// Returns a LAP that names Bob's connection.
fn lap(pair: &Pair) -> lap::Repr {
    let connection = pair.bob.cm.table.get(pair.b).unwrap();
    lap::Repr {
        local_comm_id: connection.remote_id.unwrap(),
        remote_comm_id: connection.local_id,
        remote_qpn: 0x22,
        ..lap::Repr::default()
    }
}

#[test]
fn an_alternate_path_is_refused_by_name() {
    let mut pair = connected();
    let lap = lap(&pair);
    pair.bob.takes_from(ALICE, &Message::from(lap).emit(77, 0));
    let sent = pair.bob.sends(Attribute::APR);
    let Message::Apr(apr) = parse(&sent) else { panic!() };
    assert_eq!(apr.ap_status, apr::Status::UNSUPPORTED);
    assert_eq!((apr.local_comm_id, apr.remote_comm_id), (lap.remote_comm_id, lap.local_comm_id));
    assert_eq!(header(&sent).tid, 77);
    pair.bob.no_event();
    // The APR has no effect on its receiver.
    pair.alice.takes(&sent);
    pair.alice.no_event();
    pair.alice.sends_nothing();
}

#[test]
fn an_alternate_path_of_no_connection_is_not_answered() {
    let mut pair = requested();
    let lap = lap(&pair);
    pair.bob.takes_from(ALICE, &Message::from(lap).emit(77, 0));
    pair.bob.sends_nothing();
}

#[test]
fn facts_about_the_class_are_not_served() {
    let mut bob = bob();
    for method in [Method::GET, Method::SET] {
        let mut mad = Message::Other(Attribute::CLASS_PORT_INFO).emit(77, 0);
        mad[3] = method.0;
        mad[100] = 5;
        bob.takes_from(ALICE, &mad);
        let sent = bob.sends(Attribute::CLASS_PORT_INFO);
        let expected = mad::Repr {
            method: Method::GET_RESP,
            status: 0x000c,
            ..mad::Repr::message(Attribute::CLASS_PORT_INFO, 77, 0)
        };
        assert_eq!(header(&sent), expected);
        assert_eq!(sent.mad[24..], mad[24..], "the rest is as it came");
    }
}

#[test]
fn what_is_not_of_the_class_is_dropped() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.connects(BOB);
    let good = alice.sends(Attribute::REQ).mad;
    for (at, value) in [(0, 2), (1, 3), (2, 1), (3, 0x81), (3, 0x92), (16, 1), (17, 0x1b)] {
        let mut mad = good;
        mad[at] = value;
        bob.takes_from(ALICE, &mad);
    }
    let from = Address::gsi(BOB, ALICE);
    bob.cm.input(bob.now, &from, &good[..255]);
    bob.cm.input(bob.now, &from, &[]);
    bob.no_event();
    bob.sends_nothing();
    assert_eq!(bob.cm.counters().dropped, 9);
    // Bytes after the message are ignored.
    bob.cm.input(bob.now, &from, &[&good[..], &[1, 2, 3]].concat());
    assert!(matches!(bob.event(), Event::Request(_)));
}

#[test]
fn refusals_are_sentences() {
    for (refused, text) in [
        (Refused::NoSuchId, "the connection does not exist, or has ended"),
        (Refused::State(State::ReqSent), "the call has no meaning in the state ReqSent"),
        (Refused::Listening, "another listener has the service id"),
        (Refused::Invalid("x"), "x"),
    ] {
        assert_eq!(refused.to_string(), text);
    }
}
