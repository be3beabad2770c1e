//! Flushes and atomic writes: the memory placement extensions.
//!
//! Kernels before 6.2 have neither, so rxe must reject them when they are posted. One case checks
//! this; the others are skipped.

use verbs::{
    AccessFlags, Context, DeviceCapFlags, FlushPlacement, FlushSelectivity, PostReason, Provider, QpAttr,
    QpAttrMask, QpType, RecvWr, RemoteAccess, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Pair, Shape, ended, filled, in_error, is_rxe, pattern, post_recv, post_send, signalled, wait,
    wait_for, wait_one, wait_status,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_device_without_the_operations_refuses_to_post_them,
        unreliable_queue_pairs_have_neither_operation,
        an_atomic_write_stores_eight_bytes_and_no_others,
        an_atomic_write_needs_the_right_to_write,
        an_atomic_write_beyond_its_region_is_refused_by_the_peer,
        an_unaligned_atomic_write_is_not_posted,
        neither_takes_a_list_or_inline_data,
        a_flush_of_a_range_follows_the_writes_before_it,
        a_flush_of_a_region_ignores_its_range,
        a_flush_of_no_bytes_is_a_flush,
        a_flush_needs_the_right_of_the_region,
        a_flush_needs_the_right_of_the_queue_pair,
        a_flush_beyond_its_region_is_refused_by_the_peer,
        a_flush_by_an_unknown_key_is_refused_by_the_peer,
        a_flush_of_no_kind_is_not_posted,
        plain_memory_is_not_persistent,
        a_journal_is_published_after_it_was_flushed,
        a_fenced_write_waits_for_both,
        safe_code_flushes_what_was_exposed,
    )
}

const GLOBAL: FlushPlacement = FlushPlacement::GLOBAL;
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::FLUSH_GLOBAL);

fn has<P: Provider>(context: &Context<P>, capability: DeviceCapFlags) -> CaseResult<bool> {
    Ok(context.query_device_ex()?.device_cap_flags_ex.contains(capability))
}

/// Returns a pair whose second end has all access rights. Skips the case on a device without
/// flushes or atomic writes.
fn pair<P: Provider>(context: &Context<P>) -> CaseResult<Pair<P>> {
    if !has(context, DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::ATOMIC_WRITE)? {
        return skip("the device neither flushes nor writes atomically (rxe: since Linux 6.2)");
    }
    let mut pair = Pair::new(context, &Shape::default())?;
    allow(&mut pair, ALL)?;
    Ok(pair)
}

fn allow<P: Provider>(pair: &mut Pair<P>, access: AccessFlags) -> CaseResult {
    let attr = QpAttr { qp_access_flags: access, ..QpAttr::default() };
    Ok(pair.b.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS)?)
}

fn flush(remote_addr: u64, rkey: u32, length: u32, selectivity: FlushSelectivity) -> SendOp<'static> {
    SendOp::Flush { remote_addr, rkey, length, placement: GLOBAL, selectivity }
}

fn flush_of<P: Provider>(arena: &Arena<P>, at: u64, length: u32) -> SendOp<'static> {
    flush(arena.addr() + at, arena.rkey(), length, FlushSelectivity::RANGE)
}

fn store<P: Provider>(arena: &Arena<P>, at: u64, data: u64) -> SendOp<'static> {
    SendOp::AtomicWrite { remote_addr: arena.addr() + at, rkey: arena.rkey(), data: data.to_ne_bytes() }
}

/// Posts an operation without the necessary right, range or key. It must fail on both sides. If the
/// queue pair lacks the right, rxe reports an invalid request. The operation uses no receive. What
/// rxe's responder does with a posted receive depends on the kernel.
fn refused<P: Provider>(mut pair: Pair<P>, op: SendOp<'_>) -> CaseResult {
    let flushes = !is_rxe()?;
    if flushes {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[] }])?;
    }
    post_send(&mut pair.a.qp, &[signalled(1, op, &[])])?;
    ended(&wait_one(&mut pair.a.cq)?, 1, WcStatus::REM_ACCESS_ERR, &[WcStatus::REM_INV_REQ_ERR])?;
    if flushes {
        wait_status(&mut pair.b.cq, 2, WcStatus::WR_FLUSH_ERR)?;
        in_error(&pair.a.qp)?;
        in_error(&pair.b.qp)?;
    }
    Ok(())
}

