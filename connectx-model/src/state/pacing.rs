//! [`Rates`]: the rates of send queues ("packet pacing").
//!
//! SET_PP_RATE_LIMIT writes an entry of the table. MODIFY_SQ assigns an entry to a queue that is
//! ready or becomes ready; a reset queue has no entry. A queue with a rate takes its next work
//! request once enough time has passed for the bits of earlier work requests at that rate.
//!
//! Pacing is coarse: a work request leaves as a whole, even if it consists of many frames. The
//! maximum burst and the typical packet size have no effect, although a device uses them to space
//! frames.
//!
//! # References
//! Linux `drivers/net/ethernet/mellanox/mlx5/core/rl.c`, `drivers/infiniband/hw/mlx5/qp.c`
//! (`modify_raw_packet_qp_sq`)

use std::collections::BTreeMap;

use roce::engine::Time;

use crate::state::eth::Ethernet;

/// The rate table: rates in kbit/s, by index. The map lacks entries without a rate.
#[derive(Debug, Default)]
pub(crate) struct Rates(BTreeMap<u32, u32>);

impl Rates {
    /// Sets the rate of an entry, in kbit/s.
    pub(crate) fn set(&mut self, index: u32, rate: u32) {
        self.0.insert(index, rate);
    }

    /// Removes the rate of an entry.
    pub(crate) fn clear(&mut self, index: u32) {
        self.0.remove(&index);
    }

    /// Returns whether an entry has a rate.
    pub(crate) fn contains(&self, index: u32) -> bool {
        self.0.contains_key(&index)
    }

    /// Returns the time that `bytes` bytes take at the rate of an entry, in nanoseconds.
    fn duration(&self, index: u32, bytes: usize) -> u64 {
        // A bit at 1 kbit/s takes 1,000,000 ns.
        self.0.get(&index).map_or(0, |rate| bytes as u64 * 8 * 1_000_000 / u64::from((*rate).max(1)))
    }
}

/// The position of a send queue in its rate schedule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Index in the rate table; 0 means that the rate is unlimited.
    pub(crate) index: u32,
    /// The time at which the bits of all earlier work requests have left.
    free: Time,
}

impl Ethernet {
    /// Returns the earliest time at which a queue may take its next work request.
    fn due(&self, sqn: u32) -> Time {
        let pace = self.sqs.get(&sqn).map(|sq| sq.pace).unwrap_or_default();
        if self.rates.contains(pace.index) { pace.free } else { Time::default() }
    }

    /// Returns whether a queue's rate forbids the next work request at time `now`.
    pub(crate) fn is_early(&self, sqn: u32, now: Time) -> bool {
        self.due(sqn) > now
    }

    /// Charges the bytes of a work request to its queue's rate.
    pub(crate) fn charge(&mut self, sqn: u32, bytes: usize, now: Time) {
        let Some(sq) = self.sqs.get_mut(&sqn) else { return };
        sq.pace.free = sq.pace.free.max(now) + self.rates.duration(sq.pace.index, bytes);
    }

    /// Removes and returns the first waiting queue whose rate allows a work request.
    pub(crate) fn take_waiting(&mut self, now: Time) -> Option<u32> {
        let place = self.waiting.iter().position(|sqn| !self.is_early(*sqn, now))?;
        self.waiting.remove(place)
    }

    /// Returns the earliest time at which a waiting queue may continue; `None` if no queue waits.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.waiting.iter().map(|sqn| self.due(*sqn)).min()
    }
}
