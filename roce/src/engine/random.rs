//! [`Random`]: the source of object numbers.

use core::fmt;

/// A source of numbers that strangers cannot guess.
///
/// Queue pair numbers and memory keys travel in the clear and authorize nothing by themselves. A
/// peer that has neither seen nor been given a number must not be able to compute it from others,
/// so each is drawn separately. A real device draws from the system. Simulations, fuzzing and tests
/// use [`sim::Rng`](crate::sim::Rng), which draws the same pseudorandom numbers for the same seed.
pub trait Random: fmt::Debug + Send + Sync {
    /// Draws 32 independent, uniform bits; `None` if the source fails.
    ///
    /// The engine draws only in calls that create objects. If the source fails, they return
    /// [`Refused::NoNumbers`](super::Refused::NoNumbers).
    fn draw(&mut self) -> Option<u32>;
}
