//! Scopes: when a scope returns, no request uses the memory it borrowed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::setup::{CAP, started};
use crate::common::{Kind, World};
use verbs::state::Rts;
use verbs::{
    Cause, Context, Cq, CqInit, Errno, FlowAttr, Memory, Pd, PostBufReason, Provider, Qp, QpInit, QpState,
    QpType, Returned, SendFlags, SendOp,
};

both! {
    memory_is_borrowed_and_comes_back_with_its_queue_pair
    a_queue_pair_with_requests_in_flight_is_destroyed_before_the_memory_is_free
    a_closure_that_panics_ends_its_requests_first
    two_queue_pairs_with_one_completion_queue_end_by_themselves
    memory_that_a_completion_returned_can_be_read_and_posted_again
    shared_bytes_are_sent_many_times_at_once_and_not_written
    memory_of_a_scope_is_foreign_outside_of_it
    memory_of_another_scope_is_not_reclaimed
    a_queue_pair_that_is_not_destroyed_is_reset
    a_refused_request_gives_its_memory_back
    a_question_mark_leaves_a_scope_with_any_error
    memory_of_the_queue_pair_itself_survives_a_scope
    a_region_that_is_not_deregistered_is_leaked
    a_queue_pair_without_requests_needs_no_end
    a_queue_pair_comes_back_from_a_scope_with_its_flow_rules
    a_queue_pair_with_flow_rules_and_requests_is_reset
    a_flow_rule_that_ends_in_the_scope_does_not_keep_its_queue_pair
}

const NONE: SendFlags = SendFlags::empty();

fn parts<P: Provider>(context: &Context<P>) -> (Pd<P>, Cq<P>, Qp<Rts, P>) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(64)).unwrap();
    let qp = ready(&pd, &cq);
    (pd, cq, qp)
}

fn ready<P: Provider>(pd: &Pd<P>, cq: &Cq<P>) -> Qp<Rts, P> {
    started(pd.create_qp(&QpInit { cap: CAP, ..QpInit::new(QpType::RC, cq) }).unwrap())
}

fn regions(world: &World) -> usize {
    world.census().iter().filter(|kind| **kind == Kind::Mr).count()
}

fn memory_is_borrowed_and_comes_back_with_its_queue_pair<P: Provider>(world: &World, context: Context<P>) {
    let (pd, mut cq, qp) = parts(&context);
    let qp_num = qp.qp_num();
    let (out, mut inbox) = (String::from("out"), [0; 8]);
    let (sent, qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut inbox).unwrap(), 2..6).unwrap();
        let sent =
            qp.post_send_buf(SendOp::Send, NONE, scope.register_bytes(out.as_bytes()).unwrap(), ..).unwrap();
        assert_eq!((regions(world), qp.qp_num()), (2, qp_num));
        world.complete(qp_num, true, b"in");
        world.complete(qp_num, false, b"out");
        assert!(cq.poll_one().unwrap().returned.is_some());
        assert_eq!(cq.poll_one().unwrap().wr_id, sent);
        sent
    });
    assert_eq!((regions(world), sent >> 63), (0, 1));
    assert_eq!(inbox, *b"\0\0in\0\0\0\0");
    assert_eq!(qp.expect("nothing is in flight").qp_num(), qp_num);
}

fn a_queue_pair_with_requests_in_flight_is_destroyed_before_the_memory_is_free<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let (pd, _cq, qp) = parts(&context);
    let mut inbox = [0; 8];
    let (early, qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut inbox).unwrap(), ..)?;
        // An error leaves the closure early.
        qp.post_recv_buf(scope.register(&mut []).unwrap(), 5..)?;
        Ok::<_, verbs::Error>(())
    });
    assert!(early.is_err() && qp.is_none());
    let destroyed: Vec<Kind> = world.state().destroyed.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(destroyed, [Kind::Qp, Kind::Mr, Kind::Mr], "the queue pair first");
    assert!(world.state().requests.is_empty());
    inbox.fill(1);
}

