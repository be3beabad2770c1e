//! Failing requests and their statuses.

use verbs::{
    AccessFlags, Buf, Context, Cq, Memory, Provider, QpAttr, QpAttrMask, QpState, QpType, RecvWr, RtsAttr,
    SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Pair, Remote, Shape, connect, ended, filled, in_error, is_empty, is_length_error, is_mlx5, is_rxe,
    pattern, post_recv, post_send, rxe_ignores_rnr_timer, rxe_is_before, signalled, wait,
    wait_local_key_error, wait_remote_access_error, wait_status, wants_right,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_wrong_remote_key_is_a_remote_access_error,
        rights_that_the_region_lacks_are_a_remote_access_error,
        a_buffer_that_was_not_exposed_is_closed_to_peers,
        rights_that_the_queue_pair_lacks_are_an_error_of_the_requester,
        a_wrong_local_key_is_a_local_error,
        a_message_that_does_not_fit_fails_on_both_sides,
        without_a_receive_the_retries_run_out,
        a_peer_that_is_gone_surfaces_as_a_status_and_then_flushes,
        in_the_error_state_everything_is_flushed_in_order,
        a_failure_has_the_code_of_its_vendor,
        a_send_posted_in_the_error_state_is_flushed,
        an_access_error_breaks_the_responder_too,
        a_reset_amid_failing_requests_ends_in_reset,
        a_region_of_another_domain_is_closed_to_peers,
        a_region_of_another_domain_is_no_local_memory,
        a_region_that_is_gone_is_closed_to_peers,
        local_memory_beyond_its_region_is_a_local_error,
        a_read_into_memory_that_may_not_be_written_is_a_local_error,
        a_receive_that_may_not_be_written_fails_on_both_sides,
        a_receive_whose_region_is_gone_fails_on_both_sides,
        an_immediate_without_a_receive_is_not_ready,
        a_receive_in_time_ends_the_retries,
        a_read_of_a_peer_that_is_gone_runs_out_of_retries,
        a_datagram_too_long_for_its_receive_fails_there_alone,
        a_message_too_long_for_an_unreliable_receive_is_lost,
        datagrams_to_nobody_are_sent,
        requests_that_no_device_executes_are_not_posted,
        the_responder_of_each_refused_operation_fails,
    )
}

/// Checks that the queue pair is in the error state and flushes requests posted from now on.
///
/// The flush is not checked on Linux before 6.1: there, rxe's requester exits at once in this state
/// (seen on 5.10) and does not wake the task that flushes. A separate case covers this.
fn is_broken<P: Provider>(pair: &mut Pair<P>, arena: &Arena<P>) -> CaseResult {
    in_error(&pair.a.qp)?;
    if rxe_is_before(6, 1)? {
        return Ok(());
    }
    post_send(&mut pair.a.qp, &[signalled(99, SendOp::Send, &[arena.sge(0..1)])])?;
    wait_status(&mut pair.a.cq, 99, WcStatus::WR_FLUSH_ERR)
}

fn a_wrong_remote_key_is_a_remote_access_error<P: Provider>(context: &Context<P>) -> CaseResult {
    for kind in 0..5 {
        let mut pair = Pair::new(context, &Shape::default())?;
        let (local, target) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 64)?);
        let (remote_addr, rkey) = (target.addr(), target.rkey());
        let wrong = !rkey;
        let op = match kind {
            0 => SendOp::RdmaWrite { remote_addr, rkey: wrong },
            1 => SendOp::RdmaRead { remote_addr, rkey: wrong },
            2 => SendOp::AtomicFetchAndAdd { remote_addr, rkey: wrong, add: 1 },
            // One byte beyond the end; one byte before the start.
            3 => SendOp::RdmaWrite { remote_addr: remote_addr + 57, rkey },
            _ => SendOp::RdmaRead { remote_addr: remote_addr - 1, rkey },
        };
        local.write(0, &[0xff; 64]);
        // The requests behind it are flushed, in order.
        let sge = [local.sge(0..8)];
        post_send(&mut pair.a.qp, &[signalled(1, op, &sge), signalled(2, SendOp::Send, &sge)])?;
        wait_remote_access_error(&mut pair.a.cq, 1)?;
        wait_status(&mut pair.a.cq, 2, WcStatus::WR_FLUSH_ERR)?;
        assert_eq!(target.read(0..64), [0; 64], "{op:?} changed memory");
        is_broken(&mut pair, &local)?;
    }
    Ok(())
}

