//! Changes to a region's rights, domain or memory.

use verbs::{AccessFlags, Context, Errno, MrChange, Provider, RegionState};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{Arena, Pair, Shape, is_mlx5, is_rxe, pattern, rereg};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::super::SUITE;
use super::requests::{
    ALL, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, allowed, exchange, in_page, in_use, read, receive_refused,
    refused, write,
};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        mr_change_of_rights_grants_and_revokes,
        mr_change_of_domain_moves_the_region,
        mr_change_of_memory_moves_the_region,
        mr_change_of_everything_at_once,
        mr_change_that_is_refused_leaves_the_region,
    )
}

/// Checks that a region change was rejected as unsupported and left the region unchanged.
///
/// # Errors
/// Fails unless the device is rxe.
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
    // Local writes are revoked too.
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
    // The region keeps its new domain in use and no longer its old domain.
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
        // The region is unchanged.
        allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..64))?;
        assert_eq!((mr.length(), old.read(0..64)), (64, pattern(1, 64)));
        return skip("rxe cannot change the memory of a region");
    }
    assert_eq!((mr.addr(), mr.length()), (start.addr() as u64, 128));
    allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..128))?;
    assert_eq!((new.read(64..192), old.read(0..64)), (pattern(1, 128), vec![0; 64]));
    assert_eq!((new.read(0..64), new.read(192..256)), (vec![0; 64], vec![0; 64]));
    // At an address that the program chooses.
    let iova = (1 << 40) | (start.addr() as u64 & in_page());
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
        // A provider cannot determine how far the kernel got, so it reports `Unusable`.
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
    let last = changes.len() - 1;
    for (at, change) in changes.into_iter().enumerate() {
        let failed = rereg(&mut mr, &change).unwrap_err();
        let expected = [Errno::INVAL, Errno::FAULT, Errno::OPNOTSUPP];
        assert!(expected.contains(&failed.error.errno), "{change:?}: {failed}");
        if is_mlx5()? && at == last {
            // The provider cannot distinguish this rejection from a failure in a later step.
            assert_eq!(failed.region, RegionState::Unusable, "{failed}");
            break;
        }
        assert_eq!(failed.region, RegionState::Unchanged, "{change:?}: {failed}");
        local.write(0, &pattern(1, 8));
        allowed(&mut pair, write(mr.addr(), mr.rkey()), local.sge(0..8))?;
        assert_eq!(arena.read(0..8), pattern(1, 8));
        arena.write(0, &[0; 8]);
    }
    Ok(())
}
