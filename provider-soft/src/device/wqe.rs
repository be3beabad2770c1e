//! Work requests on their way from the posting thread to the engine: plain values in a ring, each
//! with a list of scatter/gather elements.
//!
//! Inline data is also stored in the list, 16 bytes in each element.

use roce::engine::{Payload, SendFlags, SendOp, Sge};

/// A posted send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    /// The number of the peer's shared receive queue (XRC).
    pub(crate) remote_srq: u32,
    pub(crate) data: Data,
}

/// The contents of a send's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Scatter/gather elements, and their number.
    Sges(u32),
    /// Inline data, and the data's length in bytes.
    Inline(u32),
}

/// A posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) num_sge: u32,
}

impl RecvWqe {
    /// Returns the number of list elements in use.
    #[inline]
    pub(crate) fn list_len(&self) -> usize {
        self.num_sge as usize
    }
}

impl SendWqe {
    /// Returns the number of list elements in use.
    #[inline]
    pub(crate) fn list_len(&self) -> usize {
        match self.data {
            Data::Sges(count) => count as usize,
            Data::Inline(bytes) => inline_len(bytes),
        }
    }

    /// Returns the payload of a send with this list. Inline data is copied to `bytes`.
    #[inline]
    pub(crate) fn payload<'a>(&self, list: &'a [Sge], bytes: &'a mut [u8]) -> Payload<'a> {
        match self.data {
            Data::Sges(_) => Payload::Sges(list),
            Data::Inline(len) => {
                for (chunk, sge) in bytes.chunks_exact_mut(BYTES).zip(list) {
                    chunk.copy_from_slice(&unpack(sge));
                }
                Payload::Inline(&bytes[..(len as usize).min(bytes.len())])
            }
        }
    }
}

/// Returns the number of list elements needed for `bytes` inline bytes.
#[inline]
pub(crate) const fn inline_len(bytes: u32) -> usize {
    (bytes as usize).div_ceil(BYTES)
}

/// Returns the number of inline bytes that fit into this many elements.
pub(crate) const fn element_bytes(elements: u32) -> u32 {
    elements.saturating_mul(BYTES as u32)
}

/// Stores 16 inline bytes in an element.
#[inline]
pub(crate) fn pack(bytes: [u8; BYTES]) -> Sge {
    let (addr, rest) = bytes.split_at(8);
    let (length, lkey) = rest.split_at(4);
    Sge {
        addr: u64::from_ne_bytes(addr.try_into().unwrap_or_default()),
        length: u32::from_ne_bytes(length.try_into().unwrap_or_default()),
        lkey: u32::from_ne_bytes(lkey.try_into().unwrap_or_default()),
    }
}

#[inline]
fn unpack(sge: &Sge) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&sge.addr.to_ne_bytes());
    bytes[8..12].copy_from_slice(&sge.length.to_ne_bytes());
    bytes[12..].copy_from_slice(&sge.lkey.to_ne_bytes());
    bytes
}

/// The number of inline bytes that fit into an element.
pub(crate) const BYTES: usize = 16;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn inline_bytes_come_out_as_they_went_in() {
        let bytes: Vec<u8> = (0..40).collect();
        let list: Vec<Sge> = bytes
            .chunks(BYTES)
            .map(|chunk| {
                let mut whole = [0xff; BYTES];
                whole[..chunk.len()].copy_from_slice(chunk);
                pack(whole)
            })
            .collect();
        assert_eq!(list.len(), inline_len(40));
        let op = SendOp::Send { imm: None };
        let wqe =
            SendWqe { wr_id: 1, op, flags: SendFlags::default(), remote_srq: 0, data: Data::Inline(40) };
        let mut room = [0; 64];
        let Payload::Inline(data) = wqe.payload(&list, &mut room) else { panic!("not inline") };
        assert_eq!(data, bytes);
    }
}
