//! [`Manager`]: the process's connection manager for soft devices, with its thread.
//!
//! ```text
//!   calls of ids ─┬─► lock ─► State ─► messages leave, events are queued
//!   the thread ───┘    ▲
//!      └─ epoll_wait: management datagrams, clients of names, lookups, the next deadline
//! ```
//!
//! The thread starts with the first soft id and lives as long as the process. It uses epoll rather
//! than poll, so that files can be added and removed while it waits.
//!
//! Unknown hosts may flood queue pair 1. In each round, the thread therefore receives a bounded
//! number of datagrams, sends messages, handles deadlines and releases the lock. Waiting calls then
//! acquire the lock first.
//!
//! A call never waits for a peer. A call that sets an earlier deadline wakes the thread. Values
//! removed by a call are dropped after the lock is released, because dropping a request's id takes
//! the lock. Readers of events are woken after that, because their next call takes the lock.
//!
//! # Exit
//! When a process with connections exits by `exit(3)` or returns from `main`, [`farewell`] notifies
//! its peers, as the kernel does when it closes a process's files. If the process is killed, aborts
//! or calls `_exit(2)`, peers on this machine notice its end ([`peers`](super::peers)); other peers
//! notice its silence.
//!
//! # Fork
//! A forked child has no manager. Its calls fail with [`Cause::Forked`] before they touch the lock,
//! which another thread may have held at the fork. Dropping inherited ids does not affect the
//! parent.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use ib_cm::time::{MILLISECOND, Time};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use provider_soft::cm::{ForkMark, at_exit, at_new_port};
use verbs::{Cause, Errno, Error, Result};
use verbs_core::fork::ForkLock;
use verbs_core::thread;

use super::key::Token;
use super::presence::note_new_port;
use super::state::State;

static MANAGER: OnceLock<Manager> = OnceLock::new();

/// The process that started the manager or is starting it; 0 if no process has.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The connection manager of the process.
#[derive(Debug)]
pub(super) struct Manager {
    state: Mutex<State>,
    /// Held by callers while they wait for `state`, and by the thread before it takes `state`.
    /// While MADs are pending, the thread retakes `state` immediately; this lock queues the thread
    /// behind callers.
    next: Mutex<()>,
    epoll: Arc<Epoll>,
    wake: EventFd,
    mark: ForkMark,
}

