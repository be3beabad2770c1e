//! Failed requests and the requests around them: successes, flushes and their order.

use verbs::{
    Context, Cq, CqInit, Provider, QpState, QpType, RecvWr, RtsAttr, SendFlags, SendOp, SendWr, Sge, Wc,
    WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Pair, Shape, hold, in_error, is_empty, is_local_key_error, is_rxe, post_recv, post_send,
    rxe_ignores_rnr_timer, rxe_is_before, signalled, wait, wait_for, wait_one, wait_remote_access_error,
    wait_status,
};
use verbs_harness::runner::{Case, CaseResult, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        what_was_sent_before_a_failure_succeeds,
        silent_requests_before_a_failure_stay_silent,
        a_silent_request_that_fails_is_reported,
        silent_requests_behind_a_failure_are_flushed_aloud,
        a_failure_amid_every_operation_flushes_in_order,
        receives_of_a_failed_requester_are_flushed_in_order,
        both_queues_of_a_failed_responder_are_flushed,
        two_completion_queues_get_their_own_flushes,
        a_flushed_completion_names_its_queue_pair,
        every_request_ends_once,
        a_refused_batch_is_not_flushed,
        a_full_queue_has_room_once_it_is_flushed,
        memory_of_flushed_requests_comes_back,
        an_error_on_one_connection_leaves_the_others_alone,
        a_silent_queue_is_flushed_on_request,
    )
}

/// Polls completions and returns each as (`wr_id`, status).
fn ends<P: Provider>(cq: &mut Cq<P>, count: usize) -> CaseResult<Vec<(u64, WcStatus)>> {
    Ok(wait(cq, count)?.iter().map(|wc| (wc.wr_id, wc.status)).collect())
}

/// Returns a write that the responder rejects.
fn refused<P: Provider>(arena: &Arena<P>) -> SendOp<'static> {
    SendOp::RdmaWrite { remote_addr: arena.addr(), rkey: !arena.rkey() }
}

/// Returns a write that the responder accepts.
fn accepted<P: Provider>(arena: &Arena<P>) -> SendOp<'static> {
    SendOp::RdmaWrite { remote_addr: arena.addr(), rkey: arena.rkey() }
}

fn silent<'a>(wr_id: u64, op: SendOp<'a>, sge: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id, op, sge, flags: SendFlags::empty() }
}

/// Returns the requester's status for a request without the necessary access right.
fn access_error() -> CaseResult<WcStatus> {
    Ok(if rxe_is_before(5, 11)? { WcStatus::RETRY_EXC_ERR } else { WcStatus::REM_ACCESS_ERR })
}

fn what_was_sent_before_a_failure_succeeds<P: Provider>(context: &Context<P>) -> CaseResult {
    for failing in [0, 1, 5, 15] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let arena = Arena::new(&pair.pd, 64)?;
        let sge = [arena.sge(0..8)];
        let op = |n| if n == failing { refused(&arena) } else { accepted(&arena) };
        let wrs: Vec<_> = (0..16).map(|n| signalled(n, op(n), &sge)).collect();
        post_send(&mut pair.a.qp, &wrs)?;
        let error = access_error()?;
        let expected = |n: u64| match n.cmp(&failing) {
            core::cmp::Ordering::Less => WcStatus::SUCCESS,
            core::cmp::Ordering::Equal => error,
            core::cmp::Ordering::Greater => WcStatus::WR_FLUSH_ERR,
        };
        let all: Vec<_> = (0..16).map(|n| (n, expected(n))).collect();
        assert_eq!(ends(&mut pair.a.cq, 16)?, all);
        assert!(is_empty(&mut pair.a.cq));
        in_error(&pair.a.qp)?;
    }
    Ok(())
}

fn silent_requests_before_a_failure_stay_silent<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    let ok = accepted(&arena);
    let wrs =
        [silent(1, ok, &sge), silent(2, ok, &sge), silent(3, ok, &sge), signalled(4, refused(&arena), &sge)];
    post_send(&mut pair.a.qp, &wrs)?;
    wait_remote_access_error(&mut pair.a.cq, 4)?;
    assert!(is_empty(&mut pair.a.cq));
    Ok(())
}

fn a_silent_request_that_fails_is_reported<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    post_send(&mut pair.a.qp, &[silent(1, accepted(&arena), &sge), silent(2, refused(&arena), &sge)])?;
    wait_remote_access_error(&mut pair.a.cq, 2)?;
    assert!(is_empty(&mut pair.a.cq));
    Ok(())
}

