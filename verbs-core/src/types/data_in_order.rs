//! [`DataInOrder`]: the order of a message's bytes in memory.

use super::flags::bitflags;

bitflags! {
    /// The order of an incoming message's bytes as they appear in memory. Without any flag, only
    /// the message's completion shows that its bytes have arrived.
    ///
    /// # References
    /// `ibv_query_qp_data_in_order(3)`
    #[doc(alias = "ibv_query_qp_data_in_order_caps")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct DataInOrder: u32 {
        /// All bytes appear in address order.
        #[doc(alias = "IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG")]
        const WHOLE_MSG = 1;
        /// The bytes of each aligned 128-byte block appear in address order.
        #[doc(alias = "IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES")]
        const ALIGNED_128_BYTES = 1 << 1;
    }
}
