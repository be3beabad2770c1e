//! [`Socket`]: a UDP socket bound to an address.
//!
//! The socket never blocks. Its port is also its peers' port: 4791 is the destination of every
//! packet, and the source except within this host ([`connected`](super::connected)).

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::c_int;
use nix::net::if_::if_indextoname;
use roce::engine::Gid;
use roce::wire::UDP_PORT;
use roce::wire::icrc::{Flow, Icrc};
use verbs_core::{Errno, host_address};

use super::address::{Name, address_of, gid_of, loopback_of};
use super::capture::{Capture, Direction, Headers};
use super::connected::Sender;
use super::counters::{Counters, Counts};
use super::icrc_cache::seal;
use super::share::{self, Membership};
use super::sys;
use crate::io::link::Interface;

/// A bound UDP socket, and its properties as set by the kernel.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    address: IpAddr,
    port: u16,
    scope: u32,
    reach: Reach,
    rcvbuf: usize,
    default_hop_limit: u8,
    gso: bool,
    /// This process's membership in the group that shares the address, if any.
    membership: Option<Membership>,
    /// Whether the kernel reports the traffic class and hop limit.
    tells_headers: AtomicBool,
    counts: Counts,
    /// The capture file for copies of packets, if requested.
    capture: Option<Box<Capture>>,
}

/// The hosts from which a socket accepts packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All hosts, this one included.
    Network,
    /// Only this host: programs in the same network namespace. The kernel delivers their packets
    /// through the loopback interface, whatever their destination address.
    Host,
}

impl Reach {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Network => Self::Host,
            Self::Host => Self::Network,
        }
    }
}

/// The requested size of each socket buffer, in bytes of payload. The kernel doubles it to allow
/// for overhead.
const BUFFER: c_int = 8 << 20;

/// The errors returned if a process cannot find other processes, because a sandbox forbids abstract
/// Unix sockets or the kernel has no filters for socket groups.
const CANNOT_SHARE: &[c_int] = &[
    libc::EPERM,
    libc::EACCES,
    libc::ENOSYS,
    libc::EINVAL,
    libc::ENOPROTOOPT,
    libc::EOPNOTSUPP,
    libc::EAFNOSUPPORT,
    libc::EPROTONOSUPPORT,
];

/// The index of the loopback interface in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// The number of user-specific loopback addresses that [`Socket::auto`] tries.
const USER_ATTEMPTS: usize = 8;

/// The number of addresses tried by [`Socket::auto_alone`].
const ATTEMPTS: usize = 4096;

impl Socket {
    /// Binds UDP port 4791 at a local address, which the processes of one user share. Several
    /// interfaces may have the same link-local address: `scope` is the index of one of them; 0
    /// means the first.
    ///
    /// The port is not shared if processes cannot find each other, because a sandbox forbids
    /// abstract Unix sockets or the kernel has no filters for socket groups.
    ///
    /// # Errors
    /// - `EADDRINUSE`: the port is taken by another user, by the kernel's rxe (`rdma_rxe`), or by a
    ///   soft device that does not share it.
    /// - `EADDRNOTAVAIL`: the address does not belong to this host.
    /// - `ETIMEDOUT`: the processes that share the port do not reply; `EUSERS`: too many processes
    ///   share it.
    /// - any other errno of `socket(2)`, `setsockopt(2)` and `bind(2)`, notably `EMFILE`.
    pub(crate) fn bind(address: IpAddr, scope: u32) -> Result<Self, Errno> {
        Place::new(address, UDP_PORT, scope)?.bind_shared()
    }

