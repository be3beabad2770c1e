//! [`Shares`]: queues of values from many source addresses, with a fair share for each source.
//!
//! A receiver that stores requests from unknown senders needs a limit, and a sender who never stops
//! reaches it. These queues track which source has the most values, so that this source, the
//! greediest, loses its oldest value first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use crate::wire::Gid;

/// One queue of values per source address.
///
/// ```
/// use ib_cm::shares::Shares;
///
/// let (flood, client) = ([1; 16], [2; 16]);
/// let mut shares = Shares::default();
/// for number in 0..3 {
///     shares.push(flood, number);
/// }
/// shares.push(client, 7);
/// assert_eq!(shares.greediest(), Some((flood, 3)));
/// assert_eq!(shares.pop(&flood), Some(0));
/// // One source after the other.
/// let turns: Vec<_> = std::iter::from_fn(|| shares.pop_in_turn()).collect();
/// assert_eq!(turns, [1, 7, 2]);
/// ```
#[derive(Debug)]
pub struct Shares<T> {
    sources: BTreeMap<Gid, VecDeque<T>>,
    by_count: BTreeSet<(usize, Gid)>,
    /// The source served last. The next source in address order is served next.
    last: Gid,
    /// The source that most recently lost a value as the greediest.
    last_greediest: Gid,
    len: usize,
}

impl<T> Default for Shares<T> {
    fn default() -> Self {
        Self {
            sources: BTreeMap::new(),
            by_count: BTreeSet::new(),
            last: Gid::default(),
            last_greediest: Gid::default(),
            len: 0,
        }
    }
}

impl<T> Shares<T> {
    /// Returns the total number of values from all sources.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether all queues are empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of values from a source.
    pub fn count(&self, source: &Gid) -> usize {
        self.sources.get(source).map_or(0, VecDeque::len)
    }

    /// Returns the source with the most values and the number of its values.
    pub fn greediest(&self) -> Option<(Gid, usize)> {
        self.by_count.last().map(|(count, source)| (*source, *count))
    }

    /// Returns the greediest source if it has at least two values more than `source`. After losing
    /// a value to `source`, the greediest source still has at least as many values, so equal
    /// sources take nothing from each other.
    pub fn greedier_than(&self, source: &Gid) -> Option<Gid> {
        let (greediest, count) = self.greediest()?;
        (count > self.count(source) + 1).then_some(greediest)
    }

    /// Returns the sources in order of their value counts, lowest first.
    pub fn by_count(&self) -> impl Iterator<Item = Gid> + '_ {
        self.by_count.iter().map(|(_, source)| *source)
    }

    /// Returns the values from a source, oldest first.
    pub fn from_source(&self, source: &Gid) -> impl Iterator<Item = &T> {
        self.sources.get(source).into_iter().flatten()
    }

    /// Adds a value to the queue of a source.
    pub fn push(&mut self, source: Gid, value: T) {
        self.change(source, |of| of.push_back(value));
    }

    /// Adds a value to the queue of a source. Returns false and changes nothing if out of memory.
    pub fn try_push(&mut self, source: Gid, value: T) -> bool {
        self.change(source, |of| {
            let has_memory = of.try_reserve(1).is_ok();
            if has_memory {
                of.push_back(value);
            }
            has_memory
        })
    }

    /// Removes and returns the oldest value from a source.
    pub fn pop(&mut self, source: &Gid) -> Option<T> {
        self.change(*source, VecDeque::pop_front)
    }

    /// Removes and returns the oldest value from the next source in rotation.
    pub fn pop_in_turn(&mut self) -> Option<T> {
        let behind = self.sources.range((Excluded(self.last), Unbounded)).next();
        self.last = *behind.or_else(|| self.sources.first_key_value())?.0;
        self.change(self.last, VecDeque::pop_front)
    }

    /// Removes and returns the oldest value from the source with the most values. Among sources
    /// with equally many, it chooses the next in address order after the previous call's choice. If
    /// ties always went to the same address, a flood could choose addresses that lose nothing.
    pub fn pop_greediest(&mut self) -> Option<T> {
        let (count, _) = *self.by_count.last()?;
        let behind = self.by_count.range((Excluded((count, self.last_greediest)), Unbounded)).next();
        let (_, source) = *behind.or_else(|| self.by_count.range((count, Gid::default())..).next())?;
        self.last_greediest = source;
        self.pop(&source)
    }

    /// Removes and returns the first value from a source for which `is_it` returns true.
    pub fn remove(&mut self, source: &Gid, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        self.change(*source, |of| of.iter().position(is_it).and_then(|at| of.remove(at)))
    }

    /// Applies `change` to the queue of a source.
    fn change<R>(&mut self, source: Gid, change: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        let of = self.sources.entry(source).or_default();
        let before = of.len();
        let result = change(of);
        let after = of.len();
        self.by_count.remove(&(before, source));
        if after == 0 {
            self.sources.remove(&source);
        } else {
            self.by_count.insert((after, source));
        }
        self.len = self.len - before + after;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Gid = [1; 16];
    const B: Gid = [2; 16];

    #[test]
    fn a_source_is_greedier_by_two_values() {
        let mut shares = Shares::default();
        assert_eq!(shares.greedier_than(&A), None);
        shares.push(A, 1);
        assert_eq!(shares.greedier_than(&B), None, "1 and 0 would become 0 and 1");
        shares.push(A, 2);
        assert_eq!((shares.greedier_than(&B), shares.greedier_than(&A)), (Some(A), None));
        shares.push(B, 3);
        assert_eq!(shares.greedier_than(&B), None);
    }

    #[test]
    fn values_are_removed_from_any_place_and_counted() {
        let mut shares = Shares::default();
        for (source, value) in [(A, 1), (B, 2), (A, 3), (A, 4)] {
            shares.push(source, value);
        }
        assert_eq!(shares.remove(&A, |value| *value == 3), Some(3));
        assert_eq!(shares.remove(&A, |value| *value == 3), None);
        assert_eq!((shares.len(), shares.count(&A), shares.count(&B)), (3, 2, 1));
        assert_eq!(shares.from_source(&A).collect::<Vec<_>>(), [&1, &4]);
        assert_eq!(shares.by_count().collect::<Vec<_>>(), [B, A]);
        assert_eq!((shares.pop(&B), shares.pop(&B)), (Some(2), None));
        assert_eq!(shares.greediest(), Some((A, 2)));
        assert_eq!(
            [shares.pop_in_turn(), shares.pop_in_turn(), shares.pop_in_turn()],
            [Some(1), Some(4), None]
        );
        assert!(shares.is_empty() && shares.greediest().is_none());
    }

    #[test]
    fn equal_sources_lose_values_in_turn() {
        let mut shares = Shares::default();
        for source in [1, 2, 3] {
            (0..3).for_each(|number| shares.push([source; 16], source * 10 + number));
        }
        let lost: Vec<_> = (0..7).filter_map(|_| shares.pop_greediest()).collect();
        assert_eq!(lost, [10, 20, 30, 11, 21, 31, 12]);
        // If one source has more values than another, it loses a value first.
        (0..2).for_each(|number| shares.push(B, number));
        assert_eq!((shares.count(&B), shares.pop_greediest()), (3, Some(22)));
        assert_eq!(Shares::<u8>::default().pop_greediest(), None);
    }
}
