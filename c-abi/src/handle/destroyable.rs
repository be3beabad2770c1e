//! [`Destroyable`]: a provider's object that threads may use while another thread tries to destroy
//! it.
//!
//! C permits this: the attempt fails with `EBUSY` while another object needs this one, or while the
//! other thread handles the object's last event. Destroying takes a provider's object by value, so
//! threads must exclude each other here.
//!
//! A forked child has copies of the locks, but lacks the threads that held some of them. A call
//! that would wait for a lock held by its parent fails with `ENODEV` instead, here and in
//! [`Exclusive`].
//!
//! # Safety
//! A [`Loan`] points to a value behind a lock that the loan holds.
#![allow(unsafe_code)]

use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::{
    LockResult, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};

use verbs_core::fork::{ForkGuard, ForkLock};
use verbs_core::{Errno, Error};

use crate::abi::errno::unavailable;

/// A value that the program destroys while other threads may still use its handle.
#[derive(Debug)]
pub(crate) struct Destroyable<T> {
    /// The id of the process that created the lock.
    process: u32,
    lock: RwLock<Option<T>>,
}

/// A value that one call at a time may use.
#[derive(Debug)]
pub(crate) struct Exclusive<T>(ForkLock<T>);

impl<T> Exclusive<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(ForkLock::new(value))
    }

    /// Locks the value.
    ///
    /// # Errors
    /// `ENODEV` in a forked child, if a thread of its parent was using the value at the fork.
    pub(crate) fn lock(&self) -> Result<ForkGuard<'_, T>, Errno> {
        self.0.lock().map_err(|_lost| Errno::NODEV)
    }
}

