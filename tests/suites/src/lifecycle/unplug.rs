//! Devices removed while programs use them.
//!
//! The kernel detaches a device from its users only where the driver can (`disassociate_ucontext`).
//! mlx5 can. Only then does the kernel raise `DEVICE_FATAL` and fail later commands with `EIO`. rxe
//! cannot. For rxe, `ib_uverbs_remove_one` (Linux `drivers/infiniband/core/uverbs_main.c`) removes
//! the device file and waits until its last user closes it, without notifying programs.
//!
//! | removed device | effect on a program that has it open | the removing command |
//! |---|---|---|
//! | rxe, by `rdma link delete` | everything still works, no event | waits for the program |
//! | rxe, with its interface | `GID_CHANGE` or `PORT_ERR`, requests fail | waits for the program |
//! | soft, with its interface | `GID_CHANGE`, `PORT_ERR`, requests fail | does not wait |
//!
//! A soft device is usable again once its interface and its address are back.
//!
//! Opening a deleted rxe device fails at once.
//!
//! rdma-core's programs get no more information than ours. See
//! [`their_program_is_not_told_of_a_deleted_device_either`].

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use verbs::state::{Reset, Rts};
use verbs::{
    Ah, AhAttr, AsyncEventType, AsyncEvents, Completed, ConnectAttr, Context, Cq, CqInit, Device, Errno, Gid,
    Mtu, MwType, Pd, PortState, Qp, QpInit, QpState, QpType, RemoteAccess, SendFlags, SendOp, Srq, SrqInit,
    UdAddr, WcStatus,
};
use verbs_fixtures::fabric::{
    self, PATIENCE, PORT, QKEY, Remote, Shape, connect, eventually, is_rxe, path, rxe_is_before,
};
use verbs_harness::cases;
use verbs_harness::process::Running;
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};
use verbs_harness::sandbox::{ip, private_network};
use verbs_harness::tools::{LIMIT, Maker, run};

use super::counts::{SUITE, fds};

/// Returns the cases for the kernel's rxe.
pub(super) fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        a_deleted_device_serves_its_users_until_they_close_it,
        their_program_is_not_told_of_a_deleted_device_either,
        a_device_that_goes_with_its_interface_ends_requests_with_errors,
    )
}

/// Returns the cases for soft devices.
pub(super) fn of_soft() -> Vec<Case> {
    cases!(
        SUITE,
        a_soft_device_outlives_its_interface,
        a_soft_device_is_used_again_once_its_interface_is_back,
    )
}

/// The removed device's interface and its peer.
const LINK: [&str; 2] = ["unplug0", "unplug1"];

/// The device on that interface. Other cases use another device.
const SPARE: &str = "rxe9";

/// The interface's address.
pub(crate) const ADDRESS: [u8; 4] = [10, 99, 0, 1];

/// An interface that only one case uses. Dropping this value deletes it.
pub(crate) struct Interface;

impl Interface {
    pub(crate) fn new() -> CaseResult<Self> {
        let [link, peer] = LINK;
        // A failed case may have left the interface behind.
        let _ = ip(&["link", "del", link]);
        ip(&["link", "add", link, "type", "veth", "peer", "name", peer])?;
        let interface = Self;
        let [a, b, c, d] = ADDRESS;
        ip(&["addr", "add", &format!("{a}.{b}.{c}.{d}/24"), "dev", link])?;
        ip(&["link", "set", peer, "up"])?;
        ip(&["link", "set", link, "up"])?;
        Ok(interface)
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        let _ = ip(&["link", "del", LINK[0]]);
    }
}

