//! Verification of the addresses in a request.
//!
//! A request contains the addresses of its program ([`ib_cm::wire::ip`]). The packet carrying the
//! request has addresses as well. The program trusts the addresses in the request, which it sees as
//! its peer's address and its own. Without a check, a remote host could reach a listener on
//! 127.0.0.1, or connect under any other host's address.
//!
//! | in the request | allowed in a packet from another machine | from this machine |
//! |---|---|---|
//! | target | an address of the device's interface, not loopback | any address of this machine |
//! | source | the packet's source | any address of this machine |
//!
//! Programs on one machine reach each other by all its addresses ([`provider_soft::cm`]), hence the
//! last column. In this case, source and target must be of one family: `::1` also leads to devices
//! with IPv4 addresses. The kernel drops packets from the network whose source is a loopback
//! address or one of the machine's IPv4 addresses.
//!
//! # References
//! linux `validate_ipv4_net_dev`, `validate_ipv6_net_dev`; IBTA annex A11.4

use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;
use verbs::Errno;

/// An address of this machine, with the name of its interface.
pub(super) type InterfaceAddress = (String, IpAddr);

/// The addresses in a request and in the packet that carried it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// The address of the receiving device.
    pub(super) device: IpAddr,
    /// The source address of the packet.
    pub(super) packet: IpAddr,
    /// The requester's address.
    pub(super) source: IpAddr,
    /// The address that the requester connects to.
    pub(super) target: IpAddr,
}

impl Origin {
    /// Returns whether the request names the packet's addresses, as most requests do.
    pub(super) fn is_plain(&self) -> bool {
        (self.source.to_canonical(), self.target.to_canonical()) == (self.packet, self.device)
    }

    pub(super) fn is_genuine_among(&self, interfaces: &[InterfaceAddress]) -> bool {
        let (source, target) = (self.source.to_canonical(), self.target.to_canonical());
        let is_of_machine = |ip: IpAddr| names(interfaces, ip).next().is_some();
        if self.is_local(interfaces) {
            return is_of_machine(target) && is_of_machine(source) && source.is_ipv4() == target.is_ipv4();
        }
        source == self.packet && !target.is_loopback() && self.is_on_interface(interfaces, target)
    }

    /// Returns whether the packet came from this machine.
    pub(super) fn is_local(&self, interfaces: &[InterfaceAddress]) -> bool {
        // Another machine may have the same link-local address on another link.
        let is_of_link = matches!(self.packet, IpAddr::V6(v6) if v6.is_unicast_link_local());
        names(interfaces, self.packet).next().is_some()
            && (!is_of_link || self.is_on_interface(interfaces, self.packet))
    }

    /// Returns whether an address belongs to the device's interface.
    fn is_on_interface(&self, interfaces: &[InterfaceAddress], ip: IpAddr) -> bool {
        names(interfaces, self.device).any(|name| names(interfaces, ip).any(|other| other == name))
    }
}

/// Returns the names of the interfaces that have the address `ip`.
fn names(interfaces: &[InterfaceAddress], ip: IpAddr) -> impl Iterator<Item = &str> {
    interfaces.iter().filter(move |(_, its)| *its == listed(ip)).map(|(name, _)| name.as_str())
}

/// Returns the address to look for in the kernel's list. All of 127.0.0.0/8 belongs to the
/// interface with 127.0.0.1.
fn listed(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        other => other,
    }
}

