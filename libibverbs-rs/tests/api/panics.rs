//! A provider that panics: memory the device may still use stays in place.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{AfterPost, Kind, World};
use verbs::{
    Buf, Context, Cq, CqInit, Errno, InitAttr, Memory, Pd, PostReason, Provider, Qp, QpCap, QpInit, QpType,
    RemoteAccess, RtrAttr, RtsAttr, SendFlags, SendOp, state::Rts,
};

both! {
    a_queue_pair_whose_destruction_panics_keeps_what_is_in_flight
    a_closed_queue_pair_whose_destruction_panics_keeps_what_is_in_flight
    memory_whose_deregistration_panics_stays_mapped
    exposed_memory_whose_deregistration_panics_stays_out_of_reach
    a_completion_queue_whose_destruction_panics_keeps_its_context_open
    a_post_that_panics_leaves_its_buffer_in_flight
    memory_whose_registration_panics_stays_mapped
    memory_whose_key_panics_is_released_after_its_region
    a_rollback_that_panics_leaves_its_memory_in_flight
    memory_of_the_program_whose_registration_panics_stays_as_it_is
}

const CAP: QpCap =
    QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 3, max_recv_sge: 3, max_inline_data: 16 };

fn ready<P: Provider>(pd: &Pd<P>, cq: &Cq<P>) -> Qp<Rts, P> {
    let init = QpInit { cap: CAP, ..QpInit::new(QpType::RC, cq) };
    let qp = pd.create_qp(&init).unwrap().to_init(&InitAttr::default()).unwrap();
    qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap()
}

/// Runs a closure and checks that it panics.
#[track_caller]
fn panics(what: impl FnOnce()) {
    let ended = catch_unwind(AssertUnwindSafe(what));
    assert!(ended.is_err(), "the provider was to panic");
}

/// Posts a receive, passes the queue pair to `end`, which panics, and checks whether the device can
/// still write the buffer.
fn writes_arrive_after<P: Provider>(world: &World, context: Context<P>, end: impl FnOnce(Qp<Rts, P>)) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    let mut qp = ready(&pd, &cq);
    let qp_num = qp.qp_num();
    qp.post_recv_buf(pd.alloc_buf(4096).unwrap(), ..).unwrap();
    world.state().panic_on_destroy = Some(Kind::Qp);
    panics(|| end(qp));
    world.state().panic_on_destroy = None;
    drop((cq, pd, context));
    // The device continues undisturbed: the memory is still registered and mapped.
    world.complete(qp_num, true, &[7; 4096]);
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr, Kind::Cq, Kind::Qp]);
    assert_eq!(world.state().broken, Vec::<String>::new());
}

fn a_queue_pair_whose_destruction_panics_keeps_what_is_in_flight<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    writes_arrive_after(world, context, drop);
}

fn a_closed_queue_pair_whose_destruction_panics_keeps_what_is_in_flight<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    writes_arrive_after(world, context, |qp| drop(qp.dismantle()));
}

/// Returns whether memory is mapped at an address.
fn is_mapped(addr: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        (at(start)..at(end)).contains(&addr)
    })
}

fn memory_whose_deregistration_panics_stays_mapped<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let [dropped, closed] = [0, 1].map(|_| pd.alloc_buf(1 << 20).unwrap());
    let addrs = [dropped.addr(), closed.addr()];
    world.state().panic_on_destroy = Some(Kind::Mr);
    panics(|| drop(dropped));
    panics(|| drop(closed.close()));
    world.state().panic_on_destroy = None;
    drop((pd, context));
    assert!(addrs.into_iter().all(is_mapped), "the device may still write there");
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr, Kind::Mr]);
    assert_eq!(world.state().broken, Vec::<String>::new());
}

fn exposed_memory_whose_deregistration_panics_stays_out_of_reach<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let [dropped, taken] =
        [0, 1].map(|_| pd.expose(pd.alloc_buf(1 << 20).unwrap(), RemoteAccess::WRITE).unwrap());
    let addrs = [dropped.addr(), taken.addr()];
    world.state().panic_on_destroy = Some(Kind::Mr);
    panics(|| drop(dropped));
    panics(|| drop(taken.unexpose()));
    world.state().panic_on_destroy = None;
    drop((pd, context));
    assert!(addrs.into_iter().all(is_mapped), "peers may still write there");
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr, Kind::Mr, Kind::Mr, Kind::Mr]);
}

