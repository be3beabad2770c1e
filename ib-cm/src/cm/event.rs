//! [`Event`]: an event of a connection or resolution.

use super::types::{Address, CmId, ListenId, Path, Transport};
use crate::wire::{
    Ece, Mtu, Reason, ServiceId, drep, dreq, mra, rej, rep, req, rtu, sidr_rep, sidr_rep::Status, sidr_req,
};

/// An event of a connection or resolution. Each connection or resolution has one last event
/// ([`is_last`](Event::is_last)), after which its id is invalid. No events follow
/// [`Cm::destroy`](super::Cm::destroy).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A peer requests a connection from a listener. The caller responds with
    /// [`accept`](super::Cm::accept) or [`reject`](super::Cm::reject).
    Request(Request),
    /// The peer accepts. The caller brings its queue pair to the RTS state, then responds with
    /// [`ready_to_use`](super::Cm::ready_to_use) or [`reject`](super::Cm::reject).
    Reply(Reply),
    /// The peer whose request was accepted can send. Either the peer's RTU has arrived, or the
    /// caller has called [`established`](super::Cm::established).
    Established {
        /// The id of the connection.
        id: CmId,
        /// Private data of the peer's RTU; `None` if no RTU has arrived.
        private_data: Option<rtu::Data>,
    },
    /// The peer needs more time to respond, so the timeout for its response is extended.
    MraReceived {
        /// The id of the connection.
        id: CmId,
        /// The additional time that the peer needs, a 5-bit code.
        service_timeout: u8,
        /// Private data from the MRA.
        private_data: mra::Data,
    },
    /// The peer rejected the connection or gave up its own request.
    Rejected(Rejected),
    /// The peer did not respond, and all retries are used up. This is the last event with this id.
    Unreachable {
        /// The id of the connection or resolution.
        id: CmId,
    },
    /// The peer requests the release of the connection. The caller responds with
    /// [`disconnect`](super::Cm::disconnect).
    Disconnecting {
        /// The id of the connection.
        id: CmId,
        /// Private data from the DREQ.
        private_data: dreq::Data,
    },
    /// The connection is released and its timewait begins.
    Disconnected {
        /// The id of the connection.
        id: CmId,
        /// Private data from the peer's DREP, or from its DREQ if both sides disconnected at once.
        /// `None` if the peer did not respond.
        private_data: Option<drep::Data>,
    },
    /// The timewait is over: no more packets of the connection can arrive. This is the last event
    /// with this id.
    TimewaitExit {
        /// The id of the connection.
        id: CmId,
    },
    /// A peer requests a datagram queue pair from a listener. The caller responds with
    /// [`sidr_reply`](super::Cm::sidr_reply).
    SidrRequest(SidrRequest),
    /// The outcome of a service id resolution. This is the last event with its id.
    SidrReply(SidrReply),
}

impl Event {
    /// Returns the id of the connection or resolution.
    pub fn id(&self) -> CmId {
        match self {
            Self::Request(Request { id, .. })
            | Self::Reply(Reply { id, .. })
            | Self::Established { id, .. }
            | Self::MraReceived { id, .. }
            | Self::Rejected(Rejected { id, .. })
            | Self::Unreachable { id }
            | Self::Disconnecting { id, .. }
            | Self::Disconnected { id, .. }
            | Self::TimewaitExit { id }
            | Self::SidrRequest(SidrRequest { id, .. })
            | Self::SidrReply(SidrReply { id, .. }) => *id,
        }
    }

    /// Returns whether this is the last event with its id.
    pub fn is_last(&self) -> bool {
        match self {
            Self::Rejected(rejected) => !rejected.timewait,
            Self::Unreachable { .. } | Self::TimewaitExit { .. } | Self::SidrReply(_) => true,
            _ => false,
        }
    }
}

