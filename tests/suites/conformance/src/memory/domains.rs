//! Protection domains: access to memory in a domain, the objects that keep a domain in use, parent
//! domains and imports.

use std::collections::BTreeSet;

use verbs::{
    AhAttr, Cause, ConnectAttr, Context, CqInit, HandleError, ParentDomainInit, Pd, Provider, QpInit, QpType,
    RecvWr, SendOp, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, PORT, Pair, Shape, in_error, pattern, post_recv, post_send, signalled, wait_local_key_error,
    wait_one,
};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::super::SUITE;
use super::requests::{cas, exchange, faa, in_use, lacks, read, receive_refused, refused, write};

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
    )
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
    let init = ParentDomainInit { td: Some(&td), ..ParentDomainInit::default() };
    let parent = pd.alloc_parent_domain(&init)?;
    let Err(HandleError { handle: td, error }) = td.close() else { return fail("the thread domain is gone") };
    assert!(matches!(error.cause, Cause::InUse { by: "parent domains" }), "{error}");
    // A queue pair in the parent domain can use memory in the domain, and vice versa.
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
            let completed = verbs_fixtures::fabric::next_completed(&mut cq)?;
            if completed.opcode.is_recv() {
                assert_eq!(completed.into_buf()?[..], pattern(1, 8));
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
    // Closing the import leaves the original unchanged.
    exchange(&mut pair, into.sge(0..8), into.sge(0..8))
}
