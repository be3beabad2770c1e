//! [`ListenerName`]: the names of listeners, which lead processes on one machine to the listeners'
//! devices.
//!
//! A name is an abstract address of a Unix socket. It belongs to the network namespace, like IP
//! addresses, needs no rights or directory and ends with its process. It consists of the port
//! space, the port and the IP address of the listener:
//!
//! ```text
//!   listener:  bind \0verbs-soft/cm/2/106/7174/0.0.0.0, reply to those who connect
//!              bind \0verbs-soft/cm/2/106/7174/0.0.0.0/TOKEN, a datagram socket that receives
//!              nothing
//!   client:    connect to \0verbs-soft/cm/2/106/7174/127.0.0.1, then to the one above
//!              read the addresses of the listener's devices: their number as a byte, then GIDs,
//!              then the token
//!              connect a datagram socket to the token's name
//!              later: send by it; the error says whether the listener's is still open
//! ```
//!
//! The token, 64 random bits, belongs to one listener. While the socket with the token's name
//! exists, the reply is valid. A client therefore sends each listener one request
//! ([`ListenerCache`](super::ListenerCache)) and connects a datagram socket to the token's socket.
//! Later it checks the token's socket by sending to it, which fails and costs the listener nothing.
//! The token's name contains the listener's name. Clients can obtain the token of a listener with
//! another name, but it proves nothing about this listener.
//!
//! Any process in the namespace can bind a name, like a TCP port. Binding a token's name after its
//! listener has ended is useless, because the clients' sockets stay connected to the listener's
//! socket. From a reply, clients use only addresses of this machine. Connecting to such an address
//! includes the usual checks of the protocol.
//!
//! # Two listeners at the loopback address
//! A listener on all addresses holds the name of the loopback address against other users. A
//! process of the same user whose device has the loopback address listens under a second name until
//! the first is free:
//!
//! ```text
//!   bind \0verbs-soft/cm/2/106/7174/127.0.0.1/device, which clients try first
//! ```
//!
//! # References
//! `unix(7)` (abstract socket addresses)

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener};

use nix::sys::socket::{MsgFlags, send};
use roce::wire::UDP_PORT;
use verbs_core::Errno;

use super::port::Port;
use crate::io::address::{gid_of, loopback_of, unspecified_of};
use crate::io::names::{is_reached, stream};
use crate::io::owner::Owner;
use crate::io::share;
use crate::io::spare::SpareFd;

/// The name of a listener of this process. Dropping it frees the name.
///
/// The owner waits for the descriptor to be readable, then calls [`reply`](Self::reply).
#[derive(Debug)]
pub struct ListenerName {
    listener: UnixListener,
    name: String,
    /// The socket bound to the token's name, kept open while the token is valid.
    _alive: UnixDatagram,
    /// The encoded reply: the number of devices, their GIDs, and the token.
    reply: Box<[u8]>,
}

