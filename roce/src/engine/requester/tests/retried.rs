//! Timers, retries, and peers that are not ready.

use super::*;

#[test]
fn without_a_response_everything_is_sent_again() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 300);
    f.post(SEND, 8);
    let first = f.host.sent();
    f.pass(TIMEOUT - 1);
    assert_eq!(f.leaves(), []);
    f.pass(1);
    assert_eq!(f.host.sent(), first);
}

#[test]
fn retries_end() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { retry_cnt: Some(2), ..AttrChange::default() });
    let (a, b) = (f.post(WRITE, 8), f.post(WRITE, 8));
    for _ in 0..3 {
        assert_eq!(f.leaves().len(), 2);
        f.pass(4 * TIMEOUT);
    }
    assert_eq!(f.ended(), [(a, Status::RetryExceeded), (b, Status::Flushed)]);
    assert_eq!((f.state(), f.host.engine.deadline()), (State::Err, None));
}

#[test]
fn retries_come_no_later_than_four_timeouts() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    for factor in [1, 2, 4, 4] {
        f.leaves();
        let before = f.host.now;
        assert_eq!(f.host.engine.deadline(), Some(before + factor * TIMEOUT));
        f.pass(factor * TIMEOUT);
    }
}

#[test]
fn a_silent_peer_is_given_up_after_the_documented_time() {
    for (retry_cnt, timeouts) in [(0, 1), (1, 3), (2, 7), (3, 11), (7, 27)] {
        let change = AttrChange { retry_cnt: Some(retry_cnt), ..AttrChange::default() };
        let mut f = Fixture::with(Service::Rc, &change);
        let wr = f.post(WRITE, 8);
        let begin = f.host.now;
        while let Some(deadline) = {
            f.leaves();
            f.host.engine.deadline()
        } {
            f.pass(deadline.0 - f.host.now.0);
        }
        assert_eq!(f.ended(), [(wr, Status::RetryExceeded)]);
        assert_eq!(f.host.now.0 - begin.0, timeouts * TIMEOUT, "{retry_cnt} retries");
    }
}

#[test]
fn a_time_out_below_a_millisecond_is_a_millisecond() {
    for (timeout, nanoseconds) in [(1, 1_000_000), (7, 1_000_000), (8, 4096 << 8)] {
        let change = AttrChange { timeout: Some(timeout), ..AttrChange::default() };
        let mut f = Fixture::with(Service::Rc, &change);
        f.post(WRITE, 8);
        f.leaves();
        assert_eq!(f.host.engine.deadline(), Some(f.host.now + nanoseconds), "code {timeout}");
    }
}

#[test]
fn progress_gives_all_retries_back() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { retry_cnt: Some(1), ..AttrChange::default() });
    f.post(WRITE, 1024);
    for n in 0..3 {
        f.leaves();
        f.pass(4 * TIMEOUT);
        f.ack(n);
    }
    assert_eq!(f.state(), State::Rts);
}

#[test]
fn timeout_zero_waits_for_ever() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { timeout: Some(0), ..AttrChange::default() });
    f.post(WRITE, 8);
    f.leaves();
    assert_eq!(f.host.engine.deadline(), None);
}

#[test]
fn a_response_to_everything_stops_the_timer() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    f.leaves();
    f.ack(0);
    f.pass(10 * TIMEOUT);
    assert_eq!((f.leaves(), f.host.engine.deadline()), (Vec::new(), None));
}

#[test]
fn a_sequence_error_goes_back_to_where_it_says() {
    let mut f = Fixture::new(Service::Rc);
    let (a, _) = (f.post(WRITE, 8), f.post(WRITE, 600));
    f.leaves();
    f.nak(2, NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(f.ended(), [(a, Status::Success)]);
    assert_eq!(f.leaves()[0], (Opcode::RC_RDMA_WRITE_MIDDLE, 2));
}

#[test]
fn what_was_acknowledged_late_is_not_sent_again() {
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 1024);
    let next = f.post(SEND, 8);
    f.leaves();
    f.pass(TIMEOUT);
    f.ack(3);
    assert_eq!(f.leaves(), [(Opcode::RC_SEND_ONLY, 4)]);
    f.ack(4);
    assert_eq!(f.ended().last(), Some(&(next, Status::Success)));
}

#[test]
fn a_peer_that_is_not_ready_is_asked_again_when_it_says() {
    let mut f = Fixture::new(Service::Rc);
    let (a, b) = (f.post(WRITE, 8), f.post(SEND, 8));
    f.leaves();
    f.rnr(1);
    assert_eq!(f.ended(), [(a, Status::Success)]);
    f.pass(639_999);
    assert_eq!(f.leaves(), []);
    f.pass(1);
    assert_eq!(f.leaves(), [(Opcode::RC_SEND_ONLY, 1)]);
    f.ack(1);
    assert_eq!(f.ended(), [(b, Status::Success)]);
}

#[test]
fn a_peer_that_is_never_ready_is_given_up() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { rnr_retry: Some(2), ..AttrChange::default() });
    let wr = f.post(SEND, 8);
    for _ in 0..3 {
        f.leaves();
        f.rnr(0);
        f.pass(640_000);
    }
    assert_eq!(f.ended(), [(wr, Status::RnrRetryExceeded)]);
}

#[test]
fn seven_rnr_retries_are_for_ever() {
    let mut f = Fixture::new(Service::Rc);
    f.post(SEND, 8);
    for _ in 0..100 {
        assert_eq!(f.leaves().len(), 1);
        f.rnr(0);
        f.pass(640_000);
    }
    assert_eq!(f.state(), State::Rts);
}

#[test]
fn a_loss_halves_what_may_be_in_flight_and_progress_restores_it() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { path_mtu: Some(4096), ..AttrChange::default() });
    f.post(WRITE, 1 << 20);
    let before = f.leaves().len();
    f.nak(0, NakCode::PSN_SEQUENCE_ERROR);
    let sent = f.host.sent();
    assert!(sent.len() <= before / 2 + 1, "{} of {before}", sent.len());
    assert!(sent.last().unwrap().0.bth.ack_req, "otherwise nothing would make room");
    let mut upto = sent.len() as u32;
    let mut most = 0;
    while upto < 256 {
        f.ack(upto - 1);
        let flight = f.leaves().len();
        assert!(flight > 0, "stuck behind {upto}");
        most = most.max(flight);
        upto += flight as u32;
    }
    assert!(most > sent.len(), "{most} at most");
}

#[test]
fn a_queue_pair_that_goes_gives_its_part_of_the_window_to_others() {
    let mut f = Fixture::new(Service::Rc);
    let init = f.host.init(Service::Rc);
    let other = f.host.qp(&init, &connected());
    // The window holds four packets.
    f.host.engine.set_window(4096);
    f.post(WRITE, 256 * 32);
    f.leaves();
    let first = core::mem::replace(&mut f.qpn, other);
    f.post(WRITE, 256 * 32);
    assert_eq!(f.leaves().len(), 1);
    f.host.engine.destroy_qp(first).unwrap();
    assert_eq!(f.leaves().len(), 2, "up to three quarters");
}
