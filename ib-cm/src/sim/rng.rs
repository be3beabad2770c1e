//! [`Rng`]: a source of pseudorandom numbers. SplitMix64 is one 64-bit counter, mixed: good enough
//! for tests, with a state that fits in a line of a bug report.
//!
//! # References
//! Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014

use crate::Random;

/// A source of pseudorandom numbers. The same seed gives the same numbers on every machine and in
/// every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rng(u64);

impl Random for Rng {
    fn draw(&mut self) -> Option<u32> {
        Some((self.next_u64() >> 32) as u32)
    }
}

impl Rng {
    /// Returns a stream of numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a separate stream for part `which` of something, so the draws of one part do not
    /// affect the others.
    pub fn split(seed: u64, which: u64) -> Self {
        let mut of = Self(seed ^ which.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(of.next_u64())
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // Take the high half of a product instead of a remainder. This avoids a division; the bias
        // is below 2⁻³² for the small values of `end` used here.
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// Returns whether an event with a probability of `percent` happens.
    pub fn percent(&mut self, percent: u8) -> bool {
        // Always drawn, so a fault's probability does not change later draws.
        self.below(100) < u64::from(percent)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}
