//! [`Shared`]: a provider's object that threads use while another one tries to destroy it.
//!
//! C permits that: the attempt fails with `EBUSY` while another object needs this one, or the other
//! thread handles the object's last event. Destroying takes a provider's object by value, so that
//! the threads exclude each other here.
//!
//! # Safety
//! A [`Loan`] points to a value behind a lock that it has.
#![allow(unsafe_code)]

use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use verbs_core::{Errno, Error};

use crate::errno::refused;

/// A value until it is destroyed.
#[derive(Debug)]
pub(crate) struct Shared<T>(RwLock<Option<T>>);

/// The use of a value by a call. The value is not destroyed meanwhile.
#[derive(Debug)]
pub(crate) struct Loan<'a, T> {
    value: NonNull<T>,
    _lock: RwLockReadGuard<'a, Option<T>>,
}

impl<T> Loan<'_, T> {
    /// Returns the value for longer than the borrow of the loan, which may move meanwhile.
    ///
    /// # Safety
    /// The loan outlives the reference.
    pub(crate) unsafe fn unbound<'b>(&self) -> &'b T {
        // SAFETY: the value is in the lock, which the loan has, and not in the loan.
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

impl<T> Shared<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(RwLock::new(Some(value)))
    }

    /// Returns the value for the use by a call, after an attempt to destroy it has ended.
    ///
    /// # Errors
    /// `EINVAL` where another thread has destroyed it, while this one handles its last event.
    pub(crate) fn lend(&self, verb: &'static str) -> Result<Loan<'_, T>, Error> {
        let lock = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let value = lock.as_ref().map(NonNull::from).ok_or_else(|| refused(verb, Errno::INVAL))?;
        Ok(Loan { value, _lock: lock })
    }

    /// Changes the value, after the other calls that use it have ended.
    ///
    /// # Errors
    /// As [`lend`](Self::lend).
    pub(crate) fn change<R>(&self, verb: &'static str, change: impl FnOnce(&mut T) -> R) -> Result<R, Error> {
        let mut lock = self.0.write().unwrap_or_else(PoisonError::into_inner);
        lock.as_mut().map(change).ok_or_else(|| refused(verb, Errno::INVAL))
    }

    /// Destroys the value, or leaves it as it was.
    ///
    /// # Errors
    /// `EBUSY` while another call uses it, as the kernel returns; the error of `destroy`.
    pub(crate) fn destroy<R>(
        &self,
        verb: &'static str,
        destroy: impl FnOnce(T) -> Result<R, (T, Error)>,
    ) -> Result<R, Error> {
        match self.0.try_write() {
            Ok(lock) => end(lock, verb, destroy),
            Err(TryLockError::Poisoned(lock)) => end(lock.into_inner(), verb, destroy),
            Err(TryLockError::WouldBlock) => Err(refused(verb, Errno::BUSY)),
        }
    }

    /// Destroys the value as [`destroy`](Self::destroy) does, after the calls of handlers of its
    /// events have ended.
    ///
    /// # Errors
    /// The error of `destroy`; `EINVAL` where another thread has destroyed the value.
    pub(crate) fn destroy_waiting<R>(
        &self,
        verb: &'static str,
        destroy: impl FnOnce(T) -> Result<R, (T, Error)>,
    ) -> Result<R, Error> {
        end(self.0.write().unwrap_or_else(PoisonError::into_inner), verb, destroy)
    }
}

fn end<T, R>(
    mut lock: RwLockWriteGuard<'_, Option<T>>,
    verb: &'static str,
    destroy: impl FnOnce(T) -> Result<R, (T, Error)>,
) -> Result<R, Error> {
    let value = lock.take().ok_or_else(|| refused(verb, Errno::INVAL))?;
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

    const BUSY: fn(u32) -> Result<(), (u32, Error)> = |value| Err((value, refused("test", Errno::BUSY)));

    #[test]
    fn a_call_waits_for_the_end_of_an_attempt_to_destroy_its_object() {
        let shared = Arc::new(Shared::new(Box::new(1)));
        let (begun, attempt) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let destroyer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.destroy("test", |value| -> Result<(), _> {
                    // As a provider that keeps the object in a box, and returns it in another one.
                    drop(value);
                    begun.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    Err((Box::new(2), refused("test", Errno::BUSY)))
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
        let shared = Shared::new(1);
        let loan = shared.lend("test").unwrap();
        let destroyed = shared.destroy("test", |_| -> Result<(), (i32, Error)> { unreachable!() });
        assert_eq!(destroyed.unwrap_err().errno, Errno::BUSY);
        drop(loan);
        assert!(shared.destroy("test", |_| Ok(())).is_ok());
    }

    #[test]
    fn an_object_that_was_not_destroyed_can_be_changed_and_destroyed_again() {
        let shared = Shared::new(1);
        assert_eq!(shared.destroy("test", BUSY).unwrap_err().errno, Errno::BUSY);
        assert_eq!(shared.change("test", |value| core::mem::replace(value, 5)).unwrap(), 1);
        assert_eq!(shared.destroy_waiting("test", Ok).unwrap(), 5);
        assert_eq!(shared.lend("test").unwrap_err().errno, Errno::INVAL);
        assert_eq!(shared.change("test", |_| ()).unwrap_err().errno, Errno::INVAL);
        assert_eq!(shared.destroy("test", BUSY).unwrap_err().errno, Errno::INVAL);
    }
}
