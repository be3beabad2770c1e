//! Completion channels: events from armed queues, many queues on one channel, moderation, and event
//! loops without lost wake-ups.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbs::{
    CompChannel, Context, Cq, CqId, CqInit, CqModeration, Errno, Provider, RecvWr, SendFlags, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{PATIENCE, eventually, is_mlx5, is_rxe, post_recv, wait};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;
use super::cq::{Loop, looped, message_memory, send_to_itself};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        one_channel_serves_many_queues,
        a_queue_without_a_channel_is_armed_without_effect,
        the_wider_of_two_requests_stays,
        one_request_raises_one_event_for_many_completions,
        completions_that_were_there_and_the_next_one_raise_one_event,
        a_completion_after_the_last_poll_raises_an_event_when_the_queue_is_armed,
        an_unpolled_completion_whose_event_was_read_raises_no_other,
        arming_lends_the_completions_from_before,
        an_event_is_raised_after_a_resize,
        a_failed_request_raises_a_solicited_event,
        a_channel_is_readable_while_it_has_events,
        two_threads_at_one_channel_get_each_event_once,
        a_closed_queue_takes_its_unread_events_along,
        a_channel_is_not_closed_before_its_queues,
        moderation_waits_for_the_count,
        moderation_waits_for_the_period,
        moderation_of_solicited_events_counts_solicited_messages,
        moderation_ends_with_a_count_of_zero,
        moderation_that_the_device_lacks_is_refused_by_name,
        no_wake_up_is_lost_beside_a_competing_poller,
        no_wake_up_is_lost_when_another_thread_polls_the_same_queue,
    )
}

/// Waits for the next event of a channel and returns its queue.
fn next_event(channel: &CompChannel) -> CaseResult<CqId> {
    match channel.wait(Some(PATIENCE))? {
        Some(event) => Ok(event.cq),
        None => fail(format_args!("no event after {PATIENCE:?}")),
    }
}

fn with_channel<P: Provider>(context: &Context<P>) -> CaseResult<(CompChannel, Loop<P>)> {
    let channel = context.create_comp_channel()?;
    let own = Loop::new(context, &CqInit { channel: Some(&channel), ..CqInit::new(64) })?;
    Ok((channel, own))
}

fn one_channel_serves_many_queues<P: Provider>(context: &Context<P>) -> CaseResult {
    const QUEUES: usize = 8;
    let channel = context.create_comp_channel()?;
    let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
    let mut owns: Vec<_> = (0..QUEUES).map(|_| Loop::new(context, &init)).collect::<CaseResult<_>>()?;
    let index: HashMap<CqId, usize> = owns.iter().enumerate().map(|(n, own)| (own.recvs.id(), n)).collect();
    assert_eq!(index.len(), QUEUES);
    for own in &mut owns {
        assert!(own.recvs.arm(false)?.next().is_none());
    }
    for round in 0..5 {
        // Only some queues get messages.
        let busy: Vec<usize> = (0..QUEUES).filter(|n| (n + round) % 3 != 0).collect();
        for n in &busy {
            owns[*n].fill(0..2)?;
        }
        let mut named = Vec::new();
        for _ in &busy {
            let Some(n) = index.get(&next_event(&channel)?) else { return fail("an unknown queue") };
            // Polls before arming, because a device such as ConnectX may raise an event at once for
            // completions that it finds.
            let mut count = 0;
            let mut completions = owns[*n].recvs.poll();
            while completions.next().is_some() {
                count += 1;
            }
            drop(completions);
            let mut completions = owns[*n].recvs.arm(false)?;
            while completions.next().is_some() {
                count += 1;
            }
            assert_eq!(count, 2, "queue {n}");
            named.push(*n);
        }
        named.sort_unstable();
        assert_eq!(named, busy);
        assert_eq!(channel.next_event()?, None);
    }
    Ok(())
}

fn a_queue_without_a_channel_is_armed_without_effect<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(8))?;
    own.recvs.req_notify(false)?;
    own.fill(0..2)?;
    own.recvs.req_notify(true)?;
    own.send(2, SendFlags::SOLICITED)?;
    own.expect(0..3)
}

