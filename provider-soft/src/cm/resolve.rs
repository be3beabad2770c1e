//! [`resolve`]: finds the port and the peer's address for an address requested by a program.
//!
//! ```text
//!   destination of this machine ──► is there a listener of its name? ──► Lookup: its addresses
//!            │ no                            │ no                                 │
//!            ▼                               ▼                                    ▼
//!   route to the destination ◄────── the destination itself             route to one of them
//! ```
//!
//! The route is the kernel's choice: it takes the port with the kernel's source address or, failing
//! that, a port with another address of the same interface. For a connection manager, a destination
//! on the network is resolved once the kernel has the Ethernet address of the next hop
//! ([`ListenerCache::resolve`]). A nonexistent host is thus noticed before a connection is
//! requested. Packets do not need this step: they are UDP datagrams.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use roce::wire::UDP_PORT;
use verbs_core::types::Mtu;
use verbs_core::{Errno, neighbour};

use super::listener_cache::{ListenerCache, ListenerReply};
use super::port::Port;
use super::rendezvous::{MAX_ADDRESSES, Token};
use crate::io::address::address_of;
use crate::io::link::Interface;
use crate::io::owner::Owner;

/// The route from a port of this process to a peer.
#[derive(Clone, Debug)]
pub struct Route {
    /// The sending port.
    pub port: Port,
    /// The address of the peer's device.
    pub destination: IpAddr,
    /// Whether the peer is on this machine.
    pub is_local: bool,
}

impl Route {
    /// Returns the largest path MTU that both ends support, as far as this end knows. A peer on
    /// this machine uses the interface of its address.
    ///
    /// # Errors
    /// The errors of [`Port::active_mtu`].
    pub fn path_mtu(&self) -> Result<Mtu, Errno> {
        if self.is_local { self.port.mtu_to_local(self.destination) } else { self.port.active_mtu() }
    }
}

/// The state of a resolution.
#[derive(Debug)]
pub enum Resolution {
    /// The resolution is complete and found this route.
    Done(Route),
    /// A request is pending: either to the listening process on this machine, for the addresses of
    /// its devices, or to the next hop, for its Ethernet address.
    Pending(Lookup),
    /// Another resolution through the same [`ListenerCache`] has already sent a request to the
    /// listening process. Resolve again once that request has ended.
    Shared(LookupId),
}

/// The identity of a [`Lookup`]: the listener that it queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupId(pub(super) String);

/// A request whose result the resolution needs. Its owner waits for the descriptor to be readable,
/// within the program's time-out, then calls [`poll`](Self::poll) and perhaps
/// [`ListenerCache::keep`].
#[derive(Debug)]
pub struct Lookup(To);

/// The recipient of a request.
#[derive(Debug)]
enum To {
    /// The process listening on an address of this machine.
    Listener(Listener),
    /// The next hop of a route.
    Neighbour(neighbour::Search, Route),
}

#[derive(Debug)]
struct Listener {
    stream: UnixStream,
    owner: Owner,
    name: String,
    reply: Vec<u8>,
    source: Option<IpAddr>,
    destination: SocketAddr,
    /// Other resolutions share the lookup while this value exists.
    shared: Arc<()>,
}

/// Resolves the destination of a connection in a port space (0x106: TCP), from the address `source`
/// of this machine, or from any address.
///
/// An unspecified destination means this machine. A destination on this machine without a listening
/// process resolves to itself, and so does a destination on the network, whether or not a host
/// exists there ([`ListenerCache::resolve`] looks for it).
///
/// # Errors
/// - `ENODEV`: no device of this process has the source address, or an address of the interface
///   used by the kernel to send to the destination.
/// - `EAFNOSUPPORT`: the devices of the listening process have addresses of another family.
/// - `EAGAIN`: thousands of clients wait for the listener's reply.
/// - `EPERM`, `EACCES`: this process may not connect to the listener's name.
/// - `ENETUNREACH`, `EHOSTUNREACH`: no route leads to the destination.
/// - any other errno of `socket(2)`, notably `EMFILE`.
pub fn resolve(space: u16, source: Option<IpAddr>, destination: SocketAddr) -> Result<Resolution, Errno> {
    ListenerCache::default().way(space, source, destination)
}

