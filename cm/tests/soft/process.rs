//! Two processes started with `VERBS_SOFT=auto` find each other through a port on localhost. This
//! program starts itself again as both processes.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rdmacm::{CmId, ConnParam, Connector, Event, EventChannel, EventKind, Incoming, Listener, PortSpace};
use verbs::state::Rts;
use verbs::{Errno, Qp};

use crate::listener::peers;
use crate::support::{
    End as Objects, Host, PATIENCE, RESOLVE, Server, asking, established, is_inside, next, request, resolved,
};
use crate::{short, users};

/// The environment variable that selects the part that a process runs.
///
/// Parts without a port are `device`, `none`, `short`, `memory`, `ipv6` and `crowd`. A port follows
/// `connect`, `row`, `vanish`, `exit`, `occupied`, `squat`, `haunt`, `leave` and `move`. It is
/// optional after `listen`, `local` and `third`, which otherwise use any port.
const PART: &str = "RDMACM_SOFT_PART";

/// Starts this program again with a part, which runs in [`a_part`].
pub(crate) fn start(part: &str) -> Child {
    start_on("auto", part)
}

/// Starts a part as [`start`] does, with a device at an address.
pub(crate) fn start_on(address: &str, part: &str) -> Child {
    command_on(address, part).spawn().expect("this program starts again")
}

/// Returns the command that starts a part.
pub(crate) fn command_on(address: &str, part: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    // The part runs in the first thread: in another thread, the test harness would allocate even if
    // memory is short.
    command.args(["--exact", "process::a_part", "--nocapture", "--test-threads=1"]);
    command.env(PART, part).env("VERBS_SOFT", address).env_remove("VERBS_SOFT_STRICT_PORTS");
    match part {
        "none" | "short" | "memory" | "crowd" => command.env_remove("VERBS_SOFT"),
        "ipv6" => command.env("VERBS_SOFT", Ipv6Addr::LOCALHOST.to_string()),
        _ if part.starts_with("leave") => command.env("ADDRESS", address).env("VERBS_SOFT", "auto"),
        _ if part.starts_with("move") => command.env_remove("VERBS_SOFT").env("ADDRESS", address),
        _ => &mut command,
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A process that is killed when the test ends.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a line containing `begin` and returns the text after it.
pub(crate) fn line(process: &mut BufReader<std::process::ChildStdout>, begin: &str) -> String {
    let mut text = String::new();
    while process.read_line(&mut text).expect("its output") > 0 {
        if let Some((_, rest)) = text.split_once(begin) {
            return rest.trim().to_owned();
        }
        text.clear();
    }
    panic!("the process ended without the line {begin}");
}

/// Runs a part, in a process started by another test. Not a test itself.
#[test]
fn a_part() {
    let Ok(part) = env::var(PART) else { return };
    let mut words = part.split_whitespace();
    let (role, port) = (words.next(), words.next().and_then(|port| port.parse().ok()));
    match (role, port) {
        (Some("listen"), port) => listen((Ipv4Addr::UNSPECIFIED, port.unwrap_or(0)).into()),
        (Some("local"), port) => listen((Ipv4Addr::LOCALHOST, port.unwrap_or(0)).into()),
        (Some("third"), port) => listen((users::THIRD, port.unwrap_or(0)).into()),
        (Some("squat"), Some(port)) => users::squat(port, words.next()),
        (Some("haunt"), Some(port)) => users::haunt(port),
        (Some("leave"), Some(port)) => leave(port),
        (Some("connect"), Some(port)) => connect(port, End::Disconnects),
        (Some("row"), Some(port)) => connect_in_a_row(port),
        (Some("vanish"), Some(port)) => connect(port, End::IsKilled),
        (Some("exit"), Some(port)) => connect(port, End::Exits),
        (Some("occupied"), Some(port)) => occupied(port),
        (Some("move"), Some(port)) => give_up_the_device(port),
        (Some("device"), None) => device(),
        (Some("none"), None) => no_devices(),
        (Some("short"), None) => short_of_files(),
        (Some("memory"), None) => short::of_memory(),
        (Some("full"), None) => full_of_files(),
        (Some("ipv6"), None) => ipv6(),
        (Some("crowd"), None) => peers::beyond_the_default(),
        other => panic!("{other:?}"),
    }
}

/// Connects, then exits while connected.
fn leave(port: u16) {
    let address: IpAddr = env::var("ADDRESS").unwrap().parse().unwrap();
    let channel = EventChannel::new().unwrap();
    let id = resolved(&channel, PortSpace::TCP, (address, port));
    id.connect_with(&ConnParam { qp_num: 7, ..ConnParam::default() }).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::ConnectResponse(_)));
    id.establish().unwrap();
    std::process::exit(0);
}