fn the_wider_of_two_requests_stays<P: Provider>(context: &Context<P>) -> CaseResult {
    let (channel, mut own) = with_channel(context)?;
    for first_is_wider in [false, true] {
        own.recvs.req_notify(!first_is_wider)?;
        own.recvs.req_notify(first_is_wider)?;
        own.send(1, SendFlags::empty())?;
        assert_eq!(next_event(&channel)?, own.recvs.id(), "{first_is_wider}");
        own.expect(1..2)?;
        assert_eq!(channel.next_event()?, None);
    }
    Ok(())
}

fn one_request_raises_one_event_for_many_completions<P: Provider>(context: &Context<P>) -> CaseResult {
    let (channel, mut own) = with_channel(context)?;
    for round in 0..10 {
        own.recvs.req_notify(false)?;
        own.fill(5 * round..5 * round + 5)?;
        assert_eq!(next_event(&channel)?, own.recvs.id());
        own.expect(5 * round..5 * round + 5)?;
        assert_eq!(channel.next_event()?, None, "round {round}");
    }
    Ok(())
}

fn completions_that_were_there_and_the_next_one_raise_one_event<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let (channel, mut own) = with_channel(context)?;
    own.fill(0..3)?;
    own.recvs.req_notify(false)?;
    if is_rxe()? {
        assert_eq!(channel.next_event()?, None);
    }
    own.fill(3..4)?;
    // Other devices raise the event at once, for the completions not yet polled. They raise only
    // one.
    assert_eq!(next_event(&channel)?, own.recvs.id());
    own.expect(0..4)?;
    assert_eq!(channel.next_event()?, None);
    Ok(())
}

fn a_completion_after_the_last_poll_raises_an_event_when_the_queue_is_armed<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    if is_rxe()? {
        return skip("rxe raises events only for later completions");
    }
    let (channel, mut own) = with_channel(context)?;
    own.recvs.req_notify(false)?;
    own.fill(0..1)?;
    assert_eq!(next_event(&channel)?, own.recvs.id());
    own.expect(0..1)?;
    own.fill(1..2)?;
    own.recvs.req_notify(false)?;
    assert_eq!(next_event(&channel)?, own.recvs.id());
    own.expect(1..2)?;
    own.recvs.req_notify(false)?;
    assert_eq!(channel.next_event()?, None);
    Ok(())
}

fn an_unpolled_completion_whose_event_was_read_raises_no_other<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    if is_mlx5()? {
        return skip("ConnectX raises an event for each unpolled completion");
    }
    let (channel, mut own) = with_channel(context)?;
    own.recvs.req_notify(false)?;
    own.fill(0..1)?;
    assert_eq!(next_event(&channel)?, own.recvs.id());
    own.recvs.req_notify(false)?;
    assert_eq!(channel.next_event()?, None);
    own.fill(1..2)?;
    assert_eq!(next_event(&channel)?, own.recvs.id());
    own.expect(0..2)
}

fn arming_lends_the_completions_from_before<P: Provider>(context: &Context<P>) -> CaseResult {
    let (channel, mut own) = with_channel(context)?;
    own.fill(0..3)?;
    let mut completions = own.recvs.arm(false)?;
    for n in 0..3 {
        assert_eq!(completions.next().map(|completion| completion.wr_id()), Some(n));
    }
    assert!(completions.next().is_none());
    drop(completions);
    if is_rxe()? {
        assert_eq!(channel.next_event()?, None);
    }
    own.fill(3..4)?;
    // As above.
    assert_eq!(next_event(&channel)?, own.recvs.id());
    own.expect(3..4)
}

fn an_event_is_raised_after_a_resize<P: Provider>(context: &Context<P>) -> CaseResult {
    let (channel, mut own) = with_channel(context)?;
    own.recvs.req_notify(false)?;
    own.recvs.resize(200)?;
    assert_eq!(channel.next_event()?, None);
    own.fill(0..1)?;
    assert_eq!(next_event(&channel)?, own.recvs.id());
    own.expect(0..1)
}

