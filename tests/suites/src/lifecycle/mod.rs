//! `lifecycle`: dropped, forgotten, closed and killed objects, as the kernel sees them.
//!
//! `rdma resource show` (iproute2) counts the objects in the kernel. The kernel has no objects for
//! a provider's own device. There, the cases count the process's file descriptors and threads.

mod churn;
pub(super) mod counts;
mod killed;
pub(super) mod unplug;

// Exported for `tests/units.rs`.
#[doc(hidden)]
pub use self::counts::parse_resources;

use std::process::Command;
use std::time::Duration;

use verbs::state::Rts;
use verbs::{
    Buf, Cause, Context, Cq, CqInit, Errno, HandleError, Pd, Provider, Qp, RemoteAccess, SendFlags, SendOp,
    WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    self, PORT, Pair, Remote, Shape, connect, create_qp, eventually, filled, pattern, under_test, wait_for,
    wait_one, wait_remote_access_error,
};
use verbs_harness::cases;
use verbs_harness::port;
use verbs_harness::process::{self, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail};
use verbs_harness::tools::{DEVICE, LIMIT, Maker, gid_index, run};

use counts::{SUITE, back_to, fds, resources};
use killed::a_process_killed_at_any_step_leaves_nothing;

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    of_any_kernel_device().into_iter().chain(of_rxe()).collect()
}

/// Returns the part of the suite that removes rxe devices or kills programs that use them.
fn of_rxe() -> Vec<Case> {
    let mut cases = cases!(
        SUITE,
        a_killed_process_leaves_nothing,
        a_device_that_is_deleted_goes_when_its_objects_are_destroyed,
    );
    cases.extend(killed::cases());
    cases.extend(unplug::cases());
    cases
}

/// Returns the part of the suite for any kernel device.
pub fn of_any_kernel_device() -> Vec<Case> {
    let mut cases = of_any_device();
    cases.extend(cases!(
        SUITE,
        a_case_that_leaks_leaves_nothing,
        a_process_killed_at_any_step_leaves_nothing,
    ));
    cases
}

/// Returns the part of the suite that needs no kernel to clean up after a process and therefore
/// also runs on a provider's own devices.
pub fn of_any_device() -> Vec<Case> {
    let mut cases = both!(
        SUITE,
        any_order_of_dropping_leaves_nothing,
        closing_parents_before_children_is_refused_and_loses_nothing,
        a_forgotten_queue_pair_keeps_its_buffers_from_everybody_else,
        a_dropped_queue_pair_takes_its_buffers_from_the_device,
        exposed_memory_is_out_of_reach_once_it_is_taken_back,
    );
    cases.push(
        Case::new(SUITE, "a_thousand_rounds_leave_nothing", a_thousand_rounds_leave_nothing)
            .within(Duration::from_secs(400)),
    );
    cases.extend(churn::cases());
    cases.extend(unplug::of_soft());
    cases
}

/// One object of each kind, connected, with requests posted.
struct All<P: Provider> {
    context: Option<Context<P>>,
    pd: Option<Pd<P>>,
    buf: Option<Buf>,
    exposed: Option<verbs::Exposed>,
    ah: Option<verbs::Ah<P>>,
    channel: Option<verbs::CompChannel>,
    cq: Option<Cq<P>>,
    qp: Option<Qp<Rts, P>>,
}

const KINDS: usize = 8;

