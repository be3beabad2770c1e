//! [`Rng`]: where chance comes from. SplitMix64: one 64-bit counter, mixed; good enough for tests, and a state that
//! fits in a line of a bug report.
//!
//! # References
//! Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014

use crate::engine::Random;

/// A source of pseudorandom numbers. The same seed gives the same numbers, on every machine and in
/// every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rng(u64);

impl Random for Rng {
    fn draw(&mut self) -> Option<u32> {
        Some((self.next_u64() >> 32) as u32)
    }
}

impl Rng {
    /// A stream of numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own for part `which` of something: what one part draws does not move the
    /// others.
    pub fn split(seed: u64, which: u64) -> Self {
        let mut of = Self(seed ^ which.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(of.next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 where `end` is.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of a product instead of a remainder: no division, and a bias below 2⁻³² for
        // the small `end`s here.
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `first` to `last`, both possible.
    pub fn range(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first).saturating_add(1))
    }

    /// Does it happen this time?
    pub fn chance(&mut self, of: Chance) -> bool {
        // Drawn in any case, so that a fault's chance does not move what comes after it.
        self.below(1_000_000) < u64::from(of.0)
    }

    /// One of `items`.
    ///
    /// # Panics
    /// There is none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// How likely something is, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chance(u32);

impl Chance {
    /// It does not happen.
    pub const NEVER: Self = Self(0);
    /// It happens each time.
    pub const ALWAYS: Self = Self(1_000_000);

    /// Out of a hundred.
    pub const fn percent(n: u32) -> Self {
        Self(n.saturating_mul(10_000))
    }

    /// Out of a million.
    pub const fn per_million(n: u32) -> Self {
        Self(n)
    }

    /// In millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }
}
