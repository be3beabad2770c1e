//! Shared receive queues: the queue pair that completes a receive and the return of its memory.

use std::sync::Arc;
use std::thread;

use crate::common::setup::{bytes, started};
use crate::common::{Kind, World};
use verbs::{
    Buf, Cause, Context, Cq, CqInit, Element, Errno, OpsFlags, OpsWr, PostBufReason, PostError, PostReason,
    Provider, Qp, QpCap, QpInit, QpType, Sge, Srq, SrqAttr, SrqAttrMask, SrqInit, TmCap, TmOp, Wc,
    state::Rts,
};

const CAP: QpCap =
    QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

struct Setup<P: Provider> {
    pd: verbs::Pd<P>,
    srq: Srq<P>,
    cqs: [Cq<P>; 2],
    qps: [Qp<Rts, P>; 2],
}

/// Returns two queue pairs, each with its own completion queue, that share a receive queue for 4
/// receives.
fn setup<P: Provider>(context: &Context<P>) -> Setup<P> {
    let pd = context.alloc_pd().unwrap();
    let srq = pd.create_srq(&SrqInit::new(4)).unwrap();
    let cqs = [(); 2].map(|()| context.create_cq(&CqInit::new(64)).unwrap());
    let qps = cqs.each_ref().map(|cq| {
        let init = QpInit { cap: CAP, srq: Some(srq.handle()), ..QpInit::new(QpType::RC, cq) };
        started(pd.create_qp(&init).unwrap())
    });
    Setup { pd, srq, cqs, qps }
}

impl<P: Provider> Setup<P> {
    fn buf(&self, byte: u8) -> Buf {
        let mut buf = self.pd.alloc_buf(1).unwrap();
        buf[0] = byte;
        buf
    }

    fn post(&mut self, byte: u8) -> u64 {
        let buf = self.buf(byte);
        self.srq.post_recv_buf(buf, ..).unwrap()
    }
}

fn the_completion_queue_of_the_queue_pair_that_took_a_receive_returns_its_memory<P: Provider>(
    world: &Arc<World>,
    context: Context<P>,
) {
    let mut setup = setup(&context);
    let numbers = [setup.post(1), setup.post(2)];
    assert!(numbers.iter().all(|number| number >> 61 == 0b101), "{numbers:x?}");
    world.complete_shared(setup.qps[1].qp_num(), &[11]);
    world.complete_shared(setup.qps[0].qp_num(), &[22]);
    for (cq, (number, byte)) in setup.cqs.iter_mut().zip([(numbers[1], 22), (numbers[0], 11)]) {
        let completed = cq.poll_one().unwrap();
        assert_eq!(completed.wr_id, number);
        assert_eq!(completed.into_buf().unwrap()[..], [byte]);
        assert!(cq.poll_one().is_none());
    }
    drop((setup, context));
    world.assert_empty();
}

#[allow(unsafe_code)]
fn a_tag_list_takes_operations_up_to_the_bad_one_and_other_queues_take_none<P: Provider>(
    world: &Arc<World>,
    context: Context<P>,
) {
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(4)).unwrap());
    let tm = TmCap { max_num_tags: 8, max_ops: 2 };
    let mut tagged = pd.create_tm_srq(&cq, tm, &SrqInit::new(4)).unwrap();
    let sge = [Sge { addr: 0x1000, length: 8, lkey: 7 }];
    let add = TmOp::Add { recv_wr_id: 9, sge: &sge, tag: 5, mask: u64::MAX, handle: 0 };
    let mut ops = [add, TmOp::Del { handle: 3 }, TmOp::Sync].map(|op| OpsWr {
        wr_id: 1,
        op,
        flags: OpsFlags::SIGNALED,
        unexpected_cnt: 2,
    });
    // SAFETY: the device is on paper and writes no memory.
    let error = unsafe { tagged.post_srq_ops(&mut ops) }.unwrap_err();
    assert_eq!(error, PostError { accepted: 2, reason: PostReason::QueueFull });
    assert_eq!(world.state().tag_ops, [&ops[0], &ops[1]].map(|op| format!("{op:?}")));
    // Tag operations complete in this queue.
    let failed = cq.close().unwrap_err();
    assert_eq!(failed.error.errno, Errno::BUSY);

    let mut plain = pd.create_srq(&SrqInit::new(4)).unwrap();
    // SAFETY: as above.
    let error = unsafe { plain.post_srq_ops(&mut ops[2..]) }.unwrap_err();
    assert_eq!(error, PostError { accepted: 0, reason: PostReason::NoTagMatching });
    assert_eq!(error.reason.errno(), Errno::OPNOTSUPP);
    tagged.close().unwrap();
    failed.handle.close().unwrap();
    drop((plain, pd, context));
    world.assert_empty();
}

