//! [`Mkeys`] and [`Translated`]: memory keys and what they mean to the transport engine.
//!
//! ```text
//! CREATE_MKEY ─┬─ PA:  physical addresses ───────────────┐
//!              ├─ MTT: a list of pages ──────────────────┼─► a region of the engine
//!              ├─ KLM: a list of pieces of other keys ───┘
//!              └─ KLM, free, of at most 4 pieces ─────────► a window of the engine, which a bind fills
//! free ──UMR──► valid ──UMR, invalidation──► free
//! ```
//! Keys, rights, domains and ranges are the engine's to check; here is where the bytes are. A region knows that by a [`Mapping`], which
//! is made again whenever its list changes ([`Function::remap`]).
//!
//! Invariant: a list grows only by entries that the driver has handed over: none is allocated for what it only announces.

use std::collections::BTreeMap;
use std::sync::Arc;

use roce::engine::{Access, Fault, Memory, MemoryAttr, MrChange, MwType, Pd, Refused};

use crate::bus::Bus;
use crate::function::Function;
use crate::function::pages::Pages;
use crate::layout::mkey::mkc;
use crate::layout::{dword, qword};

/// What the model keeps of memory keys beside what the engine does, by index: the key's upper 24 bits.
#[derive(Debug, Default)]
pub(crate) struct Mkeys {
    entries: BTreeMap<u32, Mkey>,
    /// Bytes of all lists, as far as [`Function::remap`] has seen them.
    listed: usize,
}

/// How many bytes all lists of a function may have: a guest's memory can be named again and again.
const MAX_LISTED: usize = 512 << 20;

/// A memory key.
#[derive(Debug)]
pub(crate) struct Mkey {
    /// Its context, as the driver last gave it. What work requests change of windows is the engine's.
    pub(crate) context: [u8; 64],
    pub(crate) kind: Kind,
    pub(crate) mode: AccessMode,
    /// How many octwords (16 bytes: two pages, or one piece) its list may have.
    pub(crate) capacity: u32,
    /// Its list: pages (8 bytes each) or pieces (16 bytes each), as the driver gave them.
    list: Vec<u8>,
    /// How many bytes of it were counted.
    counted: usize,
    /// What the list means, as long as it means something.
    mapping: Mapping,
}

/// What a key is to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A memory region.
    Region,
    /// A memory window.
    Window(MwType),
}

/// How addresses become guest-physical ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMode {
    /// They are.
    Physical,
    /// Through a list of pages.
    Pages,
    /// Through a list of pieces of other keys.
    Pieces,
}

impl AccessMode {
    /// By its number; `None`: one that is not offered.
    pub(crate) fn of(context: &[u8]) -> Option<Self> {
        match (mkc::ACCESS_MODE_4_2.get(context), mkc::ACCESS_MODE_1_0.get(context)) {
            (0, 0) => Some(Self::Physical),
            (0, 1) => Some(Self::Pages),
            (0, 2) => Some(Self::Pieces),
            _ => None,
        }
    }
}

/// Bytes of an octword of a list.
pub(crate) const OCTWORD: usize = 16;

impl Mkey {
    /// A key whose list is empty.
    pub(crate) fn new(context: [u8; 64], kind: Kind, mode: AccessMode, capacity: u32) -> Self {
        Self { context, kind, mode, capacity, list: Vec::new(), counted: 0, mapping: Mapping::Nothing }
    }

    /// Puts entries into its list, from this byte on. `false`: it may not have so many, or there would be a hole.
    pub(crate) fn fill(&mut self, offset: usize, entries: &[u8]) -> bool {
        let Some(end) = offset.checked_add(entries.len()) else { return false };
        if offset > self.list.len() || end as u64 > u64::from(self.capacity) * OCTWORD as u64 {
            return false;
        }
        if end > self.list.len() {
            self.list.resize(end, 0);
        }
        self.list[offset..end].copy_from_slice(entries);
        true
    }

    /// The first bytes of its list, and zeros behind it.
    pub(crate) fn peek(&self, into: &mut [u8]) {
        let len = into.len().min(self.list.len());
        into[..len].copy_from_slice(&self.list[..len]);
    }

    /// Pages of an MTT list that its range takes. `None`: nonsense.
    fn pages(&self) -> Option<Pages> {
        let shift = mkc::LOG_PAGE_SIZE.get32(&self.context);
        let MemoryAttr { iova, length, .. } = attr(&self.context);
        let offset = iova & (1u64.checked_shl(shift)? - 1);
        let needed = usize::try_from(Pages::needed(shift, offset, length)?).ok()?;
        // The low 3 bits of an entry are rights.
        let list: Vec<u64> =
            self.list.chunks_exact(8).take(needed).map(|entry| qword(entry, 0) & !7).collect();
        Pages::new(list, shift, offset, length)
    }
}

