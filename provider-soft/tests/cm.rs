//! Tests of the interface for connection managers: management datagrams between devices, and the
//! search for devices by address.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener, UnixStream};
use std::slice::from_ref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

use common::{End, PATIENCE, QKEY, Shape, eventually, gid};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use provider_soft::cm::{
    Gsi, ListenerCache, ListenerName, Lookup, MAD_LEN, MadAddress, Port, ReceivedMad, Resolution, Route,
    SpareFd, is_taken, ports_of, resolve,
};
use provider_soft::{Soft, SoftDevice};
use roce::wire::icrc::{Flow, Icrc, compute};
use roce::wire::{Headers, ICRC_LEN, Opcode, Psn, UDP_PORT, bth, deth};
use verbs::provider::ContextOps as _;
use verbs::{Cause, Context, Errno, NamedProvider as _, QpType};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;

/// The port space of TCP in `rdma_cm.h`.
const TCP: u16 = 0x106;
const GSI_QKEY: u32 = 0x8001_0000;

/// Returns the port of a new device with an unshared address. The first automatic device of a
/// process would share its address with other processes.
fn new_port() -> Port {
    static CREATING: Mutex<()> = Mutex::new(());
    let _creating = CREATING.lock();
    let first = SoftDevice::auto().unwrap();
    let port = Port::from_device(&first).unwrap();
    if port.slot() == 0 { port } else { Port::from_device(&SoftDevice::auto().unwrap()).unwrap() }
}

/// Returns the port of a device with an explicitly requested address.
fn known_port() -> Port {
    static NEXT: AtomicU8 = AtomicU8::new(2);
    let last = (std::process::id() % 250) as u8 + 1;
    let address = [127, 0, NEXT.fetch_add(1, Ordering::Relaxed), last];
    let port = Port::from_device(&SoftDevice::bind(address.into()).unwrap()).unwrap();
    assert!(!port.is_auto());
    port
}

/// Returns the ports of two new devices, each with its general services interface.
fn two() -> [(Port, Gsi); 2] {
    [(); 2].map(|()| {
        let port = new_port();
        let gsi = port.take_gsi().unwrap();
        (port, gsi)
    })
}

/// Returns a port number unused by other tests and, in all likelihood, by any program.
fn free_number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    (std::process::id() as u16 | 0x8000).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn is_readable(file: impl AsFd, limit: u16) -> bool {
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(limit)).unwrap() == 1
}

fn await_readable(file: impl AsFd) {
    assert!(is_readable(file, PATIENCE.as_millis() as u16), "not within {PATIENCE:?}");
}

/// Waits for the next management datagram and returns it.
fn next(gsi: &Gsi) -> ReceivedMad {
    let mut next = None;
    eventually("a MAD arrives", || {
        next = gsi.recv();
        next.is_some()
    });
    next.expect("it arrived")
}

#[test]
fn a_mad_wakes_the_receiver_and_its_source_takes_the_reply() {
    let [(port_a, a), (port_b, b)] = two();
    assert!(!is_readable(&b, 0) && b.recv().is_none());
    a.send(&MadAddress::new(port_b.gid()), &[1; MAD_LEN]).unwrap();
    await_readable(&b);
    let received = b.recv().expect("what made it readable");
    assert_eq!((received.mad, received.pkey), ([1; MAD_LEN], 0xffff));
    assert_eq!(received.from, MadAddress::new(port_a.gid()));
    assert!(b.recv().is_none());
    assert!(!is_readable(&b, 0), "after the last one");
    b.send(&received.from, &[2; MAD_LEN]).unwrap();
    await_readable(&a);
    assert_eq!(a.recv().expect("the reply").mad, [2; MAD_LEN]);
    assert_eq!(a.port().address(), port_a.address());
}

#[test]
fn a_device_sends_to_itself() {
    let [(port, gsi), _] = two();
    gsi.send(&MadAddress::new(port.gid()), &[3; MAD_LEN]).unwrap();
    assert_eq!(next(&gsi).mad, [3; MAD_LEN]);
}

