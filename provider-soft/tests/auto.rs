//! `VERBS_SOFT=auto`: the address of the device, the processes that share it, and the packets that
//! reach it.
//!
//! This test has no harness, because it runs its own executable in network namespaces and as other
//! users. It is skipped if the host does not allow this, or lacks `unshare`, `ip` or interfaces of
//! the type `veth`.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use common::{Arena, End, Process, Shape, eventually, gid, pair_on, recv, send, wait_ok};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
};
use nix::unistd::geteuid;
use provider_soft::cm::{Port, Resolution, resolve};
use provider_soft::{Soft, SoftDevice};
use verbs::state::Reset;
use verbs::{Context, Errno, GidEntry, Guid, Mtu, NamedProvider, PortState, SendOp};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;

const PORT: u16 = 4791;
/// The port space of TCP in `rdma_cm.h`.
const TCP: u16 = 0x106;
/// The exit status of a shell that failed to create the interfaces.
const NO_LINK: i32 = 77;
/// Two interfaces of this host, `a0` and `b0`, with the peers `a1` and `b1`.
const LINKS: &str = r#"
    { ip link set lo up && ip link add a0 type veth peer name a1 && ip link add b0 type veth peer name b1 &&
      for link in a0 a1 b0 b1; do ip link set $link addrgenmode none && ip link set $link up || exit 77; done
    } || exit 77
    exec "$0" "$@"
"#;

/// The tests: a name, whether the test needs root, and the function. Each test runs in a separate
/// namespace.
const TESTS: [(&str, bool, fn()); 11] = [
    ("processes_have_the_device_of_the_default_route_and_find_it_again", false, default_route),
    ("without_a_default_route_it_has_the_first_interfaces_address", false, first_interface),
    ("a_host_with_ipv6_alone_has_a_stable_address", false, ipv6_only),
    ("without_addresses_processes_of_a_user_share_one_of_loopback", false, only_loopback),
    (
        "further_devices_of_a_process_have_addresses_of_loopback_and_all_reach_each_other",
        false,
        in_one_process,
    ),
    ("packets_of_other_hosts_never_arrive_whatever_source_they_claim", true, other_hosts),
    ("another_user_has_another_address_that_its_processes_share", true, other_user),
    ("an_address_is_either_for_this_host_or_for_the_network", false, kinds),
    ("a_port_that_another_program_has_is_avoided_and_one_on_all_addresses_is_an_error", false, taken_port),
    ("the_port_follows_the_address_and_needs_no_carrier", false, changes),
    ("addresses_of_other_hosts_are_not_reached", false, routes),
];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["member"] => return member(),
        ["outside"] => return outside(),
        [name] => {
            if let Some((.., test)) = TESTS.iter().find(|(other, ..)| *other == name) {
                test();
            }
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let this = std::env::current_exe().expect("this program has a path");
    // A user namespace makes an unprivileged process root of its network namespace.
    let flags = if geteuid().is_root() { "-n" } else { "-rn" };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, needs_root, _) in TESTS {
        if needs_root && !geteuid().is_root() {
            println!("skip auto.{name}: only root can start a process of another user or host");
            skipped += 1;
            continue;
        }
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-c", LINKS]).arg(&this).arg(name).env_remove("VERBS_SOFT");
        match command.status() {
            Ok(status) if status.success() => passed += 1,
            // `unshare` exits with 1 if the kernel does not permit it. A test that panics exits
            // with 101.
            Ok(status) if matches!(status.code(), Some(NO_LINK | 1)) => {
                println!("skip auto.{name}: no network namespace with interfaces ({status})");
                skipped += 1;
            }
            Err(error) => {
                println!("skip auto.{name}: unshare: {error}");
                skipped += 1;
            }
            Ok(status) => {
                println!("FAIL auto.{name}: {status}");
                failed += 1;
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ExitCode::from(failed)
}

/// Prints a description of the devices requested by `VERBS_SOFT`, or the reason why there are none.
/// Then waits until its standard input is closed.
fn member() -> ExitCode {
    let devices = verbs::devices().expect("a list");
    if devices.is_empty() {
        println!("{}", Port::missing().map(|missing| missing.to_string()).unwrap_or_default());
    }
    for device in devices.iter() {
        let context = device.open_as::<Soft>().unwrap();
        let entry = entry(&context);
        let end = End::<Reset>::new(&context, &Shape::default());
        let address = entry.gid.to_ipv6().to_canonical();
        println!(
            "{} {address} {:x} {} {}",
            device.name(),
            guid(&context).0,
            entry.ndev_ifindex,
            end.qp.qp_num() >> 16
        );
        let _ = std::io::stdin().read_line(&mut String::new());
    }
    ExitCode::SUCCESS
}

fn entry(context: &Context<Soft>) -> GidEntry {
    context.gid_table().unwrap().into_iter().next().expect("an entry")
}

fn guid(context: &Context<Soft>) -> Guid {
    context.query_device().unwrap().node_guid
}

fn open(device: &verbs::DeviceInfo) -> Context<Soft> {
    Context::from_raw(Soft::open(device).unwrap())
}

/// A process with a soft device, and the line it has printed.
struct Member {
    _process: Process,
    _stdin: ChildStdin,
    line: String,
}

impl Member {
    fn start(value: &str) -> Self {
        Self::start_as(value, None)
    }

    fn start_as(value: &str, user: Option<u32>) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.arg("member").env("VERBS_SOFT", value).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().expect("this program starts again");
        let line = read_line(&mut BufReader::new(child.stdout.take().expect("piped")));
        let _stdin = child.stdin.take().expect("piped");
        Self { _process: Process(child), _stdin, line }
    }

    /// Returns the name, address, GUID and interface of the process's device.
    #[track_caller]
    fn device(&self) -> &str {
        self.line.rsplit_once(' ').unwrap_or_else(|| panic!("{}", self.line)).0
    }

    #[track_caller]
    fn address(&self) -> IpAddr {
        let address = self.line.split(' ').nth(1).and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("{}", self.line))
    }

    #[track_caller]
    fn slot(&self) -> u32 {
        self.line
            .rsplit(' ')
            .next()
            .and_then(|slot| slot.parse().ok())
            .unwrap_or_else(|| panic!("{}", self.line))
    }
}

