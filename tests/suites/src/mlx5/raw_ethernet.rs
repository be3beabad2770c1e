//! perftest's programs for raw frames, between two functions with Ethernet ports. Part of the suite
//! `perftest`.
//!
//! The ends do not synchronise. The client sends its frames at once. Frames are lost if the server
//! lacks a rule or a receive. Both ends would then wait forever. The client therefore starts only
//! once the server's receive queue in the model holds all receives, which perftest posts last.

use core::ops::Range;
use std::process::Command;

use verbs_c_programs::perftest::row;
use verbs_fixtures::control::Control;
use verbs_fixtures::functions::{Port, Setup, device, read_sysfs};
use verbs_harness::pair::{both, told};
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};
use verbs_harness::tools::Maker;

use super::perftest::{LIMIT, SUITE};

/// A program and its parameters.
#[derive(Clone, Copy, Debug)]
struct Way {
    tool: &'static str,
    iters: u32,
    size: u32,
    headers: Headers,
    /// Flags for both ends.
    flags: &'static [&'static str],
}

/// The frames' headers. The server's rule matches all of these fields except the Ethernet
/// addresses.
#[derive(Clone, Copy, Debug)]
struct Headers {
    name: &'static str,
    flags: &'static [&'static str],
}

/// Ethernet headers whose type field holds the frame's length.
const ETHERNET: Headers = Headers { name: "Ethernet", flags: &[] };
const TYPED: Headers = Headers { name: "Ethernet of type 0x88b5", flags: &["--ethertype=0x88b5"] };
const IPV4: Headers = Headers { name: "IPv4", flags: &["-J", "10.9.9.2", "-j", "10.9.9.1"] };
const UDP: Headers =
    Headers { name: "UDP", flags: &["-J", "10.9.9.2", "-j", "10.9.9.1", "-K", "5000", "-k", "5001"] };
const TCP: Headers = Headers {
    name: "TCP",
    flags: &["-J", "10.9.9.2", "-j", "10.9.9.1", "-K", "5000", "-k", "5001", "--tcp"],
};
const IPV6: Headers = Headers { name: "IPv6", flags: &["--raw_ipv6", "-J", "fd00::2", "-j", "fd00::1"] };
const UDP_OVER_IPV6: Headers = Headers {
    name: "UDP over IPv6",
    flags: &["--raw_ipv6", "-J", "fd00::2", "-j", "fd00::1", "-K", "5000", "-k", "5001"],
};

const fn way(
    tool: &'static str,
    iters: u32,
    size: u32,
    headers: Headers,
    flags: &'static [&'static str],
) -> Way {
    Way { tool, iters, size, headers, flags }
}

const BANDWIDTH: &str = "raw_ethernet_bw";
const LATENCY: &str = "raw_ethernet_lat";
/// The program that creates rules, which has a single process.
const RULES: &str = "raw_ethernet_fs_rate";

const WAYS: &[Way] = &[
    way(BANDWIDTH, 20, 64, ETHERNET, &[]),
    way(BANDWIDTH, 20, 1000, ETHERNET, &[]),
    way(BANDWIDTH, 20, 1500, ETHERNET, &[]),
    way(BANDWIDTH, 20, 64, ETHERNET, &["-I", "64"]),
    way(BANDWIDTH, 20, 512, ETHERNET, &["-I", "512"]),
    way(BANDWIDTH, 20, 512, ETHERNET, &["-l", "4"]),
    way(BANDWIDTH, 20, 512, ETHERNET, &["-b"]),
    way(BANDWIDTH, 20, 512, ETHERNET, &["-q", "2"]),
    way(BANDWIDTH, 400, 512, ETHERNET, &["-t", "16"]),
    way(BANDWIDTH, 20, 512, ETHERNET, &["--vlan_en"]),
    way(BANDWIDTH, 20, 512, TYPED, &[]),
    way(BANDWIDTH, 20, 512, IPV4, &[]),
    way(BANDWIDTH, 20, 512, IPV4, &["-T", "32"]),
    way(BANDWIDTH, 20, 512, IPV6, &[]),
    way(BANDWIDTH, 20, 512, UDP, &[]),
    way(BANDWIDTH, 20, 512, UDP, &["--flows", "4"]),
    way(BANDWIDTH, 20, 512, UDP, &["-I", "512", "-b"]),
    way(BANDWIDTH, 20, 512, TCP, &[]),
    way(BANDWIDTH, 20, 512, UDP_OVER_IPV6, &[]),
    way(LATENCY, 20, 64, ETHERNET, &[]),
    way(LATENCY, 20, 1500, ETHERNET, &[]),
    way(LATENCY, 20, 64, ETHERNET, &["-I", "0"]),
    way(LATENCY, 20, 512, IPV4, &[]),
    way(LATENCY, 20, 512, UDP, &[]),
    way(LATENCY, 20, 512, TCP, &[]),
    way(RULES, 50, 512, UDP, &[]),
    way(RULES, 50, 512, TCP, &[]),
];

/// Returns the cases. There are none without two Ethernet ports.
pub(super) fn cases(setup: Setup) -> Vec<Case> {
    if setup != (Setup { port: Port::Roce, functions: 2 }) {
        return Vec::new();
    }
    WAYS.iter().map(|way| Case::new(SUITE, way.name(), move || way.run())).collect()
}

/// The numbers of the functions that the server and the client use.
const SERVER: u8 = 1;
const CLIENT: u8 = 0;

impl Way {
    fn name(&self) -> String {
        let Self { tool, size, headers, flags, .. } = self;
        format!("{tool} {} {} -s {size}", headers.name, flags.join(" ")).replace("  ", " ")
    }

