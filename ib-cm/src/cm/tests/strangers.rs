//! Messages that do not come from the peer: from another address, or from the peer's address but
//! with wrong ids.

use super::*;
use crate::wire::{MsgResponse, Mtu, Reason, apr, drep, lap, mad::Method, rej, rep, req, sidr_rep};

/// Returns one message of each kind that names a connection, filled with the given ids.
fn messages(local_comm_id: u32, remote_comm_id: u32, remote_qpn: u32) -> Vec<Message> {
    let mut all: Vec<Message> = vec![
        rep::Repr { local_comm_id, remote_comm_id, local_qpn: 7, ..rep::Repr::default() }.into(),
        rtu::Repr { local_comm_id, remote_comm_id, ..rtu::Repr::default() }.into(),
        dreq::Repr { local_comm_id, remote_comm_id, remote_qpn, ..dreq::Repr::default() }.into(),
        drep::Repr { local_comm_id, remote_comm_id, ..drep::Repr::default() }.into(),
        lap::Repr { local_comm_id, remote_comm_id, remote_qpn, ..lap::Repr::default() }.into(),
        apr::Repr { local_comm_id, remote_comm_id, ..apr::Repr::default() }.into(),
        sidr_rep::Repr { request_id: remote_comm_id, ..sidr_rep::Repr::default() }.into(),
    ];
    for message in [MsgResponse::REQ, MsgResponse::REP, MsgResponse::OTHER, MsgResponse(3)] {
        let service_timeout = 20;
        all.push(
            mra::Repr {
                local_comm_id,
                remote_comm_id,
                message_mraed: message,
                service_timeout,
                ..mra::Repr::default()
            }
            .into(),
        );
        for reason in [Reason::CONSUMER_DEFINED, Reason::STALE_CONN, Reason::TIMEOUT] {
            let ari = rej::Ari::new(&ALICE_GUID.to_be_bytes()).unwrap();
            all.push(
                rej::Repr {
                    local_comm_id,
                    remote_comm_id,
                    message_rejected: message,
                    reason,
                    ari,
                    ..rej::Repr::default()
                }
                .into(),
            );
        }
    }
    all
}

/// Returns Bob's side of one connection for each state that a message from the peer can change.
fn bobs() -> Vec<(State, Side, CmId)> {
    let Pair { bob, b, .. } = requested();
    let mut all = vec![(State::ReqRcvd, bob, b)];
    let Pair { mut bob, b, .. } = requested();
    bob.cm.prepare_mra(b, 24, mra::Data::default()).unwrap();
    all.push((State::MraReqSent, bob, b));
    let Pair { bob, b, .. } = replied();
    all.push((State::RepSent, bob, b));
    let Pair { mut alice, mut bob, a, b } = replied();
    alice.cm.send_mra(a, 20, mra::Data::default()).unwrap();
    bob.takes(&alice.sends(Attribute::MRA));
    bob.event();
    all.push((State::MraRepRcvd, bob, b));
    let Pair { bob, b, .. } = connected();
    all.push((State::Established, bob, b));
    let Pair { mut bob, b, .. } = connected();
    bob.disconnects(b);
    all.push((State::DreqSent, bob, b));
    let Pair { mut alice, mut bob, a, b } = connected();
    alice.disconnects(a);
    bob.takes(&alice.sends(Attribute::DREQ));
    bob.event();
    all.push((State::DreqRcvd, bob, b));
    for (_, bob, _) in &mut all {
        bob.sent();
    }
    all
}

/// Returns Alice's side of one connection for each state that a message from the peer can change.
fn alices() -> Vec<(State, Side, CmId)> {
    let Pair { alice, a, .. } = requested();
    let mut all = vec![(State::ReqSent, alice, a)];
    let Pair { mut alice, mut bob, a, b } = requested();
    bob.cm.send_mra(b, 20, mra::Data::default()).unwrap();
    alice.takes(&bob.sends(Attribute::MRA));
    alice.event();
    all.push((State::MraReqRcvd, alice, a));
    let Pair { alice, a, .. } = replied();
    all.push((State::RepRcvd, alice, a));
    let Pair { mut alice, a, .. } = replied();
    alice.cm.send_mra(a, 20, mra::Data::default()).unwrap();
    all.push((State::MraRepSent, alice, a));
    let Pair { alice, a, .. } = connected();
    all.push((State::Established, alice, a));
    for (_, alice, _) in &mut all {
        alice.sent();
    }
    all
}

#[test]
fn messages_from_another_address_change_nothing_even_with_all_ids() {
    for (state, mut side, id) in bobs().into_iter().chain(alices()) {
        let connection = side.cm.table.get(id).unwrap();
        let remote_id = connection.remote_id.unwrap_or(5);
        let (local_id, qpn, deadline) =
            (connection.local_id, connection.queue_pair.local_qpn, connection.deadline);
        for message in messages(remote_id, local_id, qpn) {
            side.takes_from(MALLORY, &message.emit(1, 0));
            assert_eq!(side.cm.state(id), Some(state), "{message:?}");
            side.no_event();
            // Only a DREQ gets a response, and no state is stored for it.
            let sent = side.sent();
            assert!(sent.iter().all(|sent| kind(sent) == Attribute::DREP && sent.to.remote == MALLORY));
            assert_eq!(side.cm.len(), 1);
        }
        assert_eq!(side.cm.table.get(id).unwrap().deadline, deadline, "{state:?}");
    }
}

