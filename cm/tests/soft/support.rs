//! Devices, channels with deadlines, connected pairs.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use rdmacm::{Address, CmId, ConnParam, ConnectRequest, Event, EventChannel, EventKind, PortSpace};
use verbs::state::{Init, Rts};
use verbs::{Context, Cq, CqInit, Device, Pd, Qp, QpInit, QpType, SendFlags, SendOp};

/// The time after which a test fails. It is long because machines may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The time-out for resolving an address or a route.
pub(crate) const RESOLVE: Duration = Duration::from_secs(5);

/// A soft device of this process, with its address.
pub(crate) struct Host {
    device: Device,
    pub(crate) address: IpAddr,
}

impl Host {
    /// Creates a device with an address that no other process has. The first such device of a
    /// process would share its address.
    pub(crate) fn new() -> Self {
        let auto = || verbs::soft::auto().expect("a free address of 127.0.0.0/8");
        let (_first, device) = (auto(), auto());
        let context = device.open().expect("a soft device opens");
        let gid = context.find_gid(1).expect("a soft device has a GID").gid;
        Self { device, address: gid.to_ipv4().expect("an IPv4 address").into() }
    }

    pub(crate) fn open(&self) -> Context {
        self.device.open().expect("a soft device opens")
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        (self.address, port).into()
    }
}

/// The environment variable set for a test in its private network.
const INSIDE: &str = "RDMACM_SOFT_INSIDE";

/// The ways to enter a network namespace: directly, if privileged, or in a user namespace, which
/// grants the privilege.
const WAYS: [&[&str]; 2] = [&["--net"], &["--user", "--map-root-user", "--net"]];

/// Runs a test again in a network namespace prepared by shell commands. Returns whether this is
/// that second run.
pub(crate) fn is_inside(test: &str, network: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let unshare = |way: &[&str], last: &str| {
        let mut command = Command::new("unshare");
        let script = format!("ip link set lo up && {network} && {last}");
        command.args(way).args(["sh", "-c", &script, "sh"]);
        command
    };
    let works = |way: &&&[&str]| unshare(way, "true").output().is_ok_and(|end| end.status.success());
    let Some(way) = WAYS.iter().find(works) else {
        // `println!` is shown only for failing tests.
        let _ = writeln!(io::stdout(), "\nskip {test}: no network namespace with {network:?}");
        return false;
    };
    let this = std::env::current_exe().expect("this program");
    let mut command = unshare(way, "exec \"$@\"");
    command.arg(this).args(["--exact", test, "--nocapture"]);
    let end = command.env(INSIDE, "1").env_remove("VERBS_SOFT").output().expect("unshare runs");
    let [said, complaint] = [&end.stdout, &end.stderr].map(|text| String::from_utf8_lossy(text));
    // With an unknown test name, no test runs, which counts as success.
    let has_passed = end.status.success() && said.contains("test result: ok. 1 passed");
    assert!(has_passed, "in a network of its own, {}:\n{said}\n{complaint}", end.status);
    false
}

/// Runs `ip` with arguments.
#[track_caller]
pub(crate) fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {words}");
}

/// Returns the next event. Fails after [`PATIENCE`].
#[track_caller]
pub(crate) fn next(channel: &EventChannel) -> Event {
    let event = channel.next_event_within(PATIENCE).expect("the channel works");
    event.expect("an event comes in time")
}

/// Returns the next connection request. Fails after [`PATIENCE`].
#[track_caller]
pub(crate) fn request(channel: &EventChannel) -> ConnectRequest {
    match next(channel).kind {
        EventKind::ConnectRequest(request) => request,
        other => panic!("{other:?} instead of a request"),
    }
}

/// A listener and its port.
pub(crate) struct Server {
    pub(crate) channel: EventChannel,
    pub(crate) listener: CmId,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn new(host: &Host) -> Self {
        Self::with_backlog(host, 0)
    }

    pub(crate) fn with_backlog(host: &Host, backlog: u32) -> Self {
        Self::on(host.at(0), PortSpace::TCP, backlog)
    }

    pub(crate) fn on(address: SocketAddr, space: PortSpace, backlog: u32) -> Self {
        let channel = EventChannel::new().expect("a channel");
        let listener = channel.create_id(space).expect("an id");
        listener.bind_addr(address).expect("a free port");
        listener.listen(backlog).expect("a listener");
        let port = listener.local_addr().expect("an address").expect("a bound id").port();
        Self { channel, listener, address: SocketAddr::new(address.ip(), port) }
    }

    /// Returns an address of a server that listens on all addresses.
    pub(crate) fn address_at(&self, ip: impl Into<IpAddr>) -> SocketAddr {
        SocketAddr::new(ip.into(), self.address.port())
    }
}

/// Returns an id with a resolved route to a peer.
pub(crate) fn resolved(channel: &EventChannel, space: PortSpace, to: impl Into<Address>) -> CmId {
    resolved_from(None, channel, space, to)
}

