//! Protection domains, memory regions and their rights: each right against each operation, bounds,
//! addresses, overlaps, changes, and the null region.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use verbs::{
    AccessFlags, AhAttr, Cause, ConnectAttr, Context, CqInit, DmAttr, DmahAttr, Errno, Error, HandleError,
    Mr, MrChange, MrInit, Pd, Provider, QpInit, QpType, RecvWr, RegionState, SendOp, Sge, WcOpcode, WcStatus,
};

use super::SUITE;
use crate::both;
use crate::fabric::{
    Arena, PORT, Pair, Shape, in_error, is_local_key_error, is_rxe, pattern, post_recv, post_send, reg_mr_ex,
    rereg, rxe_is_before, signalled, wait_for, wait_local_key_error, wait_one, wait_remote_access_error,
    wait_status,
};
use crate::runner::{Case, CaseResult, fail, skip};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        pd_memory_of_another_domain_is_not_sent,
        pd_memory_of_another_domain_is_not_received_into,
        pd_memory_of_another_domain_is_closed_to_peers,
        pd_ends_of_a_connection_are_in_domains_of_their_own,
        pd_queue_pairs_of_one_domain_share_its_memory,
        pd_with_a_region_is_in_use,
        pd_with_a_queue_pair_is_in_use,
        pd_with_an_address_handle_is_in_use,
        pd_outlives_its_handle_with_its_objects,
        pd_handles_are_distinct_and_given_back,
        pd_of_a_parent_domain_shares_its_memory_and_is_in_use,
        pd_imported_by_its_handle_is_the_same_domain,
        mr_write_needs_the_right_of_remote_writes,
        mr_read_needs_the_right_of_remote_reads,
        mr_compare_and_swap_needs_the_right_of_remote_atomics,
        mr_fetch_and_add_needs_the_right_of_remote_atomics,
        mr_receive_needs_the_right_of_local_writes,
        mr_result_of_a_read_needs_the_right_of_local_writes,
        mr_result_of_an_atomic_needs_the_right_of_local_writes,
        mr_without_rights_is_sent_from,
        mr_rights_that_exclude_each_other_are_refused_by_name,
        mr_optional_rights_are_never_refused,
        mr_of_unmapped_memory_is_refused,
        mr_of_read_only_memory_is_refused_for_writing,
        mr_is_accessed_from_its_first_byte_to_its_last,
        mr_is_not_accessed_beyond_its_bounds_by_peers,
        mr_is_not_accessed_beyond_its_bounds_by_its_owner,
        mr_is_addressed_by_its_iova_alone,
        mr_with_iova_is_registered_in_the_extended_form,
        mr_that_is_zero_based_is_addressed_from_zero,
        mr_of_no_bytes_has_no_byte_to_access,
        mr_access_of_no_bytes_needs_no_key,
        mr_overlapping_regions_are_bounded_by_their_own_keys,
        mr_of_the_same_memory_has_rights_of_its_own,
        mr_keys_of_live_regions_are_distinct,
        mr_key_of_a_deregistered_region_is_refused_from_peers,
        mr_key_of_a_deregistered_region_is_refused_from_its_owner,
        mr_deregistered_leaves_other_regions_of_its_memory,
        mr_change_of_rights_grants_and_revokes,
        mr_change_of_domain_moves_the_region,
        mr_change_of_memory_moves_the_region,
        mr_change_of_everything_at_once,
        mr_change_that_is_refused_leaves_the_region,
        mr_null_reads_as_zeros_and_discards_writes,
        mr_null_skips_a_part_of_a_message,
        mr_null_is_closed_to_peers,
        mr_imported_by_its_handle_has_the_same_keys,
        mr_of_a_dma_buf_is_refused_where_there_are_none,
        dm_and_dma_handles_are_refused_where_there_are_none,
    )
}

const LOCAL_WRITE: AccessFlags = AccessFlags::LOCAL_WRITE;
const REMOTE_WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const REMOTE_READ: AccessFlags = AccessFlags::REMOTE_READ;
const REMOTE_ATOMIC: AccessFlags = AccessFlags::REMOTE_ATOMIC;
const ALL: AccessFlags = LOCAL_WRITE.union(REMOTE_WRITE).union(REMOTE_READ).union(REMOTE_ATOMIC);

/// Every combination of the four rights.
fn combinations() -> impl Iterator<Item = AccessFlags> {
    (0..=ALL.bits()).map(AccessFlags::from_bits_retain)
}

/// The combinations that a region can have: a peer changes only what the device may change.
fn legal() -> impl Iterator<Item = AccessFlags> {
    combinations().filter(|access| {
        access.contains(LOCAL_WRITE) || !access.intersects(REMOTE_WRITE.union(REMOTE_ATOMIC))
    })
}

const fn write(remote_addr: u64, rkey: u32) -> SendOp<'static> {
    SendOp::RdmaWrite { remote_addr, rkey }
}

const fn read(remote_addr: u64, rkey: u32) -> SendOp<'static> {
    SendOp::RdmaRead { remote_addr, rkey }
}

const fn cas(remote_addr: u64, rkey: u32) -> SendOp<'static> {
    SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 }
}

const fn faa(remote_addr: u64, rkey: u32) -> SendOp<'static> {
    SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }
}

