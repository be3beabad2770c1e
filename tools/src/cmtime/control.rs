//! [`Control`]: the TCP control connection. The peers of a run use it to exchange their addresses
//! and to synchronise their steps.
//!
//! The peer that can bind to the controller's address is the root, and the others connect to it.
//! Between the root's bind and its listen, the others find the address in use, and their
//! connections are refused. They retry both bind and connect for a moment, because both may fail
//! for two peers that start together.
//!
//! ```text
//!   leaf ── its PeerInfo ──► root      in the order of the leaves' arrival, after the root's own
//!   leaf ◄── all PeerInfos ── root
//!   leaf ── a byte ─────────► root     of each leaf, all the same: the step
//!   leaf ◄── that byte ────── root     once all have sent it
//! ```
//!
//! A [`PeerInfo`] has the memory layout of the C struct: an address in 128 bytes
//! (`sockaddr_storage`), a role in 4, then 4 unused bytes, in native byte order.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc::{AF_INET, AF_INET6};
use rdmacm::{AddrInfo, Family, Hints};
use verbs::Errno;

use super::options::{Options, Role};
use crate::cm::address::rdma_getaddrinfo;
use crate::console::{Console, Failed, describe};

/// The information shared by each peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The address that a listener listens on. `None` for a connecting peer, or if the address is
    /// not IP.
    pub address: Option<SocketAddr>,
    /// Whether the peer connects or listens.
    pub role: Role,
}

impl PeerInfo {
    const LEN: usize = 136;
    const ROLE: usize = 128;
    const INET: u16 = AF_INET as u16;
    const INET6: u16 = AF_INET6 as u16;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        match self.address {
            None => {}
            Some(SocketAddr::V4(address)) => {
                put(0, &Self::INET.to_ne_bytes());
                put(2, &address.port().to_be_bytes());
                put(4, &address.ip().octets());
            }
            Some(SocketAddr::V6(address)) => {
                put(0, &Self::INET6.to_ne_bytes());
                put(2, &address.port().to_be_bytes());
                put(4, &address.flowinfo().to_be_bytes());
                put(8, &address.ip().octets());
                put(24, &address.scope_id().to_ne_bytes());
            }
        }
        put(Self::ROLE, &u32::from(self.role == Role::Listen).to_ne_bytes());
        bytes
    }

    /// Decodes a peer's information. As in C, every role except the listener's connects.
    fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let field = |at: usize| [bytes[at], bytes[at + 1]];
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let port = u16::from_be_bytes(field(2));
        let address = match u16::from_ne_bytes(field(0)) {
            Self::INET => Some(SocketAddrV4::new(Ipv4Addr::from(word(4)), port).into()),
            Self::INET6 => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&bytes[8..24]);
                let (info, scope) = (u32::from_be_bytes(word(4)), u32::from_ne_bytes(word(24)));
                Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, info, scope).into())
            }
            _ => None,
        };
        let is_listener = u32::from_ne_bytes(word(Self::ROLE)) == 1;
        Self { address, role: if is_listener { Role::Listen } else { Role::Connect } }
    }
}

/// A peer's control connection.
#[derive(Debug)]
pub enum Control {
    /// The root's connections, one for each leaf.
    Root(Vec<TcpStream>),
    /// A leaf's connection to the root.
    Leaf(TcpStream),
}

