//! [`Table`]: the memory of one queue's requests. The poster inserts memory and the poller removes
//! it.
//!
//! ```text
//!              insert (poster)                 take (poller, or the end of the queue pair)
//!    FREE ───────────────────────► wr_id ──────────────────────────────► EMPTYING ───► FREE
//!                                    │ mark (poller)                        ▲
//!                                    └────────────► wr_id | POLLED ─────────┘ take_polled, take
//! ```
//!
//! # Safety
//! Only the owner of a slot accesses the slot's entry. The slot's state determines the owner:
//!
//! | state | owner |
//! |---|---|
//! | `FREE` | the poster; a table has one: [`Table::insert`] takes `&mut` of a [`Posts`] |
//! | a `wr_id`, `POLLED` or not | no thread; the entry is initialised |
//! | `EMPTYING` | the thread whose compare-and-exchange set it |
//!
//! The poster stores a `wr_id` with release ordering after it wrote the entry; the thread that
//! takes the entry acquires with its exchange. That thread stores `FREE` with release ordering
//! after it moved the entry out; the poster loads with acquire ordering before it writes the next
//! entry.
//!
//! Several pollers share the table of a shared receive queue: one for each completion queue where
//! its receives complete. The exchange gives each entry to one of them. A poller that was lent a
//! completion has seen the device's writes. A marked entry may be taken by a poller other than the
//! one that marked it: the mark is stored with release ordering and acquired by the exchange, so
//! both see the device's writes.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use std::sync::{Mutex, OnceLock, PoisonError};

use verbs_core::room;

use super::sync::UnsafeCell;
use super::sync::atomic::{AtomicU64, Ordering};

/// The table of one queue. `T` is the content of a slot.
pub(super) struct Table<T> {
    /// The slots, whose number is a power of two; none before the first request. The lowest bits of
    /// a `wr_id` select its slot.
    slots: OnceLock<Box<[Slot<T>]>>,
    capacity: usize,
    /// The end of the range of `wr_id`s reserved for the table.
    reserved: AtomicU64,
    /// The directory indexes whose `wr_id`s lead to this table; the last index is in use.
    pub(super) indexes: Mutex<Vec<u32>>,
}

struct Slot<T> {
    state: AtomicU64,
    entry: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the cells blocked the auto impl. The protocol above gives each entry one owner, so only
// values of `T` cross threads.
unsafe impl<T: Send> Sync for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Table<T> {}

/// The right to insert into a table. Each table has exactly one.
#[derive(Debug)]
pub(super) struct Posts(());

impl<T> Table<T> {
    /// Returns a table and the right to insert into it. The table holds more than `max_wr`
    /// requests, so it is full only if completions were not reclaimed.
    pub(super) fn new(max_wr: u32) -> (Self, Posts) {
        let table = Self {
            slots: OnceLock::new(),
            capacity: (max_wr as usize + 1).next_power_of_two(),
            reserved: AtomicU64::new(0),
            indexes: Mutex::default(),
        };
        (table, Posts(()))
    }

    /// Returns the table's number of slots.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Allocates the slots, unless they are allocated already.
    ///
    /// # Errors
    /// Returns the size of the slots in bytes if their allocation fails.
    pub(super) fn allocate(&self) -> Result<(), usize> {
        if self.slots.get().is_some() {
            return Ok(());
        }
        let size = self.capacity.saturating_mul(size_of::<Slot<T>>());
        let slots = room::filled(self.capacity, Slot::new).map_err(|_| size)?;
        self.slots.set(slots.into()).map_err(|_| size)
    }

    /// Inserts an entry under a `wr_id`.
    ///
    /// # Errors
    /// Returns the entry if the `wr_id`'s slot is taken or the slots are not
    /// [allocated](Self::allocate).
    #[inline]
    pub(super) fn insert(&self, _posts: &mut Posts, number: u64, entry: T) -> Result<(), T> {
        debug_assert!(number > EMPTYING && number & POLLED == 0);
        let Some(slot) = self.slot(number) else { return Err(entry) };
        if slot.state.load(Ordering::Acquire) != FREE {
            return Err(entry);
        }
        // SAFETY: the poster owns a free slot, and the caller is the poster, because it has the
        // `Posts`.
        slot.entry.with_mut(|place| unsafe { (*place).write(entry) });
        slot.state.store(number, Ordering::Release);
        Ok(())
    }