/// Checks that a peer's request succeeds.
fn allowed<P: Provider>(pair: &mut Pair<P>, op: SendOp<'_>, sge: Sge) -> CaseResult {
    let opcode = match op {
        SendOp::RdmaRead { .. } => WcOpcode::RDMA_READ,
        SendOp::AtomicCmpAndSwp { .. } => WcOpcode::COMP_SWAP,
        SendOp::AtomicFetchAndAdd { .. } => WcOpcode::FETCH_ADD,
        _ => WcOpcode::RDMA_WRITE,
    };
    post_send(&mut pair.a.qp, &[signalled(1, op, &[sge])])?;
    wait_for(&mut pair.a.cq, 1, opcode).map(drop).map_err(|stop| stop.of(format_args!("{op:?}")))
}

/// Checks that a peer's request is refused for its key or rights: the requester is told, both queue
/// pairs are broken.
fn refused<P: Provider>(pair: &mut Pair<P>, op: SendOp<'_>, sge: Sge) -> CaseResult {
    post_send(&mut pair.a.qp, &[signalled(1, op, &[sge])])?;
    wait_remote_access_error(&mut pair.a.cq, 1).map_err(|stop| stop.of(format_args!("{op:?}")))?;
    for qp in [&pair.a.qp, &pair.b.qp] {
        in_error(qp).map_err(|stop| stop.of(format_args!("{op:?}")))?;
    }
    Ok(())
}

/// Checks on new connections that of these rights exactly those with `needed` allow the operation.
fn needs<P: Provider>(
    context: &Context<P>,
    needed: AccessFlags,
    op: fn(u64, u32) -> SendOp<'static>,
) -> CaseResult {
    for access in legal() {
        let mut pair = Pair::new(context, &Shape::default())?;
        let local = Arena::new(&pair.pd, 8)?;
        let target = Arena::with_access(&pair.pd, 64, access)?;
        local.write(0, &[0xff; 8]);
        let (op, sge) = (op(target.addr() + 16, target.rkey()), local.sge(0..8));
        if access.contains(needed) {
            allowed(&mut pair, op, sge).map_err(|stop| stop.of(format_args!("{access:?}")))?;
            let is_read = matches!(op, SendOp::RdmaRead { .. });
            assert_eq!(target.number(16) == 0, is_read, "{access:?}");
            assert_eq!(local.number(0) == u64::MAX, matches!(op, SendOp::RdmaWrite { .. }), "{access:?}");
        } else {
            refused(&mut pair, op, sge).map_err(|stop| stop.of(format_args!("{access:?}")))?;
            assert_eq!(target.read(0..64), [0; 64], "{access:?}: {op:?} changed memory");
            assert_eq!(local.number(0), u64::MAX, "{access:?}: {op:?} read memory");
        }
        assert_eq!((target.read(0..16), target.read(24..64)), (vec![0; 16], vec![0; 40]));
    }
    Ok(())
}

/// Sends 8 bytes from A to B and checks the data.
fn exchange<P: Provider>(pair: &mut Pair<P>, from: Sge, into: Sge) -> CaseResult {
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV).map(drop)
}

/// Checks that a receive into an element fails on both sides.
fn receive_refused<P: Provider>(pair: &mut Pair<P>, from: Sge, into: Sge) -> CaseResult {
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from])])?;
    wait_status(&mut pair.a.cq, 1, WcStatus::REM_OP_ERR)?;
    let wc = wait_one(&mut pair.b.cq)?;
    assert!(wc.wr_id == 2 && is_local_key_error(wc.status)?, "{wc:?}");
    in_error(&pair.b.qp)?;
    Ok(())
}

fn pd_memory_of_another_domain_is_not_sent<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let elsewhere = Arena::new(&context.alloc_pd()?, 64)?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[elsewhere.sge(0..8)])])?;
    wait_local_key_error(&mut pair.a.cq, 1)?;
    in_error(&pair.a.qp)?;
    Ok(())
}

fn pd_memory_of_another_domain_is_not_received_into<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let elsewhere = Arena::new(&context.alloc_pd()?, 64)?;
    let here = Arena::new(&pair.pd, 64)?;
    here.write(0, &pattern(1, 64));
    receive_refused(&mut pair, here.sge(0..8), elsewhere.sge(0..8))?;
    assert_eq!(elsewhere.read(0..64), [0; 64]);
    Ok(())
}

fn pd_memory_of_another_domain_is_closed_to_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    let other = context.alloc_pd()?;
    let elsewhere = Arena::new(&other, 64)?;
    for op in [write, read, cas, faa] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let local = Arena::new(&pair.pd, 8)?;
        local.write(0, &[0xff; 8]);
        refused(&mut pair, op(elsewhere.addr(), elsewhere.rkey()), local.sge(0..8))?;
        assert_eq!((elsewhere.number(0), local.number(0)), (0, u64::MAX));
    }
    Ok(())
}

fn pd_ends_of_a_connection_are_in_domains_of_their_own<P: Provider>(context: &Context<P>) -> CaseResult {
    let port = context.port(PORT)?;
    let (one, other) = (context.alloc_pd()?, context.alloc_pd()?);
    let mut cq = context.create_cq(&CqInit::new(8))?;
    let a = one.create_qp(&QpInit::new(QpType::RC, &cq))?;
    let b = other.create_qp(&QpInit::new(QpType::RC, &cq))?;
    let (to_a, to_b) = (a.endpoint(&port), b.endpoint(&port));
    let mut a = a.connect(&port, &to_b, &ConnectAttr::default())?;
    let mut b = b.connect(&port, &to_a, &ConnectAttr::default())?;
    let (from, into) = (Arena::new(&one, 64)?, Arena::new(&other, 64)?);
    from.write(0, &pattern(1, 64));
    post_recv(&mut b, &[RecvWr { wr_id: 2, sge: &[into.sge(0..64)] }])?;
    post_send(&mut a, &[signalled(1, SendOp::Send, &[from.sge(0..64)])])?;
    for _ in 0..2 {
        assert_eq!(wait_one(&mut cq)?.status, WcStatus::SUCCESS);
    }
    assert_eq!(into.read(0..64), pattern(1, 64));
    Ok(())
}

