//! [`CombiningLock`]: gives the device to one thread at a time, without losing work from threads
//! that do not wait.
//!
//! The thread working on a device holds its lock: a posting thread, a polling thread, or the
//! worker. The data path never waits for the lock. A posting thread puts its work where the holder
//! finds it (a ring, and a bit naming the ring) and then *announces* it. Announcing is one atomic
//! operation on one word: it sets PENDING and, if the lock is free, acquires it.
//!
//! ```text
//!   word: 0               free
//!         HELD            a thread works
//!         HELD|PENDING    a thread works, and there is work that it may not have seen
//!         PENDING         free, and there is work that the next holder sees
//! ```
//!
//! - Free: the announcing thread now holds the lock and does the work itself.
//! - Held: the announcing thread returns at once. The holder cannot miss the work. It
//!   [releases](Guard::try_release) the lock by a compare-and-exchange from HELD to 0, which fails
//!   while PENDING is set. After a failure, the holder clears PENDING, looks at the rings again,
//!   and retries.
//!
//! Therefore, after every announcement, some thread clears PENDING and looks at the rings
//! afterwards. This thread sees the work. The poster wrote it before its operation on the word
//! (release). When the holder clears PENDING, it reads the poster's write of the word or a later
//! one in modification order (acquire). All of these writes are read-modify-writes, so they
//! continue the release sequence. With only one word, the relative order of two words never
//! matters.
//!
//! A holder that has used up its share of work [releases the lock anyway](Guard::release). PENDING
//! stays set; the next holder clears it and looks at the rings, as above. Before releasing, the
//! holder must ensure that another thread will acquire the lock. A thread announcing work after the
//! release acquires the lock itself.
//!
//! A poller takes the lock if it is free and otherwise returns, because the holder receives packets
//! anyway. Control calls wait for the lock: they spin, then yield. A holder never makes a blocking
//! system call. To keep fast pollers from starving control calls, a poller yields once before
//! taking the lock while another thread waits. The lock is not reserved for the waiting thread,
//! because that thread may be descheduled, and all other threads would wait for it.
//!
//! # Safety
//! The value is reached only through a [`Guard`]. A guard exists only between a successful change
//! of the word from not HELD to HELD (acquire) and the change back (release), so there is only one
//! guard at a time.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};

use crate::sync::primitives::atomic::{AtomicU32, Ordering};
use crate::sync::primitives::{UnsafeCell, thread};

/// A lock that gives access to a value to one thread at a time.
#[derive(Debug)]
pub(crate) struct CombiningLock<T> {
    word: AtomicU32,
    /// The number of threads waiting in [`lock`](Self::lock).
    waiting: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the cell blocked the auto impl. Guards exclude each other, so only `T` itself crosses
// threads.
unsafe impl<T: Send> Sync for CombiningLock<T> {}

impl<T> CombiningLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), waiting: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Announces work and acquires the lock if it is free. If this returns `None`, the current
    /// holder does the work.
    #[inline]
    pub(crate) fn announce(&self) -> Option<Guard<'_, T>> {
        let before = self.word.fetch_or(HELD | PENDING, Ordering::AcqRel);
        // Not `then_some`: it would create and drop a guard, which releases another thread's lock.
        (before & HELD == 0).then(|| Guard { lock: self })
    }

    /// Acquires the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.yield_to_waiters();
        self.acquire()
    }

    /// Yields the processor once if other threads wait for the lock.
    #[inline]
    pub(crate) fn yield_to_waiters(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
    }

    /// Returns whether no thread holds the lock at the moment.
    pub(crate) fn is_free(&self) -> bool {
        self.word.load(Ordering::Relaxed) & HELD == 0
    }

    /// Acquires the lock, waiting until it is free.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if let Some(guard) = self.acquire() {
            return guard;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0;
        let guard = loop {
            if let Some(guard) = self.acquire() {
                break guard;
            }
            spins += 1;
            if spins < SPINS { core::hint::spin_loop() } else { thread::yield_now() }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Tries to set HELD in the word, leaving PENDING unchanged.
    #[inline]
    fn acquire(&self) -> Option<Guard<'_, T>> {
        let seen = self.word.load(Ordering::Relaxed);
        if seen & HELD != 0 {
            return None;
        }
        let taken = self.word.compare_exchange(seen, seen | HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard { lock: self })
    }
}

/// The right to access the value, held until the guard is dropped. A guard dropped by a panic
/// releases the lock and leaves announced work to the next holder.
pub(crate) struct Guard<'l, T> {
    lock: &'l CombiningLock<T>,
}

