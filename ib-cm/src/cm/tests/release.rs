//! Disconnecting and destroying connections.

use super::*;
use crate::wire::{Reason, drep, sidr_rep};

#[test]
fn a_release_ends_in_the_timewait_of_both_sides() {
    let Pair { mut alice, mut bob, a, b } = connected();
    alice.disconnects(a);
    assert_eq!(alice.cm.state(a), Some(State::DreqSent));
    let dreq = alice.sends(Attribute::DREQ);
    bob.takes(&dreq);
    assert_eq!(bob.event(), Event::Disconnecting { id: b, private_data: dreq::Data::new(b"bye").unwrap() });
    bob.disconnects(b);
    let drep = bob.sends(Attribute::DREP);
    assert_eq!(header(&drep).tid, header(&dreq).tid);
    alice.takes(&drep);
    let private_data = Some(drep::Data::new(b"bye").unwrap());
    assert_eq!(alice.event(), Event::Disconnected { id: a, private_data });
    for (side, id) in [(&mut alice, a), (&mut bob, b)] {
        assert_eq!(side.cm.state(id), Some(State::Timewait));
        assert_eq!(side.waits(), 512, "two packets of code 16");
        let event = side.event();
        assert_eq!(event, Event::TimewaitExit { id });
        assert!(event.is_last());
        side.has_nothing_left();
        assert_eq!(side.cm.state(id), None);
    }
}

#[test]
fn both_sides_can_disconnect_at_the_same_time() {
    let Pair { mut alice, mut bob, a, b } = connected();
    alice.disconnects(a);
    bob.disconnects(b);
    let (from_alice, from_bob) = (alice.sends(Attribute::DREQ), bob.sends(Attribute::DREQ));
    alice.takes(&from_bob);
    bob.takes(&from_alice);
    let private_data = Some(drep::Data::new(b"bye").unwrap());
    assert_eq!(alice.event(), Event::Disconnected { id: a, private_data });
    assert_eq!(bob.event(), Event::Disconnected { id: b, private_data });
    let (to_bob, to_alice) = (alice.sends(Attribute::DREP), bob.sends(Attribute::DREP));
    bob.takes(&to_bob);
    alice.takes(&to_alice);
    // A repeated DREQ arrives late.
    bob.takes(&from_alice);
    assert_eq!(bob.sends(Attribute::DREP), to_alice);
    for side in [&mut alice, &mut bob] {
        side.no_event();
        side.waits();
        assert!(matches!(side.event(), Event::TimewaitExit { .. }));
        side.has_nothing_left();
    }
}

#[test]
fn both_sides_end_if_they_disconnect_at_the_same_time_and_a_message_is_lost() {
    // Either the peer's DREQ or the DREP for the local DREQ is lost.
    for drep_is_lost in [false, true] {
        let Pair { mut alice, mut bob, a, b } = connected();
        alice.disconnects(a);
        bob.disconnects(b);
        alice.sends(Attribute::DREQ);
        alice.takes(&bob.sends(Attribute::DREQ));
        assert!(matches!(alice.event(), Event::Disconnected { .. }), "without another call");
        let mut drep = alice.sends(Attribute::DREP);
        if drep_is_lost {
            bob.waits();
            alice.takes(&bob.sends(Attribute::DREQ));
            drep = alice.sends(Attribute::DREP);
        }
        bob.takes(&drep);
        assert!(matches!(bob.event(), Event::Disconnected { id, private_data: Some(_) } if id == b));
        for side in [&mut alice, &mut bob] {
            assert_eq!(side.waits(), 512);
            assert!(matches!(side.event(), Event::TimewaitExit { .. }));
            side.has_nothing_left();
        }
    }
}

#[test]
fn a_peer_may_disconnect_before_its_rtu_arrives() {
    let Pair { mut alice, mut bob, a, b } = replied();
    alice.ready(a);
    alice.sent();
    alice.disconnects(a);
    bob.takes(&alice.sends(Attribute::DREQ));
    assert!(matches!(bob.event(), Event::Disconnecting { .. }), "without having been established");
    bob.disconnects(b);
    alice.takes(&bob.sends(Attribute::DREP));
    assert!(matches!(alice.event(), Event::Disconnected { .. }));
}

