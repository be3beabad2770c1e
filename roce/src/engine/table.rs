//! [`Table`]: objects with unguessable numbers.
//!
//! All bits of a number are random. Its low bits select a slot. The table has at least twice as
//! many slots as objects. If the slot is taken, another number is drawn. A lookup therefore takes
//! one comparison. Each draw succeeds with a probability of at least one half. A number reveals
//! nothing about any other number except that their low bits differ. The table starts small and
//! doubles.
//!
//! ```text
//!   number 0x5a3c41 ── & mask ──► slots[0x41] = (0x5a3c41, object)
//!                                        other numbers with these low bits find nothing
//! ```
//!
//! A removed number finds nothing until it is drawn again, which is no more likely than for any
//! other number.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rdma_sans_io::Random;

use super::room;
use super::types::Refused;

/// A map from random numbers to objects.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// The slots, indexed by the low bits of the number. The number of slots is a power of two.
    slots: Box<[Slot<T>]>,
    /// The number of slots minus 1.
    mask: usize,
    /// The numbers of all objects, in arbitrary order.
    numbers: Vec<u32>,
    number_mask: u32,
    /// The bits above the random bits, the same in all numbers.
    prefix: u32,
    max: usize,
    reserved: u32,
}

#[derive(Debug)]
struct Slot<T> {
    /// The object's number, or [`FREE`].
    number: u32,
    /// The index of the number in `numbers`.
    position: u32,
    value: Option<Box<T>>,
}

/// The number in a free slot. Object numbers have at most 24 bits.
const FREE: u32 = u32::MAX;

impl<T> Slot<T> {
    const EMPTY: Self = Self { number: FREE, position: 0, value: None };
}

impl<T> Table<T> {
    /// Creates a table for at most `max` objects. Their numbers have `bits` bits (3 to 24), are at
    /// least `reserved` and are not all ones.
    ///
    /// At most a quarter of all numbers are in use at a time, even if `max` is larger.
    pub(crate) fn new(max: u32, bits: u32, reserved: u32) -> Self {
        let all = 1usize << bits;
        let len = FEWEST.min(all / 2);
        Self {
            slots: (0..len).map(|_| Slot::EMPTY).collect(),
            mask: len - 1,
            numbers: Vec::new(),
            number_mask: (all - 1) as u32,
            prefix: 0,
            max: (max as usize).min(all / 4),
            reserved,
        }
    }

    /// Returns the number of slots, a power of two. All numbers differ modulo this value. An
    /// insertion may double it.
    pub(crate) fn modulus(&self) -> usize {
        self.slots.len()
    }

    /// Sets the bits above the random bits, which are the same in all numbers. The table must still
    /// be empty.
    pub(crate) fn with_prefix(self, prefix: u32) -> Self {
        debug_assert!(prefix & self.number_mask == 0 && self.numbers.is_empty());
        Self { prefix, ..self }
    }

    /// Inserts an object and returns its number.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if the table is full; [`Refused::NoMemory`] if an allocation fails;
    /// [`Refused::NoNumbers`] if the random source fails.
    pub(crate) fn insert(&mut self, value: T, random: &mut dyn Random) -> Result<u32, Refused> {
        if self.numbers.len() >= self.max {
            return Err(Refused::NoRoom);
        }
        if (self.numbers.len() + 1) * 2 > self.slots.len() {
            self.grow()?;
        }
        room::reserve(&mut self.numbers, 1)?;
        let number = self.free_number(random)?;
        let position = self.numbers.len() as u32;
        self.numbers.push(number);
        let index = self.index(number);
        self.slots[index] = Slot { number, position, value: Some(Box::new(value)) };
        Ok(number)
    }

