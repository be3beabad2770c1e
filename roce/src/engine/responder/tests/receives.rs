//! Correct sends and writes.

use super::*;
use crate::engine::testing::RECV_CQ;
use crate::engine::types::Opcode as Done;
use crate::engine::{Completion, Status, Urgency};
use crate::wire::ieth;

#[test]
fn a_send_fills_the_oldest_receive_and_is_acknowledged() {
    let mut f = Fixture::new(Service::Rc);
    f.post(7, 100, 16);
    f.post(8, 200, 16);
    let mut headers = f.request(Opcode::RC_SEND_ONLY_WITH_IMMEDIATE, &[1; 5]);
    headers.bth.se = true;
    f.host.arrive(&headers, &[1; 5]);

    let (cq, done) = f.host.log.completions[0];
    assert_eq!(cq, RECV_CQ);
    assert_eq!((done.wr_id, done.status, done.opcode, done.byte_len), (7, Status::Success, Done::Recv, 5));
    assert_eq!((done.imm, done.solicited, done.invalidated, done.grh), (Some(0xabcd), true, None, false));
    assert_eq!((f.host.log.completions.len(), f.host.log.retired_recvs), (1, 1));
    assert_eq!(f.bytes(99, 7), [99, 1, 1, 1, 1, 1, 105]);

    let sent = f.host.sent();
    let (reply, payload) = &sent[0];
    assert_eq!((sent.len(), payload.len()), (1, 0));
    assert_eq!(
        (reply.bth.opcode, reply.bth.psn, reply.bth.dest_qp),
        (Opcode::RC_ACKNOWLEDGE, headers.bth.psn, 0x777)
    );
    assert_eq!(reply.aeth, Some(aeth::Repr { syndrome: Syndrome::ACK, msn: 1 }));
}

#[test]
fn a_send_of_several_packets_runs_across_elements() {
    let mut f = Fixture::new(Service::Rc);
    let sges = [f.mr.sge(1000, 300), f.mr.sge(0, 400)];
    f.host.post_recv(f.qpn, 1, &sges);
    let message = data(600);
    f.arrive(Opcode::RC_SEND_FIRST, &message[..256]);
    f.arrive(Opcode::RC_SEND_MIDDLE, &message[256..512]);
    assert!(f.host.log.completions.is_empty());
    assert!(f.sent().is_empty());
    f.arrive(Opcode::RC_SEND_LAST, &message[512..]);
    assert_eq!(f.host.completions()[0].byte_len, 600);
    assert_eq!([f.bytes(1000, 300), f.bytes(0, 300)].concat(), message);
    assert_eq!(f.bytes(300, 1), [49]);
    assert_eq!(f.sent(), [ack(0)]);
}

#[test]
fn an_empty_send_needs_no_room() {
    let mut f = Fixture::new(Service::Rc);
    f.host.post_recv(f.qpn, 1, &[]);
    f.arrive(Opcode::RC_SEND_ONLY, &[]);
    let done = f.host.completions();
    assert_eq!((done[0].status, done[0].byte_len), (Status::Success, 0));
}

#[test]
fn an_element_of_length_zero_is_passed_over_whatever_its_key() {
    let mut f = Fixture::new(Service::Rc);
    let nothing = crate::engine::Sge { addr: u64::MAX, length: 0, lkey: 0xdead };
    let sges = [nothing, f.mr.sge(0, 4)];
    f.host.post_recv(f.qpn, 1, &sges);
    f.arrive(Opcode::RC_SEND_ONLY, &[9; 4]);
    assert_eq!(f.host.completions()[0].status, Status::Success);
    assert_eq!(f.bytes(0, 4), [9; 4]);
}

