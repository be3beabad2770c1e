//! CRC-32 by carry-less multiplication: PCLMULQDQ, VPCLMULQDQ with AVX-512, PMULL.
//!
//! Blocks are folded: a block of 128 bits that lies D bits ahead of another is multiplied by x^D
//! modulo the polynomial and added to it. Folding leaves the CRC unchanged. Several blocks are
//! folded side by side, then into one, which is reduced to 32 bits.
//!
//! Bits are reflected, as in the CRC: the low half of a register holds the higher powers. A product
//! of two reflected polynomials comes out one bit short, so the constants are doubled.
//!
//! | module | blocks | the last block and any remaining bytes |
//! |---|---|---|
//! | `x86_64` | four of 128 or of 512 bits side by side | a shuffle, then a Barrett reduction |
//! | `aarch64` | four of 128 bits side by side | Armv8 CRC32 instructions, 8 bytes per step |
//! | `elsewhere` | none: the tables do all the work | |
//!
//! # Safety
//! Three things are unsafe here. A function with a target feature may only run on a CPU with that
//! feature; the safe entry functions check this first. Vector loads read through a pointer; they
//! are wrapped in functions that take arrays of exactly their size. An identification register of
//! aarch64 is read only where the kernel allows it.
//!
//! # References
//! V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
//! Intel, 2009; Arm ARM, C7.2 (PMULL, PMULL2), C6.2 (CRC32B, CRC32W, CRC32X), D19.2 (MIDR_EL1);
//! Linux `Documentation/arch/arm64/cpu-feature-registers.rst`
#![allow(unsafe_code)]

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use core::sync::atomic::{AtomicU8, Ordering};

use super::poly::x_to;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod elsewhere;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as machine;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use elsewhere as machine;
#[cfg(target_arch = "x86_64")]
use x86_64 as machine;

pub(super) use machine::{has_clmul, has_clmul512, is_emulated, multiply, update, update512};

/// Returns the cached result of `find`, which runs if `place` holds no result. Two threads may run
/// it at the same time. A lock is not used, because a forked child could find it locked forever.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline]
fn remembered(place: &AtomicU8, find: impl FnOnce() -> bool) -> bool {
    match place.load(Ordering::Relaxed) {
        UNKNOWN => {
            let found = find();
            place.store(u8::from(found), Ordering::Relaxed);
            found
        }
        known => known == 1,
    }
}

/// The initial value of a cache for [`remembered`]. The first call stores 0 or 1.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const UNKNOWN: u8 = 2;

/// The folding constants for one distance: one for a register's low half, one for its high half.
type Factors = (u64, u64);

/// Returns the folding constants for a distance of `bits` bits.
const fn ahead(bits: u64) -> Factors {
    ((x_to(bits + 32) as u64) << 1, (x_to(bits - 32) as u64) << 1)
}

const AHEAD_128: Factors = ahead(128);
const AHEAD_512: Factors = ahead(512);
/// The polynomial including x³², 33 bits.
const P: u64 = 0x1_db71_0641;
/// The quotient of x⁶⁴ and the polynomial, 33 bits.
const MU: u64 = 0x1_f701_1641;
