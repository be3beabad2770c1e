//! Objects used by several threads: posting and polling, split queue pairs, concurrent destruction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use verbs::{
    AsyncEventType, AsyncEvents, Buf, CompChannel, Completed, Context, Cq, CqHandle, CqInit, Element,
    Exposed, FrozenBuf, Mr, Pd, Provider, Qp, QpInit, RecvHalf, SendFlags, SendHalf, SendOp, WcOpcode,
    WcStatus, state,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    PATIENCE, Pair, Remote, Shape, connect, filled, is_mlx5, next_completed, pattern, wait, wait_for,
};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::SUITE;
use super::cq::{Loop, SHAPE, looped, message_memory, send_to_itself};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        every_handle_may_be_sent_and_shared,
        one_poller_serves_many_posters,
        queue_pairs_are_created_and_destroyed_while_their_queue_is_polled,
        halves_of_a_queue_pair_work_in_two_threads,
        a_queue_pair_is_closed_in_another_thread,
        a_queue_is_destroyed_while_another_thread_polls_its_own,
        a_queue_is_polled_by_one_thread_after_another,
        buffers_travel_from_the_poller_to_the_poster,
        both_ends_of_a_connection_run_in_threads_of_their_own,
        a_send_handle_is_used_in_a_thread_that_did_not_make_it,
        memory_is_registered_in_many_threads_at_once,
        objects_are_made_and_dropped_in_many_threads_at_once,
        handles_are_dropped_in_any_order_in_another_thread,
        the_device_is_queried_while_messages_flow,
        a_thread_that_panics_leaves_the_queue_usable,
        each_asynchronous_event_goes_to_one_thread,
        a_channel_is_closed_in_another_thread_than_its_queue,
    )
}

/// Joins a thread and returns its result.
fn join<T>(thread: thread::ScopedJoinHandle<'_, CaseResult<T>>) -> CaseResult<T> {
    thread.join().unwrap_or_else(|_| fail("a thread panicked"))
}

fn every_handle_may_be_sent_and_shared<P: Provider>(_: &Context<P>) -> CaseResult {
    fn both<T: Send + Sync>() {}
    both::<Context<P>>();
    both::<Pd<P>>();
    both::<Mr<P>>();
    both::<Cq<P>>();
    both::<CqHandle<P>>();
    both::<CompChannel>();
    both::<AsyncEvents>();
    both::<Qp<state::Reset, P>>();
    both::<Qp<state::Init, P>>();
    both::<Qp<state::Rtr, P>>();
    both::<Qp<state::Rts, P>>();
    both::<SendHalf<state::Rts, P>>();
    both::<RecvHalf<state::Rts, P>>();
    both::<verbs::Ah<P>>();
    both::<Buf>();
    both::<FrozenBuf>();
    both::<Exposed>();
    both::<Completed>();
    both::<verbs::Returned>();
    both::<verbs::Error>();
    Ok(())
}

fn one_poller_serves_many_posters<P: Provider>(context: &Context<P>) -> CaseResult {
    const POSTERS: usize = 4;
    const EACH: u64 = 100;
    let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(1000))?);
    let memory = message_memory(&pd)?;
    let mut qps = Vec::new();
    for _ in 0..POSTERS {
        qps.push(looped(context, &pd, &cq, &cq)?);
    }
    let numbers: Vec<u32> = qps.iter().map(Qp::qp_num).collect();
    // Each poster waits until its last messages have been polled, so that its queues have space.
    let rooms: Vec<_> = qps.iter().map(|_| mpsc::sync_channel::<()>(1000)).collect();
    let (rooms, mut waits): (Vec<_>, Vec<_>) = rooms.into_iter().unzip();
    thread::scope(|scope| {
        let mut posters = Vec::new();
        for (mut qp, room) in qps.drain(..).zip(waits.drain(..)) {
            let memory = &memory;
            posters.push(scope.spawn(move || -> CaseResult {
                for n in 0..EACH {
                    if n >= 16 {
                        room.recv_timeout(PATIENCE)?;
                    }
                    send_to_itself(&mut qp, memory, n, SendFlags::SIGNALED)?;
                }
                // Keeps the queue pair alive until its last message has been polled.
                for _ in EACH - 16..EACH {
                    room.recv_timeout(PATIENCE)?;
                }
                Ok(())
            }));
        }
        let mut seen = [(0, 0); POSTERS];
        for _ in 0..2 * EACH * POSTERS as u64 {
            let wc = wait(&mut cq, 1)?[0];
            let Some(n) = numbers.iter().position(|number| *number == wc.qp_num) else {
                return fail(format_args!("a completion of no queue pair: {wc:?}"));
            };
            let (sends, recvs) = &mut seen[n];
            let next = if wc.opcode.is_recv() { recvs } else { sends };
            assert_eq!((wc.wr_id, wc.status), (*next, WcStatus::SUCCESS));
            *next += 1;
            // Both completions of a message have arrived: each queue has a free slot.
            if seen[n].0.min(seen[n].1) == wc.wr_id + 1 {
                rooms[n].send(())?;
            }
        }
        posters.into_iter().try_for_each(join)
    })
}