#[test]
fn the_traffic_class_arrives_where_the_device_has_a_datagram_queue_pair() {
    let [(_, a), (port_b, b)] = two();
    let context = Context::from_raw(Soft::open(&port_b.device()).unwrap());
    let _end = End::new(&context, &Shape::for_type(QpType::UD));
    let to = MadAddress { traffic_class: 0x68, hop_limit: 9, ..MadAddress::new(port_b.gid()) };
    a.send(&to, &[1; MAD_LEN]).unwrap();
    assert_eq!(next(&b).from.traffic_class, 0x68);
}

#[test]
fn the_interface_is_taken_once_at_a_time_for_all_contexts_of_a_device() {
    let port = new_port();
    let gsi = port.take_gsi().unwrap();
    let again = Port::from_device(&port.device()).unwrap().take_gsi().unwrap_err();
    assert_eq!(again.errno, Errno::BUSY);
    assert!(matches!(again.cause, Cause::InUse { .. }), "{again}");
    drop(gsi);
    port.take_gsi().unwrap();
}

#[test]
fn without_the_interface_a_mad_is_counted_as_one_for_an_unknown_number() {
    let [(_, a), (port_b, b)] = two();
    drop(b);
    let context = Soft::open(&port_b.device()).unwrap();
    a.send(&MadAddress::new(port_b.gid()), &[1; MAD_LEN]).unwrap();
    eventually("it is counted", || context.counters().datagrams_unknown_qpn == 1);
}

#[test]
fn an_address_of_the_other_family_is_unreachable() {
    let [(_, a), _] = two();
    let v6: Ipv6Addr = "fd00::1".parse().unwrap();
    let refused = a.send(&MadAddress::new(v6.into()), &[1; MAD_LEN]).unwrap_err();
    assert_eq!(refused.errno, Errno::NETUNREACH);
}

#[test]
fn a_flood_fills_a_bounded_queue_and_is_counted_beyond() {
    const KEPT: u64 = 8192;
    let [(_, a), (port_b, b)] = two();
    let context = Soft::open(&port_b.device()).unwrap();
    let to = MadAddress::new(port_b.gid());
    eventually("datagrams are dropped", || {
        // Sending may fail, because the sender's socket is full.
        let _ = a.send(&to, &[1; MAD_LEN]);
        context.counters().datagrams_mads_full > 0
    });
    // A datagram may first be counted as received and only later as dropped.
    eventually("as many are kept as there is room for", || {
        let counters = context.counters();
        counters.received - counters.datagrams_dropped == KEPT
    });
    assert!(core::iter::from_fn(|| b.recv()).count() as u64 >= KEPT);
    eventually("there is room again", || {
        let _ = a.send(&to, &[2; MAD_LEN]);
        b.recv().is_some_and(|received| received.mad == [2; MAD_LEN])
    });
}

/// A peer without a device. The test builds its packets by hand.
struct Stranger {
    socket: UdpSocket,
    icrc: Icrc,
    victim: SocketAddr,
}

impl Stranger {
    fn new(victim: IpAddr, last: u8) -> Self {
        // No device gets this address: device addresses end in 1 to 254.
        let own = Ipv4Addr::new(127, 254, last, 255);
        let socket = UdpSocket::bind((own, UDP_PORT)).expect("a free address");
        let icrc = Icrc::new(Flow { src: own.into(), dst: victim, src_port: UDP_PORT, dst_port: UDP_PORT });
        Self { socket, icrc, victim: (victim, UDP_PORT).into() }
    }

    fn send(&self, pkey: u16, qkey: u32, len: usize) {
        let bth = bth::Repr { pkey, ..bth::Repr::new(Opcode::UD_SEND_ONLY, 1, Psn::new(0)) };
        let headers = Headers { deth: Some(deth::Repr { qkey, src_qp: 1 }), ..Headers::new(bth) };
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet);
        packet.resize(packet.len() + len, 7);
        let seed = self.icrc.seed(0, true, packet.len() + ICRC_LEN);
        packet.extend(compute(seed, &packet).to_le_bytes());
        self.socket.send_to(&packet, self.victim).expect("loopback takes it");
    }
}