fn silent_requests_behind_a_failure_are_flushed_aloud<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    let wrs: Vec<_> =
        (0..8).map(|n| silent(n, if n == 0 { refused(&arena) } else { accepted(&arena) }, &sge)).collect();
    post_send(&mut pair.a.qp, &wrs)?;
    wait_remote_access_error(&mut pair.a.cq, 0)?;
    let flushed: Vec<_> = (1..8).map(|n| (n, WcStatus::WR_FLUSH_ERR)).collect();
    assert_eq!(ends(&mut pair.a.cq, 7)?, flushed);
    Ok(())
}

fn a_failure_amid_every_operation_flushes_in_order<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let (remote_addr, rkey) = (arena.addr(), arena.rkey());
    let sge = [arena.sge(0..8)];
    let ops = [
        refused(&arena),
        SendOp::RdmaRead { remote_addr, rkey },
        SendOp::Send,
        SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
        SendOp::SendWithImm { imm_data: 1 },
        SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 1 },
        SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
        SendOp::RdmaWrite { remote_addr, rkey },
    ];
    let wrs: Vec<_> = (0..).zip(ops).map(|(n, op)| signalled(n, op, &sge)).collect();
    post_send(&mut pair.a.qp, &wrs)?;
    wait_remote_access_error(&mut pair.a.cq, 0)?;
    let flushed: Vec<_> = (1..8).map(|n| (n, WcStatus::WR_FLUSH_ERR)).collect();
    assert_eq!(ends(&mut pair.a.cq, 7)?, flushed);
    assert_eq!(arena.read(0..64), [0; 64], "nothing was executed");
    Ok(())
}

fn receives_of_a_failed_requester_are_flushed_in_order<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    for wr_id in 20..28 {
        post_recv(&mut pair.a.qp, &[RecvWr { wr_id, sge: &[arena.sge(8..16)] }])?;
    }
    post_send(&mut pair.a.qp, &[signalled(1, refused(&arena), &[arena.sge(0..8)])])?;
    let all = ends(&mut pair.a.cq, 9)?;
    let receives: Vec<_> = all.iter().copied().filter(|(wr_id, _)| *wr_id >= 20).collect();
    assert_eq!(receives, (20..28).map(|n| (n, WcStatus::WR_FLUSH_ERR)).collect::<Vec<_>>());
    assert!(all.contains(&(1, access_error()?)));
    Ok(())
}

fn both_queues_of_a_failed_responder_are_flushed<P: Provider>(context: &Context<P>) -> CaseResult {
    if rxe_ignores_rnr_timer()? {
        return skip("rxe of this kernel repeats at once, and keeps the processor from all programs");
    }
    // b's sends wait for receives that a never posts.
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    for n in 0..3 {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 20 + n, sge: &[arena.sge(8..16)] }])?;
        post_send(&mut pair.b.qp, &[signalled(n, SendOp::Send, &sge)])?;
    }
    post_send(&mut pair.a.qp, &[signalled(9, refused(&arena), &sge)])?;
    wait_remote_access_error(&mut pair.a.cq, 9)?;
    let all = ends(&mut pair.b.cq, 6)?;
    let of =
        |low, high| all.iter().copied().filter(move |(n, _)| (low..high).contains(n)).collect::<Vec<_>>();
    let flushed = |n| (n, WcStatus::WR_FLUSH_ERR);
    assert_eq!(of(0, 20), [0, 1, 2].map(flushed));
    assert_eq!(of(20, 30), [20, 21, 22].map(flushed));
    in_error(&pair.b.qp)?;
    Ok(())
}

