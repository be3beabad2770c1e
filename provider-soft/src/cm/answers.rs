//! [`Answers`]: the listeners of this machine that a connection manager has asked, and what they
//! answered.
//!
//! ```text
//!   resolve ─► known, and its token's name exists ─────► Done
//!      │ no                                               ▲
//!      └─► connect to the name ─► Pending ─► finish ─► keep
//! ```
//!
//! Looking at a name is one `connect(2)` of a socket that is kept for it. A listener on the address
//! itself comes before one on all addresses, whatever was known before: its name is tried first.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};

use verbs_core::Errno;

use super::port::Port;
use super::process::PeerProcess;
use super::rendezvous::{Token, is_reached, name, stream};
use super::resolve::{
    Lookup, Resolution, Route, best_route, canonical, is_local, loopback_of, route, unspecified_of,
};

/// The answers of listeners, of which a connection manager keeps one for all its resolutions.
#[derive(Debug, Default)]
pub struct Answers {
    /// The answers by the listeners' names.
    known: BTreeMap<String, Answer>,
    /// The socket that looks at tokens' names.
    looking: Option<UnixDatagram>,
    /// A socket whose last name had no listener.
    asking: Option<OwnedFd>,
}

/// The listener at a destination, when it is looked for [again](Answers::find).
#[derive(Debug)]
pub enum Found {
    /// The device to which the resolution has led is the listener's.
    Same,
    /// Another device is.
    Moved(Route),
    /// A listener that has not answered before is asked for its devices.
    Asked(Lookup),
    /// A program listens, and no device of this process reaches its devices: the errno of
    /// [`resolve`](super::resolve()).
    Unreached(Errno),
    /// Nothing listens.
    Nobody,
}

/// The answer of a listener.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The addresses of its devices that are addresses of this machine.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) token: Token,
}

impl Answers {
    /// Resolves a destination as [`resolve`](super::resolve()) does, asks a listener only if it has
    /// not answered before, and waits for a host of the network until the kernel knows the Ethernet
    /// address of the next hop. Where that cannot be followed, the resolution does without.
    ///
    /// # Errors
    /// As [`resolve`](super::resolve()).
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

    /// Returns the way to a destination, whether or not there is a host.
    ///
    /// # Errors
    /// As [`resolve`](super::resolve()).
    pub(super) fn way(
        &mut self,
        space: u16,
        source: Option<IpAddr>,
        destination: SocketAddr,
    ) -> Result<Resolution, Errno> {
        let source = source.map(|source| source.to_canonical()).filter(|source| !source.is_unspecified());
        let destination = named(destination);
        let ports = Port::all();
        // An own port needs no name, and a remote one has none here.
        let is_own = ports.iter().any(|port| port.address() == destination.ip());
        let is_local = is_own || is_local(destination.ip());
        if is_local && !is_own {
            for ip in names_of(destination.ip()) {
                let name = name(space, ip, destination.port());
                if let Some(answer) = self.known(&name) {
                    return best_route(&ports, source, destination, &answer.addresses).map(Resolution::Done);
                }
                if let Some(stream) = self.ask(&name)? {
                    return Ok(Resolution::Pending(Lookup::new(stream, name, source, destination)));
                }
            }
        }
        route(&ports, source, destination, is_local).map(Resolution::Done)
    }

    /// Returns whether a listener for a destination has answered before, and still exists.
    pub fn is_known(&mut self, space: u16, destination: SocketAddr) -> bool {
        let destination = named(destination);
        names_of(destination.ip())
            .into_iter()
            .any(|ip| self.known(&name(space, ip, destination.port())).is_some())
    }

    /// Keeps what a listener has answered to a lookup that is finished. Returns whether it has
    /// devices.
    pub fn keep(&mut self, lookup: Lookup) -> bool {
        let Some((name, answer)) = lookup.into_answer() else { return false };
        let has_devices = !answer.addresses.is_empty();
        if self.known.len() >= MAX_KNOWN && !self.known.contains_key(&name) {
            self.known.pop_first();
        }
        self.known.insert(name, answer);
        has_devices
    }

