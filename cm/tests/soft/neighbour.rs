//! Hosts on the network: a peer's host must be located before a connection is requested.

use std::net::Ipv4Addr;
use std::time::Duration;

use rdmacm::{EventChannel, EventKind, PortSpace};
use verbs::Errno;

use crate::support::{PATIENCE, ip, is_inside, next};

/// The commands that create a link with an address and a silent other end.
const NETWORK: &str = "ip link add one type veth peer name two && ip link set one up && \
                       ip link set two up && ip address add 10.77.0.1/24 dev one";

const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

#[test]
fn an_address_that_no_host_has_is_not_resolved() {
    if !is_inside("neighbour::an_address_that_no_host_has_is_not_resolved", NETWORK) {
        return;
    }
    let _device = verbs::soft::bind(OWN.into()).unwrap();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    id.resolve_addr(None, (OTHER, 7471), Duration::from_millis(200)).unwrap();
    let event = next(&channel);
    assert!(matches!(event.kind, EventKind::AddrError), "{event:?}");
    let error = event.ok().unwrap_err();
    assert_eq!(error.errno, Errno::TIMEDOUT);
    assert!(error.to_string().contains("no host answered"), "{error}");
}

#[test]
fn an_address_is_resolved_when_its_host_replies() {
    if !is_inside("neighbour::an_address_is_resolved_when_its_host_replies", NETWORK) {
        return;
    }
    let _device = verbs::soft::bind(OWN.into()).unwrap();
    let channel = EventChannel::new().unwrap();
    let ask = || {
        let id = channel.create_id(PortSpace::TCP).unwrap();
        id.resolve_addr(None, (OTHER, 7471), PATIENCE).unwrap();
        id
    };
    let first = ask();
    assert!(channel.try_next_event().unwrap().is_none(), "nobody has replied");
    ip("neighbour replace 10.77.0.2 lladdr 02:00:00:00:00:02 dev one");
    let event = next(&channel);
    assert!(matches!(event.kind, EventKind::AddrResolved) && event.id == first.key(), "{event:?}");
    let second = ask();
    let event = next(&channel);
    assert!(matches!(event.kind, EventKind::AddrResolved) && event.id == second.key(), "{event:?}");
}
