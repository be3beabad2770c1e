//! [`Table`]: slots with generations. A number that is no longer valid finds nothing rather than something else.

use alloc::vec::Vec;

/// Slots numbered by `index | generation << INDEX_BITS`, of which `bits` bits are used in all.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    index_bits: u32,
    index_mask: u32,
    number_mask: u32,
    max: u32,
    first: u32,
}

#[derive(Debug)]
struct Slot<T> {
    number: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    /// A table of at most `max` values whose numbers have `bits` bits (at most 32) and are not below `reserved`.
    ///
    /// `seed` chooses the first generation.
    pub(crate) fn new(max: u32, bits: u32, reserved: u32, seed: u64) -> Self {
        let needed = u64::from(max) + u64::from(reserved);
        let index_bits = (64 - needed.leading_zeros()).min(bits);
        let number_mask = if bits >= 32 { u32::MAX } else { (1 << bits) - 1 };
        let generation = ((seed << index_bits) as u32) & number_mask;
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            index_bits,
            index_mask: ((1u64 << index_bits) - 1) as u32,
            number_mask,
            max,
            first: reserved | generation,
        }
    }

    /// Puts a value in and gives its number, or the value back when there is no room.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Ok(slot.number);
        }
        let index = self.slots.len() as u32;
        if index >= self.max {
            return Err(value);
        }
        let number = self.first.wrapping_add(index) & self.number_mask;
        self.slots.push(Slot { number, value: Some(value) });
        Ok(number)
    }

    #[inline]
    fn index(&self, number: u32) -> Option<usize> {
        let index = number.wrapping_sub(self.first) & self.index_mask;
        self.slots.get(index as usize).is_some_and(|slot| slot.number == number).then_some(index as usize)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get((number.wrapping_sub(self.first) & self.index_mask) as usize)?;
        slot.value.as_ref().filter(|_| slot.number == number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((number.wrapping_sub(self.first) & self.index_mask) as usize)?;
        slot.value.as_mut().filter(|_| slot.number == number)
    }

    /// Takes a value out; its number becomes stale.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number)?;
        let slot = &mut self.slots[index];
        let value = slot.value.take()?;
        let step = if self.index_bits >= 32 { 0 } else { 1u32 << self.index_bits };
        slot.number = number.wrapping_add(step) & self.number_mask;
        self.free.push(index as u32);
        Some(value)
    }

    /// The number that a slot has now, whether it holds a value or not; `None` behind the last slot.
    pub(crate) fn number_at(&self, position: usize) -> Option<u32> {
        self.slots.get(position).map(|slot| slot.number)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_back_finds_nothing() {
        let mut table = Table::new(4, 24, 16, 7);
        let a = table.insert('a').unwrap();
        let b = table.insert('b').unwrap();
        assert_eq!(table.remove(a), Some('a'));
        let c = table.insert('c').unwrap();
        assert_ne!(a, c);
        assert_eq!((table.get(a), table.get(b), table.get(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(table.remove(a), None);
        assert!(c < 1 << 24);
    }

    #[test]
    fn a_full_table_gives_the_value_back() {
        let mut table = Table::new(2, 24, 0, 0);
        assert!(table.insert(1).is_ok() && table.insert(2).is_ok());
        assert_eq!(table.insert(3), Err(3));
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn numbers_wrap_around_and_stay_in_their_bits() {
        let mut table = Table::new(1, 8, 2, u64::MAX);
        for _ in 0..1000 {
            let number = table.insert(()).unwrap();
            assert!(number < 256);
            assert_eq!(table.remove(number), Some(()));
        }
    }
}
