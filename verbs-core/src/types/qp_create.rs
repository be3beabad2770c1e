//! The attributes of a new queue pair that only some devices have.

use bitflags::bitflags;

bitflags! {
    /// Properties of a new queue pair.
    ///
    /// # References
    /// `ibv_create_qp_ex(3)`
    #[doc(alias = "ibv_qp_create_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpCreateFlags: u32 {
        /// The queue pair does not receive multicast packets that it sent itself.
        #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
        const BLOCK_SELF_MCAST_LB = 1 << 1;
        /// The device writes the frame check sequence behind received frames (raw packets).
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

/// The attributes of a new queue pair that only some devices have. The default asks for none.
///
/// # References
/// `ibv_create_qp_ex(3)`
#[doc(alias = "ibv_qp_init_attr_ex")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCreateAttr {
    /// The properties.
    #[doc(alias = "IBV_QP_INIT_ATTR_CREATE_FLAGS")]
    pub create_flags: QpCreateFlags,
    /// The queue pair number in the packets that it sends, instead of its own (UD).
    #[doc(alias = "IBV_QP_CREATE_SOURCE_QPN")]
    pub source_qpn: Option<u32>,
    /// The longest header of a segmented send, in bytes; 0 for none.
    #[doc(alias = "IBV_QP_INIT_ATTR_MAX_TSO_HEADER")]
    pub max_tso_header: u16,
}
