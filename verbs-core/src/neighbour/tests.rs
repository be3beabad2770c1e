//! Scripted replies from routing netlink and this machine's replies about its loopback interface.

use std::collections::VecDeque;

use super::*;

/// A netlink that replies to each request with the next message, which has a type and a payload.
struct Paper {
    replies: VecDeque<(u16, Vec<u8>)>,
    requests: Vec<Vec<u8>>,
}

impl Paper {
    fn new(replies: impl IntoIterator<Item = (u16, Vec<u8>)>) -> Self {
        Self { replies: replies.into_iter().collect(), requests: Vec::new() }
    }
}

impl Wire for Paper {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        self.requests.push(datagram.to_vec());
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<(usize, u32), Errno> {
        let (message_type, payload) = self.replies.pop_front().expect("no more than was asked for");
        let len = 16 + payload.len();
        buffer[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        buffer[4..6].copy_from_slice(&message_type.to_ne_bytes());
        buffer[6..8].fill(0);
        // The request's sequence number.
        buffer[8..12].copy_from_slice(&self.requests.last().unwrap()[8..12]);
        buffer[12..16].fill(0);
        buffer[16..len].copy_from_slice(&payload);
        Ok((len, 0))
    }
}

fn route(kind: u8, attributes: &[Vec<u8>]) -> (u16, Vec<u8>) {
    let mut payload = vec![0; RTMSG_LEN];
    payload[RTMSG_TYPE_AT] = kind;
    payload.extend(attributes.concat());
    (libc::RTM_NEWROUTE, payload)
}

fn neighbour(attributes: &[Vec<u8>]) -> (u16, Vec<u8>) {
    (libc::RTM_NEWNEIGH, [vec![0; NDMSG_LEN], attributes.concat()].concat())
}

fn link(attributes: &[Vec<u8>]) -> (u16, Vec<u8>) {
    (libc::RTM_NEWLINK, [vec![0; IFINFOMSG_LEN], attributes.concat()].concat())
}

fn refused(errno: Errno) -> (u16, Vec<u8>) {
    (libc::NLMSG_ERROR as u16, [(-errno.raw()).to_ne_bytes().to_vec(), vec![0; 16]].concat())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

#[test]
fn a_destination_on_the_link_is_a_neighbour_and_one_behind_a_gateway_is_the_gateway() {
    let gateway = attribute(libc::RTA_GATEWAY, &[10, 0, 0, 254]);
    let gateway6 = attribute(libc::RTA_GATEWAY, &octets(ip("2001:db8::1")));
    let local = attribute(libc::RTA_GATEWAY, &octets(ip("fe80::1:2ff:fe03:405")));
    let mut paper = Paper::new([
        route(1, &[]),
        route(1, &[gateway]),
        route(1, &[gateway6]),
        // Routers announce themselves with their link-local address.
        route(1, &[local]),
    ]);
    let mut lookup = Lookup::new(&mut paper, 5);
    assert_eq!(lookup.next_hop(ip("10.0.0.2")), Ok(NextHop::Neighbour(ip("10.0.0.2"))));
    assert_eq!(lookup.next_hop(ip("192.0.2.2")), Ok(NextHop::Neighbour(ip("10.0.0.254"))));
    assert_eq!(lookup.next_hop(ip("2001:db8:9::2")), Ok(NextHop::Neighbour(ip("2001:db8::1"))));
    assert_eq!(lookup.next_hop(ip("2001:db8:9::2")), Ok(NextHop::Known([2, 1, 2, 3, 4, 5])));
    // family, prefix, zeros; RTA_DST, RTA_OIF.
    let expected =
        [&[2, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[8, 0, 1, 0, 10, 0, 0, 2], &[8, 0, 4, 0, 5, 0, 0, 0]];
    assert_eq!(paper.requests[0][16..], expected.concat());
    assert_eq!(paper.requests[0][4..6], libc::RTM_GETROUTE.to_ne_bytes());
    assert_eq!(paper.requests[2][16..18], [10, 128]);
}

#[test]
fn a_destination_of_this_host_has_the_address_of_the_interface() {
    let mut paper = Paper::new([route(libc::RTN_LOCAL, &[]), link(&[attribute(libc::IFLA_ADDRESS, &MAC)])]);
    assert_eq!(Lookup::new(&mut paper, 5).next_hop(ip("10.0.0.1")), Ok(NextHop::Known(MAC)));
    // A non-Ethernet interface, whose addresses have 20 bytes.
    let mut paper =
        Paper::new([route(libc::RTN_LOCAL, &[]), link(&[attribute(libc::IFLA_ADDRESS, &[7; 20])])]);
    let error = Lookup::new(&mut paper, 5).next_hop(ip("10.0.0.1")).unwrap_err();
    assert_eq!(unreachable(error), Errno::HOSTUNREACH);
}

#[test]
fn a_destination_that_no_route_leads_to_is_unreachable() {
    for reply in [
        refused(Errno::NETUNREACH),
        route(libc::RTN_UNREACHABLE, &[]),
        route(libc::RTN_BLACKHOLE, &[]),
        route(libc::RTN_PROHIBIT, &[]),
        (libc::RTM_NEWROUTE, vec![0; 3]),
        (libc::RTM_NEWROUTE, [vec![0; RTMSG_LEN], vec![9, 0, 5]].concat()),
    ] {
        let mut paper = Paper::new([reply]);
        let error = Lookup::new(&mut paper, 5).next_hop(ip("10.0.0.2")).unwrap_err();
        assert_eq!(unreachable(error), Errno::HOSTUNREACH);
    }
}

#[test]
fn a_neighbour_is_known_once_it_has_an_address() {
    let mut paper = Paper::new([
        refused(Errno::NOENT),
        neighbour(&[attribute(libc::NDA_DST, &[10, 0, 0, 2])]),
        neighbour(&[attribute(libc::NDA_DST, &[10, 0, 0, 2]), attribute(libc::NDA_LLADDR, &MAC)]),
        refused(Errno::PERM),
    ]);
    let mut lookup = Lookup::new(&mut paper, 5);
    assert_eq!(lookup.neighbour(ip("10.0.0.2")), Ok(None));
    assert_eq!(lookup.neighbour(ip("10.0.0.2")), Ok(None), "it has not replied");
    assert_eq!(lookup.neighbour(ip("10.0.0.2")), Ok(Some(MAC)));
    assert_eq!(lookup.neighbour(ip("10.0.0.2")), Err(NetlinkError::Refused(Errno::PERM)));
    let expected = [&[2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..], &[8, 0, 1, 0, 10, 0, 0, 2]];
    assert_eq!(paper.requests[0][16..], expected.concat());
}

#[test]
fn only_an_interface_of_the_kind_vlan_has_a_number() {
    let info = |kind: &[u8], id: u16| {
        let data = attribute(IFLA_VLAN_ID, &id.to_ne_bytes());
        let info = [attribute(libc::IFLA_INFO_KIND, kind), attribute(libc::IFLA_INFO_DATA, &data)];
        link(&[attribute(libc::IFLA_LINKINFO, &info.concat())])
    };
    let replies = [info(b"vlan\0", 42), info(b"vlan", 42), info(b"vlan\0", 0x1000), info(b"veth\0", 42)];
    let mut paper = Paper::new(replies.into_iter().chain([link(&[])]));
    let mut lookup = Lookup::new(&mut paper, 5);
    let found: Vec<_> = (0..5).map(|_| lookup.link().unwrap().vlan).collect();
    assert_eq!(found, [Some(42), Some(42), None, None, None]);
}

#[test]
fn groups_and_link_local_addresses_determine_their_ethernet_address() {
    for (address, mac) in [
        ("224.0.0.1", Some([0x01, 0x00, 0x5e, 0, 0, 1])),
        ("239.129.2.3", Some([0x01, 0x00, 0x5e, 1, 2, 3])),
        ("223.255.255.255", None),
        ("240.0.0.1", None),
        ("ff02::1:ff12:3456", Some([0x33, 0x33, 0xff, 0x12, 0x34, 0x56])),
        ("fe80::5054:ff:fe12:3456", Some([0x52, 0x54, 0x00, 0x12, 0x34, 0x56])),
        // Only the first subnet of the /10 is in use.
        ("fe80:0:0:1:5054:ff:fe12:3456", None),
        ("2001:db8::1", None),
    ] {
        assert_eq!(encoded(ip(address)), mac, "{address}");
    }
}

#[test]
fn a_gid_stands_for_an_address_of_either_family() {
    for (gid, address) in [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("ff0e::ffff:239.1.2.3", "239.1.2.3"),
        ("ff02::ffff:239.1.2.3", "ff02::ffff:239.1.2.3"),
        ("fe80::1", "fe80::1"),
        ("2001:db8::1", "2001:db8::1"),
    ] {
        assert_eq!(address_of(&gid.parse().unwrap()), ip(address));
    }
}

#[test]
fn the_loopback_interface_leads_to_itself() {
    let here = ip("127.0.0.1");
    let ifindex = interface_with(here).unwrap();
    let path = resolve(ifindex, here, here, Duration::ZERO).unwrap();
    assert_eq!(path, EthPath { mac: [0; 6], vlan: None });
    assert_eq!(resolve(u32::MAX >> 1, here, here, Duration::ZERO), Err(Errno::HOSTUNREACH));
    assert_eq!(interface_with(ip("239.1.2.3")), Err(Errno::NODEV), "a group");
}

/// Returns netlink's description of an interface with these flags.
fn link_with(flags: i32) -> (u16, Vec<u8>) {
    let mut payload = vec![0; IFINFOMSG_LEN];
    payload[IFINFOMSG_FLAGS_AT..][..4].copy_from_slice(&flags.to_ne_bytes());
    (libc::RTM_NEWLINK, payload)
}

#[test]
fn a_neighbour_is_asked_for_its_address_where_it_is_needed_and_not_known() {
    let gateway = || attribute(libc::RTA_GATEWAY, &[10, 0, 0, 254]);
    let known = || neighbour(&[attribute(libc::NDA_LLADDR, &MAC)]);
    let up = || link_with(libc::IFF_UP);
    let cases = [
        (vec![route(1, &[]), refused(Errno::NOENT), up()], Ok(Some(ip("10.0.0.2")))),
        (vec![route(1, &[gateway()]), neighbour(&[]), up()], Ok(Some(ip("10.0.0.254")))),
        (vec![route(1, &[gateway()]), known()], Ok(None)),
        // A tunnel has no Ethernet addresses.
        (vec![route(1, &[]), refused(Errno::NOENT), link_with(libc::IFF_UP | libc::IFF_NOARP)], Ok(None)),
        (vec![refused(Errno::NETUNREACH)], Err(NetlinkError::Refused(Errno::NETUNREACH))),
    ];
    for (replies, expected) in cases {
        let mut paper = Paper::new(replies);
        assert_eq!(unknown_hop(&mut paper, 5, ip("10.0.0.2")), expected);
        assert!(paper.replies.is_empty());
    }
}

#[test]
fn nothing_is_asked_on_the_way_to_this_machine() {
    let loopback = nix::net::if_::if_nametoindex("lo").unwrap();
    let local = ip("127.0.0.1");
    assert!(Search::start(loopback, local, ip("127.0.0.2")).unwrap().is_none());
}
