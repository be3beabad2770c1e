//! [`Address`]: an IP address with its port, or an InfiniBand service. Also its encodings in
//! commands.
//!
//! ```text
//!   AF_INET  │ family 2 │ port │ address 4 │ zero 8 │                          16 bytes
//!   AF_INET6 │ family 2 │ port │ flow info 4 │ address 16 │ scope 4 │         28 bytes
//!   AF_IB    │ family 2 │ pkey │ flow info 4 │ GID 16 │ sid 8 │ mask 8 │ scope 8 │   48 bytes
//! ```
//!
//! # References
//! `rdma/ib.h` (`sockaddr_ib`), `linux/in.h`, `linux/in6.h`

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use uverbs_abi::socket::{KernelSockaddrStorage, SockaddrIn6};
use verbs::Gid;
use zerocopy::{FromBytes, IntoBytes};

use super::PortSpace;

/// An address to bind an id to or to connect to.
///
/// An IP address is a [`SocketAddr`]; its scope id names the interface of a link-local IPv6
/// address. Any type that converts into an [`Address`] is accepted:
///
/// ```
/// use std::net::Ipv4Addr;
/// use rdmacm::Address;
///
/// let address = Address::from((Ipv4Addr::new(192, 0, 2, 1), 7471));
/// assert_eq!(address.to_string(), "192.0.2.1:7471");
/// assert_eq!(address.port(), 7471);
/// ```
#[doc(alias = "rdma_addr")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// A GID and a service on an InfiniBand fabric.
    Ib(IbAddress),
    /// An address of an unknown family. It is only received, never sent.
    Other {
        /// The family's number, `AF_*`.
        family: u16,
    },
}

/// The address of an InfiniBand service: a GID with a service id and its significant bits.
///
/// # References
/// `rdma/ib.h` (`sockaddr_ib`)
#[doc(alias = "sockaddr_ib")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IbAddress {
    /// The partition key; `0xffff` is the default partition.
    pub pkey: u16,
    /// The flow label, with the traffic class in the bits above.
    pub flow_info: u32,
    /// The GID; zero stands for any GID.
    pub gid: Gid,
    /// The service id.
    pub service_id: u64,
    /// The significant bits of the service id. The port bits are 0 if the kernel chooses the port.
    pub service_mask: u64,
    /// The scope of a link-local GID.
    pub scope_id: u64,
}

impl IbAddress {
    /// Returns the address of port `port` in a port space, at a GID. For port 0, the kernel chooses
    /// a port.
    pub fn new(gid: Gid, space: PortSpace, port: u16) -> Self {
        Self {
            pkey: 0xffff,
            flow_info: 0,
            gid,
            service_id: u64::from(space.0) << 16 | u64::from(port),
            service_mask: if port == 0 { Self::SPACE_MASK } else { u64::MAX },
            scope_id: 0,
        }
    }

    /// The bits of a service id that name the port space.
    #[doc(alias = "RDMA_IB_IP_PS_MASK")]
    const SPACE_MASK: u64 = !0xffff;
}

impl Address {
    /// The address family number of IPv4.
    const INET: u16 = libc::AF_INET as u16;
    /// The address family number of IPv6.
    const INET6: u16 = libc::AF_INET6 as u16;
    /// The address family number of InfiniBand.
    const IB: u16 = libc::AF_IB as u16;
    const INET_LEN: usize = 16;
    const INET6_LEN: usize = 28;
    const IB_LEN: usize = 48;

    /// Returns the port; for an InfiniBand address, the low 16 bits of its service id.
    #[doc(alias = "rdma_get_src_port")]
    #[doc(alias = "rdma_get_dst_port")]
    pub const fn port(&self) -> u16 {
        match self {
            Self::Ip(address) => address.port(),
            Self::Ib(address) => address.service_id as u16,
            Self::Other { .. } => 0,
        }
    }

