//! Thread domains, parent domains, device memory, DMA handles and XRC domains: their users and the
//! order of their destruction.

use crate::common::{Kind, World, cause};
use verbs::{
    AccessFlags, Cause, Context, CqInit, Dm, DmAttr, DmahAttr, Errno, HandleError, MrInit, ParentDomainInit,
    Pd, Provider, QpInit, QpType, SrqInit, Xrcd, XrcdInit, state::Reset,
};

both! {
    a_thread_domain_stays_while_a_parent_domain_uses_it
    a_parent_domain_keeps_its_domain_and_is_kept_by_its_objects
    a_completion_queue_keeps_its_parent_domain
    device_memory_stays_while_a_region_covers_it
    bytes_outside_of_device_memory_are_refused
    a_dma_handle_stays_while_a_region_uses_it
    an_xrc_domain_stays_while_its_queues_use_it
    what_the_kernel_refuses_to_destroy_keeps_its_context
}

fn dm<P: Provider>(context: &Context<P>) -> Dm<P> {
    context.alloc_dm(&DmAttr { length: 64, log_align: 0 }).unwrap()
}

fn xrcd<P: Provider>(context: &Context<P>) -> Xrcd<P> {
    context.open_xrcd(&XrcdInit::default()).unwrap()
}

fn a_thread_domain_stays_while_a_parent_domain_uses_it<P: Provider>(world: &World, context: Context<P>) {
    for drops in [true, false] {
        let (pd, td) = (context.alloc_pd().unwrap(), context.alloc_td().unwrap());
        let parent = pd
            .alloc_parent_domain(&ParentDomainInit { td: Some(&td), ..ParentDomainInit::default() })
            .unwrap();
        let refused = td.close().unwrap_err();
        assert_eq!(refused.error.errno, Errno::BUSY);
        assert_eq!(refused.error.cause, Cause::InUse { by: "parent domains" });
        world.state().destroyed.clear();
        if drops {
            drop((refused, pd));
            assert_eq!(world.state().destroyed, [], "the parent domain keeps both");
            drop(parent);
        } else {
            parent.close().unwrap();
            refused.handle.close().unwrap();
            pd.close().unwrap();
        }
        let kinds: Vec<_> = world.state().destroyed.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds[0], Kind::Pd, "the parent domain is first");
        assert_eq!(kinds.len(), 3);
    }
    drop(context);
    world.assert_empty();
}

fn a_parent_domain_keeps_its_domain_and_is_kept_by_its_objects<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let parent = pd.alloc_parent_domain(&ParentDomainInit::default()).unwrap();
    let refused = pd.close().unwrap_err();
    assert_eq!(refused.error.cause, Cause::InUse { by: "parent domains" });
    let buf = parent.alloc_buf(8).unwrap();
    assert_eq!(cause(parent.clone().close()), Cause::InUse { by: "memory regions" });
    drop((refused, parent, context));
    assert_eq!(world.census(), [Kind::Pd, Kind::Pd, Kind::Mr]);
    drop(buf);
    world.assert_empty();
}

fn a_completion_queue_keeps_its_parent_domain<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let parent = pd.alloc_parent_domain(&ParentDomainInit::default()).unwrap();
    let init = CqInit { parent_domain: Some(&parent), ..CqInit::new(4) };
    let cq = context.create_cq(&init).unwrap();
    let HandleError { handle: parent, error } = parent.close().unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::BUSY, Cause::InUse { by: "completion queues" }));
    // A queue pair keeps the queue alive, and the queue its parent domain.
    let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq)).unwrap();
    drop((parent, cq));
    world.state().destroyed.clear();
    drop((qp, pd, context));
    let kinds: Vec<_> = world.state().destroyed.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [Kind::Qp, Kind::Cq, Kind::Pd, Kind::Pd]);
    world.assert_empty();
}

fn device_memory_stays_while_a_region_covers_it<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let dm = dm(&context);
    let mr = pd.reg_dm_mr(&dm, 8, 16, AccessFlags::LOCAL_WRITE).unwrap();
    assert_eq!((mr.addr(), mr.length()), (0, 16));
    let refused = dm.close().unwrap_err();
    assert_eq!(refused.error.cause, Cause::InUse { by: "memory regions" });
    drop((refused, pd, context));
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr, Kind::Dm]);
    drop(mr);
    world.assert_empty();
}

