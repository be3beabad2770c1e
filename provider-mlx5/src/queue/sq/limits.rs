//! [`Limits`]: the maximum lengths of requests on the fast path.

use verbs_core::checks::{PlainLimits, SendChecks};
use verbs_core::types::{OpKind, SendFlags};

use crate::wqe::{BLOCK, UNIT};

/// The maximum lengths of requests on the fast path in bytes, indexed by the flags of a request.
pub(super) type Lengths = [u32; CONTROL_FLAGS as usize + 1];

/// The flags of a request that affect its control segment or its maximum length.
pub(super) const CONTROL_FLAGS: u32 = 0xf;

/// The maximum lengths of requests on the fast path, per operation.
pub(super) struct Limits {
    pub(super) write: Lengths,
    pub(super) write_imm: Lengths,
    pub(super) send: Lengths,
    pub(super) send_imm: Lengths,
    pub(super) read: Lengths,
}

impl Limits {
    pub(super) fn new(checks: &SendChecks) -> Self {
        let limits = |op, units| {
            let PlainLimits { max_length, max_inline } = checks.plain_limits(op);
            let max_inline = max_inline.min(Self::room(units));
            let is_inline = |flags: usize| flags & SendFlags::INLINE.bits() as usize != 0;
            core::array::from_fn(|flags| if is_inline(flags) { max_inline } else { max_length })
        };
        Self {
            write: limits(OpKind::RDMA_WRITE, 2),
            write_imm: limits(OpKind::RDMA_WRITE_WITH_IMM, 2),
            send: limits(OpKind::SEND, 1),
            send_imm: limits(OpKind::SEND_WITH_IMM, 1),
            read: limits(OpKind::RDMA_READ, 2),
        }
    }

    /// Returns the maximum number of inline bytes after this many units if the data has to end in
    /// the first block.
    const fn room(units: usize) -> u32 {
        (BLOCK - units * UNIT - size_of::<u32>()) as u32
    }
}
