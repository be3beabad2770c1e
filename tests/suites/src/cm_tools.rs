//! `cm_tools`: `rping`, `rdma_server` and `rdma_client`, `rdma_xserver` and `rdma_xclient`, from us
//! and from rdma-core, at both ends of connections through the kernel's connection manager: on rxe,
//! and between two ConnectX functions ([`Sides`]). [`cm_flags`](crate::cm_flags) lists the flags.

use std::process::Command;
use std::time::Duration;

use rdmacm::{ConnParam, EventChannel, EventKind, PortSpace};
use verbs::QpType;
use verbs_c_programs::compare::same;
use verbs_fixtures::fabric::{PATIENCE, rxe_is_before};
use verbs_harness::listening::wait_for_listening_id;
use verbs_harness::pair::told;
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};
use verbs_harness::tools::{LIMIT, Maker, run};

use crate::cm_sides::{Family, Sides};

const SUITE: &str = "cm_tools";

/// The server's IPv4 address.
const V4: &str = "10.9.9.1";

/// The makers of both ends, server first. At least one is ours.
static PAIRS: [[Maker; 2]; 3] =
    [[Maker::Ours, Maker::Ours], [Maker::Ours, Maker::Theirs], [Maker::Theirs, Maker::Ours]];

/// Ways to run `rping`: a name, the server's flags and the client's flags. `CLIENT` stands for the
/// client's address.
const RPINGS: &[(&str, &[&str], &[&str])] = &[
    ("-V", &["-V"], &["-V"]),
    ("-S 23", &["-S", "23"], &["-S", "23"]),
    ("-S 65535", &["-S", "65535"], &["-S", "65535", "-V"]),
    ("-q", &["-q"], &["-q", "-V"]),
    ("-q of the server", &["-q"], &["-V"]),
    ("-q of the client", &[], &["-q", "-V"]),
    ("-I", &[], &["-I", "CLIENT", "-V"]),
    ("-d", &["-d"], &["-d"]),
];

/// Returns the suite's cases on rxe.
pub fn cases() -> Vec<Case> {
    let others: [(&str, Run); 6] = [
        ("rping ends as theirs where no server listens", without_a_server),
        ("rping ends as theirs with a size that the server has no room for", no_room),
        ("rdma_xclient -c x is refused for lack of XRC as theirs is", xclient_without_xrc),
        ("rdma_xserver -c x is refused for lack of XRC as theirs is", xserver_without_xrc),
        ("rdma_xclient by IPv6 is rejected by rdma_xserver as theirs is", xclient_without_an_address),
        ("rdma_server and rping report a port that is taken as theirs do", port_taken),
    ];
    let others = others.map(|(name, run)| Case::new(SUITE, name, run));
    pairs(SUITE, &PAIRS, USUAL).chain(ways()).chain(others).collect()
}

/// Returns the suite's cases between two ConnectX functions.
pub fn of_two_functions() -> Vec<Case> {
    const XRC: &[(&str, Ends)] = &[("rdma_xclient -c x", rdma_xclient_by_xrc)];
    pairs(SUITE, &PAIRS, USUAL).chain(pairs(SUITE, &PAIRS, XRC)).chain(ways()).collect()
}

/// Returns the cases with rarer flags, as part of the given suite.
pub(super) fn with_more_flags(suite: &'static str) -> impl Iterator<Item = Case> {
    pairs(suite, &PAIRS[1..], MORE)
}

/// A case that gets the makers of both ends.
type Ends = fn([&Maker; 2]) -> CaseResult;

const USUAL: &[(&str, Ends)] = &[
    ("rping IPv6", |ends| rping(ends, Family::V6, [&[], &["-V"]])),
    ("rping -P", rping_persistent),
    ("rdma_client", |ends| rdma_client(ends, Family::V4)),
    ("rdma_xclient -c r", rdma_xclient),
];

const MORE: &[(&str, Ends)] = &[
    ("rping IPv6 of the link", |ends| rping(ends, Family::Link, [&[], &["-V"]])),
    ("rdma_client IPv6", |ends| rdma_client(ends, Family::V6)),
    ("rdma_client IPv6 of the link", |ends| rdma_client(ends, Family::Link)),
    ("rdma_xclient -c r IPv6 to rdma_server", |ends| rdma_xclient_by_ipv6(ends, Family::V6)),
    ("rdma_xclient -c r IPv6 of the link to rdma_server", |ends| rdma_xclient_by_ipv6(ends, Family::Link)),
];

