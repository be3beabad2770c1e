//! `differential`: one program under rdma-core's libmlx5 and under this project's library, in one
//! boot. Both runs must print the same and leave the same trace in the model.
//!
//! `tests/c/differential/differential.c` uses only verbs. It runs a script of requests, each
//! completed before the next. It prints every completion and a checksum of all data. The model
//! compares the traces: commands, doorbell records, stores into registers, requests, receives and
//! completions. The accepted differences are in a table in `connectx_model`
//! (`trace::differential`).
//!
//! | transports | port | requests |
//! |---|---|---|
//! | `rc`, `uc`, `ud`, `xrc`, `srq` | each | messages, RDMA, atomics, windows |
//! | `raw`, `wq` | Ethernet | frames, received by a raw packet queue pair or a work queue |
//! | `tm` | InfiniBand | operations on a tag list, messages with tags |
//!
//! | difference | reason not to compare |
//! |---|---|
//! | data in completions, unless requested | libmlx5 has it unless `MLX5_SCATTER_TO_CQE=0` |
//! | the GRH flag of such receives | libmlx5 takes the flag from bytes of the data |
//! | flags in send completions | libmlx5 sets "with immediate", which is undefined there |
//! | rejection of a later request in a list | libmlx5 rings with the rejected request |
//! | sizes of queues for sends only | ours has space for an address too |
//! | inline requests without data if `MLX5_POST_SEND_PREFER_BF=0` | libmlx5 uses no BlueFlame |
//! | `MLX5_SHUT_UP_BF=1` | libmlx5 rings one half of a register, which the model reports |
//! | `IP_CSUM_OK` on a work queue's frames | libmlx5 reports it only to queue pairs |
//! | frames shorter than their headers | libmlx5 does not reject all of them |
//! | headers of segmented sends over the queue's end | libmlx5 puts the data 32 bytes too far |
//! | frames longer than the port's limit | the kernel cannot reset the failed send queue |
//! | indexes of tags, hence handles | libmlx5 uses the one free for longest, ours the next one |
//! | `TM_SYNC_REQ` for a tag added without a count | libmlx5 only keeps the counts of additions |
//! | windows of XRC senders, invalidations by UC queue pairs | ours rejects the requests |
//! | vendor errors of tag lists | undefined: libmlx5 returns bits of the time |

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use verbs_c_programs::compiled::{COMPILE, Program, compiled};
use verbs_fixtures::control::Control;
use verbs_fixtures::functions::{Port, Setup, device};
use verbs_harness::process;
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{LIMIT, Maker};

const SUITE: &str = "differential";

pub(super) const PROGRAM: Program = Program {
    name: "differential",
    source: include_str!("../../../c/differential/differential.c"),
    options: &["-libverbs"],
};

/// The time limit for a run, which posts some thousand requests.
const RUN: Duration = Duration::from_secs(120);

const TRANSPORTS: [&str; 5] = ["rc", "uc", "ud", "xrc", "srq"];
/// The transports for frames, which only Ethernet ports have.
pub(super) const FRAMES: [&str; 2] = ["raw", "wq"];
const APIS: [&str; 2] = ["post", "wr"];

/// The number of requests that one seed yields.
pub const REQUESTS: u32 = 500;

/// The number of seeds per transport and interface: 10,000 requests in total.
const SEEDS: u32 = 2;

/// A setting for both libraries: only requests with inline data are written to a register.
const FEW_BLUE_FLAMES: Env = &[("MLX5_POST_SEND_PREFER_BF", "0")];

/// A setting for both libraries: short receives have their data in completions. Without the
/// variable, libmlx5 puts it there and this project does not.
const DATA_IN_COMPLETIONS: Env = &[(SCATTER, "1")];

/// Like [`DATA_IN_COMPLETIONS`], for queue pairs whose requests are all signalled: responses to
/// reads and atomics are in completions too.
const ALL_COMPLETE: Env = &[(SCATTER, "1"), ("DIFFERENTIAL_SIGNALS_ALL", "1")];

/// Completions hold more received data, but no responses: libmlx5 of rdma-core 44 copies an
/// atomic's response from the wrong half of such an entry.
const LONG_ENTRIES: Env = &[(SCATTER, "1"), ("MLX5_CQE_SIZE", "128")];

/// The environment variable for data in completions, which both libraries read.
const SCATTER: &str = "MLX5_SCATTER_TO_CQE";

/// Environment variables for a program.
type Env = &'static [(&'static str, &'static str)];

