//! PCLMULQDQ with SSE4.1, and VPCLMULQDQ with AVX-512.

use core::arch::x86_64::*;
use core::sync::atomic::AtomicU8;
use std::arch::is_x86_feature_detected;

use super::super::poly::x_to;
use super::{AHEAD_128, AHEAD_512, Factors, MU, P, UNKNOWN, ahead, remembered};

/// The minimum length, in bytes, at which 512-bit registers are faster.
const WIDE: usize = 512;

#[inline(always)]
pub(in super::super) fn has_clmul() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
}

/// Returns whether QEMU emulates this processor (TCG), which makes each multiplication a loop.
pub(in super::super) fn is_emulated() -> bool {
    /// Bit 31 of CPUID leaf 1: a hypervisor is present and provides more leaves.
    const HYPERVISOR: u32 = 1 << 31;
    static EMULATED: AtomicU8 = AtomicU8::new(UNKNOWN);
    remembered(&EMULATED, || {
        let its = || __cpuid(0x4000_0000);
        __cpuid(1).ecx & HYPERVISOR != 0
            && [its().ebx, its().ecx, its().edx].map(u32::to_le_bytes).as_flattened() == b"TCGTCGTCGTCG"
    })
}

#[inline(always)]
pub(in super::super) fn has_clmul512() -> bool {
    has_clmul() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// Returns the CRC state after `bytes`, with the bits of `ones` set in the first eight bytes.
/// `None` if there are too few bytes or the CPU lacks the instructions.
#[inline]
pub(in super::super) fn update(state: u32, bytes: &[u8], ones: u64) -> Option<u32> {
    let ((first, rest), last) = (bytes.split_first_chunk::<16>()?, bytes.last_chunk()?);
    if !has_clmul() {
        return None;
    }
    // SAFETY: the CPU has PCLMULQDQ and SSE4.1, as was checked above.
    Some(unsafe { narrow(state, first, rest, last, ones) })
}

/// Returns the CRC state as [`update`] does, using 512-bit registers if there are enough bytes.
#[inline]
pub(in super::super) fn update512(state: u32, bytes: &[u8], ones: u64) -> Option<u32> {
    if bytes.len() < WIDE || !has_clmul512() {
        return update(state, bytes, ones);
    }
    // SAFETY: the CPU has PCLMULQDQ, SSE4.1, AVX512F and VPCLMULQDQ, as was checked above.
    unsafe { wide(state, bytes, ones) }
}

/// Returns the product of two reflected polynomials; `None` if the CPU lacks the instruction.
#[inline]
pub(in super::super) fn multiply(a: u32, b: u32) -> Option<u32> {
    if !has_clmul() {
        return None;
    }
    // SAFETY: the CPU has PCLMULQDQ and SSE4.1, as was checked above.
    Some(unsafe { product(a, b) })
}

const AHEAD_2048: Factors = ahead(2048);
/// x⁶⁴ modulo the polynomial, doubled.
const X_64: i64 = (x_to(64) as i64) << 1;

#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn factors((low, high): Factors) -> __m128i {
    _mm_set_epi64x(high as i64, low as i64)
}

#[inline(always)]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 readable bytes; the load needs no alignment; SSE2 is part of x86_64.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Returns `next` with `block` folded into it.
#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn fold(block: __m128i, factors: __m128i, next: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(block, factors);
    let high = _mm_clmulepi64_si128::<0x11>(block, factors);
    _mm_xor_si128(_mm_xor_si128(low, high), next)
}

#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn narrow(state: u32, first: &[u8; 16], mut rest: &[u8], last: &[u8; 16], ones: u64) -> u32 {
    let mut block = start(state, load(first), ones);
    if let Some((chunk, behind)) = rest.split_first_chunk::<48>() {
        let [b, c, d] = split(chunk);
        let mut blocks = [block, load(b), load(c), load(d)];
        let far = factors(AHEAD_512);
        let (chunks, behind) = behind.as_chunks::<64>();
        for chunk in chunks {
            let next: [&[u8; 16]; 4] = split(chunk);
            blocks = [
                fold(blocks[0], far, load(next[0])),
                fold(blocks[1], far, load(next[1])),
                fold(blocks[2], far, load(next[2])),
                fold(blocks[3], far, load(next[3])),
            ];
        }
        let near = factors(AHEAD_128);
        block = fold(fold(fold(blocks[0], near, blocks[1]), near, blocks[2]), near, blocks[3]);
        rest = behind;
    }
    end(block, rest, last)
}

/// Returns the first block combined with the state and `ones`.
#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn start(state: u32, block: __m128i, ones: u64) -> __m128i {
    let block = _mm_or_si128(block, _mm_cvtsi64_si128(ones as i64));
    _mm_xor_si128(block, _mm_cvtsi32_si128(state as i32))
}

/// Returns the CRC state of one block and the bytes after it. `last` is the last 16 bytes of the
/// whole input, which may overlap the block.
#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn end(mut block: __m128i, rest: &[u8], last: &[u8; 16]) -> u32 {
    let near = factors(AHEAD_128);
    let (chunks, tail) = rest.as_chunks::<16>();
    for chunk in chunks {
        block = fold(block, near, load(chunk));
    }
    if !tail.is_empty() {
        block = fold_tail(block, near, tail.len(), load(last));
    }
    reduce(block)
}