/// A buffer's key is only for this process's requests and gives a peer no access.
fn a_buffer_that_was_not_exposed_is_closed_to_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    for kind in 0..4 {
        let mut pair = Pair::new(context, &Shape::default())?;
        let target = filled(&pair.pd, 7, 4096)?;
        let (remote_addr, rkey) = (target.addr(), target.lkey());
        let op = match kind {
            0 => SendOp::RdmaWrite { remote_addr, rkey },
            1 => SendOp::RdmaRead { remote_addr, rkey },
            2 => SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
            _ => SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
        };
        let local = pair.pd.alloc_buf(8)?;
        let id = pair.a.qp.post_send_buf(op, SendFlags::empty(), local, ..)?;
        wait_remote_access_error(&mut pair.a.cq, id)?;
        assert!(target[..] == pattern(7, 4096)[..], "{op:?} changed memory");
        let back = pair.a.qp.dismantle()?;
        let local: Vec<_> = back.into_iter().filter_map(Memory::into_buf).collect();
        assert_eq!(
            local.iter().map(|buf| buf[..] == [0; 8]).collect::<Vec<_>>(),
            [true],
            "{op:?} read memory"
        );
    }
    Ok(())
}

fn rights_that_the_region_lacks_are_a_remote_access_error<P: Provider>(context: &Context<P>) -> CaseResult {
    for (rights, op) in [
        (AccessFlags::REMOTE_READ, 0),
        (AccessFlags::REMOTE_WRITE, 1),
        (AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE, 2),
        (AccessFlags::empty(), 0),
    ] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let local = Arena::new(&pair.pd, 64)?;
        let target = Arena::with_access(&pair.pd, 64, AccessFlags::LOCAL_WRITE | rights)?;
        let (remote_addr, rkey) = (target.addr(), target.rkey());
        let op = match op {
            0 => SendOp::RdmaWrite { remote_addr, rkey },
            1 => SendOp::RdmaRead { remote_addr, rkey },
            _ => SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
        };
        post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
        wait_remote_access_error(&mut pair.a.cq, 1)?;
        assert_eq!(target.read(0..64), [0; 64]);
    }
    Ok(())
}

fn rights_that_the_queue_pair_lacks_are_an_error_of_the_requester<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (local, target) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 64)?);
    let none = QpAttr { qp_access_flags: AccessFlags::empty(), ..QpAttr::default() };
    pair.b.qp.modify(&none, QpAttrMask::ACCESS_FLAGS)?;
    let op = SendOp::RdmaWrite { remote_addr: target.addr(), rkey: target.rkey() };
    post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
    wants_right(&verbs_fixtures::fabric::wait_one(&mut pair.a.cq)?, 1)?;
    assert_eq!(target.read(0..64), [0; 64]);
    Ok(())
}

fn a_wrong_local_key_is_a_local_error<P: Provider>(context: &Context<P>) -> CaseResult {
    // A region in another protection domain gives no access.
    let elsewhere = Arena::new(&context.alloc_pd()?, 64)?;
    for kind in 0..4 {
        let mut pair = Pair::new(context, &Shape::default())?;
        let arena = Arena::new(&pair.pd, 64)?;
        let good = arena.sge(0..8);
        let bad = match kind {
            0 => Sge { lkey: !good.lkey, ..good },
            1 => Sge { length: 65, ..good },
            2 => Sge { addr: good.addr - 1, ..good },
            _ => elsewhere.sge(0..8),
        };
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(32..64)] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[good, bad])])?;
        wait_local_key_error(&mut pair.a.cq, 1)
            .map_err(|stop| stop.context(format_args!("{bad:?}, kind {kind}")))?;
        is_broken(&mut pair, &arena)
            .map_err(|stop| stop.context(format_args!("after {bad:?}, kind {kind}")))?;
        assert!(is_empty(&mut pair.b.cq), "something arrived");
    }
    Ok(())
}