    fn run(&self) -> CaseResult {
        if self.tool == RULES {
            return self.create_rules();
        }
        let earlier = ReceiveQueue::all_of(SERVER)?;
        let mut serves = Running::start(self.command(SERVER)?.arg("--server"))?;
        self.wait_until_it_listens(&earlier, &mut serves)?;
        let connects = Running::start(self.command(CLIENT)?.arg("--client"))?;
        let [serves, connects] = both(serves, connects, LIMIT)?;
        self.check(&connects)?;
        self.check(&serves)
    }

    /// Returns the number of queue pairs that each end has.
    fn queue_pairs(&self) -> usize {
        let given = self.flags.iter().skip_while(|flag| **flag != "-q").nth(1);
        given.and_then(|number| number.parse().ok()).unwrap_or(1)
    }

    /// Waits until the server has posted all receives to its queues. `earlier` lists the queues
    /// that existed before the server started.
    fn wait_until_it_listens(&self, earlier: &[ReceiveQueue], server: &mut Running) -> CaseResult {
        let posted_all = |queue: &ReceiveQueue| {
            let is_new = earlier.iter().all(|other| other.number != queue.number);
            is_new && queue.is_ready && queue.posted >= self.iters
        };
        let mut problem = None;
        let listens = process::wait_until(LIMIT, || match ReceiveQueue::all_of(SERVER) {
            Ok(queues) => {
                queues.iter().filter(|queue| posted_all(queue)).count() == self.queue_pairs()
                    || server.has_ended()
            }
            Err(why) => {
                problem = Some(why);
                true
            }
        });
        match problem {
            Some(why) => Err(why),
            // If the server has ended, its output gives the reason.
            None if listens => Ok(()),
            None => fail(format_args!("the server has not posted {} receives within {LIMIT:?}", self.iters)),
        }
    }

    fn command(&self, function: u8) -> CaseResult<Command> {
        let Ok(mut command) = Maker::Theirs.tool(self.tool) else {
            return skip("perftest is not installed (package perftest)");
        };
        let (own, peer) = (mac(function)?, mac(1 - function)?);
        command.args(["-F", "-d", &device(function), "-B", &own, "-E", &peer]);
        command.args(["-n", &self.iters.to_string()]);
        if self.tool != RULES {
            command.args(["-s", &self.size.to_string(), "-r", &self.iters.to_string()]);
        }
        command.args(self.headers.flags).args(self.flags);
        Ok(command)
    }

    /// Runs the program that creates a rule for each port in a range.
    fn create_rules(&self) -> CaseResult {
        match process::run(self.command(SERVER)?.arg("--server"), LIMIT)? {
            Ok(ended) if ended.status.success() => self.check(&ended),
            ended => fail(told(&ended)),
        }
    }

    /// Checks that an end prints a row of results.
    fn check(&self, end: &Finished) -> CaseResult {
        let Self { tool, iters, size, .. } = *self;
        let failed = |why: &str| Err(Stop::Failed(format!("{why}: {end:?}")));
        let expected = (u64::from(size), u64::from(iters));
        if tool == RULES {
            let rules = end.stdout.lines().skip_while(|line| !line.starts_with(" #flows")).nth(1);
            let rules = rules.and_then(|row| row.split_ascii_whitespace().next());
            return if rules == Some(&iters.to_string()) { Ok(()) } else { failed("not all rules") };
        }
        match row(&end.stdout) {
            Some(row) if (row.bytes, row.iterations) == expected || self.queue_pairs() > 1 => Ok(()),
            Some(_) => failed("another row of results"),
            None => failed("no row of results"),
        }
    }
}

/// A function's receive queue, as the model lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// The queue's number, in hexadecimal.
    pub number: String,
    /// Whether the queue is ready to receive.
    pub is_ready: bool,
    /// The total number of receives posted, modulo 2^16.
    pub posted: u32,
}

impl ReceiveQueue {
    /// Returns all receive queues of a function, including its netdev's queues.
    fn all_of(function: u8) -> CaseResult<Vec<Self>> {
        Ok(Control::tell("list")?.iter().filter_map(|line| Self::read(line, function)).collect())
    }

    /// Parses a line such as `rq function=1 rqn=0x2012 state=Ready posted=20 used=3`.
    pub fn read(line: &str, function: u8) -> Option<Self> {
        let rest = line.strip_prefix(&format!("rq function={function} "))?;
        let value = |name: &str| rest.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        Some(Self {
            number: value("rqn")?.to_owned(),
            is_ready: value("state")? == "Ready",
            posted: value("posted")?.parse().ok()?,
        })
    }
}

/// Returns a function's Ethernet address, even if its netdev is in another namespace.
fn mac(function: u8) -> CaseResult<String> {
    let gid = read_sysfs(function, "ports/1/gids/0")?;
    mac_of_gid(&gid).ok_or_else(|| Stop::Failed(format!("no Ethernet address is in the GID {gid}")))
}

/// Returns the Ethernet address in a link-local GID's interface identifier, which has `fffe` in the
/// middle and bit 1 of the first byte inverted.
pub fn mac_of_gid(gid: &str) -> Option<String> {
    const INTERFACE: Range<usize> = 16..32;
    let digits = gid.replace(':', "");
    let interface = digits.starts_with("fe80").then(|| digits.get(INTERFACE))??;
    let byte = |place: usize| u8::from_str_radix(interface.get(2 * place..2 * place + 2)?, 16).ok();
    let (middle, bytes) =
        ([byte(3)?, byte(4)?], [byte(0)? ^ 2, byte(1)?, byte(2)?, byte(5)?, byte(6)?, byte(7)?]);
    let text = bytes.map(|byte| format!("{byte:02x}")).join(":");
    (middle == [0xff, 0xfe]).then_some(text)
}
