//! Values: ids, addresses, call parameters, call errors. No type here owns a connection.

use core::fmt;

use crate::wire::{
    Ece, GSI_QKEY, GSI_QPN, Gid, Mtu, Reason, ServiceId, rej, rep, req, sidr_rep, sidr_rep::Status, sidr_req,
};

/// A connection or a service id resolution. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub(super) u64);

/// A listener. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenId(pub(super) u64);

/// The addresses of a message as seen by this device: the destination of a sent message, the source
/// of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The address of this device.
    pub local: Gid,
    /// The address of the peer.
    pub remote: Gid,
    /// The peer's queue pair: [`GSI_QPN`].
    pub qpn: u32,
    /// The queue key of the peer's queue pair: [`GSI_QKEY`].
    pub qkey: u32,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// Traffic class. Not needed for received messages.
    pub traffic_class: u8,
    /// Flow label. Not needed for received messages.
    pub flow_label: u32,
}

impl Address {
    /// Returns the address of a peer's general service interface.
    pub const fn gsi(local: Gid, remote: Gid) -> Self {
        Self { local, remote, qpn: GSI_QPN, qkey: GSI_QKEY, pkey_index: 0, traffic_class: 0, flow_label: 0 }
    }
}

/// The kind of connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection. The connecting side has the initiator queue pair, the
    /// accepting side the target queue pair.
    Xrc,
}

/// A path between this device and a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The address of this device.
    pub local: Gid,
    /// The address of the peer.
    pub remote: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit. If it is above 1, the path has no local ids.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Static rate, a 6-bit code.
    pub rate: u8,
    /// The travel time of a packet, a 5-bit code. Linux uses 16 on RoCE, and 18 before 5.19.
    pub packet_life_time: u8,
}

/// The parameters of [`Cm::connect`](super::Cm::connect).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParams {
    /// The path, for both messages and the queue pair.
    pub path: Path,
    /// A second path for migration.
    pub alternate: Option<Path>,
    /// The partition key.
    pub pkey: u16,
    /// The index of the partition key, for messages.
    pub pkey_index: u16,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// The service.
    pub service_id: ServiceId,
    /// The kind of connection.
    pub transport: Transport,
    /// The number of the local queue pair.
    pub qp_num: u32,
    /// The first packet sequence number received by the local queue pair (its `rq_psn`).
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics from the peer.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics to the peer.
    pub initiator_depth: u8,
    /// Whether the local device implements end-to-end flow control (credits).
    pub flow_control: bool,
    /// The number of packet retries, 3 bits.
    pub retry_count: u8,
    /// The number of retries after RNR NAKs, 3 bits; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// The time allowed for the peer's response, a 5-bit code.
    pub remote_cm_response_timeout: u8,
    /// This side's response time, a 5-bit code.
    pub local_cm_response_timeout: u8,
    /// The number of times either side may repeat a message, 4 bits.
    pub max_cm_retries: u8,
    /// Vendor options of the device.
    pub ece: Ece,
    /// Private data.
    pub private_data: req::Data,
}

impl Default for ConnectParams {
    /// Returns the parameters that Linux's `rdma_cm` uses for all connections.
    fn default() -> Self {
        Self {
            path: Path { hop_limit: 64, packet_life_time: 16, ..Path::default() },
            alternate: None,
            pkey: 0xffff,
            pkey_index: 0,
            path_mtu: Mtu::B1024,
            service_id: ServiceId(0),
            transport: Transport::Rc,
            qp_num: 0,
            starting_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            remote_cm_response_timeout: 20,
            local_cm_response_timeout: 20,
            max_cm_retries: 15,
            ece: Ece::default(),
            private_data: req::Data::default(),
        }
    }
}

/// The parameters of [`Cm::accept`](super::Cm::accept).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptParams {
    /// The number of the local queue pair.
    pub qp_num: u32,
    /// The first packet sequence number received by the local queue pair (its `rq_psn`).
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics from the peer.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics to the peer.
    pub initiator_depth: u8,
    /// Outcome of the alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// Whether the local device implements end-to-end flow control (credits).
    pub flow_control: bool,
    /// The number of retries after the peer's RNR NAKs, 3 bits; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options of the device.
    pub ece: Ece,
    /// Private data.
    pub private_data: rep::Data,
}

/// The parameters of [`Cm::reject`](super::Cm::reject).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectParams {
    /// The reason.
    pub reason: Reason,
    /// Additional reject information.
    pub ari: rej::Ari,
    /// The length of `ari` in bytes.
    pub ari_length: u8,
    /// Private data.
    pub private_data: rej::Data,
}

impl Default for RejectParams {
    /// Returns the parameters of a rejection by the program.
    fn default() -> Self {
        Self {
            reason: Reason::CONSUMER_DEFINED,
            ari: rej::Ari::default(),
            ari_length: 0,
            private_data: rej::Data::default(),
        }
    }
}

