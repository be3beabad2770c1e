//! [`Mkeys`]: the memory keys of a function and their address translation.

pub(crate) mod inlined;
pub(crate) mod list;
pub(crate) mod translate;

pub(crate) use crate::state::mkey::list::{List, OCTWORD, Undo};
pub(crate) use crate::state::mkey::translate::{Mapping, Region, Targets, Translated};

use std::collections::BTreeMap;
use std::sync::Arc;

use roce::engine::Access;
use roce::engine::MemoryAttr;
use roce::engine::MwType;
use roce::engine::Pd;
use roce::engine::Refused;

use crate::layout::mkey::mkc;
use crate::pages::Pages;
use crate::state::mkey::inlined::Inlined;

/// The model's state for all memory keys, by index. The index is the upper 24 bits of a key.
#[derive(Debug, Default)]
pub(crate) struct Mkeys {
    entries: BTreeMap<u32, Mkey>,
    /// Memory that all lists use, in bytes.
    listed: usize,
    /// The memory keys that other keys may refer to.
    pub(crate) targets: Targets,
    /// The dump-fill key, created when the driver first requests it.
    pub(crate) dump_fill: Option<u32>,
    /// The model's private key for inline bytes, created when a work request first needs it, and
    /// these bytes.
    pub(crate) inlined: Option<(u32, Inlined)>,
}

/// Maximum memory for the lists of all keys in a function, in bytes. Guest memory does not bound
/// their size, because a guest may list a page repeatedly.
pub(crate) const MAX_LISTED: usize = 512 << 20;

/// The model's state for one memory key.
#[derive(Debug)]
pub(crate) struct Mkey {
    /// The context, as the driver last wrote it. The engine stores the changes that work requests
    /// make to windows.
    pub(crate) context: [u8; 64],
    pub(crate) kind: Kind,
    pub(crate) mode: AccessMode,
    /// Maximum length of the list, in octwords. An octword is 16 bytes: two pages, or one piece.
    pub(crate) capacity: u32,
    /// The list, shared with the engine's region.
    list: Arc<List>,
}

/// The kind of engine object that represents a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A memory region.
    Region,
    /// A memory window.
    Window(MwType),
}

/// The translation of a key's addresses to guest-physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMode {
    /// No translation: addresses are guest-physical.
    Physical,
    /// Through a list of pages.
    Pages,
    /// Through a list of pieces of other keys, each with its length.
    Pieces,
    /// Through a list of pieces of other keys. The page size is the length of every piece.
    Fixed,
    /// No translation: the key's start is an address in device memory, and accesses count from
    /// there.
    Memic,
}

impl AccessMode {
    /// Returns the access mode in a context; `None` if the mode is not offered.
    pub(crate) fn from_context(context: &[u8]) -> Option<Self> {
        match (mkc::ACCESS_MODE_4_2.get(context), mkc::ACCESS_MODE_1_0.get(context)) {
            (0, 0) => Some(Self::Physical),
            (0, 1) => Some(Self::Pages),
            (0, 2) => Some(Self::Pieces),
            (0, 3) => Some(Self::Fixed),
            (1, 1) => Some(Self::Memic),
            _ => None,
        }
    }
}

impl Mkey {
    /// Returns a key with this list.
    pub(crate) fn new(
        context: [u8; mkc::SIZE],
        kind: Kind,
        mode: AccessMode,
        capacity: u32,
        list: List,
    ) -> Self {
        Self { context, kind, mode, capacity, list: Arc::new(list) }
    }

    /// Returns the list of pages or pieces.
    pub(crate) fn list(&self) -> &Arc<List> {
        &self.list
    }

    /// Returns the key's current mapping; `None` if the list does not cover the key's range.
    pub(crate) fn mapping(&self) -> Option<Mapping> {
        let MemoryAttr { iova, length, .. } = attr(&self.context);
        match self.mode {
            AccessMode::Physical => Some(Mapping::Physical(iova)),
            AccessMode::Memic => Some(Mapping::Memic(mkc::START_ADDR.get(&self.context))),
            AccessMode::Pieces => Some(Mapping::Pieces(Arc::clone(&self.list))),
            AccessMode::Fixed => {
                let shift = mkc::LOG_PAGE_SIZE.get32(&self.context);
                let offset = iova & (1u64.checked_shl(shift)? - 1);
                PAGE_SIZES.contains(&shift).then(|| Mapping::Fixed {
                    list: Arc::clone(&self.list),
                    shift,
                    offset,
                })
            }
            AccessMode::Pages => {
                let shift = mkc::LOG_PAGE_SIZE.get32(&self.context);
                let offset = iova & (1u64.checked_shl(shift)? - 1);
                let len = if mkc::LENGTH64.is_set(&self.context) {
                    self.list.pages().checked_mul(1 << shift)?.saturating_sub(offset)
                } else {
                    length
                };
                let covered = Pages::needed(shift, offset, len)? <= self.list.pages();
                (covered && PAGE_SIZES.contains(&shift)).then(|| Mapping::Pages {
                    list: Arc::clone(&self.list),
                    shift,
                    offset,
                    len,
                })
            }
        }
    }

    fn weight(&self) -> usize {
        List::weight(self.mode, self.list.len())
    }
}

/// A key without memory. An access to a piece with this key causes a page fault, and the driver
/// then replaces the piece.
///
/// # References
/// Linux `drivers/infiniband/hw/mlx5/odp.c`, `populate_klm`
pub(crate) const NULL_MKEY: u32 = 0x200;

/// The valid sizes of pages and of pieces with a common length, log2.
pub(crate) const PAGE_SIZES: std::ops::RangeInclusive<u32> = 12..=48;

