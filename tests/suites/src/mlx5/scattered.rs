//! `scattered`: this project's API with short data in completions (`MLX5_SCATTER_TO_CQE=1`). It
//! runs the `conformance` topics with short receives, reads and atomics.

use verbs_harness::runner::{Case, skip};

use super::variables::{self, Env};

const SUITE: &str = "scattered";

const SCATTERS: Env = &[("MLX5_SCATTER_TO_CQE", "1")];

/// The `conformance` topics to run.
const TOPICS: &[&str] = &["atomics", "flushes", "rc", "rc_order", "rc_queues", "srq", "uc"];

/// Cases that do not apply: they expect the device to check a receive's key, but with data in
/// completions, polling checks it.
pub const OTHERWISE: &[&str] = &["scattered.srq.a_receive_with_a_key_of_another_domain_fails"];

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    let judged = |case: Case| {
        if !OTHERWISE.contains(&&*case.name) {
            return case;
        }
        let run =
            || skip("polling compares the key of a receive with data in its completion, not the device");
        Case { run: Box::new(run), ..case }
    };
    variables::conformance(SUITE, TOPICS, SCATTERS).into_iter().map(judged).collect()
}