impl Control {
    /// Connects to the other peers of a run and waits until all are connected.
    ///
    /// # Errors
    /// Fails if the address is unknown, or the root cannot be reached; the failure has been
    /// reported.
    pub fn meet(options: &Options, console: &mut Console) -> Result<Self, Failed> {
        /// The longest time between a peer's bind and its listen.
        const ELECTION: Duration = Duration::from_secs(5);
        let deadline = Instant::now() + ELECTION;
        loop {
            let is_taken = match bind(options, console)? {
                Bound::Root(listener) => {
                    console.say("Running as OOB root\n");
                    console.flush();
                    let leaves = (1..options.peers).map(|_| accept(&listener)).collect::<io::Result<_>>();
                    return leaves.map(Self::Root).map_err(|error| console.because(describe(&error)));
                }
                Bound::Taken => true,
                Bound::Elsewhere => false,
            };
            let address = lookup(options, false).map_err(|(text, reason)| {
                console.say(format_args!("getaddrinfo error: {text}\n"));
                console.because(reason)
            })?;
            let connected = TcpStream::connect(address).and_then(|stream| {
                stream.set_nodelay(true)?;
                Ok(stream)
            });
            match connected {
                Ok(stream) => return Ok(Self::Leaf(stream)),
                Err(error)
                    if is_taken
                        && error.kind() == ErrorKind::ConnectionRefused
                        && Instant::now() < deadline =>
                {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(error) => {
                    let reason = format_args!("cannot connect to {address}: {}", describe(&error));
                    return Err(console.because(reason));
                }
            }
        }
    }

    /// Exchanges the information of `count` peers, including this one, and returns all of it.
    ///
    /// # Errors
    /// Any socket error; notably `UnexpectedEof` if a peer has exited, `OutOfMemory` if there is
    /// too little memory for the peers.
    pub fn exchange(mut self, own: PeerInfo, count: u32) -> io::Result<(Self, Vec<PeerInfo>)> {
        let len = (count as usize).saturating_mul(PeerInfo::LEN);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| ErrorKind::OutOfMemory)?;
        bytes.extend(own.to_bytes());
        bytes.resize(len, 0);
        match &mut self {
            Self::Root(leaves) => {
                let rest = bytes[PeerInfo::LEN..].chunks_exact_mut(PeerInfo::LEN);
                for (leaf, bytes) in leaves.iter_mut().zip(rest) {
                    leaf.read_exact(bytes)?;
                }
                for leaf in leaves {
                    leaf.write_all(&bytes)?;
                }
            }
            Self::Leaf(root) => {
                root.write_all(&bytes[..PeerInfo::LEN])?;
                root.read_exact(&mut bytes)?;
            }
        }
        let (peers, _) = bytes.as_chunks::<{ PeerInfo::LEN }>();
        Ok((self, peers.iter().map(PeerInfo::from_bytes).collect()))
    }

    /// Waits until all peers have reached a step.
    ///
    /// # Errors
    /// Any socket error; notably `UnexpectedEof` if a peer has exited, `InvalidData` if a peer is
    /// at another step.
    pub fn sync(&mut self, step: u8) -> io::Result<()> {
        match self {
            Self::Root(leaves) => {
                for leaf in leaves.iter_mut() {
                    expect(leaf, step)?;
                }
                leaves.iter_mut().try_for_each(|leaf| leaf.write_all(&[step]))
            }
            Self::Leaf(root) => {
                root.write_all(&[step])?;
                expect(root, step)
            }
        }
    }
}

fn expect(stream: &mut TcpStream, step: u8) -> io::Result<()> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    if byte == [step] {
        return Ok(());
    }
    let text = format!("a peer is at step {} instead of {step}", byte[0]);
    Err(io::Error::new(ErrorKind::InvalidData, text))
}

/// The outcome of binding to the controller's address.
enum Bound {
    /// This peer has bound the address.
    Root(TcpListener),
    /// Another program on this machine has bound the address.
    Taken,
    /// The address belongs to another machine.
    Elsewhere,
}

