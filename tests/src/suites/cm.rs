//! `cm`: connections by address, through the kernel's connection manager on rxe. Both ends are in
//! the case's process, each with an event channel of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmacm::{CmId, ConnParam, Event, EventChannel, EventKind, EventType, Peer, PortSpace, RejectReason};
use verbs::state::{Init, Rts};
use verbs::{
    Buf, Cq, CqInit, Errno, Gid, Pd, Qp, QpInit, QpState, QpType, SendFlags, SendOp, UdAddr, WcStatus,
};

use crate::cases;
use crate::fabric::{self, PATIENCE};
use crate::process;
use crate::runner::{Case, CaseResult, fail};
use crate::tools::run;

const SUITE: &str = "cm";

/// The address of rxe0's netdev.
const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 1));

/// An address that the cases of IPv6 give it.
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd09, 9, 0, 0, 0, 0, 0, 1));

/// An address of the netdev's network that no host has.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 77));

/// The limit on resolving addresses and routes.
const RESOLVING: Duration = Duration::from_secs(10);

/// The suite.
pub fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        a_connection_by_ipv4_address_carries_messages_both_ways,
        a_connection_by_ipv6_address_carries_messages_both_ways,
        a_queue_pair_of_the_programs_own_connects_by_the_kernels_attributes,
        a_reject_carries_its_private_data,
        without_a_listener_the_reject_says_so,
        a_request_that_is_dropped_is_rejected,
        an_address_that_no_host_has_is_an_error_in_words,
        what_the_kernel_refuses_is_explained,
        a_datagram_service_is_looked_up_by_its_address,
        an_id_moves_to_another_channel_with_its_events,
        ids_end_in_every_state_and_the_peer_learns_it,
    )
}

/// A listener and its channel.
struct Server {
    channel: EventChannel,
    listener: CmId,
    address: SocketAddr,
}

impl Server {
    fn new(ip: IpAddr, space: PortSpace) -> CaseResult<Self> {
        let channel = EventChannel::new()?;
        let listener = channel.create_id(space)?;
        listener.bind_addr((ip, 0))?;
        listener.listen(4)?;
        let Some(address) = listener.local_addr()?.and_then(|address| address.ip()) else {
            return fail("a listener without an address");
        };
        assert!(address.ip() == ip && address.port() != 0, "{address}");
        Ok(Self { channel, listener, address })
    }

    /// Returns the id of the next request, and the parameters of its peer.
    fn request(&self) -> CaseResult<(CmId, Peer)> {
        let event = expect(&self.channel, EventType::CONNECT_REQUEST)?;
        assert_eq!(event.id, self.listener.key());
        match event.kind {
            EventKind::ConnectRequest(request) => Ok((request.id, request.peer)),
            other => fail(format_args!("{other:?}")),
        }
    }
}

/// The side that connects: an id with a route, and its channel.
struct Client {
    channel: EventChannel,
    id: CmId,
}

impl Client {
    fn new(address: SocketAddr, space: PortSpace) -> CaseResult<Self> {
        let channel = EventChannel::new()?;
        let id = channel.create_id(space)?;
        id.resolve_addr(None, address, RESOLVING)?;
        expect(&channel, EventType::ADDR_RESOLVED)?;
        id.resolve_route(RESOLVING)?;
        expect(&channel, EventType::ROUTE_RESOLVED)?;
        Ok(Self { channel, id })
    }
}

/// The objects that a queue pair is made from.
struct Parts {
    pd: Pd,
    cq: Cq,
}

impl Parts {
    fn of(id: &CmId) -> CaseResult<Self> {
        let context = id.context()?;
        assert_eq!(context.device_name(), fabric::under_test());
        Ok(Self { pd: context.alloc_pd()?, cq: context.create_cq(&CqInit::new(16))? })
    }

    /// A queue pair of the id, with a receive posted.
    fn qp(&self, id: &CmId) -> CaseResult<Qp<Init>> {
        let mut qp = id.create_qp(&self.pd, &QpInit::new(QpType::RC, &self.cq))?;
        qp.post_recv_buf(self.pd.alloc_buf(64)?, ..)?;
        Ok(qp)
    }