    /// Binds UDP port 4791 at an address that all processes of this user choose: the host's
    /// [preferred address](host_address), accepting packets only from this host. If the host has no
    /// such address, or another user or program has the port there, binds the first free address of
    /// a user-specific sequence in 127.0.0.0/8.
    ///
    /// `own` are the addresses of the process's devices. If they include one of the addresses
    /// above, the new address is chosen as in [`auto_alone`](Self::auto_alone). On a host with only
    /// IPv6, ::1 is tried first, because addresses of different families cannot reach each other.
    ///
    /// # Errors
    /// The errors of [`auto_alone`](Self::auto_alone).
    pub(crate) fn auto(own: &[IpAddr]) -> Result<Self, Errno> {
        // Without netlink, as in sandboxes, the host's addresses are unknown.
        let host = host_address::preferred().ok().flatten();
        let loopback = host.filter(IpAddr::is_ipv6).map(loopback_of);
        let user = (0..USER_ATTEMPTS).map(|attempt| loopback_candidate(sys::effective_user(), attempt));
        let all: Vec<_> = host.into_iter().chain(loopback).chain(user.map(IpAddr::from)).collect();
        let has_one = all.iter().any(|address| own.contains(address));
        for address in all.into_iter().filter(|address| !own.contains(address)) {
            if has_one && Some(address) != loopback {
                continue;
            }
            let reach = if Some(address) == host { Reach::Host } else { Reach::Network };
            match Place::new(address, UDP_PORT, 0).and_then(|place| Place { reach, ..place }.bind_shared()) {
                Ok(socket) => return Ok(socket),
                // Trying another address would not help.
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                    return Err(errno);
                }
                Err(_) => {}
            }
        }
        Self::auto_alone()
    }

    /// Binds UDP port 4791 at a free address in 127.0.0.0/8.
    ///
    /// # Errors
    /// `EADDRINUSE` if thousands of addresses were taken; the other errors of [`bind`](Self::bind).
    pub(crate) fn auto_alone() -> Result<Self, Errno> {
        // Starts after the last address bound, because this process's devices may have the earlier
        // addresses.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let first = NEXT.load(Ordering::Relaxed);
        for attempt in (first..first + ATTEMPTS).map(|attempt| attempt % ATTEMPTS) {
            let address = loopback_candidate(std::process::id(), attempt);
            match Self::bind_alone(address.into(), UDP_PORT, 0) {
                Err(Errno::ADDRINUSE) => {}
                result => {
                    NEXT.store(attempt + 1, Ordering::Relaxed);
                    return result;
                }
            }
        }
        Err(Errno::ADDRINUSE)
    }

    /// Binds a UDP port at a local address, shared as in [`bind`](Self::bind).
    #[cfg(test)]
    pub(super) fn bind_shared(address: IpAddr, port: u16, reach: Reach) -> Result<Self, Errno> {
        Place { reach, ..Place::new(address, port, 0)? }.bind_shared()
    }

    /// Binds a UDP port at a local address without sharing it. Port 0 means any free port.
    pub(super) fn bind_alone(address: IpAddr, port: u16, scope: u32) -> Result<Self, Errno> {
        let place = Place::new(address, port, scope)?;
        place.socket(place.open(false)?, None)
    }

    /// Returns this process's slot at the address, or 0 if the address is not shared.
    pub(crate) fn slot(&self) -> u8 {
        self.membership.as_ref().map_or(0, Membership::slot)
    }

    /// Returns this process's membership in the group that shares the address, if any.
    pub(crate) fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Returns the socket for connection requests, if processes share the address. Otherwise
    /// requests arrive at this socket.
    ///
    /// # Errors
    /// Any errno of `fcntl(2)` and `getsockopt(2)`, notably `EMFILE`.
    pub(crate) fn of_requests(&self) -> Result<Option<Self>, Errno> {
        let Some(membership) = &self.membership else { return Ok(None) };
        let Self { address, port, scope, reach, .. } = *self;
        Place { address, port, scope, reach }.socket(membership.requests()?, None).map(Some)
    }

    /// Opens a socket connected to the port of another device on this host. Returns `None` if the
    /// device has an address of the other family, or if opening fails, for example for lack of
    /// descriptors.
    pub(crate) fn sender_to(&self, remote: Gid) -> Option<Sender> {
        let Self { address, port, scope, reach, .. } = *self;
        let remote = address_of(remote);
        if remote.is_ipv4() != address.is_ipv4() || remote.is_multicast() {
            return None;
        }
        let socket = Place { address, port: 0, scope, reach }.open_sender().ok()?;
        sys::connect(socket.as_fd(), &Name::new(remote, port, scope)).ok()?;
        let (_, port) = sys::local_name(socket.as_fd()).ok()?.parse()?;
        Some(Sender { fd: socket, port })
    }

    /// Makes multicast datagrams use the same interface and hop limit as other packets. Otherwise
    /// they would leave by the default route, with a hop limit of 1.
    ///
    /// # Errors
    /// Any errno of `setsockopt(2)`.
    pub(crate) fn route_groups(&self) -> Result<(), Errno> {
        let Some(interface) = self.carrier() else {
            // Without the interface, no packet leaves anyway.
            return Ok(());
        };
        let (fd, hops) = (self.fd.as_fd(), self.default_hop_limit.into());
        match self.address {
            IpAddr::V4(v4) => {
                let route = membership_v4(Ipv4Addr::UNSPECIFIED, v4, interface);
                sys::set_bytes(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &route)?;
                sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, hops)
            }
            IpAddr::V6(_) => {
                let index = interface.to_ne_bytes();
                sys::set_bytes(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index)?;
                sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, hops)
            }
        }
    }

    /// Returns the reason why packets to a group cannot reach the socket's address, with a remedy.
    /// There are two cases: the group belongs to the other address family, or the loopback
    /// interface has no route for the group. In the second case, the kernel lets a socket join the
    /// group but loses its datagrams.
    pub(crate) fn group_obstacle(&self, group: IpAddr) -> Option<String> {
        let (v6, local) = match (group, self.address) {
            (IpAddr::V6(group), IpAddr::V6(local)) => (group, local),
            (IpAddr::V4(_), IpAddr::V4(_)) => return None,
            (_, local) => {
                let family = if local.is_ipv4() { "IPv4" } else { "IPv6" };
                return Some(format!("{group} is no group of {family}, and the device has {local}"));
            }
        };
        let index = match self.reach {
            Reach::Host => LOOPBACK,
            Reach::Network => {
                let interface = Interface::on(local.into(), self.scope).ok()??;
                Some(interface.index).filter(|_| interface.is_loopback)?
            }
        };
        let name = loopback_name(index);
        (has_route(v6, index) == Ok(false)).then(|| {
            format!(
                "{name} has no route for {group}, without which it carries no multicast of IPv6: \
                 ip -6 route add local ff00::/8 dev {name}"
            )
        })
    }

    /// Returns a socket that receives datagrams sent to a group on the interface used for this
    /// socket's packets. Other sockets for the same group may receive them as well.
    ///
    /// # Errors
    /// - `ENETUNREACH`: [`group_obstacle`](Self::group_obstacle) returns the reason.
    /// - `EADDRNOTAVAIL`: no interface has the socket's address any more.
    /// - any other errno of `socket(2)`, `setsockopt(2)` and `bind(2)`.
    pub(super) fn of_group(&self, group: IpAddr) -> Result<Self, Errno> {
        if self.group_obstacle(group).is_some() {
            return Err(Errno::NETUNREACH);
        }
        let interface = self.carrier().ok_or(Errno::ADDRNOTAVAIL)?;
        let family = if group.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = sys::datagram_socket(family)?;
        let fd = socket.as_fd();
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        self.reach.limit(fd)?;
        match (group, self.address) {
            (IpAddr::V4(v4), IpAddr::V4(local)) => {
                // Receives only for its own group, not for groups of the process's other sockets.
                sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
                sys::bind(fd, &Name::new(group, self.port, 0))?;
                let membership = membership_v4(v4, local, interface);
                sys::set_bytes(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &membership)?;
            }
            (IpAddr::V6(v6), IpAddr::V6(_)) => {
                sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
                sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
                // Available since Linux 4.20.
                let _ = sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0);
                sys::bind(fd, &Name::new(group, self.port, interface))?;
                let mut membership = [0; 20];
                membership[..16].copy_from_slice(&v6.octets());
                membership[16..].copy_from_slice(&interface.to_ne_bytes());
                sys::set_bytes(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &membership)?;
            }
            _ => return Err(Errno::NETUNREACH),
        }
        let rcvbuf = enlarge(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
        let socket = Self {
            fd: socket,
            address: group,
            port: self.port,
            scope: 0,
            reach: self.reach,
            rcvbuf,
            default_hop_limit: self.default_hop_limit,
            gso: false,
            membership: None,
            tells_headers: AtomicBool::new(false),
            counts: Counts::default(),
            capture: None,
        };
        socket.tell_headers()?;
        Ok(socket)
    }

    /// Makes the kernel report the traffic class and hop limit with each packet. Reporting slows
    /// down a receive; only receivers of datagrams need it.
    ///
    /// # Errors
    /// Any errno of `setsockopt(2)`.
    pub(crate) fn tell_headers(&self) -> Result<(), Errno> {
        let (level, class, hops) = match self.address {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS, libc::IP_RECVTTL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT),
        };
        // Receivers take the device's lock after the call that creates a datagram queue pair.
        self.tells_headers.store(true, Ordering::Relaxed);
        sys::set_option(self.fd.as_fd(), level, class, 1)?;
        sys::set_option(self.fd.as_fd(), level, hops, 1)
    }

    /// Returns whether the kernel reports the traffic class and hop limit with each packet.
    #[inline]
    pub(super) fn tells_headers(&self) -> bool {
        self.tells_headers.load(Ordering::Relaxed)
    }

    /// Returns the socket's address.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the socket's address as a GID.
    pub(crate) fn gid(&self) -> Gid {
        gid_of(self.address)
    }

    /// Returns the UDP port used at both ends.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the interface's index if the address is link-local IPv6, and 0 otherwise.
    pub(crate) fn scope(&self) -> u32 {
        self.scope
    }

    /// Returns whether the socket accepts packets from other hosts. If not, these packets never
    /// arrive, whatever source address they claim.
    pub(crate) fn reaches_network(&self) -> bool {
        self.reach == Reach::Network
    }

    /// Returns the size of the receive buffer, in bytes as charged by the kernel. Charges per
    /// datagram measured on loopback (Linux 6.18): 832 bytes for up to 44 bytes, 1280 for 300, 2304
    /// for 1040, 8448 for 4140, and 63,500 for 62,100 bytes joined by a sender on this host.
    pub(crate) fn rcvbuf(&self) -> usize {
        self.rcvbuf
    }

    /// Returns the number of bytes in the kernel's send queue, counted as for
    /// [`rcvbuf`](Self::rcvbuf). Returns 0 if the kernel does not report it.
    pub(crate) fn unsent(&self) -> u64 {
        sys::unsent(self.fd.as_fd())
    }

    /// Returns the default hop limit of packets.
    pub(crate) fn default_hop_limit(&self) -> u8 {
        self.default_hop_limit
    }

    /// Returns whether the kernel can split one datagram into many packets (UDP GSO, Linux 4.18).
    pub(crate) fn gso(&self) -> bool {
        self.gso
    }

    /// Returns the name of the interface that has the socket's address, or `None` if there is no
    /// such interface. Also returns the MTU of the interface that carries packets: the same
    /// interface, or loopback if only programs on this host are reached. 127.0.0.0/8 belongs to the
    /// loopback interface. The MTU includes the IP, UDP and RoCE headers and the ICRC.
    ///
    /// # Errors
    /// Any errno of `getifaddrs(3)`, notably `EMFILE` in a process without free descriptors.
    pub(crate) fn interface(&self) -> Result<Option<(String, u32)>, Errno> {
        let own = self.interface_on(self.address, self.scope)?;
        match (own, self.reach) {
            (Some((name, _)), Reach::Host) => {
                Ok(self.mtu_of(&loopback_name(LOOPBACK))?.map(|mtu| (name, mtu)))
            }
            (own, _) => Ok(own),
        }
    }

    /// Returns the state of the interface that has the socket's address, or `None` if there is no
    /// such interface. Packets within this host do not need the interface's carrier.
    ///
    /// # Errors
    /// Any errno of `getifaddrs(3)`.
    pub(crate) fn link(&self) -> Result<Option<Interface>, nix::errno::Errno> {
        let interface = Interface::on(self.address, self.scope)?;
        Ok(interface.map(|interface| match self.reach {
            Reach::Network => interface,
            Reach::Host => Interface { is_up: interface.is_enabled, ..interface },
        }))
    }

    /// Returns the index of the interface that carries packets: loopback, or the interface that has
    /// the socket's address, if any.
    fn carrier(&self) -> Option<u32> {
        match self.reach {
            Reach::Network => interface_of(self.address, self.scope),
            Reach::Host => Some(LOOPBACK),
        }
    }

    /// Returns the name and MTU of the interface that has `address`, another address of this
    /// machine.
    ///
    /// # Errors
    /// The errors of [`interface`](Self::interface).
    pub(crate) fn interface_of(&self, address: IpAddr) -> Result<Option<(String, u32)>, Errno> {
        // Another link-local address is on the same link as this socket's.
        let is_of_link = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        self.interface_on(address, if is_of_link { self.scope } else { 0 })
    }

    fn interface_on(&self, address: IpAddr, scope: u32) -> Result<Option<(String, u32)>, Errno> {
        let found = Interface::on(address, scope).map_err(|errno| Errno::from_raw(errno as i32))?;
        let Some(Interface { name, .. }) = found.filter(|interface| interface.index != 0) else {
            return Ok(None);
        };
        Ok(self.mtu_of(&name)?.map(|mtu| (name, mtu)))
    }

    /// Returns the MTU of an interface, or `None` if it has disappeared.
    fn mtu_of(&self, interface: &str) -> Result<Option<u32>, Errno> {
        match sys::mtu(self.fd.as_fd(), interface) {
            Ok(mtu) => Ok(mtu.try_into().ok()),
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Makes the kernel receive each packet separately. The kernel may consult any socket at the
    /// address, so the worker changes the other sockets too ([`Membership::join_no_packets`]).
    #[cold]
    pub(super) fn join_no_packets(&self) {
        // Kernels without this option never join packets.
        let _ = sys::set_option(self.fd.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0);
        if let Some(membership) = &self.membership {
            membership.has_joined.store(true, Ordering::Release);
        }
    }

    /// Returns the counters since the socket was created. Any thread may call it.
    pub(crate) fn counters(&self) -> Counters {
        self.counts.read()
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sets the capture file for copies of packets.
    pub(crate) fn set_capture(&mut self, capture: Box<Capture>) {
        self.capture = Some(capture);
    }

    /// Copies a packet that travels through memory to the capture file. Writes the ICRC of an
    /// equivalent datagram into the packet's last 4 bytes.
    #[cold]
    pub(crate) fn capture_of_memory(
        &self,
        direction: Direction,
        remote: Gid,
        traffic_class: u8,
        hop_limit: u8,
        packet: &mut [u8],
    ) {
        let Some(capture) = &self.capture else { return };
        let (own, other) = ((self.address, self.port), (address_of(remote), self.port));
        let (source, destination) = match direction {
            Direction::Sent => (own, other),
            Direction::Received => (other, own),
        };
        let (src, dst) = (source.0, destination.0);
        seal(packet, Icrc::new(Flow { src, dst, src_port: self.port, dst_port: self.port }), 0);
        capture.packet(direction, &Headers { source, destination, traffic_class, hop_limit, id: 0 }, packet);
    }

    /// Returns the capture file for copies of packets, if requested.
    #[inline(always)]
    pub(crate) fn capture(&self) -> Option<&Capture> {
        self.capture.as_deref()
    }
}

/// An address and port to bind, and the hosts from which packets are accepted.
#[derive(Clone, Copy, Debug)]
struct Place {
    address: IpAddr,
    port: u16,
    scope: u32,
    reach: Reach,
}

impl Place {
    fn new(address: IpAddr, port: u16, scope: u32) -> Result<Self, Errno> {
        let address = address.to_canonical();
        // The ICRC covers a packet's destination address, which a wildcard or group address does
        // not determine.
        let stands_for_many = match address {
            IpAddr::V4(v4) => v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unspecified() || v6.is_multicast(),
        };
        if stands_for_many {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let scope = match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                interface_of(address, scope).ok_or(Errno::ADDRNOTAVAIL)?
            }
            _ => 0,
        };
        Ok(Self { address, port, scope, reach: Reach::Network })
    }

    /// Binds the port for sharing, or without sharing if processes cannot find each other.
    fn bind_shared(self) -> Result<Socket, Errno> {
        let base = share::base_name(self.address, self.port, self.scope);
        match Membership::join(&base, self.reach, |is_shared| self.open(is_shared)) {
            Ok((membership, fd)) => self.socket(fd, Some(membership)),
            Err(errno) if CANNOT_SHARE.contains(&errno.raw()) => self.socket(self.open(false)?, None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens a socket. If `is_shared`, other sockets of this user can have the same port.
    fn open(self, is_shared: bool) -> Result<OwnedFd, Errno> {
        let Self { address, port, scope, reach } = self;
        let socket = self.sender()?;
        let fd = socket.as_fd();
        if address.is_ipv6() {
            // RoCE v2 packets carry no UDP checksum (as with rxe), because they have an ICRC. Over
            // IPv6 the kernel drops packets without a checksum unless the socket accepts them.
            sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        }
        enlarge(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
        // Available since Linux 5.0. Without this option each packet arrives separately.
        let _ = sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
        if is_shared {
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        reach.limit(fd)?;
        sys::bind(fd, &Name::new(address, port, scope))?;
        Ok(socket)
    }

    /// Opens a socket that only sends, on a port chosen by the kernel.
    fn open_sender(self) -> Result<OwnedFd, Errno> {
        let socket = self.sender()?;
        // No thread reads from this socket.
        let _ = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0);
        sys::bind(socket.as_fd(), &Name::new(self.address, 0, self.scope))?;
        Ok(socket)
    }

    /// Creates a socket with the options for sending.
    fn sender(self) -> Result<OwnedFd, Errno> {
        let Self { address, .. } = self;
        let socket = sys::datagram_socket(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 })?;
        let fd = socket.as_fd();
        if address.is_ipv4() {
            sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        } else {
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        }
        enlarge(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
        Ok(socket)
    }

    /// Wraps an open socket and reads its properties.
    fn socket(self, fd: OwnedFd, membership: Option<Membership>) -> Result<Socket, Errno> {
        let Self { address, port, scope, reach } = self;
        let socket = fd.as_fd();
        let default_hop_limit = if address.is_ipv4() {
            sys::option(socket, libc::IPPROTO_IP, libc::IP_TTL)?
        } else {
            sys::option(socket, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)?
        };
        let rcvbuf = usize::try_from(sys::option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF)?).unwrap_or(0);
        let gso = sys::option(socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        let port =
            if port == 0 { sys::local_name(socket)?.parse().ok_or(Errno::AFNOSUPPORT)?.1 } else { port };
        Ok(Socket {
            fd,
            address,
            port,
            scope,
            reach,
            rcvbuf,
            default_hop_limit: u8::try_from(default_hop_limit).unwrap_or(64),
            gso,
            membership,
            tells_headers: AtomicBool::new(false),
            counts: Counts::default(),
            capture: None,
        })
    }
}

impl Reach {
    /// Makes a socket that is not yet bound drop packets from other hosts.
    ///
    /// `SO_BINDTODEVICE` would not work. The kernel looks up the socket for a packet from this host
    /// by the interface that has the address. It also finds no route on the loopback interface to
    /// an IPv6 address of this host.
    ///
    /// # Errors
    /// Any errno of `setsockopt(2)`.
    fn limit(self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        match self {
            Self::Network => Ok(()),
            Self::Host => sys::set_filter(fd, libc::SO_ATTACH_FILTER, &FROM_LOOPBACK),
        }
    }
}

/// The filter program that accepts packets received on the loopback interface.
const FROM_LOOPBACK: [libc::sock_filter; 4] = {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    const fn step(code: u32, then: u8, otherwise: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt: then, jf: otherwise, k }
    }
    [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX).cast_unsigned()),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, LOOPBACK),
        step(BPF_RET | BPF_K, 0, 0, u32::MAX),
        step(BPF_RET | BPF_K, 0, 0, 0),
    ]
};

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Enlarges a socket buffer, beyond the system's limit if the process may do so. Returns the new
/// size, in bytes.
fn enlarge(fd: BorrowedFd<'_>, force: c_int, usual: c_int) -> Result<usize, Errno> {
    if sys::set_option(fd, libc::SOL_SOCKET, force, BUFFER).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, usual, BUFFER)?;
    }
    Ok(usize::try_from(sys::option(fd, libc::SOL_SOCKET, usual)?).unwrap_or(0))
}

