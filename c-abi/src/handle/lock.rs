//! [`Spin`]: the lock of a queue.
//!
//! In C, any thread may post and poll. A call holds the lock for a few hundred instructions, so a
//! thread that finds the lock taken spins first.
//!
//! A program may poll without pause, so the lock may be free only for moments. If spinning fails, a
//! thread therefore *waits*: it counts itself as waiting and draws a ticket number. Waiting threads
//! acquire the lock in ticket order.
//!
//! ```text
//!   a thread                          takes the lock
//!   finds no waiting thread           if it is free
//!   finds a waiting thread            once no thread waits; waits too if that takes long
//!   waits, and its turn has come      if it is free
//!   waits for its turn                not yet: it sleeps
//! ```
//!
//! While a thread waits, each other thread acquires the lock at most once more, with an attempt
//! that it had already begun. If the lock is held for long, or the machine has more threads than
//! processors, waiting threads sleep and leave their processors to other threads.
//!
//! Releasing the lock is only a store and wakes no thread, because waking would cost every post and
//! every poll a barrier. The next thread that needs the lock, usually a poller, wakes the first
//! waiting thread. A sleeping thread also wakes up by itself from time to time.
//!
//! A forked child has a copy of each lock, but not the threads that held it or waited for it. A
//! taken lock contains the generation of its holder's process ([`verbs_core::fork::generation`]),
//! so the child waits only for its own threads. If it would wait for any other thread, the wait
//! ends at once. A thread checks for a fork before it waits. Acquiring a free lock needs no check,
//! because the lock works with either generation. A program that opens a kernel device and calls
//! `daemon(3)` uses its locks as before.
//!
//! # Safety
//! [`Spin`] gives `&mut` access to its value to one owner at a time. `futex(2)` compares and waits;
//! it changes no memory.
//!
//! # References
//! `futex(2)`
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::thread;

use verbs_core::Errno;
use verbs_core::fork::{current_generation, generation};