/// Creates an rxe device on an interface.
pub(crate) fn spare(_: &Interface) -> CaseResult<Device> {
    let added = run(Command::new("rdma").args(["link", "add", SPARE, "type", "rxe", "netdev", LINK[0]]));
    match added {
        Ok(added) if added.status.success() => {}
        Ok(added) => return fail(format_args!("{added:?}")),
        Err(why) => return skip(format_args!("no rdma tool (package iproute2): {why:?}")),
    }
    let device = verbs::devices()?.find(SPARE)?;
    eventually("the device has a GID for its address", || {
        device.open().is_ok_and(|context| {
            context.find_gid(PORT).is_ok_and(|gid| gid.gid.to_ipv4() == Some(ADDRESS.into()))
        })
    })?;
    Ok(device)
}

/// Starts to delete the device and waits until programs can no longer find it.
pub(crate) fn delete() -> CaseResult<Running> {
    let mut command = Command::new("rdma");
    let deleting = Running::start(command.args(["link", "delete", SPARE]))?;
    leaves_the_list()?;
    Ok(deleting)
}

fn leaves_the_list() -> CaseResult {
    eventually("the device leaves the list", || verbs::devices().is_ok_and(|list| list.find(SPARE).is_err()))
}

/// Waits for the command that removes the device. It must succeed.
pub(crate) fn succeeds(taking: Running) -> CaseResult {
    match taking.finish(LIMIT)? {
        Ok(done) if done.status.success() => Ok(()),
        done => fail(format_args!("taking the device away: {done:?}")),
    }
}

/// Checks that opening a deleted device fails soon and names the reason. The kernel first removes
/// the device from its list; until the device's file is gone too, an open may still succeed. The
/// sysfs directory is removed last; before that, an open finds a device without a file.
fn cannot_be_opened(device: &Device) -> CaseResult {
    let is_gone = |error: &verbs::Error| error.to_string().contains("gone");
    eventually("the file and the directory of the device go", || {
        device.open().is_err_and(|error| is_gone(&error))
    })?;
    let started = Instant::now();
    let Err(error) = device.open() else { return fail("a deleted device was opened") };
    assert!([Errno::NOENT, Errno::NODEV, Errno::NXIO].contains(&error.errno), "{error}");
    assert!(is_gone(&error), "{error}");
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    Ok(())
}

/// The state that the threads of [`Traffic`] share.
#[derive(Debug, Default)]
struct Signals {
    stop: AtomicBool,
    /// The number of messages in each stream.
    messages: [AtomicU64; STREAMS.len()],
    /// The asynchronous events raised so far.
    events: Mutex<Vec<AsyncEventType>>,
}

/// The message streams: the transport of each and whether its receives are shared.
const STREAMS: [(QpType, bool); 3] = [(QpType::RC, false), (QpType::RC, true), (QpType::UD, false)];

/// A model of several programs: message streams, a thread waiting for completions, a thread waiting
/// for events.
struct Traffic {
    signals: Arc<Signals>,
    streams: Vec<JoinHandle<CaseResult<Option<WcStatus>>>>,
    waiting: JoinHandle<CaseResult<usize>>,
    events: JoinHandle<CaseResult>,
}

/// The interval after which a waiting thread checks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