impl ListenerName {
    /// Binds the name of a listener on an address and port, reached through `ports`.
    ///
    /// `space` is the port space as numbered by `rdma_cm.h` (0x106: TCP). A listener on `::` that
    /// also accepts IPv4 has two names, one for `::` and one for `0.0.0.0`.
    ///
    /// Returns `None` if another process has the name of an unspecified address and clients do not
    /// need it, because they connect to the explicitly requested addresses of `ports`. Two
    /// processes with separate devices may therefore listen on `0.0.0.0` and the same port, like
    /// two machines.
    ///
    /// # Errors
    /// - `EADDRINUSE`: another listener of this machine has the name, or [competes for the same
    ///   clients](is_taken). For an unspecified address, the latter counts if one of `ports` has an
    ///   address found only by name ([`Port::is_auto`]); for another address, if none of `ports`
    ///   has it. If a port has the loopback address, a listener of this user on all addresses may
    ///   hold its name: the result is then a [second name](Self::is_second).
    /// - `EINVAL`: the port is 0.
    /// - any other errno of `socket(2)`, `bind(2)` and `listen(2)`, notably `EMFILE`.
    pub fn bind(space: u16, address: SocketAddr, ports: &[Port]) -> Result<Option<Self>, Errno> {
        if address.port() == 0 {
            return Err(Errno::INVAL);
        }
        let ip = address.ip().to_canonical();
        let token = Token::draw()?;
        let known = ports.iter().all(|port| !port.is_auto());
        let reached = ports.iter().any(|port| port.address() == ip);
        let taken = match Self::take(name_at(space, address), token, ports) {
            Ok(taken) => taken,
            Err(Errno::ADDRINUSE) if known && ip.is_unspecified() => return Ok(None),
            Err(Errno::ADDRINUSE) if reached && ip == loopback_of(ip) => {
                Self::take_beside(space, ip, address.port(), token, ports)?
            }
            Err(other) => return Err(other),
        };
        // Checked after taking the name: of two simultaneous processes, at least one sees the
        // other.
        let by_name = if ip.is_unspecified() { !known } else { !reached };
        if by_name && exists(name(space, other_side(ip), address.port()))? {
            return Err(Errno::ADDRINUSE);
        }
        Ok(Some(taken))
    }

    /// Binds the name of the loopback address for a listener on all addresses of a family. The
    /// listener already has the name of the unspecified address. Otherwise any user of the machine
    /// could bind the loopback name and receive the clients of the loopback address.
    ///
    /// Returns `None` if the name belongs to root, to this process's user or to a process with a
    /// device at the loopback address, and clients of this listener need no name, because the
    /// addresses of its `ports` were requested explicitly.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind); `EADDRINUSE` in all other cases. One such case is a
    /// process without a visible owner: it has bound the name without listening, or does not accept
    /// its clients.
    pub fn bind_loopback(space: u16, address: SocketAddr, ports: &[Port]) -> Result<Option<Self>, Errno> {
        let holder = match Self::take_or_see(&name_at(space, address), Token::draw()?, ports)? {
            Ok(taken) => return Ok(Some(taken)),
            Err(holder) => holder,
        };
        let known = ports.iter().all(|port| !port.is_auto());
        let has_device = || has_process_device(holder, address.ip(), 0, owner);
        if known && (holder.is_trusted() || has_device()?) { Ok(None) } else { Err(Errno::ADDRINUSE) }
    }

    /// Binds a name of the loopback address: the second name, if a listener of this user on all
    /// addresses already has the first.
    fn take_beside(space: u16, ip: IpAddr, port: u16, token: Token, ports: &[Port]) -> Result<Self, Errno> {
        let holder = match Self::take_or_see(&name(space, ip, port), token, ports)? {
            Ok(taken) => return Ok(taken),
            Err(holder) => holder,
        };
        let of_all = owner(&name(space, unspecified_of(ip), port))?;
        if holder.is_own_user() && is_process(of_all, holder) {
            Self::take(second_name(space, ip, port), token, ports)
        } else {
            Err(Errno::ADDRINUSE)
        }
    }

    /// Returns whether this is the second name of the loopback address. The owner should call
    /// [`first`](Self::first) periodically: once the listener on all addresses has closed, another
    /// user could bind the first name.
    pub fn is_second(&self) -> bool {
        self.name.ends_with(SECOND)
    }

    /// Binds the first name of the loopback address for the same ports, if that name is free.
    ///
    /// # Errors
    /// Any errno of `socket(2)`, `bind(2)` and `listen(2)`, notably `EMFILE`; `EADDRINUSE` while
    /// another process has the name; `EINVAL` unless this is the second name.
    pub fn first(&self, ports: &[Port]) -> Result<Self, Errno> {
        let first = self.name.strip_suffix(SECOND).ok_or(Errno::INVAL)?;
        Self::take(first.to_owned(), Token::draw()?, ports)
    }

