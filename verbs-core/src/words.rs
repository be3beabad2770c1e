//! Copies aligned words to and from memory that other threads access at the same time.
//!
//! The functions behave like a loop of relaxed [`AtomicU64`] accesses in address order. Compilers
//! do not merge the accesses of such a loop, so it takes nearly twice as long as the caches allow.
//! On x86-64, SSE2 therefore copies whole lines, 16 aligned bytes at a time. On processors with
//! AVX, 16 bytes are a single access. No other processor is known to tear one of the 8-byte halves,
//! and only that would matter. Stores become visible in program order. To the compiler, the
//! assembly is an opaque call that may have the effects of the loop.
//!
//! ThreadSanitizer does not see assembly either. `--cfg verbs_portable_copies` builds the loop
//! instead, whose accesses it sees; `cargo xtask fuzz --sanitizer` passes this option.
//!
//! # Safety
//! Each function documents its requirements on the address and accesses no more bytes than the
//! slice has.
//!
//! # References
//! Intel SDM volume 3, "Guaranteed Atomic Operations"; AMD64 APM volume 2, "Access Atomicity" and
//! "Memory Ordering"
#![allow(unsafe_code)]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The loop is faster than the assembly for up to this number of lines.
const FEW: usize = 4;

/// Loads words from `from` into a slice.
///
/// # Safety
/// `from` must be aligned to 8 bytes, with `8 * into.len()` initialised bytes mapped there. During
/// the call, other threads may access these bytes only as atomic words.
#[inline]
pub unsafe fn load_words(mut from: *mut u8, mut into: &mut [[u8; 8]]) {
    // SAFETY: `from` advances in step with `into`, so every word lies in the memory that the
    // caller's guarantee covers.
    unsafe {
        if into.len() > 8 * FEW {
            let (skew, rest) = into.split_at_mut(from as usize >> 3 & 1);
            for word in skew {
                *word = load(from);
                from = from.add(8);
            }
            let (lines, rest) = rest.as_chunks_mut::<8>();
            lines::load(from, lines);
            (from, into) = (from.add(64 * lines.len()), rest);
        }
        for word in into {
            *word = load(from);
            from = from.add(8);
        }
    }
}

/// Stores the words of a slice at `to`, in address order.
///
/// # Safety
/// `to` must be aligned to 8 bytes, with `8 * from.len()` bytes mapped there. During the call,
/// other threads may access these bytes only as atomic words.
#[inline]
pub unsafe fn store_words(mut to: *mut u8, mut from: &[[u8; 8]]) {
    // SAFETY: as in `load_words`.
    unsafe {
        if from.len() > 8 * FEW {
            let (skew, rest) = from.split_at(to as usize >> 3 & 1);
            for word in skew {
                store(to, word);
                to = to.add(8);
            }
            let (lines, rest) = rest.as_chunks::<8>();
            lines::store(to, lines);
            (to, from) = (to.add(64 * lines.len()), rest);
        }
        for word in from {
            store(to, word);
            to = to.add(8);
        }
    }
}

/// Loads one word.
///
/// # Safety
/// `at` must be aligned to 8 bytes, with 8 initialised bytes mapped there, which other threads may
/// access only as an atomic word.
#[inline(always)]
unsafe fn load(at: *mut u8) -> [u8; 8] {
    // SAFETY: the caller upholds the same contract.
    unsafe { AtomicU64::from_ptr(at.cast()) }.load(Relaxed).to_ne_bytes()
}

/// Stores one word.
///
/// # Safety
/// Same as [`load`], except that the bytes need not be initialised.
#[inline(always)]
unsafe fn store(at: *mut u8, word: &[u8; 8]) {
    // SAFETY: the caller upholds the same contract.
    unsafe { AtomicU64::from_ptr(at.cast()) }.store(u64::from_ne_bytes(*word), Relaxed);
}

/// Copies of whole 64-byte lines, with SSE2 instructions.
#[cfg(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_feature = "sse2",
    not(any(miri, verbs_portable_copies))
))]
mod lines {
    use core::arch::asm;

