//! [`Slots`], [`Numbers`]: objects by slot, and slots by the engine's object number.
//!
//! Both grow by doubling, as the peak number of objects grows. Apart from that, the cost of an
//! access, an addition and a removal does not depend on the number of objects.

use roce::engine::Refused;
use verbs_core::room;

/// Objects by slot. Slots are small numbers and are reused.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    values: Vec<Option<T>>,
    /// The free slots. The last of them is used next.
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }

    /// Adds an object and returns its slot, which is below `max`.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if no slot is free; [`Refused::NoMemory`].
    pub(crate) fn add(&mut self, value: T, max: u32) -> Result<usize, Refused> {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None if self.values.len() < max as usize => {
                reserve(&mut self.values, 1)?;
                // Reserved here, so that a removal allocates nothing.
                let slots = self.values.len() + 1;
                reserve(&mut self.free, slots)?;
                self.values.push(None);
                slots - 1
            }
            None => return Err(Refused::NoRoom),
        };
        self.values[slot] = Some(value);
        Ok(slot)
    }

    /// Removes the object in a slot, if `matches` returns true for it.
    pub(crate) fn take_if(&mut self, slot: usize, matches: impl FnOnce(&mut T) -> bool) -> Option<T> {
        let value = self.values.get_mut(slot)?.take_if(matches)?;
        self.free.push(slot as u32);
        Some(value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.values.get_mut(slot)?.as_mut()
    }

    /// Returns the number of slots, occupied and free.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the objects with their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.values.iter().enumerate().filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }
}

/// Reserves space for `more` additional values.
///
/// # Errors
/// [`Refused::NoMemory`].
pub(crate) fn reserve<T>(values: &mut Vec<T>, more: usize) -> Result<(), Refused> {
    let bytes = ((values.len() + more) as u64).saturating_mul(size_of::<T>() as u64);
    room::reserve(values, more).map_err(|_| Refused::NoMemory { bytes })
}

/// The slots of objects by number. The engine's numbers differ modulo a power of two
/// ([`Engine::qpn_modulus`](roce::engine::Engine::qpn_modulus)), so their low bits are an index.
#[derive(Debug)]
pub(crate) struct Numbers {
    slots: Box<[u16]>,
}

impl Numbers {
    pub(crate) fn new() -> Self {
        Self { slots: Box::new([0; 8]) }
    }

    /// Makes space for numbers that differ modulo `modulus`, a power of two. `present` yields the
    /// current numbers and their slots.
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub(crate) fn fit(
        &mut self,
        modulus: usize,
        present: impl Iterator<Item = (u32, usize)>,
    ) -> Result<(), Refused> {
        if modulus <= self.slots.len() {
            return Ok(());
        }
        let bytes = modulus as u64 * size_of::<u16>() as u64;
        let slots = room::copies(0, modulus).map_err(|_| Refused::NoMemory { bytes })?;
        self.slots = slots.into_boxed_slice();
        for (number, slot) in present {
            self.set(number, slot);
        }
        Ok(())
    }

    /// Stores the slot of a number.
    pub(crate) fn set(&mut self, number: u32, slot: usize) {
        self.slots[number as usize & (self.slots.len() - 1)] = slot as u16;
    }

    /// Returns the slot of a number. If no object has this number, returns an arbitrary slot.
    #[inline]
    pub(crate) fn slot(&self, number: u32) -> usize {
        self.slots[number as usize & (self.slots.len() - 1)].into()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_and_the_last_one_is_the_last() {
        let mut slots = Slots::new();
        assert_eq!([(); 3].map(|()| slots.add('a', 3)), [Ok(0), Ok(1), Ok(2)]);
        assert_eq!(slots.add('b', 3), Err(Refused::NoRoom));
        assert_eq!(slots.take_if(1, |value| *value == 'b'), None);
        assert_eq!(slots.take_if(1, |_| true), Some('a'));
        assert_eq!((slots.take_if(1, |_| true), slots.get_mut(1)), (None, None));
        assert_eq!(slots.add('c', 3), Ok(1));
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(0, &'a'), (1, &'c'), (2, &'a')]);
    }

    #[test]
    fn numbers_keep_their_slots_when_there_is_room_for_more() {
        let mut numbers = Numbers::new();
        let present = [(0x10_0005, 3), (0x20_0006, 9)];
        for (number, slot) in present {
            numbers.set(number, slot);
        }
        numbers.fit(64, present.into_iter()).unwrap();
        numbers.set(0x30_0025, 4);
        assert_eq!([0x10_0005, 0x20_0006, 0x30_0025].map(|number| numbers.slot(number)), [3, 9, 4]);
    }
}
