//! `perftest`: a few iterations of every combination of operation, measurement, transport, API,
//! events and shared receive queue. Each must complete, and print a valid bandwidth or latency.
//!
//! perftest itself rejects the following combinations before it opens a device. Each rejection has
//! a case:
//!
//! | operation | rejected |
//! |---|---|
//! | write | UD, `-e`, `--use-srq` |
//! | read, atomic | UC, UD, `--use-srq` |
//! | send | nothing |
//!
//! XRC always uses a shared receive queue, so `--use-srq` changes nothing there.

use std::borrow::Cow;
use std::process::Command;
use std::time::Duration;

use verbs_c_programs::perftest::row;
use verbs_harness::pair::meet;
use verbs_harness::port;
use verbs_harness::process::{self, Finished};
use verbs_harness::runner::{Case, CaseResult, Stop, fail};

use crate::library::{self, Preload};

const SUITE: &str = "perftest";
const PACKAGE: &str = "perftest";
const LIMIT: Duration = Duration::from_secs(60);

/// A program and its parameters.
#[derive(Clone)]
struct Way {
    tool: &'static str,
    iters: u32,
    size: u32,
    /// The flags for both ends.
    flags: Cow<'static, [&'static str]>,
}

const fn way(tool: &'static str, iters: u32, size: u32, flags: &'static [&'static str]) -> Way {
    Way { tool, iters, size, flags: Cow::Borrowed(flags) }
}

const OLD: &str = "--use_old_post_send";
const EVENTS: &str = "-e";
const SRQ: &str = "--use-srq";

/// Additional runs, beyond [`combinations`]: sizes, lists, several queue pairs, both directions.
const WAYS: &[Way] = &[
    way("ib_write_bw", 100, 4096, &["-b"]),
    way("ib_write_bw", 100, 4096, &["-q", "4"]),
    way("ib_write_bw", 100, 4096, &["-l", "4"]),
    way("ib_write_bw", 100, 64, &["-I", "64"]),
    way("ib_write_bw", 20, 1 << 20, &[]),
    way("ib_write_bw", 5000, 4096, &["-t", "16"]),
    way("ib_read_bw", 100, 4096, &["-b", "-o", "4"]),
    way("ib_send_bw", 100, 4096, &["-b"]),
    way("ib_send_bw", 100, 4096, &["--use-srq", "-q", "2"]),
    // This run wraps around the rings and around a 16-bit index.
    way("ib_send_bw", 70_000, 32, &[OLD, "-Q", "1"]),
    way("ib_send_bw", 96, 4096, &["--recv_post_list", "8", "-l", "8"]),
    way("ib_atomic_bw", 100, 8, &["-A", "CMP_AND_SWAP"]),
    way("ib_atomic_bw", 100, 8, &["-A", "CMP_AND_SWAP", OLD]),
    way("ib_atomic_lat", 50, 8, &["-A", "CMP_AND_SWAP", "-e"]),
];

const VERBS: [Verb; 4] = [
    Verb { name: "write", bw: "ib_write_bw", lat: "ib_write_lat", flags: &[] },
    Verb { name: "read", bw: "ib_read_bw", lat: "ib_read_lat", flags: &[] },
    Verb { name: "send", bw: "ib_send_bw", lat: "ib_send_lat", flags: &[] },
    Verb { name: "atomic", bw: "ib_atomic_bw", lat: "ib_atomic_lat", flags: &["-A", "FETCH_AND_ADD"] },
];

const TRANSPORTS: [&str; 4] = ["RC", "UC", "UD", "XRC"];

/// An operation that perftest measures.
struct Verb {
    name: &'static str,
    bw: &'static str,
    lat: &'static str,
    flags: &'static [&'static str],
}