fn pd_queue_pairs_of_one_domain_share_its_memory<P: Provider>(context: &Context<P>) -> CaseResult {
    let (pd, port) = (context.alloc_pd()?, context.port(PORT)?);
    let arena = Arena::new(&pd, 64)?;
    arena.write(0, &pattern(1, 32));
    let mut cq = context.create_cq(&CqInit::new(16))?;
    for round in 0..4 {
        let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
        let own = qp.endpoint(&port);
        let mut qp = qp.connect(&port, &own, &ConnectAttr::default())?;
        post_recv(&mut qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(32..64)] }])?;
        post_send(&mut qp, &[signalled(1, SendOp::Send, &[arena.sge(0..32)])])?;
        for _ in 0..2 {
            assert_eq!(wait_one(&mut cq)?.status, WcStatus::SUCCESS, "queue pair {round}");
        }
        assert_eq!(arena.read(32..64), pattern(1, 32));
        arena.write(32, &[0; 32]);
    }
    Ok(())
}

/// Checks that a domain is in use, by what is named.
fn in_use<P: Provider>(pd: Pd<P>, by: &str) -> CaseResult<Pd<P>> {
    match pd.close() {
        Ok(()) => fail(format_args!("a domain with {by} was deallocated")),
        Err(HandleError { handle, error }) => {
            assert_eq!(error.errno, Errno::BUSY);
            assert!(matches!(error.cause, Cause::InUse { by: found } if found == by), "{error}");
            Ok(handle)
        }
    }
}

fn pd_with_a_region_is_in_use<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let arena = Arena::new(&pd, 64)?;
    let pd = in_use(pd, "memory regions")?;
    arena.close()?;
    Ok(pd.close()?)
}

fn pd_with_a_queue_pair_is_in_use<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(8))?;
    let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
    let pd = in_use(pd, "queue pairs")?;
    qp.close()?;
    Ok(pd.close()?)
}

fn pd_with_an_address_handle_is_in_use<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let gid = context.find_gid(PORT)?;
    let ah = pd.create_ah(&AhAttr::new(&gid, gid.gid))?;
    let pd = in_use(pd, "address handles")?;
    ah.close()?;
    Ok(pd.close()?)
}

fn pd_outlives_its_handle_with_its_objects<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, 8)?, Arena::new(&pair.pd, 8)?);
    pair.pd = context.alloc_pd()?;
    from.write(0, &pattern(3, 8));
    exchange(&mut pair, from.sge(0..8), into.sge(0..8))?;
    assert_eq!(into.read(0..8), pattern(3, 8));
    Ok(())
}

fn pd_handles_are_distinct_and_given_back<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: usize = 64;
    for _ in 0..3 {
        let pds = (0..COUNT).map(|_| context.alloc_pd()).collect::<Result<Vec<_>, _>>()?;
        let handles: BTreeSet<_> = pds.iter().map(Pd::handle).collect();
        assert_eq!(handles.len(), COUNT);
        for pd in pds {
            pd.close()?;
        }
    }
    Ok(())
}

fn pd_of_a_parent_domain_shares_its_memory_and_is_in_use<P: Provider>(context: &Context<P>) -> CaseResult {
    let td = match context.alloc_td() {
        Ok(td) => td,
        Err(error) => return lacks(&error, "alloc_td", "the provider has no thread domains"),
    };
    let pd = context.alloc_pd()?;
    let parent = pd.alloc_parent_domain(Some(&td), None)?;
    let Err(HandleError { handle: td, error }) = td.close() else { return fail("the thread domain is gone") };
    assert!(matches!(error.cause, Cause::InUse { by: "parent domains" }), "{error}");
    // A queue pair of the parent domain uses memory of the domain, and the other way around.
    let port = context.port(PORT)?;
    let mut cq = context.create_cq(&CqInit::new(8))?;
    for (of_qp, of_memory) in [(&parent, &pd), (&pd, &parent)] {
        let qp = of_qp.create_qp(&QpInit::new(QpType::RC, &cq))?;
        let own = qp.endpoint(&port);
        let mut qp = qp.connect(&port, &own, &ConnectAttr::default())?;
        let mut message = of_memory.alloc_buf(8)?;
        message.copy_from_slice(&pattern(1, 8));
        qp.post_recv_buf(of_memory.alloc_buf(8)?, ..)?;
        qp.post_send_buf(SendOp::Send, verbs::SendFlags::empty(), message, ..)?;
        for _ in 0..2 {
            let completed = crate::fabric::next_completed(&mut cq)?;
            if completed.opcode.is_recv() {
                assert_eq!(completed.into_buf().as_deref(), Some(&pattern(1, 8)[..]));
            }
        }
    }
    let pd = in_use(pd, "parent domains")?;
    parent.close()?;
    td.close()?;
    Ok(pd.close()?)
}

fn pd_imported_by_its_handle_is_the_same_domain<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let imported = match context.import_pd(pair.pd.handle()) {
        Ok(imported) => imported,
        Err(error) => return lacks(&error, "import_pd", "the provider imports no domains"),
    };
    let (from, into) = (Arena::new(&imported, 8)?, Arena::new(&pair.pd, 8)?);
    from.write(0, &pattern(3, 8));
    exchange(&mut pair, from.sge(0..8), into.sge(0..8))?;
    assert_eq!(into.read(0..8), pattern(3, 8));
    from.close()?;
    imported.close()?;
    // The original is untouched by the end of the import.
    exchange(&mut pair, into.sge(0..8), into.sge(0..8))
}

