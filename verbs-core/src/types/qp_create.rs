//! The attributes of a new queue pair that only some devices support.

use super::flags::bitflags;

bitflags! {
    /// Properties of a new queue pair.
    ///
    /// # References
    /// `ibv_create_qp_ex(3)`
    #[doc(alias = "ibv_qp_create_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct QpCreateFlags: u32 {
        /// The queue pair does not receive its own multicast packets.
        #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
        const BLOCK_SELF_MCAST_LB = 1 << 1;
        /// The device appends the frame check sequence to received frames (raw packets).
        #[doc(alias = "IBV_QP_CREATE_SCATTER_FCS")]
        const SCATTER_FCS = 1 << 8;
        /// The device removes the outer VLAN tag of received frames (raw packets).
        #[doc(alias = "IBV_QP_CREATE_CVLAN_STRIPPING")]
        const CVLAN_STRIPPING = 1 << 9;
        /// The device pads its writes to whole cache lines.
        #[doc(alias = "IBV_QP_CREATE_PCI_WRITE_END_PADDING")]
        const PCI_WRITE_END_PADDING = 1 << 11;

        const _ = !0;
    }
}

bitflags! {
    /// The operations that sends can request.
    ///
    /// # References
    /// `ibv_create_qp_ex(3)`
    #[doc(alias = "ibv_qp_create_send_ops_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct QpSendOps: u64 {
        /// Writes.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE")]
        const RDMA_WRITE = 1 << 0;
        /// Writes with immediate data.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM")]
        const RDMA_WRITE_WITH_IMM = 1 << 1;
        /// Sends.
        #[doc(alias = "IBV_QP_EX_WITH_SEND")]
        const SEND = 1 << 2;
        /// Sends with immediate data.
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_IMM")]
        const SEND_WITH_IMM = 1 << 3;
        /// Reads.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_READ")]
        const RDMA_READ = 1 << 4;
        /// Compare and swap.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP")]
        const ATOMIC_CMP_AND_SWP = 1 << 5;
        /// Fetch and add.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD")]
        const ATOMIC_FETCH_AND_ADD = 1 << 6;
        /// Invalidation of a local key.
        #[doc(alias = "IBV_QP_EX_WITH_LOCAL_INV")]
        const LOCAL_INV = 1 << 7;
        /// Binding of a memory window.
        #[doc(alias = "IBV_QP_EX_WITH_BIND_MW")]
        const BIND_MW = 1 << 8;
        /// Sends that invalidate one of the receiver's keys.
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_INV")]
        const SEND_WITH_INV = 1 << 9;
        /// Segmented sends.
        #[doc(alias = "IBV_QP_EX_WITH_TSO")]
        const TSO = 1 << 10;
        /// Flushes.
        #[doc(alias = "IBV_QP_EX_WITH_FLUSH")]
        const FLUSH = 1 << 11;
        /// Atomic writes.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_WRITE")]
        const ATOMIC_WRITE = 1 << 12;

        const _ = !0;
    }
}

/// The attributes of a new queue pair that only some devices support. The default requests none.
///
/// # References
/// `ibv_create_qp_ex(3)`
#[doc(alias = "ibv_qp_init_attr_ex")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCreateAttr {
    /// The properties of the queue pair.
    #[doc(alias = "IBV_QP_INIT_ATTR_CREATE_FLAGS")]
    pub create_flags: QpCreateFlags,
    /// The source queue pair number in sent packets, if it is not the queue pair's own number (UD).
    #[doc(alias = "IBV_QP_CREATE_SOURCE_QPN")]
    pub source_qpn: Option<u32>,
    /// The maximum header length of a segmented send, in bytes; 0 if the program posts none.
    #[doc(alias = "IBV_QP_INIT_ATTR_MAX_TSO_HEADER")]
    pub max_tso_header: u16,
    /// The operations that the program will post, so that send queue entries need no space for
    /// other operations; `None` for all operations. The device may reject an operation not listed.
    #[doc(alias = "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")]
    pub send_ops: Option<QpSendOps>,
}
