//! Building blocks for cases that connect by address: a listener, a client, the objects of their
//! queue pairs, and waits with a deadline.
//!
//! Everything is safe code. A case of the suite `cm` has both sides in its process; a peer of
//! [`cm_peer`](crate::cm_peer) has one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmacm::{
    Address, CmId, ConnParam, Event, EventChannel, EventKind, EventType, IbAddress, IdKey, PathRecord, Peer,
    PeerParam, PortSpace,
};
use verbs::state::{CanPostRecv, Init, Rts};
use verbs::{
    Buf, Completed, Cq, CqInit, Errno, Gid, Mtu, Pd, Qp, QpInit, QpState, QpType, Rate, SendFlags, SendOp,
};
use verbs_harness::runner::{CaseResult, Stop, fail, skip};

use crate::fabric::{self, PATIENCE, PORT};

/// Limit on resolving an address or a route.
pub const RESOLVING: Duration = Duration::from_secs(10);

/// Length of a receive and of the longest message, in bytes.
pub const MESSAGE: usize = 64;

/// Returns the address of the device under test, with port 0: its IPv4 address, or the GID of an
/// InfiniBand port.
///
/// # Errors
/// A skip without a connection manager, or for an Ethernet port without an address; a failure
/// without a device.
pub fn here() -> CaseResult<Address> {
    let context = fabric::open()?;
    match EventChannel::new() {
        Err(error) if error.errno == Errno::NOENT => {
            return skip("the kernel has no connection manager for programs: rdma_ucm is not loaded");
        }
        channel => drop(channel?),
    }
    let gid = context.find_gid(PORT)?.gid;
    match gid.to_ipv4() {
        Some(ip) => Ok((ip, 0).into()),
        None if fabric::is_ethernet(&context)? => skip("the device has no IPv4 address"),
        None => Ok(IbAddress::new(gid, PortSpace::TCP, 0).into()),
    }
}

/// Returns the address with the given port of a port space.
pub fn with_port(address: Address, space: PortSpace, port: u16) -> Address {
    match address {
        Address::Ip(mut ip) => {
            ip.set_port(port);
            ip.into()
        }
        Address::Ib(ib) => IbAddress::new(ib.gid, space, port).into(),
        other => other,
    }
}

/// Returns whether two addresses differ at most in their ports.
fn is_one_host(one: &Address, other: &Address) -> bool {
    match (one, other) {
        (Address::Ip(one), Address::Ip(other)) => one.ip() == other.ip(),
        (Address::Ib(one), Address::Ib(other)) => one.gid == other.gid,
        _ => false,
    }
}

/// Resolves the route of an id to an address. For a GID, which is the device's own, it sets the
/// path instead, because only a subnet administrator could look it up.
///
/// # Errors
/// Those of the connection manager; no event in time.
pub fn resolve_route(channel: &EventChannel, id: &CmId, to: &Address) -> CaseResult {
    match to {
        Address::Ib(to) => id.set_ib_path(&[loopback(to.gid)])?,
        _ => id.resolve_route(RESOLVING)?,
    }
    expect(channel, EventType::ROUTE_RESOLVED).map(drop)
}

/// Returns the path from the InfiniBand port under test to itself.
fn loopback(gid: Gid) -> PathRecord {
    let lid = fabric::lid();
    PathRecord {
        dgid: gid,
        sgid: gid,
        dlid: lid,
        slid: lid,
        flow_label: 0,
        hop_limit: 0,
        traffic_class: 0,
        reversible: true,
        pkey: 0xffff,
        sl: 0,
        mtu: Mtu::MTU_1024,
        rate: Rate::GBPS_10,
        packet_life_time: 10,
        preference: 0,
    }
}

/// A listener and its channel.
#[derive(Debug)]
pub struct Server {
    /// The channel.
    pub channel: EventChannel,
    /// The listener.
    pub listener: CmId,
    /// The address and the port assigned to the listener.
    pub address: Address,
}

impl Server {
    /// Listens on an address; port 0 stands for any free port.
    ///
    /// # Errors
    /// Those of the connection manager.
    pub fn new(address: impl Into<Address>, space: PortSpace, backlog: u32) -> CaseResult<Self> {
        let address = address.into();
        let channel = EventChannel::new()?;
        let listener = channel.create_id(space)?;
        listener.bind_addr(with_port(address, space, address.port()))?;
        listener.listen(backlog)?;
        let Some(local) = listener.local_addr()? else { return fail("a listener without an address") };
        if !is_one_host(&local, &address) || local.port() == 0 {
            return fail(format_args!("a listener at {local} instead of {address}"));
        }
        // Keeps the scope of a link-local address, which the connection manager may not return.
        Ok(Self { channel, listener, address: with_port(address, space, local.port()) })
    }

