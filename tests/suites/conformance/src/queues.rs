//! Posting and polling: batches, wrap-around, signalling, two threads, owned buffers, erased and
//! named providers.

use std::thread;

use verbs::{
    Buf, Context, Memory, NamedProvider, PostBufReason, PostReason, Provider, QpCap, RecvWr, Returned,
    SendFlags, SendOp, SendWr, Wc, WcOpcode,
};
use verbs_fixtures::fabric::{
    self, Arena, Pair, Remote, Shape, filled, is_empty, pattern, post_recv, post_recv_half, post_send,
    post_send_half, signalled, wait, wait_for, wait_local_key_error,
};
use verbs_fixtures::{both, with_named};
use verbs_harness::runner::{Case, CaseResult, Stop, fail};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = both!(
        SUITE,
        a_batch_of_sixteen_goes_in_one_call,
        a_batch_that_does_not_fit_is_accepted_as_far_as_it_fits,
        a_small_queue_wraps_around_many_times,
        unsignalled_sends_complete_only_by_failing,
        with_sq_sig_all_every_send_completes,
        a_completion_queue_is_polled_in_pieces,
        two_threads_have_half_a_queue_pair_each,
        posted_buffers_come_back_as_they_went,
        posted_buffers_come_back_from_a_reset_and_from_a_destroyed_queue_pair,
    );
    cases.extend(verbs_harness::cases!(
        SUITE,
        hidden_and_named_providers_give_the_same_completions,
        handles_can_be_named_after_they_were_made_hidden,
    ));
    cases
}

fn a_batch_of_sixteen_goes_in_one_call<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    const COUNT: usize = 16;
    const LEN: usize = 100;
    let (from, into) = (Arena::new(&pair.pd, COUNT * LEN)?, Arena::new(&pair.pd, COUNT * LEN)?);
    from.write(0, &pattern(1, COUNT * LEN));
    let part = |n: usize| n * LEN..(n + 1) * LEN;
    let send: Vec<_> = (0..COUNT).map(|n| [from.sge(part(n))]).collect();
    let recv: Vec<_> = (0..COUNT).map(|n| [into.sge(part(n))]).collect();
    let recvs: Vec<_> = recv.iter().zip(100..).map(|(sge, wr_id)| RecvWr { wr_id, sge }).collect();
    let sends: Vec<_> = send
        .iter()
        .zip(0..)
        .map(|(sge, n)| signalled(n.into(), SendOp::SendWithImm { imm_data: n }, sge))
        .collect();
    post_recv(&mut pair.b.qp, &recvs)?;
    post_send(&mut pair.a.qp, &sends)?;
    for (n, wc) in wait(&mut pair.a.cq, COUNT)?.iter().enumerate() {
        assert_eq!((wc.wr_id, wc.opcode), (n as u64, WcOpcode::SEND));
    }
    for (n, wc) in wait(&mut pair.b.cq, COUNT)?.iter().enumerate() {
        assert_eq!((wc.wr_id, fabric::imm(wc)), (100 + n as u64, Some(n as u32)));
    }
    assert_eq!(into.read(0..COUNT * LEN), pattern(1, COUNT * LEN));
    Ok(())
}

fn a_batch_that_does_not_fit_is_accepted_as_far_as_it_fits<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    let size = pair.b.qp.cap().max_recv_wr as usize;
    // The ring size is the next power of two. All slots can be used.
    let recvs: Vec<_> = (0..4 * size as u64).map(|wr_id| RecvWr { wr_id, sge: &sge }).collect();
    let error = post_recv(&mut pair.b.qp, &recvs).unwrap_err();
    assert!(error.accepted >= size && error.reason == PostReason::QueueFull, "{error}");
    // Before an invalid request, all requests are posted.
    let too_many = vec![arena.sge(0..1); pair.a.qp.cap().max_send_sge as usize + 1];
    let bad = SendWr { sge: &too_many, ..signalled(2, SendOp::Send, &sge) };
    let batch = [signalled(0, SendOp::Send, &sge), signalled(1, SendOp::Send, &sge), bad];
    let error = post_send(&mut pair.a.qp, &batch).unwrap_err();
    let max = pair.a.qp.cap().max_send_sge;
    let expected = PostReason::TooManySge { given: max as usize + 1, max };
    assert_eq!((error.accepted, error.reason), (2, expected));
    let ids: Vec<_> = wait(&mut pair.a.cq, 2)?.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1]);
    let ids: Vec<_> = wait(&mut pair.b.cq, 2)?.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1]);
    Ok(())
}