#[test]
fn what_is_no_mad_of_the_partition_is_dropped_and_counted() {
    let [(port, gsi), _] = two();
    let context = Soft::open(&port.device()).unwrap();
    let stranger = Stranger::new(port.address(), 1);
    for (pkey, qkey, len) in [
        (0xffff, 0, MAD_LEN),
        (0xffff, QKEY, MAD_LEN),
        (0x1234, GSI_QKEY, MAD_LEN),
        (0xffff, GSI_QKEY, 0),
        (0xffff, GSI_QKEY, MAD_LEN - 4),
        (0xffff, GSI_QKEY, MAD_LEN + 4),
    ] {
        stranger.send(pkey, qkey, len);
    }
    eventually("they are counted", || context.counters().datagrams_dropped == 6);
    let counters = context.counters();
    assert_eq!((counters.datagrams_wrong_qkey, counters.datagrams_other), (2, 4));
    assert!(gsi.recv().is_none());
    stranger.send(0x7fff, GSI_QKEY, MAD_LEN);
    let received = next(&gsi);
    assert_eq!((received.pkey, received.mad), (0x7fff, [7; MAD_LEN]), "a limited member");
}

#[test]
fn mads_arrive_while_a_program_polls() {
    let [(_, a), (port_b, b)] = two();
    let context = Context::from_raw(Soft::open(&port_b.device()).unwrap());
    let mut end = End::new(&context, &Shape::default());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(end.cq.poll().next().is_none());
            }
        });
        let to = MadAddress::new(port_b.gid());
        for n in 0..100 {
            a.send(&to, &[n; MAD_LEN]).unwrap();
            await_readable(&b);
            assert_eq!(next(&b).mad, [n; MAD_LEN]);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_port_tells_what_the_open_device_tells() {
    let port = new_port();
    let context = Context::from_raw(Soft::open(&port.device()).unwrap());
    assert_eq!(port.gid(), gid(&context));
    assert_eq!(port.node_guid(), context.query_device().unwrap().node_guid);
    assert_eq!(port.active_mtu(), Ok(context.query_port(Port::NUMBER).unwrap().active_mtu));
    assert_eq!(port.name(), context.device_name());
    assert_eq!(context.raw().device().query_pkey(Port::NUMBER, 0).unwrap(), Port::PKEY);
    assert!(port.is_auto() && port.scope_id() == 0);
}

#[test]
fn live_devices_are_found_by_their_address_and_others_are_not() {
    let port = new_port();
    let (address, IpAddr::V4(v4)) = (port.address(), port.address()) else { panic!("not IPv4") };
    assert!(Port::all().iter().any(|other| other.address() == address));
    let mapped = v4.to_ipv6_mapped().into();
    for address in [address, mapped] {
        assert_eq!(Port::with_address(address).unwrap().name(), port.name());
    }
    assert!(Port::with_address([192, 0, 2, 1].into()).is_none());
    drop(port);
    assert!(Port::with_address(address).is_none(), "it ended with its last user");
}

fn pending(resolution: Resolution) -> Lookup {
    match resolution {
        Resolution::Pending(lookup) => lookup,
        other => panic!("nobody was asked: {other:?}"),
    }
}

fn done(resolution: Resolution) -> Route {
    match resolution {
        Resolution::Done(route) => route,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_own_address_resolves_to_its_own_port() {
    let port = new_port();
    let number = free_number();
    // Works even if another process listens on all addresses.
    let _listening = ListenerName::bind(TCP, (Ipv4Addr::UNSPECIFIED, number).into(), &[new_port()]).unwrap();
    let route = done(resolve(TCP, None, (port.address(), number).into()).unwrap());
    assert_eq!((route.port.name(), route.destination), (port.name(), port.address()));
    assert!(route.is_local);
}

#[test]
fn addresses_of_this_machine_lead_to_the_listener_of_the_port() {
    let (server, client) = (new_port(), new_port());
    let number = free_number();
    let any = (Ipv4Addr::UNSPECIFIED, number).into();
    let listening = ListenerName::bind(TCP, any, from_ref(&server)).unwrap().expect("nobody has the name");
    for destination in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"] {
        let to = SocketAddr::new(destination.parse().unwrap(), number);
        let mut lookup = pending(resolve(TCP, Some(client.address()), to).unwrap());
        assert!(lookup.poll().unwrap().is_none(), "no reply yet");
        await_readable(&listening);
        listening.reply(&mut SpareFd::new()).unwrap();
        await_readable(&lookup);
        let route = lookup.poll().unwrap().expect("a reply");
        assert_eq!((route.port.name(), route.destination), (client.name(), server.address()));
        assert!(route.is_local);
    }
    assert!(!is_readable(&listening, 0));
}

#[test]
fn ipv6_addresses_lead_to_listeners_and_carry_mads() {
    let server = new_port();
    let number = free_number();
    let any = (Ipv6Addr::UNSPECIFIED, number).into();
    let listening = ListenerName::bind(TCP, any, from_ref(&server)).unwrap().expect("nobody has the name");
    let to: SocketAddr = (Ipv6Addr::LOCALHOST, number).into();
    let mut lookup = pending(resolve(TCP, None, to).unwrap());
    listening.reply(&mut SpareFd::new()).unwrap();
    let route = lookup.poll().unwrap().expect("a reply");
    assert_eq!(route.destination, server.address(), "a device of the other family");
    match SoftDevice::bind(Ipv6Addr::LOCALHOST.into()) {
        Ok(device) => {
            let port = Port::from_device(&device).unwrap();
            let route = done(resolve(TCP, None, to).unwrap());
            assert_eq!(route.destination, port.address());
            let gsi = route.port.take_gsi().unwrap();
            gsi.send(&MadAddress::new(port.gid()), &[6; MAD_LEN]).unwrap();
            let received = next(&gsi);
            assert_eq!((received.mad, received.from.gid), ([6; MAD_LEN], port.gid()));
        }
        Err(error) => assert_ne!(error.errno, Errno::ADDRINUSE, "a machine without IPv6: {error}"),
    }
}

#[test]
fn a_listener_on_one_address_comes_before_one_on_all() {
    let (one, all) = (new_port(), known_port());
    let number = free_number();
    let on_one = ListenerName::bind(TCP, (Ipv4Addr::LOCALHOST, number).into(), from_ref(&one)).unwrap();
    // The listeners use separate devices, as two machines would.
    let on_all = ListenerName::bind(TCP, (Ipv4Addr::UNSPECIFIED, number).into(), from_ref(&all)).unwrap();
    for (destination, expected) in [([127, 0, 0, 1], &one), ([127, 0, 0, 2], &all)] {
        let mut lookup = pending(resolve(TCP, None, (destination, number).into()).unwrap());
        for listening in [&on_all, &on_one] {
            listening.as_ref().unwrap().reply(&mut SpareFd::new()).unwrap();
        }
        let route = lookup.poll().unwrap().expect("a reply");
        assert_eq!(route.destination, expected.address());
    }
}

#[test]
fn a_listener_on_all_addresses_loses_none_to_another_one() {
    for (first, second) in [
        ("0.0.0.0", "127.0.0.1"),
        ("0.0.0.0", "127.3.2.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("::", "::1"),
        ("::1", "::"),
        ("0.0.0.0", "::ffff:127.0.0.1"),
    ] {
        let number = free_number();
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), number);
        assert!(!is_taken(TCP, at(second)).unwrap());
        let listening = ListenerName::bind(TCP, at(first), &[new_port()]).unwrap().expect("nobody has it");
        let refused = ListenerName::bind(TCP, at(second), &[new_port()]).unwrap_err();
        assert_eq!(refused, Errno::ADDRINUSE, "{first}, then {second}");
        assert!(is_taken(TCP, at(second)).unwrap() && is_taken(TCP, at(first)).unwrap());
        assert!(!is_taken(0x111, at(first)).unwrap(), "another port space");
        // The clients that only checked the name are gone.
        listening.reply(&mut SpareFd::new()).unwrap();
        drop(listening);
        assert!(ListenerName::bind(TCP, at(second), &[new_port()]).unwrap().is_some(), "{second} alone");
    }
}

#[test]
fn a_listener_is_on_the_ports_that_its_address_stands_for() {
    let port = new_port();
    let names = |address: &str| -> Result<Vec<String>, Errno> {
        let ports = ports_of(address.parse().unwrap())?;
        Ok(ports.iter().map(|port| port.name().to_owned()).collect())
    };
    for any in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
        assert!(names(any).unwrap().iter().any(|name| name == port.name()), "{any}");
    }
    assert_eq!(names(&port.address().to_string()), Ok(vec![port.name().to_owned()]));
    for loopback in ["127.0.0.1", "::1"] {
        assert_eq!(names(loopback).unwrap().len(), 1, "{loopback}");
    }
    assert_eq!(names("192.0.2.1"), Err(Errno::ADDRNOTAVAIL), "no host has an address of TEST-NET-1");
}

