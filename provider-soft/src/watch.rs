//! The background thread: for what happens while nobody polls.
//!
//! | the program | the thread sleeps until |
//! |---|---|
//! | does nothing | the alarm: it wakes for nothing else |
//! | has work under way, or waits for events | a packet, the engine's next deadline, room in the socket, the alarm |
//! | polls | 1 to 8 ms are over, more the longer it does, to see whether it still polls; packets do not wake it |
//!
//! What it sleeps for is written into the machine while it has the turn, and who changes what it ought to sleep for sees
//! that with the turn in hand ([`Machine::oversleeps`](crate::machine::Machine::oversleeps)) and rings the alarm, which
//! stays until it is read. So nothing can fall between the decision to sleep and the sleep.
//!
//! A program that waits for events polls as well, a few times for each event. Counted as polling is only what is more often
//! than that.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::SigSet;
use nix::sys::time::TimeSpec;
use roce::engine::Time;

use crate::machine::{Acks, Machine, Sleep};
use crate::records::Records;
use crate::shared::Shared;
use crate::turn::Guard;

/// The thread's life.
pub(crate) fn run(shared: &Shared) {
    // The program's signals are for the program's threads.
    let _ = SigSet::all().thread_block();
    let mut habit = Habit::new(shared.polls.load(Ordering::Relaxed), shared.now());
    // Does the machine say that the thread leaves everything to who polls, and nothing else?
    let mut left = false;
    // Since an alarm it may say something else than when the thread went to sleep.
    let mut alarmed = true;
    while !shared.stop.load(Ordering::Acquire) {
        habit.look(shared.polls.load(Ordering::Relaxed), shared.now(), left && !alarmed);
        let may_be_busy = !alarmed && (habit.has_polled || habit.is_polled && left);
        let taken = if may_be_busy { shared.turn.try_take() } else { Some(shared.turn.take()) };
        alarmed = match taken {
            Some(guard) => {
                let (sleep, clogged) = look(shared, guard, &habit);
                left = !sleep.for_packets;
                wait(shared, &sleep, &clogged)
            }
            // Somebody who polls is at it: all is as it was. Where the machine says that the thread watches, not for long.
            None => {
                let pause = if left { habit.tick } else { PAUSE };
                wait(shared, &Sleep { until: Some(shared.now() + pause), ..Sleep::POLLED }, &[])
            }
        };
    }
}

/// Whether the program polls, over time.
#[derive(Debug)]
struct Habit {
    /// Polls that were counted, and when.
    polls: u32,
    since: Time,
    /// It polls.
    is_polled: bool,
    /// It has polled since they were counted: if somebody has the turn, it may be a poll that takes its time.
    has_polled: bool,
    /// How long it is left alone.
    tick: u64,
}

impl Habit {
    fn new(polls: u32, since: Time) -> Self {
        Self { polls, since, is_polled: false, has_polled: false, tick: TICK }
    }

    /// Counts polls. Less than a tick after the last time nothing follows from how many there were. `left`: nobody but who
    /// polls has seen to anything since.
    fn look(&mut self, polls: u32, now: Time, left: bool) {
        let count = polls.wrapping_sub(self.polls);
        self.has_polled = count > 0;
        if now.0.saturating_sub(self.since.0) < TICK {
            return;
        }
        let goes_on = self.is_polled && left;
        self.is_polled = count >= if goes_on { STILL_POLLING } else { POLLING };
        self.tick = if goes_on && self.is_polled { (2 * self.tick).min(LONGEST_TICK) } else { TICK };
        (self.polls, self.since) = (polls, now);
    }
}

