//! [`Dest`]: a peer's address and its wire format.

use std::fmt;

use verbs::Gid;

use crate::ctext::Ntop;

/// A peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dest {
    /// The LID of the peer's port; 0 on RoCE.
    pub lid: u16,
    /// The number of the peer's queue pair.
    pub qpn: u32,
    /// The PSN of the peer's first packet.
    pub psn: u32,
    /// The GID of the peer's port; zero if the peer uses no GID.
    pub gid: Gid,
}

/// The length in bytes of the exchanged message: `lid:qpn:psn:gid` in hexadecimal and a zero byte.
///
/// ```text
/// 0000:000011:db74eb:00000000000000000000ffff0a090901\0
/// ```
pub const WIRE_LEN: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;

impl Dest {
    /// The placeholder for a missing address: all zeros.
    pub const NONE: Self = Self { lid: 0, qpn: 0, psn: 0, gid: Gid::ZERO };

    /// Encodes the address as a message.
    pub fn to_wire(self) -> [u8; WIRE_LEN] {
        let Self { lid, qpn, psn, gid } = self;
        let gid = u128::from_be_bytes(gid.0);
        let text = format!("{lid:04x}:{:06x}:{:06x}:{gid:032x}\0", qpn & MAX_24, psn & MAX_24);
        let mut wire = [0; WIRE_LEN];
        wire.copy_from_slice(text.as_bytes());
        wire
    }

    /// Parses a received message. `None` if it is malformed.
    pub fn from_wire(wire: &[u8; WIRE_LEN]) -> Option<Self> {
        let text = str::from_utf8(wire.split(|&byte| byte == 0).next()?).ok()?;
        let mut fields = text.split(':');
        let mut number = |max: u32| hex(fields.next()?).filter(|number| *number <= max.into());
        let lid = number(u16::MAX.into())? as u16;
        let (qpn, psn) = (number(MAX_24)? as u32, number(MAX_24)? as u32);
        let gid = fields.next().filter(|gid| gid.len() == 32).and_then(hex)?;
        fields.next().is_none().then_some(Self { lid, qpn, psn, gid: Gid(gid.to_be_bytes()) })
    }
}

/// Parses a number without a sign; `from_str_radix` would accept a sign.
pub(super) fn hex(digits: &str) -> Option<u128> {
    if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        u128::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

impl fmt::Display for Dest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid } = self;
        write!(f, "LID 0x{lid:04x}, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {}", Ntop(gid.0))
    }
}

/// The largest queue pair number or PSN. Both have 24 bits.
pub(super) const MAX_24: u32 = 0xff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: &[u8; WIRE_LEN] = b"0007:000011:db74eb:00000000000000000000ffff0a090901\0";

    fn dest() -> Dest {
        Dest { lid: 7, qpn: 0x11, psn: 0xdb_74eb, gid: Gid::from(std::net::Ipv4Addr::new(10, 9, 9, 1)) }
    }

    #[test]
    fn an_address_goes_over_the_wire_as_c_sends_it() {
        assert_eq!(&dest().to_wire(), WIRE);
        assert_eq!(Dest::from_wire(WIRE), Some(dest()));
    }

    #[test]
    fn an_address_prints_as_c_prints_it() {
        assert_eq!(dest().to_string(), "LID 0x0007, QPN 0x000011, PSN 0xdb74eb, GID ::ffff:10.9.9.1");
    }

    #[test]
    fn whatever_else_a_peer_sends_is_no_address() {
        let variant = |at: usize, byte: u8| {
            let mut wire = *WIRE;
            wire[at] = byte;
            Dest::from_wire(&wire)
        };
        for (at, byte) in
            [(0, b'-'), (0, b'+'), (4, b' '), (4, b'0'), (5, b'z'), (20, b':'), (30, 0), (50, 0xff)]
        {
            assert_eq!(variant(at, byte), None, "{byte:#x} at {at}");
        }
        for wire in [[0; WIRE_LEN], [b':'; WIRE_LEN], [b'0'; WIRE_LEN], [0xff; WIRE_LEN]] {
            assert_eq!(Dest::from_wire(&wire), None, "{wire:?}");
        }
        // A message without its zero byte, and a number with more than 24 bits.
        assert_eq!(variant(WIRE_LEN - 1, b'0'), None);
        assert_eq!(Dest::from_wire(b"007:1000000:db74eb:00000000000000000000ffff0a090901\0"), None);
    }
}
