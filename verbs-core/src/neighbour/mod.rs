//! The Ethernet address of a RoCE destination, for providers that write it into address vectors and
//! for programs that query it.
//!
//! ```text
//! route to the destination ──► this host ────────────► the interface's own address
//!        │ gateway or on link
//!        ▼
//! group, or IPv6 link-local address ─────────────────► computed from the IP address
//!        │ neither
//!        ▼
//! neighbour table ── unknown ──► a datagram makes the kernel query; wait for the table to change
//! ```
//!
//! The crate netlink-packet-route would replace the code that parses three messages here with
//! 31,500 lines, which take 9 seconds of CPU time to compile. The crate does not cover RDMA
//! netlink.
//!
//! # References
//! `rtnetlink(7)`; RFC 1112, section 6.4; RFC 2464, sections 4 and 7

use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::discovery::netlink::{Conversation, NetlinkError, NetlinkSocket, Wire, attribute, each_attribute};
use crate::errno::Errno;
use crate::error::Result;
use crate::types::Gid;

/// The Ethernet path to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthPath {
    /// The Ethernet address of the next hop.
    pub mac: [u8; 6],
    /// The VLAN id of the outgoing interface.
    pub vlan: Option<u16>,
}

/// Returns the Ethernet path from a local address on an interface to a destination. If the kernel
/// does not have the Ethernet address of the destination or its gateway, queries it and waits up to
/// `patience` for the reply.
///
/// # Errors
/// `EHOSTUNREACH` for a destination that has no route or no Ethernet address, or does not reply;
/// any errno from creating a socket or binding it to `source`.
#[doc(alias = "ibv_resolve_eth_l2_from_gid")]
pub fn resolve(
    ifindex: u32,
    source: IpAddr,
    destination: IpAddr,
    patience: Duration,
) -> Result<EthPath, Errno> {
    let mut socket = NetlinkSocket::route()?;
    let mut lookup = Lookup::new(&mut socket, ifindex);
    let mac = match lookup.next_hop(destination).map_err(unreachable)? {
        NextHop::Known(mac) => mac,
        NextHop::Neighbour(address) => match lookup.neighbour(address).map_err(unreachable)? {
            Some(mac) => mac,
            None => solicit(&mut lookup, source, address, patience)?,
        },
    };
    let vlan = lookup.link().map_err(unreachable)?.vlan;
    Ok(EthPath { mac, vlan })
}

/// Returns the IP address encoded in a RoCE GID. It is an IPv4 address if the GID maps one, or if
/// the GID is a multicast group in the range that the IBTA specification reserves for IPv4.
///
/// # References
/// IBTA volume 1, annex A17
pub fn address_of(gid: &Gid) -> IpAddr {
    const GROUP: [u8; 12] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    match gid.0.split_at(GROUP.len()) {
        (prefix, &[a, b, c, d]) if prefix == GROUP => IpAddr::from([a, b, c, d]),
        _ => gid.to_ipv4().map_or_else(|| gid.to_ipv6().into(), IpAddr::from),
    }
}

/// Returns the index of the interface that has the local address `address`.
///
/// # Errors
/// `ENODEV` if no interface has the address; the errno from `getifaddrs(3)`.
pub fn interface_with(address: IpAddr) -> Result<u32, Errno> {
    let of = |storage: nix::sys::socket::SockaddrStorage| -> Option<IpAddr> {
        let v4 = storage.as_sockaddr_in().map(|address| address.ip().into());
        v4.or_else(|| storage.as_sockaddr_in6().map(|address| address.ip().into()))
    };
    let interface = nix::ifaddrs::getifaddrs()?.find(|one| one.address.and_then(of) == Some(address));
    let interface = interface.ok_or(Errno::NODEV)?;
    Ok(nix::net::if_::if_nametoindex(interface.interface_name.as_str())?)
}

/// The next hop for packets to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextHop {
    /// The destination is reached at this Ethernet address.
    Known([u8; 6]),
    /// The next hop is this neighbour, whose Ethernet address must be resolved.
    Neighbour(IpAddr),
}

