//! [`Link`]: one direction between two endpoints, and what it does to packets.

use alloc::vec::Vec;
use core::ops::Range;

use super::rng::{Chance, Rng};
use super::trace::Fate;
use crate::engine::Time;

/// One direction between two endpoints. The way back is a link of its own, and may be another kind.
///
/// Packets leave one after the other at the speed of `bandwidth`, and arrive `latency` later, in
/// order unless `reorder` says otherwise. Each fault is drawn for each packet, from a stream of
/// numbers that is the link's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// From the last bit sent to the packet's arrival, in nanoseconds.
    pub latency: u64,
    /// Up to so many nanoseconds are added to it. Packets stay in order: those behind a late one
    /// are late too.
    pub jitter: u64,
    /// Bits per second; 0: no packet waits for another.
    pub bandwidth: u64,
    /// The packet is lost.
    pub loss: Chance,
    /// It arrives once more, up to `reorder_delay` later.
    pub duplicate: Chance,
    /// It is held back for up to `reorder_delay`, and others overtake it.
    pub reorder: Chance,
    /// In nanoseconds.
    pub reorder_delay: u64,
    /// A bit of it flips. The receiver's check of the ICRC finds that, and it is dropped.
    pub corrupt: Chance,
    /// Corrupted packets are delivered all the same, as if the ICRC had not been checked: what
    /// nobody promises anything for, but must survive.
    pub undetected: bool,
    /// While the link is down: what leaves then is lost.
    pub down: Vec<Range<Time>>,
}

/// 1 µs, 100 Gbit/s, no faults.
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

/// A link in use.
#[derive(Debug)]
pub(super) struct Cable {
    pub(super) link: Link,
    rng: Rng,
    /// Until when it is busy with what was sent before.
    busy: Time,
    /// When the last of those that keep their order arrives.
    last_arrival: Time,
}

/// What becomes of a packet.
pub(super) struct Carried {
    pub(super) fate: Fate,
    /// When it arrives once more.
    pub(super) again: Option<Time>,
    /// Which bit flips.
    pub(super) flip: Option<usize>,
}

/// UDP, IP and Ethernet around a packet, and its ICRC: what the wire carries beside it.
const ENVELOPE: u64 = 4 + 8 + 20 + 14 + 4 + 20;

impl Cable {
    pub(super) fn new(link: Link, rng: Rng) -> Self {
        Self { link, rng, busy: Time(0), last_arrival: Time(0) }
    }

    /// Decides what becomes of a packet of `len` bytes that is sent now.
    pub(super) fn carry(&mut self, now: Time, len: usize) -> Carried {
        let (link, rng) = (&self.link, &mut self.rng);
        // Everything is drawn for every packet: a fault that is turned off leaves the others where
        // they were.
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
