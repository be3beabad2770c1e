//! Connections by address: rdma-core's `cmtime` and ours on rxe, and ours on soft.
//!
//! Both ends are the same program on the same device. rdma-core's newest `cmtime` runs with its own
//! libraries, because Debian 12 has a different program with that name.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::guest::{LIMIT, Plan, on_device};
use super::table::{Row, number};
use crate::process::{Process, free_port, is_listening_beside, pair};

/// The addresses of rxe0 in the guest and of a soft device.
const RXE: &str = "10.9.9.1";
const SOFT: &str = "127.0.0.1";

/// Measures the time to establish 1,000 connections, with each program in turn.
pub(super) fn rows(plan: &Plan) -> Result<Vec<Row>> {
    let ours = plan.ours.with_file_name("cmtime");
    let [theirs, ours_rxe, ours_soft] = plan.medians(|| {
        Ok([
            full_connect(|| theirs(&plan.newest), RXE)?,
            full_connect(|| on_device(&ours, "rxe0"), RXE)?,
            full_connect(|| on_device(&ours, "soft0"), SOFT)?,
        ])
    })?;
    Ok(vec![
        Row::new("cmtime -c 1000, rxe: time", [ours_rxe, theirs], "µs", 1.1),
        Row::new("cmtime -c 1000, ours on soft, theirs on rxe: time", [ours_soft, theirs], "µs", 0.5),
    ])
}

/// Returns rdma-core's newest `cmtime`, which is unpacked below `root`.
fn theirs(root: &Path) -> Command {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let path = std::env::join_paths([&libraries, &libraries.join("libibverbs")]).unwrap_or_default();
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(path).args(["--argv0", "cmtime"]).arg(root.join("usr/bin/cmtime"));
    command
}

/// Matches the total in `full connect  2233  2233582  0  0  2226215  244603`, in the first table.
pub(super) const FULL_CONNECT: &str = r"full connect +\d+ +(\d+)";

/// Returns the time in the client's first table, in microseconds: the time with queue pairs from
/// the first call until the last connection is established.
fn full_connect(program: impl Fn() -> Command, address: &str) -> Result<f64> {
    let port = free_port()?;
    // The base of the fictitious queue pair numbers, which must differ between the ends.
    let end = |base: &str| {
        let mut command = program();
        command.args(["-b", address, "-C", address, "-c", "1000", "-p", &port.to_string(), "-q", base]);
        command
    };
    let server = Process::start("server", end("200000").arg("-L"))?;
    let client = || Process::start("client", &mut end("100000"));
    let said = pair(server, |process| is_listening_beside(process, port), client, LIMIT)?;
    number(&said, FULL_CONNECT)
}
