//! Other kinds of regions: null, imported and dma-buf regions.

use std::os::fd::AsFd;

use verbs::{Context, DmAttr, DmahAttr, Errno, Mr, MrInit, Pd, Provider, RecvWr, SendOp, WcOpcode};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Pair, Shape, is_mlx5, pattern, post_recv, post_send, reg_mr_ex, signalled, wait_for,
};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::super::SUITE;
use super::requests::{ALL, LOCAL_WRITE, allowed, cas, exchange, faa, lacks, read, refused, write};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        mr_null_reads_as_zeros_and_discards_writes,
        mr_null_skips_a_part_of_a_message,
        mr_null_is_closed_to_peers,
        mr_imported_by_its_handle_has_the_same_keys,
        mr_of_a_dma_buf_is_refused_where_there_are_none,
        dm_and_dma_handles_are_refused_where_there_are_none,
    )
}

/// Returns a null region or skips the case.
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
        // A null region reads as zeros; received data, read data and atomic results vanish.
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
    // Before Linux 5.13, both are 0 on rxe.
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
    // A pipe is not a dma-buf. A device with dma-buf support fails with a different errno.
    let (read, _write) = std::io::pipe()?;
    let error = reg_mr_ex(&pd, &MrInit::dmabuf(read.as_fd(), 0, 4096, LOCAL_WRITE)).map(drop).unwrap_err();
    let errno = if is_mlx5()? { Errno::INVAL } else { Errno::OPNOTSUPP };
    assert_eq!(error.errno, errno, "{error}");
    assert!(["reg_mr", "reg_dmabuf_mr"].contains(&error.verb), "{error}");
    Ok(())
}

fn dm_and_dma_handles_are_refused_where_there_are_none<P: Provider>(context: &Context<P>) -> CaseResult {
    let has_dm = context.query_device_ex()?.max_dm_size != 0;
    if !has_dm {
        let error = context.alloc_dm(&DmAttr { length: 4096, log_align: 0 }).map(drop).unwrap_err();
        assert_eq!((error.verb, error.errno), ("alloc_dm", Errno::OPNOTSUPP), "{error}");
    }
    let error = context.alloc_dmah(&DmahAttr { ph: Some(1), ..DmahAttr::default() }).map(drop).unwrap_err();
    assert_eq!((error.verb, error.errno), ("alloc_dmah", Errno::OPNOTSUPP), "{error}");
    let error = context.import_dm(1).map(drop).unwrap_err();
    let errno = if has_dm && is_mlx5()? { Errno::NOENT } else { Errno::OPNOTSUPP };
    assert_eq!((error.verb, error.errno), ("import_dm", errno), "{error}");
    Ok(())
}