    /// Draws numbers until the slot of one is free, and returns this number.
    ///
    /// At least half of the slots are free, so a uniform source is called at most twice on average.
    /// A source that counts upwards reaches every slot in as many draws as there are slots. After
    /// [`PATIENCE`] more draws, the function gives up.
    fn free_number(&self, random: &mut dyn Random) -> Result<u32, Refused> {
        for _ in 0..self.slots.len() + PATIENCE {
            let drawn = random.draw().ok_or(Refused::NoNumbers)? & self.number_mask;
            let given = drawn >= self.reserved && drawn != self.number_mask;
            let number = self.prefix | drawn;
            if given && self.slots[self.index(number)].number == FREE {
                return Ok(number);
            }
        }
        Err(Refused::NoNumbers)
    }

    /// Doubles the number of slots. Numbers that differ in their low bits still differ with one
    /// more bit.
    fn grow(&mut self) -> Result<(), Refused> {
        let len = self.slots.len() * 2;
        let old = core::mem::replace(&mut self.slots, empty(len)?);
        self.mask = len - 1;
        for slot in old {
            if slot.number != FREE {
                let index = self.index(slot.number);
                self.slots[index] = slot;
            }
        }
        Ok(())
    }

    #[inline]
    fn index(&self, number: u32) -> usize {
        number as usize & self.mask
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get(self.index(number))?;
        if slot.number == number { slot.value.as_deref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.index(number);
        let slot = self.slots.get_mut(index)?;
        if slot.number == number { slot.value.as_deref_mut() } else { None }
    }

    /// Removes an object. Its number is invalid afterwards.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number);
        let slot = self.slots.get_mut(index).filter(|slot| slot.number == number)?;
        let Slot { position, value, .. } = core::mem::replace(slot, Slot::EMPTY);
        let position = position as usize;
        self.numbers.swap_remove(position);
        if let Some(&moved) = self.numbers.get(position) {
            let index = self.index(moved);
            self.slots[index].position = position as u32;
        }
        value.map(|value| *value)
    }

    /// Returns the number of the object at `position` in an arbitrary order; `None` past the last
    /// object.
    pub(crate) fn number_at(&self, position: usize) -> Option<u32> {
        self.numbers.get(position).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}

fn empty<T>(len: usize) -> Result<Box<[Slot<T>]>, Refused> {
    let mut slots = room::with_room(len)?;
    slots.resize_with(len, || Slot::EMPTY);
    Ok(slots.into_boxed_slice())
}

/// The number of slots in a new table.
const FEWEST: usize = 8;

/// The number of draws in addition to one per slot. With a uniform source, all draws fail with a
/// probability of at most 2⁻¹²⁸.
const PATIENCE: usize = 128;

#[cfg(test)]
mod tests {
    use alloc::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::sim::Rng;

