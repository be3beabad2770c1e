//! [`ListenerCache`]: a connection manager's cache of listeners on this machine and their devices.
//!
//! ```text
//!   resolve ─► known, and its token's name exists ─────► Done
//!      │ no                                               ▲
//!      └─► connect to the name ─► Pending ─► poll ───► keep
//! ```
//!
//! Checking a listener takes one `send(2)` on a socket kept for it. A listener bound to the address
//! is tried before a listener bound to all addresses, even if only the latter is cached. A listener
//! of another user is compared each time with the listener on all addresses, because that listener
//! may be new.
//!
//! # One request for all resolutions
//! While a request to a listener is pending, further resolutions share it ([`Resolution::Shared`]).
//! If the listener's process has the device at the destination, no resolution waits: the kernel
//! identifies both processes, so the device is known to be the listener's. The reply arrives later.
//!
//! # Ownership of names
//! Any user may bind a name. The name of a running listener cannot be taken. A listener on all
//! addresses also holds the name of the loopback address, unless a process has a device there. For
//! the other addresses of 127.0.0.0/8 and for devices' addresses, the client compares users
//! (`ListenerCache::is_preferred`).
//!
//! | listener on the address | listener on all addresses | chosen |
//! |---|---|---|
//! | of root or the client's user | any | the first |
//! | of another user | none, or of the same user | the first |
//! | of another user | of root or the client's user | the second |
//! | of another user, at its device | of a third user | the first |
//! | of another user, at a loopback address | of a third user, without that name | the first |
//! | of another user | of a third user | the second |
//!
//! A device at the loopback address may listen beside a listener of the same user on all addresses,
//! under a second name that clients try first (`ListenerCache::is_beside`).
//!
//! The user of a listener on all addresses cannot be seen while its queue of clients is full. That
//! user is then assumed to be the holder of the loopback name, if any, and otherwise a third user.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Weak;

use verbs_core::Errno;

use super::device_owner::PeerProcess;
use super::port::Port;
use super::rendezvous::{Token, Watch, has_process_device, name, name_at, second_name};
use super::resolve::{Lookup, LookupId, Resolution, Route, best_route, canonical, is_local, route};
use crate::io::address::{loopback_of, unspecified_of};
use crate::io::names::{is_reached, stream};
use crate::io::owner::Owner;

/// A cache of listeners' replies. A connection manager uses one cache for all resolutions.
#[derive(Debug, Default)]
pub struct ListenerCache {
    /// Cached replies, by listener name.
    known: BTreeMap<String, Known>,
    /// The socket for checking the names of tokens.
    probe: Option<UnixDatagram>,
    /// An unconnected request socket, kept for reuse because nothing listened on the last name
    /// tried.
    unconnected: Option<OwnedFd>,
    /// Pending lookups by listener name.
    pending: BTreeMap<String, Weak<()>>,
    /// Pending lookups without a waiting resolution, because the destination is one of the
    /// listener's own devices.
    background: BTreeMap<String, Lookup>,
}

/// The listener at a destination, as found by a [second search](ListenerCache::find).
#[derive(Debug)]
pub enum Found {
    /// The device chosen by the resolution belongs to the listener.
    Same,
    /// The listener does not have the chosen device. Contains the route to one of its devices.
    Moved(Route),
    /// A new listener; a request for its devices is pending.
    Pending(Lookup),
    /// A new listener, already being queried for another request or resolution.
    Shared(LookupId),
    /// A program is listening, but no route leads from this process's devices to the program's
    /// devices. Contains the errno of [`resolve`](super::resolve()).
    Unreached(Errno),
    /// No process listens at the destination.
    NoListener,
}

/// The listener at a destination.
#[derive(Debug)]
enum Seen {
    /// The listener's reply is known.
    Known(ListenerReply),
    /// The listener's process has the device at the destination.
    AtDevice,
    Pending(Lookup),
    Shared(LookupId),
    NoListener,
}

/// A listener's reply, kept while the listener exists.
#[derive(Debug)]
struct Known {
    reply: ListenerReply,
    owner: Owner,
    /// The connection to the token's socket. `None` if no descriptor was free; the name of the
    /// token is then looked up instead.
    watch: Option<Watch>,
}

/// A listener's reply.
#[derive(Clone, Debug)]
pub(super) struct ListenerReply {
    /// The addresses of the listener's devices, except addresses of other machines.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) token: Token,
}

