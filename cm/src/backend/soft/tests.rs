//! Tests of time-outs too long to wait for. The tests advance the state's clock.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use ib_cm::cm::Address as MadSource;
use ib_cm::wire::{Message, Mtu, PortSpace as WireSpace, ServiceId, ip, path, req};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::socket::{Backlog, listen};
use provider_soft::cm::Port;
use verbs::{AccessFlags, Gid};

use super::key::{Key, Token};
use super::state::State;
use super::*;
use crate::own_device::own_device;

/// The maximum delivery time of a packet on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a host that never replies: a socket at an address without a device.
fn silent_host() -> UdpSocket {
    let socket = (1..=u16::MAX).find_map(|host| {
        let [high, low] = host.to_be_bytes();
        UdpSocket::bind((Ipv4Addr::new(127, 78, high, low), 4791)).ok()
    });
    let socket = socket.expect("a free address of 127.78.0.0/16");
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Returns the name of a listener.
fn name_of(listener: SocketAddr) -> String {
    format!("verbs-soft/cm/2/{:x}/{}/{}", PortSpace::TCP.0, listener.port(), listener.ip())
}

fn abstract_name(name: &str) -> UnixAddress {
    UnixAddress::from_abstract_name(name).unwrap()
}

/// An id whose request waits for a reply from the process with the listener's name.
struct Requesting {
    _device: verbs::Device,
    host: UdpSocket,
    name: UnixListener,
    state: State,
    queue: Arc<Queue>,
    id: Key,
    /// Another id with the same resolved address, without a request.
    other: Key,
}

impl Requesting {
    /// Resolves the address of a silent host and requests a connection to it.
    fn new() -> Self {
        let mut requesting = Self::resolved();
        requesting.connect(requesting.id).unwrap();
        let Self { state, queue, .. } = &requesting;
        assert!(queue.next().is_none() && state.lookups.len() == 1, "the listener is queried first");
        requesting
    }

    /// Resolves the address of a silent host. The host gets its listener name only afterwards;
    /// otherwise, the resolution would query it.
    fn resolved() -> Self {
        let device = own_device();
        let own = Port::from_device(device.info()).expect("a soft device").address();
        let host = silent_host();
        let to = SocketAddr::new(host.local_addr().unwrap().ip(), 1);
        let mut state = State::new(Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()));
        let queue = Queue::new().unwrap();
        let [id, other] = [(); 2].map(|()| {
            let id = state.create(&queue, 1, PortSpace::TCP, QpType::RC).unwrap();
            state.resolve_addr(id, Some(&(own, 0).into()), &to.into(), 0, false).unwrap();
            state.resolve_route(id).unwrap();
            for kind in [EventType::ADDR_RESOLVED, EventType::ROUTE_RESOLVED] {
                assert_eq!(queue.next().map(|event| event.event), Some(kind));
            }
            id
        });
        let name = UnixListener::bind_addr(&abstract_name(&name_of(to))).unwrap();
        Self { _device: device, host, name, state, queue, id, other }
    }

    fn connect(&mut self, id: Key) -> core::result::Result<(), Errno> {
        let depths = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
        self.state.connect(id, &depths, Ece::default())
    }

    /// Replies as the process with the name, then handles the reply.
    fn reply(&mut self, reply: &[u8]) {
        let (mut client, _) = self.name.accept().expect("a client");
        client.write_all(reply).unwrap();
        drop(client);
        self.state.on_ready(Token::Lookup(self.id));
        self.state.flush();
    }

    /// Replies with the silent host as the listener's device.
    fn reply_with_the_host(&mut self) {
        let IpAddr::V4(host) = self.host.local_addr().unwrap().ip() else { panic!("an IPv4 address") };
        let token = [7; 8];
        self.reply(&[&[1][..], &host.to_ipv6_mapped().octets(), &token].concat());
    }
}

