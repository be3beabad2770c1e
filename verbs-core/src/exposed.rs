//! [`ExposedBytes`]: access by this process to memory that peers may read and write.
//!
//! A userspace device is a thread visible to the compiler. A peer can make it access bytes while
//! the program accesses them, so both must use atomic accesses of the same size: atomic accesses of
//! different sizes race like plain ones. Exposed memory therefore has one access pattern,
//! determined by its address rather than by the accessed range:
//!
//! ```text
//!         start                                                     start + len
//!           ▼                                                            ▼
//!   ────────┬────┬──────────┬──────────┬─────── ··· ──────┬──────────┬───┬────
//!           │u8s │   u64    │   u64    │                  │   u64    │u8s│
//!   ────────┴────┴──────────┴──────────┴─────── ··· ──────┴──────────┴───┴────
//!                ▲ aligned to 8                                      ▲ aligned to 8
//! ```
//!
//! Part of a word is read by loading the word and written by a compare-and-exchange that preserves
//! the other bytes. Two patterns over the same bytes must not mix, so bytes are exposed by one
//! region at a time.
//!
//! # Safety
//! The caller of [`ExposedBytes::new`] guarantees that the bytes stay mapped as long as the value
//! is used. Every access is bounds-checked.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};

use crate::words::{load_words, store_words};

/// The address and length of memory that peers may read and write. The type borrows nothing.
#[derive(Clone, Copy, Debug)]
pub struct ExposedBytes {
    start: *mut u8,
    len: usize,
    /// The number of bytes before the first aligned word.
    head: usize,
    /// The offset of the end of the last aligned word.
    tail: usize,
}

// SAFETY: `start` blocked the auto impl. Accesses are atomic, from every thread.
unsafe impl Send for ExposedBytes {}
// SAFETY: as above.
unsafe impl Sync for ExposedBytes {}

