//! Killed processes: a program at each of its steps, and one side of a ping-pong.
//!
//! If both programs are ours, the survivor detects the end of its peer. rdma-core's programs close
//! their exchange connection before the first message. If one of the two is rdma-core's, the
//! survivor therefore ends only if one of its requests fails. On rxe, no request fails: the
//! programs set 7 retries, which rxe treats as unlimited (seen on 6.1). The survivor waits forever,
//! as it does with two of rdma-core's programs, so the test kills it too.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use verbs::{CqInit, MwType, QpInit, QpType, RemoteAccess, SendFlags, SendOp, SrqInit};
use verbs_fixtures::fabric::{
    self, Pair, Remote, Shape, create_qp, init_attr, is_rxe, rtr_attr, rxe_is_before,
};
use verbs_harness::forked;
use verbs_harness::port;
use verbs_harness::process::{self, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail};
use verbs_harness::tools::{DEVICE, LIMIT, Maker, gid_index};

use super::All;
use super::counts::{SUITE, back_to, resources};

/// The number of steps in [`die_at`].
const STEPS: u32 = 10;

/// Kills a process at each of its steps. The kernel must release everything that the process made,
/// even with requests in flight.
pub(super) fn a_process_killed_at_any_step_leaves_nothing() -> CaseResult {
    // Some drivers make internal objects together with a program's first objects.
    drop(All::new(fabric::open()?)?);
    let baseline = resources()?;
    for step in 0..STEPS {
        let ended = forked::run_group(
            || {
                let why = die_at(step);
                eprintln!("{why:?}");
                1
            },
            LIMIT,
        )?;
        match ended {
            Ok(ended) if ended.status.signal() == Some(Signal::SIGKILL as i32) => {}
            ended => return fail(format_args!("it did not reach step {step}: {ended:?}")),
        }
        back_to(&baseline).map_err(|stop| stop.context(format_args!("after step {step}")))?;
    }
    // The device still works.
    drop(All::new(fabric::open()?)?);
    back_to(&baseline)
}

/// Makes one object after another and dies at the given step.
fn die_at(step: u32) -> CaseResult {
    let mut left = step;
    let mut reached = || {
        if left == 0 {
            let _ = raise(Signal::SIGKILL);
        }
        left = left.saturating_sub(1);
    };
    let context = fabric::open()?;
    reached();
    let (pd, channel) = (context.alloc_pd()?, context.create_comp_channel()?);
    let mut armed = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) })?;
    armed.req_notify(false)?;
    reached();
    let mut srq = pd.create_srq(&SrqInit::new(8))?;
    srq.post_recv_buf(pd.alloc_buf(100)?, ..)?;
    let _sharing = pd.create_qp(&QpInit { srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &armed) })?;
    reached();
    let has_windows = !rxe_is_before(6, 1)?;
    let _mw = if has_windows { Some(pd.alloc_mw(MwType::TYPE_1)?) } else { None };
    let memory = pd.expose_to_windows(pd.alloc_buf(4096)?)?;
    reached();
    let shape = Shape::default();
    let qp = create_qp(&pd, &armed, &shape)?;
    let own = Remote::from_qp(&qp);
    reached();
    let mut qp = qp.to_init(&init_attr())?;
    qp.post_recv_buf(pd.alloc_buf(100)?, ..)?;
    reached();
    let qp = qp.to_rtr(&rtr_attr(&context, &shape, own)?)?;
    reached();
    let mut qp = qp.to_rts(&shape.rts)?;
    reached();
    // rxe on Linux 6.12 and later warns if memory is deregistered while packets refer to it.
    if !is_rxe()? {
        let mut pair = Pair::new(&context, &shape)?;
        for _ in 0..8 {
            // These sends wait for receives.
            pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), pair.pd.alloc_buf(100)?, ..)?;
        }
        let window = pd.alloc_window(MwType::TYPE_2)?;
        qp.post_bind(SendFlags::empty(), window, &memory, .., RemoteAccess::READ)?;
        reached();
        drop(pair);
    } else {
        reached();
    }
    let _errored = qp.to_error()?;
    reached();
    fail("there are fewer steps")
}

