//! Datagram services and multicast groups.

use std::net::{Ipv4Addr, Ipv6Addr};

use rdmacm::{ConnParam, EventChannel, EventKind, Peer, PortSpace};
use verbs::{CqInit, Errno, QpInit, QpType, SendFlags, SendOp};

use crate::support::{Host, PATIENCE, RESOLVE, Server, ip, is_inside, next, request, resolved};

#[test]
fn a_datagram_service_is_found_with_private_data_both_ways() {
    let host = Host::new();
    let server = Server::on(host.at(0), PortSpace::UDP, 0);
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::UDP, server.address);
    client.connect_with(&ConnParam { private_data: b"who", ..ConnParam::default() }).unwrap();
    let request = request(&server.channel);
    let data = request.peer.private_data();
    assert_eq!((&data[..3], data.len()), (&b"who"[..], 180));
    let context = request.id.context().unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(4)).unwrap());
    let qp = request.id.create_ud_qp(&pd, &QpInit::new(QpType::UD, &cq)).unwrap();
    let param = ConnParam { private_data: b"me", qp_num: qp.qp_num(), ..ConnParam::default() };
    request.id.accept_with(&param).unwrap();
    let EventKind::Established(Peer::Ud(ud)) = next(&channel).kind else { panic!("no service") };
    assert_eq!((ud.qp_num, ud.qkey), (qp.qp_num(), PortSpace::UDP_QKEY));
    assert_eq!((&ud.private_data[..2], ud.private_data.len()), (&b"me"[..], 136));
    assert_eq!(ud.ah_attr.grh.unwrap().dgid, host.address.into());
}

#[test]
fn a_service_that_refuses_or_is_missing_is_unreachable() {
    let host = Host::new();
    let server = Server::on(host.at(0), PortSpace::UDP, 0);
    let channel = EventChannel::new().unwrap();
    let client = resolved(&channel, PortSpace::UDP, server.address);
    client.connect_with(&ConnParam::default()).unwrap();
    drop(request(&server.channel));
    let error = next(&channel).ok().unwrap_err();
    assert!(error.to_string().contains("rejected the request"), "{error}");
    let client = resolved(&channel, PortSpace::UDP, host.at(1));
    client.connect_with(&ConnParam::default()).unwrap();
    let error = next(&channel).ok().unwrap_err();
    assert!(error.to_string().contains("no program listens"), "{error}");
}

#[test]
fn an_id_joins_a_group_and_leaves_it() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::UDP).unwrap();
    let group = (Ipv4Addr::new(239, 1, 2, 3), 0);
    assert_eq!(id.join_multicast(group, false).unwrap_err().errno, Errno::INVAL);
    id.resolve_addr(None, host.at(7471), RESOLVE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::AddrResolved));
    assert_eq!(id.join_multicast(host.at(0), false).unwrap_err().errno, Errno::INVAL);
    let key = id.join_multicast(group, false).unwrap();
    let EventKind::MulticastJoin { group: joined, ud } = next(&channel).kind else { panic!("no group") };
    assert_eq!(joined, key);
    assert_eq!(ud.ah_attr.grh.unwrap().dgid.to_ipv4(), Some(group.0));
    assert_eq!((ud.qp_num, ud.qkey), (0xff_ffff, PortSpace::UDP_QKEY));
    id.leave_multicast(key).unwrap();
    assert_eq!(id.leave_multicast(key).unwrap_err().errno, Errno::ADDRNOTAVAIL);
    // An unread event disappears with its membership.
    let key = id.join_multicast(group, true).unwrap();
    id.leave_multicast(key).unwrap();
    assert!(channel.try_next_event().unwrap().is_none());
}

#[test]
fn a_group_is_reached_from_a_loopback_address_by_any_device() {
    let _host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::UDP).unwrap();
    let group = (Ipv4Addr::new(239, 1, 2, 4), 0);
    id.resolve_addr(Some((Ipv4Addr::LOCALHOST, 0).into()), group, RESOLVE).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::AddrResolved));
    id.join_multicast(group, false).unwrap();
    assert!(matches!(next(&channel).kind, EventKind::MulticastJoin { .. }));
}

#[test]
fn a_group_of_the_other_family_is_refused_with_the_reason() {
    let host = Host::new();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::UDP).unwrap();
    id.bind_addr(host.at(0)).unwrap();
    let group: Ipv6Addr = "ff15::9:8:7".parse().unwrap();
    let error = id.join_multicast((group, 0), false).unwrap_err();
    assert_eq!(error.errno, Errno::NETUNREACH);
    assert!(error.to_string().contains("ff15::9:8:7 is no group of IPv4"), "{error}");
}

/// Without this check, the kernel would let a device join the group, but all messages to it would
/// be lost.
#[test]
fn a_group_of_ipv6_on_loopback_is_refused_until_there_is_a_route() {
    const TEST: &str = "datagram::a_group_of_ipv6_on_loopback_is_refused_until_there_is_a_route";
    if !is_inside(TEST, "ip -6 address show dev lo | grep -q ::1/128") {
        return;
    }
    let _device = verbs::soft::bind(Ipv6Addr::LOCALHOST.into()).unwrap();
    let channel = EventChannel::new().unwrap();
    let id = channel.create_id(PortSpace::UDP).unwrap();
    id.bind_addr((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let context = id.context().unwrap();
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(4)).unwrap());
    let mut qp = id.create_ud_qp(&pd, &QpInit::new(QpType::UD, &cq)).unwrap();
    let group: Ipv6Addr = "ff15::9:8:7".parse().unwrap();
    let refused = [false, true].map(|send_only| id.join_multicast((group, 0), send_only).unwrap_err());
    for error in refused.iter().chain([&qp.attach_mcast(&group.into(), 0).unwrap_err()]) {
        assert_eq!(error.errno, Errno::NETUNREACH);
        assert!(error.to_string().contains("lo has no route for ff15::9:8:7"), "{error}");
        assert!(error.to_string().contains("ip -6 route add local ff00::/8 dev lo"), "{error}");
    }

    ip("-6 route add local ff00::/8 dev lo");
    id.join_multicast((group, 0), false).unwrap();
    let EventKind::MulticastJoin { ud, .. } = next(&channel).kind else { panic!("no group") };
    qp.attach_mcast(&group.into(), 0).unwrap();
    qp.post_recv_buf(pd.alloc_buf(64).unwrap(), ..).unwrap();
    let ah = pd.create_ah(&ud.ah_attr).unwrap();
    let (op, message) = (SendOp::UdSend { to: ah.to(ud.qp_num, ud.qkey) }, pd.alloc_buf(5).unwrap());
    qp.post_send_buf(op, SendFlags::empty(), message, ..).unwrap();
    let received = [(); 2].map(|()| cq.poll_within(PATIENCE).unwrap().ok().unwrap().received());
    assert!(received.contains(&45), "the message behind its routing header: {received:?}");
}
