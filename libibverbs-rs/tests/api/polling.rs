//! Polling: copied completions, viewed completions and the return of slots to the device.

use std::time::Duration;

use crate::common::World;
use verbs::{
    Cause, Context, Cq, CqInit, CqModeration, CqWcFlags, Errno, InitAttr, Provider, Qp, QpCap, QpInit,
    QpType, RtrAttr, RtsAttr, SendFlags, SendOp, Wc, WcOpcode, WcStatus,
};

both! {
    lent_completions_and_copied_ones_say_the_same
    an_empty_queue_lends_nothing
    more_completions_than_a_batch_come_in_order
    what_was_not_polled_is_there_next_time
    a_poll_that_is_forgotten_loses_nothing
    a_limited_poll_that_finds_nothing_fails_with_the_time
    a_request_without_a_buffer_names_what_it_does_not_return
    a_poller_tells_a_queue_pair_that_it_was_not_handed_from_one_that_was_closed
    arming_lends_what_is_there_and_asks_for_an_event
    fields_that_no_queue_was_created_with_are_absent
    verbs_that_a_provider_lacks_name_the_device
}

fn sender<P: Provider>(context: &Context<P>) -> (Cq<P>, Qp<verbs::state::Rts, P>) {
    let cq = context.create_cq(&CqInit::new(64)).unwrap();
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };
    let init = QpInit { cap, ..QpInit::new(QpType::RC, &cq) };
    let qp = context.alloc_pd().unwrap().create_qp(&init).unwrap().to_init(&InitAttr::default()).unwrap();
    let qp = qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap();
    (cq, qp)
}

fn complete<P: Provider>(world: &World, qp: &mut Qp<verbs::state::Rts, P>, numbers: std::ops::Range<u64>) {
    for wr_id in numbers {
        qp.post_send_inline(wr_id, SendOp::Send, SendFlags::SIGNALED, b"x").unwrap();
        world.complete(qp.qp_num(), false, b"x");
    }
}

/// Polls with `poll` until the queue is empty. Returns the `wr_id`s.
fn numbers<P: Provider>(cq: &mut Cq<P>) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut completions = cq.poll();
    while let Some(completion) = completions.next() {
        numbers.push(completion.wr_id());
    }
    numbers
}

fn lent_completions_and_copied_ones_say_the_same<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, mut qp) = sender(&context);
    complete(world, &mut qp, 5..7);
    let expected = Wc { wr_id: 5, byte_len: 1, qp_num: qp.qp_num(), ..Wc::default() };
    {
        let mut completions = cq.poll();
        let mut completion = completions.next().unwrap();
        assert_eq!(completion.to_wc(), expected);
        assert_eq!((completion.status(), completion.opcode()), (WcStatus::SUCCESS, WcOpcode::SEND));
        assert!(completion.is_success());
        assert_eq!((completion.byte_len(), completion.qp_num()), (1, qp.qp_num()));
    }
    let mut wcs = [Wc::default(); 4];
    assert_eq!(cq.poll_into(&mut wcs), 1);
    assert_eq!(wcs[0], Wc { wr_id: 6, ..expected });
}

fn an_empty_queue_lends_nothing<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, _qp) = sender(&context);
    assert!(cq.poll().next().is_none());
    assert_eq!(cq.poll_into(&mut [Wc::default(); 2]), 0);
    assert_eq!(world.state().finishes, 0, "nothing was lent, so there is nothing to give back");
}

fn more_completions_than_a_batch_come_in_order<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, mut qp) = sender(&context);
    complete(world, &mut qp, 0..50);
    assert_eq!(numbers(&mut cq), (0..50).collect::<Vec<_>>());
    assert!(world.state().finishes > 0, "the slots went back");
}

fn what_was_not_polled_is_there_next_time<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, mut qp) = sender(&context);
    complete(world, &mut qp, 0..20);
    assert_eq!(cq.poll().next().map(|completion| completion.wr_id()), Some(0));
    let mut wcs = [Wc::default(); 3];
    assert_eq!(cq.poll_into(&mut wcs), 3);
    assert_eq!(wcs.map(|wc| wc.wr_id), [1, 2, 3]);
    assert_eq!(numbers(&mut cq), (4..20).collect::<Vec<_>>());
}

fn a_poll_that_is_forgotten_loses_nothing<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, mut qp) = sender(&context);
    complete(world, &mut qp, 0..3);
    let mut completions = cq.poll();
    completions.next().unwrap();
    std::mem::forget(completions);
    assert_eq!(numbers(&mut cq), [1, 2]);
}

#[test]
fn a_static_poll_gives_the_slots_back_once() {
    let (world, device) = crate::common::world("finish");
    let (mut cq, mut qp) = sender(&device.open_as::<crate::common::Paper>().unwrap());
    complete(&world, &mut qp, 0..10);
    numbers(&mut cq);
    assert_eq!(world.state().finishes, 1);
}

