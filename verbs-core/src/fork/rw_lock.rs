//! [`ForkRwLock`]: [`ForkLock`](super::ForkLock) with readers.
//!
//! ```text
//!   31        16 15         14      13      0
//!  │ generation │ sleepers │ writer │ readers │    0: free
//! ```
//!
//! Readers change nothing, so a child ignores the readers of its parent. A value that another
//! thread of the parent was writing is lost.
//!
//! # Safety
//! The value is borrowed mutably by one writer while this process has no readers, and shared by
//! readers while it has no writer. A forking thread holds no guard: under a guard, the libraries
//! call nothing that forks and then lets another thread write.
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
use super::lock::{Lost, SPINS, sleep, wake};

/// A lock around a value, with either several concurrent readers or one writer.
pub struct ForkRwLock<T> {
    word: AtomicU32,
    value: UnsafeCell<ManuallyDrop<T>>,
}

// SAFETY: the value is written by the one writer alone and read by other threads only without one.
unsafe impl<T: Send + Sync> Sync for ForkRwLock<T> {}

/// The parts of the lock's word.
const GENERATION: u32 = 0xffff << 16;
const SLEEPERS: u32 = 1 << 15;
const WRITER: u32 = 1 << 14;
const READERS: u32 = WRITER - 1;

/// Returns the generation of this process, shifted to its position in the lock's word. The stored
/// generation recurs after 65,536 nested forks, each made by the child of the previous fork.
fn own() -> u32 {
    generation() << 16
}

/// Returns whether the users of the lock, if any, are threads of this process.
fn is_own(word: u32) -> bool {
    word & GENERATION == own()
}

/// Returns whether a thread of a parent process was writing the value.
fn is_lost(word: u32) -> bool {
    word & WRITER != 0 && !is_own(word)
}

impl<T> ForkRwLock<T> {
    /// Creates an unlocked lock around a value.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(ManuallyDrop::new(value)) }
    }

    /// Locks the value for reading. Waits for the writer, and for threads that are already
    /// sleeping.
    ///
    /// # Errors
    /// [`Lost`] in a forked child, if another thread of its parent was writing at the fork.
    #[inline]
    pub fn read(&self) -> Result<ForkReadGuard<'_, T>, Lost> {
        watch();
        if !self.exchange(0, own() | 1) {
            self.wait(false)?;
        }
        Ok(ForkReadGuard { lock: self, _same_thread: PhantomData })
    }

    /// Locks the value for writing. Waits for all other users.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn write(&self) -> Result<ForkWriteGuard<'_, T>, Lost> {
        watch();
        if !self.exchange(0, own() | WRITER) {
            self.wait(true)?;
        }
        Ok(ForkWriteGuard { lock: self, _same_thread: PhantomData })
    }

    /// Returns whether a thread of a parent process was writing at the fork. If so,
    /// [`read`](Self::read) and [`write`](Self::write) always fail.
    pub fn is_lost(&self) -> bool {
        watch();
        is_lost(self.word.load(Ordering::Relaxed))
    }

    fn exchange(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits until the lock can be acquired, and acquires it.
    ///
    /// # Errors
    /// [`Lost`] if a thread of a parent process was writing at the fork.
    #[cold]
    fn wait(&self, writes: bool) -> Result<(), Lost> {
        let mut spins = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if is_lost(word) {
                return Err(Lost);
            }
            let is_free = word == 0 || !is_own(word);
            let may_join = !writes && word & (SLEEPERS | WRITER) == 0 && word & READERS < READERS;
            if is_free || may_join {
                let others = if is_free { 0 } else { word & READERS };
                let users = if writes { WRITER } else { others + 1 };
                if self.exchange(word, own() | users) {
                    return Ok(());
                }
            } else if spins < SPINS {
                spins += 1;
                core::hint::spin_loop();
            } else if word & SLEEPERS != 0 || self.exchange(word, word | SLEEPERS) {
                sleep(&self.word, word | SLEEPERS);
            }
        }
    }

    #[inline]
    fn end_read(&self) {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let left = if word & READERS == 1 { 0 } else { word - 1 };
            match self.word.compare_exchange_weak(word, left, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return self.wake_if(left == 0 && word & SLEEPERS != 0),
                Err(now) => word = now,
            }
        }
    }

    /// Wakes all sleepers if there are any, because the word does not show who may proceed.
    fn wake_if(&self, has_sleepers: bool) {
        if has_sleepers {
            wake(&self.word, i32::MAX);
        }
    }
}