/// Returns a `struct ip_mreqn`: a group, a local address, and an interface index, which takes
/// precedence over the address.
fn membership_v4(group: Ipv4Addr, local: Ipv4Addr, interface: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&group.octets());
    bytes[4..8].copy_from_slice(&local.octets());
    bytes[8..].copy_from_slice(&interface.to_ne_bytes());
    bytes
}

/// Returns the index of the interface that has `address`. If `scope` is not 0, only the interface
/// with index `scope` is considered.
fn interface_of(address: IpAddr, scope: u32) -> Option<u32> {
    let interface = Interface::on(address, scope).ok()??;
    (interface.index != 0).then_some(interface.index)
}

/// Returns the name of the loopback interface.
fn loopback_name(index: u32) -> String {
    let name = if_indextoname(index).ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "lo".to_owned())
}

/// Returns whether an interface has a route for a group.
///
/// # Errors
/// Any errno of `socket(2)` and `setsockopt(2)`.
fn has_route(group: Ipv6Addr, interface: u32) -> Result<bool, Errno> {
    let socket = sys::datagram_socket(libc::AF_INET6)?;
    let index = interface.to_ne_bytes();
    sys::set_bytes(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index)?;
    // Connecting sends nothing.
    let connected = UdpSocket::from(socket).connect((group, UDP_PORT));
    Ok(!connected.is_err_and(|error| error.kind() == ErrorKind::NetworkUnreachable))
}

