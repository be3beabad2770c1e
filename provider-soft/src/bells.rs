//! [`Bells`]: which queue pairs have something in their rings that nobody has taken out yet.
//!
//! One bit for each queue pair, and above them one bit for each word of those, so that who looks reads one word when nothing
//! was rung. Who rings sets the lower bit first and the upper one with release; who looks takes the upper ones with acquire
//! and then the lower ones, so an upper bit that was taken never hides a lower one. That somebody looks is
//! [`Turn`](crate::turn::Turn)'s to see to.

use crate::sync::atomic::{AtomicU64, Ordering};

/// A bit for each queue pair.
#[derive(Debug)]
pub(crate) struct Bells {
    upper: AtomicU64,
    lower: Box<[AtomicU64]>,
}

impl Bells {
    /// How many bells there can be.
    pub(crate) const MAX: usize = 64 * 64;

    /// Bells for `count` queue pairs.
    pub(crate) fn new(count: usize) -> Self {
        assert!(count <= Self::MAX);
        Self { upper: AtomicU64::new(0), lower: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Rings one.
    #[inline]
    pub(crate) fn ring(&self, index: usize) {
        self.lower[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        self.upper.fetch_or(1 << (index / 64), Ordering::Release);
    }

    /// Takes all that were rung.
    #[inline]
    pub(crate) fn take(&self, mut each: impl FnMut(usize)) {
        let mut upper = self.upper.swap(0, Ordering::Acquire);
        while upper != 0 {
            let word = upper.trailing_zeros() as usize;
            upper &= upper - 1;
            let mut lower = self.lower[word].swap(0, Ordering::Acquire);
            while lower != 0 {
                each(word * 64 + lower.trailing_zeros() as usize);
                lower &= lower - 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_rung_is_taken_once() {
        let bells = Bells::new(Bells::MAX);
        for index in [4095, 0, 63, 64, 0] {
            bells.ring(index);
        }
        let mut taken = Vec::new();
        bells.take(|index| taken.push(index));
        assert_eq!(taken, [0, 63, 64, 4095]);
        bells.take(|index| panic!("{index} was taken twice"));
    }
}