fn a_failed_request_raises_a_solicited_event<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe raises no solicited event for failed requests");
    }
    let (channel, mut own) = with_channel(context)?;
    let memory = message_memory(&own.pd)?;
    post_recv(&mut own.qp, &[RecvWr { wr_id: 7, sge: &[memory.sge(0..8)] }])?;
    own.recvs.req_notify(true)?;
    let Loop { qp, mut recvs, .. } = own;
    let _qp = qp.to_error()?;
    assert_eq!(next_event(&channel)?, recvs.id());
    let wc = wait(&mut recvs, 1)?[0];
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::WR_FLUSH_ERR));
    Ok(())
}

fn is_readable(channel: &CompChannel, patience: Duration) -> CaseResult<bool> {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    Ok(poll(&mut fds, timeout)? == 1)
}

fn a_channel_is_readable_while_it_has_events<P: Provider>(context: &Context<P>) -> CaseResult {
    // Uses one queue per event. Before Linux 6.4, rxe may raise a single event for two arming
    // requests if the second request comes between the first one's completion and event.
    let (channel, own) = with_channel(context)?;
    let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
    let mut owns = [own, Loop::new(context, &init)?, Loop::new(context, &init)?];
    assert!(!is_readable(&channel, Duration::ZERO)?);
    for own in &mut owns {
        own.recvs.req_notify(false)?;
        own.fill(0..1)?;
    }
    let mut left: Vec<_> = owns.iter().map(|own| own.recvs.id()).collect();
    while !left.is_empty() {
        assert!(is_readable(&channel, PATIENCE)?);
        let id = next_event(&channel)?;
        let before = left.len();
        left.retain(|one| *one != id);
        assert_eq!(left.len(), before - 1, "one event for each queue");
    }
    assert!(!is_readable(&channel, Duration::ZERO)?);
    owns.iter_mut().try_for_each(|own| own.expect(0..1))
}

fn two_threads_at_one_channel_get_each_event_once<P: Provider>(context: &Context<P>) -> CaseResult {
    const EVENTS: u64 = 100;
    let (channel, mut own) = with_channel(context)?;
    let (got, id) = (AtomicU64::new(0), own.recvs.id());
    thread::scope(|scope| {
        let (channel, got) = (&channel, &got);
        let wait = move || -> CaseResult<u64> {
            let (deadline, mut its) = (Instant::now() + PATIENCE, 0);
            while got.load(Ordering::Relaxed) < EVENTS && Instant::now() < deadline {
                if let Some(event) = channel.wait(Some(Duration::from_millis(5)))? {
                    assert_eq!(event.cq, id);
                    got.fetch_add(1, Ordering::Relaxed);
                    its += 1;
                }
            }
            Ok(its)
        };
        let waiting = [scope.spawn(wait), scope.spawn(wait)];
        for n in 0..EVENTS {
            own.recvs.req_notify(false)?;
            own.fill(n..n + 1)?;
            own.expect(n..n + 1)?;
            // Waits before the next arming request, which could otherwise share this event.
            eventually("a thread gets the event", || got.load(Ordering::Relaxed) > n)?;
        }
        let mut all = 0;
        for thread in waiting {
            all += thread.join().unwrap_or_else(|_| fail("a thread panicked"))?;
        }
        assert_eq!(all, EVENTS);
        assert_eq!(channel.next_event()?, None);
        Ok(())
    })
}

fn a_closed_queue_takes_its_unread_events_along<P: Provider>(context: &Context<P>) -> CaseResult {
    let (channel, mut own) = with_channel(context)?;
    let init = CqInit { channel: Some(&channel), ..CqInit::new(8) };
    let mut other = Loop::new(context, &init)?;
    for own in [&mut own, &mut other] {
        own.recvs.req_notify(false)?;
        own.fill(0..1)?;
    }
    let Loop { qp, recvs, .. } = own;
    drop(qp);
    recvs.close()?;
    assert_eq!(next_event(&channel)?, other.recvs.id());
    assert!(!is_readable(&channel, Duration::ZERO)?);
    Ok(())
}