    /// Removes and returns the entry with a `wr_id`, marked or not.
    #[inline]
    pub(super) fn take(&self, number: u64) -> Option<T> {
        let slot = self.slot(number)?;
        slot.empty(number).or_else(|| slot.empty(number | POLLED))
    }

    /// Removes and returns the entry with a [marked](Self::mark) `wr_id`.
    #[inline]
    pub(super) fn take_polled(&self, number: u64) -> Option<T> {
        self.slot(number)?.empty(number | POLLED)
    }

    /// Marks a `wr_id` whose completion was copied out. Returns whether the `wr_id` is in the
    /// table.
    #[inline]
    pub(super) fn mark(&self, number: u64) -> bool {
        let Some(slot) = self.slot(number) else { return false };
        slot.state.compare_exchange(number, number | POLLED, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Removes and returns all entries. The caller must have confirmed that the queue's requests
    /// have ended.
    pub(super) fn drain(&self) -> impl Iterator<Item = T> + '_ {
        let slots = self.slots.get().map_or(&[][..], |slots| slots);
        slots.iter().filter_map(|slot| match slot.state.load(Ordering::Acquire) {
            FREE | EMPTYING => None,
            state => slot.empty(state & !POLLED).or_else(|| slot.empty(state | POLLED)),
        })
    }

    /// Reserves all `wr_id`s below `end` for the table.
    pub(super) fn set_reserved(&self, end: u64) {
        self.reserved.store(end, Ordering::Relaxed);
    }

    /// Returns the end of the reserved `wr_id`s.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    #[inline]
    fn slot(&self, number: u64) -> Option<&Slot<T>> {
        self.slots.get()?.get(number as usize & (self.capacity - 1))
    }
}

impl<T> Slot<T> {
    fn new() -> Self {
        Self { state: AtomicU64::new(FREE), entry: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Moves the entry out if the slot is in `state`, a state that holds a `wr_id`.
    #[inline]
    fn empty(&self, state: u64) -> Option<T> {
        self.state.compare_exchange(state, EMPTYING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: the slot held a `wr_id`, so its entry is initialised; the exchange made this
        // thread its only owner.
        let entry = self.entry.with_mut(|place| unsafe { (*place).assume_init_read() });
        self.state.store(FREE, Ordering::Release);
        Some(entry)
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        self.drain().for_each(drop);
    }
}

impl<T> core::fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Table")
            .field("capacity", &self.capacity)
            .field("indexes", &*indexes)
            .finish_non_exhaustive()
    }
}

/// The state of a free slot, which the poster may fill.
const FREE: u64 = 0;
/// The state of a slot whose entry is being moved out.
const EMPTYING: u64 = 1;
/// The bit set in a slot's state after its completion was copied out, until its entry is reclaimed.
/// No `wr_id` has this bit set.
pub(super) const POLLED: u64 = 1 << 62;

/// Runs all interleavings of threads sharing a table. The model checker fails if two of them access
/// an entry at the same time.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const FIRST: u64 = 1 << 63;

    fn table() -> (Arc<Table<Box<u64>>>, Posts) {
        let (table, posts) = Table::new(1);
        // Initialised here, because the model checker does not see the ordering of `OnceLock`.
        table.allocate().unwrap();
        (Arc::new(table), posts)
    }

    /// Inserts an entry that holds its own `wr_id`, once its slot is free.
    fn insert(table: &Table<Box<u64>>, posts: &mut Posts, number: u64) {
        let mut entry = Box::new(number);
        while let Err(refused) = table.insert(posts, FIRST + number, entry) {
            entry = refused;
            thread::yield_now();
        }
    }