fn a_closure_that_panics_ends_its_requests_first<P: Provider>(world: &World, context: Context<P>) {
    let (pd, _cq, qp) = parts(&context);
    let mut inbox = [0; 8];
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        pd.scope(qp, |scope, mut qp| {
            qp.post_recv_buf(scope.register(&mut inbox).unwrap(), ..).unwrap();
            panic!("as asked");
        })
    }));
    assert_eq!(unwound.err().and_then(|panic| panic.downcast::<&str>().ok()).as_deref(), Some(&"as asked"));
    assert_eq!(world.census(), [Kind::Pd, Kind::Cq]);
    let destroyed: Vec<Kind> = world.state().destroyed.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(destroyed, [Kind::Qp, Kind::Mr]);
}

fn two_queue_pairs_with_one_completion_queue_end_by_themselves<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let (pd, mut cq, a) = parts(&context);
    let (b, c) = (ready(&pd, &cq), ready(&pd, &cq));
    let (mut one, mut two) = ([0; 4], [0; 4]);
    let ((), (a, rest)) = pd.scope((a, vec![b, c]), |scope, (mut a, mut rest)| {
        a.post_recv_buf(scope.register(&mut one).unwrap(), ..).unwrap();
        rest[1].post_recv_buf(scope.register(&mut two).unwrap(), ..).unwrap();
        world.complete(a.qp_num(), true, b"one");
        drop(cq.poll_one().unwrap());
    });
    assert!(a.is_some() && rest[0].is_some() && rest[1].is_none());
    assert_eq!((&one, regions(world)), (b"one\0", 0));
}

fn memory_that_a_completion_returned_can_be_read_and_posted_again<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let (pd, mut cq, qp) = parts(&context);
    let mut room = [0; 4];
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        let mut buf = scope.register(&mut room).unwrap();
        for round in 1..5 {
            qp.post_recv_buf(buf, ..).unwrap();
            world.complete(qp.qp_num(), true, &[round; 3]);
            buf = scope.reclaim(cq.poll_one().unwrap().returned.unwrap()).expect("memory of this scope");
            assert_eq!(buf[..], [round, round, round, if round == 1 { 0 } else { 9 }]);
            buf[3] = 9;
        }
    });
    assert_eq!((room, qp.is_some()), ([4, 4, 4, 9], true));
}

fn shared_bytes_are_sent_many_times_at_once_and_not_written<P: Provider>(world: &World, context: Context<P>) {
    let (pd, mut cq, qp) = parts(&context);
    let bytes = *b"shared";
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        let shared = scope.register_bytes(&bytes).unwrap();
        let read = SendOp::RdmaRead { remote_addr: 0, rkey: 1 };
        let refused = qp.post_send_buf(read, NONE, shared.clone(), ..).unwrap_err();
        assert_eq!(refused.reason, PostBufReason::ReadOnly);
        assert!(scope.reclaim(refused.returned).is_none(), "it is shared, and was cloned");
        qp.post_send_buf_unsignaled(SendOp::Send, NONE, shared.clone(), ..3).unwrap();
        qp.post_send_buf(SendOp::Send, NONE, shared.clone(), 3..).unwrap();
        for part in [&b"sha"[..], b"red"] {
            world.complete(qp.qp_num(), false, part);
        }
        let returned = cq.poll_one().unwrap().returned.unwrap();
        assert!(scope.reclaim(returned).is_none(), "it cannot be written");
    });
    assert!(qp.is_some());
}

fn memory_of_a_scope_is_foreign_outside_of_it<P: Provider>(world: &World, context: Context<P>) {
    let (pd, mut cq, qp) = parts(&context);
    let mut other = ready(&pd, &cq);
    let mut room = [0; 4];
    let (memory, _) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut room).unwrap(), ..).unwrap();
        world.complete(qp.qp_num(), true, b"abc");
        let memory = cq.poll_one().unwrap().returned.and_then(|mut returned| returned.next()).unwrap();
        let refused = other.post_recv_buf(memory, ..).unwrap_err();
        assert_eq!(refused.reason, PostBufReason::Foreign);
        refused.returned.unwrap()
    });
    // The token left the scope and gives no access.
    assert!(matches!(memory, Memory::Scoped(_)));
    assert_eq!(other.post_recv_buf(memory, ..).unwrap_err().reason, PostBufReason::Foreign);
    assert!(world.state().requests.is_empty());
}