impl ListenerCache {
    /// Resolves a destination as [`resolve`](super::resolve()) does, but queries each listener only
    /// once. The resolution of a host on the network stays pending until the kernel has the
    /// Ethernet address of the next hop. If the kernel does not report its search for that address,
    /// this step is skipped.
    ///
    /// # Errors
    /// The errors of [`resolve`](super::resolve()).
    pub fn resolve(
        &mut self,
        space: u16,
        source: Option<IpAddr>,
        destination: SocketAddr,
    ) -> Result<Resolution, Errno> {
        match self.way(space, source, destination)? {
            Resolution::Done(route) if !route.is_local => {
                let lookup = Lookup::of_neighbour(&route);
                Ok(lookup.map_or(Resolution::Done(route), Resolution::Pending))
            }
            resolution => Ok(resolution),
        }
    }

    /// Returns the route to a destination, whether or not a host exists there.
    ///
    /// # Errors
    /// The errors of [`resolve`](super::resolve()).
    pub(super) fn way(
        &mut self,
        space: u16,
        source: Option<IpAddr>,
        destination: SocketAddr,
    ) -> Result<Resolution, Errno> {
        let source = source.map(|source| source.to_canonical()).filter(|source| !source.is_unspecified());
        let destination = named(destination);
        let ports = Port::all();
        // A port of this process needs no name, and names do not lead to other machines.
        let is_own = ports.iter().any(|port| port.is_at(destination));
        let is_local = is_own || is_local(destination.ip());
        if is_local && !is_own {
            let route = |addresses: &[IpAddr]| best_route(&ports, source, destination, addresses);
            match self.search(space, source, destination)? {
                Seen::Known(reply) => return route(&reply.addresses).map(Resolution::Done),
                Seen::AtDevice => return route(&[destination.ip()]).map(Resolution::Done),
                Seen::Pending(lookup) => return Ok(Resolution::Pending(lookup)),
                Seen::Shared(id) => return Ok(Resolution::Shared(id)),
                Seen::NoListener => {}
            }
        }
        route(&ports, source, destination, is_local).map(Resolution::Done)
    }

    /// Returns whether the reply of a listener for a destination is known, and the listener still
    /// exists.
    pub fn is_known(&mut self, space: u16, destination: SocketAddr) -> bool {
        let destination = named(destination);
        names_of(space, destination).any(|(_, name)| self.known(&name).is_some())
    }

    /// Keeps the reply to a finished lookup. Returns whether the listener has devices.
    ///
    /// If the listener has closed in the meantime, any process may have bound its token's name. The
    /// reply is therefore kept only if its sender still has the listener's name.
    pub fn keep(&mut self, lookup: Lookup) -> bool {
        let Some((name, reply, owner)) = lookup.into_reply() else { return false };
        let has_devices = !reply.addresses.is_empty();
        let watch = match Watch::new(reply.token, &name) {
            Ok(None) => return has_devices,
            watch => watch.ok().flatten(),
        };
        // Checked after the token: a listener found now also existed then.
        if !matches!(self.owner(&name), Ok(Some(now)) if now == owner) {
            return has_devices;
        }
        if self.known.len() >= MAX_KNOWN && !self.known.contains_key(&name) {
            self.known.pop_first();
        }
        self.known.insert(name, Known { reply, owner, watch });
        has_devices
    }

    /// Searches again for the listener at a destination on this machine, before a connection
    /// request is sent to the resolved device at `remote`. Since the resolution, another program
    /// may have replaced the listener. `source` is the address of the resolved port.
    ///
    /// A device of this process listens as long as its queue pair 1 is in use.
    ///
    /// # Errors
    /// The errors of the request to the listener: `EAGAIN` while thousands of clients wait for the
    /// listener; `EPERM` or `EACCES` if this process may not connect to the listener's name; any
    /// other errno of `socket(2)` and `connect(2)`, notably `EMFILE`.
    pub fn find(
        &mut self,
        space: u16,
        source: IpAddr,
        destination: SocketAddr,
        remote: IpAddr,
    ) -> Result<Found, Errno> {
        let (destination, remote) = (canonical(destination), remote.to_canonical());
        let own = || Port::all().into_iter().find(|port| port.is_at(destination));
        if let Some(port) = (destination.ip() == remote).then(own).flatten() {
            return Ok(if port.has_gsi() { Found::Same } else { Found::NoListener });
        }
        let source = Some(source.to_canonical());
        let addresses = match self.search(space, source, destination)? {
            Seen::Known(reply) => reply.addresses,
            Seen::AtDevice => vec![destination.ip()],
            Seen::Pending(lookup) => return Ok(Found::Pending(lookup)),
            Seen::Shared(id) => return Ok(Found::Shared(id)),
            Seen::NoListener => return Ok(Found::NoListener),
        };
        if addresses.contains(&remote) {
            return Ok(Found::Same);
        }
        if addresses.is_empty() {
            return Ok(Found::NoListener);
        }
        let route = best_route(&Port::all(), source, destination, &addresses);
        Ok(route.map_or_else(Found::Unreached, Found::Moved))
    }