#[test]
fn a_write_lands_in_memory_without_a_completion() {
    let mut f = Fixture::new(Service::Rc);
    let message = data(515);
    let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &message[..256], 30, 515);
    f.host.arrive(&first, &message[..256]);
    f.arrive(Opcode::RC_RDMA_WRITE_MIDDLE, &message[256..512]);
    f.arrive(Opcode::RC_RDMA_WRITE_LAST, &message[512..]);
    assert_eq!(f.bytes(30, 515), message);
    assert_eq!((f.bytes(29, 1), f.bytes(545, 1)), (vec![29], vec![(545 % 251) as u8]));
    assert!(f.host.log.completions.is_empty() && f.host.log.retired_recvs == 0);
    assert_eq!(f.sent(), [ack(0)]);
}

#[test]
fn a_write_with_immediate_takes_a_receive_when_it_ends() {
    let mut f = Fixture::new(Service::Rc);
    let message = data(300);
    let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &message[..256], 0, 300);
    f.host.arrive(&first, &message[..256]);
    f.post(5, 1000, 1);
    f.arrive(Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, &message[256..]);
    let done = f.host.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].opcode), (1, 5, Done::RecvWriteImm));
    assert_eq!((done[0].byte_len, done[0].imm), (300, Some(0xabcd)));
    assert_eq!(f.bytes(0, 300), message);
    assert_eq!(f.bytes(1000, 1), [(1000 % 251) as u8]);
}

#[test]
fn a_write_of_nothing_needs_no_key() {
    let mut f = Fixture::new(Service::Rc);
    let mut headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[], 0, 0);
    headers.reth = Some(reth::Repr { va: 3, rkey: 0xdead_beef, dmalen: 0 });
    f.host.arrive(&headers, &[]);
    assert_eq!(f.sent(), [ack(0xff_fffe)]);
}

#[test]
fn acknowledgements_wait_for_the_caller_and_stand_for_all_before() {
    let mut f = Fixture::new(Service::Rc);
    for _ in 0..3 {
        let headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
        f.host.arrive(&headers, &[1; 4]);
    }
    assert!(f.host.transmit(Urgency::Now).is_none());
    let (headers, _) = f.host.transmit(Urgency::All).unwrap();
    assert_eq!((headers.bth.psn, headers.aeth.unwrap().msn), (Psn::new(0), 3));
    assert!(f.host.transmit(Urgency::All).is_none());
}

#[test]
fn a_packet_that_asks_for_no_acknowledgement_gets_none() {
    let mut f = Fixture::new(Service::Rc);
    let mut headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
    headers.bth.ack_req = false;
    f.host.arrive(&headers, &[1; 4]);
    assert!(f.sent().is_empty());
}

#[test]
fn a_send_with_invalidate_frees_the_window() {
    use crate::engine::memory_regions::Bind;
    use crate::engine::testing::ALL;
    use crate::engine::{Access, MwType};
    let mut f = Fixture::new(Service::Rc);
    let region = f.host.register(64, ALL | Access::MW_BIND);
    let window = f.host.engine.alloc_mw(f.host.pd, MwType::Two).unwrap();
    let bind =
        Bind { window, new_rkey: window ^ 1, lkey: region.key, addr: region.addr, length: 8, access: ALL };
    f.host.engine.objects.memory_regions.bind(f.host.pd, f.qpn, &bind).unwrap();

    let write = |f: &mut Fixture| {
        let mut headers = f.request(Opcode::RC_RDMA_WRITE_ONLY, &[5; 8]);
        headers.reth = Some(reth::Repr { va: region.addr, rkey: window ^ 1, dmalen: 8 });
        f.host.arrive(&headers, &[5; 8]);
    };
    write(&mut f);
    assert_eq!(f.sent(), [ack(0xff_fffe)]);
    assert_eq!(f.host.bytes(&region)[..8], [5; 8]);

    f.post(1, 0, 8);
    let mut headers = f.request(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, &[1]);
    headers.ieth = Some(ieth::Repr { rkey: window ^ 1 });
    f.host.arrive(&headers, &[1]);
    let Completion { status, invalidated, .. } = f.host.completions()[0];
    assert_eq!((status, invalidated), (Status::Success, Some(window ^ 1)));
    f.sent();

    write(&mut f);
    assert_eq!(f.sent(), [nak(0, NakCode::REMOTE_ACCESS_ERROR)]);
}
