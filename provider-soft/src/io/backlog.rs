//! [`Backlog`]: measures whether the kernel's send queue has space for read responses.
//!
//! Credit ([`roce::engine::Config::response_rate`]) refills at the same rate on every link. On a
//! slower link the kernel's send queue grows until the socket's buffer is full; every packet waits
//! behind it. Read responses therefore wait in the engine while the send queue holds more than a
//! window; other packets do not.
//!
//! The kernel reports the queue's length (`SIOCOUTQ`) at the cost of a system call, but does not
//! report when the queue has drained to a given length. The length is therefore measured once per
//! window of packets sent while read responses wait, and every [`HOLD`] nanoseconds while they are
//! held.

use roce::engine::Time;

/// The length of a socket's send queue, in bytes, as far as it is known without a system call.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// An upper bound on the queue's length: the last measurement plus all packets sent since.
    at_most: u64,
    /// The time of the next measurement, if the last one found more than a window.
    held_until: Option<Time>,
}

impl Backlog {
    /// Counts a packet of `len` bytes that joins the queue.
    #[inline(always)]
    pub(crate) fn add(&mut self, len: usize) {
        self.at_most += len as u64 + PACKET_COST;
    }

    /// Returns whether the queue may hold `window` bytes or more. The queue must then be measured
    /// before read responses are sent.
    #[inline]
    pub(crate) fn may_be_full(&self, window: u32) -> bool {
        self.at_most >= window.into()
    }

    /// Records a measurement: the queue holds `bytes` bytes.
    pub(crate) fn measure(&mut self, bytes: u64, window: u32, now: Time) {
        self.at_most = bytes;
        self.held_until = self.may_be_full(window).then(|| now + HOLD);
    }

    /// Returns the time of the next measurement, if read responses are held.
    #[inline]
    pub(crate) fn held_until(&self) -> Option<Time> {
        self.held_until
    }

    /// Clears the time of the next measurement if it has passed.
    #[inline]
    pub(crate) fn expire(&mut self, now: Time) {
        self.held_until = self.held_until.filter(|until| now < *until);
    }
}

/// The overhead charged for each packet, in bytes, in addition to its length from BTH to pad. The
/// request window charges the same overhead.
const PACKET_COST: u64 = 768;

/// The time between measurements, in nanoseconds. At 42 Gbit/s, sending a 512 KiB window takes this
/// time, so a slower link does not become idle.
pub(crate) const HOLD: u64 = 100_000;
