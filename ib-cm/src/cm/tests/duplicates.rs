//! Repeated messages: the first copies or their responses were lost.

use super::*;
use crate::wire::{MsgResponse, Reason, rep};

#[test]
fn a_request_that_waits_for_the_program_is_not_answered_again() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.connects(BOB);
    let req = alice.sends(Attribute::REQ);
    bob.takes(&req);
    bob.event();
    bob.takes(&req);
    bob.no_event();
    bob.sends_nothing();
    assert_eq!(bob.cm.counters().duplicates, 1);
}

#[test]
fn a_prepared_mra_leaves_when_the_request_arrives_again() {
    let (mut alice, mut bob) = (alice(), bob());
    let a = alice.connects(BOB);
    let req = alice.sends(Attribute::REQ);
    bob.takes(&req);
    let b = bob.event().id();
    bob.cm.prepare_mra(b, 24, mra::Data::new(b"wait").unwrap()).unwrap();
    bob.sends_nothing();
    for _ in 0..2 {
        bob.takes(&req);
        let sent = bob.sends(Attribute::MRA);
        let Message::Mra(mra) = parse(&sent) else { panic!() };
        assert_eq!((mra.message_mraed, mra.service_timeout), (MsgResponse::REQ, 24));
        assert_eq!(header(&sent).tid, header(&req).tid);
        alice.takes(&sent);
    }
    let private_data = mra::Data::new(b"wait").unwrap();
    assert_eq!(alice.event(), Event::MraReceived { id: a, service_timeout: 24, private_data });
    assert_eq!(alice.cm.state(a), Some(State::MraReqRcvd));
}

#[test]
fn a_request_that_was_accepted_gets_the_same_reply_again() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.connects(BOB);
    let req = alice.sends(Attribute::REQ);
    bob.takes(&req);
    let b = bob.event().id();
    bob.accepts(b, 0x22);
    let rep = bob.sends(Attribute::REP);
    let deadline = bob.cm.deadline();
    bob.takes(&req);
    assert_eq!(bob.sends(Attribute::REP), rep);
    assert_eq!(bob.cm.deadline(), deadline, "the timer goes on");
}

#[test]
fn a_reply_that_arrives_again_gets_the_lost_rtu() {
    let Pair { mut alice, mut bob, a, b } = replied();
    alice.ready(a);
    let rtu = alice.sends(Attribute::RTU);
    // The timeout of the REP is code 20, about 4 s.
    assert_eq!(bob.waits(), 4096);
    alice.takes(&bob.sends(Attribute::REP));
    alice.no_event();
    assert_eq!(alice.sends(Attribute::RTU), rtu);
    bob.takes(&rtu);
    let private_data = Some(rtu::Data::new(b"ready").unwrap());
    assert_eq!(bob.event(), Event::Established { id: b, private_data });
    bob.takes(&rtu);
    bob.no_event();
}

#[test]
fn a_reply_that_arrives_again_gets_the_mra_if_the_program_takes_its_time() {
    let Pair { mut alice, mut bob, a, b } = replied();
    alice.cm.send_mra(a, 22, mra::Data::default()).unwrap();
    let mra = alice.sends(Attribute::MRA);
    bob.waits();
    alice.takes(&bob.sends(Attribute::REP));
    assert_eq!(alice.sends(Attribute::MRA), mra);
    bob.takes(&mra);
    assert!(matches!(bob.event(), Event::MraReceived { service_timeout: 22, .. }));
    assert_eq!(bob.cm.state(b), Some(State::MraRepRcvd));
    // The MRA's code 22 is about 16 s; the acknowledgement timeout, code 17, is half a second.
    assert_eq!(bob.waits(), 16_384 + 512);
    alice.takes(&bob.sends(Attribute::REP));
    assert_eq!(alice.sends(Attribute::MRA), mra);
    bob.takes(&mra);
    bob.no_event();
    alice.ready(a);
    bob.takes(&alice.sends(Attribute::RTU));
    assert!(matches!(bob.event(), Event::Established { .. }));
}

#[test]
fn a_reply_that_waits_for_the_program_is_not_answered_again() {
    let Pair { mut alice, mut bob, .. } = replied();
    bob.waits();
    alice.takes(&bob.sends(Attribute::REP));
    alice.no_event();
    alice.sends_nothing();
}

#[test]
fn a_release_that_arrives_again_gets_the_same_answer() {
    let Pair { mut alice, mut bob, a, b } = connected();
    alice.disconnects(a);
    let dreq = alice.sends(Attribute::DREQ);
    bob.takes(&dreq);
    assert!(matches!(bob.event(), Event::Disconnecting { .. }));
    bob.takes(&dreq);
    bob.no_event();
    bob.sends_nothing();
    bob.disconnects(b);
    let drep = bob.sends(Attribute::DREP);
    assert_eq!(bob.cm.state(b), Some(State::Timewait));
    bob.takes(&dreq);
    assert_eq!(bob.sends(Attribute::DREP), drep);
    bob.waits();
    bob.event();
    bob.has_nothing_left();
    // Even after the connection is removed, its peer can still finish the release.
    bob.takes(&dreq);
    alice.takes(&bob.sends(Attribute::DREP));
    assert!(matches!(alice.event(), Event::Disconnected { .. }));
    alice.takes(&drep);
    alice.no_event();
}

