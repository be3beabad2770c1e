//! Queue pair attributes: for creation, modification and queries.

use super::flags::bitflags;
use super::{AccessFlags, AhAttr, Mtu, open_enum};

open_enum! {
    /// The transport service of a queue pair.
    #[doc(alias = "ibv_qp_type")]
    pub enum QpType(u8) {
        /// Reliable connection.
        #[doc(alias = "IBV_QPT_RC")]
        RC = 2, "RC";
        /// Unreliable connection.
        #[doc(alias = "IBV_QPT_UC")]
        UC = 3, "UC";
        /// Unreliable datagram.
        #[doc(alias = "IBV_QPT_UD")]
        UD = 4, "UD";
        /// Raw Ethernet frames.
        #[doc(alias = "IBV_QPT_RAW_PACKET")]
        RAW_PACKET = 8, "RAW_PACKET";
        /// The initiator of an extended reliable connection.
        #[doc(alias = "IBV_QPT_XRC_SEND")]
        XRC_SEND = 9, "XRC_SEND";
        /// The target of an extended reliable connection.
        #[doc(alias = "IBV_QPT_XRC_RECV")]
        XRC_RECV = 10, "XRC_RECV";
        /// A queue pair type that the provider defines.
        #[doc(alias = "IBV_QPT_DRIVER")]
        DRIVER = 0xff, "DRIVER";
    }
}

open_enum! {
    /// The state of a queue pair.
    ///
    /// # References
    /// `ibv_modify_qp(3)`, IBTA volume 1, section 10.3.1
    #[doc(alias = "ibv_qp_state")]
    pub enum QpState(u8) {
        /// New, or reset: nothing may be posted.
        #[doc(alias = "IBV_QPS_RESET")]
        RESET = 0, "RESET";
        /// Receives may be posted.
        #[doc(alias = "IBV_QPS_INIT")]
        INIT = 1, "INIT";
        /// Ready to receive.
        #[doc(alias = "IBV_QPS_RTR")]
        RTR = 2, "RTR";
        /// Ready to send.
        #[doc(alias = "IBV_QPS_RTS")]
        RTS = 3, "RTS";
        /// The send queue is draining.
        #[doc(alias = "IBV_QPS_SQD")]
        SQD = 4, "SQD";
        /// The send queue is in error; the receive queue works (UC, UD).
        #[doc(alias = "IBV_QPS_SQE")]
        SQE = 5, "SQE";
        /// In error: all posted work requests are flushed.
        #[doc(alias = "IBV_QPS_ERR")]
        ERR = 6, "ERR";
        /// A state unknown to the library.
        #[doc(alias = "IBV_QPS_UNKNOWN")]
        UNKNOWN = 7, "UNKNOWN";
    }
}

open_enum! {
    /// The state of automatic path migration.
    #[doc(alias = "ibv_mig_state")]
    pub enum MigState(u8) {
        /// The queue pair uses the alternate path.
        #[doc(alias = "IBV_MIG_MIGRATED")]
        MIGRATED = 0, "MIGRATED";
        /// The program has requested that migration be armed again.
        #[doc(alias = "IBV_MIG_REARM")]
        REARM = 1, "REARM";
        /// Migration is armed.
        #[doc(alias = "IBV_MIG_ARMED")]
        ARMED = 2, "ARMED";
    }
}

bitflags! {
    /// The valid members of [`QpAttr`].
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_qp_attr_mask")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// `IBV_QP_STATE`.
        #[doc(alias = "IBV_QP_STATE")]
        const STATE = 1;
        /// `IBV_QP_CUR_STATE`.
        #[doc(alias = "IBV_QP_CUR_STATE")]
        const CUR_STATE = 1 << 1;
        /// `IBV_QP_EN_SQD_ASYNC_NOTIFY`.
        #[doc(alias = "IBV_QP_EN_SQD_ASYNC_NOTIFY")]
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `IBV_QP_ACCESS_FLAGS`.
        #[doc(alias = "IBV_QP_ACCESS_FLAGS")]
        const ACCESS_FLAGS = 1 << 3;
        /// `IBV_QP_PKEY_INDEX`.
        #[doc(alias = "IBV_QP_PKEY_INDEX")]
        const PKEY_INDEX = 1 << 4;
        /// `IBV_QP_PORT`.
        #[doc(alias = "IBV_QP_PORT")]
        const PORT = 1 << 5;
        /// `IBV_QP_QKEY`.
        #[doc(alias = "IBV_QP_QKEY")]
        const QKEY = 1 << 6;
        /// `IBV_QP_AV`.
        #[doc(alias = "IBV_QP_AV")]
        const AV = 1 << 7;
        /// `IBV_QP_PATH_MTU`.
        #[doc(alias = "IBV_QP_PATH_MTU")]
        const PATH_MTU = 1 << 8;
        /// `IBV_QP_TIMEOUT`.
        #[doc(alias = "IBV_QP_TIMEOUT")]
        const TIMEOUT = 1 << 9;
        /// `IBV_QP_RETRY_CNT`.
        #[doc(alias = "IBV_QP_RETRY_CNT")]
        const RETRY_CNT = 1 << 10;
        /// `IBV_QP_RNR_RETRY`.
        #[doc(alias = "IBV_QP_RNR_RETRY")]
        const RNR_RETRY = 1 << 11;
        /// `IBV_QP_RQ_PSN`.
        #[doc(alias = "IBV_QP_RQ_PSN")]
        const RQ_PSN = 1 << 12;
        /// `IBV_QP_MAX_QP_RD_ATOMIC`.
        #[doc(alias = "IBV_QP_MAX_QP_RD_ATOMIC")]
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `IBV_QP_ALT_PATH`.
        #[doc(alias = "IBV_QP_ALT_PATH")]
        const ALT_PATH = 1 << 14;
        /// `IBV_QP_MIN_RNR_TIMER`.
        #[doc(alias = "IBV_QP_MIN_RNR_TIMER")]
        const MIN_RNR_TIMER = 1 << 15;
        /// `IBV_QP_SQ_PSN`.
        #[doc(alias = "IBV_QP_SQ_PSN")]
        const SQ_PSN = 1 << 16;
        /// `IBV_QP_MAX_DEST_RD_ATOMIC`.
        #[doc(alias = "IBV_QP_MAX_DEST_RD_ATOMIC")]
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `IBV_QP_PATH_MIG_STATE`.
        #[doc(alias = "IBV_QP_PATH_MIG_STATE")]
        const PATH_MIG_STATE = 1 << 18;
        /// `IBV_QP_CAP`.
        #[doc(alias = "IBV_QP_CAP")]
        const CAP = 1 << 19;
        /// `IBV_QP_DEST_QPN`.
        #[doc(alias = "IBV_QP_DEST_QPN")]
        const DEST_QPN = 1 << 20;
        /// `IBV_QP_RATE_LIMIT`.
        #[doc(alias = "IBV_QP_RATE_LIMIT")]
        const RATE_LIMIT = 1 << 25;

        const _ = !0;
    }
}