    /// Looks for the listener at a destination on this machine again, before a request is sent to
    /// the device at `remote`, to which the resolution has led: the program that listened may have
    /// ended since, and another one may listen. `source` is the address of the port that the
    /// resolution has chosen.
    ///
    /// An own device listens as long as its queue pair 1 is in use.
    ///
    /// # Errors
    /// The listener cannot be asked: `EAGAIN` while thousands of clients wait for its answer;
    /// `EPERM` or `EACCES` if this process may not connect to its name; any other errno of
    /// `socket(2)` and `connect(2)`, notably `EMFILE`.
    pub fn find(
        &mut self,
        space: u16,
        source: IpAddr,
        destination: SocketAddr,
        remote: IpAddr,
    ) -> Result<Found, Errno> {
        let (destination, remote) = (canonical(destination), remote.to_canonical());
        if let Some(port) = Port::with_address(remote).filter(|_| destination.ip() == remote) {
            return Ok(if port.has_gsi() { Found::Same } else { Found::Nobody });
        }
        let source = Some(source.to_canonical());
        for ip in names_of(destination.ip()) {
            let name = name(space, ip, destination.port());
            match self.known(&name) {
                Some(answer) if answer.addresses.contains(&remote) => return Ok(Found::Same),
                Some(answer) if answer.addresses.is_empty() => return Ok(Found::Nobody),
                Some(answer) => {
                    let route = best_route(&Port::all(), source, destination, &answer.addresses);
                    return Ok(route.map_or_else(Found::Unreached, Found::Moved));
                }
                None => {
                    if let Some(stream) = self.ask(&name)? {
                        return Ok(Found::Asked(Lookup::new(stream, name, source, destination)));
                    }
                }
            }
        }
        Ok(Found::Nobody)
    }

    /// Returns whether a process still has the device by which it was found, or whether nothing can
    /// be seen of it.
    pub fn has_device(&mut self, process: &PeerProcess) -> bool {
        self.exists(&process.name, process.token)
    }

    /// Returns what the listener with a name has answered, if it still exists.
    fn known(&mut self, name: &str) -> Option<Answer> {
        let answer = self.known.get(name)?.clone();
        if self.exists(name, answer.token) {
            return Some(answer);
        }
        self.known.remove(name);
        None
    }

    /// Returns whether the listener with a name and a token exists, or whether nothing can be seen
    /// of it: a process that is short of files keeps to what it knows.
    fn exists(&mut self, name: &str, token: Token) -> bool {
        let socket = match self.looking.take() {
            Some(socket) => socket,
            None => match UnixDatagram::unbound() {
                Ok(socket) => socket,
                Err(_) => return true,
            },
        };
        let exists = token.is_seen(name, &socket);
        self.looking = Some(socket);
        exists
    }

    /// Connects to a name. Returns `None` if no listener has it.
    ///
    /// # Errors
    /// As [`resolve`](super::resolve()).
    fn ask(&mut self, name: &str) -> Result<Option<UnixStream>, Errno> {
        let fd = match self.asking.take() {
            Some(fd) => fd,
            None => stream()?,
        };
        if is_reached(&fd, name)? {
            return Ok(Some(fd.into()));
        }
        self.asking = Some(fd);
        Ok(None)
    }
}

/// Returns a destination as names have it.
fn named(destination: SocketAddr) -> SocketAddr {
    let mut destination = canonical(destination);
    if destination.ip().is_unspecified() {
        destination.set_ip(loopback_of(destination.ip()));
    }
    destination
}

/// Returns the addresses under whose names a listener for an address may be found, in order.
fn names_of(ip: IpAddr) -> [IpAddr; 2] {
    [ip, unspecified_of(ip)]
}

/// The most answers that are kept.
const MAX_KNOWN: usize = 64;