fn pairs(
    suite: &'static str,
    pairs: &'static [[Maker; 2]],
    cases: &'static [(&str, Ends)],
) -> impl Iterator<Item = Case> {
    pairs.iter().flat_map(move |ends| {
        cases.iter().map(move |&(name, run)| {
            let [server, client] = ends.clone();
            let title = format!("{name} {server} serves {client}");
            Case::new(suite, title, move || run([&server, &client]))
        })
    })
}

/// Returns the cases for each way to run `rping`.
fn ways() -> impl Iterator<Item = Case> {
    PAIRS.iter().flat_map(|ends| {
        RPINGS.iter().map(move |&(way, serve, connect)| {
            let [server, client] = ends.clone();
            let title = format!("rping {way} {server} serves {client}");
            Case::new(SUITE, title, move || rping([&server, &client], Family::V4, [serve, connect]))
        })
    })
}

/// The function that runs a case.
type Run = fn() -> CaseResult;

/// The result of a program: `Ok` if it ended by itself, `Err` if it was killed.
type Ended = Result<Finished, Finished>;

/// Runs both ends and returns the results of the server and the client.
fn connected(
    names: [&str; 2],
    [server, client]: [&Maker; 2],
    sides: &Sides,
    port: u16,
    [serve, connect]: [&[&str]; 2],
) -> CaseResult<[Ended; 2]> {
    let mut serves = Running::start(server.tool(names[0])?.args(serve))?;
    wait_for_listening_id(port, &mut serves)?;
    let client = process::run(&mut client_command(client, names[1], sides, connect)?, LIMIT)?;
    let patience =
        if client.as_ref().is_ok_and(|end| end.status.success()) { LIMIT } else { Duration::from_secs(3) };
    Ok([serves.finish(patience)?, client])
}

/// Returns a client's command, which runs on the client's side.
fn client_command(maker: &Maker, name: &str, sides: &Sides, args: &[&str]) -> CaseResult<Command> {
    let mut command = maker.tool(name)?;
    command.args(args);
    Ok(sides.at_client(command))
}

/// Fails with the output of both ends.
fn both_told(what: &str, [server, client]: &[Ended; 2]) -> CaseResult {
    fail(format_args!("{what}: server {}; client {}", told(server), told(client)))
}

/// Exchanges ten pings, which both sides print.
fn rping(ends: [&Maker; 2], family: Family, [serve, connect]: [&[&str]; 2]) -> CaseResult {
    const COUNT: &str = "10";
    let sides = Sides::for_family(family)?;
    let port = port::free()?;
    let number = port.to_string();
    let shared = ["-v", "-C", COUNT, "-p", &number];
    let connect: Vec<_> =
        connect.iter().map(|flag| if *flag == "CLIENT" { &*sides.client } else { flag }).collect();
    let serve = [&["-s", "-a", &sides.server], &shared[..], serve].concat();
    let connect = [&["-c", "-a", &sides.to], &shared[..], &connect].concat();
    let ended = connected(["rping", "rping"], ends, &sides, port, [&serve, &connect])?;
    let [Ok(server), Ok(client)] = &ended else { return both_told("an end did not end", &ended) };
    if !server.status.success() || !client.status.success() {
        return both_told("an end failed", &ended);
    }
    let size = serve.iter().skip_while(|flag| **flag != "-S").nth(1);
    let size: usize = size.and_then(|size| size.parse().ok()).unwrap_or(64);
    for (what, text) in [("server ping data: ", &server.stdout), ("ping data: ", &client.stdout)] {
        let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(what)).collect();
        let is_right = |(number, line): (usize, &&str)| {
            line.starts_with(&format!("rdma-ping-{number}: ")) && line.len() == size - 1
        };
        if lines.len() != 10 || !lines.iter().enumerate().all(is_right) {
            return both_told(what, &ended);
        }
    }
    let told = "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n";
    if server.stderr != told {
        return both_told("the server's last words", &ended);
    }
    // The C client may exit before it sees the event.
    if !["", "client DISCONNECT EVENT...\n"].contains(&client.stderr.as_str()) {
        return both_told("the client's last words", &ended);
    }
    Ok(())
}

