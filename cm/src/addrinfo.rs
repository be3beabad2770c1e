//! [`getaddrinfo`]: resolves a host and a service to addresses for binding or connecting an id.
//!
//! ```text
//!   node, service, Hints ─► names (DNS, /etc/hosts, /etc/services) ─► AddrInfo …
//! ```
//!
//! The system looks up names, through the standard library. InfiniBand routes come from the subnet
//! administrator when an id resolves its route; a program with a known route puts it into
//! [`AddrInfo::route`].

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

use verbs::{Cause, Errno, Error, Gid, QpType, Result};

use crate::types::{Address, IbAddress, PathRecord, PortSpace};

const VERB: &str = "getaddrinfo";

/// The file that assigns port numbers to service names.
const SERVICES: &str = "/etc/services";

/// The maximum number of bytes read from [`SERVICES`].
const SERVICES_MAX: u64 = 1 << 22;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// InfiniBand: a numeric IPv6 address is used as a GID.
    Ib,
}

/// The purpose of the resolved addresses, and restrictions on them: `Hints { passive: true,
/// ..Hints::default() }`.
///
/// # References
/// `rdma_getaddrinfo(3)`
#[doc(alias = "rdma_addrinfo")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Whether the addresses are for listening.
    #[doc(alias = "RAI_PASSIVE")]
    pub passive: bool,
    /// Whether the host must be a numeric address, so that no name is looked up.
    #[doc(alias = "RAI_NUMERICHOST")]
    pub numeric_host: bool,
    /// Whether to skip the route lookup. Has no effect, because an id resolves its route itself.
    #[doc(alias = "RAI_NOROUTE")]
    pub no_route: bool,
    /// The only family to return; `None` for both IP families.
    #[doc(alias = "RAI_FAMILY")]
    pub family: Option<Family>,
    /// The port space; `None` for the default of the transport service.
    pub port_space: Option<PortSpace>,
    /// The transport service; `None` for the default of the port space, or RC if neither is given.
    pub qp_type: Option<QpType>,
    /// The local address to connect from.
    pub source: Option<Address>,
}

/// An address to listen on or to connect to.
///
/// # References
/// `rdma_getaddrinfo(3)`
#[doc(alias = "rdma_addrinfo")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddrInfo {
    /// The port space for the id.
    pub port_space: PortSpace,
    /// The transport service for the id's queue pair.
    pub qp_type: QpType,
    /// The address to listen on or to connect from; `None` lets the routing table choose.
    pub source: Option<Address>,
    /// The address to connect to; `None` for listening.
    pub destination: Option<Address>,
    /// The route ([`set_ib_path`](crate::CmId::set_ib_path)). If empty, the id resolves the route
    /// itself.
    pub route: Vec<PathRecord>,
}

/// Looks up a host and a service. Without a host, returns the unspecified addresses for listening,
/// or the loopback addresses for connecting. A service is a port number or a name; the default port
/// is 0. An IPv6 address may have a scope, `fe80::1%eth0` or `fe80::1%2`. Brackets are optional.
///
/// ```
/// use rdmacm::{Hints, getaddrinfo};
///
/// # fn main() -> verbs::Result<()> {
/// let hints = Hints { numeric_host: true, ..Hints::default() };
/// let found = getaddrinfo(Some("192.0.2.1"), Some("7471"), &hints)?;
/// assert_eq!(found[0].destination, Some(([192, 0, 2, 1], 7471).into()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// - `EINVAL` if host, service and [`Hints::passive`] are all missing, or for a non-numeric host
///   with [`Hints::numeric_host`].
/// - `ENOENT` for an unknown host, service or scope, with the system's reason, or for a host
///   without an address of the requested family.
///
/// # References
/// `rdma_getaddrinfo(3)`
#[doc(alias = "rdma_getaddrinfo")]
#[doc(alias = "rdma_freeaddrinfo")]
pub fn getaddrinfo(node: Option<&str>, service: Option<&str>, hints: &Hints) -> Result<Vec<AddrInfo>> {
    if node.is_none() && service.is_none() && !hints.passive {
        return Err(error(Errno::INVAL, "a host or a service is needed, or PASSIVE".into()));
    }
    let (port_space, qp_type) = kind(hints);
    let protocol = if qp_type == QpType::UD { "udp" } else { "tcp" };
    let port = service.map(|service| port(service, protocol)).transpose()?.unwrap_or(0);
    let addresses: Vec<SocketAddr> = match node {
        None if hints.passive => any(port).into(),
        None => local(port).into(),
        Some(node) => match numeric(node, port)? {
            Some(address) => vec![address],
            None if hints.numeric_host || hints.family == Some(Family::Ib) => {
                return Err(error(Errno::INVAL, format!("{node} is no address in numbers")));
            }
            None => (node, port)
                .to_socket_addrs()
                .map_err(|failed| error(Errno::NOENT, format!("{node}: {failed}")))?
                .collect(),
        },
    };
    let addresses = addresses.into_iter().filter_map(|address| of_family(address, hints.family, port_space));
    let infos: Vec<_> = addresses
        .map(|address| {
            let (source, destination) =
                if hints.passive { (Some(address), None) } else { (hints.source, Some(address)) };
            AddrInfo { port_space, qp_type, source, destination, route: Vec::new() }
        })
        .collect();
    if infos.is_empty() {
        let node = node.unwrap_or("this machine");
        return Err(error(Errno::NOENT, format!("{node} has no address of the family")));
    }
    Ok(infos)
}

