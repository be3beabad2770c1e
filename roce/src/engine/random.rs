//! [`Random`]: the source of the numbers of an engine's objects.

use core::fmt;

/// A source of numbers that strangers cannot guess.
///
/// Queue pair numbers and memory keys travel in the clear and authorize nothing by themselves. A
/// peer that has neither seen nor been given one must not be able to compute it from others, so
/// each number is a draw of its own. A real device draws from the system;
/// [`sim::Rng`](crate::sim::Rng) draws pseudorandom numbers, the same ones for the same seed, for
/// simulations, fuzzing and tests.
pub trait Random: fmt::Debug + Send + Sync {
    /// Draws 32 independent, uniform bits; `None` if the source fails.
    ///
    /// The engine draws only in calls that create objects. Those fail with
    /// [`Refused::NoNumbers`](super::Refused::NoNumbers) if the source fails.
    fn draw(&mut self) -> Option<u32>;
}
