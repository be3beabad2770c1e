//! perftest with ends on either library. Each operation must complete. With so few iterations, its
//! results are meaningless.

use std::process::Command;
use std::time::Duration;

use verbs_c_programs::perftest::row;
use verbs_harness::pair::meet;
use verbs_harness::port;
use verbs_harness::process::Finished;
use verbs_harness::runner::{Case, CaseResult, Stop};
use verbs_harness::tools::{DEVICE, Maker, gid_index};

use super::program::{PAIRS, SUITE, program};

/// The time limit for a run. Both ends poll, on the two processors of an emulated guest.
const LIMIT: Duration = Duration::from_secs(60);

/// A program and its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    tool: &'static str,
    iters: u32,
    /// Message size, in bytes.
    size: u32,
    /// Flags for both ends.
    flags: &'static [&'static str],
}

const fn way(tool: &'static str, iters: u32, size: u32, flags: &'static [&'static str]) -> Way {
    Way { tool, iters, size, flags }
}

/// Test runs with ends on either library. `ib_send_lat -e` is not included: on rxe, it occasionally
/// fills its completion queue and stops, with rdma-core's library too.
const WAYS: &[Way] = &[
    way("ib_write_bw", 20, 65536, &[]),
    way("ib_write_lat", 20, 8, &[]),
    way("ib_read_bw", 20, 65536, &[]),
    way("ib_read_lat", 20, 8, &[]),
    way("ib_send_bw", 20, 65536, &[]),
    way("ib_send_lat", 20, 8, &[]),
    way("ib_send_bw", 20, 1024, &["-c", "UD"]),
    way("ib_atomic_bw", 20, 8, &["-A", "FETCH_AND_ADD"]),
    way("ib_atomic_lat", 20, 8, &["-A", "CMP_AND_SWAP"]),
];

/// Test runs with both ends on our library.
const MORE_WAYS: &[Way] = &[
    way("ib_write_bw", 20, 4096, &["-b"]),
    way("ib_write_bw", 20, 4096, &["-c", "UC"]),
    way("ib_write_bw", 20, 64, &["-I", "64"]),
    way("ib_write_bw", 20, 4096, &["-q", "4"]),
    way("ib_write_bw", 20, 4096, &["--use_old_post_send"]),
    // Wraps around the send queue several times.
    way("ib_write_bw", 500, 4096, &["-t", "16"]),
    way("ib_read_bw", 20, 4096, &["-e"]),
    way("ib_send_bw", 20, 4096, &["-e"]),
    way("ib_send_bw", 20, 4096, &["-b"]),
    way("ib_send_bw", 20, 4096, &["-c", "UC"]),
    way("ib_send_bw", 20, 4096, &["--use-srq", "-q", "2"]),
    way("ib_send_lat", 20, 1024, &["-c", "UD"]),
];

/// Test runs, one per operation.
pub(super) const OPERATIONS: &[Way] = &[
    way("ib_write_bw", 20, 65536, &[]),
    way("ib_read_bw", 20, 65536, &[]),
    way("ib_send_bw", 20, 65536, &[]),
    way("ib_atomic_bw", 20, 8, &[]),
];

/// Returns the cases for these programs.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    let between = WAYS.iter().flat_map(|way| PAIRS.into_iter().map(move |ends| (way, ends)));
    let ours = MORE_WAYS.iter().map(|way| (way, [Maker::Linked, Maker::Linked]));
    between.chain(ours).map(|(way, [server, client])| {
        let name = format!("perftest {} {server} serves {client}", way.name());
        Case::new(SUITE, name, move || way.run(&server, &client))
    })
}

impl Way {
    pub(super) fn name(&self) -> String {
        let Self { tool, size, flags, .. } = self;
        format!("{tool} {} -s {size}", flags.join(" ")).replace("  ", " ")
    }

    fn run(&self, server: &Maker, client: &Maker) -> CaseResult {
        let port = port::free()?;
        let gid = gid_index()?.to_string();
        let mut listens = self.command(server, port)?;
        let mut connects = self.command(client, port)?;
        connects.args(["-x", &gid]);
        let ends = meet(listens.args(["-x", &gid]), connects.arg("127.0.0.1"), port, LIMIT)?;
        self.check(&ends)
    }

    /// Returns the command for one end, without the address of its peer.
    pub(super) fn command(&self, maker: &Maker, port: u16) -> CaseResult<Command> {
        let mut command = program(maker, self.tool, "perftest")?;
        // -F: ignore CPU frequency scaling.
        command.args(["-F", "-d", DEVICE, "-p", &port.to_string(), "-n", &self.iters.to_string()]);
        if !self.tool.starts_with("ib_atomic") {
            command.args(["-s", &self.size.to_string()]);
        }
        command.args(self.flags);
        Ok(command)
    }

    /// Checks the row of results that the client prints: message size and number of operations.
    pub(super) fn check(&self, [_, client]: &[Finished; 2]) -> CaseResult {
        let told = |why: String| Stop::Failed(format!("{why}: {client:?}"));
        let row = row(&client.stdout).ok_or_else(|| told("no row of results".to_owned()))?;
        let qps = self.flags.iter().skip_while(|flag| **flag != "-q").nth(1);
        let qps: u64 = qps.and_then(|number| number.parse().ok()).unwrap_or(1);
        let wanted = (u64::from(self.size), u64::from(self.iters) * qps);
        if (row.bytes, row.iterations) == wanted {
            return Ok(());
        }
        Err(told(format!("{} bytes and {} iterations rather than {wanted:?}", row.bytes, row.iterations)))
    }
}