/// Returns the address in 127.0.0.0/8 for the given attempt. The order of addresses depends on
/// `number`, the ID of a process or a user. Skips 127.0.0.x, which people use by hand, and
/// addresses ending in 0 or 255.
fn loopback_candidate(number: u32, attempt: usize) -> Ipv4Addr {
    const NETS: u32 = 255 * 256;
    const HOSTS: u32 = 254;
    // The factor is odd and large, so that consecutive numbers start far apart.
    let start = number.wrapping_mul(0x9e37_79b1) % (NETS * HOSTS);
    let place = (start + attempt as u32) % (NETS * HOSTS);
    let (net, host) = (place / HOSTS + 256, place % HOSTS + 1);
    Ipv4Addr::from_bits(127 << 24 | net << 8 | host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_loopback_and_start_apart() {
        for number in [0, 1, 2, 4_194_304, u32::MAX] {
            for address in (0..ATTEMPTS).map(|attempt| loopback_candidate(number, attempt)) {
                let [a, b, c, d] = address.octets();
                assert!(a == 127 && (b, c) != (0, 0) && (1..=254).contains(&d), "{address}");
            }
        }
        assert_ne!(loopback_candidate(100, 0), loopback_candidate(101, 0));
    }

    #[test]
    fn a_taken_port_is_eaddrinuse() {
        let address = IpAddr::from([127, 9, 1, 1]);
        let first = Socket::bind_alone(address, 0, 0).expect("a free port");
        assert_eq!(Socket::bind_alone(address, first.port(), 0).expect_err("taken"), Errno::ADDRINUSE);
        let beside = Socket::bind_alone([127, 9, 1, 2].into(), first.port(), 0);
        assert!(beside.is_ok(), "the same port of another address is free: {beside:?}");
    }

    #[test]
    fn an_address_of_another_host_is_eaddrnotavail() {
        let refused = Socket::bind_alone([192, 0, 2, 1].into(), 0, 0)
            .expect_err("no host has an address of TEST-NET-1");
        assert_eq!(refused, Errno::ADDRNOTAVAIL);
    }

    #[test]
    fn an_address_that_stands_for_many_is_eaddrnotavail() {
        for text in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:0.0.0.0"] {
            let refused = Socket::bind_alone(text.parse().expect("an address"), 0, 0);
            assert_eq!(refused.err(), Some(Errno::ADDRNOTAVAIL), "{text}");
        }
    }

    #[test]
    fn loopback_has_its_interface_whatever_the_address() {
        let socket = Socket::bind_alone([127, 9, 1, 3].into(), 0, 0).expect("a free port");
        let (name, mtu) = socket.interface().unwrap().expect("the loopback interface");
        assert_eq!(name, "lo");
        assert!(mtu >= 1500, "{mtu}");
    }

    #[test]
    fn a_socket_neither_blocks_nor_survives_exec() {
        use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
        let socket = Socket::bind_alone([127, 9, 1, 4].into(), 0, 0).expect("a free port");
        let flags = fcntl(&socket, FcntlArg::F_GETFL).expect("F_GETFL");
        assert!(OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK));
        let flags = fcntl(&socket, FcntlArg::F_GETFD).expect("F_GETFD");
        assert!(FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC));
    }

    #[test]
    fn auto_finds_an_address_beside_one_that_is_taken() {
        let first = Socket::auto_alone().expect("a free address");
        let second = Socket::auto_alone().expect("another free address");
        assert_ne!(first.address(), second.address());
        assert_eq!((first.port(), second.port()), (UDP_PORT, UDP_PORT));
    }
}
