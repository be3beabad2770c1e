//! The attributes of shared receive queues.

use super::flags::bitflags;
use super::open_enum;

open_enum! {
    /// The kind of a shared receive queue.
    #[doc(alias = "ibv_srq_type")]
    pub enum SrqType(u32) {
        /// A queue for the queue pairs created with it.
        #[doc(alias = "IBV_SRQT_BASIC")]
        BASIC = 0, "BASIC";
        /// A queue for the XRC targets in its domain. Initiators name the queue in each request.
        #[doc(alias = "IBV_SRQT_XRC")]
        XRC = 1, "XRC";
        /// A queue with tag matching.
        #[doc(alias = "IBV_SRQT_TM")]
        TM = 2, "TM";
    }
}

/// The provider-independent attributes of a new shared receive queue, apart from its parent
/// objects.
///
/// # References
/// `ibv_create_srq_ex(3)`
#[doc(alias = "ibv_srq_init_attr")]
#[doc(alias = "ibv_srq_init_attr_ex")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInitAttr {
    /// The kind of queue.
    pub srq_type: SrqType,
    /// The minimum number of outstanding receives; the device may round up.
    pub max_wr: u32,
    /// The minimum number of scatter/gather elements per receive.
    pub max_sge: u32,
    /// The number of outstanding receives below which
    /// [`SRQ_LIMIT_REACHED`](super::AsyncEventType::SRQ_LIMIT_REACHED) is raised; 0 for no limit.
    pub srq_limit: u32,
    /// The tag matching capacity; zero for other kinds of queue.
    pub tm: TmCap,
    /// The id reported in this queue's events: slot + generation, never a pointer. The top bit is
    /// clear, because a provider sets it for the events of a tag list's queue pair
    /// ([`TAG_LIST`](crate::provider::TAG_LIST)).
    pub user_handle: u64,
}

/// The tag matching capacity of a shared receive queue.
#[doc(alias = "ibv_tm_cap")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TmCap {
    /// The maximum number of tags in the list.
    pub max_num_tags: u32,
    /// The maximum number of outstanding operations on the list.
    pub max_ops: u32,
}

/// The attributes of a shared receive queue that can be queried or changed.
///
/// # References
/// `ibv_modify_srq(3)`, `ibv_query_srq(3)`
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// The maximum number of outstanding receives.
    pub max_wr: u32,
    /// The maximum number of scatter/gather elements per receive. It cannot be changed.
    pub max_sge: u32,
    /// The number of outstanding receives below which
    /// [`SRQ_LIMIT_REACHED`](super::AsyncEventType::SRQ_LIMIT_REACHED) is raised once; 0 for no
    /// limit.
    pub srq_limit: u32,
}

bitflags! {
    /// The valid members of [`SrqAttr`].
    #[doc(alias = "ibv_srq_attr_mask")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct SrqAttrMask: u32 {
        /// `IBV_SRQ_MAX_WR`.
        #[doc(alias = "IBV_SRQ_MAX_WR")]
        const MAX_WR = 1;
        /// `IBV_SRQ_LIMIT`.
        #[doc(alias = "IBV_SRQ_LIMIT")]
        const LIMIT = 1 << 1;

        const _ = !0;
    }
}