impl Lookup {
    pub(super) fn new(
        stream: UnixStream,
        owner: Owner,
        name: String,
        source: Option<IpAddr>,
        destination: SocketAddr,
    ) -> Self {
        let (reply, shared) = (Vec::new(), Arc::new(()));
        Self(To::Listener(Listener { stream, owner, name, reply, source, destination, shared }))
    }

    /// Starts a request for the next hop of a route to another machine. Returns `None` if no
    /// request is needed or possible.
    pub(super) fn of_neighbour(route: &Route) -> Option<Self> {
        let source = route.port.address();
        let interface = Interface::on(source, route.port.scope_id()).ok()??;
        let search = neighbour::Search::start(interface.index, source, route.destination).ok()??;
        Some(Self(To::Neighbour(search, route.clone())))
    }

    /// Returns the route if the reply has arrived, and otherwise `None`, without waiting. If a
    /// listener ends without a reply, the route leads to the destination itself.
    ///
    /// # Errors
    /// The errors of [`resolve`].
    pub fn poll(&mut self) -> Result<Option<Route>, Errno> {
        match &mut self.0 {
            To::Listener(listener) => listener.poll(),
            To::Neighbour(search, route) => Ok(search.is_found()?.then(|| route.clone())),
        }
    }

    /// Returns the listener's name, reply and owner, or `None` if there is no valid reply.
    pub(super) fn into_reply(self) -> Option<(String, ListenerReply, Owner)> {
        let To::Listener(listener) = self.0 else { return None };
        Some((listener.name, parse(&listener.reply)?, listener.owner))
    }

    /// Returns the owner of the listener.
    pub(super) fn owner(&self) -> Option<Owner> {
        match &self.0 {
            To::Listener(listener) => Some(listener.owner),
            To::Neighbour(..) => None,
        }
    }

    /// Returns the identity of a query to a listener, or `None` for a query to a next hop.
    pub fn id(&self) -> Option<LookupId> {
        match &self.0 {
            To::Listener(listener) => Some(LookupId(listener.name.clone())),
            To::Neighbour(..) => None,
        }
    }

    /// Returns a weak reference that is live while the request to a listener is pending.
    pub(super) fn shared(&self) -> Weak<()> {
        match &self.0 {
            To::Listener(listener) => Arc::downgrade(&listener.shared),
            To::Neighbour(..) => Weak::new(),
        }
    }
}

impl Listener {
    fn poll(&mut self) -> Result<Option<Route>, Errno> {
        if !self.has_ended() {
            return Ok(None);
        }
        let addresses = parse(&self.reply).map(|reply| reply.addresses).unwrap_or_default();
        best_route(&Port::all(), self.source, self.destination, &addresses).map(Some)
    }

    /// Reads the reply. Returns whether it is complete or the listener has closed the connection.
    // Not inlined, because the caller needs the stack for the kernel's list of addresses.
    #[inline(never)]
    fn has_ended(&mut self) -> bool {
        while !is_whole(&self.reply) {
            let mut bytes = [0; MAX_REPLY_LEN];
            match self.stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(len) => self.reply.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        true
    }
}

/// The descriptor is readable when a reply may have arrived, or the listener has ended.
impl AsFd for Lookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            To::Listener(listener) => listener.stream.as_fd(),
            To::Neighbour(search, _) => search.as_fd(),
        }
    }
}

/// Returns whether a reply is complete. Its first byte is the number of addresses.
fn is_whole(reply: &[u8]) -> bool {
    reply.first().is_some_and(|count| reply.len() >= 1 + 16 * usize::from(*count) + TOKEN)
}

/// Parses a listener's reply and discards addresses of other machines. Returns `None` for a
/// malformed reply.
fn parse(reply: &[u8]) -> Option<ListenerReply> {
    let (count, rest) = reply.split_first()?;
    let (gids, token) = rest.split_last_chunk::<TOKEN>()?;
    let (gids, []) = gids.as_chunks::<16>() else { return None };
    if gids.len() != usize::from(*count) || gids.len() > MAX_ADDRESSES {
        return None;
    }
    let all = gids.iter().map(|gid| address_of(*gid));
    Some(ListenerReply {
        addresses: all.filter(|address| is_local(*address)).collect(),
        token: Token(*token),
    })
}

