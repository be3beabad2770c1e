//! Connections by address with ends on either librdmacm, ours and Debian's. rdmacm-utils and
//! `perftest -R` connect to the address of rxe0's netdev, from the same device.

use std::process::Command;
use std::time::Duration;

use verbs_c_programs::together::together;
use verbs_fixtures::fabric::rxe_is_before;
use verbs_harness::listening::wait_for_listening_id;
use verbs_harness::pair::{both, told};
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};
use verbs_harness::tools::{LIMIT, Maker};

use super::perftest::{OPERATIONS, Way};
use super::program::{PAIRS, SUITE, program};
use crate::mlx5::rdmacm::has_cmtimes_table;

const PACKAGE: &str = "rdmacm-utils";

/// The address of rxe0's netdev.
const ADDRESS: &str = "10.9.9.1";

/// Programs whose ends print `return status 0`: name, port, message size.
const CMATOSE: &[(&str, u16, &str)] = &[("ucmatose", 7471, "2000"), ("udaddy", 7174, "500")];

/// Returns the cases for these programs.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    let case = |name: String, [server, client]: [Maker; 2], run: fn(&str, [&Maker; 2]) -> CaseResult| {
        let title = format!("rdmacm {name} {server} serves {client}");
        Case::new(SUITE, title, move || run(&name, [&server, &client]))
    };
    PAIRS.into_iter().flat_map(move |ends| {
        let one = |name: &str, run| case(name.to_owned(), ends.clone(), run);
        let mut cases: Vec<Case> = ["100", "60000"]
            .into_iter()
            .map(|size| case(format!("rping -S {size}"), ends.clone(), rping))
            .collect();
        cases.extend(CMATOSE.iter().map(|(program, ..)| one(program, cmatose)));
        cases.extend(["rdma_client", "rdma_xclient"].map(|name| one(name, rdma_client)));
        cases.push(one("mckey", mckey));
        cases.push(one("cmtime", cmtime));
        cases.extend(OPERATIONS.iter().map(|way| {
            let [server, client] = ends.clone();
            let name = format!("rdmacm {} -R {server} serves {client}", way.name());
            Case::new(SUITE, name, move || by_address(way, [&server, &client]))
        }));
        cases
    })
}

/// The result of a program: `Ok` if it ended by itself, `Err` if it was killed.
type Ended = Result<Finished, Finished>;

/// Returns the commands for both ends of a program.
fn commands(
    names: [&str; 2],
    [server, client]: [&Maker; 2],
    [serve, connect]: [&[&str]; 2],
) -> CaseResult<[Command; 2]> {
    let mut commands = [program(server, names[0], PACKAGE)?, program(client, names[1], PACKAGE)?];
    commands[0].args(serve);
    commands[1].args(connect);
    Ok(commands)
}

/// Runs both ends of a program and returns the results of the server and the client.
fn connected([mut server, mut client]: [Command; 2], port: u16) -> CaseResult<[Ended; 2]> {
    let mut serves = Running::start(&mut server)?;
    wait_for_listening_id(port, &mut serves)?;
    let client = process::run(&mut client, LIMIT)?;
    let patience =
        if client.as_ref().is_ok_and(|end| end.status.success()) { LIMIT } else { Duration::from_secs(3) };
    Ok([serves.finish(patience)?, client])
}

/// Runs `rping`. `name` is the command, with the message size.
fn rping(name: &str, ends: [&Maker; 2]) -> CaseResult {
    const COUNT: &str = "10";
    let size = name.rsplit(' ').next().unwrap_or_default();
    let args = ["-v", "-V", "-S", size, "-C", COUNT, "-a", ADDRESS];
    let (serve, connect) = ([&["-s"], &args[..]].concat(), [&["-c"], &args[..]].concat());
    let [serves, pings] = connected(commands(["rping", "rping"], ends, [&serve, &connect])?, 7174)?;
    // The server reports the client's disconnection as a failure.
    let Ok(pings) = pings else {
        return fail(format_args!("client {}; server {}", told(&pings), told(&serves)));
    };
    if !pings.status.success() {
        return fail(format_args!("client {}; server {}", told(&Ok(pings)), told(&serves)));
    }
    let (Ok(serves) | Err(serves)) = serves;
    for (what, text) in [("server ping data: ", &serves.stdout), ("ping data: ", &pings.stdout)] {
        let rounds = text.lines().filter(|line| line.starts_with(what)).count();
        if rounds.to_string() != COUNT {
            return fail(format_args!("{rounds} lines begin with {what:?}: {text:?}, {:?}", serves.stderr));
        }
    }
    Ok(())
}