/// Binds to the controller's address.
fn bind(options: &Options, console: &mut Console) -> Result<Bound, Failed> {
    let address = lookup(options, true).map_err(|(text, reason)| {
        console.complain(format_args!("getaddrinfo error: {text}"));
        console.complain("oob_try_bind: Success");
        console.because(reason)
    })?;
    match TcpListener::bind(address) {
        Ok(listener) => Ok(Bound::Root(listener)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(Bound::Taken),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Ok(Bound::Elsewhere),
        Err(error) => {
            let errno = Errno::from_io(&error);
            let text = errno.description();
            console.complain(format_args!("unexpected bind error: {text} ({})", errno.raw()));
            console.complain(format_args!("oob_try_bind: {text}"));
            Err(console.because(format_args!("cannot listen on {address}")))
        }
    }
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Resolves the controller's address. As in the C program, a leaf node resolves only IPv4
/// addresses.
fn lookup(options: &Options, passive: bool) -> Result<SocketAddr, (&'static str, String)> {
    let family = if passive { None } else { Some(Family::Ipv4) };
    ip(&options.controller, &options.port, Hints { passive, family, ..Hints::default() })
}

/// Resolves a host name and a TCP port to a socket address.
///
/// # Errors
/// Returns the message of `getaddrinfo(3)` and the reason.
pub fn ip(host: &OsStr, port: &OsStr, hints: Hints) -> Result<SocketAddr, (&'static str, String)> {
    let found = rdma_getaddrinfo(Some(host), Some(port), &hints);
    let AddrInfo { source, destination, .. } =
        found.map_err(|unresolved| (unresolved.text(), unresolved.reason))?;
    let address = if hints.passive { source } else { destination };
    address.and_then(|address| address.ip()).ok_or(("no IP address", String::new()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn peer(address: &str, role: Role) -> PeerInfo {
        PeerInfo { address: Some(address.parse().expect("an address")), role }
    }

    #[test]
    fn a_peer_lies_in_memory_as_c_has_it() {
        let bytes = peer("192.0.2.1:7471", Role::Listen).to_bytes();
        assert_eq!(bytes[..8], [2, 0, 0x1d, 0x2f, 192, 0, 2, 1]);
        assert_eq!((bytes[128..132].to_vec(), bytes.len()), (1_u32.to_ne_bytes().to_vec(), 136));
        for peer in [
            peer("192.0.2.1:7471", Role::Listen),
            peer("[fe80::1%3]:7471", Role::Listen),
            PeerInfo { address: None, role: Role::Connect },
        ] {
            assert_eq!(PeerInfo::from_bytes(&peer.to_bytes()), peer);
        }
    }

    #[test]
    fn a_peer_of_an_unknown_family_has_no_address() {
        let mut bytes = peer("192.0.2.1:7471", Role::Listen).to_bytes();
        bytes[..2].copy_from_slice(&77_u16.to_ne_bytes());
        bytes[128] = 9;
        assert_eq!(PeerInfo::from_bytes(&bytes), PeerInfo { address: None, role: Role::Connect });
    }

    #[test]
    fn peers_know_each_other_in_one_order_and_step_in_unison() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("its address");
        let connects = PeerInfo { address: None, role: Role::Connect };
        let leaf = thread::spawn(move || {
            let leaf = Control::Leaf(TcpStream::connect(address).expect("a connection"));
            let (mut leaf, peers) = leaf.exchange(connects, 2).expect("all peers");
            leaf.sync(7).expect("the same step");
            (peers, leaf.sync(8).map_err(|error| error.kind()))
        });
        let root = Control::Root(vec![accept(&listener).expect("a leaf")]);
        let listens = peer("192.0.2.1:7471", Role::Listen);
        let (mut root, peers) = root.exchange(listens, 2).expect("all peers");
        assert_eq!(peers, [listens, connects]);
        root.sync(7).expect("the same step");
        let text = root.sync(9).expect_err("another step").to_string();
        assert_eq!(text, "a peer is at step 8 instead of 9");
        drop(root);
        let (theirs, ended) = leaf.join().expect("the leaf");
        assert_eq!((theirs, ended), (peers, Err(ErrorKind::UnexpectedEof)));
    }

    #[test]
    fn a_peer_that_meets_a_root_before_it_listens_joins_it() {
        use nix::sys::socket::{
            AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket,
        };
        let root = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        let root = root.expect("a socket");
        bind(root.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("a free port");
        let bound: SockaddrIn = getsockname(root.as_raw_fd()).expect("an address");
        let args = ["-b", "127.0.0.1", "-C", "127.0.0.1", "-p", &bound.port().to_string()];
        let mut console = Console::new("cmtime".into());
        let options = Options::parse(args.map(OsString::from).to_vec(), &mut console).expect("options");
        let leaf = thread::spawn(move || {
            Control::meet(&options, &mut console).is_ok_and(|it| matches!(it, Control::Leaf(_)))
        });
        listen(&root, Backlog::MAXCONN).expect("a listener");
        assert!(leaf.join().expect("a thread"), "it is no leaf of the root");
    }
}
