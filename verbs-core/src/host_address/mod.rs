//! This host's preferred address: the source address of its packets to other networks.
//!
//! ```text
//! main table: routes to everywhere, lowest metric first ──► preferred source, or an address of
//!        │ none                                             the route's interface
//!        ▼
//! other interfaces that are up, lowest index first ───────► an address of the interface
//! ```
//!
//! Each step prefers IPv4. Among several IPv6 addresses, every call makes the same choice:
//! temporary addresses (RFC 8981), which the kernel prefers for connections, are ignored.
//!
//! Routes in other tables are ignored. They belong to policies, for example of a VPN, which may
//! change while programs run.
//!
//! # References
//! `rtnetlink(7)`

use std::net::IpAddr;

use crate::discovery::netlink::{Conversation, NetlinkError, NetlinkSocket, Wire, each_attribute};
use crate::errno::Errno;

/// Returns this host's preferred address. Returns `None` if the host has only loopback and
/// link-local addresses, or its loopback interface is down.
///
/// # Errors
/// Any errno from creating or using a netlink socket; `EPROTO` for a malformed reply.
pub fn preferred() -> Result<Option<IpAddr>, Errno> {
    let mut socket = NetlinkSocket::route()?;
    choose(&mut socket).map_err(|error| match error {
        NetlinkError::NoSocket(errno) | NetlinkError::Io(errno) | NetlinkError::Refused(errno) => errno,
        NetlinkError::Malformed(_) => Errno::from_raw(libc::EPROTO),
        NetlinkError::Interrupted => Errno::AGAIN,
    })
}

fn choose(wire: &mut dyn Wire) -> Result<Option<IpAddr>, NetlinkError> {
    let mut conversation = Conversation::new(wire);
    let links = links(&mut conversation)?;
    if !links.iter().any(|link| link.is_loopback() && link.is_up()) {
        return Ok(None);
    }
    let mut addresses = Vec::new();
    for family in FAMILIES {
        addresses.extend(addresses_of(&mut conversation, family)?);
    }
    for family in FAMILIES {
        let mut routes = default_routes(&mut conversation, family)?;
        routes.sort_by_key(|route| route.metric);
        if let Some(address) = routes.iter().find_map(|route| route.source(&addresses)) {
            return Ok(Some(address));
        }
    }
    let mut others: Vec<_> = links.iter().filter(|link| link.is_up() && !link.is_loopback()).collect();
    others.sort_by_key(|link| link.index);
    Ok(FAMILIES.iter().find_map(|family| {
        others.iter().find_map(|link| best(&addresses, *family, link.index, None).map(|best| best.ip))
    }))
}

/// A network interface.
#[derive(Clone, Copy, Debug)]
struct Link {
    index: u32,
    flags: u32,
}

impl Link {
    fn is_up(self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    fn is_loopback(self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug)]
struct Address {
    ip: IpAddr,
    prefix_len: u8,
    index: u32,
    flags: u32,
}

impl Address {
    /// Returns whether `other` belongs to the same IPv4 subnet.
    fn has_in_subnet(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                let differing = one.to_bits() ^ other.to_bits();
                differing.leading_zeros() >= self.prefix_len.into()
            }
            _ => false,
        }
    }

    /// Returns a key that is smallest for the best address of an interface.
    fn rank(&self, gateway: Option<IpAddr>) -> (bool, bool, u128) {
        match self.ip {
            // Equal addresses stay in the kernel's order.
            IpAddr::V4(_) => {
                let is_beside = gateway.is_some_and(|gateway| self.has_in_subnet(gateway));
                (self.flags & libc::IFA_F_SECONDARY != 0, !is_beside, 0)
            }
            // The kernel's order depends on when the addresses were added.
            IpAddr::V6(v6) => {
                let is_permanent = self.flags & libc::IFA_F_PERMANENT != 0;
                (self.flags & libc::IFA_F_DEPRECATED != 0, !is_permanent, v6.to_bits())
            }
        }
    }
}

/// Returns the best address of the interface `index` in an address family.
fn best(addresses: &[Address], family: u8, index: u32, gateway: Option<IpAddr>) -> Option<&Address> {
    let is_of = |address: &&Address| address.index == index && family_of(address.ip) == family;
    addresses.iter().filter(is_of).min_by_key(|address| address.rank(gateway))
}

/// A default route.
#[derive(Clone, Copy, Debug)]
struct Route {
    family: u8,
    metric: u32,
    index: u32,
    gateway: Option<IpAddr>,
    preferred_source: Option<IpAddr>,
}

impl Route {
    /// Returns the source address for packets that take this route.
    fn source(&self, addresses: &[Address]) -> Option<IpAddr> {
        let preferred = addresses.iter().find(|address| Some(address.ip) == self.preferred_source);
        let own = || best(addresses, self.family, self.index, self.gateway);
        preferred.or_else(own).map(|address| address.ip)
    }
}