fn mr_write_needs_the_right_of_remote_writes<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, REMOTE_WRITE, write)
}

fn mr_read_needs_the_right_of_remote_reads<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, REMOTE_READ, read)
}

fn mr_compare_and_swap_needs_the_right_of_remote_atomics<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, REMOTE_ATOMIC, cas)
}

fn mr_fetch_and_add_needs_the_right_of_remote_atomics<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, REMOTE_ATOMIC, faa)
}

fn mr_receive_needs_the_right_of_local_writes<P: Provider>(context: &Context<P>) -> CaseResult {
    for access in legal() {
        let mut pair = Pair::new(context, &Shape::default())?;
        let from = Arena::new(&pair.pd, 8)?;
        let into = Arena::with_access(&pair.pd, 8, access)?;
        from.write(0, &pattern(1, 8));
        if access.contains(LOCAL_WRITE) {
            exchange(&mut pair, from.sge(0..8), into.sge(0..8))?;
            assert_eq!(into.read(0..8), pattern(1, 8));
        } else {
            receive_refused(&mut pair, from.sge(0..8), into.sge(0..8))
                .map_err(|stop| stop.of(format_args!("{access:?}")))?;
            assert_eq!(into.read(0..8), [0; 8]);
        }
    }
    Ok(())
}

fn mr_result_of_a_read_needs_the_right_of_local_writes<P: Provider>(context: &Context<P>) -> CaseResult {
    result_needs_local_write(context, read)
}

fn mr_result_of_an_atomic_needs_the_right_of_local_writes<P: Provider>(context: &Context<P>) -> CaseResult {
    result_needs_local_write(context, cas)?;
    result_needs_local_write(context, faa)
}

fn result_needs_local_write<P: Provider>(
    context: &Context<P>,
    op: fn(u64, u32) -> SendOp<'static>,
) -> CaseResult {
    for access in legal() {
        let mut pair = Pair::new(context, &Shape::default())?;
        let target = Arena::new(&pair.pd, 8)?;
        let local = Arena::with_access(&pair.pd, 8, access)?;
        target.write(0, &7_u64.to_ne_bytes());
        let op = op(target.addr(), target.rkey());
        if access.contains(LOCAL_WRITE) {
            allowed(&mut pair, op, local.sge(0..8))?;
            assert_eq!(local.number(0), 7, "{access:?}");
        } else {
            post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
            wait_local_key_error(&mut pair.a.cq, 1).map_err(|stop| stop.of(format_args!("{access:?}")))?;
            assert_eq!(local.number(0), 0, "{access:?}");
            in_error(&pair.a.qp)?;
        }
    }
    Ok(())
}

fn mr_without_rights_is_sent_from<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let from = Arena::with_access(&pair.pd, 8, AccessFlags::empty())?;
    let into = Arena::new(&pair.pd, 8)?;
    from.write(0, &pattern(1, 8));
    exchange(&mut pair, from.sge(0..8), into.sge(0..8))?;
    assert_eq!(into.read(0..8), pattern(1, 8));
    into.write(0, &[0; 8]);
    allowed(&mut pair, write(into.addr(), into.rkey()), from.sge(0..8))?;
    assert_eq!(into.read(0..8), pattern(1, 8));
    Ok(())
}

fn mr_rights_that_exclude_each_other_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let arena = Arena::new(&pd, 64)?;
    let legal: Vec<_> = legal().collect();
    for access in combinations() {
        match (arena.register(&pd, 0..64, None, access), legal.contains(&access)) {
            (Ok(mr), true) => mr.close()?,
            (Err(error), false) => {
                assert_eq!(error.errno, Errno::INVAL);
                let needy = access & (REMOTE_WRITE | REMOTE_ATOMIC);
                assert!(
                    matches!(error.cause, Cause::NeedsLocalWrite { access } if access == needy),
                    "{error}"
                );
            }
            (result, _) => return fail(format_args!("{access:?}: {result:?}")),
        }
    }
    Ok(())
}

fn mr_optional_rights_are_never_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let relaxed = ALL | AccessFlags::RELAXED_ORDERING;
    let target = Arena::with_access(&pair.pd, 8, relaxed)?;
    let local = Arena::new(&pair.pd, 8)?;
    local.write(0, &pattern(1, 8));
    allowed(&mut pair, write(target.addr(), target.rkey()), local.sge(0..8))?;
    assert_eq!(target.read(0..8), pattern(1, 8));
    Ok(())
}

fn mr_of_unmapped_memory_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    // No process has memory below `vm.mmap_min_addr`.
    let init = MrInit::new(core::ptr::without_provenance_mut(0x1000), 4096, LOCAL_WRITE);
    let error = reg_mr_ex(&pd, &init).map(drop).unwrap_err();
    assert_eq!((error.verb, error.errno), ("reg_mr", Errno::FAULT), "{error}");
    Ok(())
}

fn mr_of_read_only_memory_is_refused_for_writing<P: Provider>(context: &Context<P>) -> CaseResult {
    static FIXED: [u8; 8192] = [7; 8192];
    let pd = context.alloc_pd()?;
    let init = |access| MrInit::new(FIXED.as_ptr().cast_mut(), FIXED.len(), access);
    let error = reg_mr_ex(&pd, &init(LOCAL_WRITE)).map(drop).unwrap_err();
    assert_eq!(error.errno, Errno::FAULT, "{error}");
    match reg_mr_ex(&pd, &init(REMOTE_READ)) {
        Ok(mr) => Ok(mr.close()?),
        // Pages of a file are taken for writing, whatever the rights are.
        Err(_) if rxe_is_before(6, 4)? => skip("Linux before 6.4 registers no read-only mapping of a file"),
        Err(error) => Err(error.into()),
    }
}

