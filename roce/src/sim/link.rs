//! [`Link`]: one direction between two endpoints, and its faults. [`Cable`]: the state of a link in
//! use.

use alloc::vec::Vec;
use core::ops::Range;

use rdma_sans_io::{Chance, Rng};

use super::trace::Fate;
use crate::engine::Time;

/// One direction between two endpoints. The other direction is a separate link, possibly with
/// different properties.
///
/// Packets are sent one after the other at the speed of `bandwidth` and arrive `latency` later, in
/// order unless `reorder` applies. Each fault is drawn separately for each packet, from a
/// random-number stream per link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The time between sending a packet's last bit and its arrival, in nanoseconds.
    pub latency: u64,
    /// The maximum random addition to `latency`, in nanoseconds. Packets stay in order, so a late
    /// packet also delays the packets behind it.
    pub jitter: u64,
    /// The speed in bits per second; 0 means unlimited, so that no packet waits for another.
    pub bandwidth: u64,
    /// The probability that a packet is lost.
    pub loss: Chance,
    /// The probability that a packet is duplicated. The second copy arrives up to `reorder_delay`
    /// later.
    pub duplicate: Chance,
    /// The probability that a packet is held back for up to `reorder_delay`, while later packets
    /// overtake it.
    pub reorder: Chance,
    /// The maximum delay of a reordered or duplicated packet, in nanoseconds.
    pub reorder_delay: u64,
    /// The probability that one bit of a packet flips. The receiver's ICRC check detects the error
    /// and drops the packet.
    pub corrupt: Chance,
    /// Whether corrupted packets are still delivered, as if the ICRC were not checked. The
    /// engine guarantees nothing about their contents but must survive them.
    pub undetected: bool,
    /// The periods when the link is down. Packets sent in these periods are lost.
    pub down: Vec<Range<Time>>,
}

/// A link with a latency of 1 µs and a bandwidth of 100 Gbit/s, without faults.
impl Default for Link {
    fn default() -> Self {
        Self {
            latency: 1_000,
            jitter: 0,
            bandwidth: 100_000_000_000,
            loss: Chance::NEVER,
            duplicate: Chance::NEVER,
            reorder: Chance::NEVER,
            reorder_delay: 20_000,
            corrupt: Chance::NEVER,
            undetected: false,
            down: Vec::new(),
        }
    }
}

/// A link in use: determines the fate of each packet.
#[derive(Debug)]
pub struct Cable {
    pub(super) link: Link,
    rng: Rng,
    /// The time at which the link will have sent all earlier packets.
    busy: Time,
    /// The arrival time of the last packet that was not reordered.
    last_arrival: Time,
}

/// The outcome of sending a packet over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Carried {
    /// The fate of the packet.
    pub fate: Fate,
    /// The time at which a second copy arrives, if any.
    pub again: Option<Time>,
    /// The index `n` of the bit that flips in a [damaged](Fate::Damaged) packet: bit `n % 8` of
    /// byte `n / 8`.
    pub flip: Option<usize>,
}

/// The number of bytes on the wire in addition to a packet: ICRC, UDP, IP and Ethernet overhead.
const ENVELOPE: u64 = 4 + 8 + 20 + 14 + 4 + 20;

impl Cable {
    /// Returns an unused link whose faults are drawn from `rng`.
    pub fn new(link: Link, rng: Rng) -> Self {
        Self { link, rng, busy: Time(0), last_arrival: Time(0) }
    }

    /// Determines the fate of a packet of `len` bytes sent now. `now` must never decrease.
    pub fn carry(&mut self, now: Time, len: usize) -> Carried {
        let (link, rng) = (&self.link, &mut self.rng);
        // All random numbers are drawn for every packet, so disabling one fault does not change the
        // others.
        let jitter = rng.below(link.jitter + 1);
        let lost = rng.chance(link.loss);
        let doubled = rng.chance(link.duplicate);
        let overtaken = rng.chance(link.reorder);
        let corrupted = rng.chance(link.corrupt);
        let held = rng.range(1, link.reorder_delay.max(1));
        let later = rng.range(1, link.reorder_delay.max(1));
        let bit = rng.below(8 * len as u64) as usize;

        let bits = (len as u64 + ENVELOPE) * 8;
        let starts = self.busy.max(now);
        self.busy = match link.bandwidth {
            0 => starts,
            bandwidth => starts + bits.saturating_mul(1_000_000_000).div_ceil(bandwidth),
        };
        let mut carried = Carried { fate: Fate::Lost, again: None, flip: None };
        if link.down.iter().any(|down| down.contains(&now)) {
            carried.fate = Fate::Down;
            return carried;
        }
        if lost {
            return carried;
        }
        let arrives = (self.busy + link.latency + jitter).max(self.last_arrival);
        let arrives = if overtaken {
            arrives + held
        } else {
            self.last_arrival = arrives;
            arrives
        };
        carried.fate = Fate::Arrives(arrives);
        if corrupted {
            if !link.undetected {
                carried.fate = Fate::Corrupted;
                return carried;
            }
            carried.fate = Fate::Damaged(arrives);
            carried.flip = Some(bit);
        }
        if doubled {
            carried.again = Some(arrives + later);
        }
        carried
    }
}
