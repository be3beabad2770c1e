//! Path MTUs between network interfaces of one machine.

use std::net::{IpAddr, Ipv4Addr};

use rdmacm::PortSpace;
use verbs::{Mtu, QpAttrMask};

use crate::support::{Host, Server, connect_from, exchange, ip, is_inside};

/// An address on an interface with the MTU of Ethernet.
const ETHERNET: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 1);

/// The commands that create the interface with this address.
const NETWORK: &str = "ip link add a0 mtu 1500 type veth peer name a1 && \
    ip address add 10.78.1.1/24 dev a0 && ip link set a0 up && ip link set a1 up";

/// Connects from an address to a server, transfers a message and returns the path MTU of both queue
/// pairs.
#[track_caller]
fn path_mtu(source: IpAddr, server: &Server) -> Mtu {
    let mut pair = connect_from(Some(source), server);
    assert_eq!(pair.client.local_addr().unwrap().unwrap().ip().unwrap().ip(), source);
    exchange((&mut pair.client_qp, &mut pair.client_end), (&mut pair.server_qp, &mut pair.server_end));
    let [client, server] = [&mut pair.client_qp, &mut pair.server_qp]
        .map(|qp| qp.query(QpAttrMask::PATH_MTU).unwrap().0.path_mtu);
    assert_eq!(client, server);
    client
}

#[test]
fn a_client_asks_for_the_smaller_path_mtu_of_both_interfaces() {
    if !is_inside("mtu::a_client_asks_for_the_smaller_path_mtu_of_both_interfaces", NETWORK) {
        return;
    }
    let loopback = Host::new();
    let ethernet = verbs::soft::bind(ETHERNET.into()).unwrap();
    let server = Server::on((ETHERNET, 0).into(), PortSpace::TCP, 0);
    assert_eq!(path_mtu(loopback.address, &server), Mtu::MTU_1024);
    assert_eq!(path_mtu(ETHERNET.into(), &server), Mtu::MTU_1024);
    // The cached properties of an interface follow its changes.
    for (bytes, mtu) in [("9000", Mtu::MTU_4096), ("700", Mtu::MTU_512)] {
        ip(&format!("link set a0 mtu {bytes}"));
        assert_eq!(path_mtu(loopback.address, &server), mtu, "{bytes}");
        assert_eq!(path_mtu(loopback.address, &server), mtu, "{bytes}, again");
    }
    let server = Server::new(&loopback);
    assert_eq!(path_mtu(ETHERNET.into(), &server), Mtu::MTU_512);
    assert_eq!(path_mtu(loopback.address, &server), Mtu::MTU_4096);
    drop(ethernet);
}