fn queue_pairs_are_created_and_destroyed_while_their_queue_is_polled<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    const ROUNDS: u64 = 30;
    let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(256))?);
    let (memory, handle) = (message_memory(&pd)?, cq.handle());
    let (polled, polls) = mpsc::channel();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let poller = scope.spawn(|| -> CaseResult {
            while !stop.load(Ordering::Acquire) {
                match cq.poll_one() {
                    Some(completed) => polled.send(completed.wc)?,
                    None => thread::yield_now(),
                }
            }
            Ok(())
        });
        let run = || -> CaseResult {
            for n in 0..ROUNDS {
                let init = QpInit { cap: SHAPE.cap, ..QpInit::new(SHAPE.qp_type, handle.clone()) };
                let qp = pd.create_qp(&init)?;
                let own = Remote::from_qp(&qp);
                let mut qp = connect(context, qp, &SHAPE, own)?;
                send_to_itself(&mut qp, &memory, n, SendFlags::SIGNALED)?;
                for _ in 0..2 {
                    let wc = polls.recv_timeout(PATIENCE)?;
                    assert_eq!((wc.wr_id, wc.qp_num, wc.status), (n, qp.qp_num(), WcStatus::SUCCESS));
                }
                qp.close()?;
            }
            Ok(())
        };
        let result = run();
        stop.store(true, Ordering::Release);
        join(poller)?;
        result
    })
}

fn halves_of_a_queue_pair_work_in_two_threads<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: u32 = 60;
    let Loop { pd, qp, mut sends, mut recvs, .. } = Loop::new(context, &CqInit::new(64))?;
    let (mut send, mut recv) = qp.into_split();
    for _ in 0..4 {
        recv.post_recv_buf(pd.alloc_buf(64)?, ..)?;
    }
    let halves = thread::scope(|scope| {
        let pd = &pd;
        let sender = scope.spawn(move || -> CaseResult<SendHalf<state::Rts, P>> {
            for n in 0..COUNT {
                send.post_send_buf(SendOp::Send, SendFlags::empty(), filled(pd, n, 64)?, ..)?;
                next_completed(&mut sends)?;
            }
            Ok(send)
        });
        let receiver = scope.spawn(move || -> CaseResult<RecvHalf<state::Rts, P>> {
            for n in 0..COUNT {
                let buf = next_completed(&mut recvs)?.into_buf()?;
                assert_eq!(buf[..], pattern(n, 64)[..]);
                recv.post_recv_buf(buf, ..)?;
            }
            Ok(recv)
        });
        Ok::<_, verbs_harness::runner::Stop>((join(sender)?, join(receiver)?))
    })?;
    let (send, recv) = halves;
    match Qp::from_halves(send, recv) {
        Ok(qp) => qp.close().map_err(Into::into),
        Err(_) => fail("the halves are of one queue pair"),
    }
}

