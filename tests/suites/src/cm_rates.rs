//! `cm_rates`: `ucmatose`, `udaddy`, `mckey` and `cmtime`, from us and from rdma-core, at both ends
//! of connections through the kernel's connection manager: on rxe, and between two ConnectX
//! functions ([`Sides`]). [`cm_flags`](crate::cm_flags) lists their flags.
//!
//! Both ends print the same as the C programs, so our programs and theirs are interchangeable. In
//! rdma-core 44, `cmtime` is a different program, so these cases use Debian's newest `cmtime`.

use std::time::Duration;

use verbs_fixtures::fabric::{is_rxe, rxe_is_before};
use verbs_harness::listening::wait_for_listening_id;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, fail, skip};
use verbs_harness::tools::{LIMIT, Maker, run};

use crate::cm_sides::{Family, Sides};

const SUITE: &str = "cm_rates";

/// The server's IPv4 address.
const V4: &str = "10.9.9.1";

/// The makers of a run's two ends: server, client.
type Ends = [Maker; 2];

static PAIRS: [Ends; 3] =
    [[Maker::Ours, Maker::Ours], [Maker::Ours, Maker::Theirs], [Maker::Theirs, Maker::Ours]];

/// A case that does not run for each pair of makers.
type Run = fn() -> CaseResult;

/// A tool's name, the flags for each of its cases and the function that runs them.
type Tool = (&'static str, &'static [&'static [&'static str]], fn(&Ends, &[&str]) -> CaseResult);

/// Flags that the cases define in addition to the tools' flags: IPv6, link-local IPv6 and a client
/// that binds to its address.
const OWN: [&str; 3] = ["-6", "-l", "-B"];

/// The flags that the suite `cm_rates` tries.
const RATES: &[Tool] = &[
    (
        "ucmatose",
        &[
            &[],
            &["-c", "16"],
            &["-C", "200", "-S", "20000"],
            &["-C", "0", "-c", "4"],
            &["-S", "0"],
            &["-m", "-c", "3"],
            &["-t", "32", "-a", "14"],
            &["-f", "ip"],
            &["-P", "ib"],
            &["-p", "7500"],
            &["-6"],
        ],
        ucmatose,
    ),
    (
        "udaddy",
        &[&[], &["-c", "16"], &["-C", "100", "-S", "1000"], &["-C", "0", "-c", "4"], &["-t", "32"], &["-6"]],
        udaddy,
    ),
    ("mckey", &[&[], &["-C", "50", "-S", "1000"], &["-o"]], mckey),
    ("cmtime", &[&["-c", "50"], &["-c", "20", "-n", "4"], &["-c", "20", "-m", "100"]], cmtime),
];

/// The flags that the suite `cm_flags` tries.
const MORE: &[Tool] = &[
    ("ucmatose", &[&["-l"], &["-B"]], ucmatose),
    ("udaddy", &[&["-f", "ip"], &["-l"], &["-B"]], udaddy),
    ("mckey", &[&["-c", "3"]], mckey),
];

/// The `cmtime` flags that the suite `cm_flags` tries, for every pair.
const CMTIME: &[Tool] = &[(
    "cmtime",
    &[&["-c", "10", "-6"], &["-c", "10", "-l"], &["-c", "10", "-r", "3", "-t", "4000"]],
    cmtime,
)];

/// Returns the suite's cases on rxe.
pub fn cases() -> Vec<Case> {
    let cases: [(&str, Run); 9] = [
        ("ucmatose without a listener is rejected as theirs is", no_listener),
        ("ucmatose at an address of no host ends as theirs does", nobody),
        ("ucmatose ends when the peer that it waits for is killed", survivor),
        ("udaddy refuses a message that is longer than a packet as theirs does", long_message),
        ("mckey says of a queue pair without loopback what theirs says", no_loopback),
        ("mckey says of an address that is no group what theirs says", no_group),
        ("cmtime connects to two listeners", || two_listeners([Maker::Ours, Maker::Ours])),
        ("cmtime connects to two listeners of theirs", || two_listeners([Maker::Theirs, Maker::Ours])),
        ("cmtime of theirs connects to two listeners", || two_listeners([Maker::Ours, Maker::Theirs])),
    ];
    of_two_functions().into_iter().chain(cases.map(|(name, run)| Case::new(SUITE, name, run))).collect()
}

