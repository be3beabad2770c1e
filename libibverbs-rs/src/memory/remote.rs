//! [`RemoteMr`]: a peer's memory, as named by RDMA operations of this process.

use core::fmt;
use core::ops::{Bound, RangeBounds};
use core::str::FromStr;

use verbs_core::types::{FlushPlacement, FlushSelectivity, ParseError, SendOp};
use verbs_core::{Cause, Errno, Error};

/// The address, length and key of memory exposed by a peer, as RDMA operations need them.
///
/// The peer makes it with [`Exposed::remote`](crate::Exposed::remote) and sends it as bytes or
/// text:
///
/// ```
/// # fn f() -> Result<(), verbs::Error> {
/// use verbs::RemoteMr;
///
/// let table: RemoteMr = "0x7f0000001000:4096:0x1a2b".parse()?;
/// assert_eq!(RemoteMr::from_bytes(&table.to_bytes()), table);
/// let slot = table.slice(64..128)?;
/// let (read, write, add) = (slot.read(), slot.write(), table.slice(..8)?.fetch_add(1));
/// # let _ = (read, write, add);
/// # Ok(())
/// # }
/// # f().unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMr {
    /// The address of the first byte, in the peer's address space.
    pub addr: u64,
    /// The length of the memory, in bytes.
    pub length: u64,
    /// The remote key for the memory.
    pub rkey: u32,
}

impl RemoteMr {
    /// The length of the encoding from [`to_bytes`](Self::to_bytes), in bytes.
    pub const LEN: usize = 20;

