//! Inputs for sans-I/O RDMA protocols: time and random numbers. `roce` and `ib-cm` have neither a
//! clock nor a source of random numbers: their callers pass both.
//!
//! | module | contents |
//! |---|---|
//! | `time` | [`Time`], nanoseconds since an origin chosen by the caller |
//! | `rng` | [`Rng`], a seeded source for simulators and tests; [`Chance`], a probability |
//! | `random` | [`Random`], a source of unguessable numbers |
//!
//! # Example
//! The same seed gives the same numbers:
//! ```
//! use rdma_sans_io::{Chance, Random, Rng, Time};
//!
//! let (mut a, mut b) = (Rng::new(42), Rng::new(42));
//! assert_eq!(a.draw(), b.draw());
//! assert_eq!(a.chance(Chance::percent(10)), b.chance(Chance::percent(10)));
//! assert_eq!(Time(5) + 10, Time(15));
//! ```

#![no_std]
#![forbid(unsafe_code)]

mod random;
mod rng;
mod time;

pub use random::Random;
pub use rng::{Chance, Rng};
pub use time::Time;

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