    /// Binds the name of a device. Peers use the name to [find the process](super::DeviceOwner).
    ///
    /// # Errors
    /// `EADDRINUSE`: another process has the name; any other errno of `socket(2)`, `bind(2)` and
    /// `listen(2)`, notably `EMFILE`.
    pub fn of_device(port: &Port) -> Result<Self, Errno> {
        let device = device_name(port.address(), port.scope_id());
        let (name, token) = (slot_name(&device, port.slot()), Token::of_process(std::process::id()));
        Self::take_with(name, &device, token, core::slice::from_ref(port))
    }

    /// Binds a name, or returns the process that already has it.
    ///
    /// # Errors
    /// The errors of [`take`](Self::take); `EADDRINUSE` if another process has the name and its
    /// owner cannot be seen.
    fn take_or_see(name: &str, token: Token, ports: &[Port]) -> Result<Result<Self, Owner>, Errno> {
        for _ in 0..TRIES {
            match Self::take(name.to_owned(), token, ports) {
                Err(Errno::ADDRINUSE) => {}
                taken => return taken.map(Ok),
            }
            if let Some(owner) = owner(name)? {
                return Ok(Err(owner));
            }
            // The process may be about to listen, or may have freed the name.
            std::thread::yield_now();
        }
        Err(Errno::ADDRINUSE)
    }

    /// Binds `name` if it is free. The token's name begins with `name`.
    fn take(name: String, token: Token, ports: &[Port]) -> Result<Self, Errno> {
        let base = name.clone();
        Self::take_with(name, &base, token, ports)
    }

    /// Binds `name` if it is free. The token's name begins with `base`, not with `name`.
    fn take_with(name: String, base: &str, token: Token, ports: &[Port]) -> Result<Self, Errno> {
        let address = UnixAddress::from_abstract_name(&name).map_err(errno)?;
        let listener = UnixListener::bind_addr(&address).map_err(errno)?;
        listener.set_nonblocking(true).map_err(errno)?;
        let (alive, reply) = promise(base, token, ports)?;
        Ok(Self { listener, name, _alive: alive, reply })
    }

    /// Changes the devices whose addresses are sent to clients. If the addresses differ, the token
    /// changes too, so earlier clients send a new request.
    ///
    /// # Errors
    /// Any errno of `socket(2)`, notably `EMFILE`. After an error, the reply is unchanged.
    pub fn set_ports(&mut self, ports: &[Port]) -> Result<(), Errno> {
        let token = self.reply.last_chunk().map(|token| Token(*token));
        if token.is_some_and(|token| reply_for(ports, token) == self.reply) {
            return Ok(());
        }
        (self._alive, self.reply) = promise(&self.name, Token::draw()?, ports)?;
        Ok(())
    }

