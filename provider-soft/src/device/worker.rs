//! The worker: the background thread that works on a device while no program polls.
//!
//! | the program | the worker sleeps until |
//! |---|---|
//! | does nothing | the alarm |
//! | has work in flight, or waits for events | the alarm, a packet, a deadline, space to write |
//! | polls | the alarm, or the end of polling |
//! | waits, and works for the device ([`wait`]) | the alarm, a deadline, space to write |
//!
//! Interface changes always wake the worker ([`crate::io::link`]), as do processes that start to
//! share the address and connection requests for a shared address ([`crate::io::share`]).
//!
//! The worker checks every 1 to 8 ms whether polling continues, less often the longer it has
//! lasted. Packets do not wake the worker while a program polls. Between two polls, a program may
//! wait for a byte of its memory to change. The program stalls if the packet that changes the byte
//! arrives after the poll. The scheduler may also have preempted a program that polls. Therefore
//! the worker only handles the packet and checks a few more times, every 30 µs. If the program
//! stalls again and again, the worker works as if no program polled, and then checks every 30 µs
//! until [`Backoff`] lengthens the interval again.
//!
//! With the lock held, the worker stores in the device core which events wake it. A thread that
//! adds another event reads them with the lock held
//! ([`DeviceCore::must_wake_worker`](crate::device::device_core::DeviceCore::must_wake_worker)) and
//! sets the alarm, which stays set until the worker reads it. No event is therefore lost between
//! the decision to sleep and the sleep.
//!
//! If a turn ends with work left, the worker sleeps until a time in the past: it lets other threads
//! acquire the lock and then continues.
//!
//! A program waiting for events also polls a few times for each event. Only more frequent polls
//! count as polling, and only if they continue for 1 ms after the last event request. While a queue
//! is armed, the interval stays at 1 ms. Some programs request events that never come, such as
//! solicited ones, and then poll (UCX).
//!
//! [`wait`]: crate::device::wait

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use nix::sys::time::TimeSpec;
use roce::engine::Time;

use crate::device::device_core::{Acks, DeviceCore, Sleep};
use crate::device::drivers::Drivers;
use crate::device::event_pipe::EventPipe;
use crate::device::state::{Attendant, DeviceState};
use crate::device::wait::SPIN;
use crate::sync::combining_lock::Guard;

/// Runs the worker until the device stops.
pub(crate) fn run(shared: &DeviceState) {
    // By default the kernel stretches a rest of 30 µs to 80 µs. If this fails, rests are longer.
    let _ = set_timerslack(SLACK);
    let polls = || shared.polls.load(Ordering::Relaxed);
    let mut pattern = PollPattern::new(polls(), shared.now(), 0);
    // Whether a thread set the alarm, relying on the worker to look at everything.
    let mut alarmed = true;
    let mut pause = PAUSE;
    let mut rests = Backoff::default();
    let mut drivers = Drivers::new();
    while !shared.stop.load(Ordering::Acquire) {
        pattern.count(polls(), shared.now());
        // If work was left, this thread has just released the lock.
        shared.core.yield_to_waiters();
        // A poller may hold the lock for the duration of a long poll.
        let taken =
            if pattern.has_polled && !alarmed { shared.core.try_lock() } else { Some(shared.core.lock()) };
        let Some(mut guard) = taken else {
            alarmed = rest(shared, pause);
            pause = (2 * pause).min(TICK);
            continue;
        };
        pause = PAUSE;
        guard.sleep = Sleep::AWAKE;
        shared.take_event_requests(&mut guard, shared.now());
        let requests = guard.sink.event_requests;
        if requests != pattern.event_requests {
            pattern = PollPattern::new(polls(), shared.now(), requests);
        }
        if pattern.is_polled && !drivers.take_packets(&guard.waiters) {
            // Working in this thread instead of the poller's would move the device's data between
            // two processors.
            guard.sleep = Sleep::POLLED;
            rests.longest = if guard.sink.is_armed() { TICK } else { LONGEST_TICK };
            shared.leave(guard, shared.now());
            alarmed = wait_while_polled(shared, &mut rests);
            pattern = PollPattern::new(polls(), shared.now(), requests);
            continue;
        }
        let (sleep, clogged, received) = look(shared, guard, &mut drivers);
        let goes_on = received && sleep.is_for_packets() && finds_packets(shared);
        alarmed = !goes_on && wait(shared, &sleep, &clogged);
    }
    shared.finish_counter_files();
}

