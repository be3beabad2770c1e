//! Operations on keys: user-mode memory registration (UMR) requests that bind or invalidate a
//! memory window.
//!
//! ```text
//!   control │ UMR control, 48 bytes │ key context, 64 bytes │ list, 64 bytes: of a bind alone
//! ```
//!
//! The mask of the UMR control segment selects which fields of the key context to apply.
//!
//! # References
//! rdma-core `providers/mlx5/qp.c` (`set_bind_wr`); Linux `include/linux/mlx5/device.h`
//! (`mlx5_wqe_umr_ctrl_seg`), `include/linux/mlx5/mlx5_ifc.h` (`mkc_bits`)

use verbs_core::types::{AccessFlags, MwBindInfo, MwType, PostReason};

use crate::wqe::{Words, pair};

/// The maximum number of bytes a bind covers: the device uses only 31 of the 32 bits in the length
/// of the list's element.
const MAX_LENGTH: u64 = 1 << 31;

/// The bits of `flags` in the UMR control segment.
mod flag {
    pub(super) const CHECK_QPN: u32 = 1 << 3;
    pub(super) const TRANSLATION_OFFSET: u32 = 1 << 4;
    pub(super) const CHECK_FREE: u32 = 1 << 5;
    pub(super) const INLINE: u32 = 1 << 7;
}

/// The bits of `mkey_mask` in the UMR control segment.
mod mask {
    pub(super) const LEN: u64 = 1 << 0;
    pub(super) const START_ADDR: u64 = 1 << 6;
    pub(super) const MKEY: u64 = 1 << 13;
    pub(super) const QPN: u64 = 1 << 14;
    pub(super) const LOCAL_WRITE: u64 = 1 << 18;
    pub(super) const REMOTE_READ: u64 = 1 << 19;
    pub(super) const REMOTE_WRITE: u64 = 1 << 20;
    pub(super) const ATOMIC: u64 = 1 << 21;
    pub(super) const FREE: u64 = 1 << 29;
    /// The fields a bind sets, besides the key itself.
    pub(super) const BIND: u64 = LEN | START_ADDR | LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | ATOMIC;
}

/// The bit `free` of the key context.
const FREE: u32 = 1 << 6;

/// The queue pair number in a key that belongs to no queue pair.
const NO_QPN: u32 = 0xff_ffff;

/// The number of units in a bind's list: one element of 16 bytes, padded to 64.
const LIST_OCTOWORDS: u32 = 4;

/// The number of units in the longest request that changes a key.
pub(super) const UNITS: u32 = 1 + SEGMENTS as u32;

/// The number of units after the control segment in the longest request that changes a key.
pub(super) const SEGMENTS: usize = 11;

/// The binding of an invalidated window: no memory.
const NOTHING: MwBindInfo = MwBindInfo { lkey: 0, addr: 0, length: 0, mw_access_flags: AccessFlags::empty() };

/// A change to a window's key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    pub(super) mw_type: MwType,
    /// The new low 8 bits of the key.
    pub(super) new_rkey: u32,
    /// The part of a region to bind the window to; an empty part binds the window to nothing.
    pub(super) bind: &'a MwBindInfo,
    /// The number of the queue pair that posts the request.
    pub(super) qp_num: u32,
}

impl<'a> Change<'a> {
    /// Returns the change that invalidates a type 2 window.
    pub(super) const fn invalidation(qp_num: u32) -> Self {
        Self { mw_type: MwType::TYPE_2, new_rkey: 0, bind: &NOTHING, qp_num }
    }

    /// Builds the segments that follow the control segment: 11 units for a bind, otherwise 7.
    ///
    /// # Errors
    /// [`PostReason::MessageTooLong`] for a bind longer than the device supports.
    pub(super) fn segments<'s>(&self, room: &'s mut [Words; SEGMENTS]) -> Result<&'s [Words], PostReason> {
        if self.bind.length > MAX_LENGTH {
            return Err(PostReason::MessageTooLong { given: self.bind.length });
        }
        let units = self.words(room);
        Ok(&room[..units])
    }

    /// Builds the segments in `words` and returns the number of units.
    fn words(&self, words: &mut [Words; SEGMENTS]) -> usize {
        let Self { mw_type, new_rkey, bind, qp_num } = *self;
        let is_bind = bind.length > 0;
        let is_type_2 = mw_type == MwType::TYPE_2;
        let mut flags = flag::TRANSLATION_OFFSET | flag::INLINE;
        if is_type_2 {
            flags |= if is_bind { flag::CHECK_FREE } else { flag::CHECK_QPN };
        }
        let octowords = if is_bind { LIST_OCTOWORDS } else { 0 };
        let mut mask = mask::FREE | mask::MKEY;
        mask |= if is_type_2 { mask::QPN } else { 0 };
        mask |= if is_bind { mask::BIND } else { 0 };
        // UMR control: flags, 3 reserved bytes, octowords, translation offset; the mask; reserved.
        words[0] = [pair(flags << 24, octowords << 16), mask];
        // Key context: free, reserved, rights, SF; queue pair number and variant; reserved; start;
        // length.
        let owner = if is_bind && is_type_2 { qp_num } else { NO_QPN };
        let qpn_mkey = (owner << 8) | (new_rkey & 0xff);
        let head = if is_bind { rights(bind.mw_access_flags) << 8 } else { FREE << 24 };
        words[3] = [pair(head, qpn_mkey), 0];
        if !is_bind {
            return 7;
        }
        let is_zero_based = bind.mw_access_flags.contains(AccessFlags::ZERO_BASED);
        words[4] = [if is_zero_based { 0 } else { bind.addr }, bind.length];
        words[7] = [pair(bind.length as u32, bind.lkey), bind.addr];
        SEGMENTS
    }
}

/// Returns access rights in the encoding of the key context.
fn rights(access: AccessFlags) -> u32 {
    [
        (AccessFlags::LOCAL_WRITE, 1 << 3),
        (AccessFlags::REMOTE_READ, 1 << 4),
        (AccessFlags::REMOTE_WRITE, 1 << 5),
        (AccessFlags::REMOTE_ATOMIC, 1 << 6),
    ]
    .into_iter()
    .map(|(right, bit)| if access.contains(right) { bit } else { 0 })
    .sum()
}