/// A value behind a spin lock.
#[derive(Debug)]
pub(crate) struct Spin<T> {
    /// 0, or the generation of the holder's process.
    holder: AtomicU32,
    /// Whether the value was destroyed. The lock then stays held, so only waiting threads read
    /// this.
    has_ended: AtomicBool,
    /// The negated number of waiting threads, or [`SINGLE`]. One word holds both, so the common
    /// case costs one test. The count is negative to differ from every generation ([`Attempt`]).
    waiting: AtomicI32,
    /// The ticket number for the next thread to wait.
    next: AtomicU32,
    /// The ticket number of the first waiting thread, if any.
    turn: AtomicU32,
    /// [`ASLEEP`] while the first waiting thread sleeps.
    sleep: AtomicU32,
    /// The generation of the process whose threads wait, if any do.
    line: AtomicU32,
    /// The generation of the process that found the lock held by a thread of its parent.
    lost: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the owner of the lock accesses the value, whichever thread that is.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    /// Creates a lock around a value. The lock does nothing if the program guarantees that only one
    /// thread at a time uses the value.
    pub(crate) fn new(value: T, is_single_threaded: bool) -> Self {
        Self {
            holder: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
            waiting: AtomicI32::new(if is_single_threaded { SINGLE } else { 0 }),
            next: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            sleep: AtomicU32::new(0),
            line: AtomicU32::new(current_generation()),
            lost: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Calls `with` with the value while holding the lock.
    ///
    /// # Errors
    /// Same as [`why_not`](Self::why_not).
    #[inline(always)]
    pub(crate) fn with<R>(&self, with: impl FnOnce(&mut T) -> R) -> Result<R, Errno> {
        if !self.lock() {
            return Err(self.why_not());
        }
        // SAFETY: this call holds the lock, and releases it after the end of the borrow.
        let result = with(unsafe { &mut *self.value.get() });
        // SAFETY: `lock` returned true above.
        unsafe { self.unlock() };
        Ok(result)
    }

    /// Calls `with` with the value if the lock is free and no thread waits for it.
    pub(crate) fn try_with<R>(&self, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        let attempt = self.attempt();
        let is_locked = attempt.has_lock() || self.waiting.load(Ordering::Relaxed) == SINGLE;
        if !is_locked {
            self.note(attempt);
        }
        is_locked.then(|| {
            // SAFETY: this call holds the lock, and releases it after the end of the borrow.
            let result = with(unsafe { &mut *self.value.get() });
            // SAFETY: the lock was acquired above, or is not needed.
            unsafe { self.unlock() };
            result
        })
    }

    /// Acquires the lock, which is held until [`unlock`](Self::unlock). Returns false if no thread
    /// will release it: see [`why_not`](Self::why_not).
    #[inline(always)]
    pub(crate) fn lock(&self) -> bool {
        let attempt = self.attempt();
        attempt.has_lock() || self.wait(attempt)
    }

    /// Returns the reason why the lock could not be acquired: `EINVAL` if the value was destroyed;
    /// `ENODEV` in a forked child if a thread of its parent held the lock or waited for it.
    #[cold]
    pub(crate) fn why_not(&self) -> Errno {
        if self.has_ended.load(Ordering::Acquire) { Errno::INVAL } else { Errno::NODEV }
    }

    /// Marks the value as destroyed and wakes the first waiting thread.
    ///
    /// # Safety
    /// The caller must hold the lock and never release it.
    pub(crate) unsafe fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.wake_first();
    }

    /// Acquires the lock if it is free and no thread waits. Otherwise the caller must call
    /// [`wait`](Self::wait). Queues without a lock take that path too, which saves all other queues
    /// a test.
    #[inline(always)]
    pub(crate) fn attempt(&self) -> Attempt {
        match self.waiting.load(Ordering::Relaxed) {
            0 => self.swap(),
            waiting => Attempt(waiting.cast_unsigned()),
        }
    }

    /// Acquires the lock if it is free.
    #[inline(always)]
    fn swap(&self) -> Attempt {
        Attempt(self.holder.swap(generation(), Ordering::Acquire))
    }

    /// Records that a thread of a parent process holds the lock, because the attempt has
    /// overwritten that process's generation.
    fn note(&self, attempt: Attempt) {
        let own = current_generation();
        if attempt.was_made() && attempt.0 != own {
            self.lost.store(own, Ordering::Relaxed);
        }
    }

    /// Acquires the lock if it is free. Returns whether the lock was acquired.
    fn take(&self) -> bool {
        let attempt = self.swap();
        if !attempt.has_lock() {
            self.note(attempt);
        }
        attempt.has_lock()
    }

    /// Returns whether no thread of this process will release the lock: the value was destroyed, or
    /// a thread of the parent held the lock or waited for it at the fork.
    pub(crate) fn is_hopeless(&self) -> bool {
        let own = current_generation();
        let holder = self.holder.load(Ordering::Relaxed);
        let has_other_line =
            self.waiting.load(Ordering::Acquire) < 0 && self.line.load(Ordering::Relaxed) != own;
        let is_of_parent = holder != 0 && holder != own;
        is_of_parent
            || has_other_line
            || self.lost.load(Ordering::Relaxed) == own
            || self.has_ended.load(Ordering::Acquire)
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The caller must hold the lock, and no reference returned by [`get`](Self::get) may be used
    /// afterwards.
    #[inline(always)]
    pub(crate) unsafe fn unlock(&self) {
        self.holder.store(0, Ordering::Release);
    }

    /// Returns the value for reading, while the lock is held.
    ///
    /// # Safety
    /// The caller must hold the lock for the life of the reference, and no mutable reference may be
    /// used meanwhile.
    pub(crate) unsafe fn get_shared(&self) -> &T {
        // SAFETY: the caller holds the lock, and no mutable reference is used.
        unsafe { &*self.value.get() }
    }

    /// Returns the value for reading and writing, while the lock is held.
    ///
    /// # Safety
    /// The caller must hold the lock for the life of the reference and have no other reference.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller holds the lock, and has no other reference.
        unsafe { &mut *self.value.get() }
    }

    /// Returns the address of the value, for the owner that destroys it.
    pub(crate) const fn as_ptr(&self) -> *mut T {
        self.value.get()
    }

    /// Waits for the lock after a failed attempt. Returns false if no thread will release it.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait(&self, attempt: Attempt) -> bool {
        if self.waiting.load(Ordering::Relaxed) == SINGLE {
            return true;
        }
        self.note(attempt);
        let (mut spins, mut yields) = (0, 0);
        loop {
            if self.is_hopeless() {
                return false;
            } else if self.waiting.load(Ordering::Relaxed) < 0 {
                // Lets other threads run first, because only a running thread can acquire the lock.
                self.wake_first();
                if yields == YIELDS {
                    break;
                }
                yields += 1;
                thread::yield_now();
            } else if self.holder.load(Ordering::Relaxed) == 0 && self.take() {
                return true;
            } else if spins == FEW_SPINS {
                break;
            } else {
                spins += 1;
                spin_loop();
            }
        }
        self.wait_in_line(self.enter_line())
    }