/// Sees to everything, and decides what to sleep for.
fn look(shared: &Shared, mut guard: Guard<'_, Machine>, habit: &Habit) -> (Sleep, Vec<Arc<Records>>) {
    let mut now = shared.now();
    if habit.is_polled && !guard.hub.is_armed() {
        // What is done here is not done by who polls, and costs both of them the change of processor.
        let sleep = Sleep { until: Some(now + habit.tick), ..Sleep::POLLED };
        guard.sleep = sleep;
        shared.leave(guard, now);
        return (sleep, Vec::new());
    }
    guard.sleep = Sleep::AWAKE;
    for _ in 0..ROUNDS {
        let received = guard.receive(&shared.socket);
        shared.round(&mut guard, now, received, if received { Acks::Behind } else { Acks::Now });
        now = shared.now();
        // Where nothing more comes, acknowledgements have left.
        if !received {
            break;
        }
    }
    let sleep = guard.watching(now);
    guard.sleep = sleep;
    let clogged = guard.hub.clogged.clone();
    shared.leave(guard, now);
    (sleep, clogged)
}

/// Says whether the alarm rang.
fn wait(shared: &Shared, sleep: &Sleep, clogged: &[Arc<Records>]) -> bool {
    let mut fds = vec![PollFd::new(shared.alarm.as_fd(), PollFlags::POLLIN)];
    if sleep.for_packets {
        let mut events = PollFlags::POLLIN;
        events.set(PollFlags::POLLOUT, sleep.for_room);
        fds.push(PollFd::new(shared.socket.as_fd(), events));
        fds.extend(clogged.iter().map(|records| PollFd::new(records.as_fd(), PollFlags::POLLOUT)));
    }
    // Whatever made it return, everything is looked at.
    let _ = ppoll(&mut fds, sleep.until.map(|until| timeout(shared.now(), until)), None);
    shared.alarm.read().is_ok()
}

fn timeout(now: Time, until: Time) -> TimeSpec {
    Duration::from_nanos(until.0.saturating_sub(now.0)).into()
}

/// So many polls since they were counted are a program that polls, rather than one that waits for events.
const POLLING: u32 = 8;

/// So many are enough of one that was left alone since: in an emulated guest a poll may take milliseconds.
const STILL_POLLING: u32 = 2;

/// How long it leaves a program alone that has begun to poll, in nanoseconds.
const TICK: u64 = 1_000_000;

/// And one that goes on polling, for each look finds that twice as long is enough. To wake costs who polls its processor:
/// with a tick of a millisecond a ping-pong in an emulated guest took half as long again.
const LONGEST_TICK: u64 = 8 * TICK;

/// How long it lets somebody finish who has the turn.
const PAUSE: u64 = TICK / 10;

/// So often it looks again before it lets others have the turn.
const ROUNDS: u32 = 64;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_goes_on_polling_is_left_alone_for_longer_until_it_stops() {
        let (mut habit, mut polls, mut now) = (Habit::new(0, Time(0)), 0, Time(0));
        let mut look = |count: u32, after: u64, left: bool| {
            (polls, now) = (polls + count, now + after);
            habit.look(polls, now, left);
            (habit.is_polled, habit.tick / TICK)
        };
        assert_eq!(look(POLLING - 1, TICK, false), (false, 1), "events are waited for");
        assert_eq!(look(POLLING, TICK, false), (true, 1));
        assert_eq!(look(STILL_POLLING, TICK, true), (true, 2));
        assert_eq!(look(1000, 2 * TICK, true), (true, 4));
        assert_eq!(look(STILL_POLLING, 4 * TICK, true), (true, 8));
        assert_eq!(look(STILL_POLLING, 8 * TICK, true), (true, 8), "and no longer");
        assert_eq!(look(0, TICK / 2, true), (true, 8), "too soon to tell");
        assert_eq!(look(1, 8 * TICK, true), (false, 1));
        assert_eq!(look(STILL_POLLING, TICK, false), (false, 1), "from the beginning again");
    }

    #[test]
    fn a_poll_that_takes_its_time_is_seen_at_once() {
        let mut habit = Habit::new(7, Time(0));
        habit.look(7, Time(10), false);
        assert!(!habit.has_polled);
        habit.look(8, Time(20), false);
        assert!(habit.has_polled && !habit.is_polled);
    }
}
