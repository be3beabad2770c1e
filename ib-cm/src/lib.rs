//! InfiniBand communication management without I/O.

#![forbid(unsafe_code)]

mod random;
pub mod sim;
pub mod time;
pub mod wire;

pub use random::Random;
