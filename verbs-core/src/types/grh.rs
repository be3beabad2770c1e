//! [`Grh`]: the routing header in front of a received datagram.

use std::net::Ipv4Addr;

use super::{Gid, GidType, ParseError};

/// The global routing header of a received datagram, from the first 40 bytes of the receive.
///
/// InfiniBand, RoCE v1 and RoCE v2 over IPv6 deliver a 40-byte header in the IPv6 layout. RoCE v2
/// over IPv4 delivers the IPv4 header in the last 20 of the 40 bytes; the first 20 are undefined.
///
/// ```text
///   0                       20                      40
///   | IPv6 layout: GRH, or the IPv6 header          |  payload
///   | undefined             | IPv4 header           |  payload
/// ```
///
/// # References
/// `ibv_init_ah_from_wc(3)`; IBTA volume 1, section 8.3; annex A17, section A17.4.5.2
#[doc(alias = "ibv_grh")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The sender's GID.
    pub sgid: Gid,
    /// The datagram's destination GID, possibly a multicast group.
    pub dgid: Gid,
    /// The traffic class; for IPv4, the TOS/DSCP field.
    pub traffic_class: u8,
    /// The flow label, 20 bits; 0 with IPv4, which has none.
    pub flow_label: u32,
    /// The remaining hop limit: the number of routers that the packet could still have traversed.
    pub hop_limit: u8,
    /// The protocol that followed the header: [`Grh::UDP`] for RoCE v2, otherwise [`Grh::IBA`].
    pub next_header: u8,
}

impl Grh {
    /// The number of bytes in front of a datagram's payload.
    pub const LEN: usize = 40;

    /// The `next_header` of RoCE v2.
    pub const UDP: u8 = 17;

    /// The `next_header` of InfiniBand and RoCE v1.
    pub const IBA: u8 = 0x1b;

    /// Reads the header from the start of a receive that completed with
    /// [`WcFlags::GRH`](super::WcFlags::GRH).
    ///
    /// Bytes beyond the first 40 are ignored. If the first 20 bytes look like IPv6 by chance, the
    /// checksum of the IPv4 header decides.
    ///
    /// # Errors
    /// [`ParseError`] for fewer than 40 bytes, or if they hold neither an IPv6 nor an IPv4 header.
    pub fn parse(received: &[u8]) -> Result<Self, ParseError> {
        let header: &[u8; Self::LEN] =
            received.first_chunk().ok_or(ParseError::new("GRH", "a header of 40 bytes"))?;
        let (_, ipv4) = header.split_at(IPV4_AT);
        let is_ipv6 = header[0] >> 4 == 6;
        let is_ipv4 = ipv4[0] == IPV4_WITHOUT_OPTIONS && (!is_ipv6 || checksum_is_right(ipv4));
        match (is_ipv4, is_ipv6) {
            (true, _) => Ok(Self::from_ipv4(ipv4)),
            (false, true) => Ok(Self::from_ipv6(header)),
            (false, false) => Err(ParseError::new("GRH", "an IPv6 or IPv4 header")),
        }
    }

    /// Returns whether a datagram with this header can match a GID table entry with the protocol
    /// `gid_type`.
    pub fn is_of(&self, gid_type: GidType) -> bool {
        (self.next_header == Self::UDP) == (gid_type == GidType::ROCE_V2)
    }

    fn from_ipv6(header: &[u8; Self::LEN]) -> Self {
        let [a, b, c, d, _, _, next_header, hop_limit, gids @ ..] = header;
        let word = u32::from_be_bytes([*a, *b, *c, *d]);
        let (sgid, dgid) = gids.split_at(16);
        Self {
            sgid: Gid::from_slice(sgid),
            dgid: Gid::from_slice(dgid),
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: *hop_limit,
            next_header: *next_header,
        }
    }

    /// Converts the 20 bytes of an IPv4 header without options.
    fn from_ipv4(header: &[u8]) -> Self {
        let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        Self {
            sgid: address(12).into(),
            dgid: address(16).into(),
            traffic_class: header[1],
            flow_label: 0,
            hop_limit: header[8],
            next_header: header[9],
        }
    }
}

/// Returns whether an IPv4 header's checksum is correct: the one's complement sum of its words must
/// be all ones (RFC 791).
fn checksum_is_right(header: &[u8]) -> bool {
    let words = header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16) == 0xffff
}

/// The first byte of an IPv4 header without options: version 4, length 5 words.
const IPV4_WITHOUT_OPTIONS: u8 = 0x45;

/// The offset of the IPv4 header within the 40 bytes.
const IPV4_AT: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A header from 192.0.2.1 to 192.0.2.2, TOS 0x10, TTL 63, UDP, with its checksum.
    const IPV4: [u8; 20] =
        [0x45, 0x10, 0x00, 0x3c, 0x00, 0x00, 0x40, 0x00, 0x3f, 0x11, 0xb7, 0x9d, 192, 0, 2, 1, 192, 0, 2, 2];

    fn behind(first: [u8; 20]) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..20].copy_from_slice(&first);
        bytes[20..].copy_from_slice(&IPV4);
        bytes
    }

    fn ipv6(next_header: u8) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xba, 0xbc, 0xde, 0, 24, next_header, 64]);
        bytes[8..24].fill(0x11);
        bytes[24..].fill(0x22);
        bytes
    }

    #[test]
    fn roce_v2_over_ipv4_has_its_header_in_the_last_20_bytes() {
        let expected = Grh {
            sgid: Ipv4Addr::new(192, 0, 2, 1).into(),
            dgid: Ipv4Addr::new(192, 0, 2, 2).into(),
            traffic_class: 0x10,
            flow_label: 0,
            hop_limit: 63,
            next_header: Grh::UDP,
        };
        assert_eq!(Grh::parse(&behind([0; 20])), Ok(expected));
        // The first 20 bytes can hold anything, even the start of an IPv6 header: the checksum
        // decides.
        assert_eq!(Grh::parse(&behind([0x60; 20])), Ok(expected));
        assert!(expected.is_of(GidType::ROCE_V2) && !expected.is_of(GidType::ROCE_V1));
    }

    #[test]
    fn infiniband_and_ipv6_have_all_40_bytes() {
        let grh = Grh::parse(&ipv6(Grh::IBA)).unwrap();
        assert_eq!((grh.sgid, grh.dgid), (Gid([0x11; 16]), Gid([0x22; 16])));
        assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit), (0xab, 0xabcde, 64));
        assert!(grh.is_of(GidType::IB) && grh.is_of(GidType::ROCE_V1) && !grh.is_of(GidType::ROCE_V2));
        assert!(Grh::parse(&ipv6(Grh::UDP)).unwrap().is_of(GidType::ROCE_V2));
    }

    #[test]
    fn an_address_that_looks_like_an_ipv4_header_is_told_by_the_checksum() {
        let mut bytes = ipv6(Grh::UDP);
        bytes[20] = 0x45;
        assert_eq!(Grh::parse(&bytes).unwrap().next_header, Grh::UDP);
        assert_eq!(Grh::parse(&bytes).unwrap().hop_limit, 64);
    }

    #[test]
    fn bytes_that_are_no_header_are_refused() {
        assert_eq!(Grh::parse(&[0; 39]).unwrap_err().to_string(), "a GRH is a header of 40 bytes");
        assert!(Grh::parse(&[0; 40]).is_err());
        assert!(Grh::parse(&[0xff; 64]).is_err());
    }
}