fn a_small_queue_wraps_around_many_times<P: Provider>(context: &Context<P>) -> CaseResult {
    const ROUNDS: u64 = 1000;
    let cap = QpCap { max_send_wr: 3, max_recv_wr: 5, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut pair = Pair::new(context, &Shape { cap, cqe: 7, ..Shape::default() })?;
    let (from, into) = (Arena::new(&pair.pd, 8)?, Arena::new(&pair.pd, 8 * 5)?);
    let place = |n: u64| (n as usize % 5) * 8;
    for n in 0..5 {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: n, sge: &[into.sge(place(n)..place(n) + 8)] }])?;
    }
    for n in 0..ROUNDS {
        from.write(0, &n.to_ne_bytes());
        post_send(&mut pair.a.qp, &[signalled(n, SendOp::Send, &[from.sge(0..8)])])?;
        wait_for(&mut pair.a.cq, n, WcOpcode::SEND)?;
        wait_for(&mut pair.b.cq, n, WcOpcode::RECV)?;
        assert_eq!(into.number(place(n)), n);
        let wr_id = n + 5;
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[into.sge(place(n)..place(n) + 8)] }])?;
    }
    Ok(())
}

fn unsignalled_sends_complete_only_by_failing<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    let silent = |wr_id| SendWr { wr_id, op: SendOp::Send, sge: &sge, flags: SendFlags::empty() };
    // Many more requests than the queue holds. Each signalled request frees the slots of the
    // requests before it.
    let rounds = u64::from(pair.a.qp.cap().max_send_wr);
    for round in 0..rounds {
        for n in 0..4 {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: n, sge: &[arena.sge(32..64)] }])?;
        }
        let last = signalled(round, SendOp::Send, &sge);
        post_send(&mut pair.a.qp, &[silent(90), silent(91), silent(92), last])?;
        wait_for(&mut pair.a.cq, round, WcOpcode::SEND)?;
        wait(&mut pair.b.cq, 4)?;
    }
    assert!(is_empty(&mut pair.a.cq));
    let bad_key = [verbs::Sge { lkey: !arena.lkey(), ..sge[0] }];
    post_send(&mut pair.a.qp, &[SendWr { sge: &bad_key, ..silent(7) }])?;
    wait_local_key_error(&mut pair.a.cq, 7)
}

fn with_sq_sig_all_every_send_completes<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape { sq_sig_all: true, ..Shape::default() })?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    for wr_id in 0..3 {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[arena.sge(32..64)] }])?;
        post_send(
            &mut pair.a.qp,
            &[SendWr { wr_id, op: SendOp::Send, sge: &sge, flags: SendFlags::empty() }],
        )?;
        wait_for(&mut pair.a.cq, wr_id, WcOpcode::SEND)?;
    }
    let (_, info) = pair.a.qp.query(verbs::QpAttrMask::CAP)?;
    assert!(info.sq_sig_all);
    Ok(())
}

fn a_completion_queue_is_polled_in_pieces<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let (send, recv) = ([arena.sge(0..8)], [arena.sge(32..64)]);
    let recvs: Vec<_> = (0..10).map(|wr_id| RecvWr { wr_id, sge: &recv }).collect();
    let sends: Vec<_> = (0..10).map(|wr_id| signalled(wr_id, SendOp::Send, &send)).collect();
    post_recv(&mut pair.b.qp, &recvs)?;
    post_send(&mut pair.a.qp, &sends)?;
    wait(&mut pair.a.cq, 10)?;
    let mut seen = Vec::new();
    // Polls by value, by reference, then by reference without reading a completion. Each call
    // consumes only the completions that it returns.
    fabric::eventually("ten completions", || {
        let mut wcs = [Wc::default(); 3];
        let count = pair.b.cq.poll_into(&mut wcs);
        seen.extend(wcs[..count].iter().map(|wc| wc.wr_id));
        let mut completions = pair.b.cq.poll();
        seen.extend(completions.next().map(|completion| completion.wr_id()));
        drop(completions);
        drop(pair.b.cq.poll());
        seen.len() == 10
    })?;
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    assert!(is_empty(&mut pair.b.cq));
    Ok(())
}

