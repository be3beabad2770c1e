//! Compare-and-swap and fetch-and-add: values, atomicity among queue pairs and with respect to the
//! program, access rights, lengths, bounds and order.

use std::sync::atomic::Ordering;
use std::thread;

use verbs::{
    AccessFlags, AtomicCap, Context, CqInit, PostReason, Provider, QpAttr, QpAttrMask, RemoteAccess,
    SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Pair, Shape, is_rxe, is_soft, post_send, signalled, wait, wait_for, wait_local_key_error,
    wait_one, wait_remote_access_error,
};
use verbs_harness::runner::{Case, CaseResult};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        the_device_says_that_it_has_atomics,
        a_swap_happens_only_where_the_value_compares,
        an_addition_wraps_around_and_changes_no_neighbour,
        a_swap_of_the_same_value_and_an_addition_of_nothing_read,
        results_arrive_in_the_order_of_their_requests,
        more_atomics_are_posted_than_may_be_outstanding,
        additions_of_many_queue_pairs_to_one_word_all_count,
        swaps_of_many_queue_pairs_make_one_winner_each_round,
        atomics_and_accesses_of_the_program_do_not_lose_each_other,
        the_result_is_spread_over_several_elements,
        an_unaligned_atomic_is_not_posted,
        an_atomic_with_another_length_than_eight_is_not_posted,
        an_atomic_takes_no_inline_data,
        an_atomic_without_the_right_of_the_region_is_refused_by_the_peer,
        an_atomic_without_the_right_of_the_queue_pair_is_refused_by_the_peer,
        an_atomic_beyond_its_region_is_refused_by_the_peer,
        an_atomic_into_memory_that_may_not_be_written_fails_here,
        a_fenced_send_carries_the_result_of_an_atomic,
    )
}

const LANES: u64 = 4;

fn add<P: Provider>(arena: &Arena<P>, at: u64, add: u64) -> SendOp<'static> {
    SendOp::AtomicFetchAndAdd { remote_addr: arena.addr() + at, rkey: arena.rkey(), add }
}

fn swap<P: Provider>(arena: &Arena<P>, at: u64, compare: u64, swap: u64) -> SendOp<'static> {
    SendOp::AtomicCmpAndSwp { remote_addr: arena.addr() + at, rkey: arena.rkey(), compare, swap }
}

/// Returns a pair, a word in the peer's memory between two other words, and memory for results.
fn words<P: Provider>(context: &Context<P>) -> CaseResult<(Pair<P>, Arena<P>, Arena<P>)> {
    let pair = Pair::new(context, &Shape::default())?;
    let (word, results) = (Arena::new(&pair.pd, 24)?, Arena::new(&pair.pd, 512)?);
    Ok((pair, word, results))
}

fn the_device_says_that_it_has_atomics<P: Provider>(context: &Context<P>) -> CaseResult {
    let attr = context.query_device()?;
    assert!(attr.atomic_cap != AtomicCap::NONE, "{:?}", attr.atomic_cap);
    assert!(attr.max_qp_rd_atom > 0 && attr.max_qp_init_rd_atom > 0);
    Ok(())
}

fn a_swap_happens_only_where_the_value_compares<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    let mut value = 0;
    for (compare, with) in [(0, 5), (0, 6), (5, u64::MAX), (u64::MAX, 1), (2, 3), (1, 0)] {
        post_send(&mut pair.a.qp, &[signalled(1, swap(&word, 8, compare, with), &[results.sge(0..8)])])?;
        let wc = wait_for(&mut pair.a.cq, 1, WcOpcode::COMP_SWAP)?;
        assert_eq!((results.number(0), wc.byte_len), (value, 8), "{compare} {with}");
        value = if compare == value { with } else { value };
        assert_eq!((word.number(0), word.number(8), word.number(16)), (0, value, 0));
    }
    Ok(())
}