fn a_completion_queue_whose_destruction_panics_keeps_its_context_open<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    world.state().panic_on_destroy = Some(Kind::Cq);
    panics(|| drop(cq.close()));
    world.state().panic_on_destroy = None;
    drop(context);
    assert_eq!((world.census(), world.state().contexts), (vec![Kind::Cq], 1));
}

fn a_post_that_panics_leaves_its_buffer_in_flight<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(&CqInit::new(8)).unwrap();
    let mut qp = ready(&pd, &cq);
    let qp_num = qp.qp_num();
    for (when, byte) in [(AfterPost::NotQueued, 1), (AfterPost::Queued, 2)] {
        world.state().panic_on_post = Some(when);
        let mut buf = pd.alloc_buf(1).unwrap();
        buf.fill(byte);
        panics(|| drop(qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..)));
    }
    world.state().panic_on_post = None;
    // The request in the device's queue completes and returns its buffer. The library cannot know
    // whether the device has the other request, so its buffer stays.
    world.complete(qp_num, false, &[2]);
    let back = cq.poll_one().unwrap().into_buf().unwrap();
    assert_eq!(back[..], [2]);
    let left = qp.dismantle().unwrap().into_iter().filter_map(Memory::into_buf).collect::<Vec<Buf>>();
    assert_eq!(left.iter().map(|buf| buf[0]).collect::<Vec<_>>(), [1]);
    // The queue's other slots are still usable.
    let mut qp = ready(&pd, &cq);
    world.state().refuse_post = Some((0, PostReason::Doorbell(Errno::IO)));
    let refused = qp.post_recv_buf(pd.alloc_buf(1).unwrap(), ..).unwrap_err();
    assert!(refused.returned.is_some(), "nothing was queued, so it is the caller's again");
}

fn memory_whose_registration_panics_stays_mapped<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let buf = pd.alloc_buf(4096).unwrap();
    let addr = buf.addr();
    world.state().panic_on_register = true;
    panics(|| drop(pd.expose(buf, RemoteAccess::WRITE)));
    assert!(is_mapped(addr), "a peer may have a key of it");
    panics(|| drop(pd.alloc_buf(1 << 30)));
    world.state().panic_on_register = false;
    let regions: Vec<(u64, usize)> = world
        .state()
        .live
        .values()
        .filter(|object| object.kind == Kind::Mr)
        .map(|object| object.region)
        .collect();
    assert_eq!(regions.len(), 3, "the provider has made them, and nothing has taken them back");
    for (addr, _) in regions {
        assert!(is_mapped(addr), "{addr:#x}");
    }
}

fn memory_whose_key_panics_is_released_after_its_region<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let buf = pd.alloc_buf(4096).unwrap();
    world.state().panic_on_key = true;
    panics(|| drop(pd.expose(buf, RemoteAccess::WRITE)));
    world.state().panic_on_key = false;
    assert_eq!(world.census(), [Kind::Pd], "no region is left whose memory was released");
}

fn a_rollback_that_panics_leaves_its_memory_in_flight<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    let mut qp = ready(&pd, &cq);
    world.state().panic_on_rollback = true;
    for abort in [true, false] {
        let mut batch = qp.batch();
        batch.post(SendOp::Send, SendFlags::empty(), pd.alloc_buf(1).unwrap(), ..).unwrap();
        panics(|| if abort { drop(batch.abort()) } else { drop(batch) });
    }
    world.state().panic_on_rollback = false;
    assert_eq!(world.census().iter().filter(|kind| **kind == Kind::Mr).count(), 2);
    assert_eq!(qp.dismantle().unwrap().len(), 2, "they may be in the queue until it ends");
}

fn memory_of_the_program_whose_registration_panics_stays_as_it_is<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let memory = memmap2::MmapMut::map_anon(1 << 20).unwrap();
    let addr = memory.as_ptr().addr() as u64;
    world.state().panic_on_register = true;
    panics(|| drop(pd.register(memory)));
    assert!(is_mapped(addr), "the provider may have made a key");
}