impl Traffic {
    /// Starts all threads and waits until each stream flows.
    fn start(context: &Context) -> CaseResult<Self> {
        let signals = Arc::new(Signals::default());
        let mut streams = Vec::new();
        for (number, (qp_type, is_shared)) in STREAMS.into_iter().enumerate() {
            let stream = Stream::new(context, qp_type, is_shared)?;
            let signals = Arc::clone(&signals);
            streams.push(std::thread::spawn(move || stream.run(&signals, number)));
        }
        let channel = context.create_comp_channel()?;
        let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(4) })?;
        cq.req_notify(false)?;
        let seen = Arc::clone(&signals);
        let waiting = std::thread::spawn(move || {
            let mut told = 0;
            while !seen.stop.load(Ordering::Relaxed) {
                told += usize::from(channel.wait(Some(LOOK))?.is_some());
            }
            cq.close()?;
            channel.close()?;
            Ok(told)
        });
        let (seen, stream) = (Arc::clone(&signals), context.async_events()?);
        let events = std::thread::spawn(move || {
            while !seen.stop.load(Ordering::Relaxed) {
                let event = stream.wait(Some(LOOK))?;
                seen.events.lock()?.extend(event.map(|event| event.event_type));
            }
            Ok(())
        });
        let traffic = Self { signals, streams, waiting, events };
        traffic.flows()?;
        Ok(traffic)
    }

    /// Waits until each stream has carried more messages.
    fn flows(&self) -> CaseResult {
        let counts = || self.signals.messages.each_ref().map(|count| count.load(Ordering::Relaxed));
        let before = counts();
        eventually("messages arrive on every stream", || {
            counts().iter().zip(before).all(|(now, before)| *now > before + 20)
        })
    }

    /// Returns the events raised so far.
    fn events(&self) -> Vec<AsyncEventType> {
        self.signals.events.lock().map_or_else(|_| Vec::new(), |events| events.clone())
    }

    /// Stops all threads. Returns the final status of each stream and the events.
    fn stop(self) -> CaseResult<(Vec<Option<WcStatus>>, Vec<AsyncEventType>)> {
        self.signals.stop.store(true, Ordering::Relaxed);
        let statuses = self.streams.into_iter().map(joined).collect::<CaseResult<Vec<_>>>()?;
        assert_eq!(joined(self.waiting)?, 0, "a queue without completions has events");
        joined(self.events)?;
        let mut events = core::mem::take(&mut *self.signals.events.lock()?);
        // This event is raised when a queue pair with shared receives ends. The thread may or may
        // not see it.
        events.retain(|event| *event != AsyncEventType::QP_LAST_WQE_REACHED);
        Ok((statuses, events))
    }
}

/// Joins a thread of [`Traffic`] and returns its result.
fn joined<T>(thread: JoinHandle<CaseResult<T>>) -> CaseResult<T> {
    thread.join().unwrap_or_else(|_| fail("a thread panicked"))
}

/// Two queue pairs that exchange messages.
struct Stream {
    // Dropped first, because it is bound to a queue pair.
    window: Option<verbs::Window>,
    a: Qp<Rts>,
    b: Qp<Rts>,
    a_cq: Cq,
    b_cq: Cq,
    srq: Option<Srq>,
    ah: Option<Ah>,
    pd: Pd,
}

/// The space for a message and a datagram's header, in bytes.
const ROOM: usize = 40 + 64;

impl Stream {
    fn new(context: &Context, qp_type: QpType, is_shared: bool) -> CaseResult<Self> {
        // The MTU is small enough for every interface. A soft device reads the MTU from sysfs,
        // which may show another network namespace.
        let shape = Shape { qp_type, path_mtu: Mtu::MTU_256, ..Shape::default() };
        let pd = context.alloc_pd()?;
        let srq = if is_shared { Some(pd.create_srq(&SrqInit::new(8))?) } else { None };
        let (a_cq, b_cq) = (context.create_cq(&CqInit::new(16))?, context.create_cq(&CqInit::new(16))?);
        let a = fabric::create_qp(&pd, &a_cq, &shape)?;
        let srq_handle = srq.as_ref().map(Srq::handle);
        let b = pd.create_qp(&QpInit { cap: shape.cap, srq: srq_handle, ..QpInit::new(qp_type, &b_cq) })?;
        let (to_a, to_b) = (Remote::from_qp(&a), Remote::from_qp(&b));
        let (a, b) = (connect(context, a, &shape, to_b)?, connect(context, b, &shape, to_a)?);
        let ah = match qp_type {
            QpType::UD => Some(pd.create_ah(&path(&context.find_gid(PORT)?))?),
            _ => None,
        };
        let mut stream = Self { window: None, a, b, a_cq, b_cq, srq, ah, pd };
        if qp_type == QpType::RC && !rxe_is_before(6, 1)? {
            stream.bind()?;
        }
        Ok(stream)
    }

