//! The measurements in the guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use super::cmtime;
use super::table::{self, ROUND_TRIP, Row, number};
use crate::process::{Process, free_port, is_listening, output, pair};

/// The programs to compare, with the numbers of runs and rounds.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Plan {
    /// The folder with the examples of our release builds. The tools are in its parent folder.
    pub(super) ours: PathBuf,
    /// The folder with our static release builds.
    pub(super) statics: PathBuf,
    /// The folder with the C programs: rdma-core's side of `list_and_open` and `post_recv`, and
    /// `beside_pollers`.
    pub(super) theirs: PathBuf,
    /// The path of provider-soft's benchmark.
    pub(super) soft: PathBuf,
    /// The folder with rdma-core's newest programs and their libraries.
    pub(super) newest: PathBuf,
    /// The folder with our `libibverbs.so.1`.
    pub(super) libraries: PathBuf,
    pub(super) runs: usize,
    pub(super) rounds: u32,
}

/// Programs from Debian's rdma-core.
const C_DEVINFO: &str = "/usr/bin/ibv_devinfo";
const C_PINGPONG: &str = "/usr/bin/ibv_rc_pingpong";

/// The limit for rows shown only for comparison.
const NONE: f64 = f64::INFINITY;

/// The time limit for a server and its client.
pub(super) const LIMIT: Duration = Duration::from_secs(600);

/// Measures, prints the tables, and returns the number of missed targets.
pub(super) fn run(plan: &Plan) -> Result<usize> {
    let (devinfo, pingpong) =
        (plan.ours.with_file_name("ibv_devinfo"), plan.ours.with_file_name("ibv_rc_pingpong"));
    let list_and_open = |side: &Path| instructions(&side.join("list_and_open"), &[], "main", 1);
    let with_one_driver = list_and_open(&plan.theirs)?;
    // Restores the list of drivers, because guests keep other devices' drivers elsewhere.
    output(Command::new("sh").args(["-c", "cp /etc/libibverbs.others/* /etc/libibverbs.d"]))?;
    let [ours, theirs] = [list_and_open(&plan.ours)?, list_and_open(&plan.theirs)?];
    let mut rows = vec![
        Row::new(
            "ibv_devinfo -v: system calls",
            [syscalls(&devinfo)?, syscalls(Path::new(C_DEVINFO))?],
            "calls",
            0.1,
        ),
        wall_time(plan, &plan.statics.join("ibv_devinfo"), "static build", 0.5)?,
        wall_time(plan, &devinfo, "default build", 0.5)?,
        // The cost of starting any program, which under emulation is most of the time.
        wall_time(plan, Path::new("/bin/true"), "true instead of ours", NONE)?,
        Row::new("list and open: instructions below main", [ours, theirs], "instructions", 0.25),
        Row::new("the same, rdma-core with one driver", [ours, with_one_driver], "instructions", NONE),
    ];
    rows.extend(posted_receives(plan)?);
    rows.push(rounds(plan, &pingpong, &[])?);
    rows.push(rounds(plan, &pingpong, &["-e"])?);
    ip(&format!("netns add {NAMESPACE}"))?;
    ip(&format!("-n {NAMESPACE} link set lo up"))?;
    let beside_pollers = beside_pollers(plan)?;
    // Measured before the interfaces change for the next table.
    let by_address = cmtime::rows(plan)?;
    let beside_rxe = beside_rxe(plan)?;
    let version = output(Command::new("uname").arg("-r"))?;
    let title = format!("Ours against rdma-core's, in one guest, Linux {}", version.trim());
    Ok(table::print(&[
        (title, "rdma-core", rows),
        ("Control calls of C programs beside pollers, there too".to_owned(), "rdma-core", beside_pollers),
        ("Connections by address, there too".to_owned(), "rdma-core", by_address),
        ("soft beside the kernel's rxe, there too".to_owned(), "rxe", beside_rxe),
    ]))
}

