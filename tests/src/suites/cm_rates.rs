//! `cm_rates`: `ucmatose`, `udaddy`, `mckey` and `cmtime`, ours and rdma-core's, at both ends of
//! connections through the kernel's connection manager on rxe.
//!
//! The output of both ends is that of C's programs, so that ours and theirs are interchangeable.
//! The `cmtime` of rdma-core 44 is another program, which is left out.

use std::process::Command;
use std::time::Duration;

use crate::process::{self, Finished, Running};
use crate::runner::{Case, CaseResult, fail, skip};
use crate::suites::mlx5::rdmacm::wait_for_listening_id;
use crate::tools::{LIMIT, Maker, run};

const SUITE: &str = "cm_rates";

/// The address of rxe0's netdev.
const V4: &str = "10.9.9.1";

/// An address that the cases of IPv6 give it.
const V6: &str = "fd09:9::1";

/// The ends of a run: server, client.
type Ends = [Maker; 2];

const PAIRS: [Ends; 3] =
    [[Maker::Ours, Maker::Ours], [Maker::Ours, Maker::Theirs], [Maker::Theirs, Maker::Ours]];

/// The suite.
pub fn cases() -> Vec<Case> {
    ucmatose().chain(udaddy()).chain(mckey()).chain(cmtime()).collect()
}

fn each_pair(
    tool: &'static str,
    ways: &'static [&'static [&'static str]],
    case: fn(&[Maker; 2], &[&str]) -> CaseResult,
) -> impl Iterator<Item = Case> {
    PAIRS.into_iter().flat_map(move |ends| {
        ways.iter().map(move |flags| {
            let ends = ends.clone();
            let name = format!("{tool} {} serves {} {}", ends[0], ends[1], flags.join(" "));
            Case::new(SUITE, name.trim_end(), move || case(&ends, flags))
        })
    })
}

fn ucmatose() -> impl Iterator<Item = Case> {
    const WAYS: &[&[&str]] = &[
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
    ];
    let endings = [
        Case::new(SUITE, "ucmatose without a listener is rejected as theirs is", no_listener),
        Case::new(SUITE, "ucmatose at an address of no host ends as theirs does", nobody),
        Case::new(SUITE, "ucmatose ends when the peer that it waits for is killed", survivor),
    ];
    each_pair("ucmatose", WAYS, ucmatose_of).chain(endings)
}

/// Returns the address that both ends use, and the flags without `-6`, which asks for IPv6.
fn address<'a>(flags: &[&'a str]) -> CaseResult<(&'static str, Vec<&'a str>)> {
    let rest: Vec<_> = flags.iter().copied().filter(|flag| *flag != "-6").collect();
    if rest.len() == flags.len() {
        return Ok((V4, rest));
    }
    let added = run(Command::new("ip").args([
        "-6",
        "addr",
        "replace",
        &format!("{V6}/64"),
        "dev",
        "veth0",
        "nodad",
    ]))?;
    if !added.status.success() {
        return fail(format_args!("ip addr: {}", added.stderr.trim_end()));
    }
    let gids = "/sys/class/infiniband/rxe0/ports/1/gids";
    let has_gid = || {
        (0..16).any(|index| {
            let gid = std::fs::read_to_string(format!("{gids}/{index}"));
            gid.is_ok_and(|gid| gid.trim_end() == "fd09:0009:0000:0000:0000:0000:0000:0001")
        })
    };
    if process::wait_until(LIMIT, has_gid) { Ok((V6, rest)) } else { fail("the device has no GID for IPv6") }
}

