//! [`Ids`]: numbers of objects. A number that was given back comes again as late as it can, so that a stale one is seen.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

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
