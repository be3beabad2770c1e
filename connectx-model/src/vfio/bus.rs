//! [`MappedBus`]: the guest's memory and interrupt vectors, as a client has configured them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::io::Errno;

use super::mapping::Mapping;
use crate::bus::{Bus, BusFault};
use crate::config::VECTORS;

/// The memory and interrupt vectors of one function, empty until a client provides them. All clones
/// access the same memory and interrupts.
#[derive(Clone, Debug, Default)]
pub struct MappedBus(Rc<GuestResources>);

/// The guest's memory and interrupt vectors.
#[derive(Debug, Default)]
struct GuestResources {
    /// The mappings, by guest-physical address. They do not overlap.
    memory: RefCell<BTreeMap<u64, Mapping>>,
    vectors: RefCell<[Option<OwnedFd>; VECTORS as usize]>,
}

impl MappedBus {
    /// Returns a bus without memory or vectors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps part of a file at the guest-physical address `address`.
    ///
    /// # Errors
    /// `EEXIST` if the range overlaps another mapping; `ENOSPC` if there are too many mappings;
    /// `EINVAL` if the range exceeds the address space; otherwise the errors of [`Mapping::new`].
    pub(super) fn map(
        &self,
        file: impl AsFd,
        offset: u64,
        address: u64,
        len: u64,
        writable: bool,
    ) -> Result<(), Errno> {
        let end = address.checked_add(len).ok_or(Errno::INVAL)?;
        let mut memory = self.0.memory.borrow_mut();
        if memory.len() >= MAPPINGS {
            return Err(Errno::NOSPC);
        }
        if memory.range(..end).next_back().is_some_and(|(start, there)| start + there.len() as u64 > address)
        {
            return Err(Errno::EXIST);
        }
        memory.insert(address, Mapping::new(file, offset, len, writable)?);
        Ok(())
    }

    /// Removes all mappings within a range. There may be none.
    ///
    /// # Errors
    /// `EINVAL` if the range cuts through a mapping or exceeds the address space; no mapping is
    /// removed then.
    pub(super) fn unmap(&self, address: u64, len: u64) -> Result<(), Errno> {
        let end = address.checked_add(len).ok_or(Errno::INVAL)?;
        let mut memory = self.0.memory.borrow_mut();
        let touched: Vec<(u64, u64)> = memory
            .range(..end)
            .rev()
            .map(|(start, there)| (*start, start + there.len() as u64))
            .take_while(|(_, there_end)| *there_end > address)
            .collect();
        if touched.iter().any(|(start, there_end)| *start < address || *there_end > end) {
            return Err(Errno::INVAL);
        }
        for (start, _) in touched {
            memory.remove(&start);
        }
        Ok(())
    }

    /// Removes all mappings.
    pub(super) fn unmap_all(&self) {
        self.0.memory.borrow_mut().clear();
    }

    /// Sets the eventfd that a vector signals, or removes it if `event` is `None`. Ignores
    /// nonexistent vectors.
    pub(super) fn set_vector(&self, vector: usize, event: Option<OwnedFd>) {
        if let Some(entry) = self.0.vectors.borrow_mut().get_mut(vector) {
            *entry = event;
        }
    }

    /// Calls `each` for every contiguous part of a range, in ascending order. The arguments are the
    /// part's mapping, its offset in the mapping and its position in the range.
    fn pieces<T>(
        &self,
        address: u64,
        len: usize,
        mut each: impl FnMut(&Mapping, usize, std::ops::Range<usize>) -> Option<T>,
    ) -> Result<(), BusFault> {
        let fault = BusFault { address, len };
        let memory = self.0.memory.borrow();
        let mut done = 0;
        while done < len {
            let at = address.checked_add(done as u64).ok_or(fault)?;
            let (start, mapping) = memory.range(..=at).next_back().ok_or(fault)?;
            let inside = usize::try_from(at - start).map_err(|_| fault)?;
            let count =
                mapping.len().checked_sub(inside).filter(|left| *left > 0).ok_or(fault)?.min(len - done);
            each(mapping, inside, done..done + count).ok_or(fault)?;
            done += count;
        }
        Ok(())
    }

    /// Checks that a whole range is writable memory, so that a failed write has no effect.
    fn ensure_writable(&self, address: u64, len: usize) -> Result<(), BusFault> {
        self.pieces(address, len, |mapping, _, _| mapping.is_writable().then_some(()))
    }

    fn word(&self, address: u64, act: impl FnMut(&Mapping, usize) -> Option<u64>) -> Result<u64, BusFault> {
        let mut act = act;
        let mut old = 0;
        self.pieces(address, 8, |mapping, at, part| {
            old = (part.len() == 8).then(|| act(mapping, at)).flatten()?;
            Some(())
        })?;
        Ok(old)
    }
}