    fn send(&self, qp: &mut Qp<Rts>, text: &[u8]) -> CaseResult {
        let mut buf = self.pd.alloc_buf(64)?;
        buf[..text.len()].copy_from_slice(text);
        qp.post_send_buf(SendOp::Send, SendFlags::SIGNALED, buf, ..text.len())?;
        Ok(())
    }

    /// Waits for a message, past the completions of sends.
    fn receive(&mut self) -> CaseResult<Vec<u8>> {
        loop {
            let completed = self.cq.poll_within(PATIENCE)?.ok()?;
            let (is_recv, len) = (completed.opcode.is_recv(), completed.received());
            let buf: Buf = completed.into_buf()?;
            if is_recv {
                return Ok(buf[..len].to_vec());
            }
        }
    }
}

fn next(channel: &EventChannel) -> CaseResult<Event> {
    match channel.next_event_within(PATIENCE)? {
        Some(event) => Ok(event),
        None => fail("no event came"),
    }
}

/// Returns the next event, which is of this kind.
fn expect(channel: &EventChannel, wanted: EventType) -> CaseResult<Event> {
    let event = next(channel)?;
    if event.event_type() == wanted {
        return Ok(event);
    }
    let event = event.ok()?;
    fail(format_args!("{event:?} came instead of {wanted}"))
}

/// Two connected ids with their queue pairs.
struct Connected {
    server: Server,
    client: Client,
    accepted: CmId,
    ends: [(Parts, Qp<Rts>); 2],
}

fn connect(ip: IpAddr) -> CaseResult<Connected> {
    let server = Server::new(ip, PortSpace::TCP)?;
    let client = Client::new(server.address, PortSpace::TCP)?;
    let connects = Parts::of(&client.id)?;
    let qp = connects.qp(&client.id)?;
    client.id.connect(qp, &ConnParam { private_data: b"from the client", ..ConnParam::default() })?;

    let (accepted, peer) = server.request()?;
    assert!(peer.private_data().starts_with(b"from the client"), "{peer:?}");
    assert_eq!(accepted.local_addr()?, Some(server.address.into()));
    let accepts = Parts::of(&accepted)?;
    let qp = accepts.qp(&accepted)?;
    accepted.accept(qp, &ConnParam { private_data: b"from the server", ..ConnParam::default() })?;

    let established = expect(&client.channel, EventType::ESTABLISHED)?;
    match &established.kind {
        EventKind::Established(peer) => {
            assert!(peer.private_data().starts_with(b"from the server"), "{peer:?}");
        }
        other => return fail(format_args!("{other:?}")),
    }
    expect(&server.channel, EventType::ESTABLISHED)?;
    assert_eq!(client.id.peer_addr()?, Some(server.address.into()));
    let take = |id: &CmId| id.take_qp().ok_or_else(|| crate::runner::Stop::Failed("no queue pair".into()));
    let ends = [(connects, take(&client.id)?), (accepts, take(&accepted)?)];
    for (_, qp) in &ends {
        assert_eq!(qp.state()?, QpState::RTS);
    }
    Ok(Connected { server, client, accepted, ends })
}

fn both_ways(ip: IpAddr) -> CaseResult {
    let Connected { server, client, accepted, ends } = connect(ip)?;
    let [(mut here, mut here_qp), (mut there, mut there_qp)] = ends;
    here.send(&mut here_qp, b"there")?;
    assert_eq!(there.receive()?, b"there");
    there.send(&mut there_qp, b"and back")?;
    assert_eq!(here.receive()?, b"and back");

    let here_qp = here_qp.to_error()?;
    client.id.disconnect()?;
    expect(&server.channel, EventType::DISCONNECTED)?;
    accepted.disconnect()?;
    expect(&client.channel, EventType::DISCONNECTED)?;
    drop((here_qp, there_qp));
    Ok(())
}

fn a_connection_by_ipv4_address_carries_messages_both_ways() -> CaseResult {
    both_ways(V4)
}

