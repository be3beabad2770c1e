//! [`Random`]: the source of communication ids and transaction ids.

use core::fmt;

/// A source of numbers that strangers cannot guess.
///
/// Besides the source address, a communication id is the only proof that a message comes from a
/// connection's peer. A device draws from the system. Simulations, fuzzing and tests use
/// [`sim::Rng`](crate::sim::Rng), which draws the same pseudorandom numbers for the same seed.
pub trait Random: fmt::Debug + Send + Sync {
    /// Draws 32 independent, uniform bits; `None` if the source fails.
    fn draw(&mut self) -> Option<u32>;
}
