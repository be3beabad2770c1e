//! Addresses, ports and options.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use rdmacm::{Address, ConnParam, EventChannel, EventKind, IbAddress, PortSpace, RejectReason, Service};
use verbs::{Errno, Gid, QpState};

use crate::support::{Host, RESOLVE, Server, asking, connect, is_inside, next, request, resolved};

#[test]
fn a_port_has_one_listener_at_an_address() {
    let host = Host::new();
    let server = Server::new(&host);
    let channel = EventChannel::new().unwrap();
    let refusals = [(host.address, Errno::ADDRINUSE), (Ipv4Addr::UNSPECIFIED.into(), Errno::ADDRNOTAVAIL)];
    for (ip, errno) in refusals {
        let id = channel.create_id(PortSpace::TCP).unwrap();
        let error = id.bind_addr((ip, server.address.port())).unwrap_err();
        assert_eq!(error.errno, errno, "{error}");
        assert!(error.to_string().contains("another id has"), "{error}");
    }
    let other_space = channel.create_id(PortSpace::UDP).unwrap();
    other_space.bind_addr(server.address).unwrap();
    let other_host = Host::new();
    channel.create_id(PortSpace::TCP).unwrap().bind_addr(other_host.at(server.address.port())).unwrap();
    let address = server.address;
    drop(server);
    channel.create_id(PortSpace::TCP).unwrap().bind_addr(address).unwrap();
}

#[test]
fn ids_that_permit_it_share_a_port_until_one_listens() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    let [one, two] = [(); 2].map(|()| {
        let id = channel.create_id(PortSpace::TCP).unwrap();
        id.set_reuse_addr(true).unwrap();
        id
    });
    one.bind_addr(host.at(0)).unwrap();
    let shared = one.local_addr().unwrap().unwrap();
    two.bind_addr(shared).unwrap();
    assert_eq!(one.listen(1).unwrap_err().errno, Errno::ADDRINUSE);
    drop(two);
    one.listen(1).unwrap();
}

#[test]
fn addresses_of_no_soft_device_are_refused() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    let error = id.bind_addr((Ipv4Addr::new(192, 0, 2, 1), 0)).unwrap_err();
    assert_eq!(error.errno, Errno::ADDRNOTAVAIL, "{error}");
    let ib = IbAddress::new(Gid::ZERO, PortSpace::TCP, 0);
    assert_eq!(id.bind_addr(ib).unwrap_err().errno, Errno::AFNOSUPPORT);
    let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
    assert_eq!(id.bind_addr((link_local, 0)).unwrap_err().errno, Errno::INVAL);
    // The id is unchanged by the failed call.
    id.bind_addr(host.at(0)).unwrap();
    assert_eq!(id.bind_addr(host.at(0)).unwrap_err().errno, Errno::INVAL);
    let v6 = (Ipv6Addr::LOCALHOST, 7471);
    assert_eq!(id.resolve_addr(None, v6, RESOLVE).unwrap_err().errno, Errno::INVAL);
}

#[test]
fn an_address_that_no_device_reaches_is_an_event() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    // The device's loopback address reaches no remote host.
    match id.resolve_addr(None, (Ipv4Addr::new(192, 0, 2, 1), 7471), RESOLVE) {
        Ok(()) => {
            let error = next(&channel).ok().unwrap_err();
            assert_eq!(error.errno, Errno::NODEV, "{error}");
        }
        // This machine has no default route.
        Err(error) => assert_eq!(error.errno, Errno::NETUNREACH, "{error}"),
    }
    // The id can try another address.
    id.resolve_addr(None, host.at(7471), RESOLVE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::AddrResolved));
    assert_eq!(id.resolve_addr(None, host.at(7471), RESOLVE).unwrap_err().errno, Errno::INVAL);
}

#[test]
fn calls_before_their_time_are_refused() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    assert!(id.context().unwrap_err().to_string().contains("no device yet"));
    assert_eq!(id.resolve_route(RESOLVE).unwrap_err().errno, Errno::INVAL);
    assert_eq!(id.init_qp_attr(QpState::INIT).unwrap_err().errno, Errno::INVAL);
    assert_eq!((id.local_addr(), id.peer_addr(), id.port_num()), (Ok(None), Ok(None), Ok(None)));
    let id = resolved(&channel, PortSpace::TCP, host.at(7471));
    id.init_qp_attr(QpState::INIT).unwrap();
    assert_eq!(id.init_qp_attr(QpState::RTR).unwrap_err().errno, Errno::INVAL);
    assert_eq!(id.resolve_service(Service::Id(7)).unwrap_err().errno, Errno::OPNOTSUPP);
    assert_eq!(id.services().unwrap_err().errno, Errno::OPNOTSUPP);
    assert_eq!(id.set_ib_path(&[]).unwrap_err().errno, Errno::OPNOTSUPP);
    assert_eq!(id.listen(1).unwrap_err().errno, Errno::INVAL);
}

