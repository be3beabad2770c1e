//! Programs that use this project's API while their device dies. Each has a connection with
//! traffic, waiting threads, and objects of many kinds.
//!
//! ```text
//! Alive ── the device fails ──► Dying ── the kernel removes the device ──► Gone
//!          DEVICE_FATAL         calls succeed, or fail                     calls fail with EIO
//! ```
//!
//! | thread in a program | waits for | ends |
//! |---|---|---|
//! | traffic | the completions of a message | when the device fails |
//! | waiter | an event of an armed completion queue | with `EIO`, when the device is gone |
//! | watcher | asynchronous events | when the device is gone, if the kernel reports `EIO` |
//!
//! Afterwards, one program closes every object; the other drops them. The kernel confirms that each
//! is destroyed. No file descriptor or mapping of the device remains.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use verbs::state::Rts;
use verbs::{
    Ah, AsyncEventType, AsyncEvents, Buf, CompChannel, Completed, Context, Cq, CqInit, CqModeration, Errno,
    Exposed, HandleError, Mw, MwType, PostBufReason, PostReason, Provider, Qp, QpAttr, QpAttrMask, QpInit,
    QpType, RemoteAccess, SendFlags, SendOp, Srq, SrqInit, WcStatus, Window,
};
use verbs_fixtures::fabric::{
    self, Arena, End, PORT, Pair, Remote, Shape, connect, create_qp, eventually, filled, next_completed, path,
};
use verbs_fixtures::with_named;
use verbs_harness::process;
use verbs_harness::runner::{CaseResult, fail};

/// The time limit for a call made while the device is failing. The driver notices the failure
/// within a few seconds and aborts pending commands.
const CALL: Duration = Duration::from_secs(60);

/// Keeps two programs running while their device dies, one with its provider erased and one with
/// its provider known at compile time. `injure` makes the device fail. `take` makes the kernel
/// remove it, unless the kernel does so anyway. Each step takes at most `limit`.
///
/// # Errors
/// Fails if a call hangs, crashes or returns anything but success or `EIO`, if an event is missing,
/// or if a resource is left behind.
pub(super) fn while_it_dies(
    limit: Duration,
    injure: impl FnOnce() -> CaseResult,
    take: impl FnOnce() -> CaseResult,
) -> CaseResult {
    verbs::on_leak(|error| panic!("leaked: {error}"));
    // A process keeps everything that it loads and opens with its first device.
    drop(Pair::new(&fabric::open()?, &Shape::default())?);
    let before = (device_fds()?, device_maps()?);
    let hidden = Alive::start(fabric::open()?, limit)?;
    with_named!(fabric::open_named()?, |context| {
        let named = Alive::start(context, limit)?;
        injure()?;
        let (hidden, named) = (hidden.dying(limit)?, named.dying(limit)?);
        take()?;
        let (hidden, named) = (hidden.gone()?, named.gone()?);
        hidden.close()?;
        named.drop_parents_first();
    });
    eventually("the device's descriptors and mappings are closed", || {
        device_fds().is_ok_and(|fds| device_maps().is_ok_and(|maps| (fds, maps) == before))
    })
}

/// Opens the device again and sends a message through it.
///
/// # Errors
/// Fails if any step fails.
pub(super) fn works() -> CaseResult {
    let mut pair = Pair::new(&fabric::open()?, &Shape::default())?;
    let mut bufs = Some([pair.pd.alloc_buf(64)?, filled(&pair.pd, 7, 64)?]);
    message(&mut pair, &mut bufs, &AtomicBool::new(false))?;
    match bufs {
        Some([received, sent]) if received[..] == sent[..] => Ok(()),
        bufs => fail(format_args!("the message did not arrive: {bufs:?}")),
    }
}

/// Returns the number of file descriptors for devices and their events.
fn device_fds() -> CaseResult<usize> {
    let links = fs::read_dir("/proc/self/fd")?.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().contains("infiniband")).count())
}

/// Returns the number of device file mappings.
fn device_maps() -> CaseResult<usize> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter(|line| line.contains("/dev/infiniband/")).count())
}

type Thread<T> = JoinHandle<CaseResult<T>>;

/// A program with a working device.
struct Alive<P: Provider> {
    is_failing: Arc<AtomicBool>,
    traffic: Thread<Pair<P>>,
    waiting: Waiting<P>,
    objects: Objects<P>,
}

