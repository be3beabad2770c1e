//! Handles with several owners: handles to completion queues, and queue pair halves.

use std::thread;
use std::time::Instant;

use crate::common::setup::{Setup, buf, ready, setup};
use crate::common::{Kind, PATIENCE, World, cause};
use verbs::{Cause, Context, CqInit, Errno, HandleError, Provider, Qp, QpInit, QpType, SendFlags, SendOp};

both! {
    queue_pairs_are_created_on_a_completion_queue_while_another_thread_polls_it
    no_queue_pair_is_created_on_a_queue_that_was_closed_or_dropped
    closing_a_queue_in_use_can_be_tried_again
    halves_of_different_queue_pairs_come_back_apart
    the_last_half_destroys_the_queue_pair_once
    halves_return_their_memory_through_the_completion_queue
}

fn queue_pairs_are_created_on_a_completion_queue_while_another_thread_polls_it<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    const QPS: u8 = 8;
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(&CqInit::new(64)).unwrap();
    let handle = cq.handle();
    assert_eq!(handle.id(), cq.id());
    let poller = thread::spawn(move || {
        let deadline = Instant::now() + PATIENCE;
        let mut polled = Vec::new();
        while polled.len() < usize::from(QPS) {
            polled.extend(cq.poll_one().map(|completed| completed.into_buf().expect("its memory")[0]));
            assert!(Instant::now() < deadline, "{} of {QPS} completions", polled.len());
        }
        polled
    });
    let qps: Vec<_> = (0..QPS)
        .map(|byte| {
            let mut qp = ready(&pd, &handle);
            qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf(&pd, &[byte]), ..).unwrap();
            world.complete(qp.qp_num(), false, &[byte]);
            qp
        })
        .collect();
    assert_eq!(poller.join().unwrap(), (0..QPS).collect::<Vec<_>>());
    drop((qps, handle, pd, context));
    world.assert_empty();
}

fn no_queue_pair_is_created_on_a_queue_that_was_closed_or_dropped<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let closed = context.create_cq(&CqInit::new(8)).unwrap();
    let dropped = context.create_cq(&CqInit::new(8)).unwrap();
    let in_use = context.create_cq(&CqInit::new(8)).unwrap();
    let alive = context.create_cq(&CqInit::new(8)).unwrap();
    let user = ready(&pd, &in_use);
    let handles = [closed.handle(), dropped.handle(), in_use.handle()];
    closed.close().unwrap();
    drop((dropped, in_use));
    for handle in handles {
        for init in [
            QpInit::new(QpType::RC, &handle),
            QpInit { send_cq: handle.clone(), ..QpInit::new(QpType::RC, &alive) },
            QpInit { recv_cq: handle.clone(), ..QpInit::new(QpType::RC, &alive) },
        ] {
            let error = pd.create_qp(&init).unwrap_err();
            assert_eq!(error.cause, Cause::Closed { what: "completion queue" });
            assert_eq!(error.errno, Errno::INVAL);
        }
    }
    // The rejected queue pair keeps nothing alive.
    alive.close().unwrap();
    drop((user, pd, context));
    world.assert_empty();
}

fn closing_a_queue_in_use_can_be_tried_again<P: Provider>(world: &World, context: Context<P>) {
    let Setup { pd, cq, qp } = setup(&context);
    let HandleError { handle: cq, error } = cq.close().unwrap_err();
    assert_eq!(error.cause, Cause::InUse { by: "queue pairs" });
    let second = ready(&pd, &cq);
    drop(qp);
    let cq = cq.close().unwrap_err().handle;
    drop(second);
    world.refuse(Kind::Cq, Errno::BUSY);
    let cq = cq.close().unwrap_err().handle;
    world.allow(Kind::Cq);
    // The kernel still has the queue, so it is usable.
    drop(ready(&pd, &cq));
    cq.close().unwrap();
    drop((pd, context));
    world.assert_empty();
}

fn halves_of_different_queue_pairs_come_back_apart<P: Provider>(world: &World, context: Context<P>) {
    let s = setup(&context);
    let (send, recv) = s.qp.into_split();
    let (other_send, other_recv) = ready(&s.pd, &s.cq).into_split();
    let (numbers, own) = ([send.qp_num(), other_recv.qp_num()], send.id());
    let (send, other_recv) = Qp::from_halves(send, other_recv).unwrap_err().handle;
    assert_eq!([send.qp_num(), other_recv.qp_num()], numbers);
    let qp = Qp::from_halves(send, recv).unwrap();
    assert_eq!((qp.qp_num(), qp.id()), (numbers[0], own));
    qp.close().unwrap();
    Qp::from_halves(other_send, other_recv).unwrap().close().unwrap();
    drop((s.cq, s.pd, context));
    world.assert_empty();
}

fn the_last_half_destroys_the_queue_pair_once<P: Provider>(world: &World, context: Context<P>) {
    for send_first in [true, false] {
        let Setup { pd, cq, mut qp } = setup(&context);
        qp.post_recv_buf(buf(&pd, &[0]), ..).unwrap();
        qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf(&pd, &[0]), ..).unwrap();
        let (send, recv) = qp.into_split();
        world.state().destroyed.clear();
        let last: Box<dyn std::any::Any + Send> = if send_first {
            drop(send);
            Box::new(recv)
        } else {
            drop(recv);
            Box::new(send)
        };
        assert_eq!(world.state().destroyed, []);
        assert_eq!(cause(cq.close()), Cause::InUse { by: "queue pairs" });
        assert_eq!(world.state().requests.len(), 2, "both are in flight");
        thread::spawn(move || drop(last)).join().unwrap();
        let kinds: Vec<_> = world.state().destroyed.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Qp).count(), 1);
        assert_eq!(kinds[0], Kind::Qp, "before the memory");
        drop(pd);
    }
    drop(context);
    world.assert_empty();
}

fn halves_return_their_memory_through_the_completion_queue<P: Provider>(world: &World, context: Context<P>) {
    let Setup { pd, mut cq, qp } = setup(&context);
    let qp_num = qp.qp_num();
    let (mut send, mut recv) = qp.into_split();
    let [out, into] = [1, 2].map(|byte| buf(&pd, &[byte]));
    thread::scope(|scope| {
        scope.spawn(|| send.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..).unwrap());
        scope.spawn(|| recv.post_recv_buf(into, ..).unwrap());
    });
    world.complete(qp_num, false, &[1]);
    world.complete(qp_num, true, &[3]);
    // Polling after both halves are gone still returns the memory.
    let sent = cq.poll_one().unwrap().into_buf().unwrap();
    assert_eq!(sent[..], [1]);
    drop((send, recv));
    let received = cq.poll_one().unwrap();
    assert!(received.returned.is_none());
}