fn a_message_that_does_not_fit_fails_on_both_sides<P: Provider>(context: &Context<P>) -> CaseResult {
    for len in [9, 5000] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let (from, into) = (Arena::new(&pair.pd, 5000)?, Arena::new(&pair.pd, 64)?);
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..8)] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from.sge(0..len)])])?;
        let (a, b) = (
            verbs_fixtures::fabric::wait_one(&mut pair.a.cq)?,
            verbs_fixtures::fabric::wait_one(&mut pair.b.cq)?,
        );
        assert!(is_length_error(a.status, b.status)?, "{a:?}, {b:?}");
        assert_eq!((a.wr_id, b.wr_id), (1, 2));
        assert_eq!(into.read(8..64), [0; 56], "beyond the receive");
    }
    Ok(())
}

fn without_a_receive_the_retries_run_out<P: Provider>(context: &Context<P>) -> CaseResult {
    let rts = RtsAttr { rnr_retry: 2, ..Shape::default().rts };
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let arena = Arena::new(&pair.pd, 64)?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(0..8)])])?;
    wait_status(&mut pair.a.cq, 1, WcStatus::RNR_RETRY_EXC_ERR)?;
    is_broken(&mut pair, &arena)
}

fn a_peer_that_is_gone_surfaces_as_a_status_and_then_flushes<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let pair = Pair::new(context, &Shape::default())?;
    let (mut qp, mut cq) = (pair.a.qp, pair.a.cq);
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    pair.b.qp.close()?;
    for wr_id in 10..13 {
        post_recv(&mut qp, &[RecvWr { wr_id, sge: &[arena.sge(8..64)] }])?;
    }
    let silent = |wr_id| SendWr { wr_id, op: SendOp::Send, sge: &sge, flags: SendFlags::empty() };
    post_send(&mut qp, &[signalled(1, SendOp::Send, &sge), silent(2), signalled(3, SendOp::Send, &sge)])?;
    wait_status(&mut cq, 1, WcStatus::RETRY_EXC_ERR)?;
    let wcs = wait(&mut cq, 5)?;
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR), "{wcs:?}");
    // Each queue completes in order and reports the unsignalled request as well.
    let of = |ids: core::ops::Range<u64>| -> Vec<u64> {
        wcs.iter().map(|wc| wc.wr_id).filter(|id| ids.contains(id)).collect()
    };
    assert_eq!((of(0..10), of(10..20)), (vec![2, 3], vec![10, 11, 12]));
    in_error(&qp)?;
    assert!(is_empty(&mut cq));
    Ok(())
}

/// Checks every field of a failed completion: the status, the request, the queue pair and the
/// vendor's code (set by ConnectX, 0 on other devices).
fn a_failure_has_the_code_of_its_vendor<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut codes = Vec::new();
    for wrong_here in [true, false] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let arena = Arena::new(&pair.pd, 16)?;
        let (remote_addr, rkey) = (arena.addr(), arena.rkey());
        let good = SendOp::RdmaWrite { remote_addr, rkey };
        let sge = [arena.sge(0..8)];
        post_send(&mut pair.a.qp, &[signalled(1, good, &sge)])?;
        let wc = wait(&mut pair.a.cq, 1)?[0];
        assert_eq!((wc.wr_id, wc.status, wc.vendor_err), (1, WcStatus::SUCCESS, 0));
        let (op, lkey) = if wrong_here {
            (good, !arena.lkey())
        } else {
            (SendOp::RdmaWrite { remote_addr, rkey: !rkey }, arena.lkey())
        };
        let sge = [Sge { lkey, ..sge[0] }];
        post_send(&mut pair.a.qp, &[signalled(2, op, &sge), signalled(3, good, &sge)])?;
        for wr_id in [2, 3] {
            let wc = wait(&mut pair.a.cq, 1)?[0];
            assert_eq!((wc.wr_id, wc.qp_num), (wr_id, pair.a.qp.qp_num()));
            assert_ne!(wc.status, WcStatus::SUCCESS);
            codes.push(wc.vendor_err);
        }
    }
    if is_mlx5()? {
        let [here, flushed, at_the_peer, flushed_too] = codes[..] else { return fail(format!("{codes:?}")) };
        assert!(here != 0 && at_the_peer != 0 && here != at_the_peer, "{codes:x?}");
        assert!(flushed == flushed_too && ![0, here, at_the_peer].contains(&flushed), "{codes:x?}");
    } else {
        assert_eq!(codes, [0; 4]);
    }
    Ok(())
}