#[test]
fn options_reach_the_path_and_the_queue_pair() {
    let host = Host::new();
    let server = Server::new(&host);
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::TCP).unwrap();
    // Only the lower 5 bits count.
    id.set_ack_timeout(0xe0 | 15).unwrap();
    id.set_tos(104).unwrap();
    id.resolve_addr(None, server.address, RESOLVE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::AddrResolved));
    assert_eq!(id.set_af_only(true).unwrap_err().errno, Errno::INVAL);
    id.resolve_route(RESOLVE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::RouteResolved));
    let [path] = id.paths().unwrap()[..] else { panic!("one path") };
    assert_eq!((path.traffic_class, path.packet_life_time), (104, 14));
    id.connect_with(&ConnParam { qp_num: 7, ..ConnParam::default() }).unwrap();
    let request = request(&server.channel);
    let (attr, _) = request.id.init_qp_attr(QpState::RTR).unwrap();
    assert_eq!((attr.ah_attr.grh.unwrap().traffic_class, attr.dest_qp_num), (104, 7));
    let (attr, _) = request.id.init_qp_attr(QpState::RTS).unwrap();
    // The device's ACK delay is short compared with the path's life time.
    assert_eq!(attr.timeout, 15);
}

#[test]
fn localhost_finds_a_listener_on_any_address() {
    let _host = Host::new();
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
    let server = Server::on(any, PortSpace::TCP, 0);
    let channel = EventChannel::new().unwrap();
    let to = (Ipv4Addr::LOCALHOST, server.address.port());
    let client = resolved(&channel, PortSpace::TCP, to);
    assert_eq!(client.peer_addr().unwrap(), Some(to.into()));
    client.connect_with(&ConnParam::default()).unwrap();
    let request = request(&server.channel);
    assert_eq!(request.id.local_addr().unwrap(), Some(to.into()));
    // The listener replies even if its program does not run.
    let hasty = channel.create_id(PortSpace::TCP).unwrap();
    hasty.resolve_addr(None, to, Duration::ZERO).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::AddrResolved));
}