/// Returns the cases: each ping-pong with either side killed (when the client is killed, the
/// programs sleep), and the pairs with rdma-core's programs.
pub(super) fn cases() -> Vec<Case> {
    const TOOLS: &[&str] = &["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"];
    let mut cases = Vec::new();
    for tool in TOOLS {
        for (side, kill_server, flags) in [("server", true, &[][..]), ("client", false, &["-e"][..])] {
            let name = format!("a killed {side} of {tool} ends its peer and leaves nothing");
            cases.push(Case::new(SUITE, name, move || ours_beside_ours(tool, kill_server, flags)));
        }
        for (dead, survivor) in [(Maker::Ours, Maker::Theirs), (Maker::Theirs, Maker::Ours)] {
            let name =
                format!("{tool} of which {dead} serves and is killed, then {survivor}, leaves nothing");
            let makers = (dead, survivor);
            cases.push(Case::new(SUITE, name, move || beside_theirs(tool, &makers)));
        }
    }
    cases
}

/// Starts both sides of an endless ping-pong: the server, then the client.
fn start(tool: &str, makers: (&Maker, &Maker), flags: &[&str]) -> CaseResult<(Running, Running)> {
    let (port, gid) = (port::free()?, gid_index()?.to_string());
    let start = |maker: &Maker, operands: &[&str]| -> CaseResult<Running> {
        let mut command = maker.tool(tool)?;
        command.args(["-d", DEVICE, "-g", &gid, "-p", &port.to_string(), "-n", "1000000000"]);
        Ok(Running::start(command.args(flags).args(operands))?)
    };
    let mut server = start(makers.0, &[])?;
    if !process::wait_for_listener(port, LIMIT, || !server.has_ended()) {
        return fail(format_args!("the server does not listen: {:?}", server.finish(Duration::ZERO)?));
    }
    Ok((server, start(makers.1, &["127.0.0.1"])?))
}

/// Kills one side, which must not have ended before.
fn kill_it(side: Running) -> CaseResult {
    side.kill();
    let (Ok(killed) | Err(killed)) = side.finish(LIMIT)?;
    assert_eq!(killed.status.code(), None, "it ended before it was killed: {killed:?}");
    Ok(())
}

fn ours_beside_ours(tool: &str, kill_server: bool, flags: &[&str]) -> CaseResult {
    let baseline = resources()?;
    let (mut server, mut client) = start(tool, (&Maker::Ours, &Maker::Ours), flags)?;
    let has_met = |side: &mut Running| side.wait_for_output(LIMIT, |text| text.contains("  remote address:"));
    if !has_met(&mut server) || !has_met(&mut client) {
        let (server, client) = (server.finish(Duration::ZERO)?, client.finish(Duration::ZERO)?);
        return fail(format_args!("they do not meet: {server:?}, {client:?}"));
    }
    let held = resources()?;
    assert!(held.get("qp") > baseline.get("qp") && held.get("mr") > baseline.get("mr"), "{held:?}");
    let (killed, survivor) = if kill_server { (server, client) } else { (client, server) };
    kill_it(killed)?;
    let Ok(survivor) = survivor.finish(LIMIT)? else {
        return fail("its peer does not end");
    };
    let says_why = ["the peer has ended", "Failed status"].iter().any(|why| survivor.stderr.contains(why));
    assert!(survivor.status.code() == Some(1) && says_why, "{survivor:?}");
    back_to(&baseline)
}

/// Kills the server while messages flow, then the client, which has not noticed.
fn beside_theirs(tool: &str, makers: &(Maker, Maker)) -> CaseResult {
    let baseline = resources()?;
    let before = sent()?;
    let (dead, mut survivor) = start(tool, (&makers.0, &makers.1), &[])?;
    let deadline = Instant::now() + LIMIT;
    while sent()? < before + 200 {
        if Instant::now() > deadline || survivor.has_ended() {
            let (dead, survivor) = (dead.finish(Duration::ZERO)?, survivor.finish(Duration::ZERO)?);
            return fail(format_args!("they do not play: {dead:?}, {survivor:?}"));
        }
        thread::yield_now();
    }
    let held = resources()?;
    kill_it(dead)?;
    // The killed program's objects are gone; the other program's objects stay.
    let half = resources()?;
    assert!(baseline["qp"] < half["qp"] && half["qp"] < held["qp"], "{baseline:?} {half:?} {held:?}");
    kill_it(survivor)?;
    back_to(&baseline)
}

/// Returns the number of packets that the device has sent.
fn sent() -> CaseResult<u64> {
    let text = fs::read_to_string(format!("/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/sent_pkts"))?;
    text.trim_end().parse().map_err(|error| Stop::Failed(format!("{text:?}: {error}")))
}
