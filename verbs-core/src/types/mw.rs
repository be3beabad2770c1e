//! [`MwType`]: the kinds of memory windows.

use super::open_enum;

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