fn a_device_without_the_operations_refuses_to_post_them<P: Provider>(context: &Context<P>) -> CaseResult {
    let has_all = has(context, DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::ATOMIC_WRITE)?;
    if has_all {
        return skip("the device has them");
    }
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    for op in [flush_of(&arena, 0, 8), store(&arena, 0, 1)] {
        let refused = post_send(&mut pair.a.qp, &[signalled(1, op, &[])]).expect_err("it lacks it");
        assert_eq!(refused.reason, PostReason::UnsupportedOp { op: op.kind(), qp_type: QpType::RC });
    }
    // The queue pair still works.
    let read = SendOp::RdmaRead { remote_addr: arena.addr(), rkey: arena.rkey() };
    post_send(&mut pair.a.qp, &[signalled(2, read, &[arena.sge(0..8)])])?;
    wait_for(&mut pair.a.cq, 2, WcOpcode::RDMA_READ)?;
    Ok(())
}

fn unreliable_queue_pairs_have_neither_operation<P: Provider>(context: &Context<P>) -> CaseResult {
    for qp_type in [QpType::UC, QpType::UD] {
        let mut pair = Pair::new(context, &Shape::for_type(qp_type))?;
        let arena = Arena::new(&pair.pd, 64)?;
        for op in [flush_of(&arena, 0, 8), store(&arena, 0, 1)] {
            let refused = post_send(&mut pair.a.qp, &[signalled(1, op, &[])]).expect_err("it lacks it");
            assert_eq!(refused.reason, PostReason::UnsupportedOp { op: op.kind(), qp_type });
        }
    }
    Ok(())
}

fn an_atomic_write_stores_eight_bytes_and_no_others<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = pair(context)?;
    let arena = Arena::new(&pair.pd, 24)?;
    arena.write(0, &[0xee; 24]);
    for (wr_id, value) in [0, 1, u64::MAX, 0x0102_0304_0506_0708].into_iter().enumerate() {
        post_send(&mut pair.a.qp, &[signalled(wr_id as u64, store(&arena, 8, value), &[])])?;
        wait_for(&mut pair.a.cq, wr_id as u64, WcOpcode::ATOMIC_WRITE)?;
        assert_eq!(arena.number(8), value);
    }
    assert_eq!((arena.read(0..8), arena.read(16..24)), (vec![0xee; 8], vec![0xee; 8]));
    Ok(())
}

fn an_atomic_write_needs_the_right_to_write<P: Provider>(context: &Context<P>) -> CaseResult {
    let without_region = pair(context)?;
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let arena = Arena::with_access(&without_region.pd, 64, rights)?;
    refused(without_region, store(&arena, 0, 1))?;
    assert_eq!(arena.number(0), 0);
    let mut without_queue_pair = pair(context)?;
    allow(&mut without_queue_pair, ALL - AccessFlags::REMOTE_WRITE)?;
    let arena = Arena::new(&without_queue_pair.pd, 64)?;
    refused(without_queue_pair, store(&arena, 0, 1))?;
    assert_eq!(arena.number(0), 0);
    Ok(())
}

fn an_atomic_write_beyond_its_region_is_refused_by_the_peer<P: Provider>(context: &Context<P>) -> CaseResult {
    let pair = pair(context)?;
    let arena = Arena::new(&pair.pd, 64)?;
    refused(pair, store(&arena, 64, 1))
}

fn an_unaligned_atomic_write_is_not_posted<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = pair(context)?;
    let arena = Arena::new(&pair.pd, 64)?;
    for at in [1, 4, 7] {
        let op = store(&arena, at, 1);
        let refused = post_send(&mut pair.a.qp, &[signalled(1, op, &[])]).expect_err("it is not aligned");
        assert_eq!(refused.reason, PostReason::AtomicMisaligned { remote_addr: arena.addr() + at });
    }
    Ok(())
}

fn neither_takes_a_list_or_inline_data<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = pair(context)?;
    let arena = Arena::new(&pair.pd, 64)?;
    for op in [flush_of(&arena, 0, 8), store(&arena, 0, 1)] {
        let listed = post_send(&mut pair.a.qp, &[signalled(1, op, &[arena.sge(0..8)])]).unwrap_err();
        assert_eq!(listed.reason, PostReason::TooManySge { given: 1, max: 0 });
        let flags = SendFlags::INLINE;
        let inline = post_send(&mut pair.a.qp, &[SendWr { wr_id: 1, op, sge: &[], flags }]).unwrap_err();
        assert_eq!(inline.reason, PostReason::UnsupportedFlags { op: op.kind(), flags });
    }
    Ok(())
}