/// The capacity of a queue pair.
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// The maximum number of outstanding send work requests.
    pub max_send_wr: u32,
    /// The maximum number of outstanding receive work requests.
    pub max_recv_wr: u32,
    /// The maximum number of scatter/gather elements per send.
    pub max_send_sge: u32,
    /// The maximum number of scatter/gather elements per receive.
    pub max_recv_sge: u32,
    /// The maximum number of inline bytes per send.
    pub max_inline_data: u32,
}

impl QpCap {
    /// The default capacity of a new queue pair: 16 sends and 16 receives with one element each,
    /// without inline data. A program sets only the numbers that differ:
    /// `QpCap { max_send_wr: 256, ..QpCap::USUAL }`.
    pub const USUAL: Self =
        Self { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
}

/// The provider-independent attributes of a new queue pair, apart from its parent objects.
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInitAttr {
    /// The transport service.
    pub qp_type: QpType,
    /// The minimum capacity; the device may round up.
    pub cap: QpCap,
    /// Whether every send is signalled, regardless of its flags.
    pub sq_sig_all: bool,
    /// The id reported in this queue pair's events: slot + generation, never a pointer.
    pub user_handle: u64,
}

/// The creation attributes of a queue pair, as reported by the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpInitInfo {
    /// The actual capacity of the queues.
    pub cap: QpCap,
    /// Whether every send is signalled.
    pub sq_sig_all: bool,
}

/// The attributes of a queue pair. An accompanying [`QpAttrMask`] names the valid attributes.
///
/// # References
/// `ibv_modify_qp(3)`, `ibv_query_qp(3)`
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to move to; in a query, the current state.
    pub qp_state: QpState,
    /// The assumed current state.
    pub cur_qp_state: QpState,
    /// The maximum packet payload (path MTU).
    pub path_mtu: Mtu,
    /// The state of automatic path migration.
    pub path_mig_state: MigState,
    /// The queue key (UD).
    pub qkey: u32,
    /// The first packet sequence number expected, 24 bits.
    pub rq_psn: u32,
    /// The first packet sequence number sent, 24 bits.
    pub sq_psn: u32,
    /// The peer's queue pair number, 24 bits.
    pub dest_qp_num: u32,
    /// The peer's rights: remote write, read and atomic.
    pub qp_access_flags: AccessFlags,
    /// The capacity of the queues.
    pub cap: QpCap,
    /// The path to the peer.
    pub ah_attr: AhAttr,
    /// The alternate path to the peer.
    pub alt_ah_attr: AhAttr,
    /// The index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The index of the partition key for the alternate path.
    pub alt_pkey_index: u16,
    /// Whether to raise an event once the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is draining.
    pub sq_draining: bool,
    /// The maximum number of outstanding RDMA reads and atomics that this queue pair issues.
    pub max_rd_atomic: u8,
    /// The maximum number of RDMA reads and atomics that this queue pair executes at a time.
    pub max_dest_rd_atomic: u8,
    /// The time that the peer waits after an RNR NAK, as a 5-bit code from IBTA table 45.
    pub min_rnr_timer: u8,
    /// The local port number, from 1.
    pub port_num: u8,
    /// The time to wait for an acknowledgement, as n in 4.096 µs × 2ⁿ; 0 waits forever.
    pub timeout: u8,
    /// The number of retries before [`RETRY_EXC_ERR`](super::WcStatus::RETRY_EXC_ERR), 0 to 7.
    pub retry_cnt: u8,
    /// The number of retries after RNR NAKs, 0 to 6; 7 retries forever.
    pub rnr_retry: u8,
    /// The local port number of the alternate path.
    pub alt_port_num: u8,
    /// The alternate path's timeout, encoded like `timeout`.
    pub alt_timeout: u8,
    /// The packet pacing rate, in kbit/s.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            qp_state: QpState::RESET,
            cur_qp_state: QpState::RESET,
            path_mtu: Mtu(0),
            path_mig_state: MigState::MIGRATED,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qp_num: 0,
            qp_access_flags: AccessFlags::empty(),
            cap: QpCap::default(),
            ah_attr: AhAttr::default(),
            alt_ah_attr: AhAttr::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            alt_port_num: 0,
            alt_timeout: 0,
            rate_limit: 0,
        }
    }
}
