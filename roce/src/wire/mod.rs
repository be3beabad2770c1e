//! Wire formats: RoCEv2 packets, as the payload of a UDP datagram.
//!
//! Every header has two types. `Packet` wraps a buffer and reads or writes one field at a time.
//! `Repr` is a small `Copy` struct of values: `parse` reads it from a packet and `emit` writes it
//! to a packet. Unknown opcodes, syndromes and reserved bits are data. Nothing here allocates and
//! no input causes a panic.
//!
//! | module | contents | IBTA volume 1 |
//! |---|---|---|
//! | [`packet`] | **start here**: the whole packet, [`Headers`] for the fast path | 5.2, A17 |
//! | [`opcode`] | the BTH opcode, which determines the other headers | 9.2, table 38 |
//! | [`psn`] | 24-bit packet sequence numbers | 9.7 |
//! | [`bth`] | base transport header, 12 bytes | 9.2 |
//! | [`deth`] | datagram extended transport header, 8 bytes | 9.3 |
//! | [`xrceth`] | XRC extended transport header, 4 bytes | A14 |
//! | [`feth`] | flush extended transport header, 4 bytes | A19 |
//! | [`reth`] | RDMA extended transport header, 16 bytes | 9.3 |
//! | [`atomic_eth`] | atomic extended transport header, 28 bytes | 9.3 |
//! | [`aeth`] | ACK extended transport header, 4 bytes; syndromes, credits, RNR timers | 9.3 |
//! | [`atomic_ack_eth`] | atomic ACK extended transport header, 8 bytes | 9.3 |
//! | [`imm`] | immediate data, 4 bytes | 9.3 |
//! | [`ieth`] | invalidate extended transport header, 4 bytes | 9.3 |
//! | [`icrc`] | the invariant CRC; its part checkable by a UDP socket | 7.8, A17 |
//!
//! Order on the wire: BTH, (DETH or XRCETH), FETH, (RETH or AtomicETH), AETH, AtomicAckETH, (ImmDt
//! or IETH), payload, 0 to 3 bytes of pad, ICRC. The opcode determines the headers present.

#[macro_use]
mod macros;

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod deth;
pub mod feth;
pub mod icrc;
pub mod ieth;
pub mod imm;
pub mod opcode;
pub mod packet;
pub mod psn;
pub mod reth;
pub mod xrceth;

pub use aeth::{NakCode, Syndrome};
pub use icrc::{Flow, Icrc, Verdict};
pub use opcode::{Opcode, Service};
pub use packet::{Headers, Packet};
pub use psn::Psn;

use core::fmt;

/// The UDP destination port of RoCEv2 (IBTA annex A17).
pub const UDP_PORT: u16 = 4791;

/// The length of the invariant CRC at the end of every packet, in bytes.
pub const ICRC_LEN: usize = 4;

/// The reason why a buffer is not a valid packet. Malformed packets are dropped silently (IBTA
/// 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// The buffer is shorter than the ICRC plus the headers determined by the opcode.
    Truncated,
    /// The pad count exceeds the number of bytes after the headers.
    Padding,
    /// The transport header version is not 0, so the meaning of the headers is unknown.
    Version,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "packet is shorter than the headers of its opcode",
            Malformed::Padding => "packet's pad count exceeds the bytes behind its headers",
            Malformed::Version => "packet's transport header version is not 0",
        })
    }
}

impl core::error::Error for Malformed {}

/// A mask of the low 24 bits, the width of QP numbers, SRQ numbers, PSNs and MSNs.
pub const MASK_24: u32 = 0x00ff_ffff;

/// Returns the `N` bytes at offset `at`. Bytes beyond the end of the buffer read as zeros, but
/// checked constructors prevent such reads.
#[inline(always)]
fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    match bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
        Some(chunk) => *chunk,
        None => [0; N],
    }
}

/// Stores `value` at offset `at` if the buffer is long enough.
#[inline(always)]
fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(chunk) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *chunk = value;
    }
}