#[test]
fn a_host_that_sends_no_reply_is_unreachable_after_the_retries_of_the_protocol() {
    let mut requesting = Requesting::new();
    requesting.reply_with_the_host();
    let Requesting { host, state, queue, .. } = &mut requesting;
    // Neither the API nor Linux has an option for these times: code 20 for the peer's response time
    // plus the time of two packets, with 15 retries.
    let timer = Duration::from_millis(4608);
    let mut packet = [0; 1024];
    for _ in 0..16 {
        assert!(queue.next().is_none(), "it is tried again");
        host.recv(&mut packet).expect("a request arrives");
        state.advance(timer);
        state.on_time();
        state.flush();
    }
    let event = queue.next().expect("an event");
    assert_eq!((event.event, event.status), (EventType::UNREACHABLE, -Errno::TIMEDOUT.raw()));
    assert!(event.request.is_none() && queue.next().is_none());
}

#[test]
fn a_listener_that_does_not_say_where_it_is_makes_the_peer_unreachable() {
    let mut requesting = Requesting::new();
    requesting.state.advance(Duration::from_secs(61));
    requesting.state.on_time();
    let event = requesting.queue.next().expect("an event");
    assert_eq!((event.event, event.status), (EventType::UNREACHABLE, -Errno::TIMEDOUT.raw()));
    assert!(requesting.queue.next().is_none() && requesting.state.lookups.is_empty());
}

#[test]
fn a_listener_that_ends_before_it_says_where_it_is_rejects() {
    // The replies are empty, without devices, or shorter than a token.
    for reply in [&[][..], &[0; 9], &[0; 4]] {
        let mut requesting = Requesting::new();
        requesting.reply(reply);
        let event = requesting.queue.next().expect("an event");
        assert_eq!((event.event, event.status), (EventType::REJECTED, 8), "{reply:?}");
        assert!(requesting.queue.next().is_none() && requesting.state.lookups.is_empty());
    }
}

#[test]
fn a_listener_whose_devices_are_of_another_family_fails_the_request_and_is_not_nobody() {
    const TOKEN: u64 = 0x0706_0504_0302_0100;
    let mut requesting = Requesting::resolved();
    // While this name exists, the reply remains known.
    let at = SocketAddr::new(requesting.host.local_addr().unwrap().ip(), 1);
    let alive = abstract_name(&format!("{}/{TOKEN:016x}", name_of(at)));
    let _alive = UnixDatagram::bind_addr(&alive).unwrap();
    requesting.connect(requesting.id).unwrap();
    requesting.reply(&[&[1][..], &Ipv6Addr::LOCALHOST.octets(), &TOKEN.to_ne_bytes()].concat());
    let failed = (EventType::CONNECT_ERROR, -Errno::AFNOSUPPORT.raw());
    let event = requesting.queue.next().expect("an event of the id that made the query");
    assert_eq!((event.event, event.status), failed);
    requesting.connect(requesting.other).unwrap();
    let event = requesting.queue.next().expect("an event of the id that needs no query");
    assert_eq!((event.event, event.status), failed);
    assert!(requesting.queue.next().is_none() && requesting.state.lookups.is_empty());
}

#[test]
fn a_listener_that_cannot_be_asked_fails_the_call_which_may_be_tried_again() {
    let mut requesting = Requesting::resolved();
    // One client fills the queue of connections.
    listen(&requesting.name, Backlog::new(0).unwrap()).unwrap();
    let _first = UnixStream::connect_addr(&requesting.name.local_addr().unwrap()).unwrap();
    assert_eq!(requesting.connect(requesting.id), Err(Errno::AGAIN));
    assert!(requesting.queue.next().is_none() && requesting.state.lookups.is_empty());
    drop(requesting.name.accept().unwrap());
    requesting.connect(requesting.id).unwrap();
    requesting.reply_with_the_host();
    requesting.host.recv(&mut [0; 1024]).expect("a request arrives");
}