fn a_send_posted_in_the_error_state_is_flushed<P: Provider>(context: &Context<P>) -> CaseResult {
    if rxe_is_before(6, 1)? {
        return skip("rxe before Linux 6.1 wakes nobody who would flush what is posted in the error state");
    }
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    pair.a.qp.modify(&QpAttr { qp_state: QpState::ERR, ..QpAttr::default() }, QpAttrMask::STATE)?;
    is_broken(&mut pair, &arena)
}

fn in_the_error_state_everything_is_flushed_in_order<P: Provider>(context: &Context<P>) -> CaseResult {
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        let mut pair = Pair::new(context, &Shape::for_type(qp_type))?;
        let arena = Arena::new(&pair.pd, 256)?;
        for wr_id in 10..14 {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[arena.sge(0..256)] }])?;
        }
        let mut qp = pair.b.qp.to_error()?;
        let wcs = wait(&mut pair.b.cq, 4)?;
        let seen: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(seen, [10, 11, 12, 13].map(|id| (id, WcStatus::WR_FLUSH_ERR)), "{qp_type}");
        // A receive posted in the error state is not lost: rxe ignores it, but a reset that ends
        // requests returns it.
        qp.post_recv_buf(pair.pd.alloc_buf(8)?, ..)?;
        // A queue pair works again after a reset.
        let mut qp = qp.to_reset()?;
        let returned: Vec<_> = qp.reclaim_all().into_iter().filter_map(Memory::into_buf).collect();
        let expected: &[usize] = if qp.reset_ends_requests() { &[8] } else { &[] };
        assert_eq!(returned.iter().map(|buf| buf.len()).collect::<Vec<_>>(), expected);
        drop(connect(context, qp, &Shape::for_type(qp_type), Remote::from_qp(&pair.a.qp))?);
    }
    Ok(())
}

fn an_access_error_breaks_the_responder_too<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let op = SendOp::RdmaWrite { remote_addr: arena.addr(), rkey: !arena.rkey() };
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, op, &[arena.sge(0..8)])])?;
    wait_remote_access_error(&mut pair.a.cq, 1)?;
    wait_status(&mut pair.b.cq, 2, WcStatus::WR_FLUSH_ERR)?;
    in_error(&pair.b.qp)?;
    Ok(())
}

