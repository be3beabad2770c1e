//! A bond that fails over to its other interface and takes the Ethernet address of that interface:
//! each id on the bond gets one event. When the bond fails back, its address matches the ids again.
//! The kernel then raises no event.
//!
//! This does not prove that connections survive. With both ends on one device, packets still carry
//! the former Ethernet address, which rxe attributes to another machine.
//!
//! # References
//! linux `cma_netdev_change`

use std::net::IpAddr;
use std::process::Command;

use rdmacm::{CmId, EventChannel, EventType, PortSpace};
use verbs::Device;
use verbs_fixtures::cm_fabric::{Connected, connect, expect};
use verbs_fixtures::fabric::{PORT, eventually};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};
use verbs_harness::sandbox::ip;
use verbs_harness::tools::run;

use super::server::{SUITE, at};

pub(super) fn cases() -> Vec<Case> {
    cases!(SUITE, ids_are_told_that_their_bond_has_failed_over)
}

/// A bond and its two interfaces. Dropping it deletes them.
struct Bond;

/// The bond's name.
const BOND: &str = "failover";

/// The names of the bond's interfaces.
const LINKS: [&str; 2] = ["failover0", "failover1"];

/// The device on the bond.
const DEVICE: &str = "rxe8";

/// The device's address.
const ADDRESS: [u8; 4] = [10, 98, 0, 1];

impl Bond {
    fn new() -> CaseResult<Self> {
        let loaded = run(Command::new("modprobe").args(["bonding", "max_bonds=0"]))?;
        if !loaded.status.success() {
            return skip(format_args!("the kernel has no bonds: {}", loaded.stderr.trim_end()));
        }
        let bond = Self;
        let mode = ["mode", "active-backup", "fail_over_mac", "active", "miimon", "100"];
        ip(&[&["link", "add", BOND, "type", "bond"], &mode[..]].concat())?;
        for link in LINKS {
            ip(&["link", "add", link, "type", "dummy"])?;
            ip(&["link", "set", link, "master", BOND])?;
        }
        let [a, b, c, d] = ADDRESS;
        ip(&["addr", "add", &format!("{a}.{b}.{c}.{d}/24"), "dev", BOND])?;
        ip(&["link", "set", BOND, "up"])?;
        bond.use_link(LINKS[0])?;
        Ok(bond)
    }

    fn use_link(&self, link: &str) -> CaseResult {
        ip(&["link", "set", BOND, "type", "bond", "active_slave", link])
    }

    /// Creates a device on the bond.
    fn device(&self) -> CaseResult<Device> {
        let added = run(Command::new("rdma").args(["link", "add", DEVICE, "type", "rxe", "netdev", BOND]))?;
        if !added.status.success() {
            return fail(format_args!("{added:?}"));
        }
        let device = verbs::devices()?.find(DEVICE)?;
        eventually("the device has a GID for its address", || {
            let gid = device.open().and_then(|context| context.find_gid(PORT));
            gid.is_ok_and(|gid| gid.gid.to_ipv4() == Some(ADDRESS.into()))
        })?;
        Ok(device)
    }
}

impl Drop for Bond {
    fn drop(&mut self) {
        for link in [BOND, LINKS[0], LINKS[1]] {
            let _ = ip(&["link", "del", link]);
        }
    }
}

fn ids_are_told_that_their_bond_has_failed_over() -> CaseResult {
    let bond = Bond::new()?;
    let device = bond.device()?;
    let here = at(IpAddr::from(ADDRESS));
    let channel = EventChannel::new()?;
    let (idle, bound) = (channel.create_id(PortSpace::TCP)?, channel.create_id(PortSpace::TCP)?);
    bound.bind_addr(here)?;
    let Connected { server, client, accepted, ends, .. } = connect(here)?;

    bond.use_link(LINKS[1])?;
    told(&channel, &[&bound])?;
    told(&client.channel, &[&client.id])?;
    told(&server.channel, &[&server.listener, &accepted])?;
    for channel in [&channel, &client.channel, &server.channel] {
        assert!(channel.try_next_event()?.is_none());
    }
    drop((idle, ends, device));
    Ok(())
}

/// Waits until each id has received the event on its channel, in any order.
fn told(channel: &EventChannel, ids: &[&CmId]) -> CaseResult {
    let mut left: Vec<_> = ids.iter().map(|id| id.key()).collect();
    while !left.is_empty() {
        let event = expect(channel, EventType::ADDR_CHANGE)?;
        let Some(at) = left.iter().position(|key| *key == event.id) else {
            return Err(Stop::Failed(format!("{event:?}, of an id that was told before")));
        };
        left.remove(at);
    }
    Ok(())
}