    /// Counts this thread as waiting and returns its ticket number.
    fn enter_line(&self) -> u32 {
        // Any waiting thread belongs to this process: after a fork with waiting threads, the child
        // does not wait.
        self.line.store(current_generation(), Ordering::Relaxed);
        // This is in one total order with the turns: see `wait_in_line`.
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until this ticket number is first and then for the lock. Returns false if no thread
    /// will release it.
    fn wait_in_line(&self, number: u32) -> bool {
        let mut spins = 0;
        loop {
            let turn = self.turn.load(Ordering::SeqCst);
            if turn == number {
                break;
            }
            if spins < SPINS {
                spins += 1;
                spin_loop();
            } else {
                futex_wait(&self.turn, turn, bit_of(number), None);
            }
        }
        let is_taken = self.take_turn();
        // This precedes the next turn, so a thread that finds no waiting thread finds the lock
        // held.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let next = number.wrapping_add(1);
        // Either this thread sees the next thread counted, or the next thread sees its turn before
        // it sleeps. Each thread writes before it reads the other's value, and all four accesses
        // have one total order.
        self.turn.swap(next, Ordering::SeqCst);
        // The next thread may be asleep. Once awake, it acquires the lock soon after this thread
        // has released it.
        if self.waiting.load(Ordering::SeqCst) < 0 {
            futex_wake(&self.turn, bit_of(next));
        }
        is_taken
    }

    /// Acquires the lock as soon as it is free. Returns false if no thread will release it.
    fn take_turn(&self) -> bool {
        let (mut spins, mut nanoseconds) = (0, FIRST_SLEEP);
        loop {
            if self.holder.load(Ordering::Relaxed) == 0 && self.take() {
                return true;
            }
            if self.is_hopeless() {
                return false;
            }
            if spins < SPINS {
                spins += 1;
                spin_loop();
                continue;
            }
            self.sleep.store(ASLEEP, Ordering::Release);
            futex_wait(&self.sleep, ASLEEP, ANY, Some(nanoseconds));
            self.sleep.store(0, Ordering::Relaxed);
            nanoseconds = (2 * nanoseconds).min(LAST_SLEEP);
        }
    }

    /// Wakes the first waiting thread, if it sleeps.
    fn wake_first(&self) {
        if self.sleep.load(Ordering::Relaxed) == ASLEEP && self.sleep.swap(0, Ordering::AcqRel) == ASLEEP {
            futex_wake(&self.sleep, ANY);
        }
    }
}

/// The result of one attempt to acquire a lock: the previous value of the holder's word, or the
/// negative count of waiting threads if the attempt was not made.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Attempt(u32);

impl Attempt {
    /// Returns whether the attempt acquired the lock.
    #[inline(always)]
    pub(crate) const fn has_lock(self) -> bool {
        self.0 == 0
    }

    /// Returns whether no thread waited and a lock is needed.
    const fn was_made(self) -> bool {
        self.0 <= i32::MAX.cast_unsigned()
    }
}

/// Stored in `waiting` if only one thread at a time uses the value.
const SINGLE: i32 = i32::MIN;
/// The value of `sleep` while the first waiting thread is asleep.
const ASLEEP: u32 = 1;
/// The number of times that a thread checks the lock before it counts itself as waiting: a few
/// microseconds.
const FEW_SPINS: u32 = 50;
/// The number of times that a thread yields to waiting threads before it waits as well.
const YIELDS: u32 = 4;
/// The number of times that a waiting thread checks the lock before it sleeps.
const SPINS: u32 = 500;
/// The first sleep of the first waiting thread, in nanoseconds. Each sleep is twice as long as the
/// previous one, up to a limit.
const FIRST_SLEEP: u32 = 20_000;
const LAST_SLEEP: u32 = 1_000_000;

/// All wake bits of a futex, which match any thread.
pub(crate) const ANY: u32 = libc::FUTEX_BITSET_MATCH_ANY as u32;

/// Returns the wake bit of the thread with this ticket number, shared with few other threads.
const fn bit_of(number: u32) -> u32 {
    1 << (number % 32)
}

/// Sleeps while the word is `expected`, until a thread wakes this thread with one of the bits or
/// the given nanoseconds have passed. Wakeups may be spurious.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, bits: u32, nanoseconds: Option<u32>) {
    let until = nanoseconds.map(|nanoseconds| {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock exists, and the time is a variable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let sum = now.tv_nsec + i64::from(nanoseconds);
        libc::timespec { tv_sec: now.tv_sec + sum / SECOND, tv_nsec: sum % SECOND }
    });
    let until = until.as_ref().map_or(core::ptr::null(), |until| until as *const libc::timespec);
    let no_word = core::ptr::null::<u32>();
    let wait = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives as long as the call, and the time is null or lives as long.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, expected, until, no_word, bits) };
}

/// Wakes the threads that sleep on the word with at least one of these bits.
pub(crate) fn futex_wake(word: &AtomicU32, bits: u32) {
    let wake = libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG;
    let (no_time, no_word) = (core::ptr::null::<libc::timespec>(), core::ptr::null::<u32>());
    // SAFETY: the kernel uses only the address of the word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, i32::MAX, no_time, no_word, bits) };
}

