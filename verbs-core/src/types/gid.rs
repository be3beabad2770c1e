//! [`Gid`] and [`Guid`]: the addresses of ports and nodes on a fabric.

use core::fmt;
use core::str::FromStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ParseError, open_enum};

/// A node's or port's 64-bit global identifier (EUI-64), in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

impl Guid {
    /// Converts from the byte order of the fabric and the kernel.
    pub const fn from_be_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

/// Writes the identifier like `ibv_devinfo`: `0002:c903:0010:2030`.
impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = self.0;
        write!(f, "{:04x}:{:04x}:{:04x}:{:04x}", g >> 48, (g >> 32) & 0xffff, (g >> 16) & 0xffff, g & 0xffff)
    }
}

/// A global identifier: the 128-bit address of a port. On RoCE, it is an IPv6 address, or an IPv4
/// address mapped into IPv6.
///
/// `Display` writes the mapped IPv4 address if there is one, and otherwise the IPv6 address, as in
/// this library's messages; `{:#}` writes eight groups of four hexadecimal digits, like sysfs and
/// `ibv_devinfo -v`. All of these forms can be parsed:
///
/// ```
/// # mod verbs { pub use verbs_core::types::*; pub use verbs_core::*; }
/// use verbs::Gid;
///
/// let gid: Gid = "192.0.2.1".parse()?;
/// assert_eq!(gid, "::ffff:192.0.2.1".parse()?);
/// assert_eq!(gid.to_string(), "192.0.2.1");
/// assert_eq!(format!("{gid:#}"), "0000:0000:0000:0000:0000:ffff:c000:0201");
/// assert_eq!(gid, format!("{gid:#}").parse()?);
/// # Ok::<(), verbs_core::Error>(())
/// ```
///
/// # References
/// IBTA volume 1, section 4.1.1; annex A17 (RoCEv2)
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID with all bits zero, which marks an empty entry of the GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// Converts from the first 16 bytes; returns the zero GID if there are fewer.
    pub(crate) fn from_slice(bytes: &[u8]) -> Self {
        Self(bytes.first_chunk().copied().unwrap_or_default())
    }

    /// Returns whether all bits are zero, as in an empty entry of the GID table.
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Returns whether this is a multicast address: an address in `ff00::/8`, or an IPv4 address in
    /// `224.0.0.0/4` mapped into IPv6.
    pub const fn is_multicast(&self) -> bool {
        match self.to_ipv4() {
            Some(v4) => v4.is_multicast(),
            None => self.0[0] == 0xff,
        }
    }

    /// Returns the upper 64 bits, in host order.
    pub const fn subnet_prefix(&self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// Returns the lower 64 bits, in host order.
    pub const fn interface_id(&self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// Returns the same 128 bits as an IPv6 address.
    pub const fn to_ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0))
    }

    /// Returns the GID as an address: the mapped IPv4 address if there is one, and otherwise the
    /// IPv6 address.
    pub const fn address(&self) -> IpAddr {
        self.to_ipv6().to_canonical()
    }

    /// Returns the IPv4 address mapped by this GID, if any (`::ffff:a.b.c.d`).
    pub const fn to_ipv4(&self) -> Option<Ipv4Addr> {
        self.to_ipv6().to_ipv4_mapped()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl FromStr for Gid {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let address: Result<IpAddr, _> = text.parse();
        address.map(Self::from).map_err(|_| ParseError::new("GID", "an IPv6 or IPv4 address"))
    }
}

/// Writes the address, or with `{:#}` eight groups of four hexadecimal digits, like sysfs and
/// `ibv_devinfo -v`.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return self.address().fmt(f);
        }
        for (i, pair) in self.0.as_chunks::<2>().0.iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{:04x}", u16::from_be_bytes(*pair))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

open_enum! {
    /// The protocol that uses a GID.
    ///
    /// # References
    /// `ibv_query_gid_ex(3)`, `enum ib_uverbs_gid_type` in `rdma/ib_user_ioctl_verbs.h`
    #[doc(alias = "ibv_gid_type")]
    pub enum GidType(u32) {
        /// InfiniBand.
        #[doc(alias = "IBV_GID_TYPE_IB")]
        IB = 0, "IB";
        /// RoCE v1: GRH directly on Ethernet.
        #[doc(alias = "IBV_GID_TYPE_ROCE_V1")]
        ROCE_V1 = 1, "RoCE v1";
        /// RoCE v2: over UDP port 4791.
        #[doc(alias = "IBV_GID_TYPE_ROCE_V2")]
        ROCE_V2 = 2, "RoCE v2";
    }
}

/// One valid entry of a port's GID table.
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID itself.
    pub gid: Gid,
    /// The GID's index in the port's table:
    /// [`GlobalRoute::sgid_index`](super::GlobalRoute::sgid_index).
    pub gid_index: u32,
    /// The port number, from 1.
    pub port_num: u32,
    /// The protocol that uses the GID.
    pub gid_type: GidType,
    /// The index of the entry's network interface; 0 if there is none.
    pub ndev_ifindex: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_prints_as_its_address_and_on_request_as_sysfs_does() {
        let gid = Gid::from(Ipv4Addr::new(10, 9, 9, 1));
        assert_eq!((gid.to_string().as_str(), format!("{gid:?}").as_str()), ("10.9.9.1", "Gid(10.9.9.1)"));
        assert_eq!(format!("{gid:#}"), "0000:0000:0000:0000:0000:ffff:0a09:0901");
        assert_eq!(gid.to_ipv4(), Some(Ipv4Addr::new(10, 9, 9, 1)));
        assert_eq!((gid.subnet_prefix(), gid.interface_id()), (0, 0xffff_0a09_0901));
    }

    #[test]
    fn a_gid_is_read_from_the_text_of_either_address_and_from_its_own() {
        let mapped = Gid::from(Ipv4Addr::new(10, 9, 9, 1));
        for text in
            ["10.9.9.1", "::ffff:10.9.9.1", "::ffff:a09:901", &mapped.to_string(), &format!("{mapped:#}")]
        {
            assert_eq!(text.parse(), Ok(mapped), "{text}");
        }
        let local: Gid = "fe80::5054:ff:fe12:3456".parse().unwrap();
        assert_eq!(local.to_string(), "fe80::5054:ff:fe12:3456");
        assert_eq!(format!("{local:#}"), "fe80:0000:0000:0000:5054:00ff:fe12:3456");
        assert_eq!(local.to_string().parse(), Ok(local));
        for text in ["", "10.9.9", "fe80::1%2", " 10.9.9.1", "10.9.9.1:4791", "gid"] {
            let error = text.parse::<Gid>().unwrap_err();
            assert_eq!(error.to_string(), "a GID is an IPv6 or IPv4 address", "{text:?}");
        }
    }

    #[test]
    fn groups_have_addresses_of_their_own_in_both_families() {
        for (text, is_group) in [
            ("224.0.0.0", true),
            ("239.255.255.255", true),
            ("240.0.0.0", false),
            ("223.255.255.255", false),
            ("ff02::1", true),
            ("ff00::", true),
            ("feff::1", false),
            ("::224.0.0.1", false),
        ] {
            assert_eq!(text.parse().map(|gid: Gid| gid.is_multicast()), Ok(is_group), "{text}");
        }
    }

    #[test]
    fn a_guid_prints_as_ibv_devinfo_does() {
        assert_eq!(Guid(0x0002_c903_0010_2030).to_string(), "0002:c903:0010:2030");
    }
}