fn read_line(from: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// Runs `ip(8)` with the arguments in `words`.
#[track_caller]
fn run(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("ip").success(), "ip {words}");
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn index_of(interface: &str) -> u32 {
    nix::net::if_::if_nametoindex(interface).unwrap()
}

fn default_route() {
    run("addr add 10.78.0.1/24 dev b0");
    run("addr add 10.77.0.1/24 dev a0");
    run("route add default via 10.78.0.2 metric 200");
    run("route add default via 10.77.0.2 metric 100");
    let [first, second] = [Member::start("auto"), Member::start("auto")];
    let guid = "2005efe0a4d0001";
    assert_eq!(first.device(), format!("soft0 10.77.0.1 {guid} {}", index_of("a0")));
    assert_eq!(second.device(), first.device());
    assert!(first.slot() != second.slot(), "both {}", first.slot());
    let before = first.device().to_owned();
    drop((first, second));
    assert_eq!(Member::start("auto").device(), before);

    let context = open(&SoftDevice::auto().unwrap());
    let port = context.query_port(common::PORT).unwrap();
    assert_eq!((port.state, port.active_mtu), (PortState::ACTIVE, Mtu::MTU_4096), "packets use loopback");
}

fn first_interface() {
    run("addr add 169.254.1.1/16 dev a0");
    run("addr add 10.78.0.1/24 dev b0");
    assert_eq!(Member::start("auto").address(), ip("10.78.0.1"));
    run("addr add 10.77.0.1/32 dev a0");
    let lower = if index_of("a0") < index_of("b0") { "10.77.0.1" } else { "10.78.0.1" };
    assert_eq!(Member::start("auto").address(), ip(lower));
}

fn ipv6_only() {
    for address in ["fe80::77/64", "fd77::9/64", "fd77::3/128"] {
        run(&format!("addr add {address} dev a0 nodad"));
    }
    run("route add default via fe80::1 dev a0");
    let [first, second] = [Member::start("auto"), Member::start("auto")];
    assert_eq!((first.address(), first.device()), (ip("fd77::3"), second.device()));

    let devices = [SoftDevice::auto(), SoftDevice::auto()].map(Result::unwrap);
    let [host, loopback] = devices.each_ref().map(open);
    assert_eq!(gid(&loopback).to_ipv6(), ip("::1"));
    exchange(&host, &loopback);
    exchange(&host, &host);
}

fn only_loopback() {
    let [first, second] = [Member::start("auto"), Member::start("auto")];
    assert!(first.address().is_loopback() && first.slot() != second.slot());
    assert_eq!(first.device(), second.device());
}

/// Sends one message in each direction between two devices.
#[track_caller]
fn exchange(a: &Context<Soft>, b: &Context<Soft>) {
    let shape = Shape { path_mtu: Mtu::MTU_4096, ..Shape::default() };
    let (mut left, mut right) = pair_on(a, b, &shape);
    let len = 100_000;
    let (here, there) = (Arena::new(&left.pd, len), Arena::new(&right.pd, len));
    let say = |from: &mut End, to: &mut End, its: &Arena, others: &Arena| {
        recv(&mut to.qp, 1, &[others.sge(0..len)]);
        send(&mut from.qp, 2, SendOp::Send, &[its.sge(0..len)]);
        wait_ok(&mut from.cq, 2);
        wait_ok(&mut to.cq, 1);
    };
    say(&mut left, &mut right, &here, &there);
    say(&mut right, &mut left, &there, &here);
}

fn in_one_process() {
    run("addr add 10.77.0.1/24 dev a0");
    run("link set b0 mtu 5000");
    run("addr add 10.78.0.1/24 dev b0");
    run("route add default via 10.77.0.2");
    let first = SoftDevice::auto().unwrap();
    let others = [SoftDevice::auto(), SoftDevice::auto(), SoftDevice::bind(ip("10.78.0.1"))];
    let contexts =
        [first, others[0].clone().unwrap(), others[1].clone().unwrap(), others[2].clone().unwrap()];
    let contexts = contexts.each_ref().map(open);
    let addresses = contexts.each_ref().map(|context| gid(context).to_ipv6().to_canonical());
    assert_eq!(addresses[0], ip("10.77.0.1"));
    assert!(addresses[1].is_loopback() && addresses[2].is_loopback() && addresses[1] != addresses[2]);
    for other in &contexts {
        exchange(&contexts[0], other);
    }
}

/// A process in another network namespace, whose interface `a1` is the peer of `a0`.
struct OtherHost {
    _process: Process,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl OtherHost {
    fn start() -> Self {
        let this = std::env::current_exe().unwrap();
        let mut command = Command::new("unshare");
        command.args(["-n"]).arg(this).arg("outside").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child: Child = command.spawn().expect("unshare");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        assert_eq!(read_line(&mut stdout), "in its namespace");
        run(&format!("link set a1 netns {}", child.id()));
        let stdin = child.stdin.take().expect("piped");
        let mut host = Self { _process: Process(child), stdin, stdout };
        host.ask("begin");
        host
    }

    /// Sends a line for the process to execute, and waits until the process has executed it.
    fn ask(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it reads");
        assert_eq!(read_line(&mut self.stdout), "done");
    }
}

/// Executes the lines of its standard input: `begin` sets up the interface, and `FROM TO PORT SLOT`
/// sends a packet, whose source may be forged.
fn outside() -> ExitCode {
    println!("in its namespace");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [from, to, port, slot] => forge(ip(from), ip(to), port.parse().unwrap(), slot.parse().unwrap()),
            _ => {
                run("link set a1 up");
                run("addr add 10.77.0.2/24 dev a1");
                run("addr add fd77::2/64 dev a1 nodad");
            }
        }
        println!("done");
    }
    ExitCode::SUCCESS
}