/// Returns the route to a listener's device: the device at the destination, failing that the first
/// reachable device, failing that the destination itself.
///
/// # Errors
/// The errors of [`resolve`].
pub(super) fn best_route(
    ports: &[Port],
    source: Option<IpAddr>,
    destination: SocketAddr,
    addresses: &[IpAddr],
) -> Result<Route, Errno> {
    let preferred = addresses.iter().filter(|address| **address == destination.ip());
    let others = addresses.iter().filter(|address| **address != destination.ip());
    let itself = destination.ip();
    let none = addresses.is_empty().then_some(&itself);
    let mut reached = Err(Errno::NODEV);
    for address in preferred.chain(others).chain(none) {
        let mut to = SocketAddr::new(*address, UDP_PORT);
        if let (SocketAddr::V6(to), SocketAddr::V6(given)) = (&mut to, destination) {
            to.set_scope_id(given.scope_id());
        }
        reached = route(ports, source, to, true);
        if reached.is_ok() {
            return reached;
        }
    }
    if is_other_family(ports, source, addresses) { Err(Errno::AFNOSUPPORT) } else { reached }
}

/// Returns whether the address family is the only reason why the ports selected by `source` cannot
/// reach any of `addresses`.
fn is_other_family(ports: &[Port], source: Option<IpAddr>, addresses: &[IpAddr]) -> bool {
    let stands_for =
        |port: &&Port| source.is_none_or(|source| source == port.address() || source.is_loopback());
    let mut ports = ports.iter().filter(stands_for).peekable();
    ports.peek().is_some()
        && !addresses.is_empty()
        && ports.all(|port| addresses.iter().all(|address| address.is_ipv4() != port.address().is_ipv4()))
}

/// Returns the route to an address.
///
/// # Errors
/// The errors of [`resolve`].
pub(super) fn route(
    ports: &[Port],
    source: Option<IpAddr>,
    destination: SocketAddr,
    is_local: bool,
) -> Result<Route, Errno> {
    let to = destination.ip();
    let is_on_host = is_local || to.is_multicast();
    let fits = |port: &&Port| {
        port.address().is_ipv4() == to.is_ipv4()
            && port.is_in_scope(destination)
            && (is_on_host || port.reaches_network())
    };
    let at = |address: IpAddr| {
        let mut at = ports.iter().filter(|port| port.address() == address);
        let first = at.clone().next();
        at.find(fits).or(first)
    };
    let port = match source {
        // A loopback address without a port stands for any port, as for a listener, when sending to
        // this machine or to a group, which may have members on this machine.
        Some(source) => at(source).or_else(|| {
            let any = ports.iter().filter(fits).min_by_key(|port| !port.address().is_loopback());
            any.filter(|_| source.is_loopback() && (is_local || to.is_multicast()))
        }),
        None => {
            let by_route =
                || source_for(destination).map(|source| at(source).or_else(|| beside(ports, source)));
            let kernels = at(to).map_or_else(by_route, |own| Ok(Some(own)));
            match kernels {
                Ok(Some(port)) => Some(port),
                // Addresses of one machine reach each other.
                _ if is_local => ports.iter().filter(fits).min_by_key(|port| !port.address().is_loopback()),
                Ok(None) => None,
                Err(errno) => return Err(errno),
            }
        }
    };
    let port = port.filter(fits).ok_or(Errno::NODEV)?.clone();
    Ok(Route { port, destination: to, is_local })
}

/// Returns a port with another address of the interface that has `source`. The kernel chooses the
/// first address of a subnet; a device may have any address of the subnet.
fn beside(ports: &[Port], source: IpAddr) -> Option<&Port> {
    let others = Interface::addresses_beside(source).unwrap_or_default();
    others.iter().find_map(|other| ports.iter().find(|port| port.address() == *other))
}