    #[test]
    fn a_poller_takes_each_entry_once_while_its_slot_is_filled_again() {
        // Two threads wait for each other: the model runs every interleaving with up to three
        // preemptions.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (table, mut posts) = table();
            let shared = Arc::clone(&table);
            // Two `wr_id`s that share a slot.
            let poster = thread::spawn(move || [0, 2].map(|number| insert(&shared, &mut posts, number)));
            for number in [0, 2] {
                let entry = loop {
                    match table.take(FIRST + number) {
                        Some(entry) => break entry,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(*entry, number);
                assert!(table.take(FIRST + number).is_none());
            }
            poster.join().unwrap();
        });
    }

    #[test]
    fn two_pollers_take_each_entry_of_a_shared_queue_once() {
        loom::model(|| {
            let (table, mut posts) = table();
            (0..2).for_each(|number| insert(&table, &mut posts, number));
            let shared = Arc::clone(&table);
            // Each poller has its own completion and guesses the other poller's `wr_id`.
            let other = thread::spawn(move || {
                assert_eq!(*shared.take(FIRST + 1).unwrap(), 1);
                assert!(shared.take_polled(FIRST).is_none(), "its completion was not copied out");
            });
            assert_eq!(*table.take(FIRST).unwrap(), 0);
            assert!(table.take_polled(FIRST + 1).is_none());
            other.join().unwrap();
        });
    }

    #[test]
    fn a_poller_that_takes_an_entry_which_another_one_marked_sees_the_received_bytes() {
        loom::model(|| {
            let (table, mut posts) = table();
            insert(&table, &mut posts, 0);
            // The request's memory, which the device writes before the completion.
            let bytes = Arc::new(loom::cell::UnsafeCell::new(0));
            let (shared, its) = (Arc::clone(&table), Arc::clone(&bytes));
            let marker = thread::spawn(move || {
                // SAFETY: the model checker fails if another thread accesses it at the same time.
                its.with_mut(|bytes| unsafe { *bytes = 7 });
                assert!(shared.mark(FIRST));
            });
            if table.take_polled(FIRST).is_some() {
                // SAFETY: as above.
                bytes.with(|bytes| assert_eq!(unsafe { *bytes }, 7));
            }
            marker.join().unwrap();
        });
    }

    #[test]
    fn a_poller_and_the_end_of_a_queue_pair_take_each_entry_once() {
        loom::model(|| {
            let (table, mut posts) = table();
            (0..2).for_each(|number| insert(&table, &mut posts, number));
            let shared = Arc::clone(&table);
            let poller = thread::spawn(move || {
                (0..2)
                    .filter_map(|number| shared.take(FIRST + number))
                    .map(|entry| *entry)
                    .collect::<Vec<_>>()
            });
            let mut taken: Vec<u64> = table.drain().map(|entry| *entry).collect();
            taken.extend(poller.join().unwrap());
            taken.sort_unstable();
            assert_eq!(taken, [0, 1]);
        });
    }

    #[test]
    fn a_copied_completion_and_the_end_of_a_queue_pair_take_an_entry_once() {
        loom::model(|| {
            let (table, mut posts) = table();
            insert(&table, &mut posts, 0);
            let shared = Arc::clone(&table);
            let poller = thread::spawn(move || {
                assert!(shared.take_polled(FIRST).is_none(), "it was not polled");
                let is_marked = shared.mark(FIRST);
                let taken = shared.take_polled(FIRST);
                assert!(is_marked || taken.is_none());
                taken.map_or(0, |entry| 1 + *entry)
            });
            let drained = table.drain().map(|entry| 1 + *entry).sum::<u64>();
            assert_eq!(drained + poller.join().unwrap(), 1);
        });
    }

    #[test]
    fn a_slot_that_the_end_of_a_queue_pair_empties_is_filled_again_whole() {
        loom::model(|| {
            let (table, mut posts) = table();
            insert(&table, &mut posts, 0);
            let shared = Arc::clone(&table);
            let poster = thread::spawn(move || insert(&shared, &mut posts, 2));
            let mut taken: Vec<u64> = Vec::new();
            while taken.is_empty() {
                taken.extend(table.drain().map(|entry| *entry));
            }
            poster.join().unwrap();
            taken.extend(table.drain().map(|entry| *entry));
            assert_eq!(taken, [0, 2]);
        });
    }
}