/// Gives the netdev an IPv6 address, and waits until the device has its GID.
fn a_connection_by_ipv6_address_carries_messages_both_ways() -> CaseResult {
    let change = |what: &str| {
        run(Command::new("ip").args(["-6", "addr", what, &format!("{V6}/64"), "dev", "veth0", "nodad"]))
    };
    change("replace")?;
    let context = fabric::open()?;
    let wanted = match V6 {
        IpAddr::V6(ip) => Gid::from(ip),
        IpAddr::V4(ip) => Gid::from(ip),
    };
    let has_gid = || context.gid_table().is_ok_and(|table| table.iter().any(|entry| entry.gid == wanted));
    if !process::wait_until(PATIENCE, has_gid) {
        return fail(format_args!("the device has no GID for {V6}"));
    }
    let result = both_ways(V6);
    change("del")?;
    result
}

fn a_queue_pair_of_the_programs_own_connects_by_the_kernels_attributes() -> CaseResult {
    let server = Server::new(V4, PortSpace::TCP)?;
    let client = Client::new(server.address, PortSpace::TCP)?;
    let mut parts = Parts::of(&client.id)?;
    let init = QpInit::new(QpType::RC, &parts.cq);
    let (attr, mask) = client.id.init_qp_attr(QpState::INIT)?;
    let mut qp: Qp<Init> = parts.pd.create_qp(&init)?.modify_to(&attr, mask)?;
    qp.post_recv_buf(parts.pd.alloc_buf(64)?, ..)?;
    client.id.connect_with(&ConnParam { qp_num: qp.qp_num(), ..ConnParam::default() })?;

    let (accepted, _) = server.request()?;
    let mut other = Parts::of(&accepted)?;
    let other_qp = other.qp(&accepted)?;
    accepted.accept(other_qp, &ConnParam::default())?;
    expect(&client.channel, EventType::CONNECT_RESPONSE)?;
    let (attr, mask) = client.id.init_qp_attr(QpState::INIT)?;
    qp.modify(&attr, mask)?;
    let (attr, mask) = client.id.init_qp_attr(QpState::RTR)?;
    let qp: Qp<verbs::state::Rtr> = qp.modify_to(&attr, mask)?;
    let (attr, mask) = client.id.init_qp_attr(QpState::RTS)?;
    let mut qp: Qp<Rts> = qp.modify_to(&attr, mask)?;
    client.id.establish()?;
    expect(&server.channel, EventType::ESTABLISHED)?;

    let Some(mut other_qp) = accepted.take_qp() else { return fail("no queue pair") };
    parts.send(&mut qp, b"there")?;
    assert_eq!(other.receive()?, b"there");
    other.send(&mut other_qp, b"and back")?;
    assert_eq!(parts.receive()?, b"and back");
    Ok(())
}

/// Connects, and returns the parts and the client whose request waits.
fn requesting(server: &Server) -> CaseResult<(Client, Parts)> {
    let client = Client::new(server.address, PortSpace::TCP)?;
    let parts = Parts::of(&client.id)?;
    let qp = parts.qp(&client.id)?;
    client.id.connect(qp, &ConnParam::default())?;
    Ok((client, parts))
}

/// Checks that the client was rejected for this reason, and that its receive comes back.
fn is_rejected(client: &Client, mut parts: Parts, wanted: RejectReason) -> CaseResult<Vec<u8>> {
    let event = expect(&client.channel, EventType::REJECTED)?;
    let EventKind::Rejected(rejection) = &event.kind else { return fail(format_args!("{event:?}")) };
    assert_eq!(rejection.reason, Some(wanted));
    let data = rejection.private_data.clone();
    let error = event.ok().expect_err("a reject is an error");
    assert_eq!(error.errno, Errno::CONNREFUSED);
    assert!(error.to_string().contains(wanted.name().expect("the reason has a name")), "{error}");
    let Some(qp) = client.id.reclaim_qp()? else { return fail("the id has no queue pair") };
    assert_eq!(qp.state()?, QpState::ERR);
    assert_eq!(parts.cq.poll_within(PATIENCE)?.status, WcStatus::WR_FLUSH_ERR);
    Ok(data)
}

/// Waits until a channel has an event that nobody has read.
fn arrived(channel: &EventChannel) -> CaseResult {
    let timeout = PollTimeout::try_from(PATIENCE)?;
    match poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], timeout)? {
        0 => fail(format_args!("no event after {PATIENCE:?}")),
        _ => Ok(()),
    }
}