/// Returns the ports for a program listening on an address: all IPv4 ports for `0.0.0.0`, all ports
/// for `::`, and one port for another address; for link-local IPv6, one port per interface.
///
/// # Errors
/// - `ENODEV`: no device of this process has the address. A loopback address stands for every
///   device.
/// - `EADDRNOTAVAIL`: it is not an address of this machine.
pub fn ports_of(address: IpAddr) -> Result<Vec<Port>, Errno> {
    let address = address.to_canonical();
    let mut ports = Port::all();
    if address.is_unspecified() {
        ports.retain(|port| address.is_ipv6() || port.address().is_ipv4());
        return Ok(ports);
    }
    // Several interfaces may have the same link-local address.
    let own: Vec<_> = ports.iter().filter(|port| port.address() == address).cloned().collect();
    if !own.is_empty() {
        return Ok(own);
    }
    let any = ports.iter().min_by_key(|port| !port.address().is_loopback());
    match any.filter(|_| address.is_loopback()) {
        Some(port) => Ok(vec![port.clone()]),
        None if is_local(address) => Err(Errno::NODEV),
        None => Err(Errno::ADDRNOTAVAIL),
    }
}

/// Returns the kernel's source address for a destination.
///
/// # Errors
/// Any errno of `connect(2)`, notably `ENETUNREACH`.
fn source_for(destination: SocketAddr) -> Result<IpAddr, Errno> {
    let any: SocketAddr = match destination {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let mut destination = destination;
    destination.set_port(UDP_PORT);
    let socket = UdpSocket::bind(any).and_then(|socket| socket.connect(destination).map(|()| socket));
    let source = socket.and_then(|socket| socket.local_addr()).map_err(|error| Errno::from_io(&error))?;
    Ok(source.ip())
}

/// Returns whether an address belongs to this machine.
pub(super) fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || matches!(Interface::with_address(address), Ok(Some(_)))
}

/// Converts an IPv4 address mapped into IPv6 to plain IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // Unchanged, to keep the scope.
        IpAddr::V6(_) => address,
    }
}

/// The maximum length of a reply, in bytes: the length of a reply with 255 addresses.
const MAX_REPLY_LEN: usize = 1 + 16 * 255 + TOKEN;

/// The length of a token, in bytes.
const TOKEN: usize = 8;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cm::rendezvous::reply_with;

    fn local(last: u8) -> IpAddr {
        [127, 0, 1, last].into()
    }

    const TOKEN: Token = Token([7; 8]);

    fn addresses(reply: &[u8]) -> Option<Vec<IpAddr>> {
        parse(reply).map(|reply| reply.addresses)
    }

    #[test]
    fn a_reply_is_addresses_of_this_machine_and_a_token() {
        let foreign: IpAddr = [192, 0, 2, 1].into();
        let reply = reply_with([local(1), foreign, local(2)].into_iter(), TOKEN);
        assert!(is_whole(&reply));
        let reply = parse(&reply).unwrap();
        assert_eq!((reply.addresses, reply.token), (vec![local(1), local(2)], TOKEN));
    }

    #[test]
    fn a_malformed_reply_has_no_addresses() {
        let reply = reply_with([local(1), local(2)].into_iter(), TOKEN);
        for len in 0..reply.len() {
            assert!(!is_whole(&reply[..len]), "{len}");
            assert_eq!(addresses(&reply[..len]), None, "{len}");
        }
        let longer = [&reply[..], &[0; 16]].concat();
        assert!(is_whole(&longer) && addresses(&longer).is_none());
        let none = reply_with([].into_iter(), TOKEN);
        assert!(is_whole(&none) && addresses(&none).unwrap().is_empty(), "a listener without devices");
    }

    #[test]
    fn the_kernel_names_the_source_of_a_destination() {
        assert_eq!(source_for(([127, 0, 0, 1], 0).into()), Ok([127, 0, 0, 1].into()));
    }

    #[test]
    fn loopback_is_this_machine_and_a_test_network_is_not() {
        assert!(is_local([127, 8, 9, 10].into()));
        assert!(!is_local([192, 0, 2, 1].into()));
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:7174".parse().unwrap();
        assert_eq!(canonical(mapped), ([127, 0, 0, 1], 7174).into());
    }
}
