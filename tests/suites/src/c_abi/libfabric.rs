//! libfabric's ping-pong on its verbs provider, with ends on either library. The ends exchange
//! addresses over TCP and check each received message. They disconnect [together]. Otherwise, one
//! of them occasionally hangs or crashes, with either library.

use std::process::Command;

use verbs_c_programs::together::together;
use verbs_harness::pair::meet;
use verbs_harness::port;
use verbs_harness::process::Finished;
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{LIMIT, Maker};

use super::program::{PAIRS, SUITE, program, unless_c_fails};

const PACKAGE: &str = "libfabric-bin";

/// The address of rxe0's netdev, which the endpoints use.
const ADDRESS: &str = "10.9.9.1";

/// The number of messages in each direction.
const COUNT: &str = "10";

/// A kind of endpoint.
#[derive(Clone, Copy)]
struct Way {
    /// The value of `-e`.
    endpoint: &'static str,
    flags: &'static [&'static str],
    /// The message size, in bytes and as the program prints it.
    size: (&'static str, &'static str),
    pairs: &'static [[Maker; 2]],
}

/// Both ends on our library. perftest covers datagrams and reads between the libraries.
const OURS: &[[Maker; 2]] = &[[Maker::Linked, Maker::Linked]];

const WAYS: &[Way] = &[
    // A reliable connection, which librdmacm makes.
    Way { endpoint: "msg", flags: &["-p", "verbs", "-d", "rxe0"], size: ("65536", "64k"), pairs: &PAIRS },
    Way { endpoint: "dgram", flags: &["-p", "verbs", "-d", "rxe0-dgram"], size: ("1024", "1k"), pairs: OURS },
    // Over reliable connections. The receiver reads long messages from the sender's memory.
    Way {
        endpoint: "rdm",
        flags: &["-p", "verbs;ofi_rxm", "-m", "tagged"],
        size: ("65536", "64k"),
        pairs: OURS,
    },
];

/// Returns the cases for this program.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    let all = WAYS.iter().flat_map(|way| way.pairs.iter().map(move |ends| (way, ends.clone())));
    all.map(|(way, [server, client])| {
        let name = format!("libfabric {} {server} serves {client}", way.endpoint);
        let run = move || unless_c_fails([&server, &client], |ends| way.run(ends));
        Case::new(SUITE, name, run).within(3 * LIMIT)
    })
}

impl Way {
    fn run(&self, [server, client]: [&Maker; 2]) -> CaseResult {
        let port = port::free()?;
        let mut listens = self.command(server)?;
        let mut connects = self.command(client)?;
        connects.args(["-P", &port.to_string(), ADDRESS]);
        let _pipe = together([&mut listens, &mut connects])?;
        let ends = meet(listens.args(["-B", &port.to_string()]), &mut connects, port, LIMIT)?;
        ends.iter().try_for_each(|end| self.check(end))
    }

    /// Returns the command for one end, without ports and address.
    fn command(&self, maker: &Maker) -> CaseResult<Command> {
        let mut command = program(maker, "fi_pingpong", PACKAGE)?;
        // -c: check the content of messages.
        command.args(["-c", "-I", COUNT, "-e", self.endpoint, "-S", self.size.0]).args(self.flags);
        // By default ofi_rxm creates a completion queue for 256 peers, which exceeds rxe's limit.
        command.env("FI_UNIVERSE_SIZE", "4");
        Ok(command)
    }

    /// Checks the row of results that an end prints: message size, messages sent, messages
    /// acknowledged.
    fn check(&self, end: &Finished) -> CaseResult {
        let row = end.stdout.lines().last().unwrap_or_default();
        let words: Vec<&str> = row.split_ascii_whitespace().take(3).collect();
        let acknowledged = format!("={COUNT}");
        if words == [self.size.1, COUNT, &acknowledged] { Ok(()) } else { fail(format_args!("{end:?}")) }
    }
}
