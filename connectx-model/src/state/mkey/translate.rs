//! [`Mapping`] locates the bytes of a memory key. [`Translated`] gives the transport engine access
//! to these bytes.
//!
//! The engine checks the key that a work request or a peer names. If that key consists of pieces of
//! other keys, this module checks these other keys at each access: a destroyed, changed or
//! invalidated key gives no access. [`Targets`] stores the keys that pieces may refer to, and
//! whether the last access failed because of an absent page.
//!
//! Invariant: targets are valid keys without pieces, so keys cannot form chains.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roce::engine::{Fault, Memory, Pd};

use crate::bus::Bus;
use crate::memic::Memic;
use crate::state::mkey::NULL_MKEY;
use crate::state::mkey::inlined::Inlined;
use crate::state::mkey::list::List;

/// The engine's memory region for a key.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Index of the key: its upper 24 bits.
    pub(crate) index: u32,
    pub(crate) pd: Pd,
    pub(crate) mapping: Mapping,
}

/// The location of a memory key's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Mapping {
    /// At consecutive guest-physical addresses, starting at this address.
    Physical(u64),
    /// At consecutive addresses in device memory, starting at this address.
    Memic(u64),
    /// In pages of 2^`shift` bytes, starting at `offset` in the first page.
    Pages { list: Arc<List>, shift: u32, offset: u64, len: u64 },
    /// In consecutive pieces of other keys.
    Pieces(Arc<List>),
    /// In consecutive pieces of other keys, each 2^`shift` bytes long, starting at `offset` in the
    /// first piece.
    Fixed { list: Arc<List>, shift: u32, offset: u64 },
    /// In the inline bytes of work requests.
    Inlined(Inlined),
    /// Nowhere: reads return zeros, and writes are discarded.
    Null,
    /// Nowhere: the key is free, or its list is being changed.
    Nothing,
}

/// The address of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In guest memory.
    Guest(u64),
    /// In device memory.
    Device(u64),
}

/// The reason why a byte cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The key does not cover the byte or does not allow the access.
    Outside,
    /// The byte's page is not present.
    Absent,
}

impl Mapping {
    /// Returns the address of the byte at offset `at` and the number of contiguous bytes from
    /// there. Does not locate bytes in pieces; [`Translated`] does that.
    pub(crate) fn locate(&self, at: u64, need: Need) -> Result<(Place, u64), Miss> {
        match self {
            Self::Physical(base) => {
                let address = base.checked_add(at).ok_or(Miss::Outside)?;
                Ok((Place::Guest(address), u64::MAX - address))
            }
            Self::Memic(base) => {
                let address = base.checked_add(at).ok_or(Miss::Outside)?;
                Ok((Place::Device(address), u64::MAX - address))
            }
            Self::Pages { list, shift, offset, len } => {
                let left = len.checked_sub(at).filter(|left| *left > 0).ok_or(Miss::Outside)?;
                let position = offset.checked_add(at).ok_or(Miss::Outside)?;
                let number = usize::try_from(position >> shift).ok();
                let page = number.and_then(|number| list.page(number)).ok_or(Miss::Outside)?;
                if (need.read && !page.readable) || (need.write && !page.writable) {
                    return Err(Miss::Absent);
                }
                let size = 1 << shift;
                let inside = position & (size - 1);
                let address = page.address.checked_add(inside).ok_or(Miss::Outside)?;
                Ok((Place::Guest(address), (size - inside).min(left)))
            }
            Self::Pieces(_) | Self::Fixed { .. } | Self::Inlined(_) | Self::Null | Self::Nothing => {
                Err(Miss::Outside)
            }
        }
    }
}

/// The current state of a key that other keys may refer to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) key: u32,
    pub(crate) pd: Pd,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) mapping: Mapping,
}

/// The keys that pieces may refer to, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    entries: Arc<Mutex<BTreeMap<u32, Target>>>,
    /// Whether the last access failed because of an absent page.
    absent: Arc<AtomicBool>,
}

impl Targets {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u32, Target>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, target: Target) {
        self.entries().insert(target.key >> 8, target);
    }

    pub(crate) fn remove(&self, index: u32) {
        self.entries().remove(&index);
    }

    pub(super) fn take_absent(&self) -> bool {
        self.absent.swap(false, Ordering::Relaxed)
    }

    /// Looks up `len` bytes at `addr` under a key. The key must be in protection domain `pd` and
    /// allow the access. Returns the key's mapping, the offset of the bytes in it, and the number
    /// of bytes from there to the end of the key.
    fn find(&self, pd: Pd, key: u32, addr: u64, len: u64, need: Need) -> Result<(Mapping, u64, u64), Miss> {
        if key == NULL_MKEY {
            return Err(Miss::Absent);
        }
        let entries = self.entries();
        let target = entries.get(&(key >> 8)).filter(|target| target.key == key && target.pd == pd);
        let target = target.ok_or(Miss::Outside)?;
        let allowed = (target.readable || !need.read) && (target.writable || !need.write);
        let offset = addr.checked_sub(target.iova).ok_or(Miss::Outside)?;
        let left = target.length.checked_sub(offset).ok_or(Miss::Outside)?;
        if allowed && left >= len { Ok((target.mapping.clone(), offset, left)) } else { Err(Miss::Outside) }
    }
}

/// The rights that an access needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    read: bool,
    write: bool,
}

pub(super) const READ: Need = Need { read: true, write: false };
pub(super) const WRITE: Need = Need { read: false, write: true };
const ATOMIC: Need = Need { read: true, write: true };