/// Returns the port space and the transport service that the hints select.
fn kind(hints: &Hints) -> (PortSpace, QpType) {
    match (hints.port_space, hints.qp_type) {
        (Some(space), Some(qp_type)) => (space, qp_type),
        (Some(space), None) => (space, space.qp_type()),
        (None, Some(QpType::UD)) => (PortSpace::UDP, QpType::UD),
        (None, qp_type) => (PortSpace::TCP, qp_type.unwrap_or(QpType::RC)),
    }
}

/// Returns the unspecified addresses of both IP families.
fn any(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

/// Returns the loopback addresses of both IP families.
fn local(port: u16) -> [SocketAddr; 2] {
    [(Ipv6Addr::LOCALHOST, port).into(), (Ipv4Addr::LOCALHOST, port).into()]
}

/// Returns the address if it belongs to the requested family. For the family [`Ib`](Family::Ib),
/// returns it as an InfiniBand address.
fn of_family(address: SocketAddr, family: Option<Family>, space: PortSpace) -> Option<Address> {
    match (family, address) {
        (None, _) | (Some(Family::Ipv4), SocketAddr::V4(_)) | (Some(Family::Ipv6), SocketAddr::V6(_)) => {
            Some(address.into())
        }
        (Some(Family::Ib), SocketAddr::V6(address)) => {
            let gid = Gid(address.ip().octets());
            let ib = IbAddress::new(gid, space, address.port());
            Some(IbAddress { scope_id: address.scope_id().into(), ..ib }.into())
        }
        _ => None,
    }
}

/// Parses a numeric address, or returns `None` for a name. An IPv6 address may have brackets, and a
/// scope with an interface name or index: `fe80::1%eth0`, `fe80::1%2`.
///
/// # Errors
/// `ENOENT` for an unknown interface.
pub(crate) fn numeric(node: &str, port: u16) -> Result<Option<SocketAddr>> {
    let inner = node.strip_prefix('[').and_then(|node| node.strip_suffix(']'));
    let Some((ip, scope)) = inner.unwrap_or(node).split_once('%') else {
        let ip = match inner {
            Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            None => node.parse().ok(),
        };
        return Ok(ip.map(|ip| (ip, port).into()));
    };
    let Ok(ip) = ip.parse::<Ipv6Addr>() else { return Ok(None) };
    let scope = match scope.parse() {
        Ok(number) => number,
        Err(_) => nix::net::if_::if_nametoindex(scope)
            .map_err(|_| error(Errno::NOENT, format!("{node}: no interface is named {scope}")))?,
    };
    Ok(Some(SocketAddrV6::new(ip, port, 0, scope).into()))
}

/// Returns the port number of a service. Looks up names in [`SERVICES`].
fn port(service: &str, protocol: &str) -> Result<u16> {
    if let Ok(number) = service.parse() {
        return Ok(number);
    }
    let file = fs::File::open(SERVICES)
        .map_err(|failed| error(Errno::NOENT, format!("the service {service}: {SERVICES}: {failed}")))?;
    port_in(BufReader::new(file.take(SERVICES_MAX)), service, protocol)
        .ok_or_else(|| error(Errno::NOENT, format!("{SERVICES} has no service {service}/{protocol}")))
}

/// Finds a service in the text of `services(5)`. A line has a name, a port with its protocol, then
/// aliases.
fn port_in(text: impl BufRead, service: &str, protocol: &str) -> Option<u16> {
    text.lines().map_while(std::io::Result::ok).find_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let (port, of) = words.next()?.split_once('/')?;
        let is_it = of == protocol && (name == service || words.any(|alias| alias == service));
        is_it.then(|| port.parse().ok()).flatten()
    })
}

