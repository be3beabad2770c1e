//! Scripted replies from routing netlink, and the replies of this host's kernel.

use std::collections::VecDeque;

use super::*;
use crate::discovery::netlink::attribute;

/// A host whose netlink replies to requests for all items of a given type and family.
#[derive(Default)]
struct Host {
    items: Vec<(u16, Vec<u8>)>,
    datagrams: VecDeque<Vec<u8>>,
}

impl Wire for Host {
    fn send(&mut self, request: &[u8]) -> Result<(), Errno> {
        let sequence_number = &request[8..12];
        let family = request[16];
        let reply_type = u16::from_ne_bytes([request[4], request[5]]) - 2;
        let of = |(item_type, payload): &&(u16, Vec<u8>)| {
            *item_type == reply_type && (family == 0 || payload[0] == family)
        };
        let datagrams = self
            .items
            .iter()
            .filter(of)
            .map(|(item_type, payload)| message(*item_type, sequence_number, payload));
        self.datagrams =
            datagrams.chain([message(libc::NLMSG_DONE as u16, sequence_number, &[0; 4])]).collect();
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<(usize, u32), Errno> {
        let datagram = self.datagrams.pop_front().expect("no more than was asked for");
        buffer[..datagram.len()].copy_from_slice(&datagram);
        Ok((datagram.len(), 0))
    }
}

fn message(message_type: u16, sequence_number: &[u8], payload: &[u8]) -> Vec<u8> {
    let len = 16 + payload.len() as u32;
    let flags = libc::NLM_F_MULTI as u16;
    let header = [
        &len.to_ne_bytes()[..],
        &message_type.to_ne_bytes(),
        &flags.to_ne_bytes(),
        sequence_number,
        &[0; 4],
        payload,
    ];
    header.concat()
}

/// Interfaces, addresses and routes of a host. Interface 1 is the loopback interface.
impl Host {
    fn new() -> Self {
        Self::default().link(1, libc::IFF_UP | libc::IFF_LOOPBACK).address(1, "127.0.0.1/8", PERMANENT)
    }

    fn link(mut self, index: u32, flags: i32) -> Self {
        let payload = [&[0; 4][..], &index.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 4]].concat();
        self.items.push((libc::RTM_NEWLINK, payload));
        self
    }

    fn address(self, index: u32, text: &str, flags: u32) -> Self {
        self.address_in(libc::RT_SCOPE_UNIVERSE, index, text, flags)
    }

    fn address_in(mut self, scope: u8, index: u32, text: &str, flags: u32) -> Self {
        let (own, len) = text.split_once('/').unwrap();
        let own: IpAddr = own.parse().unwrap();
        let header = [family_of(own), len.parse().unwrap(), flags as u8, scope];
        let payload = [
            &header[..],
            &index.to_ne_bytes(),
            &attribute(libc::IFA_ADDRESS, &octets(own)),
            &attribute(IFA_FLAGS, &flags.to_ne_bytes()),
        ];
        self.items.push((libc::RTM_NEWADDR, payload.concat()));
        self
    }

    /// Adds a default route to the main table.
    fn route(self, family: i32, index: u32, metric: u32, gateway: Option<&str>) -> Self {
        let gateway = gateway.map(|ip| attribute(libc::RTA_GATEWAY, &octets(ip.parse().unwrap())));
        let oif = attribute(libc::RTA_OIF, &index.to_ne_bytes());
        let metric = attribute(libc::RTA_PRIORITY, &metric.to_ne_bytes());
        let attributes = [oif, metric, gateway.unwrap_or_default()].concat();
        self.raw_route(family, 0, libc::RT_TABLE_MAIN, libc::RTN_UNICAST, &attributes)
    }

    fn raw_route(mut self, family: i32, to_len: u8, table: u8, kind: u8, attributes: &[u8]) -> Self {
        let header = [family as u8, to_len, 0, 0, table, 0, 0, kind, 0, 0, 0, 0];
        self.items.push((libc::RTM_NEWROUTE, [&header, attributes].concat()));
        self
    }

    #[track_caller]
    fn prefers(mut self, expected: &str) {
        let expected = (!expected.is_empty()).then(|| expected.parse().unwrap());
        assert_eq!(choose(&mut self), Ok(expected));
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().into(),
        IpAddr::V6(v6) => v6.octets().into(),
    }
}

const UP: i32 = libc::IFF_UP;
const V4: i32 = libc::AF_INET;
const V6: i32 = libc::AF_INET6;
const PERMANENT: u32 = libc::IFA_F_PERMANENT;

#[test]
fn the_address_is_that_of_the_default_route_with_the_lowest_metric() {
    let host = Host::new().link(2, UP).link(3, UP);
    host.address(2, "10.0.2.2/24", PERMANENT)
        .address(3, "10.0.3.2/24", PERMANENT)
        .address(3, "2001:db8::3/64", PERMANENT)
        .route(V6, 3, 0, Some("fe80::1"))
        .route(V4, 2, 200, Some("10.0.2.1"))
        .route(V4, 3, 100, Some("10.0.3.1"))
        .prefers("10.0.3.2");
}