fn bytes_outside_of_device_memory_are_refused<P: Provider>(world: &World, context: Context<P>) {
    let dm = dm(&context);
    dm.copy_to(60, b"last").unwrap();
    let mut bytes = [0; 4];
    dm.copy_from(60, &mut bytes).unwrap();
    assert_eq!(&bytes, b"last");
    for offset in [61, 64, u64::MAX] {
        let error = dm.copy_to(offset, b"late").unwrap_err();
        assert!(matches!(error.cause, Cause::Range { length: 64, .. }), "{error}");
        assert_eq!(dm.copy_from(offset, &mut bytes).unwrap_err().errno, Errno::INVAL);
    }
    assert_eq!(dm.export_dmabuf_fd().unwrap_err().errno, Errno::OPNOTSUPP);
    dm.close().unwrap();
    drop(context);
    world.assert_empty();
}

fn a_dma_handle_stays_while_a_region_uses_it<P: Provider>(world: &World, context: Context<P>) {
    static BYTES: [u8; 64] = [0; 64];
    let pd = context.alloc_pd().unwrap();
    let dmah = context.alloc_dmah(&DmahAttr::default()).unwrap();
    let init = MrInit::new(BYTES.as_ptr().cast_mut(), BYTES.len(), AccessFlags::empty()).dmah(&dmah);
    let mr = crate::common::static_mr_ex(&pd, &init);
    let refused = dmah.close().unwrap_err();
    assert_eq!(refused.error.cause, Cause::InUse { by: "memory regions" });
    mr.close().unwrap();
    refused.handle.close().unwrap();
    drop((pd, context));
    world.assert_empty();
}

fn an_xrc_domain_stays_while_its_queues_use_it<P: Provider>(world: &World, context: Context<P>) {
    let (pd, xrcd) = (context.alloc_pd().unwrap(), xrcd(&context));
    let cq = context.create_cq(&CqInit::new(4)).unwrap();
    let srq = xrcd.create_srq(&pd, &cq, &SrqInit::new(4)).unwrap();
    assert!(srq.srq_num().is_some());
    let target = xrcd.create_target().unwrap();
    assert_eq!(target.qp_type(), QpType::XRC_RECV);
    let error = xrcd.open_target::<Reset>(target.qp_num()).unwrap_err();
    assert_eq!(error.errno, Errno::OPNOTSUPP);
    let refused = xrcd.close().unwrap_err();
    assert!(matches!(refused.error.cause, Cause::InUse { .. }), "{refused}");
    // The handles of the queue, the domain and all parents are dropped before their objects.
    drop((refused, cq, context));
    let closed: Result<(), HandleError<Pd<P>>> = pd.close();
    assert_eq!(cause(closed), Cause::InUse { by: "shared receive queues" });
    assert_eq!(world.census(), [Kind::Pd, Kind::Cq, Kind::Qp, Kind::Srq, Kind::Xrcd]);
    srq.close().unwrap();
    assert_eq!(world.census(), [Kind::Qp, Kind::Xrcd]);
    target.close().unwrap();
    world.assert_empty();
}

fn what_the_kernel_refuses_to_destroy_keeps_its_context<P: Provider>(world: &World, context: Context<P>) {
    for kind in [Kind::Dm, Kind::Dmah, Kind::Td, Kind::Xrcd] {
        world.refuse(kind, Errno::BUSY);
    }
    let refused = dm(&context).close().unwrap_err();
    assert_eq!((refused.error.verb, refused.error.errno), ("free_dm", Errno::BUSY));
    let dmah = context.alloc_dmah(&DmahAttr::default()).unwrap().close().unwrap_err();
    let td = context.alloc_td().unwrap().close().unwrap_err();
    let domain = xrcd(&context).close().unwrap_err();
    let errors = [&dmah.error, &td.error, &domain.error].map(|error| (error.verb, error.errno));
    let verbs = ["dealloc_dmah", "dealloc_td", "close_xrcd"];
    assert_eq!(errors, verbs.map(|verb| (verb, Errno::BUSY)));
    for kind in [Kind::Dm, Kind::Dmah, Kind::Td] {
        world.allow(kind);
    }
    refused.handle.close().unwrap();
    dmah.handle.close().unwrap();
    td.handle.close().unwrap();
    // Dropped while the kernel refuses to destroy it, the domain is leaked with its context.
    drop((domain, context));
    assert_eq!(world.census(), [Kind::Xrcd]);
    assert_eq!(world.state().contexts, 1);
    assert_eq!(world.state().broken, Vec::<String>::new());
}
