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
//! Without a loss, `next` equals `max`. `una` belongs to the oldest work request, `next` to the
//! work request at the cursor.
//!
//! Invariant: `flight` is the cost of the packets from `una` to `next`.
//! [`Scheduler::in_flight`](crate::engine::scheduler::Scheduler::in_flight) includes this cost.

use crate::engine::types::{Status, Time};
use crate::wire::Psn;

/// The state of a queue pair's requester.
#[derive(Debug)]
pub(crate) struct SendState {
    /// The sequence number of the oldest unacknowledged packet.
    pub(crate) una: Psn,
    /// The sequence number of the next packet to send.
    pub(crate) next: Psn,
    /// The sequence number of the first packet never sent.
    pub(crate) max: Psn,
    /// The position of the work request that `next` belongs to. The work request may not have
    /// started.
    pub(crate) cursor: u32,
    /// The position of the first work request that has never started.
    pub(crate) fresh: u32,
    /// The final status of the work request at the cursor, applied once this work request is the
    /// oldest.
    pub(crate) halted: Option<Status>,
    /// Whether the requester can send nothing until a response arrives or a timer expires.
    pub(crate) waiting: bool,
    /// Whether the memory of the work request at the cursor is not present. If so, no request is
    /// sent before [`Engine::resume`](crate::engine::Engine::resume).
    pub(crate) stalled: bool,
    /// The cost of the packets in flight, in bytes of the window.
    pub(crate) flight: u64,
    /// The queue pair's share of the window, in bytes. A loss reduces the share.
    pub(crate) allowance: u64,
    /// The number of payload bytes sent since the last packet that requested an acknowledgement.
    pub(crate) unasked: u32,
    /// The number of reads, atomics, flushes and atomic writes in flight.
    pub(crate) reads: u32,
    /// The sequence number of the last read request that began in the middle of a piece. Its
    /// response begins there, too.
    pub(crate) resumed: Psn,
    /// Whether the requester went back to `una` because a response was missing and has made no
    /// progress since.
    pub(crate) implied: bool,
    /// The number of retries since the last acknowledged packet.
    pub(crate) retries: u8,
    /// The number of retries after RNR NAKs since the last acknowledged packet.
    pub(crate) rnr_retries: u8,
    /// The time at which the pause requested by the peer's RNR NAK ends.
    pub(crate) rnr_until: Option<Time>,
    /// The time at which the acknowledgement timer expires.
    pub(crate) ack_deadline: Option<Time>,
    /// Whether the queue pair is in SQD and has not reported the end of draining yet.
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
    /// Returns the time at which the next timer expires.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.rnr_until.or(self.ack_deadline)
    }

    /// Returns whether the peer owes a response that covers everything in flight, because the last
    /// packet requested an acknowledgement or is a read request.
    ///
    /// Only then may the queue pair wait for window space that other queue pairs hold. Otherwise no
    /// event would wake the queue pair if the others never release that space.
    #[inline]
    pub(crate) fn awaits_response(&self) -> bool {
        self.flight > 0 && self.unasked == 0
    }

    /// Returns whether packet `psn` has been sent but not acknowledged.
    #[inline]
    pub(crate) fn is_outstanding(&self, psn: Psn) -> bool {
        psn.in_window(self.una, self.max.offset_from(self.una))
    }

    /// Sets the sequence number of the next packet, with nothing in flight.
    pub(crate) fn set_psn(&mut self, psn: u32) {
        let psn = Psn::new(psn);
        (self.una, self.next, self.max, self.resumed) = (psn, psn, psn, psn);
    }
}
