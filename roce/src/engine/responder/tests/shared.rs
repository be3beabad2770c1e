//! Shared receive queues, and XRC requests, which name such a queue.

use super::*;
use crate::engine::testing::{ALL, RECV_CQ, to};
use crate::engine::{CqId, Event, Refused, SrqId, State, Status, XrcDomain};
use crate::engine::{PostRefused, RecvWr};
use crate::wire::xrceth;

/// Returns two queue pairs that use one shared receive queue of 4 receives.
fn pair() -> (Fixture, Qpn, SrqId) {
    let mut host = Host::new();
    let srq = host.engine.create_srq(host.pd, 4, 2, None).unwrap();
    let init = crate::engine::QpInit { srq: Some(srq), ..host.init(Service::Rc) };
    let (qpn, other) = (host.qp(&init, &connected()), host.qp(&init, &connected()));
    let mr = host.register(4096, ALL);
    (Fixture { host, qpn, mr, psn: Psn::new(0xff_fffe) }, other, srq)
}

fn post(f: &mut Fixture, srq: SrqId, wr_id: u64, length: u32) {
    let sges = [f.mr.sge(wr_id * 512, length)];
    f.host.engine.post_srq_recv(srq, &RecvWr { wr_id, sges: &sges }).unwrap();
}

#[test]
fn messages_of_two_queue_pairs_do_not_mix() {
    let (mut f, other, srq) = pair();
    post(&mut f, srq, 0, 512);
    post(&mut f, srq, 1, 512);
    f.arrive(Opcode::RC_SEND_FIRST, &[1; 256]);
    let mine = f.psn;
    (f.qpn, f.psn) = (other, Psn::new(0xff_fffe));
    f.arrive(Opcode::RC_SEND_ONLY, &[2; 100]);
    let done = f.host.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].qpn, done[0].byte_len), (1, 1, other, 100));
    (f.qpn, f.psn) = (Qpn(f.qpn.0), mine);
    assert_eq!(f.bytes(512, 100), [2; 100]);
    assert_eq!(f.bytes(0, 256), [1; 256]);
    assert_eq!(f.host.log.retired_srq, 2);
}

#[test]
fn the_sink_chooses_the_memory_of_a_send_and_the_queue_has_the_others() {
    let (mut f, _, srq) = pair();
    let psn = f.psn;
    f.arrive(Opcode::RC_SEND_ONLY, &[1; 20]);
    assert_eq!(f.host.log.firsts, [], "the queue does not ask");
    f.host.engine.set_srq_matching(srq).unwrap();
    f.psn = psn;
    f.arrive(Opcode::RC_SEND_ONLY, &[1; 20]);
    assert_eq!(f.host.completions(), [], "nothing is posted");
    // The peer sends the message again.
    f.psn = psn;
    post(&mut f, srq, 0, 512);
    let matched = f.mr.sge(1024, 300);
    f.host.log.matches = Some((77, matched, 16));
    f.arrive(Opcode::RC_SEND_ONLY, &[2; 20]);
    f.arrive(Opcode::RC_SEND_ONLY, &[3; 20]);
    let done = f.host.completions().iter().map(|done| (done.wr_id, done.byte_len)).collect::<Vec<_>>();
    assert_eq!(done, [(77, 4), (0, 20)], "the header is not stored");
    assert_eq!((f.bytes(1024, 4), f.bytes(0, 20)), (vec![2; 4], vec![3; 20]));
    assert_eq!(f.host.log.retired_srq, 1);
    // Only the first packet of the message contains the header.
    f.host.log.matches = Some((78, matched, 16));
    f.arrive(Opcode::RC_SEND_FIRST, &[4; 256]);
    f.arrive(Opcode::RC_SEND_LAST, &[5; 10]);
    assert_eq!(f.host.completions()[0].byte_len, 250);
    assert_eq!(f.bytes(1024 + 239, 3), [4, 5, 5]);
    let whole = [(20, true, false), (20, true, true), (20, true, true)];
    assert_eq!(f.host.log.firsts, [&whole[..], &[(256, false, false)]].concat());
}

#[test]
fn a_send_that_does_not_fit_into_the_matched_memory_ends_it() {
    let (mut f, _, srq) = pair();
    f.host.engine.set_srq_matching(srq).unwrap();
    f.host.log.matches = Some((77, f.mr.sge(0, 3), 16));
    f.arrive(Opcode::RC_SEND_ONLY, &[2; 20]);
    let done = f.host.completions()[0];
    assert_eq!((done.wr_id, done.status), (77, Status::LocalLength));
    assert_eq!(f.host.state(f.qpn), State::Err);
}

#[test]
fn the_limit_is_told_once_when_fewer_are_left() {
    let (mut f, _, srq) = pair();
    for wr_id in 0..4 {
        post(&mut f, srq, wr_id, 512);
    }
    f.host.engine.arm_srq(srq, 3).unwrap();
    for told in [vec![], vec![Event::SrqLimitReached(srq)], vec![]] {
        f.arrive(Opcode::RC_SEND_ONLY, &[2; 4]);
        assert_eq!(f.host.events(), told);
    }
    assert!(matches!(f.host.engine.arm_srq(srq, 5), Err(Refused::Invalid(_))));
}