fn a_queue_pair_is_closed_in_another_thread<P: Provider>(context: &Context<P>) -> CaseResult {
    for n in 0..20 {
        let mut own = Loop::new(context, &CqInit::new(64))?;
        for _ in 0..3 {
            own.qp.post_recv_buf(own.pd.alloc_buf(64)?, ..)?;
        }
        let Loop { pd, mut qp, mut sends, mut recvs, .. } = own;
        qp.post_send_buf(SendOp::Send, SendFlags::empty(), filled(&pd, n, 64)?, ..)?;
        thread::scope(|scope| -> CaseResult {
            let closer = scope.spawn(move || -> CaseResult { Ok(qp.close()?) });
            // Completions polled meanwhile are intact.
            for _ in 0..200 {
                for completed in [sends.poll_one(), recvs.poll_one()].into_iter().flatten() {
                    let is_ok = completed.wc.status == WcStatus::SUCCESS;
                    assert!(is_ok || completed.wc.status == WcStatus::WR_FLUSH_ERR, "{completed:?}");
                    if is_ok && completed.wc.opcode == WcOpcode::RECV {
                        assert!(completed.into_buf().ok().is_none_or(|buf| buf[..] == pattern(n, 64)[..]));
                    }
                }
            }
            join(closer)
        })?;
        sends.close()?;
        recvs.close()?;
    }
    Ok(())
}

fn a_queue_is_destroyed_while_another_thread_polls_its_own<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(64))?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| -> CaseResult {
            let mut rounds = 0;
            while !stop.load(Ordering::Acquire) || rounds < 20 {
                let mut other = Loop::new(context, &CqInit::new(16))?;
                other.fill(0..2)?;
                let Loop { qp, sends, recvs, .. } = other;
                qp.close()?;
                sends.close()?;
                recvs.close()?;
                rounds += 1;
            }
            Ok(())
        });
        let result = (0..30).try_for_each(|n| {
            own.fill(5 * n..5 * n + 5)?;
            own.expect(5 * n..5 * n + 5)
        });
        stop.store(true, Ordering::Release);
        join(other)?;
        result
    })
}

fn a_queue_is_polled_by_one_thread_after_another<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(64))?;
    for n in 0..10 {
        own.fill(3 * n..3 * n + 3)?;
        // One completion stays for the next thread. On an erased queue, it is part of a prefetched
        // batch.
        own = thread::scope(|scope| {
            join(scope.spawn(move || {
                let first = if n == 0 { 0 } else { 3 * n - 1 };
                own.expect(first..3 * n + 2)?;
                Ok(own)
            }))
        })?;
    }
    own.expect(29..30)
}

fn buffers_travel_from_the_poller_to_the_poster<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: usize = 100;
    let own = Loop::new(context, &CqInit::new(64))?;
    let Loop { pd, mut qp, mut sends, mut recvs, .. } = own;
    let (free, frees) = mpsc::channel::<Buf>();
    for _ in 0..8 {
        free.send(pd.alloc_buf(32)?)?;
    }
    thread::scope(|scope| {
        let poller = scope.spawn(move || -> CaseResult {
            for _ in 0..COUNT {
                for cq in [&mut sends, &mut recvs] {
                    let buf = next_completed(cq)?.into_buf()?;
                    // Fails if the poster has ended, because it may end before its last buffers
                    // return.
                    let _ = free.send(buf);
                }
            }
            Ok(())
        });
        for n in 0..COUNT {
            let (mut from, into) = (frees.recv_timeout(PATIENCE)?, frees.recv_timeout(PATIENCE)?);
            from.fill(n as u8);
            qp.post_recv_buf(into, ..)?;
            qp.post_send_buf(SendOp::Send, SendFlags::empty(), from, ..)?;
        }
        join(poller)
    })
}

