//! Binding to an address; resolving a peer's address.
//!
//! # References
//! linux `rdma_bind_addr`, `rdma_resolve_addr`, `rdma_resolve_route`

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ib_cm::time::{MILLISECOND, Time};
use provider_soft::cm::{LookupId, Port, Resolution, Route, is_taken, ports_of};
use verbs::Errno;

use super::key::{Key, Token};
use super::ports::Owner;
use super::record::IdState;
use super::state::{Continuation, Limits, PendingLookup, Query, State};
use crate::types::{Address, EventType};

type Result<T> = core::result::Result<T, Errno>;

impl State {
    /// Binds an id to a port and an address, which may stand for all devices.
    pub(super) fn bind(&mut self, key: Key, address: &Address) -> Result<()> {
        // The id may listen later. If this check fails, listening reports the collision.
        self.bind_beside(key, address, |space, at| is_taken(space, at).unwrap_or(false))
    }

    /// Binds an id. An ephemeral port is not assigned if `is_taken` returns true for the port.
    fn bind_beside(
        &mut self,
        key: Key,
        address: &Address,
        is_taken: impl Fn(u16, SocketAddr) -> bool,
    ) -> Result<()> {
        let address = ip_of(address)?;
        self.follow_devices();
        let id = self.id(key)?;
        if id.state != IdState::Idle {
            return Err(Errno::INVAL);
        }
        let ip = address.ip();
        let (space, reuse, af_only) = (id.space.0, id.options.reuse, id.af_only(ip));
        let adapter = if ip.is_unspecified() {
            None
        } else {
            let ports = ports_of(ip)?;
            let of = |port: &&Port| address_of(port, address.port()) == address;
            let port = ports.iter().find(of).or(ports.first()).ok_or(Errno::NODEV)?;
            if address_of(port, 0).ip() == ip && !is_in_scope(port, address) {
                return Err(Errno::NODEV);
            }
            Some(self.adapter_of(port)?)
        };
        let owner = Owner { key, ip, scope: scope_of(address), reuse, af_only };
        let is_taken = |port| is_taken(space, with_port(address, port));
        let port = self.ports.take(space, address.port(), owner, is_taken)?;
        let id = self.id(key)?;
        id.local = Some(with_port(address, port));
        id.state = IdState::AddrBound;
        if let Some(number) = adapter {
            self.attach(key, number);
        }
        Ok(())
    }

    /// Starts resolving a peer's address. If no device reaches the address, the call fails if
    /// `fails_at_once` is set. Otherwise, an event reports the failure.
    pub(super) fn resolve_addr(
        &mut self,
        key: Key,
        source: Option<&Address>,
        destination: &Address,
        timeout_ms: u32,
        fails_at_once: bool,
    ) -> Result<()> {
        let destination = ip_of(destination)?;
        self.id(key)?.queue.reserve()?;
        self.follow_devices();
        match self.id(key)?.state {
            IdState::AddrBound => {}
            IdState::Idle => {
                let source = match source {
                    Some(source) => *source,
                    None => Address::from((unspecified(destination.ip()), 0)),
                };
                // Other processes do not see the port of a connecting id.
                self.bind_beside(key, &source, |_, _| false)?;
            }
            _ => return Err(Errno::INVAL),
        }
        let local = self.id(key)?.local.ok_or(Errno::INVAL)?.ip();
        if local.is_ipv4() != destination.is_ipv4() {
            return Err(Errno::INVAL);
        }
        let (now, given) = (self.now(), u64::from(timeout_ms));
        let limits = Limits { given: now + given * MILLISECOND, least: now + LISTENER_MS * MILLISECOND };
        match self.seek_address(key, destination, limits) {
            Err(Errno::NODEV) if !fails_at_once => self.resolved(key, destination, Err(Errno::NODEV)),
            // For a listener that replied earlier, an event reports the error, as it does after a
            // query.
            Err(Errno::AFNOSUPPORT) => self.resolved(key, destination, Err(Errno::AFNOSUPPORT)),
            other => return other,
        }
        Ok(())
    }

