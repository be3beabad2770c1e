//! The invariant CRC: CRC-32 over all fields that routers leave unchanged, from the IP header
//! through the pad.
//!
//! ```text
//!   8 bytes   20 or 40        8            12         ...
//!  +--------+-----------+------------+------------+----------------------------------+------+
//!  | ones   | IP header | UDP header |    BTH     | extended headers, payload, pad   | ICRC |
//!  +--------+-----------+------------+------------+----------------------------------+------+
//!     ^           ^            ^           ^
//!     LRH         |            checksum    byte 4: FECN, BECN, reserved      all of these as ones
//!                 IPv4: TOS, TTL, checksum; IPv6: traffic class, flow label, hop limit
//! ```
//!
//! The CRC is the one used by Ethernet: polynomial 0x04C11DB7, least significant bit first,
//! inverted at both ends. Its low byte comes first in the packet.
//!
//! A CRC is linear, and much of the header is the same for every packet of a flow. [`Icrc`] holds
//! the state after the header of an empty packet. [`Icrc::seed`] adds the packet's length and IPv4
//! identification to this state with six table look-ups. [`compute`] continues from there and reads
//! only the UDP payload.
//!
//! ```
//! use roce::wire::icrc::{Flow, Icrc, Verdict, compute};
//! let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
//! let flow = Flow { src, dst, src_port: 0xc000, dst_port: 4791 };
//! let icrc = Icrc::new(flow);
//! let mut packet = vec![0; 100];
//! let crc = compute(icrc.seed(0, true, packet.len()), &packet[..96]);
//! packet[96..].copy_from_slice(&crc.to_le_bytes());
//! assert_eq!(icrc.check(&packet, 0), Verdict::Exact);
//! ```
//!
//! # What a UDP socket can check
//! A socket sees addresses, ports, lengths and payload, but not the IPv4 identification or the DF
//! bit. The ICRC covers both. [`Icrc::check`] first assumes the expected identification, with DF.
//! If that fails, the CRC is run backwards to the identification. If the packet differs only there,
//! the difference between computed and received ICRC yields the difference of this field. This
//! holds for 2¹⁷ of the 2³² possible differences: one for each identification, with and without DF.
//! Therefore:
//! - with the expected identification, the check is as good as a NIC's;
//! - with another identification, one damaged packet in 2¹⁵ is accepted as a correct packet with
//!   some other identification. The UDP checksum, the Ethernet FCS and the pad are checked
//!   separately. A caller whose peers send a fixed identification (0 from an unconnected Linux
//!   socket with DF) drops packets without [`Verdict::Exact`];
//! - on IPv6 the socket sees everything and the check is complete.
//!
//! # References
//! IBTA 7.8 (ICRC), annex A17 (ICRC of RoCEv2), RFC 791 and 8200 (headers).

mod backend;
mod clmul;
mod poly;
mod rewind;
mod tables;

use core::net::IpAddr;

use super::ICRC_LEN;
pub use backend::Backend;

/// The two ends of a UDP flow. Their addresses belong to one family; IPv4-mapped IPv6 addresses
/// count as IPv4, as for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port, [4791](super::UDP_PORT).
    pub dst_port: u16,
}

/// A flow prepared for computing ICRCs: the CRC state after the IP and UDP headers of an empty
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icrc {
    base: u32,
    v4: bool,
}

/// The result of [`Icrc::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// The ICRC is correct, with the expected identification and DF set (or on IPv6).
    Exact,
    /// The ICRC is correct if the packet's IPv4 identification has this value.
    WithId(u16),
    /// The packet is damaged, or too short for an ICRC.
    Bad,
}

impl Verdict {
    /// Returns whether a packet with this verdict may be used.
    pub const fn is_ok(self) -> bool {
        !matches!(self, Verdict::Bad)
    }
}

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const UDP: u8 = 17;
const DONT_FRAGMENT: u8 = 0x40;

/// The bits counted as ones in the first eight bytes of a UDP payload: byte 4 of the BTH.
const BTH_MASK: u64 = 0xff << 32;