/// Returns an invalid packet for a queue pair of the process with `slot`. With slot 0, the packet
/// arrives at the socket for connection requests.
fn payload(slot: u8) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[5] = slot;
    bytes
}

/// Sends an invalid packet with forged addresses through a raw socket.
fn forge(from: IpAddr, to: IpAddr, port: u16, slot: u8) {
    const LEN: u16 = 8 + 64;
    let udp = [PORT.to_be_bytes(), port.to_be_bytes(), LEN.to_be_bytes(), [0, 0]].concat();
    let mut packet = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // The kernel fills in length, identification and checksum.
            let header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
            [&header[..], &from.octets(), &to.octets()].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [high, low] = LEN.to_be_bytes();
            let header = [0x60, 0, 0, 0, high, low, 17, 64];
            [&header[..], &from.octets(), &to.octets()].concat()
        }
        _ => panic!("{from} {to}"),
    };
    packet.extend(udp);
    packet.extend(payload(slot));
    if to.is_ipv6() {
        let at = packet.len() - usize::from(LEN) + 6;
        let sum = checksum(&packet);
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Raw, SockFlag::empty(), SockProtocol::Raw).expect("root");
    let to = SockaddrStorage::from(SocketAddr::new(to, 0));
    let sent = sendto(socket.as_raw_fd(), &packet, &to, MsgFlags::empty());
    assert_eq!(sent, Ok(packet.len()), "{from}");
}