fn an_addition_wraps_around_and_changes_no_neighbour<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    let mut value: u64 = 0;
    for n in [1, u64::MAX, u64::MAX, 1 << 63, 1 << 63, 0xffff_ffff] {
        post_send(&mut pair.a.qp, &[signalled(1, add(&word, 8, n), &[results.sge(8..16)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::FETCH_ADD)?;
        assert_eq!(results.number(8), value);
        value = value.wrapping_add(n);
        assert_eq!((word.number(0), word.number(8), word.number(16)), (0, value, 0));
    }
    assert_eq!((results.number(0), results.number(16)), (0, 0));
    Ok(())
}

fn a_swap_of_the_same_value_and_an_addition_of_nothing_read<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    word.write(8, &77_u64.to_ne_bytes());
    let (first, second) = ([results.sge(0..8)], [results.sge(8..16)]);
    let wrs = [signalled(1, swap(&word, 8, 77, 77), &first), signalled(2, add(&word, 8, 0), &second)];
    post_send(&mut pair.a.qp, &wrs)?;
    wait(&mut pair.a.cq, 2)?;
    assert_eq!((results.number(0), results.number(8), word.number(8)), (77, 77, 77));
    Ok(())
}

fn results_arrive_in_the_order_of_their_requests<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    for n in 0..16 {
        let op = if n % 2 == 0 { add(&word, 8, 1) } else { swap(&word, 8, n, n + 1) };
        let at = n as usize * 8;
        post_send(&mut pair.a.qp, &[signalled(n, op, &[results.sge(at..at + 8)])])?;
    }
    let ids: Vec<u64> = wait(&mut pair.a.cq, 16)?.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..16).collect::<Vec<_>>());
    // Each request found the result of its predecessor.
    let found: Vec<u64> = (0..16).map(|n| results.number(n * 8)).collect();
    assert_eq!((found, word.number(8)), ((0..16).collect(), 16));
    Ok(())
}

fn more_atomics_are_posted_than_may_be_outstanding<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape =
        Shape { rts: verbs::RtsAttr { max_rd_atomic: 1, ..Shape::default().rts }, ..Shape::default() };
    let mut pair = Pair::new(context, &shape)?;
    let (word, results) = (Arena::new(&pair.pd, 8)?, Arena::new(&pair.pd, 256)?);
    let sges: Vec<_> = (0..32).map(|n| [results.sge(n * 8..n * 8 + 8)]).collect();
    let wrs: Vec<_> = (0..32).map(|n| signalled(n, add(&word, 0, 1), &sges[n as usize])).collect();
    for wrs in wrs.chunks(31) {
        post_send(&mut pair.a.qp, wrs)?;
        wait(&mut pair.a.cq, wrs.len())?;
    }
    assert_eq!(word.number(0), 32);
    assert_eq!(results.number(31 * 8), 31);
    Ok(())
}

