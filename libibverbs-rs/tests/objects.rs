//! The lifetimes of objects: every order of dropping and leaking, closing while in use, and a
//! kernel that refuses to destroy.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Kind, World, cause};
use verbs::state::Reset;
use verbs::{
    Ah, AhAttr, AsyncEvents, Buf, Cause, CompChannel, Context, Cq, CqInit, Errno, Exposed, HandleError, Mr,
    ParentDomainInit, Pd, Provider, Qp, QpCap, QpInit, QpType, RemoteAccess,
};

both! {
    whatever_is_dropped_first_nothing_goes_below_what_uses_it
    what_is_forgotten_keeps_its_parents
    closing_what_is_in_use_says_by_what_and_gives_it_back
    what_the_kernel_refuses_to_destroy_comes_back_and_can_be_closed_later
    what_the_kernel_refuses_to_destroy_is_leaked_with_all_that_it_uses
    a_completion_queue_that_is_dropped_first_goes_after_its_last_queue_pair
    objects_of_another_device_are_refused
    children_keep_the_device_open
    a_queue_pair_joins_and_leaves_groups_through_its_provider
}

/// One object of each kind.
struct All<P: Provider> {
    context: Option<Context<P>>,
    pd: Option<Pd<P>>,
    mr: Option<Mr<P>>,
    buf: Option<Buf>,
    exposed: Option<Exposed>,
    ah: Option<Ah<P>>,
    channel: Option<CompChannel>,
    cq: Option<Cq<P>>,
    qp: Option<Qp<Reset, P>>,
    events: Option<AsyncEvents>,
}

const FIELDS: usize = 10;

impl<P: Provider> All<P> {
    fn new(context: &Context<P>) -> Self {
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap();
        Self {
            mr: Some(common::static_mr(&pd)),
            buf: Some(pd.alloc_buf(64).unwrap()),
            exposed: Some(pd.expose(pd.alloc_buf(64).unwrap(), RemoteAccess::READ).unwrap()),
            ah: Some(pd.create_ah(&AhAttr::default()).unwrap()),
            qp: Some(pd.create_qp(&init(&cq)).unwrap()),
            events: Some(context.async_events().unwrap()),
            context: Some(context.clone()),
            pd: Some(pd),
            channel: Some(channel),
            cq: Some(cq),
        }
    }

    /// Removes and returns a handle, for the caller to drop or leak.
    fn take(&mut self, field: usize) -> Box<dyn std::any::Any> {
        match field {
            0 => Box::new(self.context.take()),
            1 => Box::new(self.pd.take()),
            2 => Box::new(self.mr.take()),
            3 => Box::new(self.buf.take()),
            4 => Box::new(self.exposed.take()),
            5 => Box::new(self.ah.take()),
            6 => Box::new(self.channel.take()),
            7 => Box::new(self.cq.take()),
            8 => Box::new(self.qp.take()),
            _ => Box::new(self.events.take()),
        }
    }
}

fn init<P: Provider>(cq: &Cq<P>) -> QpInit<P> {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };
    QpInit { cap, ..QpInit::new(QpType::RC, cq) }
}

/// Returns all permutations of the field indices.
fn orders(fields: &[usize]) -> Vec<Vec<usize>> {
    if fields.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for first in fields {
        let rest: Vec<_> = fields.iter().filter(|field| *field != first).copied().collect();
        all.extend(orders(&rest).into_iter().map(|order| [&[*first][..], &order].concat()));
    }
    all
}

fn whatever_is_dropped_first_nothing_goes_below_what_uses_it<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    // A buffer, an address handle and an event stream depend on their parents as a raw region does,
    // so they are only dropped last or first.
    let orders = orders(&[0, 1, 2, 4, 6, 7, 8]);
    assert_eq!(orders.len(), 5040);
    for (i, order) in orders.into_iter().enumerate() {
        let order = if i % 2 == 0 { [order, vec![3, 5, 9]] } else { [vec![3, 5, 9], order] }.concat();
        let mut all = All::new(&context);
        for field in &order {
            drop(all.take(*field));
            assert_eq!(world.state().broken, Vec::<String>::new(), "after {field} of {order:?}");
        }
        assert_eq!(world.census(), [], "{order:?}");
    }
    drop(context);
    world.assert_empty();
}

