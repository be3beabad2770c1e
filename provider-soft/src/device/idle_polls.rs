//! [`IdlePolls`]: gives up the processor while a thread polls an empty queue.
//!
//! Spinning is the fastest way to wait while a thread has a processor to itself. After some polls
//! without a result the thread yields, because the awaited message may come from a program that
//! needs this processor. On a busy machine a yield lasts for another program's time slice: several
//! milliseconds, which no packet can shorten. A yield longer than [`SLICE`] therefore shows that
//! the machine is busy. For the next [`CROWDED`] nanoseconds the thread sleeps instead, until a
//! packet arrives or for [`NAP`] at most. The kernel's scheduler prefers threads that have slept.
//!
//! | the last yield | the program | the thread |
//! |---|---|---|
//! | was short | | yields |
//! | was long | polls this device alone, again and again | sleeps until a packet arrives |
//! | was long | also polls other devices, or does other work between its polls | yields |
//!
//! The last row exists because packets for another device do not end the sleep. A program does
//! other work if its polls are further apart than [`APART`].

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use roce::engine::Time;

/// The recent yields of the threads that poll a device.
#[derive(Debug, Default)]
pub(crate) struct IdlePolls {
    /// The time until which the machine is considered busy, in nanoseconds on the device's clock.
    crowded_until: AtomicU64,
    /// The time when a thread last gave up its processor, in nanoseconds on the device's clock.
    last: AtomicU64,
}

/// The length of a yield, in nanoseconds, above which another program must have run.
const SLICE: u64 = 20_000;

/// The time, in nanoseconds, for which the machine is considered busy after a long yield.
const CROWDED: u64 = 10_000_000;

/// The maximum length of a sleep, in nanoseconds. The kernel may add 50 µs.
pub(crate) const NAP: u64 = 10_000;

/// The maximum time, in nanoseconds, between two polls of a program that does nothing but poll.
const APART: u64 = 100_000;

/// The device whose poller last gave up its processor, as the address of its [`IdlePolls`].
static LAST_DEVICE: AtomicUsize = AtomicUsize::new(0);

impl IdlePolls {
    /// Gives up the processor after some polls without a result: calls `sleep`, or yields. `now`
    /// reads the clock.
    #[cold]
    pub(crate) fn give_way(&self, now: impl Fn() -> Time, sleep: impl FnOnce()) {
        let start = now().0;
        let only_polls = start.saturating_sub(self.last.load(Ordering::Relaxed)) < APART;
        let own = core::ptr::from_ref(self).addr();
        let is_alone = LAST_DEVICE.swap(own, Ordering::Relaxed) == own;
        if only_polls && is_alone && start < self.crowded_until.load(Ordering::Relaxed) {
            sleep();
            self.last.store(now().0, Ordering::Relaxed);
            return;
        }
        self.last.store(self.yield_from(start, now), Ordering::Relaxed);
    }

    /// Yields for a thread that looks for packets before it sleeps, because the packets' sender may
    /// need this processor. While the machine is busy, returns false without yielding.
    #[cold]
    pub(crate) fn yields(&self, now: impl Fn() -> Time) -> bool {
        let start = now().0;
        let is_crowded = start < self.crowded_until.load(Ordering::Relaxed);
        if !is_crowded {
            self.yield_from(start, now);
        }
        !is_crowded
    }

    /// Yields the processor and returns the time afterwards, in nanoseconds.
    fn yield_from(&self, start: u64, now: impl Fn() -> Time) -> u64 {
        std::thread::yield_now();
        let end = now().0;
        if end - start >= SLICE {
            self.crowded_until.store(end + CROWDED, Ordering::Relaxed);
        }
        end
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A poller and its simulated clock. The second reading in each call is later by the length of
    /// the yield.
    struct Poller {
        idle_polls: IdlePolls,
        now: Cell<u64>,
        readings: Cell<u32>,
        slept: Cell<bool>,
    }

    impl Poller {
        fn new() -> Self {
            let idle_polls = IdlePolls::default();
            Self { idle_polls, now: Cell::new(CROWDED), readings: Cell::new(0), slept: Cell::new(false) }
        }

        /// Makes the poller give up its processor, `after` nanoseconds after the last call. Returns
        /// whether the thread slept.
        fn gives_way(&self, after: u64, yields: u64) -> bool {
            self.now.set(self.now.get() + after);
            self.readings.set(0);
            self.slept.set(false);
            let now = || {
                if self.readings.replace(self.readings.get() + 1) == 1 && !self.slept.get() {
                    self.now.set(self.now.get() + yields);
                }
                Time(self.now.get())
            };
            self.idle_polls.give_way(now, || self.slept.set(true));
            self.slept.get()
        }
    }

    // A single test, because threads of other tests would interfere through `LAST_DEVICE`.
    #[test]
    fn a_thread_sleeps_only_if_processors_are_short_and_it_does_nothing_but_poll() {
        let (poller, other) = (Poller::new(), Poller::new());
        assert!(!poller.gives_way(1000, 300) && !poller.gives_way(1000, 300), "yields are short");
        assert!(!poller.gives_way(1000, SLICE), "a yield becomes long");
        assert!(poller.gives_way(1000, SLICE) && poller.gives_way(APART - 1, SLICE));
        assert!(!poller.gives_way(APART, 300), "the program does other work");
        assert!(poller.gives_way(1000, 300));
        assert!(!other.gives_way(1000, 300));
        assert!(!poller.gives_way(1000, 300), "another device is polled as well");
        assert!(poller.gives_way(1000, 300));
        assert!(
            !poller.idle_polls.yields(|| Time(poller.now.get())),
            "a thread before its sleep does not look"
        );
        poller.gives_way(CROWDED, 300);
        assert!(poller.idle_polls.yields(|| Time(poller.now.get())), "it looks for packets");
        assert!(!poller.gives_way(1000, 300), "the long yield is long ago");
    }
}
