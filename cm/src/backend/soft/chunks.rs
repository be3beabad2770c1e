//! [`Chunks`]: a queue in chunks of a few KiB. It can still grow when free memory is fragmented
//! into small pieces, as after long use.

use std::collections::{TryReserveError, VecDeque};

/// A queue that grows in chunks. Growing may fail, but never moves a value.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    /// The chunks, each with space for [`CHUNK`] values. None is empty.
    chunks: VecDeque<VecDeque<T>>,
    /// An empty chunk kept for reuse.
    spare: Option<VecDeque<T>>,
}

/// The number of values in a chunk.
const CHUNK: usize = 16;

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), spare: None }
    }
}

impl<T> Chunks<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Reserves memory for one more value.
    pub(super) fn reserve(&mut self) -> Result<(), TryReserveError> {
        if self.has_room() || self.spare.is_some() {
            return Ok(());
        }
        self.chunks.try_reserve(1)?;
        let mut chunk = VecDeque::new();
        chunk.try_reserve_exact(CHUNK)?;
        self.spare = Some(chunk);
        Ok(())
    }

    /// Adds a value, or returns it if memory is short.
    pub(super) fn push(&mut self, value: T) -> Result<(), T> {
        if self.reserve().is_err() {
            return Err(value);
        }
        if !self.has_room() {
            self.chunks.extend(self.spare.take());
        }
        match self.chunks.back_mut() {
            Some(last) => last.push_back(value),
            None => return Err(value),
        }
        Ok(())
    }

    /// Removes and returns the oldest value.
    pub(super) fn pop(&mut self) -> Option<T> {
        let first = self.chunks.front_mut()?;
        let value = first.pop_front();
        if first.is_empty() {
            self.spare = self.chunks.pop_front();
        }
        value
    }

    /// Removes the values that `is_kept` rejects. The others keep their order.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&mut T) -> bool) {
        self.chunks.iter_mut().for_each(|chunk| chunk.retain_mut(&mut is_kept));
        self.chunks.retain(|chunk| !chunk.is_empty());
    }

    fn has_room(&self) -> bool {
        self.chunks.back().is_some_and(|last| last.len() < last.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_leave_in_order_and_a_chunk_serves_again() {
        let mut chunks = Chunks::default();
        for round in 0..3 {
            for value in 0..100 {
                assert_eq!(chunks.push(100 * round + value), Ok(()));
            }
            chunks.retain(|value| *value % 3 != 0);
            let kept: Vec<_> = (100 * round..100 * round + 100).filter(|value| value % 3 != 0).collect();
            assert!(chunks.iter().eq(&kept));
            assert_eq!(core::iter::from_fn(|| chunks.pop()).collect::<Vec<_>>(), kept);
            assert!(chunks.is_empty() && chunks.spare.is_some());
        }
    }

    #[test]
    fn a_reserved_place_needs_no_memory() {
        let mut chunks = Chunks::default();
        for value in 0..100 {
            chunks.reserve().unwrap();
            let outer = chunks.chunks.capacity();
            assert!(chunks.has_room() || chunks.spare.is_some());
            chunks.push(value).unwrap();
            assert_eq!(chunks.chunks.capacity(), outer);
        }
    }
}
