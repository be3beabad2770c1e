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

use crate::machine::{Acks, Sleep};
use crate::records::Records;
use crate::shared::Shared;

/// The thread's life.
pub(crate) fn run(shared: &Shared) {
    // The program's signals are for the program's threads.
    let _ = SigSet::all().thread_block();
    let mut polls = shared.polls.load(Ordering::Relaxed);
    // Does the machine say that the thread leaves everything to who polls, and nothing else? An alarm may have changed that.
    let mut left = false;
    let mut tick = TICK;
    while !shared.stop.load(Ordering::Acquire) {
        let seen = core::mem::replace(&mut polls, shared.polls.load(Ordering::Relaxed));
        let is_polled = polls.wrapping_sub(seen) >= POLLING * (tick / TICK) as u32;
        tick = if is_polled && left { (2 * tick).min(LONGEST_TICK) } else { TICK };
        let looked = look(shared, is_polled, left, tick);
        let again = || (Sleep { until: Some(shared.now() + tick), ..Sleep::POLLED }, Vec::new());
        let (sleep, clogged) = looked.unwrap_or_else(again);
        let alarmed = wait(shared, &sleep, &clogged);
        left = !sleep.for_packets && !alarmed;
    }
}

/// Sees to everything, and decides what to sleep for: `tick` where somebody polls. `None` if somebody who polls is at it: all is as it was.
fn look(shared: &Shared, is_polled: bool, left: bool, tick: u64) -> Option<(Sleep, Vec<Arc<Records>>)> {
    let mut guard = if is_polled && left { shared.turn.try_take()? } else { shared.turn.take() };
    let mut now = shared.now();
    if is_polled && !guard.hub.is_armed() {
        // What is done here is not done by who polls, and costs both of them the change of processor.
        let sleep = Sleep { until: Some(now + tick), ..Sleep::POLLED };
        guard.sleep = sleep;
        shared.leave(guard, now);
        return Some((sleep, Vec::new()));
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
    Some((sleep, clogged))
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

/// So many polls in a [`TICK`] are a program that polls, rather than one that waits for events.
const POLLING: u32 = 8;

/// How long it leaves a program alone that has begun to poll, in nanoseconds.
const TICK: u64 = 1_000_000;

/// And one that goes on polling, for each look finds that twice as long is enough. To wake costs who polls its processor:
/// with a tick of a millisecond a ping-pong in an emulated guest took half as long again.
const LONGEST_TICK: u64 = 8 * TICK;

/// So often it looks again before it lets others have the turn.
const ROUNDS: u32 = 64;
