//! GIDs, IP addresses, and socket names in the kernel's format.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce::engine::Gid;

/// Returns an IP address as a GID. An IPv4 address is mapped to IPv6.
pub(crate) fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the IP address of a GID.
pub(crate) fn address_of(gid: Gid) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// Returns the destination GID for packets from `device` to `gid`. A device with an IPv4 address
/// maps an IPv6 group to 239.0.0.0/8 by its low 24 bits, as Ethernet maps groups to its addresses.
/// All other destinations are returned unchanged.
///
/// # References
/// RFC 2464 section 7 and RFC 1112 section 6.4 (Ethernet), RFC 2365 (239.0.0.0/8)
pub(crate) fn destination(device: &Gid, gid: Gid) -> Gid {
    if gid[0] != 0xff || address_of(*device).is_ipv6() {
        return gid;
    }
    gid_of([239, gid[13], gid[14], gid[15]].into())
}

/// Returns the loopback address of the same family as `address`: 127.0.0.1 or ::1.
pub(crate) fn loopback_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Returns the unspecified address of the same family as `address`: 0.0.0.0 or ::.
pub(crate) fn unspecified_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A `sockaddr_in` or `sockaddr_in6`, as bytes.
///
/// # References
/// `ip(7)`, `ipv6(7)`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(4))]
pub(crate) struct Name {
    bytes: [u8; Name::MAX],
    len: u8,
}

impl Name {
    /// The size of the longer structure (`sockaddr_in6`), in bytes.
    pub(crate) const MAX: usize = 28;
    const V4: u8 = 16;

    /// An empty name, for the kernel to write into.
    pub(crate) const EMPTY: Self = Self { bytes: [0; Self::MAX], len: 0 };

    /// Returns the socket name for an address and port. For a link-local IPv6 address, `scope` is
    /// the interface index.
    pub(crate) fn new(address: IpAddr, port: u16, scope: u32) -> Self {
        let mut name = Self::EMPTY;
        name.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        match address {
            IpAddr::V4(v4) => {
                name.bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                name.bytes[4..8].copy_from_slice(&v4.octets());
                name.len = Self::V4;
            }
            IpAddr::V6(v6) => {
                name.bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                name.bytes[8..24].copy_from_slice(&v6.octets());
                name.bytes[24..].copy_from_slice(&scope.to_ne_bytes());
                name.len = Self::MAX as u8;
            }
        }
        name
    }

    /// Returns the address and port, or `None` if the kernel wrote neither an IPv4 nor an IPv6
    /// name.
    #[inline]
    pub(crate) fn parse(&self) -> Option<(IpAddr, u16)> {
        let b = &self.bytes;
        let port = u16::from_be_bytes([b[2], b[3]]);
        match i32::from(u16::from_ne_bytes([b[0], b[1]])) {
            libc::AF_INET if self.len >= Self::V4 => Some((IpAddr::from([b[4], b[5], b[6], b[7]]), port)),
            libc::AF_INET6 if usize::from(self.len) == Self::MAX => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&b[8..24]);
                Some((IpAddr::from(octets), port))
            }
            _ => None,
        }
    }

    /// Returns the bytes of the name.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns all bytes for the kernel to write into. Call [`set_len`](Self::set_len) afterwards.
    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8; Self::MAX] {
        &mut self.bytes
    }

    /// Sets the number of bytes written by the kernel.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(Self::MAX) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_and_addresses_are_the_same_thing() {
        for text in ["192.0.2.1", "2001:db8::1", "fe80::1"] {
            let address: IpAddr = text.parse().expect("an address");
            assert_eq!(address_of(gid_of(address)), address);
        }
        let mapped = gid_of(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(mapped, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    }

    #[test]
    fn a_group_of_ipv6_has_a_group_of_ipv4_on_devices_with_such_an_address() {
        let gid = |text: &str| gid_of(text.parse().expect("an address"));
        let [v4, v6] = ["192.0.2.1", "fe80::1"].map(gid);
        assert_eq!(destination(&v4, gid("ff12::8001:203")), gid("239.1.2.3"));
        assert_eq!(destination(&v6, gid("ff12::8001:203")), gid("ff12::8001:203"));
        for other in ["239.9.9.9", "192.0.2.2", "fe80::2"] {
            assert_eq!(destination(&v4, gid(other)), gid(other));
        }
    }

    #[test]
    fn names_read_as_they_were_written() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let address: IpAddr = text.parse().expect("an address");
            assert_eq!(Name::new(address, 4791, 3).parse(), Some((address, 4791)));
        }
    }

    #[test]
    fn a_name_that_is_cut_off_or_of_another_family_is_none() {
        let mut name = Name::new(IpAddr::from([192, 0, 2, 1]), 4791, 0);
        name.set_len(8);
        assert_eq!(name.parse(), None);
        let mut name = Name::new("::1".parse().expect("an address"), 4791, 0);
        name.as_mut_bytes()[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        assert_eq!(name.parse(), None);
    }
}