fn a_copied_completion_returns_memory_once<P: Provider>(world: &Arc<World>, context: Context<P>) {
    let mut setup = setup(&context);
    setup.post(1);
    world.complete_shared(setup.qps[0].qp_num(), &[5]);
    let made_up = Wc { wr_id: setup.post(2), ..Wc::default() };
    let mut wcs = [Wc::default(); 4];
    assert_eq!(setup.cqs[0].poll_into(&mut wcs), 1);
    assert!(setup.cqs[0].reclaim(&made_up).is_none(), "its receive is in the queue");
    assert!(setup.cqs[1].reclaim(&made_up).is_none());
    // The completion was copied out of the other queue: the request has ended.
    assert_eq!(bytes(setup.cqs[1].reclaim(&wcs[0]).unwrap()), [5]);
    assert!(setup.cqs[0].reclaim(&wcs[0]).is_none());
    drop((setup, context));
    world.assert_empty();
}

fn a_receive_that_a_queue_pair_lost_returns_when_the_queue_is_dismantled<P: Provider>(
    world: &Arc<World>,
    context: Context<P>,
) {
    let mut setup = setup(&context);
    (1..4).for_each(|byte| {
        setup.post(byte);
    });
    world.take_shared(setup.qps[0].qp_num());
    let Setup { srq, cqs, qps, pd } = setup;
    let [lost, other] = qps;
    assert!(bytes(lost.dismantle().unwrap()).is_empty(), "it is not the queue pair's");
    drop(other);
    assert_eq!(bytes(srq.dismantle().unwrap()), [1, 2, 3]);
    drop((cqs, pd, context));
    world.assert_empty();
}

fn a_queue_in_use_is_not_closed_and_a_dropped_one_lives_until_its_last_queue_pair<P: Provider>(
    world: &Arc<World>,
    context: Context<P>,
) {
    let mut setup = setup(&context);
    setup.post(1);
    let failed = setup.srq.close().unwrap_err();
    assert_eq!((failed.error.errno, &failed.error.cause), (Errno::BUSY, &Cause::InUse { by: "queue pairs" }));
    let handle = failed.handle.handle();
    drop(failed.handle);
    assert!(world.census().contains(&Kind::Srq));
    // Messages still take the posted receives.
    world.complete_shared(setup.qps[1].qp_num(), &[9]);
    assert_eq!(setup.cqs[1].poll_one().unwrap().into_buf().unwrap()[..], [9]);
    drop(setup.qps);
    assert!(!world.census().contains(&Kind::Srq));
    let init = QpInit { srq: Some(handle), ..QpInit::new(QpType::RC, &setup.cqs[0]) };
    let error = setup.pd.create_qp(&init).unwrap_err();
    assert_eq!(error.cause, Cause::Closed { what: "shared receive queue" });
    drop((init, setup.cqs, setup.pd, context));
    world.assert_empty();
}

fn queue_pairs_are_created_while_another_thread_posts<P: Provider>(world: &Arc<World>, context: Context<P>) {
    let mut setup = setup(&context);
    let (handle, buf) = (setup.srq.handle(), setup.buf(1));
    thread::scope(|scope| {
        let srq = &mut setup.srq;
        scope.spawn(move || srq.post_recv_buf(buf, ..).unwrap());
        let init = QpInit { cap: CAP, srq: Some(handle), ..QpInit::new(QpType::RC, &setup.cqs[0]) };
        setup.pd.create_qp(&init).unwrap().close().unwrap();
    });
    drop((setup, context));
    world.assert_empty();
}