/// Both ends are reset while requests fail on both. On Linux 6.12, about one RESET in a hundred
/// reports success on rxe but leaves the queue pair in ERR.
fn a_reset_amid_failing_requests_ends_in_reset<P: Provider>(context: &Context<P>) -> CaseResult {
    const ROUNDS: u32 = 200;
    const POSTED: usize = 8;
    let shape = Shape::default();
    let Pair { pd, mut a, mut b, .. } = Pair::new(context, &shape)?;
    let alloc = || (0..POSTED).map(|_| pd.alloc_buf(4096)).collect::<Result<Vec<Buf>, _>>();
    let (mut sends, mut receives) = (alloc()?, alloc()?);
    let nowhere = SendOp::RdmaWriteWithImm { remote_addr: 0x1000, rkey: 0x00ff_ff00, imm_data: 1 };
    for round in 0..ROUNDS {
        for buf in receives.drain(..) {
            b.qp.post_recv_buf(buf, ..)?;
        }
        for buf in sends.drain(..) {
            a.qp.post_send_buf(nowhere, SendFlags::empty(), buf, ..)?;
        }
        let mut a_reset = a.qp.to_reset()?;
        let mut b_reset = b.qp.to_reset()?;
        assert_eq!((a_reset.state()?, b_reset.state()?), (QpState::RESET, QpState::RESET), "round {round}");
        let bufs = |memory: Vec<Memory>| memory.into_iter().filter_map(Memory::into_buf).collect::<Vec<_>>();
        (sends, receives) = (bufs(a_reset.reclaim_all()), bufs(b_reset.reclaim_all()));
        if a_reset.reset_ends_requests() {
            assert_eq!((sends.len(), receives.len()), (POSTED, POSTED), "round {round}");
        } else {
            // The queue pairs keep the buffers.
            assert_eq!((sends.len(), receives.len()), (0, 0), "round {round}");
            (sends, receives) = (alloc()?, alloc()?);
        }
        // Some requests may complete, with a failure or flushed, before the reset drops them.
        let drain = |cq: &mut Cq<P>| cq.poll_into(&mut [verbs::Wc::default(); 4 * POSTED]);
        assert!(drain(&mut a.cq) <= POSTED && drain(&mut b.cq) <= POSTED, "round {round}");
        let (to_a, to_b) = (Remote::from_qp(&a_reset), Remote::from_qp(&b_reset));
        a.qp = connect(context, a_reset, &shape, to_b)?;
        b.qp = connect(context, b_reset, &shape, to_a)?;
    }
    Ok(())
}

fn a_region_of_another_domain_is_closed_to_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    for which in 0..3 {
        let mut pair = Pair::new(context, &Shape::default())?;
        let other = context.alloc_pd()?;
        let (local, target) = (Arena::new(&pair.pd, 64)?, Arena::new(&other, 64)?);
        let (remote_addr, rkey) = (target.addr(), target.rkey());
        let op = [
            SendOp::RdmaWrite { remote_addr, rkey },
            SendOp::RdmaRead { remote_addr, rkey },
            SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
        ][which];
        local.write(0, &[7; 64]);
        post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
        wait_remote_access_error(&mut pair.a.cq, 1)?;
        assert_eq!((target.read(0..64), local.read(0..64)), (vec![0; 64], vec![7; 64]), "{op:?}");
        is_broken(&mut pair, &local)?;
    }
    Ok(())
}

fn a_region_of_another_domain_is_no_local_memory<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (other, own) = (context.alloc_pd()?, Arena::new(&pair.pd, 64)?);
    let foreign = Arena::new(&other, 64)?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[own.sge(0..8)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[foreign.sge(0..8)])])?;
    wait_local_key_error(&mut pair.a.cq, 1)?;
    in_error(&pair.a.qp)?;
    assert_eq!(pair.b.qp.state()?, QpState::RTS);
    assert!(is_empty(&mut pair.b.cq), "nothing was sent");
    Ok(())
}

fn a_region_that_is_gone_is_closed_to_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let local = Arena::new(&pair.pd, 64)?;
    let target = Arena::new(&pair.pd, 64)?;
    let op = SendOp::RdmaWrite { remote_addr: target.addr(), rkey: target.rkey() };
    post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
    wait(&mut pair.a.cq, 1)?;
    drop(target);
    post_send(&mut pair.a.qp, &[signalled(2, op, &[local.sge(0..8)])])?;
    wait_remote_access_error(&mut pair.a.cq, 2)
}

fn local_memory_beyond_its_region_is_a_local_error<P: Provider>(context: &Context<P>) -> CaseResult {
    for (addr, length) in [(57, 8), (64, 1), (0, 65), (u64::MAX, 1)] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let arena = Arena::new(&pair.pd, 64)?;
        let sge = Sge { addr: arena.addr().wrapping_add(addr), length, ..arena.sge(0..8) };
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[sge])])?;
        let wc = verbs_fixtures::fabric::wait_one(&mut pair.a.cq)?;
        ended(&wc, 1, WcStatus::LOC_PROT_ERR, &[WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR])?;
        in_error(&pair.a.qp)?;
        assert_eq!(pair.b.qp.state()?, QpState::RTS);
    }
    Ok(())
}

