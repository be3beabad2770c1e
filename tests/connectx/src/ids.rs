//! [`Ids`]: numbers of objects. A number that was given back comes again as late as it can, so that a stale one is seen.
//!
//! [`Ascending`] gives the transport engine its numbers, in the same way.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use roce::engine::Random;

/// Numbers out of a range, and which of them are taken.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    range: RangeInclusive<u32>,
    taken: BTreeSet<u32>,
    next: u32,
}

impl Ids {
    /// None is taken.
    pub(crate) fn new(range: RangeInclusive<u32>) -> Self {
        Self { next: *range.start(), range, taken: BTreeSet::new() }
    }

    /// Takes the number that was free for longest; `None`: all are taken.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let (first, last) = (*self.range.start(), *self.range.end());
        let free = |from: u32, to: u32| {
            // At most as many steps as numbers are taken.
            (from..=to).find(|number| !self.taken.contains(number))
        };
        let number = free(self.next, last).or_else(|| free(first, last))?;
        self.next = if number == last { first } else { number + 1 };
        self.taken.insert(number);
        Some(number)
    }

    /// Gives a number back; `false`: it was not taken.
    pub(crate) fn give_back(&mut self, number: u32) -> bool {
        self.taken.remove(&number)
    }

    /// Is it taken?
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.taken.contains(&number)
    }

    /// How many are taken.
    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }
}

/// Numbers for the objects of a function's engine: one after the other, and the same ones in each run. They need not keep
/// strangers out: the model's fabric has none.
#[derive(Debug)]
pub(crate) struct Ascending {
    next: u32,
}

impl Ascending {
    /// Numbers that no other function gives before 2²⁰ draws.
    pub(crate) fn of(function: usize) -> Self {
        Self { next: (function as u32 + 1) << 20 | FIRST }
    }
}

impl Random for Ascending {
    fn draw(&mut self) -> Option<u32> {
        let number = self.next;
        self.next = number.wrapping_add(1);
        Some(number)
    }
}

/// Low numbers of queue pairs are special.
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
