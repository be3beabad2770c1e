//! A memory reserve for small allocations when `malloc(3)` fails.
//!
//! Rust aborts the process when an ordinary allocation fails; a C library reports `ENOMEM`.
//! Anything that a program can make large (queues, tables) already uses fallible allocations.
//! [`Allocator`], which `libibverbs.so.1` uses, serves the small allocations: if `malloc(3)` fails,
//! they come from a mebibyte that the library has reserved.
//!
//! ```text
//!   alloc ── malloc ──► memory
//!              └ null ─ at most 16 KiB ──► the reserve        else null, which is ENOMEM
//!   a call that allocates ── has_room() ──► nothing of the reserve is in use
//!                               └ some ── malloc(64 KiB) works ──► as above
//!                                               └ null ──► ENOMEM, nothing changed
//! ```
//!
//! A call that begins while memory is left can therefore finish, including its errors, its log
//! lines and the concurrent work of the library's threads. Later calls are rejected until memory is
//! available again. Destroying objects always works.
//!
//! # Safety
//! The reserve gives each unit to one owner, which returns it with the layout of the request, as
//! [`GlobalAlloc`] requires.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, null_mut};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::alloc::System;

/// The size in bytes of a unit, the smallest piece of the reserve; also the maximum alignment.
const UNIT: usize = 256;

/// The number of units in a group; an allocation lies within one group.
const GROUP: usize = 64;

/// The maximum size of an allocation that the reserve serves, in bytes.
const LARGEST: usize = UNIT * GROUP;

const GROUPS: usize = 64;

/// A generous upper bound on the memory that one call allocates in pieces of up to [`LARGEST`]
/// bytes.
pub(crate) const CALL: usize = 64 << 10;

/// The allocator of `libibverbs.so.1`: the C allocator, backed by the reserve.
#[derive(Debug)]
pub struct Allocator;

static RESERVE: Reserve = Reserve::new();

/// Returns whether a call that allocates may begin: the reserve is unused, or the C allocator has
/// memory again.
pub(crate) fn has_room() -> bool {
    RESERVE.used.load(Ordering::Relaxed) == 0 || can_allocate(CALL)
}

/// Returns whether the C allocator can provide this many bytes in one piece.
#[cold]
fn can_allocate(size: usize) -> bool {
    let Ok(layout) = Layout::from_size_align(size, 16) else { return false };
    // SAFETY: the size is not 0; the piece is freed with the layout it was allocated with.
    unsafe {
        let piece = core::hint::black_box(System.alloc(layout));
        if !piece.is_null() {
            System.dealloc(piece, layout);
        }
        !piece.is_null()
    }
}