/// The program's polling pattern.
#[derive(Debug)]
struct PollPattern {
    /// The number of polls at the last full tick. `since` is the time of that tick.
    polls: u32,
    since: Time,
    /// Whether the program polls often enough to drive the device.
    is_polled: bool,
    /// Whether the program has polled since the last full tick.
    has_polled: bool,
    /// The number of event requests when the pattern began.
    event_requests: u32,
}

impl PollPattern {
    fn new(polls: u32, since: Time, event_requests: u32) -> Self {
        Self { polls, since, is_polled: false, has_polled: false, event_requests }
    }

    /// Updates the pattern from the total number of polls. An interval shorter than a tick only
    /// shows whether there were any polls.
    fn count(&mut self, polls: u32, now: Time) {
        let (count, passed) = (polls.wrapping_sub(self.polls), now.0.saturating_sub(self.since.0));
        self.has_polled = count > 0;
        if passed >= TICK {
            self.is_polled = u64::from(count) >= POLLING * (passed / TICK);
            (self.polls, self.since) = (polls, now);
        }
    }
}

/// Leaves the device to the polling program until the program stops polling or the alarm is set.
/// Returns whether the alarm was set.
fn wait_while_polled(shared: &DeviceState, rests: &mut Backoff) -> bool {
    let polls = || shared.polls.load(Ordering::Relaxed);
    rests.tick = TICK;
    loop {
        if let Some(tick) = rests.next()
            && rest(shared, tick)
        {
            return true;
        }
        let (before, mut quiet) = (polls(), 0);
        while polls() == before {
            // A polling program would have polled several times by now. This one has stopped,
            // unless one poll takes long.
            if quiet >= PAUSE && shared.core.is_free() {
                rests.glances = 0;
                return false;
            }
            if rest(shared, GLANCE) {
                return true;
            }
            quiet += GLANCE;
            if polls() == before && shared.core.is_free() && has_packets(shared) {
                if rests.stalled() {
                    return false;
                }
                handle_packets(shared);
                break;
            }
        }
    }
}

/// The lengths of the worker's rests while a program polls.
#[derive(Debug)]
struct Backoff {
    /// The duration of the next rest, in nanoseconds.
    tick: u64,
    /// The number of brief checks (glances) before the next rest.
    glances: u32,
    /// The number of stalls since the last rest.
    stalls: u32,
    /// The maximum duration of a rest.
    longest: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { tick: TICK, glances: 0, stalls: 0, longest: LONGEST_TICK }
    }
}

impl Backoff {
    /// Returns the duration of the next rest, or `None` if a glance comes first.
    fn next(&mut self) -> Option<u64> {
        if let Some(left) = self.glances.checked_sub(1) {
            self.glances = left;
            return None;
        }
        let tick = self.tick;
        self.tick = (2 * tick).min(self.longest);
        self.stalls = 0;
        Some(tick)
    }

    /// Records that the program did not poll while a packet waited. Returns whether it stalls
    /// repeatedly.
    fn stalled(&mut self) -> bool {
        let stalls = self.stalls + 1;
        let is_repeated = stalls >= STALLS;
        let glances = if is_repeated { GLANCES } else { FEW_GLANCES };
        *self = Self { tick: TICK, glances, stalls, ..*self };
        is_repeated
    }
}

/// Handles the packets that wait, unless another thread works on the device.
fn handle_packets(shared: &DeviceState) {
    if let Some(mut guard) = shared.core.try_lock() {
        let now = shared.now();
        let received = guard.receive(&shared.socket);
        shared.round(&mut guard, now, received, Acks::Now);
        shared.leave(guard, now);
    }
}

/// Returns whether a packet waits in the socket or in a ring.
fn has_packets(shared: &DeviceState) -> bool {
    if shared.peers.is_some() && shared.core.try_lock().is_some_and(|guard| shared.leave_with_packets(guard))
    {
        return true;
    }
    let mut fds = [PollFd::new(shared.socket.as_fd(), PollFlags::POLLIN)];
    ppoll(&mut fds, Some(TimeSpec::new(0, 0)), None).is_ok_and(|ready| ready > 0)
}

/// Sleeps for `nanoseconds`, or until the alarm is set. Returns whether the alarm was set.
fn rest(shared: &DeviceState, nanoseconds: u64) -> bool {
    let sleep = Sleep { until: Some(shared.now() + nanoseconds), ..Sleep::POLLED };
    wait(shared, &sleep, &[])
}