impl<P: Provider> All<P> {
    fn new(context: Context<P>) -> CaseResult<Self> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) })?;
        cq.req_notify(false)?;
        let shape = Shape::default();
        let qp = create_qp(&pd, &cq, &shape)?;
        let own = Remote::from_qp(&qp);
        let mut qp = connect(&context, qp, &shape, own)?;
        qp.post_recv_buf(pd.alloc_buf(100)?, ..)?;
        let exposed = pd.expose(pd.alloc_buf(64)?, RemoteAccess::READ)?;
        let ah = pd.create_ah(&fabric::path(&context.find_gid(PORT)?))?;
        Ok(Self {
            buf: Some(pd.alloc_buf(4096)?),
            context: Some(context),
            pd: Some(pd),
            exposed: Some(exposed),
            ah: Some(ah),
            channel: Some(channel),
            cq: Some(cq),
            qp: Some(qp),
        })
    }

    fn drop_one(&mut self, kind: usize) {
        match kind {
            0 => drop(self.context.take()),
            1 => drop(self.pd.take()),
            2 => drop(self.buf.take()),
            3 => drop(self.exposed.take()),
            4 => drop(self.ah.take()),
            5 => drop(self.channel.take()),
            6 => drop(self.cq.take()),
            _ => drop(self.qp.take()),
        }
    }
}

fn any_order_of_dropping_leaves_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    // The context keeps resources opened with its first objects.
    drop(All::new(context.clone())?);
    let (baseline, open) = (resources()?, fds()?);
    verbs::on_leak(|error| panic!("leaked: {error}"));
    // Drops each pair of kinds first, then the other kinds forwards or backwards.
    for first in 0..KINDS {
        for second in (0..KINDS).filter(|kind| *kind != first) {
            for backwards in [false, true] {
                let mut rest: Vec<_> = (0..KINDS).filter(|kind| ![first, second].contains(kind)).collect();
                if backwards {
                    rest.reverse();
                }
                let mut all = All::new(context.clone())?;
                all.drop_one(first);
                all.drop_one(second);
                rest.into_iter().for_each(|kind| all.drop_one(kind));
            }
        }
        back_to(&baseline)?;
    }
    assert_eq!(fds()?, open, "file descriptors");
    Ok(())
}

fn closing_parents_before_children_is_refused_and_loses_nothing<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    drop(All::new(context.clone())?);
    let baseline = resources()?;
    let mut all = All::new(context.clone())?;
    let gone = || Stop::Failed("it is not there".to_owned());
    // While the queue pair lives, each close is rejected, returns its handle and leaves the object
    // usable.
    let pd = refused(all.pd.take().ok_or_else(gone)?.close(), "queue pairs")?;
    let mut cq = refused(all.cq.take().ok_or_else(gone)?.close(), "queue pairs")?;
    let channel = refused(all.channel.take().ok_or_else(gone)?.close(), "completion queues")?;
    let own_context = refused(all.context.take().ok_or_else(gone)?.close(), "")?;
    let mut buf = all.buf.take().ok_or_else(gone)?;
    let tail = buf.split_off(100);
    let mut buf = refused(buf.close(), "other pieces")?;
    buf.unsplit(tail).map_err(|_| gone())?;
    let mut qp = all.qp.take().ok_or_else(gone)?;
    qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..50)?;
    for _ in 0..2 {
        let wc = wait_one(&mut cq)?;
        assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
    }
    // In the right order, each close succeeds.
    qp.close()?;
    cq.close()?;
    channel.close()?;
    all.ah.take().ok_or_else(gone)?.close()?;
    let exposed = all.exposed.take().ok_or_else(gone)?.unexpose()?;
    exposed.close()?;
    pd.close()?;
    back_to(&baseline)?;
    drop(own_context);
    Ok(())
}

/// Returns the handle from a close that failed because the object is in use.
fn refused<T>(closed: Result<(), HandleError<T>>, by: &str) -> CaseResult<T> {
    let Err(HandleError { handle, error }) = closed else {
        return fail(format_args!("closed, although {by} use it"));
    };
    assert_eq!(error.errno, Errno::BUSY, "{error}");
    assert!(matches!(error.cause, Cause::InUse { .. }) && error.to_string().contains(by), "{error}");
    assert!(error.to_string().contains(under_test()), "{error}");
    Ok(handle)
}

/// Allocates many buffers, which reuse any freed memory.
fn squatters<P: Provider>(pd: &Pd<P>) -> CaseResult<Vec<Buf>> {
    (0..64).map(|seed| filled(pd, seed, 4096)).collect()
}