fn a_reject_carries_its_private_data() -> CaseResult {
    let server = Server::new(V4, PortSpace::TCP)?;
    let (client, parts) = requesting(&server)?;
    let (request, _) = server.request()?;
    request.reject(b"not today")?;
    let data = is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED)?;
    assert!(data.starts_with(b"not today"), "{data:?}");
    Ok(())
}

fn without_a_listener_the_reject_says_so() -> CaseResult {
    let server = Server::new(V4, PortSpace::TCP)?;
    let address = server.address;
    drop(server);
    let client = Client::new(address, PortSpace::TCP)?;
    let parts = Parts::of(&client.id)?;
    client.id.connect(parts.qp(&client.id)?, &ConnParam::default())?;
    is_rejected(&client, parts, RejectReason::INVALID_SERVICE_ID).map(drop)
}

fn a_request_that_is_dropped_is_rejected() -> CaseResult {
    let server = Server::new(V4, PortSpace::TCP)?;
    let (client, parts) = requesting(&server)?;
    drop(server.request()?);
    is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED)?;
    // One that nobody has read goes with its listener.
    let (client, parts) = requesting(&server)?;
    arrived(&server.channel)?;
    drop(server);
    is_rejected(&client, parts, RejectReason::CONSUMER_DEFINED).map(drop)
}

fn an_address_that_no_host_has_is_an_error_in_words() -> CaseResult {
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, (NOBODY, 7471), Duration::from_millis(200))?;
    let error = match next(&channel)?.ok() {
        Err(error) => error,
        Ok(event) => return fail(format_args!("{event:?}")),
    };
    let text = error.to_string();
    assert!(text.starts_with("resolve_addr: no host answered") || text.contains("no route"), "{text}");
    Ok(())
}

fn what_the_kernel_refuses_is_explained() -> CaseResult {
    let server = Server::new(V4, PortSpace::TCP)?;
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    let error = id.bind_addr(server.address).expect_err("the port is taken");
    assert_eq!(error.errno, Errno::ADDRINUSE);
    assert!(error.to_string().contains(&server.address.to_string()), "{error}");
    let error = id.bind_addr((Ipv4Addr::new(192, 0, 2, 1), 0)).expect_err("a foreign address");
    assert!(matches!(error.errno, Errno::ADDRNOTAVAIL | Errno::NODEV), "{error}");
    let error =
        id.connect_with(&ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() });
    assert!(error.expect_err("no route").to_string().contains("ROUTE_RESOLVED"));
    let client = Client::new(server.address, PortSpace::TCP)?;
    let param = ConnParam { private_data: &[7; 57], ..ConnParam::default() };
    let error = client.id.connect_with(&param).expect_err("57 bytes");
    assert!(error.to_string().contains("length of private_data 57"), "{error}");
    Ok(())
}

fn a_datagram_service_is_looked_up_by_its_address() -> CaseResult {
    let server = Server::new(V4, PortSpace::UDP)?;
    let client = Client::new(server.address, PortSpace::UDP)?;
    client.id.connect_with(&ConnParam { private_data: b"who", ..ConnParam::default() })?;
    let (request, peer) = server.request()?;
    assert!(peer.private_data().starts_with(b"who"), "{peer:?}");
    let mut serves = Parts::of(&request)?;
    let init = |parts: &Parts| QpInit::new(QpType::UD, &parts.cq);
    let mut serving = request.create_ud_qp(&serves.pd, &init(&serves))?;
    serving.post_recv_buf(serves.pd.alloc_buf(128)?, ..)?;
    request.accept_with(&ConnParam { qp_num: serving.qp_num(), ..ConnParam::default() })?;

    let established = expect(&client.channel, EventType::ESTABLISHED)?;
    let EventKind::Established(Peer::Ud(ud)) = established.kind else {
        return fail(format_args!("{established:?}"));
    };
    assert_eq!((ud.qp_num, ud.qkey), (serving.qp_num(), PortSpace::UDP_QKEY));
    let asks = Parts::of(&client.id)?;
    let mut asking = client.id.create_ud_qp(&asks.pd, &init(&asks))?;
    let ah = asks.pd.create_ah(&ud.ah_attr)?;
    let to: UdAddr<'_> = ah.to(ud.qp_num, ud.qkey);
    let mut buf = asks.pd.alloc_buf(64)?;
    buf[..5].copy_from_slice(b"hello");
    asking.post_send_buf(SendOp::UdSend { to }, SendFlags::SIGNALED, buf, ..5)?;
    let received = serves.receive()?;
    assert_eq!(&received[40..], b"hello");
    Ok(())
}

