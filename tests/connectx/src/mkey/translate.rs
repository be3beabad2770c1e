//! [`Mapping`] locates the bytes of a memory key. [`Translated`] gives the transport engine access
//! to them.
//!
//! The engine checks the key that a work request or a peer names. This file checks the keys to
//! which that key refers, at each access: a key that was destroyed, changed or invalidated gives no
//! access. [`Targets`] holds these keys.
//!
//! Invariant: targets are valid keys without pieces, so that no chain of keys exists.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roce::engine::{Fault, Memory, Pd};

use super::list::List;
use crate::bus::Bus;

/// The engine's region for a memory key.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Index of the key: its upper 24 bits.
    pub(crate) index: u32,
    pub(crate) pd: Pd,
    pub(crate) mapping: Mapping,
}

/// Location of a memory key's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Mapping {
    /// At guest-physical addresses, starting with this one.
    Physical(u64),
    /// In pages of this size, at this offset in the first.
    Pages { list: Arc<List>, shift: u32, offset: u64, len: u64 },
    /// In consecutive pieces of other keys.
    Pieces(Arc<List>),
    /// Nowhere: the key is free.
    Nothing,
}

impl Mapping {
    /// Returns the guest-physical address of a byte and the number of contiguous bytes there.
    /// [`Translated`] does so for pieces.
    pub(crate) fn locate(&self, at: u64) -> Option<(u64, u64)> {
        match self {
            Self::Physical(base) => {
                let address = base.checked_add(at)?;
                Some((address, u64::MAX - address))
            }
            Self::Pages { list, shift, offset, len } => {
                let left = len.checked_sub(at).filter(|left| *left > 0)?;
                let position = offset.checked_add(at)?;
                let page = list.page(usize::try_from(position >> shift).ok()?)?;
                let size = 1 << shift;
                let inside = position & (size - 1);
                Some((page.checked_add(inside)?, (size - inside).min(left)))
            }
            Self::Pieces(_) | Self::Nothing => None,
        }
    }
}

/// A key to which other keys may refer, in its current state.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) key: u32,
    pub(super) pd: Pd,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) iova: u64,
    pub(super) length: u64,
    pub(super) mapping: Mapping,
}

/// Keys to which other keys may refer, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets(Arc<Mutex<BTreeMap<u32, Target>>>);

impl Targets {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u32, Target>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, target: Target) {
        self.entries().insert(target.key >> 8, target);
    }

    pub(super) fn remove(&self, index: u32) {
        self.entries().remove(&index);
    }

    /// Returns the mapping and position of `len` bytes of a key, if the key has this domain and
    /// allows the access.
    fn find(&self, pd: Pd, key: u32, addr: u64, len: u64, need: Need) -> Option<(Mapping, u64)> {
        let entries = self.entries();
        let target = entries.get(&(key >> 8)).filter(|target| target.key == key && target.pd == pd)?;
        let allowed = (target.readable || !need.read) && (target.writable || !need.write);
        let offset = addr.checked_sub(target.iova)?;
        let holds = target.length.checked_sub(offset)? >= len;
        (allowed && holds).then(|| (target.mapping.clone(), offset))
    }
}

/// Access rights that an access needs.
#[derive(Clone, Copy, Debug)]
struct Need {
    read: bool,
    write: bool,
}

const READ: Need = Need { read: true, write: false };
const WRITE: Need = Need { read: false, write: true };
const ATOMIC: Need = Need { read: true, write: true };

/// Guest memory for the transport engine, by memory key.
#[derive(Clone, Debug)]
pub(crate) struct Translated<B: Bus> {
    pub(crate) bus: B,
    pub(crate) targets: Targets,
}

impl<B: Bus> Translated<B> {
    /// Returns the guest-physical address of a byte and the number of contiguous bytes there.
    fn locate(&self, region: &Region, at: u64, need: Need) -> Option<(u64, u64)> {
        let Mapping::Pieces(list) = &region.mapping else { return region.mapping.locate(at) };
        let piece = list.piece(at)?;
        let (mapping, offset) = self.targets.find(region.pd, piece.key, piece.addr, piece.len, need)?;
        let (address, count) = mapping.locate(offset.checked_add(piece.inside)?)?;
        Some((address, count.min(piece.len - piece.inside)))
    }

    /// Calls `each` with every contiguous part of `len` bytes from `at`: its guest-physical address
    /// and its range.
    fn runs(
        &self,
        region: &Region,
        at: u64,
        len: usize,
        need: Need,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let from = at.checked_add(done as u64).ok_or(Fault)?;
            let found = self.locate(region, from, need);
            let (address, count) = found.filter(|(_, count)| *count > 0).ok_or(Fault)?;
            let count = usize::try_from(count).unwrap_or(usize::MAX).min(len - done);
            each(address, done..done + count)?;
            done += count;
        }
        Ok(())
    }

    /// Returns the guest-physical address of 8 contiguous bytes.
    fn word(&self, region: &Region, at: u64) -> Result<u64, Fault> {
        match self.locate(region, at, ATOMIC) {
            Some((address, 8..)) => Ok(address),
            _ => Err(Fault),
        }
    }
}

impl<B: Bus> Memory for Translated<B> {
    type Region = Region;

    fn read(&mut self, region: &Region, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        self.runs(region, offset, dst.len(), READ, |address, part| {
            self.bus.read(address, &mut dst[part]).map_err(|_| Fault)
        })
    }

    fn write(&mut self, region: &Region, offset: u64, src: &[u8]) -> Result<(), Fault> {
        self.runs(region, offset, src.len(), WRITE, |address, part| {
            self.bus.write(address, &src[part]).map_err(|_| Fault)
        })
    }

    fn compare_swap(&mut self, region: &Region, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.bus.compare_swap(self.word(region, offset)?, compare, swap).map_err(|_| Fault)
    }

    fn fetch_add(&mut self, region: &Region, offset: u64, add: u64) -> Result<u64, Fault> {
        self.bus.fetch_add(self.word(region, offset)?, add).map_err(|_| Fault)
    }

    fn atomic_write(&mut self, region: &Region, offset: u64, data: [u8; 8]) -> Result<(), Fault> {
        // The bus stores aligned words whole.
        self.bus.write(self.word(region, offset)?, &data).map_err(|_| Fault)
    }

    fn invalidated(&mut self, region: &Region) {
        self.targets.remove(region.index);
    }
}