fn are_untouched(squatters: &[Buf]) {
    for (seed, buf) in squatters.iter().enumerate() {
        assert!(buf[..] == pattern(seed as u32, 4096)[..], "somebody's buffer was written to by the device");
    }
}

fn a_forgotten_queue_pair_keeps_its_buffers_from_everybody_else<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let before = resources()?;
    pair.b.qp.post_recv_buf(pair.pd.alloc_buf(4096)?, ..)?;
    core::mem::forget(pair.b.qp);
    let squatters = squatters(&pair.pd)?;
    assert_eq!(resources()?.get("qp"), before.get("qp"), "forgetting destroys nothing");
    // The device still has the receive and executes it.
    pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), filled(&pair.pd, 999, 4096)?, ..)?;
    let wc = wait_one(&mut pair.a.cq)?;
    assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
    let wc = wait_one(&mut pair.b.cq)?;
    assert_eq!((wc.status, wc.byte_len), (WcStatus::SUCCESS, 4096));
    are_untouched(&squatters);
    // The completion queue and the protection domain cannot be closed first, but their handles can
    // be dropped.
    let pd = refused(pair.pd.close(), "queue pairs")?;
    drop((pd, pair.b.cq));
    Ok(())
}

fn a_dropped_queue_pair_takes_its_buffers_from_the_device<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let before = resources()?;
    for _ in 0..8 {
        pair.b.qp.post_recv_buf(pair.pd.alloc_buf(4096)?, ..)?;
    }
    // These sends are in flight while the queue pair is destroyed.
    for seed in 0..8 {
        let buf = filled(&pair.pd, 900 + seed, 4096)?;
        pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..)?;
    }
    drop(pair.b.qp);
    let squatters = squatters(&pair.pd)?;
    let mut back = Vec::new();
    eventually("every send ends", || {
        if let Some(completed) = pair.a.cq.poll_one() {
            let statuses = [WcStatus::SUCCESS, WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR];
            assert!(statuses.contains(&completed.status), "{completed:?}");
            back.extend(completed.into_buf());
        }
        back.len() == 8
    })?;
    for (seed, buf) in (0..).zip(&back) {
        assert!(buf[..] == pattern(900 + seed, 4096)[..], "a send's buffer came back changed");
    }
    are_untouched(&squatters);
    drop((squatters, back));
    eventually("the kernel has one queue pair less", || {
        resources().is_ok_and(|now| now.get("qp").copied() == before.get("qp").map(|count| count - 1))
    })
}

fn exposed_memory_is_out_of_reach_once_it_is_taken_back<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let exposed = pair.pd.expose(filled(&pair.pd, 1, 4096)?, RemoteAccess::READ | RemoteAccess::WRITE)?;
    let (remote_addr, rkey) = (exposed.addr(), exposed.rkey());
    exposed.write_at(10, b"from here");
    let op = SendOp::RdmaWrite { remote_addr: remote_addr + 100, rkey };
    pair.a.qp.post_send_buf(op, SendFlags::empty(), filled(&pair.pd, 2, 50)?, ..)?;
    wait_for_opcode(&mut pair.a.cq, WcOpcode::RDMA_WRITE)?;
    let mut copy = [0; 50];
    exposed.read_at(100, &mut copy);
    assert_eq!(copy[..], pattern(2, 50)[..]);
    let buf = exposed.unexpose()?;
    assert_eq!((&buf[10..19], &buf[100..150]), (&b"from here"[..], &pattern(2, 50)[..]));
    let before = buf.to_vec();
    let again = filled(&pair.pd, 3, 50)?;
    let id = pair.a.qp.post_send_buf(op, SendFlags::empty(), again, ..)?;
    wait_remote_access_error(&mut pair.a.cq, id)?;
    assert_eq!(buf[..], before[..]);
    Ok(())
}

fn wait_for_opcode<P: Provider>(cq: &mut Cq<P>, opcode: WcOpcode) -> CaseResult {
    let wc = wait_one(cq)?;
    assert_eq!((wc.status, wc.opcode), (WcStatus::SUCCESS, opcode), "{wc:?}");
    Ok(())
}