#[test]
fn a_queue_with_fetched_completions_stays_erased_until_they_are_polled() {
    let (world, device) = crate::common::world("fetched");
    let (mut cq, mut qp) = sender(&device.open().unwrap());
    complete(&world, &mut qp, 0..3);
    cq.poll().next().unwrap();
    let mut cq = cq.downcast::<crate::common::Paper>().unwrap_err().handle;
    assert_eq!(numbers(&mut cq), [1, 2]);
    let mut cq = cq.downcast::<crate::common::Paper>().unwrap();
    let mut qp = qp.downcast::<crate::common::Paper>().unwrap();
    complete(&world, &mut qp, 3..5);
    assert_eq!(numbers(&mut cq), [3, 4]);
    drop((cq, qp));
    world.assert_empty();
}

fn a_limited_poll_that_finds_nothing_fails_with_the_time<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, mut qp) = sender(&context);
    let late = cq.poll_within(Duration::from_millis(2)).unwrap_err();
    let within = Duration::from_millis(2);
    assert_eq!((late.errno, &late.cause), (Errno::TIMEDOUT, &Cause::NoCompletion { within }));
    let text = format!("poll_cq on {}: no completion within 2ms (ETIMEDOUT)", context.device_name());
    assert_eq!(late.to_string(), text);
    assert_eq!(std::io::Error::from(late).kind(), std::io::ErrorKind::TimedOut);
    complete(world, &mut qp, 3..4);
    assert_eq!(cq.poll_within(Duration::MAX).unwrap().ok().unwrap().wr_id, 3);
    assert!(cq.poll_within(Duration::ZERO).is_err());
}

fn a_poller_tells_a_queue_pair_that_it_was_not_handed_from_one_that_was_closed<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let (mut cq, mut qp) = sender(&context);
    let (_other_cq, other) = sender(&context);
    assert!(cq.has_qp(qp.qp_num()) && !cq.has_qp(other.qp_num()));
    complete(world, &mut qp, 5..6);
    let completed = cq.poll_one().unwrap();
    assert!(cq.has_qp(completed.qp_num), "its owner has not closed it");
    // Either half keeps the queue pair alive.
    let (send, recv) = qp.into_split();
    drop(send);
    assert!(cq.has_qp(completed.qp_num));
    drop(recv);
    assert!(!cq.has_qp(completed.qp_num));
}

fn a_request_without_a_buffer_names_what_it_does_not_return<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, mut qp) = sender(&context);
    complete(world, &mut qp, 5..7);
    let device = context.device_name();
    let why = "it was posted without one, or its queue pair was closed or reset before the poll (ENODATA)";
    let error = cq.poll_one().unwrap().into_buf().unwrap_err();
    assert_eq!(error.to_string(), format!("poll_cq on {device}: request 0x5 returns no buffer: {why}"));
    let error = cq.poll_one().unwrap().into_window().unwrap_err();
    assert_eq!(error.to_string(), format!("poll_cq on {device}: request 0x6 returns no window: {why}"));
}

fn arming_lends_what_is_there_and_asks_for_an_event<P: Provider>(world: &World, context: Context<P>) {
    let channel = context.create_comp_channel().unwrap();
    let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(64) }).unwrap();
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };
    let init = QpInit { cap, ..QpInit::new(QpType::RC, &cq) };
    let qp = context.alloc_pd().unwrap().create_qp(&init).unwrap().to_init(&InitAttr::default()).unwrap();
    let mut qp = qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap();
    complete(world, &mut qp, 0..2);
    let mut completions = cq.arm(false).unwrap();
    assert_eq!(completions.next().map(|completion| completion.wr_id()), Some(0));
    assert_eq!(completions.next().map(|completion| completion.wr_id()), Some(1));
    assert!(completions.next().is_none());
    drop(completions);
    assert_eq!(channel.next_event().unwrap(), None);
    complete(world, &mut qp, 2..3);
    assert_eq!(channel.next_event().unwrap().map(|event| event.cq), Some(cq.id()));
    assert_eq!(numbers(&mut cq), [2]);
}

fn fields_that_no_queue_was_created_with_are_absent<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, mut qp) = sender(&context);
    assert_eq!(cq.wc_flags(), CqWcFlags::STANDARD);
    complete(world, &mut qp, 0..1);
    let mut completions = cq.poll();
    let completion = completions.next().unwrap();
    assert_eq!((completion.completion_ts(), completion.completion_wallclock_ns()), (None, None));
    assert_eq!((completion.cvlan(), completion.flow_tag(), completion.tm_info()), (None, None, None));
}

fn verbs_that_a_provider_lacks_name_the_device<P: Provider>(world: &World, context: Context<P>) {
    let (mut cq, mut qp) = sender(&context);
    complete(world, &mut qp, 0..2);
    let clock = context.query_rt_values().map(drop);
    let results = [cq.resize(100), cq.modify(CqModeration { cq_count: 2, cq_period: 2 }), clock]
        .map(Result::unwrap_err);
    for (error, verb) in results.iter().zip(["resize_cq", "modify_cq", "query_rt_values"]) {
        let device = context.device_name();
        assert_eq!((error.verb, &*error.device, error.errno), (verb, device, Errno::OPNOTSUPP));
    }
    assert_eq!(numbers(&mut cq), [0, 1]);
}
