//! Work requests that a send queue accepts; errors caused by local memory.

use super::*;
use crate::engine::testing::to;
use crate::engine::{Access, MwType};

fn wr<'a>(op: SendOp, payload: Payload<'a>) -> SendWr<'a> {
    SendWr { wr_id: 1, op, flags: SendFlags::default(), payload, remote_srq: 0 }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut f = Fixture::new(Service::Rc);
    let sge = f.mr.sge(0, 8);
    let big = Sge { length: 1 << 31, ..sge };
    let one = [sge];
    let cases = [
        (SEND, Payload::Sges(&[sge, sge, sge]), PostRefused::TooManySge),
        (SEND, Payload::Inline(&[0; 65]), PostRefused::InlineTooLong),
        (SEND, Payload::Sges(&[big, sge]), PostRefused::MessageTooLong),
        (READ, Payload::Inline(&[0; 8]), PostRefused::UnsupportedOp),
        (ADD, Payload::Sges(&[f.mr.sge(0, 4)]), PostRefused::AtomicLength),
        (SendOp::FetchAdd { addr: 4, rkey: 0, add: 0 }, Payload::Sges(&one), PostRefused::AtomicMisaligned),
    ];
    for (op, payload, refused) in cases {
        assert_eq!(f.try_post(&wr(op, payload)), Err(refused), "{op:?}");
    }
    assert_eq!(f.leaves(), []);
}

#[test]
fn operations_that_the_service_does_not_have_are_refused() {
    let mut f = Fixture::new(Service::Uc);
    for op in [READ, ADD, SendOp::SendInvalidate { rkey: 1 }] {
        let sge = [f.mr.sge(0, 8)];
        assert_eq!(f.try_post(&wr(op, Payload::Sges(&sge))), Err(PostRefused::UnsupportedOp), "{op:?}");
    }
    let mut f = Fixture::new(Service::Ud);
    assert_eq!(f.try_post(&wr(SEND, Payload::Sges(&[]))), Err(PostRefused::UnsupportedOp));
}

#[test]
fn a_fault_that_the_poster_has_found_fails_its_request_in_its_turn() {
    for (service, state) in [(Service::Rc, State::Err), (Service::Uc, State::Sqe)] {
        let mut f = Fixture::new(service);
        let op = SendOp::Faulty { status: Status::LocalLength, opcode: crate::engine::Opcode::Write };
        assert_eq!(f.try_post(&wr(SEND, Payload::Sges(&[]))), Ok(()));
        assert_eq!(f.try_post(&wr(op, Payload::Inline(&[]))), Err(PostRefused::UnsupportedOp));
        assert_eq!(f.try_post(&wr(op, Payload::Sges(&[]))), Ok(()));
        assert_eq!(f.leaves().len(), 1, "the fault sends nothing");
        if service == Service::Rc {
            assert_eq!(f.state(), State::Rts, "the one before has not ended");
            f.ack(0);
        }
        let done = f.host.completions();
        let failed = done.last().unwrap();
        assert_eq!(
            (failed.status, failed.opcode),
            (Status::LocalLength, crate::engine::Opcode::Write),
            "{done:?}"
        );
        assert_eq!(f.state(), state);
    }
}

#[test]
fn sends_are_taken_from_rts_on() {
    let mut f = Fixture::new(Service::Rc);
    let qp = f.host.init(Service::Rc);
    f.qpn = f.host.engine.create_qp(&qp).unwrap();
    for state in [State::Reset, State::Init, State::Rtr] {
        f.host.modify(f.qpn, &to(state));
        assert_eq!(f.try_post(&wr(SEND, Payload::Sges(&[]))), Err(PostRefused::InvalidState));
    }
}

#[test]
fn a_full_queue_takes_no_more_until_the_oldest_ends() {
    let mut f = Fixture::new(Service::Rc);
    f.post_all(4, WRITE);
    assert_eq!(f.try_post(&wr(WRITE, Payload::Sges(&[]))), Err(PostRefused::QueueFull));
    f.leaves();
    f.ack(0);
    assert_eq!(f.try_post(&wr(WRITE, Payload::Sges(&[]))), Ok(()));
}

#[test]
fn inline_bytes_are_those_of_the_time_of_the_post() {
    let mut f = Fixture::new(Service::Rc);
    let mut bytes = [1, 2, 3];
    f.try_post(&wr(SEND, Payload::Inline(&bytes))).unwrap();
    bytes.fill(0);
    assert_eq!(f.host.sent()[0].1, [1, 2, 3]);
    assert_eq!(bytes, [0; 3]);
}

