//! Listening on one device or on all devices, under a name visible to other processes.
//!
//! # References
//! linux `rdma_listen`, `cma_listen_on_all`

use core::slice::from_ref;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use provider_soft::cm::{ListenerName, Mailbox, Port};
use verbs::Errno;

use super::address::address_of;
use super::backlog::Backlog;
use super::key::{Key, Token};
use super::record::{IdState, Listener, service};
use super::state::{Garbage, State};
use crate::cmd::query::DeviceKey;
use crate::types::Address;

type Result<T> = core::result::Result<T, Errno>;

impl State {
    /// Listens on the id's device, or on all devices of the process.
    pub(super) fn listen(&mut self, key: Key, backlog: u32) -> Result<()> {
        self.follow_devices();
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
            backlog: Backlog::new(backlog),
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

    /// Undoes a [`listen`](Self::listen): the id stays bound. Requests received in the meantime are
    /// rejected.
    pub(super) fn stop_listening(&mut self, key: Key) -> Result<()> {
        self.unlisten(key);
        let id = self.id(key)?;
        if id.state == IdState::Listen {
            id.state = IdState::AddrBound;
        }
        let requests = id.queue.discard(|entry| entry.owner == key && entry.request.is_some());
        self.garbage.push_back(Garbage::Requests(requests));
        Ok(())
    }

    fn listen_on(&mut self, key: Key, local: SocketAddr) -> Result<()> {
        let ports = self.ports_of(key, local)?;
        self.take_ports(key, &ports)?;
        self.take_names(key, &ports)
    }

    /// Returns the devices covered by an id's address.
    pub(super) fn devices(&mut self, key: Key) -> Result<Vec<DeviceKey>> {
        let Some(local) = self.id(key)?.local else { return Ok(Vec::new()) };
        let ports = self.ports_of(key, local)?;
        Ok(ports.iter().map(|port| DeviceKey { guid: port.node_guid(), index: None }).collect())
    }

    fn ports_of(&mut self, key: Key, local: SocketAddr) -> Result<Vec<Port>> {
        let id = self.id(key)?;
        let af_only = id.af_only(local.ip());
        Ok(match id.adapter.and_then(|number| self.adapters.get(&number)) {
            Some(adapter) => vec![adapter.port.clone()],
            None => {
                let mut ports = self.present_ports();
                ports.retain(|port| is_of(port, local, af_only));
                ports
            }
        })
    }

    /// Acquires the names that a listener still lacks, for the ports covered by its address.
    fn take_names(&mut self, key: Key, ports: &[Port]) -> Result<()> {
        let id = self.id(key)?;
        let (space, local) = (id.space, id.local.ok_or(Errno::INVAL)?);
        let af_only = id.af_only(local.ip());
        // A listener on `::` that also accepts IPv4 needs a second name.
        let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port());
        let is_any = local.ip().is_unspecified();
        let has_both = local.is_ipv6() && is_any && !af_only;
        let mut names: Vec<(SocketAddr, &[Port])> = vec![(local, ports)];
        names.extend(has_both.then_some((v4, ports)));
        // Other processes may also listen on all addresses of their devices, so each device's
        // address has a name.
        let each = ports.iter().map(|port| (address_of(port, local.port()), from_ref(port)));
        names.extend(each.filter(|_| is_any));
        let listener = id.listener.as_ref();
        let is_new = |address: &SocketAddr| {
            !listener.is_some_and(|listener| listener.names.iter().any(|(its, _)| its == address))
        };
        names.retain(|(address, _)| is_new(address));
        // Other users must not be able to claim the name of the loopback address.
        let unspecified = [Some(local), has_both.then_some(v4)].into_iter().flatten().filter(|_| is_any);
        let loopback: Vec<_> = unspecified
            .map(|any| (any, SocketAddr::new(loopback_of(any.ip()), any.port())))
            .filter(|(_, address)| is_new(address) && !names.iter().any(|(its, _)| its == address))
            .collect();
        for (address, ports) in names {
            if let Some(name) = ListenerName::bind(space.0, address, ports)? {
                self.keep_name(key, address, name)?;
            }
        }
        for (any, address) in loopback {
            // Of two listeners on all addresses, the first one holds both names.
            let listener = self.id(key)?.listener.as_ref();
            if !listener.is_some_and(|listener| listener.names.iter().any(|(its, _)| *its == any)) {
                continue;
            }
            if let Some(name) = ListenerName::bind_loopback(space.0, address, ports)? {
                self.keep_name(key, address, name)?;
            }
        }
        Ok(())
    }

    /// Makes the manager's thread wait for clients that connect to a listener's name.
    fn keep_name(&mut self, key: Key, address: SocketAddr, name: ListenerName) -> Result<()> {
        let number = self.draw_number();
        self.epoll.add(&name, Token::Name(number).event())?;
        if name.is_second() {
            let at = self.now() + RETAKE;
            self.retakes_at.get_or_insert(at);
        }
        self.names.insert(number, name);
        if let Some(listener) = &mut self.id(key)?.listener {
            listener.names.push((address, number));
        }
        Ok(())
    }

