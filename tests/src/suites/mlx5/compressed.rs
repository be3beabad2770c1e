//! `compressed`: completion queues that the device compresses.
//!
//! `tests/compressed/compressed.c` asks for each form and size of compressed completions
//! (`mlx5dv_create_cq`). It reads the memory of such queues on rdma-core's libmlx5 and on this
//! project's, which must print the same, and polls them on this project's, which expands them: runs
//! of every length, events, a resize and the end of a queue pair with completions inside.
//!
//! Conformance cases about completion queues run again with `MLX5_ENABLE_CQE_COMPRESSION=1`, by
//! which all their queues are compressed, with their provider named.

use std::process::Command;
use std::time::Duration;

use super::differential::{compiled, same_lines};
use super::{Setup, device};
use crate::process;
use crate::runner::{Case, CaseResult, Form, Stop, fail, part};
use crate::tools::{LIMIT, Maker};

const SUITE: &str = "compressed";

const SOURCE: &str = include_str!("../../../compressed/compressed.c");

/// The topics of the conformance cases: those where several requests end at once.
const TOPICS: &[&str] = &["cq", "cq_events", "cq_resize", "flushes", "rc_queues", "srq"];

/// The time for one of them.
const TOPIC: Duration = Duration::from_secs(300);

/// Returns the cases of the suite.
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
    cases.extend(TOPICS.iter().map(|topic| {
        Case::new(SUITE, format_args!("conformance_{topic}"), move || conformance(topic)).within(TOPIC)
    }));
    cases
}

/// Runs the program on a library. Returns its output.
fn run(setup: Setup, maker: &Maker, mode: &str) -> CaseResult<String> {
    let gid = setup.usual_gid(0)?.map_or("-1".to_owned(), |index| index.to_string());
    let mut command = Command::new(compiled(SUITE, SOURCE, &["-libverbs", "-lmlx5"])?);
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

/// Runs the conformance cases of a topic with compressed queues, each a part of this case.
fn conformance(topic: &str) -> CaseResult {
    let mut command = Command::new("/proc/self/exe");
    let form = Form::Static.name();
    command.args(["--form", form, &format!("conformance.{topic}")]).env("MLX5_ENABLE_CQE_COMPRESSION", "1");
    let ended = match process::run_group(&mut command, TOPIC)? {
        Ok(ended) => ended,
        Err(killed) => return fail(format_args!("not done after {TOPIC:?}: {}", killed.stderr)),
    };
    let mut cases = 0;
    for line in ended.stdout.lines() {
        let Some((verdict, rest)) = line.split_once(' ') else { continue };
        let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
        let verdict = match verdict {
            "ok" => Ok(()),
            "FAIL" => Err(Stop::Failed(why.to_owned())),
            "skip" => Err(Stop::Skipped(why.to_owned())),
            _ => continue,
        };
        part(format_args!("{SUITE}.{name}"), verdict);
        cases += 1;
    }
    match ended.status.code() {
        Some(0 | 1) if cases > 0 => Ok(()),
        _ => fail(format_args!("{cases} cases, {}: {}", ended.status, ended.stderr.trim_end())),
    }
}
