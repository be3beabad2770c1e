//! [`Ids`]: allocates object numbers. A freed number is reused as late as possible, so that stale
//! numbers are detected.
//!
//! [`Ascending`] allocates numbers for the transport engine in the same way.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use roce::engine::Random;

/// A range of object numbers, and the allocated numbers in the range.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    range: RangeInclusive<u32>,
    taken: BTreeSet<u32>,
    next: u32,
}

impl Ids {
    /// Returns a range in which all numbers are free.
    pub(crate) fn new(range: RangeInclusive<u32>) -> Self {
        Self { next: *range.start(), range, taken: BTreeSet::new() }
    }

    /// Allocates the number that has been free the longest; `None` if all numbers are allocated.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let (first, last) = (*self.range.start(), *self.range.end());
        let free = |from: u32, to: u32| {
            // The search takes at most as many steps as there are taken numbers.
            (from..=to).find(|number| !self.taken.contains(number))
        };
        let number = free(self.next, last).or_else(|| free(first, last))?;
        self.next = if number == last { first } else { number + 1 };
        self.taken.insert(number);
        Some(number)
    }

    /// Frees an object number. Returns whether the number was allocated.
    pub(crate) fn give_back(&mut self, number: u32) -> bool {
        self.taken.remove(&number)
    }

    /// Returns whether an object number is allocated.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.taken.contains(&number)
    }

    /// Returns the number of allocated object numbers.
    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }
}

/// Ascending numbers for the objects in a function's engine, the same in each run. They may be
/// predictable, because only trusted functions share the model's fabric.
#[derive(Debug)]
pub(crate) struct Ascending {
    next: u32,
}

impl Ascending {
    /// Returns a sequence whose first 2²² numbers differ from those of all other functions.
    ///
    /// In the first million numbers, bits 20 and 21 are 0, as on a device with at most 2²⁰ keys. In
    /// a completion with inline data, libmlx5 reads bits 28 and 29 of a key at byte 24 as the bits
    /// that report a GRH.
    pub(crate) fn for_function(function: usize) -> Self {
        Self { next: (function as u32 + 1) << 22 | FIRST }
    }
}

impl Random for Ascending {
    fn draw(&mut self) -> Option<u32> {
        let number = self.next;
        self.next = number.wrapping_add(1);
        Some(number)
    }
}

/// The first number of a sequence. Lower queue pair numbers are special.
const FIRST: u32 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_again_only_after_all_others() {
        let mut ids = Ids::new(4..=6);
        assert_eq!((ids.take(), ids.take()), (Some(4), Some(5)));
        assert!(ids.give_back(4) && !ids.give_back(4));
        assert_eq!((ids.take(), ids.take(), ids.take()), (Some(6), Some(4), None));
        assert!(ids.contains(5) && !ids.contains(7));
        assert_eq!(ids.len(), 3);
    }
}
