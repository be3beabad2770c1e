//! [`Drivers`]: decides whether the worker leaves packets to threads that wait
//! ([`wait`](crate::device::wait)).

use roce::engine::Time;

use crate::device::device_core::{Sleep, Taker};
use crate::device::waiters::Waiters;

/// The worker's record of the drivers: threads that handle packets while they wait.
#[derive(Debug)]
pub(crate) struct Drivers {
    /// The number of driver waits that had ended at the last look. `since` is the time of that
    /// look.
    ended: u32,
    since: Time,
    tick: u64,
    /// Whether the worker leaves packets to drivers whose waits keep starting and ending.
    is_ticking: bool,
}

impl Drivers {
    pub(crate) fn new() -> Self {
        Self { ended: 0, since: Time(0), tick: FIRST_TICK, is_ticking: false }
    }

    /// Returns whether drivers have taken packets since the last look.
    pub(crate) fn take_packets(&self, waiters: &Waiters) -> bool {
        waiters.is_driven || waiters.ended != self.ended
    }

    /// Changes the worker's sleep so that packets wake the driver threads instead, if there are
    /// any.
    pub(crate) fn leave_packets(&mut self, sleep: &mut Sleep, waiters: &Waiters, now: Time) {
        if self.is_ticking && now < self.since + self.tick {
            // Something other than the end of the driver's wait has woken the worker.
        } else if waiters.ended != self.ended {
            self.tick = if self.is_ticking { (2 * self.tick).min(TICK) } else { FIRST_TICK };
            (self.ended, self.since, self.is_ticking) = (waiters.ended, now, true);
        } else {
            self.is_ticking = false;
        }
        if self.is_ticking {
            let end = self.since + self.tick;
            sleep.until = Some(sleep.until.map_or(end, |until| until.min(end)));
        } else if !waiters.is_driven {
            return;
        }
        sleep.packets = Taker::Waiter;
    }
}

/// The maximum sleep of the worker, in nanoseconds, while drivers start and end waits.
pub(super) const TICK: u64 = 1_000_000;

/// The first such sleep; each is twice as long as the previous one.
const FIRST_TICK: u64 = TICK / 5;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the time when the worker's sleep ends, in nanoseconds, and whether a packet wakes
    /// the worker.
    fn sleep(drivers: &mut Drivers, waiters: &Waiters, now: u64) -> (Option<u64>, bool) {
        let mut sleep = Sleep { until: None, ..Sleep::AWAKE };
        drivers.leave_packets(&mut sleep, waiters, Time(now));
        (sleep.until.map(|until| until.0), sleep.is_for_packets())
    }

    #[test]
    fn the_worker_leaves_packets_to_drivers_and_ticks_while_they_come_and_go() {
        let (mut drivers, mut waiters, mut now) = (Drivers::new(), Waiters::default(), 1_000_000);
        assert_eq!(sleep(&mut drivers, &waiters, now), (None, true), "there is no driver");
        waiters.is_driven = true;
        assert_eq!(sleep(&mut drivers, &waiters, now), (None, false), "a driver that stays");
        for tick in [200_000, 400_000, 800_000, 1_000_000, 1_000_000] {
            (waiters.is_driven, waiters.ended) = (false, waiters.ended + 1);
            assert_eq!(sleep(&mut drivers, &waiters, now), (Some(now + tick), false), "it has left");
            let soon = sleep(&mut drivers, &waiters, now + tick / 2);
            assert_eq!(soon, (Some(now + tick), false), "woken early");
            now += tick;
        }
        assert_eq!(sleep(&mut drivers, &waiters, now), (None, true), "no driver has come since");
        waiters.is_driven = true;
        assert_eq!(sleep(&mut drivers, &waiters, now), (None, false));
    }

    #[test]
    fn a_deadline_before_the_tick_stays() {
        let (mut drivers, waiters) = (Drivers::new(), Waiters { ended: 1, ..Waiters::default() });
        let mut sleep = Sleep { until: Some(Time(1_000_100)), ..Sleep::AWAKE };
        drivers.leave_packets(&mut sleep, &waiters, Time(1_000_000));
        assert_eq!((sleep.until, sleep.packets), (Some(Time(1_000_100)), Taker::Waiter));
    }
}