fn a_read_into_memory_that_may_not_be_written_is_a_local_error<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let target = Arena::new(&pair.pd, 64)?;
    let local = Arena::with_access(&pair.pd, 64, AccessFlags::empty())?;
    target.write(0, &[3; 64]);
    let op = SendOp::RdmaRead { remote_addr: target.addr(), rkey: target.rkey() };
    post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
    let wc = verbs_fixtures::fabric::wait_one(&mut pair.a.cq)?;
    ended(&wc, 1, WcStatus::LOC_PROT_ERR, &[WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR])?;
    assert_eq!(local.read(0..64), [0; 64]);
    in_error(&pair.a.qp)?;
    Ok(())
}

fn a_receive_that_may_not_be_written_fails_on_both_sides<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 128)?;
    let fixed = Arena::with_access(&pair.pd, 128, AccessFlags::REMOTE_READ)?;
    arena.write(0, &[3; 128]);
    // Too long for a ConnectX completion: the key of data in a completion is not checked.
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[fixed.sge(0..128)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(0..128)])])?;
    both_fail(&mut pair)?;
    assert_eq!(fixed.read(0..128), [0; 128]);
    Ok(())
}

/// Expects a receive to fail because of its memory: as a local error at b and a remote error at a.
fn both_fail<P: Provider>(pair: &mut Pair<P>) -> CaseResult {
    let (a, b) = (
        verbs_fixtures::fabric::wait_one(&mut pair.a.cq)?,
        verbs_fixtures::fabric::wait_one(&mut pair.b.cq)?,
    );
    ended(&a, 1, WcStatus::REM_OP_ERR, &[WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR])?;
    let of_rxe = [WcStatus::LOC_QP_OP_ERR, WcStatus::REM_ACCESS_ERR, WcStatus::LOC_ACCESS_ERR];
    ended(&b, 2, WcStatus::LOC_PROT_ERR, &of_rxe)?;
    assert_eq!((a.qp_num, b.qp_num), (pair.a.qp.qp_num(), pair.b.qp.qp_num()));
    in_error(&pair.a.qp)?;
    in_error(&pair.b.qp)?;
    Ok(())
}

fn a_receive_whose_region_is_gone_fails_on_both_sides<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (arena, into) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 64)?);
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..8)] }])?;
    drop(into);
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(0..8)])])?;
    both_fail(&mut pair)
}

fn an_immediate_without_a_receive_is_not_ready<P: Provider>(context: &Context<P>) -> CaseResult {
    let rts = RtsAttr { rnr_retry: 1, ..Shape::default().rts };
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let arena = Arena::new(&pair.pd, 64)?;
    let op = SendOp::RdmaWriteWithImm { remote_addr: arena.addr(), rkey: arena.rkey(), imm_data: 1 };
    post_send(&mut pair.a.qp, &[signalled(1, op, &[arena.sge(8..16)])])?;
    wait_status(&mut pair.a.cq, 1, WcStatus::RNR_RETRY_EXC_ERR)?;
    in_error(&pair.a.qp)?;
    assert_eq!(pair.b.qp.state()?, QpState::RTS);
    // A write without immediate data needs no receive.
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let arena = Arena::new(&pair.pd, 64)?;
    let op = SendOp::RdmaWrite { remote_addr: arena.addr(), rkey: arena.rkey() };
    post_send(&mut pair.a.qp, &[signalled(1, op, &[arena.sge(8..16)])])?;
    wait_status(&mut pair.a.cq, 1, WcStatus::SUCCESS)
}

/// Returns a pair where `a` retries 6 times, each after 491 ms, while `b` has no receive.
pub(super) fn slow_to_be_ready<P: Provider>(context: &Context<P>) -> CaseResult<Pair<P>> {
    let rts = RtsAttr { rnr_retry: 6, timeout: 20, ..Shape::default().rts };
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let slow = QpAttr { min_rnr_timer: 31, ..QpAttr::default() };
    pair.b.qp.modify(&slow, QpAttrMask::MIN_RNR_TIMER)?;
    Ok(pair)
}