    /// Returns the IP address and port; `None` for other families.
    pub const fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            _ => None,
        }
    }

    /// Returns the number of the address family, `AF_*`.
    pub const fn family(&self) -> u16 {
        match self {
            Self::Ip(SocketAddr::V4(_)) => Self::INET,
            Self::Ip(SocketAddr::V6(_)) => Self::INET6,
            Self::Ib(_) => Self::IB,
            Self::Other { family } => *family,
        }
    }

    /// Returns the address encoded as a `sockaddr` and its length in bytes; `None` for an unknown
    /// family.
    #[doc(alias = "sockaddr")]
    pub fn to_sockaddr(&self) -> Option<([u8; 48], usize)> {
        let mut bytes = [0; Self::IB_LEN];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&self.family().to_ne_bytes());
        let len = match self {
            Self::Ip(SocketAddr::V4(address)) => {
                put(&address.port().to_be_bytes());
                put(&address.ip().octets());
                Self::INET_LEN
            }
            Self::Ip(SocketAddr::V6(address)) => {
                put(&address.port().to_be_bytes());
                put(&address.flowinfo().to_be_bytes());
                put(&address.ip().octets());
                put(&address.scope_id().to_ne_bytes());
                Self::INET6_LEN
            }
            Self::Ib(address) => {
                put(&address.pkey.to_be_bytes());
                put(&address.flow_info.to_be_bytes());
                put(&address.gid.0);
                put(&address.service_id.to_be_bytes());
                put(&address.service_mask.to_be_bytes());
                put(&address.scope_id.to_ne_bytes());
                Self::IB_LEN
            }
            Self::Other { .. } => return None,
        };
        Some((bytes, len))
    }

    /// Parses a `sockaddr`. Returns `None` if it holds no address (family 0) or is truncated.
    #[doc(alias = "sockaddr")]
    pub fn from_sockaddr(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(field(bytes, 0)?);
        let port = || Some(u16::from_be_bytes(field(bytes, 2)?));
        let info = || Some(u32::from_be_bytes(field(bytes, 4)?));
        Some(match family {
            0 => return None,
            Self::INET => {
                let octets: [u8; 4] = field(bytes, 4)?;
                Self::Ip(SocketAddrV4::new(Ipv4Addr::from(octets), port()?).into())
            }
            Self::INET6 => {
                let octets: [u8; 16] = field(bytes, 8)?;
                let scope = u32::from_ne_bytes(field(bytes, 24)?);
                Self::Ip(SocketAddrV6::new(Ipv6Addr::from(octets), port()?, info()?, scope).into())
            }
            Self::IB => Self::Ib(IbAddress {
                pkey: port()?,
                flow_info: info()?,
                gid: Gid(field(bytes, 8)?),
                service_id: u64::from_be_bytes(field(bytes, 24)?),
                service_mask: u64::from_be_bytes(field(bytes, 32)?),
                scope_id: u64::from_ne_bytes(field(bytes, 40)?),
            }),
            family => Self::Other { family },
        })
    }

    /// Returns the encoding for commands that accept any family, with its length in bytes; `None`
    /// for an unknown family.
    pub(crate) fn to_storage(self) -> Option<(KernelSockaddrStorage, u16)> {
        let (bytes, len) = self.to_sockaddr()?;
        let mut storage = KernelSockaddrStorage::default();
        storage.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
        Some((storage, len as u16))
    }

    /// Returns the encoding for commands that accept only IP addresses; `None` for other families.
    pub(crate) fn to_in6(self) -> Option<SockaddrIn6> {
        let (bytes, _) = self.ip().and_then(|_| self.to_sockaddr())?;
        SockaddrIn6::read_from_prefix(&bytes).ok().map(|(address, _)| address)
    }

    /// Parses an address of `len` bytes, the length reported by the kernel.
    pub(crate) fn from_storage(storage: &KernelSockaddrStorage, len: u16) -> Option<Self> {
        let bytes = storage.as_bytes();
        Self::from_sockaddr(&bytes[..bytes.len().min(len.into())])
    }

    /// Parses an address from a field for IP addresses.
    pub(crate) fn from_in6(address: &SockaddrIn6) -> Option<Self> {
        Self::from_sockaddr(address.as_bytes())
    }

    /// Returns whether this is a multicast address. A GID is treated as an IPv6 address.
    pub fn is_multicast(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().is_multicast(),
            Self::Ib(address) => address.gid.is_multicast(),
            Self::Other { .. } => false,
        }
    }
}

