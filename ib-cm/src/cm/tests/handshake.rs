//! Handshakes that succeed or are rejected, without losses.

use super::*;
use crate::wire::{Ece, MsgResponse, Mtu, Reason, rej};

#[test]
fn a_handshake_connects_both_sides() {
    let Pair { alice, bob, a, b } = connected();
    assert_eq!(alice.cm.state(a), Some(State::Established));
    assert_eq!(bob.cm.state(b), Some(State::Established));
    assert_eq!((alice.cm.deadline(), bob.cm.deadline()), (None, None), "nothing is waited for");
}

#[test]
fn both_queue_pairs_get_attributes_that_match() {
    let Pair { alice, bob, a, b } = connected();
    let (a, b) = (alice.cm.qp_attr(a).unwrap(), bob.cm.qp_attr(b).unwrap());
    assert_eq!((a.dest_qpn, b.dest_qpn), (0x22, 0x11));
    assert_eq!((a.rq_psn, a.sq_psn), (0xa11, 0xb0b));
    assert_eq!((b.rq_psn, b.sq_psn), (0xb0b, 0xa11));
    assert_eq!((a.path.local, a.path.remote), (b.path.remote, b.path.local));
    assert_eq!((a.path_mtu, b.path_mtu), (Mtu::B1024, Mtu::B1024));
    assert_eq!((a.retry_cnt, b.retry_cnt), (7, 7));
    assert_eq!((a.rnr_retry, b.rnr_retry), (6, 7), "each side has the number that the other asked for");
    // Two packets of code 16 give code 17; the device's delay of code 15 adds no step. Only the
    // requester knows its peer's delay.
    assert_eq!((a.timeout, b.timeout), (17, 17));
}

#[test]
fn depths_are_reported_from_the_point_of_view_of_each_side() {
    let (mut alice, mut bob) = (alice(), bob());
    let a = alice.connects(BOB);
    bob.takes(&alice.sends(Attribute::REQ));
    let Event::Request(request) = bob.event() else { panic!() };
    assert_eq!((request.responder_resources, request.initiator_depth), (4, 3));
    let params = AcceptParams { responder_resources: 2, initiator_depth: 1, ..AcceptParams::default() };
    bob.cm.accept(bob.now, request.id, &params).unwrap();
    alice.takes(&bob.sends(Attribute::REP));
    let Event::Reply(reply) = alice.event() else { panic!() };
    assert_eq!((reply.responder_resources, reply.initiator_depth), (1, 2));
    let attr = alice.cm.qp_attr(a).unwrap();
    assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), (1, 2));
    let attr = bob.cm.qp_attr(request.id).unwrap();
    assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), (2, 1));
}

#[test]
fn a_request_describes_its_sender() {
    let (mut alice, mut bob) = (alice(), bob());
    let ece = Ece { vendor_id: 0x15b3, attr_mod: 0x1000_0001 };
    let alternate = Path { flow_label: 7, ..path(ALICE, BOB) };
    let private_data = crate::wire::req::Data::new(b"hello").unwrap();
    let path = Path { traffic_class: 0x68, flow_label: 0xabcde, ..path(ALICE, BOB) };
    let asked = ConnectParams { path, ece, alternate: Some(alternate), private_data, ..params(ALICE, BOB) };
    alice.connects_with(&asked);
    let sent = alice.sends(Attribute::REQ);
    assert_eq!((sent.to.traffic_class, sent.to.flow_label), (0x68, 0xabcde), "messages take the path");
    bob.takes(&sent);
    let Event::Request(request) = bob.event() else { panic!() };
    assert_eq!(request.from, Address::gsi(BOB, ALICE));
    assert_eq!(request.service_id, SERVICE);
    assert_eq!((request.remote_ca_guid, request.remote_qpn), (ALICE_GUID, 0x11));
    assert_eq!((request.pkey, request.transport), (0xffff, Transport::Rc));
    assert_eq!(request.ece, ece);
    assert_eq!(request.private_data, private_data);
    // 17 is the acknowledgement timeout code for two packets of code 16.
    assert_eq!(request.path, Path { local: BOB, remote: ALICE, ..path });
    assert_eq!(request.alternate, Some(Path { local: BOB, remote: ALICE, ..alternate }));
    assert_eq!((request.local_cm_response_timeout, request.remote_cm_response_timeout), (20, 20));
    bob.accepts(request.id, 0x22);
    let sent = bob.sends(Attribute::REP);
    assert_eq!((sent.to.traffic_class, sent.to.flow_label), (0x68, 0xabcde), "and so do responses");
}