fn what_is_forgotten_keeps_its_parents<P: Provider>(world: &World, context: Context<P>) {
    use Kind::{Ah, Cq, Mr, Pd, Qp};
    let kept: [&[Kind]; FIELDS] =
        [&[], &[Pd], &[Pd, Mr], &[Pd, Mr], &[Pd, Mr, Mr], &[Pd, Ah], &[], &[Cq], &[Pd, Cq, Qp], &[]];
    for (field, kept) in kept.into_iter().enumerate() {
        let mut all = All::new(&context);
        std::mem::forget(all.take(field));
        drop(all);
        assert_eq!(world.census(), kept, "forgetting {field}");
        let state = &mut *world.state();
        assert_eq!(state.broken, Vec::<String>::new(), "forgetting {field}");
        state.live.clear();
    }
    drop(context);
    assert_eq!(world.state().contexts, 1, "forgotten handles keep the device open");
}

fn closing_what_is_in_use_says_by_what_and_gives_it_back<P: Provider>(world: &World, context: Context<P>) {
    let All { context: clone, pd, mr, buf, exposed, ah, channel, cq, qp, events } = All::new(&context);
    drop((clone, events));
    let (context, pd, cq, channel) = (Some(context), pd.unwrap(), cq.unwrap(), channel.unwrap());

    let in_use = |by| Cause::InUse { by };
    let HandleError { handle: channel, error } = channel.close().unwrap_err();
    assert_eq!(error.cause, in_use("completion queues"));
    let name = context.as_ref().unwrap().device_name().to_owned();
    assert_eq!(
        error.to_string(),
        format!("destroy_comp_channel on {name}: still in use by completion queues (EBUSY)")
    );
    let HandleError { handle: cq, error } = cq.close().unwrap_err();
    assert_eq!(error.cause, in_use("queue pairs"));
    let HandleError { handle: pd, error } = pd.close().unwrap_err();
    assert_eq!(error.cause, in_use("queue pairs"));
    qp.unwrap().close().unwrap();
    let HandleError { handle: pd, error } = pd.close().unwrap_err();
    assert_eq!(error.cause, in_use("memory regions"));
    mr.unwrap().close().unwrap();
    let mut buf = buf.unwrap();
    let tail = buf.split_off(8);
    let HandleError { handle: buf, error } = buf.close().unwrap_err();
    assert_eq!(error.cause, in_use("other pieces of the same allocation"));
    drop(tail);
    buf.close().unwrap();
    exposed.unwrap().unexpose().unwrap().close().unwrap();
    let HandleError { handle: pd, error } = pd.close().unwrap_err();
    assert_eq!(error.cause, in_use("address handles"));
    ah.unwrap().close().unwrap();
    let clone = pd.clone();
    let HandleError { handle: pd, error } = pd.close().unwrap_err();
    assert_eq!(error.cause, in_use("clones of the handle"));
    drop(clone);

    let HandleError { handle: context, error } = context.unwrap().close().unwrap_err();
    assert_eq!(error.cause, in_use("protection domains"));
    pd.close().unwrap();
    let HandleError { handle: context, error } = context.close().unwrap_err();
    assert_eq!(error.cause, in_use("completion queues"));
    cq.close().unwrap();
    let HandleError { handle: context, error } = context.close().unwrap_err();
    assert_eq!(error.cause, in_use("completion channels"));
    channel.close().unwrap();
    let events = context.async_events().unwrap();
    let HandleError { handle: context, error } = context.close().unwrap_err();
    assert_eq!(error.cause, in_use("streams of asynchronous events"));
    drop(events);
    let clone = context.clone();
    assert_eq!(cause(context.close()), in_use("clones of the handle"));
    clone.close().unwrap();
    world.assert_empty();
}