    /// Replies to waiting clients, at most 64 per call, without blocking. If no descriptor is free,
    /// temporarily closes `spare`.
    ///
    /// # Errors
    /// Any errno of `accept4(2)` except `EAGAIN`. After `EMFILE` the descriptor stays readable:
    /// pause before the next call.
    pub fn reply(&self, spare: &mut SpareFd) -> Result<(), Errno> {
        for _ in 0..CLIENTS {
            match spare.lend(|| self.listener.accept().map_err(errno)) {
                // The reply fits into the empty buffer of a new stream. If the client is gone,
                // sending fails without a signal.
                Ok((client, _)) => {
                    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                    let _ = send(client.as_raw_fd(), &self.reply, flags);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Returns whether any process has a listener on an address and port, or a listener that competes
/// for the same clients. A listener on all addresses competes with each listener on a specific
/// address. A listener on the loopback address competes with a listener on all addresses.
///
/// # Errors
/// Any errno of `socket(2)`, notably `EMFILE`.
pub fn is_taken(space: u16, address: SocketAddr) -> Result<bool, Errno> {
    let ip = address.ip().to_canonical();
    Ok(exists(name_at(space, address))? || exists(name(space, other_side(ip), address.port()))?)
}

/// Returns the address whose listener competes for the clients of a listener on `ip`.
fn other_side(ip: IpAddr) -> IpAddr {
    if ip.is_unspecified() { loopback_of(ip) } else { unspecified_of(ip) }
}

/// Returns whether a listener has bound a name. The check connects to the listener and disconnects
/// at once.
fn exists(name: String) -> Result<bool, Errno> {
    match is_reached(&stream()?, &name) {
        // The listener's client queue is full.
        Err(Errno::AGAIN) => Ok(true),
        reached => reached,
    }
}

/// Returns the process holding a name. Returns `None` if no process listens under it, or if the
/// process's client queue is full.
///
/// # Errors
/// Any errno of `socket(2)`, notably `EMFILE`.
pub(super) fn owner(name: &str) -> Result<Option<Owner>, Errno> {
    let stream = stream()?;
    match is_reached(&stream, name) {
        Err(Errno::AGAIN) => Ok(None),
        reached => reached?.then(|| Owner::from_stream(&stream)).transpose(),
    }
}

/// Returns whether two owners are the same process.
fn is_process(owner: Option<Owner>, of: Owner) -> bool {
    owner.is_some_and(|owner| owner.is_process_of(of))
}

/// Returns the socket bound to the token's name, and the reply to clients. The reply is valid while
/// the socket exists.
fn promise(name: &str, token: Token, ports: &[Port]) -> Result<(UnixDatagram, Box<[u8]>), Errno> {
    let alive = token.name(name).and_then(|name| UnixDatagram::bind_addr(&name)).map_err(errno)?;
    // Sending to this socket fails while it is open, and fails differently once it is closed:
    // `Watch` distinguishes the errors.
    alive.shutdown(Shutdown::Read).map_err(errno)?;
    Ok((alive, reply_for(ports, token)))
}

/// Returns the encoded reply with the addresses of `ports`.
fn reply_for(ports: &[Port], token: Token) -> Box<[u8]> {
    reply_with(ports.iter().take(MAX_ADDRESSES).map(Port::address), token).into()
}

/// The descriptor is readable while clients are waiting.
impl AsFd for ListenerName {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io(&error)
}

/// A random number that identifies one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(pub(super) [u8; 8]);

impl Token {
    /// Draws a random token for a new listener.
    ///
    /// # Errors
    /// Any errno of `getrandom(2)`.
    fn draw() -> Result<Self, Errno> {
        let (high, low) = (verbs_core::random::draw()?, verbs_core::random::draw()?);
        Ok(Self((u64::from(high) << 32 | u64::from(low)).to_ne_bytes()))
    }

    /// Returns the token used with a device's name. It identifies the process that owns the device.
    pub(super) fn of_process(process: u32) -> Self {
        Self(u64::from(process).to_ne_bytes())
    }

    /// Returns whether a socket has the token's name. The check connects the socket `by` to that
    /// name.
    pub(super) fn is_seen(self, listener: &str, by: &UnixDatagram) -> bool {
        self.name(listener).is_ok_and(|name| by.connect_addr(&name).is_ok())
    }

    /// Returns the token's name, which exists as long as the listener.
    fn name(self, listener: &str) -> io::Result<UnixAddress> {
        let number = u64::from_ne_bytes(self.0);
        UnixAddress::from_abstract_name(format!("{listener}/{number:016x}"))
    }
}

/// The client's connection to the socket with a token's name.
///
/// Looking up the name again would not be enough: another process may take the name after its
/// listener has ended. A connected socket stays connected to the original socket and reveals when
/// that socket is closed.
#[derive(Debug)]
pub(super) struct Watch(UnixDatagram);

impl Watch {
    /// Connects to the socket that currently has a token's name. Returns `None` if no socket has
    /// it.
    ///
    /// # Errors
    /// Any errno of `socket(2)`, notably `EMFILE`.
    pub(super) fn new(token: Token, listener: &str) -> Result<Option<Self>, Errno> {
        let socket = UnixDatagram::unbound().map_err(errno)?;
        Ok(token.is_seen(listener, &socket).then_some(Self(socket)))
    }

    /// Returns whether the token's socket still exists.
    pub(super) fn exists(&self) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        // `EPIPE` means that the token's socket exists but receives nothing.
        let said = send(self.0.as_raw_fd(), &[], flags);
        !matches!(said, Err(nix::errno::Errno::ECONNREFUSED | nix::errno::Errno::ENOTCONN))
    }
}

/// Encodes a reply with these addresses and this token.
pub(super) fn reply_with(addresses: impl ExactSizeIterator<Item = IpAddr>, token: Token) -> Vec<u8> {
    core::iter::once(addresses.len() as u8).chain(addresses.flat_map(gid_of)).chain(token.0).collect()
}

/// Returns the abstract name of a listener, without its leading zero byte.
pub(super) fn name(space: u16, ip: IpAddr, port: u16) -> String {
    // The 2 is the version of the reply's format.
    format!("verbs-soft/cm/2/{space:x}/{port}/{ip}")
}

/// Returns the second abstract name of a listener at the loopback address.
pub(super) fn second_name(space: u16, loopback: IpAddr, port: u16) -> String {
    name(space, loopback, port) + SECOND
}

/// Returns the abstract name of a listener on an address. The name for a link-local address
/// includes the interface index.
pub(super) fn name_at(space: u16, address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() != 0 => {
            format!("{}%{}", name(space, (*v6.ip()).into(), v6.port()), v6.scope_id())
        }
        other => name(space, other.ip().to_canonical(), other.port()),
    }
}

/// Returns the abstract name of a device.
pub(super) fn device_name(ip: IpAddr, scope: u32) -> String {
    match ip.to_canonical() {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => format!("verbs-soft/cm/2/device/{v6}%{scope}"),
        other => format!("verbs-soft/cm/2/device/{other}"),
    }
}

/// Returns the abstract name of one process's device. `slot` is the process's slot at the address,
/// or 0 if the address is not shared.
pub(super) fn slot_name(device: &str, slot: u8) -> String {
    if slot == 0 { device.to_owned() } else { format!("{device}/slot/{slot}") }
}

/// Returns the abstract name of a service at a shared address.
pub(super) fn service_name(port: &Port, service: u64) -> String {
    let (address, scope) = (port.address(), port.scope_id());
    format!("verbs-soft/cm/2/mad/{address}%{scope}/{service:016x}")
}

/// Returns the abstract name of a process at a shared address.
pub(super) fn process_name(port: &Port, slot: u8) -> String {
    let (address, scope) = (port.address(), port.scope_id());
    format!("verbs-soft/cm/2/mad/{address}%{scope}/slot/{slot:02x}")
}

/// Returns whether a listener's process has the device at an address, or shares it with processes
/// of its user. `owner` returns the owner of a name.
pub(super) fn has_process_device(
    listener: Owner,
    ip: IpAddr,
    scope: u32,
    mut owner: impl FnMut(&str) -> Result<Option<Owner>, Errno>,
) -> Result<bool, Errno> {
    if is_process(owner(&device_name(ip, scope))?, listener) {
        return Ok(true);
    }
    for name in share::group_names(listener.uid(), ip, UDP_PORT, scope) {
        if owner(&name)?.is_some_and(|members| members.is_user_of(listener)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The suffix of a second name.
const SECOND: &str = "/device";

/// The maximum number of addresses in a reply.
pub(super) const MAX_ADDRESSES: usize = 64;

/// The number of attempts to bind a name or to find its owner, with a yield after each attempt.
const TRIES: u32 = 16;

/// The maximum number of clients served in one call.
const CLIENTS: u32 = 64;
