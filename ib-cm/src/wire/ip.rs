//! The RDMA IP CM header, 36 bytes: the IP addresses and the source port of a request. The private
//! data of REQ and SIDR_REQ starts with this header.
//!
//! ```text
//!  0         1             2             4         20        36
//!  +---------+-------------+-------------+---------+---------+
//!  | version | IP version  | source port | source  | target  |   IPv4: in the last 4 of 16 bytes
//!  +---------+-------------+-------------+---------+---------+
//! ```
//!
//! The target port is in the service id.
//!
//! # References
//! IBTA annex A11.4; Linux `struct cma_hdr`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Malformed;
use super::field::Field;

/// Length of the header, in bytes.
pub const LEN: usize = 36;

/// The fields of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The requester's port number.
    pub source_port: u16,
    /// The requester's address and the target address, of the same family.
    pub addresses: Addresses,
}

/// The IP addresses of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4 addresses.
    V4 {
        /// The requester's address.
        source: Ipv4Addr,
        /// The address that the requester connects to.
        target: Ipv4Addr,
    },
    /// IPv6 addresses.
    V6 {
        /// The requester's address.
        source: Ipv6Addr,
        /// The address that the requester connects to.
        target: Ipv6Addr,
    },
}

impl Repr {
    /// Reads the header from the start of private data.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if fewer than 36 bytes are given; [`Malformed::Version`] if the
    /// header's version is not 0, as in a native InfiniBand request; [`Malformed::IpVersion`] if
    /// the addresses are neither IPv4 nor IPv6.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let header: &[u8; LEN] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
        if header[0] != 0 {
            return Err(Malformed::Version);
        }
        let addresses = match header[1] >> 4 {
            4 => Addresses::V4 {
                source: <[u8; 4]>::get(header, 16 * 8, 32).into(),
                target: <[u8; 4]>::get(header, 32 * 8, 32).into(),
            },
            6 => Addresses::V6 {
                source: <[u8; 16]>::get(header, 4 * 8, 128).into(),
                target: <[u8; 16]>::get(header, 20 * 8, 128).into(),
            },
            _ => return Err(Malformed::IpVersion),
        };
        Ok(Self { source_port: u16::get(header, 16, 16), addresses })
    }

    /// Returns the header as bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut header = [0; LEN];
        self.source_port.put(&mut header, 16, 16);
        match self.addresses {
            Addresses::V4 { source, target } => {
                header[1] = 4 << 4;
                source.octets().put(&mut header, 16 * 8, 32);
                target.octets().put(&mut header, 32 * 8, 32);
            }
            Addresses::V6 { source, target } => {
                header[1] = 6 << 4;
                source.octets().put(&mut header, 4 * 8, 128);
                target.octets().put(&mut header, 20 * 8, 128);
            }
        }
        header
    }

    /// Returns the requester's address.
    pub fn source(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4 { source, .. } => source.into(),
            Addresses::V6 { source, .. } => source.into(),
        }
    }

    /// Returns the address that the requester connects to.
    pub fn target(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4 { target, .. } => target.into(),
            Addresses::V6 { target, .. } => target.into(),
        }
    }
}
