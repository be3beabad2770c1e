//! Service id resolution.

use super::*;
use crate::wire::{Ece, sidr_rep, sidr_req};

fn asked() -> (Side, Side, CmId, Transmit) {
    let (mut alice, bob) = (alice(), bob());
    let params = SidrParams {
        private_data: sidr_req::Data::new(b"who").unwrap(),
        ..SidrParams::new(Address::gsi(ALICE, BOB), SERVICE)
    };
    let id = alice.cm.sidr_request(alice.now, &params).unwrap();
    let sent = alice.sends(Attribute::SIDR_REQ);
    (alice, bob, id, sent)
}

#[test]
fn a_resolution_finds_the_queue_pair_of_a_service() {
    let (mut alice, mut bob, a, req) = asked();
    bob.takes(&req);
    let Event::SidrRequest(request) = bob.event() else { panic!() };
    assert_eq!((request.service_id, request.pkey), (SERVICE, 0xffff));
    assert_eq!(request.private_data, sidr_req::Data::new(b"who").unwrap());
    let params = SidrReplyParams {
        qp_num: 0x44,
        qkey: 0x0123_4567,
        ece: Ece { vendor_id: 0x15b3, attr_mod: 9 },
        private_data: sidr_rep::Data::new(b"me").unwrap(),
        ..SidrReplyParams::default()
    };
    bob.cm.sidr_reply(request.id, &params).unwrap();
    bob.has_nothing_left();
    let rep = bob.sends(Attribute::SIDR_REP);
    assert_eq!(header(&rep).tid, header(&req).tid);
    alice.takes(&rep);
    let event = alice.event();
    let Event::SidrReply(reply) = event else { panic!() };
    assert!(event.is_last());
    assert_eq!((reply.id, reply.status), (a, sidr_rep::Status::VALID));
    assert_eq!((reply.qpn, reply.qkey, reply.ece), (0x44, 0x0123_4567, params.ece));
    assert_eq!(reply.private_data, params.private_data);
    alice.has_nothing_left();
    alice.takes(&rep);
    alice.no_event();
}

#[test]
fn a_resolution_without_listener_says_so() {
    let (mut alice, mut bob, _, req) = asked();
    let listener = bob.cm.listeners.find(SERVICE).unwrap();
    bob.cm.unlisten(listener).unwrap();
    bob.takes(&req);
    bob.has_nothing_left();
    alice.takes(&bob.sends(Attribute::SIDR_REP));
    assert!(matches!(
        alice.event(),
        Event::SidrReply(SidrReply { status: sidr_rep::Status::UNSUPPORTED, .. })
    ));
}

#[test]
fn a_resolution_that_waits_for_the_program_is_reported_once() {
    let (_, mut bob, _, req) = asked();
    bob.takes(&req);
    let id = bob.event().id();
    bob.takes(&req);
    bob.no_event();
    bob.sends_nothing();
    // The same request id from another address is another request.
    bob.takes_from(MALLORY, &req.mad);
    assert_ne!(bob.event().id(), id);
}

#[test]
fn a_resolution_is_sent_again_and_given_up() {
    let (mut alice, _, a, req) = asked();
    for _ in 0..15 {
        assert_eq!(alice.waits(), 4096);
        assert_eq!(alice.sends(Attribute::SIDR_REQ), req);
    }
    alice.waits();
    alice.sends_nothing();
    assert_eq!(alice.event(), Event::Unreachable { id: a });
    alice.has_nothing_left();
}

#[test]
fn numbers_of_resolutions_that_exceed_their_fields_are_refused() {
    let (mut alice, mut bob, a, req) = asked();
    let bad = SidrParams { timeout: 32, ..SidrParams::new(Address::gsi(ALICE, BOB), SERVICE) };
    assert!(matches!(alice.cm.sidr_request(alice.now, &bad), Err(Refused::Invalid(_))));
    bob.takes(&req);
    let b = bob.event().id();
    let bad = SidrReplyParams { qp_num: 1 << 24, ..SidrReplyParams::default() };
    assert!(matches!(bob.cm.sidr_reply(b, &bad), Err(Refused::Invalid(_))));
    let bad = SidrReplyParams { info_length: 73, ..SidrReplyParams::default() };
    assert!(matches!(bob.cm.sidr_reply(b, &bad), Err(Refused::Invalid(_))));
    assert_eq!(alice.cm.sidr_reply(a, &SidrReplyParams::default()), Err(Refused::State(State::SidrReqSent)));
}