    /// Returns the id of the next request and the parameters of its peer.
    ///
    /// # Errors
    /// Another event, or no event in time.
    pub fn request(&self) -> CaseResult<(CmId, Peer)> {
        let event = expect(&self.channel, EventType::CONNECT_REQUEST)?;
        match event.kind {
            EventKind::ConnectRequest(request) if event.id == self.listener.key() => {
                Ok((request.id, request.peer))
            }
            other => fail(format_args!("{other:?} of {:?}", event.id)),
        }
    }
}

/// The connecting side: an id with a route and its channel.
#[derive(Debug)]
pub struct Client {
    /// The channel.
    pub channel: EventChannel,
    /// The id.
    pub id: CmId,
}

impl Client {
    /// Resolves an address and the route to it.
    ///
    /// # Errors
    /// Those of the connection manager; no event in time.
    pub fn new(address: impl Into<Address>, space: PortSpace) -> CaseResult<Self> {
        Self::from(None, address, space)
    }

    /// Resolves an address and the route to it, from the given local address or from any.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from(source: Option<IpAddr>, address: impl Into<Address>, space: PortSpace) -> CaseResult<Self> {
        let channel = EventChannel::new()?;
        let id = channel.create_id(space)?;
        Self { channel, id }.resolved(source, address)
    }

    /// Resolves an address and the route to it, for an id that may already have options.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn resolved(self, source: Option<IpAddr>, address: impl Into<Address>) -> CaseResult<Self> {
        let (Self { channel, id }, address) = (&self, address.into());
        id.resolve_addr(source.map(|ip| (ip, 0).into()), address, RESOLVING)?;
        expect(channel, EventType::ADDR_RESOLVED)?;
        resolve_route(channel, id, &address)?;
        Ok(self)
    }

    /// Connects up to the request and returns the client and its parts.
    ///
    /// # Errors
    /// As [`new`](Self::new); those of verbs.
    pub fn requesting(server: &Server) -> CaseResult<(Self, Parts)> {
        let client = Self::new(server.address, PortSpace::TCP)?;
        let parts = Parts::of(&client.id)?;
        let qp = parts.qp(&client.id)?;
        client.id.connect(qp, &ConnParam::default())?;
        Ok((client, parts))
    }
}

/// The objects needed to create a queue pair.
#[derive(Debug)]
pub struct Parts {
    /// The domain.
    pub pd: Pd,
    /// The queue of all completions.
    pub cq: Cq,
}

impl Parts {
    /// Creates the objects on an id's device.
    ///
    /// # Errors
    /// An id without a device; those of verbs.
    pub fn of(id: &CmId) -> CaseResult<Self> {
        let context = id.context()?;
        Ok(Self { pd: context.alloc_pd()?, cq: context.create_cq(&CqInit::new(64))? })
    }

    /// Creates the id's queue pair and posts a receive.
    ///
    /// # Errors
    /// Those of verbs.
    pub fn qp(&self, id: &CmId) -> CaseResult<Qp<Init>> {
        let mut qp = id.create_qp(&self.pd, &QpInit::new(QpType::RC, &self.cq))?;
        self.post_recv(&mut qp, MESSAGE)?;
        Ok(qp)
    }