impl<T> Guard<'_, T> {
    /// Returns whether work was announced since the last call. If so, the holder must look at the
    /// rings afterwards.
    #[inline]
    pub(crate) fn take_pending(&mut self) -> bool {
        // The load avoids a write in the common case.
        self.lock.word.load(Ordering::Relaxed) & PENDING != 0
            && self.lock.word.fetch_and(!PENDING, Ordering::AcqRel) & PENDING != 0
    }

    /// Releases the lock, unless work was announced.
    ///
    /// # Errors
    /// Returns the guard if work was announced. Its [`take_pending`](Self::take_pending) then
    /// returns true.
    #[inline]
    pub(crate) fn try_release(self) -> Result<(), Self> {
        let word = &self.lock.word;
        match word.compare_exchange(HELD, 0, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                core::mem::forget(self);
                Ok(())
            }
            Err(_) => Err(self),
        }
    }
}

impl<T> Guard<'_, T> {
    /// Releases the lock even if work was announced. Returns whether work was announced. The next
    /// holder finds the work; the caller must ensure that there is a next holder.
    #[inline]
    pub(crate) fn release(self) -> bool {
        let before = self.lock.word.fetch_and(!HELD, Ordering::AcqRel);
        core::mem::forget(self);
        before & PENDING != 0
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.word.fetch_and(!HELD, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, and it is borrowed.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and it is borrowed mutably.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

/// Bit set while a thread holds the lock.
const HELD: u32 = 1;
/// Bit set while there is work that the holder may not have seen.
const PENDING: u32 = 2;
/// The number of attempts to acquire the lock before a waiting thread yields the processor.
const SPINS: u32 = 100;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_announced_while_the_lock_is_held_comes_back_to_the_holder() {
        let lock = CombiningLock::new(());
        let mut guard = lock.try_lock().unwrap();
        assert!(!guard.take_pending());
        assert!(lock.announce().is_none());
        let mut guard = guard.try_release().unwrap_err();
        assert!(guard.take_pending() && !guard.take_pending());
        assert!(guard.try_release().is_ok());
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_thread_that_announces_work_while_the_lock_is_free_holds_it() {
        let lock = CombiningLock::new(0);
        let mut guard = lock.announce().unwrap();
        assert!(lock.try_lock().is_none());
        assert!(guard.take_pending());
        *guard += 1;
        drop(guard);
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn work_that_is_pending_at_an_early_release_waits_for_the_next_holder() {
        let lock = CombiningLock::new(());
        let mut guard = lock.try_lock().unwrap();
        assert!(lock.announce().is_none());
        assert!(guard.take_pending());
        assert!(lock.announce().is_none());
        assert!(guard.release());
        let mut guard = lock.try_lock().unwrap();
        assert!(guard.take_pending() && !guard.take_pending());
        assert!(!guard.release());
    }

    #[test]
    fn work_that_is_pending_when_the_holder_panics_waits_for_the_next_holder() {
        let lock = CombiningLock::new(());
        let guard = lock.try_lock().unwrap();
        assert!(lock.announce().is_none());
        drop(guard);
        assert!(lock.try_lock().unwrap().take_pending());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::pending::PendingSet;
    use crate::sync::primitives::Arc;

    /// Work left by two posters for the lock holder to find, and the amount found.
    struct Shared {
        found: CombiningLock<u32>,
        pending: PendingSet,
        posted: [AtomicU32; 2],
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let posted = [AtomicU32::new(0), AtomicU32::new(0)];
            Arc::new(Self { found: CombiningLock::new(0), pending: PendingSet::new(2), posted })
        }

        /// Takes announced work, releases the lock, and retries, as the device does.
        fn work(&self, mut guard: Guard<'_, u32>) {
            loop {
                if guard.take_pending() {
                    // Relaxed, because the word and the set alone must make the work visible.
                    self.pending.take(|slot| *guard += self.posted[slot].swap(0, Ordering::Relaxed));
                }
                match guard.try_release() {
                    Ok(()) => break,
                    Err(again) => guard = again,
                }
            }
        }

        fn post(&self, slot: usize) {
            self.posted[slot].fetch_add(1, Ordering::Relaxed);
            self.pending.insert(slot);
            if let Some(guard) = self.found.announce() {
                self.work(guard);
            }
        }
    }

    #[test]
    fn posted_work_is_found_before_all_threads_have_left() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Shared::new();
            let threads: Vec<_> = (0..2)
                .map(|slot| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || shared.post(slot))
                })
                .collect();
            // The poller.
            if let Some(guard) = shared.found.try_lock() {
                shared.work(guard);
            }
            for thread in threads {
                thread.join().unwrap();
            }
            let found = *shared.found.try_lock().expect("all threads have left");
            assert_eq!(found, 2);
        });
    }

    #[test]
    fn work_that_is_posted_around_an_early_release_is_found_by_the_next_holder() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Shared::new();
            let poster = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.post(0))
            };
            // A holder whose share is used up releases the lock, with or without pending work.
            if let Some(guard) = shared.found.try_lock() {
                guard.release();
            }
            poster.join().unwrap();
            // The woken thread.
            shared.work(shared.found.lock());
            assert_eq!(*shared.found.lock(), 1);
        });
    }
}
