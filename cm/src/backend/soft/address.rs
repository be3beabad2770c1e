//! Binding, resolving, listening; cookies, options, other channels; the end of an id.
//!
//! # References
//! linux `rdma_bind_addr`, `rdma_resolve_addr`, `rdma_listen`

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ib_cm::time::MILLISECOND;
use verbs::soft::cm::{Listening, Port, Resolution, Route, ports_of, resolve};
use verbs::{Ece, Errno, QpType};

use super::param::SoftParam;
use super::ports::Owner;
use super::queue::{Entry, Queue};
use super::state::{Garbage, IdState, Key, Listener, PendingLookup, State, Token, service};
use crate::cmd::option::IdOption;
use crate::types::{Address, EventType};

type Result<T> = core::result::Result<T, Errno>;

impl State {
    /// Binds an id to an address, of one device or of all, and to a port.
    pub(super) fn bind(&mut self, key: Key, address: &Address) -> Result<()> {
        let address = ip_of(address)?;
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
            Some(self.adapter_of(ports.first().ok_or(Errno::NODEV)?)?)
        };
        let port = self.ports.take(space, address.port(), Owner { key, ip, reuse, af_only })?;
        let id = self.id(key)?;
        id.local = Some(with_port(address, port));
        id.state = IdState::AddrBound;
        if let Some(number) = adapter {
            self.attach(key, number);
        }
        Ok(())
    }

    /// Starts to resolve the address of a peer.
    pub(super) fn resolve_addr(
        &mut self,
        key: Key,
        source: Option<&Address>,
        destination: &Address,
        timeout_ms: u32,
    ) -> Result<()> {
        let destination = ip_of(destination)?;
        match self.id(key)?.state {
            IdState::AddrBound => {}
            IdState::Idle => {
                let source = match source {
                    Some(source) => *source,
                    None => Address::from((unspecified(destination.ip()), 0)),
                };
                self.bind(key, &source)?;
            }
            _ => return Err(Errno::INVAL),
        }
        let id = self.id(key)?;
        let local = id.local.ok_or(Errno::INVAL)?.ip();
        if local.is_ipv4() != destination.is_ipv4() {
            return Err(Errno::INVAL);
        }
        match resolve(id.space.0, (!local.is_unspecified()).then_some(local), destination) {
            Ok(Resolution::Done(route)) => self.resolved(key, destination, Ok(route)),
            Ok(Resolution::Pending(lookup)) => {
                id.state = IdState::AddrQuery;
                self.epoll.add(&lookup, Token::Lookup(key).event())?;
                let deadline = self.now() + u64::from(timeout_ms) * MILLISECOND;
                self.lookups.insert(key, PendingLookup { lookup, destination, deadline });
            }
            Err(Errno::NODEV) => self.resolved(key, destination, Err(Errno::NODEV)),
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Ends a lookup with its outcome.
    pub(super) fn end_lookup(&mut self, key: Key, outcome: Result<Route>) {
        if let Some(pending) = self.lookups.remove(&key) {
            let _ = self.epoll.delete(&pending.lookup);
            self.resolved(key, pending.destination, outcome);
        }
    }

    /// Ends the resolution of an address, with an event.
    fn resolved(&mut self, key: Key, destination: SocketAddr, outcome: Result<Route>) {
        let outcome = outcome.and_then(|route| Ok((self.adapter_of(&route.port)?, route)));
        if let Ok((number, _)) = &outcome {
            self.attach(key, *number);
        }
        let Ok(id) = self.id(key) else { return };
        let event = match &outcome {
            Ok((_, route)) => {
                if let Some(local) = id.local.filter(|local| local.ip().is_unspecified()) {
                    id.local = Some(address_of(&route.port, local.port()));
                }
                let is_this_machine = destination.ip().is_unspecified();
                id.peer = Some(if is_this_machine {
                    SocketAddr::new(route.destination, destination.port())
                } else {
                    destination
                });
                id.remote = route.destination.into();
                id.path_mtu = ib_cm::wire::Mtu(route.port.active_mtu().0);
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

    /// Resolves the route, which is known with the address.
    pub(super) fn resolve_route(&mut self, key: Key) -> Result<()> {
        let id = self.id(key)?;
        if id.state != IdState::AddrResolved {
            return Err(Errno::INVAL);
        }
        id.state = IdState::RouteResolved;
        self.report_outcome(key, EventType::ROUTE_RESOLVED, Ok(()));
        Ok(())
    }

    /// Listens on the id's device, or on all devices of the process.
    pub(super) fn listen(&mut self, key: Key, backlog: u32) -> Result<()> {
        match self.id(key)?.state {
            IdState::AddrBound => {}
            IdState::Idle => self.bind(key, &Address::from((Ipv4Addr::UNSPECIFIED, 0)))?,
            _ => return Err(Errno::INVAL),
        }
        let id = self.id(key)?;
        let (space, local) = (id.space, id.local.ok_or(Errno::INVAL)?);
        if id.options.reuse {
            self.ports.claim(space.0, local.port(), key)?;
        }
        let id = self.id(key)?;
        let backlog = match usize::try_from(backlog) {
            Ok(backlog @ 1..MAX_BACKLOG) => backlog,
            _ => MAX_BACKLOG,
        };
        id.listener = Some(Listener {
            backlog,
            waiting: Arc::default(),
            service: service(space, local.port()),
            adapters: Vec::new(),
            names: Vec::new(),
        });
        let listening = self.listen_on(key, local);
        let id = self.id(key)?;
        match listening {
            Ok(()) => {
                id.state = IdState::Listen;
                id.options.reuse = false;
            }
            Err(_) => self.unlisten(key),
        }
        listening
    }

    fn listen_on(&mut self, key: Key, local: SocketAddr) -> Result<()> {
        let id = self.id(key)?;
        let (space, af_only) = (id.space, id.af_only(local.ip()));
        let ports = match id.adapter.and_then(|number| self.adapters.get(&number)) {
            Some(adapter) => vec![adapter.port.clone()],
            None => {
                let mut ports = ports_of(local.ip())?;
                ports.retain(|port| !af_only || port.address().is_ipv4() == local.is_ipv4());
                ports
            }
        };
        let service = service(space, local.port());
        for port in &ports {
            let number = self.adapter_of(port)?;
            if let Some(adapter) = self.adapters.get_mut(&number) {
                adapter.listen(service, key)?;
            }
            if let Some(listener) = &mut self.id(key)?.listener {
                listener.adapters.push(number);
            }
        }
        // Under `::`, IPv4 has a name of its own.
        let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port());
        let has_both = local.is_ipv6() && local.ip().is_unspecified() && !af_only;
        for address in [local].into_iter().chain(has_both.then_some(v4)) {
            if let Some(name) = Listening::bind(space.0, address, &ports)? {
                let number = self.draw_number();
                self.epoll.add(&name, Token::Name(number).event())?;
                self.names.insert(number, name);
                if let Some(listener) = &mut self.id(key)?.listener {
                    listener.names.push(number);
                }
            }
        }
        Ok(())
    }

    /// Ends a listener. Its id stays.
    fn unlisten(&mut self, key: Key) {
        let Some(listener) = self.ids.get_mut(&key).and_then(|id| id.listener.take()) else { return };
        for number in listener.adapters {
            if let Some(adapter) = self.adapters.get_mut(&number) {
                adapter.unlisten(listener.service, key);
            }
        }
        for number in listener.names {
            self.forget_name(number);
        }
    }

    /// Ends an id in any state: its peer is told, and its events are discarded.
    pub(super) fn destroy(&mut self, key: Key) {
        self.unlisten(key);
        let now = self.now();
        if let Some(pending) = self.lookups.remove(&key) {
            let _ = self.epoll.delete(&pending.lookup);
        }
        let Some(id) = self.ids.remove(&key) else { return };
        if let Some(local) = id.local {
            self.ports.release(id.space.0, local.port(), key);
        }
        if let Some(adapter) = id.adapter.and_then(|number| self.adapters.get_mut(&number))
            && let Some(connection) = id.connection
        {
            adapter.connections.remove(&connection);
            adapter.cm.destroy(now, connection);
        }
        self.detach(id.adapter);
        self.garbage.push(Garbage::Entries(id.queue.take(|entry| entry.owner == key)));
        self.garbage.push(Garbage::Id(Box::new(id)));
    }

    /// Gives an id the cookie that its events carry.
    pub(super) fn set_cookie(&mut self, key: Key, cookie: u64) -> Result<()> {
        let id = self.id(key)?;
        id.cookie.store(cookie, Ordering::Relaxed);
        id.queue.cookie_is_set();
        Ok(())
    }

    pub(super) fn set_option(&mut self, key: Key, option: IdOption<'_>) -> Result<()> {
        let id = self.id(key)?;
        match option {
            IdOption::Tos(tos) => id.options.tos = tos,
            // Sharing a port ends with listening.
            IdOption::ReuseAddr(on) if id.state == IdState::Idle || on && id.state != IdState::Listen => {
                id.options.reuse = on;
            }
            IdOption::AfOnly(on) if matches!(id.state, IdState::Idle | IdState::AddrBound) => {
                id.options.af_only = Some(on);
            }
            IdOption::AckTimeout(timeout)
                if timeout <= 31 && matches!(id.qp_type, QpType::RC | QpType::XRC_SEND) =>
            {
                id.options.ack_timeout = Some(timeout);
            }
            IdOption::ReuseAddr(_) | IdOption::AfOnly(_) | IdOption::AckTimeout(_) => {
                return Err(Errno::INVAL);
            }
            IdOption::IbPath(_) => return Err(Errno::OPNOTSUPP),
        }
        Ok(())
    }

    /// Queues an event that the program writes.
    pub(super) fn write_event(&mut self, key: Key, event: EventType, status: i32, arg: u64) -> Result<()> {
        self.id(key)?;
        self.report(key, event, status, SoftParam { arg, ..SoftParam::default() }, Ece::default());
        Ok(())
    }

    /// Moves an id with its events to another channel, and the requests of a listener that were not
    /// read.
    pub(super) fn migrate(&mut self, key: Key, to: &Arc<Queue>) -> Result<()> {
        let from = core::mem::replace(&mut self.id(key)?.queue, Arc::clone(to));
        if Arc::ptr_eq(&from, to) {
            return Ok(());
        }
        let moved = from.take(|entry| entry.owner == key);
        for entry in moved {
            let request = entry.request.as_ref().map(|(id, _)| id.key);
            if let Some(id) = request.and_then(|request| self.ids.get_mut(&request)) {
                id.queue = Arc::clone(to);
            }
            to.push(entry);
            if let Some(request) = request {
                // Those that came after the request.
                from.take(|entry| entry.owner == request).into_iter().for_each(|entry| to.push(entry));
            }
        }
        Ok(())
    }

    /// Queues an event of a membership.
    pub(super) fn report_member(&self, key: Key, cookie: u64, event: EventType, param: SoftParam) {
        if let Some(id) = self.ids.get(&key) {
            let cookie = Arc::new(AtomicU64::new(cookie));
            let (status, ece) = (0, Ece::default());
            id.queue.push(Entry { owner: key, cookie, event, status, param, ece, request: None });
        }
    }
}

/// Returns the IP address; an IPv4 address that is mapped into IPv6 as what it is.
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

/// Returns the address of a device, with a port.
fn address_of(port: &Port, number: u16) -> SocketAddr {
    let mut address = SocketAddr::new(port.address(), number);
    if let SocketAddr::V6(address) = &mut address {
        address.set_scope_id(port.scope_id());
    }
    address
}

/// Returns the unspecified address of the same family.
fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The largest backlog, and the one that 0 stands for (`net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: usize = 1024;
