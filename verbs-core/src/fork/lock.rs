//! [`ForkLock`]: a mutex that distinguishes holders in this process from holders in a parent.
//!
//! A forked child has a copy of each lock, but lacks the other threads of its parent. It would wait
//! forever for a lock that one of them held. Therefore a held lock contains the
//! [generation](super::generation) of its holder's process, which differs in the child:
//!
//! ```text
//!   0                              free
//!   the generation of the process  held by a thread of this process: wait
//!   another generation             lost: the holder exists in the parent only, at most
//! ```
//!
//! The value in a lost lock may be half changed, so it is neither used nor dropped: [`lock`] fails,
//! and [`lock_or`] replaces it. A lock that was free at the fork is an ordinary lock in the child.
//!
//! [`ForkRwLock`](super::ForkRwLock) is the same with readers.
//!
//! [`lock`]: ForkLock::lock
//! [`lock_or`]: ForkLock::lock_or
//!
//! # Safety
//! [`ForkLock`] gives `&mut` to its value to one thread at a time. `futex(2)` compares a word,
//! waits, and changes no memory.
//!
//! # References
//! `futex(2)`
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use super::generation::{generation, watch};
use crate::errno::Errno;

/// The bit that is set in a lock, beside the generation, while threads may be sleeping until the
/// lock is free.
const SLEEPERS: u32 = 1 << 31;

/// The number of attempts to acquire a lock before a thread sleeps.
pub(super) const SPINS: u32 = 100;

/// A mutex around a value. A forked child detects that a thread of its parent holds the mutex.
pub struct ForkLock<T> {
    /// 0, or the generation of the holder's process, possibly with [`SLEEPERS`].
    word: AtomicU32,
    value: UnsafeCell<ManuallyDrop<T>>,
}

// SAFETY: only the holder of the lock accesses the value, in whatever thread it runs.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// The error for a lock that a thread of a parent process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl From<Lost> for Errno {
    fn from(_: Lost) -> Self {
        Self::NODEV
    }
}

impl<T> ForkLock<T> {
    /// Creates an unlocked lock around a value.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(ManuallyDrop::new(value)) }
    }

    /// Locks the value.
    ///
    /// # Errors
    /// [`Lost`] in a forked child, now and on every later call, if another thread of its parent
    /// held the lock at the fork.
    #[inline]
    pub fn lock(&self) -> Result<ForkGuard<'_, T>, Lost> {
        self.acquire().map(|()| ForkGuard::new(self)).map_err(|_| Lost)
    }

    /// Locks the value. In a forked child, if another thread of its parent held the lock at the
    /// fork, the value is replaced by `value`, and the old value is leaked.
    pub fn lock_or(&self, value: impl FnOnce() -> T) -> ForkGuard<'_, T> {
        loop {
            match self.acquire() {
                Ok(()) => return ForkGuard::new(self),
                Err(lost) if self.exchange(lost, generation()) => {
                    // SAFETY: this thread holds the lock, which no other thread of this process had
                    // acquired. Writing drops nothing.
                    unsafe { self.value.get().write(ManuallyDrop::new(value())) };
                    return ForkGuard::new(self);
                }
                // Another thread of this process acquired the lock first.
                Err(_) => {}
            }
        }
    }

    /// Locks the value if the lock is free.
    pub fn try_lock(&self) -> Option<ForkGuard<'_, T>> {
        watch();
        self.exchange(0, generation()).then(|| ForkGuard::new(self))
    }

    /// Returns whether a thread of a parent process holds the lock.
    pub fn is_lost(&self) -> bool {
        watch();
        Self::is_of_parent(self.word.load(Ordering::Relaxed))
    }

    fn is_of_parent(word: u32) -> bool {
        word != 0 && word & !SLEEPERS != generation()
    }

    fn exchange(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Acquires the lock.
    ///
    /// # Errors
    /// The lock's word, if the lock is lost.
    #[inline]
    fn acquire(&self) -> Result<(), u32> {
        watch();
        if self.exchange(0, generation()) { Ok(()) } else { self.wait() }
    }

    #[cold]
    fn wait(&self) -> Result<(), u32> {
        // A thread that has slept keeps `SLEEPERS` set, because others may still sleep.
        let (mut own, mut spins) = (generation(), 0);
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word == 0 {
                if self.exchange(0, own) {
                    return Ok(());
                }
            } else if Self::is_of_parent(word) {
                return Err(word);
            } else if spins < SPINS {
                spins += 1;
                core::hint::spin_loop();
            } else if word & SLEEPERS != 0 || self.exchange(word, word | SLEEPERS) {
                own = generation() | SLEEPERS;
                sleep(&self.word, word | SLEEPERS);
            }
        }
    }

    /// Releases the lock and wakes a sleeping thread, if there is one.
    ///
    /// # Safety
    /// The caller must hold the lock and no longer use the value.
    #[inline]
    unsafe fn release(&self) {
        if self.word.swap(0, Ordering::Release) & SLEEPERS != 0 {
            wake(&self.word, 1);
        }
    }
}