fn a_channel_is_not_closed_before_its_queues<P: Provider>(context: &Context<P>) -> CaseResult {
    let (channel, own) = with_channel(context)?;
    let error = channel.close().unwrap_err();
    assert_eq!(error.error.errno, Errno::BUSY);
    drop(own);
    error.handle.close()?;
    Ok(())
}

fn moderated<P: Provider>(
    context: &Context<P>,
    cq_count: u16,
    cq_period: u16,
) -> CaseResult<(CompChannel, Loop<P>)> {
    if is_rxe()? {
        return skip("rxe moderates no events");
    }
    let (channel, mut own) = with_channel(context)?;
    own.recvs.modify(CqModeration { cq_count, cq_period })?;
    Ok((channel, own))
}

/// Returns the device's longest moderation period, in µs.
fn longest_period<P: Provider>(context: &Context<P>) -> CaseResult<u16> {
    Ok(context.query_device_ex()?.cq_mod_caps.max_cq_period)
}

fn moderation_waits_for_the_count<P: Provider>(context: &Context<P>) -> CaseResult {
    // Uses the longest period. On a slow machine, it may still expire and cause the event.
    let longest = longest_period(context)?;
    let (channel, mut own) = moderated(context, 4, longest)?;
    let period = Duration::from_micros(longest.into());
    let mut by_count = 0;
    for round in 0..500 {
        // On a busy machine, many rounds take longer than the period.
        if by_count == 5 {
            break;
        }
        let start = Instant::now();
        own.recvs.req_notify(false)?;
        own.fill(4 * round..4 * round + 3)?;
        let early = channel.next_event()?;
        assert!(early.is_none() || start.elapsed() >= period, "round {round}: an event for three of four");
        own.fill(4 * round + 3..4 * round + 4)?;
        if early.is_none() {
            assert_eq!(next_event(&channel)?, own.recvs.id());
            by_count += u32::from(start.elapsed() < period);
        }
        own.expect(4 * round..4 * round + 4)?;
        assert_eq!(channel.next_event()?, None);
    }
    if by_count > 0 { Ok(()) } else { fail("no event came before its period") }
}

fn moderation_waits_for_the_period<P: Provider>(context: &Context<P>) -> CaseResult {
    let cq_period = longest_period(context)?.min(20_000);
    let period = Duration::from_micros(cq_period.into());
    let (channel, mut own) = moderated(context, u16::MAX, cq_period)?;
    for n in 0..3 {
        own.recvs.req_notify(false)?;
        let start = Instant::now();
        own.fill(n..n + 1)?;
        assert_eq!(next_event(&channel)?, own.recvs.id());
        assert!(start.elapsed() >= period, "after {:?}", start.elapsed());
        own.expect(n..n + 1)?;
    }
    Ok(())
}

fn moderation_of_solicited_events_counts_solicited_messages<P: Provider>(context: &Context<P>) -> CaseResult {
    let (channel, mut own) = moderated(context, 2, longest_period(context)?)?;
    own.recvs.req_notify(true)?;
    own.fill(0..5)?;
    assert_eq!(channel.next_event()?, None, "no message was solicited");
    own.send(5, SendFlags::SOLICITED)?;
    own.send(6, SendFlags::SOLICITED)?;
    assert_eq!(next_event(&channel)?, own.recvs.id());
    own.expect(0..7)
}

fn moderation_ends_with_a_count_of_zero<P: Provider>(context: &Context<P>) -> CaseResult {
    let (channel, mut own) = moderated(context, 100, longest_period(context)?)?;
    for (cq_count, cq_period) in [(0, 10), (10, 0), (0, 0), (1, 1)] {
        own.recvs.modify(CqModeration { cq_count, cq_period })?;
        own.recvs.req_notify(false)?;
        own.fill(0..1)?;
        if is_mlx5()? {
            // The device raises this event asynchronously.
            assert_eq!(next_event(&channel)?, own.recvs.id());
        } else {
            assert!(channel.next_event()?.is_some(), "the event comes with the completion");
        }
        own.expect(0..1)?;
    }
    Ok(())
}

