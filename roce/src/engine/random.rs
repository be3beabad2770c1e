//! [`Random`]: the source of the numbers that an engine gives to its objects.

use core::fmt;

/// A source of numbers that strangers cannot guess.
///
/// Queue pair numbers and memory keys travel in the clear and authorize nothing by themselves, but
/// a peer that has neither seen nor been given one must not be able to compute it from others. So
/// each number is a draw of its own. A real device draws from the system;
/// [`sim::Rng`](crate::sim::Rng) draws pseudorandom numbers, the same ones for the same seed, for
/// simulations, fuzzing and tests.
pub trait Random: fmt::Debug + Send + Sync {
    /// Draws 32 bits, each as likely set as clear and independent of all others; `None` when the
    /// source fails.
    ///
    /// The engine draws only in calls that make objects, and refuses those with
    /// [`Refused::NoNumbers`](super::Refused::NoNumbers) when the source fails.
    fn draw(&mut self) -> Option<u32>;
}