/// Returns the suite's cases between two ConnectX functions.
pub fn of_two_functions() -> Vec<Case> {
    each_pair(SUITE, &PAIRS, RATES).collect()
}

/// Returns the cases with rarer flags, as part of the given suite.
pub(super) fn with_more_flags(suite: &'static str) -> impl Iterator<Item = Case> {
    // A pair of our tools would hide flags that theirs rejects.
    let [_, mixed @ ..] = &PAIRS;
    let case = move |name, run: Run| Case::new(suite, name, run);
    each_pair(suite, mixed, MORE).chain(each_pair(suite, &PAIRS, CMTIME)).chain([
        case("ucmatose -f gid is refused as theirs is", by_gid),
        case("mckey is refused groups of IPv6 and by GID as theirs is", other_groups),
        case("udaddy and mckey are refused the space of IP over InfiniBand as theirs are", of_ipoib),
    ])
}

fn each_pair(
    suite: &'static str,
    pairs: &'static [Ends],
    tools: &'static [Tool],
) -> impl Iterator<Item = Case> {
    tools.iter().flat_map(move |&(tool, ways, case)| {
        pairs.iter().flat_map(move |ends| {
            ways.iter().map(move |flags| {
                let ends = ends.clone();
                let name = format!("{tool} {} serves {} {}", ends[0], ends[1], flags.join(" "));
                Case::new(suite, name.trim_end(), move || case(&ends, flags))
            })
        })
    })
}

/// A run's addresses, with the flags for both ends.
struct Way<'a> {
    sides: Sides,
    flags: Vec<&'a str>,
    /// Flags for the client alone.
    of_client: Vec<String>,
}