#[test]
fn the_error_state_flushes_the_receive_in_use_and_tells_that_it_was_the_last() {
    let (mut f, other, srq) = pair();
    post(&mut f, srq, 0, 512);
    post(&mut f, srq, 1, 512);
    f.arrive(Opcode::RC_SEND_FIRST, &[1; 256]);
    f.host.modify(f.qpn, &to(State::Err));
    let done = f.host.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].status), (1, 0, Status::Flushed));
    assert_eq!(f.host.events(), [Event::LastWqeReached(f.qpn)]);
    // The other queue pair continues to work.
    (f.qpn, f.psn) = (other, Psn::new(0xff_fffe));
    f.arrive(Opcode::RC_SEND_ONLY, &[2; 100]);
    assert_eq!(f.host.completions()[0].wr_id, 1);
}

#[test]
fn an_empty_shared_queue_puts_sends_off() {
    let (mut f, _, srq) = pair();
    let send = f.request(Opcode::RC_SEND_ONLY, &[2; 4]);
    f.host.arrive(&send, &[2; 4]);
    assert_eq!(f.sent(), [rnr(0xff_fffe, 12)]);
    post(&mut f, srq, 3, 4);
    f.host.arrive(&send, &[2; 4]);
    assert_eq!(f.host.completions()[0].wr_id, 3);
}

#[test]
fn receives_are_not_posted_beside_a_shared_queue() {
    let (mut f, _, srq) = pair();
    let wr = RecvWr { wr_id: 1, sges: &[] };
    let Host { engine, log, now, .. } = &mut f.host;
    assert_eq!(engine.post_recv(f.qpn, &wr, *now, log), Err(PostRefused::InvalidState));
    assert_eq!(engine.destroy_srq(srq), Err(Refused::Busy));
}

/// Returns an XRC target in XRC domain 9 and a shared receive queue in XRC domain `domain`.
fn target(domain: u32) -> (Fixture, SrqId) {
    let mut f = Fixture::new(Service::XrcTarget);
    let srq = f.host.engine.create_srq(f.host.pd, 4, 2, Some(XrcDomain(domain))).unwrap();
    f.host.engine.set_srq_cq(srq, CqId(5)).unwrap();
    post(&mut f, srq, 3, 256);
    (f, srq)
}

fn xrc_send(f: &mut Fixture, srq: SrqId) {
    let mut headers = f.request(Opcode::XRC_SEND_ONLY, &[1; 8]);
    headers.xrceth = Some(xrceth::Repr { xrcsrq: srq.0 });
    f.host.arrive(&headers, &[1; 8]);
}

#[test]
fn an_xrc_request_takes_a_receive_of_the_queue_that_it_names() {
    let (mut f, srq) = target(9);
    xrc_send(&mut f, srq);
    let (cq, done) = f.host.log.completions[0];
    assert_eq!((cq, done.wr_id, done.status, done.qpn), (CqId(5), 3, Status::Success, f.qpn));
    assert_ne!(cq, RECV_CQ);
    assert_eq!(f.sent(), [(Opcode::XRC_ACKNOWLEDGE, 0xff_fffe, Syndrome::ACK.0)]);
}

#[test]
fn a_destroyed_queue_ends_the_receive_that_a_target_took_from_it() {
    let (mut f, srq) = target(9);
    let before = f.bytes(3 * 512, 256);
    let mut headers = f.request(Opcode::XRC_SEND_FIRST, &[]);
    headers.xrceth = Some(xrceth::Repr { xrcsrq: srq.0 });
    let other = f.host.engine.create_srq(f.host.pd, 4, 2, Some(XrcDomain(9))).unwrap();
    // The first packet takes the receive. The other packets store no data in it.
    f.host.arrive(&headers, &[1; 256]);
    assert_ne!(f.bytes(3 * 512, 256), before);
    f.host.engine.destroy_srq(srq).unwrap();
    let written = f.bytes(3 * 512, 256);
    let mut headers = f.request(Opcode::XRC_SEND_LAST, &[]);
    headers.xrceth = Some(xrceth::Repr { xrcsrq: other.0 });
    f.host.arrive(&headers, &[2; 8]);
    assert_eq!(f.bytes(3 * 512, 256), written);
    assert!(f.host.completions().is_empty());
    assert_eq!(f.host.state(f.qpn), State::Err);
}

#[test]
fn an_xrc_request_cannot_leave_its_domain() {
    let (mut f, srq) = target(8);
    xrc_send(&mut f, srq);
    assert_eq!(f.sent(), [(Opcode::XRC_ACKNOWLEDGE, 0xff_fffe, Syndrome::nak(NakCode::INVALID_REQUEST).0)]);
    assert!(f.host.completions().is_empty());
    assert_eq!((f.host.state(f.qpn), f.host.log.retired_srq), (State::Err, 0));
}