    /// Looks for the listener at a destination. Sends the listener a request, unless its reply is
    /// already known or not needed.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find).
    fn search(&mut self, space: u16, source: Option<IpAddr>, destination: SocketAddr) -> Result<Seen, Errno> {
        let mut is_full = false;
        for (kind, name) in names_of(space, destination) {
            self.collect(&name);
            let seen = match (self.known(&name), self.background.get(&name)) {
                (Some((reply, owner)), _) => Some((Seen::Known(reply), owner)),
                (None, Some(lookup)) => lookup.owner().map(|owner| (Seen::AtDevice, owner)),
                // The listener is unknown, or has ended and may have been replaced.
                (None, None) => None,
            };
            if let Some((seen, owner)) = seen {
                if !self.is_chosen(kind, space, owner, destination)? {
                    continue;
                }
                return Ok(seen);
            }
            if self.pending.get(&name).is_some_and(|lookup| lookup.strong_count() > 0) {
                return Ok(Seen::Shared(LookupId(name)));
            }
            let stream = match self.connect(&name) {
                // Any user can hold this name, and must not keep clients from the names tried after
                // it.
                Err(Errno::AGAIN) if kind != NameKind::All => {
                    is_full |= kind == NameKind::Address;
                    continue;
                }
                stream => stream?,
            };
            let Some(stream) = stream else { continue };
            let owner = Owner::from_stream(&stream)?;
            if !self.is_chosen(kind, space, owner, destination)? {
                continue;
            }
            let lookup = Lookup::new(stream, owner, name.clone(), source, destination);
            self.pending.retain(|_, lookup| lookup.strong_count() > 0);
            self.pending.insert(name.clone(), lookup.shared());
            if kind != NameKind::All && self.has_room() && self.has_process_device(owner, destination) {
                self.background.insert(name, lookup);
                return Ok(Seen::AtDevice);
            }
            return Ok(Seen::Pending(lookup));
        }
        if is_full { Err(Errno::AGAIN) } else { Ok(Seen::NoListener) }
    }

    /// Stores the reply to a lookup in the background, if the reply has arrived. Drops the lookup
    /// if its listener has closed.
    fn collect(&mut self, name: &str) {
        let Some(lookup) = self.background.get_mut(name) else { return };
        if !matches!(lookup.poll(), Ok(None))
            && let Some(lookup) = self.background.remove(name)
        {
            self.keep(lookup);
        }
    }

    /// Returns whether another lookup in the background is allowed. If there are too many, first
    /// collects the replies that have arrived.
    fn has_room(&mut self) -> bool {
        if self.background.len() >= MAX_KNOWN {
            let names: Vec<_> = self.background.keys().cloned().collect();
            names.iter().for_each(|name| self.collect(name));
        }
        self.background.len() < MAX_KNOWN
    }