fn error(errno: Errno, reason: String) -> Error {
    Error::new(VERB, "", errno).because(Cause::Other { reason: reason.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations(node: Option<&str>, hints: &Hints) -> Vec<String> {
        let found = getaddrinfo(node, Some("7471"), hints).unwrap();
        found.iter().map(|info| info.destination.or(info.source).unwrap().to_string()).collect()
    }

    #[test]
    fn an_address_in_numbers_needs_no_names() {
        let hints = Hints { numeric_host: true, ..Hints::default() };
        assert_eq!(destinations(Some("192.0.2.1"), &hints), ["192.0.2.1:7471"]);
        assert_eq!(destinations(Some("2001:db8::1"), &hints), ["[2001:db8::1]:7471"]);
        assert_eq!(destinations(Some("fe80::1%7"), &hints), ["[fe80::1%7]:7471"]);
        assert_eq!(destinations(Some("fe80::1%lo"), &hints), ["[fe80::1%1]:7471"]);
        assert_eq!(destinations(Some("[fe80::1%lo]"), &hints), ["[fe80::1%1]:7471"]);
        assert_eq!(destinations(Some("[2001:db8::1]"), &hints), ["[2001:db8::1]:7471"]);
        for node in ["[192.0.2.1]", "[fe80::1%7", "nosuch%lo", "[]", "%"] {
            let error = getaddrinfo(Some(node), None, &hints).unwrap_err();
            assert_eq!(error.errno, Errno::INVAL, "{node}");
        }
        let error = getaddrinfo(Some("fe80::1%no0"), None, &hints).unwrap_err();
        assert_eq!(error.to_string(), "getaddrinfo: fe80::1%no0: no interface is named no0 (ENOENT)");
        let error = getaddrinfo(Some("localhost"), None, &hints).unwrap_err();
        assert_eq!(error.to_string(), "getaddrinfo: localhost is no address in numbers (EINVAL)");
    }

    #[test]
    fn without_a_host_a_listener_takes_any_address_and_a_client_this_machines() {
        let passive = Hints { passive: true, ..Hints::default() };
        assert_eq!(destinations(None, &passive), ["0.0.0.0:7471", "[::]:7471"]);
        assert_eq!(destinations(None, &Hints::default()), ["[::1]:7471", "127.0.0.1:7471"]);
        let info = &getaddrinfo(None, None, &passive).unwrap()[0];
        assert_eq!((info.destination, info.source.map(|source| source.port())), (None, Some(0)));
        assert_eq!(getaddrinfo(None, None, &Hints::default()).unwrap_err().errno, Errno::INVAL);
    }

    #[test]
    fn a_family_leaves_out_the_addresses_of_others() {
        let hints = |family| Hints { passive: true, family: Some(family), ..Hints::default() };
        assert_eq!(destinations(None, &hints(Family::Ipv4)), ["0.0.0.0:7471"]);
        assert_eq!(destinations(None, &hints(Family::Ipv6)), ["[::]:7471"]);
        let error = getaddrinfo(Some("192.0.2.1"), None, &hints(Family::Ipv6)).unwrap_err();
        assert_eq!(error.errno, Errno::NOENT);
    }

    #[test]
    fn an_infiniband_address_is_a_gid_and_a_service_of_the_port_space() {
        let hints = Hints { family: Some(Family::Ib), qp_type: Some(QpType::UD), ..Hints::default() };
        let info = &getaddrinfo(Some("fe80::2"), Some("80"), &hints).unwrap()[0];
        let Some(Address::Ib(address)) = info.destination else { panic!("{info:?}") };
        assert_eq!((address.service_id, info.port_space), (0x111_0050, PortSpace::UDP));
        assert_eq!(address.gid.to_ipv6().to_string(), "fe80::2");
    }

    #[test]
    fn the_port_space_and_the_service_imply_each_other() {
        let of = |port_space, qp_type| kind(&Hints { port_space, qp_type, ..Hints::default() });
        assert_eq!(of(None, None), (PortSpace::TCP, QpType::RC));
        assert_eq!(of(Some(PortSpace::IPOIB), None), (PortSpace::IPOIB, QpType::UD));
        assert_eq!(of(None, Some(QpType::UD)), (PortSpace::UDP, QpType::UD));
        assert_eq!(of(Some(PortSpace::IB), Some(QpType::UC)), (PortSpace::IB, QpType::UC));
    }

    #[test]
    fn a_named_service_is_found_with_its_protocol_and_aliases() {
        let text =
            "# comment\n\nssh 22/tcp # shell\ndomain 53/tcp\ndomain 53/udp names\nbad\nworse x/udp worse\n";
        let find = |service, protocol| port_in(text.as_bytes(), service, protocol);
        assert_eq!((find("ssh", "tcp"), find("ssh", "udp")), (Some(22), None));
        assert_eq!((find("names", "udp"), find("names", "tcp")), (Some(53), None));
        assert_eq!((find("bad", "udp"), find("worse", "udp"), find("shell", "tcp")), (None, None, None));
    }

    #[test]
    fn a_source_is_passed_on_to_clients_alone() {
        let source = Some(Address::from(([192, 0, 2, 9], 0)));
        let hints = Hints { source, ..Hints::default() };
        assert_eq!(getaddrinfo(Some("192.0.2.1"), None, &hints).unwrap()[0].source, source);
        let passive = Hints { passive: true, ..hints };
        let info = &getaddrinfo(Some("192.0.2.1"), None, &passive).unwrap()[0];
        assert_eq!(info.source, Some(([192, 0, 2, 1], 0).into()));
    }
}