fn two_threads_have_half_a_queue_pair_each<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: u64 = 400;
    const AHEAD: u64 = 16;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, 8 * 16)?, Arena::new(&pair.pd, 8 * 16)?);
    let place = |n: u64| (n % AHEAD) as usize * 8;
    // The queue pair sends to itself, so both of its halves are busy.
    let shape = Shape::default();
    let mut own_recv_cq = context.create_cq(&verbs::CqInit::new(64))?;
    let recv_cq = own_recv_cq.handle();
    let init = verbs::QpInit { recv_cq, cap: shape.cap, ..verbs::QpInit::new(shape.qp_type, &pair.a.cq) };
    let qp = pair.pd.create_qp(&init)?;
    let own = Remote::from_qp(&qp);
    let mut qp = fabric::connect(context, qp, &shape, own)?;
    for n in 0..AHEAD {
        post_recv(&mut qp, &[RecvWr { wr_id: n, sge: &[into.sge(place(n)..place(n) + 8)] }])?;
    }
    let (mut send, mut recv) = qp.into_split();
    let (send_cq, recv_cq) = (&mut pair.a.cq, &mut own_recv_cq);
    let sges: Vec<_> = (0..AHEAD).map(|n| [into.sge(place(n)..place(n) + 8)]).collect();
    let from_sges: Vec<_> = (0..AHEAD).map(|n| [from.sge(place(n)..place(n) + 8)]).collect();
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> CaseResult {
            for n in 0..COUNT {
                post_send_half(&mut send, &[signalled(n, SendOp::Send, &from_sges[(n % AHEAD) as usize])])?;
                wait_for(send_cq, n, WcOpcode::SEND)?;
            }
            Ok(())
        });
        let receiver = scope.spawn(move || -> CaseResult {
            for n in 0..COUNT {
                wait_for(recv_cq, n, WcOpcode::RECV)?;
                let wr_id = n + AHEAD;
                post_recv_half(&mut recv, &[RecvWr { wr_id, sge: &sges[(n % AHEAD) as usize] }])?;
            }
            Ok(())
        });
        for thread in [sender, receiver] {
            thread.join().unwrap_or_else(|_| fail("a thread panicked"))?;
        }
        Ok(())
    })
}

/// Polls the next completion and reclaims its memory. Checks the status, the opcode and that the
/// memory is returned only once.
fn reclaim<P: Provider>(end: &mut fabric::End<P>, opcode: WcOpcode) -> CaseResult<(Wc, Returned)> {
    let mut found = None;
    fabric::eventually("a completion of a request with memory", || {
        if let Some(mut completion) = end.cq.poll().next() {
            let returned = completion.reclaim();
            assert!(completion.reclaim().is_none(), "a second look returned it again");
            found = Some((completion.to_wc(), returned));
        }
        found.is_some()
    })?;
    let Some((wc, Some(returned))) = found else {
        return fail(format_args!("no memory returned with {found:?}"));
    };
    assert!(wc.status == verbs::WcStatus::SUCCESS && wc.opcode == opcode, "{wc:?}");
    assert!(end.cq.reclaim(&wc).is_none(), "a copy of the completion returned it again");
    Ok((wc, returned))
}