/// Returns the addresses of this machine and the names of their interfaces.
///
/// # Errors
/// Any errno from `getifaddrs(3)`, notably `EMFILE`.
pub(super) fn interfaces() -> Result<Vec<InterfaceAddress>, Errno> {
    let addresses = getifaddrs()?.filter_map(|entry| {
        let storage = entry.address?;
        let ip = match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) => IpAddr::V6(v6.ip()),
            _ => return None,
        };
        Some((entry.interface_name, ip))
    });
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a request is genuine on a machine with a loopback interface and two other
    /// interfaces.
    #[track_caller]
    fn is_genuine(device: &str, packet: &str, source: &str, target: &str) -> bool {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let interfaces = [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("eth0", "192.0.2.1"),
            ("eth0", "192.0.2.2"),
            ("eth0", "fe80::1"),
            ("eth1", "198.51.100.1"),
            ("eth1", "fe80::2"),
        ];
        let interfaces = interfaces.map(|(name, text)| (name.to_owned(), ip(text)));
        let origin =
            Origin { device: ip(device), packet: ip(packet), source: ip(source), target: ip(target) };
        origin.is_plain() || origin.is_genuine_among(&interfaces)
    }

    #[test]
    fn a_request_of_another_machine_speaks_for_the_address_it_comes_from() {
        assert!(is_genuine("192.0.2.1", "192.0.2.9", "192.0.2.9", "192.0.2.1"));
        assert!(is_genuine("192.0.2.1", "192.0.2.9", "192.0.2.9", "::ffff:192.0.2.1"));
        assert!(is_genuine("fe80::1", "fe80::9", "fe80::9", "fe80::1"));
        for source in ["192.0.2.8", "127.0.0.1", "192.0.2.1", "0.0.0.0", "::1"] {
            assert!(!is_genuine("192.0.2.1", "192.0.2.9", source, "192.0.2.1"), "{source}");
        }
    }

    #[test]
    fn a_request_of_another_machine_names_an_address_of_the_interface_that_it_reaches() {
        assert!(is_genuine("192.0.2.1", "192.0.2.9", "192.0.2.9", "192.0.2.2"), "a secondary address");
        for target in ["127.0.0.1", "127.1.2.3", "::1", "198.51.100.1", "192.0.2.77", "0.0.0.0"] {
            assert!(!is_genuine("192.0.2.1", "192.0.2.9", "192.0.2.9", target), "{target}");
        }
    }

    #[test]
    fn a_device_on_loopback_has_no_target_for_another_machine() {
        assert!(!is_genuine("127.7.7.7", "192.0.2.9", "192.0.2.9", "127.0.0.1"));
    }

    #[test]
    fn programs_of_one_machine_reach_each_other_by_all_its_addresses() {
        for packet in ["127.7.7.8", "192.0.2.1", "198.51.100.1"] {
            for source in [packet, "127.0.0.1", "192.0.2.2"] {
                for target in ["127.0.0.1", "127.7.7.9", "192.0.2.1", "198.51.100.1"] {
                    let of = format!("{packet} {source} {target}");
                    assert!(is_genuine("127.7.7.7", packet, source, target), "{of}");
                }
            }
            assert!(!is_genuine("127.7.7.7", packet, "192.0.2.9", "127.7.7.7"), "{packet}");
            assert!(!is_genuine("127.7.7.7", packet, packet, "192.0.2.9"), "{packet}");
        }
    }

    #[test]
    fn a_link_local_address_of_another_link_is_of_another_machine() {
        assert!(is_genuine("fe80::1", "fe80::1", "::1", "::1"), "this machine, on the same link");
        assert!(is_genuine("fe80::1", "fe80::2", "fe80::2", "fe80::1"));
        assert!(!is_genuine("fe80::1", "fe80::2", "::1", "::1"));
        assert!(!is_genuine("fe80::1", "fe80::2", "fe80::2", "::1"));
    }

    #[test]
    fn the_addresses_of_a_request_are_of_one_family() {
        for (source, target) in [("fe80::1", "127.0.0.1"), ("::1", "192.0.2.1"), ("127.0.0.1", "::1")] {
            assert!(!is_genuine("fe80::1", "fe80::1", source, target), "{source} {target}");
        }
        assert!(is_genuine("127.7.7.7", "127.7.7.8", "::1", "::1"));
    }

    #[test]
    fn this_machine_has_its_loopback_address() {
        assert!(interfaces().unwrap().iter().any(|(_, ip)| ip.is_loopback()));
    }
}