/// Looks for packets in memory for a moment, because more may follow the packets just handled.
/// Returns whether there are any.
fn finds_packets(shared: &DeviceState) -> bool {
    if shared.peers.is_none() {
        return false;
    }
    let start = shared.now();
    loop {
        for _ in 0..LOOKS {
            if shared.core.try_lock().is_some_and(|guard| shared.leave_with_packets(guard)) {
                return true;
            }
            core::hint::spin_loop();
        }
        // The sender may need this processor.
        if shared.now() >= start + SPIN || !shared.idle_polls.yields(|| shared.now()) {
            return false;
        }
    }
}

/// Checks everything. Returns the events that must wake the worker, and whether there were packets.
fn look(
    shared: &DeviceState,
    mut guard: Guard<'_, DeviceCore>,
    drivers: &mut Drivers,
) -> (Sleep, Vec<Arc<EventPipe>>, bool) {
    let mut now = shared.now();
    let mut any_received = false;
    guard.sleep = Sleep::AWAKE;
    for _ in 0..ROUNDS {
        let received = guard.receive(&shared.socket);
        any_received |= received;
        shared.round(&mut guard, now, received, if received { Acks::Behind } else { Acks::Now });
        now = shared.now();
        // Acknowledgements have left when no more packets arrive. Other threads need the lock as
        // well.
        if !received || guard.spent.is_enough() {
            break;
        }
    }
    let mut sleep = guard.sleep_from(now);
    drivers.leave_packets(&mut sleep, &guard.waiters, now);
    guard.sleep = sleep;
    let mut clogged = Vec::new();
    if clogged.try_reserve_exact(guard.sink.clogged.len()).is_ok() {
        clogged.extend_from_slice(&guard.sink.clogged);
    }
    shared.leave(guard, now);
    (sleep, clogged, any_received)
}

/// Sleeps and returns whether the alarm was set. Raises port events if the device's interface has
/// changed meanwhile.
fn wait(shared: &DeviceState, sleep: &Sleep, clogged: &[Arc<EventPipe>]) -> bool {
    let alarm = PollFd::new(shared.alarm.as_fd(), PollFlags::POLLIN);
    let mut few: [_; FEW] = core::array::from_fn(|_| alarm.clone());
    let mut count = 1;
    let mut add = |file, events| {
        few[count] = PollFd::new(file, events);
        count += 1;
        Some(count - 1)
    };
    let readable = PollFlags::POLLIN;
    let link = shared.link.as_ref().and_then(|link| add(link.as_fd(), readable));
    let members = shared.socket.membership().and_then(|members| add(members.as_fd(), readable));
    let requests = shared.watched_requests().and_then(|requests| add(requests.as_fd(), readable));
    let peers = shared.peers.as_ref().and_then(|peers| add(peers.as_fd(), readable));
    let mut doorbells = None;
    let mut events = PollFlags::empty();
    events.set(PollFlags::POLLIN, sleep.is_for_packets());
    events.set(PollFlags::POLLOUT, sleep.for_room);
    if !events.is_empty() {
        add(shared.socket.as_fd(), events);
    }
    if sleep.is_for_packets() {
        if let Some(groups) = shared.group_packets.get() {
            add(groups.0.as_fd(), readable);
        }
        // While a poller or a waiting thread takes packets, it alone watches its doorbells.
        doorbells = shared.peers.as_ref().and_then(|peers| add(peers.doorbells(), readable));
    }
    let mut all = Vec::new();
    let has_memory = !clogged.is_empty() && all.try_reserve_exact(count + clogged.len()).is_ok();
    let fds = if has_memory {
        all.extend_from_slice(&few[..count]);
        all.extend(clogged.iter().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)));
        &mut all[..]
    } else {
        &mut few[..count]
    };
    let mut until = [sleep.until, shared.update_counter_files()].into_iter().flatten().min();
    if sleep.for_pipes > fds.len() - count {
        // If memory for watching the pipes is short, the worker checks them after a tick.
        let soon = Time(shared.now().0 + TICK);
        until = Some(until.map_or(soon, |until| until.min(soon)));
    }
    // From here on, a peer that sends through memory wakes this thread. Packets may already be in a
    // ring.
    let sleeps = shared.peers.as_ref().filter(|_| sleep.is_for_packets());
    if let Some(peers) = sleeps {
        peers.sleep.begin();
        if shared.leave_with_packets(shared.core.lock()) {
            until = Some(Time(0));
        }
    }
    // Whatever ended the sleep, the worker checks everything.
    let _ = ppoll(fds, until.map(|until| timeout(shared.now(), until)), None);
    if let Some(peers) = sleeps {
        let guard = shared.core.lock();
        if !guard.waiters.are_asleep() {
            peers.sleep.end();
        }
        shared.leave(guard, shared.now());
    }
    let is_ready = |at: Option<usize>| at.is_some_and(|at| fds[at].any() == Some(true));
    let (is_alarmed, has_requests) = (is_ready(Some(0)), is_ready(requests));
    let has_news = is_ready(peers) || is_ready(doorbells) || is_alarmed || !sleep.is_for_packets();
    if is_ready(link) || shared.has_link_changed() {
        shared.follow_link();
    }
    if let Some(membership) = shared.socket.membership() {
        if is_ready(members) {
            membership.admit();
        }
        membership.join_no_packets();
    }
    if has_requests {
        shared.handle_requests();
    }
    if has_news {
        shared.attend_peers(Attendant::Worker);
    }
    // An alarm set from now on ends the next sleep.
    is_alarmed && shared.alarm.read().is_ok()
}

