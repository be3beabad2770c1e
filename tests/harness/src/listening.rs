//! [`wait_for_listening_id`]: servers that listen with a librdmacm id.

use std::process::Command;

use crate::process::{self, Running};
use crate::runner::{CaseResult, Stop, fail};
use crate::tools::{LIMIT, run};

/// Waits until a program listens on an rdma_cm port. Socket tables do not show these ports.
///
/// # Errors
/// Fails if no program listens within the time limit, or if `rdma` cannot list the ids.
pub fn wait_for_listening_id(port: u16, server: &mut Running) -> CaseResult {
    let listens = || {
        let listed = run(Command::new("rdma").args(["resource", "show", "cm_id"]))?;
        Ok::<_, Stop>(has_listener(&listed.stdout, port))
    };
    let mut problem = None;
    let came = process::wait_until(LIMIT, || match listens() {
        Ok(listens) => listens || server.has_ended(),
        Err(why) => {
            problem = Some(why);
            true
        }
    });
    match problem {
        Some(why) => Err(why),
        // If the server has ended, its output gives the reason.
        None if came => Ok(()),
        None => fail(format_args!("no program listens at rdma_cm port {port}")),
    }
}

/// Parses `link mlx5_0/1 cm-idn 9 state LISTEN ps TCP pid 176 comm rping src-addr 10.9.9.1:7174
/// dst-addr 0.0.0.0:0`.
#[must_use]
pub fn has_listener(listed: &str, port: u16) -> bool {
    let port = format!(":{port}");
    listed.lines().filter(|line| line.contains(" state LISTEN ")).any(|line| {
        let source = line.split_once(" src-addr ").and_then(|(_, rest)| rest.split_ascii_whitespace().next());
        source.is_some_and(|source| source.ends_with(&port))
    })
}