#[test]
fn a_reply_carries_options_and_private_data() {
    let Pair { mut alice, mut bob, b, .. } = requested();
    let ece = Ece { vendor_id: 0x12_15b3, attr_mod: 3 };
    let private_data = crate::wire::rep::Data::new(b"welcome").unwrap();
    bob.cm.accept(bob.now, b, &AcceptParams { ece, private_data, ..AcceptParams::default() }).unwrap();
    alice.takes(&bob.sends(Attribute::REP));
    let Event::Reply(reply) = alice.event() else { panic!() };
    assert_eq!((reply.ece, reply.private_data, reply.remote_ca_guid), (ece, private_data, BOB_GUID));
    assert_eq!(reply.target_ack_delay, 15);
}

#[test]
fn messages_of_a_handshake_have_the_transaction_id_of_the_request() {
    let (mut alice, mut bob) = (alice(), bob());
    let a = alice.connects(BOB);
    let req = alice.sends(Attribute::REQ);
    bob.takes(&req);
    let b = bob.event().id();
    bob.accepts(b, 0x22);
    let rep = bob.sends(Attribute::REP);
    alice.takes(&rep);
    alice.event();
    alice.ready(a);
    let rtu = alice.sends(Attribute::RTU);
    assert_eq!([&rep, &rtu].map(|sent| header(sent).tid), [header(&req).tid; 2]);
    assert_ne!(header(&req).tid, 0);
}

#[test]
fn unreliable_connections_say_so() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.connects_with(&ConnectParams { transport: Transport::Uc, ..params(ALICE, BOB) });
    bob.takes(&alice.sends(Attribute::REQ));
    assert!(matches!(bob.event(), Event::Request(Request { transport: Transport::Uc, .. })));
}

#[test]
fn an_xrc_initiator_has_no_receive_side_and_learns_the_target_queue_pair() {
    let (mut alice, mut bob) = (alice(), bob());
    let a =
        alice.connects_with(&ConnectParams { transport: Transport::Xrc, srq: true, ..params(ALICE, BOB) });
    let sent = alice.sends(Attribute::REQ);
    let Message::Req(req) = parse(&sent) else { panic!() };
    assert_eq!((req.responder_resources, req.retry_count, req.rnr_retry_count, req.srq), (0, 0, 0, false));
    bob.takes(&sent);
    let Event::Request(request) = bob.event() else { panic!() };
    assert_eq!(request.transport, Transport::Xrc);
    bob.accepts(request.id, 0x33);
    let sent = bob.sends(Attribute::REP);
    let Message::Rep(rep) = parse(&sent) else { panic!() };
    assert_eq!((rep.local_qpn, rep.local_eecn, rep.srq), (0, 0x33, true));
    alice.takes(&sent);
    assert!(matches!(alice.event(), Event::Reply(Reply { remote_qpn: 0x33, .. })));
    assert_eq!(alice.cm.qp_attr(a).unwrap().dest_qpn, 0x33);
}

#[test]
fn a_path_over_ip_has_permissive_local_ids_and_a_local_one_none() {
    let mut alice = alice();
    for (hop_limit, lid, subnet_local) in [(64, 0xffff, false), (1, 0, true)] {
        let path = Path { hop_limit, ..path(ALICE, BOB) };
        alice.connects_with(&ConnectParams { path, ..params(ALICE, BOB) });
        let Message::Req(req) = parse(&alice.sends(Attribute::REQ)) else { panic!() };
        assert_eq!((req.primary.local_lid, req.primary.remote_lid), (lid, lid));
        assert_eq!((req.primary.subnet_local, req.primary.local_ack_timeout), (subnet_local, 17));
        assert!(!req.has_alternate());
    }
}

#[test]
fn a_request_for_a_service_without_listener_is_rejected() {
    let (mut alice, mut bob) = (alice(), bob());
    let service_id = ServiceId::ip(PortSpace::TCP, 7175);
    let a = alice.connects_with(&ConnectParams { service_id, ..params(ALICE, BOB) });
    let req = alice.sends(Attribute::REQ);
    bob.takes(&req);
    bob.has_nothing_left();
    let sent = bob.sends(Attribute::REJ);
    let Message::Rej(rej) = parse(&sent) else { panic!() };
    assert_eq!((rej.local_comm_id, rej.message_rejected), (0, MsgResponse::REQ));
    assert_eq!(header(&sent).tid, header(&req).tid);
    alice.takes(&sent);
    let event = alice.event();
    let Event::Rejected(rejected) = event else { panic!() };
    assert_eq!((rejected.id, rejected.reason, rejected.timewait), (a, Reason::INVALID_SERVICE_ID, false));
    assert!(event.is_last());
    alice.has_nothing_left();
}