fn a_flush_of_a_range_follows_the_writes_before_it<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 20_000;
    let mut pair = pair(context)?;
    let (from, into) = (Arena::new(&pair.pd, LEN)?, Arena::with_access(&pair.pd, LEN, ALL)?);
    for round in 0..5 {
        from.write(0, &pattern(round, LEN));
        let write = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
        let wrs = [
            SendWr { wr_id: 1, op: write, sge: &[from.sge(0..LEN)], flags: SendFlags::empty() },
            signalled(2, flush_of(&into, 0, LEN as u32), &[]),
        ];
        post_send(&mut pair.a.qp, &wrs)?;
        wait_for(&mut pair.a.cq, 2, WcOpcode::FLUSH)?;
        assert!(into.read(0..LEN) == pattern(round, LEN), "round {round}");
    }
    Ok(())
}

fn a_flush_of_a_region_ignores_its_range<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = pair(context)?;
    let arena = Arena::with_access(&pair.pd, 64, ALL)?;
    // rxe computes the number of packets from the length; its peer limits that number.
    let long = if is_rxe()? { 1 << 30 } else { u32::MAX };
    for (wr_id, (remote_addr, length)) in [(arena.addr(), 64), (0, 0), (7, long)].into_iter().enumerate() {
        let op = flush(remote_addr, arena.rkey(), length, FlushSelectivity::MR);
        post_send(&mut pair.a.qp, &[signalled(wr_id as u64, op, &[])])?;
        wait_for(&mut pair.a.cq, wr_id as u64, WcOpcode::FLUSH)?;
    }
    Ok(())
}

fn a_flush_of_no_bytes_is_a_flush<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = pair(context)?;
    let arena = Arena::with_access(&pair.pd, 64, ALL)?;
    for (wr_id, at) in [0, 1, 63].into_iter().enumerate() {
        post_send(&mut pair.a.qp, &[signalled(wr_id as u64, flush_of(&arena, at, 0), &[])])?;
        wait_for(&mut pair.a.cq, wr_id as u64, WcOpcode::FLUSH)?;
    }
    Ok(())
}

fn a_flush_needs_the_right_of_the_region<P: Provider>(context: &Context<P>) -> CaseResult {
    for selectivity in [FlushSelectivity::RANGE, FlushSelectivity::MR] {
        let pair = pair(context)?;
        let arena = Arena::new(&pair.pd, 64)?;
        refused(pair, flush(arena.addr(), arena.rkey(), 8, selectivity))?;
    }
    Ok(())
}

fn a_flush_needs_the_right_of_the_queue_pair<P: Provider>(context: &Context<P>) -> CaseResult {
    for selectivity in [FlushSelectivity::RANGE, FlushSelectivity::MR] {
        let mut pair = pair(context)?;
        allow(&mut pair, ALL - AccessFlags::FLUSH_GLOBAL)?;
        let arena = Arena::with_access(&pair.pd, 64, ALL)?;
        refused(pair, flush(arena.addr(), arena.rkey(), 8, selectivity))?;
    }
    Ok(())
}

fn a_flush_beyond_its_region_is_refused_by_the_peer<P: Provider>(context: &Context<P>) -> CaseResult {
    for (at, length) in [(0, 65), (60, 8), (64, 1)] {
        let pair = pair(context)?;
        let arena = Arena::with_access(&pair.pd, 64, ALL)?;
        refused(pair, flush_of(&arena, at, length))?;
    }
    Ok(())
}

fn a_flush_by_an_unknown_key_is_refused_by_the_peer<P: Provider>(context: &Context<P>) -> CaseResult {
    for selectivity in [FlushSelectivity::RANGE, FlushSelectivity::MR] {
        let pair = pair(context)?;
        let arena = Arena::with_access(&pair.pd, 64, ALL)?;
        refused(pair, flush(arena.addr(), arena.rkey() ^ 0x55, 8, selectivity))?;
    }
    Ok(())
}

fn a_flush_of_no_kind_is_not_posted<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = pair(context)?;
    let arena = Arena::with_access(&pair.pd, 64, ALL)?;
    for (placement, selectivity) in [
        (FlushPlacement::empty(), FlushSelectivity::RANGE),
        (FlushPlacement::from_bits_retain(4), FlushSelectivity::MR),
        (GLOBAL, FlushSelectivity(2)),
    ] {
        let (remote_addr, rkey) = (arena.addr(), arena.rkey());
        let op = SendOp::Flush { remote_addr, rkey, length: 8, placement, selectivity };
        let refused = post_send(&mut pair.a.qp, &[signalled(1, op, &[])]).unwrap_err();
        assert_eq!(refused.reason, PostReason::FlushKind { placement, selectivity });
    }
    Ok(())
}

