//! The measurements, which run in the guest.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::cmtime;
use crate::process::{Process, free_port, is_listening};
use crate::vm::guest::{DRIVERS, OTHER_DRIVERS};

/// The programs to compare, and the number of runs.
pub(super) struct Plan<'a> {
    /// The folder of our release builds' examples; the tools are in the folder above.
    pub(super) ours: &'a Path,
    /// The folder of our static release builds.
    pub(super) statics: &'a Path,
    /// The folder of the C programs: rdma-core's side of `list_and_open` and `post_recv`, and
    /// [`BESIDE_POLLERS`].
    pub(super) theirs: &'a Path,
    /// The benchmark of provider-soft.
    pub(super) soft: &'a Path,
    /// rdma-core's newest programs, with their libraries.
    pub(super) newest: &'a Path,
    /// The folder of our `libibverbs.so.1`.
    pub(super) libraries: &'a Path,
    pub(super) runs: usize,
    pub(super) rounds: u32,
}

/// Programs of Debian's rdma-core.
const C_DEVINFO: &str = "/usr/bin/ibv_devinfo";
const C_PINGPONG: &str = "/usr/bin/ibv_rc_pingpong";

/// One line of the table.
pub(super) struct Row {
    pub(super) what: String,
    pub(super) ours: f64,
    pub(super) theirs: f64,
    pub(super) unit: &'static str,
    /// The highest acceptable ratio; `None` for a row that is there for comparison.
    pub(super) target: Option<f64>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }

    fn met(&self) -> bool {
        self.target.is_none_or(|target| self.ratio() <= target)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.met() { "" } else { "  MISSED" };
        write!(
            f,
            "| {:<52} | {:>12.0} | {:>12.0} | {:<12} | {:>6.3} | {:>6} |{verdict}",
            self.what,
            self.ours,
            self.theirs,
            self.unit,
            self.ratio(),
            self.target.map_or_else(String::new, |target| format!("≤ {target}"))
        )
    }
}

/// Measures, prints the tables, and returns the number of missed targets.
pub(super) fn run(plan: &Plan<'_>) -> Result<usize> {
    let bin = plan.ours.parent().context("the examples' folder lies in another")?;
    let (devinfo, pingpong) = (bin.join("ibv_devinfo"), bin.join("ibv_rc_pingpong"));
    let list_and_open = |side: &Path| instructions(&side.join("list_and_open"), &[], "main", 1);
    let with_one_driver = list_and_open(plan.theirs)?;
    let others = OtherDrivers::restored()?;
    let mut rows = vec![
        Row {
            what: "ibv_devinfo -v: system calls".into(),
            ours: syscalls(&devinfo)?,
            theirs: syscalls(Path::new(C_DEVINFO))?,
            unit: "calls",
            target: Some(0.1),
        },
        wall_time(plan, &plan.statics.join("ibv_devinfo"), "static build", Some(0.5))?,
        wall_time(plan, &devinfo, "default build", Some(0.5))?,
        // The cost of starting any program, most of the time under emulation.
        wall_time(plan, Path::new("/bin/true"), "true instead of ours", None)?,
        Row {
            what: "list and open: instructions below main".into(),
            ours: list_and_open(plan.ours)?,
            theirs: list_and_open(plan.theirs)?,
            unit: "instructions",
            target: Some(0.25),
        },
        Row {
            what: "the same, rdma-core with one driver".into(),
            ours: list_and_open(plan.ours)?,
            theirs: with_one_driver,
            unit: "instructions",
            target: None,
        },
    ];
    drop(others);
    rows.extend(posted_receives(plan)?);
    rows.push(rounds(plan, &pingpong, &[])?);
    rows.push(rounds(plan, &pingpong, &["-e"])?);
    namespace()?;
    let beside_pollers = beside_pollers(plan)?;
    // Before the interfaces of the next table change.
    let by_address = cmtime::rows(plan)?;
    let beside_rxe = beside_rxe(plan)?;
    let version = Command::new("uname").arg("-r").output()?.stdout;
    let version = String::from_utf8_lossy(&version);
    print_table(
        &format!("Ours against rdma-core's, in one guest, Linux {}", version.trim()),
        "rdma-core",
        &rows,
    );
    print_table("Control calls of C programs beside pollers, there too", "rdma-core", &beside_pollers);
    print_table("Connections by address, there too", "rdma-core", &by_address);
    print_table("soft beside the kernel's rxe, there too", "rxe", &beside_rxe);
    let rows = || rows.iter().chain(&beside_pollers).chain(&by_address).chain(&beside_rxe);
    let (targets, missed) =
        (rows().filter(|row| row.target.is_some()).count(), rows().filter(|row| !row.met()).count());
    println!("\n{} of {targets} targets met", targets - missed);
    Ok(missed)
}