fn a_thousand_rounds_leave_nothing() -> CaseResult {
    const ROUNDS: u32 = 1000;
    verbs::on_leak(|error| panic!("leaked: {error}"));
    // A soft device keeps a socket for each address on this host that it has connected to.
    drop(All::new(fabric::open()?)?);
    let (baseline, open) = (resources()?, fds()?);
    for round in 0..ROUNDS {
        let context = fabric::open()?;
        let all = All::new(context)?;
        if round % 2 == 0 {
            drop(all);
        } else {
            let mut all = all;
            (0..KINDS).for_each(|kind| all.drop_one(kind));
        }
        assert_eq!(fds()?, open, "file descriptors after round {round}");
    }
    back_to(&baseline)
}

fn a_killed_process_leaves_nothing() -> CaseResult {
    let baseline = resources()?;
    let port = port::free()?;
    let mut command = Maker::Ours.tool("ibv_rc_pingpong")?;
    command.args(["-d", DEVICE, "-g", &gid_index()?.to_string(), "-p", &port.to_string()]);
    let mut server = Running::start(&mut command)?;
    if !process::wait_for_listener(port, LIMIT, || !server.has_ended()) {
        return fail(format_args!("the server does not listen: {:?}", server.finish(Duration::ZERO)?));
    }
    let held = resources()?;
    assert!(held.get("qp") > baseline.get("qp") && held.get("mr") > baseline.get("mr"), "{held:?}");
    drop(server);
    back_to(&baseline)
}

/// Like [`a_killed_process_leaves_nothing`], but a process leaks one object of each kind and
/// exits.
fn a_case_that_leaks_leaves_nothing() -> CaseResult {
    const MARK: &str = "VERBS_TESTS_LEAK";
    if std::env::var_os(MARK).is_some() {
        core::mem::forget(All::new(fabric::open()?)?);
        return Ok(());
    }
    let baseline = resources()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["--case", &format!("{SUITE}.a_case_that_leaks_leaves_nothing")]).env(MARK, "1");
    let leaked = run(&mut command)?;
    assert!(leaked.stdout.ends_with("ok\n"), "{leaked:?}");
    back_to(&baseline)?;
    // The device still works.
    let mut pair = Pair::new(&fabric::open()?, &Shape::default())?;
    pair.b.qp.post_recv_buf(pair.pd.alloc_buf(8)?, ..)?;
    pair.a.qp.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, b"still ok")?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    Ok(())
}

/// Deletes an rxe device in use. rxe cannot be detached from its users (it lacks
/// `disassociate_ucontext`), so the deletion waits for them. Meanwhile, the kernel confirms the
/// destruction of each object.
fn a_device_that_is_deleted_goes_when_its_objects_are_destroyed() -> CaseResult {
    verbs::on_leak(|error| panic!("leaked: {error}"));
    let mut all = All::new(fabric::open()?)?;
    let mut delete = Command::new("rdma");
    let mut delete = Running::start(delete.args(["link", "delete", DEVICE]))?;
    let seen = eventually("the device leaves the list", || {
        verbs::devices().is_ok_and(|list| list.find(DEVICE).is_err())
    });
    // The device must be restored even after a failure, because other cases need it.
    let was_waiting = !delete.has_ended();
    (0..KINDS).rev().for_each(|kind| all.drop_one(kind));
    let deleted = delete.finish(LIMIT)?;
    let back = run(Command::new("rdma").args(["link", "add", DEVICE, "type", "rxe", "netdev", "veth0"]))?;
    eventually("the device is back, with its address", || {
        fabric::open()
            .is_ok_and(|context| context.find_gid(PORT).is_ok_and(|gid| gid.gid.to_ipv4().is_some()))
    })?;
    seen?;
    assert!(was_waiting, "it was deleted below its objects");
    assert!(deleted.is_ok_and(|done| done.status.success()) && back.status.success(), "{back:?}");
    Ok(())
}