/// The threads that wait until the device is gone.
struct Waiting<P: Provider> {
    waiter: Thread<(CompChannel, Cq<P>)>,
    watcher: Thread<Vec<AsyncEventType>>,
    is_gone: Arc<AtomicBool>,
}

/// A program's objects, except its connection and its armed queue.
struct Objects<P: Provider> {
    window: Window,
    windowed: Exposed,
    sharing: Qp<Rts, P>,
    srq: Srq<P>,
    mw: Mw<P>,
    arena: Arena<P>,
    ah: Ah<P>,
    cq: Cq<P>,
    events: Arc<AsyncEvents>,
    context: Context<P>,
}

impl<P: Provider> Alive<P> {
    fn start(context: Context<P>, limit: Duration) -> CaseResult<Self> {
        let shape = Shape::default();
        let mut pair = Pair::new(&context, &shape)?;
        let pd = pair.pd.clone();
        let mut srq = pd.create_srq(&SrqInit::new(8))?;
        srq.post_recv_buf(pd.alloc_buf(64)?, ..)?;
        let cq = context.create_cq(&CqInit::new(16))?;
        let init = QpInit { srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &cq) };
        let sharing = pd.create_qp(&init)?;
        let own = Remote::from_qp(&sharing);
        let sharing = connect(&context, sharing, &shape, own)?;
        let windowed = pd.expose_to_windows(pd.alloc_buf(4096)?)?;
        let window = pd.alloc_window(MwType::TYPE_2)?;
        pair.a.qp.post_bind(SendFlags::empty(), window, &windowed, .., RemoteAccess::READ)?;
        let window = next_completed(&mut pair.a.cq)?.into_window()?;
        let (mw, arena) = (pd.alloc_mw(MwType::TYPE_1)?, Arena::new(&pd, 4096)?);
        let ah = pd.create_ah(&path(&context.find_gid(PORT)?))?;
        let channel = context.create_comp_channel()?;
        let mut armed = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(4) })?;
        armed.req_notify(false)?;
        let events = Arc::new(context.async_events()?);
        let mut bufs = Some([pd.alloc_buf(64)?, pd.alloc_buf(64)?]);
        // One message arrives before the device fails.
        message(&mut pair, &mut bufs, &AtomicBool::new(false))?;

        let is_failing = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_failing);
        let traffic = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                message(&mut pair, &mut bufs, &stop)?;
            }
            Ok(pair)
        });
        let waiter = thread::spawn(move || match channel.wait(Some(2 * limit)) {
            Err(error) if error.errno == Errno::IO => Ok((channel, armed)),
            woken => fail(format_args!("the wait for a completion event ended with {woken:?}")),
        });
        let is_gone = Arc::new(AtomicBool::new(false));
        let (told, gone, stream) = (Arc::clone(&is_failing), Arc::clone(&is_gone), Arc::clone(&events));
        let watcher = thread::spawn(move || watch(&stream, &told, &gone, limit));
        let objects = Objects { window, windowed, sharing, srq, mw, arena, ah, cq, events, context };
        Ok(Self { is_failing, traffic, waiting: Waiting { waiter, watcher, is_gone }, objects })
    }

    /// Waits until the device has failed, then makes calls of each kind.
    fn dying(self, limit: Duration) -> CaseResult<Dying<P>> {
        let Self { is_failing, traffic, waiting, mut objects } = self;
        if !process::wait_until(limit, || is_failing.load(Ordering::Relaxed)) {
            return fail("no DEVICE_FATAL");
        }
        let mut pair = joined(traffic)?;
        objects.calls(&mut pair, |verb, ended| match ended {
            // Some calls need no device command. The driver aborts other calls with a different
            // status.
            Ok(()) | Err(Errno::IO) => Ok(()),
            Err(errno) if errno == Errno::from_raw(libc::ENOLINK) => Ok(()),
            Err(errno) => fail(format_args!("{verb} on a device that fails: {errno}")),
        })?;
        post_until_full(&mut pair)?;
        Ok(Dying { pair, waiting, objects })
    }
}

/// A program with a failed device.
struct Dying<P: Provider> {
    pair: Pair<P>,
    waiting: Waiting<P>,
    objects: Objects<P>,
}

