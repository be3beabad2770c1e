//! The attributes of work queues and of RSS tables.

use core::fmt;

use super::flags::bitflags;
use super::open_enum;

open_enum! {
    /// The kind of a work queue.
    #[doc(alias = "ibv_wq_type")]
    pub enum WqType(u32) {
        /// A queue of receives.
        #[doc(alias = "IBV_WQT_RQ")]
        RQ = 0, "RQ";
    }
}

open_enum! {
    /// The state of a work queue.
    ///
    /// # References
    /// `ibv_modify_wq(3)`
    #[doc(alias = "ibv_wq_state")]
    pub enum WqState(u32) {
        /// New, or reset: the queue receives nothing.
        #[doc(alias = "IBV_WQS_RESET")]
        RESET = 0, "RESET";
        /// Ready to receive.
        #[doc(alias = "IBV_WQS_RDY")]
        RDY = 1, "RDY";
        /// In error: all posted receives are flushed.
        #[doc(alias = "IBV_WQS_ERR")]
        ERR = 2, "ERR";
        /// A state unknown to the library.
        #[doc(alias = "IBV_WQS_UNKNOWN")]
        UNKNOWN = 3, "UNKNOWN";
    }
}

bitflags! {
    /// The properties of a work queue.
    ///
    /// # References
    /// `ibv_create_wq(3)`
    #[doc(alias = "ibv_wq_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct WqFlags: u32 {
        /// The device removes the outer VLAN tag of received frames.
        #[doc(alias = "IBV_WQ_FLAGS_CVLAN_STRIPPING")]
        const CVLAN_STRIPPING = 1;
        /// The device appends the frame check sequence to received frames.
        #[doc(alias = "IBV_WQ_FLAGS_SCATTER_FCS")]
        const SCATTER_FCS = 1 << 1;
        /// A packet without a posted receive waits for some time instead of being dropped at once.
        #[doc(alias = "IBV_WQ_FLAGS_DELAY_DROP")]
        const DELAY_DROP = 1 << 2;
        /// The device pads its writes to whole cache lines.
        #[doc(alias = "IBV_WQ_FLAGS_PCI_WRITE_END_PADDING")]
        const PCI_WRITE_END_PADDING = 1 << 3;

        const _ = !0;
    }
}

/// The provider-independent attributes of a new work queue, apart from its parent objects.
///
/// # References
/// `ibv_create_wq(3)`
#[doc(alias = "ibv_wq_init_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqInitAttr {
    /// The kind of the queue.
    pub wq_type: WqType,
    /// The minimum number of outstanding receives; the device may round up.
    pub max_wr: u32,
    /// The minimum number of scatter/gather elements per receive.
    pub max_sge: u32,
    /// The properties of the queue.
    pub create_flags: WqFlags,
    /// The id reported in this queue's events: slot + generation, never a pointer.
    pub user_handle: u64,
}

/// The changes to make to a work queue; `None` leaves a property unchanged.
///
/// # References
/// `ibv_modify_wq(3)`
#[doc(alias = "ibv_wq_attr")]
#[doc(alias = "ibv_wq_attr_mask")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WqAttr {
    /// The state to move the queue to.
    #[doc(alias = "IBV_WQ_ATTR_STATE")]
    pub wq_state: Option<WqState>,
    /// The assumed current state; the kernel rejects the change if it differs.
    #[doc(alias = "IBV_WQ_ATTR_CURR_STATE")]
    pub curr_wq_state: Option<WqState>,
    /// The new property values and the mask of changed properties.
    #[doc(alias = "IBV_WQ_ATTR_FLAGS")]
    pub flags: Option<WqFlagsChange>,
}

/// New values for some properties of a work queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WqFlagsChange {
    /// The new values of the properties.
    pub flags: WqFlags,
    /// The mask of the properties to change.
    pub mask: WqFlags,
}

bitflags! {
    /// The hash functions that spread received packets over a table of work queues.
    ///
    /// # References
    /// `ibv_create_qp_ex(3)`, `ibv_query_device_ex(3)`
    #[doc(alias = "ibv_rx_hash_function_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFunction: u8 {
        /// The Toeplitz function.
        #[doc(alias = "IBV_RX_HASH_FUNC_TOEPLITZ")]
        const TOEPLITZ = 1;

        const _ = !0;
    }
}

bitflags! {
    /// The packet fields that the hash covers.
    ///
    /// # References
    /// `ibv_create_qp_ex(3)`
    #[doc(alias = "ibv_rx_hash_fields")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFields: u64 {
        /// The IPv4 source address.
        #[doc(alias = "IBV_RX_HASH_SRC_IPV4")]
        const SRC_IPV4 = 1;
        /// The IPv4 destination address.
        #[doc(alias = "IBV_RX_HASH_DST_IPV4")]
        const DST_IPV4 = 1 << 1;
        /// The IPv6 source address.
        #[doc(alias = "IBV_RX_HASH_SRC_IPV6")]
        const SRC_IPV6 = 1 << 2;
        /// The IPv6 destination address.
        #[doc(alias = "IBV_RX_HASH_DST_IPV6")]
        const DST_IPV6 = 1 << 3;
        /// The TCP source port.
        #[doc(alias = "IBV_RX_HASH_SRC_PORT_TCP")]
        const SRC_PORT_TCP = 1 << 4;
        /// The TCP destination port.
        #[doc(alias = "IBV_RX_HASH_DST_PORT_TCP")]
        const DST_PORT_TCP = 1 << 5;
        /// The UDP source port.
        #[doc(alias = "IBV_RX_HASH_SRC_PORT_UDP")]
        const SRC_PORT_UDP = 1 << 6;
        /// The UDP destination port.
        #[doc(alias = "IBV_RX_HASH_DST_PORT_UDP")]
        const DST_PORT_UDP = 1 << 7;
        /// The ESP security parameters index.
        #[doc(alias = "IBV_RX_HASH_IPSEC_SPI")]
        const IPSEC_SPI = 1 << 8;
        /// The fields belong to the packet inside a tunnel instead of the outer packet.
        #[doc(alias = "IBV_RX_HASH_INNER")]
        const INNER = 1 << 31;

        const _ = !0;
    }
}

/// The hash that selects an entry in a table of work queues for each received packet.
///
/// # References
/// `ibv_create_qp_ex(3)`
#[doc(alias = "ibv_rx_hash_conf")]
#[derive(Clone, PartialEq, Eq)]
pub struct RxHashConf {
    /// The hash function, which must be listed in [`RssCaps`](super::RssCaps).
    pub rx_hash_function: RxHashFunction,
    /// The hash key; 40 bytes for [`TOEPLITZ`](RxHashFunction::TOEPLITZ).
    pub rx_hash_key: Box<[u8]>,
    /// The fields that the hash covers; if empty, the table's first queue receives everything.
    pub rx_hash_fields_mask: RxHashFields,
}

/// Writes everything except the key: with the key, a peer could direct all its packets to one
/// queue.
impl fmt::Debug for RxHashConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxHashConf")
            .field("rx_hash_function", &self.rx_hash_function)
            .field("rx_hash_key", &format_args!("{} bytes", self.rx_hash_key.len()))
            .field("rx_hash_fields_mask", &self.rx_hash_fields_mask)
            .finish()
    }
}