impl<T: Copy> ForkLock<Option<T>> {
    /// Returns the value, which the first call creates with `make`. Concurrent calls wait instead
    /// of creating a second value, because a value may own memory that is never freed. `make` must
    /// not use the lock.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> T {
        *self.lock_or(|| None).get_or_insert_with(make)
    }
}

impl<T: Default> Default for ForkLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for ForkLock<T> {
    fn drop(&mut self) {
        if !self.is_lost() {
            // SAFETY: the value is intact, because no thread was changing it at a fork, and it is
            // dropped once.
            unsafe { ManuallyDrop::drop(self.value.get_mut()) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for ForkLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ForkLock");
        match self.try_lock() {
            Some(value) => shown.field("value", &*value).finish(),
            None => shown.finish_non_exhaustive(),
        }
    }
}

/// A guard that gives access to the value of a [`ForkLock`]. Releases the lock on drop.
pub struct ForkGuard<'a, T> {
    lock: &'a ForkLock<T>,
    /// Keeps the guard in its thread: a child's only thread must not release locks held by other
    /// threads of its parent.
    _same_thread: PhantomData<*mut ()>,
}

impl<'a, T> ForkGuard<'a, T> {
    fn new(lock: &'a ForkLock<T>) -> Self {
        Self { lock, _same_thread: PhantomData }
    }
}

impl<T> Deref for ForkGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, and the guard's borrow limits the reference's
        // lifetime.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for ForkGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for ForkGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this guard holds the lock and ends here.
        unsafe { self.lock.release() };
    }
}

impl<T: fmt::Debug> fmt::Debug for ForkGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Sleeps while the word is `expected`, until a thread wakes it. Spurious wake-ups are possible.
pub(super) fn sleep(word: &AtomicU32, expected: u32) {
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let no_time = core::ptr::null::<libc::timespec>();
    // SAFETY: the word lives as long as the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, expected, no_time) };
}

/// Wakes up to `count` sleeping threads.
pub(super) fn wake(word: &AtomicU32, count: i32) {
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses only the address of the word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, count) };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Returns a lock as found by a child whose parent held it at the fork.
    fn lost<T>(value: T) -> ForkLock<T> {
        let lock = ForkLock::new(value);
        lock.word.store(generation() + 1, Ordering::Relaxed);
        lock
    }

    #[test]
    fn threads_take_turns() {
        let lock = Arc::new(ForkLock::new(0_u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || (0..10_000).for_each(|_| *lock.lock().unwrap() += 1))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*lock.lock().unwrap(), 40_000);
        assert_eq!(lock.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_thread_that_sleeps_is_woken() {
        let lock = Arc::new(ForkLock::new(0));
        let held = lock.lock().unwrap();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || *lock.lock().unwrap() += 1)
            })
            .collect();
        while lock.word.load(Ordering::Relaxed) & SLEEPERS == 0 {
            thread::yield_now();
        }
        assert!(lock.try_lock().is_none());
        drop(held);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*lock.lock().unwrap(), 3);
    }

    #[test]
    fn a_lock_of_the_parent_is_lost_until_its_value_is_replaced() {
        let shared = Arc::new(());
        let lock = lost(Arc::clone(&shared));
        assert!(lock.is_lost() && lock.try_lock().is_none());
        assert_eq!(lock.lock().unwrap_err(), Lost);
        assert_eq!(lock.lock().unwrap_err(), Lost);
        drop(lock.lock_or(|| Arc::new(())));
        assert!(!lock.is_lost() && lock.lock().is_ok());
        drop(lock);
        assert_eq!(Arc::strong_count(&shared), 2, "the value was not dropped");
        drop(lost(Arc::clone(&shared)));
        assert_eq!(Arc::strong_count(&shared), 3, "nor with the lock");
    }

    #[test]
    fn threads_share_a_value_that_one_of_them_makes() {
        let (value, made) = (ForkLock::new(None), AtomicU32::new(0));
        let begins = std::sync::Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begins.wait();
                    value.get_or_init(|| made.fetch_add(1, Ordering::Relaxed))
                });
            }
        });
        assert_eq!((value.get_or_init(|| 7), made.into_inner()), (0, 1));
    }

    #[test]
    fn a_value_is_made_once() {
        let value = ForkLock::new(None);
        assert_eq!([value.get_or_init(|| 1), value.get_or_init(|| 2)], [1, 1]);
        let value = lost(Some(3));
        assert_eq!([value.get_or_init(|| 4), value.get_or_init(|| 5)], [4, 4]);
    }
}
