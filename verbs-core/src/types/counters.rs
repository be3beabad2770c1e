//! Counters for flow rules and for completions.

use super::flags::bitflags;
use super::open_enum;

open_enum! {
    /// The quantity that a flow rule counter counts.
    #[doc(alias = "ibv_counter_description")]
    pub enum CounterDescription(u32) {
        /// Packets.
        #[doc(alias = "IBV_COUNTER_PACKETS")]
        PACKETS = 0, "packets";
        /// Bytes.
        #[doc(alias = "IBV_COUNTER_BYTES")]
        BYTES = 1, "bytes";
    }
}

/// A flow rule counter: the quantity that it counts and its index in a counters object.
///
/// # References
/// `ibv_attach_counters_point_flow(3)`
#[doc(alias = "ibv_counter_attach_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterAttachAttr {
    /// The quantity to count.
    pub counter_desc: CounterDescription,
    /// The index of the counter's value among the values that a read returns.
    pub index: u32,
}

bitflags! {
    /// Options for reading counters.
    ///
    /// # References
    /// `ibv_read_counters(3)`
    #[doc(alias = "ibv_read_counters_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct ReadCountersFlags: u32 {
        /// Values cached by the driver are acceptable.
        #[doc(alias = "IBV_READ_COUNTERS_ATTR_PREFER_CACHED")]
        const PREFER_CACHED = 1;

        const _ = !0;
    }
}

open_enum! {
    /// The quantity that a completion counter counts.
    #[doc(alias = "ibv_comp_cntr_type")]
    pub enum CompCntrType(u32) {
        /// Work requests.
        #[doc(alias = "IBV_COMP_CNTR_TYPE_WRS")]
        WRS = 0, "work requests";
        /// Bytes.
        #[doc(alias = "IBV_COMP_CNTR_TYPE_BYTES")]
        BYTES = 1, "bytes";
    }
}

open_enum! {
    /// Selects one of the two values of a completion counter.
    pub enum CompCntrEntry(u8) {
        /// The number of successful completions.
        #[doc(alias = "IB_UVERBS_COMP_CNTR_ENTRY_COMP")]
        COMP = 0, "completions";
        /// The number of failed completions.
        #[doc(alias = "IB_UVERBS_COMP_CNTR_ENTRY_ERR")]
        ERR = 1, "errors";
    }
}

bitflags! {
    /// The queue pair operations that a completion counter counts.
    ///
    /// # References
    /// `ibv_qp_attach_comp_cntr(3)`
    #[doc(alias = "ibv_qp_attach_comp_cntr_op")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct CompCntrAttachOps: u32 {
        /// Sends.
        #[doc(alias = "IBV_QP_ATTACH_COMP_CNTR_OP_SEND")]
        const SEND = 1;
        /// Receives.
        #[doc(alias = "IBV_QP_ATTACH_COMP_CNTR_OP_RECV")]
        const RECV = 1 << 1;
        /// RDMA reads issued locally.
        #[doc(alias = "IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ")]
        const RDMA_READ = 1 << 2;
        /// RDMA reads issued by the peer.
        #[doc(alias = "IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ")]
        const REMOTE_RDMA_READ = 1 << 3;
        /// RDMA writes issued locally.
        #[doc(alias = "IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE")]
        const RDMA_WRITE = 1 << 4;
        /// RDMA writes issued by the peer.
        #[doc(alias = "IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE")]
        const REMOTE_RDMA_WRITE = 1 << 5;

        const _ = !0;
    }
}

/// A device's support for completion counters.
///
/// # References
/// `ibv_query_comp_cntr_caps(3)`
#[doc(alias = "ibv_comp_cntr_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompCntrCaps {
    /// The maximum value of a counter.
    pub max_value: u64,
    /// The maximum number of counters.
    pub max_counters: u32,
    /// The operations that counters can count.
    pub supported_qp_attach_ops: CompCntrAttachOps,
}