fn both_ends_of_a_connection_run_in_threads_of_their_own<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: u64 = 100;
    let pair = Pair::new(context, &Shape::default())?;
    let Pair { pd, mut a, mut b, .. } = pair;
    for end in [&mut a, &mut b] {
        end.qp.post_recv_buf(pd.alloc_buf(8)?, ..)?;
    }
    thread::scope(|scope| {
        let mut ends = Vec::new();
        for (mut end, starts) in [(a, true), (b, false)] {
            let pd = &pd;
            ends.push(scope.spawn(move || -> CaseResult {
                let (mut sent, mut got) = (0, 0);
                let mut spare = Some(pd.alloc_buf(8)?);
                while got < COUNT || sent < COUNT {
                    let due = if starts { sent <= got } else { sent < got };
                    if due
                        && sent < COUNT
                        && let Some(mut buf) = spare.take()
                    {
                        buf.copy_from_slice(&sent.to_ne_bytes());
                        end.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..)?;
                        sent += 1;
                    }
                    let completed = next_completed(&mut end.cq)?;
                    let is_recv = completed.wc.opcode.is_recv();
                    let buf = completed.into_buf()?;
                    if is_recv {
                        assert_eq!(buf[..], u64::to_ne_bytes(got));
                        got += 1;
                        end.qp.post_recv_buf(buf, ..)?;
                    } else {
                        spare = Some(buf);
                    }
                }
                // The last send's completion may be missing. Its buffer returns with the queue
                // pair.
                Ok(())
            }));
        }
        ends.into_iter().try_for_each(join)
    })
}

fn a_send_handle_is_used_in_a_thread_that_did_not_make_it<P: Provider>(context: &Context<P>) -> CaseResult {
    let Loop { qp, mut sends, mut recvs, memory, .. } = Loop::new(context, &CqInit::new(64))?;
    let mut qp = thread::scope(|scope| {
        join(scope.spawn(|| {
            let mut qp = qp;
            send_to_itself(&mut qp, &memory, 1, SendFlags::SIGNALED)?;
            Ok(qp)
        }))
    })?;
    send_to_itself(&mut qp, &memory, 2, SendFlags::SIGNALED)?;
    for wr_id in 1..3 {
        wait_for(&mut sends, wr_id, WcOpcode::SEND)?;
        wait_for(&mut recvs, wr_id, WcOpcode::RECV)?;
    }
    Ok(())
}

fn memory_is_registered_in_many_threads_at_once<P: Provider>(context: &Context<P>) -> CaseResult {
    const THREADS: usize = 4;
    let (pd, start) = (context.alloc_pd()?, Barrier::new(THREADS));
    let keys = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| -> CaseResult {
                    start.wait();
                    let mut bufs = Vec::new();
                    for n in 0..20 {
                        bufs.push(pd.alloc_buf(4096)?);
                        if n % 3 == 2 {
                            bufs.remove(0);
                        }
                    }
                    let Ok(mut keys) = keys.lock() else { return fail("a thread panicked") };
                    keys.extend(bufs.into_iter().map(|buf| (buf.addr(), buf)));
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(join)
    })?;
    let Ok(mut bufs) = keys.into_inner() else { return fail("a thread panicked") };
    let count = bufs.len();
    bufs.sort_by_key(|(addr, _)| *addr);
    bufs.dedup_by_key(|(addr, _)| *addr);
    assert_eq!((bufs.len(), count), (THREADS * 14, THREADS * 14));
    drop(bufs);
    pd.close()?;
    Ok(())
}