impl Mkeys {
    /// A key, by its index.
    pub(crate) fn get(&self, index: u32) -> Option<&Mkey> {
        self.entries.get(&index)
    }

    /// A key, by its index.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Mkey> {
        self.entries.get_mut(&index)
    }

    /// One more.
    pub(crate) fn insert(&mut self, index: u32, key: Mkey) {
        self.entries.insert(index, key);
    }

    /// One less.
    pub(crate) fn remove(&mut self, index: u32) -> Option<Mkey> {
        let key = self.entries.remove(&index)?;
        self.listed -= key.counted;
        Some(key)
    }

    /// Counts what a list has grown by. `false`: too much, and it is empty now.
    fn count(&mut self, index: u32) -> bool {
        let Some(key) = self.entries.get_mut(&index) else { return false };
        let listed = self.listed - key.counted + key.list.len();
        if listed > MAX_LISTED {
            self.listed -= std::mem::take(&mut key.counted);
            key.list = Vec::new();
            return false;
        }
        key.counted = key.list.len();
        self.listed = listed;
        true
    }

    /// What the list of a key means, now. `None`: it means nothing, or there is no such key.
    fn resolve(&self, index: u32) -> Option<Mapping> {
        let key = self.get(index)?;
        match key.mode {
            AccessMode::Physical => Some(Mapping::Physical(attr(&key.context).iova)),
            AccessMode::Pages => Some(Mapping::Pages(Arc::new(key.pages()?))),
            AccessMode::Pieces => {
                let mut start = 0u64;
                let mut pieces = Vec::with_capacity(key.list.len() / OCTWORD);
                for entry in key.list.chunks_exact(OCTWORD) {
                    let (len, of, addr) = (u64::from(dword(entry, 0)), dword(entry, 4), qword(entry, 8));
                    if len == 0 {
                        continue;
                    }
                    let target = self.get(of >> 8)?;
                    // Pieces of pieces are not offered (max_indirection): a chain of them would have no end.
                    let within = match &target.mapping {
                        Mapping::Physical(base) => Mapping::Physical(*base),
                        Mapping::Pages(pages) => Mapping::Pages(Arc::clone(pages)),
                        Mapping::Pieces(_) | Mapping::Nothing => return None,
                    };
                    let MemoryAttr { iova, length, .. } = attr(&target.context);
                    let offset = addr.checked_sub(iova)?;
                    if length.checked_sub(offset)? < len {
                        return None;
                    }
                    pieces.push(Piece { start, len, within, offset });
                    start = start.checked_add(len)?;
                }
                Some(Mapping::Pieces(pieces.into()))
            }
        }
    }
}

/// Rights of a context. A window may be bound to whatever its owner may bind it to: the device has no bit for it.
pub(crate) fn access(context: &[u8]) -> Access {
    let rights = [
        (mkc::LW, Access::LOCAL_WRITE),
        (mkc::RW, Access::REMOTE_WRITE),
        (mkc::RR, Access::REMOTE_READ),
        (mkc::A, Access::REMOTE_ATOMIC),
    ];
    rights.iter().filter(|(bit, _)| bit.is_set(context)).fold(Access::MW_BIND, |all, (_, right)| all | *right)
}

/// Domain, range and rights of a context.
pub(crate) fn attr(context: &[u8]) -> MemoryAttr {
    let all = mkc::LENGTH64.is_set(context);
    MemoryAttr {
        pd: Pd(mkc::PD.get32(context)),
        iova: mkc::START_ADDR.get(context),
        length: if all { u64::MAX - mkc::START_ADDR.get(context) } else { mkc::LEN.get(context) },
        access: access(context),
    }
}

impl<B: Bus> Function<B> {
    /// Makes the engine's region say what context and list of the key say: domain, range, rights, variant, and whether it is free.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] for a key that is no region, or its protection domain; [`Refused::Busy`] while a window is bound to
    /// it; [`Refused::Invalid`] for a list that does not cover the range; [`Refused::NoRoom`] for more than all lists may have. The
    /// region is as it was then.
    pub(crate) fn remap(&mut self, index: u32) -> Result<u32, Refused> {
        let key =
            self.core.mkeys.get(index).filter(|key| key.kind == Kind::Region).ok_or(Refused::NoSuchObject)?;
        let context = key.context;
        if !self.core.mkeys.count(index) {
            return Err(Refused::NoRoom);
        }
        let free = mkc::FREE.is_set(&context);
        let attr = attr(&context);
        let variant = mkc::MKEY_7_0.get(&context) as u8;
        let invalidate = invalidable(&context);
        let mapping = match self.core.mkeys.resolve(index) {
            Some(mapping) => mapping,
            None if free => Mapping::Nothing,
            None => return Err(Refused::Invalid("the list does not cover the range")),
        };
        // What is the same is not named: an engine that has windows on a region refuses to move it.
        let before = self.engine.mr_by_index(index).map(|(_, attr)| attr).ok_or(Refused::NoSuchObject)?;
        let same = (before.iova, before.length) == (attr.iova, attr.length);
        let change = MrChange {
            new_variant: Some(variant),
            pd: (before.pd != attr.pd).then_some(attr.pd),
            access: Some(attr.access),
            iova_and_length: (!same).then_some((attr.iova, attr.length)),
            region: Some(mapping.clone()),
            valid: Some(!free),
            invalidate: Some(invalidate),
        };
        let changed = self.engine.update_mr(index << 8, change)?;
        if let Some(key) = self.core.mkeys.get_mut(index) {
            key.mapping = mapping;
        }
        Ok(changed)
    }