fn links(conversation: &mut Conversation<'_>) -> Result<Vec<Link>, NetlinkError> {
    // struct ifinfomsg: family, padding, type, the interface, flags, and a mask of flags.
    let request = [0; IFINFOMSG_LEN];
    conversation.dump_as(libc::RTM_GETLINK, libc::RTM_NEWLINK, &request, |reply| {
        let (header, _) = head(reply, IFINFOMSG_LEN)?;
        Ok(Some(Link { index: number(&header[4..8]), flags: number(&header[8..12]) }))
    })
}

/// Returns the addresses in an address family that other hosts can reach.
fn addresses_of(conversation: &mut Conversation<'_>, family: u8) -> Result<Vec<Address>, NetlinkError> {
    // struct ifaddrmsg: family, prefix length, flags, scope, and the interface.
    let request = [family, 0, 0, 0, 0, 0, 0, 0];
    conversation.dump_as(libc::RTM_GETADDR, libc::RTM_NEWADDR, &request, |reply| {
        let (header, attributes) = head(reply, IFADDRMSG_LEN)?;
        let (mut own, mut peer, mut flags) = (None, None, u32::from(header[2]));
        each_attribute(attributes, |kind, value| match kind {
            libc::IFA_LOCAL => own = ip(value),
            // The peer's address on a point-to-point interface, otherwise the same address.
            libc::IFA_ADDRESS => peer = ip(value),
            IFA_FLAGS => flags = number(value),
            _ => {}
        })?;
        let is_usable = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            IpAddr::V6(v6) => {
                let unusable = libc::IFA_F_TEMPORARY | libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED;
                !v6.is_loopback() && !v6.is_unicast_link_local() && flags & unusable == 0
            }
        };
        let ip = own.or(peer).filter(|ip| header[3] == libc::RT_SCOPE_UNIVERSE && is_usable(ip));
        Ok(ip.map(|ip| Address { ip, prefix_len: header[1], index: number(&header[4..8]), flags }))
    })
}

/// Returns the default routes of an address family in the main table, in the kernel's order.
fn default_routes(conversation: &mut Conversation<'_>, family: u8) -> Result<Vec<Route>, NetlinkError> {
    // struct rtmsg: family, and eleven bytes that are zero in a request for all routes.
    let mut request = [0; RTMSG_LEN];
    request[0] = family;
    conversation.dump_as(libc::RTM_GETROUTE, libc::RTM_NEWROUTE, &request, |reply| {
        let (header, attributes) = head(reply, RTMSG_LEN)?;
        let &[its_family, to_len, from_len, _, table, _, _, kind, ..] = header else { return Ok(None) };
        let is_default = its_family == family && (to_len, from_len) == (0, 0) && kind == libc::RTN_UNICAST;
        let mut table = u32::from(table);
        let mut route = Route { family, metric: 0, index: 0, gateway: None, preferred_source: None };
        each_attribute(attributes, |kind, value| match kind {
            libc::RTA_TABLE => table = number(value),
            libc::RTA_OIF => route.index = number(value),
            libc::RTA_GATEWAY => route.gateway = ip(value),
            libc::RTA_PRIORITY => route.metric = number(value),
            libc::RTA_PREFSRC => route.preferred_source = ip(value),
            // Uses the first of several next hops. struct rtnexthop: length, flags, hops,
            // interface.
            libc::RTA_MULTIPATH if route.index == 0 => {
                route.index = value.get(4..8).map_or(0, number);
            }
            _ => {}
        })?;
        Ok((is_default && table == u32::from(libc::RT_TABLE_MAIN)).then_some(route))
    })
}

/// Splits a netlink reply into its header and its attributes.
fn head(reply: &[u8], len: usize) -> Result<(&[u8], &[u8]), NetlinkError> {
    reply.split_at_checked(len).ok_or(NetlinkError::Malformed("a reply is cut off"))
}

/// Returns a four-byte number; 0 for any other length.
fn number(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

fn family_of(ip: IpAddr) -> u8 {
    FAMILIES[usize::from(ip.is_ipv6())]
}

/// The address families: IPv4 and IPv6.
const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];

/// The length of `struct ifinfomsg`, in bytes.
const IFINFOMSG_LEN: usize = 16;
/// The length of `struct ifaddrmsg`, in bytes.
const IFADDRMSG_LEN: usize = 8;
/// The length of `struct rtmsg`, in bytes.
const RTMSG_LEN: usize = 12;
/// `IFA_FLAGS` from `linux/if_addr.h`.
const IFA_FLAGS: u16 = 8;

#[cfg(test)]
mod tests;
