//! `rdmacm`: two functions with Ethernet ports, one of them in the network namespace `peer`. Tests
//! IP between them and connections by address with the programs of librdmacm and libfabric.
//!
//! rdma_cm needs almost all features of an Ethernet port: frames for ARP, queue pair 1 for
//! connection messages, and GIDs that follow the addresses of the netdev.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use verbs_fixtures::functions::{Port, Setup, address, in_peer};
use verbs_harness::listening::wait_for_listening_id;
use verbs_harness::pair::{meet, told};
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};
use verbs_harness::tools::{LIMIT, Maker, run};

const SUITE: &str = "rdmacm";

/// Returns the suite's cases. There are none without two Ethernet ports.
pub fn cases(setup: Setup) -> Vec<Case> {
    if setup != (Setup { port: Port::Roce, functions: 2 }) {
        return Vec::new();
    }
    let mut cases = vec![
        Case::new(SUITE, "ping to the peer", || ping(Side::Here, "56")),
        Case::new(SUITE, "ping from the peer", || ping(Side::Peer, "56")),
        Case::new(SUITE, "ping with frames that are full", || ping(Side::Here, "1472")),
        Case::new(SUITE, "ping with packets of many frames", || ping(Side::Here, "20000")),
    ];
    cases.extend(programs(setup));
    cases
}

/// Returns the cases with programs that connect by address.
pub(super) fn programs(setup: Setup) -> Vec<Case> {
    if setup != (Setup { port: Port::Roce, functions: 2 }) {
        return Vec::new();
    }
    let mut cases = vec![Case::new(SUITE, "fi_pingpong served here", fi_pingpong)];
    for (size, count) in [("100", "10"), ("4000", "10"), ("60000", "5")] {
        for server in [Side::Peer, Side::Here] {
            let name = format!("rping -S {size} served {server}");
            cases.push(Case::new(SUITE, name, move || rping(server, size, count)));
        }
    }
    for server in [Side::Peer, Side::Here] {
        let name = |program| format!("{program} served {server}");
        cases.push(Case::new(SUITE, name("ucmatose"), move || cmatose("ucmatose", server, 7471, "2000")));
        cases.push(Case::new(SUITE, name("udaddy"), move || cmatose("udaddy", server, 7174, "500")));
        cases.push(Case::new(SUITE, name("rdma_client"), move || rdma_client(server)));
    }
    cases
}

/// Returns more cases with programs that connect by address.
pub(super) fn more_programs(setup: Setup) -> Vec<Case> {
    if setup != (Setup { port: Port::Roce, functions: 2 }) {
        return Vec::new();
    }
    let sides = [Side::Peer, Side::Here];
    let of_kind = |kind, server| {
        let name = format!("rdma_xclient -c {kind} served {server}");
        Case::new(SUITE, name, move || rdma_xclient(server, kind))
    };
    let mut cases: Vec<_> =
        sides.into_iter().flat_map(|server| ["r", "x"].map(|kind| of_kind(kind, server))).collect();
    cases.extend(
        sides.map(|receiver| Case::new(SUITE, format!("mckey received {receiver}"), move || mckey(receiver))),
    );
    cases.extend(
        sides.map(|server| Case::new(SUITE, format!("cmtime served {server}"), move || cmtime(server))),
    );
    cases
}

/// The network namespace where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The namespace with mlx5_0's netdev.
    Here,
    /// The namespace with mlx5_1's netdev.
    Peer,
}

