//! [`Connection`]: the data kept for a connection or resolution.

use super::types::{Address, ListenId, Path, State, Transport};
use crate::time::{Time, nanoseconds};
use crate::wire::{Gid, Mad, Mtu, ServiceId};

/// The table entry for a connection or resolution.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    /// The local communication id, which the peer's messages carry, or the id of a local
    /// resolution. 0 for a resolution that the peer requested, because the peer's id identifies it.
    pub(super) local_id: u32,
    /// The peer's communication id; `None` before the peer's first message.
    pub(super) remote_id: Option<u32>,
    pub(super) peer: Address,
    pub(super) service_id: ServiceId,
    /// The transaction id of the current message exchange.
    pub(super) tid: u64,
    /// The listener whose backlog contains the request, and the request's source address; `None`
    /// once the caller has responded.
    pub(super) pending: Option<(ListenId, Gid)>,
    /// Whether the caller has destroyed the connection. The release then continues without events.
    pub(super) orphan: bool,
    pub(super) queue_pair: QueuePair,
    /// The GUID of the peer's device.
    pub(super) remote_ca_guid: u64,
    /// The time after which an unanswered message is sent again, in nanoseconds.
    pub(super) timeout: u64,
    /// The longer timeout requested by the peer's MRA, in nanoseconds. It applies only to the
    /// message in `sent`.
    pub(super) extended: Option<u64>,
    pub(super) max_retries: u8,
    pub(super) retries_left: u8,
    /// The message that waits for the peer's response.
    pub(super) sent: Option<Mad>,
    /// The response to the peer's last message, repeated if that message arrives again.
    pub(super) response: Option<Mad>,
    /// The latest check of whether the peer still has the connection.
    pub(super) stale_check: Option<StaleCheck>,
    /// The connection's deadline in the timer list.
    pub(super) deadline: Option<Time>,
}

/// A check of whether the peer still has the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct StaleCheck {
    /// The transaction id of the check's DREQ and of the peer's DREP.
    pub(super) tid: u64,
    pub(super) at: Time,
}

/// The parameters of a connection's queue pairs, local and remote.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueuePair {
    pub(super) transport: Transport,
    /// Whether this side requested the connection.
    pub(super) active: bool,
    pub(super) path: Path,
    pub(super) path_mtu: Mtu,
    pub(super) local_qpn: u32,
    pub(super) remote_qpn: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// Acknowledgement timeout, a 5-bit code; also determines the length of the timewait.
    pub(super) ack_timeout: u8,
}

impl QueuePair {
    /// Returns the acknowledgement timeout in nanoseconds. A peer's code above `max` counts as
    /// `max`.
    pub(super) fn ack_nanoseconds(&self, max: u8) -> u64 {
        // The local path may be slower than the limit for peers.
        let max = if self.active { max.max(self.path.packet_life_time + 1) } else { max };
        nanoseconds(self.ack_timeout.min(max))
    }
}

impl Connection {
    /// Returns a connection in the given state, with all other properties unset.
    pub(super) fn new(state: State, local_id: u32, peer: Address, service_id: ServiceId, tid: u64) -> Self {
        Self {
            state,
            local_id,
            remote_id: None,
            peer,
            service_id,
            tid,
            pending: None,
            orphan: false,
            queue_pair: QueuePair::default(),
            remote_ca_guid: 0,
            timeout: 0,
            extended: None,
            max_retries: 0,
            retries_left: 0,
            sent: None,
            response: None,
            stale_check: None,
            deadline: None,
        }
    }

    /// Returns the index key for the peer's communication id.
    pub(super) fn remote_id_key(&self) -> Option<RemoteKey> {
        self.remote_id.map(|id| (self.peer.remote, self.remote_ca_guid, id))
    }

    /// Returns the index key for the peer's queue pair.
    pub(super) fn remote_qp_key(&self) -> RemoteKey {
        (self.peer.remote, self.remote_ca_guid, self.queue_pair.remote_qpn)
    }
}

/// The peer's address, the GUID of its device, and a communication id or queue pair number chosen
/// by the peer.
pub(super) type RemoteKey = (Gid, u64, u32);