    /// Binds a window, which stays bound until the device is removed.
    fn bind(&mut self) -> CaseResult {
        let window = self.pd.alloc_window(MwType::TYPE_2)?;
        let memory = self.pd.expose_to_windows(self.pd.alloc_buf(ROOM)?)?;
        self.a.post_bind(SendFlags::empty(), window, &memory, .., RemoteAccess::READ)?;
        self.window = Some(fabric::next_completed(&mut self.a_cq)?.into_window()?);
        Ok(())
    }

    /// Exchanges messages until one fails or the stream should stop. Returns the status of the
    /// failed message.
    fn run(mut self, signals: &Signals, number: usize) -> CaseResult<Option<WcStatus>> {
        let failed = loop {
            if signals.stop.load(Ordering::Relaxed) {
                break None;
            }
            self.post()?;
            let Some(sent) = next(&mut self.a_cq, signals)? else { break None };
            if sent.status != WcStatus::SUCCESS {
                break Some(sent.status);
            }
            let Some(received) = next(&mut self.b_cq, signals)? else { break None };
            if received.status != WcStatus::SUCCESS {
                break Some(received.status);
            }
            signals.messages[number].fetch_add(1, Ordering::Relaxed);
        };
        self.end()?;
        Ok(failed)
    }

    /// Posts a receive and a matching send.
    fn post(&mut self) -> CaseResult {
        let room = self.pd.alloc_buf(ROOM)?;
        match &mut self.srq {
            Some(srq) => drop(srq.post_recv_buf(room, ..)?),
            None => drop(self.b.post_recv_buf(room, ..)?),
        }
        let op = match &self.ah {
            Some(ah) => SendOp::UdSend { to: ah.to(self.b.qp_num(), QKEY) },
            None => SendOp::Send,
        };
        self.a.post_send_buf(op, SendFlags::empty(), self.pd.alloc_buf(64)?, ..)?;
        Ok(())
    }

    /// Cleans up in a program's usual order: flushes the requests in flight and destroys every
    /// object.
    fn end(self) -> CaseResult {
        let Self { window, a, b, a_cq, b_cq, srq, ah, pd } = self;
        drop(window);
        let mut a = a.to_error()?;
        a.post_send_buf(SendOp::Send, SendFlags::empty(), pd.alloc_buf(64)?, ..).map_or_else(|_| (), drop);
        a.dismantle()?;
        b.to_error()?.dismantle()?;
        if let Some(srq) = srq {
            srq.dismantle()?;
        }
        if let Some(ah) = ah {
            ah.close()?;
        }
        a_cq.close()?;
        b_cq.close()?;
        Ok(pd.close()?)
    }
}

/// Returns the next completion, or `None` if the stream should stop.
fn next(cq: &mut Cq, signals: &Signals) -> CaseResult<Option<Completed>> {
    let deadline = Instant::now() + PATIENCE;
    while !signals.stop.load(Ordering::Relaxed) {
        if let Some(completed) = cq.poll_one() {
            return Ok(Some(completed));
        }
        if Instant::now() > deadline {
            return fail(format_args!("neither a completion nor an error after {PATIENCE:?}"));
        }
        std::thread::yield_now();
    }
    Ok(None)
}

fn a_deleted_device_serves_its_users_until_they_close_it() -> CaseResult {
    verbs::on_leak(|error| panic!("leaked: {error}"));
    let interface = Interface::new()?;
    let device = spare(&interface)?;
    let context = device.open()?;
    let traffic = Traffic::start(&context)?;
    let mut deleting = delete()?;
    cannot_be_opened(&device)?;
    // The streams continue; new objects can be made.
    traffic.flows()?;
    let buf = context.alloc_pd()?.alloc_buf(64)?;
    assert_eq!(context.query_port(PORT)?.state, PortState::ACTIVE);
    traffic.flows()?;
    assert!(!deleting.has_ended(), "it was deleted below its objects");
    let (statuses, events) = traffic.stop()?;
    assert_eq!(statuses, [None; STREAMS.len()], "messages failed");
    assert_eq!(events, [], "the kernel tells of a deletion that it cannot do");
    assert!(!deleting.has_ended(), "it was deleted below its objects");
    drop(buf);
    context.close()?;
    succeeds(deleting)
}

