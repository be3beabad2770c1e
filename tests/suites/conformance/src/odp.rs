//! On-demand paged regions, whose pages are not pinned, and advice about their pages.
//!
//! In each page of such a region, rxe copies to and from the start and ignores the offset (in Linux
//! 6.15 `drivers/infiniband/sw/rxe/rxe_odp.c`, `__rxe_odp_mr_copy`; also seen on 7.2). On rxe, the
//! cases therefore use one packet at the start of a page. No two regions share a page.

use verbs::{
    AccessFlags, Advice, AdviseFlags, Context, Errno, OdpGeneralCaps, OdpTransportCaps, Provider, RecvWr,
    SendOp, Sge, WcOpcode,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Pair, Shape, is_rxe, pattern, post_recv, post_send, signalled, wait_for, wait_remote_access_error,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        odp_regions_are_registered_exactly_where_the_device_has_them,
        odp_region_sends_and_receives,
        odp_region_is_written_and_read_by_peers,
        odp_region_takes_atomics,
        odp_region_keeps_its_bounds_and_rights,
        odp_region_of_untouched_pages_reads_as_zeros,
        odp_advice_is_taken_for_each_kind_of_prefetch,
        odp_advice_about_pinned_memory_or_of_an_unknown_kind_is_refused,
        odp_region_of_all_memory_is_registered_where_the_device_has_it,
    )
}

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// The length of a region in bytes, large enough for several pages.
const LEN: usize = 40_000;

/// Returns the length of a message in bytes: on rxe, a single packet.
fn message() -> CaseResult<usize> {
    Ok(if is_rxe()? { 1024 } else { LEN })
}

/// Skips a case if the device lacks on-demand paging, or lacks it for this RC operation.
fn needs<P: Provider>(context: &Context<P>, transport: OdpTransportCaps) -> CaseResult {
    let odp = context.query_device_ex()?.odp_caps;
    if !odp.general_caps.contains(OdpGeneralCaps::SUPPORT) {
        return skip("the device has no on-demand paging");
    }
    let lacking = transport - odp.rc_odp_caps;
    if lacking.is_empty() {
        Ok(())
    } else {
        skip(format_args!("the device pages on demand without {lacking:?}"))
    }
}

fn paged<P: Provider>(pair: &Pair<P>, access: AccessFlags) -> CaseResult<Arena<P>> {
    Arena::of_pages(&pair.pd, LEN, access | AccessFlags::ON_DEMAND)
}

fn odp_regions_are_registered_exactly_where_the_device_has_them<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let odp = context.query_device_ex()?.odp_caps;
    let pd = context.alloc_pd()?;
    let arena = Arena::new(&pd, LEN)?;
    let registered = arena.register(&pd, 0..LEN, None, ALL | AccessFlags::ON_DEMAND);
    match (registered, odp.general_caps.contains(OdpGeneralCaps::SUPPORT)) {
        (Ok(mr), true) => Ok(mr.close()?),
        (Err(error), false) => {
            assert!([Errno::OPNOTSUPP, Errno::INVAL].contains(&error.errno), "{error}");
            Ok(())
        }
        (result, has) => fail(format_args!("the device has it: {has}, but {result:?}")),
    }
}

fn odp_region_sends_and_receives<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, OdpTransportCaps::SEND | OdpTransportCaps::RECV)?;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (paged(&pair, AccessFlags::empty())?, paged(&pair, AccessFlags::LOCAL_WRITE)?);
    let len = message()?;
    from.write(0, &pattern(1, len));
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..len)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from.sge(0..len)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len as usize, len);
    assert!(into.read(0..len) == pattern(1, len), "the message was garbled");
    assert!(into.read(len..LEN) == vec![0; LEN - len], "bytes behind the message");
    Ok(())
}

