//! Tests of simulated errors: their consequences, and the number of outstanding work requests
//! before and after.

use alloc::vec::Vec;

use super::*;
use crate::engine::testing::{Host, connected, to};
use crate::engine::{
    Event, Payload, QpInit, RecvWr, SendFlags, SendOp, SendWr, Service, SrqId, State, Urgency,
};
use crate::wire::{Headers, NakCode, Opcode, Psn, Syndrome, bth};

fn qp(host: &mut Host, service: Service) -> Qpn {
    let init = host.init(service);
    host.qp(&init, &connected())
}

fn send(host: &mut Host, qpn: Qpn, wr_id: u64) {
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::default());
    let wr = SendWr { wr_id, op, flags, payload: Payload::Inline(&[1]), remote_srq: 0 };
    host.engine.post_send(qpn, &wr, host.now, &mut host.log).unwrap();
}

fn fail_send(host: &mut Host, qpn: Qpn, status: Status) -> bool {
    host.engine.fail_oldest_send(qpn, status, 0x89, host.now, &mut host.log)
}

fn fail_recv(host: &mut Host, qpn: Qpn, status: Status) -> bool {
    host.engine.fail_next_recv(qpn, status, 0x89, host.now, &mut host.log)
}

fn ended(host: &mut Host) -> Vec<(u64, Status, u32)> {
    host.completions().iter().map(|done| (done.wr_id, done.status, done.vendor_err)).collect()
}

fn request(qpn: Qpn, opcode: Opcode) -> Headers {
    Headers::new(bth::Repr::new(opcode, qpn.0, Psn::new(0xff_fffe)))
}

#[test]
fn a_send_that_fails_on_request_takes_a_reliable_queue_pair_along() {
    let mut host = Host::new();
    let qpn = qp(&mut host, Service::Rc);
    host.post_recv(qpn, 9, &[]);
    assert!(!fail_send(&mut host, qpn, Status::RetryExceeded), "nothing is outstanding");
    send(&mut host, qpn, 1);
    host.transmit(Urgency::Now).unwrap();
    send(&mut host, qpn, 2);
    assert!(!fail_send(&mut host, qpn, Status::Success));
    assert_eq!((host.state(qpn), host.engine.outstanding(qpn)), (State::Rts, Some((2, 1))));
    assert!(fail_send(&mut host, qpn, Status::RetryExceeded));
    assert_eq!(
        ended(&mut host),
        [(1, Status::RetryExceeded, 0x89), (2, Status::Flushed, 0), (9, Status::Flushed, 0)]
    );
    assert_eq!((host.state(qpn), host.engine.outstanding(qpn)), (State::Err, Some((0, 0))));
    assert_eq!((host.engine.in_flight(), host.sent().len()), (0, 0));
    assert!(!fail_send(&mut host, Qpn(0x99_9999), Status::RetryExceeded));
}

#[test]
fn a_send_that_fails_on_request_takes_an_unreliable_send_queue_along_only() {
    let mut host = Host::new();
    let qpn = qp(&mut host, Service::Uc);
    host.post_recv(qpn, 9, &[]);
    send(&mut host, qpn, 1);
    assert!(fail_send(&mut host, qpn, Status::LocalQpOperation));
    assert_eq!(ended(&mut host), [(1, Status::LocalQpOperation, 0x89)]);
    assert_eq!((host.state(qpn), host.engine.outstanding(qpn)), (State::Sqe, Some((0, 1))));
    host.modify(qpn, &to(State::Rts));
    send(&mut host, qpn, 2);
    assert_eq!(host.sent().len(), 1);
}

#[test]
fn a_receive_that_fails_on_request_refuses_the_peer_and_raises_its_event() {
    for (status, code, event) in [
        (Status::LocalLength, NakCode::INVALID_REQUEST, None),
        (Status::LocalProtection, NakCode::REMOTE_OPERATIONAL_ERROR, None),
        (Status::RemoteAccess, NakCode::REMOTE_ACCESS_ERROR, Some(Event::QpAccessError as fn(Qpn) -> Event)),
        (Status::RemoteInvalidRequest, NakCode::INVALID_REQUEST, Some(Event::QpRequestError)),
        (Status::LocalQpOperation, NakCode::REMOTE_OPERATIONAL_ERROR, Some(Event::QpFatal)),
    ] {
        let mut host = Host::new();
        let qpn = qp(&mut host, Service::Rc);
        assert!(!fail_recv(&mut host, qpn, status), "nothing is posted");
        host.post_recv(qpn, 1, &[]);
        host.post_recv(qpn, 2, &[]);
        assert!(fail_recv(&mut host, qpn, status));
        assert_eq!(ended(&mut host), [(1, status, 0x89), (2, Status::Flushed, 0)]);
        assert_eq!(host.events(), event.map(|event| event(qpn)).into_iter().collect::<Vec<_>>());
        let sent = host.sent();
        assert_eq!((sent.len(), sent[0].0.aeth.unwrap().syndrome), (1, Syndrome::nak(code)));
        assert_eq!((host.state(qpn), fail_recv(&mut host, qpn, status)), (State::Err, false));
    }
}

