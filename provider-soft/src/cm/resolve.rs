//! [`resolve`]: from the address that a program connects to, to the port and the peer's address.
//!
//! ```text
//!   destination of this machine ──► is there a listener of its name? ──► Lookup: its addresses
//!            │ no                            │ no                                 │
//!            ▼                               ▼                                    ▼
//!   route to the destination ◄────── the destination itself             route to one of them
//! ```
//!
//! The route is the kernel's: the port is the one that has the source address which the kernel
//! chooses. Ethernet addresses of neighbours are the kernel's business as well, since packets are
//! UDP datagrams: a peer that does not exist is noticed by its silence.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use roce::wire::UDP_PORT;
use verbs_core::Errno;

use super::port::Port;
use super::rendezvous::name;
use crate::io::address::address_of;
use crate::link::Interface;

/// The way from a port of this process to a peer.
#[derive(Clone, Debug)]
pub struct Route {
    /// The port that packets leave by.
    pub port: Port,
    /// The address of the peer's device.
    pub destination: IpAddr,
    /// Whether the peer is on this machine.
    pub is_local: bool,
}

/// The state of a resolution.
#[derive(Debug)]
pub enum Resolution {
    /// The route.
    Done(Route),
    /// A process of this machine listens, and is asked for the addresses of its devices.
    Pending(Lookup),
}

/// A question to the process that listens on an address of this machine. Its owner waits for the
/// descriptor to be readable, as long as the program's time-out says, and calls
/// [`finish`](Self::finish).
#[derive(Debug)]
pub struct Lookup {
    stream: UnixStream,
    answer: Vec<u8>,
    source: Option<IpAddr>,
    destination: SocketAddr,
}

/// Resolves the destination of a connection in a port space (0x106: TCP), from an address of this
/// machine or from any.
///
/// An unspecified destination means this machine. A destination on this machine where no process
/// listens resolves to itself.
///
/// # Errors
/// - `ENODEV`: no device of this process has the source address, or the address from which the
///   kernel sends to the destination.
/// - `EAGAIN`: thousands of clients wait for the listener's answer.
/// - `ENETUNREACH`, `EHOSTUNREACH`: no route leads to the destination.
/// - any other errno of `socket(2)`, notably `EMFILE`.
pub fn resolve(space: u16, source: Option<IpAddr>, destination: SocketAddr) -> Result<Resolution, Errno> {
    let source = source.map(|source| source.to_canonical()).filter(|source| !source.is_unspecified());
    let mut destination = canonical(destination);
    if destination.ip().is_unspecified() {
        destination.set_ip(loopback_of(destination.ip()));
    }
    let ports = Port::all();
    // An own port needs no name, and a remote one has none here.
    let is_own = ports.iter().any(|port| port.address() == destination.ip());
    if !is_own && is_local(destination.ip()) {
        let any: IpAddr = match destination.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        for ip in [destination.ip(), any] {
            if let Some(stream) = ask(&name(space, ip, destination.port()))? {
                let answer = Vec::new();
                return Ok(Resolution::Pending(Lookup { stream, answer, source, destination }));
            }
        }
    }
    route(&ports, source, destination).map(Resolution::Done)
}

