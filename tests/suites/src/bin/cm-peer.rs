//! `cm-peer --listen ADDRESS | --connect ADDRESS`: two such processes connect by address, each with
//! its own device, and try connections and datagram services.
//!
//! ```text
//! VERBS_SOFT=192.0.2.1 cm-peer --listen 192.0.2.1:7471
//! cm-peer --connect 192.0.2.1:7471
//! cm-peer --connect '[fe80::1%eth0]:7471'
//! ```
//!
//! Prints `ok STEP` for each step and ends with `N steps`; exits with 0 on success. Both sides need
//! the same options, except `--source`, `--dies` and `--outlives`. In the step `outlive`, one side
//! kills itself in a given state of the connection. The other side prints how it noticed.

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use verbs_fixtures::cm_peer::{Plan, connect, listen};
use verbs_harness::runner::{CaseResult, Stop, fail};

const USAGE: &str = "usage: cm-peer (--listen | --connect) ADDRESS:PORT [--step NAME]... [--connections N] [--rounds N] \
                     [--source ADDRESS] [--dies STATE | --outlives STATE]";

fn main() -> ExitCode {
    let (listens, address, plan) = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(Stop::Failed(why) | Stop::Skipped(why)) => {
            eprintln!("cm-peer: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match if listens { listen(address, plan) } else { connect(address, plan) } {
        Ok(count) => {
            println!("{count} steps");
            ExitCode::SUCCESS
        }
        Err(Stop::Failed(why) | Stop::Skipped(why)) => {
            eprintln!("cm-peer: {why}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> CaseResult<(bool, SocketAddr, Plan)> {
    let mut place = None;
    let mut plan =
        Plan { only: Vec::new(), connections: 32, rounds: 20, source: None, dies: None, outlives: None };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| Stop::Failed(format!("{name} wants a value")))?;
        match name.as_str() {
            "--listen" => place = Some((true, address(&value)?)),
            "--connect" => place = Some((false, address(&value)?)),
            "--step" => plan.only.push(value),
            "--connections" => plan.connections = value.parse()?,
            "--rounds" => plan.rounds = value.parse()?,
            "--source" => plan.source = Some(value.parse()?),
            "--dies" => plan.dies = Some(value.parse()?),
            "--outlives" => plan.outlives = Some(value.parse()?),
            _ => return fail(format_args!("{name} is not known")),
        }
    }
    match place {
        Some((listens, address)) => Ok((listens, address, plan)),
        None => fail("neither --listen nor --connect"),
    }
}

/// Parses an address and a port, including a link-local address with an interface name.
fn address(text: &str) -> CaseResult<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let Some((host, port)) = text.rsplit_once(':') else { return fail(format_args!("{text} has no port")) };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match (host, port.parse::<u16>()?).to_socket_addrs()?.next() {
        Some(address) => Ok(address),
        None => fail(format_args!("{host} is no address")),
    }
}