#[test]
fn the_errors_of_asking_a_listener_have_words() {
    for (verb, errno, words) in [
        ("connect", Errno::AGAIN, "too many clients"),
        ("connect", Errno::PERM, "this process may not connect to abstract Unix sockets"),
        // For example, a socket cannot connect to a broadcast address.
        ("resolve_addr", Errno::ACCESS, "a broadcast address"),
    ] {
        let error = of_names(Error::new(verb, "", errno));
        assert!(error.to_string().contains(words), "{error}");
    }
    let other = Error::new("connect", "", Errno::NOMEM);
    assert_eq!(of_names(other.clone()), other);
}

#[test]
fn a_disconnection_while_the_listener_is_asked_takes_the_request_back() {
    let mut requesting = Requesting::new();
    let (attr, _) = requesting.state.init_qp_attr(requesting.id, QpState::INIT).unwrap();
    assert!(attr.qp_access_flags.contains(AccessFlags::REMOTE_READ), "as asked for: {attr:?}");
    requesting.state.disconnect(requesting.id).unwrap();
    assert!(requesting.state.lookups.is_empty());
    requesting.state.disconnect(requesting.id).unwrap();
    requesting.state.advance(Duration::from_secs(61));
    requesting.state.on_time();
    assert!(requesting.queue.next().is_none());
}

#[test]
fn an_id_that_moves_while_its_listener_is_queried_has_the_outcome_on_its_new_channel() {
    for (has_reply, expected) in [(true, EventType::REJECTED), (false, EventType::UNREACHABLE)] {
        let (mut requesting, moved) = (Requesting::new(), Queue::new().unwrap());
        requesting.state.migrate(requesting.id, &moved).unwrap();
        if has_reply {
            requesting.reply(&[]);
        } else {
            requesting.state.advance(Duration::from_secs(61));
            requesting.state.on_time();
        }
        assert_eq!(moved.next().map(|event| event.event), Some(expected));
        assert!(moved.next().is_none() && requesting.queue.next().is_none());
    }
    // A request's id with a connection also reports its end on the new queue.
    let (mut requesting, [first, second]) = (Requesting::new(), [(); 2].map(|()| Queue::new().unwrap()));
    requesting.state.migrate(requesting.id, &first).unwrap();
    requesting.reply_with_the_host();
    requesting.host.recv(&mut [0; 1024]).expect("a request arrives");
    requesting.state.migrate(requesting.id, &second).unwrap();
    for _ in 0..16 {
        requesting.state.advance(Duration::from_millis(4608));
        requesting.state.on_time();
        requesting.state.flush();
    }
    assert_eq!(second.next().map(|event| event.event), Some(EventType::UNREACHABLE));
    assert!(first.next().is_none() && requesting.queue.next().is_none());
}

#[test]
fn a_request_whose_listener_has_closed_its_device_before_its_name_is_rejected_within_seconds() {
    let mut requesting = Requesting::new();
    requesting.reply_with_the_host();
    requesting.host.recv(&mut [0; 1024]).expect("a request arrives");
    // This simulates an exiting process: its device is gone, but its name remains for some time.
    let Requesting { name, mut state, queue, _device, .. } = requesting;
    let mut look = || {
        state.advance(Duration::from_millis(1001));
        state.on_time();
        state.flush();
        queue.next().map(|event| (event.event, event.status))
    };
    assert_eq!(look(), None, "the listener has a name");
    drop(name);
    assert_eq!(look(), Some((EventType::REJECTED, 28)));
    assert_eq!(look(), None);
    assert!(state.looks.is_empty());
}

/// A listener in another process, queried by ids that resolve its address.
struct Resolving {
    device: verbs::Device,
    at: SocketAddr,
    name: UnixListener,
    state: State,
    queue: Arc<Queue>,
}