/// Returns the checksum of a datagram over IPv6 whose checksum field is 0.
fn checksum(packet: &[u8]) -> u16 {
    let (header, udp) = packet.split_at(40);
    // The pseudo-header (addresses, length and protocol), followed by the datagram.
    let pseudo = [&header[8..], &header[4..6], &[0, 17]].concat();
    let words =
        pseudo.chunks(2).chain(udp.chunks(2)).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn other_hosts() {
    let mut other = OtherHost::start();
    run("addr add 10.77.0.1/24 dev a0");
    run("addr add fd77::1/64 dev a0 nodad");
    for (own, peer) in [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")] {
        let own = ip(own);
        if own.is_ipv6() {
            run("addr del 10.77.0.1/24 dev a0");
        }
        let device = SoftDevice::auto().unwrap();
        let context = open(&device);
        assert_eq!(gid(&context).to_ipv6().to_canonical(), own);
        let port = Port::from_device(&device).unwrap();
        let _gsi = port.take_gsi().expect("it reads requests");
        let slots = [0, port.slot()];
        // The same packets do arrive at another port, except packets that claim an IPv4 address of
        // this host, which the kernel itself drops.
        let open_port = UdpSocket::bind((own, 0)).unwrap();
        open_port.set_read_timeout(Some(common::PATIENCE)).unwrap();
        let number = open_port.local_addr().unwrap().port();
        let (arriving, others): (&[&str], &[&str]) = if own.is_ipv4() {
            (&[peer], &["10.77.0.1", "127.0.0.1"])
        } else {
            (&[peer, "fd77::1"], &["::1"])
        };
        for source in arriving.iter().chain(others) {
            slots.iter().for_each(|slot| other.ask(&format!("{source} {own} {PORT} {slot}")));
        }
        for source in arriving {
            other.ask(&format!("{source} {own} {number} 0"));
            let (_, from) = open_port.recv_from(&mut [0; 64]).expect("packets arrive");
            assert_eq!(from, SocketAddr::new(ip(source), PORT));
        }
        let dropped = || {
            let counters = context.raw().counters();
            counters.malformed + counters.bad_icrc
        };
        // Packets from this host arrive after the others.
        for slot in slots {
            UdpSocket::bind((own, 0)).unwrap().send_to(&payload(slot), (own, PORT)).unwrap();
        }
        eventually("the packets of this host arrive", || dropped() >= 2);
        assert_eq!(dropped(), 2, "{own}");
    }
}

fn other_user() {
    run("addr add 10.77.0.1/24 dev a0");
    const USER: Option<u32> = Some(65_533);
    const NOBODY: Option<u32> = Some(65_534);
    let first = Member::start("auto");
    let [second, third] = [Member::start_as("auto", USER), Member::start_as("auto", USER)];
    assert!(first.address() == ip("10.77.0.1") && second.address().is_loopback());
    assert!(second.device() == third.device() && second.slot() != third.slot());
    // Processes of the user `nobody` cannot share an address.
    let nobody = [Member::start_as("auto", NOBODY), Member::start_as("auto", NOBODY)];
    let nobody = nobody.each_ref().map(Member::address);
    assert!(nobody.iter().all(IpAddr::is_loopback) && nobody[0] != nobody[1], "{nobody:?}");
}

fn kinds() {
    run("addr add 10.77.0.1/24 dev a0");
    let open = Member::start("10.77.0.1");
    let auto = Member::start("auto");
    assert!(auto.address().is_loopback());
    drop((open, auto));

    let auto = Member::start("auto");
    assert_eq!(auto.address(), ip("10.77.0.1"));
    let refused = Member::start("10.77.0.1").line;
    assert!(refused.contains("VERBS_SOFT=auto"), "{refused}");
    drop(auto);
    assert_eq!(Member::start("10.77.0.1").address(), ip("10.77.0.1"));
}

fn taken_port() {
    run("addr add 10.77.0.1/24 dev a0");
    let one = UdpSocket::bind(("10.77.0.1", PORT)).unwrap();
    assert!(Member::start("auto").address().is_loopback());
    drop(one);
    // Binds the port on all addresses, as the kernel's rdma_rxe does.
    let _all = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
    let refused = Member::start("auto").line;
    assert!(refused.contains("rdma_rxe"), "{refused}");
}

fn changes() {
    run("addr add 10.77.0.1/24 dev a0");
    let device = SoftDevice::auto().unwrap();
    let context = open(&device);
    let state = || context.query_port(common::PORT).unwrap().state;
    assert_eq!(state(), PortState::ACTIVE);
    run("link set a1 down");
    let auto = Member::start("auto");
    assert_eq!((state(), auto.address()), (PortState::ACTIVE, ip("10.77.0.1")), "without a carrier");
    exchange(&context, &context);
    run("link set a0 down");
    assert_eq!(state(), PortState::DOWN);
    run("link set a0 up");
    run("link set a1 up");
    run("addr add 10.77.0.9/24 dev a0");
    run("addr del 10.77.0.1/24 dev a0");
    assert_eq!((state(), context.gid_table().unwrap().len()), (PortState::DOWN, 0));
    // A new process gets the interface's current address. The old device works again once its
    // address is back.
    let address = Member::start("auto").address();
    assert!(address == ip("10.77.0.9") || address.is_loopback(), "{address}");
    run("addr flush dev a0");
    run("addr add 10.77.0.1/24 dev a0");
    assert_eq!((state(), Member::start("auto").address()), (PortState::ACTIVE, ip("10.77.0.1")));
    exchange(&context, &context);
}

fn routes() {
    run("addr add 10.77.0.1/24 dev a0");
    run("addr add 10.78.0.1/24 dev b0");
    run("route add default via 10.77.0.2");
    let device = SoftDevice::auto().unwrap();
    let port = Port::from_device(&device).unwrap();
    assert!(port.is_auto() && !port.reaches_network());
    let route = |source: Option<IpAddr>, to: &str| {
        let Resolution::Done(route) = resolve(TCP, source, SocketAddr::new(ip(to), 7174))? else {
            panic!("nothing listens here")
        };
        Ok::<_, Errno>((route.port.address(), route.destination, route.is_local))
    };
    let own = port.address();
    for to in ["10.77.0.1", "127.0.0.1", "10.78.0.1"] {
        for source in [None, Some(own)] {
            assert_eq!(route(source, to), Ok((own, ip(to), true)), "{source:?}");
        }
    }
    assert_eq!(route(None, "239.1.2.3"), Ok((own, ip("239.1.2.3"), false)));
    for to in ["10.77.0.2", "10.78.0.2", "192.0.2.1"] {
        for source in [None, Some(own)] {
            assert_eq!(route(source, to), Err(Errno::NODEV), "{source:?} {to}");
        }
    }
    assert_eq!(port.active_mtu(), Ok(Mtu::MTU_4096));
}