fn memory_of_another_scope_is_not_reclaimed<P: Provider>(world: &World, context: Context<P>) {
    let (pd, mut cq, qp) = parts(&context);
    let mut room = [0; 4];
    let (returned, qp): (Returned, _) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut room).unwrap(), ..).unwrap();
        world.complete(qp.qp_num(), true, b"abc");
        cq.poll_one().unwrap().returned.unwrap()
    });
    assert!(qp.is_none(), "memory that is held counts as in flight");
    let qp = ready(&pd, &cq);
    pd.scope(qp, |scope, _| assert!(scope.reclaim(returned).is_none()));
}

fn a_queue_pair_that_is_not_destroyed_is_reset<P: Provider>(world: &World, context: Context<P>) {
    let (pd, cq, qp) = parts(&context);
    let mut room = [0; 4];
    world.refuse(Kind::Qp, Errno::BUSY);
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut room).unwrap(), ..).unwrap();
    });
    assert!(qp.is_none());
    assert_eq!(world.state().moves.last().unwrap().0, QpState::RESET);
    assert!(world.state().requests.is_empty());
    assert_eq!(regions(world), 0);
    drop((pd, cq));
}

fn a_refused_request_gives_its_memory_back<P: Provider>(world: &World, context: Context<P>) {
    let (pd, _cq, qp) = parts(&context);
    let (mut room, mut rest) = ([7; 4], [[0; 4]; 4]);
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        let buf = scope.register(&mut room).unwrap();
        let refused = qp.post_recv_buf(buf, 3..9).unwrap_err();
        assert_eq!(refused.reason, PostBufReason::OutOfRange { start: 3, end: 9, len: 4 });
        let mut buf = scope.reclaim(refused.returned).expect("the memory that was refused");
        buf[0] = 8;
        for more in &mut rest {
            qp.post_recv_buf(scope.register(more).unwrap(), ..).unwrap();
        }
        let refused = qp.post_recv_buf(buf, ..).unwrap_err();
        assert_eq!(scope.reclaim(refused.returned).unwrap()[..], [8, 7, 7, 7]);
        for _ in 0..4 {
            world.complete(qp.qp_num(), true, b"");
        }
    });
    // The completions were not polled.
    assert!(qp.is_none());
    assert_eq!(room, [8, 7, 7, 7]);
}

fn a_question_mark_leaves_a_scope_with_any_error<P: Provider>(world: &World, context: Context<P>) {
    let (pd, mut cq, qp) = parts(&context);
    let mut room = [0; 4];
    let (left, qp) = pd.scope(qp, |scope, mut qp| -> Result<(), Box<dyn std::error::Error>> {
        qp.post_recv_buf(scope.register(&mut room)?, 3..9)?;
        Ok(())
    });
    let error = left.unwrap_err();
    assert_eq!(error.to_string(), "the range 3..9 lies outside the 4 bytes");
    // The error still holds the memory, which is not in flight.
    let qp = qp.expect("nothing is in flight");
    let (left, qp) = pd.scope(qp, |scope, mut qp| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let bytes = scope.register_bytes(b"out")?;
        qp.post_send_buf(SendOp::Send, NONE, bytes, 5..)?;
        Ok(())
    });
    assert!(left.is_err());
    // Memory of an earlier scope does not belong to a later one.
    let returned = error.downcast::<verbs::PostBufError<verbs::ScopedMemory>>().unwrap().returned;
    let ((), qp) = pd.scope(qp.unwrap(), |scope, mut qp| {
        assert!(scope.reclaim(returned).is_none());
        qp.post_recv_empty().unwrap();
        world.complete(qp.qp_num(), true, b"");
        assert_eq!(cq.poll_one().unwrap().byte_len, 0);
    });
    assert!(qp.is_some());
}

