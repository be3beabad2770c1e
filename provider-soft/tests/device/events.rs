//! Events delivered by the worker alone, to a program that does not poll.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use crate::common::{
    Arena, End, PATIENCE, Remote, Shape, gid, open, pair, recv, send, wait, wait_ok, wait_status,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbs::{CompChannel, RtsAttr, SendOp, WcOpcode, WcStatus};

fn is_readable(channel: &CompChannel, limit: Duration) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(limit).unwrap()).unwrap() == 1
}

#[test]
fn an_armed_channel_reports_a_dead_peer_although_no_thread_polls() {
    // These attributes make the device give up after a few milliseconds.
    let rts = RtsAttr { sq_psn: None, timeout: 8, retry_cnt: 2, rnr_retry: 1, max_rd_atomic: 1 };
    let shape = Shape { rts, events: true, ..Shape::default() };
    let context = open();
    // The address of a device that is already dropped.
    let nobody = gid(&open());
    for round in 0..3 {
        let mut end = End::new(&context, &shape).connect(&shape, nobody, Remote { qp_num: 77, psn: 0 });
        let arena = Arena::new(&end.pd, 8);
        let channel = end.channel.take().unwrap();
        end.cq.req_notify(false).unwrap();
        // Nothing is in flight: the worker sleeps without a limit, unless it is woken.
        assert!(!is_readable(&channel, Duration::from_millis(50)), "round {round}: nothing was posted");
        send(&mut end.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
        assert!(is_readable(&channel, PATIENCE), "round {round}: the retries never run out");
        assert_eq!(channel.next_event().unwrap().unwrap().cq, end.cq.id());
        wait_status(&mut end.cq, 1, WcStatus::RETRY_EXC_ERR);
    }
}

#[test]
fn events_that_did_not_fit_into_their_socket_come_once_there_is_room() {
    // More than a stream socket of any usual size holds, each in a separate buffer.
    const EVENTS: u64 = 3000;
    let (mut a, mut b) = pair(&Shape { events: true, ..Shape::default() });
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    let channel = b.channel.take().unwrap();
    for n in 0..EVENTS {
        recv(&mut b.qp, n, &[into.sge(0..8)]);
        b.cq.req_notify(false).unwrap();
        send(&mut a.qp, n, SendOp::Send, &[from.sge(0..8)]);
        wait_ok(&mut a.cq, n);
        wait_ok(&mut b.cq, n);
    }
    let deadline = Instant::now() + PATIENCE;
    for n in 0..EVENTS {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(is_readable(&channel, left), "{n} of {EVENTS} events came");
        assert_eq!(channel.next_event().unwrap().unwrap().cq, b.cq.id());
    }
    assert!(!is_readable(&channel, Duration::ZERO), "no more than that");
}

#[test]
fn the_acknowledgement_of_a_message_leaves_before_the_reply_of_a_program_that_waits_for_events() {
    let (mut a, mut b) = pair(&Shape { events: true, ..Shape::default() });
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    let channel = b.channel.take().unwrap();
    for round in 0..300 {
        recv(&mut a.qp, round, &[from.sge(0..8)]);
        recv(&mut b.qp, round, &[into.sge(0..8)]);
        b.cq.req_notify(false).unwrap();
        send(&mut a.qp, round, SendOp::Send, &[from.sge(0..8)]);
        assert!(channel.wait(Some(PATIENCE)).unwrap().is_some(), "round {round}");
        // As in perftest, which requests the next event before it polls the completion of the last
        // event.
        b.cq.req_notify(false).unwrap();
        send(&mut b.qp, round, SendOp::Send, &[into.sge(0..8)]);
        let opcodes: Vec<_> = wait(&mut a.cq, 2).iter().map(|wc| wc.opcode).collect();
        assert_eq!(opcodes, [WcOpcode::SEND, WcOpcode::RECV], "round {round}");
        assert_eq!(wait(&mut b.cq, 2).len(), 2);
        assert!(is_readable(&channel, PATIENCE), "round {round}: the event of the reply's completion");
        channel.next_event().unwrap().unwrap();
        assert_eq!(channel.next_event().unwrap(), None, "round {round}: two events for two requests");
    }
}
