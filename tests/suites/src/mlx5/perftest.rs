//! `perftest`: Debian's perftest, with both ends in the guest. With so few operations, the results
//! are meaningless. The cases only check that every operation completes.

use std::process::Command;
use std::time::Duration;

use verbs_c_programs::perftest::row;
use verbs_fixtures::functions::{Port, Setup, address, device, in_peer};
use verbs_harness::listening::wait_for_listening_id;
use verbs_harness::pair::{both, meet};
use verbs_harness::port;
use verbs_harness::process::{Finished, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, skip};
use verbs_harness::tools::Maker;

use super::raw_ethernet;

pub(super) const SUITE: &str = "perftest";

/// The time limit for a run. Both ends poll, which takes up to 14 ms per round on the two
/// processors of an emulated guest.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// A program and its parameters.
#[derive(Clone, Copy, Debug)]
struct Way {
    tool: &'static str,
    iters: u32,
    size: u32,
    /// Flags for both ends.
    flags: &'static [&'static str],
}

const fn way(tool: &'static str, iters: u32, size: u32, flags: &'static [&'static str]) -> Way {
    Way { tool, iters, size, flags }
}

const WAYS: &[Way] = &[
    way("ib_write_bw", 20, 65536, &[]),
    way("ib_write_bw", 20, 2, &[]),
    way("ib_write_bw", 8, 1 << 20, &[]),
    way("ib_write_bw", 20, 4096, &["-b"]),
    way("ib_write_bw", 20, 4096, &["-c", "UC"]),
    way("ib_write_bw", 20, 4096, &["-q", "4"]),
    way("ib_write_bw", 20, 64, &["-I", "64"]),
    way("ib_write_bw", 20, 4096, &["-l", "4"]),
    way("ib_write_bw", 20, 4096, &["--use_old_post_send"]),
    // Wraps around the send queue several times.
    way("ib_write_bw", 2000, 4096, &["-t", "16"]),
    way("ib_write_bw", 20, 4096, &["-c", "XRC"]),
    way("ib_write_lat", 20, 8, &[]),
    way("ib_write_lat", 20, 4096, &[]),
    way("ib_read_bw", 20, 65536, &[]),
    way("ib_read_bw", 8, 1 << 20, &[]),
    way("ib_read_bw", 20, 4096, &["-b", "-o", "4"]),
    way("ib_read_bw", 20, 4096, &["-e"]),
    way("ib_read_bw", 20, 4096, &["-c", "XRC"]),
    way("ib_read_lat", 20, 8, &[]),
    way("ib_send_bw", 20, 65536, &[]),
    way("ib_send_bw", 20, 4096, &["-e"]),
    way("ib_send_bw", 20, 4096, &["-b"]),
    way("ib_send_bw", 20, 4096, &["-c", "UC"]),
    way("ib_send_bw", 20, 1024, &["-c", "UD"]),
    way("ib_send_bw", 20, 4096, &["-c", "XRC"]),
    way("ib_send_bw", 20, 4096, &["--use-srq", "-q", "2"]),
    way("ib_send_lat", 20, 8, &[]),
    way("ib_send_lat", 20, 8, &["-e"]),
    way("ib_send_lat", 20, 1024, &["-c", "UD"]),
    way("ib_atomic_bw", 20, 8, &["-A", "FETCH_AND_ADD"]),
    way("ib_atomic_bw", 20, 8, &["-A", "CMP_AND_SWAP"]),
    way("ib_send_lat", 20, 8, &["-c", "XRC"]),
    way("ib_atomic_bw", 20, 8, &["-A", "FETCH_AND_ADD", "-c", "XRC"]),
    way("ib_atomic_lat", 20, 8, &["-A", "FETCH_AND_ADD"]),
];

/// Test runs, one per kind of operation.
const OPERATIONS: &[Way] = &[
    way("ib_write_bw", 20, 65536, &[]),
    way("ib_read_bw", 20, 65536, &[]),
    way("ib_send_bw", 20, 65536, &[]),
    way("ib_atomic_bw", 20, 8, &[]),
];

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    let one = |name: String, way: &'static Way, ends: [u8; 2], gid: Option<u32>| {
        Case::new(SUITE, name, move || way.run(setup, ends, gid))
    };
    let mut cases: Vec<Case> = WAYS.iter().map(|way| one(way.name(), way, [0, 0], None)).collect();
    if setup.port == Port::Ib {
        let with_grh = |way: &'static Way| one(format!("{} with a GRH", way.name()), way, [0, 0], Some(0));
        cases.extend(OPERATIONS.iter().map(with_grh));
    }
    if setup.functions > 1 {
        let between = |way: &'static Way| {
            one(format!("{} from {} to {}", way.name(), device(0), device(1)), way, [1, 0], None)
        };
        cases.extend(OPERATIONS.iter().map(between));
        if setup.port == Port::Roce {
            cases.extend(
                OPERATIONS
                    .iter()
                    .map(|way| Case::new(SUITE, format!("{} -R", way.name()), move || way.run_by_address())),
            );
        }
    }
    cases.extend(raw_ethernet::cases(setup));
    cases
}