fn mr_is_accessed_from_its_first_byte_to_its_last<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (local, target) = (Arena::new(&pair.pd, 1)?, Arena::new(&pair.pd, 10_000)?);
    local.write(0, &[0xff]);
    for at in [0, 1, 4095, 4096, 9999] {
        allowed(&mut pair, write(target.addr() + at, target.rkey()), local.sge(0..1))?;
    }
    let changed: Vec<_> =
        target.read(0..10_000).iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect();
    assert_eq!(changed, [0, 1, 4095, 4096, 9999]);
    Ok(())
}

fn mr_is_not_accessed_beyond_its_bounds_by_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    for op in [write, read] {
        for (offset, length) in [(-1, 1), (-1, 64), (1, 64), (57, 8), (64, 1), (i64::MAX, 8), (i64::MIN, 8)] {
            let mut pair = Pair::new(context, &Shape::default())?;
            let around = Arena::new(&pair.pd, 192)?;
            let local = Arena::new(&pair.pd, 64)?;
            let target = around.register(&pair.pd, 64..128, None, ALL)?;
            local.write(0, &[0xff; 64]);
            let addr = target.addr().wrapping_add_signed(offset);
            refused(&mut pair, op(addr, target.rkey()), local.sge(0..length))
                .map_err(|stop| stop.of(format_args!("{length} bytes at {offset}")))?;
            assert_eq!((around.read(0..192), local.read(0..64)), (vec![0; 192], vec![0xff; 64]));
        }
    }
    Ok(())
}

fn mr_is_not_accessed_beyond_its_bounds_by_its_owner<P: Provider>(context: &Context<P>) -> CaseResult {
    for (offset, length) in [(-1, 8), (57, 8), (64, 1), (0, 65), (i64::MAX, 8)] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let around = Arena::new(&pair.pd, 192)?;
        let mr = around.register(&pair.pd, 64..128, None, ALL)?;
        let bad = Sge { addr: mr.addr().wrapping_add_signed(offset), length, lkey: mr.lkey() };
        receive_refused(&mut pair, around.sge(0..length as usize), bad)
            .map_err(|stop| stop.of(format_args!("{length} bytes at {offset}")))?;
        assert_eq!(around.read(0..192), [0; 192]);
        let mut pair = Pair::new(context, &Shape::default())?;
        let around = Arena::new(&pair.pd, 192)?;
        let mr = around.register(&pair.pd, 64..128, None, ALL)?;
        let bad = Sge { addr: mr.addr().wrapping_add_signed(offset), length, lkey: mr.lkey() };
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[bad])])?;
        wait_local_key_error(&mut pair.a.cq, 1)
            .map_err(|stop| stop.of(format_args!("{length} bytes at {offset} sent")))?;
    }
    Ok(())
}

/// Registers all of an arena at another address with the same offset in its page, as the kernel
/// demands, and checks that it counts.
fn addressed_by<P: Provider>(pair: &mut Pair<P>, arena: &Arena<P>, mr: &Mr<P>) -> CaseResult {
    let local = Arena::new(&pair.pd, 8)?;
    local.write(0, &pattern(1, 8));
    allowed(pair, write(mr.addr() + 8, mr.rkey()), local.sge(0..8))?;
    assert_eq!(arena.read(8..16), pattern(1, 8));
    // The owner counts in the same way.
    exchange(pair, mr.sge(8..16), mr.sge(16..24))?;
    assert_eq!(arena.read(16..24), pattern(1, 8));
    refused(pair, write(arena.addr() + 8, mr.rkey()), local.sge(0..8))
}

fn mr_is_addressed_by_its_iova_alone<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let iova = (1 << 40) | (arena.addr() & 0xfff);
    let mr = arena.register(&pair.pd, 0..64, Some(iova), ALL)?;
    assert_eq!((mr.addr(), mr.length()), (iova, 64));
    addressed_by(&mut pair, &arena, &mr)
}

fn mr_with_iova_is_registered_in_the_extended_form<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let iova = (1 << 40) | (arena.addr() & 0xfff);
    let (start, length) = arena.part(0..64);
    let mr = reg_mr_ex(&pair.pd, &MrInit::new(start, length, ALL).iova(iova))?;
    assert_eq!(mr.addr(), iova);
    addressed_by(&mut pair, &arena, &mr)
}

fn mr_that_is_zero_based_is_addressed_from_zero<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe has no zero-based regions");
    }
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let mr = arena.register(&pair.pd, 0..64, None, ALL | AccessFlags::ZERO_BASED)?;
    assert_eq!(mr.addr(), 0);
    addressed_by(&mut pair, &arena, &mr)
}

fn mr_of_no_bytes_has_no_byte_to_access<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let mr = match arena.register(&pair.pd, 8..8, None, ALL) {
        Ok(mr) => mr,
        Err(error) if is_rxe()? => {
            assert_eq!(error.errno, Errno::INVAL, "{error}");
            return skip("the kernel pins no region of no bytes");
        }
        Err(error) => return Err(error.into()),
    };
    allowed(&mut pair, write(mr.addr(), mr.rkey()), arena.sge(0..0))?;
    refused(&mut pair, write(mr.addr(), mr.rkey()), arena.sge(0..1))
}

