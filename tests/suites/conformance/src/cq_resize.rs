//! Resizing completion queues, empty or with completions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use verbs::{Context, Cq, CqInit, Errno, Provider, SendFlags, SendOp, WcOpcode, WcStatus};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{PATIENCE, filled, is_empty, next_completed, pattern, wait_for};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::SUITE;
use super::cq::{Loop, limit_of, send_to_itself};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        an_empty_queue_is_resized_up_and_down,
        completions_stay_in_order_when_a_queue_grows,
        completions_stay_in_order_when_a_queue_shrinks,
        a_wrapped_queue_keeps_its_order_when_it_is_resized,
        a_lent_completion_does_not_come_again_after_a_resize,
        a_size_below_the_fill_is_refused_and_changes_nothing,
        a_resize_beyond_the_limit_is_refused,
        a_full_queue_takes_more_after_it_has_grown,
        a_queue_is_resized_while_messages_arrive,
        memory_in_flight_comes_back_through_a_resized_queue,
    )
}

fn an_empty_queue_is_resized_up_and_down<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(4))?;
    let mut next = 0;
    for cqe in [100, 3, 500, 1, 8] {
        own.recvs.resize(cqe)?;
        let now = own.recvs.cqe();
        assert!(now >= cqe && now < 2 * cqe + 2, "{now} for {cqe}");
        let count = u64::from(now.min(20));
        own.fill(next..next + count)?;
        own.expect(next..next + count)?;
        next += count;
    }
    Ok(())
}

fn completions_stay_in_order_when_a_queue_grows<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(7))?;
    own.fill(0..7)?;
    own.expect(0..2)?;
    own.recvs.resize(50)?;
    own.fill(7..30)?;
    own.expect(2..30)
}

fn completions_stay_in_order_when_a_queue_shrinks<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(100))?;
    own.fill(0..9)?;
    own.expect(0..5)?;
    own.recvs.resize(if is_erased(&own.recvs) { 15 } else { 4 })?;
    assert!(own.recvs.cqe() < 32);
    own.expect(5..9)?;
    for n in 9..60 {
        own.fill(n..n + 1)?;
        own.expect(n..n + 1)?;
    }
    Ok(())
}

/// Returns whether the queue's provider is erased. An erased queue prefetches completions.
fn is_erased<P: Provider>(_: &Cq<P>) -> bool {
    core::any::TypeId::of::<P>() == core::any::TypeId::of::<verbs::Erased>()
}

fn a_wrapped_queue_keeps_its_order_when_it_is_resized<P: Provider>(context: &Context<P>) -> CaseResult {
    for polled in 0..8 {
        let mut own = Loop::new(context, &CqInit::new(7))?;
        own.fill(0..polled)?;
        own.expect(0..polled)?;
        own.fill(polled..polled + 5)?;
        own.recvs.resize(20)?;
        own.fill(polled + 5..polled + 15)?;
        own.recvs.resize(16)?;
        own.expect(polled..polled + 15)?;
        assert!(is_empty(&mut own.recvs));
    }
    Ok(())
}

fn a_lent_completion_does_not_come_again_after_a_resize<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(7))?;
    own.fill(0..3)?;
    let mut completions = own.recvs.poll();
    assert_eq!(completions.next().map(|completion| completion.wr_id()), Some(0));
    drop(completions);
    own.recvs.resize(30)?;
    own.expect(1..3)?;
    assert!(is_empty(&mut own.recvs));
    Ok(())
}

fn a_size_below_the_fill_is_refused_and_changes_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(31))?;
    own.fill(0..20)?;
    let before = own.recvs.cqe();
    // ConnectX rounds 16 up to 31.
    let error = own.recvs.resize(15).unwrap_err();
    assert_eq!((error.verb, error.errno), ("resize_cq", Errno::INVAL));
    let least = limit_of(&error).map(|(name, min, _)| (name, min));
    assert!(matches!(least, Some(("cqe", 16 | 20))), "{error}");
    assert_eq!(own.recvs.cqe(), before);
    own.recvs.resize(20)?;
    own.expect(0..20)
}

fn a_resize_beyond_the_limit_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let max = context.query_device()?.max_cqe;
    let mut own = Loop::new(context, &CqInit::new(7))?;
    own.fill(0..3)?;
    let error = own.recvs.resize(max + 1).unwrap_err();
    assert_eq!(error.errno, Errno::INVAL);
    assert_eq!(limit_of(&error).map(|(name, _, max)| (name, max)), Some(("cqe", max.into())));
    own.expect(0..3)
}

fn a_full_queue_takes_more_after_it_has_grown<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let mut own = Loop::new(context, &CqInit::new(3))?;
    let mut all = 0;
    for cqe in [3, 7, 20, 60] {
        own.recvs.resize(cqe)?;
        let room = u64::from(own.recvs.cqe());
        own.fill(all..room)?;
        all = room;
    }
    assert_eq!(events.next_event()?, None, "it has not overrun");
    own.expect(0..all)
}

fn a_queue_is_resized_while_messages_arrive<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: u64 = 600;
    // The sender's maximum lead. The receive queue has space for it, regardless of the resize.
    const AHEAD: u64 = 8;
    let Loop { qp, mut sends, mut recvs, memory, .. } = Loop::new(context, &CqInit::new(40))?;
    let deadline = Instant::now() + PATIENCE;
    let polled = AtomicU64::new(0);
    thread::scope(|scope| {
        let (mut qp, memory, polled) = (qp, &memory, &polled);
        let sender = scope.spawn(move || -> CaseResult<_> {
            for n in 0..COUNT {
                while n - polled.load(Ordering::Relaxed) >= AHEAD {
                    if Instant::now() > deadline {
                        return fail(format_args!("message {n} had to wait for too long"));
                    }
                    thread::yield_now();
                }
                send_to_itself(&mut qp, memory, n, SendFlags::SIGNALED)?;
                wait_for(&mut sends, n, WcOpcode::SEND)?;
            }
            Ok(qp)
        });
        let (mut next, mut round) = (0, 0);
        while next < COUNT && Instant::now() < deadline {
            round += 1;
            recvs.resize(if round % 2 == 0 { COUNT as u32 } else { 1000 + round % 100 })?;
            let mut completions = recvs.poll();
            while let Some(completion) = completions.next() {
                assert_eq!((completion.wr_id(), completion.status()), (next, WcStatus::SUCCESS));
                next += 1;
                polled.store(next, Ordering::Relaxed);
            }
        }
        // Keeps the queue pair alive, because destroying it may remove its completions.
        let _qp = sender.join().unwrap_or_else(|_| fail("the sender panicked"))?;
        assert_eq!(next, COUNT, "after {round} sizes");
        Ok(())
    })
}

fn memory_in_flight_comes_back_through_a_resized_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(3))?;
    for round in 0..6 {
        let (send, recv) = (filled(&own.pd, round, 100)?, own.pd.alloc_buf(100)?);
        own.qp.post_recv_buf(recv, ..)?;
        own.recvs.resize(if round % 2 == 0 { 50 } else { 5 })?;
        own.qp.post_send_buf(SendOp::Send, SendFlags::empty(), send, ..)?;
        next_completed(&mut own.sends)?;
        own.recvs.resize(20)?;
        let buf = next_completed(&mut own.recvs)?.into_buf()?;
        assert_eq!(buf[..], pattern(round, 100));
    }
    Ok(())
}