impl core::fmt::Display for Side {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Here => "here",
            Self::Peer => "by the peer",
        })
    }
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Here => Self::Peer,
            Self::Peer => Self::Here,
        }
    }

    fn function(self) -> u8 {
        u8::from(self == Self::Peer)
    }

    fn address(self) -> String {
        address(self.function())
    }

    /// Returns the command that runs a program in this side's network namespace.
    fn command(self, program: &str, args: &[&str]) -> CaseResult<Command> {
        let path = Path::new("/usr/bin").join(program);
        if !path.exists() {
            return skip(format_args!(
                "{} is not installed (packages rdmacm-utils, busybox-static, libfabric-bin)",
                path.display()
            ));
        }
        let mut command = Command::new(path);
        command.args(args).env("LC_ALL", "C");
        Maker::Theirs.prepare(&mut command)?;
        Ok(if self == Self::Peer { in_peer(&command) } else { command })
    }
}

fn ping(from: Side, size: &str) -> CaseResult {
    const COUNT: &str = "5";
    let to = from.other().address();
    // busybox's default interval is a second; busybox waits only for the last reply.
    let ended =
        run(&mut from.command("busybox", &["ping", "-c", COUNT, "-i", "0.1", "-W", "10", "-s", size, &to])?)?;
    if !ended.status.success() || !ended.stdout.contains(" 0% packet loss") {
        return fail(format_args!("{ended:?}"));
    }
    Ok(())
}

fn rping(server: Side, size: &str, count: &str) -> CaseResult {
    let host = server.address();
    let args = ["-v", "-V", "-S", size, "-C", count, "-a", &host];
    let server_args = [&["-s"], &args[..]].concat();
    let [serves, pings] = connected("rping", server, 7174, &server_args, &[&["-c"], &args[..]].concat())?;
    // The server always reports the client's disconnection as a failure.
    let Ok(pings) = pings else { return fail(told(&pings)) };
    if !pings.status.success() {
        return fail(format_args!("client: {pings:?}; server {}", told(&serves)));
    }
    let (Ok(serves) | Err(serves)) = serves;
    for (what, text) in [("server ping data: ", &serves.stdout), ("ping data: ", &pings.stdout)] {
        let rounds = text.lines().filter(|line| line.starts_with(what)).count();
        if rounds.to_string() != count {
            return fail(format_args!("{rounds} lines begin with {what:?}: {text:?}, {:?}", serves.stderr));
        }
    }
    Ok(())
}

/// Runs both ends of a program whose last line is `return status 0`.
fn cmatose(program: &str, server: Side, port: u16, size: &str) -> CaseResult {
    let host = server.address();
    let shared = ["-C", "10", "-S", size];
    let ends = connected(
        program,
        server,
        port,
        &[&["-b", &*host], &shared[..]].concat(),
        &[&["-s", &*host], &shared[..]].concat(),
    )?;
    all_end_well(&ends, "return status 0")
}

fn rdma_client(server: Side) -> CaseResult {
    let host = server.address();
    let args = ["-s", &*host, "-p", "7471"];
    let path = [("rdma_server", "rdma_server: end 0"), ("rdma_client", "rdma_client: end 0")];
    let mut serves = Running::start(&mut server.command(path[0].0, &args)?)?;
    wait_for_listening_id(7471, &mut serves)?;
    let client = process::run(&mut server.other().command(path[1].0, &args)?, LIMIT)?;
    let serves = serves.finish(LIMIT)?;
    all_end_well(&[serves], path[0].1)?;
    all_end_well(&[client], path[1].1)
}

fn rdma_xclient(server: Side, kind: &str) -> CaseResult {
    let mut serves = Running::start(&mut server.command("rdma_xserver", &["-c", kind])?)?;
    wait_for_listening_id(7471, &mut serves)?;
    let args = ["-c", kind, "-s", &server.address()];
    let client = process::run(&mut server.other().command("rdma_xclient", &args)?, LIMIT)?;
    // These programs print the path from their command line.
    all_end_well(&[serves.finish(LIMIT)?], "/usr/bin/rdma_xserver: end 0")?;
    all_end_well(&[client], "/usr/bin/rdma_xclient: end 0")
}