const SECOND: i64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;

    impl<T> Spin<T> {
        /// Spins until this many threads wait.
        fn until_waiting(&self, count: i32) {
            let deadline = Instant::now() + Duration::from_secs(60);
            while self.waiting.load(Ordering::Relaxed) != -count {
                assert!(Instant::now() < deadline, "no thread waits");
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_thread_that_waits_learns_that_the_value_has_ended() {
        let lock = Arc::new(Spin::new(0_u64, false));
        assert!(lock.lock());
        let waiting: Vec<_> = (0..3)
            .map(|count| {
                let its = Arc::clone(&lock);
                let thread = thread::spawn(move || its.with(|value| *value));
                lock.until_waiting(count + 1);
                thread
            })
            .collect();
        // SAFETY: this thread holds the lock, and keeps it.
        unsafe { lock.end() };
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Err(Errno::INVAL));
        }
        assert_eq!(lock.with(|value| *value), Err(Errno::INVAL));
    }

    #[test]
    fn a_child_waits_for_no_thread_of_its_parent() {
        let taken = Spin::new(0_u64, false);
        taken.holder.store(generation() + 1, Ordering::Relaxed);
        for _ in 0..3 {
            assert_eq!(taken.with(|value| *value), Err(Errno::NODEV));
        }
        let waited_for = Spin::new(0_u64, false);
        waited_for.enter_line();
        waited_for.line.store(generation() + 1, Ordering::Relaxed);
        for _ in 0..3 {
            assert_eq!(waited_for.with(|value| *value), Err(Errno::NODEV));
        }
    }

    #[test]
    fn threads_of_a_child_take_turns_with_a_lock_that_was_free_at_the_fork() {
        let lock = Arc::new(Spin::new(0_u64, false));
        lock.line.store(generation() + 1, Ordering::Relaxed);
        let held = lock.lock();
        let its = Arc::clone(&lock);
        let waiting = thread::spawn(move || its.with(|value| *value += 1));
        lock.until_waiting(1);
        assert!(held);
        // SAFETY: the lock was taken above.
        unsafe { lock.unlock() };
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }

    #[test]
    fn threads_take_turns() {
        let lock = Arc::new(Spin::new(0_u64, false));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || (0..10_000).for_each(|_| lock.with(|value| *value += 1).unwrap()))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(lock.with(|value| *value), Ok(40_000));
    }

    #[test]
    fn a_poller_that_comes_back_leaves_the_lock_to_a_thread_that_waits() {
        let lock = Arc::new(Spin::new(Vec::new(), false));
        assert!(lock.lock());
        let its = Arc::clone(&lock);
        let waiting = thread::spawn(move || its.with(|order| order.push("waits")));
        lock.until_waiting(1);
        // SAFETY: the lock was taken above.
        unsafe { lock.unlock() };
        // However the threads are scheduled, the poller's next poll comes second.
        lock.with(|order| order.push("polls")).unwrap();
        waiting.join().unwrap().unwrap();
        assert_eq!(lock.with(|order| order.clone()).unwrap(), ["waits", "polls"]);
    }

    #[test]
    fn threads_that_wait_get_their_turns_in_the_order_in_which_they_came() {
        let lock = Arc::new(Spin::new(Vec::new(), false));
        assert!(lock.lock());
        let waiting: Vec<_> = (0..5)
            .map(|number| {
                let its = Arc::clone(&lock);
                let thread = thread::spawn(move || its.with(|order| order.push(number)));
                lock.until_waiting(number + 1);
                thread
            })
            .collect();
        // SAFETY: the lock was taken above.
        unsafe { lock.unlock() };
        waiting.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        assert_eq!(lock.with(|order| order.clone()).unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(lock.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn pollers_that_never_pause_poll_once_each_at_most_while_a_thread_waits() {
        const POLLERS: u64 = 3;
        let lock = Arc::new(Spin::new((), false));
        let polls = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let pollers: Vec<_> = (0..POLLERS)
            .map(|_| {
                let (lock, polls, stop) = (Arc::clone(&lock), Arc::clone(&polls), Arc::clone(&stop));
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        lock.with(|()| polls.fetch_add(1, Ordering::SeqCst)).unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..200 {
            // A thread that has spun without success does the same.
            let number = lock.enter_line();
            let before = polls.load(Ordering::SeqCst);
            assert!(lock.wait_in_line(number));
            let after = polls.load(Ordering::SeqCst);
            // SAFETY: this thread holds the lock.
            unsafe { lock.unlock() };
            assert!(after - before <= POLLERS, "{} polls", after - before);
        }
        stop.store(true, Ordering::Relaxed);
        pollers.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn one_thread_at_a_time_needs_no_lock() {
        let lock = Spin::new(0, true);
        assert!(lock.lock() && lock.lock());
        assert_eq!(lock.with(|value| *value), Ok(0));
    }
}
