//! [`List`]: the pages or pieces of a memory key, as written by the driver.
//!
//! In a page's entry, the low 2 bits permit reads and writes. If an entry lacks the bit that an
//! access needs, the page is not present, so the access causes a page fault.
//!
//! Invariant: the time to change entries depends on how many are changed, not on the list's length,
//! because the index for pages has one value per block. A list of pieces is short, so its index has
//! the start of each piece.

use crate::layout::{dword, qword};
use crate::state::mkey::AccessMode;

/// A list of pages (8 bytes each) or of pieces (16 bytes each). Depending on the mode, pieces have
/// individual lengths or a common length.
#[derive(Clone, Debug)]
pub(crate) struct List {
    mode: AccessMode,
    bytes: Vec<u8>,
    /// For pages, the bitwise OR of the addresses in each block. For pieces with individual
    /// lengths, the start of each piece.
    index: Vec<u64>,
}

/// The previous contents of the changed part of a list.
#[derive(Debug)]
pub(crate) struct Undo {
    offset: usize,
    before: Vec<u8>,
    len: usize,
}

/// A piece of another memory key, and the offset `inside` of a byte in that piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) key: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) inside: u64,
}

/// A page and its access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) address: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// Size of an octword in a list, in bytes.
pub(crate) const OCTWORD: usize = 16;
const PAGE: usize = 8;
/// The access bits in the list entry of a page.
///
/// # References
/// Linux `include/linux/mlx5/device.h` (`MLX5_PERM_LOCAL_READ`),
/// `drivers/infiniband/hw/mlx5/mlx5_ib.h` (`MLX5_IB_MTT_READ`)
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
/// Number of list bytes in a block of pages, the unit of the index.
const BLOCK: usize = 256 * PAGE;

impl List {
    /// Returns a list of these entries, with all pages present.
    pub(crate) fn new(mode: AccessMode, entries: &[u8]) -> Self {
        let mut list = Self::with_rights(mode, entries);
        if mode == AccessMode::Pages {
            for entry in list.bytes.chunks_exact_mut(PAGE) {
                entry[PAGE - 1] |= (READABLE | WRITABLE) as u8;
            }
        }
        list
    }

    /// Returns a list of these entries, whose low bits contain access rights.
    pub(crate) fn with_rights(mode: AccessMode, entries: &[u8]) -> Self {
        let mut list = Self { mode, bytes: entries.to_vec(), index: Vec::new() };
        list.look(0, entries.len());
        list
    }

    /// Returns the length of the list, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the memory that a list of `len` bytes uses, in bytes, including its index.
    pub(super) fn weight(mode: AccessMode, len: usize) -> usize {
        let unit = if mode == AccessMode::Pieces { OCTWORD } else { BLOCK };
        len.saturating_add(len.div_ceil(unit).saturating_mul(8))
    }

    /// Copies the start of the list to `into`, padded with zeros.
    pub(crate) fn peek(&self, into: &mut [u8]) {
        let len = into.len().min(self.bytes.len());
        into[..len].copy_from_slice(&self.bytes[..len]);
    }

    /// Writes entries at a byte offset. Returns the previous contents, or `None` if the list would
    /// have a gap.
    pub(super) fn fill(&mut self, offset: usize, entries: &[u8]) -> Option<Undo> {
        let end = offset.checked_add(entries.len())?;
        let len = self.bytes.len();
        let before = self.bytes.get(offset..end.min(len).max(offset))?.to_vec();
        if end > len {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(entries);
        self.look(offset, end);
        Some(Undo { offset, before, len })
    }

    /// Restores the list to its state before [`fill`](Self::fill).
    pub(super) fn undo(&mut self, undo: &Undo) {
        let end = undo.offset + undo.before.len();
        if let Some(changed) = self.bytes.get_mut(undo.offset..end) {
            changed.copy_from_slice(&undo.before);
        }
        self.bytes.truncate(undo.len);
        self.look(undo.offset, undo.len);
    }

    /// Updates the index for the list bytes `from` to `to`.
    fn look(&mut self, from: usize, to: usize) {
        match self.mode {
            AccessMode::Physical | AccessMode::Fixed | AccessMode::Memic => {}
            AccessMode::Pages => {
                self.index.resize(self.bytes.len().div_ceil(BLOCK), 0);
                let blocks = self.bytes.chunks(BLOCK).zip(&mut self.index);
                for (block, bits) in blocks.skip(from / BLOCK).take(to.div_ceil(BLOCK) - from / BLOCK) {
                    *bits = block.chunks_exact(PAGE).fold(0, |bits, entry| bits | page(entry));
                }
            }
            AccessMode::Pieces => {
                let first = (from / OCTWORD).min(self.index.len());
                self.index.truncate(first);
                let mut start = first.checked_sub(1).map_or(0, |last| self.index[last] + self.len_of(last));
                for number in first..self.bytes.len() / OCTWORD {
                    self.index.push(start);
                    // This cannot overflow, because there are fewer than 2^32 lengths of 32 bits
                    // each.
                    start += self.len_of(number);
                }
            }
        }
    }

    fn len_of(&self, piece: usize) -> u64 {
        self.bytes.get(piece * OCTWORD..).map_or(0, |entry| u64::from(dword(entry, 0)))
    }

    /// Returns page `number` of the list.
    pub(super) fn page(&self, number: usize) -> Option<Page> {
        let at = number.checked_mul(PAGE)?;
        let entry = self.bytes.get(at..at.checked_add(PAGE)?)?;
        let bits = qword(entry, 0);
        Some(Page { address: page(entry), readable: bits & READABLE != 0, writable: bits & WRITABLE != 0 })
    }

    /// Returns the key and the address of piece `number`, in a list of pieces with a common length.
    pub(super) fn fixed(&self, number: usize) -> Option<(u32, u64)> {
        let at = number.checked_mul(OCTWORD)?;
        let entry = self.bytes.get(at..at.checked_add(OCTWORD)?)?;
        Some((dword(entry, 4), qword(entry, 8)))
    }

    /// Returns the number of pages in the list.
    pub(crate) fn pages(&self) -> u64 {
        (self.bytes.len() / PAGE) as u64
    }

    /// Returns the address of the first misaligned page among the first `count` pages. Pages have
    /// 2^`shift` bytes.
    pub(super) fn misaligned(&self, shift: u32, count: usize) -> Option<u64> {
        let odd = |bits: &u64| bits & ((1 << shift) - 1) != 0;
        let used = &self.bytes[..count.saturating_mul(PAGE).min(self.bytes.len())];
        used.chunks(BLOCK)
            .zip(&self.index)
            .filter(|(_, bits)| odd(bits))
            .find_map(|(block, _)| block.chunks_exact(PAGE).map(page).find(odd))
    }

    /// Returns the piece that contains the byte at offset `at`, in a list of pieces with individual
    /// lengths.
    pub(super) fn piece(&self, at: u64) -> Option<Piece> {
        // Empty pieces precede the piece that starts at the same offset, or are at the end of the
        // list.
        let number = self.index.partition_point(|start| *start <= at).checked_sub(1)?;
        let entry = self.bytes.get(number * OCTWORD..)?.get(..OCTWORD)?;
        let (len, inside) = (u64::from(dword(entry, 0)), at - self.index[number]);
        (inside < len).then(|| Piece { key: dword(entry, 4), addr: qword(entry, 8), len, inside })
    }
}

/// Returns the address in a page's entry. The low 3 bits of the entry are for access rights.
fn page(entry: &[u8]) -> u64 {
    qword(entry, 0) & !7
}
