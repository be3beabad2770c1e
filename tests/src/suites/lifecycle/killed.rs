//! Ping-pongs of which one side is killed.
//!
//! Between two of ours the survivor notices the end of the other. rdma-core's programs close their
//! exchange connection before the first message, so that a survivor of a pair with one of them ends
//! only where a request of its own fails. On rxe none does: the programs ask for 7 retries, which
//! rxe takes for retries without limit (seen on 6.1). It waits for ever, as rdma-core's do, and is
//! killed here too.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::{SUITE, back_to, resources};
use crate::port;
use crate::process::{self, Running};
use crate::runner::{Case, CaseResult, Stop, fail};
use crate::tools::{DEVICE, LIMIT, Maker, gid_index};

/// Each ping-pong with either side killed, one of them asleep between messages; and the pairs with
/// rdma-core's.
pub(super) fn cases() -> Vec<Case> {
    const TOOLS: &[&str] = &["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"];
    let mut cases = Vec::new();
    for tool in TOOLS {
        for (side, kill_server, flags) in [("server", true, &[][..]), ("client", false, &["-e"][..])] {
            let name = format!("a killed {side} of {tool} ends its peer and leaves nothing");
            cases.push(Case::new(SUITE, name, move || ours_beside_ours(tool, kill_server, flags)));
        }
        for (dead, survivor) in [(Maker::Ours, Maker::Theirs), (Maker::Theirs, Maker::Ours)] {
            let name =
                format!("{tool} of which {dead} serves and is killed, then {survivor}, leaves nothing");
            let makers = (dead, survivor);
            cases.push(Case::new(SUITE, name, move || beside_theirs(tool, &makers)));
        }
    }
    cases
}

/// Starts both sides of an endless ping-pong: the server, then the client.
fn start(tool: &str, makers: (&Maker, &Maker), flags: &[&str]) -> CaseResult<(Running, Running)> {
    let (port, gid) = (port::free()?, gid_index()?.to_string());
    let start = |maker: &Maker, operands: &[&str]| -> CaseResult<Running> {
        let mut command = maker.tool(tool)?;
        command.args(["-d", DEVICE, "-g", &gid, "-p", &port.to_string(), "-n", "1000000000"]);
        Ok(Running::start(command.args(flags).args(operands))?)
    };
    let mut server = start(makers.0, &[])?;
    if !process::wait_for_listener(port, LIMIT, || !server.has_ended()) {
        return fail(format_args!("the server does not listen: {:?}", server.finish(Duration::ZERO)?));
    }
    Ok((server, start(makers.1, &["127.0.0.1"])?))
}

/// Kills a side, which has not ended before.
fn kill_it(side: Running) -> CaseResult {
    side.kill();
    let (Ok(killed) | Err(killed)) = side.finish(LIMIT)?;
    assert_eq!(killed.status.code(), None, "it ended before it was killed: {killed:?}");
    Ok(())
}

fn ours_beside_ours(tool: &str, kill_server: bool, flags: &[&str]) -> CaseResult {
    let baseline = resources()?;
    let (mut server, mut client) = start(tool, (&Maker::Ours, &Maker::Ours), flags)?;
    let has_met = |side: &mut Running| side.wait_for_output(LIMIT, |text| text.contains("  remote address:"));
    if !has_met(&mut server) || !has_met(&mut client) {
        let (server, client) = (server.finish(Duration::ZERO)?, client.finish(Duration::ZERO)?);
        return fail(format_args!("they do not meet: {server:?}, {client:?}"));
    }
    let held = resources()?;
    assert!(held.get("qp") > baseline.get("qp") && held.get("mr") > baseline.get("mr"), "{held:?}");
    let (killed, survivor) = if kill_server { (server, client) } else { (client, server) };
    kill_it(killed)?;
    let Ok(survivor) = survivor.finish(LIMIT)? else {
        return fail("its peer does not end");
    };
    let says_why = ["the peer has ended", "Failed status"].iter().any(|why| survivor.stderr.contains(why));
    assert!(survivor.status.code() == Some(1) && says_why, "{survivor:?}");
    back_to(&baseline)
}

/// The server is killed amid messages, then the client, which does not know.
fn beside_theirs(tool: &str, makers: &(Maker, Maker)) -> CaseResult {
    let baseline = resources()?;
    let before = sent()?;
    let (dead, mut survivor) = start(tool, (&makers.0, &makers.1), &[])?;
    let deadline = Instant::now() + LIMIT;
    while sent()? < before + 200 {
        if Instant::now() > deadline || survivor.has_ended() {
            let (dead, survivor) = (dead.finish(Duration::ZERO)?, survivor.finish(Duration::ZERO)?);
            return fail(format_args!("they do not play: {dead:?}, {survivor:?}"));
        }
        thread::yield_now();
    }
    let held = resources()?;
    kill_it(dead)?;
    // Its part goes, the other's stays.
    let half = resources()?;
    assert!(baseline["qp"] < half["qp"] && half["qp"] < held["qp"], "{baseline:?} {half:?} {held:?}");
    kill_it(survivor)?;
    back_to(&baseline)
}

/// Returns the packets that the device has sent.
fn sent() -> CaseResult<u64> {
    let text = fs::read_to_string(format!("/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/sent_pkts"))?;
    text.trim_end().parse().map_err(|error| Stop::Failed(format!("{text:?}: {error}")))
}