impl Icrc {
    /// Precomputes the CRC state of a flow.
    #[inline]
    pub fn new(flow: Flow) -> Self {
        let mut ports = [0, 0, 0, 0, 0, 0, 0xff, 0xff];
        ports[..2].copy_from_slice(&flow.src_port.to_be_bytes());
        ports[2..4].copy_from_slice(&flow.dst_port.to_be_bytes());
        let (state, v4) = match (flow.src.to_canonical(), flow.dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                // The fields are version 4, 5 words; TOS; length and identification, added by the
                // seed; DF.
                let mut header =
                    [0x45, 0xff, 0, 0, 0, 0, DONT_FRAGMENT, 0, 0xff, UDP, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
                header[12..16].copy_from_slice(&src.octets());
                header[16..20].copy_from_slice(&dst.octets());
                (tables::update(AFTER_LRH, &header), true)
            }
            (src, dst) => {
                let mut header = [0; IPV6_LEN];
                header[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, UDP, 0xff]);
                header[8..24].copy_from_slice(&octets_v6(src));
                header[24..].copy_from_slice(&octets_v6(dst));
                (tables::update(AFTER_LRH, &header), false)
            }
        };
        Self { base: tables::update(state, &ports), v4 }
    }

    /// Returns the CRC state after the headers of one packet: the starting state for [`compute`]
    /// and [`begin`].
    ///
    /// `udp_payload_len` is the number of bytes from the BTH through the ICRC. On IPv6, `ip_id` and
    /// `dont_fragment` have no effect. Packets with the same three values have the same seed.
    #[inline]
    pub fn seed(&self, ip_id: u16, dont_fragment: bool, udp_payload_len: usize) -> u32 {
        let udp_len = (udp_payload_len + UDP_LEN) as u16;
        let mut state = self.base ^ tables::at_udp_length(udp_len);
        if self.v4 {
            state ^= tables::at_ipv4_length_and_id(udp_len.wrapping_add(IPV4_LEN as u16), ip_id);
            if !dont_fragment {
                state ^= tables::AT_IPV4_DONT_FRAGMENT;
            }
        } else {
            state ^= tables::at_ipv6_length(udp_len);
        }
        state
    }

    /// Checks the ICRC of a received packet as far as a UDP socket can: see the [module](self).
    /// `udp_payload` runs from the BTH through the ICRC.
    ///
    /// `expected_id` is the most likely identification of the packet: 0 from an unconnected socket
    /// with DF.
    #[inline]
    pub fn check(&self, udp_payload: &[u8], expected_id: u16) -> Verdict {
        let Some((covered, icrc)) = udp_payload.split_last_chunk::<ICRC_LEN>() else { return Verdict::Bad };
        let computed = compute(self.seed(expected_id, true, udp_payload.len()), covered);
        let difference = computed ^ u32::from_le_bytes(*icrc);
        if difference == 0 {
            return Verdict::Exact;
        }
        if !self.v4 {
            return Verdict::Bad;
        }
        // The CRC difference, rewound to just after the three bytes that hold the identification
        // and DF, equals the difference of those bytes. All other bits must be 0.
        let [rest, id_hi, id_lo, flags] = rewind::before_ipv4_id(difference, covered.len()).to_le_bytes();
        match (rest, flags) {
            (0, 0 | DONT_FRAGMENT) => Verdict::WithId(expected_id ^ u16::from_be_bytes([id_hi, id_lo])),
            _ => Verdict::Bad,
        }
    }
}

/// Returns the ICRC of a packet; store it with `to_le_bytes`. `covered` is the UDP payload up to
/// the ICRC.
#[inline]
pub fn compute(seed: u32, covered: &[u8]) -> u32 {
    finish(begin(seed, covered))
}

/// Returns the CRC state after the first bytes of a packet. `headers` must hold at least the first
/// 8 bytes of the BTH.
///
/// For payload in another buffer, call `begin` with the headers, [`update`] with each piece, then
/// [`finish`].
#[inline]
pub fn begin(seed: u32, headers: &[u8]) -> u32 {
    Backend::best().absorb(seed, headers, BTH_MASK)
}

/// Returns the CRC state after more bytes.
#[inline]
pub fn update(state: u32, bytes: &[u8]) -> u32 {
    Backend::best().update(state, bytes)
}

/// Returns the ICRC for a CRC state.
#[inline(always)]
pub const fn finish(state: u32) -> u32 {
    !state
}

fn octets_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The state after eight bytes of ones, which stand in for the LRH missing from RoCEv2.
const AFTER_LRH: u32 = tables::update_slowly(!0, &[0xff; 8]);

#[cfg(test)]
mod tests;