/// Connects three clients, then one more. With our server, the three run at the same time.
/// rdma-core 44's server (Debian 12) confuses concurrent requests.
fn rping_persistent([server, client]: [&Maker; 2]) -> CaseResult {
    let sides = Sides::for_family(Family::V4)?;
    let port = port::free()?;
    let number = port.to_string();
    let mut serves = Running::start(server.tool("rping")?.args(["-s", "-P", "-a", V4, "-p", &number]))?;
    wait_for_listening_id(port, &mut serves)?;
    let start = || -> CaseResult<_> {
        let args = ["-c", "-a", V4, "-p", &number, "-C", "20", "-V"];
        Ok(Running::start(&mut client_command(client, "rping", &sides, &args)?)?)
    };
    let counts: &[usize] = if server == &Maker::Ours { &[3, 1] } else { &[1; 4] };
    for &count in counts {
        let clients = (0..count).map(|_| start()).collect::<CaseResult<Vec<_>>>()?;
        for client in clients {
            let ended = client.finish(LIMIT)?;
            if !ended.as_ref().is_ok_and(|end| end.status.success()) {
                let (Ok(serves) | Err(serves)) = serves.finish(Duration::ZERO)?;
                return fail(format_args!("client {}; server {:?}", told(&ended), serves.stderr));
            }
        }
    }
    match serves.finish(Duration::ZERO)? {
        Err(_) => Ok(()),
        Ok(ended) => fail(format_args!("the server ended: {ended:?}")),
    }
}

/// Runs `rdma_server` and `rdma_client`. The C programs move their queue pair to the error state as
/// soon as their work is done. rxe may then still owe the peer an acknowledgement
/// ([`Repetitions`]).
fn rdma_client(ends: [&Maker; 2], family: Family) -> CaseResult {
    let sides = Sides::for_family(family)?;
    ends_well(["rdma_server", "rdma_client"], ends, &sides, &["-s", &sides.server], &["-s", &sides.to])
}

fn rdma_xclient(ends: [&Maker; 2]) -> CaseResult {
    let sides = Sides::for_family(Family::V4)?;
    ends_well(["rdma_xserver", "rdma_xclient"], ends, &sides, &["-c", "r"], &["-c", "r", "-s", V4])
}

/// `rdma_xserver` has no flag for an address and listens on 0.0.0.0, so `rdma_server` receives the
/// message instead. Its reply finds no receive, so `rdma_server` may wait forever.
fn rdma_xclient_by_ipv6([server, client]: [&Maker; 2], family: Family) -> CaseResult {
    let sides = Sides::for_family(family)?;
    let port = port::free()?;
    let number = port.to_string();
    let mut serves = server.tool("rdma_server")?;
    let mut serves = Running::start(serves.args(["-s", &sides.server, "-p", &number]))?;
    wait_for_listening_id(port, &mut serves)?;
    let args = ["-c", "r", "-s", &sides.to, "-p", &number];
    let ended = process::run(&mut client_command(client, "rdma_xclient", &sides, &args)?, LIMIT)?;
    let (Ok(serves) | Err(serves)) = serves.finish(Duration::ZERO)?;
    match ended {
        Ok(Finished { status, stderr, .. }) if status.success() && stderr.is_empty() => Ok(()),
        ended => fail(format_args!("client {}; server {serves:?}", told(&ended))),
    }
}

/// Connects two XRC queue pairs. The server's queue pair has a shared receive queue.
fn rdma_xclient_by_xrc(ends: [&Maker; 2]) -> CaseResult {
    let sides = Sides::for_family(Family::V4)?;
    ends_well(["rdma_xserver", "rdma_xclient"], ends, &sides, &["-c", "x"], &["-c", "x", "-s", V4])
}

/// Checks that both programs end as expected.
///
/// The C server disconnects as soon as it has received its message. Its queue pair is then in the
/// error state, where rxe drops any outstanding acknowledgement. The client's send never completes.
fn ends_well(
    names: [&str; 2],
    ends: [&Maker; 2],
    sides: &Sides,
    serve: &[&str],
    connect: &[&str],
) -> CaseResult {
    let port = port::free()?;
    let number = port.to_string();
    let repetitions = Repetitions::from_now();
    let (serve, connect) = ([serve, &["-p", &number]].concat(), [connect, &["-p", &number]].concat());
    let ended = connected(names, ends, sides, port, [&serve, &connect])?;
    if ended.iter().any(Result::is_err) {
        repetitions.judge()?;
    }
    let is_well = |(end, name): (&Ended, &str)| {
        let words = [format!("{name}: start"), format!("{name}: end 0")];
        // `ip netns exec` starts a program by its path, which some programs print.
        let said = |end: &Finished| end.stdout.lines().map(plain).eq(&words);
        end.as_ref().is_ok_and(|end| end.status.success() && said(end) && end.stderr.is_empty())
    };
    if ended.iter().zip(names).all(is_well) {
        return Ok(());
    }
    match both_told("an end failed", &ended) {
        Err(Stop::Failed(why)) if ends[0] == &Maker::Theirs && why.contains("has ended the connection") => {
            skip("C's server disconnected before its device had acknowledged the message")
        }
        failed => failed,
    }
}

