//! Completions that carry the bytes of a message.

use super::*;
use crate::engine::{InlineCompletion, QpInit, RecvWr, Sge, Status};
use crate::wire::ieth;

/// Returns a fixture whose completions of receives carry up to 32 bytes of the message.
fn fixture(service: Service) -> Fixture {
    let mut host = Host::new();
    let inline_completion = InlineCompletion { requester: 0, responder: 32 };
    let init = QpInit { inline_completion, ..host.init(service) };
    let (qpn, mr) = (host.qp(&init, &connected()), host.register(4096, crate::engine::testing::ALL));
    Fixture { host, qpn, mr, psn: Psn::new(0xff_fffe) }
}

/// Posts a receive of 300 bytes in memory that may not be written.
fn post_closed(f: &mut Fixture) {
    let sge = Sge { lkey: !f.mr.key, ..f.mr.sge(0, 300) };
    f.host.post_recv(f.qpn, 1, &[sge]);
}

#[test]
fn a_short_send_comes_with_the_completion_and_nothing_is_written() {
    for service in [Service::Rc, Service::Uc] {
        let mut f = fixture(service);
        post_closed(&mut f);
        let opcode = if service == Service::Rc { Opcode::RC_SEND_ONLY } else { Opcode::UC_SEND_ONLY };
        f.arrive(opcode, &[5; 32]);
        assert_eq!(f.host.log.data, [(1, vec![5; 32])]);
        let done = f.host.completions()[0];
        assert_eq!((done.wr_id, done.status, done.byte_len), (1, Status::Success, 32));
        assert_eq!(f.host.log.retired_recvs, 1);
    }
}

#[test]
fn immediate_data_and_keys_that_are_taken_back_change_nothing() {
    let mut f = fixture(Service::Rc);
    f.post(1, 0, 64);
    f.post(2, 0, 64);
    f.arrive(Opcode::RC_SEND_ONLY_WITH_IMMEDIATE, &[5; 3]);
    let window = f.host.engine.alloc_mw(f.host.pd, crate::engine::MwType::Two).unwrap();
    let mut headers = f.request(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, &[6; 4]);
    headers.ieth = Some(ieth::Repr { rkey: window });
    f.host.arrive(&headers, &[6; 4]);
    assert_eq!(f.host.log.data, [(1, vec![5; 3]), (2, vec![6; 4])]);
    let done = f.host.completions();
    assert_eq!((done[0].imm, done[1].invalidated), (Some(0xabcd), Some(window)));
    assert_eq!(f.bytes(0, 4), [0, 1, 2, 3]);
}

#[test]
fn what_is_longer_or_has_several_packets_or_is_a_write_is_written() {
    let mut f = fixture(Service::Rc);
    for wr_id in 0..4 {
        f.post(wr_id, 1024 * wr_id, 1024);
    }
    f.arrive(Opcode::RC_SEND_ONLY, &[5; 33]);
    f.arrive(Opcode::RC_SEND_FIRST, &[6; 256]);
    f.arrive(Opcode::RC_SEND_LAST, &[7; 8]);
    let headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, &[8; 4], 2048, 4);
    f.host.arrive(&headers, &[8; 4]);
    f.arrive(Opcode::RC_SEND_ONLY, &[]);
    let done: Vec<_> = f.host.completions().iter().map(|done| (done.status, done.byte_len)).collect();
    assert_eq!(done, [33, 264, 4, 0].map(|length| (Status::Success, length)));
    assert!(f.host.log.data.is_empty());
    assert_eq!((f.bytes(32, 1), f.bytes(1024 + 256, 1), f.bytes(2048, 1)), (vec![5], vec![7], vec![8]));
}

#[test]
fn a_receive_that_is_too_short_is_as_wrong_as_ever() {
    let mut f = fixture(Service::Rc);
    f.post(1, 0, 4);
    f.arrive(Opcode::RC_SEND_ONLY, &[5; 5]);
    assert_eq!(f.host.completions()[0].status, Status::LocalLength);
    assert!(f.host.log.data.is_empty());
    assert_eq!(f.sent(), [nak(0xff_fffe, NakCode::INVALID_REQUEST)]);
}

#[test]
fn a_receive_of_a_shared_queue_is_none_the_worse() {
    let mut host = Host::new();
    let srq = host.engine.create_srq(host.pd, 4, 2, None).unwrap();
    let inline_completion = InlineCompletion { requester: 0, responder: 32 };
    let init = QpInit { srq: Some(srq), inline_completion, ..host.init(Service::Rc) };
    let (qpn, mr) = (host.qp(&init, &connected()), host.register(64, crate::engine::testing::ALL));
    let mut f = Fixture { host, qpn, mr, psn: Psn::new(0xff_fffe) };
    let sges = [f.mr.sge(0, 64)];
    f.host.engine.post_srq_recv(srq, &RecvWr { wr_id: 9, sges: &sges }).unwrap();
    f.arrive(Opcode::RC_SEND_ONLY, &[5; 8]);
    assert_eq!(f.host.log.data, [(1, vec![5; 8])]);
    assert_eq!((f.host.completions()[0].wr_id, f.host.log.retired_srq), (9, 1));
}