fn additions_of_many_queue_pairs_to_one_word_all_count<P: Provider>(context: &Context<P>) -> CaseResult {
    const EACH: u64 = 100;
    let first = Pair::new(context, &patient())?;
    let word = Arena::new(&first.pd, 8)?;
    // Each lane writes to the word through a separate queue pair on each side.
    let mut lanes = vec![first];
    for _ in 1..LANES {
        lanes.push(lane(context, &lanes[0])?);
    }
    let one_more = add(&word, 0, 1);
    let count = |pair: Pair<P>| {
        move || -> CaseResult {
            // Moves the whole pair. A closure captures only the fields it names, so otherwise the
            // peer's end would be destroyed here.
            let mut pair = pair;
            let result = Arena::new(&pair.pd, 8)?;
            let mut last = None;
            for n in 0..EACH {
                post_send(&mut pair.a.qp, &[signalled(n, one_more, &[result.sge(0..8)])])?;
                wait_for(&mut pair.a.cq, n, WcOpcode::FETCH_ADD)?;
                let found = Some(result.number(0));
                assert!(found > last, "{found:?} after {last:?}");
                last = found;
            }
            Ok(())
        }
    };
    thread::scope(|scope| -> CaseResult {
        let threads: Vec<_> = lanes.into_iter().map(|pair| scope.spawn(count(pair))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    assert_eq!(word.number(0), LANES * EACH);
    Ok(())
}

/// Returns a shape with enough retries for a machine that many threads keep busy.
fn patient() -> Shape {
    let rts = verbs::RtsAttr { timeout: 16, retry_cnt: 7, ..Shape::default().rts };
    Shape { rts, ..Shape::default() }
}

/// Connects another pair in the first pair's protection domain.
fn lane<P: Provider>(context: &Context<P>, first: &Pair<P>) -> CaseResult<Pair<P>> {
    let shape = patient();
    let mut pair = Pair::new(context, &shape)?;
    let make = || -> CaseResult<_> {
        let cq = context.create_cq(&CqInit::new(shape.cqe))?;
        let qp = verbs_fixtures::fabric::create_qp(&first.pd, &cq, &shape)?;
        Ok((qp, cq))
    };
    let ((a, a_cq), (b, b_cq)) = (make()?, make()?);
    let (to_a, to_b) =
        (verbs_fixtures::fabric::Remote::from_qp(&a), verbs_fixtures::fabric::Remote::from_qp(&b));
    pair.pd = first.pd.clone();
    pair.a = verbs_fixtures::fabric::End {
        qp: verbs_fixtures::fabric::connect(context, a, &shape, to_b)?,
        cq: a_cq,
        channel: None,
    };
    pair.b = verbs_fixtures::fabric::End {
        qp: verbs_fixtures::fabric::connect(context, b, &shape, to_a)?,
        cq: b_cq,
        channel: None,
    };
    Ok(pair)
}

fn swaps_of_many_queue_pairs_make_one_winner_each_round<P: Provider>(context: &Context<P>) -> CaseResult {
    const ROUNDS: u64 = 30;
    let first = Pair::new(context, &patient())?;
    let word = Arena::new(&first.pd, 8)?;
    let mut lanes = vec![first];
    for _ in 1..LANES {
        lanes.push(lane(context, &lanes[0])?);
    }
    let results: Vec<_> = lanes.iter().map(|pair| Arena::new(&pair.pd, 8)).collect::<CaseResult<_>>()?;
    for round in 0..ROUNDS {
        for (pair, result) in lanes.iter_mut().zip(&results) {
            let op = swap(&word, 0, round, round + 1);
            post_send(&mut pair.a.qp, &[signalled(round, op, &[result.sge(0..8)])])?;
        }
        let mut winners = 0;
        for (pair, result) in lanes.iter_mut().zip(&results) {
            wait_for(&mut pair.a.cq, round, WcOpcode::COMP_SWAP)?;
            winners += u64::from(result.number(0) == round);
        }
        assert_eq!((winners, word.number(0)), (1, round + 1));
    }
    Ok(())
}

fn atomics_and_accesses_of_the_program_do_not_lose_each_other<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    const EACH: u64 = 200;
    // A soft device reports `HCA` only because of file-backed memory.
    if context.query_device()?.atomic_cap != AtomicCap::GLOB && !is_soft()? {
        return verbs_harness::runner::skip("the device's atomics are atomic among themselves only");
    }
    let mut pair = Pair::new(context, &Shape::default())?;
    let exposed = pair.pd.expose(pair.pd.alloc_buf(64)?, RemoteAccess::ATOMIC)?;
    let remote = exposed.remote().slice(8..16)?;
    let result = Arena::new(&pair.pd, 8)?;
    let word = exposed.atomic(8).expect("an aligned word");
    thread::scope(|scope| -> CaseResult {
        scope.spawn(|| {
            for _ in 0..EACH {
                word.fetch_add(1, Ordering::AcqRel);
            }
        });
        for n in 0..EACH {
            post_send(&mut pair.a.qp, &[signalled(n, remote.fetch_add(1), &[result.sge(0..8)])])?;
            wait_for(&mut pair.a.cq, n, WcOpcode::FETCH_ADD)?;
        }
        Ok(())
    })?;
    assert_eq!(word.load(Ordering::Acquire), 2 * EACH);
    Ok(())
}

fn the_result_is_spread_over_several_elements<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    word.write(8, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let list = [results.sge(0..3), results.sge(10..10), results.sge(20..25)];
    post_send(&mut pair.a.qp, &[signalled(1, swap(&word, 8, 0, 1), &list)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::COMP_SWAP)?;
    assert_eq!((results.read(0..4), results.read(19..26)), (vec![1, 2, 3, 0], vec![0, 4, 5, 6, 7, 8, 0]));
    Ok(())
}

fn an_unaligned_atomic_is_not_posted<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    for at in [1, 2, 4, 7] {
        for op in [add(&word, at, 1), swap(&word, at, 0, 1)] {
            let refused = post_send(&mut pair.a.qp, &[signalled(1, op, &[results.sge(0..8)])]).unwrap_err();
            assert_eq!(refused.reason, PostReason::AtomicMisaligned { remote_addr: word.addr() + at });
        }
    }
    Ok(())
}

fn an_atomic_with_another_length_than_eight_is_not_posted<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    for len in [0, 4, 7, 9, 16] {
        let op = add(&word, 8, 1);
        let refused = post_send(&mut pair.a.qp, &[signalled(1, op, &[results.sge(0..len)])]).unwrap_err();
        assert_eq!(refused.reason, PostReason::AtomicLength { given: len as u64 });
    }
    assert_eq!(word.number(8), 0);
    Ok(())
}

fn an_atomic_takes_no_inline_data<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    let (op, flags) = (add(&word, 8, 1), SendFlags::INLINE);
    let wr = SendWr { wr_id: 1, op, sge: &[results.sge(0..8)], flags };
    let refused = post_send(&mut pair.a.qp, &[wr]).unwrap_err();
    assert_eq!(refused.reason, PostReason::UnsupportedFlags { op: op.kind(), flags });
    Ok(())
}