fn odp_region_is_written_and_read_by_peers<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, OdpTransportCaps::WRITE | OdpTransportCaps::READ)?;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (target, local) = (paged(&pair, ALL)?, paged(&pair, ALL)?);
    let (remote_addr, rkey) = (target.addr(), target.rkey());
    let len = message()?;
    local.write(0, &pattern(1, len));
    let write = SendOp::RdmaWrite { remote_addr, rkey };
    post_send(&mut pair.a.qp, &[signalled(1, write, &[local.sge(0..len)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
    assert!(target.read(0..len) == pattern(1, len), "the write was garbled");
    assert!(target.read(len..LEN) == vec![0; LEN - len], "bytes behind the write");
    local.write(0, &vec![0; len]);
    let read = SendOp::RdmaRead { remote_addr, rkey };
    post_send(&mut pair.a.qp, &[signalled(2, read, &[local.sge(0..len)])])?;
    wait_for(&mut pair.a.cq, 2, WcOpcode::RDMA_READ)?;
    assert!(local.read(0..len) == pattern(1, len), "the read was garbled");
    Ok(())
}

fn odp_region_takes_atomics<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, OdpTransportCaps::ATOMIC)?;
    let mut pair = Pair::new(context, &Shape::default())?;
    // Each result is at the start of a page for any page size, because rxe always writes it there.
    let [target, local, other] = [paged(&pair, ALL)?, paged(&pair, ALL)?, paged(&pair, ALL)?];
    let (remote_addr, rkey) = (target.addr() + 8192, target.rkey());
    let add = SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 5 };
    post_send(&mut pair.a.qp, &[signalled(1, add, &[local.sge(0..8)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::FETCH_ADD)?;
    let swap = SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 5, swap: 9 };
    post_send(&mut pair.a.qp, &[signalled(2, swap, &[other.sge(0..8)])])?;
    wait_for(&mut pair.a.cq, 2, WcOpcode::COMP_SWAP)?;
    assert_eq!((target.number(8192), local.number(0), other.number(0)), (9, 0, 5));
    Ok(())
}

fn odp_region_keeps_its_bounds_and_rights<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, OdpTransportCaps::WRITE)?;
    for (access, beyond) in [(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ, 0), (ALL, 1)] {
        let mut pair = Pair::new(context, &Shape::default())?;
        let (target, local) = (paged(&pair, access)?, Arena::new(&pair.pd, 8)?);
        local.write(0, &[0xff; 8]);
        let remote_addr = target.addr() + LEN as u64 - 8 + beyond;
        let op = SendOp::RdmaWrite { remote_addr, rkey: target.rkey() };
        post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..8)])])?;
        wait_remote_access_error(&mut pair.a.cq, 1)?;
        assert!(target.read(0..LEN) == vec![0; LEN]);
    }
    Ok(())
}

fn odp_region_of_untouched_pages_reads_as_zeros<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, OdpTransportCaps::READ)?;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (target, local) = (paged(&pair, ALL)?, Arena::new(&pair.pd, LEN)?);
    let len = message()?;
    local.write(0, &pattern(1, len));
    let op = SendOp::RdmaRead { remote_addr: target.addr() + 8192, rkey: target.rkey() };
    let len = len.min(LEN - 8192);
    post_send(&mut pair.a.qp, &[signalled(1, op, &[local.sge(0..len)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_READ)?;
    assert!(local.read(0..len) == vec![0; len]);
    Ok(())
}

fn odp_advice_is_taken_for_each_kind_of_prefetch<P: Provider>(context: &Context<P>) -> CaseResult {
    needs(context, OdpTransportCaps::READ)?;
    let pair = Pair::new(context, &Shape::default())?;
    let target = paged(&pair, ALL)?;
    let sges = [target.sge(0..LEN / 2), target.sge(LEN / 2..LEN)];
    for flags in [AdviseFlags::FLUSH, AdviseFlags::empty()] {
        for &advice in Advice::NAMED {
            match pair.pd.advise_mr(advice, flags, &sges) {
                Ok(()) => {}
                Err(error) if error.errno == Errno::OPNOTSUPP => {
                    return skip("the device takes no advice (rxe: since Linux 6.17)");
                }
                // This advice fails if pages are absent.
                Err(error) if advice == Advice::PREFETCH_NO_FAULT && error.errno == Errno::FAULT => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn odp_advice_about_pinned_memory_or_of_an_unknown_kind_is_refused<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let pair = Pair::new(context, &Shape::default())?;
    let pinned = Arena::new(&pair.pd, LEN)?;
    let advise = |advice, sge: Sge| pair.pd.advise_mr(advice, AdviseFlags::FLUSH, &[sge]);
    let pinned = advise(Advice::PREFETCH, pinned.sge(0..LEN)).unwrap_err();
    let unknown = advise(Advice(77), Sge { addr: 0, length: 8, lkey: 0 }).unwrap_err();
    let refused_with_odp = [Errno::INVAL, Errno::NOENT, Errno::PERM, Errno::FAULT];
    let odp = context.query_device_ex()?.odp_caps.general_caps.contains(OdpGeneralCaps::SUPPORT);
    for error in [&pinned, &unknown] {
        assert_eq!(error.verb, "advise_mr");
        let is_refused = refused_with_odp.contains(&error.errno) && (odp || is_rxe()?);
        assert!(error.errno == Errno::OPNOTSUPP || is_refused, "{error}");
    }
    Ok(())
}

fn odp_region_of_all_memory_is_registered_where_the_device_has_it<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let odp = context.query_device_ex()?.odp_caps;
    let pd = context.alloc_pd()?;
    let init = verbs::MrInit::new(core::ptr::null_mut(), usize::MAX, ALL | AccessFlags::ON_DEMAND).iova(0);
    match (verbs_fixtures::fabric::reg_mr_ex(&pd, &init), odp.general_caps.contains(OdpGeneralCaps::IMPLICIT))
    {
        (Ok(mr), true) => Ok(mr.close()?),
        (Err(_), false) => skip("the device pages no memory as a whole"),
        (result, has) => fail(format_args!("the device has it: {has}, but {result:?}")),
    }
}