#[test]
fn a_program_rejects_with_private_data_and_additional_information() {
    for with_mra in [false, true] {
        let Pair { mut alice, mut bob, b, .. } = requested();
        if with_mra {
            bob.cm.prepare_mra(b, 24, mra::Data::default()).unwrap();
        }
        let params = RejectParams {
            ari: rej::Ari::new(b"info").unwrap(),
            ari_length: 4,
            private_data: rej::Data::new(b"busy").unwrap(),
            ..RejectParams::default()
        };
        bob.cm.reject(bob.now, b, &params).unwrap();
        bob.has_nothing_left();
        bob.no_event();
        alice.takes(&bob.sends(Attribute::REJ));
        let Event::Rejected(rejected) = alice.event() else { panic!() };
        assert_eq!(rejected.reason, Reason::CONSUMER_DEFINED);
        assert_eq!((rejected.ari, rejected.ari_length), (params.ari, 4));
        assert_eq!(rejected.private_data, params.private_data);
        alice.has_nothing_left();
    }
}

#[test]
fn a_reply_can_be_rejected() {
    for with_mra in [false, true] {
        let Pair { mut alice, mut bob, a, b } = replied();
        if with_mra {
            alice.cm.prepare_mra(a, 24, mra::Data::default()).unwrap();
        }
        alice.cm.reject(alice.now, a, &RejectParams::default()).unwrap();
        alice.has_nothing_left();
        let sent = alice.sends(Attribute::REJ);
        let Message::Rej(rej) = parse(&sent) else { panic!() };
        assert_eq!(rej.message_rejected, MsgResponse::REP);
        bob.takes(&sent);
        assert!(matches!(bob.event(), Event::Rejected(Rejected { id, .. }) if id == b));
        bob.has_nothing_left();
    }
}

#[test]
fn a_request_can_be_given_up_before_and_after_the_peer_has_accepted() {
    let Pair { mut alice, mut bob, a, .. } = requested();
    alice
        .cm
        .reject(alice.now, a, &RejectParams { reason: Reason::TIMEOUT, ..RejectParams::default() })
        .unwrap();
    alice.has_nothing_left();
    // This REJ has no GUID, so the peer cannot identify the request. `destroy` would add the GUID.
    bob.takes(&alice.sends(Attribute::REJ));
    bob.no_event();

    let Pair { mut alice, mut bob, b, .. } = replied();
    bob.cm.reject(bob.now, b, &RejectParams::default()).unwrap();
    assert_eq!(bob.cm.state(b), Some(State::Timewait), "the peer may be sending already");
    alice.takes(&bob.sends(Attribute::REJ));
    let Event::Rejected(rejected) = alice.event() else { panic!() };
    assert!(rejected.timewait);
    for side in [&mut alice, &mut bob] {
        assert_eq!(side.waits(), 512);
        assert!(matches!(side.event(), Event::TimewaitExit { .. }));
        side.has_nothing_left();
    }
}

#[test]
fn an_unknown_transport_is_rejected_by_name() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.connects(BOB);
    let sent = alice.sends(Attribute::REQ);
    let Message::Req(req) = parse(&sent) else { panic!() };
    for (transport_service_type, extended_transport_type) in [(2, 0), (3, 0), (3, 2)] {
        let req = crate::wire::req::Repr { transport_service_type, extended_transport_type, ..req };
        bob.takes_from(ALICE, &Message::from(req).emit(1, 0));
        let Message::Rej(rej) = parse(&bob.sends(Attribute::REJ)) else { panic!() };
        assert_eq!(rej.reason, Reason::INVALID_TRANSPORT_TYPE);
    }
    bob.has_nothing_left();
}

#[test]
fn a_packet_of_the_peer_takes_the_place_of_its_lost_rtu() {
    let Pair { mut alice, mut bob, a, b } = replied();
    alice.ready(a);
    let rtu = alice.sends(Attribute::RTU);
    bob.cm.established(b).unwrap();
    assert_eq!(bob.event(), Event::Established { id: b, private_data: None });
    assert_eq!(bob.cm.deadline(), None);
    bob.takes(&rtu);
    bob.no_event();
    assert_eq!(bob.cm.established(b), Err(Refused::State(State::Established)));
}

#[test]
fn a_packet_takes_the_place_of_an_rtu_that_the_peer_delays() {
    let Pair { mut alice, mut bob, a, b } = replied();
    alice.cm.send_mra(a, 20, mra::Data::default()).unwrap();
    bob.takes(&alice.sends(Attribute::MRA));
    bob.event();
    bob.cm.established(b).unwrap();
    assert_eq!(bob.event(), Event::Established { id: b, private_data: None });
    assert_eq!(bob.cm.deadline(), None);
}