fn a_queue_pair_with_a_shared_receive_queue_refuses_receives<P: Provider>(
    world: &Arc<World>,
    context: Context<P>,
) {
    let mut setup = setup(&context);
    let buf = setup.buf(3);
    let error = setup.qps[0].post_recv_buf(buf, ..).unwrap_err();
    assert!(matches!(error.reason, PostBufReason::Post(_)), "{error}");
    assert_eq!(error.returned.unwrap()[..], [3]);
    drop((setup, context));
    world.assert_empty();
}

fn a_full_queue_returns_the_memory_and_receives_in_use_do_not_fill_the_table<P: Provider>(
    world: &Arc<World>,
    context: Context<P>,
) {
    let mut setup = setup(&context);
    let mut posted = 0;
    // Unpolled completions hold their memory, however many there are.
    for _ in 0..10 {
        for byte in 0..4 {
            setup.post(byte);
            posted += 1;
        }
        let buf = setup.buf(7);
        let error = setup.srq.post_recv_buf(buf, ..).unwrap_err();
        assert_eq!(error.reason, PostBufReason::Post(PostReason::QueueFull));
        assert_eq!(error.returned.unwrap()[..], [7]);
        (0..4).for_each(|_| world.complete_shared(setup.qps[0].qp_num(), &[1]));
    }
    let mut returned = 0;
    while let Some(completed) = setup.cqs[0].poll_one() {
        assert!(completed.into_buf().is_ok());
        returned += 1;
    }
    assert_eq!(returned, posted);
    drop((setup, context));
    world.assert_empty();
}

fn a_larger_queue_takes_more_receives<P: Provider>(world: &Arc<World>, context: Context<P>) {
    let mut setup = setup(&context);
    (0..4).for_each(|byte| {
        setup.post(byte);
    });
    let attr = SrqAttr { max_wr: 40, srq_limit: 3, ..SrqAttr::default() };
    setup.srq.modify(&attr, SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT).unwrap();
    (4..40).for_each(|byte| {
        setup.post(byte);
    });
    assert_eq!(setup.srq.query().unwrap(), SrqAttr { max_wr: 40, max_sge: 1, srq_limit: 3 });
    setup.srq.arm(1).unwrap();
    assert_eq!((setup.srq.query().unwrap().srq_limit, setup.srq.max_wr()), (1, 40));
    let Setup { srq, cqs, qps, pd } = setup;
    drop(qps);
    assert_eq!(bytes(srq.dismantle().unwrap()).len(), 40);
    drop((cqs, pd, context));
    world.assert_empty();
}

fn memory_of_another_domain_and_too_many_pieces_are_refused<P: Provider>(
    world: &Arc<World>,
    context: Context<P>,
) {
    let mut setup = setup(&context);
    let foreign = context.alloc_pd().unwrap().alloc_buf(8).unwrap();
    let error = setup.srq.post_recv_buf(foreign, ..).unwrap_err();
    assert_eq!(error.reason, PostBufReason::Foreign);
    drop(error);
    let frozen = setup.buf(1).freeze();
    assert_eq!(setup.srq.post_recv_buf(frozen, ..).unwrap_err().reason, PostBufReason::ReadOnly);
    let pieces = vec![setup.buf(1), setup.buf(2)];
    let error = setup.srq.post_recv_bufs(pieces).unwrap_err();
    assert_eq!(error.reason, PostBufReason::Post(PostReason::TooManySge { given: 2, max: 1 }));
    assert_eq!(error.returned.unwrap().len(), 2);
    drop((setup, context));
    world.assert_empty();
}

