//! [`program`]: the command for an installed program with either library. Also defines the suite's
//! name.

use std::path::Path;
use std::process::Command;

use verbs_harness::runner::{CaseResult, Stop, skip};
use verbs_harness::tools::Maker;

pub(super) const SUITE: &str = "c_abi";

/// The libraries for both ends, server first. At least one is ours.
pub(super) const PAIRS: [[Maker; 2]; 3] =
    [[Maker::Linked, Maker::Theirs], [Maker::Theirs, Maker::Linked], [Maker::Linked, Maker::Linked]];

/// Returns a command that runs an installed program with the library of `maker`.
///
/// # Errors
/// Skips the case and names the package if the program is not installed.
pub(super) fn program(maker: &Maker, name: &str, package: &str) -> CaseResult<Command> {
    if !Path::new("/usr/bin").join(name).exists() {
        return skip(format_args!("{name} is not installed (package {package})"));
    }
    maker.tool(name)
}

/// Runs a program that does not work with every kernel's rxe. If it fails, runs it again with
/// rdma-core's library at both ends.
///
/// # Errors
/// Returns the failure. If rdma-core's library fails as well, skips the case with both reasons.
pub fn unless_c_fails(ends: [&Maker; 2], run: impl Fn([&Maker; 2]) -> CaseResult) -> CaseResult {
    let ended = run(ends);
    let Err(Stop::Failed(why)) = &ended else { return ended };
    match run([&Maker::Theirs; 2]) {
        Err(Stop::Failed(other)) => {
            skip(format_args!("fails with both ends on C's library, too: {other}; here: {why}"))
        }
        _ => ended,
    }
}
