//! The parameters of a connection: [`ConnParam`] as sent by this side, [`Peer`] as received from
//! the peer, which is [`PeerParam`] or [`PeerUd`].

use uverbs_abi::rdma_user_cm::{RdmaUcmConnParam, RdmaUcmUdParam};
use verbs::AhAttr;

use super::convert;

/// The parameters for connecting or accepting:
/// `ConnParam { private_data: b"hello", ..ConnParam::default() }`.
///
/// # References
/// `rdma_connect(3)`, `rdma_accept(3)`
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnParam<'a> {
    /// Data for the peer's program. The protocol limits its length ([`max_private_data`]).
    ///
    /// [`max_private_data`]: crate::CmId::max_private_data
    pub private_data: &'a [u8],
    /// The maximum number of the peer's RDMA reads and atomics that this side executes at a time.
    /// [`MAX_DEPTH`](Self::MAX_DEPTH) stands for the device's limit; an accept is also limited by
    /// the peer's request.
    pub responder_resources: u8,
    /// The maximum number of RDMA reads and atomics that this side has outstanding.
    /// [`MAX_DEPTH`](Self::MAX_DEPTH) has the same meaning.
    pub initiator_depth: u8,
    /// Whether the device uses end-to-end flow control (credits).
    pub flow_control: bool,
    /// The number of retries after a time-out, 0 to 7. An accept ignores it.
    pub retry_count: u8,
    /// The number of retries while the peer has no receive posted, 0 to 6; 7 means no limit. This
    /// value is sent to the peer and limits the retries of the peer's sends, each after this side's
    /// [`min_rnr_timer`](Self::min_rnr_timer).
    pub rnr_retry_count: u8,
    /// The time after which the peer repeats a message that found no receive here, as a [5-bit
    /// code](Self::MIN_RNR_TIMER). `None` uses the id's value ([`CmId::set_min_rnr_timer`]). The
    /// timer applies to a queue pair passed to the call; a program that changes its queue pair's
    /// state itself must set the timer with the RTR attributes.
    ///
    /// [`CmId::set_min_rnr_timer`]: crate::CmId::set_min_rnr_timer
    pub min_rnr_timer: Option<u8>,
    /// Whether the queue pair receives from a shared receive queue. Ignored for a queue pair
    /// created by the id.
    pub srq: bool,
    /// The number of a queue pair whose state the program changes itself. Ignored if a queue pair
    /// is passed to the call.
    pub qp_num: u32,
}

impl ConnParam<'_> {
    /// The depth that stands for the device's limit.
    #[doc(alias = "RDMA_MAX_RESP_RES")]
    #[doc(alias = "RDMA_MAX_INIT_DEPTH")]
    pub const MAX_DEPTH: u8 = u8::MAX;

    /// The default RNR timer of a queue pair: code 12, which means 0.64 ms.
    ///
    /// IBTA defines the codes: 1 is 0.01 ms, 6 is 0.08 ms, 12 is 0.64 ms, 18 is 5.12 ms, 24 is
    /// 40.96 ms, 31 is 491.52 ms. The longest is 0, 655.36 ms.
    ///
    /// # References
    /// IBTA volume 1, section 9.7.5.2.8, table 45
    pub const MIN_RNR_TIMER: u8 = 12;
}

/// No private data, as many outstanding reads as both devices support, 7 retries after time-outs,
/// and unlimited retries while the peer has no receive posted.
impl Default for ConnParam<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            responder_resources: Self::MAX_DEPTH,
            initiator_depth: Self::MAX_DEPTH,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: None,
            srq: false,
            qp_num: 0,
        }
    }
}

/// The parameters received with a peer's message. The limits are from this side's view:
/// [`initiator_depth`](Self::initiator_depth) limits the requests that this side has outstanding.
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerParam {
    /// Data from the peer's program. InfiniBand and RoCE pad it with zeros to a length fixed by the
    /// kind of message.
    pub private_data: Vec<u8>,
    /// The maximum number of the peer's RDMA reads and atomics that this side executes at a time.
    pub responder_resources: u8,
    /// The maximum number of RDMA reads and atomics that this side has outstanding.
    pub initiator_depth: u8,
    /// Whether the peer uses end-to-end flow control (credits).
    pub flow_control: bool,
    /// The number of retries after a time-out, as requested by the peer.
    pub retry_count: u8,
    /// The number of retries of this side's sends while the peer has no receive posted.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair receives from a shared receive queue.
    pub srq: bool,
    /// The number of the peer's queue pair.
    pub qp_num: u32,
}

/// The address of a peer's datagram service, or of a multicast group.
#[doc(alias = "rdma_ud_param")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerUd {
    /// Data from the peer's program; see [`PeerParam::private_data`].
    pub private_data: Vec<u8>,
    /// The path to the service or group, for an address handle.
    pub ah_attr: AhAttr,
    /// The number of the service's queue pair.
    pub qp_num: u32,
    /// The Q_Key of the service's queue pair.
    pub qkey: u32,
}

/// The parameters received from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The parameters of a connection.
    Conn(PeerParam),
    /// The address of a datagram service.
    Ud(PeerUd),
}

impl Peer {
    /// Returns the data from the peer's program.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::Conn(param) => &param.private_data,
            Self::Ud(param) => &param.private_data,
        }
    }

    /// Returns the parameters, unless all of them are zero.
    pub(crate) fn filled(self) -> Option<Box<Self>> {
        let is_empty = match &self {
            Self::Conn(param) => *param == PeerParam::default(),
            Self::Ud(param) => *param == PeerUd::default(),
        };
        (!is_empty).then(|| Box::new(self))
    }
}

impl From<&RdmaUcmConnParam> for PeerParam {
    fn from(param: &RdmaUcmConnParam) -> Self {
        Self {
            private_data: private_data(&param.private_data, param.private_data_len),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq != 0,
            qp_num: param.qp_num,
        }
    }
}

impl From<&RdmaUcmUdParam> for PeerUd {
    fn from(param: &RdmaUcmUdParam) -> Self {
        Self {
            private_data: private_data(&param.private_data, param.private_data_len),
            ah_attr: convert::ah_attr(&param.ah_attr),
            qp_num: param.qp_num,
            qkey: param.qkey,
        }
    }
}

/// Returns the valid bytes. The length fits in a byte, so it cannot exceed the array.
fn private_data(bytes: &[u8; 256], len: u8) -> Vec<u8> {
    bytes[..len.into()].to_vec()
}