impl Bus for MappedBus {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), BusFault> {
        self.pieces(address, into.len(), |mapping, at, part| mapping.read(at, into.get_mut(part)?))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusFault> {
        self.ensure_writable(address, from.len())?;
        self.pieces(address, from.len(), |mapping, at, part| mapping.write(at, from.get(part)?))
    }

    fn publish(&self, address: u64, from: &[u8]) -> Result<(), BusFault> {
        self.ensure_writable(address, from.len())?;
        self.pieces(address, from.len(), |mapping, at, part| mapping.publish(at, from.get(part)?))
    }

    fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64, BusFault> {
        self.word(address, |mapping, at| mapping.compare_swap(at, compare, swap))
    }

    fn fetch_add(&self, address: u64, add: u64) -> Result<u64, BusFault> {
        self.word(address, |mapping, at| mapping.fetch_add(at, add))
    }

    fn raise(&self, vector: u16) {
        if let Some(Some(event)) = self.0.vectors.borrow().get(usize::from(vector)) {
            // An eventfd is full only after 2^64 - 2 unread interrupts. If the client passed
            // another kind of file, an error is the client's mistake.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}

/// Maximum number of mappings: enough for a machine with many regions, but a bound for a hostile
/// client.
const MAPPINGS: usize = 4096;

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn bus_with(parts: &[(u64, u64, u64, bool)]) -> MappedBus {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x10000).unwrap();
        let bus = MappedBus::new();
        for (offset, address, len, writable) in parts {
            bus.map(&file, *offset, *address, *len, *writable).unwrap();
        }
        bus
    }

    #[test]
    fn a_range_over_two_neighbours_is_one_range() {
        let bus = bus_with(&[(0x4000, 0x1000, 0x1000, true), (0, 0x2000, 0x1000, true)]);
        bus.write(0x1ffd, b"abcdef").unwrap();
        let mut back = [0; 6];
        bus.read(0x1ffd, &mut back).unwrap();
        assert_eq!(&back, b"abcdef");
        // The first half is mapped from the end of the page at file offset 0x4000, the second half
        // from that page's start.
        let other = bus_with(&[(0x4000, 0, 0x1000, true)]);
        assert_eq!(other.read(0x1000, &mut back), Err(BusFault { address: 0x1000, len: 6 }));
    }

    #[test]
    fn where_some_of_a_range_is_not_there_nothing_is_written() {
        let bus = bus_with(&[(0, 0x1000, 0x1000, true), (0x1000, 0x2000, 0x1000, false)]);
        let fault = BusFault { address: 0x1ffc, len: 8 };
        assert_eq!(bus.write(0x1ffc, &[1; 8]), Err(fault));
        assert_eq!(bus.publish(0x1ffc, &[1; 8]), Err(fault));
        let mut back = [9; 8];
        bus.read(0x1ffc, &mut back).unwrap();
        assert_eq!(back, [0; 8]);
        assert!(bus.read(u64::MAX - 3, &mut back).is_err());
        assert!(bus.fetch_add(0x2000, 1).is_err());
    }

    #[test]
    fn overlapping_ranges_are_rejected_and_unmapped_ones_are_gone() {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x10000).unwrap();
        let bus = MappedBus::new();
        bus.map(&file, 0, 0x10000, 0x2000, true).unwrap();
        for (address, len) in [(0x10000, 0x1000), (0x11000, 0x1000), (0xf000, 0x2000), (0xf000, 0x8000)] {
            assert_eq!(bus.map(&file, 0, address, len, true), Err(Errno::EXIST), "{address:#x}");
        }
        bus.map(&file, 0, 0x12000, 0x1000, true).unwrap();
        assert_eq!(bus.unmap(0x10000, 0x1000), Err(Errno::INVAL));
        assert_eq!(bus.read(0x11000, &mut [0; 8]), Ok(()));
        bus.unmap(0x10000, 0x3000).unwrap();
        assert!(bus.read(0x10000, &mut [0; 8]).is_err());
        assert!(bus.read(0x12000, &mut [0; 8]).is_err());
        bus.unmap(0x10000, 0x3000).unwrap();
    }

    #[test]
    fn a_vector_is_raised_through_its_event_until_it_is_taken_away() {
        let bus = MappedBus::new();
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        bus.set_vector(3, Some(event.try_clone().unwrap()));
        bus.clone().raise(3);
        bus.raise(4);
        bus.raise(u16::MAX);
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        bus.set_vector(3, None);
        bus.raise(3);
        assert_eq!(rustix::io::read(&event, &mut count).err(), Some(Errno::AGAIN));
    }
}
