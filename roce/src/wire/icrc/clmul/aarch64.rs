//! PMULL for blocks, then CRC32 instructions, which use the same polynomial, for the remaining
//! bytes.

use core::arch::aarch64::*;
use core::sync::atomic::AtomicU8;
#[cfg(target_os = "linux")]
use core::{arch::asm, ffi::c_ulong};
use std::arch::is_aarch64_feature_detected;

use super::{AHEAD_128, AHEAD_512, Factors, MU, P, UNKNOWN, remembered};

/// The minimum length, in bytes, at which folding blocks beats a single chain of CRC32
/// instructions.
const BLOCKS: usize = 128;

/// Returns whether the processor has PMULL (part of AES) and CRC32. All server processors have
/// both.
#[inline(always)]
pub(in super::super) fn has_clmul() -> bool {
    is_aarch64_feature_detected!("aes") && is_aarch64_feature_detected!("crc")
}

/// Returns whether QEMU emulates this processor (TCG), which makes each multiplication a loop. The
/// QEMU CPU model `max` has implementer 0, which the architecture reserves for software.
pub(in super::super) fn is_emulated() -> bool {
    static EMULATED: AtomicU8 = AtomicU8::new(UNKNOWN);
    remembered(&EMULATED, || main_id().is_some_and(|id| id >> 24 & 0xff == 0))
}

/// Returns the value of the register MIDR_EL1 if the kernel lets programs read it.
#[cfg(target_os = "linux")]
fn main_id() -> Option<u64> {
    unsafe extern "C" {
        /// `getauxval(3)`, from the C library linked by the standard library.
        safe fn getauxval(kind: c_ulong) -> c_ulong;
    }
    const AT_HWCAP: c_ulong = 16;
    const HWCAP_CPUID: c_ulong = 1 << 11;
    if getauxval(AT_HWCAP) & HWCAP_CPUID == 0 {
        return None;
    }
    let id: u64;
    // SAFETY: the kernel allows programs to read the register, and reading has no side effect.
    unsafe { asm!("mrs {}, midr_el1", out(reg) id, options(nomem, nostack, preserves_flags)) };
    Some(id)
}

#[cfg(not(target_os = "linux"))]
fn main_id() -> Option<u64> {
    None
}

pub(in super::super) fn has_clmul512() -> bool {
    false
}

/// Returns the CRC state after `bytes`, with the bits of `ones` set in the first eight bytes.
/// `None` if there are too few bytes or the CPU lacks the instructions.
#[inline]
pub(in super::super) fn update(state: u32, bytes: &[u8], ones: u64) -> Option<u32> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    if !has_clmul() {
        return None;
    }
    let blocks = bytes.split_first_chunk::<64>().filter(|_| bytes.len() >= BLOCKS);
    // SAFETY: the CPU has PMULL and CRC32, as was checked above.
    Some(unsafe {
        match blocks {
            Some((head, rest)) => folded(state, head, rest, ones),
            None => short(state, u64::from_le_bytes(*first) | ones, rest),
        }
    })
}

pub(in super::super) fn update512(_state: u32, _bytes: &[u8], _ones: u64) -> Option<u32> {
    None
}

/// Returns the product of two reflected polynomials; `None` if the CPU lacks the instruction.
#[inline]
pub(in super::super) fn multiply(a: u32, b: u32) -> Option<u32> {
    if !has_clmul() {
        return None;
    }
    // SAFETY: the CPU has PMULL, as was checked above.
    Some(unsafe { product(a, b) })
}

/// Returns the CRC state after `first` and `rest`. A separate function, because the caller is
/// compiled without the CRC32 feature and would call the first instruction as a function.
#[inline]
#[target_feature(enable = "crc")]
fn short(state: u32, first: u64, rest: &[u8]) -> u32 {
    chain(__crc32d(state, first), rest)
}

/// Returns the CRC state after `bytes`, processing 8 bytes per step.
#[inline]
#[target_feature(enable = "crc")]
fn chain(mut state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = __crc32d(state, u64::from_le_bytes(*word));
    }
    let mut bytes = rest;
    if let Some((half, rest)) = bytes.split_first_chunk() {
        state = __crc32w(state, u32::from_le_bytes(*half));
        bytes = rest;
    }
    for byte in bytes {
        state = __crc32b(state, *byte);
    }
    state
}

/// Returns the CRC state after `head` and `rest`, processing 64 bytes per step.
#[inline]
#[target_feature(enable = "neon,aes,crc")]
fn folded(state: u32, head: &[u8; 64], rest: &[u8], ones: u64) -> u32 {
    let [first, b, c, d] = load(head);
    let first = veorq_u64(vorrq_u64(first, low(ones)), low(state.into()));
    let mut blocks = [first, b, c, d];
    let far = factors(AHEAD_512);
    let (chunks, rest) = rest.as_chunks::<64>();
    for chunk in chunks {
        let next = load(chunk);
        blocks = [
            fold(blocks[0], far, next[0]),
            fold(blocks[1], far, next[1]),
            fold(blocks[2], far, next[2]),
            fold(blocks[3], far, next[3]),
        ];
    }
    let near = factors(AHEAD_128);
    let block = fold(fold(fold(blocks[0], near, blocks[1]), near, blocks[2]), near, blocks[3]);
    // The block already contains the state, so its CRC starts at 0.
    let state = __crc32d(__crc32d(0, vgetq_lane_u64::<0>(block)), vgetq_lane_u64::<1>(block));
    chain(state, rest)
}

/// Returns `next` with `block` folded into it.
#[inline]
#[target_feature(enable = "neon,aes")]
fn fold(block: uint64x2_t, factors: poly64x2_t, next: uint64x2_t) -> uint64x2_t {
    let block = vreinterpretq_p64_u64(block);
    let low = vmull_p64(vgetq_lane_p64::<0>(block), vgetq_lane_p64::<0>(factors));
    let high = vmull_high_p64(block, factors);
    veorq_u64(veorq_u64(vreinterpretq_u64_p128(low), vreinterpretq_u64_p128(high)), next)
}

#[inline]
#[target_feature(enable = "neon,aes")]
fn factors((low, high): Factors) -> poly64x2_t {
    vcombine_p64(vcreate_p64(low), vcreate_p64(high))
}

/// Returns a register with `value` in its low half.
#[inline]
#[target_feature(enable = "neon")]
fn low(value: u64) -> uint64x2_t {
    vcombine_u64(vcreate_u64(value), vcreate_u64(0))
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 64]) -> [uint64x2_t; 4] {
    // SAFETY: 64 readable bytes; the load needs no alignment.
    let four = unsafe { vld1q_u8_x4(bytes.as_ptr()) };
    [four.0, four.1, four.2, four.3].map(|block| vreinterpretq_u64_u8(block))
}

/// Returns the product of two reflected polynomials: a 64-bit multiplication, then a Barrett
/// reduction.
#[inline]
#[target_feature(enable = "neon,aes")]
fn product(a: u32, b: u32) -> u32 {
    const LOW_32: u64 = 0xffff_ffff;
    let x = (vmull_p64(a.into(), b.into()) as u64) << 1;
    let quotient = vmull_p64(x & LOW_32, MU) as u64 & LOW_32;
    ((x ^ vmull_p64(quotient, P) as u64) >> 32) as u32
}
