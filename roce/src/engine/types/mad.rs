//! Management datagrams (MADs): the packets of queue pair 1, their origins and destinations.
//!
//! # References
//! IBTA 13.4 (MADs), 10.2.4 (queue keys)

use super::{Arrival, Path};

/// The queue pair number of the general services interface.
pub const GSI_QPN: u32 = 1;

/// The queue key of the general services interface, carried by all packets for queue pair number 1.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// The length of a management datagram in bytes.
pub const MAD_LEN: usize = 256;

/// A management datagram, header and data: the payload of one packet.
pub type Mad = [u8; MAD_LEN];

/// The destination of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadDestination {
    /// The path.
    pub path: Path,
    /// The destination queue pair, 24 bits: [`GSI_QPN`], or the sender of the datagram being
    /// replied to.
    pub qpn: u32,
    /// The partition key.
    pub pkey: u16,
}

/// A received management datagram.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReceivedMad {
    /// The origin of the packet.
    pub arrival: Arrival,
    /// The sender's queue pair.
    pub src_qpn: u32,
    /// The partition key of the default partition, as a full or limited member.
    pub pkey: u16,
    /// The bytes of the datagram.
    pub mad: Mad,
}
