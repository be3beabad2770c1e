//! [`Compression`]: the open and the closed blocks of a completion queue.

use std::collections::VecDeque;

use crate::layout::cqe::{cqe, mini_cqe, tm_cqe};

/// Opcode of a completion for the requester.
pub(crate) const REQUESTER: u32 = 0;

/// Opcodes of completions for the responder.
pub(crate) const RESPONDER: std::ops::RangeInclusive<u32> = 1..=4;

/// The format of mini entries for receives: the field besides the byte count. A send's mini entry
/// instead contains the position and the opcode of the work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MiniFormat {
    /// The hash of the frame.
    Hash,
    /// The checksum of the frame.
    Checksum,
    /// The checksum and the stride index of the frame. The stride index is 0, because striding
    /// receive queues are not modelled.
    ChecksumStride,
}

/// The compression state of a completion queue.
#[derive(Debug)]
pub(crate) struct Compression {
    pub(crate) format: MiniFormat,
    /// The completions in the open block.
    pub(crate) open: Vec<[u8; 64]>,
    /// The slots of closed blocks that the driver has not returned yet: index of the first slot,
    /// number of slots.
    pub(crate) closed: VecDeque<(u32, u32)>,
}

impl Compression {
    /// Returns the number of completions in the open block.
    pub(crate) fn len(&self) -> u32 {
        self.open.len() as u32
    }

    /// Drops the closed blocks of a buffer that was replaced by a resize.
    pub(crate) fn replaced(&mut self) {
        self.closed.clear();
    }

    /// Returns whether this completion fits into the open block as its next one.
    pub(crate) fn follows(&self, entry: &[u8; 64]) -> bool {
        let (Some(first), Some(last)) = (self.open.first(), self.open.last()) else { return true };
        let position = |entry: &[u8; 64]| cqe::WQE_COUNTER.get32(entry) as u16;
        let is_next =
            cqe::OPCODE.get32(first) == REQUESTER || position(entry) == position(last).wrapping_add(1);
        is_next && shared(first) == shared(entry)
    }

    pub(crate) fn mini(&self, entry: &[u8; 64]) -> [u8; mini_cqe::SIZE] {
        let mut mini = [0; mini_cqe::SIZE];
        if cqe::OPCODE.get32(entry) == REQUESTER {
            mini_cqe::WQE_COUNTER.set(&mut mini, cqe::WQE_COUNTER.get32(entry));
            mini_cqe::S_WQE_OPCODE.set(&mut mini, cqe::WQE_OPCODE.get32(entry));
        } else {
            match self.format {
                MiniFormat::Hash => {
                    mini_cqe::RX_HASH_RESULT.set(&mut mini, cqe::RSS_HASH_RESULT.get32(entry));
                }
                MiniFormat::Checksum | MiniFormat::ChecksumStride => {
                    mini_cqe::CHECKSUM.set(&mut mini, cqe::CHECK_SUM.get32(entry));
                }
            }
        }
        mini_cqe::BYTE_CNT.set(&mut mini, cqe::BYTE_CNT.get32(entry));
        mini
    }
}

/// Returns whether a completion without payload may join a block: it must be successful and must
/// not be for tag matching.
pub(crate) fn is_success(entry: &[u8; 64]) -> bool {
    let opcode = cqe::OPCODE.get32(entry);
    // A mini entry has no space for tag matching fields.
    let is_of_tag_matching = tm_cqe::APP.get32(entry) != 0;
    !is_of_tag_matching && (opcode == REQUESTER || RESPONDER.contains(&opcode))
}

/// Returns a completion with zeros in the fields in which completions of a block may differ. The
/// timestamp is one of these fields: the title's applies to the whole block.
pub(crate) fn shared(entry: &[u8; 64]) -> [u8; 64] {
    let mut rest = *entry;
    for field in [cqe::BYTE_CNT, cqe::WQE_COUNTER, cqe::RSS_HASH_RESULT, cqe::CHECK_SUM, cqe::OWNER] {
        field.set(&mut rest, 0u32);
    }
    cqe::TIMESTAMP.set(&mut rest, 0u64);
    if cqe::OPCODE.get32(entry) == REQUESTER {
        cqe::WQE_OPCODE.set(&mut rest, 0u32);
    }
    rest
}