fn objects_are_made_and_dropped_in_many_threads_at_once<P: Provider>(context: &Context<P>) -> CaseResult {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let context = context.clone();
                scope.spawn(move || -> CaseResult {
                    for _ in 0..8 {
                        let mut own = Loop::new(&context, &CqInit::new(8))?;
                        own.fill(0..2)?;
                        own.recvs.resize(20)?;
                        own.expect(0..2)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(join)
    })
}

fn handles_are_dropped_in_any_order_in_another_thread<P: Provider>(context: &Context<P>) -> CaseResult {
    for order in 0..24_usize {
        let mut own = Loop::new(context, &CqInit::new(8))?;
        own.qp.post_recv_buf(own.pd.alloc_buf(16)?, ..)?;
        let Loop { pd, qp, sends, recvs, .. } = own;
        let (mut pd, mut qp, mut sends, mut recvs) = (Some(pd), Some(qp), Some(sends), Some(recvs));
        let mut left = vec![0, 1, 2, 3];
        let order: Vec<usize> =
            [order % 4, order / 4 % 3, order / 12, 0].into_iter().map(|at| left.remove(at)).collect();
        thread::scope(|scope| {
            join(scope.spawn(|| -> CaseResult {
                for which in order {
                    match which {
                        0 => drop(pd.take()),
                        1 => drop(qp.take()),
                        2 => drop(sends.take()),
                        _ => drop(recvs.take()),
                    }
                }
                Ok(())
            }))
        })?;
    }
    Ok(())
}

fn the_device_is_queried_while_messages_flow<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut own, stop) = (Loop::new(context, &CqInit::new(64))?, AtomicBool::new(false));
    thread::scope(|scope| {
        let asking = scope.spawn(|| -> CaseResult {
            let first = context.query_device()?;
            while !stop.load(Ordering::Acquire) {
                assert_eq!(context.query_device()?, first);
                context.query_port(1)?;
                context.find_gid(1)?;
            }
            Ok(())
        });
        let result = (0..60).try_for_each(|n| {
            own.fill(n..n + 1)?;
            own.expect(n..n + 1)
        });
        stop.store(true, Ordering::Release);
        join(asking)?;
        result
    })
}

fn a_thread_that_panics_leaves_the_queue_usable<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut own = Loop::new(context, &CqInit::new(8))?;
    own.fill(0..5)?;
    let panicked = thread::scope(|scope| {
        let own = &mut own;
        scope
            .spawn(move || {
                let mut completions = own.recvs.poll();
                assert_eq!(completions.next().map(|completion| completion.wr_id()), Some(0));
                assert!(completions.next().is_none(), "a panic with a completion lent, as the case wants it");
            })
            .join()
    });
    assert!(panicked.is_err());
    own.expect(2..5)?;
    own.fill(5..12)?;
    own.expect(5..12)
}

fn each_asynchronous_event_goes_to_one_thread<P: Provider>(context: &Context<P>) -> CaseResult {
    const QUEUES: usize = 6;
    let streams = [context.async_events()?, context.async_events()?];
    let mut owns = Vec::new();
    for _ in 0..QUEUES {
        owns.push(Loop::new(context, &CqInit::new(1))?);
    }
    let seen = Mutex::new(Vec::new());
    let ids: Vec<_> = owns.iter().map(|own| own.recvs.id()).collect();
    let all_seen = |seen: &[verbs::CqId]| ids.iter().all(|id| seen.contains(id));
    thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .map(|stream| {
                scope.spawn(|| -> CaseResult {
                    let deadline = Instant::now() + PATIENCE;
                    while Instant::now() < deadline {
                        let event = stream.wait(Some(Duration::from_millis(5)))?;
                        let Ok(mut seen) = seen.lock() else { return fail("a thread panicked") };
                        if let Some(event) = event
                            && event.event_type == AsyncEventType::CQ_ERR
                            && let Element::Cq(id) = event.element
                        {
                            seen.push(id);
                        }
                        if all_seen(&seen) {
                            return Ok(());
                        }
                    }
                    fail("not every queue's event came")
                })
            })
            .collect();
        for own in &mut owns {
            // A ConnectX queue holds one completion more than it reports.
            let room = u64::from(own.recvs.cqe()) + u64::from(is_mlx5()?);
            own.fill(0..room)?;
            send_to_itself(&mut own.qp, &own.memory, room, SendFlags::empty())?;
        }
        threads.into_iter().try_for_each(join)
    })?;
    let Ok(mut seen) = seen.into_inner() else { return fail("a thread panicked") };
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    // rxe raises an event for each lost completion; each queue lost one.
    assert_eq!((seen.len(), count), (QUEUES, QUEUES));
    Ok(())
}

fn a_channel_is_closed_in_another_thread_than_its_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let channel = context.create_comp_channel()?;
    let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) })?;
    thread::scope(|scope| {
        let other = scope.spawn(move || -> CaseResult { Ok(cq.close()?) });
        assert_eq!(channel.wait(Some(Duration::from_millis(1)))?, None);
        join(other)
    })?;
    channel.close()?;
    Ok(())
}