/// Returns the manager. The first call starts it.
///
/// # Errors
/// `ENODEV` with [`Cause::Forked`] in a child of the starting process; any errno from
/// `epoll_create1(2)`, from `eventfd(2)` and from starting a thread.
pub(super) fn manager(verb: &'static str) -> Result<&'static Manager> {
    if let Some(manager) = MANAGER.get().filter(|manager| !manager.mark.is_gone()) {
        return Ok(manager);
    }
    let process = std::process::id();
    let starter = PROCESS.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
    if starter.is_err_and(|starter| starter != process) {
        return Err(Error::new(verb, "", Errno::NODEV).because(Cause::Forked));
    }
    if let Some(manager) = MANAGER.get() {
        return Ok(manager);
    }
    static STARTING: ForkLock<()> = ForkLock::new(());
    let _starting = STARTING.lock_or(|| ());
    match MANAGER.get() {
        Some(manager) => Ok(manager),
        None => start().map_err(|errno| Error::new(verb, "", errno)),
    }
}

/// Returns whether this process is a forked child of the process with the manager.
pub(super) fn is_forked() -> bool {
    match MANAGER.get() {
        Some(manager) => manager.mark.is_gone(),
        None => {
            let starter = PROCESS.load(Ordering::Relaxed);
            starter != 0 && starter != std::process::id()
        }
    }
}

/// Wakes the thread because the process has a new device.
fn on_new_port() {
    note_new_port();
    if let Some(manager) = MANAGER.get().filter(|_| !is_forked()) {
        // If the counter is full, the thread wakes anyway.
        let _ = manager.wake.write(1);
    }
}

/// Notifies the peers of all connections that the process exits. Gives up if the lock remains held,
/// by another thread or by code of this thread that a signal handler has interrupted.
fn farewell() {
    let Some(manager) = MANAGER.get().filter(|_| !is_forked()) else { return };
    for _ in 0..PATIENCE {
        match manager.state.try_lock() {
            Ok(mut state) => return state.farewell(),
            Err(TryLockError::Poisoned(state)) => return state.into_inner().farewell(),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// The number of attempts to acquire the lock, with a yield after each.
const PATIENCE: u32 = 1000;

fn start() -> Result<&'static Manager, Errno> {
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    epoll.add(&wake, Token::Wake.event())?;
    let mark = ForkMark::new()?;
    let state = Mutex::new(State::new(Arc::clone(&epoll)));
    thread::start("rdmacm-soft", || MANAGER.wait().run())?;
    at_exit(farewell);
    at_new_port(on_new_port);
    Ok(MANAGER.get_or_init(|| Manager { state, next: Mutex::default(), epoll, wake, mark }))
}

impl Manager {
    /// Runs a call on the state, then sends the resulting messages and reports the events.
    ///
    /// # Errors
    /// `ENODEV` with [`Cause::Forked`] in a forked child; the errors of the call.
    pub(super) fn call<T>(
        &self,
        verb: &'static str,
        call: impl FnOnce(&mut State) -> Result<T, Errno>,
    ) -> Result<T> {
        if self.mark.is_gone() {
            return Err(Error::new(verb, "", Errno::NODEV).because(Cause::Forked));
        }
        let mut state = self.lock();
        let result = call(&mut state);
        state.flush();
        state.sweep();
        let is_early = state.deadline() < state.sleeps_until;
        release(state);
        if is_early {
            // If the counter is full, the thread wakes anyway.
            let _ = self.wake.write(1);
        }
        result.map_err(|errno| Error::new(verb, "", errno))
    }

    /// Runs the manager's thread.
    fn run(&self) {
        let mut events = [EpollEvent::empty(); 64];
        let mut ready = 0;
        loop {
            let timeout = self.round(events.get(..ready).unwrap_or_default());
            // An error means an interruption; then no file is ready.
            ready = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        }
    }

    /// Serves ready files and handles deadlines. Returns the time to wait before the next round.
    fn round(&self, events: &[EpollEvent]) -> EpollTimeout {
        let mut state = self.lock_in_turn();
        for event in events {
            let token = Token::decode(event.data());
            if token == Token::Wake {
                let _ = self.wake.read();
            }
            state.on_ready(token);
        }
        state.end_peers();
        state.receive();
        state.on_time();
        state.flush();
        state.sweep();
        let deadline = state.deadline();
        state.sleeps_until = deadline;
        let timeout = timeout(state.now(), deadline);
        release(state);
        timeout
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => self.lock_in_turn(),
        }
    }

    /// Acquires the lock behind any waiting caller.
    fn lock_in_turn(&self) -> MutexGuard<'_, State> {
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases the lock, then does the work that must not hold it: wakes the readers of new events and
/// drops removed values.
fn release(mut state: MutexGuard<'_, State>) {
    let (to_wake, garbage) = (state.to_wake.take(), core::mem::take(&mut state.garbage));
    drop(state);
    if let Some(queue) = to_wake {
        queue.signal();
    }
    drop(garbage);
}

/// Returns the time until a deadline in whole milliseconds, rounded up.
fn timeout(now: Time, deadline: Time) -> EpollTimeout {
    if deadline == Time(u64::MAX) {
        return EpollTimeout::NONE;
    }
    let left = deadline.0.saturating_sub(now.0).div_ceil(MILLISECOND);
    EpollTimeout::try_from(i32::try_from(left).unwrap_or(i32::MAX)).unwrap_or(EpollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_wait_is_rounded_up() {
        let wait = |left| timeout(Time(5), Time(5 + left)).as_millis();
        assert_eq!([0, 1, MILLISECOND, MILLISECOND + 1].map(wait), [0, 1, 1, 2].map(Some));
        assert_eq!(timeout(Time(5), Time(3)).as_millis(), Some(0));
        assert_eq!(timeout(Time(5), Time(u64::MAX)), EpollTimeout::NONE);
        assert_eq!(timeout(Time(5), Time(u64::MAX - 1)).as_millis(), Some(i32::MAX as u32));
    }
}
