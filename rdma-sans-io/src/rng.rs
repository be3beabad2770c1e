//! [`Rng`]: a source of pseudorandom numbers. SplitMix64 mixes the bits of a 64-bit counter. It is
//! good enough for tests, and its state fits on one line of a bug report.
//!
//! The generator of the `fastrand` crate is not used, because a seed in a bug report or a
//! regression test must give the same numbers in every version.
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
    /// Returns a generator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns an independent generator for part `which` of a simulation or test, so that draws in
    /// one part do not affect the others.
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

    /// Returns a number from `first` to `last`, inclusive.
    pub fn range(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first).saturating_add(1))
    }

    /// Returns `true` with the probability `of`.
    pub fn chance(&mut self, of: Chance) -> bool {
        // Always drawn, so a fault's probability does not change later draws.
        self.below(1_000_000) < u64::from(of.0)
    }

    /// Returns one of `items`, chosen at random.
    ///
    /// # Panics
    /// Panics if `items` is empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A probability, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chance(u32);

impl Chance {
    /// Probability 0.
    pub const NEVER: Self = Self(0);
    /// Probability 1.
    pub const ALWAYS: Self = Self(1_000_000);

    /// Returns a probability of `n` percent.
    pub const fn percent(n: u32) -> Self {
        Self(n.saturating_mul(10_000))
    }

    /// Returns a probability of `n` in a million.
    pub const fn per_million(n: u32) -> Self {
        Self(n)
    }

    /// Returns the probability in millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }
}
