//! [`UserIndices`]: the user indices in completions, one per queue pair or XRC shared receive queue
//! of a context.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_core::Errno;
use verbs_core::fork::ForkLock;

/// The user indices of a context. They are assigned densely, because completion queues look them up
/// in tables.
#[derive(Debug, Default)]
pub(crate) struct UserIndices(ForkLock<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    /// The user indices that were assigned before and are free again.
    free: Vec<u32>,
    /// The smallest user index that was never assigned.
    next: u32,
}

/// The first invalid user index: a user index has 24 bits in the device, and the last value means
/// "none".
const END: u32 = 0xff_ffff;

impl UserIndices {
    /// Allocates an unused user index.
    ///
    /// # Errors
    /// `ENOMEM` if all user indices are in use; `ENODEV` in a forked child whose parent was
    /// allocating or freeing a user index.
    pub(crate) fn take(self: &Arc<Self>) -> Result<UserIndex, Errno> {
        let mut numbers = self.0.lock()?;
        let number = match numbers.free.pop() {
            Some(number) => number,
            None if numbers.next < END => {
                numbers.next += 1;
                numbers.next - 1
            }
            None => return Err(Errno::NOMEM),
        };
        Ok(UserIndex { number, of: Arc::clone(self), is_lent: AtomicBool::new(false) })
    }

    fn give_back(&self, number: u32) {
        // A child whose parent was using the table allocates no more numbers from it.
        if let Ok(mut numbers) = self.0.lock() {
            numbers.free.push(number);
        }
    }
}

/// A user index in use. Dropping this value frees the user index, unless the device may still write
/// completions with it.
#[derive(Debug)]
pub(crate) struct UserIndex {
    number: u32,
    of: Arc<UserIndices>,
    is_lent: AtomicBool,
}

impl UserIndex {
    /// Returns the user index.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// Marks the user index as used by the device, once the kernel has created the object with this
    /// index.
    pub(crate) fn lend(&self) {
        self.is_lent.store(true, Ordering::Release);
    }

    /// Marks the user index as no longer used by the device, once the kernel has confirmed the
    /// destruction of the object and the completion queues have been updated.
    pub(crate) fn take_back(&self) {
        self.is_lent.store(false, Ordering::Release);
    }
}

impl Drop for UserIndex {
    fn drop(&mut self) {
        if !self.is_lent.load(Ordering::Acquire) {
            self.of.give_back(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forked::is_true_in_child;

    #[test]
    fn numbers_are_dense_and_given_again_only_once_they_are_back() {
        let indices = Arc::new(UserIndices::default());
        let [first, second] = [0; 2].map(|_| indices.take().unwrap());
        assert_eq!((first.number(), second.number()), (0, 1));
        first.lend();
        drop(first);
        let third = indices.take().unwrap();
        assert_eq!(third.number(), 2);
        second.lend();
        second.take_back();
        drop(second);
        let again = indices.take().unwrap();
        assert_eq!((again.number(), indices.take().unwrap().number()), (1, 3));
    }

    #[test]
    fn the_number_that_stands_for_none_is_never_given() {
        let indices = Arc::new(UserIndices(ForkLock::new(Numbers { free: Vec::new(), next: 0xff_fffe })));
        let last = indices.take().unwrap();
        assert_eq!(last.number(), 0xff_fffe);
        assert_eq!(indices.take().unwrap_err(), Errno::NOMEM);
    }

    #[test]
    fn a_child_takes_no_number_while_its_parent_was_taking_one() {
        let indices = Arc::new(UserIndices::default());
        let number = indices.take().unwrap();
        let _taking = indices.0.lock();
        assert!(is_true_in_child(|| {
            drop(number);
            indices.take().is_err_and(|errno| errno == Errno::NODEV)
        }));
    }
}