/// A network interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Link {
    /// The interface's Ethernet address.
    mac: Option<[u8; 6]>,
    vlan: Option<u16>,
    /// Whether the kernel resolves the Ethernet addresses of the interface's neighbours.
    asks: bool,
}

/// Netlink queries about one interface.
struct Lookup<'w> {
    conversation: Conversation<'w>,
    ifindex: u32,
}

impl<'w> Lookup<'w> {
    fn new(wire: &'w mut dyn Wire, ifindex: u32) -> Self {
        Self { conversation: Conversation::new(wire), ifindex }
    }

    /// Returns the next hop for packets to `destination` through this interface.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`] with the kernel's errno if there is no route, and with
    /// `EHOSTUNREACH` if the route forbids packets.
    fn next_hop(&mut self, destination: IpAddr) -> Result<NextHop, NetlinkError> {
        let bytes = octets(destination);
        // struct rtmsg: family, the destination's prefix length, and ten bytes that are zero in a
        // request.
        let mut request = vec![0; RTMSG_LEN];
        request[0] = family(destination);
        request[1] = (bytes.len() * 8) as u8;
        request.extend(attribute(libc::RTA_DST, &bytes));
        request.extend(attribute(libc::RTA_OIF, &self.ifindex.to_ne_bytes()));
        let (kind, gateway) =
            self.conversation.get_as(libc::RTM_GETROUTE, libc::RTM_NEWROUTE, &request, |reply| {
                let (header, attributes) = head(reply, RTMSG_LEN)?;
                let mut gateway = None;
                each_attribute(attributes, |kind, value| {
                    if kind == libc::RTA_GATEWAY {
                        gateway = address(value);
                    }
                })?;
                Ok((header[RTMSG_TYPE_AT], gateway))
            })?;
        match kind {
            libc::RTN_BLACKHOLE | libc::RTN_UNREACHABLE | libc::RTN_PROHIBIT | libc::RTN_THROW => {
                Err(NetlinkError::Refused(Errno::HOSTUNREACH))
            }
            libc::RTN_LOCAL => {
                let mac = self.link()?.mac.ok_or(NetlinkError::Refused(Errno::HOSTUNREACH))?;
                Ok(NextHop::Known(mac))
            }
            _ => {
                let hop = gateway.unwrap_or(destination);
                Ok(encoded(hop).map_or(NextHop::Neighbour(hop), NextHop::Known))
            }
        }
    }