impl<'a> Way<'a> {
    fn from_flags(flags: &[&'a str]) -> CaseResult<Self> {
        let has = |flag| flags.contains(&flag);
        let family = match (has("-6"), has("-l")) {
            (true, _) => Family::V6,
            (_, true) => Family::Link,
            _ => Family::V4,
        };
        let sides = Sides::for_family(family)?;
        let of_client = if has("-B") { vec!["-b".to_owned(), sides.client.clone()] } else { Vec::new() };
        let flags = flags.iter().copied().filter(|flag| !OWN.contains(flag)).collect();
        Ok(Self { sides, flags, of_client })
    }
}

fn ucmatose(ends: &Ends, flags: &[&str]) -> CaseResult {
    let port = if flags.contains(&"7500") { 7500 } else { 7471 };
    let ended = connected("ucmatose", ends, port, &Way::from_flags(flags)?)?;
    let has_data = !flags.contains(&"0");
    let migrates = flags.contains(&"-m");
    let mut server = vec!["cmatose: starting server"];
    let mut client = vec!["cmatose: starting client", "cmatose: connecting"];
    if has_data {
        server.extend(["initiating data transfers", "completing sends"]);
        server.extend(["receiving data transfers", "data transfers complete"]);
        client.extend(["receiving data transfers", "sending replies", "data transfers complete"]);
    }
    for lines in [&mut server, &mut client] {
        lines.extend(migrates.then_some("migrating to new event channel"));
    }
    server.extend(["cmatose: disconnecting", "disconnected"]);
    all_said(&ended, [server, client])
}

/// Runs both ends of a program whose ends use different options for an address.
fn connected(tool: &str, [server, client]: &Ends, port: u16, way: &Way<'_>) -> CaseResult<[Finished; 2]> {
    let Way { sides, flags, of_client } = way;
    let mut serves = Running::start(server.tool(tool)?.args(["-b", &sides.server]).args(flags))?;
    wait_for_listening_id(port, &mut serves)?;
    let mut connects = client.tool(tool)?;
    connects.args(["-s", &sides.to]).args(of_client).args(flags);
    let client = process::run(&mut sides.at_client(connects), LIMIT)?;
    let is_well = client.as_ref().is_ok_and(|end| end.status.success());
    let server = serves.finish(if is_well { LIMIT } else { LAST_WORDS })?;
    match (server, client) {
        (Ok(server), Ok(client)) => Ok([server, client]),
        ends => fail(format_args!("an end was killed: {ends:?}")),
    }
}

/// The time for an end without its peer to print its last messages.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Checks that both ends succeeded and printed these lines, followed by the last lines that all
/// ends print.
fn all_said<L: AsRef<str> + core::fmt::Debug>(ended: &[Finished; 2], lines: [Vec<L>; 2]) -> CaseResult {
    for (end, lines) in ended.iter().zip(lines) {
        let all = lines.iter().map(AsRef::as_ref).chain(["test complete", "return status 0"]);
        if !end.status.success() || !end.stderr.is_empty() || end.stdout.lines().ne(all) {
            return fail(format_args!("{lines:?} were expected: {ended:?}"));
        }
    }
    Ok(())
}

fn no_listener() -> CaseResult {
    let ended = both("ucmatose", &["-s", V4, "-p", "7501"])?;
    assert_eq!(ended[0].status.code(), Some(8), "{ended:?}");
    Ok(())
}

fn nobody() -> CaseResult {
    let ended = both("ucmatose", &["-s", "10.9.9.77"])?;
    assert!(ended[0].stdout.contains("RDMA_CM_EVENT_ADDR_ERROR"), "{ended:?}");
    Ok(())
}

/// Binds to a GID, which Linux allows only on InfiniBand ports. Both makers' tools must report the
/// same error.
fn by_gid() -> CaseResult {
    let gid = format!("::ffff:{V4}");
    let ends = [both("ucmatose", &["-f", "gid", "-b", &gid])?, both("ucmatose", &["-f", "gid", "-s", &gid])?];
    let failures =
        ["cmatose: bind address failed: No such device", "cmatose: resolve route failed: No such device"];
    for ([ours, _], failure) in ends.iter().zip(failures) {
        assert!(ours.stderr.starts_with(failure), "{ours:?}");
    }
    Ok(())
}

/// Uses the IPoIB port space, which Linux has only for InfiniBand ports.
fn of_ipoib() -> CaseResult {
    both("udaddy", &["-P", "ipoib", "-b", V4])?;
    let [ours, _] = both("udaddy", &["-p", "0x2", "-s", V4])?;
    assert!(ours.stdout.contains("RDMA_CM_EVENT_ADDR_ERROR, error: -22"), "{ours:?}");
    both("mckey", &["-p", "0x2", "-m", GROUP, "-b", V4]).map(drop)
}

/// Runs both makers' versions of a program and compares their output.
fn both(tool: &str, args: &[&str]) -> CaseResult<[Finished; 2]> {
    let theirs = run(Maker::Theirs.tool(tool)?.args(args))?;
    let ours = run(Maker::Ours.tool(tool)?.args(args))?;
    verbs_c_programs::compare::same(tool, &ours, &theirs)?;
    Ok([ours, theirs])
}

/// Kills one end. If the survivor is ours, it exits; the C program would wait forever for messages
/// that never come.
fn survivor() -> CaseResult {
    for kill_server in [true, false] {
        // Each end waits for more messages than the other sends.
        let mut server = Running::start(Maker::Ours.tool("ucmatose")?.args(["-b", V4]))?;
        wait_for_listening_id(7471, &mut server)?;
        let mut client = Running::start(Maker::Ours.tool("ucmatose")?.args(["-s", V4, "-C", "11"]))?;
        let is_waiting = |end: &mut Running| {
            end.wait_for_output(LIMIT, |text| text.contains("receiving data transfers\n"))
        };
        assert!(is_waiting(&mut server) && is_waiting(&mut client), "{server:?} {client:?}");
        let left = if kill_server {
            drop(server);
            client
        } else {
            drop(client);
            server
        };
        let Ok(left) = left.finish(LIMIT)? else { return fail("the survivor does not end") };
        assert_eq!(left.status.code(), Some(251), "{left:?}");
        assert!(left.stdout.ends_with("return status -5\n"), "{left:?}");
        assert!(left.stderr.contains("a receive failed"), "{left:?}");
    }
    Ok(())
}

fn udaddy(ends: &Ends, flags: &[&str]) -> CaseResult {
    let ended = connected("udaddy", ends, 7174, &Way::from_flags(flags)?)?;
    let mut server = vec!["udaddy: starting server"];
    let mut client = vec!["udaddy: starting client", "udaddy: connecting"];
    if !flags.contains(&"0") {
        server.extend(["receiving data transfers", "sending replies", "data transfers complete"]);
        client.extend(["initiating data transfers", "receiving data transfers", "data transfers complete"]);
    }
    all_said(&ended, [server, client])
}

fn long_message() -> CaseResult {
    let ended = both("udaddy", &["-s", V4, "-S", "5000"])?;
    assert!(ended[0].stdout.contains("message_size 5000 is larger than active mtu"), "{ended:?}");
    Ok(())
}

/// Runs `mckey` on both sides. The receiver joins as a full member; only the sender gets `-o`.
///
/// The C sender destroys its queue pair right after it has posted its messages. rxe on Linux 6.12
/// and 7.2 sends them in the background and drops those still queued. With rdma-core's programs on
/// both sides on 7.2, no packet left in any of four runs (the device's `sent_pkts` did not change),
/// so the receiver waits forever. On 6.1, all messages arrive. Our sender waits until its messages
/// have left.
fn mckey(ends: &Ends, flags: &[&str]) -> CaseResult {
    match to_group(ends, &Sides::for_family(Family::V4)?, flags)? {
        Some(ended) => all_said(&ended, lines_of_group(flags)),
        None if ends[1] == Maker::Theirs && is_rxe()? && !rxe_is_before(6, 12)? => {
            skip("C's sender destroyed its queue pair before rxe had sent its messages")
        }
        None => fail("the receiver waits for messages"),
    }
}

const GROUP: &str = "239.9.8.2";

/// Returns the lines that the receiver and the sender print, without the last lines that all ends
/// print.
fn lines_of_group(flags: &[&str]) -> [Vec<String>; 2] {
    let members = flags.iter().skip_while(|flag| **flag != "-c").nth(1);
    let members = members.and_then(|count| count.parse().ok()).unwrap_or(1);
    [("server", "receiving"), ("client", "initiating")].map(|(who, what)| {
        let mut lines = vec![format!("mckey: starting {who}"), "mckey: joining".to_owned()];
        lines.extend(std::iter::repeat_n(
            format!("mckey: joined dgid: ::ffff:{GROUP} mlid 0x0 sl 0"),
            members,
        ));
        lines.extend([format!("{what} data transfers"), "data transfers complete".to_owned()]);
        lines
    })
}

/// Runs both ends. Returns `None` if the receiver is still waiting for messages that never come.
fn to_group([receiver, sender]: &Ends, sides: &Sides, flags: &[&str]) -> CaseResult<Option<[Finished; 2]>> {
    let mut receives = receiver.tool("mckey")?;
    receives.args(["-m", GROUP, "-b", &sides.server]).args(flags.iter().filter(|flag| **flag != "-o"));
    let receives = Running::start(&mut receives)?;
    let mut sends = sender.tool("mckey")?;
    sends.args(["-m", GROUP, "-b", &sides.client, "-s"]).args(flags);
    let sends = run(&mut sides.at_client(sends))?;
    Ok(receives.finish(LAST_WORDS)?.ok().map(|receives| [receives, sends]))
}

/// Joins IPv6 groups and a GID. Linux joins only IPv4 groups on RoCE v2 ports, so the tools must
/// report an error.
fn other_groups() -> CaseResult {
    let (v6, link) = (Sides::for_family(Family::V6)?, Sides::for_family(Family::Link)?);
    let group_of_link = format!("ff12::9:8:4%{}", link.server_netdev);
    let failure = "mckey: failure joining: Unknown error 524\n";
    for (group, source) in [("ff15::9:8:4", &v6.server), (&*group_of_link, &link.server)] {
        let [ours, _] = both("mckey", &["-m", group, "-b", source])?;
        assert!(ours.stderr.starts_with(failure), "{group}: {ours:?}");
    }
    // C's next message contains the errno that glibc's `perror` leaves.
    let by_gid = |maker: Maker| run(maker.tool("mckey")?.args(["-M", "ff15::9:8:4", "-b", V4]));
    let (theirs, ours) = (by_gid(Maker::Theirs)?, by_gid(Maker::Ours)?);
    assert!(theirs.stderr.starts_with(failure) && ours.stderr.starts_with(failure), "{theirs:?} {ours:?}");
    assert_eq!((ours.status, ours.stdout), (theirs.status, theirs.stdout));
    Ok(())
}

fn no_loopback() -> CaseResult {
    both("mckey", &["-m", "239.9.8.3", "-b", V4, "-l", "-C", "0"]).map(drop)
}

fn no_group() -> CaseResult {
    both("mckey", &["-m", V4, "-b", V4]).map(drop)
}

fn two_listeners(ends: Ends) -> CaseResult {
    cmtime(&ends, &["-c", "10", "-P", "3"])
}

fn cmtime([server, client]: &Ends, flags: &[&str]) -> CaseResult {
    let of_link = flags.contains(&"-l");
    let Way { sides, flags, .. } = Way::from_flags(flags)?;
    if of_link && sides.are_apart() {
        return skip("the listener's address comes with the number of its interface, as in C");
    }
    // Like the C client, ours needs an IPv4 address for the controller.
    let control = Sides::for_family(Family::V4)?;
    let port = verbs_harness::port::free()?.to_string();
    // Both ends may share one device, so their fictitious queue pair numbers must differ.
    let command = |maker: &Maker, address: &str, controller: &str, base: &str| -> CaseResult<_> {
        let mut command = maker.newest_tool("cmtime")?;
        command.args(["-b", address, "-C", controller, "-p", &port, "-q", base]).args(&flags);
        Ok(command)
    };
    let servers = if flags.contains(&"-P") { 2 } else { 1 };
    let serve = || -> CaseResult<Running> {
        Ok(Running::start(command(server, &sides.server, &control.server, "100000")?.arg("-L"))?)
    };
    // The C servers try only once to connect to the first server, the root.
    let mut root = serve()?;
    if !process::wait_for_listener_of(root.pid(), port.parse()?, LIMIT, || !root.has_ended()) {
        return fail(format_args!("the root does not listen on port {port}"));
    }
    let mut ends = vec![root];
    for _ in 1..servers {
        ends.push(serve()?);
    }
    let connects = command(client, &sides.client, &control.to, "200000")?;
    ends.push(Running::start(&mut sides.at_client(connects))?);
    // Starts with the client, because a listener keeps waiting for a failed client.
    for end in ends.into_iter().rev() {
        let end = match end.finish(LIMIT)? {
            Ok(end) => end,
            Err(killed) => return fail(format_args!("an end was killed: {killed:?}")),
        };
        let tables = end.stdout.matches("destroy qp   ").count();
        let expected = if servers == 1 { 2 } else { 1 };
        if !end.status.success() || !end.stderr.is_empty() || tables != expected {
            let Finished { status, stdout, stderr } = end;
            return fail(format_args!("{status}, {tables} tables, {stderr:?}, {stdout}"));
        }
    }
    Ok(())
}