fn what_the_kernel_refuses_to_destroy_comes_back_and_can_be_closed_later<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    /// Closes a handle while the kernel refuses, then again when the kernel permits it.
    macro_rules! twice {
        ($kind:ident, $handle:expr, $close:ident) => {{
            world.refuse(Kind::$kind, Errno::BUSY);
            let HandleError { handle: same, error } = $handle.$close().unwrap_err();
            assert_eq!((error.errno, error.cause), (Errno::BUSY, Cause::Unknown), stringify!($kind));
            world.allow(Kind::$kind);
            same.$close().unwrap()
        }};
    }
    let mut all = All::new(&context);
    twice!(Qp, all.qp.take().unwrap(), close);
    twice!(Cq, all.cq.take().unwrap(), close);
    twice!(Mr, all.mr.take().unwrap(), close);
    twice!(Mr, all.buf.take().unwrap(), close);
    let back = twice!(Mr, all.exposed.take().unwrap(), unexpose);
    assert_eq!(back.len(), 64);
    drop(back);
    twice!(Ah, all.ah.take().unwrap(), close);
    twice!(Pd, all.pd.take().unwrap(), close);
    drop((all, context));
    world.assert_empty();
}

fn what_the_kernel_refuses_to_destroy_is_leaked_with_all_that_it_uses<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    static LEAKS: AtomicU32 = AtomicU32::new(0);
    verbs::on_leak(|error| {
        assert_eq!(error.errno, Errno::PERM);
        LEAKS.fetch_add(1, Ordering::Relaxed);
    });
    let before = LEAKS.load(Ordering::Relaxed);
    world.refuse(Kind::Qp, Errno::PERM);
    drop(All::new(&context));
    assert_eq!(world.census(), [Kind::Pd, Kind::Cq, Kind::Qp]);
    assert!(LEAKS.load(Ordering::Relaxed) > before);
    drop(context);
    let state = world.state();
    assert_eq!((state.contexts, &state.broken), (1, &Vec::new()), "what is leaked keeps the device open");
}

fn a_completion_queue_that_is_dropped_first_goes_after_its_last_queue_pair<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let (one, other) =
        (context.create_cq(&CqInit::new(8)).unwrap(), context.create_cq(&CqInit::new(8)).unwrap());
    let first = pd.create_qp(&QpInit { recv_cq: other.handle(), ..init(&one) }).unwrap();
    let second = pd.create_qp(&init(&one)).unwrap();
    drop((one, other, pd, context));
    assert_eq!(world.state().destroyed, []);
    drop(first);
    assert_eq!(kinds(world), [Kind::Qp, Kind::Cq], "the other queue had no one else");
    drop(second);
    assert_eq!(kinds(world), [Kind::Qp, Kind::Cq, Kind::Qp, Kind::Cq, Kind::Pd]);
    world.assert_empty();
}

fn objects_of_another_device_are_refused<P: Provider>(world: &World, context: Context<P>) {
    let (_, device) = common::world(&format!("{}-other", context.device_name()));
    let erased = device.open().unwrap();
    let channel = erased.create_comp_channel().unwrap();
    let refused = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap_err();
    assert_eq!(refused.cause, Cause::Foreign { what: "completion channel" });
    for (one, other) in [(&erased, device.open().unwrap()), (&device.open().unwrap(), erased.clone())] {
        let parent = one.alloc_pd().and_then(|pd| pd.alloc_parent_domain(&ParentDomainInit::default()));
        let parent = parent.unwrap();
        let init = CqInit { parent_domain: Some(&parent), ..CqInit::new(8) };
        assert!(one.create_cq(&init).is_ok());
        assert_eq!(other.create_cq(&init).unwrap_err().cause, Cause::Foreign { what: "protection domain" });
    }

    let (one, other) = (device.open().unwrap(), erased);
    let (cq, pd) = (one.create_cq(&CqInit::new(8)).unwrap(), other.alloc_pd().unwrap());
    let refused = pd.create_qp(&init(&cq)).unwrap_err();
    assert_eq!(refused.cause, Cause::Foreign { what: "completion queue" });
    drop(context);
    world.assert_empty();
}