    /// A source that returns the numbers in a script and then fails.
    #[derive(Debug)]
    struct Script(&'static [u32]);

    impl Random for Script {
        fn draw(&mut self) -> Option<u32> {
            let (&first, rest) = self.0.split_first()?;
            self.0 = rest;
            Some(first)
        }
    }

    /// A source that always returns the same number.
    #[derive(Debug)]
    struct Stuck;

    impl Random for Stuck {
        fn draw(&mut self) -> Option<u32> {
            Some(5)
        }
    }

    #[test]
    fn a_number_that_was_given_back_finds_nothing() {
        let (mut table, mut random) = (Table::new(4, 24, 16), Rng::new(7));
        let a = table.insert('a', &mut random).unwrap();
        let b = table.insert('b', &mut random).unwrap();
        assert_eq!(table.remove(a), Some('a'));
        let c = table.insert('c', &mut random).unwrap();
        assert_ne!(a, c);
        assert_eq!((table.get(a), table.get(b), table.get(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(table.remove(a), None);
        assert!(c < 1 << 24);
    }

    #[test]
    fn a_full_table_refuses_one_more() {
        let (mut table, mut random) = (Table::new(2, 24, 0), Rng::new(0));
        assert!(table.insert(1, &mut random).is_ok() && table.insert(2, &mut random).is_ok());
        assert_eq!(table.insert(3, &mut random), Err(Refused::NoRoom));
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_number_is_the_draw_itself_unless_it_is_reserved_or_its_place_is_taken() {
        let mut table = Table::new(4, 24, 16);
        let mut script = Script(&[0xab12_3450, 0x0f, u32::MAX, 0x1200_0018, 0x1200_0019]);
        assert_eq!(table.insert('a', &mut script), Ok(0x12_3450), "the upper byte is cut off");
        assert_eq!(
            table.insert('b', &mut script),
            Ok(0x00_0019),
            "15 is reserved, all ones is excluded, and the first has taken that place"
        );
        assert_eq!(table.insert('c', &mut script), Err(Refused::NoNumbers), "the source has failed");
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_source_that_is_stuck_is_given_up() {
        let mut table = Table::new(8, 24, 0);
        assert_eq!(table.insert('a', &mut Stuck), Ok(5));
        assert_eq!(table.insert('b', &mut Stuck), Err(Refused::NoNumbers));
    }

    #[test]
    fn numbers_differ_modulo_the_number_of_places_while_it_grows() {
        let (mut table, mut random) = (Table::new(4000, 24, 16), Rng::new(3));
        let mut numbers = Vec::new();
        for n in 0..4000 {
            numbers.push(table.insert(n, &mut random).unwrap() as usize);
            if n % 256 == 0 {
                let modulus = table.modulus();
                let places: BTreeSet<usize> = numbers.iter().map(|number| number % modulus).collect();
                assert!(places.len() == numbers.len() && modulus <= 4 * numbers.len().max(2));
            }
        }
    }

    #[test]
    fn the_prefix_is_in_all_numbers_and_the_other_bits_are_drawn() {
        let (mut table, mut random) = (Table::new(4000, 16, 16).with_prefix(7 << 16), Rng::new(3));
        let numbers: BTreeSet<u32> = (0..4000).map(|n| table.insert(n, &mut random).unwrap()).collect();
        assert!(numbers.len() == 4000 && numbers.iter().all(|number| number >> 16 == 7));
        let number = *numbers.first().unwrap();
        assert!(table.get(number).is_some() && table.get(number ^ 1 << 16).is_none());
    }

    #[test]
    fn a_table_is_a_map_whatever_is_put_in_and_taken_out() {
        let (mut table, mut random, mut rng) = (Table::new(1000, 12, 2), Rng::new(1), Rng::new(2));
        let mut model = BTreeMap::new();
        for step in 0..20_000u32 {
            if rng.below(100) < 52 {
                if let Ok(number) = table.insert(step, &mut random) {
                    assert!((2..0xfff).contains(&number));
                    assert_eq!(model.insert(number, step), None, "two objects have the same number");
                }
            } else if let Some(number) = table.number_at(rng.below(table.len() as u64 + 1) as usize) {
                assert_eq!(table.remove(number), model.remove(&number));
            }
            let probe = rng.below(1 << 12) as u32;
            assert_eq!(table.get(probe), model.get(&probe));
            assert_eq!(table.get_mut(probe).copied(), model.get(&probe).copied());
        }
        let listed: BTreeSet<u32> = (0..table.len()).map(|at| table.number_at(at).unwrap()).collect();
        assert!(listed.iter().eq(model.keys()) && table.number_at(table.len()).is_none());
        assert_eq!(table.get(u32::MAX), None);
    }

    #[test]
    fn every_bit_of_a_number_is_drawn() {
        let mut random = Rng::new(11);
        let mut ones = [0u32; 24];
        for _ in 0..10_000 {
            let number = Table::new(16, 24, 0).insert((), &mut random).unwrap();
            for (bit, ones) in ones.iter_mut().enumerate() {
                *ones += number >> bit & 1;
            }
        }
        // Each bit is expected to be set 5,000 ± 50 times. Ten times this deviation does not happen
        // by chance.
        assert!(ones.iter().all(|ones| (4500..5500).contains(ones)), "{ones:?}");
    }
}
