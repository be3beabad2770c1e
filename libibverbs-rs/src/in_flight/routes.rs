//! [`Directory`] and [`Routes`]: the map from the `wr_id` in a completion to the table of its
//! queue.
//!
//! ```text
//!   63   62   61       60     40 39                 0
//!   ┌────┬────┬────────┬─────────┬──────────────────┐
//!   │ 1  │ 0  │ shared │  index  │     sequence     │   the wr_id of a safe request
//!   └────┴────┴────────┴─────────┴──────────────────┘
//! ```
//!
//! The index selects a directory entry. Queue pairs' queues have entries in their completion
//! queue's directory. Receives of a shared receive queue complete in any completion queue of the
//! open device, so shared receive queues have entries in the device's directory instead. Their
//! `wr_id`s have the bit `shared`. When a table leaves its entry, the next table there continues
//! with unused sequence numbers. An entry without unused sequence numbers is never assigned again.
//! A directory therefore never assigns a `wr_id` twice. It lasts as long as its completion queue or
//! open device. The device outlives all its completion queues.
//!
//! A lock guards a directory; it is taken to create and destroy queue pairs and shared receive
//! queues. The poller keeps a copy. It reads the directory only if the copy has no table for a
//! `wr_id` and the directory has changed, which happens once per new queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbs_core::{Cause, Errno, Error, room};

use super::entry::Entry;
use super::table::{POLLED, Table};
use crate::handle::registry::Registry;
use crate::memory::window::Ticks;

type SharedTable = Arc<Table<Entry>>;

/// The tables of all queues that report to one completion queue, or of all shared receive queues of
/// an open device.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// [`SHARED`] for the directory of an open device, otherwise 0.
    kind: u64,
    places: Mutex<Places>,
    /// The version: the number of changes to the entries.
    version: AtomicU64,
    /// The number of windows that the poller removed from the tables.
    ticks: Arc<Ticks>,
}

#[derive(Debug, Default)]
struct Places {
    places: Vec<Place>,
    /// The indexes of entries without a table but with unused sequence numbers.
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Place {
    table: Option<SharedTable>,
    /// The first sequence number not yet used by a table in this entry.
    next: u64,
}

/// The reason why a directory has no entry for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All entries are taken.
    Full,
    /// An allocation failed.
    Memory {
        /// The size of the allocation in bytes.
        bytes: usize,
    },
}

impl NoPlace {
    /// Returns the error of a verb that creates `queues`.
    pub(crate) fn error(self, registry: &Registry, verb: &'static str, queues: &'static str) -> Error {
        let max = u64::from(INDEXES) - 1;
        match self {
            Self::Full => registry.error(verb, Errno::NOMEM).because(Cause::Limit {
                name: queues,
                asked: max + 1,
                min: 0,
                max,
            }),
            Self::Memory { bytes } => registry.short(verb, Errno::NOMEM, bytes),
        }
    }
}

impl Directory {
    /// Returns an open device's directory of shared receive queues.
    pub(crate) fn for_srqs(registry: &Registry) -> Arc<Self> {
        registry.shared_by_queues(Self::of_device)
    }

    /// Returns an empty directory for an open device's shared receive queues.
    pub(super) fn of_device() -> Self {
        Self { kind: SHARED, ..Self::default() }
    }