fn children_keep_the_device_open<P: Provider>(world: &World, context: Context<P>) {
    let All { qp, .. } = All::new(&context);
    drop(context);
    assert_eq!(world.state().contexts, 1);
    drop(qp);
    world.assert_empty();
}

fn kinds(world: &World) -> Vec<Kind> {
    world.state().destroyed.iter().map(|(kind, _)| *kind).collect()
}

#[test]
fn handles_become_static_one_by_one_and_are_the_same_objects() {
    use common::Paper;
    let (world, device) = common::world("downcast");
    let context = device.open().unwrap();
    let mut all = All::new(&context);
    let before = world.census();

    let named: Context<Paper> = context.clone().downcast().unwrap();
    let pd: Pd<Paper> = all.pd.take().unwrap().downcast().unwrap();
    let mr: Mr<Paper> = all.mr.take().unwrap().downcast().unwrap();
    let ah: Ah<Paper> = all.ah.take().unwrap().downcast().unwrap();
    let exposed: Exposed = all.exposed.take().unwrap();
    let cq: Cq<Paper> = all.cq.take().unwrap().downcast().unwrap();
    let qp: Qp<Reset, Paper> = all.qp.take().unwrap().downcast().unwrap();
    assert_eq!(world.census(), before);

    // The named handles work with each other and with older objects.
    let second = pd.create_qp(&init(&cq)).unwrap();
    let named_cq = named.create_cq(&CqInit::new(4)).unwrap();
    let third = pd.create_qp(&QpInit { recv_cq: cq.handle(), ..init(&named_cq) }).unwrap();
    assert_eq!(cause(cq.close()), Cause::InUse { by: "queue pairs" });
    drop((third, named_cq));
    assert_eq!(cause(pd.clone().close()), Cause::InUse { by: "queue pairs" });
    drop((context, named, pd, all));
    assert_eq!(world.state().contexts, 1);
    drop((mr, exposed, second, qp, ah));
    world.assert_empty();
}

#[test]
#[cfg(feature = "rxe")]
fn a_handle_of_another_provider_stays_erased() {
    let (world, device) = common::world("no-downcast");
    let context = device.open().unwrap();
    let mut all = All::new(&context);
    let context = context.downcast::<verbs::rxe::Rxe>().unwrap_err();
    let pd = all.pd.take().unwrap().downcast::<verbs::rxe::Rxe>().unwrap_err();
    let cq = all.cq.take().unwrap().downcast::<verbs::rxe::Rxe>().unwrap_err();
    let qp = all.qp.take().unwrap().downcast::<verbs::rxe::Rxe>().unwrap_err();
    let mr = all.mr.take().unwrap().downcast::<verbs::rxe::Rxe>().unwrap_err();
    drop((context, all, cq, pd, mr, qp));
    world.assert_empty();
}

#[test]
fn handles_can_be_dropped_on_another_thread() {
    let (world, device) = common::world("threads");
    let context = device.open().unwrap();
    let All { qp, cq, buf, pd, .. } = All::new(&context);
    let (a, b) = (Arc::new(pd), context);
    let shared = Arc::clone(&a);
    std::thread::scope(|scope| {
        scope.spawn(move || drop((qp, shared)));
        scope.spawn(move || drop((cq, b)));
        scope.spawn(move || drop(buf));
    });
    drop(a);
    world.assert_empty();
}

fn a_queue_pair_joins_and_leaves_groups_through_its_provider<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(4)).unwrap();
    let mut qp = pd.create_qp(&QpInit::new(QpType::UD, &cq)).unwrap();
    let group: verbs::Gid = "ff15::1".parse().unwrap();
    qp.attach_mcast(&group, 0xc001).unwrap();
    let groups = || world.state().groups.iter().map(|(_, gid, lid)| (*gid, *lid)).collect::<Vec<_>>();
    assert_eq!(groups(), [(group, 0xc001)]);
    assert_eq!(qp.detach_mcast(&group, 0).unwrap_err().errno, Errno::INVAL, "another local id");
    qp.detach_mcast(&group, 0xc001).unwrap();
    assert_eq!(groups(), []);
}
