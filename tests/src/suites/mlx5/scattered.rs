//! `scattered`: this project's API with short data in completions (`MLX5_SCATTER_TO_CQE=1`): cases
//! of `conformance` whose receives, reads and atomics are short enough.

use super::variables::{self, Env};
use crate::runner::Case;

const SUITE: &str = "scattered";

const SCATTERS: Env = &[("MLX5_SCATTER_TO_CQE", "1")];

/// The topics.
const TOPICS: &[&str] = &["atomics", "flushes", "rc", "rc_order", "rc_queues", "srq", "uc"];

/// Returns the cases of the suite.
pub fn cases() -> Vec<Case> {
    variables::conformance(SUITE, TOPICS, SCATTERS)
}