#[test]
fn a_release_before_the_handshake_is_over_is_asked_for_again() {
    let mut pair = replied();
    pair.is_released_too_early();
    pair.is_released_when_ready();
}

#[test]
fn a_release_that_overtakes_the_reply_is_asked_for_again() {
    let mut pair = requested();
    pair.bob.accepts(pair.b, 0x22);
    let reply = pair.bob.sends(Attribute::REP);
    pair.is_released_too_early();
    pair.alice.takes(&reply);
    assert!(matches!(pair.alice.event(), Event::Reply(_)));
    pair.is_released_when_ready();
}

impl Pair {
    /// Bob disconnects before Alice has finished the handshake. Alice ignores the DREQ.
    fn is_released_too_early(&mut self) {
        self.bob.cm.established(self.b).unwrap();
        self.bob.event();
        self.bob.disconnects(self.b);
        self.alice.takes(&self.bob.sends(Attribute::DREQ));
        self.alice.no_event();
        self.alice.sends_nothing();
    }

    /// Alice finishes the handshake. The repeated DREQ then takes effect.
    fn is_released_when_ready(&mut self) {
        self.alice.ready(self.a);
        self.alice.sent();
        self.bob.waits();
        self.alice.takes(&self.bob.sends(Attribute::DREQ));
        assert!(matches!(self.alice.event(), Event::Disconnecting { .. }));
    }
}

#[test]
fn a_release_with_the_wrong_queue_pair_is_ignored() {
    let Pair { mut alice, mut bob, a, b } = connected();
    alice.disconnects(a);
    let sent = alice.sends(Attribute::DREQ);
    let Message::Dreq(dreq) = parse(&sent) else { panic!() };
    let wrong = dreq::Repr { remote_qpn: 0x23, ..dreq };
    bob.takes_from(ALICE, &Message::from(wrong).emit(1, 0));
    bob.no_event();
    bob.sends_nothing();
    assert_eq!(bob.cm.state(b), Some(State::Established));
}

#[test]
fn a_peer_that_does_not_answer_a_release_does_not_keep_the_connection() {
    let Pair { mut alice, a, .. } = connected();
    alice.disconnects(a);
    let dreq = alice.sends(Attribute::DREQ);
    for _ in 0..15 {
        // Two packets of code 16 plus the response time, code 20.
        assert_eq!(alice.waits(), 2 * 256 + 4096);
        assert_eq!(alice.sends(Attribute::DREQ), dreq);
    }
    alice.waits();
    assert_eq!(alice.event(), Event::Disconnected { id: a, private_data: None });
    alice.waits();
    assert_eq!(alice.event(), Event::TimewaitExit { id: a });
    alice.has_nothing_left();
}

#[test]
fn a_reject_of_an_established_connection_ends_it() {
    let Pair { mut alice, mut bob, a, b } = replied();
    // The peer gives up because the RTU did not arrive.
    alice.ready(a);
    alice.sent();
    bob.cm.reject(bob.now, b, &RejectParams::default()).unwrap();
    alice.takes(&bob.sends(Attribute::REJ));
    assert!(matches!(alice.event(), Event::Rejected(Rejected { timewait: true, .. })));
    assert_eq!(alice.cm.state(a), Some(State::Timewait));
}

#[test]
fn a_release_of_a_connection_that_was_rejected_is_answered_as_one() {
    for with_mra in [false, true] {
        let Pair { mut alice, mut bob, a, b } = replied();
        if with_mra {
            alice.cm.prepare_mra(a, 24, mra::Data::default()).unwrap();
        } else {
            alice.ready(a);
        }
        alice.sent();
        let local_comm_id = bob.cm.table.get(b).unwrap().local_id;
        let remote_comm_id = alice.cm.table.get(a).unwrap().local_id;
        bob.cm.reject(bob.now, b, &RejectParams::default()).unwrap();
        alice.takes(&bob.sends(Attribute::REJ));
        assert_eq!(alice.cm.state(a), Some(State::Timewait));
        let dreq = dreq::Repr { local_comm_id, remote_comm_id, remote_qpn: 0x11, ..dreq::Repr::default() };
        alice.takes_from(BOB, &Message::from(dreq).emit(77, 0));
        let sent = alice.sends(Attribute::DREP);
        assert_eq!(header(&sent).tid, 77);
    }
}