#[test]
fn a_late_request_of_a_released_connection_is_a_new_request() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.connects(BOB);
    let req = alice.sends(Attribute::REQ);
    bob.takes(&req);
    let b = bob.event().id();
    bob.cm.reject(bob.now, b, &RejectParams::default()).unwrap();
    bob.sent();
    bob.takes(&req);
    assert_ne!(bob.event().id(), b, "as for Linux, a repeated REQ after a lost REJ asks again");
}

#[test]
fn a_request_with_a_queue_pair_that_is_connected_releases_the_old_connection() {
    let Pair { mut alice, mut bob, b, .. } = connected();
    // The peer has restarted and lost the connection.
    alice.cm = Cm::new(Config { node_guid: ALICE_GUID, ..Config::default() }, Rng::new(99));
    let a = alice.connects(BOB);
    bob.takes(&alice.sends(Attribute::REQ));
    let sent = bob.sent();
    assert_eq!(sent.iter().map(kind).collect::<Vec<_>>(), [Attribute::REJ, Attribute::DREQ]);
    alice.takes(&sent[0]);
    let Event::Rejected(rejected) = alice.event() else { panic!() };
    assert_eq!((rejected.id, rejected.reason, rejected.timewait), (a, Reason::STALE_CONN, true));
    alice.takes(&sent[1]);
    bob.takes(&alice.sends(Attribute::DREP));
    assert!(matches!(bob.event(), Event::Disconnected { id, .. } if id == b));
    // The peer can connect now.
    alice.connects(BOB);
    bob.takes(&alice.sends(Attribute::REQ));
    assert!(matches!(bob.event(), Event::Request(_)));
}

#[test]
fn a_request_with_a_queue_pair_that_is_being_connected_is_stale_and_changes_nothing() {
    let Pair { mut alice, mut bob, b, .. } = requested();
    bob.accepts(b, 0x22);
    bob.sent();
    alice.connects(BOB);
    bob.takes(&alice.sends(Attribute::REQ));
    alice.takes(&bob.sends(Attribute::REJ));
    assert!(matches!(alice.event(), Event::Rejected(Rejected { reason: Reason::STALE_CONN, .. })));
    assert_eq!(bob.cm.state(b), Some(State::RepSent));
    bob.no_event();
}

#[test]
fn a_reply_with_an_id_that_is_connected_is_ignored() {
    let Pair { mut alice, bob, b, .. } = connected();
    let second = alice.connects_with(&ConnectParams { qp_num: 0x12, ..params(ALICE, BOB) });
    let Message::Req(req) = parse(&alice.sends(Attribute::REQ)) else { panic!() };
    let reply = rep::Repr {
        local_comm_id: bob.cm.table.get(b).unwrap().local_id,
        remote_comm_id: req.local_comm_id,
        local_ca_guid: BOB_GUID,
        local_qpn: 0x23,
        ..rep::Repr::default()
    };
    alice.takes_from(BOB, &Message::from(reply).emit(1, 0));
    alice.no_event();
    alice.sends_nothing();
    assert_eq!(alice.cm.state(second), Some(State::ReqSent));
}

#[test]
fn the_side_that_was_asked_does_not_answer_replies() {
    let Pair { mut alice, mut bob, a, b } = requested();
    bob.cm.prepare_mra(b, 24, mra::Data::default()).unwrap();
    bob.accepts(b, 0x22);
    alice.takes(&bob.sends(Attribute::REP));
    alice.event();
    alice.ready(a);
    bob.takes(&alice.sends(Attribute::RTU));
    bob.event();
    let connection = bob.cm.table.get(b).unwrap();
    let reply = rep::Repr {
        local_comm_id: connection.remote_id.unwrap(),
        remote_comm_id: connection.local_id,
        ..rep::Repr::default()
    };
    bob.takes_from(ALICE, &Message::from(reply).emit(1, 0));
    bob.sends_nothing();
}

#[test]
fn a_reply_with_a_queue_pair_that_is_connected_is_rejected_as_stale() {
    let Pair { mut alice, mut bob, a, .. } = connected();
    let second = alice.connects_with(&ConnectParams { qp_num: 0x12, ..params(ALICE, BOB) });
    bob.takes(&alice.sends(Attribute::REQ));
    let b = bob.event().id();
    bob.accepts(b, 0x22);
    alice.takes(&bob.sends(Attribute::REP));
    let sent = alice.sent();
    assert_eq!(sent.iter().map(kind).collect::<Vec<_>>(), [Attribute::REJ, Attribute::DREQ]);
    let Message::Rej(rej) = parse(&sent[0]) else { panic!() };
    assert_eq!((rej.reason, rej.message_rejected), (Reason::STALE_CONN, MsgResponse::REP));
    assert_eq!(alice.cm.state(second), Some(State::ReqSent), "another reply may come");
    bob.takes(&sent[1]);
    bob.sends_nothing();
    assert_eq!(alice.cm.state(a), Some(State::Established), "the peer knows it");
    bob.takes(&sent[0]);
    let Event::Rejected(rejected) = bob.event() else { panic!() };
    assert_eq!((rejected.id, rejected.timewait), (b, true));
}
