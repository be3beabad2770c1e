//! The send queue when it is drained, failed, flushed or reset.

use super::*;
use crate::engine::testing::to;
use crate::engine::{Event, Urgency};

#[test]
fn draining_finishes_what_has_begun_and_starts_nothing() {
    let change = AttrChange { sq_drained_event: Some(true), ..AttrChange::default() };
    let mut f = Fixture::with(Service::Rc, &change);
    let begun = f.post(WRITE, 600);
    f.host.transmit(Urgency::Now).unwrap();
    f.post(WRITE, 8);
    f.host.modify(f.qpn, &to(State::Sqd));
    assert_eq!(f.leaves().len(), 2);
    assert_eq!((f.host.engine.sq_drained(f.qpn), f.host.events()), (Ok(false), Vec::new()));
    f.ack(2);
    assert_eq!(f.ended(), [(begun, Status::Success)]);
    assert_eq!(
        (f.host.engine.sq_drained(f.qpn), f.host.events()),
        (Ok(true), [Event::SqDrained(f.qpn)].into())
    );
    f.post(WRITE, 8);
    assert_eq!(f.leaves(), []);
    f.host.modify(f.qpn, &to(State::Rts));
    assert_eq!(f.leaves().len(), 2);
}

#[test]
fn what_is_drained_already_is_told_at_once() {
    let change = AttrChange { sq_drained_event: Some(true), ..AttrChange::default() };
    let mut f = Fixture::with(Service::Rc, &change);
    f.host.modify(f.qpn, &to(State::Sqd));
    assert_eq!(f.host.events(), [Event::SqDrained(f.qpn)]);
}

#[test]
fn a_drain_still_retries() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    f.leaves();
    f.host.modify(f.qpn, &to(State::Sqd));
    f.pass(TIMEOUT);
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_WRITE_ONLY, 0)]);
}

#[test]
fn the_error_state_flushes_in_order_and_goes_on_doing_so() {
    let mut f = Fixture::new(Service::Rc);
    let (a, b) = (f.post(WRITE, 8), f.post_flags(WRITE, 8, SendFlags::default()));
    f.leaves();
    f.host.modify(f.qpn, &to(State::Err));
    let c = f.post_flags(WRITE, 8, SendFlags::default());
    assert_eq!(f.ended(), [(a, Status::Flushed), (b, Status::Flushed), (c, Status::Flushed)]);
    assert_eq!(f.host.log.retired_sends, 3);
    f.ack(1);
    assert_eq!((f.ended(), f.leaves()), (Vec::new(), Vec::new()));
}

#[test]
fn an_unreliable_send_queue_fails_alone_and_can_go_on() {
    let mut f = Fixture::new(Service::Uc);
    let bad = f.post_sges(WRITE, &[Sge { lkey: 1, ..f.mr.sge(0, 8) }]);
    let behind = f.post(WRITE, 8);
    f.leaves();
    let later = f.post(WRITE, 8);
    assert_eq!(
        f.ended(),
        [(bad, Status::LocalProtection), (behind, Status::Flushed), (later, Status::Flushed)]
    );
    assert_eq!(f.state(), State::Sqe);
    f.host.modify(f.qpn, &to(State::Rts));
    let good = f.post(WRITE, 8);
    assert_eq!(f.leaves(), [(Opcode::UC_RDMA_WRITE_ONLY, 0)]);
    assert_eq!(f.ended(), [(good, Status::Success)]);
}

#[test]
fn a_reset_forgets_without_a_word() {
    let mut f = Fixture::new(Service::Rc);
    f.post_all(4, WRITE);
    f.leaves();
    f.host.modify(f.qpn, &to(State::Reset));
    f.pass(TIMEOUT);
    assert_eq!((f.ended(), f.leaves(), f.host.engine.deadline()), (Vec::new(), Vec::new(), None));
    f.host.modify(f.qpn, &AttrChange { state: Some(State::Init), ..connected() });
    f.host.modify(f.qpn, &to(State::Rtr));
    f.host.modify(f.qpn, &to(State::Rts));
    let wr = f.post(WRITE, 8);
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_WRITE_ONLY, 0)]);
    f.ack(0);
    assert_eq!(f.ended(), [(wr, Status::Success)]);
}

#[test]
fn a_drained_queue_goes_on_where_it_was_with_what_was_held() {
    let mut f = Fixture::new(Service::Rc);
    let begun = f.post(READ, 8);
    f.leaves();
    f.host.modify(f.qpn, &to(State::Sqd));
    assert_eq!(f.host.engine.sq_drained(f.qpn), Ok(false), "a read is in flight");
    let held = [f.post(WRITE, 8), f.post(READ, 8)];
    assert_eq!((f.leaves(), f.host.engine.outstanding(f.qpn)), (Vec::new(), Some((3, 0))));
    f.respond(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 0, &[0; 8]);
    assert_eq!(f.ended(), [(begun, Status::Success)]);
    assert_eq!(f.host.engine.sq_drained(f.qpn), Ok(true), "requests that were not started do not count");
    assert_eq!((f.state(), f.leaves(), f.host.events()), (State::Sqd, Vec::new(), Vec::new()));
    f.host.modify(f.qpn, &to(State::Rts));
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_WRITE_ONLY, 1), (Opcode::RC_RDMA_READ_REQUEST, 2)]);
    f.respond(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 2, &[0; 8]);
    assert_eq!(f.ended(), held.map(|wr| (wr, Status::Success)));
}

#[test]
fn what_has_not_drained_goes_on_all_the_same() {
    let change = AttrChange { sq_drained_event: Some(true), ..AttrChange::default() };
    let mut f = Fixture::with(Service::Rc, &change);
    let (begun, held) = (f.post(WRITE, 8), f.post(WRITE, 8));
    f.host.transmit(Urgency::Now).unwrap();
    f.host.modify(f.qpn, &to(State::Sqd));
    f.host.modify(f.qpn, &to(State::Rts));
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_WRITE_ONLY, 1)]);
    f.ack(1);
    assert_eq!(f.ended(), [(begun, Status::Success), (held, Status::Success)]);
    assert_eq!(f.host.events(), [], "it left SQD before it had drained");
}

#[test]
fn unreliable_sends_posted_to_a_drained_queue_wait_for_rts() {
    let mut f = Fixture::new(Service::Uc);
    f.host.modify(f.qpn, &to(State::Sqd));
    let held = f.post(SEND, 8);
    assert_eq!((f.leaves(), f.ended()), (Vec::new(), Vec::new()));
    assert_eq!(f.host.engine.sq_drained(f.qpn), Ok(true));
    f.host.modify(f.qpn, &to(State::Rts));
    assert_eq!(f.leaves(), [(Opcode::UC_SEND_ONLY, 0)]);
    assert_eq!(f.ended(), [(held, Status::Success)]);
}