fn events_name_the_queue_until_it_is_destroyed<P: Provider>(world: &Arc<World>, context: Context<P>) {
    let setup = setup(&context);
    let events = context.async_events().unwrap();
    let element = world.user_handle(Kind::Srq);
    world.raise_async(element, verbs::AsyncEventType::SRQ_LIMIT_REACHED.0);
    let event = events.next_event().unwrap().unwrap();
    assert_eq!(event.element, Element::Srq(setup.srq.id()));
    assert_eq!(event.to_string(), format!("shared receive queue {}: {}", setup.srq.id(), event.event_type));
    drop(setup);
    world.raise_async(element, verbs::AsyncEventType::SRQ_LIMIT_REACHED.0);
    assert!(events.next_event().unwrap().is_none(), "it is gone");
    drop((events, context));
    world.assert_empty();
}

fn a_queue_that_cannot_be_destroyed_keeps_its_memory<P: Provider>(world: &Arc<World>, context: Context<P>) {
    let mut setup = setup(&context);
    setup.post(1);
    let Setup { srq, cqs, qps, pd } = setup;
    drop(qps);
    world.refuse(Kind::Srq, Errno::IO);
    let failed = srq.dismantle().unwrap_err();
    assert_eq!(failed.error.errno, Errno::IO);
    assert!(world.census().contains(&Kind::Mr));
    world.allow(Kind::Srq);
    assert_eq!(bytes(failed.handle.dismantle().unwrap()), [1]);
    drop((cqs, pd, context));
    world.assert_empty();
}

both! {
    the_completion_queue_of_the_queue_pair_that_took_a_receive_returns_its_memory
    a_copied_completion_returns_memory_once
    a_receive_that_a_queue_pair_lost_returns_when_the_queue_is_dismantled
    a_queue_in_use_is_not_closed_and_a_dropped_one_lives_until_its_last_queue_pair
    queue_pairs_are_created_while_another_thread_posts
    a_queue_pair_with_a_shared_receive_queue_refuses_receives
    a_full_queue_returns_the_memory_and_receives_in_use_do_not_fill_the_table
    a_larger_queue_takes_more_receives
    memory_of_another_domain_and_too_many_pieces_are_refused
    events_name_the_queue_until_it_is_destroyed
    a_queue_that_cannot_be_destroyed_keeps_its_memory
    a_tag_list_takes_operations_up_to_the_bad_one_and_other_queues_take_none
}

#[test]
fn a_queue_of_another_open_device_is_refused() {
    let (world, device) = crate::common::world("foreign-shared-receive-queue");
    let (context, other) = (device.open().unwrap(), device.open().unwrap());
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(4)).unwrap());
    let srq = other.alloc_pd().unwrap().create_srq(&SrqInit::new(4)).unwrap();
    let init = QpInit { srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &cq) };
    let error = pd.create_qp(&init).unwrap_err();
    assert_eq!(error.cause, Cause::Foreign { what: "shared receive queue" });
    drop((init, srq, cq, pd, context, other));
    world.assert_empty();
}

#[test]
fn a_queue_and_its_handle_can_be_named_while_queue_pairs_use_it() {
    let (world, device) = crate::common::world("named-shared-receive-queue");
    let context = device.open().unwrap();
    let mut setup = setup(&context);
    setup.post(1);
    let Setup { srq, mut cqs, qps, pd } = setup;
    let handle = srq.handle();
    let mut srq = srq.downcast::<crate::common::Paper>().unwrap();
    let named = pd.clone().downcast::<crate::common::Paper>().unwrap();
    srq.post_recv_buf(named.alloc_buf(1).unwrap(), ..).unwrap();
    world.complete_shared(qps[0].qp_num(), &[4]);
    assert_eq!(cqs[0].poll_one().unwrap().into_buf().unwrap()[..], [4]);
    // Both handles make queue pairs of the same queue.
    let [cq, other] = cqs;
    let named_cq = cq.handle().downcast::<crate::common::Paper>().unwrap();
    let init = QpInit { srq: Some(handle.clone().downcast().unwrap()), ..QpInit::new(QpType::RC, named_cq) };
    let third = named.create_qp(&init).unwrap();
    drop(qps);
    let failed = srq.close().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "queue pairs" });
    drop(failed);
    assert!(world.census().contains(&Kind::Srq));
    drop(third);
    assert!(!world.census().contains(&Kind::Srq));
    drop((init, handle, cq, other, named, pd, context));
    world.assert_empty();
}