fn cmatose(name: &str, ends: [&Maker; 2]) -> CaseResult {
    let known = CMATOSE.iter().find(|(program, ..)| *program == name);
    let Some(&(_, port, size)) = known else { return fail(format_args!("{name} is not in the list")) };
    let shared = ["-C", "10", "-S", size];
    let (serve, connect) =
        ([&["-b", ADDRESS], &shared[..]].concat(), [&["-s", ADDRESS], &shared[..]].concat());
    let ended = connected(commands([name, name], ends, [&serve, &connect])?, port)?;
    end_well(&ended, ["return status 0"; 2])
}

/// Runs both ends. Each disconnects as soon as its work is done.
fn rdma_client(name: &str, ends: [&Maker; 2]) -> CaseResult {
    let server = name.replace("client", "server");
    let mut ends = commands([&server, name], ends, [&[], &["-s", ADDRESS]])?;
    let _pipe = together(ends.each_mut())?;
    let ended = connected(ends, 7471)?;
    end_well(&ended, [&format!("{server}: end 0"), &format!("{name}: end 0")])
}

/// Runs `mckey`. The sender destroys its queue pair right after it has posted its messages.
/// [`cm_rates`](crate::cm_rates) describes what rxe then does.
fn mckey(name: &str, [receiver, sender]: [&Maker; 2]) -> CaseResult {
    if !rxe_is_before(6, 12)? {
        return skip("the sender destroys its queue pair before rxe has sent its messages");
    }
    let args = ["-m", "239.9.8.5", "-b", ADDRESS];
    let receives = Running::start(program(receiver, name, PACKAGE)?.args(args))?;
    let sends = Running::start(program(sender, name, PACKAGE)?.args(args).arg("-s"))?;
    let ended = [receives.finish(LIMIT)?, sends.finish(LIMIT)?];
    end_well(&ended, ["return status 0"; 2])
}

/// Runs `cmtime`. The server runs until it is killed, so only the client's table is checked.
fn cmtime(name: &str, [server, client]: [&Maker; 2]) -> CaseResult {
    let port = port::free()?;
    let args = ["-c", "20", "-p", &port.to_string()];
    let mut serves = Running::start(program(server, name, PACKAGE)?.args(args))?;
    wait_for_listening_id(port, &mut serves)?;
    let ended = process::run(program(client, name, PACKAGE)?.args(args).args(["-s", ADDRESS]), LIMIT)?;
    let served = serves.finish(Duration::ZERO)?;
    if ended.as_ref().is_ok_and(has_cmtimes_table) {
        return Ok(());
    }
    fail(format_args!("client {}; server {}", told(&ended), told(&served)))
}

/// Checks that both ends succeeded and that each printed its last line.
fn end_well(ended: &[Ended; 2], last_words: [&str; 2]) -> CaseResult {
    let is_well = |(end, words): (&Ended, &str)| {
        end.as_ref().is_ok_and(|end| end.status.success() && end.stdout.lines().any(|line| line == words))
    };
    if ended.iter().zip(last_words).all(is_well) {
        return Ok(());
    }
    fail(format_args!("server {}; client {}", told(&ended[0]), told(&ended[1])))
}

/// Runs perftest with connections by address: one connection for its parameters and one for the
/// test.
///
/// The client may connect for the test before the server listens again, on rdma-core's library as
/// well. The client is then rejected, retries and crashes. The case is repeated only after that
/// failure.
fn by_address(way: &Way, ends: [&Maker; 2]) -> CaseResult {
    const ATTEMPTS: usize = 3;
    let mut ended = Ok(());
    for attempt in 1..=ATTEMPTS {
        ended = by_address_once(way, ends);
        match &ended {
            Err(Stop::Failed(why)) if why.contains(REJECTED) => {
                eprintln!("attempt {attempt} of {ATTEMPTS}: the server did not listen again in time: {why}");
            }
            _ => return ended,
        }
    }
    ended
}

/// perftest's message when it connects to a service that does not exist.
const REJECTED: &str = "RDMA_CM_EVENT_REJECTED; error: 8";

fn by_address_once(way: &Way, [server, client]: [&Maker; 2]) -> CaseResult {
    let port = port::free()?;
    let start = |command: &mut Command| Running::start(command.arg("-R"));
    let mut serves = start(&mut way.command(server, port)?)?;
    wait_for_listening_id(port, &mut serves)?;
    let connects = start(way.command(client, port)?.arg(ADDRESS))?;
    way.check(&both(serves, connects, LIMIT)?)
}
