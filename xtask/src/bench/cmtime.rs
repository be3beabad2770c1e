//! Connections by address: `cmtime` of rdma-core and ours on rxe, and ours on soft.
//!
//! Both ends are one program on one device. The newest `cmtime` of rdma-core runs with its own
//! libraries, because Debian 12 has another program of that name.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::guest::{Plan, Row, medians, on_device};
use crate::process::{Process, free_port, is_listening_beside};

/// The address of rxe0 in the guest, and that of a soft device.
const RXE: &str = "10.9.9.1";
const SOFT: &str = "127.0.0.1";

/// The time limit of the start of a server, and of its end behind its client's.
const LIMIT: Duration = Duration::from_secs(60);

/// Measures the time in which 1,000 connections are established, in turn.
pub(super) fn rows(plan: &Plan<'_>) -> Result<Vec<Row>> {
    let ours = plan.ours.parent().context("the examples' folder lies in another")?.join("cmtime");
    let [theirs, ours_rxe, ours_soft] = medians(plan, || {
        Ok([
            full_connect(|| theirs(plan.newest), RXE)?,
            full_connect(|| on_device(&ours, "rxe0"), RXE)?,
            full_connect(|| on_device(&ours, "soft0"), SOFT)?,
        ])
    })?;
    let row = |what: &str, ours, target| Row {
        what: format!("cmtime -c 1000, {what}: time"),
        ours,
        theirs,
        unit: "µs",
        target: Some(target),
    };
    Ok(vec![row("rxe", ours_rxe, 1.1), row("ours on soft, theirs on rxe", ours_soft, 0.5)])
}

/// Returns rdma-core's newest `cmtime`, which is unpacked below `root`.
fn theirs(root: &Path) -> Command {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let mut paths = libraries.clone().into_os_string();
    paths.push(":");
    paths.push(libraries.join("libibverbs"));
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(paths).args(["--argv0", "cmtime"]).arg(root.join("usr/bin/cmtime"));
    command
}

/// Returns the microseconds of the client's first table, with queue pairs, from its first call to
/// the last connection's establishment.
fn full_connect(program: impl Fn() -> Command, address: &str) -> Result<f64> {
    let port = free_port()?;
    // Numbers of queue pairs that do not exist, which both ends invent for one device.
    let end = |base: &str| {
        let mut command = program();
        command.args(["-b", address, "-C", address, "-c", "1000", "-p", &port.to_string(), "-q", base]);
        command
    };
    let mut server = Process::start("server", end("200000").arg("-L"))?;
    let process = server.id();
    server.wait_until(Instant::now() + LIMIT, "listen", || is_listening_beside(process, port))?;
    let client = end("100000").output()?;
    let said = String::from_utf8_lossy(&client.stdout);
    let complaint = String::from_utf8_lossy(&client.stderr);
    ensure!(client.status.success(), "cmtime at {address} failed: {}\n{said}{complaint}", client.status);
    let status = server.wait(Instant::now() + LIMIT)?;
    ensure!(status.success(), "cmtime's server at {address} failed: {status}");
    total(&said).with_context(|| format!("no time in what cmtime printed:\n{said}"))
}

/// Returns the total in `full connect  2233  2233582  0  0  2226215  244603`, the first such line.
fn total(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix("full connect"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_first_table() {
        let said = "step             avg/conn  total(us)    us/conn\n\
                    full connect         2233    2233582          0\n\
                    full connect          405     405306          0\n";
        assert_eq!(total(said), Some(2_233_582.0));
        assert_eq!(total("nothing"), None);
    }
}