fn plain_memory_is_not_persistent<P: Provider>(context: &Context<P>) -> CaseResult {
    let pair = pair(context)?;
    let access = ALL | AccessFlags::FLUSH_PERSISTENT;
    if Arena::with_access(&pair.pd, 64, access).is_ok() {
        return fail("memory that is lost with the power was registered as persistent");
    }
    // The right to flush for visibility does not include persistence.
    let arena = Arena::with_access(&pair.pd, 64, ALL)?;
    let (remote_addr, rkey) = (arena.addr(), arena.rkey());
    let (placement, selectivity) = (FlushPlacement::PERSISTENT, FlushSelectivity::RANGE);
    refused(pair, SendOp::Flush { remote_addr, rkey, length: 8, placement, selectivity })
}

fn a_journal_is_published_after_it_was_flushed<P: Provider>(context: &Context<P>) -> CaseResult {
    const RECORD: usize = 1500;
    const ROUNDS: usize = 8;
    let mut pair = pair(context)?;
    let from = Arena::new(&pair.pd, RECORD * ROUNDS)?;
    let (journal, tail) =
        (Arena::with_access(&pair.pd, RECORD * ROUNDS, ALL)?, Arena::with_access(&pair.pd, 8, ALL)?);
    from.write(0, &pattern(1, RECORD * ROUNDS));
    for round in 0..ROUNDS {
        let at = round * RECORD;
        let write = SendOp::RdmaWrite { remote_addr: journal.addr() + at as u64, rkey: journal.rkey() };
        let sge = [from.sge(at..at + RECORD)];
        let wrs = [
            SendWr { wr_id: 1, op: write, sge: &sge, flags: SendFlags::empty() },
            SendWr {
                wr_id: 2,
                op: flush_of(&journal, at as u64, RECORD as u32),
                sge: &[],
                flags: SendFlags::empty(),
            },
            signalled(3 + round as u64, store(&tail, 0, round as u64 + 1), &[]),
        ];
        post_send(&mut pair.a.qp, &wrs)?;
        // Published records are always complete.
        let published = tail.number(0) as usize;
        assert!(journal.read(0..published * RECORD) == pattern(1, RECORD * ROUNDS)[..published * RECORD]);
    }
    let ended: Vec<_> = wait(&mut pair.a.cq, ROUNDS)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let expected: Vec<_> = (0..ROUNDS).map(|round| (3 + round as u64, WcStatus::SUCCESS)).collect();
    assert_eq!(ended, expected);
    assert_eq!(tail.number(0), ROUNDS as u64);
    assert!(journal.read(0..RECORD * ROUNDS) == pattern(1, RECORD * ROUNDS));
    Ok(())
}

fn a_fenced_write_waits_for_both<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = pair(context)?;
    let (from, into) = (Arena::new(&pair.pd, 8)?, Arena::with_access(&pair.pd, 16, ALL)?);
    from.write(0, &9_u64.to_ne_bytes());
    let write = SendOp::RdmaWrite { remote_addr: into.addr() + 8, rkey: into.rkey() };
    let flags = SendFlags::FENCE | SendFlags::SIGNALED;
    let wrs = [
        signalled(1, store(&into, 0, 8), &[]),
        signalled(2, flush_of(&into, 0, 16), &[]),
        SendWr { wr_id: 3, op: write, sge: &[from.sge(0..8)], flags },
    ];
    post_send(&mut pair.a.qp, &wrs)?;
    for (wr_id, opcode) in [(1, WcOpcode::ATOMIC_WRITE), (2, WcOpcode::FLUSH), (3, WcOpcode::RDMA_WRITE)] {
        wait_for(&mut pair.a.cq, wr_id, opcode)?;
    }
    assert_eq!((into.number(0), into.number(8)), (8, 9));
    Ok(())
}

fn safe_code_flushes_what_was_exposed<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = pair(context)?;
    let rights = RemoteAccess::WRITE | RemoteAccess::FLUSH_GLOBAL;
    let exposed = pair.pd.expose(pair.pd.alloc_buf(64)?, rights)?;
    let remote = exposed.remote();
    let data = filled(&pair.pd, 3, 32)?;
    pair.a.qp.post_send_buf_unsignaled(remote.slice(32..)?.write(), SendFlags::empty(), data, ..)?;
    pair.a.qp.post_send_op(1, remote.flush(GLOBAL)?, SendFlags::SIGNALED)?;
    pair.a.qp.post_send_op(2, remote.flush_region(GLOBAL), SendFlags::SIGNALED)?;
    pair.a.qp.post_send_op(3, remote.atomic_write(*b"8 bytes!"), SendFlags::SIGNALED)?;
    let ended: Vec<_> = wait(&mut pair.a.cq, 3)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ended, [1, 2, 3].map(|wr_id| (wr_id, WcStatus::SUCCESS)));
    drop(pair);
    let buf = exposed.unexpose()?;
    assert!(buf[..8] == *b"8 bytes!" && buf[32..] == pattern(3, 32)[..]);
    Ok(())
}