#[test]
fn a_client_of_localhost_has_the_address_of_its_peer_as_a_socket_has() {
    let _host = Host::new();
    let server = Server::on((Ipv4Addr::UNSPECIFIED, 0).into(), PortSpace::TCP, 0);
    let channel = EventChannel::new().unwrap();
    let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
    // 127.0.0.1 is also the source for the other loopback addresses.
    for (qp_num, to) in (0xff_ff00..).zip([localhost, [127, 3, 2, 1].into()]) {
        let client = resolved(&channel, PortSpace::TCP, server.address_at(to));
        client.connect_with(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
        let request = request(&server.channel);
        for (id, local, peer) in [(&client, localhost, to), (&request.id, to, localhost)] {
            let ip = |address: Option<Address>| address.unwrap().ip().unwrap().ip();
            assert_eq!((ip(id.local_addr().unwrap()), ip(id.peer_addr().unwrap())), (local, peer));
        }
    }
}

#[test]
fn a_listener_on_any_address_of_ipv6_takes_ipv4_too_unless_it_is_told_not_to() {
    let host = Host::new();
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, 0).into();
    let channel = EventChannel::new().unwrap();
    for af_only in [false, true] {
        let listener = channel.create_id(PortSpace::TCP).unwrap();
        listener.set_af_only(af_only).unwrap();
        listener.bind_addr(any).unwrap();
        listener.listen(1).unwrap();
        let port = listener.local_addr().unwrap().unwrap().port();
        let client = resolved(&channel, PortSpace::TCP, host.at(port));
        client.connect_with(&ConnParam::default()).unwrap();
        let event = next(&channel);
        match event.kind {
            EventKind::ConnectRequest(_) => assert!(!af_only && event.id == listener.key()),
            EventKind::Rejected(_) => assert!(af_only && event.id == client.key()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_listener_takes_the_addresses_that_its_own_stands_for_and_no_others() {
    const TEST: &str = "address::a_listener_takes_the_addresses_that_its_own_stands_for_and_no_others";
    if !is_inside(TEST, "true") {
        return;
    }
    let host = Host::new();
    let _v6 = verbs::soft::bind(Ipv6Addr::LOCALHOST.into()).unwrap();
    let (v4, v6) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST));
    let (any_v4, any_v6) = (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED));
    // The cases use the device's address, then a loopback address that leads to it by the
    // listener's name.
    for (listens, af_only, taken) in [
        (any_v6, None, &[host.address, v4, v6] as &[IpAddr]),
        (any_v6, Some(false), &[host.address, v4, v6]),
        (any_v6, Some(true), &[v6]),
        (any_v4, None, &[host.address, v4]),
        (v6, None, &[v6]),
        (v4, None, &[v4]),
        (host.address, None, &[host.address]),
    ] {
        let channel = EventChannel::new().unwrap();
        let listener = channel.create_id(PortSpace::TCP).unwrap();
        if let Some(af_only) = af_only {
            listener.set_af_only(af_only).unwrap();
        }
        listener.bind_addr((listens, 0)).unwrap();
        listener.listen(8).unwrap();
        let port = listener.local_addr().unwrap().unwrap().port();
        for (qp_num, to) in (0xff_ff00..).zip([host.address, v4, v6]) {
            let client = resolved(&channel, PortSpace::TCP, (to, port));
            client.connect_with(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
            let event = next(&channel);
            match event.kind {
                EventKind::ConnectRequest(request) if taken.contains(&to) => {
                    assert_eq!(request.id.local_addr().unwrap(), Some((to, port).into()));
                    drop(request);
                    assert!(matches!(next(&channel).kind, EventKind::Rejected(_)));
                }
                EventKind::Rejected(rejection) if !taken.contains(&to) => {
                    let reason = rejection.reason;
                    assert_eq!(reason, Some(RejectReason::INVALID_SERVICE_ID), "{listens}, from {to}");
                }
                other => panic!("{listens}, {af_only:?}, from {to}: {other:?}"),
            }
        }
    }
}

#[test]
fn localhost_of_ipv6_finds_a_device_with_an_ipv4_address() {
    let host = Host::new();
    let server = Server::on((Ipv6Addr::LOCALHOST, 0).into(), PortSpace::TCP, 0);
    let pair = connect(&server);
    drop(host);
    assert_eq!(pair.client.peer_addr().unwrap(), Some(server.address.into()));
    assert_eq!(pair.server.peer_addr().unwrap(), pair.client.local_addr().unwrap());
}

#[test]
fn ipv6_connects_as_ipv4_does() {
    let _device = match verbs::soft::bind(Ipv6Addr::LOCALHOST.into()) {
        Ok(device) => device,
        Err(error) => return println!("SKIP: another device has ::1, or there is no IPv6: {error}"),
    };
    let server = Server::on((Ipv6Addr::LOCALHOST, 0).into(), PortSpace::TCP, 0);
    let pair = connect(&server);
    assert_eq!(pair.client.peer_addr().unwrap(), Some(server.address.into()));
    assert_eq!(pair.server.peer_addr().unwrap(), pair.client.local_addr().unwrap());
}

#[test]
fn equal_link_local_addresses_of_two_interfaces_are_two_devices() {
    const TEST: &str = "address::equal_link_local_addresses_of_two_interfaces_are_two_devices";
    const NETWORK: &str = "for name in a b; do \
        ip link add ${name}0 type veth peer name ${name}1 && ip link set ${name}0 up && \
        ip link set ${name}1 up && ip address add fe80::1/64 dev ${name}0 nodad || exit; done";
    if !is_inside(TEST, NETWORK) {
        return;
    }
    let address: Ipv6Addr = "fe80::1".parse().unwrap();
    let scopes = ["a0", "b0"].map(|name| nix::net::if_::if_nametoindex(name).unwrap());
    let devices = scopes.map(|scope| verbs::soft::builder().scope_id(scope).bind(address.into()).unwrap());
    let guids = devices.each_ref().map(|device| device.open().unwrap().query_device().unwrap().node_guid);
    assert_ne!(guids[0], guids[1]);
    let at = |scope, port| SocketAddr::from(SocketAddrV6::new(address, port, 0, scope));
    let first = Server::on(at(scopes[0], 0), PortSpace::TCP, 0);
    let port = first.address.port();
    let channel = EventChannel::new().unwrap();
    let second = channel.create_id(PortSpace::TCP).unwrap();
    second.bind_addr(at(scopes[1], port)).unwrap();
    second.listen(8).unwrap();
    for (scope, guid, its) in [(scopes[0], guids[0], &first.channel), (scopes[1], guids[1], &channel)] {
        let (_its, client) = asking(at(scope, port));
        let request = request(its);
        assert_eq!(client.peer_addr().unwrap(), Some(at(scope, port).into()));
        for id in [&client, &request.id] {
            assert_eq!(id.context().unwrap().query_device().unwrap().node_guid, guid);
        }
        request.id.reject(&[]).unwrap();
    }
}
