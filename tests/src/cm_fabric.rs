//! The parts of cases on connections by address: a listener, the side that connects, the objects of
//! their queue pairs, and waiting with a deadline.
//!
//! All of it is safe code. A case of the suite `cm` has both sides in its process; a peer of
//! [`cm_peer`](crate::cm_peer) has one.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmacm::{CmId, ConnParam, Event, EventChannel, EventKind, EventType, IdKey, Peer, PortSpace};
use verbs::state::{CanPostRecv, Init, Rts};
use verbs::{Buf, Completed, Cq, CqInit, Pd, Qp, QpInit, QpState, QpType, SendFlags, SendOp};

use crate::fabric::PATIENCE;
use crate::runner::{CaseResult, Stop, fail};

/// The limit on resolving addresses and routes.
pub const RESOLVING: Duration = Duration::from_secs(10);

/// The length of a receive, and of the longest message, in bytes.
pub const MESSAGE: usize = 64;

/// A listener and its channel.
#[derive(Debug)]
pub struct Server {
    /// The channel.
    pub channel: EventChannel,
    /// The listener.
    pub listener: CmId,
    /// The address and the port that the listener got.
    pub address: SocketAddr,
}

impl Server {
    /// Listens on an address, on the port 0 on any.
    ///
    /// # Errors
    /// Those of the connection manager.
    pub fn new(address: SocketAddr, space: PortSpace, backlog: u32) -> CaseResult<Self> {
        let channel = EventChannel::new()?;
        let listener = channel.create_id(space)?;
        listener.bind_addr(address)?;
        listener.listen(backlog)?;
        let Some(local) = listener.local_addr()?.and_then(|address| address.ip()) else {
            return fail("a listener without an address");
        };
        if local.ip() != address.ip() || local.port() == 0 {
            return fail(format_args!("a listener at {local} instead of {address}"));
        }
        // With the scope of a link-local address, whatever the connection manager returns.
        let mut address = address;
        address.set_port(local.port());
        Ok(Self { channel, listener, address })
    }

    /// Returns the id of the next request, and the parameters of its peer.
    ///
    /// # Errors
    /// Another event comes, or none.
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

/// The side that connects: an id with a route, and its channel.
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
    /// Those of the connection manager, or no event.
    pub fn new(address: SocketAddr, space: PortSpace) -> CaseResult<Self> {
        Self::from(None, address, space)
    }

    /// Resolves an address and the route to it, from a local address or from any.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from(source: Option<IpAddr>, address: SocketAddr, space: PortSpace) -> CaseResult<Self> {
        let channel = EventChannel::new()?;
        let id = channel.create_id(space)?;
        id.resolve_addr(source.map(|ip| (ip, 0).into()), address, RESOLVING)?;
        expect(&channel, EventType::ADDR_RESOLVED)?;
        id.resolve_route(RESOLVING)?;
        expect(&channel, EventType::ROUTE_RESOLVED)?;
        Ok(Self { channel, id })
    }

    /// Connects, and returns the parts and the client whose request waits.
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

/// The objects that a queue pair is made from.
#[derive(Debug)]
pub struct Parts {
    /// The domain.
    pub pd: Pd,
    /// The queue of all completions.
    pub cq: Cq,
}

impl Parts {
    /// Makes the objects on an id's device.
    ///
    /// # Errors
    /// The id has no device; those of verbs.
    pub fn of(id: &CmId) -> CaseResult<Self> {
        let context = id.context()?;
        Ok(Self { pd: context.alloc_pd()?, cq: context.create_cq(&CqInit::new(64))? })
    }

    /// Makes a queue pair of the id, with a receive posted.
    ///
    /// # Errors
    /// Those of verbs.
    pub fn qp(&self, id: &CmId) -> CaseResult<Qp<Init>> {
        let mut qp = id.create_qp(&self.pd, &QpInit::new(QpType::RC, &self.cq))?;
        self.post_recv(&mut qp, MESSAGE)?;
        Ok(qp)
    }

    /// Posts a receive of so many bytes.
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

    /// Sends a message by an operation.
    ///
    /// # Errors
    /// Those of verbs.
    pub fn post(&self, qp: &mut Qp<Rts>, op: SendOp<'_>, message: &[u8]) -> CaseResult {
        let mut buf = self.pd.alloc_buf(message.len().max(1))?;
        buf[..message.len()].copy_from_slice(message);
        qp.post_send_buf(op, SendFlags::SIGNALED, buf, ..message.len())?;
        Ok(())
    }

    /// Waits for a message, past the completions of sends.
    ///
    /// # Errors
    /// Something fails, or no message comes.
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

    /// Waits for the next completion, which is a success.
    ///
    /// # Errors
    /// It is none, or does not come.
    pub fn complete(&mut self) -> CaseResult<Completed> {
        Ok(self.cq.poll_within(PATIENCE)?.ok()?)
    }
}

/// Returns the next event.
///
/// # Errors
/// None comes.
pub fn next(channel: &EventChannel) -> CaseResult<Event> {
    match channel.next_event_within(PATIENCE)? {
        Some(event) => Ok(event),
        None => fail("no event came"),
    }
}

/// Returns the next event, which is of this kind.
///
/// # Errors
/// Another event comes, or none.
pub fn expect(channel: &EventChannel, wanted: EventType) -> CaseResult<Event> {
    let event = next(channel)?;
    if event.event_type() == wanted {
        return Ok(event);
    }
    let event = event.ok()?;
    fail(format_args!("{event:?} came instead of {wanted}"))
}

/// Waits until a channel has an event that nobody has read.
///
/// # Errors
/// None comes.
pub fn arrived(channel: &EventChannel) -> CaseResult {
    let timeout = PollTimeout::try_from(PATIENCE)?;
    match poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], timeout)? {
        0 => fail(format_args!("no event after {PATIENCE:?}")),
        _ => Ok(()),
    }
}

/// Returns the connected queue pair that an id holds.
///
/// # Errors
/// It holds none.
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
    /// The queue pairs: the one that connected, then the one that accepted.
    pub ends: [(Parts, Qp<Rts>); 2],
}

/// Connects both sides by an address, with private data both ways.
///
/// # Errors
/// Something fails, or does not come.
///
/// # Panics
/// If what arrives is not what was sent.
pub fn connect(address: SocketAddr) -> CaseResult<Connected> {
    let server = Server::new(address, PortSpace::TCP, 4)?;
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
    let ends = [(connects, take(&client.id)?), (accepts, take(&accepted)?)];
    for (_, qp) in &ends {
        assert_eq!(qp.state()?, QpState::RTS);
    }
    Ok(Connected { server, client, accepted, ends })
}

/// The private data of the requests of [`connect_many`].
const MANY: &[u8] = b"one of many";

/// The connections of one side, by the keys of their ids.
type Many = BTreeMap<IdKey, CmId>;

/// Accepts so many connections of [`connect_many`], and confirms their ends.
///
/// # Errors
/// One fails, or no event comes.
pub fn accept_many(channel: &EventChannel, count: usize) -> CaseResult {
    let mut accepted = Many::new();
    let mut parts: Option<Parts> = None;
    let mut ended = 0;
    while ended < count {
        let event = next(channel)?;
        match event.kind {
            EventKind::ConnectRequest(request) => {
                if !request.peer.private_data().starts_with(MANY) {
                    // Of a client that is gone, and has sent its request twice.
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

/// Makes so many connections to an address, and ends them when all are established.
///
/// # Errors
/// One fails, or no event comes.
pub fn connect_many(address: SocketAddr, count: usize) -> CaseResult {
    let channel = EventChannel::new()?;
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
