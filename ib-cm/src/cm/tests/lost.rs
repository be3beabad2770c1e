//! Peers whose process has ended without a message.

use super::*;
use crate::wire::{Reason, sidr_rep};

#[test]
fn an_attempt_with_a_lost_peer_is_rejected_in_every_state() {
    for alice_has in [State::ReqSent, State::RepRcvd, State::MraRepSent] {
        let Pair { mut alice, a, .. } = if alice_has == State::ReqSent { requested() } else { replied() };
        if alice_has == State::MraRepSent {
            alice.cm.prepare_mra(a, 24, mra::Data::default()).unwrap();
        }
        assert_eq!(alice.cm.state(a), Some(alice_has));
        is_rejected(&mut alice, a, Reason::CONSUMER_DEFINED, alice_has != State::ReqSent);
    }
    for bob_has in [State::ReqRcvd, State::MraReqSent, State::RepSent] {
        let Pair { mut bob, b, .. } = requested();
        match bob_has {
            State::MraReqSent => bob.cm.prepare_mra(b, 24, mra::Data::default()).unwrap(),
            State::RepSent => bob.accepts(b, 0x22),
            _ => {}
        }
        bob.sent();
        let reason = if bob_has == State::RepSent { Reason::CONSUMER_DEFINED } else { Reason::TIMEOUT };
        is_rejected(&mut bob, b, reason, false);
    }
}

fn is_rejected(side: &mut Side, id: CmId, reason: Reason, timewait: bool) {
    side.cm.peer_ended(side.now, id);
    side.cm.table.check();
    let Event::Rejected(rejected) = side.event() else { panic!() };
    assert_eq!((rejected.id, rejected.reason), (id, reason));
    assert_eq!(rejected.timewait, timewait);
    side.sends_nothing();
    if timewait {
        side.waits();
        assert!(matches!(side.event(), Event::TimewaitExit { .. }));
    }
    side.has_nothing_left();
}

#[test]
fn a_connection_with_a_lost_peer_ends_once() {
    let Pair { mut alice, a, .. } = connected();
    alice.cm.peer_ended(alice.now, a);
    assert_eq!(alice.event(), Event::Disconnecting { id: a, private_data: dreq::Data::default() });
    alice.cm.peer_ended(alice.now, a);
    alice.no_event();
    alice.disconnects(a);
    // The peer does not receive the DREP.
    alice.sends(Attribute::DREP);
    alice.cm.peer_ended(alice.now, a);
    alice.no_event();
    assert_eq!(alice.waits(), 512);
    assert_eq!(alice.event(), Event::TimewaitExit { id: a });
    alice.has_nothing_left();
}

#[test]
fn a_release_that_a_lost_peer_does_not_answer_is_over() {
    let Pair { mut alice, a, .. } = connected();
    alice.disconnects(a);
    alice.sends(Attribute::DREQ);
    alice.cm.peer_ended(alice.now, a);
    assert!(matches!(alice.event(), Event::Disconnected { id, private_data: Some(_) } if id == a));
    assert_eq!(alice.waits(), 512);
    assert_eq!(alice.event(), Event::TimewaitExit { id: a });
    alice.has_nothing_left();
    // The release of a destroyed connection continues without the caller.
    let Pair { mut alice, a, .. } = connected();
    alice.cm.destroy(alice.now, a);
    alice.sends(Attribute::DREQ);
    alice.cm.peer_ended(alice.now, a);
    alice.no_event();
    assert!(!alice.cm.is_empty());
}

#[test]
fn a_resolution_by_a_lost_peer_ends() {
    let mut alice = alice();
    let id = alice.cm.sidr_request(alice.now, &SidrParams::new(Address::gsi(ALICE, BOB), SERVICE)).unwrap();
    alice.sends(Attribute::SIDR_REQ);
    alice.cm.peer_ended(alice.now, id);
    let Event::SidrReply(reply) = alice.event() else { panic!() };
    assert_eq!((reply.id, reply.status), (id, sidr_rep::Status::REJECTED));
    alice.has_nothing_left();
}