/// Neither rdma-core's `ibv_asyncwatch` nor ours gets an event. Both keep the device alive.
fn their_program_is_not_told_of_a_deleted_device_either() -> CaseResult {
    /// A delay long enough that the kernel is already waiting for the programs.
    const MORE: Duration = Duration::from_secs(2);
    let interface = Interface::new()?;
    spare(&interface)?;
    let mut watches = Vec::new();
    for maker in [Maker::Theirs, Maker::Ours] {
        let mut watch = Running::start(maker.tool("ibv_asyncwatch")?.args(["-d", SPARE]))?;
        assert!(watch.wait_for_output(LIMIT, |said| said.contains("async event FD")), "{maker}");
        watches.push((maker, watch));
    }
    let mut deleting = delete()?;
    for (maker, watch) in &mut watches {
        let was_told = watch.wait_for_output(MORE, |said| said.contains("event_type"));
        assert!(!was_told && !watch.has_ended(), "{maker} noticed");
    }
    assert!(!deleting.has_ended(), "it was deleted below its users");
    drop(watches);
    succeeds(deleting)
}

fn a_device_that_goes_with_its_interface_ends_requests_with_errors() -> CaseResult {
    verbs::on_leak(|error| panic!("leaked: {error}"));
    let interface = Interface::new()?;
    let device = spare(&interface)?;
    let context = device.open()?;
    let traffic = Traffic::start(&context)?;
    // Deleting the interface waits for the device; the device waits for its users.
    let mut taking = Command::new("ip");
    let taking = Running::start(taking.args(["link", "del", LINK[0]]))?;
    leaves_the_list()?;
    cannot_be_opened(&device)?;
    ended_by_the_interface(&traffic)?;
    let of_port = [AsyncEventType::GID_CHANGE, AsyncEventType::PORT_ERR];
    eventually("the program is told of its port", || {
        traffic.events().iter().any(|event| of_port.contains(event))
    })?;
    let (statuses, events) = traffic.stop()?;
    // A requester without a route fails at once. Newer kernels flush its request.
    let expected = if rxe_is_before(6, 1)? {
        [WcStatus::LOC_PROT_ERR, WcStatus::LOC_PROT_ERR, WcStatus::RETRY_EXC_ERR]
    } else {
        [WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR, WcStatus::RETRY_EXC_ERR]
    };
    reliable_streams_failed(&statuses, &expected);
    assert!(!events.contains(&AsyncEventType::DEVICE_FATAL), "{events:?}");
    context.close()?;
    succeeds(taking)
}

/// Waits until all reliable streams have ended.
fn ended_by_the_interface(traffic: &Traffic) -> CaseResult {
    let reliable = || traffic.streams.iter().zip(STREAMS).filter(|(_, (qp_type, _))| *qp_type == QpType::RC);
    eventually("requests of reliable queue pairs end", || reliable().all(|(stream, _)| stream.is_finished()))
}

fn reliable_streams_failed(statuses: &[Option<WcStatus>], with: &[WcStatus]) {
    for (status, (qp_type, _)) in statuses.iter().zip(STREAMS) {
        let is_expected = status.is_some_and(|status| with.contains(&status));
        assert!(is_expected || qp_type != QpType::RC, "{statuses:?}");
    }
}

/// Creates the interface for a soft device, in a network namespace for this case only.
fn of_a_soft_device() -> CaseResult<Interface> {
    if is_rxe()? {
        return skip("for soft devices");
    }
    if !private_network()? {
        return skip("the host allows no network namespace with an interface that can be deleted");
    }
    match Interface::new() {
        Err(Stop::Failed(why)) => skip(format_args!("the host makes no interface: {why}")),
        interface => interface,
    }
}

