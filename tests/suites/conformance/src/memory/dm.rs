//! Device memory: its size, copies and regions in it.
//!
//! Lengths and offsets are multiples of 64 bytes, which every known device supports.

use verbs::{AccessFlags, Context, Dm, DmAttr, Errno, Provider, RecvWr, SendOp, WcOpcode};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{Arena, Pair, Shape, pattern, post_recv, post_send, signalled, wait_for};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::super::SUITE;
use super::requests::{ALL, LOCAL_WRITE, allowed, faa, lacks, read, refused, write};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        dm_keeps_what_is_copied_into_it,
        dm_smaller_than_a_page_is_the_memory_of_its_region,
        dm_imported_by_its_handle_is_the_same_memory,
        dm_is_limited,
        dm_copies_outside_of_it_are_refused,
        dm_region_sends_and_receives,
        dm_region_is_accessed_by_peers_from_zero_on,
        dm_region_is_closed_to_peers_without_rights,
        dm_region_that_cannot_be_is_refused,
        dm_with_a_region_stays,
    )
}

const LEN: usize = 4096;

/// Allocates device memory, or skips the case.
fn dm<P: Provider>(context: &Context<P>) -> CaseResult<Dm<P>> {
    if context.query_device_ex()?.max_dm_size == 0 {
        return skip("the device has no memory of its own");
    }
    Ok(context.alloc_dm(&DmAttr { length: LEN as u64, log_align: 6 })?)
}

fn contents<P: Provider>(dm: &Dm<P>, len: usize) -> CaseResult<Vec<u8>> {
    let mut bytes = vec![0xaa; len];
    dm.copy_from(0, &mut bytes)?;
    Ok(bytes)
}

fn dm_keeps_what_is_copied_into_it<P: Provider>(context: &Context<P>) -> CaseResult {
    let dm = dm(context)?;
    assert_eq!(dm.length(), LEN as u64);
    dm.copy_to(0, &pattern(1, LEN))?;
    dm.copy_to(128, &pattern(2, 64))?;
    let bytes = contents(&dm, LEN)?;
    let first = pattern(1, LEN);
    assert_eq!((&bytes[..128], &bytes[128..192]), (&first[..128], &pattern(2, 64)[..]));
    assert_eq!(bytes[192..], first[192..]);
    Ok(dm.close()?)
}

fn dm_smaller_than_a_page_is_the_memory_of_its_region<P: Provider>(context: &Context<P>) -> CaseResult {
    dm(context)?.close()?;
    let mut pair = Pair::new(context, &Shape::default())?;
    let local = Arena::new(&pair.pd, 128)?;
    // A small allocation may begin anywhere in a page.
    let several: Vec<_> = [64, 128, 192]
        .iter()
        .map(|&length| context.alloc_dm(&DmAttr { length, log_align: 6 }))
        .collect::<Result<_, _>>()?;
    for (seed, dm) in (1..).zip(&several) {
        dm.copy_to(0, &pattern(seed, 64))?;
    }
    for (seed, dm) in (1..).zip(&several) {
        let target = pair.pd.reg_dm_mr(dm, 0, 64, ALL)?;
        allowed(&mut pair, read(0, target.rkey()), local.sge(0..64))?;
        assert!(local.read(0..64) == pattern(seed, 64), "the read of {} bytes was garbled", dm.length());
        local.write(64, &pattern(seed + 10, 64));
        allowed(&mut pair, write(0, target.rkey()), local.sge(64..128))?;
        assert!(contents(dm, 64)? == pattern(seed + 10, 64), "the write was garbled");
    }
    Ok(())
}

fn dm_imported_by_its_handle_is_the_same_memory<P: Provider>(context: &Context<P>) -> CaseResult {
    dm(context)?.close()?;
    let dm = context.alloc_dm(&DmAttr { length: 256, log_align: 6 })?;
    let imported = match context.import_dm(dm.handle()) {
        Ok(imported) => imported,
        Err(error) => return lacks(&error, "import_dm", "the provider or the kernel imports no memory"),
    };
    assert_eq!((imported.handle(), imported.length()), (dm.handle(), 256));
    dm.copy_to(0, &pattern(1, 256))?;
    assert!(contents(&imported, 256)? == pattern(1, 256));
    imported.copy_to(64, &pattern(2, 64))?;
    imported.close()?;
    assert!(contents(&dm, 256)?[64..128] == pattern(2, 64));
    Ok(dm.close()?)
}

fn dm_is_limited<P: Provider>(context: &Context<P>) -> CaseResult {
    dm(context)?.close()?;
    let most = context.query_device_ex()?.max_dm_size;
    for length in [most + 1, u64::MAX] {
        let error = context.alloc_dm(&DmAttr { length, log_align: 0 }).map(drop).unwrap_err();
        assert!([Errno::INVAL, Errno::NOMEM].contains(&error.errno), "{error}");
    }
    Ok(())
}

