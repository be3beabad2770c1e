//! `compressed`: completion queues that the device compresses.
//!
//! `tests/c/compressed/compressed.c` requests each form and size of compressed completions
//! (`mlx5dv_create_cq`). It reads the memory of such queues under rdma-core's libmlx5 and under
//! this project's library. Both runs must print the same. Under this project's library, which
//! expands the completions, it also polls the queues: runs of every length, events, a resize, and a
//! queue pair that ends while its completions are in the queue.
//!
//! Conformance cases about completion queues run again with `MLX5_ENABLE_CQE_COMPRESSION=1`, which
//! compresses all of their queues.

use std::process::Command;

use verbs_c_programs::compiled::{Program, compiled};
use verbs_fixtures::functions::{Setup, device};
use verbs_harness::process;
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{LIMIT, Maker};

use super::differential::same_lines;
use super::variables::{self, Env};

const SUITE: &str = "compressed";

pub(super) const PROGRAM: Program = Program {
    name: "compressed",
    source: concat!(
        include_str!("../../../c/connectx.h"),
        include_str!("../../../c/compressed/compressed.c")
    ),
    options: &["-libverbs", "-lmlx5"],
};

/// The topics whose conformance cases have several requests completing at once.
const TOPICS: &[&str] = &["cq", "cq_events", "cq_resize", "flushes", "rc_queues", "srq"];

/// The variable that compresses all completion queues.
const COMPRESSES: Env = &[("MLX5_ENABLE_CQE_COMPRESSION", "1")];

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    let of_both = move || {
        let [theirs, ours] = [Maker::Theirs, Maker::Linked].map(|maker| run(setup, &maker, "raw"));
        let (theirs, ours) = (theirs?, ours?);
        if !theirs.contains("receives: 0x2c of 17") || !theirs.contains("sends: 0x0c of 17") {
            return fail(format_args!("the device compressed nothing: {theirs:?}"));
        }
        same_lines(&theirs, &ours)
    };
    let mut cases = vec![
        Case::new(SUITE, "the_memory_of_a_queue_has_the_same_blocks_on_both_libraries", of_both)
            .within(3 * LIMIT),
        Case::new(SUITE, "polling_expands_blocks_of_every_form_and_length", move || {
            run(setup, &Maker::Linked, "polled").map(drop)
        })
        .within(2 * LIMIT),
    ];
    cases.extend(variables::conformance(&format!("{SUITE}.conformance"), TOPICS, COMPRESSES));
    cases
}

/// Runs the program on a library. Returns its output.
fn run(setup: Setup, maker: &Maker, mode: &str) -> CaseResult<String> {
    let gid = setup.usual_gid(0)?.map_or("-1".to_owned(), |index| index.to_string());
    let mut command = Command::new(compiled(&PROGRAM)?);
    command.args([device(0), gid, mode.to_owned()]).env_remove("LD_LIBRARY_PATH");
    maker.prepare(&mut command)?;
    match process::run(&mut command, LIMIT)? {
        Ok(ended) if ended.status.success() && ended.stderr.is_empty() => Ok(ended.stdout),
        Ok(ended) | Err(ended) => fail(format_args!(
            "{mode} on the library {maker}: {}: {} (it printed {:?})",
            ended.status,
            ended.stderr.trim_end(),
            ended.stdout
        )),
    }
}
