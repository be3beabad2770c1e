//! Tag matching: operations on the tag list of a shared receive queue and message headers.

use super::flags::bitflags;
use super::{Sge, open_enum};

bitflags! {
    /// Options for an operation on a tag list.
    ///
    /// # References
    /// `ibv_post_srq_ops(3)`
    #[doc(alias = "ibv_ops_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct OpsFlags: u32 {
        /// The operation generates a completion.
        #[doc(alias = "IBV_OPS_SIGNALED")]
        const SIGNALED = 1;
        /// The operation reports to the device how many unexpected messages the program has seen.
        #[doc(alias = "IBV_OPS_TM_SYNC")]
        const TM_SYNC = 1 << 1;

        const _ = !0;
    }
}

/// An operation on the tag list of a shared receive queue.
///
/// # References
/// `ibv_post_srq_ops(3)`
#[doc(alias = "ibv_ops_wr_opcode")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TmOp<'a> {
    /// Adds a tag. A message with a matching tag is written to the memory in `sge`.
    #[doc(alias = "IBV_WR_TAG_ADD")]
    Add {
        /// The `wr_id` in the completion of the matching message.
        recv_wr_id: u64,
        /// The memory for the matching message.
        sge: &'a [Sge],
        /// The tag of matching messages.
        tag: u64,
        /// The significant bits of the tag.
        mask: u64,
        /// The handle of the tag, set by the call that posts the operation.
        handle: u32,
    },
    /// Removes the tag with this handle, which [`Add`](Self::Add) stored.
    #[doc(alias = "IBV_WR_TAG_DEL")]
    Del {
        /// The handle of the tag.
        handle: u32,
    },
    /// Reports to the device how many unexpected messages the program has seen.
    #[doc(alias = "IBV_WR_TAG_SYNC")]
    Sync,
}

/// A request to change the tag list of a shared receive queue.
///
/// # References
/// `ibv_post_srq_ops(3)`
#[doc(alias = "ibv_ops_wr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpsWr<'a> {
    /// The `wr_id` in the operation's completion, if it generates one.
    pub wr_id: u64,
    /// The operation.
    pub op: TmOp<'a>,
    /// The options of the operation.
    pub flags: OpsFlags,
    /// The number of unexpected messages seen by the program; used with
    /// [`TM_SYNC`](OpsFlags::TM_SYNC).
    pub unexpected_cnt: u32,
}

open_enum! {
    /// The kind of a tag-matching message.
    #[doc(alias = "ibv_tmh_op")]
    pub enum TmhOp(u8) {
        /// The message has no tag and is delivered to the queue's ordinary receives.
        #[doc(alias = "IBV_TMH_NO_TAG")]
        NO_TAG = 0, "no tag";
        /// A rendezvous: the receiver reads the payload.
        #[doc(alias = "IBV_TMH_RNDV")]
        RNDV = 1, "rendezvous";
        /// The end of a rendezvous.
        #[doc(alias = "IBV_TMH_FIN")]
        FIN = 2, "fin";
        /// The payload follows.
        #[doc(alias = "IBV_TMH_EAGER")]
        EAGER = 3, "eager";
    }
}

/// The header in front of a tag-matching message.
///
/// ```
/// # mod verbs { pub use verbs_core::types::*; }
/// use verbs::{Tmh, TmhOp};
/// let header = Tmh { opcode: TmhOp::EAGER, app_ctx: 7, tag: 0x0102 };
/// assert_eq!(header.to_bytes()[..8], [3, 0, 0, 0, 0, 0, 0, 7]);
/// assert_eq!(Tmh::from_bytes(&header.to_bytes()), header);
/// ```
#[doc(alias = "ibv_tmh")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tmh {
    /// The kind of the message.
    pub opcode: TmhOp,
    /// A value from the sender, which the device does not interpret.
    pub app_ctx: u32,
    /// The tag of the message.
    pub tag: u64,
}

impl Tmh {
    /// The length of the header, in bytes.
    pub const LEN: usize = 16;

    /// Returns the header in wire format.
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let ([a, b, c, d], [e, f, g, h, i, j, k, l]) = (self.app_ctx.to_be_bytes(), self.tag.to_be_bytes());
        [self.opcode.0, 0, 0, 0, a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// Parses the header from its wire format; reserved bytes are ignored.
    pub const fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [opcode, _, _, _, a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
        Self {
            opcode: TmhOp(opcode),
            app_ctx: u32::from_be_bytes([a, b, c, d]),
            tag: u64::from_be_bytes([e, f, g, h, i, j, k, l]),
        }
    }
}

/// The rendezvous header, after the [`Tmh`]: names the memory that the receiver must read.
#[doc(alias = "ibv_rvh")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rvh {
    /// The address of the memory.
    pub va: u64,
    /// The remote key of the memory.
    pub rkey: u32,
    /// The length of the memory, in bytes.
    pub len: u32,
}

impl Rvh {
    /// The length of the header, in bytes.
    pub const LEN: usize = 16;

    /// Returns the header in wire format.
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [a, b, c, d, e, f, g, h] = self.va.to_be_bytes();
        let ([i, j, k, l], [m, n, o, p]) = (self.rkey.to_be_bytes(), self.len.to_be_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    /// Parses the header from its wire format.
    pub const fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Self {
            va: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes([i, j, k, l]),
            len: u32::from_be_bytes([m, n, o, p]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_header_is_big_endian_behind_its_opcode() {
        let header = Tmh { opcode: TmhOp::RNDV, app_ctx: 0x0102_0304, tag: 0x1112_1314_1516_1718 };
        let bytes = [1, 0, 0, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(Tmh::from_bytes(&bytes), header);
    }

    #[test]
    fn a_rendezvous_header_is_big_endian() {
        let header = Rvh { va: 0x0102_0304_0506_0708, rkey: 0x1112_1314, len: 0x2122_2324 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(Rvh::from_bytes(&bytes), header);
    }
}