/// Returns the bytes of a field, or `None` if the address is too short.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl From<SocketAddrV4> for Address {
    fn from(address: SocketAddrV4) -> Self {
        Self::Ip(address.into())
    }
}

impl From<SocketAddrV6> for Address {
    fn from(address: SocketAddrV6) -> Self {
        Self::Ip(address.into())
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Address {
    fn from(pair: (I, u16)) -> Self {
        Self::Ip(pair.into())
    }
}

impl From<IbAddress> for Address {
    fn from(address: IbAddress) -> Self {
        Self::Ib(address)
    }
}

impl From<&Self> for Address {
    fn from(address: &Self) -> Self {
        *address
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Ib(address) => write!(f, "[{}]:{:#x}", address.gid.to_ipv6(), address.service_id),
            Self::Other { family } => write!(f, "an address of family {family}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4() -> Address {
        (Ipv4Addr::new(192, 0, 2, 1), 7471).into()
    }

    fn v6() -> Address {
        SocketAddrV6::new("fe80::1".parse().unwrap(), 7471, 5, 3).into()
    }

    fn ib() -> Address {
        IbAddress { flow_info: 9, scope_id: 2, ..IbAddress::new(Gid([7; 16]), PortSpace::TCP, 80) }.into()
    }

    #[test]
    fn addresses_of_each_family_survive_the_way_to_the_kernel_and_back() {
        for (address, len) in [(v4(), 16), (v6(), 28), (ib(), 48)] {
            let (storage, length) = address.to_storage().unwrap();
            assert_eq!(length, len);
            assert_eq!(Address::from_storage(&storage, length), Some(address));
            assert_eq!(Address::from_storage(&storage, u16::MAX), Some(address));
        }
        for address in [v4(), v6()] {
            assert_eq!(Address::from_in6(&address.to_in6().unwrap()), Some(address));
        }
        assert_eq!(ib().to_in6(), None);
    }

    #[test]
    fn an_address_lies_in_memory_as_c_has_it() {
        let (storage, _) = v4().to_storage().unwrap();
        assert_eq!(storage.as_bytes()[..8], [2, 0, 0x1d, 0x2f, 192, 0, 2, 1]);
        let (storage, _) = ib().to_storage().unwrap();
        assert_eq!(storage.as_bytes()[..8], [27, 0, 0xff, 0xff, 0, 0, 0, 9]);
        assert_eq!(storage.as_bytes()[24..32], [0, 0, 0, 0, 1, 6, 0, 80]);
        assert_eq!(storage.as_bytes()[32..40], [0xff; 8]);
    }

    #[test]
    fn a_reply_that_ends_early_has_no_address() {
        for (address, len) in [(v4(), 8), (v6(), 28), (ib(), 48)] {
            let (storage, _) = address.to_storage().unwrap();
            for cut in 0..len {
                assert_eq!(Address::from_storage(&storage, cut), None, "{address} cut to {cut}");
            }
        }
        assert_eq!(Address::from_storage(&KernelSockaddrStorage::default(), 128), None);
    }

    #[test]
    fn an_unknown_family_is_kept_and_cannot_be_sent() {
        let storage = KernelSockaddrStorage { ss_family: 77, ..KernelSockaddrStorage::default() };
        let address = Address::from_storage(&storage, 128).unwrap();
        assert_eq!(address, Address::Other { family: 77 });
        assert_eq!((address.to_storage(), address.to_in6(), address.port()), (None, None, 0));
        assert_eq!(address.to_string(), "an address of family 77");
    }

    #[test]
    fn port_zero_leaves_the_choice_of_a_service_to_the_kernel() {
        let any = IbAddress::new(Gid::ZERO, PortSpace::UDP, 0);
        assert_eq!((any.service_id, any.service_mask), (0x111_0000, 0xffff_ffff_ffff_0000));
        assert_eq!(ib().port(), 80);
    }
}
