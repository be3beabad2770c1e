//! [`Slots`]: a table with ids that can be passed through the kernel and the device.
//!
//! The kernel returns the `user_handle` of a queue in events. A program may receive such a handle
//! after the queue was destroyed, or forge it. An id consists of a slot number and the slot's
//! generation, so a stale id finds no value.
//!
//! ```text
//!  62        32 31         0
//! ┌────────────┬────────────┐   A slot's generation is odd while it is taken and even while
//! │ generation │    slot    │   it is free, so 0 is never a live id. Bit 63 is clear: see
//! └────────────┴────────────┘   `TAG_LIST` of the provider contract.
//! ```

use core::fmt;

use crate::errno::Errno;
use crate::fork::generation;
use crate::room;

/// A slot number and its generation, as passed to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct SlotId(pub u64);

impl SlotId {
    const fn new(slot: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | slot as u64)
    }

    const fn slot(self) -> usize {
        self.0 as u32 as usize
    }

    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The mask of the bits in a generation.
const GENERATION: u32 = u32::MAX >> 1;

/// Writes the slot and the generation, such as `#3.1`.
impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.slot(), self.generation())
    }
}

/// A table of values, found by ids. An id becomes stale when its value is removed.
#[derive(Debug)]
pub struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    live: usize,
    /// The generation of a new slot, before its first value.
    first: u32,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// Creates an empty table.
    pub const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), live: 0, first: 0 }
    }

    /// Creates an empty table for a forked child, in place of a table that its parent was changing.
    /// The old table's ids are invalid in the new table, unless a slot has held 2<sup>15</sup>
    /// values.
    pub fn of_child() -> Self {
        Self { first: (generation() << 16) & GENERATION, ..Self::new() }
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Returns whether the table is empty.
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Inserts a value and returns its id, which is valid until the value is removed.
    ///
    /// # Panics
    /// Panics if the table already has 2³² values.
    pub fn insert(&mut self, value: T) -> SlotId {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.entries.len()).expect("fewer than 2^32 slots");
            self.entries.push(Entry { generation: self.first, value: None });
            slot
        });
        let entry = &mut self.entries[slot as usize];
        entry.generation = next(entry.generation);
        entry.value = Some(value);
        self.live += 1;
        SlotId::new(slot, entry.generation)
    }

    /// Inserts a value as [`insert`](Self::insert) does, but fails if memory is short.
    ///
    /// # Errors
    /// `ENOMEM` if the table cannot grow; the table is then unchanged.
    pub fn try_insert(&mut self, value: T) -> Result<SlotId, Errno> {
        if self.free.is_empty() {
            let to_remove = self.entries.len() + 1;
            room::reserve(&mut self.free, to_remove)?;
            room::reserve(&mut self.entries, 1)?;
        }
        Ok(self.insert(value))
    }

    /// Returns the value with this id; `None` if the id is stale.
    pub fn get(&self, id: SlotId) -> Option<&T> {
        self.entries.get(id.slot()).filter(|entry| entry.generation == id.generation())?.value.as_ref()
    }

    /// Returns the value with this id, mutably; `None` if the id is stale.
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        self.entries.get_mut(id.slot()).filter(|entry| entry.generation == id.generation())?.value.as_mut()
    }

    /// Removes and returns the value with this id, which becomes stale; `None` if it already is.
    pub fn remove(&mut self, id: SlotId) -> Option<T> {
        let entry = self.entries.get_mut(id.slot()).filter(|entry| entry.generation == id.generation())?;
        let value = entry.value.take()?;
        entry.generation = next(entry.generation);
        self.live -= 1;
        self.free.push(id.slot() as u32);
        Some(value)
    }
}

/// Returns the generation after `generation`.
const fn next(generation: u32) -> u32 {
    generation.wrapping_add(1) & GENERATION
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_id_finds_nothing_even_when_its_slot_is_taken_again() {
        let mut slots = Slots::new();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_eq!(first.slot(), second.slot());
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(second), Some(&"second"));
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn zero_and_forged_ids_find_nothing() {
        let mut slots = Slots::new();
        assert_eq!(slots.get(SlotId(0)), None);
        let id = slots.insert(1);
        for forged in [0, u64::MAX, id.0 + 1, id.0 ^ (1 << 32), id.0 ^ (1 << 63)] {
            assert_eq!(slots.get(SlotId(forged)), None, "{forged:#x}");
        }
    }

    #[test]
    fn a_generation_that_wraps_stays_odd_for_the_living() {
        let mut slots = Slots::new();
        let id = slots.insert(());
        slots.remove(id);
        slots.entries[0].generation = GENERATION - 1;
        let last = slots.insert(());
        assert_eq!((last.generation(), last.0 >> 63), (GENERATION, 0));
        slots.remove(last);
        let next = slots.insert(());
        assert_eq!(next.generation(), 1);
        assert_ne!(next.0, 0);
    }

    #[test]
    fn a_table_counts_its_values_and_changes_them_by_id() {
        let mut slots = Slots::default();
        assert_eq!((slots.len(), slots.is_empty()), (0, true));
        let ids = [1, 2, 3].map(|value| slots.insert(value));
        assert_eq!((slots.len(), slots.is_empty()), (3, false));
        *slots.get_mut(ids[1]).unwrap() += 20;
        assert_eq!(ids.map(|id| slots.get(id).copied()), [Some(1), Some(22), Some(3)]);
        assert_eq!(slots.remove(ids[1]), Some(22));
        assert_eq!(slots.len(), 2);
        let again = slots.insert(4);
        assert_eq!(again.slot(), ids[1].slot());
        assert_eq!(slots.get_mut(ids[1]), None, "a stale id");
        assert_eq!(slots.get_mut(again), Some(&mut 4));
        assert_eq!(slots.get_mut(SlotId::new(3, 1)), None, "a slot that never was");
        for id in [ids[0], again, ids[2]] {
            assert!(slots.remove(id).is_some());
        }
        assert_eq!((slots.len(), slots.is_empty()), (0, true));
    }
}