impl Lookup {
    /// Returns the route if the listener has answered, without waiting; `None` if it has not. A
    /// listener that ends without an answer leaves the destination itself.
    ///
    /// # Errors
    /// As [`resolve`].
    pub fn finish(&mut self) -> Result<Option<Route>, Errno> {
        while !is_whole(&self.answer) {
            let mut bytes = [0; ANSWER];
            match self.stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(len) => self.answer.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let ports = Port::all();
        let mut candidates = addresses(&self.answer, self.destination.ip());
        if candidates.is_empty() {
            candidates.push(self.destination.ip());
        }
        let mut reached = Err(Errno::NODEV);
        for address in candidates {
            reached = route(&ports, self.source, SocketAddr::new(address, UDP_PORT));
            if reached.is_ok() {
                break;
            }
        }
        reached.map(Some)
    }
}

/// Readable when the listener has answered, or has ended.
impl AsFd for Lookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Returns whether an answer has as many bytes as its first one says.
fn is_whole(answer: &[u8]) -> bool {
    answer.first().is_some_and(|count| answer.len() > 16 * usize::from(*count))
}

/// Returns the addresses of this machine in a listener's answer: `preferred` first, if it is one of
/// them. A malformed answer has none.
fn addresses(answer: &[u8], preferred: IpAddr) -> Vec<IpAddr> {
    let Some((count, gids)) = answer.split_first() else { return Vec::new() };
    let (gids, []) = gids.as_chunks::<16>() else { return Vec::new() };
    if gids.len() != usize::from(*count) {
        return Vec::new();
    }
    let mut all: Vec<_> = gids.iter().map(|gid| address_of(*gid)).collect();
    all.retain(|address| is_local(*address));
    all.sort_by_key(|address| *address != preferred);
    all
}

/// Returns the route to an address.
///
/// # Errors
/// As [`resolve`].
fn route(ports: &[Port], source: Option<IpAddr>, destination: SocketAddr) -> Result<Route, Errno> {
    let to = destination.ip();
    let is_local = is_local(to);
    let fits = |port: &&Port| port.address().is_ipv4() == to.is_ipv4();
    let at = |address: IpAddr| ports.iter().find(|port| port.address() == address);
    let port = match source {
        // A loopback address that is no port's stands for any of them, as for a listener: on the
        // way to this machine, and to a group, whose members may be on it.
        Some(source) => at(source).or_else(|| {
            let any = ports.iter().filter(fits).min_by_key(|port| !port.address().is_loopback());
            any.filter(|_| source.is_loopback() && (is_local || to.is_multicast()))
        }),
        None => {
            let kernels = at(to).map_or_else(|| source_for(destination).map(at), |own| Ok(Some(own)));
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

/// Returns the ports on which a program listens that binds to an address: all of a family for
/// `0.0.0.0`, all for `::`, and one for another address.
///
/// # Errors
/// - `ENODEV`: no device of this process has the address. A loopback address is every device's.
/// - `EADDRNOTAVAIL`: it is not an address of this machine.
pub fn ports_of(address: IpAddr) -> Result<Vec<Port>, Errno> {
    let address = address.to_canonical();
    let mut ports = Port::all();
    if address.is_unspecified() {
        ports.retain(|port| address.is_ipv6() || port.address().is_ipv4());
        return Ok(ports);
    }
    let own = ports.iter().find(|port| port.address() == address);
    let any = ports.iter().min_by_key(|port| !port.address().is_loopback());
    match own.or(any.filter(|_| address.is_loopback())) {
        Some(port) => Ok(vec![port.clone()]),
        None if is_local(address) => Err(Errno::NODEV),
        None => Err(Errno::ADDRNOTAVAIL),
    }
}

/// Returns the address from which the kernel sends to a destination.
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

/// Connects to a name. Returns `None` if no listener has it.
///
/// # Errors
/// As [`resolve`].
fn ask(name: &str) -> Result<Option<UnixStream>, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let to = UnixAddr::new_abstract(name.as_bytes())?;
    match connect(fd.as_raw_fd(), &to) {
        Ok(()) => Ok(Some(fd.into())),
        Err(nix::errno::Errno::ECONNREFUSED | nix::errno::Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether an address is one of this machine.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || matches!(Interface::of(address), Ok(Some(_)))
}

fn loopback_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Returns an IPv4 address that is mapped into IPv6 as what it is.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // With its scope.
        IpAddr::V6(_) => address,
    }
}

/// The length of the longest answer in bytes, whatever its first byte is.
const ANSWER: usize = 1 + 16 * 255;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cm::rendezvous::answer_of;

    fn local(last: u8) -> IpAddr {
        [127, 0, 1, last].into()
    }

    #[test]
    fn an_answer_is_addresses_of_this_machine_with_the_preferred_one_first() {
        let foreign: IpAddr = [192, 0, 2, 1].into();
        let answer = answer_of([local(1), foreign, local(2)].into_iter());
        assert!(is_whole(&answer));
        assert_eq!(addresses(&answer, local(2)), [local(2), local(1)]);
        assert_eq!(addresses(&answer, foreign), [local(1), local(2)]);
    }

    #[test]
    fn a_malformed_answer_has_no_addresses() {
        let answer = answer_of([local(1), local(2)].into_iter());
        for len in 0..answer.len() {
            assert!(!is_whole(&answer[..len]), "{len}");
            assert!(addresses(&answer[..len], local(1)).is_empty(), "{len}");
        }
        let longer = [&answer[..], &[0; 16]].concat();
        assert!(is_whole(&longer) && addresses(&longer, local(1)).is_empty());
        assert!(is_whole(&[0]) && addresses(&[0], local(1)).is_empty(), "a listener without devices");
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
