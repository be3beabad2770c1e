//! Runs two programs that connect over TCP and expects both to succeed.

use std::process::Command;
use std::time::Duration;

use crate::process::{self, Finished, Running};
use crate::runner::{CaseResult, Stop, fail};

/// Runs a server that listens on a loopback TCP port, and its client, until both end.
///
/// # Errors
/// Fails if a program cannot start, fails, or exceeds the time limit. The error describes both
/// programs.
pub fn meet(
    server: &mut Command,
    client: &mut Command,
    port: u16,
    limit: Duration,
) -> CaseResult<[Finished; 2]> {
    let mut listening = Running::start(server)?;
    if !process::wait_for_listener(port, limit, || !listening.has_ended()) {
        return fail(format_args!(
            "{server:?} does not listen: {}",
            told(&listening.finish(Duration::ZERO)?)
        ));
    }
    both(listening, Running::start(client)?, limit)
}

/// Waits for a client and its server.
///
/// # Errors
/// Fails if a program fails or exceeds the time limit. The error describes both programs.
pub fn both(server: Running, client: Running, limit: Duration) -> CaseResult<[Finished; 2]> {
    let client = client.finish(limit)?;
    // A server may wait forever for a failed client.
    let patience = if client.as_ref().is_ok_and(|end| end.status.success()) { limit } else { GRACE };
    let server = server.finish(patience)?;
    match (server, client) {
        (Ok(server), Ok(client)) if server.status.success() && client.status.success() => {
            Ok([server, client])
        }
        (server, client) => Err(Stop::Failed(format!("client {}; server {}", told(&client), told(&server)))),
    }
}

/// The time for a server to report that its client has failed.
const GRACE: Duration = Duration::from_secs(3);

/// Describes how a program ended, with its output.
pub fn told(end: &Result<Finished, Finished>) -> String {
    let (how, Finished { status, stdout, stderr }) = match end {
        Ok(finished) => ("ended with", finished),
        Err(killed) => ("had to be killed,", killed),
    };
    format!("{how} {status}: {:?}, {:?}", stderr.trim_end(), stdout.trim_end())
}
