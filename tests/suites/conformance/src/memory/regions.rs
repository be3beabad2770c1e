//! Memory regions: each right against each operation, bounds, addresses, overlaps, keys.

use std::collections::BTreeSet;

use verbs::{AccessFlags, Cause, Context, Errno, Mr, MrInit, Provider, SendOp, Sge, WcStatus};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Pair, Shape, in_error, is_rxe, is_soft, pattern, post_send, reg_mr_ex, rxe_is_before, signalled,
    wait_local_key_error, wait_one,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::super::SUITE;
use super::requests::{
    ALL, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, allowed, cas, exchange, faa, in_page, read,
    receive_refused, refused, write,
};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
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
    )
}

/// Returns every combination of the four rights.
fn combinations() -> impl Iterator<Item = AccessFlags> {
    (0..=ALL.bits()).map(AccessFlags::from_bits_retain)
}

/// Returns the legal combinations: remote writes and atomics require local writes.
fn legal() -> impl Iterator<Item = AccessFlags> {
    combinations().filter(|access| {
        access.contains(LOCAL_WRITE) || !access.intersects(REMOTE_WRITE.union(REMOTE_ATOMIC))
    })
}

/// Checks on new connections that, of the legal combinations, exactly those with `needed` allow the
/// operation.
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
            allowed(&mut pair, op, sge).map_err(|stop| stop.context(format_args!("{access:?}")))?;
            let is_read = matches!(op, SendOp::RdmaRead { .. });
            assert_eq!(target.number(16) == 0, is_read, "{access:?}");
            assert_eq!(local.number(0) == u64::MAX, matches!(op, SendOp::RdmaWrite { .. }), "{access:?}");
        } else {
            refused(&mut pair, op, sge).map_err(|stop| stop.context(format_args!("{access:?}")))?;
            assert_eq!(target.read(0..64), [0; 64], "{access:?}: {op:?} changed memory");
            assert_eq!(local.number(0), u64::MAX, "{access:?}: {op:?} read memory");
        }
        assert_eq!((target.read(0..16), target.read(24..64)), (vec![0; 16], vec![0; 40]));
    }
    Ok(())
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
                .map_err(|stop| stop.context(format_args!("{access:?}")))?;
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
            wait_local_key_error(&mut pair.a.cq, 1)
                .map_err(|stop| stop.context(format_args!("{access:?}")))?;
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
        // These kernels pin file pages for writing, regardless of the access rights.
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
                .map_err(|stop| stop.context(format_args!("{length} bytes at {offset}")))?;
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
            .map_err(|stop| stop.context(format_args!("{length} bytes at {offset}")))?;
        assert_eq!(around.read(0..192), [0; 192]);
        let mut pair = Pair::new(context, &Shape::default())?;
        let around = Arena::new(&pair.pd, 192)?;
        let mr = around.register(&pair.pd, 64..128, None, ALL)?;
        let bad = Sge { addr: mr.addr().wrapping_add_signed(offset), length, lkey: mr.lkey() };
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[bad])])?;
        wait_local_key_error(&mut pair.a.cq, 1)
            .map_err(|stop| stop.context(format_args!("{length} bytes at {offset} sent")))?;
    }
    Ok(())
}

/// Accesses an arena through its region's address, from the peer and from the owner. The kernel
/// requires this address to have the same offset within a page as the memory.
fn addressed_by<P: Provider>(pair: &mut Pair<P>, arena: &Arena<P>, mr: &Mr<P>) -> CaseResult {
    let local = Arena::new(&pair.pd, 8)?;
    local.write(0, &pattern(1, 8));
    allowed(pair, write(mr.addr() + 8, mr.rkey()), local.sge(0..8))?;
    assert_eq!(arena.read(8..16), pattern(1, 8));
    // The owner also uses the region's addresses.
    exchange(pair, mr.sge(8..16), mr.sge(16..24))?;
    assert_eq!(arena.read(16..24), pattern(1, 8));
    refused(pair, write(arena.addr() + 8, mr.rkey()), local.sge(0..8))
}

fn mr_is_addressed_by_its_iova_alone<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let iova = (1 << 40) | (arena.addr() & in_page());
    let mr = arena.register(&pair.pd, 0..64, Some(iova), ALL)?;
    assert_eq!((mr.addr(), mr.length()), (iova, 64));
    addressed_by(&mut pair, &arena, &mr)
}

fn mr_with_iova_is_registered_in_the_extended_form<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let iova = (1 << 40) | (arena.addr() & in_page());
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
    // The kernel requires an address at the same offset within a page.
    let arena = Arena::of_pages(&pair.pd, 64, ALL)?;
    let mr = arena.register(&pair.pd, 0..64, None, ALL | AccessFlags::ZERO_BASED)?;
    assert_eq!(mr.addr(), 0);
    addressed_by(&mut pair, &arena, &mr)
}

fn mr_of_no_bytes_has_no_byte_to_access<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let mr = match arena.register(&pair.pd, 8..8, None, ALL) {
        Ok(mr) => mr,
        Err(error) if !is_soft()? => {
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
    // The common part was written twice and the rest of the first region once.
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
