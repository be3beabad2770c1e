//! An untrusted kernel for the fuzz target `ucma` (`cm/fuzz`) and its seeds. It is not part of the
//! API, and exists only in builds with `--cfg fuzzing`.

pub use crate::channel::{Anomaly, Hostile, Uid};

#[cfg(test)]
mod tests;
