//! Ends a queue pair while another thread polls: `tests/c/differential/beside_poller.c`. The
//! program resets and destroys a queue pair while a poller holds the lock of its completion queue.
//!
//! rdma-core's rxe driver takes no such lock. libmlx5 does, so the program would hang there.

use std::process::Command;

use verbs_harness::runner::{CaseResult, fail};
use verbs_harness::tools::{self, Maker};

use crate::compiled::{Program, compiled};

/// The C program.
pub const PROGRAM: Program = Program {
    name: "beside_poller",
    source: include_str!("../differential/beside_poller.c"),
    options: &["-libverbs"],
};

/// Runs the program on a device.
///
/// # Errors
/// Skips the case if a library is missing; fails if a call blocks or fails.
pub fn waits_for_no_poller(maker: &Maker, device: &str) -> CaseResult {
    let mut command = Command::new(compiled(&PROGRAM)?);
    command.env("VERBS_TEST_DEVICE", device).env_remove("LD_LIBRARY_PATH");
    maker.prepare(&mut command)?;
    let ended = tools::run(&mut command)?;
    if ended.status.success() { Ok(()) } else { fail(format_args!("{maker}: {}", ended.stderr)) }
}
