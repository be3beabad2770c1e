//! [`Event`]: what happened to a connection or resolution.

use super::types::{Address, CmId, ListenId, Path, Transport};
use crate::wire::{
    Ece, Mtu, Reason, ServiceId, drep, dreq, mra, rej, rep, req, rtu, sidr_rep, sidr_rep::Status, sidr_req,
};

/// Something that happened. Each id has one last event ([`is_last`](Event::is_last)); the id has
/// ended then. After [`Cm::destroy`](super::Cm::destroy) it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks a listener for a connection. The caller answers by
    /// [`accept`](super::Cm::accept) or [`reject`](super::Cm::reject).
    Request(Request),
    /// The peer accepts. The caller moves its queue pair to the state RTS, and then answers by
    /// [`ready_to_use`](super::Cm::ready_to_use) or [`reject`](super::Cm::reject).
    Reply(Reply),
    /// The peer of an accepted request can send, or the caller has said that it did
    /// ([`established`](super::Cm::established)).
    Established {
        /// The connection.
        id: CmId,
        /// Private data of the peer's RTU; `None` if no RTU has arrived.
        private_data: Option<rtu::Data>,
    },
    /// The peer needs more time to answer; it is waited for.
    MraReceived {
        /// The connection.
        id: CmId,
        /// The time that it needs, a code of 5 bits.
        service_timeout: u8,
        /// Private data.
        private_data: mra::Data,
    },
    /// The peer rejects, or no longer wants the connection.
    Rejected(Rejected),
    /// The peer did not answer, though it was asked as often as the request allows. Last event.
    Unreachable {
        /// The connection or resolution.
        id: CmId,
    },
    /// The peer disconnects. The caller answers by [`disconnect`](super::Cm::disconnect).
    Disconnecting {
        /// The connection.
        id: CmId,
        /// Private data.
        private_data: dreq::Data,
    },
    /// The connection is released, and its timewait begins.
    Disconnected {
        /// The connection.
        id: CmId,
        /// Private data of the peer's answer, or of its own request where both sides asked at the
        /// same time; `None` if there was no answer.
        private_data: Option<drep::Data>,
    },
    /// No packet of the connection can arrive any more. Last event.
    TimewaitExit {
        /// The connection.
        id: CmId,
    },
    /// A peer asks a listener for a queue pair that takes datagrams. The caller answers by
    /// [`sidr_reply`](super::Cm::sidr_reply).
    SidrRequest(SidrRequest),
    /// The outcome of a resolution. Last event.
    SidrReply(SidrReply),
}

impl Event {
    /// Returns the connection or resolution.
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

    /// Returns whether no event of the id follows, because it has ended.
    pub fn is_last(&self) -> bool {
        match self {
            Self::Rejected(rejected) => !rejected.timewait,
            Self::Unreachable { .. } | Self::TimewaitExit { .. } | Self::SidrReply(_) => true,
            _ => false,
        }
    }
}

/// A request for a connection, from the point of view of the side that it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The connection.
    pub id: CmId,
    /// The listener that is asked.
    pub listener: ListenId,
    /// The addresses of the message.
    pub from: Address,
    /// The service that is asked for.
    pub service_id: ServiceId,
    /// The kind of the connection.
    pub transport: Transport,
    /// The path, seen from this side.
    pub path: Path,
    /// A second path to which the connection may migrate, seen from this side.
    pub alternate: Option<Path>,
    /// The partition key.
    pub pkey: u16,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// The GUID of the peer's device.
    pub remote_ca_guid: u64,
    /// The peer's queue key; 0 for connections.
    pub remote_qkey: u32,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The first packet sequence number that the own queue pair sends (its `sq_psn`).
    pub starting_psn: u32,
    /// The maximum number of reads and atomics that the peer has outstanding, and this side
    /// responds to.
    pub responder_resources: u8,
    /// The maximum number of reads and atomics that the peer responds to, and this side has
    /// outstanding.
    pub initiator_depth: u8,
    /// The peer heeds credits.
    pub flow_control: bool,
    /// Retries of packets.
    pub retry_count: u8,
    /// Retries after RNR NAKs; 7 is without end.
    pub rnr_retry_count: u8,
    /// The peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The time within which this side is expected to respond, a code of 5 bits.
    pub local_cm_response_timeout: u8,
    /// The time within which the peer responds, a code of 5 bits.
    pub remote_cm_response_timeout: u8,
    /// Options of the peer's vendor.
    pub ece: Ece,
    /// Private data.
    pub private_data: req::Data,
}

/// The acceptance of a connection, from the point of view of the side that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The connection.
    pub id: CmId,
    /// The GUID of the peer's device.
    pub remote_ca_guid: u64,
    /// The peer's queue key; 0 for connections.
    pub remote_qkey: u32,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The first packet sequence number that the own queue pair sends (its `sq_psn`).
    pub starting_psn: u32,
    /// The maximum number of reads and atomics that the peer has outstanding, and this side
    /// responds to.
    pub responder_resources: u8,
    /// The maximum number of reads and atomics that the peer responds to, and this side has
    /// outstanding.
    pub initiator_depth: u8,
    /// The time within which the peer's device acknowledges, a code of 5 bits.
    pub target_ack_delay: u8,
    /// Outcome of the alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// The peer heeds credits.
    pub flow_control: bool,
    /// Retries after RNR NAKs; 7 is without end.
    pub rnr_retry_count: u8,
    /// The peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Options of the peer's vendor.
    pub ece: Ece,
    /// Private data.
    pub private_data: rep::Data,
}

/// The end of a connection or of an attempt, by the peer's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The connection.
    pub id: CmId,
    /// The reason; its text is a sentence.
    pub reason: Reason,
    /// Additional reject information.
    pub ari: rej::Ari,
    /// The number of bytes of it, at most 72.
    pub ari_length: u8,
    /// Private data.
    pub private_data: rej::Data,
    /// A timewait begins, and [`Event::TimewaitExit`] follows: packets of the connection may be on
    /// their way. Otherwise this is the last event.
    pub timewait: bool,
}

/// A service id resolution request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// The resolution.
    pub id: CmId,
    /// The listener that is asked.
    pub listener: ListenId,
    /// The addresses of the message.
    pub from: Address,
    /// The partition key.
    pub pkey: u16,
    /// The service that is asked for.
    pub service_id: ServiceId,
    /// Private data.
    pub private_data: sidr_req::Data,
}

/// A service id resolution response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReply {
    /// The resolution.
    pub id: CmId,
    /// Outcome; its text is a sentence.
    pub status: Status,
    /// The queue pair that takes datagrams.
    pub qpn: u32,
    /// Its queue key.
    pub qkey: u32,
    /// Options of the peer's vendor.
    pub ece: Ece,
    /// Additional information.
    pub info: sidr_rep::Info,
    /// The number of bytes of it, at most 72.
    pub info_length: u8,
    /// Private data.
    pub private_data: sidr_rep::Data,
}