fn moderation_that_the_device_lacks_is_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    if !is_rxe()? {
        return skip("the device moderates events");
    }
    let (channel, mut own) = with_channel(context)?;
    let error = own.recvs.modify(CqModeration { cq_count: 4, cq_period: 10 }).unwrap_err();
    assert_eq!((error.verb, error.errno), ("modify_cq", Errno::OPNOTSUPP));
    own.recvs.req_notify(false)?;
    own.fill(0..1)?;
    assert_eq!(next_event(&channel)?, own.recvs.id());
    Ok(())
}

/// Runs the loop of a program that waits for events from many queues. Counts the completions of
/// queue n in `polled[n]` until `stop` is set.
fn serve<P: Provider>(
    channel: &CompChannel,
    cqs: &mut [Cq<P>],
    polled: &[AtomicU64],
    stop: &AtomicBool,
) -> CaseResult {
    let index: HashMap<CqId, usize> = cqs.iter().enumerate().map(|(n, cq)| (cq.id(), n)).collect();
    let drain = |cq: &mut Cq<P>, n: usize| -> CaseResult {
        let mut completions = cq.arm(false)?;
        while let Some(completion) = completions.next() {
            completion.ok()?;
            polled[n].fetch_add(1, Ordering::Release);
        }
        Ok(())
    };
    for (n, cq) in cqs.iter_mut().enumerate() {
        drain(cq, n)?;
    }
    while !stop.load(Ordering::Acquire) {
        // The time limit ends the thread. A lost wake-up fails the case long before.
        if let Some(event) = channel.wait(Some(PATIENCE))?
            && let Some(&n) = index.get(&event.cq)
        {
            drain(&mut cqs[n], n)?;
        }
    }
    Ok(())
}

/// Waits until a counter has reached a number, for far less time than [`serve`] waits for an event.
fn reaches(counter: &AtomicU64, number: u64, what: impl core::fmt::Display) -> CaseResult {
    let deadline = Instant::now() + PATIENCE / 4;
    while counter.load(Ordering::Acquire) < number {
        if Instant::now() > deadline {
            return fail(what);
        }
        thread::yield_now();
    }
    Ok(())
}

fn no_wake_up_is_lost_beside_a_competing_poller<P: Provider>(context: &Context<P>) -> CaseResult {
    const QUEUES: usize = 3;
    let rounds = if is_rxe()? { 200 } else { 1500 };
    let channel = context.create_comp_channel()?;
    let (pd, init) = (context.alloc_pd()?, CqInit { channel: Some(&channel), ..CqInit::new(64) });
    let (memory, mut sends) = (message_memory(&pd)?, context.create_cq(&CqInit::new(8192))?);
    let (mut cqs, mut qps) = (Vec::new(), Vec::new());
    for _ in 0..QUEUES {
        let cq = context.create_cq(&init)?;
        qps.push(looped(context, &pd, &sends, &cq)?);
        cqs.push(cq);
    }
    let polled: Vec<AtomicU64> = (0..QUEUES).map(|_| AtomicU64::new(0)).collect();
    let (completed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&channel, &mut cqs, &polled, &stop));
        // The competitor polls another queue of the device. On a soft device, polling makes the
        // device receive and changes the wake-ups of its worker. At times the competitor rests for
        // some rounds.
        let competitor = scope.spawn(|| {
            let mut passes = 0_u32;
            while !stop.load(Ordering::Acquire) {
                for _ in 0..50 {
                    completed.fetch_add(u64::from(sends.poll_one().is_some()), Ordering::Release);
                }
                passes += 1;
                let rounds = if passes.is_multiple_of(8) { passes / 8 % 4 } else { 0 };
                for _ in 0..rounds {
                    if !stop.load(Ordering::Acquire) {
                        thread::park();
                    }
                }
                thread::yield_now();
            }
        });
        let mut run = || -> CaseResult {
            let (mut sent, mut all) = ([0; QUEUES], 0);
            for round in 0..rounds {
                let (n, burst) = ((round * 7 + round / 5) % QUEUES, 1 + round as u64 % 3);
                competitor.thread().unpark();
                for _ in 0..burst {
                    send_to_itself(&mut qps[n], &memory, 1, SendFlags::SIGNALED)?;
                }
                (sent[n], all) = (sent[n] + burst, all + burst);
                reaches(&polled[n], sent[n], format_args!("a lost wake-up: round {round}, queue {n}"))?;
                if round % 100 == 99 {
                    eventually("the competitor has polled the completions of all sends", || {
                        competitor.thread().unpark();
                        completed.load(Ordering::Acquire) == all
                    })?;
                }
            }
            Ok(())
        };
        let result = run();
        stop.store(true, Ordering::Release);
        competitor.thread().unpark();
        // The event for one more message ends the server's wait.
        let woken = send_to_itself(&mut qps[0], &memory, 1, SendFlags::SIGNALED);
        server.join().unwrap_or_else(|_| fail("the server panicked"))?;
        let competed = competitor.join();
        assert!(competed.is_ok(), "the competitor panicked");
        result.and(woken)
    })
}