fn dm_copies_outside_of_it_are_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let dm = dm(context)?;
    for (offset, length) in [(LEN as u64, 64), (0, LEN + 64), (u64::MAX - 63, 64)] {
        let mut bytes = vec![1; length];
        for result in [dm.copy_to(offset, &bytes), dm.copy_from(offset, &mut bytes)] {
            assert_eq!(result.unwrap_err().errno, Errno::INVAL);
        }
    }
    Ok(())
}

fn dm_region_sends_and_receives<P: Provider>(context: &Context<P>) -> CaseResult {
    let (from, into) = (dm(context)?, dm(context)?);
    let mut pair = Pair::new(context, &Shape::default())?;
    let source = pair.pd.reg_dm_mr(&from, 64, LEN - 64, AccessFlags::empty())?;
    let target = pair.pd.reg_dm_mr(&into, 0, LEN, LOCAL_WRITE)?;
    from.copy_to(0, &pattern(1, LEN))?;
    into.copy_to(0, &vec![0; LEN])?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[target.sge(0..3000)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[source.sge(64..3064)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    let received = contents(&into, LEN)?;
    assert!(received[..3000] == pattern(1, LEN)[128..3128], "the message was garbled");
    assert!(received[3000..].iter().all(|byte| *byte == 0), "bytes behind the message");
    Ok(())
}

fn dm_region_is_accessed_by_peers_from_zero_on<P: Provider>(context: &Context<P>) -> CaseResult {
    let dm = dm(context)?;
    let mut pair = Pair::new(context, &Shape::default())?;
    let target = pair.pd.reg_dm_mr(&dm, 64, 1024, ALL)?;
    assert_eq!(target.addr(), 0);
    let local = Arena::new(&pair.pd, 1024)?;
    dm.copy_to(0, &vec![0; LEN])?;
    local.write(0, &pattern(1, 1024));
    allowed(&mut pair, write(0, target.rkey()), local.sge(0..1024))?;
    let written = contents(&dm, LEN)?;
    assert!(written[64..1088] == pattern(1, 1024), "the write was garbled");
    assert!(written[..64].iter().chain(&written[1088..]).all(|byte| *byte == 0), "bytes beside the write");
    allowed(&mut pair, read(64, target.rkey()), local.sge(0..512))?;
    assert!(local.read(0..512) == pattern(1, 1024)[64..576], "the read was garbled");
    allowed(&mut pair, faa(128, target.rkey()), local.sge(0..8))?;
    let before = u64::from_ne_bytes(pattern(1, 1024)[128..136].try_into().expect("8 bytes"));
    let after = u64::from_ne_bytes(contents(&dm, LEN)?[192..200].try_into().expect("8 bytes"));
    assert_eq!((local.number(0), after), (before, before.wrapping_add(1)));
    refused(&mut pair, write(1020, target.rkey()), local.sge(0..8))
}

fn dm_region_is_closed_to_peers_without_rights<P: Provider>(context: &Context<P>) -> CaseResult {
    let dm = dm(context)?;
    dm.copy_to(0, &pattern(1, LEN))?;
    for op in [write, read, faa] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let target = pair.pd.reg_dm_mr(&dm, 0, LEN, LOCAL_WRITE)?;
        let local = Arena::new(&pair.pd, 8)?;
        local.write(0, &[0xff; 8]);
        refused(&mut pair, op(0, target.rkey()), local.sge(0..8))?;
        assert_eq!(local.number(0), u64::MAX);
    }
    assert!(contents(&dm, LEN)? == pattern(1, LEN));
    Ok(())
}

fn dm_region_that_cannot_be_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let (dm, pd) = (dm(context)?, context.alloc_pd()?);
    for (offset, length) in [(0, LEN + 64), (64, LEN), (LEN as u64 + 64, 64), (u64::MAX - 63, 64)] {
        let error = pd.reg_dm_mr(&dm, offset, length, LOCAL_WRITE).map(drop).unwrap_err();
        assert_eq!((error.verb, error.errno), ("reg_dm_mr", Errno::INVAL), "{error}");
    }
    Ok(())
}

fn dm_with_a_region_stays<P: Provider>(context: &Context<P>) -> CaseResult {
    let (dm, pd) = (dm(context)?, context.alloc_pd()?);
    let mr = pd.reg_dm_mr(&dm, 0, LEN, LOCAL_WRITE)?;
    let dm = match dm.close() {
        Ok(()) => return fail("device memory with a region was freed"),
        Err(failed) => {
            assert_eq!(failed.error.errno, Errno::BUSY, "{}", failed.error);
            failed.handle
        }
    };
    dm.copy_to(0, &pattern(1, 64))?;
    mr.close()?;
    Ok(dm.close()?)
}