    /// Posts a receive of `len` bytes.
    ///
    /// # Errors
    /// Those of verbs.
    pub fn post_recv<S: CanPostRecv>(&self, qp: &mut Qp<S>, len: usize) -> CaseResult {
        qp.post_recv_buf(self.pd.alloc_buf(len)?, ..)?;
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Those of verbs.
    pub fn send(&self, qp: &mut Qp<Rts>, message: &[u8]) -> CaseResult {
        self.post(qp, SendOp::Send, message)
    }

    /// Sends a message with the given operation.
    ///
    /// # Errors
    /// Those of verbs.
    pub fn post(&self, qp: &mut Qp<Rts>, op: SendOp<'_>, message: &[u8]) -> CaseResult {
        let mut buf = self.pd.alloc_buf(message.len().max(1))?;
        buf[..message.len()].copy_from_slice(message);
        qp.post_send_buf(op, SendFlags::SIGNALED, buf, ..message.len())?;
        Ok(())
    }

    /// Waits for a message, skipping completions of sends.
    ///
    /// # Errors
    /// A failed completion, or no message in time.
    pub fn receive(&mut self) -> CaseResult<Vec<u8>> {
        loop {
            let completed = self.complete()?;
            let (is_recv, len) = (completed.opcode.is_recv(), completed.received());
            let buf: Buf = completed.into_buf()?;
            if is_recv {
                return Ok(buf[..len].to_vec());
            }
        }
    }

    /// Waits for the next completion, which must be successful.
    ///
    /// # Errors
    /// A failed completion, or no completion in time.
    pub fn complete(&mut self) -> CaseResult<Completed> {
        Ok(self.cq.poll_within(PATIENCE)?.ok()?)
    }
}

/// Returns the next event.
///
/// # Errors
/// No event in time.
pub fn next(channel: &EventChannel) -> CaseResult<Event> {
    match channel.next_event_within(PATIENCE)? {
        Some(event) => Ok(event),
        None => fail("no event came"),
    }
}

/// Returns the next event, which must be of the given kind.
///
/// # Errors
/// Another event, or no event in time.
pub fn expect(channel: &EventChannel, wanted: EventType) -> CaseResult<Event> {
    let event = next(channel)?;
    if event.event_type() == wanted {
        return Ok(event);
    }
    let event = event.ok()?;
    fail(format_args!("{event:?} came instead of {wanted}"))
}

/// Waits until a channel has an unread event.
///
/// # Errors
/// No event in time.
pub fn arrived(channel: &EventChannel) -> CaseResult {
    if is_readable(channel, PATIENCE)? { Ok(()) } else { fail(format_args!("no event after {PATIENCE:?}")) }
}

/// Returns whether a channel has an unread event within the given time.
///
/// # Errors
/// Any errno of `poll(2)`.
pub fn is_readable(channel: &EventChannel, within: Duration) -> CaseResult<bool> {
    let timeout = PollTimeout::try_from(within)?;
    Ok(poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], timeout)? != 0)
}

/// Waits until a thread of this process sleeps. `task` is its folder in `/proc`.
///
/// # Errors
/// The thread has ended, or does not sleep in time.
pub fn is_asleep(task: &Path) -> CaseResult {
    let stat = Path::new("/proc").join(task).join("stat");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Ok(text) = fs::read_to_string(&stat) else { return fail("the thread has ended") };
        // The state follows the name in parentheses.
        if text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return fail("the thread does not wait");
        }
        thread::yield_now();
    }
}

/// Takes the connected queue pair held by an id.
///
/// # Errors
/// No such queue pair.
pub fn take(id: &CmId) -> CaseResult<Qp<Rts>> {
    id.take_qp().ok_or_else(|| Stop::Failed("the id holds no connected queue pair".to_owned()))
}

/// Two connected ids with their queue pairs.
#[derive(Debug)]
pub struct Connected {
    /// The listener.
    pub server: Server,
    /// The side that connected.
    pub client: Client,
    /// The side that accepted.
    pub accepted: CmId,
    /// The queue pairs: of the client, then of the accepting side.
    pub ends: [(Parts, Qp<Rts>); 2],
    /// The parameters of the request as received.
    pub asked: PeerParam,
    /// The parameters of the reply as received.
    pub replied: PeerParam,
}

/// Connects both sides by an address, with private data in both directions.
///
/// # Errors
/// A failed call, or no event in time.
///
/// # Panics
/// If the received private data differs from the data sent.
pub fn connect(address: impl Into<Address>) -> CaseResult<Connected> {
    // Linux takes the request to a GID for one to an IP address unless the data begins like this.
    let [question, answer] = [b"\0\0from the client", b"\0\0from the server"];
    let param = |private_data| ConnParam { private_data, ..ConnParam::default() };
    let connected = Connected::new(address, &param(question), &param(answer))?;
    assert!(connected.asked.private_data.starts_with(question), "{:?}", connected.asked);
    assert!(connected.replied.private_data.starts_with(answer), "{:?}", connected.replied);
    Ok(connected)
}

impl Connected {
    /// Connects both sides by an address, with the given parameters of the request and the reply.
    ///
    /// # Errors
    /// A failed call, or no event in time.
    ///
    /// # Panics
    /// If an address or the state of a queue pair does not fit the connection.
    pub fn new(
        address: impl Into<Address>,
        request: &ConnParam<'_>,
        reply: &ConnParam<'_>,
    ) -> CaseResult<Self> {
        let server = Server::new(address, PortSpace::TCP, 4)?;
        let client = Client::new(server.address, PortSpace::TCP)?;
        Self::between(server, client, request, reply)
    }

