//! Bytes and choices derived from a seed. Both ends of a connection compute the same bytes and
//! choices without communicating.

use rdma_sans_io::Rng;

/// A source of random choices.
#[derive(Clone, Debug)]
pub struct Choices(Rng);

impl Choices {
    /// Returns the choices for a seed.
    pub const fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// Returns a random number of any value.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a random number below `end`.
    ///
    /// # Panics
    /// Panics if `end` is 0, unlike [`Rng::below`].
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end
    }

    /// Returns a random element of `all`.
    ///
    /// # Panics
    /// Panics if `all` is empty.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Returns a seed that differs whenever any of the numbers differs.
pub fn seed_of(numbers: &[u64]) -> u64 {
    let first = |seed| Rng::new(seed).next_u64();
    numbers.iter().fold(0, |seed, number| first(seed ^ first(*number)))
}

/// Fills `bytes` with values that depend on the seed and the position. Neither another seed nor a
/// shift yields the same bytes.
pub fn fill(seed: u64, bytes: &mut [u8]) {
    Rng::new(seed).fill(bytes);
}

/// Returns the bytes that [`fill`] writes.
pub fn filled(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, &mut bytes);
    bytes
}

/// Checks that the bytes equal the output of [`fill`].
///
/// # Errors
/// Fails if a byte is wrong. The error names the index of the first wrong byte and the number of
/// wrong bytes.
pub fn check(seed: u64, bytes: &[u8]) -> Result<(), String> {
    let wanted = filled(seed, bytes.len());
    if wanted == bytes {
        return Ok(());
    }
    let wrong: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i] != wanted[i]).collect();
    let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
    let what = if bytes[first..=last].iter().all(|byte| *byte == 0) { ", all of it zero" } else { "" };
    let len = bytes.len();
    Err(format!("{} of {len} bytes are wrong, between {first} and {last}{what}", wrong.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        for len in [1, 7, 8, 9, 1000] {
            let bytes = filled(5, len);
            assert_eq!(check(5, &bytes), Ok(()));
            assert!(check(6, &bytes).is_err());
            for at in [0, len / 2, len - 1] {
                let mut other = bytes.clone();
                other[at] ^= 1;
                let why = format!("1 of {len} bytes are wrong, between {at} and {at}");
                assert!(check(5, &other).unwrap_err().starts_with(&why));
            }
        }
        assert_eq!(check(5, &[]), Ok(()));
    }

    #[test]
    fn what_is_shifted_is_wrong() {
        let bytes = filled(5, 4096);
        for shift in [1, 8, 1024] {
            assert!(check(5, &bytes[shift..]).is_err(), "{shift}");
        }
    }

    #[test]
    fn seeds_differ_when_one_number_does() {
        let seeds = [seed_of(&[]), seed_of(&[0]), seed_of(&[0, 0]), seed_of(&[0, 1]), seed_of(&[1, 0])];
        for (i, seed) in seeds.iter().enumerate() {
            assert!(!seeds[..i].contains(seed), "{i}");
        }
    }
}
