//! [`CqInitAttr`]: the attributes of a new completion queue.

use std::os::fd::BorrowedFd;

/// The attributes of a new completion queue.
///
/// # References
/// `ibv_create_cq(3)`
#[doc(alias = "ibv_cq_init_attr_ex")]
#[derive(Clone, Copy, Debug)]
pub struct CqInitAttr<'a> {
    /// At least this many completions fit; the device may round up.
    pub cqe: u32,
    /// The completion channel that events go to, by its file descriptor.
    pub channel: Option<BorrowedFd<'a>>,
    /// Which completion vector (interrupt) signals events, below
    /// [`num_comp_vectors`](crate::provider::DeviceOps::num_comp_vectors).
    pub comp_vector: u32,
    /// The number that events of this queue carry: a slot + generation id, never a pointer.
    pub user_handle: u64,
}