    /// Connects a client to the listener whose address it has resolved.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn between(
        server: Server,
        client: Client,
        request: &ConnParam<'_>,
        reply: &ConnParam<'_>,
    ) -> CaseResult<Self> {
        let connects = Parts::of(&client.id)?;
        client.id.connect(connects.qp(&client.id)?, request)?;
        let (accepted, asked) = server.request()?;
        assert_eq!(accepted.local_addr()?, Some(server.address));
        let accepts = Parts::of(&accepted)?;
        accepted.accept(accepts.qp(&accepted)?, reply)?;
        let established = expect(&client.channel, EventType::ESTABLISHED)?;
        let (Peer::Conn(asked), EventKind::Established(Peer::Conn(replied))) = (asked, established.kind)
        else {
            return fail("a connection without parameters");
        };
        expect(&server.channel, EventType::ESTABLISHED)?;
        assert_eq!(client.id.peer_addr()?, Some(server.address));
        let ends = [(connects, take(&client.id)?), (accepts, take(&accepted)?)];
        for (_, qp) in &ends {
            assert_eq!(qp.state()?, QpState::RTS);
        }
        Ok(Self { server, client, accepted, ends, asked, replied })
    }
}

/// The private data of the requests of [`connect_many`].
const MANY: &[u8] = b"one of many";

/// The connections of one side, by the keys of their ids.
type Many = BTreeMap<IdKey, CmId>;

/// Accepts `count` connections of [`connect_many`] and confirms their disconnections.
///
/// # Errors
/// A failed connection, or no event in time.
pub fn accept_many(channel: &EventChannel, count: usize) -> CaseResult {
    let mut accepted = Many::new();
    let mut parts: Option<Parts> = None;
    let mut ended = 0;
    while ended < count {
        let event = next(channel)?;
        match event.kind {
            EventKind::ConnectRequest(request) => {
                if !request.peer.private_data().starts_with(MANY) {
                    // From a client that is gone and had sent its request twice.
                    continue;
                }
                let id = request.id;
                let parts = match &parts {
                    Some(parts) => parts,
                    None => parts.insert(Parts::of(&id)?),
                };
                id.accept(parts.qp(&id)?, &ConnParam::default())?;
                accepted.insert(id.key(), id);
            }
            EventKind::Established(_) | EventKind::TimewaitExit => {}
            EventKind::Disconnected => {
                let Some(id) = accepted.get(&event.id) else { return fail("the end of nobody's connection") };
                id.disconnect()?;
                ended += 1;
            }
            other => return fail(format_args!("{other:?}, after {ended} connections")),
        }
    }
    Ok(())
}

/// Makes `count` connections to an address and disconnects when all are established.
///
/// # Errors
/// A failed connection, or no event in time.
pub fn connect_many(address: impl Into<Address>, count: usize) -> CaseResult {
    let (channel, address) = (EventChannel::new()?, address.into());
    let start = |_| {
        let id = channel.create_id(PortSpace::TCP)?;
        id.resolve_addr(None, address, RESOLVING)?;
        Ok((id.key(), id))
    };
    let ids = (0..count).map(start).collect::<CaseResult<Many>>()?;
    let mut parts: Option<Parts> = None;
    let (mut established, mut ended) = (0, 0);
    while ended < count {
        let event = next(&channel)?;
        let Some(id) = ids.get(&event.id) else { return fail("an event of nobody") };
        match event.kind {
            EventKind::AddrResolved => id.resolve_route(RESOLVING)?,
            EventKind::RouteResolved => {
                let parts = match &parts {
                    Some(parts) => parts,
                    None => parts.insert(Parts::of(id)?),
                };
                id.connect(parts.qp(id)?, &ConnParam { private_data: MANY, ..ConnParam::default() })?;
            }
            EventKind::Established(_) => {
                established += 1;
                if established == count {
                    ids.values().try_for_each(CmId::disconnect)?;
                }
            }
            EventKind::Disconnected => ended += 1,
            EventKind::TimewaitExit => {}
            _ => {
                let event = event.ok().map_err(|error| {
                    Stop::Failed(format!("{error}, with {established} of {count} connections"))
                })?;
                return fail(format_args!("{event:?}, with {established} of {count} connections"));
            }
        }
    }
    Ok(())
}
