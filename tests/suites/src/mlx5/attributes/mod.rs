//! `differential.attributes`: compares the commands that rdma-core's libmlx5 and this project's
//! library send to the kernel, in one boot. Each difference must be in the [table](table::ROWS).
//! Each row of the table must have a difference.
//!
//! `tests/c/differential/attributes.c` makes every libibverbs call that reaches the kernel, step by
//! step. A [tracer] records its commands with either library.
//!
//! `arguments` compares the results of calls with [odd arguments](verbs_c_programs::arguments) in
//! the same way.
//!
//! The table is part of `connectx-model/README.md`. `BLESS=1 cargo test -p verbs-tests --test units
//! attributes` writes it there.

pub mod table;

use std::process::Command;
use std::time::Duration;

use verbs_c_programs::arguments::{Device, same_on_both_libraries};
use verbs_c_programs::beside_poller::waits_for_no_poller;
use verbs_c_programs::compiled::{Program, compiled};
use verbs_c_programs::record::compare::{Difference, differences, unexplained};
use verbs_c_programs::record::normal::{Step, steps};
use verbs_c_programs::record::tracer;
use verbs_fixtures::functions::{Port, Setup, device};
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{LIMIT, Maker};

const SUITE: &str = "differential";

pub(super) const PROGRAM: Program = Program {
    name: "attributes",
    source: include_str!("../../../../c/differential/attributes.c"),
    options: &["-libverbs"],
};

/// The time limit for a run, which sends hundreds of commands.
const RUN: Duration = Duration::from_secs(120);

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    [
        Case::new(SUITE, "attributes", move || explained(setup)),
        Case::new(SUITE, "attributes of two runs on one library are the same", move || same(setup)),
        // A separate suite, because guests with either type of port run it.
        Case::new("arguments", "the same results on either library", move || {
            same_on_both_libraries(Device::ConnectX, &device(0), setup.port == Port::Roce)
        }),
        Case::new("arguments", "the end of a queue pair waits for no poller", move || {
            waits_for_no_poller(&Maker::Linked, &device(0))
        }),
    ]
    .into_iter()
    .map(|case| case.within(2 * RUN + LIMIT))
    .collect()
}

/// Checks that the table explains each difference and has no superfluous row.
fn explained(setup: Setup) -> CaseResult {
    let all = compare(setup, [Maker::Theirs, Maker::Linked])?;
    let guest = format!("{} {}", series()?, setup.port);
    let (left, idle) = unexplained(&all, table::ROWS, &guest);
    for difference in &left {
        eprintln!("not in the table: {difference}");
    }
    for row in &idle {
        eprintln!(
            "does not occur: {} | {} | {} | {} | {}",
            row.step, row.command, row.field, row.theirs, row.ours
        );
    }
    if left.is_empty() && idle.is_empty() {
        return Ok(());
    }
    fail(format_args!(
        "{} of {} differences are not in the table, {} of its rows do not occur",
        left.len(),
        all.len(),
        idle.len()
    ))
}

fn same(setup: Setup) -> CaseResult {
    let all = compare(setup, [Maker::Linked, Maker::Linked])?;
    match all.first() {
        None => Ok(()),
        Some(first) => fail(format_args!("{} differences, first: {first}", all.len())),
    }
}

fn compare(setup: Setup, makers: [Maker; 2]) -> CaseResult<Vec<Difference>> {
    let [one, other] = makers.map(|maker| run(setup, &maker));
    let [one, other] = [one?, other?];
    Ok(differences((&one.0, &one.1), (&other.0, &other.1)))
}

/// Runs the program on a library. Returns its steps and its output.
fn run(setup: Setup, maker: &Maker) -> CaseResult<(Vec<Step>, String)> {
    let program = compiled(&PROGRAM)?;
    let mut command = Command::new(program);
    let gid = setup.usual_gid(0)?.map_or("-1".to_owned(), |index| index.to_string());
    command.args([device(0), gid]).env("MLX5_SCATTER_TO_CQE", "0").env_remove("LD_LIBRARY_PATH");
    maker.prepare(&mut command)?;
    let recorded = match tracer::run(&mut command, RUN)? {
        Ok(recorded) if recorded.finished.status.success() => recorded,
        Ok(recorded) => {
            let finished = recorded.finished;
            return fail(format_args!("on the library {maker}: {}: {}", finished.status, finished.stderr));
        }
        Err(killed) => {
            let last = killed.stdout.lines().last().unwrap_or_default();
            return fail(format_args!("on the library {maker}: not done after {RUN:?}; last: {last}"));
        }
    };
    Ok((steps(&recorded.calls), recorded.finished.stdout))
}

/// Returns the kernel's series, such as `6.1`.
fn series() -> CaseResult<String> {
    let name = nix::sys::utsname::uname()?;
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let [major, minor] = [numbers.next(), numbers.next()].map(Option::unwrap_or_default);
    Ok(format!("{major}.{minor}"))
}
