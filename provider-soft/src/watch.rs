//! The background thread: for what happens while nobody polls.
//!
//! | the program | the thread sleeps until |
//! |---|---|
//! | does nothing | the alarm: it wakes for nothing else |
//! | has work under way, or waits for events | a packet, the engine's next deadline, room in the socket, the alarm |
//! | polls | it stops polling, which the thread checks every 1 to 8 ms, less often the longer it polled; packets do not wake it |
//!
//! What it sleeps for is written into the machine while it has the turn, and who changes what it ought to sleep for sees
//! that with the turn in hand ([`Machine::oversleeps`](crate::machine::Machine::oversleeps)) and rings the alarm, which
//! stays until it is read. So nothing can fall between the decision to sleep and the sleep.
//!
//! Where a turn has ended with work left, the thread sleeps for a time that has passed: it lets others have the turn, and goes
//! on.
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
    let polls = || shared.polls.load(Ordering::Relaxed);
    let mut habit = Habit::new(polls(), shared.now());
    // Somebody changed what the thread ought to sleep for, and counts on its looking at everything.
    let mut alarmed = true;
    let mut pause = PAUSE;
    while !shared.stop.load(Ordering::Acquire) {
        habit.count(polls(), shared.now());
        // Where work was left, this thread had the turn a moment ago.
        shared.turn.give_way();
        // Somebody who polls may be at it; and a poll may take its time.
        let taken =
            if habit.has_polled && !alarmed { shared.turn.try_take() } else { Some(shared.turn.take()) };
        let Some(mut guard) = taken else {
            alarmed = rest(shared, pause);
            pause = (2 * pause).min(TICK);
            continue;
        };
        pause = PAUSE;
        if habit.is_polled && !guard.hub.is_armed() {
            // What is done here is not done by who polls, and costs both of them the change of processor.
            guard.sleep = Sleep::POLLED;
            shared.leave(guard, shared.now());
            alarmed = leave_alone(shared);
            habit = Habit::new(polls(), shared.now());
            continue;
        }
        let (sleep, clogged) = look(shared, guard);
        alarmed = wait(shared, &sleep, &clogged);
    }
}

/// Whether the program polls.
#[derive(Debug)]
struct Habit {
    /// Polls that were counted, and when.
    polls: u32,
    since: Time,
    /// It polls.
    is_polled: bool,
    /// It has polled since they were counted.
    has_polled: bool,
}

impl Habit {
    fn new(polls: u32, since: Time) -> Self {
        Self { polls, since, is_polled: false, has_polled: false }
    }

    /// Counts polls. From less than a tick nothing follows, but that there were some.
    fn count(&mut self, polls: u32, now: Time) {
        let (count, passed) = (polls.wrapping_sub(self.polls), now.0.saturating_sub(self.since.0));
        self.has_polled = count > 0;
        if passed >= TICK {
            self.is_polled = u64::from(count) >= POLLING * (passed / TICK);
            (self.polls, self.since) = (polls, now);
        }
    }
}

/// Leaves everything to who polls, until nobody does, or the alarm rings, which it says.
fn leave_alone(shared: &Shared) -> bool {
    let mut tick = TICK;
    loop {
        if rest(shared, tick) {
            return true;
        }
        let polls = shared.polls.load(Ordering::Relaxed);
        if rest(shared, PAUSE) {
            return true;
        }
        // Nothing in this while, in which who polls does so often: unless a poll takes its time, this was the end.
        if shared.polls.load(Ordering::Relaxed) == polls && shared.turn.is_free() {
            return false;
        }
        tick = (2 * tick).min(LONGEST_TICK);
    }
}

/// Sleeps for so long, or until the alarm rings, which it says.
fn rest(shared: &Shared, nanoseconds: u64) -> bool {
    let sleep = Sleep { until: Some(shared.now() + nanoseconds), ..Sleep::POLLED };
    wait(shared, &sleep, &[])
}

/// Sees to everything, and decides what to sleep for.
fn look(shared: &Shared, mut guard: Guard<'_, Machine>) -> (Sleep, Vec<Arc<Records>>) {
    let mut now = shared.now();
    guard.sleep = Sleep::AWAKE;
    for _ in 0..ROUNDS {
        let received = guard.receive(&shared.socket);
        shared.round(&mut guard, now, received, if received { Acks::Behind } else { Acks::Now });
        now = shared.now();
        // Where nothing more comes, acknowledgements have left. Others have work for the turn as well.
        if !received || guard.spent.is_enough() {
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

/// So many polls in a [`TICK`] are a program that polls, rather than one that waits for events or looks now and then.
const POLLING: u64 = 8;

/// How long it leaves a program alone that has begun to poll, in nanoseconds.
const TICK: u64 = 1_000_000;

/// And one that goes on polling, for each time twice as long as the last. To wake costs who polls its processor: with a tick of
/// a millisecond a ping-pong in an emulated guest took half as long again.
const LONGEST_TICK: u64 = 8 * TICK;

/// Who polls does so at least once in this time, but for a poll that has much to do.
const PAUSE: u64 = TICK / 5;

/// So often it looks again before it lets others have the turn, unless that has had its share.
const ROUNDS: u32 = 64;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_polls_often_enough_polls_and_who_looks_now_and_then_does_not() {
        let (mut habit, mut polls, mut now) = (Habit::new(0, Time(0)), 0, Time(0));
        let mut count = |count: u64, after: u64| {
            (polls, now) = (polls + count as u32, now + after);
            habit.count(polls, now);
            (habit.has_polled, habit.is_polled)
        };
        assert_eq!(count(0, TICK), (false, false));
        assert_eq!(count(POLLING - 1, TICK), (true, false));
        assert_eq!(count(POLLING, TICK), (true, true));
        assert_eq!(count(0, TICK / 2), (false, true), "too soon to tell");
        assert_eq!(count(POLLING, TICK / 2), (true, true));
        assert_eq!(count(POLLING * 10 - 1, 10 * TICK), (true, false), "long ago is not now");
    }
}