fn posted_buffers_come_back_as_they_went<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let send = filled(&pair.pd, 1, 5000)?;
    let recv = pair.pd.alloc_buf(6000)?;
    let (send_addr, recv_addr) = (send.addr(), recv.addr());
    pair.b.qp.post_recv_buf(recv, 100..5900)?;
    pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), send, 1000..4000)?;
    let (_, sent) = reclaim(&mut pair.a, WcOpcode::SEND)?;
    let (wc, received) = reclaim(&mut pair.b, WcOpcode::RECV)?;
    let (sent, received) = (one(sent)?, one(received)?);
    assert_eq!(
        (sent.addr(), sent.len(), received.addr(), received.len()),
        (send_addr, 5000, recv_addr, 6000)
    );
    assert_eq!(wc.byte_len, 3000);
    assert_eq!(sent[..], pattern(1, 5000)[..]);
    assert_eq!(received[100..3100], pattern(1, 5000)[1000..4000]);
    assert!(received[..100].iter().chain(&received[3100..]).all(|byte| *byte == 0));

    // Several buffers at once: the send gathers them, and the receive scatters into several.
    let parts = vec![filled(&pair.pd, 2, 10)?, filled(&pair.pd, 3, 2000)?];
    let whole = [pattern(2, 10), pattern(3, 2000)].concat();
    let places = vec![pair.pd.alloc_buf(1005)?, pair.pd.alloc_buf(1005)?];
    pair.b.qp.post_recv_bufs(places)?;
    pair.a.qp.post_send_bufs(SendOp::Send, SendFlags::empty(), parts)?;
    assert_eq!(reclaim(&mut pair.a, WcOpcode::SEND)?.1.into_bufs().len(), 2);
    let arrived = reclaim(&mut pair.b, WcOpcode::RECV)?.1.into_bufs();
    assert_eq!(arrived.iter().flat_map(|buf| buf.to_vec()).collect::<Vec<_>>(), whole);

    // A rejected call returns its memory at once.
    let error = pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), sent, 0..5001).unwrap_err();
    let reason = PostBufReason::OutOfRange { start: 0, end: 5001, len: 5000 };
    assert_eq!((error.returned.map(|buf| buf.len()), error.reason), (Some(5000), reason));
    let elsewhere = context.alloc_pd()?.alloc_buf(10)?;
    let error = pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), elsewhere, ..).unwrap_err();
    assert_eq!((error.returned.map(|buf| buf.len()), error.reason), (Some(10), PostBufReason::Foreign));
    let data = vec![0; pair.a.qp.cap().max_inline_data as usize + 1];
    let error = pair.a.qp.post_send_inline(1, SendOp::Send, SendFlags::empty(), &data).unwrap_err();
    assert!(matches!(error, PostBufReason::Post(PostReason::InlineTooLong { .. })), "{error}");
    assert_eq!(
        pair.a.qp.post_send_inline(1 << 63, SendOp::Send, SendFlags::empty(), b"x"),
        Err(PostBufReason::ReservedWrId { wr_id: 1 << 63 })
    );
    Ok(())
}

fn one(returned: Returned) -> CaseResult<Buf> {
    returned.into_buf().map_or_else(|| fail("no buffer returned"), Ok)
}

fn posted_buffers_come_back_from_a_reset_and_from_a_destroyed_queue_pair<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let pair = Pair::new(context, &Shape::default())?;
    let (mut a, mut b) = (pair.a.qp, pair.b.qp);
    for seed in 0..3 {
        a.post_recv_buf(filled(&pair.pd, seed, 100)?, ..)?;
        b.post_recv_buf(filled(&pair.pd, seed, 100)?, ..)?;
    }
    let mut a = a.to_reset()?;
    let from_reset = a.reclaim_all();
    let mut given_back = vec![b.dismantle()?];
    if a.reset_ends_requests() {
        given_back.push(from_reset);
    } else {
        // The buffers return when the queue pair is destroyed.
        assert!(from_reset.is_empty());
        let Pair { a: other, .. } = Pair::new(context, &Shape::default())?;
        let kept = core::mem::replace(&mut a, other.qp.to_reset()?);
        given_back.push(kept.dismantle()?);
    }
    for memory in given_back {
        let mut bufs: Vec<Buf> = memory.into_iter().filter_map(Memory::into_buf).collect();
        bufs.sort_by_key(|buf| buf.to_vec());
        let mut expected: Vec<_> = (0..3).map(|seed| pattern(seed, 100)).collect();
        expected.sort();
        assert_eq!(bufs.iter().map(|buf| buf.to_vec()).collect::<Vec<_>>(), expected);
    }
    assert!(a.reclaim_all().is_empty());
    // The queue pair works again from the start of its rings.
    drop(fabric::connect(context, a, &Shape::default(), Remote { qp_num: 1, psn: 0 })?);
    Ok(())
}