#[test]
fn wrong_local_memory_fails_after_everything_before_it() {
    let mut f = Fixture::new(Service::Rc);
    let good = f.post(WRITE, 8);
    let bad = f.post_sges(WRITE, &[Sge { lkey: 0x1234, ..f.mr.sge(0, 8) }]);
    let flushed = f.post(WRITE, 8);
    assert_eq!(f.leaves().len(), 1);
    assert_eq!((f.ended(), f.state()), (Vec::new(), State::Rts));
    f.ack(0);
    assert_eq!(
        f.ended(),
        [(good, Status::Success), (bad, Status::LocalProtection), (flushed, Status::Flushed)]
    );
    assert_eq!(f.state(), State::Err);
    assert_eq!(f.host.log.retired_sends, 3);
}

#[test]
fn a_message_with_a_wrong_end_does_not_begin() {
    let mut f = Fixture::new(Service::Rc);
    let bad = f.post_sges(WRITE, &[f.mr.sge(0, 512), f.mr.sge(1 << 20, 1)]);
    assert_eq!(f.leaves(), []);
    assert_eq!(f.ended(), [(bad, Status::LocalProtection)]);
}

#[test]
fn a_region_taken_back_in_the_middle_of_a_message_is_not_read() {
    let mut f = Fixture::new(Service::Rc);
    let wr = f.post(WRITE, 512);
    f.host.transmit(crate::engine::Urgency::Now).unwrap();
    f.host.engine.dereg_mr(f.mr.key).unwrap();
    assert_eq!(f.leaves(), []);
    assert_eq!(f.ended(), [(wr, Status::LocalProtection)]);
}

#[test]
fn an_element_without_bytes_needs_no_key() {
    let mut f = Fixture::new(Service::Rc);
    f.post_sges(WRITE, &[Sge { addr: 0, length: 0, lkey: 0 }, f.mr.sge(0, 3)]);
    assert_eq!(f.host.sent()[0].1, [0, 1, 2]);
}

#[test]
fn reads_and_atomics_need_memory_that_may_be_written() {
    for op in [READ, ADD] {
        let mut f = Fixture::new(Service::Rc);
        f.mr = f.host.register(64, Access::NONE);
        let wr = f.post(op, 8);
        assert_eq!((f.leaves(), f.ended()), (Vec::new(), [(wr, Status::LocalProtection)].into()));
    }
}

#[test]
fn binding_and_invalidating_send_nothing_and_end_in_order() {
    let mut f = Fixture::new(Service::Rc);
    f.mr = f.host.register(4096, Access(ALL.0 | Access::MW_BIND.0));
    let window = f.host.engine.alloc_mw(f.host.pd, MwType::Two).unwrap();
    let (lkey, addr) = (f.mr.key, f.mr.addr);
    let write = f.post(WRITE, 8);
    let bind =
        SendOp::Bind { window, new_rkey: window ^ 1, lkey, addr, length: 64, access: Access::REMOTE_READ };
    let bind = f.post(bind, 0);
    let free = f.post(SendOp::LocalInvalidate { rkey: window ^ 1 }, 0);
    let twice = f.post(SendOp::LocalInvalidate { rkey: window }, 0);
    assert_eq!(f.leaves().len(), 1);
    assert_eq!(f.ended(), []);
    f.ack(0);
    assert_eq!(
        f.ended(),
        [
            (write, Status::Success),
            (bind, Status::Success),
            (free, Status::Success),
            (twice, Status::WindowBind)
        ]
    );
}

#[test]
fn a_window_that_cannot_be_bound_is_a_bind_error() {
    let mut f = Fixture::new(Service::Rc);
    let window = f.host.engine.alloc_mw(f.host.pd, MwType::Two).unwrap();
    let (lkey, addr) = (f.mr.key, f.mr.addr);
    let access = Access::REMOTE_READ;
    let wr = f.post(SendOp::Bind { window, new_rkey: window ^ 1, lkey, addr, length: 64, access }, 0);
    assert_eq!((f.leaves(), f.ended()), (Vec::new(), [(wr, Status::WindowBind)].into()));
}

#[test]
fn a_message_of_2_to_the_31_bytes_is_the_longest_that_is_taken() {
    let (half, one) = (Sge { addr: 0, length: 1 << 30, lkey: 0 }, Sge { addr: 0, length: 1, lkey: 0 });
    let longest = Sge { length: 1 << 31, ..half };
    for op in [SEND, WRITE, READ] {
        for sges in [&[longest][..], &[half, half]] {
            let mut f = Fixture::new(Service::Rc);
            assert_eq!(f.try_post(&wr(op, Payload::Sges(sges))), Ok(()), "{op:?} {sges:?}");
        }
        let mut f = Fixture::new(Service::Rc);
        for sges in [&[longest, one][..], &[Sge { length: (1 << 31) + 1, ..half }]] {
            let refused = f.try_post(&wr(op, Payload::Sges(sges)));
            assert_eq!(refused, Err(PostRefused::MessageTooLong), "{op:?} {sges:?}");
        }
    }
}