fn an_id_moves_to_another_channel_with_its_events() -> CaseResult {
    let server = Server::new(V4, PortSpace::TCP)?;
    let (client, _parts) = requesting(&server)?;
    let other = EventChannel::new()?;
    let (request, _) = server.request()?;
    client.id.migrate(&other)?;
    request.reject(b"moved")?;
    expect(&other, EventType::REJECTED)?;
    assert!(client.channel.try_next_event()?.is_none());
    // An event that waits moves along.
    let id = client.channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, server.address, RESOLVING)?;
    let waits = || {
        let mut fds = [PollFd::new(client.channel.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, 10_u8).is_ok_and(|ready| ready == 1)
    };
    assert!(process::wait_until(PATIENCE, waits), "no event waits");
    id.migrate(&other)?;
    assert_eq!(expect(&other, EventType::ADDR_RESOLVED)?.id, id.key());
    Ok(())
}

/// Drops ids in each state that a program can bring them to, and looks for their peers' events and
/// for what the kernel still has.
fn ids_end_in_every_state_and_the_peer_learns_it() -> CaseResult {
    let channel = EventChannel::new()?;
    drop(channel.create_id(PortSpace::TCP)?);
    let id = channel.create_id(PortSpace::TCP)?;
    id.bind_addr((V4, 0))?;
    drop(id);
    drop(Server::new(V4, PortSpace::TCP)?);

    let server = Server::new(V4, PortSpace::TCP)?;
    // Resolving, to an address that is there and to one that is not.
    for ip in [V4, NOBODY] {
        let id = channel.create_id(PortSpace::TCP)?;
        id.resolve_addr(None, (ip, server.address.port()), RESOLVING)?;
        drop(id);
    }
    let id = channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, server.address, RESOLVING)?;
    assert_eq!(expect(&channel, EventType::ADDR_RESOLVED)?.id, id.key(), "the others' events went with them");
    id.resolve_route(RESOLVING)?;
    drop(id);
    drop(Client::new(server.address, PortSpace::TCP)?);

    // Connecting, before the listener has read the request: the request goes, or is rejected.
    drop(requesting(&server)?);
    drop(server.request()?);
    // The request of a client that is gone.
    let (client, parts) = requesting(&server)?;
    let (request, _) = server.request()?;
    drop((client, parts));
    drop(request);
    // Accepted, not yet established at the client, which sees its end.
    let (client, parts) = requesting(&server)?;
    let (request, _) = server.request()?;
    let accepts = Parts::of(&request)?;
    request.accept(accepts.qp(&request)?, &ConnParam::default())?;
    drop(request);
    loop {
        match next(&client.channel)?.kind {
            EventKind::Established(_) => {}
            EventKind::Disconnected
            | EventKind::Rejected(_)
            | EventKind::Unreachable
            | EventKind::ConnectError => break,
            other => return fail(format_args!("{other:?}")),
        }
    }
    drop((client, parts));
    drop(server);

    // Established: either end.
    let connected = connect(V4)?;
    let Connected { server, client, accepted, ends } = connected;
    drop(client);
    assert_eq!(expect(&server.channel, EventType::DISCONNECTED)?.id, accepted.key());
    drop((accepted, ends, server));
    let Connected { server, client, accepted, ends } = connect(V4)?;
    drop(accepted);
    expect(&client.channel, EventType::DISCONNECTED)?;
    // After the end, in the time in which its packets may still arrive.
    drop((client, ends, server));

    let listed = run(Command::new("rdma").args(["resource", "show", "cm_id"]))?;
    let own = format!(" pid {} ", std::process::id());
    let left: Vec<_> = listed.stdout.lines().filter(|line| line.contains(&own)).collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}