impl ExposedBytes {
    /// Describes `len` bytes, starting at `start`.
    ///
    /// # Safety
    /// As long as the value or a copy of it is used, the bytes must be mapped, initialised, and
    /// accessed by this process only through values made with the same `start` and `len`, or by
    /// code whose accesses overlap no other access in time.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        let head = start.align_offset(8).min(len);
        Self { start, len, head, tail: head + (len - head) / 8 * 8 }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes out of the memory. Returns `false` and copies nothing if the range is out of
    /// bounds.
    #[inline]
    #[must_use]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        if offset.checked_add(into.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        let (bytes, rest) = into.split_at_mut(self.head.saturating_sub(offset).min(into.len()));
        self.load_bytes(offset, bytes);
        let mut at = offset + bytes.len();
        let (inside, rest) = rest.split_at_mut(self.tail.saturating_sub(at).min(rest.len()));
        let (part, inside) = inside.split_at_mut(self.until_next_word(at).min(inside.len()));
        self.load_part(at, part);
        at += part.len();
        let (words, part) = inside.as_chunks_mut::<8>();
        if !words.is_empty() {
            // SAFETY: `words` starts at the offset `at` of a word and ends before `tail`. The bytes
            // are accessed as words only, as the caller of `new` guarantees.
            unsafe { load_words(self.start.add(at), words) };
            at += 8 * words.len();
        }
        self.load_part(at, part);
        self.load_bytes(at + part.len(), rest);
        true
    }

    /// Copies bytes into the memory, in address order. Returns `false` and copies nothing if the
    /// range is out of bounds.
    #[inline]
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        if offset.checked_add(from.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        let (bytes, rest) = from.split_at(self.head.saturating_sub(offset).min(from.len()));
        self.store_bytes(offset, bytes);
        let mut at = offset + bytes.len();
        let (inside, rest) = rest.split_at(self.tail.saturating_sub(at).min(rest.len()));
        let (part, inside) = inside.split_at(self.until_next_word(at).min(inside.len()));
        self.store_part(at, part);
        at += part.len();
        let (words, part) = inside.as_chunks::<8>();
        if !words.is_empty() {
            // SAFETY: as in `read`.
            unsafe { store_words(self.start.add(at), words) };
            at += 8 * words.len();
        }
        self.store_part(at, part);
        self.store_bytes(at + part.len(), rest);
        true
    }

    /// Returns the 8 bytes at `offset` as an atomic if they form one aligned word in bounds.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(8)?;
        let is_word = offset >= self.head && end <= self.tail && (offset - self.head).is_multiple_of(8);
        is_word.then(|| self.word_at(offset))
    }

    /// Returns the aligned word at `offset` as an atomic.
    #[inline(always)]
    fn word_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(
            offset >= self.head && offset + 8 <= self.tail && (offset - self.head).is_multiple_of(8)
        );
        // SAFETY: the callers' offsets are from `head` to `tail` in steps of 8, so the word is in
        // bounds and aligned. It is accessed as a word only, as the caller of `new` guarantees.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    /// Returns the number of bytes from `offset`, which is after `head`, to the next word boundary.
    #[inline(always)]
    fn until_next_word(&self, offset: usize) -> usize {
        self.head.wrapping_sub(offset) & 7
    }

    /// Loads part of a word.
    #[inline(always)]
    fn load_part(&self, offset: usize, part: &mut [u8]) {
        if part.is_empty() {
            return;
        }
        let skip = (offset - self.head) & 7;
        let word = self.word_at(offset - skip).load(Relaxed).to_ne_bytes();
        part.copy_from_slice(&word[skip..skip + part.len()]);
    }

    /// Stores part of a word.
    #[inline(always)]
    fn store_part(&self, offset: usize, part: &[u8]) {
        if part.is_empty() {
            return;
        }
        let skip = (offset - self.head) & 7;
        let word = self.word_at(offset - skip);
        let mut seen = word.load(Relaxed);
        loop {
            let mut bytes = seen.to_ne_bytes();
            bytes[skip..skip + part.len()].copy_from_slice(part);
            match word.compare_exchange_weak(seen, u64::from_ne_bytes(bytes), Relaxed, Relaxed) {
                Ok(_) => return,
                Err(found) => seen = found,
            }
        }
    }

    fn load_bytes(&self, offset: usize, bytes: &mut [u8]) {
        for (n, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the byte is in bounds, before `head` or after `tail`, and is accessed only as
            // a byte, as the caller of `new` guarantees.
            *byte = unsafe { AtomicU8::from_ptr(self.start.add(offset + n)) }.load(Relaxed);
        }
    }

    fn store_bytes(&self, offset: usize, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: as in `load_bytes`.
            unsafe { AtomicU8::from_ptr(self.start.add(offset + n)) }.store(*byte, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn any_piece_of_any_memory_is_copied_and_nothing_else() {
        let pattern: Vec<u8> = (0..200).map(|n| n as u8 | 1).collect();
        for start in 0..9 {
            for len in [0, 1, 5, 8, 9, 16, 23, 150] {
                let mut memory = [0_u64; 24];
                let base = memory.as_mut_ptr().cast::<u8>();
                // SAFETY: the array outlives the value, and meanwhile is accessed only through it
                // or while no thread runs.
                let exposed = unsafe { ExposedBytes::new(base.add(start), len) };
                for offset in 0..len {
                    for piece in [0, 1, 3, 7, 8, 9, 17, 64, 150] {
                        let fits = offset + piece <= len;
                        assert!(exposed.write(0, &[0; 150][..len]));
                        assert_eq!(exposed.write(offset, &pattern[..piece]), fits);
                        let mut back = [0xaa; 150];
                        assert!(exposed.read(0, &mut back[..len]));
                        let piece = if fits { piece } else { 0 };
                        for (n, byte) in back[..len].iter().enumerate() {
                            let is_in = n >= offset && n < offset + piece;
                            assert_eq!(
                                *byte,
                                if is_in { pattern[n - offset] } else { 0 },
                                "{start} {len} {offset} {piece}"
                            );
                        }
                        let mut out = vec![0; piece];
                        assert!(exposed.read(offset, &mut out));
                        assert_eq!(out, pattern[..piece]);
                    }
                }
                // SAFETY: the address is inside the array, and no other code accesses the byte.
                let outside = |at: usize| unsafe { base.add(at).read() };
                assert!((0..start).chain(start + len..192).all(|at| outside(at) == 0));
            }
        }
    }

    #[test]
    fn words_are_the_aligned_ones_inside() {
        let mut memory = [7_u64; 4];
        // SAFETY: as above.
        let exposed = unsafe { ExposedBytes::new(memory.as_mut_ptr().cast::<u8>().add(3), 24) };
        let words: Vec<usize> = (0..30).filter(|offset| exposed.word(*offset).is_some()).collect();
        assert_eq!(words, [5, 13]);
        assert!(exposed.word(usize::MAX).is_none());
    }
}