    /// Resolves an address, or starts waiting for a reply that the resolution needs.
    fn seek_address(&mut self, key: Key, destination: SocketAddr, limits: Limits) -> Result<()> {
        let id = self.id(key)?;
        let (space, local) = (id.space.0, id.local.ok_or(Errno::INVAL)?.ip());
        let source = (!local.is_unspecified()).then_some(local);
        let query = match self.listeners.resolve(space, source, destination)? {
            Resolution::Done(route) => {
                self.resolved(key, destination, Ok(route));
                return Ok(());
            }
            Resolution::Pending(lookup) => Query::Own(lookup),
            Resolution::Shared(id) => Query::Shared(id),
        };
        // Only queries to listeners have a lookup id.
        let is_listener = !matches!(&query, Query::Own(lookup) if lookup.id().is_none());
        let deadline = if is_listener { limits.given.max(limits.least) } else { limits.given };
        self.start_lookup(key, query, deadline, Continuation::Resolve(destination, limits))?;
        self.id(key)?.state = IdState::AddrQuery;
        Ok(())
    }

    /// Registers a lookup. Once its reply arrives, `continuation` runs.
    pub(super) fn start_lookup(
        &mut self,
        key: Key,
        query: Query,
        deadline: Time,
        continuation: Continuation,
    ) -> Result<()> {
        if let Query::Own(lookup) = &query {
            self.epoll.add(lookup, Token::Lookup(key).event())?;
        }
        self.lookups.insert(key, PendingLookup { query, deadline, continuation });
        Ok(())
    }

    /// Drops an id's lookup, if any. Other ids that share the lookup start a new one.
    pub(super) fn cancel_lookup(&mut self, key: Key) {
        if let Some(PendingLookup { query: Query::Own(lookup), .. }) = self.lookups.remove(&key) {
            let _ = self.epoll.delete(&lookup);
            let id = lookup.id();
            drop(lookup);
            self.go_on(id);
        }
    }

    /// Ends a lookup and passes its outcome to the call that waits for it.
    pub(super) fn end_lookup(&mut self, key: Key, outcome: Result<Route>) {
        let Some(PendingLookup { query, continuation, .. }) = self.lookups.remove(&key) else { return };
        let (mut has_devices, mut id) = (false, None);
        if let Query::Own(lookup) = query {
            let _ = self.epoll.delete(&lookup);
            id = lookup.id();
            has_devices = self.listeners.keep(lookup);
        }
        match continuation {
            Continuation::Resolve(destination, _) => self.resolved(key, destination, outcome),
            Continuation::Request(request) => self.found(key, &request, outcome, has_devices),
        }
        self.go_on(id);
    }

    /// Resumes the ids that shared a finished lookup. Either the lookup's reply is now known, or
    /// the first of these ids starts a new lookup. The other ids wait for the new lookup, each
    /// until its own deadline.
    fn go_on(&mut self, id: Option<LookupId>) {
        let Some(id) = id else { return };
        let shares = |pending: &PendingLookup| matches!(&pending.query, Query::Shared(its) if *its == id);
        let mut from = Key(0);
        loop {
            let next = self.lookups.range(from..).find(|(_, pending)| shares(pending));
            let Some(key) = next.map(|(key, _)| *key) else { return };
            let Some(PendingLookup { deadline, continuation, .. }) = self.lookups.remove(&key) else {
                return;
            };
            match continuation {
                Continuation::Resolve(destination, limits) => {
                    if let Err(errno) = self.seek_address(key, destination, limits) {
                        self.resolved(key, destination, Err(errno));
                    }
                }
                Continuation::Request(request) => self.seek_again(key, request, deadline),
            }
            let queries_again = self.lookups.get(&key).is_some_and(|pending| match &pending.query {
                Query::Own(lookup) => lookup.id().as_ref() == Some(&id),
                Query::Shared(its) => *its == id,
            });
            if queries_again {
                return;
            }
            from = key;
        }
    }