/// Creates a device whose packets all need the interface, even those within this machine.
fn on_the_interface(address: IpAddr) -> verbs::Result<Device> {
    verbs::soft::builder().shared_memory(false).bind(address)
}

fn a_soft_device_outlives_its_interface() -> CaseResult {
    let interface = of_a_soft_device()?;
    verbs::on_leak(|error| panic!("leaked: {error}"));
    let open = fds()?;
    let device = on_the_interface(ADDRESS.into())?;
    let context = device.open()?;
    let traffic = Traffic::start(&context)?;
    drop(interface);
    ended_by_the_interface(&traffic)?;
    // The device still exists, but has no address.
    eventually("the port is down", || {
        context.query_port(PORT).is_ok_and(|port| port.state != PortState::ACTIVE)
    })?;
    assert_eq!(context.find_gid(PORT).map_err(|error| error.errno), Err(Errno::NODATA));
    drop(context.alloc_pd()?.alloc_buf(64)?);
    drop(device.open()?);
    // The order of these events depends on when the device checks. The interface may have come up
    // only after the device was created.
    eventually("the program is told of its port", || {
        let told = traffic.events();
        [AsyncEventType::GID_CHANGE, AsyncEventType::PORT_ERR].iter().all(|event| told.contains(event))
    })?;
    let (statuses, events) = traffic.stop()?;
    reliable_streams_failed(&statuses, &[WcStatus::RETRY_EXC_ERR]);
    let of_port = [AsyncEventType::PORT_ACTIVE, AsyncEventType::GID_CHANGE, AsyncEventType::PORT_ERR];
    assert!(events.iter().all(|event| of_port.contains(event)), "{events:?}");
    context.close()?;
    drop(device);
    eventually("its descriptors are closed", || fds().is_ok_and(|now| now == open))
}

/// Waits for two events on a port. A port that came up late may raise other events before them.
fn told(events: &AsyncEvents, wanted: [AsyncEventType; 2]) -> CaseResult {
    let mut seen = Vec::new();
    while !wanted.iter().all(|event| seen.contains(event)) {
        match events.wait(Some(PATIENCE))? {
            Some(event) => seen.push(event.event_type),
            None => return fail(format_args!("{seen:?} instead of {wanted:?}")),
        }
    }
    Ok(())
}

/// Connects queue pairs on two devices so that messages fail within a second.
fn joined_up([near, far]: [&Context; 2], [a, b]: [Qp<Reset>; 2]) -> CaseResult<[Qp<Rts>; 2]> {
    let attr = ConnectAttr { max_mtu: Mtu::MTU_256, timeout: 12, retry_cnt: 3, ..ConnectAttr::default() };
    let (near, far) = (near.port(PORT)?, far.port(PORT)?);
    let (to_a, to_b) = (a.endpoint(&near), b.endpoint(&far));
    Ok([a.connect(&near, &to_b, &attr)?, b.connect(&far, &to_a, &attr)?])
}

/// Two queue pairs on one device. One is a member of a multicast group; the other sends to the
/// group.
struct Multicast {
    talker: Qp<Rts>,
    member: Qp<Rts>,
    cq: Cq,
    group: Ah,
    pd: Pd,
}

impl Multicast {
    fn new(context: &Context) -> CaseResult<Self> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(8))?);
        let gid = Gid::from(Ipv4Addr::new(239, 99, 0, 1));
        let qp = || {
            let shape = Shape::for_type(QpType::UD);
            connect(context, fabric::create_qp(&pd, &cq, &shape)?, &shape, Remote { qp_num: 0, psn: 0 })
        };
        let (talker, mut member) = (qp()?, qp()?);
        member.attach_mcast(&gid, 0)?;
        let group = pd.create_ah(&AhAttr::new(&context.find_gid(PORT)?, gid))?;
        Ok(Self { talker, member, cq, group, pd })
    }

    /// Sends a message to the group and waits until the member has received it.
    fn is_heard(&mut self) -> CaseResult {
        self.member.post_recv_buf(self.pd.alloc_buf(ROOM)?, ..)?;
        let to = self.group.to(UdAddr::MULTICAST_QPN, QKEY);
        self.talker.post_send_buf(SendOp::UdSend { to }, SendFlags::empty(), self.pd.alloc_buf(64)?, ..)?;
        for _ in 0..2 {
            assert_eq!(fabric::next_completed(&mut self.cq)?.status, WcStatus::SUCCESS);
        }
        Ok(())
    }
}

