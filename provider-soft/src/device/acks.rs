//! [`HeldAcks`]: decides when to send acknowledgements that are not urgent.
//!
//! An acknowledgement sent behind a reply lengthens the round trip: the kernel handles a datagram
//! with two segments, and both engines handle a second packet. A peer that sends its next request
//! without having the acknowledgement does not need it yet, and one acknowledgement covers many
//! requests. Another kind of peer waits for it. The kind of peer shows only when an acknowledgement
//! is held:
//!
//! ```text
//!    joined: replies take acknowledgements along ───── after some replies ─────►┐
//!      ▲                                                                        │
//!      └── nothing arrived within HOLD: they leave ◄── held: replies leave without them
//! ```
//!
//! While acknowledgements are held, one in [`ACKS_AFTER`] requests is acknowledged together with
//! its reply. A try fails if nothing arrives within [`HOLD`]. Each failure doubles the number of
//! replies before the next try; [`ACKS_AFTER`] requests without a failure reset that number.

use core::ops::RangeInclusive;

use roce::engine::Time;

/// The acknowledgements owed to peers.
#[derive(Debug)]
pub(crate) struct HeldAcks {
    /// The number of requests received since acknowledgements were last sent.
    owed: u32,
    /// The time when acknowledgements must be sent, if a reply was sent without them and nothing
    /// has arrived since.
    held_until: Option<Time>,
    /// The number of replies to send together with acknowledgements before the next try to hold
    /// them.
    joined: u32,
    /// The value that `joined` gets after the next failed try.
    backoff: u32,
}

/// The number of requests after which acknowledgements are sent even if more requests keep
/// arriving.
const ACKS_AFTER: u32 = 16;

/// The longest time, in nanoseconds, that acknowledgements are held after a reply: a few round
/// trips between processes on one host.
const HOLD: u64 = 32_000;

/// The minimum and maximum number of replies before the next try to hold acknowledgements.
const BACKOFF: RangeInclusive<u32> = 64..=16_384;

impl HeldAcks {
    pub(crate) const fn new() -> Self {
        Self { owed: 0, held_until: None, joined: *BACKOFF.start(), backoff: *BACKOFF.start() }
    }

    /// Records the arrival of a request.
    #[inline]
    pub(crate) fn request_arrived(&mut self) {
        self.owed += 1;
        if self.held_until.take().is_some() && self.are_many() {
            self.backoff = *BACKOFF.start();
        }
    }

    /// Returns whether requests have arrived since acknowledgements were last sent.
    #[inline]
    pub(crate) const fn are_owed(&self) -> bool {
        self.owed > 0
    }

    /// Returns whether so many acknowledgements are owed that they are sent with the next packets,
    /// whatever the kind of peer.
    #[inline]
    pub(crate) const fn are_many(&self) -> bool {
        self.owed >= ACKS_AFTER
    }

    /// Returns whether acknowledgements are sent once no more packets arrive.
    #[inline]
    pub(crate) const fn are_due(&self) -> bool {
        self.owed > 0 && self.held_until.is_none()
    }

    /// Returns whether acknowledgements have been held for too long.
    #[inline]
    pub(crate) fn are_overdue(&self, now: Time) -> bool {
        self.held_until.is_some_and(|until| until <= now)
    }

    /// Decides whether acknowledgements are sent together with a reply. Otherwise they are held.
    #[inline]
    pub(crate) fn join(&mut self, now: Time) -> bool {
        if self.joined > 0 {
            self.joined -= 1;
            return true;
        }
        self.held_until.get_or_insert(now + HOLD);
        false
    }

    /// Records that all acknowledgements have been sent.
    #[inline]
    pub(crate) fn left(&mut self, now: Time) {
        if self.are_overdue(now) {
            self.joined = self.backoff;
            self.backoff = (2 * self.backoff).min(*BACKOFF.end());
        }
        (self.owed, self.held_until) = (0, None);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Handles a request and its reply. Returns whether the acknowledgement was sent with the
    /// reply.
    fn reply(acks: &mut HeldAcks, now: Time) -> bool {
        acks.request_arrived();
        assert!(acks.are_due(), "if the program does not reply");
        let leaves = acks.are_many() || acks.join(now);
        if leaves {
            acks.left(now);
        }
        leaves
    }

    /// Counts replies with acknowledgements until a reply leaves without them.
    fn joined(acks: &mut HeldAcks, now: Time) -> u32 {
        (0..).find(|_| !reply(acks, now)).expect("a try")
    }

    #[test]
    fn a_peer_that_goes_on_gets_one_acknowledgement_for_many_requests() {
        let mut acks = HeldAcks::new();
        assert_eq!(joined(&mut acks, Time(0)), *BACKOFF.start());
        for number in 2..=10 * ACKS_AFTER {
            assert!(!acks.are_due() || !acks.are_owed(), "held");
            let now = Time(u64::from(number) * (HOLD - 1));
            assert_eq!(reply(&mut acks, now), number % ACKS_AFTER == 0, "{number}");
            assert!(!acks.are_overdue(now + (HOLD - 1)));
        }
    }

    #[test]
    fn a_peer_that_waits_is_tried_less_and_less_often() {
        let (mut acks, mut now, mut tries) = (HeldAcks::new(), Time(0), Vec::new());
        for _ in 0..12 {
            tries.push(joined(&mut acks, now));
            now = now + HOLD;
            assert!(acks.are_overdue(now));
            acks.left(now);
        }
        assert_eq!(tries, [64, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 16_384, 16_384]);
    }

    #[test]
    fn a_peer_that_no_longer_waits_is_tried_often_again() {
        let (mut acks, mut now) = (HeldAcks::new(), Time(0));
        for _ in 0..5 {
            joined(&mut acks, now);
            now = now + HOLD;
            acks.left(now);
        }
        joined(&mut acks, now);
        while !reply(&mut acks, now) {}
        joined(&mut acks, now);
        now = now + HOLD;
        acks.left(now);
        assert_eq!(joined(&mut acks, now), *BACKOFF.start());
    }
}
