//! The whole transport packet, as the payload of a UDP datagram to [port 4791](super::UDP_PORT).
//!
//! ```text
//!  0     12         header_len                              len - 4      len
//!  +-----+----------+------------------------------+-------+-----------+
//!  | BTH | extended |            payload           |  pad  |   ICRC    |
//!  +-----+----------+------------------------------+-------+-----------+
//!        by opcode                                  0 to 3
//! ```
//!
//! [`Packet`] reads bytes in place. [`Headers`] has all headers by value; an engine parses each
//! received packet once. A sender emits the headers, copies the payload after them and appends
//! [`pad_for`] zero bytes and the [ICRC](super::icrc).
//!
//! # References
//! IBTA 5.2 (order of headers), 9.6 (header validation), annex A17 (RoCEv2).

use core::ops::Range;

use super::{
    ICRC_LEN, Malformed, aeth, atomic_ack_eth, atomic_eth, bth, deth, feth, get, ieth, imm, reth, xrceth,
};

/// The length of the longest sequence of headers, in bytes: BTH, XRCETH and AtomicETH.
pub const MAX_HEADER_LEN: usize = bth::LEN + xrceth::LEN + atomic_eth::LEN;

/// The maximum number of bytes a packet adds to its payload: headers, pad and ICRC.
pub const MAX_OVERHEAD: usize = MAX_HEADER_LEN + 3 + ICRC_LEN;

/// The length of the longest packet, in bytes: the payload of the largest path MTU plus
/// [`MAX_OVERHEAD`].
pub const MAX_PACKET_LEN: usize = 4096 + MAX_OVERHEAD;

/// The maximum payload, in bytes, of packets between two devices on one machine, if both devices
/// know that they share the machine.
pub const LINK_MTU: u32 = 16 << 10;

/// The length, in bytes, of the longest packet with a payload of up to [`LINK_MTU`].
pub const MAX_LINK_PACKET_LEN: usize = LINK_MTU as usize + MAX_OVERHEAD;

/// Returns the number of pad bytes needed to make a payload's length a multiple of 4.
#[inline(always)]
pub const fn pad_for(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

/// Checks lengths, pad count and header version. Returns the BTH and the range of the payload.
#[inline(always)]
fn check(bytes: &[u8]) -> Result<(&[u8; bth::LEN], Range<usize>), Malformed> {
    let base: &[u8; bth::LEN] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
    let bth = bth::Packet::from(base);
    let start = bth.opcode().header_len();
    let end = bytes.len().checked_sub(ICRC_LEN).filter(|end| *end >= start).ok_or(Malformed::Truncated)?;
    if bth.tver() != 0 {
        return Err(Malformed::Version);
    }
    let end =
        end.checked_sub(usize::from(bth.pad_cnt())).filter(|end| *end >= start).ok_or(Malformed::Padding)?;
    Ok((base, start..end))
}

/// A packet as bytes, from BTH to ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Wraps a UDP payload.
    ///
    /// # Errors
    /// [`Malformed`] if the payload is too short for the headers of its opcode or for its pad, or
    /// if its transport header version is not 0.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Malformed> {
        check(buffer.as_ref())?;
        Ok(Self { buffer })
    }

    /// Returns the buffer.
    pub fn into_inner(self) -> T {
        self.buffer
    }

    fn bytes(&self) -> &[u8] {
        self.buffer.as_ref()
    }

    /// Returns the base transport header.
    pub fn bth(&self) -> bth::Packet<[u8; bth::LEN]> {
        bth::Packet::from(get(self.bytes(), 0))
    }

    /// Returns all headers by value.
    #[inline]
    pub fn headers(&self) -> Headers {
        Headers::gather(self.bytes(), bth::Repr::parse(&self.bth()))
    }

    fn payload_range(&self) -> Range<usize> {
        // If the buffer has changed since the check, the payload may be empty.
        check(self.bytes()).map_or(0..0, |(_, range)| range)
    }

    /// Returns the payload without its pad.
    pub fn payload(&self) -> &[u8] {
        self.bytes().get(self.payload_range()).unwrap_or_default()
    }

    /// Returns the pad: zeros if the sender follows the specification.
    pub fn pad(&self) -> &[u8] {
        let start = self.payload_range().end;
        self.bytes().get(start..start + usize::from(self.bth().pad_cnt())).unwrap_or_default()
    }

    /// Returns the bytes covered by the ICRC in addition to the IP and UDP headers.
    pub fn covered(&self) -> &[u8] {
        self.bytes().split_last_chunk::<ICRC_LEN>().map_or(&[], |(covered, _)| covered)
    }

    /// Returns the ICRC of the packet.
    pub fn icrc(&self) -> u32 {
        self.bytes().split_last_chunk().map_or(0, |(_, icrc)| u32::from_le_bytes(*icrc))
    }
}