/// Returns how often the competitor polls in a round before it rests. Without a limit, it would
/// poll completions in place of the server and hide a lost wake-up.
fn competitor_polls(round: u64) -> u64 {
    [0, 1, 30, 3, 0, 100, 10][round as usize % 7]
}

fn no_wake_up_is_lost_when_another_thread_polls_the_same_queue<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let rounds = if is_rxe()? { 200 } else { 1500 };
    let (channel, own) = with_channel(context)?;
    let Loop { mut qp, mut sends, recvs, memory, .. } = own;
    let (recvs, polled, stop) = (Mutex::new(recvs), AtomicU64::new(0), AtomicBool::new(false));
    // The competitor's current round and its last finished round.
    let (round, rested) = (AtomicU64::new(0), AtomicU64::new(0));
    let drain = |arms: bool| -> CaseResult {
        let Ok(mut recvs) = recvs.lock() else { return fail("a thread panicked") };
        let mut completions = if arms { recvs.arm(false)? } else { recvs.poll() };
        while let Some(completion) = completions.next() {
            completion.ok()?;
            polled.fetch_add(1, Ordering::Release);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let server = scope.spawn(|| -> CaseResult {
            while !stop.load(Ordering::Acquire) {
                drain(true)?;
                channel.wait(Some(PATIENCE))?;
            }
            Ok(())
        });
        let competitor = scope.spawn(|| -> CaseResult {
            while !stop.load(Ordering::Acquire) {
                let now = round.load(Ordering::Acquire);
                if rested.load(Ordering::Relaxed) == now {
                    thread::park();
                    continue;
                }
                for _ in 0..competitor_polls(now) {
                    drain(false)?;
                    thread::yield_now();
                }
                rested.store(now, Ordering::Release);
            }
            Ok(())
        });
        let mut run = || -> CaseResult {
            for n in 1..=rounds {
                round.store(n, Ordering::Release);
                competitor.thread().unpark();
                if competitor_polls(n) == 0 {
                    // From here on, only an event makes any thread poll this round's completion.
                    reaches(&rested, n, format_args!("the competitor polls on in round {n}"))?;
                }
                send_to_itself(&mut qp, &memory, n, SendFlags::SIGNALED)?;
                reaches(&polled, n, format_args!("a lost wake-up: round {n}"))?;
                wait(&mut sends, 1)?;
            }
            Ok(())
        };
        let result = run();
        stop.store(true, Ordering::Release);
        competitor.thread().unpark();
        let woken = send_to_itself(&mut qp, &memory, 1, SendFlags::SIGNALED);
        for thread in [server, competitor] {
            thread.join().unwrap_or_else(|_| fail("a thread panicked"))?;
        }
        result.and(woken)
    })
}
