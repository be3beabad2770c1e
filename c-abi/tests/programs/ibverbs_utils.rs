//! `ibverbs-utils`: rdma-core's example programs and tools.

use std::process::Command;
use std::time::Duration;

use verbs_harness::cases;
use verbs_harness::pair::meet;
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail};

use crate::library;

const SUITE: &str = "ibverbs-utils";
const PACKAGE: &str = "ibverbs-utils";
const LIMIT: Duration = Duration::from_secs(60);

/// A ping-pong and the flags for both ends.
struct Way {
    /// `ibv_{transport}_pingpong`
    transport: &'static str,
    iters: u32,
    size: u32,
    flags: &'static [&'static str],
}

const fn way(transport: &'static str, iters: u32, size: u32, flags: &'static [&'static str]) -> Way {
    Way { transport, iters, size, flags }
}

const WAYS: &[Way] = &[
    way("rc", 1000, 4096, &["-c"]),
    way("rc", 200, 4096, &["-e", "-c"]),
    way("rc", 500, 4096, &["-N", "-c"]),
    way("rc", 200, 4096, &["-N", "-e", "-c"]),
    way("rc", 200, 4096, &["-t"]),
    way("rc", 200, 1, &["-c"]),
    way("rc", 10, 1 << 20, &["-c", "-m", "4096"]),
    way("rc", 100, 10_000, &["-c", "-m", "256", "-r", "1"]),
    way("rc", 1000, 32, &[]),
    way("uc", 1000, 4096, &["-c"]),
    way("uc", 200, 10_000, &["-e", "-c", "-m", "512"]),
    way("ud", 1000, 1024, &["-c"]),
    way("ud", 200, 1, &["-e", "-c"]),
    way("srq", 500, 4096, &["-c"]),
    way("srq", 200, 10_000, &["-e", "-c", "-q", "4"]),
    way("srq", 200, 64, &["-c", "-q", "1", "-r", "2"]),
    way("xsrq", 200, 4096, &[]),
    way("xsrq", 100, 10_000, &["-e", "-m", "256"]),
];

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        SUITE,
        devices_lists_the_soft_device,
        devinfo_shows_an_active_port_and_its_gid,
        devinfo_lists_names,
        devinfo_of_an_unknown_device_fails,
        asyncwatch_waits_for_events,
    ];
    cases.extend(WAYS.iter().map(|way| Case::new(SUITE, way.name(), || way.run()).within(2 * way.limit())));
    cases
}

fn run(name: &str, args: &[&str]) -> CaseResult<Finished> {
    let mut command = library::program(name, PACKAGE)?;
    process::run_group(command.args(args), LIMIT)?
        .map_err(|killed| Stop::Failed(format!("{name} {args:?} did not end: {killed:?}")))
}

fn devices_lists_the_soft_device() -> CaseResult {
    let ended = run("ibv_devices", &[])?;
    let row = ended.stdout.lines().find_map(|line| line.trim_start().strip_prefix("soft0"));
    let guid = row.and_then(|guid| u64::from_str_radix(guid.trim(), 16).ok());
    match guid {
        Some(1..) if ended.status.success() && ended.stderr.is_empty() => Ok(()),
        _ => fail(format_args!("{ended:?}")),
    }
}

fn devinfo_shows_an_active_port_and_its_gid() -> CaseResult {
    let ended = run("ibv_devinfo", &["-v", "-d", "soft0"])?;
    for line in [
        "hca_id:\tsoft0\n",
        "\ttransport:\t\t\tInfiniBand (0)\n",
        "\tphys_port_cnt:\t\t\t1\n",
        "\tatomic_cap:\t\t\tATOMIC_HCA (1)\n",
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n",
        "\t\t\tmax_mtu:\t\t4096 (5)\n",
        "\t\t\tlink_layer:\t\tEthernet\n",
        "\t\t\tphys_state:\t\tLINK_UP (5)\n",
        ", RoCE v2\n",
    ] {
        if !ended.stdout.contains(line) {
            return fail(format_args!("no {line:?} in {ended:?}"));
        }
    }
    if ended.stdout.contains("invalid") || !ended.status.success() || !ended.stderr.is_empty() {
        return fail(format_args!("{ended:?}"));
    }
    Ok(())
}

fn devinfo_lists_names() -> CaseResult {
    let ended = run("ibv_devinfo", &["-l"])?;
    let is_listed = ended.stdout.lines().any(|line| line.trim() == "soft0");
    if !is_listed || !ended.status.success() { fail(format_args!("{ended:?}")) } else { Ok(()) }
}

fn devinfo_of_an_unknown_device_fails() -> CaseResult {
    let ended = run("ibv_devinfo", &["-d", "nope"])?;
    let told = ended.stderr.contains("IB device 'nope' wasn't found");
    if told && ended.status.code() == Some(255) { Ok(()) } else { fail(format_args!("{ended:?}")) }
}

fn asyncwatch_waits_for_events() -> CaseResult {
    let watch = library::installed("ibv_asyncwatch", PACKAGE)?;
    // Without line buffering, the output would stay in the program's buffer while it waits.
    let mut command = Command::new("/usr/bin/stdbuf");
    library::prepare(&mut command)?;
    let mut running = Running::start(command.arg("-oL").arg(watch).args(["-d", "soft0"]))?;
    let told = running.wait_for_output(LIMIT, |text| text.starts_with("soft0: async event FD "));
    let has_ended = running.has_ended();
    let killed = running.finish(Duration::ZERO)?;
    if told && !has_ended { Ok(()) } else { fail(format_args!("{killed:?}")) }
}

impl Way {
    fn name(&self) -> String {
        let Self { transport, size, flags, .. } = self;
        format!("{transport} {} -s {size}", flags.join(" ")).replace("  ", " ")
    }

    /// Returns the time limit. An end that polls yields its processor when it finds nothing, and on
    /// a busy machine continues only after a time slice.
    fn limit(&self) -> Duration {
        const SLICE: Duration = Duration::from_millis(4);
        LIMIT + self.iters * SLICE
    }

    fn run(&self) -> CaseResult {
        let port = port::free()?;
        let mut client = self.command(port)?;
        let ends = meet(&mut self.command(port)?, client.arg("127.0.0.1"), port, self.limit())?;
        for (role, end) in ["server", "client"].into_iter().zip(&ends) {
            self.check(end).map_err(|why| Stop::Failed(format!("{role}: {why}: {end:?}")))?;
        }
        Ok(())
    }

    fn command(&self, port: u16) -> CaseResult<Command> {
        let mut command = library::program(&format!("ibv_{}_pingpong", self.transport), PACKAGE)?;
        command.args(["-d", "soft0", "-g", "0", "-p", &port.to_string()]);
        command.args(["-n", &self.iters.to_string(), "-s", &self.size.to_string()]).args(self.flags);
        Ok(command)
    }

    fn check(&self, end: &Finished) -> Result<(), String> {
        if !end.stderr.is_empty() {
            return Err("it printed errors".to_owned());
        }
        if end.stdout.contains("invalid data") {
            return Err("the received data differs from the sent data".to_owned());
        }
        let lines = match self.transport {
            "xsrq" => vec!["success".to_owned()],
            _ => vec![
                format!("{} bytes in ", u64::from(self.iters) * u64::from(self.size) * 2),
                format!("{} iters in ", self.iters),
            ],
        };
        match lines.iter().find(|line| !end.stdout.lines().any(|told| told.starts_with(*line))) {
            Some(line) => Err(format!("no line begins with {line:?}")),
            None => Ok(()),
        }
    }
}