#[test]
fn without_a_listener_an_address_of_this_machine_is_itself() {
    let client = new_port();
    let to: SocketAddr = ([127, 0, 0, 1], free_number()).into();
    let route = done(resolve(TCP, Some(client.address()), to).unwrap());
    assert_eq!((route.destination, route.is_local), (to.ip(), true));
    assert_eq!(route.port.name(), client.name());
}

#[test]
fn a_listener_that_ends_without_a_reply_leaves_the_address_itself() {
    let client = new_port();
    let to: SocketAddr = ([127, 0, 0, 1], free_number()).into();
    let listening = ListenerName::bind(TCP, to, &[new_port()]).unwrap();
    let mut lookup = pending(resolve(TCP, Some(client.address()), to).unwrap());
    drop(listening);
    await_readable(&lookup);
    assert_eq!(lookup.poll().unwrap().expect("it ended").destination, to.ip());
}

/// Returns the socket name of a listener on all IPv4 addresses.
fn name_on_all(number: u16) -> UnixAddress {
    UnixAddress::from_abstract_name(format!("verbs-soft/cm/2/{TCP:x}/{number}/0.0.0.0")).unwrap()
}

#[test]
fn a_reply_with_the_token_of_another_name_is_not_kept_for_its_own() {
    let [client, first, second] = [(); 3].map(|()| new_port());
    let [number, other] = [(); 2].map(|()| free_number());
    let any = |number| (Ipv4Addr::UNSPECIFIED, number).into();
    let listening =
        ListenerName::bind(TCP, any(other), from_ref(&first)).unwrap().expect("nobody has the name");
    let (mut reply, mut stream) = (Vec::new(), UnixStream::connect_addr(&name_on_all(other)).unwrap());
    listening.reply(&mut SpareFd::new()).unwrap();
    stream.read_to_end(&mut reply).unwrap();

    // A process sends, under its own name, a copied reply of another listener, which still exists.
    let repeats = UnixListener::bind_addr(&name_on_all(number)).unwrap();
    let mut replies = ListenerCache::default();
    let to: SocketAddr = (Ipv4Addr::LOCALHOST, number).into();
    let mut lookup = pending(replies.resolve(TCP, Some(client.address()), to).unwrap());
    repeats.accept().unwrap().0.write_all(&reply).unwrap();
    await_readable(&lookup);
    assert_eq!(lookup.poll().unwrap().expect("a reply").destination, first.address());
    assert!(replies.keep(lookup));
    assert!(!replies.is_known(TCP, to), "it may be over at any time");
    drop(repeats);

    let next = ListenerName::bind(TCP, any(number), from_ref(&second)).unwrap().expect("nobody has the name");
    let mut lookup = pending(replies.resolve(TCP, Some(client.address()), to).unwrap());
    next.reply(&mut SpareFd::new()).unwrap();
    assert_eq!(lookup.poll().unwrap().expect("a reply").destination, second.address());
    assert!(replies.keep(lookup) && replies.is_known(TCP, to));
    let route = done(replies.resolve(TCP, Some(client.address()), to).unwrap());
    assert_eq!(route.destination, second.address(), "without a query");
    drop(next);
    assert!(!replies.is_known(TCP, to));
}