/// A program's arguments and environment.
#[derive(Clone, Debug)]
struct Script {
    words: String,
    env: Env,
}

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    let mut scripts = Vec::new();
    let mut add = |words: String, env| scripts.push(Script { words, env });
    for transport in TRANSPORTS {
        for api in APIS {
            for script in ["shapes", "wraps", "events", "refusals"] {
                add(format!("{transport} {api} {script}"), &[]);
            }
            // Requests with a wrong key fail only on these transports.
            if ["rc", "xrc", "srq"].contains(&transport) {
                add(format!("{transport} {api} errors"), &[]);
            }
            for seed in 1..=SEEDS {
                add(format!("{transport} {api} random {seed} {REQUESTS}"), &[]);
            }
        }
    }
    for api in APIS {
        for transport in ["rc", "uc", "srq"] {
            add(format!("{transport} {api} windows"), &[]);
        }
        for setting in [FEW_BLUE_FLAMES, DATA_IN_COMPLETIONS, ALL_COMPLETE, LONG_ENTRIES] {
            add(format!("rc {api} random 7 200"), setting);
        }
        for transport in ["rc", "uc", "srq"] {
            add(format!("{transport} {api} shapes"), DATA_IN_COMPLETIONS);
        }
        for script in ["shapes", "wraps"] {
            for transport in ["rc", "xrc"] {
                add(format!("{transport} {api} {script}"), FEW_BLUE_FLAMES);
            }
        }
        add(format!("srq {api} random 7 200"), LONG_ENTRIES);
    }
    match setup.port {
        Port::Roce => frames(&mut add),
        Port::Ib => tags(&mut add),
    }
    let mut cases: Vec<Case> = scripts
        .into_iter()
        .map(|script| {
            let name = script.name();
            Case::new(SUITE, name, move || script.compare(setup, [Maker::Theirs, Maker::Linked]))
                .within(COMPILE + 2 * RUN + 2 * LIMIT)
        })
        .collect();
    let twice = move || {
        let script = Script { words: "rc post random 3 100".to_owned(), env: &[] };
        script.compare(setup, [Maker::Theirs, Maker::Theirs])
    };
    cases.push(Case::new(SUITE, "two runs on one library are the same", twice));
    cases.push(Case::new(SUITE, "runs of two scripts differ", move || differ(setup)));
    cases
}

/// Adds the scripts that send frames.
fn frames(add: &mut impl FnMut(String, Env)) {
    for api in APIS {
        for script in ["shapes", "wraps", "events", "errors", "random 1 200"] {
            for transport in FRAMES {
                add(format!("{transport} {api} {script}"), &[]);
            }
        }
        // Both transports use the same send queues.
        for script in ["refusals", "segments"] {
            add(format!("raw {api} {script}"), &[]);
        }
        add(format!("raw {api} random 7 100"), FEW_BLUE_FLAMES);
    }
}

/// Adds the scripts that use tag lists, which run only on InfiniBand ports.
fn tags(add: &mut impl FnMut(String, Env)) {
    for api in APIS {
        add(format!("tm {api} tags"), &[]);
        add(format!("tm {api} random 1 200"), &[]);
    }
}

impl Script {
    fn name(&self) -> String {
        let settings = self.env.iter().map(|(name, value)| format!(" with {name}={value}"));
        [self.words.clone()].into_iter().chain(settings).collect()
    }

    /// Runs the script on one library, in its own section of the trace. Returns the output.
    fn run(&self, setup: Setup, maker: &Maker, mark: &str) -> CaseResult<String> {
        let program = compiled(&PROGRAM)?;
        let mut command = Command::new(program);
        let gid = setup.usual_gid(0)?.map_or("-1".to_owned(), |index| index.to_string());
        command.args([device(0), gid]).args(self.words.split(' '));
        command.env(SCATTER, "0").env_remove("LD_LIBRARY_PATH");
        maker.prepare(&mut command)?;
        command.envs(self.env.iter().copied());
        Control::tell(&format!("trace mark {mark}"))?;
        let ended = process::run(&mut command, RUN)?;
        Control::tell("trace mark end")?;
        match ended {
            Ok(ended) if ended.status.success() && ended.stderr.is_empty() => Ok(ended.stdout),
            Ok(ended) | Err(ended) => {
                let end: Vec<&str> = ended.stdout.lines().rev().take(5).collect();
                fail(format_args!(
                    "on the library {maker}: {}: {}; its last lines, backwards: {end:?}",
                    ended.status,
                    ended.stderr.trim_end()
                ))
            }
        }
    }

    /// Runs the script on two libraries and compares the runs.
    fn compare(&self, setup: Setup, makers: [Maker; 2]) -> CaseResult {
        warm_up(setup)?;
        let marks = ["first", "second"];
        let [one, other] = [0, 1].map(|place| self.run(setup, &makers[place], marks[place]));
        let difference = Control::tell("trace compare first second")?;
        difference.iter().for_each(|line| eprintln!("{line}"));
        same_lines(&one?, &other?)?;
        if difference.is_empty() {
            Ok(())
        } else {
            fail(format_args!("the traces differ: {}", difference.join("; ")))
        }
    }
}

/// Compares two outputs and reports the first lines that differ.
///
/// # Errors
/// Fails if the outputs differ.
pub fn same_lines(one: &str, other: &str) -> CaseResult {
    if one == other {
        return Ok(());
    }
    let place = one.lines().zip(other.lines()).take_while(|(one, other)| one == other).count();
    let line = |text: &str| text.lines().nth(place).unwrap_or("nothing").to_owned();
    fail(format_args!(
        "line {} is {:?} on the first and {:?} on the second",
        place + 1,
        line(one),
        line(other)
    ))
}

/// Checks that the comparison finds a known difference.
fn differ(setup: Setup) -> CaseResult {
    for (mark, seed) in [("first", 3), ("second", 4)] {
        let script = Script { words: format!("rc post random {seed} 20"), env: &[] };
        script.run(setup, &Maker::Theirs, mark)?;
    }
    if Control::tell("trace compare first second")?.is_empty() {
        return fail("the traces of two scripts are the same");
    }
    Ok(())
}

/// Registers memory once, because newer kernels create an internal queue pair the first time.
fn warm_up(setup: Setup) -> CaseResult {
    let done = Path::new("/tmp/differential.warm");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    if fs::read_to_string(done).is_ok_and(|last| last == boot) {
        return Ok(());
    }
    let script = Script { words: "rc post random 1 1".to_owned(), env: &[] };
    script.run(setup, &Maker::Theirs, "warm-up")?;
    Ok(fs::write(done, boot)?)
}