fn mr_access_of_no_bytes_needs_no_key<P: Provider>(context: &Context<P>) -> CaseResult {
    for op in [write, read] {
        let mut pair = Pair::new(context, &Shape::default())?;
        post_send(&mut pair.a.qp, &[signalled(1, op(0x1000, 0x00ff_ff00), &[])])?;
        let wc = wait_one(&mut pair.a.cq)?;
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::SUCCESS, 0));
    }
    Ok(())
}

fn mr_overlapping_regions_are_bounded_by_their_own_keys<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (around, local) = (Arena::new(&pair.pd, 96)?, Arena::new(&pair.pd, 64)?);
    let first = around.register(&pair.pd, 0..64, None, ALL)?;
    let second = around.register(&pair.pd, 32..96, None, ALL)?;
    assert_ne!(first.rkey(), second.rkey());
    for (seed, mr, at) in [(1, &first, 0), (2, &second, 32)] {
        local.write(0, &pattern(seed, 64));
        allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..64))?;
        assert_eq!(around.read(at..at + 64), pattern(seed, 64));
    }
    // The common part was written twice, the rest of the first one once.
    assert_eq!(around.read(0..32), pattern(1, 64)[..32]);
    refused(&mut pair, write(first.addr() + 32, first.rkey()), local.sge(0..64))
}

fn mr_of_the_same_memory_has_rights_of_its_own<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (arena, local) = (Arena::with_access(&pair.pd, 64, REMOTE_READ)?, Arena::new(&pair.pd, 64)?);
    let writable = arena.register(&pair.pd, 0..64, None, LOCAL_WRITE | REMOTE_WRITE)?;
    local.write(0, &pattern(1, 64));
    allowed(&mut pair, write(writable.addr(), writable.rkey()), local.sge(0..64))?;
    local.write(0, &[0; 64]);
    allowed(&mut pair, read(arena.addr(), arena.rkey()), local.sge(0..64))?;
    assert_eq!(local.read(0..64), pattern(1, 64));
    refused(&mut pair, read(writable.addr(), writable.rkey()), local.sge(0..8))?;
    let mut pair = Pair::new(context, &Shape::default())?;
    let local = Arena::new(&pair.pd, 8)?;
    refused(&mut pair, write(arena.addr(), arena.rkey()), local.sge(0..8))
}

fn mr_keys_of_live_regions_are_distinct<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: usize = 128;
    let pd = context.alloc_pd()?;
    let arena = Arena::new(&pd, 64)?;
    let regions = (0..COUNT).map(|_| arena.register(&pd, 0..64, None, ALL)).collect::<Result<Vec<_>, _>>()?;
    for key in [Mr::lkey, Mr::rkey, Mr::handle] {
        let keys: BTreeSet<_> = regions.iter().map(key).collect();
        assert_eq!(keys.len(), COUNT);
    }
    for mr in regions {
        mr.close()?;
    }
    Ok(())
}

fn mr_key_of_a_deregistered_region_is_refused_from_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    for op in [write, read, cas, faa] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let (arena, local) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 8)?);
        let mr = arena.register(&pair.pd, 0..64, None, ALL)?;
        let op = op(mr.addr(), mr.rkey());
        allowed(&mut pair, op, local.sge(0..8))?;
        mr.close()?;
        let before = arena.read(0..64);
        refused(&mut pair, op, local.sge(0..8))?;
        assert_eq!(arena.read(0..64), before);
    }
    Ok(())
}

fn mr_key_of_a_deregistered_region_is_refused_from_its_owner<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let mr = arena.register(&pair.pd, 0..8, None, ALL)?;
    let gone = mr.sge(0..8);
    exchange(&mut pair, gone, arena.sge(8..16))?;
    mr.close()?;
    receive_refused(&mut pair, arena.sge(0..8), gone)?;
    let mut pair = Pair::new(context, &Shape::default())?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[gone])])?;
    wait_local_key_error(&mut pair.a.cq, 1)
}

fn mr_deregistered_leaves_other_regions_of_its_memory<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (arena, local) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 64)?);
    local.write(0, &pattern(1, 64));
    arena.register(&pair.pd, 0..64, None, ALL)?.close()?;
    arena.register(&pair.pd, 16..32, None, ALL)?.close()?;
    allowed(&mut pair, write(arena.addr(), arena.rkey()), local.sge(0..64))?;
    assert_eq!(arena.read(0..64), pattern(1, 64));
    Ok(())
}

/// Ends a case where the device cannot change a region in this way, which must be unchanged.
fn cannot_change(failed: &verbs::ReregError) -> CaseResult {
    assert_eq!((failed.error.verb, failed.error.errno), ("rereg_mr", Errno::OPNOTSUPP), "{failed}");
    assert_eq!(failed.region, RegionState::Unchanged);
    if is_rxe()? { Ok(()) } else { fail(failed) }
}