impl Way {
    fn name(&self) -> String {
        let Self { tool, size, flags, .. } = self;
        format!("{tool} {} -s {size}", flags.join(" ")).replace("  ", " ")
    }

    /// Runs the test between two functions, the server's and the client's, which may be the same.
    fn run(&self, setup: Setup, [server, client]: [u8; 2], gid: Option<u32>) -> CaseResult {
        let port = port::free()?;
        let gid = |function| if gid.is_some() { Ok(gid) } else { setup.usual_gid(function) };
        let with_gid = |mut command: Command, function| -> CaseResult<_> {
            if let Some(index) = gid(function)? {
                command.args(["-x", &index.to_string()]);
            }
            Ok(command)
        };
        let mut listens = with_gid(self.command(server, port)?, server)?;
        let mut connects = with_gid(self.command(client, port)?, client)?;
        self.check(meet(&mut listens, connects.arg("127.0.0.1"), port, LIMIT)?)
    }

    /// Runs the test with an rdma_cm connection. The client runs in this namespace, the server in
    /// the namespace of the second function's netdev.
    fn run_by_address(&self) -> CaseResult {
        let port = port::free()?;
        let mut server = Running::start(in_peer(&self.command(1, port)?).arg("-R"))?;
        wait_for_listening_id(port, &mut server)?;
        let client = Running::start(self.command(0, port)?.args(["-R", &address(1)]))?;
        self.check(both(server, client, LIMIT)?)
    }

    fn command(&self, function: u8, port: u16) -> CaseResult<Command> {
        let Ok(mut command) = Maker::Theirs.tool(self.tool) else {
            return skip("perftest is not installed (package perftest)");
        };
        // -F: ignore CPU frequency scaling.
        command.args(["-F", "-d", &device(function), "-p", &port.to_string()]);
        if !self.tool.starts_with("ib_atomic") {
            command.args(["-s", &self.size.to_string()]);
        }
        command.args(["-n", &self.iters.to_string()]).args(self.flags);
        Ok(command)
    }

    /// Checks that the client prints a row of results with the right size and number of iterations.
    fn check(&self, [_, client]: [Finished; 2]) -> CaseResult {
        let Self { iters, size, .. } = self;
        // The results are not checked, because perftest cannot calibrate its clock in an emulated
        // guest.
        let told = |why: String| Stop::Failed(format!("{why}: {client:?}"));
        let row = row(&client.stdout).ok_or_else(|| told("no row of results".to_owned()))?;
        if (row.bytes, row.iterations) != (u64::from(*size), u64::from(*iters)) && !self.flags.contains(&"-q")
        {
            return Err(told(format!("{row:?} rather than {size} bytes and {iters} iterations")));
        }
        Ok(())
    }
}