// SAFETY: each method returns null, or memory of `System` or of the reserve with the requested size
// and alignment. Pieces of the reserve are returned to it, and all others to `System`.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        let piece = unsafe { System.alloc(layout) };
        if piece.is_null() { RESERVE.take(layout) } else { piece }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        let piece = unsafe { System.alloc_zeroed(layout) };
        if !piece.is_null() {
            return piece;
        }
        let piece = RESERVE.take(layout);
        if !piece.is_null() {
            // SAFETY: the piece has this many bytes and no other owner.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    #[inline]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if !RESERVE.give_back(piece, layout) {
            // SAFETY: a piece outside the reserve belongs to `System`, with this layout.
            unsafe { System.dealloc(piece, layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let is_own = RESERVE.index_of(piece).is_some();
        if !is_own {
            // SAFETY: the caller's promise is the same, for a piece of `System`.
            let moved = unsafe { System.realloc(piece, layout, new_size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller promises that the new size does not overflow with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: the new size is not 0, by the caller's promise. Both pieces have the copied bytes
        // and do not overlap, and the old one is freed once.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(piece, moved, layout.size().min(new_size));
                self.dealloc(piece, layout);
            }
            moved
        }
    }
}

/// The units of memory and a record of the units in use. No call waits, so neither a cancelled
/// thread nor a concurrent fork can block other threads.
struct Reserve {
    /// The number of units in use.
    used: AtomicUsize,
    /// One bit per unit, set while the unit is in use.
    taken: [AtomicU64; GROUPS],
    memory: UnsafeCell<Memory>,
}

#[repr(align(4096))]
struct Memory {
    _bytes: [u8; GROUPS * LARGEST],
}

// SAFETY: only the owner of a unit accesses its memory; each unit has one owner.
unsafe impl Sync for Reserve {}

impl Reserve {
    const fn new() -> Self {
        Self {
            used: AtomicUsize::new(0),
            taken: [const { AtomicU64::new(0) }; GROUPS],
            memory: UnsafeCell::new(Memory { _bytes: [0; GROUPS * LARGEST] }),
        }
    }

    /// Returns a piece of the reserve, or null if no piece of this layout is free.
    #[cold]
    fn take(&self, layout: Layout) -> *mut u8 {
        let Some(units) = units(layout) else { return null_mut() };
        for (group, taken) in self.taken.iter().enumerate() {
            let mut seen = taken.load(Ordering::Relaxed);
            while let Some(first) = (0..=GROUP - units).find(|first| seen & mask(*first, units) == 0) {
                let with = seen | mask(first, units);
                // Acquire: the last owner's accesses happen before the next owner's.
                match taken.compare_exchange_weak(seen, with, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => {
                        self.used.fetch_add(units, Ordering::Relaxed);
                        return self.memory.get().cast::<u8>().wrapping_add((group * GROUP + first) * UNIT);
                    }
                    Err(now) => seen = now,
                }
            }
        }
        null_mut()
    }

    /// Reclaims a piece of the reserve; returns false for other memory.
    #[inline]
    fn give_back(&self, piece: *mut u8, layout: Layout) -> bool {
        let Some(index) = self.index_of(piece) else { return false };
        let units = units(layout).unwrap_or(GROUP);
        self.taken[index / GROUP].fetch_and(!mask(index % GROUP, units), Ordering::Release);
        self.used.fetch_sub(units, Ordering::Relaxed);
        true
    }

    /// Returns the index of the unit at an address in the reserve.
    #[inline]
    fn index_of(&self, piece: *mut u8) -> Option<usize> {
        let offset = piece.addr().wrapping_sub(self.memory.get().addr());
        (offset < GROUPS * LARGEST).then_some(offset / UNIT)
    }
}

/// Returns the number of units that a layout needs; `None` if it is too large for the reserve.
const fn units(layout: Layout) -> Option<usize> {
    if layout.size() > LARGEST || layout.align() > UNIT {
        return None;
    }
    Some(if layout.size() == 0 { 1 } else { layout.size().div_ceil(UNIT) })
}

/// Returns the bits of `units` units (1 to 64), starting at `first`.
const fn mask(first: usize, units: usize) -> u64 {
    (u64::MAX >> (GROUP - units)) << first
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    fn of_size(size: usize) -> Layout {
        layout(size, 1)
    }

    #[test]
    fn pieces_do_not_overlap_and_come_back() {
        static OWN: Reserve = Reserve::new();
        let reserve = &OWN;
        let mut pieces: BTreeMap<usize, (*mut u8, Layout)> = BTreeMap::new();
        let mut random = 1_u32;
        for _ in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let size = (random >> 16) as usize % (LARGEST + 2);
            if random & 1 << 8 == 0 {
                let layout = layout(size, 1 << (random & 7));
                let piece = reserve.take(layout);
                if !piece.is_null() {
                    assert_eq!(piece.addr() % layout.align(), 0);
                    let (start, end) = (piece.addr(), piece.addr() + size.max(1));
                    let before = pieces.range(..end).next_back();
                    assert!(before.is_none_or(|(at, (_, layout))| at + layout.size().max(1) <= start));
                    pieces.insert(start, (piece, layout));
                }
            } else if let Some((_, (piece, layout))) = pieces.pop_last() {
                assert!(reserve.give_back(piece, layout));
            }
        }
        while let Some((_, (piece, layout))) = pieces.pop_first() {
            assert!(reserve.give_back(piece, layout));
        }
        assert_eq!(reserve.used.load(Ordering::Relaxed), 0);
        assert!(reserve.taken.iter().all(|taken| taken.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn what_is_too_large_or_of_others_is_not_served() {
        static OWN: Reserve = Reserve::new();
        let reserve = &OWN;
        assert!(reserve.take(of_size(LARGEST + 1)).is_null());
        assert!(reserve.take(layout(8, 2 * UNIT)).is_null());
        let mut other = 0_u8;
        assert!(!reserve.give_back(&raw mut other, of_size(1)));
        for _ in 0..GROUPS {
            assert!(!reserve.take(of_size(LARGEST)).is_null());
        }
        assert!(reserve.take(of_size(1)).is_null(), "full");
    }

    #[test]
    fn a_call_begins_while_c_has_memory() {
        assert!(has_room(), "nothing of the reserve is in use");
        assert!(can_allocate(CALL));
        assert!(!can_allocate(1 << 60));
    }

    #[test]
    fn a_piece_of_the_reserve_grows_into_memory_of_c_with_its_bytes() {
        let small = of_size(100);
        let piece = RESERVE.take(small);
        // SAFETY: the piece has 100 bytes, and one allocator reallocates and frees it.
        unsafe {
            piece.write_bytes(7, 100);
            let moved = Allocator.realloc(piece, small, 40_000);
            assert!(RESERVE.index_of(moved).is_none());
            assert_eq!(core::slice::from_raw_parts(moved, 100), [7; 100]);
            Allocator.dealloc(moved, of_size(40_000));
        }
        assert_eq!(RESERVE.used.load(Ordering::Relaxed), 0);
    }
}