#[test]
fn messages_under_the_peers_address_change_nothing_if_an_id_is_wrong() {
    for (state, mut side, id) in bobs().into_iter().chain(alices()) {
        let connection = side.cm.table.get(id).unwrap();
        let peer = connection.peer.remote;
        let (local_id, qpn) = (connection.local_id, connection.queue_pair.local_qpn);
        let wrong = match connection.remote_id {
            // Before the first response, an attacker has only one id to guess.
            None => vec![(5, local_id ^ 1), (5, 0)],
            Some(remote_id) => vec![(remote_id ^ 1, local_id), (remote_id, local_id ^ 1), (0, 0)],
        };
        for (remote_id, local_id) in wrong {
            for message in messages(remote_id, local_id, qpn) {
                side.takes_from(peer, &message.emit(1, 0));
                assert_eq!(side.cm.state(id), Some(state), "{message:?}");
                side.no_event();
                assert!(side.sent().iter().all(|sent| kind(sent) == Attribute::DREP), "{message:?}");
            }
        }
    }
}

#[test]
fn only_what_is_not_established_can_be_given_up_without_the_receivers_id() {
    for (state, mut bob, b) in bobs() {
        let local_comm_id = bob.cm.table.get(b).unwrap().remote_id.unwrap();
        let ari = rej::Ari::new(&ALICE_GUID.to_be_bytes()).unwrap();
        let message = rej::Repr { local_comm_id, reason: Reason::TIMEOUT, ari, ..rej::Repr::default() };
        let mad = Message::from(message).emit(1, 0);
        bob.takes_from(MALLORY, &mad);
        assert_eq!(bob.cm.state(b), Some(state));
        bob.takes_from(ALICE, &mad);
        match state {
            State::ReqRcvd | State::MraReqSent | State::RepSent | State::MraRepRcvd => {
                assert!(matches!(bob.event(), Event::Rejected(_)));
                bob.has_nothing_left();
            }
            _ => assert_eq!(bob.cm.state(b), Some(state)),
        }
    }
}

#[test]
fn a_request_from_another_address_does_not_make_a_connection_stale() {
    let Pair { mut alice, mut bob, b, .. } = connected();
    let second = ConnectParams { path: path(MALLORY, BOB), ..params(ALICE, BOB) };
    alice.connects_with(&second);
    let sent = alice.sends(Attribute::REQ);
    // The GUID and the queue pair are those of the peer, but the address differs.
    bob.takes_from(MALLORY, &sent.mad);
    assert!(matches!(bob.event(), Event::Request(_)), "it is a request of its own");
    bob.sends_nothing();
    assert_eq!(bob.cm.state(b), Some(State::Established));
}

/// Returns a REQ from Alice's address, with her GUID and the number of her queue pair.
fn guess(local_comm_id: u32, service_id: ServiceId) -> Mad {
    let primary = crate::wire::path::Repr { local_gid: ALICE, remote_gid: BOB, ..Default::default() };
    let (local_ca_guid, local_qpn, path_mtu) = (ALICE_GUID, 0x11, Mtu::B1024);
    let request = req::Repr {
        local_comm_id,
        service_id,
        local_ca_guid,
        local_qpn,
        path_mtu,
        primary,
        ..req::Repr::default()
    };
    Message::from(request).emit(1, 0)
}

#[test]
fn a_guessed_queue_pair_ends_no_connection_that_the_peer_knows() {
    let Pair { mut alice, mut bob, a, b } = connected();
    let mut questions = 0;
    for round in 0..100 {
        bob.takes_from(ALICE, &guess(round, SERVICE));
        for sent in bob.sent() {
            let Message::Rej(rej) = parse(&sent) else {
                questions += 1;
                alice.takes(&sent);
                continue;
            };
            assert_eq!(rej.reason, Reason::STALE_CONN);
        }
        alice.sends_nothing();
        bob.now = bob.now + 100 * MILLISECOND;
    }
    assert_eq!(questions, 10, "one a second");
    for (side, id) in [(&mut alice, a), (&mut bob, b)] {
        side.no_event();
        assert_eq!((side.cm.state(id), side.cm.len()), (Some(State::Established), 1));
    }
}

#[test]
fn a_guess_for_a_service_without_a_listener_learns_nothing_of_queue_pairs() {
    let Pair { mut bob, b, .. } = connected();
    bob.takes_from(ALICE, &guess(7, ServiceId(9)));
    let Message::Rej(rej) = parse(&bob.sends(Attribute::REJ)) else { panic!() };
    assert_eq!(rej.reason, Reason::INVALID_SERVICE_ID);
    assert_eq!(bob.cm.state(b), Some(State::Established));
}

