//! [`Address`]: a peer's address over XRC and its wire format.

use std::fmt;

use verbs::Gid;

use crate::ctext::Ntop;
use crate::pingpong::dest::{MAX_24, hex};

/// A peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The LID of the peer's port; 0 on RoCE.
    pub lid: u16,
    /// The queue pair number of the XRC target, which receives.
    pub recv_qpn: u32,
    /// The queue pair number of the XRC initiator, which sends.
    pub send_qpn: u32,
    /// The PSN of the first packet from either queue pair.
    pub psn: u32,
    /// The number of the peer's shared receive queue.
    pub srqn: u32,
    /// The GID of the peer's port; zero if the peer uses no GID.
    pub gid: Gid,
}

/// The length, in bytes, of the exchanged message: `lid:recv:send:psn:srqn:gid` in hexadecimal and
/// a zero byte.
pub const WIRE_LEN: usize = 4 + 4 * (1 + 6) + 1 + 32 + 1;

impl Address {
    /// Encodes the address as a message.
    pub fn to_wire(self) -> [u8; WIRE_LEN] {
        let Self { lid, gid, .. } = self;
        let [recv, send, psn, srqn] =
            [self.recv_qpn, self.send_qpn, self.psn, self.srqn].map(|number| number & MAX_24);
        let gid = u128::from_be_bytes(gid.0);
        let text = format!("{lid:04x}:{recv:06x}:{send:06x}:{psn:06x}:{srqn:06x}:{gid:032x}\0");
        let mut wire = [0; WIRE_LEN];
        wire.copy_from_slice(text.as_bytes());
        wire
    }

    /// Parses a received message. `None` if it is malformed.
    pub fn from_wire(wire: &[u8; WIRE_LEN]) -> Option<Self> {
        let text = str::from_utf8(wire.split(|&byte| byte == 0).next()?).ok()?;
        let mut fields = text.split(':');
        let lid = u16::try_from(hex(fields.next()?)?).ok()?;
        let mut number = || {
            let number = u32::try_from(hex(fields.next()?)?).ok()?;
            (number <= MAX_24).then_some(number)
        };
        let (recv_qpn, send_qpn, psn, srqn) = (number()?, number()?, number()?, number()?);
        let gid = fields.next().filter(|gid| gid.len() == 32).and_then(hex)?;
        let gid = Gid(gid.to_be_bytes());
        fields.next().is_none().then_some(Self { lid, recv_qpn, send_qpn, psn, srqn, gid })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, recv_qpn, send_qpn, psn, srqn, gid } = self;
        write!(f, "LID {lid:04x}, QPN RECV {recv_qpn:06x} SEND {send_qpn:06x}, PSN {psn:06x}, ")?;
        write!(f, "SRQN {srqn:06x}, GID {}", Ntop(gid.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: &[u8; WIRE_LEN] = b"0007:000011:000012:db74eb:000003:00000000000000000000ffff0a090901\0";

    fn address() -> Address {
        let gid = Gid::from(std::net::Ipv4Addr::new(10, 9, 9, 1));
        Address { lid: 7, recv_qpn: 0x11, send_qpn: 0x12, psn: 0xdb_74eb, srqn: 3, gid }
    }

    #[test]
    fn an_address_goes_over_the_wire_and_prints_as_in_c() {
        assert_eq!(&address().to_wire(), WIRE);
        assert_eq!(Address::from_wire(WIRE), Some(address()));
        let text = "LID 0007, QPN RECV 000011 SEND 000012, PSN db74eb, SRQN 000003, GID ::ffff:10.9.9.1";
        assert_eq!(address().to_string(), text);
    }

    #[test]
    fn whatever_else_a_peer_sends_is_no_address() {
        for (at, byte) in [(0, b'+'), (4, b'0'), (11, b' '), (18, b'z'), (40, 0), (WIRE_LEN - 1, b'0')] {
            let mut wire = *WIRE;
            wire[at] = byte;
            assert_eq!(Address::from_wire(&wire), None, "{byte:#x} at {at}");
        }
        for wire in [[0; WIRE_LEN], [b':'; WIRE_LEN], [b'0'; WIRE_LEN], [0xff; WIRE_LEN]] {
            assert_eq!(Address::from_wire(&wire), None, "{wire:?}");
        }
    }
}