/// Combines the block and the last `len` bytes (1 to 15) of `last` into one block: the first `len`
/// bytes of the block are folded into the 16 bytes that follow them.
#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn fold_tail(block: __m128i, near: __m128i, len: usize, last: __m128i) -> __m128i {
    // Shuffle indices. An index with the top bit set yields a zero byte. The 16 indices at offset
    // `len` move the first `len` bytes of the block to its end and drop the other bytes. The 16
    // indices after these move the other bytes to the front.
    static INDEX: [u8; 48] = {
        let mut index = [0x80; 48];
        let mut i = 0;
        while i < 16 {
            index[16 + i] = i as u8;
            i += 1;
        }
        index
    };
    let index = |at: usize| INDEX.get(at..).and_then(|rest| rest.first_chunk()).map_or(block, load);
    let to_back = index(len);
    let out = _mm_shuffle_epi8(block, to_back);
    let stay = _mm_shuffle_epi8(block, index(16 + len));
    // Takes the bytes moved to the front where `to_back` yields zeros, and the tail elsewhere.
    fold(out, near, _mm_blendv_epi8(last, stay, to_back))
}

/// Reduces 128 bits to 32: two folds to 64 bits, then a Barrett reduction.
#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn reduce(block: __m128i) -> u32 {
    let near = factors(AHEAD_128);
    let x = _mm_xor_si128(_mm_srli_si128::<8>(block), _mm_clmulepi64_si128::<0x10>(block, near));
    let low = _mm_and_si128(x, low_32());
    let x_64 = _mm_cvtsi64_si128(X_64);
    barrett(_mm_xor_si128(_mm_srli_si128::<4>(x), _mm_clmulepi64_si128::<0x00>(low, x_64)))
}

/// Returns the remainder of 64 bits divided by the polynomial.
#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn barrett(x: __m128i) -> u32 {
    let p_mu = _mm_set_epi64x(MU as i64, P as i64);
    let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(x, low_32()), p_mu);
    let product = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low_32()), p_mu);
    _mm_extract_epi32::<1>(_mm_xor_si128(x, product)) as u32
}

#[inline(always)]
fn low_32() -> __m128i {
    // SAFETY: SSE2 is part of x86_64.
    unsafe { _mm_set_epi32(0, 0, 0, !0) }
}

#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn product(a: u32, b: u32) -> u32 {
    let product = _mm_clmulepi64_si128::<0x00>(_mm_cvtsi32_si128(a as i32), _mm_cvtsi32_si128(b as i32));
    barrett(_mm_slli_epi64::<1>(product))
}

/// Splits an array into arrays of 16 bytes, by reference.
#[inline(always)]
fn split<const BYTES: usize, const N: usize>(bytes: &[u8; BYTES]) -> [&[u8; 16]; N] {
    const { assert!(BYTES == 16 * N) };
    let chunks = bytes.as_chunks::<16>().0;
    core::array::from_fn(|i| &chunks[i])
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold512(block: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(block, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(block, factors);
    // Three-way exclusive or.
    _mm512_ternarylogic_epi64::<0x96>(low, high, next)
}

#[target_feature(enable = "avx512f,vpclmulqdq,sse4.1,pclmulqdq")]
fn wide(state: u32, bytes: &[u8], ones: u64) -> Option<u32> {
    let (chunks, rest) = bytes.as_chunks::<64>();
    let (quads, singles) = chunks.as_chunks::<4>();
    let ([a, b, c, d], quads) = quads.split_first()?;
    let ones = _mm512_zextsi128_si512(_mm_cvtsi64_si128(ones as i64));
    let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
    let first = _mm512_xor_si512(_mm512_or_si512(load512(a), ones), state);
    let mut blocks = [first, load512(b), load512(c), load512(d)];
    let far = _mm512_broadcast_i32x4(factors(AHEAD_2048));
    for [a, b, c, d] in quads {
        blocks = [
            fold512(blocks[0], far, load512(a)),
            fold512(blocks[1], far, load512(b)),
            fold512(blocks[2], far, load512(c)),
            fold512(blocks[3], far, load512(d)),
        ];
    }
    let next = _mm512_broadcast_i32x4(factors(AHEAD_512));
    let [a, b, c, d] = blocks;
    let mut block = fold512(fold512(fold512(a, next, b), next, c), next, d);
    for single in singles {
        block = fold512(block, next, load512(single));
    }
    let near = factors(AHEAD_128);
    let [a, b, c, d] = [
        _mm512_extracti32x4_epi32::<0>(block),
        _mm512_extracti32x4_epi32::<1>(block),
        _mm512_extracti32x4_epi32::<2>(block),
        _mm512_extracti32x4_epi32::<3>(block),
    ];
    let block = fold(fold(fold(a, near, b), near, c), near, d);
    Some(end(block, rest, bytes.last_chunk()?))
}