fn two_completion_queues_get_their_own_flushes<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let (mut sends, mut recvs) = (context.create_cq(&CqInit::new(16))?, context.create_cq(&CqInit::new(16))?);
    let shape = Shape::default();
    let init =
        verbs::QpInit { recv_cq: recvs.handle(), cap: shape.cap, ..verbs::QpInit::new(QpType::RC, &sends) };
    let (qp, peer) = (pd.create_qp(&init)?, pd.create_qp(&init)?);
    let ends_of_it = [&qp, &peer].map(verbs_fixtures::fabric::Remote::from_qp);
    let _peer = verbs_fixtures::fabric::connect(context, peer, &shape, ends_of_it[0])?;
    let mut qp = verbs_fixtures::fabric::connect(context, qp, &shape, ends_of_it[1])?;
    let arena = Arena::new(&pd, 64)?;
    for n in 0..3 {
        post_recv(&mut qp, &[RecvWr { wr_id: n, sge: &[arena.sge(8..16)] }])?;
    }
    let sge = [arena.sge(0..8)];
    hold(&mut qp)?;
    for n in 10..13 {
        post_send(&mut qp, &[signalled(n, SendOp::Send, &sge)])?;
    }
    let _broken = qp.to_error()?;
    assert_eq!(ends(&mut sends, 3)?, [10, 11, 12].map(|n| (n, WcStatus::WR_FLUSH_ERR)));
    assert_eq!(ends(&mut recvs, 3)?, [0, 1, 2].map(|n| (n, WcStatus::WR_FLUSH_ERR)));
    assert!(is_empty(&mut sends) && is_empty(&mut recvs));
    Ok(())
}

fn a_flushed_completion_names_its_queue_pair<P: Provider>(context: &Context<P>) -> CaseResult {
    // Both queue pairs complete on one queue.
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let numbers = [pair.a.qp.qp_num(), pair.b.qp.qp_num()];
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(8..16)] }])?;
    let sge = [arena.sge(0..8)];
    post_send(&mut pair.a.qp, &[signalled(1, refused(&arena), &sge), signalled(3, SendOp::Send, &sge)])?;
    let of = |wcs: Vec<Wc>| wcs.iter().map(|wc| (wc.wr_id, wc.qp_num)).collect::<Vec<_>>();
    assert_eq!(of(wait(&mut pair.a.cq, 2)?), [(1, numbers[0]), (3, numbers[0])]);
    assert_eq!(of(wait(&mut pair.b.cq, 1)?), [(2, numbers[1])]);
    Ok(())
}

fn every_request_ends_once<P: Provider>(context: &Context<P>) -> CaseResult {
    for round in 0..8 {
        let mut pair = Pair::new(context, &Shape::default())?;
        let arena = Arena::new(&pair.pd, 64)?;
        let sge = [arena.sge(0..8)];
        for n in 0..12 {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 100 + n, sge: &[arena.sge(8..16)] }])?;
        }
        let op = |n| if n == round { refused(&arena) } else { SendOp::Send };
        let wrs: Vec<_> = (0..12).map(|n| signalled(n, op(n), &sge)).collect();
        post_send(&mut pair.a.qp, &wrs)?;
        let mut sends = ends(&mut pair.a.cq, 12)?;
        let mut receives = ends(&mut pair.b.cq, 12)?;
        let arrived = receives.iter().filter(|(_, status)| *status == WcStatus::SUCCESS).count();
        assert_eq!(arrived as u64, round, "{receives:?}");
        sends.sort_unstable_by_key(|(n, _)| *n);
        receives.sort_unstable_by_key(|(n, _)| *n);
        assert!(sends.iter().map(|(n, _)| *n).eq(0..12) && receives.iter().map(|(n, _)| *n).eq(100..112));
        assert!(is_empty(&mut pair.a.cq) && is_empty(&mut pair.b.cq));
    }
    Ok(())
}

fn a_refused_batch_is_not_flushed<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let (one, five) = ([arena.sge(0..8)], [arena.sge(0..8); 5]);
    // The second request has too many elements, so neither it nor the third was posted.
    hold(&mut pair.a.qp)?;
    let wrs = [
        signalled(1, SendOp::Send, &one),
        signalled(2, SendOp::Send, &five),
        signalled(3, SendOp::Send, &one),
    ];
    assert_eq!(post_send(&mut pair.a.qp, &wrs).unwrap_err().accepted, 1);
    let _broken = pair.a.qp.to_error()?;
    wait_status(&mut pair.a.cq, 1, WcStatus::WR_FLUSH_ERR)?;
    assert!(is_empty(&mut pair.a.cq));
    Ok(())
}