fn a_soft_device_is_used_again_once_its_interface_is_back() -> CaseResult {
    use AsyncEventType as E;
    let interface = of_a_soft_device()?;
    verbs::on_leak(|error| panic!("leaked: {error}"));
    let open = fds()?;
    // The near device is on the loopback interface, which stays.
    let near_device = on_the_interface(Ipv4Addr::LOCALHOST.into())?;
    let far_device = on_the_interface(ADDRESS.into())?;
    let (near, far) = (near_device.open()?, far_device.open()?);
    let (near_events, far_events) = (near.async_events()?, far.async_events()?);
    let (near_pd, far_pd) = (near.alloc_pd()?, far.alloc_pd()?);
    let channel = near.create_comp_channel()?;
    let mut sends = near.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(4) })?;
    let mut recvs = far.create_cq(&CqInit::new(4))?;
    let a = near_pd.create_qp(&QpInit::new(QpType::RC, &sends))?;
    let b = far_pd.create_qp(&QpInit::new(QpType::RC, &recvs))?;
    let [mut a, mut b] = joined_up([&near, &far], [a, b])?;
    // The sender sleeps until its request has completed.
    let mut send = |a: &mut Qp<Rts>| -> CaseResult<WcStatus> {
        sends.req_notify(false)?;
        a.post_send_buf(SendOp::Send, SendFlags::empty(), near_pd.alloc_buf(64)?, ..)?;
        if channel.wait(Some(PATIENCE))?.is_none() {
            return fail("a message ends without an event");
        }
        match sends.poll_one() {
            Some(completed) => Ok(completed.status),
            None => fail("an event without a completion"),
        }
    };
    let mut multicast = Multicast::new(&far)?;
    for _ in 0..2 {
        b.post_recv_buf(far_pd.alloc_buf(64)?, ..)?;
    }
    assert_eq!(send(&mut a)?, WcStatus::SUCCESS);
    assert_eq!(fabric::next_completed(&mut recvs)?.status, WcStatus::SUCCESS);
    multicast.is_heard()?;

    drop(interface);
    told(&far_events, [E::GID_CHANGE, E::PORT_ERR])?;
    assert_eq!(send(&mut a)?, WcStatus::RETRY_EXC_ERR);
    // The receiver does not notice, because messages that do not arrive cause no event.
    assert_eq!(b.state()?, QpState::RTS);

    let interface = Interface::new()?;
    told(&far_events, [E::GID_CHANGE, E::PORT_ACTIVE])?;
    let (a, mut b) = (a.to_reset()?, b.to_reset()?);
    assert_eq!(b.reclaim_all().len(), 1, "the receive that no message took");
    let [mut a, mut b] = joined_up([&near, &far], [a, b])?;
    b.post_recv_buf(far_pd.alloc_buf(64)?, ..)?;
    assert_eq!(send(&mut a)?, WcStatus::SUCCESS);
    assert_eq!(fabric::next_completed(&mut recvs)?.status, WcStatus::SUCCESS);
    multicast.is_heard()?;

    assert_eq!(near_events.next_event()?, None, "an event of an interface that the device is not on");
    drop((a, b, multicast, sends, recvs, channel, near_pd, far_pd, near_events, far_events));
    near.close()?;
    far.close()?;
    drop((near_device, far_device, interface));
    eventually("its descriptors are closed", || fds().is_ok_and(|now| now == open))
}