impl<P: Provider> Dying<P> {
    /// Waits until the kernel has removed the device, then makes calls of each kind.
    fn gone(self) -> CaseResult<Gone<P>> {
        let Self { mut pair, waiting, mut objects } = self;
        let (channel, mut armed) = joined(waiting.waiter)?;
        waiting.is_gone.store(true, Ordering::Relaxed);
        let events = joined(waiting.watcher)?;
        assert!(events.contains(&AsyncEventType::DEVICE_FATAL), "{events:?}");
        objects.calls(&mut pair, |verb, ended| match ended {
            Err(Errno::IO) => Ok(()),
            ended => fail(format_args!("{verb} on a device that is gone: {ended:?}")),
        })?;
        post_until_full(&mut pair)?;
        // Waiting a second time returns at once.
        let again = channel.wait(Some(CALL)).map_err(|error| error.errno);
        assert_eq!(again, Err(Errno::IO));
        let again = objects.events.wait(Some(LOOK)).map_err(|error| error.errno);
        assert!([Err(Errno::IO), Ok(None)].contains(&again), "{again:?}");
        assert!(armed.poll_one().is_none());
        let Pair { context, pd, a: End { qp, cq, .. }, b } = pair;
        // The transition is rejected and returns the queue pair.
        let Err(HandleError { handle: qp, error }) = qp.to_error() else {
            return fail("a queue pair of a device that is gone changed its state");
        };
        assert_eq!(error.errno, Errno::IO, "{error}");
        let pair = Pair { context, pd, a: End { qp, cq, channel: None }, b };
        Ok(Gone { pair, channel, armed, objects })
    }
}

/// A program whose device the kernel has removed.
struct Gone<P: Provider> {
    pair: Pair<P>,
    channel: CompChannel,
    armed: Cq<P>,
    objects: Objects<P>,
}

impl<P: Provider> Gone<P> {
    /// Closes every object. The kernel confirms each close.
    fn close(self) -> CaseResult {
        let Self { pair: Pair { context: clone, pd, a, b }, channel, armed, objects } = self;
        let Objects { window, windowed, sharing, srq, mw, arena, ah, cq, events, context } = objects;
        drop((events, clone));
        window.close()?;
        // The requests never completed. They return with their queue pairs.
        let returned = a.qp.dismantle()?.len() + b.qp.dismantle()?.len();
        assert!(returned <= 2, "{returned} pieces of memory of one message");
        sharing.close()?;
        assert_eq!(srq.dismantle()?.len(), 1, "the receive that no message took");
        mw.close()?;
        arena.close()?;
        windowed.unexpose()?.close()?;
        ah.close()?;
        for cq in [cq, a.cq, b.cq, armed] {
            cq.close()?;
        }
        channel.close()?;
        pd.close()?;
        // The context has no users left.
        Ok(context.close()?)
    }

    /// Drops every object: parents first, queue pairs and receive queues last.
    fn drop_parents_first(self) {
        let Self { pair: Pair { context: clone, pd, a, b }, channel, armed, objects } = self;
        let Objects { window, windowed, sharing, srq, mw, arena, ah, cq, events, context } = objects;
        drop((clone, context, pd, channel, events));
        drop((a.cq, b.cq, armed, cq));
        drop((windowed, arena, ah, mw, srq, window));
        drop((a.qp, b.qp, sharing));
    }
}

impl<P: Provider> Objects<P> {
    /// Makes a call of each kind and passes its result to `judge`.
    fn calls(
        &mut self,
        pair: &mut Pair<P>,
        mut judge: impl FnMut(&str, Result<(), Errno>) -> CaseResult,
    ) -> CaseResult {
        let Self { sharing, srq, cq, context, .. } = self;
        let pd = pair.pd.clone();
        let access = QpAttr { qp_access_flags: fabric::init_attr().access, ..QpAttr::default() };
        let moderation = CqModeration { cq_count: 2, cq_period: 100 };
        let calls: [(&str, &mut dyn FnMut() -> verbs::Result<()>); 16] = [
            ("query_device", &mut || context.query_device().map(drop)),
            ("query_device_ex", &mut || context.query_device_ex().map(drop)),
            ("query_port", &mut || context.query_port(PORT).map(drop)),
            ("alloc_pd", &mut || context.alloc_pd().map(drop)),
            ("create_comp_channel", &mut || context.create_comp_channel().map(drop)),
            ("create_cq", &mut || context.create_cq(&CqInit::new(4)).map(drop)),
            ("open_xrcd", &mut || context.open_xrcd(&verbs::XrcdInit::default()).map(drop)),
            ("reg_mr", &mut || pd.alloc_buf(64).map(drop)),
            ("alloc_mw", &mut || pd.alloc_mw(MwType::TYPE_1).map(drop)),
            ("create_srq", &mut || pd.create_srq(&SrqInit::new(4)).map(drop)),
            ("create_qp", &mut || create_qp(&pd, &pair.b.cq, &Shape::default()).map(drop)),
            ("query_qp", &mut || pair.b.qp.query(QpAttrMask::STATE).map(drop)),
            ("modify_qp", &mut || sharing.modify(&access, QpAttrMask::ACCESS_FLAGS)),
            ("query_srq and modify_srq", &mut || srq.query().map(drop).and(srq.arm(1))),
            ("resize_cq", &mut || cq.resize(100)),
            ("modify_cq", &mut || pair.a.cq.modify(moderation)),
        ];
        for (verb, call) in calls {
            let started = Instant::now();
            let ended = call();
            println!("{verb}: {ended:?}");
            assert!(started.elapsed() < CALL, "{verb} took {:?}", started.elapsed());
            judge(verb, ended.map_err(|error| error.errno))?;
        }
        Ok(())
    }
}