/// All headers of a packet, by value. The opcode determines which optional headers are `Some`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: bth::Repr,
    /// Present in UD packets.
    pub deth: Option<deth::Repr>,
    /// Present in XRC requests.
    pub xrceth: Option<xrceth::Repr>,
    /// Present in flushes.
    pub feth: Option<feth::Repr>,
    /// Present in RDMA writes (first and only), RDMA read requests, flushes and atomic writes.
    pub reth: Option<reth::Repr>,
    /// Present in compare-and-swap and fetch-and-add requests.
    pub atomic_eth: Option<atomic_eth::Repr>,
    /// Present in acknowledges and in RDMA read responses, except middle packets.
    pub aeth: Option<aeth::Repr>,
    /// Present in acknowledges of atomic operations.
    pub atomic_ack_eth: Option<atomic_ack_eth::Repr>,
    /// Present in operations with immediate data.
    pub imm: Option<imm::Repr>,
    /// Present in sends with invalidate.
    pub ieth: Option<ieth::Repr>,
}

impl Headers {
    /// Returns headers with only a BTH. The caller must add the headers required by the opcode.
    #[inline(always)]
    pub const fn new(bth: bth::Repr) -> Self {
        Self {
            bth,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            imm: None,
            ieth: None,
        }
    }

    /// Reads the headers of a UDP payload. Also returns the range of the packet's payload, without
    /// pad and ICRC.
    ///
    /// A packet with an unknown opcode has only a BTH and a payload. The value of the ICRC is not
    /// checked here: see [`super::icrc`].
    ///
    /// # Errors
    /// [`Malformed`] if the payload is too short for the headers of its opcode or for its pad, or
    /// if its transport header version is not 0.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, Range<usize>), Malformed> {
        let (base, payload) = check(bytes)?;
        Ok((Self::gather(bytes, bth::Repr::parse(&bth::Packet::from(base))), payload))
    }

    #[inline(always)]
    fn gather(bytes: &[u8], bth: bth::Repr) -> Self {
        let mut headers = Self::new(bth);
        let mut at = bth::LEN;
        macro_rules! take {
            ($header:ident, $has:ident) => {
                if bth.opcode.$has() {
                    headers.$header = Some($header::Repr::parse(&$header::Packet::from(get(bytes, at))));
                    at += $header::LEN;
                }
            };
        }
        take!(deth, has_deth);
        take!(xrceth, has_xrceth);
        take!(feth, has_feth);
        take!(reth, has_reth);
        take!(atomic_eth, has_atomic_eth);
        take!(aeth, has_aeth);
        take!(atomic_ack_eth, has_atomic_ack_eth);
        take!(imm, has_imm);
        take!(ieth, has_ieth);
        debug_assert_eq!(at, bth.opcode.header_len());
        headers
    }

    /// Returns the number of bytes written by [`emit`](Headers::emit).
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.bth.opcode.header_len()
    }

    /// Returns false, because every packet has a BTH.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the headers required by the opcode to the beginning of `buffer` and returns their
    /// length in bytes.
    ///
    /// A required header that is `None` is written as zeros. A header that is not required is
    /// omitted. If the buffer is shorter than [`len`](Headers::len), nothing is written and 0 is
    /// returned.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let opcode = self.bth.opcode;
        let Some(buffer) = buffer.get_mut(..opcode.header_len()) else { return 0 };
        let Some(base) = buffer.first_chunk_mut() else { return 0 };
        self.bth.emit(&mut bth::Packet::from(base));
        let mut at = bth::LEN;
        macro_rules! lay {
            ($header:ident, $has:ident) => {
                if opcode.$has() {
                    if let Some(chunk) = buffer.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                        self.$header.unwrap_or_default().emit(&mut $header::Packet::from(chunk));
                    }
                    at += $header::LEN;
                }
            };
        }
        lay!(deth, has_deth);
        lay!(xrceth, has_xrceth);
        lay!(feth, has_feth);
        lay!(reth, has_reth);
        lay!(atomic_eth, has_atomic_eth);
        lay!(aeth, has_aeth);
        lay!(atomic_ack_eth, has_atomic_ack_eth);
        lay!(imm, has_imm);
        lay!(ieth, has_ieth);
        debug_assert_eq!(at, opcode.header_len());
        at
    }
}
