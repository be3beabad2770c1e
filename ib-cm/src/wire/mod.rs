//! Wire formats: the communication management messages, as MADs of 256 bytes.
//!
//! Every message has two types. `Packet` wraps the bytes and reads one field at a time. `Repr` is a
//! `Copy` struct of the decoded values: `parse` reads it from a packet, `emit` writes it to one.
//! Unknown attributes, methods, reasons and codes are data. Nothing here allocates and no input
//! causes a panic. Each file lists its fields with byte, bit and width, as in the specification's
//! tables.
//!
//! | module | contents | IBTA volume 1 |
//! |---|---|---|
//! | [`message`] | **start here**: [`Message`], any of the messages below | 12.6 |
//! | [`mad`] | MAD header, 24 bytes; classes, methods, attributes | 13.4.3 |
//! | [`req`] | request for communication | 12.6.5 |
//! | [`path`] | the paths of a REQ | 12.6.5, 12.7 |
//! | [`mra`] | message receipt acknowledgement | 12.6.6 |
//! | [`rej`], [`reason`] | reject and its reasons | 12.6.7 |
//! | [`rep`] | reply to a request | 12.6.8 |
//! | [`rtu`] | ready to use | 12.6.9 |
//! | [`dreq`], [`drep`] | request for release and its reply | 12.6.10, 12.6.11 |
//! | [`lap`], [`apr`] | load alternate path and its response | 12.8 |
//! | [`sidr_req`], [`sidr_rep`] | service id resolution | 12.11 |
//! | [`service`] | service ids; RDMA IP CM ports | A11.2 |
//! | [`ip`] | the RDMA IP CM header in private data | A11.4 |
//! | [`data`] | private data | |

#[macro_use]
mod macros;

pub mod apr;
pub mod data;
pub mod drep;
pub mod dreq;
mod field;
pub mod ip;
pub mod lap;
pub mod mad;
pub mod message;
pub mod mra;
pub mod path;
pub mod reason;
pub mod rej;
pub mod rep;
pub mod req;
pub mod rtu;
pub mod service;
pub mod sidr_rep;
pub mod sidr_req;

pub use data::{PrivateData, TooLong};
pub use mad::{Attribute, Method};
pub use message::Message;
pub use reason::{MsgResponse, Reason};
pub use service::{PortSpace, ServiceId};

use core::fmt;

/// Length of a MAD, in bytes.
pub const MAD_LEN: usize = 256;

/// The bytes of a management datagram (MAD).
pub type Mad = [u8; MAD_LEN];

/// A 128-bit address: an IPv6 address, or an IPv4 address mapped into one (`::ffff:192.0.2.1`).
pub type Gid = [u8; 16];

/// The number of the queue pair that receives communication management MADs on every port: the
/// general service interface (GSI).
pub const GSI_QPN: u32 = 1;

/// The queue key of the general service interface.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// The low 24 bits: the width of queue pair numbers and packet sequence numbers.
pub const MASK_24: u32 = 0x00ff_ffff;

number! {
    /// A path MTU, as a 4-bit code.
    Mtu(u8);
    /// A path MTU of 256 bytes.
    B256 = 1, "256 bytes";
    /// A path MTU of 512 bytes.
    B512 = 2, "512 bytes";
    /// A path MTU of 1024 bytes.
    B1024 = 3, "1024 bytes";
    /// A path MTU of 2048 bytes.
    B2048 = 4, "2048 bytes";
    /// A path MTU of 4096 bytes.
    B4096 = 5, "4096 bytes";
}

impl Mtu {
    /// Returns the MTU in bytes; `None` if the code is undefined.
    pub const fn bytes(self) -> Option<u16> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

/// Options of enhanced connection establishment: features that two devices of the same vendor
/// negotiate outside the specification. All zeros mean no options.
///
/// # References
/// Linux `struct rdma_ucm_ece`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor id, 24 bits.
    pub vendor_id: u32,
    /// The options, in a format defined by the vendor.
    pub attr_mod: u32,
}

/// The reason why bytes are not a valid message. The state machine drops such messages silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// The buffer is shorter than the message.
    Truncated,
    /// The version in the RDMA IP CM header is not 0.
    Version,
    /// The addresses in the RDMA IP CM header are neither IPv4 nor IPv6.
    IpVersion,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "message is shorter than its format",
            Self::Version => "version of the header of RDMA IP CM is not 0",
            Self::IpVersion => "addresses in the header of RDMA IP CM are neither of IPv4 nor of IPv6",
        })
    }
}

impl core::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_have_the_bytes_of_the_specification() {
        let bytes = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096].map(Mtu::bytes);
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096].map(Some));
        assert_eq!(Mtu(0).bytes(), None);
        assert_eq!(Mtu(6).bytes(), None);
    }

    #[test]
    fn every_reason_has_a_sentence_and_unknown_ones_have_their_number() {
        for reason in (1..=35).filter(|reason| *reason != 34).map(Reason) {
            assert!(!reason.to_string().contains("no known meaning"), "{reason:?}");
        }
        assert_eq!(Reason(34).to_string(), "Reason 34, which has no known meaning");
        assert_eq!(format!("{:?}", Reason(4)), "TIMEOUT");
        assert_eq!(format!("{:?}", Reason(77)), "Reason(77)");
    }
}