    /// Listens on the given ports that the listener's address covers. Skips ports already in use by
    /// the listener.
    pub(super) fn take_ports(&mut self, key: Key, ports: &[Port]) -> Result<()> {
        let id = self.id(key)?;
        let (local, is_one) = (id.local.ok_or(Errno::INVAL)?, id.adapter.is_some());
        let af_only = id.af_only(local.ip());
        for port in ports.iter().filter(|port| is_one || is_of(port, local, af_only)) {
            let number = self.adapter_of(port)?;
            self.name_device(number);
            let Some(Listener { service, adapters, .. }) = &mut self.id(key)?.listener else { break };
            if adapters.contains(&number) {
                continue;
            }
            adapters.push(number);
            let service = *service;
            if let Some(adapter) = self.adapters.get_mut(&number) {
                let watch = |mailbox: &Mailbox| self.epoll.add(mailbox, Token::Gsi(number).event());
                adapter.listen(service, key, |mailbox| watch(mailbox).map_err(Errno::from))?;
            }
        }
        Ok(())
    }

    /// Updates the ports that a listener on an unspecified address reports to clients of its names.
    pub(super) fn set_reply(&mut self, key: Key, ports: &[Port]) {
        let Some(id) = self.ids.get_mut(&key) else { return };
        let (af_only, local) = (id.local.is_some_and(|local| id.af_only(local.ip())), id.local);
        let (Some(listener), Some(local)) = (&mut id.listener, local) else { return };
        let ports: Vec<_> = ports.iter().filter(|port| is_of(port, local, af_only)).cloned().collect();
        let mut gone = Vec::new();
        listener.names.retain(|(address, number)| {
            let ip = address.ip();
            let own = ports.iter().find(|port| address_of(port, address.port()) == *address);
            let is_second = self.names.get(number).is_some_and(ListenerName::is_second);
            let is_of_all = ip.is_unspecified() || ip == loopback_of(ip) && !is_second;
            let reply = match own {
                Some(own) => from_ref(own),
                None if is_of_all => &ports[..],
                None => {
                    gone.push(*number);
                    return false;
                }
            };
            if let Some(name) = self.names.get_mut(number) {
                // If no descriptor is free, the name keeps its old reply.
                let _ = name.set_ports(reply);
            }
            true
        });
        gone.into_iter().for_each(|number| self.forget_name(number));
        let _ = self.take_names(key, &ports);
    }

    /// Claims the first name of the loopback address for listeners that hold only the second name,
    /// once the process that held the first name has ended.
    pub(super) fn take_first_names(&mut self) {
        if self.retakes_at.is_none_or(|at| at > self.now()) {
            return;
        }
        self.retakes_at = None;
        let ports = self.present_ports();
        let mut second = Vec::new();
        for (key, id) in &self.ids {
            for (address, number) in id.listener.iter().flat_map(|listener| &listener.names) {
                if self.names.get(number).is_some_and(ListenerName::is_second) {
                    second.push((*key, *address, *number));
                }
            }
        }
        for (key, address, number) in second {
            let own = ports.iter().find(|port| address_of(port, address.port()) == address);
            let first = self.names.get(&number).zip(own).map(|(name, own)| name.first(from_ref(own)));
            if let Some(Ok(first)) = first
                && self.keep_name(key, address, first).is_ok()
            {
                if let Some(listener) = self.ids.get_mut(&key).and_then(|id| id.listener.as_mut()) {
                    listener.names.retain(|(_, its)| *its != number);
                }
                self.forget_name(number);
            } else {
                self.retakes_at = Some(self.now() + RETAKE);
            }
        }
    }

    /// Stops an id from listening, but keeps the id.
    pub(super) fn unlisten(&mut self, key: Key) {
        let Some(listener) = self.ids.get_mut(&key).and_then(|id| id.listener.take()) else { return };
        for number in listener.adapters {
            if let Some(adapter) = self.adapters.get_mut(&number) {
                adapter.unlisten(listener.service, key, &self.epoll);
            }
        }
        for (_, number) in listener.names {
            self.forget_name(number);
        }
    }
}

/// Returns the loopback address in the family of `ip`.
fn loopback_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Returns whether an unspecified address covers a port's address.
fn is_of(port: &Port, unspecified: SocketAddr, af_only: bool) -> bool {
    port.address().is_ipv4() == unspecified.is_ipv4() || unspecified.is_ipv6() && !af_only
}

/// The interval between attempts to claim the first name of the loopback address: 1 s, in
/// nanoseconds.
const RETAKE: u64 = 1_000_000_000;

/// The maximum backlog, which is also the default for 0 (`net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: usize = 1024;
