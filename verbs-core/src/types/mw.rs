//! Memory windows: their kinds, and what they are bound to.

use super::{AccessFlags, open_enum};

open_enum! {
    /// The kind of a memory window.
    ///
    /// # References
    /// `ibv_alloc_mw(3)`, IBTA volume 1, section 10.6.7.2
    #[doc(alias = "ibv_mw_type")]
    pub enum MwType(u8) {
        /// Bound by a verb, for every queue pair of the protection domain.
        #[doc(alias = "IBV_MW_TYPE_1")]
        TYPE_1 = 1, "type 1";
        /// Bound by a work request, for the queue pair of that request.
        #[doc(alias = "IBV_MW_TYPE_2")]
        TYPE_2 = 2, "type 2";
    }
}

/// The part of a region that a memory window is bound to, and the rights of peers on it.
#[doc(alias = "ibv_mw_bind_info")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MwBindInfo {
    /// The region's local key. The region has [`MW_BIND`](AccessFlags::MW_BIND).
    pub lkey: u32,
    /// The first byte, in the region's address space.
    pub addr: u64,
    /// The number of bytes; 0 binds the window to nothing.
    pub length: u64,
    /// The rights of peers.
    pub mw_access_flags: AccessFlags,
}