/// The memory that the transport engine accesses through memory keys: guest memory and device
/// memory.
#[derive(Clone, Debug)]
pub(crate) struct Translated<B: Bus> {
    pub(crate) bus: B,
    pub(crate) memic: Memic,
    pub(crate) targets: Targets,
}

impl<B: Bus> Translated<B> {
    /// Returns the address of the byte at offset `at` in a region, and the number of contiguous
    /// bytes from there.
    fn locate(&self, region: &Region, at: u64, need: Need) -> Result<(Place, u64), Miss> {
        match &region.mapping {
            Mapping::Pieces(list) => {
                let piece = list.piece(at).ok_or(Miss::Outside)?;
                let (mapping, offset, _) =
                    self.targets.find(region.pd, piece.key, piece.addr, piece.len, need)?;
                let inside = offset.checked_add(piece.inside).ok_or(Miss::Outside)?;
                let (address, count) = mapping.locate(inside, need)?;
                Ok((address, count.min(piece.len - piece.inside)))
            }
            Mapping::Fixed { list, shift, offset } => {
                let position = offset.checked_add(at).ok_or(Miss::Outside)?;
                let number = usize::try_from(position >> shift).ok();
                let (key, addr) = number.and_then(|number| list.fixed(number)).ok_or(Miss::Outside)?;
                let size = 1 << shift;
                let inside = position & (size - 1);
                let addr = addr.checked_add(inside).ok_or(Miss::Outside)?;
                let (mapping, offset, left) = self.targets.find(region.pd, key, addr, 1, need)?;
                let (address, count) = mapping.locate(offset, need)?;
                Ok((address, count.min(left).min(size - inside)))
            }
            mapping => mapping.locate(at, need),
        }
    }

    /// Same as [`locate`](Self::locate), but also records whether a page was absent.
    fn find(&self, region: &Region, at: u64, need: Need) -> Result<(Place, u64), Fault> {
        let found = self.locate(region, at, need);
        self.targets.absent.store(found == Err(Miss::Absent), Ordering::Relaxed);
        found.map_err(|_| Fault)
    }

    /// Calls `each` for every contiguous part of the `len` bytes at offset `at`. The arguments are
    /// the part's address and its range within these bytes.
    fn runs(
        &self,
        region: &Region,
        at: u64,
        len: usize,
        need: Need,
        mut each: impl FnMut(Place, std::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let from = at.checked_add(done as u64).ok_or(Fault)?;
            let (place, count) = self.find(region, from, need)?;
            let count = usize::try_from(count).unwrap_or(usize::MAX).min(len - done);
            if count == 0 {
                return Err(Fault);
            }
            each(place, done..done + count)?;
            done += count;
        }
        Ok(())
    }

    /// Returns the address of the 8 bytes at offset `at`, which must be contiguous.
    fn word(&self, region: &Region, at: u64) -> Result<Place, Fault> {
        match self.find(region, at, ATOMIC)? {
            (place, 8..) => Ok(place),
            _ => Err(Fault),
        }
    }
}

impl<B: Bus> Memory for Translated<B> {
    type Region = Region;

    fn read(&mut self, region: &Region, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        match &region.mapping {
            Mapping::Null => {
                dst.fill(0);
                return Ok(());
            }
            Mapping::Inlined(inlined) => return inlined.read(offset, dst).ok_or(Fault),
            _ => {}
        }
        self.runs(region, offset, dst.len(), READ, |place, part| match place {
            Place::Guest(address) => self.bus.read(address, &mut dst[part]).map_err(|_| Fault),
            Place::Device(address) => self.memic.read(address, &mut dst[part]).ok_or(Fault),
        })
    }

    fn write(&mut self, region: &Region, offset: u64, src: &[u8]) -> Result<(), Fault> {
        if matches!(region.mapping, Mapping::Null) {
            return Ok(());
        }
        self.runs(region, offset, src.len(), WRITE, |place, part| match place {
            Place::Guest(address) => self.bus.write(address, &src[part]).map_err(|_| Fault),
            Place::Device(address) => self.memic.write(address, &src[part]).ok_or(Fault),
        })
    }

    fn compare_swap(&mut self, region: &Region, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        match self.word(region, offset)? {
            Place::Guest(address) => self.bus.compare_swap(address, compare, swap).map_err(|_| Fault),
            Place::Device(address) => {
                self.memic.word(address, |old| if old == compare { swap } else { old }).ok_or(Fault)
            }
        }
    }

    fn fetch_add(&mut self, region: &Region, offset: u64, add: u64) -> Result<u64, Fault> {
        match self.word(region, offset)? {
            Place::Guest(address) => self.bus.fetch_add(address, add).map_err(|_| Fault),
            Place::Device(address) => self.memic.word(address, |old| old.wrapping_add(add)).ok_or(Fault),
        }
    }

    fn atomic_write(&mut self, region: &Region, offset: u64, data: [u8; 8]) -> Result<(), Fault> {
        match self.word(region, offset)? {
            // The bus stores an aligned 8-byte word atomically.
            Place::Guest(address) => self.bus.write(address, &data).map_err(|_| Fault),
            Place::Device(address) => self.memic.write(address, &data).ok_or(Fault),
        }
    }

    fn present(&mut self, region: &Region, offset: u64, length: u64) -> Result<(), Fault> {
        if matches!(region.mapping, Mapping::Null) {
            return Ok(());
        }
        let length = usize::try_from(length).map_err(|_| Fault)?;
        self.runs(region, offset, length, READ, |_, _| Ok(()))
    }

    fn invalidated(&mut self, region: &Region) {
        self.targets.remove(region.index);
    }
}