    /// Loads lines from `from` into a slice.
    ///
    /// # Safety
    /// Same as [`load_words`](super::load_words); also, `from` must be aligned to 16 bytes.
    pub(super) unsafe fn load(from: *mut u8, into: &mut [[[u8; 8]; 8]]) {
        let len = 64 * into.len();
        if len == 0 {
            return;
        }
        // SAFETY: `len` bytes are read at `from` and written at `into`, from the first line to the
        // last: the index runs from `-len` to 0 in steps of a line.
        unsafe {
            asm!(
                "2:",
                "movaps {a}, [{from} + {at}]",
                "movaps {b}, [{from} + {at} + 16]",
                "movaps {c}, [{from} + {at} + 32]",
                "movaps {d}, [{from} + {at} + 48]",
                "movups [{to} + {at}], {a}",
                "movups [{to} + {at} + 16], {b}",
                "movups [{to} + {at} + 32], {c}",
                "movups [{to} + {at} + 48], {d}",
                "add {at}, 64",
                "jnz 2b",
                from = in(reg) from.add(len),
                to = in(reg) into.as_mut_ptr().cast::<u8>().add(len),
                at = inout(reg) len.wrapping_neg() => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }

    /// Stores the lines of a slice at `to`.
    ///
    /// # Safety
    /// Same as [`store_words`](super::store_words); also, `to` must be aligned to 16 bytes.
    pub(super) unsafe fn store(to: *mut u8, from: &[[[u8; 8]; 8]]) {
        let len = 64 * from.len();
        if len == 0 {
            return;
        }
        // SAFETY: as in `load`, the other way.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{from} + {at}]",
                "movups {b}, [{from} + {at} + 16]",
                "movups {c}, [{from} + {at} + 32]",
                "movups {d}, [{from} + {at} + 48]",
                "movaps [{to} + {at}], {a}",
                "movaps [{to} + {at} + 16], {b}",
                "movaps [{to} + {at} + 32], {c}",
                "movaps [{to} + {at} + 48], {d}",
                "add {at}, 64",
                "jnz 2b",
                from = in(reg) from.as_ptr().cast::<u8>().add(len),
                to = in(reg) to.add(len),
                at = inout(reg) len.wrapping_neg() => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
}

/// Copies of whole 64-byte lines, word by word.
#[cfg(not(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_feature = "sse2",
    not(any(miri, verbs_portable_copies))
)))]
mod lines {
    /// Loads lines from `from` into a slice.
    ///
    /// # Safety
    /// Same as [`load_words`](super::load_words).
    pub(super) unsafe fn load(mut from: *mut u8, into: &mut [[[u8; 8]; 8]]) {
        for word in into.as_flattened_mut() {
            // SAFETY: the caller upholds the contract for each word.
            unsafe {
                *word = super::load(from);
                from = from.add(8);
            }
        }
    }

    /// Stores the lines of a slice at `to`.
    ///
    /// # Safety
    /// Same as [`store_words`](super::store_words).
    pub(super) unsafe fn store(mut to: *mut u8, from: &[[[u8; 8]; 8]]) {
        for word in from.as_flattened() {
            // SAFETY: as in `load`.
            unsafe {
                super::store(to, word);
                to = to.add(8);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_words_at_any_alignment_is_moved_and_nothing_else() {
        let pattern: Vec<[u8; 8]> =
            (1..=200_u64).map(|n| (n * 0x0101_0101_0101_0101).to_ne_bytes()).collect();
        for start in 0..3 {
            for count in (0..80).chain([127, 128, 129, 200]) {
                let mut memory = [u64::MAX; 210];
                // SAFETY: inside the array: 3 and 200 are less than 210.
                let at = unsafe { memory.as_mut_ptr().add(start) }.cast::<u8>();
                let mut back = vec![[0; 8]; count];
                // SAFETY: inside the array, which no other code accesses.
                unsafe {
                    store_words(at, &pattern[..count]);
                    load_words(at, &mut back);
                }
                assert_eq!(back, pattern[..count], "{count} from {start}");
                let outside = memory[..start].iter().chain(&memory[start + count..]);
                assert!(outside.into_iter().all(|word| *word == u64::MAX), "{count} from {start}");
            }
        }
    }
}
