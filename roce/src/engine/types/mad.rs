//! Management datagrams (MADs), the packets of queue pair 1, with their origins and destinations.
//!
//! # References
//! IBTA 13.4 (MADs), 10.2.4 (queue keys)

use super::{Arrival, Path};

/// The queue pair number of the general services interface.
pub const GSI_QPN: u32 = 1;

/// The queue key of the general services interface. All packets for queue pair number 1 carry it.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// The length of a management datagram in bytes.
pub const MAD_LEN: usize = 256;

/// A management datagram, header and data: the payload of one packet.
pub type Mad = [u8; MAD_LEN];

/// The destination of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadDestination {
    /// The path to the destination.
    pub path: Path,
    /// The number of the destination queue pair, 24 bits: [`GSI_QPN`] or, in a reply, the number of
    /// the requesting queue pair.
    pub qpn: u32,
    /// The partition key of the packet.
    pub pkey: u16,
}

/// A received management datagram.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReceivedMad {
    /// The origin of the packet.
    pub arrival: Arrival,
    /// The number of the sender's queue pair, 24 bits.
    pub src_qpn: u32,
    /// The partition key of the default partition, as a full or limited member.
    pub pkey: u16,
    /// The datagram, header and data.
    pub mad: Mad,
}