#[test]
fn calls_in_the_wrong_state_are_refused_and_change_nothing() {
    let Pair { mut alice, mut bob, a, b } = requested();
    assert_eq!(alice.cm.ready_to_use(a, rtu::Data::default()), Err(Refused::State(State::ReqSent)));
    assert_eq!(alice.cm.accept(alice.now, a, &AcceptParams::default()), Err(Refused::State(State::ReqSent)));
    assert_eq!(alice.cm.disconnect(alice.now, a, dreq::Data::default()), Err(Refused::State(State::ReqSent)));
    assert_eq!(alice.cm.qp_attr(a), Err(Refused::State(State::ReqSent)), "the peer is not known yet");
    assert_eq!(alice.cm.send_mra(a, 20, mra::Data::default()), Err(Refused::State(State::ReqSent)));
    assert_eq!(bob.cm.established(b), Err(Refused::State(State::ReqRcvd)));
    alice.sends_nothing();
    bob.sends_nothing();
    let Pair { mut alice, a, .. } = connected();
    assert_eq!(
        alice.cm.reject(alice.now, a, &RejectParams::default()),
        Err(Refused::State(State::Established))
    );
    assert_eq!(alice.cm.state(a), Some(State::Established));
}

#[test]
fn numbers_that_exceed_their_fields_are_refused() {
    let mut alice = alice();
    let good = params(ALICE, BOB);
    for bad in [
        ConnectParams { qp_num: 1 << 24, ..good },
        ConnectParams { starting_psn: 1 << 24, ..good },
        ConnectParams { retry_count: 8, ..good },
        ConnectParams { rnr_retry_count: 8, ..good },
        ConnectParams { max_cm_retries: 16, ..good },
        ConnectParams { local_cm_response_timeout: 32, ..good },
        ConnectParams { remote_cm_response_timeout: 32, ..good },
        ConnectParams { path: Path { packet_life_time: 32, ..good.path }, ..good },
    ] {
        assert!(matches!(alice.cm.connect(alice.now, &bad), Err(Refused::Invalid(_))), "{bad:?}");
    }
    let Pair { mut bob, b, .. } = requested();
    for bad in [
        AcceptParams { qp_num: 1 << 24, ..AcceptParams::default() },
        AcceptParams { starting_psn: 1 << 24, ..AcceptParams::default() },
        AcceptParams { rnr_retry_count: 8, ..AcceptParams::default() },
    ] {
        assert!(matches!(bob.cm.accept(bob.now, b, &bad), Err(Refused::Invalid(_))));
    }
    let bad = RejectParams { ari_length: 73, ..RejectParams::default() };
    assert!(matches!(bob.cm.reject(bob.now, b, &bad), Err(Refused::Invalid(_))));
    assert!(matches!(bob.cm.send_mra(b, 32, mra::Data::default()), Err(Refused::Invalid(_))));
    assert_eq!(bob.cm.state(b), Some(State::ReqRcvd));
}

#[test]
fn a_device_connects_to_itself() {
    let mut alice = alice();
    alice.cm.listen(SERVICE, u64::MAX, 1).unwrap();
    let a = alice.connects(ALICE);
    let sent = alice.sends(Attribute::REQ);
    alice.takes(&sent);
    let b = alice.event().id();
    alice.accepts(b, 0x22);
    let sent = alice.sends(Attribute::REP);
    alice.takes(&sent);
    alice.event();
    alice.ready(a);
    let sent = alice.sends(Attribute::RTU);
    alice.takes(&sent);
    assert_eq!(alice.event().id(), b);
    alice.disconnects(a);
    let sent = alice.sends(Attribute::DREQ);
    alice.takes(&sent);
    assert_eq!(alice.event().id(), b);
    alice.disconnects(b);
    let sent = alice.sends(Attribute::DREP);
    alice.takes(&sent);
    assert_eq!(alice.event().id(), a);
    alice.waits();
    alice.has_nothing_left();
}

#[test]
fn a_request_with_an_mtu_that_has_no_meaning_is_rejected() {
    for mtu in [0, 6, 7, 15] {
        let (mut alice, mut bob) = (alice(), bob());
        let a = alice.connects_with(&ConnectParams { path_mtu: Mtu(mtu), ..params(ALICE, BOB) });
        bob.takes(&alice.sends(Attribute::REQ));
        bob.no_event();
        bob.has_nothing_left();
        alice.takes(&bob.sends(Attribute::REJ));
        let Event::Rejected(rejected) = alice.event() else { panic!() };
        assert_eq!((rejected.id, rejected.reason, rejected.timewait), (a, Reason::INVALID_MTU, false));
    }
}
