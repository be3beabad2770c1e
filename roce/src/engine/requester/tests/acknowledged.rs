//! Acknowledgements, NAKs, and packets that the requester must ignore.

use super::*;

#[test]
fn an_acknowledgement_ends_everything_up_to_it() {
    let mut f = Fixture::new(Service::Rc);
    let (a, b, c) = (f.post(WRITE, 8), f.post(SEND, 300), f.post(WRITE, 8));
    f.leaves();
    f.ack(2);
    assert_eq!(f.ended(), [(a, Status::Success), (b, Status::Success)]);
    f.ack(3);
    assert_eq!(f.ended(), [(c, Status::Success)]);
    assert_eq!(f.host.engine.query_qp(f.qpn).unwrap().1.sq_psn, 2);
}

#[test]
fn the_middle_of_a_message_ends_nothing() {
    let mut f = Fixture::new(Service::Rc);
    f.post(SEND, 600);
    f.leaves();
    f.ack(1);
    assert_eq!(f.ended(), []);
    f.ack(2);
    assert_eq!(f.ended().len(), 1);
}

#[test]
fn what_is_not_signalled_is_retired_before_what_is() {
    let mut f = Fixture::new(Service::Rc);
    f.post_flags(WRITE, 8, SendFlags::default());
    f.post_flags(WRITE, 8, SendFlags::default());
    f.leaves();
    f.ack(0);
    assert_eq!((f.ended().len(), f.host.log.retired_sends), (0, 1));
    let told = f.post(WRITE, 8);
    f.leaves();
    f.ack(2);
    assert_eq!((f.ended(), f.host.log.retired_sends), ([(told, Status::Success)].into(), 3));
}

#[test]
fn what_was_never_sent_cannot_be_acknowledged() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    f.leaves();
    for psn in [1, 2, 0x7f_ffff, 0xff_ffff] {
        f.ack(psn);
        f.nak(psn, NakCode::REMOTE_ACCESS_ERROR);
        f.rnr(psn);
    }
    assert_eq!((f.ended(), f.state()), (Vec::new(), State::Rts));
}

#[test]
fn an_acknowledgement_that_comes_twice_says_nothing_new() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    f.leaves();
    f.ack(0);
    f.ack(0);
    assert_eq!(f.ended().len(), 1);
}

#[test]
fn a_response_of_another_service_or_partition_is_dropped() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    f.leaves();
    let xrc = f.response(Opcode::XRC_ACKNOWLEDGE, 0, Syndrome::ACK);
    f.host.arrive(&xrc, &[]);
    let mut stranger = f.response(Opcode::RC_ACKNOWLEDGE, 0, Syndrome::ACK);
    stranger.bth.pkey = 0x8001;
    f.host.arrive(&stranger, &[]);
    assert_eq!(f.ended(), []);
    stranger.bth.pkey = 0x7fff;
    f.host.arrive(&stranger, &[]);
    assert_eq!(f.ended().len(), 1, "a limited member of the same partition");
}

#[test]
fn a_refusal_ends_what_came_before_then_fails_and_flushes() {
    let codes = [
        (NakCode::INVALID_REQUEST, Status::RemoteInvalidRequest),
        (NakCode::REMOTE_ACCESS_ERROR, Status::RemoteAccess),
        (NakCode::REMOTE_OPERATIONAL_ERROR, Status::RemoteOperation),
    ];
    for (code, status) in codes {
        let mut f = Fixture::new(Service::Rc);
        let (a, b, c) = (f.post(WRITE, 8), f.post(WRITE, 600), f.post(WRITE, 8));
        f.leaves();
        f.nak(2, code);
        assert_eq!(f.ended(), [(a, Status::Success), (b, status), (c, Status::Flushed)]);
        assert_eq!((f.state(), f.leaves()), (State::Err, Vec::new()));
        assert_eq!(f.host.log.retired_sends, 3);
    }
}

#[test]
fn a_refusal_is_told_even_if_it_was_not_signalled() {
    let mut f = Fixture::new(Service::Rc);
    let wr = f.post_flags(WRITE, 8, SendFlags::default());
    f.leaves();
    f.nak(0, NakCode::REMOTE_ACCESS_ERROR);
    assert_eq!(f.ended(), [(wr, Status::RemoteAccess)]);
}

#[test]
fn a_code_that_nobody_knows_is_ignored() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    f.leaves();
    f.nak(0, NakCode(17));
    f.acknowledge_with(0, Syndrome(0x5f));
    assert_eq!((f.ended(), f.state()), (Vec::new(), State::Rts));
}

#[test]
fn a_completion_queue_without_room_is_fatal() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    f.leaves();
    f.host.log.full = true;
    f.ack(0);
    let events = f.host.events();
    assert!(events.contains(&crate::engine::Event::QpFatal(f.qpn)), "{events:?}");
    assert_eq!(f.state(), State::Err);
}