/// The parameters of [`Cm::sidr_request`](super::Cm::sidr_request).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrParams {
    /// The destination of the request.
    pub to: Address,
    /// The partition key.
    pub pkey: u16,
    /// The service.
    pub service_id: ServiceId,
    /// The time allowed for the peer's response, a 5-bit code.
    pub timeout: u8,
    /// The maximum number of repetitions of the request.
    pub max_cm_retries: u8,
    /// Private data.
    pub private_data: sidr_req::Data,
}

impl SidrParams {
    /// Returns the parameters that Linux's `rdma_cm` uses for all resolutions.
    pub fn new(to: Address, service_id: ServiceId) -> Self {
        Self {
            to,
            pkey: 0xffff,
            service_id,
            timeout: 20,
            max_cm_retries: 15,
            private_data: sidr_req::Data::default(),
        }
    }
}

/// The parameters of [`Cm::sidr_reply`](super::Cm::sidr_reply).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrReplyParams {
    /// The outcome.
    pub status: Status,
    /// The number of the datagram queue pair.
    pub qp_num: u32,
    /// The queue key of the datagram queue pair.
    pub qkey: u32,
    /// Vendor options of the device.
    pub ece: Ece,
    /// Additional information.
    pub info: sidr_rep::Info,
    /// The length of `info` in bytes.
    pub info_length: u8,
    /// Private data.
    pub private_data: sidr_rep::Data,
}

/// Attributes of the local queue pair, from both messages of a handshake.
///
/// # References
/// linux `ib_cm_init_qp_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// The path.
    pub path: Path,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// The number of the peer's queue pair.
    pub dest_qpn: u32,
    /// The first packet sequence number received. It is 0 on the passive side until
    /// [`accept`](super::Cm::accept) sets it.
    pub rq_psn: u32,
    /// The first packet sequence number sent.
    pub sq_psn: u32,
    /// The maximum number of outstanding reads and atomics from the peer.
    pub max_dest_rd_atomic: u8,
    /// The maximum number of outstanding reads and atomics to the peer.
    pub max_rd_atomic: u8,
    /// Acknowledgement timeout, a 5-bit code.
    pub timeout: u8,
    /// The number of packet retries.
    pub retry_cnt: u8,
    /// The number of retries after RNR NAKs.
    pub rnr_retry: u8,
}

/// The state of a connection or resolution (IBTA 12.9.7, 12.9.8, 12.11.3). The state Idle is
/// represented by the absence of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// REQ sent, no response yet.
    ReqSent,
    /// REQ received; the caller has not responded.
    ReqRcvd,
    /// REQ received; MRA sent or prepared.
    MraReqSent,
    /// REQ sent; MRA received.
    MraReqRcvd,
    /// REP sent, no response yet.
    RepSent,
    /// REP received; the caller has not responded.
    RepRcvd,
    /// REP received; MRA sent or prepared.
    MraRepSent,
    /// REP sent; MRA received.
    MraRepRcvd,
    /// Connected.
    Established,
    /// DREQ sent, no response yet.
    DreqSent,
    /// DREQ received; the caller has not responded.
    DreqRcvd,
    /// Released. Packets of the connection may still be in flight.
    Timewait,
    /// SIDR_REQ sent, no response yet.
    SidrReqSent,
    /// SIDR_REQ received; the caller has not responded.
    SidrReqRcvd,
}

/// The reason why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The connection, resolution or listener does not exist or has ended.
    NoSuchId,
    /// The call is not allowed in this state.
    State(State),
    /// Another listener has one of the service ids.
    Listening,
    /// A limit of the [`Config`](super::Config) is reached.
    NoRoom,
    /// The source of random numbers failed ([`Random`](crate::Random)).
    NoNumbers,
    /// An argument is invalid.
    Invalid(&'static str),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchId => f.write_str("the connection does not exist, or has ended"),
            Self::State(state) => write!(f, "the call has no meaning in the state {state:?}"),
            Self::Listening => f.write_str("another listener has the service id"),
            Self::NoRoom => f.write_str("no room is left for one more connection or listener"),
            Self::NoNumbers => f.write_str("the source of random numbers failed"),
            Self::Invalid(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for Refused {}

/// Message counts since the manager was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages sent, including repetitions.
    pub sent: u64,
    /// Messages sent again because no response came in time.
    pub retries: u64,
    /// MADs received.
    pub received: u64,
    /// Messages received more than once.
    pub duplicates: u64,
    /// MADs dropped: malformed, of another class, or matching no connection of their sender.
    pub dropped: u64,
    /// Requests dropped because a backlog or another limit was reached.
    pub overflowed: u64,
    /// Messages lost because the caller did not fetch earlier messages, or for lack of memory.
    pub unsent: u64,
}