    /// Returns whether the process of a listener has the device at the destination, or shares it
    /// with processes of its user.
    fn has_process_device(&mut self, listener: Owner, destination: SocketAddr) -> bool {
        let scope = match destination {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        let has_device = has_process_device(listener, destination.ip(), scope, |name| self.owner(name));
        has_device.unwrap_or(false)
    }

    /// Returns whether a client chooses the owner of a name before trying the next name.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find).
    fn is_chosen(
        &mut self,
        kind: NameKind,
        space: u16,
        listener: Owner,
        destination: SocketAddr,
    ) -> Result<bool, Errno> {
        match kind {
            NameKind::Second => self.is_beside(space, listener, destination),
            NameKind::Address => self.is_preferred(space, listener, destination),
            NameKind::All => Ok(true),
        }
    }

    /// Returns whether the second name of the loopback address belongs to a legitimate listener,
    /// whose user is root, this client's user, or the user holding the other names.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find).
    fn is_beside(&mut self, space: u16, listener: Owner, destination: SocketAddr) -> Result<bool, Errno> {
        if listener.is_trusted() {
            return Ok(true);
        }
        for (_, name) in names_of(space, destination).skip(1) {
            match self.owner(&name) {
                Ok(None) => {}
                Ok(Some(holder)) => return Ok(holder.is_user_of(listener)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(other) => return Err(other),
            }
        }
        Ok(true)
    }

    /// Returns whether the listener on an address takes precedence over a listener on all
    /// addresses. The table at the head of this file lists the cases.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find).
    fn is_preferred(&mut self, space: u16, listener: Owner, destination: SocketAddr) -> Result<bool, Errno> {
        if listener.is_trusted() {
            return Ok(true);
        }
        let (ip, port) = (destination.ip(), destination.port());
        let loopback = name(space, loopback_of(ip), port);
        let of_all = match self.owner(&name(space, unspecified_of(ip), port)) {
            Ok(None) => return Ok(true),
            // The listener's client queue is full. A listener on all addresses holds this name,
            // too.
            Err(Errno::AGAIN) => self.visible_owner(&loopback)?,
            of_all => of_all?,
        };
        if of_all.is_some_and(|of_all| of_all.is_user_of(listener)) {
            return Ok(true);
        }
        if of_all.is_some_and(Owner::is_trusted) {
            return Ok(false);
        }
        if self.has_process_device(listener, destination) {
            return Ok(true);
        }
        // At other addresses, a listener on the address itself has the device there.
        let of_loopback = self.visible_owner(&loopback)?;
        let holds_both = of_loopback.zip(of_all).is_some_and(|(one, all)| one.is_user_of(all));
        Ok(ip.is_loopback() && !holds_both)
    }

    /// Returns the owner of a name, if a process has bound the name and its client queue has space.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find), except `EAGAIN`.
    fn visible_owner(&mut self, name: &str) -> Result<Option<Owner>, Errno> {
        match self.owner(name) {
            Err(Errno::AGAIN) => Ok(None),
            owner => owner,
        }
    }

    /// Returns the owner of a name, if a process has bound the name.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find).
    fn owner(&mut self, name: &str) -> Result<Option<Owner>, Errno> {
        self.connect(name)?.map(|stream| Owner::from_stream(&stream)).transpose()
    }

    /// Returns whether a process still has the device through which the process was found. Also
    /// returns true for a process that cannot be inspected.
    pub fn has_device(&mut self, process: &PeerProcess) -> bool {
        self.exists(&process.name, process.token)
    }

    /// Returns a listener's reply and owner, looked up by its name, if the listener still exists.
    fn known(&mut self, name: &str) -> Option<(ListenerReply, Owner)> {
        let Known { reply, owner, watch } = self.known.get(name)?;
        let (seen, token) = ((reply.clone(), *owner), reply.token);
        let exists = watch.as_ref().map(Watch::exists).unwrap_or_else(|| self.exists(name, token));
        if !exists {
            self.known.remove(name);
        }
        exists.then_some(seen)
    }

    /// Returns whether the name of a token exists. Also returns true if no descriptor is free to
    /// look up the name, so the cache entry is kept.
    fn exists(&mut self, name: &str, token: Token) -> bool {
        let socket = match self.probe.take() {
            Some(socket) => socket,
            None => match UnixDatagram::unbound() {
                Ok(socket) => socket,
                Err(_) => return true,
            },
        };
        let exists = token.is_seen(name, &socket);
        self.probe = Some(socket);
        exists
    }

    /// Connects to a name. Returns `None` if no listener has bound the name.
    ///
    /// # Errors
    /// The errors of [`resolve`](super::resolve()).
    fn connect(&mut self, name: &str) -> Result<Option<UnixStream>, Errno> {
        let fd = match self.unconnected.take() {
            Some(fd) => fd,
            None => stream()?,
        };
        if is_reached(&fd, name)? {
            return Ok(Some(fd.into()));
        }
        self.unconnected = Some(fd);
        Ok(None)
    }
}

/// Returns a destination in the form that listeners' names use.
fn named(destination: SocketAddr) -> SocketAddr {
    let mut destination = canonical(destination);
    if destination.ip().is_unspecified() {
        destination.set_ip(loopback_of(destination.ip()));
    }
    destination
}

/// The kind of a listener's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    /// The second name of the loopback address. A listener at this address binds it while a
    /// listener of the same user on all addresses has the first name.
    Second,
    /// The name of the listener's address itself.
    Address,
    /// The name of all addresses of the family.
    All,
}

/// Returns the names that a listener for a destination may have, in the order of the search.
pub(super) fn names_of(space: u16, destination: SocketAddr) -> impl Iterator<Item = (NameKind, String)> {
    let destination = named(destination);
    let (ip, port) = (destination.ip(), destination.port());
    let second = (ip == loopback_of(ip)).then(|| (NameKind::Second, second_name(space, ip, port)));
    let others = [
        (NameKind::Address, name_at(space, destination)),
        (NameKind::All, name(space, unspecified_of(ip), port)),
    ];
    second.into_iter().chain(others)
}

/// The maximum number of cached replies.
const MAX_KNOWN: usize = 64;