fn a_receive_in_time_ends_the_retries<P: Provider>(context: &Context<P>) -> CaseResult {
    if rxe_ignores_rnr_timer()? {
        return skip("rxe of this kernel repeats at once, and does not wait for the RNR timer");
    }
    let mut pair = slow_to_be_ready(context)?;
    let arena = Arena::new(&pair.pd, 64)?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::SendWithImm { imm_data: 7 }, &[arena.sge(0..8)])])?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(8..16)] }])?;
    wait_status(&mut pair.a.cq, 1, WcStatus::SUCCESS)?;
    let wc = verbs_fixtures::fabric::wait_one(&mut pair.b.cq)?;
    assert_eq!((wc.wr_id, wc.status, wc.imm_data), (2, WcStatus::SUCCESS, 7));
    Ok(())
}

fn a_read_of_a_peer_that_is_gone_runs_out_of_retries<P: Provider>(context: &Context<P>) -> CaseResult {
    for which in 0..2 {
        let Pair { mut a, b, pd, .. } = Pair::new(context, &Shape::default())?;
        let arena = Arena::new(&pd, 64)?;
        b.qp.close()?;
        let (remote_addr, rkey) = (arena.addr(), arena.rkey());
        let op =
            [SendOp::RdmaRead { remote_addr, rkey }, SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }]
                [which];
        post_send(&mut a.qp, &[signalled(1, op, &[arena.sge(8..16)])])?;
        wait_status(&mut a.cq, 1, WcStatus::RETRY_EXC_ERR)?;
        in_error(&a.qp)?;
        assert_eq!(arena.read(0..64), [0; 64]);
    }
    Ok(())
}

fn a_datagram_too_long_for_its_receive_fails_there_alone<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe drops a datagram that is too long for its receive");
    }
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UD))?;
    let arena = Arena::new(&pair.pd, 256)?;
    let ah =
        pair.pd.create_ah(&verbs_fixtures::fabric::path(&context.find_gid(verbs_fixtures::fabric::PORT)?))?;
    let to = ah.to(pair.b.qp.qp_num(), verbs_fixtures::fabric::QKEY);
    for (wr_id, room) in [(10, 47), (11, 48)] {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[arena.sge(0..room)] }])?;
    }
    for wr_id in 0..2 {
        post_send(&mut pair.a.qp, &[signalled(wr_id, SendOp::UdSend { to }, &[arena.sge(200..208)])])?;
        wait_status(&mut pair.a.cq, wr_id, WcStatus::SUCCESS)?;
    }
    wait_status(&mut pair.b.cq, 10, WcStatus::LOC_LEN_ERR)?;
    wait_status(&mut pair.b.cq, 11, WcStatus::SUCCESS)?;
    assert_eq!((pair.a.qp.state()?, pair.b.qp.state()?), (QpState::RTS, QpState::RTS));
    Ok(())
}

fn a_message_too_long_for_an_unreliable_receive_is_lost<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe fails the receive of a message that is too long for it (LOC_QP_OP_ERR on 6.1)");
    }
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 256)?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 10, sge: &[arena.sge(0..8)] }])?;
    // The next message uses the receive.
    for (wr_id, len) in [(0, 9), (1, 8)] {
        let op = SendOp::SendWithImm { imm_data: wr_id as u32 };
        post_send(&mut pair.a.qp, &[signalled(wr_id, op, &[arena.sge(100..100 + len)])])?;
        wait_status(&mut pair.a.cq, wr_id, WcStatus::SUCCESS)?;
    }
    let wc = verbs_fixtures::fabric::wait_one(&mut pair.b.cq)?;
    assert_eq!((wc.wr_id, wc.status, wc.byte_len, wc.imm_data), (10, WcStatus::SUCCESS, 8, 1));
    assert_eq!(pair.b.qp.state()?, QpState::RTS);
    Ok(())
}

