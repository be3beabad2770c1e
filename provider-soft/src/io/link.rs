//! [`LinkWatch`]: detects when a device's interface goes down or up, or loses its address.
//!
//! The kernel reports changes to all interfaces and addresses of the network namespace on a netlink
//! socket. The reports only serve as an alarm: after a report, the device checks the current state
//! of its interface. Lost reports, reports of several changes at once, and reports about other
//! interfaces are therefore harmless.
//!
//! # References
//! `rtnetlink(7)`, `getifaddrs(3)`, `netdevice(7)`

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno as NixErrno;
use nix::ifaddrs::{InterfaceAddressIterator, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recv,
    socket,
};
use verbs_core::types::AsyncEventType;

use crate::io::Socket;

/// A netlink socket that becomes readable when an interface or an address changes.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    fd: OwnedFd,
}

impl LinkWatch {
    /// Opens the socket. Returns `None` if the kernel does not permit it, as in sandboxes. The
    /// device then raises no port events.
    pub(crate) fn open() -> Option<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkRoute;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol).ok()?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS)).ok()?;
        Some(Self { fd })
    }

    /// Reads all reports and returns whether there were any.
    pub(crate) fn has_changed(&self) -> bool {
        let mut any = false;
        // The reports' content is not used, so it may be truncated.
        let mut report = [0; 16];
        loop {
            match recv(self.fd.as_raw_fd(), &mut report, MsgFlags::empty()) {
                // ENOBUFS: reports were lost.
                Ok(_) | Err(NixErrno::ENOBUFS) => any = true,
                Err(NixErrno::EINTR) => {}
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An interface with a device's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// The interface's index in the network namespace; 0 if it has just been deleted.
    pub(crate) index: u32,
    /// Whether the interface is enabled and has a carrier.
    pub(crate) is_up: bool,
    /// Whether the interface is administratively enabled (`IFF_UP`).
    pub(crate) is_enabled: bool,
    /// Whether this is the loopback interface.
    pub(crate) is_loopback: bool,
}

impl Interface {
    /// Returns the interface that has an address, or `None` if no interface has it.
    ///
    /// # Errors
    /// Any errno of `getifaddrs(3)`.
    pub(crate) fn with_address(address: IpAddr) -> Result<Option<Self>, NixErrno> {
        Self::on(address, 0)
    }

    /// Returns the interface that has `address`. If `scope` is not 0, only the interface with index
    /// `scope` is considered, because several interfaces may have the same link-local address.
    ///
    /// # Errors
    /// Any errno of `getifaddrs(3)`.
    pub(crate) fn on(address: IpAddr, scope: u32) -> Result<Option<Self>, NixErrno> {
        // `getifaddrs` takes 5 KiB of the stack, so the search is in a separate function.
        let entries = getifaddrs()?;
        Ok(Self::find(entries, address, scope))
    }

    /// Finds the interface that has `address`, and the index `scope` unless that is 0, in the
    /// kernel's list.
    #[inline(never)]
    fn find(mut entries: InterfaceAddressIterator, address: IpAddr, scope: u32) -> Option<Self> {
        let wanted = listed(address);
        let interface = entries.find_map(|entry| {
            let its = entry.address?;
            let is_in_scope = scope == 0 || its.as_sockaddr_in6().is_some_and(|v6| v6.scope_id() == scope);
            (ip_of(&its)? == wanted && is_in_scope).then_some((entry.interface_name, entry.flags))
        });
        interface.map(|(name, flags)| Self {
            index: if_nametoindex(name.as_str()).unwrap_or(0),
            is_up: flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
            is_enabled: flags.contains(InterfaceFlags::IFF_UP),
            is_loopback: flags.contains(InterfaceFlags::IFF_LOOPBACK),
            name,
        })
    }

    /// Returns the addresses of the interface that has `address`, of the same family and scope.
    /// Addresses of its subnet come first.
    ///
    /// # Errors
    /// Any errno of `getifaddrs(3)`.
    pub(crate) fn addresses_beside(address: IpAddr) -> Result<Vec<IpAddr>, NixErrno> {
        let listed: Vec<_> = getifaddrs()?
            .filter_map(|entry| {
                // An IPv4 address may have a label: the name, a colon and a word.
                let name = entry.interface_name.split(':').next()?.to_owned();
                Some((name, ip_of(&entry.address?)?, entry.netmask.as_ref().and_then(ip_of)))
            })
            .collect();
        let Some((name, ..)) = listed.iter().find(|(_, its, _)| *its == address) else {
            return Ok(Vec::new());
        };
        let is_beside = |its: &IpAddr| {
            its.is_ipv4() == address.is_ipv4() && is_link_local(its) == is_link_local(&address)
        };
        let beside = listed.iter().filter(|(other, its, _)| other == name && is_beside(its));
        let (same, other): (Vec<_>, Vec<_>) =
            beside.partition(|(_, its, mask)| mask.is_some_and(|mask| is_same_subnet(*its, address, mask)));
        Ok(same.into_iter().chain(other).map(|(_, its, _)| *its).collect())
    }
}

/// Returns the address to look up in the kernel's list: all of 127.0.0.0/8 belongs to the interface
/// with 127.0.0.1.
pub(crate) fn listed(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        other => other,
    }
}

/// Returns the IP address of a socket address.
fn ip_of(storage: &SockaddrStorage) -> Option<IpAddr> {
    match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
        _ => None,
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn is_same_subnet(one: IpAddr, other: IpAddr, mask: IpAddr) -> bool {
    match (one, other, mask) {
        (IpAddr::V4(one), IpAddr::V4(other), IpAddr::V4(mask)) => one & mask == other & mask,
        (IpAddr::V6(one), IpAddr::V6(other), IpAddr::V6(mask)) => one & mask == other & mask,
        _ => false,
    }
}

/// The state of a device's port as reported by events, and its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortLink {
    /// Whether an interface has the GID's address.
    pub(crate) has_gid: bool,
    /// Whether the port is active: its interface is up.
    pub(crate) is_active: bool,
    /// The index of the interface, or 0 if there is none.
    pub(crate) index: u32,
}

impl PortLink {
    /// Returns the state of a socket's port and of the interface returned by [`Socket::link`]. If
    /// the kernel cannot list addresses, the GID's address is assumed to be still assigned.
    pub(crate) fn on(socket: &Socket) -> Self {
        Self::from_interface(socket.link())
    }

    fn from_interface(interface: Result<Option<Interface>, NixErrno>) -> Self {
        match interface {
            Ok(Some(Interface { index, is_up, .. })) => Self { has_gid: true, is_active: is_up, index },
            Ok(None) => Self { has_gid: false, is_active: false, index: 0 },
            Err(_) => Self { has_gid: true, is_active: false, index: 0 },
        }
    }

    /// Returns the port events to raise for a change from this state to `now`, in the kernel's
    /// order.
    pub(crate) fn events(self, now: Self) -> impl Iterator<Item = AsyncEventType> {
        let port = match (self.is_active, now.is_active) {
            (false, true) => Some(AsyncEventType::PORT_ACTIVE),
            (true, false) => Some(AsyncEventType::PORT_ERR),
            _ => None,
        };
        let gid = (self.has_gid != now.has_gid).then_some(AsyncEventType::GID_CHANGE);
        // A port whose address is gone is inactive, so an active port has its address.
        [gid, port].into_iter().flatten()
    }

    /// Returns whether the address has moved to another interface, or has come back to an
    /// interface, between this state and `now`.
    pub(crate) const fn has_moved(self, now: Self) -> bool {
        now.index != 0 && now.index != self.index
    }
}

/// The state of a new device's port, and the socket that receives the kernel's change reports.
#[derive(Debug)]
pub(crate) struct PortWatch {
    /// The socket, or `None` for the reasons given at [`LinkWatch::open`].
    pub(crate) link: Option<LinkWatch>,
    pub(crate) port: PortLink,
}

impl PortWatch {
    /// Starts to watch the port of the device with this socket. The state is read after the watch
    /// has begun, so no change is lost in between.
    pub(crate) fn on(socket: &Socket) -> Self {
        let link = LinkWatch::open();
        Self { link, port: PortLink::on(socket) }
    }
}

/// The netlink multicast groups for interfaces and their addresses.
const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_the_link_has_its_events() {
        use AsyncEventType as E;
        let up = PortLink { has_gid: true, is_active: true, index: 2 };
        let down = PortLink { has_gid: true, is_active: false, index: 2 };
        let gone = PortLink { has_gid: false, is_active: false, index: 0 };
        let cases: [(PortLink, PortLink, &[AsyncEventType]); 7] = [
            (up, up, &[]),
            (up, down, &[E::PORT_ERR]),
            (down, up, &[E::PORT_ACTIVE]),
            (up, gone, &[E::GID_CHANGE, E::PORT_ERR]),
            (down, gone, &[E::GID_CHANGE]),
            (gone, down, &[E::GID_CHANGE]),
            (gone, up, &[E::GID_CHANGE, E::PORT_ACTIVE]),
        ];
        for (before, now, events) in cases {
            assert_eq!(before.events(now).collect::<Vec<_>>(), events, "{before:?} to {now:?}");
            assert_eq!(before.has_moved(now), before == gone, "{before:?} to {now:?}");
        }
        let other = PortLink { index: 3, ..up };
        assert!(up.has_moved(other) && !up.has_moved(gone));
        assert_eq!(up.events(other).count(), 0);
    }

    #[test]
    fn an_address_that_no_interface_has_has_no_interface() {
        assert_eq!(Interface::with_address([192, 0, 2, 1].into()), Ok(None));
        let none = PortLink { has_gid: false, is_active: false, index: 0 };
        assert_eq!(PortLink::from_interface(Ok(None)), none);
    }

    #[test]
    fn without_a_change_there_is_nothing_to_read() {
        // Programs in the same namespace may change interfaces, so the test only checks that
        // reading ends.
        if let Some(watch) = LinkWatch::open() {
            watch.has_changed();
        }
    }
}