fn ucmatose_of(ends: &Ends, flags: &[&str]) -> CaseResult {
    let (address, flags) = address(flags)?;
    let port = if flags.contains(&"7500") { 7500 } else { 7471 };
    let ended = connected("ucmatose", ends, port, address, &flags)?;
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

/// Runs both ends of a program, which differ in the option of their address.
fn connected(
    tool: &str,
    [server, client]: &Ends,
    port: u16,
    address: &str,
    flags: &[&str],
) -> CaseResult<[Finished; 2]> {
    let mut serves = Running::start(server.tool(tool)?.args(["-b", address]).args(flags))?;
    wait_for_listening_id(port, &mut serves)?;
    let client = process::run(client.tool(tool)?.args(["-s", address]).args(flags), LIMIT)?;
    let is_well = client.as_ref().is_ok_and(|end| end.status.success());
    let server = serves.finish(if is_well { LIMIT } else { LAST_WORDS })?;
    match (server, client) {
        (Ok(server), Ok(client)) => Ok([server, client]),
        ends => fail(format_args!("an end was killed: {ends:?}")),
    }
}

/// The time for what an end that lost the other one has to say.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Checks that both ends succeeded, and printed these lines and those of every end.
fn all_said(ended: &[Finished; 2], lines: [Vec<&str>; 2]) -> CaseResult {
    for (end, mut lines) in ended.iter().zip(lines) {
        lines.extend(["test complete", "return status 0"]);
        if !end.status.success() || !end.stderr.is_empty() || end.stdout.lines().ne(lines.iter().copied()) {
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

/// Runs both makers' program, and compares what they print.
fn both(tool: &str, args: &[&str]) -> CaseResult<[Finished; 2]> {
    let theirs = run(Maker::Theirs.tool(tool)?.args(args))?;
    let ours = run(Maker::Ours.tool(tool)?.args(args))?;
    crate::compare::same(tool, &ours, &theirs)?;
    Ok([ours, theirs])
}

/// C's waits for ever for messages that do not come.
fn survivor() -> CaseResult {
    for kill_server in [true, false] {
        // Each waits for more messages than the other sends.
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

fn udaddy() -> impl Iterator<Item = Case> {
    const WAYS: &[&[&str]] =
        &[&[], &["-c", "16"], &["-C", "100", "-S", "1000"], &["-C", "0", "-c", "4"], &["-t", "32"], &["-6"]];
    each_pair("udaddy", WAYS, udaddy_of).chain([Case::new(
        SUITE,
        "udaddy refuses a message that is longer than a packet as theirs does",
        long_message,
    )])
}

fn udaddy_of(ends: &Ends, flags: &[&str]) -> CaseResult {
    let (address, flags) = address(flags)?;
    let ended = connected("udaddy", ends, 7174, address, &flags)?;
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

fn mckey() -> impl Iterator<Item = Case> {
    const WAYS: &[&[&str]] = &[&[], &["-C", "50", "-S", "1000"], &["-o"]];
    each_pair("mckey", WAYS, mckey_of).chain([
        Case::new(SUITE, "mckey says of a queue pair without loopback what theirs says", no_loopback),
        Case::new(SUITE, "mckey says of an address that is no group what theirs says", no_group),
    ])
}

/// The receiver joins as a full member; `-o` is the sender's.
///
/// rxe of newer kernels may lose datagrams to a group that the device itself sends. Theirs decides:
/// where its receiver waits for ever as well, the case is skipped.
fn mckey_of(ends: &Ends, flags: &[&str]) -> CaseResult {
    let lines = |who, data| vec![who, "mckey: joining", JOINED, data, "data transfers complete"];
    let received = lines("mckey: starting server", "receiving data transfers");
    let sent = lines("mckey: starting client", "initiating data transfers");
    match to_group(ends, flags)? {
        Some(ended) => all_said(&ended, [received, sent]),
        None if to_group(&[Maker::Theirs, Maker::Theirs], flags)?.is_none() => {
            skip("rxe of this kernel loses datagrams to its own group: theirs does not get them either")
        }
        None => fail("the receiver waits for messages, and theirs does not"),
    }
}

const GROUP: &str = "239.9.8.2";
const JOINED: &str = "mckey: joined dgid: ::ffff:239.9.8.2 mlid 0x0 sl 0";

/// Runs both ends; `None` if the receiver waits for messages that do not come.
fn to_group([receiver, sender]: &Ends, flags: &[&str]) -> CaseResult<Option<[Finished; 2]>> {
    let shared: Vec<_> = flags.iter().copied().filter(|flag| *flag != "-o").collect();
    let args = ["-m", GROUP, "-b", V4];
    let receiver = Running::start(receiver.tool("mckey")?.args(args).args(shared))?;
    let sender = run(sender.tool("mckey")?.args(args).arg("-s").args(flags))?;
    Ok(receiver.finish(LAST_WORDS)?.ok().map(|receiver| [receiver, sender]))
}

fn no_loopback() -> CaseResult {
    both("mckey", &["-m", "239.9.8.3", "-b", V4, "-l", "-C", "0"]).map(drop)
}

fn no_group() -> CaseResult {
    both("mckey", &["-m", V4, "-b", V4]).map(drop)
}

fn cmtime() -> impl Iterator<Item = Case> {
    const WAYS: &[&[&str]] = &[&["-c", "50"], &["-c", "50", "-n", "4"], &["-c", "20", "-m", "100"]];
    let three = Case::new(SUITE, "cmtime connects to two listeners", || {
        cmtime_of(&[Maker::Ours, Maker::Ours], &["-c", "10", "-P", "3"])
    });
    each_pair("cmtime", WAYS, cmtime_of).chain([three])
}

/// Skips a case on the `cmtime` of rdma-core 44.
fn has_control(maker: &Maker) -> CaseResult {
    if run(maker.tool("cmtime")?.arg("-h"))?.stdout.contains("-C controller_address") {
        return Ok(());
    }
    skip("the cmtime of rdma-core 44 has no control connection")
}

fn cmtime_of([server, client]: &Ends, flags: &[&str]) -> CaseResult {
    has_control(server)?;
    has_control(client)?;
    let port = crate::port::free()?.to_string();
    let start = |maker: &Maker, more: &[&str]| -> CaseResult<Running> {
        let mut command = maker.tool("cmtime")?;
        // Both ends have one device, so that queue pairs that do not exist need numbers that no
        // other has.
        let base = if more.is_empty() { "100000" } else { "200000" };
        command.args(["-b", V4, "-C", V4, "-p", &port, "-q", base]).args(flags).args(more);
        Ok(Running::start(&mut command)?)
    };
    let servers = if flags.contains(&"-P") { 2 } else { 1 };
    let mut ends = (0..servers).map(|_| start(server, &["-L"])).collect::<CaseResult<Vec<_>>>()?;
    ends.push(start(client, &[])?);
    for end in ends {
        let Ok(end) = end.finish(LIMIT)? else { return fail("an end was killed") };
        let tables = end.stdout.matches("destroy qp   ").count();
        let expected = if servers == 1 { 2 } else { 1 };
        if !end.status.success() || !end.stderr.is_empty() || tables != expected {
            return fail(format_args!("{tables} tables: {end:?}"));
        }
    }
    Ok(())
}