fn a_full_queue_has_room_once_it_is_flushed<P: Provider>(context: &Context<P>) -> CaseResult {
    if rxe_is_before(6, 1)? {
        return skip("rxe before Linux 6.1 wakes nobody who would flush what is posted in the error state");
    }
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    let room = u64::from(pair.a.qp.cap().max_send_wr);
    hold(&mut pair.a.qp)?;
    for n in 0..room {
        post_send(&mut pair.a.qp, &[signalled(n, SendOp::Send, &sge)])?;
    }
    post_send(&mut pair.a.qp, &[signalled(999, SendOp::Send, &sge)]).unwrap_err();
    let mut broken = pair.a.qp.to_error()?;
    for n in 0..room {
        wait_status(&mut pair.a.cq, n, WcStatus::WR_FLUSH_ERR)?;
    }
    post_send(&mut broken, &[signalled(1000, SendOp::Send, &sge)])?;
    wait_status(&mut pair.a.cq, 1000, WcStatus::WR_FLUSH_ERR)
}

fn memory_of_flushed_requests_comes_back<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    hold(&mut pair.a.qp)?;
    for n in 1..5 {
        let buf = pair.pd.alloc_buf(n)?;
        pair.a.qp.post_recv_buf(buf, ..)?;
        let buf = pair.pd.alloc_buf(10 * n)?;
        pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..)?;
    }
    let _broken = pair.a.qp.to_error()?;
    let mut lengths = Vec::new();
    let deadline = std::time::Instant::now() + verbs_fixtures::fabric::PATIENCE;
    while lengths.len() < 8 && std::time::Instant::now() < deadline {
        if let Some(completed) = pair.a.cq.poll_one() {
            assert_eq!(completed.wc.status, WcStatus::WR_FLUSH_ERR);
            lengths.extend(completed.into_buf().map(|buf| buf.len()));
        }
    }
    lengths.sort_unstable();
    assert_eq!(lengths, [1, 2, 3, 4, 10, 20, 30, 40]);
    Ok(())
}

fn an_error_on_one_connection_leaves_the_others_alone<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut bad, mut good) =
        (Pair::new(context, &Shape::default())?, Pair::new(context, &Shape::default())?);
    let arena = Arena::new(&good.pd, 64)?;
    let sge = [arena.sge(0..8)];
    for n in 0..4 {
        post_recv(&mut good.b.qp, &[RecvWr { wr_id: n, sge: &[arena.sge(8..16)] }])?;
    }
    let own = Arena::new(&bad.pd, 64)?;
    post_send(&mut bad.a.qp, &[signalled(1, refused(&own), &[own.sge(0..8)])])?;
    for n in 0..4 {
        post_send(&mut good.a.qp, &[signalled(n, SendOp::Send, &sge)])?;
    }
    wait_remote_access_error(&mut bad.a.cq, 1)?;
    for n in 0..4 {
        wait_for(&mut good.a.cq, n, WcOpcode::SEND)?;
        wait_for(&mut good.b.cq, n, WcOpcode::RECV)?;
    }
    assert_eq!((good.a.qp.state()?, good.b.qp.state()?), (QpState::RTS, QpState::RTS));
    Ok(())
}

fn a_silent_queue_is_flushed_on_request<P: Provider>(context: &Context<P>) -> CaseResult {
    if rxe_ignores_rnr_timer()? {
        return skip("rxe of this kernel repeats at once, and keeps the processor from all programs");
    }
    // The receiver is never ready; the sender would retry forever.
    let rts = RtsAttr { rnr_retry: 7, ..Shape::default().rts };
    for qp_type in [QpType::RC, QpType::UC] {
        let mut pair = Pair::new(context, &Shape { rts, ..Shape::for_type(qp_type) })?;
        let arena = Arena::new(&pair.pd, 64)?;
        let wrong = Sge { lkey: !arena.lkey(), ..arena.sge(0..8) };
        let sge = [if qp_type == QpType::RC { arena.sge(0..8) } else { wrong }];
        if qp_type == QpType::UC && is_rxe()? {
            continue;
        }
        let wrs: Vec<_> = (0..4).map(|n| silent(n, SendOp::Send, &sge)).collect();
        post_send(&mut pair.a.qp, &wrs)?;
        let first = if qp_type == QpType::RC {
            WcStatus::WR_FLUSH_ERR
        } else {
            // The first request failed before the queue pair was moved to the error state.
            let wc = wait_one(&mut pair.a.cq)?;
            assert!(is_local_key_error(wc.status)?, "{wc:?}");
            wc.status
        };
        let broken = pair.a.qp.to_error()?;
        let from = u64::from(first != WcStatus::WR_FLUSH_ERR);
        for n in from..4 {
            wait_status(&mut pair.a.cq, n, WcStatus::WR_FLUSH_ERR)?;
        }
        in_error(&broken)?;
    }
    Ok(())
}
