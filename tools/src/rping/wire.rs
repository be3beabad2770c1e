//! [`RdmaInfo`]: the message that announces the client's memory, or the server's "go ahead".
//!
//! ```text
//!   address 8 │ key 4 │ length 4        16 bytes, in network order
//! ```
//!
//! # References
//! rdma-core `librdmacm/examples/rping.c` (`rping_rdma_info`)

/// Memory of the message's sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaInfo {
    /// The memory's address.
    pub buf: u64,
    /// The memory's key.
    pub rkey: u32,
    /// The memory's length in bytes.
    pub size: u32,
}

impl RdmaInfo {
    /// The length of the message, in bytes.
    pub const LEN: usize = 16;

    /// Returns the bytes of the message.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.buf.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    /// Parses a message. `None` if it is too short.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (buf, rest) = bytes.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (size, _) = rest.split_first_chunk()?;
        Some(Self {
            buf: u64::from_be_bytes(*buf),
            rkey: u32::from_be_bytes(*rkey),
            size: u32::from_be_bytes(*size),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_in_network_order_and_comes_back() {
        let info = RdmaInfo { buf: 0x0102_0304_0506_0708, rkey: 0x0a0b_0c0d, size: 64 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0xa, 0xb, 0xc, 0xd, 0, 0, 0, 64];
        assert_eq!(info.to_bytes(), bytes);
        assert_eq!(RdmaInfo::from_bytes(&bytes), Some(info));
    }

    #[test]
    fn a_message_that_is_cut_off_is_none() {
        assert_eq!(RdmaInfo::from_bytes(&[0; RdmaInfo::LEN - 1]), None);
    }
}