fn timeout(now: Time, until: Time) -> TimeSpec {
    Duration::from_nanos(until.0.saturating_sub(now.0)).into()
}

/// The maximum number of files that the worker always waits for.
const FEW: usize = 8;

/// The minimum number of polls per [`TICK`] that counts as polling. A program with fewer polls
/// waits for events or polls only occasionally.
const POLLING: u64 = 8;

/// The worker's first rest while a program polls, in nanoseconds.
const TICK: u64 = 1_000_000;

/// The worker's longest rest while a program polls, in nanoseconds. Each rest is twice as long as
/// the previous one. A waking worker may take the poller's processor: with a tick of 1 ms, a
/// ping-pong in an emulated guest took 1.5 times as long.
const LONGEST_TICK: u64 = 8 * TICK;

/// The time, in nanoseconds, within which a polling program polls at least once, unless one poll
/// takes long.
const PAUSE: u64 = TICK / 5;

/// The time, in nanoseconds, within which a program in a polling loop polls again, unless the
/// scheduler preempts it.
const GLANCE: u64 = 30_000;

/// The time, in nanoseconds, that the kernel may add to a rest.
const SLACK: u64 = 1_000;

/// The number of glances after the first stalls. Each may preempt the program.
const FEW_GLANCES: u32 = 2;

/// The number of stalls after which a program is expected to stall with each message.
const STALLS: u32 = 4;

/// The number of glances after repeated stalls.
const GLANCES: u32 = 64;

/// The number of checks of memory between two yields; together they take some microseconds.
const LOOKS: u32 = 16;

/// The number of rounds before the worker releases the lock, unless the turn's share is used up
/// earlier.
const ROUNDS: u32 = 64;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_and_a_stall_replaces_the_next_by_glances() {
        let mut rests = Backoff::default();
        let ms: Vec<_> = (0..5).map(|_| rests.next().unwrap() / TICK).collect();
        assert_eq!(ms, [1, 2, 4, 8, 8]);
        for _ in 1..STALLS {
            assert!(!rests.stalled());
            assert!((0..FEW_GLANCES - 1).all(|_| rests.next().is_none()));
        }
        assert!(rests.stalled(), "again and again");
        assert!((0..GLANCES).all(|_| rests.next().is_none()));
        assert_eq!(rests.next(), Some(TICK));
        assert!(!rests.stalled(), "the stalls before the rest no longer count");
        assert!((0..FEW_GLANCES).all(|_| rests.next().is_none()));
        assert_eq!(rests.next(), Some(TICK));
    }

    #[test]
    fn only_a_program_that_polls_often_enough_counts_as_polling() {
        let (mut pattern, mut polls, mut now) = (PollPattern::new(0, Time(0), 0), 0, Time(0));
        let mut count = |count: u64, after: u64| {
            (polls, now) = (polls + count as u32, now + after);
            pattern.count(polls, now);
            (pattern.has_polled, pattern.is_polled)
        };
        assert_eq!(count(0, TICK), (false, false));
        assert_eq!(count(POLLING - 1, TICK), (true, false));
        assert_eq!(count(POLLING, TICK), (true, true));
        assert_eq!(count(0, TICK / 2), (false, true), "too soon to tell");
        assert_eq!(count(POLLING, TICK / 2), (true, true));
        assert_eq!(count(POLLING * 10 - 1, 10 * TICK), (true, false), "long ago is not now");
    }
}
