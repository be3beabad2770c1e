//! [`UserIndices`]: the numbers that completions carry, one for each queue pair or XRC shared
//! receive queue of a context.

use std::sync::{Arc, Mutex, PoisonError};

/// The numbers of a context. They are given densely, because completion queues look them up in
/// tables.
#[derive(Debug, Default)]
pub(crate) struct UserIndices(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    /// Numbers that were given back.
    free: Vec<u32>,
    /// The first number that was never given.
    next: u32,
}

/// The first number that the device cannot carry: 24 bits, of which the last one stands for none.
const END: u32 = 0xff_ffff;

impl UserIndices {
    /// Takes a number; `None` if all are taken.
    pub(crate) fn take(self: &Arc<Self>) -> Option<UserIndex> {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match numbers.free.pop() {
            Some(number) => number,
            None if numbers.next < END => {
                numbers.next += 1;
                numbers.next - 1
            }
            None => return None,
        };
        Some(UserIndex { number, of: Arc::clone(self) })
    }

    fn give_back(&self, number: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).free.push(number);
    }
}

/// A number that was taken. It is not given back when this is dropped: the device may still write
/// completions that carry it.
#[derive(Debug)]
pub(crate) struct UserIndex {
    number: u32,
    of: Arc<UserIndices>,
}

impl UserIndex {
    /// Returns the number.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// Gives the number back. The kernel has confirmed the end of the object that had it, and the
    /// completion queues have been told.
    pub(crate) fn give_back(self) {
        self.of.give_back(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_given_again_only_once_they_are_back() {
        let indices = Arc::new(UserIndices::default());
        let [first, second] = [0; 2].map(|_| indices.take().unwrap());
        assert_eq!((first.number(), second.number()), (0, 1));
        drop(first);
        assert_eq!(indices.take().unwrap().number(), 2);
        second.give_back();
        assert_eq!(indices.take().unwrap().number(), 1);
        assert_eq!(indices.take().unwrap().number(), 3);
    }

    #[test]
    fn the_number_that_stands_for_none_is_never_given() {
        let indices = Arc::new(UserIndices(Mutex::new(Numbers { free: Vec::new(), next: END - 1 })));
        assert_eq!(indices.take().unwrap().number(), END - 1);
        assert!(indices.take().is_none());
    }
}
