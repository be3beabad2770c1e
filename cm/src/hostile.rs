//! An untrusted kernel for the fuzz target `ucma` (`cm/fuzz`) and its seeds. It exists only in
//! builds with `--cfg fuzzing`, outside the API.

pub use crate::channel::{Anomaly, Hostile, Uid};

#[cfg(test)]
mod tests;