fn datagrams_to_nobody_are_sent<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UD))?;
    let arena = Arena::new(&pair.pd, 64)?;
    let ah =
        pair.pd.create_ah(&verbs_fixtures::fabric::path(&context.find_gid(verbs_fixtures::fabric::PORT)?))?;
    let gone = pair.b.qp.qp_num();
    pair.b.qp.close()?;
    for wr_id in 0..3 {
        let op = SendOp::UdSend { to: ah.to(gone, verbs_fixtures::fabric::QKEY) };
        post_send(&mut pair.a.qp, &[signalled(wr_id, op, &[arena.sge(0..8)])])?;
        wait_status(&mut pair.a.cq, wr_id, WcStatus::SUCCESS)?;
    }
    assert_eq!(pair.a.qp.state()?, QpState::RTS);
    Ok(())
}

fn requests_that_no_device_executes_are_not_posted<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let (remote_addr, rkey) = (arena.addr(), arena.rkey());
    let huge = Sge { length: u32::MAX, ..arena.sge(0..8) };
    let one = arena.sge(0..8);
    let cases: [(SendOp<'_>, &[Sge], u32); 5] = [
        (SendOp::Send, &[huge], 0),
        (SendOp::Send, &[one; 5], 1),
        (SendOp::AtomicFetchAndAdd { remote_addr: remote_addr + 4, rkey, add: 1 }, &[one], 2),
        (SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }, &[Sge { length: 4, ..one }], 3),
        (SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }, &[], 3),
    ];
    for (op, sge, kind) in cases {
        use verbs::PostReason as R;
        let reason = post_send(&mut pair.a.qp, &[signalled(1, op, sge)]).unwrap_err().reason;
        let is_it = match kind {
            0 => matches!(reason, R::MessageTooLong { .. }),
            1 => matches!(reason, R::TooManySge { .. }),
            2 => matches!(reason, R::AtomicMisaligned { .. }),
            _ => matches!(reason, R::AtomicLength { .. }),
        };
        assert!(is_it, "{op:?}: {reason}");
    }
    assert!(is_empty(&mut pair.a.cq));
    assert_eq!(pair.a.qp.state()?, QpState::RTS);
    Ok(())
}

fn the_responder_of_each_refused_operation_fails<P: Provider>(context: &Context<P>) -> CaseResult {
    for which in 0..5 {
        let mut pair = Pair::new(context, &Shape::default())?;
        let arena = Arena::new(&pair.pd, 64)?;
        let (remote_addr, rkey) = (arena.addr(), !arena.rkey());
        let op = [
            SendOp::RdmaWrite { remote_addr, rkey },
            SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 1 },
            SendOp::RdmaRead { remote_addr, rkey },
            SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
            SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
        ][which];
        // The receives are flushed, except the one for the immediate.
        for wr_id in [2, 3] {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[arena.sge(0..8)] }])?;
        }
        post_send(&mut pair.a.qp, &[signalled(1, op, &[arena.sge(8..16)])])?;
        // rxe consumes the receive for the immediate before it checks the key. It then sends a NAK,
        // on 5.10 too.
        if which == 1 {
            wait_status(&mut pair.a.cq, 1, WcStatus::REM_ACCESS_ERR)?;
        } else {
            wait_remote_access_error(&mut pair.a.cq, 1)?;
        }
        let (status, of_rxe): (_, &[WcStatus]) = if which == 1 {
            (WcStatus::LOC_ACCESS_ERR, &[WcStatus::REM_ACCESS_ERR, WcStatus::WR_FLUSH_ERR])
        } else {
            (WcStatus::WR_FLUSH_ERR, &[])
        };
        ended(&verbs_fixtures::fabric::wait_one(&mut pair.b.cq)?, 2, status, of_rxe)?;
        wait_status(&mut pair.b.cq, 3, WcStatus::WR_FLUSH_ERR)?;
        in_error(&pair.a.qp)?;
        in_error(&pair.b.qp)?;
        assert_eq!(arena.read(0..64), [0; 64], "{op:?}");
    }
    Ok(())
}