#[test]
fn of_several_addresses_the_one_beside_the_gateway_is_taken_and_secondary_ones_last() {
    let host = || {
        Host::new()
            .link(2, UP)
            .address(2, "10.0.9.2/24", PERMANENT)
            .address(2, "10.0.2.3/24", PERMANENT | libc::IFA_F_SECONDARY)
            .address(2, "10.0.2.2/24", PERMANENT)
    };
    host().route(V4, 2, 0, Some("10.0.2.1")).prefers("10.0.2.2");
    host().route(V4, 2, 0, None).prefers("10.0.9.2");
    host().route(V4, 2, 0, Some("fe80::1")).prefers("10.0.9.2");
    let preferred = attribute(libc::RTA_PREFSRC, &[10, 0, 2, 3]);
    let oif = attribute(libc::RTA_OIF, &2_u32.to_ne_bytes());
    let attributes = [oif, preferred].concat();
    host().raw_route(V4, 0, libc::RT_TABLE_MAIN, libc::RTN_UNICAST, &attributes).prefers("10.0.2.3");
}

#[test]
fn a_host_route_and_the_first_of_several_next_hops_have_an_address() {
    let host = || Host::new().link(2, UP).address(2, "192.0.2.7/32", PERMANENT);
    host().route(V4, 2, 0, Some("169.254.1.1")).prefers("192.0.2.7");
    // struct rtnexthop
    let hop = [&[8, 0, 0, 0][..], &2_u32.to_ne_bytes()].concat();
    let hops = attribute(libc::RTA_MULTIPATH, &hop);
    host().raw_route(V4, 0, libc::RT_TABLE_MAIN, libc::RTN_UNICAST, &hops).prefers("192.0.2.7");
}

#[test]
fn the_address_of_ipv6_is_neither_temporary_nor_tentative_and_always_the_same() {
    let temporary = libc::IFA_F_TEMPORARY;
    let host = |addresses: &[(&str, u32)]| {
        let host = Host::new().link(2, UP).route(V6, 2, 1024, Some("fe80::1"));
        let host = host.address_in(libc::RT_SCOPE_LINK, 2, "fe80::2/64", PERMANENT);
        addresses.iter().fold(host, |host, (text, flags)| host.address(2, text, *flags))
    };
    let mut addresses = [
        ("2001:db8::1/64", temporary),
        ("2001:db8::2/64", libc::IFA_F_TENTATIVE),
        ("2001:db8::5/64", 0),
        ("2001:db8::4/64", 0),
        ("2001:db8::3/64", libc::IFA_F_DEPRECATED),
    ];
    host(&addresses).prefers("2001:db8::4");
    addresses.reverse();
    host(&addresses).prefers("2001:db8::4");
    host(&[("2001:db8::4/64", 0), ("2001:db8::9/128", PERMANENT)]).prefers("2001:db8::9");
    host(&[("2001:db8::1/64", temporary)]).prefers("");
}

#[test]
fn routes_that_lead_nowhere_or_belong_to_a_policy_are_not_considered() {
    let oif = |index: u32| attribute(libc::RTA_OIF, &index.to_ne_bytes());
    let host = Host::new().link(2, UP).link(3, UP).address(2, "10.0.2.2/24", PERMANENT);
    let host = host.address(3, "10.0.3.2/24", PERMANENT).route(V4, 3, 500, None);
    let in_table = attribute(libc::RTA_TABLE, &51820_u32.to_ne_bytes());
    host.raw_route(V4, 0, 100, libc::RTN_UNICAST, &oif(2))
        .raw_route(V4, 0, 252, libc::RTN_UNICAST, &[oif(2), in_table].concat())
        .raw_route(V4, 0, libc::RT_TABLE_MAIN, libc::RTN_UNREACHABLE, &oif(2))
        .raw_route(V4, 8, libc::RT_TABLE_MAIN, libc::RTN_UNICAST, &oif(2))
        .prefers("10.0.3.2");
}

#[test]
fn without_a_default_route_it_is_the_address_of_the_first_interface_that_is_up() {
    let host = || {
        Host::new()
            .link(3, UP)
            .link(2, 0)
            .link(4, UP)
            .address(4, "10.0.4.2/24", PERMANENT)
            .address(3, "2001:db8::3/64", PERMANENT)
            .address(2, "10.0.2.2/24", PERMANENT)
    };
    host().prefers("10.0.4.2");
    host().address(3, "10.0.3.2/24", PERMANENT).prefers("10.0.3.2");
    Host::new().link(2, UP).address(2, "2001:db8::3/64", PERMANENT).prefers("2001:db8::3");
}

#[test]
fn a_host_without_addresses_or_without_loopback_has_none() {
    Host::new().prefers("");
    let link_local = Host::new().link(2, UP).address_in(libc::RT_SCOPE_LINK, 2, "169.254.7.7/16", PERMANENT);
    link_local.address(2, "169.254.7.8/16", PERMANENT).prefers("");
    Host::default().link(1, libc::IFF_LOOPBACK).link(2, UP).address(2, "10.0.2.2/24", PERMANENT).prefers("");
}

#[test]
fn a_reply_that_is_cut_off_is_an_error() {
    for item in [libc::RTM_NEWLINK, libc::RTM_NEWADDR, libc::RTM_NEWROUTE] {
        let mut host = Host::new();
        host.items.push((item, vec![libc::AF_INET as u8, 0]));
        assert!(matches!(choose(&mut host), Err(NetlinkError::Malformed(_))), "{item}");
    }
}

#[test]
fn this_host_has_a_stable_address_or_none() {
    let address = preferred().unwrap();
    assert_eq!(preferred(), Ok(address));
    assert!(address.is_none_or(|address| !address.is_loopback() && !address.is_unspecified()));
}