impl Resolving {
    fn new() -> Self {
        static PORTS: AtomicU16 = AtomicU16::new(1);
        let device = own_device();
        let state = State::new(Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()));
        let [.., high, low] = std::process::id().to_be_bytes();
        let at = SocketAddr::from(([127, 77, high, low], PORTS.fetch_add(1, Ordering::Relaxed)));
        let name = UnixListener::bind_addr(&abstract_name(&name_of(at))).unwrap();
        Self { device, at, name, state, queue: Queue::new().unwrap() }
    }

    /// Resolves the listener's address with a time-out in milliseconds.
    fn resolve(&mut self, timeout_ms: u32) -> Key {
        let id = self.state.create(&self.queue, 1, PortSpace::TCP, QpType::RC).unwrap();
        // Other tests use the other devices.
        let own = Port::from_device(self.device.info()).expect("a soft device").address();
        self.state.resolve_addr(id, Some(&(own, 0).into()), &self.at.into(), timeout_ms, false).unwrap();
        id
    }

    /// Replies to the query of an id.
    fn reply(&mut self, id: Key) {
        let (mut client, _) = self.name.accept().expect("a client");
        let IpAddr::V4(address) = self.at.ip() else { panic!("an IPv4 address") };
        let address = address.to_ipv6_mapped().octets();
        client.write_all(&[&[1][..], &address, &[7; 8]].concat()).unwrap();
        self.state.on_ready(Token::Lookup(id));
    }

    fn next(&self) -> Option<(EventType, i32)> {
        self.queue.next().map(|event| (event.event, event.status))
    }
}

#[test]
fn a_listener_has_two_seconds_to_say_where_it_is_whatever_the_program_gives_it() {
    let timed_out = (EventType::ADDR_ERROR, -Errno::TIMEDOUT.raw());
    let mut resolving = Resolving::new();
    let id = resolving.resolve(100);
    resolving.state.advance(Duration::from_millis(1900));
    resolving.state.on_time();
    assert_eq!(resolving.next(), None);
    resolving.reply(id);
    assert_eq!(resolving.next(), Some((EventType::ADDR_RESOLVED, 0)));
    // One id gets no reply, with a time-out below and above the minimum.
    for (given, least) in [(100, 1999), (5000, 4999)] {
        let mut resolving = Resolving::new();
        resolving.resolve(given);
        resolving.state.advance(Duration::from_millis(least - 500));
        resolving.state.on_time();
        assert_eq!(resolving.next(), None);
        resolving.state.advance(Duration::from_millis(501));
        resolving.state.on_time();
        assert_eq!(resolving.next(), Some(timed_out));
    }
}

#[test]
fn ids_that_look_for_one_listener_query_it_once() {
    let mut resolving = Resolving::new();
    let [first, second, _] = [(); 3].map(|()| resolving.resolve(5000));
    // While this name exists, the reply remains valid.
    let alive = format!("{}/{:016x}", name_of(resolving.at), u64::from_ne_bytes([7; 8]));
    let _alive = UnixDatagram::bind_addr(&abstract_name(&alive)).unwrap();
    // The first id is destroyed, so another id sends the query.
    resolving.state.destroy(first);
    drop(resolving.name.accept().expect("the first lookup"));
    assert_eq!(resolving.next(), None);
    resolving.reply(second);
    for _ in 0..2 {
        assert_eq!(resolving.next(), Some((EventType::ADDR_RESOLVED, 0)));
    }
    assert!(resolving.state.lookups.is_empty() && resolving.next().is_none());
    resolving.name.set_nonblocking(true).unwrap();
    assert!(resolving.name.accept().is_ok(), "the look at its owner, before the reply is kept");
    assert!(resolving.name.accept().is_err(), "one more lookup");
}