fn mr_change_of_rights_grants_and_revokes<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (arena, local) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 8)?);
    let mut mr = arena.register(&pair.pd, 0..64, None, LOCAL_WRITE)?;
    if let Err(failed) = rereg(&mut mr, &MrChange::new().access(LOCAL_WRITE | REMOTE_WRITE)) {
        cannot_change(&failed)?;
        return skip("rxe up to Linux 6.4 cannot change regions");
    }
    local.write(0, &pattern(1, 8));
    allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..8))?;
    assert_eq!(arena.read(0..8), pattern(1, 8));
    rereg(&mut mr, &MrChange::new().access(REMOTE_READ))?;
    local.write(0, &[0; 8]);
    allowed(&mut pair, read(mr.addr(), mr.rkey()), local.sge(0..8))?;
    assert_eq!(local.read(0..8), pattern(1, 8));
    refused(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..8))?;
    // Local writes were revoked too.
    let mut pair = Pair::new(context, &Shape::default())?;
    let mut mr = arena.register(&pair.pd, 0..64, None, LOCAL_WRITE)?;
    rereg(&mut mr, &MrChange::new().access(AccessFlags::empty()))?;
    let local = Arena::new(&pair.pd, 8)?;
    receive_refused(&mut pair, local.sge(0..8), mr.sge(0..8))?;
    Ok(mr.close()?)
}

fn mr_change_of_domain_moves_the_region<P: Provider>(context: &Context<P>) -> CaseResult {
    let (mut pair, mut old) =
        (Pair::new(context, &Shape::default())?, Pair::new(context, &Shape::default())?);
    let (arena, local) = (Arena::new(&old.pd, 64)?, Arena::new(&pair.pd, 8)?);
    let mut mr = arena.register(&old.pd, 0..64, None, ALL)?;
    if let Err(failed) = rereg(&mut mr, &MrChange::new().pd(&pair.pd)) {
        cannot_change(&failed)?;
        return skip("rxe up to Linux 6.4 cannot change regions");
    }
    local.write(0, &pattern(1, 8));
    allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..8))?;
    exchange(&mut pair, mr.sge(0..8), local.sge(0..8))?;
    let far = Arena::new(&old.pd, 8)?;
    refused(&mut old, write(mr.addr(), mr.rkey()), far.sge(0..8))?;
    assert_eq!(arena.read(0..8), pattern(1, 8));
    // It keeps its new domain in use, and its old one no more.
    let Pair { pd, a, b, .. } = old;
    drop((a, b));
    arena.close()?;
    far.close()?;
    pd.close()?;
    let Pair { pd, a, b, .. } = pair;
    drop((a, b));
    local.close()?;
    let pd = in_use(pd, "memory regions")?;
    mr.close()?;
    Ok(pd.close()?)
}

fn mr_change_of_memory_moves_the_region<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (old, new) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 256)?);
    let local = Arena::new(&pair.pd, 128)?;
    local.write(0, &pattern(1, 128));
    let mut mr = old.register(&pair.pd, 0..64, None, ALL)?;
    let (start, length) = new.part(64..192);
    let change = MrChange::new().memory(start, length);
    if let Err(failed) = rereg(&mut mr, &change) {
        cannot_change(&failed)?;
        // The region is as it was.
        allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..64))?;
        assert_eq!((mr.length(), old.read(0..64)), (64, pattern(1, 64)));
        return skip("rxe cannot change the memory of a region");
    }
    assert_eq!((mr.addr(), mr.length()), (start.addr() as u64, 128));
    allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..128))?;
    assert_eq!((new.read(64..192), old.read(0..64)), (pattern(1, 128), vec![0; 64]));
    assert_eq!((new.read(0..64), new.read(192..256)), (vec![0; 64], vec![0; 64]));
    // At an address of the program's choice.
    let iova = (1 << 40) | (start.addr() as u64 & 0xfff);
    rereg(&mut mr, &MrChange::new().memory(start, 8).iova(iova))?;
    local.write(0, &pattern(2, 128));
    allowed(&mut pair, write(iova, mr.rkey()), local.sge(0..8))?;
    assert_eq!((mr.addr(), new.read(64..72)), (iova, pattern(2, 8)));
    refused(&mut pair, write(old.addr(), mr.rkey()), local.sge(0..8))?;
    assert_eq!(old.read(0..64), [0; 64]);
    Ok(())
}

fn mr_change_of_everything_at_once<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let elsewhere = context.alloc_pd()?;
    let (old, new) = (Arena::new(&elsewhere, 64)?, Arena::new(&elsewhere, 64)?);
    let local = Arena::new(&pair.pd, 8)?;
    new.write(0, &pattern(1, 64));
    let mut mr = old.register(&elsewhere, 0..64, None, LOCAL_WRITE)?;
    let (start, length) = new.part(0..64);
    let change = MrChange::new().memory(start, length).pd(&pair.pd).access(REMOTE_READ);
    if let Err(failed) = rereg(&mut mr, &change) {
        assert_eq!(failed.error.errno, Errno::OPNOTSUPP, "{failed}");
        // A provider cannot know how far the kernel came, so it says that it does not.
        assert!(is_rxe()? && failed.region == RegionState::Unusable, "{failed}");
        mr.close()?;
        return skip("rxe cannot change the memory of a region");
    }
    allowed(&mut pair, read(mr.addr(), mr.rkey()), local.sge(0..8))?;
    assert_eq!(local.read(0..8), pattern(1, 8));
    refused(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..8))
}

fn mr_change_that_is_refused_leaves_the_region<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (arena, local) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 8)?);
    let mut mr = arena.register(&pair.pd, 0..64, None, ALL)?;
    let unmapped = core::ptr::without_provenance_mut(0x1000);
    let changes = [
        MrChange::new(),
        MrChange::new().access(REMOTE_WRITE),
        MrChange::new().memory(unmapped, 4096),
        MrChange::new().access(AccessFlags::from_bits_retain(1 << 18)),
    ];
    for change in changes {
        let failed = rereg(&mut mr, &change).unwrap_err();
        let expected = [Errno::INVAL, Errno::FAULT, Errno::OPNOTSUPP];
        assert!(expected.contains(&failed.error.errno), "{change:?}: {failed}");
        assert_eq!(failed.region, RegionState::Unchanged, "{change:?}: {failed}");
        local.write(0, &pattern(1, 8));
        allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..8))?;
        assert_eq!(arena.read(0..8), pattern(1, 8));
        arena.write(0, &[0; 8]);
    }
    Ok(())
}