fn an_atomic_without_the_right_of_the_region_is_refused_by_the_peer<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let (mut pair, _, results) = words(context)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let word = Arena::with_access(&pair.pd, 24, access)?;
    post_send(&mut pair.a.qp, &[signalled(1, add(&word, 8, 1), &[results.sge(0..8)])])?;
    wait_remote_access_error(&mut pair.a.cq, 1)?;
    assert_eq!((word.number(8), results.number(0)), (0, 0));
    Ok(())
}

fn an_atomic_without_the_right_of_the_queue_pair_is_refused_by_the_peer<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let attr = QpAttr { qp_access_flags: access, ..QpAttr::default() };
    pair.b.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS)?;
    post_send(&mut pair.a.qp, &[signalled(1, add(&word, 8, 1), &[results.sge(0..8)])])?;
    let status = wait_one(&mut pair.a.cq)?.status;
    // rxe reports an unsupported operation; before Linux 5.11 it reports nothing at all.
    let of_rxe = matches!(status, WcStatus::REM_INV_REQ_ERR | WcStatus::RETRY_EXC_ERR);
    assert!(status == WcStatus::REM_ACCESS_ERR || is_rxe()? && of_rxe, "{status}");
    assert_eq!((word.number(8), results.number(0)), (0, 0));
    Ok(())
}

fn an_atomic_beyond_its_region_is_refused_by_the_peer<P: Provider>(context: &Context<P>) -> CaseResult {
    for at in [24, 1 << 40] {
        let (mut pair, word, results) = words(context)?;
        post_send(&mut pair.a.qp, &[signalled(1, add(&word, at, 1), &[results.sge(0..8)])])?;
        wait_remote_access_error(&mut pair.a.cq, 1)?;
    }
    Ok(())
}

fn an_atomic_into_memory_that_may_not_be_written_fails_here<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, _) = words(context)?;
    let results = Arena::with_access(&pair.pd, 8, AccessFlags::empty())?;
    post_send(&mut pair.a.qp, &[signalled(1, add(&word, 8, 1), &[results.sge(0..8)])])?;
    wait_local_key_error(&mut pair.a.cq, 1)?;
    assert_eq!(results.number(0), 0);
    Ok(())
}

fn a_fenced_send_carries_the_result_of_an_atomic<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, word, results) = words(context)?;
    word.write(8, &41_u64.to_ne_bytes());
    let into = Arena::new(&pair.pd, 8)?;
    let write = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
    let list = [results.sge(0..8)];
    let flags = SendFlags::FENCE | SendFlags::SIGNALED;
    let wrs = [signalled(1, add(&word, 8, 1), &list), SendWr { wr_id: 2, op: write, sge: &list, flags }];
    post_send(&mut pair.a.qp, &wrs)?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::FETCH_ADD)?;
    wait_for(&mut pair.a.cq, 2, WcOpcode::RDMA_WRITE)?;
    assert_eq!(into.number(0), 41);
    Ok(())
}
