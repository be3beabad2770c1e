//! [`SendState`]: the requester's sequence numbers, timers and window.
//!
//! Sequence numbers of a reliable connection (IBTA 9.7.2), all on a circle of 2²⁴:
//!
//! ```text
//!        una                 next                 max
//!   ──────┼────────────────────┼────────────────────┼──────
//!   ended │ sent               │ sent once, and to  │ never sent
//!         │ (and in flight)    │ be sent again      │
//! ```
//! Without a loss, `next` equals `max`. `una` lies in the oldest work request, `next` in the work
//! request at the cursor.
//!
//! Invariant: `flight` is the cost of the packets from `una` to `next`. This cost is included in
//! [`Scheduler::in_flight`](crate::engine::scheduler::Scheduler::in_flight).

use crate::engine::types::{Status, Time};
use crate::wire::Psn;

/// The requester's half of a queue pair.
#[derive(Debug)]
pub(crate) struct SendState {
    /// The oldest unacknowledged packet.
    pub(crate) una: Psn,
    /// The next packet to send.
    pub(crate) next: Psn,
    /// The first packet never sent.
    pub(crate) max: Psn,
    /// The position of the work request with `next`. The work request may not have started.
    pub(crate) cursor: u32,
    /// The position of the first work request never started.
    pub(crate) fresh: u32,
    /// The final status of the work request at the cursor, applied once it is the oldest work
    /// request.
    pub(crate) halted: Option<Status>,
    /// Whether nothing can be sent before a response arrives or a timer ends.
    pub(crate) waiting: bool,
    /// Whether the bytes of the work request at the cursor are absent. If so, nothing is sent
    /// before [`Engine::resume`](crate::engine::Engine::resume).
    pub(crate) stalled: bool,
    /// The cost of the packets in flight.
    pub(crate) flight: u64,
    /// The queue pair's share of the window. The share is reduced after a loss.
    pub(crate) allowance: u64,
    /// The number of bytes sent since the last packet that requested an acknowledgement.
    pub(crate) unasked: u32,
    /// The number of read requests and atomics in flight.
    pub(crate) reads: u32,
    /// The sequence number of the last read request started in the middle of a piece, where its
    /// response begins.
    pub(crate) resumed: Psn,
    /// Whether the requester went back to `una` because a response was missing and has made no
    /// progress since.
    pub(crate) implied: bool,
    /// The number of retries since the last progress.
    pub(crate) retries: u8,
    /// The number of retries after RNR NAKs since the last progress.
    pub(crate) rnr_retries: u8,
    /// The end of the pause requested by the peer's RNR NAK.
    pub(crate) rnr_until: Option<Time>,
    /// The end of the acknowledgement timer.
    pub(crate) ack_deadline: Option<Time>,
    /// Whether the queue pair is in SQD and the end of draining is not reported yet.
    pub(crate) draining: bool,
}

impl Default for SendState {
    fn default() -> Self {
        Self {
            una: Psn::new(0),
            next: Psn::new(0),
            max: Psn::new(0),
            cursor: 0,
            fresh: 0,
            halted: None,
            waiting: false,
            stalled: false,
            flight: 0,
            allowance: u64::MAX,
            unasked: 0,
            reads: 0,
            resumed: Psn::new(0),
            implied: false,
            retries: 0,
            rnr_retries: 0,
            rnr_until: None,
            ack_deadline: None,
            draining: false,
        }
    }
}

impl SendState {
    /// Returns when the next timer expires.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.rnr_until.or(self.ack_deadline)
    }

    /// Returns whether the peer owes a response to everything in flight: the last packet requested
    /// an acknowledgement or is a read request.
    ///
    /// Only then may the queue pair wait for space held by other queue pairs. Otherwise nothing
    /// would wake it if they never release that space.
    #[inline]
    pub(crate) fn awaits_response(&self) -> bool {
        self.flight > 0 && self.unasked == 0
    }

    /// Returns whether `psn` was sent but not acknowledged.
    #[inline]
    pub(crate) fn is_outstanding(&self, psn: Psn) -> bool {
        psn.in_window(self.una, self.max.offset_from(self.una))
    }

    /// Starts at this sequence number with nothing in flight.
    pub(crate) fn set_psn(&mut self, psn: u32) {
        let psn = Psn::new(psn);
        (self.una, self.next, self.max, self.resumed) = (psn, psn, psn, psn);
    }
}
