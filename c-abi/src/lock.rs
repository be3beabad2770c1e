//! [`Spin`]: the lock of a queue.
//!
//! C promises that any thread may post and poll. A call holds the lock for the time of some
//! hundred instructions, so that waiting by spinning is cheaper than a futex; a thread that finds
//! the lock taken for long gives its processor away.
//!
//! # Safety
//! [`Spin`] gives out `&mut` of what it holds, to one owner at a time.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};

/// A value behind a spin lock.
#[derive(Debug)]
pub(crate) struct Spin<T> {
    is_taken: AtomicBool,
    /// Whether the value has ended. The lock stays taken then, so that only waiting threads look.
    has_ended: AtomicBool,
    /// Whether the program has promised that one thread at a time uses the value.
    is_single_threaded: bool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed by the owner of the lock alone, in whatever thread that runs.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) const fn new(value: T, is_single_threaded: bool) -> Self {
        let (is_taken, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { is_taken, has_ended, is_single_threaded, value: UnsafeCell::new(value) }
    }

    /// Calls `with` with the value, locked.
    #[inline(always)]
    pub(crate) fn with<R>(&self, with: impl FnOnce(&mut T) -> R) -> R {
        self.lock();
        // SAFETY: this call has the lock, and `unlock` follows the end of the borrow.
        let result = with(unsafe { &mut *self.value.get() });
        // SAFETY: `lock` was called above.
        unsafe { self.unlock() };
        result
    }

    /// Calls `with` with the value, locked; `None` if the value has [ended](Self::end).
    #[inline(always)]
    pub(crate) fn with_live<R>(&self, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        if !self.lock_live() {
            return None;
        }
        // SAFETY: this call has the lock, and `unlock` follows the end of the borrow.
        let result = with(unsafe { &mut *self.value.get() });
        // SAFETY: `lock_live` was called above.
        unsafe { self.unlock() };
        Some(result)
    }

    /// Takes the lock of a value that does not end, until [`unlock`](Self::unlock).
    #[inline(always)]
    pub(crate) fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    /// Takes the lock, until [`unlock`](Self::unlock). Returns false if the value has ended.
    #[inline(always)]
    pub(crate) fn lock_live(&self) -> bool {
        self.try_lock() || self.wait()
    }

    /// Tells threads that wait for the lock that there is no value any more.
    ///
    /// # Safety
    /// The caller has the lock, and never returns it.
    pub(crate) unsafe fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Takes the lock if it is free, and returns whether it did.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> bool {
        self.is_single_threaded || !self.is_taken.swap(true, Ordering::Acquire)
    }

    /// Returns the lock.
    ///
    /// # Safety
    /// The caller has the lock, and no reference that [`get`](Self::get) returned is used
    /// afterwards.
    #[inline(always)]
    pub(crate) unsafe fn unlock(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    /// Returns the value of a lock that is taken, to be read.
    ///
    /// # Safety
    /// The caller has the lock for the life of the reference, and no other reference is used
    /// meanwhile that may write.
    pub(crate) unsafe fn get_shared(&self) -> &T {
        // SAFETY: the caller has the lock, and nothing writes.
        unsafe { &*self.value.get() }
    }

    /// Returns the value of a lock that is taken.
    ///
    /// # Safety
    /// The caller has the lock for the life of the reference, and has no other reference.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller has the lock, and no other reference.
        unsafe { &mut *self.value.get() }
    }

    /// Returns where the value lies, for an owner that ends it.
    pub(crate) const fn as_ptr(&self) -> *mut T {
        self.value.get()
    }

    /// Waits for the lock. Returns false if the value has ended.
    #[cold]
    fn wait(&self) -> bool {
        const SPINS: u32 = 1000;
        loop {
            let mut spins = 0;
            while self.is_taken.load(Ordering::Relaxed) {
                if self.has_ended.load(Ordering::Acquire) {
                    return false;
                }
                spins += 1;
                if spins < SPINS {
                    spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
            if !self.is_taken.swap(true, Ordering::Acquire) {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_that_waits_learns_that_the_value_has_ended() {
        let lock = Arc::new(Spin::new(0_u64, false));
        assert!(lock.lock_live());
        let waiting = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || lock.with_live(|value| *value))
        };
        // SAFETY: this thread has the lock, and keeps it.
        unsafe { lock.end() };
        assert_eq!(waiting.join().unwrap(), None);
        assert_eq!(lock.with_live(|value| *value), None);
    }

    #[test]
    fn threads_take_turns() {
        let lock = Arc::new(Spin::new(0_u64, false));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || (0..10_000).for_each(|_| lock.with(|value| *value += 1)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(lock.with(|value| *value), 40_000);
    }
}
