//! rxe0 on one end of a veth pair, with an address.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{shell, wait_for};

const SET_UP: &str = "ip link add veth0 type veth peer name veth1 && ip link set veth0 up && \
     ip link set veth1 up && ip addr add 10.9.9.1/24 dev veth0 && rdma link add rxe0 type rxe netdev veth0";

/// The GID for the address.
const GID: &str = "0000:0000:0000:0000:0000:ffff:0a09:0901";

/// Makes rxe0 and waits until it is usable: its node, an active port and the GID for its address.
pub(super) fn set_up(deadline: Instant) -> Result<()> {
    shell(SET_UP)?;
    let port = Path::new("/sys/class/infiniband/rxe0/ports/1");
    let read = |file: &str| fs::read_to_string(port.join(file)).unwrap_or_default();
    wait_for(deadline, || {
        let node = Path::new("/dev/infiniband/uverbs0").exists();
        let active = read("state").contains("ACTIVE");
        let gid = (0..8).any(|i| read(&format!("gids/{i}")).trim_end() == GID);
        ensure!(
            active && node && gid,
            "rxe0 did not come up: active {active}, uverbs0 {node}, GID {GID} {gid}"
        );
        Ok(())
    })
}
