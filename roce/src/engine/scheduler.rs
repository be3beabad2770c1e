//! [`Scheduler`]: queue pairs with a packet to send; the bytes of requests in flight.
//!
//! [`output`](super::output) takes queue pairs from these lists in its documented order.

use alloc::collections::VecDeque;

use super::qp::Qp;
use super::room;
use super::types::Refused;

/// The per-packet overhead, in bytes, charged to the window in addition to the payload. The kernel
/// charges about this amount to a receiver's socket buffer for a small datagram.
pub(crate) const PACKET_COST: u64 = 768;

/// The maximum number of packets that one class sends before the next class may send.
pub(crate) const SHARE: u32 = 64;

/// The queue pairs with packets to send. The memory for a queue pair's entries is allocated when
/// the queue pair is created.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    pub(crate) ready: VecDeque<u32>,
    pub(crate) naks: VecDeque<u32>,
    pub(crate) acks: VecDeque<u32>,
    pub(crate) blocked: VecDeque<u32>,
    /// The number of consecutive packets sent by the first queue pair in `ready`.
    pub(crate) burst: u32,
    /// The number of packets sent by each of the first three classes since the last quantum of
    /// responses.
    pub(crate) requests_sent: u32,
    pub(crate) naks_sent: u32,
    pub(crate) acks_sent: u32,
    /// The number of unacknowledged request bytes, across all queue pairs.
    pub(crate) in_flight: u64,
}

impl Scheduler {
    /// Schedules a queue pair that has a request to send.
    pub(crate) fn ready(&mut self, qp: &mut Qp) {
        if !qp.in_ready {
            qp.in_ready = true;
            self.ready.push_back(qp.qpn.0);
        }
    }

    /// Removes a queue pair that has no further request, if it is the first in `ready`.
    pub(crate) fn settle(&mut self, qp: &mut Qp) {
        if qp.in_ready && self.ready.front() == Some(&qp.qpn.0) {
            self.leave(qp);
        }
    }

    /// Removes the queue pair `qp`, which must be the first in `ready`.
    pub(crate) fn leave(&mut self, qp: &mut Qp) {
        qp.in_ready = false;
        self.burst = 0;
        self.ready.pop_front();
    }

    /// Schedules a queue pair that has a NAK to send.
    pub(crate) fn nak(&mut self, qp: &mut Qp) {
        if !qp.in_naks {
            qp.in_naks = true;
            self.naks.push_back(qp.qpn.0);
        }
    }

    /// Schedules a queue pair that has an acknowledgement to send. The acknowledgement may wait.
    pub(crate) fn ack(&mut self, qp: &mut Qp) {
        if !qp.in_acks {
            qp.in_acks = true;
            self.acks.push_back(qp.qpn.0);
        }
    }

    /// Records that a queue pair with a request to send waits for space in the window.
    pub(crate) fn block(&mut self, qp: &mut Qp) {
        if !qp.in_blocked {
            qp.in_blocked = true;
            self.blocked.push_back(qp.qpn.0);
        }
    }

    /// Returns whether a queue pair waits for space in the window.
    #[inline]
    pub(crate) fn any_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Restores the full share of every class. Returns the number of packets that the first three
    /// classes have sent since the last call.
    pub(crate) fn begin_round(&mut self) -> u32 {
        let left = self.requests_sent + self.naks_sent + self.acks_sent;
        (self.requests_sent, self.naks_sent, self.acks_sent) = (0, 0, 0);
        left
    }

    /// Records that requests with a total cost of `bytes` have been sent.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// Records that requests with a total cost of `bytes` were acknowledged or abandoned.
    pub(crate) fn acknowledged(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Allocates space for `qps` queue pairs.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if an allocation fails.
    pub(crate) fn reserve(&mut self, qps: usize) -> Result<(), Refused> {
        [&mut self.ready, &mut self.naks, &mut self.acks, &mut self.blocked]
            .into_iter()
            .try_for_each(|queue| room::reserve_to(queue, qps))
    }

    /// Removes a destroyed queue pair. The call takes constant time if the queue pair is in no
    /// list.
    pub(crate) fn drop_qp(&mut self, qp: &Qp) {
        if qp.in_ready || qp.in_naks || qp.in_acks || qp.in_blocked {
            self.drop_stale(qp.qpn.0);
        }
    }

    /// Removes a queue pair number from all lists.
    pub(crate) fn drop_stale(&mut self, number: u32) {
        if self.ready.front() == Some(&number) {
            self.burst = 0;
        }
        for queue in [&mut self.ready, &mut self.naks, &mut self.acks, &mut self.blocked] {
            queue.retain(|&other| other != number);
        }
    }
}