/// Posts one request per operation in a fixed order and returns the completions. Replaces values
/// that differ between runs, such as queue pair numbers.
fn script<P: Provider>(context: &Context<P>) -> CaseResult<Vec<Wc>> {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 8192)?;
    let (remote_addr, rkey) = (arena.addr() + 4096, arena.rkey());
    let (sge, eight) = ([arena.sge(0..3000)], [arena.sge(0..8)]);
    let bad = [verbs::Sge { lkey: !arena.lkey(), ..eight[0] }];
    let mut wcs = Vec::new();
    for (op, sge, receives) in [
        (SendOp::Send, &sge, 1),
        (SendOp::SendWithImm { imm_data: 1 }, &sge, 1),
        (SendOp::RdmaWrite { remote_addr, rkey }, &sge, 0),
        (SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 2 }, &sge, 1),
        (SendOp::RdmaRead { remote_addr, rkey }, &sge, 0),
        (SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 }, &eight, 0),
        (SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }, &eight, 0),
    ] {
        let wr_id = wcs.len() as u64;
        if receives > 0 {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: wr_id + 1000, sge: &[arena.sge(4096..8192)] }])?;
        }
        post_send(&mut pair.a.qp, &[signalled(wr_id, op, sge)])?;
        wcs.extend(wait(&mut pair.a.cq, 1)?);
        wcs.extend(wait(&mut pair.b.cq, receives)?);
    }
    // Posted together, because rxe before Linux 6.1 may ignore requests posted in the error state.
    let wr_id = wcs.len() as u64;
    let last = [signalled(wr_id, SendOp::Send, &bad), signalled(wr_id + 1, SendOp::Send, &sge)];
    post_send(&mut pair.a.qp, &last)?;
    wcs.extend(wait(&mut pair.a.cq, 2)?);
    for wc in &mut wcs {
        assert!([pair.a.qp.qp_num(), pair.b.qp.qp_num()].contains(&wc.qp_num), "{wc:?}");
        wc.qp_num = u32::from(wc.qp_num == pair.a.qp.qp_num());
        if wc.status != verbs::WcStatus::SUCCESS {
            // In a failed completion, all other fields are undefined.
            *wc = Wc { wr_id: wc.wr_id, status: wc.status, qp_num: wc.qp_num, ..Wc::default() };
        } else if !wc.opcode.is_recv() {
            // The sender's byte count is undefined for these operations.
            wc.byte_len *= u32::from(![WcOpcode::SEND, WcOpcode::RDMA_WRITE].contains(&wc.opcode));
        }
    }
    Ok(wcs)
}

fn hidden_and_named_providers_give_the_same_completions() -> CaseResult {
    let hidden = script(&fabric::open()?)?;
    let named: Vec<Wc> = with_named!(fabric::open_named()?, |context| script(&context))?;
    assert_eq!(named, hidden);
    let named_later: Vec<Wc> = with_named!(fabric::open_named()?, |context| script(&name_later(&context)?))?;
    assert_eq!(named_later, hidden);
    assert_eq!(hidden.len(), 9 + 3);
    assert!(fabric::is_local_key_error(hidden[10].status)?, "{:?}", hidden[10]);
    assert_eq!(hidden[11].status, verbs::WcStatus::WR_FLUSH_ERR);
    Ok(())
}

fn another_provider() -> Stop {
    Stop::Failed(format!("{} does not have the provider that opened it", fabric::under_test()))
}

/// Opens the device with its provider erased and then names the provider.
fn name_later<P: NamedProvider>(_: &Context<P>) -> CaseResult<Context<P>> {
    fabric::open()?.downcast::<P>().map_err(|_| another_provider())
}

fn handles_can_be_named_after_they_were_made_hidden() -> CaseResult {
    with_named!(fabric::open_named()?, |context| handles_can_be_named(&context))
}

fn handles_can_be_named<P: NamedProvider>(_: &Context<P>) -> CaseResult {
    let pair = Pair::new(&fabric::open()?, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let mut a = pair.a.qp.downcast::<P>().map_err(|_| another_provider())?;
    let mut a_cq = pair.a.cq.downcast::<P>().map_err(|_| another_provider())?;
    let (mut b, mut b_cq) = (pair.b.qp, pair.b.cq);
    for n in 0..40 {
        post_recv(&mut b, &[RecvWr { wr_id: n, sge: &[arena.sge(32..64)] }])?;
        post_send(&mut a, &[signalled(n, SendOp::Send, &[arena.sge(0..8)])])?;
        wait_for(&mut a_cq, n, WcOpcode::SEND)?;
        wait_for(&mut b_cq, n, WcOpcode::RECV)?;
    }
    Ok(())
}