/// Returns the number of pages that the range in a context needs, and checks the alignment of these
/// pages. A key without a length is as long as its list. Drivers use such keys as parts of a region
/// that covers all memory.
///
/// # Errors
/// Returns a description of the violation.
pub(crate) fn check_pages(context: &[u8], list: &List) -> Result<u64, String> {
    let shift = mkc::LOG_PAGE_SIZE.get32(context);
    if !PAGE_SIZES.contains(&shift) {
        return Err(format!("pages of 2^{shift} bytes"));
    }
    let MemoryAttr { iova, length, .. } = attr(context);
    let needed = if mkc::LENGTH64.is_set(context) {
        Some(list.pages())
    } else {
        Pages::needed(shift, iova & ((1 << shift) - 1), length)
    };
    let needed = needed.ok_or_else(|| format!("{length} bytes"))?;
    match list.misaligned(shift, usize::try_from(needed).unwrap_or(usize::MAX)) {
        Some(page) => Err(format!("page {page:#x} is not aligned to 2^{shift}")),
        None => Ok(needed),
    }
}

impl Mkeys {
    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the key with this index.
    pub(crate) fn get(&self, index: u32) -> Option<&Mkey> {
        self.entries.get(&index)
    }

    /// Returns the key with this index.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Mkey> {
        self.entries.get_mut(&index)
    }

    /// Returns the keys that other keys may refer to.
    pub(crate) fn targets(&self) -> Targets {
        self.targets.clone()
    }

    /// Returns whether the last access failed because of an absent page, and clears this flag.
    pub(crate) fn take_absent(&self) -> bool {
        self.targets.take_absent()
    }

    /// Returns whether a key gives access to part of a range in device memory.
    pub(crate) fn uses_memic(&self, start: u64, len: u64) -> bool {
        let keys = self.entries.values().filter(|key| key.mode == AccessMode::Memic);
        keys.map(|key| mkc::START_ADDR.get(&key.context)).any(|at| (start..start + len).contains(&at))
    }

    /// Adds a key.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if the lists would exceed their limit.
    pub(crate) fn insert(&mut self, index: u32, key: Mkey) -> Result<(), Refused> {
        self.remove(index);
        let listed = self.listed + key.weight();
        if listed > MAX_LISTED {
            return Err(Refused::NoRoom);
        }
        self.listed = listed;
        self.entries.insert(index, key);
        Ok(())
    }

    /// Removes a key. Keys with pieces of this key lose access to its memory.
    pub(crate) fn remove(&mut self, index: u32) {
        self.targets.remove(index);
        if let Some(key) = self.entries.remove(&index) {
            self.listed -= key.weight();
        }
    }

    /// Writes entries to a key's list, starting at byte `offset`. Returns the previous contents.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the list would exceed its capacity or have a gap;
    /// [`Refused::NoRoom`] if the lists would exceed their limit.
    pub(crate) fn fill(&mut self, index: u32, offset: usize, entries: &[u8]) -> Result<Undo, Refused> {
        let key = self.entries.get_mut(&index).ok_or(Refused::NoSuchObject)?;
        let end = offset.checked_add(entries.len()).ok_or(FULL)?;
        if end as u64 > u64::from(key.capacity) * OCTWORD as u64 {
            return Err(FULL);
        }
        let rest = self.listed - key.weight();
        if rest + List::weight(key.mode, end.max(key.list.len())) > MAX_LISTED {
            return Err(Refused::NoRoom);
        }
        let undo = Arc::make_mut(&mut key.list).fill(offset, entries).ok_or(FULL)?;
        self.listed = rest + key.weight();
        Ok(undo)
    }

    /// Restores a key's list to its state before [`fill`](Self::fill).
    pub(crate) fn undo(&mut self, index: u32, undo: &Undo) {
        let Some(key) = self.entries.get_mut(&index) else { return };
        self.listed -= key.weight();
        Arc::make_mut(&mut key.list).undo(undo);
        self.listed += key.weight();
    }
}

pub(crate) const FULL: Refused = Refused::Invalid("the list has no room for the entries");

/// Returns the access rights in a context. Binding is always allowed, because the device has no
/// separate right for binding.
pub(crate) fn access(context: &[u8]) -> Access {
    let rights = [
        (mkc::LW, Access::LOCAL_WRITE),
        (mkc::RW, Access::REMOTE_WRITE),
        (mkc::RR, Access::REMOTE_READ),
        (mkc::A, Access::REMOTE_ATOMIC),
    ];
    rights.iter().filter(|(bit, _)| bit.is_set(context)).fold(Access::MW_BIND, |all, (_, right)| all | *right)
}

/// Returns the protection domain, the range and the access rights in a context.
pub(crate) fn attr(context: &[u8]) -> MemoryAttr {
    let all = mkc::LENGTH64.is_set(context);
    let from_zero = AccessMode::from_context(context) == Some(AccessMode::Memic);
    MemoryAttr {
        pd: Pd(mkc::PD.get32(context)),
        iova: if from_zero { 0 } else { mkc::START_ADDR.get(context) },
        length: if all { u64::MAX - mkc::START_ADDR.get(context) } else { mkc::LEN.get(context) },
        access: access(context),
    }
}

/// Returns whether local and remote invalidations are allowed for the key.
pub(crate) fn invalidable(context: &[u8]) -> bool {
    mkc::EN_RINVAL.is_set(context) || (mkc::FREE.is_set(context) && mkc::UMR_EN.is_set(context))
}

#[cfg(test)]
mod tests;