/// Listens on a port used by another process.
fn occupied(port: u16) {
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    id.bind_addr((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    let error = id.listen(1).unwrap_err();
    assert_eq!(error.errno, Errno::ADDRINUSE, "{error}");
    let other = channel.create_id(PortSpace::UDP).unwrap();
    other.bind_addr((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    other.listen(1).unwrap();
}

/// Connects, disconnects, then continues without a device until its parent has noticed this.
fn give_up_the_device(port: u16) {
    let address: IpAddr = env::var("ADDRESS").unwrap().parse().unwrap();
    let device = verbs::soft::bind(address).unwrap();
    let channel = EventChannel::new().unwrap();
    let id = resolved(&channel, PortSpace::TCP, (Ipv4Addr::LOCALHOST, port));
    let objects = send(&channel, &id);
    id.disconnect().unwrap();
    assert!(matches!(next(&channel).kind, EventKind::Disconnected));
    drop((id, objects, device));
    let begin = Instant::now();
    // The connection manager releases the address after a short time.
    while let Err(error) = verbs::soft::bind(address) {
        assert!(begin.elapsed() < PATIENCE, "{error}");
        std::thread::yield_now();
    }
    println!("\nmoved");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Opens a device without a connection manager, until the parent has read its address.
fn device() {
    let host = Host::new();
    println!("\ndevice {}", host.address);
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Listens on all addresses of both families with an IPv6 device, until standard input gets a line.
fn ipv6() {
    let server = Server::on((Ipv6Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    println!("\nlistening {}", server.address.port());
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Opens a channel in a process in which neither backend has a device.
fn no_devices() {
    match EventChannel::new() {
        Ok(_) => println!("SKIP: this machine has the kernel's connection manager"),
        Err(error) => assert!(error.to_string().contains("rdma_cm"), "{error}"),
    }
}

/// Creates a listener, opens files up to the limit, then receives three requests.
fn full_of_files() {
    let channel = EventChannel::new().unwrap();
    let listener = channel.create_id(PortSpace::TCP).unwrap();
    listener.bind_addr((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    listener.listen(8).unwrap();
    let port = listener.local_addr().unwrap().unwrap().port();
    let mut files = Vec::new();
    let error = loop {
        match std::fs::File::open("/proc/self/exe") {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw()));
    println!("full at {port}");
    for _ in 0..3 {
        let request = next(&channel);
        assert!(matches!(request.kind, EventKind::ConnectRequest { .. }), "{request:?}");
    }
}

/// Handles a request without a free descriptor, then further requests.
fn short_of_files() {
    let host = Host::new();
    let listener = Listener::bind(host.at(0)).unwrap();
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::TCP, listener.local_addr());
    let context = client.context().unwrap();
    client.connect_with(&ConnParam { qp_num: 0xff_ff07, ..ConnParam::default() }).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The lowest free descriptor.
    let next_file = std::fs::File::open("/proc/self/exe").unwrap().as_raw_fd();
    setrlimit(Resource::RLIMIT_NOFILE, next_file.try_into().unwrap(), hard).unwrap();
    let incoming = listener.next_incoming(PATIENCE).unwrap();
    assert!(
        matches!(&incoming, Some(Incoming::Failed { error, .. }) if error.errno == Errno::MFILE),
        "{incoming:?}"
    );
    let event = next(&channel);
    assert!(matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
    // The port state is unknown, not down.
    assert_eq!(context.query_port(1).unwrap_err().errno, Errno::MFILE);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert!(context.query_port(1).is_ok());
    let to = listener.local_addr();
    let client = std::thread::spawn(move || Connector::default().connect(to));
    assert!(listener.accept_within(PATIENCE).unwrap().is_some());
    client.join().unwrap().unwrap();
}

/// Accepts the connection of a process in [`connect`] and receives its message.
fn accept(server: &Server) -> (CmId, Objects) {
    let request = request(&server.channel);
    assert_eq!(&request.peer.private_data()[..5], b"child");
    let id = request.id;
    let mut end = Objects::from_id(&id);
    let mut qp = end.qp(&id);
    qp.post_recv_buf(end.pd.alloc_buf(16).unwrap(), ..).unwrap();
    id.accept(qp, &ConnParam::default()).unwrap();
    established(&server.channel, &id);
    let received = end.cq.poll_within(PATIENCE).unwrap().ok().unwrap();
    assert_eq!(received.received(), 4);
    (id, end)
}

/// Accepts one connection and waits until the peer disconnects.
fn listen(at: SocketAddr) {
    let server = Server::on(at, PortSpace::TCP, 0);
    println!("\nlistening {}", server.address.port());
    let (id, _end) = accept(&server);
    println!("\nreceived");
    let event = next(&server.channel);
    assert!(event.id == id.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
    id.disconnect().unwrap();
    println!("\nended");
}

/// The way in which a connected process exits.
enum End {
    Disconnects,
    IsKilled,
    Exits,
}

/// Connects, sends a message, then exits in the way that `ending` selects.
fn connect(port: u16, ending: End) {
    let channel = EventChannel::new().unwrap();
    let id = resolved(&channel, PortSpace::TCP, (Ipv4Addr::LOCALHOST, port));
    let _objects = send(&channel, &id);
    match ending {
        End::Disconnects => {
            id.disconnect().unwrap();
            assert!(matches!(next(&channel).kind, EventKind::Disconnected));
        }
        End::IsKilled => {
            println!("\nconnected");
            next(&channel);
        }
        // The process exits with this id and another id whose request is unanswered.
        End::Exits => {
            let other = resolved(&channel, PortSpace::TCP, (Ipv4Addr::LOCALHOST, port));
            other.connect_with(&ConnParam { qp_num: 7, ..ConnParam::default() }).unwrap();
            std::process::exit(0);
        }
    }
}

/// The number of connections that [`connect_in_a_row`] makes.
const ROW: usize = 32;

/// Connects again as soon as the previous connection is established.
fn connect_in_a_row(port: u16) {
    let channel = EventChannel::new().unwrap();
    let _connections: Vec<_> = (0..ROW)
        .map(|_| {
            let id = resolved(&channel, PortSpace::TCP, (Ipv4Addr::LOCALHOST, port));
            let end = Objects::from_id(&id);
            id.connect(end.qp(&id), &ConnParam::default()).unwrap();
            established(&channel, &id);
            (id, end)
        })
        .collect();
    println!("\nconnected");
    // The other process kills this process.
    next(&channel);
}

/// Connects to a process that runs [`accept`] and sends it a message.
pub(crate) fn send(channel: &EventChannel, id: &CmId) -> (Objects, Qp<Rts>) {
    let mut end = Objects::from_id(id);
    id.connect(end.qp(id), &ConnParam { private_data: b"child", ..ConnParam::default() }).unwrap();
    established(channel, id);
    let mut qp = id.take_qp().unwrap();
    let message = end.pd.alloc_buf(4).unwrap();
    qp.post_send_buf(verbs::SendOp::Send, verbs::SendFlags::empty(), message, ..).unwrap();
    end.cq.poll_within(PATIENCE).unwrap().ok().unwrap();
    (end, qp)
}

/// Requests at an address shared by processes arrive at a different socket from other messages.
#[test]
fn a_connection_is_established_before_the_next_request_of_its_client() {
    let test = "process::a_connection_is_established_before_the_next_request_of_its_client";
    // The first device of a process shares its address with other processes.
    if !is_inside(test, "true") {
        return;
    }
    let _device = verbs::soft::auto().unwrap();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let mut client = Process(start(&format!("row {}", server.address.port())));
    let accepted: Vec<_> = (0..ROW)
        .map(|_| {
            let id = request(&server.channel).id;
            let end = Objects::from_id(&id);
            id.accept(end.qp(&id), &ConnParam::default()).unwrap();
            established(&server.channel, &id);
            (id, end)
        })
        .collect();
    line(&mut BufReader::new(client.0.stdout.take().unwrap()), "connected");
    drop(accepted);
}

#[test]
fn a_client_that_exits_with_its_connections_disconnects_them_at_once() {
    let _host = Host::new();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let mut client = Process(start(&format!("exit {}", server.address.port())));
    let (id, _end) = accept(&server);
    // The client's second request, the end of that request and the end of the first connection may
    // overtake each other.
    let mut requests = Vec::new();
    let mut is_disconnected = false;
    while !is_disconnected {
        match next(&server.channel) {
            Event { kind: EventKind::ConnectRequest(request), .. } => requests.push(request.id),
            event => {
                assert!(event.id == id.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
                is_disconnected = true;
            }
        }
    }
    assert!(client.0.wait().unwrap().success());
    // This request arrives after all messages of the client.
    let (_channel, asking) = asking(server.address_at(Ipv4Addr::LOCALHOST));
    let latest = asking.local_addr().unwrap();
    loop {
        let id = request(&server.channel).id;
        if id.peer_addr().unwrap() == latest {
            break;
        }
        requests.push(id);
    }
    assert!(requests.len() <= 1);
    for request in requests {
        assert_eq!(request.accept_with(&ConnParam::default()).unwrap_err().errno, Errno::INVAL);
    }
}

#[test]
fn a_client_that_is_killed_leaves_a_listener_that_serves_the_next_one() {
    let _host = Host::new();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let port = server.address.port();
    let mut client = Process(start(&format!("vanish {port}")));
    let mut output = BufReader::new(client.0.stdout.take().unwrap());
    let (id, end) = accept(&server);
    line(&mut output, "connected");
    drop(client);
    let event = next(&server.channel);
    assert!(event.id == id.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
    let begin = Instant::now();
    drop((id, end));
    assert!(begin.elapsed() < Duration::from_secs(2), "the end of an id waits for no peer");

    let mut client = Process(start(&format!("connect {port}")));
    let (id, _end) = accept(&server);
    let event = next(&server.channel);
    assert!(event.id == id.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
    id.disconnect().unwrap();
    assert!(client.0.wait().unwrap().success());
}

#[test]
fn the_end_of_a_process_is_that_of_its_own_connections() {
    let _host = Host::new();
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 99, high, low).to_string();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let port = server.address.port();
    let serve = || {
        let (id, end) = accept(&server);
        let event = next(&server.channel);
        assert!(event.id == id.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
        id.disconnect().unwrap();
        drop((id, end));
    };
    let start_at = |part: &str| {
        let mut process = Process(start_on(&address, &format!("{part} {port}")));
        let output = BufReader::new(process.0.stdout.take().unwrap());
        (process, output)
    };
    let (first, mut output) = start_at("move");
    serve();
    line(&mut output, "moved");
    // Another process now has the address.
    let (second, mut output) = start_at("vanish");
    let (id, _end) = accept(&server);
    line(&mut output, "connected");
    drop(first);
    // The connection manager has noticed that end before it handles another request.
    let mut third = Process(start(&format!("connect {port}")));
    serve();
    assert!(third.0.wait().unwrap().success());
    drop(second);
    let event = next(&server.channel);
    assert!(event.id == id.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
}

#[test]
fn a_port_of_localhost_has_one_listener_on_the_machine() {
    let _host = Host::new();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let mut process = Process(start(&format!("occupied {}", server.address.port())));
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn two_processes_of_one_user_listen_on_all_addresses_whichever_comes_first() {
    const TEST: &str = "process::two_processes_of_one_user_listen_on_all_addresses_whichever_comes_first";
    // Another program may have a device at 127.0.0.1 on this machine.
    if !is_inside(TEST, "true") {
        return;
    }
    let _host = Host::new();
    let channel = EventChannel::new().unwrap();
    let (loopback, other) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
    let listen = |device: Ipv4Addr, part: &str| {
        let mut process = Process(start_on(&device.to_string(), part));
        let mut output = BufReader::new(process.0.stdout.take().unwrap());
        let port: u16 = line(&mut output, "listening ").parse().unwrap();
        (process, output, port)
    };
    let start = |first: Ipv4Addr, second: Ipv4Addr| {
        let (first, output, port) = listen(first, "listen");
        // This process has queried the first listener.
        drop(resolved(&channel, PortSpace::TCP, (loopback, port)));
        let (second, its_output, _) = listen(second, &format!("listen {port}"));
        (port, (first, output), (second, its_output))
    };
    let serve = |(process, output), to, port| users::be_served(process, output, (to, port));

    let (port, at_loopback, at_other) = start(loopback, other);
    serve(at_loopback, loopback, port);
    serve(at_other, other, port);

    let (port, at_other, at_loopback) = start(other, loopback);
    serve(at_loopback, loopback, port);
    // This listener is alone again.
    serve(at_other, loopback, port);

    let (port, at_other, at_loopback) = start(other, loopback);
    serve(at_other, other, port);
    let name = format!("verbs-soft/cm/2/{:x}/{port}/127.0.0.1", PortSpace::TCP.0);
    let name = UnixAddress::from_abstract_name(name).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while UnixStream::connect_addr(&name).is_err() {
        assert!(Instant::now() < deadline, "the other one takes the name, which is free");
        std::thread::yield_now();
    }
    serve(at_loopback, loopback, port);

    // A listener on only that address gets all of its clients.
    let (_local, _output, port) = listen(other, "local");
    let mut process = Process(start_on(&loopback.to_string(), &format!("occupied {port}")));
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn a_device_of_a_process_that_does_not_listen_rejects_at_once() {
    let _host = Host::new();
    let mut process = Process(start("device"));
    let address = line(&mut BufReader::new(process.0.stdout.take().unwrap()), "device ");
    let channel = EventChannel::new().unwrap();
    for space in [PortSpace::TCP, PortSpace::UDP] {
        let client = resolved(&channel, space, (address.parse::<Ipv4Addr>().unwrap(), 7471));
        client.connect_with(&ConnParam::default()).unwrap();
        let error = next(&channel).ok().unwrap_err();
        assert!(error.to_string().contains("no program listens"), "{error}");
    }
}

#[test]
fn the_address_of_a_device_resolves_while_its_process_does_nothing() {
    let _host = Host::new();
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 98, high, low);
    let mut process = Process(start_on(&address.to_string(), "listen"));
    let mut output = BufReader::new(process.0.stdout.take().unwrap());
    let port: u16 = line(&mut output, "listening ").parse().unwrap();
    let server = Pid::from_raw(process.0.id().cast_signed());
    kill(server, Signal::SIGSTOP).unwrap();
    let channel = EventChannel::new().unwrap();
    let ids = [(); 3].map(|()| {
        let id = channel.create_id(PortSpace::TCP).unwrap();
        id.resolve_addr(None, (address, port), Duration::ZERO).unwrap();
        let event = next(&channel);
        assert!(event.id == id.key() && matches!(event.kind, EventKind::AddrResolved), "{event:?}");
        id
    });
    kill(server, Signal::SIGCONT).unwrap();
    let [id, ..] = ids;
    id.resolve_route(RESOLVE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::RouteResolved));
    let _objects = send(&channel, &id);
    line(&mut output, "received");
    id.disconnect().unwrap();
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn a_process_without_devices_has_no_channel() {
    let mut process = Process(start("none"));
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn two_processes_find_each_other_by_a_port_of_localhost() {
    let mut listener = Process(start("listen"));
    let mut output = BufReader::new(listener.0.stdout.take().unwrap());
    let port = line(&mut output, "listening ");
    let mut client = Process(start(&format!("connect {port}")));
    line(&mut output, "received");
    line(&mut output, "ended");
    assert!(client.0.wait().unwrap().success());
    assert!(listener.0.wait().unwrap().success());
}

#[test]
fn a_request_finds_a_listener_that_came_behind_the_resolution_of_its_address() {
    let _host = Host::new();
    let listener = |part: &str| {
        let mut process = Process(start(part));
        let mut output = BufReader::new(process.0.stdout.take().unwrap());
        let port: u16 = line(&mut output, "listening ").parse().unwrap();
        (process, port, output)
    };
    let (mut first, port, _output) = listener("listen");
    let channel = EventChannel::new().unwrap();
    let resolve = || resolved(&channel, PortSpace::TCP, (Ipv4Addr::LOCALHOST, port));
    // The port leads to the first listener's device, then to none.
    let led_to_the_first = resolve();
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    for id in [led_to_the_first, resolve()] {
        let (mut next_one, _, _output) = listener(&format!("listen {port}"));
        let _objects = send(&channel, &id);
        id.disconnect().unwrap();
        assert!(matches!(next(&channel).kind, EventKind::Disconnected));
        assert!(next_one.0.wait().unwrap().success());
    }
}

#[test]
fn a_listener_with_devices_of_another_family_is_reported_as_that() {
    const TEST: &str = "process::a_listener_with_devices_of_another_family_is_reported_as_that";
    if !is_inside(TEST, "true") {
        return;
    }
    let _host = Host::new();
    let mut process = Process(start("ipv6"));
    let port: u16 =
        line(&mut BufReader::new(process.0.stdout.take().unwrap()), "listening ").parse().unwrap();
    let channel = EventChannel::new().unwrap();
    // The second time, the reply is cached.
    for _ in 0..2 {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let to = SocketAddr::new(ip, port);
            let id = channel.create_id(PortSpace::TCP).unwrap();
            id.resolve_addr(None, to, RESOLVE).unwrap();
            let error = next(&channel).ok().unwrap_err();
            assert_eq!(error.errno, Errno::AFNOSUPPORT, "{to}: {error}");
            assert!(error.to_string().contains("another address family"), "{to}: {error}");
        }
    }
    let error = Connector::default().connect((Ipv4Addr::LOCALHOST, port)).unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}: a program listens")), "{error}");
}

#[test]
fn two_hundred_and_fifty_six_peers_connect_to_a_listener_of_a_process_with_1024_files() {
    let mut process = Process(start("crowd"));
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn clients_find_a_listener_whose_process_has_no_file_left() {
    let _host = Host::new();
    let mut child = start("full");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut process = Process(child);
    let port = line(&mut output, "full at").parse().unwrap();
    // Each id has a channel: the process rejects the first request while the second id is resolved.
    let _ids = [1, 2, 3].map(|qp_num| {
        let channel = EventChannel::new().unwrap();
        let id = resolved(&channel, PortSpace::TCP, (Ipv4Addr::LOCALHOST, port));
        id.connect_with(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
        (id, channel)
    });
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn a_listener_without_files_left_rejects_the_request_and_goes_on() {
    let mut process = Process(start("short"));
    assert!(process.0.wait().unwrap().success());
}
