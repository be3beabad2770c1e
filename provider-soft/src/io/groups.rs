//! Multicast: one socket for each group with attached queue pairs of the device.
//!
//! A socket bound to an address of the host receives nothing sent to a group. Each group therefore
//! has a separate socket, bound to the group's address and port 4791. The socket joins the group on
//! the interface of the device's address. The kernel announces the membership by IGMP or MLD and
//! maps the group to a MAC address. These sockets only receive: datagrams to a group leave through
//! the device's socket. The kernel loops one copy of each datagram back to this host's members,
//! including this device.
//!
//! The membership and the route of datagrams to groups end with the interface. When the address
//! moves to another interface, or to a new interface of the same name, the device sets up both
//! again.
//!
//! An interface without a route for `ff00::/8` carries no IPv6 multicast. The kernel adds this
//! route to each interface except loopback. Devices on loopback reject such groups
//! ([`Socket::group_obstacle`]) until the administrator adds a route of the type `local`.
//!
//! # References
//! `ip(7)` (`IP_ADD_MEMBERSHIP`), `ipv6(7)`; IBTA annex A17, section A17.4.6 (multicast)

use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use roce::engine::Gid;
use verbs_core::{Errno, room};

use super::address::address_of;
use super::inbox::{Inbox, Received};
use super::socket::Socket;

/// The multicast groups joined by a device.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    list: Vec<Group>,
    /// An epoll instance that is readable while a packet waits in any group's socket. Created with
    /// the first group.
    readable: Option<Arc<Epoll>>,
}

#[derive(Debug)]
struct Group {
    gid: Gid,
    socket: Socket,
    inbox: Inbox,
}

/// The maximum number of datagrams in one receive from a group.
const SLOTS: usize = 8;

/// The size of a slot, in bytes: more than the longest packet. Datagrams to groups are not
/// coalesced.
const SLOT: usize = 8 << 10;

/// The destination queue pair number of a multicast packet, as bytes 5 to 7 of the BTH.
const MULTICAST_QPN: &[u8] = &[0xff; 3];

impl Groups {
    /// Returns whether the device has joined no group.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether the device has joined the group `gid`.
    pub(crate) fn contains(&self, gid: &Gid) -> bool {
        self.list.iter().any(|group| group.gid == *gid)
    }

    /// Joins a group, for the device with this socket. Returns the descriptor that is readable
    /// while a packet waits in any group. The descriptor is the same for all groups.
    ///
    /// # Errors
    /// - `ENETUNREACH`: the group has an address of the other family.
    /// - `EADDRNOTAVAIL`: the interface with the device's address is gone.
    /// - `ENOMEM`
    /// - any other errno of `socket(2)`, `setsockopt(2)`, `bind(2)` and `epoll_ctl(2)`, notably
    ///   `EMFILE`, and `EADDRINUSE` if another program uses the port without sharing it.
    pub(crate) fn add(&mut self, gid: Gid, device: &Socket) -> Result<Arc<Epoll>, Errno> {
        let readable = match &self.readable {
            Some(readable) => Arc::clone(readable),
            None => Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?),
        };
        room::reserve(&mut self.list, 1)?;
        let socket = device.of_group(address_of(gid))?;
        readable.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        let inbox = Inbox::with_size(&socket, SLOTS, SLOT);
        self.list.push(Group { gid, socket, inbox });
        self.readable = Some(Arc::clone(&readable));
        Ok(readable)
    }

    /// Joins all groups again on the interface of the device's address, with new sockets. A group
    /// that cannot be joined keeps its old socket and is joined when the address moves again.
    pub(crate) fn rejoin(&mut self, device: &Socket) {
        let Self { list, readable } = self;
        let Some(readable) = readable else { return };
        for group in list {
            let Ok(socket) = device.of_group(address_of(group.gid)) else { continue };
            if readable.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0)).is_err() {
                continue;
            }
            // For the reason given in `retain`.
            let _ = readable.delete(&group.socket);
            group.inbox = Inbox::with_size(&socket, SLOTS, SLOT);
            group.socket = socket;
        }
    }

    /// Leaves the groups for which `stays` returns false.
    pub(crate) fn retain(&mut self, stays: impl Fn(&Gid) -> bool) {
        let Self { list, readable } = self;
        list.retain(|group| {
            let stays = stays(&group.gid);
            if !stays && let Some(readable) = readable {
                // While a forked child also has the socket, closing it alone would leave it in the
                // epoll set.
                let _ = readable.delete(&group.socket);
            }
            stays
        });
    }

    /// Receives packets from the sockets of all groups, without waiting, and returns whether any
    /// have arrived.
    pub(crate) fn receive(&mut self, device: &Socket) -> bool {
        let Some(readable) = &self.readable else { return false };
        if readable.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) == Ok(0) {
            return false;
        }
        let mut received = false;
        for group in &mut self.list {
            received |= group.inbox.receive_from(&group.socket, device.counts()).is_ok_and(|count| count > 0);
        }
        received
    }

    /// Calls `each` with the received packets addressed to a group. Other packets come only from
    /// malicious programs and are counted as malformed.
    pub(crate) fn take(&mut self, device: &Socket, mut each: impl FnMut(Received<'_>)) {
        for group in &mut self.list {
            while let Some(received) = group.inbox.next(device) {
                if received.bytes.get(5..8) == Some(MULTICAST_QPN) {
                    each(received);
                } else {
                    device.counts().malformed.add(1);
                }
            }
        }
    }
}