    /// Returns the part of the memory in a range of byte offsets.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Range`] if the range ends beyond the memory or before its own start.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start as u64,
            Bound::Excluded(&before) => (before as u64).saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => (last as u64).saturating_add(1),
            Bound::Excluded(&end) => end as u64,
            Bound::Unbounded => self.length,
        };
        let outside = || {
            let cause = Cause::Range { start, end, length: self.length };
            Error::new("slice", "", Errno::INVAL).because(cause)
        };
        let length = end.checked_sub(start).filter(|_| end <= self.length).ok_or_else(outside)?;
        // Wraps, because a peer may send any address: its device then rejects the requests.
        Ok(Self { addr: self.addr.wrapping_add(start), length, rkey: self.rkey })
    }

    /// Returns an RDMA read that starts at the first byte and fills the request's local memory.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub const fn read(&self) -> SendOp<'static> {
        SendOp::RdmaRead { remote_addr: self.addr, rkey: self.rkey }
    }

    /// Returns an RDMA write that starts at the first byte and sends the request's local memory.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub const fn write(&self) -> SendOp<'static> {
        SendOp::RdmaWrite { remote_addr: self.addr, rkey: self.rkey }
    }

    /// Returns an RDMA write like [`write`](Self::write), which also completes one of the peer's
    /// receives with 32 bits of immediate data.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub const fn write_with_imm(&self, imm_data: u32) -> SendOp<'static> {
        SendOp::RdmaWriteWithImm { remote_addr: self.addr, rkey: self.rkey, imm_data }
    }

    /// Returns an atomic addition to the first 8 bytes, whose address must be a multiple of 8.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub const fn fetch_add(&self, add: u64) -> SendOp<'static> {
        SendOp::AtomicFetchAndAdd { remote_addr: self.addr, rkey: self.rkey, add }
    }

    /// Returns an atomic compare and swap of the first 8 bytes, whose address must be a multiple of
    /// 8.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub const fn cmp_swap(&self, compare: u64, swap: u64) -> SendOp<'static> {
        SendOp::AtomicCmpAndSwp { remote_addr: self.addr, rkey: self.rkey, compare, swap }
    }

    /// Returns an atomic write of 8 bytes to the first 8 bytes, whose address must be a multiple of
    /// 8. It takes no local memory: see [`Qp::post_send_op`](crate::Qp::post_send_op).
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    pub const fn atomic_write(&self, data: [u8; 8]) -> SendOp<'static> {
        SendOp::AtomicWrite { remote_addr: self.addr, rkey: self.rkey, data }
    }

    /// Returns a flush operation for these bytes. The flush makes earlier writes from this queue
    /// pair visible or persistent at the peer. The operation takes no local memory: see
    /// [`Qp::post_send_op`](crate::Qp::post_send_op).
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`] for more than 4 GiB - 1.
    #[doc(alias = "IBV_WR_FLUSH")]
    pub fn flush(&self, placement: FlushPlacement) -> Result<SendOp<'static>, Error> {
        let length = u32::try_from(self.length).map_err(|_| {
            let cause = Cause::Limit { name: "length", asked: self.length, min: 0, max: u32::MAX.into() };
            Error::new("flush", "", Errno::INVAL).because(cause)
        })?;
        let (remote_addr, rkey, selectivity) = (self.addr, self.rkey, FlushSelectivity::RANGE);
        Ok(SendOp::Flush { remote_addr, rkey, length, placement, selectivity })
    }

    /// Returns a flush operation for the whole region that contains these bytes.
    #[doc(alias = "IBV_WR_FLUSH")]
    pub const fn flush_region(&self, placement: FlushPlacement) -> SendOp<'static> {
        let (remote_addr, rkey, selectivity) = (self.addr, self.rkey, FlushSelectivity::MR);
        SendOp::Flush { remote_addr, rkey, length: 0, placement, selectivity }
    }

    /// Returns the bytes to send to a peer: address (8), length (8), key (4), each in big-endian
    /// order.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Returns the region that a peer sent, decoded from the bytes of [`to_bytes`](Self::to_bytes).
    /// All bytes are valid, because the peer's device checks the address, length and key of each
    /// operation.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let number =
            |at: usize| bytes[at..at + 8].iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
        let key = bytes[16..].iter().fold(0, |number: u32, byte| number << 8 | u32::from(*byte));
        Self { addr: number(0), length: number(8), rkey: key }
    }
}

/// Writes the address and the key in hexadecimal, the length in decimal digits:
/// `0x7f0000001000:4096:0x1a2b`.
impl fmt::Display for RemoteMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}:{}:{:#x}", self.addr, self.length, self.rkey)
    }
}

/// Parses the text written by `Display`.
impl FromStr for RemoteMr {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parse = || {
            let (addr, rest) = text.split_once(':')?;
            let (length, rkey) = rest.split_once(':')?;
            let addr = u64::from_str_radix(digits(addr)?, 16).ok()?;
            let rkey = u32::from_str_radix(digits(rkey)?, 16).ok()?;
            let length = length.bytes().all(|c| c.is_ascii_digit()).then(|| length.parse().ok())??;
            Some(Self { addr, length, rkey })
        };
        parse().ok_or(ParseError::new("remote region", "an address, a length and a key (0x1000:4096:0x1a2b)"))
    }
}

/// Returns the digits of a hexadecimal number, without its prefix `0x`.
fn digits(text: &str) -> Option<&str> {
    let digits = text.strip_prefix("0x")?;
    digits.bytes().all(|c| c.is_ascii_hexdigit()).then_some(digits)
}

/// Implements serde's traits for a type through its text form.
#[cfg(feature = "serde")]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

#[cfg(feature = "serde")]
pub(crate) use serde_as_text;

#[cfg(feature = "serde")]
serde_as_text!(RemoteMr);

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteMr = RemoteMr { addr: 0x7f00_0000_1000, length: 4096, rkey: 0x1a2b };

    #[test]
    fn a_slice_lies_inside_and_starts_at_its_offset() {
        for (range, expected) in [
            (REMOTE.slice(..), Some((0, 4096))),
            (REMOTE.slice(64..128), Some((64, 64))),
            (REMOTE.slice(4096..), Some((4096, 0))),
            (REMOTE.slice(..=4095), Some((0, 4096))),
            (REMOTE.slice(4095..4097), None),
            (REMOTE.slice(4097..), None),
            (REMOTE.slice(..=usize::MAX), None),
            #[allow(clippy::reversed_empty_ranges)]
            (REMOTE.slice(8..4), None),
        ] {
            let found = range.map(|slice| (slice.addr - REMOTE.addr, slice.length)).ok();
            assert_eq!(found, expected);
        }
        let error = REMOTE.slice(4000..5000).unwrap_err();
        assert_eq!(error.to_string(), "slice: the range 4000..5000 lies outside of 4096 bytes (EINVAL)");
    }

    #[test]
    fn bytes_and_text_come_back_as_they_were_sent() {
        let bytes = REMOTE.to_bytes();
        assert_eq!(bytes, [0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x1a, 0x2b]);
        assert_eq!(RemoteMr::from_bytes(&bytes), REMOTE);
        assert_eq!(REMOTE.to_string(), "0x7f0000001000:4096:0x1a2b");
        assert_eq!(REMOTE.to_string().parse(), Ok(REMOTE));
        let most = RemoteMr { addr: u64::MAX, length: u64::MAX, rkey: u32::MAX };
        assert_eq!(most.to_string().parse(), Ok(most));
        for text in
            ["", "0x1:2", "1:2:3", "0x1:2:0x3:4", "0x1:+2:0x3", "0x+1:2:0x3", "0x1:2:0x100000000", "0x:2:0x3"]
        {
            assert!(text.parse::<RemoteMr>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn operations_name_the_memory() {
        let at = REMOTE.slice(8..16).unwrap();
        let (addr, key) = (0x7f00_0000_1008, 0x1a2b);
        assert!(
            matches!(at.read(), SendOp::RdmaRead { remote_addr, rkey } if (remote_addr, rkey) == (addr, key))
        );
        assert!(matches!(at.write(), SendOp::RdmaWrite { remote_addr, .. } if remote_addr == addr));
        assert!(
            matches!(at.write_with_imm(7), SendOp::RdmaWriteWithImm { remote_addr, imm_data: 7, .. } if remote_addr == addr)
        );
        assert!(
            matches!(at.fetch_add(3), SendOp::AtomicFetchAndAdd { remote_addr, add: 3, .. } if remote_addr == addr)
        );
        assert!(
            matches!(at.cmp_swap(1, 2), SendOp::AtomicCmpAndSwp { remote_addr, compare: 1, swap: 2, .. } if remote_addr == addr)
        );
    }
}
