//! [`Compression`]: the open and the closed blocks of a completion queue.

use std::collections::VecDeque;

use crate::layout::cqe::{cqe, mini_cqe, tm_cqe};

/// Opcode of a requester completion.
pub(crate) const REQUESTER: u32 = 0;

/// Opcodes of responder completions.
pub(crate) const RESPONDER: std::ops::RangeInclusive<u32> = 1..=4;

/// The contents of a receive's mini entry besides the byte count. A send's mini entry contains the
/// position and the opcode of the work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MiniFormat {
    /// Hash of the frame.
    Hash,
    /// Checksum of the frame.
    Checksum,
    /// Checksum and stride of the frame. The stride is 0, because striding receive queues are not
    /// modelled.
    ChecksumStride,
}

/// The compression state of a completion queue.
#[derive(Debug)]
pub(crate) struct Compression {
    pub(crate) format: MiniFormat,
    /// The completions in the open block.
    pub(crate) open: Vec<[u8; 64]>,
    /// Slots of closed blocks the driver has not returned yet: first index and number.
    pub(crate) closed: VecDeque<(u32, u32)>,
}

impl Compression {
    /// Returns the number of completions in the open block.
    pub(crate) fn len(&self) -> u32 {
        self.open.len() as u32
    }

    /// Forgets the slots of a buffer that was replaced.
    pub(crate) fn replaced(&mut self) {
        self.closed.clear();
    }

    /// Returns whether the open block accepts this completion as its next one.
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

/// Returns whether a completion without payload may be part of a block, which requires success.
pub(crate) fn is_success(entry: &[u8; 64]) -> bool {
    let opcode = cqe::OPCODE.get32(entry);
    // A mini entry has no space for the tag matching fields.
    let is_of_tag_matching = tm_cqe::APP.get32(entry) != 0;
    !is_of_tag_matching && (opcode == REQUESTER || RESPONDER.contains(&opcode))
}

/// Returns the fields that all completions in a block share. The title's time applies to all of
/// them.
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