    /// Reports the outcome of an address resolution with an event.
    fn resolved(&mut self, key: Key, destination: SocketAddr, outcome: Result<Route>) {
        let outcome = outcome.and_then(|route| {
            let mtu = route.path_mtu()?;
            Ok((self.adapter_of(&route.port)?, mtu, route))
        });
        if let Ok((number, ..)) = &outcome {
            self.attach(key, *number);
        }
        let Some(id) = self.ids.get_mut(&key) else { return };
        let event = match &outcome {
            Ok((_, mtu, route)) => {
                if let Some(local) = id.local.filter(|local| local.ip().is_unspecified()) {
                    id.local = Some(source_of(route, destination, local.port()));
                    let own = (route.port.address(), route.port.scope_id());
                    self.ports.move_to(id.space.0, local.port(), key, own);
                }
                let is_this_machine = destination.ip().is_unspecified();
                id.peer = Some(if is_this_machine {
                    SocketAddr::new(route.destination, destination.port())
                } else {
                    destination
                });
                id.remote = route.destination.into();
                id.is_local = route.is_local;
                id.path_mtu = ib_cm::wire::Mtu(mtu.0);
                id.state = IdState::AddrResolved;
                EventType::ADDR_RESOLVED
            }
            Err(_) => {
                id.state = IdState::AddrBound;
                EventType::ADDR_ERROR
            }
        };
        self.report_outcome(key, event, outcome.map(drop));
    }

    /// Completes the route resolution: the route is already known from the address resolution.
    pub(super) fn resolve_route(&mut self, key: Key) -> Result<()> {
        let id = self.id(key)?;
        if id.state != IdState::AddrResolved {
            return Err(Errno::INVAL);
        }
        id.queue.reserve()?;
        id.state = IdState::RouteResolved;
        self.report_outcome(key, EventType::ROUTE_RESOLVED, Ok(()));
        Ok(())
    }
}

/// The minimum time-out for querying a listener's devices, in milliseconds. Programs choose
/// time-outs that suit the kernel, which resolves addresses without querying another process
/// (Valkey: 100 ms). Here the listener's process must reply, which may be slow on a busy machine.
const LISTENER_MS: u64 = 2000;

/// Returns the IP address; an IPv4-mapped IPv6 address becomes IPv4.
///
/// # Errors
/// `EAFNOSUPPORT` for another family; `EINVAL` for a link-local address without its interface.
fn ip_of(address: &Address) -> Result<SocketAddr> {
    match address.ip().ok_or(Errno::AFNOSUPPORT)? {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() && address.scope_id() == 0 => {
            Err(Errno::INVAL)
        }
        SocketAddr::V6(address) => Ok(match address.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), address.port()),
            None => address.into(),
        }),
        address => Ok(address),
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Returns whether an address is on a device's interface, or names no interface.
fn is_in_scope(port: &Port, address: SocketAddr) -> bool {
    scope_of(address) == 0 || scope_of(address) == port.scope_id()
}

/// Returns the interface index of a link-local address; 0 for other addresses.
fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    }
}

/// Returns the socket address of a device's port with port number `number`.
pub(super) fn address_of(port: &Port, number: u16) -> SocketAddr {
    let mut address = SocketAddr::new(port.address(), number);
    if let SocketAddr::V6(address) = &mut address {
        address.set_scope_id(port.scope_id());
    }
    address
}

/// Returns the source address of a connection, with port number `number`. This is normally the
/// device's address.
///
/// A destination other than a device's address stands for a listener on this machine. The source is
/// then the destination itself or 127.0.0.1, as with kernel sockets, if this side's device was
/// created automatically or the destination is loopback. The same applies if the device has an
/// address of the other family. Programs compare both addresses to recognise a local peer.
fn source_of(route: &Route, destination: SocketAddr, number: u16) -> SocketAddr {
    let (own, to) = (address_of(&route.port, number), destination.ip());
    let is_by_name = route.is_local && !to.is_unspecified() && to != route.destination;
    let is_like_socket = route.port.is_auto() || to.is_loopback();
    if own.is_ipv4() == to.is_ipv4() && !(is_by_name && is_like_socket) {
        return own;
    }
    match to {
        IpAddr::V4(v4) if v4.is_loopback() => (Ipv4Addr::LOCALHOST, number).into(),
        _ => with_port(destination, number),
    }
}

/// Returns the unspecified address in the family of `ip`.
fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