#[test]
fn only_the_answer_to_a_question_says_that_the_peer_has_restarted() {
    let Pair { mut bob, b, .. } = connected();
    bob.takes_from(ALICE, &guess(7, SERVICE));
    let question = bob.sent().into_iter().find(|sent| kind(sent) == Attribute::DREQ).unwrap();
    let Message::Dreq(dreq) = parse(&question) else { panic!() };
    let drep = |local_comm_id, remote_comm_id, tid| {
        let drep = drep::Repr { local_comm_id, remote_comm_id, ..drep::Repr::default() };
        Message::from(drep).emit(tid, 0)
    };
    let tid = header(&question).tid;
    for (local, remote, tid) in [(0, 1, tid), (1, 0, tid), (0, 0, tid ^ 1)] {
        bob.takes_from(ALICE, &drep(dreq.remote_comm_id ^ local, dreq.local_comm_id ^ remote, tid));
        assert_eq!(bob.cm.state(b), Some(State::Established));
    }
    bob.takes_from(ALICE, &drep(dreq.remote_comm_id, dreq.local_comm_id, tid));
    assert!(matches!(bob.event(), Event::Disconnected { id, private_data: Some(_) } if id == b));
    assert_eq!(bob.cm.state(b), Some(State::Timewait));
}

#[test]
fn a_request_that_speaks_for_another_address_is_rejected() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.connects(BOB);
    let sent = alice.sends(Attribute::REQ);
    bob.takes_from(MALLORY, &sent.mad);
    let sent = bob.sends(Attribute::REJ);
    assert_eq!(sent.to.remote, MALLORY, "the response goes to where the request came from");
    let Message::Rej(rej) = parse(&sent) else { panic!() };
    assert_eq!((rej.reason, rej.reject_info_length), (Reason::INVALID_GID, 16));
    assert_eq!(rej.ari.bytes()[..16], MALLORY);
    bob.has_nothing_left();
}

#[test]
fn the_same_ids_of_another_peer_are_another_request() {
    let (mut alice, mut bob) = (alice(), bob());
    alice.connects(BOB);
    let sent = alice.sends(Attribute::REQ);
    bob.takes(&sent);
    let b = bob.event().id();
    let Message::Req(req) = parse(&sent) else { panic!() };
    let primary = crate::wire::path::Repr { local_gid: MALLORY, ..req.primary };
    bob.takes_from(MALLORY, &Message::from(req::Repr { primary, ..req }).emit(1, 0));
    assert_ne!(bob.event().id(), b);
}

#[test]
fn one_message_gets_at_most_one_answer_unless_the_peer_has_restarted() {
    let mut rng = Rng::new(3);
    for (_, mut side, _) in bobs().into_iter().chain(alices()) {
        for round in 0..500 {
            let mut mad = [0; 256];
            rng.fill(&mut mad);
            mad[..4].copy_from_slice(&[1, 7, 2, [1, 2, 3, 3, 3, 3, 0x81][round % 7]]);
            mad[16..18].copy_from_slice(&[0, 0x0f + (round % 13) as u8]);
            side.takes_from(MALLORY, &mad);
            let sent = side.sent();
            assert!(sent.len() <= 1 && sent.iter().all(|sent| sent.to.remote == MALLORY));
            side.no_event();
        }
        assert_eq!(side.cm.len(), 1);
    }
}

#[test]
fn responses_to_what_is_unknown_are_not_answered_themselves() {
    let (mut alice, mut bob) = (alice(), bob());
    let mut rng = Rng::new(4);
    for round in 0..2000 {
        let mut mad = [0; 256];
        rng.fill(&mut mad);
        mad[..4].copy_from_slice(&[1, 7, 2, [1, 2, 3, 3, 3, 3, 0x81][round % 7]]);
        mad[16..18].copy_from_slice(&[0, 0x0f + (round % 13) as u8]);
        bob.takes_from(ALICE, &mad);
        for sent in bob.sent() {
            assert_ne!(header(&sent).method, Method::GET);
            alice.takes(&sent);
            alice.sends_nothing();
        }
    }
}

#[test]
fn ids_are_drawn_and_differ() {
    let mut alice = alice();
    let mut ids = std::collections::BTreeSet::new();
    let mut tids = std::collections::BTreeSet::new();
    for qp_num in 0..1000 {
        alice.connects_with(&ConnectParams { qp_num, ..params(ALICE, BOB) });
        let sent = alice.sends(Attribute::REQ);
        let Message::Req(req) = parse(&sent) else { panic!() };
        assert!(ids.insert(req.local_comm_id) && tids.insert(header(&sent).tid));
    }
    let sum: u64 = ids.iter().map(|id| u64::from(*id)).sum();
    assert!((1 << 30..3 << 30).contains(&(sum / 1000)), "they are spread");
}