impl Plan {
    /// Returns the medians of several values over interleaved runs.
    pub(super) fn medians<const N: usize>(
        &self,
        mut run: impl FnMut() -> Result<[f64; N]>,
    ) -> Result<[f64; N]> {
        let runs = (0..self.runs.max(1)).map(|_| run()).collect::<Result<Vec<_>>>()?;
        Ok(std::array::from_fn(|at| {
            let mut values: Vec<f64> = runs.iter().map(|run| run[at]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        }))
    }
}

/// The network namespace for soft devices. In its own namespace, rxe binds its UDP port on all
/// addresses.
const NAMESPACE: &str = "soft";

fn ip(words: &str) -> Result<()> {
    output(Command::new("ip").args(words.split(' '))).map(drop)
}

/// Returns a command for a program that uses rxe0, or another device in [`NAMESPACE`].
pub(super) fn on_device(program: &Path, device: &str) -> Command {
    if device == "rxe0" {
        return Command::new(program);
    }
    let mut command = Command::new("ip");
    command.args(["netns", "exec", NAMESPACE]).arg(program).env("VERBS_SOFT", "auto");
    command
}

/// Measures control calls in C programs while other threads poll: the 99th percentile of the calls'
/// times with rdma-core's library and ours on rxe, and with ours on soft, each as the median of
/// interleaved runs.
fn beside_pollers(plan: &Plan) -> Result<Vec<Row>> {
    const CALLS: [&str; 2] = ["ibv_req_notify_cq", "ibv_destroy_qp"];
    let on = |device: &str, is_ours: bool, pollers: &str| -> Result<[f64; 2]> {
        let mut command = on_device(&plan.theirs.join("beside_pollers"), device);
        if is_ours {
            command.env("LD_LIBRARY_PATH", &plan.libraries);
        }
        let said = output(command.args([device, pollers, "500"]))?;
        let value = |name| number(&said, &format!(r"{name} ([\d.]+)"));
        Ok([value(CALLS[0])?, value(CALLS[1])?])
    };
    let mut rows = Vec::new();
    for pollers in ["1", "2", "3"] {
        let values = plan.medians(|| {
            let (theirs, ours) = (on("rxe0", false, pollers)?, on("rxe0", true, pollers)?);
            let soft = on("soft0", true, pollers)?;
            Ok([theirs[0], ours[0], soft[0], theirs[1], ours[1], soft[1]])
        })?;
        for (call, values) in CALLS.iter().zip(values.chunks_exact(3)) {
            for (which, ours, target) in [("rxe", values[1], 2.0), ("soft beside rxe", values[2], 5.0)] {
                let what = format!("{call}, {pollers} polling, {which}: p99");
                rows.push(Row::new(what, [ours, values[0]], "µs", target));
            }
        }
    }
    Ok(rows)
}

/// Measures the same programs on soft and on rxe, interleaved. soft sends through the loopback
/// interface in its [`NAMESPACE`]. rxe0 hands packets to itself without a network device. Both have
/// the largest path MTU.
fn beside_rxe(plan: &Plan) -> Result<Vec<Row>> {
    /// The names of rows from provider-soft's benchmark.
    const NAMES: [&str; 4] = ["RC write, 8 B", "RC send, 8 B", "RC send, 8 B, events", "RC write, 64 KiB"];
    const BARE: &str = "bare UDP, 8 B";
    // rxe's path MTU follows from its interface's MTU.
    ip("link set veth1 mtu 9000")?;
    ip("link set veth0 mtu 9000")?;
    // 2,500 round trips, 1,500 messages.
    let on = |device: &str, words: &[&str]| {
        let mut command = on_device(&plan.soft, device);
        output(command.args(["--bench", "--runs", "1", "--part", "20"]).args(words))
    };
    let value = |table: &str, name: &str| number(table, &median_of(name));
    let [bare, values @ ..] = plan.medians(|| {
        let mut values = [0.0; 9];
        values[0] = value(&on("none", &[BARE])?, BARE)?;
        for (device, values) in ["rxe0", "soft0"].iter().zip(values[1..].chunks_exact_mut(4)) {
            let table = on(device, &["--device", device])?;
            for (name, place) in NAMES.iter().zip(values) {
                *place = value(&table, name)?;
            }
        }
        Ok(values)
    })?;
    let [rxe_write, rxe_send, rxe_event, rxe_stream, soft_write, soft_send, soft_event, soft_stream] = values;
    // Converts gigabytes per second to microseconds per 64 KiB.
    let streams = [soft_stream, rxe_stream].map(|rate| 65.536 / rate);
    Ok(vec![
        Row::new("RC write, 8 B: round trip", [soft_write, rxe_write], "µs", 1.0),
        Row::new("RC send, 8 B: round trip", [soft_send, rxe_send], "µs", 1.0),
        // Guards against regressions: soft wakes two threads per message, and rxe wakes one.
        Row::new("RC send, 8 B: round trip with events", [soft_event, rxe_event], "µs", 5.0),
        Row::new("bare UDP instead of soft, 8 B: round trip", [bare, rxe_write], "µs", NONE),
        Row::new("RC write, 64 KiB: each of a stream", streams, "µs", 1.0),
    ])
}

/// Returns the pattern for the median in a line `| name | 1.234 | ...`.
fn median_of(name: &str) -> String {
    format!(r"\| {name} +\| +([\d.]+) ")
}

/// Matches the total in `strace -c`'s table, `100.00 0.001234 3 411 12 total`.
const ALL_CALLS: &str = r"100\.00 +\S+ +\S+ +(\d+).* total";

/// Returns the number of system calls that `PROGRAM -v` makes.
fn syscalls(program: &Path) -> Result<f64> {
    let summary = "/tmp/strace.txt";
    output(Command::new("strace").args(["-c", "-f", "-o", summary]).arg(program).arg("-v"))?;
    number(&fs::read_to_string(summary)?, ALL_CALLS)
}

/// Measures the run time of `ibv_devinfo -v`: the median of interleaved runs.
fn wall_time(plan: &Plan, program: &Path, which: &str, target: f64) -> Result<Row> {
    let time = |program: &Path| -> Result<f64> {
        let start = Instant::now();
        let status = Command::new(program).arg("-v").stdout(Stdio::null()).status()?;
        ensure!(status.success(), "{} failed: {status}", program.display());
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let times = plan.medians(|| Ok([time(program)?, time(Path::new(C_DEVINFO))?]))?;
    Ok(Row::new(format!("ibv_devinfo -v: wall time, {which}"), times, "µs", target))
}

/// Counts the instructions of posting one receive with one element, to a queue pair and to a shared
/// receive queue, with our provider's type named and erased.
fn posted_receives(plan: &Plan) -> Result<Vec<Row>> {
    /// The number of calls to each function in `post_recv.c` and `post_recv.rs`.
    const CALLS: u32 = 256;
    let count = |side: &Path, form: &[&str], function: &str| {
        instructions(&side.join("post_recv"), form, function, CALLS)
    };
    let mut rows = Vec::new();
    for verb in ["post_recv", "post_srq_recv"] {
        let theirs = count(&plan.theirs, &[], &format!("bench_{verb}"))?;
        for (form, flags) in [("static", &["--static"][..]), ("erased", &[])] {
            let ours = count(&plan.ours, flags, &format!("bench_{verb}_{form}"))?;
            let what = format!("{verb}, 1 SGE, {form}: instructions");
            rows.push(Row::new(what, [ours, theirs], "instructions", 0.6));
        }
    }
    Ok(rows)
}

/// Returns the number of instructions that a program executes in a function and its callees, per
/// call. The program must make `calls` calls.
fn instructions(program: &Path, args: &[&str], function: &str, calls: u32) -> Result<f64> {
    callgrind::count_in(Command::new("valgrind"), program, args, function, calls)
        .map_err(|why| anyhow!("cannot count the instructions of {}: {why}", program.display()))
}

/// Measures the time of the ping-pong's rounds, which its client prints: the median of interleaved
/// runs.
fn rounds(plan: &Plan, pingpong: &Path, flags: &[&str]) -> Result<Row> {
    let time = |program: &Path| {
        let port = free_port()?;
        let (socket, rounds) = (port.to_string(), plan.rounds.to_string());
        let end = |address: &[&str]| {
            let mut command = Command::new(program);
            command.args(["-g", "1", "-p", &socket, "-n", &rounds]).args(flags).args(address);
            command
        };
        let server = Process::start("server", &mut end(&[]))?;
        let client = || Process::start("client", &mut end(&["127.0.0.1"]));
        number(&pair(server, |_| is_listening(port), client, LIMIT)?, ROUND_TRIP)
    };
    let times = plan.medians(|| Ok([time(pingpong)?, time(Path::new(C_PINGPONG))?]))?;
    let flags: String = flags.iter().map(|flag| format!(" {flag}")).collect();
    let what = format!("ibv_rc_pingpong{flags} -n {}: a round trip, median of {}", plan.rounds, plan.runs);
    Ok(Row::new(what, times, "µs", 1.05))
}

#[test]
fn the_numbers_are_found_in_what_the_tools_print() {
    let found = |text, pattern: &str| number(text, pattern).ok();
    let calls = " 50.00    0.000617           3       200           read\n\
                 100.00    0.001234           3       411        12 total\n";
    assert_eq!(found(calls, ALL_CALLS), Some(411.0));
    let time =
        "8192000 bytes in 0.04 seconds = 1754.40 Mbit/sec\n1000 iters in 0.04 seconds = 37.36 usec/iter\n";
    assert_eq!(found(time, ROUND_TRIP), Some(37.36));
    let table = "|   |  median |\n| RC write, 8 B, x |   1.000 | 2 |\n| RC write, 8 B    |  55.693 | 60 |\n";
    assert_eq!(found(table, &median_of("RC write, 8 B")), Some(55.693));
    assert_eq!(found(table, &median_of("RC send, 8 B")), None);
    let first_table =
        "full connect         2233    2233582          0\nfull connect          405     405306\n";
    assert_eq!(found(first_table, cmtime::FULL_CONNECT), Some(2_233_582.0));
}
