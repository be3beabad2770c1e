//! [`Random`]: the source of communication ids and transaction ids.

use core::fmt;

/// A source of numbers that strangers cannot guess.
///
/// A communication id is the only proof, beside the source address, that a message is of the peer
/// of a connection. A device draws from the system; [`sim::Rng`](crate::sim::Rng) draws
/// pseudorandom numbers, the same ones for the same seed, for simulations, fuzzing and tests.
pub trait Random: fmt::Debug + Send + Sync {
    /// Draws 32 independent, uniform bits; `None` if the source fails.
    fn draw(&mut self) -> Option<u32>;
}