#[test]
fn a_reply_is_not_kept_once_another_socket_has_the_token_of_a_listener_that_has_ended() {
    let (client, number) = (new_port(), free_number());
    let any = (Ipv4Addr::UNSPECIFIED, number).into();
    let listening = ListenerName::bind(TCP, any, &[new_port()]).unwrap().expect("nobody has the name");
    let mut replies = ListenerCache::default();
    let to: SocketAddr = (Ipv4Addr::LOCALHOST, number).into();
    let mut lookup = pending(replies.resolve(TCP, Some(client.address()), to).unwrap());
    let (mut reply, mut stream) = (Vec::new(), UnixStream::connect_addr(&name_on_all(number)).unwrap());
    listening.reply(&mut SpareFd::new()).unwrap();
    stream.read_to_end(&mut reply).unwrap();
    drop(listening);
    let token = u64::from_ne_bytes(*reply.last_chunk().unwrap());
    let token = format!("verbs-soft/cm/2/{TCP:x}/{number}/0.0.0.0/{token:016x}");
    let _taken = UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(token).unwrap()).unwrap();
    assert!(lookup.poll().unwrap().is_some(), "the reply has arrived");
    assert!(replies.keep(lookup) && !replies.is_known(TCP, to));
}

#[test]
fn port_spaces_and_numbers_are_apart() {
    let client = new_port();
    let number = free_number();
    let _listening = ListenerName::bind(TCP, (Ipv4Addr::UNSPECIFIED, number).into(), &[new_port()]).unwrap();
    let to = |number| (Ipv4Addr::LOCALHOST, number).into();
    done(resolve(0x111, Some(client.address()), to(number)).unwrap());
    done(resolve(TCP, Some(client.address()), to(free_number())).unwrap());
}