    /// Assigns a free entry to a table. Returns the first `wr_id` that the table may use there.
    ///
    /// # Errors
    /// [`NoPlace`] if all entries are taken or an allocation fails.
    pub(super) fn enter(&self, table: &SharedTable) -> Result<u64, NoPlace> {
        let mut places = self.lock();
        let index = match places.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(places.places.len()).ok().filter(|index| *index < INDEXES);
                let index = index.ok_or(NoPlace::Full)?;
                let bytes = (index as usize + 1) * size_of::<Place>();
                room::reserve(&mut places.places, 1).map_err(|_| NoPlace::Memory { bytes })?;
                places.places.push(Place::default());
                index
            }
        };
        let place = places.places.get_mut(index as usize).ok_or(NoPlace::Full)?;
        place.table = Some(Arc::clone(table));
        let first = base(self.kind, index) + place.next;
        table.set_reserved(first);
        table.indexes.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        self.version.fetch_add(1, Ordering::Release);
        Ok(first)
    }

    /// Removes a table from its entries.
    pub(super) fn leave(&self, table: &SharedTable) {
        let indexes = core::mem::take(&mut *table.indexes.lock().unwrap_or_else(PoisonError::into_inner));
        let Some((last, used_up)) = indexes.split_last() else { return };
        let mut places = self.lock();
        for index in used_up {
            if let Some(place) = places.places.get_mut(*index as usize) {
                *place = Place { table: None, next: SEQUENCES };
            }
        }
        let next = table.reserved() - base(self.kind, *last);
        if let Some(place) = places.places.get_mut(*last as usize) {
            *place = Place { table: None, next };
            if next < SEQUENCES {
                places.free.push(*last);
            }
        }
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the counter of windows that the poller removed from the tables.
    pub(crate) const fn ticks(&self) -> &Arc<Ticks> {
        &self.ticks
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The poller's copies of the directories of its completion queue and of the open device.
#[derive(Debug)]
pub(crate) struct Routes {
    own: Copied,
    shared: Copied,
    /// The name of the device, for completion errors.
    device: &'static str,
}

/// The poller's copy of a directory.
#[derive(Debug)]
struct Copied {
    directory: Arc<Directory>,
    routes: Vec<Route>,
}

/// The poller's copy of one directory entry.
#[derive(Debug, Default)]
struct Route {
    table: Option<SharedTable>,
    /// The version of the directory at the time of the copy.
    version: u64,
}

impl Routes {
    pub(crate) const fn new(own: Arc<Directory>, shared: Arc<Directory>) -> Self {
        Self {
            own: Copied { directory: own, routes: Vec::new() },
            shared: Copied { directory: shared, routes: Vec::new() },
            device: "",
        }
    }

    /// Sets the device name for completion errors.
    pub(crate) fn named(self, device: &'static str) -> Self {
        Self { device, ..self }
    }

    /// Returns the name of the device.
    #[inline]
    pub(crate) const fn device(&self) -> &'static str {
        self.device
    }

    /// Returns the directory of the completion queue.
    pub(crate) const fn directory(&self) -> &Arc<Directory> {
        &self.own.directory
    }

    /// Calls `find` with the copy's table for a `wr_id`. If `find` returns `None` and the copy is
    /// outdated, refreshes the copy and calls `find` again.
    #[inline]
    pub(super) fn find<R>(&mut self, number: u64, find: impl Fn(&SharedTable) -> Option<R>) -> Option<R> {
        let copied = if number & SHARED == 0 { &mut self.own } else { &mut self.shared };
        copied.find(number, find)
    }
}

impl Copied {
    #[inline]
    fn find<R>(&mut self, number: u64, find: impl Fn(&SharedTable) -> Option<R>) -> Option<R> {
        let index = (number >> SEQUENCE_BITS & u64::from(INDEXES - 1)) as usize;
        if let Some(Route { table: Some(table), .. }) = self.routes.get(index)
            && let Some(found) = find(table)
        {
            return Some(found);
        }
        find(self.refresh(index)?)
    }

    /// Copies one directory entry if the directory has changed since the last copy. Returns the
    /// entry's table; `None` if nothing has changed or the entry is empty.
    #[cold]
    fn refresh(&mut self, index: usize) -> Option<&SharedTable> {
        let version = self.directory.version.load(Ordering::Acquire);
        if self.routes.get(index).is_some_and(|route| route.version == version) {
            return None;
        }
        let (table, version) = {
            let places = self.directory.lock();
            let table = places.places.get(index)?.table.clone();
            // The version does not change under the lock, so it is the copy's version.
            (table, self.directory.version.load(Ordering::Acquire))
        };
        if self.routes.len() <= index {
            self.routes.resize_with(index + 1, Route::default);
        }
        let route = self.routes.get_mut(index)?;
        // Done without the lock, because this may release the last share of an old table.
        *route = Route { table, version };
        route.table.as_ref()
    }
}

/// Returns the end of the range of `wr_id`s with the same directory index as this `wr_id`.
pub(super) const fn place_end(number: u64) -> u64 {
    (number & !(SEQUENCES - 1)) + SEQUENCES
}

/// Returns whether a `wr_id` has the form used for safe requests.
#[inline]
pub(crate) const fn is_safe(wr_id: u64) -> bool {
    wr_id & (FLAG | POLLED) == FLAG
}

/// Returns whether a `wr_id` is reserved and may not be used by raw requests.
#[inline]
pub(crate) const fn is_reserved(wr_id: u64) -> bool {
    wr_id & FLAG != 0
}

/// Returns the first `wr_id` of an index in a directory of this kind.
const fn base(kind: u64, index: u32) -> u64 {
    FLAG | kind | (index as u64) << SEQUENCE_BITS
}

/// The bit set in the `wr_id` of every safe request and clear in every raw `wr_id`.
const FLAG: u64 = 1 << 63;
/// The bit set in the `wr_id` of a receive in a shared receive queue.
const SHARED: u64 = 1 << 61;
/// The number of bits in a sequence number.
const SEQUENCE_BITS: u32 = 40;
/// The number of sequence numbers per directory entry.
const SEQUENCES: u64 = 1 << SEQUENCE_BITS;
/// The maximum number of entries in a directory.
const INDEXES: u32 = 1 << 21;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn table() -> SharedTable {
        Arc::new(Table::new(4).0)
    }

    fn routes_of(directory: Arc<Directory>) -> Routes {
        Routes::new(directory, Arc::new(Directory::of_device()))
    }

    fn is_found(routes: &mut Routes, number: u64, table: &SharedTable) -> bool {
        routes.find(number, |found| Arc::ptr_eq(found, table).then_some(())).is_some()
    }

    #[test]
    fn a_place_ends_where_the_next_one_begins() {
        for kind in [0, SHARED] {
            for index in [0, 1, 5, INDEXES - 2] {
                for sequence in [0, 1, SEQUENCES - 1] {
                    let end = place_end(base(kind, index) + sequence);
                    assert_eq!(end, base(kind, index + 1), "{index}, {sequence}");
                }
            }
            assert!(is_safe(base(kind, 0)) && !is_safe(base(0, 0) - 1));
        }
        assert_eq!(place_end(base(0, INDEXES - 1)), base(SHARED, 0), "the first of the other kind");
        assert_eq!(place_end(base(SHARED, INDEXES - 1)) & POLLED, 1 << 62, "no number has it");
    }

    #[test]
    fn tables_that_live_together_have_places_of_their_own() {
        let directory = Arc::new(Directory::default());
        let tables = [table(), table(), table()];
        let firsts = tables.each_ref().map(|table| directory.enter(table).unwrap());
        assert_eq!(firsts, [base(0, 0), base(0, 1), base(0, 2)]);
        let mut routes = routes_of(directory);
        for (first, table) in firsts.into_iter().zip(&tables) {
            assert!(is_found(&mut routes, first + 7, table));
        }
        assert!(routes.find(base(0, 3), |_| Some(())).is_none());
    }

    #[test]
    fn the_next_table_of_a_place_continues_after_the_numbers_that_were_reserved() {
        let directory = Directory::default();
        let mut expected = base(0, 0);
        for _ in 0..3 {
            let tenant = table();
            assert_eq!(directory.enter(&tenant), Ok(expected));
            expected += 100;
            tenant.set_reserved(expected);
            directory.leave(&tenant);
        }
    }

    #[test]
    fn a_place_whose_numbers_are_used_up_is_never_given_again() {
        let directory = Directory::default();
        let long_lived = table();
        assert_eq!(directory.enter(&long_lived), Ok(base(0, 0)));
        long_lived.set_reserved(base(0, 1));
        assert_eq!(directory.enter(&long_lived), Ok(base(0, 1)), "another place of the same table");
        long_lived.set_reserved(base(0, 1) + 5);
        directory.leave(&long_lived);
        assert_eq!(directory.enter(&table()), Ok(base(0, 1) + 5));
        let last = table();
        assert_eq!(directory.enter(&last), Ok(base(0, 2)), "not place 0");
        last.set_reserved(base(0, 3));
        directory.leave(&last);
        assert_eq!(directory.enter(&table()), Ok(base(0, 3)), "not place 2");
    }

    #[test]
    fn a_directory_without_a_free_place_refuses_a_table() {
        let directory = Directory::default();
        directory.lock().places.resize_with(INDEXES as usize - 1, Place::default);
        let last = table();
        assert_eq!(directory.enter(&last), Ok(base(0, INDEXES - 1)));
        assert_eq!(directory.enter(&table()), Err(NoPlace::Full));
        directory.leave(&last);
        assert_eq!(directory.enter(&table()), Ok(base(0, INDEXES - 1)), "it is free again");
    }

    #[test]
    fn the_poller_sees_tables_that_come_and_go() {
        let directory = Arc::new(Directory::default());
        let mut routes = routes_of(Arc::clone(&directory));
        let (old, new) = (table(), table());
        let first = directory.enter(&old).unwrap();
        assert!(is_found(&mut routes, first, &old));
        directory.leave(&old);
        assert_eq!(directory.enter(&new), Ok(first));
        assert!(is_found(&mut routes, first, &new));
        assert!(!is_found(&mut routes, first, &old), "the copy was replaced");
        assert_eq!(Arc::strong_count(&old), 1, "nothing keeps it");
    }

    #[test]
    fn numbers_of_shared_receive_queues_lead_to_the_tables_of_the_device_from_every_completion_queue() {
        let device = Arc::new(Directory::of_device());
        let (shared, own) = (table(), table());
        let first = device.enter(&shared).unwrap();
        for _ in 0..2 {
            let directory = Arc::new(Directory::default());
            assert_ne!(directory.enter(&own), Ok(first));
            let mut routes = Routes::new(directory, Arc::clone(&device));
            assert!(is_found(&mut routes, first, &shared));
            assert!(is_found(&mut routes, base(0, 0), &own));
        }
        device.leave(&shared);
        assert_eq!(device.enter(&own), Ok(first), "nothing was reserved");
    }
}
