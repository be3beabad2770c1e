//! `pingpong`: rdma-core's ping-pongs. Two programs exchange messages over a transport and check
//! the received data.
//!
//! Most programs sleep until a completion event, because two polling programs on the two processors
//! of an emulated guest are ten times slower.

use std::process::Command;

use verbs_fixtures::functions::{Port, Setup, device};
use verbs_harness::pair::meet;
use verbs_harness::port;
use verbs_harness::process::Finished;
use verbs_harness::runner::{Case, CaseResult, Stop};
use verbs_harness::tools::{LIMIT, Maker};

const SUITE: &str = "pingpong";

/// A program and its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// The transport, as in `ibv_{transport}_pingpong`.
    transport: &'static str,
    iters: u32,
    size: u32,
    /// Flags for both ends.
    flags: &'static [&'static str],
}

const fn way(transport: &'static str, iters: u32, size: u32, flags: &'static [&'static str]) -> Way {
    Way { transport, iters, size, flags }
}

/// Flags that make the program check data and sleep.
const EC: &[&str] = &["-e", "-c"];

const WAYS: &[Way] = &[
    way("rc", 100, 4096, &["-e"]),
    way("rc", 20, 4096, &[]),
    way("rc", 100, 4096, &["-e", "-N"]),
    // Without -e, because the program treats an event without a completion as an error.
    way("rc", 20, 4096, &["-t"]),
    way("rc", 50, 4096, &["-e", "-c", "-r", "1"]),
    way("rc", 50, 1, EC),
    way("rc", 50, 64, EC),
    way("rc", 50, 1000, EC),
    way("rc", 20, 65536, EC),
    way("rc", 4, 1 << 20, EC),
    way("rc", 20, 10_000, &["-e", "-c", "-m", "256"]),
    way("rc", 20, 10_000, &["-e", "-c", "-m", "512"]),
    way("rc", 20, 10_000, &["-e", "-c", "-m", "1024"]),
    way("rc", 20, 10_000, &["-e", "-c", "-m", "2048"]),
    way("rc", 20, 10_000, &["-e", "-c", "-m", "4096"]),
    // Enough rounds to wrap around the ring several times. Exceeding a 16-bit index would take a
    // minute.
    way("rc", 3000, 32, EC),
    way("uc", 100, 4096, &["-e"]),
    way("uc", 20, 4096, &[]),
    way("uc", 50, 1, EC),
    way("uc", 20, 65536, EC),
    way("uc", 4, 1 << 20, EC),
    way("uc", 20, 10_000, &["-e", "-c", "-m", "256"]),
    way("ud", 100, 1000, &["-e"]),
    way("ud", 20, 1000, &[]),
    way("ud", 50, 1, EC),
    way("ud", 50, 1024, EC),
    way("srq", 20, 4096, &["-e"]),
    way("srq", 5, 4096, &[]),
    way("srq", 20, 4096, &["-e", "-c", "-q", "1"]),
    way("srq", 10, 10_000, &["-e", "-c", "-q", "4", "-m", "256"]),
    way("xsrq", 5, 4096, &["-e"]),
    way("xsrq", 5, 4096, &[]),
    way("xsrq", 5, 10_000, &["-e", "-m", "256"]),
];

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    let mut cases: Vec<Case> = WAYS
        .iter()
        // Larger MTUs do not fit into an Ethernet frame.
        .filter(|way| setup.port == Port::Ib || !way.flags.iter().any(|flag| ["2048", "4096"].contains(flag)))
        .map(|way| Case::new(SUITE, way.name(), move || way.run(setup, THEIRS, [0, 0], setup.usual_gid(0)?)))
        .collect();
    if setup.port == Port::Ib {
        cases.extend(TRANSPORTS.iter().map(|way| {
            Case::new(SUITE, format!("{} with a GRH", way.name()), move || {
                way.run(setup, THEIRS, [0, 0], Some(0))
            })
        }));
        cases.push(Case::new(SUITE, "ud -s 4096", move || {
            way("ud", 50, 4096, EC).run(setup, THEIRS, [0, 0], None)
        }));
    }
    if setup.functions > 1 {
        for [server, client] in [[0, 1], [1, 0]] {
            cases.extend(TRANSPORTS.iter().map(|way| {
                let name = format!("{} from {} to {}", way.name(), device(client), device(server));
                Case::new(SUITE, name, move || way.run(setup, THEIRS, [server, client], None))
            }));
        }
    }
    cases
}

/// rdma-core's program at both ends.
const THEIRS: [Maker; 2] = [Maker::Theirs, Maker::Theirs];

/// Ping-pong runs, one per program.
pub(super) const TRANSPORTS: &[Way] = &[
    way("rc", 20, 9999, EC),
    way("uc", 20, 9999, EC),
    way("ud", 20, 999, EC),
    way("srq", 10, 9999, EC),
    way("xsrq", 5, 9999, &["-e"]),
];

impl Way {
    /// Returns the program and its parameters, as part of a case's name.
    pub(super) fn name(&self) -> String {
        let Self { transport, size, flags, .. } = self;
        format!("{transport} {} -s {size}", flags.join(" ")).replace("  ", " ")
    }

    /// Runs the programs of two makers between two functions. For makers and functions, the
    /// server's comes first; both may be the same.
    pub(super) fn run(
        &self,
        setup: Setup,
        makers: [Maker; 2],
        [server, client]: [u8; 2],
        gid: Option<u32>,
    ) -> CaseResult {
        let port = port::free()?;
        let gid = |function| if gid.is_some() { Ok(gid) } else { setup.usual_gid(function) };
        let mut listens = self.command(&makers[0], server, gid(server)?, port)?;
        let mut connects = self.command(&makers[1], client, gid(client)?, port)?;
        let ends = meet(&mut listens, connects.arg("127.0.0.1"), port, LIMIT)?;
        for (role, end) in ["server", "client"].into_iter().zip(&ends) {
            self.check(end).map_err(|why| Stop::Failed(format!("{role}: {why}: {end:?}")))?;
        }
        Ok(())
    }

    fn command(&self, maker: &Maker, function: u8, gid: Option<u32>, port: u16) -> CaseResult<Command> {
        let mut command = maker.tool(&format!("ibv_{}_pingpong", self.transport))?;
        command.args(["-d", &device(function), "-p", &port.to_string()]);
        command.args(["-n", &self.iters.to_string(), "-s", &self.size.to_string()]).args(self.flags);
        if let Some(index) = gid {
            command.args(["-g", &index.to_string()]);
        }
        Ok(command)
    }

    fn check(&self, end: &Finished) -> Result<(), String> {
        if !end.stderr.is_empty() {
            return Err("it printed errors".to_owned());
        }
        if end.stdout.contains("invalid data") {
            return Err("the received data differs from the sent data".to_owned());
        }
        let ends = if self.transport == "xsrq" {
            vec!["success".to_owned()]
        } else {
            let Self { iters, size, .. } = self;
            vec![
                format!("{} bytes in ", u64::from(*iters) * u64::from(*size) * 2),
                format!("{iters} iters in "),
            ]
        };
        for line in ends {
            if !end.stdout.lines().any(|told| told.starts_with(&line)) {
                return Err(format!("no line begins with {line:?}"));
            }
        }
        Ok(())
    }
}