/// The check interval after `DEVICE_FATAL`. Linux 6.1 neither ends the event stream nor raises
/// another event.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until the device fails, signals the failure and collects events until the device is gone.
fn watch(
    events: &AsyncEvents,
    is_failing: &AtomicBool,
    is_gone: &AtomicBool,
    limit: Duration,
) -> CaseResult<Vec<AsyncEventType>> {
    let mut seen = Vec::new();
    loop {
        let has_failed = is_failing.load(Ordering::Relaxed);
        match events.wait(Some(if has_failed { LOOK } else { limit })) {
            Ok(Some(event)) => {
                seen.push(event.event_type);
                if event.event_type == AsyncEventType::DEVICE_FATAL {
                    is_failing.store(true, Ordering::Relaxed);
                }
            }
            Ok(None) if has_failed && is_gone.load(Ordering::Relaxed) => return Ok(seen),
            Ok(None) if has_failed => {}
            Err(error) if error.errno == Errno::IO => return Ok(seen),
            ended => return fail(format_args!("the wait for an event after {seen:?} ended with {ended:?}")),
        }
    }
}

/// Sends a message from one end to the other and returns both buffers to `bufs`. If the device
/// fails, stops waiting and leaves the buffers in flight.
fn message<P: Provider>(pair: &mut Pair<P>, bufs: &mut Option<[Buf; 2]>, stop: &AtomicBool) -> CaseResult {
    let Some([room, text]) = bufs.take() else {
        thread::yield_now();
        return Ok(());
    };
    pair.b.qp.post_recv_buf(room, ..)?;
    pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), text, ..)?;
    let received = completed(&mut pair.b.cq, stop)?;
    let sent = if received.is_some() { completed(&mut pair.a.cq, stop)? } else { None };
    if let (Some(received), Some(sent)) = (received, sent) {
        *bufs = Some([received.into_buf()?, sent.into_buf()?]);
    }
    Ok(())
}

/// Returns the next completion, or `None` if the device fails.
fn completed<P: Provider>(cq: &mut Cq<P>, stop: &AtomicBool) -> CaseResult<Option<Completed>> {
    let deadline = Instant::now() + fabric::PATIENCE;
    while Instant::now() < deadline {
        match cq.poll_one() {
            Some(completed) if completed.status == WcStatus::SUCCESS => return Ok(Some(completed)),
            // A failing device may report errors before the driver notices.
            Some(_) => return Ok(None),
            None if stop.load(Ordering::Relaxed) => return Ok(None),
            None => thread::yield_now(),
        }
    }
    fail("a message neither completes, nor fails, nor does the device")
}

/// Posts until the queue is full. Requests on a failing device need not complete, but no request
/// may complete twice.
fn post_until_full<P: Provider>(pair: &mut Pair<P>) -> CaseResult {
    let End { qp, cq, .. } = &mut pair.a;
    let slots = 2 * qp.cap().max_send_wr;
    let (mut posted, mut ended) = (0, 0);
    loop {
        match qp.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, b"hello") {
            Ok(()) if posted < slots => posted += 1,
            Err(PostBufReason::Post(PostReason::QueueFull)) => break,
            ended => return fail(format_args!("request {posted}: {ended:?}")),
        }
    }
    while ended <= slots && cq.poll_one().is_some() {
        ended += 1;
    }
    assert!(ended <= slots, "{ended} completions");
    cq.req_notify(false)?;
    Ok(())
}

fn joined<T>(thread: Thread<T>) -> CaseResult<T> {
    thread.join().unwrap_or_else(|_| fail("a thread of the program panicked"))
}