#[test]
fn ids_that_share_a_lookup_expire_each_at_its_own_deadline() {
    let timed_out = Some((EventType::ADDR_ERROR, -Errno::TIMEDOUT.raw()));
    let mut resolving = Resolving::new();
    resolving.name.set_nonblocking(true).unwrap();
    for timeout_ms in [20_000, 20_000, 20_000, 60_000, 40_000, 60_000] {
        resolving.resolve(timeout_ms);
    }
    let _client = resolving.name.accept().expect("the first lookup");
    // Seconds to pass, the number of ids that expire, the number of new lookups by the remaining
    // ids.
    for (seconds, expired, lookups) in [(30, 3, 1), (15, 1, 0), (30, 2, 0)] {
        resolving.state.advance(Duration::from_secs(seconds));
        resolving.state.on_time();
        for _ in 0..expired {
            assert_eq!(resolving.next(), timed_out);
        }
        assert_eq!(resolving.next(), None);
        let made = core::iter::from_fn(|| resolving.name.accept().ok()).count();
        assert_eq!(made, lookups, "after {seconds} s");
    }
    assert!(resolving.state.lookups.is_empty() && resolving.next().is_none());
}

#[test]
fn an_id_ends_while_its_listener_is_queried() {
    let mut requesting = Requesting::new();
    requesting.state.destroy(requesting.id);
    // This wake-up was already pending.
    requesting.state.on_ready(Token::Lookup(requesting.id));
    assert!(requesting.state.lookups.is_empty() && requesting.queue.next().is_none());
}

/// Returns a request to a listener, for a connection known only to the sender.
fn request_of(source: Ipv4Addr, listener: SocketAddr, number: u32) -> Message {
    let IpAddr::V4(target) = listener.ip() else { panic!("an IPv4 address") };
    let header = ip::Repr { source_port: 5555, addresses: ip::Addresses::V4 { source, target } };
    let [local_gid, remote_gid] = [source, target].map(|ip| Gid::from(IpAddr::V4(ip)).0);
    let request = req::Repr {
        local_comm_id: number,
        service_id: ServiceId::ip(WireSpace::TCP, listener.port()),
        local_ca_guid: 9,
        local_qpn: number,
        path_mtu: Mtu::B1024,
        primary: path::Repr { local_gid, remote_gid, ..path::Repr::default() },
        private_data: req::Data::new(&header.emit()).unwrap(),
        ..req::Repr::default()
    };
    request.into()
}

#[test]
fn requests_that_make_room_for_others_at_once_are_as_many_as_those() {
    const BACKLOG: usize = 4;
    let device = own_device();
    let own = Port::from_device(device.info()).expect("a soft device");
    let mut state = State::new(Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()));
    let queue = Queue::new().unwrap();
    let listener = state.create(&queue, 1, PortSpace::TCP, QpType::RC).unwrap();
    state.bind(listener, &(own.address(), 0).into()).unwrap();
    state.listen(listener, BACKLOG as u32).unwrap();
    let at = state.ids[&listener].local.unwrap();
    let adapter = state.ids[&listener].adapter.unwrap();
    let mut ask = |sources: &[u8]| {
        let now = state.now();
        let cm = &mut state.adapters.get_mut(&adapter).unwrap().cm;
        for (number, last) in sources.iter().enumerate() {
            let source = Ipv4Addr::new(127, 76, 0, *last);
            let from = MadSource::gsi(own.gid().0, Gid::from(IpAddr::V4(source)).0);
            let number = 1 + number as u32;
            cm.input(now, &from, &request_of(source, at, number).emit(number.into(), 0));
        }
        state.flush();
    };
    // One address takes all slots; then two others request.
    ask(&[1; BACKLOG]);
    ask(&[2, 3]);
    let requests = queue.discard(|entry| entry.request.is_some());
    let count = requests.len();
    // These ids do not belong to the process's manager.
    let garbage = core::mem::take(&mut state.garbage);
    core::mem::forget((requests, garbage));
    assert_eq!(count, BACKLOG);
    assert!(queue.next().is_none(), "other events");
}
