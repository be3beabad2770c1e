//! Memory windows: their kinds, keys and bound ranges.

use super::{AccessFlags, open_enum};

open_enum! {
    /// The kind of a memory window.
    ///
    /// # References
    /// `ibv_alloc_mw(3)`, IBTA volume 1, section 10.6.7.2
    #[doc(alias = "ibv_mw_type")]
    pub enum MwType(u8) {
        /// A window usable by every queue pair in the protection domain. A bind of any length
        /// replaces the previous bind. Like `ibv_bind_mw(3)`, this library posts a bind work
        /// request.
        #[doc(alias = "IBV_MW_TYPE_1")]
        TYPE_1 = 1, "type 1";
        /// A window usable only by the queue pair that posted the bind. It must be invalidated
        /// before it is bound again.
        #[doc(alias = "IBV_MW_TYPE_2")]
        TYPE_2 = 2, "type 2";
    }
}

/// The part of a region that a memory window covers, and the rights that peers get on it.
#[doc(alias = "ibv_mw_bind_info")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MwBindInfo {
    /// The region's local key. The region must have the right [`MW_BIND`](AccessFlags::MW_BIND).
    pub lkey: u32,
    /// The address of the first byte, in the region's address space.
    pub addr: u64,
    /// The number of bytes; 0 unbinds the window.
    pub length: u64,
    /// The rights granted to peers, a subset of [`WINDOW_RIGHTS`](AccessFlags::WINDOW_RIGHTS).
    pub mw_access_flags: AccessFlags,
}

/// Returns the next key of a memory window. The low 8 bits count up and wrap; the other bits do not
/// change.
///
/// A bind gives the window a new key, so peers with the old key lose access.
///
/// ```
/// # mod verbs { pub use verbs_core::types::*; }
/// use verbs::inc_rkey;
///
/// assert_eq!(inc_rkey(0x1234_5678), 0x1234_5679);
/// assert_eq!(inc_rkey(0x1234_56ff), 0x1234_5600);
/// ```
///
/// # References
/// `ibv_inc_rkey(3)`, `ibv_bind_mw(3)`
#[doc(alias = "ibv_inc_rkey")]
pub const fn inc_rkey(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}