/// Returns an id with a resolved route from a source address to a peer.
pub(crate) fn resolved_from(
    source: Option<Address>,
    channel: &EventChannel,
    space: PortSpace,
    to: impl Into<Address>,
) -> CmId {
    let id = channel.create_id(space).expect("an id");
    id.resolve_addr(source, to, RESOLVE).expect("an address");
    let event = next(channel);
    assert!(event.id == id.key() && matches!(event.kind, EventKind::AddrResolved), "{event:?}");
    id.resolve_route(RESOLVE).expect("a resolved address");
    let event = next(channel);
    assert!(event.id == id.key() && matches!(event.kind, EventKind::RouteResolved), "{event:?}");
    id
}

/// Returns an id that has requested a connection from a server, with its channel.
pub(crate) fn asking(server: SocketAddr) -> (EventChannel, CmId) {
    let channel = EventChannel::new().expect("a channel");
    let client = resolved(&channel, PortSpace::TCP, server);
    client.connect_with(&ConnParam::default()).expect("a request is sent");
    (channel, client)
}

/// The objects of one end of a connection.
pub(crate) struct End {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
}

impl End {
    pub(crate) fn from_id(id: &CmId) -> Self {
        let context = id.context().expect("a device");
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_cq(&CqInit::new(16)).expect("a queue");
        Self { pd, cq }
    }

    pub(crate) fn qp(&self, id: &CmId) -> Qp<Init> {
        id.create_qp(&self.pd, &QpInit::new(QpType::RC, &self.cq)).expect("a queue pair")
    }
}

/// A connection with both ends in RTS.
pub(crate) struct Pair {
    pub(crate) client: CmId,
    pub(crate) server: CmId,
    pub(crate) client_qp: Qp<Rts>,
    pub(crate) server_qp: Qp<Rts>,
    pub(crate) client_end: End,
    pub(crate) server_end: End,
    pub(crate) channel: EventChannel,
}

/// Connects to a server.
pub(crate) fn connect(server: &Server) -> Pair {
    connect_from(None, server)
}

/// Connects from a source address to a server.
pub(crate) fn connect_from(source: Option<IpAddr>, server: &Server) -> Pair {
    let channel = EventChannel::new().expect("a channel");
    let source = source.map(|ip| (ip, 0).into());
    let client = resolved_from(source, &channel, PortSpace::TCP, server.address);
    let client_end = End::from_id(&client);
    let qp = client_end.qp(&client);
    client.connect(qp, &ConnParam::default()).expect("a request is sent");
    let accepted = request(&server.channel).id;
    let server_end = End::from_id(&accepted);
    let qp = server_end.qp(&accepted);
    accepted.accept(qp, &ConnParam::default()).expect("a reply is sent");
    let event = next(&channel);
    assert!(matches!(event.kind, EventKind::Established(_)), "{event:?}");
    let event = next(&server.channel);
    assert!(event.id == accepted.key() && matches!(event.kind, EventKind::Established(_)), "{event:?}");
    let client_qp = client.take_qp().expect("a connected queue pair");
    let server_qp = accepted.take_qp().expect("a connected queue pair");
    Pair { client, server: accepted, client_qp, server_qp, client_end, server_end, channel }
}

/// Waits until a connection is established.
#[track_caller]
pub(crate) fn established(channel: &EventChannel, id: &CmId) {
    let event = next(channel);
    assert!(event.id == id.key() && matches!(event.kind, EventKind::Established(_)), "{event:?}");
}

/// Sends a message from one end to the other.
pub(crate) fn exchange(from: (&mut Qp<Rts>, &mut End), to: (&mut Qp<Rts>, &mut End)) {
    to.0.post_recv_buf(to.1.pd.alloc_buf(64).expect("memory"), ..).expect("room for a receive");
    let mut message = from.1.pd.alloc_buf(5).expect("memory");
    message.copy_from_slice(b"hello");
    from.0.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..).expect("room for a send");
    from.1.cq.poll_within(PATIENCE).expect("a completion").ok().expect("it is sent");
    let received = to.1.cq.poll_within(PATIENCE).expect("a completion").ok().expect("it arrives");
    let count = received.received();
    assert_eq!(&received.into_buf().expect("the memory comes back")[..count], b"hello");
}

/// Waits until a channel has an event.
#[track_caller]
pub(crate) fn readable(channel: &impl AsFd) {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    let patience = PollTimeout::try_from(PATIENCE).expect("it fits");
    assert_eq!(poll(&mut fds, patience), Ok(1), "an event comes in time");
}

/// Returns whether a channel has an event now.
pub(crate) fn is_readable(channel: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(1)
}

/// Waits until no device has the address.
#[track_caller]
pub(crate) fn is_free(address: IpAddr) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = verbs::soft::bind(address) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
}
