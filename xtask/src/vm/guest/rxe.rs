//! rxe0 on one end of a veth pair, with an address.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::{SYSTEM_PATH, ip, wait_for, without_address_detection};

/// The netdev of the device, and its address.
const NETDEV: &str = "veth0";
const ADDRESS: &str = "10.9.9.1/24";
/// The GID of the address.
const GID: &str = "0000:0000:0000:0000:0000:ffff:0a09:0901";

/// Makes rxe0 and waits until it is usable: node, active port, and the GID of its address.
pub(super) fn set_up(deadline: Instant) -> Result<()> {
    without_address_detection();
    ip(
        &[],
        &format!(
            "link add {NETDEV} type veth peer name veth1\nlink set {NETDEV} up\nlink set veth1 up\n\
             addr add {ADDRESS} dev {NETDEV}\n"
        ),
    )?;
    let output = Command::new("rdma")
        .args(["link", "add", "rxe0", "type", "rxe", "netdev", NETDEV])
        .env("PATH", SYSTEM_PATH)
        .stdin(Stdio::null())
        .output()
        .context("cannot run rdma (package iproute2)")?;
    ensure!(output.status.success(), "rdma link add: {}", String::from_utf8_lossy(&output.stderr));
    let port = Path::new("/sys/class/infiniband/rxe0/ports/1");
    wait_for(deadline, || {
        let active = fs::read_to_string(port.join("state")).is_ok_and(|s| s.contains("ACTIVE"));
        let node = Path::new("/dev/infiniband/uverbs0").exists();
        let gid = (0..8).any(|i| {
            fs::read_to_string(port.join(format!("gids/{i}"))).is_ok_and(|gid| gid.trim_end() == GID)
        });
        let is_up = active && node && gid;
        ensure!(is_up, "rxe0 did not come up: active {active}, uverbs0 {node}, GID of {ADDRESS} {gid}");
        Ok(())
    })
}