/// Returns a line without the program's directory at its start.
fn plain(line: &str) -> &str {
    line.rsplit_once('/').map_or(line, |(_, line)| line)
}

/// Counts the requests that rxe repeats after a given moment.
///
/// rxe drops any outstanding acknowledgement when a queue pair goes to ERR (`do_complete`). The
/// peer's queue pair then repeats its last request forever, because rxe does not honour librdmacm's
/// limit of 7 retries (seen on 7.2). A program that waits for the completion hangs, with either
/// library. Our tools do not load librdmacm, so the cases cannot make them disconnect
/// [together](verbs_c_programs::together).
struct Repetitions {
    before: u64,
}

impl Repetitions {
    fn from_now() -> Self {
        Self { before: Self::count() }
    }

    /// Returns the number of requests that rxe0's completer has repeated; 0 on kernels without the
    /// counter.
    fn count() -> u64 {
        let counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err";
        std::fs::read_to_string(counter).ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Decides whether rxe has made programs hang.
    ///
    /// # Errors
    /// Skips the case if rxe has repeated more requests than lost packets explain.
    fn judge(&self) -> CaseResult {
        // Linux 6.1, with its timeout of 2.1 s, repeats 28 times in a minute; newer kernels repeat
        // more often.
        const ENDLESS: u64 = 20;
        let repeated = Self::count().saturating_sub(self.before);
        if repeated > ENDLESS {
            return skip(format_args!(
                "rxe dropped the last acknowledgement, and repeated the request {repeated} times"
            ));
        }
        Ok(())
    }
}

fn without_a_server() -> CaseResult {
    let port = port::free()?.to_string();
    let one = |maker: Maker| run(maker.tool("rping")?.args(["-c", "-a", V4, "-p", &port]));
    let (theirs, ours) = (one(Maker::Theirs)?, one(Maker::Ours)?);
    let event = "cma event RDMA_CM_EVENT_REJECTED, error 8\n";
    // In C, the main thread continues until another thread exits the process.
    assert!(theirs.stderr.starts_with(event), "{theirs:?}");
    assert!(ours.stderr.starts_with(event) && ours.stderr.contains("no program listens"), "{ours:?}");
    assert_eq!((ours.status, &ours.stdout), (theirs.status, &theirs.stdout));
    Ok(())
}

fn no_room() -> CaseResult {
    let sides = Sides::for_family(Family::V4)?;
    let mut seen = Vec::new();
    for maker in [Maker::Theirs, Maker::Ours] {
        let port = port::free()?;
        let number = port.to_string();
        let serve = ["-s", "-a", V4, "-p", &number];
        let connect = ["-c", "-a", V4, "-p", &number, "-S", "100", "-C", "1"];
        let ends = [&maker, &Maker::Ours];
        let [server, _] = connected(["rping", "rping"], ends, &sides, port, [&serve, &connect])?;
        let Ok(mut server) = server else { return fail(format_args!("{maker}: server {}", told(&server))) };
        // The event thread prints this line, unless the program has ended by then.
        server.stderr = server.stderr.replace("server DISCONNECT EVENT...\n", "");
        seen.push(server);
    }
    same("rping", &seen[1], &seen[0])
}

/// Runs `rdma_xclient` with XRC on a device that lacks it. The client gets as far as creating its
/// queue pair.
fn xclient_without_xrc() -> CaseResult {
    let one = |maker: Maker| run(maker.tool("rdma_xclient")?.args(["-c", "x", "-s", V4, "-p", "1"]));
    let (theirs, ours) = (one(Maker::Theirs)?, one(Maker::Ours)?);
    // rxe of Linux 5.10 checks for completion queues first.
    let why = if rxe_is_before(6, 1)? { "Invalid argument" } else { "Operation not supported" };
    assert_eq!(theirs.stderr, format!("rdma_create_ep: {why}\n"));
    assert!(ours.stderr.contains("create_qp on rxe0"), "the reason is missing: {ours:?}");
    same("rdma_xclient", &ours, &theirs)
}

/// Runs `rdma_xserver` with XRC on a device that lacks it. The server gets as far as receiving a
/// request, which may name a queue pair that does not exist.
fn xserver_without_xrc() -> CaseResult {
    let mut seen = Vec::new();
    for maker in [Maker::Theirs, Maker::Ours] {
        let port = port::free()?;
        let args = ["-c", "x", "-p", &port.to_string()];
        let mut serves = Running::start(maker.tool("rdma_xserver")?.args(args))?;
        wait_for_listening_id(port, &mut serves)?;
        request_xrc(port)?;
        match serves.finish(LIMIT)? {
            Ok(ended) => seen.push(ended),
            Err(killed) => return fail(format_args!("{maker} had to be killed: {killed:?}")),
        }
    }
    assert_eq!(seen[0].stderr, "rdma_get_request: Operation not supported\n");
    assert!(seen[1].stderr.contains("open_xrcd"), "the reason is missing: {:?}", seen[1]);
    same("rdma_xserver", &seen[1], &seen[0])
}

/// Runs `rdma_xclient` with an IPv6 address. The server listens on 0.0.0.0, which does not cover
/// IPv6 addresses.
fn xclient_without_an_address() -> CaseResult {
    let sides = Sides::for_family(Family::V6)?;
    let rejected = |[server, client]: [&Maker; 2]| -> CaseResult<Finished> {
        let port = port::free()?;
        let number = port.to_string();
        let mut serves = Running::start(server.tool("rdma_xserver")?.args(["-c", "r", "-p", &number]))?;
        wait_for_listening_id(port, &mut serves)?;
        let args = ["-c", "r", "-s", &sides.to, "-p", &number];
        let ended = process::run(&mut client_command(client, "rdma_xclient", &sides, &args)?, LIMIT)?;
        match (ended, serves.finish(Duration::ZERO)?) {
            (Ok(ended), Err(_)) => Ok(ended),
            (ended, serves) => fail(format_args!("client {}; server {}", told(&ended), told(&serves))),
        }
    };
    let theirs = rejected([&Maker::Theirs, &Maker::Theirs])?;
    assert!(!theirs.status.success() && theirs.stderr.contains("Connection refused"), "{theirs:?}");
    for [server, client] in &PAIRS {
        let ended = rejected([server, client])?;
        same("rdma_xclient", &ended, &theirs)
            .map_err(|stop| stop.context(format_args!("{server} serves {client}")))?;
    }
    Ok(())
}

/// Sends a request for an XRC connection and waits for its rejection.
fn request_xrc(port: u16) -> CaseResult {
    let channel = EventChannel::new()?;
    let id = channel.create_id_of(PortSpace::IB, QpType::XRC_SEND)?;
    let next = || -> CaseResult<_> {
        let event = channel.next_event_within(PATIENCE)?;
        event.ok_or_else(|| Stop::Failed("no event comes".into()))
    };
    let address: std::net::SocketAddr =
        format!("{V4}:{port}").parse().map_err(|_| Stop::Failed(V4.into()))?;
    id.resolve_addr(None, address, PATIENCE)?;
    next()?.ok()?;
    id.resolve_route(PATIENCE)?;
    next()?.ok()?;
    id.connect_with(&ConnParam { qp_num: 77, ..ConnParam::default() })?;
    match next()?.kind {
        EventKind::Rejected(_) => Ok(()),
        other => fail(format_args!("{other:?} instead of a reject")),
    }
}

fn port_taken() -> CaseResult {
    let port = port::free()?;
    let number = port.to_string();
    let mut first = Running::start(Maker::Ours.tool("rping")?.args(["-s", "-a", V4, "-p", &number]))?;
    wait_for_listening_id(port, &mut first)?;
    for (tool, args) in [("rping", &["-s", "-a", V4, "-p"][..]), ("rdma_server", &["-s", V4, "-p"])] {
        let one = |maker: Maker| run(maker.tool(tool)?.args(args).arg(&number));
        let (mut theirs, ours) = (one(Maker::Theirs)?, one(Maker::Ours)?);
        assert!(theirs.stderr.contains("Address already in use"), "{theirs:?}");
        // rping's event thread may start after its main thread has closed the channel.
        theirs.stderr = theirs.stderr.replace("rdma_get_cm_event: Bad file descriptor\n", "");
        same(tool, &ours, &theirs)?;
    }
    Ok(())
}
