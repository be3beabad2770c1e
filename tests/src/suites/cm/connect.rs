//! Connections by IPv6 addresses. `conformance` has those of IPv4, and what all of them carry.

use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;

use rdmacm::EventType;
use verbs::Gid;

use super::{SUITE, at};
use crate::cases;
use crate::cm_fabric::{Connected, connect, expect};
use crate::cm_sides::netdev;
use crate::fabric::{self, PATIENCE};
use crate::process;
use crate::runner::{Case, CaseResult, fail};
use crate::tools::run;

/// Cases of devices with a network interface, which they change.
pub(super) fn of_interface() -> Vec<Case> {
    cases!(SUITE, a_connection_by_ipv6_address_carries_messages_both_ways)
}

/// An address that the cases of IPv6 give the netdev.
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd09, 9, 0, 0, 0, 0, 0, 1));

fn both_ways(ip: IpAddr) -> CaseResult {
    let Connected { server, client, accepted, ends, .. } = connect(at(ip))?;
    let [(mut here, mut here_qp), (mut there, mut there_qp)] = ends;
    here.send(&mut here_qp, b"there")?;
    assert_eq!(there.receive()?, b"there");
    there.send(&mut there_qp, b"and back")?;
    assert_eq!(here.receive()?, b"and back");

    let here_qp = here_qp.to_error()?;
    client.id.disconnect()?;
    expect(&server.channel, EventType::DISCONNECTED)?;
    accepted.disconnect()?;
    expect(&client.channel, EventType::DISCONNECTED)?;
    drop((here_qp, there_qp));
    Ok(())
}

/// Gives the netdev an IPv6 address, and waits until the device has its GID.
fn a_connection_by_ipv6_address_carries_messages_both_ways() -> CaseResult {
    let netdev = netdev()?;
    let change = |what: &str| {
        run(Command::new("ip").args(["-6", "addr", what, &format!("{V6}/64"), "dev", &netdev, "nodad"]))
    };
    change("replace")?;
    let context = fabric::open()?;
    let wanted = match V6 {
        IpAddr::V6(ip) => Gid::from(ip),
        IpAddr::V4(ip) => Gid::from(ip),
    };
    let has_gid = || context.gid_table().is_ok_and(|table| table.iter().any(|entry| entry.gid == wanted));
    if !process::wait_until(PATIENCE, has_gid) {
        return fail(format_args!("the device has no GID for {V6}"));
    }
    let result = both_ways(V6);
    change("del")?;
    result
}
