//! [`Manager`]: the connection manager of the process for soft devices, and its thread.
//!
//! ```text
//!   calls of ids ─┬─► lock ─► State ─► messages leave, events are queued
//!   the thread ───┘    ▲
//!      └─ epoll_wait: management datagrams, clients of names, lookups, the next deadline
//! ```
//!
//! The thread starts with the first soft id, and lives as long as the process. It waits by epoll,
//! not by poll, so that files may come and go while it waits.
//!
//! Strangers fill queue pair 1 as fast as they can. The thread therefore takes a bounded number of
//! datagrams before it sends, serves what is due and releases the lock, and then lets a waiting
//! call go first.
//!
//! A call never waits for a peer. If it brings an earlier deadline, it wakes the thread. What a
//! call removes is dropped after the lock is released: the end of a request's id takes the lock.
//! Readers of events are woken then as well, because their next call takes it.
//!
//! # Exit
//! A process that exits with connections tells their peers, as the kernel does when it closes the
//! files of a process: [`farewell`] runs by `exit(3)` and the return from `main`. One that is
//! killed, aborts or calls `_exit(2)` is noticed by its peers on this machine
//! ([`peers`](super::peers)), and elsewhere by its silence.
//!
//! # Fork
//! A forked child has no manager. Its calls fail with [`Cause::Forked`] before they touch the lock,
//! which another thread may have held, and ids that it drops end nothing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use ib_cm::time::{MILLISECOND, Time};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use verbs::soft::cm::{ForkMark, at_exit, at_new_port};
use verbs::{Cause, Errno, Error, Result};
use verbs_core::fork::ForkLock;
use verbs_core::thread;

use super::presence::note_new_port;
use super::state::State;
use super::wait::Token;

static MANAGER: OnceLock<Manager> = OnceLock::new();

/// The process that has started the manager, or is starting it; 0 before.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The connection manager of the process.
#[derive(Debug)]
pub(super) struct Manager {
    state: Mutex<State>,
    /// Held while waiting for `state`, and by the thread before it takes `state`. While MADs wait,
    /// the thread takes `state` again at once, and so queues behind a caller.
    next: Mutex<()>,
    epoll: Arc<Epoll>,
    wake: EventFd,
    mark: ForkMark,
}

/// Returns the manager, which the first call starts.
///
/// # Errors
/// `ENODEV` with [`Cause::Forked`] in a child of the process that started it; any errno of
/// `epoll_create1(2)`, `eventfd(2)` and of starting a thread.
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

/// Returns whether this process is a forked child of the one that started the manager.
pub(super) fn is_forked() -> bool {
    match MANAGER.get() {
        Some(manager) => manager.mark.is_gone(),
        None => {
            let starter = PROCESS.load(Ordering::Relaxed);
            starter != 0 && starter != std::process::id()
        }
    }
}

/// Wakes the thread for a device that the process has made.
fn on_new_port() {
    note_new_port();
    if let Some(manager) = MANAGER.get().filter(|_| !is_forked()) {
        // Full means that the thread wakes.
        let _ = manager.wake.write(1);
    }
}

/// Tells the peers of all connections that the process exits. It gives up where another thread
/// keeps the lock, or this one, which a signal handler has interrupted.
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

/// The number of looks at a lock that another thread has, with a yield after each.
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
    /// Runs a call on the state, and sends and reports what comes of it.
    ///
    /// # Errors
    /// `ENODEV` with [`Cause::Forked`] in a forked child; those of the call.
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
            // Full means that the thread wakes.
            let _ = self.wake.write(1);
        }
        result.map_err(|errno| Error::new(verb, "", errno))
    }

    /// The manager's thread.
    fn run(&self) {
        let mut events = [EpollEvent::empty(); 64];
        let mut ready = 0;
        loop {
            let timeout = self.round(events.get(..ready).unwrap_or_default());
            // An error is an interruption, and finds nothing ready.
            ready = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        }
    }

    /// Serves what is ready, executes what is due, and returns the time to wait.
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

    /// Takes the lock after a caller that waits for it.
    fn lock_in_turn(&self) -> MutexGuard<'_, State> {
        let _next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases the lock, and does what is done without it: wakes the readers of new events, and drops
/// what was removed.
fn release(mut state: MutexGuard<'_, State>) {
    let (told, garbage) = (state.told.take(), core::mem::take(&mut state.garbage));
    drop(state);
    if let Some(queue) = told {
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
