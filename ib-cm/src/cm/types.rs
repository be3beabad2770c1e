//! Values: ids, addresses, call parameters and call errors. No type here owns a connection.

use core::fmt;

use crate::wire::{
    Ece, GSI_QKEY, GSI_QPN, Gid, Mtu, Reason, ServiceId, rej, rep, req, sidr_rep, sidr_rep::Status, sidr_req,
};

/// The id of a connection or a service id resolution. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub(super) u64);

/// The id of a listener. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenId(pub(super) u64);

/// The addresses of a message as seen by this device: the peer is the destination of a sent message
/// and the source of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The address of this device.
    pub local: Gid,
    /// The address of the peer.
    pub remote: Gid,
    /// The number of the peer's queue pair: [`GSI_QPN`].
    pub qpn: u32,
    /// The queue key of the peer's queue pair: [`GSI_QKEY`].
    pub qkey: u32,
    /// The index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The traffic class; 0 if unknown in a received message. Responses sent at once reuse it.
    pub traffic_class: u8,
    /// The flow label; 0 if unknown in a received message. Responses sent at once reuse it.
    pub flow_label: u32,
}

impl Address {
    /// Returns the address of the general service interface of the peer at `remote`.
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
    /// The hop limit. Above 1, the path has no local ids (LIDs).
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Static rate, a 6-bit code.
    pub rate: u8,
    /// The maximum travel time of a packet, a 5-bit code. Linux uses 16 on RoCE, and 18 before
    /// 5.19.
    pub packet_life_time: u8,
}

/// The parameters of [`Cm::connect`](super::Cm::connect).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParams {
    /// The path, used for both the messages and the queue pair.
    pub path: Path,
    /// A second path for path migration.
    pub alternate: Option<Path>,
    /// The partition key.
    pub pkey: u16,
    /// The index of the messages' partition key in the port's table.
    pub pkey_index: u16,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The id of the requested service.
    pub service_id: ServiceId,
    /// The kind of connection.
    pub transport: Transport,
    /// The number of the local queue pair.
    pub qp_num: u32,
    /// The first packet sequence number that the local queue pair receives (its `rq_psn`).
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics from the peer.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics to the peer.
    pub initiator_depth: u8,
    /// Whether the local device implements end-to-end flow control (credits).
    pub flow_control: bool,
    /// The number of times that a queue pair retransmits a packet, 3 bits.
    pub retry_count: u8,
    /// The number of retries after an RNR NAK, 3 bits; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the local queue pair has a shared receive queue.
    pub srq: bool,
    /// The time allowed for the peer's response to a message, a 5-bit code.
    pub remote_cm_response_timeout: u8,
    /// The time that this side needs to respond to a message, a 5-bit code.
    pub local_cm_response_timeout: u8,
    /// The number of times either side may repeat a message, 4 bits.
    pub max_cm_retries: u8,
    /// Vendor-specific (ECE) options of the local device.
    pub ece: Ece,
    /// Private data for the REQ.
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
    /// The first packet sequence number that the local queue pair receives (its `rq_psn`).
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics from the peer.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics to the peer.
    pub initiator_depth: u8,
    /// The outcome for the alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// Whether the local device implements end-to-end flow control (credits).
    pub flow_control: bool,
    /// The number of times the peer retries after this side's RNR NAKs, 3 bits; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the local queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor-specific (ECE) options of the local device.
    pub ece: Ece,
    /// Private data for the REP.
    pub private_data: rep::Data,
}

/// The parameters of [`Cm::reject`](super::Cm::reject).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectParams {
    /// The reason for the rejection.
    pub reason: Reason,
    /// Additional reject information, in a format that depends on the reason.
    pub ari: rej::Ari,
    /// The length of `ari` in bytes, at most 72.
    pub ari_length: u8,
    /// Private data for the REJ.
    pub private_data: rej::Data,
}

impl Default for RejectParams {
    /// Returns the parameters of a rejection by the caller's program
    /// ([`Reason::CONSUMER_DEFINED`]).
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
    /// The id of the requested service.
    pub service_id: ServiceId,
    /// The time allowed for the peer's response, a 5-bit code.
    pub timeout: u8,
    /// The maximum number of times the request is repeated.
    pub max_cm_retries: u8,
    /// Private data for the SIDR_REQ.
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
    /// The outcome of the resolution.
    pub status: Status,
    /// The number of the datagram queue pair.
    pub qp_num: u32,
    /// The queue key of the datagram queue pair.
    pub qkey: u32,
    /// Vendor-specific (ECE) options of the local device.
    pub ece: Ece,
    /// Additional information, in a format that depends on the outcome.
    pub info: sidr_rep::Info,
    /// The length of `info` in bytes, at most 72.
    pub info_length: u8,
    /// Private data for the SIDR_REP.
    pub private_data: sidr_rep::Data,
}

/// Attributes of the local queue pair, derived from the REQ and the REP.
///
/// # References
/// Linux `ib_cm_init_qp_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// The path of the queue pair's packets.
    pub path: Path,
    /// The index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The number of the peer's queue pair.
    pub dest_qpn: u32,
    /// The first packet sequence number received. On the passive side, it is 0 until the caller
    /// [accepts](super::Cm::accept) the request.
    pub rq_psn: u32,
    /// The first packet sequence number sent.
    pub sq_psn: u32,
    /// The maximum number of outstanding reads and atomics from the peer.
    pub max_dest_rd_atomic: u8,
    /// The maximum number of outstanding reads and atomics to the peer.
    pub max_rd_atomic: u8,
    /// The acknowledgement timeout, a 5-bit code.
    pub timeout: u8,
    /// The number of times that the queue pair retransmits a packet.
    pub retry_cnt: u8,
    /// The number of retries after an RNR NAK; 7 means no limit.
    pub rnr_retry: u8,
}

/// The state of a connection or resolution (IBTA 12.9.7, 12.9.8, 12.11.3). No value represents the
/// state Idle; an idle id has no table entry.
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
    /// The connection is established.
    Established,
    /// DREQ sent, no response yet.
    DreqSent,
    /// DREQ received; the caller has not responded.
    DreqRcvd,
    /// The connection has ended. Its packets may still be in flight.
    Timewait,
    /// SIDR_REQ sent, no response yet.
    SidrReqSent,
    /// SIDR_REQ received; the caller has not responded.
    SidrReqRcvd,
}

/// The reason for rejecting a call.
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
    /// The random source ([`Random`](crate::Random)) failed.
    NoNumbers,
    /// An argument is invalid, with the reason as text.
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

/// Message counts since the communication manager was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The number of messages sent, including repetitions.
    pub sent: u64,
    /// The number of messages repeated because no response arrived in time.
    pub retries: u64,
    /// The number of MADs received.
    pub received: u64,
    /// The number of messages received more than once.
    pub duplicates: u64,
    /// The number of MADs dropped: malformed, of another class, or matching no connection of their
    /// sender.
    pub dropped: u64,
    /// The number of requests dropped because a backlog or another limit was reached.
    pub overflowed: u64,
    /// The number of messages dropped because the caller did not fetch earlier messages in time, or
    /// for lack of memory.
    pub unsent: u64,
}