#[test]
fn the_receive_whose_message_arrives_fails_first() {
    let mut host = Host::new();
    let qpn = qp(&mut host, Service::Rc);
    let mr = host.register(1024, crate::engine::testing::ALL);
    host.post_recv(qpn, 1, &[mr.sge(0, 1024)]);
    host.arrive(&request(qpn, Opcode::RC_SEND_FIRST), &[0; 256]);
    assert!(fail_recv(&mut host, qpn, Status::LocalProtection));
    assert_eq!(ended(&mut host), [(1, Status::LocalProtection, 0x89)]);
}

#[test]
fn a_datagram_that_was_too_long_on_request_ends_its_receive_alone() {
    let mut host = Host::new();
    let qpn = qp(&mut host, Service::Ud);
    for wr_id in 1..=2 {
        host.post_recv(qpn, wr_id, &[]);
    }
    assert!(fail_recv(&mut host, qpn, Status::LocalLength));
    assert_eq!((ended(&mut host), host.state(qpn)), ([(1, Status::LocalLength, 0x89)].into(), State::Rts));
    assert!(fail_recv(&mut host, qpn, Status::LocalProtection));
    assert_eq!(ended(&mut host), [(2, Status::LocalProtection, 0x89)]);
    assert_eq!((host.state(qpn), host.sent().len()), (State::Err, 0));
}

#[test]
fn receives_of_a_shared_queue_are_outstanding_where_they_are() {
    let mut host = Host::new();
    let srq = host.engine.create_srq(host.pd, 4, 2, None).unwrap();
    let init = QpInit { srq: Some(srq), ..host.init(Service::Rc) };
    let qpn = host.qp(&init, &connected());
    let mr = host.register(1024, crate::engine::testing::ALL);
    for wr_id in 1..=2 {
        let sges = [mr.sge(0, 1024)];
        host.engine.post_srq_recv(srq, &RecvWr { wr_id, sges: &sges }).unwrap();
    }
    let outstanding = |host: &Host| (host.engine.srq_outstanding(srq), host.engine.outstanding(qpn));
    assert_eq!(outstanding(&host), (Some(2), Some((0, 0))));
    host.arrive(&request(qpn, Opcode::RC_SEND_FIRST), &[0; 256]);
    assert_eq!(outstanding(&host), (Some(1), Some((0, 1))));
    assert!(fail_recv(&mut host, qpn, Status::LocalProtection));
    assert_eq!(ended(&mut host), [(1, Status::LocalProtection, 0x89)]);
    assert_eq!(outstanding(&host), (Some(1), Some((0, 0))));
    assert_eq!(host.events(), [Event::LastWqeReached(qpn)]);
    assert_eq!((host.engine.srq_outstanding(SrqId(0)), host.engine.outstanding(Qpn(0))), (None, None));
}

#[test]
fn the_oldest_of_a_shared_queue_fails_between_messages() {
    let mut host = Host::new();
    let srq = host.engine.create_srq(host.pd, 4, 2, None).unwrap();
    let init = QpInit { srq: Some(srq), ..host.init(Service::Rc) };
    let qpn = host.qp(&init, &connected());
    host.engine.post_srq_recv(srq, &RecvWr { wr_id: 1, sges: &[] }).unwrap();
    assert!(fail_recv(&mut host, qpn, Status::RemoteAccess));
    assert_eq!((ended(&mut host), host.log.retired_srq), ([(1, Status::RemoteAccess, 0x89)].into(), 1));
    assert_eq!(host.events(), [Event::QpAccessError(qpn), Event::LastWqeReached(qpn)]);
}