fn print_table(title: &str, theirs: &str, rows: &[Row]) {
    println!("\n{title}");
    println!(
        "| {:<52} | {:>12} | {theirs:>12} | {:<12} | {:>6} | {:>6} |",
        "what", "ours", "unit", "ratio", "target"
    );
    println!("|{:-<54}|{:->14}|{:->14}|{:-<14}|{:->8}|{:->8}|", "", ":", ":", "", ":", ":");
    for row in rows {
        println!("{row}");
    }
}

/// The network namespace of soft devices. rxe binds its UDP port on all addresses of its own.
const NAMESPACE: &str = "soft";

/// Makes the network namespace of soft devices.
fn namespace() -> Result<()> {
    ip(&format!("netns add {NAMESPACE}"))?;
    ip(&format!("-n {NAMESPACE} link set lo up"))
}

fn ip(words: &str) -> Result<()> {
    let status = Command::new("ip").args(words.split(' ')).status().context("cannot run ip")?;
    ensure!(status.success(), "ip {words} failed: {status}");
    Ok(())
}

/// Returns a command of a program that uses rxe0, or another device in [`NAMESPACE`].
pub(super) fn on_device(program: &Path, device: &str) -> Command {
    if device == "rxe0" {
        return Command::new(program);
    }
    let mut command = Command::new("ip");
    command.args(["netns", "exec", NAMESPACE]).arg(program).env("VERBS_SOFT", "auto");
    command
}

/// The C program that measures control calls beside threads that poll without a pause.
pub(super) const BESIDE_POLLERS: &str = "beside_pollers";

/// Measures control calls of C programs beside pollers: the 99th percentile of their times with
/// rdma-core's library and ours on rxe, and with ours on soft, each as the median of interleaved
/// runs.
fn beside_pollers(plan: &Plan<'_>) -> Result<Vec<Row>> {
    const CALLS: [&str; 2] = ["ibv_req_notify_cq", "ibv_destroy_qp"];
    let program = plan.theirs.join(BESIDE_POLLERS);
    let on = |device: &str, is_ours: bool, pollers: &str| -> Result<[f64; 2]> {
        let mut command = on_device(&program, device);
        if is_ours {
            command.env("LD_LIBRARY_PATH", plan.libraries);
        }
        let said = said_by(command.args([device, pollers, "500"]))?;
        let value = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).with_context(|| format!("no {name} in\n{said}"))
        };
        Ok([value(CALLS[0])?, value(CALLS[1])?])
    };
    let mut rows = Vec::new();
    for pollers in ["1", "2", "3"] {
        let values = medians(plan, || {
            let (theirs, ours) = (on("rxe0", false, pollers)?, on("rxe0", true, pollers)?);
            let soft = on("soft0", true, pollers)?;
            Ok([theirs[0], ours[0], soft[0], theirs[1], ours[1], soft[1]])
        })?;
        for (call, values) in CALLS.iter().zip(values.chunks_exact(3)) {
            let row = |which: &str, ours, target| Row {
                what: format!("{call}, {pollers} polling, {which}: p99"),
                ours,
                theirs: values[0],
                unit: "µs",
                target: Some(target),
            };
            rows.extend([row("rxe", values[1], 2.0), row("soft beside rxe", values[2], 5.0)]);
        }
    }
    Ok(rows)
}

/// Measures the same programs on soft and on rxe, interleaved. soft sends through the loopback
/// interface of its [`NAMESPACE`]; rxe0 hands itself packets without a network device. Both have
/// the largest path MTU.
fn beside_rxe(plan: &Plan<'_>) -> Result<Vec<Row>> {
    // rxe's path MTU follows from its interface's.
    ip("link set veth1 mtu 9000")?;
    ip("link set veth0 mtu 9000")?;
    // 2,500 round trips, 1,500 messages.
    let on = |device: &str| {
        let mut command = on_device(plan.soft, device);
        command.args(["--bench", "--runs", "1", "--part", "20"]);
        command
    };
    let values = medians(plan, || {
        let mut values = [0.0; 9];
        for (device, values) in ["rxe0", "soft0"].iter().zip(values.chunks_exact_mut(4)) {
            let table = said_by(on(device).args(["--device", device]))?;
            for (name, value) in [WRITE, SEND, EVENT, STREAM].iter().zip(values) {
                *value = value_of(&table, name).with_context(|| format!("no {name} in\n{table}"))?;
            }
        }
        let table = said_by(on("none").arg(BARE))?;
        values[8] = value_of(&table, BARE).with_context(|| format!("no {BARE} in\n{table}"))?;
        Ok(values)
    })?;
    let [rxe_write, rxe_send, rxe_event, rxe_stream, soft_write, soft_send, soft_event, soft_stream, bare] =
        values;
    let row = |what: &str, ours, theirs, target| Row { what: what.into(), ours, theirs, unit: "µs", target };
    // Gigabytes per second: microseconds for 64 KiB.
    let each = |rate: f64| 65.536 / rate;
    Ok(vec![
        row("RC write, 8 B: round trip", soft_write, rxe_write, Some(1.0)),
        row("RC send, 8 B: round trip", soft_send, rxe_send, Some(1.0)),
        // A guard against regressions: soft wakes two threads for a message, rxe one.
        row("RC send, 8 B: round trip with events", soft_event, rxe_event, Some(5.0)),
        row("bare UDP instead of soft, 8 B: round trip", bare, rxe_write, None),
        row("RC write, 64 KiB: each of a stream", each(soft_stream), each(rxe_stream), Some(1.0)),
    ])
}

