//! Two processes that connect by address, each with its device: the library behind `cm-peer`.
//!
//! | module | content |
//! |---|---|
//! | [`steps`] | connections, rejects and lookups, one after the other |
//! | [`exchange`] | verified messages and datagrams |
//! | [`high_level`] | a `Listener` and a `Connector` |
//! | [`outlive`] | the end of a connection whose peer is killed |
//!
//! The listening side has a listener for connections and one for datagrams. Between the steps both
//! sides meet over TCP ([`Link`]), so that neither exits while its peer may still need a message of
//! the connection manager repeated. Everything else goes through the addresses.
//!
//! Everything is safe code.

pub mod exchange;
pub mod high_level;
pub mod outlive;
pub mod steps;

use std::net::{IpAddr, SocketAddr};

use rdmacm::PortSpace;
use verbs_harness::runner::{CaseResult, Stop, fail};

use crate::cm_fabric::Server;
use crate::peer::link::Link;
use outlive::State;

/// The plan of both sides, equal except for `source`, `dies` and `outlives`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of the steps to run; if empty, all except [`outlive`].
    pub only: Vec<String>,
    /// The number of connections at once.
    pub connections: usize,
    /// The number of messages each way on a connection.
    pub rounds: u64,
    /// The local address of the [outlived](outlive) connection; any if `None`.
    pub source: Option<IpAddr>,
    /// The state in which this side kills itself.
    pub dies: Option<State>,
    /// The state in which the other side kills itself.
    pub outlives: Option<State>,
}

/// The listening side.
#[derive(Debug)]
pub struct Listens {
    pub(crate) tcp: Server,
    pub(crate) udp: Server,
    pub(crate) plan: Plan,
    pub(crate) link: Link,
}

/// The connecting side.
#[derive(Debug)]
pub struct Connects {
    /// The address of the listener of connections.
    pub(crate) tcp: SocketAddr,
    /// The address of the listener of datagrams.
    pub(crate) udp: SocketAddr,
    pub(crate) plan: Plan,
    pub(crate) link: Link,
}

/// A step, with the function of each side.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The name.
    pub name: &'static str,
    /// The listening side's function.
    pub listens: fn(&mut Listens) -> CaseResult,
    /// The connecting side's function.
    pub connects: fn(&mut Connects) -> CaseResult,
}

/// Listens on an address, with TCP on its port, and runs the steps. Returns their number.
///
/// # Errors
/// A failed step, on either side.
pub fn listen(address: SocketAddr, plan: Plan) -> CaseResult<usize> {
    let steps = chosen(&plan)?;
    let at = |space| Server::new(with_port(address, 0), space, 0);
    let (tcp, udp) = (at(PortSpace::TCP)?, at(PortSpace::UDP)?);
    let mut link = Link::listen(address)?;
    link.tell(&format!("{} {}", tcp.address.port(), udp.address.port()))?;
    let mut side = Listens { tcp, udp, plan, link };
    let done = steps.iter().try_for_each(|step| {
        side.link.meet(step.name)?;
        (step.listens)(&mut side).map_err(|stop| stop.of(step.name))?;
        finish(step, &side.plan, &mut side.link)
    });
    told(done, &mut side.link)?;
    Ok(steps.len())
}

/// Connects to the side listening on an address and runs the steps. Returns their number.
///
/// # Errors
/// A failed step, on either side.
pub fn connect(address: SocketAddr, plan: Plan) -> CaseResult<usize> {
    let steps = chosen(&plan)?;
    let mut link = Link::connect(address)?;
    let line = link.hear()?;
    let Some((tcp, udp)) = line.split_once(' ') else { return fail(format_args!("{line:?} is no ports")) };
    let (tcp, udp) = (with_port(address, tcp.parse()?), with_port(address, udp.parse()?));
    let mut side = Connects { tcp, udp, plan, link };
    let done = steps.iter().try_for_each(|step| {
        side.link.meet(step.name)?;
        (step.connects)(&mut side).map_err(|stop| stop.of(step.name))?;
        finish(step, &side.plan, &mut side.link)
    });
    told(done, &mut side.link)?;
    Ok(steps.len())
}

/// Waits until both sides have finished a step, unless the other one was killed.
fn finish(step: &Step, plan: &Plan, link: &mut Link) -> CaseResult {
    println!("ok {}", step.name);
    if plan.outlives.is_some() { Ok(()) } else { link.meet("done") }
}

/// Reports a failure to the other side.
fn told(done: CaseResult, link: &mut Link) -> CaseResult {
    if let Err(Stop::Failed(why) | Stop::Skipped(why)) = &done {
        link.give_up(why);
    }
    done
}

/// Returns the steps of a plan.
fn chosen(plan: &Plan) -> CaseResult<Vec<Step>> {
    if plan.only.is_empty() {
        return Ok(steps::ALL.to_vec());
    }
    let all = || steps::ALL.iter().chain([&outlive::STEP]);
    let find = |name: &String| match all().find(|step| step.name == *name) {
        Some(step) => Ok(*step),
        None => fail(format_args!("there is no step {name}")),
    };
    plan.only.iter().map(find).collect()
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}