/// Returns the lock if the attempt acquired it and otherwise waits for it. Does not wait if another
/// process created the lock, because the thread that would release it may not exist.
///
/// # Errors
/// `ENODEV` if the attempt failed and another process created the lock.
fn take<G>(process: u32, tried: TryLockResult<G>, wait: impl FnOnce() -> LockResult<G>) -> Result<G, Errno> {
    match tried {
        Ok(lock) => Ok(lock),
        Err(TryLockError::Poisoned(lock)) => Ok(lock.into_inner()),
        Err(TryLockError::WouldBlock) if std::process::id() != process => Err(Errno::NODEV),
        Err(TryLockError::WouldBlock) => Ok(wait().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// A guard held while a call uses a value; the value cannot be destroyed until the guard is
/// dropped.
#[derive(Debug)]
pub(crate) struct Loan<'a, T> {
    value: NonNull<T>,
    _lock: RwLockReadGuard<'a, Option<T>>,
}

impl<T> Loan<'_, T> {
    /// Returns the value with a lifetime that does not borrow the loan, so that the loan can be
    /// moved.
    ///
    /// # Safety
    /// The loan must outlive the reference.
    pub(crate) unsafe fn unbound<'b>(&self) -> &'b T {
        // SAFETY: the value is stored in the lock, which the loan holds, and not in the loan.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Deref for Loan<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the loan outlives the reference.
        unsafe { self.unbound() }
    }
}

impl<T> Destroyable<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), lock: RwLock::new(Some(value)) }
    }

    /// Returns the value for the duration of a call, once any attempt to destroy it has ended.
    ///
    /// # Errors
    /// `EINVAL` if another thread destroyed the value while this thread handles its last event;
    /// `ENODEV` in a forked child, if a thread of the parent was changing or destroying it.
    pub(crate) fn lend(&self, verb: &'static str) -> Result<Loan<'_, T>, Error> {
        let lock = take(self.process, self.lock.try_read(), || self.lock.read())
            .map_err(|errno| unavailable(verb, errno))?;
        let value = lock.as_ref().map(NonNull::from).ok_or_else(|| unavailable(verb, Errno::INVAL))?;
        Ok(Loan { value, _lock: lock })
    }

    /// Changes the value once other calls that use it have ended.
    ///
    /// # Errors
    /// Same as [`lend`](Self::lend).
    pub(crate) fn change<R>(&self, verb: &'static str, change: impl FnOnce(&mut T) -> R) -> Result<R, Error> {
        let mut lock = self.write(verb)?;
        lock.as_mut().map(change).ok_or_else(|| unavailable(verb, Errno::INVAL))
    }

    /// Destroys the value. On failure, leaves it unchanged.
    ///
    /// # Errors
    /// `EBUSY` while another call uses the value, as from the kernel; in a forked child, `ENODEV`
    /// instead. Also any error from `destroy`.
    pub(crate) fn destroy<R>(
        &self,
        verb: &'static str,
        destroy: impl FnOnce(T) -> Result<R, (T, Error)>,
    ) -> Result<R, Error> {
        let busy = if std::process::id() == self.process { Errno::BUSY } else { Errno::NODEV };
        match self.lock.try_write() {
            Ok(lock) => end(lock, verb, destroy),
            Err(TryLockError::Poisoned(lock)) => end(lock.into_inner(), verb, destroy),
            Err(TryLockError::WouldBlock) => Err(unavailable(verb, busy)),
        }
    }

    /// Destroys the value like [`destroy`](Self::destroy), but first waits for the calls of threads
    /// that handle its events.
    ///
    /// # Errors
    /// Any error from `destroy`; `EINVAL` if another thread destroyed the value; `ENODEV` in a
    /// forked child, if a thread of the parent was using it.
    pub(crate) fn destroy_waiting<R>(
        &self,
        verb: &'static str,
        destroy: impl FnOnce(T) -> Result<R, (T, Error)>,
    ) -> Result<R, Error> {
        end(self.write(verb)?, verb, destroy)
    }

    fn write(&self, verb: &'static str) -> Result<RwLockWriteGuard<'_, Option<T>>, Error> {
        take(self.process, self.lock.try_write(), || self.lock.write())
            .map_err(|errno| unavailable(verb, errno))
    }
}

fn end<T, R>(
    mut lock: RwLockWriteGuard<'_, Option<T>>,
    verb: &'static str,
    destroy: impl FnOnce(T) -> Result<R, (T, Error)>,
) -> Result<R, Error> {
    let value = lock.take().ok_or_else(|| unavailable(verb, Errno::INVAL))?;
    destroy(value).map_err(|(value, error)| {
        *lock = Some(value);
        error
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const BUSY: fn(u32) -> Result<(), (u32, Error)> = |value| Err((value, unavailable("test", Errno::BUSY)));

    #[test]
    fn a_call_waits_for_the_end_of_an_attempt_to_destroy_its_object() {
        let shared = Arc::new(Destroyable::new(Box::new(1)));
        let (begun, attempt) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let destroyer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.destroy("test", |value| -> Result<(), _> {
                    // This simulates a provider that moves the object from one box to another.
                    drop(value);
                    begun.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    Err((Box::new(2), unavailable("test", Errno::BUSY)))
                })
            })
        };
        attempt.recv().unwrap();
        let user = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || **shared.lend("test").unwrap())
        };
        go_on.send(()).unwrap();
        assert_eq!(destroyer.join().unwrap().unwrap_err().errno, Errno::BUSY);
        assert_eq!(user.join().unwrap(), 2);
    }

    #[test]
    fn an_object_that_a_call_uses_is_busy() {
        let shared = Destroyable::new(1);
        let loan = shared.lend("test").unwrap();
        let destroyed = shared.destroy("test", |_| -> Result<(), (i32, Error)> { unreachable!() });
        assert_eq!(destroyed.unwrap_err().errno, Errno::BUSY);
        drop(loan);
        assert!(shared.destroy("test", |_| Ok(())).is_ok());
    }

    #[test]
    fn a_child_waits_for_no_lock_that_its_parent_held() {
        let inherited = Destroyable { process: 0, ..Destroyable::new(1) };
        let loan = inherited.lend("test").unwrap();
        assert_eq!(*inherited.lend("test").unwrap(), 1, "a lock that others may share");
        assert_eq!(inherited.change("test", |_| ()).unwrap_err().errno, Errno::NODEV);
        assert_eq!(inherited.destroy("test", BUSY).unwrap_err().errno, Errno::NODEV);
        assert_eq!(inherited.destroy_waiting("test", BUSY).unwrap_err().errno, Errno::NODEV);
        drop(loan);
        let changes = inherited.write("test").unwrap();
        assert_eq!(inherited.lend("test").unwrap_err().errno, Errno::NODEV);
        drop(changes);
        assert!(inherited.destroy_waiting("test", |_| Ok(())).is_ok());
    }

    #[test]
    fn an_object_that_was_not_destroyed_can_be_changed_and_destroyed_again() {
        let shared = Destroyable::new(1);
        assert_eq!(shared.destroy("test", BUSY).unwrap_err().errno, Errno::BUSY);
        assert_eq!(shared.change("test", |value| core::mem::replace(value, 5)).unwrap(), 1);
        assert_eq!(shared.destroy_waiting("test", Ok).unwrap(), 5);
        assert_eq!(shared.lend("test").unwrap_err().errno, Errno::INVAL);
        assert_eq!(shared.change("test", |_| ()).unwrap_err().errno, Errno::INVAL);
        assert_eq!(shared.destroy("test", BUSY).unwrap_err().errno, Errno::INVAL);
    }
}