    /// Returns a neighbour's Ethernet address, if the kernel has it.
    ///
    /// # Errors
    /// Any [`NetlinkError`], except the error for a neighbour that is missing from the table.
    fn neighbour(&mut self, neighbour: IpAddr) -> Result<Option<[u8; 6]>, NetlinkError> {
        // struct ndmsg: family, three bytes of padding, the interface, and four bytes that are zero
        // in a request.
        let mut request = vec![0; NDMSG_LEN];
        request[0] = family(neighbour);
        request[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        request.extend(attribute(libc::NDA_DST, &octets(neighbour)));
        let reply = self.conversation.get_as(libc::RTM_GETNEIGH, libc::RTM_NEWNEIGH, &request, |reply| {
            let (_, attributes) = head(reply, NDMSG_LEN)?;
            // The kernel reports no address for a neighbour that has not replied.
            let mut mac = None;
            each_attribute(attributes, |kind, value| {
                if kind == libc::NDA_LLADDR {
                    mac = value.try_into().ok();
                }
            })?;
            Ok(mac)
        });
        match reply {
            Err(NetlinkError::Refused(Errno::NOENT)) => Ok(None),
            reply => reply,
        }
    }

    /// Queries the interface's Ethernet address, VLAN and flags.
    ///
    /// # Errors
    /// Any [`NetlinkError`]; notably [`NetlinkError::Refused`] with `ENODEV` if the interface does
    /// not exist.
    fn link(&mut self) -> Result<Link, NetlinkError> {
        // struct ifinfomsg: family, padding, type, the interface, flags, and a mask of flags.
        let mut request = vec![0; IFINFOMSG_LEN];
        request[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        self.conversation.get_as(libc::RTM_GETLINK, libc::RTM_NEWLINK, &request, |reply| {
            let (header, attributes) = head(reply, IFINFOMSG_LEN)?;
            let flags = header[IFINFOMSG_FLAGS_AT..][..4].try_into().map_or(0, u32::from_ne_bytes);
            let asks = flags & libc::IFF_NOARP as u32 == 0;
            let mut link = Link { asks, ..Link::default() };
            let mut info = Vec::new();
            each_attribute(attributes, |kind, value| match kind {
                libc::IFLA_ADDRESS => link.mac = value.try_into().ok(),
                libc::IFLA_LINKINFO => info = value.to_vec(),
                _ => {}
            })?;
            link.vlan = vlan(&info)?;
            Ok(link)
        })
    }
}

/// Returns the VLAN id from an interface's `IFLA_LINKINFO` attribute; `None` if the interface is
/// not a VLAN.
fn vlan(info: &[u8]) -> Result<Option<u16>, NetlinkError> {
    let (mut is_vlan, mut data) = (false, Vec::new());
    each_attribute(info, |kind, value| match kind {
        libc::IFLA_INFO_KIND => is_vlan = value.strip_suffix(b"\0").unwrap_or(value) == b"vlan",
        libc::IFLA_INFO_DATA => data = value.to_vec(),
        _ => {}
    })?;
    let mut id = None;
    each_attribute(&data, |kind, value| {
        if is_vlan && kind == IFLA_VLAN_ID {
            id = value.try_into().ok().map(u16::from_ne_bytes).filter(|id| *id <= 0xfff);
        }
    })?;
    Ok(id)
}

/// Sends a datagram to a neighbour, so that the kernel queries the neighbour's Ethernet address,
/// and waits for the reply.
fn solicit(
    lookup: &mut Lookup<'_>,
    source: IpAddr,
    neighbour: IpAddr,
    patience: Duration,
) -> Result<[u8; 6], Errno> {
    let deadline = Instant::now() + patience;
    // The socket is opened before the datagram is sent, so that no change is missed.
    let mut changes = NetlinkSocket::neighbour_changes(patience / TRIES)?;
    let probe = Probe::new(lookup.ifindex, source, neighbour)?;
    let mut buffer = vec![0; 4096];
    loop {
        probe.send();
        loop {
            if let Some(mac) = lookup.neighbour(neighbour).map_err(unreachable)? {
                return Ok(mac);
            }
            if Instant::now() >= deadline {
                return Err(Errno::HOSTUNREACH);
            }
            match changes.recv(&mut buffer) {
                // The entry of some neighbour has changed. Lost changes are covered by querying the
                // table again.
                Ok(_) | Err(Errno::NOBUFS) => {}
                Err(Errno::TIMEDOUT) => break,
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// A datagram socket that makes the kernel query a neighbour's Ethernet address.
#[derive(Debug)]
struct Probe {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Probe {
    fn new(ifindex: u32, source: IpAddr, neighbour: IpAddr) -> Result<Self, Errno> {
        let io = |error: std::io::Error| Errno::from_io(&error);
        let socket = UdpSocket::bind(scoped(source, 0, ifindex)).map_err(io)?;
        socket.set_nonblocking(true).map_err(io)?;
        Ok(Self { socket, to: scoped(neighbour, DISCARD_PORT, ifindex) })
    }

    /// Sends the datagram. If that fails, the next call tries again.
    fn send(&self) {
        let _ = self.socket.send_to(b"H", self.to);
    }
}

/// A pending query for a neighbour's Ethernet address, for programs that wait on many files. The
/// descriptor becomes readable when the kernel's table has changed.
#[derive(Debug)]
pub struct Search {
    ifindex: u32,
    neighbour: IpAddr,
    table: NetlinkSocket,
    changes: NetlinkSocket,
    probe: Probe,
    sent_at: Instant,
}

impl Search {
    /// Queries the Ethernet address of the next hop from a local address on an interface to a
    /// destination. Returns `None` if no query is needed: the kernel has the Ethernet address
    /// already, or needs none.
    ///
    /// # Errors
    /// The errors of [`resolve`].
    pub fn start(ifindex: u32, source: IpAddr, destination: IpAddr) -> Result<Option<Self>, Errno> {
        let mut table = NetlinkSocket::route()?;
        let Some(neighbour) = unknown_hop(&mut table, ifindex, destination).map_err(unreachable)? else {
            return Ok(None);
        };
        // The socket is opened before the datagram is sent, so that no change is missed.
        let changes = NetlinkSocket::neighbour_changes(Duration::ZERO)?;
        let probe = Probe::new(ifindex, source, neighbour)?;
        probe.send();
        Ok(Some(Self { ifindex, neighbour, table, changes, probe, sent_at: Instant::now() }))
    }

    /// Checks, without waiting, whether the neighbour has replied.
    ///
    /// # Errors
    /// Any errno from `recvmsg(2)`.
    pub fn is_found(&mut self) -> Result<bool, Errno> {
        let mut buffer = [0; 4096];
        loop {
            match self.changes.recv(&mut buffer) {
                // The entry of some neighbour has changed. Lost changes are covered by querying the
                // table again.
                Ok(_) | Err(Errno::NOBUFS) => {}
                Err(Errno::TIMEDOUT) => break,
                Err(errno) => return Err(errno),
            }
        }
        let mac =
            Lookup::new(&mut self.table, self.ifindex).neighbour(self.neighbour).map_err(unreachable)?;
        // The kernel gives up after three seconds and retries when another datagram is sent.
        if mac.is_none() && self.sent_at.elapsed() >= Duration::from_secs(1) {
            self.probe.send();
            self.sent_at = Instant::now();
        }
        Ok(mac.is_some())
    }
}

impl AsFd for Search {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// Returns the next hop to a destination if the hop's Ethernet address is needed but unknown.
///
/// # Errors
/// The errors of [`Lookup::next_hop`] and [`Lookup::link`].
fn unknown_hop(
    wire: &mut dyn Wire,
    ifindex: u32,
    destination: IpAddr,
) -> Result<Option<IpAddr>, NetlinkError> {
    let mut lookup = Lookup::new(wire, ifindex);
    let NextHop::Neighbour(neighbour) = lookup.next_hop(destination)? else { return Ok(None) };
    let is_known = lookup.neighbour(neighbour)?.is_some() || !lookup.link()?.asks;
    Ok((!is_known).then_some(neighbour))
}

/// Returns the Ethernet address if the IP address alone determines it.
fn encoded(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, b, c, d] = address.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => match address.octets() {
            [0xff, .., a, b, c, d] => Some([0x33, 0x33, a, b, c, d]),
            // The interface id is an EUI-64 of the address, with the universal bit inverted.
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, _, _, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
            _ => None,
        },
    }
}

/// Returns a socket address, with the interface index as scope id if it is an IPv6 address.
fn scoped(address: IpAddr, port: u16, ifindex: u32) -> SocketAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, ifindex).into(),
    }
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// Splits a netlink reply into its header and its attributes.
fn head(reply: &[u8], len: usize) -> Result<(&[u8], &[u8]), NetlinkError> {
    reply.split_at_checked(len).ok_or(NetlinkError::Malformed("a reply is cut off"))
}

/// Converts a netlink error into an errno: `EHOSTUNREACH` unless the socket failed.
fn unreachable(error: NetlinkError) -> Errno {
    match error {
        NetlinkError::NoSocket(errno) | NetlinkError::Io(errno) => errno,
        _ => Errno::HOSTUNREACH,
    }
}

/// The length of `struct rtmsg`, in bytes.
const RTMSG_LEN: usize = 12;
const RTMSG_TYPE_AT: usize = 7;
/// The length of `struct ndmsg`, in bytes.
const NDMSG_LEN: usize = 12;
/// The length of `struct ifinfomsg`, in bytes.
const IFINFOMSG_LEN: usize = 16;
const IFINFOMSG_FLAGS_AT: usize = 8;
/// `IFLA_VLAN_ID` from `linux/if_link.h`.
const IFLA_VLAN_ID: u16 = 1;
/// The port of the discard protocol, where no program listens.
const DISCARD_PORT: u16 = 9;
/// The maximum number of datagrams sent to a neighbour that does not reply.
const TRIES: u32 = 11;

#[cfg(test)]
mod tests;
