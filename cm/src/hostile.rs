//! A kernel that is not to be trusted, for the fuzz target `ucma` (`cm/fuzz`) and its seeds. It is
//! not part of the API: only builds with `--cfg fuzzing` have it.

pub use crate::channel::{Anomaly, Hostile, Uid};

#[cfg(test)]
mod tests;
