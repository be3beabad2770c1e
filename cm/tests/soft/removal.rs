//! Devices that disappear and appear.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};

use rdmacm::{CmId, ConnParam, EventChannel, EventKind, IdKey, PortSpace};
use verbs::Errno;

use crate::support::{
    Host, RESOLVE, Server, asking, connect, ip, is_inside, is_readable, next, readable, request, resolved,
};

/// An address on the loopback interface of the test's private network.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// The command that adds [`ADDRESS`] to the interface.
const NETWORK: &str = "ip address add 10.78.0.1/32 dev lo";

/// Waits until each id reports the removal of its device. The only other permitted event is the end
/// of a timewait.
#[track_caller]
fn removed<'a>(channel: &EventChannel, ids: impl IntoIterator<Item = &'a CmId>) {
    let mut left: BTreeSet<IdKey> = ids.into_iter().map(CmId::key).collect();
    while !left.is_empty() {
        let event = next(channel);
        if matches!(event.kind, EventKind::TimewaitExit) {
            continue;
        }
        let is_expected = matches!(event.kind, EventKind::DeviceRemoval) && left.remove(&event.id);
        assert!(is_expected, "{event:?}");
    }
    assert!(channel.try_next_event().unwrap().is_none());
}

#[test]
fn an_address_that_leaves_its_interface_removes_the_device_in_every_state() {
    const TEST: &str = "removal::an_address_that_leaves_its_interface_removes_the_device_in_every_state";
    if !is_inside(TEST, NETWORK) {
        return;
    }
    let _device = verbs::soft::bind(ADDRESS.into()).unwrap();
    let server = Server::on((ADDRESS, 0).into(), PortSpace::TCP, 0);
    let everywhere = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let pair = connect(&server);
    let channel = EventChannel::new().unwrap();
    let idle = channel.create_id(PortSpace::TCP).unwrap();
    let bound = channel.create_id(PortSpace::TCP).unwrap();
    bound.bind_addr((ADDRESS, 0)).unwrap();
    let found = channel.create_id(PortSpace::TCP).unwrap();
    found.resolve_addr(None, server.address, RESOLVE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::AddrResolved));
    let routed = resolved(&channel, PortSpace::TCP, server.address);
    let (its, client) = asking(server.address);
    let asked = request(&server.channel).id;
    let its_own = EventChannel::new().unwrap();
    let unread = resolved(&its_own, PortSpace::TCP, everywhere.address_at(ADDRESS));
    unread.connect_with(&ConnParam { qp_num: 0xff_ff07, ..ConnParam::default() }).unwrap();
    readable(&everywhere.channel);
    let its_too = EventChannel::new().unwrap();
    let accepting = resolved(&its_too, PortSpace::TCP, server.address);
    accepting.connect_with(&ConnParam { qp_num: 0xff_ff09, ..ConnParam::default() }).unwrap();
    let accepted = request(&server.channel).id;
    accepted.accept_with(&ConnParam { qp_num: 0xff_ff08, ..ConnParam::default() }).unwrap();
    assert!(matches!(next(&its_too).kind, EventKind::ConnectResponse(_)));
    let ended = connect(&server);
    ended.client.disconnect().unwrap();
    for (channel, id) in [(&server.channel, &ended.server), (&ended.channel, &ended.client)] {
        let event = next(channel);
        assert!(event.id == id.key() && matches!(event.kind, EventKind::Disconnected), "{event:?}");
        id.disconnect().unwrap();
    }

    ip("address delete 10.78.0.1/32 dev lo");
    removed(&channel, [&bound, &found, &routed]);
    removed(&pair.channel, [&pair.client]);
    removed(&ended.channel, [&ended.client]);
    removed(&server.channel, [&server.listener, &pair.server, &accepted, &ended.server]);
    // A pending request has no event. The unread request is gone.
    assert_eq!(asked.accept_with(&ConnParam::default()).unwrap_err().errno, Errno::NXIO);
    assert!(!is_readable(&server.channel));
    removed(&its, [&client]);
    removed(&its_own, [&unread]);
    removed(&its_too, [&accepting]);
    removed(&everywhere.channel, []);
    assert_eq!(routed.connect_with(&ConnParam::default()).unwrap_err().errno, Errno::NXIO);
    assert_eq!(pair.client.disconnect().unwrap_err().errno, Errno::NXIO);
    assert_eq!(idle.bind_addr((ADDRESS, 0)).unwrap_err().errno, Errno::NODEV);

    // The port of the closed listener is free; the other listener uses the device again.
    ip("address add 10.78.0.1/32 dev lo");
    drop(routed);
    idle.bind_addr((ADDRESS, server.address.port())).unwrap();
    let (_its, client) = asking(everywhere.address_at(ADDRESS));
    let asked = request(&everywhere.channel).id;
    drop((client, asked));
    assert!(everywhere.channel.try_next_event().unwrap().is_none());
}