impl<T: Default> Default for ForkRwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for ForkRwLock<T> {
    fn drop(&mut self) {
        if *self.word.get_mut() == 0 {
            // SAFETY: the value is intact, because no thread was writing it at the time of a fork,
            // and it is dropped once.
            unsafe { ManuallyDrop::drop(self.value.get_mut()) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for ForkRwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForkRwLock").finish_non_exhaustive()
    }
}

/// A guard that gives read access to the value of a [`ForkRwLock`].
pub struct ForkReadGuard<'a, T> {
    lock: &'a ForkRwLock<T>,
    _same_thread: PhantomData<*mut ()>,
}

impl<T> Deref for ForkReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this reader is counted, so no thread writes.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for ForkReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.end_read();
    }
}

impl<T: fmt::Debug> fmt::Debug for ForkReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A guard that gives write access to the value of a [`ForkRwLock`].
pub struct ForkWriteGuard<'a, T> {
    lock: &'a ForkRwLock<T>,
    _same_thread: PhantomData<*mut ()>,
}

impl<T> Deref for ForkWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, and the guard's borrow limits the reference's
        // lifetime.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for ForkWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for ForkWriteGuard<'_, T> {
    fn drop(&mut self) {
        let before = self.lock.word.swap(0, Ordering::Release);
        self.lock.wake_if(before & SLEEPERS != 0);
    }
}

impl<T: fmt::Debug> fmt::Debug for ForkWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Puts a lock into the state that a forked child would find.
    fn lose<T>(lock: &ForkRwLock<T>, holders: u32) {
        lock.word.store((generation() + 1) << 16 | holders, Ordering::Relaxed);
    }

    #[test]
    fn readers_see_no_half_written_value() {
        let lock = Arc::new(ForkRwLock::new([0_u64; 8]));
        let threads: Vec<_> = (0..6)
            .map(|number| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    for _ in 0..5000 {
                        if number < 2 {
                            lock.write().unwrap().iter_mut().for_each(|word| *word += 1);
                        } else {
                            let seen = *lock.read().unwrap();
                            assert_eq!(seen, [seen[0]; 8]);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*lock.read().unwrap(), [10_000; 8]);
        assert_eq!(lock.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_writer_waits_for_readers_and_comes_before_later_ones() {
        let lock = Arc::new(ForkRwLock::new(0));
        let (first, second) = (lock.read().unwrap(), lock.read().unwrap());
        let writer = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || *lock.write().unwrap() += 1)
        };
        while lock.word.load(Ordering::Relaxed) & SLEEPERS == 0 {
            thread::yield_now();
        }
        let reader = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || *lock.read().unwrap())
        };
        drop(first);
        assert_eq!(*second, 0);
        drop(second);
        writer.join().unwrap();
        assert!(reader.join().unwrap() <= 1);
        assert_eq!(*lock.read().unwrap(), 1);
    }

    #[test]
    fn a_child_waits_for_no_reader_of_its_parent_and_loses_what_its_parent_was_writing() {
        let shared = Arc::new(());
        let lock = ForkRwLock::new(Arc::clone(&shared));
        lose(&lock, 2 | SLEEPERS);
        assert!(!lock.is_lost());
        assert!(Arc::ptr_eq(&lock.read().unwrap(), &shared));
        assert_eq!(lock.word.load(Ordering::Relaxed), 0);
        lose(&lock, 1);
        drop(lock.write().unwrap());
        assert_eq!(lock.word.load(Ordering::Relaxed), 0);
        lose(&lock, WRITER);
        assert!(lock.is_lost());
        assert_eq!(lock.read().unwrap_err(), Lost);
        assert_eq!(lock.write().unwrap_err(), Lost);
        drop(lock);
        assert_eq!(Arc::strong_count(&shared), 2, "a value that may be half written is not dropped");
    }
}