fn memory_of_the_queue_pair_itself_survives_a_scope<P: Provider>(world: &World, context: Context<P>) {
    let (pd, mut cq, mut qp) = parts(&context);
    qp.post_recv_buf(pd.alloc_buf(4).unwrap(), ..).unwrap();
    let bytes = [1; 4];
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_send_buf(SendOp::Send, NONE, scope.register_bytes(&bytes).unwrap(), ..).unwrap();
        world.complete(qp.qp_num(), false, &bytes);
        drop(cq.poll_one());
    });
    let qp = qp.expect("only its own memory is in flight");
    world.complete(qp.qp_num(), true, b"abcd");
    assert_eq!(&cq.poll_one().unwrap().into_buf().unwrap()[..], b"abcd");
}

fn a_region_that_is_not_deregistered_is_leaked<P: Provider>(world: &World, context: Context<P>) {
    let (pd, _cq, qp) = parts(&context);
    let mut room = [0; 4];
    world.refuse(Kind::Mr, Errno::BUSY);
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut room).unwrap(), ..).unwrap();
    });
    assert!(qp.is_none() && world.state().requests.is_empty());
    assert_eq!(regions(world), 1);
}

fn a_queue_pair_without_requests_needs_no_end<P: Provider>(world: &World, context: Context<P>) {
    let (pd, mut cq, qp) = parts(&context);
    let mut room = [0; 4];
    world.refuse(Kind::Qp, Errno::BUSY);
    world.state().refuse_move = Some((QpState::RESET, Errno::IO));
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut room).unwrap(), ..).unwrap();
        world.complete(qp.qp_num(), true, b"abc");
        drop(cq.poll_one().unwrap());
    });
    assert_eq!((room, regions(world)), (*b"abc\0", 0));
    world.allow(Kind::Qp);
    qp.expect("nothing is in flight").close().unwrap();
}

fn a_queue_pair_comes_back_from_a_scope_with_its_flow_rules<P: Provider>(world: &World, context: Context<P>) {
    let (pd, mut cq, qp) = parts(&context);
    let flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
    let mut room = [0; 4];
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut room).unwrap(), ..).unwrap();
        world.complete(qp.qp_num(), true, b"abc");
        drop(cq.poll_one().unwrap());
    });
    let failed = qp.expect("nothing is in flight").close().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "flow rules" });
    flow.close().unwrap();
    failed.handle.close().unwrap();
    assert_eq!((room, world.census()), (*b"abc\0", vec![Kind::Pd, Kind::Cq]));
}

fn a_queue_pair_with_flow_rules_and_requests_is_reset<P: Provider>(world: &World, context: Context<P>) {
    let (pd, cq, qp) = parts(&context);
    let flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
    let mut room = [0; 4];
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut room).unwrap(), ..).unwrap();
    });
    assert!(qp.is_none());
    assert_eq!(world.state().moves.last().unwrap().0, QpState::RESET);
    assert!(world.state().requests.is_empty());
    // The rule keeps the queue pair, not the memory.
    assert_eq!(world.census(), [Kind::Pd, Kind::Cq, Kind::Qp, Kind::Flow]);
    flow.close().unwrap();
    assert_eq!(world.census(), [Kind::Pd, Kind::Cq]);
    drop((pd, cq, context));
    world.assert_empty();
}

fn a_flow_rule_that_ends_in_the_scope_does_not_keep_its_queue_pair<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let (pd, cq, qp) = parts(&context);
    let flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
    let mut room = [0; 4];
    let ((), qp) = pd.scope(qp, |scope, mut qp| {
        qp.post_recv_buf(scope.register(&mut room).unwrap(), ..).unwrap();
        drop(flow);
    });
    assert!(qp.is_none());
    let destroyed: Vec<Kind> = world.state().destroyed.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(destroyed, [Kind::Flow, Kind::Qp, Kind::Mr]);
    drop((pd, cq, context));
    world.assert_empty();
}