impl Verb {
    /// Returns perftest's message if it rejects this transport or flag for the operation.
    fn refusal(&self, flag: &str) -> Option<&'static str> {
        match (self.name, flag) {
            ("read" | "atomic", "UC") => Some("UC connection not possible in READ/ATOMIC verbs"),
            ("write" | "read" | "atomic", "UD") => Some("UD connection only possible in SEND verb"),
            ("write", EVENTS) => Some("Events feature not available on WRITE verb"),
            ("write" | "read" | "atomic", SRQ) => Some("Using SRQ only avavilible in SEND tests."),
            _ => None,
        }
    }

    /// Returns every combination that perftest supports.
    fn ways(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        for (tool, iters) in [(self.bw, 100), (self.lat, 50)] {
            for transport in TRANSPORTS.into_iter().filter(|transport| self.refusal(transport).is_none()) {
                for choice in 0..8 {
                    let has = |bit: u32, flag| (choice >> bit & 1 == 1).then_some(flag);
                    let chosen: Vec<_> =
                        [has(0, OLD), has(1, EVENTS), has(2, SRQ)].into_iter().flatten().collect();
                    let is_repeated = transport == "XRC" && chosen.contains(&SRQ);
                    if is_repeated || chosen.iter().any(|flag| self.refusal(flag).is_some()) {
                        continue;
                    }
                    let size = match (self.name, transport) {
                        ("atomic", _) => 8,
                        (_, "UD") => 1024,
                        _ if chosen.is_empty() && tool == self.bw => 65536,
                        _ if chosen.is_empty() => 8,
                        _ => 4096,
                    };
                    let flags = [self.flags, &["-c", transport], &chosen].concat();
                    ways.push(Way { tool, iters, size, flags: flags.into() });
                }
            }
        }
        ways
    }

    /// Returns one case per transport or flag that perftest rejects.
    fn refusals(&self) -> impl Iterator<Item = Case> {
        let flags = [["-c", "UC"].as_slice(), &["-c", "UD"], &[EVENTS], &[SRQ]];
        let all = flags.into_iter().filter_map(|flags| Some((flags, self.refusal(flags.last()?)?)));
        let tools = [self.bw, self.lat];
        all.flat_map(move |(flags, message)| tools.map(|tool| (tool, flags, message))).map(
            |(tool, flags, message)| {
                let name = format!("{tool} {} is refused by perftest", flags.join(" "));
                Case::new(SUITE, name, move || is_refused(tool, flags, message))
            },
        )
    }
}

/// Returns the command for a perftest program, set up to shorten its measurement of the processor
/// frequency. Without a C compiler, the measurement takes its usual time.
pub(crate) fn program(tool: &str) -> CaseResult<Command> {
    let mut command = library::program(tool, PACKAGE)?;
    match library::preload(&mut command, Preload::FastClock) {
        Ok(()) | Err(Stop::Skipped(_)) => Ok(command),
        Err(failure) => Err(failure),
    }
}

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    let combinations = VERBS.iter().flat_map(Verb::ways);
    let others = WAYS.iter().map(Way::clone);
    let ways = combinations.chain(others).map(|way| Case::new(SUITE, way.name(), move || way.run()));
    ways.chain(VERBS.iter().flat_map(Verb::refusals)).collect()
}

/// Checks that a program rejects a flag with a message.
fn is_refused(tool: &str, flags: &[&str], message: &str) -> CaseResult {
    let ended = process::run_group(program(tool)?.arg("-F").args(flags), LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {killed:?}")))?;
    let is_told = [&ended.stdout, &ended.stderr].iter().any(|text| text.contains(message));
    if ended.status.code().is_some_and(|code| code > 0) && is_told {
        Ok(())
    } else {
        fail(format_args!("{ended:?}"))
    }
}

impl Way {
    fn name(&self) -> String {
        let Self { tool, size, flags, .. } = self;
        format!("{tool} {} -s {size}", flags.join(" ")).replace("  ", " ")
    }

    fn run(&self) -> CaseResult {
        let port = port::free()?;
        let ends = meet(&mut self.command(port)?, self.command(port)?.arg("127.0.0.1"), port, LIMIT)?;
        self.check(&ends[1])
    }

    fn command(&self, port: u16) -> CaseResult<Command> {
        let mut command = program(self.tool)?;
        // -F ignores the processor's frequency scaling.
        command.args(["-F", "-d", "soft0", "-x", "0", "-p", &port.to_string()]);
        if !self.tool.starts_with("ib_atomic") {
            command.args(["-s", &self.size.to_string()]);
        }
        command.args(["-n", &self.iters.to_string()]).args(&*self.flags);
        Ok(command)
    }

    /// Checks the result row that the client prints.
    fn check(&self, client: &Finished) -> CaseResult {
        let told = |why: String| Stop::Failed(format!("{why}: {client:?}"));
        let row = row(&client.stdout).ok_or_else(|| told("no row of results".to_owned()))?;
        let queue_pairs = if self.flags.contains(&"-q") { row.iterations / u64::from(self.iters) } else { 1 };
        let iterations = u64::from(self.iters) * queue_pairs;
        if (row.bytes, row.iterations) != (u64::from(self.size), iterations) || queue_pairs == 0 {
            return Err(told(format!("{row:?} rather than {} bytes and {iterations} iterations", self.size)));
        }
        // A rate is 0.00 if a busy machine is too slow.
        if row.result >= 0.0 { Ok(()) } else { Err(told(format!("{row:?}"))) }
    }
}