/// Returns a socket that has the name of a listener at 127.0.0.1 but never replies.
fn silent_listener(port: u16) -> UnixListener {
    let name = format!("verbs-soft/cm/2/{:x}/{port}/127.0.0.1", PortSpace::TCP.0);
    UnixListener::bind_addr(&UnixAddress::from_abstract_name(name).unwrap()).unwrap()
}

#[test]
fn a_device_at_the_loopback_address_gets_the_clients_of_its_listener_on_all_addresses() {
    const TEST: &str =
        "removal::a_device_at_the_loopback_address_gets_the_clients_of_its_listener_on_all_addresses";
    if !is_inside(TEST, NETWORK) {
        return;
    }
    let _device = verbs::soft::bind(ADDRESS.into()).unwrap();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let name = format!("verbs-soft/cm/2/{:x}/{}/127.0.0.1", PortSpace::TCP.0, server.address.port());
    let answer = || {
        let mut answer = Vec::new();
        let name = UnixAddress::from_abstract_name(&name).unwrap();
        UnixStream::connect_addr(&name).unwrap().read_to_end(&mut answer).unwrap();
        // The reply lacks the token.
        answer[..answer.len() - 8].to_vec()
    };
    let only = |ip: Ipv4Addr| [&[1][..], &ip.to_ipv6_mapped().octets()].concat();
    assert_eq!(answer(), only(ADDRESS));
    let _own = verbs::soft::bind(Ipv4Addr::LOCALHOST.into()).unwrap();
    // A call that selects a device notices the new device.
    server.channel.create_id(PortSpace::TCP).unwrap().bind_addr((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    assert_eq!(answer(), only(Ipv4Addr::LOCALHOST));
    ip("address delete 10.78.0.1/32 dev lo");
    server.channel.create_id(PortSpace::TCP).unwrap().bind_addr((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    assert_eq!(answer(), only(Ipv4Addr::LOCALHOST));
}

#[test]
fn a_device_that_is_removed_while_a_listener_is_asked_ends_the_ids_on_it() {
    const TEST: &str = "removal::a_device_that_is_removed_while_a_listener_is_asked_ends_the_ids_on_it";
    if !is_inside(TEST, NETWORK) {
        return;
    }
    let _device = verbs::soft::bind(ADDRESS.into()).unwrap();
    let channel = EventChannel::new().unwrap();
    let to = |port| (Ipv4Addr::LOCALHOST, port);
    // One id queries for its request, two ids query for their addresses. The last id has no device
    // yet.
    let connects = resolved(&channel, PortSpace::TCP, to(1));
    let listeners = [1, 2, 3].map(silent_listener);
    connects.connect_with(&ConnParam::default()).unwrap();
    let bound = channel.create_id(PortSpace::TCP).unwrap();
    bound.resolve_addr(Some((ADDRESS, 0).into()), to(2), RESOLVE).unwrap();
    let unbound = channel.create_id(PortSpace::TCP).unwrap();
    unbound.resolve_addr(None, to(3), RESOLVE).unwrap();
    let clients = listeners.each_ref().map(|listener| listener.accept().unwrap().0);

    ip("address delete 10.78.0.1/32 dev lo");
    removed(&channel, [&connects, &bound]);
    for mut client in clients {
        // The query of a dropped id is cancelled.
        let _ =
            client.write_all(&[&[1][..], &Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(), &[7; 8]].concat());
    }
    let event = next(&channel);
    assert_eq!(event.id, unbound.key());
    let error = event.ok().unwrap_err();
    assert!(error.verb == "resolve_addr" && error.errno == Errno::NODEV, "{error}");
    assert_eq!(connects.disconnect().unwrap_err().errno, Errno::NXIO);
    drop((connects, bound, unbound));
    assert!(channel.try_next_event().unwrap().is_none());
}

#[test]
fn a_listener_on_all_devices_takes_one_that_is_made_later() {
    let _first = Host::new();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let second = Host::new();
    let (_channel, client) = asking(second.at(server.address.port()));
    let request = request(&server.channel);
    let local = request.id.local_addr().unwrap().unwrap();
    assert_eq!(local.ip().unwrap().ip(), second.address);
    drop(client);
}

#[test]
fn a_request_may_name_an_address_that_its_machine_has_got_since_the_last_one() {
    const TEST: &str = "removal::a_request_may_name_an_address_that_its_machine_has_got_since_the_last_one";
    if !is_inside(TEST, NETWORK) {
        return;
    }
    let later = Ipv4Addr::new(10, 78, 0, 2);
    let _device = verbs::soft::bind(ADDRESS.into()).unwrap();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let ask = |address: Ipv4Addr| {
        let (_channel, client) = asking((address, server.address.port()).into());
        let request = request(&server.channel);
        let local = request.id.local_addr().unwrap().unwrap();
        assert_eq!(local.ip().unwrap().ip(), address);
        drop(request);
        drop(client);
    };
    ask(Ipv4Addr::LOCALHOST);
    ip("address add 10.78.0.2/32 dev lo");
    ask(later);
}