    /// The present key of a window, whose low 8 bits move with each bind.
    pub(crate) fn destroy_window(&mut self, index: u32) -> Result<(), Refused> {
        // The engine knows windows by their whole key, of which the driver's work requests choose 8 bits.
        (0..=u32::from(u8::MAX))
            .map(|variant| self.engine.dealloc_mw(index << 8 | variant))
            .find(Result::is_ok)
            .unwrap_or(Err(Refused::NoSuchObject))
    }
}

/// May work requests, here and from afar, make it free?
pub(crate) fn invalidable(context: &[u8]) -> bool {
    mkc::EN_RINVAL.is_set(context) || (mkc::FREE.is_set(context) && mkc::UMR_EN.is_set(context))
}

/// Where the bytes of a memory key are.
#[derive(Clone, Debug)]
pub(crate) enum Mapping {
    /// At guest-physical addresses, from this one on.
    Physical(u64),
    /// In pages.
    Pages(Arc<Pages>),
    /// In pieces of other keys, which follow each other.
    Pieces(Arc<[Piece]>),
    /// Nowhere: the key is free.
    Nothing,
}

/// A piece of another key.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Where it begins in the key that it is a piece for.
    start: u64,
    len: u64,
    within: Mapping,
    /// Where it begins in the key that it is a piece of.
    offset: u64,
}

impl Mapping {
    /// The guest-physical address of a byte, and how many bytes follow it there.
    pub(crate) fn locate(&self, at: u64) -> Option<(u64, u64)> {
        match self {
            Self::Physical(base) => {
                let address = base.checked_add(at)?;
                Some((address, u64::MAX - address))
            }
            Self::Pages(pages) => pages.locate(at),
            Self::Pieces(pieces) => {
                let behind = pieces.partition_point(|piece| piece.start <= at);
                let piece = pieces.get(behind.checked_sub(1)?)?;
                let inside = at - piece.start;
                let left = piece.len.checked_sub(inside).filter(|left| *left > 0)?;
                // No recursion without end: pieces are never of pieces.
                let (address, count) = piece.within.locate(piece.offset.checked_add(inside)?)?;
                Some((address, count.min(left)))
            }
            Self::Nothing => None,
        }
    }

    /// Hands over each run of bytes that lie together: guest-physical address, and where they are of `len` bytes from `at` on.
    fn runs(
        &self,
        at: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let from = at.checked_add(done as u64).ok_or(Fault)?;
            let (address, count) = self.locate(from).filter(|(_, count)| *count > 0).ok_or(Fault)?;
            let count = usize::try_from(count).unwrap_or(usize::MAX).min(len - done);
            each(address, done..done + count)?;
            done += count;
        }
        Ok(())
    }

    /// Where 8 bytes are that lie together.
    fn word(&self, at: u64) -> Result<u64, Fault> {
        match self.locate(at) {
            Some((address, 8..)) => Ok(address),
            _ => Err(Fault),
        }
    }
}

/// Guest memory as the transport engine reaches it: by memory key.
#[derive(Clone, Debug)]
pub(crate) struct Translated<B: Bus> {
    pub(crate) bus: B,
}

impl<B: Bus> Memory for Translated<B> {
    type Region = Mapping;

    fn read(&mut self, region: &Mapping, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        region.runs(offset, dst.len(), |address, part| {
            self.bus.read(address, &mut dst[part]).map_err(|_| Fault)
        })
    }

    fn write(&mut self, region: &Mapping, offset: u64, src: &[u8]) -> Result<(), Fault> {
        region.runs(offset, src.len(), |address, part| self.bus.write(address, &src[part]).map_err(|_| Fault))
    }

    fn compare_swap(&mut self, region: &Mapping, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.bus.compare_swap(region.word(offset)?, compare, swap).map_err(|_| Fault)
    }

    fn fetch_add(&mut self, region: &Mapping, offset: u64, add: u64) -> Result<u64, Fault> {
        self.bus.fetch_add(region.word(offset)?, add).map_err(|_| Fault)
    }
}

#[cfg(test)]
mod tests;
