//! Lost, out-of-order and duplicate packets, and packets that find no receive.

use super::*;
use crate::engine::Urgency;

#[test]
fn what_is_missing_is_asked_for_once() {
    let mut f = Fixture::new(Service::Rc);
    let missing = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
    for n in 1..4 {
        let headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[n; 4], 8, 4);
        f.host.arrive(&headers, &[n; 4]);
    }
    assert_eq!(f.sent(), [nak(0xff_fffe, NakCode::PSN_SEQUENCE_ERROR)]);
    assert_eq!(f.bytes(8, 4), [8, 9, 10, 11]);
    f.host.arrive(&missing, &[1; 4]);
    assert_eq!(f.sent(), [ack(0xff_fffe)]);
    // A packet has been accepted since, so the next gap causes another NAK.
    f.psn = Psn::new(2);
    let early = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
    f.host.arrive(&early, &[1; 4]);
    assert_eq!(f.sent(), [nak(0xff_ffff, NakCode::PSN_SEQUENCE_ERROR)]);
}

#[test]
fn a_gap_that_closes_before_it_was_told_is_not_told() {
    let mut f = Fixture::new(Service::Rc);
    let first = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
    let second = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[2; 4], 0, 4);
    f.host.arrive(&second, &[2; 4]);
    f.host.arrive(&first, &[1; 4]);
    f.host.arrive(&second, &[2; 4]);
    assert_eq!(f.sent(), [ack(0xff_ffff)]);
}

#[test]
fn a_duplicate_is_acknowledged_and_not_carried_out() {
    let mut f = Fixture::new(Service::Rc);
    f.post(1, 0, 4);
    f.post(2, 4, 4);
    let send = f.request(Opcode::RC_SEND_ONLY, &[7; 4]);
    f.host.arrive(&send, &[7; 4]);
    let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 8, 4);
    f.host.arrive(&write, &[1; 4]);
    assert_eq!(f.sent(), [ack(0xff_ffff)]);
    f.host.arrive(&send, &[8; 4]);
    f.host.arrive(&write, &[9; 4]);
    assert_eq!(f.host.completions().len(), 1);
    assert_eq!(f.bytes(0, 12), [7, 7, 7, 7, 4, 5, 6, 7, 1, 1, 1, 1]);
    // The acknowledgement carries the latest sequence number, not that of the duplicate.
    assert_eq!(f.sent(), [ack(0xff_ffff)]);
}

#[test]
fn without_a_receive_a_send_is_put_off() {
    let mut f = Fixture::new(Service::Rc);
    let send = f.request(Opcode::RC_SEND_ONLY, &[7; 4]);
    f.host.arrive(&send, &[7; 4]);
    let next = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 8, 4);
    f.host.arrive(&next, &[1; 4]);
    assert_eq!(f.sent(), [rnr(0xff_fffe, 12)]);
    f.post(1, 0, 4);
    f.host.arrive(&send, &[7; 4]);
    f.host.arrive(&next, &[1; 4]);
    assert_eq!(f.host.completions().len(), 1);
    assert_eq!(f.sent(), [ack(0xff_ffff)]);
}

#[test]
fn without_a_receive_a_write_with_immediate_is_put_off() {
    let mut f = Fixture::new(Service::Rc);
    let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, &[7; 4], 0, 4);
    f.host.arrive(&write, &[7; 4]);
    assert_eq!(f.sent(), [rnr(0xff_fffe, 12)]);
    f.post(1, 100, 4);
    f.host.arrive(&write, &[7; 4]);
    assert_eq!(f.sent(), [ack(0xff_fffe)]);
    assert_eq!((f.host.completions().len(), f.bytes(0, 4)), (1, vec![7; 4]));
}

#[test]
fn a_refusal_for_its_time_is_urgent() {
    let mut f = Fixture::new(Service::Rc);
    f.arrive(Opcode::RC_SEND_ONLY, &[7; 4]);
    assert!(f.host.transmit(Urgency::Now).is_some());
}

#[test]
fn the_first_packet_tells_that_the_peer_is_there() {
    use crate::engine::testing::{Host, connected, to};
    use crate::engine::{Event, State};
    let mut host = Host::new();
    let init = host.init(Service::Rc);
    let qpn = host.engine.create_qp(&init).unwrap();
    host.modify(qpn, &AttrChange { state: Some(State::Init), ..connected() });
    host.modify(qpn, &to(State::Rtr));
    let mr = host.register(64, crate::engine::testing::ALL);
    let mut f = Fixture { host, qpn, mr, psn: Psn::new(0xff_fffe) };
    for _ in 0..2 {
        let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[7; 4], 0, 4);
        f.host.arrive(&write, &[7; 4]);
    }
    assert_eq!(f.host.events(), [Event::CommunicationEstablished(qpn)]);
    assert_eq!(f.sent(), [ack(0xff_ffff)]);
}

#[test]
fn the_sequence_number_that_is_expected_next_can_be_queried() {
    let mut f = Fixture::new(Service::Rc);
    let rq_psn = |f: &Fixture| f.host.engine.query_qp(f.qpn).unwrap().1.rq_psn;
    assert_eq!(rq_psn(&f), 0xff_fffe);
    let first = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
    f.host.arrive(&first, &[1; 4]);
    assert_eq!(rq_psn(&f), 0xff_ffff);
    f.host.arrive(&first, &[1; 4]);
    assert_eq!(rq_psn(&f), 0xff_ffff, "a duplicate");
    let read = f.read(0, 1000);
    f.host.arrive(&read, &[]);
    assert_eq!(rq_psn(&f), 3, "a number for each of its four responses");
    let lost = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
    let behind = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[2; 4], 0, 4);
    f.host.arrive(&behind, &[2; 4]);
    assert_eq!(rq_psn(&f), 3, "one is missing");
    f.host.arrive(&lost, &[1; 4]);
    assert_eq!(rq_psn(&f), 4);
}