#[test]
fn destroying_a_request_rejects_it_by_the_guid_of_the_device() {
    for bob_has in [State::ReqRcvd, State::MraReqSent, State::RepSent] {
        let Pair { mut alice, mut bob, a, b } = requested();
        match bob_has {
            State::MraReqSent => bob.cm.prepare_mra(b, 24, mra::Data::default()).unwrap(),
            State::RepSent => bob.accepts(b, 0x22),
            _ => {}
        }
        bob.sent();
        alice.cm.destroy(alice.now, a);
        alice.has_nothing_left();
        let sent = alice.sends(Attribute::REJ);
        let Message::Rej(rej) = parse(&sent) else { panic!() };
        assert_eq!((rej.remote_comm_id, rej.reason, rej.reject_info_length), (0, Reason::TIMEOUT, 8));
        assert_eq!(rej.ari.bytes()[..8], ALICE_GUID.to_be_bytes());
        bob.takes(&sent);
        let Event::Rejected(rejected) = bob.event() else { panic!() };
        assert_eq!((rejected.id, rejected.reason), (b, Reason::TIMEOUT));
        bob.has_nothing_left();
    }
}

#[test]
fn destroying_what_the_peer_asked_for_rejects_it() {
    for with_mra in [false, true] {
        for accepted in [false, true] {
            let Pair { mut alice, mut bob, b, .. } = requested();
            if with_mra {
                bob.cm.prepare_mra(b, 24, mra::Data::default()).unwrap();
            }
            if accepted {
                bob.accepts(b, 0x22);
                alice.takes(&bob.sends(Attribute::REP));
                alice.event();
            }
            bob.cm.destroy(bob.now, b);
            bob.has_nothing_left();
            alice.takes(&bob.sends(Attribute::REJ));
            let Event::Rejected(rejected) = alice.event() else { panic!() };
            assert_eq!((rejected.reason, rejected.timewait), (Reason::CONSUMER_DEFINED, accepted));
        }
    }
}

#[test]
fn destroying_a_reply_rejects_it() {
    let Pair { mut alice, mut bob, a, b } = replied();
    alice.cm.destroy(alice.now, a);
    alice.has_nothing_left();
    bob.takes(&alice.sends(Attribute::REJ));
    assert_eq!(bob.event().id(), b);
    bob.has_nothing_left();
}

#[test]
fn a_destroyed_connection_is_released_also_where_messages_are_lost() {
    for disconnected in [false, true] {
        let Pair { mut alice, mut bob, a, b } = connected();
        if disconnected {
            alice.disconnects(a);
        }
        alice.cm.destroy(alice.now, a);
        assert_eq!(alice.cm.state(a), None);
        assert_eq!(alice.cm.disconnect(alice.now, a, dreq::Data::default()), Err(Refused::NoSuchId));
        alice.sends(Attribute::DREQ);
        alice.waits();
        bob.takes(&alice.sends(Attribute::DREQ));
        bob.event();
        bob.disconnects(b);
        alice.takes(&bob.sends(Attribute::DREP));
        alice.no_event();
        alice.has_nothing_left();
    }
}

#[test]
fn a_destroyed_connection_is_given_up_without_an_answer() {
    let Pair { mut alice, a, .. } = connected();
    alice.cm.destroy(alice.now, a);
    for _ in 0..16 {
        alice.sends(Attribute::DREQ);
        alice.waits();
    }
    alice.no_event();
    alice.has_nothing_left();
}

#[test]
fn a_destroyed_connection_answers_the_peer_that_disconnects_at_the_same_time() {
    let Pair { mut alice, mut bob, a, b } = connected();
    alice.cm.destroy(alice.now, a);
    alice.sent();
    bob.disconnects(b);
    alice.takes(&bob.sends(Attribute::DREQ));
    bob.takes(&alice.sends(Attribute::DREP));
    alice.has_nothing_left();
    assert!(matches!(bob.event(), Event::Disconnected { .. }));
}