/// Returns a null region, or skips the case.
fn null<P: Provider>(pd: &Pd<P>) -> CaseResult<Mr<P>> {
    match pd.alloc_null_mr() {
        Ok(mr) => Ok(mr),
        Err(error) => {
            lacks(&error, "alloc_null_mr", "the device has no null regions")?;
            fail(error)
        }
    }
}

fn mr_null_reads_as_zeros_and_discards_writes<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let null = null(&pair.pd)?;
    let arena = Arena::new(&pair.pd, 5000)?;
    arena.write(0, &pattern(1, 5000));
    for offset in [0, 12_345, usize::MAX - 10_000] {
        // Zeros are sent and written; what is received, read or the result of an atomic vanishes.
        exchange(&mut pair, null.sge(offset..offset + 5000), arena.sge(0..5000))?;
        assert_eq!(arena.read(0..5000), [0; 5000]);
        arena.write(0, &pattern(2, 5000));
        exchange(&mut pair, arena.sge(0..5000), null.sge(offset..offset + 5000))?;
        allowed(&mut pair, read(arena.addr(), arena.rkey()), null.sge(offset..offset + 5000))?;
        allowed(&mut pair, faa(arena.addr(), arena.rkey()), null.sge(offset..offset + 8))?;
        assert_eq!(arena.read(8..5000), pattern(2, 5000)[8..]);
        allowed(&mut pair, write(arena.addr(), arena.rkey()), null.sge(offset..offset + 5000))?;
        assert_eq!(arena.read(0..5000), [0; 5000]);
    }
    Ok(null.close()?)
}

fn mr_null_skips_a_part_of_a_message<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let null = null(&pair.pd)?;
    let (from, into) = (Arena::new(&pair.pd, 3000)?, Arena::new(&pair.pd, 1000)?);
    from.write(0, &pattern(1, 3000));
    let list = [into.sge(0..500), null.sge(0..2000), into.sge(500..1000)];
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &list }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from.sge(0..3000)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len, 3000);
    let sent = pattern(1, 3000);
    assert_eq!((into.read(0..500), into.read(500..1000)), (sent[..500].to_vec(), sent[2500..].to_vec()));
    Ok(())
}

fn mr_null_is_closed_to_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    for op in [write, read, cas, faa] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let null = null(&pair.pd)?;
        let local = Arena::new(&pair.pd, 8)?;
        local.write(0, &[0xff; 8]);
        refused(&mut pair, op(0, null.rkey()), local.sge(0..8))?;
        assert_eq!(local.number(0), u64::MAX);
    }
    Ok(())
}

fn mr_imported_by_its_handle_has_the_same_keys<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let original = arena.register(&pair.pd, 0..64, None, ALL)?;
    let imported = match pair.pd.import_mr(original.handle()) {
        Ok(imported) => imported,
        Err(error) => return lacks(&error, "import_mr", "the provider or the kernel imports no regions"),
    };
    assert_eq!((imported.lkey(), imported.rkey()), (original.lkey(), original.rkey()));
    // Kernels before 5.13 do not fill them in for rxe.
    assert!([(64, original.addr()), (0, 0)].contains(&(imported.length(), imported.addr())), "{imported:?}");
    imported.close()?;
    arena.write(0, &pattern(1, 8));
    exchange(&mut pair, original.sge(0..8), arena.sge(8..16))?;
    original.close()?;
    let error = pair.pd.import_mr(u32::MAX >> 8).map(drop).unwrap_err();
    assert!([Errno::NOENT, Errno::INVAL].contains(&error.errno), "{error}");
    Ok(())
}

fn mr_of_a_dma_buf_is_refused_where_there_are_none<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    // No dma-buf, which a device that takes some refuses for another reason.
    let (read, _write) = std::io::pipe()?;
    let error = reg_mr_ex(&pd, &MrInit::dmabuf(read.as_fd(), 0, 4096, LOCAL_WRITE)).map(drop).unwrap_err();
    assert_eq!(error.errno, Errno::OPNOTSUPP, "{error}");
    assert!(["reg_mr", "reg_dmabuf_mr"].contains(&error.verb), "{error}");
    Ok(())
}

fn dm_and_dma_handles_are_refused_where_there_are_none<P: Provider>(context: &Context<P>) -> CaseResult {
    let error = context.alloc_dm(&DmAttr { length: 4096, log_align: 0 }).map(drop).unwrap_err();
    assert_eq!((error.verb, error.errno), ("alloc_dm", Errno::OPNOTSUPP), "{error}");
    let error = context.alloc_dmah(&DmahAttr { ph: Some(1), ..DmahAttr::default() }).map(drop).unwrap_err();
    assert_eq!((error.verb, error.errno), ("alloc_dmah", Errno::OPNOTSUPP), "{error}");
    let error = context.import_dm(1).map(drop).unwrap_err();
    assert_eq!((error.verb, error.errno), ("import_dm", Errno::OPNOTSUPP), "{error}");
    Ok(())
}

/// Skips a case that the device lacks a verb for, if it says so as it should.
fn lacks(error: &Error, verb: &str, why: &str) -> CaseResult {
    assert_eq!((error.verb, error.errno), (verb, Errno::OPNOTSUPP), "{error}");
    skip(why)
}