fn mckey(receiver: Side) -> CaseResult {
    let end = |side: Side| side.command("mckey", &["-m", "239.9.8.5", "-b", &side.address()]);
    let receives = Running::start(&mut end(receiver)?)?;
    let sends = Running::start(end(receiver.other())?.arg("-s"))?;
    all_end_well(&[receives.finish(LIMIT)?, sends.finish(LIMIT)?], "return status 0")
}

/// Runs Debian 12's `cmtime`. The server runs until it is killed.
fn cmtime(server: Side) -> CaseResult {
    let (port, address) = (port::free()?, server.address());
    let args = ["-c", "20", "-p", &port.to_string()];
    let mut serves = Running::start(&mut server.command("cmtime", &args)?)?;
    wait_for_listening_id(port, &mut serves)?;
    let connect = [&args[..], &["-s", &address]].concat();
    let client = process::run(&mut server.other().command("cmtime", &connect)?, LIMIT)?;
    let served = serves.finish(Duration::ZERO)?;
    if client.as_ref().is_ok_and(has_cmtimes_table) {
        return Ok(());
    }
    fail(format_args!("client {}; server {}", told(&client), told(&served)))
}

/// Returns whether Debian 12's `cmtime` succeeded and printed the time of each client step.
/// Progress lines, such as `connecting`, have no number.
pub(crate) fn has_cmtimes_table(client: &Finished) -> bool {
    let has = |step: &str| client.stdout.lines().any(|line| line.starts_with(step) && line.contains('.'));
    client.status.success() && ["resolve addr", "connect", "disconnect", "destroy"].into_iter().all(has)
}

/// Runs libfabric's ping-pong on a reliable connection. Its ends first connect over TCP.
fn fi_pingpong() -> CaseResult {
    const COUNT: &str = "10";
    let port = port::free()?.to_string();
    let shared = ["-c", "-I", COUNT, "-S", "4096", "-e", "msg", "-p", "verbs"];
    let to = Side::Here.address();
    let serve = [&shared[..], &["-d", "mlx5_0", "-B", &port]].concat();
    let connect = [&shared[..], &["-d", "mlx5_1", "-P", &port, &to]].concat();
    let mut serves = Side::Here.command("fi_pingpong", &serve)?;
    let mut connects = Side::Peer.command("fi_pingpong", &connect)?;
    let number = port.parse().map_err(|_| Stop::Failed(format!("{port} is no port")))?;
    for end in meet(&mut serves, &mut connects, number, LIMIT)? {
        // Size, messages sent, messages acknowledged by the other end.
        let row = end.stdout.lines().last().unwrap_or_default();
        if row.split_ascii_whitespace().take(3).ne(["4k", COUNT, "=10"]) {
            return fail(format_args!("{end:?}"));
        }
    }
    Ok(())
}

type Ended = Result<Finished, Finished>;

/// Checks that each program succeeded and printed the line `last_words`.
///
/// # Errors
/// Fails if a program failed or did not print the line.
pub fn all_end_well(ends: &[Ended], last_words: &str) -> CaseResult {
    let is_well = |end: &Ended| {
        end.as_ref()
            .is_ok_and(|end| end.status.success() && end.stdout.lines().any(|line| line == last_words))
    };
    if ends.iter().all(is_well) {
        return Ok(());
    }
    fail(ends.iter().map(told).collect::<Vec<_>>().join("; "))
}

/// Runs a program as the server on the side `server` and as the client on the other side. Returns
/// both results, the server's first.
fn connected(
    program: &str,
    server: Side,
    port: u16,
    serve: &[&str],
    connect: &[&str],
) -> CaseResult<[Ended; 2]> {
    let mut serves = Running::start(&mut server.command(program, serve)?)?;
    wait_for_listening_id(port, &mut serves)?;
    let client = process::run(&mut server.other().command(program, connect)?, LIMIT)?;
    let patience =
        if client.as_ref().is_ok_and(|end| end.status.success()) { LIMIT } else { Duration::from_secs(3) };
    Ok([serves.finish(patience)?, client])
}