#[test]
fn destroying_after_the_peers_release_answers_it() {
    let Pair { mut alice, mut bob, a, b } = connected();
    alice.disconnects(a);
    bob.takes(&alice.sends(Attribute::DREQ));
    bob.cm.destroy(bob.now, b);
    bob.no_event();
    bob.has_nothing_left();
    alice.takes(&bob.sends(Attribute::DREP));
    assert!(matches!(alice.event(), Event::Disconnected { .. }));
    alice.cm.destroy(alice.now, a);
    alice.has_nothing_left();
}

#[test]
fn an_xrc_target_is_left_to_its_initiator() {
    let (mut alice, mut bob) = (alice(), bob());
    let a = alice.connects_with(&ConnectParams { transport: Transport::Xrc, ..params(ALICE, BOB) });
    bob.takes(&alice.sends(Attribute::REQ));
    let b = bob.event().id();
    bob.accepts(b, 0x33);
    alice.takes(&bob.sends(Attribute::REP));
    alice.ready(a);
    bob.takes(&alice.sends(Attribute::RTU));
    bob.event();
    bob.cm.destroy(bob.now, b);
    bob.sends_nothing();
    bob.has_nothing_left();
}

#[test]
fn a_destroyed_connection_has_no_events() {
    let Pair { mut alice, mut bob, a, .. } = requested();
    let second = alice.connects_with(&ConnectParams { qp_num: 0x12, ..params(ALICE, BOB) });
    bob.takes(&alice.sends(Attribute::REQ));
    let b = bob.cm.events[0].id();
    bob.accepts(b, 0x22);
    alice.takes(&bob.sends(Attribute::REP));
    assert!(!alice.cm.events.is_empty(), "a reply waits for the program");
    alice.cm.destroy(alice.now, second);
    alice.no_event();
    assert_eq!(alice.cm.state(a), Some(State::ReqSent), "another one is not concerned");
    // Destroying an ended or nonexistent connection has no effect.
    alice.sent();
    alice.cm.destroy(alice.now, second);
    alice.cm.destroy(alice.now, CmId(77));
    alice.sends_nothing();
}

#[test]
fn destroying_resolutions_rejects_those_of_peers() {
    let (mut alice, mut bob) = (alice(), bob());
    let a = alice.cm.sidr_request(alice.now, &SidrParams::new(Address::gsi(ALICE, BOB), SERVICE)).unwrap();
    bob.takes(&alice.sends(Attribute::SIDR_REQ));
    let b = bob.event().id();
    bob.cm.destroy(bob.now, b);
    bob.has_nothing_left();
    let sent = bob.sends(Attribute::SIDR_REP);
    let Message::SidrRep(rep) = parse(&sent) else { panic!() };
    assert_eq!(rep.status, sidr_rep::Status::REJECTED);
    alice.cm.destroy(alice.now, a);
    alice.sends_nothing();
    alice.has_nothing_left();
    alice.takes(&sent);
    alice.no_event();
}

#[test]
fn a_destroyed_connection_repeats_its_release_before_its_time_until_it_is_answered() {
    let Pair { mut alice, mut bob, a, .. } = connected();
    alice.cm.repeat_releases();
    assert!(!alice.cm.is_releasing() && alice.cm.poll_transmit().is_none(), "it is not destroyed");
    alice.cm.destroy(alice.now, a);
    let first = alice.sends(Attribute::DREQ);
    alice.cm.repeat_releases();
    let again = alice.sends(Attribute::DREQ);
    assert_eq!(again.mad, first.mad);
    assert!(alice.cm.is_releasing() && alice.cm.poll_transmit().is_none());
    bob.takes(&again);
    let id = bob.event().id();
    bob.disconnects(id);
    alice.takes(&bob.sends(Attribute::DREP));
    assert!(!alice.cm.is_releasing());
    alice.has_nothing_left();
}
