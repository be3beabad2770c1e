//! A network in virtual time.

mod rng;

pub use rng::Rng;
