//! `direct`: a program that fills a ConnectX device's queues itself, under rdma-core's libmlx5 and
//! under this project's library. Both runs must print the same.
//!
//! `tests/c/direct/direct.c` queries the device's attributes and the addresses of its objects'
//! queues (`mlx5dv_init_obj`). It posts writes across the end of its send queue, rings the doorbell
//! record and the register, then reads the completions from the queue's memory.

use std::process::Command;

use verbs_c_programs::compiled::{Program, compiled};
use verbs_fixtures::functions::{Setup, device};
use verbs_harness::process;
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{LIMIT, Maker};

use super::differential::same_lines;

const SUITE: &str = "direct";

pub(super) const PROGRAM: Program = Program {
    name: "direct",
    source: concat!(include_str!("../../../c/connectx.h"), include_str!("../../../c/direct/direct.c")),
    options: &["-libverbs", "-lmlx5"],
};

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    vec![
        Case::new(SUITE, "a program fills the queues by itself, the same on both libraries", move || {
            let [theirs, ours] = [Maker::Theirs, Maker::Linked].map(|maker| run(setup, &maker));
            same_lines(&theirs?, &ours?)
        })
        .within(3 * LIMIT),
    ]
}

/// Runs the program on a library. Returns its output.
fn run(setup: Setup, maker: &Maker) -> CaseResult<String> {
    let gid = setup.usual_gid(0)?.map_or("-1".to_owned(), |index| index.to_string());
    let mut command = Command::new(compiled(&PROGRAM)?);
    command.args([device(0), gid]).env_remove("LD_LIBRARY_PATH");
    maker.prepare(&mut command)?;
    match process::run(&mut command, LIMIT)? {
        Ok(ended) if ended.status.success() && ended.stderr.is_empty() => Ok(ended.stdout),
        Ok(ended) | Err(ended) => fail(format_args!(
            "on the library {maker}: {}: {} (it printed {:?})",
            ended.status,
            ended.stderr.trim_end(),
            ended.stdout
        )),
    }
}