/// Names of rows that the benchmark of provider-soft prints.
const WRITE: &str = "RC write, 8 B";
const SEND: &str = "RC send, 8 B";
const EVENT: &str = "RC send, 8 B, events";
const STREAM: &str = "RC write, 64 KiB";
const BARE: &str = "bare UDP, 8 B";

fn said_by(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let status = output.status;
    ensure!(status.success(), "{command:?} failed: {status}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// Returns the median in a line `| name | 1.234 | ...`.
fn value_of(table: &str, name: &str) -> Option<f64> {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    table.lines().map(cells).find(|cells| cells.get(1).is_some_and(|cell| cell == name))?.get(2)?.parse().ok()
}

/// Returns the number of system calls that `PROGRAM -v` makes.
fn syscalls(program: &Path) -> Result<f64> {
    let summary = Path::new("/tmp/strace.txt");
    let status = Command::new("strace")
        .args(["-c", "-f", "-o"])
        .arg(summary)
        .arg(program)
        .arg("-v")
        .stdout(Stdio::null())
        .status()
        .context("cannot run strace")?;
    ensure!(status.success(), "strace of {} failed: {status}", program.display());
    total_calls(&fs::read_to_string(summary)?).context("strace printed no total")
}

/// Returns the total of a `strace -c` table: `100.00    0.001234           3       411        12
/// total`.
fn total_calls(table: &str) -> Option<f64> {
    let total = table.lines().rfind(|line| line.ends_with(" total"))?;
    total.split_whitespace().nth(3)?.parse().ok()
}

/// Returns the median of each of several values, over runs in turn.
pub(super) fn medians<const N: usize>(
    plan: &Plan<'_>,
    mut run: impl FnMut() -> Result<[f64; N]>,
) -> Result<[f64; N]> {
    let runs = (0..plan.runs.max(1)).map(|_| run()).collect::<Result<Vec<_>>>()?;
    Ok(std::array::from_fn(|at| median(&mut runs.iter().map(|run| run[at]).collect::<Vec<_>>())))
}

/// Measures the time of `ibv_devinfo -v`: the median of interleaved runs.
fn wall_time(plan: &Plan<'_>, program: &Path, which: &str, target: Option<f64>) -> Result<Row> {
    let time = |program: &Path| -> Result<f64> {
        let start = Instant::now();
        let status = Command::new(program).arg("-v").stdout(Stdio::null()).status()?;
        ensure!(status.success(), "{} failed: {status}", program.display());
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let [ours, theirs] = medians(plan, || Ok([time(program)?, time(Path::new(C_DEVINFO))?]))?;
    Ok(Row { what: format!("ibv_devinfo -v: wall time, {which}"), ours, theirs, unit: "µs", target })
}

/// Counts the instructions of posting one receive of one element, to a queue pair and to a shared
/// receive queue, with our provider named and hidden.
fn posted_receives(plan: &Plan<'_>) -> Result<Vec<Row>> {
    /// Number of calls of each function in `post_recv.c` and `post_recv.rs`.
    const CALLS: u32 = 256;
    let count = |side: &Path, form: &[&str], function: &str| {
        instructions(&side.join("post_recv"), form, function, CALLS)
    };
    let mut rows = Vec::new();
    for verb in ["post_recv", "post_srq_recv"] {
        let theirs = count(plan.theirs, &[], &format!("bench_{verb}"))?;
        for (form, flags) in [("static", &["--static"][..]), ("erased", &[])] {
            rows.push(Row {
                what: format!("{verb}, 1 SGE, {form}: instructions"),
                ours: count(plan.ours, flags, &format!("bench_{verb}_{form}"))?,
                theirs,
                unit: "instructions",
                target: Some(0.6),
            });
        }
    }
    Ok(rows)
}

/// Restores the drivers of other devices to rdma-core's list, as Debian installs it, until dropped.
struct OtherDrivers(Vec<PathBuf>);

impl OtherDrivers {
    fn restored() -> Result<Self> {
        let mut restored = Self(Vec::new());
        for file in fs::read_dir(OTHER_DRIVERS).with_context(|| format!("cannot list {OTHER_DRIVERS}"))? {
            let file = file?;
            let to = Path::new(DRIVERS).join(file.file_name());
            fs::copy(file.path(), &to).with_context(|| format!("cannot write {}", to.display()))?;
            restored.0.push(to);
        }
        Ok(restored)
    }
}

impl Drop for OtherDrivers {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = fs::remove_file(file);
        }
    }
}

/// Returns the number of instructions that a program executes below a function, in each of `calls`
/// calls.
fn instructions(program: &Path, args: &[&str], function: &str, calls: u32) -> Result<f64> {
    callgrind::count_in(Command::new("valgrind"), program, args, function, calls)
        .map_err(|why| anyhow!("cannot count the instructions of {}: {why}", program.display()))
}

/// Measures the time of the ping-pong's rounds as its client prints it: the median of interleaved
/// runs.
fn rounds(plan: &Plan<'_>, pingpong: &Path, flags: &[&str]) -> Result<Row> {
    let time = |program: &Path| ping_pong(program, plan.rounds, flags);
    let [ours, theirs] = medians(plan, || Ok([time(pingpong)?, time(Path::new(C_PINGPONG))?]))?;
    Ok(Row {
        what: format!(
            "ibv_rc_pingpong{} -n {}: time, median of {}",
            with_space(flags),
            plan.rounds,
            plan.runs
        ),
        ours: ours * 1e6,
        theirs: theirs * 1e6,
        unit: "µs",
        target: Some(1.05),
    })
}

/// Returns the flags, each with a space before it.
fn with_space(flags: &[&str]) -> String {
    flags.iter().map(|flag| format!(" {flag}")).collect()
}

/// The time limit of the start of a server, and of its end behind its client's.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns the seconds that `rounds` rounds between two instances of a program took.
fn ping_pong(program: &Path, rounds: u32, flags: &[&str]) -> Result<f64> {
    let port = free_port()?;
    let (number, rounds) = (port.to_string(), rounds.to_string());
    let arguments: Vec<&str> =
        ["-g", "1", "-p", &number, "-n", &rounds].iter().chain(flags).copied().collect();
    let mut server = Process::start("server", Command::new(program).args(&arguments))?;
    let finished = (|| {
        server.wait_until(Instant::now() + LIMIT, "listen", || is_listening(port))?;
        let client = Command::new(program).args(&arguments).arg("127.0.0.1").output()?;
        let said = String::from_utf8_lossy(&client.stdout).into_owned();
        ensure!(
            client.status.success(),
            "the client, {}, failed: {}\n{said}{}",
            program.display(),
            client.status,
            String::from_utf8_lossy(&client.stderr)
        );
        let status = server.wait(Instant::now() + LIMIT)?;
        ensure!(status.success(), "the server, {}, failed: {status}", program.display());
        Ok(said)
    })();
    // The server often knows more of a failure than the client.
    let said = finished.map_err(|error| anyhow!("{error:#}\nthe server printed:\n{}", server.end()))?;
    seconds(&said).with_context(|| format!("no time in what {} printed:\n{said}", program.display()))
}

/// Returns the time in `1000 iters in 0.02 seconds = 18.27 usec/iter`, from its last number, which
/// has more digits.
fn seconds(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains(" iters in "))?;
    let iters: f64 = line.split_whitespace().next()?.parse().ok()?;
    let usec: f64 = line.split_once("= ")?.1.split_whitespace().next()?.parse().ok()?;
    Some(iters * usec / 1e6)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_found_in_what_the_tools_print() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n------ ----------- ----------- --------- --------- ----------------\n 50.00    0.000617           3       200           read\n------ ----------- ----------- --------- --------- ----------------\n100.00    0.001234           3       411        12 total\n";
        assert_eq!(total_calls(table), Some(411.0));
        assert_eq!(total_calls("nothing"), None);
        let said = "8192000 bytes in 0.04 seconds = 1754.40 Mbit/sec\n1000 iters in 0.04 seconds = 37.36 usec/iter\n";
        assert_eq!(seconds(said), Some(0.03736));
        let table = "|   |  median |\n|---|--------:|\n| RC write, 8 B, x |   1.000 |\n| RC write, 8 B    |  55.693 |\n";
        assert_eq!(value_of(table, WRITE), Some(55.693));
        assert_eq!(value_of(table, SEND), None);
    }
}
