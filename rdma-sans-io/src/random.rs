//! [`Random`]: a source of unguessable numbers.

use core::fmt;

/// A source of numbers that an attacker cannot guess.
///
/// The numbers identify objects: a queue pair, a memory key, a connection. They travel in the clear
/// and prove little by themselves, but a peer that has neither seen nor been given a number must
/// not be able to compute it from others. Each is therefore drawn separately. Devices draw from the
/// operating system's generator. Simulations, fuzzing and tests use [`Rng`](crate::Rng), which
/// draws the same pseudorandom numbers for the same seed.
pub trait Random: fmt::Debug + Send + Sync {
    /// Draws 32 independent, uniform bits, or returns `None` if the source fails. The operation
    /// that needed the bits then also fails and creates nothing.
    fn draw(&mut self) -> Option<u32>;
}