/// A connection request, as seen by its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The id of the new connection.
    pub id: CmId,
    /// The id of the listener addressed by the request.
    pub listener: ListenId,
    /// The addresses in the message's headers.
    pub from: Address,
    /// The id of the requested service.
    pub service_id: ServiceId,
    /// The kind of connection.
    pub transport: Transport,
    /// The path as seen from this side.
    pub path: Path,
    /// A second path for path migration, as seen from this side.
    pub alternate: Option<Path>,
    /// The partition key.
    pub pkey: u16,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The GUID of the peer's device.
    pub remote_ca_guid: u64,
    /// The peer's queue key; 0 for connections.
    pub remote_qkey: u32,
    /// The number of the peer's queue pair.
    pub remote_qpn: u32,
    /// The first packet sequence number to send on the local queue pair (its `sq_psn`).
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics from the peer to this side.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics from this side to the peer.
    pub initiator_depth: u8,
    /// Whether the peer implements end-to-end flow control (credits).
    pub flow_control: bool,
    /// The number of times that the local queue pair retransmits a packet.
    pub retry_count: u8,
    /// The number of retries after an RNR NAK; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The time allowed for this side's response to a message, a 5-bit code.
    pub local_cm_response_timeout: u8,
    /// The time that the peer needs to respond to a message, a 5-bit code.
    pub remote_cm_response_timeout: u8,
    /// Vendor-specific (ECE) options of the peer's device.
    pub ece: Ece,
    /// Private data from the REQ.
    pub private_data: req::Data,
}

/// The peer's acceptance of a connection, as seen by the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// The id of the connection.
    pub id: CmId,
    /// The GUID of the peer's device.
    pub remote_ca_guid: u64,
    /// The peer's queue key; 0 for connections.
    pub remote_qkey: u32,
    /// The number of the peer's queue pair.
    pub remote_qpn: u32,
    /// The first packet sequence number to send on the local queue pair (its `sq_psn`).
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics from the peer to this side.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics from this side to the peer.
    pub initiator_depth: u8,
    /// The acknowledgement delay of the peer's device, a 5-bit code.
    pub target_ack_delay: u8,
    /// The outcome for the alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// Whether the peer implements end-to-end flow control (credits).
    pub flow_control: bool,
    /// The number of retries after an RNR NAK; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor-specific (ECE) options of the peer's device.
    pub ece: Ece,
    /// Private data from the REP.
    pub private_data: rep::Data,
}

/// The peer's rejection of a connection or of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejected {
    /// The id of the connection.
    pub id: CmId,
    /// The reason for the rejection, which displays as a sentence.
    pub reason: Reason,
    /// Additional reject information, in a format that depends on the reason.
    pub ari: rej::Ari,
    /// The length of `ari` in bytes, at most 72.
    pub ari_length: u8,
    /// Private data from the REJ.
    pub private_data: rej::Data,
    /// Whether a timewait begins, because packets of the connection may still be in flight.
    /// [`Event::TimewaitExit`] then follows; otherwise this is the last event.
    pub timewait: bool,
}

/// A service id resolution request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SidrRequest {
    /// The id of the resolution.
    pub id: CmId,
    /// The id of the listener addressed by the request.
    pub listener: ListenId,
    /// The addresses in the message's headers.
    pub from: Address,
    /// The partition key.
    pub pkey: u16,
    /// The id of the requested service.
    pub service_id: ServiceId,
    /// Private data from the SIDR_REQ.
    pub private_data: sidr_req::Data,
}

/// A service id resolution response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SidrReply {
    /// The id of the resolution.
    pub id: CmId,
    /// The outcome of the resolution, which displays as a sentence.
    pub status: Status,
    /// The number of the datagram queue pair.
    pub qpn: u32,
    /// The queue key of the datagram queue pair.
    pub qkey: u32,
    /// Vendor-specific (ECE) options of the peer's device.
    pub ece: Ece,
    /// Additional information, in a format that depends on the outcome.
    pub info: sidr_rep::Info,
    /// The length of `info` in bytes, at most 72.
    pub info_length: u8,
    /// Private data from the SIDR_REP.
    pub private_data: sidr_rep::Data,
}