#[test]
fn an_address_of_another_machine_needs_a_device_with_the_kernels_source() {
    let _port = new_port();
    let refused = resolve(TCP, None, ([192, 0, 2, 1], 7174).into()).unwrap_err();
    assert!([Errno::NODEV, Errno::NETUNREACH].contains(&refused), "{refused}");
    let foreign = resolve(TCP, Some([192, 0, 2, 9].into()), ([127, 0, 0, 1], free_number()).into());
    assert_eq!(foreign.unwrap_err(), Errno::NODEV, "a source that is no device's");
}

#[test]
fn a_name_is_taken_once_where_only_the_name_leads_to_the_device() {
    let number = free_number();
    let any = (Ipv4Addr::UNSPECIFIED, number).into();
    let first = ListenerName::bind(TCP, any, &[new_port()]).unwrap();
    assert!(first.is_some());
    assert_eq!(ListenerName::bind(TCP, any, &[new_port()]).unwrap_err(), Errno::ADDRINUSE);
    // An explicitly requested address is known without a name.
    let known = known_port();
    assert!(ListenerName::bind(TCP, any, from_ref(&known)).unwrap().is_none());
    drop(first);
    // Clients nevertheless look for a listener under this name.
    let own = (known.address(), number).into();
    let foreign = ListenerName::bind(TCP, own, &[new_port()]).unwrap();
    assert_eq!(ListenerName::bind(TCP, own, from_ref(&known)).unwrap_err(), Errno::ADDRINUSE);
    drop(foreign);
    let loopback = (Ipv4Addr::LOCALHOST, number).into();
    let second = ListenerName::bind(TCP, loopback, from_ref(&known)).unwrap();
    assert_eq!(ListenerName::bind(TCP, loopback, from_ref(&known)).unwrap_err(), Errno::ADDRINUSE);
    drop(second);
    assert!(ListenerName::bind(TCP, any, &[new_port()]).unwrap().is_some());
    let zero = (Ipv4Addr::UNSPECIFIED, 0).into();
    assert_eq!(ListenerName::bind(TCP, zero, &[]).unwrap_err(), Errno::INVAL);
}
